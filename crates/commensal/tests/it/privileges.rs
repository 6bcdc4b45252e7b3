//! Which capabilities agent and guard have once they run.

use crate::agent::{Agent, ETL, Theirs, limited, own, until};
use crate::support::{Program, can_write_cgroups};
use commensal_agent::privileges::{OF_GUARD, OF_PROBE};
use commensal_blame::{Scope, Subject, WaitProbe};
use commensal_host::{Capability, Host, LinuxHost};
use commensal_testkit::{Signal, field_of_status};
use std::os::unix::fs::MetadataExt;

/// A set of bits that the kernel shows of a process or thread; `None` if it has ended.
fn bits(id: u32, field: &str) -> Option<u64> {
    Some(u64::from_str_radix(&field_of_status(id, field)?, 16).unwrap())
}

fn of(some: &[Capability]) -> u64 {
    some.iter().fold(0, |bits, one| bits | 1 << one.number())
}

/// Own groups are gone again.
pub(crate) fn restored(program: &Program) {
    let output = program.run(&["restore"]);
    assert!(!own(program, "etl").exists(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// What every thread of a process has.
fn each_thread(pid: u32, field: &str) -> Vec<u64> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    tasks.filter_map(|task| bits(task.file_name().to_str().unwrap().parse().unwrap(), field)).collect()
}

// promise 61
#[test]
fn agent_and_guard_have_nothing_else_once_they_run() {
    let test = "agent_and_guard_have_nothing_else_once_they_run";
    if !can_write_cgroups(test) {
        return;
    }
    let here = bits(std::process::id(), "CapPrm").unwrap();
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
        online: vec![Subject::Cgroups(vec![std::fs::metadata(&web.cpu).unwrap().ino()])],
        offline: vec![Subject::Cgroups(vec![std::fs::metadata(&etl.cpu).unwrap().ino()])],
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
