//! How soon the agent sees that somebody changes a value that it found in force when it started.

use crate::agent::{Agent, ETL, Theirs, asked, cleaned, limited, own, set_quota, ticks_on};
use crate::support::{Program, can_write_cgroups};
use commensal_testkit::{Signal, until};
use std::time::{Duration, Instant};

// promise 21
#[test]
fn a_change_is_seen_at_once_whoever_put_the_value_in_force() {
    let test = "a_change_is_seen_at_once_whoever_put_the_value_in_force";
    if !can_write_cgroups(test) {
        return;
    }
    for before in ["nobody", "apply", "an agent that ended", "an agent that is replaced"] {
        let program = Program::new("found");
        let theirs = Theirs::new(&program, "batch");
        let more = format!(
            "[group.theirs]\nclass = \"offline\"\npids.max = 60\ncpu.max = \"0.5 cores\"\nmatch = [{{ cgroup = \"/{}\" }}]\n",
            theirs.name
        );
        let groups = program.groups(&format!("{ETL}{more}"));
        let start = |more: &[&str]| {
            let args = [&["--interval", "1s", "--on-exit", "keep"][..], more].concat();
            let agent = Agent::start(&program, &groups, &args);
            asked(&program);
            agent
        };
        let agent = match before {
            "nobody" => start(&[]),
            "apply" => {
                program.expect(0, &["apply", "-c", groups.to_str().unwrap()]);
                start(&[])
            }
            "an agent that ended" => {
                let first = start(&[]);
                ticks_on(&program, 3);
                assert_eq!(first.end(Signal::TERM), Some(0));
                start(&[])
            }
            _ => {
                let first = start(&[]);
                ticks_on(&program, 3);
                let next = start(&["--replace"]);
                until("the first one has ended", || commensal_testkit::ended(first.child.id()));
                next
            }
        };
        ticks_on(&program, 3);
        for dir in [own(&program, "etl"), theirs.cpu.clone()] {
            let begun = Instant::now();
            set_quota(&dir, false);
            until("the limit is back", || limited(&dir));
            let took = begun.elapsed();
            println!("{test}: after {before}: {} is back after {took:.2?}", dir.display());
            assert!(took < Duration::from_secs(2), "after {before}: {took:?}");
        }
        let drift = asked(&program).drift;
        assert_eq!(drift.len(), 2, "after {before}: {drift:?}");
        assert_eq!(agent.end(Signal::TERM), Some(0));
        program.expect(0, &["restore"]);
        drop(theirs);
        cleaned(&program);
    }
}
