//! Members that leave their group by themselves, once and again and again.

use super::{Watched, asked, figures, nothing_left, settings, ticks_on};
use crate::agent::{Agent, Theirs, limited, until};
use crate::support::{Program, can_write_cgroups};
use commensal_core::actual::Hierarchy;
use commensal_core::knob::Version;
use commensal_testkit::{Signal, cgroups_of, group_ended, holds_within, signal_group, throughout};
use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// CPU that an agent may take while a member moves to and fro, of one CPU: far above what it takes, far below a loop that
/// answers each move.
const MOST_CPU: f64 = 0.6;

/// A shell that a group matches by its program, and that does what files tell it to.
struct Mover {
    child: Child,
    dir: PathBuf,
}

impl Mover {
    /// It writes its own number to the lists in `out` once `go` is there; with `to-and-fro` to those in `in` as well, without end.
    fn start(exe: &Path, dir: &Path) -> Mover {
        let script = r#"
            into() { while read -r list; do echo 0 >"$list" 2>/dev/null; done <"$1"; }
            while :; do
                if [ -e to-and-fro ]; then into out; into in; : >>moved; echo x >>moved; sleep 0.005; continue; fi
                if [ -e go ]; then into out; rm -f go; : >gone; fi
                sleep 0.05
            done"#;
        let child = Command::new(exe)
            .args(["-c", script])
            .current_dir(dir)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Mover { child, dir: dir.to_owned() }
    }

    fn lists(&self, name: &str, dirs: &[PathBuf]) {
        let lines: Vec<String> =
            dirs.iter().map(|dir| format!("{}\n", dir.join("cgroup.procs").display())).collect();
        std::fs::write(self.dir.join(name), lines.concat()).unwrap();
    }

    fn places(&self) -> BTreeSet<String> {
        cgroups_of(self.child.id())
    }

    fn touch(&self, name: &str) {
        std::fs::write(self.dir.join(name), "").unwrap();
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        // With a child that sleeps for some ms.
        signal_group(self.child.id(), Signal::KILL);
        let _ = self.child.wait();
        holds_within(Duration::from_secs(1), || group_ended(self.child.id()));
    }
}

/// The cgroups of a process as folders.
fn folders(places: &BTreeSet<String>) -> Vec<PathBuf> {
    let hierarchies = commensal_sensors::mounts::hierarchies(&mut commensal_host::LinuxHost::new()).unwrap();
    let of = |hierarchy: &Hierarchy| {
        let line = places.iter().find(|line| {
            let names = line.split(':').nth(1).unwrap_or_default();
            match hierarchy.version {
                Version::V2 => line.starts_with("0:"),
                Version::V1 => {
                    hierarchy.controllers.iter().any(|one| names.split(',').any(|name| name == one.v1_name()))
                }
            }
        })?;
        Some(commensal_host::below(Path::new(&hierarchy.mount), line.rsplit(':').next()?))
    };
    hierarchies.iter().filter_map(of).collect()
}

// promise 13
#[test]
fn a_process_that_leaves_its_group() {
    let test = "a_process_that_leaves_its_group";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("leaves");
    let exe = program.path("mover");
    std::fs::copy("/bin/sh", &exe).unwrap();
    let groups = program.groups(&format!(
        "[group.media]\nclass = \"offline\"\npids.max = 60\nmatch = [{{ process = {{ exe = \"{}\" }} }}]\n",
        exe.display()
    ));
    let mover = Mover::start(&exe, program.dir.path());
    let home = mover.places();
    mover.lists("out", &folders(&home));
    let mut agent = Agent::start(&program, &groups, &["--lease", "5s"]);
    let own = format!("/{}-offline/media", program.prefix);
    let inside = || mover.places().iter().any(|line| line.ends_with(&own));
    until("it is inside", inside);
    let within: BTreeSet<String> = mover.places();
    let moved: Vec<PathBuf> =
        folders(&within).into_iter().filter(|dir| dir.ends_with(own.trim_start_matches('/'))).collect();
    assert!(!moved.is_empty(), "{within:?}");
    mover.touch("go");
    until("it has left", || program.path("gone").exists());
    assert_eq!(mover.places(), home);
    until("it is told", || {
        asked(&program).unmet.iter().any(|unmet| unmet.because.contains("another program has since moved it"))
    });
    // Left where it wants to be: it is not fought.
    throughout(Duration::from_secs(2), "it was moved again", || mover.places() == home);
    // To and fro, a hundred times a second and more.
    mover.lists("in", &moved);
    let (before, ticks) = (figures(agent.child.id()), asked(&program).ticks);
    let begun = Instant::now();
    mover.touch("to-and-fro");
    let times = || std::fs::read_to_string(program.path("moved")).unwrap_or_default().lines().count();
    // As often as a machine that others use as well lets it, and for as long as several ticks take.
    until("it has moved often", || times() > 5 && begun.elapsed() > Duration::from_secs(4));
    let (after, seconds, times) = (figures(agent.child.id()), begun.elapsed().as_secs_f64(), times());
    let cpu = (after.2 - before.2) as f64 / 1e3 / seconds;
    println!(
        "{test}: {times} times to and fro in {seconds:.1} s; agent {:.1} % of a CPU, KiB {} -> {}",
        cpu * 1e2,
        before.1,
        after.1
    );
    assert!(cpu < MOST_CPU, "{cpu}");
    assert!(agent.child.try_wait().unwrap().is_none() && asked(&program).ticks > ticks);
    assert!(agent.said().lines().count() < 20, "{}", agent.said());
    std::fs::remove_file(program.path("to-and-fro")).unwrap();
    mover.touch("go");
    until("it is home", || mover.places() == home);
    assert_eq!(agent.end(Signal::TERM), Some(0));
    program.expect(0, &["restore"]);
    assert_eq!(mover.places(), home);
    drop(mover);
    nothing_left(&program);
}

/// A process of a cgroup that a group matches goes where it likes: the cgroup keeps its limits, and nothing else has any.
// promise 13
#[test]
fn a_process_that_leaves_a_matched_cgroup() {
    let test = "a_process_that_leaves_a_matched_cgroup";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("strays");
    let exe = program.path("mover");
    std::fs::copy("/bin/sh", &exe).unwrap();
    let (web, batch) = (Theirs::new(&program, "web"), Theirs::new(&program, "batch"));
    let original = settings(&batch);
    let groups = program.groups(&format!(
        "[group.web]\nclass = \"online\"\nmatch = [{{ cgroup = \"/{}\" }}]\n\
         [group.batch]\nclass = \"offline\"\ncpu.max = \"0.5 cores\"\nmatch = [{{ cgroup = \"/{}\" }}]\n",
        web.name, batch.name
    ));
    let watched = Watched::over(&web);
    let mover = Mover::start(&exe, program.dir.path());
    let home = mover.places();
    // Only where any process may be: an empty cpuset takes none.
    let (out, into) = (vec![web.cpu.clone()], vec![batch.cpu.clone()]);
    mover.lists("out", &out);
    mover.lists("in", &into);
    let agent = Agent::start(&program, &groups, &[]);
    until("the group is limited", || limited(&batch.cpu));
    // Some ticks later everything else is in force as well.
    ticks_on(&program, 6);
    let quiet = asked(&program).cost.writes;
    mover.touch("to-and-fro");
    throughout(Duration::from_secs(3), "the limit is gone", || limited(&batch.cpu));
    let now = asked(&program);
    assert_eq!((now.cost.writes, now.problems), (quiet, vec![]), "nothing is to be done");
    std::fs::remove_file(program.path("to-and-fro")).unwrap();
    mover.lists("out", &folders(&home));
    mover.touch("go");
    until("it is home", || mover.places() == home);
    assert_eq!(agent.end(Signal::TERM), Some(0));
    program.expect(0, &["restore"]);
    assert_eq!(settings(&batch), original);
    watched.end();
    drop((mover, batch, web));
    nothing_left(&program);
}
