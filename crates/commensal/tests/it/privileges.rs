//! Which capabilities agent and guard have once they run, and which system calls they make.

use crate::agent::{Agent, ETL, Theirs, limited, own, until};
use crate::support::{Program, can_write_cgroups};
use commensal_agent::privileges::{OF_GUARD, OF_PROBE};
use commensal_blame::{Scope, Subject, WaitProbe};
use commensal_host::{Capability, Host, LinuxHost};
use commensal_testkit::{Signal, field_of_status, signal};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

/// A set of bits that the kernel shows of a process or thread.
fn bits(id: u32, field: &str) -> u64 {
    u64::from_str_radix(&field_of_status(id, field).unwrap(), 16).unwrap()
}

fn of(some: &[Capability]) -> u64 {
    some.iter().fold(0, |bits, one| bits | 1 << one.number())
}

/// Own groups are gone again.
fn restored(program: &Program) {
    let output = program.run(&["restore"]);
    assert!(!own(program, "etl").exists(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// What every thread of a process has.
fn each_thread(pid: u32, field: &str) -> Vec<u64> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    tasks.map(|task| bits(task.file_name().to_str().unwrap().parse().unwrap(), field)).collect()
}

// promise 61
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
        assert_eq!(agent.end(Signal::TERM), Some(0));
        restored(&program);
    }
}

/// Dropped with what it keeps, the agent measures who made online work wait.
// promise 61
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
    let unknown = "waits of online groups cannot be attributed to offline work";
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
    assert_eq!(agent.end(Signal::TERM), Some(0));
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

// promise 61
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
    // A traced agent on a busy machine takes its time.
    until("the groups are read again", || program.run(&["agent", "reload"]).status.code() == Some(0));
    let number = |name: &str| {
        let text = std::fs::read_to_string(program.state().join(name)).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["pid"].as_u64().unwrap() as u32
    };
    assert!(signal(number("agent.json"), Signal::KILL));
    agent.child.wait().unwrap();
    until("the safe state", || !web.counted());
    restored(&program);
    let children = format!("/proc/{0}/task/{0}/children", guard.child.id());
    let pid = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
    assert!(signal(pid, Signal::TERM));
    drop(guard);
    for (who, trace, allowed) in [("agent", "agent.trace", of_agent), ("guard", "guard.trace", of_guard)] {
        let called = called(&program.path(trace));
        println!("{who}: {} calls of {} that its unit allows", called.len(), allowed.len());
        let missing: Vec<&String> = called.difference(&allowed).collect();
        assert!(missing.is_empty() && called.contains("openat"), "{who}: {missing:?}");
    }
}
