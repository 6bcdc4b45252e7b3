//! Implements [`Host`] for the fake: finds the open directory, applies faults, performs the operation on the machine,
//! and builds the error.

use super::faults::Kind;
use super::machine::{Effect, Machine};
use super::opening::{FakeLockFile, Token};
use super::parse::Answer;
use super::{FakeHost, OpenDir, own_pid};
use crate::error::too_large;
use crate::linux::{SNAPSHOTS, component, plain_path};
use crate::locks::{Held, Lockable};
use crate::{
    Child, Cookie, Counters, Dir, Event, Host, HostError, Lock, LockFile, Process, Result, Scheduling,
    Signal, SpawnSpec, Stdout, Watch,
};
use commensal_core::cpuset::CpuSet;
use commensal_core::errno::Errno;
use commensal_core::process::{SCHED_FIFO, SCHED_RR};
use std::collections::BTreeSet;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

fn refused(operation: &'static str, object: impl Into<String>, errno: Errno) -> HostError {
    HostError { operation, object: object.into(), value: None, errno }
}

fn locked(token: Token) -> Lock {
    Lock(Held::Fake(token))
}

fn shown(path: &Path) -> String {
    commensal_core::spelling::of_path(path)
}

impl FakeHost {
    fn keep(&mut self, inode: u64, path: &Path) -> Dir {
        let open = OpenDir { inode, path: path.to_owned(), generation: 0, held: BTreeSet::new() };
        self.dirs.push(Some(open));
        let slot = u32::try_from(self.dirs.len() - 1).unwrap_or(u32::MAX);
        Dir { slot, generation: 0, inode }
    }

    fn opened(&mut self, dir: Dir) -> Result<&mut OpenDir> {
        self.dirs
            .get_mut(dir.slot as usize)
            .and_then(Option::as_mut)
            .filter(|open| open.generation == dir.generation && open.inode == dir.inode)
            .ok_or_else(|| refused("use", "a closed directory", Errno::EBADF))
    }

    /// Returns the directory's inode and the absolute path of a name in it.
    fn at(&mut self, dir: Dir, name: &str) -> Result<(u64, String)> {
        let open = self.opened(dir)?;
        Ok((open.inode, shown(&open.path.join(name))))
    }

    /// Opens a control file, if it is not open yet.
    fn hold(&mut self, dir: Dir, file: &str) -> Answer<()> {
        let there = |machine: &Machine| {
            machine.groups.get(&dir.inode).is_some_and(|group| group.files.contains_key(file))
        };
        let there = there(&self.machine());
        let Ok(open) = self.opened(dir) else { return Err(Errno::EBADF) };
        if there {
            open.held.insert(file.to_owned());
            return Ok(());
        }
        Err(if open.held.contains(file) { Errno::ENODEV } else { Errno::ENOENT })
    }

    /// Sets a thread's scheduling attributes; `name` is the value of the mutation.
    fn set_attributes(&mut self, tid: u32, to: Scheduling, name: &str) -> Result<()> {
        let mut machine = self.machine();
        let object = format!("thread {tid}");
        let refuse = |errno| HostError {
            value: Some(name.to_owned()),
            ..refused("set the scheduling policy of", object.as_str(), errno)
        };
        machine.may_change(self.life, Kind::Other).map_err(refuse)?;
        let effect = machine.troubled("policy", &object, name).map_err(refuse)?;
        let found = machine.process_of(tid).filter(|(_, process)| process.cookie(tid).is_some());
        let (pid, groups, foreign) = found
            .map(|(pid, process)| (pid, process.groups.clone(), process.looks.uid != 1000))
            .ok_or_else(|| refuse(Errno::ESRCH))?;
        if machine.faults.unprivileged && foreign {
            return Err(refuse(Errno::EPERM));
        }
        if [SCHED_FIFO, SCHED_RR].contains(&to.policy) {
            machine.real_time_budget(&groups, Errno::EPERM).map_err(refuse)?;
        }
        if effect.is_none()
            && let Some(process) = machine.processes.get_mut(&pid)
        {
            process.scheduling.insert(tid, to);
        }
        machine.go_on();
        machine.changed("policy", object, name);
        Ok(())
    }

    /// Makes a change of state files, and records it as a mutation.
    fn state(
        &mut self,
        operation: &'static str,
        path: &Path,
        text: &str,
        act: impl FnOnce(&mut Machine) -> Answer<()>,
    ) -> Result<()> {
        let kind = if operation == "forget" { Kind::Other } else { Kind::State };
        let mut machine = self.machine();
        // Removing and replacing do not check the existing file.
        match (operation, path.parent()) {
            ("replace" | "forget", Some(folder)) => machine.trusted(folder, false)?,
            _ => machine.trusted(path, true)?,
        }
        let done = machine.may_change(self.life, kind).and_then(|()| act(&mut machine));
        done.map_err(|errno| refused(operation, shown(path), errno))?;
        machine.changed(operation, shown(path), text);
        Ok(())
    }
}

impl Machine {
    fn plain_file(&self, path: &Path) -> Answer<String> {
        if let Some((inode, left)) = self.locate(path)
            && left.components().count() == 1
            && let Ok(text) = self.read(inode, &left.to_string_lossy())
        {
            return Ok(text);
        }
        if let Some(text) = self.plain.files.get(path) {
            return Ok(text.clone());
        }
        let under_proc = path.strip_prefix("/proc").ok().and_then(|rest| rest.to_str()?.split_once('/'));
        let text = under_proc.and_then(|(pid, file)| match pid {
            "self" => self.proc_file(own_pid(), file),
            pid => self.proc_file(pid.parse().ok()?, file),
        });
        text.ok_or(Errno::ENOENT)
    }

    fn plain_list(&self, path: &Path) -> Answer<Vec<String>> {
        let mut names = BTreeSet::new();
        if let Ok(inode) = self.group_at(path)
            && let Ok(group) = self.group(inode)
        {
            names.extend(group.files.keys().chain(group.children.keys()).cloned());
        }
        let mounts = self.trees.iter().map(|tree| &tree.mount);
        for known in self.plain.below(path).chain(&self.plain.folders).chain(mounts) {
            let inside = known.strip_prefix(path).ok().and_then(|rest| rest.components().next());
            names.extend(inside.map(|name| name.as_os_str().to_string_lossy().into_owned()));
        }
        let tasks = path.strip_prefix("/proc").ok().and_then(|rest| rest.to_str()?.strip_suffix("/task"));
        if let Some((_, process)) = tasks.and_then(|pid| self.process_of(pid.parse().ok()?)) {
            names.extend(process.threads.keys().map(u32::to_string));
        }
        if path == Path::new("/proc") {
            let present = self.processes.keys().filter(|pid| self.present(**pid).is_ok());
            names.extend(present.map(u32::to_string));
        }
        if names.is_empty() && !self.plain.folders.contains(path) {
            let file = self.plain.files.contains_key(path);
            return Err(if file { Errno::ENOTDIR } else { Errno::ENOENT });
        }
        Ok(names.into_iter().collect())
    }

    fn trusted(&self, path: &Path, as_file: bool) -> Result<()> {
        self.plain.trusted(path, as_file, if self.faults.unprivileged { 1000 } else { 0 })
    }
}

impl Host for FakeHost {
    fn read_file(&self, path: &Path) -> Result<String> {
        let mut machine = self.machine();
        let troubled =
            machine.alive(self.life).and_then(|()| machine.troubled("read", &path.to_string_lossy(), ""));
        let text = troubled.and_then(|_| machine.plain_file(path));
        text.map_err(|errno| refused("read", shown(path), errno))
    }

    fn read_trusted(&self, path: &Path) -> Result<String> {
        self.machine().trusted(path, false)?;
        self.read_file(path)
    }

    fn trust_folder(&self, path: &Path) -> Result<()> {
        self.machine().trusted(path, false)
    }

    fn is_guarded(&self) -> bool {
        true
    }

    fn link(&self, path: &Path) -> Result<String> {
        let machine = self.machine();
        let pid = path
            .strip_prefix("/proc")
            .ok()
            .and_then(|rest| rest.to_str()?.strip_suffix("/exe")?.parse().ok());
        let exe = |pid: u32| machine.present(pid).map(|process| process.looks.exe.clone());
        // The text of any other file is the target of the link.
        let other = || machine.plain_file(path);
        let link = machine.alive(self.life).and_then(|()| pid.map_or_else(other, exe));
        let link = link.and_then(|exe| if exe.is_empty() { Err(Errno::ENOENT) } else { Ok(exe) });
        link.map_err(|errno| refused("read", shown(path), errno))
    }

    fn list(&self, path: &Path) -> Result<Vec<String>> {
        let machine = self.machine();
        let names = machine.alive(self.life).and_then(|()| machine.plain_list(path));
        names.map_err(|errno| refused("list", shown(path), errno))
    }

    /// Responds only on sockets set with [`FakeHost::serve`] or [`FakeHost::answer`]; other sockets return `ENOENT`.
    fn ask(&self, path: &Path, request: &str, _patience: Duration) -> Result<String> {
        let mut machine = self.machine();
        let usual = machine.alive(self.life).and_then(|()| machine.troubled("ask", &shown(path), request));
        let ignored = usual.map_err(|errno| refused("ask", shown(path), errno))?.is_some();
        if let Some(service) = machine.sockets.services.get_mut(path) {
            // If a fault makes the service ignore a request, the service responds as usual, but its state does not
            // change.
            let answer = if ignored { (service.clone().0)(request) } else { (service.0)(request) };
            return answer.ok_or_else(|| refused("ask", shown(path), Errno::ETIMEDOUT));
        }
        let fits = |(at, begin): &&(PathBuf, String)| at == path && request.starts_with(begin);
        let key = machine.sockets.answers.keys().filter(fits).max_by_key(|(_, begin)| begin.len());
        let answer = key.and_then(|key| machine.sockets.answers.get(key).cloned());
        answer.ok_or_else(|| refused("ask", shown(path), Errno::ENOENT))
    }

    /// Always fails with `EOPNOTSUPP`: a machine in memory has no sockets.
    fn listen(&mut self, path: &Path) -> Result<UnixListener> {
        Err(refused("listen on", shown(path), Errno::EOPNOTSUPP))
    }

    fn listener(&self, path: &Path) -> Result<Option<u32>> {
        Err(refused("connect to", shown(path), Errno::EOPNOTSUPP))
    }

    fn listen_for(&mut self, path: &Path, _group: u32) -> Result<UnixListener> {
        self.listen(path)
    }

    fn open(&mut self, path: &Path) -> Result<Dir> {
        plain_path(path)?;
        let mut machine = self.machine();
        let allowed = machine.alive(self.life).and_then(|()| machine.troubled("open", &shown(path), ""));
        let found = allowed.and_then(|_| machine.group_at(path));
        drop(machine);
        let inode = found.map_err(|errno| refused("open", shown(path), errno))?;
        Ok(self.keep(inode, path))
    }

    fn open_child(&mut self, parent: Dir, name: &str) -> Result<Dir> {
        component("open", name)?;
        let (inode, path) = self.at(parent, name)?;
        let mut machine = self.machine();
        let allowed = machine.alive(self.life).and_then(|()| machine.troubled("open child", &path, ""));
        let child = allowed.and_then(|_| {
            let group = machine.groups.get(&inode).ok_or(Errno::ENOENT)?;
            let file = group.files.contains_key(name);
            group.children.get(name).copied().ok_or(if file { Errno::ENOTDIR } else { Errno::ENOENT })
        });
        drop(machine);
        let child = child.map_err(|errno| refused("open", path.as_str(), errno))?;
        Ok(self.keep(child, Path::new(&path)))
    }

    fn children(&mut self, dir: Dir) -> Result<Vec<String>> {
        let (inode, path) = self.at(dir, "")?;
        let mut machine = self.machine();
        let path = path.trim_end_matches('/');
        let allowed = machine.alive(self.life).and_then(|()| machine.troubled("list", path, ""));
        allowed.map_err(|errno| refused("list", path, errno))?;
        // A removed directory that is still open is empty.
        Ok(machine
            .groups
            .get(&inode)
            .map(|group| group.children.keys().cloned().collect())
            .unwrap_or_default())
    }

    fn read(&mut self, dir: Dir, file: &str) -> Result<String> {
        component("read", file)?;
        let (inode, path) = self.at(dir, file)?;
        let alive = self.machine().alive(self.life);
        // Process lists are opened anew for each read, so that reading a removed group's list returns ENOENT.
        let held = |host: &mut Self| if SNAPSHOTS.contains(&file) { Ok(()) } else { host.hold(dir, file) };
        let troubled = alive.and_then(|()| self.machine().troubled("read", &path, "").map(drop));
        let text = troubled.and_then(|()| held(self)).and_then(|()| self.machine().read(inode, file));
        if text.is_ok() && file == "cgroup.procs" {
            self.machine().listed(inode);
        }
        let text = text.map_err(|errno| match errno {
            Errno::ENODEV if SNAPSHOTS.contains(&file) => Errno::ENOENT,
            other => other,
        });
        text.map_err(|errno| refused("read", path, errno))
    }

    fn write(&mut self, dir: Dir, file: &str, value: &str) -> Result<()> {
        let with_value = |error: HostError| HostError { value: Some(value.to_owned()), ..error };
        component("write", file).map_err(with_value)?;
        let (inode, path) = self.at(dir, file).map_err(with_value)?;
        let refuse = |errno| with_value(refused("write", path.as_str(), errno));
        self.machine().alive(self.life).map_err(refuse)?;
        self.hold(dir, file).map_err(refuse)?;
        let mut machine = self.machine();
        machine.may_change(self.life, Kind::Group).map_err(refuse)?;
        machine.takes(inode, file).map_err(refuse)?;
        if matches!(file, "cgroup.procs" | "tasks") {
            let pid = value.trim().parse().ok().filter(|pid| *pid != 0).unwrap_or(own_pid());
            machine.before_move(pid);
            machine.may_move(pid, inode).map_err(refuse)?;
        }
        let effect = machine.troubled("write", &path, value).map_err(refuse)?;
        let instead = machine.faults.instead.take_if(|(name, _)| name == file);
        let value = match (&effect, &instead) {
            (Some(Effect::Takes(other)), _) | (_, Some((_, other))) => other.as_str(),
            _ => value,
        };
        if effect != Some(Effect::Ignored) {
            machine.write(inode, file, value, own_pid()).map_err(refuse)?;
        }
        machine.changed("write", path.clone(), value);
        match effect {
            Some(Effect::FailsAfter(errno)) => Err(refuse(errno)),
            _ => Ok(()),
        }
    }

    fn mkdir(&mut self, parent: Dir, name: &str) -> Result<Dir> {
        component("create", name)?;
        let (inode, path) = self.at(parent, name)?;
        let mut machine = self.machine();
        let allowed = machine.may_change(self.life, Kind::Group).and_then(|()| machine.takes(inode, ""));
        let allowed = allowed.and_then(|()| machine.troubled("create", &path, ""));
        let made = allowed.and_then(|_| machine.mkdir(inode, name));
        let made = made.map_err(|errno| refused("create", path.as_str(), errno))?;
        machine.changed("create", path.clone(), "");
        drop(machine);
        Ok(self.keep(made, Path::new(&path)))
    }

    fn rmdir(&mut self, parent: Dir, name: &str, inode: u64) -> Result<()> {
        component("remove", name)?;
        let (above, path) = self.at(parent, name)?;
        let mut machine = self.machine();
        let allowed = machine.may_change(self.life, Kind::Group).and_then(|()| machine.takes(above, ""));
        let allowed = allowed.and_then(|()| machine.troubled("remove", &path, ""));
        let gone = allowed.and_then(|_| machine.rmdir(above, name, inode));
        gone.map_err(|errno| refused("remove", path.as_str(), errno))?;
        machine.changed("remove", path, "");
        Ok(())
    }

    fn rename(&mut self, parent: Dir, from: &str, inode: u64, to: &str) -> Result<()> {
        component("rename", from)?;
        component("rename", to)?;
        let (above, path) = self.at(parent, from)?;
        let mut machine = self.machine();
        let done = machine
            .may_change(self.life, Kind::Group)
            .and_then(|()| machine.takes(above, ""))
            .and_then(|()| machine.troubled("rename", &path, to))
            .and_then(|_| machine.rename(above, from, inode, to));
        done.map_err(|errno| HostError {
            value: Some(to.to_owned()),
            ..refused("rename", path.as_str(), errno)
        })?;
        machine.changed("rename", path, to);
        Ok(())
    }

    fn attribute(&mut self, dir: Dir, name: &str) -> Result<Option<String>> {
        let (inode, path) = self.at(dir, "")?;
        let mut machine = self.machine();
        let path = path.trim_end_matches('/');
        let allowed = machine.alive(self.life).and_then(|()| machine.troubled("attribute", path, name));
        allowed.map_err(|errno| refused("read an attribute of", path, errno))?;
        Ok(machine.groups.get(&inode).and_then(|group| group.attributes.get(name).cloned()))
    }

    fn attributes(&mut self, dir: Dir, prefix: &str) -> Result<Vec<String>> {
        let (inode, path) = self.at(dir, "")?;
        let mut machine = self.machine();
        let path = path.trim_end_matches('/');
        let allowed = machine.alive(self.life).and_then(|()| machine.troubled("attributes", path, prefix));
        allowed.map_err(|errno| refused("list the attributes of", path, errno))?;
        let all = machine.groups.get(&inode).into_iter().flat_map(|group| group.attributes.keys());
        // The kernel lists at most 64 KiB of names (`XATTR_LIST_MAX`).
        if all.clone().map(|name| name.len() + 1).sum::<usize>() > 65_536 {
            return Err(refused("list the attributes of", path, Errno::E2BIG));
        }
        // The kernel hides `trusted.*` attributes from other users than root.
        let seen = |name: &&String| !machine.faults.unprivileged || !name.starts_with("trusted.");
        Ok(all.filter(seen).filter(|name| name.starts_with(prefix)).cloned().collect())
    }

    fn set_attribute(&mut self, dir: Dir, name: &str, value: Option<&str>) -> Result<()> {
        let (inode, path) = self.at(dir, "")?;
        let mut machine = self.machine();
        let refuse = |errno| refused("set an attribute of", path.as_str(), errno);
        machine.alive(self.life).map_err(refuse)?;
        if machine.faults.no_attributes {
            return Err(refuse(Errno::EOPNOTSUPP));
        }
        if machine.faults.unprivileged && name.starts_with("trusted.") {
            return Err(refuse(Errno::EPERM));
        }
        // `XATTR_NAME_MAX` and `XATTR_SIZE_MAX` of linux/limits.h.
        if name.len() > 255 {
            return Err(refuse(Errno::ERANGE));
        }
        if value.is_some_and(|value| value.len() > 65_536) {
            return Err(refuse(Errno::E2BIG));
        }
        let group = machine.group_mut(inode).map_err(refuse)?;
        match value {
            Some(value) => drop(group.attributes.insert(name.to_owned(), value.to_owned())),
            None => drop(group.attributes.remove(name)),
        }
        Ok(())
    }

    fn lock_group(&mut self, dir: Dir) -> Result<Option<Lock>> {
        let (_, path) = self.at(dir, "")?;
        let mut machine = self.machine();
        machine.alive(self.life).map_err(|errno| refused("lock", path.as_str(), errno))?;
        Ok(machine.take_lock(Path::new(path.trim_end_matches('/'))).map(locked))
    }

    fn may_write(&mut self, dir: Dir, file: &str) -> bool {
        let machine = self.machine();
        let there = machine.groups.get(&dir.inode).is_some_and(|group| group.files.contains_key(file));
        there && !machine.faults.read_only && machine.permitted(dir.inode, file).is_ok()
    }

    fn write_setting(&mut self, path: &Path, value: &str) -> Result<()> {
        let mut machine = self.machine();
        let done = machine
            .may_change(self.life, Kind::Setting)
            .and_then(|()| machine.troubled("set", &shown(path), value))
            .and_then(|effect| effect.map_or_else(|| machine.write_setting(path, value), |_| Ok(())));
        done.map_err(|errno| HostError {
            value: Some(value.to_owned()),
            ..refused("write", shown(path), errno)
        })?;
        machine.changed("set", shown(path), value);
        Ok(())
    }

    fn close(&mut self, dir: Dir) {
        if let Some(open) = self.dirs.get_mut(dir.slot as usize) {
            *open = None;
        }
    }

    fn spawn(&mut self, spec: &SpawnSpec) -> Result<Child> {
        let mut groups = Vec::with_capacity(spec.groups.len());
        for group in &spec.groups {
            let (inode, path) = self.at(*group, "cgroup.procs")?;
            self.hold(*group, "cgroup.procs").map_err(|errno| refused("write", path, errno))?;
            groups.push(inode);
        }
        let program = spec.program.display().to_string();
        let refuse = |errno| refused("start", program.as_str(), errno);
        let kind = if groups.is_empty() { Kind::Other } else { Kind::Group };
        let mut machine = self.machine();
        machine.may_change(self.life, kind).map_err(refuse)?;
        for inode in &groups {
            machine.takes(*inode, "cgroup.procs").map_err(refuse)?;
            machine.may_move(own_pid(), *inode).map_err(refuse)?;
        }
        let pid = machine.spawn(spec, &groups, own_pid()).map_err(refuse)?;
        let stdout = match &spec.stdout {
            Stdout::Pipe => {
                let text = machine.programs.outputs.get(&spec.program).cloned().unwrap_or_default();
                Some(pipe_with(&text).map_err(|error| refuse(Errno(error.raw_os_error())))?)
            }
            Stdout::Inherit | Stdout::Null | Stdout::Append(_) | Stdout::Fd(_) => None,
        };
        let started =
            machine.processes.get(&pid).map(|process| (process.start_ticks, process.running.clone()));
        let (start_ticks, running) = started.ok_or_else(|| refuse(Errno::ESRCH))?;
        machine.changed("start", program.clone(), &pid.to_string());
        let process = Process { pid, start_ticks, pidfd: None };
        Ok(Child { process, stdout, exit: None, running: Some(running) })
    }

    fn process(&mut self, pid: u32) -> Result<Process> {
        let machine = self.machine();
        let start_ticks = machine.alive(self.life).and_then(|()| Ok(machine.present(pid)?.start_ticks));
        let start_ticks = start_ticks.map_err(|errno| refused("open", format!("pid {pid}"), errno))?;
        Ok(Process { pid, start_ticks, pidfd: None })
    }

    fn signal(&mut self, process: &Process, signal: Signal) -> Result<()> {
        let object = format!("pid {}", process.pid);
        let mut machine = self.machine();
        let foreign = machine.processes.get(&process.pid).is_some_and(|process| process.spec.is_none());
        if signal == Signal::NONE {
            let there = machine.alive(self.life).and_then(|()| {
                let found = machine.present(process.pid)?;
                let same = found.start_ticks == process.start_ticks && found.running.exit().is_none();
                if same { Ok(()) } else { Err(Errno::ESRCH) }
            });
            return there.map_err(|errno| refused("signal", object, errno));
        }
        let sent = machine.may_change(self.life, Kind::Other).and_then(|()| {
            if machine.faults.unprivileged && foreign {
                return Err(Errno::EPERM);
            }
            machine.deliver(process.pid, process.start_ticks, signal)
        });
        sent.map_err(|errno| refused("signal", object.as_str(), errno))?;
        machine.changed("signal", object, &signal.0.to_string());
        Ok(())
    }

    fn adopt_orphans(&mut self, _adopt: bool) -> Result<()> {
        Ok(())
    }

    fn cookie(&mut self, tid: u32) -> Result<u64> {
        let machine = self.machine();
        let cookie = machine.alive(self.life).and_then(|()| machine.cookie(tid));
        cookie.map_err(|errno| refused("read", format!("the core-scheduling cookie of thread {tid}"), errno))
    }

    fn share_cookie(&mut self, cookie: Cookie, tids: &[u32]) -> Result<()> {
        let mut machine = self.machine();
        let done = machine
            .may_change(self.life, Kind::Other)
            .and_then(|()| machine.troubled("cookie", "", &format!("{cookie:?}")))
            .and_then(|effect| effect.map_or_else(|| machine.share_cookie(cookie, tids), |_| Ok(())));
        done.map_err(|errno| refused("give", "a core-scheduling cookie", errno))?;
        machine.changed("cookie", format!("{tids:?}"), &format!("{cookie:?}"));
        Ok(())
    }

    fn set_affinity(&mut self, tid: u32, cpus: &CpuSet) -> Result<()> {
        let mut machine = self.machine();
        let object = format!("thread {tid}");
        let refuse = |errno| refused("set the affinity of", object.as_str(), errno);
        machine.may_change(self.life, Kind::Other).map_err(refuse)?;
        let there = machine.processes.values().any(|process| process.cookie(tid).is_some());
        if !there {
            return Err(refuse(Errno::ESRCH));
        }
        if !cpus.iter().any(|cpu| machine.kernel.cpus.contains(cpu)) {
            return Err(refuse(Errno::EINVAL));
        }
        machine.changed("affinity", object.clone(), &cpus.to_string());
        Ok(())
    }

    fn set_policy(&mut self, tid: u32, policy: i32) -> Result<()> {
        let name = if policy == 0 { "normal".to_owned() } else { policy.to_string() };
        self.set_attributes(tid, Scheduling::of(policy), &name)
    }

    fn scheduling(&self, tid: u32) -> Result<Scheduling> {
        let machine = self.machine();
        let found = machine.alive(self.life).and_then(|()| machine.process_of(tid).ok_or(Errno::ESRCH));
        let found = found.map(|(_, process)| process.scheduling(tid));
        found.map_err(|errno| refused("read the scheduling policy of", format!("thread {tid}"), errno))
    }

    fn set_scheduling(&mut self, tid: u32, to: &Scheduling) -> Result<()> {
        self.set_attributes(tid, *to, &to.to_string())
    }

    fn euid(&self) -> u32 {
        if self.machine().faults.unprivileged { 1000 } else { 0 }
    }

    fn state_dir(&mut self, path: &Path) -> Result<()> {
        let mut machine = self.machine();
        machine.alive(self.life).map_err(|errno| refused("create", shown(path), errno))?;
        machine.trusted(path, false)?;
        machine.plain.folders.extend(path.ancestors().map(Path::to_owned));
        Ok(())
    }

    fn state_read_within(&mut self, path: &Path, most: u64) -> Result<Option<String>> {
        let machine = self.machine();
        machine.alive(self.life).map_err(|errno| refused("read", shown(path), errno))?;
        machine.trusted(path, true)?;
        let Some(text) = machine.plain.files.get(path) else { return Ok(None) };
        match machine.plain.sizes.get(path).copied().unwrap_or(text.len() as u64) {
            size if size > most => Err(too_large(path, size, most)),
            _ => Ok(Some(text.clone())),
        }
    }

    fn state_append(&mut self, path: &Path, text: &str) -> Result<()> {
        self.state("append", path, text, |machine| {
            machine.plain.folder_of(path)?;
            machine.plain.files.entry(path.to_owned()).or_default().push_str(text);
            Ok(())
        })
    }

    fn state_replace(&mut self, path: &Path, text: &str) -> Result<()> {
        self.state("replace", path, text, |machine| {
            machine.plain.folder_of(path)?;
            machine.plain.files.insert(path.to_owned(), text.to_owned());
            Ok(())
        })
    }

    fn state_rename(&mut self, from: &Path, to: &Path) -> Result<()> {
        let mut machine = self.machine();
        let done = machine.may_change(self.life, Kind::Other).and_then(|()| {
            let text = machine.plain.files.remove(from).ok_or(Errno::ENOENT)?;
            machine.plain.files.insert(to.to_owned(), text);
            Ok(())
        });
        done.map_err(|errno| refused("rename", shown(from), errno))?;
        machine.changed("rename", shown(from), &shown(to));
        Ok(())
    }

    fn state_remove(&mut self, path: &Path) -> Result<()> {
        self.state("forget", path, "", |machine| {
            machine.plain.files.remove(path);
            Ok(())
        })
    }

    fn state_remove_all(&mut self, path: &Path) -> Result<()> {
        let mut machine = self.machine();
        machine.alive(self.life).map_err(|errno| refused("remove", shown(path), errno))?;
        machine.plain.files.retain(|file, _| !file.starts_with(path));
        Ok(())
    }

    /// Always fails with `ENOENT`, like a machine without a performance monitoring unit.
    fn count(&mut self, _dir: Dir, _cpus: &CpuSet, _events: &[Event]) -> Result<Counters> {
        let machine = self.machine();
        machine
            .alive(self.life)
            .and(Err(Errno::ENOENT))
            .map_err(|errno| refused("open", "a counter".to_owned(), errno))
    }

    fn free_bytes(&self, path: &Path) -> Result<u64> {
        let machine = self.machine();
        machine.alive(self.life).map_err(|errno| refused("ask for free space", shown(path), errno))?;
        Ok(u64::MAX)
    }

    fn state_lock(&mut self, path: &Path) -> Result<Option<Lock>> {
        let mut machine = self.machine();
        let found = machine.alive(self.life).and_then(|()| machine.plain.folder_of(path));
        found.map_err(|errno| refused("open", shown(path), errno))?;
        machine.trusted(path, true)?;
        machine.plain.files.entry(path.to_owned()).or_default();
        Ok(machine.take_lock(path).map(locked))
    }

    fn state_lock_new(&mut self, path: &Path, text: &str) -> Result<Lock> {
        self.state("create", path, text, |machine| {
            machine.plain.folder_of(path)?;
            if machine.plain.files.contains_key(path) {
                return Err(Errno::EEXIST);
            }
            machine.plain.files.insert(path.to_owned(), text.to_owned());
            Ok(())
        })?;
        let lock = self.machine().take_lock(path).map(locked);
        lock.ok_or_else(|| refused("lock", shown(path), Errno::EAGAIN))
    }

    fn state_lock_file(&self, path: &Path) -> Result<Option<LockFile>> {
        let machine = self.machine();
        machine.alive(self.life).map_err(|errno| refused("open", shown(path), errno))?;
        machine.trusted(path, true)?;
        let there = machine.plain.files.contains_key(path);
        drop(machine);
        Ok(there.then(|| {
            let (tested, taken) = ((self.another(), path.to_owned()), (self.another(), path.to_owned()));
            LockFile(Lockable::Fake(FakeLockFile {
                held: Box::new(move || tested.0.machine().is_locked(&tested.1)),
                take: Box::new(move || taken.0.machine().take_lock(&taken.1)),
            }))
        }))
    }

    fn state_watch(&self, folders: &[&Path]) -> Result<Watch> {
        let machine = self.machine();
        let refuse =
            |errno| refused("watch", shown(folders.first().copied().unwrap_or(Path::new(""))), errno);
        machine.alive(self.life).map_err(refuse)?;
        let there = folders.iter().all(|folder| machine.plain.folders.contains(*folder));
        if there { Ok(Watch(None)) } else { Err(refuse(Errno::ENOENT)) }
    }

    fn pulse(&self) -> Arc<AtomicU64> {
        // No call of the fake blocks, so no watchdog needs a counter that increases.
        Arc::default()
    }

    fn boot_time(&self) -> Duration {
        self.machine().uptime
    }
}

/// Returns the reading end of a real pipe that contains `text` and whose writing end is closed.
fn pipe_with(text: &str) -> std::result::Result<std::process::ChildStdout, rustix::io::Errno> {
    let (reader, writer) = rustix::pipe::pipe()?;
    // A pipe holds 64 KiB without a reader; more would block.
    rustix::io::write(&writer, &text.as_bytes()[..text.len().min(65_536)])?;
    Ok(std::process::ChildStdout::from(reader))
}
