//! Sets levels (`cpu.qos_level` of openEuler's kernel), and undoes them. The kernel does not allow a level to be raised
//! again, so undoing a level moves the members to a fresh group that replaces the old one.

use super::kind::{Facts, Kind, Rank};
use crate::drivers::apply::{Applied, Refusal, Work, host_error};
use crate::drivers::{level, recreate};
use crate::journal::{Journal, Mounts, Record, Recreating, fits};
use crate::restore::{Left, Undo, Undone};
use commensal_core::actual::{CgroupPath, CgroupRef};
use commensal_core::knob::{KnobId, Value};
use commensal_host::Host;

impl Work<'_> {
    /// Writes a level, after recording the scheduling attributes that the kernel will change in the members. At a level
    /// above 0 a thread may have any attributes, so this function restores them at once.
    pub(super) fn set_level(
        &mut self,
        place: &CgroupRef,
        knob: KnobId,
        to: &Value,
        journal: &mut Journal,
    ) -> Result<(), Refusal> {
        self.record_members(place, journal)?;
        let written = self.write(place, (knob, None), to);
        // Uses what the file reads now, because the kernel may have changed the written value.
        let dir = self.dir(place)?;
        if level::of(self.host, dir).is_some_and(|now| now > 0) {
            for member in journal.of_members() {
                // Attributes that the kernel refuses now are tried again at the end of the plan, which then reports a
                // refusal.
                let _ = level::put_back(self.host, &self.actual.hierarchies, &member);
            }
        }
        written
    }

    /// Moves the members to a fresh group. The journal gets a record first, so that an interrupted replacement can be
    /// completed later.
    pub(super) fn recreate(
        &mut self,
        place: &CgroupRef,
        knob: KnobId,
        to: &Value,
        journal: &mut Journal,
    ) -> Result<(), Refusal> {
        let dir = self.dir(place)?;
        let (mount, target) = (self.mount(place), self.target(place, dir));
        journal.append(self.host, &[Record::Recreating(Recreating(target))])?;
        // Open directories of the group and of groups below it will be those of removed groups.
        let stale = self
            .dirs
            .keys()
            .filter(|open| open.hierarchy == place.hierarchy && place.path.contains(&open.path));
        for open in stale.cloned().collect::<Vec<_>>() {
            if let Some(dir) = self.dirs.remove(&open) {
                self.host.close(dir);
            }
        }
        let recreated = recreate::recreate(self.host, &mount, place.path.as_str(), &self.kept)
            .map_err(|error| host_error(error, Some(knob)))?;
        for group in &recreated {
            let place = CgroupRef { hierarchy: place.hierarchy, path: CgroupPath::new(&group.path) };
            self.recreated.insert(place, group.new);
        }
        journal.recreated(self.host, &mount, &recreated)?;
        let file = self.file(place, knob)?;
        let dir = self.dir(place)?;
        let read = self.host.read(dir, file.name).map_err(|error| host_error(error, Some(knob)))?;
        let (place, want, read) = (self.actual.show(place), to.to_string(), read.trim().to_owned());
        if read != want {
            return Err(Refusal::ReadBack { place, file: file.name, want, read });
        }
        self.outcome.applied.push(Applied { place, file: file.name, want, read });
        Ok(())
    }
}

impl Kind for Recreating {
    fn facts(&self) -> Facts<'_> {
        Facts { rank: Rank::Values, group: None, proof: false }
    }

    fn words(&self) -> String {
        format!("{} is about to be replaced by a fresh group", self.0.shown())
    }

    fn objection(&self, _: &Mounts) -> Option<String> {
        fits::place(&self.0)
    }

    /// `restore` completes replacements before it undoes anything; a record that is still one says why elsewhere.
    fn undo(&self, _: &mut dyn Host, _: &mut Undo<'_>) -> Undone {
        Err(Left::Waits)
    }
}
