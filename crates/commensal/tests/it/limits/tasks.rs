//! Tasks: how many there may be, and that a frozen group stands still.

use super::{BURN, Scene};
use crate::support::text;
use commensal_core::knob::{Controller, Version};
use commensal_testkit::{throughout, until, until_still};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const PIDS_MAX: u32 = 20;

/// Starts sleeping processes until the kernel refuses or there are twice as many as the group may have; says how many
/// it started, and ends them.
fn forks() -> String {
    format!(
        "forked=0; trap 'echo $forked; kill $pids; wait' EXIT; \
         while [ $forked -lt {} ]; do sleep 60 & pids=\"$pids $!\"; forked=$((forked + 1)); done",
        2 * PIDS_MAX
    )
}

// promise 6
#[test]
fn forks_end_at_pids_max() {
    let test = "forks_end_at_pids_max";
    let Some(scene) = Scene::new(test) else { return };
    if scene.version(Controller::Pids).is_none() {
        println!("skipped: {test}: no cgroup hierarchy has the pids controller");
        return;
    }
    let groups = scene.program.groups(&format!("[group.etl]\nclass = \"offline\"\npids.max = {PIDS_MAX}\n"));
    // The group stays after the command, so that its events can be read.
    scene.program.expect(0, &["apply", "-c", groups.to_str().unwrap()]);
    let inside = scene.command("etl", &groups, &forks()).output().unwrap();
    let refused = refusals(&scene.file(Controller::Pids, "offline/etl", "pids.events"));
    let outside = Command::new("sh").args(["-c", &forks()]).output().unwrap();
    let err = text(&inside.stderr);
    println!(
        "{test}: {} forks of {PIDS_MAX}, {refused} refused, outside {}",
        text(&inside.stdout).trim(),
        text(&outside.stdout).trim()
    );
    // The shell is one of them.
    assert_eq!(text(&inside.stdout), format!("{}\n", PIDS_MAX - 1), "{err}");
    assert!(err.contains("Cannot fork"), "{err}");
    assert!(refused > 0, "pids.events counts no refusal");
    assert_eq!(text(&outside.stdout), format!("{}\n", 2 * PIDS_MAX), "{}", text(&outside.stderr));
}

/// Forks that the kernel refused: `max 1`.
fn refusals(events: &Path) -> u64 {
    let text = std::fs::read_to_string(events).unwrap();
    text.lines().find_map(|line| line.strip_prefix("max ")?.parse().ok()).unwrap()
}

/// What shows that a burner is awake. On a busy machine an offline one has three thousandths of a CPU.
const AWAKE_NS: u64 = 5_000_000;
/// A frozen group of v1 cannot even be killed: whatever becomes of the test, it is thawed.
struct Thaw(PathBuf, &'static str);

impl Drop for Thaw {
    fn drop(&mut self) {
        let _ = std::fs::write(&self.0, self.1);
    }
}

// promise 6
#[test]
fn a_frozen_group_stands_still() {
    let test = "a_frozen_group_stands_still";
    let Some(scene) = Scene::new(test) else { return };
    let (file, thawed, told, frozen_says) = match scene.version(Controller::Freezer) {
        Some(Version::V1) => ("freezer.state", "THAWED", "freezer.state", "FROZEN"),
        Some(Version::V2) => ("cgroup.freeze", "0", "cgroup.events", "frozen 1"),
        None => {
            println!("skipped: {test}: no cgroup hierarchy can freeze");
            return;
        }
    };
    let groups = |name: &str, more: &str| {
        let path = scene.program.path(name);
        std::fs::write(&path, format!("[group.etl]\nclass = \"offline\"\n{more}")).unwrap();
        path
    };
    let (awake, frozen) = (groups("awake.toml", ""), groups("frozen.toml", "frozen = true\n"));
    let apply = |file: &Path| scene.program.expect(0, &["apply", "-c", file.to_str().unwrap()]);
    let burner = scene.start("etl", &awake, BURN);
    let _thaw = Thaw(scene.file(Controller::Freezer, "offline/etl", file), thawed);
    let goes_on = |when: &str| {
        let begin = burner.cpu_ns();
        until(format!("the burner runs {when}"), || burner.cpu_ns() >= begin + AWAKE_NS);
    };
    goes_on("before");
    apply(&frozen);
    // The kernel takes the value at once; each task stops when it next comes by.
    let told = scene.file(Controller::Freezer, "offline/etl", told);
    let is_frozen = || std::fs::read_to_string(&told).unwrap().lines().any(|line| line == frozen_says);
    until("the group is frozen", is_frozen);
    // It says so on its way from the CPU.
    let begin = until_still(Duration::from_millis(100), "the burner's CPU time", || burner.cpu_ns());
    throughout(Duration::from_secs(1), "a frozen process was on a CPU", || burner.cpu_ns() == begin);
    apply(&awake);
    goes_on("thawed");

    // The group cannot go while it is in use, and must not stay frozen: no signal would end the burner then.
    apply(&frozen);
    let (_, left) = scene.program.expect(1, &["restore"]);
    assert!(left.contains(" is in it"), "{left}");
    goes_on("restored");
}
