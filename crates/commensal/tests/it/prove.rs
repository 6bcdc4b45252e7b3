//! `doctor --prove` on the running kernel, and a process that it starts.

use crate::support::{Program, can_write_cgroups, cgroups_named};
use commensal_testkit::{Signal, field_of_status, signal, until};
use std::fs::File;
use std::process::Stdio;

/// The process of the trials of SIGTERM exits by a handler of its own, so its exit status is not that of the signal.
#[test]
fn a_process_that_handles_sigterm() {
    let program = Program::new("prove-handler");
    let counter = File::create(program.path("counter")).unwrap();
    let mut command = program.command(&["workload", "burn", "--threads", "1", "--handle-sigterm"]);
    let mut child = command.stdin(counter).stdout(Stdio::null()).spawn().unwrap();
    until("it has a handler for SIGTERM", || {
        let mask = field_of_status(child.id(), "SigCgt");
        mask.and_then(|mask| u64::from_str_radix(&mask, 16).ok()).is_some_and(|mask| mask >> 14 & 1 == 1)
    });
    assert!(signal(child.id(), Signal::TERM));
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Killed in the middle, it leaves nothing for long: a process of its own removes the scratch groups.
// promise 4
#[test]
fn killed_while_it_tries() {
    if !can_write_cgroups("killed_while_it_tries") {
        return;
    }
    let program = Program::new("prove-killed");
    let mut command = program.command(&["doctor", "--prove"]);
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let scratch = format!("{}-prove", program.prefix);
    until("a scratch group appears", || !cgroups_named(&scratch).is_empty());
    child.kill().unwrap();
    child.wait().unwrap();
    until("the scratch groups are gone", || cgroups_named(&scratch).is_empty());
}
