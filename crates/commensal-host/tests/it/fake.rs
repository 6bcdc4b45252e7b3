//! Tests of the fake host alone: faults, crashes, identities, fixtures, and the files that sensors read.

use commensal_core::errno::Errno;
use commensal_core::process::{SCHED_BATCH, SCHED_FIFO, SCHED_IDLE, SCHED_RR, Stat};
use commensal_core::vendor::QOS_SYSCTLS;
use commensal_host::fake::{FakeHost, VendorKernel};
use commensal_host::{Dir, Exit, Host, Scheduling, Signal, SpawnSpec, Stdout};
use std::io::Read;
use std::path::Path;

const GIB: u64 = 1 << 30;
const JOURNAL: &str = "/var/lib/commensal/journal";

fn errno<T: std::fmt::Debug>(result: commensal_host::Result<T>) -> String {
    result.map_or_else(|error| error.errno.to_string(), |_| "ok".to_owned())
}

fn cpu_root(host: &mut FakeHost) -> Dir {
    host.open(Path::new("/sys/fs/cgroup/cpu")).unwrap()
}

#[test]
fn a_fault_hits_the_nth_mutation_once() {
    let mut host = FakeHost::v1(2, GIB);
    let root = cpu_root(&mut host);
    host.fail_write(3, Errno::ENOSPC);
    let group = host.mkdir(root, "g").unwrap();
    // A write that the kernel refuses changes nothing and does not count.
    assert_eq!(errno(host.write(group, "cpu.shares", "abc")), "EINVAL");
    assert_eq!(errno(host.write(group, "cpu.shares", "4")), "ok");
    assert_eq!(errno(host.write(group, "cpu.shares", "5")), "ENOSPC");
    assert_eq!(errno(host.write(group, "cpu.shares", "5")), "ok");
    let log: Vec<String> =
        host.mutations().iter().map(|one| format!("{} {} {}", one.operation, one.path, one.value)).collect();
    let expect = ["create cpu/g ", "write cpu/g/cpu.shares 4", "write cpu/g/cpu.shares 5"];
    assert_eq!(log, expect.map(|line| line.replace("cpu/g", "/sys/fs/cgroup/cpu/g")));
}

#[test]
fn a_crash_keeps_the_kernel_and_the_state_files() {
    let fake = FakeHost::v1(2, GIB);
    let mut host = fake.another();
    host.state_dir(Path::new("/var/lib/commensal")).unwrap();
    let lock = host.state_lock(Path::new("/var/lib/commensal/lock")).unwrap();
    assert!(lock.is_some());
    fake.crash_after(3);
    host.state_append(Path::new(JOURNAL), "one\n").unwrap();
    let root = cpu_root(&mut host);
    let group = host.mkdir(root, "g").unwrap();
    assert!(!fake.is_crashed());
    let mut spec = SpawnSpec::new("sleep");
    spec.groups = vec![group];
    spec.die_with_parent = true;
    let child = host.spawn(&spec).unwrap();
    assert!(fake.is_crashed());
    assert_eq!(errno(host.write(group, "cpu.shares", "5")), "EIO");
    assert_eq!(errno(host.read(group, "cpu.shares")), "EIO");
    assert_eq!(errno(host.state_read(Path::new(JOURNAL))), "EIO");
    let mut after = host.restart();
    assert_eq!(errno(host.read_file(Path::new("/proc/stat"))), "EIO");
    assert_eq!(after.state_read(Path::new(JOURNAL)).unwrap().as_deref(), Some("one\n"));
    assert!(after.state_lock(Path::new("/var/lib/commensal/lock")).unwrap().is_some());
    let root = cpu_root(&mut after);
    let again = after.open_child(root, "g").unwrap();
    assert_eq!(again.inode, group.inode);
    assert_eq!(after.read(again, "cgroup.procs").unwrap(), "");
    let dead = after.processes().into_iter().find(|one| one.pid == child.process.pid).unwrap();
    assert_eq!(dead.exit, Some(Exit::Signal(9)));
}

#[test]
fn no_permission_read_only_and_a_full_disk() {
    let mut host = FakeHost::v2(2, GIB);
    let root = host.open(Path::new("/sys/fs/cgroup")).unwrap();
    host.read_only(true);
    assert_eq!(errno(host.mkdir(root, "g")), "EROFS");
    host.read_only(false);
    host.unprivileged(true);
    assert_eq!(host.euid(), 1000);
    assert_eq!(errno(host.mkdir(root, "g")), "EACCES");
    assert_eq!(errno(host.write(root, "cgroup.subtree_control", "+cpu")), "EACCES");
    host.unprivileged(false);
    host.state_dir(Path::new("/var/lib/commensal")).unwrap();
    host.state_append(Path::new(JOURNAL), "one\n").unwrap();
    host.state_full(true);
    assert_eq!(errno(host.state_append(Path::new(JOURNAL), "two\n")), "ENOSPC");
    assert_eq!(errno(host.state_replace(Path::new(JOURNAL), "two\n")), "ENOSPC");
    assert_eq!(host.state_read(Path::new(JOURNAL)).unwrap().as_deref(), Some("one\n"));
    assert_eq!(errno(host.state_append(Path::new("/no/such/folder"), "x")), "ENOSPC");
    host.state_full(false);
    assert_eq!(errno(host.state_append(Path::new("/no/such/folder"), "x")), "ENOENT");
}

#[test]
fn a_group_that_vanishes_hands_its_processes_up() {
    let mut host = FakeHost::v1(2, GIB);
    let root = cpu_root(&mut host);
    let parent = host.mkdir(root, "p").unwrap();
    let child = host.mkdir(parent, "c").unwrap();
    let pid = host.add_process(&["/sys/fs/cgroup/cpu/p/c"]);
    assert_eq!(host.read(child, "cgroup.procs").unwrap(), format!("{pid}\n"));
    assert_eq!(host.read(child, "cpu.idle").unwrap(), "0\n");
    host.vanish("/sys/fs/cgroup/cpu/p/c");
    assert_eq!(errno(host.read(child, "cpu.idle")), "ENODEV");
    assert_eq!(errno(host.read(child, "cgroup.procs")), "ENOENT");
    assert_eq!(errno(host.read(child, "cpu.shares")), "ENOENT");
    assert_eq!(host.read(parent, "cgroup.procs").unwrap(), format!("{pid}\n"));
    let again = host.mkdir(parent, "c").unwrap();
    assert_ne!(again.inode, child.inode);
    assert_eq!(errno(host.rmdir(parent, "c", child.inode)), "ENOENT");
    assert_eq!(errno(host.rmdir(parent, "c", again.inode)), "ok");
}

#[test]
fn children_are_inside_their_groups_and_end() {
    let mut host = FakeHost::hybrid(2, GIB);
    let root = cpu_root(&mut host);
    let group = host.mkdir(root, "g").unwrap();
    let unified = host.open(Path::new("/sys/fs/cgroup/unified")).unwrap();
    let twin = host.mkdir(unified, "g").unwrap();
    let mut spec = SpawnSpec::new("/usr/bin/batch").arg("-x");
    spec.groups = vec![group, twin];
    spec.stdout = Stdout::Pipe;
    host.output_of("/usr/bin/batch", "42\n");
    let mut child = host.spawn(&spec).unwrap();
    let place = host.read_file(Path::new(&format!("/proc/{}/cgroup", child.process.pid))).unwrap();
    assert!(
        place.contains(":cpu:/g\n") && place.contains("0::/g\n") && place.contains(":memory:/\n"),
        "{place}"
    );
    let mut output = String::new();
    child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    assert_eq!(output, "42\n");
    assert_eq!(child.try_wait().unwrap(), None);
    host.ignores_sigterm(child.process.pid);
    host.signal(&child.process, Signal::TERM).unwrap();
    assert_eq!(child.try_wait().unwrap(), None);
    host.signal(&child.process, Signal::KILL).unwrap();
    assert_eq!(host.read(group, "cgroup.procs").unwrap(), "");
    assert_eq!(child.wait().unwrap(), Exit::Signal(9));
    // The PID may belong to another process now; the signal must not reach it.
    host.reuse_pid(child.process.pid, &[]);
    assert_eq!(errno(host.signal(&child.process, Signal::KILL)), "ESRCH");
    let stranger = host.processes().into_iter().find(|one| one.pid == child.process.pid).unwrap();
    assert_eq!(stranger.exit, None);
    host.missing_program("nothing");
    assert_eq!(errno(host.spawn(&SpawnSpec::new("nothing"))), "ENOENT");
    // A process that the test has not ended exits when its parent waits for it.
    assert_eq!(host.spawn(&SpawnSpec::new("true")).unwrap().wait().unwrap(), Exit::Code(0));
}

#[test]
fn no_real_time_without_a_budget() {
    let mut host = FakeHost::v1(2, GIB);
    let root = cpu_root(&mut host);
    let group = host.mkdir(root, "g").unwrap();
    let mut spec = SpawnSpec::new("load");
    spec.policy.fifo = Some(1);
    assert_eq!(errno(host.spawn(&spec)), "ok");
    spec.groups = vec![group];
    assert_eq!(errno(host.spawn(&spec)), "EPERM");
}

#[test]
fn the_writer_itself_is_zero() {
    let mut host = FakeHost::v2(2, GIB);
    let root = host.open(Path::new("/sys/fs/cgroup")).unwrap();
    let group = host.mkdir(root, "g").unwrap();
    host.write(group, "cgroup.procs", "0").unwrap();
    assert_eq!(host.read(group, "cgroup.procs").unwrap(), format!("{}\n", std::process::id()));
    assert_eq!(host.read_file(Path::new("/proc/self/cgroup")).unwrap(), "0::/g\n");
}

#[test]
fn sensors_find_their_files() {
    let host = FakeHost::hybrid(4, 8 * GIB);
    let read = |path: &str| host.read_file(Path::new(path)).unwrap();
    assert!(read("/proc/mounts").contains("cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"));
    assert!(read("/proc/meminfo").starts_with("MemTotal:        8388608 kB\n"));
    assert_eq!(read("/proc/stat").lines().filter(|line| line.starts_with("cpu")).count(), 5);
    assert_eq!(read("/sys/devices/system/cpu/cpu3/topology/thread_siblings_list"), "3\n");
    assert_eq!(read("/sys/devices/system/cpu/cpu3/cache/index3/shared_cpu_list"), "0-3\n");
    assert_eq!(host.list(Path::new("/sys/block")).unwrap(), ["vda"]);
    assert!(host.list(Path::new("/sys/fs/cgroup")).unwrap().contains(&"unified".to_owned()));
    assert!(host.list(Path::new("/proc")).unwrap().contains(&std::process::id().to_string()));
    host.remove_file("/proc/pressure/cpu");
    assert_eq!(errno(host.read_file(Path::new("/proc/pressure/cpu"))), "ENOENT");
    host.set_file("/sys/fs/cgroup/cpu/cpu.stat", "nr_periods 7\n");
    assert_eq!(read("/sys/fs/cgroup/cpu/cpu.stat"), "nr_periods 7\n");
}

#[test]
fn a_fixture_is_a_machine() {
    let text = "# a machine\n# of two CPUs\n\
                /proc/mounts\tcgroup2 /sys/fs/cgroup cgroup2 rw 0 0\\n\n\
                /sys/devices/system/cpu/online\t0-1\\n\n\
                /sys/fs/cgroup/a.slice/b/memory.current\t4096\\n\n\
                /proc/loadavg\t1.00 0.50\\ttab\\\\n\n";
    let mut host = FakeHost::from_fixture(text).unwrap();
    assert_eq!(host.read_file(Path::new("/proc/loadavg")).unwrap(), "1.00 0.50\ttab\\n");
    let root = host.open(Path::new("/sys/fs/cgroup")).unwrap();
    assert_eq!(host.children(root).unwrap(), ["a.slice"]);
    let dir = host.open(Path::new("/sys/fs/cgroup/a.slice/b")).unwrap();
    assert_eq!(host.read(dir, "memory.current").unwrap(), "4096\n");
    let error = FakeHost::from_fixture("# x\nno tab here\n").unwrap_err();
    assert_eq!(error.to_string(), "line 2 is not an absolute path, a tab and a value: \"no tab here\"");
}

#[test]
fn a_copy_is_a_machine_of_its_own() {
    let fake = FakeHost::v1(2, GIB);
    let mut host = fake.another();
    let root = cpu_root(&mut host);
    let group = host.mkdir(root, "g").unwrap();
    host.write(group, "cpu.shares", "5").unwrap();
    let pid = fake.add_process(&["/sys/fs/cgroup/cpu/g"]);
    host.state_dir(Path::new("/var/lib/commensal")).unwrap();
    let lock = host.state_lock(Path::new("/var/lib/commensal/lock")).unwrap();
    let mut asked = 0;
    fake.serve("/socket", move |_| {
        asked += 1;
        Some(asked.to_string())
    });
    let ask = |fake: &FakeHost| fake.ask(Path::new("/socket"), "", std::time::Duration::ZERO).unwrap();
    assert_eq!(ask(&fake), "1");

    let copy = fake.copy();
    assert_eq!((copy.snapshot(), copy.mutations().len()), (fake.snapshot(), 0));
    let mut there = copy.another();
    let group = there.open(Path::new("/sys/fs/cgroup/cpu/g")).unwrap();
    assert_eq!(there.read(group, "cgroup.procs").unwrap(), format!("{pid}\n"));
    assert!(lock.is_some() && host.state_lock(Path::new("/var/lib/commensal/lock")).unwrap().is_none());
    assert!(there.state_lock(Path::new("/var/lib/commensal/lock")).unwrap().is_some());
    copy.end(pid, Exit::Code(0));
    there.write(group, "cpu.shares", "7").unwrap();
    copy.crash_after(0);
    assert_eq!((ask(&fake), ask(&fake.copy()), ask(&fake)), ("2".to_owned(), "3".to_owned(), "3".to_owned()));

    let group = host.open(Path::new("/sys/fs/cgroup/cpu/g")).unwrap();
    assert_eq!(host.read(group, "cpu.shares").unwrap(), "5\n");
    assert_eq!(host.read(group, "cgroup.procs").unwrap(), format!("{pid}\n"));
}

#[test]
fn two_hosts_share_a_machine() {
    let mut one = FakeHost::v1(2, GIB);
    let mut two = one.another();
    one.state_dir(Path::new("/run/commensal")).unwrap();
    let path = Path::new("/run/commensal/lock");
    let lock = one.state_lock(path).unwrap();
    assert!(lock.is_some() && two.state_lock(path).unwrap().is_none());
    drop(lock);
    assert!(two.state_lock(path).unwrap().is_some());
    let root = cpu_root(&mut one);
    one.mkdir(root, "g").unwrap();
    let same = cpu_root(&mut two);
    assert_eq!(two.children(same).unwrap(), ["g"]);
}

#[test]
fn a_vendor_kernel_has_its_files() {
    let mut host = FakeHost::v1(2, GIB);
    let root = cpu_root(&mut host);
    let group = host.mkdir(root, "g").unwrap();
    assert_eq!(errno(host.read(group, "cpu.qos_level")), "ENOENT");
    host.vendor_kernel(VendorKernel::OPENEULER);
    assert_eq!(host.read(group, "cpu.qos_level").unwrap(), "0\n");
    host.write(group, "cpu.qos_level", "-1").unwrap();
    assert_eq!(host.read(group, "cpu.qos_level").unwrap(), "-1\n");
    assert_eq!(host.read(root, "cpu.qos_level").unwrap(), "0\n");
    for level in ["-1", "0", "1"] {
        assert_eq!(errno(host.write(root, "cpu.qos_level", level)), "EINVAL");
    }
}

/// The settings of the vendor's scheduler take what is in their ranges.
#[test]
fn settings_of_a_vendor_kernel_have_ranges() {
    for (kernel, number) in [(VendorKernel::OPENEULER, 2), (VendorKernel::OPENEULER_FIVE, 3)] {
        let mut host = FakeHost::v1(2, GIB);
        host.vendor_kernel(kernel);
        let all = QOS_SYSCTLS.iter().filter(|one| host.read_file(Path::new(one.path)).is_ok());
        let all: Vec<_> = all.collect();
        assert_eq!(all.len(), number);
        for sysctl in all {
            let path = Path::new(sysctl.path);
            let shown = host.read_file(path).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(shown, sysctl.default);
            let Some((least, most)) = sysctl.range else { continue };
            for value in [least, most] {
                host.write_setting(path, &value.to_string()).unwrap();
                assert_eq!(host.read_file(path).unwrap(), format!("{value}\n"));
            }
            for wrong in [least - 1, most + 1, 0, -1] {
                assert_eq!(errno(host.write_setting(path, &wrong.to_string())), "EINVAL");
            }
            assert_eq!(errno(host.write_setting(path, "x")), "EINVAL");
            assert_eq!(host.read_file(path).unwrap(), format!("{most}\n"));
        }
    }
}

fn one(fake: &FakeHost, pid: u32) -> commensal_host::fake::FakeProcess {
    fake.processes().into_iter().find(|process| process.pid == pid).unwrap()
}

/// Both kernels, each with a level below 0.
fn below_zero() -> Vec<(VendorKernel, &'static str)> {
    vec![
        (VendorKernel::OPENEULER, "-1"),
        (VendorKernel::OPENEULER_FIVE, "-1"),
        (VendorKernel::OPENEULER_FIVE, "-2"),
    ]
}

/// Whatever policy a task has, it is `SCHED_IDLE` after the level of its group is written, after it enters such a group
/// and after it is forked there, and it stays so when it leaves. Only the task itself, or another program, changes that.
#[test]
fn a_level_below_zero_takes_the_policies_of_members() {
    let idle = Scheduling::of(SCHED_IDLE);
    let all = [
        Scheduling::default(),
        Scheduling::of(SCHED_BATCH),
        idle,
        Scheduling::real_time(SCHED_FIFO, 3),
        Scheduling::real_time(SCHED_RR, 9),
        Scheduling { reset_on_fork: true, ..Scheduling::real_time(SCHED_FIFO, 1) },
    ];
    for (kernel, level) in below_zero() {
        for own in all {
            let mut host = FakeHost::v1(2, GIB);
            host.vendor_kernel(kernel);
            let root = cpu_root(&mut host);
            let group = host.mkdir(root, "g").unwrap();
            host.write(group, "cpu.rt_runtime_us", "1000").unwrap();
            let inner = host.mkdir(group, "inner").unwrap();
            host.write(inner, "cpu.rt_runtime_us", "1000").unwrap();
            let (inside, outside) =
                (host.add_process(&["/sys/fs/cgroup/cpu/g/inner"]), host.add_process(&[]));
            let second = host.add_thread(inside);
            for tid in [inside, second, outside] {
                host.set_scheduling(tid, &own).unwrap();
                assert_eq!(host.scheduling(tid).unwrap(), own);
            }
            host.write(group, "cpu.qos_level", level).unwrap();
            assert_eq!(one(&host, inside).scheduling, [(inside, idle), (second, idle)].into());
            host.write(inner, "cgroup.procs", &outside.to_string()).unwrap();
            assert_eq!(host.scheduling(outside).unwrap(), idle);
            host.set_scheduling(inside, &own).unwrap();
            let third = host.add_thread(inside);
            assert_eq!(host.scheduling(third).unwrap(), idle, "started in the group");
            host.write(root, "cgroup.procs", &outside.to_string()).unwrap();
            host.write(root, "cgroup.procs", &inside.to_string()).unwrap();
            assert_eq!(host.scheduling(outside).unwrap(), idle);
            assert_eq!(host.scheduling(inside).unwrap(), own);
            assert_eq!(host.scheduling(second).unwrap(), idle);
        }
    }
}

#[test]
fn real_time_needs_a_budget_of_the_group() {
    let mut host = FakeHost::v1(2, GIB);
    let root = cpu_root(&mut host);
    let group = host.mkdir(root, "g").unwrap();
    let pid = host.add_process(&[]);
    let fifo = Scheduling::real_time(SCHED_FIFO, 1);
    host.set_scheduling(pid, &fifo).unwrap();
    assert_eq!(errno(host.write(group, "cgroup.procs", &pid.to_string())), "EINVAL");
    host.set_scheduling(pid, &Scheduling::default()).unwrap();
    host.write(group, "cgroup.procs", &pid.to_string()).unwrap();
    assert_eq!(errno(host.set_scheduling(pid, &fifo)), "EPERM");
    host.unprivileged(true);
    assert_eq!(errno(host.set_scheduling(pid, &Scheduling::default())), "EPERM");
    assert_eq!(errno(host.set_scheduling(1 << 30, &Scheduling::default())), "ESRCH");
    assert_eq!(errno(host.scheduling(1 << 30)), "ESRCH");
}

/// A task below level 0 runs no code of its own beside busy online work: it handles no signal, uses no time and cannot
/// be frozen. A default action ends it all the same.
#[test]
fn a_task_below_zero_starves_beside_busy_online_work() {
    let second = std::time::Duration::from_secs(1);
    for (kernel, level) in below_zero() {
        let mut host = FakeHost::v1(2, GIB);
        host.vendor_kernel(kernel);
        let root = cpu_root(&mut host);
        let group = host.mkdir(root, "g").unwrap();
        let freezer = host.open(Path::new("/sys/fs/cgroup/freezer")).unwrap();
        let frozen = host.mkdir(freezer, "g").unwrap();
        let place = ["/sys/fs/cgroup/cpu/g", "/sys/fs/cgroup/cpuacct/g", "/sys/fs/cgroup/freezer/g"];
        let cpuacct = host.open(Path::new("/sys/fs/cgroup/cpuacct")).unwrap();
        let used = host.mkdir(cpuacct, "g").unwrap();
        let (handles, spins) = (host.add_process(&place), host.add_process(&place));
        host.handles_sigterm(handles, 7);
        host.wants_cpu(spins, true);
        host.write(group, "cpu.qos_level", level).unwrap();
        let stat = |host: &FakeHost| {
            let text = host.read_file(Path::new(&format!("/proc/{spins}/task/{spins}/stat"))).unwrap();
            let stat = Stat::parse(&text).unwrap();
            (stat.text(3).unwrap().to_owned(), stat.user_ticks().unwrap())
        };
        host.advance(second);
        assert_eq!(stat(&host), ("R".to_owned(), 100));
        assert_eq!(host.read(used, "cpuacct.usage").unwrap(), "1000000000\n");
        host.online_is_busy(true);
        host.advance(second);
        assert_eq!(stat(&host), ("D".to_owned(), 100));
        assert_eq!(host.read(used, "cpuacct.usage").unwrap(), "1000000000\n");
        host.write(frozen, "freezer.state", "FROZEN").unwrap();
        assert_eq!(host.read(frozen, "freezer.state").unwrap(), "FREEZING\n");
        let process = host.process(handles).unwrap();
        host.signal(&process, Signal::TERM).unwrap();
        assert_eq!(one(&host, handles).exit, None);
        let process = host.process(spins).unwrap();
        host.signal(&process, Signal::TERM).unwrap();
        assert_eq!(one(&host, spins).exit, Some(Exit::Signal(15)));
        // One member that is not SCHED_IDLE has the CPU; so has one that is moved out.
        host.write(root, "cgroup.procs", &handles.to_string()).unwrap();
        assert_eq!(one(&host, handles).exit, Some(Exit::Code(7)));
        assert_eq!(host.read(frozen, "freezer.state").unwrap(), "FROZEN\n");
        let third = host.add_process(&place);
        host.handles_sigterm(third, 8);
        let process = host.process(third).unwrap();
        host.signal(&process, Signal::TERM).unwrap();
        assert_eq!(one(&host, third).exit, None);
        host.online_is_busy(false);
        assert_eq!(one(&host, third).exit, Some(Exit::Code(8)));
    }
}

/// Only the named operation has a fault, once or until the fault is cleared. An ignored operation succeeds and changes
/// nothing.
#[test]
fn one_operation_goes_wrong_and_no_other() {
    use commensal_host::fake::{Effect, Trouble};
    const WEIGHT: &str = "/sys/fs/cgroup/cpu/g/cpu.shares";
    let mut host = FakeHost::v1(2, GIB);
    let root = cpu_root(&mut host);
    let trouble = |operation, path: &str, effect, lasts| Trouble {
        operation,
        path: path.to_owned(),
        value: None,
        effect,
        lasts,
    };
    host.trouble(trouble("create", "/sys/fs/cgroup/cpu/g", Effect::Fails(Errno::EIO), false));
    assert_eq!(errno(host.mkdir(root, "other")), "ok");
    assert_eq!(errno(host.mkdir(root, "g")), "EIO");
    let group = host.mkdir(root, "g").unwrap();
    assert_eq!(host.no_trouble(), 1);
    let cases = [
        (Effect::Fails(Errno::ENODEV), "ENODEV", "1024\n"),
        (Effect::Ignored, "ok", "1024\n"),
        (Effect::Takes("7".to_owned()), "ok", "7\n"),
    ];
    for (effect, says, reads) in cases {
        host.trouble(trouble("write", WEIGHT, effect, true));
        for _ in 0..2 {
            assert_eq!(errno(host.write(group, "cpu.shares", "5")), says);
            assert_eq!(host.read(group, "cpu.shares").unwrap(), reads);
        }
        assert_eq!(errno(host.write(group, "cpu.cfs_period_us", "50000")), "ok");
        assert_eq!(host.no_trouble(), 2);
    }
    // Only writes of this value have the fault.
    host.trouble(Trouble { value: Some("9".to_owned()), ..trouble("write", WEIGHT, Effect::Ignored, true) });
    assert_eq!(errno(host.write(group, "cpu.shares", "8")), "ok");
    assert_eq!(errno(host.write(group, "cpu.shares", "9")), "ok");
    assert_eq!(host.read(group, "cpu.shares").unwrap(), "8\n");
}
