//! What `agent canary` refuses, and the other orders to the agent, on this machine's kernel.

use crate::agent::{Agent, answered, cleaned, limited, own, until};
use crate::support::{Program, can_write_cgroups};
use commensal_testkit::Signal;

#[test]
fn a_canary_needs_an_agent_a_guard_and_time() {
    let test = "a_canary_needs_an_agent_a_guard_and_time";
    let program = Program::new("canary-none");
    let refused = |args: &[&str], words: &str| {
        let (out, err) = program.expect(2, &[&["agent", "canary"], args].concat());
        assert!(err.contains(words), "{args:?}: {out}{err}");
    };
    refused(&[], "no agent answers");
    refused(&["--for", "2h"], "at most 1 h");
    refused(&["--for", "20s"], "an interval needs 6: take at least 65 s");
    refused(&["--window", "100ms"], "at least 500 ms");
    refused(&["--off", "60"], "1..=50");
    if !can_write_cgroups(test) {
        return;
    }
    let groups = program.groups("[group.etl]\nclass = \"offline\"\n");
    let agent = Agent::start(&program, &groups, &["--no-guard", "--on-exit", "restore"]);
    until("the agent answers", || program.run(&["status"]).status.code() != Some(2));
    refused(&[], "there is no guard");
    assert_eq!(agent.end(Signal::TERM), Some(0));
}

#[test]
fn orders_to_the_agent() {
    let test = "orders_to_the_agent";
    let program = Program::new("orders");
    for order in ["reload", "pause", "resume"] {
        let (_, err) = program.expect(2, &["agent", order]);
        assert!(err.contains("no agent answers"), "{err}");
        // An order has nothing to do with how an agent starts.
        program.expect(2, &["agent", "--replace", order]);
    }
    if !can_write_cgroups(test) {
        return;
    }
    let etl = "[group.etl]\nclass = \"offline\"\ncpu.max = \"0.2 cores\"\n";
    let groups = program.groups(etl);
    let agent = Agent::start(&program, &groups, &["--on-exit", "restore"]);
    until("etl is limited", || limited(&own(&program, "etl")));
    let (out, _) = answered(&program, 0, &["agent", "reload"]);
    assert_eq!(out, "generation 1 is in force\n");
    let more = format!("{etl}[group.more]\nclass = \"offline\"\ncpu.max = \"0.1 cores\"\n");
    let (out, _) = answered(&program, 0, &["agent", "pause"]);
    assert!(out.contains("writes nothing until"), "{out}");
    std::fs::write(&groups, more).unwrap();
    let (out, _) = answered(&program, 0, &["agent", "reload"]);
    assert_eq!(out, "generation 2 is in force\n");
    let (out, _) = answered(&program, 1, &["status"]);
    assert!(out.contains("until `commensal agent resume`"), "{out}");
    assert!(!own(&program, "more").exists(), "nothing is written");
    answered(&program, 0, &["agent", "resume"]);
    until("more is limited", || limited(&own(&program, "more")));
    std::fs::write(&groups, "[group.etl]\nclas = 1\n").unwrap();
    let (_, err) = answered(&program, 2, &["agent", "reload"]);
    assert!(err.contains("unknown key \"clas\"") && err.contains("correct the groups file"), "{err}");
    assert_eq!(agent.end(Signal::TERM), Some(0));
    cleaned(&program);
}
