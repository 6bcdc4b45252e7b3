//! Computes how many VMs fit on a server if their work may take at most X % longer. The input is a recorded ladder:
//! series of measurements (rungs) with more and more sessions, in several placements (numbers of VMs).
//!
//! The harm of a density (number of VMs per server) is the median over the rungs of `ln(time / time of the first
//! placement)`. Both times are from the same repeat, so that disturbances of the machine affect both. From the harms of
//! all repeats, the plan computes the Hodges-Lehmann estimate and the one-sided 95 % signed-rank bound. Since more VMs
//! on a server never make their work faster, the plan then changes the bounds to a sequence that does not decrease with
//! the density (pool adjacent violators). The result is the largest density whose bound is at most X and at which
//! nothing failed.

use crate::model::{Band, Calibration, busy_vcpus, predict, threads_of_a_query};
use crate::record::{Ladder, Placement, Test};
use crate::scenario::Scenario;
use crate::table::{Flag, Table, pairs, table};
use commensal_lab::stats::{SignedRank, Tail, median};
use serde::Serialize;

/// Largest decrease of harm (as a logarithm) from one density to the next that may be due to noise. With a larger
/// decrease, the plan is refused.
const TOLERANCE: f64 = 0.10;
/// Minimum number of repeats from which a 95 % bound can be computed.
const LEAST_REPEATS: usize = 5;

/// Parameters of [`plan()`].
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// Largest allowed increase of the completion time over the ladder's first placement, in per cent.
    pub max_harm_pct: f64,
    /// Restricts the plan to the rungs of this test (kind of work); `None` uses all tests.
    pub test: Option<String>,
    /// Restricts the plan to the rungs with this number of sessions; `None` uses all rungs.
    pub concurrency: Option<u32>,
    /// Maximum number of warnings of any rung; `None` sets no limit.
    pub max_warnings: Option<f64>,
    /// Maximum steal of any attempt in per cent; `None` sets no limit.
    pub max_steal_pct: Option<f64>,
    /// Number of VMs of the whole fleet; `None` computes no number of servers.
    pub fleet: Option<u32>,
    /// Whether to accept mean times, without a bound, where the record lacks the times of single attempts.
    pub accept_means: bool,
    /// Calibration of the cores, from which the model predicts its band.
    pub calibration: Calibration,
}

/// A measured density (number of VMs per server) with its results.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Candidate {
    /// Name of the placement.
    pub placement: String,
    /// Number of VMs per server.
    pub per_server: u32,
    /// Whether each VM is pinned to its own cores.
    pub pinned: bool,
    /// The class of the placement.
    pub scenario: Scenario,
    /// vCPU per physical core.
    pub vcpu_per_core: f64,
    /// Estimated harm in per cent; `None` when no attempt completed.
    pub harm_pct: Option<f64>,
    /// One-sided 95 % upper bound of the harm in per cent; `None` with too few repeats.
    pub upper_pct: Option<f64>,
    /// Number of repeats from which the bound was computed.
    pub repeats: usize,
    /// Highest number of warnings at any rung.
    pub warnings: Option<f64>,
    /// Highest steal of any attempt in per cent.
    pub steal_pct: Option<f64>,
    /// Work per server, relative to the first placement, by name of the test.
    pub work_per_server: Vec<(String, f64)>,
    /// The band of harm that the model predicts.
    pub model: Band,
    /// Reasons that exclude the density regardless of its harm.
    pub out: Vec<String>,
    /// Why the harm is unreliable; `None` if it is reliable.
    pub doubt: Option<String>,
}

/// Result of a plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Answer {
    /// A density fits. The next larger density does not fit, or no larger density was measured.
    Fits {
        /// The largest density that fits.
        fits: Candidate,
        /// The next larger measured density, and why it does not fit; `None` if no larger one was measured.
        next: Option<(Candidate, String)>,
    },
    /// The measurements do not decide between two densities.
    Between {
        /// The density that is proven to fit.
        fits: Candidate,
        /// The next larger density, which may fit.
        perhaps: Candidate,
        /// Why the measurements do not decide whether `perhaps` fits.
        why: String,
    },
    /// There is no result, because the record does not support a plan.
    Refused {
        /// The reason.
        why: String,
    },
}

/// Result of a plan, together with all candidates.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Planned {
    /// The result.
    #[serde(flatten)]
    pub answer: Answer,
    /// All measured densities: first those without pinning, then those with pinning, each in ascending order.
    pub candidates: Vec<Candidate>,
    /// Number of servers for the whole fleet, first with one VM per server, then with the density that fits; `None` if
    /// no density fits, or the question has no fleet size.
    pub servers: Option<(u32, u32)>,
}

/// Computes the largest density that meets the limits of the question.
#[must_use]
pub fn plan(ladder: &Ladder, question: &Question) -> Planned {
    let table = table(ladder);
    let mut floating: Vec<&Placement> = ladder.placements.iter().filter(|one| !one.pinned).collect();
    floating.sort_by_key(|one| one.per_server());
    let of = |placement: &&Placement| candidate(ladder, &table, placement, question);
    let mut candidates: Vec<Candidate> = floating.iter().map(of).collect();
    make_monotone(&mut candidates);
    let answer = decide(&candidates, question);
    candidates.extend(ladder.placements.iter().filter(|one| one.pinned).map(|one| of(&one)));
    let fits = match &answer {
        Answer::Fits { fits, .. } | Answer::Between { fits, .. } => Some(fits.per_server),
        Answer::Refused { .. } => None,
    };
    let servers = question.fleet.zip(fits).map(|(vms, fits)| (vms, vms.div_ceil(fits.max(1))));
    Planned { answer, candidates, servers }
}

fn candidate(ladder: &Ladder, table: &Table, placement: &Placement, question: &Question) -> Candidate {
    let index = ladder.placements.iter().position(|one| one.name == placement.name).unwrap_or(0);
    let rows = || {
        table.rows.iter().filter(|row| {
            question.test.as_ref().is_none_or(|test| *test == row.test)
                && question.concurrency.is_none_or(|step| step == row.concurrency)
        })
    };
    let mut out = Vec::new();
    let failed: Vec<String> = rows()
        .filter(|row| row.cells[index].failed() || row.cells[index].completed < row.cells[index].attempted)
        .map(|row| format!("{} at {}", row.test, row.concurrency))
        .collect();
    if !failed.is_empty() {
        out.push(format!("attempts failed: {}", failed.join(", ")));
    }
    let warnings = rows().filter_map(|row| row.cells[index].warnings).max_by(f64::total_cmp);
    if let (Some(most), Some(warnings)) = (question.max_warnings, warnings)
        && warnings > most
    {
        out.push(format!("{warnings:.0} warnings; the limit is {most:.0}"));
    }
    let of_rows = |row: &&crate::table::Row| ladder.rung(&row.test, row.concurrency, &placement.name);
    let rungs: Vec<_> = rows().filter_map(|row| of_rows(&row)).collect();
    let steal = rungs.iter().flat_map(|rung| rung.attempts.iter().filter_map(|attempt| attempt.steal_pct));
    let steal_pct = steal.max_by(f64::total_cmp);
    if let (Some(most), Some(steal)) = (question.max_steal_pct, steal_pct)
        && steal > most
    {
        out.push(format!("steal was {steal:.1} %; the limit is {most} %"));
    }
    let doubt = rows().find_map(|row| {
        let flags = &row.cells[index].flags;
        let at = format!("{} at {}", row.test, row.concurrency);
        if flags.contains(&Flag::NonMonotone) {
            Some(format!("{at} has a lower throughput than rungs with fewer and with more sessions"))
        } else if flags.contains(&Flag::SingleRun) {
            Some(format!("only one attempt at {at} completed"))
        } else if flags.contains(&Flag::OuterSteal) {
            Some(format!("at {at}, the hypervisor took CPU time from the machine that ran the VMs"))
        } else {
            None
        }
    });
    let (harm_pct, upper_pct, repeats) = harm(ladder, placement, &rows().collect::<Vec<_>>(), index);
    let demand = f64::from(placement.per_server() * ladder.vcpu);
    let capacity = table.capacity.iter().filter(|one| one.placement == placement.name);
    Candidate {
        placement: placement.name.clone(),
        per_server: placement.per_server(),
        pinned: placement.pinned,
        scenario: placement.server.scenario(demand),
        vcpu_per_core: demand / f64::from(placement.server.cores),
        harm_pct,
        upper_pct,
        repeats,
        warnings,
        steal_pct,
        work_per_server: capacity.filter_map(|one| Some((one.test.clone(), one.times_first?))).collect(),
        model: {
            let busy = busy(ladder, question);
            let runnable = busy * f64::from(placement.per_server());
            predict(&placement.server, &question.calibration, (runnable, busy))
        },
        out,
        doubt,
    }
}

/// Returns the number of vCPUs of a VM that the sessions of the question keep busy. Returns all vCPUs if the question
/// selects no number of sessions, or if the threads of a query cannot be derived from the ladder.
fn busy(ladder: &Ladder, question: &Question) -> f64 {
    let all = f64::from(ladder.vcpu);
    let (Some(sessions), Some(first)) = (question.concurrency, ladder.placements.first()) else { return all };
    let asked = |test: &&Test| question.test.as_ref().is_none_or(|name| *name == test.name);
    let of = |test: &Test| {
        let seconds = |step: u32| Some((step, ladder.rung(&test.name, step, &first.name)?.summary().mean_s?));
        let rungs: Vec<(u32, f64)> =
            ladder.concurrencies(&test.name).into_iter().filter_map(seconds).collect();
        threads_of_a_query(&rungs, ladder.vcpu)
            .map_or(all, |threads| busy_vcpus(ladder.vcpu, threads, sessions))
    };
    ladder.tests.iter().filter(asked).map(of).reduce(f64::max).unwrap_or(all)
}

/// Returns the estimate and the upper bound of the harm, and the number of repeats.
fn harm(
    ladder: &Ladder,
    placement: &Placement,
    rows: &[&crate::table::Row],
    index: usize,
) -> (Option<f64>, Option<f64>, usize) {
    let pct = |log: f64| log.exp_m1() * 100.0;
    let is_first = index == 0;
    if is_first {
        return (Some(0.0), Some(0.0), ladder.repeats as usize);
    }
    let mut by_repeat: Vec<Vec<f64>> = vec![Vec::new(); ladder.repeats as usize];
    for row in rows {
        for (repeat, log) in pairs(ladder, &row.test, row.concurrency, &placement.name) {
            if let Some(of) = by_repeat.get_mut(repeat as usize) {
                of.push(log);
            }
        }
    }
    let logs: Vec<f64> = by_repeat.iter().filter_map(|of| median(of)).collect();
    if let Some(ranks) = SignedRank::new(&logs) {
        let upper = ranks.interval(Tail::OneSided95).map(|interval| pct(interval.hi));
        return (Some(pct(ranks.estimate())), upper, logs.len());
    }
    // The record has only mean times.
    let change = |row: &&&crate::table::Row| match row.cells[index].change {
        Some(crate::table::Change::Pct(pct)) => Some(pct),
        _ => None,
    };
    (median(&rows.iter().filter_map(|row| change(&row)).collect::<Vec<_>>()), None, 0)
}

/// Pools bounds that decrease with the density, so that noise cannot make a higher density acceptable than a lower one.
fn make_monotone(candidates: &mut [Candidate]) {
    let bounds: Vec<f64> = candidates.iter().filter_map(|one| one.upper_pct).collect();
    let mut pooled = pool_adjacent_violators(&bounds).into_iter();
    for candidate in candidates.iter_mut().filter(|one| one.upper_pct.is_some()) {
        candidate.upper_pct = pooled.next();
    }
}

/// Returns the non-decreasing sequence with the least squared distance to `values` (pool adjacent violators).
#[must_use]
pub fn pool_adjacent_violators(values: &[f64]) -> Vec<f64> {
    let mut pools: Vec<(f64, usize)> = Vec::new();
    for value in values {
        pools.push((*value, 1));
        while let [.., (below, count), (above, more)] = pools[..] {
            if below <= above {
                break;
            }
            let both = count + more;
            let mean = (below * count as f64 + above * more as f64) / both as f64;
            pools.truncate(pools.len() - 2);
            pools.push((mean, both));
        }
    }
    pools.into_iter().flat_map(|(value, count)| std::iter::repeat_n(value, count)).collect()
}

/// Whether the harm of one density is within the limit, or why not.
enum Assessment {
    Fits,
    Out(String),
    Open(String),
}

fn assess(candidate: &Candidate, question: &Question) -> Assessment {
    let most = question.max_harm_pct;
    if !candidate.out.is_empty() {
        return Assessment::Out(candidate.out.join("; "));
    }
    if let Some(doubt) = &candidate.doubt {
        return Assessment::Open(doubt.clone());
    }
    match (candidate.harm_pct, candidate.upper_pct) {
        (_, Some(upper)) if upper <= most => Assessment::Fits,
        (Some(harm), Some(upper)) if harm > most => {
            Assessment::Out(format!("{harm:+.1} % slower, at most {upper:+.1} %; {most} % is allowed"))
        }
        (Some(harm), Some(upper)) => Assessment::Open(format!(
            "the estimate is {harm:+.1} %, but the upper bound is {upper:+.1} %: more repeats would decide"
        )),
        (Some(harm), None) if candidate.repeats == 0 && question.accept_means => match harm <= most {
            true => Assessment::Fits,
            false => Assessment::Out(format!("{harm:+.1} % slower according to published means; {most} % is allowed")),
        },
        (Some(_), None) if candidate.repeats == 0 => Assessment::Open(
            "the record has only published means, from which no bound can be computed (--accept-means plans without a bound)".to_owned(),
        ),
        (Some(harm), None) => Assessment::Open(format!(
            "{harm:+.1} % from {} repeats, but a 95 % bound needs {LEAST_REPEATS} repeats",
            candidate.repeats
        )),
        (None, _) => Assessment::Out("no attempt completed".to_owned()),
    }
}

fn decide(candidates: &[Candidate], question: &Question) -> Answer {
    let refuse = |why: String| Answer::Refused { why };
    if !question.max_harm_pct.is_finite() {
        return refuse("the allowed harm (--max-harm) is not a number".to_owned());
    }
    for (denser, looser) in candidates.iter().skip(1).zip(candidates) {
        let (Some(a), Some(b)) = (looser.harm_pct, denser.harm_pct) else { continue };
        let logs = ((a / 100.0).ln_1p(), (b / 100.0).ln_1p());
        if logs.0 - logs.1 > TOLERANCE && denser.out.is_empty() {
            return refuse(format!(
                "{} VMs per server seem faster than {} ({b:+.1} % against {a:+.1} %), so the measurement was disturbed: \
                 measure again",
                denser.per_server, looser.per_server
            ));
        }
    }
    let mut fits: Option<&Candidate> = None;
    for candidate in candidates {
        match (assess(candidate, question), fits) {
            (Assessment::Fits, _) => fits = Some(candidate),
            (Assessment::Out(why), Some(fits)) => {
                return Answer::Fits { fits: fits.clone(), next: Some((candidate.clone(), why)) };
            }
            (Assessment::Open(why), Some(fits)) if fits.repeats > 0 && candidate.repeats > 0 => {
                let (fits, perhaps) = (fits.clone(), candidate.clone());
                return Answer::Between { fits, perhaps, why };
            }
            (Assessment::Out(why), None) => {
                return refuse(format!("not even {} per server fits: {why}", candidate.per_server));
            }
            (Assessment::Open(why), _) => {
                return refuse(format!("{} VMs per server: {why}", candidate.per_server));
            }
        }
    }
    match fits {
        Some(fits) => Answer::Fits { fits: fits.clone(), next: None },
        None => refuse("the ladder has no placement".to_owned()),
    }
}

impl Planned {
    /// Returns whether the measurements decide the largest density that fits.
    #[must_use]
    pub fn answered(&self) -> bool {
        matches!(self.answer, Answer::Fits { .. })
    }

    /// Returns whether at least this number of VMs per server is known to fit.
    #[must_use]
    pub fn fits_at_least(&self, per_server: u32) -> bool {
        match &self.answer {
            Answer::Fits { fits, .. } | Answer::Between { fits, .. } => fits.per_server >= per_server,
            Answer::Refused { .. } => false,
        }
    }

    /// Formats the result as readable text.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut lines = match &self.answer {
            Answer::Fits { fits, next } => {
                let mut lines = vec![format!("{} per server fit: {}", vms(fits.per_server), fits.describe())];
                lines.push(match next {
                    Some((next, why)) => {
                        format!("{} per server do not fit: {why} ({})", vms(next.per_server), next.describe())
                    }
                    None => "more VMs may fit, because the ladder has no higher density".to_owned(),
                });
                lines
            }
            Answer::Between { fits, perhaps, why } => vec![
                format!("between {} and {} per server fit", fits.per_server, vms(perhaps.per_server)),
                format!("{} fit: {}", fits.per_server, fits.describe()),
                format!("{}: {why}", perhaps.per_server),
            ],
            Answer::Refused { why } => vec![format!("no result: {why}")],
        };
        for pinned in self.candidates.iter().filter(|one| one.pinned) {
            let floating =
                self.candidates.iter().find(|one| !one.pinned && one.per_server == pinned.per_server);
            let against = floating.and_then(|one| one.harm_pct);
            if let (Some(harm), Some(against)) = (pinned.harm_pct, against) {
                let count = vms(pinned.per_server);
                lines.push(format!(
                    "if pinned to cores, {count} per server are {harm:+.1} % slower instead of {against:+.1} %"
                ));
            }
        }
        if let Some((all, needed)) = self.servers {
            let saved = f64::from(all - needed) / f64::from(all) * 100.0;
            lines.push(format!(
                "a fleet of {all} VMs needs {needed} servers instead of {all}: {saved:.1} % fewer"
            ));
        }
        lines.push(String::new());
        lines.join("\n")
    }
}

fn vms(count: u32) -> String {
    if count == 1 { "1 VM".to_owned() } else { format!("{count} VMs") }
}

impl Candidate {
    fn describe(&self) -> String {
        let mut parts = vec![format!("{}, {:.2} vCPU per core", self.scenario, self.vcpu_per_core)];
        match (self.harm_pct, self.upper_pct) {
            (Some(harm), Some(upper)) => parts.push(format!("{harm:+.1} % slower, at most {upper:+.1} %")),
            (Some(harm), None) => parts.push(format!("{harm:+.1} % slower, without a bound")),
            _ => {}
        }
        if let Some(steal) = self.steal_pct {
            parts.push(format!("steal up to {steal:.1} %"));
        }
        for (test, times) in &self.work_per_server {
            parts.push(format!("{times:.1} times the {test} work per server"));
        }
        let Band { mean_pct, straggler_pct, memory_binds } = self.model;
        let memory = if memory_binds { " (the upper end is for memory-bound work)" } else { "" };
        parts.push(format!("the model predicts {mean_pct:+.0} to {straggler_pct:+.0} %{memory}"));
        parts.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::arenadata;
    use crate::record::{Attempt, Rung, Test};
    use crate::scenario::Server;

    fn question(max_harm_pct: f64) -> Question {
        Question {
            max_harm_pct,
            test: None,
            concurrency: None,
            max_warnings: None,
            max_steal_pct: None,
            fleet: None,
            accept_means: false,
            calibration: Calibration::ideal(1.3),
        }
    }

    /// Returns a ladder with one rung. For each density, `times` has one time per repeat.
    fn ladder(times: &[(u32, &[f64])]) -> Ladder {
        let mut ladder = arenadata();
        let server = Server { cores: 4, threads: 8, reserve: 0.0, node_cores: None, llc_cores: None };
        ladder.vcpu = 1;
        ladder.repeats = times.iter().map(|(_, times)| times.len() as u32).max().unwrap();
        ladder.tests = vec![Test { name: "t".to_owned(), work: 1.0, unit: "x".to_owned(), spanning: false }];
        ladder.placements = times
            .iter()
            .map(|(vms, _)| Placement {
                name: format!("N{vms}"),
                vms: *vms,
                servers: 1,
                server: server.clone(),
                pinned: false,
            })
            .collect();
        let attempt = |(repeat, seconds): (usize, &f64)| Attempt {
            repeat: repeat as u32,
            seconds: seconds.is_finite().then_some(*seconds),
            ..Attempt::default()
        };
        ladder.rungs = times
            .iter()
            .map(|(vms, times)| Rung {
                test: "t".to_owned(),
                concurrency: 1,
                placement: format!("N{vms}"),
                attempts: times.iter().enumerate().map(attempt).collect(),
                published: None,
                skipped: None,
            })
            .collect();
        ladder
    }

    fn refusal(planned: &Planned) -> &str {
        match &planned.answer {
            Answer::Refused { why } => why,
            other => panic!("{other:?}"),
        }
    }

    // promise 41
    #[test]
    fn the_largest_density_whose_bound_holds() {
        let base: &[f64] = &[10.0, 11.0, 10.5, 10.2, 10.8, 10.1];
        let by = |factor: f64| {
            base.iter().enumerate().map(|(i, t)| t * factor * (1.0 + i as f64 / 500.0)).collect::<Vec<_>>()
        };
        let (two, four) = (by(1.03), by(1.4));
        let ladder = ladder(&[(1, base), (2, &two), (4, &four)]);
        let planned = plan(&ladder, &Question { fleet: Some(1000), ..question(10.0) });
        let Answer::Fits { fits, next: Some((next, why)) } = &planned.answer else { panic!("{planned:?}") };
        assert_eq!((fits.per_server, next.per_server), (2, 4));
        assert!(why.contains("10 % is allowed"), "{why}");
        assert_eq!(planned.servers, Some((1000, 500)));
        let (harm, upper) = (fits.harm_pct.unwrap(), fits.upper_pct.unwrap());
        assert!((3.0..4.5).contains(&harm) && upper >= harm && upper < 5.0, "{harm} {upper}");
        assert!(planned.describe().contains("50.0 % fewer"), "{}", planned.describe());
        // The limit is above the estimate but below the upper bound.
        let open = plan(&ladder, &question((harm + upper) / 2.0));
        assert!(matches!(open.answer, Answer::Between { .. }), "{open:?}");
        assert!(!open.answered());
    }

    // promise 41
    #[test]
    fn thin_contradictory_and_failed_evidence() {
        let thin = ladder(&[(1, &[10.0, 10.0, 10.0]), (2, &[10.1, 10.1, 10.1])]);
        let planned = plan(&thin, &question(10.0));
        let Answer::Between { why, .. } = &planned.answer else { panic!("{planned:?}") };
        assert!(why.contains("from 3 repeats, but a 95 % bound needs 5"), "{why}");
        let six = [10.0; 6];
        let faster = ladder(&[(1, &six), (2, &[20.0; 6]), (4, &[12.0; 6])]);
        assert!(refusal(&plan(&faster, &question(50.0))).contains("4 VMs per server seem faster than 2"));
        let failed = ladder(&[(1, &six), (2, &[10.0, 10.0, 10.0, 10.0, 10.0, f64::NAN])]);
        let planned = plan(&failed, &question(50.0));
        let Answer::Fits { fits, next: Some((_, why)) } = &planned.answer else { panic!("{planned:?}") };
        assert!(fits.per_server == 1 && why.contains("attempts failed: t at 1"), "{why}");
    }

    /// With few sessions, only some vCPUs of a VM are busy, so the model predicts less harm. With enough sessions, all
    /// vCPUs are busy.
    #[test]
    fn the_model_answers_for_the_sessions_that_were_asked_about() {
        let ladder = arenadata();
        for test in &ladder.tests {
            let steps = ladder.concurrencies(&test.name);
            let means = |concurrency| -> Vec<f64> {
                let question = Question { test: Some(test.name.clone()), concurrency, ..question(60.0) };
                plan(&ladder, &question).candidates.iter().map(|one| one.model.mean_pct).collect()
            };
            let (least, most, all) =
                (means(steps.first().copied()), means(steps.last().copied()), means(None));
            assert_eq!(most, all, "{}", test.name);
            assert!(least.iter().zip(&all).all(|(few, all)| few <= all), "{}: {least:?} {all:?}", test.name);
            assert!(least.iter().sum::<f64>() < all.iter().sum(), "{}: {least:?} {all:?}", test.name);
        }
    }

    #[test]
    fn document_003_answers_only_when_means_are_accepted() {
        let ladder = arenadata();
        let why = plan(&ladder, &question(60.0));
        assert!(refusal(&why).contains("only published means"), "{why:?}");
        let accepting = |max_harm_pct| {
            plan(&ladder, &Question { accept_means: true, fleet: Some(1000), ..question(max_harm_pct) })
        };
        let planned = accepting(60.0);
        let Answer::Fits { fits, next: Some((next, why)) } = &planned.answer else { panic!("{planned:?}") };
        assert_eq!((fits.per_server, next.per_server), (4, 8));
        assert!(why.contains("attempts failed: Lite at 24, Lite at 28"), "{why}");
        assert_eq!(planned.servers, Some((1000, 250)));
        let planned = accepting(40.0);
        let Answer::Fits { fits, .. } = &planned.answer else { panic!("{planned:?}") };
        assert_eq!(fits.per_server, 1);
        // Warnings also exclude a density.
        let strict = Question { accept_means: true, max_warnings: Some(0.0), ..question(60.0) };
        let planned = plan(&ladder, &strict);
        let Answer::Fits { fits, next: Some((_, why)) } = &planned.answer else { panic!("{planned:?}") };
        assert!(fits.per_server == 1 && why.contains("80 warnings; the limit is 0"), "{why}");
    }

    #[test]
    fn pooling_makes_the_nearest_sequence_that_does_not_fall() {
        let check = |values: &[f64], want: &[f64]| assert_eq!(pool_adjacent_violators(values), want);
        check(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0]);
        check(&[1.0, 3.0, 2.0], &[1.0, 2.5, 2.5]);
        check(&[3.0, 2.0, 1.0], &[2.0, 2.0, 2.0]);
        check(&[], &[]);
    }

    #[test]
    fn pinning_is_told_beside_the_same_density() {
        let six = [10.0; 6];
        let mut ladder = ladder(&[(1, &six), (2, &[15.0; 6]), (3, &[11.0; 6])]);
        ladder.placements[2] = Placement { vms: 2, pinned: true, ..ladder.placements[2].clone() };
        let text = plan(&ladder, &question(60.0)).describe();
        assert!(
            text.contains("if pinned to cores, 2 VMs per server are +10.0 % slower instead of +50.0 %"),
            "{text}"
        );
    }
}
