//! A discrete-event model of VMs on servers, for what does not fit on this machine.
//!
//! ```text
//! session ─ query ─ stage ─┬─ job on VM 1 ─┐
//!                          ├─ job on VM 2 ─┤ barrier ─ exchange ─ next stage
//!                          └─ job on VM n ─┘
//! ```
//! A job keeps `width` guest threads busy; a guest shares its vCPUs equally among its threads. A runnable vCPU sits on a
//! hardware thread: an idle core first, then an idle thread, then the shortest queue; queues are shared fairly, and a thread
//! that runs dry takes from a queue. Threads of one core share what SMT makes of it, and all cores lose speed as more of them
//! are busy. Time passes from event to event, with rates constant in between, so nothing is rounded to a time slice.
//!
//! What it leaves out: disks, caches and memory bandwidth other than by the all-core speed, timer and halt exits, preempted
//! lock holders, and crashes. [`fit`] says how far that carries.

mod engine;
pub mod fit;
pub mod fleet;
mod host;

pub use engine::{Limits, SimulateError, run};

use crate::scenario::Server;
use serde::Serialize;

/// What is common to all servers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Physics {
    /// Work of a core with all its threads busy, in cores with one.
    pub smt_gain: f64,
    /// Speed of a core when all cores are busy, of its speed while at most `full_speed` of them are.
    pub all_core: f64,
    /// Share of the cores that may be busy before they lose speed.
    pub full_speed: f64,
    /// How often the host's scheduler has moved every vCPU somewhere else, s.
    pub mix_s: f64,
    /// What a vCPU waits per vCPU queued before it, s: a slice of the fair scheduler.
    pub slice_s: f64,
    /// The exchange at a barrier.
    pub network: Network,
}

/// Datagrams with acknowledgement and retry.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Network {
    /// After which an unanswered datagram is sent again, s.
    pub timeout_s: f64,
    /// Retries in a row that make a warning.
    pub warn_after: u32,
}

impl Default for Physics {
    /// A gain usual for two threads, cores that keep their speed. Slices are the kernel's default base slice times a handful;
    /// the exchange's figures are assumptions, since document 003 gives none but the 100 retries.
    fn default() -> Physics {
        Physics {
            smt_gain: 1.3,
            all_core: 1.0,
            full_speed: 0.0,
            mix_s: 0.2,
            slice_s: 0.003,
            network: Network { timeout_s: 0.02, warn_after: 100 },
        }
    }
}

/// What a query is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Profile {
    /// Threads that it keeps busy in each VM of its cluster.
    pub width: u32,
    /// CPU time of each of these threads, mean over queries, s on a core that runs alone.
    pub work_s: f64,
    /// Barriers per query.
    pub stages: u32,
    /// Spread of work between queries: standard deviation of its logarithm.
    pub spread: f64,
    /// Spread of work between the VMs of one stage, likewise.
    pub skew: f64,
}

/// VMs that answer queries together.
#[derive(Debug, Clone, PartialEq)]
pub struct Cluster {
    /// Indices of its VMs.
    pub vms: Vec<usize>,
    /// Sessions at once.
    pub sessions: u32,
    /// Queries of each session, one after the other.
    pub queries: u32,
    /// What a query is.
    pub profile: Profile,
}

/// A VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vm {
    /// Index of its server.
    pub server: usize,
    /// vCPU.
    pub vcpu: u32,
}

/// All there is.
#[derive(Debug, Clone, PartialEq)]
pub struct World {
    /// Servers.
    pub servers: Vec<Server>,
    /// VMs.
    pub vms: Vec<Vm>,
    /// Whether vCPUs have hardware threads of their own, next to those of the same VM.
    pub pinned: bool,
    /// Clusters.
    pub clusters: Vec<Cluster>,
    /// What is common to all servers.
    pub physics: Physics,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Of each cluster: from the start to the end of its last session, s.
    pub seconds: Vec<f64>,
    /// vCPU time spent waiting for a hardware thread, per cent of vCPU time, of all VMs until the end.
    pub steal_pct: f64,
    /// vCPU time spent runnable, per cent of vCPU time, steal included.
    pub busy_pct: f64,
    /// Datagrams sent again, per 1000 exchanges.
    pub retries_per_1000: f64,
    /// Exchanges with so many retries in a row that a warning is written.
    pub warnings: u64,
    /// Events of the simulation.
    pub events: u64,
}

#[cfg(test)]
mod tests;
