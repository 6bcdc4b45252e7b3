//! What `commensal blame` says when it cannot find what it is asked for, or cannot load the probe.

use crate::support::{Program, text};
use commensal_host::{Host, LinuxHost};
use commensal_testkit::{ended, until};
use std::path::Path;
use std::process::Command;

// promise 33
#[test]
fn who_is_not_there() {
    let program = Program::new("bn");
    let check = |args: &[&str], wanted: &str| {
        let mut all = vec!["blame", "--for", "10ms"];
        all.extend(args);
        let (_, err) = program.expect(2, &all);
        assert!(err.contains(wanted), "{args:?}: {err}");
    };
    check(&["nosuch.service"], "unit nosuch.service");
    check(&["/no/such"], "no cgroup /no/such");
    check(&["999999999"], "no process 999999999");
    check(&["0123456789ab"], "0123456789ab is not a process, cgroup, unit or container");
    check(&["container:0123456789ab"], "container 0123456789ab");
    check(&["process:nosuchname"], "no process with the name nosuchname");
    check(&["unit:nosuch"], "unit nosuch");
    check(&["group:nosuch"], "groups.d");
    check(&["nosuchgroup"], "nosuchgroup");
    let me = std::process::id().to_string();
    check(&[&me, "--against", &me], "cannot wait for itself");
    check(&[&me, "--check"], "--check needs offline work");
    for bound in ["--blame-below=nan", "--preempt-below=inf", "--blame-below=-1"] {
        check(&[&me, bound], "a finite number, 0 or more");
    }
    check(&[&me, "--top"], "--top needs a terminal");
    check(&[&me, "--svg", "/no/such/folder/x.svg"], "/no/such/folder/x.svg cannot be written");
    check(&[&me, "--svg", "-", "--html", "-"], "only one format can go to standard output");
    check(&[&me, "--json", "--prometheus", "-"], "only one format can go to standard output");
    let groups = program.groups("[group.etl]\nclass = \"offline\"\n");
    check(&["-c", groups.to_str().unwrap()], "no online group");
}

/// A number that stands for no process whose threads can be measured is refused, with the reason.
// promise 31
#[test]
fn numbers_that_are_no_process() {
    let program = Program::new("bq");
    let refuses = |who: &str, wanted: &str| {
        let (_, err) = program.expect(2, &["blame", who, "--for", "10ms"]);
        assert!(err.contains(wanted), "{who}: {err}");
    };
    // PID/task/TID of this test, which is not the first thread.
    let own = std::fs::read_link("/proc/thread-self").unwrap();
    let thread = own.file_name().unwrap().to_str().unwrap();
    refuses(thread, &format!("is a thread of process {}; name the process", std::process::id()));
    let mut zombie = Command::new("true").spawn().unwrap();
    until("it has ended", || ended(zombie.id()));
    refuses(&zombie.id().to_string(), "has ended already");
    zombie.wait().unwrap();
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd") {
        refuses("2", "kthreadd (2) is a kernel thread");
    }
    let (_, err) = program.expect(2, &["blame", &std::process::id().to_string(), "--for", "0s"]);
    assert!(err.contains("it must be above 0"), "{err}");
}

/// In a PID namespace without a /proc of its own, every number would be that of another process.
// promise 31
#[test]
fn numbers_of_another_namespace() {
    let test = "numbers_of_another_namespace";
    if LinuxHost::new().euid() != 0 {
        println!("skipped: {test}: needs root for a PID namespace");
        return;
    }
    let script = format!("{} blame 1 --for 10ms", env!("CARGO_BIN_EXE_commensal"));
    let output = Command::new("unshare").args(["--pid", "--fork", "sh", "-c", &script]).output().unwrap();
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(err.contains("/proc shows the processes of another PID namespace"), "{err}");
}

/// Without BPF there is run delay, and it says why and that it names nobody.
fn falls_back(output: &std::process::Output, why: &str) {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out} {err}");
    assert!(err.contains(why) && err.contains("but not what occupied the CPU"), "{err}");
    assert!(out.contains("on a CPU and"), "{out}");
}

/// Looks for a moment at a process that sleeps; `command` is what the shell is started by.
fn at_a_sleeper(mut command: Command, program: &Path, before: &str) -> std::process::Output {
    let mut sleeper = Command::new("sleep").arg("600").spawn().unwrap();
    let script = format!("{before}{} blame {} --for 200ms", program.display(), sleeper.id());
    let output = command.args(["sh", "-c", &script]).output().unwrap();
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    output
}

// promises 3, 33
#[test]
fn without_root() {
    let test = "without_root";
    if LinuxHost::new().euid() != 0 {
        println!("skipped: {test}: needs root to become somebody else");
        return;
    }
    let program = Program::new("bu");
    let copy = program.reachable();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--clear-groups", "--no-new-privs"]).env("HOME", "/nonexistent");
    falls_back(&at_a_sleeper(command, &copy, ""), "CAP_BPF and CAP_PERFMON");
}

// promise 33
#[test]
fn without_btf() {
    let test = "without_btf";
    if !Path::new("/sys/kernel/btf").exists() || LinuxHost::new().euid() != 0 {
        println!("skipped: {test}: needs root, and a kernel that has BTF to hide");
        return;
    }
    let mut command = Command::new("unshare");
    command.arg("--mount");
    let program = Path::new(env!("CARGO_BIN_EXE_commensal"));
    let output = at_a_sleeper(command, program, "mount -t tmpfs none /sys/kernel/btf && ");
    if text(&output.stderr).contains("mount:") {
        println!("skipped: {test}: nothing can be mounted here: {}", text(&output.stderr).trim());
        return;
    }
    falls_back(&output, "/sys/kernel/btf/vmlinux");
}
