//! Several commands on one machine, and nested groups: no command takes what another one keeps, and interrupted work of
//! one is completed by another.

use crate::support::{STATE, applied, planned, planned_alone, restored};
use commensal_host::fake::{FakeHost, VendorKernel};
use commensal_host::{Exit, Host};
use commensal_reconcile::journal::{self, Journal, Owner};
use commensal_reconcile::{apply, restore_own};
use commensal_sensors::machine;
use std::collections::BTreeMap;
use std::path::Path;

const IDENTITY: &str = "/proc/sys/kernel/sched_group_identity_enabled";
const MEMORY: u64 = 16 << 30;
const ETL: &str = "[group.etl]\nclass = \"offline\"\n";

fn read(fake: &FakeHost, path: &str) -> String {
    let text = fake.another().read_file(Path::new(path));
    text.map_or_else(|error| error.errno.to_string(), |text| text.trim().to_owned())
}

/// Creates a group and its parents.
fn make(fake: &FakeHost, mount: &str, path: &str) {
    let mut host = fake.another();
    let mut at = host.open(Path::new(mount)).unwrap();
    for name in path.split('/') {
        at = host.open_child(at, name).or_else(|_| host.mkdir(at, name)).unwrap();
    }
}

/// Does what `commensal run` does before it starts its command.
pub fn run(fake: &FakeHost, text: &str) -> String {
    let mut host = fake.another();
    let (found, plan) = planned_alone(&mut host, text);
    let boot_id = machine::boot_id(&host).unwrap();
    let owner = Owner { kind: journal::RUN.to_owned(), pid: 1, start_ticks: 0, boot_id };
    let mut journal = Journal::open(&mut host, Path::new(STATE), journal::RUN, owner).unwrap();
    let outcome = apply(&mut host, &plan.steps, &found, &mut journal);
    assert!(outcome.failure.is_none(), "{:?}", outcome.failure.map(|failure| failure.refusal.to_string()));
    plan.describe(&found)
}

fn apply_whole(fake: &FakeHost, text: &str) -> String {
    let (found, plan, outcome) = applied(&mut fake.another(), text);
    let words = plan.describe(&found);
    let failure = outcome.failure.map(|failure| format!("{}: {}", failure.description, failure.refusal));
    assert_eq!(failure, None, "{words}");
    words
}

fn everything_back(fake: &FakeHost) {
    let back = restored(&mut fake.another());
    assert!(back.failed.is_empty() && back.left.is_empty(), "{back:?}");
    assert!(restored(&mut fake.another()).nothing());
}

// promise 14
#[test]
fn run_leaves_what_apply_keeps_for_others() {
    let fake = FakeHost::v2(4, MEMORY);
    let before = fake.snapshot();
    let qos = "/sys/fs/cgroup/io.cost.qos";
    apply_whole(&fake, "[group.db]\nclass = \"online\"\nio.weight = 500\nio.cost = true\n");
    let words = run(&fake, ETL);
    assert!(!words.contains("io.cost"), "{words}");
    assert!(read(&fake, qos).contains("enable=1"));
    everything_back(&fake);
    assert!(read(&fake, qos).contains("enable=0"));
    let same = |snapshot: BTreeMap<String, String>| -> Vec<_> {
        snapshot.into_iter().filter(|(file, _)| file != qos).collect()
    };
    assert_eq!(same(fake.snapshot()), same(before));
}

// promise 14
#[test]
fn run_leaves_the_cpus_that_others_have_set_aside() {
    let group = |name: &str, cpu: u32| {
        format!("[group.{name}]\nclass = \"offline\"\ncpu.set = \"{cpu}\"\ncpu.partition = \"root\"\n")
    };
    let fake = FakeHost::v2(4, MEMORY);
    apply_whole(&fake, &(group("a", 0) + &group("b", 2)));
    let aside = "/sys/fs/cgroup/commensal-offline/cpuset.cpus.exclusive";
    for text in [group("a", 0), ETL.to_owned()] {
        run(&fake, &text);
        assert_eq!(read(&fake, aside), "0,2", "{text}");
    }
}

// promise 7
#[test]
fn a_cpu_moves_from_one_partition_to_another() {
    let both = |a: &str, b: &str| {
        let group = |name: &str, set: &str| {
            format!("[group.{name}]\nclass = \"offline\"\ncpu.set = \"{set}\"\ncpu.partition = \"root\"\n")
        };
        group("a", a) + &group("b", b)
    };
    let fake = FakeHost::v2(8, MEMORY);
    let before = fake.snapshot();
    for (a, b) in [("1-2", "3"), ("1", "2-3"), ("2-3", "1"), ("5", "6"), ("6", "5")] {
        apply_whole(&fake, &both(a, b));
        let (found, again) = planned(&mut fake.another(), &both(a, b)).unwrap();
        assert!(again.is_empty(), "{}", again.describe(&found));
    }
    everything_back(&fake);
    assert_eq!(fake.snapshot(), before);
}

#[test]
fn a_partition_needs_cpus_set_aside() {
    let fake = FakeHost::v2(4, MEMORY);
    let mut host = fake.another();
    let root = host.open(Path::new("/sys/fs/cgroup")).unwrap();
    host.write(root, "cgroup.subtree_control", "+cpuset").unwrap();
    fake.without_file("cpuset.cpus.exclusive");
    let text = "[group.a]\nclass = \"offline\"\ncpu.set = \"0\"\ncpu.partition = \"root\"\n";
    let words = apply_whole(&fake, text);
    assert!(words.contains("unmet    group a: cpu.partition") && words.contains("Linux 6.7"), "{words}");
}

// promise 14
#[test]
fn a_switch_stays_on_while_anybody_uses_it() {
    let batch = "[group.x]\nclass = \"offline\"\nmatch = [{ cgroup = \"/batch\" }]\n";
    let identity = |fake: &FakeHost| read(fake, "/sys/fs/cgroup/cpu/batch/cpu.bvt_warp_ns");
    let machine = || {
        let fake = FakeHost::v1(4, MEMORY);
        fake.vendor_kernel(VendorKernel::ANOLIS);
        make(&fake, "/sys/fs/cgroup/cpu", "batch");
        fake
    };
    // `run` turned the switch on, and `apply` found it on: it stays on after the command.
    let fake = machine();
    run(&fake, ETL);
    let pid = fake.add_process(&["/sys/fs/cgroup/cpu/commensal-offline/etl"]);
    apply_whole(&fake, batch);
    fake.end(pid, Exit::Code(0));
    restore_own(&mut fake.another(), Path::new(STATE), journal::RUN).unwrap();
    assert_eq!((identity(&fake).as_str(), read(&fake, IDENTITY).as_str()), ("-1", "1"));
    let back = restored(&mut fake.another());
    assert!(back.failed.is_empty() && back.left.is_empty(), "{back:?}");
    assert_eq!((identity(&fake).as_str(), read(&fake, IDENTITY).as_str()), ("0", "0"));
    // `apply` turned the switch on and no longer needs it, but a command does.
    let fake = machine();
    apply_whole(&fake, batch);
    run(&fake, ETL);
    let pid = fake.add_process(&["/sys/fs/cgroup/cpu/commensal-offline/etl"]);
    let other = "[group.x]\nclass = \"offline\"\nmatch = [{ cgroup = \"/nothing\" }]\n";
    let words = apply_whole(&fake, other);
    assert!(words.contains("stays as it is: cpu:/commensal-offline"), "{words}");
    assert_eq!(read(&fake, IDENTITY), "1");
    fake.end(pid, Exit::Code(0));
    everything_back(&fake);
    assert_eq!(read(&fake, IDENTITY), "0");
}

// promise 14
#[test]
fn what_is_offline_inside_an_online_group_stays_offline() {
    let fake = FakeHost::v1(4, MEMORY);
    fake.vendor_kernel(VendorKernel::ANOLIS);
    for path in ["kubepods/besteffort/p1", "kubepods/burstable"] {
        make(&fake, "/sys/fs/cgroup/cpu", path);
    }
    let text = "[group.aweb]\nclass = \"online\"\nmatch = [{ cgroup = \"/kubepods\" }]\n\
                [group.etl]\nclass = \"offline\"\nmatch = [{ cgroup = \"/kubepods/besteffort\" }]\n\
                [group.w]\nclass = \"online\"\nmatch = [{ cgroup = \"/kubepods/burstable\" }]\n";
    apply_whole(&fake, text);
    for (path, value) in [("", "2"), ("/burstable", "2"), ("/besteffort", "-1"), ("/besteffort/p1", "-1")] {
        assert_eq!(
            read(&fake, &format!("/sys/fs/cgroup/cpu/kubepods{path}/cpu.bvt_warp_ns")),
            value,
            "{path}"
        );
    }
    // Groups that were created later have copied the identity, and lose it, too.
    make(&fake, "/sys/fs/cgroup/cpu", "kubepods/besteffort/p2");
    everything_back(&fake);
    assert_eq!(read(&fake, "/sys/fs/cgroup/cpu/kubepods/besteffort/p2/cpu.bvt_warp_ns"), "0");
}

// promise 14
#[test]
fn identity_that_was_copied_since_goes_back_too() {
    for by_plan in [false, true] {
        let fake = FakeHost::v1(4, MEMORY);
        fake.vendor_kernel(VendorKernel::Anolis { switch: false });
        make(&fake, "/sys/fs/cgroup/cpu", "batch");
        apply_whole(&fake, "[group.x]\nclass = \"offline\"\nmatch = [{ cgroup = \"/batch\" }]\n");
        make(&fake, "/sys/fs/cgroup/cpu", "batch/pod2");
        if by_plan {
            apply_whole(&fake, "[group.x]\nclass = \"offline\"\nmatch = [{ cgroup = \"/nothing\" }]\n");
        }
        everything_back(&fake);
        assert_eq!(read(&fake, "/sys/fs/cgroup/cpu/batch/pod2/cpu.bvt_warp_ns"), "0", "{by_plan}");
    }
}

/// A level that a group has from its parent cannot be undone in the group alone, and need not be.
// promise 14
#[test]
fn a_child_that_is_dropped_below_its_parent() {
    let both = "[group.e]\nclass = \"offline\"\nmatch = [{ cgroup = \"/etl\" }, { cgroup = \"/etl/*\" }]\n";
    let parent = "[group.e]\nclass = \"offline\"\nmatch = [{ cgroup = \"/etl\" }]\n";
    for kernel in [VendorKernel::OPENEULER, VendorKernel::OPENEULER_FIVE] {
        let fake = FakeHost::v1(4, MEMORY);
        fake.vendor_kernel(kernel);
        for controller in ["cpu", "memory"] {
            make(&fake, &format!("/sys/fs/cgroup/{controller}"), "etl/x");
        }
        let before = fake.snapshot();
        apply_whole(&fake, both);
        apply_whole(&fake, parent);
        everything_back(&fake);
        assert_eq!(fake.snapshot(), before);
    }
}

#[test]
fn commensal_does_not_freeze_itself() {
    let fake = FakeHost::v1(4, MEMORY);
    make(&fake, "/sys/fs/cgroup/freezer", "shells/mine");
    make(&fake, "/sys/fs/cgroup/cpu", "shells/mine");
    fake.move_process(std::process::id(), "/sys/fs/cgroup/freezer/shells/mine");
    let text = "[group.e]\nclass = \"offline\"\nfrozen = true\nmatch = [{ cgroup = \"/shells\" }]\n";
    let words = apply_whole(&fake, text);
    assert!(words.contains("commensal itself runs in /shells"), "{words}");
    assert_eq!(read(&fake, "/sys/fs/cgroup/freezer/shells/freezer.state"), "THAWED");
}

#[test]
fn a_group_that_is_dropped_while_frozen_goes_on() {
    let fake = FakeHost::v1(4, MEMORY);
    apply_whole(&fake, &format!("{ETL}frozen = true\n"));
    let state = "/sys/fs/cgroup/freezer/commensal-offline/etl/freezer.state";
    fake.add_process(&[
        "/sys/fs/cgroup/cpu/commensal-offline/etl",
        "/sys/fs/cgroup/freezer/commensal-offline/etl",
    ]);
    assert_eq!(read(&fake, state), "FROZEN");
    apply_whole(&fake, "[group.other]\nclass = \"offline\"\n");
    assert_eq!(read(&fake, state), "THAWED");
}

pub fn nested() -> FakeHost {
    let fake = FakeHost::v1(4, MEMORY);
    fake.vendor_kernel(VendorKernel::OPENEULER);
    for controller in ["cpu", "memory"] {
        make(&fake, &format!("/sys/fs/cgroup/{controller}"), "batch/inner");
    }
    for path in ["batch", "batch/inner"] {
        let places = ["cpu", "memory"].map(|controller| format!("/sys/fs/cgroup/{controller}/{path}"));
        fake.add_process(&[&places[0], &places[1]]);
    }
    fake
}

pub const NESTED: &str = "[group.etl]\nclass = \"offline\"\ncpu.max = \"10 %\"\nmatch = [{ cgroup = \"/batch\" }]\n\
                      [group.in]\nclass = \"offline\"\ncpu.max = \"5 %\"\nmatch = [{ cgroup = \"/batch/inner\" }]\n";
