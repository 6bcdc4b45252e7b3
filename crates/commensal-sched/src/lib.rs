//! The hot-loadable scheduler: offline threads under sched_ext, and what user space has to do for them.
//!
//! ```text
//! orders (socket) ─► control ─► daemon ─► membership ─► threads get SCHED_EXT, and lose it again
//!                                 │  └──► weights ────► slots ┐
//!                                 ├─────► guard (freeze)      ├─ loader ─► BPF: bpf/sched/commensal.bpf.c
//!                                 └─────► watch (reload) ─────┘     └────► counters ─► status
//! ```
//!
//! In partial mode: the kernel ranks threads with policy `SCHED_EXT` below all others, so that a mistake here cannot
//! take a CPU from an online thread. The scheduler goes with the process that loaded it; its threads are then as all
//! others, held down by what the plan has put underneath (`cpu.idle`).
#![forbid(unsafe_code)]

pub mod control;
pub mod counters;
pub mod daemon;
pub mod guard;
pub mod intf;
pub mod loader;
pub mod membership;
pub mod places;
pub mod preflight;
pub mod service;
pub mod verifier;
pub mod watch;
pub mod weights;

/// Why there is no scheduler.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// This machine cannot have it.
    #[error("the scheduler cannot be loaded here: {}", .0.join("; "))]
    Obstacles(Vec<String>),
    /// An order that the scheduler does not know.
    #[error(
        "the scheduler refuses class {class} for {cgroup}: it does not know it, or has no room for another group"
    )]
    Order {
        /// Number of the class.
        class: u64,
        /// The group.
        cgroup: String,
    },
    /// Anything else that the kernel or libbpf says.
    #[error("{what}: {because}")]
    Refused {
        /// What was tried.
        what: &'static str,
        /// What was answered.
        because: String,
    },
}
