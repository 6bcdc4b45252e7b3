//! Core scheduling for real: every thread of an expelled group has one cookie, also those that appear meanwhile, and
//! nobody else has it. Runs where the kernel has core scheduling and a core has two threads; tells why not elsewhere.

use crate::support::{Program, can_write_cgroups, cgroups_named, cpu_mount};
use commensal_host::{Cookie, Host, LinuxHost};
use commensal_testkit::{Signal, signal};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const ETL: &str = "[group.etl]\nclass = \"offline\"\nexpel = true\n";

/// How many short-lived children a shell starts while cookies are handed out.
const CHILDREN: u32 = 200;

fn lacks_core_scheduling(test: &str) -> bool {
    match LinuxHost::new().share_cookie(Cookie::New, &[]) {
        Ok(()) => false,
        Err(error) => {
            println!("skipped: expel::{test}: no core scheduling here: {error}");
            true
        }
    }
}

fn cookie(pid: u32) -> u64 {
    LinuxHost::new().cookie(pid).unwrap()
}

/// Starts a command in the group and waits for its first line, its pid.
fn start(program: &Program, config: &str) -> (Child, u32) {
    let script = "echo $$; read -r _";
    let mut command = program.command(&["run", "-g", "etl", "-c", config, "--", "sh", "-c", script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().parse().unwrap())
}

fn finish(mut child: Child) {
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    child.wait().unwrap();
}

// promise 9
#[test]
fn commands_of_a_group_share_a_cookie_that_nobody_else_has() {
    let test = "commands_of_a_group_share_a_cookie_that_nobody_else_has";
    if !can_write_cgroups(test) || lacks_core_scheduling(test) {
        return;
    }
    let program = Program::new("expel");
    let file = program.groups(ETL);
    let (first, one) = start(&program, file.to_str().unwrap());
    let (second, two) = start(&program, file.to_str().unwrap());
    let cookies = [one, two].map(cookie);
    assert!(cookies[0] != 0 && cookies[0] == cookies[1], "{cookies:?}");
    assert_eq!(cookie(std::process::id()), 0);
    finish(first);
    finish(second);
    assert!(cgroups_named(&program.prefix).is_empty());
}

/// A group of somebody else's with a shell that starts children all the time.
// promise 9
#[test]
fn threads_that_appear_meanwhile_have_it_too_and_lose_it_again() {
    let test = "threads_that_appear_meanwhile_have_it_too_and_lose_it_again";
    if !can_write_cgroups(test) || lacks_core_scheduling(test) {
        return;
    }
    let program = Program::new("cookies");
    let name = format!("{}-theirs", program.prefix);
    let theirs = cpu_mount().join(&name);
    std::fs::create_dir(&theirs).unwrap();
    let procs = theirs.join("cgroup.procs");
    let script = format!(
        "echo $$ > {}; echo ready; n=0; while [ $n -lt {CHILDREN} ]; do sleep 30 & n=$((n+1)); done; echo all; read -r _",
        procs.display()
    );
    let mut shell = Command::new("sh")
        .args(["-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let file = program.groups(&format!("{ETL}takeover = true\nmatch = [{{ cgroup = \"/{name}\" }}]\n"));
    let (out, _) = program.expect(0, &["apply", "-c", file.to_str().unwrap()]);
    assert!(out.contains("one for all its threads"), "{out}");
    assert_eq!(lines.next().unwrap().unwrap(), "all");
    let pids = || -> Vec<u32> {
        let text = std::fs::read_to_string(&procs).unwrap();
        text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    };
    let cookies: Vec<u64> = pids().into_iter().map(cookie).collect();
    let restored = program.expect(0, &["restore"]);
    let after: Vec<u64> = pids().into_iter().map(cookie).collect();
    for pid in pids() {
        signal(pid, Signal::KILL);
    }
    shell.wait().unwrap();
    remove(&theirs);
    assert!(cookies.len() > CHILDREN as usize, "{} processes", cookies.len());
    assert!(cookies[0] != 0 && cookies.iter().all(|cookie| *cookie == cookies[0]), "{cookies:?}");
    assert!(after.iter().all(|cookie| *cookie == 0), "{restored:?} {after:?}");
}

/// The kernel lets go of dead processes a moment after their parent heard of it.
fn remove(group: &Path) {
    for _ in 0..200 {
        if std::fs::remove_dir(group).is_ok() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
