//! The lab: measures the cost of co-location, that is, how much batch work slows down a latency-critical service, with
//! and without isolation.
//!
//! ```text
//! experiment ─► conductor ─► blocks ─► run.json ─► analysis ─► verdict ─► report
//!                  │  changes cgroups only through the planner and the drivers that `apply` uses
//!                  ├─ site      groups, policy on and off, journal, cleanup
//!                  │            isolation: by the best mechanism, or by named ones
//!                  │            scheduler: commensal's own and third-party sched_ext schedulers
//!                  ├─ workload  the service and the antagonists (child processes of this program)
//!                  ├─ loadgen   open loop, latency from the intended start
//!                  └─ tools     parsers for the output of third-party load generators and batch programs
//! prove ─► tests kernel facts that plans rely on, in temporary cgroups; has no experiment and writes no run.json
//! calibrate ─► adds delays of known size instead of isolation, to measure how often the verdict is right
//! ```
//!
//! A block is one measurement of one condition; an antagonist is a built-in program that stresses one resource.
//!
//! `run.json` is the primary data: all results that the lab prints can be recomputed from its blocks.
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
pub mod prove;
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
