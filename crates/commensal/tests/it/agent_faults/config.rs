//! Everything that can become of the groups file while the agent runs: the last good groups stay, the mistake is told once, and
//! what comes right again is taken.

use super::{Watched, asked, nothing_left};
use crate::agent::{Agent, Theirs, limited, until};
use crate::support::{Program, can_write_cgroups};
use commensal_testkit::{Signal, exchange, throughout, told, until_still};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What is done to the folder `groups.d`, and the words that it has to be told in.
type Break = (&'static str, fn(&Path), &'static str);

fn broken() -> Vec<Break> {
    vec![
        ("a mistake", |dir| put(dir, "a.toml", "[group.batch\n"), "a.toml:1"),
        (
            "removed",
            |dir| {
                // In one step, so that the agent does not see the folder empty as well.
                let aside = dir.with_extension("old");
                std::fs::rename(dir, &aside).unwrap();
                std::fs::remove_dir_all(aside).unwrap();
            },
            "no such file",
        ),
        ("empty", |dir| std::fs::remove_file(dir.join("a.toml")).unwrap(), "has no *.toml file"),
        (
            "a loop",
            |dir| {
                // In one step, so that the agent does not see the folder gone as well.
                let aside = dir.with_extension("loop");
                std::os::unix::fs::symlink(dir, &aside).unwrap();
                exchange(&aside, dir);
                std::fs::remove_dir_all(aside).unwrap();
            },
            "symbolic links",
        ),
        ("a file that is a folder", |dir| std::fs::create_dir(dir.join("b.toml")).unwrap(), "is a directory"),
        (
            "a dangling link",
            |dir| std::os::unix::fs::symlink("/nonexistent/x", dir.join("b.toml")).unwrap(),
            "no such file",
        ),
        ("10 MB", |dir| put(dir, "b.toml", "# comment\n".repeat(1_000_000)), "which is more than"),
        ("unreadable", |dir| link("/proc/self/mem", &dir.join("b.toml")), "EIO"),
        (
            "without an end",
            |dir| link("/dev/zero", &dir.join("b.toml")),
            "/dev/zero, which others than its owner",
        ),
        ("a pipe that nobody writes", |dir| pipe(&dir.join("b.toml")), "EAGAIN"),
        ("no text", |dir| put(dir, "b.toml", [0, 159, 146, 150, b'\n', 0]), "b.toml:1"),
        ("a second headroom", |dir| put(dir, "b.toml", "[agent]\nheadroom = \"off\"\n"), "already set at"),
    ]
}

fn link(to: &str, from: &Path) {
    std::os::unix::fs::symlink(to, from).unwrap();
}

/// With somebody at its other end who says nothing, for as long as the test lasts.
fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    let silent = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    std::mem::forget(silent);
}

/// Written aside first, so that nobody reads half of it.
fn put(dir: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    let aside = dir.join(format!("{name}.new"));
    std::fs::write(&aside, bytes).unwrap();
    std::fs::rename(aside, dir.join(name)).unwrap();
}

/// The folder as it was, whatever is in its place.
fn mend(dir: &Path, text: &str) {
    let aside = dir.with_extension("new");
    std::fs::create_dir(&aside).unwrap();
    std::fs::write(aside.join("a.toml"), text).unwrap();
    // In one step, so that the agent sees it neither empty nor gone.
    if dir.symlink_metadata().is_err() {
        std::fs::rename(aside, dir).unwrap();
        return;
    }
    exchange(&aside, dir);
    match aside.symlink_metadata().unwrap().is_dir() {
        true => std::fs::remove_dir_all(aside).unwrap(),
        false => std::fs::remove_file(aside).unwrap(),
    }
}

fn text(batch: &Theirs, web: &Theirs, cores: &str) -> String {
    format!(
        "[agent]\nheadroom = \"target\"\n[group.web]\nclass = \"online\"\nmatch = [{{ cgroup = \"/{}\" }}]\n\
         [group.batch]\nclass = \"offline\"\ncpu.max = \"{cores} cores\"\nmatch = [{{ cgroup = \"/{}\" }}]\n",
        web.name, batch.name
    )
}

fn quota(batch: &Theirs) -> String {
    let read = |file: &str| std::fs::read_to_string(batch.cpu.join(file));
    let text = read("cpu.cfs_quota_us").or_else(|_| read("cpu.max")).unwrap();
    text.split_whitespace().next().unwrap_or_default().to_owned()
}

// promise 19
#[test]
fn a_configuration_that_breaks_while_it_runs() {
    let test = "a_configuration_that_breaks_while_it_runs";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("breaks");
    let (web, batch) = (Theirs::new(&program, "web"), Theirs::new(&program, "batch"));
    let watched = Watched::over(&web);
    let dir: PathBuf = program.path("groups.d");
    mend(&dir, &text(&batch, &web, "0.5"));
    let agent = Agent::start(&program, &dir, &[]);
    until("the group is limited", || quota(&batch) == "50000");
    for (index, (name, spoil, words)) in broken().into_iter().enumerate() {
        // What it says of the folder's last change may still be on its way.
        let before = until_still(Duration::from_millis(100), "what it says", || agent.said().len());
        spoil(&dir);
        until(format!("{name}: {words} in {}", &agent.said()[before..]), || {
            agent.said()[before..].contains(words)
        });
        until("status tells it", || asked(&program).config.error.is_some_and(|error| error.contains(words)));
        // In several ticks. Who reads while the folder changes may tell of something else first.
        let once = || {
            let said = agent.said()[before..].to_owned();
            let lines: Vec<&str> = said.lines().filter(|line| line.contains(words)).collect();
            lines.iter().collect::<BTreeSet<_>>().len() == lines.len()
        };
        let wrong = told(|| format!("{name} is told once: {}", agent.said()));
        throughout(Duration::from_millis(400), wrong, once);
        let said = agent.said()[before..].to_owned();
        assert!(said.len() < 2_000, "{name}: {} bytes are told", said.len());
        assert!(limited(&batch.cpu), "{name}: the last good groups stay");
        // Right again, and another value: that it is taken shows.
        let (cores, want) = if index % 2 == 0 { ("0.3", "30000") } else { ("0.5", "50000") };
        mend(&dir, &text(&batch, &web, cores));
        until(format!("{name}: it recovers"), || quota(&batch) == want);
        until("nothing is wrong any more", || asked(&program).config.error.is_none());
    }
    assert_eq!(agent.end(Signal::TERM), Some(0));
    program.expect(0, &["restore"]);
    watched.end();
    drop((batch, web));
    nothing_left(&program);
}
