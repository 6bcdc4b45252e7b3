//! Experiments in windows of time: the order in which an experiment switches settings while work is running, and the
//! statistics of pairs of windows. The lab's rounds and the agent's canary (an experiment that switches isolation off
//! for short times) share this code.
//!
//! ```text
//! schedule   order of settings   ░ alone ░ isolated ░ alone again ░ isolated ░ contended, long ░ …
//!     │ the caller switches settings, waits for them to settle, and measures
//!     ▼
//! pairs      differences between two settings that were measured close in time
//!     │ estimate (Hodges-Lehmann), exact bounds (signed ranks), at the error of this interim analysis
//!     ▼
//! conclusion beyond the threshold, within it, or open
//! ```
//!
//! **Invariants.** The order of the settings depends only on the seed and the number of the cycle. The stated error
//! bounds the probability of a wrong conclusion over all interim analyses of a run (checks before its end) and all
//! metrics of a canary together. The rules that exclude a pair treat both of its windows alike; otherwise the exclusion
//! of pairs would itself create an effect.

mod effect;
mod looks;
mod pairs;
mod schedule;
pub mod sequential;
pub mod stretch;

pub use effect::{Effect, Series, Shown, effects};
pub use looks::Looks;
pub use pairs::{Answer, Paired};
pub use schedule::{Schedule, Turns, blocks, firsts};

#[cfg(test)]
mod calibration;
