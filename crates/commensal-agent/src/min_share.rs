//! Gives groups that starve (their tasks want a CPU and get none) below level 0 (`cpu.qos_level` of openEuler's kernel)
//! their `cpu.min-share`. To do so, it lifts their members every second tick: moves them temporarily to a group at
//! level 0.
//!
//! ```text
//! tick      | 1      | 2      | 3      | 4      |
//! members   | level 0|   -1   | level 0|   -1   |      with a quota of twice the share at level 0
//! ```
//! A member is at level 0 for one tick at most; ticks that start early count as part of the tick before. While a tick
//! works, all members are in their own groups. The journal has a record of a group before its members are lifted: if
//! the agent dies meanwhile, the next agent, the guard or `commensal restore` moves them back. Forked children are
//! moved back as well, because every process in the group at level 0 moves back with it.

use commensal_core::actual::CgroupPath;
use commensal_core::group::GroupName;
use commensal_core::units::MicroCpus;
use commensal_host::{Dir, Host};
use commensal_reconcile::journal::Lifting;
use commensal_reconcile::{Instance, Quota, in_words, lift_group, lower_group, put_down};
use std::collections::BTreeSet;

/// Period of the quota at level 0 (us), the kernel's default.
const PERIOD_US: u64 = 100_000;
/// Smallest quota that the kernel accepts (us; `min_cfs_quota_period` in kernel/sched/core.c).
const LEAST_QUOTA_US: u64 = 1_000;
/// Maximum number of cgroups of one group whose members are lifted.
const CGROUPS: usize = 16;

/// A starving group with a minimum share.
#[derive(Debug)]
pub struct Sharing {
    /// Name of the group.
    pub name: GroupName,
    /// Minimum share of the group.
    pub share: MicroCpus,
    /// The group's cgroups in the hierarchy of the cpu controller, by path and directory.
    pub cgroups: Vec<(CgroupPath, Dir)>,
}

/// The groups whose members are lifted.
#[derive(Debug, Default)]
pub struct MinShare {
    lifted: Vec<(GroupName, Lifting)>,
}

impl MinShare {
    /// Names of the groups whose members are lifted.
    pub fn names(&self) -> BTreeSet<GroupName> {
        self.lifted.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Lifts the members of these groups, in the cpu hierarchy with this mount, unless another commensal process is
    /// changing the machine. Returns the names of the groups whose members were lifted, and problems.
    pub fn begin(
        &mut self,
        host: &mut dyn Host,
        instance: &Instance,
        mount: &str,
        groups: &[Sharing],
    ) -> (Vec<GroupName>, Vec<String>) {
        let (mut names, mut problems) = (Vec::new(), Vec::new());
        if groups.is_empty() {
            return (names, problems);
        }
        let Ok(Some(_lock)) = instance.try_lock(host) else { return (names, problems) };
        let mut journal = match instance.open_journal(host) {
            Ok(journal) => journal,
            Err(error) => return (names, vec![in_words(&error)]),
        };
        for Sharing { name, share, cgroups } in groups {
            let populated = populated(host, cgroups);
            let count = u64::try_from(populated.len().max(1)).unwrap_or(u64::MAX);
            // Members are at level 0 in one of two ticks, so the quota is twice the share.
            let quota_us = share.0.saturating_mul(2 * PERIOD_US) / 1_000_000 / count;
            let quota = Quota { quota_us: LEAST_QUOTA_US.max(quota_us), period_us: PERIOD_US };
            let before = self.lifted.len();
            for path in populated {
                match lift_group(host, &mut journal, (mount, &path), Some(quota)) {
                    Ok(group) => self.lifted.extend(group.map(|group| (name.clone(), group))),
                    Err(error) => problems.push(format!(
                        "group {name} starves and cannot be given its cpu.min-share: {}",
                        in_words(&error)
                    )),
                }
            }
            if self.lifted.len() > before {
                names.push(name.clone());
            }
        }
        (names, problems)
    }

    /// Moves all members back. Returns problems; after a failure, the next call tries again.
    pub fn end(&mut self, host: &mut dyn Host, instance: &Instance) -> Vec<String> {
        if self.lifted.is_empty() {
            return Vec::new();
        }
        // Without the lock (another commensal process is changing the machine), the members still move back, and the
        // empty group at level 0 stays until the next call.
        let lock = instance.try_lock(host).ok().flatten();
        let mut journal = lock.as_ref().and_then(|_| instance.open_journal(host).ok());
        let mut problems = Vec::new();
        let mut stay = Vec::new();
        for (name, group) in std::mem::take(&mut self.lifted) {
            let back = match &mut journal {
                Some(journal) => lower_group(host, journal, &group).map_err(|error| in_words(&error)),
                None => put_down(host, &group).map_err(|error| in_words(&error)),
            };
            if let Err(error) = back {
                problems.push(format!(
                    "members of {}, lifted for the cpu.min-share of group {name}, cannot be put back: {error}",
                    group.shown()
                ));
                stay.push((name, group));
            }
        }
        self.lifted = stay;
        problems
    }
}

/// Returns the paths of those cgroups, among these and their descendants, that contain processes.
fn populated(host: &mut dyn Host, cgroups: &[(CgroupPath, Dir)]) -> Vec<CgroupPath> {
    let mut paths = Vec::new();
    // Path, directory, and whether this function opened it.
    let mut waiting: Vec<(CgroupPath, Dir, bool)> =
        cgroups.iter().rev().map(|(path, dir)| (path.clone(), *dir, false)).collect();
    let mut looked_at = 0;
    while let Some((path, dir, opened)) = waiting.pop() {
        if looked_at < CGROUPS {
            looked_at += 1;
            for name in host.children(dir).unwrap_or_default().into_iter().rev().take(CGROUPS) {
                let child = path.child(&name);
                waiting.extend(host.open_child(dir, &name).ok().map(|dir| (child, dir, true)));
            }
            if host.read(dir, "cgroup.procs").is_ok_and(|text| !text.trim().is_empty()) {
                paths.push(path);
            }
        }
        if opened {
            host.close(dir);
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_core::process::SCHED_IDLE;
    use commensal_host::fake::{FakeHost, VendorKernel};
    use commensal_reconcile::bring_safe_state;
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    const MOUNT: &str = "/sys/fs/cgroup/cpu";
    const STATE: &str = "/state";

    /// Two members of a group at level -1, one of them in a child group. Both want a CPU, and online work is busy.
    struct World {
        fake: FakeHost,
        host: FakeHost,
        instance: Instance,
        sharing: Sharing,
        pids: [u32; 2],
    }

    fn world(share: u64) -> World {
        let fake = FakeHost::v1(8, 1 << 30);
        fake.vendor_kernel(VendorKernel::OPENEULER);
        let mut host = fake.another();
        let root = host.open(Path::new(MOUNT)).unwrap();
        let batch = host.mkdir(root, "batch").unwrap();
        host.write(batch, "cpu.qos_level", "-1").unwrap();
        host.mkdir(batch, "inner").unwrap();
        host.mkdir(batch, "empty").unwrap();
        let pids = ["batch", "batch/inner"].map(|group| fake.add_process(&[&format!("{MOUNT}/{group}")]));
        for pid in pids {
            fake.wants_cpu(pid, true);
        }
        fake.online_is_busy(true);
        let sharing = Sharing {
            name: GroupName::new("etl").unwrap(),
            share: MicroCpus(share),
            cgroups: vec![(CgroupPath::new("/batch"), batch)],
        };
        World { fake, host, instance: Instance::new(Path::new(STATE)), sharing, pids }
    }

    impl World {
        fn begin(&mut self, all: &mut MinShare) -> (Vec<GroupName>, Vec<String>) {
            let sharing = std::slice::from_ref(&self.sharing);
            all.begin(&mut self.host, &self.instance, MOUNT, sharing)
        }

        /// CPU time that each member has used so far (clock ticks).
        fn ticks(&self) -> [u64; 2] {
            self.pids.map(|pid| {
                let text = self.host.read_file(Path::new(&format!("/proc/{pid}/stat"))).unwrap();
                commensal_core::process::Stat::parse(&text).unwrap().user_ticks().unwrap()
            })
        }
    }

    /// Returns the group of each member in the hierarchy of the cpu controller, and whether all its threads are
    /// `SCHED_IDLE`.
    fn places(fake: &FakeHost, pids: [u32; 2]) -> [(String, bool); 2] {
        let all = fake.processes();
        pids.map(|pid| {
            let process = all.iter().find(|one| one.pid == pid).unwrap();
            let group = process.groups.iter().find(|group| group.starts_with(MOUNT)).unwrap();
            let idle = process.scheduling.values().all(|one| one.policy == SCHED_IDLE);
            (group.display().to_string(), idle)
        })
    }

    fn home() -> [(String, bool); 2] {
        [(format!("{MOUNT}/batch"), true), (format!("{MOUNT}/batch/inner"), true)]
    }

    // promise 7
    #[test]
    fn members_run_with_twice_the_share_and_go_back() {
        for (share, quota) in [(100_000, "10000"), (1, "1000"), (2_000_000, "200000")] {
            let mut world = world(share);
            let before = world.fake.snapshot();
            let mut all = MinShare::default();
            for _ in 0..3 {
                world.fake.advance(Duration::from_secs(1));
                assert_eq!(world.begin(&mut all), (vec![world.sharing.name.clone()], Vec::new()));
                assert_eq!(all.names(), [world.sharing.name.clone()].into());
                for (group, idle) in places(&world.fake, world.pids) {
                    assert!(group.contains("/commensal-lifted-") && !idle, "{group}");
                    let snapshot = world.fake.snapshot();
                    assert_eq!(snapshot[&format!("{group}/cpu.cfs_quota_us")].trim(), quota);
                    assert_eq!(snapshot[&format!("{group}/cpu.qos_level")].trim(), "0");
                }
                let starved = world.ticks();
                world.fake.advance(Duration::from_secs(1));
                let ran = world.ticks();
                assert!(ran.iter().zip(starved).all(|(ran, starved)| *ran > starved), "{ran:?}");
                assert!(all.end(&mut world.host, &world.instance).is_empty());
                assert_eq!(places(&world.fake, world.pids), home());
                assert_eq!(world.fake.snapshot(), before);
                assert!(all.names().is_empty());
                let ran = world.ticks();
                world.fake.advance(Duration::from_secs(1));
                assert_eq!(world.ticks(), ran);
            }
            assert_eq!(world.host.state_read(Path::new("/state/machine.journal")).unwrap(), None);
        }
    }

    /// The agent is killed at any moment. The next agent, the guard or `restore` moves the members back.
    // promises 7, 11
    #[test]
    fn killed_at_any_moment() {
        let calm = world(100_000).fake.snapshot();
        for successor in ["agent", "guard", "restore"] {
            let mut points = 0;
            for crash in 0.. {
                let mut world = world(100_000);
                let mut all = MinShare::default();
                world.fake.crash_after(crash);
                world.begin(&mut all);
                let _ = all.end(&mut world.host, &world.instance);
                if !world.fake.is_crashed() {
                    break;
                }
                points += 1;
                let fake = world.fake.restart();
                let mut host = fake.another();
                host.state_dir(Path::new(STATE)).unwrap();
                match successor {
                    "agent" => assert_eq!(world.instance.recover(&mut host), Vec::<String>::new()),
                    "guard" => {
                        let state = bring_safe_state(&mut host, Path::new(STATE), Duration::from_secs(1));
                        assert!(state.failed.is_empty(), "{:?}", state.failed);
                    }
                    _ => {
                        let restored = world.instance.restore(&mut host, &[]).unwrap();
                        assert!(restored.failed.is_empty() && restored.left.is_empty(), "{restored:?}");
                    }
                }
                assert_eq!(places(&fake, world.pids), home(), "{successor}, crash {crash}");
                assert_eq!(fake.snapshot(), calm, "{successor}, crash {crash}");
            }
            assert!(points > 8, "{points}");
        }
    }

    /// While another commensal process changes the machine, no members are lifted, and lifted members move back.
    #[test]
    fn beside_another_commensal() {
        let mut world = world(100_000);
        let mut all = MinShare::default();
        let mut other = world.fake.another();
        {
            let _lock = world.instance.try_lock(&mut other).unwrap().unwrap();
            assert_eq!(world.begin(&mut all), (Vec::new(), Vec::new()));
            assert_eq!(places(&world.fake, world.pids), home());
        }
        world.begin(&mut all);
        {
            let _lock = world.instance.try_lock(&mut other).unwrap().unwrap();
            assert!(all.end(&mut world.host, &world.instance).is_empty());
            assert_eq!(places(&world.fake, world.pids), home());
        }
        assert!(world.instance.recover(&mut world.host).is_empty());
        assert!(!world.fake.snapshot().keys().any(|path| path.contains("lifted")));
    }

    /// Members that exit, fork or cannot be moved while they are lifted.
    #[test]
    fn members_that_do_not_stay_as_they_were() {
        let mut world = world(100_000);
        let mut all = MinShare::default();
        world.begin(&mut all);
        world.fake.end(world.pids[0], commensal_host::Exit::Code(0));
        world.fake.forks_before_move(world.pids[1]);
        assert!(all.end(&mut world.host, &world.instance).is_empty());
        let of_group = |fake: &FakeHost, part: &str| {
            let inside = |group: &PathBuf| group.to_string_lossy().contains(part);
            let all = fake.processes();
            all.iter().filter(|one| one.exit.is_none() && one.groups.iter().any(inside)).count()
        };
        assert_eq!((of_group(&world.fake, "/batch/inner"), of_group(&world.fake, "lifted")), (2, 0));
        world.begin(&mut all);
        world.fake.refuse_file("cgroup.procs", commensal_core::errno::Errno::EACCES);
        let problems = all.end(&mut world.host, &world.instance);
        assert!(problems.iter().all(|one| one.contains("cannot be put back")) && !problems.is_empty());
        world.fake.refuse_nothing();
        assert!(all.end(&mut world.host, &world.instance).is_empty());
        assert_eq!(of_group(&world.fake, "lifted"), 0);
    }
}
