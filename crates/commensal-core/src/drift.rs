//! Knobs that another program also writes: when to write again, and what to report. When two programs write one knob,
//! commensal reports it and backs off; it never fights silently.

use crate::knob::KnobId;
use crate::topology::Device;
use std::collections::BTreeMap;

/// Back-off before the second correction, ms; the first correction is immediate.
pub const FIRST_BACK_OFF_MS: u64 = 1_000;
/// Each further correction doubles the back-off up to this, ms: a config manager that runs every few minutes is
/// countered once per run.
pub const LONGEST_BACK_OFF_MS: u64 = 300_000;
/// The back-off is reset once a knob has kept its value for this many back-off intervals.
const CALM_BACK_OFFS: u64 = 10;

/// A knob of one particular cgroup, identified by inode.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SettingKey {
    /// Index of the hierarchy.
    pub hierarchy: usize,
    /// Inode of the cgroup.
    pub inode: u64,
    /// The knob.
    pub knob: KnobId,
    /// The device, for a knob per device.
    pub device: Option<Device>,
}

/// The history of a knob that was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// How often the knob was found changed.
    pub times: u64,
    /// The value that commensal had set.
    pub want: String,
    /// The value that was found.
    pub found: String,
    /// Back-off before the next correction, ms; 0 for the first.
    pub back_off_ms: u64,
    /// When the knob may be written again, ms on the caller's clock.
    pub write_from_ms: u64,
    seen_ms: u64,
    /// The last change has not been corrected yet.
    open: bool,
}

/// All knobs that were changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    entries: BTreeMap<SettingKey, Entry>,
}

impl Table {
    /// Records that a knob no longer has the value in force. `now_ms` never goes back. Repeated calls before the change
    /// is corrected ([`Table::answered`]) count as one event.
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
            }
            None => {
                let (back_off_ms, write_from_ms, seen_ms) = (0, now_ms, now_ms);
                let entry = Entry { times: 1, want, found, back_off_ms, write_from_ms, seen_ms, open: true };
                self.entries.insert(key, entry);
            }
        }
    }

    /// Records that the value is in force again, whoever wrote it: a later difference is another change.
    pub fn answered(&mut self, key: &SettingKey) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.open = false;
        }
    }

    /// Whether the knob may be written now.
    #[must_use]
    pub fn may_write(&self, now_ms: u64, key: &SettingKey) -> bool {
        self.entries.get(key).is_none_or(|entry| now_ms >= entry.write_from_ms)
    }

    /// When the next knob in back-off may be written, ms; `None` when none is in back-off.
    #[must_use]
    pub fn next_write_ms(&self, now_ms: u64) -> Option<u64> {
        self.entries.values().map(|entry| entry.write_from_ms).filter(|from| *from > now_ms).min()
    }

    /// Forgets knobs that have kept their value for long enough, and those whose cgroup is gone.
    pub fn calm(&mut self, now_ms: u64, alive: impl Fn(&SettingKey) -> bool) {
        self.entries.retain(|key, entry| {
            let calm = entry.back_off_ms.max(FIRST_BACK_OFF_MS).saturating_mul(CALM_BACK_OFFS);
            alive(key) && now_ms < entry.seen_ms.saturating_add(entry.back_off_ms).saturating_add(calm)
        });
    }

    /// Forgets a knob.
    pub fn forget(&mut self, key: &SettingKey) {
        self.entries.remove(key);
    }

    /// What is known, by knob.
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

    // promise 21
    #[test]
    fn the_first_answer_is_at_once_and_later_ones_wait_longer() {
        let (mut table, mut now, mut answers) = (Table::default(), 0, Vec::new());
        // Another program writes every 100 ms, and so does the agent when it may.
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
            // The agent checks again and again meanwhile.
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
            // Also when the back-off is over: checking does not restart it.
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
