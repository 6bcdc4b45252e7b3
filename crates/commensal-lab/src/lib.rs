//! The lab: measures the cost of co-location.
//!
//! ```text
//! experiment ─► conductor ─► blocks ─► run.json ─► analysis ─► verdict ─► report
//!                  │  through the plan and drivers that `apply` uses; no private write path
//!                  ├─ site      groups, policy on and off, journal, clean end
//!                  │            isolation: by the best mechanism, or by named ones
//!                  │            scheduler: sched_ext, and schedulers of others
//!                  ├─ workload  the service and the antagonists (child processes of this program)
//!                  ├─ loadgen   open loop, latency from the intended start
//!                  └─ tools     what load generators and batch programs of others print, as numbers
//! calibrate ─► the same with a harm of known size in place of isolation: how often the verdict is right
//! ```
//!
//! `run.json` is the primary data: everything printed can be recomputed from its blocks.
#![forbid(unsafe_code)]

pub mod analysis;
pub mod calibrate;
pub mod conductor;
pub mod doctor;
mod error;
pub mod experiment;
pub mod format;
pub mod history;
pub mod isolation;
pub mod keep;
pub mod loadgen;
pub mod prometheus;
pub mod record;
pub mod report;
pub mod scheduler;
pub mod site;
pub mod tools;
pub mod verdict;
pub mod workload;

pub use commensal_core::{rng, stats};
pub use error::LabError;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod simulated;
