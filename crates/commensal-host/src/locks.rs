//! Locks of state files (`flock(2)`). A lock belongs to an open file description, so it lasts until the last descriptor
//! of it is closed, in any process. The kernel releases the lock of a killed holder, so no cleanup is needed.

use crate::error::{Result, failed};
#[cfg(feature = "fake")]
use crate::fake::{FakeLockFile, Token};
use crate::open::{Guard, folder_of};
use crate::state::there;
use commensal_core::errno::Errno;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{AtFlags, OFlags, unlinkat};
use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// An exclusive lock. The lock lasts until it is released, or until all copies are dropped and every process that
/// inherited it ([`crate::SpawnSpec::locks`]) has exited.
#[derive(Debug, Clone)]
pub struct Lock(pub(crate) Held);

#[derive(Debug, Clone)]
pub(crate) enum Held {
    Real(Arc<File>),
    #[cfg(feature = "fake")]
    Fake(Token),
}

impl Lock {
    fn real(file: File) -> Lock {
        Lock(Held::Real(Arc::new(file)))
    }

    /// Releases the lock, also for the processes that inherited it.
    pub fn release(&self) {
        match &self.0 {
            Held::Real(file) => drop(file.unlock()),
            #[cfg(feature = "fake")]
            Held::Fake(token) => token.release(),
        }
    }
}

/// A file whose lock may be held.
#[derive(Debug)]
pub struct LockFile(pub(crate) Lockable);

#[derive(Debug)]
pub(crate) enum Lockable {
    Real(File),
    #[cfg(feature = "fake")]
    Fake(FakeLockFile),
}

impl LockFile {
    /// Whether the lock is held now.
    #[must_use]
    pub fn is_held(&self) -> bool {
        match &self.0 {
            // Takes a shared lock, so that concurrent tests do not block each other.
            Lockable::Real(file) => file.try_lock_shared().map(|()| drop(file.unlock())).is_err(),
            #[cfg(feature = "fake")]
            Lockable::Fake(fake) => fake.is_held(),
        }
    }

    /// Blocks the thread until the lock is free. Any number of threads may wait.
    pub fn wait(self) -> Result<()> {
        match self.0 {
            Lockable::Real(file) => {
                file.lock_shared().map_err(|e| failed("wait for", Path::new("a lock"), &e))
            }
            #[cfg(feature = "fake")]
            Lockable::Fake(fake) => {
                fake.wait();
                Ok(())
            }
        }
    }

    /// Takes the lock as soon as it is free; blocks the thread until then. The kernel gives the lock to waiting
    /// processes in the order of their arrival (since 5.0: fs/locks.c, `__locks_insert_block`).
    pub fn lock(self) -> Result<Lock> {
        match self.0 {
            Lockable::Real(file) => match file.lock() {
                Ok(()) => Ok(Lock::real(file)),
                Err(error) => Err(failed("take", Path::new("a lock"), &error)),
            },
            #[cfg(feature = "fake")]
            Lockable::Fake(fake) => Ok(Lock(Held::Fake(fake.lock()))),
        }
    }
}

/// Reports files in some directories that are removed, moved in or closed by a writer (`inotify(7)`).
#[derive(Debug)]
pub struct Watch(pub(crate) Option<OwnedFd>);

impl Watch {
    /// Waits at most `most` for an event; one that occurred since the last wait counts, too. Returns whether there was
    /// one.
    #[must_use]
    pub fn wait(&self, most: Duration) -> bool {
        let Some(fd) = &self.0 else {
            std::thread::sleep(most.min(Duration::from_millis(1)));
            return false;
        };
        let timeout = Timespec::try_from(most).ok();
        let happened = poll(&mut [PollFd::new(fd, PollFlags::IN)], timeout.as_ref()) == Ok(1);
        // The events are discarded: the caller reads the directory.
        while happened && rustix::io::read(fd, &mut [0u8; 4096]).is_ok() {}
        happened
    }
}

/// Watches directories for lock files that are released, removed or moved in. Holders open their file for writing and
/// tests open it for reading only, so a test causes no event.
pub(crate) fn watch(folders: &[&Path]) -> Result<Watch> {
    let wanted = WatchFlags::CLOSE_WRITE | WatchFlags::DELETE | WatchFlags::MOVED_TO;
    let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
        .map_err(|errno| failed("watch", Path::new("state files"), &errno.into()))?;
    for folder in folders {
        inotify::add_watch(&fd, *folder, wanted).map_err(|errno| failed("watch", folder, &errno.into()))?;
    }
    Ok(Watch(Some(fd)))
}

pub(crate) fn try_lock(path: &Path, guard: Option<Guard<'_>>) -> Result<Option<Lock>> {
    let (folder, name) = folder_of(path, guard)?;
    let file = match folder.open("open", name, OFlags::WRONLY | OFlags::CREATE) {
        // A lock requires no write access. On a read-only file system, this opens the lock file for reading or, if it
        // does not exist, locks the directory instead.
        Err(error) if error.errno == Errno::EROFS => {
            match there(folder.open("open", name, OFlags::RDONLY))? {
                Some(file) => file,
                None => folder.itself()?,
            }
        }
        opened => opened?,
    };
    try_on(file, path)
}

/// Tries to lock an open file.
pub(crate) fn try_on(file: File, path: &Path) -> Result<Option<Lock>> {
    match file.try_lock() {
        Ok(()) => Ok(Some(Lock::real(file))),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(failed("lock", path, &error)),
    }
}

pub(crate) fn new(path: &Path, text: &str, guard: Option<Guard<'_>>) -> Result<Lock> {
    let (folder, name) = folder_of(path, guard)?;
    let mut file = folder.open("create", name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
    // A process that tests the lock between creation and locking releases it immediately.
    file.lock().and_then(|()| file.write_all(text.as_bytes())).map_err(|error| {
        let _ = unlinkat(folder.fd(), name, AtFlags::empty());
        failed("write", path, &error)
    })?;
    Ok(Lock::real(file))
}

pub(crate) fn find(path: &Path, guard: Option<Guard<'_>>) -> Result<Option<LockFile>> {
    let opened = folder_of(path, guard).and_then(|(folder, name)| folder.open("open", name, OFlags::RDONLY));
    Ok(there(opened)?.map(|file| LockFile(Lockable::Real(file))))
}
