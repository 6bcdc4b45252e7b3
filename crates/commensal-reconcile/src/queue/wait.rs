//! Waits for a job's turn without polling: a job sleeps in the kernel until the lock of the job ahead is free; the
//! first job sleeps until a file of the queue is released. Separate threads do the sleeping, so that this thread can
//! handle signals and timeouts.

use super::files;
use super::line::{Entered, Line, Slot, Ticket, enter};
use super::{Job, QueueError};
use commensal_core::admission::{Load, longest_wait};
use commensal_core::group::{GroupName, Queue};
use commensal_core::units::Millis;
use commensal_host::{Host, HostError, Lock, LockFile, Watch};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// Maximum time for which another process may hold the queue's lock; normally it is a millisecond.
const MUTEX_PATIENCE: Duration = Duration::from_secs(10);

/// Interval at which the first job checks the queue without an event: limits may have changed, and some file systems
/// report no events.
const LOOK: Duration = Duration::from_secs(1);

/// Delay before a second check after an event: the kernel reports that a file was closed just before it releases the
/// file's lock.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Maximum interval at which the queue is checked if the kernel refuses a file watch (this user has too many watches).
const LOOK_DEAF: Duration = Duration::from_millis(200);

/// Events for a waiting job.
#[derive(Debug)]
pub enum Event {
    /// A signal to this process, by number.
    Signal(i32),
    /// The queue's lock was taken, or could not be taken.
    Locked(Result<Lock, HostError>),
    /// The job ahead has left the queue, or waiting for its lock failed.
    Free(Result<(), HostError>),
    /// The queue's files have changed (true), or the timeout of the watch has elapsed (false).
    Changed(Watch, bool),
}

/// Channel on which a waiting job receives events.
#[derive(Debug)]
pub struct Inbox {
    sender: Sender<Event>,
    events: Receiver<Event>,
}

impl Default for Inbox {
    fn default() -> Inbox {
        let (sender, events) = mpsc::channel();
        Inbox { sender, events }
    }
}

impl Inbox {
    /// Returns a sender for event sources, such as a thread that receives signals.
    #[must_use]
    pub fn sender(&self) -> Sender<Event> {
        self.sender.clone()
    }

    /// Blocks until the next signal. Other events belong to an earlier wait and are ignored.
    #[must_use]
    pub fn signal(&self) -> i32 {
        loop {
            // This struct holds a sender, so the channel never closes.
            if let Ok(Event::Signal(signal)) = self.events.recv() {
                return signal;
            }
        }
    }
}

impl Inbox {
    /// Like [`Inbox::signal`], but returns `None` if no signal has arrived within `time`.
    #[must_use]
    pub fn signal_within(&self, time: Duration) -> Option<i32> {
        let until = Instant::now() + time;
        loop {
            match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Event::Signal(signal)) => return Some(signal),
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    }
}

/// A request for admission.
#[derive(Debug)]
pub struct Request<'a> {
    /// The state directory.
    pub state_dir: &'a Path,
    /// Group of the queue.
    pub group: &'a GroupName,
    /// Limits of the queue.
    pub queue: Queue,
    /// The job.
    pub job: Job,
    /// Timeout of the request. It applies only if it is shorter than the group's.
    pub at_most: Option<Millis>,
    /// Whether to fail instead of waiting.
    pub no_wait: bool,
}

/// Callbacks during the wait.
pub struct Asked<'a> {
    /// Called once, if the job has to wait.
    pub told: &'a mut dyn FnMut(&Waits),
    /// Returns the current limits of the queue, or `None` if the group no longer has a queue. Called for the first job
    /// only, at most once a second.
    pub limits: &'a mut dyn FnMut() -> Option<Queue>,
}

impl std::fmt::Debug for Asked<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Asked")
    }
}

/// Information about a wait that begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waits {
    /// Position in the queue, from 1. A killed job ahead counts until its file is removed.
    pub place: usize,
    /// Numbers of running and waiting jobs.
    pub load: Load,
    /// Timeout of the wait.
    pub at_most: Option<Millis>,
}

/// Result of a wait.
#[derive(Debug)]
pub enum Admission {
    /// The job may start.
    Admitted(Slot),
    /// A signal ended the wait; no ticket is left.
    Signalled(i32),
}

/// Why a wait stopped.
enum WaitEnd {
    Signal(i32),
    Late,
    Error(QueueError),
}

impl From<QueueError> for WaitEnd {
    fn from(error: QueueError) -> WaitEnd {
        WaitEnd::Error(error)
    }
}

/// Whether the signal ends a wait: SIGHUP, SIGINT, SIGQUIT and SIGTERM do. Other signals are for the command, which has
/// not started yet.
fn ends(signal: i32) -> bool {
    matches!(signal, 1 | 2 | 3 | 15)
}

/// Waits for admission, first come, first served. When it returns, no ticket is left in the queue.
///
/// # Errors
/// Returns a [`QueueError`]: the queue is full, the wait timed out, waiting is not allowed, the ticket was removed, or
/// the files cannot be used.
pub fn admit(
    host: &mut dyn Host,
    request: &Request<'_>,
    inbox: &Inbox,
    asked: &mut Asked<'_>,
) -> Result<Admission, QueueError> {
    let line = Line::of(request.state_dir, request.group);
    let mut wait = Wait { host, line, request, inbox, deadline_ns: None };
    match wait.turn(asked) {
        Ok(slot) => Ok(Admission::Admitted(slot)),
        Err(WaitEnd::Signal(signal)) => Ok(Admission::Signalled(signal)),
        Err(WaitEnd::Late) => Err(wait.late()),
        Err(WaitEnd::Error(error)) => Err(error),
    }
}

struct Wait<'a> {
    host: &'a mut dyn Host,
    line: Line,
    request: &'a Request<'a>,
    inbox: &'a Inbox,
    deadline_ns: Option<u64>,
}

impl Wait<'_> {
    fn turn(&mut self, asked: &mut Asked<'_>) -> Result<Slot, WaitEnd> {
        let request = self.request;
        let Request { state_dir, group, queue, job, .. } = request;
        self.line.folder.make(self.host).map_err(|error| self.line.files(error))?;
        let mutex = self.mutex()?;
        // With `no_wait` the queue has size 0, so a job that would have to wait is refused.
        let limits = if self.request.no_wait { Queue { max_size: 0, ..*queue } } else { *queue };
        let entered = enter(self.host, state_dir, group, &limits, job, &mutex);
        mutex.release();
        let (mut ticket, load) = match entered {
            Ok(Entered::Begins(slot)) => return Ok(slot),
            Ok(Entered::Waits(ticket, load)) => (ticket, load),
            Err(QueueError::Full { group, load, .. }) if self.request.no_wait => {
                return Err(QueueError::WouldWait { group, load }.into());
            }
            Err(error) => return Err(error.into()),
        };
        let at_most = longest_wait(queue, self.request.at_most);
        self.deadline_ns =
            at_most.map(|time| ticket.arrived_ns().saturating_add(time.0.saturating_mul(1_000_000)));
        (asked.told)(&Waits { place: load.waiting as usize + 1, load, at_most });
        let stopped = self.behind(&ticket).and_then(|()| self.first(&mut ticket, asked));
        if stopped.is_err() {
            ticket.leave(self.host);
        }
        stopped
    }

    /// Waits until this job is first.
    fn behind(&mut self, ticket: &Ticket) -> Result<(), WaitEnd> {
        while let Some(before) = ticket.behind(self.host)? {
            let sender = self.inbox.sender();
            std::thread::spawn(move || sender.send(Event::Free(before.wait())));
            loop {
                match self.hear(None)? {
                    Some(Event::Free(gone)) => {
                        gone.map_err(|error| self.line.files(error))?;
                        break;
                    }
                    _ => continue,
                }
            }
        }
        Ok(())
    }

    /// Waits until a slot is free.
    fn first(&mut self, ticket: &mut Ticket, asked: &mut Asked<'_>) -> Result<Slot, WaitEnd> {
        // The watch starts before the check, so that no event is missed in between.
        let folders = [self.line.folder.running(), self.line.folder.path.clone()];
        let mut watch = self.host.state_watch(&[&folders[0], &folders[1]]).ok();
        let mut limits = (asked.limits)();
        let mut read_ns = files::now_ns(self.host);
        let mut pause = LOOK_AGAIN;
        loop {
            if files::now_ns(self.host).saturating_sub(read_ns) >= files::nanos(LOOK) {
                limits = (asked.limits)();
                read_ns = files::now_ns(self.host);
            }
            let none = Queue { max_concurrency: u32::MAX, max_size: u32::MAX, timeout: None };
            let mutex = self.mutex()?;
            let slot = ticket.begin(self.host, &limits.unwrap_or(none), &mutex);
            mutex.release();
            if let Some(slot) = slot? {
                return Ok(slot);
            }
            match watch.take() {
                Some(open) => {
                    let (sender, most) = (self.inbox.sender(), pause);
                    std::thread::spawn(move || {
                        let happened = open.wait(most);
                        sender.send(Event::Changed(open, happened))
                    });
                    let happened;
                    (watch, happened) = self.changed()?;
                    pause = if happened { LOOK_AGAIN } else { (pause * 2).min(LOOK) };
                }
                None => {
                    self.hear(Some(pause))?;
                    pause = (pause * 2).min(LOOK_DEAF);
                }
            }
        }
    }

    /// Waits for the event of the thread that watches the files.
    fn changed(&mut self) -> Result<(Option<Watch>, bool), WaitEnd> {
        loop {
            if let Some(Event::Changed(watch, happened)) = self.hear(None)? {
                return Ok((Some(watch), happened));
            }
        }
    }

    /// Takes the queue's lock, which other processes hold only briefly.
    fn mutex(&mut self) -> Result<Lock, WaitEnd> {
        let path = self.line.folder.mutex();
        let lock = self.host.state_lock(&path).map_err(|error| self.line.files(error))?;
        if let Some(lock) = lock {
            return Ok(lock);
        }
        let found = self.host.state_lock_file(&path).map_err(|error| self.line.files(error))?;
        let Some(file) = found else { return self.mutex() };
        let sender = self.inbox.sender();
        std::thread::spawn(move || sender.send(Event::Locked(LockFile::lock(file))));
        let until = self.host.boot_time() + MUTEX_PATIENCE;
        loop {
            let left = until.saturating_sub(self.host.boot_time());
            match self.hear(Some(left))? {
                Some(Event::Locked(lock)) => return Ok(lock.map_err(|error| self.line.files(error))?),
                None if left.is_zero() => {
                    let (group, path) = (self.line.group.clone(), path.display().to_string());
                    return Err(QueueError::Busy { group, seconds: MUTEX_PATIENCE.as_secs(), path }.into());
                }
                _ => {}
            }
        }
    }

    /// Returns the next event, or `None` if there is no event within `most`. A timeout, and a signal that ends the
    /// wait, are errors.
    fn hear(&self, most: Option<Duration>) -> Result<Option<Event>, WaitEnd> {
        let now_ns = files::now_ns(self.host);
        let left = self.deadline_ns.map(|deadline| Duration::from_nanos(deadline.saturating_sub(now_ns)));
        let Some(patience) = most.into_iter().chain(left).min() else {
            // There is no timeout. This struct holds a sender, so the channel never closes.
            return self.sorted(self.inbox.events.recv().ok());
        };
        match self.inbox.events.recv_timeout(patience) {
            Ok(event) => self.sorted(Some(event)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            // The host's clock decides about the timeout, not the duration of this sleep.
            Err(RecvTimeoutError::Timeout)
                if self.deadline_ns.is_some_and(|deadline| deadline <= files::now_ns(self.host)) =>
            {
                Err(WaitEnd::Late)
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
        }
    }

    fn sorted(&self, event: Option<Event>) -> Result<Option<Event>, WaitEnd> {
        match event {
            Some(Event::Signal(signal)) if ends(signal) => Err(WaitEnd::Signal(signal)),
            Some(Event::Signal(_)) => Ok(None),
            other => Ok(other),
        }
    }

    fn late(&mut self) -> QueueError {
        let time = longest_wait(&self.request.queue, self.request.at_most).unwrap_or(Millis(0));
        match self.line.load(self.host) {
            Ok(load) => QueueError::TimedOut { group: self.line.group.clone(), time, load },
            Err(error) => error,
        }
    }
}
