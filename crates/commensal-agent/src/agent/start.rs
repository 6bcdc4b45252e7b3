//! What an agent needs before it begins: the lock that makes it the only one, and groups.

use crate::error::AgentError;
use crate::groups_file::{self, Changes, Compiled, Texts};
use crate::snapshot;
use commensal_core::knob::Version;
use commensal_host::{Host, HostError, Lock, Signal};
use commensal_reconcile::{DelegationError, Instance, Mastery, ReconcileError, in_words, journal, step_out};
use commensal_sensors::Survey;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// File of the lock of the agent of a state directory.
pub(super) const LOCK: &str = "agent.lock";
/// File of the lock of an agent that waits for this one to make room.
pub(super) const NEXT: &str = "agent.next";
/// How long the agent waits for the agent that it replaces.
const HAND_OVER_PATIENCE: Duration = Duration::from_secs(10);
/// How long the agent waits for another commensal that is exiting.
const MASTER_PATIENCE: Duration = Duration::from_secs(1);
/// A problem is reported when other processes hold the machine lock for this long.
pub(super) const LOCK_PATIENCE: Duration = Duration::from_secs(10);
/// How often a lock that another process holds is tried.
const PAUSE: Duration = Duration::from_millis(20);

/// The groups in force and their files.
pub(super) struct Groups {
    pub texts: Texts,
    /// Watches the files for changes; without it the next tick sees changes.
    pub changes: Option<Changes>,
    pub compiled: Compiled,
    pub state: snapshot::Config,
    /// When the watch was last looked at, whether it has told of a change, and when the files were last read.
    pub looked: Instant,
    pub written: bool,
    pub read: Option<Instant>,
    /// Texts that were rejected, so that they are not compiled again and again.
    pub refused: Option<Texts>,
    /// Whether `texts` have been saved on disk, for a start with broken groups files.
    pub kept: bool,
}

/// The agent's identity, for its successor.
#[derive(Debug, Serialize, Deserialize)]
struct Card {
    pid: u32,
    start_ticks: u64,
}

/// The agent that manages this state directory now, if there is one, with its PID where known.
///
/// # Errors
/// When the state directory cannot be used.
pub fn running(host: &mut dyn Host, state_dir: &Path) -> Result<Option<Option<u32>>, HostError> {
    let path = state_dir.join(LOCK);
    if host.state_read(&path)?.is_none() || host.state_lock(&path)?.is_some() {
        return Ok(None);
    }
    let text = host.state_read(&state_dir.join("agent.json"))?.unwrap_or_default();
    Ok(Some(serde_json::from_str::<Card>(&text).ok().map(|card| card.pid)))
}

/// Takes the lock that an agent holds while it runs.
pub(super) fn only_one(host: &mut dyn Host, state_dir: &Path, takeover: bool) -> Result<Lock, AgentError> {
    let (path, card) = (state_dir.join(LOCK), state_dir.join("agent.json"));
    let lock = match host.state_lock(&path)? {
        Some(lock) => lock,
        None => {
            let text = host.state_read(&card)?.unwrap_or_default();
            let known: Option<Card> = serde_json::from_str(&text).ok();
            let known = known.filter(|_| takeover);
            let Some(known) = known else {
                let pid = serde_json::from_str::<Card>(&text).ok().map(|card| card.pid);
                return Err(AgentError::new(format!(
                    "an agent keeps the groups of this machine already{}; stop it, or take its place with --takeover",
                    pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
                )));
            };
            // Held as long as this one waits: a request whose sender has given up is not one.
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
                        "the agent that runs (process {}) did not make room within {} s",
                        known.pid,
                        HAND_OVER_PATIENCE.as_secs()
                    )));
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    };
    let own = host.process(std::process::id())?;
    let text =
        commensal_core::text::json(&Card { pid: own.pid, start_ticks: own.start_ticks }).unwrap_or_default();
    host.state_replace(&card, &text)?;
    Ok(lock)
}

/// Takes the lock that one commensal per kernel holds while it runs; `None` when a process without rights to cgroups
/// holds it, which is reported. Waits for a holder that is exiting.
pub(super) fn be_master(host: &mut dyn Host, instance: &Instance) -> Result<Option<Lock>, AgentError> {
    let deadline = Instant::now() + MASTER_PATIENCE;
    loop {
        match instance.be_master(host)? {
            Mastery::Ours(lock) => return Ok(Some(lock)),
            Mastery::Squatted(pid) => {
                eprintln!(
                    "commensal: process {pid} of another user holds the lock of this machine's cgroups, which means nothing: going on"
                );
                return Ok(None);
            }
            Mastery::Others(master) if Instant::now() > deadline => {
                let who = master.map(|master| format!(": {master}")).unwrap_or_default();
                return Err(AgentError::new(format!(
                    "another commensal keeps the cgroups of this machine{who}\n  try: stop it, or use its state directory; or, \
                     if their groups have nothing in common, --beside-others"
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

/// Moves the agent out of the delegated group. A guard that it starts is in the same group, and the kernel enables
/// controllers only below a group without processes. Other processes in the group are reported when that matters.
pub(super) fn make_room(host: &mut dyn Host, instance: &Instance, survey: &Survey) -> Result<(), AgentError> {
    let base = &survey.tenancy.base;
    let unified = survey.hierarchies.iter().find(|one| one.version == Version::V2);
    let Some(unified) = unified.filter(|_| base.depth() > 0 && survey.tenancy.obstacle.is_none()) else {
        return Ok(());
    };
    let mut journal = instance.journal(host, journal::MACHINE)?;
    match step_out(host, &unified.mount, base, &instance.prefix, &mut journal) {
        Ok(_) | Err(DelegationError::Others { .. }) => Ok(()),
        Err(error) => Err(ReconcileError::from(error).into()),
    }
}

/// File in which the groups in force are saved, for a start with broken groups files.
pub(super) fn last_good(state_dir: &Path) -> PathBuf {
    state_dir.join("agent-groups.json")
}

/// The groups to begin with: those of the configuration, or if it is invalid the last valid ones.
pub(super) fn first_groups(
    host: &mut dyn Host,
    state_dir: &Path,
    config: &Path,
) -> Result<Groups, AgentError> {
    let loaded = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let mut state =
        snapshot::Config { path: config.display().to_string(), generation: 1, loaded, error: None };
    // Watch before reading, so that no later change is missed.
    let (changes, looked) = (Changes::of(host, config), Instant::now());
    let read = groups_file::texts(host, config).and_then(|texts| Ok((groups_file::compile(&texts)?, texts)));
    match read {
        Ok((compiled, texts)) => Ok(Groups {
            texts,
            changes,
            compiled,
            state,
            refused: None,
            kept: false,
            looked,
            written: false,
            read: Some(looked),
        }),
        Err(error) => {
            let kept = host.state_read(&last_good(state_dir))?.unwrap_or_default();
            let Ok(texts) = serde_json::from_str::<Texts>(&kept) else { return Err(error.into()) };
            let compiled = groups_file::compile(&texts)?;
            let error = in_words(&error);
            state.error = Some(format!("{error}\nthe groups that were in force last are kept"));
            Ok(Groups {
                texts,
                changes,
                compiled,
                state,
                refused: None,
                kept: true,
                looked,
                written: false,
                read: None,
            })
        }
    }
}
