//! The program itself, on the running machine, and what it shows of others.
//!
//! A test that cannot run here prints `skipped: <test>: <reason>`. What measures is in a module `measure`, what needs another program
//! in `external`, what only a guest has in `guest`; all else is the gate.
#![allow(clippy::unwrap_used, reason = "a test says what failed by failing there")]
#![allow(clippy::disallowed_methods, reason = "tests start the program and look at the machine themselves")]

mod agent;
mod agent_faults;
mod antagonist;
mod bad_input;
mod blame;
mod blame_names;
mod canaries;
mod config;
mod density;
mod documented;
mod experiments;
mod external;
mod fixtures;
mod guest;
mod history;
mod hostile;
mod in_force;
mod init;
mod known_harms;
mod lab;
mod limits;
mod load;
mod load_from;
mod load_limits;
mod measure;
mod messages;
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
mod terminals;
