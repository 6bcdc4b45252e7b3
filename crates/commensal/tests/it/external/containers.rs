//! Containers of a real engine as members, by label and name, and through a restart of theirs.

use crate::support::{Program, can_write_cgroups, cpu_mount, text};
use commensal_testkit::{Engine, Signal, cgroup_of, ended, signal, until};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// The container's cgroup of the cpu controller, as the kernel says.
pub fn cgroup(engine: &Engine, id: &str) -> PathBuf {
    let path = cgroup_of(engine.pid(id), "cpu").unwrap();
    cpu_mount().join(path.trim_start_matches('/'))
}

fn weight(group: &Path) -> String {
    let read = |file: &str| std::fs::read_to_string(group.join(file));
    read("cpu.shares").or_else(|_| read("cpu.weight")).unwrap_or_default().trim().to_owned()
}

pub const FOREVER: &str = "trap 'exit 0' TERM; while :; do /bin/busybox sleep 1; done";

// promise 26
#[test]
fn by_label_and_name_and_through_a_restart() {
    let test = "by_label_and_name_and_through_a_restart";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("label");
    let dir = tempfile::tempdir().unwrap();
    let Some(engine) = Engine::start(test, dir.path()) else { return };
    let labelled = engine.run(&["--label", "tier=batch", "--cpu-shares", "700"], FOREVER);
    let named = engine.run(&["--name", "etl-7"], FOREVER);
    let neither = engine.run(&["--label", "tier=web", "--cpu-shares", "600"], FOREVER);
    let file = program.groups(
        "[group.a]\nclass = \"offline\"\nmemory.max = \"300 MiB\"\nmatch = [{ docker-label = \"tier=batch\" }]\n\
         [group.b]\nclass = \"offline\"\npids.max = 77\nmatch = [{ docker-name = \"etl-7\" }]\n",
    );
    let config = file.to_str().unwrap();
    let commensal = |status: i32, args: &[&str]| {
        let output = program.command(args).env("DOCKER_HOST", &engine.host).output().unwrap();
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "commensal {args:?}\n{said}");
        said
    };
    let before = [&labelled, &named, &neither].map(|id| weight(&cgroup(&engine, id)));
    // The machine's other groups are outside; that the parent is nobody's is told.
    let said = commensal(1, &["apply", "-c", config]);
    assert!(said.contains("memory") && said.contains("pids.max"), "{said}");
    assert!(!said.contains(&neither), "{said}");
    // Against everything outside, what holds them would have to be claimed.
    let parent =
        cgroup(&engine, &labelled).parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
    assert!(said.contains(&format!("claim it with match = [{{ cgroup = \"/{parent}\" }}]")), "{said}");
    assert_eq!([&labelled, &named, &neither].map(|id| weight(&cgroup(&engine, id))), before);
    let pids = |id: &str| {
        let group = cgroup(&engine, id);
        let below = group.strip_prefix(cpu_mount()).unwrap().to_owned();
        let all = [Path::new("/sys/fs/cgroup/pids"), Path::new("/sys/fs/cgroup")]
            .map(|mount| mount.join(&below).join("pids.max"));
        all.iter().find_map(|file| std::fs::read_to_string(file).ok()).unwrap_or_default().trim().to_owned()
    };
    assert_eq!((pids(&named).as_str(), pids(&neither).as_str()), ("77", "max"));
    // A restarted one has a new cgroup of the same name: planned anew.
    assert!(engine.docker(&["restart", "-t", "2", &named]).0);
    assert_eq!(pids(&named), "max");
    let said = commensal(1, &["apply", "-c", config]);
    assert!(said.contains("pids.max") && !said.contains("memory.limit"), "{said}");
    assert_eq!(pids(&named), "77");
    let again = commensal(1, &["apply", "-c", config]);
    assert!(again.starts_with("nothing to do"), "{again}");
    commensal(0, &["restore"]);
    assert_eq!((pids(&named).as_str(), pids(&labelled).as_str()), ("max", "max"));
    assert_eq!([&labelled, &named, &neither].map(|id| weight(&cgroup(&engine, id))), before);
    assert!(engine.docker(&["rm", "-f", &labelled, &named, &neither]).0);
}

/// What is done to a container in a look of `blame` x what the report says of it.
// promises 13, 31
#[test]
fn blame_says_what_has_become_of_a_container() {
    let test = "blame_says_what_has_become_of_a_container";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("become");
    let dir = tempfile::tempdir().unwrap();
    let Some(engine) = Engine::start(test, dir.path()) else { return };
    // What is done, and if it has ended, whether another one is in its place.
    let cases = [
        ("b-stays", "ps", None),
        ("b-renamed", "rename b-renamed b-other", None),
        ("b-stopped", "stop -t 2 b-stopped", Some(false)),
        ("b-restarted", "restart -t 2 b-restarted", Some(true)),
        ("b-new", "rm -f b-new", Some(true)),
    ];
    for (name, ..) in cases {
        engine.run(&["--name", name], FOREVER);
    }
    let names = cases.map(|(name, ..)| name);
    let metrics = program.path("metrics");
    let mut command = program.command(&["blame", "--for", "10m", "--json", "--prometheus"]);
    command.arg(&metrics).args(names).env("DOCKER_HOST", &engine.host);
    let look = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // They are first written while it measures.
    until("it measures", || std::fs::metadata(&metrics).is_ok_and(|file| file.len() > 0) || ended(look.id()));
    for (name, command, _) in cases {
        let (well, said) = engine.docker(&command.split(' ').collect::<Vec<_>>());
        assert!(well, "{command}: {said}");
        if name == "b-new" {
            engine.run(&["--name", name], FOREVER);
        }
    }
    signal(look.id(), Signal::TERM);
    let output = look.wait_with_output().unwrap();
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}{}", text(&output.stderr));
    let report: Value = serde_json::from_str(&out).unwrap();
    for (name, _, expected) in cases {
        let told = report["ended"].as_array().unwrap().iter().find(|one| one["name"] == name);
        println!("{test}: {name}: {told:?}");
        assert_eq!(
            told.map(|one| one["replaced"].as_bool().unwrap()),
            expected,
            "{name}: {}",
            report["ended"]
        );
    }
    assert!(engine.docker(&["rm", "-f", "b-other", names[0], names[2], names[3], names[4]]).0);
}
