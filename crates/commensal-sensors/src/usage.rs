//! Reads the CPU, memory and I/O use of a group from all mounted hierarchies, and computes the CPU time that no group
//! used.

use crate::pressure;
use commensal_core::actual::{CgroupPath, Hierarchy};
use commensal_core::knob::{Controller, Version};
use commensal_core::observe::{DiskUse, GroupUse, MachineCpu, OutOfMemory};
use commensal_core::topology::Device;
use commensal_host::{Dir, Host, below};
use std::collections::BTreeMap;
use std::path::Path;

/// One group's open directories, one for each hierarchy that has the group.
#[derive(Debug, Clone)]
pub struct GroupDirs {
    dirs: Vec<(Version, Controllers, Dir)>,
}

/// A set of controllers, one bit each: an agent keeps thousands of them.
#[derive(Debug, Clone, Copy)]
struct Controllers(u8);

impl Controllers {
    fn bit(controller: Controller) -> u8 {
        1 << controller as u8
    }

    fn of(hierarchy: &Hierarchy) -> Controllers {
        Controllers(hierarchy.controllers.iter().fold(0, |set, one| set | Controllers::bit(*one)))
    }

    fn contains(self, controller: Controller) -> bool {
        self.0 & Controllers::bit(controller) != 0
    }
}

impl GroupDirs {
    /// Opens the group at `path` in every hierarchy that has it.
    pub fn open(host: &mut dyn Host, hierarchies: &[Hierarchy], path: &CgroupPath) -> GroupDirs {
        let mut dirs = Vec::with_capacity(hierarchies.len());
        for hierarchy in hierarchies {
            if let Ok(dir) = host.open(&below(Path::new(&hierarchy.mount), path.as_str())) {
                dirs.push((hierarchy.version, Controllers::of(hierarchy), dir));
            }
        }
        dirs.shrink_to_fit();
        GroupDirs { dirs }
    }

    /// Returns the directory in the hierarchy with `controller`.
    #[must_use]
    pub fn of(&self, controller: Controller) -> Option<(Version, Dir)> {
        let found = self.dirs.iter().find(|(_, controllers, _)| controllers.contains(controller));
        found.map(|(version, _, dir)| (*version, *dir))
    }

    /// Returns all directories, for starting a process in the group.
    #[must_use]
    pub fn all(&self) -> Vec<Dir> {
        self.dirs.iter().map(|(_, _, dir)| *dir).collect()
    }

    /// Returns one of the directories, for its list of processes.
    #[must_use]
    pub fn any(&self) -> Option<Dir> {
        self.dirs.first().map(|(_, _, dir)| *dir)
    }

    /// Closes the directories.
    pub fn close(self, host: &mut dyn Host) {
        for (_, _, dir) in self.dirs {
            host.close(dir);
        }
    }

    /// Returns the memory in and below the group that cannot be reclaimed without swap, in bytes: anonymous and shared
    /// memory (Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst, `memory.stat`).
    pub fn held_bytes(&self, host: &mut dyn Host) -> Option<u64> {
        let (version, dir) = self.of(Controller::Memory)?;
        let text = host.read(dir, "memory.stat").ok()?;
        let names = match version {
            Version::V2 => ["anon", "shmem"],
            Version::V1 => ["total_rss", "total_shmem"],
        };
        let field = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            lines.find(|(known, _)| *known == name).and_then(|(_, value)| value.trim().parse::<u64>().ok())
        };
        Some(field(names[0])?.saturating_add(field(names[1]).unwrap_or(0)))
    }

    /// Returns the CPU time used so far, in microseconds; costs less than [`GroupDirs::read`].
    pub fn cpu_us(&self, host: &mut dyn Host) -> Option<u64> {
        match self.of(Controller::Cpuacct) {
            Some((_, dir)) => {
                host.read(dir, "cpuacct.usage").ok()?.trim().parse::<u64>().ok().map(|ns| ns / 1_000)
            }
            None => {
                let (_, dir) = self.of(Controller::Cpu)?;
                field(&host.read(dir, "cpu.stat").ok()?, "usage_usec")
            }
        }
    }

    /// Reads the kernel's out-of-memory counters.
    pub fn out_of_memory(&self, host: &mut dyn Host) -> OutOfMemory {
        let Some((version, dir)) = self.of(Controller::Memory) else { return OutOfMemory::default() };
        let (events, limit_hits) = match version {
            Version::V1 => (host.read(dir, "memory.oom_control").ok(), number(host, dir, "memory.failcnt")),
            Version::V2 => {
                let events = host.read(dir, "memory.events").ok();
                let limit_hits = events.as_deref().and_then(|text| field(text, "oom"));
                (events, limit_hits)
            }
        };
        OutOfMemory { kills: events.and_then(|text| field(&text, "oom_kill")), limit_hits }
    }

    /// Reads all counters.
    pub fn read(&self, host: &mut dyn Host) -> GroupUse {
        GroupUse { cpu_us: self.cpu_us(host), ..self.others(host) }
    }

    /// Returns the current memory use in and below the group, in bytes.
    pub fn memory_bytes(&self, host: &mut dyn Host) -> Option<u64> {
        let (version, dir) = self.of(Controller::Memory)?;
        let file = match version {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        };
        number(host, dir, file)
    }

    /// Reads all counters except the CPU time.
    pub fn others(&self, host: &mut dyn Host) -> GroupUse {
        let mut used = GroupUse::default();
        if let Some((version, dir)) = self.of(Controller::Cpu)
            && let Ok(stat) = host.read(dir, "cpu.stat")
        {
            used.nr_periods = field(&stat, "nr_periods");
            used.nr_throttled = field(&stat, "nr_throttled");
            used.throttled_us = match version {
                Version::V1 => field(&stat, "throttled_time").map(|ns| ns / 1_000),
                Version::V2 => field(&stat, "throttled_usec"),
            };
        }
        used.memory_bytes = self.memory_bytes(host);
        used.oom_kills = self.out_of_memory(host).kills;
        if let Some((_, dir)) = self.of(Controller::Pids) {
            used.tasks = number(host, dir, "pids.current");
        }
        if let Some((version, dir)) = self.of(Controller::Io) {
            used.io = disk_use(host, version, dir);
        }
        if let Some((_, _, dir)) = self.dirs.iter().find(|(version, _, _)| *version == Version::V2) {
            used.pressure = pressure::group(host, *dir);
        }
        used
    }
}

fn number(host: &mut dyn Host, dir: Dir, file: &str) -> Option<u64> {
    host.read(dir, file).ok()?.trim().parse().ok()
}

/// Returns the number after `name` in a file of `name number` lines.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

fn disk_use(host: &mut dyn Host, version: Version, dir: Dir) -> Option<BTreeMap<Device, DiskUse>> {
    match version {
        Version::V2 => Some(parse_io_stat(&host.read(dir, "io.stat").ok()?)),
        Version::V1 => {
            let bytes = host.read(dir, "blkio.throttle.io_service_bytes_recursive").ok()?;
            let operations = host.read(dir, "blkio.throttle.io_serviced_recursive").ok();
            Some(parse_blkio(&bytes, operations.as_deref()))
        }
    }
}

/// Parses lines such as `254:0 rbytes=1 wbytes=2 rios=3 wios=4 …`.
fn parse_io_stat(text: &str) -> BTreeMap<Device, DiskUse> {
    let line = |line: &str| {
        let (device, rest) = line.split_once(' ')?;
        let value = |key: &str| {
            rest.split_whitespace()
                .find_map(|pair| pair.strip_prefix(key)?.strip_prefix('=')?.parse::<u64>().ok())
        };
        let used = DiskUse {
            read_bytes: value("rbytes").unwrap_or(0),
            write_bytes: value("wbytes").unwrap_or(0),
            reads: value("rios"),
            writes: value("wios"),
        };
        Some((device.parse().ok()?, used))
    };
    text.lines().filter_map(line).collect()
}

/// Parses lines such as `254:0 Read 1` and `254:0 Write 2`.
fn parse_blkio(bytes: &str, operations: Option<&str>) -> BTreeMap<Device, DiskUse> {
    let entries = |text: &str| -> Vec<(Device, String, u64)> {
        let entry = |line: &str| {
            let mut words = line.split_whitespace();
            Some((words.next()?.parse().ok()?, words.next()?.to_owned(), words.next()?.parse().ok()?))
        };
        text.lines().filter_map(entry).collect()
    };
    let mut disks: BTreeMap<Device, DiskUse> = BTreeMap::new();
    for (device, kind, count) in entries(bytes) {
        let disk = disks.entry(device).or_default();
        match kind.as_str() {
            "Read" => disk.read_bytes = count,
            "Write" => disk.write_bytes = count,
            _ => {}
        }
    }
    for (device, kind, count) in operations.map(entries).unwrap_or_default() {
        let disk = disks.entry(device).or_default();
        match kind.as_str() {
            "Read" => disk.reads = Some(count),
            "Write" => disk.writes = Some(count),
            _ => {}
        }
    }
    disks
}

/// Returns the CPU time that no group used, in microseconds: the machine's busy time minus that of the groups, over the
/// same interval. `None` if one of these times is unknown. Clock granularity can make the difference slightly negative;
/// a negative difference counts as 0.
#[must_use]
pub fn foreign_cpu_us(machine: &MachineCpu, groups_us: &[Option<u64>]) -> Option<u64> {
    let ours: u64 = groups_us.iter().copied().sum::<Option<u64>>()?;
    Some(machine.busy_us().saturating_sub(ours))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: Device = Device { major: 254, minor: 0 };

    #[test]
    fn both_forms_of_disk_counters() {
        let v2 = parse_io_stat("254:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\n8:0\n");
        assert_eq!(v2[&DEVICE], DiskUse { read_bytes: 10, write_bytes: 20, reads: Some(1), writes: Some(2) });
        let v1 = parse_blkio("254:0 Read 10\n254:0 Write 20\n254:0 Total 30\nTotal 30\n", None);
        assert_eq!(v1[&DEVICE], DiskUse { read_bytes: 10, write_bytes: 20, reads: None, writes: None });
    }

    #[test]
    fn foreign_needs_every_part() {
        let machine = MachineCpu { user_us: 70, system_us: 30, idle_us: 100, steal_us: None };
        assert_eq!(foreign_cpu_us(&machine, &[Some(40), Some(10)]), Some(50));
        assert_eq!(foreign_cpu_us(&machine, &[Some(40), None]), None);
        assert_eq!(foreign_cpu_us(&machine, &[Some(400)]), Some(0));
    }
}
