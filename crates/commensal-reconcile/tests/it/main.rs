//! Tests of plan, drivers, journal, sensors and restore together, on machines in memory that refuse what the kernel
//! refuses; some of them also on this machine.
#![allow(clippy::unwrap_used, reason = "a test says what failed by failing there")]
#![allow(clippy::disallowed_methods, reason = "tests read the fixtures and look at the machine themselves")]

mod attacks;
mod below;
mod crash;
mod damaged;
mod delegation;
mod faults;
mod fixtures;
mod forged;
mod hotplug;
mod levels;
mod matrix;
mod members;
mod names;
mod namespaces;
mod news;
mod on_machine;
mod originals;
mod properties;
mod queue;
mod quota;
mod rounds;
mod safe_state;
mod scheduler;
mod sense;
mod support;
mod together;
mod undo;
mod vendors;
mod ways_home;
