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

/// A CPU limit of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuLimit {
    /// The file with the limit.
    pub file: &'static str,
    /// CPU time per period (us).
    pub quota_us: u64,
    /// The period (us).
    pub period_us: u64,
    /// How long the group's threads were not allowed to run so far, summed over the CPUs (us).
    pub throttled_us: u64,
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

    /// Reads the kernel's out-of-memory counters of the group and the cgroups below it. v2 counts the kills below a
    /// cgroup in the cgroup itself; v1 does not (Documentation/admin-guide/cgroup-v2.rst, `memory.events`;
    /// mm/memcontrol.c, `memcg_memory_event`).
    pub fn out_of_memory(&self, host: &mut dyn Host) -> OutOfMemory {
        match self.of(Controller::Memory) {
            None => OutOfMemory::default(),
            Some((Version::V1, dir)) => {
                let below = v1_kills_below(host, dir);
                OutOfMemory {
                    kills: v1_kills(host, dir).map(|kills| kills + below.kills.unwrap_or(0)),
                    limit_hits: number(host, dir, "memory.failcnt"),
                    limit_hits_below: below.limit_hits,
                }
            }
            Some((Version::V2, dir)) => {
                let events = host.read(dir, "memory.events").ok();
                let count = |name: &str| field(events.as_deref()?, name);
                // Since Linux 5.2: the same counters without those of the cgroups below.
                let own = host.read(dir, "memory.events.local").ok().and_then(|text| field(&text, "oom"));
                OutOfMemory {
                    kills: count("oom_kill"),
                    limit_hits: own.or(count("oom")),
                    limit_hits_below: count("oom").zip(own).map(|(all, own)| all.saturating_sub(own)),
                }
            }
        }
    }

    /// Reads all counters.
    pub fn read(&self, host: &mut dyn Host) -> GroupUse {
        GroupUse { cpu_us: self.cpu_us(host), ..self.others(host) }
    }

    /// Reads the group's CPU limit; `None` if it has none.
    pub fn cpu_limit(&self, host: &mut dyn Host) -> Option<CpuLimit> {
        let (version, dir) = self.of(Controller::Cpu)?;
        let (file, quota_us, period_us) = match version {
            Version::V1 => {
                // -1 means no limit.
                let quota_us = number(host, dir, "cpu.cfs_quota_us")?;
                ("cpu.cfs_quota_us", quota_us, number(host, dir, "cpu.cfs_period_us")?)
            }
            Version::V2 => {
                let text = host.read(dir, "cpu.max").ok()?;
                let (quota, period) = text.trim().split_once(' ')?;
                ("cpu.max", quota.parse().ok()?, period.parse().ok()?)
            }
        };
        let throttled_us = throttled_us(&host.read(dir, "cpu.stat").ok()?, version)?;
        Some(CpuLimit { file, quota_us, period_us, throttled_us })
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
            used.throttled_us = throttled_us(&stat, version);
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

/// Time that the limit throttled the group so far (us), from its `cpu.stat`.
fn throttled_us(stat: &str, version: Version) -> Option<u64> {
    match version {
        Version::V1 => field(stat, "throttled_time").map(|ns| ns / 1_000),
        Version::V2 => field(stat, "throttled_usec"),
    }
}

fn v1_kills(host: &mut dyn Host, dir: Dir) -> Option<u64> {
    field(&host.read(dir, "memory.oom_control").ok()?, "oom_kill")
}

/// Adds up the counters of all cgroups below `dir` in the memory hierarchy of v1.
fn v1_kills_below(host: &mut dyn Host, dir: Dir) -> OutOfMemory {
    let mut sum = OutOfMemory::default();
    for name in host.children(dir).unwrap_or_default() {
        let Ok(child) = host.open_child(dir, &name) else { continue };
        let below = v1_kills_below(host, child);
        let hits = number(host, child, "memory.failcnt");
        for (total, counts) in [
            (&mut sum.kills, [v1_kills(host, child), below.kills]),
            (&mut sum.limit_hits, [hits, below.limit_hits]),
        ] {
            counts.into_iter().flatten().for_each(|count| *total = Some(total.unwrap_or(0) + count));
        }
        host.close(child);
    }
    sum
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
    use commensal_host::fake::FakeHost;

    const DEVICE: Device = Device { major: 254, minor: 0 };

    #[test]
    fn both_forms_of_disk_counters() {
        let v2 = parse_io_stat("254:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\n8:0\n");
        assert_eq!(v2[&DEVICE], DiskUse { read_bytes: 10, write_bytes: 20, reads: Some(1), writes: Some(2) });
        let v1 = parse_blkio("254:0 Read 10\n254:0 Write 20\n254:0 Total 30\nTotal 30\n", None);
        assert_eq!(v1[&DEVICE], DiskUse { read_bytes: 10, write_bytes: 20, reads: None, writes: None });
    }

    /// Kinds of machines x depths of the cgroup with a kill x counters that the kernel has. On v1 the group has the sum
    /// of the cgroups' counters, on v2 what the kernel added up.
    // promise 6
    #[test]
    fn kills_of_the_whole_subtree() {
        const GROUPS: [&str; 4] = ["/etl", "/etl/a", "/etl/a/b", "/etl/c"];
        let machines = [FakeHost::v1, FakeHost::v1_comounted, FakeHost::v2, FakeHost::hybrid];
        for (kind, make) in machines.into_iter().enumerate() {
            for (killed, counted) in GROUPS.iter().flat_map(|killed| [(killed, true), (killed, false)]) {
                let fake = make(2, 1 << 30);
                let mut host = fake.another();
                let hierarchies = crate::mounts::hierarchies(&mut host).unwrap();
                let of_memory = |one: &&Hierarchy| one.controllers.contains(&Controller::Memory);
                let memory = hierarchies.iter().find(of_memory).unwrap();
                let v1 = memory.version == Version::V1;
                for group in GROUPS {
                    let (above, name) = group.rsplit_once('/').unwrap();
                    let above = host.open(&below(Path::new(&memory.mount), above)).unwrap();
                    if !v1 {
                        host.write(above, "cgroup.subtree_control", "+memory").unwrap();
                    }
                    host.mkdir(above, name).unwrap();
                    let kills = u64::from(group == *killed || (!v1 && killed.starts_with(group)));
                    let file = |name: &str| format!("{}{group}/{name}", memory.mount);
                    let count = if counted { format!("oom_kill {kills}\n") } else { String::new() };
                    fake.set_file(file("memory.oom_control"), &format!("under_oom 0\n{count}"));
                    fake.set_file(file("memory.events"), &format!("oom {kills}\n{count}"));
                    let own = u64::from(group == *killed);
                    fake.set_file(file("memory.events.local"), &format!("oom {own}\n"));
                    fake.set_file(file("memory.failcnt"), &own.to_string());
                }
                for group in GROUPS {
                    let dirs = GroupDirs::open(&mut host, &hierarchies, &CgroupPath::new(group));
                    let hits = |is_it: bool| Some(u64::from(is_it));
                    let inside = killed.starts_with(group);
                    let found = dirs.out_of_memory(&mut host);
                    let told = format!("machine {kind}: {killed} seen from {group}: {found:?}");
                    assert_eq!(found.kills, counted.then_some(u64::from(inside)), "{told}");
                    assert_eq!(found.limit_hits, hits(group == *killed), "{told}");
                    let below_it = found.limit_hits_below.unwrap_or(0) > 0;
                    assert_eq!(below_it, inside && group != *killed, "{told}");
                    dirs.close(&mut host);
                }
            }
        }
    }

    #[test]
    fn foreign_needs_every_part() {
        let machine = MachineCpu { user_us: 70, system_us: 30, idle_us: 100, steal_us: None };
        assert_eq!(foreign_cpu_us(&machine, &[Some(40), Some(10)]), Some(50));
        assert_eq!(foreign_cpu_us(&machine, &[Some(40), None]), None);
        assert_eq!(foreign_cpu_us(&machine, &[Some(400)]), Some(0));
    }
}
