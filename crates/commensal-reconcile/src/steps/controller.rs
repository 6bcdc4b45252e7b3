//! cgroup v2 controllers, which are enabled for the children of a group.

use super::kind::{Facts, Kind, Rank};
use crate::drivers::apply::{Refusal, Work, host_error};
use crate::journal::{Enabling, Journal, Mounts, Record, Target, fits};
use crate::marks;
use crate::restore::{Inside, Left, Undo, Undone, not_taken, proof, target};
use commensal_core::actual::CgroupRef;
use commensal_core::errno::Errno;
use commensal_core::knob::{Controller, Form, KnobId, TABLE, Version};
use commensal_core::text::visible;
use commensal_host::{Dir, Host, HostError};
use std::path::Path;

/// The file with the controllers that the children of a group have.
const FILE: &str = "cgroup.subtree_control";

impl Work<'_> {
    /// Returns the record that a controller is enabled for the children of a group; `None` if the group no longer exists.
    pub(super) fn enabling(&mut self, place: &CgroupRef, controller: Controller) -> Option<Record> {
        let dir = self.dir(place).ok()?;
        let (group, controller) = (self.target(place, dir), controller.v2_name().to_owned());
        Some(Record::Enabling(Enabling { group, controller }))
    }

    /// Returns records of the v2 controllers in parent groups that this knob needs and that another instance of
    /// commensal has enabled. The instance that is restored last disables these controllers.
    pub(super) fn enabled_by_others(
        &mut self,
        place: &CgroupRef,
        knob: KnobId,
        journal: &Journal,
    ) -> Vec<Record> {
        let mut records = Vec::new();
        for path in place.path.ancestors() {
            let above = CgroupRef { hierarchy: place.hierarchy, path };
            let Ok(dir) = self.dir(&above) else { continue };
            let Some(record) = self.enabling(&above, knob.row().controller) else { continue };
            let mark = marks::of(self.host, dir, &record).ok().flatten();
            let by_other = mark.is_some_and(|mark| Path::new(&mark.owner) != journal.state_dir());
            records.extend(Some(record).filter(|record| by_other && !journal.has(record)));
        }
        records
    }

    /// Enables (`+`) or disables (`-`) a controller for the children of a group.
    pub(super) fn subtree(
        &mut self,
        place: &CgroupRef,
        sign: char,
        controller: Controller,
    ) -> Result<(), Refusal> {
        let dir = self.dir(place)?;
        let value = format!("{sign}{controller}");
        let written = self.host.write(dir, FILE, &value);
        let read = self.host.read(dir, FILE);
        let names = |read: &str| read.split_whitespace().any(|name| name == controller.v2_name());
        let done = read.as_ref().is_ok_and(|read| names(read) == (sign == '+'));
        // The value may be in force although the kernel returned an error.
        written.or_else(|error| if done { Ok(()) } else { Err(error) }).map_err(|error| {
            match (sign, error.errno) {
                ('+', Errno::EBUSY) => {
                    Refusal::Internal { place: self.actual.show(place), controller, error }
                }
                _ => host_error(error, None),
            }
        })?;
        let place = self.actual.show(place);
        let read = match read {
            Ok(read) => read,
            Err(error) => return Err(Refusal::Unread { place, file: FILE, because: error.to_string() }),
        };
        match done {
            true => Ok(()),
            false => Err(Refusal::ReadBack { place, file: FILE, want: value, read: read.trim().to_owned() }),
        }
    }
}

impl Kind for Enabling {
    fn facts(&self) -> Facts<'_> {
        Facts { rank: Rank::Controllers, group: Some(&self.group), proof: true }
    }

    fn words(&self) -> String {
        format!("{} was enabled in {}", visible(&self.controller), self.group.shown())
    }

    fn objection(&self, _: &Mounts) -> Option<String> {
        let name = &self.controller;
        fits::place(&self.group).or_else(|| {
            let known = Controller::from_name(name, Version::V2).is_some();
            (!known).then(|| format!("commensal never enables a controller {name:?}"))
        })
    }

    fn mark(&self) -> Option<(&Target, String)> {
        Some((&self.group, format!("enabling.{}", self.controller)))
    }

    /// Disables the controller, unless a child group uses it.
    fn undo(&self, host: &mut dyn Host, undo: &mut Undo<'_>) -> Undone {
        let Some(dir) = target::open(host, &self.group)? else { return Ok(None) };
        let disabled = self.disable(host, undo, dir);
        host.close(dir);
        match disabled {
            // The line about the group below says why.
            Err(Left::Busy(_)) if undo.remains.is_any_in(&self.group) => Err(Left::Waits),
            // Another program has begun to use a controller that a lab run enabled: it stays enabled.
            Err(Left::Busy(line)) if undo.inside == Inside::Ends => Ok(Some(line)),
            done => done,
        }
    }
}

impl Enabling {
    fn disable(&self, host: &mut dyn Host, undo: &Undo<'_>, dir: Dir) -> Undone {
        let controller = &self.controller;
        let is_enabled = |host: &mut dyn Host| -> Result<bool, HostError> {
            let enabled = host.read(dir, FILE)?;
            Ok(enabled.split_whitespace().any(|name| name == controller))
        };
        if !is_enabled(host).unwrap_or_default() {
            return Ok(None);
        }
        let shown = self.group.shown();
        let what = format!("{controller} stays enabled in {shown}");
        proof::of_change(host, undo.owners, dir, &Record::Enabling(self.clone()), &what)?;
        if let Some(user) = user_of(host, dir, controller) {
            return Err(Left::Busy(format!("{what}: group {} uses it", visible(&user))));
        }
        let off = format!("-{controller}");
        let written = host.write(dir, FILE, &off).and_then(|()| match is_enabled(host)? {
            true => Err(not_taken(format!("{shown}/{FILE}"), &off)),
            false => Ok(()),
        });
        match written {
            Ok(()) => Ok(Some(format!("disabled {controller} in {shown}"))),
            Err(error) if error.errno == Errno::EBUSY && error.operation == "write" => {
                Err(Left::Busy(format!("{what}: a group below enables it as well ({error})")))
            }
            Err(error) => Err(Left::Failed(error)),
        }
    }
}

/// Returns a child group whose value of this controller is not the default. Disabling the controller would lose this
/// value.
fn user_of(host: &mut dyn Host, dir: Dir, controller: &str) -> Option<String> {
    let controller = Controller::from_name(controller, Version::V2)?;
    let files: Vec<_> =
        TABLE.iter().filter(|row| row.controller == controller).filter_map(|row| row.v2).collect();
    for name in host.children(dir).unwrap_or_default() {
        let Ok(child) = host.open_child(dir, &name) else { continue };
        let changed = files.iter().any(|file| {
            let text = host.read(child, file.name).unwrap_or_default();
            let text = text.trim();
            let default = if file.per_device() { "" } else { file.default };
            !matches!(file.form, Form::Trigger | Form::Opaque) && !text.is_empty() && text != default
        });
        host.close(child);
        if changed {
            return Some(name);
        }
    }
    None
}
