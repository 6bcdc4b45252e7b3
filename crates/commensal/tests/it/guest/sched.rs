//! `commensal sched` in a guest whose kernel has sched_ext: the scheduler and one of others from beginning to end.

use crate::experiments::{self, HOG, LOAD, SERVICE, SHORT, VERDICTS};
use crate::sched::STATE;
use crate::support::Program;
use commensal_testkit::until;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The program that has the scheduler, in a guest of the scheduler's.
fn loader(test: &str) -> Option<PathBuf> {
    if !std::env::var("COMMENSAL_VM").is_ok_and(|layout| layout.starts_with("sched"))
        || !Path::new(STATE).exists()
    {
        println!(
            "skipped: {test}: it loads a scheduler: only in a guest of its own (cargo xtask vm --layout sched)"
        );
        return None;
    }
    let beside = Path::new(env!("CARGO_BIN_EXE_commensal")).with_file_name("commensal-sched");
    if !beside.exists() {
        println!("skipped: {test}: commensal-sched was not built");
        return None;
    }
    Some(beside)
}

/// Unloads the scheduler when it is dropped, so that a test that fails does not make the next ones fail.
struct Unload<'a>(&'a Program);

impl Drop for Unload<'_> {
    fn drop(&mut self) {
        self.0.run(&["sched", "unload"]);
    }
}

fn state() -> String {
    std::fs::read_to_string(STATE).unwrap().trim().to_owned()
}

fn status(program: &Program, expect: i32) -> Value {
    serde_json::from_str(&program.expect(expect, &["sched", "status", "--json", "--for", "0s"]).0).unwrap()
}

// promise 52
#[test]
fn it_is_loaded_looked_at_and_unloaded_twice() {
    if loader("it_is_loaded_looked_at_and_unloaded_twice").is_none() {
        return;
    }
    let program = Program::new("schedown");
    let _unload = Unload(&program);
    let orders = program.path("orders.json");
    std::fs::write(
        &orders,
        r#"{"do":"orders","groups":[{"cgroup":"/sys/fs/cgroup/nobody","class":"offline"}]}"#,
    )
    .unwrap();
    let orders = orders.to_str().unwrap();
    let (out, _) = program.expect(0, &["sched", "load", "--orders", orders, "--hold-off-us", "40"]);
    assert!(out.contains("1 offline group with "), "{out}");
    assert_eq!(state(), "enabled");
    let (_, err) = program.expect(2, &["sched", "load"]);
    assert!(err.contains("--replace replaces it"), "{err}");
    let (_, err) = program.expect(2, &["sched", "load", "--with", "sleep", "9"]);
    assert!(err.contains("run `commensal sched unload` first"), "{err}");
    let first = status(&program, 0);
    program.expect(0, &["sched", "load", "--orders", orders, "--replace"]);
    let second = status(&program, 0);
    assert_ne!(first["scheduler"]["pid"], second["scheduler"]["pid"]);
    let (out, _) = program.expect(0, &["sched", "status", "--for", "100ms"]);
    assert!(out.contains("sched_ext is enabled, scheduler commensal"), "{out}");
    // Its process is killed: the kernel takes the scheduler off, and nobody answers.
    let pid = second["scheduler"]["pid"].to_string();
    assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    until("the kernel has let go", || state() == "disabled");
    // It had no threads, so nothing is on record of it.
    assert!(status(&program, 2)["killed"].is_null());
    program.expect(0, &["sched", "unload"]);
    program.expect(0, &["sched", "load", "--orders", orders]);
    let (out, _) = program.expect(0, &["sched", "unload"]);
    assert!(out.contains("unloaded"), "{out}");
    assert_eq!(state(), "disabled");
    let (out, _) = program.expect(0, &["sched", "unload"]);
    assert!(out.contains("no scheduler was loaded"), "{out}");
}

/// Groups that are not all they ask for: it is loaded, with status 1 and a sentence; groups that cannot be planned: it is not.
#[test]
fn what_its_groups_lack_is_status_1_and_restore_leaves_it_loaded() {
    if loader("what_its_groups_lack_is_status_1_and_restore_leaves_it_loaded").is_none() {
        return;
    }
    let program = Program::new("schedgroups");
    let _unload = Unload(&program);
    let load = |expect: i32, groups: &str| {
        let groups = program.groups(groups);
        program.expect(expect, &["sched", "load", "-c", groups.to_str().unwrap()])
    };
    let two = "[group.web]\nclass = \"online\"\n[group.etl]\nclass = \"offline\"\n";
    let (_, err) = load(2, &format!("{two}cpu.set = \"0-999\"\n"));
    assert!(err.contains("nothing was changed") && err.contains("cpu.set"), "{err}");
    assert_eq!(state(), "disabled");
    let (out, err) = load(1, &format!("{two}memory = {{ max = \"64 MiB\", on-exceed = \"freeze\" }}\n"));
    assert!(
        out.contains("unmet") && err.contains("the scheduler is loaded, but some settings"),
        "{out}{err}"
    );
    assert_eq!(state(), "enabled");
    for first in [true, false] {
        let (out, _) = program.expect(0, &["restore"]);
        assert!(out.contains("stays loaded; `commensal sched unload` unloads it"), "{out}");
        assert_eq!(out.contains("no orders for"), first, "{out}");
    }
    assert_eq!(status(&program, 0)["scheduler"]["mode"], "running");
    let groups = program.groups(two);
    program.expect(0, &["apply", "-c", groups.to_str().unwrap()]);
    assert_eq!(status(&program, 0)["scheduler"]["groups"].as_array().unwrap().len(), 1);
    program.expect(0, &["sched", "unload"]);
    assert_eq!(state(), "disabled");
}

/// `sched load --with` in the foreground, which has said that it is loaded; killed when it is dropped.
struct With {
    child: Child,
    /// Process of the scheduler's program.
    program: String,
}

impl With {
    fn load(program: &Program, args: &[&str]) -> With {
        let mut command = program.command(args);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut with = With { child: child.unwrap(), program: String::new() };
        // What the program says comes this way as well.
        let lines = BufReader::new(with.child.stdout.as_mut().unwrap()).lines();
        let line = lines.map(Result::unwrap).find(|line| line.starts_with("loaded ")).unwrap();
        let words: Vec<&str> = line.split([' ', ';']).collect();
        let at = words.iter().position(|word| *word == "process").unwrap();
        with.program = words[at + 1].to_owned();
        assert!(line.contains("Ctrl-C here") && state() == "enabled", "{line}");
        with
    }

    fn signal(&self, signal: &str, pid: &str) {
        assert!(Command::new("kill").args([signal, pid]).status().unwrap().success());
    }

    /// Its exit status and what it has said; nothing is loaded, and no process stays.
    fn ends(&mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        until("the kernel has let go", || state() == "disabled");
        until("its program has ended", || !Path::new(&format!("/proc/{}", self.program)).exists());
        (status.code(), said)
    }
}

impl Drop for With {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// promise 52
#[test]
fn one_of_others_is_loaded_in_the_foreground_and_nothing_of_it_stays() {
    let test = "one_of_others_is_loaded_in_the_foreground_and_nothing_of_it_stays";
    let Some(loader) = loader(test) else { return };
    let loader = loader.to_str().unwrap();
    let program = Program::new("schedwith");
    // Any program that loads one will do; this one has another state directory, and is somebody else's by that.
    let elsewhere = program.path("elsewhere");
    let load = ["sched", "load", "--with", loader, "--state-dir", elsewhere.to_str().unwrap(), "load"];
    for signal in ["-INT", "-TERM"] {
        let mut with = With::load(&program, &load);
        assert_eq!(status(&program, 2)["kernel"]["state"], "enabled");
        // Neither another nor commensal's own is loaded beside it.
        for args in [load.as_slice(), &["sched", "load"]] {
            let (_, err) = program.expect(2, args);
            assert!(err.contains("is enabled"), "{err}");
        }
        program.expect(0, &["sched", "unload"]);
        assert_eq!(state(), "enabled", "it is not of this state directory");
        with.signal(signal, &with.child.id().to_string());
        assert_eq!(with.ends().0, Some(0));
    }
    let mut with = With::load(&program, &load);
    with.signal("-9", &with.program);
    let (status, said) = with.ends();
    assert!(status == Some(1) && said.contains("its program ended by signal 9"), "{status:?} {said}");
    let mut with = With::load(&program, &load);
    with.signal("-9", &with.child.id().to_string());
    assert_eq!(with.ends().0, None, "its program goes with it");

    let (out, err) = program.expect(2, &["sched", "load", "--with", "sh", "-c", "echo not today; exit 4"]);
    assert!(err.contains("exited with status 4") && out.contains("not today"), "{out}{err}");
    let (_, err) = program.expect(2, &["sched", "load", "--with", "sleep", "600"]);
    assert!(err.contains("had loaded no scheduler after"), "{err}");
    let (_, err) = program.expect(2, &["sched", "load", "--with", "/nowhere"]);
    assert!(err.contains("ENOENT"), "{err}");
    // Ctrl-C while it is waited for.
    let interrupts = ["sched", "load", "--with", "sh", "-c", "kill -INT $PPID; exec sleep 600"];
    let (_, err) = program.expect(2, &interrupts);
    assert!(err.contains("was stopped on request"), "{err}");
    assert_eq!(state(), "disabled");
}

/// A scheduler that comes and goes with its arm, one that does not come, and one that is gone before the block is over.
// promise 37
#[test]
fn the_lab_has_arms_of_other_schedulers() {
    let Some(loader) = loader("the_lab_has_arms_of_other_schedulers") else { return };
    let program = Program::new("schedarm");
    let script = |name: &str, text: &str| {
        let path = program.path(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        assert!(Command::new("chmod").arg("+x").arg(&path).status().unwrap().success());
        path
    };
    let elsewhere = program.path("elsewhere");
    let load = format!("{} --state-dir {} load", loader.display(), elsewhere.display());
    let dies = script("dies", "echo no such thing; exit 3");
    // It goes once the block has begun, and leaves nothing in its place.
    let leaves = script(
        "leaves",
        &format!(
            "{load} & wait_for=$!; until grep -q enabled {STATE}; do sleep 0.1; done; sleep 0.3; kill $wait_for; wait; \
             exec sleep 600"
        ),
    );
    let arm = |command: &str| format!("isolated:scheduler={command}");
    let arms = [arm(&load), arm(dies.to_str().unwrap()), arm(leaves.to_str().unwrap())];
    let names: Vec<String> = arms.iter().map(|arm| format!("\"{arm}\"")).collect();
    let text = format!(
        "arms = [\"baseline\", \"baseline2\", \"isolated:sched_ext\", {}]\n{SHORT}{SERVICE}{LOAD}{HOG}",
        names.join(", ")
    );
    let (status, run, said) = experiments::run(&program, &text, &["--no-blame"]);
    assert!(VERDICTS.contains(&status), "{status} {said}");
    assert!(said.contains("isolated:sched_ext is omitted: not loaded; `commensal sched load`"), "{said}");
    let run = run.unwrap();
    let reason = |arm: &str| {
        let block = run.blocks.iter().find(|block| block.arm == arm).unwrap();
        block.notes.iter().find(|note| note.contains("scheduler of the arm")).cloned().unwrap_or_default()
    };
    assert_eq!(reason(&arms[0]), "");
    let policy = run.arms.iter().find(|arm| arm.name == arms[0]).unwrap().policy.clone().unwrap();
    assert_eq!(policy.applied.len(), 1, "nothing else: {policy:?}");
    assert!(policy.applied[0].holds() && policy.applied[0].file == "sched_ext state", "{policy:?}");
    assert!(reason(&arms[1]).contains("exited with status 3"), "{}", reason(&arms[1]));
    assert!(reason(&arms[1]).contains("its last output: no such thing"), "{}", reason(&arms[1]));
    assert!(reason(&arms[2]).contains("the kernel unloaded it"), "{}", reason(&arms[2]));
    assert!(run.blocks.iter().filter(|block| !block.notes.is_empty()).all(|block| !block.valid));
    assert_eq!(state(), "disabled");

    // While one is loaded there is no room for another.
    let with: Vec<&str> = ["sched", "load", "--with"].into_iter().chain(load.split(' ')).collect();
    let mut with = With::load(&program, &with);
    let (_, _, said) = experiments::run(&program, &text, &["--no-blame"]);
    assert!(said.matches("one sched_ext scheduler at a time").count() >= 3, "{said}");
    with.signal("-TERM", &with.child.id().to_string());
    assert_eq!(with.ends().0, Some(0));
}
