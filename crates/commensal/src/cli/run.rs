//! The command `run`: starts a command inside a group when the group's queue admits it. Returns the command's exit
//! status (128+n if signal n killed it). 125 means an error of `run` itself, 126 that the command cannot be executed,
//! 127 that it does not exist.

mod starting;
mod waiting;

use self::starting::{Aloft, Entered};
use self::waiting::Waiting;
use super::apply::refused;
use super::args::Run;
use super::oom;
use super::queue::{self, Turn};
use crate::context::Context;
use crate::signals::not_ignored;
use anyhow::{anyhow, bail};
use commensal_core::actual::{CgroupPath, Hierarchy};
use commensal_core::class::Mechanism;
use commensal_core::desired::Limits;
use commensal_core::errno::Errno;
use commensal_core::group::{GroupName, GroupSpec};
use commensal_core::knob::Controller;
use commensal_core::limit::FROZEN;
use commensal_host::{Child, Cookie, Host, Process, Signal, SpawnSpec, Stdin};
use commensal_reconcile::agent_lock::running;
use commensal_reconcile::groups_file;
use commensal_reconcile::queue::{Event, Inbox, Slot};
use commensal_reconcile::{Lifted, PlanRequest, Planned, journal, lift, lower, restore_own};
use commensal_sensors::usage::GroupDirs;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::Signals;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Signals that are forwarded to the command.
const FORWARDED: [i32; 7] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH];

/// An offline command (`cpu.idle`, or `cpu.qos_level` below 0 of openEuler's kernel) may get no CPU time. Before `run`
/// forwards a signal that asks the command to exit, it moves the command to a group that is not held back for this long,
/// so that the command can handle the signal. Then `run` moves it back.
const GRACE: Duration = Duration::from_secs(30);

/// A running command, its cgroups, the OOM counters from before it started, and what was done while it started.
struct Started {
    child: Child,
    dirs: GroupDirs,
    memory: oom::Watch,
    waiting: Waiting,
    aloft: Aloft,
}

/// Runs the command.
pub fn run(context: &mut Context, options: &Run) -> anyhow::Result<u8> {
    let spec = group(context, options)?;
    if spec.limits.has(FROZEN) {
        bail!(
            "group {} is frozen (frozen = true), so a command would never start: remove the key first",
            spec.name
        );
    }
    context.can_record()?;
    warn_of_agent(context, &spec, options);
    let inbox = listen(context)?;
    let slot = match queue::turn(context, &spec, options, &inbox)? {
        Turn::Begin(slot) => slot,
        Turn::Left(status) => return Ok(status),
    };
    let started = start(context, &spec, options, (slot.as_ref(), &inbox));
    let status = match started {
        Ok(Ok(mut started)) => {
            if let Some(slot) = &slot {
                slot.runs(&mut context.host, started.child.process.pid);
            }
            let status = follow(context, &inbox, &mut started);
            if let Some(kills) = started.memory.end(&mut context.host, &started.dirs) {
                eprintln!("commensal: {}", kills.describe(&spec.name));
            }
            started.dirs.close(&mut context.host);
            status
        }
        Ok(Err(error)) => {
            eprintln!("commensal: {error}");
            Ok(match (error.operation, error.errno) {
                ("start", Errno::ENOENT) => 127,
                ("start", _) => 126,
                _ => 125,
            })
        }
        Err(error) => {
            if let Some(slot) = slot {
                slot.leave(&mut context.host);
            }
            return Err(error);
        }
    };
    // Released before the cgroup is removed, so that the next command does not wait for the removal.
    if let Some(slot) = slot {
        slot.leave(&mut context.host);
    }
    // The command's status is returned even if removing its cgroup fails.
    if let Err(error) = release(context) {
        eprintln!("commensal: {error:#}");
    }
    status
}

/// Says that a running agent's limits apply, if those of the command line differ.
fn warn_of_agent(context: &mut Context, spec: &GroupSpec, options: &Run) {
    let Ok(Some(_)) = running(&mut context.host, &context.state_dir) else { return };
    let Ok(Some(texts)) = groups_file::saved(&mut context.host, &context.state_dir) else { return };
    let Ok(kept) = groups_file::compile(&texts) else { return };
    if kept.groups.iter().find(|kept| kept.name == spec.name).is_some_and(|kept| kept.limits != spec.limits) {
        eprintln!(
            "commensal: an agent keeps group {} in force: its limits apply, and those of {} do not",
            spec.name,
            options.config.display()
        );
    }
}

/// Catches signals from now on, so that no signal is lost before the command starts.
fn listen(context: &Context) -> anyhow::Result<Inbox> {
    let wanted = not_ignored(&context.host, &FORWARDED);
    let mut signals = Signals::new(wanted.into_iter().chain([SIGCHLD]))?;
    let inbox = Inbox::default();
    let sender = inbox.sender();
    let pass_on = move || signals.forever().try_for_each(|signal| sender.send(Event::Signal(signal)));
    std::thread::Builder::new().name("signals".to_owned()).spawn(pass_on)?;
    Ok(inbox)
}

/// Starts the command in its cgroup. The inner error means that the command could not be started; the outer error means
/// that a step before that failed.
fn start(
    context: &mut Context,
    spec: &GroupSpec,
    options: &Run,
    (slot, inbox): (Option<&Slot>, &Inbox),
) -> anyhow::Result<commensal_host::Result<Started>> {
    let name = &spec.name;
    context.ask_engines(std::slice::from_ref(spec))?;
    let lock = context.lock()?;
    let planned = match prepare(context, spec) {
        Ok(planned) => planned,
        Err(error) => {
            // This process may already have moved to another cgroup.
            let _ = restore_own(&mut context.host, &context.state_dir, journal::RUN);
            return Err(error);
        }
    };
    let policy = planned.plan.task_policies.get(name);
    let path = own_path(&planned, name)?;
    // Limits that cannot be applied are reported before the command starts. With a weak policy, the policy's own
    // message reports them.
    for unmet in planned.plan.unmet.iter().filter(|_| policy.is_none()) {
        eprintln!("commensal: {}", unmet.describe());
    }
    let actual = &planned.actual;
    let usable = |index: &usize| planned.obstacle.is_none() && actual.own_possible(*index);
    let hierarchies: Vec<Hierarchy> =
        (0..actual.hierarchies.len()).filter(usable).map(|index| actual.hierarchies[index].clone()).collect();
    let dirs = GroupDirs::open(&mut context.host, &hierarchies, &path);
    complete(&hierarchies, &dirs)?;
    let mut command = command(options);
    command.groups = dirs.all();
    command.locks = slot.map(Slot::lock).into_iter().collect();
    if let Some(policy) = policy {
        eprintln!("commensal: group {name}: {}", policy.weak.as_deref().unwrap_or("weak"));
        command.policy.idle = policy.idle;
        command.policy.nice = policy.idle.then_some(19);
        command.policy.cpus.clone_from(&policy.cpus);
    }
    // Below level 0, a thread yields CPU time only while it is SCHED_IDLE, so the command must not be able to leave
    // that policy.
    let of_group = planned.plan.mechanisms.iter().filter(|((group, _), _)| group == name);
    command.policy.confined = of_group.into_iter().any(|(_, mechanism)| *mechanism == Mechanism::QosLevel);
    if planned.plan.cookies.contains(name) && planned.obstacle.is_none() {
        command.policy.cookie = Some(cookie(&mut context.host, &dirs));
    }
    let memory = oom::Watch::begin(&mut context.host, &dirs, &limits_of(&planned, name));
    let mut waiting = Waiting::new(spec);
    let place = Entered { hierarchies: &hierarchies, path: &path, dirs: &dirs };
    Ok(match starting::start(&mut context.host, &mut command, &place, (inbox, &mut waiting), lock) {
        Ok((child, aloft)) => Ok(Started { child, dirs, memory, waiting, aloft }),
        Err(error) => {
            dirs.close(&mut context.host);
            Err(error)
        }
    })
}

/// The core-scheduling cookie of the group's other commands; a new cookie if there are none. The caller holds the lock,
/// so no other command starts meanwhile.
fn cookie(host: &mut dyn Host, dirs: &GroupDirs) -> Cookie {
    let procs = dirs.any().and_then(|dir| host.read(dir, "cgroup.procs").ok()).unwrap_or_default();
    let pids = procs.split_whitespace().filter_map(|pid| pid.parse().ok());
    let with = pids.into_iter().find(|pid| host.cookie(*pid).is_ok_and(|cookie| cookie != 0));
    with.map_or(Cookie::New, Cookie::Of)
}

/// Fails if the group has no cgroup in one of the hierarchies: the command would not be subject to that hierarchy's
/// limits.
fn complete(hierarchies: &[Hierarchy], dirs: &GroupDirs) -> anyhow::Result<()> {
    use Controller::{Cpu, Cpuacct, Io, Memory, Pids};
    for controller in [Cpu, Cpuacct, Memory, Io, Pids] {
        let mounted = hierarchies.iter().any(|hierarchy| hierarchy.controllers.contains(&controller));
        if mounted && dirs.of(controller).is_none() {
            bail!("the group was removed from the {controller} hierarchy meanwhile; try again");
        }
    }
    Ok(())
}

/// Returns the group that the command line names.
fn group(context: &Context, options: &Run) -> anyhow::Result<GroupSpec> {
    let specs = context.specs(&options.config)?;
    let known: Vec<String> = specs.iter().map(|spec| spec.name.to_string()).collect();
    let found = specs.into_iter().find(|spec| spec.name.as_str() == options.group);
    found.ok_or_else(|| {
        anyhow!(
            "no group {:?} in {}; its groups are {}",
            options.group,
            options.config.display(),
            known.join(", ")
        )
    })
}

fn command(options: &Run) -> SpawnSpec {
    let (program, args) =
        options.command.split_first().map_or((std::ffi::OsString::new(), &[][..]), |(p, a)| (p.clone(), a));
    let mut spec = SpawnSpec::new(program);
    spec.args = args.to_vec();
    spec.stdin = Stdin::Inherit;
    spec
}

/// Creates the group's own cgroup with its limits, if needed. Other groups are not touched.
fn prepare(context: &mut Context, spec: &GroupSpec) -> anyhow::Result<Planned> {
    // `apply` handles the group's members in other cgroups. This function only handles the command's own cgroup.
    let alone = GroupSpec { matches: Vec::new(), ..spec.clone() };
    let own = [spec.name.clone()].into_iter().collect();
    let mut journal = context.journal(journal::RUN)?;
    let (planned, outcome) =
        context.enforce(PlanRequest::with_own(std::slice::from_ref(&alone), &own), &mut journal)?;
    match &outcome.failure {
        Some(failure) => bail!("{}", refused(&planned, &outcome, failure)),
        None => Ok(planned),
    }
}

fn own_path(planned: &Planned, name: &GroupName) -> anyhow::Result<CgroupPath> {
    let group = planned.desired.groups.iter().find(|group| group.name == *name);
    let own = group.and_then(|group| group.members.iter().find(|member| member.own));
    own.map(|member| member.path.clone()).ok_or_else(|| anyhow!("group {name} has no cgroup of its own"))
}

/// Returns the group's limits on this machine.
fn limits_of(planned: &Planned, name: &GroupName) -> Limits {
    let group = planned.desired.groups.iter().find(|group| group.name == *name);
    group.map(|group| group.limits.clone()).unwrap_or_default()
}

/// Waits for the command and forwards signals; returns the command's exit status.
fn follow(context: &mut Context, inbox: &Inbox, started: &mut Started) -> anyhow::Result<u8> {
    let Started { child, waiting, aloft: lifted, .. } = started;
    loop {
        // This process may have adopted children of the command (`lift`).
        if let Some(exit) = child.try_wait_and_reap()? {
            if let Some((lifted, _)) = lifted.take() {
                let count = lower(&mut context.host, &lifted);
                if count > 0 {
                    let from = lifted.from();
                    eprintln!(
                        "commensal: {} that the command left behind went back to {from}",
                        processes(count)
                    );
                }
            }
            return Ok(u8::try_from(exit.status()).unwrap_or(u8::MAX));
        }
        // If the child exited before this thread waits for SIGCHLD, the signal is already in the queue, so the exit is
        // not missed.
        let until = lifted.as_ref().map(|(_, until)| until.saturating_duration_since(Instant::now()));
        let patience = [until, waiting.patience()].into_iter().flatten().min();
        let signal = match patience {
            Some(patience) => inbox.signal_within(patience),
            None => Some(inbox.signal()),
        };
        let Some(signal) = signal else {
            waiting.look(&context.host, child.process.pid);
            if let Some((lifted, _)) = lifted.take_if(|(_, until)| Instant::now() >= *until) {
                let count = lower(&mut context.host, &lifted);
                eprintln!(
                    "commensal: the command has not exited within {} s: {} of it went back to {}",
                    GRACE.as_secs(),
                    processes(count),
                    lifted.from()
                );
            }
            continue;
        };
        // Done before the signal is sent, because a process that gets no CPU time cannot handle the signal. A terminal
        // sends the signal itself.
        if Signal(signal).asks_to_end() && lifted.is_none() {
            let aloft = lift_to_end(&mut context.host, &child.process);
            *lifted = aloft.map(|aloft| (aloft, Instant::now() + GRACE));
        }
        // Ctrl-C and Ctrl-\ in a terminal reach the command directly, since it is in the same process group.
        let from_terminal = matches!(signal, SIGINT | SIGQUIT) && std::io::stdin().is_terminal();
        if signal != SIGCHLD && !from_terminal {
            match context.host.signal(&child.process, Signal(signal)) {
                // The process has exited, or it belongs to another user now (sudo). In both cases this function
                // continues to wait.
                Err(error) if error.errno != Errno::ESRCH => eprintln!("commensal: {error}"),
                _ => {}
            }
        }
    }
}

/// Lifts a command that is held back: moves it to a group where it gets the CPU time that it needs to exit.
fn lift_to_end(host: &mut dyn Host, process: &Process) -> Option<Lifted> {
    match lift(host, process) {
        Ok(None) => None,
        Ok(Some(lifted)) => {
            if lifted.by_level() {
                eprintln!(
                    "commensal: to let the command exit, {} of it may run in {} for {} s: in {}, a busy machine \
                     may give it no CPU time",
                    processes(lifted.count()),
                    lifted.to(),
                    GRACE.as_secs(),
                    lifted.from()
                );
            }
            Some(lifted)
        }
        Err(error) => {
            eprintln!(
                "commensal: the command stays where a busy machine may give it no CPU time to handle the signal: \
                 {error}"
            );
            None
        }
    }
}

fn processes(count: usize) -> String {
    match count {
        1 => "1 process".to_owned(),
        count => format!("{count} processes"),
    }
}

/// Removes the cgroup that `run` created, after its last command has exited. A cgroup that is in use, or that `apply`
/// created, stays. If a command leaves processes running, their cgroup stays until the next `run` or `restore` finds it
/// empty.
fn release(context: &mut Context) -> anyhow::Result<()> {
    let _lock = context.lock()?;
    let restored = restore_own(&mut context.host, &context.state_dir, journal::RUN)?;
    for line in &restored.failed {
        eprintln!("commensal: {line}");
    }
    Ok(())
}
