//! A container engine (dockerd) for one test.

use crate::process::{ended, signal};
use crate::wait::holds_within;
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The engine's only image, which contains busybox.
const IMAGE: &str = "commensal-test:1";

/// An engine with its own directories, its own socket and an image of busybox.
#[derive(Debug)]
pub struct Engine {
    child: Child,
    /// Address of the engine's socket, in the format of `DOCKER_HOST`.
    pub host: String,
    dir: PathBuf,
    options: Vec<String>,
}

impl Engine {
    /// Starts an engine. Returns `None` if that is impossible on this machine, after printing the reason.
    pub fn start(test: &str, dir: &Path) -> Option<Engine> {
        Engine::with(test, dir, &[])
    }

    /// Like [`Engine::start`], with further options of dockerd.
    ///
    /// # Panics
    /// Panics if the engine runs but its image cannot be created.
    pub fn with(test: &str, dir: &Path, options: &[String]) -> Option<Engine> {
        for tool in ["dockerd", "docker", "busybox"] {
            let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output();
            if !found.is_ok_and(|found| found.status.success()) {
                println!(
                    "skipped: {test}: no {tool}; apt-get install --no-install-recommends docker.io busybox-static"
                );
                return None;
            }
        }
        let host = format!("unix://{}", dir.join("d.sock").display());
        let mut engine = Engine {
            child: Engine::launch(dir, options),
            host,
            dir: dir.to_owned(),
            options: options.to_vec(),
        };
        if !engine.answers() {
            let log = std::fs::read_to_string(dir.join("d.log")).unwrap_or_default();
            println!(
                "skipped: {test}: dockerd does not run here: {}",
                log.lines().last().unwrap_or_default()
            );
            return None;
        }
        let image = format!(
            "mkdir -p bb/bin bb/www && cp \"$(command -v busybox)\" bb/bin/busybox && ln -sf busybox bb/bin/sh && echo \
             hello >bb/www/index.html && tar -C bb -c . | docker import - {IMAGE}"
        );
        let made = Command::new("sh")
            .args(["-c", &image])
            .current_dir(dir)
            .env("DOCKER_HOST", &engine.host)
            .output()
            .expect("a shell");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Some(engine)
    }

    fn launch(dir: &Path, options: &[String]) -> Child {
        let path = |name: &str| dir.join(name).display().to_string();
        Command::new("dockerd")
            .args(["--data-root", &path("data"), "--exec-root", &path("exec"), "--pidfile", &path("d.pid")])
            .args(["-H", &format!("unix://{}", path("d.sock"))])
            .args([
                "--iptables=false",
                "--ip6tables=false",
                "--bridge=none",
                "--ip-forward=false",
                "--ip-masq=false",
            ])
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(dir.join("d.log")).expect("a log"))
            .spawn()
            .expect("dockerd")
    }

    fn answers(&mut self) -> bool {
        let (mut answers, mut is_over) = (false, false);
        holds_within(Duration::from_secs(40), || {
            (answers, is_over) = (self.docker(&["info"]).0, ended(self.child.id()));
            answers || is_over
        });
        answers
    }

    /// Stops the engine. Its containers also stop, unless the engine runs with `--live-restore`.
    pub fn stop(&mut self) {
        // After the process has been reaped, its PID may belong to another process.
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            signal(self.child.id(), Signal::TERM);
        }
        holds_within(Duration::from_secs(20), || ended(self.child.id()));
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts the engine again, with its containers.
    ///
    /// # Panics
    /// Panics if the engine does not respond.
    pub fn again(&mut self) {
        self.child = Engine::launch(&self.dir, &self.options);
        assert!(self.answers(), "the engine does not respond after the restart");
    }

    /// Runs `docker` with `args`. Returns whether it succeeded, and its output.
    pub fn docker(&self, args: &[&str]) -> (bool, String) {
        let output = Command::new("docker").args(args).env("DOCKER_HOST", &self.host).output();
        let output = output.expect("docker");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Starts a container that runs a shell script; returns the container's ID.
    ///
    /// # Panics
    /// Panics if the container does not start.
    pub fn run(&self, options: &[&str], script: &str) -> String {
        let mut all = vec!["run", "-d", "--network", "none"];
        all.extend(options);
        all.extend([IMAGE, "/bin/sh", "-c", script]);
        let (well, out) = self.docker(&all);
        assert!(well, "docker {all:?}: {out}");
        out.trim().to_owned()
    }

    /// PID of a container's first process.
    ///
    /// # Panics
    /// Panics if the container does not run.
    #[must_use]
    pub fn pid(&self, id: &str) -> u32 {
        let (_, pid) = self.docker(&["inspect", "-f", "{{.State.Pid}}", id]);
        pid.trim().parse().unwrap_or_else(|_| panic!("container {id} has the process {pid:?}"))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
        // The engine keeps the network namespace of its containers mounted, and with `--live-restore` its own directory
        // as well.
        for mount in ["exec/netns/default", "data"] {
            let _ = Command::new("umount").arg(self.dir.join(mount)).stderr(Stdio::null()).status();
        }
    }
}
