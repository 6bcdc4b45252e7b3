//! `commensal sched`: what it says and leaves behind where nothing can be loaded.

use crate::support::Program;
use serde_json::Value;
use std::path::Path;

pub(crate) const STATE: &str = "/sys/kernel/sched_ext/state";

/// Whether this kernel has sched_ext; then it is a guest's that these tests are not about.
fn has_sched_ext(test: &str) -> bool {
    let has = Path::new(STATE).exists();
    if has {
        println!("skipped: {test}: this kernel has sched_ext");
    }
    has
}

// promise 52
#[test]
fn a_kernel_without_it_is_told_and_nothing_starts() {
    if has_sched_ext("a_kernel_without_it_is_told_and_nothing_starts") {
        return;
    }
    let program = Program::new("schednone");
    let (out, err) = program.expect(2, &["sched", "load"]);
    assert!(
        out.is_empty() && err.contains("nothing was changed") && err.contains("CONFIG_SCHED_CLASS_EXT"),
        "{err}"
    );
    // Whatever else is wrong comes later: a program that would leave a trace is not started.
    let trace = program.path("trace");
    let script = format!("echo started > {}", trace.display());
    let (_, err) = program.expect(2, &["sched", "load", "--with", "sh", "-c", &script]);
    assert!(err.contains("CONFIG_SCHED_CLASS_EXT"), "{err}");
    let mut command = program.command(&["sched", "load", "--replace", "--hold-off-us", "5"]);
    let done = command.env("COMMENSAL_SCHED", "/nowhere").output().unwrap();
    assert_eq!(done.status.code(), Some(2));
    assert!(!trace.exists() && !program.state().exists());
}

/// The kernel, the missing program and every mistake in the groups file come out at once.
#[test]
fn everything_that_is_wrong_is_one_refusal() {
    if has_sched_ext("everything_that_is_wrong_is_one_refusal") {
        return;
    }
    let program = Program::new("schedwrong");
    let groups = program.groups("[group.etl]\nclass = \"offlin\"\ncpu.wait = 5\n");
    let mut command = program.command(&["sched", "load", "-c", groups.to_str().unwrap()]);
    let done = command.env("COMMENSAL_SCHED", "/nowhere").output().unwrap();
    let err = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(2), "{err}");
    for part in ["CONFIG_SCHED_CLASS_EXT", "names /nowhere", "groups.toml:2:", "groups.toml:3:"] {
        assert!(err.contains(part), "{err}lacks {part:?}");
    }
    assert_eq!(err.matches("nothing was changed").count(), 1, "{err}");
}

#[test]
fn with_nothing_loaded_status_is_2_and_unload_is_done() {
    if has_sched_ext("with_nothing_loaded_status_is_2_and_unload_is_done") {
        return;
    }
    let program = Program::new("schedidle");
    let (out, _) = program.expect(2, &["sched", "status"]);
    assert!(out.contains("commensal's is not loaded") && out.contains("CONFIG_SCHED_CLASS_EXT"), "{out}");
    assert!(out.contains(program.state().to_str().unwrap()), "where it looked: {out}");
    let (out, _) = program.expect(2, &["sched", "status", "--json"]);
    let status: Value = serde_json::from_str(&out).unwrap();
    assert!(status["scheduler"].is_null() && status["kernel"]["state"].is_null(), "{out}");
    for _ in 0..2 {
        let (out, _) = program.expect(0, &["sched", "unload"]);
        assert!(
            out.contains(
                "no scheduler was loaded from this state directory, and there is nothing to restore"
            ),
            "{out}"
        );
    }
    assert!(!program.state().exists(), "looking leaves nothing behind");
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let program = Program::new("schedargs");
    let check = |args: &[&str], part: &str| {
        let (_, err) = program.expect(2, &[&["sched", "load"], args].concat());
        assert!(err.contains(part), "{args:?}: {err}lacks {part:?}");
    };
    check(&["--watchdog-ms", "40000"], "40000 is not in 100..=30000");
    check(&["--hold-off-us", "2000000"], "2000000 is not in");
    check(&["--replace", "--with", "scx_simple"], "cannot be used with");
    check(&["--orders", "a", "--config", "b"], "cannot be used with");
    check(&["--with"], "a value is required");
}
