//! The hot-loadable scheduler: offline threads under sched_ext, and what user space has to do for them.
//!
//! ```text
//! orders (socket) ─► control ─► daemon ─► membership ─► threads get SCHED_EXT, and lose it again
//!                                 │  └──► weights ────► slots ┐
//!                                 ├─────► guard (freeze)      ├─ loader ─► BPF: bpf/sched/commensal.bpf.c
//!                                 └─────► watch (reload) ─────┘     └────► counters ─► status
//! ```
//!
//! It runs in partial mode: the kernel ranks threads with policy `SCHED_EXT` below all others, so a bug here cannot
//! take a CPU from an online thread. The scheduler is unloaded when its process exits; its threads then run in the fair
//! class, held back by the plan's mechanism underneath (`cpu.idle`).
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

/// Why the scheduler cannot be loaded or ordered.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// This machine cannot load it.
    #[error("the scheduler cannot be loaded here: {}", .0.join("; "))]
    Obstacles(Vec<String>),
    /// An order that the BPF programs do not accept.
    #[error(
        "the scheduler refuses class {class} for {cgroup}: it does not know it, or has no room for another group"
    )]
    Order {
        /// Number of the class.
        class: u64,
        /// The group.
        cgroup: String,
    },
    /// Another error of the kernel or libbpf.
    #[error("{what}: {because}")]
    Refused {
        /// The operation.
        what: &'static str,
        /// The error.
        because: String,
    },
}
