//! Code shared by the tests of several crates: waits for conditions, signals, information on processes from /proc,
//! cgroups with processes in them, a container engine, terminals, unusual names, and what the documents show.
//!
//! Not used by shipped programs.

#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "tests read the kernel's files directly, not through the code under test"
)]

mod alone;
mod cgroups;
mod dice;
mod docker;
pub mod docs;
mod files;
mod names;
mod net;
mod process;
mod terminal;
mod wait;

pub use alone::{Alone, alone};
pub use cgroups::{Groups, members, removed_within};
pub use dice::Dice;
pub use docker::Engine;
pub use files::exchange;
pub use names::{hidden, odd_names};
pub use net::{http, unused_address};
pub use process::{
    Stopped, cgroup_of, cgroups_of, cpu_time, cpu_time_of_all, descriptors, ended, field_of_stat,
    field_of_status, group_ended, keep_off_cpu, line, mortal, processes_with, resident_bytes, run_delay,
    signal, signal_group, stopped_by, threads, time_slices, watches,
};
pub use rustix::process::Signal;
pub use terminal::Terminal;
pub use wait::{
    PATIENCE, holds_within, throughout, told, until, until_every, until_some, until_still, within,
    within_every,
};
