//! [`Host`] for the running machine: directories by descriptor and inode, control files through cached descriptors.

use crate::counters::{self, Counters, Event};
use crate::error::fail;
use crate::open::{self, Guard};
use crate::privileges::{Capability, raised};
use crate::process::{self, Child, Process, SpawnSpec};
use crate::{Dir, Host, HostError, Lock, LockFile, Result, Signal, Stream, Watch, locks, state};
use commensal_core::cpuset::CpuSet;
use commensal_core::errno::Errno;
use commensal_core::process::Scheduling;
use commensal_core::spelling;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Range of the number of control files that stay open; within this range, the number is an eighth of the permitted
/// descriptors. A cached descriptor makes an access several times cheaper than open, access and close, and costs the
/// kernel a page. When more files are open, the host closes the oldest file that was not used lately.
const HELD_FILES: std::ops::RangeInclusive<u64> = 384..=2_048;

/// Files that are opened anew for each read. In cgroup v1 an open process list keeps showing its first content for a
/// second or longer: a process that has left the group is still listed (seen on 6.18; `CGROUP_PIDLIST_DESTROY_DELAY`).
pub(crate) const SNAPSHOTS: [&str; 3] = ["cgroup.procs", "cgroup.threads", "tasks"];

/// Maximum number of open directories; opening more fails with `EMFILE`, as the kernel itself would fail later. The
/// host has its own limit because a leak of `Dir`s is a bug of commensal.
const OPEN_DIRS: usize = 65_536;

/// Maximum size of a response over a local socket, in bytes.
const ASK_MOST: usize = 8 << 20;

/// Maximum number of bytes read from a file: far above the size of any file that commensal reads with it, and small
/// enough to be read in every tick.
const LONGEST_FILE: u64 = 16 << 20;

/// `CGROUP_SUPER_MAGIC` and `CGROUP2_SUPER_MAGIC` of linux/magic.h.
const CGROUP_FILE_SYSTEMS: [u32; 2] = [0x0027_e0eb, 0x6367_7270];
/// Maximum length of a path in a system call, in bytes (`PATH_MAX` without the terminating zero).
const PATH_MOST: usize = 4_095;

/// The running machine.
#[derive(Debug, Default)]
pub struct LinuxHost {
    dirs: Vec<Slot>,
    free: Vec<u32>,
    held: HashMap<(u32, String), HeldFile>,
    /// Keys of `held`, in the order in which they are closed.
    order: VecDeque<(u32, String)>,
    /// The limit of open files before this process raised it; started commands get this limit.
    descriptors: Option<Rlimit>,
    pulse: Arc<AtomicU64>,
    /// Directory of commensal's state files: see [`LinuxHost::guard_state`].
    guarded: Option<PathBuf>,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    open: Option<Box<OpenDir>>,
}

#[derive(Debug)]
struct OpenDir {
    fd: OwnedFd,
    /// The directory's path, used in error messages only.
    path: String,
    /// Whether `held` may contain a file of this directory.
    files: bool,
}

#[derive(Debug)]
struct HeldFile {
    fd: OwnedFd,
    /// Whether the file was used since `make_room` last considered closing it.
    used: Cell<bool>,
}

fn refused(operation: &'static str, path: &Path, value: Option<&str>, error: &std::io::Error) -> HostError {
    let errno = Errno(error.raw_os_error().unwrap_or(Errno::EIO.0));
    HostError { operation, object: spelling::of_path(path), value: value.map(str::to_owned), errno }
}

/// Refuses a name that is not a single path component, because such a name could lead out of the directory.
pub(crate) fn component(operation: &'static str, name: &str) -> Result<()> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        return Err(fail(operation, format!("{name:?}"), None, rustix::io::Errno::INVAL));
    }
    Ok(())
}

/// Refuses a cgroup's path that is not absolute or has `.`, `..` or an empty component, because such a path could name
/// a different group.
pub(crate) fn plain_path(path: &Path) -> Result<()> {
    let text = path.as_os_str().as_encoded_bytes();
    let below = text.strip_prefix(b"/").map(|below| below.strip_suffix(b"/").unwrap_or(below));
    let is_odd = |name: &[u8]| matches!(name, b"" | b"." | b"..");
    if below.is_none_or(|below| !below.is_empty() && below.split(|byte| *byte == b'/').any(is_odd)) {
        return Err(fail("open", format!("{path:?}"), None, rustix::io::Errno::INVAL));
    }
    Ok(())
}

/// Returns the bytes of a name as the kernel stores them.
fn raw(name: &str) -> Cow<'_, [u8]> {
    spelling::bytes(name.as_bytes())
}

/// Opens a path that may be longer than a system call accepts: names of cgroups have up to 4,095 bytes, and trees may
/// be arbitrarily deep.
fn open_at_any_depth(path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let (mut fd, mut rest) = (None, path);
    while rest.len() > PATH_MOST {
        let slash = rest[..PATH_MOST].iter().rposition(|byte| *byte == b'/').filter(|slash| *slash > 0);
        let (above, below) = rest.split_at(slash.ok_or(rustix::io::Errno::NAMETOOLONG)?);
        fd = Some(rustix::fs::openat(fd.as_ref().map_or(CWD, AsFd::as_fd), above, flags, Mode::empty())?);
        rest = &below[below.iter().take_while(|byte| **byte == b'/').count()..];
    }
    rustix::fs::openat(fd.as_ref().map_or(CWD, AsFd::as_fd), rest, flags, Mode::empty())
}

/// Binds the socket under a temporary name and renames it, so that a client finds either the old socket or the new one
/// with its group and mode already set.
fn listen(path: &Path, group: Option<u32>) -> std::result::Result<UnixListener, rustix::io::Errno> {
    use rustix::io::Errno;
    use rustix::net::{SocketAddrUnix, SocketFlags, bind};
    match rustix::fs::lstat(path) {
        Ok(there) if FileType::from_raw_mode(there.st_mode) != FileType::Socket => return Err(Errno::EXIST),
        Ok(_) => match listener(path) {
            Ok(None) => {}
            // EAGAIN: a process listens, and its queue is full.
            Ok(Some(_)) | Err(Errno::AGAIN) => return Err(Errno::ADDRINUSE),
            Err(other) => return Err(other),
        },
        Err(Errno::NOENT) => {}
        Err(other) => return Err(other),
    }
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let aside = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let listening = local_socket(SocketFlags::CLOEXEC)?;
    // The file takes the mode that the socket has when it is bound.
    rustix::fs::fchmod(&listening, Mode::RUSR | Mode::WUSR)?;
    let addr = SocketAddrUnix::new(&aside)?;
    match bind(&listening, &addr) {
        // A process with the same PID may have left the socket when it died.
        Err(Errno::ADDRINUSE) => rustix::fs::unlink(&aside).and_then(|()| bind(&listening, &addr))?,
        other => other?,
    }
    let done = group
        .map_or(Ok(()), |group| share(&aside, group))
        .and_then(|()| rustix::net::listen(&listening, 128))
        .and_then(|()| rustix::fs::rename(&aside, path));
    if done.is_err() {
        let _ = rustix::fs::unlink(&aside);
    }
    done?;
    Ok(listening.into())
}

/// Whether a cgroup has neither processes nor child groups (a directory of kernfs has two links and one per child).
fn is_empty(parent: &OwnedFd, name: &str) -> bool {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let has_none = || -> rustix::io::Result<bool> {
        let group = rustix::fs::openat(parent, &*raw(name), flags, Mode::empty())?;
        if rustix::fs::fstat(&group)?.st_nlink > 2 {
            return Ok(false);
        }
        let procs =
            rustix::fs::openat(&group, "cgroup.procs", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(rustix::io::read(&procs, &mut [0; 16])? == 0)
    };
    has_none().unwrap_or_default()
}

fn local_socket(flags: rustix::net::SocketFlags) -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, flags, None)
}

/// Connects to find the process that listens: `SO_PEERCRED` names the process that called listen(2) (unix(7)).
fn listener(path: &Path) -> rustix::io::Result<Option<u32>> {
    use rustix::io::Errno;
    use rustix::net::{SocketAddrUnix, SocketFlags, connect, sockopt};
    let asking = local_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    match connect(&asking, &SocketAddrUnix::new(path)?) {
        Ok(()) => {
            let peer = sockopt::socket_peercred(&asking)?;
            Ok(Some(peer.pid.as_raw_nonzero().get().unsigned_abs()))
        }
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(None),
        Err(other) => Err(other),
    }
}

/// Gives a group access to a socket. The group is set before the mode, so that no other group ever has access.
fn share(socket: &Path, group: u32) -> rustix::io::Result<()> {
    let (at, group) = (CWD, Some(rustix::fs::Gid::from_raw(group)));
    raised(&[Capability::Chown], || rustix::fs::chownat(at, socket, None, group, AtFlags::SYMLINK_NOFOLLOW))?;
    rustix::fs::chmod(socket, Mode::from_raw_mode(0o660))
}

impl LinuxHost {
    /// Creates a host for the machine this process runs on, and raises the limit of open files.
    #[must_use]
    pub fn new() -> LinuxHost {
        LinuxHost { descriptors: raise_descriptor_limit(), ..LinuxHost::default() }
    }

    /// Whether the cgroup at this path has child groups, according to the number of its links: a directory of cgroup file
    /// systems has two links and one per child (fs/kernfs/inode.c, `kernfs_refresh_inode`). Costs one system call.
    #[must_use]
    pub fn has_children(&self, folder: &Path) -> bool {
        rustix::fs::lstat(&*spelling::path(folder)).is_ok_and(|group| group.st_nlink > 2)
    }

    /// Guards `folder`: from now on the directory, everything in it, all directories above it, and configuration files
    /// ([`Host::read_trusted`]) must belong to root or this user. If this user is root, no other user may be able to
    /// write them either.
    pub fn guard_state(&mut self, folder: &Path) {
        self.guarded = Some(folder.to_owned());
    }

    fn guard(&self) -> Option<Guard<'_>> {
        self.guarded.as_deref().map(|folder| Guard { folder, euid: self.euid() })
    }

    fn keep(&mut self, fd: OwnedFd, path: String) -> Result<Dir> {
        let stat = rustix::fs::fstat(&fd).map_err(|errno| fail("stat", path.clone(), None, errno))?;
        let open = Some(Box::new(OpenDir { fd, path, files: false }));
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.dirs.len() >= OPEN_DIRS => {
                return Err(fail("open", "one more directory".to_owned(), None, rustix::io::Errno::MFILE));
            }
            None => {
                self.dirs.push(Slot { generation: 0, open: None });
                u32::try_from(self.dirs.len() - 1).unwrap_or(u32::MAX)
            }
        };
        let entry = &mut self.dirs[slot as usize];
        entry.open = open;
        Ok(Dir { slot, generation: entry.generation, inode: stat.st_ino })
    }

    fn dir(&self, dir: Dir) -> Result<&OpenDir> {
        self.pulse.fetch_add(1, Ordering::Relaxed);
        self.dirs
            .get(dir.slot as usize)
            .filter(|slot| slot.generation == dir.generation)
            .and_then(|slot| slot.open.as_deref())
            .ok_or_else(|| fail("use", "a closed directory".to_owned(), None, rustix::io::Errno::BADF))
    }

    /// Opens a directory once more: a lock, and counters, need an open file description of their own.
    fn again(&self, dir: Dir) -> Result<OwnedFd> {
        let open = self.dir(dir)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let again = rustix::fs::openat(&open.fd, ".", flags, Mode::empty());
        again.map_err(|errno| fail("open", open.path.clone(), None, errno))
    }

    pub(crate) fn object(&self, dir: Dir, name: &str) -> String {
        self.dir(dir).map_or_else(|_| name.to_owned(), |open| format!("{}/{name}", open.path))
    }

    /// Returns the control file's cached descriptor, opened read-write if permitted, otherwise for `operation` only.
    fn file(&mut self, operation: &'static str, dir: Dir, name: &str) -> Result<BorrowedFd<'_>> {
        component(operation, name)?;
        let key = (dir.slot, name.to_owned());
        if !self.held.contains_key(&key) {
            let at = &self.dir(dir)?.fd;
            let only = if operation == "write" { OFlags::WRONLY } else { OFlags::RDONLY };
            let open =
                |mode| rustix::fs::openat(at, name, mode | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty());
            let opened = open(OFlags::RDWR).or_else(|_| open(only));
            let fd = opened.map_err(|errno| fail(operation, self.object(dir, name), None, errno))?;
            self.make_room();
            self.dirs[dir.slot as usize].open.iter_mut().for_each(|open| open.files = true);
            self.order.push_back(key.clone());
            self.held.insert(key.clone(), HeldFile { fd, used: Cell::new(false) });
        }
        let held = &self.held[&key];
        held.used.set(true);
        Ok(held.fd.as_fd())
    }

    /// Closes cached files until there is room for one more.
    fn make_room(&mut self) {
        let permitted = self.descriptors.and_then(|limit| limit.maximum).unwrap_or(1_024);
        let most = (permitted / 8).clamp(*HELD_FILES.start(), *HELD_FILES.end());
        while self.order.len() as u64 >= most {
            let Some(oldest) = self.order.pop_front() else { return };
            if self.held.get(&oldest).is_some_and(|held| held.used.replace(false)) {
                self.order.push_back(oldest);
            } else {
                self.held.remove(&oldest);
            }
        }
    }

    /// Accesses the control file, and retries once on a new descriptor if the cached one returns `ENODEV`: a v2
    /// controller that was disabled and enabled again has new files. If the file no longer exists, the first error is
    /// returned, and the dead descriptor stays in the cache, so that the next access returns the same error.
    fn again_if_stale<T>(
        &mut self,
        operation: &'static str,
        dir: Dir,
        name: &str,
        act: &mut dyn FnMut(BorrowedFd<'_>) -> rustix::io::Result<T>,
    ) -> Result<rustix::io::Result<T>> {
        let key = (dir.slot, name.to_owned());
        let was_held = self.held.contains_key(&key);
        let first = act(self.file(operation, dir, name)?);
        if !was_held || !matches!(first, Err(rustix::io::Errno::NODEV)) {
            return Ok(first);
        }
        let stale = self.held.remove(&key);
        self.order.retain(|held| *held != key);
        if let Ok(fresh) = self.file(operation, dir, name) {
            return Ok(act(fresh));
        }
        self.order.push_back(key.clone());
        self.held.extend(stale.map(|held| (key, held)));
        Ok(first)
    }

    fn forget_files(&mut self, slot: u32) {
        self.held.retain(|key, _| key.0 != slot);
        self.order.retain(|key| key.0 != slot);
    }
}

/// Reads a file from its start; control files are small. One read of a `seq_file` returns at most a page, less the
/// record that does not fit. No record is as long as half a page, so a read of less than half a page has reached the
/// end, and no further read is needed to detect it.
fn read_whole(fd: BorrowedFd<'_>) -> rustix::io::Result<String> {
    let mut text = Vec::new();
    let mut chunk = [0u8; 4096];
    loop {
        let count = rustix::io::retry_on_intr(|| rustix::io::pread(fd, &mut chunk, text.len() as u64))?;
        text.extend_from_slice(&chunk[..count]);
        if count < chunk.len() / 2 {
            return Ok(spelling::text(text));
        }
    }
}

/// Raises the soft limit of open files (1024) to the hard one, which any process may do: a plan for a thousand groups
/// in five hierarchies keeps five thousand directories open. Returns the old limit.
fn raise_descriptor_limit() -> Option<Rlimit> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).is_ok().then_some(limit)
}

/// Maximum time in which exited processes may leave a cgroup that is removed.
const EXIT_PATIENCE: Duration = Duration::from_millis(500);

/// Maximum length of an extended attribute's value, in bytes (`XATTR_SIZE_MAX`).
const ATTRIBUTE_LEN: usize = 65_536;
/// Maximum length of a list of attribute names, in bytes (`XATTR_LIST_MAX`).
const ATTRIBUTE_NAMES_LEN: usize = 65_536;

/// Reads the response until the other side closes or `ASK_MOST` bytes have arrived; `ETIMEDOUT` at `end`.
fn answer(mut stream: Stream, path: &Path, end: Instant) -> Result<String> {
    let mut answer = Vec::new();
    while answer.len() < ASK_MOST {
        let left = end.saturating_duration_since(Instant::now());
        let read = if left.is_zero() { None } else { stream.read(left)? };
        match read {
            Some(bytes) if bytes.is_empty() => break,
            Some(bytes) => answer.extend(bytes),
            None => return Err(fail("ask", spelling::of_path(path), None, rustix::io::Errno::TIMEDOUT)),
        }
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Runs `work` with CAP_SYS_ADMIN if the attribute begins with `trusted.`: without it the kernel neither returns nor
/// lists these attributes (`xattr_permission`, `simple_xattr_list`).
fn with_rights<T>(attribute: &str, work: impl FnOnce() -> T) -> T {
    if attribute.starts_with("trusted.") { raised(&[Capability::SysAdmin], work) } else { work() }
}

impl Host for LinuxHost {
    fn read_file(&self, path: &Path) -> Result<String> {
        self.pulse.fetch_add(1, Ordering::Relaxed);
        // Opening or reading must not block on a pipe or an endless device.
        let read = || {
            let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
            let mut file = OpenOptions::new().read(true).custom_flags(flags).open(spelling::path(path))?;
            // Most files fit in one read. Into an empty vector, `read_to_end` would read them in small pieces.
            let mut first = [0; 8192];
            let length = file.read(&mut first)?;
            let mut bytes = first[..length].to_vec();
            if length > 0 {
                file.take(LONGEST_FILE - length as u64).read_to_end(&mut bytes)?;
            }
            Ok(bytes)
        };
        read().map(spelling::text).map_err(|error: std::io::Error| refused("read", path, None, &error))
    }

    fn read_trusted(&self, path: &Path) -> Result<String> {
        match self.guarded {
            Some(_) => open::read_trusted(path, self.euid(), LONGEST_FILE).map(spelling::text),
            None => self.read_file(path),
        }
    }

    fn trust_folder(&self, path: &Path) -> Result<()> {
        if self.is_guarded() { open::judge_folder(path, self.euid()) } else { Ok(()) }
    }

    fn is_guarded(&self) -> bool {
        self.guarded.is_some()
    }

    fn link(&self, path: &Path) -> Result<String> {
        // Reading this link of another user's process requires the permission to trace the process.
        let read = || rustix::fs::readlink(&*spelling::path(path), Vec::new());
        let target = if path.starts_with("/proc") { raised(&[Capability::SysPtrace], read) } else { read() };
        let target = target.map_err(|errno| fail("read", spelling::of_path(path), None, errno))?;
        Ok(spelling::text(target.into_bytes()))
    }

    fn list(&self, path: &Path) -> Result<Vec<String>> {
        let entries = std::fs::read_dir(spelling::path(path));
        let entries = entries.map_err(|error| refused("list", path, None, &error))?;
        let mut names: Vec<String> =
            entries.flatten().map(|entry| spelling::text(entry.file_name().into_vec())).collect();
        names.sort();
        Ok(names)
    }

    fn ask(&self, path: &Path, request: &str, patience: Duration) -> Result<String> {
        let end = Instant::now() + patience;
        answer(Stream::open(path, request, patience)?, path, end)
    }

    fn ask_own(&self, path: &Path, request: &str, patience: Duration) -> Result<String> {
        let end = Instant::now() + patience;
        answer(Stream::open_own(path, request, patience, self.euid())?, path, end)
    }

    fn listen(&mut self, path: &Path) -> Result<UnixListener> {
        listen(path, None).map_err(|errno| fail("listen on", spelling::of_path(path), None, errno))
    }

    fn listener(&self, path: &Path) -> Result<Option<u32>> {
        listener(path).map_err(|errno| fail("connect to", spelling::of_path(path), None, errno))
    }

    fn listen_for(&mut self, path: &Path, group: u32) -> Result<UnixListener> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        let mode = Mode::from_raw_mode(0o755);
        let made = match rustix::fs::mkdir(folder, mode) {
            // Restores the mode bits that the umask has cleared.
            Ok(()) => rustix::fs::chmod(folder, mode),
            Err(rustix::io::Errno::EXIST) => Ok(()),
            Err(errno) => Err(errno),
        };
        made.map_err(|errno| fail("create", spelling::of_path(folder), None, errno))?;
        if self.guarded.is_some() {
            open::judge_folder(folder, self.euid())?;
        }
        let bound = listen(path, Some(group));
        bound.map_err(|errno| fail("listen on", spelling::of_path(path), None, errno))
    }

    fn open(&mut self, path: &Path) -> Result<Dir> {
        plain_path(path)?;
        let object = spelling::of_path(path);
        let refuse = |errno| fail("open", object.clone(), None, errno);
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = open_at_any_depth(spelling::path(path).as_os_str().as_bytes(), flags).map_err(refuse)?;
        // cgroup file systems have no symbolic links, so a directory in one was not reached through a link below its
        // mount.
        let kind = rustix::fs::fstatfs(&fd).map_err(refuse)?.f_type;
        if !CGROUP_FILE_SYSTEMS.iter().any(|cgroup| i128::from(*cgroup) == i128::from(kind)) {
            let object = format!("{object}, which is in no cgroup file system");
            return Err(fail("open", object, None, rustix::io::Errno::INVAL));
        }
        self.keep(fd, object)
    }

    fn open_child(&mut self, parent: Dir, name: &str) -> Result<Dir> {
        component("open", name)?;
        let object = self.object(parent, name);
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::openat(&self.dir(parent)?.fd, &*raw(name), flags, Mode::empty())
            .map_err(|errno| fail("open", object.clone(), None, errno))?;
        self.keep(fd, object)
    }

    fn children(&mut self, dir: Dir) -> Result<Vec<String>> {
        let open = self.dir(dir)?;
        let refuse = |errno| fail("list", open.path.clone(), None, errno);
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&open.fd).map_err(refuse)? {
            let entry = entry.map_err(refuse)?;
            let name = entry.file_name().to_bytes();
            if entry.file_type() == FileType::Directory && name != b"." && name != b".." {
                names.push(spelling::text(name.to_vec()));
            }
        }
        names.sort();
        Ok(names)
    }

    fn read(&mut self, dir: Dir, file: &str) -> Result<String> {
        let read = if SNAPSHOTS.contains(&file) {
            component("read", file)?;
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let fresh = rustix::fs::openat(&self.dir(dir)?.fd, file, flags, Mode::empty());
            fresh.and_then(|fd| read_whole(fd.as_fd()))
        } else {
            self.again_if_stale("read", dir, file, &mut |fd| read_whole(fd))?
        };
        read.map_err(|errno| fail("read", self.object(dir, file), None, errno))
    }

    fn write(&mut self, dir: Dir, file: &str, value: &str) -> Result<()> {
        let object = self.object(dir, file);
        let refuse = |errno| fail("write", object.clone(), Some(value), errno);
        let mut put =
            || self.again_if_stale("write", dir, file, &mut |fd| rustix::io::pwrite(fd, value.as_bytes(), 0));
        // Moving another user's process into a v1 cpuset changes its CPU affinity (`cap_task_setscheduler`).
        let moves = SNAPSHOTS.contains(&file);
        let written = if moves { raised(&[Capability::SysNice], put) } else { put() };
        let written = written.map_err(|error| HostError { value: Some(value.to_owned()), ..error })?;
        match written {
            Ok(count) if count == value.len() => Ok(()),
            Ok(_) => Err(refuse(rustix::io::Errno::IO)),
            // The file was opened read-only because this user may not write to it, so report that.
            Err(rustix::io::Errno::BADF) => Err(refuse(rustix::io::Errno::ACCESS)),
            Err(errno) => Err(refuse(errno)),
        }
    }

    fn mkdir(&mut self, parent: Dir, name: &str) -> Result<Dir> {
        component("create", name)?;
        rustix::fs::mkdirat(&self.dir(parent)?.fd, &*raw(name), Mode::from_raw_mode(0o755))
            .map_err(|errno| fail("create", self.object(parent, name), None, errno))?;
        let opened = self.open_child(parent, name);
        if opened.is_err() {
            let _ = rustix::fs::unlinkat(&self.dir(parent)?.fd, &*raw(name), AtFlags::REMOVEDIR);
        }
        opened
    }

    fn rmdir(&mut self, parent: Dir, name: &str, inode: u64) -> Result<()> {
        component("remove", name)?;
        let object = self.object(parent, name);
        let fd = &self.dir(parent)?.fd;
        let refuse = |errno| fail("remove", object.clone(), None, errno);
        // Only commensal removes groups that it created, so the name normally still refers to the same group. The inode
        // differs if the tree was rebuilt since it was read.
        let now = rustix::fs::statat(fd, &*raw(name), AtFlags::SYMLINK_NOFOLLOW).map_err(refuse)?;
        if now.st_ino != inode {
            return Err(refuse(rustix::io::Errno::NOENT));
        }
        let deadline = Instant::now() + EXIT_PATIENCE;
        loop {
            match rustix::fs::unlinkat(fd, &*raw(name), AtFlags::REMOVEDIR) {
                Err(rustix::io::Errno::BUSY) if Instant::now() < deadline && is_empty(fd, name) => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                removed => return removed.map_err(refuse),
            }
        }
    }

    fn rename(&mut self, parent: Dir, from: &str, inode: u64, to: &str) -> Result<()> {
        component("rename", from)?;
        component("rename", to)?;
        let object = self.object(parent, from);
        let fd = &self.dir(parent)?.fd;
        let refuse = |errno| fail("rename", object.clone(), Some(to), errno);
        let now = rustix::fs::statat(fd, &*raw(from), AtFlags::SYMLINK_NOFOLLOW).map_err(refuse)?;
        if now.st_ino != inode {
            return Err(refuse(rustix::io::Errno::NOENT));
        }
        rustix::fs::renameat(fd, &*raw(from), fd, &*raw(to)).map_err(refuse)
    }

    fn attribute(&mut self, dir: Dir, name: &str) -> Result<Option<String>> {
        let open = self.dir(dir)?;
        let mut text = vec![0; ATTRIBUTE_LEN];
        match with_rights(name, || rustix::fs::fgetxattr(&open.fd, name, &mut text)) {
            Ok(length) => Ok(Some(String::from_utf8_lossy(&text[..length]).into_owned())),
            Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::PERM) => {
                Ok(None)
            }
            Err(errno) => Err(fail("read an attribute of", open.path.clone(), Some(name), errno)),
        }
    }

    fn attributes(&mut self, dir: Dir, prefix: &str) -> Result<Vec<String>> {
        let open = self.dir(dir)?;
        let mut names = vec![0; ATTRIBUTE_NAMES_LEN];
        let length = match with_rights(prefix, || rustix::fs::flistxattr(&open.fd, &mut names)) {
            Ok(length) => length,
            Err(rustix::io::Errno::OPNOTSUPP) => 0,
            Err(errno) => return Err(fail("list the attributes of", open.path.clone(), None, errno)),
        };
        let names =
            names[..length].split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok());
        let mut names: Vec<String> =
            names.filter(|name| name.starts_with(prefix) && !name.is_empty()).map(str::to_owned).collect();
        names.sort();
        Ok(names)
    }

    fn set_attribute(&mut self, dir: Dir, name: &str, value: Option<&str>) -> Result<()> {
        let open = self.dir(dir)?;
        let done = with_rights(name, || match value {
            Some(value) => {
                rustix::fs::fsetxattr(&open.fd, name, value.as_bytes(), rustix::fs::XattrFlags::empty())
            }
            None => match rustix::fs::fremovexattr(&open.fd, name) {
                Err(rustix::io::Errno::NODATA) => Ok(()),
                done => done,
            },
        });
        done.map_err(|errno| fail("set an attribute of", open.path.clone(), Some(name), errno))
    }

    fn lock_group(&mut self, dir: Dir) -> Result<Option<Lock>> {
        locks::try_on(self.again(dir)?.into(), Path::new(&self.dir(dir)?.path))
    }

    fn may_write(&mut self, dir: Dir, file: &str) -> bool {
        let access = rustix::fs::Access::WRITE_OK;
        self.dir(dir).is_ok_and(|open| rustix::fs::accessat(&open.fd, file, access, AtFlags::EACCESS).is_ok())
    }

    fn write_setting(&mut self, path: &Path, value: &str) -> Result<()> {
        std::fs::write(path, value).map_err(|error| refused("write", path, Some(value), &error))
    }

    fn close(&mut self, dir: Dir) {
        let Some(slot) = self.dirs.get_mut(dir.slot as usize) else { return };
        if slot.generation == dir.generation
            && let Some(open) = slot.open.take()
        {
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(dir.slot);
            if open.files {
                self.forget_files(dir.slot);
            }
        }
    }

    fn spawn(&mut self, spec: &SpawnSpec) -> Result<Child> {
        let mut procs = Vec::with_capacity(spec.groups.len());
        for group in &spec.groups {
            let object = self.object(*group, "cgroup.procs");
            let fd = self.file("write", *group, "cgroup.procs")?;
            let copy = fd.try_clone_to_owned();
            let copy = copy.map_err(|error| refused("open", Path::new(&object), None, &error))?;
            procs.push(copy);
        }
        process::spawn(spec, procs, self.descriptors)
    }

    fn process(&mut self, pid: u32) -> Result<Process> {
        process::identify(pid)
    }

    fn signal(&mut self, process: &Process, signal: Signal) -> Result<()> {
        raised(&[Capability::Kill], || process::send(process, signal))
    }

    fn adopt_orphans(&mut self, adopt: bool) -> Result<()> {
        process::adopt_orphans(adopt)
    }

    fn cookie(&mut self, tid: u32) -> Result<u64> {
        raised(&[Capability::SysPtrace], || process::cookie_of(tid))
    }

    fn share_cookie(&mut self, cookie: crate::Cookie, tids: &[u32]) -> Result<()> {
        raised(&[Capability::SysPtrace], || process::share_cookie(cookie, tids))
    }

    fn set_affinity(&mut self, tid: u32, cpus: &CpuSet) -> Result<()> {
        raised(&[Capability::SysNice], || process::set_affinity(tid, cpus))
    }

    fn set_policy(&mut self, tid: u32, policy: i32) -> Result<()> {
        raised(&[Capability::SysNice], || process::set_policy(tid, policy))
    }

    fn scheduling(&self, tid: u32) -> Result<Scheduling> {
        process::scheduling(tid)
    }

    fn set_scheduling(&mut self, tid: u32, to: &Scheduling) -> Result<()> {
        raised(&[Capability::SysNice], || process::set_scheduling(tid, to))
    }

    fn euid(&self) -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn state_dir(&mut self, path: &Path) -> Result<()> {
        state::make_dir(path, self.guard())
    }

    fn state_read_within(&mut self, path: &Path, most: u64) -> Result<Option<String>> {
        state::read(path, most, self.guard())
    }

    fn state_append(&mut self, path: &Path, text: &str) -> Result<()> {
        state::append(path, text, self.guard())
    }

    fn state_replace(&mut self, path: &Path, text: &str) -> Result<()> {
        state::replace(path, text.as_bytes(), self.guard())
    }

    fn state_rename(&mut self, from: &Path, to: &Path) -> Result<()> {
        state::rename(from, to, self.guard())
    }

    fn state_remove(&mut self, path: &Path) -> Result<()> {
        state::remove(path, self.guard())
    }

    fn state_remove_all(&mut self, path: &Path) -> Result<()> {
        state::remove_all(path)
    }

    fn count(&mut self, dir: Dir, cpus: &CpuSet, events: &[Event]) -> Result<Counters> {
        counters::open(&self.again(dir)?.into(), cpus.iter(), events)
    }

    fn free_bytes(&self, path: &Path) -> Result<u64> {
        let there = path.ancestors().find(|one| one.exists()).unwrap_or(path);
        let found = rustix::fs::statvfs(there);
        let found =
            found.map_err(|errno| fail("ask for free space", spelling::of_path(there), None, errno))?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    fn state_lock(&mut self, path: &Path) -> Result<Option<Lock>> {
        locks::try_lock(path, self.guard())
    }

    fn state_lock_new(&mut self, path: &Path, text: &str) -> Result<Lock> {
        locks::new(path, text, self.guard())
    }

    fn state_lock_file(&self, path: &Path) -> Result<Option<LockFile>> {
        locks::find(path, self.guard())
    }

    fn state_watch(&self, folders: &[&Path]) -> Result<Watch> {
        locks::watch(folders)
    }

    fn pulse(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.pulse)
    }

    fn boot_time(&self) -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::try_from(now).unwrap_or_default()
    }
}
