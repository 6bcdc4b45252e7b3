//! The knob table: one row per kernel setting (a knob), and the types of its columns.
//!
//! Each knob has exactly one definition, its row in `knob/table.rs`. These parts of commensal use the rows: the
//! validation and normalisation of values, the order of a plan's writes, the fake host of the tests, the command
//! `doctor`, the reference documentation and the man page. `knob/codec.rs` converts values to and from the text of
//! kernel files.

mod codec;
mod table;

pub use codec::CodecError;
pub use table::{KnobId, TABLE};

use crate::cpuset::CpuSet;
use crate::errno::Errno;
use std::fmt;

/// A cgroup controller, named as in v2; v1's `blkio` is [`Controller::Io`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Controller {
    /// Controller of CPU time.
    Cpu,
    /// CPU accounting; a separate controller only in v1.
    Cpuacct,
    /// Controller of the CPUs and memory nodes that tasks may use.
    Cpuset,
    /// Controller of memory.
    Memory,
    /// Controller of block I/O.
    Io,
    /// Controller of the number of tasks.
    Pids,
    /// Controller that freezes tasks; a separate controller only in v1.
    Freezer,
    /// Not a controller: `cgroup.*` files of v2, for which no controller need be enabled.
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

    /// Whether the controller's files exist in every cgroup, so that the parent need not enable the controller.
    #[must_use]
    pub fn built_in(self, version: Version) -> bool {
        version == Version::V1 || matches!(self, Controller::Core | Controller::Freezer)
    }

    /// Name of the controller in v1 mount options and `/proc/cgroups`.
    #[must_use]
    pub fn v1_name(self) -> &'static str {
        match self {
            Controller::Io => "blkio",
            other => other.v2_name(),
        }
    }

    /// Name of the controller in v2 `cgroup.controllers`.
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

    /// The controller with this name in a hierarchy of this version; `None` for an unknown name.
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

/// Version of the cgroup interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// cgroup v1: one hierarchy per controller or set of controllers.
    V1,
    /// cgroup v2: the unified hierarchy.
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

/// A knob's value in the kernel's unit, independent of its text form.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// A number, in the unit of the knob's row.
    Number(i64),
    /// No limit: written as `max`, as `-1`, or by the absence of a device's line.
    NoLimit,
    /// A set of CPUs or memory nodes.
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

/// The text form of a value in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A decimal number.
    Number,
    /// A decimal number; `-1` means "no limit". When v1 memory files are read, they contain a huge number instead of
    /// `-1`.
    MinusOne,
    /// A decimal number or `max`.
    MaxWord,
    /// The first field of v2 `cpu.max`; writing this field alone keeps the period.
    Quota,
    /// The second field of v2 `cpu.max`.
    Period,
    /// A list of CPUs or nodes. Writing only a line break makes the list empty.
    List,
    /// v1 device line `major:minor number`; writing 0 removes the line.
    DeviceNumber,
    /// v2 device line `major:minor key=number`; writing `max` removes the key.
    DeviceKey(&'static str),
    /// One of these words.
    Word(&'static [&'static str]),
    /// Words that stand for 0 and 1, in this order. commensal reads any further word of the list as 1 and never writes
    /// it.
    Words(&'static [&'static str]),
    /// v2 weight: `default N`, followed by lines for single devices, which commensal does not change.
    DefaultWeight,
    /// v2 device line `major:minor key=0|1 …`; writing one key keeps the values of the other keys. A missing line means
    /// 0.
    DeviceFlag(&'static str),
    /// Any text; commensal displays it but never writes it.
    Opaque,
    /// A write triggers an action; a read fails or returns nothing.
    Trigger,
}

/// How the kernel changes a written value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Normalise {
    /// The kernel keeps the value as written; a write outside the range fails.
    Exact,
    /// The kernel replaces a value outside the range by the nearest value in the range.
    Clamp,
    /// The kernel rounds the value down to whole pages (4096 bytes); a value at or above the end of the range means "no
    /// limit".
    PageDown,
    /// The kernel sorts the list and removes duplicates.
    Canonical,
}

/// A knob's kernel file in one version of the cgroup interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct File {
    /// The kernel's name of the file.
    pub name: &'static str,
    /// The text form of the file's values.
    pub form: Form,
    /// The smallest and the largest valid number.
    pub range: (i64, i64),
    /// The content of the file in a new group; empty if the file has no content.
    pub default: &'static str,
    /// How the kernel changes a written value.
    pub normalise: Normalise,
}

/// The vendor kernel, such as openEuler's, without which the files of a row do not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vendor {
    /// Name of the vendor kernel.
    pub kernel: &'static str,
    /// Other settings that the knob needs to work.
    pub needs: &'static str,
    /// How we know the facts in the row.
    pub evidence: Evidence,
}

/// How we know a fact about a kernel. We could not install vendors' kernels for our tests, so we put the vendor's code
/// onto a Debian kernel of the same version, or only read the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// We tried it on a running kernel with this code.
    Observed(&'static str),
    /// We read it in this source.
    Documented(&'static str),
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Evidence::Observed(kernel) => write!(f, "observed on {kernel}"),
            Evidence::Documented(source) => write!(f, "documented in {source}, not observed"),
        }
    }
}

/// The groups in which a v2 file exists. (In v1 the root has all files except those of pids, the freezer and BFQ.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The file exists in every group.
    All,
    /// The file exists in every group except the root.
    NonRoot,
    /// The file exists in the root only.
    RootOnly,
}

/// The order that the kernel's rules require for writes to a knob, across the tree or within one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KnobOrder {
    /// Any order.
    Free,
    /// A child's value must stay within its parent's value. When values become wider, a plan writes the parent first;
    /// when they become tighter, it writes the child first.
    WithinParent,
    /// The period of a quota: a plan writes a longer period before the quota, a shorter one after it.
    AroundQuota,
    /// The kernel refuses writes while `cpu.idle` is 1 (EINVAL): a plan writes the knob before it sets `cpu.idle`, or
    /// after it clears `cpu.idle`.
    NotWhileIdle,
    /// The knob sets the class or depends on other knobs: a plan sets it last and clears it first.
    Last,
    /// The value must not be less than the value of the named file in the same group.
    AtLeast(&'static str),
}

/// How commensal uses a knob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KnobStatus {
    /// commensal writes the knob.
    Driven,
    /// commensal reads and displays the knob, but does not write it.
    Shown,
    /// commensal describes the knob but does not write it yet; the string names what is missing.
    DriverToCome(&'static str),
}

/// The meaning of an error number when a write to this knob fails with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrnoMeaning {
    /// The error number.
    pub errno: Errno,
    /// Why the kernel returns the error number.
    pub because: &'static str,
    /// What the user can do about the error.
    pub try_this: &'static str,
}

/// One row of the knob table.
#[derive(Debug, Clone, Copy)]
pub struct Knob {
    /// Identifier of the row in code.
    pub id: KnobId,
    /// commensal's name for the knob; this is the v2 name if v2 has a name for the knob.
    pub name: &'static str,
    /// The controller that the knob belongs to.
    pub controller: Controller,
    /// Unit of the knob's numbers.
    pub unit: &'static str,
    /// The knob's file in cgroup v1, if v1 has the knob.
    pub v1: Option<File>,
    /// The knob's file in cgroup v2, if v2 has the knob.
    pub v2: Option<File>,
    /// The vendor, if only one vendor's kernel has the files.
    pub vendor: Option<Vendor>,
    /// The groups in which the file exists.
    pub scope: Scope,
    /// The required order of writes.
    pub order: KnobOrder,
    /// How commensal uses the knob.
    pub status: KnobStatus,
    /// The property of a systemd unit with the same effect.
    pub systemd: Property,
    /// Meanings of the error numbers with which a write to this knob can fail.
    pub errnos: &'static [ErrnoMeaning],
    /// One sentence for the reference documentation.
    pub doc: &'static str,
}

/// A property of a systemd unit with the same effect as a knob (systemd.resource-control(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Property {
    /// No property has the same effect.
    None,
    /// The property takes the knob's number unchanged.
    Number(&'static str),
    /// The property takes a disk and the knob's number.
    PerDisk(&'static str),
    /// The property takes the same amount, expressed differently.
    Converted(&'static str),
}

impl Knob {
    /// The knob's file in a hierarchy of this version; `None` if that version does not have the knob.
    #[must_use]
    pub fn file(&self, version: Version) -> Option<&File> {
        match version {
            Version::V1 => self.v1.as_ref(),
            Version::V2 => self.v2.as_ref(),
        }
    }

    /// The meaning of `errno` for this knob; `None` if the table has no meaning for it.
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

    /// The knob with this name; `None` for an unknown name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<KnobId> {
        TABLE.iter().find(|knob| knob.name == name).map(|knob| knob.id)
    }

    /// A value as users read it: the states of the freezer in the words of its v1 file, everything else as a number.
    #[must_use]
    pub fn shown(self, value: &Value) -> String {
        match (self, value) {
            (KnobId::CgroupFreeze, Value::Number(0)) => "THAWED".to_owned(),
            (KnobId::CgroupFreeze, Value::Number(1)) => "FROZEN".to_owned(),
            _ => value.to_string(),
        }
    }
}

impl fmt::Display for KnobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().name)
    }
}

impl File {
    /// Whether the file contains one line per device.
    #[must_use]
    pub fn per_device(&self) -> bool {
        matches!(self.form, Form::DeviceNumber | Form::DeviceKey(_) | Form::DeviceFlag(_))
    }
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
