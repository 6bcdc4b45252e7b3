//! Built-in workloads, so that a lab run needs nothing but this program.
//!
//! [`http`] is the online workload (a latency-critical server), [`burn`] the offline one (a CPU hog that reports its
//! work). Each kind of [`antagonist`] stresses one resource, [`pulse`] is observed by the probe's tests, load
//! generators are compared using [`responder`], and [`cpu`] is the unit of work that all share. The load generator is
//! in `loadgen`.

use std::io;
use std::path::PathBuf;

pub mod antagonist;
pub mod burn;
pub mod cpu;
pub mod http;
pub mod pulse;
pub mod responder;

/// Why a built-in workload could not start or had to end.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// Another program listens on the port.
    #[error(
        "port {port} on 127.0.0.1 is already in use: stop its owner, choose another port, or 0 for any free one"
    )]
    PortBusy {
        /// The port asked for.
        port: u16,
    },
    /// The port could not be opened for another reason (a privileged port, for example).
    #[error("cannot listen on 127.0.0.1:{port}")]
    Listen {
        /// The port asked for.
        port: u16,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The worker threads could not be started.
    #[error("cannot start {threads} worker threads")]
    Threads {
        /// Number of threads.
        threads: usize,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The line that tells the conductor "ready" could not be written.
    #[error("cannot print the listening line to standard output")]
    Announce {
        /// The error of the kernel.
        source: io::Error,
    },
    /// The work counter could not be written.
    #[error(
        "cannot write the work counter of thread {thread}: the counter must be a file that is open for writing \
         (the lab hands over a memory file), not a terminal or a pipe"
    )]
    Counter {
        /// Index of the thread's slot, from 0.
        thread: usize,
        /// The error of the kernel.
        source: io::Error,
    },
    /// An unnamed file could not be created.
    #[error("cannot make a temporary file of {size} bytes in {}: name another folder with --dir", dir.display())]
    File {
        /// The folder.
        dir: PathBuf,
        /// Size in bytes.
        size: u64,
        /// The error of the kernel.
        source: io::Error,
    },
    /// A piece of work failed.
    #[error("cannot {operation}")]
    Piece {
        /// The operation.
        operation: &'static str,
        /// The error of the kernel.
        source: io::Error,
    },
    /// A process could not be started or waited for.
    #[error("the fork storm cannot go on")]
    Process(#[from] commensal_host::HostError),
    /// An option with an impossible value.
    #[error("{option} = {value}: {reason}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// The value given.
        value: u64,
        /// What is allowed.
        reason: &'static str,
    },
}
