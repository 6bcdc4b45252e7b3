//! What else can keep a target's threads from a CPU, as far as files tell: its own CPU limit and those of the cgroups above and below
//! it, a freezer, CPUs that its threads may not use, and the hypervisor. The probe sees only who had the CPU meanwhile.

use crate::Subject;
use crate::names::Cgroups;
use commensal_core::actual::{CgroupPath, Hierarchy};
use commensal_core::cpuset::CpuSet;
use commensal_core::knob::{Controller, Version};
use commensal_host::{Host, below};
use commensal_sensors::machine;
use commensal_sensors::mounts;
use commensal_sensors::processes::places;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Maximum number of cgroups whose limits are read, and of processes that are looked at.
const CGROUPS: usize = 1_000;
const PROCESSES: usize = 64;

/// One reading. Differences of two readings tell what came between.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Surroundings {
    /// CPU limits by cgroup.
    pub limits: BTreeMap<CgroupPath, CpuLimit>,
    /// Cgroups in which processes of the targets are frozen, and the file that says so.
    pub frozen: BTreeSet<(CgroupPath, &'static str)>,
    /// CPUs that the targets' processes may use; empty if unknown.
    pub allowed: CpuSet,
    /// Time that the hypervisor took from the machine's CPUs (us); `None` on a kernel that does not count it.
    pub steal_us: Option<u64>,
}

/// A CPU limit of a cgroup.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuLimit {
    /// The file with the limit.
    pub file: &'static str,
    /// CPU time per period (us), and the period (us).
    pub quota_us: u64,
    /// The period (us).
    pub period_us: u64,
    /// How long the cgroup's threads were not allowed to run, summed over the CPUs (ns).
    pub throttled_ns: u64,
}

impl Surroundings {
    /// Reads the surroundings of these targets.
    pub fn read(host: &mut dyn Host, cgroups: Option<&Cgroups>, subjects: &[Subject]) -> Surroundings {
        let hierarchies = mounts::hierarchies(host).unwrap_or_default();
        let mut found = Surroundings {
            steal_us: machine::cpu_time(host).and_then(|time| time.steal_us),
            ..Surroundings::default()
        };
        let (paths, pids) = targets(host, cgroups, subjects);
        if let Some(cgroups) = cgroups {
            let related = related(cgroups, &paths);
            let limits = related.into_iter().take(CGROUPS).filter_map(|path| {
                let dir = below(Path::new(&cgroups.mount), path.as_str());
                limit(host, &dir, cgroups.unified).map(|limit| (path, limit))
            });
            found.limits = limits.collect();
        }
        for pid in pids.iter().take(PROCESSES) {
            let read = |file: &str| host.read_file(Path::new(&format!("/proc/{pid}/{file}")));
            let status = read("status").unwrap_or_default();
            let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            found.allowed =
                found.allowed.union(&allowed.and_then(|list| list.trim().parse().ok()).unwrap_or_default());
            found.frozen.extend(frozen(host, *pid, &hierarchies));
        }
        found
    }

    /// What came since an earlier reading. What is frozen at one of them counts.
    #[must_use]
    pub fn since(&self, earlier: &Surroundings) -> Surroundings {
        let mut came = self.clone();
        for (path, limit) in &mut came.limits {
            let before = earlier.limits.get(path).map_or(0, |limit| limit.throttled_ns);
            limit.throttled_ns = limit.throttled_ns.saturating_sub(before);
        }
        came.frozen.extend(earlier.frozen.iter().cloned());
        came.steal_us = self.steal_us.zip(earlier.steal_us).map(|(now, then)| now.saturating_sub(then));
        came
    }
}

/// The cgroups of the targets, and their processes.
fn targets(
    host: &mut dyn Host,
    cgroups: Option<&Cgroups>,
    subjects: &[Subject],
) -> (BTreeSet<CgroupPath>, Vec<u32>) {
    let (mut paths, mut pids) = (BTreeSet::new(), Vec::new());
    for subject in subjects {
        match subject {
            Subject::Cgroup(id) => {
                let Some((cgroups, path)) = cgroups.and_then(|all| Some((all, all.path(*id)?))) else {
                    continue;
                };
                paths.insert(path.clone());
                let inside = cgroups.paths().filter(|one| path.contains(one)).take(CGROUPS);
                for one in inside.collect::<Vec<_>>() {
                    let file = below(Path::new(&cgroups.mount), one.as_str()).join("cgroup.procs");
                    let procs = host.read_file(&file).unwrap_or_default();
                    pids.extend(procs.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
                    if pids.len() >= PROCESSES {
                        break;
                    }
                }
            }
            Subject::Processes(ids) => {
                for id in ids.iter().take(PROCESSES) {
                    pids.push(id.pid);
                    let Some(cgroups) = cgroups else { continue };
                    let file = PathBuf::from(format!("/proc/{id}/cgroup"));
                    paths.extend(places(host, &file, &cgroups.found.hierarchies).into_values());
                }
            }
        }
    }
    (paths, pids)
}

/// The cgroups, and all that are above or below them.
fn related(cgroups: &Cgroups, paths: &BTreeSet<CgroupPath>) -> BTreeSet<CgroupPath> {
    let is = |one: &&CgroupPath| paths.iter().any(|path| path.contains(one) || one.contains(path));
    cgroups.paths().filter(is).filter(|path| path.depth() > 0).cloned().collect()
}

/// The CPU limit of the cgroup with this directory; `None` if it has none.
fn limit(host: &dyn Host, dir: &Path, unified: bool) -> Option<CpuLimit> {
    let read = |file: &str| host.read_file(&dir.join(file)).ok();
    let (file, quota, period) = if unified {
        let text = read("cpu.max")?;
        let (quota, period) = text.trim().split_once(' ')?;
        ("cpu.max", quota.parse().ok()?, period.parse().ok()?)
    } else {
        let quota = read("cpu.cfs_quota_us")?.trim().parse::<u64>().ok()?;
        ("cpu.cfs_quota_us", quota, read("cpu.cfs_period_us")?.trim().parse().ok()?)
    };
    let stat = read("cpu.stat")?;
    let field =
        |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    let throttled_ns = match unified {
        true => field("throttled_usec ")? * 1_000,
        false => field("throttled_time ")?,
    };
    Some(CpuLimit { file, quota_us: quota, period_us: period, throttled_ns })
}

/// The frozen cgroups of a process.
fn frozen(host: &dyn Host, pid: u32, hierarchies: &[Hierarchy]) -> Vec<(CgroupPath, &'static str)> {
    let places = places(host, &PathBuf::from(format!("/proc/{pid}/cgroup")), hierarchies);
    let of = |(index, path): (usize, CgroupPath)| {
        let hierarchy = hierarchies.get(index)?;
        let dir = below(Path::new(&hierarchy.mount), path.as_str());
        let (file, is) = match hierarchy.version {
            Version::V2 => {
                let events = host.read_file(&dir.join("cgroup.events")).unwrap_or_default();
                ("cgroup.freeze", events.lines().any(|line| line == "frozen 1"))
            }
            Version::V1 if hierarchy.controllers.contains(&Controller::Freezer) => {
                let state = host.read_file(&dir.join("freezer.state")).unwrap_or_default();
                ("freezer.state", ["FROZEN", "FREEZING"].contains(&state.trim()))
            }
            Version::V1 => return None,
        };
        is.then_some((path, file))
    };
    places.into_iter().filter_map(of).collect()
}
