//! `init` on the running machine: it proposes, and changes nothing.

use crate::support::{Program, text};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The proposal is a valid groups file, for root and for a user who may see little.
#[test]
fn a_proposal_is_a_valid_groups_file() {
    let program = Program::new("init");
    let copy = program.reachable();
    let file = program.path("proposal.toml");
    let root =
        commensal_testkit::field_of_status(std::process::id(), "Uid").is_some_and(|ids| ids.starts_with('0'));
    for uid in [None, root.then_some(65_534)].into_iter().take(if root { 2 } else { 1 }) {
        let mut command = Command::new(&copy);
        command.arg("--state-dir").arg("/nowhere/state").arg("init").current_dir("/");
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        let output = command.output().unwrap();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(matches!(output.status.code(), Some(0 | 1)) && err.is_empty(), "{uid:?}: {out}{err}");
        assert!(out.contains("root can see") || (uid.is_none() && root), "{out}");
        std::fs::write(&file, &out).unwrap();
        let (checked, _) = program.expect(0, &["config", "check", file.to_str().unwrap()]);
        assert!(checked.contains("no mistakes"), "{checked}");
    }
    assert!(!program.state().exists());
}

// promise 4
/// Whatever is at the path stays as it is.
#[test]
fn nothing_is_overwritten() {
    let program = Program::new("init-write");
    // A service, so that there is something to propose: this process accepts connections.
    let _service = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let new = program.path("folder/groups.d/init.toml");
    let output = program.run(&["init", "--write", new.to_str().unwrap()]);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    assert!(text(&output.stdout).contains("nothing is in force yet"), "{output:?}");
    let written = std::fs::read_to_string(&new).unwrap();
    assert!(written.contains("[group.batch]"), "{written}");
    let (dangling, folder, missing) =
        (program.path("link.toml"), program.path("dir.toml"), program.path("missing"));
    std::os::unix::fs::symlink(&missing, &dangling).unwrap();
    std::fs::create_dir(&folder).unwrap();
    for path in [&new, &dangling, &folder] {
        let (_, err) = program.expect(2, &["init", "--write", path.to_str().unwrap()]);
        assert!(err.contains("exists already"), "{err}");
    }
    assert_eq!(std::fs::read_to_string(&new).unwrap(), written);
    assert!(!missing.exists());
}
