//! The safe state: the settings that stay in force when no agent runs any more. Offline work stays held back, online
//! work has no limits.
//!
//! ```text
//!  agent alive:  plan ─► unattended (core) ─► Record::Safe in the journal and on the cgroup ─► the write that it is about
//!  agent dead:   journal ∪ cgroups ─► one value after the other, online first, read back ─► what could not be
//! ```
//!
//! Nothing is decided or queried here: no survey, no plan, no groups file, no container engine. A damaged record, a
//! refused value, a lost journal, a read-only state directory: none of them keeps the other values from being written.

use crate::drivers::apply::with_meaning;
use crate::drivers::text_for;
use crate::journal::{self, Journal, Owner, Record, Target};
use crate::marks;
use commensal_core::errno::Errno;
use commensal_core::knob::{File, KnobId, Version};
use commensal_core::text;
use commensal_core::topology::Device;
use commensal_host::{Dir, Host, HostError, Lock, below};
use commensal_sensors::machine;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

/// Pause between two attempts to write refused values or to take the lock.
const PAUSE: Duration = Duration::from_millis(20);
/// Longest wait for another process that is changing the machine.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);
/// How long refused values are retried.
const TRY_PATIENCE: Duration = Duration::from_millis(400);

/// Result of applying the safe state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SafeState {
    /// Number of values that are as they must be, including those that were so before.
    pub held: usize,
    /// Number of values written.
    pub written: usize,
    /// Values that could not be written or read, and why.
    pub failed: Vec<String>,
}

/// Sets every recorded safe value: all are tried, refused ones repeatedly for a while. Groups that are gone are
/// skipped. If another process is changing the machine it is waited for, but not for longer than the dead agent's
/// `lease`: no safe state depends on a lock.
pub fn bring_safe_state(host: &mut dyn Host, state_dir: &Path, lease: Duration) -> SafeState {
    let mut state = SafeState::default();
    let lock = lock(host, state_dir, LOCK_PATIENCE.min(lease));
    let locked = lock.map_err(|why| state.failed.push(format!("the lock cannot be had: {why}")));
    let end = Instant::now() + TRY_PATIENCE;
    let mut known = Known::default();
    known.learn(of_journal(host, state_dir, &mut state));
    let first = known.wanted(&BTreeSet::new());
    let mut brought = all(host, state_dir, first, &known, end, &mut state);
    // Values that are missing in the journal are in the marks on the groups; reading all of those takes longer.
    let owner = state_dir.display().to_string();
    let marks = marks::all(host);
    state.failed.extend(marks.unread.iter().map(|error| format!("records on cgroups: {error}")));
    let ours = marks.found.into_iter().filter(|mark| mark.owner == owner && mark.journal == journal::MACHINE);
    let tried: BTreeSet<Key> = known.wanted.keys().cloned().collect();
    known.learn_missing(ours.map(|mark| mark.record));
    let second = known.wanted(&tried);
    brought.extend(all(host, state_dir, second, &known, end, &mut state));
    if locked.is_ok() {
        settle(host, state_dir, &brought, &known);
    }
    state
}

/// Sets these values, refused ones repeatedly until `end`; returns those that hold.
fn all(
    host: &mut dyn Host,
    state_dir: &Path,
    mut waiting: Vec<Wanted>,
    known: &Known,
    end: Instant,
    state: &mut SafeState,
) -> Vec<Wanted> {
    let mut brought = Vec::new();
    loop {
        let mut refused = Vec::new();
        let before = waiting.len();
        for value in waiting {
            match bring(host, state_dir, &value, known) {
                Ok(written) => {
                    state.held += 1;
                    state.written += usize::from(written);
                    brought.push(value);
                }
                Err(Failed::Gone) => {}
                Err(Failed::Refused(why)) => refused.push((value, why)),
            }
        }
        let progress = refused.len() < before;
        if refused.is_empty() || (!progress && Instant::now() >= end) {
            state.failed.extend(refused.into_iter().map(|(_, why)| why));
            return brought;
        }
        if !progress {
            std::thread::sleep(PAUSE.min(end.saturating_duration_since(Instant::now())));
        }
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

/// One safe value.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    group: Target,
    knob: String,
    file: String,
    device: Option<String>,
    value: String,
    online: bool,
}

type Key = (Target, String, Option<String>);

impl Wanted {
    fn key(&self) -> Key {
        (self.group.clone(), self.knob.clone(), self.device.clone())
    }

    fn shown(&self) -> String {
        let file = text::path(&below(Path::new(&self.group.mount), &self.group.path).join(&self.file));
        match &self.device {
            Some(device) => format!("{file} of {device}"),
            None => file,
        }
    }
}

/// The recorded facts.
#[derive(Debug, Default)]
struct Known {
    /// The safe value of each knob: the newest record counts.
    wanted: BTreeMap<Key, Wanted>,
    /// Original value of each knob.
    originals: BTreeMap<Key, String>,
    /// Groups created by commensal, which have no originals.
    created: BTreeSet<Target>,
}

impl Known {
    fn learn(&mut self, records: impl IntoIterator<Item = Record>) {
        for record in records {
            match record {
                Record::Safe { group, knob, file, device, value, online } => {
                    let one = Wanted { group, knob, file, device, value, online };
                    self.wanted.insert(one.key(), one);
                }
                Record::Original { group, knob, device, value, .. } => {
                    self.originals.insert((group, knob, device), value);
                }
                Record::Created(group) => drop(self.created.insert(group)),
                _ => {}
            }
        }
    }

    /// Adds records; where the journal has one, it wins.
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

    /// The values still to be set, without those in `tried`: online groups first, from the top, because a child cannot
    /// be wider than its parent.
    fn wanted(&self, tried: &BTreeSet<Key>) -> Vec<Wanted> {
        let open = self.wanted.iter().filter(|(key, _)| !tried.contains(key));
        let mut open: Vec<Wanted> = open.map(|(_, one)| one.clone()).collect();
        open.sort_by_key(|one| (!one.online, one.group.path.matches('/').count()));
        open
    }
}

/// The readable records of the journal, if it is of this boot.
fn of_journal(host: &mut dyn Host, state_dir: &Path, state: &mut SafeState) -> Vec<Record> {
    let boot_id = machine::boot_id(host).unwrap_or_default();
    let path = journal::path(state_dir, journal::MACHINE);
    let text = host.state_read(&path).unwrap_or_else(|error| {
        state.failed.push(error.to_string());
        None
    });
    let contents = journal::read(host, &text.unwrap_or_default());
    let of_damage =
        |(line, why): &(usize, String)| format!("{} line {line} cannot be used: {why}", path.display());
    state.failed.extend(contents.damaged.iter().map(of_damage));
    // Groups of an earlier boot are gone, and their inodes may be reused.
    if contents.owner().is_some_and(|owner| owner.boot_id != boot_id) { Vec::new() } else { contents.records }
}

enum Failed {
    /// The group is gone, or another one has its name.
    Gone,
    /// The reason, in whole sentences.
    Refused(String),
}

/// Sets one value; returns whether that needed a write.
fn bring(host: &mut dyn Host, state_dir: &Path, wanted: &Wanted, known: &Known) -> Result<bool, Failed> {
    let (path, inode) = (below(Path::new(&wanted.group.mount), &wanted.group.path), wanted.group.inode);
    let dir = match host.open(&path) {
        Ok(dir) => dir,
        Err(error) if is_gone(&error) => return Err(Failed::Gone),
        Err(error) => return Err(Failed::Refused(error.to_string())),
    };
    let done = match dir.inode == inode {
        true => in_group(host, state_dir, dir, wanted, known),
        false => Ok(false),
    };
    host.close(dir);
    done.map_err(|why| {
        // A missing file or device gives the same error numbers as a missing group.
        let there = host.open(&path).is_ok_and(|again| {
            host.close(again);
            again.inode == inode
        });
        if there { Failed::Refused(format!("{}: {why}", wanted.shown())) } else { Failed::Gone }
    })
}

fn is_gone(error: &HostError) -> bool {
    matches!(error.errno, Errno::ENOENT | Errno::ENODEV)
}

/// The same in the open group.
fn in_group(
    host: &mut dyn Host,
    state_dir: &Path,
    dir: Dir,
    wanted: &Wanted,
    known: &Known,
) -> Result<bool, String> {
    let (knob, file, device) = row(wanted)?;
    let to = file.parse(&wanted.value, device).map_err(|error| error.to_string())?;
    let refused = |error: &HostError| with_meaning(error, Some(knob));
    let holds = |host: &mut dyn Host| -> Result<(bool, String), String> {
        let text = host.read(dir, file.name).map_err(|error| refused(&error))?;
        let held = file.parse(&text, device).is_ok_and(|now| file.holds(&now, &to));
        Ok((held, text.trim().to_owned()))
    };
    if holds(host)?.0 {
        return Ok(false);
    }
    keep_original(host, state_dir, dir, wanted, file, known);
    let text = text_for(host, dir, (Some(knob), file.name), wanted.value.clone());
    host.write(dir, file.name, &text).map_err(|error| refused(&error))?;
    match holds(host)? {
        (true, _) => Ok(true),
        (false, now) => Err(format!("wrote {}, reads {now}; something else writes it", wanted.value.trim())),
    }
}

/// The knob's row, its file, and the device: a record with other names was not written by commensal.
fn row(wanted: &Wanted) -> Result<(KnobId, &'static File, Option<Device>), String> {
    let knob = KnobId::from_name(&wanted.knob).ok_or("no setting of this name is known")?;
    let files = [Version::V1, Version::V2].into_iter().filter_map(|version| knob.row().file(version));
    let file =
        files.into_iter().find(|file| file.name == wanted.file).ok_or("the setting has another file")?;
    let device =
        wanted.device.as_deref().map(str::parse).transpose().map_err(|_| "no device has this number")?;
    Ok((knob, file, device))
}

/// Journals the original of a group that commensal did not create before the value is written, if it is not recorded
/// because it was in place: then `restore` restores it. A failure does not delay the safe state.
fn keep_original(
    host: &mut dyn Host,
    state_dir: &Path,
    dir: Dir,
    wanted: &Wanted,
    file: &File,
    known: &Known,
) {
    if known.created.contains(&wanted.group) || known.originals.contains_key(&wanted.key()) {
        return;
    }
    let Ok(text) = host.read(dir, file.name) else { return };
    let device = wanted.device.as_deref().and_then(|device| device.parse().ok());
    let Some(value) = file.parse(&text, device).ok().and_then(|now| file.encode(&now, device).ok()) else {
        return;
    };
    let record = Record::Original {
        group: wanted.group.clone(),
        knob: wanted.knob.clone(),
        file: wanted.file.clone(),
        device: wanted.device.clone(),
        value,
    };
    // The journal may have lost the record of it, or that commensal created the group.
    let created = Record::Created(wanted.group.clone());
    if [&record, &created].iter().any(|one| !matches!(marks::of(host, dir, one), Ok(None))) {
        return;
    }
    let path = journal::path(state_dir, journal::MACHINE);
    let _ = host.state_append(&path, &journal::line(&record));
    marks::set(host, (state_dir, journal::MACHINE), [&record]);
}

/// Removes records of values that are back at their originals: later changes by the owner must stay. This can wait for
/// a `restore`.
fn settle(host: &mut dyn Host, state_dir: &Path, brought: &[Wanted], known: &Known) {
    let back: BTreeSet<Key> = brought
        .iter()
        .filter(|one| known.originals.get(&one.key()) == Some(&one.value))
        .map(Wanted::key)
        .collect();
    if back.is_empty() {
        return;
    }
    let journal = Owner::this_process(host, journal::MACHINE)
        .map_err(journal::JournalError::from)
        .and_then(|owner| Journal::open(host, state_dir, journal::MACHINE, owner));
    let Ok(mut journal) = journal else { return };
    let _ = journal.forget(host, |_, record| match record {
        Record::Original { group, knob, device, .. } | Record::Safe { group, knob, device, .. } => {
            back.contains(&(group.clone(), knob.clone(), device.clone()))
        }
        _ => false,
    });
}
