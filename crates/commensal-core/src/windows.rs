//! Windows of time in which running work has different settings, and the statistics of pairs of windows: the engine
//! shared by the lab's rounds and the agent's canary. Pure.
//!
//! ```text
//! schedule   in which order      ░ alone ░ isolated ░ alone again ░ isolated ░ contended, long ░ …
//!     │ the caller switches, leaves out the first moments, and measures
//!     ▼
//! pairs      difference of two settings that met the same machine
//!     │ estimate (Hodges-Lehmann), exact bounds (signed ranks), at the error that this look may spend
//!     ▼
//! answer     beyond the threshold, within it, or open with the bound that was reached
//! ```
//!
//! **Invariants.** An order is a function of its seed and of the cycle's number. All interim analyses together, and all
//! figures of a canary together, are wrong at most as often as their one stated error. Whether a pair counts as
//! evidence is decided by rules that treat both of its windows alike; otherwise leaving pairs out would itself create
//! an effect.

mod effect;
mod looks;
mod pairs;
mod schedule;

pub use effect::{Effect, Series, Shown, effects};
pub use looks::Looks;
pub use pairs::{Answer, Paired};
pub use schedule::{Schedule, Turns, blocks, firsts};

#[cfg(test)]
mod calibration;
