//! Unusual machines and outside writers: a plan gives a clear message and leaves nothing half done.

use crate::support::{journal, planned, restored};
use commensal_core::knob::Controller;
use commensal_core::topology::Device;
use commensal_host::Host;
use commensal_host::fake::FakeHost;
use commensal_reconcile::{Outcome, apply};
use std::path::Path;

const MEMORY: u64 = 8 << 30;
const DISK: Device = Device { major: 254, minor: 0 };
const ETL: &str = "[group.etl]\nclass = \"offline\"\ncpu.max = \"1 core\"\nmemory.max = \"1 GiB\"\nio.read = \"10 MiB/s\"\npids.max = 9\n";
const BATCH: &str =
    "[group.batch]\nclass = \"offline\"\ncpu.set = \"0-1\"\nmatch = [{ cgroup = \"/batch\" }]\n";

/// Plans, lets `meddle` change the machine, and applies.
fn with_meddling(fake: &FakeHost, text: &str, meddle: impl FnOnce(&FakeHost)) -> Outcome {
    let mut host = fake.another();
    let (found, plan) = planned(&mut host, text).unwrap();
    meddle(fake);
    let mut journal = journal(&mut host).unwrap();
    apply(&mut host, &plan.steps, &found, &mut journal)
}

/// Asserts that the plan was refused with these words, and that the machine is as it was after `meddle`.
fn refused_whole(fake: &FakeHost, text: &str, meddle: impl FnOnce(&FakeHost), words: &[&str]) {
    let mut before = Default::default();
    let outcome = with_meddling(fake, text, |fake| {
        meddle(fake);
        before = fake.snapshot();
    });
    let failure = outcome.failure.expect("a step is refused");
    let said = failure.refusal.to_string();
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
    assert!(failure.left.is_empty(), "{:?}", failure.left);
    assert_eq!(fake.snapshot(), before);
    assert!(restored(&mut fake.another()).nothing(), "the journal is empty");
}

/// Creates another program's group in the v1 cpuset hierarchy, with two CPUs and a child.
fn cpuset(fake: &FakeHost) {
    let mut host = fake.another();
    for controller in ["cpu", "cpuset"] {
        let root = host.open(Path::new(&format!("/sys/fs/cgroup/{controller}"))).unwrap();
        let batch = host.mkdir(root, "batch").unwrap();
        if controller == "cpuset" {
            host.write(batch, "cpuset.cpus", "0-3").unwrap();
            host.write(batch, "cpuset.mems", "0").unwrap();
            host.mkdir(batch, "child").unwrap();
        }
    }
}

// promise 10
#[test]
fn a_knob_that_vanishes_between_plan_and_write() {
    for knob in ["cpu.idle", "cpu.shares"] {
        let fake = FakeHost::v1(4, MEMORY);
        cpuset(&fake);
        let text = match knob {
            "cpu.idle" => BATCH.replace("class", "takeover = true\nclass"),
            _ => BATCH.replace("offline\"", "online\"\ncpu.weight = 500"),
        };
        let gone = |fake: &FakeHost| fake.remove_file(format!("/sys/fs/cgroup/cpu/batch/{knob}"));
        refused_whole(&fake, &text, gone, &[knob, "ENOENT"]);
    }
}

// promise 10
#[test]
fn an_outside_writer_makes_a_cpuset_busy() {
    let fake = FakeHost::v1(4, MEMORY);
    cpuset(&fake);
    let widens = |fake: &FakeHost| {
        let mut host = fake.another();
        let child = host.open(Path::new("/sys/fs/cgroup/cpuset/batch/child")).unwrap();
        host.write(child, "cpuset.cpus", "3").unwrap();
    };
    refused_whole(&fake, BATCH, widens, &["EBUSY", "a child group still uses a CPU", "narrow the child"]);
    // If the plan is made after the change, it reports the problem, and nothing is refused.
    let (found, plan) = planned(&mut fake.another(), BATCH).unwrap();
    let words = plan.describe(&found);
    assert!(plan.unmet.iter().any(|unmet| unmet.because.contains("/batch/child below it")), "{words}");
}

#[test]
fn an_outside_writer_narrows_the_parent() {
    let fake = FakeHost::v1(4, MEMORY);
    cpuset(&fake);
    let mut host = fake.another();
    let child = host.open(Path::new("/sys/fs/cgroup/cpuset/batch/child")).unwrap();
    host.write(child, "cpuset.cpus", "0").unwrap();
    let text =
        "[group.batch]\nclass = \"online\"\ncpu.set = \"1\"\nmatch = [{ cgroup = \"/batch/child\" }]\n";
    let narrows = |fake: &FakeHost| {
        let mut host = fake.another();
        let batch = host.open(Path::new("/sys/fs/cgroup/cpuset/batch")).unwrap();
        host.write(batch, "cpuset.cpus", "0").unwrap();
    };
    refused_whole(&fake, text, narrows, &["EACCES", "within the parent's cpuset"]);
}

/// An empty original cannot be restored while processes are in the group: that is reported, the record stays, and a
/// later restore succeeds.
#[test]
fn an_empty_cpuset_with_processes_inside() {
    let fake = FakeHost::v1(4, MEMORY);
    cpuset(&fake);
    let before = fake.snapshot();
    let text =
        "[group.batch]\nclass = \"online\"\ncpu.set = \"1\"\nmatch = [{ cgroup = \"/batch/child\" }]\n";
    let mut host = fake.another();
    let child = host.open(Path::new("/sys/fs/cgroup/cpuset/batch/child")).unwrap();
    let outcome = with_meddling(&fake, text, |_| ());
    assert!(outcome.failure.is_none(), "{:?}", outcome.failure.map(|failure| failure.refusal.to_string()));
    host.write(child, "cpuset.mems", "0").unwrap();
    let pid = fake.add_process(&["/sys/fs/cgroup/cpuset/batch/child"]);
    let back = restored(&mut fake.another());
    let said = back.failed.join("\n");
    assert!(said.contains("ENOSPC") && said.contains("move the processes out first"), "{said}");
    fake.move_process(pid, "/sys/fs/cgroup/cpuset");
    host.write(child, "cpuset.mems", "\n").unwrap();
    let back = restored(&mut fake.another());
    assert!(back.failed.is_empty(), "{back:?}");
    assert_eq!(fake.snapshot(), before);
}

// promise 10
#[test]
fn a_device_that_is_unplugged() {
    for fake in [FakeHost::v1(4, MEMORY), FakeHost::v2(4, MEMORY)] {
        // Unplugged before the limit is written: the kernel reports that there is no such device.
        refused_whole(&fake, ETL, |fake| fake.unplug(DISK), &["ENODEV", "no such block device"]);
        // Unplugged afterwards: there is nothing to restore.
        fake.add_device(DISK);
        let before = fake.snapshot();
        let outcome = with_meddling(&fake, ETL, |_| ());
        assert!(outcome.failure.is_none());
        fake.unplug(DISK);
        let back = restored(&mut fake.another());
        assert!(back.failed.is_empty() && back.left.is_empty(), "{back:?}");
        assert_eq!(fake.snapshot(), before);
    }
    // In another program's group, the original is recorded, and its device no longer exists.
    let fake = FakeHost::v1(4, MEMORY);
    let mut host = fake.another();
    let root = host.open(Path::new("/sys/fs/cgroup/blkio")).unwrap();
    let batch = host.mkdir(root, "batch").unwrap();
    host.write(batch, "blkio.throttle.read_bps_device", "254:0 777").unwrap();
    let text =
        "[group.batch]\nclass = \"online\"\nio.read = \"1 MiB/s\"\nmatch = [{ cgroup = \"/batch\" }]\n";
    assert!(with_meddling(&fake, text, |_| ()).failure.is_none());
    fake.unplug(DISK);
    let back = restored(&mut fake.another());
    assert!(back.failed.is_empty(), "{back:?}");
    assert!(restored(&mut fake.another()).nothing());
}

// promise 10
#[test]
fn controllers_on_both_hierarchies() {
    use Controller::{Cpu, Cpuacct, Io, Memory, Pids};
    let v1 = [
        ("/sys/fs/cgroup/cpu".to_owned(), vec![Cpu, Cpuacct]),
        ("/sys/fs/cgroup/blkio".to_owned(), vec![Io]),
    ];
    let fake = FakeHost::mounted(4, MEMORY, &v1, Some(("/sys/fs/cgroup/unified", &[Memory, Pids])));
    let before = fake.snapshot();
    let mut host = fake.another();
    let (found, plan) = planned(&mut host, ETL).unwrap();
    let words = plan.describe(&found);
    for want in [
        "cpu,cpuacct:/commensal-offline/etl  cpu.cfs_quota_us",
        "blkio:/commensal-offline/etl  blkio.throttle.read_bps_device",
        "v2:/commensal-offline/etl  memory.max",
        "v2:/commensal-offline/etl  pids.max",
        "enable   v2:/  +memory",
    ] {
        assert!(words.contains(want), "{want} in\n{words}");
    }
    assert_eq!(plan.unmet, []);
    let mut journal = journal(&mut host).unwrap();
    assert!(apply(&mut host, &plan.steps, &found, &mut journal).failure.is_none());
    let (_, again) = planned(&mut host, ETL).unwrap();
    assert!(again.is_empty());
    let back = restored(&mut fake.another());
    assert!(back.failed.is_empty() && back.left.is_empty(), "{back:?}");
    assert_eq!(fake.snapshot(), before);
}

// promise 10
#[test]
fn a_kernel_without_the_cpu_controller() {
    use Controller::{Memory, Pids};
    let v1 =
        [("/sys/fs/cgroup/memory".to_owned(), vec![Memory]), ("/sys/fs/cgroup/pids".to_owned(), vec![Pids])];
    let fake = FakeHost::mounted(4, MEMORY, &v1, None);
    let outcome = with_meddling(&fake, ETL, |_| ());
    assert!(outcome.failure.is_none(), "what can be done is done");
    let (_, plan) = planned(&mut fake.another(), ETL).unwrap();
    let unmet: Vec<&str> = plan.unmet.iter().map(|unmet| unmet.what.as_str()).collect();
    assert_eq!(unmet, ["class offline", "cpu.max", "io.max.rbps on 254:0"]);
    assert!(plan.unmet[0].because.contains("no cgroup hierarchy has the cpu controller"), "{:?}", plan.unmet);
}

/// No cgroup file system is mounted.
#[test]
fn a_container_without_cgroups() {
    let fake = FakeHost::mounted(4, MEMORY, &[], None);
    let (found, plan) = planned(&mut fake.another(), ETL).unwrap();
    assert!(plan.is_empty(), "{}", plan.describe(&found));
    assert!(
        plan.unmet.iter().any(|unmet| unmet.because.contains("no cgroup controller is mounted")),
        "{:?}",
        plan.unmet
    );
    assert_eq!(plan.task_policies.len(), 1);
}

/// Restoring does not stop a running command, and thaws it.
#[test]
fn restore_thaws_what_it_leaves() {
    let text = "[group.etl]\nclass = \"offline\"\nfrozen = true\n";
    for (fake, group, file) in [
        (FakeHost::v1(4, MEMORY), "/sys/fs/cgroup/freezer/commensal-offline/etl", "freezer.state"),
        (FakeHost::v2(4, MEMORY), "/sys/fs/cgroup/commensal-offline/etl", "cgroup.freeze"),
    ] {
        assert!(with_meddling(&fake, text, |_| ()).failure.is_none());
        fake.add_process(&[group]);
        let back = restored(&mut fake.another());
        assert!(back.left.iter().any(|line| line.contains(" is in it")), "{back:?}");
        let state = fake.another().read_file(&Path::new(group).join(file)).unwrap();
        assert!(["THAWED\n", "0\n"].contains(&state.as_str()), "{state}");
    }
}

/// Restore thaws frozen groups, on both cgroup versions.
#[test]
fn freezing_is_undone() {
    let text = "[group.etl]\nclass = \"offline\"\nfrozen = true\n";
    for (fake, file) in [
        (FakeHost::v1(4, MEMORY), "/sys/fs/cgroup/freezer/commensal-offline/etl/freezer.state"),
        (FakeHost::v2(4, MEMORY), "/sys/fs/cgroup/commensal-offline/etl/cgroup.freeze"),
    ] {
        let before = fake.snapshot();
        assert!(with_meddling(&fake, text, |_| ()).failure.is_none());
        let state = fake.another().read_file(Path::new(file)).unwrap();
        assert!(["FROZEN\n", "1\n"].contains(&state.as_str()), "{state}");
        let thawed = text.replace("frozen = true\n", "");
        assert!(with_meddling(&fake, &thawed, |_| ()).failure.is_none());
        let state = fake.another().read_file(Path::new(file)).unwrap();
        assert!(["THAWED\n", "0\n"].contains(&state.as_str()), "{state}");
        assert!(restored(&mut fake.another()).failed.is_empty());
        assert_eq!(fake.snapshot(), before);
    }
}

/// v2: exclusive CPUs for a group below commensal's, and disk weights with cost-based control.
#[test]
fn partitions_and_disk_shares() {
    let text = "[group.etl]\nclass = \"offline\"\ncpu.set = \"2-3\"\ncpu.partition = \"isolated\"\nio.weight = 50\nio.cost = true\n\
                [group.web]\nclass = \"online\"\ncpu.set = \"1\"\ncpu.partition = \"root\"\nio.weight = 500\n";
    let fake = FakeHost::v2(4, MEMORY);
    let before = fake.snapshot();
    let outcome = with_meddling(&fake, text, |_| ());
    assert!(outcome.failure.is_none(), "{:?}", outcome.failure.map(|failure| failure.refusal.to_string()));
    let read = |file: &str| {
        let path = Path::new("/sys/fs/cgroup").join(file);
        fake.another().read_file(&path).unwrap().trim().to_owned()
    };
    assert_eq!(read("commensal-offline/etl/cpuset.cpus.partition"), "isolated");
    assert_eq!(read("commensal-offline/cpuset.cpus.exclusive"), "2-3");
    assert_eq!(read("commensal-online/web/cpuset.cpus.partition"), "root");
    assert_eq!(read("commensal-online/web/io.weight"), "default 500");
    assert!(read("io.cost.qos").starts_with("254:0 enable=1 "));
    let (found, again) = planned(&mut fake.another(), text).unwrap();
    assert!(again.is_empty(), "{}", again.describe(&found));
    // Without io.cost the weight of web would have no effect, which is reported.
    let back = restored(&mut fake.another());
    assert!(back.failed.is_empty() && back.left.is_empty(), "{back:?}");
    let after = fake.snapshot();
    let line = "/sys/fs/cgroup/io.cost.qos";
    assert!(after[line].starts_with("254:0 enable=0"), "the line of a disk stays, switched off");
    assert_eq!(
        after.into_iter().filter(|(file, _)| file != line).collect::<Vec<_>>(),
        before.into_iter().filter(|(file, _)| file != line).collect::<Vec<_>>()
    );
    let (_, plan) = planned(&mut fake.another(), &text.replace("io.cost = true\n", "")).unwrap();
    assert!(
        plan.unmet.iter().any(|unmet| unmet.because.contains("io.cost is off there")),
        "{:?}",
        plan.unmet
    );
}
