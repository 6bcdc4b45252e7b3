//! Bad input and faults: each gives a clear message and a non-zero status and leaves the machine as it was.

use crate::support::{Program, can_write_cgroups, cgroups_named, cpu_mount, text};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

#[test]
fn mistakes_in_a_groups_file() {
    let program = Program::new("mistakes");
    for (groups, want) in [
        ("[group.etl]\nclas = \"offline\"\n", "unknown key \"clas\"; did you mean \"class\"?"),
        ("[group.etl]\nclass = \"offline\"\nmemory.max = 8\n", "a bare number has no unit"),
        (
            "[group.etl]\nclass = \"offline\"\ncpu.max = \"9000 cores\"\n",
            "cpu.max is 9000 CPUs but this machine has",
        ),
        (
            "[group.etl]\nclass = \"offline\"\nmemory.max = \"900 TiB\"\n",
            "memory.max is 900 TiB but this machine has",
        ),
        ("[group.\"a/b\"]\nclass = \"offline\"\n", "contains '/'"),
        ("[group.\"..\"]\nclass = \"offline\"\n", "contains '.'"),
        ("[group.etl]\nclass = \"offline\"\nmatch = []\n", "match is empty"),
        ("[group.etl]\nclass = \"online\"\ncpu.max = \"50 %\"\n", "would stall the online group"),
        ("", "no groups here"),
        ("[group.etl", "groups.toml:1:"),
    ] {
        let file = program.groups(groups);
        for verb in ["plan", "apply"] {
            let (out, err) = program.expect(2, &[verb, "--config", file.to_str().unwrap()]);
            assert!(err.contains(want) && out.is_empty(), "{verb} {groups:?}: {err}");
            assert!(err.starts_with("commensal: ") && err.contains("groups.toml:"), "{err}");
        }
    }
    assert!(cgroups_named(&program.prefix).is_empty());
}

#[test]
fn files_that_are_not_there() {
    let program = Program::new("nofile");
    let (_, err) = program.expect(2, &["plan", "--config", "/nowhere.toml"]);
    assert!(err.contains("cannot read the groups in /nowhere.toml") && err.contains("ENOENT"), "{err}");
    let (_, err) = program.expect(2, &["plan", "--config", program.dir.path().to_str().unwrap()]);
    assert!(err.contains("has no *.toml file"), "{err}");
    let (_, err) = program.expect(2, &["lab", "report", "/nowhere.json"]);
    assert!(err.contains("nowhere.json"), "{err}");
    let (_, err) = program.expect(2, &["lab", "run", "nosuch"]);
    assert!(err.contains("no experiment \"nosuch\": the built-in experiments are quickstart, "), "{err}");
    let (_, err) = program.expect(2, &["lab", "run", "quickstart", "--rounds", "0"]);
    assert!(err.contains("--rounds 0"), "{err}");
    let (_, err) = program.expect(2, &["lab", "run", "quickstart", "--out", "/nowhere/run.json"]);
    assert!(err.contains("cannot be written"), "{err}");
    let (_, err) = program.expect(2, &["lab", "run", "quickstart", "--out", "/dev/null"]);
    assert!(err.contains("not a regular file"), "{err}");
    program.expect(125, &["run", "--nonsense", "--", "true"]);
    program.expect(2, &["plan", "--nonsense"]);
    program.expect(0, &["run", "--help"]);
    let (_, err) = program.expect(2, &["lab", "run", "quickstart", "--block", "nan"]);
    assert!(err.contains("--block"), "{err}");
    let file = program.groups("[group.etl]\nclass = \"offline\"\n");
    let (_, err) = program.expect(125, &["run", "-g", "elt", "-c", file.to_str().unwrap(), "--", "true"]);
    assert!(err.contains("no group \"elt\"") && err.contains("its groups are etl"), "{err}");
}

#[test]
fn two_groups_claim_one_cgroup() {
    if !can_write_cgroups("two_groups_claim_one_cgroup") {
        return;
    }
    let program = Program::new("claim");
    let scratch = Scratch::new(&program.prefix);
    let name = scratch.name();
    let file = program.groups(&format!(
        "[group.a]\nclass = \"offline\"\nmatch = [{{ cgroup = \"/{name}\" }}]\n\
         [group.b]\nclass = \"offline\"\nmatch = [{{ cgroup = \"/{name}*\" }}]\n"
    ));
    let (_, err) = program.expect(2, &["plan", "--config", file.to_str().unwrap()]);
    assert!(err.contains(&format!("groups \"a\" and \"b\" both claim cgroup /{name}")), "{err}");
}

/// A scratch group in the cpu hierarchy, removed on drop.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(prefix: &str) -> Scratch {
        let path = cpu_mount().join(format!("{prefix}-scratch"));
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    fn name(&self) -> String {
        self.0.file_name().unwrap().to_string_lossy().into_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Runs a shell script in a mount namespace of its own; `None` (and a printed skip) where that is refused.
pub fn in_own_mounts(test: &str, script: &str) -> Option<Output> {
    let probe = Command::new("unshare").args(["--mount", "true"]).output();
    match probe {
        Ok(output) if output.status.success() => {}
        other => {
            let reason = other.map_or_else(|error| error.to_string(), |output| text(&output.stderr));
            println!("skipped: {test}: no mount namespace of our own: {}", reason.trim());
            return None;
        }
    }
    Some(Command::new("unshare").args(["--mount", "sh", "-ec", script]).output().unwrap())
}

// promise 3
#[test]
fn a_read_only_cgroup_tree() {
    let test = "a_read_only_cgroup_tree";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("readonly");
    let file = program.groups("[group.etl]\nclass = \"offline\"\ncpu.max = \"50 %\"\n");
    let binary = env!("CARGO_BIN_EXE_commensal");
    let script = format!(
        "awk '$3 ~ /^cgroup/ {{ print $2 }}' /proc/mounts | while read -r mount; do \
           mount -o remount,bind,ro \"$mount\"; done\n\
         set +e\n\
         {binary} --state-dir {0} --cgroup-prefix {1} doctor; echo \"doctor $?\"\n\
         {binary} --state-dir {0} --cgroup-prefix {1} --beside-others apply -c {2}; echo \"apply $?\"",
        program.state().display(),
        program.prefix,
        file.display()
    );
    let Some(output) = in_own_mounts(test, &script) else { return };
    let out = text(&output.stdout);
    assert!(out.contains("mounted read-only here"), "{out}{}", text(&output.stderr));
    assert!(out.contains("doctor 1") && out.contains("apply 1"), "{out}");
    assert!(out.contains("unmet    group etl") && out.contains("done     0 of 0 steps"), "{out}");
    assert!(cgroups_named(&program.prefix).is_empty());
}

// promise 9
#[test]
fn a_full_disk_under_the_journal() {
    let test = "a_full_disk_under_the_journal";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("full");
    let file = program.groups("[group.etl]\nclass = \"offline\"\ncpu.max = \"50 %\"\n");
    std::fs::create_dir(program.path("small")).unwrap();
    let small = program.path("small");
    let script = format!(
        "mount -t tmpfs -o size=16k tmpfs {0}\n\
         {1} --state-dir {0}/state --cgroup-prefix {2} --beside-others restore\n\
         dd if=/dev/zero of={0}/ballast bs=4k 2>/dev/null || true\n\
         set +e\n\
         {1} --state-dir {0}/state --cgroup-prefix {2} --beside-others apply -c {3}; echo \"status $?\"\n\
         ls {0}/state; find /sys/fs/cgroup -name '{2}*'",
        small.display(),
        env!("CARGO_BIN_EXE_commensal"),
        program.prefix,
        file.display()
    );
    let Some(output) = in_own_mounts(test, &script) else { return };
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(out.contains("status 2"), "{out}{err}");
    assert!(err.contains("nothing was written") && err.contains("ENOSPC"), "{err}");
    assert!(!out.contains("journal") && !out.contains("/sys/fs/cgroup/"), "{out}");
}

// promise 12
#[test]
fn a_damaged_journal() {
    if !can_write_cgroups("a_damaged_journal") {
        return;
    }
    let program = Program::new("damaged");
    let file = program.groups("[group.etl]\nclass = \"offline\"\ncpu.max = \"50 %\"\n");
    let config = file.to_str().unwrap();
    program.expect(0, &["apply", "--config", config]);
    let journal = program.state().join("machine.journal");
    let mut bytes = std::fs::read(&journal).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&journal, &bytes).unwrap();
    let (_, err) = program.expect(2, &["apply", "--config", config]);
    assert!(err.contains("damaged at line 1") && err.contains("commensal restore"), "{err}");
    let (out, err) = program.expect(2, &["restore"]);
    assert!(err.contains("line 1 cannot be used"), "{err}");
    assert!(out.contains("removed") && cgroups_named(&program.prefix).is_empty(), "{out}");
    assert!(err.contains("machine.damaged"), "{err}");
    let (out, _) = program.expect(0, &["restore"]);
    assert_eq!(out, "nothing to restore\n");
}

/// Without root: what cannot be is told, and tasks get the weak policy, called weak.
// promises 3, 33
#[test]
fn without_root() {
    let test = "without_root";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("noroot");
    let dir = program.dir.path();
    let binary = program.reachable();
    // Its state directory is nobody's own.
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    let file = program.groups("[group.etl]\nclass = \"offline\"\ncpu.set = \"0\"\ncpu.max = \"50 %\"\n");
    let as_nobody = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&binary);
        command.arg("--state-dir").arg(program.path("nobody")).arg("--cgroup-prefix").arg(&program.prefix);
        command.arg("--beside-others");
        command.args(args).current_dir("/").output().unwrap()
    };
    let config = file.to_str().unwrap();
    let doctor = as_nobody(&["doctor"]);
    assert_eq!(doctor.status.code(), Some(1), "{}", text(&doctor.stderr));
    assert!(text(&doctor.stdout).contains("may not create cgroups here"), "{}", text(&doctor.stdout));
    assert!(text(&doctor.stdout).contains("This is weak"), "{}", text(&doctor.stdout));
    let apply = as_nobody(&["apply", "-c", config]);
    assert_eq!(apply.status.code(), Some(1));
    // Policy 5 is SCHED_IDLE; nice 19; CPU 0 only.
    let show = "set -- $(sed 's/.*) //' /proc/self/stat); echo nice ${17} policy ${39}; grep Cpus_allowed_list \
                /proc/self/status";
    let run = as_nobody(&["run", "-g", "etl", "-c", config, "--", "sh", "-c", show]);
    let (out, err) = (text(&run.stdout), text(&run.stderr));
    assert_eq!(run.status.code(), Some(0), "{err}");
    assert!(out.contains("nice 19 policy 5"), "{out}");
    assert!(out.lines().any(|line| line.ends_with("\t0")), "{out}");
    assert!(err.contains("This is weak"), "{err}");
    assert!(cgroups_named(&program.prefix).is_empty());
}

#[test]
fn a_busy_port() {
    if !can_write_cgroups("a_busy_port") {
        return;
    }
    let program = Program::new("port");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let (_, err) =
        program.expect(2, &["lab", "run", "quickstart", "--rounds", "1", "--block", "0.5", "--port", &port]);
    assert!(err.contains(&format!("cannot listen on port {port} of 127.0.0.1")), "{err}");
    assert!(!program.path("run.json").exists());
    assert_nothing_left(&program.state());
}

/// No lab journal is left, so nothing that one would have to undo.
pub fn assert_nothing_left(state: &Path) {
    let names: Vec<String> = std::fs::read_dir(state)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".journal"))
        .collect();
    assert!(names.is_empty(), "{names:?}");
}
