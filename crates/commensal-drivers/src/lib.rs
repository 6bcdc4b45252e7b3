//! Plan steps to kernel writes, and back.
//!
//! ```text
//! Plan ─► apply ─► journal (fsync) ─► host writes, each read back ─► Outcome
//!                     │
//!                     └──► restore: originals back, our groups gone; works with everyone else dead
//! ```
//!
//! The knob table says how a value is spelled, so one writer serves every controller; a vendor whose
//! knob needs more than a write gets a file of its own here. Drivers choose nothing: they do the steps
//! of a plan in its order, stop at the first refusal, say how far they got and take it back.
#![forbid(unsafe_code)]

mod affinity;
mod apply;
mod aside;
mod cookies;
pub mod freezer;
pub mod journal;
pub mod members;
pub mod policy;
pub mod queue;
mod renew;
mod restore;
mod scheduler;

pub use affinity::pin_thread;
pub use apply::{Applied, Failure, Outcome, Refusal, apply, forget_gone, forget_settled, verify};
pub use aside::{NoRoom, step_aside, step_out};
pub use journal::{Journal, JournalError};
pub use restore::{Restored, restore, restore_own, restore_stale};

use commensal_core::knob::KnobId;
use commensal_host::{Dir, Host};

/// The text that changes one value and keeps what its file holds beside it: v2 `cpu.max` takes quota and period in one
/// write, and a period alone cannot be written.
pub(crate) fn text_for(
    host: &mut dyn Host,
    dir: Dir,
    (knob, file): (Option<KnobId>, &str),
    text: String,
) -> String {
    if knob != Some(KnobId::CpuPeriod) || file != "cpu.max" {
        return text;
    }
    let now = host.read(dir, file).unwrap_or_default();
    match (now.split_whitespace().next(), text.split_whitespace().nth(1)) {
        (Some(quota), Some(period)) => format!("{quota} {period}"),
        _ => text,
    }
}
