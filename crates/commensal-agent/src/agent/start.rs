//! Preconditions of an agent's start: the locks that make it the only agent, and its own cgroup.

use crate::error::AgentError;
use commensal_host::{Host, HostError, Lock, Signal};
use commensal_reconcile::agent_lock::{lock_path, record, recorded};
use commensal_reconcile::{DelegationError, Instance, Mastery, ReconcileError, journal, step_out};
use commensal_sensors::Survey;
use std::path::Path;
use std::time::{Duration, Instant};

/// Name of the lock file that an agent holds while it waits to replace the running one.
pub(super) const NEXT: &str = "agent.next";
/// How long a new agent waits for the agent that it replaces to exit.
const HAND_OVER_PATIENCE: Duration = Duration::from_secs(10);
/// How long an agent waits for another instance of commensal that is exiting.
const MASTER_PATIENCE: Duration = Duration::from_secs(1);
/// Time after which it is reported that other processes hold the machine lock.
pub(super) const LOCK_PATIENCE: Duration = Duration::from_secs(10);
/// Interval between attempts to take a lock that another process holds.
const PAUSE: Duration = Duration::from_millis(20);

/// Takes the lock that an agent holds while it runs. With `replace`, asks the running agent to exit, and waits for its
/// lock.
pub(super) fn only_one(host: &mut dyn Host, state_dir: &Path, replace: bool) -> Result<Lock, AgentError> {
    let path = lock_path(state_dir);
    let lock = match host.state_lock(&path)? {
        Some(lock) => lock,
        None => {
            let known = recorded(host, state_dir)?;
            let Some(known) = known.filter(|_| replace) else {
                return Err(AgentError::new(format!(
                    "an agent already manages the groups of this machine{}; stop it, or replace it with --replace",
                    known.map(|known| format!(" (process {})", known.pid)).unwrap_or_default()
                )));
            };
            // Held while this agent waits: the running agent ignores a request whose sender has given up.
            let _next = host.state_lock(&state_dir.join(NEXT))?;
            let other = host.process(known.pid).ok().filter(|one| one.start_ticks == known.start_ticks);
            if let Some(other) = other {
                host.signal(&other, Signal::USR2)?;
            }
            let deadline = Instant::now() + HAND_OVER_PATIENCE;
            loop {
                if let Some(lock) = host.state_lock(&path)? {
                    break lock;
                }
                if Instant::now() > deadline {
                    return Err(AgentError::new(format!(
                        "the running agent (process {}) did not exit within {} s; stop it, and start this agent again",
                        known.pid,
                        HAND_OVER_PATIENCE.as_secs()
                    )));
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    };
    let own = host.process(std::process::id())?;
    record(host, state_dir, &own)?;
    Ok(lock)
}

/// Takes the lock of the only instance of commensal that may manage this kernel's cgroups; waits for a holder that is
/// exiting. Returns `None` and prints a message if a process without rights to cgroups holds the lock.
pub(super) fn be_master(host: &mut dyn Host, instance: &Instance) -> Result<Option<Lock>, AgentError> {
    let deadline = Instant::now() + MASTER_PATIENCE;
    loop {
        match instance.be_master(host)? {
            Mastery::Ours(lock) => return Ok(Some(lock)),
            Mastery::Squatted(pid) => {
                eprintln!(
                    "commensal: ignoring the lock of this machine's cgroups, because its holder, process {pid} of another user, has no rights to the cgroups"
                );
                return Ok(None);
            }
            Mastery::Others(master) if Instant::now() > deadline => {
                let who = master.map(|master| format!(": {master}")).unwrap_or_default();
                return Err(AgentError::new(format!(
                    "another commensal manages the cgroups of this machine{who}\n  try: stop it, or use its state directory; or, \
                     if their groups have no cgroup in common, use --beside-others"
                )));
            }
            Mastery::Others(_) => std::thread::sleep(PAUSE),
        }
    }
}

pub(super) fn machine_lock(host: &mut dyn Host, instance: &Instance) -> Result<Lock, AgentError> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        if let Some(lock) = instance.try_lock(host)? {
            return Ok(lock);
        }
        if Instant::now() > deadline {
            let object = instance.state_dir.join("lock").display().to_string();
            let errno = commensal_core::errno::Errno::EBUSY;
            return Err(HostError { operation: "lock", object, value: None, errno }.into());
        }
        std::thread::sleep(PAUSE);
    }
}

/// Moves the agent out of the delegated cgroup, because the kernel enables controllers only below a cgroup without
/// processes. Called before the guard is started, because the guard inherits the agent's cgroup. Other processes in the
/// delegated cgroup are not an error yet; they are reported when controllers must be enabled.
pub(super) fn make_room(host: &mut dyn Host, instance: &Instance, survey: &Survey) -> Result<(), AgentError> {
    let base = &survey.tenancy.base;
    let unified = survey.hierarchies.iter().find(|one| one.has_v2_controllers());
    let Some(unified) = unified.filter(|_| base.depth() > 0 && survey.tenancy.obstacle.is_none()) else {
        return Ok(());
    };
    let mut journal = instance.journal(host, journal::MACHINE)?;
    match step_out(host, &unified.mount, base, &instance.prefix, &mut journal) {
        Ok(_) | Err(DelegationError::Others { .. }) => Ok(()),
        Err(error) => Err(ReconcileError::from(error).into()),
    }
}
