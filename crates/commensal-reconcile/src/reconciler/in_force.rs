//! Values that were written, and cheap checks whether they still hold.

use super::steps::{key_of, values};
use commensal_core::actual::{ActualState, Hierarchy};
use commensal_core::drift::{self, SettingKey};
use commensal_core::knob::{KnobId, Value};
use commensal_core::plan::Step;
use commensal_host::{Dir, FolderEvent, For, GroupWatch, Host, below};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::path::Path;

/// After this many checks every value in force was read once …
const PARTS: usize = 5;
/// … but where the kernel reports every write, at most this many values are read per check: for changes without a
/// write.
const UNTOLD: usize = 8;

/// A cgroup by its hierarchy and inode.
type At = (usize, u64);

#[derive(Debug, Clone, Copy)]
struct Watched {
    dir: Dir,
    /// Number of the watch that reports writes to its files.
    told: Option<i32>,
}

/// The values in force, as the kernel reads them back.
#[derive(Debug, Default)]
pub(super) struct InForce {
    values: BTreeMap<SettingKey, Value>,
    /// Their cgroups, opened; and which of the values is checked next.
    watched: BTreeMap<At, Watched>,
    next: Option<SettingKey>,
    /// Reports writes to their files, and which watch belongs to which cgroup.
    writes: Option<GroupWatch>,
    watches: HashMap<i32, At>,
}

impl InForce {
    /// Subscribes to writes to the control files of the cgroups (inotify). `watch` must be empty.
    pub(super) fn see_writes(&mut self, watch: GroupWatch) {
        self.writes = Some(watch);
    }

    /// Records that a step was carried out.
    pub(super) fn written(&mut self, step: &Step, actual: &ActualState) -> Option<SettingKey> {
        let (key, (_, to)) = key_of(step, actual).zip(values(step))?;
        self.values.insert(key.clone(), to.clone());
        Some(key)
    }

    /// Reports to `drift` which values differ from the written ones, and forgets those of groups that are gone.
    pub(super) fn find_drift(&mut self, now_ms: u64, actual: &ActualState, drift: &mut drift::Table) {
        let mut seen = BTreeSet::new();
        for (place, cgroup) in &actual.cgroups {
            let idle = cgroup.values.get(&(KnobId::CpuIdle, None)) == Some(&Value::Number(1));
            for ((knob, device), value) in cgroup.values.iter() {
                if idle && *knob == KnobId::CpuWeight {
                    // The value changed because the group is idle, and it cannot be written meanwhile.
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
                match want == value {
                    true => drift.answered(&key),
                    false => drift.changed(now_ms, key.clone(), want.to_string(), value.to_string()),
                }
                seen.insert(key);
            }
        }
        // Values that are no longer checked are forgotten.
        self.values.retain(|key, _| seen.contains(key));
        drift.calm(now_ms, |key| seen.contains(key));
    }

    /// Whether all checked values hold: those whose files were written since the last check, and a part of the others,
    /// a different one each time. The next round finds what this misses.
    pub(super) fn all_hold(&mut self, host: &mut dyn Host, hierarchies: &[Hierarchy]) -> bool {
        let Some(touched) = self.touched() else { return false };
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

    /// Cgroups whose files were written since the last call, by any program; `None` when events were lost.
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

    /// Opens the cgroups of the values in force, and closes others.
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
        if wanted.len() <= self.watched.len() {
            return;
        }
        for (place, cgroup) in &actual.cgroups {
            let at = (place.hierarchy, cgroup.inode);
            if !wanted.contains(&at) || self.watched.contains_key(&at) {
                continue;
            }
            let mount = Path::new(&actual.hierarchies[place.hierarchy].mount);
            let path = below(mount, place.path.as_str());
            let told = self.writes.as_ref().and_then(|watch| watch.add(&path, For::Writes).ok());
            match host.open(&path) {
                Ok(dir) if dir.inode == cgroup.inode => {
                    self.watched.insert(at, Watched { dir, told });
                    self.watches.extend(told.map(|number| (number, at)));
                }
                Ok(other) => host.close(other),
                Err(_) => {}
            }
        }
    }
}
