//! Vendor kernels and core scheduling, on FakeHost with their observed and documented rules: planned, applied and undone,
//! also after a crash at any moment.

use crate::support::{self, applied, planned, restored};
use commensal_core::errno::Errno;
use commensal_core::process::{SCHED_BATCH, SCHED_FIFO, SCHED_IDLE, SCHED_RR};
use commensal_host::fake::{Effect, FakeHost, Trouble, VendorKernel};
use commensal_host::{Dir, Host, Scheduling};
use std::collections::BTreeMap;
use std::path::Path;

const MEMORY: u64 = 16 << 30;
pub const FIVE: VendorKernel = VendorKernel::OPENEULER_FIVE;
const IDENTITY: &str = "/proc/sys/kernel/sched_group_identity_enabled";
const MEMCG: &str = "/proc/sys/vm/memcg_qos_enable";

pub const OWN: &str = "[group.web]\nclass = \"online\"\n[group.etl]\nclass = \"offline\"\n";
pub const LEVEL: &str =
    "[group.etl]\nclass = \"online\"\ncpu.qos-level = 2\nmatch = [{ cgroup = \"/batch\" }]\n";
pub const BATCH: &str = "[group.etl]\nclass = \"offline\"\nmatch = [{ cgroup = \"/batch\" }]\n";

pub fn machine(kernel: VendorKernel) -> FakeHost {
    let fake = FakeHost::v1(4, MEMORY);
    fake.vendor_kernel(kernel);
    fake
}

pub fn read(fake: &FakeHost, path: &str) -> String {
    fake.another()
        .read_file(Path::new(path))
        .map_or_else(|error| error.errno.to_string(), |text| text.trim().to_owned())
}

pub fn open(host: &mut FakeHost, path: &str) -> Dir {
    host.open(Path::new(path)).unwrap_or_else(|error| panic!("{error}"))
}

/// Creates `/batch` with a child, a weight, and a process with two threads; returns its PID.
pub fn batch(fake: &FakeHost) -> u32 {
    let mut host = fake.another();
    for controller in ["cpu", "memory"] {
        let root = open(&mut host, &format!("/sys/fs/cgroup/{controller}"));
        let group = host.mkdir(root, "batch").unwrap();
        host.mkdir(group, "inner").unwrap();
        if controller == "cpu" {
            host.write(group, "cpu.shares", "777").unwrap();
            host.write(group, "cpu.cfs_period_us", "50000").unwrap();
            host.write(group, "cpu.cfs_quota_us", "25000").unwrap();
        }
    }
    let pid = fake.add_process(&["/sys/fs/cgroup/cpu/batch", "/sys/fs/cgroup/memory/batch"]);
    fake.add_process(&["/sys/fs/cgroup/cpu/batch/inner", "/sys/fs/cgroup/memory/batch/inner"]);
    fake.add_thread(pid);
    pid
}

/// Gives the threads of all processes scheduling attributes of their own, and the groups of [`batch`] a real-time
/// budget. In other groups no thread is real-time, because the kernel would not let it into a group without a budget.
pub fn give_policies(fake: &FakeHost) {
    let mut host = fake.another();
    for path in ["batch", "batch/inner"] {
        if let Ok(group) = host.open(&Path::new("/sys/fs/cgroup/cpu").join(path)) {
            host.write(group, "cpu.rt_runtime_us", "1000").unwrap();
        }
    }
    let plain = [
        Scheduling::of(SCHED_BATCH),
        Scheduling::of(SCHED_IDLE),
        Scheduling { reset_on_fork: true, ..Scheduling::default() },
        Scheduling::default(),
    ];
    let real_time = [
        Scheduling::real_time(SCHED_FIFO, 3),
        Scheduling { reset_on_fork: true, ..Scheduling::real_time(SCHED_RR, 9) },
    ];
    let mut number = 0;
    for process in fake.processes().into_iter().filter(|one| one.pid != std::process::id()) {
        let budget = process.groups.iter().any(|group| group.starts_with("/sys/fs/cgroup/cpu/batch"));
        let all = if budget { [&real_time[..], &plain[..]].concat() } else { plain.to_vec() };
        for _ in process.threads.len()..3 {
            fake.add_thread(process.pid);
        }
        for tid in scheduling(fake, process.pid).into_keys() {
            fake.schedule(tid, all[number % all.len()]);
            number += 1;
        }
    }
}

/// Returns the scheduling attributes of a process's threads.
pub fn scheduling(fake: &FakeHost, pid: u32) -> BTreeMap<u32, Scheduling> {
    fake.processes().into_iter().find(|process| process.pid == pid).unwrap().scheduling
}

fn idle(fake: &FakeHost, pid: u32) -> bool {
    fake.processes().into_iter().find(|process| process.pid == pid).unwrap().idle
}

/// Applies, asserts that a second plan is empty, and returns the description of the first.
pub fn settles(fake: &FakeHost, text: &str) -> String {
    let (found, plan, outcome) = applied(&mut fake.another(), text);
    let words = plan.describe(&found);
    assert!(
        outcome.failure.is_none(),
        "{words}{:?}",
        outcome.failure.map(|failure| failure.refusal.to_string())
    );
    let (again, second) = planned(&mut fake.another(), text).unwrap();
    assert!(second.is_empty(), "{words}again\n{}", second.describe(&again));
    words
}

pub fn everything_back(fake: &FakeHost) {
    let restored = restored(&mut fake.another());
    assert!(restored.failed.is_empty() && restored.left.is_empty(), "{restored:?}");
    assert!(support::restored(&mut fake.another()).nothing());
}

#[test]
fn openeuler_own_groups() {
    let fake = machine(VendorKernel::OPENEULER);
    let before = fake.snapshot();
    let words = settles(&fake, OWN);
    assert!(words.contains("cpu.qos_level  0 -> -1  (irreversible)"), "{words}");
    assert_eq!(read(&fake, "/sys/fs/cgroup/cpu/commensal-offline/etl/cpu.qos_level"), "-1");
    assert_eq!(read(&fake, "/sys/fs/cgroup/memory/commensal-offline/memory.qos_level"), "-1");
    assert_eq!(read(&fake, "/sys/fs/cgroup/cpu/commensal-online/cpu.qos_level"), "0");
    assert_eq!(read(&fake, MEMCG), "1");
    everything_back(&fake);
    assert_eq!(fake.snapshot(), before);
    assert_eq!(read(&fake, MEMCG), "0");
}

// promise 7
#[test]
fn openeuler_irreversible_level_is_undone_by_a_fresh_group() {
    let fake = machine(VendorKernel::OPENEULER);
    let pid = batch(&fake);
    let before = fake.snapshot();
    let inode = open(&mut fake.another(), "/sys/fs/cgroup/cpu/batch").inode;
    let words = settles(&fake, BATCH);
    assert!(words.contains("cannot be made online again"), "{words}");
    assert!(idle(&fake, pid));
    assert_eq!(read(&fake, "/sys/fs/cgroup/cpu/batch/inner/cpu.qos_level"), "-1");
    everything_back(&fake);
    assert_eq!(fake.snapshot(), before, "the same groups with the same settings");
    assert!(!idle(&fake, pid), "the kernel leaves SCHED_IDLE on tasks that come out");
    assert_ne!(open(&mut fake.another(), "/sys/fs/cgroup/cpu/batch").inode, inode);
    let groups = fake.processes().into_iter().find(|process| process.pid == pid).unwrap().groups;
    assert!(groups.iter().any(|group| group.ends_with("cpu/batch")), "{groups:?}");
}

/// Removing the group from the groups file plans the same replacement, and other records of the group stay valid.
// promise 7
#[test]
fn openeuler_recreating_is_a_step_of_the_plan() {
    let fake = machine(VendorKernel::OPENEULER);
    let pid = batch(&fake);
    let before = fake.snapshot();
    settles(&fake, &format!("{BATCH}cpu.max = \"10 %\"\n"));
    assert_eq!(read(&fake, "/sys/fs/cgroup/cpu/batch/cpu.cfs_quota_us"), "20000");
    let online = BATCH.replace("offline", "online");
    let (found, plan) = planned(&mut fake.another(), &online).unwrap();
    let words = plan.describe(&found);
    assert!(
        words.contains("recreate cpu:/batch  cpu.qos_level  -1 -> 0  (members move to a fresh group)"),
        "{words}"
    );
    settles(&fake, &online);
    assert!(!idle(&fake, pid));
    everything_back(&fake);
    assert_eq!(fake.snapshot(), before);
}

/// After a reboot the groups of an interrupted replacement no longer exist, and are not created again.
// promise 13
#[test]
fn openeuler_a_replacing_of_an_earlier_boot_is_not_finished() {
    let online = BATCH.replace("offline", "online");
    let state = Path::new(support::STATE);
    let file = state.join("machine.journal");
    // Killed between the removal of the old group and the renaming of the fresh one.
    let interrupted = (0..60).find_map(|n| {
        let fake = machine(VendorKernel::OPENEULER);
        batch(&fake);
        applied(&mut fake.another(), BATCH);
        let (found, plan) = planned(&mut fake.another(), &online).unwrap();
        let mut host = fake.another();
        let mut journal = support::journal(&mut host).unwrap();
        fake.crash_after(n);
        commensal_reconcile::apply(&mut host, &plan.steps, &found, &mut journal);
        let mut after = fake.restart();
        let gone = after.open(Path::new("/sys/fs/cgroup/cpu/batch")).is_err();
        gone.then(|| after.state_read(&file).unwrap().unwrap())
    });
    let text = interrupted.expect("a moment without the group");
    assert!(text.contains("recreating"), "{text}");
    let rebooted = machine(VendorKernel::OPENEULER);
    let mut host = rebooted.another();
    host.state_dir(state).unwrap();
    host.state_replace(&file, &text).unwrap();
    rebooted.set_file("/proc/sys/kernel/random/boot_id", "another\n");
    let before = rebooted.snapshot();
    let instance = support::instance();
    assert_eq!(instance.recover(&mut host), [""; 0]);
    instance.open_journal(&mut host).unwrap();
    assert_eq!(rebooted.snapshot(), before);
}

/// With five levels, the first level other than 0 that a group gets cannot be changed, which includes the scratch
/// group's.
#[test]
fn openeuler_with_five_levels_is_found_and_undone_by_a_fresh_group() {
    let fake = machine(FIVE);
    batch(&fake);
    let before = fake.snapshot();
    let inode = open(&mut fake.another(), "/sys/fs/cgroup/cpu/batch").inode;
    let words = settles(&fake, BATCH);
    assert!(words.contains("cpu.qos_level  0 -> -1  (irreversible)"), "{words}");
    everything_back(&fake);
    assert_eq!(fake.snapshot(), before);
    assert_ne!(open(&mut fake.another(), "/sys/fs/cgroup/cpu/batch").inode, inode);
}

/// A level for online work is set only where the groups file asks for it, and goes back like any other.
// promise 7
#[test]
fn openeuler_a_level_for_online_work() {
    let fake = machine(FIVE);
    let pid = batch(&fake);
    let before = fake.snapshot();
    let level = |fake: &FakeHost| read(fake, "/sys/fs/cgroup/cpu/batch/cpu.qos_level");
    settles(&fake, &LEVEL.replace("cpu.qos-level = 2\n", ""));
    assert_eq!(level(&fake), "0");
    let words = settles(&fake, LEVEL);
    assert!(words.contains("cpu.qos_level  0 -> 2  (irreversible)"), "{words}");
    assert!(words.contains("cannot have another level"), "{words}");
    // From one level to another by way of a fresh group.
    let words = settles(&fake, BATCH);
    let at = |part: &str| words.find(part).unwrap_or_else(|| panic!("no {part} in\n{words}"));
    assert!(at("cpu.qos_level  2 -> 0  (members") < at("cpu.qos_level  0 -> -1"), "{words}");
    assert!(idle(&fake, pid));
    settles(&fake, LEVEL);
    assert_eq!(level(&fake), "2");
    assert!(!idle(&fake, pid));
    everything_back(&fake);
    assert_eq!(fake.snapshot(), before);
}

#[test]
fn openeuler_a_level_for_online_work_that_cannot_be_had() {
    let check = |fake: FakeHost, want: &str| {
        batch(&fake);
        let mut host = fake.another();
        let group = open(&mut host, "/sys/fs/cgroup/cpu/batch");
        let _ = host.write(group, "cpu.qos_level", "1");
        let level = || read(&fake, "/sys/fs/cgroup/cpu/batch/cpu.qos_level");
        let before = level();
        let (_, plan, outcome) = applied(&mut fake.another(), LEVEL);
        assert!(outcome.failure.is_none());
        let unmet = plan.unmet.iter().find(|unmet| unmet.what == "cpu.qos-level");
        assert!(unmet.is_some_and(|unmet| unmet.because.contains(want)), "{want}: {:?}", plan.unmet);
        assert_eq!(level(), before);
    };
    check(machine(FIVE), "set by another program");
    check(machine(VendorKernel::OPENEULER), "has two levels");
    check(machine(VendorKernel::ANOLIS), "this is not a kernel of openEuler");
}

#[test]
fn openeuler_an_online_group_that_somebody_made_offline() {
    let fake = machine(VendorKernel::OPENEULER);
    batch(&fake);
    let mut host = fake.another();
    let group = open(&mut host, "/sys/fs/cgroup/cpu/batch");
    host.write(group, "cpu.qos_level", "-1").unwrap();
    let (_, plan) = planned(&mut host, &BATCH.replace("offline", "online")).unwrap();
    assert!(
        plan.unmet.iter().any(|unmet| unmet.because.contains("does not allow it to be changed back")),
        "{:?}",
        plan.unmet
    );
}

// promise 7
#[test]
fn anolis_turns_the_switch_on_first_and_reaches_every_descendant() {
    let fake = machine(VendorKernel::ANOLIS);
    batch(&fake);
    let before = fake.snapshot();
    let text = format!("[group.web]\nclass = \"online\"\n{BATCH}");
    let words = settles(&fake, &text);
    let at = |part: &str| words.find(part).unwrap_or_else(|| panic!("no {part} in\n{words}"));
    assert!(at("switch   kernel.sched_group_identity_enabled  0 -> 1") < at("cpu.bvt_warp_ns"), "{words}");
    for (path, value) in
        [("batch", "-1"), ("batch/inner", "-1"), ("commensal-online", "2"), ("commensal-online/web", "2")]
    {
        assert_eq!(read(&fake, &format!("/sys/fs/cgroup/cpu/{path}/cpu.bvt_warp_ns")), value, "{path}");
    }
    assert_eq!(read(&fake, IDENTITY), "1");
    // The kernel compares the virtual run times of -1 and 2, so the offline group's weight is made small as well.
    assert_eq!(read(&fake, "/sys/fs/cgroup/cpu/batch/cpu.idle"), "1");
    assert_eq!(read(&fake, "/sys/fs/cgroup/cpu/batch/inner/cpu.idle"), "0");
    assert!(at("cpu.shares  777 -> 1024") < at("cpu.idle  0 -> 1"), "{words}");
    everything_back(&fake);
    assert_eq!(fake.snapshot(), before);
    assert_eq!(read(&fake, IDENTITY), "0");
}

/// Where a container manager writes the weight, the smallest one is underneath; a kernel without `cpu.idle` has the same.
#[test]
fn anolis_smallest_weight_underneath() {
    let fake = machine(VendorKernel::ANOLIS);
    fake.without_file("cpu.idle");
    batch(&fake);
    let before = fake.snapshot();
    let words = settles(&fake, BATCH);
    assert!(words.contains("cpu.shares  777 -> 2 ") && words.contains("cpu.bvt_warp_ns  0 -> -1"), "{words}");
    everything_back(&fake);
    assert_eq!(fake.snapshot(), before);
}

/// A group whose flags somebody has written by themselves keeps them, and yields by its weight.
#[test]
fn anolis_leaves_flags_that_somebody_wrote() {
    let fake = machine(VendorKernel::ANOLIS);
    batch(&fake);
    fake.another().write_setting(Path::new(IDENTITY), "1").unwrap();
    let mut host = fake.another();
    let group = open(&mut host, "/sys/fs/cgroup/cpu/batch");
    host.write(group, "cpu.identity", "4").unwrap();
    let before = fake.snapshot();
    let flags = || read(&fake, "/sys/fs/cgroup/cpu/batch/cpu.identity");
    for text in [BATCH.to_owned(), BATCH.replace("offline", "online")] {
        let words = settles(&fake, &text);
        assert!(words.contains("/batch keeps its cpu.identity 4"), "{words}");
        assert!(!words.contains("cpu:/batch  cpu.bvt_warp_ns"), "{words}");
        assert_eq!(flags(), "4");
    }
    settles(&fake, BATCH);
    assert_eq!(read(&fake, "/sys/fs/cgroup/cpu/batch/cpu.idle"), "1");
    everything_back(&fake);
    assert_eq!(fake.snapshot(), before);
}

/// Turning the switch on would clear flags that somebody has stored, even in a group that the file claims; and a switch
/// that commensal turned on stays on while somebody's flags need it.
#[test]
fn anolis_switch_and_flags_of_others() {
    let fake = machine(VendorKernel::ANOLIS);
    batch(&fake);
    let mut host = fake.another();
    let inner = open(&mut host, "/sys/fs/cgroup/cpu/batch/inner");
    host.write(inner, "cpu.identity", "4").unwrap();
    let words = settles(&fake, BATCH);
    assert!(!words.contains("bvt") && words.contains("cpu.idle  0 -> 1"), "{words}");
    everything_back(&fake);
    let fake = machine(VendorKernel::ANOLIS);
    batch(&fake);
    settles(&fake, OWN);
    let mut host = fake.another();
    let group = open(&mut host, "/sys/fs/cgroup/cpu/batch");
    host.write(group, "cpu.identity", "4").unwrap();
    let back = restored(&mut fake.another());
    assert!(back.left.iter().any(|line| line.contains("stays 1: group /batch uses it")), "{back:?}");
    assert_eq!(read(&fake, "/sys/fs/cgroup/cpu/batch/cpu.identity"), "4");
    host.write(group, "cpu.identity", "0").unwrap();
    everything_back(&fake);
    assert_eq!(read(&fake, IDENTITY), "0");
}

/// Anolis 6.6 has other files, for which there is no driver: survey and plan name them, and work yields by `cpu.idle`.
#[test]
fn anolis_66_is_told_and_not_used() {
    let fake = machine(VendorKernel::Anolis66);
    batch(&fake);
    let before = fake.snapshot();
    let words = settles(&fake, BATCH);
    assert!(words.contains("group etl: not supported: found cpu.priority and cpu.identity"), "{words}");
    assert!(words.contains("cpu.idle  0 -> 1"), "{words}");
    let look = commensal_sensors::survey(&mut fake.another(), "commensal-probe-test", None).unwrap();
    let key = (commensal_core::knob::KnobId::CpuBvtWarpNs, commensal_core::knob::Version::V1);
    assert!(look.caps.knobs[&key].obstacle().unwrap().contains("Anolis 6.6"));
    everything_back(&fake);
    assert_eq!(fake.snapshot(), before);
}

/// A switch that was turned and cannot be read back is turned back at once, or by `restore`.
// promise 7
#[test]
fn anolis_a_switch_that_cannot_be_read_back_is_turned_back() {
    for lasts in [false, true] {
        let fake = machine(VendorKernel::ANOLIS);
        batch(&fake);
        let before = fake.snapshot();
        let mut host = fake.another();
        let (actual, plan) = planned(&mut host, BATCH).unwrap();
        let (path, effect) = (IDENTITY.to_owned(), Effect::Fails(Errno::EIO));
        fake.trouble(Trouble { operation: "read", path, value: None, effect, lasts });
        let mut journal = support::journal(&mut host).unwrap();
        let outcome = commensal_reconcile::apply(&mut host, &plan.steps, &actual, &mut journal);
        let failure = outcome.failure.unwrap();
        assert!(failure.refusal.to_string().contains("cannot be read back"), "{failure:?}");
        assert!(fake.no_trouble() > 0);
        assert_eq!(failure.left.is_empty(), !lasts, "{failure:?}");
        assert_eq!(read(&fake, IDENTITY), "0", "lasts: {lasts}");
        everything_back(&fake);
        assert_eq!(fake.snapshot(), before);
    }
}

#[test]
fn anolis_a_switch_that_was_on_stays_on() {
    let fake = machine(VendorKernel::ANOLIS);
    batch(&fake);
    fake.another().write_setting(Path::new(IDENTITY), "1").unwrap();
    let mut host = fake.another();
    let group = open(&mut host, "/sys/fs/cgroup/cpu/batch/inner");
    host.write(group, "cpu.bvt_warp_ns", "1").unwrap();
    let before = fake.snapshot();
    let words = settles(&fake, BATCH);
    assert!(!words.contains("switch"), "{words}");
    everything_back(&fake);
    assert_eq!(fake.snapshot(), before);
    assert_eq!(read(&fake, IDENTITY), "1");
}

#[test]
fn anolis_without_a_switch_is_always_on() {
    let fake = machine(VendorKernel::Anolis { switch: false });
    let words = settles(&fake, OWN);
    assert!(words.contains("cpu.bvt_warp_ns  0 -> -1") && !words.contains("switch"), "{words}");
}

// promise 7
#[test]
fn anolis_leaves_what_somebody_stored() {
    let fake = machine(VendorKernel::ANOLIS);
    batch(&fake);
    let mut host = fake.another();
    let group = open(&mut host, "/sys/fs/cgroup/cpu/batch");
    host.write(group, "cpu.bvt_warp_ns", "-1").unwrap();
    let words = settles(&fake, OWN);
    assert!(!words.contains("bvt") && words.contains("cpu.idle  0 -> 1"), "{words}");
    // If the groups file claims the group, commensal may set the value.
    let words = settles(&fake, BATCH);
    assert!(words.contains("switch"), "{words}");
}

// promise 7
#[test]
fn anolis_kernels_that_are_refused() {
    let fake = machine(VendorKernel::ANOLIS);
    fake.set_file("/proc/sys/kernel/osrelease", "4.19.91-25.3.al7.x86_64\n");
    let words = settles(&fake, OWN);
    assert!(!words.contains("bvt"), "{words}");
    let look = commensal_sensors::survey(&mut fake.another(), "commensal-probe-test", None).unwrap();
    let key = (commensal_core::knob::KnobId::CpuBvtWarpNs, commensal_core::knob::Version::V1);
    assert!(look.caps.knobs[&key].obstacle().unwrap().contains("crash the machine"));
}

// promise 7
#[test]
fn anolis_and_core_scheduling_exclude_each_other() {
    // Cookies first: the kernel refuses the switch, and the attempt leaves no trace.
    let fake = machine(VendorKernel::ANOLIS);
    fake.core_scheduling(true);
    let pid = fake.add_process(&[]);
    fake.set_cookie(pid, 7);
    let before = fake.snapshot();
    let (_, _, outcome) = applied(&mut fake.another(), OWN);
    let failure = outcome.failure.expect("the kernel says EBUSY");
    let words = failure.refusal.to_string();
    assert!(words.contains("core scheduling is in use") && failure.left.is_empty(), "{words}");
    assert_eq!(fake.snapshot(), before);
    // The vendor's own switch for core scheduling shows it beforehand.
    fake.set_file("/proc/sys/kernel/sched_core", "1\n");
    assert!(!settles(&fake, OWN).contains("bvt"));
    // Group Identity first: no cookies.
    let fake = machine(VendorKernel::ANOLIS);
    fake.core_scheduling(true);
    fake.smt();
    fake.another().write_setting(Path::new(IDENTITY), "1").unwrap();
    let look = commensal_sensors::survey(&mut fake.another(), "commensal-probe-test", None).unwrap();
    let because = look.caps.feature_obstacle(commensal_core::actual::CORE_SCHED).unwrap();
    assert!(because.contains("Group Identity is on"), "{because}");
    let expel = "[group.web]\nclass = \"online\"\n[group.etl]\nclass = \"offline\"\nexpel = true\n";
    let (_, plan) = planned(&mut fake.another(), expel).unwrap();
    assert_eq!(plan.unmet, [], "identity 2 expels by itself");
}

pub const EXPEL: &str = "[group.etl]\nclass = \"offline\"\nexpel = true\nmatch = [{ cgroup = \"/batch\" }]\n";

pub fn with_core_scheduling() -> (FakeHost, u32) {
    let fake = FakeHost::v1(4, MEMORY);
    fake.smt();
    fake.core_scheduling(true);
    let pid = batch(&fake);
    (fake, pid)
}

/// Returns the cookies of all threads of the batch processes.
fn cookies(fake: &FakeHost) -> Vec<u64> {
    let inside = |process: &&commensal_host::fake::FakeProcess| {
        process.groups.iter().any(|group| group.starts_with("/sys/fs/cgroup/cpu/batch"))
    };
    fake.processes().iter().filter(inside).flat_map(|process| process.threads.values().copied()).collect()
}

// promise 7
#[test]
fn expel_gives_every_thread_one_cookie_and_takes_it_back() {
    let (fake, pid) = with_core_scheduling();
    // A thread that starts while cookies are assigned, from a thread without a cookie.
    fake.thread_appears(pid);
    let words = settles(&fake, EXPEL);
    assert!(words.contains("cookie   cpu:/batch  one for all its threads"), "{words}");
    let all = cookies(&fake);
    assert_eq!(all.len(), 4, "two threads, one that appeared, one in the child group");
    assert!(all[0] != 0 && all.iter().all(|cookie| *cookie == all[0]), "{all:?}");
    // A thread without the cookie is found by the next plan.
    let stray = fake.add_process(&["/sys/fs/cgroup/cpu/batch"]);
    let (_, plan) = planned(&mut fake.another(), EXPEL).unwrap();
    assert_eq!(plan.steps.len(), 1);
    settles(&fake, EXPEL);
    assert!(cookies(&fake).iter().all(|cookie| *cookie == all[0]), "{stray} has another");
    everything_back(&fake);
    assert!(cookies(&fake).iter().all(|cookie| *cookie == 0));
}

#[test]
fn expel_without_a_mechanism_says_why() {
    let check = |fake: &FakeHost, want: &str| {
        let (found, plan) = planned(&mut fake.another(), EXPEL).unwrap();
        let words = plan.describe(&found);
        assert!(words.contains(want), "{want}: {words}");
        assert!(!words.contains("cookie   "), "{words}");
    };
    let (fake, pid) = with_core_scheduling();
    fake.set_cookie(pid, 99);
    check(&fake, "cookies of another program");
    let fake = FakeHost::v1(4, MEMORY);
    batch(&fake);
    check(&fake, "expel has nothing to do: each core has one online thread");
    fake.smt();
    check(&fake, "CONFIG_SCHED_CORE is off");
}

/// When the groups file no longer requests them, the cookies are removed.
// promise 7
#[test]
fn expel_that_is_dropped_from_the_file() {
    let (fake, _) = with_core_scheduling();
    settles(&fake, EXPEL);
    let words = settles(&fake, BATCH);
    assert!(words.contains("cookie   cpu:/batch  none for its threads"), "{words}");
    assert!(cookies(&fake).iter().all(|cookie| *cookie == 0));
    everything_back(&fake);
}
