//! The tables of a replay as a list of values, for several repeats and for other programs.

use super::{Arm, ReplayReport, Window};
use crate::load::Latencies;
use serde::Serialize;

const MIB: f64 = 1_048_576.0;

/// One value of a table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// The table.
    pub table: &'static str,
    /// The row.
    pub row: String,
    /// The column, with its unit.
    pub column: &'static str,
    /// The value.
    pub value: f64,
}

/// Returns all measured values of a report, table by table and row by row.
#[must_use]
pub fn figures(report: &ReplayReport) -> Vec<Figure> {
    let mut all = Vec::new();
    for arm in &report.memory {
        let used = arm.seen.told_peak as f64;
        let mut add = |column, value| push(&mut all, ("Memory", &arm.name), column, Some(value));
        add("group's memory, most, MiB", used / MIB);
        add("process (RSS), most, MiB", arm.seen.rss_peak as f64 / MIB);
        add("all done in, s", arm.seconds);
        let share = arm.limit.map(|limit| used / limit as f64 * 100.0);
        push(&mut all, ("Memory", &arm.name), "of the limit, %", share);
        ends(&mut all, "Memory", arm);
    }
    for arm in &report.cpu {
        windows(&mut all, ("CPU", arm), CPU, |window| window.cpu_percent);
        let shown = arm.seen.mean(|window| window.told_cpu_percent);
        push(&mut all, ("CPU", &arm.name), "shown, %", shown);
        ends(&mut all, "CPU", arm);
    }
    reads(&mut all, "Local reads", &report.local, |window| window.read_mib, |window| window.told_local_mib);
    reads(
        &mut all,
        "Remote reads",
        &report.remote,
        |window| window.sent_mib,
        |window| window.told_remote_mib,
    );
    for row in &report.short_queries {
        let mut add = |column, value| push(&mut all, ("Short queries beside scans", row.name), column, value);
        for (column, share) in [("P50, ms", 0.5), ("P90, ms", 0.9), ("P99, ms", 0.99), ("most, ms", 1.0)] {
            add(column, row.latencies.quantile(share).map(|latency| latency.as_secs_f64() * 1e3));
        }
        add("CPU of the server and its workers, %", Some(row.cpu_percent));
    }
    all
}

/// Columns for the mean, minimum and maximum of one-second windows.
const CPU: [&str; 3] = ["CPU, % of the machine", "least window, %", "most window, %"];
const RATE: [&str; 3] = ["MiB/s", "least window, MiB/s", "most window, MiB/s"];

fn push(all: &mut Vec<Figure>, at: (&'static str, &str), column: &'static str, value: Option<f64>) {
    // JSON cannot represent infinities and NaN.
    if let Some(value) = value.filter(|value| value.is_finite()) {
        all.push(Figure { table: at.0, row: at.1.to_owned(), column, value });
    }
}

fn windows(
    all: &mut Vec<Figure>,
    (table, arm): (&'static str, &Arm),
    columns: [&'static str; 3],
    of: fn(&Window) -> f64,
) {
    let spread = arm.seen.spread(of).map(|(mean, least, most)| [mean, least, most]);
    for (at, column) in columns.into_iter().enumerate() {
        push(all, (table, &arm.name), column, spread.map(|spread| spread[at]));
    }
}

fn reads(
    all: &mut Vec<Figure>,
    table: &'static str,
    arms: &[Arm],
    rate: fn(&Window) -> f64,
    told: fn(&Window) -> f64,
) {
    for arm in arms {
        push(all, (table, &arm.name), "limit, MiB/s", arm.limit.map(|limit| limit as f64 / MIB));
        windows(all, (table, arm), RATE, rate);
        push(all, (table, &arm.name), "shown, MiB/s", arm.seen.mean(told));
        ends(all, table, arm);
    }
}

fn ends(all: &mut Vec<Figure>, table: &'static str, arm: &Arm) {
    let failed = arm.outcomes.iter().filter(|outcome| outcome.rows.is_err()).count();
    let finished = arm.outcomes.len() - failed;
    let most = Latencies::of(&arm.outcomes).quantile(1.0);
    push(all, (table, &arm.name), "finished", Some(finished as f64));
    push(all, (table, &arm.name), "failed", Some(failed as f64));
    push(all, (table, &arm.name), "latency, most, s", most.map(|most| most.as_secs_f64()));
}
