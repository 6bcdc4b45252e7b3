//! Which capability each function of agent and guard needs: measured, each taken away in turn, and compared with the table of
//! `docs/guide/security.md`.

use crate::support::{Made, can_write_cgroups};
use commensal_agent::privileges::OF_PROBE;
use commensal_blame::{Scope, Subject, WaitProbe};
use commensal_core::cpuset::CpuSet;
use commensal_core::errno::Errno;
use commensal_host::{Capability, Cookie, Host, LinuxHost, PressureTriggers, Signal, keep_only, raised};
use commensal_testkit::{field_of_status, until};
use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Another user than root.
const SOMEBODY: u32 = 65_534;
const GUIDE: &str = include_str!("../../../../docs/guide/security.md");
/// Of sched_setscheduler(2).
const SCHED_IDLE: i32 = 5;
const SCHED_NORMAL: i32 = 0;

/// A sleeping process of root, or of another user.
struct Sleeper(Child);

impl Sleeper {
    fn start(user: u32) -> Option<Sleeper> {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &user.to_string(), "--clear-groups", "sleep", "600"]);
        let sleeper = Sleeper(command.stdin(Stdio::null()).spawn().ok()?);
        until("it sleeps", || field_of_status(sleeper.pid(), "Name").is_some_and(|name| name == "sleep"));
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
    ours: Made,
    /// Owned by another user, like the cgroups that are delegated to a user's systemd.
    theirs: Made,
    probe: Option<WaitProbe>,
    /// A container engine's socket that belongs to another user.
    _engine: UnixListener,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let engine = UnixListener::bind(folder.path().join("engine.sock")).unwrap();
        std::fs::set_permissions(folder.path().join("engine.sock"), PermissionsExt::from_mode(0o600))
            .unwrap();
        give(&folder.path().join("engine.sock"));
        let (ours, theirs) = (Made::new("ours"), Made::new("theirs"));
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
            online: vec![Subject::Cgroups(vec![group])],
            offline: vec![Subject::Cgroups(vec![group + 1])],
            ..Scope::default()
        };
        let probe = WaitProbe::attach(&LinuxHost::new(), &scope).ok();
        World { folder, ours, theirs, probe, _engine: engine }
    }
}

/// The group in cgroup v1's hierarchy of CPU sets.
fn cpuset(group: &Made) -> Option<PathBuf> {
    group.all.iter().find(|path| path.join("cpuset.memory_migrate").exists()).cloned()
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
    let (dir, name) = (host.open(&world.ours.cpu).ok()?, "trusted.commensal.try");
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
    let fires = |window| PressureTriggers::new().unwrap().add(path, Duration::from_millis(50), window);
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
    let scope = || Scope {
        online: vec![Subject::Cgroups(vec![1])],
        offline: vec![Subject::Cgroups(vec![2])],
        ..Scope::default()
    };
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

/// Does the work on a thread that keeps only these capabilities.
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

fn of(some: &[Capability]) -> u64 {
    some.iter().fold(0, |bits, one| bits | 1 << one.number())
}

// promise 61
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
    let world = World::new();
    let here = field_of_status(std::process::id(), "CapPrm").unwrap();
    let here = u64::from_str_radix(&here, 16).unwrap();
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
