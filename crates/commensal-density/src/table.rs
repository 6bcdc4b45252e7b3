//! Computes the table of Arenadata's article from a recorded ladder (a series of measurements with more and more
//! sessions). Adds what the article lacks: a median that counts failures, the work done per server and per core, and
//! marks on unreliable rungs. A rung is one test with one number of sessions in one placement; a placement is a number
//! of VMs on a number of servers.
//!
//! A change is `(time / time of the first placement − 1)`, computed from unrounded means; positive is slower. A failed
//! rung is worse than any time. So of the two printed medians, the second counts a failed rung as infinite: a median of
//! only the completed rungs would improve as more rungs fail.

pub mod print;

use crate::record::{Attempt, Ladder, Placement, Rung, Test};
use commensal_lab::format::delta_pct;
use commensal_lab::stats::median;
use serde::Serialize;

/// The plateau starts at the first rung whose throughput is lower than the best throughput by at most this share.
pub const PLATEAU: f64 = 0.03;
/// If the machine itself has more steal than this, an attempt is unreliable (per cent of the machine's CPU time).
pub const OUTER_STEAL_PCT: f64 = 1.0;
/// A rung is marked as unreliable if its throughput is lower by at least this share than at an earlier rung and also at
/// a later rung.
pub const VALLEY: f64 = 0.10;

/// The table of a ladder.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Table {
    /// Names of the placements; the first one is the reference for the others.
    pub placements: Vec<String>,
    /// One row per test and concurrency.
    pub rows: Vec<Row>,
    /// Medians over all tests, followed by medians of each test if there are several.
    pub medians: Vec<Medians>,
    /// Capacity of each placement in each test.
    pub capacity: Vec<Capacity>,
}

/// One test at one concurrency.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Name of the test.
    pub test: String,
    /// Number of concurrent sessions.
    pub concurrency: u32,
    /// One cell per placement.
    pub cells: Vec<TableCell>,
}

/// One rung: a test at one concurrency in one placement.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct TableCell {
    /// Mean time of the completed attempts, in seconds.
    pub mean_s: Option<f64>,
    /// Shortest and longest time in seconds; `None` if only the mean is known.
    pub range_s: Option<(f64, f64)>,
    /// Number of attempts that completed.
    pub completed: u32,
    /// Number of attempts.
    pub attempted: u32,
    /// Why attempts failed or the rung was skipped, each reason once.
    pub reasons: Vec<String>,
    /// Change from the first placement. `None` in three cases: this is the first placement, the first placement has no
    /// time for this rung, or the rung was not measured.
    pub change: Option<Change>,
    /// Smallest and largest change from the first placement, in per cent. Each change compares two attempts of the same
    /// repeat.
    pub change_range_pct: Option<(f64, f64)>,
    /// Number of warnings in all attempts.
    pub warnings: Option<f64>,
    /// Units of work per hour, on all servers of the placement together.
    pub per_hour: Option<f64>,
    /// How much longer the slowest VM took than the fastest, in per cent; median of the attempts.
    pub spread_pct: Option<f64>,
    /// Steal in per cent of the vCPU time; median of the attempts.
    pub steal_pct: Option<f64>,
    /// Marks on the rung. Most marks concern unreliable measurements.
    pub flags: Vec<Flag>,
}

/// A change from the first placement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// Change in per cent; positive is slower.
    Pct(f64),
    /// The rung failed.
    Failed,
}

/// A mark on a rung.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flag {
    /// The rung is on the plateau: at or after the first rung with at least 97 % of the best throughput. On the
    /// plateau, more sessions do not increase throughput; rungs there only test stability.
    Plateau,
    /// Throughput is lower than at an earlier rung and also at a later rung, so something disturbed the measurement.
    NonMonotone,
    /// Only one of several attempts completed.
    SingleRun,
    /// In most attempts, the hypervisor took CPU time from this machine.
    OuterSteal,
}

/// Median changes of one test or of all tests. Each list has one entry per placement except the first placement, in the
/// order of the placements.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Medians {
    /// The test; `None` for all tests.
    pub test: Option<String>,
    /// Median over the rungs that completed both in the first placement and in this placement, and the number of these
    /// rungs.
    pub survivors: Vec<Option<(f64, usize)>>,
    /// Median over all rungs that completed in the first placement, and the number of these rungs. A rung that failed
    /// in this placement counts as infinite.
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
    /// Median throughput of the rungs on the plateau: units of work per hour, on all servers together.
    pub per_hour: Option<f64>,
    /// Units of work per hour on one server.
    pub per_server: Option<f64>,
    /// Units of work per hour on one physical core.
    pub per_core: Option<f64>,
    /// Work per server, relative to the first placement.
    pub times_first: Option<f64>,
    /// How much longer the slowest VM took than the fastest, in per cent; median of the rungs.
    pub spread_pct: Option<f64>,
    /// Steal in per cent of the vCPU time; median of the rungs.
    pub steal_pct: Option<f64>,
    /// The lowest concurrency with warnings; `None` without warnings.
    pub first_warning: Option<u32>,
    /// The lowest concurrency at which an attempt failed; `None` without failures.
    pub first_failure: Option<u32>,
}

/// Computes the table of a ladder.
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

/// Returns how much longer an attempt's slowest VM took than the fastest, in per cent.
fn spread_pct(attempt: &Attempt) -> Option<f64> {
    let of = || attempt.vm_seconds.iter().copied();
    let (least, most) = (of().min_by(f64::total_cmp)?, of().max_by(f64::total_cmp)?);
    (attempt.vm_seconds.len() > 1 && least > 0.0).then(|| delta_pct(most, least))
}

impl TableCell {
    /// Returns whether the rung failed: it was measured and no attempt completed, or it was skipped because lower rungs
    /// failed.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.mean_s.is_none() && (self.attempted > 0 || !self.reasons.is_empty())
    }
}

/// Marks the rungs on the plateau, and the rungs with too low a throughput, in the column of one placement.
fn flag(column: &mut [TableCell]) {
    let rates: Vec<Option<f64>> = column.iter().map(|cell| cell.per_hour).collect();
    let best = |rates: &[Option<f64>]| rates.iter().copied().flatten().fold(0.0, f64::max);
    let most = best(&rates);
    let begins = rates.iter().position(|rate| rate.is_some_and(|rate| rate >= most * (1.0 - PLATEAU)));
    for (index, cell) in column.iter_mut().enumerate() {
        let Some(rate) = rates[index] else { continue };
        let beside = best(&rates[..index]).min(best(&rates[index + 1..]));
        // Noise slows single attempts. So if the attempts are known, a rung is marked only if even its fastest attempt
        // is too slow.
        let at_best = cell.range_s.zip(cell.mean_s).map_or(rate, |((least, _), mean)| rate * mean / least);
        if at_best < beside * (1.0 - VALLEY) {
            cell.flags.push(Flag::NonMonotone);
        } else if begins.is_some_and(|begins| index >= begins) {
            cell.flags.push(Flag::Plateau);
        }
    }
}

/// Computes the changes of the other placements' columns from the first column.
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

/// For each repeat in which the attempts of both placements completed, returns the number of the repeat, and the
/// logarithm of the time in `placement` divided by the time in the first placement.
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
