//! Watches the scheduling policies of members of groups below level 0 (`cpu.qos_level` of openEuler's kernel), and sets
//! members that have left `SCHED_IDLE` back to it.
//!
//! The kernel throttles such a group only while all its runnable threads are `SCHED_IDLE`. If a thread changes its
//! policy to `SCHED_OTHER`, the whole group permanently gets half of a CPU next to online work; with a real-time
//! policy, the group gets the whole CPU (observed). The kernel does not restore `SCHED_IDLE`, so this module does. The
//! kernel reports no event when a policy changes, so the module checks threads in turn.
//!
//! **Work is bounded**: each check reads at most [`THREADS`] threads (one system call each) and [`CGROUPS`] thread
//! lists, and sets back at most [`SET_BACK`] threads. If a process changes its policy repeatedly, it is set back after
//! increasing pauses, and reported by name. A round is one pass over all threads. Each thread is checked once per
//! round, so that a process whose threads have all changed their policy once does not count as one that does so
//! repeatedly.

use commensal_core::actual::{CgroupPath, Hierarchy};
use commensal_core::group::GroupName;
use commensal_core::process::{SCHED_IDLE, Scheduling, Stat};
use commensal_host::{Host, HostError, below};
use commensal_reconcile::set_idle;
use commensal_sensors::level::level;
use commensal_sensors::processes::places;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

/// Maximum number of threads whose policy one check reads. With a tick of 1 s, all threads of a group of 1,000 are
/// checked every 4 s.
pub const THREADS: usize = 256;
/// Maximum number of cgroups whose thread lists one check reads.
const CGROUPS: usize = 16;
/// Maximum number of threads that one check sets back.
const SET_BACK: usize = 32;
/// Maximum number of processes recorded because threads of theirs have changed their policy.
const OFFENDERS: usize = 256;
/// First and longest pause (ms) before a process is set back again. Each pause is twice as long as the one before.
const PAUSE_MS: (u64, u64) = (1_000, 300_000);
/// Time (ms) within which all threads of a process that are set back count as one occurrence.
const ONCE_MS: u64 = 60_000;
/// Number of pauses without a change of policy after which a process is forgotten.
const CALM: u64 = 10;
/// Flag of kernel threads (`PF_KTHREAD`, include/linux/sched.h), whose policy is never changed.
const KERNEL_THREAD: u64 = 0x20_0000;

/// A process whose threads have left `SCHED_IDLE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Escape {
    /// The process's group.
    pub group: GroupName,
    /// PID of the process.
    pub pid: u32,
    /// Name of the process's program.
    pub name: String,
    /// Effective user ID of the process.
    pub uid: Option<u32>,
    /// The policy of one of these threads.
    pub policy: Scheduling,
    /// What the agent did about the process.
    pub done: Handled,
}

/// What the agent did about a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Handled {
    /// Threads were set back to `SCHED_IDLE`.
    SetBack {
        /// Number of threads that were set back.
        threads: usize,
        /// How often the process was set back so far.
        times: u32,
    },
    /// No action yet, because the process changes its policy repeatedly.
    Waits {
        /// How often the process was set back so far.
        times: u32,
        /// Time until the process is set back again (ms).
        left_ms: u64,
    },
    /// No action, because the agent is paused.
    Paused,
    /// The kernel refused to set the process back.
    Refused(HostError),
}

/// A process by PID and start time (clock ticks).
type Process = (u32, u64);

#[derive(Debug)]
struct Offender {
    times: u32,
    pause_ms: u64,
    again_ms: u64,
    /// When the first of the process's threads was set back in the latest occurrence (ms).
    begun_ms: u64,
    /// The round in which threads of the process were last set back.
    round: u64,
    last_ms: u64,
}

/// The threads that this round has still to check, and the processes that changed their policy.
#[derive(Debug, Default)]
pub struct PolicyWatch {
    /// Cgroups that this round has still to check.
    waiting: VecDeque<(GroupName, CgroupPath)>,
    /// The cgroup whose threads are being checked.
    at: Option<(GroupName, CgroupPath)>,
    threads: VecDeque<u32>,
    /// Number of this round.
    round: u64,
    /// Whether threads outside `SCHED_IDLE` were left unchanged, in this round and in the round before, because the
    /// maximum number of threads was set back already.
    passed_over: (bool, bool),
    offenders: BTreeMap<Process, Offender>,
}

/// The input of a check.
#[derive(Debug, Clone, Copy)]
pub struct Watching<'a> {
    /// Time on a monotonic clock (ms).
    pub now_ms: u64,
    /// Cgroups of offline groups in the hierarchy of the cpu controller.
    pub groups: &'a [(GroupName, CgroupPath)],
    /// The mounted hierarchies.
    pub hierarchies: &'a [Hierarchy],
    /// Index of the hierarchy of the cpu controller.
    pub cpu: usize,
    /// Whether the agent is paused and must not write.
    pub paused: bool,
}

impl Watching<'_> {
    /// Where the hierarchy of the cpu controller is mounted.
    fn mount(&self) -> &Path {
        Path::new(self.hierarchies.get(self.cpu).map_or("", |one| one.mount.as_str()))
    }
}

impl PolicyWatch {
    /// Checks the next threads, and sets back those that have left `SCHED_IDLE`. Returns one entry per process.
    pub fn look(&mut self, host: &mut dyn Host, watching: &Watching<'_>) -> Vec<Escape> {
        let now_ms = watching.now_ms;
        self.offenders.retain(|_, one| now_ms.saturating_sub(one.last_ms) <= one.pause_ms * CALM);
        let mut found: BTreeMap<Process, Escape> = BTreeMap::new();
        let (mut lists, mut threads, mut set_back) = (CGROUPS, THREADS, SET_BACK);
        let mut again = true;
        while threads > 0 {
            let Some(tid) = self.threads.pop_front() else {
                if self.waiting.is_empty() && std::mem::take(&mut again) {
                    self.waiting.extend(watching.groups.iter().cloned());
                    self.round += 1;
                    self.passed_over = (false, self.passed_over.0);
                }
                match self.waiting.pop_front() {
                    Some(next) if lists > 0 => {
                        lists -= 1;
                        self.list(host, watching.mount(), next);
                        continue;
                    }
                    Some(next) => self.waiting.push_front(next),
                    None => {}
                }
                break;
            };
            threads -= 1;
            let Some((group, path)) = self.at.clone() else { continue };
            if host.scheduling(tid).is_ok_and(|now| now.policy != SCHED_IDLE) {
                if set_back == 0 {
                    self.passed_over.0 = true;
                    continue;
                }
                set_back -= 1;
                self.escaped(host, watching, (&group, &path, tid), &mut found);
            }
        }
        found.into_values().collect()
    }

    /// Reads the thread list of a cgroup, if the cgroup is below level 0, and adds its child cgroups to the cgroups to
    /// be checked.
    fn list(&mut self, host: &mut dyn Host, mount: &Path, (group, path): (GroupName, CgroupPath)) {
        let Ok(dir) = host.open(&below(mount, path.as_str())) else { return };
        if level(host, dir).ok().flatten().is_some_and(|level| level < 0) {
            let text = host.read(dir, "tasks").unwrap_or_default();
            self.threads = text.split_whitespace().filter_map(|tid| tid.parse().ok()).collect();
            let below = host.children(dir).unwrap_or_default().into_iter();
            for name in below.rev() {
                self.waiting.push_front((group.clone(), path.child(&name)));
            }
            self.at = Some((group, path));
        }
        host.close(dir);
    }

    /// Handles a thread that is not `SCHED_IDLE`. Since the list was read, the thread may have left the cgroup, or
    /// another thread may have got its TID.
    fn escaped(
        &mut self,
        host: &mut dyn Host,
        watching: &Watching<'_>,
        (group, path, tid): (&GroupName, &CgroupPath, u32),
        found: &mut BTreeMap<Process, Escape>,
    ) {
        let Some(seen) = look_at(host, tid) else { return };
        let now = places(host, Path::new(&format!("/proc/{tid}/cgroup")), watching.hierarchies);
        let inside = now.get(&watching.cpu) == Some(path);
        let Ok(policy) = host.scheduling(tid) else { return };
        if !inside || policy.policy == SCHED_IDLE {
            return;
        }
        let done = match watching.paused {
            true => Some(Handled::Paused),
            false => self.set_back(host, watching.now_ms, (seen.process, tid)),
        };
        let Some(done) = done else { return };
        match found.get_mut(&seen.process) {
            Some(Escape { done: Handled::SetBack { threads, .. }, .. })
                if matches!(done, Handled::SetBack { .. }) =>
            {
                *threads += 1;
            }
            // The entry from another thread of this process already says what was done, or why nothing was.
            Some(_) => {}
            None => {
                let (group, pid) = (group.clone(), seen.process.0);
                let (name, uid) = (seen.name, seen.uid);
                found.insert(seen.process, Escape { group, pid, name, uid, policy, done });
            }
        }
    }

    /// Sets a thread back to `SCHED_IDLE`; `None` if the thread has exited.
    fn set_back(
        &mut self,
        host: &mut dyn Host,
        now_ms: u64,
        (process, tid): (Process, u32),
    ) -> Option<Handled> {
        // Other threads of a process that was set back in this round are not a new occurrence. Neither are threads that
        // may have been left unchanged in the round before.
        let goes_on = |one: &Offender| {
            let next = self.passed_over.1 && one.round.saturating_add(1) == self.round;
            one.round == self.round || (next && now_ms.saturating_sub(one.begun_ms) < ONCE_MS)
        };
        let known = self.offenders.get(&process);
        let same_time = known.is_some_and(goes_on);
        if let Some(one) = known.filter(|one| !same_time && now_ms < one.again_ms) {
            let done = Handled::Waits { times: one.times, left_ms: one.again_ms - now_ms };
            self.offenders.entry(process).and_modify(|one| one.last_ms = now_ms);
            return Some(done);
        }
        match set_idle(host, tid) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => return Some(Handled::Refused(error)),
        }
        if self.offenders.len() >= OFFENDERS
            && !self.offenders.contains_key(&process)
            && let Some(oldest) = self.offenders.iter().min_by_key(|(_, one)| one.last_ms).map(|(id, _)| *id)
        {
            self.offenders.remove(&oldest);
        }
        let (round, last_ms) = (self.round, now_ms);
        let new = Offender { times: 0, pause_ms: 0, again_ms: 0, begun_ms: now_ms, round, last_ms };
        let one = self.offenders.entry(process).or_insert(new);
        if !same_time {
            one.times = one.times.saturating_add(1);
            one.pause_ms = (one.pause_ms * 2).clamp(PAUSE_MS.0, PAUSE_MS.1);
            one.again_ms = now_ms.saturating_add(one.pause_ms);
            one.begun_ms = now_ms;
        }
        (one.round, one.last_ms) = (round, last_ms);
        Some(Handled::SetBack { threads: 1, times: one.times })
    }
}

/// Facts about a thread's process.
struct Shown {
    process: Process,
    name: String,
    uid: Option<u32>,
}

/// Returns the process of a thread; `None` if the thread has exited or is a kernel thread.
fn look_at(host: &dyn Host, tid: u32) -> Option<Shown> {
    let status = host.read_file(Path::new(&format!("/proc/{tid}/status"))).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let pid = field("Tgid:").and_then(|pid| pid.parse().ok()).unwrap_or(tid);
    let text = host.read_file(Path::new(&format!("/proc/{pid}/stat"))).ok()?;
    let stat = Stat::parse(&text)?;
    let flags: u64 = stat.number(9)?;
    (flags & KERNEL_THREAD == 0).then_some(())?;
    // The program's name is field 2 of `stat` (proc(5)), in parentheses, and may contain parentheses itself.
    let name = text.split_once('(').and_then(|(_, rest)| Some(rest.rsplit_once(')')?.0));
    Some(Shown {
        process: (pid, stat.start_ticks()?),
        name: name.unwrap_or_default().to_owned(),
        uid: field("Uid:").and_then(|text| text.split_whitespace().nth(1)?.parse().ok()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_core::errno::Errno;
    use commensal_core::knob::Controller;
    use commensal_core::process::{SCHED_BATCH, SCHED_FIFO, SCHED_RR};
    use commensal_host::fake::{FakeHost, FakeLooks, VendorKernel};
    use commensal_sensors::mounts;

    const GROUP: &str = "/sys/fs/cgroup/cpu/batch";

    struct World {
        fake: FakeHost,
        host: FakeHost,
        watch: PolicyWatch,
        now_ms: u64,
        paused: bool,
    }

    impl World {
        fn new() -> World {
            let fake = FakeHost::v1(2, 1 << 30);
            fake.vendor_kernel(VendorKernel::OPENEULER);
            let mut host = fake.another();
            let root = host.open(Path::new("/sys/fs/cgroup/cpu")).unwrap();
            let batch = host.mkdir(root, "batch").unwrap();
            host.write(batch, "cpu.qos_level", "-1").unwrap();
            let inner = host.mkdir(batch, "inner").unwrap();
            for dir in [inner, batch, root] {
                host.close(dir);
            }
            World { fake, host, watch: PolicyWatch::default(), now_ms: 0, paused: false }
        }

        fn look(&mut self) -> Vec<Escape> {
            self.now_ms += 1_000;
            let hierarchies = mounts::hierarchies(&mut self.host).unwrap();
            let cpu = hierarchies.iter().position(|one| one.controllers.contains(&Controller::Cpu));
            let groups = [(GroupName::new("etl").unwrap(), CgroupPath::new("/batch"))];
            let watching = Watching {
                now_ms: self.now_ms,
                groups: &groups,
                hierarchies: &hierarchies,
                cpu: cpu.unwrap(),
                paused: self.paused,
            };
            self.watch.look(&mut self.host, &watching)
        }

        fn policy(&self, tid: u32) -> i32 {
            self.host.scheduling(tid).unwrap().policy
        }
    }

    /// Tests every policy, for the first thread and for another one, in the group and below it.
    // promises 5, 7
    #[test]
    fn who_changes_its_policy_is_set_back() {
        let policies = [
            Scheduling::default(),
            Scheduling::of(SCHED_BATCH),
            Scheduling::real_time(SCHED_FIFO, 10),
            Scheduling::real_time(SCHED_RR, 99),
        ];
        for policy in policies {
            for inside in [GROUP.to_owned(), format!("{GROUP}/inner")] {
                let mut world = World::new();
                let pid = world.fake.add_process(&[&inside]);
                world.fake.set_looks(pid, FakeLooks { uid: 1_001, ..FakeLooks::default() });
                let thread = world.fake.add_thread(pid);
                assert_eq!(world.look(), [], "the kernel made them SCHED_IDLE");
                for tid in [pid, thread] {
                    world.fake.schedule(tid, policy);
                }
                let escape = Escape {
                    group: GroupName::new("etl").unwrap(),
                    pid,
                    name: format!("fake{pid}"),
                    uid: Some(1_001),
                    policy,
                    done: Handled::SetBack { threads: 2, times: 1 },
                };
                assert_eq!(world.look(), [escape]);
                assert_eq!((world.policy(pid), world.policy(thread)), (SCHED_IDLE, SCHED_IDLE));
                assert_eq!(world.look(), []);
            }
        }
    }

    #[test]
    fn who_does_it_again_and_again_is_set_back_less_and_less_often() {
        let mut world = World::new();
        let pid = world.fake.add_process(&[GROUP]);
        let (mut set_back, mut longest, mut waited) = (0, 0, 0);
        for _ in 0..1_000 {
            world.fake.schedule(pid, Scheduling::default());
            match world.look().pop().map(|one| one.done) {
                Some(Handled::SetBack { threads: 1, times }) => {
                    set_back += 1;
                    assert_eq!(times, set_back);
                    assert_eq!(world.policy(pid), SCHED_IDLE);
                    waited = 0;
                }
                Some(Handled::Waits { times, left_ms }) => {
                    assert_eq!(times, set_back);
                    assert!(left_ms > 0 && left_ms < PAUSE_MS.1);
                    waited += 1;
                    longest = longest.max(waited);
                }
                other => panic!("{other:?}"),
            }
        }
        assert!((8..20).contains(&set_back), "{set_back}");
        assert!((200..=300).contains(&longest), "{longest}");
        // After a long time without a change, the process is forgotten.
        world.look();
        world.now_ms += PAUSE_MS.1 * (CALM + 1);
        world.fake.schedule(pid, Scheduling::default());
        assert!(matches!(world.look()[..], [Escape { done: Handled::SetBack { times: 1, .. }, .. }]));
    }

    #[test]
    fn what_is_refused_is_told_with_process_and_user() {
        let mut world = World::new();
        let pid = world.fake.add_process(&[GROUP]);
        world.fake.set_looks(pid, FakeLooks { uid: 7, ..FakeLooks::default() });
        world.fake.schedule(pid, Scheduling::default());
        world.paused = true;
        assert!(matches!(world.look()[..], [Escape { done: Handled::Paused, uid: Some(7), .. }]));
        world.paused = false;
        world.fake.unprivileged(true);
        let told = world.look();
        assert!(
            matches!(&told[..], [Escape { done: Handled::Refused(error), uid: Some(7), .. }] if error.errno == Errno::EPERM),
            "{told:?}"
        );
        assert_eq!(world.policy(pid), 0);
    }

    #[test]
    fn who_is_not_below_level_0_is_left_alone() {
        let mut world = World::new();
        let (thread, elsewhere) = (world.fake.add_process(&[GROUP]), world.fake.add_process(&[]));
        world.fake.set_looks(thread, FakeLooks { exe: String::new(), ..FakeLooks::default() });
        // More threads than one check reads, so that the last ones have not been checked yet when they leave the group.
        let many: Vec<u32> = (0..THREADS + 8).map(|_| world.fake.add_process(&[GROUP])).collect();
        world.look();
        let moved = *many.last().unwrap();
        world.fake.move_process(moved, "/sys/fs/cgroup/cpu");
        for tid in [thread, elsewhere, moved] {
            world.fake.schedule(tid, Scheduling::default());
        }
        for _ in 0..5 {
            assert_eq!(world.look(), []);
        }
        assert_eq!([thread, elsewhere, moved].map(|tid| world.policy(tid)), [0; 3]);
    }

    /// A check does a bounded amount of work, however many threads there are and however many have changed their
    /// policy, and in the end every thread is checked.
    #[test]
    fn the_work_is_bounded() {
        let mut world = World::new();
        let many: Vec<u32> = (0..THREADS * 3).map(|_| world.fake.add_process(&[GROUP])).collect();
        for tid in &many {
            world.fake.schedule(*tid, Scheduling::default());
        }
        let (mut looks, mut back) = (0, 0);
        while many.iter().any(|tid| world.policy(*tid) != SCHED_IDLE) {
            let told = world.look();
            assert!(told.len() <= SET_BACK, "{}", told.len());
            back += told.len();
            looks += 1;
            assert!(looks < 200);
            assert!(world.watch.offenders.len() <= OFFENDERS);
        }
        assert_eq!(back, many.len());
        assert!(looks >= many.len() / SET_BACK, "{looks}");
    }

    /// A process whose threads have all changed their policy is set back as fast as the bound allows, and this counts
    /// as one occurrence.
    #[test]
    fn many_threads_of_a_process_change_it_once() {
        let mut world = World::new();
        let pid = world.fake.add_process(&[GROUP]);
        let more = (1..THREADS * 2).map(|_| world.fake.add_thread(pid));
        let threads: Vec<u32> = std::iter::once(pid).chain(more).collect();
        for tid in &threads {
            world.fake.schedule(*tid, Scheduling::default());
        }
        let mut looks = 0;
        while threads.iter().any(|tid| world.policy(*tid) != SCHED_IDLE) {
            for escape in world.look() {
                assert!(matches!(escape.done, Handled::SetBack { times: 1, .. }), "{escape:?}");
            }
            looks += 1;
            assert!(looks <= 2 * threads.len() / SET_BACK, "{looks}");
        }
        // A second change counts as a second occurrence.
        world.fake.schedule(pid, Scheduling::default());
        world.now_ms += PAUSE_MS.0;
        let again = (0..3).find_map(|_| world.look().pop()).unwrap();
        assert!(matches!(again.done, Handled::SetBack { threads: 1, times: 2 }), "{again:?}");
    }

    #[test]
    fn a_group_that_is_gone_or_unreadable_does_no_harm() {
        let mut world = World::new();
        world.fake.vanish(format!("{GROUP}/inner"));
        let pid = world.fake.add_process(&[GROUP]);
        world.look();
        world.fake.end(pid, commensal_host::Exit::Code(0));
        assert_eq!(world.look(), []);
        world.fake.vanish(GROUP);
        assert_eq!(world.look(), []);
    }
}
