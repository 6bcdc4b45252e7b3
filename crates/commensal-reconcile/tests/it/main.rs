//! Plan, drivers, journal, sensors and restore together, on machines in memory that refuse what the kernel refuses.
#![allow(clippy::unwrap_used, reason = "a test says what failed by failing there")]
#![allow(clippy::disallowed_methods, reason = "tests read the fixtures themselves")]

mod attacks;
mod crash;
mod delegation;
mod faults;
mod fixtures;
mod matrix;
mod members;
mod names;
mod originals;
mod properties;
mod rounds;
mod safe_state;
mod scheduler;
mod sense;
mod support;
mod together;
mod undo;
mod vendors;
