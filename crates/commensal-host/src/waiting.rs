//! Blocking operations that are not part of [`crate::Host`]: reading a local socket in parts, watching directories, and
//! waiting for whichever of several sources becomes ready first.

use crate::error::{BELIEVE, HostError, Result, fail};
use crate::privileges::{Capability, raised};
use commensal_core::errno::Errno;
use commensal_core::spelling;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{FileType, Mode, OFlags, open};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The shortest timeout of a write to a socket, and the pause between attempts to connect.
const LEAST: Duration = Duration::from_millis(5);

/// Wakes one waiting thread, from other threads and from signal handlers.
#[derive(Debug, Clone)]
pub struct Waker {
    /// A socket pair: the waiting thread polls the first end, other threads write to the second end.
    ends: Arc<(UnixStream, UnixStream)>,
}

/// A source that a thread waits for in addition to its [`Waker`].
#[derive(Debug, Clone)]
pub struct Source<'a>(PollFd<'a>);

impl<'a> Source<'a> {
    /// Ready while the descriptor is readable, such as that of a [`GroupWatch`] or of [`PressureTriggers`].
    #[must_use]
    pub fn readable(descriptor: BorrowedFd<'a>) -> Source<'a> {
        Source(PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
    }

    /// Ready once the other side of a connection has closed, whether or not it has sent data.
    #[must_use]
    pub fn closed(connection: BorrowedFd<'a>) -> Source<'a> {
        Source(PollFd::from_borrowed_fd(connection, PollFlags::empty()))
    }
}

impl Waker {
    /// Creates a waker that has not been used yet.
    ///
    /// # Errors
    /// Returns `EMFILE` when there are too many open files.
    pub fn new() -> std::io::Result<Waker> {
        let ends = UnixStream::pair()?;
        ends.0.set_nonblocking(true)?;
        ends.1.set_nonblocking(true)?;
        Ok(Waker { ends: Arc::new(ends) })
    }

    /// Ends the current wait, or the next one if the thread is not waiting.
    pub fn wake(&self) {
        // If the buffer is full, the waiting thread is awake anyway.
        let _ = (&self.ends.1).write(&[0]);
    }

    /// Forgets all calls of [`Waker::wake`] so far.
    fn reset(&self) {
        let mut rung = [0; 64];
        while matches!((&self.ends.0).read(&mut rung), Ok(length) if length == rung.len()) {}
    }

    /// Returns a stream for signal handlers, which write a byte to it to wake the thread
    /// (`signal_hook::low_level::pipe`).
    ///
    /// # Errors
    /// Returns `EMFILE` when there are too many open files.
    pub fn for_signals(&self) -> std::io::Result<UnixStream> {
        self.ends.1.try_clone()
    }

    /// Waits until [`Waker::wake`] is called, one of the sources is ready, or `patience` has elapsed. Returns for each
    /// source whether it is ready; none is if a signal interrupted the wait.
    ///
    /// # Errors
    /// Returns an error when polling fails.
    pub fn wait(&self, sources: &[Source<'_>], patience: Duration) -> Result<Vec<bool>> {
        let mut asked = vec![PollFd::new(&self.ends.0, PollFlags::IN)];
        asked.extend(sources.iter().map(|one| one.0.clone()));
        let timeout = Timespec::try_from(patience).ok();
        match poll(&mut asked, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(vec![false; sources.len()]),
            Err(errno) => return Err(fail("poll", "the events that end a wait".to_owned(), None, errno)),
        }
        if !asked[0].revents().is_empty() {
            self.reset();
        }
        Ok(asked[1..].iter().map(|one| !one.revents().is_empty()).collect())
    }
}

/// A response over a local (Unix) socket that is read in parts, until the other side closes.
#[derive(Debug)]
pub struct Stream {
    socket: UnixStream,
    object: String,
}

impl Stream {
    /// Sends `request` to the socket at `path`.
    ///
    /// # Errors
    /// Returns an error when no process listens there, or the other side has not received the whole request within
    /// `patience` (`ETIMEDOUT`).
    pub fn open(path: &Path, request: &str, patience: Duration) -> Result<Stream> {
        let object = spelling::of_path(path);
        let end = Instant::now() + patience;
        let socket = connect(path, end).map_err(|errno| refused(&object, &errno.into()))?;
        Stream::say(socket, object, request, end)
    }

    /// Like [`Stream::open`], but sends nothing unless the process that listens on the socket belongs to root or user
    /// `euid`, and never follows a symbolic link.
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
        // Connects to the socket that was checked, even if its name now belongs to another file.
        let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
        let socket = connect(Path::new(&opened), end).map_err(refuse)?;
        match crate::peer(&socket) {
            Some((_, user)) if user == 0 || user == euid => Stream::say(socket, object, request, end),
            Some((_, user)) => Err(disbelief(format!("where user {user} listens"))),
            None => Err(disbelief("whose listening process is not known".to_owned())),
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

    /// Returns the data received; `None` if none arrived within `patience` (more than 0), empty if the other side has
    /// closed.
    ///
    /// # Errors
    /// Returns an error when the connection is broken.
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

/// Connects, or fails with `ETIMEDOUT` at `end`: a blocking connect would wait forever for a listener whose queue is
/// full (`unix_stream_connect`, net/unix/af_unix.c).
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

/// Watches directories for subdirectories that are created and removed, or for changes of their files (inotify(7)).
/// Works on cgroup hierarchies of both versions (seen on 6.18). Writes through another cgroup namespace are not
/// reported.
#[derive(Debug)]
pub struct GroupWatch(OwnedFd);

/// The events that a directory is watched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum For {
    /// Subdirectories that are created and removed.
    Folders,
    /// Each write to a file of the directory.
    Writes,
    /// Files that were written and closed, renamed or removed, or whose permissions changed; also such changes of the
    /// directory itself.
    Files,
}

/// An event in a watched directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FolderEvent {
    /// A subdirectory of this name was created in the directory with this watch number.
    Made(i32, String),
    /// A subdirectory of this name (with [`For::Files`] also a file) was removed from the directory with this watch
    /// number.
    Gone(i32, String),
    /// A file of this name in the directory with this watch number was written or moved, or got other permissions.
    /// `None`: the directory itself was removed or changed.
    Touched(i32, Option<String>),
    /// The kernel dropped events, so everything must be read again.
    Lost,
}

impl GroupWatch {
    /// Creates a watch without directories.
    ///
    /// # Errors
    /// Returns `EMFILE` when this user has too many instances (`fs.inotify.max_user_instances`).
    pub fn new() -> Result<GroupWatch> {
        inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
            .map(GroupWatch)
            .map_err(|errno| fail("watch", "cgroups".to_owned(), None, errno))
    }

    /// Watches one more directory; returns its watch number. The same directory always has the same number.
    ///
    /// # Errors
    /// Returns `ENOENT` when the directory no longer exists, `ENOSPC` when too many are watched
    /// (`fs.inotify.max_user_watches`).
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
        // If the directory was removed, the kernel has already removed the watch.
        let _ = inotify::remove_watch(&self.0, number);
    }

    /// Waits for the first event or for the waker, and returns the events.
    ///
    /// # Errors
    /// Returns an error when the events cannot be read.
    pub fn wait(&self, waker: &Waker) -> Result<Vec<FolderEvent>> {
        waker.wait(&[Source::readable(self.as_fd())], Duration::MAX)?;
        self.seen()
    }

    /// Returns the pending events, without waiting.
    ///
    /// # Errors
    /// Returns an error when the events cannot be read.
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

/// Pressure triggers, which fire when tasks stall for longer than a threshold, each at most once per window
/// (Documentation/accounting/psi.rst, triggers). A thread waits for all of them as one source (epoll(7)), which costs
/// the same with any number of triggers: `poll` asks each trigger before and after it sleeps.
#[derive(Debug)]
pub struct PressureTriggers {
    set: OwnedFd,
    by_file: BTreeMap<PathBuf, OwnedFd>,
}

impl PressureTriggers {
    /// Creates a set without triggers.
    ///
    /// # Errors
    /// Returns `EMFILE` when there are too many open files.
    pub fn new() -> Result<PressureTriggers> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC);
        let set =
            set.map_err(|errno| fail("create", "a set of pressure triggers".to_owned(), None, errno))?;
        Ok(PressureTriggers { set, by_file: BTreeMap::new() })
    }

    /// Whether the set has a trigger on this file.
    #[must_use]
    pub fn contains(&self, file: &Path) -> bool {
        self.by_file.contains_key(file)
    }

    /// Adds a trigger on a pressure file of the machine or of a v2 group. It fires when tasks stalled (line `some`) for
    /// `stall` within `window`. The window must be 0.5 to 10 s and, without `CAP_SYS_RESOURCE`, a multiple of 2 s.
    ///
    /// # Errors
    /// Returns `EINVAL` for a window that the kernel does not allow this user, `EOPNOTSUPP` without PSI, `ENOENT`, and
    /// `ENOSPC` when the user watches too many files (`fs.epoll.max_user_watches`).
    pub fn add(&mut self, file: &Path, stall: Duration, window: Duration) -> Result<()> {
        let text = format!("some {} {}\0", stall.as_micros(), window.as_micros());
        let refuse = |operation, errno| fail(operation, spelling::of_path(file), None, errno);
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let trigger = raised(&[Capability::SysResource], || {
            let trigger = open(&*spelling::path(file), flags, Mode::empty());
            let trigger = trigger.map_err(|errno| refuse("open", errno))?;
            rustix::io::write(&trigger, text.as_bytes()).map_err(|errno| refuse("write", errno))?;
            Ok(trigger)
        })?;
        // The trigger leaves the set when its descriptor is closed.
        epoll::add(&self.set, &trigger, epoll::EventData::new_u64(0), epoll::EventFlags::PRI)
            .map_err(|errno| refuse("watch", errno))?;
        self.by_file.insert(file.to_owned(), trigger);
        Ok(())
    }

    /// Drops the triggers on files for which `keep` returns false, and those whose cgroup no longer exists: such a
    /// trigger would end each wait. Forgets which triggers have fired.
    pub fn retain(&mut self, mut keep: impl FnMut(&Path) -> bool) {
        self.by_file.retain(|file, trigger| {
            let mut asked = [PollFd::new(&*trigger, PollFlags::PRI)];
            let _ = poll(&mut asked, Some(&Timespec::default()));
            !asked[0].revents().contains(PollFlags::ERR) && keep(file)
        });
    }
}

impl AsFd for PressureTriggers {
    /// The source is readable when a trigger has fired, or its cgroup was removed.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}

impl AsFd for GroupWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
