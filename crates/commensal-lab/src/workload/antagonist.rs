//! Antagonists: built-in offline (batch) work. Each kind stresses one resource and counts its units of work.
//!
//! | kind | stresses | unit of work | meaning of `size` |
//! |---|---|---|---|
//! | `cpu` | CPU time | chunks | – |
//! | `vector` | floating-point units of a shared core, and its frequency | chunks | – |
//! | `l2` | the core's cache | loads | bytes per thread |
//! | `l3` | the cache that cores share | loads | bytes per thread |
//! | `memory` | memory bandwidth | MiB moved | bytes per thread, for three arrays together |
//! | `page-cache` | page cache and write-back | MiB | bytes of the file per thread |
//! | `fork` | kernel locks, page tables, TLB | processes | – |
//! | `disk` | the device's queue | writes that reached the device | bytes of the file per thread |
//! | `network` | soft interrupts and the network stack, on loopback | KiB | – |
//!
//! Every kind runs in threads, which write their counts to a counter file like that of [`burn`](super::burn). The
//! conductor (the part of the lab that runs experiments) therefore reads all kinds with
//! [`WorkCounter`](super::burn::WorkCounter). Counts of different kinds are not comparable. An antagonist uses at most
//! `threads * size` of memory or disk space, and refuses to start if that is more than half of the main memory, or of
//! the free disk space. Its files have no name, so a killed process leaves no file.
//!
//! The vector loop is as wide as the compiler's target allows, which is 128 bits in a plain x86-64 build; wider
//! instructions would need `unsafe` code.

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
    /// CPU time, in the chunks of [`burn`](super::burn).
    Cpu,
    /// Floating-point units.
    Vector,
    /// The cache of each core.
    L2,
    /// The cache that cores share.
    L3,
    /// Memory bandwidth.
    Memory,
    /// Page cache.
    PageCache,
    /// Process creation.
    Fork,
    /// The queue of the disk.
    Disk,
    /// The network stack.
    Network,
}

/// One kind of antagonist and its properties.
#[derive(Debug)]
pub struct KindRow {
    /// The name on the command line.
    pub name: &'static str,
    /// The kind.
    pub kind: Kind,
    /// Name of one unit of work.
    pub unit: &'static str,
    /// Default of the option `size`, in bytes per thread; `None` for kinds without a size.
    pub size: Option<u64>,
}

const fn row(name: &'static str, kind: Kind, unit: &'static str, size: Option<u64>) -> KindRow {
    KindRow { name, kind, unit, size }
}

impl Kind {
    /// All kinds. The best values for `size` are the machine's own cache sizes, not these defaults.
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
        // Every kind has a row, so the fallback is never used.
        Self::TABLE.iter().find(|row| row.kind == self).unwrap_or(&Self::TABLE[0])
    }

    /// Returns the name of one unit of work.
    #[must_use]
    pub fn unit(self) -> &'static str {
        self.row().unit
    }

    /// Returns the default of the option `size`, in bytes per thread; `None` for kinds without a size.
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
            format!("no antagonist {name:?}; the choices are {}", Self::TABLE.map(|row| row.name).join(", "))
        })
    }
}

/// Formats the name of the offline work of an arm (one condition of an experiment): `memory`, or `memory:4` with the
/// number of threads.
#[must_use]
pub fn arm_name(kind: Kind, threads: usize) -> String {
    format!("{kind}:{threads}")
}

/// Parses a name as [`arm_name`] formats it. The number of threads is `None` if the name has none; the antagonist then
/// has one thread per CPU.
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

/// Parameters of an antagonist.
#[derive(Debug)]
pub struct AntagonistOptions {
    /// The resource to stress.
    pub kind: Kind,
    /// Number of threads, 1 to [`MAX_THREADS`](super::burn::MAX_THREADS).
    pub threads: usize,
    /// Bytes per thread; `None` uses the kind's default. Kinds without a size allow only `None`.
    pub size: Option<u64>,
    /// Directory for the files of `page-cache` and `disk`. The directory must not be on a memory file system, where
    /// these kinds would not stress a disk.
    pub dir: PathBuf,
    /// Time after which the antagonist stops by itself; `None` if it runs until the process dies.
    pub duration: Option<Duration>,
    /// The counter file; `None` if the antagonist reports no counts.
    pub counter: Option<OwnedFd>,
}

/// Runs until the duration is over or the process dies; returns the units of work done.
///
/// # Errors
/// If an option is invalid, a thread cannot start, its work fails, or the counter cannot be written.
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

/// Returns `size`, or the kind's default if `size` is `None`. Returns an error if the size is too small, or if all
/// threads together would use more than half of the main memory.
fn size_of(kind: Kind, threads: usize, size: Option<u64>) -> Result<u64, LabError> {
    let refuse = |value: u64, reason: &str| refuse("size", value, reason);
    let Some(default) = kind.default_size() else {
        return size.map_or(Ok(0), |size| Err(refuse(size, "this antagonist does not use a size")));
    };
    let size = size.unwrap_or(default);
    if size < 64 * KIB {
        return Err(refuse(size, "the size must be at least 65536 bytes"));
    }
    let system = rustix::system::sysinfo();
    #[allow(clippy::unnecessary_cast, reason = "the fields are narrower on 32-bit machines")]
    let half = (system.totalram as u64).saturating_mul(u64::from(system.mem_unit)) / 2;
    let in_memory = matches!(kind, Kind::L2 | Kind::L3 | Kind::Memory);
    if in_memory && size.saturating_mul(threads as u64) > half {
        return Err(refuse(size, "threads times size must be at most half of the main memory"));
    }
    Ok(size)
}
