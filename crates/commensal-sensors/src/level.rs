//! Reads a group's level: `cpu.qos_level` of openEuler's kernel, a cgroup v1 file. Groups below level 0 run only while no
//! group at a higher level wants the CPU.

use commensal_core::errno::Errno;
use commensal_host::{Dir, Host, HostError};

/// The file with a group's level.
pub const FILE: &str = "cpu.qos_level";

/// Returns the level of a group; `None` if the kernel has no levels or the group no longer exists.
///
/// # Errors
/// Returns an error when the level cannot be read although the kernel has levels and the group exists.
pub fn level(host: &mut dyn Host, group: Dir) -> Result<Option<i64>, HostError> {
    match host.read(group, FILE) {
        Ok(text) => Ok(text.trim().parse().ok()),
        Err(error) if matches!(error.errno, Errno::ENOENT | Errno::ENODEV) => Ok(None),
        Err(error) => Err(error),
    }
}
