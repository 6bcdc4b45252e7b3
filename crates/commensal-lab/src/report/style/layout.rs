//! Rows and columns of the three documents whose layouts the lab imitates. An arm is one of the ways of running the
//! service that a table compares.

use super::Style;
use super::figures::{ArmFigures, Figures};
use crate::record::{Metric, Role};
use commensal_core::text::{markdown_table, printable};
use std::fmt::Write as _;

/// A cell without a value.
const NOTHING: &str = "–";
/// The metric name in the Alinux document.
const SERIES: &str = "http_response_time";

/// Formats the whole text: headline, table, footnotes.
pub fn table(style: Style, figures: &Figures) -> String {
    let body = match style {
        Style::Openeuler | Style::Default => openeuler(figures),
        Style::Plugsched => plugsched(figures),
        Style::Alinux => alinux(figures),
    };
    let mut text = String::new();
    if !figures.headline.is_empty() {
        text = format!("{}\n\n", figures.headline);
    }
    text.push_str(&body);
    text.push('\n');
    for note in &figures.footnotes {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "- {note}");
    }
    text
}

/// Formats one row per deployment, with latencies in seconds. The column P95 is an addition: the document measured P95
/// but did not print it.
fn openeuler(figures: &Figures) -> String {
    let columns = [Metric::Qps, Metric::P50, Metric::P90, Metric::P99, Metric::P95];
    let mut rows = vec![vec!["deployment".to_owned()]];
    rows[0].extend(columns.map(|metric| {
        if metric == Metric::Qps { metric.label().into() } else { format!("{}, s", metric.label()) }
    }));
    for arm in &figures.arms {
        let name =
            if arm.what.is_empty() { arm.name.clone() } else { format!("{} ({})", arm.name, arm.what) };
        let mut row = vec![name];
        row.extend(columns.map(|metric| {
            let unit = if metric == Metric::Qps { 1.0 } else { 1e6 };
            cell(arm, metric, |value| decimal(value / unit))
        }));
        rows.push(row);
    }
    markdown_table(&rows, 1, escape)
}

/// Formats one row per percentile and one column per arm, with latencies in milliseconds.
fn plugsched(figures: &Figures) -> String {
    let mut several = figures.arms.iter().filter(|arm| arm.role == Role::Isolated).count() > 1;
    several |= figures.arms.is_empty();
    let title = |arm: &ArmFigures| match arm.role {
        Role::Baseline => "baseline".to_owned(),
        Role::Contended => "control".to_owned(),
        _ if several => format!("experiment {}", arm.name),
        _ => "experiment".to_owned(),
    };
    let mut rows = vec![vec!["ms".to_owned()]];
    rows[0].extend(figures.arms.iter().map(title));
    let ms = |us: f64| if figures.as_given { (us / 1e3).to_string() } else { decimal(us / 1e3) };
    for metric in [Metric::P50, Metric::P75, Metric::P90, Metric::P99] {
        let mut row = vec![format!("RT-{}", metric.label())];
        row.extend(figures.arms.iter().map(|arm| cell(arm, metric, ms)));
        rows.push(row);
    }
    let mut row = vec!["CPU%".to_owned()];
    row.extend(figures.arms.iter().map(|arm| {
        let share = |pct: f64| if figures.as_given { format!("{pct} %") } else { format!("{pct:.1} %") };
        with_change(arm.cpu_pct.map(share), arm.cpu_change.as_deref())
    }));
    rows.push(row);
    markdown_table(&rows, 1, escape)
}

/// Formats summaries in Prometheus' text format, followed by one line on P95. As in the document, arms with offline
/// work come first.
fn alinux(figures: &Figures) -> String {
    let mut text =
        format!("```text\n# HELP {SERIES} Duration of HTTP requests in seconds.\n# TYPE {SERIES} summary\n");
    let (base, others): (Vec<_>, Vec<_>) = figures.arms.iter().partition(|arm| arm.role == Role::Baseline);
    for arm in others.iter().chain(&base) {
        let label = arm.name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        for (metric, quantile) in
            [(Metric::P50, "0.5"), (Metric::P90, "0.9"), (Metric::P95, "0.95"), (Metric::P99, "0.99")]
        {
            // Prometheus' notation for a missing value is NaN; a crashed service has missing values.
            let value = arm.values.get(&metric).filter(|_| !arm.failed);
            let value = value.map_or("NaN".to_owned(), |us| seconds(us / 1e6));
            let _ = writeln!(text, "{SERIES}{{arm=\"{label}\",quantile=\"{quantile}\"}} {value}");
        }
        if let (Some(sum), Some(count)) = (arm.sum_s, arm.count) {
            let _ = writeln!(text, "{SERIES}_sum{{arm=\"{label}\"}} {}", seconds(sum));
            let _ = writeln!(text, "{SERIES}_count{{arm=\"{label}\"}} {count}");
        }
    }
    text.push_str("```\n\n");
    let each: Vec<String> = others.iter().map(|arm| format!("{} {}", arm.name, p95(arm))).collect();
    let each = if each.is_empty() { NOTHING.to_owned() } else { each.join(", ") };
    let _ = writeln!(text, "interference P95: {each}");
    text
}

fn p95(arm: &ArmFigures) -> &str {
    if arm.failed { "x" } else { arm.changes.get(&Metric::P95).map_or(NOTHING, String::as_str) }
}

/// Formats an absolute value with its change in brackets.
fn cell(arm: &ArmFigures, metric: Metric, print: impl Fn(f64) -> String) -> String {
    if arm.failed {
        return "x".to_owned();
    }
    with_change(arm.values.get(&metric).copied().map(print), arm.changes.get(&metric).map(String::as_str))
}

fn with_change(value: Option<String>, change: Option<&str>) -> String {
    match (value, change) {
        (None, _) => NOTHING.to_owned(),
        (Some(value), None) => value,
        (Some(value), Some(change)) => format!("{value} ({change})"),
    }
}

/// Formats a number with three decimals, or with as many as three significant digits require.
fn decimal(value: f64) -> String {
    let wanted = if value > 0.0 { 2.0 - value.log10().floor() } else { 3.0 };
    let decimals = wanted.clamp(3.0, 12.0) as usize;
    format!("{value:.decimals$}")
}

/// Formats seconds to the nanosecond, without trailing zeros.
fn seconds(value: f64) -> String {
    let text = format!("{value:.9}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Escapes a name that the user chose, so that the name stays in one table cell.
fn escape(cell: &str) -> String {
    printable(&cell.replace('|', "\\|").replace(['\n', '\r', '\t'], " ")).into_owned()
}
