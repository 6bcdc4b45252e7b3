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

pub mod members;
pub mod snapshot;
