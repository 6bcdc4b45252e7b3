//! Built-in workloads, so that a lab run needs nothing but this program.
//!
//! [`http`] is the online workload (a latency-critical server), [`burn`] the offline one (a CPU hog that reports its
//! work). Each kind of [`antagonist`] stresses one resource, [`pulse`] is observed by the probe's tests, load
//! generators are compared using [`responder`], and [`cpu`] is the unit of work that all share. The load generator is
//! in `loadgen`.

use crate::error::LabError;
use std::io::{self, Write as _};
use std::net::SocketAddr;

pub mod antagonist;
pub mod burn;
pub mod cpu;
pub mod http;
pub mod pulse;
pub mod responder;

/// An option with an impossible value.
fn refuse(option: &str, value: u64, reason: &str) -> LabError {
    LabError::new(format!("{option} = {value}: {reason}"))
}

fn no_threads(threads: usize, error: &io::Error) -> LabError {
    LabError::of(format!("cannot start {threads} worker threads"), error)
}

/// The port could not be opened: it is in use, or privileged.
fn no_port(port: u16, error: &io::Error) -> LabError {
    match error.kind() {
        io::ErrorKind::AddrInUse => LabError::new(format!(
            "port {port} on 127.0.0.1 is already in use: stop its owner, choose another port, or 0 for any free one"
        )),
        _ => LabError::of(format!("cannot listen on 127.0.0.1:{port}"), error),
    }
}

/// Tells the conductor that it is ready.
fn announce(addr: SocketAddr) -> Result<(), LabError> {
    let mut out = io::stdout().lock();
    let printed = writeln!(out, "listening {addr}").and_then(|()| out.flush());
    printed.map_err(|error| LabError::of("cannot print the listening line to standard output", &error))
}
