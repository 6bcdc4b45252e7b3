//! The probe on the running kernel: who had the CPU while threads waited, in worlds that a test makes for it. All of it is shares of a
//! CPU, times and sums of waits.

mod agreement;
mod conservation;
mod scenarios;
mod starved;
mod subjects;
pub(crate) mod world;
