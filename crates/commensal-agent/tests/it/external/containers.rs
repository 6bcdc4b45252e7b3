//! Containers of a real engine, followed from their start to their limits, and through a restart of the engine.

use crate::support::can_write_cgroups;
use commensal_agent::members::{Change, Follow, Follower, Members, Reports};
use commensal_core::actual::ActualState;
use commensal_core::group::GroupSpec;
use commensal_host::{Host, HostError, LinuxHost, Waker};
use commensal_reconcile::{Instance, Journal, PlanRequest, Restored, apply, restore};
use commensal_sensors::{Survey, machine};
use commensal_testkit::{Engine, cgroup_of};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime};

/// Longest wait for something to happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a container runs until it is stopped.
const FOREVER: &str = "trap 'exit 0' TERM; while :; do /bin/busybox sleep 1; done";

/// The loop in small: changes in, facts, plan, writes.
struct Loop {
    host: LinuxHost,
    instance: Instance,
    survey: Survey,
    specs: Vec<GroupSpec>,
    members: Members,
    journal: Journal,
    state: PathBuf,
}

impl Loop {
    fn new(state: &Path, prefix: &str, text: &str) -> Loop {
        let mut host = LinuxHost::new();
        let instance = Instance::of_machine(state, prefix);
        let survey = instance.survey(&mut host).unwrap();
        let journal = instance.open_journal(&mut host).unwrap();
        let specs = commensal_core::config::parse("g", text).unwrap();
        Loop { host, instance, survey, specs, members: Members::default(), journal, state: state.to_owned() }
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

    /// Puts everything back.
    fn restore(&mut self) -> Result<Restored, HostError> {
        let boot_id = machine::boot_id(&self.host).unwrap_or_default();
        restore(&mut self.host, &self.state, &boot_id, false)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // A test that failed leaves no limits either.
        let _ = self.restore();
    }
}

/// What limits the tasks of a container.
fn limit(engine: &Engine, id: &str) -> String {
    let path = cgroup_of(engine.pid(id), "cpu").unwrap();
    let all = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"]
        .map(|mount| Path::new(mount).join(path.trim_start_matches('/')).join("pids.max"));
    all.iter().find_map(|file| std::fs::read_to_string(file).ok()).unwrap_or_default().trim().to_owned()
}

fn next(changes: &Receiver<Change>) -> Change {
    changes.recv_timeout(PATIENCE).expect("a change")
}

/// Seconds since midnight of Docker's `2026-11-22T06:00:00.123456789Z`.
fn since_midnight(text: &str) -> Option<f64> {
    let time = text.trim().split('T').nth(1)?.trim_end_matches('Z');
    let mut parts = time.split(':');
    let (hours, minutes, seconds): (f64, f64, f64) =
        (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some(hours * 3600.0 + minutes * 60.0 + seconds)
}

/// Thirty containers that appear at once, one by one protected after it was told to run; then the engine restarts, and after
/// that the containers that it starts again are protected again.
// promise 26
#[test]
fn followed_from_start_to_protection() {
    let test = "followed_from_start_to_protection";
    if !can_write_cgroups(test) {
        return;
    }
    let prefix = format!("commensal-test-{}-follow", std::process::id());
    let dir = tempfile::tempdir().unwrap();
    let Some(mut engine) = Engine::start(test, dir.path()) else { return };
    let (tell, changes) = channel();
    let socket = PathBuf::from(engine.host.strip_prefix("unix://").unwrap());
    let follow = Follow { sockets: vec![socket], mounts: Vec::new() };
    let _follower = Follower::start(follow, &Reports::new(tell, Waker::new().unwrap())).unwrap();
    assert!(matches!(next(&changes), Change::Containers { running, .. } if running.is_empty()));
    let text = "[group.a]\nclass = \"offline\"\npids.max = 66\nmatch = [{ docker-label = \"tier=batch\" }]\n";
    let mut agent = Loop::new(&dir.path().join("state"), &prefix, text);
    // One at a time, for the window.
    let mut windows = Vec::new();
    for _ in 0..5 {
        let id = engine.run(&["--label", "tier=batch"], FOREVER);
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
        assert_eq!(limit(&engine, &id), "66");
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
    let ids: BTreeSet<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    assert_eq!(ids.len(), 30, "{}", String::from_utf8_lossy(&output.stderr));
    catch_up(&mut agent, &changes, &ids);
    assert!(ids.iter().all(|id| limit(&engine, id) == "66"));
    engine.stop();
    let end = Instant::now() + PATIENCE;
    while !matches!(next(&changes), Change::EngineLost { .. }) {
        assert!(Instant::now() < end);
    }
    engine.again();
    let seen = catch_up(&mut agent, &changes, &ids);
    assert!(seen.iter().any(|change| matches!(change, Change::EngineBack { .. })), "{seen:?}");
    let limits: BTreeSet<String> = ids.iter().map(|id| limit(&engine, id)).collect();
    assert_eq!(limits, BTreeSet::from(["66".to_owned()]));
    let mut all = vec!["rm".to_owned(), "-f".to_owned()];
    all.extend(ids);
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    assert!(engine.docker(&all).0);
    let restored = agent.restore().unwrap();
    assert!(restored.failed.is_empty() && restored.left.is_empty(), "{restored:?}");
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
