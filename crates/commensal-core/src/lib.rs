//! The pure core: workload groups, units, topology, the table of kernel settings (knobs), the desired state, and the
//! plan that reaches it.
//!
//! ```text
//! groups file ── config ──► GroupSpec ── resolve ──► DesiredState ─┐
//!                                                                  ├─► plan ─► Plan { steps, unmet }
//! kernel ── sensors ──► Machine, ActualState, Capabilities ────────┘
//!              └──────► CPU use, waits, pressure ── control ──► limits of offline work, with reasons
//! seed ── windows ──► order of settings;  pairs of windows ── windows, stats ──► estimates, bounds, conclusions
//! ```
//!
//! **Invariant:** no code in this crate opens a file, reads a clock, starts a thread, reads the environment, or uses a
//! random number that is not derived from a seed passed as an argument. The same arguments always give the same result.
#![forbid(unsafe_code)]

pub mod actual;
pub mod admission;
pub mod btf;
pub mod canary;
pub mod class;
pub mod config;
pub mod control;
pub mod cpuset;
pub mod desired;
pub mod drift;
pub mod errno;
pub mod facts;
pub mod group;
pub mod knob;
pub mod limit;
pub mod member;
pub mod namespace;
pub mod observe;
pub mod ownership;
pub mod plan;
pub mod process;
pub mod propose;
pub mod reach;
pub mod rng;
pub mod safe;
pub mod scheduler;
pub mod spelling;
pub mod stats;
pub mod text;
pub mod toml_reader;
pub mod topology;
pub mod units;
pub mod vendor;
pub mod windows;
