//! `agent canary` on this machine's kernel: the direction of what isolation does, the limits, and that isolation is on after
//! every end.

use crate::agent::{Agent, Theirs, cleaned, mounts, snapshot, until};
use crate::support::{Program, can_write_cgroups, text};
use commensal_host::LinuxHost;
use commensal_testkit::{Alone, Signal, alone, field_of_status, keep_off_cpu, signal};
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Whether the group is held back by class: idle, or with the smallest weight.
fn held_back(dir: &Path) -> bool {
    let is = |file: &str, value: &str| {
        std::fs::read_to_string(dir.join(file)).is_ok_and(|text| text.trim() == value)
    };
    is("cpu.idle", "1") || is("cpu.shares", "2") || is("cpu.weight", "1")
}

/// Work that never sleeps, on one CPU, in a group of somebody else's.
struct Spinner(Child);

impl Spinner {
    /// `None` without taskset.
    fn start(group: &Theirs, cpu: usize) -> Option<Spinner> {
        let mut command = Command::new("taskset");
        command.args(["-c", &cpu.to_string(), "sh", "-c", "while :; do :; done"]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
        let spinner = Spinner(child);
        for mount in mounts() {
            // A new group of cpuset on v1 has no CPUs and lets nobody in, and its parent may be as new.
            let mut dir = mount.clone();
            for part in Path::new(&group.name) {
                let parent = dir;
                dir = parent.join(part);
                for name in ["cpuset.cpus", "cpuset.mems"] {
                    if std::fs::read_to_string(dir.join(name)).is_ok_and(|set| set.trim().is_empty())
                        && let Ok(all) = std::fs::read_to_string(parent.join(name))
                    {
                        std::fs::write(dir.join(name), all.trim()).unwrap();
                    }
                }
            }
            std::fs::write(dir.join("cgroup.procs"), spinner.0.id().to_string()).unwrap();
        }
        Some(spinner)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The last of the CPUs that this process may use.
fn last_cpu() -> usize {
    let list = field_of_status(std::process::id(), "Cpus_allowed_list").unwrap();
    list.rsplit([',', '-']).next().unwrap().parse().unwrap()
}

/// A service and batch work of somebody else's on one CPU, and an agent that keeps them apart.
struct World {
    // In the order in which they end.
    spinners: Vec<Spinner>,
    agent: Option<Agent>,
    etl: Theirs,
    _web: Theirs,
    _top: Theirs,
    program: Program,
    _alone: Alone,
}

impl World {
    fn new(test: &str, name: &str) -> Option<World> {
        if !can_write_cgroups(test) {
            return None;
        }
        let alone = alone();
        let program = Program::new(name);
        // What the two wait for is each other: beside all the weight that there is the rest of the machine hardly counts on
        // their CPU.
        let top = Theirs::new(&program, "top");
        top.set_weight(if top.cpu.join("cpu.weight").exists() { 10_000 } else { 262_144 });
        let (web, etl) = (top.child("web"), top.child("etl"));
        let of = |name: &str, class: &str, path: &str| {
            format!("[group.{name}]\nclass = \"{class}\"\nmatch = [{{ cgroup = \"/{path}\" }}]\n")
        };
        let groups = program.groups(&(of("web", "online", &web.name) + &of("etl", "offline", &etl.name)));
        let cpu = last_cpu();
        let spinners = [&web, &etl].map(|group| Spinner::start(group, cpu));
        let [Some(online), Some(offline)] = spinners else {
            println!("skipped: {test}: no taskset to pin work to a CPU");
            return None;
        };
        let spinners = vec![online, offline];
        // Beside that weight, an agent on their CPU would get less than 1 % of it, and its windows would be late.
        keep_off_cpu(cpu);
        let agent = Some(Agent::start(&program, &groups, &["--on-exit", "restore"]));
        let world = World { spinners, agent, etl, _web: web, _top: top, program, _alone: alone };
        until("offline work is held back", || held_back(&world.etl.cpu));
        in_force(&world.program);
        Some(world)
    }

    fn canary(&self, args: &[&str]) -> Command {
        let mut all = vec!["agent", "canary", "--window", "500ms"];
        all.extend(args);
        self.program.command(&all)
    }

    /// Runs one to its end: status and what it printed.
    fn run(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let output = self.canary(args).output().unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    /// Starts one, and waits until isolation is off; again when it is refused because something is not in force yet.
    fn until_off(&self, args: &[&str]) -> Child {
        let mut command = self.canary(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        until("isolation is off", || {
            if let Some(status) = child.try_wait().unwrap() {
                // An agent that is busy for longer than the client waits may have begun one for nobody: that ends first.
                self.nobody_asks();
                let ended = std::mem::replace(&mut child, command.spawn().unwrap());
                println!("{status}: {}", text(&ended.wait_with_output().unwrap().stderr));
                return false;
            }
            !held_back(&self.etl.cpu) && child.try_wait().unwrap().is_none()
        });
        child
    }

    fn nobody_asks(&self) {
        until("no canary runs", || snapshot(&self.program).is_some_and(|seen| seen.canary.is_none()));
    }

    fn on_again(&self, after: &str) {
        until(format!("isolation is on after {after}"), || held_back(&self.etl.cpu));
        self.nobody_asks();
        assert!(held_back(&self.etl.cpu), "after {after}");
    }
}

/// Waits until the agent says that all is in force; what it says instead is printed.
fn in_force(program: &Program) {
    let mut said = String::new();
    until("all is in force", || {
        let output = program.run(&["status"]);
        let now = text(&output.stdout);
        if output.status.code() != Some(0) && now != said {
            println!("not in force: {now}{}", text(&output.stderr));
            said = now;
        }
        output.status.code() == Some(0)
    });
}

/// Far above anything: the direction is to be seen, not the limit.
const NO_LIMITS: [&str; 4] = ["--max-blamed", "1000000", "--max-run-delay", "1000000"];

// promise 29
#[test]
fn a_canary_shows_what_isolation_does() {
    let test = "a_canary_shows_what_isolation_does";
    let Some(mut world) = World::new(test, "canary") else { return };
    let mut args = vec!["--for", "12s", "--seed", "4", "--whole", "--json"];
    args.extend(NO_LIMITS);
    let (status, out, err) = world.run(&args);
    let value: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    assert!(err.contains("limits: isolation is off for at most 50 %") && err.contains("seed 4"), "{err}");
    let effects = value["effects"].as_array().unwrap();
    let waits = effects.iter().filter(|effect| {
        let figure = effect["figure"].as_str().unwrap();
        figure.starts_with("blamed") || figure.starts_with("run delay")
    });
    let mut pairs = 0;
    for effect in waits {
        println!("{test}: {effect}");
        pairs = pairs.max(effect["pairs"].as_u64().unwrap());
        assert!(effect["difference"].as_f64().unwrap() > 0.0, "it waits longer without isolation: {effect}");
    }
    assert!(pairs >= 1, "{value}");
    // Eight pairs are enough for every figure there can be (2 / 2^8 * 5 < 0.05).
    if pairs >= 8 {
        assert_eq!((status, value["verdict"].as_str()), (Some(0), Some("PASS")), "{value}");
    }
    let canary = &value["canary"];
    if commensal_blame::preflight::check(&LinuxHost::new()).is_ok() {
        assert!(canary["no_probe"].is_null(), "a process that has given up privileges loads it: {canary}");
        let blamed =
            |effect: &Value| effect["figure"].as_str().is_some_and(|figure| figure.starts_with("blamed"));
        assert!(effects.iter().any(blamed), "{value}");
    }
    assert!(canary["off_s"].as_f64().unwrap() <= canary["seconds"].as_f64().unwrap() * 0.5 + 2.0, "{canary}");
    world.on_again("its time");
    // Each switch is in the audit log: as many off as on, and two pairs share at most one time without isolation. How many
    // there are is for the machine to say.
    let log = std::fs::read_to_string(world.program.state().join("audit.log")).unwrap();
    let switches = |side: &str| {
        let new = format!("\"new\":\"isolation {side}\"");
        log.lines().filter(|line| line.contains("\"canary\"") && line.contains(&new)).count() as u64
    };
    let (off, on) = (switches("off"), switches("on"));
    assert!(off == on && off * 2 >= pairs, "{off} and {on} switches, {pairs} pairs\n{log}");
    assert!(!log.contains("drift"), "{log}");
    // Another one, with limits that this work is far above.
    let (status, out, err) = world.run(&["--for", "1m", "--max-blamed", "1", "--max-run-delay", "1"]);
    assert_eq!(status, Some(3), "{out}{err}");
    assert!(out.contains("it ended because three windows had to be aborted"), "{out}{err}");
    assert!(out.contains("pairs of windows are too few") && out.contains("--max-blamed"), "{out}");
    world.on_again("three windows that were broken off");
    // Nobody to be isolated from.
    world.spinners.pop();
    let (status, _, err) = world.run(&["--for", "12s"]);
    assert!(status == Some(2) && err.contains("no offline group has processes now"), "{err}");
    world.spinners.clear();
    assert_eq!(world.agent.take().unwrap().end(Signal::TERM), Some(0));
    assert!(!held_back(&world.etl.cpu), "originals are back");
    let World { program, .. } = world;
    cleaned(&program);
}

// promise 29
#[test]
fn isolation_is_on_after_every_end_of_a_canary() {
    let test = "isolation_is_on_after_every_end_of_a_canary";
    let Some(mut world) = World::new(test, "canary-ends") else { return };
    let mut long = vec!["--for", "10m", "--off", "50"];
    long.extend(NO_LIMITS);
    // Ctrl-C, with a report of what there is.
    let child = world.until_off(&long);
    let status = text(&world.program.run(&["status"]).stdout);
    assert!(status.contains("canary: isolation is"), "{status}");
    // Not beside another.
    let (code, _, err) = world.run(&long);
    assert!(code == Some(2) && err.contains("a canary runs already"), "{err}");
    assert!(signal(child.id(), Signal::INT));
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stdout);
    assert!(said.contains("it ended because a user stopped it"), "{said}{}", text(&output.stderr));
    world.on_again("Ctrl-C");
    // The client is killed.
    let mut child = world.until_off(&long);
    child.kill().unwrap();
    child.wait().unwrap();
    world.on_again("the death of who asked");
    // The groups change.
    let child = world.until_off(&long);
    let groups = world.program.path("groups.toml");
    let changed = std::fs::read_to_string(&groups).unwrap() + "[group.more]\nclass = \"offline\"\n";
    std::fs::write(&groups, changed).unwrap();
    let said = text(&child.wait_with_output().unwrap().stdout);
    assert!(said.contains("it ended because the groups changed"), "{said}");
    world.on_again("a change of the groups");
    // A pause, during which none begins.
    let child = world.until_off(&long);
    world.program.expect(0, &["agent", "pause"]);
    assert!(held_back(&world.etl.cpu), "it is back before the agent stops writing");
    let said = text(&child.wait_with_output().unwrap().stdout);
    assert!(said.contains("it ended because the agent was paused"), "{said}");
    let (code, _, err) = world.run(&long);
    assert!(code == Some(2) && err.contains("the agent is paused"), "{err}");
    world.program.expect(0, &["agent", "resume"]);
    // The agent is killed while isolation is off: the guard puts it back.
    in_force(&world.program);
    let child = world.until_off(&long);
    world.agent.as_ref().unwrap().signal(Signal::KILL);
    until("the guard has put it back", || held_back(&world.etl.cpu));
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert!(
        output.status.code() == Some(2) && said.contains("no longer responds"),
        "{:?} {}{said}",
        output.status,
        text(&output.stdout)
    );
    // Ended while isolation is off, with everything to be left as it is.
    drop(world.agent.take());
    let agent = Agent::start(&world.program, &groups, &["--on-exit", "keep"]);
    in_force(&world.program);
    let mut child = world.until_off(&long);
    assert_eq!(agent.end(Signal::TERM), Some(0));
    assert!(held_back(&world.etl.cpu), "as it is means with isolation");
    child.wait().unwrap();
    world.spinners.clear();
    let World { program, etl, .. } = world;
    program.expect(0, &["restore"]);
    assert!(!held_back(&etl.cpu));
    drop(etl);
    cleaned(&program);
}
