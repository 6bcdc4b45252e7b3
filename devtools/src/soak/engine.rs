//! A container engine for the soak, with its own directories, socket and image. The soak starts and removes containers,
//! and kills and restarts the engine, while its containers keep running.

use crate::stage::{self, Stage};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Label of containers that a group matches; no group matches the others.
pub const LABEL: &str = "commensal-soak=batch";
/// Timeout for a response of the engine.
const PATIENCE: Duration = Duration::from_secs(40);
const MOST: usize = 4;
const IMAGE: &str = "mkdir -p bb/bin && cp \"$(command -v busybox)\" bb/bin/busybox && tar -C bb -c . | docker import \
                     - commensal-soak:1";

/// The container engine.
#[derive(Debug)]
pub struct Engine {
    child: Child,
    dir: PathBuf,
    top: String,
    /// Names of the containers, and whether a group matches each.
    containers: Vec<(String, bool)>,
    made: u32,
}

impl Engine {
    /// Starts the engine. The error is the reason why that is impossible on this machine.
    pub fn start(stage: &Stage) -> Result<Engine, String> {
        for tool in ["dockerd", "docker", "busybox"] {
            let mut find = Command::new("sh");
            find.args(["-c", &format!("command -v {tool}")]).stdout(Stdio::null());
            if !find.status().is_ok_and(|status| status.success()) {
                return Err(format!("no {tool}"));
            }
        }
        let dir = stage.dir.path().join("engine");
        std::fs::create_dir_all(&dir).map_err(|error| error.to_string())?;
        let child = launch(&dir, &stage.top).map_err(|error| error.to_string())?;
        let mut engine = Engine { child, dir, top: stage.top.clone(), containers: Vec::new(), made: 0 };
        if !engine.answers() {
            let log = std::fs::read_to_string(engine.dir.join("log")).unwrap_or_default();
            return Err(format!(
                "dockerd cannot run on this machine: {}",
                log.lines().last().unwrap_or_default()
            ));
        }
        let mut image = Command::new("sh");
        image.args(["-c", IMAGE]).current_dir(&engine.dir).env("DOCKER_HOST", engine.host());
        let made = image.stdout(Stdio::null()).stderr(Stdio::null()).status();
        match made.is_ok_and(|status| status.success()) {
            true => Ok(engine),
            false => Err("no image can be created".to_owned()),
        }
    }

    /// The engine's address in the format of `DOCKER_HOST`.
    pub fn host(&self) -> String {
        format!("unix://{}", self.dir.join("sock").display())
    }

    fn docker(&self, args: &[&str]) -> bool {
        let mut docker = Command::new("timeout");
        docker.arg(PATIENCE.as_secs().to_string()).arg("docker").args(args).env("DOCKER_HOST", self.host());
        docker.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        docker.status().is_ok_and(|status| status.success())
    }

    fn answers(&mut self) -> bool {
        let end = Instant::now() + PATIENCE;
        while !self.docker(&["info"]) {
            if !matches!(self.child.try_wait(), Ok(None)) || Instant::now() > end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        true
    }

    /// Starts a container: with `offline` one that an offline group matches, otherwise one that no group matches.
    pub fn come(&mut self, offline: bool) -> bool {
        if self.containers.len() >= MOST {
            return false;
        }
        self.made += 1;
        let name = format!("commensal-soak-{}-{}", std::process::id(), self.made);
        let parent = self.parent();
        let label = if offline { LABEL } else { "commensal-soak=nobodys" };
        let run = ["run", "-d", "--network", "none", "--name", &name, "--cgroup-parent", &parent, "--label"];
        let started =
            self.docker(&[&run[..], &[label, "commensal-soak:1", "/bin/busybox", "sleep", "86400"]].concat());
        if started {
            self.containers.push((name, offline));
        }
        started
    }

    /// Removes a container.
    pub fn go(&mut self) -> bool {
        let Some((name, _)) = self.containers.pop() else { return false };
        self.docker(&["rm", "-f", &name])
    }

    /// Kills the engine and restarts it.
    pub fn kill(&mut self) -> bool {
        stage::end(&mut self.child);
        match launch(&self.dir, &self.top) {
            Ok(child) => self.child = child,
            Err(_) => return false,
        }
        self.answers()
    }

    /// Removes all containers.
    pub fn clear(&mut self) {
        while !self.containers.is_empty() {
            self.go();
        }
    }

    fn parent(&self) -> String {
        format!("/{}/box", self.top)
    }

    /// Stops containers and engine.
    pub fn end(&mut self) {
        self.clear();
        stage::signal(self.child.id(), "TERM");
        let end = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
        }
        stage::end(&mut self.child);
        // If the engine is killed while it removes a container, it leaves the container and its cgroups behind.
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
        let hierarchies = mounts.lines().filter(|line| line.contains(" cgroup"));
        let boxes = hierarchies.filter_map(|line| line.split(' ').nth(1));
        for dir in boxes.map(|mount| PathBuf::from(format!("{mount}{}", self.parent()))) {
            for container in std::fs::read_dir(dir).into_iter().flatten().flatten() {
                let inside = std::fs::read_to_string(container.path().join("cgroup.procs"));
                let pids = inside.unwrap_or_default();
                pids.lines().filter_map(|pid| pid.parse().ok()).for_each(|pid| stage::signal(pid, "KILL"));
            }
        }
        for (pid, _) in stage::processes_of(&self.dir) {
            stage::signal(pid, "KILL");
        }
        // The engine also creates cgroups in hierarchies that the rest of the soak does not use.
        let end = Instant::now() + PATIENCE;
        let hierarchies = mounts.lines().filter(|line| line.contains(" cgroup"));
        for mount in hierarchies.filter_map(|line| line.split(' ').nth(1)) {
            let dir = PathBuf::from(format!("{mount}{}", self.parent()));
            while dir.exists() && !stage::remove_all(&dir) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(50));
            }
            let _ = std::fs::remove_dir(PathBuf::from(format!("{mount}/{}", self.top)));
        }
        // The engine keeps the network namespace of its containers mounted, and with live-restore also its own folder.
        for mount in ["exec/netns/default", "data"] {
            let _ = Command::new("umount").arg(self.dir.join(mount)).stderr(Stdio::null()).status();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.end();
    }
}

fn launch(dir: &std::path::Path, top: &str) -> std::io::Result<Child> {
    let path = |name: &str| dir.join(name).display().to_string();
    // The containerd of a killed engine exits with the engine. A leftover PID file must not prevent the start of the
    // next engine.
    let _ = std::fs::remove_file(dir.join("pid"));
    let mut command = Command::new("dockerd");
    command
        .args(["--data-root", &path("data"), "--exec-root", &path("exec"), "--pidfile", &path("pid")])
        .args(["-H", &format!("unix://{}", path("sock")), "--live-restore", "--bridge=none"])
        .args(["--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false"])
        .arg(format!("--cgroup-parent=/{top}/box"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(dir.join("log"))?);
    command.spawn()
}
