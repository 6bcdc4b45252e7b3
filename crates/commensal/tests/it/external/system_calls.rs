//! Which system calls agent and guard make, by strace, and which their units allow, by systemd-analyze.

use crate::agent::{Agent, ETL, Theirs, limited, own, until};
use crate::privileges::restored;
use crate::support::{Program, can_write_cgroups};
use commensal_testkit::{Signal, signal};
use std::collections::BTreeSet;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

const AGENT_UNIT: &str = include_str!("../../../../../packaging/systemd/commensal-agent.service");

const GUARD_UNIT: &str = include_str!("../../../../../packaging/systemd/commensal-guard.service");

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
