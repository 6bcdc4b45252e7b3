//! The machine as plain data: logical CPUs with their cores, siblings, caches and NUMA nodes; memory; disks.
//!
//! The sensors fill in these types; if the machine does not report a fact, the field is `None`.

use crate::cpuset::CpuSet;
use crate::units::Bytes;
use std::collections::BTreeMap;
use std::fmt;

/// One logical CPU (hardware thread).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogicalCpu {
    /// The kernel's number of the CPU.
    pub id: u32,
    /// Physical package (socket).
    pub package: Option<u32>,
    /// Core number within the package.
    pub core: Option<u32>,
    /// CPUs (hardware threads) of the same core, including this CPU.
    pub siblings: CpuSet,
    /// CPUs that share the last-level cache, including this CPU.
    pub llc: Option<CpuSet>,
    /// NUMA node.
    pub node: Option<u32>,
}

/// The logical CPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Topology {
    /// The online CPUs, in ascending order.
    pub cpus: Vec<LogicalCpu>,
    /// The CPUs that the kernel can bring online (`/sys/devices/system/cpu/possible`) and that are offline.
    pub offline: CpuSet,
}

impl Topology {
    /// Number of online logical CPUs.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.cpus.len()
    }

    /// Number of physical cores.
    #[must_use]
    pub fn cores(&self) -> usize {
        let mut siblings: Vec<&CpuSet> = self.cpus.iter().map(|cpu| &cpu.siblings).collect();
        siblings.sort();
        siblings.dedup();
        siblings.len()
    }

    /// Whether some core has more than one online thread.
    #[must_use]
    pub fn smt(&self) -> bool {
        self.cpus.iter().any(|cpu| cpu.siblings.len() > 1)
    }

    /// All online CPUs.
    #[must_use]
    pub fn all(&self) -> CpuSet {
        self.cpus.iter().map(|cpu| cpu.id).collect()
    }

    /// All CPUs that are or can come online.
    #[must_use]
    pub fn possible(&self) -> CpuSet {
        self.all().union(&self.offline)
    }

    /// CPUs by NUMA node; empty if the machine does not report NUMA nodes.
    #[must_use]
    pub fn nodes(&self) -> BTreeMap<u32, CpuSet> {
        let mut nodes: BTreeMap<u32, CpuSet> = BTreeMap::new();
        for cpu in &self.cpus {
            if let Some(node) = cpu.node {
                nodes.entry(node).or_default().insert(cpu.id);
            }
        }
        nodes
    }

    /// Sets of CPUs that share a last-level cache.
    #[must_use]
    pub fn llcs(&self) -> Vec<CpuSet> {
        let mut llcs: Vec<CpuSet> = self.cpus.iter().filter_map(|cpu| cpu.llc.clone()).collect();
        llcs.sort();
        llcs.dedup();
        llcs
    }
}

/// A block device number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Device {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl std::str::FromStr for Device {
    type Err = String;
    fn from_str(text: &str) -> Result<Device, String> {
        let refused = || format!("{text:?} is not a device number such as \"254:0\"");
        let (major, minor) = text.trim().split_once(':').ok_or_else(refused)?;
        match (major.parse(), minor.parse()) {
            (Ok(major), Ok(minor)) => Ok(Device { major, minor }),
            _ => Err(refused()),
        }
    }
}

/// A whole disk to which I/O limits can apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// Kernel name, for example `nvme0n1`.
    pub name: String,
    /// Device number.
    pub device: Device,
    /// I/O scheduler of the disk, for example `bfq` or `mq-deadline`; `None` if the machine does not report a
    /// scheduler.
    pub scheduler: Option<String>,
}

/// Hardware of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// CPUs.
    pub topology: Topology,
    /// Physical memory.
    pub memory: Bytes,
    /// Whole disks, without loop, RAM and compressed-memory devices.
    pub disks: Vec<Disk>,
}

impl Machine {
    /// A machine with `cpus` single-threaded cores, one NUMA node and one disk, for tests and examples.
    #[must_use]
    pub fn simple(cpus: u32, memory: Bytes) -> Machine {
        let all: CpuSet = (0..cpus).collect();
        let cpu = |id| LogicalCpu {
            id,
            package: Some(0),
            core: Some(id),
            siblings: [id].into_iter().collect(),
            llc: Some(all.clone()),
            node: Some(0),
        };
        let topology = Topology { cpus: (0..cpus).map(cpu).collect(), ..Topology::default() };
        let disk = Disk { name: "vda".to_owned(), device: Device { major: 254, minor: 0 }, scheduler: None };
        Machine { topology, memory, disks: vec![disk] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_cores_by_their_siblings() {
        let mut machine = Machine::simple(4, Bytes(1 << 30));
        assert_eq!((machine.topology.cores(), machine.topology.smt()), (4, false));
        for cpu in &mut machine.topology.cpus {
            let first = cpu.id / 2 * 2;
            cpu.siblings = [first, first + 1].into_iter().collect();
        }
        assert_eq!((machine.topology.cores(), machine.topology.smt()), (2, true));
        assert_eq!(machine.topology.llcs().len(), 1);
        assert_eq!(machine.topology.nodes()[&0].to_string(), "0-3");
    }

    #[test]
    fn device_numbers() {
        assert_eq!("254:16".parse::<Device>().map(|d| d.to_string()), Ok("254:16".to_owned()));
        assert!("254".parse::<Device>().is_err());
        assert!("a:b".parse::<Device>().is_err());
    }
}
