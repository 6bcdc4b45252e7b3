//! Finds the maximum density (number of cells on this machine) by bisection. A cell stands for a VM. Also calibrates
//! the density model, by measuring how much cores slow each other.

use crate::conductor::{self, Event, RunOptions};
use crate::error::DensityError;
use crate::experiment::{Backend, Cell, Experiment, Kind, Limits, Load};
use crate::model::{Bandwidth, Calibration};
use crate::plan::{Planned, Question, plan};
use crate::record::Ladder;
use commensal_core::topology::Topology;
use commensal_core::units::Bytes;
use commensal_host::Host;
use commensal_sensors::machine;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Finds the boundary between numbers for which `fits` is true and numbers for which it is false. Returns the largest
/// tested number up to `most` that fits, and the smallest tested number that does not fit; `None` in place of a number
/// if no such number was tested. Assumes that no number fits above a number that does not fit. Also assumes that 1
/// fits, so 1 is tested only if `most` is 1.
///
/// # Errors
/// Returns the first error of `fits`.
pub fn bisect<E>(
    most: u32,
    fits: &mut dyn FnMut(u32) -> Result<bool, E>,
) -> Result<(Option<u32>, Option<u32>), E> {
    let (mut good, mut bad) = (None, None);
    // Double the number first, because the result is usually small compared with `most`.
    let mut next = 2.min(most);
    while bad.is_none() && good < Some(most) {
        if fits(next)? {
            good = Some(next)
        } else {
            bad = Some(next)
        }
        next = next.saturating_mul(2).min(most);
    }
    while let Some(above) = bad {
        let below = good.unwrap_or(1);
        if above - below <= 1 {
            break;
        }
        let middle = below.midpoint(above);
        if fits(middle)? { good = Some(middle) } else { bad = Some(middle) }
    }
    Ok((good, bad))
}

/// Measures how many cells fit. Each number of cells is compared with one cell alone, which is measured in the same
/// repeats.
///
/// # Errors
/// Returns the errors of [`conductor::run`].
pub fn search(
    host: &mut dyn Host,
    base: &Experiment,
    (question, most): (&Question, u32),
    options: &RunOptions,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<(Ladder, Planned), DensityError> {
    let mut whole: Option<Ladder> = None;
    bisect(most.max(1), &mut |cells| {
        let experiment = Experiment { placements: candidates(cells), ..base.clone() };
        let measured = conductor::run(host, &experiment, options, stop, tell)?;
        let together = match whole.take() {
            None => measured,
            Some(before) => merged(before, measured),
        };
        let fits = plan(&together, question).fits_at_least(cells);
        whole = Some(together);
        Ok::<bool, DensityError>(fits)
    })?;
    let ladder = whole.ok_or_else(|| DensityError::new("no density was measured"))?;
    let planned = plan(&ladder, question);
    Ok((ladder, planned))
}

fn candidates(cells: u32) -> Vec<(u32, bool)> {
    if cells == 1 { vec![(1, false)] } else { vec![(1, false), (cells, false)] }
}

/// Merges two ladders. The repeats of the second ladder are numbered after those of the first, so that attempts of the
/// same repeat still have the same number.
#[must_use]
pub fn merged(mut before: Ladder, after: Ladder) -> Ladder {
    let shift = before.repeats;
    for placement in after.placements {
        if before.placement(&placement.name).is_none() {
            before.placements.push(placement);
        }
    }
    for mut rung in after.rungs {
        rung.attempts.iter_mut().for_each(|attempt| attempt.repeat += shift);
        let same = before.rungs.iter_mut().find(|one| {
            (&one.test, one.concurrency, &one.placement) == (&rung.test, rung.concurrency, &rung.placement)
        });
        match same {
            Some(known) => {
                known.attempts.append(&mut rung.attempts);
                known.skipped = known.skipped.take().or(rung.skipped);
            }
            None => before.rungs.push(rung),
        }
    }
    before.repeats += after.repeats;
    for note in after.notes {
        if !before.notes.contains(&note) {
            before.notes.push(note);
        }
    }
    before
}

/// Number of chunks of work per session in a calibration; they take about a second.
const CHUNKS: u32 = 1000;
/// Number of times that each part is measured. The fastest time is used, because noise can only slow a measurement.
const TRIES: u32 = 3;

/// Number of copies of an array in a calibration; they take about a second.
const COPIES: u32 = 10;
/// Total size of the arrays as a multiple of the last-level cache.
const BEYOND_CACHE: u64 = 6;
/// Assumed size of the last-level cache on a machine that does not report it, in bytes.
const CACHE: u64 = 64 << 20;

/// Result of a calibration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Calibrated {
    /// Parameters for the model.
    pub calibration: Calibration,
    /// Memory bandwidth.
    pub bandwidth: Bandwidth,
}

/// Calibrates the model with pinned cells. Measures how much a core slows when other cores are busy, how much
/// throughput a core gains when all its threads are busy, and how many cores exhaust the memory bandwidth.
///
/// # Errors
/// Returns the errors of [`conductor::run`], and an error when a part of the calibration did not complete in time.
pub fn calibrate(
    host: &mut dyn Host,
    topology: &Topology,
    options: &RunOptions,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<Calibrated, DensityError> {
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let (cores, threads) = (number(topology.cores()), number(topology.threads()));
    let cache_bytes = machine::last_level_bytes(host).unwrap_or(CACHE);
    let mut fastest = |kind: Kind, vcpu: u32, cells: u32| -> Result<f64, DensityError> {
        let ladder = conductor::run(host, &part(kind, vcpu, cells), options, stop, tell)?;
        let times = ladder.rungs.iter().flat_map(|rung| rung.attempts.iter().filter_map(|one| one.seconds));
        let fastest = times.min_by(f64::total_cmp);
        fastest
            .ok_or_else(|| DensityError::new("no attempt of the calibration completed within the time limit"))
    };
    let alone = fastest(Kind::Spin, 1, 1)?;
    let all_core = if cores > 1 { (alone / fastest(Kind::Spin, 1, cores)?).min(1.0) } else { 1.0 };
    let per_core = threads / cores;
    let smt_gain =
        if per_core > 1 { f64::from(per_core) * alone / fastest(Kind::Spin, per_core, 1)? } else { 1.0 };
    // Each cell has two arrays: it reads one and writes the other.
    let mut copied = |cells: u32| -> Result<f64, DensityError> {
        let bytes = (cache_bytes * BEYOND_CACHE / u64::from(2 * cells)).max(1);
        let seconds = fastest(Kind::Stream(Bytes(bytes)), 1, cells)?;
        Ok((2 * bytes * u64::from(COPIES * cells)) as f64 / seconds / 1e9)
    };
    let one_gb_s = copied(1)?;
    let all_gb_s = if cores > 1 { copied(cores)? } else { one_gb_s };
    let bandwidth = Bandwidth { one_gb_s, all_gb_s, cores, cache_bytes };
    let calibration = Calibration { smt_gain, all_core, bandwidth_cores: bandwidth.cores_that_use_it_up() };
    Ok(Calibrated { calibration, bandwidth })
}

/// Returns the experiment for one part of a calibration, with pinned cells of `vcpu` vCPUs.
fn part(kind: Kind, vcpu: u32, cells: u32) -> Experiment {
    let work = if kind == Kind::Spin { CHUNKS } else { COPIES };
    let load = Load { name: "part".to_owned(), kind, work, memory: None, concurrency: vec![vcpu] };
    Experiment {
        name: "calibration".to_owned(),
        about: String::new(),
        source: String::new(),
        cell: Cell { vcpu, memory: None, quota: false, backend: Backend::Group },
        reserve: 0.0,
        placements: vec![(cells, true)],
        loads: vec![load],
        repeats: TRIES,
        seed: 1,
        limits: Limits {
            timeout: Duration::from_secs(120),
            times_first: None,
            stop_after: 2,
            max_steal_pct: None,
        },
        warnings: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::arenadata;
    use crate::record::{Attempt, Rung};

    #[test]
    fn bisection_finds_the_last_that_fits() {
        for most in 1..40 {
            for last in 1..=most {
                let mut tried = Vec::new();
                let found = bisect(most, &mut |n| {
                    tried.push(n);
                    Ok::<bool, ()>(n <= last)
                })
                .unwrap();
                // One cell alone is the reference, so it is tested as a candidate only if it is the limit.
                let want = (
                    if last == 1 && most > 1 { None } else { Some(last) },
                    (last < most).then_some(last + 1),
                );
                assert_eq!(found, want, "most {most}, last {last}, tried {tried:?}");
                assert!(tried.len() < 13, "{tried:?}");
            }
        }
        assert_eq!(bisect(9, &mut |_| Err("no")), Err("no"));
    }

    #[test]
    fn pairs_of_several_searches_stay_pairs() {
        let attempt = |repeat, seconds| Attempt { repeat, seconds: Some(seconds), ..Attempt::default() };
        let ladder = |name: &str, times: [f64; 2]| {
            let mut ladder = arenadata();
            ladder.repeats = 1;
            ladder.placements.truncate(2);
            ladder.placements[1].name = name.to_owned();
            let rung = |placement: &str, seconds| Rung {
                test: "Lite".to_owned(),
                concurrency: 1,
                placement: placement.to_owned(),
                attempts: vec![attempt(0, seconds)],
                published: None,
                skipped: None,
            };
            ladder.rungs = vec![rung("S1", times[0]), rung(name, times[1])];
            ladder
        };
        let both = merged(ladder("A", [10.0, 20.0]), ladder("B", [100.0, 300.0]));
        assert_eq!(both.repeats, 2);
        let ratio = |name: &str| crate::table::pairs(&both, "Lite", 1, name)[0];
        let (a, b) = (ratio("A"), ratio("B"));
        assert!(a.0 == 0 && (a.1.exp() - 2.0).abs() < 1e-9, "{a:?}");
        assert!(b.0 == 1 && (b.1.exp() - 3.0).abs() < 1e-9, "{b:?}");
    }
}
