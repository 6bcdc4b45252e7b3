//! What a canary's windows show, in words. Pure.

use commensal_agent::canary::{Figures, Report, Request, Window};
use commensal_core::canary::DELAY_FLOOR_MS;
use commensal_lab::effect::{Effect, Series, Word, judge as judge_all};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

/// A figure's name and unit, and where it is.
type Row = (&'static str, fn(&Figures) -> Option<f64>);

/// What is compared.
const ROWS: [Row; 5] = [
    ("blamed wait, ms per CPU-s", |figures| figures.blamed_ms_per_cpu_s),
    ("run delay, ms/s", |figures| figures.run_delay_ms_per_s),
    ("CPU pressure, %", |figures| figures.pressure_pct[0]),
    ("memory pressure, %", |figures| figures.pressure_pct[1]),
    ("disk pressure, %", |figures| figures.pressure_pct[2]),
];

/// What a canary has shown.
#[derive(Debug)]
pub struct Judged {
    /// By group and figure.
    pub effects: Vec<Effect>,
    /// Figures that were not there, and why.
    pub missing: Vec<String>,
    /// On the whole.
    pub word: Word,
}

/// What is going to happen and within which limits, before it does.
pub fn before(request: &Request) -> String {
    format!(
        "canary of {}: {} pairs of windows of {}, of which the first {} are left out; seed {}\n\
         limits: isolation is off for at most {} % of the time, one window at a time; a window ends at once when an online \
         group waits\n  more than {} ms per CPU-second for offline work, or more than {} times as long for a CPU as with \
         isolation (and above\n  {DELAY_FLOOR_MS} ms/s); three such windows end the canary; Ctrl-C ends it\n",
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

/// Compares the windows of each pair that has both.
pub fn judge(report: &Report) -> Judged {
    let mut pairs: BTreeMap<u32, [Option<&Window>; 2]> = BTreeMap::new();
    for window in &report.windows {
        pairs.entry(window.pair).or_default()[usize::from(window.off)] = Some(window);
    }
    let whole: Vec<(&Window, &Window)> =
        pairs.values().filter_map(|[on, off]| Some(((*on)?, (*off)?))).collect();
    let names: BTreeSet<&String> = report.windows.iter().flat_map(|window| window.groups.keys()).collect();
    let (mut series, mut missing) = (Vec::new(), Vec::new());
    for name in names {
        for (figure, of) in ROWS {
            let value = |window: &Window| window.groups.get(name).and_then(of);
            let both = whole.iter().filter_map(|(on, off)| Some((value(on)?, value(off)?)));
            let pairs: Vec<(f64, f64)> = both.collect();
            if pairs.is_empty() && !whole.is_empty() {
                missing.push(format!("group {name}: {figure}: {}", absent(figure, report)));
                continue;
            }
            series.push(Series { subject: name.clone(), figure: figure.to_owned(), pairs });
        }
    }
    let (effects, word) = judge_all(&series);
    Judged { effects, missing, word }
}

fn absent(figure: &str, report: &Report) -> String {
    match (&report.no_judge, figure.contains("pressure")) {
        (_, true) => "this kernel does not count it for the group (PSI, cgroup v2)".to_owned(),
        (Some(why), false) if figure.starts_with("blamed") => format!("no judge: {why}"),
        _ => "not known in both windows of any pair".to_owned(),
    }
}

impl Judged {
    /// For reading in a terminal.
    pub fn text(&self, report: &Report) -> String {
        let mut out = String::new();
        let heads = ["GROUP", "FIGURE", "ON", "OFF", "DIFFERENCE (95 %)", "PAIRS", ""].map(str::to_owned);
        let rows = self.effects.iter().map(row);
        let rows: Vec<[String; 7]> = std::iter::once(heads).chain(rows).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        for row in rows.iter().filter(|_| !self.effects.is_empty()) {
            let cells = row.iter().enumerate().map(|(column, cell)| format!("{cell:0$}", width(column)));
            let line = cells.collect::<Vec<_>>().join("  ");
            let _ = writeln!(out, "{}", line.trim_end());
        }
        for missing in &self.missing {
            let _ = writeln!(out, "missing: {missing}");
        }
        for aborted in &report.aborted {
            let _ = writeln!(out, "broken off: {aborted}");
        }
        let share = if report.seconds > 0.0 { report.off_s / report.seconds * 100.0 } else { 0.0 };
        let _ = writeln!(
            out,
            "{} windows measured, {} broken off; isolation was off for {:.1} of {:.1} s ({share:.0} %); it ended because {}",
            report.windows.len(),
            report.aborted.len(),
            report.off_s,
            report.seconds,
            report.ended.as_deref().unwrap_or("the agent went away"),
        );
        let _ = writeln!(out, "verdict: {}", self.word.words());
        if let Some(hint) = self.hint(report) {
            let _ = writeln!(out, "  {hint}");
        }
        out
    }

    /// The way out of a verdict that says nothing.
    fn hint(&self, report: &Report) -> Option<&'static str> {
        match self.word {
            Word::Shown => None,
            Word::TooFew if report.aborted.len() > 2 => Some(
                "without isolation online work suffers more than the limits allow, which is why there are so few; allow \
                 more with --max-blamed and --max-run-delay",
            ),
            Word::TooFew => Some("take more time (--for), or shorter windows (--window)"),
            Word::NotShown => Some(
                "that is no proof that there is none: offline work may not have met online work on a CPU meanwhile",
            ),
            Word::Reversed => Some("online work waits longer with isolation: look at `commensal explain`"),
        }
    }

    /// For programs.
    pub fn as_json(&self, report: &Report) -> Value {
        json!({
            "verdict": self.word,
            "effects": self.effects,
            "missing": self.missing,
            "canary": report,
        })
    }
}

fn row(effect: &Effect) -> [String; 7] {
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    let difference = match (effect.difference, effect.ci95) {
        (Some(difference), Some([lo, hi])) => format!("{difference:+.2} ({lo:+.2} to {hi:+.2})"),
        (Some(difference), None) => format!("{difference:+.2} (no interval)"),
        (None, _) => "-".to_owned(),
    };
    [
        effect.subject.clone(),
        effect.figure.clone(),
        number(effect.with),
        number(effect.without),
        difference,
        effect.pairs.to_string(),
        effect.word.words().to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten pairs in which run delay differs and CPU pressure does not, and one whose window without was broken off.
    fn report() -> Report {
        let window = |pair: u32, off: bool| {
            let figures = Figures {
                run_delay_ms_per_s: Some(2.0 + f64::from(pair) * 0.1 + if off { 90.0 } else { 0.0 }),
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
            no_judge: Some("clang is missing".to_owned()),
            ended: Some("its time was over".to_owned()),
            seconds: 110.0,
            off_s: 53.0,
            ..Report::default()
        }
    }

    #[test]
    fn each_figure_has_its_word_and_what_is_missing_its_reason() {
        let report = report();
        let judged = judge(&report);
        let words: Vec<(&str, Word, usize)> =
            judged.effects.iter().map(|one| (one.figure.as_str(), one.word, one.pairs)).collect();
        assert_eq!(
            words,
            [
                ("run delay, ms/s", Word::Shown, 10),
                ("CPU pressure, %", Word::NotShown, 10),
                ("disk pressure, %", Word::NotShown, 10),
            ]
        );
        assert_eq!((judged.word, judged.effects[0].difference), (Word::Shown, Some(90.0)));
        let text = judged.text(&report);
        for part in [
            "missing: group web: blamed wait, ms per CPU-s: no judge: clang is missing",
            "missing: group web: memory pressure, %: this kernel does not count it",
            "broken off: pair 11",
            "21 windows measured, 1 broken off; isolation was off for 53.0 of 110.0 s (48 %)",
            "verdict: effect shown",
            "+90.00 (+90.00 to +90.00)",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert_eq!(judged.as_json(&report)["verdict"], "shown");
    }

    #[test]
    fn few_windows_say_nothing() {
        let mut few = report();
        few.windows.truncate(8);
        let judged = judge(&few);
        assert_eq!((judged.word, judged.word.exit_code()), (Word::TooFew, 3));
        assert!(judged.text(&few).contains("too few windows\n  take more time"), "{}", judged.text(&few));
        few.aborted = vec!["x".to_owned(); 3];
        assert!(judged.text(&few).contains("--max-blamed"));
        let nothing = judge(&Report::default());
        assert_eq!((nothing.word, nothing.effects.len(), nothing.missing.len()), (Word::TooFew, 0, 0));
    }

    #[test]
    fn the_limits_are_stated() {
        let words = before(&Request { off_pct: 20, ..Request::default() });
        for part in
            ["11 pairs of windows of 5s", "at most 20 %", "500 ms per CPU-second", "20 times", "seed 1"]
        {
            assert!(words.contains(part), "{part} in\n{words}");
        }
    }
}
