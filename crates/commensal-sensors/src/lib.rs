//! Reads kernel files into observations: mounts, topology, capabilities, cgroup values, containers, use, pressure,
//! delay.
//!
//! Everything is read through [`commensal_host::Host`]; a missing source is `None`, never 0 and never an error. The
//! only thing written is a scratch group for [`capability::probe`], removed at once.
#![forbid(unsafe_code)]

mod actual;
pub mod capability;
pub mod containers;
mod cookies;
pub mod delegation;
pub mod machine;
pub mod mounts;
pub mod pressure;
pub mod processes;
pub mod run_delay;
pub mod sched_ext;
pub mod scheduler;
mod survey;
pub mod usage;
mod vendor;

pub use actual::{tree as cgroups, value};
pub use survey::{Survey, survey};

use commensal_host::HostError;

/// The machine cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SensorError {
    /// A file that every Linux has could not be read.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A file's content does not have the kernel's format.
    #[error("{file} does not look like a kernel's: {what}")]
    Form {
        /// The file.
        file: String,
        /// What was missing.
        what: String,
    },
}
