//! The history of a machine's results: a table with a sparkline for each gate (metric that determines the verdict), and
//! an HTML page with a chart.

use super::charts::escape;
use super::html::{sheet, table};
use super::points::{Curve, CurveGate, CurvePoint};
use crate::format::{brackets, change_pct, plain, signed_pct};
use crate::history::{Change, GateEntry, Point, Series, test_in_words};
use crate::record::{Metric, Verdict};
use commensal_core::text::{Align, columns};
use std::fmt::Write as _;

/// Characters of a sparkline, from lowest to highest.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Maximum number of runs in a sparkline. Of a longer history, only the last runs are shown.
const BARS_SHOWN: usize = 60;

/// Formats the history for a terminal.
pub fn history_text(all: &[Series], told: &[String]) -> String {
    let mut out = String::new();
    for (at, one) in all.iter().enumerate() {
        if at > 0 {
            out.push('\n');
        }
        let _ = writeln!(out, "{}\n{}; {}", heading(one), one.machine, one.plan);
        out.push_str(&columns(&rows(one), Align::Figures));
        for metric in metrics(one) {
            let _ = writeln!(out, "{}", spark(one, metric));
        }
        for line in moved(one) {
            let _ = writeln!(out, "{line}");
        }
    }
    if all.is_empty() {
        out.push_str("the history is empty: `commensal lab run` adds each finished run\n");
    } else {
        let _ = writeln!(out, "\n{}", test_in_words());
    }
    for line in told {
        let _ = writeln!(out, "{line}");
    }
    out
}

/// Renders the history as an HTML page.
pub fn history_html(all: &[Series], told: &[String]) -> String {
    let mut body = String::from("<h1>History of results</h1>\n");
    if all.is_empty() {
        body.push_str(
            "<p class=\"absent\">The history is empty: commensal lab run adds each finished run.</p>\n",
        );
    }
    for (at, one) in all.iter().enumerate() {
        let _ = writeln!(body, "<h2 id=\"series-{at}\">{}</h2>", escape(&heading(one)));
        let _ = writeln!(body, "<p class=\"caption\">{}; {}</p>", escape(&one.machine), escape(&one.plan));
        body.push_str(&curve(one).figure(&format!("history-{at}")));
        body.push_str(&table(&heading(one), &rows(one)));
        for line in moved(one) {
            let _ = writeln!(body, "<p>{}</p>", escape(&line));
        }
    }
    let _ = writeln!(body, "<p class=\"caption\">{}</p>", escape(&test_in_words()));
    for line in told {
        let _ = writeln!(body, "<p class=\"absent\">{}</p>", escape(line));
    }
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <link rel=\"icon\" href=\"data:,\">\n<title>History of results</title>\n<style>\n{}\n</style></head>\n<body>\n{body}</body>\n</html>\n",
        sheet()
    )
}

fn heading(one: &Series) -> String {
    match one.arm.as_str() {
        "" => format!("{}, no isolated arm", one.experiment),
        arm => format!("{}, arm {arm}", one.experiment),
    }
}

fn metrics(one: &Series) -> Vec<Metric> {
    let used = |metric: &Metric| one.runs.iter().any(|point| gate(point, *metric).is_some());
    Metric::ALL.into_iter().filter(used).collect()
}

fn gate(point: &Point, metric: Metric) -> Option<&GateEntry> {
    point.gates.iter().find(|gate| gate.metric == metric)
}

/// Formats a gate as `+1.2 % [−0.3, +2.1], harm < 2.0`: the change of the metric with its interval, and the upper bound
/// of the harm.
fn figures(gate: &GateEntry) -> String {
    let change = |harm| change_pct(gate.metric, harm);
    let ends = gate.ci95.map(|ends| format!(" {}", brackets(ends.map(change), 0.1))).unwrap_or_default();
    let bound = gate.bound_pct.map_or(String::new(), |bound| match plain(bound.max(0.0), 0.1) {
        none if none == "0.0" => ", no harm".to_owned(),
        most => format!(", harm < {most}"),
    });
    format!("{}{ends}{bound}", signed_pct(change(gate.harm_pct), 0.1))
}

/// Formats the time `2026-11-21 10:00` from RFC 3339; any other text is returned unchanged.
fn day(started: &str) -> String {
    match (started.get(..10), started.get(10..11), started.get(11..16)) {
        (Some(day), Some("T"), Some(time)) => format!("{day} {time}"),
        _ => started.to_owned(),
    }
}

/// Returns one row per run; the first row is the header.
fn rows(one: &Series) -> Vec<Vec<String>> {
    let metrics = metrics(one);
    let mut titles: Vec<String> = ["run", "version", "verdict", "changed"].map(str::to_owned).to_vec();
    for metric in &metrics {
        let thresholds: Vec<f64> =
            one.runs.iter().filter_map(|point| gate(point, *metric)).map(|gate| gate.threshold_pct).collect();
        let theta = thresholds.last().map(|theta| super::charts::trimmed(*theta)).unwrap_or_default();
        titles.push(format!("{} (bound {theta} %)", metric.label()));
    }
    titles.extend(["offline work", "foreign CPUs", "kernel", "record"].map(str::to_owned));
    let mut rows = vec![titles];
    for point in &one.runs {
        let number = |value: Option<f64>, step, unit: &str| {
            value.map_or("–".to_owned(), |value| format!("{}{unit}", plain(value, step)))
        };
        let mut row = vec![
            day(&point.started),
            point.version.clone(),
            point.verdict.map_or("–", Verdict::label).to_owned(),
            changed(&point.changes),
        ];
        row.extend(metrics.iter().map(|metric| gate(point, *metric).map_or("–".to_owned(), figures)));
        row.push(number(point.offline_kept_pct, 1.0, " %"));
        row.push(number(point.foreign_cpus, 0.01, ""));
        row.push(point.kernel.clone());
        row.push(point.record.clone());
        rows.push(row);
    }
    rows
}

/// Formats the gates on which a run differs significantly from the previous run.
fn changed(changes: &[Change]) -> String {
    let significant: Vec<String> = changes.iter().filter(|change| change.significant).map(words).collect();
    match (significant.is_empty(), changes.is_empty()) {
        (_, true) => "–".to_owned(),
        (true, _) => "no".to_owned(),
        (false, _) => significant.join(", "),
    }
}

/// Formats a change as `P90 worse by 12 %, p 0.0004`.
fn words(change: &Change) -> String {
    let (how, by) = if change.moved_pct > 0.0 {
        ("worse", change.moved_pct)
    } else {
        ("better", crate::format::pct_of_log(-crate::format::log_of_pct(change.moved_pct)))
    };
    let p = if change.p < 1e-4 { "< 0.0001".to_owned() } else { format!("{:.4}", change.p) };
    format!("{} {how} by {} %, p {p}", change.metric.label(), plain(by, 0.1))
}

/// Returns one sentence for each change between releases that were measured by several runs.
fn moved(one: &Series) -> Vec<String> {
    let said = |change: &Change| {
        let verdict = if change.significant { "" } else { ", which may be due to chance" };
        format!("{}: {}{verdict}", change.since, words(change))
    };
    one.releases.iter().map(said).collect()
}

/// Formats `P90 ▁▂▁█  harm −0.4 to +12.1 %, 4 runs`. The height of a bar shows the harm in one run; a run without a
/// value is a gap.
fn spark(one: &Series, metric: Metric) -> String {
    let first = one.runs.len().saturating_sub(BARS_SHOWN);
    let harms: Vec<Option<f64>> =
        one.runs[first..].iter().map(|point| gate(point, metric).map(|gate| gate.harm_pct)).collect();
    let known = || harms.iter().flatten().copied().filter(|harm| harm.is_finite());
    let (lo, hi) = (known().fold(f64::INFINITY, f64::min), known().fold(f64::NEG_INFINITY, f64::max));
    let bar = |harm: &Option<f64>| match harm.filter(|harm| harm.is_finite()) {
        Some(harm) if hi - lo >= 0.1 => {
            BARS[((harm - lo) / (hi - lo) * 7.0).round().clamp(0.0, 7.0) as usize]
        }
        Some(_) => BARS[0],
        None => ' ',
    };
    let bars: String = harms.iter().map(bar).collect();
    format!(
        "{:5} {bars}  harm {} to {} %, {} runs",
        metric.label(),
        crate::format::signed(lo, 0.1),
        crate::format::signed(hi, 0.1),
        harms.len()
    )
}

/// Converts the runs to points of a chart, at equal distances.
fn curve(one: &Series) -> Curve {
    let point = |(at, point): (usize, &Point)| CurvePoint {
        at: at as f64,
        label: if point.started.len() >= 10 {
            format!("{}, {}", point.started.get(5..10).unwrap_or_default(), point.version)
        } else {
            point.version.clone()
        },
        verdict: point.verdict,
        gates: (point.gates.iter())
            .map(|gate| CurveGate { metric: gate.metric, harm_pct: gate.harm_pct, ci95: gate.ci95 })
            .collect(),
        offline_kept_pct: point.offline_kept_pct,
    };
    let mut thresholds_pct: Vec<(Metric, f64)> = Vec::new();
    for gate in one.runs.iter().rev().flat_map(|point| &point.gates) {
        if thresholds_pct.iter().all(|(metric, _)| *metric != gate.metric) {
            thresholds_pct.push((gate.metric, gate.threshold_pct));
        }
    }
    Curve {
        what: "run".to_owned(),
        unit: "day and version".to_owned(),
        thresholds_pct,
        points: one.runs.iter().enumerate().map(point).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{series, tests::entry};

    fn four() -> Vec<Series> {
        series(&[
            entry(1, "0.1.0", 0.0),
            entry(2, "0.1.0", 0.0),
            entry(3, "0.2.0", 0.2),
            entry(4, "0.2.0", 0.0),
        ])
    }

    #[test]
    fn the_table_says_what_each_run_found_and_what_changed() {
        let text = history_text(&four(), &["a line is left out".to_owned()]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "http-vs-stress-ng, arm isolated", "{text}");
        assert!(lines[2].starts_with("run ") && lines[2].contains("P90 (bound 5 %)"), "{text}");
        assert!(
            lines[3].starts_with("2026-11-01 10:00") && lines[3].contains(" PASS ") && lines[3].contains("–"),
            "{text}"
        );
        assert!(lines[4].contains(" no "), "{text}");
        assert!(lines[5].contains(" FAIL ") && lines[5].contains("P90 worse by 2"), "{text}");
        assert!(lines[6].contains("P90 better by 2"), "{text}");
        let spark = lines.iter().find(|line| line.starts_with("P90 ")).unwrap();
        assert!(spark.contains('█') && spark.contains('▁') && spark.contains("4 runs"), "{text}");
        assert!(text.contains("Welch's t-test") && text.ends_with("a line is left out\n"), "{text}");
    }

    #[test]
    fn the_page_has_the_same_figures() {
        let all = four();
        let page = history_html(&all, &[]);
        for cell in rows(&all[0]).concat() {
            assert!(page.contains(&escape(&cell)), "{cell}");
        }
        assert!(page.contains("<div class=\"narrow\"><svg") && !page.contains("NaN"));
        assert!(history_html(&[], &[]).contains("The history is empty"));
        assert!(history_text(&[], &[]).starts_with("the history is empty"));
    }

    #[test]
    fn foreign_text_stays_text() {
        let mut one = entry(1, "0.1.0", 0.0);
        let evil = "</title><script>alert(1)</script>";
        for text in [
            &mut one.version,
            &mut one.kernel,
            &mut one.machine,
            &mut one.experiment,
            &mut one.plan,
            &mut one.record,
            &mut one.started,
            &mut one.arms[0].arm,
        ] {
            *text = evil.to_owned();
        }
        let page = history_html(&series(&[one]), &[evil.to_owned()]);
        assert!(!page.contains("<script"), "{page}");
    }
}
