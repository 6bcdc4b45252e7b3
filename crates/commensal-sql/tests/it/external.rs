//! Tests that need drivers of other languages: Python, and Java with a compiler.
#![allow(
    clippy::disallowed_methods,
    reason = "tests make data, start the program and look at the machine themselves"
)]
#![allow(clippy::unwrap_used, reason = "a test says what failed by failing there")]

mod differential;
pub(crate) mod drivers;
mod grammar;
mod hdfs;
mod mariadb;
