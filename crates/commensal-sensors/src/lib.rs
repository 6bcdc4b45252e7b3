//! Reads kernel files into observations: mounts, topology, capabilities, cgroup values, containers, CPU, memory and I/O
//! use, pressure and run delay.
//!
//! All reads use [`commensal_host::Host`]. If a source is missing, the result is `None`, not 0 and not an error. This
//! crate writes only to a scratch group for [`capability::probe`], which it removes immediately.
#![forbid(unsafe_code)]

mod actual;
pub mod capability;
pub mod containers;
mod cookies;
pub mod delegation;
pub mod freezer;
pub mod inherited;
pub mod inventory;
pub mod level;
pub mod machine;
pub mod mounts;
pub mod pressure;
pub mod processes;
pub mod run_delay;
pub mod sched_ext;
pub mod scheduler;
pub mod sockets;
mod strays;
mod survey;
pub mod usage;
mod vendor;

pub use actual::{tree as cgroups, value};
pub use survey::{Survey, members, survey};

use commensal_host::HostError;

/// Why the machine cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SensorError {
    /// A file that every Linux has could not be read.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A file's content does not have the kernel's format.
    #[error("{file} does not have the kernel's format: {what}")]
    Form {
        /// The file.
        file: String,
        /// The part of the content that is missing or wrong.
        what: String,
    },
}
