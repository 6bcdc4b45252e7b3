//! Density: measures how many databases or VMs fit on a server, and how much slower their work gets.
//!
//! ```text
//! scenario, fleet            classify placements of VMs on servers                                 ┐
//! record ─► table ─► report  a ladder of sessions in several placements, as in Arenadata's article │ pure
//!        └► model, plan      how many VMs fit, with a confidence bound                             ┘
//! experiment ─► conductor ─► cells (cgroups, by plan and drivers) ─► work, engines, vm ─► record
//! search                     finds the densest placement by bisection; calibrates the model
//! pin                        assigns whole cores to VMs
//! topology_notes             notes on what a VM cannot see of the real CPU topology
//! ```
//! The record is the primary data; the table, the plan and the charts are computed from it. [`document`] contains the
//! times that Arenadata's article on the density of VMs prints.
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
