//! What else can keep a target's threads from a CPU, as far as files tell: its own CPU limit and those of the cgroups
//! above and below it, a freezer, CPUs that its threads may not use, and the hypervisor. The probe sees only who had the
//! CPU meanwhile.

use crate::Subject;
use crate::names::Cgroups;
use commensal_core::actual::{CgroupPath, Hierarchy};
use commensal_core::cpuset::CpuSet;
use commensal_core::member::ProcessId;
use commensal_host::{Host, below};
use commensal_sensors::freezer::{Freezer, Frozen, freezers_of, frozen_by, frozen_of};
use commensal_sensors::machine;
use commensal_sensors::mounts;
use commensal_sensors::processes::places;
use commensal_sensors::usage::{CpuLimit, GroupDirs};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum number of cgroups whose limits are read, and of processes that are looked at.
const CGROUPS: usize = 1_000;
const PROCESSES: usize = 64;

/// One reading. Differences of two readings tell what came between.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Surroundings {
    /// CPU limits by cgroup.
    pub limits: BTreeMap<CgroupPath, Limit>,
    /// Cgroups that freeze processes of the targets, or have frozen them.
    pub frozen: BTreeMap<Frozen, Freeze>,
    /// CPUs that the targets' processes may use; empty if unknown.
    pub allowed: CpuSet,
    /// Time that the hypervisor took from the machine's CPUs (us); `None` on a kernel that does not count it.
    pub steal_us: Option<u64>,
}

/// What is known of the time for which a cgroup was frozen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Freeze {
    /// Whether it is frozen still.
    pub still: bool,
    /// How long it was frozen; `None` if nobody has looked in between.
    pub time: Option<Duration>,
}

/// A CPU limit that holds targets back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// The limit.
    pub cpu: CpuLimit,
    /// Whether it is that of a cgroup above the targets.
    pub above: bool,
}

impl Surroundings {
    /// Reads the surroundings of these targets.
    pub fn read(host: &mut dyn Host, cgroups: Option<&Cgroups>, subjects: &[Subject]) -> Surroundings {
        let hierarchies = mounts::hierarchies(host).unwrap_or_default();
        let (own, pids) = targets(host, cgroups, subjects);
        Surroundings::of(host, &hierarchies, &own, &pids)
    }

    /// Reads the surroundings of a target with these cgroups and processes.
    pub fn of(
        host: &mut dyn Host,
        hierarchies: &[Hierarchy],
        own: &BTreeSet<CgroupPath>,
        pids: &[u32],
    ) -> Surroundings {
        let steal_us = machine::cpu_time(host).and_then(|time| time.steal_us);
        let mut found = Surroundings { steal_us, ..Surroundings::default() };
        let mut limiting: BTreeSet<CgroupPath> = own.iter().flat_map(CgroupPath::ancestors).collect();
        limiting.extend(own.iter().cloned());
        limiting.retain(|path| path.depth() > 0);
        if let Some(hierarchy) = Hierarchy::of_threads(hierarchies) {
            for path in limiting.into_iter().take(CGROUPS) {
                let dirs = GroupDirs::open(host, std::slice::from_ref(hierarchy), &path);
                let above = !own.contains(&path);
                found.limits.extend(dirs.cpu_limit(host).map(|cpu| (path, Limit { cpu, above })));
                dirs.close(host);
            }
        }
        for pid in pids.iter().take(PROCESSES) {
            let read = |file: &str| host.read_file(Path::new(&format!("/proc/{pid}/{file}")));
            let status = read("status").unwrap_or_default();
            let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            found.allowed =
                found.allowed.union(&allowed.and_then(|list| list.trim().parse().ok()).unwrap_or_default());
            let frozen = frozen_by(host, *pid, hierarchies);
            found.frozen.extend(frozen.map(|frozen| (frozen, Freeze { still: true, time: None })));
        }
        found
    }

    /// What came since an earlier reading. What is frozen at one of them counts.
    #[must_use]
    pub fn since(&self, earlier: &Surroundings) -> Surroundings {
        let mut came = self.clone();
        for (path, limit) in &mut came.limits {
            let before = earlier.limits.get(path).map_or(0, |limit| limit.cpu.throttled_us);
            limit.cpu.throttled_us = limit.cpu.throttled_us.saturating_sub(before);
        }
        for frozen in earlier.frozen.keys() {
            came.frozen.entry(frozen.clone()).or_insert(Freeze { still: false, time: None });
        }
        came.steal_us = self.steal_us.zip(earlier.steal_us).map(|(now, then)| now.saturating_sub(then));
        came
    }
}

/// How long freezers keep targets from a CPU. The kernel counts this nowhere, so it takes many looks, and a freeze between
/// two of them is not seen.
#[derive(Debug, Default)]
pub struct Freezes {
    /// The cgroups that can freeze processes of the targets: one list for all processes that have the same.
    freezers: BTreeSet<Vec<Freezer>>,
    looked: Duration,
    time: BTreeMap<Frozen, Duration>,
}

impl Freezes {
    /// Finds the cgroups that can freeze the targets as they are now.
    pub fn find(&mut self, host: &mut dyn Host, cgroups: Option<&Cgroups>, subjects: &[Subject]) {
        let hierarchies = mounts::hierarchies(host).unwrap_or_default();
        let (_, mut pids) = targets(host, cgroups, subjects);
        // A process that has a target's number now is not that target.
        let mut ended =
            |id: &ProcessId| !host.process(id.pid).is_ok_and(|now| now.start_ticks == id.start_ticks);
        let ids = subjects.iter().filter_map(|subject| match subject {
            Subject::Processes(ids) => Some(ids),
            _ => None,
        });
        let ended: BTreeSet<u32> = ids.flatten().filter(|id| ended(id)).map(|id| id.pid).collect();
        pids.retain(|pid| !ended.contains(pid));
        self.freezers =
            pids.iter().take(PROCESSES).map(|pid| freezers_of(host, *pid, &hierarchies)).collect();
    }

    /// Looks which of them are frozen. `now` is the time since the beginning: what is frozen counts since the look before.
    pub fn look(&mut self, host: &mut dyn Host, now: Duration) {
        let passed = now.saturating_sub(self.looked);
        self.looked = now;
        let frozen: BTreeSet<Frozen> =
            self.freezers.iter().filter_map(|freezers| frozen_of(host, freezers)).collect();
        for one in frozen {
            *self.time.entry(one).or_default() += passed;
        }
    }

    /// Adds what the looks have found. A freeze that no look has seen and that is over was too short to count.
    #[must_use]
    pub fn added_to(self, mut around: Surroundings) -> Surroundings {
        around.frozen.retain(|frozen, freeze| freeze.still || self.time.contains_key(frozen));
        for (frozen, time) in self.time {
            let freeze = around.frozen.entry(frozen).or_insert(Freeze { still: false, time: None });
            freeze.time = Some(time);
        }
        around
    }
}

/// The cgroups of the targets, and the targets' processes.
fn targets(
    host: &mut dyn Host,
    cgroups: Option<&Cgroups>,
    subjects: &[Subject],
) -> (BTreeSet<CgroupPath>, Vec<u32>) {
    let (mut own, mut pids) = (BTreeSet::new(), Vec::new());
    for subject in subjects {
        let Some(cgroups) = cgroups else {
            if let Subject::Processes(ids) = subject {
                pids.extend(ids.iter().map(|id| id.pid));
            }
            continue;
        };
        for path in subject.cgroups().iter().filter_map(|id| cgroups.path(*id)) {
            let inside: Vec<&CgroupPath> = cgroups.paths().filter(|one| path.contains(one)).collect();
            own.extend(inside.iter().map(|one| (*one).clone()));
            for one in inside.into_iter().take(CGROUPS) {
                if pids.len() >= PROCESSES {
                    break;
                }
                let file = below(Path::new(&cgroups.mount), one.as_str()).join("cgroup.procs");
                let procs = host.read_file(&file).unwrap_or_default();
                pids.extend(procs.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
            }
        }
        if let Subject::Processes(ids) = subject {
            for id in ids.iter().take(PROCESSES) {
                pids.push(id.pid);
                let file = PathBuf::from(format!("/proc/{id}/cgroup"));
                // Cgroups below those of a process do not limit it.
                own.extend(places(host, &file, &cgroups.found.hierarchies).into_values());
            }
        }
    }
    (own, pids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_host::fake::FakeHost;

    /// A look may be too short for any look at the freezers.
    #[test]
    fn a_freeze_that_lasts_is_named_without_a_look() {
        for still in [true, false] {
            let path = CgroupPath::new("/web");
            let frozen = Frozen { mount: "/sys".to_owned(), path, file: "cgroup.freeze", thawed: "0" };
            let frozen = [(frozen, Freeze { still, time: None })].into();
            let around = Freezes::default().added_to(Surroundings { frozen, ..Surroundings::default() });
            assert_eq!(around.frozen.len(), usize::from(still));
        }
    }

    /// Kinds of machines x looks at which a target is frozen: a freeze counts also if it is over.
    #[test]
    fn freezes_add_up() {
        for make in [FakeHost::v1, FakeHost::v1_comounted, FakeHost::v2, FakeHost::hybrid] {
            let fake = make(2, 1 << 30);
            let mut host = fake.another();
            let found = mounts::hierarchies(&mut host).unwrap();
            let freezer = found.iter().find(|one| one.mount.ends_with("/freezer"));
            let mount = freezer.map_or("/sys/fs/cgroup", |one| &one.mount);
            let root = host.open(Path::new(mount)).unwrap();
            host.mkdir(root, "web").unwrap();
            let web = host.open(&below(Path::new(mount), "/web")).unwrap();
            let pid = fake.add_process(&[&format!("{mount}/web")]);
            let start_ticks = host.process(pid).unwrap().start_ticks;
            let subjects = [Subject::Processes(vec![ProcessId { pid, start_ticks }])];
            for frozen in 0..8_u32 {
                let is_frozen = |look: u32| frozen & (1 << look) != 0;
                let mut freezes = Freezes::default();
                freezes.find(&mut host, None, &subjects);
                for look in 0..3 {
                    let [v1, v2] = if is_frozen(look) { ["FROZEN", "1"] } else { ["THAWED", "0"] };
                    let done = host.write(web, "freezer.state", v1);
                    done.or_else(|_| host.write(web, "cgroup.freeze", v2)).unwrap();
                    freezes.look(&mut host, Duration::from_millis(50) * (look + 1));
                }
                let around = freezes.added_to(Surroundings::read(&mut host, None, &subjects));
                let time = Duration::from_millis(50) * frozen.count_ones();
                let known: Vec<_> =
                    around.frozen.iter().map(|(one, freeze)| (one.path.as_str(), *freeze)).collect();
                let expected = Freeze { still: is_frozen(2), time: Some(time) };
                let expected = if frozen == 0 { vec![] } else { vec![("/web", expected)] };
                assert_eq!(known, expected, "{mount}: {frozen:b}");
            }
        }
    }

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
            for (subject, expected, above_it) in [
                (process(""), &[][..], 0),
                (process("/other"), &["/other"], 0),
                (process("/web/inner/deep"), &["/web", "/web/inner", "/web/inner/deep"], 2),
                (cgroup("/web/inner"), &["/web", "/web/inner", "/web/inner/deep"], 1),
                (cgroup("/web"), &["/web", "/web/inner", "/web/inner/deep"], 0),
                (cgroup("/other"), &["/other"], 0),
            ] {
                let found =
                    Surroundings::read(&mut fake.another(), Some(&cgroups), std::slice::from_ref(&subject));
                let paths: Vec<&str> = found.limits.keys().map(CgroupPath::as_str).collect();
                assert_eq!(paths, expected, "{mount}: {subject:?}");
                assert!(found.limits.values().all(|limit| limit.cpu.throttled_us == 7), "{found:?}");
                let above = found.limits.values().filter(|limit| limit.above).count();
                assert_eq!(above, above_it, "{mount}: {subject:?}");
            }
        }
    }
}
