//! Kernels of vendors and core scheduling, on FakeHost with their documented rules: planned, applied, undone,
//! also after a crash at any moment.

use crate::support::{applied, planned, restored};
use commensal_host::fake::{FakeHost, VendorKernel};
use commensal_host::{Dir, Host};
use std::path::Path;

const MEMORY: u64 = 16 << 30;
pub const FIVE: VendorKernel = VendorKernel::OpenEuler { five_levels: true, reversible: true };
const IDENTITY: &str = "/proc/sys/kernel/sched_group_identity_enabled";
const MEMCG: &str = "/proc/sys/vm/memcg_qos_enable";

pub const OWN: &str = "[group.web]\nclass = \"online\"\n[group.etl]\nclass = \"offline\"\n";
pub const BATCH: &str = "[group.etl]\nclass = \"offline\"\nmatch = [{ cgroup = \"/batch\" }]\n";

pub fn machine(kernel: VendorKernel) -> FakeHost {
    let fake = FakeHost::v1(4, MEMORY);
    fake.vendor_kernel(kernel);
    fake
}

fn read(fake: &FakeHost, path: &str) -> String {
    fake.another()
        .read_file(Path::new(path))
        .map_or_else(|error| error.errno.to_string(), |text| text.trim().to_owned())
}

fn open(host: &mut FakeHost, path: &str) -> Dir {
    host.open(Path::new(path)).unwrap_or_else(|error| panic!("{error}"))
}

/// `/batch` with a child, a weight, and a process with two threads; gives its pid.
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

fn idle(fake: &FakeHost, pid: u32) -> bool {
    fake.processes().into_iter().find(|process| process.pid == pid).unwrap().idle
}

/// Applies, wants a second plan to be empty, and gives the first in words.
fn settles(fake: &FakeHost, text: &str) -> String {
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

fn everything_back(fake: &FakeHost) {
    let restored = restored(&mut fake.another());
    assert!(restored.failed.is_empty() && restored.left.is_empty(), "{restored:?}");
    assert!(crate::support::restored(&mut fake.another()).nothing());
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

// promise 9
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

/// Dropping the group from the file plans the same, and what else is on record of the group stays valid.
// promise 9
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

/// After a reboot the groups of a replacing that was interrupted are gone: nobody makes them anew.
// promise 15
#[test]
fn openeuler_a_replacing_of_an_earlier_boot_is_not_finished() {
    let online = BATCH.replace("offline", "online");
    let state = Path::new(crate::support::STATE);
    let file = state.join("machine.journal");
    // Killed between the end of the old group and the new name of the fresh one.
    let interrupted = (0..60).find_map(|n| {
        let fake = machine(VendorKernel::OPENEULER);
        batch(&fake);
        applied(&mut fake.another(), BATCH);
        let (found, plan) = planned(&mut fake.another(), &online).unwrap();
        let mut host = fake.another();
        let mut journal = crate::support::journal(&mut host).unwrap();
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
    let instance = crate::support::instance();
    assert_eq!(instance.recover(&mut host), [""; 0]);
    instance.open_journal(&mut host).unwrap();
    assert_eq!(rebooted.snapshot(), before);
}

/// A journal as the release before wrote it.
fn in_old_words(text: &str) -> String {
    let line = |line: &str| {
        let (_, json) = line.split_once(' ').unwrap();
        let json = json.replace("\"recreating\"", "\"renewing\"");
        format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()))
    };
    text.lines().map(line).collect()
}

/// What the release before was killed in is finished, with its record and its name of the fresh group, at any moment.
// promise 15
#[test]
fn openeuler_a_replacing_of_the_release_before_is_finished() {
    let online = BATCH.replace("offline", "online");
    let file = Path::new(crate::support::STATE).join("machine.journal");
    let mut half_done = 0;
    for n in 0..60 {
        let fake = machine(VendorKernel::OPENEULER);
        batch(&fake);
        let before = fake.snapshot();
        applied(&mut fake.another(), BATCH);
        let (found, plan) = planned(&mut fake.another(), &online).unwrap();
        let mut host = fake.another();
        let mut journal = crate::support::journal(&mut host).unwrap();
        fake.crash_after(n);
        commensal_reconcile::apply(&mut host, &plan.steps, &found, &mut journal);
        let mut after = fake.restart();
        let text = after.state_read(&file).unwrap().map(|text| in_old_words(&text));
        if let Some(text) = &text {
            after.state_replace(&file, text).unwrap();
        }
        let parent = open(&mut after, "/sys/fs/cgroup/cpu");
        if let Ok(aside) = after.open_child(parent, "batch.commensal-recreate") {
            assert!(text.is_some_and(|text| text.contains("\"renewing\"")));
            after.rename(parent, "batch.commensal-recreate", aside.inode, "batch.commensal-renew").unwrap();
            half_done += 1;
        }
        everything_back(&after);
        assert_eq!(after.snapshot(), before, "killed after {n} writes");
    }
    assert!(half_done > 2, "only {half_done} moments with both groups");
}

#[test]
fn openeuler_with_five_levels_goes_back_by_a_write() {
    let fake = machine(FIVE);
    batch(&fake);
    let before = fake.snapshot();
    let inode = open(&mut fake.another(), "/sys/fs/cgroup/cpu/batch").inode;
    let words = settles(&fake, BATCH);
    assert!(words.contains("cpu.qos_level  0 -> -1") && !words.contains("irreversible"), "{words}");
    everything_back(&fake);
    assert_eq!(fake.snapshot(), before);
    assert_eq!(open(&mut fake.another(), "/sys/fs/cgroup/cpu/batch").inode, inode);
}

#[test]
fn openeuler_an_online_group_that_somebody_made_offline() {
    let fake = machine(VendorKernel::OPENEULER);
    batch(&fake);
    let mut host = fake.another();
    let group = open(&mut host, "/sys/fs/cgroup/cpu/batch");
    host.write(group, "cpu.qos_level", "-1").unwrap();
    let (_, plan) = planned(&mut host, &BATCH.replace("offline", "online")).unwrap();
    assert!(plan.unmet.iter().any(|unmet| unmet.because.contains("no way back")), "{:?}", plan.unmet);
}

// promise 9
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
    everything_back(&fake);
    assert_eq!(fake.snapshot(), before);
    assert_eq!(read(&fake, IDENTITY), "0");
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

// promise 9
#[test]
fn anolis_leaves_what_somebody_stored() {
    let fake = machine(VendorKernel::ANOLIS);
    batch(&fake);
    let mut host = fake.another();
    let group = open(&mut host, "/sys/fs/cgroup/cpu/batch");
    host.write(group, "cpu.bvt_warp_ns", "-1").unwrap();
    let words = settles(&fake, OWN);
    assert!(!words.contains("bvt") && words.contains("cpu.idle  0 -> 1"), "{words}");
    // Claimed by the file it is ours to set.
    let words = settles(&fake, BATCH);
    assert!(words.contains("switch"), "{words}");
}

// promise 9
#[test]
fn anolis_kernels_that_are_refused() {
    let fake = machine(VendorKernel::ANOLIS);
    fake.set_file("/proc/sys/kernel/osrelease", "4.19.91-25.3.al7.x86_64\n");
    let words = settles(&fake, OWN);
    assert!(!words.contains("bvt"), "{words}");
    let look = commensal_sensors::survey(&mut fake.another(), "commensal-probe-test", None).unwrap();
    let key = (commensal_core::knob::KnobId::CpuBvtWarpNs, commensal_core::knob::Version::V1);
    assert!(look.caps.knobs[&key].obstacle().unwrap().contains("bring the machine down"));
}

// promise 9
#[test]
fn anolis_and_core_scheduling_exclude_each_other() {
    // Cookies first: the kernel refuses the switch, and nothing is left of the try.
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
    // The switch of the vendor's own core scheduling tells it beforehand.
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

/// Cookies of every thread of the batch processes.
fn cookies(fake: &FakeHost) -> Vec<u64> {
    let inside = |process: &&commensal_host::fake::FakeProcess| {
        process.groups.iter().any(|group| group.starts_with("/sys/fs/cgroup/cpu/batch"))
    };
    fake.processes().iter().filter(inside).flat_map(|process| process.threads.values().copied()).collect()
}

// promise 9
#[test]
fn expel_gives_every_thread_one_cookie_and_takes_it_back() {
    let (fake, pid) = with_core_scheduling();
    // One that starts while cookies are handed out, from a thread that does not have it yet.
    fake.thread_appears(pid);
    let words = settles(&fake, EXPEL);
    assert!(words.contains("cookie   cpu:/batch  one for all its threads"), "{words}");
    let all = cookies(&fake);
    assert_eq!(all.len(), 4, "two threads, one that appeared, one in the child group");
    assert!(all[0] != 0 && all.iter().all(|cookie| *cookie == all[0]), "{all:?}");
    // A thread without it is found the next time.
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
    check(&fake, "cookies of somebody else");
    let fake = FakeHost::v1(4, MEMORY);
    batch(&fake);
    check(&fake, "expel has nothing to do: each core has one online thread");
    fake.smt();
    check(&fake, "CONFIG_SCHED_CORE is off");
}

/// No longer asked for, the cookies go.
// promise 9
#[test]
fn expel_that_is_dropped_from_the_file() {
    let (fake, _) = with_core_scheduling();
    settles(&fake, EXPEL);
    let words = settles(&fake, BATCH);
    assert!(words.contains("cookie   cpu:/batch  none for its threads"), "{words}");
    assert!(cookies(&fake).iter().all(|cookie| *cookie == 0));
    everything_back(&fake);
}
