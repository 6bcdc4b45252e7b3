//! The program beside a systemd that is PID 1: what it leaves alone, what it tells the user to tell systemd, and
//! what it does where systemd has delegated. In transient units of its own.
//!
//! Every command gets a unit of its own kind, whatever unit the tests run in.

mod scheduler;
mod units;

use crate::support::{Program, cgroups_named, text};
use commensal_host::{Host, LinuxHost};
use commensal_testkit::until;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const ETL: &str = "[group.etl]\nclass = \"offline\"\npids.max = 200\n";
const ROOT: &str = "/sys/fs/cgroup";
/// Of sched_setscheduler(2).
const SCHED_IDLE: &str = "5";
/// The command says where it is, what is in force there, and ends with a status of its own.
const WHERE: &str = "group=/sys/fs/cgroup$(cut -d: -f3- /proc/self/cgroup); echo $group; \
                     cat $group/pids.max $group/../cpu.idle; exit 7";
/// Leaves the unit's own group, which then may give controllers away, for one below it. 0 is the writer itself.
const ASIDE: &str = "group=/sys/fs/cgroup$(cut -d: -f3- /proc/self/cgroup); mkdir $group/aside && \
                     echo 0 >$group/aside/cgroup.procs && exec \"$@\"";

/// Whether systemd manages this machine and obeys us; prints the skip otherwise.
fn beside_systemd(test: &str) -> bool {
    let first = std::fs::read_to_string("/proc/1/comm").unwrap_or_default();
    let reason = if first.trim() != "systemd" {
        "PID 1 is not systemd"
    } else if LinuxHost::new().euid() != 0 {
        "transient units need root"
    } else if !Path::new(ROOT).join("cgroup.controllers").exists() {
        "the hierarchy is not unified"
    } else {
        return true;
    };
    println!("skipped: {test}: {reason}");
    false
}

fn read(path: PathBuf) -> String {
    std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        .trim()
        .to_owned()
}

/// Runs to the end and gives status, standard output and standard error.
fn done(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), text(&stdout), text(&stderr))
}

fn succeeds(command: &mut Command) {
    let (status, out, err) = done(command);
    assert_eq!(status, Some(0), "{command:?}\n{out}{err}");
}

/// The command in a unit that `systemd-run` makes with these options.
fn in_unit(options: &[&str], words: &[&str], command: &Command) -> Command {
    let mut unit = Command::new("systemd-run");
    unit.args(["--quiet", "--collect"]).args(options).arg("--").args(words);
    unit.arg(command.get_program()).args(command.get_args());
    unit
}

/// A unit that sleeps, until it is dropped.
struct Sleeper(String);

impl Sleeper {
    fn start(test: &str, options: &[&str], words: &[&str]) -> Sleeper {
        let name = format!("commensal-it-{}-{test}.service", std::process::id());
        let unit = format!("--unit={name}");
        let options: Vec<&str> = [unit.as_str()].iter().chain(options).copied().collect();
        let mut sleep = Command::new("sleep");
        succeeds(&mut in_unit(&options, words, sleep.arg("600")));
        Sleeper(name)
    }

    fn path(&self) -> String {
        format!("/system.slice/{}", self.0)
    }

    fn group(&self) -> PathBuf {
        PathBuf::from(format!("{ROOT}{}", self.path()))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = Command::new("systemctl").args(["stop", &self.0]).output();
    }
}

/// What is set in a group: all its files but those that change by themselves.
fn settings(group: &Path) -> BTreeMap<String, String> {
    const MOVING: [&str; 6] = ["stat", "pressure", "current", "events", "events.local", "peak"];
    let names = std::fs::read_dir(group).unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.map(|name| name.into_string().unwrap());
    let still = names.filter(|name| !MOVING.iter().any(|end| name.ends_with(end)));
    still.filter_map(|name| Some((name.clone(), std::fs::read_to_string(group.join(name)).ok()?))).collect()
}

/// An online and an offline unit, side by side: so the offline one is what the kernel compares with the other.
fn beside(web: &Sleeper, etl: &Sleeper, keys: &str) -> String {
    format!(
        "[group.web]\nclass = \"online\"\nmatch = [{{ systemd = \"{}\" }}]\n\
         [group.etl]\nclass = \"offline\"\nmatch = [{{ systemd = \"{}\" }}]\n{keys}",
        web.0, etl.0
    )
}

#[test]
fn doctor_says_who_manages_and_writes_nothing() {
    let test = "doctor_says_who_manages_and_writes_nothing";
    if !beside_systemd(test) {
        return;
    }
    let program = Program::new("doctor");
    let given = || read(Path::new(ROOT).join("cgroup.subtree_control"));
    let before = given();
    let (status, out, err) = done(&mut in_unit(&["--scope"], &[], &program.command(&["doctor", "--json"])));
    assert_eq!(status, Some(1), "{out}{err}");
    let value: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(value["managed_by"], "systemd", "{out}");
    assert_eq!(value["own_groups_below"], Value::Null, "{out}");
    let obstacle = value["own_groups_obstacle"].as_str().unwrap();
    assert!(
        obstacle.contains("nothing shows that it has delegated") && obstacle.contains(".scope"),
        "{obstacle}"
    );
    assert_eq!(given(), before);
    assert!(cgroups_named(&program.prefix).is_empty());
}

#[test]
fn run_without_delegation_is_weak_and_says_so() {
    let test = "run_without_delegation_is_weak_and_says_so";
    if !beside_systemd(test) {
        return;
    }
    let program = Program::new("weak");
    let file = program.groups(ETL);
    let script = "cat /proc/self/cgroup; cat /proc/self/stat; exit 7";
    let command =
        program.command(&["run", "-g", "etl", "-c", file.to_str().unwrap(), "--", "sh", "-c", script]);
    let (status, out, err) = done(&mut in_unit(&["--scope"], &[], &command));
    assert_eq!(status, Some(7), "{out}{err}");
    assert!(err.contains("group etl") && err.contains("SCHED_IDLE") && err.contains("weak"), "{err}");
    let (place, stat) = out.split_once('\n').unwrap();
    assert!(place.ends_with(".scope"), "{place}");
    // Counted from behind the name, which is field 2 (proc(5)): nice is field 19, the policy field 41.
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    assert_eq!((fields[16], fields[38]), ("19", SCHED_IDLE), "{stat}");
    assert!(cgroups_named(&program.prefix).is_empty());
}

/// The commands that `apply` prints instead of writing do what it would have written.
// promise 8
#[test]
fn a_unit_is_left_to_systemd_with_the_command_to_tell_it() {
    let test = "a_unit_is_left_to_systemd_with_the_command_to_tell_it";
    if !beside_systemd(test) {
        return;
    }
    let version = text(&Command::new("systemctl").arg("--version").output().unwrap().stdout);
    let version = version.split_whitespace().nth(1).and_then(|number| number.parse::<u32>().ok()).unwrap();
    if version < 252 {
        println!("skipped: {test}: systemd {version} has no CPUWeight=idle");
        return;
    }
    let program = Program::new("told");
    let (web, unit) = (Sleeper::start("told-web", &[], &[]), Sleeper::start("told-etl", &[], &[]));
    let file = program.groups(&beside(&web, &unit, "cpu.max = \"1 cpu\"\npids.max = 300\n"));
    let before = settings(&unit.group());
    let (out, _) = program.expect(1, &["apply", "--json", "-c", file.to_str().unwrap()]);
    assert_eq!(settings(&unit.group()), before, "{out}");
    let value: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(value["steps"], serde_json::json!([]), "{out}");
    let unmet = value["unmet"].as_array().unwrap();
    let commands = unmet.iter().filter_map(|one| one["try"].as_str()?.split_once("; or "));
    let commands: Vec<&str> = commands.map(|(command, _)| command).collect();
    assert!(
        commands.len() == 3 && commands.iter().all(|one| one.starts_with("systemctl set-property ")),
        "{out}"
    );
    for command in commands {
        succeeds(Command::new("sh").args(["-c", command]));
    }
    let after = |file: &str| read(unit.group().join(file));
    assert_eq!([after("cpu.idle"), after("pids.max"), after("cpu.max")], ["1", "300", "100000 100000"]);
    // What systemd was told holds, so nothing is missing any more.
    let (out, _) = program.expect(0, &["apply", "-c", file.to_str().unwrap()]);
    assert!(!out.contains("unmet"), "{out}");
}

// promise 8
#[test]
fn takeover_writes_into_a_unit_and_restore_puts_it_back() {
    let test = "takeover_writes_into_a_unit_and_restore_puts_it_back";
    if !beside_systemd(test) {
        return;
    }
    let program = Program::new("over");
    // systemd gives a slice those controllers only that a unit in it asks for.
    let web = Sleeper::start("over-web", &[], &[]);
    let unit = Sleeper::start("over-etl", &["-p", "CPUWeight=77"], &[]);
    let file = program.groups(&beside(&web, &unit, "pids.max = 300\ntakeover = true\n"));
    let before = settings(&unit.group());
    let (out, _) = program.expect(0, &["apply", "-c", file.to_str().unwrap()]);
    let after = |file: &str| read(unit.group().join(file));
    assert_eq!([after("cpu.idle"), after("pids.max")], ["1", "300"], "{out}");
    let (out, _) = program.expect(0, &["restore"]);
    assert_eq!(settings(&unit.group()), before, "{out}");
    assert_eq!(after("cpu.weight"), "77");
}

/// What a command that was started in a delegated unit prints, and that it leaves nothing.
fn own_groups_below(unit: &str, program: &Program, outcome: (Option<i32>, String, String)) {
    let (status, out, err) = outcome;
    let lines: Vec<&str> = out.lines().collect();
    assert!(status == Some(7) && lines.len() == 3, "status {status:?}\n{out}{err}");
    let place = format!("{unit}/{}-offline/etl", program.prefix);
    assert!(lines[0].starts_with("/sys/fs/cgroup/system.slice/run-") && lines[0].ends_with(&place), "{out}");
    assert_eq!(lines[1..], ["200", "1"], "pids.max and cpu.idle; {out}");
    assert!(cgroups_named(&program.prefix).is_empty(), "the unit is over");
}

fn run_where(program: &Program) -> Command {
    let file = program.groups(ETL);
    program.command(&["run", "-g", "etl", "-c", file.to_str().unwrap(), "--", "sh", "-c", WHERE])
}

// promise 8
#[test]
fn own_groups_go_below_a_delegated_scope() {
    let test = "own_groups_go_below_a_delegated_scope";
    if !beside_systemd(test) {
        return;
    }
    for words in [&[][..], &["sh", "-c", ASIDE, "aside"]] {
        let program = Program::new("scope");
        let outcome = done(&mut in_unit(&["--scope", "-p", "Delegate=yes"], words, &run_where(&program)));
        own_groups_below(".scope", &program, outcome);
    }
}

/// A service of user nobody, who may read the program and write its state.
fn as_nobody(program: &Program, words: &[&str]) -> Command {
    let copy = program.reachable();
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
    std::fs::set_permissions(program.dir.path(), everybody).unwrap();
    let run = run_where(program);
    let mut command = Command::new(copy);
    command.args(run.get_args());
    in_unit(&["--wait", "--pipe", "--uid=nobody", "-p", "Delegate=yes"], words, &command)
}

// promise 8
#[test]
fn a_user_has_own_groups_below_a_delegated_service() {
    let test = "a_user_has_own_groups_below_a_delegated_service";
    if !beside_systemd(test) {
        return;
    }
    for words in [&[][..], &["sh", "-c", ASIDE, "aside"]] {
        let program = Program::new("nobody");
        let outcome = done(&mut as_nobody(&program, words));
        own_groups_below(".service", &program, outcome);
    }
}

/// systemd removes what is below a unit that ends; the journal still names it.
// promise 8
#[test]
fn restore_after_the_delegated_unit_is_gone() {
    let test = "restore_after_the_delegated_unit_is_gone";
    if !beside_systemd(test) {
        return;
    }
    let program = Program::new("gone");
    let unit = Sleeper::start("gone", &["-p", "Delegate=yes"], &["sh", "-c", ASIDE, "aside"]);
    until("the processes stand aside", || {
        unit.group().join("aside").exists() && read(unit.group().join("cgroup.procs")).is_empty()
    });
    let file = program.groups(ETL);
    let path = unit.path();
    // Status 1: the slice above the unit does not yield, and that is told.
    program.expect(1, &["--cgroup-root", &path, "apply", "-c", file.to_str().unwrap()]);
    let own = unit.group().join(format!("{}-offline/etl", program.prefix));
    assert_eq!(read(own.join("pids.max")), "200");
    let group = unit.group();
    drop(unit);
    until("the group is gone", || !group.exists());
    for _ in 0..2 {
        let (out, err) = program.expect(0, &["restore"]);
        assert_eq!((out.as_str(), err.as_str()), ("nothing to restore\n", ""));
    }
}
