//! Other users' files and odd files where root looks: told, never acted on, never waited for.

use crate::agent::{Agent, ETL, own, until};
use crate::bad_input::in_own_mounts;
use crate::support::{Program, can_write_cgroups, cgroups_named, cpu_mount, text};
use commensal_core::knob::{KnobId, Version};
use commensal_reconcile::journal::{self, Original, Owner, Record, Target};
use commensal_testkit::Signal;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

/// Another user than root.
const SOMEBODY: u32 = 65_534;

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn give(path: &Path, owner: u32) {
    chown(path, Some(owner), None).unwrap();
}

// promise 57
#[test]
fn restore_neither_waits_for_odd_files_nor_writes_through_them() {
    if !can_write_cgroups("restore_neither_waits_for_odd_files_nor_writes_through_them") {
        return;
    }
    let program = Program::new("odd");
    let groups = program.groups(ETL);
    let config = groups.to_str().unwrap();
    let state = program.state();
    program.expect(0, &["apply", "-c", config]);
    let pipe = |name: &str| {
        assert!(Command::new("mkfifo").arg(state.join(name)).status().unwrap().success());
    };
    // A pipe as a journal, a directory as the lock, a link where damaged lines go.
    pipe("lab-1.journal");
    std::fs::remove_file(state.join("lock")).unwrap();
    std::fs::create_dir(state.join("lock")).unwrap();
    let target = program.path("target");
    std::fs::write(&target, "").unwrap();
    symlink(&target, state.join("machine.damaged")).unwrap();
    let journal = state.join("machine.journal");
    let whole = std::fs::read_to_string(&journal).unwrap();
    std::fs::write(&journal, format!("{whole}00000000 {{}}\n")).unwrap();
    let (_, err) = program.expect(2, &["restore"]);
    assert!(err.contains("lab-1.journal, which is a named pipe"), "{err}");
    assert!(
        err.contains("restored without taking the lock") && err.contains("lock, which is a directory"),
        "{err}"
    );
    assert!(err.contains("machine.damaged, which is a symbolic link"), "{err}");
    assert!(cgroups_named(&program.prefix).is_empty(), "{err}");
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "");
    // Others refuse without a lock.
    let (_, err) = program.expect(2, &["apply", "-c", config]);
    assert!(err.contains("lock, which is a directory (move it away)"), "{err}");
    std::fs::remove_dir(state.join("lock")).unwrap();
    pipe("lock");
    let (_, err) = program.expect(2, &["apply", "-c", config]);
    assert!(err.contains("lock, which is a named pipe"), "{err}");
    for name in ["lock", "lab-1.journal", "machine.damaged", "machine.journal"] {
        std::fs::remove_file(state.join(name)).unwrap();
    }
}

// promise 57
#[test]
fn root_does_not_act_on_what_others_could_have_written() {
    if !can_write_cgroups("root_does_not_act_on_what_others_could_have_written") {
        return;
    }
    let program = Program::new("owner");
    let groups = program.groups(ETL);
    let config = groups.to_str().unwrap();
    give(&groups, SOMEBODY);
    let way_out =
        format!("groups.toml, which belongs to user 65534 and not to root (mode 0644; `chown 0 {config}`");
    for (status, args) in [
        (2, vec!["plan", "-c", config]),
        (2, vec!["apply", "-c", config]),
        (2, vec!["agent", "-c", config]),
        (125, vec!["run", "-g", "etl", "-c", config, "--", "true"]),
    ] {
        let (out, err) = program.expect(status, &args);
        assert!(err.contains(&way_out) && out.is_empty(), "{args:?}: {err}");
    }
    assert!(cgroups_named(&program.prefix).is_empty());
    let (_, err) = program.expect(1, &["plan", "--insecure-permissions", "-c", config]);
    assert!(err.contains("--insecure-permissions: everyone who can write the groups files"), "{err}");
    give(&groups, 0);
    for (path, bits) in [(groups.as_path(), 0o664), (program.dir.path(), 0o777)] {
        let before = path.metadata().unwrap().permissions().mode() & 0o7777;
        mode(path, bits);
        let (_, err) = program.expect(2, &["apply", "-c", config]);
        assert!(err.contains(&format!("`chmod go-w {}`", path.display())), "{err}");
        mode(path, before);
    }
    // The state directory, and journals of another owner in it.
    program.expect(0, &["apply", "-c", config]);
    let state = program.state();
    for (what, status, args) in [
        ("apply", 2, vec!["apply", "-c", config]),
        ("restore", 2, vec!["restore"]),
        ("run", 125, vec!["run", "-g", "etl", "-c", config, "--", "true"]),
    ] {
        give(&state, SOMEBODY);
        let (_, err) = program.expect(status, &args);
        assert!(err.contains("state, which belongs to user 65534 and not to root"), "{what}: {err}");
        give(&state, 0);
    }
    let theirs = state.join("lab-1.journal");
    std::fs::copy(state.join("machine.journal"), &theirs).unwrap();
    give(&theirs, SOMEBODY);
    let (_, err) = program.expect(2, &["restore"]);
    assert!(
        err.contains("lab-1.journal was not carried out") && err.contains("belongs to user 65534"),
        "{err}"
    );
    assert!(cgroups_named(&program.prefix).is_empty(), "{err}");
    std::fs::remove_file(theirs).unwrap();
    program.expect(0, &["restore"]);
}

// promise 57
#[test]
fn a_user_has_root_s_groups_and_their_own_state() {
    let test = "a_user_has_root_s_groups_and_their_own_state";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("user");
    let binary = program.reachable();
    let groups = program.groups(ETL);
    let home = program.path("home");
    std::fs::create_dir(&home).unwrap();
    give(&home, SOMEBODY);
    let plan = |state: &Path| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--clear-groups"]).arg(&binary);
        command.arg("--state-dir").arg(state).args(["plan", "-c"]).arg(&groups);
        command.current_dir(&home).output()
    };
    let Ok(output) = plan(&home.join("state")) else {
        println!("skipped: {test}: no setpriv");
        return;
    };
    // Whatever a user may do here, it is planned.
    assert!(text(&output.stdout).contains("etl"), "{}", text(&output.stderr));
    give(&groups, 7);
    let output = plan(&home.join("state"));
    let err = text(&output.unwrap().stderr);
    assert!(err.contains("belongs to user 7 and neither to user 65534 nor to root"), "{err}");
}

// promise 57
#[test]
fn an_agent_keeps_its_groups_when_others_can_write_the_file() {
    if !can_write_cgroups("an_agent_keeps_its_groups_when_others_can_write_the_file") {
        return;
    }
    let program = Program::new("reown");
    let groups = program.groups(ETL);
    let agent = Agent::start(&program, &groups, &["--no-probe"]);
    until("the group is there", || own(&program, "etl").exists());
    std::fs::write(&groups, format!("{ETL}[group.more]\nclass = \"offline\"\n")).unwrap();
    give(&groups, SOMEBODY);
    agent.signal(Signal::HUP);
    until("the agent says so", || agent.said().contains("groups.toml, which belongs to user 65534"));
    assert!(agent.said().contains("stays in force"), "{}", agent.said());
    assert!(own(&program, "etl").exists() && !own(&program, "more").exists());
    give(&groups, 0);
    agent.signal(Signal::HUP);
    until("the new groups are taken", || own(&program, "more").exists());
    assert_eq!(agent.end(Signal::TERM), Some(0));
}

// promise 58
#[test]
fn a_forged_record_reaches_no_file_that_was_never_written() {
    if !can_write_cgroups("a_forged_record_reaches_no_file_that_was_never_written") {
        return;
    }
    let program = Program::new("forged");
    let cgroup = cpu_mount().join(&program.prefix);
    std::fs::create_dir(&cgroup).unwrap();
    let plain = program.path("plain");
    std::fs::create_dir(&plain).unwrap();
    std::fs::write(plain.join("cpu.shares"), "1\n").unwrap();
    std::fs::write(plain.join("cpu.weight"), "1\n").unwrap();
    let mut host = commensal_host::LinuxHost::new();
    let owner = Owner::this_process(&mut host, "machine").unwrap();
    let version = if cgroup.join("cpu.shares").exists() { Version::V1 } else { Version::V2 };
    let file = KnobId::CpuWeight.row().file(version).unwrap().name;
    let trigger = if version == Version::V1 { "notify_on_release" } else { "cgroup.max.depth" };
    let before = std::fs::read_to_string(cgroup.join(trigger)).unwrap();
    let original = |mount: &Path, path: &str, at: &Path, file: &str, value: &str| {
        Record::Original(Original {
            group: Target {
                mount: mount.display().to_string(),
                path: path.to_owned(),
                inode: std::fs::metadata(at).unwrap().ino(),
            },
            knob: "cpu.weight".to_owned(),
            file: file.to_owned(),
            device: None,
            value: value.to_owned(),
        })
    };
    let own = format!("/{}", program.prefix);
    let dots = format!("{own}/../{}", program.prefix);
    let records = [
        Record::Owner(owner),
        original(&program.path(""), "plain", &plain, file, "300"),
        original(program.dir.path(), "/plain", &plain, file, "300"),
        original(&cpu_mount(), &dots, &cgroup, file, "300"),
        original(&cpu_mount(), &own, &cgroup, trigger, "1"),
        original(&cpu_mount(), &own, &cgroup, file, "300\n1"),
    ];
    std::fs::create_dir(program.state()).unwrap();
    let text: String = records.iter().map(journal::line).collect();
    std::fs::write(program.state().join("machine.journal"), text).unwrap();
    let (out, err) = program.expect(2, &["restore"]);
    assert!(!out.contains("again"), "{out}");
    for told in [
        "line 2 cannot be used",
        "plain cannot be opened: no cgroup hierarchy is mounted at",
        "line 4 cannot be used: \"/commensal-test",
        &format!("line 5 cannot be used: \"{trigger}\" is not the file of cpu.weight"),
        "line 6 cannot be used",
    ] {
        assert!(err.contains(told), "{told}: {err}");
    }
    assert_eq!(std::fs::read_to_string(plain.join(file)).unwrap(), "1\n");
    assert_eq!(std::fs::read_to_string(cgroup.join(trigger)).unwrap(), before);
    std::fs::remove_dir(&cgroup).unwrap();
}

// promise 12
#[test]
fn journals_are_looked_at_without_a_lock_or_a_write() {
    if !can_write_cgroups("journals_are_looked_at_without_a_lock_or_a_write") {
        return;
    }
    let program = Program::new("look");
    let (out, _) = program.expect(0, &["journal", "check"]);
    assert!(out.starts_with("no journals in ") && !program.state().exists(), "{out}");
    let groups = program.groups(ETL);
    program.expect(0, &["apply", "-c", groups.to_str().unwrap()]);
    let held = std::fs::File::open(program.state().join("lock")).unwrap();
    held.lock().unwrap();
    let (out, _) = program.expect(0, &["journal", "check"]);
    assert!(
        out.contains("machine.journal: machine journal of process ") && out.contains("; from this boot; "),
        "{out}"
    );
    let (out, _) = program.expect(0, &["journal", "show"]);
    assert!(out.contains(&format!("{}-offline/etl was created", program.prefix)), "{out}");
    let (out, _) = program.expect(0, &["journal", "check", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["journals"][0]["boot"], "present", "{out}");
    let (out, _) = program.expect(0, &["journal", "show", "--json"]);
    assert!(out.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{out}");
    drop(held);
    let journal = program.state().join("machine.journal");
    let whole = std::fs::read_to_string(&journal).unwrap();
    std::fs::write(&journal, format!("{whole}\u{1b}[2J\n")).unwrap();
    let before = std::fs::read_dir(program.state()).unwrap().count();
    let (out, _) = program.expect(2, &["journal", "check"]);
    assert!(
        out.contains("1 damaged lines") && out.contains(": damaged: no checksum") && !out.contains('\u{1b}')
    );
    assert_eq!(std::fs::read_dir(program.state()).unwrap().count(), before);
    std::fs::write(&journal, whole).unwrap();
    program.expect(0, &["restore"]);
}

// promise 4
#[test]
fn doctor_needs_no_state_directory() {
    let program = Program::new("nostate");
    let doctor = || {
        let output = program.run(&["doctor"]);
        assert!(matches!(output.status.code(), Some(0 | 1)), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert!(doctor().contains("/state: does not exist yet; the first change creates it"));
    let state = program.state();
    assert!(!state.exists());
    std::fs::create_dir(&state).unwrap();
    assert!(doctor().contains("/state: can be used"));
    std::fs::remove_file(state.join("lock")).unwrap();
    std::fs::create_dir(state.join("lock")).unwrap();
    assert!(doctor().contains("/state: cannot be used: use as a state file"));
    std::fs::remove_dir(state.join("lock")).unwrap();
    let script = format!(
        "mount --bind {0} {0}; mount -o remount,bind,ro {0}; {1} --state-dir {0} --cgroup-prefix {2} doctor || [ $? = \
         1 ]",
        state.display(),
        env!("CARGO_BIN_EXE_commensal"),
        program.prefix
    );
    if let Some(output) = in_own_mounts("doctor_needs_no_state_directory", &script) {
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && out.contains("EROFS (read-only file system)"), "{out}{err}");
    }
}

/// One directory has many spellings, and they are one commensal.
// promise 20
#[test]
fn a_state_directory_by_another_name_is_the_same() {
    if !can_write_cgroups("a_state_directory_by_another_name_is_the_same") {
        return;
    }
    let program = Program::new("alias");
    let groups = program.groups(ETL);
    let config = groups.to_str().unwrap();
    let link = program.path("link");
    symlink(program.state(), &link).unwrap();
    let state = program.state();
    let (state, link) = (state.display(), link.display());
    let spellings = [
        format!("{state}"),
        format!("{state}/"),
        format!("{state}/../state/."),
        format!("{link}"),
        format!("{link}/"),
    ];
    for made in &spellings {
        for undone in &spellings {
            let with = |dir: &str, args: &[&str]| {
                let mut command = Command::new(env!("CARGO_BIN_EXE_commensal"));
                command.args(["--state-dir", dir, "--cgroup-prefix", &program.prefix, "--beside-others"]);
                let output = command.args(args).current_dir(program.dir.path()).output().unwrap();
                assert_eq!(output.status.code(), Some(0), "{made} {undone}: {}", text(&output.stderr));
                text(&output.stdout)
            };
            with(made, &["apply", "-c", config]);
            assert!(!cgroups_named(&program.prefix).is_empty(), "{made}");
            let out = with(undone, &["restore"]);
            assert!(!out.contains("which restores it"), "{made} {undone}: {out}");
            assert!(cgroups_named(&program.prefix).is_empty(), "{made} {undone}: {out}");
        }
    }
}

/// What the groups tell goes back although nothing can be written in the state directory, or something else is in the place of its
/// locks.
// promise 57
#[test]
fn restore_needs_no_state_directory_that_can_be_written() {
    let test = "restore_needs_no_state_directory_that_can_be_written";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("readonly");
    let groups = program.groups(ETL);
    let config = groups.to_str().unwrap();
    let state = program.state();
    program.expect(0, &["apply", "-c", config]);
    let script = format!(
        "mount --bind {0} {0}; mount -o remount,bind,ro {0}; {1} --state-dir {0} --cgroup-prefix {2} --beside-others \
         restore || [ $? = 2 ]",
        state.display(),
        env!("CARGO_BIN_EXE_commensal"),
        program.prefix
    );
    if let Some(done) = in_own_mounts(test, &script) {
        assert!(done.status.success(), "{}", text(&done.stderr));
        assert!(cgroups_named(&program.prefix).is_empty(), "{}", text(&done.stderr));
    }
    program.expect(0, &["restore"]);
    for name in ["agent.lock", "lab.lock", "context.lock"] {
        for kind in ["directory", "pipe"] {
            program.expect(0, &["apply", "-c", config]);
            let _ = std::fs::remove_file(state.join(name));
            match kind {
                "directory" => std::fs::create_dir(state.join(name)).unwrap(),
                _ => assert!(Command::new("mkfifo").arg(state.join(name)).status().unwrap().success()),
            }
            let (_, err) = program.expect(0, &["restore"]);
            assert!(cgroups_named(&program.prefix).is_empty(), "{name} {kind}: {err}");
            let _ = std::fs::remove_file(state.join(name));
            let _ = std::fs::remove_dir(state.join(name));
        }
    }
}

/// Commands that record changes x whether there are records already: each says at its start that it cannot, and changes
/// nothing.
// promise 9
#[test]
fn a_read_only_state_directory_is_told_at_the_start() {
    let test = "a_read_only_state_directory_is_told_at_the_start";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("norecord");
    let groups = program.groups(ETL);
    let config = groups.to_str().unwrap();
    let state = program.state();
    let commands = [
        (2, format!("apply -c {config}")),
        (125, format!("run -g etl -c {config} -- true")),
        (2, format!("agent -c {config}")),
    ];
    for in_force in [false, true] {
        if in_force {
            program.expect(0, &["apply", "-c", config]);
        }
        let before = cgroups_named(&program.prefix);
        for (status, command) in &commands {
            let script = format!(
                "mkdir -p {0}; mount --bind {0} {0}; mount -o remount,bind,ro {0}; {1} --state-dir {0} --cgroup-prefix {2} \
                 --beside-others {command} && rc=0 || rc=$?; [ $rc = {status} ]",
                state.display(),
                env!("CARGO_BIN_EXE_commensal"),
                program.prefix
            );
            let Some(done) = in_own_mounts(test, &script) else { return };
            let err = text(&done.stderr);
            assert!(done.status.success(), "{command}: {err}");
            let said = format!("the state directory {} is on a read-only file system", state.display());
            assert!(err.contains(&said) && err.contains("--state-dir"), "{command}: {err}");
            assert_eq!(cgroups_named(&program.prefix), before, "{command}");
        }
    }
    program.expect(0, &["restore"]);
}

/// In a directory in which everybody may put files somebody could put a group.
// promise 57
#[test]
fn a_directory_of_groups_that_everybody_may_write() {
    let program = Program::new("sticky");
    let folder = program.path("groups.d");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("etl.toml"), ETL).unwrap();
    let config = folder.to_str().unwrap();
    if commensal_host::Host::euid(&commensal_host::LinuxHost::new()) != 0 {
        println!("skipped: a_directory_of_groups_that_everybody_may_write: not root");
        return;
    }
    for bits in [0o1777, 0o777, 0o775] {
        mode(&folder, bits);
        let (_, err) = program.expect(2, &["plan", "-c", config]);
        assert!(err.contains(&format!("`chmod go-w {config}`")), "{bits:o}: {err}");
    }
    mode(&folder, 0o755);
    let output = program.run(&["plan", "-c", config]);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", text(&output.stderr));
}

/// Whatever a cgroup is called, what `journal` prints of it is text and JSON.
// promise 12
#[test]
fn journals_show_names_of_any_kind() {
    if !can_write_cgroups("journals_show_names_of_any_kind") {
        return;
    }
    let program = Program::new("names");
    let name = [program.prefix.as_bytes(), b"-x\xff\xe2\x80\xae\x1b\"'"].concat();
    let cgroup = cpu_mount().join(OsStr::from_bytes(&name));
    std::fs::create_dir(&cgroup).unwrap();
    let text_of = format!(
        "[group.odd]\nclass = \"offline\"\ncpu.max = \"1 core\"\nmatch = [{{ cgroup = \"/{}-x*\" }}]\n",
        program.prefix
    );
    let groups = program.groups(&text_of);
    let output = program.run(&["apply", "-c", groups.to_str().unwrap()]);
    let shown = program.run(&["journal", "show"]).stdout;
    let json = program.run(&["journal", "show", "--json"]).stdout;
    let checked = program.run(&["journal", "check"]).stdout;
    program.run(&["restore"]);
    std::fs::remove_dir(&cgroup).unwrap();
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", text(&output.stderr));
    let json = String::from_utf8(json).unwrap();
    assert!(
        json.lines().count() > 2
            && json.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()),
        "{json}"
    );
    let shown = String::from_utf8(shown).unwrap();
    assert!(shown.contains(r#"-x\xff\u{202e}\u{1b}"'"#), "{shown}");
    for printed in [&shown, &json, &String::from_utf8(checked).unwrap()] {
        assert!(!printed.contains(['\u{202e}', '\u{1b}', '\u{10ffff}']), "{printed}");
    }
}

/// Who starts a guard learns by its status whether the safe state is complete.
// promise 21
#[test]
fn a_guard_says_by_its_status_what_it_could_not_do() {
    let program = Program::new("status");
    let state = program.state();
    // Its starter is gone, so it acts at once.
    let guard = || program.run(&["guard", "--once", "--starter", "1"]);
    let output = guard();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    std::fs::write(state.join("machine.journal"), "00000000 {}\n").unwrap();
    let output = guard();
    let err = text(&output.stderr);
    assert!(output.status.code() == Some(1) && err.contains("line 1 cannot be used"), "{err}");
    std::fs::remove_file(state.join("machine.journal")).unwrap();
}
