//! Tests of the governed store, on tokio's paused clock where time is looked at.
#![allow(clippy::unwrap_used, reason = "a test says what failed by failing there")]
#![allow(clippy::single_range_in_vec_init, reason = "one range of an object is one range")]

mod behaviour;
mod bytes;
mod charge_after;
mod device;
mod faults;
mod measure;
mod socket;
mod wait;
mod windows;
