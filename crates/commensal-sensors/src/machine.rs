//! Reads the topology, memory and disks of the machine, and the machine's description for a report.

use crate::SensorError;
use commensal_core::cpuset::CpuSet;
use commensal_core::observe::MachineCpu;
use commensal_core::topology::{Disk, LogicalCpu, Machine, Topology};
use commensal_core::units::Bytes;
use commensal_host::Host;
use std::path::Path;

/// Microseconds per tick of `/proc/stat`: `USER_HZ` is 100 on every Linux architecture in use.
const US_PER_TICK: u64 = 10_000;

fn text(host: &dyn Host, path: &str) -> Option<String> {
    host.read_file(Path::new(path)).ok().map(|text| text.trim().to_owned())
}

/// Returns the list of online CPUs as the kernel writes it; comparing two results is a cheap way to notice changes.
/// Empty if it cannot be read.
#[must_use]
pub fn online_cpus(host: &dyn Host) -> String {
    text(host, "/sys/devices/system/cpu/online").unwrap_or_default()
}

/// Reads CPUs, memory and disks.
///
/// # Errors
/// Returns an error when `/proc/meminfo` or the list of online CPUs cannot be read.
pub fn machine(host: &dyn Host) -> Result<Machine, SensorError> {
    let meminfo = host.read_file(Path::new("/proc/meminfo"))?;
    let memory = field_kib(&meminfo, "MemTotal:").ok_or_else(|| SensorError::Form {
        file: "/proc/meminfo".to_owned(),
        what: "no MemTotal".to_owned(),
    })?;
    Ok(Machine { topology: topology(host)?, memory: Bytes(memory), disks: disks(host) })
}

fn field_kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Reads the online CPUs with their cores, SMT siblings, last-level caches and NUMA nodes, and which CPUs are offline.
///
/// # Errors
/// Returns an error when the list of online CPUs cannot be read.
pub fn topology(host: &dyn Host) -> Result<Topology, SensorError> {
    let base = "/sys/devices/system/cpu";
    let online = host.read_file(Path::new(&format!("{base}/online")))?;
    let online: CpuSet = online
        .parse()
        .map_err(|error| SensorError::Form { file: format!("{base}/online"), what: format!("{error}") })?;
    let possible: CpuSet =
        text(host, &format!("{base}/possible")).and_then(|list| list.parse().ok()).unwrap_or_default();
    let nodes = nodes(host);
    let cpu = |id: u32| {
        let number = |name: &str| text(host, &format!("{base}/cpu{id}/topology/{name}"))?.parse().ok();
        let siblings = text(host, &format!("{base}/cpu{id}/topology/thread_siblings_list"));
        let alone: CpuSet = [id].into_iter().collect();
        LogicalCpu {
            id,
            package: number("physical_package_id"),
            core: number("core_id"),
            siblings: siblings.and_then(|list| list.parse().ok()).unwrap_or(alone),
            llc: last_level_cache(host, id),
            node: nodes.iter().find(|(_, cpus)| cpus.contains(id)).map(|(node, _)| *node),
        }
    };
    Ok(Topology { cpus: online.iter().map(cpu).collect(), offline: possible.difference(&online) })
}

/// Returns the CPUs that share the highest cache level with `cpu`.
fn last_level_cache(host: &dyn Host, cpu: u32) -> Option<CpuSet> {
    text(host, &format!("{}/shared_cpu_list", last_level(host, cpu)?))?.parse().ok()
}

/// Returns the sysfs directory of a CPU's highest cache level.
fn last_level(host: &dyn Host, cpu: u32) -> Option<String> {
    let base = format!("/sys/devices/system/cpu/cpu{cpu}/cache");
    let entries = host.list(Path::new(&base)).ok()?;
    let level = |entry: &String| text(host, &format!("{base}/{entry}/level"))?.parse::<u32>().ok();
    let highest =
        entries.iter().filter(|name| name.starts_with("index")).filter_map(|e| Some((level(e)?, e))).max()?;
    Some(format!("{base}/{}", highest.1))
}

/// Returns the total size of the last-level caches of the online CPUs, in bytes (`cache/index*/size` in sysfs has KiB
/// followed by a K); `None` if the machine does not report it.
#[must_use]
pub fn last_level_bytes(host: &dyn Host) -> Option<u64> {
    let online: CpuSet = text(host, "/sys/devices/system/cpu/online")?.parse().ok()?;
    let mut seen: Vec<CpuSet> = Vec::new();
    let mut bytes = 0;
    for cpu in online.iter() {
        let shared = last_level_cache(host, cpu)?;
        if !seen.contains(&shared) {
            let size = text(host, &format!("{}/size", last_level(host, cpu)?))?;
            bytes += size.trim_end_matches('K').parse::<u64>().ok()? << 10;
            seen.push(shared);
        }
    }
    (bytes > 0).then_some(bytes)
}

fn nodes(host: &dyn Host) -> Vec<(u32, CpuSet)> {
    let base = "/sys/devices/system/node";
    let names = host.list(Path::new(base)).unwrap_or_default();
    let node = |name: &String| {
        let number = name.strip_prefix("node")?.parse().ok()?;
        Some((number, text(host, &format!("{base}/{name}/cpulist"))?.parse().ok()?))
    };
    names.iter().filter_map(node).collect()
}

/// Returns the whole disks, without loop, RAM, zram, floppy, optical, network, empty and stacked devices.
pub fn disks(host: &dyn Host) -> Vec<Disk> {
    let names = host.list(Path::new("/sys/block")).unwrap_or_default();
    let disk = |name: &String| {
        let skip = ["loop", "ram", "zram", "fd", "sr", "nbd"];
        let virtual_disk = skip.iter().any(|prefix| name.starts_with(prefix));
        let size: u64 = text(host, &format!("/sys/block/{name}/size"))?.parse().ok()?;
        let built_on = host.list(Path::new(&format!("/sys/block/{name}/slaves"))).unwrap_or_default();
        if virtual_disk || size == 0 || !built_on.is_empty() {
            return None;
        }
        let device = text(host, &format!("/sys/block/{name}/dev"))?.parse().ok()?;
        // The scheduler in use is in brackets: `none [mq-deadline] bfq`.
        let schedulers = text(host, &format!("/sys/block/{name}/queue/scheduler"));
        let scheduler =
            schedulers.and_then(|list| Some(list.split_once('[')?.1.split_once(']')?.0.to_owned()));
        Some(Disk { name: name.clone(), device, scheduler })
    };
    names.iter().filter_map(disk).collect()
}

/// Returns the CPU time of the machine, from the first line of `/proc/stat`.
#[must_use]
pub fn cpu_time(host: &dyn Host) -> Option<MachineCpu> {
    let stat = text(host, "/proc/stat")?;
    let fields: Vec<u64> = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace()
        .filter_map(|n| n.parse().ok())
        .collect();
    let us = |index: usize| fields.get(index).map(|ticks| ticks * US_PER_TICK);
    Some(MachineCpu {
        user_us: us(0)? + us(1)?,
        system_us: us(2)? + us(5).unwrap_or(0) + us(6).unwrap_or(0),
        idle_us: us(3)? + us(4).unwrap_or(0),
        steal_us: us(7),
    })
}

/// Description of the machine in a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// CPU model.
    pub cpu: Option<String>,
    /// Kernel release and version.
    pub kernel: String,
    /// Whether the CPU reports a hypervisor.
    pub virtualised: Option<bool>,
    /// Frequency governor of CPU 0.
    pub governor: Option<String>,
}

/// Reads the description of the machine.
#[must_use]
pub fn identity(host: &dyn Host) -> Identity {
    let cpuinfo = text(host, "/proc/cpuinfo");
    let field = |name: &str| {
        let line = cpuinfo.as_ref()?.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let kernel = ["/proc/sys/kernel/ostype", "/proc/sys/kernel/osrelease"]
        .map(|path| text(host, path).unwrap_or_default());
    Identity {
        cpu: field("model name"),
        kernel: kernel.join(" ").trim().to_owned(),
        virtualised: field("flags").map(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor")),
        governor: text(host, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
    }
}

/// Returns the random ID of this boot; a journal with another ID is from an earlier boot.
#[must_use]
pub fn boot_id(host: &dyn Host) -> Option<String> {
    text(host, "/proc/sys/kernel/random/boot_id")
}

/// Returns the memory available without swapping (`MemAvailable`, Linux 3.14 and newer).
pub fn available(host: &dyn Host) -> Option<Bytes> {
    let text = host.read_file(Path::new("/proc/meminfo")).ok()?;
    field_kib(&text, "MemAvailable:").map(Bytes)
}
