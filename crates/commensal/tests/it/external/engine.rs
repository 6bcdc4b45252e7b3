//! The container engine goes and comes back under an agent: containers live on and stay protected, and new ones are protected
//! as soon as they run.

use super::containers::{FOREVER, cgroup};
use crate::agent::{Agent, asked, mounts, until};
use crate::agent_faults::nothing_left;
use crate::support::{Program, can_write_cgroups, cpu_mount};
use commensal_testkit::{Engine, Signal, removed_within, signal, throughout};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Longer than an event takes on a busy machine: what happens sooner is not the tick's work.
const INTERVAL: Duration = Duration::from_secs(12);

/// Containers that outlive their engine end with the test, and so does the cgroup above them.
struct Containers {
    parent: String,
    pids: Vec<u32>,
}

impl Drop for Containers {
    fn drop(&mut self) {
        for pid in &self.pids {
            signal(*pid, Signal::KILL);
        }
        let end = Instant::now() + Duration::from_secs(10);
        // The engine makes it in every hierarchy, also where no group of ours can be.
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
        let hierarchies = mounts.lines().filter(|line| line.contains(" cgroup"));
        let mounts = hierarchies.filter_map(|line| line.split(' ').nth(1));
        for dir in mounts.map(|mount| std::path::Path::new(mount).join(&self.parent)) {
            removed_within(end.saturating_duration_since(Instant::now()), &dir);
        }
    }
}

fn tasks(group: &std::path::Path) -> Option<PathBuf> {
    let below = group.strip_prefix(cpu_mount()).unwrap().to_owned();
    mounts().into_iter().map(|mount| mount.join(&below).join("pids.max")).find(|file| file.exists())
}

fn limit(file: &std::path::Path) -> String {
    std::fs::read_to_string(file).unwrap_or_default().trim().to_owned()
}

// promise 26
#[test]
fn the_engine_restarts_under_the_agent() {
    let test = "the_engine_restarts_under_the_agent";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("engine");
    let dir = tempfile::tempdir().unwrap();
    let parent = format!("{}-docker", program.prefix);
    let options = ["--live-restore".to_owned(), format!("--cgroup-parent=/{parent}")];
    let Some(mut engine) = Engine::with(test, dir.path(), &options) else { return };
    let mut containers = Containers { parent, pids: Vec::new() };
    let mut start = |engine: &Engine, label: &str| {
        let id = engine.run(&["--label", label], FOREVER);
        containers.pids.push(engine.pid(&id));
        (id.clone(), tasks(&cgroup(engine, &id)).expect("the pids controller"))
    };
    let (batch, batch_limit) = start(&engine, "tier=batch");
    let (web, web_limit) = start(&engine, "tier=web");
    let groups = program.groups(
        "[group.web]\nclass = \"online\"\nmatch = [{ docker-label = \"tier=web\" }]\n\
         [group.a]\nclass = \"offline\"\npids.max = 66\nmatch = [{ docker-label = \"tier=batch\" }]\n",
    );
    let interval = format!("{}s", INTERVAL.as_secs());
    let mut command = program.command(&[
        "agent",
        "-c",
        groups.to_str().unwrap(),
        "--interval",
        &interval,
        "--lease",
        "60s",
    ]);
    command.env("DOCKER_HOST", &engine.host);
    let agent = Agent::spawn(command);
    until("the container is limited", || limit(&batch_limit) == "66");
    engine.stop();
    until("it is told", || agent.said().contains("the container engine at"));
    let held = || limit(&batch_limit) == "66" && limit(&web_limit) == "max";
    throughout(Duration::from_secs(2), "a container is let go, or an online one limited", held);
    assert!(asked(&program).problems.iter().any(|trouble| trouble.contains("the container engine at")));
    // Protected without its engine as well.
    std::fs::write(&batch_limit, "max").unwrap();
    until("the limit is back", || limit(&batch_limit) == "66");
    engine.again();
    until("nothing is wrong any more", || asked(&program).problems.is_empty());
    assert!(held());
    let ticks = asked(&program).ticks;
    let (later, later_limit) = start(&engine, "tier=batch");
    let since = Instant::now();
    until("the new container is limited", || limit(&later_limit) == "66");
    let took = since.elapsed();
    println!(
        "{test}: a new container was limited {took:.2?} after `docker run`, {} ticks of {INTERVAL:?} on",
        asked(&program).ticks - ticks
    );
    assert!(took < INTERVAL / 2, "only the tick found it: {took:?}");
    assert!(held());
    let told = agent.said();
    let lines: Vec<&str> = told.lines().collect();
    let once: std::collections::BTreeSet<&str> = lines.iter().copied().collect();
    assert_eq!(lines.len(), once.len(), "each is told once: {told}");
    assert_eq!(agent.end(Signal::TERM), Some(0));
    program.expect(0, &["restore"]);
    assert!([&batch_limit, &later_limit, &web_limit].iter().all(|file| limit(file) == "max"));
    assert!(engine.docker(&["rm", "-f", &batch, &web, &later]).0);
    containers.pids.clear();
    engine.stop();
    drop(containers);
    nothing_left(&program);
}
