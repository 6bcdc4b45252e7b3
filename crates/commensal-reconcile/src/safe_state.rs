//! The safe state: the settings that are in force when no agent runs. Offline work stays restricted, and online work
//! has no limits. A mark is a copy of a journal record on its cgroup.
//!
//! ```text
//!  agent alive:  plan ─► unattended (core) ─► Record::Safe in the journal and on the cgroup ─► write of the setting
//!  agent dead:   journal ∪ cgroups ─► write and read back each value, online groups first ─► list of failures
//! ```
//!
//! This module makes no decisions and queries only the journal and the cgroups: it uses no survey, plan, groups file or
//! container engine. A damaged record, a refused value, a lost journal or a read-only state directory does not stop the
//! other values from being written.

use crate::drivers::apply::with_meaning;
use crate::drivers::lifted_group::lower;
use crate::drivers::original_text;
use crate::hand::{self, Put, Slot};
use crate::journal::{self, Created, Journal, Key, Original, Owner, Record, Safe, Target};
use crate::marks::{self, Mark};
use crate::runner::as_far_as_possible;
use commensal_core::knob::{KnobId, Value, Version};
use commensal_host::{Dir, Host, Lock};
use commensal_sensors::machine;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

/// Pause between two attempts to write refused values or to take the lock.
const PAUSE: Duration = Duration::from_millis(20);
/// Maximum time to wait for another process that is changing the machine.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);
/// Time for which refused values are retried.
const TRY_PATIENCE: Duration = Duration::from_millis(400);

/// Result of applying the safe state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SafeState {
    /// Number of values that are in force, including those that were in force before.
    pub held: usize,
    /// Number of values written.
    pub written: usize,
    /// Messages about values that could not be written or read.
    pub failed: Vec<String>,
}

/// Writes every recorded safe value. Refused values are retried for a limited time. Groups that no longer exist are
/// skipped. If another process is changing the machine, waits for it, but not longer than the dead agent's `lease`;
/// then continues without the lock.
pub fn bring_safe_state(host: &mut dyn Host, state_dir: &Path, lease: Duration) -> SafeState {
    let mut state = SafeState::default();
    let lock = lock(host, state_dir, LOCK_PATIENCE.min(lease));
    let locked = lock.map_err(|why| state.failed.push(format!("the machine lock cannot be taken: {why}")));
    let end = Instant::now() + TRY_PATIENCE;
    let mut known = Known::default();
    let records = of_journal(host, state_dir, &mut state);
    // The dead agent may have moved members out of offline groups temporarily. Their records stay, for the next agent
    // or `restore`.
    for record in &records {
        if let Record::Lifting(lifted) = record {
            state.failed.extend(lower(host, lifted).err().map(|error| error.to_string()));
        }
    }
    known.has_journal = !records.is_empty();
    known.learn(records);
    known.in_journal = known.originals.keys().cloned().collect();
    let first = known.wanted(&BTreeSet::new());
    let mut brought = all(host, state_dir, first, &known, end, &mut state);
    // Values that are missing in the journal are in the marks on the groups; reading all marks takes longer.
    let marks = marks::all(host);
    state.failed.extend(marks.unread.iter().map(|error| format!("records on cgroups: {error}")));
    if !known.has_journal {
        state.failed.extend(marks.damaged.iter().map(marks::Damaged::describe));
    }
    let ours = marks.found.into_iter().filter(|mark| is_of(mark, state_dir));
    let tried: BTreeSet<Key> = known.wanted.keys().cloned().collect();
    known.learn_missing(ours.map(|mark| mark.record));
    let second = known.wanted(&tried);
    brought.extend(all(host, state_dir, second, &known, end, &mut state));
    if locked.is_ok() {
        settle(host, state_dir, &brought, &known);
    }
    state
}

/// Writes these values, and retries refused values as long as other values succeed, and otherwise until `end`. Returns
/// the values that are in force.
fn all(
    host: &mut dyn Host,
    state_dir: &Path,
    mut waiting: Vec<Safe>,
    known: &Known,
    end: Instant,
    state: &mut SafeState,
) -> Vec<Safe> {
    let mut brought = Vec::new();
    loop {
        let refused = as_far_as_possible(waiting, |value| match bring(host, state_dir, value, known) {
            Ok(Some((written, value))) => {
                state.held += 1;
                state.written += usize::from(written);
                brought.push(value);
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(why) => Err(why),
        });
        let left = end.saturating_duration_since(Instant::now());
        if refused.is_empty() || left.is_zero() {
            state.failed.extend(refused.into_iter().map(|(_, why)| why));
            return brought;
        }
        std::thread::sleep(PAUSE.min(left));
        waiting = refused.into_iter().map(|(value, _)| value).collect();
    }
}

fn lock(host: &mut dyn Host, state_dir: &Path, patience: Duration) -> Result<Lock, String> {
    let (path, end) = (state_dir.join("lock"), Instant::now() + patience);
    loop {
        match host.state_lock(&path) {
            Ok(Some(lock)) => return Ok(lock),
            Ok(None) if Instant::now() < end => std::thread::sleep(PAUSE),
            Ok(None) => return Err(format!("another commensal holds {}", path.display())),
            Err(error) => return Err(error.to_string()),
        }
    }
}

impl Safe {
    fn shown(&self) -> String {
        let file = self.setting.shown();
        match &self.setting.device {
            Some(device) => format!("{file} of {device}"),
            None => file,
        }
    }
}

/// What the records say: safe values, original values and created groups.
#[derive(Debug, Default)]
struct Known {
    /// The safe value of each knob, from its newest record.
    wanted: BTreeMap<Key, Safe>,
    /// Original value of each knob.
    originals: BTreeMap<Key, String>,
    /// The knobs whose originals are in the journal.
    in_journal: BTreeSet<Key>,
    /// Whether the journal has readable records of this boot.
    has_journal: bool,
    /// Groups created by commensal, which have no originals.
    created: BTreeSet<Target>,
}

impl Known {
    fn learn(&mut self, records: impl IntoIterator<Item = Record>) {
        for record in records {
            match record {
                Record::Safe(one) => drop(self.wanted.insert(one.setting.key(), one)),
                Record::Original(one) => drop(self.originals.insert(one.key(), one.value)),
                Record::Created(Created(group)) => drop(self.created.insert(group)),
                _ => {}
            }
        }
    }

    /// Adds records; facts that are known already take precedence.
    fn learn_missing(&mut self, records: impl IntoIterator<Item = Record>) {
        let mut others = Known::default();
        others.learn(records);
        for (key, one) in others.wanted {
            self.wanted.entry(key).or_insert(one);
        }
        for (key, text) in others.originals {
            self.originals.entry(key).or_insert(text);
        }
        self.created.append(&mut others.created);
    }

    /// Returns the values to set, without those in `tried`: online groups first, and parents before children, because a
    /// child's value may be limited by its parent's.
    fn wanted(&self, tried: &BTreeSet<Key>) -> Vec<Safe> {
        let open = self.wanted.iter().filter(|(key, _)| !tried.contains(key));
        let mut open: Vec<Safe> = open.map(|(_, one)| one.clone()).collect();
        open.sort_by_key(|one| (!one.online, one.setting.group.path.matches('/').count()));
        open
    }
}

/// Returns the readable records of the journal, if it is from this boot.
fn of_journal(host: &mut dyn Host, state_dir: &Path, state: &mut SafeState) -> Vec<Record> {
    let boot_id = machine::boot_id(host).unwrap_or_default();
    let path = journal::path(state_dir, journal::MACHINE);
    let text = journal::load(host, &path).unwrap_or_else(|error| {
        state.failed.push(error.to_string());
        None
    });
    let contents = journal::read(host, &text.unwrap_or_default());
    let of_damage =
        |(line, why): &(usize, String)| format!("{} line {line} cannot be used: {why}", path.display());
    state.failed.extend(contents.damaged.iter().map(of_damage));
    // Groups of an earlier boot no longer exist, and their inodes may be reused.
    if contents.owner().is_some_and(|owner| owner.boot_id != boot_id) { Vec::new() } else { contents.records }
}

/// Writes one value, or the newer value in the group's mark. Returns whether a write was necessary, and the value; `None`
/// if the group no longer exists, or another group has its name.
fn bring(
    host: &mut dyn Host,
    state_dir: &Path,
    wanted: &Safe,
    known: &Known,
) -> Result<Option<(bool, Safe)>, String> {
    let group = &wanted.setting.group;
    let Some(dir) = hand::open(host, group).map_err(|error| error.to_string())? else { return Ok(None) };
    let wanted = newest(host, state_dir, dir, wanted);
    let done = in_group(host, state_dir, dir, &wanted.setting, known);
    host.close(dir);
    let why = match done {
        Ok(written) => return Ok(Some((written, wanted))),
        Err(why) => format!("{}: {why}", wanted.shown()),
    };
    // A missing file or device gives the same error numbers as a missing group.
    match hand::open(host, group) {
        Ok(Some(again)) => {
            host.close(again);
            Err(why)
        }
        _ => Ok(None),
    }
}

/// Returns the value in the group's mark. Each newer value replaces the mark, whereas the lines of a journal may be
/// damaged, cut off or out of order.
fn newest(host: &mut dyn Host, state_dir: &Path, dir: Dir, wanted: &Safe) -> Safe {
    let mark = marks::of(host, dir, &Record::Safe(wanted.clone())).ok().flatten();
    match mark.filter(|mark| is_of(mark, state_dir)).map(|mark| mark.record) {
        Some(Record::Safe(Safe { setting, online })) if setting.file == wanted.setting.file => {
            let setting = Original { value: setting.value, ..wanted.setting.clone() };
            Safe { setting, online }
        }
        _ => wanted.clone(),
    }
}

/// Whether the mark is a copy of a record of the machine's journal in `state_dir`.
fn is_of(mark: &Mark, state_dir: &Path) -> bool {
    Path::new(&mark.owner) == state_dir && mark.journal == journal::MACHINE
}

/// Sets one value in the open group; returns whether a write was necessary.
fn in_group(
    host: &mut dyn Host,
    state_dir: &Path,
    dir: Dir,
    wanted: &Original,
    known: &Known,
) -> Result<bool, String> {
    let (slot, to) = Slot::of(wanted)?;
    if slot.read(host, dir).is_ok_and(|now| slot.has(&now, &to)) {
        return Ok(false);
    }
    keep_original(host, state_dir, dir, wanted, &slot, known);
    if slot.knob == KnobId::CpuIdle && to == Value::Number(1) {
        keep_weight(host, state_dir, dir, wanted, known);
    }
    match hand::put(host, dir, &slot, &to) {
        Put::Held(_) | Put::Written(_) => Ok(true),
        Put::NotTaken(now) => {
            Err(format!("wrote {}, reads {now}; another program writes it", wanted.value.trim()))
        }
        Put::Gone(error) | Put::Refused(error) => Err(with_meaning(&error, Some(slot.knob))),
        Put::Unread(why) | Put::Unwritable(why) => Err(why),
    }
}

/// Journals the original before a safe value is written, in a group that commensal did not create and whose original is
/// not in the journal: the safe value was in force already when the agent planned, or the agent died after it had
/// dropped the record and before it removed the mark. The next agent and `restore` can then restore the original. A
/// failure does not delay the safe state.
fn keep_original(
    host: &mut dyn Host,
    state_dir: &Path,
    dir: Dir,
    wanted: &Original,
    slot: &Slot,
    known: &Known,
) {
    if known.created.contains(&wanted.group) || known.in_journal.contains(&wanted.key()) {
        return;
    }
    let record = |value: String| Record::Original(Original { value, ..wanted.clone() });
    let record = match marks::of(host, dir, &record(String::new())) {
        Ok(Some(mark)) if is_of(&mark, state_dir) => mark.record,
        // The journal may have lost the record of the group's creation.
        Ok(None)
            if matches!(marks::of(host, dir, &Record::Created(Created(wanted.group.clone()))), Ok(None)) =>
        {
            let Slot { knob, file, device } = *slot;
            let Ok(text) = original_text(host, dir, (knob, file)) else { return };
            let value = file.parse(&text, device).ok().and_then(|now| file.encode(&now, device).ok());
            let Some(value) = value else { return };
            record(value)
        }
        _ => return,
    };
    marks::set(host, (state_dir, journal::MACHINE), [&record]);
    // The next agent rebuilds a lost journal from the marks, but only if no journal file exists.
    if !known.has_journal && matches!(marks::of(host, dir, &record), Ok(Some(_))) {
        return;
    }
    let path = journal::path(state_dir, journal::MACHINE);
    let _ = host.state_append(&path, &journal::line(&record));
}

/// Journals the original weight of a group before its `cpu.idle` is set: the kernel then discards the weight.
fn keep_weight(host: &mut dyn Host, state_dir: &Path, dir: Dir, idle: &Original, known: &Known) {
    let knob = KnobId::CpuWeight;
    let files = [Version::V1, Version::V2].into_iter().filter_map(|version| knob.row().file(version));
    for file in files {
        if host.read(dir, file.name).is_err() {
            continue;
        }
        let weight = Original { knob: knob.to_string(), file: file.name.to_owned(), ..idle.clone() };
        keep_original(host, state_dir, dir, &weight, &Slot { knob, file, device: None }, known);
    }
}

/// Drops records of values that are equal to their originals again, so that `restore` does not overwrite later changes
/// by the group's owner. A failure is ignored: `restore` can drop them later.
fn settle(host: &mut dyn Host, state_dir: &Path, brought: &[Safe], known: &Known) {
    let back: BTreeSet<Key> = brought
        .iter()
        .map(|one| (one.setting.key(), &one.setting.value))
        .filter(|(key, value)| known.originals.get(key) == Some(value))
        .map(|(key, _)| key)
        .collect();
    if back.is_empty() {
        return;
    }
    let journal = Owner::this_process(host, journal::MACHINE)
        .map_err(journal::JournalError::from)
        .and_then(|owner| Journal::open(host, state_dir, journal::MACHINE, owner));
    let Ok(mut journal) = journal else { return };
    let _ = journal.forget(host, |_, record| record.setting().is_some_and(|one| back.contains(&one.key())));
}
