//! `status`, `explain` and `top` of the program, against an agent's control socket in this process.

use crate::support::{Program, text};
use commensal_agent::control::{Control, SOCKET, commands};
use commensal_agent::explain::Explained;
use commensal_agent::fixture;
use commensal_agent::publish::Published;
use commensal_agent::snapshot::Snapshot;
use commensal_host::{LinuxHost, Waker};
use std::sync::Arc;

/// A control socket in the program's state directory, which shows `snapshot`.
pub(crate) fn agent(program: &Program, snapshot: Snapshot) -> Control {
    std::fs::create_dir_all(program.state()).unwrap();
    let published = Arc::new(Published::new());
    published.publish(Arc::new(snapshot));
    let socket = program.state().join(SOCKET);
    Control::start(&mut LinuxHost::new(), &socket, None, None, published, commands(Waker::new().unwrap()).0)
        .unwrap()
}

#[test]
fn the_verbs_show_what_the_agent_says() {
    let program = Program::new("seeing");
    let agent = agent(&program, fixture::snapshot());
    // Not all that was asked for is in force.
    let (out, err) = program.expect(1, &["status"]);
    assert!(out.contains("generation 3") && out.contains("problems") && err.is_empty(), "{out}{err}");
    let (out, _) = program.expect(1, &["status", "--json"]);
    assert_eq!(serde_json::from_str::<Snapshot>(&out).unwrap(), fixture::snapshot());
    let (out, _) = program.expect(0, &["explain", "etl"]);
    assert!(out.contains("min(8 CPUs * 80 % / 100 - 2.2 CPUs - 0.11 CPUs, 3 CPUs + 1 CPUs)"), "{out}");
    let (out, _) = program.expect(0, &["explain", "etl", "--json"]);
    assert_eq!(serde_json::from_str::<Explained>(&out).unwrap().group, "etl");
    let (_, err) = program.expect(2, &["explain", "elt"]);
    assert!(err.contains("no group is called \"elt\"") && err.contains("web, etl, report"), "{err}");
    program.expect(2, &["explain", "../snapshot"]);
    // A pipe gets text, with and without being asked.
    for args in [&["top", "--once"] as &[&str], &["top"]] {
        let (out, _) = program.expect(0, args);
        assert!(out.contains("GROUP") && out.contains("etl") && !out.contains('\u{1b}'), "{out}");
        assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
    }
    drop(agent);
    let well = Snapshot {
        lease: None,
        unmet: Vec::new(),
        problems: Vec::new(),
        drift: Vec::new(),
        config: Default::default(),
        ..fixture::snapshot()
    };
    let _agent = self::agent(&program, well);
    program.expect(0, &["status"]);
}

// promise 28
#[test]
fn a_plan_shows_what_the_agent_may_write() {
    let program = Program::new("seeing-reach");
    let plan = |agent: &str| {
        let text =
            format!("[agent]\n{agent}\n[group.web]\nclass = \"online\"\n[group.etl]\nclass = \"offline\"\n");
        let groups = program.groups(&text);
        let of = |more: &[&str]| {
            let output = program.run(&[&["plan", "-c", groups.to_str().unwrap()], more].concat());
            self::text(&output.stdout)
        };
        (of(&[]), of(&["--json"]))
    };
    let (text, json) = plan("headroom = \"quota\"");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let rows = json["agent"].as_array().unwrap();
    if rows.is_empty() {
        println!("skipped: this machine has no cgroup with the cpu controller");
        return;
    }
    let quota = rows.iter().find(|row| row["controller"] == "suppress").unwrap();
    assert!(quota["to"].as_f64() > quota["from"].as_f64() && quota["group"] == "etl", "{quota}");
    assert!(text.contains("while `commensal agent` runs, it may also write"), "{text}");
    assert!(text.contains("`[agent] headroom = \"off\"` turns it off"), "{text}");
    let (text, _) = plan("headroom = \"off\"");
    assert!(!text.contains("suppress"), "{text}");
}

// promise 28
#[test]
fn without_an_agent_the_way_out_is_told() {
    let program = Program::new("seeing-none");
    for args in [&["status"] as &[&str], &["explain", "etl"], &["top"], &["top", "--once"]] {
        let (out, err) = program.expect(2, args);
        assert!(
            out.is_empty() && err.contains("no agent answers") && err.contains(" agent -c "),
            "{out}{err}"
        );
        assert!(!err.contains("according to"), "{err}");
    }
    // A dead one's socket is no agent.
    drop(agent(&program, fixture::snapshot()));
    let (_, err) = program.expect(2, &["status"]);
    assert!(err.contains("no agent answers") && err.contains("nothing is on record"), "{err}");
}

/// What is a problem, but leaves everything in force, and what is not in force without being a problem.
#[test]
fn a_check_fails_only_for_what_is_not_in_force() {
    let well = || Snapshot {
        lease: None,
        unmet: Vec::new(),
        problems: Vec::new(),
        drift: Vec::new(),
        config: Default::default(),
        ..fixture::snapshot()
    };
    let with = |change: &dyn Fn(&mut Snapshot)| {
        let mut snapshot = well();
        change(&mut snapshot);
        snapshot
    };
    let drift = |back: bool| {
        let mut drift = fixture::snapshot().drift.remove(0);
        drift.back = back;
        vec![drift]
    };
    let lease = commensal_agent::snapshot::Lease { time_ms: 3_000, guard_pid: None };
    // The snapshot, the status of `status` and of `status --check`, and what the check says.
    let cases = [
        (well(), 0, 0, "everything requested is in force"),
        (with(&|one| one.problems = vec!["the audit log is full".to_owned()]), 1, 0, "everything"),
        (with(&|one| one.lease = Some(lease.clone())), 1, 0, "everything"),
        (with(&|one| one.drift = drift(true)), 0, 0, "everything"),
        (with(&|one| one.drift = drift(false)), 1, 1, "cpu.shares: 2 wanted, 1024 found"),
        (with(&|one| one.unmet = fixture::snapshot().unmet), 1, 1, "io.read 50 MiB/s"),
        (with(&|one| one.paused = true), 1, 1, "paused"),
        (with(&|one| one.config = fixture::snapshot().config), 1, 1, "cpu.mxa"),
        (
            with(&|one| {
                (one.problems, one.failed) = (vec!["refused".to_owned()], vec!["refused".to_owned()])
            }),
            1,
            1,
            "refused",
        ),
    ];
    for (snapshot, status, check, says) in cases {
        let program = Program::new("seeing-check");
        let _agent = agent(&program, snapshot);
        program.expect(status, &["status"]);
        let (out, err) = program.expect(check, &["status", "--check"]);
        assert!(out.contains(says) && err.is_empty(), "{says}: {out}{err}");
        // A rejected file has a line for each mistake below the sentence.
        let mistakes = usize::from(says == "cpu.mxa");
        assert_eq!(out.lines().count(), 1 + mistakes, "{out}");
    }
}
