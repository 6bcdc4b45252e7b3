//! Restores one original value, and reads it back.

use super::outcome::Left;
use super::target::open;
use crate::hand::{self, Put, Slot};
use crate::journal::Target;
use commensal_core::errno::Errno;
use commensal_core::text;
use commensal_host::{Host, HostError, below};
use std::path::Path;

pub(super) fn put_back(
    host: &mut dyn Host,
    group: &Target,
    knob: &str,
    file: &str,
    device: Option<&str>,
    value: &str,
) -> Result<Option<String>, Left> {
    let Some(dir) = open(host, &group.mount, &group.path, Some(group.inode))? else { return Ok(None) };
    let shown = text::path(&below(Path::new(&group.mount), &group.path).join(file));
    // The record was checked when it was read (`journal::fits`), so this is a bug in commensal.
    let wrong = |why: &str| {
        let object = format!("{shown} ({why})");
        let value = Some(value.trim().to_owned());
        Left::Failed(HostError { operation: "restore", object, value, errno: Errno::EINVAL })
    };
    let slot = Slot::of(knob, file, device);
    let put = slot.map_err(wrong).and_then(|slot| {
        let original = slot.file.parse(value, slot.device).map_err(|error| wrong(&error.to_string()))?;
        Ok(hand::put(host, dir, &slot, &original))
    });
    host.close(dir);
    match put? {
        Put::Held(_) | Put::Gone(_) => Ok(None),
        Put::Written(_) | Put::Unread(_) => Ok(Some(format!("{shown} is {} again", value.trim()))),
        Put::NotTaken(_) => Err(Left::Failed(not_taken(shown, value))),
        Put::Refused(error) => Err(Left::Failed(error)),
        Put::Unwritable(why) => Err(wrong(&why)),
    }
}

/// Returns the error for a value that the kernel accepted although the file then reads another value.
pub(super) fn not_taken(object: String, value: &str) -> HostError {
    // EBUSY, because another program probably keeps changing it.
    HostError { operation: "keep", object, value: Some(value.trim().to_owned()), errno: Errno::EBUSY }
}
