//! `commensal workload antagonist` as the lab starts it: the counter is its standard input, and it ends by a signal.

use commensal_lab::workload::antagonist::Kind;
use commensal_lab::workload::burn::WorkCounter;
use commensal_testkit::until;
use std::process::{Command, Stdio};

#[test]
fn every_antagonist_counts_until_it_is_killed_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for row in &Kind::TABLE {
        let counter = WorkCounter::new(2).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_commensal"));
        command.args(["workload", "antagonist", row.name, "--threads", "2", "--dir"]).arg(dir.path());
        if row.size.is_some() {
            command.args(["--size", "1048576"]);
        }
        let stdin = Stdio::from(counter.fd().try_clone_to_owned().unwrap());
        let mut child = command.stdin(stdin).spawn().unwrap();
        let mut ended = None;
        until(format_args!("{} does something", row.name), || {
            ended = child.try_wait().unwrap();
            ended.is_some() || counter.read().unwrap() > 0
        });
        assert_eq!(ended, None, "{} ended by itself", row.name);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{} left a file", row.name);
    }
}

#[test]
fn an_antagonist_that_does_not_exist_names_those_that_do() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_commensal"));
    let output = command.args(["workload", "antagonist", "gpu"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(
        text.contains("the choices are cpu, vector, l2, l3, memory, page-cache, fork, disk, network"),
        "{text}"
    );
}
