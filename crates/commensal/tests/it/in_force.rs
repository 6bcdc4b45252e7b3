//! `status` and `status --check` tell what is in force, by reading it back, in every state in which the groups can be.

use crate::agent::{Agent, ETL, Theirs, cleaned, limited, own, set_quota};
use crate::support::{Program, can_write_cgroups, text};
use commensal_testkit::{Signal, told, until};
use std::cell::RefCell;
use std::path::PathBuf;
use std::process::Command;

/// The exit status of a check, and what it says on both outputs.
fn check(program: &Program) -> (Option<i32>, String) {
    let output = program.run(&["status", "--check"]);
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

pub fn is(program: &Program, what: &str, status: i32, says: &str) {
    let last = RefCell::new((None, String::new()));
    until(told(|| format!("{what}: {status}, {says:?}; at last {:?}", last.borrow())), || {
        let now = check(program);
        let done = now.0 == Some(status) && now.1.contains(says);
        *last.borrow_mut() = now;
        done
    });
    // `status` agrees wherever there is something to show.
    let output = program.run(&["status"]);
    let (out, code) = (text(&output.stdout), output.status.code());
    match status {
        0 => assert!(code.is_some_and(|code| code < 2) && !out.contains("not in force"), "{what}: {out}"),
        _ => assert_eq!(code, Some(status), "{what}: {out}"),
    }
}

/// Groups with a limit of an offline group and one of an online group, which the safe state lifts.
fn groups(program: &Program, web: &Theirs) -> PathBuf {
    program.groups(&format!(
        "{ETL}[group.web]\nclass = \"online\"\npids.max = 500\nmatch = [{{ cgroup = \"/{}\" }}]\n",
        web.name
    ))
}

#[test]
fn without_an_agent_it_is_read_back() {
    let test = "without_an_agent_it_is_read_back";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("readback");
    let web = Theirs::new(&program, "web");
    let config = groups(&program, &web);
    let config = config.to_str().unwrap();
    is(&program, "nothing was applied", 2, "nothing is on record");
    let (out, _) = program.expect(0, &["apply", "-c", config]);
    let undo = format!(
        "`commensal --state-dir {} --cgroup-prefix {} --beside-others restore` undoes it",
        program.state().display(),
        program.prefix
    );
    assert!(out.contains("in force 2 groups, everything requested") && out.contains(&undo), "{out}");
    is(&program, "applied", 0, "everything requested is in force");
    let (out, _) = program.expect(0, &["status"]);
    for part in [
        "no agent runs",
        "agent` starts one",
        "according to machine.journal",
        "cpu.max 0.2 CPUs",
        "pids.max 500",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    set_quota(&own(&program, "etl"), false);
    is(&program, "drifted", 1, "wanted, no limit found (etl: cpu.max = 0.2 CPUs");
    // Other groups than those that were applied.
    let more = program.path("more.toml");
    std::fs::write(&more, format!("{ETL}[group.more]\nclass = \"offline\"\n")).unwrap();
    let (out, _) = program.expect(1, &["status", "--check", "-c", more.to_str().unwrap()]);
    assert!(out.contains("/more does not exist"), "{out}");
    program.expect(0, &["apply", "-c", config]);
    is(&program, "applied again", 0, "everything");
    program.expect(0, &["restore"]);
    is(&program, "restored", 2, "nothing is on record");
    drop(web);
    cleaned(&program);
}

/// However an agent ends, what it leaves is told: a limit on an online group that the safe state has lifted is not in force.
#[test]
fn after_an_agent_what_it_left_is_told() {
    let test = "after_an_agent_what_it_left_is_told";
    if !can_write_cgroups(test) {
        return;
    }
    for (name, on_exit, signal, status, says) in [
        ("keep", "keep", Signal::TERM, 0, "everything"),
        ("safe", "safe", Signal::TERM, 1, "pids.max: 500 wanted, no limit found"),
        ("gone", "restore", Signal::TERM, 2, "nothing is on record"),
        ("dies", "keep", Signal::KILL, 1, "pids.max: 500 wanted, no limit found"),
    ] {
        let program = Program::new(name);
        let web = Theirs::new(&program, "web");
        let config = groups(&program, &web);
        let agent = Agent::start(&program, &config, &["--lease", "60s", "--on-exit", on_exit]);
        is(&program, "an agent runs", 0, "everything");
        until("the groups are saved", || program.state().join("agent-groups.json").exists());
        agent.end(signal);
        is(&program, name, status, says);
        if status == 1 {
            let (out, _) = program.expect(1, &["status"]);
            assert!(out.contains("safe state last set"), "{out}");
        }
        drop(web);
        cleaned(&program);
    }
}

#[test]
fn beside_an_agent_its_word_counts() {
    let test = "beside_an_agent_its_word_counts";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("word");
    let web = Theirs::new(&program, "web");
    let config = groups(&program, &web);
    let mut command = Agent::command(&program, &config, &["--lease", "60s"]);
    command.env("DOCKER_HOST", "unix:///nonexistent.sock");
    let agent = Agent::spawn(command);
    is(&program, "in force", 0, "everything");
    // Somebody writes again and again, until the agent waits before it answers.
    until("it is told that the limit is not in force", || {
        set_quota(&own(&program, "etl"), false);
        let (status, says) = check(&program);
        status == Some(1) && says.contains("wanted")
    });
    let (out, _) = program.expect(1, &["status"]);
    assert!(out.contains("NOT in force") && out.contains("also written by other programs"), "{out}");
    is(&program, "in force again", 0, "everything");
    program.expect(0, &["agent", "pause"]);
    is(&program, "paused", 1, "the agent is paused");
    program.expect(0, &["agent", "resume"]);
    is(&program, "resumed", 0, "everything");
    // A group of containers, and no engine.
    let text = std::fs::read_to_string(&config).unwrap();
    let more = "[group.batch]\nclass = \"offline\"\nmatch = [{ docker-name = \"batch\" }]\n";
    std::fs::write(&config, format!("{text}{more}")).unwrap();
    is(&program, "no engine", 1, "nonexistent.sock");
    std::fs::write(&config, &text).unwrap();
    is(&program, "no container is wanted", 0, "everything");
    std::fs::write(&config, format!("{text}nonsense = 1\n")).unwrap();
    is(&program, "a file with a mistake", 1, "nonsense");
    std::fs::write(&config, &text).unwrap();
    is(&program, "mended", 0, "everything");
    agent.end(Signal::TERM);
    drop(web);
    cleaned(&program);
}

/// An agent whose user may watch few directories reads values back instead, and says what to raise.
// promise 21
#[test]
fn without_watches_values_are_read_back_and_the_agent_says_so() {
    let test = "without_watches_values_are_read_back_and_the_agent_says_so";
    if !can_write_cgroups(test) {
        return;
    }
    // A user namespace has a limit of its own (user_namespaces(7)).
    let limit = |count: u32| format!("echo {count} > /proc/sys/user/max_inotify_watches");
    let unshare = |script: String| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "sh", "-c", &script, "sh"]);
        command
    };
    if !unshare(limit(2)).status().is_ok_and(|status| status.success()) {
        println!("skipped: {test}: there are no user namespaces with limits");
        return;
    }
    let program = Program::new("watches");
    let web = Theirs::new(&program, "web");
    let config = groups(&program, &web);
    let agent = Agent::command(&program, &config, &["--lease", "60s", "--on-exit", "restore"]);
    let mut command = unshare(format!("{} && exec \"$@\"", limit(2)));
    command.arg(agent.get_program()).args(agent.get_args()).current_dir(program.dir.path());
    let agent = Agent::spawn(command);
    let says = |words: &str| text(&program.run(&["status"]).stdout).contains(words);
    for words in
        ["write to settings is seen late", "come and go are seen late", "raise fs.inotify.max_user_watches"]
    {
        until(words, || says(words));
    }
    is(&program, "few watches", 0, "everything");
    set_quota(&own(&program, "etl"), false);
    until("the agent writes the limit again", || limited(&own(&program, "etl")));
    let target = agent.child.id().to_string();
    let raise =
        Command::new("nsenter").args(["--user", "--target", &target, "sh", "-c", &limit(10_000)]).status();
    assert!(raise.unwrap().success());
    until("everything is watched", || !says("max_user_watches"));
    agent.end(Signal::TERM);
    drop(web);
    cleaned(&program);
}
