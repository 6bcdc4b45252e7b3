//! kill -9 at random of those that wait in a queue, of those that run, of their commands, which are written in Perl.

use crate::queue::{files, view};
use crate::support::Program;
use commensal_testkit::{Dice, Signal, processes_with, signal, until};
use std::process::{Command, Stdio};

const JOBS: usize = 24;
const AT_ONCE: usize = 3;

/// Takes a seat of its own, of as many as may run; a command that finds none has seen one too many running. A killed
/// command's seat is free with it: it is one process, since a child (as the shell's `flock`) would hold the seat on.
fn script(seats: &str) -> String {
    format!(
        r#"use Fcntl ":flock";
        sub note {{ open(my $log, ">>", "{seats}/log") or die; syswrite($log, "$_[0]\n"); }}
        for my $seat (1..{AT_ONCE}) {{
            open(my $file, ">", "{seats}/$seat") or die;
            if (flock($file, LOCK_EX | LOCK_NB)) {{ select(undef, undef, undef, 0.2); note("ended"); exit 0; }}
        }}
        note("EXCEEDED"); exit 9;"#
    )
}

// promise 17
#[test]
fn random_kills_leave_no_stuck_slot_and_never_one_too_many() {
    let test = "random_kills_leave_no_stuck_slot_and_never_one_too_many";
    if !Command::new("perl").args(["-MFcntl", "-e", "1"]).status().is_ok_and(|status| status.success()) {
        println!("skipped: {test}: no perl");
        return;
    }
    let program = Program::new("storm");
    let queue = format!("queue = {{ max-concurrency = {AT_ONCE} }}");
    let config = program.groups(&format!("[group.etl]\nclass = \"offline\"\n{queue}\n"));
    let config = config.to_str().unwrap();
    let seats = program.path("seats");
    std::fs::create_dir(&seats).unwrap();
    let script = script(seats.to_str().unwrap());
    let start = |_| {
        let mut command = program.command(&["run", "-g", "etl", "-c", config, "--", "perl", "-e", &script]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut jobs: Vec<_> = (0..JOBS).map(start).collect();
    let (mut dice, mut killed, mut commands) = (Dice::new(20), 0, 0);
    until("every job has ended", || {
        jobs.retain_mut(|job| job.try_wait().unwrap().is_none());
        let running = view(&program.state()).running;
        match dice.below(12) {
            0 if killed < JOBS / 3 && !jobs.is_empty() => {
                // Not waited for yet, so its number is still its own.
                signal(jobs[dice.below(jobs.len())].id(), Signal::KILL);
                killed += 1;
            }
            1 if commands < JOBS / 4 => {
                let own: Vec<u32> = jobs.iter().map(std::process::Child::id).collect();
                let noted = running.iter().find(|job| job.pid > 0 && !own.contains(&job.pid));
                // A number may have been given anew.
                let is_ours = |pid: u32| processes_with(&script).iter().any(|(other, _)| *other == pid);
                if let Some(job) = noted.filter(|job| is_ours(job.pid)) {
                    signal(job.pid, Signal::KILL);
                    commands += 1;
                }
            }
            _ => {}
        }
        assert!(running.len() <= AT_ONCE, "{running:?}");
        jobs.is_empty()
    });
    until("every slot is free", || view(&program.state()).running.is_empty());
    let log = std::fs::read_to_string(seats.join("log")).unwrap_or_default();
    println!("{} ended, {killed} of commensal and {commands} commands were killed", log.lines().count());
    assert!(!log.contains("EXCEEDED"), "{log}");
    assert!(killed > 3 && log.lines().count() > 3, "{killed} killed, {log:?}");
    program.expect(0, &["run", "-g", "etl", "-c", config, "--no-wait", "--", "true"]);
    assert_eq!(files(&program.state()), [""; 0], "what the dead left is swept");
    until("no command is left", || processes_with(seats.to_str().unwrap()).is_empty());
}
