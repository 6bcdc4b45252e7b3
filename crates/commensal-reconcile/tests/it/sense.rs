//! Sensors on machines of every layout: what is there is read, what is missing is `None`.

use commensal_core::actual::CgroupPath;
use commensal_core::knob::Version;
use commensal_host::Host;
use commensal_host::fake::FakeHost;
use commensal_sensors::mounts::{Layout, hierarchies, layout};
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

// promise 68
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

// promise 68
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
