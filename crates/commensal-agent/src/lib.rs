//! The agent: keeps the groups' settings in force while members appear and disappear, load changes, and other programs
//! write the same kernel files.
//!
//! ```text
//! config ─► specs ─┐                                 ┌─► journal, audit log
//! members ─────────┼─► core: control ─► plan ─► drivers ─► kernel
//! sensors ─────────┘        │
//!                           └─► Snapshot ─► control socket, /metrics, status, top, explain
//! ```
//!
//! One thread measures, decides and writes; all other threads only read a [`snapshot::Snapshot`].
#![forbid(unsafe_code)]

pub mod agent;
pub mod audit;
pub mod blame_monitor;
pub mod canary;
pub mod client;
pub mod control;
mod controllers;
mod error;
pub mod explain;
pub mod exposition;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
#[cfg(test)]
mod golden;
pub mod guard;
mod levels;
pub mod members;
mod min_share;
mod policy_watch;
pub mod privileges;
pub mod publish;
pub mod read_back;
mod safe_record;
pub mod sense;
pub mod snapshot;
mod starvation;
pub mod status;
pub mod top;
mod view;
mod wait_parts;

pub use error::AgentError;
pub use safe_record::read as safe_state;
