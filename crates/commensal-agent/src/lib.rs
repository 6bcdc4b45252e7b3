//! The agent: enforces the groups while members come and go, load changes and other programs write the same files.
//!
//! ```text
//! config ─► specs ─┐                                 ┌─► journal, audit log
//! members ─────────┼─► core: control ─► plan ─► drivers ─► kernel
//! sensors ─────────┘        │
//!                           └─► Snapshot ─► control socket, /metrics, status, top, explain
//! ```
//!
//! One thread senses, decides and writes; every other thread only sees a [`snapshot::Snapshot`].
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
pub mod groups_file;
pub mod guard;
pub mod members;
pub mod privileges;
pub mod publish;
pub mod reach;
pub mod sense;
mod siblings;
pub mod snapshot;
pub mod status;
pub mod top;
mod view;

pub use error::AgentError;
