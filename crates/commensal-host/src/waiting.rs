//! Waits: for events on a local socket, for changes in directories, and for any of several things at once. None is part of
//! [`crate::Host`], whose calls never wait.

use crate::error::{BELIEVE, HostError, Result, fail};
use crate::privileges::{Capability, raised};
use commensal_core::errno::Errno;
use commensal_core::spelling;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{FileType, Mode, OFlags, open};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::io::{ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The shortest wait.
const LEAST: Duration = Duration::from_millis(5);

/// Ends the wait of one thread, from other threads and from handlers of signals.
#[derive(Debug, Clone)]
pub struct Waker {
    /// What the waiting thread polls, and what the others write to.
    ends: Arc<(UnixStream, UnixStream)>,
}

/// What a thread waits for besides its [`Waker`].
#[derive(Debug, Default)]
pub struct Sources<'a> {
    /// Changed directories, and other files that can be read once something has happened.
    pub readable: Vec<BorrowedFd<'a>>,
    /// Triggers of pressure.
    pub triggers: Vec<&'a PressureTrigger>,
}

/// What ended a wait; nothing when its time was over, or the waker did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Woken {
    /// By source: whether it can be read.
    pub readable: Vec<bool>,
    /// By trigger: whether it has fired; `None` for one whose group is gone.
    pub triggers: Vec<Option<bool>>,
}

impl Waker {
    /// A waker that nobody has rung.
    ///
    /// # Errors
    /// `EMFILE` when there are too many open files.
    pub fn new() -> std::io::Result<Waker> {
        let ends = UnixStream::pair()?;
        ends.0.set_nonblocking(true)?;
        ends.1.set_nonblocking(true)?;
        Ok(Waker { ends: Arc::new(ends) })
    }

    /// Ends the wait that is going on, or else the next one.
    pub fn wake(&self) {
        // With a full buffer the waiting thread is awake anyway.
        let _ = (&self.ends.1).write(&[0]);
    }

    /// For handlers of signals, which write a byte to it (`signal_hook::low_level::pipe`).
    ///
    /// # Errors
    /// `EMFILE` when there are too many open files.
    pub fn for_signals(&self) -> std::io::Result<UnixStream> {
        self.ends.1.try_clone()
    }

    /// Waits until it is rung, one of the sources has something, or `patience` is over.
    ///
    /// # Errors
    /// When polling fails.
    pub fn wait(&self, sources: &Sources<'_>, patience: Duration) -> Result<Woken> {
        let mut asked = vec![PollFd::new(&self.ends.0, PollFlags::IN)];
        asked.extend(sources.readable.iter().map(|one| PollFd::new(one, PollFlags::IN)));
        asked.extend(sources.triggers.iter().map(|one| PollFd::new(&one.0, PollFlags::PRI)));
        let timeout = Timespec::try_from(patience).ok();
        match poll(&mut asked, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Woken::default()),
            Err(errno) => return Err(fail("poll", "what ends a wait".to_owned(), None, errno)),
        }
        if !asked[0].revents().is_empty() {
            let mut rung = [0; 64];
            while matches!((&self.ends.0).read(&mut rung), Ok(length) if length == rung.len()) {}
        }
        let (readable, triggers) = asked[1..].split_at(sources.readable.len());
        Ok(Woken {
            readable: readable.iter().map(|one| !one.revents().is_empty()).collect(),
            triggers: triggers.iter().map(PressureTrigger::told).collect(),
        })
    }
}

/// A response over a local (Unix) socket that arrives in parts, for as long as the other side sends.
#[derive(Debug)]
pub struct Stream {
    socket: UnixStream,
    object: String,
}

impl Stream {
    /// Sends `request` to the socket at `path`.
    ///
    /// # Errors
    /// When nothing listens there, or the other side has not received the whole request within `patience`
    /// (`ETIMEDOUT`).
    pub fn open(path: &Path, request: &str, patience: Duration) -> Result<Stream> {
        let object = spelling::of_path(path);
        let end = Instant::now() + patience;
        let socket = connect(path, end).map_err(|errno| refused(&object, &errno.into()))?;
        Stream::say(socket, object, request, end)
    }

    /// As [`Stream::open`], but says nothing unless root or user `euid` listens there, and nothing through a symbolic link.
    pub(crate) fn open_own(path: &Path, request: &str, patience: Duration, euid: u32) -> Result<Stream> {
        let object = spelling::of_path(path);
        let end = Instant::now() + patience;
        let refuse = |errno: rustix::io::Errno| refused(&object, &errno.into());
        let file = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        let file = file.map_err(refuse)?;
        let mode = rustix::fs::fstat(&file).map_err(refuse)?.st_mode;
        let disbelief = |why: String| HostError {
            operation: BELIEVE,
            object: format!("{object}, {why}"),
            value: None,
            errno: Errno::EPERM,
        };
        if FileType::from_raw_mode(mode) == FileType::Symlink {
            return Err(disbelief("which is a symbolic link".to_owned()));
        }
        // What was opened, whatever has its name by now.
        let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
        let socket = connect(Path::new(&opened), end).map_err(refuse)?;
        match crate::peer(&socket) {
            Some((_, user)) if user == 0 || user == euid => Stream::say(socket, object, request, end),
            Some((_, user)) => Err(disbelief(format!("where user {user} listens"))),
            None => Err(disbelief("where nobody knows who listens".to_owned())),
        }
    }

    fn say(mut socket: UnixStream, object: String, request: &str, end: Instant) -> Result<Stream> {
        let refuse = |error: std::io::Error| refused(&object, &error);
        let mut rest = request.as_bytes();
        while !rest.is_empty() {
            let left = end.saturating_duration_since(Instant::now()).max(LEAST);
            socket.set_write_timeout(Some(left)).map_err(refuse)?;
            match socket.write(rest) {
                Ok(length) => rest = &rest[length..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(refuse(error)),
            }
            if !rest.is_empty() && Instant::now() >= end {
                return Err(refuse(ErrorKind::TimedOut.into()));
            }
        }
        Ok(Stream { socket, object })
    }

    /// The data received; `None` after `patience` (more than 0) without data, empty when the other side has closed.
    ///
    /// # Errors
    /// When the connection broke.
    pub fn read(&mut self, patience: Duration) -> Result<Option<Vec<u8>>> {
        let mut chunk = vec![0; 16_384];
        let read = self.socket.set_read_timeout(Some(patience)).and_then(|()| self.socket.read(&mut chunk));
        match read {
            Ok(length) => {
                chunk.truncate(length);
                Ok(Some(chunk))
            }
            Err(error) if is_late(&error) => Ok(None),
            Err(error) => Err(refused(&self.object, &error)),
        }
    }
}

/// Connects before `end`: a blocking connect would wait for ever for a listener whose queue is full
/// (`unix_stream_connect`, net/unix/af_unix.c).
fn connect(path: &Path, end: Instant) -> rustix::io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new(path)?;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => break,
            Err(rustix::io::Errno::AGAIN) if Instant::now() < end => std::thread::sleep(LEAST),
            Err(rustix::io::Errno::AGAIN) => return Err(rustix::io::Errno::TIMEDOUT),
            Err(errno) => return Err(errno),
        }
    }
    let socket = UnixStream::from(socket);
    socket.set_nonblocking(false).map_err(|_| rustix::io::Errno::IO)?;
    Ok(socket)
}

fn is_late(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn refused(object: &str, error: &std::io::Error) -> HostError {
    let number = Errno(error.raw_os_error().unwrap_or(Errno::EIO.0));
    let errno = if is_late(error) { Errno::ETIMEDOUT } else { number };
    HostError { operation: "ask", object: object.to_owned(), value: None, errno }
}

/// Watches directories for subdirectories that are created and removed, or for writes to their files (inotify(7)); it
/// works on cgroup hierarchies of both versions (seen on 6.18). Writes through another cgroup namespace are not
/// reported.
#[derive(Debug)]
pub struct GroupWatch(OwnedFd);

/// The events that a directory is watched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum For {
    /// Subdirectories that are created and removed.
    Folders,
    /// Each write to one of its files.
    Writes,
    /// Files that were written and closed, renamed or removed, or have other permissions; the directory itself as well.
    Files,
}

/// An event in a watched directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FolderEvent {
    /// A subdirectory of this name was created in the directory of this watch.
    Made(i32, String),
    /// The subdirectory was removed.
    Gone(i32, String),
    /// This file in the directory of this watch was written or moved, or (`None`) the directory itself is gone.
    Touched(i32, Option<String>),
    /// The kernel dropped events: everything must be read again.
    Lost,
}

impl GroupWatch {
    /// A watch of no directories.
    ///
    /// # Errors
    /// `EMFILE` when this user has too many instances (`fs.inotify.max_user_instances`).
    pub fn new() -> Result<GroupWatch> {
        inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
            .map(GroupWatch)
            .map_err(|errno| fail("watch", "cgroups".to_owned(), None, errno))
    }

    /// Watches one more directory; returns its watch number, the same one for the same directory.
    ///
    /// # Errors
    /// `ENOENT` when the directory is gone, `ENOSPC` when too many are watched (`fs.inotify.max_user_watches`).
    pub fn add(&self, folder: &Path, what: For) -> Result<i32> {
        let flags = match what {
            For::Folders => WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::EXCL_UNLINK,
            For::Writes => WatchFlags::MODIFY | WatchFlags::DELETE_SELF,
            For::Files => {
                let files =
                    WatchFlags::CLOSE_WRITE | WatchFlags::ATTRIB | WatchFlags::MOVE | WatchFlags::DELETE;
                files | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF
            }
        };
        inotify::add_watch(&self.0, &*spelling::path(folder), flags | WatchFlags::ONLYDIR)
            .map_err(|errno| fail("watch", spelling::of_path(folder), None, errno))
    }

    /// Stops watching a directory.
    pub fn remove(&self, number: i32) {
        // The kernel has already removed the watch with its directory.
        let _ = inotify::remove_watch(&self.0, number);
    }

    /// The events, after waiting for the first one, or until the waker is rung; that stays rung.
    ///
    /// # Errors
    /// When the events cannot be read.
    pub fn wait(&self, waker: &Waker) -> Result<Vec<FolderEvent>> {
        let asked = [PollFd::new(&self.0, PollFlags::IN), PollFd::new(&waker.ends.0, PollFlags::IN)];
        match poll(&mut { asked }, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => self.seen(),
            Err(errno) => Err(fail("poll", "watched cgroups".to_owned(), None, errno)),
        }
    }

    /// The events so far, without waiting.
    ///
    /// # Errors
    /// When the events cannot be read.
    pub fn seen(&self) -> Result<Vec<FolderEvent>> {
        let refuse = |errno| fail("read", "watched cgroups".to_owned(), None, errno);
        let mut buffer = [MaybeUninit::uninit(); 8_192];
        let mut reader = inotify::Reader::new(&self.0, &mut buffer);
        let mut seen = Vec::new();
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(seen),
                Err(errno) => return Err(refuse(errno)),
            };
            let name = event.file_name().map(|name| spelling::text(name.to_bytes().to_vec()));
            let (what, wd) = (event.events(), event.wd());
            match name {
                _ if what.contains(ReadFlags::QUEUE_OVERFLOW) => seen.push(FolderEvent::Lost),
                Some(name) if what.contains(ReadFlags::CREATE) => seen.push(FolderEvent::Made(wd, name)),
                Some(name) if what.contains(ReadFlags::DELETE) => seen.push(FolderEvent::Gone(wd, name)),
                _ if what.contains(ReadFlags::IGNORED) => {}
                name => seen.push(FolderEvent::Touched(wd, name)),
            }
        }
    }
}

/// A trigger that fires when tasks wait longer than a threshold (Documentation/accounting/psi.rst, triggers), at most
/// once per window.
#[derive(Debug)]
pub struct PressureTrigger(OwnedFd);

impl PressureTrigger {
    /// Sets a trigger on `path`, a pressure file of the machine or of a v2 group; it fires when some task waited for
    /// `stall` within `window`, which has to be 0.5 to 10 s, and without `CAP_SYS_RESOURCE` a multiple of 2 s.
    ///
    /// # Errors
    /// `EINVAL` for a window that the kernel does not allow this user, `EOPNOTSUPP` without PSI, `ENOENT`.
    pub fn new(path: &Path, stall: Duration, window: Duration) -> Result<PressureTrigger> {
        let wish = format!("some {} {}\0", stall.as_micros(), window.as_micros());
        let object = spelling::of_path(path);
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        raised(&[Capability::SysResource], || {
            let file = open(&*spelling::path(path), flags, Mode::empty());
            let file = file.map_err(|errno| fail("open", object.clone(), None, errno))?;
            rustix::io::write(&file, wish.as_bytes())
                .map_err(|errno| fail("write", object, Some(wish.trim_end_matches('\0')), errno))?;
            Ok(PressureTrigger(file))
        })
    }

    /// Whether it has fired since it was last polled (polling takes that back); `None` when its group is gone.
    fn told(polled: &PollFd<'_>) -> Option<bool> {
        let events = polled.revents();
        (!events.contains(PollFlags::ERR)).then_some(events.contains(PollFlags::PRI))
    }
}

impl AsFd for GroupWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
