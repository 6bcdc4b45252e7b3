//! The configuration that the daemon has written to the BPF programs: groups with their classes, slots and limits, and
//! the hold-off (how long a CPU stays free after an expelling thread has left its core). A slot is an entry for the
//! threads of one group, with a weight. Only changes are written.

use super::wanted::Wanted;
use crate::LoadError;
use crate::intf::{CLASS_EXPELLING, CLASS_OFFLINE, CLASS_ONLINE, CLASS_OTHER, MOST_LIMITS, MOST_SLOTS};
use crate::loader::Scheduler;
use crate::weights::WHOLE;
use commensal_core::group::Class;
use commensal_core::scheduler::{Orders, Quota};
use commensal_host::Host;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

/// Configuration of the loaded BPF programs. Empty when the programs were just loaded.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Class, slot and directory of each cgroup, by cgroup ID.
    groups: BTreeMap<u64, (u64, u64, String)>,
    hold_off: Option<Duration>,
    /// The slot of each offline cgroup.
    pub slots: BTreeMap<u64, u64>,
    /// Index of each limit in the BPF map, by the group's directory.
    limits: BTreeMap<String, u64>,
}

impl Told {
    /// Pushes changed configuration into the BPF maps.
    ///
    /// # Errors
    /// The kernel refuses, or there are too many limits.
    pub fn tell(
        &mut self,
        host: &mut dyn Host,
        scheduler: &mut Scheduler,
        all: &Wanted,
    ) -> Result<(), LoadError> {
        let mut wanted: BTreeMap<u64, (u64, u64, String)> = BTreeMap::new();
        let mut limits: BTreeMap<u64, u64> = BTreeMap::new();
        self.forget_limits(scheduler, &all.orders)?;
        for (path, order) in &all.orders.groups {
            if order.class == Class::Online {
                let Ok(dir) = host.open(Path::new(path)) else { continue };
                host.close(dir);
                let class = if order.expel { CLASS_EXPELLING } else { CLASS_ONLINE };
                wanted.insert(dir.inode, (class, 0, path.clone()));
                continue;
            }
            let limit = self.limit(scheduler, path, order.limit.as_ref())?;
            let Some(tree) = all.trees.get(path) else { continue };
            for (id, name) in &tree.cgroups {
                limits.insert(*id, limit);
                wanted.insert(*id, (CLASS_OFFLINE, 0, name.clone()));
            }
        }
        let alive: Vec<u64> =
            wanted.iter().filter(|(_, entry)| entry.0 == CLASS_OFFLINE).map(|(id, _)| *id).collect();
        let freed: Vec<u64> = self.slots.keys().copied().filter(|id| !alive.contains(id)).collect();
        for id in freed {
            // The slot's queues may contain threads until the next round. So the slot stays in use, with the smallest
            // weight.
            if let Some(slot) = self.slots.remove(&id) {
                scheduler.set_slot(slot, true, 1, 0)?;
            }
        }
        let shares: BTreeMap<u64, u64> = all.shares.iter().copied().collect();
        for id in &alive {
            let slot = slot_for(&mut self.slots, *id);
            if slot < MOST_SLOTS as u64 - 1 {
                let share = shares.get(id).copied().unwrap_or(WHOLE / 100);
                scheduler.set_slot(slot, true, weight_of(share), limits.get(id).copied().unwrap_or(0))?;
            }
            if let Some(entry) = wanted.get_mut(id) {
                entry.1 = slot;
            }
        }
        let mut changed = false;
        for (id, (_, _, name)) in self.groups.iter().filter(|(id, _)| !wanted.contains_key(id)) {
            scheduler.set_group(*id, name, CLASS_OTHER, 0)?;
            changed = true;
        }
        for (id, entry) in wanted.iter().filter(|(id, entry)| self.groups.get(id) != Some(entry)) {
            scheduler.set_group(*id, &entry.2, entry.0, entry.1)?;
            changed = true;
        }
        let hold_off = Duration::from_micros(all.orders.hold_off_us);
        if changed || self.hold_off != Some(hold_off) {
            scheduler.ordered(hold_off)?;
            self.hold_off = Some(hold_off);
        }
        self.groups = wanted;
        Ok(())
    }

    /// Sets a group's limit and returns the index of the limit; 0 if the group has no limit.
    fn limit(&mut self, scheduler: &Scheduler, path: &str, limit: Option<&Quota>) -> Result<u64, LoadError> {
        let Some(limit) = limit else { return Ok(0) };
        let free = || (1..).find(|index| self.limits.values().all(|taken| taken != index));
        let index = self.limits.get(path).copied().or_else(free).unwrap_or(MOST_LIMITS as u64);
        if index >= MOST_LIMITS as u64 {
            let because = format!(
                "{path} would be group {index} with a limit, but the scheduler enforces at most {}",
                MOST_LIMITS - 1
            );
            return Err(LoadError::Refused { what: "set a limit", because });
        }
        self.limits.insert(path.to_owned(), index);
        let (quota, period) = (Duration::from_micros(limit.quota_us), Duration::from_micros(limit.period_us));
        scheduler.set_limit(index, quota, period)?;
        Ok(index)
    }

    /// Frees the entries of groups that no longer have a limit.
    fn forget_limits(&mut self, scheduler: &Scheduler, orders: &Orders) -> Result<(), LoadError> {
        let limited = |path: &String| orders.groups.get(path).is_some_and(|order| order.limit.is_some());
        let over: Vec<String> = self.limits.keys().filter(|path| !limited(path)).cloned().collect();
        for path in over {
            if let Some(index) = self.limits.remove(&path) {
                scheduler.set_limit(index, Duration::ZERO, Duration::ZERO)?;
            }
        }
        Ok(())
    }
}

/// Converts a share of [`WHOLE`] to a weight from 1 to 10000, the range of `cpu.weight`.
fn weight_of(share: u64) -> u64 {
    (share * 10_000 / WHOLE).max(1)
}

/// Returns the slot that a cgroup has, or else a free slot. If no slot is free, returns the last slot, which groups
/// share.
fn slot_for(slots: &mut BTreeMap<u64, u64>, id: u64) -> u64 {
    if let Some(slot) = slots.get(&id) {
        return *slot;
    }
    let last = MOST_SLOTS as u64 - 1;
    let taken: BTreeSet<u64> = slots.values().copied().collect();
    let free = (0..last).find(|slot| !taken.contains(slot)).unwrap_or(last);
    slots.insert(id, free);
    free
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_found_again_and_run_out_gently() {
        let mut slots = BTreeMap::new();
        assert_eq!([slot_for(&mut slots, 70), slot_for(&mut slots, 71), slot_for(&mut slots, 70)], [0, 1, 0]);
        slots.remove(&70);
        assert_eq!(slot_for(&mut slots, 72), 0);
        for id in 1000..2000 {
            slot_for(&mut slots, id);
        }
        assert_eq!(slot_for(&mut slots, 5000), 255);
        assert_eq!((weight_of(WHOLE), weight_of(WHOLE / 4), weight_of(1)), (10_000, 2_500, 1));
    }
}
