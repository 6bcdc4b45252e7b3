//! Finds groups below level 0 (`cpu.qos_level` of openEuler's kernel) that starve: their threads want CPU time and get
//! none, because online work is busy on every CPU that they may use.
//!
//! Run delay and pressure are 0 for such threads (observed), because the kernel puts them to sleep. A throttled thread
//! is runnable at first (state `R`), and after `kernel.qos_overload_detect_period_ms` uninterruptible (`D`, in
//! `sched_qos_offline_wait`). The sign of starvation is that the threads want a CPU while their time in user mode does
//! not increase. Their time in kernel mode does not count, because each of them wakes up from time to time without
//! doing any work (0.1 % of a CPU, observed).

use commensal_core::group::GroupName;
use commensal_core::process::Stat;
use commensal_host::{Dir, Host};
use std::collections::BTreeMap;
use std::path::Path;

/// A group counts as starving when none of its threads has run for this time (ms). A quota or other offline work delays
/// threads for less time.
const LEAST_MS: u64 = 2_000;
/// Maximum number of threads of a group that are checked. If none of them runs, hardly any of the others does.
const OF_GROUP: usize = 64;
/// Maximum number of threads in one check; the other groups are checked next time. With a tick of 1 s this takes 0.3 %
/// of a CPU (10 us a thread).
const AT_A_TIME: usize = 256;
/// Maximum number of cgroups of a group whose threads are checked.
const CGROUPS: usize = 16;
/// Maximum total length of the thread lists that one check reads. Groups with longer lists are checked less often.
const LISTED: usize = 4_096;
/// CPUs that a starving group uses at most, apart from the allowance for each thread ([`OF_THREAD`]).
const LEAST_CPUS: f64 = 0.01;
/// CPUs that each thread of a starving group uses at most.
const OF_THREAD: f64 = 0.002;
/// Part of the name of the kernel function in which a throttled thread waits.
const THROTTLE: &str = "qos_offline_wait";

/// A group that starves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Starved {
    /// Since when the group starves (ms, on the loop's clock).
    pub since_ms: u64,
    /// Since when the group starves (RFC 3339).
    pub since: String,
    /// Number of threads that want a CPU, among the threads that were checked.
    pub threads: usize,
}

/// A group below level 0.
#[derive(Debug, Clone)]
pub struct LowGroup {
    /// Name of the group.
    pub name: GroupName,
    /// The group's cgroups in the hierarchy of the cpu controller.
    pub dirs: Vec<Dir>,
    /// CPUs that the group used since the last sample.
    pub cpus: Option<f64>,
    /// Number of the group's tasks.
    pub tasks: Option<u64>,
    /// Whether the group's members were lifted (moved temporarily to level 0) since the last check, so that they may
    /// have run.
    pub lifted: bool,
    /// Whether the group is frozen and therefore does not run.
    pub frozen: bool,
}

/// State of a thread: whether it wanted a CPU, and its time in user mode (clock ticks).
type Thread = (bool, u64);

#[derive(Debug, Default)]
struct Watched {
    threads: BTreeMap<(u32, u64), Thread>,
    /// When the threads were last checked: ms and time of day.
    looked: (u64, String),
    since: Option<(u64, String)>,
    stuck: usize,
    /// Number of checks in which the group is left out, because its thread lists are long.
    rests: usize,
    /// Whether the group's members had just been moved back from level 0 at the last check.
    lowered: bool,
}

/// The groups below level 0, and since when none of their threads has run.
#[derive(Debug, Default)]
pub struct Starvation {
    groups: BTreeMap<GroupName, Watched>,
    /// The group that the next check begins with.
    next: Option<GroupName>,
}

impl Starvation {
    /// Checks the groups. `now` is the time in ms on a monotonic clock, and as text.
    pub fn look(&mut self, host: &mut dyn Host, now: (u64, &str), groups: &[LowGroup]) {
        self.groups.retain(|name, _| groups.iter().any(|group| group.name == *name));
        let first = self.next.take();
        let start = groups.iter().position(|group| Some(&group.name) == first.as_ref()).unwrap_or(0);
        let mut left = AT_A_TIME;
        for group in groups[start..].iter().chain(&groups[..start]) {
            if left == 0 {
                self.next = Some(group.name.clone());
                break;
            }
            let little = LEAST_CPUS + OF_THREAD * group.tasks.unwrap_or(0) as f64;
            let ran = !group.lifted && group.cpus.is_some_and(|cpus| cpus > little);
            if group.frozen || ran {
                self.groups.remove(&group.name);
                continue;
            }
            let watched = self.groups.entry(group.name.clone()).or_default();
            if watched.rests > 0 && !group.lifted {
                watched.rests -= 1;
                continue;
            }
            left -= watched.look(host, now, group, left);
        }
    }

    /// The groups that starve, by name.
    pub fn starved(&self, now_ms: u64) -> BTreeMap<GroupName, Starved> {
        let of = |(name, watched): (&GroupName, &Watched)| {
            let (since_ms, since) = watched.since.clone()?;
            let long = now_ms.saturating_sub(since_ms) >= LEAST_MS;
            long.then(|| (name.clone(), Starved { since_ms, since, threads: watched.stuck }))
        };
        self.groups.iter().filter_map(of).collect()
    }
}

impl Watched {
    /// Checks at most `most` threads of a group; returns how many it checked.
    fn look(
        &mut self,
        host: &mut dyn Host,
        (now_ms, at): (u64, &str),
        group: &LowGroup,
        most: usize,
    ) -> usize {
        let (tids, listed) = threads(host, &group.dirs, most.min(OF_GROUP));
        self.rests = listed / LISTED;
        let before = std::mem::take(&mut self.threads);
        // Members that were moved back from level 0 run on until the kernel throttles them.
        let ran_on = u64::from(std::mem::replace(&mut self.lowered, group.lifted));
        let (mut ran, mut stuck) = (false, 0);
        for tid in &tids {
            let Some((id, thread)) = look_at(host, *tid) else { continue };
            let (wants, ticks) = thread;
            if let Some((wanted, then)) = before.get(&id) {
                let stands = ticks <= then.saturating_add(ran_on);
                ran |= !stands;
                stuck += usize::from(wants && *wanted && stands);
            }
            self.threads.insert(id, thread);
        }
        let looked = std::mem::replace(&mut self.looked, (now_ms, at.to_owned()));
        if !group.lifted {
            self.stuck = stuck;
            self.since = match ran || stuck == 0 {
                true => None,
                // The threads have not run since the last check, or longer.
                false => Some(self.since.take().unwrap_or(looked)),
            };
        }
        tids.len()
    }
}

/// Returns up to `most` threads in and below these cgroups, and the number of threads in the lists that were read.
fn threads(host: &mut dyn Host, dirs: &[Dir], most: usize) -> (Vec<u32>, usize) {
    let (mut tids, mut listed) = (Vec::new(), 0);
    let mut looked_at = 0;
    // The cgroup, and whether this function opened it.
    let mut waiting: Vec<(Dir, bool)> = dirs.iter().rev().map(|dir| (*dir, false)).collect();
    while let Some((dir, opened)) = waiting.pop() {
        if tids.len() < most && looked_at < CGROUPS {
            looked_at += 1;
            let text = host.read(dir, "tasks").unwrap_or_default();
            let all: Vec<u32> = text.split_whitespace().filter_map(|tid| tid.parse().ok()).collect();
            listed += all.len();
            tids.extend(all.into_iter().take(most - tids.len()));
            for name in host.children(dir).unwrap_or_default().into_iter().rev().take(CGROUPS) {
                waiting.extend(host.open_child(dir, &name).ok().map(|child| (child, true)));
            }
        }
        if opened {
            host.close(dir);
        }
    }
    (tids, listed)
}

/// Returns identity and state of a thread; `None` if it has exited.
fn look_at(host: &dyn Host, tid: u32) -> Option<((u32, u64), Thread)> {
    let text = host.read_file(Path::new(&format!("/proc/{tid}/task/{tid}/stat"))).ok()?;
    let stat = Stat::parse(&text)?;
    let wants = match stat.text(3)? {
        "R" => true,
        "D" => is_throttled(host, tid),
        _ => false,
    };
    Some(((tid, stat.start_ticks()?), (wants, stat.user_ticks()?)))
}

/// Whether an uninterruptible thread waits in the kernel's throttle, and not for a disk. If the kernel does not report
/// in which function the thread waits, the thread counts as throttled.
fn is_throttled(host: &dyn Host, tid: u32) -> bool {
    let function = host.read_file(Path::new(&format!("/proc/{tid}/wchan"))).unwrap_or_default();
    matches!(function.trim(), "" | "0") || function.contains(THROTTLE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_host::fake::{FakeHost, VendorKernel};
    use std::time::Duration;

    const GROUP: &str = "/sys/fs/cgroup/cpu/batch";

    struct World {
        fake: FakeHost,
        host: FakeHost,
        dir: Dir,
        now_ms: u64,
        starvation: Starvation,
        lifted: bool,
        frozen: bool,
        cpus: Option<f64>,
    }

    impl World {
        fn new() -> World {
            let fake = FakeHost::v1(2, 1 << 30);
            fake.vendor_kernel(VendorKernel::OPENEULER);
            let mut host = fake.another();
            let root = host.open(Path::new("/sys/fs/cgroup/cpu")).unwrap();
            let dir = host.mkdir(root, "batch").unwrap();
            host.write(dir, "cpu.qos_level", "-1").unwrap();
            let starvation = Starvation::default();
            World { fake, host, dir, now_ms: 0, starvation, lifted: false, frozen: false, cpus: Some(0.0) }
        }

        fn spins(&self, group: &str) -> u32 {
            let pid = self.fake.add_process(&[group]);
            self.fake.wants_cpu(pid, true);
            pid
        }

        fn tick(&mut self) -> Option<Starved> {
            self.fake.advance(Duration::from_secs(1));
            self.now_ms += 1_000;
            let group = LowGroup {
                name: GroupName::new("etl").unwrap(),
                dirs: vec![self.dir],
                cpus: self.cpus,
                tasks: Some(2),
                lifted: self.lifted,
                frozen: self.frozen,
            };
            let at = format!("at {}", self.now_ms);
            self.starvation.look(&mut self.host, (self.now_ms, &at), &[group]);
            self.starvation.starved(self.now_ms).remove(&GroupName::new("etl").unwrap())
        }
    }

    // promise 3
    #[test]
    fn who_wants_a_cpu_and_never_runs_starves_since_the_last_look() {
        let mut world = World::new();
        world.spins(GROUP);
        assert_eq!((world.tick(), world.tick()), (None, None), "it runs");
        world.fake.online_is_busy(true);
        assert_eq!(world.tick(), None, "not long enough");
        let since = "at 2000".to_owned();
        assert_eq!(world.tick(), Some(Starved { since_ms: 2_000, since: since.clone(), threads: 1 }));
        world.spins(GROUP);
        world.tick();
        assert_eq!(world.tick(), Some(Starved { since_ms: 2_000, since: since.clone(), threads: 2 }));
        // CPU time of members while they are lifted does not end starvation.
        for _ in 0..3 {
            world.fake.online_is_busy(false);
            (world.lifted, world.cpus) = (true, Some(0.5));
            assert_eq!(world.tick(), Some(Starved { since_ms: 2_000, since: since.clone(), threads: 2 }));
            world.fake.online_is_busy(true);
            (world.lifted, world.cpus) = (false, Some(0.0));
            assert_eq!(world.tick(), Some(Starved { since_ms: 2_000, since: since.clone(), threads: 2 }));
        }
        world.fake.online_is_busy(false);
        assert_eq!(world.tick(), None);
    }

    #[test]
    fn who_sleeps_or_waits_for_a_disk_or_is_frozen_does_not_starve() {
        let mut world = World::new();
        world.fake.online_is_busy(true);
        world.fake.add_process(&[GROUP]);
        for _ in 0..5 {
            assert_eq!(world.tick(), None);
        }
        let pid = world.spins(GROUP);
        world.fake.set_file(format!("/proc/{pid}/wchan"), "io_schedule");
        for _ in 0..5 {
            assert_eq!(world.tick(), None, "it waits for a disk");
        }
        world.fake.set_file(format!("/proc/{pid}/wchan"), "0");
        world.frozen = true;
        for _ in 0..5 {
            assert_eq!(world.tick(), None, "it is frozen");
        }
        (world.frozen, world.cpus) = (false, Some(0.5));
        for _ in 0..5 {
            assert_eq!(world.tick(), None, "the group runs");
        }
        world.cpus = None;
        let last = (0..5).map(|_| world.tick()).last().unwrap();
        assert!(last.is_some(), "the kernel does not tell where it waits");
    }

    /// Members of child cgroups count, and a single running member means that the group does not starve.
    #[test]
    fn one_that_runs_is_enough() {
        let mut world = World::new();
        let inner = world.host.mkdir(world.dir, "inner").unwrap();
        world.fake.online_is_busy(true);
        world.spins(&format!("{GROUP}/inner"));
        let last = (0..5).map(|_| world.tick()).last().unwrap();
        assert_eq!(last.map(|one| one.threads), Some(1));
        let escaped = world.spins(GROUP);
        world.fake.schedule(escaped, commensal_host::Scheduling::default());
        world.tick();
        assert_eq!(world.tick(), None);
        world.host.close(inner);
    }

    /// Only a limited number of threads is checked, however many there are.
    #[test]
    fn the_work_is_bounded() {
        let mut world = World::new();
        let pid = world.spins(GROUP);
        for _ in 0..5_000 {
            world.fake.add_thread(pid);
        }
        world.fake.online_is_busy(true);
        let mut looked = 0;
        for _ in 0..10 {
            let before = world.starvation.groups.values().next().map(|one| one.looked.clone());
            world.tick();
            let now = world.starvation.groups.values().next().unwrap();
            assert!(now.threads.len() <= OF_GROUP);
            looked += usize::from(before.as_ref() != Some(&now.looked));
        }
        assert_eq!(looked, 5, "a list of 5,001 threads is read every second time");
    }
}
