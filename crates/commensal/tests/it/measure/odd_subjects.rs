//! Odd subjects of `blame`, many of them, many looks, and clocks that jump.

use super::agent_faults::clock::library;
use super::identity::{in_a_namespace, json, probes};
use crate::agent::{Agent, ticks_on};
use crate::support::{Program, can_write_cgroups, cpu_mount, text};
use commensal_blame::probe;
use commensal_testkit::{Groups, Signal, alone, ended, field_of_stat, mortal, signal, stopped_by, until};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The page with the table that the first test makes.
const PAGE: &str = "../../docs/measurements/blame-odd-subjects.md";
const BEGIN: &str = "<!-- odd subjects: begin -->\n";
const END: &str = "<!-- odd subjects: end -->\n";

/// One process that never sleeps.
const HOG: &str = "while :; do :; done";

/// Of a look, for every thread.
const APART: f64 = 0.001;

fn figure(report: &Value, key: &str) -> f64 {
    report[key].as_f64().unwrap_or_else(|| panic!("{key}: {report}"))
}

/// How far a look is from explaining a process that only runs or waits, as a share of the look.
fn unexplained(report: &Value) -> f64 {
    let seconds = figure(report, "seconds");
    (figure(report, "run_s") + figure(report, "wait_ms") / 1e3 - seconds).abs() / seconds
}

/// The answer to one name, without the numbers of this run; `who` is what the name becomes.
fn answer(output: &Output, who: &str) -> String {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let said = match output.status.code() {
        Some(0) => {
            let report = json(&out);
            assert!(figure(&report, "seconds") >= 0.3 && figure(&report, "run_s") >= 0.0, "{out}");
            match report["unattributed"].as_str() {
                Some(why) => format!("run delay alone: {why}"),
                None => {
                    assert!(report["ended"].as_array().is_some_and(Vec::is_empty), "{out}");
                    "measured".to_owned()
                }
            }
        }
        _ => {
            err.lines().find_map(|line| line.split_once(": ")).map_or(err.as_str(), |(_, why)| why).to_owned()
        }
    };
    let own = std::process::id().to_string();
    let said = said.replace(who, "PID");
    format!("{} | {}", output.status.code().unwrap_or(-1), said.replace(&own, "PID"))
}

/// A process whose first thread has ended while another one runs; `None` without python3, which it prints.
fn headless(test: &str) -> Option<Child> {
    // The limit ends the process if this test is killed before it does.
    let script = "import ctypes, resource, threading\n\
                  resource.setrlimit(resource.RLIMIT_CPU, (60, 60))\n\
                  def run():\n    while True: pass\n\
                  threading.Thread(target=run).start()\nctypes.CDLL(None).pthread_exit(0)";
    if Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: {test}: a process without its first thread needs python3");
        return None;
    }
    Some(mortal("python3").args(["-c", script]).stdin(Stdio::null()).spawn().unwrap())
}

/// Kinds of subjects x what `blame` answers: the table in the page.
// promises 13, 31, 33
#[test]
fn odd_subjects_are_measured_or_refused() {
    let test = "odd_subjects_are_measured_or_refused";
    let _alone = alone();
    if probes(test).is_none() || !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("bo");
    let blame = |who: &str, time: &str| program.run(&["blame", who, "--for", time, "--json"]);
    let mut rows: Vec<(&str, String)> = Vec::new();
    let script = "$0 blame 1 --for 300ms --json";
    let Some(first) = in_a_namespace(test, &program, script) else { return };
    assert!(json(&first)["ended"].as_array().is_some_and(Vec::is_empty), "{first}");
    rows.push(("process 1 of a PID namespace", "0 | measured".to_owned()));
    let own = std::process::id().to_string();
    rows.push(("the parent of `blame`", answer(&blame(&own, "300ms"), &own)));
    // The shell becomes `blame`, so that it is its own subject.
    let script = format!("exec {} blame $$ --for 300ms --json", env!("CARGO_BIN_EXE_commensal"));
    let itself = mortal("sh").args(["-c", &script]).output().unwrap();
    rows.push(("`blame` itself", answer(&itself, "no number")));
    let groups = program.groups("[group.etl]\nclass = \"offline\"\n");
    let agent = Agent::start(&program, &groups, &[]);
    ticks_on(&program, 2);
    let number = agent.child.id().to_string();
    rows.push(("the agent", answer(&blame(&number, "300ms"), &number)));
    assert_eq!(agent.end(Signal::TERM), Some(0));
    if let Some(mut child) = headless(test) {
        until("its first thread has ended", || field_of_stat(child.id(), 3).as_deref() == Some("Z"));
        let number = child.id().to_string();
        let output = blame(&number, "300ms");
        child.kill().unwrap();
        child.wait().unwrap();
        rows.push(("a process whose first thread has ended", answer(&output, &number)));
        // The thread that is left runs or waits all the time.
        let report = json(&text(&output.stdout));
        assert!(unexplained(&report) < APART, "{report}");
    }
    let mut zombie = mortal("true").spawn().unwrap();
    until("it has ended", || ended(zombie.id()));
    let number = zombie.id().to_string();
    rows.push(("a zombie", answer(&blame(&number, "300ms"), &number)));
    zombie.wait().unwrap();
    let link = std::fs::read_link("/proc/thread-self").unwrap();
    let thread = link.file_name().unwrap().to_str().unwrap().to_owned();
    let name = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
    let said = answer(&blame(&thread, "300ms"), &thread).replace(name.trim_end(), "NAME");
    rows.push(("a thread that is not the first of its process", said));
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd") {
        rows.push(("a kernel thread", answer(&blame("2", "300ms"), "2")));
    }
    rows.push(("a number that no process has", answer(&blame("999999999", "300ms"), "999999999")));
    rows.push(("`--for 0s`", answer(&blame(&own, "0s"), &own)));
    let table: String = rows.iter().map(|(what, answer)| format!("| {what} | {answer} |\n")).collect();
    let table = format!("| subject | status | answer |\n|---|---|---|\n{table}");
    println!("{table}");
    // Of the machine's first process, too, it never says that it has ended.
    let first = answer(&blame("1", "300ms"), "no number");
    println!("process 1 of this machine: {first}");
    let hidden = "0 | run delay alone: the kernel does not show process 1 to BPF programs";
    assert!(first == "0 | measured" || first.starts_with(hidden), "{first}");
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (stored, after) = rest.split_once(END).unwrap();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(PAGE, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
        return;
    }
    // What cannot be made here is left out, and printed.
    let known: BTreeSet<&str> = stored.lines().collect();
    let new: Vec<&str> = table.lines().filter(|line| !known.contains(line)).collect();
    assert!(new.is_empty(), "UPDATE=1 rewrites {PAGE}: {new:?}");
}

/// As many processes of one name as a busy host has of all: the look says what it takes to find them, and is bounded in memory.
// promise 31
#[test]
fn a_name_that_ten_thousand_processes_have() {
    const PROCESSES: usize = 10_000;
    /// MB that `blame` may take: one word for each process, and the kernel's type information while it loads.
    const MOST_MB: f64 = 256.0;
    let test = "a_name_that_ten_thousand_processes_have";
    let _alone = alone();
    let most = std::fs::read_to_string("/proc/sys/kernel/pid_max").unwrap_or_default();
    if most.trim().parse::<usize>().is_ok_and(|most| most < PROCESSES * 3 / 2) {
        println!("skipped: {test}: the kernel has only {most} numbers");
        return;
    }
    let program = Program::new("bt");
    let script = format!(
        "cp \"$(command -v sh)\" crowd; mkfifo gate; exec 9<>gate
         ./crowd -c 'i=0; while [ $i -lt {PROCESSES} ]; do (read -r x <&9) & i=$((i+1)); done; echo >made; wait' &
         until [ -e made ]; do sleep 0.1; done
         $0 blame crowd --for 1s --json >report & look=$!
         while kill -0 $look 2>/dev/null; do cp /proc/$look/status last 2>/dev/null && mv last status; sleep 0.05; done
         wait $look || exit
         grep VmHWM status; cat report"
    );
    let Some(out) = in_a_namespace(test, &program, &script) else { return };
    let (peak, report) = out.split_once('\n').unwrap();
    let report = json(report);
    let peak_mb: f64 = peak.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0;
    println!("{test}: {peak_mb:.0} MB at most; {}", report["phases_ms"]);
    assert_eq!(report["subjects"][0], format!("crowd ({} processes)", PROCESSES + 1), "{report}");
    assert!(peak_mb < MOST_MB, "{peak_mb} MB");
}

/// Sum of what the shell command `times` prints: the CPU time of the shell and of its children that have ended, in units of 10 ms.
fn times(text: &str) -> f64 {
    let one = |word: &str| {
        let (minutes, seconds) = word.trim_end_matches('s').split_once('m')?;
        Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
    };
    text.split_whitespace().map(|word| one(word).unwrap_or_else(|| panic!("{text}"))).sum()
}

/// Processes that live for less than a millisecond, one after the other, in a group and below a process: what they ran for is the
/// kernel's account of the group, and nothing is lost in silence.
// promise 31
#[test]
fn fifty_thousand_short_lives() {
    const LIVES: usize = 50_000;
    /// Of the kernel's account, which leaves out what the hypervisor took, and takes less for interrupts.
    const OF_ACCOUNT: f64 = 0.02;
    let test = "fifty_thousand_short_lives";
    let _alone = alone();
    if probes(test).is_none() || !can_write_cgroups(test) {
        return;
    }
    let mount = cpu_mount();
    let mut groups = Groups::new(&mount, mount.join("cgroup.controllers").exists(), test);
    groups.make("storm");
    let program = Program::new("bs");
    let folder = program.dir.path().display();
    let script = format!(
        "cd {folder}; until [ -e go ]; do sleep 0.1; done; times >before
         i=0; while [ $i -lt {LIVES} ]; do (:); i=$((i+1)); done; times >after"
    );
    let pid = groups.start("storm", None, &script);
    let cgroup = format!("/{}/storm", groups.top.file_name().unwrap().display());
    let before = probe::count();
    let look = |who: &str| {
        let mut command = program.command(&["blame", who, "--for", "10m", "--json"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let (by_pid, by_group) = (look(&pid.to_string()), look(&cgroup));
    until("both look", || probe::count() == before + 2);
    // Past the start of the counting, which nothing shows.
    std::thread::sleep(Duration::from_secs(2));
    std::fs::write(program.path("go"), "").unwrap();
    // It ends on its own when its target has ended.
    let by_pid = by_pid.wait_with_output().unwrap();
    assert!(signal(by_group.id(), Signal::INT));
    let by_group = by_group.wait_with_output().unwrap();
    let [before_it, after_it] =
        ["before", "after"].map(|name| times(&std::fs::read_to_string(program.path(name)).unwrap()));
    let ran = after_it - before_it;
    for output in [by_pid, by_group] {
        let report = json(&text(&output.stdout));
        let (run_s, evidence) = (figure(&report, "run_s"), &report["evidence"]);
        println!("{test}: {run_s:.3} s on a CPU of {ran:.3} s by the kernel's account; {evidence}");
        assert!((run_s - ran).abs() < OF_ACCOUNT * ran + 0.1, "{run_s} s of {ran} s: {report}");
        assert!(figure(&report, "waits") > LIVES as f64 / 2.0, "{report}");
        assert_eq!(figure(evidence, "unnamed_ms"), 0.0, "{evidence}");
    }
    until("all probes are gone", || probe::count() == before);
}

/// Ten looks at one busy process: each explains all its time, and nothing of them is left in the kernel.
// promises 4, 31
#[test]
fn ten_looks_at_once() {
    let test = "ten_looks_at_once";
    let _alone = alone();
    if probes(test).is_none() {
        return;
    }
    let program = Program::new("bx");
    let mut hog = mortal("sh").args(["-c", HOG]).spawn().unwrap();
    let number = hog.id().to_string();
    let before = probe::count();
    let start = |_: u32| {
        let mut command = program.command(&["blame", &number, "--for", "3s", "--json"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let looks: Vec<Child> = (0..10).map(start).collect();
    let reports: Vec<Value> =
        looks.into_iter().map(|look| json(&text(&look.wait_with_output().unwrap().stdout))).collect();
    hog.kill().unwrap();
    hog.wait().unwrap();
    for report in &reports {
        let (run_s, wait_ms) = (figure(report, "run_s"), figure(report, "wait_ms"));
        println!(
            "{test}: {:.3} s: ran for {run_s:.3} s, waited for {wait_ms:.1} ms",
            figure(report, "seconds")
        );
        assert!(unexplained(report) < APART, "{report}");
    }
    until("all probes are gone", || probe::count() == before);
}

/// The target, `blame` itself, or both are stopped in the look, as by a debugger: what the target does not do meanwhile
/// is neither run nor wait, and a look that goes on too long is as long as it says.
// promise 31
#[test]
fn looks_with_a_gap() {
    let test = "looks_with_a_gap";
    let _alone = alone();
    if probes(test).is_none() {
        return;
    }
    let program = Program::new("bg");
    let mut hog = mortal("sh").args(["-c", HOG]).spawn().unwrap();
    let number = hog.id().to_string();
    for (of_target, of_blame, time, gap_s) in
        [(true, false, "4s", 1), (false, true, "2s", 4), (true, true, "2s", 4)]
    {
        let before = probe::count();
        let mut command = program.command(&["blame", &number, "--for", time, "--json"]);
        let look = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        until("it looks", || probe::count() > before);
        // Past the start of the counting, which nothing shows.
        std::thread::sleep(Duration::from_millis(500));
        let stopped: Vec<u32> = [(of_target, hog.id()), (of_blame, look.id())]
            .iter()
            .filter(|one| one.0)
            .map(|one| one.1)
            .collect();
        let around = Instant::now();
        assert!(stopped.iter().all(|pid| signal(*pid, Signal::STOP)));
        until("they are stopped", || stopped.iter().all(|pid| stopped_by(*pid)));
        let within = Instant::now();
        std::thread::sleep(Duration::from_secs(gap_s));
        let within = within.elapsed().as_secs_f64();
        assert!(stopped.iter().all(|pid| signal(*pid, Signal::CONT)));
        let around = around.elapsed().as_secs_f64();
        let report = json(&text(&look.wait_with_output().unwrap().stdout));
        let seconds = figure(&report, "seconds");
        let idle = seconds - figure(&report, "run_s") - figure(&report, "wait_ms") / 1e3;
        println!(
            "{test}: target {of_target}, blame {of_blame}: {seconds:.3} s, neither running nor waiting for \
             {idle:.4} s, stopped for {within:.4} to {around:.4} s"
        );
        let (least, most) = if of_target { (within, around) } else { (0.0, 0.0) };
        let apart = APART * seconds;
        assert!((least - apart..=most + apart).contains(&idle), "{report}");
        assert!(!of_blame || seconds > within, "{report}");
        until("its probe is gone", || probe::count() <= before);
    }
    hog.kill().unwrap();
    hog.wait().unwrap();
}

/// The look's clock is the kernel's monotonic one: a time of day that jumps, and a time namespace, change nothing.
// promise 31
#[test]
fn clocks_that_jump() {
    /// A year, in seconds.
    const JUMP: i64 = 31_536_000;
    let test = "clocks_that_jump";
    let _alone = alone();
    if probes(test).is_none() {
        return;
    }
    let program = Program::new("bc");
    let mut hog = mortal("sh").args(["-c", HOG]).spawn().unwrap();
    let (number, metrics) = (hog.id().to_string(), program.path("metrics"));
    let jump = program.path("seconds");
    let library = library(test, program.dir.path());
    std::fs::write(&jump, "0").unwrap();
    let offset = ["unshare", "--time", "--fork", "--monotonic", "1000000", "--boottime", "1000000"];
    for (kind, prefix) in [("time of day", vec!["env"]), ("namespace", offset.to_vec())] {
        let mut command = mortal(prefix[0]);
        command.args(&prefix[1..]).arg(env!("CARGO_BIN_EXE_commensal"));
        command.args(["blame", &number, "--for", "7s", "--json", "--prometheus"]).arg(&metrics);
        if let Some(library) = library.as_ref().filter(|_| kind == "time of day") {
            command.env("LD_PRELOAD", library).env("COMMENSAL_TEST_JUMP", &jump);
        }
        let mut look = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut live = None;
        for seconds in [JUMP, -JUMP].into_iter().cycle() {
            std::fs::write(&jump, seconds.to_string()).unwrap();
            std::thread::sleep(Duration::from_millis(100));
            // What is written first is read while the probe counts.
            live = live.or_else(|| std::fs::read_to_string(&metrics).ok().filter(|text| !text.is_empty()));
            if look.try_wait().unwrap().is_some() {
                break;
            }
        }
        let output = look.wait_with_output().unwrap();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        if kind == "namespace" && err.starts_with("unshare:") {
            println!("skipped: {test}: {}", err.trim());
            continue;
        }
        let report = json(&out);
        println!(
            "{test}: {kind}: {:.3} s, {:.5} of it unexplained",
            figure(&report, "seconds"),
            unexplained(&report)
        );
        assert!(
            (6.9..60.0).contains(&figure(&report, "seconds")) && unexplained(&report) < APART,
            "{report}"
        );
        let live = live.unwrap_or_else(|| panic!("no metrics: {err}"));
        let seconds = live.lines().filter(|line| line.contains("_seconds_total{"));
        let most =
            seconds.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).fold(0.0, f64::max);
        // Of each CPU it is at most the length of the look, and not that of the jump.
        assert!(most > 0.0 && most < 1_000.0, "{most}: {live}");
        std::fs::remove_file(&metrics).unwrap();
    }
    hog.kill().unwrap();
    hog.wait().unwrap();
}
