//! Undo always works: after a refusal, a crash at any moment, a vanished group, a full disk, a damaged journal or a
//! reboot, and twice in a row.

use crate::support::{STATE, applied, journal, planned, restored};
use commensal_core::errno::Errno;
use commensal_host::Host;
use commensal_host::fake::FakeHost;
use commensal_reconcile::journal::{self as journals, Created, Creating, Original, Record};
use commensal_reconcile::{JournalError, Refusal, apply, restore, restore_stale};
use std::path::Path;

const MEMORY: u64 = 16 << 30;

pub const GROUPS: &str = r#"
[group.web]
class = "online"
memory.max = "8 GiB"

[group.etl]
class = "offline"
cpu.max = "50 %"
memory.max = "1 GiB"
io.read = "100 MiB/s"
pids.max = 100
cpu.set = "1-2"

[group.batch]
class = "offline"
match = [{ cgroup = "/batch" }]
cpu.max = "1 core"
"#;

/// Returns a machine of each kind, with another program's group.
pub fn machines() -> Vec<(&'static str, FakeHost)> {
    let machines = [
        ("v1", FakeHost::v1(4, MEMORY)),
        ("v1, cpu and cpuacct together", FakeHost::v1_comounted(4, MEMORY)),
        ("v2", FakeHost::v2(4, MEMORY)),
    ];
    for (name, fake) in &machines {
        let mut host = fake.another();
        let mounts = match *name {
            "v1" => vec!["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/memory"],
            "v2" => vec!["/sys/fs/cgroup"],
            _ => vec!["/sys/fs/cgroup/cpu,cpuacct"],
        };
        for mount in mounts {
            let root = host.open(Path::new(mount)).unwrap();
            if *name == "v2" {
                host.write(root, "cgroup.subtree_control", "+cpu +memory").unwrap();
            }
            host.mkdir(root, "batch").unwrap();
        }
    }
    machines.into_iter().collect()
}

// promise 11
#[test]
fn restore_puts_everything_back_and_a_second_one_finds_nothing() {
    for (name, fake) in machines() {
        let mut host = fake.another();
        let before = fake.snapshot();
        let (_, plan, outcome) = applied(&mut host, GROUPS);
        assert!(outcome.failure.is_none(), "{name}: {:?}", outcome.failure);
        assert!(plan.steps.len() > 10 && fake.snapshot() != before, "{name}: nothing happened");
        let first = restored(&mut fake.another());
        assert!(first.left.is_empty() && first.failed.is_empty(), "{name}: {first:?}");
        assert_eq!(fake.snapshot(), before, "{name}");
        assert!(restored(&mut fake.another()).nothing(), "{name}");
    }
}

// promise 13
#[test]
fn a_group_that_vanishes_is_told_and_nothing_is_left() {
    let fake = FakeHost::v1(4, MEMORY);
    let mut host = fake.another();
    let root = host.open(Path::new("/sys/fs/cgroup/cpu")).unwrap();
    host.mkdir(root, "batch").unwrap();
    let (found, plan) = planned(&mut host, GROUPS).unwrap();
    let mut journal = journal(&mut host).unwrap();
    fake.vanish("/sys/fs/cgroup/cpu/batch");
    let before = fake.snapshot();
    let outcome = apply(&mut host, &plan.steps, &found, &mut journal);
    let failure = outcome.failure.unwrap();
    assert!(matches!(failure.refusal, Refusal::Vanished { .. }), "{:?}", failure.refusal);
    assert_eq!(failure.refusal.to_string(), "cpu:/batch vanished between planning and applying; plan again");
    assert_eq!(fake.snapshot(), before);
    // A new group of the same name is another group.
    host.mkdir(root, "batch").unwrap();
    let outcome = apply(&mut host, &plan.steps, &found, &mut journal);
    assert!(matches!(outcome.failure.unwrap().refusal, Refusal::Vanished { .. }));
}

// promise 9
#[test]
fn nothing_is_written_when_the_journal_cannot_be() {
    let fake = FakeHost::v1(4, MEMORY);
    let mut host = fake.another();
    let (found, plan) = planned(&mut host, GROUPS).unwrap();
    let mut journal = journal(&mut host).unwrap();
    let before = fake.snapshot();
    fake.state_full(true);
    let outcome = apply(&mut host, &plan.steps, &found, &mut journal);
    let failure = outcome.failure.unwrap();
    assert!(failure.refusal.to_string().contains("nothing was written"), "{}", failure.refusal);
    assert_eq!((outcome.done, fake.snapshot()), (0, before));
}

// promise 12
#[test]
fn a_damaged_line_stops_apply_and_does_not_stop_restore() {
    let fake = FakeHost::v1(4, MEMORY);
    let mut host = fake.another();
    let before = fake.snapshot();
    let (_, _, outcome) = applied(&mut host, GROUPS);
    assert!(outcome.failure.is_none());
    let path = Path::new(STATE).join("machine.journal");
    let good = host.state_read(&path).unwrap().unwrap();
    let lines: Vec<&str> = good.lines().collect();
    let victim = lines.iter().rposition(|line| line.contains("\"creating\"")).unwrap();
    let damaged = good.replacen(lines[victim], &lines[victim].replace("creating", "cremating"), 1);
    host.state_replace(&path, &damaged).unwrap();

    let error = journal(&mut host).unwrap_err();
    assert!(matches!(&error, JournalError::Damaged { line, .. } if *line == victim + 1), "{error}");

    let result = restored(&mut host);
    assert_eq!(result.failed.len(), 2, "{result:?}");
    assert!(result.failed[0].contains(&format!("line {}", victim + 1)), "{result:?}");
    assert_eq!(fake.snapshot(), before, "what could be read was undone");
    // The damaged line is moved to a separate file for inspection, and blocks nothing any more.
    assert!(host.state_read(&path.with_extension("damaged")).unwrap().unwrap().contains("cremating"));
    assert!(restored(&mut host).nothing());
    assert!(journal(&mut host).is_ok());
}

// promise 11
#[test]
fn a_journal_of_an_earlier_boot_means_groups_that_are_gone() {
    let fake = FakeHost::v1(4, MEMORY);
    // The marks on the groups vanish with the groups.
    fake.refuse_attributes();
    let mut host = fake.another();
    let (_, _, outcome) = applied(&mut host, GROUPS);
    assert!(outcome.failure.is_none());
    let result = restore(&mut host, Path::new(STATE), "another-boot", true).unwrap();
    assert!(result.nothing(), "{result:?}");
    assert!(restored(&mut host).nothing());
}

#[test]
fn a_lab_journal_waits_for_its_owner_and_goes_after_it() {
    let fake = FakeHost::v1(4, MEMORY);
    let mut host = fake.another();
    let before = fake.snapshot();
    let owner_pid = fake.add_process(&[]);
    let owner = host.process(owner_pid).unwrap();
    let boot_id = commensal_sensors::machine::boot_id(&host).unwrap();
    let written = journals::Owner {
        kind: "lab".into(),
        pid: owner_pid,
        start_ticks: owner.start_ticks,
        boot_id: boot_id.clone(),
    };
    let root = host.open(Path::new("/sys/fs/cgroup/cpu")).unwrap();
    let mut journal =
        journals::Journal::open(&mut host, Path::new(STATE), &format!("lab-{owner_pid}"), written).unwrap();
    let (mount, path) = ("/sys/fs/cgroup/cpu".to_owned(), "/commensal-lab-7-offline".to_owned());
    journal
        .append(&mut host, &[Record::Creating(Creating { mount: mount.clone(), path: path.clone() })])
        .unwrap();
    let dir = host.mkdir(root, "commensal-lab-7-offline").unwrap();
    let target = journals::Target { mount, path, inode: dir.inode };
    journal.append(&mut host, &[Record::Created(Created(target))]).unwrap();
    let stray = fake.add_process(&["/sys/fs/cgroup/cpu/commensal-lab-7-offline"]);
    fake.ignores_sigterm(stray);

    let result = restore_stale(&mut host, Path::new(STATE), &boot_id).unwrap();
    assert_eq!((result.done.len(), result.left.len()), (0, 1), "{result:?}");
    fake.end(owner_pid, commensal_host::Exit::Signal(9));
    let result = restore_stale(&mut host, Path::new(STATE), &boot_id).unwrap();
    assert!(result.left.is_empty() && result.failed.is_empty(), "{result:?}");
    assert_eq!(fake.snapshot(), before, "the stray process is dead and its group gone");
}

#[test]
fn a_group_in_use_is_left_and_said_so() {
    let fake = FakeHost::v1(4, MEMORY);
    let mut host = fake.another();
    let (_, _, outcome) = applied(&mut host, "[group.etl]\nclass = \"offline\"\n");
    assert!(outcome.failure.is_none());
    let pid = fake.add_process(&["/sys/fs/cgroup/cpu/commensal-offline/etl"]);
    let result = restored(&mut host);
    assert!(
        result.left.iter().any(|line| line.contains("process ") && line.contains(" is in it")),
        "{result:?}"
    );
    assert!(result.failed.is_empty(), "{result:?}");
    fake.end(pid, commensal_host::Exit::Code(0));
    let result = restored(&mut host);
    assert!(result.left.is_empty() && result.failed.is_empty(), "{result:?}");
    assert!(!fake.snapshot().keys().any(|path| path.contains("commensal")));
}

/// Returns a groups file for `theirs`, another program's group, with this class and these limits.
fn theirs(class: &str, more: &str) -> String {
    format!("[group.theirs]\nclass = \"{class}\"\n{more}\nmatch = [{{ cgroup = \"/theirs\" }}]\n")
}

fn with_theirs() -> (FakeHost, FakeHost, commensal_host::Dir) {
    let fake = FakeHost::v1(4, MEMORY);
    let mut host = fake.another();
    let root = host.open(Path::new("/sys/fs/cgroup/cpu")).unwrap();
    let dir = host.mkdir(root, "theirs").unwrap();
    (fake, host, dir)
}

const OTHER: &str = "[group.other]\nclass = \"offline\"\n";

/// A restored value belongs to the group's owner again: a value that the owner sets later is never touched.
// promise 14
#[test]
fn an_original_is_put_back_once() {
    let (_fake, mut host, dir) = with_theirs();
    assert!(applied(&mut host, &theirs("online", "cpu.weight = 300")).2.failure.is_none());
    assert_eq!(host.read(dir, "cpu.shares").unwrap().trim(), "3072");
    assert!(applied(&mut host, OTHER).2.failure.is_none());
    assert_eq!(host.read(dir, "cpu.shares").unwrap().trim(), "1024");
    host.write(dir, "cpu.shares", "5120").unwrap();
    assert!(applied(&mut host, OTHER).2.failure.is_none());
    assert_eq!(host.read(dir, "cpu.shares").unwrap().trim(), "5120");
    restored(&mut host);
    assert_eq!(host.read(dir, "cpu.shares").unwrap().trim(), "5120");
}

/// A refused apply that was undone leaves no record behind that would be restored later.
// promise 14
#[test]
fn a_refused_apply_leaves_no_record() {
    let (fake, mut host, dir) = with_theirs();
    let (found, plan) = planned(&mut host, &theirs("online", "cpu.weight = 300")).unwrap();
    let mut journal = journal(&mut host).unwrap();
    fake.fail_write(2, Errno::EINVAL);
    assert!(apply(&mut host, &plan.steps, &found, &mut journal).failure.is_some());
    host.write(dir, "cpu.shares", "5120").unwrap();
    assert!(restored(&mut host).nothing());
    assert_eq!(host.read(dir, "cpu.shares").unwrap().trim(), "5120");
}

// promise 10
#[test]
fn a_value_that_reads_back_otherwise_goes_back_too() {
    let (fake, mut host, _) = with_theirs();
    let before = fake.snapshot();
    let (found, plan) = planned(&mut host, &theirs("online", "cpu.weight = 300")).unwrap();
    let mut journal = journal(&mut host).unwrap();
    fake.takes_instead("cpu.shares", "2000");
    let outcome = apply(&mut host, &plan.steps, &found, &mut journal);
    let failure = outcome.failure.unwrap();
    assert!(failure.refusal.to_string().contains("wrote 3072, reads 2000"), "{}", failure.refusal);
    assert!(failure.left.is_empty(), "{:?}", failure.left);
    assert_eq!(fake.snapshot(), before);
    assert!(restored(&mut host).nothing());
}

/// Originals recorded by several applies can block each other: the weight was recorded after cpu.idle, and cannot be
/// written before cpu.idle is cleared.
// promise 11
#[test]
fn originals_of_several_applies_are_restored_in_one_go() {
    let (fake, mut host, _) = with_theirs();
    let before = fake.snapshot();
    for file in [theirs("offline", ""), theirs("online", "cpu.weight = 50"), theirs("offline", "")] {
        let (_, plan, outcome) = applied(&mut host, &file);
        assert!(outcome.failure.is_none(), "{:?} {:?}", outcome.failure, plan.steps);
    }
    let result = restored(&mut host);
    assert!(result.failed.is_empty() && result.left.is_empty(), "{result:?}");
    assert_eq!(fake.snapshot(), before);
}

/// In a chroot or a container the hierarchy may not be mounted, which does not mean that its groups no longer exist.
#[test]
fn a_hierarchy_that_is_not_mounted_here_is_not_gone() {
    let (fake, mut host, dir) = with_theirs();
    assert!(applied(&mut host, &theirs("online", "cpu.weight = 300")).2.failure.is_none());
    let path = Path::new(STATE).join("machine.journal");
    let text = host.state_read(&path).unwrap().unwrap();
    let elsewhere: String = journals::parse(&text)
        .records
        .into_iter()
        .map(|record| match record {
            Record::Original(Original { group, knob, file, device, value }) => {
                let group = journals::Target { mount: "/mnt/cgroup/cpu".to_owned(), ..group };
                journals::line(&Record::Original(Original { group, knob, file, device, value }))
            }
            other => journals::line(&other),
        })
        .collect();
    host.state_replace(&path, &elsewhere).unwrap();
    let result = restored(&mut host);
    assert!(result.left.iter().any(|line| line.contains("no cgroup hierarchy is mounted")), "{result:?}");
    host.state_replace(&path, &text).unwrap();
    assert!(restored(&mut host).left.is_empty());
    assert_eq!(host.read(dir, "cpu.shares").unwrap().trim(), "1024");
    drop(fake);
}

/// Inode numbers start again with every boot, so a journal of an earlier boot must not be used.
// promise 13
#[test]
fn a_journal_of_another_boot_plans_nothing() {
    let (fake, mut host, dir) = with_theirs();
    assert!(applied(&mut host, &theirs("online", "cpu.weight = 300")).2.failure.is_none());
    fake.set_file("/proc/sys/kernel/random/boot_id", "another-boot\n");
    let (_, plan) = planned(&mut host, OTHER).unwrap();
    assert!(plan.steps.iter().all(|step| step.place.path.as_str() != "/theirs"), "{:?}", plan.steps);
    assert_eq!(host.read(dir, "cpu.shares").unwrap().trim(), "3072");
}

/// A CPU set that is moved passes through a wider set, which may be the original: that does not count as restored.
// promise 14
#[test]
fn a_set_that_passes_its_original_is_not_settled() {
    let fake = FakeHost::v1(4, MEMORY);
    let mut host = fake.another();
    let root = host.open(Path::new("/sys/fs/cgroup/cpuset")).unwrap();
    let dir = host.mkdir(root, "theirs").unwrap();
    host.write(dir, "cpuset.mems", "0").unwrap();
    host.write(dir, "cpuset.cpus", "0-3").unwrap();
    for set in ["0-1", "2-3"] {
        let (_, plan, outcome) = applied(&mut host, &theirs("online", &format!("cpu.set = \"{set}\"")));
        assert!(outcome.failure.is_none(), "{:?} {:?}", outcome.failure, plan.steps);
        assert_eq!(host.read(dir, "cpuset.cpus").unwrap().trim(), set);
    }
    restored(&mut host);
    assert_eq!(host.read(dir, "cpuset.cpus").unwrap().trim(), "0-3");
}

/// A group of one journal can be in use by a group of another: one restore still removes both.
// promise 11
#[test]
fn restore_goes_through_all_journals() {
    let fake = FakeHost::v1(4, MEMORY);
    let mut host = fake.another();
    let before = fake.snapshot();
    assert!(applied(&mut host, "[group.etl]\nclass = \"offline\"\n").2.failure.is_none());
    let boot_id = commensal_sensors::machine::boot_id(&host).unwrap();
    let owner = journals::Owner { kind: journals::RUN.into(), pid: 1, start_ticks: 0, boot_id };
    let mut of_run = journals::Journal::open(&mut host, Path::new(STATE), journals::RUN, owner).unwrap();
    let parent = host.open(Path::new("/sys/fs/cgroup/cpu/commensal-offline")).unwrap();
    let (mount, path) = ("/sys/fs/cgroup/cpu".to_owned(), "/commensal-offline/other".to_owned());
    of_run
        .append(&mut host, &[Record::Creating(Creating { mount: mount.clone(), path: path.clone() })])
        .unwrap();
    let dir = host.mkdir(parent, "other").unwrap();
    let made = Record::Created(Created(journals::Target { mount, path, inode: dir.inode }));
    of_run.append(&mut host, &[made]).unwrap();
    let result = restored(&mut host);
    assert!(result.left.is_empty() && result.failed.is_empty(), "{result:?}");
    assert_eq!(fake.snapshot(), before);
}

/// Another program has created a group inside a commensal group that is no longer wanted: both are left alone, and
/// nothing fails.
#[test]
fn a_foreign_group_inside_ours_is_left_alone() {
    let fake = FakeHost::v1(4, MEMORY);
    let mut host = fake.another();
    assert!(applied(&mut host, "[group.etl]\nclass = \"offline\"\n").2.failure.is_none());
    let etl = host.open(Path::new("/sys/fs/cgroup/memory/commensal-offline/etl")).unwrap();
    let sub = host.mkdir(etl, "sub").unwrap();
    for _ in 0..2 {
        let (_, plan, outcome) = applied(&mut host, OTHER);
        assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
        assert!(plan.notes.iter().any(|note| note.contains("below it are in use")), "{:?}", plan.notes);
    }
    host.rmdir(etl, "sub", sub.inode).unwrap();
    let result = restored(&mut host);
    assert!(result.left.is_empty() && result.failed.is_empty(), "{result:?}");
    assert!(!fake.snapshot().keys().any(|path| path.contains("commensal")));
}
