//! A table with one row per block (the measurement of one arm, or way of running the service, in one round). The CSV
//! report has more columns.

use crate::format::three_digits;
use crate::record::{Block, Metric};
use crate::report::charts::{DecodedRun, escape};
use std::collections::BTreeMap;
use std::fmt::Write as _;

const COLUMNS: [&str; 23] = [
    "round",
    "arm",
    "valid",
    "requests",
    "errors",
    "time-outs",
    "offered /s",
    "answered /s",
    "P50 µs",
    "P90 µs",
    "P95 µs",
    "P99 µs",
    "lateness P99 µs",
    "CPU online",
    "offline",
    "other",
    "steal",
    "waited s",
    "PSI cpu %",
    "online's PSI cpu %",
    "CPI online",
    "offline",
    "work /s",
];

/// Renders the section with the raw values.
pub fn raw(seen: &DecodedRun<'_>) -> String {
    let mut out = format!(
        "<h2 id=\"blocks\">Raw values</h2>\n<details><summary>All {} blocks, in the order of measurement</summary>\n\
         <p class=\"hint always\">The table is wider than the screen; scroll it sideways.</p><div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"raw values\"><table class=\"raw\"><thead><tr>",
        seen.run.blocks.len()
    );
    for column in COLUMNS {
        let _ = write!(out, "<th scope=\"col\">{column}</th>");
    }
    for query in &seen.run.design.queries {
        let _ = write!(out, "<th scope=\"col\">{}</th>", escape(query.metric.label()));
    }
    out.push_str("</tr></thead><tbody>\n");
    for (block, latency_us) in seen.run.blocks.iter().zip(&seen.latency_us) {
        let queried = seen.run.design.queries.iter().map(|query| block.queried.get(&query.metric).copied());
        out.push_str(&row(block, latency_us, queried));
    }
    out.push_str("</tbody></table></div></details>\n");
    out
}

fn row(
    block: &Block,
    latency_us: &BTreeMap<Metric, f64>,
    queried: impl Iterator<Item = Option<f64>>,
) -> String {
    let number = |value: Option<f64>| value.map_or("–".to_owned(), three_digits);
    let latency = |metric| number(latency_us.get(&metric).copied());
    let valid = match (block.valid, block.online_crashed, &block.invalid_reason) {
        (_, true, _) => "crashed".to_owned(),
        (true, _, _) => "yes".to_owned(),
        (false, _, Some(why)) => escape(why),
        (false, _, None) => "no".to_owned(),
    };
    let cells = [
        escape(&block.arm),
        valid,
        block.load.offered_requests.to_string(),
        block.load.errors.to_string(),
        block.load.timeouts.to_string(),
        number(block.load.offered_per_s),
        number(block.load.achieved_per_s),
        latency(Metric::P50),
        latency(Metric::P90),
        latency(Metric::P95),
        latency(Metric::P99),
        number(block.lateness_us.map(|late| late.p99)),
        number(block.cpu.online),
        number(block.cpu.offline),
        number(block.cpu.other),
        number(block.cpu.steal),
        number(block.run_delay_s.online),
        number(block.psi.and_then(|psi| psi.cpu_some_pct)),
        number(block.group_psi.and_then(|psi| psi.online.cpu_some_pct)),
        number(block.cpi.online),
        number(block.cpi.offline),
        number(block.work.offline),
    ];
    let off = if block.valid { "" } else { " class=\"off\"" };
    let mut out = format!("<tr{off}><td>{}</td>", block.round.saturating_add(1));
    for cell in cells.into_iter().chain(queried.map(number)) {
        let _ = write!(out, "<td>{cell}</td>");
    }
    out.push_str("</tr>\n");
    out
}
