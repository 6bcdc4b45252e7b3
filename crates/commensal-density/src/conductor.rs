//! Runs a ladder, which is a series of measurements with more and more sessions per cell. A cell stands for a VM; a
//! placement is a number of cells on this machine; a rung is one load with one number of sessions in one placement.
//! Each repeat measures every rung of every placement once (an attempt), in random order. The conductor records each
//! attempt when it finishes.
//!
//! ```text
//! repeat ─ rung: [create cells, start programs] all ready ─ GO ─ all done, or failed ─ [stop programs, remove cells]
//! ```
//! The conductor creates new cells for every attempt, so that no attempt inherits memory, cgroup caches or processes.
//! Attempts of the same rung in the same repeat are compared between placements, so that a disturbance of the machine
//! affects both of the compared attempts.

mod attempt;
mod watch;

use crate::cells::Field;
use crate::error::DensityError;
use crate::experiment::{Backend, Experiment, Kind, Load};
use crate::pin;
use crate::record::{Attempt, Ladder, Placement, Rung, SCHEMA, Test};
use crate::scenario::Server;
use crate::vm::Guest;
use crate::{engines, topology_notes};
use attempt::Trial;
use commensal_core::actual::CgroupPath;
use commensal_host::Host;
use commensal_lab::conductor::describe;
use commensal_lab::record::RecordedBy;
use commensal_lab::rng::Rng;
use commensal_lab::site::Claim;
use commensal_lab::stats::median;
use commensal_sensors::inherited::Inherited;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Options of a run on this machine.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// Path of this program. The conductor starts it again, with a hidden subcommand, as the built-in load.
    pub program: PathBuf,
    /// Folder of the journal.
    pub state_dir: PathBuf,
    /// Folder into which `density prepare` puts engines and data.
    pub data_dir: PathBuf,
    /// Name of the scratch group in which control files are tested before the run.
    pub probe_name: String,
    /// Cgroup below which cells are created; `None` lets the program choose a cgroup.
    pub cgroup_root: Option<CgroupPath>,
    /// Command line that is stored in the record.
    pub args: Vec<String>,
    /// Version that is stored in the record.
    pub version: String,
    /// Record of an interrupted run of the same ladder, which this run continues.
    pub earlier: Option<Ladder>,
}

/// Progress of a run. The caller displays it, and saves the record during the run.
#[derive(Debug)]
pub enum Event<'a> {
    /// The run surveyed the machine, and removed leftovers of killed runs.
    Ready(&'a Field),
    /// An attempt starts.
    Attempt {
        /// Number of finished attempts.
        done: usize,
        /// Number of attempts in the whole run.
        total: usize,
        /// Description of the attempt, such as `spin at 4 in N2`.
        what: String,
    },
    /// The run added an attempt to the record.
    Recorded(&'a Ladder),
    /// Cells that the run could not remove; `commensal restore` retries them.
    Left(Vec<String>),
}

/// One planned attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    placement: usize,
    load: usize,
    concurrency: u32,
}

/// Runs the ladder and returns its record.
///
/// # Errors
/// Returns an error when cells or VMs cannot be created, or when the user stopped the run. In both cases, `tell` has
/// received the attempts that were measured before, and all cells are removed.
pub fn run(
    host: &mut dyn Host,
    experiment: &Experiment,
    options: &RunOptions,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<Ladder, DensityError> {
    // The claim excludes runs of the lab, because the two runs would disturb each other.
    let _claim = Claim::take(host)?;
    let limited = commensal_reconcile::as_from_a_free_shell(host);
    let inherited = Inherited::read(host);
    // The bound on how many cells fit rests on all CPUs.
    if inherited.online.iter().any(|cpu| !inherited.cpus.contains(cpu)) || inherited.quota.is_some() {
        return Err(DensityError::new(format!(
            "a ladder needs the whole machine: {}; start it from a cgroup without a cpuset and a quota",
            limited.join("; ")
        )));
    }
    let field =
        Field::open(host, options.state_dir.clone(), &options.probe_name, options.cgroup_root.as_ref())?;
    possible(experiment, &field)?;
    let mut ladder = begin(host, experiment, options, &field);
    ladder.notes.extend(limited);
    if let Some(earlier) = &options.earlier {
        go_on(&mut ladder, earlier)?;
    }
    let guest = match &experiment.cell.backend {
        Backend::Group => None,
        Backend::Qemu(vm) => Some(Guest::prepare(host, &options.data_dir, vm)?),
    };
    sweep(host, experiment, options);
    tell(Event::Ready(&field));
    let steps = steps(experiment);
    let total = steps.len() * experiment.repeats as usize;
    let before = ladder.rungs.iter().flat_map(|rung| &rung.attempts);
    let before = before.filter_map(|attempt| Some(attempt.at_s + attempt.seconds?)).fold(0.0, f64::max);
    let begun = Instant::now();
    let mut rng = Rng::new(experiment.seed);
    for repeat in 0..experiment.repeats {
        let mut order = steps.clone();
        rng.shuffle(&mut order);
        if repeat == 0 && experiment.limits.times_first.is_some() {
            order = references_first(order);
        }
        for (index, step) in order.into_iter().enumerate() {
            let name = what(experiment, step, &ladder);
            tell(Event::Attempt { done: repeat as usize * steps.len() + index, total, what: name });
            if recorded(&ladder, experiment, step, repeat) || leave_out(&mut ladder, experiment, step) {
                continue;
            }
            let limit = limit(&ladder, experiment, step);
            let trial = Trial { experiment, options, field: &field, guest: guest.as_ref(), limit, stop };
            let at_s = before + begun.elapsed().as_secs_f64();
            let (load, placement) = (&experiment.loads[step.load], experiment.placements[step.placement]);
            let tried = trial.attempt(host, (load, step.concurrency), placement, &mut ladder.results)?;
            if !tried.left.is_empty() {
                tell(Event::Left(tried.left));
            }
            for note in tried.notes {
                if !ladder.notes.contains(&note) {
                    ladder.notes.push(note);
                }
            }
            if tried.attempt.failure.is_some() {
                sweep(host, experiment, options);
            }
            push(&mut ladder, experiment, step, Attempt { repeat, at_s, ..tried.attempt });
            tell(Event::Recorded(&ladder));
            if stop.load(Ordering::Relaxed) {
                return Err(stopped());
            }
        }
    }
    Ok(ladder)
}

/// Returns the error for a run that the user stopped.
fn stopped() -> DensityError {
    DensityError::new("the run was stopped before its end")
}

/// Removes the files that the database servers of killed cells left behind.
fn sweep(host: &mut dyn Host, experiment: &Experiment, options: &RunOptions) {
    for load in &experiment.loads {
        let Kind::Postgres(tpcds) = &load.kind else { continue };
        let spec = engines::sweep(&options.data_dir, tpcds.scale_milli);
        // The command itself reports the files that it could not remove. The next run tries again.
        let _ = host.spawn(&spec).and_then(|mut child| child.wait());
    }
}

/// Reorders the first repeat: each step of another placement comes after the same step of the first placement, because
/// the time of the first one determines the time limit of the others.
fn references_first(order: Vec<Step>) -> Vec<Step> {
    let mut sorted = Vec::with_capacity(order.len());
    for step in order {
        for one in [Step { placement: 0, ..step }, step] {
            if !sorted.contains(&one) {
                sorted.push(one);
            }
        }
    }
    sorted
}

/// Returns the time limit of a step, and a text that explains the limit.
fn limit(ladder: &Ladder, experiment: &Experiment, step: Step) -> (Duration, String) {
    let limits = &experiment.limits;
    let first = find(ladder, experiment, Step { placement: 0, ..step }).filter(|_| step.placement > 0);
    let times: Vec<f64> =
        first.iter().flat_map(|rung| rung.attempts.iter().filter_map(|one| one.seconds)).collect();
    match limits.times_first.zip(median(&times)) {
        Some((most, alone)) => {
            let name = &ladder.placements[0].name;
            (Duration::from_secs_f64(most * alone), format!(" (time limit: {most} times the time of {name})"))
        }
        None => (limits.timeout, String::new()),
    }
}

/// Returns an error for a ladder that this machine cannot run, before any cell exists.
fn possible(experiment: &Experiment, field: &Field) -> Result<(), DensityError> {
    let machine = &field.survey.machine;
    for (cells, pinned) in &experiment.placements {
        if *pinned {
            let vcpus = vec![experiment.cell.vcpu; *cells as usize];
            pin::assign(&machine.topology, &vcpus, 0)?;
        }
        let most = experiment.loads.iter().filter_map(|load| experiment.cell_of(load).memory_limit()).max();
        let memory = most.map(|memory| memory.0.saturating_mul(u64::from(*cells)));
        if let Some(memory) = memory.filter(|memory| *memory > machine.memory.0) {
            return Err(DensityError::new(format!(
                "{cells} cells may use {} MiB of memory, but the machine has {} MiB; give cells less memory, or use fewer cells",
                memory >> 20,
                machine.memory.0 >> 20
            )));
        }
    }
    let server = Server::of(&machine.topology, experiment.reserve);
    server.check()
}

/// Creates the record, without attempts.
fn begin(host: &dyn Host, experiment: &Experiment, options: &RunOptions, field: &Field) -> Ladder {
    let server = Server::of(&field.survey.machine.topology, experiment.reserve);
    let machine = describe(host, &field.survey.machine, &field.survey.hierarchies);
    let mut notes = topology_notes::notes(host, &field.survey.machine.topology);
    if server.threads == server.cores {
        notes.push("this machine has no SMT, so the shared-core class could not be measured".to_owned());
    }
    let placement = |(cells, pinned): &(u32, bool)| Placement {
        name: placement_name(*cells, *pinned),
        vms: *cells,
        servers: 1,
        server: server.clone(),
        pinned: *pinned,
    };
    let test = |load: &Load| Test {
        name: load.name.clone(),
        work: f64::from(load.work),
        unit: load.kind.unit().to_owned(),
        spanning: false,
    };
    Ladder {
        schema: SCHEMA.to_owned(),
        name: experiment.name.clone(),
        tool: Some(RecordedBy { version: options.version.clone(), args: options.args.clone() }),
        started: Some(humantime::format_rfc3339_seconds(SystemTime::now()).to_string()),
        seed: experiment.seed,
        repeats: experiment.repeats,
        machine: Some(machine),
        source: Some(experiment.source.clone()),
        vcpu: experiment.cell.vcpu,
        placements: experiment.placements.iter().map(placement).collect(),
        tests: experiment.loads.iter().map(test).collect(),
        rungs: Vec::new(),
        results: std::collections::BTreeMap::new(),
        notes,
    }
}

fn placement_name(cells: u32, pinned: bool) -> String {
    format!("N{cells}{}", if pinned { " pinned" } else { "" })
}

/// Copies the attempts of an interrupted run into the record. Returns an error if that run measured another ladder or
/// another machine.
fn go_on(ladder: &mut Ladder, earlier: &Ladder) -> Result<(), DensityError> {
    let refuse = |what: &str| {
        Err(DensityError::new(format!(
            "this record cannot be continued, because {what} differs; run without --resume to start a new record"
        )))
    };
    if (&earlier.name, &earlier.source, earlier.seed) != (&ladder.name, &ladder.source, ladder.seed) {
        return refuse("the experiment");
    }
    if earlier.repeats != ladder.repeats {
        return refuse("the number of repeats");
    }
    let fingerprint = |of: &Ladder| of.machine.as_ref().map(|machine| machine.fingerprint.clone());
    if fingerprint(earlier) != fingerprint(ladder) {
        return refuse("the machine");
    }
    let attempts: usize = earlier.rungs.iter().map(|rung| rung.attempts.len()).sum();
    ladder.started.clone_from(&earlier.started);
    // The record keeps the command that started the run. Its notes list the commands that continued the run.
    let later = std::mem::replace(&mut ladder.tool, earlier.tool.clone());
    ladder.rungs.clone_from(&earlier.rungs);
    ladder.results.clone_from(&earlier.results);
    ladder.notes.clone_from(&earlier.notes);
    let command = later.map(|tool| format!(" by commensal {} {}", tool.version, tool.args.join(" ")));
    ladder.notes.push(format!(
        "the run was interrupted after {attempts} attempts and continued later{}",
        command.unwrap_or_default()
    ));
    Ok(())
}

fn steps(experiment: &Experiment) -> Vec<Step> {
    let mut steps = Vec::new();
    for (placement, _) in experiment.placements.iter().enumerate() {
        for (load, of) in experiment.loads.iter().enumerate() {
            steps.extend(of.concurrency.iter().map(|concurrency| Step {
                placement,
                load,
                concurrency: *concurrency,
            }));
        }
    }
    steps
}

fn what(experiment: &Experiment, step: Step, ladder: &Ladder) -> String {
    let load = &experiment.loads[step.load].name;
    format!("{load} at {} in {}", step.concurrency, ladder.placements[step.placement].name)
}

fn find<'l>(ladder: &'l Ladder, experiment: &Experiment, step: Step) -> Option<&'l Rung> {
    let (load, placement) = (&experiment.loads[step.load].name, &ladder.placements[step.placement].name);
    ladder.rung(load, step.concurrency, placement)
}

fn recorded(ladder: &Ladder, experiment: &Experiment, step: Step, repeat: u32) -> bool {
    find(ladder, experiment, step).is_some_and(|rung| rung.attempts.iter().any(|one| one.repeat == repeat))
}

/// Skips a rung when enough lower rungs have failed in every attempt. The record marks the rung as skipped, with the
/// reason; it counts as failed.
fn leave_out(ladder: &mut Ladder, experiment: &Experiment, step: Step) -> bool {
    let (load, placement) = (&experiment.loads[step.load], ladder.placements[step.placement].name.clone());
    let failed: Vec<u32> = (load.concurrency.iter().copied())
        .filter(|lower| *lower < step.concurrency)
        .filter(|lower| {
            let rung = ladder.rung(&load.name, *lower, &placement);
            rung.is_some_and(|rung| {
                !rung.attempts.is_empty() && rung.attempts.iter().all(|one| one.seconds.is_none())
            })
        })
        .collect();
    if failed.len() < experiment.limits.stop_after as usize {
        return false;
    }
    let untried = find(ladder, experiment, step).is_none();
    if untried {
        let names: Vec<String> = failed.iter().map(u32::to_string).collect();
        ladder.rungs.push(Rung {
            test: load.name.clone(),
            concurrency: step.concurrency,
            placement,
            attempts: Vec::new(),
            published: None,
            skipped: Some(format!("the rungs with {} sessions failed", names.join(" and "))),
        });
    }
    true
}

fn push(ladder: &mut Ladder, experiment: &Experiment, step: Step, attempt: Attempt) {
    let (test, placement) =
        (experiment.loads[step.load].name.clone(), ladder.placements[step.placement].name.clone());
    let concurrency = step.concurrency;
    let of = |rung: &&mut Rung| {
        rung.test == test && rung.concurrency == concurrency && rung.placement == placement
    };
    match ladder.rungs.iter_mut().find(of) {
        Some(rung) => rung.attempts.push(attempt),
        None => {
            let attempts = vec![attempt];
            ladder.rungs.push(Rung {
                test,
                concurrency,
                placement,
                attempts,
                published: None,
                skipped: None,
            });
        }
    }
}

/// Returns the number of attempts of the whole ladder.
#[must_use]
pub fn size(experiment: &Experiment) -> usize {
    steps(experiment).len() * experiment.repeats as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::parse;
    use crate::record::{Failure, FailureKind};

    fn experiment() -> Experiment {
        let text = "repeats = 2\n[cell]\nvcpu = 1\n[ladder]\ncells = [1, 2]\n[[load]]\nname = \"s\"\nkind = \"spin\"\n\
                    work = 1\nconcurrency = [1, 2, 4, 8]\n";
        parse("t.toml", text).unwrap()
    }

    fn ladder() -> Ladder {
        let server = Server { cores: 2, threads: 2, reserve: 0.0, node_cores: None, llc_cores: None };
        let placement = |cells| Placement {
            name: placement_name(cells, false),
            vms: cells,
            servers: 1,
            server: server.clone(),
            pinned: false,
        };
        Ladder { placements: vec![placement(1), placement(2)], ..crate::document::arenadata() }
    }

    fn failed(repeat: u32) -> Attempt {
        let failure =
            Failure { kind: FailureKind::TimedOut, reason: "slow".to_owned(), evidence: Vec::new() };
        Attempt { repeat, failure: Some(failure), ..Attempt::default() }
    }

    #[test]
    fn two_failed_rungs_end_a_climb_and_one_success_does_not() {
        let (experiment, mut ladder) = (experiment(), ladder());
        ladder.rungs.clear();
        let step = |concurrency| Step { placement: 1, load: 0, concurrency };
        push(&mut ladder, &experiment, step(1), failed(0));
        assert!(!leave_out(&mut ladder, &experiment, step(8)));
        push(&mut ladder, &experiment, step(4), failed(0));
        // A lower rung is still measured; a higher rung is skipped.
        assert!(!leave_out(&mut ladder, &experiment, step(2)));
        assert!(leave_out(&mut ladder, &experiment, step(8)));
        assert_eq!(
            find(&ladder, &experiment, step(8)).unwrap().skipped.as_deref(),
            Some("the rungs with 1 and 4 sessions failed")
        );
        // Failures in one placement do not skip rungs of the other placement.
        assert!(!leave_out(&mut ladder, &experiment, Step { placement: 0, ..step(8) }));
        push(
            &mut ladder,
            &experiment,
            step(4),
            Attempt { repeat: 1, seconds: Some(1.0), ..Attempt::default() },
        );
        assert!(!leave_out(&mut ladder, &experiment, step(8)));
        assert!(recorded(&ladder, &experiment, step(4), 1) && !recorded(&ladder, &experiment, step(1), 1));
    }

    #[test]
    fn a_record_of_another_ladder_is_refused() {
        let mut ladder = ladder();
        let mut other = ladder.clone();
        other.seed = 9;
        assert!(go_on(&mut ladder, &other).unwrap_err().to_string().contains("the experiment differs"));
        let other = Ladder { repeats: 77, ..ladder.clone() };
        assert!(go_on(&mut ladder, &other).unwrap_err().to_string().contains("the number of repeats"));
        let same = ladder.clone();
        let tool = |args: &[&str]| {
            let args = args.iter().map(|&arg| arg.to_owned()).collect();
            Some(RecordedBy { version: "0.1.0".to_owned(), args })
        };
        let same = Ladder { tool: tool(&["density", "run", "x"]), ..same };
        ladder.tool = tool(&["density", "run", "x", "--resume", "density.json"]);
        go_on(&mut ladder, &same).unwrap();
        // One command started the ladder, and another command continued it.
        assert_eq!(ladder.tool, same.tool);
        let note = ladder.notes.last().unwrap();
        assert!(note.contains("was interrupted after 0 attempts"), "{note}");
        assert!(note.ends_with("by commensal 0.1.0 density run x --resume density.json"), "{note}");
    }

    // promise 41
    #[test]
    fn a_limit_follows_the_first_placement() {
        let (mut experiment, mut ladder) = (experiment(), ladder());
        ladder.rungs.clear();
        experiment.limits.times_first = Some(3.0);
        let step = |placement| Step { placement, load: 0, concurrency: 2 };
        let at_first = limit(&ladder, &experiment, step(1));
        assert_eq!(at_first, (experiment.limits.timeout, String::new()));
        for (repeat, seconds) in [10.0, 14.0, 12.0].into_iter().enumerate() {
            let attempt = Attempt { repeat: repeat as u32, seconds: Some(seconds), ..Attempt::default() };
            push(&mut ladder, &experiment, step(0), attempt);
        }
        let (most, why) = limit(&ladder, &experiment, step(1));
        assert_eq!((most, why.as_str()), (Duration::from_secs(36), " (time limit: 3 times the time of N1)"));
        // A step of the first placement is limited by `timeout`.
        assert_eq!(limit(&ladder, &experiment, step(0)).0, experiment.limits.timeout);
        experiment.limits.times_first = None;
        assert_eq!(limit(&ladder, &experiment, step(1)).0, experiment.limits.timeout);
        // In the first repeat, the first placement is measured before the others, and each step occurs once.
        let all = steps(&experiment);
        let mut order = all.clone();
        Rng::new(7).shuffle(&mut order);
        let sorted = references_first(order);
        assert_eq!(sorted.len(), all.len());
        for (at, step) in sorted.iter().enumerate() {
            assert!(sorted[..=at].contains(&Step { placement: 0, ..*step }), "{step:?}");
        }
    }
}
