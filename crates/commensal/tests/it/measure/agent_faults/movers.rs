//! Members that leave their group by themselves again and again.

use crate::agent::{Agent, Theirs, asked, limited, ticks_on, until};
use crate::agent_faults::movers::{Left, Mover, folders};
use crate::agent_faults::{Watched, figures, nothing_left, settings};
use crate::support::{Program, can_write_cgroups};
use commensal_testkit::{Signal, throughout};
use std::time::{Duration, Instant};

/// CPU that an agent may take while a member moves to and fro, of one CPU: far above what it takes, far below a loop that
/// answers each move.
const MOST_CPU: f64 = 0.6;

// promise 13
#[test]
fn a_process_that_moves_to_and_fro() {
    let test = "a_process_that_moves_to_and_fro";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("to-and-fro");
    let mut left = Left::new(&program);
    until("it is told", || {
        asked(&program).unmet.iter().any(|unmet| unmet.because.contains("another program has since moved it"))
    });
    // To and fro, a hundred times a second and more.
    left.mover.lists("in", &left.group);
    let (before, ticks) = (figures(left.agent.child.id()), asked(&program).ticks);
    let begun = Instant::now();
    left.mover.touch("to-and-fro");
    let times = || std::fs::read_to_string(program.path("moved")).unwrap_or_default().lines().count();
    // As often as a machine that others use as well lets it, and for as long as several ticks take.
    until("it has moved often", || times() > 5 && begun.elapsed() > Duration::from_secs(4));
    let (after, seconds, times) = (figures(left.agent.child.id()), begun.elapsed().as_secs_f64(), times());
    let cpu = (after.2 - before.2) as f64 / 1e3 / seconds;
    println!(
        "{test}: {times} times to and fro in {seconds:.1} s; agent {:.1} % of a CPU, KiB {} -> {}",
        cpu * 1e2,
        before.1,
        after.1
    );
    assert!(cpu < MOST_CPU, "{cpu}");
    assert!(left.agent.child.try_wait().unwrap().is_none() && asked(&program).ticks > ticks);
    assert!(left.agent.said().lines().count() < 20, "{}", left.agent.said());
    std::fs::remove_file(program.path("to-and-fro")).unwrap();
    left.mover.touch("go");
    until("it is home", || left.mover.places() == left.home);
    left.end(&program);
}

/// A process of a cgroup that a group matches goes where it likes: the cgroup keeps its limits, and nothing else has any.
// promise 13
#[test]
fn a_process_that_leaves_a_matched_cgroup() {
    let test = "a_process_that_leaves_a_matched_cgroup";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("strays");
    let exe = program.path("mover");
    std::fs::copy("/bin/sh", &exe).unwrap();
    let (web, batch) = (Theirs::new(&program, "web"), Theirs::new(&program, "batch"));
    let original = settings(&batch);
    let groups = program.groups(&format!(
        "[group.web]\nclass = \"online\"\nmatch = [{{ cgroup = \"/{}\" }}]\n\
         [group.batch]\nclass = \"offline\"\ncpu.max = \"0.5 cores\"\nmatch = [{{ cgroup = \"/{}\" }}]\n",
        web.name, batch.name
    ));
    let watched = Watched::over(&web);
    let mover = Mover::start(&exe, program.dir.path());
    let home = mover.places();
    // Only where any process may be: an empty cpuset takes none.
    let (out, into) = (vec![web.cpu.clone()], vec![batch.cpu.clone()]);
    mover.lists("out", &out);
    mover.lists("in", &into);
    let agent = Agent::start(&program, &groups, &[]);
    until("the group is limited", || limited(&batch.cpu));
    // Some ticks later everything else is in force as well.
    ticks_on(&program, 6);
    let quiet = asked(&program).cost.writes;
    mover.touch("to-and-fro");
    throughout(Duration::from_secs(3), "the limit is gone", || limited(&batch.cpu));
    let now = asked(&program);
    assert_eq!((now.cost.writes, now.problems), (quiet, vec![]), "nothing is to be done");
    std::fs::remove_file(program.path("to-and-fro")).unwrap();
    mover.lists("out", &folders(&home));
    mover.touch("go");
    until("it is home", || mover.places() == home);
    assert_eq!(agent.end(Signal::TERM), Some(0));
    program.expect(0, &["restore"]);
    assert_eq!(settings(&batch), original);
    watched.end();
    drop((mover, batch, web));
    nothing_left(&program);
}
