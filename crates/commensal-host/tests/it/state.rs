//! State files on the real host: a file that is not one of commensal's regular files is refused without waiting, and
//! never written.

use commensal_core::errno::Errno;
use commensal_host::fake::FakeHost;
use commensal_host::{Host, HostError, LinuxHost, SMALL_STATE_FILE_MOST, STATE_FILE_MOST};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A user ID other than root's.
const SOMEBODY: u32 = 65_534;

/// Tries every operation that opens the state file; returns the results by operation.
fn tries(host: &mut LinuxHost, path: &Path) -> Vec<(&'static str, Result<(), HostError>)> {
    vec![
        ("read", host.state_read(path).map(drop)),
        ("append", host.state_append(path, "more\n")),
        ("lock", host.state_lock(path).map(drop)),
        ("look at the lock of", host.state_lock_file(path).map(drop)),
    ]
}

fn folder() -> (tempfile::TempDir, PathBuf, LinuxHost) {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let mut host = LinuxHost::new();
    host.guard_state(&state);
    host.state_dir(&state).unwrap();
    (dir, state, host)
}

// promise 57
#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let (dir, state, mut host) = folder();
    let target = dir.path().join("target");
    std::fs::write(&target, "somebody's\n").unwrap();
    let make = |program: &str, args: &[&str]| {
        assert!(Command::new(program).args(args).current_dir(&state).status().unwrap().success());
    };
    make("mkfifo", &["pipe"]);
    std::fs::create_dir(state.join("folder")).unwrap();
    symlink(&target, state.join("link")).unwrap();
    symlink(dir.path().join("nothing"), state.join("dangling")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(state.join("socket")).unwrap();
    let mut kinds = vec![
        ("pipe", "which is a named pipe", Errno::EINVAL),
        ("folder", "which is a directory", Errno::EISDIR),
        ("link", "which is a symbolic link", Errno::ELOOP),
        ("dangling", "which is a symbolic link", Errno::ELOOP),
        ("socket", "which is a socket", Errno::EINVAL),
    ];
    if Command::new("mknod").args(["zero", "c", "1", "5"]).current_dir(&state).status().unwrap().success() {
        kinds.push(("zero", "which is a device", Errno::EINVAL));
    }
    for (name, is, errno) in kinds {
        let path = state.join(name);
        for (what, tried) in tries(&mut host, &path) {
            let error = tried.unwrap_err();
            assert!(error.is_no_file() && error.errno == errno, "{what} {name}: {error}");
            assert!(error.to_string().contains(is) && error.object.contains(name), "{what} {name}: {error}");
        }
        assert!(host.state_lock_new(&path, "").is_err(), "{name}");
    }
    // Replacing a link replaces the link, not the file that it points to.
    host.state_replace(&state.join("link"), "ours\n").unwrap();
    assert!(!state.join("link").is_symlink());
    host.state_replace(&state.join("pipe"), "ours\n").unwrap();
    assert_eq!(host.state_read(&state.join("pipe")).unwrap().as_deref(), Some("ours\n"));
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "somebody's\n");
    assert!(!dir.path().join("nothing").exists());
}

// promise 57
#[test]
fn a_second_name_of_a_file_is_not_written() {
    let (dir, state, mut host) = folder();
    let target = dir.path().join("target");
    std::fs::write(&target, "somebody's\n").unwrap();
    std::fs::hard_link(&target, state.join("name")).unwrap();
    let error = host.state_append(&state.join("name"), "more\n").unwrap_err();
    assert!(error.is_no_file() && error.to_string().contains("one of several hard links"), "{error}");
    assert!(host.state_lock(&state.join("name")).is_err());
    assert_eq!(host.state_read(&state.join("name")).unwrap().as_deref(), Some("somebody's\n"));
    host.state_replace(&state.join("name"), "ours\n").unwrap();
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "somebody's\n");
}

// promise 57
#[test]
fn what_others_could_have_written_is_refused() {
    let (dir, state, mut host) = folder();
    if host.euid() != 0 {
        println!("skipped: what_others_could_have_written_is_refused: not root");
        return;
    }
    let mode = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let file = state.join("machine.journal");
    let refused = |host: &mut LinuxHost, want: &str| {
        for (what, tried) in tries(host, &file) {
            let error = tried.unwrap_err();
            assert!(error.errno == Errno::EPERM && error.to_string().contains(want), "{what}: {error}");
        }
    };
    host.state_append(&file, "mine\n").unwrap();
    chown(&file, Some(SOMEBODY), None).unwrap();
    refused(&mut host, "machine.journal, which belongs to user 65534 and not to root");
    chown(&file, Some(0), None).unwrap();
    mode(&file, 0o660);
    refused(&mut host, "`chmod go-w");
    mode(&file, 0o600);
    for folder in [&state, dir.path()] {
        mode(folder, 0o777);
        refused(&mut host, &format!("{}, which others than its owner", folder.display()));
        mode(folder, 0o700);
        chown(folder, Some(SOMEBODY), None).unwrap();
        refused(&mut host, &format!("`chown 0 {}`", folder.display()));
        chown(folder, Some(0), None).unwrap();
    }
    // Another user's link on the path, in a directory where every user may create one.
    mode(dir.path(), 0o1777);
    symlink(&state, dir.path().join("other")).unwrap();
    host.guard_state(&dir.path().join("other"));
    let behind = dir.path().join("other/machine.journal");
    assert_eq!(host.state_read(&behind).unwrap().as_deref(), Some("mine\n"));
    std::os::unix::fs::lchown(dir.path().join("other"), Some(SOMEBODY), None).unwrap();
    let error = host.state_read(&behind).unwrap_err();
    assert!(error.to_string().contains("`chown -h 0 "), "{error}");
    // A host without a guard checks only file types.
    mode(&state, 0o777);
    assert_eq!(LinuxHost::new().state_read(&file).unwrap().as_deref(), Some("mine\n"));
}

// promise 57
#[test]
fn configuration_is_followed_through_links_of_ones_own() {
    let (dir, state, host) = folder();
    if host.euid() != 0 {
        println!("skipped: configuration_is_followed_through_links_of_ones_own: not root");
        return;
    }
    // The layout in which Kubernetes mounts a ConfigMap.
    std::fs::create_dir(state.join("..2026")).unwrap();
    std::fs::write(state.join("..2026/groups.toml"), "text").unwrap();
    symlink("..2026", state.join("..data")).unwrap();
    symlink("..data/groups.toml", state.join("groups.toml")).unwrap();
    let file = state.join("groups.toml");
    assert_eq!(host.read_trusted(&file).unwrap(), "text");
    chown(state.join("..2026/groups.toml"), Some(SOMEBODY), None).unwrap();
    let error = host.read_trusted(&file).unwrap_err();
    assert!(error.to_string().contains("..2026/groups.toml, which belongs to user 65534"), "{error}");
    chown(state.join("..2026/groups.toml"), Some(0), None).unwrap();
    chown(state.join("..2026"), Some(SOMEBODY), None).unwrap();
    assert_eq!(host.read_trusted(&file).unwrap_err().errno, Errno::EPERM);
    symlink("loop", state.join("loop")).unwrap();
    assert_eq!(host.read_trusted(&state.join("loop")).unwrap_err().errno, Errno::ELOOP);
    assert_eq!(host.read_trusted(&state.join("none")).unwrap_err().errno, Errno::ENOENT);
    // A file that belongs to root, in a directory that every user may write.
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
    std::fs::write(dir.path().join("one.toml"), "one").unwrap();
    assert_eq!(host.read_trusted(&dir.path().join("one.toml")).unwrap(), "one");
}

/// Hosts x limits x sizes: a file of exactly the limit is read, a larger one is not, and the error names the file, its
/// size and the limit.
// promise 57
#[test]
fn a_state_file_may_have_so_many_bytes() {
    let (_dir, state, mut real) = folder();
    let mut fake = FakeHost::v2(1, 1 << 30);
    fake.state_dir(&state).unwrap();
    let file = state.join("machine.journal");
    let hosts: [&mut dyn Host; 2] = [&mut real, &mut fake];
    for host in hosts {
        for most in [0, 1, 4_096, SMALL_STATE_FILE_MOST] {
            for size in [0, 1, 4_095, 4_096, 4_097, SMALL_STATE_FILE_MOST, SMALL_STATE_FILE_MOST + 1] {
                let text = "x".repeat(usize::try_from(size).unwrap());
                host.state_replace(&file, &text).unwrap();
                match host.state_read_within(&file, most) {
                    Ok(read) => assert!(size <= most && read == Some(text), "{size} of {most}"),
                    Err(error) => {
                        assert!(size > most && error.errno == Errno::EFBIG, "{size} of {most}: {error}");
                        let said = format!(
                            "machine.journal, which has {size} bytes and may have at most {most} (move"
                        );
                        assert!(error.to_string().contains(&said), "{error}");
                    }
                }
            }
        }
        assert_eq!(host.state_read_within(&state.join("none"), 0).unwrap(), None);
    }
    // More than the machine has memory, with hardly a block on the disk.
    let size = 1 << 42;
    let sparse = std::fs::File::options().write(true).open(&file).unwrap();
    if let Err(error) = sparse.set_len(size) {
        println!("skipped: the sparse file of a_state_file_may_have_so_many_bytes: {error}");
        return;
    }
    let said = real.state_read(&file).unwrap_err().to_string();
    assert!(said.contains(&format!("has {size} bytes and may have at most {STATE_FILE_MOST}")), "{said}");
    // What is only appended to is not read.
    real.state_append(&file, "more").unwrap();
}

/// What the kernel limits of an attribute, the fake limits as well.
// promise 62
#[test]
fn an_attribute_may_have_so_many_bytes() {
    let fake = FakeHost::v2(1, 1 << 30);
    let mut host = fake.another();
    let dir = host.open(Path::new("/sys/fs/cgroup")).unwrap();
    let name = |length: usize| format!("trusted.{}", "x".repeat(length - 8));
    let mut set = |name: &str, length: usize| {
        host.set_attribute(dir, name, Some(&"x".repeat(length))).map_err(|error| error.errno)
    };
    assert_eq!(set(&name(255), 65_536), Ok(()));
    assert_eq!(set(&name(256), 1), Err(Errno::ERANGE));
    assert_eq!(set(&name(20), 65_537), Err(Errno::E2BIG));
}
