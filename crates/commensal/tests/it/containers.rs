//! Containers of a real engine as members: by label and name, through restarts of theirs and of the engine, and how soon one is
//! protected.

use crate::docker::Engine;
use crate::support::{Program, can_write_cgroups, cpu_mount};
use commensal_agent::members::{Change, Follow, Follower, Members, Reports};
use commensal_core::actual::{ActualState, CgroupPath};
use commensal_core::group::GroupSpec;
use commensal_host::{Host, LinuxHost, Waker};
use commensal_reconcile::{Instance, Journal, PlanRequest, apply};
use commensal_sensors::Survey;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime};

/// Longest wait for something to happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts a container; gives its identifier.
pub fn run(engine: &Engine, args: &[&str], script: &str) -> String {
    let mut all = vec!["run", "-d", "--network", "none"];
    all.extend(args);
    all.extend(["commensal-test:1", "/bin/sh", "-c", script]);
    let (well, out) = engine.docker(&all);
    assert!(well, "docker {all:?}: {out}");
    out.trim().to_owned()
}

/// The container's cgroup of the cpu controller, as the kernel says.
pub fn cgroup(engine: &Engine, id: &str) -> PathBuf {
    let (_, pid) = engine.docker(&["inspect", "-f", "{{.State.Pid}}", id]);
    let text = std::fs::read_to_string(format!("/proc/{}/cgroup", pid.trim())).unwrap();
    let line = text
        .lines()
        .find(|line| line.split(':').nth(1).is_some_and(|names| names.split(',').any(|one| one == "cpu")));
    let line = line.or_else(|| text.lines().find(|line| line.starts_with("0::"))).unwrap();
    let path = CgroupPath::new(line.rsplit(':').next().unwrap());
    cpu_mount().join(path.as_str().trim_start_matches('/'))
}

fn weight(group: &Path) -> String {
    let read = |file: &str| std::fs::read_to_string(group.join(file));
    read("cpu.shares").or_else(|_| read("cpu.weight")).unwrap_or_default().trim().to_owned()
}

pub const FOREVER: &str = "trap 'exit 0' TERM; while :; do /bin/busybox sleep 1; done";

// promise 32
#[test]
fn by_label_and_name_and_through_a_restart() {
    let test = "by_label_and_name_and_through_a_restart";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("label");
    let dir = tempfile::tempdir().unwrap();
    let Some(engine) = Engine::start(test, dir.path()) else { return };
    let labelled = run(&engine, &["--label", "tier=batch", "--cpu-shares", "700"], FOREVER);
    let named = run(&engine, &["--name", "etl-7"], FOREVER);
    let neither = run(&engine, &["--label", "tier=web", "--cpu-shares", "600"], FOREVER);
    let file = program.groups(
        "[group.a]\nclass = \"offline\"\nmemory.max = \"300 MiB\"\nmatch = [{ docker-label = \"tier=batch\" }]\n\
         [group.b]\nclass = \"offline\"\npids.max = 77\nmatch = [{ docker-name = \"etl-7\" }]\n",
    );
    let config = file.to_str().unwrap();
    let commensal = |status: i32, args: &[&str]| {
        let output = program.command(args).env("DOCKER_HOST", &engine.host).output().unwrap();
        let said = crate::support::text(&output.stdout) + &crate::support::text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "commensal {args:?}\n{said}");
        said
    };
    let before = [&labelled, &named, &neither].map(|id| weight(&cgroup(&engine, id)));
    // The machine's other groups are outside; that the parent is nobody's is told.
    let said = commensal(1, &["apply", "-c", config]);
    assert!(said.contains("memory") && said.contains("pids.max"), "{said}");
    assert!(!said.contains(&neither), "{said}");
    // Against everything outside, what holds them would have to be claimed.
    let parent =
        cgroup(&engine, &labelled).parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
    assert!(said.contains(&format!("claim it with match = [{{ cgroup = \"/{parent}\" }}]")), "{said}");
    assert_eq!([&labelled, &named, &neither].map(|id| weight(&cgroup(&engine, id))), before);
    let pids = |id: &str| {
        let group = cgroup(&engine, id);
        let below = group.strip_prefix(cpu_mount()).unwrap().to_owned();
        let all = [Path::new("/sys/fs/cgroup/pids"), Path::new("/sys/fs/cgroup")]
            .map(|mount| mount.join(&below).join("pids.max"));
        all.iter().find_map(|file| std::fs::read_to_string(file).ok()).unwrap_or_default().trim().to_owned()
    };
    assert_eq!((pids(&named).as_str(), pids(&neither).as_str()), ("77", "max"));
    // A restarted one has a new cgroup of the same name: planned anew.
    assert!(engine.docker(&["restart", "-t", "2", &named]).0);
    assert_eq!(pids(&named), "max");
    let said = commensal(1, &["apply", "-c", config]);
    assert!(said.contains("pids.max") && !said.contains("memory.limit"), "{said}");
    assert_eq!(pids(&named), "77");
    let again = commensal(1, &["apply", "-c", config]);
    assert!(again.starts_with("nothing to do"), "{again}");
    commensal(0, &["restore"]);
    assert_eq!((pids(&named).as_str(), pids(&labelled).as_str()), ("max", "max"));
    assert_eq!([&labelled, &named, &neither].map(|id| weight(&cgroup(&engine, id))), before);
    assert!(engine.docker(&["rm", "-f", &labelled, &named, &neither]).0);
}

/// The loop in small: changes in, facts, plan, writes.
struct Loop {
    host: LinuxHost,
    instance: Instance,
    survey: Survey,
    specs: Vec<GroupSpec>,
    members: Members,
    journal: Journal,
}

impl Loop {
    fn new(program: &Program, text: &str) -> Loop {
        let mut host = LinuxHost::new();
        let instance = Instance::of_machine(&program.state(), &program.prefix);
        let survey = instance.survey(&mut host).unwrap();
        let journal = instance.open_journal(&mut host).unwrap();
        let specs = commensal_core::config::parse("g", text).unwrap();
        Loop { host, instance, survey, specs, members: Members::default(), journal }
    }

    /// Takes a change in and acts; what was written.
    fn act(&mut self, change: Change) -> usize {
        self.members.heed(change);
        let (members, specs) = (RefCell::new(&mut self.members), &self.specs);
        let find =
            |host: &mut dyn Host, found: &mut ActualState| members.borrow_mut().fill(host, specs, found);
        let request = PlanRequest { members: Some(&find), ..PlanRequest::all(specs) };
        let planned = self.instance.plan(&mut self.host, &self.survey, &request).unwrap();
        let outcome = apply(&mut self.host, &planned.plan.steps, &planned.actual, &mut self.journal);
        // A container that ends in between is a normal event; the next change says so.
        outcome.applied.len()
    }
}

fn next(changes: &Receiver<Change>) -> Change {
    changes.recv_timeout(PATIENCE).expect("a change")
}

/// Nanoseconds since 1970 of Docker's `2026-11-22T06:00:00.123456789Z`, within a day: enough to compare two of the same minute.
fn since_midnight(text: &str) -> Option<f64> {
    let time = text.trim().split('T').nth(1)?.trim_end_matches('Z');
    let mut parts = time.split(':');
    let (hours, minutes, seconds): (f64, f64, f64) =
        (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some(hours * 3600.0 + minutes * 60.0 + seconds)
}

/// Thirty containers that appear at once, one by one protected after it was told to run; then the engine restarts, and after
/// that the containers that it starts again are protected again.
// promise 32
#[test]
fn followed_from_start_to_protection() {
    let test = "followed_from_start_to_protection";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("follow");
    let dir = tempfile::tempdir().unwrap();
    let Some(mut engine) = Engine::start(test, dir.path()) else { return };
    let (tell, changes) = channel();
    let socket = PathBuf::from(engine.host.strip_prefix("unix://").unwrap());
    let follow = Follow { sockets: vec![socket], mounts: Vec::new() };
    let _follower = Follower::start(follow, &Reports::new(tell, Waker::new().unwrap())).unwrap();
    assert!(matches!(next(&changes), Change::Containers { running, .. } if running.is_empty()));
    let text = "[group.a]\nclass = \"offline\"\npids.max = 66\nmatch = [{ docker-label = \"tier=batch\" }]\n";
    let mut agent = Loop::new(&program, text);
    let limit = |id: &str| {
        let below = cgroup(&engine, id).strip_prefix(cpu_mount()).unwrap().to_owned();
        let all = [Path::new("/sys/fs/cgroup/pids"), Path::new("/sys/fs/cgroup")]
            .map(|mount| mount.join(&below).join("pids.max"));
        all.iter().find_map(|file| std::fs::read_to_string(file).ok()).unwrap_or_default().trim().to_owned()
    };
    // One at a time, for the window.
    let mut windows = Vec::new();
    for _ in 0..5 {
        let id = run(&engine, &["--label", "tier=batch"], FOREVER);
        let end = Instant::now() + PATIENCE;
        loop {
            let change = next(&changes);
            let told = matches!(&change, Change::Containers { running, .. } if running.iter().any(|one| one.id == id));
            let written = agent.act(change);
            if told {
                // The order of events: told, then written, then in force.
                assert!(written > 0, "{id}");
                break;
            }
            assert!(Instant::now() < end);
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64() % 86_400.0;
        assert_eq!(limit(&id), "66");
        let (_, started) = engine.docker(&["inspect", "-f", "{{.State.StartedAt}}", &id]);
        windows.extend(since_midnight(&started).map(|started| (now - started).rem_euclid(86_400.0) * 1e3));
        assert!(engine.docker(&["rm", "-f", &id]).0);
    }
    println!("{test}: from the first instruction to the limit, ms: {windows:.1?}");
    // Thirty at once.
    let many = "for i in $(seq 30); do docker run -d --restart always --network none --label tier=batch commensal-test:1 /bin/sh -c \
                \"trap 'exit 0' TERM; while :; do /bin/busybox sleep 5; done\" & done; wait";
    let output = std::process::Command::new("sh")
        .args(["-c", many])
        .env("DOCKER_HOST", &engine.host)
        .output()
        .unwrap();
    let ids: BTreeSet<String> = crate::support::text(&output.stdout).lines().map(str::to_owned).collect();
    assert_eq!(ids.len(), 30, "{}", crate::support::text(&output.stderr));
    catch_up(&mut agent, &changes, &ids);
    assert!(ids.iter().all(|id| limit(id) == "66"));
    engine.stop();
    let end = Instant::now() + PATIENCE;
    while !matches!(next(&changes), Change::EngineLost { .. }) {
        assert!(Instant::now() < end);
    }
    engine.again();
    let seen = catch_up(&mut agent, &changes, &ids);
    assert!(seen.iter().any(|change| matches!(change, Change::EngineBack { .. })), "{seen:?}");
    let limit = |id: &str| {
        let below = cgroup(&engine, id).strip_prefix(cpu_mount()).unwrap().to_owned();
        let all = [Path::new("/sys/fs/cgroup/pids"), Path::new("/sys/fs/cgroup")]
            .map(|mount| mount.join(&below).join("pids.max"));
        all.iter().find_map(|file| std::fs::read_to_string(file).ok()).unwrap_or_default().trim().to_owned()
    };
    let limits: BTreeSet<String> = ids.iter().map(|id| limit(id)).collect();
    assert_eq!(limits, BTreeSet::from(["66".to_owned()]));
    let mut all = vec!["rm".to_owned(), "-f".to_owned()];
    all.extend(ids);
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    assert!(engine.docker(&all).0);
    drop(agent);
    program.expect(0, &["restore"]);
}

/// Acts on changes until all of these run and are told; gives the changes.
fn catch_up(agent: &mut Loop, changes: &Receiver<Change>, ids: &BTreeSet<String>) -> Vec<Change> {
    let mut seen = Vec::new();
    let end = Instant::now() + PATIENCE;
    loop {
        let change = next(changes);
        seen.push(change.clone());
        let all = match &change {
            Change::Containers { running, .. } => {
                let running: BTreeSet<&String> = running.iter().map(|one| &one.id).collect();
                ids.iter().all(|id| running.contains(id))
            }
            _ => false,
        };
        agent.act(change);
        if all {
            return seen;
        }
        assert!(Instant::now() < end, "{seen:?}");
    }
}
