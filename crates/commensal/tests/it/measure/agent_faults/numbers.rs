//! Process numbers that are given anew while the agent does not look.

use crate::agent::{Agent, until};
use crate::agent_faults::nothing_left;
use crate::support::{Program, can_write_cgroups};
use commensal_testkit::{Signal, cgroups_of};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// How often the number is tried for; others on the machine take numbers as well.
const TRIES: usize = 300;

fn start(exe: &Path) -> Child {
    Command::new(exe).arg("600").stdin(Stdio::null()).spawn().unwrap()
}

fn end(mut child: Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// A member ends while the agent stands still, and its number is a stranger's when it goes on.
// promise 13
#[test]
fn a_members_number_that_is_a_strangers() {
    let test = "a_members_number_that_is_a_strangers";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("number");
    let (member, stranger) = (program.path("member"), program.path("stranger"));
    std::fs::copy("/bin/sleep", &member).unwrap();
    std::fs::copy("/bin/sleep", &stranger).unwrap();
    let groups = program.groups(&format!(
        "[group.media]\nclass = \"offline\"\npids.max = 50\nmatch = [{{ process = {{ exe = \"{}\" }} }}]\n",
        member.display()
    ));
    let (first, stays) = (start(&member), start(&member));
    let home = cgroups_of(std::process::id());
    let agent = Agent::start(&program, &groups, &["--lease", "10min"]);
    let inside = |pid: u32| {
        let own = format!("/{}-offline/media", program.prefix);
        cgroups_of(pid).iter().any(|line| line.ends_with(&own))
    };
    until("both are inside", || inside(first.id()) && inside(stays.id()));
    agent.signal(Signal::STOP);
    let number = first.id();
    end(first);
    let mut other = None;
    for _ in 0..TRIES {
        if std::fs::write("/proc/sys/kernel/ns_last_pid", (number - 1).to_string()).is_err() {
            break;
        }
        let now = start(&stranger);
        if now.id() == number {
            other = Some(now);
            break;
        }
        end(now);
    }
    agent.signal(Signal::CONT);
    match other {
        None => println!("skipped: {test}: the number {number} could not be had again"),
        Some(other) => {
            // A member that comes now is moved: the agent has looked at everybody.
            let later = start(&member);
            until("the new member is inside", || inside(later.id()));
            assert_eq!(cgroups_of(number), home, "a stranger was moved");
            drop(agent);
            program.run(&["restore"]);
            assert_eq!(cgroups_of(number), home, "a stranger was moved back");
            assert!(!inside(later.id()) && !inside(stays.id()));
            end(later);
            end(other);
        }
    }
    end(stays);
    nothing_left(&program);
}
