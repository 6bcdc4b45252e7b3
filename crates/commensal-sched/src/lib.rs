//! commensal's sched_ext scheduler for offline threads, and its user-space part. It is loaded and unloaded while the
//! machine runs.
//!
//! ```text
//! orders (socket) ─► control ─► daemon ─► membership ─► threads get SCHED_EXT, and lose it again
//!                                 │  └──► weights ────► slots ┐
//!                                 ├─────► guard (freeze)      ├─ loader ─► BPF: bpf/sched/commensal.bpf.c
//!                                 └─────► watch (reload) ─────┘     └────► counters ─► status
//! ```
//!
//! Orders are the configuration that a client (their owner) sends: the cgroups that the scheduler manages or protects,
//! each with class, weight and limit, and the hold-off. The orders of all owners are in force together.
//!
//! The scheduler runs in partial mode: the kernel ranks threads with policy `SCHED_EXT` below all others, so a bug here
//! cannot take a CPU from an online thread. The kernel unloads the scheduler when its process exits. The threads then
//! run in the fair class, where `cpu.idle`, which the plan of `commensal` sets as a fallback, gives them little CPU
//! time.
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

/// Errors of loading or configuring the scheduler.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// This machine cannot load the scheduler, for these reasons.
    #[error("the scheduler cannot be loaded here: {}", .0.join("; "))]
    Obstacles(Vec<String>),
    /// The BPF programs refused the configuration of a group.
    #[error(
        "the scheduler refuses class {class} for {cgroup}: it does not know that cgroup, or its table of groups is full"
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
