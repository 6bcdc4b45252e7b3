//! A kernel whose description of itself has an argument too many: refused with the fix, and nothing is touched.

use crate::guest::world::{can_load_in, shown, state};
use std::process::Command;

// promise 52
#[test]
fn malformed_prototypes_are_named_with_the_fix() {
    if !can_load_in("sched-broken", "guest::broken::malformed_prototypes_are_named_with_the_fix") {
        return;
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let done = Command::new(env!("CARGO_BIN_EXE_commensal-sched"))
        .arg("--state-dir")
        .arg(folder.path())
        .arg("load")
        .output()
        .unwrap();
    let said = shown(&done);
    println!("{}: {said}", release.trim());
    assert_eq!(done.status.code(), Some(2), "{said}");
    for part in ["describes functions of sched_ext wrongly", "scx_bpf_kick_cpu", "dwarves 1.31"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(state(), "disabled");
    let left: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().flatten().map(|one| one.file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}
