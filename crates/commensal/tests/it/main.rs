//! The program itself, on the running machine, and what it shows of others.
//!
//! A test that cannot run here prints `skipped: <test>: <reason>`.
#![allow(clippy::unwrap_used, reason = "a test says what failed by failing there")]
#![allow(clippy::disallowed_methods, reason = "tests start the program and look at the machine themselves")]

mod agent;
mod agent_faults;
mod antagonist;
mod bad_input;
mod blame;
mod canaries;
mod containers;
mod density;
mod docker;
mod expel;
mod experiments;
mod fixtures;
mod history;
mod hostile;
mod known_harms;
mod lab;
mod lab_faults;
mod limits;
mod load;
mod load_from;
mod names;
mod on_machine;
mod output;
mod privileges;
mod processes;
mod prove;
mod queue;
mod report;
mod sched;
mod seeing;
mod sharing;
mod support;
mod sweeps;
mod systemd;
mod unified;
