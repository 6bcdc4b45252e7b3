//! The one integration binary of the workspace's top: plan, drivers, journal and sensors together on
//! FakeHost, and the program itself on the running machine.
//!
//! A test that cannot run here prints `skipped: <test>: <reason>`.
#![allow(clippy::unwrap_used, reason = "a test says what failed by failing there")]
#![allow(clippy::disallowed_methods, reason = "tests start the program and look at the machine themselves")]

mod agent;
mod agent_faults;
mod antagonist;
mod bad_input;
mod blame;
mod calibrate;
mod canary;
mod containers;
mod delegation;
mod density;
mod docker;
mod expel;
mod experiments;
mod faults;
mod fixtures;
mod history;
mod lab;
mod lab_faults;
mod limits;
mod load;
mod members;
mod on_machine;
mod output;
mod processes;
mod properties;
mod queue;
mod report;
mod sched;
mod scheduler;
mod seeing;
mod sense;
mod support;
mod sweeps;
mod systemd;
mod together;
mod undo;
mod unified;
mod vendors;
