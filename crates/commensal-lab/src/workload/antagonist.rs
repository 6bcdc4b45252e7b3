//! Built-in offline work: each kind stresses one resource and counts its work.
//!
//! | kind | takes from others | unit of work | `size` is |
//! |---|---|---|---|
//! | `cpu` | CPU time | chunks | – |
//! | `vector` | floating-point units of a shared core, and its frequency | chunks | – |
//! | `l2` | the core's cache | loads | bytes per thread |
//! | `l3` | the cache that cores share | loads | bytes per thread |
//! | `memory` | memory bandwidth | MiB moved | bytes per thread, three arrays together |
//! | `page-cache` | page cache and write-back | MiB | bytes of file per thread |
//! | `fork` | kernel locks, page tables, TLB | processes | – |
//! | `disk` | the device's queue | writes that reached it | bytes of file per thread |
//! | `network` | soft interrupts and the network stack, on loopback | KiB | – |
//!
//! Every kind runs in threads that write their counts where [`burn`](super::burn) writes its chunks, so the conductor
//! reads them with the same [`WorkCounter`](super::burn::WorkCounter). Counts of different kinds do not compare.
//! Memory and disk are bounded by `threads * size`, and refused above half of what the machine has. Files have no
//! name, so nothing is left behind when the process is killed.
//!
//! The vector loop is as wide as the compiler's target allows: 128 bits on a plain x86-64 build, since wider
//! instructions would need `unsafe` here.

mod compute;
mod storage;
mod storm;
#[cfg(test)]
mod tests;
mod walk;

use super::burn::{Hog, Piece};
use super::refuse;
use crate::error::LabError;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The resource to stress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// CPU time: the chunks of [`burn`](super::burn).
    Cpu,
    /// Floating-point units.
    Vector,
    /// The core's own cache.
    L2,
    /// The shared cache.
    L3,
    /// Memory bandwidth.
    Memory,
    /// Page cache.
    PageCache,
    /// Process creation.
    Fork,
    /// The disk.
    Disk,
    /// The network stack.
    Network,
}

/// One row of the table of kinds.
#[derive(Debug)]
pub struct KindRow {
    /// The name on the command line.
    pub name: &'static str,
    /// The kind.
    pub kind: Kind,
    /// What one unit of its work is.
    pub unit: &'static str,
    /// `size` unless told otherwise, bytes per thread; `None` where there is no size.
    pub size: Option<u64>,
}

const fn row(name: &'static str, kind: Kind, unit: &'static str, size: Option<u64>) -> KindRow {
    KindRow { name, kind, unit, size }
}

impl Kind {
    /// All kinds. A machine's own cache sizes make better walkers than these defaults: pass them as `size`.
    pub const TABLE: [KindRow; 9] = [
        row("cpu", Self::Cpu, "chunks", None),
        row("vector", Self::Vector, "chunks", None),
        row("l2", Self::L2, "loads", Some(MIB)),
        row("l3", Self::L3, "loads", Some(16 * MIB)),
        row("memory", Self::Memory, "MiB", Some(384 * MIB)),
        row("page-cache", Self::PageCache, "MiB", Some(256 * MIB)),
        row("fork", Self::Fork, "processes", None),
        row("disk", Self::Disk, "writes", Some(64 * MIB)),
        row("network", Self::Network, "KiB", None),
    ];

    fn row(self) -> &'static KindRow {
        // Every kind has a row; the first would be wrong but harmless.
        Self::TABLE.iter().find(|row| row.kind == self).unwrap_or(&Self::TABLE[0])
    }

    /// What one unit of its work is.
    #[must_use]
    pub fn unit(self) -> &'static str {
        self.row().unit
    }

    /// `size` unless told otherwise, bytes per thread; `None` where there is no size.
    #[must_use]
    pub fn default_size(self) -> Option<u64> {
        self.row().size
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().name)
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::TABLE.iter().find(|row| row.name == name).map(|row| row.kind);
        found.ok_or_else(|| {
            format!("no antagonist {name:?}; there is {}", Self::TABLE.map(|row| row.name).join(", "))
        })
    }
}

/// Name of the offline work of an arm: `memory`, or `memory:4` with the number of threads.
#[must_use]
pub fn arm_name(kind: Kind, threads: usize) -> String {
    format!("{kind}:{threads}")
}

/// Parses such a name; without a number there is one thread per CPU.
#[must_use]
pub fn of_arm(name: &str) -> Option<(Kind, Option<usize>)> {
    match name.split_once(':') {
        None => Some((name.parse().ok()?, None)),
        Some((kind, threads)) => {
            let threads =
                threads.parse().ok().filter(|threads| (1..=super::burn::MAX_THREADS).contains(threads));
            Some((kind.parse().ok()?, Some(threads?)))
        }
    }
}

/// What to run.
#[derive(Debug)]
pub struct AntagonistOptions {
    /// The resource to stress.
    pub kind: Kind,
    /// Threads, 1 to [`MAX_THREADS`](super::burn::MAX_THREADS).
    pub threads: usize,
    /// Bytes per thread; `None` is the kind's default. Refused by kinds without a size.
    pub size: Option<u64>,
    /// Folder for the files of `page-cache` and `disk`; it must not be on a memory file system, which would stress
    /// neither.
    pub dir: PathBuf,
    /// When to stop by itself; `None` runs until killed.
    pub duration: Option<Duration>,
    /// The counter file; `None` reports nothing.
    pub counter: Option<OwnedFd>,
}

/// Runs until killed or until the duration is over; returns the units of work done.
///
/// # Errors
/// On impossible options, when a thread cannot start or its work cannot be done, or when the counter cannot be
/// written.
pub fn run(options: AntagonistOptions) -> Result<u64, LabError> {
    let AntagonistOptions { kind, threads, size, dir, duration, counter } = options;
    let size = size_of(kind, threads, size)?;
    let hog = Hog { name: kind.row().name, threads, duration, counter };
    match kind {
        Kind::Cpu => hog.run(&|_| Ok(compute::cpu())),
        Kind::Vector => hog.run(&|_| Ok(compute::vector())),
        Kind::L2 | Kind::L3 => hog.run(&|thread| Ok(walk::chase(size, thread as u64))),
        Kind::Memory => hog.run(&|_| Ok(walk::triad(size))),
        Kind::PageCache | Kind::Disk => {
            let make: fn(OwnedFd, u64) -> Piece =
                if kind == Kind::Disk { storage::sync } else { storage::churn };
            storage::check_room(&dir, size, threads)?;
            hog.run(&|_| Ok(make(storage::nameless(&dir, size)?, size)))
        }
        Kind::Fork => hog.run(&|_| Ok(storm::fork())),
        Kind::Network => hog.run(&|_| storm::stream()),
    }
}

/// The size to use: that of the options or the default, within what the machine has.
fn size_of(kind: Kind, threads: usize, size: Option<u64>) -> Result<u64, LabError> {
    let refuse = |value: u64, reason: &str| refuse("size", value, reason);
    let Some(default) = kind.default_size() else {
        return size.map_or(Ok(0), |size| Err(refuse(size, "this antagonist has no size")));
    };
    let size = size.unwrap_or(default);
    if size < 64 * KIB {
        return Err(refuse(size, "at least 65536 bytes"));
    }
    let system = rustix::system::sysinfo();
    #[allow(clippy::unnecessary_cast, reason = "the fields are narrower on 32-bit machines")]
    let half = (system.totalram as u64).saturating_mul(u64::from(system.mem_unit)) / 2;
    let in_memory = matches!(kind, Kind::L2 | Kind::L3 | Kind::Memory);
    if in_memory && size.saturating_mul(threads as u64) > half {
        return Err(refuse(size, "threads times size may take half of the main memory"));
    }
    Ok(size)
}
