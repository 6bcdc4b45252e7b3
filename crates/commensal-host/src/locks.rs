//! Locks of state files (`flock(2)`): they belong to one opening of the file, so they last until its last descriptor is
//! closed, in whatever process. Nobody has to clean up after a holder that was killed.

use crate::Result;
#[cfg(feature = "fake")]
use crate::fake::{FakeLockFile, Token};
use crate::open::{Guard, folder_of};
use crate::state::{failed, there};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{AtFlags, OFlags, unlinkat};
use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// An exclusive lock: held until it is released, or until all copies are dropped and every process that got one
/// ([`crate::SpawnSpec::locks`]) has ended.
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

    /// Lets go of it, also for the processes that got it.
    pub fn release(&self) {
        match &self.0 {
            Held::Real(file) => drop(file.unlock()),
            #[cfg(feature = "fake")]
            Held::Fake(token) => token.release(),
        }
    }
}

/// A file whose lock somebody may hold.
#[derive(Debug)]
pub struct LockFile(pub(crate) Lockable);

#[derive(Debug)]
pub(crate) enum Lockable {
    Real(File),
    #[cfg(feature = "fake")]
    Fake(FakeLockFile),
}

impl LockFile {
    /// Whether somebody holds it now.
    #[must_use]
    pub fn is_held(&self) -> bool {
        match &self.0 {
            // Shared, so that those who ask do not see each other.
            Lockable::Real(file) => file.try_lock_shared().map(|()| drop(file.unlock())).is_err(),
            #[cfg(feature = "fake")]
            Lockable::Fake(fake) => fake.is_held(),
        }
    }

    /// Returns when nobody holds it. Blocks the thread; any number may wait.
    pub fn wait(self) -> Result<()> {
        match self.0 {
            Lockable::Real(file) => {
                file.lock_shared().map_err(|e| failed("wait for", Path::new("a lock"), &e))
            }
            #[cfg(feature = "fake")]
            Lockable::Fake(fake) => fake.wait(),
        }
    }

    /// Takes it as soon as it can be had. Blocks the thread; the kernel serves those who wait in the order in which they
    /// came (since 5.0: fs/locks.c, `__locks_insert_block`).
    pub fn lock(self) -> Result<Lock> {
        match self.0 {
            Lockable::Real(file) => match file.lock() {
                Ok(()) => Ok(Lock::real(file)),
                Err(error) => Err(failed("take", Path::new("a lock"), &error)),
            },
            #[cfg(feature = "fake")]
            Lockable::Fake(fake) => Ok(fake.lock()),
        }
    }
}

/// Tells of files that go, are moved in or are let go of by a writer in some folders (`inotify(7)`).
#[derive(Debug)]
pub struct Watch(pub(crate) Option<OwnedFd>);

impl Watch {
    /// Waits for something to happen since the last wait, for `most` at the longest. Gives whether it did.
    #[must_use]
    pub fn wait(&self, most: Duration) -> bool {
        let Some(fd) = &self.0 else {
            std::thread::sleep(most.min(Duration::from_millis(1)));
            return false;
        };
        let timeout = Timespec::try_from(most).ok();
        let happened = poll(&mut [PollFd::new(fd, PollFlags::IN)], timeout.as_ref()) == Ok(1);
        // What it was is for a look at the folder to say.
        while happened && rustix::io::read(fd, &mut [0u8; 4096]).is_ok() {}
        happened
    }
}

/// A holder has its file open for writing and one that only looks has not, so looking wakes nobody.
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
    try_on(folder.open("open", name, OFlags::WRONLY | OFlags::CREATE)?, path)
}

/// Tries to lock what is open.
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
    // Who looks at it between its creation and its lock lets go at once.
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
