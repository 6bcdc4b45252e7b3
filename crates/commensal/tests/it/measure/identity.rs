//! A process is the one that was named: by its number in the namespace of whoever names it, across exec, and never another process
//! that gets the number later.

use crate::support::{Program, text};
use commensal_blame::{BlameError, Scope, WaitProbe, probe};
use commensal_host::LinuxHost;
use commensal_testkit::{alone, ended, until};
use serde_json::Value;
use std::process::{Command, Stdio};

/// Runs a script in a PID namespace of its own, with the program as `$0`; gives its output. Once the program has loaded its probe, there
/// is a file `looks`.
fn in_a_namespace(test: &str, program: &Program, script: &str) -> Option<String> {
    let before = probe::count();
    match WaitProbe::attach(&LinuxHost::new(), &Scope::default()) {
        Ok(probe) => drop(probe),
        Err(why @ (BlameError::TooOld(_) | BlameError::NoBtf | BlameError::Forbidden(_))) => {
            println!("skipped: {test}: {why}");
            return None;
        }
        Err(error) => panic!("{error}"),
    }
    // The kernel unloads its programs a little later.
    until("this test's own probe is gone", || probe::count() <= before);
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script]);
    command.arg(env!("CARGO_BIN_EXE_commensal")).current_dir(program.dir.path());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    until("it looks", || probe::count() > before || ended(pid));
    std::fs::write(program.path("looks"), "").unwrap();
    let output = child.wait_with_output().unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    if err.starts_with("unshare:") {
        println!("skipped: {test}: {}", err.trim());
        return None;
    }
    assert!(output.status.success(), "{out}{err}");
    Some(out)
}

fn json(out: &str) -> Value {
    serde_json::from_str(out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

// promises 13, 31
#[test]
fn numbers_are_those_of_the_namespace() {
    let _alone = alone();
    let program = Program::new("bi");
    // Its number is small, and on the outside another process has it.
    let script = "sh -c 'while :; do :; done' & $0 blame $! --against 1 --for 1s --json";
    let Some(out) = in_a_namespace("numbers_are_those_of_the_namespace", &program, script) else { return };
    let report = json(&out);
    let name = report["subjects"][0].as_str().unwrap();
    assert!(name.starts_with("sh ("), "{out}");
    assert!(report["run_s"].as_f64().unwrap() > 0.1, "{out}");
}

/// The process is killed in the look, and another one gets its number. The look goes on, because of a second target.
// promises 13, 31
#[test]
fn who_gets_the_number_later_is_nobody() {
    let _alone = alone();
    let program = Program::new("br");
    let script = "
        sleep 600 & stays=$!
        sh -c 'while :; do :; done' & first=$!
        $0 blame $first $stays --for 5s --json >report 2>err & look=$!
        until [ -e looks ]; do sleep 0.1; done
        sleep 1
        kill -9 $first; wait $first
        while :; do
            echo $((first - 1)) >/proc/sys/kernel/ns_last_pid
            sh -c 'while :; do :; done' & [ $! = $first ] && break
            kill -9 $!; wait $!
        done
        wait $look || exit
        cat report
        cut -d' ' -f14 /proc/$first/stat";
    let Some(out) = in_a_namespace("who_gets_the_number_later_is_nobody", &program, script) else { return };
    let (report, stranger) = out.trim_end().rsplit_once('\n').unwrap();
    let report = json(report);
    let ended = &report["ended"][0];
    let after = ended["after_s"].as_f64().unwrap_or_else(|| panic!("{out}"));
    assert_eq!(ended["name"], report["subjects"][0]);
    let ran = report["by_subject"][0]["run_s"].as_f64().unwrap();
    let stranger = stranger.trim().parse::<f64>().unwrap() / 100.0;
    println!("it ran for {ran} s and ended after {after} s; who got its number ran for {stranger} s");
    // One thread has no more CPU time than time.
    assert!(ran > 0.0 && ran <= after * 1.01 + 0.01, "{out}");
    assert!(stranger > 0.5, "the stranger had no CPU: {out}");
}
