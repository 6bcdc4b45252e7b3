//! Helpers: the program as a child, scratch names.

use commensal_sensors::{mounts, survey};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// State directory on FakeHost.
pub const STATE: &str = "/var/lib/commensal";

/// The program under test, with its own state directory and cgroup prefix, which are cleaned up on drop.
#[derive(Debug)]
pub struct Program {
    pub dir: tempfile::TempDir,
    pub prefix: String,
    /// Processes of the program that have ended.
    pub ran: std::sync::Mutex<Vec<u32>>,
}

impl Program {
    pub fn new(test: &str) -> Program {
        let prefix = format!("commensal-test-{}-{test}", std::process::id());
        Program { dir: tempfile::tempdir().unwrap(), prefix, ran: std::sync::Mutex::default() }
    }

    pub fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a groups file and gives its path.
    pub fn groups(&self, text: &str) -> PathBuf {
        let path = self.path("groups.toml");
        std::fs::write(&path, text).unwrap();
        path
    }

    /// A copy of the program in this folder, which other users can start: the folder of the build may be in somebody's home.
    pub fn reachable(&self) -> PathBuf {
        std::fs::set_permissions(self.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let copy = self.path("commensal");
        std::fs::copy(env!("CARGO_BIN_EXE_commensal"), &copy).unwrap();
        copy
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_commensal"));
        command.arg("--state-dir").arg(self.state()).arg("--cgroup-prefix").arg(&self.prefix);
        // Tests run side by side.
        command.arg("--beside-others");
        command.args(args).current_dir(self.dir.path());
        // Tests measure nothing: labs of several may run side by side.
        command.env("COMMENSAL_LAB_SCOPE", &self.prefix);
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        let mut command = self.command(args);
        command.stdin(Stdio::null());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = child.unwrap();
        self.ran.lock().unwrap().push(child.id());
        child.wait_with_output().unwrap()
    }

    /// Runs, checks the status, gives standard output and standard error.
    pub fn expect(&self, status: i32, args: &[&str]) -> (String, String) {
        let output = self.run(args);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(
            output.status.code(),
            Some(status),
            "commensal {args:?}\n--- stdout\n{out}--- stderr\n{err}"
        );
        (out, err)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.command(&["restore"]).output();
    }
}

/// A child that announces `listening ADDR`; it ends with this value.
pub struct Server {
    child: Child,
    pub addr: String,
}

impl Server {
    pub fn start(program: &Program, args: &[&str]) -> Server {
        let mut child = program.command(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let said = commensal_testkit::line(child.stdout.as_mut().unwrap());
        let addr = said.strip_prefix("listening ").unwrap_or_else(|| panic!("{said:?}")).to_owned();
        Server { child, addr }
    }

    pub fn url(&self) -> String {
        format!("http://{}/", self.addr)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Bytes as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether this is what `run` says on a machine whose CPUs are all taken: an offline command waits for one.
pub fn waits_for_a_cpu(line: &str) -> bool {
    line.starts_with("commensal: the command waits for a CPU: ")
}

/// cgroup directories of this machine whose name contains `part`.
pub fn cgroups_named(part: &str) -> Vec<PathBuf> {
    fn walk(dir: &Path, part: &str, depth: usize, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let path = entry.path();
                if entry.file_name().to_string_lossy().contains(part) {
                    found.push(path.clone());
                }
                if depth > 0 {
                    walk(&path, part, depth - 1, found);
                }
            }
        }
    }
    let mut found = Vec::new();
    walk(Path::new("/sys/fs/cgroup"), part, 4, &mut found);
    found
}

/// Whether this machine lets us make cgroups; prints the skip otherwise.
pub fn can_write_cgroups(test: &str) -> bool {
    let mut host = commensal_host::LinuxHost::new();
    let name = format!("commensal-probe-{}-{test}", std::process::id());
    let look = survey(&mut host, &name, None).unwrap();
    match look.caps.cgroup_obstacle.as_ref().or(look.tenancy.obstacle.as_ref()) {
        None => true,
        Some(obstacle) => {
            println!("skipped: {test}: {obstacle}");
            false
        }
    }
}

/// The cpu hierarchy's mount of this machine.
pub fn cpu_mount() -> PathBuf {
    let mut host = commensal_host::LinuxHost::new();
    let hierarchies = mounts::hierarchies(&mut host).unwrap();
    let cpu = commensal_core::knob::Controller::Cpu;
    let found = hierarchies.iter().find(|hierarchy| hierarchy.controllers.contains(&cpu));
    PathBuf::from(&found.expect("checked by can_write_cgroups").mount)
}
