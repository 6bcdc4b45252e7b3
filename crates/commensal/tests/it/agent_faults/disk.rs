//! A disk that is full under the journal and the audit log while the agent runs.

use super::{Watched, asked, nothing_left, settings};
use crate::agent::{Agent, Theirs, limited, own, set_quota, until};
use crate::support::{Program, can_write_cgroups};
use commensal_testkit::throughout;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// New members that come while the disk is full.
const MANY: usize = 40;

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

// promise 9
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
    // More than fits into what is left of the journal's last page.
    let (mut others, mut untouched) = (Vec::new(), Vec::new());
    for number in 0..MANY {
        let theirs = Theirs::new(&program, &format!("batch-x{number}"));
        set_quota(&theirs.cpu, true);
        untouched.push(settings(&theirs));
        others.push(theirs);
    }
    let more = own(&program, "more");
    groups(&program, &web, "[group.more]\nclass = \"offline\"\n");
    let words = "the undo journal cannot be stored, so nothing was written: append to";
    until("it is told", || {
        let said = agent.said();
        said.lines().any(|line| line.contains(words) && line.contains("no space left"))
    });
    let changed = || -> Vec<&str> {
        let all = others.iter().zip(&untouched);
        all.filter(|(theirs, before)| settings(theirs) != **before)
            .map(|(theirs, _)| theirs.name.as_str())
            .collect()
    };
    let journal = || std::fs::read_to_string(program.state().join("machine.journal")).unwrap();
    throughout(Duration::from_secs(2), "written without its original on record", || {
        let (changed, journal) = (changed(), journal());
        changed.iter().all(|name| journal.contains(*name))
            && (!more.exists() || journal.contains("offline/more"))
    });
    println!("{test}: {} of {MANY} still fitted into the journal", changed().len());
    assert!(changed().len() < MANY);
    let told = agent.said();
    assert!(told.lines().count() <= 8, "told once each: {told}");
    disk.empty();
    until("it goes on", || changed().len() == MANY && more.exists());
    until("nothing is wrong any more", || asked(&program).problems.is_empty());
    println!("{test}: {} audit lines lost", asked(&program).cost.audit_lost);
    // Killed on a full disk: the guard needs no new record for the safe state.
    disk.fill();
    drop(agent);
    until("limits on online work are lifted", || !web.counted());
    assert!(limited(&first.cpu) && others.iter().all(|theirs| limited(&theirs.cpu)));
    disk.empty();
    program.expect(0, &["restore"]);
    assert_eq!(settings(&first), originals);
    assert_eq!(changed(), [""; 0]);
    watched.end();
    drop((first, others, web, quiet));
    nothing_left(&program);
}
