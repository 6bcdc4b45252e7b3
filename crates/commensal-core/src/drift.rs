//! Drift: another program writes a knob (a kernel setting of a cgroup) that commensal set. This module decides when
//! commensal may write the knob again (a correction), with an exponential back-off between corrections, and records
//! what to report.

use crate::knob::KnobId;
use crate::topology::Device;
use std::collections::BTreeMap;

/// Back-off before the second correction (ms); the first correction is immediate.
pub const FIRST_BACK_OFF_MS: u64 = 1_000;
/// Maximum back-off (ms); each further correction doubles the back-off up to this value. If a configuration manager
/// writes the knob every few minutes, commensal corrects it once per run of that manager.
pub const LONGEST_BACK_OFF_MS: u64 = 300_000;
/// A knob must keep its value for this many back-off intervals; then its back-off is reset.
const CALM_BACK_OFFS: u64 = 10;

/// Identifies a knob of a cgroup. The inode distinguishes the cgroup from a later cgroup with the same path;
/// [`crate::actual::SettingRef`] has no inode and does not distinguish them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SettingKey {
    /// Index of the hierarchy.
    pub hierarchy: usize,
    /// Inode of the cgroup.
    pub inode: u64,
    /// The knob: a kernel setting of the cgroup.
    pub knob: KnobId,
    /// The device, if the knob has a value per device; `None` otherwise.
    pub device: Option<Device>,
}

/// The history of a knob that another program changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Number of changes that commensal found.
    pub times: u64,
    /// The value that commensal had set.
    pub want: String,
    /// The value that commensal found instead.
    pub found: String,
    /// Back-off before the next correction (ms); 0 before the first correction.
    pub back_off_ms: u64,
    /// Time from which commensal may write the knob again (ms, on the caller's clock).
    pub write_from_ms: u64,
    /// Whether the kernel made the last change, not a program.
    pub by_kernel: bool,
    /// When the last change was found (ms, on the caller's clock).
    pub seen_ms: u64,
    /// Whether the last change has not been corrected yet.
    open: bool,
}

impl Entry {
    /// Whether the last change has not been corrected yet.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open
    }
}

/// All knobs that other programs changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    entries: BTreeMap<SettingKey, Entry>,
}

impl Table {
    /// Records that the knob does not have the value that commensal set. `now_ms` must not go backwards. Further calls
    /// count as the same change until [`Table::answered`] records that the knob has its value again.
    pub fn changed(&mut self, now_ms: u64, key: SettingKey, want: String, found: String) {
        match self.entries.get_mut(&key) {
            Some(entry) if entry.open => entry.found = found,
            Some(entry) => {
                entry.times = entry.times.saturating_add(1);
                entry.back_off_ms = match entry.back_off_ms {
                    0 => FIRST_BACK_OFF_MS,
                    before => before.saturating_mul(2).min(LONGEST_BACK_OFF_MS),
                };
                entry.write_from_ms = now_ms.saturating_add(entry.back_off_ms);
                (entry.want, entry.found, entry.seen_ms, entry.open) = (want, found, now_ms, true);
                entry.by_kernel = false;
            }
            None => {
                let (back_off_ms, write_from_ms, seen_ms) = (0, now_ms, now_ms);
                let (times, by_kernel, open) = (1, false, true);
                let entry =
                    Entry { times, want, found, back_off_ms, write_from_ms, by_kernel, seen_ms, open };
                self.entries.insert(key, entry);
            }
        }
    }

    /// Like [`Table::changed`], for a change that the kernel made, such as taking an offline CPU out of a cpuset. It is
    /// corrected without a back-off, because nobody writes the other value again.
    pub fn changed_by_kernel(&mut self, now_ms: u64, key: SettingKey, want: String, found: String) {
        self.changed(now_ms, key.clone(), want, found);
        if let Some(entry) = self.entries.get_mut(&key) {
            (entry.by_kernel, entry.back_off_ms, entry.write_from_ms) = (true, 0, now_ms);
        }
    }

    /// Records that the knob has the wanted value again, no matter which program wrote it. If the value differs later,
    /// that counts as another change.
    pub fn answered(&mut self, key: &SettingKey) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.open = false;
        }
    }

    /// Whether commensal may write the knob now.
    #[must_use]
    pub fn may_write(&self, now_ms: u64, key: &SettingKey) -> bool {
        self.entries.get(key).is_none_or(|entry| now_ms >= entry.write_from_ms)
    }

    /// Earliest time (ms) after `now_ms` at which a knob in back-off may be written; `None` if no knob is in back-off.
    #[must_use]
    pub fn next_write_ms(&self, now_ms: u64) -> Option<u64> {
        self.entries.values().map(|entry| entry.write_from_ms).filter(|from| *from > now_ms).min()
    }

    /// Removes the entries of knobs that have kept their value for long enough, and of knobs whose cgroup was removed
    /// (`alive` returns false).
    pub fn calm(&mut self, now_ms: u64, alive: impl Fn(&SettingKey) -> bool) {
        self.entries.retain(|key, entry| {
            let calm = match entry.by_kernel {
                true => LONGEST_BACK_OFF_MS,
                false => entry.back_off_ms.max(FIRST_BACK_OFF_MS).saturating_mul(CALM_BACK_OFFS),
            };
            alive(key) && now_ms < entry.seen_ms.saturating_add(entry.back_off_ms).saturating_add(calm)
        });
    }

    /// Removes the entry of a knob.
    pub fn forget(&mut self, key: &SettingKey) {
        self.entries.remove(key);
    }

    /// All entries, by knob.
    pub fn iter(&self) -> impl Iterator<Item = (&SettingKey, &Entry)> {
        self.entries.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> SettingKey {
        SettingKey { hierarchy: 0, inode: 7, knob: KnobId::CpuWeight, device: None }
    }

    // promise 18
    #[test]
    fn the_first_answer_is_at_once_and_later_ones_wait_longer() {
        let (mut table, mut now, mut answers) = (Table::default(), 0, Vec::new());
        // Another program writes every 100 ms, and the agent writes whenever it is allowed to.
        let mut ours = true;
        while now < 1_000_000 {
            if !ours && table.may_write(now, &key()) {
                (ours, now) = (true, now + 50);
                table.answered(&key());
                answers.push(now);
            }
            if ours {
                ours = false;
                table.changed(now, key(), "100".into(), "50".into());
            }
            // Meanwhile the agent finds the same change repeatedly.
            table.changed(now + 1, key(), "100".into(), "50".into());
            now += 100;
        }
        assert!(answers[0] < 200, "{answers:?}");
        let pauses: Vec<u64> = answers.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(pauses.windows(2).all(|pair| pair[1] + 200 >= pair[0]), "{pauses:?}");
        assert!(answers.len() < 20 && *pauses.last().unwrap() >= 256_000, "{pauses:?}");
        assert_eq!(table.iter().next().unwrap().1.times, answers.len() as u64 + 1);
    }

    #[test]
    fn looking_again_while_it_waits_is_the_same_event() {
        let mut table = Table::default();
        table.changed(0, key(), "1".into(), "2".into());
        table.answered(&key());
        for now in 10..5_000 {
            table.changed(now, key(), "1".into(), "2".into());
            // After the back-off, too, a repeated check does not restart the back-off.
            assert_eq!(table.may_write(now, &key()), now >= 10 + FIRST_BACK_OFF_MS, "{now}");
        }
        assert_eq!(table.iter().next().unwrap().1.times, 2);
    }

    #[test]
    fn a_calm_knob_and_a_dead_group_are_forgotten() {
        let mut table = Table::default();
        table.changed(0, key(), "1".into(), "2".into());
        table.calm(FIRST_BACK_OFF_MS, |_| true);
        assert_eq!(table.iter().count(), 1);
        table.calm(FIRST_BACK_OFF_MS * CALM_BACK_OFFS, |_| true);
        assert_eq!(table.iter().count(), 0);
        table.changed(0, key(), "1".into(), "2".into());
        table.calm(1, |_| false);
        assert_eq!(table.iter().count(), 0);
    }
}
