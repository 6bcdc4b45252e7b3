//! The socket that a group may look over, and who is believed at either socket: by other users, in a mount namespace whose `/run` is
//! the test's own.

use crate::agent::{ETL, until};
use crate::bad_input::in_own_mounts;
use crate::support::{Program, can_write_cgroups, text};
use commensal_agent::control::{SHARED_SOCKET, SOCKET};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Another user than root, and a group that has no name.
const SOMEBODY: u32 = 65_534;
const GROUP: u32 = 64_242;

fn setpriv(test: &str) -> bool {
    let there = Command::new("setpriv").arg("--version").output().is_ok();
    if !there {
        println!("skipped: {test}: no setpriv");
    }
    there
}

/// What a part of the script has said, by the mark before it: status and both outputs.
fn said<'a>(out: &'a str, mark: &str) -> (&'a str, &'a str) {
    let part = out.split(&format!("== {mark} ")).nth(1).unwrap_or_else(|| panic!("no {mark} in {out}"));
    part.split("\n== ").next().unwrap().split_once('\n').unwrap_or((part, ""))
}

// promise 56
#[test]
fn a_group_looks_and_gives_no_orders() {
    let test = "a_group_looks_and_gives_no_orders";
    if !can_write_cgroups(test) || !setpriv(test) {
        return;
    }
    let program = Program::new("shared");
    let (binary, groups) = (program.reachable(), program.groups(ETL));
    let home = program.path("home");
    std::fs::create_dir(&home).unwrap();
    chown(&home, Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    let agent = program.command(&[
        "agent",
        "-c",
        groups.to_str().unwrap(),
        "--interval",
        "100ms",
        "--no-probe",
        "--on-exit",
        "restore",
        "--share-with",
        &GROUP.to_string(),
    ]);
    let agent: Vec<String> = agent.get_args().map(|arg| format!("'{}'", arg.to_str().unwrap())).collect();
    let script = format!(
        r#"mount -t tmpfs none /run
        {binary} {agent} & agent=$!
        trap 'kill $agent; wait $agent || :' EXIT
        try() {{ mark=$1; shift; out=$("$@" 2>&1) && status=0 || status=$?; printf '\n== %s %s\n%s' "$mark" "$status" "$out"; }}
        as() {{ setpriv --reuid {SOMEBODY} --regid {SOMEBODY} --groups $1 env -u XDG_STATE_HOME HOME={home} {binary} "$2" $3 $4; }}
        for i in $(seq 600); do [ -S {SHARED_SOCKET} ] && as {GROUP} status >/dev/null 2>&1 && break; sleep 0.1; done
        try socket stat -c '%a %u %g' {SHARED_SOCKET} /run/commensal
        try caps grep CapPrm /proc/$agent/status
        for verb in 'status --json' 'top --once' 'explain etl'; do
          try "in:${{verb%% *}}" as {GROUP} $verb
          try "out:${{verb%% *}}" as {SOMEBODY} $verb
        done
        try order as {GROUP} agent reload
        try owner {binary} {state} agent reload
        printf '\n== end 0\n'"#,
        binary = binary.display(),
        agent = agent.join(" "),
        home = home.display(),
        state = format_args!("--state-dir {}", program.state().display()),
    );
    let Some(output) = in_own_mounts(test, &script) else { return };
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && out.contains("== end 0"), "{out}\n{err}");
    assert_eq!(said(&out, "socket"), ("0", &*format!("660 0 {GROUP}\n755 0 0")), "{err}");
    let caps = u64::from_str_radix(said(&out, "caps").1.trim_start_matches("CapPrm:\t").trim(), 16).unwrap();
    assert_eq!(caps & 1, 0, "CAP_CHOWN is given up once the socket is its group's: {caps:x}");
    for (verb, shows) in [("status", "\"etl\""), ("top", "etl"), ("explain", "cpu.max")] {
        let (status, shown) = said(&out, &format!("in:{verb}"));
        assert!(matches!(status, "0" | "1") && shown.contains(shows), "{verb}: {status} {shown}");
        let (status, shown) = said(&out, &format!("out:{verb}"));
        assert!(status == "2" && shown.contains("group that its socket is shared with"), "{verb}: {shown}");
    }
    let (status, shown) = said(&out, "order");
    assert!(
        status == "2" && shown.contains("user 65534 may read this agent's state, but not control it"),
        "{shown}"
    );
    let (status, shown) = said(&out, "owner");
    assert!(status == "0" && shown.contains("is in force"), "{shown}");
}

// promise 56
#[test]
fn a_folder_of_somebody_else_holds_no_socket_for_a_group() {
    let test = "a_folder_of_somebody_else_holds_no_socket_for_a_group";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("folder");
    let groups = program.groups(ETL);
    let agent = program.command(&["agent", "-c", groups.to_str().unwrap(), "--share-with", "64242"]);
    let agent: Vec<String> = agent.get_args().map(|arg| format!("'{}'", arg.to_str().unwrap())).collect();
    let script = format!(
        "mount -t tmpfs none /run\n{prepare}\n{binary} {agent}",
        prepare = "mkdir /run/commensal; chown 65534 /run/commensal",
        binary = env!("CARGO_BIN_EXE_commensal"),
        agent = agent.join(" ")
    );
    let Some(output) = in_own_mounts(test, &script) else { return };
    let err = text(&output.stderr);
    assert!(err.contains("/run/commensal, which belongs to user 65534 and not to root"), "{err}");
    assert_eq!(output.status.code(), Some(2), "{err}");
    let (_, err) = program.expect(2, &["agent", "-c", groups.to_str().unwrap(), "--share-with", "no-such"]);
    assert!(err.contains("/etc/group has no such group"), "{err}");
}

/// Somebody's process that listens in a folder of theirs, as if it were an agent.
struct Impostor(Child);

impl Impostor {
    /// A guard is the smallest of our programs that listens; what it would answer is never asked for.
    fn listen(binary: &Path, folder: &Path) -> Impostor {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &SOMEBODY.to_string(), "--clear-groups"]).arg(binary);
        command.arg("--state-dir").arg(folder).arg("guard").stderr(Stdio::null());
        let impostor = Impostor(command.spawn().unwrap());
        let socket = folder.join("guard.sock");
        until("somebody listens", || socket.exists());
        std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o666)).unwrap();
        std::fs::rename(socket, folder.join(SOCKET)).unwrap();
        impostor
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// promise 56
#[test]
fn who_listens_is_believed_only_as_root_or_as_the_same_user() {
    let test = "who_listens_is_believed_only_as_root_or_as_the_same_user";
    if !can_write_cgroups(test) || !setpriv(test) {
        return;
    }
    let program = Program::new("impostor");
    let (binary, state) = (program.reachable(), program.state());
    std::fs::create_dir(&state).unwrap();
    chown(&state, Some(SOMEBODY), None).unwrap();
    let impostor = Impostor::listen(&binary, &state);
    for args in [&["status"][..], &["top", "--once"], &["explain", "etl"], &["agent", "reload"]] {
        let (_, err) = program.expect(2, args);
        assert!(err.contains("control.sock, where user 65534 listens"), "{args:?}: {err}");
    }
    drop(impostor);
    // Neither is anybody through a link, wherever it leads.
    let (real, socket) = (state.join("real.sock"), state.join(SOCKET));
    std::fs::remove_file(&socket).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(&real).unwrap();
    symlink(&real, &socket).unwrap();
    let (_, err) = program.expect(2, &["status"]);
    assert!(err.contains("control.sock, which is a symbolic link"), "{err}");
    // Nor does an agent listen through one.
    chown(&state, Some(0), None).unwrap();
    let groups = program.groups(ETL);
    let (_, err) = program.expect(2, &["agent", "-c", groups.to_str().unwrap()]);
    assert!(err.contains("control.sock is not a socket"), "{err}");
}
