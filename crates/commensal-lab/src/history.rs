//! The history of finished runs, one line per run: how the results changed from run to run, and whether each change is
//! significant. This module does no I/O; [`crate::keep`] reads and writes the file.
//!
//! An isolated arm is a condition of a run in which the service is isolated from offline work. A gate is a metric that
//! takes part in the verdict, with a threshold. Harm is the relative worsening of a metric against the baseline.
//!
//! The comparison of two runs is Welch's t-test on the log-ratios of their rounds. Each line contains the mean, the
//! standard deviation and the number of rounds, so the test does not need the records of the runs. If the machine
//! changed between the two runs, the difference includes that change; a comparison of releases therefore needs several
//! runs of each release.

use crate::format::{log_of_pct, pct_of_log};
use crate::record::Verdict;
use crate::record::{Comparison, Design, Metric, Role, Run};
use crate::stats::{mean, standard_deviation, t_two_sided};
use crate::verdict::{against_baseline, against_strictest};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// Value of the `schema` field of every line.
pub const SCHEMA: &str = "commensal.history/1";
/// Significance level: a change is significant if its p-value is smaller.
pub const LEVEL: f64 = 0.01;
/// Minimum number of runs that a release needs for a comparison with another release.
pub const RUNS_OF_A_RELEASE: usize = 3;

/// One finished run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Name of the schema; always [`SCHEMA`].
    pub schema: String,
    /// Start time of the run (RFC 3339).
    pub started: String,
    /// Version of commensal that recorded the run.
    pub version: String,
    /// Kernel release.
    pub kernel: String,
    /// Description of the machine without its kernel; equal for runs on the same machine.
    pub machine: String,
    /// Hash of the machine's description including its kernel, as in the record of the run.
    pub fingerprint: String,
    /// Name of the experiment.
    pub experiment: String,
    /// Description of what the run measured; equal for runs whose results are comparable.
    pub plan: String,
    /// The verdict of the run; `None` if the record has no verdict.
    pub verdict: Option<Verdict>,
    /// The first reason for the verdict; `None` for PASS.
    #[serde(default)]
    pub reason: Option<String>,
    /// Average number of CPUs that programs outside the experiment used; `None` if unknown.
    pub foreign_cpus: Option<f64>,
    /// One entry per isolated arm.
    pub arms: Vec<ArmEntry>,
    /// Path of the file with the run's complete record.
    pub record: String,
}

/// The results of one isolated arm of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ArmEntry {
    /// Name of the arm.
    pub arm: String,
    /// Verdict on the arm; `None` if the conditions of the run did not allow a verdict.
    pub verdict: Option<Verdict>,
    /// Offline work in this arm, as a share of the work in the arm without isolation (per cent).
    pub offline_kept_pct: Option<f64>,
    /// The gates of the arm.
    pub gates: Vec<GateEntry>,
}

/// The results of one gate in one arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GateEntry {
    /// Metric of the gate.
    pub metric: Metric,
    /// Largest harm that still counts as no harm (per cent).
    pub threshold_pct: f64,
    /// Name of the arm with which this arm is compared (the service alone).
    pub vs: String,
    /// Hodges-Lehmann estimate of the harm (per cent).
    pub harm_pct: f64,
    /// Two-sided 95 % confidence interval of the harm (per cent).
    pub ci95: Option<[f64; 2]>,
    /// Upper confidence bound of the harm (per cent); the verdict compares this bound with the threshold.
    pub bound_pct: Option<f64>,
    /// Mean of the log-ratios of the rounds; positive is worse.
    pub mean_log: f64,
    /// Standard deviation of the log-ratios.
    pub sd_log: Option<f64>,
    /// Number of rounds.
    pub rounds: u32,
}

impl Entry {
    /// Creates the entry of a run that has its verdict; `record` is the path of the run's record.
    pub fn of(run: &Run, record: &str) -> Self {
        let isolated = run.arms.iter().filter(|arm| arm.role == Role::Isolated);
        let arms: Vec<ArmEntry> = isolated.map(|arm| ArmEntry::of(run, &arm.name)).collect();
        Self {
            schema: SCHEMA.to_owned(),
            started: run.started.clone(),
            version: run.tool.version.clone(),
            kernel: run.machine.kernel.clone(),
            machine: machine(run),
            fingerprint: run.machine.fingerprint.clone(),
            experiment: run.experiment.clone(),
            plan: plan(run),
            verdict: run.verdict,
            reason: run.reasons.first().filter(|_| run.verdict != Some(Verdict::Pass)).cloned(),
            foreign_cpus: foreign_cpus(run),
            arms,
            record: record.to_owned(),
        }
    }

    /// Formats the entry as a line of the history file, including the newline.
    ///
    /// # Errors
    /// If the entry cannot be serialised as JSON.
    pub fn line(&self) -> serde_json::Result<String> {
        Ok(format!("{}\n", commensal_core::text::json(self)?))
    }
}

impl ArmEntry {
    fn of(run: &Run, arm: &str) -> Self {
        let only = run.arms.iter().filter(|other| other.role == Role::Isolated).count() == 1;
        let kept = run.offline.iter().find(|kept| kept.arm == arm);
        let mut gates: Vec<GateEntry> = Vec::new();
        for metric in &run.design.gates {
            if gates.iter().all(|gate| gate.metric != *metric) {
                gates.extend(against_baseline(run, arm, *metric).map(|result| GateEntry::of(run, result)));
            }
        }
        Self {
            arm: arm.to_owned(),
            verdict: run.arm_verdicts.get(arm).copied().or(run.verdict.filter(|_| only)),
            offline_kept_pct: kept.and_then(|kept| kept.kept_vs_contended_pct),
            gates,
        }
    }

    /// Returns the results for one metric; `None` if the metric is not a gate of the arm.
    pub fn gate(&self, metric: Metric) -> Option<&GateEntry> {
        self.gates.iter().find(|gate| gate.metric == metric)
    }
}

impl GateEntry {
    fn of(run: &Run, result: &Comparison) -> Self {
        let strictest = against_strictest(run, &result.arm, result.metric);
        Self {
            metric: result.metric,
            threshold_pct: run.design.threshold_of(result.metric),
            vs: result.vs.clone(),
            harm_pct: result.harm_pct,
            ci95: result.ci95,
            bound_pct: strictest.and_then(|result| result.one_sided).map(|[_, hi]| hi),
            mean_log: log_of_pct(result.mean_pct),
            sd_log: result.sd_log,
            rounds: result.rounds,
        }
    }
}

/// Describes the machine without its kernel; a kernel update therefore does not start a new series.
fn machine(run: &Run) -> String {
    let of = &run.machine;
    let memory = of.memory_bytes.map(|bytes| format!(", {:.0} GiB", bytes as f64 / f64::from(1 << 30)));
    let smt = if of.smt == Some(true) { ", SMT" } else { "" };
    let cgroup = of.cgroup.as_deref().map(|version| format!(", cgroup {version}")).unwrap_or_default();
    format!(
        "{}, {} cores, {} CPUs{smt}, virtualisation {}{}{cgroup}",
        of.cpu,
        of.cores,
        of.threads,
        of.virt.as_deref().unwrap_or("unknown"),
        memory.unwrap_or_default()
    )
}

/// Describes what a run measured; equal for runs whose results are comparable. The description omits the number of
/// rounds.
fn plan(run: &Run) -> String {
    let design: &Design = &run.design;
    let arms: Vec<&str> = run.arms.iter().map(|arm| arm.name.as_str()).collect();
    let gates = design.gates.iter().map(|gate| format!("{} {}", gate.label(), design.threshold_of(*gate)));
    // A load that derives from a measurement differs slightly from run to run, so the description rounds the rate.
    let load = design.offered_per_s.map_or("closed loop".to_owned(), |rate| {
        let step = 10.0_f64.powf(rate.max(1.0).log10().floor() - 1.0);
        format!("about {}/s", (rate / step).round() * step)
    });
    let block = match design.windows {
        Some(windows) => format!("windows of {} s", windows.window_s),
        None => format!("blocks of {} s", design.block_s),
    };
    format!("{}; {block}; {load}; gates {}", arms.join(", "), gates.collect::<Vec<_>>().join(", "))
}

/// Returns the average number of CPUs that programs outside the experiment used, over all blocks; `None` if no block
/// has a value.
fn foreign_cpus(run: &Run) -> Option<f64> {
    mean(&run.blocks.iter().filter_map(|block| block.cpu.outside()).collect::<Vec<_>>())
}

/// Parses the lines of a history file. Returns the entries, and a message for each line that is not a valid entry.
pub fn parse(file: &str, text: &str) -> (Vec<Entry>, Vec<String>) {
    let (mut entries, mut told) = (Vec::new(), Vec::new());
    let whole = text.ends_with('\n');
    let lines: Vec<&str> = text.lines().collect();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let last = at + 1 == lines.len();
        match serde_json::from_str::<Entry>(line) {
            Ok(entry) if entry.schema == SCHEMA => entries.push(entry),
            Ok(entry) => told.push(format!(
                "{file}: line {} is skipped: its schema is {:?}, but this version reads {SCHEMA:?}",
                at + 1,
                entry.schema
            )),
            Err(_) if last && !whole => told.push(format!(
                "{file}: the last line is incomplete and is skipped; the next run starts a new line"
            )),
            Err(error) => {
                told.push(format!(
                    "{file}: line {} is skipped, because it is not a history entry: {error}",
                    at + 1
                ));
            }
        }
    }
    (entries, told)
}

/// The runs of one experiment that have equal descriptions of plan and machine, for one isolated arm; oldest first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Series {
    /// Name of the experiment.
    pub experiment: String,
    /// Description of the machine.
    pub machine: String,
    /// Description of the plan.
    pub plan: String,
    /// Name of the isolated arm; empty for runs without an isolated arm.
    pub arm: String,
    /// The runs, oldest first.
    pub runs: Vec<Point>,
    /// Changes between consecutive releases, for releases with enough runs.
    pub releases: Vec<Change>,
}

/// The results of one run in a series.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// Start time of the run (RFC 3339).
    pub started: String,
    /// Version of commensal that recorded the run.
    pub version: String,
    /// Kernel release.
    pub kernel: String,
    /// Verdict on the arm; the run's verdict if the arm has no verdict.
    pub verdict: Option<Verdict>,
    /// The first reason for the run's verdict; `None` for PASS.
    pub reason: Option<String>,
    /// Offline work in this arm, as a share of the work in the arm without isolation (per cent).
    pub offline_kept_pct: Option<f64>,
    /// Average number of CPUs that programs outside the experiment used; `None` if unknown.
    pub foreign_cpus: Option<f64>,
    /// The gates of the arm.
    pub gates: Vec<GateEntry>,
    /// Changes since the last earlier run that has a valid measurement.
    pub changes: Vec<Change>,
    /// Path of the file with the run's complete record.
    pub record: String,
}

/// The change of the harm on one gate, between two runs or two releases.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// The earlier side of the comparison: the start time of a run, or a description of the two releases.
    pub since: String,
    /// The metric of the gate.
    pub metric: Metric,
    /// Change of the mean harm from the earlier to the later run (per cent); positive is worse.
    pub moved_pct: f64,
    /// Two-sided p-value of the hypothesis that nothing changed, multiplied by the number of gates tested (Bonferroni
    /// correction).
    pub p: f64,
    /// Whether `p` is below [`LEVEL`].
    pub significant: bool,
}

/// Mean, standard deviation and size of a sample.
type Sample = (f64, f64, u32);

/// Returns the two-sided p-value of Welch's t-test. The function rounds the degrees of freedom down, which makes the
/// test conservative. Returns `None` if a sample has fewer than two values, or if the variance is zero in both samples
/// or not finite.
pub fn welch((m1, s1, n1): Sample, (m2, s2, n2): Sample) -> Option<f64> {
    if n1 < 2 || n2 < 2 {
        return None;
    }
    let (v1, v2) = (s1 * s1 / f64::from(n1), s2 * s2 / f64::from(n2));
    let variance = v1 + v2;
    if !(variance > 0.0 && variance.is_finite()) {
        return None;
    }
    let t = (m2 - m1) / variance.sqrt();
    let degrees = variance * variance / (v1 * v1 / f64::from(n1 - 1) + v2 * v2 / f64::from(n2 - 1));
    t_two_sided(t, degrees.floor().clamp(1.0, 1e6) as u32)
}

/// Compares one gate between two samples of log-ratios; `tested` is the number of gates, by which the Bonferroni
/// correction multiplies the p-value.
fn change(since: &str, metric: Metric, before: Sample, now: Sample, tested: usize) -> Option<Change> {
    let p = (welch(before, now)? * tested.max(1) as f64).min(1.0);
    let moved_pct = pct_of_log(now.0 - before.0);
    Some(Change { since: since.to_owned(), metric, moved_pct, p, significant: p < LEVEL })
}

fn sample(gate: &GateEntry) -> Option<Sample> {
    Some((gate.mean_log, gate.sd_log?, gate.rounds))
}

/// Whether a run has valid results, so that other runs can be compared with it.
fn sound(point: &Point) -> bool {
    !matches!(point.verdict, None | Some(Verdict::Invalid | Verdict::Broken)) && !point.gates.is_empty()
}

/// Groups entries into series, in the order of the first run of each series, and computes the changes within each
/// series.
pub fn series(entries: &[Entry]) -> Vec<Series> {
    let mut sorted: Vec<&Entry> = entries.iter().collect();
    sorted.sort_by(|a, b| a.started.cmp(&b.started));
    // A run can be in the history and also be given as a record; the series contain such a run once.
    sorted.dedup_by(|a, b| {
        a.started == b.started && a.experiment == b.experiment && a.fingerprint == b.fingerprint
    });
    let mut out: Vec<Series> = Vec::new();
    for entry in sorted {
        let none = ArmEntry {
            arm: String::new(),
            verdict: entry.verdict,
            offline_kept_pct: None,
            gates: Vec::new(),
        };
        let arms = if entry.arms.is_empty() { std::slice::from_ref(&none) } else { &entry.arms };
        for arm in arms {
            let same = |one: &&mut Series| {
                (&one.experiment, &one.machine, &one.plan, &one.arm)
                    == (&entry.experiment, &entry.machine, &entry.plan, &arm.arm)
            };
            let point = Point {
                started: entry.started.clone(),
                version: entry.version.clone(),
                kernel: entry.kernel.clone(),
                verdict: arm.verdict.or(entry.verdict),
                reason: entry.reason.clone(),
                offline_kept_pct: arm.offline_kept_pct,
                foreign_cpus: entry.foreign_cpus,
                gates: arm.gates.clone(),
                changes: Vec::new(),
                record: entry.record.clone(),
            };
            match out.iter_mut().find(same) {
                Some(one) => one.runs.push(point),
                None => out.push(Series {
                    experiment: entry.experiment.clone(),
                    machine: entry.machine.clone(),
                    plan: entry.plan.clone(),
                    arm: arm.arm.clone(),
                    runs: vec![point],
                    releases: Vec::new(),
                }),
            }
        }
    }
    for one in &mut out {
        let mut before: Option<Point> = None;
        for point in &mut one.runs {
            if !sound(point) {
                continue;
            }
            if let Some(before) = &before {
                point.changes = changes(before, point);
            }
            before = Some(point.clone());
        }
        one.releases = releases(&one.runs);
    }
    out
}

fn changes(before: &Point, now: &Point) -> Vec<Change> {
    let pairs: Vec<(&GateEntry, &GateEntry)> = (now.gates.iter())
        .filter_map(|gate| {
            let same = |other: &&GateEntry| other.metric == gate.metric && other.vs == gate.vs;
            Some((before.gates.iter().find(same)?, gate))
        })
        .collect();
    let one = |(a, b): &(&GateEntry, &GateEntry)| {
        change(&before.started, a.metric, sample(a)?, sample(b)?, pairs.len())
    };
    pairs.iter().filter_map(one).collect()
}

/// Compares each release that has enough runs with the previous release that has enough runs. The test uses the spread
/// between runs of a release.
fn releases(runs: &[Point]) -> Vec<Change> {
    let mut groups: Vec<(&str, Vec<&Point>)> = Vec::new();
    for point in runs.iter().filter(|point| sound(point)) {
        match groups.iter_mut().find(|(version, _)| *version == point.version) {
            Some((_, group)) => group.push(point),
            None => groups.push((&point.version, vec![point])),
        }
    }
    groups.retain(|(_, group)| group.len() >= RUNS_OF_A_RELEASE);
    let mut out = Vec::new();
    for pair in groups.windows(2) {
        let [(old, before), (new, now)] = pair else { continue };
        let of = |group: &[&Point], metric: Metric| {
            let means: Vec<f64> = group
                .iter()
                .filter_map(|point| point.gates.iter().find(|gate| gate.metric == metric))
                .map(|gate| gate.mean_log)
                .collect();
            Some((mean(&means)?, standard_deviation(&means)?, u32::try_from(means.len()).ok()?))
        };
        let both: Vec<(Metric, Sample, Sample)> = (Metric::ALL.into_iter())
            .filter_map(|metric| Some((metric, of(before, metric)?, of(now, metric)?)))
            .collect();
        let since = format!("{old} to {new}, {} and {} runs", before.len(), now.len());
        out.extend(both.iter().filter_map(|(metric, a, b)| change(&since, *metric, *a, *b, both.len())));
    }
    out
}

/// Returns a sentence that explains the test for changes. Every table that calls a change significant includes this
/// sentence.
pub fn test_in_words() -> String {
    let mut out = String::new();
    let _ = write!(
        out,
        "A run is marked as changed if Welch's t-test on the log-ratios of its rounds gives p < {LEVEL} against the previous valid \
         run, after Bonferroni's correction for the number of gates. A change may also come from the machine, if the machine \
         behaved differently on the two dates. Releases are compared by the spread between runs, if each has at least \
         {RUNS_OF_A_RELEASE} runs."
    );
    out
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::fixture::concluded;

    /// Returns the entry of a run on this day with this version, whose isolated arm has this harm.
    pub(crate) fn entry(day: u32, version: &str, harm: f64) -> Entry {
        let mut run = concluded(12, [0.0, 0.5, harm], 0.01);
        run.tool.version = version.into();
        run.started = format!("2026-11-{day:02}T10:00:00Z");
        Entry::of(&run, &format!("/tmp/{day}.json"))
    }

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let one = entry(1, "0.1.0", 0.0);
        let line = one.line().unwrap();
        assert!(line.len() < 4_096 && line.ends_with('\n') && line.matches('\n').count() == 1, "{line}");
        let (read, told) = parse("h", &line);
        assert_eq!((read, told), (vec![one.clone()], Vec::new()));
        assert_eq!(one.verdict, Some(Verdict::Pass));
        assert_eq!(one.arms.len(), 1);
        assert_eq!(one.arms[0].gates.len(), 3);
        assert!(one.reason.is_none() && one.machine.starts_with("AMD EPYC, 2 cores, 2 CPUs"), "{one:?}");
        let gate = one.arms[0].gate(Metric::P90).unwrap();
        assert!(gate.bound_pct.unwrap() > gate.harm_pct && gate.rounds == 12);
    }

    #[test]
    fn what_is_no_entry_is_told_and_left_out() {
        let (a, b) = (entry(1, "0.1.0", 0.0).line().unwrap(), entry(2, "0.1.0", 0.0).line().unwrap());
        for cut in 1..b.len() - 1 {
            let Some(torn) = b.get(..cut) else { continue };
            let (read, told) = parse("h", &format!("{a}{torn}"));
            assert_eq!(read.len(), 1, "{cut}");
            assert!(told.len() == 1 && told[0].contains("the last line is incomplete"), "{told:?}");
        }
        let (read, told) = parse("h", &format!("{a}{{\"half\n\n{b}"));
        assert_eq!((read.len(), told.len()), (2, 1));
        assert!(told[0].contains("line 2 is skipped"), "{told:?}");
        let later = a.replace("commensal.history/1", "commensal.history/9");
        let (read, told) = parse("h", &later);
        assert!(
            read.is_empty() && told[0].contains("this version reads \"commensal.history/1\""),
            "{told:?}"
        );
        assert_eq!(parse("h", ""), (Vec::new(), Vec::new()));
    }

    #[test]
    fn only_a_change_beyond_chance_is_called_one() {
        let entries =
            [entry(1, "0.1.0", 0.0), entry(2, "0.1.0", 0.0), entry(3, "0.2.0", 0.2), entry(4, "0.2.0", 0.0)];
        let all = series(&entries);
        assert_eq!(all.len(), 1);
        let significant = |at: usize| -> Vec<bool> {
            all[0].runs[at].changes.iter().map(|change| change.significant).collect()
        };
        assert_eq!(significant(0), [] as [bool; 0]);
        assert_eq!(significant(1), [false; 3]);
        assert_eq!(significant(2), [true; 3]);
        assert_eq!(significant(3), [true; 3]);
        let moved: Vec<f64> = all[0].runs[2].changes.iter().map(|change| change.moved_pct).collect();
        assert!(moved.iter().all(|pct| (10.0..30.0).contains(pct)), "{moved:?}");
        assert!(all[0].releases.is_empty(), "two runs of a release are too few");
    }

    #[test]
    fn releases_are_compared_by_the_spread_from_run_to_run() {
        let day = |n: u32, version: &str, mean_log: f64| {
            let mut one = entry(n, version, 0.0);
            one.arms[0].gates.iter_mut().for_each(|gate| gate.mean_log = mean_log);
            one
        };
        let moved = |harms: [[f64; 3]; 2]| {
            let runs = (1..)
                .zip(harms.concat())
                .map(|(n, harm)| day(n, if n < 4 { "0.1.0" } else { "0.2.0" }, harm));
            series(&runs.collect::<Vec<_>>())[0].releases.clone()
        };
        // Single runs of the two releases differ by far more than the spread of their rounds; yet neither release is
        // better.
        let same = moved([[0.00, 0.03, 0.06], [0.01, 0.05, 0.04]]);
        assert!(same.len() == 3 && same.iter().all(|change| !change.significant), "{same:?}");
        let worse = moved([[0.00, 0.002, 0.004], [0.05, 0.052, 0.054]]);
        assert!(worse.iter().all(|change| change.significant && change.moved_pct > 4.0), "{worse:?}");
        assert_eq!(worse[0].since, "0.1.0 to 0.2.0, 3 and 3 runs");
    }

    #[test]
    fn broken_measurements_and_other_plans_are_not_compared() {
        let mut entries = vec![entry(1, "0.1.0", 0.0), entry(2, "0.1.0", 0.5), entry(3, "0.1.0", 0.0)];
        (entries[1].verdict, entries[1].arms[0].verdict) = (Some(Verdict::Invalid), Some(Verdict::Invalid));
        let all = series(&entries);
        assert!(all[0].runs[1].changes.is_empty());
        assert_eq!(all[0].runs[2].changes[0].since, entries[0].started);
        // After a kernel update, the machine has the same description. Other hardware, another plan or another
        // experiment starts a new series.
        let check = |alter: fn(&mut Entry), want: usize| {
            let mut entries = vec![entry(1, "0.1.0", 0.0), entry(2, "0.1.0", 0.0)];
            alter(&mut entries[1]);
            assert_eq!(series(&entries).len(), want);
        };
        check(|one| (one.kernel, one.fingerprint) = ("6.18.1".into(), "sha256:01".into()), 1);
        check(|one| one.machine.push('x'), 2);
        check(|one| one.plan.push('x'), 2);
        check(|one| one.experiment.push('x'), 2);
        check(|one| one.arms[0].arm.push('x'), 2);
        check(|one| one.started = "2026-11-01T10:00:00Z".into(), 1);
    }

    /// The expected values are from scipy.stats.ttest_ind_from_stats(equal_var=False); this module rounds the degrees
    /// of freedom down.
    #[test]
    fn welch_is_that_of_the_textbook() {
        let check = |a, b, want: f64| {
            let p = welch(a, b).unwrap();
            assert!(p >= want * 0.999 && p < want * 1.1 + 1e-12, "{p} {want}");
        };
        // With equal sizes and spreads, Welch's test is Student's t-test: there are 18 degrees of freedom, and t =
        // 2.101 is the 95 % quantile.
        check((0.0, 1.0, 10), (2.100_922 * (0.2_f64).sqrt(), 1.0, 10), 0.05);
        check((0.0, 1.0, 10), (0.0, 1.0, 10), 1.0);
        assert_eq!(welch((0.0, 1.0, 1), (1.0, 1.0, 5)), None);
        assert_eq!(welch((0.0, 0.0, 5), (1.0, 0.0, 5)), None);
        assert_eq!(welch((0.0, f64::NAN, 5), (1.0, 1.0, 5)), None);
    }

    /// The test reports a difference between identical releases at most as often as the documentation says.
    // promise 40
    #[test]
    fn chance_is_called_a_change_as_often_as_is_stated() {
        let mut rng = crate::rng::Rng::new(5);
        let normal = |rng: &mut crate::rng::Rng| -> f64 {
            (0..12).map(|_| rng.below(1_000_000) as f64 / 1e6).sum::<f64>() - 6.0
        };
        let sample = |rng: &mut crate::rng::Rng, sd: f64| {
            let values: Vec<f64> = (0..12).map(|_| normal(rng) * sd).collect();
            (mean(&values).unwrap(), standard_deviation(&values).unwrap(), 12)
        };
        let n = 4_000;
        let called = (0..n).filter(|_| {
            let (a, b) = (sample(&mut rng, 1.0), sample(&mut rng, 3.0));
            welch(a, b).unwrap() < LEVEL
        });
        let share = called.count() as f64 / f64::from(n);
        assert!((0.003..0.018).contains(&share), "{share}");
    }
}
