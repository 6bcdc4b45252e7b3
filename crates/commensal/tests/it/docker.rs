//! Both sides in containers of a real engine, started for this test alone.

use crate::support::{Program, can_write_cgroups, text};
use commensal_lab::record::Run;
use commensal_testkit::{Signal, signal};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// An engine with folders and a socket of its own, and an image of busybox.
pub struct Engine {
    child: Child,
    /// Where it listens, as `DOCKER_HOST` has it.
    pub host: String,
    dir: PathBuf,
    options: Vec<String>,
}

impl Engine {
    /// `None` where it cannot be, which it prints.
    pub fn start(test: &str, dir: &Path) -> Option<Engine> {
        Engine::with(test, dir, &[])
    }

    /// With further options of dockerd's.
    pub fn with(test: &str, dir: &Path, options: &[String]) -> Option<Engine> {
        for tool in ["dockerd", "docker", "busybox"] {
            let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output().unwrap();
            if !found.status.success() {
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
        let image = "mkdir -p bb/bin bb/www && cp \"$(command -v busybox)\" bb/bin/busybox && ln -sf busybox bb/bin/sh && echo hello >bb/www/index.html && tar -C bb -c . | docker import - commensal-test:1";
        let made = Command::new("sh")
            .args(["-c", image])
            .current_dir(dir)
            .env("DOCKER_HOST", &engine.host)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", text(&made.stderr));
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
            .stderr(std::fs::File::create(dir.join("d.log")).unwrap())
            .spawn()
            .unwrap()
    }

    fn answers(&mut self) -> bool {
        let deadline = Instant::now() + Duration::from_secs(40);
        while !self.docker(&["info"]).0 {
            if self.child.try_wait().unwrap().is_some() || Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        true
    }

    /// Stops it; its containers stop with it.
    pub fn stop(&mut self) {
        signal(self.child.id(), Signal::TERM);
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.child.try_wait().is_ok_and(|ended| ended.is_none()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again, with the containers that it had.
    pub fn again(&mut self) {
        self.child = Engine::launch(&self.dir, &self.options);
        assert!(self.answers(), "the engine does not come back");
    }

    pub fn docker(&self, args: &[&str]) -> (bool, String) {
        let output = Command::new("docker").args(args).env("DOCKER_HOST", &self.host).output().unwrap();
        (output.status.success(), text(&output.stdout))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
        // It keeps the network namespace of its containers mounted, and with live-restore its own folder.
        for mount in ["exec/netns/default", "data"] {
            let _ = Command::new("umount").arg(self.dir.join(mount)).stderr(Stdio::null()).status();
        }
    }
}

const EXPERIMENT: &str = r#"
arms = ["baseline", "baseline2", "contended", "isolated"]
[design]
rounds = 1
block  = "500 ms"
warmup = "200 ms"
[online]
command = ["docker", "run", "--rm", "--name", "commensal-test-online", "--network", "host", "--cgroup-parent", "{online-group}", "commensal-test:1", "/bin/busybox", "httpd", "-f", "-p", "127.0.0.1:{port}", "-h", "/www"]
ready   = { http = "/index.html" }
cleanup = [["docker", "rm", "-f", "commensal-test-online"]]
[load]
http = "/index.html"
rate = 100
[offline]
command = ["docker", "run", "--rm", "--name", "commensal-test-offline", "--network", "none", "--cgroup-parent", "{offline-group}", "commensal-test:1", "/bin/sh", "-c", "while :; do :; done"]
cleanup = [["docker", "rm", "-f", "commensal-test-offline"]]
cpus    = 1
[[requires]]
program = "docker"
package = "docker.io"
version = ["--version"]
"#;

// promise 48
#[test]
fn both_sides_in_containers() {
    let test = "both_sides_in_containers";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("docker");
    let dir = tempfile::tempdir().unwrap();
    let Some(engine) = Engine::start(test, dir.path()) else { return };
    std::fs::write(program.path("mine.toml"), EXPERIMENT).unwrap();
    // A container of a killed run has the name already.
    assert!(engine.docker(&["create", "--name", "commensal-test-online", "commensal-test:1", "/bin/sh"]).0);
    let mut command = program.command(&["lab", "run", "./mine.toml", "--no-blame"]);
    let output = command.env("DOCKER_HOST", &engine.host).output().unwrap();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 1 | 3 | 4)), "{said}");
    let run = Run::from_json(&std::fs::read(program.path("run.json")).unwrap()).unwrap();
    assert_eq!(run.blocks.len(), 4, "{said}");
    for block in &run.blocks {
        // What containers use is counted in the groups of their side.
        assert!(block.cpu.online.is_some_and(|cpus| cpus > 0.0), "{block:?}");
        match block.arm.as_str() {
            "contended" => assert!(block.cpu.offline.is_some_and(|cpus| cpus > 0.01), "{block:?}"),
            // It yields to whatever else runs on this machine, and may get next to nothing.
            "isolated" => assert!(block.cpu.offline.is_some(), "{block:?}"),
            _ => assert!(block.cpu.offline.is_none_or(|cpus| cpus <= 0.01), "{block:?}"),
        }
    }
    assert!(run.programs[0].starts_with("docker: Docker version"), "{:?}", run.programs);
    let (_, left) = engine.docker(&["ps", "-a", "-q"]);
    assert_eq!(left, "", "no container is left");
    crate::bad_input::assert_nothing_left(&program.state());
    // The engine made the groups of both sides in every hierarchy; they went with the run.
    let record = run.commands.join(" ");
    assert!(record.contains("docker run"), "{record}");
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let cgroups =
        mounts.lines().filter(|line| line.contains(" cgroup")).filter_map(|line| line.split(' ').nth(1));
    for mount in cgroups {
        let names = std::fs::read_dir(mount).into_iter().flatten().flatten();
        for name in names.map(|entry| entry.file_name().to_string_lossy().into_owned()) {
            let pid = name.strip_prefix("commensal-lab-").and_then(|rest| rest.split('-').next());
            let alive = pid.is_none_or(|pid| Path::new(&format!("/proc/{pid}")).exists());
            assert!(alive, "{mount}/{name} is left");
        }
    }
}
