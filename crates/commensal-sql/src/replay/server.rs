//! A server of this program as a process of its own, ended when it is let go.

use super::ReplayError;
use commensal_host::{Child, Host, LinuxHost, Signal, SpawnSpec, Stdout};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;

/// A server that runs.
#[derive(Debug)]
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    child: Child,
}

impl Server {
    /// Starts one on the data folder at any port; it may read from the S3 store at `endpoint`.
    ///
    /// # Errors
    /// The program cannot be started, or says no address.
    pub fn start(program: &Path, data: &Path, endpoint: Option<&str>) -> Result<Server, ReplayError> {
        let mut spec = SpawnSpec::new(program).arg("--listen").arg("127.0.0.1:0").arg("--data").arg(data);
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
            Some(address) => Ok(Server { address, child }),
            None => Err(ReplayError::Start("see what it printed above".to_owned())),
        }
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.process.pid
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = LinuxHost::new().signal(&self.child.process, Signal::KILL);
        let _ = self.child.wait();
    }
}
