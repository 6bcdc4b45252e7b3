//! Carries out the steps of a plan in the kernel: how a value is written, read back, and undone when a step is refused.
//!
//! The knob table says how a value is spelled, so one writer serves every controller; a vendor's knob that needs more
//! than a write has a separate file here. Drivers make no choices: they carry out the steps of a plan in order, stop at
//! the first refusal, report how far they got and undo it.

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

/// The text that changes one value and keeps the other values of its file: v2 `cpu.max` takes quota and period in one
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
