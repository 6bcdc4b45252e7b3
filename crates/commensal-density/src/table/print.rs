//! Formats the table as text: first the columns of Arenadata's article, then the columns that the article lacks. A
//! placement is a number of VMs on a number of servers; a rung is one test with one number of sessions in one
//! placement.

use super::{Change, Flag, Medians, Table, TableCell};
use commensal_core::text::{Align, columns};
use commensal_lab::format::three_digits;

/// Formats a time as Arenadata's article does, `h:mm:ss`. A time below 100 s is in seconds with one decimal, so that a
/// reader can check changes by hand.
#[must_use]
pub fn time(seconds: f64) -> String {
    if seconds < 100.0 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round() as u64;
    format!("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
}

/// Formats a change as Arenadata's article does, in whole per cent without a plus sign. A failed rung (measurement) is
/// `x`.
#[must_use]
pub fn change(change: Change) -> String {
    match change {
        Change::Pct(pct) => {
            let whole = format!("{pct:.0}%");
            if whole == "-0%" { "0%".to_owned() } else { whole.replace('-', "−") }
        }
        Change::Failed => "x".to_owned(),
    }
}

fn time_cell(cell: &TableCell) -> String {
    let Some(mean) = cell.mean_s else {
        return if cell.failed() { "x".to_owned() } else { "-".to_owned() };
    };
    let mut text = time(mean);
    if cell.completed < cell.attempted {
        text.push_str(&format!(" ({}/{})", cell.completed, cell.attempted));
    }
    if cell.flags.contains(&Flag::NonMonotone) {
        text.push_str(" !");
    }
    text
}

/// Formats the article's table in its layout: `Test | Concurrency | time … | change … | warnings …`, and the medians.
#[must_use]
pub fn document(table: &Table) -> String {
    columns(&document_lines(table), Align::Figures)
}

/// Returns the cells of the article's table, line by line; the first line is the header.
#[must_use]
pub fn document_lines(table: &Table) -> Vec<Vec<String>> {
    let names = &table.placements;
    let first = names.first().cloned().unwrap_or_default();
    let mut head = vec!["Test".to_owned(), "Concurrency".to_owned()];
    head.extend(names.iter().map(|name| format!("{name} time")));
    head.extend(names.iter().skip(1).map(|name| format!("{name} vs {first}")));
    head.extend(names.iter().map(|name| format!("warn {name}")));
    let mut lines = vec![head];
    for row in &table.rows {
        let mut line = vec![row.test.clone(), row.concurrency.to_string()];
        line.extend(row.cells.iter().map(time_cell));
        line.extend(row.cells.iter().skip(1).map(|cell| cell.change.map_or("-".to_owned(), change)));
        line.extend(row.cells.iter().map(|cell| match cell.warnings {
            _ if cell.failed() => "x".to_owned(),
            Some(warnings) => format!("{warnings:.0}"),
            None => "-".to_owned(),
        }));
        lines.push(line);
    }
    for medians in &table.medians {
        lines.extend(median_lines(medians, names.len()));
    }
    lines
}

/// Returns two lines: medians over completed measurements, and medians that count failures as infinite.
fn median_lines(medians: &Medians, placements: usize) -> [Vec<String>; 2] {
    let of = medians.test.clone().map_or("Median %".to_owned(), |test| format!("Median % {test}"));
    let blank = |name: &str, what: &str| {
        let mut line = vec![name.to_owned(), what.to_owned()];
        line.extend(std::iter::repeat_n(String::new(), placements));
        line
    };
    let mut survivors = blank(&of, "completed");
    survivors.extend(medians.survivors.iter().map(|median| match median {
        Some((pct, rungs)) => format!("{} of {rungs}", change(Change::Pct(*pct))),
        None => "-".to_owned(),
    }));
    let mut all = blank("", "x = infinite");
    all.extend(medians.all.iter().map(|median| match median {
        Some((Change::Failed, rungs)) => format!("x of {rungs}"),
        Some((pct, rungs)) => format!("{} of {rungs}", change(*pct)),
        None => "-".to_owned(),
    }));
    [survivors, all]
}

/// Formats the columns that the article lacks: work per server and per core, and the concurrency at which failures
/// start.
#[must_use]
pub fn capacity(table: &Table) -> String {
    columns(&capacity_lines(table), Align::Figures)
}

/// Returns the cells of the table of capacities, line by line; the first line is the header.
#[must_use]
pub fn capacity_lines(table: &Table) -> Vec<Vec<String>> {
    let mut lines = vec![
        [
            "Test",
            "placement",
            "plateau",
            "per server",
            "per core",
            "per server vs first",
            "VM spread",
            "steal",
            "first warning",
            "first failure",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for one in &table.capacity {
        let rate = |value: Option<f64>| value.map_or("-".to_owned(), three_digits);
        let at = |step: Option<u32>| step.map_or("none".to_owned(), |step| step.to_string());
        lines.push(vec![
            one.test.clone(),
            one.placement.clone(),
            one.per_hour.map_or("-".to_owned(), |rate| format!("{} {}/h", three_digits(rate), one.unit)),
            rate(one.per_server),
            rate(one.per_core),
            one.times_first.map_or("-".to_owned(), |times| format!("x{times:.1}")),
            one.spread_pct.map_or("-".to_owned(), |pct| format!("{pct:.0}%")),
            one.steal_pct.map_or("-".to_owned(), |pct| format!("{pct:.0}%")),
            at(one.first_warning),
            at(one.first_failure),
        ]);
    }
    lines
}

/// Returns the footnotes: failures with their reasons, and unreliable measurements.
#[must_use]
pub fn remarks(table: &Table) -> Vec<String> {
    let mut lines = Vec::new();
    for row in &table.rows {
        for (cell, placement) in row.cells.iter().zip(&table.placements) {
            let at = format!("{} at {} in {placement}", row.test, row.concurrency);
            if cell.completed < cell.attempted || cell.failed() {
                let why = if cell.reasons.is_empty() {
                    "the record has no reason".to_owned()
                } else {
                    cell.reasons.join("; ")
                };
                let single = if cell.flags.contains(&Flag::SingleRun) { "only " } else { "" };
                let (completed, attempted) = (cell.completed, cell.attempted);
                lines.push(format!("{at}: {single}{completed} of {attempted} attempts completed: {why}"));
            }
            if cell.flags.contains(&Flag::OuterSteal) {
                lines.push(format!(
                    "{at}: unreliable, because the hypervisor took CPU time from the machine that ran the VMs"
                ));
            }
            if cell.flags.contains(&Flag::NonMonotone) {
                lines.push(format!(
                    "{at}: unreliable (!), because it did less work per hour than with fewer and with more sessions"
                ));
            }
        }
    }
    for one in &table.capacity {
        let Some(index) = table.placements.iter().position(|name| *name == one.placement) else { continue };
        let on = |row: &&super::Row| row.test == one.test && row.cells[index].flags.contains(&Flag::Plateau);
        let on: Vec<u32> = table.rows.iter().filter(on).map(|row| row.concurrency).collect();
        if let [first, .., _] = on[..] {
            lines.push(format!(
                "{} in {}: throughput no longer increases from {first} sessions on; higher rungs only test stability",
                one.test, one.placement
            ));
        }
    }
    lines
}

/// Formats both tables and the footnotes.
#[must_use]
pub fn text(table: &Table) -> String {
    let mut out = format!("{}\n{}", document(table), capacity(table));
    let remarks = remarks(table);
    if !remarks.is_empty() {
        out.push('\n');
        remarks.iter().for_each(|line| out.push_str(&format!("{line}\n")));
    }
    out
}
