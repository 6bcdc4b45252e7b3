//! The probe on the running kernel: who had the CPU while threads waited, in worlds that a test makes for it.
//!
//! A test that cannot run here prints `skipped: <test>: <reason>`.
#![allow(clippy::unwrap_used, reason = "a test says what failed by failing there")]
#![allow(clippy::disallowed_methods, reason = "tests start processes and look at the machine themselves")]

mod guest;
mod measure;
mod replay;
