//! Members that leave their group by themselves.

use super::{asked, nothing_left};
use crate::agent::{Agent, until};
use crate::support::{Program, can_write_cgroups};
use commensal_core::actual::Hierarchy;
use commensal_core::knob::Version;
use commensal_testkit::{Signal, cgroups_of, group_ended, holds_within, signal_group, throughout};
use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A shell that a group matches by its program, and that does what files tell it to.
pub(crate) struct Mover {
    child: Child,
    dir: PathBuf,
}

impl Mover {
    /// It writes its own number to the lists in `out` once `go` is there; with `to-and-fro` to those in `in` as well, without end.
    pub(crate) fn start(exe: &Path, dir: &Path) -> Mover {
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

    pub(crate) fn lists(&self, name: &str, dirs: &[PathBuf]) {
        let lines: Vec<String> =
            dirs.iter().map(|dir| format!("{}\n", dir.join("cgroup.procs").display())).collect();
        std::fs::write(self.dir.join(name), lines.concat()).unwrap();
    }

    pub(crate) fn places(&self) -> BTreeSet<String> {
        cgroups_of(self.child.id())
    }

    pub(crate) fn touch(&self, name: &str) {
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
pub(crate) fn folders(places: &BTreeSet<String>) -> Vec<PathBuf> {
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

/// A mover that its group's agent has found, and that has left the group by itself.
pub(crate) struct Left {
    pub(crate) agent: Agent,
    pub(crate) mover: Mover,
    /// Where the mover was before, and is again.
    pub(crate) home: BTreeSet<String>,
    /// Folders of its group.
    pub(crate) group: Vec<PathBuf>,
}

impl Left {
    pub(crate) fn new(program: &Program) -> Left {
        let exe = program.path("mover");
        std::fs::copy("/bin/sh", &exe).unwrap();
        let groups = program.groups(&format!(
            "[group.media]\nclass = \"offline\"\npids.max = 60\nmatch = [{{ process = {{ exe = \"{}\" }} }}]\n",
            exe.display()
        ));
        let mover = Mover::start(&exe, program.dir.path());
        let home = mover.places();
        mover.lists("out", &folders(&home));
        let agent = Agent::start(program, &groups, &["--lease", "60s"]);
        let own = format!("/{}-offline/media", program.prefix);
        until("it is inside", || mover.places().iter().any(|line| line.ends_with(&own)));
        let inside = mover.places();
        let own = own.trim_start_matches('/');
        let group: Vec<PathBuf> = folders(&inside).into_iter().filter(|dir| dir.ends_with(own)).collect();
        assert!(!group.is_empty(), "{inside:?}");
        mover.touch("go");
        until("it has left", || program.path("gone").exists());
        assert_eq!(mover.places(), home);
        Left { agent, mover, home, group }
    }

    /// The agent ends, and the mover stays where it is.
    pub(crate) fn end(self, program: &Program) {
        assert_eq!(self.agent.end(Signal::TERM), Some(0));
        program.expect(0, &["restore"]);
        assert_eq!(self.mover.places(), self.home);
        drop(self.mover);
        nothing_left(program);
    }
}

// promise 13
#[test]
fn a_process_that_leaves_its_group() {
    let test = "a_process_that_leaves_its_group";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("leaves");
    let left = Left::new(&program);
    until("it is told", || {
        asked(&program).unmet.iter().any(|unmet| unmet.because.contains("another program has since moved it"))
    });
    // Left where it wants to be: it is not fought.
    throughout(Duration::from_secs(2), "it was moved again", || left.mover.places() == left.home);
    left.end(&program);
}
