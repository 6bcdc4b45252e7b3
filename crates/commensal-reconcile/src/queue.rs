//! Admission queues: files and locks in the state directory. Nobody runs them: they work with and without an agent, and a
//! process that was killed leaves its place by dying.
//!
//! ```text
//! queue/etl.lock              held for a moment by whoever enters the line or begins
//! queue/etl/waiting/NUMBER    locked by one that waits; whoever is behind it waits for that lock
//! queue/etl/running/NUMBER    locked by one that runs, and by its command
//! queue/etl/held              the agent keeps the queue closed, until when and why
//!
//! enter ─► Slot                               a slot is free and nobody waits
//!    └───► Ticket ─► behind: wait for the lock of the one before
//!                └─► first:  wait for a slot, as files in running/ go ─► Slot
//! ```
//!
//! A file without a holder is dead: nobody counts it, and the next one who holds the queue's lock removes it. Decided in
//! `docs/decisions/0020-admission.md`; the rules are in `commensal_core::admission`.

mod files;
mod line;
mod wait;

pub use line::Slot;
pub use wait::{Admission, Asked, Event, Inbox, Request, Waits, admit};

use commensal_core::admission::{Hold, Load};
use commensal_core::group::GroupName;
use commensal_core::units::Millis;
use commensal_host::{Host, HostError};
use files::Folder;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

/// One that waits or runs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Job {
    /// The process: the command once it runs, until then `commensal run`. 0 if it cannot be read.
    pub pid: u32,
    /// The command line.
    pub command: String,
    /// When it asked to begin, nanoseconds since the boot.
    pub arrived_ns: u64,
    /// When it was admitted, likewise.
    pub started_ns: Option<u64>,
}

/// A queue now.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QueueView {
    /// Those that run, in the order in which they arrived.
    pub running: Vec<Job>,
    /// Those that wait; the first is the next.
    pub waiting: Vec<Job>,
    /// Why nobody is admitted, if the queue is held closed.
    pub held: Option<Held>,
    /// Nanoseconds since the boot at which this was so.
    pub now_ns: u64,
}

/// A queue that is held closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Why, in words.
    pub reason: String,
    /// When it ends unless it is renewed, nanoseconds from now.
    pub left_ns: u64,
}

/// Why one was not admitted.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// As many wait as may.
    #[error("group {group}: the queue is full: {}; try again later, or raise queue.max-size", figures(.load, *.size))]
    Full {
        /// Whose queue.
        group: GroupName,
        /// Who was there.
        load: Load,
        /// How many may wait.
        size: u32,
    },
    /// It would have to wait, and must not.
    #[error("group {group}: {}; it would have to wait, which --no-wait forbids", state(.load))]
    WouldWait {
        /// Whose queue.
        group: GroupName,
        /// Who was there.
        load: Load,
    },
    /// Its time to wait is over.
    #[error(
        "group {group}: waited {time} in the queue and did not get its turn ({}); try again when less runs, or allow \
         more with queue.timeout or queue.max-concurrency",
        state(.load)
    )]
    TimedOut {
        /// Whose queue.
        group: GroupName,
        /// How long it waited.
        time: Millis,
        /// Who is there now.
        load: Load,
    },
    /// Somebody removed its ticket.
    #[error(
        "group {group}: this job's place in the queue was removed from {folder}, so nothing was started; start it again"
    )]
    Lost {
        /// Whose queue.
        group: GroupName,
        /// The folder.
        folder: String,
    },
    /// Somebody who is stopped has the queue's lock.
    #[error(
        "group {group}: somebody has held the lock of the queue for {seconds} s, perhaps a stopped `commensal run`; \
         continue or end it (fuser {path} names it)"
    )]
    Busy {
        /// Whose queue.
        group: GroupName,
        /// For how long.
        seconds: u64,
        /// The lock.
        path: String,
    },
    /// The files cannot be kept.
    #[error("group {group}: the admission queue in {folder} cannot be kept, so nothing was started")]
    Files {
        /// Whose queue.
        group: GroupName,
        /// The folder.
        folder: String,
        /// What was refused.
        #[source]
        source: HostError,
    },
}

fn figures(load: &Load, size: u32) -> String {
    let held = load.held.as_ref().map(|why| format!(", and it is held closed ({why})")).unwrap_or_default();
    format!("{} run and {} of {size} wait{held}", load.running, load.waiting)
}

/// A load in words, such as `4 run and 2 wait`.
fn state(load: &Load) -> String {
    match &load.held {
        Some(why) => format!("the queue is held closed ({why})"),
        None => format!("{} run and {} wait", load.running, load.waiting),
    }
}

/// Looks at a group's queue: who is alive, and what they say about themselves. Changes nothing. A group that never had a
/// queue has an empty one.
///
/// # Errors
/// When the folder is there and cannot be read.
pub fn read(host: &mut dyn Host, state_dir: &Path, group: &GroupName) -> Result<QueueView, HostError> {
    let folder = Folder::of(state_dir, group);
    let now_ns = files::now_ns(host);
    let held = folder.hold(host)?.and_then(|hold| Some((hold.left(now_ns)?, hold.reason)));
    Ok(QueueView {
        running: folder.jobs(host, &folder.running())?,
        waiting: folder.jobs(host, &folder.waiting())?,
        held: held.map(|(left, reason)| Held { reason, left_ns: files::nanos(left) }),
        now_ns,
    })
}

/// The same in numbers only, for somebody who looks every second: those that wait are not asked whether they live, so a
/// killed one counts until its turn would have come.
///
/// # Errors
/// When the folder is there and cannot be read.
pub fn load(host: &mut dyn Host, state_dir: &Path, group: &GroupName) -> Result<Load, HostError> {
    let folder = Folder::of(state_dir, group);
    let now_ns = files::now_ns(host);
    Ok(Load {
        running: files::count(folder.living(host, &folder.running())?.len()),
        waiting: files::count(folder.numbers(host, &folder.waiting())?.len()),
        held: folder.held(host, now_ns)?,
    })
}

/// Closes a group's queue for `time` from now, at most [`commensal_core::admission::LONGEST_HOLD`]: whoever is not admitted
/// yet waits. To be renewed by whoever wants it to last.
///
/// # Errors
/// When the file cannot be written.
pub fn hold(
    host: &mut dyn Host,
    state_dir: &Path,
    group: &GroupName,
    reason: &str,
    time: Duration,
) -> Result<(), HostError> {
    let folder = Folder::of(state_dir, group);
    let hold = Hold::new(reason, files::now_ns(host), time);
    folder.make(host)?;
    folder.write_hold(host, &hold)
}

/// Opens a group's queue again. One that is not closed stays open.
///
/// # Errors
/// When the file cannot be removed.
pub fn release(host: &mut dyn Host, state_dir: &Path, group: &GroupName) -> Result<(), HostError> {
    host.state_remove(&Folder::of(state_dir, group).held_file())
}
