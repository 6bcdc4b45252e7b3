//! The server over TCP.

mod access;
mod client;
mod fixture;
mod limits;
mod process;
mod queries;
mod wire;
