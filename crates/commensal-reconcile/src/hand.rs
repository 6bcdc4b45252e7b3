//! Puts a value into a setting of a cgroup. Apply, taking back, restore and the safe state all write through [`put`], so
//! what counts as held, gone or refused is decided here alone.

use crate::journal::{Original, Target};
use commensal_core::errno::Errno;
use commensal_core::knob::{File, KnobId, Value, Version};
use commensal_core::topology::Device;
use commensal_host::{Dir, Host, HostError, below};
use std::path::Path;

/// One setting of a cgroup: the file of a knob and, for a file with a line per device, the device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    pub knob: KnobId,
    pub file: &'static File,
    pub device: Option<Device>,
}

/// What became of a value.
#[derive(Debug)]
pub(crate) enum Put {
    /// The file had the value already.
    Held(Value),
    /// The value was written, and the file reads this.
    Written(Value),
    /// The kernel accepted the value, and the file reads another one: another program probably keeps changing it.
    NotTaken(Value),
    /// The kernel accepted the value, and the file cannot be read back.
    Unread(String),
    /// The cgroup, the file or the device is gone, and with it whatever there was to change.
    Gone(HostError),
    /// The kernel refused the value.
    Refused(HostError),
    /// The file has no text for the value: a bug in commensal, or a record that it has not written.
    Unwritable(String),
}

impl Slot {
    /// Returns the setting that a record names, and the recorded value.
    ///
    /// # Errors
    /// Returns the reason if commensal cannot have written such a record.
    pub fn of(record: &Original) -> Result<(Slot, Value), String> {
        let knob = KnobId::from_name(&record.knob).ok_or("no setting of this name is known")?;
        let mut files = [Version::V1, Version::V2].into_iter().filter_map(|version| knob.row().file(version));
        let file = files.find(|one| one.name == record.file).ok_or("the setting has another file")?;
        let device = record.device.as_deref().map(str::parse).transpose();
        let device = device.map_err(|_| "no device has this number")?;
        let value = file.parse(&record.value, device).map_err(|error| error.to_string())?;
        Ok((Slot { knob, file, device }, value))
    }

    /// The value in the file.
    pub fn read(&self, host: &mut dyn Host, dir: Dir) -> Result<Value, String> {
        let text = host.read(dir, self.file.name).map_err(|error| error.to_string())?;
        self.file.parse(&text, self.device).map_err(|error| error.to_string())
    }

    /// Whether a file that reads `now` has the value already. A limit that the kernel rounds is compared exactly, so that
    /// a small change of it is written.
    pub fn has(&self, now: &Value, value: &Value) -> bool {
        now == value || *now == self.file.normalise(value)
    }

    /// Whether the file has something to change: a device's line exists only as long as the device.
    fn exists(&self, now: &Value) -> bool {
        self.device.is_none() || self.file.parse("", self.device).ok().as_ref() != Some(now)
    }
}

/// Writes a value into the open group, unless it is there already, and reads it back. A value may be in force although
/// its write returned an error; it then counts as written.
pub(crate) fn put(host: &mut dyn Host, dir: Dir, slot: &Slot, value: &Value) -> Put {
    let file = slot.file;
    let text = host.read(dir, file.name).unwrap_or_default();
    if let Ok(now) = file.parse(&text, slot.device)
        && slot.has(&now, value)
    {
        return Put::Held(now);
    }
    let text = match file.encode_over(&text, value, slot.device) {
        Ok(text) => text,
        Err(error) => return Put::Unwritable(error.to_string()),
    };
    let written = host.write(dir, file.name, &text);
    match (written, slot.read(host, dir)) {
        (_, Ok(now)) if file.holds(&now, value) => Put::Written(now),
        (Ok(()), Ok(now)) => Put::NotTaken(now),
        (Ok(()), Err(because)) => Put::Unread(because),
        (Err(error), Ok(now)) if is_gone(&error) && slot.exists(&now) => Put::Refused(error),
        (Err(error), _) if is_gone(&error) => Put::Gone(error),
        (Err(error), _) => Put::Refused(error),
    }
}

/// Whether an error means that a cgroup, a file in it or a device no longer exists.
pub(crate) fn is_gone(error: &HostError) -> bool {
    matches!(error.errno, Errno::ENOENT | Errno::ENODEV)
}

/// Opens the cgroup if it is still the same one, by its inode; `None` if it is gone.
pub(crate) fn open(host: &mut dyn Host, group: &Target) -> Result<Option<Dir>, HostError> {
    match host.open(&below(Path::new(&group.mount), &group.path)) {
        Ok(dir) if dir.inode == group.inode => Ok(Some(dir)),
        Ok(dir) => {
            host.close(dir);
            Ok(None)
        }
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
