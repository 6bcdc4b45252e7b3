//! The knob table: one row per kernel setting, and the types of its columns.
//!
//! Validation, plan normalisation and order, the fake host's rules, `doctor`, the reference and the
//! man page all derive from these rows; a knob exists in exactly one place (`knob/table.rs`).
//! `knob/codec.rs` turns values into the text a kernel file takes and back.

mod codec;
mod table;

pub use codec::CodecError;
pub use table::{KnobId, TABLE};

use crate::cpuset::CpuSet;
use crate::errno::Errno;
use std::fmt;

/// A cgroup controller by its v2 name; v1's `blkio` is [`Controller::Io`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Controller {
    /// CPU time.
    Cpu,
    /// CPU accounting, a separate controller only in v1.
    Cpuacct,
    /// CPU and memory-node placement.
    Cpuset,
    /// Memory.
    Memory,
    /// Block I/O.
    Io,
    /// Number of tasks.
    Pids,
    /// Freezing, a separate controller only in v1.
    Freezer,
    /// `cgroup.*` files of v2 that need no controller.
    Core,
}

impl Controller {
    /// Every controller that commensal knows.
    pub const ALL: [Controller; 8] = [
        Controller::Cpu,
        Controller::Cpuacct,
        Controller::Cpuset,
        Controller::Memory,
        Controller::Io,
        Controller::Pids,
        Controller::Freezer,
        Controller::Core,
    ];

    /// Whether groups of this version have the controller without enabling it.
    #[must_use]
    pub fn built_in(self, version: Version) -> bool {
        version == Version::V1 || matches!(self, Controller::Core | Controller::Freezer)
    }

    /// Name in a v1 mount option or `/proc/cgroups`.
    #[must_use]
    pub fn v1_name(self) -> &'static str {
        match self {
            Controller::Io => "blkio",
            other => other.v2_name(),
        }
    }

    /// Name in v2 `cgroup.controllers`.
    #[must_use]
    pub fn v2_name(self) -> &'static str {
        match self {
            Controller::Cpu => "cpu",
            Controller::Cpuacct => "cpuacct",
            Controller::Cpuset => "cpuset",
            Controller::Memory => "memory",
            Controller::Io => "io",
            Controller::Pids => "pids",
            Controller::Freezer => "freezer",
            Controller::Core => "cgroup",
        }
    }

    /// The controller with this name in the given hierarchy version.
    #[must_use]
    pub fn from_name(name: &str, version: Version) -> Option<Controller> {
        Controller::ALL.into_iter().find(|controller| match version {
            Version::V1 => *controller != Controller::Core && controller.v1_name() == name,
            Version::V2 => *controller != Controller::Core && controller.v2_name() == name,
        })
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.v2_name())
    }
}

/// The two cgroup interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// One hierarchy per controller or set of controllers.
    V1,
    /// The unified hierarchy.
    V2,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Version::V1 => "v1",
            Version::V2 => "v2",
        })
    }
}

/// A knob's value in the kernel's own unit, without its spelling.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// A number in the row's unit.
    Number(i64),
    /// No limit: `max`, `-1`, or an absent device line.
    NoLimit,
    /// CPUs or memory nodes.
    List(CpuSet),
    /// One of a fixed set of words.
    Word(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Number(number) => number.fmt(f),
            Value::NoLimit => f.write_str("no limit"),
            Value::List(set) if set.is_empty() => f.write_str("empty"),
            Value::List(set) => set.fmt(f),
            Value::Word(word) => f.write_str(word),
        }
    }
}

/// How a value is spelled in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A decimal number.
    Number,
    /// A decimal number; `-1` (or, for v1 memory, a huge number) is "no limit".
    MinusOne,
    /// A decimal number or `max`.
    MaxWord,
    /// First field of v2 `cpu.max`; a write of one field keeps the period.
    Quota,
    /// Second field of v2 `cpu.max`.
    Period,
    /// A CPU or node list; a line break alone empties it.
    List,
    /// v1 device line `major:minor number`; 0 removes it.
    DeviceNumber,
    /// v2 device line `major:minor key=number`; `max` removes the key.
    DeviceKey(&'static str),
    /// One of these words.
    Word(&'static [&'static str]),
    /// Words that stand for 0 and 1; any further words are read as 1 and never written.
    Words(&'static [&'static str]),
    /// v2 weight: `default N`, then lines for single devices, which commensal leaves alone.
    DefaultWeight,
    /// v2 device line `major:minor key=0|1 …` whose other keys keep their values; a missing line means 0.
    DeviceFlag(&'static str),
    /// Any text; commensal shows it and does not write it.
    Opaque,
    /// A write triggers an action; the file cannot be read, or is empty.
    Trigger,
}

/// How the kernel treats a value inside or outside the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Normalise {
    /// Kept as written; outside the range the write fails.
    Exact,
    /// Moved to the nearest end of the range.
    Clamp,
    /// Rounded down to a whole page (4096 bytes); at or above the range's end it is "no limit".
    PageDown,
    /// Sorted, duplicates removed.
    Canonical,
}

/// One kernel file of one hierarchy version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct File {
    /// File name, spelled as the kernel spells it.
    pub name: &'static str,
    /// Spelling of its values.
    pub form: Form,
    /// Smallest and largest number.
    pub range: (i64, i64),
    /// Value of the file in a new group, in the kernel's spelling; empty where there is none.
    pub default: &'static str,
    /// How the kernel treats a value.
    pub normalise: Normalise,
}

/// The vendor kernel that has a row's files, when no other kernel has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vendor {
    /// Name of the kernel.
    pub kernel: &'static str,
    /// What else must be set for the knob to work.
    pub needs: &'static str,
}

/// In which groups a v2 file exists; a v1 root has all files but those of pids, the freezer and BFQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// In every group.
    All,
    /// In every group but the root.
    NonRoot,
    /// In the root only.
    RootOnly,
}

/// The order that the kernel's rules require for writes to one knob across a tree, or within one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KnobOrder {
    /// Any order.
    Free,
    /// A child must stay within its parent: widen parents first, tighten children first.
    WithinParent,
    /// The period of a quota: a longer one before the quota, a shorter one after it.
    AroundQuota,
    /// Not writable while `cpu.idle` is 1 (EINVAL): written before it is set, or after it is cleared.
    NotWhileIdle,
    /// Sets the class, or depends on the other knobs: written last when set, first when cleared.
    Last,
    /// Must not be less than the named file of the same group.
    AtLeast(&'static str),
}

/// Whether a driver writes this knob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KnobStatus {
    /// commensal writes it.
    Driven,
    /// commensal reads and shows it.
    Shown,
    /// Known and described, but not written yet; the text says what is missing.
    DriverToCome(&'static str),
}

/// What an error number means when it comes from this knob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrnoMeaning {
    /// The number.
    pub errno: Errno,
    /// Why the kernel returns it.
    pub because: &'static str,
    /// What to do about it.
    pub try_this: &'static str,
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Knob {
    /// Identity of the row in code.
    pub id: KnobId,
    /// commensal's name for the knob: the v2 name where there is one.
    pub name: &'static str,
    /// The controller that the knob belongs to.
    pub controller: Controller,
    /// Unit of its numbers.
    pub unit: &'static str,
    /// File in cgroup v1.
    pub v1: Option<File>,
    /// File in cgroup v2.
    pub v2: Option<File>,
    /// Set when only one vendor's kernel has the files.
    pub vendor: Option<Vendor>,
    /// Where the file exists.
    pub scope: Scope,
    /// Order of writes.
    pub order: KnobOrder,
    /// Whether commensal writes it.
    pub status: KnobStatus,
    /// The property of a systemd unit with the same effect.
    pub systemd: Property,
    /// Error numbers and what they mean for this knob.
    pub errnos: &'static [ErrnoMeaning],
    /// One sentence for the reference documentation.
    pub doc: &'static str,
}

/// A property of a systemd unit with the same effect as a knob (systemd.resource-control(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Property {
    /// No property has the same effect.
    None,
    /// The property takes the knob's number as it is.
    Number(&'static str),
    /// The property takes a disk and the knob's number.
    PerDisk(&'static str),
    /// The property takes the same amount in another form.
    Converted(&'static str),
}

impl Knob {
    /// The file in a hierarchy of this version.
    #[must_use]
    pub fn file(&self, version: Version) -> Option<&File> {
        match version {
            Version::V1 => self.v1.as_ref(),
            Version::V2 => self.v2.as_ref(),
        }
    }

    /// What `errno` means for this knob.
    #[must_use]
    pub fn meaning(&self, errno: Errno) -> Option<&'static ErrnoMeaning> {
        self.errnos.iter().find(|meaning| meaning.errno == errno)
    }
}

impl KnobId {
    /// The knob's row in the table.
    #[must_use]
    pub fn row(self) -> &'static Knob {
        &TABLE[self as usize]
    }

    /// The knob with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<KnobId> {
        TABLE.iter().find(|knob| knob.name == name).map(|knob| knob.id)
    }
}

impl fmt::Display for KnobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().name)
    }
}

impl File {
    /// Whether the file holds one line per device.
    #[must_use]
    pub fn per_device(&self) -> bool {
        matches!(self.form, Form::DeviceNumber | Form::DeviceKey(_) | Form::DeviceFlag(_))
    }
}

/// Rows whose v1 or v2 file has this name.
pub fn rows_of_file(version: Version, name: &str) -> impl Iterator<Item = &'static Knob> + '_ {
    TABLE.iter().filter(move |knob| knob.file(version).is_some_and(|file| file.name == name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_row_is_at_its_place_and_complete() {
        let mut names = BTreeSet::new();
        for (index, knob) in TABLE.iter().enumerate() {
            assert_eq!(knob.id as usize, index, "{}", knob.name);
            assert!(names.insert(knob.name), "{} appears twice", knob.name);
            assert!(knob.v1.is_some() || knob.v2.is_some(), "{} has no file", knob.name);
            assert!(knob.doc.ends_with('.') && knob.doc.len() > 20, "{}: {:?}", knob.name, knob.doc);
            if matches!(knob.status, KnobStatus::Driven) {
                assert!(!knob.errnos.is_empty(), "{} is written but no refusal is explained", knob.name);
            }
        }
    }

    #[test]
    fn defaults_parse_in_their_own_form() {
        for knob in TABLE {
            for file in [&knob.v1, &knob.v2].into_iter().flatten() {
                if !matches!(file.form, Form::Opaque | Form::Trigger) && !file.per_device() {
                    assert!(file.parse(file.default, None).is_ok(), "{}: {:?}", file.name, file.default);
                }
            }
        }
    }

    #[test]
    fn names_of_controllers_differ_by_version() {
        assert_eq!(Controller::from_name("blkio", Version::V1), Some(Controller::Io));
        assert_eq!(Controller::from_name("io", Version::V2), Some(Controller::Io));
        assert_eq!(Controller::from_name("blkio", Version::V2), None);
        assert_eq!(Controller::from_name("cgroup", Version::V2), None);
    }
}
