//! Evaluates the windows of a canary (short times with and without isolation) with the lab's statistics. Pure.

use commensal_agent::canary::{Report, Request};
use commensal_core::canary::{DELAY_FLOOR_MS, LONGEST_MS};
use commensal_core::text::{Align, columns};
use commensal_core::windows::{Effect, Shown};
use commensal_lab::record::Verdict;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Duration;

/// Result of a canary.
#[derive(Debug)]
pub struct CanaryAnswer {
    /// Effects by group and metric.
    pub effects: Vec<Effect>,
    /// Metrics that are missing, each with the reason.
    pub missing: Vec<String>,
    /// PASS: online work waits longer without isolation. FAIL: some metric shows that online work waits longer with
    /// isolation. Otherwise INCONCLUSIVE.
    pub verdict: Verdict,
    /// The result in one sentence, with the confidence interval, or with the largest effect that cannot be excluded.
    pub sentence: String,
}

/// Describes, before a canary starts, what it will do and within which limits.
pub fn before(request: &Request) -> String {
    let looks: Vec<String> = request.terms().looks().at().iter().map(u32::to_string).collect();
    let ends = match request.whole {
        true => "it runs for the whole duration".to_owned(),
        false => {
            format!("it ends as soon as an effect is significant, tested after {} pairs", looks.join(", "))
        }
    };
    format!(
        "canary of {}: {} pairs of windows of {}, the first {} of each window not evaluated; seed {}\n\
         {ends}\n\
         limits: isolation is off for at most {} % of the time, one window at a time; a window ends at once when an online \
         group waits\n  more than {} ms per CPU-second for offline work, or more than {} times as long for a CPU as with \
         isolation (and above\n  {DELAY_FLOOR_MS} ms/s); three such windows without isolation end the canary; Ctrl-C ends \
         it earlier\n",
        time(request.length_ms),
        request.terms().pairs(),
        time(request.window_ms),
        time(request.settle_ms),
        request.seed,
        request.off_pct,
        request.max_blamed_ms,
        request.max_run_delay,
    )
}

fn time(ms: u64) -> String {
    humantime::format_duration(Duration::from_millis(ms)).to_string()
}

/// Compares the windows of each complete pair.
pub fn judge(report: &Report) -> CanaryAnswer {
    let (effects, absent): (Vec<Effect>, Vec<Effect>) =
        report.effects().into_iter().partition(|effect| effect.pairs > 0);
    let because = |effect: &Effect| {
        let (subject, figure) = (&effect.subject, &effect.figure);
        format!("group {subject}: {figure}: {}", missing(figure, report))
    };
    // If there is no complete pair of windows, no metric counts as missing.
    let missing = if effects.is_empty() { Vec::new() } else { absent.iter().map(because).collect() };
    let with = |shown: Shown| list(&effects, shown);
    let (verdict, sentence) = match (with(Shown::Effect), with(Shown::Reverse)) {
        (None, None) => (Verdict::Inconclusive, open(&effects, report)),
        (Some(longer), None) => {
            (Verdict::Pass, format!("online work waits longer without isolation: {longer}"))
        }
        (None, Some(longer)) => (Verdict::Fail, format!("online work waits longer with isolation: {longer}")),
        (Some(without), Some(with)) => (
            Verdict::Fail,
            format!("online work waits longer with isolation: {with}; and longer without it: {without}"),
        ),
    };
    CanaryAnswer { effects, missing, verdict, sentence }
}

fn missing(figure: &str, report: &Report) -> String {
    match (&report.no_probe, figure.contains("pressure")) {
        (_, true) => "this kernel does not count it for the group (it needs PSI and cgroup v2)".to_owned(),
        (Some(why), false) if figure.starts_with("blamed") => format!("no probe: {why}"),
        _ => "no pair has a value for both of its windows".to_owned(),
    }
}

/// The metrics with this result, each with the size of its effect.
fn list(effects: &[Effect], shown: Shown) -> Option<String> {
    let of = |effect: &&Effect| effect.shown == shown;
    let all: Vec<String> =
        effects.iter().filter(of).map(|one| format!("{} {}", named(one), change(one))).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

fn named(effect: &Effect) -> String {
    format!("{} {}", effect.subject, effect.figure)
}

/// The change from isolation on to isolation off, with its 95 % confidence interval.
fn change(effect: &Effect) -> String {
    match (effect.difference, effect.ci95) {
        (Some(difference), Some([lo, hi])) => format!("{difference:+.2} [{lo:+.2}, {hi:+.2}]"),
        (Some(difference), None) => format!("{difference:+.2} (no interval)"),
        (None, _) => "-".to_owned(),
    }
}

/// Explains why no effect is significant: the largest effect that cannot be excluded, and what a decision would need.
fn open(effects: &[Effect], report: &Report) -> String {
    let limits = "windows without isolation were aborted because online work waited longer than the limits allow; \
                  raise --max-blamed and --max-run-delay";
    if effects.iter().all(|effect| effect.shown == Shown::TooFew) {
        let way_out = match report.aborted.len() > 2 {
            true => limits,
            false => "run the canary for longer (--for), or with shorter windows (--window)",
        };
        let pairs = effects.iter().map(|effect| effect.pairs).max().unwrap_or(0);
        return format!("{pairs} complete pairs of windows are too few; {way_out}");
    }
    let bounds = effects.iter().filter(|effect| effect.ci95.is_some() && effect.shown == Shown::Nothing);
    // The first metric that changes at all, in the order of the table: first the wait caused by offline work, then all
    // waits.
    let told = bounds.clone().find(|effect| effect.ci95 != Some([0.0, 0.0])).or(bounds.clone().next());
    let Some(told) = told else { return "no effect of isolation is shown".to_owned() };
    let more = told.pairs_needed.map(|pairs| {
        let ms = report.request.terms().length_for(u64::from(pairs));
        match ms <= LONGEST_MS {
            true => format!(
                "; about {pairs} pairs (--for {}) would show an effect of this size",
                time(ms.div_ceil(1_000) * 1_000)
            ),
            false => {
                format!("; about {pairs} pairs would show an effect of this size, which takes longer than a canary may \
                         run")
            }
        }
    });
    format!(
        "no effect of isolation is shown: without it {} {}{}; perhaps offline and online work did not compete for a \
         CPU",
        named(told),
        change(told),
        more.unwrap_or_default(),
    )
}

impl CanaryAnswer {
    /// The result as text, followed by its evidence.
    pub fn text(&self, report: &Report) -> String {
        let mut out = format!("{}  {}\n", self.verdict.label(), self.sentence);
        let heads = ["GROUP", "FIGURE", "ON", "OFF", "OFF - ON [95 %]", "PAIRS", ""].map(str::to_owned);
        let rows = self.effects.iter().map(row);
        let rows: Vec<[String; 7]> = std::iter::once(heads).chain(rows).collect();
        if !self.effects.is_empty() {
            out.push_str(&columns(&rows, Align::Left));
        }
        for missing in &self.missing {
            let _ = writeln!(out, "missing: {missing}");
        }
        for aborted in &report.aborted {
            let _ = writeln!(out, "void: {aborted}");
        }
        let share = if report.seconds > 0.0 { report.off_s / report.seconds * 100.0 } else { 0.0 };
        let _ = writeln!(
            out,
            "{} windows measured, {} void; isolation was off for {:.1} of {:.1} s ({share:.0} %); it ended because {}",
            report.windows.len(),
            report.aborted.len(),
            report.off_s,
            report.seconds,
            report.ended.as_deref().unwrap_or("the agent no longer responded"),
        );
        out
    }

    /// The result as JSON.
    pub fn as_json(&self, report: &Report) -> Value {
        json!({
            "verdict": self.verdict,
            "sentence": self.sentence,
            "effects": self.effects,
            "missing": self.missing,
            "canary": report,
        })
    }
}

fn row(effect: &Effect) -> [String; 7] {
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    [
        effect.subject.clone(),
        effect.figure.clone(),
        number(effect.with),
        number(effect.without),
        change(effect),
        effect.pairs.to_string(),
        effect.shown.words().to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_agent::canary::{Figures, Window};
    use std::collections::BTreeMap;

    /// A report with ten pairs, in which run delay differs by `delay` and CPU pressure does not differ, and with one
    /// pair whose window without isolation was aborted.
    fn report(delay: f64) -> Report {
        let window = |pair: u32, off: bool| {
            let of_side = if off { delay } else { 0.0 };
            let figures = Figures {
                run_delay_ms_per_s: Some(200.0 + f64::from(pair) * 0.1 + of_side),
                pressure_pct: [Some(if pair.is_multiple_of(2) == off { 1.0 } else { 2.0 }), None, Some(0.0)],
                ..Figures::default()
            };
            let groups = BTreeMap::from([("web".to_owned(), figures)]);
            Window { pair, off, from_s: 0.0, seconds: 4.0, groups }
        };
        let mut windows: Vec<Window> =
            (0..10).flat_map(|pair| [window(pair, pair % 3 == 0), window(pair, pair % 3 != 0)]).collect();
        windows.push(window(10, false));
        Report {
            windows,
            aborted: vec!["pair 11, isolation off: group web waited".to_owned()],
            no_probe: Some("clang is missing".to_owned()),
            ended: Some("its planned time had passed".to_owned()),
            seconds: 110.0,
            off_s: 53.0,
            ..Report::default()
        }
    }

    #[test]
    fn each_figure_has_its_word_and_what_is_missing_its_reason() {
        let report = report(90.0);
        let answer = judge(&report);
        let words: Vec<(&str, Shown, usize)> =
            answer.effects.iter().map(|one| (one.figure.as_str(), one.shown, one.pairs)).collect();
        assert_eq!(
            words,
            [
                ("run delay, ms/s", Shown::Effect, 10),
                ("CPU pressure, %", Shown::Nothing, 10),
                ("disk pressure, %", Shown::Nothing, 10),
            ]
        );
        assert_eq!((answer.verdict, answer.effects[0].difference), (Verdict::Pass, Some(90.0)));
        let text = answer.text(&report);
        let first_line =
            "PASS  online work waits longer without isolation: web run delay, ms/s +90.00 [+90.00, +90.00]\n";
        assert!(text.starts_with(first_line), "{text}");
        for part in [
            "missing: group web: blamed wait, ms per CPU-s: no probe: clang is missing",
            "missing: group web: memory pressure, %: this kernel does not count it",
            "void: pair 11",
            "21 windows measured, 1 void; isolation was off for 53.0 of 110.0 s (48 %)",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let json = answer.as_json(&report);
        assert_eq!((&json["verdict"], &json["effects"][0]["shown"]), (&json!("PASS"), &json!("effect")));
        assert_eq!(json["canary"]["no_probe"], json!("clang is missing"));
    }

    #[test]
    fn each_verdict_has_its_sentence_and_status() {
        let mut few = report(90.0);
        few.windows.truncate(8);
        let mut harmed = few.clone();
        harmed.aborted = vec!["x".to_owned(); 3];
        let mut both = report(-90.0);
        for window in &mut both.windows {
            let figures = window.groups.get_mut("web").unwrap();
            figures.pressure_pct[0] = Some(if window.off { 9.0 } else { f64::from(window.pair) * 0.1 });
        }
        // With a smaller error rate, fewer effects are significant.
        let strict = Report { level: Some(0.0005), ..report(90.0) };
        for (report, status, words) in [
            (report(-90.0), 1, "FAIL  online work waits longer with isolation: web run delay, ms/s -90.00 ["),
            (both, 1, "; and longer without it: web CPU pressure, % +"),
            (
                report(0.0),
                3,
                "INCONCLUSIVE  no effect of isolation is shown: without it web CPU pressure, % +0.00 [-1.00, +1.00]",
            ),
            (strict, 3, "INCONCLUSIVE  10 complete pairs of windows are too few; run the canary for longer"),
            (few, 3, "INCONCLUSIVE  4 complete pairs of windows are too few; run the canary for longer"),
            (harmed, 3, "--max-blamed"),
            (Report::default(), 3, "INCONCLUSIVE  0 complete pairs"),
        ] {
            let answer = judge(&report);
            let text = answer.text(&report);
            assert_eq!(answer.verdict.exit_code(), status, "{text}");
            assert!(text.contains(words), "{words} in\n{text}");
        }
        assert_eq!(judge(&Report::default()).missing, [""; 0]);
    }

    #[test]
    fn more_time_is_named_where_it_would_do() {
        let mut report = report(0.0);
        for (index, window) in report.windows.iter_mut().enumerate() {
            let figures = window.groups.get_mut("web").unwrap();
            let wave = if index % 4 < 2 { 6.0 } else { -4.0 };
            figures.run_delay_ms_per_s = Some(200.0 + if window.off { wave } else { 0.0 });
        }
        let answer = judge(&report);
        assert!(answer.sentence.contains(" pairs (--for "), "{}", answer.sentence);
    }

    #[test]
    fn the_limits_are_stated() {
        let words = before(&Request { off_pct: 20, ..Request::default() });
        for part in [
            "11 pairs of windows of 5s",
            "at most 20 %",
            "500 ms per CPU-second",
            "20 times",
            "seed 1",
            "after 9, 11 pairs",
        ] {
            assert!(words.contains(part), "{part} in\n{words}");
        }
        let whole = before(&Request { whole: true, ..Request::default() });
        assert!(!whole.contains("tested after") && whole.contains("the whole duration"), "{whole}");
    }
}
