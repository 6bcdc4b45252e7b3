//! Tests that measure: time, shares of the CPU, rates, order under load, or statistics. Each asserts a figure, or needs windows of real
//! time, which another test beside it would disturb.

mod agent;
mod agent_faults;
mod blame;
mod canaries;
mod density;
mod experiments;
mod identity;
mod in_force;
mod known_harms;
mod lab;
mod lab_faults;
pub(crate) mod limits;
mod load;
mod odd_subjects;
mod processes;
mod prove;
mod running;
pub(crate) mod sweeps;
