//! Carries out the steps of a plan in the kernel: writes values, reads them back, and undoes the steps when the kernel
//! refuses one.
//!
//! The knob table (commensal-core) defines the text of each value, so one writer (`hand`) serves all cgroup controllers;
//! what each kind of step does is in `steps`. Drivers make no decisions: they carry out the
//! steps of a plan in order, stop at the first refusal, undo the steps carried out so far, and report the refusal.

pub(crate) mod apply;
pub(crate) mod aside;
pub mod freezer;
pub(crate) mod level;
pub mod lift;
pub mod lifted_group;
pub mod members;
pub(crate) mod processes;
pub(crate) mod recreate;
pub mod scheduler;

use commensal_core::errno::Errno;
use commensal_core::knob::{File, KnobId};
use commensal_host::{Dir, Host, HostError};

/// Reads a value that may have to be restored later. While a group is idle, the file of its weight shows a fixed number
/// (3 in v1, 1 in v2): when `cpu.idle` ends, the group gets the kernel's default weight, which is returned. Any other
/// weight was journalled before the group became idle (see the plan).
///
/// # Errors
/// Returns the kernel's error.
pub(crate) fn original_text(
    host: &mut dyn Host,
    dir: Dir,
    (knob, file): (KnobId, &File),
) -> Result<String, HostError> {
    if knob == KnobId::CpuWeight {
        match host.read(dir, "cpu.idle") {
            Ok(idle) if idle.trim() == "1" => return Ok(file.default.to_owned()),
            // The kernel has no such file, or the group does not have the controller yet.
            Err(error) if error.errno != Errno::ENOENT => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    host.read(dir, file.name)
}
