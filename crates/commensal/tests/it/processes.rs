//! Processes on the running kernel: found by program, user and arguments, moved, and put back. Everything that is moved was started
//! here, in cgroups that were made here.

use crate::agent::{Agent, answered, asked};
use crate::in_force::is;
use crate::support::{Program, can_write_cgroups, cgroups_named};
use commensal_core::process::Stat;
use commensal_host::{Child, Dir, Host, LinuxHost, SpawnSpec, Stdout};
use commensal_sensors::mounts;
use commensal_testkit::{
    Signal, cgroup_of, cgroups_of, members, removed_within, signal_group, threads, until, until_some,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A cgroup of this test's in every hierarchy that can have one, and the processes that it started there.
pub(crate) struct Home {
    host: LinuxHost,
    name: String,
    pub(crate) groups: Vec<(PathBuf, Dir)>,
    children: Vec<Child>,
}

impl Home {
    pub(crate) fn new(program: &Program) -> Home {
        let mut host = LinuxHost::new();
        let name = format!("{}-home", program.prefix);
        let mut groups = Vec::new();
        for hierarchy in mounts::hierarchies(&mut host).unwrap() {
            // An empty cpuset of cgroup v1 takes no process.
            if hierarchy.controllers.iter().any(|one| one.v1_name() == "cpuset") {
                continue;
            }
            let root = host.open(Path::new(&hierarchy.mount)).unwrap();
            let dir = host.mkdir(root, &name).unwrap();
            groups.push((Path::new(&hierarchy.mount).join(&name), dir));
            host.close(root);
        }
        Home { host, name, groups, children: Vec::new() }
    }

    pub(crate) fn start(&mut self, program: &Path, args: &[&str]) -> u32 {
        self.start_in(program, args, |_| true)
    }

    /// Starts a program in these groups, and in this test's own groups in every other hierarchy.
    fn start_in(&mut self, program: &Path, args: &[&str], wanted: impl Fn(&Path) -> bool) -> u32 {
        let mut spec = SpawnSpec::new(program);
        spec.args = args.iter().map(Into::into).collect();
        spec.groups = self.groups.iter().filter(|(path, _)| wanted(path)).map(|(_, dir)| *dir).collect();
        spec.own_process_group = true;
        spec.stdout = Stdout::Null;
        // A test beside this one may just have forked while the copy of the program was written.
        let busy = commensal_core::errno::Errno(26);
        let child = until_some("nobody writes the program", || match self.host.spawn(&spec) {
            Err(error) if error.errno == busy => None,
            child => Some(child.unwrap()),
        });
        let pid = child.process.pid;
        self.children.push(child);
        pid
    }

    /// Processes that are at home in some hierarchy.
    pub(crate) fn inside(&self) -> BTreeSet<u32> {
        self.groups.iter().flat_map(|(path, _)| members(path)).collect()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        for child in &mut self.children {
            // The whole process group, which is the child's own.
            signal_group(child.process.pid, Signal::KILL);
            let _ = child.wait();
        }
        for (path, _) in &self.groups {
            removed_within(Duration::from_secs(5), path);
        }
    }
}

/// A program of a name that nothing else on the machine has.
pub(crate) fn copy(program: &Program, of: &str, name: &str) -> PathBuf {
    let path = program.path(&format!("{}-{name}", program.prefix));
    std::fs::copy(of, &path).unwrap();
    path
}

pub(crate) fn places(pid: u32) -> BTreeSet<String> {
    cgroups_of(pid).iter().filter_map(|line| line.rsplit(':').next()).map(str::to_owned).collect()
}

#[test]
fn by_program_user_and_arguments() {
    let test = "by_program_user_and_arguments";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("proc");
    let mut home = Home::new(&program);
    let victim = copy(&program, "/bin/sleep", "victim");
    let other = copy(&program, "/bin/sleep", "other");
    let mark = format!("31{}", std::process::id());
    let by_exe = home.start(&victim, &["300"]);
    let by_args = home.start(&other, &[&mark]);
    let neither = home.start(&other, &["302"]);
    // A program that anybody may run, by another user.
    let by_user = match Path::new("/usr/bin/setpriv").exists() {
        true => Some(home.start(
            Path::new("/usr/bin/setpriv"),
            &["--reuid=65534", "--clear-groups", "/bin/sleep", &format!("{mark}.5")],
        )),
        false => {
            println!("skipped: {test}: by user: no setpriv");
            None
        }
    };
    let file = program.groups(&format!(
        "[group.a]\nclass = \"offline\"\nmatch = [{{ process = {{ exe = \"{}\" }} }}]\n\
         [group.b]\nclass = \"offline\"\nmatch = [{{ process = {{ cmdline = \"-other {mark}\" }} }}]\n\
         [group.c]\nclass = \"offline\"\nmatch = [{{ process = {{ user = \"65534\", cmdline = \"sleep {mark}.5\" }} }}]\n",
        victim.display()
    ));
    let config = file.to_str().unwrap();
    if let Some(pid) = by_user {
        until("setpriv has become the program", || runs(pid, Path::new("/bin/sleep")));
    }
    let (out, _) = program.expect(i32::from(by_user.is_none()), &["apply", "-c", config]);
    let wanted = [("a", Some(by_exe)), ("b", Some(by_args)), ("c", by_user)];
    for (group, pid) in wanted {
        let Some(pid) = pid else { continue };
        let place = format!("/{}-offline/{group}", program.prefix);
        let mut left = places(pid);
        assert!(left.remove(&place), "{pid} is in {left:?}\n{out}");
        // Where no group of ours is made (cpuset, the unified one beside v1), it stays.
        let home = format!("/{}", home.name);
        assert!(left.iter().all(|path| *path == home || path == "/"), "{pid} is in {left:?} as well");
    }
    assert!(places(neither).contains(&format!("/{}", home.name)), "{out}");
    let (out, _) = program.expect(i32::from(by_user.is_none()), &["apply", "-c", config]);
    assert!(out.starts_with("nothing to do"), "{out}");
    let (out, _) = program.expect(0, &["restore"]);
    for pid in [Some(by_exe), Some(by_args), by_user].into_iter().flatten() {
        assert!(home.inside().contains(&pid), "{pid} is in {:?}\n{out}", places(pid));
        assert!(!places(pid).iter().any(|path| path.contains("offline")), "{:?}", places(pid));
    }
    assert!(cgroups_named(&format!("{}-offline", program.prefix)).is_empty(), "{out}");
}

/// Whether the process runs this program, and is no longer a copy of its parent.
fn runs(pid: u32, program: &Path) -> bool {
    let program = std::fs::canonicalize(program).unwrap();
    std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program)
}

/// What ends a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// `apply` of a file whose group has no match.
    Unmatched,
    /// `apply` of a file without the group.
    Dropped,
    /// An agent reads the file without the match.
    Tick,
    Restore,
}

const UNMATCHED: &str = "[group.etl]\nclass = \"offline\"\n";
const WITHOUT: &str = "[group.other]\nclass = \"offline\"\n";

fn matching(program: &Path) -> String {
    format!("{UNMATCHED}match = [{{ process = {{ exe = \"{}\" }} }}]\n", program.display())
}

/// The original cgroup is the one of this test (the root in most hierarchies), one beside commensal's, or one of each. The
/// process starts children all the time. At the end, all of them are where they were, in every hierarchy.
// promise 11
#[test]
fn every_way_home_on_this_kernel() {
    let test = "every_way_home_on_this_kernel";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("ways");
    let mut home = Home::new(&program);
    let forks = copy(&program, "/bin/sh", "forks");
    let (all, none) = (home.groups.len(), 0);
    for inside in [none, 1, all] {
        for end in [End::Unmatched, End::Dropped, End::Tick, End::Restore] {
            let what = format!("{inside} homes of {all}, {end:?}");
            let some: Vec<PathBuf> = home.groups.iter().take(inside).map(|(path, _)| path.clone()).collect();
            let pid = home.start_in(&forks, &["-c", "while :; do sleep 0.02; done"], |path| {
                some.iter().any(|one| one == path)
            });
            until("the shell runs", || {
                std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == forks)
            });
            let before = cgroups_of(pid);
            let config = program.groups(&matching(&forks));
            let config = config.to_str().unwrap();
            let own = format!("/{}-offline/etl", program.prefix);
            let is_in = |pid: u32| cgroups_of(pid).iter().any(|line| line.ends_with(&own));
            if end == End::Tick {
                let agent = Agent::start(&program, Path::new(config), &[]);
                until(format!("{what}: it is moved in"), || is_in(pid));
                program.groups(UNMATCHED);
                until(format!("{what}: it is home"), || cgroups_of(pid) == before);
                until(format!("{what}: its children are home"), || is_empty(&program));
                assert_eq!(agent.end(Signal::TERM), Some(0), "{what}");
            } else {
                program.expect(0, &["apply", "-c", config]);
                assert!(is_in(pid), "{what}: {:?}", cgroups_of(pid));
                program.groups(if end == End::Unmatched { UNMATCHED } else { WITHOUT });
            }
            if matches!(end, End::Unmatched | End::Dropped) {
                let (out, _) = program.expect(0, &["apply", "-c", config]);
                assert!(out.contains("back to its original cgroup"), "{what}: {out}");
            }
            if end != End::Restore {
                assert_eq!(cgroups_of(pid), before, "{what}");
                assert!(is_empty(&program), "{what}: a child is left");
            }
            let (out, _) = program.expect(0, &["restore"]);
            assert_eq!(cgroups_of(pid), before, "{what}: {out}");
            assert!(cgroups_named(&format!("{}-offline", program.prefix)).is_empty(), "{what}: {out}");
            signal_group(pid, Signal::KILL);
        }
    }
}

/// Whether no process is in commensal's groups, apart from those that exit.
fn is_empty(program: &Program) -> bool {
    let stays = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        Stat::parse(&stat).is_some_and(|stat| !stat.has_ended())
    };
    let groups = cgroups_named(&format!("{}-offline", program.prefix));
    let mut inside = groups.iter().flat_map(|path| [members(path), members(&path.join("etl"))].concat());
    !inside.any(stays)
}

/// The original cgroup is removed meanwhile: the process stays, and every command says so until a user moves it.
#[test]
fn a_home_that_was_removed_is_told_until_a_user_moves_the_process() {
    let test = "a_home_that_was_removed_is_told_until_a_user_moves_the_process";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("lost");
    let mut home = Home::new(&program);
    let sleeper = copy(&program, "/bin/sleep", "sleeper");
    let pid = home.start(&sleeper, &["300"]);
    let config = program.groups(&matching(&sleeper));
    let config = config.to_str().unwrap();
    program.expect(0, &["apply", "-c", config]);
    let left = |path: &Path| members(path).is_empty() && std::fs::remove_dir(path).is_ok();
    let gone: Vec<PathBuf> =
        home.groups.iter().map(|(path, _)| path.clone()).filter(|path| left(path)).collect();
    assert!(!gone.is_empty());
    program.groups(UNMATCHED);
    for _ in 0..2 {
        let (out, _) = program.expect(1, &["apply", "-c", config]);
        assert!(out.contains("the cgroup that it came from was removed"), "{out}");
        let (out, err) = program.expect(1, &["restore"]);
        assert!(format!("{out}{err}").contains("where it came from, was removed"), "{out}{err}");
    }
    for path in &gone {
        std::fs::write(path.parent().unwrap().join("cgroup.procs"), pid.to_string()).unwrap();
    }
    program.expect(0, &["restore"]);
    assert!(cgroups_named(&format!("{}-offline", program.prefix)).is_empty());
}

/// The cgroup of each thread in one hierarchy.
fn of_threads(pid: u32, controller: &str) -> BTreeMap<u32, String> {
    let tids = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let tids = tids.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap());
    tids.filter_map(|tid| Some((tid, cgroup_of(tid, controller)?))).collect()
}

/// The layout of QEMU's threads under libvirt, on cgroup v1: such a process stays where it is, with the reason, until its
/// threads are together. A thread that another program takes from a moved process stays where that program put it.
// promise 14
#[test]
fn threads_keep_their_cgroups() {
    let test = "threads_keep_their_cgroups";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("threads");
    let mut home = Home::new(&program);
    let of_cpu = |path: &&PathBuf| path.join("cpu.shares").exists() && path.join("tasks").exists();
    let Some(cpu) = home.groups.iter().map(|(path, _)| path.clone()).find(|path| of_cpu(&path)) else {
        println!("skipped: {test}: no v1 hierarchy with cpu");
        return;
    };
    let machine = copy(&program, env!("CARGO_BIN_EXE_commensal"), "machine");
    let pid = home
        .start(&machine, &["workload", "pulse", "--threads", "2", "--period-us", "100000", "--work-us", "1"]);
    until("its threads have started", || threads(pid) == 3);
    let vcpu = cpu.join("vcpu0");
    std::fs::create_dir(&vcpu).unwrap();
    let tid = *of_threads(pid, "cpu").keys().find(|tid| **tid != pid).unwrap();
    let put = |path: &Path, file: &str, tid: u32| std::fs::write(path.join(file), tid.to_string()).unwrap();
    put(&vcpu, "tasks", tid);
    let apart = of_threads(pid, "cpu");
    let config = program.groups(&matching(&machine));
    let config = config.to_str().unwrap();
    let (out, _) = program.expect(1, &["apply", "-c", config]);
    assert!(out.contains("its threads are in several cgroups"), "{out}");
    assert_eq!(of_threads(pid, "cpu"), apart, "{out}");
    let (out, _) = program.expect(1, &["plan", "-c", config]);
    assert!(out.contains(&format!("cgroup = \"/{}\"", home.name)), "{out}");
    is(&program, "without an agent", 1, "its threads are in several cgroups");
    let agent = Agent::start(&program, Path::new(config), &["--on-exit", "keep"]);
    asked(&program);
    let (out, _) = answered(&program, 1, &["status"]);
    assert!(out.contains("its threads are in several cgroups"), "{out}");
    assert_eq!(of_threads(pid, "cpu"), apart);
    assert_eq!(agent.end(Signal::TERM), Some(0));

    put(&cpu, "cgroup.procs", pid);
    program.expect(0, &["apply", "-c", config]);
    let inside = of_threads(pid, "cpu");
    assert!(inside.values().all(|path| path.ends_with("-offline/etl")), "{inside:?}");
    put(&vcpu, "tasks", tid);
    program.groups(UNMATCHED);
    program.expect(0, &["apply", "-c", config]);
    assert_eq!(of_threads(pid, "cpu"), apart);
    program.expect(0, &["restore"]);
    assert_eq!(of_threads(pid, "cpu"), apart);
    put(&cpu, "cgroup.procs", pid);
    std::fs::remove_dir(&vcpu).unwrap();
}
