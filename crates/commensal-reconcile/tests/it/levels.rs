//! Groups below level 0 (`cpu.qos_level`), with two and with five levels: what becomes of the policies of their members,
//! and of levels that somebody else has set.

use crate::support::{STATE, applied, instance, journal, planned, restored, specs};
use crate::vendors::{
    BATCH, FIVE, LEVEL as AT_TWO, OWN, batch, everything_back, give_policies, machine, open, read,
    scheduling, settles,
};
use commensal_core::actual::CgroupPath;
use commensal_core::config::parse;
use commensal_core::errno::Errno;
use commensal_core::process::{SCHED_BATCH, SCHED_FIFO, SCHED_IDLE};
use commensal_host::fake::{Effect, FakeHost, FakeLooks, Trouble, VendorKernel};
use commensal_host::{Exit, Host, Scheduling, Signal};
use commensal_reconcile::{PlanRequest, lift, lift_group, lower, lower_group, put_down};
use std::collections::BTreeMap;
use std::path::Path;

/// The kernels with levels.
const KERNELS: [VendorKernel; 2] = [VendorKernel::OPENEULER, FIVE];
const LEVEL: &str = "/sys/fs/cgroup/cpu/batch/cpu.qos_level";

type Threads = BTreeMap<u32, Scheduling>;

/// Returns the scheduling attributes of all live threads.
fn everybody(fake: &FakeHost) -> Threads {
    let alive = fake.processes().into_iter().filter(|process| process.exit.is_none());
    alive.flat_map(|process| process.scheduling).collect()
}

fn online() -> String {
    BATCH.replace("offline", "online")
}

// promise 7
#[test]
fn members_get_their_own_policies_back() {
    for kernel in KERNELS {
        for by_plan in [false, true] {
            let fake = machine(kernel);
            let pid = batch(&fake);
            give_policies(&fake);
            let before = everybody(&fake);
            assert!(before.values().any(|one| one.policy == SCHED_FIFO), "{before:?}");
            settles(&fake, BATCH);
            let inside: Vec<u32> = before.keys().copied().filter(|tid| *tid != std::process::id()).collect();
            let now = everybody(&fake);
            assert!(inside.iter().all(|tid| now[tid] == Scheduling::of(SCHED_IDLE)), "{now:?}");
            // It starts later: nobody knows what it had.
            let later = fake.add_process(&["/sys/fs/cgroup/cpu/batch"]);
            let second = fake.add_thread(pid);
            if by_plan {
                settles(&fake, &online());
            }
            everything_back(&fake);
            let mut wanted = before;
            wanted.extend([(later, Scheduling::default()), (second, Scheduling::default())]);
            assert_eq!(everybody(&fake), wanted, "{kernel:?}, by plan {by_plan}");
        }
    }
}

/// A read that fails while the policies of members are put on record refuses the step: unknown policies would be lost.
// promises 7, 9
#[test]
fn policies_that_cannot_be_read_are_not_taken() {
    let places = ["batch", "batch/inner"].map(|group| format!("/sys/fs/cgroup/cpu/{group}"));
    let paths =
        places.iter().flat_map(|place| ["tasks", "cpu.qos_level"].map(|file| format!("{place}/{file}")));
    for (kernel, path) in paths.flat_map(|path| KERNELS.map(|kernel| (kernel, path.clone()))) {
        for errno in [Errno::EIO, Errno::ENOMEM, Errno::EMFILE] {
            let what = format!("{kernel:?}, {path}: {errno}");
            let fake = machine(kernel);
            batch(&fake);
            give_policies(&fake);
            let before = (fake.snapshot(), everybody(&fake));
            let mut host = fake.another();
            let (found, plan) = planned(&mut host, BATCH).unwrap();
            let effect = Effect::Fails(errno);
            fake.trouble(Trouble { operation: "read", path: path.clone(), value: None, effect, lasts: true });
            let mut record = journal(&mut host).unwrap();
            let outcome = commensal_reconcile::apply(&mut host, &plan.steps, &found, &mut record);
            assert!(fake.no_trouble() > 0, "{what}: it was not read");
            assert!(outcome.failure.is_some(), "{what}");
            assert_eq!(everybody(&fake), before.1, "{what}");
            settles(&fake, BATCH);
            everything_back(&fake);
            assert_eq!((fake.snapshot(), everybody(&fake)), before, "{what}");
        }
    }
}

/// While a group cannot be opened, or the list of its lifted members cannot be read, they stay where they are: they end up
/// neither outside their group nor forgotten.
// promises 7, 9
#[test]
fn lifted_members_are_not_lost_by_a_failed_read() {
    for (operation, file) in [("open", None), ("read", Some("cgroup.procs"))] {
        for errno in [Errno::EIO, Errno::ENOMEM, Errno::EMFILE] {
            let what = format!("{operation}: {errno}");
            let fake = machine(VendorKernel::OPENEULER);
            let pid = starving(&fake);
            settles(&fake, BATCH);
            let mut host = fake.another();
            let mut record = journal(&mut host).unwrap();
            let at = ("/sys/fs/cgroup/cpu", &CgroupPath::new("/batch"));
            let lifted = lift_group(&mut host, &mut record, at, None).unwrap().unwrap();
            let aloft = group_of(&fake, pid);
            assert!(aloft.contains("/commensal-lifted-"), "{what}: {aloft}");
            let path = file.map_or_else(|| format!("{}/batch", at.0), |file| format!("{aloft}/{file}"));
            let effect = Effect::Fails(errno);
            fake.trouble(Trouble { operation, path, value: None, effect, lasts: true });
            assert!(put_down(&mut host, &lifted).is_err(), "{what}");
            assert!(fake.no_trouble() > 0, "{what}: it was not read");
            assert_eq!(group_of(&fake, pid), aloft, "{what}");
            lower_group(&mut host, &mut record, &lifted).unwrap();
            assert_eq!(group_of(&fake, pid), "/sys/fs/cgroup/cpu/batch", "{what}");
            everything_back(&fake);
        }
    }
}

/// What a thread has taken up itself since is its own.
// promises 7, 13
#[test]
fn a_thread_that_changed_or_ended_is_left_alone() {
    for kernel in KERNELS {
        let fake = machine(kernel);
        let pid = batch(&fake);
        give_policies(&fake);
        settles(&fake, BATCH);
        let fifo = Scheduling::real_time(SCHED_FIFO, 50);
        fake.schedule(pid, fifo);
        let inner = fake.processes().into_iter().map(|process| process.pid).max().unwrap();
        fake.end(inner, Exit::Code(0));
        // Another process has its number now, and was SCHED_IDLE of its own will.
        fake.reuse_pid(inner, &[]);
        fake.schedule(inner, Scheduling::of(SCHED_IDLE));
        everything_back(&fake);
        assert_eq!(scheduling(&fake, pid)[&pid], fifo);
        assert_eq!(scheduling(&fake, inner)[&inner], Scheduling::of(SCHED_IDLE));
    }
}

/// Members that fork while the group is replaced: no child is lost, and each is as the kernel made it, but normal.
// promise 7
#[test]
fn a_group_is_replaced_while_its_members_fork() {
    for (kernel, by_plan) in KERNELS.iter().flat_map(|kernel| [(*kernel, false), (*kernel, true)]) {
        let fake = machine(kernel);
        let pid = batch(&fake);
        fake.schedule(pid, Scheduling::of(SCHED_BATCH));
        let before = fake.snapshot();
        settles(&fake, BATCH);
        fake.forks_before_move(pid);
        let threads = everybody(&fake).len();
        if by_plan {
            settles(&fake, &online());
        }
        everything_back(&fake);
        let now = everybody(&fake);
        assert_eq!(now.len(), threads + 1, "a child was started");
        assert_eq!(now[&pid], Scheduling::of(SCHED_BATCH));
        assert!(now.values().all(|one| one.policy != SCHED_IDLE), "{now:?}");
        assert_eq!(fake.snapshot(), before);
        let inside = fake
            .processes()
            .into_iter()
            .filter(|process| process.groups.iter().any(|group| group.ends_with("cpu/batch")));
        assert_eq!(inside.count(), 2);
    }
}

/// A level above 0 makes the members of an online group normal. They have their own policies back at once, from one level
/// to another and at the end, and also if commensal is killed in between.
// promises 7, 11
#[test]
fn members_at_a_level_above_0_keep_their_policies() {
    let calm = machine(FIVE);
    batch(&calm);
    give_policies(&calm);
    let before = (calm.snapshot(), everybody(&calm));
    let fake = calm.copy();
    for text in [AT_TWO, BATCH, AT_TWO] {
        settles(&fake, text);
        let level = if text == AT_TWO { "2" } else { "-1" };
        assert_eq!(read(&fake, LEVEL), level);
        assert_eq!(everybody(&fake) == before.1, text == AT_TWO, "{level}");
    }
    everything_back(&fake);
    assert_eq!((fake.snapshot(), everybody(&fake)), before);
    for n in 0..200 {
        let fake = calm.copy();
        let (found, plan) = planned(&mut fake.another(), AT_TWO).unwrap();
        let mut host = fake.another();
        let mut record = journal(&mut host).unwrap();
        fake.crash_after(n);
        commensal_reconcile::apply(&mut host, &plan.steps, &found, &mut record);
        if !fake.is_crashed() {
            assert!(n > 6, "only {n} changes");
            break;
        }
        let after = fake.restart();
        everything_back(&after);
        assert_eq!((after.snapshot(), everybody(&after)), before, "killed after {n} changes");
    }
}

/// A policy that the kernel refuses now keeps no group from being replaced; it is told, stays on record and is given
/// back later.
// promises 7, 14
#[test]
fn a_policy_that_is_refused_is_given_back_later() {
    for kernel in KERNELS {
        for effect in [Effect::Fails(Errno::EPERM), Effect::Fails(Errno::EBUSY), Effect::Ignored] {
            let fake = machine(kernel);
            let pid = batch(&fake);
            fake.schedule(pid, Scheduling::of(SCHED_BATCH));
            let before = fake.snapshot();
            settles(&fake, BATCH);
            fake.trouble(Trouble {
                operation: "policy",
                path: format!("thread {pid}"),
                value: None,
                effect: effect.clone(),
                lasts: true,
            });
            for _ in 0..2 {
                let back = restored(&mut fake.another());
                assert!(back.left.is_empty() && back.failed.len() == 1, "{effect:?}: {back:?}");
                assert!(back.failed[0].contains(&format!("thread {pid}")), "{back:?}");
                assert_eq!(fake.snapshot(), before, "{effect:?}");
            }
            assert!(fake.no_trouble() >= 2);
            everything_back(&fake);
            assert_eq!(scheduling(&fake, pid)[&pid], Scheduling::of(SCHED_BATCH));
        }
    }
}

/// The journal does not grow with the number of threads, and what is not on record is told.
// promise 7
#[test]
fn records_of_threads_are_bounded() {
    let fake = machine(VendorKernel::OPENEULER);
    let pid = batch(&fake);
    for _ in 0..1_100 {
        let tid = fake.add_thread(pid);
        fake.schedule(tid, Scheduling::of(SCHED_BATCH));
    }
    let (_, _, outcome) = applied(&mut fake.another(), BATCH);
    assert!(outcome.failure.is_none());
    assert!(outcome.told.iter().any(|line| line.starts_with("76 threads of ")), "{:?}", outcome.told);
    let members = |fake: &FakeHost| {
        let mut host = fake.another();
        let path = Path::new(STATE).join("machine.journal");
        let text = host.state_read(&path).unwrap().unwrap_or_default();
        text.lines().filter(|line| line.contains("\"member\"")).count()
    };
    assert_eq!(members(&fake), 1_024);
    // Those of exited threads make room.
    fake.end(pid, Exit::Code(0));
    let (found, _) = planned(&mut fake.another(), BATCH).unwrap();
    let mut host = fake.another();
    let mut journal = journal(&mut host).unwrap();
    commensal_reconcile::forget_gone(&mut host, &found, &mut journal).unwrap();
    assert_eq!(members(&fake), 0);
}

/// A group that somebody else has set below 0 is said to be left as it is, and is; one above 0 cannot be made offline.
// promises 3, 7
#[test]
fn a_level_of_somebody_else_stays() {
    let cases = [(VendorKernel::OPENEULER, "-1"), (FIVE, "-1"), (FIVE, "-2"), (FIVE, "1"), (FIVE, "2")];
    for (kernel, level) in cases {
        let fake = machine(kernel);
        batch(&fake);
        let mut host = fake.another();
        let group = open(&mut host, "/sys/fs/cgroup/cpu/batch");
        host.write(group, "cpu.qos_level", level).unwrap();
        let (before, inode) = (everybody(&fake), group.inode);
        let (found, plan) = planned(&mut host, BATCH).unwrap();
        let words = plan.describe(&found);
        assert!(words.contains(&format!("has cpu.qos_level {level}, set by another program")), "{words}");
        assert!(!words.contains("fresh group") && !words.contains("cpu.qos_level  "), "{words}");
        let unmet = plan.unmet.iter().any(|unmet| unmet.what == "class offline");
        assert_eq!(unmet, !level.starts_with('-'), "{words}");
        settles(&fake, BATCH);
        everything_back(&fake);
        assert_eq!(read(&fake, LEVEL), level);
        assert_eq!(everybody(&fake), before);
        assert_eq!(open(&mut fake.another(), "/sys/fs/cgroup/cpu/batch").inode, inode);
    }
}

/// Somebody else sets a level between plan and apply, or while the group is ours.
// promise 10
#[test]
fn a_level_that_somebody_sets_meanwhile() {
    for level in ["-1", "-2", "2"] {
        let fake = machine(FIVE);
        batch(&fake);
        let (found, plan) = planned(&mut fake.another(), BATCH).unwrap();
        let mut host = fake.another();
        let group = open(&mut host, "/sys/fs/cgroup/cpu/batch");
        host.write(group, "cpu.qos_level", level).unwrap();
        let before = everybody(&fake);
        let mut record = journal(&mut host).unwrap();
        let outcome = commensal_reconcile::apply(&mut host, &plan.steps, &found, &mut record);
        let same = level == "-1";
        assert_eq!(outcome.failure.is_none(), same, "{level}");
        assert!(outcome.failure.is_none_or(|failure| failure.left.is_empty()));
        assert_eq!(read(&fake, LEVEL), level);
        assert_eq!(everybody(&fake), before);
    }
    // Below our own group somebody makes another one, whose level is ours.
    for kernel in KERNELS {
        let fake = machine(kernel);
        batch(&fake);
        let before = fake.snapshot();
        settles(&fake, BATCH);
        let mut host = fake.another();
        let inner = open(&mut host, "/sys/fs/cgroup/cpu/batch/inner");
        let new = host.mkdir(inner, "new").unwrap();
        assert_eq!(host.read(new, "cpu.qos_level").unwrap(), "-1\n");
        everything_back(&fake);
        assert_eq!(read(&fake, "/sys/fs/cgroup/cpu/batch/inner/new/cpu.qos_level"), "0");
        let inner = open(&mut host, "/sys/fs/cgroup/cpu/batch/inner");
        let new = host.open_child(inner, "new").unwrap();
        host.rmdir(inner, "new", new.inode).unwrap();
        assert_eq!(fake.snapshot(), before);
    }
}

/// A group below ours has the level of the group above, once somebody has set that below 0: no fresh group there would
/// have another. Plan and restore say so, nobody leaves SCHED_IDLE, and nothing is left of it when the group is gone.
// promises 3, 7
#[test]
fn somebody_sets_the_group_above_afterwards() {
    const INNER: &str = "/sys/fs/cgroup/cpu/batch/inner";
    let inner = BATCH.replace("/batch", "/batch/inner");
    let dropped = "[group.other]\nclass = \"offline\"\n";
    for (kernel, meanwhile) in KERNELS.iter().flat_map(|kernel| [(*kernel, false), (*kernel, true)]) {
        let fake = machine(kernel);
        batch(&fake);
        settles(&fake, &inner);
        let (found, plan) = planned(&mut fake.another(), dropped).unwrap();
        assert!(plan.describe(&found).contains("recreate cpu:/batch/inner"), "{}", plan.describe(&found));
        let mut host = fake.another();
        let above = open(&mut host, "/sys/fs/cgroup/cpu/batch");
        host.write(above, "cpu.qos_level", "-1").unwrap();
        let (before, inode) = (everybody(&fake), open(&mut host, INNER).inode);
        if meanwhile {
            let mut record = journal(&mut host).unwrap();
            let outcome = commensal_reconcile::apply(&mut host, &plan.steps, &found, &mut record);
            let refusal = outcome.failure.unwrap().refusal.to_string();
            assert!(refusal.contains("reads -1"), "{refusal}");
        } else {
            let words = settles(&fake, dropped);
            assert!(words.contains("keeps its cpu.qos_level: /batch above it has level -1"), "{words}");
            assert_eq!(open(&mut host, INNER).inode, inode);
        }
        assert_eq!(everybody(&fake), before, "{kernel:?}");
        for _ in 0..2 {
            let back = restored(&mut fake.another());
            assert!(back.failed.is_empty(), "{back:?}");
            let told = back.left.iter().filter(|line| line.contains("the group above has level -1"));
            assert_eq!((told.count(), back.left.len()), (1, 1), "{back:?}");
            assert_eq!(read(&fake, &format!("{INNER}/cpu.qos_level")), "-1");
            assert_eq!(everybody(&fake), before);
        }
        fake.vanish(INNER);
        everything_back(&fake);
    }
}

/// What somebody sets after everything was undone is theirs.
// promise 13
#[test]
fn somebody_sets_a_level_after_the_undo() {
    for kernel in KERNELS {
        let fake = machine(kernel);
        batch(&fake);
        settles(&fake, BATCH);
        everything_back(&fake);
        let mut host = fake.another();
        let group = open(&mut host, "/sys/fs/cgroup/cpu/batch");
        host.write(group, "cpu.qos_level", "-1").unwrap();
        let before = (fake.snapshot(), everybody(&fake));
        assert!(restored(&mut fake.another()).nothing());
        assert_eq!((fake.snapshot(), everybody(&fake)), before);
    }
}

/// The kernel gives a level above 0 to every group below, so it cannot be had around an offline group.
// promise 3
#[test]
fn no_level_above_0_around_an_offline_group() {
    let fake = machine(FIVE);
    batch(&fake);
    let inner = BATCH.replace("group.etl", "group.inner").replace("/batch", "/batch/inner");
    let words = settles(&fake, &format!("{AT_TWO}{inner}"));
    assert!(words.contains("unmet    group etl: cpu.qos-level"), "{words}");
    assert!(words.contains("/batch, and /batch/inner there is offline"), "{words}");
    assert_eq!(read(&fake, LEVEL), "0");
    assert_eq!(read(&fake, "/sys/fs/cgroup/cpu/batch/inner/cpu.qos_level"), "-1");
    everything_back(&fake);
}

/// A level that reads back as another one is undone, with the policies that it took.
// promise 10
#[test]
fn a_level_that_reads_back_other() {
    let cases = [(VendorKernel::OPENEULER, "0"), (FIVE, "0"), (FIVE, "-2"), (FIVE, "1"), (FIVE, "2")];
    for (kernel, instead) in cases {
        let fake = machine(kernel);
        batch(&fake);
        give_policies(&fake);
        let before = (fake.snapshot(), everybody(&fake));
        let (found, plan) = planned(&mut fake.another(), BATCH).unwrap();
        fake.takes_instead("cpu.qos_level", instead);
        let mut host = fake.another();
        let mut record = journal(&mut host).unwrap();
        let outcome = commensal_reconcile::apply(&mut host, &plan.steps, &found, &mut record);
        let failure = outcome.failure.unwrap();
        let refusal = failure.refusal.to_string();
        assert!(refusal.contains(&format!("reads {instead}")), "{refusal}");
        everything_back(&fake);
        assert_eq!((fake.snapshot(), everybody(&fake)), before, "{kernel:?}, {instead}");
    }
}

/// A process in a group of ours that handles SIGTERM, a child that does not, and another command of the same group.
fn commands(fake: &FakeHost) -> [u32; 3] {
    settles(fake, OWN);
    let place = ["/sys/fs/cgroup/cpu/commensal-offline/etl"];
    let [first, child, other] = [(); 3].map(|()| fake.add_process(&place));
    fake.set_looks(child, FakeLooks { parent: first, ..FakeLooks::default() });
    for pid in [first, other] {
        fake.handles_sigterm(pid, 7);
    }
    fake.online_is_busy(true);
    [first, child, other]
}

fn group_of(fake: &FakeHost, pid: u32) -> String {
    let process = fake.processes().into_iter().find(|process| process.pid == pid).unwrap();
    let cpu = process.groups.iter().find(|group| group.starts_with("/sys/fs/cgroup/cpu"));
    cpu.unwrap().display().to_string().trim_end_matches('/').to_owned()
}

fn exit_of(fake: &FakeHost, pid: u32) -> Option<Exit> {
    fake.processes().into_iter().find(|process| process.pid == pid).unwrap().exit
}

/// A command that starves beside busy online work never handles SIGTERM where it is. It does once it is lifted, and only
/// it and its children are.
// promises 7, 16
#[test]
fn a_starving_command_is_lifted_to_end() {
    for kernel in KERNELS {
        let fake = machine(kernel);
        let [first, child, other] = commands(&fake);
        let mut host = fake.another();
        let process = host.process(first).unwrap();
        host.signal(&process, Signal::TERM).unwrap();
        assert_eq!(exit_of(&fake, first), None, "it starves");
        let lifted = lift(&mut host, &process).unwrap().unwrap();
        assert_eq!(exit_of(&fake, first), Some(Exit::Code(7)));
        assert_eq!(lifted.count(), 2);
        assert_eq!(group_of(&fake, child), "/sys/fs/cgroup/cpu");
        assert_eq!(lifted.to(), "/sys/fs/cgroup/cpu");
        assert_eq!(scheduling(&fake, child)[&child], Scheduling::default());
        assert_eq!(group_of(&fake, other), lifted.from());
        // It has not ended in time: the rest goes back, where the kernel makes it SCHED_IDLE.
        assert_eq!(lower(&mut host, &lifted), 1);
        assert_eq!(group_of(&fake, child), lifted.from());
        assert_eq!(scheduling(&fake, child)[&child], Scheduling::of(SCHED_IDLE));
    }
}

/// A command in an idle group, or below one, is lifted as well: above the idle group, or, if no process may be there, to
/// the group of the program that lifts it. Its scheduling policy is its own, and it goes back.
// promise 16
#[test]
fn a_command_in_an_idle_group_is_lifted_to_end() {
    for v2 in [false, true] {
        for (idle, above) in [("/commensal-offline", "/"), ("/commensal-offline/etl", "/commensal-offline")] {
            let what = format!("v2 {v2}, idle {idle}");
            let fake = if v2 { FakeHost::v2(2, 1 << 30) } else { FakeHost::v1(2, 1 << 30) };
            let mount = if v2 { "/sys/fs/cgroup" } else { "/sys/fs/cgroup/cpu" };
            let mut host = fake.another();
            let root = host.open(Path::new(mount)).unwrap();
            let [parent, _] = ["commensal-offline", "shell"].map(|name| host.mkdir(root, name).unwrap());
            if v2 {
                host.write(root, "cgroup.subtree_control", "+cpu").unwrap();
                host.write(parent, "cgroup.subtree_control", "+cpu").unwrap();
            }
            host.mkdir(parent, "etl").unwrap();
            let home = format!("{mount}/commensal-offline/etl");
            let pid = fake.add_process(&[&home]);
            let process = host.process(pid).unwrap();
            let now = |fake: &FakeHost| {
                let process = fake.processes().into_iter().find(|process| process.pid == pid).unwrap();
                let group = process.groups.iter().find(|group| group.starts_with(mount)).unwrap().clone();
                group.display().to_string().trim_end_matches('/').to_owned()
            };
            assert_eq!(lift(&mut host, &process).unwrap(), None, "{what}: nothing is idle");
            let group = host.open(Path::new(&format!("{mount}{idle}"))).unwrap();
            host.write(group, "cpu.idle", "1").unwrap();
            // The second group above has controllers for its children, so that on v2 no process may be in it.
            let above = if v2 && above != "/" { "/shell" } else { above.trim_end_matches('/') };
            let line = if v2 { "0::/shell\n" } else { "1:cpu:/shell\n" };
            fake.set_file("/proc/self/cgroup", line);
            let lifted = lift(&mut host, &process).unwrap().unwrap();
            assert_eq!((lifted.count(), now(&fake)), (1, format!("{mount}{above}")), "{what}");
            assert_eq!(scheduling(&fake, pid)[&pid], Scheduling::default(), "{what}");
            assert_eq!((lower(&mut host, &lifted), now(&fake)), (1, home), "{what}");
        }
    }
}

/// What a lifted command has started meanwhile goes back with it, also after the command has ended.
// promise 7
#[test]
fn what_a_lifted_command_starts_goes_back() {
    for kernel in KERNELS {
        let fake = machine(kernel);
        let [first, child, _] = commands(&fake);
        let mut host = fake.another();
        let process = host.process(first).unwrap();
        // A child of this process that has nothing to do with the command.
        let sibling = fake.add_process(&["/sys/fs/cgroup/cpu"]);
        fake.set_looks(sibling, FakeLooks { parent: std::process::id(), ..FakeLooks::default() });
        let lifted = lift(&mut host, &process).unwrap().unwrap();
        let [grandchild, foreign] = [child, 1].map(|parent| {
            let pid = fake.add_process(&["/sys/fs/cgroup/cpu"]);
            fake.set_looks(pid, FakeLooks { parent, ..FakeLooks::default() });
            pid
        });
        // Its parent has exited, so it is a child of this process now.
        let orphan = fake.add_process(&["/sys/fs/cgroup/cpu"]);
        fake.set_looks(orphan, FakeLooks { parent: std::process::id(), ..FakeLooks::default() });
        fake.end(first, Exit::Code(0));
        assert_eq!(lower(&mut host, &lifted), 3);
        for pid in [child, grandchild, orphan] {
            assert_eq!(group_of(&fake, pid), lifted.from());
            assert_eq!(scheduling(&fake, pid)[&pid], Scheduling::of(SCHED_IDLE));
        }
        for pid in [foreign, sibling] {
            assert_eq!(group_of(&fake, pid), "/sys/fs/cgroup/cpu");
        }
    }
}

/// Nothing is moved that is in no group below 0, or is another process by now, or where the user may not.
// promise 13
#[test]
fn only_what_starves_is_lifted() {
    for kernel in KERNELS {
        let fake = machine(kernel);
        let [first, child, _] = commands(&fake);
        let mut host = fake.another();
        let outside = fake.add_process(&["/sys/fs/cgroup/cpu/commensal-online"]);
        let process = host.process(outside).unwrap();
        assert_eq!(lift(&mut host, &process).unwrap(), None);
        let process = host.process(child).unwrap();
        fake.end(child, Exit::Code(0));
        fake.reuse_pid(child, &["/sys/fs/cgroup/cpu/commensal-offline/etl"]);
        assert_eq!(lift(&mut host, &process).unwrap(), None);
        let process = host.process(first).unwrap();
        for errno in [Errno::EACCES, Errno::EBUSY, Errno::EINVAL] {
            fake.refuse_file("cgroup.procs", errno);
            assert_eq!(lift(&mut host, &process).unwrap_err().errno, errno);
            fake.refuse_nothing();
        }
        assert_eq!(group_of(&fake, first), "/sys/fs/cgroup/cpu/commensal-offline/etl");
        // Somebody else moves it meanwhile, and it is not moved back.
        let lifted = lift(&mut host, &process).unwrap().unwrap();
        fake.move_process(first, "/sys/fs/cgroup/cpu/commensal-online");
        assert_eq!(lower(&mut host, &lifted), 0);
    }
    let plain = FakeHost::v2(2, 1 << 30);
    let pid = plain.add_process(&[]);
    let mut host = plain.another();
    let process = host.process(pid).unwrap();
    assert_eq!(lift(&mut host, &process).unwrap(), None);
}

/// `restore` leaves no process below level 0 in a group of ours that it cannot remove.
// promises 7, 11
#[test]
fn restore_raises_the_groups_that_stay() {
    for kernel in KERNELS {
        let calm = machine(kernel);
        let before = calm.snapshot();
        let [first, ..] = commands(&calm);
        let after = |fake: &FakeHost, what: &str| {
            let back = restored(&mut fake.another());
            assert!(back.failed.is_empty(), "{what}: {back:?}");
            assert!(
                back.left.iter().any(|line| line.contains("3 processes are in it: ")),
                "{what}: {back:?}"
            );
            assert_eq!(read(fake, "/sys/fs/cgroup/cpu/commensal-offline/etl/cpu.qos_level"), "0", "{what}");
            assert!(everybody(fake).values().all(|one| one.policy != SCHED_IDLE), "{what}");
            let mut host = fake.another();
            for process in fake.processes().into_iter().filter(|one| one.spec.is_none() && one.exit.is_none())
            {
                if process.pid != std::process::id() {
                    let process = host.process(process.pid).unwrap();
                    host.signal(&process, Signal::TERM).unwrap();
                }
            }
            assert_eq!(exit_of(fake, first), Some(Exit::Code(7)), "{what}");
            everything_back(fake);
            assert_eq!(fake.snapshot(), before, "{what}");
        };
        let fake = calm.copy();
        let back = restored(&mut fake.another());
        assert!(
            back.done.iter().any(|line| line.contains("below level 0 they might get no CPU")),
            "{back:?}"
        );
        after(&fake, "again");
        // Killed, or refused once, at every change.
        for n in 0..200 {
            let fake = calm.copy();
            fake.crash_after(n);
            let boot_id = commensal_sensors::machine::boot_id(&fake).unwrap_or_default();
            let _ = commensal_reconcile::restore(&mut fake.another(), Path::new(STATE), &boot_id, true);
            if !fake.is_crashed() {
                assert!(n > 10, "only {n} changes");
                break;
            }
            after(&fake.restart(), &format!("{kernel:?}, killed after {n} changes"));
            let fake = calm.copy();
            fake.fail_write(n + 1, Errno::EBUSY);
            let back = restored(&mut fake.another());
            fake.fail_write(u32::MAX, Errno::EBUSY);
            after(&fake, &format!("{kernel:?}, refused at change {n}, and said {back:?}"));
        }
    }
}

/// Creates `/batch` in the hierarchies of cpu and freezer, with a process that wants a CPU beside busy online work; returns
/// its PID.
pub fn starving(fake: &FakeHost) -> u32 {
    let mut host = fake.another();
    let places = ["cpu", "freezer"].map(|name| format!("/sys/fs/cgroup/{name}"));
    for mount in &places {
        let root = open(&mut host, mount);
        host.mkdir(root, "batch").unwrap();
    }
    let inside = places.each_ref().map(|mount| format!("{mount}/batch"));
    let pid = fake.add_process(&inside.each_ref().map(String::as_str));
    fake.wants_cpu(pid, true);
    fake.online_is_busy(true);
    pid
}

/// A group whose members starve is frozen, not only told to freeze: they are lifted meanwhile.
// promises 7, 11
#[test]
fn what_starves_is_lifted_to_be_frozen() {
    const STATE_OF: &str = "/sys/fs/cgroup/freezer/batch/freezer.state";
    for kernel in KERNELS {
        let fake = machine(kernel);
        let pid = starving(&fake);
        let before = fake.snapshot();
        settles(&fake, BATCH);
        let mut host = fake.another();
        let group = open(&mut host, "/sys/fs/cgroup/freezer/batch");
        host.write(group, "freezer.state", "FROZEN").unwrap();
        assert_eq!(read(&fake, STATE_OF), "FREEZING", "without help");
        host.write(group, "freezer.state", "THAWED").unwrap();
        settles(&fake, &format!("{BATCH}frozen = true\n"));
        assert_eq!(read(&fake, STATE_OF), "FROZEN");
        assert_eq!(group_of(&fake, pid), "/sys/fs/cgroup/cpu/batch");
        assert_eq!(scheduling(&fake, pid)[&pid], Scheduling::of(SCHED_IDLE));
        let root = open(&mut host, "/sys/fs/cgroup/cpu");
        assert_eq!(host.children(root).unwrap(), ["batch"]);
        everything_back(&fake);
        assert_eq!(fake.snapshot(), before);
        // They cannot be lifted: that the group is not frozen is told.
        settles(&fake, BATCH);
        let (found, plan) = planned(&mut fake.another(), &format!("{BATCH}frozen = true\n")).unwrap();
        fake.refuse_file("", Errno::EPERM);
        let mut host = fake.another();
        let mut record = journal(&mut host).unwrap();
        let outcome = commensal_reconcile::apply(&mut host, &plan.steps, &found, &mut record);
        let told = outcome.told.join("\n");
        assert!(told.contains("FREEZING") && told.contains("EPERM"), "{told}");
        fake.refuse_nothing();
    }
}

/// Threads with cgroups of their own below an offline group, such as those of QEMU under libvirt, are lifted one by one,
/// and come back to these cgroups.
// promise 14
#[test]
fn lifted_threads_come_back_to_their_own_cgroups() {
    const CPU: &str = "/sys/fs/cgroup/cpu";
    for kernel in KERNELS {
        let fake = machine(kernel);
        let pid = starving(&fake);
        let mut threads = vec![pid];
        threads.extend((0..2).map(|_| fake.add_thread(pid)));
        let mut host = fake.another();
        let batch = open(&mut host, &format!("{CPU}/batch"));
        for (tid, name) in threads.iter().zip(["emulator", "vcpu0", "vcpu1"]) {
            host.mkdir(batch, name).unwrap();
            fake.move_thread(*tid, format!("{CPU}/batch/{name}"));
        }
        let places = || -> Vec<String> {
            let file = |tid: &u32| format!("/proc/{pid}/task/{tid}/cgroup");
            threads.iter().map(|tid| fake.read_file(Path::new(&file(tid))).unwrap()).collect()
        };
        let before = places();
        settles(&fake, BATCH);
        let mut record = journal(&mut host).unwrap();
        for (number, name) in ["emulator", "vcpu0", "vcpu1"].into_iter().enumerate() {
            let at = (CPU, &CgroupPath::new(&format!("/batch/{name}")));
            let lifted = lift_group(&mut host, &mut record, at, None).unwrap().unwrap();
            let away: Vec<bool> = places().iter().zip(&before).map(|(now, was)| now != was).collect();
            assert_eq!(away, [0, 1, 2].map(|one| one == number), "{kernel:?}: {name}");
            lower_group(&mut host, &mut record, &lifted).unwrap();
            assert_eq!(places(), before, "{kernel:?}: {name}");
        }
        settles(&fake, &format!("{BATCH}frozen = true\n"));
        assert_eq!(read(&fake, "/sys/fs/cgroup/freezer/batch/freezer.state"), "FROZEN", "{kernel:?}");
        assert_eq!(places(), before, "{kernel:?}: frozen");
        everything_back(&fake);
        assert_eq!(places(), before, "{kernel:?}: restored");
    }
}

/// A minimum share is for offline groups, at most a quarter of the machine, and needs an agent and a kernel on which a
/// group starves. What it costs online work is told.
// promises 3, 6
#[test]
fn a_minimum_share_says_what_it_costs() {
    let with = |text: &str| format!("{BATCH}cpu.min-share = {text}\n");
    for kernel in KERNELS {
        let fake = machine(kernel);
        batch(&fake);
        let words = |text: &str, kept: bool| {
            let specs = specs(text);
            let mut host = fake.another();
            let survey = instance().survey(&mut host).unwrap();
            let request = PlanRequest { kept, ..PlanRequest::all(&specs) };
            let planned = instance().plan(&mut host, &survey, &request).map_err(|error| error.to_string())?;
            Ok::<String, String>(planned.plan.describe(&planned.actual))
        };
        let kept = words(&with("\"2 %\""), true).unwrap();
        assert!(
            kept.contains("with a quota of 0.16 CPUs; that takes up to 0.08 CPUs from online work"),
            "{kept}"
        );
        let alone = words(&with("\"2 %\""), false).unwrap();
        assert!(
            alone.contains("unmet    group etl: cpu.min-share") && alone.contains("commensal agent"),
            "{alone}"
        );
        let error = words(&with("\"30 %\""), true).unwrap_err();
        assert!(
            error.contains("cpu.min-share is 1.2 CPUs, but at most a quarter of this machine, 1 CPU,"),
            "{error}"
        );
        let error = words(&(with("\"2 %\"") + "cpu.max = \"1 %\"\n"), true).unwrap_err();
        assert!(error.contains("cpu.min-share (0.08 CPUs) must not exceed cpu.max (0.04 CPUs)"), "{error}");
    }
    let errors = parse("groups.toml", &with("\"2 %\"").replace("offline", "online")).unwrap_err();
    assert!(errors[0].to_string().contains("is a property of offline groups"), "{errors:?}");
    // No group starves where another mechanism is used.
    let fake = FakeHost::v1(4, 16 << 30);
    batch(&fake);
    let (found, plan) = planned(&mut fake.another(), &with("\"2 %\"")).unwrap();
    let words = plan.describe(&found);
    assert!(words.contains("offline work yields by cpu.idle here"), "{words}");
}
