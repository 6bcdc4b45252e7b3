//! Density: how many databases or VMs fit on a server, and what it costs.
//!
//! ```text
//! scenario, fleet            which class a placement is                                        ┐
//! record ─► table ─► report  a ladder of sessions in several placements, as document 003 has it │ pure
//!        └► model, plan      how many fit, with a bound                                         ┘
//! experiment ─► conductor ─► cells (cgroups by plan and drivers) ─► work, engines, vm ─► record
//! search                     measures by bisection, and what sharing a core costs
//! pin                        whole cores for VMs
//! topology_notes             what the CPU topology that a VM is shown may hide
//! ```
//! The record is the primary data: table, answer and charts are computed from it.
#![forbid(unsafe_code)]

pub mod cells;
pub mod conductor;
pub mod document;
pub mod engines;
mod error;
pub mod experiment;
pub mod fleet;
pub mod model;
pub mod pin;
pub mod plan;
pub mod protocol;
pub mod record;
pub mod report;
pub mod scenario;
pub mod search;
pub mod table;
pub mod topology_notes;
pub mod vm;
pub mod work;

pub use error::DensityError;
