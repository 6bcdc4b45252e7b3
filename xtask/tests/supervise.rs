//! The supervisor of a test: what it reports, and that nothing is left of a test that misbehaves.
#![allow(clippy::unwrap_used, reason = "a test says what failed by failing there")]
#![allow(clippy::disallowed_methods, reason = "tests start programs themselves")]

use std::path::Path;
use std::process::{Command, Stdio};

/// Runs a shell script as a test. Returns the reason of its failure and its output.
fn done(script: &str, cpu_ms: u64, wall_ms: u64) -> (Option<String>, String) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("it");
    std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let (report, inside) = (folder.path().join("report"), folder.path().join("t"));
    std::fs::create_dir(&inside).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.arg("supervise").arg("--report").arg(&report).arg("--folder").arg(&inside);
    command.args(["--cpu-ms", &cpu_ms.to_string(), "--wall-ms", &wall_ms.to_string()]);
    let output = command.arg(&program).arg("a::b").stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{:?}", output.status);
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    (report["failure"].as_str().map(str::to_owned), String::from_utf8(output.stdout).unwrap())
}

const LONG: u64 = 600_000;

fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn a_test_that_ends_is_reported_as_it_ended() {
    assert_eq!(done("echo \"$@\"", LONG, LONG), (None, "a::b --exact --nocapture\n".to_owned()));
    assert_eq!(done("exit 101", LONG, LONG).0.unwrap(), "it ended with exit status: 101");
    assert!(done("kill -9 $$", LONG, LONG).0.unwrap().contains("signal: 9"));
}

#[test]
fn a_test_that_hangs_ends_with_all_that_it_started() {
    let (failure, pid) = done("sleep 1000 & echo $!; wait", LONG, 300);
    assert!(failure.unwrap().starts_with("it did not end within 0.3 s (1 "));
    assert!(!is_alive(&pid));
}

#[test]
fn the_limit_counts_the_cpu_time_of_children_too() {
    let (failure, _) = done("(while :; do :; done) & wait", 500, LONG);
    let failure = failure.unwrap();
    assert!(failure.starts_with("it used ") && failure.contains("of CPU time, more than 0.5"), "{failure}");
}

#[test]
fn a_process_that_leaves_its_group_and_session_is_named_and_ended() {
    let script = "setsid sh -c 'sleep 1000 & echo $!' ; exit 0";
    let (failure, pid) = done(script, LONG, LONG);
    let failure = failure.unwrap();
    assert!(failure.contains("it left behind: process ") && failure.contains("(sleep 1000)"), "{failure}");
    assert!(!is_alive(&pid));
}

#[test]
fn a_process_that_ends_by_itself_is_not_left_behind() {
    assert_eq!(done("sleep 0.3 & exit 0", LONG, LONG).0, None);
}

/// Cgroups of every kind of hierarchy, with a process inside, frozen where that is possible.
#[test]
fn a_frozen_cgroup_is_named_thawed_and_removed() {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let mut tried = 0;
    for line in mounts.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let v1_freezer = fields[2] == "cgroup" && fields[3].split(',').any(|option| option == "freezer");
        if !v1_freezer && fields[2] != "cgroup2" {
            continue;
        }
        let freeze = if v1_freezer { "echo FROZEN >$g/freezer.state" } else { "echo 1 >$g/cgroup.freeze" };
        let top = fields[1];
        let can = Path::new(top).join(format!("commensal-test-can-{}", std::process::id()));
        if std::fs::create_dir(&can).is_err() {
            continue;
        }
        std::fs::remove_dir(&can).unwrap();
        let script = format!(
            "g={top}/commensal-test-$$-frozen; mkdir $g; mkdir $g/below; sleep 1000 & echo $! >$g/below/cgroup.procs; \
             {freeze}; echo $g"
        );
        let (failure, group) = done(&script, LONG, LONG);
        let failure = failure.unwrap();
        assert!(failure.contains("cgroup ") && failure.contains("-frozen"), "{failure}");
        assert!(!Path::new(group.trim()).exists(), "{group}");
        tried += 1;
    }
    if tried == 0 {
        println!("skipped: a_frozen_cgroup_is_named_thawed_and_removed: no cgroups can be made here");
    }
}

#[test]
fn a_mount_in_the_temporary_folder_is_named_and_unmounted() {
    let can = Command::new("unshare").args(["--mount", "true"]).stderr(Stdio::null()).status();
    if !can.is_ok_and(|status| status.success()) {
        println!("skipped: a_mount_in_the_temporary_folder_is_named_and_unmounted: no right to mount");
        return;
    }
    let (failure, point) =
        done("mkdir $TMPDIR/m; mount -t tmpfs tmpfs $TMPDIR/m; echo $TMPDIR/m", LONG, LONG);
    assert!(failure.unwrap().contains("it left behind: mount "), "{point}");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(point.trim()));
}
