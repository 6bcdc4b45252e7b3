//! Built-in workloads, so that a lab run needs only this program.
//!
//! [`http`] is the online workload, a latency-critical server. [`burn`] is the offline (batch) workload, threads that
//! use CPU time and count their work. Each kind of [`antagonist`] stresses one resource. [`pulse`] is for tests of the
//! wait probe (a BPF program that measures whom threads wait for), and [`responder`] is a server for comparisons of
//! load generators. [`steal`] stands for a hypervisor in calibrations. [`cpu`] contains the unit of CPU work. The load generator is in the module `loadgen`.

use crate::error::LabError;
use std::io::{self, Write as _};
use std::net::SocketAddr;

pub mod antagonist;
pub mod burn;
pub mod cpu;
pub mod http;
pub mod pulse;
pub mod responder;
pub mod steal;

/// Returns the error for an option whose value is out of range.
fn refuse(option: &str, value: u64, reason: &str) -> LabError {
    LabError::new(format!("{option} = {value}: {reason}"))
}

fn no_threads(threads: usize, error: &io::Error) -> LabError {
    LabError::of(format!("cannot start {threads} worker threads"), error)
}

/// Returns the error for a port that could not be opened, for example because it is in use or privileged.
fn no_port(port: u16, error: &io::Error) -> LabError {
    match error.kind() {
        io::ErrorKind::AddrInUse => LabError::new(format!(
            "cannot listen on port {port} of 127.0.0.1, which is already in use: stop its owner, or choose another port (0 selects \
             any free port)"
        )),
        _ => LabError::of(format!("cannot listen on 127.0.0.1:{port}"), error),
    }
}

/// Prints the server's address, from which the conductor learns that the server is ready.
fn announce(addr: SocketAddr) -> Result<(), LabError> {
    let mut out = io::stdout().lock();
    let printed = writeln!(out, "listening {addr}").and_then(|()| out.flush());
    printed.map_err(|error| LabError::of("cannot print the listening line to standard output", &error))
}
