//! The table of document 003 from a recorded ladder, with what that document lacks: failures counted as failures, work
//! per server and per core, and marks on unreliable rungs.
//!
//! A change is `(time / time of the first placement − 1)`, positive when slower, from unrounded means. A failed rung is
//! worse than any time: the second median counts it as infinite, because a median of only the completed rungs would
//! improve as more rungs fail.

pub mod print;

use crate::record::{Attempt, Ladder, Placement, Rung, Test};
use commensal_lab::format::delta_pct;
use commensal_lab::stats::median;
use serde::Serialize;

/// The plateau begins at the first rung whose throughput is within this share of the best.
pub const PLATEAU: f64 = 0.03;
/// Steal of the machine itself, per cent of its CPUs, above which an attempt is unreliable.
pub const OUTER_STEAL_PCT: f64 = 1.0;
/// A rung whose throughput is lower by this share than both an earlier and a later one is marked as unreliable.
pub const VALLEY: f64 = 0.10;

/// The table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Table {
    /// Names of the placements; the first one is the reference for the others.
    pub placements: Vec<String>,
    /// One row per test and concurrency.
    pub rows: Vec<Row>,
    /// Medians over all rungs first, then by test if there are several.
    pub medians: Vec<Medians>,
    /// Capacities by test and placement.
    pub capacity: Vec<Capacity>,
}

/// One row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Name of the test.
    pub test: String,
    /// Number of concurrent sessions.
    pub concurrency: u32,
    /// Cells by placement.
    pub cells: Vec<TableCell>,
}

/// One rung.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct TableCell {
    /// Mean of the completed attempts, seconds.
    pub mean_s: Option<f64>,
    /// Shortest and longest time, seconds.
    pub range_s: Option<(f64, f64)>,
    /// Attempts that completed.
    pub completed: u32,
    /// Attempts that were made.
    pub attempted: u32,
    /// Why it failed or was skipped, each reason once.
    pub reasons: Vec<String>,
    /// Change against the first placement; `None` for the first placement itself, and where that has no time.
    pub change: Option<Change>,
    /// Smallest and largest ratio to attempts of the first placement, as changes in per cent.
    pub change_range_pct: Option<(f64, f64)>,
    /// Warnings of all attempts together.
    pub warnings: Option<f64>,
    /// Units of work per hour, all servers together.
    pub per_hour: Option<f64>,
    /// Excess time of the slowest VM over the fastest, per cent; median of the attempts.
    pub spread_pct: Option<f64>,
    /// Steal, per cent of vCPU time; median of the attempts.
    pub steal_pct: Option<f64>,
    /// Remarks on the reliability of the figures.
    pub flags: Vec<Flag>,
}

/// A change against the first placement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// Per cent; positive is slower.
    Pct(f64),
    /// The rung failed.
    Failed,
}

/// A remark on a rung.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flag {
    /// On or after the plateau's first rung, within 3 % of the best throughput: more sessions only test stability.
    Plateau,
    /// Lower throughput than both an earlier and a later rung: the measurement was disturbed.
    NonMonotone,
    /// A single attempt completed although more were made.
    SingleRun,
    /// The hypervisor took CPU time from the machine itself in most attempts.
    OuterSteal,
}

/// Median changes of each placement except the first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Medians {
    /// The test; `None` for all tests.
    pub test: Option<String>,
    /// Over rungs completed in both placements: the median, and the number of rungs.
    pub survivors: Vec<Option<(f64, usize)>>,
    /// Over all rungs completed in the first placement, a failed one counted as infinite.
    pub all: Vec<Option<(Change, usize)>>,
}

/// Capacity of a placement in a test.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Capacity {
    /// The test.
    pub test: String,
    /// The placement.
    pub placement: String,
    /// The unit of work.
    pub unit: String,
    /// Median of the plateau, units per hour on all servers.
    pub per_hour: Option<f64>,
    /// Units per hour and server.
    pub per_server: Option<f64>,
    /// Units per hour and physical core.
    pub per_core: Option<f64>,
    /// Work per server relative to the first placement.
    pub times_first: Option<f64>,
    /// Excess time of the slowest VM over the fastest, per cent; median of the rungs.
    pub spread_pct: Option<f64>,
    /// Steal, per cent of vCPU time; median of the rungs.
    pub steal_pct: Option<f64>,
    /// The lowest concurrency with warnings.
    pub first_warning: Option<u32>,
    /// The lowest concurrency at which an attempt failed.
    pub first_failure: Option<u32>,
}

/// Computes the table.
#[must_use]
pub fn table(ladder: &Ladder) -> Table {
    let mut rows = Vec::new();
    let mut capacity = Vec::new();
    for test in &ladder.tests {
        let steps = ladder.concurrencies(&test.name);
        let mut columns: Vec<Vec<TableCell>> = Vec::new();
        for placement in &ladder.placements {
            let rungs: Vec<Option<&Rung>> =
                steps.iter().map(|step| ladder.rung(&test.name, *step, &placement.name)).collect();
            let mut column: Vec<TableCell> =
                rungs.iter().zip(&steps).map(|(rung, step)| cell(*rung, (test, placement), *step)).collect();
            flag(&mut column);
            columns.push(column);
        }
        compare(ladder, test, &steps, &mut columns);
        let first = columns.first().and_then(|column| plateau_per_hour(column));
        let first = first.zip(ladder.placements.first()).map(|(rate, first)| rate / f64::from(first.servers));
        for (placement, column) in ladder.placements.iter().zip(&columns) {
            capacity.push(of_placement((test, placement), &steps, column, first));
        }
        for (index, concurrency) in steps.into_iter().enumerate() {
            let cells = columns.iter().map(|column| column[index].clone()).collect();
            rows.push(Row { test: test.name.clone(), concurrency, cells });
        }
    }
    let names: Vec<String> = ladder.placements.iter().map(|placement| placement.name.clone()).collect();
    let of_tests: Vec<Option<String>> = match ladder.tests.as_slice() {
        [_] => vec![None],
        several => std::iter::once(None).chain(several.iter().map(|test| Some(test.name.clone()))).collect(),
    };
    let medians = of_tests.into_iter().map(|test| medians(&rows, names.len(), test)).collect();
    Table { placements: names, rows, medians, capacity }
}

fn cell(rung: Option<&Rung>, (test, placement): (&Test, &Placement), concurrency: u32) -> TableCell {
    let Some(rung) = rung else { return TableCell::default() };
    let short = rung.summary();
    let sessions = if test.spanning { 1.0 } else { f64::from(placement.vms) };
    let per_hour = short.mean_s.map(|mean| test.work * f64::from(concurrency) * sessions / mean * 3600.0);
    let mut reasons: Vec<String> = rung.skipped.iter().map(|why| format!("skipped: {why}")).collect();
    for failure in rung.attempts.iter().filter_map(|attempt| attempt.failure.as_ref()) {
        if !reasons.contains(&failure.reason) {
            reasons.push(failure.reason.clone());
        }
    }
    let mut flags =
        if short.completed == 1 && short.attempted > 1 { vec![Flag::SingleRun] } else { Vec::new() };
    let outer: Vec<f64> = rung.attempts.iter().filter_map(|attempt| attempt.outer_steal_pct).collect();
    if median(&outer).is_some_and(|pct| pct > OUTER_STEAL_PCT) {
        flags.push(Flag::OuterSteal);
    }
    TableCell {
        mean_s: short.mean_s,
        range_s: short.range_s,
        completed: short.completed,
        attempted: short.attempted,
        reasons,
        warnings: short.warnings,
        per_hour,
        spread_pct: median(&rung.attempts.iter().filter_map(spread_pct).collect::<Vec<_>>()),
        steal_pct: median(&rung.attempts.iter().filter_map(|one| one.steal_pct).collect::<Vec<_>>()),
        flags,
        ..TableCell::default()
    }
}

/// Excess time of an attempt's slowest VM over the fastest, per cent.
fn spread_pct(attempt: &Attempt) -> Option<f64> {
    let of = || attempt.vm_seconds.iter().copied();
    let (least, most) = (of().min_by(f64::total_cmp)?, of().max_by(f64::total_cmp)?);
    (attempt.vm_seconds.len() > 1 && least > 0.0).then(|| delta_pct(most, least))
}

impl TableCell {
    /// Whether the rung was tried, or skipped because lower ones failed, and never completed.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.mean_s.is_none() && (self.attempted > 0 || !self.reasons.is_empty())
    }
}

/// Marks the plateau and the valleys of one column.
fn flag(column: &mut [TableCell]) {
    let rates: Vec<Option<f64>> = column.iter().map(|cell| cell.per_hour).collect();
    let best = |rates: &[Option<f64>]| rates.iter().copied().flatten().fold(0.0, f64::max);
    let most = best(&rates);
    let begins = rates.iter().position(|rate| rate.is_some_and(|rate| rate >= most * (1.0 - PLATEAU)));
    for (index, cell) in column.iter_mut().enumerate() {
        let Some(rate) = rates[index] else { continue };
        let beside = best(&rates[..index]).min(best(&rates[index + 1..]));
        // Noise slows single attempts: where attempts are known, even the fastest one must be too slow.
        let at_best = cell.range_s.zip(cell.mean_s).map_or(rate, |((least, _), mean)| rate * mean / least);
        if at_best < beside * (1.0 - VALLEY) {
            cell.flags.push(Flag::NonMonotone);
        } else if begins.is_some_and(|begins| index >= begins) {
            cell.flags.push(Flag::Plateau);
        }
    }
}

/// Fills in the changes against the first column.
fn compare(ladder: &Ladder, test: &Test, steps: &[u32], columns: &mut [Vec<TableCell>]) {
    let Some((first, others)) = columns.split_first_mut() else { return };
    for (column, placement) in others.iter_mut().zip(ladder.placements.iter().skip(1)) {
        for ((cell, base), step) in column.iter_mut().zip(first.iter()).zip(steps) {
            let Some(base_s) = base.mean_s else { continue };
            cell.change = match cell.mean_s {
                Some(mean) => Some(Change::Pct(delta_pct(mean, base_s))),
                None if cell.failed() => Some(Change::Failed),
                None => None,
            };
            cell.change_range_pct = pairs(ladder, &test.name, *step, &placement.name)
                .into_iter()
                .map(|(_, log_ratio)| log_ratio.exp_m1() * 100.0)
                .fold(None, |range: Option<(f64, f64)>, pct| {
                    Some(range.map_or((pct, pct), |(least, most)| (least.min(pct), most.max(pct))))
                });
        }
    }
}

/// Log-ratios of the times of a placement to those of the first one, of attempts that completed in the same repeat, by
/// repeat.
#[must_use]
pub fn pairs(ladder: &Ladder, test: &str, concurrency: u32, placement: &str) -> Vec<(u32, f64)> {
    let attempts = |name: &str| {
        ladder.rung(test, concurrency, name).map(|rung| rung.attempts.as_slice()).unwrap_or_default()
    };
    let Some(first) = ladder.placements.first() else { return Vec::new() };
    let base = attempts(&first.name);
    let pair = |of: &Attempt| {
        let beside = base.iter().find(|one| one.repeat == of.repeat)?;
        Some((of.repeat, (of.seconds? / beside.seconds?).ln()))
    };
    attempts(placement).iter().filter_map(pair).collect()
}

fn plateau_per_hour(column: &[TableCell]) -> Option<f64> {
    let on = column.iter().filter(|cell| cell.flags.contains(&Flag::Plateau));
    median(&on.filter_map(|cell| cell.per_hour).collect::<Vec<_>>())
}

fn of_placement(
    (test, placement): (&Test, &Placement),
    steps: &[u32],
    column: &[TableCell],
    first_per_server: Option<f64>,
) -> Capacity {
    let per_hour = plateau_per_hour(column);
    let per_server = per_hour.map(|rate| rate / f64::from(placement.servers));
    let first = |is: &dyn Fn(&TableCell) -> bool| {
        steps.iter().zip(column).find(|(_, cell)| is(cell)).map(|(step, _)| *step)
    };
    Capacity {
        test: test.name.clone(),
        placement: placement.name.clone(),
        unit: test.unit.clone(),
        per_hour,
        per_server,
        per_core: per_server.map(|rate| rate / f64::from(placement.server.cores)),
        times_first: per_server.zip(first_per_server).map(|(own, first)| own / first),
        spread_pct: median(&column.iter().filter_map(|cell| cell.spread_pct).collect::<Vec<_>>()),
        steal_pct: median(&column.iter().filter_map(|cell| cell.steal_pct).collect::<Vec<_>>()),
        first_warning: first(&|cell| cell.warnings.is_some_and(|warnings| warnings > 0.0)),
        first_failure: first(&|cell| cell.completed < cell.attempted || cell.failed()),
    }
}

fn medians(rows: &[Row], placements: usize, test: Option<String>) -> Medians {
    let of_test = || rows.iter().filter(|row| test.as_ref().is_none_or(|test| *test == row.test));
    let (mut survivors, mut all) = (Vec::new(), Vec::new());
    for index in 1..placements {
        let changes: Vec<Change> = of_test().filter_map(|row| row.cells[index].change).collect();
        let of = |change: &Change| match change {
            Change::Pct(pct) => *pct,
            Change::Failed => f64::INFINITY,
        };
        let every: Vec<f64> = changes.iter().map(of).collect();
        let finite: Vec<f64> = every.iter().copied().filter(|pct| pct.is_finite()).collect();
        survivors.push(median(&finite).map(|pct| (pct, finite.len())));
        all.push(
            median(&every)
                .map(|pct| (if pct.is_finite() { Change::Pct(pct) } else { Change::Failed }, every.len())),
        );
    }
    Medians { test, survivors, all }
}

#[cfg(test)]
mod tests;
