//! A disk that is full under the journal and the audit log while the agent runs.

use super::{Watched, asked, nothing_left, settings, throughout};
use crate::agent::{Agent, Theirs, limited, own, set_quota, until};
use crate::support::{Program, can_write_cgroups};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A small file system in the place of the state directory.
struct Disk(PathBuf);

impl Disk {
    fn mounted(test: &str, at: &Path) -> Option<Disk> {
        std::fs::create_dir_all(at).unwrap();
        let output =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs"]).arg(at).output();
        match output {
            Ok(output) if output.status.success() => Some(Disk(at.to_owned())),
            other => {
                println!("skipped: {test}: a small file system cannot be mounted: {other:?}");
                None
            }
        }
    }

    fn fill(&self) {
        let mut file = std::fs::File::create(self.0.join("fill")).unwrap();
        for size in [4096, 1] {
            while file.write_all(&vec![b'x'; size]).is_ok() {}
        }
    }

    fn empty(&self) {
        std::fs::remove_file(self.0.join("fill")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn groups(program: &Program, web: &Theirs, more: &str) -> PathBuf {
    program.groups(&format!(
        "[group.web]\nclass = \"online\"\npids.max = 500\nmatch = [{{ cgroup = \"/{}\" }}]\n\
         [group.theirs]\nclass = \"offline\"\ncpu.max = \"0.5 cores\"\nmatch = [{{ cgroup = \"/{}-batch-*\" }}]\n{more}",
        web.name, program.prefix
    ))
}

#[test]
fn a_full_disk_under_the_agent() {
    let test = "a_full_disk_under_the_agent";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("fulldisk");
    let Some(disk) = Disk::mounted(test, &program.state()) else { return };
    let (quiet, web) = (Theirs::new(&program, "quiet"), Theirs::new(&program, "web"));
    let watched = Watched::over(&quiet);
    let first = Theirs::new(&program, "batch-1");
    set_quota(&first.cpu, true);
    let originals = settings(&first);
    let path = groups(&program, &web, "");
    let agent = Agent::start(&program, &path, &[]);
    until("they are in force", || settings(&first) != originals && web.counted());
    until("the groups are kept", || program.state().join("agent-groups.json").exists());
    disk.fill();
    let second = Theirs::new(&program, "batch-2");
    set_quota(&second.cpu, true);
    let untouched = settings(&second);
    let path_of_more = own(&program, "more");
    groups(&program, &web, "[group.more]\nclass = \"offline\"\n");
    let words = "the undo journal cannot be kept, so nothing was written: append to";
    until("it is told", || {
        let said = agent.said();
        said.lines().any(|line| line.contains(words) && line.contains("no space left"))
    });
    throughout(Duration::from_secs(2), "written without its original on record", || {
        settings(&second) == untouched && !path_of_more.exists()
    });
    let told = agent.said();
    assert!(told.lines().count() <= 8, "told once each: {told}");
    disk.empty();
    until("it goes on", || settings(&second) != untouched && path_of_more.exists());
    until("nothing is wrong any more", || asked(&program).troubles.is_empty());
    println!("{test}: {} audit lines lost", asked(&program).cost.audit_lost);
    // Killed on a full disk: the guard needs no new record for the safe state.
    disk.fill();
    drop(agent);
    until("limits on online work are lifted", || !web.counted());
    assert!(limited(&first.cpu) && limited(&second.cpu));
    disk.empty();
    program.expect(0, &["restore"]);
    assert_eq!((settings(&first), settings(&second)), (originals, untouched));
    watched.end();
    drop((first, second, web, quiet));
    nothing_left(&program);
}
