//! Tests of the real host, in scratch groups and directories of this machine.

use crate::script::remove_tree;
use commensal_core::errno::Errno;
use commensal_core::process::{SCHED_BATCH, SCHED_FIFO, SCHED_IDLE, Stat};
use commensal_host::{
    Dir, Exit, Host, LinuxHost, PressureTriggers, Scheduling, Signal, Source, SpawnSpec, Stdout, Waker,
};
use commensal_testkit::{PATIENCE, until};
use std::io::{BufRead, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

fn errno<T: std::fmt::Debug>(result: commensal_host::Result<T>) -> String {
    result.map_or_else(|error| error.errno.to_string(), |_| "ok".to_owned())
}

/// Scratch groups of one test, one in each writable hierarchy; removed at the end.
struct Scratch {
    host: LinuxHost,
    name: String,
    /// Mount point, open root, and scratch group.
    groups: Vec<(PathBuf, Dir, Dir)>,
}

impl Scratch {
    /// Creates the groups; if there is nothing to test on, prints that the test is skipped and returns `None`.
    fn new(test: &str) -> Option<Scratch> {
        let host = LinuxHost::new();
        if host.euid() != 0 {
            println!("skipped: {test}: not root");
            return None;
        }
        let name = format!("commensal-it-{test}-{}", std::process::id());
        let mounts = host.read_file(Path::new("/proc/mounts")).unwrap();
        let mut scratch = Scratch { host, name, groups: Vec::new() };
        for line in mounts.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let usable = words[2] == "cgroup2"
                || (words[2] == "cgroup" && words[3].split(',').any(|one| one == "cpu" || one == "freezer"));
            if !usable {
                continue;
            }
            let root = scratch.host.open(Path::new(words[1])).unwrap();
            match scratch.host.mkdir(root, &scratch.name) {
                Ok(group) => scratch.groups.push((PathBuf::from(words[1]), root, group)),
                Err(error) => println!("{test}: {error}"),
            }
        }
        if scratch.groups.is_empty() {
            println!("skipped: {test}: no writable cgroup hierarchy");
            return None;
        }
        Some(scratch)
    }

    fn dirs(&self) -> Vec<Dir> {
        self.groups.iter().map(|(_, _, group)| *group).collect()
    }

    /// Returns the scratch group of the first hierarchy.
    fn first(&self) -> Dir {
        self.groups[0].2
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for (_, root, group) in std::mem::take(&mut self.groups) {
            remove_tree(&mut self.host, root, &self.name, group);
        }
    }
}

/// A confined child cannot leave SCHED_IDLE, or become real-time, and neither can what it starts. Without CAP_SETPCAP
/// root's programs keep their capability.
// promise 7
#[test]
fn a_confined_child_cannot_raise_its_policy() {
    let mut host = LinuxHost::new();
    let script = "cat /proc/self/limits; grep ^Cap /proc/self/status; exec sleep 600";
    let mut spec = SpawnSpec::new("sh").arg("-c").arg(script);
    spec.stdout = Stdout::Pipe;
    spec.die_with_parent = true;
    (spec.policy.idle, spec.policy.confined) = (true, true);
    let mut child = host.spawn(&spec).unwrap();
    let mut seen: Vec<String> = Vec::new();
    for line in std::io::BufReader::new(child.stdout.take().unwrap()).lines() {
        seen.push(line.unwrap());
        // The last of the capability sets.
        if seen.last().is_some_and(|line| line.starts_with("CapAmb:")) {
            break;
        }
    }
    let numbers = |name: &str| {
        let line = seen.iter().find(|line| line.starts_with(name)).unwrap();
        line[name.len()..].split_whitespace().take(2).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(numbers("Max nice priority"), ["0", "0"]);
    assert_eq!(numbers("Max realtime priority"), ["0", "0"]);
    let has = |name: &str| u64::from_str_radix(&numbers(name)[0], 16).unwrap() & (1 << 23) != 0;
    assert!(!has("CapInh:") && !has("CapAmb:"), "{seen:?}");
    let bounded = !has("CapBnd:");
    if bounded {
        assert!(!has("CapEff:"), "{seen:?}");
    } else {
        println!("skipped: a_confined_child_cannot_raise_its_policy: its capabilities: no CAP_SETPCAP");
    }
    assert_eq!(host.scheduling(child.process.pid).unwrap().policy, SCHED_IDLE);
    let _ = host.signal(&child.process, Signal::KILL);
    let _ = child.wait();
}

/// Triggers of several cgroups are one source: it tells each stall once, and a removed cgroup once.
// promise 22
#[test]
fn pressure_triggers_are_one_source() {
    let test = "pressure_triggers_are_one_source";
    let Some(mut scratch) = Scratch::new("psi") else { return };
    let (name, window) = (scratch.name.clone(), Duration::from_secs(2));
    let file = |mount: &Path, child: &str| mount.join(&name).join(child).join("cpu.pressure");
    let Some((mount, _, group)) = scratch.groups.iter().find(|(mount, ..)| file(mount, "").exists()).cloned()
    else {
        println!("skipped: {test}: no pressure is counted for groups here");
        return;
    };
    let (a, b) = (scratch.host.mkdir(group, "a").unwrap(), scratch.host.mkdir(group, "b").unwrap());
    let files = ["a", "b"].map(|child| file(&mount, child));
    let mut triggers = PressureTriggers::new().unwrap();
    for file in &files {
        triggers.add(file, Duration::from_millis(10), window).unwrap();
    }
    assert!(triggers.add(&file(&mount, "c"), Duration::from_millis(10), window).is_err());
    let waker = Waker::new().unwrap();
    let fires = |triggers: &PressureTriggers, within| {
        waker.wait(&[Source::readable(triggers.as_fd())], within).unwrap() == [true]
    };
    assert!(!fires(&triggers, Duration::from_millis(50)), "nobody waits");
    // Two that compute on one CPU, so that one of them waits.
    let spin = |host: &mut LinuxHost| {
        let mut spec =
            SpawnSpec::new("taskset").arg("-c").arg("0").arg("sh").arg("-c").arg("while :; do :; done");
        (spec.groups, spec.die_with_parent) = (vec![a], true);
        host.spawn(&spec).unwrap()
    };
    let mut running = [spin(&mut scratch.host), spin(&mut scratch.host)];
    assert!(fires(&triggers, PATIENCE), "one of them waits");
    for child in &mut running {
        scratch.host.signal(&child.process, Signal::KILL).unwrap();
        child.wait().unwrap();
    }
    // What a stall of before may still tell is told once, and then nothing more.
    until("nothing is told", || !fires(&triggers, window * 2));
    scratch.host.close(b);
    std::fs::remove_dir(files[1].parent().unwrap()).unwrap();
    triggers.retain(|_| true);
    assert!(triggers.contains(&files[0]) && !triggers.contains(&files[1]));
    assert!(!fires(&triggers, Duration::from_millis(50)), "a removed cgroup has no trigger");
    triggers.retain(|file| *file != files[0]);
    assert!(!triggers.contains(&files[0]));
}

/// Attributes that were set are read back, and the nice value stays.
#[test]
fn scheduling_attributes_are_set_and_read() {
    let mut host = LinuxHost::new();
    let mut spec = SpawnSpec::new("sleep").arg("600");
    spec.die_with_parent = true;
    spec.policy.nice = Some(5);
    let mut child = host.spawn(&spec).unwrap();
    let pid = child.process.pid;
    let nice = |host: &LinuxHost| {
        let stat = host.read_file(Path::new(&format!("/proc/{pid}/stat"))).unwrap();
        Stat::parse(&stat).unwrap().number::<i32>(19).unwrap()
    };
    for to in [
        Scheduling::of(SCHED_BATCH),
        Scheduling { reset_on_fork: true, ..Scheduling::of(SCHED_BATCH) },
        Scheduling::of(SCHED_IDLE),
    ] {
        host.set_scheduling(pid, &to).unwrap();
        assert_eq!((host.scheduling(pid).unwrap(), nice(&host)), (to, 5));
    }
    // Refused without the capability, or in a group without a budget; the nice value stays either way.
    match host.set_scheduling(pid, &Scheduling::real_time(SCHED_FIFO, 1)) {
        Ok(()) => {
            assert_eq!(host.scheduling(pid).unwrap(), Scheduling::real_time(SCHED_FIFO, 1));
            host.set_scheduling(pid, &Scheduling::default()).unwrap();
            assert_eq!(host.scheduling(pid).unwrap(), Scheduling::default());
        }
        Err(error) => assert_eq!(error.errno, Errno::EPERM),
    }
    assert_eq!(nice(&host), 5);
    assert_eq!(errno(host.set_scheduling(pid, &Scheduling::of(99))), "EINVAL");
    let _ = host.signal(&child.process, Signal::KILL);
    let _ = child.wait();
    assert_eq!(errno(host.scheduling(pid)), "ESRCH");
}

fn output(child: &mut commensal_host::Child) -> String {
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    text
}

// promise 58
#[test]
fn only_a_cgroup_is_opened_as_one() {
    let Some(mut scratch) = Scratch::new("only_a_cgroup_is_opened_as_one") else { return };
    let (mount, name) = (scratch.groups[0].0.clone(), scratch.name.clone());
    let dir = scratch.host.open(&mount.join(&name)).unwrap();
    scratch.host.close(dir);
    let tries = |scratch: &mut Scratch, path: PathBuf| errno(scratch.host.open(&path));
    for odd in [format!("{name}/../{name}"), format!("./{name}"), format!("/{name}"), "..".to_owned()] {
        let path = PathBuf::from(format!("{}/{odd}", mount.display()));
        assert_eq!(tries(&mut scratch, path.clone()), "EINVAL", "{}", path.display());
    }
    // A plain directory, and a link to a cgroup.
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(tries(&mut scratch, folder.path().to_owned()), "EINVAL");
    std::os::unix::fs::symlink(mount.join(&name), folder.path().join("link")).unwrap();
    assert_ne!(tries(&mut scratch, folder.path().join("link")), "ok");
    assert_eq!(tries(&mut scratch, PathBuf::from("relative")), "EINVAL");
}

#[test]
fn a_child_is_inside_its_groups_from_the_first_instruction() {
    let Some(mut scratch) = Scratch::new("inside") else { return };
    let mut spec = SpawnSpec::new("cat").arg("/proc/self/cgroup");
    spec.groups = scratch.dirs();
    spec.stdout = Stdout::Pipe;
    let mut child = scratch.host.spawn(&spec).unwrap();
    let text = output(&mut child);
    assert_eq!(child.wait().unwrap(), Exit::Code(0));
    let inside = text.lines().filter(|line| line.ends_with(&format!(":/{}", scratch.name))).count();
    assert_eq!(inside, scratch.groups.len(), "{text}");
}

#[test]
fn exits_and_signals() {
    let mut host = LinuxHost::new();
    let mut child = host.spawn(&SpawnSpec::new("sh").arg("-c").arg("exit 7")).unwrap();
    assert_eq!(child.wait().unwrap(), Exit::Code(7));
    assert_eq!(child.wait().unwrap(), Exit::Code(7));
    let mut child = host.spawn(&SpawnSpec::new("sleep").arg("600")).unwrap();
    assert_eq!(child.try_wait().unwrap(), None);
    host.signal(&child.process, Signal::TERM).unwrap();
    let exit = child.wait().unwrap();
    assert_eq!((exit, exit.status()), (Exit::Signal(15), 143));
    // The PID is free now and may belong to another process; the pidfd does not refer to that one.
    assert_eq!(errno(host.signal(&child.process, Signal::KILL)), "ESRCH");
}

#[test]
fn a_process_is_found_by_pid_and_start_time() {
    let mut host = LinuxHost::new();
    let mut child = host.spawn(&SpawnSpec::new("sleep").arg("600")).unwrap();
    let found = host.process(child.process.pid).unwrap();
    assert_eq!(found.start_ticks, child.process.start_ticks);
    host.signal(&found, Signal::KILL).unwrap();
    assert_eq!(child.wait().unwrap(), Exit::Signal(9));
    assert_eq!(errno(host.signal(&found, Signal::KILL)), "ESRCH");
    assert_eq!(errno(host.process(child.process.pid)), "ESRCH");
    assert_eq!(errno(host.process(0)), "ESRCH");
    assert_eq!(errno(host.process(u32::MAX)), "ESRCH");
}

/// Some kernels still count an exited process as a member when its parent has been told (not Linux 6.18 and 7.2).
#[test]
fn a_group_can_be_removed_as_soon_as_its_process_has_ended() {
    let Some(mut scratch) = Scratch::new("ended") else { return };
    for parent in scratch.dirs() {
        for number in 0..50 {
            let group = scratch.host.mkdir(parent, "g").unwrap();
            let mut spec = SpawnSpec::new("true");
            spec.groups = vec![group];
            assert_eq!(scratch.host.spawn(&spec).unwrap().wait().unwrap(), Exit::Code(0));
            assert_eq!(errno(scratch.host.rmdir(parent, "g", group.inode)), "ok", "{number}");
            scratch.host.close(group);
        }
        // A group with a process or a group in it is refused at once.
        let group = scratch.host.mkdir(parent, "g").unwrap();
        let mut spec = SpawnSpec::new("sleep").arg("600");
        spec.groups = vec![group];
        let mut child = scratch.host.spawn(&spec).unwrap();
        assert_eq!(errno(scratch.host.rmdir(parent, "g", group.inode)), "EBUSY");
        scratch.host.signal(&child.process, Signal::KILL).unwrap();
        child.wait().unwrap();
        let below = scratch.host.mkdir(group, "below").unwrap();
        assert_eq!(errno(scratch.host.rmdir(parent, "g", group.inode)), "EBUSY");
        assert_eq!(errno(scratch.host.rmdir(group, "below", below.inode)), "ok");
        assert_eq!(errno(scratch.host.rmdir(parent, "g", group.inode)), "ok");
    }
}

#[test]
fn missing_programs_and_closed_groups() {
    let mut host = LinuxHost::new();
    let error = host.spawn(&SpawnSpec::new("/no/such/program")).unwrap_err();
    assert_eq!((error.operation, error.errno), ("start", Errno::ENOENT));
    let Some(mut scratch) = Scratch::new("closed") else { return };
    let group = scratch.host.mkdir(scratch.first(), "g").unwrap();
    scratch.host.rmdir(scratch.first(), "g", group.inode).unwrap();
    let mut spec = SpawnSpec::new("true");
    spec.groups = vec![group];
    assert_eq!(errno(scratch.host.spawn(&spec)), "ENOENT");
    scratch.host.close(group);
    assert_eq!(errno(scratch.host.spawn(&spec)), "EBADF");
}

/// The grandchild is started by another instance of this test program, because `die_with_parent` depends on the process
/// that calls `spawn`, and that process has to be killed.
#[test]
fn a_child_dies_with_the_process_that_started_it() {
    const ROLE: &str = "COMMENSAL_IT_PARENT";
    if std::env::var_os(ROLE).is_some() {
        let mut spec = SpawnSpec::new("sleep").arg("600");
        spec.die_with_parent = true;
        let child = LinuxHost::new().spawn(&spec).unwrap();
        println!("\ngrandchild {}", child.process.pid);
        loop {
            std::thread::park();
        }
    }
    let name = "real::a_child_dies_with_the_process_that_started_it";
    let mut parent = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(ROLE, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut text = String::new();
    let mut stdout = parent.stdout.take().unwrap();
    let pid: u32 = loop {
        let mut byte = [0];
        stdout.read_exact(&mut byte).expect("the parent names its child");
        text.push(char::from(byte[0]));
        let found = text.split("grandchild ").nth(1).and_then(|rest| rest.strip_suffix('\n'));
        if let Some(pid) = found {
            break pid.parse().unwrap();
        }
    };
    let mut host = LinuxHost::new();
    let grandchild = host.process(pid).unwrap();
    parent.kill().unwrap();
    parent.wait().unwrap();
    let gone = |host: &mut LinuxHost| {
        // A zombie counts as dead: there may be no process to reap it.
        let stat = host.read_file(Path::new(&format!("/proc/{pid}/stat"))).unwrap_or_default();
        let state = stat.rsplit_once(") ").map(|(_, rest)| rest.starts_with('Z'));
        state != Some(false) || host.process(pid).is_ok_and(|now| now.start_ticks != grandchild.start_ticks)
    };
    until("the grandchild outlives its parent", || gone(&mut host));
}

#[test]
fn scheduling_is_set_before_the_program_starts() {
    let mut host = LinuxHost::new();
    let mut spec = SpawnSpec::new("cat").arg("/proc/self/stat").arg("/proc/self/status");
    spec.stdout = Stdout::Pipe;
    spec.policy.idle = true;
    spec.policy.nice = Some(11);
    spec.policy.cpus = Some([0].into_iter().collect());
    let mut child = host.spawn(&spec).unwrap();
    let text = output(&mut child);
    assert_eq!(child.wait().unwrap(), Exit::Code(0));
    let (_, rest) = text.lines().next().unwrap().rsplit_once(") ").unwrap();
    let fields: Vec<&str> = rest.split(' ').collect();
    // proc(5): nice is field 19 and policy field 41; SCHED_IDLE is 5.
    assert_eq!((fields[16], fields[38]), ("11", "5"), "{text}");
    assert!(text.contains("Cpus_allowed_list:\t0\n"), "{text}");
}

#[test]
fn a_removed_group_is_not_the_next_one_of_its_name() {
    let Some(mut scratch) = Scratch::new("removed") else { return };
    let parent = scratch.first();
    let host = &mut scratch.host;
    let old = host.mkdir(parent, "g").unwrap();
    assert_eq!(errno(host.write(old, "cgroup.procs", "999999999")), "ESRCH");
    host.rmdir(parent, "g", old.inode).unwrap();
    let new = host.mkdir(parent, "g").unwrap();
    assert_ne!(new.inode, old.inode);
    for _ in 0..2 {
        assert_eq!(errno(host.write(old, "cgroup.procs", "999999999")), "ENODEV");
        assert_eq!(errno(host.read(old, "cgroup.procs")), "ENOENT");
        assert_eq!(errno(host.mkdir(old, "kid")), "ENOENT");
    }
    assert_eq!(errno(host.rmdir(parent, "g", old.inode)), "ENOENT");
    assert_eq!(host.children(parent).unwrap(), ["g"]);
    assert_eq!(errno(host.rmdir(parent, "g", new.inode)), "ok");
    host.close(old);
    assert_eq!(errno(host.read(old, "cgroup.procs")), "EBADF");
}

/// A cached descriptor of a v1 process list would keep showing its first content.
#[test]
fn process_lists_are_as_of_now() {
    let Some(mut scratch) = Scratch::new("lists") else { return };
    for (mount, _, group) in scratch.groups.clone() {
        let host = &mut scratch.host;
        let (a, b) = (host.mkdir(group, "a").unwrap(), host.mkdir(group, "b").unwrap());
        let mut spec = SpawnSpec::new("sleep").arg("600");
        (spec.groups, spec.die_with_parent) = (vec![a], true);
        let mut child = host.spawn(&spec).unwrap();
        let pid = child.process.pid.to_string();
        assert_eq!(host.read(a, "cgroup.procs").unwrap().trim(), pid, "{}", mount.display());
        host.write(b, "cgroup.procs", &pid).unwrap();
        assert_eq!(host.read(a, "cgroup.procs").unwrap(), "", "{}", mount.display());
        assert_eq!(host.read(b, "cgroup.procs").unwrap().trim(), pid, "{}", mount.display());
        host.signal(&child.process, Signal::KILL).unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn names_stay_inside_their_directory() {
    let Some(mut scratch) = Scratch::new("names_stay_inside_their_directory") else { return };
    let dir = scratch.first();
    let host = &mut scratch.host;
    for name in ["", ".", "..", "a/b", "/etc", "a\0"] {
        assert_eq!(errno(host.mkdir(dir, name)), "EINVAL", "{name:?}");
        assert_eq!(errno(host.open_child(dir, name)), "EINVAL", "{name:?}");
        assert_eq!(errno(host.rmdir(dir, name, 1)), "EINVAL", "{name:?}");
        assert_eq!(errno(host.read(dir, name)), "EINVAL", "{name:?}");
        assert_eq!(errno(host.write(dir, name, "1")), "EINVAL", "{name:?}");
    }
    host.mkdir(dir, "a").unwrap();
    assert_eq!(host.children(dir).unwrap(), ["a"]);
}

#[test]
fn more_files_than_are_held_open() {
    /// More control files than the host keeps open.
    const FILES: usize = 3_000;
    let Some(mut scratch) = Scratch::new("more_files_than_are_held_open") else { return };
    let (dir, path) = (scratch.first(), scratch.groups[0].0.join(&scratch.name));
    let host = &mut scratch.host;
    let mut files: Vec<(Dir, String)> = Vec::new();
    let mut groups = Vec::new();
    while files.len() < FILES {
        let name = format!("g{}", groups.len());
        let group = host.mkdir(dir, &name).unwrap();
        let names = host.list(&path.join(&name)).unwrap();
        let readable =
            names.into_iter().filter(|name| name != "cgroup.procs" && host.read(group, name).is_ok());
        files.extend(readable.map(|name| (group, name)).collect::<Vec<_>>());
        groups.push((
            group,
            if path.join(&name).join("tasks").exists() { "notify_on_release" } else { "cgroup.max.depth" },
        ));
    }
    for round in 0..2 {
        for (index, (group, file)) in groups.iter().enumerate() {
            host.write(*group, file, &((index + round) % 2).to_string()).unwrap();
        }
        for (group, name) in &files {
            host.read(*group, name).unwrap();
        }
        for (index, (group, file)) in groups.iter().enumerate() {
            assert_eq!(host.read(*group, file).unwrap().trim(), ((index + round) % 2).to_string());
        }
    }
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let ours = |to: &Path| to.starts_with(&path) && !to.is_dir();
    let held = open.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| ours(&to)));
    assert!(held.count() <= 2_049, "the oldest are closed");
}

#[test]
fn state_files_are_appended_replaced_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let (deep, path) = (folder.path().join("a/b"), folder.path().join("a/b/journal"));
    let mut host = LinuxHost::new();
    assert_eq!(errno(host.state_append(&path, "x")), "ENOENT");
    host.state_dir(&deep).unwrap();
    host.state_dir(&deep).unwrap();
    assert_eq!(host.state_read(&path).unwrap(), None);
    host.state_append(&path, "one\n").unwrap();
    host.state_append(&path, "two\n").unwrap();
    assert_eq!(host.state_read(&path).unwrap().as_deref(), Some("one\ntwo\n"));
    host.state_replace(&path, "three\n").unwrap();
    assert_eq!(host.state_read(&path).unwrap().as_deref(), Some("three\n"));
    assert_eq!(host.list(&deep).unwrap(), ["journal"]);
    let other = path.with_extension("1");
    host.state_append(&other, "gone with the renaming\n").unwrap();
    host.state_rename(&path, &other).unwrap();
    assert_eq!(host.state_read(&path).unwrap(), None);
    assert_eq!(host.state_read(&other).unwrap().as_deref(), Some("three\n"));
    assert_eq!(errno(host.state_rename(&path, &other)), "ENOENT");
    host.state_rename(&other, &path).unwrap();
    host.state_remove(&path).unwrap();
    host.state_remove(&path).unwrap();
    assert_eq!(host.list(&deep).unwrap(), Vec::<String>::new());
}

#[test]
fn one_lock_one_holder() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lock");
    let (mut one, mut two) = (LinuxHost::new(), LinuxHost::new());
    let lock = one.state_lock(&path).unwrap();
    assert!(lock.is_some());
    assert!(two.state_lock(&path).unwrap().is_none());
    drop(lock);
    assert!(two.state_lock(&path).unwrap().is_some());
}

/// Runs in a separate mount namespace, so that no other process sees the small file system.
#[test]
fn a_full_disk_leaves_no_torn_line() {
    const ROLE: &str = "COMMENSAL_IT_SMALL_DISK";
    if let Some(folder) = std::env::var_os(ROLE) {
        let path = Path::new(&folder).join("journal");
        let mut host = LinuxHost::new();
        host.state_append(&path, "a good line\n").unwrap();
        let long = "x".repeat(1 << 20);
        assert_eq!(errno(host.state_append(&path, &long)), "ENOSPC");
        assert_eq!(host.state_read(&path).unwrap().as_deref(), Some("a good line\n"));
        assert_eq!(errno(host.state_replace(&path, &long)), "ENOSPC");
        assert_eq!(host.state_read(&path).unwrap().as_deref(), Some("a good line\n"));
        assert_eq!(errno(host.state_append(&Path::new(&folder).join("new"), &long)), "ENOSPC");
        assert_eq!(host.list(Path::new(&folder)).unwrap(), ["journal"]);
        println!("the disk was full");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let name = "real::a_full_disk_leaves_no_torn_line";
    let script = "mount -t tmpfs -o size=64k small \"$1\" || exit 77; shift; exec \"$@\"";
    let started = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"])
        .arg(folder.path())
        .arg(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(ROLE, folder.path())
        .output();
    match started {
        Ok(done) if done.status.success() => {
            assert!(String::from_utf8_lossy(&done.stdout).contains("the disk was full"));
        }
        Ok(done) if matches!(done.status.code(), Some(1 | 77)) && done.stdout.is_empty() => {
            println!(
                "skipped: a_full_disk_leaves_no_torn_line: {}",
                String::from_utf8_lossy(&done.stderr).trim()
            );
        }
        Ok(done) => panic!("{}", String::from_utf8_lossy(&done.stdout)),
        Err(error) => println!("skipped: a_full_disk_leaves_no_torn_line: unshare: {error}"),
    }
}

#[test]
fn a_child_has_a_session_of_its_own_and_adds_to_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let mut host = LinuxHost::new();
    for words in ["one", "two"] {
        let script = format!("read -r line < /proc/$$/stat; echo {words} $line >&2");
        let mut spec = SpawnSpec::new("sh").arg("-c").arg(script);
        (spec.own_session, spec.own_process_group) = (true, true);
        spec.stdout = Stdout::Append(log.clone());
        spec.stderr = commensal_host::Stderr::Stdout;
        assert_eq!(host.spawn(&spec).unwrap().wait().unwrap(), Exit::Code(0));
    }
    let text = host.read_file(&log).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
    assert_eq!((lines.len(), lines[0][0], lines[1][0]), (2, "one", "two"), "{text}");
    // proc_pid_stat(5): the sixth field is the session.
    assert!(lines.iter().all(|line| line[6] == line[1]), "{text}");
}

mod measure {
    use super::*;
    use commensal_core::cpuset::CpuSet;
    use commensal_host::Event;
    use commensal_testkit::throughout;
    use std::time::Instant;

    /// Counts a shell loop: its counted time must not exceed the time of the measurement.
    // promise 37
    #[test]
    fn counters_of_a_group_follow_its_tasks() {
        let test = "counters_of_a_group_follow_its_tasks";
        let Some(mut scratch) = Scratch::new(test) else { return };
        let cpus: CpuSet =
            std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap().trim().parse().unwrap();
        let dirs = scratch.dirs();
        let opened: Vec<_> =
            dirs.iter().map(|dir| scratch.host.count(*dir, &cpus, &[Event::TaskClock])).collect();
        // Only the hierarchy with perf_event accepts the group.
        let refused = opened.iter().filter_map(|one| one.as_ref().err()).map(|error| error.errno);
        assert!(refused.clone().all(|errno| errno == Errno::ENOENT), "{opened:?}");
        let Some(mut counters) = opened.into_iter().find_map(Result::ok) else {
            println!("skipped: {test}: perf_event is in no hierarchy of the test's groups");
            return;
        };
        assert_eq!(counters.read().unwrap(), [0], "nobody is there");
        let started = Instant::now();
        let mut spec = SpawnSpec::new("sh").arg("-c").arg("while :; do :; done");
        (spec.groups, spec.die_with_parent) = (dirs, true);
        let mut child = scratch.host.spawn(&spec).unwrap();
        until("the loop was on a CPU for 50 ms", || counters.read().unwrap()[0] >= 50_000_000);
        let (counted, passed) = (counters.read().unwrap()[0], started.elapsed());
        assert!(u128::from(counted) <= passed.as_nanos() * 11 / 10, "{counted} ns in {passed:?}");
        scratch.host.signal(&child.process, Signal::KILL).unwrap();
        until("it has ended", || child.try_wait().unwrap().is_some());
        let end = counters.read().unwrap();
        throughout(Duration::from_millis(50), "who is gone is counted", || counters.read().unwrap() == end);
        // A machine without a unit to count cycles returns an error.
        let first = scratch.first();
        match scratch.host.count(first, &cpus, &[Event::Cycles, Event::Instructions]) {
            Ok(_) => {}
            Err(error) => {
                assert!([Errno::ENOENT, Errno::EOPNOTSUPP].contains(&error.errno), "{error}")
            }
        }
    }
}
