//! Sensors on machines of every layout: existing sources are read, missing ones are `None`.

use crate::support::instance;
use commensal_core::actual::{CgroupPath, Support};
use commensal_core::errno::Errno;
use commensal_core::knob::{KnobId, Version};
use commensal_host::Host;
use commensal_host::fake::{Effect, FakeHost, Trouble};
use commensal_sensors::mounts::{Layout, hierarchies, layout};
use commensal_sensors::run_delay::RunDelay;
use commensal_sensors::usage::GroupDirs;
use commensal_sensors::{machine, pressure, survey};
use std::path::Path;

const MEMORY: u64 = 8 << 30;

#[test]
fn layouts_are_told_apart() {
    for (mut host, want) in [
        (FakeHost::v1(2, MEMORY), Layout::V1),
        (FakeHost::v2(2, MEMORY), Layout::V2),
        (FakeHost::hybrid(2, MEMORY), Layout::Hybrid),
    ] {
        let found = hierarchies(&mut host).unwrap();
        assert_eq!(layout(&found), want);
    }
    let host = &mut FakeHost::v1(2, MEMORY);
    host.set_file("/proc/mounts", "proc /proc proc rw 0 0\n");
    assert_eq!(layout(&hierarchies(host).unwrap()), Layout::None);
}

#[test]
fn a_mount_point_with_a_space_and_a_named_hierarchy() {
    let host = &mut FakeHost::v1(2, MEMORY);
    host.set_file(
        "/proc/mounts",
        "cgroup /my\\040groups/cpu cgroup rw,cpu,cpuacct 0 0\ncgroup /x cgroup rw,name=systemd 0 0\n",
    );
    let found = hierarchies(host).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].mount.as_str(), found[0].version), ("/my groups/cpu", Version::V1));
}

// promise 63
#[test]
fn the_machine_is_read_and_missing_parts_are_none() {
    let host = FakeHost::v1(4, MEMORY);
    let facts = machine::machine(&host).unwrap();
    assert_eq!((facts.topology.threads(), facts.memory.0), (4, MEMORY));
    assert_eq!(facts.disks.len(), 1);
    assert!(machine::cpu_time(&host).is_some() && pressure::machine(&host).cpu.is_some());
    for file in ["/proc/pressure/cpu", "/proc/stat", "/sys/devices/system/node/node0/cpulist"] {
        host.remove_file(file);
    }
    assert_eq!(pressure::machine(&host).cpu, None);
    assert_eq!(machine::cpu_time(&host), None);
    assert!(machine::topology(&host).unwrap().nodes().is_empty());
    host.remove_file("/proc/meminfo");
    assert!(machine::machine(&host).is_err());
}

#[test]
fn steal_and_guest_are_not_counted_as_work() {
    let host = FakeHost::v1(1, MEMORY);
    // user nice system idle iowait irq softirq steal guest guest_nice; guest is inside user.
    host.set_file("/proc/stat", "cpu  100 10 20 500 50 1 2 30 60 0\n");
    let time = machine::cpu_time(&host).unwrap();
    assert_eq!(time.busy_us(), 1_330_000);
    assert_eq!((time.idle_us, time.steal_us), (5_500_000, Some(300_000)));
    host.set_file("/proc/stat", "cpu  100 10 20 500\n");
    assert_eq!(machine::cpu_time(&host).unwrap().steal_us, None);
}

// promise 63
#[test]
fn a_group_without_a_source_has_none_not_zero() {
    let mut host = FakeHost::v2(2, MEMORY);
    let found = hierarchies(&mut host).unwrap();
    let root = host.open(Path::new("/sys/fs/cgroup")).unwrap();
    host.mkdir(root, "g").unwrap();
    let dirs = GroupDirs::open(&mut host, &found, &CgroupPath::new("/g"));
    let used = dirs.read(&mut host);
    assert_eq!(
        (used.memory_bytes, used.tasks, used.io),
        (None, None, None),
        "no controller is enabled for /g"
    );
    let gone = GroupDirs::open(&mut host, &found, &CgroupPath::new("/nowhere"));
    assert_eq!(gone.read(&mut host), commensal_core::observe::GroupUse::default());
}

// promise 63
#[test]
fn run_delay_is_none_where_the_kernel_does_not_count_it() {
    let fake = FakeHost::v2(2, MEMORY);
    let mut host = fake.another();
    let root = host.open(Path::new("/sys/fs/cgroup")).unwrap();
    let (busy, empty) = (host.mkdir(root, "busy").unwrap(), host.mkdir(root, "empty").unwrap());
    let pid = fake.add_process(&["/sys/fs/cgroup/busy"]);
    let (own, thread) = ("/proc/self/schedstat", format!("/proc/{pid}/task/{pid}/schedstat"));
    let mut delays = [RunDelay::default(), RunDelay::default()];
    let mut found = |host: &mut FakeHost| {
        let groups = [busy, empty].into_iter().zip(&mut delays);
        let read: Vec<Option<u64>> = groups.map(|(dir, delay)| delay.read(host, dir)).collect();
        let caps = survey(host, "commensal-probe-1", None).unwrap().caps;
        (read, caps.feature_obstacle("run delay"))
    };
    // Without CONFIG_SCHED_INFO there is no file, but the thread is listed.
    fake.set_file(format!("/proc/{pid}/task/{pid}/comm"), "job\n");
    let (read, obstacle) = found(&mut host);
    assert_eq!(read, [None, None]);
    assert!(obstacle.unwrap().contains("CONFIG_SCHED_INFO"));
    // With `nodelayacct`, older kernels print zeros.
    fake.set_file(own, "0 0 0\n");
    fake.set_file(&thread, "0 0 0\n");
    let (read, obstacle) = found(&mut host);
    assert_eq!(read, [None, None]);
    assert!(obstacle.unwrap().contains("nodelayacct"));
    // Where the kernel counts, 0 means that no thread had to wait.
    fake.set_file(own, "2110447 40210 18\n");
    assert_eq!(found(&mut host), (vec![Some(0), Some(0)], None));
    fake.set_file(&thread, "9000000 5000000 2\n");
    assert_eq!(found(&mut host), (vec![Some(5_000), Some(0)], None));
}

// promise 4
#[test]
fn probing_leaves_no_trace_and_says_why_not() {
    for fake in [FakeHost::v1(2, MEMORY), FakeHost::v2(2, MEMORY), FakeHost::hybrid(2, MEMORY)] {
        let before = fake.snapshot();
        let mut host = fake.another();
        let caps = survey(&mut host, "commensal-probe-1", None).unwrap().caps;
        assert_eq!(caps.cgroup_obstacle, None);
        assert!(
            caps.knobs.values().filter(|support| support.obstacle().is_none()).count() >= 11,
            "{:?}",
            caps.knobs
        );
        assert_eq!(fake.snapshot(), before);
        fake.read_only(true);
        let caps = survey(&mut host, "commensal-probe-1", None).unwrap().caps;
        assert!(caps.cgroup_obstacle.unwrap().contains("read-only"));
        fake.read_only(false);
        fake.unprivileged(true);
        let caps = survey(&mut host, "commensal-probe-1", None).unwrap().caps;
        assert!(caps.cgroup_obstacle.unwrap().contains("may not create cgroups"));
    }
}

/// A refusal that may pass says nothing of a kernel: the test is repeated, and what stays refused is worth another survey.
#[test]
fn a_knob_that_is_refused_for_a_moment_is_tried_again() {
    let key = (KnobId::PidsMax, Version::V1);
    let survey = |operation, effect, lasts| {
        let fake = FakeHost::v1(4, 8 << 30);
        let instance = instance();
        let path = format!("/sys/fs/cgroup/pids/{}/pids.max", instance.scratch);
        fake.trouble(Trouble { operation, path, value: None, effect, lasts });
        let survey = instance.survey(&mut fake.another()).unwrap();
        assert!(fake.no_trouble() > 0, "{operation}: the fault was not met");
        (survey.caps.knobs[&key].clone(), survey.caps.doubtful)
    };
    for operation in ["read", "write"] {
        for errno in [Errno::EIO, Errno::ENOMEM, Errno::ENOSPC, Errno::EMFILE] {
            assert_eq!(
                survey(operation, Effect::Fails(errno), false),
                (Support::Yes, false),
                "{operation} {errno}"
            );
            let (refused, doubtful) = survey(operation, Effect::Fails(errno), true);
            assert!(
                matches!(refused, Support::Refused { .. }) && doubtful,
                "{operation} {errno}: {refused:?}"
            );
        }
        let (refused, doubtful) = survey(operation, Effect::Fails(Errno::EINVAL), true);
        assert!(matches!(refused, Support::Refused { .. }) && !doubtful, "{operation}: {refused:?}");
    }
    assert_eq!(survey("write", Effect::Ignored, false), (Support::Yes, false));
    let (ignored, doubtful) = survey("write", Effect::Ignored, true);
    assert!(matches!(ignored, Support::No { .. }) && !doubtful, "{ignored:?}");
}
