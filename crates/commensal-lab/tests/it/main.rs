//! What the lab makes of recorded runs, as a reader sees it.
//!
//! A test that cannot run here prints `skipped: <test>: <reason>`.
#![allow(clippy::unwrap_used, reason = "a test says what failed by failing there")]
#![allow(clippy::disallowed_methods, reason = "tests read records and start a browser themselves")]

mod external;
