//! The unified hierarchy for real: delegation to a user, room in a delegated group, a device that is unplugged. In
//! scratch groups of its own; where the root gives no controllers to its children each test says so and is skipped.

use crate::support::{Program, cgroups_named, text};
use commensal_testkit::{members, removed_within, until};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const MOUNT: &str = "/sys/fs/cgroup";
const NOBODY: u32 = 65_534;
const ETL: &str = "[group.etl]\nclass = \"offline\"\ncpu.max = \"50 %\"\npids.max = 77\n";

/// A group at the root that gives nothing to its children yet; removed on drop with what is below it.
struct Delegated {
    path: PathBuf,
    sleepers: Vec<Child>,
}

impl Delegated {
    /// `None`, with the reason on standard output, where this cannot be.
    fn new(test: &str) -> Option<Delegated> {
        if commensal_host::Host::euid(&commensal_host::LinuxHost::new()) != 0
            || Path::new("/run/systemd/system").exists()
        {
            println!("skipped: unified::{test}: needs root, and a tree that systemd does not manage");
            return None;
        }
        let given =
            std::fs::read_to_string(Path::new(MOUNT).join("cgroup.subtree_control")).unwrap_or_default();
        let lacks = ["cpu", "pids"].iter().find(|name| given.split_whitespace().all(|one| one != **name));
        if let Some(lacks) = lacks {
            println!("skipped: unified::{test}: the unified hierarchy gives no {lacks} to groups here");
            return None;
        }
        let path = Path::new(MOUNT).join(format!("commensal-it-{test}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Some(Delegated { path, sleepers: Vec::new() })
    }

    /// What cgroup-v2.rst names under "Model of Delegation".
    fn give_to_nobody(&self) {
        for file in ["", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"] {
            chown(self.path.join(file), Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }

    /// Runs a command as user nobody whose process starts in the group.
    fn as_nobody(&self, command: &str) -> std::process::Output {
        let script = format!(
            "echo $$ > {}/cgroup.procs && exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups {command}",
            self.path.display()
        );
        Command::new("sh").args(["-c", &script]).output().unwrap()
    }

    /// A process that sits in the group itself.
    fn add_sleeper(&mut self) -> u32 {
        let script = format!("echo $$ > {}/cgroup.procs && exec sleep 600", self.path.display());
        let child = Command::new("sh").args(["-c", &script]).stdout(Stdio::null()).spawn().unwrap();
        let pid = child.id();
        until("it is in the group", || members(&self.path).contains(&pid));
        self.sleepers.push(child);
        pid
    }

    fn children(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.path).unwrap().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.path.join(file)).unwrap_or_default().trim().to_owned()
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        for child in &mut self.sleepers {
            let _ = child.kill();
            let _ = child.wait();
        }
        removed_within(Duration::from_secs(1), &self.path);
    }
}

/// The program as this user runs it: its own state directory, which the user may write.
fn program(test: &str, user: u32) -> (Program, String, String) {
    let program = Program::new(test);
    let file = program.groups(ETL);
    std::fs::create_dir_all(program.state()).unwrap();
    for path in [program.dir.path(), &program.state()] {
        chown(path, Some(user), Some(user)).unwrap();
    }
    let start = format!(
        "{} --state-dir {} --cgroup-prefix {}",
        env!("CARGO_BIN_EXE_commensal"),
        program.state().display(),
        program.prefix
    );
    (program, start, file.display().to_string())
}

// promise 15
#[test]
fn a_user_runs_in_groups_below_what_was_delegated() {
    let Some(given) = Delegated::new("user") else { return };
    given.give_to_nobody();
    let (program, start, config) = program("user", NOBODY);
    let show =
        "sh -c 'cat /proc/self/cgroup; cat /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/pids.max; exit 7'";
    let output = given.as_nobody(&format!("{start} run -g etl -c {config} -- {show}"));
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let base = given.path.strip_prefix(MOUNT).unwrap().display().to_string();
    assert!(out.contains(&format!("0::/{base}/{}-offline/etl\n77\n", program.prefix)), "{out}{err}");
    assert_eq!(output.status.code(), Some(7), "{err}");
    // Against the rest of the machine the delegated group counts as a whole, and that is said.
    assert!(err.contains(&format!("the kernel compares /{base} with everything outside")), "{err}");
    assert_eq!(given.children(), Vec::<String>::new(), "the groups end with the last command");
    assert_eq!(given.read("cgroup.subtree_control"), "", "and so do the controllers");
    // doctor tries in the delegated group and leaves nothing either.
    let output = given.as_nobody(&format!("{start} doctor"));
    let out = text(&output.stdout);
    assert!(out.contains(&format!("creates its own groups below /{base}")), "{out}{}", text(&output.stderr));
    assert_eq!(given.children(), Vec::<String>::new());
}

#[test]
fn a_process_in_the_delegated_group_itself_is_in_the_way() {
    let Some(mut given) = Delegated::new("other") else { return };
    given.give_to_nobody();
    let pid = given.add_sleeper();
    let (_program, start, config) = program("other", NOBODY);
    let output = given.as_nobody(&format!("{start} run -g etl -c {config} -- true"));
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{err}");
    assert!(
        err.contains(&format!("contains other processes ({pid})")) && err.contains("DelegateSubgroup="),
        "{err}"
    );
    assert_eq!((given.children(), given.read("cgroup.subtree_control")), (Vec::new(), String::new()));
}

/// The kernel shows a controller's files only once it is enabled, so what can be had is found out on the way.
// promise 62
#[test]
fn controllers_are_enabled_tried_and_used_in_one_go() {
    let Some(given) = Delegated::new("root") else { return };
    let (program, _, config) = program("root", 0);
    let base = format!("/{}", given.path.strip_prefix(MOUNT).unwrap().display());
    let (out, _) = program.expect(1, &["apply", "-c", &config, "--cgroup-root", &base]);
    assert!(out.contains("cpu.idle  0 -> 1"), "{out}");
    let offline = given.path.join(format!("{}-offline", program.prefix));
    let read = |file: &str| std::fs::read_to_string(offline.join(file)).unwrap().trim().to_owned();
    assert_eq!((read("cpu.idle").as_str(), read("etl/pids.max").as_str()), ("1", "77"));
    let (out, _) = program.expect(1, &["apply", "-c", &config, "--cgroup-root", &base]);
    assert!(out.starts_with("nothing to do"), "{out}");
    program.expect(0, &["restore", "--cgroup-root", &base]);
    assert_eq!((given.children(), given.read("cgroup.subtree_control")), (Vec::new(), String::new()));
    assert!(cgroups_named(&program.prefix).is_empty());
}

/// The second scratch disk of a virtual machine is taken out and put in again; elsewhere disks are not ours to unplug.
// promise 10
#[test]
fn a_disk_is_unplugged_under_its_limits() {
    let test = "a_disk_is_unplugged_under_its_limits";
    let slot = std::fs::canonicalize("/sys/block/vdb/device/..");
    let (Some(_), Ok(slot)) = (std::env::var_os("COMMENSAL_VM"), slot) else {
        println!("skipped: {test}: needs a virtual machine of ours, whose disks may be unplugged");
        return;
    };
    let program = Program::new("unplug");
    let device = std::fs::read_to_string("/sys/block/vdb/dev").unwrap().trim().to_owned();
    let file =
        program.groups("[group.etl]\nclass = \"offline\"\nio.read = \"10 MiB/s\"\nio.write = \"10 MiB/s\"\n");
    let config = file.to_str().unwrap();
    let (out, _) = program.expect(0, &["apply", "-c", config]);
    assert!(out.contains(&format!("[{device}]")), "{out}");
    std::fs::write(slot.join("remove"), "1").unwrap();
    assert!(!Path::new("/sys/block/vdb").exists());
    // A file that names it is wrong now, one that means every disk is not.
    let named = program.dir.path().join("named.toml");
    let text =
        format!("[group.etl]\nclass = \"offline\"\nio.read = \"1 MiB/s\"\nio.devices = [\"{device}\"]\n");
    std::fs::write(&named, text).unwrap();
    let (_, err) = program.expect(2, &["apply", "-c", named.to_str().unwrap()]);
    assert!(err.contains(&format!("{device} is not a whole disk of this machine")), "{err}");
    let (out, _) = program.expect(0, &["apply", "-c", config]);
    assert!(out.starts_with("nothing to do"), "{out}");
    program.expect(0, &["restore"]);
    assert!(cgroups_named(&program.prefix).is_empty());
    std::fs::write("/sys/bus/pci/rescan", "1").unwrap();
    assert!(Path::new("/sys/block/vdb").exists(), "the disk did not come back for the tests after this one");
}
