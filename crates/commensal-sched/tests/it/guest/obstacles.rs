//! Kernels that lack something or have CPUs without a tick: refused with the reason and the way out, and nothing is touched.
//! What the kernel says of itself is covered, in a namespace of mounts of its own.

use crate::guest::world::{EXT, Group, can_load, offline, policy, shown, state};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The kernel describes nothing.
const NO_BTF: &str = "mount -t tmpfs none /sys/kernel/btf";
/// As the kernel says it when it was booted with `nohz_full=1-3`.
const TICKLESS: &str = "echo 1-3 >\"$0/cpus\" && mount -o bind \"$0/cpus\" /sys/devices/system/cpu/nohz_full";

/// One obstacle: how it is made, and what has to be said of it.
struct Obstacle {
    how: &'static str,
    said: &'static [&'static str],
}

impl Obstacle {
    /// Runs a program behind it. The script's `$0` is a folder of its own.
    fn run(&self, folder: &Path, program: &Path, args: &[&str]) -> Output {
        let script = format!("{} || exit 99; exec \"$@\"", self.how);
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", &script]).arg(folder).arg(program).args(args);
        command.output().unwrap()
    }

    fn is_told(&self, output: &Output, status: i32) {
        let said = shown(output);
        println!("{said}");
        assert_eq!(output.status.code(), Some(status), "{said}");
        for part in self.said {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert_eq!(state(), "disabled", "{said}");
    }
}

/// Threads of the whole machine that are under a scheduler.
fn switched() -> Vec<u32> {
    let numbers = |folder: &str| -> Vec<u32> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    };
    let threads = numbers("/proc").into_iter().flat_map(|pid| numbers(&format!("/proc/{pid}/task")));
    threads.filter(|tid| policy(*tid) == Some(EXT)).collect()
}

/// All ways to load it, with orders that would switch threads at once.
fn refused(obstacle: &Obstacle) {
    let folder = tempfile::tempdir().unwrap();
    let batch = Group::offline("obstacle");
    let _work = batch.spin("0");
    let orders = folder.path().join("orders.json");
    std::fs::write(&orders, json!({ "do": "orders", "groups": [offline(&batch)] }).to_string()).unwrap();
    let (orders, state_dir) = (orders.to_str().unwrap(), folder.path().join("state"));
    let state_dir = state_dir.to_str().unwrap();
    let loader = PathBuf::from(env!("CARGO_BIN_EXE_commensal-sched"));
    let run = |program: &Path, args: &[&str]| {
        obstacle.run(folder.path(), program, &[&["--state-dir", state_dir][..], args].concat())
    };
    obstacle.is_told(&run(&loader, &["check"]), 1);
    obstacle.is_told(&run(&loader, &["load", "--orders", orders]), 2);
    let left: Vec<_> = std::fs::read_dir(state_dir).into_iter().flatten().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
    // The verb of the other program, which a build of this package alone does not make.
    let verb = loader.with_file_name("commensal");
    if verb.exists() {
        obstacle.is_told(&run(&verb, &["sched", "load", "--orders", orders]), 2);
    }
    assert_eq!(switched(), Vec::<u32>::new());
}

// promise 52
#[test]
fn a_kernel_that_does_not_describe_itself() {
    if can_load("guest::obstacles::a_kernel_that_does_not_describe_itself") {
        refused(&Obstacle { how: NO_BTF, said: &["no /sys/kernel/btf/vmlinux (CONFIG_DEBUG_INFO_BTF)"] });
    }
}

// promise 52
#[test]
fn cpus_without_a_tick() {
    if can_load("guest::obstacles::cpus_without_a_tick") {
        refused(&Obstacle {
            how: TICKLESS,
            said: &["CPUs 1-3 run without a tick", "boot without nohz_full"],
        });
    }
}
