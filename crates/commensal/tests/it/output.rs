//! Where the program's output goes: a reader that has seen enough is no trouble, a full disk is.

use crate::support::{Program, text};
use std::fs::OpenOptions;
use std::process::{Command, Output, Stdio};

/// Runs with a standard output that nobody reads.
fn unread(program: &Program, args: &[&str]) -> Output {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    program.command(args).stdout(writer).output().unwrap()
}

fn groups(program: &Program) -> String {
    let text = "[group.etl]\nclass = \"offline\"\nqueue = { max-concurrency = 1, max-size = 5 }\n";
    program.groups(text).to_str().unwrap().to_owned()
}

// promise 16
#[test]
fn a_reader_that_goes_away_ends_nothing() {
    let program = Program::new("unread");
    let groups = groups(&program);
    let verbs: [&[&str]; 10] = [
        &["queue", "-c", &groups],
        &["queue", "-c", &groups, "--json"],
        &["plan", "-c", &groups],
        &["doctor"],
        &["doctor", "--json"],
        &["restore"],
        &["lab", "list"],
        &["lab", "show", "quickstart"],
        &["--help"],
        &["run", "--help"],
    ];
    for args in verbs {
        let (read, unread) = (program.run(args), unread(&program, args));
        assert!(!read.stdout.is_empty(), "{args:?} prints something");
        let said = text(&unread.stderr);
        assert_eq!(unread.status.code(), read.status.code(), "{args:?}: the verb's own status: {said}");
        assert!(!said.contains("panicked") && !said.contains("pipe"), "{args:?}: {said}");
    }
    // Errors that nobody reads are still errors.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = program.command(&["queue", "-c", "/nonexistent"]).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(2));
}

// promise 16
#[test]
fn output_that_cannot_be_written_is_trouble() {
    let program = Program::new("full-output");
    let groups = groups(&program);
    for args in [&["queue", "-c", &groups] as &[&str], &["lab", "show", "quickstart"], &["doctor", "--json"]]
    {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = program.command(args).stdout(full).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains("standard output cannot be written") && !said.contains("panicked"), "{said}");
    }
}

/// A command that `run` starts dies of a broken pipe as it would without commensal, however that is called.
// promise 16
#[test]
fn a_command_keeps_its_sigpipe() {
    let test = "a_command_keeps_its_sigpipe";
    if !crate::support::can_write_cgroups(test) {
        return;
    }
    let program = Program::new("sigpipe");
    let groups = groups(&program);
    let args =
        ["run", "-g", "etl", "-c", &groups, "--", "sh", "-c", "yes | head -1; grep SigIgn /proc/self/status"];
    let output = program.command(&args).output().unwrap();
    let said = text(&output.stdout);
    let mask = said.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap_or_else(|| panic!("{said}"));
    let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
    assert_eq!(mask >> 12 & 1, 0, "SIGPIPE is not ignored: {said}");
    let err = text(&output.stderr);
    assert!(said.starts_with("y\n") && err.lines().all(crate::support::waits_for_a_cpu), "{err}");
}

/// A pipe of the shell, as people use it.
#[test]
fn as_in_a_shell() {
    let program = Program::new("head");
    let groups = groups(&program);
    let binary = env!("CARGO_BIN_EXE_commensal");
    let state = program.state();
    let script =
        format!("'{binary}' --state-dir '{}' queue -c '{groups}' | head -c 3; exit 0", state.display());
    let output = Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).output().unwrap();
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("etl".to_owned(), String::new()));
}

/// What the shells themselves make of the completions.
#[test]
fn shells_take_the_completions() {
    let program = Program::new("completions");
    for (shell, file) in [("bash", "commensal.bash"), ("zsh", "_commensal"), ("fish", "commensal.fish")] {
        let (text, _) = program.expect(0, &["completions", shell]);
        assert!(text.contains("calibrate") && text.contains("state-dir"), "{shell}");
        std::fs::write(program.path(file), text).unwrap();
    }
    let script = "source ./commensal.bash && COMP_WORDS=(commensal lab cal) COMP_CWORD=2 && \
                  $(complete -p commensal | sed 's/.*-F \\([^ ]*\\).*/\\1/') commensal cal lab; echo \"${COMPREPLY[@]}\"";
    let bash = Command::new("bash").args(["-c", script]).current_dir(program.path("")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&bash.stdout).trim(), "calibrate", "{bash:?}");
    program.expect(2, &["completions", "csh"]);
}
