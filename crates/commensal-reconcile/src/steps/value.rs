//! Values of settings: originals, which `restore` puts back, and safe values, which are in force when no agent runs.

use super::kind::{Facts, Kind, Rank};
use super::recreate;
use crate::agent_lock::lives;
use crate::drivers::apply::{Applied, Refusal, Work, host_error};
use crate::drivers::original_text;
use crate::hand::{self, Put, Slot};
use crate::journal::{Journal, Mounts, Original, Record, Safe, Target, fits};
use crate::marks;
use crate::restore::{Left, Undo, Undone, lost, not_taken, shared, target};
use commensal_core::actual::{ActualState, CgroupRef, Ours};
use commensal_core::errno::Errno;
use commensal_core::knob::{File, Form, KnobId, KnobStatus, Value, Version};
use commensal_core::plan::WrittenSetting;
use commensal_core::text::{self, visible};
use commensal_core::topology::Device;
use commensal_host::{Dir, Host, HostError, below};
use std::collections::BTreeSet;
use std::path::Path;

/// A setting of a plan.
pub(crate) type Setting = (CgroupRef, KnobId, Option<Device>);

impl Work<'_> {
    /// Puts one value into a group.
    pub(crate) fn write(
        &mut self,
        place: &CgroupRef,
        (knob, device): (KnobId, Option<Device>),
        to: &Value,
    ) -> Result<(), Refusal> {
        let dir = self.dir(place)?;
        let slot = Slot { knob, file: self.file(place, knob)?, device };
        let (put, place) = (hand::put(self.host, dir, &slot, to), self.actual.show(place));
        let (file, want) = (slot.file.name, to.to_string());
        let read = match put {
            Put::Held(read) | Put::Written(read) => read.to_string(),
            Put::NotTaken(read) => {
                return Err(Refusal::ReadBack { place, file, want, read: read.to_string() });
            }
            Put::Unread(because) => return Err(Refusal::Unread { place, file, because }),
            Put::Gone(error) | Put::Refused(error) => return Err(host_error(error, Some(knob))),
            Put::Unwritable(why) => return Err(Refusal::Plan(why)),
        };
        self.outcome.applied.push(Applied { place, file, want, read });
        Ok(())
    }

    /// Returns the record of a setting that has its old value; `None` if the group no longer exists.
    pub(super) fn original(&mut self, place: &CgroupRef, written: WrittenSetting<'_>) -> Option<Record> {
        let WrittenSetting { knob, device, from, .. } = written;
        let (dir, file) = (self.dir(place).ok()?, self.file(place, knob).ok()?);
        let value = file.encode(from, device).unwrap_or_default();
        Some(Record::Original(self.of_setting((place, dir), (knob, file), device, value)))
    }

    fn of_setting(
        &self,
        (place, dir): (&CgroupRef, Dir),
        (knob, file): (KnobId, &File),
        device: Option<Device>,
        value: String,
    ) -> Original {
        let (knob, file) = (knob.to_string(), file.name.to_owned());
        let device = device.map(|device| device.to_string());
        Original { group: self.target(place, dir), knob, file, device, value }
    }

    /// Returns the records that are needed before a setting is written for the first time. `seen` are the settings that
    /// have their records.
    pub(super) fn before_write(
        &mut self,
        place: &CgroupRef,
        WrittenSetting { knob, device, to, .. }: WrittenSetting<'_>,
        seen: &mut BTreeSet<Setting>,
        journal: &Journal,
    ) -> Result<Vec<Record>, Refusal> {
        let mut records = Vec::new();
        let dir = self.dir(place)?;
        if seen.insert((place.clone(), knob, device)) {
            let record = self.before_first_write((place, dir), (knob, device), journal)?;
            if record.is_some() {
                records.extend(self.enabled_by_others(place, knob, journal));
            }
            records.extend(record);
        }
        // The kernel discards the weight when a group becomes idle. A plan therefore writes the default weight first,
        // which journals the old one. If that write was refused and is left out now, the old weight would be lost, so it
        // is journalled here.
        let weight = (place.clone(), KnobId::CpuWeight, None);
        if knob == KnobId::CpuIdle && *to == Value::Number(1) && !seen.contains(&weight) {
            let record = self.before_first_write((place, dir), (KnobId::CpuWeight, None), journal)?;
            let default = self.file(place, KnobId::CpuWeight)?.default;
            let differs = |one: &Record| !matches!(one, Record::Original(one) if one.value == default);
            if let Some(record) = record.filter(differs) {
                records.push(record);
                seen.insert(weight);
            }
        }
        Ok(records)
    }

    /// Returns the record of a setting's value before its first write; `None` if the original is recorded already.
    fn before_first_write(
        &mut self,
        (place, dir): (&CgroupRef, Dir),
        (knob, device): (KnobId, Option<Device>),
        journal: &Journal,
    ) -> Result<Option<Record>, Refusal> {
        let file = self.file(place, knob)?;
        let setting = self.of_setting((place, dir), (knob, file), device, String::new());
        let with = |value: String| Record::Original(Original { value, ..setting.clone() });
        let subject = with(String::new());
        let known = journal.has(&subject);
        // A value that another instance of commensal has written is not an original: that instance's mark has the value
        // from before its write.
        let mark = match marks::of(self.host, dir, &subject) {
            // The journal has the original as well, so the damaged copy is replaced.
            Err(error) if known && marks::is_damaged(&error) => {
                journal.mark_first(self.host, &subject);
                None
            }
            mark => mark.map_err(|error| host_error(error, Some(knob)))?,
        };
        let other = mark.as_ref().filter(|mark| Path::new(&mark.owner) != journal.state_dir());
        if let Some(other) = other.filter(|other| lives(self.host, &other.owner)) {
            let (place, owner) = (self.actual.show(place), other.owner.clone());
            return Err(Refusal::Claimed { place, file: file.name, owner });
        }
        let told = mark.as_ref().and_then(|mark| match &mark.record {
            Record::Original(Original { value, .. }) if file.parse(value, device).is_ok() => {
                Some(value.clone())
            }
            _ => None,
        });
        match (known, told) {
            (true, Some(value)) if other.is_some() => journal.mark(self.host, &with(value)),
            // Undoing this level replaces the group, which requires the mark. A crash after the record was written may
            // have prevented the mark.
            (true, None) if knob == KnobId::CpuQosLevel => journal.mark_first(self.host, &subject),
            (true, _) => {}
            (false, Some(value)) => return Ok(Some(with(value))),
            (false, None) => {
                let is_fresh = self.enables(place, knob);
                return Ok(Some(with(self.value_now(dir, (knob, file), device, is_fresh)?)));
            }
        }
        Ok(None)
    }

    /// Returns the text to write later to restore the knob's current value. `is_fresh`: the plan enables the knob's
    /// controller for this group, so the file may not exist yet, and gets the kernel's default when it appears.
    fn value_now(
        &mut self,
        dir: Dir,
        (knob, file): (KnobId, &File),
        device: Option<Device>,
        is_fresh: bool,
    ) -> Result<String, Refusal> {
        let text = match original_text(self.host, dir, (knob, file)) {
            Err(error) if error.errno == Errno::ENOENT && is_fresh => file.default.to_owned(),
            read => read.map_err(|error| host_error(error, Some(knob)))?,
        };
        let value = file.parse(&text, device).map_err(|error| Refusal::Plan(error.to_string()))?;
        file.encode(&value, device).map_err(|error| Refusal::Plan(error.to_string()))
    }
}

impl Kind for Original {
    fn facts(&self) -> Facts<'_> {
        // Undoing a level replaces the group.
        let proof = self.knob == KnobId::CpuQosLevel.to_string();
        Facts { rank: Rank::Values, group: Some(&self.group), proof }
    }

    fn words(&self) -> String {
        self.describe("was")
    }

    fn objection(&self, mounts: &Mounts) -> Option<String> {
        fits::place(&self.group).or_else(|| self.check(mounts))
    }

    fn mark(&self) -> Option<(&Target, String)> {
        Some((&self.group, self.attribute("original")))
    }

    fn subject(&self) -> Option<Record> {
        Some(Record::Original(Original { value: String::new(), ..self.clone() }))
    }

    fn claim(&self, actual: &ActualState, ours: &mut Ours) {
        if let (Some(place), Ok((slot, value))) = (self.group.find(actual), Slot::of(self)) {
            ours.originals.insert((place, slot.knob, slot.device), value);
        }
    }

    /// Restores the value, unless other groups still depend on the present value.
    fn undo(&self, host: &mut dyn Host, undo: &mut Undo<'_>) -> Undone {
        let Original { group, knob, file, value, .. } = self;
        match KnobId::from_name(knob) {
            Some(KnobId::IoCostQos) => {
                if let Some(user) = shared::user(host, KnobId::IoWeight, &|path| undo.has_within(path)) {
                    return Err(Left::Busy(format!(
                        "{file} stays as it is: {user} has an io.weight that commensal did not set and that may depend on this file"
                    )));
                }
            }
            Some(KnobId::CpuBvtWarpNs) => {
                if let Some(dir) = target::open(host, group)? {
                    let written = self.copies_back(host, dir, &|path| undo.known.contains(path));
                    host.close(dir);
                    undo.result.done.extend(written?);
                }
            }
            _ => {}
        }
        if let Some(other) = lost::kept_by_another(host, undo.journal, self) {
            return Ok(Some(format!(
                "{} is left to the commensal whose state is in {other}, which restores it",
                self.shown()
            )));
        }
        let recreated = (group, file.as_str(), value.as_str());
        // An attempt that the kernel refused half way may have left the members in a fresh group, without the old group.
        if recreate::is_half_done(host, self) {
            return recreate::restore_by_recreating(host, undo, recreated);
        }
        match self.put_back(host) {
            Err(Left::Failed(error)) if knob == "cpu.qos_level" && error.errno == Errno::EINVAL => {
                match recreate::level_above(host, group) {
                    // The group inherits its level from a group above that will be undone as well. This record is tried
                    // again after that.
                    Some(_) if self.has_level_above(&undo.contents.records) => Err(Left::Failed(error)),
                    _ => recreate::restore_by_recreating(host, undo, recreated),
                }
            }
            Err(Left::Failed(error))
                if *knob == KnobId::CpuWeight.to_string()
                    && error.errno == Errno::EINVAL
                    && !undo.idle.contains(group)
                    && self.end_idle(host, undo)? =>
            {
                self.put_back(host)
            }
            back => back,
        }
    }
}

impl Original {
    /// The kernel file, for people.
    pub(crate) fn shown(&self) -> String {
        text::path(&self.group.place().join(&self.file))
    }

    /// Describes the setting, such as `/sys/fs/cgroup/cpu/a/cpu.shares was 1024`.
    fn describe(&self, verb: &str) -> String {
        let Original { group, file, device, value, .. } = self;
        let device = device.iter().map(|device| format!(" for {}", visible(device))).collect::<String>();
        let value =
            if value.trim().is_empty() { "empty".to_owned() } else { visible(value.trim()).into_owned() };
        format!("{}/{}{device} {verb} {value}", group.shown(), visible(file))
    }

    fn attribute(&self, kind: &str) -> String {
        match &self.device {
            Some(device) => format!("{kind}.{}@{device}", self.knob),
            None => format!("{kind}.{}", self.knob),
        }
    }

    /// Checks the setting: the file must belong to the knob, and the value must be a text that commensal writes to restore
    /// it (see `Work::value_now`).
    fn check(&self, mounts: &Mounts) -> Option<String> {
        let Original { group, knob, file, device, value } = self;
        let row = KnobId::from_name(knob).map(KnobId::row).filter(|row| row.status == KnobStatus::Driven);
        let Some(row) = row else { return Some(format!("commensal never writes a setting {knob:?}")) };
        let version = mounts.get(&group.mount).copied().flatten();
        let versions = [Version::V1, Version::V2].into_iter();
        let mut files = versions.filter(|one| version.is_none_or(|here| here == *one));
        let Some(of_row) = files.find_map(|one| row.file(one).filter(|of_row| of_row.name == file)) else {
            return Some(format!("{file:?} is not the file of {knob}"));
        };
        let parsed = device.as_deref().map(str::parse::<Device>).transpose();
        match parsed {
            Ok(device) if device.is_some() == of_row.per_device() => {
                (!is_written(of_row, device, value)).then(|| format!("{file} cannot have been {value:?}"))
            }
            _ => Some(format!("{:?} is not a device of {file}", device.as_deref())),
        }
    }

    fn put_back(&self, host: &mut dyn Host) -> Undone {
        let Some(dir) = target::open(host, &self.group)? else { return Ok(None) };
        let put = self.put_in(host, dir, &self.shown());
        host.close(dir);
        Ok(put?)
    }

    /// Puts the value into an open group. `shown` is the path of its file, for people. Returns a description, or `None` if
    /// there was nothing to do.
    fn put_in(&self, host: &mut dyn Host, dir: Dir, shown: &str) -> Result<Option<String>, HostError> {
        let value = self.value.trim();
        // The record was checked when it was read (`Kind::objection`), so this is a bug in commensal.
        let wrong = |why: String| {
            let (object, value) = (format!("{shown} ({why})"), Some(value.to_owned()));
            HostError { operation: "restore", object, value, errno: Errno::EINVAL }
        };
        let (slot, original) = Slot::of(self).map_err(wrong)?;
        match hand::put(host, dir, &slot, &original) {
            Put::Held(_) | Put::Gone(_) => Ok(None),
            Put::Written(_) => Ok(Some(format!("{shown} is {value} again"))),
            Put::Unread(why) => Ok(Some(format!("{shown} was written, but cannot be read back: {why}"))),
            Put::NotTaken(_) => Err(not_taken(shown.to_owned(), value)),
            Put::Refused(error) => Err(error),
            Put::Unwritable(why) => Err(wrong(why)),
        }
    }

    /// Puts an identity (`cpu.bvt_warp_ns`) into the groups that copied the present one: groups that were created below the
    /// group after a write have inherited the value that is about to be replaced, so they get the original first. `known`
    /// returns, for a path below the mount point, whether the group has a record. Returns one message per value written.
    fn copies_back(
        &self,
        host: &mut dyn Host,
        dir: Dir,
        known: &dyn Fn(&str) -> bool,
    ) -> Result<Vec<String>, HostError> {
        let Original { group, file, value, .. } = self;
        let now = host.read(dir, file)?;
        let (mut done, mut failed) = (Vec::new(), None);
        if now.trim() == value.trim() {
            return Ok(done);
        }
        shared::below(host, dir, &group.path, &mut |host, child, path| {
            if known(path) || host.read(child, file).map_or(true, |held| held.trim() != now.trim()) {
                return false;
            }
            let shown = text::path(&below(Path::new(&group.mount), path).join(file));
            match self.put_in(host, child, &shown) {
                Ok(line) => {
                    done.extend(line.map(|line| format!("{line}, copied from {}", visible(&group.path))));
                }
                Err(error) => failed = Some(error),
            }
            failed.is_some()
        });
        failed.map_or(Ok(done), Err)
    }

    /// Whether the journal has the original level of a group above this one.
    fn has_level_above(&self, records: &[Record]) -> bool {
        records.iter().any(|record| match record {
            Record::Original(Original { group: above, knob, .. }) if knob == "cpu.qos_level" => {
                let inside = self.group.path.strip_prefix(&above.path);
                above.mount == self.group.mount && inside.is_some_and(|rest| rest.starts_with('/'))
            }
            _ => false,
        })
    }

    /// Ends `cpu.idle` of a group whose weight cannot be restored because the group is idle (EINVAL), although no readable
    /// record contains its original `cpu.idle` (that record is damaged or torn). The group was not idle when its weight
    /// was recorded, because commensal records a weight other than the default only while it can be written. The group
    /// became idle later, by commensal unless the group's owner uses `cpu.idle` since. The recorded weight is certainly
    /// the owner's, so it takes precedence. Returns whether the group was idle and no longer is.
    fn end_idle(&self, host: &mut dyn Host, undo: &mut Undo<'_>) -> Result<bool, Left> {
        let knob = KnobId::CpuIdle;
        let file = knob.row().v2.map(|file| file.name.to_owned()).unwrap_or_default();
        let idle = Original { knob: knob.to_string(), file, value: "0".to_owned(), ..self.clone() };
        let ended = idle.put_back(host)?;
        let why = "because the record of its original value cannot be read";
        undo.result.done.extend(ended.iter().map(|line| format!("{line}, {why}")));
        Ok(ended.is_some())
    }
}

fn is_written(file: &File, device: Option<Device>, value: &str) -> bool {
    if let Form::Word(words) = file.form
        && !words.contains(&value)
    {
        return false;
    }
    let parsed = file.parse(value, device);
    parsed.and_then(|parsed| file.encode(&parsed, device)).is_ok_and(|text| text == value)
}

impl Kind for Safe {
    fn facts(&self) -> Facts<'_> {
        // Obsolete once the original is restored.
        Facts { rank: Rank::First, group: None, proof: false }
    }

    fn words(&self) -> String {
        self.setting.describe("without an agent must be")
    }

    fn objection(&self, mounts: &Mounts) -> Option<String> {
        self.setting.objection(mounts)
    }

    fn mark(&self) -> Option<(&Target, String)> {
        Some((&self.setting.group, self.setting.attribute("safe")))
    }

    fn undo(&self, _: &mut dyn Host, _: &mut Undo<'_>) -> Undone {
        // The record of the original value says what to put back.
        Ok(None)
    }
}
