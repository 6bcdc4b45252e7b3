//! The packaged units of the agent and its guard, as systemd runs them. Installs what a package would, so only in a guest of
//! `cargo xtask vm`.

use super::{Sleeper, beside_systemd, done, read, succeeds};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const AGENT: &str = include_str!("../../../../../packaging/systemd/commensal-agent.service");
const GUARD: &str = include_str!("../../../../../packaging/systemd/commensal-guard.service");
const PROGRAM: &str = "/usr/bin/commensal";
const GROUPS: &str = "/etc/commensal/groups.d";
/// A guest is slow; nothing here is about how long something takes.
const PATIENCE: Duration = Duration::from_secs(180);

/// Units and program, as a package leaves them; gone at the end.
struct Package;

impl Package {
    /// `None`, with the reason on standard output, where nothing may be installed.
    fn install(test: &str) -> Option<Package> {
        if !beside_systemd(test) {
            return None;
        }
        if !Path::new("/etc/guest").exists() || Path::new(PROGRAM).exists() {
            println!("skipped: {test}: it installs units, and this is no guest of `cargo xtask vm`");
            return None;
        }
        std::fs::copy(env!("CARGO_BIN_EXE_commensal"), PROGRAM).unwrap();
        std::fs::create_dir_all(GROUPS).unwrap();
        for (name, unit) in [("agent", AGENT), ("guard", GUARD)] {
            std::fs::write(format!("/etc/systemd/system/commensal-{name}.service"), unit).unwrap();
        }
        Some(Package)
    }

    fn groups(&self, web: &Sleeper, pids: u32) {
        let text = format!(
            "[group.web]\nclass = \"online\"\npids.max = {pids}\ntakeover = true\nmatch = [{{ systemd = \"{}\" }}]\n\
             [group.etl]\nclass = \"offline\"\npids.max = 200\n",
            web.0
        );
        std::fs::write(format!("{GROUPS}/test.toml"), text).unwrap();
    }

    /// A property of a unit.
    fn of(&self, unit: &str, property: &str) -> String {
        let mut command = Command::new("systemctl");
        done(command.args(["show", "--value", "-p", property, &format!("commensal-{unit}")]))
            .1
            .trim()
            .to_owned()
    }

    fn said(&self) -> String {
        let mut command = Command::new("journalctl");
        done(command.args(["--no-pager", "-n", "60", "-u", "commensal-agent", "-u", "commensal-guard"])).1
    }

    fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !holds() {
            assert!(Instant::now() < end, "{what}\n{}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Package {
    fn drop(&mut self) {
        for unit in ["agent", "guard"] {
            let _ = Command::new("systemctl").args(["stop", &format!("commensal-{unit}")]).output();
            let _ = std::fs::remove_file(format!("/etc/systemd/system/commensal-{unit}.service"));
        }
        let _ = Command::new(PROGRAM).arg("restore").output();
        let _ = Command::new("systemctl").arg("daemon-reload").output();
        let _ = std::fs::remove_dir_all("/etc/systemd/system/commensal-agent.service.d");
        for path in [GROUPS, "/var/lib/commensal"] {
            let _ = std::fs::remove_dir_all(path);
        }
        let _ = std::fs::remove_file(PROGRAM);
    }
}

fn systemctl(verb: &str, unit: &str) {
    succeeds(Command::new("systemctl").args([verb, &format!("commensal-{unit}")]));
}

#[test]
fn the_units_start_reload_survive_a_hang_and_stop() {
    let test = "the_units_start_reload_survive_a_hang_and_stop";
    let Some(package) = Package::install(test) else { return };
    let web = Sleeper::start("units-web", &["-p", "TasksAccounting=yes"], &[]);
    let limit = || read(web.group().join("pids.max"));
    let before = limit();
    package.groups(&web, 300);
    succeeds(Command::new("systemctl").arg("daemon-reload"));
    // Returns once the agent says that it is ready, which is after its first tick.
    systemctl("start", "agent");
    assert_eq!(limit(), "300", "{}", package.said());
    for unit in ["agent", "guard"] {
        assert_eq!(package.of(unit, "ActiveState"), "active", "{unit}\n{}", package.said());
    }
    // Its own groups are in what systemd has delegated to it.
    let own = format!("/sys/fs/cgroup{}/commensal-offline/etl/pids.max", package.of("agent", "ControlGroup"));
    assert_eq!(read(own.into()), "200");
    // Nothing that the units forbid is missing.
    let (_, status, err) = done(Command::new(PROGRAM).args(["status", "--json"]));
    let status: serde_json::Value = serde_json::from_str(&status).unwrap_or_else(|_| panic!("{status}{err}"));
    assert_eq!(status["troubles"], serde_json::json!([]), "{status}");

    package.groups(&web, 310);
    systemctl("reload", "agent");
    package.until("the changed limit", || limit() == "310");

    // It hangs: the guard ends it and brings the safe state, systemd starts another.
    let hung = package.of("agent", "MainPID");
    succeeds(Command::new("kill").args(["-STOP", &hung]));
    package.until("the safe state", || limit() == before);
    package.until("another agent", || {
        let now = package.of("agent", "MainPID");
        now != hung && now != "0" && limit() == "310"
    });
    assert_eq!(package.of("agent", "NRestarts"), "1");

    systemctl("stop", "agent");
    package.until("no limit is left on online work", || limit() == before);
    assert_eq!(package.of("agent", "ActiveState"), "inactive", "{}", package.said());
}

/// Without a guard systemd's watchdog is what ends an agent that hangs.
#[test]
fn the_watchdog_ends_an_agent_that_hangs() {
    let test = "the_watchdog_ends_an_agent_that_hangs";
    let Some(package) = Package::install(test) else { return };
    let web = Sleeper::start("dog-web", &["-p", "TasksAccounting=yes"], &[]);
    package.groups(&web, 300);
    let folder = "/etc/systemd/system/commensal-agent.service.d";
    std::fs::create_dir_all(folder).unwrap();
    let start = format!("ExecStart=\nExecStart={PROGRAM} agent --no-guard --config {GROUPS}\n");
    std::fs::write(format!("{folder}/test.conf"), format!("[Service]\nWatchdogSec=15\n{start}")).unwrap();
    succeeds(Command::new("systemctl").arg("daemon-reload"));
    systemctl("start", "agent");
    let hung = package.of("agent", "MainPID");
    succeeds(Command::new("kill").args(["-STOP", &hung]));
    package.until("another agent", || {
        let now = package.of("agent", "MainPID");
        now != hung && now != "0" && package.of("agent", "ActiveState") == "active"
    });
    assert_eq!(read(web.group().join("pids.max")), "300");
    assert_eq!(package.of("agent", "NRestarts"), "1", "{}", package.said());
}
