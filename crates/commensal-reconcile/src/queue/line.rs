//! The order of a queue: entering, finding the job ahead, starting, leaving. Nothing here blocks.

use super::files::{self, Folder};
use super::{Job, QueueError};
use commensal_core::admission::{Arrival, Load, Number, arrive, turn};
use commensal_core::group::{GroupName, Queue};
use commensal_host::{Host, HostError, Lock, LockFile};
use std::path::{Path, PathBuf};

/// Result of entering the queue.
#[derive(Debug)]
pub(super) enum Entered {
    /// The job may start.
    Begins(Slot),
    /// The job waits. The load does not include the job.
    Waits(Ticket, Load),
}

/// A job's place in the queue. Dropping the ticket gives up the place; [`Ticket::leave`] also removes its file.
#[derive(Debug)]
pub(super) struct Ticket {
    line: Line,
    number: Number,
    job: Job,
    lock: Lock,
}

/// The permission of an admitted job to run. It ends with [`Slot::leave`], or when this process and all processes that
/// inherited [`Slot::lock`] have exited.
#[derive(Debug)]
pub struct Slot {
    path: PathBuf,
    lock: Lock,
    job: Job,
}

/// A group's queue. All code in this module accesses the queue's files through this type.
#[derive(Debug, Clone)]
pub(super) struct Line {
    pub(super) group: GroupName,
    pub(super) folder: Folder,
}

impl Line {
    pub(super) fn of(state_dir: &Path, group: &GroupName) -> Line {
        Line { group: group.clone(), folder: Folder::of(state_dir, group) }
    }

    pub(super) fn files(&self, source: HostError) -> QueueError {
        let folder = self.folder.path.display().to_string();
        QueueError::Files { group: self.group.clone(), folder, source }
    }

    /// Returns the current load; checks whether each job is alive.
    pub(super) fn load(&self, host: &mut dyn Host) -> Result<Load, QueueError> {
        let now_ns = files::now_ns(host);
        let count = |folder: &Path| self.folder.living(host, folder).map(|living| files::count(living.len()));
        let (running, waiting) = (count(&self.folder.running()), count(&self.folder.waiting()));
        let held = self.folder.held(host, now_ns);
        let load = || Ok(Load { running: running?, waiting: waiting?, held: held? });
        load().map_err(|error| self.files(error))
    }

    /// Removes files of dead jobs from a directory until it has found `until` live jobs; returns the number of live
    /// jobs found. The caller holds the queue's lock, so no other process creates or removes files.
    fn sweep(&self, host: &mut dyn Host, folder: &Path, until: usize) -> Result<u32, HostError> {
        let mut living = 0;
        for number in self.folder.numbers(host, folder)? {
            if living >= until {
                break;
            }
            if files::is_alive(host, folder, number)? {
                living += 1;
            } else {
                // Removal may fail if another user owns the directory or the file system is read-only. The file then
                // stays, but still counts as dead.
                let _ = host.state_remove(&folder.join(number.to_string()));
            }
        }
        Ok(files::count(living))
    }

    /// Creates a slot. The caller holds the queue's lock.
    fn begin(&self, host: &mut dyn Host, number: Number, job: &Job) -> Result<Slot, QueueError> {
        let job = Job { started_ns: Some(files::now_ns(host)), ..job.clone() };
        let path = self.folder.running().join(number.to_string());
        let lock = host.state_lock_new(&path, &job.text()).map_err(|error| self.files(error))?;
        Ok(Slot { path, lock, job })
    }
}

/// Enters a group's queue. `_mutex` is the queue's lock ([`Folder::mutex`]), taken after the queue's directories were
/// created.
///
/// # Errors
/// Returns an error when the queue is full, or the files cannot be written; then no file is left.
pub(super) fn enter(
    host: &mut dyn Host,
    state_dir: &Path,
    group: &GroupName,
    queue: &Queue,
    job: &Job,
    _mutex: &Lock,
) -> Result<Entered, QueueError> {
    let line = Line::of(state_dir, group);
    let (waiting, running) = (line.folder.waiting(), line.folder.running());
    let arrived_ns = files::now_ns(host);
    let mut look = || {
        let files = line.folder.numbers(host, &waiting)?.len();
        // Usually it is enough to know whether any job waits; the exact number is needed only near the limit.
        let exactly = files >= queue.max_size as usize;
        let living = line.sweep(host, &waiting, if exactly { usize::MAX } else { 1 })?;
        let mut taken = line.folder.numbers(host, &waiting)?;
        let load = Load {
            running: line.sweep(host, &running, usize::MAX)?,
            waiting: if exactly || living == 0 { living } else { files::count(taken.len()) },
            held: line.folder.held(host, arrived_ns)?,
        };
        taken.extend(line.folder.numbers(host, &running)?);
        Ok((load, Number::next(taken, arrived_ns)))
    };
    let (load, number) = look().map_err(|error| line.files(error))?;
    let job = Job { arrived_ns, started_ns: None, ..job.clone() };
    match arrive(queue, &load) {
        Arrival::Begin => line.begin(host, number, &job).map(Entered::Begins),
        Arrival::Full => Err(QueueError::Full { group: group.clone(), load, size: queue.max_size }),
        Arrival::Wait => {
            let path = waiting.join(number.to_string());
            let lock = host.state_lock_new(&path, &job.text()).map_err(|error| line.files(error))?;
            Ok(Entered::Waits(Ticket { line, number, job, lock }, load))
        }
    }
}

impl Ticket {
    fn path(&self) -> PathBuf {
        self.line.folder.waiting().join(self.number.to_string())
    }

    /// Returns the numbers of the jobs ahead of this one, nearest first; some may be dead.
    fn before(&self, host: &dyn Host) -> Result<Vec<Number>, QueueError> {
        let folder = self.line.folder.waiting();
        let mut numbers = self.line.folder.numbers(host, &folder).map_err(|error| self.line.files(error))?;
        let at = numbers.binary_search(&self.number).map_err(|_| self.lost())?;
        numbers.truncate(at);
        numbers.reverse();
        Ok(numbers)
    }

    fn lost(&self) -> QueueError {
        let folder = self.line.folder.waiting().display().to_string();
        QueueError::Lost { group: self.line.group.clone(), folder }
    }

    /// Returns the lock to wait for: that of the nearest live job ahead; `None` if this job is first. A first job stays
    /// first, because numbers only grow.
    ///
    /// # Errors
    /// Returns an error when the ticket was removed, or the files cannot be read.
    pub(super) fn behind(&self, host: &dyn Host) -> Result<Option<LockFile>, QueueError> {
        let folder = self.line.folder.waiting();
        for number in self.before(host)? {
            let found = files::ticket(host, &folder, number);
            let found = found.map_err(|error| self.line.files(error))?;
            if let Some(file) = found.filter(LockFile::is_held) {
                return Ok(Some(file));
            }
        }
        Ok(None)
    }

    /// Turns the ticket into a slot, if the job is first and a slot is free; otherwise returns `None`. `_mutex` is the
    /// queue's lock.
    ///
    /// # Errors
    /// Returns the same errors as [`Ticket::behind`], and when the slot's file cannot be created; the ticket stays.
    pub(super) fn begin(
        &mut self,
        host: &mut dyn Host,
        queue: &Queue,
        _mutex: &Lock,
    ) -> Result<Option<Slot>, QueueError> {
        if self.behind(host)?.is_some() {
            return Ok(None);
        }
        let line = self.line.clone();
        let now_ns = files::now_ns(host);
        let mut look = || {
            let running = line.sweep(host, &line.folder.running(), usize::MAX)?;
            // Stops at this job, which is alive: only dead files ahead of it are removed.
            line.sweep(host, &line.folder.waiting(), 1)?;
            Ok(Load { running, waiting: 1, held: line.folder.held(host, now_ns)? })
        };
        let load = look().map_err(|error| line.files(error))?;
        if !turn(queue, &load) {
            return Ok(None);
        }
        let slot = line.begin(host, self.number, &self.job)?;
        self.give_up(host);
        Ok(Some(slot))
    }

    /// Returns the time of arrival, in nanoseconds since boot.
    pub(super) fn arrived_ns(&self) -> u64 {
        self.job.arrived_ns
    }

    /// Gives up the place in the queue.
    pub(super) fn leave(self, host: &mut dyn Host) {
        self.give_up(host);
    }

    /// Removes the file and then releases the lock, so that the file never exists without a lock holder.
    fn give_up(&self, host: &mut dyn Host) {
        let _ = host.state_remove(&self.path());
        self.lock.release();
    }
}

impl Slot {
    /// Returns the lock that marks the slot as taken. The command should inherit this lock
    /// ([`commensal_host::SpawnSpec::locks`]), so that the slot stays taken if this process is killed but the command
    /// is not.
    #[must_use]
    pub fn lock(&self) -> Lock {
        self.lock.clone()
    }

    /// Returns the time of arrival, in nanoseconds since boot; unique within a group.
    #[must_use]
    pub fn arrived_ns(&self) -> u64 {
        self.job.arrived_ns
    }

    /// Returns the time of admission, in nanoseconds since boot; unique within a group.
    #[must_use]
    pub fn started_ns(&self) -> u64 {
        self.job.started_ns.unwrap_or_default()
    }

    /// Records the command's PID, for status displays. A failure is ignored: it is not worth stopping the command.
    pub fn runs(&self, host: &mut dyn Host, pid: u32) {
        let job = Job { pid, ..self.job.clone() };
        let _ = host.state_append(&self.path, &job.text());
    }

    /// Frees the slot when the command has exited, even if processes that it started still run in the background.
    pub fn leave(self, host: &mut dyn Host) {
        let _ = host.state_remove(&self.path);
        self.lock.release();
    }
}
