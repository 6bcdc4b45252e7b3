//! Fault injection (feature `faults`, for the chaos soak; never in released builds): a host that replaces
//! [`linux::LinuxHost`] and makes some of its calls fail. This host wraps the real host, whose code contains nothing
//! for fault injection.
//!
//! ```text
//! COMMENSAL_FAULTS="seed=7 per-mille=20 kinds=write+read errnos=EIO+EBUSY log=/dir/faults while=/dir/on"
//!
//! call ─► kind ─► injected now? ─┬─ no ──► the real host
//!         (KINDS: the errnos     ├─ before:  fails, nothing is done
//!          that the kernel has   ├─ after:   is done, and fails
//!          for it)               ├─ ignored: is not done, and succeeds (control files)
//!                                └─ misread: is done, and the next read has what was there before (control files)
//! ```
//!
//! Without `kinds` or `errnos`, all kinds or error numbers occur. With `while`, faults occur only while the named file
//! exists. Each fault is logged as one line of `log`: PID, kind, how the call fails, error, object.

use crate::process::{Child, Process, SpawnSpec};
use crate::{Counters, Dir, Event, Host, HostError, Lock, LockFile, Result, Signal, Watch, linux};
use commensal_core::cpuset::CpuSet;
use commensal_core::errno::Errno;
use commensal_core::process::{Cookie, Scheduling};
use commensal_core::rng::splitmix64;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Environment variable that configures the faults.
const VARIABLE: &str = "COMMENSAL_FAULTS";

/// A kind of call, and the errors that the kernel can return for it.
#[derive(Debug)]
struct Kind {
    name: &'static str,
    errnos: &'static [Errno],
    /// Whether the call can change something and still report an error ([`How::After`]).
    changes: bool,
}

const fn kind(name: &'static str, changes: bool, errnos: &'static [Errno]) -> Kind {
    Kind { name, errnos, changes }
}

const READ: Kind = kind("read", false, &[Errno::EIO, Errno::ENODEV, Errno::ENOMEM]);
const READ_FILE: Kind = kind("read-file", false, &[Errno::EIO, Errno::EMFILE, Errno::ENOMEM]);
const LIST: Kind = kind("list", false, &[Errno::EIO, Errno::EMFILE, Errno::ENOMEM]);
/// Without EACCES: permission to open a group does not change from one call to the next.
const OPEN: Kind = kind("open", false, &[Errno::EMFILE, Errno::ENOMEM]);
const WRITE: Kind = kind(
    "write",
    true,
    &[
        Errno::EACCES,
        Errno::EBUSY,
        Errno::EINVAL,
        Errno::EIO,
        Errno::ENODEV,
        Errno::ENOMEM,
        Errno::ENOSPC,
        Errno::EPERM,
    ],
);
/// Never [`How::After`]: the real host either creates and opens the group, or removes it again if opening fails.
const CREATE: Kind = kind("create", false, &[Errno::EACCES, Errno::EAGAIN, Errno::ENOMEM, Errno::ENOSPC]);
const REMOVE: Kind = kind("remove", true, &[Errno::EACCES, Errno::EBUSY, Errno::EPERM]);
const RENAME: Kind = kind("rename", true, &[Errno::EBUSY, Errno::ENOMEM, Errno::EPERM]);
const ATTRIBUTE: Kind = kind("attribute", false, &[Errno::EIO, Errno::ENOMEM]);
const SET_ATTRIBUTE: Kind = kind("set-attribute", true, &[Errno::E2BIG, Errno::ENOMEM, Errno::ENOSPC]);
const STATE_READ: Kind = kind("state-read", false, &[Errno::EIO, Errno::EMFILE, Errno::ENOMEM]);
/// Includes the write's `fsync`: when a file system turns read-only, a write can take effect and still fail.
const STATE_WRITE: Kind =
    kind("state-write", true, &[Errno::EDQUOT, Errno::EIO, Errno::ENOSPC, Errno::EROFS]);
const STATE_RENAME: Kind = kind("state-rename", true, &[Errno::EIO, Errno::ENOSPC, Errno::EROFS]);
const LOCK: Kind = kind("lock", false, &[Errno::EINTR, Errno::EMFILE, Errno::ENOMEM]);
const START: Kind = kind("start", false, &[Errno::EAGAIN, Errno::EMFILE, Errno::ENOMEM]);

const KINDS: [&Kind; 15] = [
    &READ,
    &READ_FILE,
    &LIST,
    &OPEN,
    &WRITE,
    &CREATE,
    &REMOVE,
    &RENAME,
    &ATTRIBUTE,
    &SET_ATTRIBUTE,
    &STATE_READ,
    &STATE_WRITE,
    &STATE_RENAME,
    &LOCK,
    &START,
];

/// How a call fails; see the diagram of the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Before(Errno),
    After(Errno),
    Ignored,
    Misread,
}

/// The configured faults.
#[derive(Debug, Default)]
struct Source {
    seed: u64,
    per_mille: u64,
    /// Kinds of calls that can fail; empty for all.
    kinds: Vec<&'static str>,
    /// Error numbers to return; empty for all that the kernel can return for the call.
    errnos: Vec<Errno>,
    log: Option<PathBuf>,
    only_while: Option<PathBuf>,
}

impl Source {
    fn parse(text: &str) -> std::result::Result<Source, String> {
        let mut source = Source::default();
        for part in text.split_whitespace() {
            let (key, value) = part.split_once('=').ok_or_else(|| format!("{part}: not KEY=VALUE"))?;
            let number = || value.parse().map_err(|_| format!("{part}: not a number"));
            match key {
                "seed" => source.seed = number()?,
                "per-mille" => source.per_mille = number()?,
                "kinds" => {
                    for name in value.split('+') {
                        let known = KINDS.iter().find(|kind| kind.name == name);
                        source.kinds.push(known.ok_or_else(|| format!("{name}: not a kind of call"))?.name);
                    }
                }
                "errnos" => {
                    for name in value.split('+') {
                        source.errnos.push(
                            Errno::from_name(name)
                                .ok_or_else(|| format!("{name}: not the name of an error number"))?,
                        );
                    }
                }
                "log" => source.log = Some(PathBuf::from(value)),
                "while" => source.only_while = Some(PathBuf::from(value)),
                _ => return Err(format!("{key}: not a known key")),
            }
        }
        Ok(source)
    }

    /// Decides whether and how a call fails, with one random number for each of these decisions.
    fn choose(&self, kind: &Kind, whether: u64, how: u64) -> Option<How> {
        let named = self.kinds.is_empty() || self.kinds.contains(&kind.name);
        if !named || whether % 1_000 >= self.per_mille {
            return None;
        }
        let may = |errno: &&Errno| self.errnos.is_empty() || self.errnos.contains(errno);
        let errnos: Vec<Errno> = kind.errnos.iter().filter(may).copied().collect();
        let errno = *errnos.get((how >> 8) as usize % errnos.len().max(1))?;
        Some(match (kind.name, how % 4) {
            ("write", 1) => How::Ignored,
            ("write", 2) => How::Misread,
            (_, 3) if kind.changes => How::After(errno),
            _ => How::Before(errno),
        })
    }

    fn note(&self, kind: &Kind, how: How, object: &str) {
        let Some(log) = &self.log else { return };
        let told = match how {
            How::Before(errno) => format!("before {errno}"),
            How::After(errno) => format!("after {errno}"),
            How::Ignored => "ignored -".to_owned(),
            How::Misread => "misread -".to_owned(),
        };
        let line = format!("{} {} {told} {object}\n", std::process::id(), kind.name);
        // The fault is injected even if the log cannot be written.
        if let Ok(mut file) = OpenOptions::new().create(true).append(true).open(log) {
            let _ = file.write_all(line.as_bytes());
        }
    }
}

fn mixed(mut state: u64) -> u64 {
    splitmix64(&mut state)
}

/// Returns the fault for the next call; calls are counted over all hosts of this process. The fault of the n-th call
/// depends only on the configuration and on whether the process is a guard (has the argument `guard`).
fn injected(kind: &Kind, object: impl FnOnce() -> String) -> Option<How> {
    static SOURCE: OnceLock<Option<Source>> = OnceLock::new();
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let source = SOURCE.get_or_init(|| {
        let mut source = match Source::parse(&std::env::var(VARIABLE).ok()?) {
            Ok(source) => source,
            Err(why) => panic!("{VARIABLE}: {why}"),
        };
        let verb = std::env::args().any(|argument| argument == "guard");
        source.seed = mixed(source.seed ^ u64::from(verb));
        Some(source)
    });
    let source = source.as_ref()?;
    if source.only_while.as_ref().is_some_and(|file| !file.exists()) {
        return None;
    }
    let call = CALLS.fetch_add(2, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let (whether, how) =
        (mixed(source.seed.wrapping_add(call)), mixed(source.seed.wrapping_add(call).wrapping_add(1)));
    let how = source.choose(kind, whether, how)?;
    source.note(kind, how, &object());
    Some(how)
}

/// The real host, with injected faults.
#[derive(Debug, Default)]
pub struct FaultyHost {
    real: linux::LinuxHost,
    /// Text that the next read of a control file returns instead of its content.
    misread: RefCell<HashMap<(Dir, String), String>>,
}

impl FaultyHost {
    /// Creates a host for the machine this process runs on.
    #[must_use]
    pub fn new() -> FaultyHost {
        FaultyHost { real: linux::LinuxHost::new(), ..FaultyHost::default() }
    }

    /// Same as `guard_state` of the real host.
    pub fn guard_state(&mut self, folder: &Path) {
        self.real.guard_state(folder);
    }

    /// Same as `has_children` of the real host.
    #[must_use]
    pub fn has_children(&self, folder: &Path) -> bool {
        self.real.has_children(folder)
    }

    /// Carries out a call, or makes it fail before or after it takes effect.
    fn call<T>(
        &mut self,
        kind: &Kind,
        operation: &'static str,
        object: String,
        act: impl FnOnce(&mut linux::LinuxHost) -> Result<T>,
    ) -> Result<T> {
        let refused = |errno| Err(HostError { operation, object: object.clone(), value: None, errno });
        match injected(kind, || object.clone()) {
            Some(How::Before(errno)) => refused(errno),
            Some(How::After(errno)) => act(&mut self.real).and_then(|_| refused(errno)),
            _ => act(&mut self.real),
        }
    }

    fn look<T>(
        &self,
        kind: &Kind,
        operation: &'static str,
        object: &dyn Fn() -> String,
        act: impl FnOnce(&linux::LinuxHost) -> Result<T>,
    ) -> Result<T> {
        match injected(kind, object) {
            Some(How::Before(errno) | How::After(errno)) => {
                Err(HostError { operation, object: object(), value: None, errno })
            }
            _ => act(&self.real),
        }
    }

    fn at(&self, dir: Dir, name: &str) -> String {
        self.real.object(dir, name)
    }
}

fn of(path: &Path) -> String {
    commensal_core::spelling::of_path(path)
}

impl Host for FaultyHost {
    fn read_file(&self, path: &Path) -> Result<String> {
        self.look(&READ_FILE, "read", &|| of(path), |real| real.read_file(path))
    }

    fn read_trusted(&self, path: &Path) -> Result<String> {
        self.look(&READ_FILE, "read", &|| of(path), |real| real.read_trusted(path))
    }

    fn trust_folder(&self, path: &Path) -> Result<()> {
        self.look(&READ_FILE, "read", &|| of(path), |real| real.trust_folder(path))
    }

    fn is_guarded(&self) -> bool {
        self.real.is_guarded()
    }

    fn link(&self, path: &Path) -> Result<String> {
        self.real.link(path)
    }

    fn list(&self, path: &Path) -> Result<Vec<String>> {
        self.look(&LIST, "list", &|| of(path), |real| real.list(path))
    }

    fn ask(&self, path: &Path, request: &str, patience: Duration) -> Result<String> {
        self.real.ask(path, request, patience)
    }

    fn ask_own(&self, path: &Path, request: &str, patience: Duration) -> Result<String> {
        self.real.ask_own(path, request, patience)
    }

    fn listen(&mut self, path: &Path) -> Result<UnixListener> {
        self.real.listen(path)
    }

    fn listener(&self, path: &Path) -> Result<Option<u32>> {
        self.real.listener(path)
    }

    fn listen_for(&mut self, path: &Path, group: u32) -> Result<UnixListener> {
        self.real.listen_for(path, group)
    }

    fn open(&mut self, path: &Path) -> Result<Dir> {
        self.call(&OPEN, "open", of(path), |real| real.open(path))
    }

    fn open_child(&mut self, parent: Dir, name: &str) -> Result<Dir> {
        self.call(&OPEN, "open", self.at(parent, name), |real| real.open_child(parent, name))
    }

    fn children(&mut self, dir: Dir) -> Result<Vec<String>> {
        self.call(&LIST, "list", self.at(dir, ""), |real| real.children(dir))
    }

    fn read(&mut self, dir: Dir, file: &str) -> Result<String> {
        let text = self.call(&READ, "read", self.at(dir, file), |real| real.read(dir, file))?;
        Ok(self.misread.get_mut().remove(&(dir, file.to_owned())).unwrap_or(text))
    }

    fn write(&mut self, dir: Dir, file: &str, value: &str) -> Result<()> {
        let object = self.at(dir, file);
        let refused = |errno| {
            Err(HostError {
                operation: "write",
                object: object.clone(),
                value: Some(value.to_owned()),
                errno,
            })
        };
        match injected(&WRITE, || format!("{object} <- {}", value.trim_end())) {
            None => self.real.write(dir, file, value),
            Some(How::Before(errno)) => refused(errno),
            Some(How::After(errno)) => self.real.write(dir, file, value).and_then(|()| refused(errno)),
            Some(How::Ignored) => Ok(()),
            Some(How::Misread) => {
                let before = self.real.read(dir, file);
                self.real.write(dir, file, value)?;
                // A list of processes is not a value that another program could have restored.
                if let Some(before) = before.ok().filter(|_| !linux::SNAPSHOTS.contains(&file)) {
                    self.misread.get_mut().insert((dir, file.to_owned()), before);
                }
                Ok(())
            }
        }
    }

    fn mkdir(&mut self, parent: Dir, name: &str) -> Result<Dir> {
        self.call(&CREATE, "create", self.at(parent, name), |real| real.mkdir(parent, name))
    }

    fn rmdir(&mut self, parent: Dir, name: &str, inode: u64) -> Result<()> {
        self.call(&REMOVE, "remove", self.at(parent, name), |real| real.rmdir(parent, name, inode))
    }

    fn rename(&mut self, parent: Dir, from: &str, inode: u64, to: &str) -> Result<()> {
        self.call(&RENAME, "rename", self.at(parent, from), |real| real.rename(parent, from, inode, to))
    }

    fn attribute(&mut self, dir: Dir, name: &str) -> Result<Option<String>> {
        self.call(&ATTRIBUTE, "read an attribute of", self.at(dir, name), |real| real.attribute(dir, name))
    }

    fn attributes(&mut self, dir: Dir, prefix: &str) -> Result<Vec<String>> {
        self.call(&ATTRIBUTE, "list the attributes of", self.at(dir, ""), |real| real.attributes(dir, prefix))
    }

    fn set_attribute(&mut self, dir: Dir, name: &str, value: Option<&str>) -> Result<()> {
        let object = self.at(dir, name);
        self.call(&SET_ATTRIBUTE, "set an attribute of", object, |real| real.set_attribute(dir, name, value))
    }

    fn lock_group(&mut self, dir: Dir) -> Result<Option<Lock>> {
        self.call(&LOCK, "lock", self.at(dir, ""), |real| real.lock_group(dir))
    }

    fn may_write(&mut self, dir: Dir, file: &str) -> bool {
        self.real.may_write(dir, file)
    }

    fn write_setting(&mut self, path: &Path, value: &str) -> Result<()> {
        self.call(&WRITE, "write", of(path), |real| real.write_setting(path, value))
    }

    fn close(&mut self, dir: Dir) {
        self.misread.get_mut().retain(|(of, _), _| *of != dir);
        self.real.close(dir);
    }

    fn spawn(&mut self, spec: &SpawnSpec) -> Result<Child> {
        self.call(&START, "start", "a process".to_owned(), |real| real.spawn(spec))
    }

    fn process(&mut self, pid: u32) -> Result<Process> {
        self.real.process(pid)
    }

    fn signal(&mut self, process: &Process, signal: Signal) -> Result<()> {
        self.real.signal(process, signal)
    }

    fn adopt_orphans(&mut self, adopt: bool) -> Result<()> {
        self.real.adopt_orphans(adopt)
    }

    fn cookie(&mut self, tid: u32) -> Result<u64> {
        self.real.cookie(tid)
    }

    fn share_cookie(&mut self, cookie: Cookie, tids: &[u32]) -> Result<()> {
        self.real.share_cookie(cookie, tids)
    }

    fn set_affinity(&mut self, tid: u32, cpus: &CpuSet) -> Result<()> {
        self.real.set_affinity(tid, cpus)
    }

    fn set_policy(&mut self, tid: u32, policy: i32) -> Result<()> {
        self.real.set_policy(tid, policy)
    }

    fn scheduling(&self, tid: u32) -> Result<Scheduling> {
        self.real.scheduling(tid)
    }

    fn set_scheduling(&mut self, tid: u32, to: &Scheduling) -> Result<()> {
        self.real.set_scheduling(tid, to)
    }

    fn count(&mut self, dir: Dir, cpus: &CpuSet, events: &[Event]) -> Result<Counters> {
        self.real.count(dir, cpus, events)
    }

    fn euid(&self) -> u32 {
        self.real.euid()
    }

    fn state_dir(&mut self, path: &Path) -> Result<()> {
        self.call(&STATE_RENAME, "create", of(path), |real| real.state_dir(path))
    }

    fn state_read_within(&mut self, path: &Path, most: u64) -> Result<Option<String>> {
        self.call(&STATE_READ, "read", of(path), |real| real.state_read_within(path, most))
    }

    fn state_append(&mut self, path: &Path, text: &str) -> Result<()> {
        self.call(&STATE_WRITE, "append to", of(path), |real| real.state_append(path, text))
    }

    fn state_replace(&mut self, path: &Path, text: &str) -> Result<()> {
        self.call(&STATE_WRITE, "replace", of(path), |real| real.state_replace(path, text))
    }

    fn state_rename(&mut self, from: &Path, to: &Path) -> Result<()> {
        self.call(&STATE_RENAME, "rename", of(from), |real| real.state_rename(from, to))
    }

    fn state_remove(&mut self, path: &Path) -> Result<()> {
        self.call(&STATE_RENAME, "remove", of(path), |real| real.state_remove(path))
    }

    fn state_remove_all(&mut self, path: &Path) -> Result<()> {
        self.real.state_remove_all(path)
    }

    fn free_bytes(&self, path: &Path) -> Result<u64> {
        self.real.free_bytes(path)
    }

    fn state_lock(&mut self, path: &Path) -> Result<Option<Lock>> {
        self.call(&LOCK, "lock", of(path), |real| real.state_lock(path))
    }

    fn state_lock_new(&mut self, path: &Path, text: &str) -> Result<Lock> {
        self.call(&LOCK, "lock", of(path), |real| real.state_lock_new(path, text))
    }

    fn state_lock_file(&self, path: &Path) -> Result<Option<LockFile>> {
        self.real.state_lock_file(path)
    }

    fn state_watch(&self, folders: &[&Path]) -> Result<Watch> {
        self.real.state_watch(folders)
    }

    fn pulse(&self) -> Arc<AtomicU64> {
        self.real.pulse()
    }

    fn boot_time(&self) -> Duration {
        self.real.boot_time()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(text: &str, kind: &Kind) -> Vec<How> {
        let source = Source::parse(text).unwrap();
        let random = |number: u64| mixed(source.seed.wrapping_add(number));
        (0..10_000).filter_map(|call| source.choose(kind, random(call * 2), random(call * 2 + 1))).collect()
    }

    #[test]
    fn faults_are_as_many_as_asked_for_and_the_same_for_a_seed() {
        let text = "seed=7 per-mille=20";
        let writes = chosen(text, &WRITE);
        assert!((150..=250).contains(&writes.len()), "{}", writes.len());
        assert_eq!(writes, chosen(text, &WRITE));
        assert_ne!(writes, chosen("seed=8 per-mille=20", &WRITE));
        for how in [How::Ignored, How::Misread, How::Before(Errno::EBUSY), How::After(Errno::EIO)] {
            assert!(writes.contains(&how), "{how:?}");
        }
        assert!(chosen("seed=7", &WRITE).is_empty());
    }

    #[test]
    fn only_named_kinds_and_errors_come_and_only_those_of_the_call() {
        let reads = chosen("per-mille=500 errnos=EIO+EBUSY", &READ);
        assert!(!reads.is_empty() && reads.iter().all(|how| *how == How::Before(Errno::EIO)), "{reads:?}");
        assert!(chosen("per-mille=500 kinds=write", &READ).is_empty());
        assert!(chosen("per-mille=500 errnos=ENOENT", &READ).is_empty());
    }

    #[test]
    fn what_is_misspelled_is_refused() {
        for (text, why) in [
            ("seed", "seed: not KEY=VALUE"),
            ("seed=x", "seed=x: not a number"),
            ("kinds=writes", "writes: not a kind of call"),
            ("errnos=EFOO", "EFOO: not the name of an error number"),
            ("permille=3", "permille: not a known key"),
        ] {
            assert_eq!(Source::parse(text).unwrap_err(), why);
        }
    }
}
