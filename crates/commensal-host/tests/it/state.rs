//! State files on the real host: what is no file of ours is neither waited for nor written.

use commensal_core::errno::Errno;
use commensal_host::{Host, HostError, LinuxHost};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Another user than root.
const SOMEBODY: u32 = 65_534;

/// Every way to open the state file, by name, and what came of it.
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

// promise 70
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
    // A name is replaced, never what it leads to.
    host.state_replace(&state.join("link"), "ours\n").unwrap();
    assert!(!state.join("link").is_symlink());
    host.state_replace(&state.join("pipe"), "ours\n").unwrap();
    assert_eq!(host.state_read(&state.join("pipe")).unwrap().as_deref(), Some("ours\n"));
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "somebody's\n");
    assert!(!dir.path().join("nothing").exists());
}

// promise 70
#[test]
fn a_second_name_of_a_file_is_not_written() {
    let (dir, state, mut host) = folder();
    let target = dir.path().join("target");
    std::fs::write(&target, "somebody's\n").unwrap();
    std::fs::hard_link(&target, state.join("name")).unwrap();
    let error = host.state_append(&state.join("name"), "more\n").unwrap_err();
    assert!(error.is_no_file() && error.to_string().contains("one of several names"), "{error}");
    assert!(host.state_lock(&state.join("name")).is_err());
    assert_eq!(host.state_read(&state.join("name")).unwrap().as_deref(), Some("somebody's\n"));
    host.state_replace(&state.join("name"), "ours\n").unwrap();
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "somebody's\n");
}

// promise 69
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
    // A link of somebody's on the way, in a folder where everybody may put one.
    mode(dir.path(), 0o1777);
    symlink(&state, dir.path().join("other")).unwrap();
    host.guard_state(&dir.path().join("other"));
    let behind = dir.path().join("other/machine.journal");
    assert_eq!(host.state_read(&behind).unwrap().as_deref(), Some("mine\n"));
    std::os::unix::fs::lchown(dir.path().join("other"), Some(SOMEBODY), None).unwrap();
    let error = host.state_read(&behind).unwrap_err();
    assert!(error.to_string().contains("`chown -h 0 "), "{error}");
    // A host that is not told to look, looks at kinds only.
    mode(&state, 0o777);
    assert_eq!(LinuxHost::new().state_read(&file).unwrap().as_deref(), Some("mine\n"));
}

// promise 69
#[test]
fn configuration_is_followed_through_links_of_ones_own() {
    let (dir, state, host) = folder();
    if host.euid() != 0 {
        println!("skipped: configuration_is_followed_through_links_of_ones_own: not root");
        return;
    }
    // As Kubernetes mounts a ConfigMap.
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
    // In a folder of everybody's, a file of root's.
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
    std::fs::write(dir.path().join("one.toml"), "one").unwrap();
    assert_eq!(host.read_trusted(&dir.path().join("one.toml")).unwrap(), "one");
}
