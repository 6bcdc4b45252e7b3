//! The program on the running kernel: apply, restore, run. In scratch groups of its own.

use crate::support::{Program, can_write_cgroups, cgroups_named, cpu_mount, text};
use commensal_testkit::{Signal, line, members, signal, throughout, until};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const ETL: &str = "[group.etl]\nclass = \"offline\"\ncpu.max = \"50 %\"\npids.max = 200\n";

fn read(path: PathBuf) -> String {
    std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        .trim()
        .to_owned()
}

// promise 4
#[test]
fn apply_restore_and_again() {
    if !can_write_cgroups("apply_restore_and_again") {
        return;
    }
    let program = Program::new("apply");
    let file = program.groups(ETL);
    let config = file.to_str().unwrap();
    let (planned, _) = program.expect(1, &["plan", "-c", config]);
    assert!(
        planned.contains("create") && cgroups_named(&program.prefix).is_empty(),
        "plan wrote something: {planned}"
    );
    let (out, _) = program.expect(0, &["apply", "-c", config]);
    assert!(out.contains("cpu.idle") || out.contains("smallest weight"), "{out}");
    let group = cpu_mount().join(format!("{}-offline", program.prefix));
    assert_eq!(read(group.join("cpu.idle")), "1");
    let quota =
        ["cpu.cfs_quota_us", "cpu.max"].map(|file| std::fs::read_to_string(group.join("etl").join(file)));
    let quota: Vec<String> = quota.into_iter().flatten().collect();
    assert!(quota.len() == 1 && !quota[0].starts_with("-1") && !quota[0].starts_with("max"), "{quota:?}");
    let (out, _) = program.expect(0, &["apply", "-c", config]);
    assert!(out.starts_with("nothing to do"), "{out}");
    let (out, _) = program.expect(0, &["plan", "-c", config, "--json"]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&out).unwrap()["steps"], serde_json::json!([]));
    let (out, _) = program.expect(0, &["restore"]);
    assert!(out.contains("removed"), "{out}");
    assert!(cgroups_named(&program.prefix).is_empty());
    assert_eq!(program.expect(0, &["restore"]).0, "nothing to restore\n");
}

/// What a dead writer left half written goes; what a living one is writing stays.
// promise 11
#[test]
fn restore_removes_what_was_written_half() {
    let program = Program::new("half");
    std::fs::create_dir_all(program.state()).unwrap();
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let half = |pid: u32| program.state().join(format!(".machine.journal.{pid}.new"));
    let (dead, alive) = (half(ended.id()), half(std::process::id()));
    let other = program.state().join(".machine.journal.new");
    for path in [&dead, &alive, &other] {
        std::fs::write(path, "half").unwrap();
    }
    program.expect(0, &["restore"]);
    assert_eq!([dead.exists(), alive.exists(), other.exists()], [false, true, true]);
}

/// A group of somebody else's keeps its own weight through apply and restore, although cpu.idle forgets it.
// promise 14
#[test]
fn an_adopted_group_gets_its_weight_back() {
    if !can_write_cgroups("an_adopted_group_gets_its_weight_back") {
        return;
    }
    let program = Program::new("adopt");
    let name = format!("{}-theirs", program.prefix);
    let theirs = cpu_mount().join(&name);
    std::fs::create_dir(&theirs).unwrap();
    let (weight, value) =
        if theirs.join("cpu.shares").exists() { ("cpu.shares", "777") } else { ("cpu.weight", "77") };
    if std::fs::write(theirs.join(weight), value).is_err() {
        std::fs::remove_dir(&theirs).unwrap();
        println!(
            "skipped: an_adopted_group_gets_its_weight_back: the cpu controller is not enabled at the root"
        );
        return;
    }
    let file = program
        .groups(&format!("[group.theirs]\nclass = \"offline\"\nmatch = [{{ cgroup = \"/{name}\" }}]\n"));
    let (out, _) = program.expect(0, &["apply", "-c", file.to_str().unwrap()]);
    let idle = read(theirs.join("cpu.idle"));
    let (restored, _) = program.expect(0, &["restore"]);
    let after = (read(theirs.join("cpu.idle")), read(theirs.join(weight)));
    std::fs::remove_dir(&theirs).unwrap();
    assert_eq!(idle, "1", "{out}");
    assert_eq!(after, ("0".to_owned(), value.to_owned()), "{restored}");
}

// promise 16
#[test]
fn run_passes_status_input_and_place_through() {
    if !can_write_cgroups("run_passes_status_input_and_place_through") {
        return;
    }
    let program = Program::new("run");
    let file = program.groups(ETL);
    let run = |command: &[&str]| {
        let mut args = vec!["run", "-g", "etl", "-c", file.to_str().unwrap(), "--"];
        args.extend(command);
        program.run(&args)
    };
    assert_eq!(run(&["sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(run(&["sh", "-c", "kill -9 $$"]).status.code(), Some(137));
    let missing = run(&["/no/such/program"]);
    assert_eq!(missing.status.code(), Some(127), "{}", text(&missing.stderr));
    assert_eq!(run(&[program.dir.path().to_str().unwrap()]).status.code(), Some(126));
    let inside = text(&run(&["cat", "/proc/self/cgroup"]).stdout);
    let place = format!("/{}-offline/etl", program.prefix);
    assert!(inside.lines().any(|line| line.ends_with(&place)), "{inside}");

    let mut child = program.command(&["run", "-g", "etl", "-c", file.to_str().unwrap(), "--", "cat"]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through").unwrap();
    assert_eq!(text(&child.wait_with_output().unwrap().stdout), "through");
    assert!(cgroups_named(&program.prefix).is_empty(), "the group ends with its last command");
}

/// Starts a command in the group and waits for its first line.
fn start(program: &Program, config: &str, script: &str) -> (Child, String) {
    let mut command = program.command(&["run", "-g", "etl", "-c", config, "--", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let said = line(child.stdout.as_mut().unwrap());
    (child, said)
}

// promise 16
#[test]
fn run_forwards_signals_and_waits_for_one_that_ignores_them() {
    if !can_write_cgroups("run_forwards_signals_and_waits_for_one_that_ignores_them") {
        return;
    }
    let program = Program::new("signal");
    let file = program.groups(ETL);
    let config = file.to_str().unwrap();
    let (mut child, _) =
        start(&program, config, "trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done");
    signal(child.id(), Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(3));

    // A command that ignores SIGTERM goes on; restore says so instead of killing a user's job.
    let (mut child, pid) = start(&program, config, "trap '' TERM; echo $$; while :; do sleep 0.05; done");
    signal(child.id(), Signal::TERM);
    throughout(Duration::from_millis(300), "it ended although its command ignores SIGTERM", || {
        child.try_wait().unwrap().is_none()
    });
    let (_, err) = program.expect(1, &["restore"]);
    assert!(err.contains("in it"), "{err}");
    signal(pid.parse().unwrap(), Signal::KILL);
    assert_eq!(child.wait().unwrap().code(), Some(137));
    // The shell's own `sleep` outlives it for a moment; the next command finds the group empty and ends it.
    until("the shell's child has ended in every hierarchy", || {
        cgroups_named(&format!("{}-offline", program.prefix))
            .iter()
            .all(|group| members(&group.join("etl")).is_empty())
    });
    program.expect(0, &["run", "-g", "etl", "-c", config, "--", "true"]);
    assert_eq!(cgroups_named(&program.prefix), Vec::<PathBuf>::new());
}

/// While a command handles a signal, it runs above its group. What it starts there belongs to the group all the same,
/// also when its parent is killed, and `run` leaves no zombie of it.
// promises 7, 16
#[test]
fn what_outlives_a_lifted_command_goes_back() {
    if !can_write_cgroups("what_outlives_a_lifted_command_goes_back") {
        return;
    }
    let program = Program::new("orphan");
    let file = program.groups(ETL);
    let group = cpu_mount().join(format!("{}-offline/etl", program.prefix));
    // On SIGTERM, the shell starts two processes whose parent exits at once, and one of its own.
    let script = "trap 'sh -c \"sleep 60 & echo \\$!; sleep 60 & echo \\$!\"; sleep 60 & echo $!' TERM; \
                  echo $$; while :; do sleep 0.05; done";
    let mut command =
        program.command(&["run", "-g", "etl", "-c", file.to_str().unwrap(), "--", "sh", "-c", script]);
    let mut run = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(run.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut lines = lines.map(|line| line.parse::<u32>().unwrap());
    let shell = lines.next().unwrap();
    signal(run.id(), Signal::TERM);
    let [first, second, third] = [(); 3].map(|()| lines.next().unwrap());
    let started = [first, second, third];
    let there = || members(&group).into_iter().filter(|pid| started.contains(pid)).count();
    assert_eq!(there(), 0, "they run above the group");
    signal(first, Signal::KILL);
    until("no zombie is left of it", || !Path::new(&format!("/proc/{first}")).exists());
    signal(shell, Signal::KILL);
    assert_eq!(run.wait().unwrap().code(), Some(137));
    assert_eq!(there(), 2, "{started:?}, and in the group are {:?}", members(&group));
    for pid in [second, third] {
        signal(pid, Signal::KILL);
    }
    until("they have ended", || members(&group).is_empty());
    program.expect(0, &["restore"]);
    assert!(cgroups_named(&program.prefix).is_empty());
}

#[test]
fn two_commands_share_a_group() {
    if !can_write_cgroups("two_commands_share_a_group") {
        return;
    }
    let program = Program::new("two");
    let file = program.groups(ETL);
    let config = file.to_str().unwrap();
    let wait = "echo ready; read -r line || exit 5";
    let mut first = program.command(&["run", "-g", "etl", "-c", config, "--", "sh", "-c", wait]);
    let mut first = first.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(line(first.stdout.as_mut().unwrap()), "ready");
    program.expect(0, &["run", "-g", "etl", "-c", config, "--", "true"]);
    let idle = cpu_mount().join(format!("{}-offline/cpu.idle", program.prefix));
    assert_eq!(read(idle), "1", "the group of the first stays as it is");
    drop(first.stdin.take());
    assert_eq!(first.wait().unwrap().code(), Some(5));
    assert!(cgroups_named(&program.prefix).is_empty());
}

#[test]
fn doctor_tells_the_mechanism() {
    if !can_write_cgroups("doctor_tells_the_mechanism") {
        return;
    }
    let program = Program::new("doctor");
    let (out, _) = program.expect(0, &["doctor", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(value["offline_yields_by"], "cpu.idle on its group", "{out}");
    assert!(value["knobs"].as_array().unwrap().len() >= 5 && value["threads"].as_u64().unwrap() >= 1);
    assert!(cgroups_named(&program.prefix).is_empty());
}

/// A group that `run` made and `apply` confirmed does not end with its command.
#[test]
fn apply_takes_over_what_run_made() {
    if !can_write_cgroups("apply_takes_over_what_run_made") {
        return;
    }
    let program = Program::new("over");
    let file = program.groups(ETL);
    let config = file.to_str().unwrap();
    let mut first =
        program.command(&["run", "-g", "etl", "-c", config, "--", "sh", "-c", "echo ready; read -r _"]);
    let mut first = first.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(line(first.stdout.as_mut().unwrap()), "ready");
    let (out, _) = program.expect(0, &["apply", "-c", config]);
    assert!(out.starts_with("nothing to do"), "{out}");
    drop(first.stdin.take());
    first.wait().unwrap();
    let group = cpu_mount().join(format!("{}-offline", program.prefix));
    assert_eq!(read(group.join("cpu.idle")), "1");
    program.expect(0, &["restore"]);
    assert!(cgroups_named(&program.prefix).is_empty());
}

/// The command has the limits that its caller has, whatever commensal needs for itself.
// promise 16
#[test]
fn run_leaves_the_limit_of_open_files_alone() {
    if !can_write_cgroups("run_leaves_the_limit_of_open_files_alone") {
        return;
    }
    let program = Program::new("files");
    let file = program.groups(ETL);
    let script = format!(
        "ulimit -Sn 300; {} --state-dir {} --cgroup-prefix {} run -g etl -c {} -- sh -c 'ulimit -Sn'",
        env!("CARGO_BIN_EXE_commensal"),
        program.state().display(),
        program.prefix,
        file.display()
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(text(&output.stdout), "300\n", "{}", text(&output.stderr));
}

/// Under nohup the command keeps ignoring SIGHUP, and is not sent one by us.
// promise 16
#[test]
fn run_leaves_ignored_signals_ignored() {
    if !can_write_cgroups("run_leaves_ignored_signals_ignored") {
        return;
    }
    let program = Program::new("nohup");
    let file = program.groups(ETL);
    // The sleep is the time in which a signal of ours would come.
    let script = format!(
        "trap '' HUP; exec {} --state-dir {} --cgroup-prefix {} run -g etl -c {} -- \
         sh -c 'kill -HUP $PPID; sleep 0.2; grep SigIgn /proc/self/status'",
        env!("CARGO_BIN_EXE_commensal"),
        program.state().display(),
        program.prefix,
        file.display()
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{out}{}", text(&output.stderr));
    let mask = u64::from_str_radix(out.trim().rsplit('\t').next().unwrap(), 16).unwrap();
    assert_eq!(mask & 1, 1, "{out}");
}

/// The kernel takes every burst in the planned order, beside quotas that grow and shrink, and has its own back at the end.
// promise 6
#[test]
fn bursts_beside_quotas_that_grow_and_shrink() {
    if !can_write_cgroups("bursts_beside_quotas_that_grow_and_shrink") {
        return;
    }
    let program = Program::new("burst");
    let etl = cpu_mount().join(format!("{}-offline/etl", program.prefix));
    let burst = || -> u64 {
        let file = ["cpu.max.burst", "cpu.cfs_burst_us"].into_iter().map(|file| etl.join(file));
        read(file.into_iter().find(|file| file.exists()).unwrap()).parse().unwrap()
    };
    let all = [("0.1 cores", Some(5)), ("2 cores", Some(150)), ("0.5 cores", Some(20)), ("0.5 cores", None)];
    // From each to each other.
    for from in all {
        for to in all.into_iter().chain([("0.1 cores", Some(50))]) {
            for (quota, ms) in [from, to] {
                let key = ms.map(|ms| format!("cpu.burst = \"{ms} ms\"\n")).unwrap_or_default();
                let text = format!("[group.etl]\nclass = \"offline\"\ncpu.max = \"{quota}\"\n{key}");
                let file = program.groups(&text);
                program.expect(0, &["apply", "-c", file.to_str().unwrap()]);
                let most = if quota == "0.1 cores" { 10_000 } else { u64::MAX };
                assert_eq!(burst(), (ms.unwrap_or(0) * 1_000).min(most), "{from:?} to {to:?}");
            }
        }
    }
    program.expect(0, &["restore"]);
    assert!(cgroups_named(&program.prefix).is_empty());
}

mod measure {
    use super::*;
    use commensal_testkit::cpu_time;

    /// An ordinary task gets at least this many times the CPU of an offline one on the same CPU. With cpu.idle
    /// the kernel's own ratio is 1024 : 3; the bound leaves room for a busy machine.
    const MIN_YIELD_RATIO: f64 = 3.0;

    /// On one CPU, an offline burner yields to an ordinary one.
    // promise 5
    #[test]
    fn offline_yields() {
        let test = "offline_yields";
        if !can_write_cgroups(test) {
            return;
        }
        let program = Program::new("yield");
        let file = program.groups("[group.etl]\nclass = \"offline\"\n");
        let burn = "echo $$; while :; do :; done";
        let pinned = format!("taskset -pc 0 $$ >/dev/null; {burn}");
        let (mut offline, offline_pid) = start(&program, file.to_str().unwrap(), &pinned);
        let mut online = Command::new("sh").args(["-c", &pinned]).stdout(Stdio::piped()).spawn().unwrap();
        line(online.stdout.as_mut().unwrap());
        let pids = [online.id(), offline_pid.parse().unwrap()];
        let before = pids.map(|pid| cpu_time(pid).unwrap());
        std::thread::sleep(Duration::from_millis(1_500));
        let after = pids.map(|pid| cpu_time(pid).unwrap());
        signal(pids[1], Signal::KILL);
        online.kill().unwrap();
        online.wait().unwrap();
        offline.wait().unwrap();
        let used = [0, 1].map(|index| (after[index] - before[index]).as_nanos() as f64);
        println!("{test}: online {:.0} ms, offline {:.0} ms", used[0] / 1e6, used[1] / 1e6);
        assert!(used[0] > MIN_YIELD_RATIO * used[1], "online {} ns, offline {} ns", used[0], used[1]);
    }
}
