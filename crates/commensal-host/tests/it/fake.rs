//! The fake by itself: faults, crashes, identities, fixtures, and what sensors read.

use commensal_core::errno::Errno;
use commensal_host::fake::{FakeHost, VendorKernel};
use commensal_host::{Dir, Exit, Host, Signal, SpawnSpec, Stdout};
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
    // The number may belong to somebody else now; the signal must not reach them.
    host.reuse_pid(child.process.pid, &[]);
    assert_eq!(errno(host.signal(&child.process, Signal::KILL)), "ESRCH");
    let stranger = host.processes().into_iter().find(|one| one.pid == child.process.pid).unwrap();
    assert_eq!(stranger.exit, None);
    host.missing_program("nothing");
    assert_eq!(errno(host.spawn(&SpawnSpec::new("nothing"))), "ENOENT");
    // A program that nobody ends runs to its end when somebody waits for it.
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
}

/// Only the named operation goes wrong, once or until it is cleared; what is ignored succeeds and changes nothing.
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
    // Only this value.
    host.trouble(Trouble { value: Some("9".to_owned()), ..trouble("write", WEIGHT, Effect::Ignored, true) });
    assert_eq!(errno(host.write(group, "cpu.shares", "8")), "ok");
    assert_eq!(errno(host.write(group, "cpu.shares", "9")), "ok");
    assert_eq!(host.read(group, "cpu.shares").unwrap(), "8\n");
}
