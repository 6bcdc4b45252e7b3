//! Tests of the governed store, on tokio's paused clock where time is looked at.
#![allow(clippy::unwrap_used, reason = "a test says what failed by failing there")]

mod behaviour;
mod bytes;
mod device;
mod faults;
mod real;
mod windows;
