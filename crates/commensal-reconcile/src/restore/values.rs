//! One value goes back to its original, and is read back.

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
        // A group, file or device that is gone is answered so, and has nothing to put back; one that is there has.
        (Err(error), now) if matches!(error.errno, Errno::ENODEV | Errno::ENOENT) => {
            match now.is_ok_and(|now| has_value(knob, file, device, &now)) {
                true => Err(Left::Failed(error)),
                false => Ok(None),
            }
        }
        (Err(error), _) => Err(Left::Failed(error)),
    }
}

/// The kernel took a value, and the file reads another.
pub(super) fn not_taken(object: String, value: &str) -> HostError {
    // The number for what somebody else keeps from being changed.
    HostError { operation: "keep", object, value: Some(value.trim().to_owned()), errno: Errno::EBUSY }
}

/// The row of a knob's file, and the device.
fn row(knob: &str, file: &str, device: Option<&str>) -> Option<(&'static File, Option<Device>)> {
    let row = KnobId::from_name(knob)?.row();
    let files = [Version::V1, Version::V2].into_iter().filter_map(|version| row.file(version));
    let file = files.into_iter().find(|row| row.name == file)?;
    Some((file, device.and_then(|device| device.parse().ok())))
}

/// Whether the file already holds the original, compared as values.
fn same(knob: &str, file: &str, device: Option<&str>, now: &str, value: &str) -> bool {
    let Some((file, device)) = row(knob, file, device) else { return now.trim() == value.trim() };
    let original = file.parse(value, device);
    original.is_ok() && original == file.parse(now, device)
}

/// Whether the file has something to be put back: what is for a device has a line only as long as the device is there.
fn has_value(knob: &str, file: &str, device: Option<&str>, now: &str) -> bool {
    let Some((file, device)) = row(knob, file, device) else { return true };
    match device {
        Some(_) => file.parse(now, device) != file.parse("", device),
        None => true,
    }
}
