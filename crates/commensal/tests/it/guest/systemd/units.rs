//! The packaged units of the agent and its guard, as systemd runs them. Installs what a package would, so only in a guest of
//! `cargo xtask vm`.

use super::{ASIDE, Sleeper, beside_systemd, done, in_unit, read, succeeds};
use commensal_testkit::{told, within};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const UNITS: [(&str, &str); 3] = [
    ("agent", include_str!("../../../../../../packaging/systemd/commensal-agent.service")),
    ("guard", include_str!("../../../../../../packaging/systemd/commensal-guard.service")),
    ("groups", include_str!("../../../../../../packaging/systemd/commensal-groups.service")),
];
/// Not in force without a kernel that has sched_ext; `scheduler.rs` is about one that has.
const SCHED: (&str, &str) =
    ("sched", include_str!("../../../../../../packaging/systemd/commensal-sched.service"));
pub(super) const PROGRAM: &str = "/usr/bin/commensal";
/// What the scheduler's unit starts.
pub(super) const LOADER: &str = "/usr/bin/commensal-sched";
pub(super) const GROUPS: &str = "/etc/commensal/groups.d";
/// Below which the agent's own groups are.
const ROOM: &str = "/system.slice/commensal-groups.service";
/// A guest is slow; nothing here is about how long something takes.
const PATIENCE: Duration = Duration::from_secs(180);
/// systemd calls what is above it medium or worse (systemd-analyze(1), `security`).
const EXPOSED: f64 = 5.0;
/// How long CPU time is counted.
const COUNTED: Duration = Duration::from_secs(4);
/// How many times the CPU time an online burner has at least of an offline one's beside it; the kernel's weights make it 33 and more.
const YIELDS: f64 = 4.0;
const BURN: &str = "while :; do :; done";
/// The process that a group finds by its arguments.
const BATCH: &str = "exec sleep 4321";

/// Units and program, as a package leaves them; gone at the end.
pub(super) struct Package;

impl Package {
    /// `None`, with the reason on standard output, where nothing may be installed.
    pub(super) fn install(test: &str) -> Option<Package> {
        if !beside_systemd(test) {
            return None;
        }
        if !Path::new("/etc/guest").exists() || Path::new(PROGRAM).exists() {
            println!("skipped: {test}: it installs units, and this is no guest of `cargo xtask vm`");
            return None;
        }
        // Nothing starts it in a guest, and without it nobody keeps what units say.
        succeeds(Command::new("systemctl").args(["start", "systemd-journald.socket", "systemd-journald"]));
        for program in [PROGRAM, LOADER] {
            std::fs::copy(env!("CARGO_BIN_EXE_commensal"), program).unwrap();
        }
        std::fs::create_dir_all(GROUPS).unwrap();
        for (name, unit) in UNITS.iter().chain([&SCHED]) {
            std::fs::write(format!("/etc/systemd/system/commensal-{name}.service"), unit).unwrap();
        }
        succeeds(Command::new("systemctl").arg("daemon-reload"));
        Some(Package)
    }

    pub(super) fn groups(&self, text: &str) {
        // As an editor does it: the agent reads in every tick, and half a file is a mistake.
        let aside = "/etc/commensal/groups.new";
        std::fs::write(aside, text).unwrap();
        std::fs::rename(aside, format!("{GROUPS}/test.toml")).unwrap();
    }

    /// Changes to the agent's unit, as an administrator makes them.
    fn drop_in(&self, text: &str) {
        self.drop_in_of("agent", text);
    }

    /// The same for any unit.
    pub(super) fn drop_in_of(&self, unit: &str, text: &str) {
        let folder = drop_ins(unit);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(format!("{folder}/test.conf"), format!("[Service]\n{text}")).unwrap();
        succeeds(Command::new("systemctl").arg("daemon-reload"));
    }

    /// A property of a unit.
    pub(super) fn of(&self, unit: &str, property: &str) -> String {
        let mut command = Command::new("systemctl");
        done(command.args(["show", "--value", "-p", property, &format!("commensal-{unit}")]))
            .1
            .trim()
            .to_owned()
    }

    pub(super) fn systemctl(&self, verb: &str, unit: &str) {
        let (status, out, err) = self.tries(verb, unit);
        assert_eq!(status, Some(0), "systemctl {verb} {unit}: {out}{err}\n{}", self.said());
    }

    pub(super) fn tries(&self, verb: &str, unit: &str) -> (Option<i32>, String, String) {
        done(Command::new("systemctl").args([verb, &format!("commensal-{unit}")]))
    }

    /// Sends a signal to the first process of a unit; which that was.
    pub(super) fn signal(&self, unit: &str, signal: &str) -> String {
        let pid = self.of(unit, "MainPID");
        let unit = format!("commensal-{unit}");
        succeeds(Command::new("systemctl").args(["kill", "--kill-who=main", "-s", signal, &unit]));
        pid
    }

    pub(super) fn said(&self) -> String {
        let mut command = Command::new("journalctl");
        done(command.args(["--no-pager", "-n", "60", "-u", "commensal-*"])).1
    }

    pub(super) fn until(&self, what: &str, holds: impl Fn() -> bool) {
        within(PATIENCE, told(|| format!("{what}\n{}", self.said())), holds);
    }

    pub(super) fn until_another(&self, unit: &str, than: &str) {
        self.until(&format!("another {unit}"), || {
            let now = self.of(unit, "MainPID");
            now != than && now != "0" && self.of(unit, "ActiveState") == "active"
        });
    }

    /// What the agent says of itself, if one answers.
    fn status(&self) -> Option<Value> {
        serde_json::from_str(&done(Command::new(PROGRAM).args(["status", "--json"])).1).ok()
    }

    /// Nothing that the units forbid is missing.
    fn until_nothing_is_wrong(&self) {
        self.until("an agent without problems", || {
            self.status().is_some_and(|status| status["problems"] == serde_json::json!([]))
        });
    }
}

impl Drop for Package {
    fn drop(&mut self) {
        for (unit, _) in UNITS.iter().chain([&SCHED]) {
            let _ = std::fs::remove_dir_all(drop_ins(unit));
        }
        let _ = Command::new("systemctl").arg("daemon-reload").output();
        for (unit, _) in UNITS.iter().chain([&SCHED]) {
            let _ = Command::new("systemctl").args(["stop", &format!("commensal-{unit}")]).output();
            let _ = std::fs::remove_file(format!("/etc/systemd/system/commensal-{unit}.service"));
        }
        let _ = Command::new(PROGRAM).arg("restore").output();
        let _ = Command::new("systemctl").arg("daemon-reload").output();
        for path in [GROUPS, "/var/lib/commensal"] {
            let _ = std::fs::remove_dir_all(path);
        }
        for program in [PROGRAM, LOADER] {
            let _ = std::fs::remove_file(program);
        }
    }
}

fn drop_ins(unit: &str) -> String {
    format!("/etc/systemd/system/commensal-{unit}.service.d")
}

/// The agent's command as in its unit, with more arguments.
pub(super) fn start_with(more: &str) -> String {
    format!("ExecStart=\nExecStart={PROGRAM} --cgroup-root {ROOM} agent {more} --config {GROUPS}\n")
}

fn online(unit: &Sleeper, keys: &str) -> String {
    group("web", "online", &format!("systemd = \"{}\"", unit.0), keys)
}

pub(super) fn offline(unit: &Sleeper, keys: &str) -> String {
    group("etl", "offline", &format!("systemd = \"{}\"", unit.0), keys)
}

fn group(name: &str, class: &str, who: &str, keys: &str) -> String {
    format!("[group.{name}]\nclass = \"{class}\"\ntakeover = true\nmatch = [{{ {who} }}]\n{keys}\n")
}

const OWN: &str = "[group.own]\nclass = \"offline\"\npids.max = 200\n";

/// A file of one of the agent's own offline groups.
fn own(group: &str, file: &str) -> PathBuf {
    PathBuf::from(format!("/sys/fs/cgroup{ROOM}/commensal-offline/{group}/{file}"))
}

fn is(path: impl AsRef<Path>, value: &str) -> bool {
    std::fs::read_to_string(path).is_ok_and(|text| text.trim() == value)
}

// promise 30
#[test]
fn the_units_are_clean_and_hardened() {
    let test = "the_units_are_clean_and_hardened";
    let Some(package) = Package::install(test) else { return };
    let unit = |name: &str| format!("/etc/systemd/system/commensal-{name}.service");
    // Manual pages are not in a guest.
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]).args(UNITS.iter().chain([&SCHED]).map(|(name, _)| unit(name)));
    let (status, out, err) = done(&mut verify);
    assert_eq!((status, format!("{out}{err}").as_str()), (Some(0), ""));
    for (name, _) in UNITS.iter().chain([&SCHED]) {
        let mut security = Command::new("systemd-analyze");
        let name = format!("commensal-{name}.service");
        let (_, out, err) = done(security.args(["security", "--no-pager", &name]));
        let last = out.lines().last().unwrap_or_default().to_owned();
        println!("{last}");
        let exposed = last.split(": ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
        assert!(exposed.is_some_and(|exposed| exposed < EXPOSED), "{out}{err}");
    }
    // Where no scheduler can be loaded the unit is passed over, without a failure.
    if !Path::new("/sys/kernel/sched_ext/state").exists() {
        package.systemctl("start", "sched");
        let properties = ["ActiveState", "ConditionResult"].map(|property| package.of("sched", property));
        assert_eq!(properties, ["inactive", "no"], "{}", package.said());
    }
}

// promise 30
#[test]
fn the_units_start_reload_survive_a_hang_and_stop() {
    let test = "the_units_start_reload_survive_a_hang_and_stop";
    let Some(package) = Package::install(test) else { return };
    let web = Sleeper::start("units-web", &["-p", "TasksAccounting=yes"], &[]);
    let limit = web.group().join("pids.max");
    let before = read(limit.clone());
    let groups = |pids: u32| package.groups(&(online(&web, &format!("pids.max = {pids}")) + OWN));
    package.groups("[group.web]\nclass = \"both\"\n");
    assert_ne!(package.tries("start", "agent").0, Some(0), "there are no groups to begin with");
    groups(300);
    // It is tried again until it can.
    package.until_another("agent", "0");
    package.systemctl("stop", "agent");
    // Returns once the agent says that it is ready, which is after its first tick.
    package.systemctl("start", "agent");
    assert_eq!(read(limit.clone()), "300", "{}", package.said());
    for (unit, _) in UNITS {
        assert_eq!(package.of(unit, "ActiveState"), "active", "{unit}\n{}", package.said());
    }
    assert_eq!(read(own("own", "pids.max")), "200");
    package.until_nothing_is_wrong();

    groups(310);
    package.systemctl("reload", "agent");
    package.until("the changed limit", || is(&limit, "310"));
    package.groups("[group.web]\nclass = \"both\"\n");
    let (status, ..) = package.tries("reload", "agent");
    assert_ne!(status, Some(0), "a mistake is told");
    assert_eq!(
        (read(limit.clone()).as_str(), package.of("agent", "ActiveState").as_str()),
        ("310", "active")
    );
    // Read in every tick.
    groups(320);
    package.until("the limit of the edited file", || is(&limit, "320"));
    groups(330);
    let agent = package.signal("agent", "HUP");
    package.until("the limit of the file at SIGHUP", || is(&limit, "330"));
    assert_eq!(package.of("agent", "MainPID"), agent);

    // It hangs: the guard ends it and brings the safe state, systemd starts another.
    let hung = package.signal("agent", "STOP");
    package.until("the safe state", || is(&limit, &before));
    package.until_another("agent", &hung);
    package.until("the limit again", || is(&limit, "330"));

    package.systemctl("stop", "agent");
    assert_eq!(read(limit), before, "no limit is left on online work");
    assert_eq!(package.of("agent", "ActiveState"), "inactive", "{}", package.said());
}

/// CPU time of two groups, us, while it is counted.
fn used(one: &Path, other: &Path) -> (f64, f64, f64) {
    let usage = |group: &Path| {
        let text = read(group.join("cpu.stat"));
        text.lines().find_map(|line| line.strip_prefix("usage_usec ")?.parse::<f64>().ok()).unwrap()
    };
    let (began, before) = (Instant::now(), [usage(one), usage(other)]);
    std::thread::sleep(COUNTED);
    let after = [usage(one), usage(other)];
    (after[0] - before[0], after[1] - before[1], began.elapsed().as_secs_f64() * 1e6)
}

/// Two services on one CPU, an online and an offline one: the kernel does what was written for them.
// promise 8
#[test]
fn what_is_written_for_units_holds() {
    let test = "what_is_written_for_units_holds";
    let Some(package) = Package::install(test) else { return };
    let pinned = ["-p", "AllowedCPUs=3", "-p", "CPUWeight=100"];
    let web = Sleeper::start("holds-web", &pinned, &["sh", "-c", BURN]);
    let etl = Sleeper::start("holds-etl", &pinned, &["sh", "-c", BURN]);
    let (before_web, before_etl, _) = used(&web.group(), &etl.group());
    assert!(before_web < YIELDS * before_etl, "alike without an agent: {before_web} and {before_etl} us");
    package.groups(&(online(&web, "") + &offline(&etl, "")));
    package.systemctl("start", "agent");
    assert_eq!(read(etl.group().join("cpu.idle")), "1", "{}", package.said());
    let (with_web, with_etl, _) = used(&web.group(), &etl.group());
    let share = |web: f64, etl: f64| 100.0 * etl / (web + etl);
    println!(
        "offline work has {:.1} % of the CPU without an agent, {:.1} % with one",
        share(before_web, before_etl),
        share(with_web, with_etl)
    );
    assert!(with_web > YIELDS * with_etl, "{with_web} and {with_etl} us");
    // Alone on its CPU a tenth is all that it gets.
    drop(web);
    package.groups(&offline(&etl, "cpu.max = \"0.1 cpu\""));
    package.until("the quota", || is(etl.group().join("cpu.max"), "10000 100000"));
    let (with_quota, _, all) = used(&etl.group(), &etl.group());
    println!("with a quota of 0.1 CPUs: {:.3}", with_quota / all);
    assert!(with_quota < 0.2 * all, "{with_quota} of {all} us");
}

/// Also what runs in the agent's own groups stays there, and is no obstacle to another agent.
// promise 30
#[test]
fn a_killed_agent_leaves_the_safe_state_and_comes_back() {
    let test = "a_killed_agent_leaves_the_safe_state_and_comes_back";
    let Some(package) = Package::install(test) else { return };
    let web = Sleeper::start("killed-web", &["-p", "TasksAccounting=yes"], &[]);
    let etl = Sleeper::start("killed-etl", &["-p", "CPUWeight=100"], &[]);
    let batch = Sleeper::start("killed-batch", &[], &["sh", "-c", BATCH]);
    let limit = web.group().join("pids.max");
    let before = read(limit.clone());
    let who = "process = { exe = \"/usr/bin/sleep\", cmdline = \"sleep 4321\" }";
    package.groups(
        &(online(&web, "pids.max = 300")
            + &offline(&etl, "cpu.max = \"0.5 cpu\"")
            + &group("batch", "offline", who, "pids.max = 77")),
    );
    let pid = done(Command::new("systemctl").args(["show", "--value", "-p", "MainPID", &batch.0])).1;
    let place = || read(PathBuf::from(format!("/proc/{}/cgroup", pid.trim())));
    let taken = format!("0::{ROOM}/commensal-offline/batch");
    package.drop_in("Restart=no\n");
    package.systemctl("start", "agent");
    package.until("the process in its group", || place() == taken);
    package.until_nothing_is_wrong();
    let held = || {
        assert_eq!(place(), taken, "{}", package.said());
        assert_eq!((read(own("batch", "pids.max")), read(own(".", "cpu.idle"))), ("77".into(), "1".into()));
        let files = ["cpu.idle", "cpu.max"].map(|file| read(etl.group().join(file)));
        assert_eq!(files, ["1", "50000 100000"], "{}", package.said());
    };

    // A guard comes back first.
    let guard = package.signal("guard", "KILL");
    package.until_another("guard", &guard);
    package.until_nothing_is_wrong();
    assert_eq!(package.of("agent", "ActiveState"), "active", "{}", package.said());

    let killed = package.signal("agent", "KILL");
    package.until("the safe state", || is(&limit, &before));
    assert_eq!(package.of("agent", "ActiveState"), "failed");
    held();

    package.drop_in("");
    package.systemctl("start", "agent");
    assert_eq!(read(limit.clone()), "300", "{}", package.said());
    held();
    let again = package.signal("agent", "KILL");
    assert_ne!(again, killed);
    package.until_another("agent", &again);
    package.until("the limit again", || is(&limit, "300"));
    held();
    package.until_nothing_is_wrong();
}

// promise 8
#[test]
fn a_stop_keeps_or_restores_as_configured() {
    let test = "a_stop_keeps_or_restores_as_configured";
    let Some(package) = Package::install(test) else { return };
    let web = Sleeper::start("stop-web", &["-p", "TasksAccounting=yes", "-p", "CPUWeight=100"], &[]);
    let etl = Sleeper::start("stop-etl", &["-p", "CPUWeight=77"], &[]);
    // Not all files: which controllers systemd enables for its units changes with the agent's.
    let settings = || {
        let files = ["pids.max", "cpu.idle", "cpu.max", "cpu.weight"];
        [&web, &etl].map(|unit| files.map(|file| read(unit.group().join(file))))
    };
    let before = settings();
    package.groups(&(online(&web, "pids.max = 300") + &offline(&etl, "cpu.max = \"0.5 cpu\"")));
    let files = [
        (web.group().join("pids.max"), "300"),
        (etl.group().join("cpu.idle"), "1"),
        (etl.group().join("cpu.max"), "50000 100000"),
    ];
    let in_force = || files.iter().all(|(path, value)| is(path, value));
    package.drop_in(&start_with("--on-exit keep"));
    package.systemctl("start", "agent");
    assert!(in_force(), "{}", package.said());
    // An upgrade: nobody sees that there are two agents.
    let over = AtomicBool::new(false);
    let looks = std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let mut looks = 0_u32;
            while !over.load(Ordering::Relaxed) {
                if !in_force() {
                    return Err(looks);
                }
                looks += 1;
            }
            Ok(looks)
        });
        let old = package.of("agent", "MainPID");
        let restarted = package.tries("restart", "agent");
        let now = package.of("agent", "MainPID");
        over.store(true, Ordering::Relaxed);
        assert!(restarted.0 == Some(0) && now != old, "{restarted:?}\n{}", package.said());
        looks.join().unwrap()
    });
    println!("looks during a restart, all of them at what is in force: {looks:?}");
    assert!(looks.is_ok_and(|looks| looks > 0), "a gap\n{}", package.said());
    package.systemctl("stop", "agent");
    assert!(in_force(), "{}", package.said());

    package.drop_in(&start_with("--on-exit restore"));
    package.systemctl("start", "agent");
    assert!(in_force(), "{}", package.said());
    package.systemctl("stop", "agent");
    assert_eq!(settings(), before, "{}", package.said());
}

/// Without a guard systemd's watchdog is what ends an agent that hangs.
// promise 30
#[test]
fn the_watchdog_ends_an_agent_that_hangs() {
    let test = "the_watchdog_ends_an_agent_that_hangs";
    let Some(package) = Package::install(test) else { return };
    let web = Sleeper::start("dog-web", &["-p", "TasksAccounting=yes"], &[]);
    package.groups(&online(&web, "pids.max = 300"));
    package.drop_in(&format!("WatchdogSec=15\n{}", start_with("--no-guard")));
    package.systemctl("start", "agent");
    let hung = package.signal("agent", "STOP");
    package.until_another("agent", &hung);
    assert_eq!(read(web.group().join("pids.max")), "300");
    assert_eq!(package.of("agent", "NRestarts"), "1", "{}", package.said());
    assert!(package.said().contains("Watchdog timeout"), "{}", package.said());
}

const UNKNOWN: &str = "waits of online groups cannot be attributed to offline work: ";

/// What the unit forbids leaves the probe what it needs.
// promise 30
#[test]
fn the_probe_works_in_the_unit() {
    let test = "the_probe_works_in_the_unit";
    let Some(package) = Package::install(test) else { return };
    let web = Sleeper::start("probe-web", &["-p", "CPUWeight=100"], &["sh", "-c", BURN]);
    let etl = Sleeper::start("probe-etl", &["-p", "CPUWeight=100"], &["sh", "-c", BURN]);
    package.groups(&(online(&web, "target-wakeup-p99 = \"500 ms\"") + &offline(&etl, "")));
    // An emulated CPU takes many seconds for what the kernel does to load it.
    package.drop_in(&format!("WatchdogSec=0\n{}", start_with("--lease 150s")));
    package.systemctl("start", "agent");
    let problems = |status: &Value| status["problems"].to_string();
    let seen = |status: &Value| {
        let groups = status["groups"].as_array().cloned().unwrap_or_default();
        groups.iter().any(|group| group["blamed_ms_per_cpu_s"].is_number())
    };
    package.until("the probe's figures, or why there are none", || {
        package.status().is_some_and(|status| seen(&status) || problems(&status).contains(UNKNOWN))
    });
    let status = package.status().unwrap_or_default();
    if problems(&status).contains("without feature bpf") {
        println!("skipped: {test}: this build has no probe");
        return;
    }
    package.until("the probe's figures", || package.status().is_some_and(|status| seen(&status)));
}

/// An agent of somebody who is not root, in a service that systemd has delegated to them.
// promise 30
#[test]
fn a_user_has_an_agent_in_a_delegated_service() {
    let test = "a_user_has_an_agent_in_a_delegated_service";
    if !beside_systemd(test) {
        return;
    }
    let program = crate::support::Program::new("user-agent");
    let copy = program.reachable();
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
    std::fs::set_permissions(program.dir.path(), everybody).unwrap();
    let file = program.groups(OWN);
    let agent = program.command(&["agent", "-c", file.to_str().unwrap()]);
    let mut command = Command::new(copy);
    command.args(agent.get_args());
    for words in [&[][..], &["sh", "-c", ASIDE, "aside"]] {
        let name = format!("commensal-it-{}-user.service", std::process::id());
        let unit = format!("--unit={name}");
        let options = [
            unit.as_str(),
            "--uid=nobody",
            "-p",
            "Delegate=yes",
            "-p",
            "Type=notify",
            "-p",
            "TimeoutStartSec=180",
        ];
        // Returns once the agent is ready.
        succeeds(&mut in_unit(&options, words, &command));
        let unit = Sleeper(name);
        let own = unit.group().join(format!("{}-offline/own", program.prefix));
        within(PATIENCE, told(|| format!("{:?}", done(&mut program.command(&["status"])))), || {
            is(own.join("pids.max"), "200") && is(own.join("../cpu.idle"), "1")
        });
        succeeds(Command::new("systemctl").args(["stop", &unit.0]));
        super::until("the group is gone", || !unit.group().exists());
    }
}
