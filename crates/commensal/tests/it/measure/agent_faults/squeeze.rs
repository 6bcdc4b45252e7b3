//! An agent that is itself short of memory: it lives with what it needs, and when the kernel kills it the guard acts.

use crate::agent::{Agent, Theirs, asked, limited, ticks_on, until};
use crate::agent_faults::{Watched, figures, nothing_left, wrapped};
use crate::support::{Program, can_write_cgroups};
use commensal_testkit::{members, removed_within, until_some};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A memory cgroup for the agent and its guard.
struct Cell(PathBuf);

impl Cell {
    /// Only where the controller of v1 is: the unified hierarchy's may have to be enabled at the root, which is not this test's.
    fn new(test: &str, program: &Program) -> Option<Cell> {
        let mount =
            crate::agent::mounts().into_iter().find(|mount| mount.join("memory.limit_in_bytes").exists());
        let Some(mount) = mount else {
            println!("skipped: {test}: no memory controller of cgroup v1");
            return None;
        };
        let dir = mount.join(format!("{}-cell", program.prefix));
        std::fs::create_dir(&dir).unwrap();
        Some(Cell(dir))
    }

    fn read(&self, file: &str) -> u64 {
        let text = std::fs::read_to_string(self.0.join(file)).unwrap();
        text.trim().parse().unwrap()
    }

    /// What no reclaim gets back, bytes.
    fn held(&self) -> u64 {
        let stat = std::fs::read_to_string(self.0.join("memory.stat")).unwrap();
        let field = |name: &str| -> u64 {
            let line = stat.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
        };
        field("total_rss ") + field("total_shmem ") + self.read("memory.kmem.usage_in_bytes")
    }

    /// Limits it to what it holds and `more`, as soon as the kernel takes that.
    fn limit(&self, more: u64) -> u64 {
        until_some("the kernel takes the limit", || {
            let bytes = self.held() + more;
            std::fs::write(self.0.join("memory.limit_in_bytes"), bytes.to_string()).ok().map(|()| bytes)
        })
    }

    fn empty(&self) -> bool {
        members(&self.0).is_empty()
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0.join("memory.limit_in_bytes"), "-1");
        removed_within(Duration::from_secs(5), &self.0);
    }
}

fn groups(program: &Program, web: &Theirs, more: &str) -> PathBuf {
    let text = format!(
        "[group.web]\nclass = \"online\"\npids.max = 500\nmatch = [{{ cgroup = \"/{}\" }}]\n\
         [group.theirs]\nclass = \"offline\"\ncpu.max = \"0.5 cores\"\nmatch = [{{ cgroup = \"/{}-batch-*\" }}]\n{more}",
        web.name, program.prefix
    );
    let (path, aside) = (program.path("groups.toml"), program.path("groups.new"));
    std::fs::write(&aside, text).unwrap();
    std::fs::rename(aside, &path).unwrap();
    path
}

fn within(cell: &Path, agent: &std::process::Command) -> Agent {
    // What is written here is the group's page cache, so that there is something to reclaim.
    let script = "echo 0 >\"$0\" && head -c 16000000 /dev/zero >fill && sync fill; exec \"$@\"";
    let list = cell.join("cgroup.procs");
    Agent::spawn(wrapped(&["sh", "-c", script, list.to_str().unwrap()], agent))
}

// promise 21
#[test]
fn an_agent_short_of_memory() {
    let test = "an_agent_short_of_memory";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("squeeze");
    let Some(cell) = Cell::new(test, &program) else { return };
    let (quiet, web) = (Theirs::new(&program, "quiet"), Theirs::new(&program, "web"));
    let watched = Watched::over(&quiet);
    let first = Theirs::new(&program, "batch-1");
    let path = groups(&program, &web, "");
    let mut agent = within(&cell.0, &Agent::command(&program, &path, &["--lease", "5s"]));
    until("they are in force", || limited(&first.cpu) && web.counted());
    until("the groups are kept", || program.state().join("agent-groups.json").exists());
    ticks_on(&program, 3);
    // A little above its need: whatever the page cache had of it has to go again and again.
    let limit = cell.limit(3 << 20);
    let ticks = asked(&program).ticks;
    let mut more = Vec::new();
    for number in 2..8 {
        let theirs = Theirs::new(&program, &format!("batch-{number}"));
        until("a new group is limited", || limited(&theirs.cpu));
        more.push(theirs);
        ticks_on(&program, 2);
    }
    assert!(agent.child.try_wait().unwrap().is_none(), "{}", agent.said());
    println!(
        "{test}: {} KiB resident within {} KiB, the limit was hit {} times in {} ticks",
        figures(agent.child.id()).1,
        limit >> 10,
        cell.read("memory.failcnt"),
        asked(&program).ticks - ticks
    );
    // Below its need: a groups file that it has to hold several times.
    let comments = "# what nobody reads\n".repeat(40_000);
    let limit = cell.limit(256 << 10);
    groups(&program, &web, &comments);
    until("the kernel has killed it", || agent.child.try_wait().unwrap().is_some());
    let signal = std::os::unix::process::ExitStatusExt::signal(&agent.child.wait().unwrap());
    println!("{test}: killed with a limit of {} KiB: signal {signal:?}", limit >> 10);
    assert_eq!(signal, Some(9), "{}", agent.said());
    until("the safe state", || !web.counted());
    assert!(
        limited(&first.cpu) && more.iter().all(|theirs| limited(&theirs.cpu)),
        "offline work stays held back"
    );
    until("guard and agent have gone", || cell.empty());
    program.expect(0, &["restore"]);
    watched.end();
    drop((more, first, web, quiet, cell));
    nothing_left(&program);
}
