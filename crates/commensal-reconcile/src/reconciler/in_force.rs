//! The values that groups want and that are in force, whoever wrote them, and cheap checks whether they still are.

use super::steps::key_of;
use crate::request::Planned;
use commensal_core::actual::{ActualState, Hierarchy, SettingRef};
use commensal_core::cpuset::CpuSet;
use commensal_core::drift::{self, SettingKey};
use commensal_core::errno::Errno;
use commensal_core::knob::{KnobId, Value, Version};
use commensal_core::plan::{Step, WrittenSetting};
use commensal_host::{Dir, FolderEvent, For, GroupWatch, Host, HostError, below};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::path::Path;

/// Number of checks after which every value in force has been read once.
const PARTS: usize = 5;
/// Maximum number of values read per check if the kernel reports every write (inotify). Reading them finds values that
/// changed without a write.
const UNTOLD: usize = 8;

/// A cgroup by its hierarchy and inode.
type At = (usize, u64);

#[derive(Debug, Clone, Copy)]
struct Watched {
    dir: Dir,
    /// Number of the watch that reports writes to the cgroup's files.
    told: Option<i32>,
}

/// The values in force, as the kernel reads them back.
#[derive(Debug, Default)]
pub(super) struct InForce {
    values: BTreeMap<SettingKey, Value>,
    /// Open handles of the cgroups that have these values.
    watched: BTreeMap<At, Watched>,
    /// The value that is checked next; `None` for the first one.
    next: Option<SettingKey>,
    /// Reports writes to the files of the cgroups, if set.
    writes: Option<GroupWatch>,
    /// Why writes to the files of some cgroups are not reported.
    untold: Option<String>,
    /// The cgroup of each watch number.
    watches: HashMap<i32, At>,
    /// Cgroups to check in the next tick: their watch began, or a program wrote to their files, after their values were
    /// read.
    fresh: BTreeSet<At>,
    /// Cgroups to whose files a program has written since the last round.
    written: BTreeSet<At>,
    /// Whether events were lost since the last check.
    lost: bool,
    /// CPUs that exist and are offline.
    pub(super) offline: CpuSet,
}

/// Whether the kernel has changed a v1 cpuset from `want` to `found`. It only ever takes CPUs away: those that go offline
/// (`cpuset1_hotplug_update_tasks`, kernel/cgroup/cpuset-v1.c). They may be back online by now: `gone` has those that are
/// offline or that the kernel has taken out of another cpuset, and only the kernel leaves a cpuset without CPUs, or changes
/// one without a write that inotify reports (`untouched`).
fn is_taken_by_kernel((want, found): (&Value, &Value), gone: &CpuSet, untouched: bool) -> bool {
    let (Value::List(want), Value::List(found)) = (want, found) else { return false };
    let taken = want.difference(found);
    !taken.is_empty() && found.is_subset(want) && (found.is_empty() || taken.is_subset(gone) || untouched)
}

impl InForce {
    /// Subscribes to writes to the control files of the cgroups (inotify). `watch` must be empty. Without it, all values are
    /// read back in turns.
    pub(super) fn see_writes(&mut self, watch: Result<GroupWatch, HostError>) {
        match watch {
            Ok(watch) => self.writes = Some(watch),
            Err(error) => self.untold = Some(why_unwatched(&error)),
        }
    }

    /// Returns why writes to the files of some cgroups are not reported, so that they are seen late.
    pub(super) fn untold(&self) -> Option<&str> {
        self.untold.as_deref()
    }

    /// Records the value that a step has written; returns its key, or `None` if the step writes no value. A value that
    /// was put back to its original is no longer commensal's: its owner may change it.
    pub(super) fn written(&mut self, step: &Step, actual: &ActualState) -> Option<SettingKey> {
        let (key, WrittenSetting { to, .. }) = key_of(step, actual).zip(step.action.written())?;
        let setting = (step.place.clone(), key.knob, key.device);
        match actual.ours.originals.get(&setting) == Some(to) {
            true => self.values.remove(&key),
            false => self.values.insert(key.clone(), to.clone()),
        };
        Some(key)
    }

    /// Records values that were as wanted when they were read, so that no step has written them: an earlier agent,
    /// `apply` or another program did.
    pub(super) fn found(&mut self, held: &[SettingRef], actual: &ActualState) {
        for one in held {
            if let Some((key, value)) = key_at(one, actual) {
                self.values.insert(key, value.clone());
            }
        }
    }

    /// Reports values that differ from those in force to `drift`, and forgets values that no group wants any more.
    pub(super) fn find_drift(&mut self, now_ms: u64, planned: &Planned, drift: &mut drift::Table) {
        let actual = &planned.actual;
        let wanted = planned.plan.held.iter().chain(&planned.plan.missing);
        let wanted: BTreeSet<SettingKey> =
            wanted.filter_map(|setting| Some(key_at(setting, actual)?.0)).collect();
        self.values.retain(|key, _| wanted.contains(key));
        // A change that was answered long ago is forgotten first, so that a new one is corrected at once.
        drift.calm(now_ms, |_| true);
        let gone = self.emptied(actual).union(&self.offline);
        // What was written after its value was read is checked again: nobody else sees these events.
        let touched = self.touched();
        self.lost |= touched.is_none();
        self.fresh.extend(touched.iter().flatten());
        let written = touched.map(|touched| &touched | &std::mem::take(&mut self.written));
        let mut seen = BTreeSet::new();
        for (place, cgroup) in &actual.cgroups {
            let idle = cgroup.values.get(&(KnobId::CpuIdle, None)) == Some(&Value::Number(1));
            for ((knob, device), value) in cgroup.values.iter() {
                if idle && *knob == KnobId::CpuWeight {
                    // The value reads differently only because the group is idle, and the kernel refuses to write it
                    // until then.
                    continue;
                }
                let key = SettingKey {
                    hierarchy: place.hierarchy,
                    inode: cgroup.inode,
                    knob: *knob,
                    device: *device,
                };
                let Some(want) = self.values.get(&key) else { continue };
                if *knob == KnobId::CgroupFreeze && want != value && actual.frozen_by_scheduler(place) {
                    // The scheduler's guard freezes and thaws starving groups; that is not drift.
                    continue;
                }
                let told =
                    self.watched.get(&(key.hierarchy, key.inode)).is_some_and(|one| one.told.is_some());
                let untouched =
                    told && written.as_ref().is_some_and(|all| !all.contains(&(key.hierarchy, key.inode)));
                let version = actual.hierarchies.get(place.hierarchy).map(|one| one.version);
                let by_kernel = version == Some(Version::V1)
                    && *knob == KnobId::CpusetCpus
                    && is_taken_by_kernel((want, value), &gone, untouched);
                match (want == value, by_kernel) {
                    (true, _) => drift.answered(&key),
                    (false, true) => {
                        drift.changed_by_kernel(now_ms, key.clone(), knob.shown(want), knob.shown(value));
                    }
                    (false, false) => drift.changed(now_ms, key.clone(), knob.shown(want), knob.shown(value)),
                }
                seen.insert(key);
            }
        }
        // Values that are no longer checked are forgotten.
        self.values.retain(|key, _| seen.contains(key));
        drift.calm(now_ms, |key| seen.contains(key));
    }

    /// Returns the CPUs in force in the v1 cpusets that have none now. Only the kernel takes the last CPU out of a cpuset,
    /// and it takes the same CPU out of the cpusets above.
    fn emptied(&self, actual: &ActualState) -> CpuSet {
        let mut emptied = CpuSet::default();
        for (place, cgroup) in &actual.cgroups {
            let (hierarchy, inode) = (place.hierarchy, cgroup.inode);
            let key = SettingKey { hierarchy, inode, knob: KnobId::CpusetCpus, device: None };
            let found = cgroup.values.get(&(KnobId::CpusetCpus, None));
            if let (Some(Value::List(want)), Some(Value::List(found))) = (self.values.get(&key), found)
                && found.is_empty()
            {
                emptied = emptied.union(want);
            }
        }
        emptied
    }

    /// Whether all checked values are in force. Checks the values in cgroups whose files were written since the last
    /// check, and a different part of the other values each time. The next round finds changes that this check misses.
    pub(super) fn all_hold(&mut self, host: &mut dyn Host, hierarchies: &[Hierarchy]) -> bool {
        let Some(mut touched) = self.touched().filter(|_| !std::mem::take(&mut self.lost)) else {
            return false;
        };
        self.written.extend(&touched);
        touched.append(&mut self.fresh);
        let mut looked_at: Vec<(&SettingKey, &Value)> = Vec::new();
        if !touched.is_empty() {
            let of = |key: &SettingKey| touched.contains(&(key.hierarchy, key.inode));
            looked_at.extend(self.values.iter().filter(|(key, _)| of(key)));
        }
        let told = self.watched.values().all(|one| one.told.is_some());
        let part = self.values.len().div_ceil(PARTS).min(if told { UNTOLD } else { usize::MAX });
        let from = match self.next.take() {
            Some(next) => Bound::Included(next),
            None => Bound::Unbounded,
        };
        let mut rest = self.values.range((from, Bound::Unbounded));
        looked_at.extend(rest.by_ref().take(part));
        let next = rest.next().map(|(key, _)| key.clone());
        let same = looked_at.into_iter().all(|(key, want)| self.holds(host, hierarchies, key, want));
        self.next = next;
        same
    }

    fn holds(&self, host: &mut dyn Host, hierarchies: &[Hierarchy], key: &SettingKey, want: &Value) -> bool {
        let watched = self.watched.get(&(key.hierarchy, key.inode));
        let version = hierarchies.get(key.hierarchy).map(|one| one.version);
        let Some((at, file)) = watched.zip(version.and_then(|version| key.knob.row().file(version))) else {
            return false;
        };
        let read = host.read(at.dir, file.name);
        read.is_ok_and(|text| file.parse(&text, key.device).is_ok_and(|value| value == *want))
    }

    /// Returns the cgroups whose files were written since the last call, by any program; `None` if events were lost.
    fn touched(&self) -> Option<BTreeSet<At>> {
        let Some(watch) = &self.writes else { return Some(BTreeSet::new()) };
        let mut touched = BTreeSet::new();
        for seen in watch.seen().ok()? {
            match seen {
                FolderEvent::Touched(number, _) => touched.extend(self.watches.get(&number)),
                FolderEvent::Lost => return None,
                FolderEvent::Made(..) | FolderEvent::Gone(..) => {}
            }
        }
        Some(touched)
    }

    /// Opens and watches the cgroups of the values in force, and closes all others.
    pub(super) fn watch(&mut self, host: &mut dyn Host, actual: &ActualState) {
        let wanted: BTreeSet<At> = self.values.keys().map(|key| (key.hierarchy, key.inode)).collect();
        let gone: Vec<At> = self.watched.keys().filter(|place| !wanted.contains(place)).copied().collect();
        for place in gone {
            let Some(Watched { dir, told }) = self.watched.remove(&place) else { continue };
            host.close(dir);
            if let Some((watch, number)) = self.writes.as_ref().zip(told) {
                watch.remove(number);
                self.watches.remove(&number);
            }
        }
        if wanted.len() <= self.watched.len() && self.untold.is_none() {
            return;
        }
        if self.writes.is_some() {
            self.untold = None;
        }
        for (place, cgroup) in &actual.cgroups {
            let at = (place.hierarchy, cgroup.inode);
            let known = self.watched.get(&at).copied();
            if !wanted.contains(&at) || known.is_some_and(|one| one.told.is_some() || self.writes.is_none()) {
                continue;
            }
            let mount = Path::new(&actual.hierarchies[place.hierarchy].mount);
            let path = below(mount, place.path.as_str());
            let told = self.writes.as_ref().and_then(|watch| match watch.add(&path, For::Writes) {
                Ok(number) => Some(number),
                // It is gone.
                Err(error) if error.errno == Errno::ENOENT => None,
                Err(error) => {
                    self.untold = Some(why_unwatched(&error));
                    None
                }
            });
            let dir = match known.map_or_else(|| host.open(&path), |known| Ok(known.dir)) {
                Ok(dir) if dir.inode == cgroup.inode => dir,
                Ok(other) => {
                    host.close(other);
                    continue;
                }
                Err(_) => continue,
            };
            self.watched.insert(at, Watched { dir, told });
            self.fresh.insert(at);
            self.watches.extend(told.map(|number| (number, at)));
        }
    }
}

/// Formats why something cannot be watched, with what to do about it.
#[must_use]
pub fn why_unwatched(error: &HostError) -> String {
    match error.errno {
        Errno::ENOSPC => format!("{error}: raise fs.inotify.max_user_watches"),
        Errno::EMFILE => format!("{error}: raise fs.inotify.max_user_instances"),
        _ => error.to_string(),
    }
}

/// The key of a setting, and its value; `None` if its cgroup does not exist or does not have it.
fn key_at<'a>(
    (place, knob, device): &SettingRef,
    actual: &'a ActualState,
) -> Option<(SettingKey, &'a Value)> {
    let cgroup = actual.cgroups.get(place)?;
    let value = cgroup.values.get(&(*knob, *device))?;
    let key = SettingKey { hierarchy: place.hierarchy, inode: cgroup.inode, knob: *knob, device: *device };
    Some((key, value))
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the test writes a file itself")]
mod tests {
    use super::*;
    use crate::{Instance, PlanRequest};
    use commensal_host::fake::FakeHost;

    /// Another program writes after a round has read the values and before the round looks for drift.
    // promise 21
    #[test]
    fn a_write_during_a_round_is_checked_afterwards() {
        let fake = FakeHost::v1(2, 1 << 30);
        let instance = Instance::new(Path::new("/state"));
        let survey = instance.survey(&mut fake.another()).unwrap();
        let planned = instance.plan(&mut fake.another(), &survey, &PlanRequest::all(&[])).unwrap();
        let (dir, at) = (tempfile::tempdir().unwrap(), (0, 7));
        let mut in_force = InForce::default();
        in_force.see_writes(GroupWatch::new());
        let watch = in_force.writes.as_ref().unwrap();
        std::fs::write(dir.path().join("cpu.max"), "1").unwrap();
        let number = watch.add(dir.path(), For::Writes).unwrap();
        in_force.watches.insert(number, at);
        std::fs::write(dir.path().join("cpu.max"), "2").unwrap();
        in_force.find_drift(0, &planned, &mut drift::Table::default());
        assert!(in_force.fresh.contains(&at) && !in_force.lost);
        assert!(in_force.touched().unwrap().is_empty(), "the events have been read");
    }
}
