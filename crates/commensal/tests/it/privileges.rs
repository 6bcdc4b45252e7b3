//! Which capability each function of agent and guard needs: measured, each taken away in turn, and compared with the table of
//! `docs/guide/security.md`; and what agent and guard have once they run.

use crate::agent::{Agent, ETL, Theirs, limited, mounts, own, until};
use crate::support::{Program, can_write_cgroups};
use commensal_agent::privileges::{OF_GUARD, OF_PROBE};
use commensal_blame::{Scope, Subject, WaitProbe};
use commensal_core::cpuset::CpuSet;
use commensal_core::errno::Errno;
use commensal_host::{Capability, Cookie, Host, LinuxHost, PressureTrigger, Signal, keep_only, raised};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Another user than root.
const SOMEBODY: u32 = 65_534;
const GUIDE: &str = include_str!("../../../../docs/guide/security.md");
/// Of sched_setscheduler(2).
const SCHED_IDLE: i32 = 5;
const SCHED_NORMAL: i32 = 0;
const TERM: commensal_testkit::Signal = commensal_testkit::Signal::TERM;

/// A process that sleeps, of root or of somebody else.
struct Sleeper(Child);

impl Sleeper {
    fn start(user: u32) -> Option<Sleeper> {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &user.to_string(), "--clear-groups", "sleep", "600"]);
        let sleeper = Sleeper(command.stdin(Stdio::null()).spawn().ok()?);
        until("it sleeps", || {
            let name = std::fs::read_to_string(format!("/proc/{}/comm", sleeper.pid()));
            name.is_ok_and(|name| name.trim() == "sleep")
        });
        Some(sleeper)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What functions are tried on.
struct World {
    folder: tempfile::TempDir,
    /// Root's, in every hierarchy.
    ours: Theirs,
    /// Given to somebody, as a user's systemd has its own.
    theirs: Theirs,
    probe: Option<WaitProbe>,
    /// The engine of somebody, who is listening.
    _engine: UnixListener,
}

impl World {
    fn new(program: &Program) -> World {
        let folder = tempfile::tempdir().unwrap();
        let engine = UnixListener::bind(folder.path().join("engine.sock")).unwrap();
        std::fs::set_permissions(folder.path().join("engine.sock"), PermissionsExt::from_mode(0o600))
            .unwrap();
        give(&folder.path().join("engine.sock"));
        let (ours, theirs) = (Theirs::new(program, "ours"), Theirs::new(program, "theirs"));
        give(&theirs.cpu);
        for file in std::fs::read_dir(&theirs.cpu).unwrap() {
            give(&file.unwrap().path());
        }
        // A CPU set takes processes once it has CPUs and memory.
        if let Some(set) = cpuset(&ours) {
            for file in ["cpuset.cpus", "cpuset.mems"] {
                std::fs::copy(set.parent().unwrap().join(file), set.join(file)).unwrap();
            }
        }
        let group = std::fs::metadata(&ours.cpu).unwrap().ino();
        let scope = Scope {
            online: vec![Subject::Cgroup(group)],
            offline: vec![Subject::Cgroup(group + 1)],
            ..Scope::default()
        };
        let probe = WaitProbe::attach(&LinuxHost::new(), &scope).ok();
        World { folder, ours, theirs, probe, _engine: engine }
    }
}

/// The group in cgroup v1's hierarchy of CPU sets.
fn cpuset(group: &Theirs) -> Option<PathBuf> {
    let mut all = mounts().into_iter().map(|mount| mount.join(&group.name));
    all.find(|path| path.join("cpuset.memory_migrate").exists())
}

fn give(path: &Path) {
    chown(path, Some(SOMEBODY), None).unwrap();
}

/// Whether it could be done; `None` where it cannot be done here by anybody.
type Tried = Option<bool>;

fn written(host: &mut LinuxHost, group: &Path, file: &str, value: &str) -> Tried {
    let dir = host.open(group).ok()?;
    let done = host.write(dir, file, value).is_ok();
    host.close(dir);
    Some(done)
}

fn weight_and_child(group: &Path) -> Tried {
    let mut host = LinuxHost::new();
    let file = if group.join("cpu.weight").exists() { "cpu.weight" } else { "cpu.shares" };
    let weighed = written(&mut host, group, file, "77")?;
    let dir = host.open(group).ok()?;
    let child = host.mkdir(dir, "child").and_then(|child| host.rmdir(dir, "child", child.inode));
    Some(weighed && child.is_ok())
}

fn moved(group: Option<PathBuf>, pid: u32) -> Tried {
    written(&mut LinuxHost::new(), &group?, "cgroup.procs", &pid.to_string())
}

fn signalled(pid: u32) -> Tried {
    let mut host = LinuxHost::new();
    let process = host.process(pid).ok()?;
    Some(host.signal(&process, Signal::KILL).is_ok())
}

fn kept_as_attribute(world: &World) -> Tried {
    let mut host = LinuxHost::new();
    let (dir, name) = (host.open(&world.ours.cpu).ok()?, "trusted.commensal.test");
    let set = host.set_attribute(dir, name, Some("1")).is_ok();
    let listed = host.attributes(dir, "trusted.commensal.").is_ok_and(|names| names == [name]);
    let read = host.attribute(dir, name).is_ok_and(|value| value.as_deref() == Some("1"));
    let removed = host.set_attribute(dir, name, None).is_ok();
    Some(set && listed && read && removed)
}

fn cookie_shared(pid: u32) -> Tried {
    match LinuxHost::new().share_cookie(Cookie::New, &[pid]) {
        Ok(()) => Some(true),
        Err(error) if error.errno == Errno::EPERM => Some(false),
        // CONFIG_SCHED_CORE is not set, or there is no SMT.
        Err(_) => None,
    }
}

fn told_of_pressure() -> Tried {
    let path = Path::new("/proc/pressure/memory");
    let fires = |window| PressureTrigger::new(path, Duration::from_millis(50), window);
    // Not without PSI, and for nobody whose root lacks the capability, as in some containers.
    let long = fires(Duration::from_secs(2)).is_ok();
    long.then(|| fires(Duration::from_millis(500)).is_ok())
}

/// With the number of a process of somebody's, or of root's, which has all capabilities.
type Work<'a> = dyn Fn(u32) -> Tried + Sync + 'a;
type Function<'a> = (&'static str, Box<Work<'a>>);

/// What agent and guard do to cgroups and processes, as the guide calls it.
fn on_others<'a>(world: &'a World) -> Vec<Function<'a>> {
    let read =
        |pid: u32, file: &str| LinuxHost::new().read_file(Path::new(&format!("/proc/{pid}/{file}"))).is_ok();
    let exe = |pid: u32| LinuxHost::new().link(Path::new(&format!("/proc/{pid}/exe"))).is_ok();
    let policy = |pid: u32, policy: i32| LinuxHost::new().set_policy(pid, policy).is_ok();
    let first: CpuSet = "0".parse().unwrap();
    vec![
        (
            "limits of cgroups that root owns; make and remove them",
            Box::new(|_| weight_and_child(&world.ours.cpu)),
        ),
        ("the same in cgroups that a user owns", Box::new(|_| weight_and_child(&world.theirs.cpu))),
        ("move processes of other users", Box::new(|pid| moved(Some(world.ours.cpu.clone()), pid))),
        (
            "move root's own processes between CPU sets of cgroup v1",
            Box::new(|pid| moved(cpuset(&world.ours), pid)),
        ),
        ("originals on the cgroups (`trusted.commensal.*`)", Box::new(|_| kept_as_attribute(world))),
        (
            "CPU affinity of other users' threads",
            Box::new(move |pid| Some(LinuxHost::new().set_affinity(pid, &first).is_ok())),
        ),
        (
            "scheduling policy of other users' threads",
            Box::new(move |pid| Some(policy(pid, SCHED_IDLE) && policy(pid, SCHED_NORMAL))),
        ),
        ("core-scheduling cookies of other users' threads", Box::new(cookie_shared)),
        ("end processes of other users", Box::new(signalled)),
        ("end root's own processes, as the guard does a hung agent", Box::new(signalled)),
        ("which program other users' processes run (`/proc/PID/exe`)", Box::new(move |pid| Some(exe(pid)))),
        (
            "their cgroups, arguments, CPU time and run delay",
            Box::new(move |pid| {
                Some(["cgroup", "cmdline", "stat", "schedstat"].iter().all(|file| read(pid, file)))
            }),
        ),
    ]
}

/// … and to files, sockets and the probe.
fn on_files<'a>(world: &'a World) -> Vec<Function<'a>> {
    let [state, engine, shared] =
        ["state", "engine.sock", "shared"].map(|name| world.folder.path().join(name));
    let scope =
        || Scope { online: vec![Subject::Cgroup(1)], offline: vec![Subject::Cgroup(2)], ..Scope::default() };
    vec![
        ("pressure in windows of 0.5 s", Box::new(|_| told_of_pressure())),
        (
            "ask a container engine that a user runs",
            Box::new(move |_| {
                let error = LinuxHost::new().ask(&engine, "?", Duration::from_millis(50)).err()?;
                Some(error.errno == Errno::ETIMEDOUT)
            }),
        ),
        (
            "state files, journals and locks",
            Box::new(move |_| {
                let mut host = LinuxHost::new();
                host.guard_state(&state);
                Some(host.state_dir(&state).is_ok() && host.state_append(&state.join("x"), "x").is_ok())
            }),
        ),
        (
            "give the shared socket to its group",
            Box::new(move |_| {
                let _ = std::fs::remove_file(&shared);
                Some(raised(&[Capability::Chown], || {
                    std::fs::write(&shared, "").is_ok() && chown(&shared, None, Some(SOMEBODY)).is_ok()
                }))
            }),
        ),
        (
            "load the probe",
            Box::new(move |_| {
                world.probe.as_ref()?;
                Some(raised(&OF_PROBE, || WaitProbe::attach(&LinuxHost::new(), &scope()).is_ok()))
            }),
        ),
        ("read the probe's sums", Box::new(|_| Some(world.probe.as_ref()?.totals().is_ok()))),
    ]
}

/// Does it on a thread that keeps only these.
fn with(keep: &[Capability], what: &str, work: &Work<'_>) -> Tried {
    let sleeper = Sleeper::start(if what.contains("root's own") { 0 } else { SOMEBODY })?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            keep_only(keep).unwrap();
            work(sleeper.pid())
        });
        thread.join().unwrap()
    })
}

/// The rows of the guide's table: what is done, and what it needs.
fn table() -> BTreeMap<String, String> {
    let rows = GUIDE.split("<!-- measured -->").nth(1).unwrap_or_default().lines();
    let rows = rows.filter_map(|row| {
        let mut cells = row.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ");
        Some((cells.next()?.to_owned(), cells.next()?.to_owned()))
    });
    rows.filter(|(what, _)| what != "what is done").collect()
}

fn bits(pid: u32, field: &str) -> u64 {
    bits_of(Path::new(&format!("/proc/{pid}/status")), field)
}

fn bits_of(status: &Path, field: &str) -> u64 {
    let status = std::fs::read_to_string(status).unwrap();
    let hex = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(":\t")).unwrap();
    u64::from_str_radix(hex, 16).unwrap()
}

fn of(some: &[Capability]) -> u64 {
    some.iter().fold(0, |bits, one| bits | 1 << one.number())
}

// promise 79
#[test]
fn each_function_needs_the_capabilities_that_the_guide_says() {
    let test = "each_function_needs_the_capabilities_that_the_guide_says";
    if !can_write_cgroups(test) {
        return;
    }
    if Sleeper::start(SOMEBODY).is_none() {
        println!("skipped: {test}: no setpriv");
        return;
    }
    let program = Program::new("caps");
    let world = World::new(&program);
    let here = bits(std::process::id(), "CapPrm");
    let mut told = table();
    for (what, work) in on_others(&world).into_iter().chain(on_files(&world)) {
        let row = told.remove(what).unwrap_or_else(|| panic!("the guide lacks {what:?}"));
        let lacks =
            Capability::ALL.into_iter().find(|one| row.contains(one.name()) && here & of(&[*one]) == 0);
        let all = with(&Capability::ALL, what, &work);
        if let (Some(lacks), Some(false) | None) = (lacks, all) {
            println!("{what}: not measured: root lacks {} here", lacks.name());
            continue;
        }
        let Some(all) = all else {
            println!("{what}: not measured: this kernel has none");
            continue;
        };
        assert!(all, "{what}: not with all of them");
        let missed = |one: &Capability| {
            let keep: Vec<Capability> = Capability::ALL.into_iter().filter(|other| other != one).collect();
            with(&keep, what, &work) == Some(false)
        };
        let needs: Vec<Capability> = Capability::ALL.into_iter().filter(missed).collect();
        let names: Vec<String> = needs.iter().map(|one| format!("`{}`", one.name())).collect();
        let words = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        println!("{what}: {words}");
        assert_eq!(row, words, "{what}");
        assert_eq!(with(&needs, what, &work), Some(true), "{what}: {words} are not enough");
    }
    assert!(told.is_empty(), "nobody measures {told:?}");
}

/// Own groups are gone again.
fn restored(program: &Program) {
    let output = program.run(&["restore"]);
    assert!(!own(program, "etl").exists(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// What every thread of a process has.
fn each_thread(pid: u32, field: &str) -> Vec<u64> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    tasks.map(|task| bits_of(&task.path().join("status"), field)).collect()
}

// promise 79
#[test]
fn agent_and_guard_have_nothing_else_once_they_run() {
    let test = "agent_and_guard_have_nothing_else_once_they_run";
    if !can_write_cgroups(test) {
        return;
    }
    let here = bits(std::process::id(), "CapPrm");
    if here & of(&Capability::ALL) == 0 {
        println!("skipped: {test}: not root");
        return;
    }
    let program = Program::new("least");
    let groups = program.groups(ETL);
    for (more, probe) in [(&["--no-probe"][..], false), (&[][..], true)] {
        let agent = Agent::start(&program, &groups, more);
        until("the group is limited", || limited(&own(&program, "etl")));
        let of_probe = probe && commensal_blame::preflight::check(&LinuxHost::new()).is_ok();
        let kept = Capability::ALL.into_iter().filter(|one| match one {
            Capability::Chown => false,
            one => of_probe || !OF_PROBE.contains(one),
        });
        let agents: Vec<Capability> = kept.collect();
        let kept = of(&agents) & here;
        let children = format!("/proc/{0}/task/{0}/children", agent.child.id());
        let guard: u32 = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
        let awake = of(&[Capability::DacOverride]) & here;
        for (pid, kept) in [(agent.child.id(), kept), (guard, of(&OF_GUARD) & here)] {
            // One that looks at the kernel's values in this moment may have raised what it needs.
            until("only access to files is in effect", || {
                each_thread(pid, "CapEff").iter().all(|now| *now == awake)
            });
            let all = each_thread(pid, "CapPrm");
            assert!(all.iter().all(|now| *now == kept), "{pid}: {all:x?}, and not {kept:x}");
            // Who has no CAP_SETPCAP any more cannot lower it; without new privileges nothing comes of it.
            assert!(each_thread(pid, "CapBnd").iter().all(|now| now & !of(&agents) == 0));
            assert!(
                each_thread(pid, "CapInh").iter().chain(&each_thread(pid, "CapAmb")).all(|now| *now == 0)
            );
            assert!(each_thread(pid, "NoNewPrivs").iter().all(|now| *now == 1));
        }
        // Originals are on the cgroups all the same.
        let mut host = LinuxHost::new();
        let dir = host.open(&own(&program, "etl")).unwrap();
        assert!(!host.attributes(dir, "trusted.commensal.").unwrap().is_empty());
        assert_eq!(agent.end(TERM), Some(0));
        restored(&program);
    }
}

/// Dropped with what it keeps, the agent measures who made online work wait.
// promise 79
#[test]
fn an_agent_without_privileges_in_effect_loads_the_probe() {
    let test = "an_agent_without_privileges_in_effect_loads_the_probe";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("probed");
    let (web, etl) = (Theirs::new(&program, "web"), Theirs::new(&program, "etl"));
    let scope = Scope {
        online: vec![Subject::Cgroup(std::fs::metadata(&web.cpu).unwrap().ino())],
        offline: vec![Subject::Cgroup(std::fs::metadata(&etl.cpu).unwrap().ino())],
        ..Scope::default()
    };
    if let Err(error) = WaitProbe::attach(&LinuxHost::new(), &scope) {
        println!("skipped: {test}: {error}");
        return;
    }
    let groups = |more: &str| {
        program.groups(&format!(
            "[group.web]\nclass = \"online\"\ntarget-wakeup-p99 = \"500 ms\"\nmatch = [{{ cgroup = \"/{}\" }}]\n\
             [group.etl]\nclass = \"offline\"\nmatch = [{{ cgroup = \"/{}\" }}{more}]\n",
            web.name, etl.name
        ))
    };
    let agent = Agent::start(&program, &groups(""), &[]);
    let unknown = "who makes online groups wait is not known";
    let status = || String::from_utf8_lossy(&program.run(&["status", "--json"]).stdout).into_owned();
    let loaded = || {
        std::fs::read_dir(format!("/proc/{}/fd", agent.child.id()))
            .unwrap()
            .flatten()
            .any(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().contains("bpf-prog")))
    };
    until("the probe is loaded", &loaded);
    until("the probe counts", || status().contains("\"ticks\"") && !status().contains(unknown));
    // Other members: the maps are written again.
    let later = Theirs::new(&program, "later");
    groups(&format!(", {{ cgroup = \"/{}\" }}", later.name));
    until("the new member is followed", || status().contains(&later.name));
    assert!(loaded() && !status().contains(unknown), "{}", agent.said());
    assert_eq!(agent.end(TERM), Some(0));
    restored(&program);
}

const AGENT_UNIT: &str = include_str!("../../../../packaging/systemd/commensal-agent.service");
const GUARD_UNIT: &str = include_str!("../../../../packaging/systemd/commensal-guard.service");

/// What systemd means by a name of a filter: calls, or those of a set and of the sets in it. `None` without systemd-analyze.
fn calls(name: &str) -> Option<BTreeSet<String>> {
    if !name.starts_with('@') {
        return Some(BTreeSet::from([name.to_owned()]));
    }
    let output =
        Command::new("systemd-analyze").args(["syscall-filter", "--no-pager", name]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    // The set's own name stands first.
    lines.filter(|line| *line != name).try_fold(BTreeSet::new(), |mut all, line| {
        all.extend(calls(line)?);
        Some(all)
    })
}

/// What a unit allows: its lines in order, those with `~` taking away.
fn allowed(unit: &str) -> Option<BTreeSet<String>> {
    let mut all = calls("@default")?;
    for line in unit.lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")) {
        let (names, out) = line.strip_prefix('~').map_or((line, false), |names| (names, true));
        for name in names.split(' ') {
            let these = calls(name)?;
            match out {
                true => all.retain(|one| !these.contains(one)),
                false => all.extend(these),
            }
        }
    }
    Some(all)
}

/// What `strace -f` has written down.
fn called(trace: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(trace).unwrap();
    let names = text.lines().filter_map(|line| line.split_whitespace().nth(1)?.split_once('('));
    names.map(|(name, _)| name.to_owned()).filter(|name| name != "<...").collect()
}

// promise 79
#[test]
fn the_units_filters_allow_what_agent_and_guard_call() {
    let test = "the_units_filters_allow_what_agent_and_guard_call";
    if !can_write_cgroups(test) {
        return;
    }
    let (Some(of_agent), Some(of_guard)) = (allowed(AGENT_UNIT), allowed(GUARD_UNIT)) else {
        println!("skipped: {test}: no systemd-analyze");
        return;
    };
    if Command::new("strace").arg("-V").output().is_err() {
        println!("skipped: {test}: no strace");
        return;
    }
    let program = Program::new("called");
    let web = Theirs::new(&program, "web");
    let groups = program.groups(&format!(
        "{ETL}[group.web]\nclass = \"online\"\ntarget-wakeup-p99 = \"500 ms\"\npids.max = 500\n\
         match = [{{ cgroup = \"/{}\" }}]\n[group.batch]\nclass = \"offline\"\n\
         match = [{{ process = {{ exe = \"/no/such/program\" }} }}]\n",
        web.name
    ));
    let traced = |name: &str, command: &Command| {
        let mut traced = Command::new("strace");
        traced.args(["-f", "-qq", "-o"]).arg(program.path(name)).arg(command.get_program());
        traced.args(command.get_args()).current_dir(program.dir.path());
        Agent::spawn(traced)
    };
    let guard = traced("guard.trace", &program.command(&["guard"]));
    until("the guard listens", || UnixStream::connect(program.state().join("guard.sock")).is_ok());
    let mut agent = traced("agent.trace", &Agent::command(&program, &groups, &[]));
    until("the groups are limited", || limited(&own(&program, "etl")) && web.counted());
    until("it answers", || program.run(&["status"]).status.code() != Some(2));
    std::fs::write(&groups, std::fs::read_to_string(&groups).unwrap().replace("500\n", "501\n")).unwrap();
    program.expect(0, &["agent", "reload"]);
    let number = |name: &str| {
        let text = std::fs::read_to_string(program.state().join(name)).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["pid"].as_u64().unwrap() as u32
    };
    assert!(commensal_testkit::signal(number("agent.json"), commensal_testkit::Signal::KILL));
    agent.child.wait().unwrap();
    until("the safe state", || !web.counted());
    restored(&program);
    let children = format!("/proc/{0}/task/{0}/children", guard.child.id());
    let pid = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
    assert!(commensal_testkit::signal(pid, TERM));
    drop(guard);
    for (who, trace, allowed) in [("agent", "agent.trace", of_agent), ("guard", "guard.trace", of_guard)] {
        let called = called(&program.path(trace));
        println!("{who}: {} calls of {} that its unit allows", called.len(), allowed.len());
        let missing: Vec<&String> = called.difference(&allowed).collect();
        assert!(missing.is_empty() && called.contains("openat"), "{who}: {missing:?}");
    }
}
