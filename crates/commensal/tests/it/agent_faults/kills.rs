//! kill -9 of the guard, again and again, while the agent goes on.

use super::{guards, nothing_left, ticks_on};
use crate::agent::{Agent, ETL, Theirs, limited, own, until};
use crate::support::{Program, can_write_cgroups};
use commensal_testkit::{Signal, signal};

/// Children of a process that have ended and that it has not waited for.
fn zombies(parent: u32) -> usize {
    let numbers = std::fs::read_dir("/proc").unwrap().flatten();
    let stats = numbers.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    let dead = format!("Z {parent} ");
    stats.filter(|text| text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(&dead))).count()
}

// promise 21
#[test]
fn a_guard_that_is_killed_is_replaced() {
    let test = "a_guard_that_is_killed_is_replaced";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("guards");
    let web = Theirs::new(&program, "web");
    let groups = program.groups(&format!(
        "{ETL}[group.web]\nclass = \"online\"\npids.max = 500\nmatch = [{{ cgroup = \"/{}\" }}]\n",
        web.name
    ));
    let agent = Agent::start(&program, &groups, &[]);
    until("they are in force", || limited(&own(&program, "etl")) && web.counted());
    let mut last = 0;
    for round in 0..4 {
        let mut now = Vec::new();
        until("a guard", || {
            now = guards(&program);
            now.len() == 1 && now[0] != last
        });
        last = now[0];
        signal(last, if round % 2 == 0 { Signal::KILL } else { Signal::TERM });
        until("it has ended", || !guards(&program).contains(&last));
    }
    until("another one", || guards(&program).len() == 1);
    until("the dead are waited for", || zombies(agent.child.id()) == 0);
    assert!(web.counted(), "a guard that dies changes nothing");
    // The last one knows what to do.
    ticks_on(&program, 3);
    agent.signal(Signal::KILL);
    until("the safe state", || !web.counted());
    assert!(limited(&own(&program, "etl")));
    drop((agent, web));
    nothing_left(&program);
}
