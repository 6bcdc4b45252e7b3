//! The agent on this machine's kernel: what it keeps, what it follows, and what is left when it ends in every way.

use crate::bad_input::assert_nothing_left;
use crate::support::{Program, can_write_cgroups, cpu_mount, text};
use commensal_agent::snapshot::Snapshot;
pub use commensal_testkit::until;
use commensal_testkit::{Signal, ended, line, signal, throughout, until_every, until_some, until_still};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Patience with a busy machine; nothing here is about how long something takes.
pub const PATIENCE: Duration = Duration::from_secs(120);
pub const ETL: &str = "[group.etl]\nclass = \"offline\"\ncpu.max = \"0.2 cores\"\n";

/// An agent that runs, and what it says.
pub struct Agent {
    pub child: Child,
    said: Arc<Mutex<Vec<String>>>,
}

impl Agent {
    pub fn start(program: &Program, groups: &Path, more: &[&str]) -> Agent {
        Agent::spawn(Agent::command(program, groups, more))
    }

    /// What starts one.
    pub fn command(program: &Program, groups: &Path, more: &[&str]) -> Command {
        let mut args = vec!["agent", "-c", groups.to_str().unwrap()];
        args.extend(["--interval", "100ms"].into_iter().filter(|_| !more.contains(&"--interval")));
        args.extend(more);
        program.command(&args)
    }

    pub fn spawn(mut command: Command) -> Agent {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        let (stderr, lines) = (child.stderr.take().unwrap(), Arc::clone(&said));
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                lines.lock().unwrap().push(line);
            }
        });
        Agent { child, said }
    }

    pub fn signal(&self, name: Signal) {
        assert!(signal(self.child.id(), name));
    }

    pub fn said(&self) -> String {
        self.said.lock().unwrap().join("\n")
    }

    pub fn end(mut self, signal: Signal) -> Option<i32> {
        self.signal(signal);
        let status = self.child.wait().unwrap().code();
        if status != Some(0) {
            // What it says last may still be on its way.
            until_still(Duration::from_millis(200), "what it says", || self.said().len());
            println!("the agent ended with {status:?} and said:\n{}", self.said());
        }
        status
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether the group has a quota.
pub fn limited(dir: &Path) -> bool {
    let read = |name: &str| std::fs::read_to_string(dir.join(name));
    match (read("cpu.max"), read("cpu.cfs_quota_us")) {
        (Ok(max), _) => !max.starts_with("max"),
        (_, Ok(quota)) => quota.trim() != "-1",
        _ => false,
    }
}

pub fn set_quota(dir: &Path, limited: bool) {
    let (file, value) = match (dir.join("cpu.max").exists(), limited) {
        (true, true) => ("cpu.max", "70000 100000"),
        (true, false) => ("cpu.max", "max 100000"),
        (false, true) => ("cpu.cfs_quota_us", "70000"),
        (false, false) => ("cpu.cfs_quota_us", "-1"),
    };
    std::fs::write(dir.join(file), value).unwrap();
}

/// The agent's own offline group.
pub fn own(program: &Program, name: &str) -> PathBuf {
    cpu_mount().join(format!("{}-offline", program.prefix)).join(name)
}

/// A group of somebody else's in every hierarchy, removed at the end.
pub struct Theirs {
    pub name: String,
    /// Where the cpu controller has it.
    pub cpu: PathBuf,
}

impl Theirs {
    pub fn new(program: &Program, name: &str) -> Theirs {
        Theirs::named(format!("{}-{name}", program.prefix))
    }

    /// Of exactly this name, which the test's own name has to be part of.
    pub fn named(name: String) -> Theirs {
        for mount in mounts() {
            std::fs::create_dir(mount.join(&name)).unwrap();
        }
        Theirs { cpu: cpu_mount().join(&name), name }
    }

    /// A group below it.
    pub fn child(&self, name: &str) -> Theirs {
        let name = format!("{}/{name}", self.name);
        for mount in mounts() {
            // Below the root of v2 controllers have to be handed on.
            let _ = std::fs::write(mount.join(&self.name).join("cgroup.subtree_control"), "+cpu");
            std::fs::create_dir(mount.join(&name)).unwrap();
        }
        Theirs { cpu: cpu_mount().join(&name), name }
    }

    /// In the kernel's own unit.
    fn weight(&self) -> u64 {
        let read = |file: &str| std::fs::read_to_string(self.cpu.join(file)).ok();
        read("cpu.weight").or_else(|| read("cpu.shares")).unwrap().trim().parse().unwrap()
    }

    pub fn set_weight(&self, weight: u64) {
        let file = if self.cpu.join("cpu.weight").exists() { "cpu.weight" } else { "cpu.shares" };
        std::fs::write(self.cpu.join(file), weight.to_string()).unwrap();
    }

    /// Whether its number of tasks is limited.
    pub fn counted(&self) -> bool {
        let mut found = mounts().into_iter().map(|mount| mount.join(&self.name).join("pids.max"));
        found.any(|file| std::fs::read_to_string(file).is_ok_and(|max| max.trim() != "max"))
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        for mount in mounts() {
            let _ = std::fs::remove_dir(mount.join(&self.name));
        }
    }
}

pub fn mounts() -> Vec<PathBuf> {
    let found = commensal_sensors::mounts::hierarchies(&mut commensal_host::LinuxHost::new()).unwrap();
    found.iter().map(|hierarchy| PathBuf::from(&hierarchy.mount)).collect()
}

/// What the agent knows; `None` where none answers.
pub fn snapshot(program: &Program) -> Option<Snapshot> {
    let found: Option<Snapshot> = serde_json::from_slice(&program.run(&["status", "--json"]).stdout).ok();
    // Without an agent the program tells what is on record.
    found.filter(|snapshot| snapshot.pid != 0)
}

/// The agent's snapshot, which it has once its first tick is over.
pub fn asked(program: &Program) -> Snapshot {
    until_some("the agent answers", || snapshot(program))
}

/// Runs a verb that asks the agent, again while the agent does not come to it in the program's own time: status 0 or what else is
/// wanted, standard output and standard error.
pub fn answered(program: &Program, status: i32, args: &[&str]) -> (String, String) {
    until_some(format_args!("the agent answers {args:?}"), || {
        let output = program.run(args);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        let late = ["does not respond", "has not processed the command yet"];
        if late.iter().any(|words| err.contains(words)) {
            return None;
        }
        assert_eq!(output.status.code(), Some(status), "{args:?}: {out}{err}");
        Some((out, err))
    })
}

/// Waits until the agent has made so many more ticks: what a tick does it has done then, and its guard knows of it.
pub fn ticks_on(program: &Program, more: u64) {
    let ticks = asked(program).ticks;
    until(format_args!("{more} more ticks"), || asked(program).ticks >= ticks + more);
}

/// Nothing is left of an agent and its guard, after `restore`.
pub fn cleaned(program: &Program) {
    program.run(&["restore"]);
    until("the guard has gone", || {
        !program.state().join("guard.sock").exists()
            || UnixStream::connect(program.state().join("guard.sock")).is_err()
    });
    assert_nothing_left(&program.state());
}

// promise 18
#[test]
fn it_puts_back_what_others_change_and_follows_what_comes() {
    let test = "it_puts_back_what_others_change_and_follows_what_comes";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("keeps");
    let pattern = format!("/{}-batch-*", program.prefix);
    let groups = program.groups(&format!(
        "{ETL}[group.theirs]\nclass = \"offline\"\ncpu.max = \"0.5 cores\"\nmatch = [{{ cgroup = \"{pattern}\" }}]\n"
    ));
    let first = Theirs::new(&program, "batch-1");
    // A lease that an agent which gets hardly any CPU keeps as well: beyond it the guard would say something.
    let agent = Agent::start(&program, &groups, &["--lease", "60s"]);
    until("the group is limited", || limited(&own(&program, "etl")) && limited(&first.cpu));
    // Somebody lifts the limit; not between a write of the agent and its look at what was written, which it would tell.
    until("the first tick is over", || program.run(&["status"]).status.code() != Some(2));
    set_quota(&first.cpu, false);
    until("the limit is back", || limited(&first.cpu));
    // A group that comes later.
    let second = Theirs::new(&program, "batch-2");
    until("the new one is limited", || limited(&second.cpu));
    // One that goes is no trouble.
    drop(first);
    throughout(Duration::from_millis(400), "a group that goes is a normal event", || agent.said().is_empty());
    assert_eq!(agent.end(Signal::TERM), Some(0));
    assert!(limited(&second.cpu), "offline work is held back by the safe state");
    program.expect(0, &["restore"]);
    assert!(!limited(&second.cpu));
    drop(second);
    cleaned(&program);
}

// promise 19
#[test]
fn changed_groups_are_taken_whole_or_not_at_all() {
    let test = "changed_groups_are_taken_whole_or_not_at_all";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("reload");
    let groups = program.groups(ETL);
    let agent = Agent::start(&program, &groups, &[]);
    let (etl, more) = (own(&program, "etl"), own(&program, "more"));
    until("etl is limited", || limited(&etl));
    let both = format!("{ETL}[group.more]\nclass = \"offline\"\ncpu.max = \"0.1 cores\"\n");
    std::fs::write(&groups, format!("{both}[group.bad]\nclas = 1\n")).unwrap();
    until("the mistake is told", || agent.said().contains("unknown key \"clas\""));
    assert!(agent.said().contains("and generation 1 stays in force"), "{}", agent.said());
    assert!(limited(&etl) && !more.exists());
    std::fs::write(&groups, &both).unwrap();
    agent.signal(Signal::HUP);
    until("both are limited", || limited(&etl) && limited(&more));
    // A group that is not wanted any more goes.
    std::fs::write(&groups, ETL).unwrap();
    until("more is gone", || !more.exists());
    // A file that is gone is no reason to let go.
    std::fs::remove_file(&groups).unwrap();
    until("it is told", || agent.said().contains("cannot read the groups"));
    assert!(limited(&etl));
    drop(agent);
    // Killed; the next one begins with the last good groups.
    let again = Agent::start(&program, &groups, &["--on-exit", "restore"]);
    until("it says so", || again.said().contains("and generation 1 stays in force"));
    until("etl is limited", || limited(&etl));
    assert_eq!(again.end(Signal::TERM), Some(0));
    assert!(!etl.exists(), "the originals are back");
    cleaned(&program);
}

// promise 20
#[test]
fn one_agent_per_machine_and_hand_over() {
    let test = "one_agent_per_machine_and_hand_over";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("second");
    let groups = program.groups(ETL);
    let mut first = Agent::start(&program, &groups, &[]);
    let etl = own(&program, "etl");
    until("etl is limited", || limited(&etl));
    let refused = program.run(&["agent", "-c", groups.to_str().unwrap()]);
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("process {}", first.child.id())) && said.contains("--replace"), "{said}");
    for verb in ["apply", "restore"] {
        let mut args = vec![verb];
        args.extend((verb == "apply").then_some(["-c", groups.to_str().unwrap()]).into_iter().flatten());
        let (_, said) = program.expect(2, &args);
        assert!(said.contains("an agent manages the groups of this machine (process"), "{said}");
    }
    // The limit holds at every moment while they change places.
    let second = Agent::start(&program, &groups, &["--replace", "--on-exit", "restore"]);
    let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&etl).unwrap());
    until("the first has ended", || {
        assert!(limited(&etl));
        first.child.try_wait().unwrap().is_some()
    });
    assert_eq!(first.child.wait().unwrap().code(), Some(0));
    set_quota(&etl, true);
    until("the second keeps the group", || {
        std::fs::read_to_string(etl.join("cpu.max"))
            .or_else(|_| std::fs::read_to_string(etl.join("cpu.cfs_quota_us")))
            .unwrap()
            .starts_with("20000")
    });
    assert_eq!(std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&etl).unwrap()), inode);
    assert_eq!(second.end(Signal::TERM), Some(0), "{}", first.said());
    assert!(!etl.exists());
    cleaned(&program);
}

/// A request to make room whose sender has given up, which an agent finds that stood still, is not one.
// promise 20
#[test]
fn a_hand_over_that_nobody_waits_for_is_none() {
    let test = "a_hand_over_that_nobody_waits_for_is_none";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("nobody");
    let groups = program.groups(ETL);
    let mut agent = Agent::start(&program, &groups, &["--lease", "60s"]);
    until("etl is limited", || limited(&own(&program, "etl")));
    agent.signal(Signal::STOP);
    let next = program.run(&["agent", "-c", groups.to_str().unwrap(), "--no-probe", "--replace"]);
    let said = text(&next.stderr);
    assert_eq!(next.status.code(), Some(2), "{said}");
    assert!(said.contains("did not exit within"), "{said}");
    agent.signal(Signal::CONT);
    ticks_on(&program, 3);
    assert_eq!(agent.child.try_wait().unwrap(), None, "{}", agent.said());
    assert_eq!(agent.end(Signal::TERM), Some(0));
    program.expect(0, &["restore"]);
    cleaned(&program);
}

/// A guard that an agent started does not outlive it, even when it was killed before it said a word.
// promise 11
#[test]
fn a_guard_whose_starter_dies_early_ends() {
    let program = Program::new("early");
    std::fs::create_dir_all(program.state()).unwrap();
    let guard = program.command(&["guard", "--once"]);
    let mut starter = Command::new("sh");
    starter.args(["-c", "\"$@\" & echo $!; wait", "starter"]).arg(guard.get_program()).args(guard.get_args());
    let mut starter = starter.stdout(Stdio::piped()).spawn().unwrap();
    let guard: u32 = line(starter.stdout.as_mut().unwrap()).parse().unwrap();
    // One who says nothing sensible is no agent; that it is sent away shows that the guard waits for one.
    until("it waits for an agent", || {
        let Ok(mut stream) = UnixStream::connect(program.state().join("guard.sock")) else { return false };
        stream.write_all(b"nobody\n").is_ok() && stream.read(&mut [0]).is_ok_and(|bytes| bytes == 0)
    });
    assert!(!ended(guard));
    starter.kill().unwrap();
    starter.wait().unwrap();
    until("the guard has ended", || ended(guard));
    // One whose starter is no longer there when it begins.
    program.expect(0, &["guard", "--once", "--starter", &starter.id().to_string()]);
}

/// The guard: limits on online work go, offline work stays held back; a group that wants its originals back has them.
// promise 21
#[test]
fn the_guard_brings_the_safe_state() {
    let test = "the_guard_brings_the_safe_state";
    if !can_write_cgroups(test) {
        return;
    }
    for (name, with) in [("dies", Signal::KILL), ("hangs", Signal::STOP)] {
        let program = Program::new(name);
        let (web, tmp) = (Theirs::new(&program, "web"), Theirs::new(&program, "tmp"));
        let of = |name: &str, class: &str, path: &Theirs, more: &str| {
            format!(
                "[group.{name}]\nclass = \"{class}\"\n{more}match = [{{ cgroup = \"/{}\" }}]\n",
                path.name
            )
        };
        let groups = program.groups(
            &[
                ETL.to_owned(),
                of("web", "online", &web, "pids.max = 500\n"),
                of("tmp", "offline", &tmp, "safe-state = \"restore\"\ncpu.max = \"0.7 cores\"\n"),
            ]
            .concat(),
        );
        // A lease that an agent which gets hardly any CPU keeps as well: one whose lease ends is ended by its guard.
        let mut agent = Agent::start(&program, &groups, &["--lease", "10s"]);
        let etl = own(&program, "etl");
        until("all are limited", || {
            assert_eq!(agent.child.try_wait().unwrap(), None, "{}", agent.said());
            limited(&etl) && web.counted() && limited(&tmp.cpu)
        });
        // The guard knows the groups once the first tick is over.
        until("the groups are kept", || program.state().join("agent-groups.json").exists());
        agent.signal(with);
        until("the safe state", || !web.counted() && !limited(&tmp.cpu));
        assert!(limited(&etl), "offline work stays held back");
        until("the agent has ended", || agent.child.try_wait().unwrap().is_some());
        let why = if with == Signal::STOP { "no keep-alive" } else { "the agent died" };
        until("the guard tells", || agent.said().contains(why) && agent.said().contains("safe state after"));
        drop(agent);
        let next = Agent::start(&program, &groups, &["--lease", "10s"]);
        let mut last = serde_json::Value::Null;
        until("the next agent tells", || {
            let shown = program.run(&["status", "--json"]).stdout;
            last = serde_json::from_slice(&shown)
                .map(|mut all: serde_json::Value| all["safe_state"].take())
                .unwrap_or_default();
            last.is_object()
        });
        assert!(last["why"].as_str().unwrap().contains(why) && last["held"].as_u64() > Some(2), "{last}");
        assert_eq!((last["failures"].as_u64(), last["failed"].as_array().map(Vec::len)), (Some(0), Some(0)));
        drop((next, web, tmp));
        cleaned(&program);
    }
}

/// A guard that is a unit may find one that the agent started while it was away.
// promise 21
#[test]
fn a_guard_waits_while_another_listens() {
    let program = Program::new("guards");
    let listens = || UnixStream::connect(program.state().join("guard.sock")).is_ok();
    let first = Agent::spawn(program.command(&["guard"]));
    until("a guard listens", listens);
    let mut second = Agent::spawn(program.command(&["guard"]));
    until("the other waits", || second.said().contains("another guard is running"));
    drop(first);
    until("the other listens", listens);
    assert_eq!(second.child.try_wait().unwrap(), None, "{}", second.said());
}

/// The CPUs that the machine and the group have; `None` where no hierarchy has cpuset.
pub fn cpus(program: &Program, name: &str) -> Option<(String, String)> {
    let group = format!("{}-offline/{name}", program.prefix);
    let read = |path: PathBuf| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let all = read("/sys/devices/system/cpu/online".into())?;
    mounts().into_iter().find_map(|mount| Some((all.clone(), read(mount.join(&group).join("cpuset.cpus"))?)))
}

/// The big frame: whole cores, fewer than the machine has, and everything back when it is not wanted any more.
// promises 21, 22
#[test]
fn offline_work_is_kept_to_a_frame() {
    let test = "offline_work_is_kept_to_a_frame";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("frame");
    let groups = program.groups(&format!("[agent]\nheadroom = \"frame\"\n{ETL}"));
    let agent = Agent::start(&program, &groups, &["--on-exit", "restore"]);
    until("etl is limited", || limited(&own(&program, "etl")));
    let given = |mount: &PathBuf| {
        let read = std::fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default();
        mount.join("cpuset.cpus").exists() || read.contains("cpuset")
    };
    if !mounts().iter().any(given) {
        println!("skipped: {test}: no hierarchy has cpuset for the groups");
        return;
    }
    // The first round has decided nothing yet, and so needs no cpuset.
    until("the group has CPUs", || cpus(&program, "etl").is_some());
    let (all, _) = cpus(&program, "etl").unwrap();
    let parse = |text: &str| text.parse::<commensal_core::cpuset::CpuSet>().unwrap();
    let machine = parse(&all);
    if machine.len() < 2 {
        println!("skipped: {test}: this machine has one CPU");
        return;
    }
    let mut seen = String::new();
    until("a frame", || {
        seen = cpus(&program, "etl").unwrap().1;
        let frame = parse(&seen);
        !frame.is_empty() && frame.is_subset(&machine) && frame != machine
    });
    println!("{test}: CPUs {seen} of {all}");
    // Another agent replaces it: no round of its own comes before its controllers have decided.
    let mut first = agent;
    let agent = Agent::start(&program, &groups, &["--replace", "--on-exit", "restore"]);
    let over = AtomicBool::new(false);
    let opened = std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let mut opened = Vec::new();
            until_every(Duration::from_millis(1), "the other agent is followed", || {
                let now = cpus(&program, "etl").unwrap().1;
                opened.extend(Some(now).filter(|now| now.is_empty() || parse(now) == machine));
                over.load(Ordering::Relaxed)
            });
            opened
        });
        until("the other agent has made some ticks", || {
            snapshot(&program).is_some_and(|seen| seen.pid == agent.child.id() && seen.ticks > 5)
        });
        over.store(true, Ordering::Relaxed);
        looks.join().unwrap()
    });
    assert_eq!(opened, Vec::<String>::new(), "the frame was open");
    assert_eq!(first.child.wait().unwrap().code(), Some(0));
    drop(first);
    // Without the agent the frame stays shut, at its floor.
    until("the groups are kept", || program.state().join("agent-groups.json").exists());
    ticks_on(&program, 3);
    agent.signal(Signal::KILL);
    until("the guard tells", || agent.said().contains("safe state after"));
    let left = parse(&cpus(&program, "etl").unwrap().1);
    assert!(!left.is_empty() && left.is_subset(&parse(&seen)), "{left} of {seen}");
    drop(agent);
    let agent = Agent::start(&program, &groups, &["--on-exit", "restore"]);
    std::fs::write(&groups, format!("[agent]\nheadroom = \"off\"\n{ETL}")).unwrap();
    until("all CPUs are back", || {
        let now = cpus(&program, "etl").unwrap().1;
        now.is_empty() || parse(&now) == machine
    });
    assert_eq!(agent.end(Signal::TERM), Some(0));
    cleaned(&program);
}

/// Where the freezer has a group, and whether it is frozen.
pub fn frozen(program: &Program, name: &str) -> Option<bool> {
    let group = format!("{}-offline/{name}", program.prefix);
    mounts().into_iter().find_map(|mount| {
        let read = |file: &str| std::fs::read_to_string(mount.join(&group).join(file)).ok();
        let v1 = read("freezer.state").map(|state| state.trim() != "THAWED");
        v1.or_else(|| read("cgroup.events").map(|events| events.contains("frozen 1")))
    })
}

// promise 24
#[test]
fn a_group_at_its_memory_limit_is_frozen_and_goes_on_without_the_agent() {
    let test = "a_group_at_its_memory_limit_is_frozen_and_goes_on_without_the_agent";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("freeze");
    let groups = program
        .groups("[group.etl]\nclass = \"offline\"\nmemory = { max = \"96 MiB\", on-exceed = \"freeze\" }\n");
    let unmet = program.run(&["plan", "-c", groups.to_str().unwrap()]);
    if text(&unmet.stdout).contains("memory.max") && text(&unmet.stdout).contains("unmet") {
        println!("skipped: {test}: {}", text(&unmet.stdout));
        return;
    }
    let agent = Agent::start(&program, &groups, &[]);
    until("the group is there", || frozen(&program, "etl") == Some(false));
    // Holds some 92 of the 96 MiB until it is told to go on.
    let go_on = program.path("go-on");
    assert!(Command::new("mkfifo").arg(&go_on).status().unwrap().success());
    let script =
        format!("(head -c 96500000 /dev/zero; read -r _ <{}) | tail -c 96500000 >/dev/null", go_on.display());
    let args = ["run", "-g", "etl", "-c", groups.to_str().unwrap(), "--", "sh", "-c", &script];
    let mut command = program.command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("the group is frozen", || frozen(&program, "etl") == Some(true));
    assert!(command.try_wait().unwrap().is_none());
    assert_eq!(agent.end(Signal::TERM), Some(0));
    until("the group goes on", || frozen(&program, "etl") != Some(true));
    // Opened for both, so that nobody waits for the other end.
    let mut told = std::fs::OpenOptions::new().read(true).write(true).open(&go_on).unwrap();
    told.write_all(b"\n").unwrap();
    until("the command ends", || command.try_wait().unwrap().is_some());
    cleaned(&program);
}

/// What a command's groups file says of a group that an agent keeps changes nothing, not even for a moment.
// promise 16
#[test]
fn a_command_leaves_the_limits_to_the_agent() {
    let test = "a_command_leaves_the_limits_to_the_agent";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("joins");
    let groups = program.groups(ETL);
    let agent = Agent::start(&program, &groups, &[]);
    let etl = own(&program, "etl");
    until("the group is limited", || limited(&etl));
    let quota = || {
        let file = ["cpu.max", "cpu.cfs_quota_us"].map(|file| std::fs::read_to_string(etl.join(file)));
        file.into_iter().flatten().next().unwrap()
    };
    let written = quota();
    let other = program.path("other.toml");
    std::fs::write(&other, ETL.replace("0.2 cores", "1.5 cores")).unwrap();
    let mut args = vec!["run", "-g", "etl", "-c", other.to_str().unwrap(), "--", "cat"];
    let files: Vec<String> =
        ["cpu.max", "cpu.cfs_quota_us"].map(|file| etl.join(file).display().to_string()).into();
    args.extend(files.iter().map(String::as_str).filter(|file| Path::new(file).exists()));
    assert_eq!(program.expect(0, &args).0, written, "what the command itself sees");
    assert_eq!(quota(), written);
    let (status, _) = answered(&program, 0, &["status", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["drift"], serde_json::json!([]), "nobody wrote there");
    // Without an agent the file counts.
    assert_eq!(agent.end(Signal::TERM), Some(0));
    program.run(&["restore"]);
    assert_ne!(program.expect(0, &args).0, written);
    cleaned(&program);
}

/// A third party beside an online group gains nothing from offline work's yielding.
// promise 5
#[test]
fn online_groups_outweigh_what_no_group_claims() {
    let test = "online_groups_outweigh_what_no_group_claims";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("weights");
    let top = Theirs::new(&program, "svc");
    let (web, cron) = (top.child("web"), top.child("cron"));
    let usual = cron.weight();
    let of_groups =
        format!("{ETL}[group.web]\nclass = \"online\"\nmatch = [{{ cgroup = \"/{}\" }}]\n", web.name);
    let groups = program.groups(&of_groups);
    let agent = Agent::start(&program, &groups, &["--on-exit", "restore"]);
    until("ten times its weight", || web.weight() == 10 * usual);
    cron.set_weight(2 * usual);
    until("twenty times", || web.weight() == 20 * usual);
    let (explained, _) = answered(&program, 0, &["explain", "web"]);
    assert!(explained.contains("unclassified work runs beside it"), "{explained}");
    std::fs::write(&groups, format!("[agent]\nweights = false\n{of_groups}")).unwrap();
    until("its own weight is back", || web.weight() == usual);
    std::fs::write(&groups, &of_groups).unwrap();
    until("twenty times again", || web.weight() == 20 * usual);
    assert_eq!(agent.end(Signal::TERM), Some(0));
    assert_eq!((web.weight(), cron.weight()), (usual, 2 * usual), "its own, and what somebody else wrote");
    drop((web, cron, top));
    cleaned(&program);
}

/// Without the probe: threads of an online group that wait are seen between two ticks, and the next tick is now.
// promise 22
#[test]
fn run_delay_brings_the_next_tick_at_once() {
    let test = "run_delay_brings_the_next_tick_at_once";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("hurry");
    let web = "[group.web]\nclass = \"online\"\ntarget-wakeup-p99 = \"100 us\"\n";
    let groups = program.groups(&format!("{web}[group.etl]\nclass = \"offline\"\n"));
    let path = groups.to_str().unwrap();
    let agent = Agent::start(&program, &groups, &["--no-probe", "--interval", "60s", "--lease", "5min"]);
    let etl = own(&program, "etl");
    until("the groups are there", || etl.exists());
    assert!(!limited(&etl));
    // One process: `timeout` would leave its child behind if it was ended at the wrong moment, and in a group with hardly any CPU
    // that moment is long.
    let spin = "ulimit -t 60; while :; do :; done";
    let start = |group: &str| {
        let args = ["run", "-g", group, "-c", path, "--", "taskset", "-c", "0", "sh", "-c", spin];
        Running(program.command(&args).spawn().unwrap())
    };
    // Two threads of the online side on one CPU wait for each other, whatever the class of the third.
    let running = [start("etl"), start("web"), start("web")];
    // The first look of anything knows no rates; a tick in a minute would be too late for this.
    until("offline work is held back", || limited(&etl));
    assert_eq!(agent.said(), "");
    drop(running);
    assert_eq!(agent.end(Signal::TERM), Some(0));
    cleaned(&program);
}

/// A job that ends with its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        signal(self.0.id(), Signal::TERM);
        let _ = self.0.wait();
    }
}

#[test]
fn what_an_agent_cannot_start_with() {
    let program = Program::new("cannot");
    let groups = program.groups("[group.etl]\nclass = \"both\"\n");
    let refused = |args: &[&str], words: &str| {
        let output = program.run(args);
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(words), "{args:?}: {said}");
    };
    let path = groups.to_str().unwrap();
    refused(&["agent", "-c", path], "online");
    refused(&["agent", "-c", "/nonexistent"], "cannot read the groups");
    refused(&["agent", "-c", path, "--interval", "1ms"], "50ms to 60s");
    refused(&["agent", "-c", path, "--lease", "1ms"], "200ms to 1h");
    refused(&["agent", "-c", path, "--lease", "1s", "--interval", "1s"], "at least two ticks");
    assert_nothing_left(&program.state());
}

mod measure {
    use super::*;
    use std::time::Instant;

    /// The kernel tells of a written file and of one that takes its name: no tick of a minute is waited for.
    // promise 19
    #[test]
    fn written_groups_are_taken_before_the_next_tick() {
        let test = "written_groups_are_taken_before_the_next_tick";
        if !can_write_cgroups(test) {
            return;
        }
        let program = Program::new("notify");
        let groups = program.groups(ETL);
        let folder = program.path("groups.d");
        std::fs::create_dir(&folder).unwrap();
        std::fs::copy(&groups, folder.join("one.toml")).unwrap();
        for config in [&groups, &folder] {
            let agent = Agent::start(
                &program,
                config,
                &["--interval", "60s", "--lease", "150s", "--on-exit", "restore"],
            );
            let (etl, more) = (own(&program, "etl"), own(&program, "more"));
            until("etl is limited", || limited(&etl));
            // The first ticks follow each other closely.
            until_still(Duration::from_secs(2), "the number of ticks", || asked(&program).ticks);
            let began = Instant::now();
            let both = format!("{ETL}[group.more]\nclass = \"offline\"\ncpu.max = \"0.1 cores\"\n");
            let file = if *config == folder { folder.join("one.toml") } else { groups.clone() };
            std::fs::write(&file, &both).unwrap();
            until("both are limited", || limited(&more));
            let aside = file.with_extension("new");
            std::fs::write(&aside, ETL).unwrap();
            std::fs::rename(&aside, &file).unwrap();
            until("more is gone", || !more.exists());
            assert!(began.elapsed() < Duration::from_secs(30), "the tick saw it: {:?}", began.elapsed());
            assert_eq!(agent.end(Signal::TERM), Some(0));
        }
        cleaned(&program);
    }
}
