//! Core scheduling for real: every thread of an expelled group has one cookie, also those that appear meanwhile, and
//! nobody else has it. Runs where the kernel has core scheduling and a core has two threads; tells why not elsewhere.

use crate::support::{Program, can_write_cgroups, cgroups_named, cpu_mount};
use commensal_host::{Cookie, Host, LinuxHost};
use commensal_testkit::{Signal, line, members, removed_within, signal};
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

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
    let pid = line(child.stdout.as_mut().unwrap()).parse().unwrap();
    (child, pid)
}

fn finish(mut child: Child) {
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    child.wait().unwrap();
}

// promise 7
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
// promise 7
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
    let script = format!(
        "echo $$ > {}/cgroup.procs; echo ready; n=0; while [ $n -lt {CHILDREN} ]; do sleep 30 & n=$((n+1)); done; echo all; read -r _",
        theirs.display()
    );
    let mut shell = Command::new("sh")
        .args(["-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    assert_eq!(line(shell.stdout.as_mut().unwrap()), "ready");
    let file = program.groups(&format!("{ETL}takeover = true\nmatch = [{{ cgroup = \"/{name}\" }}]\n"));
    let (out, _) = program.expect(0, &["apply", "-c", file.to_str().unwrap()]);
    assert!(out.contains("one for all its threads"), "{out}");
    assert_eq!(line(shell.stdout.as_mut().unwrap()), "all");
    let cookies: Vec<u64> = members(&theirs).into_iter().map(cookie).collect();
    let restored = program.expect(0, &["restore"]);
    let after: Vec<u64> = members(&theirs).into_iter().map(cookie).collect();
    for pid in members(&theirs) {
        signal(pid, Signal::KILL);
    }
    shell.wait().unwrap();
    removed_within(Duration::from_secs(4), &theirs);
    assert!(cookies.len() > CHILDREN as usize, "{} processes", cookies.len());
    assert!(cookies[0] != 0 && cookies.iter().all(|cookie| *cookie == cookies[0]), "{cookies:?}");
    assert!(after.iter().all(|cookie| *cookie == 0), "{restored:?} {after:?}");
}
