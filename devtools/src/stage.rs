//! A test environment for agents: separate cgroups in every hierarchy, a build of commensal with its own state
//! directory, processes in those cgroups, and the kernel's counters of a process. Dropping the environment removes all
//! of it.

use anyhow::{Context, bail};
use commensal_host::LinuxHost;
use commensal_sensors::mounts;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Timeout of any operation; generous because the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);
/// Environment variable with the path of a build of commensal, which is then used instead of a new build.
const PROGRAM: &str = "COMMENSAL_PROGRAM";

/// The test environment.
#[derive(Debug)]
pub struct Stage {
    /// Name of the cgroup that contains all others.
    pub top: String,
    /// Mount points of all usable hierarchies.
    pub mounts: Vec<PathBuf>,
    /// Folder of the groups file and, by default, of the state directory.
    pub dir: TempDir,
    /// The state directory.
    pub state: PathBuf,
    /// Environment variables of agents.
    pub variables: Vec<(String, String)>,
    program: PathBuf,
}

/// Builds commensal as shipped (optimised). [`PROGRAM`] selects another build.
pub fn release() -> anyhow::Result<PathBuf> {
    if let Some(program) = std::env::var_os(PROGRAM) {
        return Ok(PathBuf::from(program));
    }
    built(&["--release", "--package", "commensal"])?;
    Ok(target().join("release/commensal"))
}

/// Builds `commensal-faults`, the program with injected faults: optimised, or with the profile of tests. [`PROGRAM`]
/// selects another build.
pub fn with_faults(optimised: bool) -> anyhow::Result<PathBuf> {
    if let Some(program) = std::env::var_os(PROGRAM) {
        return Ok(PathBuf::from(program));
    }
    let which = ["--package", "commensal", "--features", "faults", "--bin", "commensal-faults"];
    built(&[&which[..], if optimised { &["--release"] } else { &[] }].concat())?;
    Ok(target().join(if optimised { "release" } else { "debug" }).join("commensal-faults"))
}

fn built(which: &[&str]) -> anyhow::Result<()> {
    let mut build = crate::tree::cargo();
    build.args(["build", "--quiet"]).args(which).current_dir(crate::tree::root());
    if !build.status()?.success() {
        bail!("commensal does not build");
    }
    Ok(())
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| crate::tree::root().join("target"), PathBuf::from)
}

impl Stage {
    /// Creates the top cgroup. `program` is a build of commensal.
    pub fn new(what: &str, program: &Path) -> anyhow::Result<Stage> {
        let mut host = LinuxHost::new();
        let found = mounts::hierarchies(&mut host)?;
        let dir = tempfile::tempdir()?;
        let stage = Stage {
            top: format!("commensal-{what}-{}", std::process::id()),
            mounts: found.iter().map(|one| PathBuf::from(&one.mount)).collect(),
            state: dir.path().join("state"),
            dir,
            variables: Vec::new(),
            program: program.to_owned(),
        };
        stage.make("").context("making cgroups needs root")?;
        Ok(stage)
    }

    /// Creates a cgroup below the top one, in every hierarchy.
    pub fn make(&self, path: &str) -> anyhow::Result<()> {
        for mount in &self.mounts {
            let dir = mount.join(&self.top).join(path);
            std::fs::create_dir(&dir).with_context(|| format!("make {}", dir.display()))?;
            // A cgroup v1 cpuset without CPUs accepts no process.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let above =
                    dir.parent().map(|above| above.join(file)).filter(|_| mount.join("tasks").exists());
                if let Some(all) = above.and_then(|above| std::fs::read_to_string(above).ok()) {
                    std::fs::write(dir.join(file), all.trim())?;
                }
            }
        }
        Ok(())
    }

    /// Removes a cgroup and its descendants in every hierarchy; returns whether all of them have been removed.
    pub fn remove(&self, path: &str) -> bool {
        let mut gone = true;
        for mount in &self.mounts {
            gone &= remove_all(&mount.join(&self.top).join(path));
        }
        gone
    }

    /// Returns the path of `file` in the first hierarchy that has it.
    pub fn file(&self, path: &str, file: &str) -> Option<PathBuf> {
        let of = |mount: &PathBuf| mount.join(&self.top).join(path).join(file);
        self.mounts.iter().map(of).find(|file| file.exists())
    }

    /// Writes the groups file.
    pub fn groups(&self, text: &str) -> anyhow::Result<()> {
        let aside = self.dir.path().join("groups.new");
        std::fs::write(&aside, text)?;
        Ok(std::fs::rename(aside, self.config())?)
    }

    /// Path of the groups file.
    pub fn config(&self) -> PathBuf {
        self.dir.path().join("groups.toml")
    }

    /// Returns the command `commensal ARGS` in this environment.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg("--state-dir")
            .arg(&self.state)
            .arg("--cgroup-prefix")
            .arg(self.prefix())
            .arg("--beside-others")
            .args(args);
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    /// Prefix of the names of commensal's own cgroups in this environment.
    pub fn prefix(&self) -> String {
        format!("{}-own", self.top)
    }

    /// Starts an agent, with or without the probe, and waits until the groups are in force.
    pub fn agent(&self, more: &[&str], probe: bool) -> anyhow::Result<Child> {
        let mut child = self.launch(more, probe)?;
        let deadline = Instant::now() + PATIENCE;
        while !self.is_up(child.id()) {
            if let Some(status) = child.try_wait()? {
                bail!("the agent exited at once: {status}: {}", self.said());
            }
            if Instant::now() > deadline {
                end(&mut child);
                bail!(
                    "the agent did not put the groups in force within {} s: {}",
                    PATIENCE.as_secs(),
                    self.said()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(child)
    }

    /// Starts an agent without waiting for it.
    pub fn launch(&self, more: &[&str], probe: bool) -> anyhow::Result<Child> {
        let config = self.config().display().to_string();
        let args = [&["agent", "-c", &config][..], more].concat();
        let mut command = self.command(&args);
        command.args((!probe).then_some("--no-probe"));
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.stdout(Stdio::null()).stderr(self.log()?).spawn().context("start the agent")
    }

    /// Whether the agent responds and has put the groups in force.
    pub fn is_up(&self, pid: u32) -> bool {
        self.snapshot().is_some_and(|seen| seen["pid"] == pid && seen["ticks"].as_u64() > Some(0))
    }

    fn log(&self) -> anyhow::Result<std::fs::File> {
        Ok(std::fs::OpenOptions::new().create(true).append(true).open(self.dir.path().join("agent.log"))?)
    }

    /// Returns the output of all agents so far.
    pub fn said(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("agent.log")).unwrap_or_default()
    }

    /// Queries the agent's last snapshot; `None` when the agent does not respond.
    pub fn snapshot(&self) -> Option<serde_json::Value> {
        serde_json::from_str(&self.ask("GET", "/v1/snapshot").ok()?).ok()
    }

    /// Prints why the agent does not respond: the error, the files of its state directory, and the sockets there.
    pub fn print_socket(&self) {
        let answer = self.ask("GET", "/v1/snapshot");
        println!("    the socket: {:?}", answer.map(|body| body.chars().take(200).collect::<String>()));
        for entry in std::fs::read_dir(&self.state).into_iter().flatten().flatten() {
            let inode = std::os::unix::fs::DirEntryExt::ino(&entry);
            println!("    the state directory has {}, inode {inode}", entry.file_name().display());
        }
        let state = self.state.display().to_string();
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
        sockets.lines().filter(|line| line.contains(&state)).for_each(|line| println!("    socket {line}"));
    }

    /// Sends the agent a request; returns the body of the response.
    pub fn ask(&self, method: &str, path: &str) -> anyhow::Result<String> {
        let mut stream = UnixStream::connect(self.state.join("control.sock"))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (_, body) = answer.split_once("\r\n\r\n").context("the response is not HTTP")?;
        Ok(body.to_owned())
    }

    /// Starts a shell command in the cgroup, in every hierarchy.
    pub fn start(&self, path: &str, command: &str) -> anyhow::Result<Child> {
        let dirs = self.mounts.iter().map(|mount| mount.join(&self.top).join(path).join("cgroup.procs"));
        let enter: String = dirs.map(|procs| format!("echo $$ >{}; ", procs.display())).collect();
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{enter}{command}")]).current_dir(self.dir.path());
        shell.stdin(Stdio::null()).stdout(Stdio::null());
        Ok(shell.spawn()?)
    }

    /// Reads every readable and writable file in the cgroups of this environment.
    pub fn settings(&self) -> BTreeMap<PathBuf, String> {
        let mut found = BTreeMap::new();
        for mount in &self.mounts {
            settings(&mount.join(&self.top), true, &mut found);
        }
        found
    }

    /// Like [`Stage::settings`], for one cgroup without its descendants.
    pub fn settings_of(&self, path: &str) -> BTreeMap<PathBuf, String> {
        let mut found = BTreeMap::new();
        for mount in &self.mounts {
            settings(&mount.join(&self.top).join(path), false, &mut found);
        }
        found
    }

    /// Lists the cgroups of this environment and of its agents.
    pub fn cgroups(&self) -> Vec<PathBuf> {
        let own = |dir: &Path| {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            let named = entries.filter(|one| one.file_name().to_string_lossy().starts_with(&self.top));
            named.map(|one| one.path()).collect::<Vec<_>>()
        };
        self.mounts.iter().flat_map(|mount| own(mount)).collect()
    }

    /// Lists the processes whose command line contains the path of this environment.
    pub fn processes(&self) -> Vec<(u32, String)> {
        processes_of(self.dir.path())
    }
}

/// Lists the processes whose command line contains this path, except this process.
pub fn processes_of(path: &Path) -> Vec<(u32, String)> {
    let name = path.display().to_string();
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let named = pids.filter_map(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        line.contains(&name).then_some((pid, line))
    });
    named.filter(|(pid, _)| *pid != std::process::id()).collect()
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.command(&["restore"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        for (pid, _) in self.processes() {
            signal(pid, "KILL");
        }
        for dir in self.cgroups() {
            let deadline = Instant::now() + Duration::from_secs(10);
            while !remove_all(&dir) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

/// Reads every readable and writable file in a cgroup; with `deep` also in its descendants.
pub fn settings(dir: &Path, deep: bool, found: &mut BTreeMap<PathBuf, String>) {
    use std::os::unix::fs::PermissionsExt;
    // Parts of the names of files that are left out: lists, counters, and files that the kernel changes by itself.
    const NOT: [&str; 8] = ["procs", "tasks", "threads", "usage", "failcnt", "peak", "pressure", "stat"];
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let Ok(kind) = entry.metadata() else { continue };
        if kind.is_dir() {
            if deep {
                settings(&path, deep, found);
            }
        } else if kind.permissions().mode() & 0o600 == 0o600
            && !NOT.iter().any(|not| name.contains(not))
            && let Ok(text) = std::fs::read_to_string(&path)
        {
            found.insert(path, text);
        }
    }
}

/// Removes a cgroup and its descendants, as far as they are empty; returns whether it has been removed.
pub fn remove_all(dir: &Path) -> bool {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_all(&entry.path());
        }
    }
    let _ = std::fs::remove_dir(dir);
    !dir.exists()
}

/// Sends a signal to a process of this environment.
pub fn signal(pid: u32, name: &str) {
    let _ = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).stderr(Stdio::null()).status();
}

/// Kills a child process and waits for its exit.
pub fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// The kernel's counters of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Used {
    /// CPU time of the threads in s (field 1 of `schedstat`).
    pub cpu_s: f64,
    /// `VmRSS` in KiB.
    pub rss_kib: u64,
    /// Number of open file descriptors.
    pub fds: usize,
    /// Number of threads.
    pub threads: usize,
}

/// Reads the counters of a process; `None` when it has exited.
pub fn used(pid: u32) -> Option<Used> {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    let mut used = Used::default();
    for task in std::fs::read_dir(proc.join("task")).ok()?.flatten() {
        let Ok(stat) = std::fs::read_to_string(task.path().join("schedstat")) else { continue };
        used.cpu_s += stat.split_whitespace().next()?.parse::<f64>().ok()? / 1e9;
        used.threads += 1;
    }
    let status = std::fs::read_to_string(proc.join("status")).ok()?;
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    used.rss_kib = rss.split_whitespace().next()?.parse().ok()?;
    used.fds = std::fs::read_dir(proc.join("fd")).ok()?.count();
    Some(used)
}

/// Returns the files that a process has open, with the number of descriptors of each.
pub fn open_files(pid: u32) -> BTreeMap<String, usize> {
    let mut files = BTreeMap::new();
    for fd in std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
        let target = std::fs::read_link(fd.path()).unwrap_or_default();
        *files.entry(target.display().to_string()).or_default() += 1;
    }
    files
}
