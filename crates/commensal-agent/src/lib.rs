//! The agent: keeps groups in force while members come and go, load changes and others write the same files.
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
mod deciders;
pub mod enforce;
pub mod groups_file;
pub mod guard;
pub mod instance;
pub mod keeper;
pub mod sense;
pub mod snapshot;
mod view;
pub mod witness;
