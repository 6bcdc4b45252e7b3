//! Waiting for one's turn. Nobody polls: one behind another sleeps in the kernel until that one's lock is free, the first
//! sleeps until a file of the queue is let go of. Threads do the sleeping, so that signals and time-outs are heard.

use super::files;
use super::line::{Entered, Line, Slot, Ticket, enter};
use super::{Job, QueueError};
use commensal_core::admission::{Load, longest_wait};
use commensal_core::group::{GroupName, Queue};
use commensal_core::units::Millis;
use commensal_host::{Host, HostError, Lock, LockFile, Watch};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

/// How long somebody may hold the queue's lock, which takes a millisecond.
const MUTEX_PATIENCE: Duration = Duration::from_secs(10);

/// Between looks of the first in line when nothing is heard: limits may have changed, and there are file systems that do
/// not tell.
const LOOK: Duration = Duration::from_secs(1);

/// After something was heard: the kernel tells of a closed file just before it lets go of its lock.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Looks without having heard anything, where nothing can be heard (no more watches for this user).
const LOOK_DEAF: Duration = Duration::from_millis(200);

/// What somebody who waits can hear.
#[derive(Debug)]
pub enum Event {
    /// A signal to this process, by number.
    Signal(i32),
    /// The queue's lock.
    Locked(Result<Lock, HostError>),
    /// The one before is gone, or cannot be waited for.
    Free(Result<(), HostError>),
    /// Something happened among the files, or nothing did for a while.
    Changed(Watch, bool),
}

/// Where events arrive.
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
    /// For whoever has something to say, such as a thread that receives signals.
    #[must_use]
    pub fn sender(&self) -> Sender<Event> {
        self.sender.clone()
    }

    /// The next signal; blocks. Everything else is of a wait that is over.
    #[must_use]
    pub fn signal(&self) -> i32 {
        loop {
            // A sender is here: the channel never closes.
            if let Ok(Event::Signal(signal)) = self.events.recv() {
                return signal;
            }
        }
    }
}

/// Who wants to begin, and how.
#[derive(Debug)]
pub struct Request<'a> {
    /// The state directory.
    pub state_dir: &'a Path,
    /// Whose queue.
    pub group: &'a GroupName,
    /// Its limits.
    pub queue: Queue,
    /// Who.
    pub job: Job,
    /// To wait less than the group allows.
    pub at_most: Option<Millis>,
    /// Not to wait at all.
    pub no_wait: bool,
}

/// Asked of the caller while it waits.
pub struct Asked<'a> {
    /// Called once, when it turns out that there is a wait.
    pub told: &'a mut dyn FnMut(&Waits),
    /// The limits as they are now, for the first in line: at most once a second. `None` when there is no queue any more.
    pub limits: &'a mut dyn FnMut() -> Option<Queue>,
}

impl std::fmt::Debug for Asked<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Asked")
    }
}

/// What somebody who has to wait is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waits {
    /// Place in the line, from 1.
    pub place: usize,
    /// What was there.
    pub load: Load,
    /// How long it waits at most.
    pub at_most: Option<Millis>,
}

/// How a wait ended.
#[derive(Debug)]
pub enum Admission {
    /// It may begin.
    Admitted(Slot),
    /// A signal ended it; no ticket is left.
    Signalled(i32),
}

/// Why a wait stopped.
enum Stop {
    Signal(i32),
    Late,
    Error(QueueError),
}

impl From<QueueError> for Stop {
    fn from(error: QueueError) -> Stop {
        Stop::Error(error)
    }
}

/// SIGHUP, SIGINT, SIGQUIT and SIGTERM end a wait. Others are for the command, which there is none yet.
fn ends(signal: i32) -> bool {
    matches!(signal, 1 | 2 | 3 | 15)
}

/// Waits for leave to begin: first come, first served. However it ends, nothing is left in the line.
///
/// # Errors
/// [`QueueError`]: full, timed out, would have to wait; the line was removed, or its files cannot be kept.
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
        Err(Stop::Signal(signal)) => Ok(Admission::Signalled(signal)),
        Err(Stop::Late) => Err(wait.late()),
        Err(Stop::Error(error)) => Err(error),
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
    fn turn(&mut self, asked: &mut Asked<'_>) -> Result<Slot, Stop> {
        let request = self.request;
        let Request { state_dir, group, queue, job, .. } = request;
        self.line.folder.make(self.host).map_err(|error| self.line.files(error))?;
        let mutex = self.mutex()?;
        // Not to wait is to find no room where one would wait.
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
        let stopped = match ticket.place(self.host) {
            Ok(place) => {
                (asked.told)(&Waits { place, load, at_most });
                self.behind(&ticket).and_then(|()| self.first(&mut ticket, asked))
            }
            Err(error) => Err(error.into()),
        };
        if stopped.is_err() {
            ticket.leave(self.host);
        }
        stopped
    }

    /// Until this is the first in line.
    fn behind(&mut self, ticket: &Ticket) -> Result<(), Stop> {
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

    /// Until a slot is free.
    fn first(&mut self, ticket: &mut Ticket, asked: &mut Asked<'_>) -> Result<Slot, Stop> {
        // Watched before looking: nothing is missed in between.
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
                    self.hear(Some(LOOK_DEAF))?;
                }
            }
        }
    }

    /// Until the thread that watches has something to say.
    fn changed(&mut self) -> Result<(Option<Watch>, bool), Stop> {
        loop {
            if let Some(Event::Changed(watch, happened)) = self.hear(None)? {
                return Ok((Some(watch), happened));
            }
        }
    }

    /// The queue's lock, which others hold for a moment only.
    fn mutex(&mut self) -> Result<Lock, Stop> {
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

    /// The next event, or nothing within `most`. Stops at a signal that ends the wait, and when its time is over.
    fn hear(&self, most: Option<Duration>) -> Result<Option<Event>, Stop> {
        let now_ns = files::now_ns(self.host);
        let left = self.deadline_ns.map(|deadline| Duration::from_nanos(deadline.saturating_sub(now_ns)));
        let Some(patience) = most.into_iter().chain(left).min() else {
            // Without an end; a sender is here, so the channel never closes.
            return self.sorted(self.inbox.events.recv().ok());
        };
        match self.inbox.events.recv_timeout(patience) {
            Ok(event) => self.sorted(Some(event)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            // The host's clock says when the time is over, not how long this slept.
            Err(RecvTimeoutError::Timeout)
                if self.deadline_ns.is_some_and(|deadline| deadline <= files::now_ns(self.host)) =>
            {
                Err(Stop::Late)
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
        }
    }

    fn sorted(&self, event: Option<Event>) -> Result<Option<Event>, Stop> {
        match event {
            Some(Event::Signal(signal)) if ends(signal) => Err(Stop::Signal(signal)),
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
