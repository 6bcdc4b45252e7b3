//! Locks of state files behave the same on the fake and the real host, and children keep inherited locks.

use commensal_core::errno::Errno;
use commensal_host::fake::FakeHost;
use commensal_host::{Exit, Host, LinuxHost, Signal, SpawnSpec};
use std::path::Path;
use std::time::Duration;

/// Much longer than any operation here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the check in `folder`; `make` creates a host for each process.
fn conforms<H: Host>(make: impl Fn() -> H, folder: &Path) {
    let (mut one, two) = (make(), make());
    one.state_dir(folder).unwrap();
    let path = folder.join("7");
    assert!(two.state_lock_file(&path).unwrap().is_none());
    let lock = one.state_lock_new(&path, "a job\n").unwrap();
    assert_eq!(one.state_lock_new(&path, "").unwrap_err().errno, Errno::EEXIST);
    assert_eq!(one.state_read(&path).unwrap().as_deref(), Some("a job\n"));
    let held = || two.state_lock_file(&path).unwrap().unwrap().is_held();
    assert!(held() && held(), "looking changes nothing");
    // Text may be appended while the lock is held.
    one.state_append(&path, "its command\n").unwrap();
    assert_eq!(one.state_read(&path).unwrap().as_deref(), Some("a job\nits command\n"));
    let copy = lock.clone();
    drop(lock);
    assert!(held(), "a copy holds it");
    let waits = two.state_lock_file(&path).unwrap().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(waits.wait()).unwrap());
    assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
    copy.release();
    told.recv_timeout(PATIENCE).unwrap().unwrap();
    assert!(!held());
    // Of two processes that want the lock, one holds it until it releases it.
    let first = two.state_lock_file(&path).unwrap().unwrap().lock().unwrap();
    assert!(held());
    let waits = two.state_lock_file(&path).unwrap().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(waits.lock()).unwrap());
    assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
    drop(first);
    let second = told.recv_timeout(PATIENCE).unwrap().unwrap();
    assert!(held());
    drop(second);
    assert!(!held());
    let watch = one.state_watch(&[folder]).unwrap();
    assert!(!watch.wait(Duration::from_millis(1)));
    assert!(one.state_watch(&[&folder.join("none")]).is_err());
}

#[test]
fn both_hosts_conform() {
    let fake = FakeHost::v1(2, 1 << 30);
    conforms(|| fake.another(), Path::new("/var/lib/commensal/queue"));
    let folder = tempfile::tempdir().unwrap();
    conforms(LinuxHost::new, &folder.path().join("queue"));
}

/// A watch reports a holder that has released its lock, a file that is removed and a file that is moved in; tests of
/// the lock are not reported.
#[test]
fn a_watch_hears_what_matters() {
    let folder = tempfile::tempdir().unwrap();
    let mut host = LinuxHost::new();
    let lock = host.state_lock_new(&folder.path().join("1"), "").unwrap();
    let watch = host.state_watch(&[folder.path()]).unwrap();
    let looked = host.state_lock_file(&folder.path().join("1")).unwrap().unwrap().is_held();
    assert!(looked && !watch.wait(Duration::from_millis(20)), "looking is no news");
    drop(lock);
    assert!(watch.wait(PATIENCE), "the holder let go");
    assert!(!watch.wait(Duration::from_millis(1)), "it is told once");
    host.state_remove(&folder.path().join("1")).unwrap();
    assert!(watch.wait(PATIENCE), "a file went");
    host.state_replace(&folder.path().join("held"), "{}").unwrap();
    assert!(watch.wait(PATIENCE), "a file was moved in");
}

#[test]
fn the_clock_goes_on() {
    let host = LinuxHost::new();
    let before = host.boot_time();
    let uptime: f64 =
        host.read_file(Path::new("/proc/uptime")).unwrap().split(' ').next().unwrap().parse().unwrap();
    let after = host.boot_time();
    // A container may have a separate uptime (lxcfs); the clock advances there, too.
    println!("{before:?} {uptime} {after:?}");
    assert!(after > before && before > Duration::ZERO);
    let fake = FakeHost::v1(2, 1 << 30);
    let before = fake.boot_time();
    fake.advance(Duration::from_secs(5));
    assert_eq!(fake.another().boot_time() - before, Duration::from_secs(5));
}

/// The child and its descendants still hold the lock when this process no longer does. Releasing the lock releases it
/// for them, too.
#[test]
fn a_child_keeps_its_locks() {
    let folder = tempfile::tempdir().unwrap();
    let mut host = LinuxHost::new();
    for release in [false, true] {
        let path = folder.path().join(format!("{release}"));
        let lock = host.state_lock_new(&path, "").unwrap();
        let mut spec = SpawnSpec::new("sleep").arg("600");
        let mut other = host.spawn(&spec).unwrap();
        spec.locks = vec![lock.clone()];
        let mut child = host.spawn(&spec).unwrap();
        let held = || host.state_lock_file(&path).unwrap().unwrap().is_held();
        if release {
            lock.release();
            assert!(!held(), "released for the child too");
        } else {
            drop((lock, spec));
            assert!(held(), "the child has it");
        }
        let end = |child: &mut commensal_host::Child| {
            LinuxHost::new().signal(&child.process, Signal::KILL).unwrap();
            assert_eq!(child.wait().unwrap(), Exit::Signal(9));
        };
        end(&mut child);
        assert!(!host.state_lock_file(&path).unwrap().unwrap().is_held(), "a child without it never had it");
        end(&mut other);
    }
}

/// The same check on the fake host, where the death of this process can be simulated.
#[test]
fn a_fake_child_keeps_its_locks() {
    let fake = FakeHost::v1(2, 1 << 30);
    let mut host = fake.another();
    let folder = Path::new("/var/lib/commensal");
    host.state_dir(folder).unwrap();
    let lock = host.state_lock_new(&folder.join("1"), "").unwrap();
    let _ours = host.state_lock_new(&folder.join("2"), "").unwrap();
    let mut spec = SpawnSpec::new("sleep");
    spec.locks = vec![lock.clone()];
    let child = host.spawn(&spec).unwrap();
    fake.crash_after(0);
    let after = fake.restart();
    let held = |name: &str| after.state_lock_file(&folder.join(name)).unwrap().unwrap().is_held();
    assert!(held("1") && !held("2"));
    fake.end(child.process.pid, Exit::Code(0));
    assert!(!held("1"));
}
