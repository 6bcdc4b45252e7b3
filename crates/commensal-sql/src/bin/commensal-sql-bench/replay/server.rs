//! Starts `commensal-sql` as a child process; dropping it stops the server and its workers.

use super::error::ReplayError;
use commensal_host::{Child, Host, LinuxHost, Signal, SpawnSpec, Stdout};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A running server.
#[derive(Debug)]
pub struct ReplayServer {
    /// Address that the server listens on.
    pub address: SocketAddr,
    child: Child,
    /// State folder of `commensal`, which must exist while worker processes run.
    _state: TempDir,
}

/// Timeout for the server to exit, and then for its workers to exit.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the pids of a process and all its descendants (proc_pid_children(5)).
#[must_use]
pub fn family(host: &LinuxHost, pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut at = 0;
    while let Some(pid) = all.get(at).copied() {
        at += 1;
        let tasks = host.list(Path::new(&format!("/proc/{pid}/task"))).unwrap_or_default();
        for task in tasks {
            let children = host.read_file(Path::new(&format!("/proc/{pid}/task/{task}/children")));
            let children = children.unwrap_or_default();
            all.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
    }
    all
}

impl ReplayServer {
    /// Starts a server for the data folder on a free port. It may read from the S3 store at `endpoint`.
    ///
    /// # Errors
    /// The program cannot be started, or does not print its address.
    pub fn start(program: &Path, data: &Path, endpoint: Option<&str>) -> Result<ReplayServer, ReplayError> {
        let state = tempfile::tempdir().map_err(|error| ReplayError::Start(error.to_string()))?;
        let mut spec = SpawnSpec::new(program).arg("--listen").arg("127.0.0.1:0").arg("--data").arg(data);
        // The server gets folders and cgroups that no other commensal on this machine uses.
        spec = spec.arg(format!("--commensal-option=--state-dir={}", state.path().display()));
        spec =
            spec.arg(format!("--commensal-option=--cgroup-prefix=commensal-replay-{}", std::process::id()));
        if let Some(endpoint) = endpoint {
            spec = spec.arg("--s3-endpoint").arg(endpoint);
        }
        spec.stdout = Stdout::Pipe;
        spec.die_with_parent = true;
        let mut child = LinuxHost::new().spawn(&spec)?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            let read = BufReader::new(stdout).read_line(&mut line);
            read.map_err(|error| ReplayError::Start(error.to_string()))?;
        }
        let address = line.trim().strip_prefix("listening on ").and_then(|address| address.parse().ok());
        match address {
            Some(address) => Ok(ReplayServer { address, child, _state: state }),
            None => Err(ReplayError::Start("see what it printed above".to_owned())),
        }
    }

    /// Returns the server's pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.process.pid
    }
}

impl Drop for ReplayServer {
    fn drop(&mut self) {
        let mut host = LinuxHost::new();
        let family = family(&host, self.pid());
        // SIGTERM, so that the server removes its spill files.
        let _ = host.signal(&self.child.process, Signal::TERM);
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = host.signal(&self.child.process, Signal::KILL);
        let _ = self.child.wait();
        // Workers exit after their server has exited. `commensal` then removes their cgroups.
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE && family.iter().skip(1).any(|pid| host.process(*pid).is_ok()) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
