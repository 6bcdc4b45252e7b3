//! The server over TCP, with data made on the spot.
#![allow(
    clippy::disallowed_methods,
    reason = "tests make data, start the program and look at the machine themselves"
)]
#![allow(clippy::unwrap_used, reason = "a test says what failed by failing there")]
#![allow(missing_docs, missing_debug_implementations, reason = "helpers of these tests")]

mod access;
pub(crate) mod client;
mod commands;
mod crowd;
mod ends;
mod faults;
pub mod fixture;
mod functions;
mod json;
mod limits;
mod logins;
mod objects;
pub(crate) mod process;
mod queries;
mod remote;
mod shapes;
mod shows;
pub(crate) mod tls;
mod wire;
