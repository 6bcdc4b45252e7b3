//! What the tests of several crates need: waiting for a condition, signals, what the kernel says of a process, and odd names.
//!
//! Not used by shipped programs.

#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "tests look at the kernel themselves, not through what they test"
)]

mod files;
mod names;
mod process;
mod wait;

pub use files::exchange;
pub use names::{hidden, odd_names};
pub use process::{
    Stopped, cpu_time, ended, field_of_stat, resident_bytes, run_delay, signal, stopped_by, threads,
};
pub use rustix::process::Signal;
pub use wait::{PATIENCE, until, until_some, within};
