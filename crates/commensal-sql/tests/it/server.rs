//! The server over TCP, with data made on the spot.

mod access;
mod client;
mod fixture;
mod limits;
mod process;
mod queries;
mod remote;
mod wire;
