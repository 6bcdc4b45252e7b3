//! Parts of the agent on the running machine, without its loop.
//!
//! A test that cannot run here prints `skipped: <test>: <reason>`.
#![allow(clippy::unwrap_used, reason = "a test says what failed by failing there")]
#![allow(clippy::disallowed_methods, reason = "tests look at the machine themselves")]

mod containers;
mod privileges;
mod support;
