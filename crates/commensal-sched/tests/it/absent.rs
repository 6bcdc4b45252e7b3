//! Kernels without sched_ext, such as this machine's may be: refused with the reason, and nothing is left behind.

use std::path::Path;
use std::process::{Command, Output};

fn run(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_commensal-sched"))
        .arg("--state-dir")
        .arg(folder)
        .args(args)
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

// promise 52
#[test]
fn a_kernel_without_sched_ext_is_told_and_left_alone() {
    if Path::new("/sys/kernel/sched_ext").exists() {
        println!(
            "skipped: absent::a_kernel_without_sched_ext_is_told_and_left_alone: this kernel has sched_ext"
        );
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let loaded = run(&state, &["load"]);
    let text = said(&loaded);
    assert_eq!(loaded.status.code(), Some(2), "{text}");
    for part in ["has no sched_ext", "6.13 or newer with CONFIG_SCHED_CLASS_EXT", "cpu.idle stays in use"] {
        assert!(text.contains(part), "{text}lacks {part:?}");
    }
    let left: Vec<_> =
        std::fs::read_dir(&state).into_iter().flatten().flatten().map(|one| one.file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
    let checked = run(&state, &["check"]);
    assert!(checked.status.code() == Some(1) && said(&checked).contains("obstacle"), "{}", said(&checked));
}

#[test]
fn nothing_left_is_put_back_without_a_word_too_many() {
    let folder = tempfile::tempdir().unwrap();
    let done = run(folder.path(), &["unload", "--left"]);
    assert!(done.status.success() && said(&done).contains("there is nothing to restore"), "{}", said(&done));
}

/// Whoever has scripts is told where the verb is now.
#[test]
fn a_verb_that_moved_is_named() {
    let check = |args: &[&str], verb: &str| {
        let folder = tempfile::tempdir().unwrap();
        let done = run(folder.path(), args);
        let text = said(&done);
        assert!(done.status.code() == Some(2) && text.contains(verb) && text.lines().count() == 1, "{text}");
    };
    check(&["status"], "`commensal sched status`");
    check(&["order", "orders.json"], "`commensal sched load --replace --orders FILE`");
    check(&["unload"], "`commensal sched unload`");
}
