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

// promise 63
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
    let status = run(&state, &["status"]);
    assert!(status.status.code() == Some(2) && said(&status).contains("no scheduler of commensal is loaded"));
}

#[test]
fn nothing_loaded_is_unloaded_without_a_word_too_many() {
    let folder = tempfile::tempdir().unwrap();
    let done = run(folder.path(), &["unload"]);
    assert!(done.status.success() && said(&done).contains("nothing is to be put back"), "{}", said(&done));
}
