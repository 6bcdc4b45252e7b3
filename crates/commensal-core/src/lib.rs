//! The pure core: groups, units, topology, the knob table, desired state and the plan.
//!
//! ```text
//! groups file ── config ──► GroupSpec ── resolve ──► DesiredState ─┐
//!                                                                  ├─► plan ─► Plan { steps, unmet }
//! kernel ── sensors ──► Machine, ActualState, Capabilities ────────┘
//!              └──────► use, waits, pressure ── control ──► what offline work may have now, and why
//! seed ── windows ──► when which setting is in force;  pairs ── windows, stats ──► estimates, bounds, what is shown
//! ```
//!
//! **Invariant:** nothing here opens a file, reads a clock, starts a thread, looks at the environment
//! or draws a random number that does not come from a seed it is given. The same arguments always give the same result.
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
pub mod group;
pub mod knob;
pub mod limit;
pub mod member;
pub mod observe;
pub mod ownership;
pub mod plan;
pub mod process;
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
