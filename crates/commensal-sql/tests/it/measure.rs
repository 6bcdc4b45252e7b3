//! Tests that measure time, CPU time or rates, or ask whatever chance says.
#![allow(
    clippy::disallowed_methods,
    reason = "tests make data, start the program and look at the machine themselves"
)]
#![allow(clippy::unwrap_used, reason = "a test says what failed by failing there")]

mod limits;
mod lock_wait;
mod storm;
