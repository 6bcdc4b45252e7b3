//! Killing in a frozen group: on cgroup v1 a process dies only when it goes on, so its group goes on for as long as that takes.

use super::{Watched, asked, nothing_left, wrapped};
use crate::agent::{Agent, Theirs, frozen, mounts, own, until};
use crate::support::{Program, can_write_cgroups, text};
use commensal_testkit::{PATIENCE, Signal, field_of_status, holds_within, members, signal};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const TOTAL_KIB: u64 = 10_000_000;
/// What the large process holds at least; the others have a tenth of it.
const LARGE_KIB: u64 = 3_000;

/// What the agent is told of the machine's memory.
fn tell(file: &Path, available: u64) {
    let aside = format!("MemTotal: {TOTAL_KIB:>15} kB\nMemAvailable: {available:>11} kB\n");
    // In place, because it is mounted where the kernel's is.
    std::fs::write(file, aside).unwrap();
}

/// Anonymous memory of a process in KiB; `None` once it has ended.
fn held(pid: u32) -> Option<u64> {
    field_of_status(pid, "RssAnon")?.split_whitespace().next()?.parse().ok()
}

fn members_of(program: &Program) -> Vec<u32> {
    members(&own(program, "etl"))
}

/// Whatever becomes of the test, nobody is left in its group, frozen or not.
struct Group<'a>(&'a Program);

impl Drop for Group<'_> {
    fn drop(&mut self) {
        for mount in mounts() {
            let dir = mount.join(format!("{}-offline/etl", self.0.prefix));
            for (file, value) in [("freezer.state", "THAWED"), ("cgroup.freeze", "0")] {
                if dir.join(file).exists() {
                    let _ = std::fs::write(dir.join(file), value);
                }
            }
        }
        for pid in members_of(self.0) {
            signal(pid, Signal::KILL);
        }
    }
}

/// The machine is short of memory: offline work is frozen, and the largest process of it dies although it is frozen.
// promise 24
#[test]
fn a_victim_in_a_frozen_group_dies() {
    let test = "a_victim_in_a_frozen_group_dies";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("victim");
    let web = Theirs::new(&program, "web");
    let watched = Watched::over(&web);
    let meminfo: PathBuf = program.path("meminfo");
    tell(&meminfo, TOTAL_KIB / 2);
    let mount = "mount --bind \"$0\" /proc/meminfo && exec \"$@\"";
    let shown = ["unshare", "-m", "sh", "-c", mount, meminfo.to_str().unwrap()];
    let can = Command::new(shown[0]).args(&shown[1..]).args(["cat", "/proc/meminfo"]).output();
    let seen = can.map(|output| text(&output.stdout)).unwrap_or_default();
    if !seen.contains(&format!("{} kB", TOTAL_KIB / 2)) {
        println!("skipped: {test}: the machine's memory cannot be hidden from a process: {seen}");
        return;
    }
    let groups = program.groups(&format!(
        "[group.etl]\nclass = \"offline\"\n[group.web]\nclass = \"online\"\nmatch = [{{ cgroup = \"/{}\" }}]\n",
        web.name
    ));
    let agent = Agent::spawn(wrapped(&shown, &Agent::command(&program, &groups, &[])));
    until("the group is there", || frozen(&program, "etl") == Some(false));
    let run = |script: &str| {
        let args = ["run", "-g", "etl", "-c", groups.to_str().unwrap(), "--", "sh", "-c", script];
        let mut command = program.command(&args);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let group = Group(&program);
    // Offline work gets next to no CPU time beside a busy machine, so there is little of it to do: `dd` fills its buffer and
    // waits for a reader of the pipe.
    let pipe = program.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let unread = std::fs::OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
    let mut large = run(&format!("sleep 600 & exec dd if=/dev/zero of={} bs=4000k count=1", pipe.display()));
    // Nobody here waits for another one: a shell that waits would end on its own if its child were killed.
    let mut small = run("sleep 600 & exec sleep 600");
    let find = || members_of(&program).into_iter().find(|pid| held(*pid).is_some_and(|kib| kib > LARGE_KIB));
    // `dd`, and three that sleep.
    let sleeps = |pid: &u32| field_of_status(*pid, "Name").is_some_and(|name| name == "sleep");
    until("the large one has grown", || {
        let now = members_of(&program);
        find().is_some() && now.len() == 4 && now.iter().filter(|pid| sleeps(pid)).count() == 3
    });
    let victim = find().unwrap();
    let before = members_of(&program);
    tell(&meminfo, TOTAL_KIB / 12);
    until("offline work is frozen", || frozen(&program, "etl") == Some(true));
    assert_eq!(members_of(&program), before, "nobody dies yet");
    tell(&meminfo, TOTAL_KIB / 40);
    until("the largest has died", || held(victim).is_none());
    tell(&meminfo, TOTAL_KIB / 12);
    until("it is on record", || {
        let what = format!("process {victim}");
        asked(&program).actions.iter().any(|one| one.what == what && one.new.as_deref() == Some("killed"))
    });
    until("the others stand still again", || frozen(&program, "etl") == Some(true));
    println!("{test}: {} of {} processes left", members_of(&program).len(), before.len());
    // Memory stays short until this test says otherwise, and where it gets no CPU for long the agent goes on: whoever it has
    // killed is on record, and nobody else has died.
    let now = members_of(&program);
    let gone: Vec<String> =
        before.iter().filter(|pid| !now.contains(pid)).map(|pid| format!("process {pid}")).collect();
    let mut recorded = asked(&program).actions;
    let all_killed = holds_within(PATIENCE, || {
        recorded = asked(&program).actions;
        let killed = |what: &String| {
            recorded.iter().any(|one| one.what == *what && one.new.as_deref() == Some("killed"))
        };
        gone.iter().all(killed)
    });
    assert!(all_killed, "gone: {gone:?}; the victim: {victim}; on record: {recorded:?}");
    assert_eq!(agent.end(Signal::TERM), Some(0));
    until("the group goes on", || frozen(&program, "etl") != Some(true));
    until("the victim's command is told", || large.try_wait().unwrap().is_some());
    drop(unread);
    drop(group);
    until("the other has ended", || small.try_wait().unwrap().is_some());
    until("nobody is left", || members_of(&program).is_empty());
    program.expect(0, &["restore"]);
    watched.end();
    drop(web);
    nothing_left(&program);
}
