//! Parts of the agent on the running machine, without its loop.
//!
//! A test that cannot run here prints `skipped: <test>: <reason>`. What needs another program is in the module `external`; all else is
//! the gate.
#![allow(clippy::unwrap_used, reason = "a test says what failed by failing there")]
#![allow(clippy::disallowed_methods, reason = "tests look at the machine themselves")]

mod external;
mod privileges;
mod support;
