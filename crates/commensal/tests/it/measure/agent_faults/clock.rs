//! A time of day that jumps under the agent.

use crate::agent::{Agent, Theirs, asked, limited, set_quota, until};
use crate::agent_faults::{Watched, nothing_left};
use crate::support::{Program, can_write_cgroups, text};
use commensal_testkit::Signal;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Adds the seconds in a file to the time of day, and to no other clock.
const JUMP: &str = r#"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *time) {
    long result = syscall(SYS_clock_gettime, id, time);
    if (result == 0 && id == CLOCK_REALTIME) {
        char text[32] = {0};
        int file = open(getenv("COMMENSAL_TEST_JUMP"), O_RDONLY);
        if (file >= 0) {
            if (read(file, text, 31) > 0) time->tv_sec += atol(text);
            close(file);
        }
    }
    return (int)result;
}
"#;
/// Seconds of some two years.
const YEARS: i64 = 63_000_000;
/// The first pause of a back-off, less what a tick is long; a busy machine only makes it longer.
const LEAST_PAUSE: Duration = Duration::from_millis(800);

/// Compiles the library that makes the time of day jump, and gives its path. The file that `COMMENSAL_TEST_JUMP` names has the seconds.
pub fn library(test: &str, dir: &Path) -> Option<String> {
    let (source, made) = (dir.join("jump.c"), dir.join("jump.so"));
    std::fs::write(&source, JUMP).unwrap();
    match Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&made).arg(&source).output() {
        Ok(output) if output.status.success() => Some(made.display().to_string()),
        other => {
            println!("skipped: {test}: no C compiler: {:?}", other.map(|output| text(&output.stderr)));
            None
        }
    }
}

// promises 21, 23
#[test]
fn a_time_of_day_that_jumps() {
    let test = "a_time_of_day_that_jumps";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("jump");
    let Some(library) = library(test, program.dir.path()) else { return };
    let (jump, online) = (program.path("seconds"), Theirs::new(&program, "web"));
    let set_clock = |seconds: i64| std::fs::write(&jump, seconds.to_string()).unwrap();
    set_clock(0);
    let batch = Theirs::new(&program, "batch-1");
    let groups = program.groups(&format!(
        "[group.web]\nclass = \"online\"\nmatch = [{{ cgroup = \"/{}\" }}]\n\
         [group.theirs]\nclass = \"offline\"\ncpu.max = \"0.5 cores\"\nmatch = [{{ cgroup = \"/{}\" }}]\n",
        online.name, batch.name
    ));
    let watched = Watched::over(&online);
    let mut command = Agent::command(&program, &groups, &[]);
    command.env("LD_PRELOAD", library).env("COMMENSAL_TEST_JUMP", &jump);
    let mut agent = Agent::spawn(command);
    until("the group is limited", || limited(&batch.cpu));
    let year = || asked(&program).at[..4].parse::<i64>().unwrap();
    let now = year();
    let pid = asked(&program).pid;
    // The first answer is at once; those after it wait, forwards and backwards.
    set_quota(&batch.cpu, false);
    until("it is put back", || limited(&batch.cpu));
    for seconds in [-YEARS, YEARS] {
        let since = Instant::now();
        set_quota(&batch.cpu, false);
        // Amid the pause of the back-off.
        std::thread::sleep(Duration::from_millis(300));
        set_clock(seconds);
        until("its clock shows it", || (year() - now) * seconds.signum() >= 1);
        until("it is put back", || limited(&batch.cpu));
        println!("{test}: {seconds} s: put back after {:.1} s", since.elapsed().as_secs_f64());
        assert!(since.elapsed() > LEAST_PAUSE, "a jump of {seconds} s ended a back-off");
    }
    let first = asked(&program);
    until("it ticks", || asked(&program).ticks > first.ticks + 5);
    let last = asked(&program);
    assert!(last.pid == pid && agent.child.try_wait().unwrap().is_none(), "the guard took it for dead");
    assert!(last.uptime_s >= first.uptime_s && last.problems.is_empty(), "{:?}", last.problems);
    watched.end();
    // The guard, which has the same clock, acts after a jump as before.
    let text = std::fs::read_to_string(&groups).unwrap();
    program.groups(&text.replacen("class = \"online\"\n", "class = \"online\"\npids.max = 500\n", 1));
    until("the online group is limited", || online.counted());
    set_clock(-YEARS);
    agent.signal(Signal::KILL);
    until("no limit is left on it", || !online.counted());
    assert!(limited(&batch.cpu), "offline work stays held back");
    drop(agent);
    program.expect(0, &["restore"]);
    drop((batch, online));
    nothing_left(&program);
}
