//! The scheduler's program, on this machine and in guests that have sched_ext.
//!
//! A test that cannot run here prints `skipped: <test>: <reason>`.
#![allow(clippy::unwrap_used, reason = "a test says what failed by failing there")]
#![allow(clippy::disallowed_methods, reason = "tests start the program and look at the machine themselves")]

mod absent;
mod guest;
