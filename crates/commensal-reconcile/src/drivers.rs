//! The kernel's side of a step: how a value is written and read back, and taken back when it is refused.
//!
//! The knob table says how a value is spelled, so one writer serves every controller; a vendor whose knob needs more than a
//! write has a file of its own here. Drivers choose nothing: they do the steps of a plan in its order, stop at the first
//! refusal, say how far they got and take it back.

pub(crate) mod affinity;
pub(crate) mod apply;
pub(crate) mod aside;
pub(crate) mod cookies;
pub mod freezer;
pub mod members;
pub mod policy;
pub(crate) mod recreate;
pub mod scheduler;

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
