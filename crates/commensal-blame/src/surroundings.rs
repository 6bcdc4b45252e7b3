//! What else can keep a target's threads from a CPU, as far as files tell: its own CPU limit and those of the cgroups above and below
//! it, a freezer, CPUs that its threads may not use, and the hypervisor. The probe sees only who had the CPU meanwhile.

use crate::Subject;
use crate::names::Cgroups;
use commensal_core::actual::CgroupPath;
use commensal_core::cpuset::CpuSet;
use commensal_host::{Host, below};
use commensal_sensors::freezer::{Frozen, frozen_by};
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
    /// Cgroups that freeze processes of the targets.
    pub frozen: BTreeSet<Frozen>,
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
        let (limiting, pids) = targets(host, cgroups, subjects);
        if let Some(cgroups) = cgroups {
            let limits = limiting.into_iter().take(CGROUPS).filter_map(|path| {
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
            found.frozen.extend(frozen_by(host, *pid, &hierarchies));
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

/// The cgroups whose limits hold threads of the targets back, and the targets' processes.
fn targets(
    host: &mut dyn Host,
    cgroups: Option<&Cgroups>,
    subjects: &[Subject],
) -> (BTreeSet<CgroupPath>, Vec<u32>) {
    let (mut limiting, mut pids) = (BTreeSet::new(), Vec::new());
    for subject in subjects {
        match subject {
            Subject::Cgroup(id) => {
                let Some((cgroups, path)) = cgroups.and_then(|all| Some((all, all.path(*id)?))) else {
                    continue;
                };
                limiting.extend(path.ancestors());
                let inside: Vec<&CgroupPath> = cgroups.paths().filter(|one| path.contains(one)).collect();
                limiting.extend(inside.iter().map(|one| (*one).clone()));
                for one in inside.into_iter().take(CGROUPS) {
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
                    // Cgroups below those of a process do not limit it.
                    for path in places(host, &file, &cgroups.found.hierarchies).into_values() {
                        limiting.extend(path.ancestors());
                        limiting.insert(path);
                    }
                }
            }
        }
    }
    limiting.retain(|path| path.depth() > 0);
    (limiting, pids)
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

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_core::member::ProcessId;
    use commensal_host::fake::FakeHost;

    /// Targets x the cgroups whose limits hold them back: their own, those above, and of a cgroup those below.
    // promise 31
    #[test]
    fn the_limits_of_others_are_not_its_own() {
        for (make, mount) in [
            (FakeHost::v1 as fn(u32, u64) -> FakeHost, "/sys/fs/cgroup/cpu"),
            (FakeHost::v1_comounted, "/sys/fs/cgroup/cpu,cpuacct"),
            (FakeHost::v2, "/sys/fs/cgroup"),
        ] {
            let fake = make(2, 1 << 30);
            let mut host = fake.another();
            let unified = mount == "/sys/fs/cgroup";
            for group in ["/web", "/web/inner", "/web/inner/deep", "/other"] {
                let (above, name) = group.rsplit_once('/').unwrap();
                let above = host.open(&below(Path::new(mount), above)).unwrap();
                if unified {
                    host.write(above, "cgroup.subtree_control", "+cpu").unwrap();
                }
                host.mkdir(above, name).unwrap();
                let file = |name: &str| format!("{mount}{group}/{name}");
                fake.set_file(file("cpu.max"), "20000 100000\n");
                fake.set_file(file("cpu.cfs_quota_us"), "20000\n");
                fake.set_file(file("cpu.cfs_period_us"), "100000\n");
                fake.set_file(file("cpu.stat"), "throttled_usec 7\nthrottled_time 7000\n");
            }
            let cgroups = Cgroups::look(&mut host, None).unwrap().unwrap();
            let process = |group: &str| {
                let pid = fake.add_process(&[&format!("{mount}{group}")]);
                let start_ticks = fake.another().process(pid).unwrap().start_ticks;
                Subject::Processes(vec![ProcessId { pid, start_ticks }])
            };
            let cgroup = |path: &str| cgroups.subject(&CgroupPath::new(path)).unwrap();
            for (subject, expected) in [
                (process(""), &[][..]),
                (process("/other"), &["/other"]),
                (process("/web/inner/deep"), &["/web", "/web/inner", "/web/inner/deep"]),
                (cgroup("/web/inner"), &["/web", "/web/inner", "/web/inner/deep"]),
                (cgroup("/web"), &["/web", "/web/inner", "/web/inner/deep"]),
                (cgroup("/other"), &["/other"]),
            ] {
                let found =
                    Surroundings::read(&mut fake.another(), Some(&cgroups), std::slice::from_ref(&subject));
                let paths: Vec<&str> = found.limits.keys().map(CgroupPath::as_str).collect();
                assert_eq!(paths, expected, "{mount}: {subject:?}");
                assert!(found.limits.values().all(|limit| limit.throttled_ns == 7_000), "{found:?}");
            }
        }
    }
}
