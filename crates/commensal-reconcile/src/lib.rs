//! The one crate that changes a machine: plan steps to kernel writes, and back.
//!
//! ```text
//! Plan ─► drivers::apply ─► journal (fsync) ─► host writes, each read back ─► Outcome
//!                              │
//!                              └──► restore: originals back, our groups gone; works with everyone else dead
//! ```
#![forbid(unsafe_code)]

pub mod drivers;
pub mod journal;
pub mod queue;
mod restore;

pub use drivers::affinity::pin_thread;
pub use drivers::apply::{Applied, Failure, Outcome, Refusal, apply, forget_gone, forget_settled, verify};
pub use drivers::aside::{NoRoom, step_aside, step_out};
pub use drivers::{freezer, members, policy};
pub use journal::{Journal, JournalError};
pub use restore::{Restored, restore, restore_own, restore_stale};
