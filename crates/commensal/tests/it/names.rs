//! Names of others: nobody escapes by one, and none of them does anything to whoever reads what the program says.

use crate::agent::{Agent, PATIENCE, limited, mounts, set_quota};
use crate::support::{Program, can_write_cgroups, cpu_mount};
use commensal_agent::control::{Control, SOCKET, commands};
use commensal_agent::fixture;
use commensal_agent::publish::Published;
use commensal_agent::snapshot::{Action, Drift, Member, Snapshot, Unmet};
use commensal_core::{spelling, text};
use commensal_host::{LinuxHost, Waker};
use commensal_testkit::{Signal, hidden, http, odd_names, until, within};
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Empty groups of odd names below one of the test's own, in every hierarchy; removed at the end.
struct Batch {
    above: String,
    /// What is odd, the spelled path below the mount, and the directory of the cpu controller.
    groups: Vec<(&'static str, String, PathBuf)>,
}

impl Batch {
    fn new(program: &Program) -> Batch {
        let above = format!("{}-batch", program.prefix);
        let mut batch = Batch { above: above.clone(), groups: Vec::new() };
        for mount in mounts() {
            std::fs::create_dir(mount.join(&above)).unwrap();
            let _ = std::fs::write(mount.join(&above).join("cgroup.subtree_control"), "+cpu");
        }
        for (what, name) in odd_names() {
            batch.add(what, name);
        }
        batch
    }

    fn add(&mut self, what: &'static str, name: Vec<u8>) {
        for mount in mounts() {
            std::fs::create_dir(mount.join(&self.above).join(OsString::from_vec(name.clone()))).unwrap();
        }
        let dir = cpu_mount().join(&self.above).join(OsString::from_vec(name.clone()));
        self.groups.push((what, format!("/{}/{}", self.above, spelling::text(name)), dir));
    }

    fn paths(&self) -> BTreeSet<String> {
        self.groups.iter().map(|(_, path, _)| path.clone()).collect()
    }

    fn all_limited(&self, wanted: bool) -> Vec<&'static str> {
        self.groups.iter().filter(|(_, _, dir)| limited(dir) != wanted).map(|(what, ..)| *what).collect()
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        for mount in mounts() {
            let above = mount.join(&self.above);
            for entry in std::fs::read_dir(&above).into_iter().flatten().flatten() {
                let _ = std::fs::remove_dir(entry.path());
            }
            let _ = std::fs::remove_dir(above);
        }
    }
}

/// What the program says: no character that a terminal obeys or nobody sees, on either output.
fn said(program: &Program, status: &[i32], args: &[&str]) -> String {
    let output = program.run(args);
    let code = output.status.code().unwrap();
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(status.contains(&code), "{args:?}: {code}\n--- stdout\n{out}--- stderr\n{err}");
    for (name, text) in [("stdout", &out), ("stderr", &err)] {
        assert_eq!(hidden(text), None, "{name} of {args:?}:\n{text:?}");
    }
    format!("{out}{err}")
}

/// The same, as JSON.
fn json(program: &Program, status: &[i32], args: &[&str]) -> Value {
    let out = said(program, status, &[args, &["--json"]].concat());
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{args:?}: {error}\n{out}"))
}

/// Every text in it.
fn texts<'v>(value: &'v Value, into: &mut BTreeSet<&'v str>) {
    match value {
        Value::String(text) => drop(into.insert(text)),
        Value::Array(all) => all.iter().for_each(|one| texts(one, into)),
        Value::Object(all) => all.values().for_each(|one| texts(one, into)),
        _ => {}
    }
}

/// Paths of `batch` that are no whole text of the value, or the end of one after a colon.
fn missing(value: &Value, paths: &BTreeSet<String>) -> Vec<String> {
    let mut all = BTreeSet::new();
    texts(value, &mut all);
    let has = |path: &&String| {
        all.contains(path.as_str())
            || all.iter().any(|text| text.split_once(':').is_some_and(|(_, rest)| rest == path.as_str()))
    };
    paths.iter().filter(|path| !has(path)).cloned().collect()
}

/// A text for people that has all the paths, as people see them.
fn shows(said: &str, paths: &BTreeSet<String>) {
    for path in paths {
        assert!(said.contains(&*text::visible(path)), "{path:?} is not in:\n{said}");
    }
}

fn groups(program: &Program, above: &str) -> String {
    let groups = format!(
        "[group.odd]\nclass = \"offline\"\ncpu.max = \"0.5 cores\"\nmatch = [{{ cgroup = \"/{above}/*\" }}]\n"
    );
    program.groups(&groups).to_str().unwrap().to_owned()
}

// promise 60
#[test]
fn nobody_escapes_by_a_name() {
    if !can_write_cgroups("nobody_escapes_by_a_name") {
        return;
    }
    let program = Program::new("odd");
    let batch = Batch::new(&program);
    let paths = batch.paths();
    let config = groups(&program, &batch.above);
    shows(&said(&program, &[0, 1], &["plan", "-c", &config]), &paths);
    let planned = json(&program, &[0, 1], &["plan", "-c", &config]);
    assert_eq!(missing(&planned["steps"], &paths), [""; 0]);
    said(&program, &[0, 1], &["apply", "-c", &config]);
    assert_eq!(batch.all_limited(true), [""; 0]);
    // Found again, and nothing is left to do.
    let again = json(&program, &[0, 1], &["plan", "-c", &config]);
    assert_eq!(again["steps"].as_array().map(Vec::len), Some(0), "{again}");
    // On record, line by line, under these very names.
    let journal = std::fs::read_to_string(program.state().join("machine.journal")).unwrap();
    assert_eq!(hidden(&journal), None);
    let records: Vec<Value> =
        journal.lines().map(|line| serde_json::from_str(line.split_once(' ').unwrap().1).unwrap()).collect();
    assert_eq!(missing(&Value::Array(records), &paths), [""; 0]);
    // Status 1 is of groups of others that are in use: what is on the cgroups themselves has no owner's state directory.
    shows(&said(&program, &[0, 1], &["restore"]), &paths);
    assert_eq!(batch.all_limited(false), [""; 0]);
    assert!(!said(&program, &[0, 1], &["restore"]).contains(&batch.above), "nothing is left to restore");
}

/// The answer of the control socket, without its head.
fn ask(program: &Program, path: &str) -> String {
    let answer = http(UnixStream::connect(program.state().join(SOCKET)).unwrap(), "GET", path);
    let body = answer.split_once("\r\n\r\n").unwrap().1.to_owned();
    assert_eq!(hidden(&body), None, "{path}");
    body
}

/// Every line is a comment or a sample.
fn assert_metrics(body: &str) {
    assert!(body.lines().count() > 10, "{body}");
    for line in body.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        assert!(name.starts_with("commensal_") && value.parse::<f64>().is_ok(), "{line}");
    }
}

// promise 60
#[test]
fn the_agent_keeps_groups_of_any_name() {
    if !can_write_cgroups("the_agent_keeps_groups_of_any_name") {
        return;
    }
    let program = Program::new("odd-agent");
    let mut batch = Batch::new(&program);
    let config = groups(&program, &batch.above);
    let agent = Agent::start(&program, Path::new(&config), &[]);
    until("all are limited", || batch.all_limited(true).is_empty());
    // One that comes later, and one that somebody lifts again and again.
    batch.add("one that comes later", b"later\xff\x1b[2J\r".to_vec());
    until("the new one is limited", || batch.all_limited(true).is_empty());
    let lifted = batch.groups.iter().find(|(what, ..)| *what == "ESC").unwrap().clone();
    within(PATIENCE, "it is told", || {
        set_quota(&lifted.2, false);
        until("it is limited again", || limited(&lifted.2));
        let status = json(&program, &[0, 1, 2], &["status"]);
        let drift = status["drift"].as_array().unwrap();
        drift.iter().any(|one| one["path"].as_str() == Some(&lifted.1))
    });
    let paths = batch.paths();
    for verb in [&["status"] as &[&str], &["explain", "odd"], &["top", "--once"], &["queue", "-c", &config]] {
        said(&program, &[0, 1], verb);
    }
    assert_eq!(missing(&json(&program, &[0, 1], &["status"]), &paths), [""; 0]);
    assert_eq!(missing(&json(&program, &[0], &["explain", "odd"]), &paths), [""; 0]);
    shows(&said(&program, &[0], &["explain", "odd"]), &paths);
    let shown: Value = serde_json::from_str(&ask(&program, "/v1/snapshot")).unwrap();
    assert_eq!(missing(&shown, &paths), [""; 0]);
    assert_metrics(&ask(&program, "/metrics"));
    assert_eq!(hidden(&agent.said()), None);
    let files: Vec<PathBuf> =
        std::fs::read_dir(program.state()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let texts: Vec<(PathBuf, String)> = files
        .into_iter()
        .filter(|file| file.is_file())
        .map(|file| (file.clone(), std::fs::read_to_string(file).unwrap()))
        .collect();
    assert!(texts.iter().any(|(file, _)| file.ends_with("audit.log")), "{texts:?}");
    for (file, text) in texts {
        assert_eq!(hidden(&text), None, "{}", file.display());
    }
    assert_eq!(agent.end(Signal::TERM), Some(0));
    shows(&said(&program, &[0, 1], &["restore"]), &paths);
    assert_eq!(batch.all_limited(false), [""; 0]);
}

/// Everything of somebody else's that a snapshot has, also with line breaks, which no cgroup's name has.
fn hostile(name: &str) -> Snapshot {
    let mut snapshot = fixture::snapshot();
    let text = || format!("{name}\nforged: line");
    snapshot.config.path = text();
    snapshot.config.error = Some(name.to_owned());
    snapshot.problems = vec![name.to_owned()];
    let group = snapshot.groups.iter_mut().find(|group| group.name == "etl").unwrap();
    group.members = Arc::new(vec![Member { path: text(), own: false, found_by: text() }]);
    if let Some(queue) = &mut group.queue {
        queue.held = Some(text());
    }
    snapshot.unmet = vec![Unmet { group: "etl".to_owned(), what: text(), because: text(), try_this: text() }];
    snapshot.drift = vec![Drift {
        path: format!("{}/x", text()),
        want: text(),
        found: text(),
        by: Some(text()),
        ..Drift::default()
    }];
    snapshot.actions = Arc::new(vec![Action {
        at: "2026-01-01T00:00:00.000Z".to_owned(),
        group: Some("etl".to_owned()),
        what: text(),
        old: Some(text()),
        new: Some(text()),
        why: text(),
        reason: None,
    }]);
    snapshot
}

// promise 60
#[test]
fn no_name_reaches_a_terminal() {
    let program = Program::new("odd-seen");
    std::fs::create_dir_all(program.state()).unwrap();
    let published = Arc::new(Published::new());
    published.publish(Arc::new(fixture::snapshot()));
    let socket = program.state().join(SOCKET);
    let shown = Arc::clone(&published);
    let _served =
        Control::start(&mut LinuxHost::new(), &socket, None, None, shown, commands(Waker::new().unwrap()).0)
            .unwrap();
    for (what, name) in odd_names() {
        let snapshot = hostile(&spelling::text(name));
        published.publish(Arc::new(snapshot.clone()));
        for verb in [&["status"] as &[&str], &["explain", "etl"], &["top", "--once"]] {
            let out = said(&program, &[0, 1], verb);
            assert!(!out.lines().any(|line| line.starts_with("forged")), "{what}: {out}");
        }
        let read: Snapshot = serde_json::from_value(json(&program, &[0, 1], &["status"])).unwrap();
        assert_eq!(read, snapshot, "{what}");
        let explained = json(&program, &[0], &["explain", "etl"]);
        assert_eq!(
            explained["members"][0]["path"].as_str(),
            snapshot.drift[0].path.strip_suffix("/x"),
            "{what}"
        );
        assert_metrics(&ask(&program, "/metrics"));
        ask(&program, "/v1/snapshot");
    }
}

/// Names of files and folders, in what is said of mistakes in them, and arguments that are none.
// promise 60
#[test]
fn no_file_name_reaches_a_terminal() {
    let program = Program::new("odd-files");
    let lines: [(&str, Vec<u8>); 2] = [("a line break", b"u\nv".to_vec()), ("two", b"\r\n\xff\n".to_vec())];
    for (what, name) in odd_names().into_iter().chain(lines) {
        if name.len() > 240 {
            continue;
        }
        let folder = program.path("groups.d");
        std::fs::create_dir(&folder).unwrap();
        let file = folder.join(OsString::from_vec([name.clone(), b".toml".to_vec()].concat()));
        let config = folder.to_str().unwrap();
        for text in [
            "[group.etl]\nclas = \"offline\"\n",
            "[group.etl",
            "[group.etl]\nclass = \"offline\"\nmatch = [{ cgroup = \"/no\\u001b\\u202ething\" }]\n",
        ] {
            std::fs::write(&file, text).unwrap();
            let out = said(&program, &[0, 1, 2], &["plan", "-c", config]);
            let shown = format!("{}.toml", text::visible(&spelling::text(name.clone())));
            assert!(out.contains(&shown) || text.contains("match"), "{what}: {out}");
            said(&program, &[0, 1, 2], &["plan", "-c", config, "--json"]);
        }
        std::fs::remove_dir_all(&folder).unwrap();
        let argument = OsString::from_vec(name);
        let output = program.command(&["plan", "--nonsense"]).arg(&argument).output().unwrap();
        assert_eq!(hidden(std::str::from_utf8(&output.stderr).unwrap()), None, "{what}");
        let missing = program.path("nowhere").join(&argument);
        for verb in [&["plan", "-c"] as &[&str], &["lab", "report"], &["density", "classify"]] {
            let output = program.command(verb).arg(&missing).output().unwrap();
            for bytes in [&output.stdout, &output.stderr] {
                let text =
                    std::str::from_utf8(bytes).unwrap_or_else(|error| panic!("{what}: {verb:?}: {error}"));
                assert_eq!(hidden(text), None, "{what}: {verb:?}: {text}");
            }
        }
    }
}
