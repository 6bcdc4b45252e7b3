//! What the tests of workers, a program of their own, share with those of the server.

pub mod client;
pub mod fixture;
