//! The packaged unit of the scheduler, on a kernel that has sched_ext: `cargo xtask vm --layout systemd-sched`.

use super::units::{GROUPS, LOADER, PROGRAM, Package, offline, start_with};
use super::{Sleeper, done, succeeds};
use commensal_testkit::{ended, field_of_stat, throughout};
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const STATE: &str = "/sys/kernel/sched_ext/state";
/// Threads that differ in what they are to get back: of the fair class, of batch work, and a nice one.
const WORK: &str = "chrt --batch 0 sleep 4001 & nice -n 7 sleep 4002 & exec sleep 4003";
/// Policy (sched(7)) and nice value of each.
const OWN: [(u32, i32); 3] = [(0, 0), (0, 7), (3, 0)];
const SCHED_EXT: u32 = 7;
/// Longer than emulated CPUs stand still.
const WATCHDOG: &str = "WatchdogSec=20\n";

/// The package with the scheduler's program in it; `None`, with the reason on standard output, where it cannot be loaded.
fn install(test: &str) -> Option<Package> {
    let beside = Path::new(env!("CARGO_BIN_EXE_commensal")).with_file_name("commensal-sched");
    let why = if !Path::new(STATE).exists() {
        "this kernel has no sched_ext"
    } else if !beside.exists() {
        "the scheduler was not built"
    } else {
        let package = Package::install(test)?;
        std::fs::copy(beside, LOADER).unwrap();
        // What the tests before have started counts for nothing; a unit that systemd has forgotten is no failure.
        let _ = package.tries("reset-failed", "sched");
        return Some(package);
    };
    println!("skipped: {test}: {why}");
    None
}

fn state() -> String {
    super::read(STATE.into())
}

/// Policy and nice value of each thread of a unit, sorted.
fn policies(unit: &Sleeper) -> Vec<(u32, i32)> {
    let threads = super::read(unit.group().join("cgroup.threads"));
    let look = |tid: &str| {
        let tid = tid.parse().ok()?;
        Some((field_of_stat(tid, 41)?.parse().ok()?, field_of_stat(tid, 19)?.parse().ok()?))
    };
    let mut found: Vec<(u32, i32)> = threads.split_whitespace().filter_map(look).collect();
    found.sort_unstable();
    found
}

fn is_under(unit: &Sleeper) -> bool {
    let now = policies(unit);
    now.len() == OWN.len() && now.iter().all(|(policy, _)| *policy == SCHED_EXT)
}

/// The offline unit; its threads are there.
fn batch(package: &Package, test: &str) -> Sleeper {
    let unit = Sleeper::start(test, &["-p", "CPUWeight=100"], &["sh", "-c", WORK]);
    package.until("work with policies of its own", || policies(&unit) == OWN);
    unit
}

/// Without an agent: one command puts the group under the scheduler.
fn apply(package: &Package, unit: &Sleeper) {
    let (status, out, err) = done(Command::new(PROGRAM).args(["apply", "--config", GROUPS]));
    assert!(matches!(status, Some(0 | 1)), "{status:?} {out}{err}");
    assert!(is_under(unit), "{:?}\n{out}{err}\n{}", policies(unit), package.said());
}

/// What the scheduler says of itself, if one answers.
fn answer() -> Option<Value> {
    let said = done(Command::new(PROGRAM).args(["sched", "status", "--json", "--for", "0s"])).1;
    let status: Value = serde_json::from_str(&said).ok()?;
    status.get("scheduler").filter(|answer| !answer.is_null()).cloned()
}

/// A scheduler that somebody loaded by hand, with the state directory of the unit; gone at the end.
struct ByHand(Child);

impl ByHand {
    fn start(package: &Package, options: &[&str]) -> ByHand {
        let mut command = Command::new(LOADER);
        let child = command.arg("load").args(options).stdin(Stdio::null()).spawn().unwrap();
        let hand = ByHand(child);
        package.until("a scheduler by hand", || hand.answers());
        hand
    }

    fn answers(&self) -> bool {
        answer().is_some_and(|status| status["pid"] == self.0.id() && status["mode"] == "running")
    }
}

impl Drop for ByHand {
    fn drop(&mut self) {
        let _ = Command::new(PROGRAM).args(["sched", "unload"]).output();
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// promise 55
#[test]
fn the_scheduler_is_a_unit_of_its_own() {
    let test = "the_scheduler_is_a_unit_of_its_own";
    let Some(package) = install(test) else { return };
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no", "/etc/systemd/system/commensal-sched.service"]);
    let (status, out, err) = done(&mut verify);
    assert_eq!((status, format!("{out}{err}").as_str()), (Some(0), ""));
    let etl = batch(&package, "unit-etl");
    package.groups(&offline(&etl, ""));

    assert_eq!(state(), "disabled");
    succeeds(Command::new("systemctl").args(["start", "--no-block", "commensal-sched"]));
    package.until("the unit is active", || {
        let active = package.of("sched", "ActiveState") == "active";
        // Looked at later: once it is active it stays loaded.
        assert!(!active || state() == "enabled", "active without a scheduler\n{}", package.said());
        active
    });
    assert!(answer().is_some(), "active, and does not answer\n{}", package.said());
    apply(&package, &etl);
    let said = "running; offline groups: 1, their threads: 3";
    package.until("a line for systemctl status", || package.of("sched", "StatusText") == said);

    // Killed: the kernel takes the scheduler off, and what is called after the end puts policies back. The next one has no
    // orders until somebody gives them.
    let killed = package.signal("sched", "KILL");
    package.until("policies of their own after a kill", || policies(&etl) == OWN);
    package.until_another("sched", &killed);
    assert_eq!((state().as_str(), package.of("sched", "NRestarts").as_str()), ("enabled", "1"));
    assert_eq!(policies(&etl), OWN, "{}", package.said());
    apply(&package, &etl);

    // It hangs: the kernel goes on with the scheduler, until systemd ends its process.
    package.drop_in_of("sched", WATCHDOG);
    package.systemctl("restart", "sched");
    apply(&package, &etl);
    let hung = package.signal("sched", "STOP");
    assert!(is_under(&etl), "{:?}", policies(&etl));
    package.until("policies of their own after a hang", || policies(&etl) == OWN);
    package.until_another("sched", &hung);
    assert_eq!(state(), "enabled");
    assert!(package.said().contains("Watchdog timeout"), "{}", package.said());
    apply(&package, &etl);
    // A loop that goes round is left alone for longer than that.
    let pid = package.of("sched", "MainPID");
    let number = pid.parse().unwrap();
    throughout(Duration::from_secs(30), "its process has ended", || !ended(number));
    assert_eq!(package.of("sched", "MainPID"), pid, "{}", package.said());

    package.systemctl("stop", "sched");
    assert_eq!((policies(&etl).as_slice(), state().as_str()), (&OWN[..], "disabled"), "{}", package.said());
    let ended = ["ActiveState", "Result"].map(|property| package.of("sched", property));
    assert_eq!(ended, ["inactive", "success"], "{}", package.said());
}

/// Whoever else has loaded a scheduler keeps it, although the unit has the same state directory.
// promise 55
#[test]
fn what_somebody_else_has_loaded_stays() {
    let test = "what_somebody_else_has_loaded_stays";
    let Some(package) = install(test) else { return };
    let etl = batch(&package, "beside-etl");
    package.groups(&offline(&etl, ""));
    let hand = ByHand::start(&package, &[]);
    apply(&package, &etl);
    let (status, ..) = package.tries("start", "sched");
    assert_ne!(status, Some(0), "there is one already\n{}", package.said());
    let because = "another sched_ext scheduler is loaded already (commensal";
    assert!(package.said().contains(because), "{}", package.said());
    // It does not try for ever.
    package.until("an end of trying", || package.of("sched", "ActiveState") == "failed");
    let again: u32 = package.of("sched", "NRestarts").parse().unwrap();
    assert!(again <= 5, "{again} restarts");
    assert!(hand.answers() && is_under(&etl), "{:?}\n{}", policies(&etl), package.said());
    drop(hand);
    assert_eq!((policies(&etl).as_slice(), state().as_str()), (&OWN[..], "disabled"));

    // The other way round: what replaces the unit's is not taken off by its end.
    package.systemctl("reset-failed", "sched");
    package.systemctl("start", "sched");
    apply(&package, &etl);
    let hand = ByHand::start(&package, &["--replace"]);
    package.until("the unit's end", || package.of("sched", "ActiveState") == "inactive");
    assert!(hand.answers() && is_under(&etl), "{:?}\n{}", policies(&etl), package.said());
    drop(hand);
    assert_eq!((policies(&etl).as_slice(), state().as_str()), (&OWN[..], "disabled"));
}

/// With an agent nobody has to give orders again.
// promise 55
#[test]
fn the_agents_unit_follows_the_schedulers() {
    let test = "the_agents_unit_follows_the_schedulers";
    let Some(package) = install(test) else { return };
    let etl = batch(&package, "follow-etl");
    package.groups(&offline(&etl, ""));
    // The probe takes emulated CPUs many seconds to load, and is no part of this.
    package.drop_in_of("agent", &start_with("--no-probe"));
    package.systemctl("start", "agent");
    assert_eq!(policies(&etl), OWN, "{}", package.said());
    package.systemctl("start", "sched");
    package.until("the agent finds the scheduler", || is_under(&etl));
    let killed = package.signal("sched", "KILL");
    package.until("policies of their own", || policies(&etl) == OWN);
    package.until_another("sched", &killed);
    package.until("the agent finds the next one", || is_under(&etl));
    package.systemctl("stop", "sched");
    assert_eq!(policies(&etl), OWN, "{}", package.said());
    // systemd writes its own value whenever a unit beside it comes or goes; the agent's next round puts it back.
    package.until("what is underneath", || super::read(etl.group().join("cpu.idle")) == "1");
}
