//! What `devtools` shares with xtask.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "a development tool works on the source tree directly")]

pub mod tree;

/// Exit status of a task that cannot run on this machine. The task has printed `skipped: <reason>`.
pub const SKIPPED: u8 = 77;
