//! Restores one original value, and reads it back.

use super::outcome::Left;
use super::target::open;
use crate::drivers::text_for;
use crate::journal::Target;
use commensal_core::errno::Errno;
use commensal_core::knob::{File, KnobId, Version};
use commensal_core::text;
use commensal_core::topology::Device;
use commensal_host::{Dir, Host, HostError, below};
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
    let now = host.read(dir, file).unwrap_or_default();
    let result = if same(knob, file, device, &now, value) {
        Ok(None)
    } else {
        write(host, group, dir, (knob, file, device), value)
    };
    host.close(dir);
    result
}

fn write(
    host: &mut dyn Host,
    group: &Target,
    dir: Dir,
    (knob, file, device): (&str, &str, Option<&str>),
    value: &str,
) -> Result<Option<String>, Left> {
    let shown = text::path(&below(Path::new(&group.mount), &group.path).join(file));
    let written = text_for(host, dir, (KnobId::from_name(knob), file), value.to_owned());
    let written = host.write(dir, file, &written);
    let now = host.read(dir, file);
    match (written, now) {
        (Ok(()), Ok(now)) if !same(knob, file, device, &now, value) => {
            Err(Left::Failed(not_taken(shown, value)))
        }
        (Ok(()), _) => Ok(Some(format!("{shown} is {} again", value.trim()))),
        (Err(_), Ok(now)) if same(knob, file, device, &now, value) => {
            Ok(Some(format!("{shown} is {} again", value.trim())))
        }
        // A missing group, file or device gives these errors, and there is nothing to restore. If the value can still
        // be read, the error is reported.
        (Err(error), now) if matches!(error.errno, Errno::ENODEV | Errno::ENOENT) => {
            match now.is_ok_and(|now| has_value(knob, file, device, &now)) {
                true => Err(Left::Failed(error)),
                false => Ok(None),
            }
        }
        (Err(error), _) => Err(Left::Failed(error)),
    }
}

/// Returns the error for a value that the kernel accepted although the file then reads another value.
pub(super) fn not_taken(object: String, value: &str) -> HostError {
    // EBUSY, because another program probably keeps changing it.
    HostError { operation: "keep", object, value: Some(value.trim().to_owned()), errno: Errno::EBUSY }
}

/// Returns the knob table's row of a file, and the device.
fn row(knob: &str, file: &str, device: Option<&str>) -> Option<(&'static File, Option<Device>)> {
    let row = KnobId::from_name(knob)?.row();
    let files = [Version::V1, Version::V2].into_iter().filter_map(|version| row.file(version));
    let file = files.into_iter().find(|row| row.name == file)?;
    Some((file, device.and_then(|device| device.parse().ok())))
}

/// Whether the file already has the original value; compares values, not text.
fn same(knob: &str, file: &str, device: Option<&str>, now: &str, value: &str) -> bool {
    let Some((file, device)) = row(knob, file, device) else { return now.trim() == value.trim() };
    let original = file.parse(value, device);
    original.is_ok() && original == file.parse(now, device)
}

/// Whether the file still has a value to restore: a device's line exists only as long as the device.
fn has_value(knob: &str, file: &str, device: Option<&str>, now: &str) -> bool {
    let Some((file, device)) = row(knob, file, device) else { return true };
    match device {
        Some(_) => file.parse(now, device) != file.parse("", device),
        None => true,
    }
}
