//! Opens state and configuration files: by descriptor, from a verified directory, and regular files only.
//!
//! commensal's files are in directories that only their owner can write. Such a directory is opened component by
//! component, starting at the root, and each directory and symbolic link on the path is checked after it has been
//! opened ([`commensal_core::ownership`]). The file itself is opened in that directory without following a link and
//! without blocking, and its type, owner and mode are read from the descriptor. A pipe, a device, a directory or a hard
//! link to another user's file is therefore refused, no matter when it was put there.

use crate::error::{AS_A_FILE, HostError, Result, fail, failed};
use commensal_core::errno::Errno as Number;
use commensal_core::ownership::{FileRole, Ownership, objection};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, openat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// Maximum number of symbolic links in a path, the same as the kernel's.
const LINKS: u32 = 40;

/// The directory that contains commensal's files, and the effective user. Without a `Guard` only file types are
/// checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Guard<'g> {
    /// The directory.
    pub(crate) folder: &'g Path,
    /// Effective user.
    pub(crate) euid: u32,
}

/// An open directory, with its path.
#[derive(Debug)]
pub(crate) struct Folder<'g> {
    fd: OwnedFd,
    path: PathBuf,
    guard: Option<Guard<'g>>,
}

fn refused(operation: &'static str, path: &Path, errno: Errno) -> HostError {
    fail(operation, commensal_core::spelling::of_path(path), None, errno)
}

/// Returns the type of a file that is not a regular file, and the error for it; `None` for a regular file.
fn kind(stat: &Stat) -> Option<(&'static str, Number)> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => None,
        FileType::Directory => Some(("a directory", Number::EISDIR)),
        FileType::Symlink => Some(("a symbolic link", Number::ELOOP)),
        FileType::Fifo => Some(("a named pipe", Number::EINVAL)),
        FileType::Socket => Some(("a socket", Number::EINVAL)),
        FileType::CharacterDevice | FileType::BlockDevice => Some(("a device", Number::EINVAL)),
        FileType::Unknown => Some(("of an unknown type", Number::EINVAL)),
    }
}

pub(crate) fn other_kind(path: &Path, is: &str, errno: Number) -> HostError {
    let object = format!("{}, which is {is} (move it away)", commensal_core::spelling::of_path(path));
    HostError { operation: AS_A_FILE, object, value: None, errno }
}

/// Refuses files and directories that others could have written.
pub(crate) fn judge(path: &Path, found: Ownership, place: FileRole, euid: u32) -> Result<()> {
    match objection(&commensal_core::spelling::of_path(path), found, place, euid) {
        Some(object) => Err(HostError { operation: "rely on", object, value: None, errno: Number::EPERM }),
        None => Ok(()),
    }
}

fn judge_open(fd: BorrowedFd<'_>, path: &Path, place: FileRole, euid: u32) -> Result<Stat> {
    let stat = fstat(fd).map_err(|errno| refused("stat", path, errno))?;
    judge(path, Ownership { owner: stat.st_uid, mode: stat.st_mode & 0o7777 }, place, euid)?;
    Ok(stat)
}

/// Opens a directory component by component, starting at the root, and checks everything on the path. `make` creates
/// missing directories, accessible to their owner only. The last directory is checked in the role `place`. Returns the
/// directory and its path without links.
fn walk(path: &Path, euid: u32, make: bool, place: FileRole) -> Result<(OwnedFd, PathBuf)> {
    let absolute = std::path::absolute(path).map_err(|error| failed("open", path, &error))?;
    let names = |path: &Path| -> Vec<OsString> {
        path.components()
            .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
            .map(|part| part.as_os_str().to_owned())
            .collect()
    };
    let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = || openat(CWD, "/", folder, Mode::empty()).map_err(|errno| refused("open", path, errno));
    let (mut at, mut here) = (root()?, PathBuf::from("/"));
    // The components that are still to be opened; the next one is the last element.
    let mut left: Vec<OsString> = names(&absolute).into_iter().rev().collect();
    let mut links = 0;
    loop {
        let last = left.is_empty();
        judge_open(at.as_fd(), &here, if last { place } else { FileRole::Above }, euid)?;
        let Some(name) = left.pop() else { return Ok((at, here)) };
        let there = here.join(&name);
        let open = || openat(&at, &name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        let opened = match open() {
            Err(Errno::NOENT) if make => {
                match rustix::fs::mkdirat(&at, &name, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(refused("create", &there, errno)),
                }
                open()
            }
            other => other,
        };
        let next = opened.map_err(|errno| refused("open", &there, errno))?;
        let stat = fstat(&next).map_err(|errno| refused("stat", &there, errno))?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
            judge_open(next.as_fd(), &there, FileRole::Link, euid)?;
            links += 1;
            if links > LINKS {
                return Err(refused("open", path, Errno::LOOP));
            }
            let target = rustix::fs::readlinkat(&next, "", Vec::new());
            let target = target.map_err(|errno| refused("read", &there, errno))?;
            let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
            left.extend(names(&target).into_iter().rev());
            if target.is_absolute() {
                (at, here) = (root()?, PathBuf::from("/"));
            }
        } else if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            at = next;
            if name == ".." {
                here.pop();
            } else {
                here = there;
            }
        } else {
            return Err(refused("open", &there, Errno::NOTDIR));
        }
    }
}

/// Creates one of commensal's directories and its parents.
pub(crate) fn make(path: &Path, guard: Guard<'_>) -> Result<()> {
    walk(path, guard.euid, true, FileRole::Own).map(drop)
}

/// Refuses a directory if users other than root and `euid` can write it or a directory above it.
pub(crate) fn judge_folder(path: &Path, euid: u32) -> Result<()> {
    walk(path, euid, false, FileRole::Own).map(drop)
}

/// The path from the root on without symbolic links, `.` and `..`, as far as it exists.
#[must_use]
pub fn resolved(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for above in absolute.ancestors() {
        if let Ok(there) = above.canonicalize() {
            let rest = absolute.strip_prefix(above).unwrap_or(Path::new(""));
            return rest.components().fold(there, |mut path, part| {
                match part {
                    Component::ParentDir => drop(path.pop()),
                    Component::Normal(name) => path.push(name),
                    _ => {}
                }
                path
            });
        }
    }
    absolute
}

/// Splits a path into directory and file name.
fn parts(path: &Path) -> Result<(&Path, &Path)> {
    let name = path.file_name().ok_or_else(|| refused("open", path, Errno::INVAL))?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((folder, Path::new(name)))
}

/// Opens the directory of a file; directories below the guarded one are checked.
pub(crate) fn folder_of<'p, 'g>(path: &'p Path, guard: Option<Guard<'g>>) -> Result<(Folder<'g>, &'p Path)> {
    let (folder, name) = parts(path)?;
    let guard = guard.filter(|guard| folder.starts_with(guard.folder));
    let fd = match guard {
        Some(guard) => walk(folder, guard.euid, false, FileRole::Own)?.0,
        None => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            openat(CWD, folder, flags, Mode::empty()).map_err(|errno| refused("open", folder, errno))?
        }
    };
    Ok((Folder { fd, path: folder.to_owned(), guard }, name))
}

impl Folder<'_> {
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Opens a regular file in the directory: without following a link, and without waiting for the other end of a
    /// pipe.
    pub(crate) fn open(&self, operation: &'static str, name: &Path, flags: OFlags) -> Result<File> {
        let path = self.path.join(name);
        let ours = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let fd = openat(&self.fd, name, flags | ours, Mode::RUSR | Mode::WUSR).map_err(|errno| {
            let stat = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW);
            let odd = stat.ok().and_then(|stat| kind(&stat)).filter(|_| errno != Errno::EXIST);
            odd.map_or_else(|| refused(operation, &path, errno), |(is, errno)| other_kind(&path, is, errno))
        })?;
        let stat = fstat(&fd).map_err(|errno| refused("stat", &path, errno))?;
        if let Some((is, errno)) = kind(&stat) {
            return Err(other_kind(&path, is, errno));
        }
        // Writing to a second hard link of another user's file would write to that file.
        if !(flags & OFlags::RWMODE).is_empty() && stat.st_nlink > 1 {
            return Err(other_kind(&path, "one of several hard links to a file", Number::EMLINK));
        }
        if let Some(guard) = self.guard {
            judge_open(fd.as_fd(), &path, FileRole::Own, guard.euid)?;
        }
        Ok(File::from(fd))
    }

    /// The directory, opened for reading.
    pub(crate) fn itself(&self) -> Result<File> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = openat(&self.fd, ".", flags, Mode::empty());
        fd.map(File::from).map_err(|errno| refused("open", &self.path, errno))
    }

    /// Syncs the directory: only then is the name of a new file on disk.
    pub(crate) fn sync(&self) -> Result<()> {
        rustix::fs::fsync(self.itself()?).map_err(|errno| refused("sync", &self.path, errno))
    }
}

/// Reads at most `most` bytes of a configuration file. Refuses a file that another user could have written. Follows
/// symbolic links, and checks each of them in the same way.
pub(crate) fn read_trusted(path: &Path, euid: u32, most: u64) -> Result<Vec<u8>> {
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        let (folder, name) = parts(&path)?;
        let (fd, here) = walk(folder, euid, false, FileRole::Above)?;
        let there = here.join(name);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let opened = match openat(&fd, name, flags, Mode::empty()) {
            Err(Errno::LOOP) => {
                let link =
                    openat(&fd, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
                let link = link.map_err(|errno| refused("read", &there, errno))?;
                judge_open(link.as_fd(), &there, FileRole::Link, euid)?;
                let target = rustix::fs::readlinkat(&link, "", Vec::new());
                let target = target.map_err(|errno| refused("read", &there, errno))?;
                path = here.join(PathBuf::from(OsString::from_vec(target.into_bytes())));
                continue;
            }
            other => other.map_err(|errno| refused("read", &there, errno))?,
        };
        judge_open(opened.as_fd(), &there, FileRole::Own, euid)?;
        let mut bytes = Vec::new();
        let read = File::from(opened).take(most).read_to_end(&mut bytes);
        return read.map(|_| bytes).map_err(|error| failed("read", &there, &error));
    }
    Err(refused("read", &path, Errno::LOOP))
}
