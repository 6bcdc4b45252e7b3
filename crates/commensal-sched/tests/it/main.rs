//! The scheduler in a guest that has sched_ext (`cargo xtask vm --layout sched`). It takes the whole machine: elsewhere
//! every test says why it does not run. An emulated CPU is slow and stands still at times, so all bounds are ratios.
//!
//! A test that cannot run here prints `skipped: <test>: <reason>`.
#![allow(clippy::unwrap_used, reason = "a test says what failed by failing there")]
#![allow(clippy::disallowed_methods, reason = "tests start the program and look at the machine themselves")]

mod absent;
mod broken;
mod long;
mod obstacles;
mod probe;
mod smt2;
mod smt4;
mod wide;
mod world;
