//! The limits of a group, one row each; parsing, planning and display all use these rows.
//!
//! ```text
//! groups file ── Written ──► resolve, on this machine ── Limit ──► Setting of the row's knob ──► plan
//!                   └ the row's unit reads it                └ shown under the row's key
//! ```
//! A limit that is written unchanged (`Write::Plain`, `Write::PerDisk`) needs no code besides its row. If the value of
//! a limit depends on the machine or on other groups (a quota and its period, the weight of an offline group), a
//! separate planner computes it (`Write::Planned`). A knob is a kernel setting of a cgroup.

use crate::cpuset::CpuSet;
use crate::group::Partition;
use crate::knob::{Knob, KnobId, Value};
use crate::topology::Machine;
use crate::units::{Bytes, BytesPerS, CpuAmount, IoPerS, MemoryAmount, MicroCpus, Micros, Weight};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

/// The unit of a limit; it determines how the limit is parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A weight from 1 to 10,000.
    Weight,
    /// CPUs, or a share of the machine.
    Cpus,
    /// A list of CPUs.
    CpuSet,
    /// A kind of partition: `root` or `isolated`.
    Partition,
    /// Bytes, or a share of the machine's memory.
    Memory,
    /// Bytes per second.
    Rate,
    /// Operations per second.
    Operations,
    /// A short span of time.
    Time,
    /// A whole number within these bounds.
    Count(u32, u32),
    /// `true` or `false`.
    Switch,
}

/// How a plan writes a limit to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// The plan writes the amount to this knob.
    Plain(KnobId),
    /// The plan writes the amount to this knob for each of the group's disks.
    PerDisk(KnobId),
    /// A separate planner computes the value of this knob.
    Planned(KnobId),
}

/// Whether an online group keeps the limit when no agent runs. (Offline groups keep all their limits.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unattended {
    /// The group keeps the limit, because the limit protects it.
    Stays,
    /// The group loses the limit, because no agent adapts it any more.
    Lifted,
    /// The group keeps the limit if it also has the named limit.
    StaysWith(LimitId),
}

/// A row of the table of limits.
#[derive(Debug)]
pub struct Row {
    /// Identifier of the row in code.
    pub id: LimitId,
    /// The limit's key in a groups file.
    pub key: &'static str,
    /// The unit in which users write the limit.
    pub unit: Unit,
    /// How a plan writes the limit.
    pub write: Write,
    /// Whether an online group keeps the limit when no agent runs.
    pub unattended: Unattended,
    /// Why an online group cannot have the limit; `None` if it can.
    pub not_online: Option<&'static str>,
    /// Why an offline group cannot have the limit; `None` if it can.
    pub not_offline: Option<&'static str>,
    /// Another limit without which this limit has no effect.
    pub needs: Option<LimitId>,
    /// One sentence for the reference documentation.
    pub doc: &'static str,
}

macro_rules! limits {
    ($($id:ident { $($field:ident : $value:expr),* $(,)? })*) => {
        /// Identifier of a row of [`LIMITS`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs, reason = "the row documents itself")]
        pub enum LimitId { $($id),* }

        /// Every limit, in the order of [`LimitId`].
        pub static LIMITS: &[Row] = &[$(Row { id: LimitId::$id, $($field: $value,)* ..PLAIN }),*];
    };
}

const PLAIN: Row = Row {
    id: LimitId::CpuWeight,
    key: "",
    unit: Unit::Switch,
    write: Write::Planned(KnobId::CpuWeight),
    unattended: Unattended::Lifted,
    not_online: None,
    not_offline: None,
    needs: None,
    doc: "",
};

limits! {
    CpuWeight {
        key: "cpu.weight", unit: Unit::Weight, write: Write::Planned(KnobId::CpuWeight), unattended: Unattended::Stays,
        doc: "Share of CPU time among siblings when CPUs are contended (soft limit); 100 is the default.",
    }
    CpuMax {
        key: "cpu.max", unit: Unit::Cpus, write: Write::Planned(KnobId::CpuMax),
        not_online: Some("would stall the online group that it is meant to serve (threads stopped by a quota keep their \
                          locks); leave it out, or set class = \"offline\""),
        doc: "CPU hard limit, as CPUs (\"2.5 cores\") or as a share of the machine (\"50 %\").",
    }
    CpuBurst {
        key: "cpu.burst", unit: Unit::Time, write: Write::Plain(KnobId::CpuBurst), needs: Some(LimitId::CpuMax),
        doc: "Unused time of cpu.max that may be saved up and spent later, at most one quota.",
    }
    CpuSet {
        key: "cpu.set", unit: Unit::CpuSet, write: Write::Planned(KnobId::CpusetCpus), unattended: Unattended::StaysWith(LimitId::CpuPartition),
        doc: "CPUs to run on, such as \"0-3,8\".",
    }
    CpuPartition {
        key: "cpu.partition", unit: Unit::Partition, write: Write::Planned(KnobId::CpusetPartition), unattended: Unattended::Stays, needs: Some(LimitId::CpuSet),
        doc: "Reserves the CPUs of cpu.set for the group (cgroup v2): \"root\", or \"isolated\" without load balancing.",
    }
    CpuQosLevel {
        key: "cpu.qos-level", unit: Unit::Count(1, 2), write: Write::Planned(KnobId::CpuQosLevel), unattended: Unattended::Stays,
        not_offline: Some("is a level of online groups; offline groups have -1 by their class"),
        doc: "Level of an online group on kernels of openEuler with five levels: 1 is ten and 2 a hundred times the weight of groups without a level. The kernel does not allow the level to be changed again, so undo moves the members to a fresh group.",
    }
    MemoryMin {
        key: "memory.min", unit: Unit::Memory, write: Write::Plain(KnobId::MemoryMin), unattended: Unattended::Stays,
        doc: "Memory of the group that the kernel never reclaims.",
    }
    MemoryLow {
        key: "memory.low", unit: Unit::Memory, write: Write::Plain(KnobId::MemoryLow), unattended: Unattended::Stays,
        doc: "Memory of the group that the kernel reclaims last.",
    }
    MemoryHigh {
        key: "memory.high", unit: Unit::Memory, write: Write::Plain(KnobId::MemoryHigh),
        doc: "Memory above which the kernel slows the group down and reclaims from it.",
    }
    MemoryMax {
        key: "memory.max", unit: Unit::Memory, write: Write::Plain(KnobId::MemoryMax),
        doc: "Memory hard limit; memory.on-exceed determines what happens when it is reached.",
    }
    IoRead {
        key: "io.read", unit: Unit::Rate, write: Write::PerDisk(KnobId::IoReadBps),
        doc: "Maximum read rate from each disk.",
    }
    IoWrite {
        key: "io.write", unit: Unit::Rate, write: Write::PerDisk(KnobId::IoWriteBps),
        doc: "Maximum write rate to each disk.",
    }
    IoReadIops {
        key: "io.read-iops", unit: Unit::Operations, write: Write::PerDisk(KnobId::IoReadIops),
        doc: "Maximum rate of read operations on each disk.",
    }
    IoWriteIops {
        key: "io.write-iops", unit: Unit::Operations, write: Write::PerDisk(KnobId::IoWriteIops),
        doc: "Maximum rate of write operations on each disk.",
    }
    IoWeight {
        key: "io.weight", unit: Unit::Weight, write: Write::Planned(KnobId::IoWeight), unattended: Unattended::Stays,
        doc: "Share of disk time among siblings; it needs io.cost or the BFQ scheduler.",
    }
    IoCost {
        key: "io.cost", unit: Unit::Switch, write: Write::Planned(KnobId::IoCostQos), unattended: Unattended::Stays, needs: Some(LimitId::IoWeight),
        doc: "Turns cost-based control of the disks on, for all of their users (cgroup v2).",
    }
    PidsMax {
        key: "pids.max", unit: Unit::Count(1, 4_194_304), write: Write::Plain(KnobId::PidsMax),
        doc: "Maximum number of tasks.",
    }
    Frozen {
        key: "frozen", write: Write::Plain(KnobId::CgroupFreeze), unattended: Unattended::Stays,
        not_online: Some("would freeze the online group until the key is removed"),
        doc: "Freezes all tasks of the group.",
    }
}

impl Row {
    /// The knob that sets the limit in the kernel; a planner may also write other knobs.
    #[must_use]
    pub fn knob(&self) -> &'static Knob {
        match self.write {
            Write::Plain(knob) | Write::PerDisk(knob) | Write::Planned(knob) => knob.row(),
        }
    }

    /// Whether the limit restrains a group by itself, and a plan writes it unchanged, independently of the machine and
    /// of other limits.
    #[must_use]
    pub fn holds_back_plainly(&self) -> bool {
        !matches!(self.write, Write::Planned(_))
            && self.unattended == Unattended::Lifted
            && self.needs.is_none()
    }
}

impl LimitId {
    /// The limit's row.
    #[must_use]
    pub fn row(self) -> &'static Row {
        &LIMITS[self as usize]
    }
}

/// The amount of a limit that is either on or absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct On;

impl fmt::Display for On {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("true")
    }
}

macro_rules! amounts {
    ($($variant:ident($written:ty => $here:ty) $doc:literal)*) => {
        /// The amount of a limit as the user wrote it.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Written { $(#[doc = $doc] $variant($written)),* }

        /// The amount of a limit on this machine.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Limit { $(#[doc = $doc] $variant($here)),* }

        impl fmt::Display for Limit {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self { $(Limit::$variant(amount) => amount.fmt(f)),* }
            }
        }

        $(
            impl Pair for ($written, $here) {
                type Written = $written;
                type Here = $here;
                fn from_written(amount: &Written) -> Option<&$written> {
                    if let Written::$variant(amount) = amount { Some(amount) } else { None }
                }
                fn from_here(amount: &Limit) -> Option<&$here> {
                    if let Limit::$variant(amount) = amount { Some(amount) } else { None }
                }
                fn to_written(amount: $written) -> Written {
                    Written::$variant(amount)
                }
                fn to_here(amount: $here) -> Limit {
                    Limit::$variant(amount)
                }
            }
        )*
    };
}

/// The two types of a limit's amount: as written by the user, and on this machine.
pub trait Pair {
    /// Type of the amount as written.
    type Written: Clone;
    /// Type of the amount on this machine.
    type Here: Clone;
    /// The amount in this type; `None` if the amount has another type.
    fn from_written(amount: &Written) -> Option<&Self::Written>;
    /// The amount in this type; `None` if the amount has another type.
    fn from_here(amount: &Limit) -> Option<&Self::Here>;
    /// Wraps the amount in a [`Written`].
    fn to_written(amount: Self::Written) -> Written;
    /// Wraps the amount in a [`Limit`].
    fn to_here(amount: Self::Here) -> Limit;
}

amounts! {
    Weight(Weight => Weight) "A weight."
    Cpus(CpuAmount => MicroCpus) "CPUs."
    CpuSet(CpuSet => CpuSet) "A list of CPUs."
    Partition(Partition => Partition) "A kind of partition."
    Memory(MemoryAmount => Bytes) "Memory."
    Rate(BytesPerS => BytesPerS) "Bytes per second."
    Operations(IoPerS => IoPerS) "Operations per second."
    Time(Micros => Micros) "A short span of time."
    Count(u32 => u32) "A number."
    Switch(On => On) "On."
}

impl Written {
    /// Converts the amount to the units of a machine.
    #[must_use]
    pub fn on(&self, machine: &Machine) -> Limit {
        match self {
            Written::Weight(weight) => Limit::Weight(*weight),
            Written::Cpus(amount) => Limit::Cpus(amount.on(machine.topology.threads())),
            Written::CpuSet(set) => Limit::CpuSet(set.clone()),
            Written::Partition(kind) => Limit::Partition(*kind),
            Written::Memory(amount) => Limit::Memory(amount.on(machine.memory)),
            Written::Rate(rate) => Limit::Rate(*rate),
            Written::Operations(rate) => Limit::Operations(*rate),
            Written::Time(time) => Limit::Time(*time),
            Written::Count(number) => Limit::Count(*number),
            Written::Switch(on) => Limit::Switch(*on),
        }
    }
}

impl Limit {
    /// Converts the amount to a knob's value, for a limit that a plan writes unchanged.
    #[must_use]
    pub fn value(&self) -> Value {
        let number = |number: u64| Value::Number(i64::try_from(number).unwrap_or(i64::MAX));
        match self {
            Limit::Weight(weight) => Value::Number(i64::from(weight.v2())),
            Limit::Cpus(amount) => number(amount.0),
            Limit::CpuSet(set) => Value::List(set.clone()),
            Limit::Partition(kind) => Value::Word(kind.to_string()),
            Limit::Memory(bytes) => number(bytes.0),
            Limit::Rate(rate) => number(rate.0),
            Limit::Operations(rate) => number(rate.0),
            Limit::Time(time) => number(time.0),
            Limit::Count(count) => Value::Number(i64::from(*count)),
            Limit::Switch(On) => Value::Number(1),
        }
    }
}

/// Typed key of a limit: `limits.get(CPU_MAX)` returns a `MicroCpus` for limits on a machine, and a `CpuAmount` for
/// limits as written.
#[derive(Debug)]
pub struct Key<P>(LimitId, PhantomData<fn() -> P>);

impl<P> Key<P> {
    /// The limit's key in a groups file.
    #[must_use]
    pub fn key(&self) -> &'static str {
        self.0.row().key
    }
}

impl<P> Clone for Key<P> {
    fn clone(&self) -> Key<P> {
        *self
    }
}

impl<P> Copy for Key<P> {}

impl<P> Key<P> {
    const fn new(id: LimitId) -> Key<P> {
        Key(id, PhantomData)
    }

    /// Identifier of the limit's row.
    #[must_use]
    pub const fn id(&self) -> LimitId {
        self.0
    }
}

macro_rules! keys {
    ($($name:ident: $id:ident($written:ty => $here:ty))*) => {
        $(
            #[doc = concat!("[`LimitId::", stringify!($id), "`]")]
            pub const $name: Key<($written, $here)> = Key::new(LimitId::$id);
        )*

        /// For each key, whether the parser of its row's unit returns the key's type.
        #[cfg(test)]
        fn keys() -> Vec<(LimitId, fn(&Limit) -> bool)> {
            vec![$((LimitId::$id, |limit| <($written, $here)>::from_here(limit).is_some())),*]
        }
    };
}

keys! {
    CPU_WEIGHT: CpuWeight(Weight => Weight)
    CPU_MAX: CpuMax(CpuAmount => MicroCpus)
    CPU_BURST: CpuBurst(Micros => Micros)
    CPU_SET: CpuSet(CpuSet => CpuSet)
    CPU_PARTITION: CpuPartition(Partition => Partition)
    CPU_QOS_LEVEL: CpuQosLevel(u32 => u32)
    MEMORY_MIN: MemoryMin(MemoryAmount => Bytes)
    MEMORY_LOW: MemoryLow(MemoryAmount => Bytes)
    MEMORY_HIGH: MemoryHigh(MemoryAmount => Bytes)
    MEMORY_MAX: MemoryMax(MemoryAmount => Bytes)
    IO_READ: IoRead(BytesPerS => BytesPerS)
    IO_WRITE: IoWrite(BytesPerS => BytesPerS)
    IO_READ_IOPS: IoReadIops(IoPerS => IoPerS)
    IO_WRITE_IOPS: IoWriteIops(IoPerS => IoPerS)
    IO_WEIGHT: IoWeight(Weight => Weight)
    IO_COST: IoCost(On => On)
    PIDS_MAX: PidsMax(u32 => u32)
    FROZEN: Frozen(On => On)
}

/// The limits of a group, or of a group on one disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitSet<A>(BTreeMap<LimitId, A>);

impl<A> Default for LimitSet<A> {
    fn default() -> LimitSet<A> {
        LimitSet(BTreeMap::new())
    }
}

impl<A> LimitSet<A> {
    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the set has this limit.
    #[must_use]
    pub fn has<P>(&self, key: Key<P>) -> bool {
        self.0.contains_key(&key.0)
    }

    /// Whether the set has the limit with this identifier.
    #[must_use]
    pub fn contains(&self, id: LimitId) -> bool {
        self.0.contains_key(&id)
    }

    /// All limits, in the order of the rows.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Row, &A)> {
        self.0.iter().map(|(id, amount)| (id.row(), amount))
    }

    /// The amount of the limit with this identifier; `None` if the set does not have it.
    #[must_use]
    pub fn amount(&self, id: LimitId) -> Option<&A> {
        self.0.get(&id)
    }

    /// Inserts a limit by its identifier.
    pub fn insert(&mut self, id: LimitId, amount: A) {
        self.0.insert(id, amount);
    }

    /// Keeps only the limits for whose rows `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(&'static Row) -> bool) {
        self.0.retain(|id, _| keep(id.row()));
    }

    /// Adds the limits of another set. A limit that both sets have gets the amount of the other set.
    pub fn extend(&mut self, other: LimitSet<A>) {
        self.0.extend(other.0);
    }
}

impl LimitSet<Written> {
    /// The amount of a limit as the user wrote it; `None` if the set does not have it.
    #[must_use]
    pub fn get<P: Pair>(&self, key: Key<P>) -> Option<P::Written> {
        self.0.get(&key.0).and_then(P::from_written).cloned()
    }

    /// Sets a limit, or removes it if the amount is `None`.
    pub fn set<P: Pair>(&mut self, key: Key<P>, amount: impl Into<Option<P::Written>>) {
        match amount.into() {
            Some(amount) => drop(self.0.insert(key.0, P::to_written(amount))),
            None => drop(self.0.remove(&key.0)),
        }
    }
}

impl LimitSet<Limit> {
    /// The amount of a limit on this machine; `None` if the set does not have it.
    #[must_use]
    pub fn get<P: Pair>(&self, key: Key<P>) -> Option<P::Here> {
        self.0.get(&key.0).and_then(P::from_here).cloned()
    }

    /// Sets a limit, or removes it if the amount is `None`.
    pub fn set<P: Pair>(&mut self, key: Key<P>, amount: impl Into<Option<P::Here>>) {
        match amount.into() {
            Some(amount) => drop(self.0.insert(key.0, P::to_here(amount))),
            None => drop(self.0.remove(&key.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// An example amount of a unit.
    fn some(unit: Unit) -> Written {
        match unit {
            Unit::Weight => Written::Weight(Weight::MIN),
            Unit::Cpus => Written::Cpus(CpuAmount::Cpus(MicroCpus(1))),
            Unit::CpuSet => Written::CpuSet(CpuSet::new()),
            Unit::Partition => Written::Partition(Partition::Root),
            Unit::Memory => Written::Memory(MemoryAmount::Bytes(Bytes(1))),
            Unit::Rate => Written::Rate(BytesPerS(1)),
            Unit::Operations => Written::Operations(IoPerS(1)),
            Unit::Time => Written::Time(Micros(1)),
            Unit::Count(low, _) => Written::Count(low),
            Unit::Switch => Written::Switch(On),
        }
    }

    // promise 6
    #[test]
    fn every_row_is_whole() {
        let keys: BTreeSet<&str> = LIMITS.iter().map(|row| row.key).collect();
        assert_eq!(keys.len(), LIMITS.len(), "each key once");
        for (index, row) in LIMITS.iter().enumerate() {
            assert_eq!(row.id as usize, index);
            assert!(row.doc.ends_with('.'), "{}", row.key);
            assert_eq!(row.knob().status, crate::knob::KnobStatus::Driven, "{}", row.key);
        }
        assert_eq!(super::keys().len(), LIMITS.len(), "each has a typed key");
        for (id, fits) in super::keys() {
            let machine = Machine::simple(2, Bytes(1 << 30));
            assert!(fits(&some(id.row().unit).on(&machine)), "{}", id.row().key);
        }
    }

    #[test]
    fn limits_are_set_and_taken_away() {
        let mut limits = LimitSet::<Limit>::default();
        limits.set(MEMORY_MAX, Bytes(7));
        limits.set(FROZEN, On);
        assert_eq!((limits.get(MEMORY_MAX), limits.get(MEMORY_HIGH)), (Some(Bytes(7)), None));
        let shown: Vec<String> = limits.iter().map(|(row, limit)| format!("{} = {limit}", row.key)).collect();
        assert_eq!(shown, ["memory.max = 7 B", "frozen = true"]);
        limits.set(MEMORY_MAX, None);
        limits.retain(|row| row.id != LimitId::Frozen);
        assert!(limits.is_empty());
    }
}
