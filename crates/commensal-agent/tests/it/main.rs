//! The keeper on the host in memory: rounds with crashes, drift and refusals.
#![allow(clippy::unwrap_used, reason = "a test says what failed by failing there")]

mod rounds;
