//! Admission queues, made of files and locks in the state directory. There is no queue server: the queues work with and
//! without an agent, and a killed process leaves its place because its locks are released.
//!
//! ```text
//! queue/etl.lock              held briefly by a process that enters the queue or starts its job
//! queue/etl/waiting/NUMBER    locked by a waiting job; the next job in the queue waits for that lock
//! queue/etl/running/NUMBER    locked by a running job, and by its command
//! queue/etl/held              exists while the agent keeps the queue closed: until when, and why
//!
//! enter ─► Slot                               a slot is free and no job waits
//!    └───► Ticket ─► behind: wait for the lock of the job ahead
//!                └─► first:  wait until a file in running/ is removed ─► Slot
//! ```
//!
//! A file whose lock no process holds is dead: it is not counted, and the next process that holds the queue's lock
//! removes it. `docs/decisions/0020-admission.md` explains the design; the rules are in `commensal_core::admission`.

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

/// A job that waits or runs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Job {
    /// PID of the command once it runs, before that the PID of `commensal run`. 0 if it cannot be read.
    pub pid: u32,
    /// The command line.
    pub command: String,
    /// Time of arrival, in nanoseconds since boot.
    pub arrived_ns: u64,
    /// Time of admission, in nanoseconds since boot.
    pub started_ns: Option<u64>,
}

/// The state of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QueueView {
    /// Running jobs, in the order of their arrival.
    pub running: Vec<Job>,
    /// Waiting jobs; the first is the next to run.
    pub waiting: Vec<Job>,
    /// Why no job is admitted, if the queue is held closed.
    pub held: Option<Held>,
    /// Time of this state, in nanoseconds since boot.
    pub now_ns: u64,
}

/// A queue that is held closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The reason, as readable text.
    pub reason: String,
    /// Time in nanoseconds until the hold expires, unless it is renewed.
    pub left_ns: u64,
}

/// Why a job was not admitted.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The maximum number of jobs is waiting.
    #[error("group {group}: the queue is full: {}; try again later, or raise queue.max-size", figures(.load, *.size))]
    Full {
        /// Group of the queue.
        group: GroupName,
        /// Numbers of running and waiting jobs.
        load: Load,
        /// Maximum number of waiting jobs.
        size: u32,
    },
    /// The job would have to wait, but the caller does not allow waiting.
    #[error("group {group}: {}; it would have to wait, which --no-wait forbids", state(.load))]
    WouldWait {
        /// Group of the queue.
        group: GroupName,
        /// Numbers of running and waiting jobs.
        load: Load,
    },
    /// The wait timed out.
    #[error(
        "group {group}: waited {time} in the queue and was not admitted ({}); try again when fewer commands run, or raise queue.timeout or queue.max-concurrency",
        state(.load)
    )]
    TimedOut {
        /// Group of the queue.
        group: GroupName,
        /// How long the job has waited.
        time: Millis,
        /// Current load of the queue.
        load: Load,
    },
    /// The job's ticket was removed.
    #[error(
        "group {group}: this job's place in the queue was removed from {folder}, so nothing was started; start it again"
    )]
    Lost {
        /// Group of the queue.
        group: GroupName,
        /// The directory.
        folder: String,
    },
    /// Another process, perhaps a stopped one, has held the queue's lock for too long.
    #[error(
        "group {group}: another process has held the lock of the queue for {seconds} s, perhaps a stopped `commensal run`; \
         continue or end it (fuser {path} names it)"
    )]
    Busy {
        /// Group of the queue.
        group: GroupName,
        /// How long the lock was held.
        seconds: u64,
        /// Path of the lock.
        path: String,
    },
    /// The queue's files cannot be read or written.
    #[error("group {group}: the admission queue in {folder} cannot be used, so nothing was started")]
    Files {
        /// Group of the queue.
        group: GroupName,
        /// The directory.
        folder: String,
        /// The error.
        #[source]
        source: HostError,
    },
}

fn figures(load: &Load, size: u32) -> String {
    let held = load.held.as_ref().map(|why| format!(", and it is held closed ({why})")).unwrap_or_default();
    format!("{} run and {} of {size} wait{held}", load.running, load.waiting)
}

/// Formats a load, such as `4 run and 2 wait`.
fn state(load: &Load) -> String {
    match &load.held {
        Some(why) => format!("the queue is held closed ({why})"),
        None => format!("{} run and {} wait", load.running, load.waiting),
    }
}

/// Reads a group's queue: the live jobs and their details. Changes nothing. A queue that does not exist reads as empty.
///
/// # Errors
/// Returns an error when the directory exists but cannot be read.
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

/// Counts the jobs of a group's queue, for callers that poll every second. Does not check whether waiting jobs are
/// alive: a killed job counts until its file is removed.
///
/// # Errors
/// Returns an error when the directory exists but cannot be read.
pub fn load(host: &mut dyn Host, state_dir: &Path, group: &GroupName) -> Result<Load, HostError> {
    let folder = Folder::of(state_dir, group);
    let now_ns = files::now_ns(host);
    Ok(Load {
        running: files::count(folder.living(host, &folder.running())?.len()),
        waiting: files::count(folder.numbers(host, &folder.waiting())?.len()),
        held: folder.held(host, now_ns)?,
    })
}

/// Closes a group's queue for `time` from now, at most [`commensal_core::admission::LONGEST_HOLD`]: jobs that are not
/// admitted yet must wait. To keep the queue closed, the caller must renew the hold.
///
/// # Errors
/// Returns an error when the file cannot be written.
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

/// Reopens a group's queue. Does nothing if the queue is not closed.
///
/// # Errors
/// Returns an error when the file cannot be removed.
pub fn release(host: &mut dyn Host, state_dir: &Path, group: &GroupName) -> Result<(), HostError> {
    host.state_remove(&Folder::of(state_dir, group).held_file())
}
