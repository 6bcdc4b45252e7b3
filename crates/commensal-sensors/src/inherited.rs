//! What this process inherited from the shell that started it and passes on to its children: CPU affinity, the cpuset and
//! the CPU quota of its cgroup, nice value and scheduling policy. A measurement on a part of the machine must not be taken
//! for one on the whole machine.

use crate::mounts;
use crate::processes::places;
use commensal_core::actual::CgroupPath;
use commensal_core::cpuset::CpuSet;
use commensal_core::knob::{Controller, Version};
use commensal_core::process::{SCHED_NORMAL, Stat};
use commensal_host::{Host, below};
use std::path::Path;

/// Nice value in `/proc/PID/stat`, by proc_pid_stat(5).
const NICE: usize = 19;

/// What a process inherited.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Inherited {
    /// CPUs on which it may run: the affinity, within the cpuset of its cgroup.
    pub cpus: CpuSet,
    /// CPUs that are online.
    pub online: CpuSet,
    /// Smallest CPU quota of its cgroup and those above, in CPUs, with that cgroup; `None` if there is no quota.
    pub quota: Option<(f64, CgroupPath)>,
    /// Nice value, from -20 to 19.
    pub nice: i32,
    /// Number of the scheduling policy.
    pub policy: i32,
}

impl Inherited {
    /// Reads what this process inherited. What cannot be read counts as free.
    pub fn read(host: &mut dyn Host) -> Inherited {
        let text = |path: &str| host.read_file(Path::new(path)).unwrap_or_default();
        let set = |text: &str| text.trim().parse::<CpuSet>().unwrap_or_default();
        let online = set(&text("/sys/devices/system/cpu/online"));
        let status = text("/proc/self/status");
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let stat = text("/proc/self/stat");
        let stat = Stat::parse(&stat);
        let nice = stat.as_ref().and_then(|stat| stat.number::<i32>(NICE));
        Inherited {
            cpus: allowed.map_or_else(|| online.clone(), set),
            online,
            quota: quota(host),
            nice: nice.unwrap_or(0),
            policy: stat.and_then(|stat| stat.policy()).unwrap_or(SCHED_NORMAL),
        }
    }

    /// Returns a sentence for everything that keeps this process and its children from a part of the machine.
    #[must_use]
    pub fn limits(&self) -> Vec<String> {
        let mut limits = Vec::new();
        let missing = self.online.iter().any(|cpu| !self.cpus.contains(cpu));
        if missing {
            limits.push(format!(
                "this program was started on CPUs {} of {} (affinity or cpuset), so nothing here is measured on the others",
                self.cpus, self.online
            ));
        }
        if let Some((cpus, group)) = &self.quota {
            limits.push(format!(
                "this program was started in cgroup {group}, whose quota gives it and its children {cpus:.2} CPUs"
            ));
        }
        if self.nice != 0 {
            limits
                .push(format!("this program was started with nice {}, and so were its children", self.nice));
        }
        if self.policy != SCHED_NORMAL {
            limits.push(format!(
                "this program was started with scheduling policy {}, and so were its children",
                self.policy
            ));
        }
        limits
    }
}

/// Returns the smallest quota of this process's cgroup and those above.
fn quota(host: &mut dyn Host) -> Option<(f64, CgroupPath)> {
    let hierarchies = mounts::hierarchies(host).ok()?;
    let cpu = hierarchies.iter().position(|one| one.controllers.contains(&Controller::Cpu))?;
    let hierarchy = &hierarchies[cpu];
    let path = places(host, Path::new("/proc/self/cgroup"), &hierarchies).remove(&cpu)?;
    let all = path.ancestors().into_iter().chain([path]);
    let of = |group: CgroupPath| {
        let read = |file: &str| {
            let path = below(Path::new(&hierarchy.mount), &format!("{}/{file}", group.as_str()));
            host.read_file(&path).ok()
        };
        let cpus = match hierarchy.version {
            Version::V1 => share(read("cpu.cfs_quota_us")?.trim(), read("cpu.cfs_period_us")?.trim()),
            Version::V2 => {
                read("cpu.max")?.trim().split_once(' ').and_then(|(quota, period)| share(quota, period))
            }
        };
        Some((cpus?, group))
    };
    all.filter_map(of).min_by(|a, b| a.0.total_cmp(&b.0))
}

/// Returns a quota in CPUs; `None` for no quota (`-1` or `max`).
fn share(quota: &str, period: &str) -> Option<f64> {
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_no_free_shells_is_told() {
        let set = |text: &str| text.parse::<CpuSet>().unwrap();
        let free = Inherited { cpus: set("0-3"), online: set("0-3"), ..Inherited::default() };
        let check = |inherited: &Inherited, words: &[&str]| {
            let limits = inherited.limits();
            assert_eq!(limits.len(), words.len(), "{limits:?}");
            for (limit, word) in limits.iter().zip(words) {
                assert!(limit.contains(word), "{limit} lacks {word}");
            }
        };
        check(&free, &[]);
        // CPUs that are offline are missing to nobody.
        check(&Inherited { cpus: set("0-7"), ..free.clone() }, &[]);
        check(&Inherited { cpus: set("0,2"), ..free.clone() }, &["on CPUs 0,2 of 0-3"]);
        let quota = Some((0.5, CgroupPath::new("/user")));
        let all = Inherited { cpus: set("1"), quota, nice: 5, policy: 5, ..free };
        check(
            &all,
            &[
                "CPUs 1 of 0-3",
                "cgroup /user, whose quota gives it and its children 0.50",
                "nice 5",
                "policy 5",
            ],
        );
    }

    #[test]
    fn a_quota_is_a_number_of_cpus() {
        assert_eq!(share("50000", "100000"), Some(0.5));
        assert_eq!(share("-1", "100000"), None);
        assert_eq!(share("max", "100000"), None);
    }
}
