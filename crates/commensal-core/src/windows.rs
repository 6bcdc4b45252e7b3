//! Windows of time with different settings on work that goes on, and what pairs of them show: the one engine behind the lab's
//! rounds and the agent's canary. Pure.
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
//! **Invariants.** An order is a function of its seed and of the cycle's number. All looks together, and all figures of a
//! canary together, err at most as often as their one stated error says. A pair is evidence or it is not for reasons that
//! look at both of its windows alike; otherwise what is left out is itself an effect.

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
