//! The big frame: which whole physical cores offline work may use now.
//!
//! ```text
//! headroom = theta * cpus - (busy + steal - offline - confined)
//! ```
//!
//! `cpus` are all CPUs that no online group has reserved (`cpu.set`, `cpu.partition`), and `confined` is the use of
//! those groups on their reserved CPUs, which is no load on the rest. Five peers use this equation (koordlet, katalyst,
//! volcano-agent, sideloader, crane in part) and differ in constants. It is right for any size of the frame, because
//! `busy - offline` does not depend on what offline work uses.
//!
//! [`super::suppress`] computes quotas; [`transition`] has the order of the writes.

use super::explain::Explanation;
use super::regulator::{Move, Params, Range, Regulator};
use super::sound;
use crate::cpuset::CpuSet;
use crate::topology::Topology;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Share of the CPUs that may be busy with SMT: two busy threads of a core do about 1.3 times the work of one, so 65 %
/// of the threads is what the cores can do (koordlet's default too).
pub const THETA_SMT: f64 = 0.65;
/// Share of the CPUs that may be busy without SMT: the rest is for bursts of online work within a tick
/// (volcano-agent and sideloader: 80 % too).
pub const THETA: f64 = 0.80;

/// What was used since the last tick, in CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Use {
    /// Use by everything, interrupts included.
    pub busy: Option<f64>,
    /// Time taken by the hypervisor for other guests; `None` on a kernel that does not count it, where no other figure
    /// includes it either.
    pub steal: Option<f64>,
    /// Use by offline groups.
    pub offline: Option<f64>,
    /// Use by online groups that have reserved CPUs. Missing is on the safe side: their use then counts as a load on
    /// the rest.
    pub confined: Option<f64>,
}

/// The headroom for offline work, in CPUs, or `None` when `busy` or `offline` is missing. May be negative. `cpus`: the
/// number of CPUs that offline work may use at all.
#[must_use]
pub fn headroom(theta: f64, cpus: f64, used: Use) -> Option<f64> {
    let others = sound(used.busy)? + sound(used.steal).unwrap_or(0.0) - sound(used.offline)?;
    // Counters are read one after the other, so offline work may seem to use more than the whole machine.
    let others = (others.max(0.0) - sound(used.confined).unwrap_or(0.0)).max(0.0);
    Some(theta * cpus - others)
}

/// How the headroom, at most `cap`, came about, in the names of the inputs that were there.
#[must_use]
pub(super) fn explain(
    rule: String,
    (theta, cpus): (f64, f64),
    used: Use,
    cap: Option<f64>,
    headroom: Option<f64>,
) -> Explanation {
    let Use { busy, steal, offline, confined } = used;
    let [busy, steal, offline, confined, cap] = [busy, steal, offline, confined, cap].map(sound);
    let formula = headroom.map_or_else(String::new, |_| {
        let steal = if steal.is_some() { " + steal" } else { "" };
        let confined = if confined.is_some() { " - confined" } else { "" };
        let by = format!("theta * cpus - max(busy{steal} - offline{confined}, 0)");
        if cap.is_some() { format!("headroom = min({by}, cap)") } else { format!("headroom = {by}") }
    });
    Explanation::new(rule, formula)
        .with("theta", theta, "")
        .with("cpus", cpus, "CPUs")
        .maybe("busy", busy, "CPUs")
        .maybe("steal", steal, "CPUs")
        .maybe("offline", offline, "CPUs")
        .maybe("confined", confined, "CPUs")
        .maybe("cap", cap, "CPUs")
        .maybe("headroom", headroom, "CPUs")
}

/// The share of `topology` that may be busy.
#[must_use]
pub fn theta(topology: &Topology) -> f64 {
    if topology.smt() { THETA_SMT } else { THETA }
}

/// The physical cores that offline work may use: those with no thread in `reserved`.
#[must_use]
pub fn pool(topology: &Topology, reserved: &CpuSet) -> Vec<CpuSet> {
    let online = topology.all();
    let core = |siblings: &CpuSet| siblings.iter().filter(|cpu| online.contains(*cpu)).collect::<CpuSet>();
    let mut cores: Vec<CpuSet> = topology.cpus.iter().map(|cpu| core(&cpu.siblings)).collect();
    cores.sort();
    cores.dedup();
    cores.retain(|core| core.iter().all(|cpu| !reserved.contains(cpu)));
    cores
}

/// What a frame shrinks to when no controller adjusts it any more: its first whole core.
#[must_use]
pub fn least(topology: &Topology, frame: &CpuSet) -> Option<CpuSet> {
    pool(topology, &CpuSet::new()).into_iter().find(|core| core.is_subset(frame))
}

/// Inputs of a step.
#[derive(Debug, Clone, Copy)]
pub struct FrameInput<'a> {
    /// The machine now; CPUs may be hot-plugged.
    pub topology: &'a Topology,
    /// CPUs of online groups with `cpu.set` or `cpu.partition`.
    pub reserved: &'a CpuSet,
    /// CPU use since the last tick.
    pub used: Use,
    /// The latency controller's cap, in CPUs; `None` when it sets none.
    pub cap: Option<f64>,
}

/// The CPUs that offline work may use.
#[derive(Debug, Clone, PartialEq)]
pub struct FrameDecision {
    /// Whole physical cores; `None` when every core is reserved for online groups. The kernel refuses an empty set
    /// while the group has tasks, so nothing must be written then, and the caller reports it.
    pub cpus: Option<CpuSet>,
    /// What the regulator did.
    pub moved: Move,
    /// Why.
    pub why: Explanation,
}

/// The controller. It keeps the cores that it chose and releases the last added ones first.
#[derive(Debug, Clone)]
pub struct Frame {
    regulator: Option<Regulator>,
    start: CpuSet,
    /// Chosen cores, in the order in which they were added.
    chosen: Vec<CpuSet>,
}

impl Frame {
    /// Starts from the CPUs that offline work has already, when it takes over from another agent; from the floor when
    /// that set is empty.
    #[must_use]
    pub fn new(in_force: CpuSet) -> Frame {
        Frame { regulator: None, start: in_force, chosen: Vec::new() }
    }

    /// Decides. Without `busy` or `offline` the frame first stays as it is, then shrinks to its floor of one core.
    pub fn step(&mut self, now_ms: u64, input: &FrameInput<'_>) -> FrameDecision {
        let pool = pool(input.topology, input.reserved);
        let (Some(quantum), Some(floor)) =
            (pool.iter().map(CpuSet::len).max().map(cpus), pool.iter().map(CpuSet::len).min().map(cpus))
        else {
            *self = Frame::new(CpuSet::new());
            let why = Explanation::new("every core is reserved for online groups: there is no frame", "");
            return FrameDecision { cpus: None, moved: Move::Steady, why };
        };
        let total: f64 = pool.iter().map(|core| cpus(core.len())).sum();
        let theta = theta(input.topology);
        let params = Params::cpus(cpus(input.topology.threads()), quantum);
        let mut regulator = self.adopt(&pool, params);
        let mut headroom = headroom(theta, total, input.used);
        if let (Some(headroom), Some(cap)) = (&mut headroom, sound(input.cap)) {
            *headroom = headroom.min(cap);
        }
        let have = self.have();
        let target = headroom.map(|headroom| whole_cores(headroom, have, quantum, params.dead_zone));
        let moved = regulator.step(now_ms, target, Range { floor, ceiling: total });
        let allowed = regulator.value();
        let why = explain(moved.words("the frame"), (theta, total), input.used, input.cap, headroom);
        let why = match headroom {
            Some(headroom) if headroom < have => {
                why.then("target = had - ceil((had - headroom) / core - 0.000001) * core")
            }
            Some(_) => why
                .then("target = had + max(floor((headroom - had - dead_zone) / core), 0) * core")
                .with("dead_zone", params.dead_zone, "CPUs"),
            None => why,
        };
        let why = regulator.explain(moved, why, ("target", "allowed"), "CPUs");
        self.regulator = Some(regulator);
        self.fit(input.topology, &pool, allowed);
        // With cores of different sizes it matters which come first.
        let why = match quantum <= floor {
            true => why.then("frame = max(floor((allowed + 0.000001) / core), 1) * core"),
            false => why.then("frame = fits").with("fits", self.have(), "CPUs"),
        };
        let why = why
            .with("had", have, "CPUs")
            .with("core", quantum, "CPUs")
            .with("allowed", allowed, "CPUs")
            .with("frame", self.have(), "CPUs");
        FrameDecision { cpus: Some(self.cpus()), moved, why }
    }

    /// The CPUs in the frame.
    #[must_use]
    pub fn cpus(&self) -> CpuSet {
        self.chosen.iter().fold(CpuSet::new(), |all, core| all.union(core))
    }

    fn have(&self) -> f64 {
        self.chosen.iter().map(|core| cpus(core.len())).sum()
    }

    /// Drops cores that are gone, changed or now reserved, and adopts the CPUs in force at the first step.
    fn adopt(&mut self, pool: &[CpuSet], params: Params) -> Regulator {
        self.chosen.retain(|core| pool.contains(core));
        match self.regulator.take() {
            Some(mut regulator) => {
                regulator.retune(params);
                regulator
            }
            None => {
                let start = std::mem::take(&mut self.start);
                self.chosen = pool.iter().filter(|core| core.is_subset(&start)).cloned().collect();
                Regulator::new(params, self.have())
            }
        }
    }

    /// Adds cores, or releases the last added ones, so that the frame holds as many as fit in `allowed`, and at least
    /// one.
    fn fit(&mut self, topology: &Topology, pool: &[CpuSet], allowed: f64) {
        while self.chosen.len() > 1 && self.have() > allowed + EPSILON {
            self.chosen.pop();
        }
        while let Some(core) = self.next(topology, pool) {
            if !self.chosen.is_empty() && self.have() + cpus(core.len()) > allowed + EPSILON {
                break;
            }
            self.chosen.push(core);
        }
    }

    /// The core to add next, to keep the frame spread: from the NUMA node, then the last-level cache, of which the
    /// frame has the smallest share; then the highest number, because interrupts and kernel threads that cannot move
    /// are on the lowest.
    fn next(&self, topology: &Topology, pool: &[CpuSet]) -> Option<CpuSet> {
        let place: BTreeMap<u32, (Option<u32>, Option<&CpuSet>)> =
            topology.cpus.iter().map(|cpu| (cpu.id, (cpu.node, cpu.llc.as_ref()))).collect();
        let at = |core: &CpuSet| core.iter().next().and_then(|first| place.get(&first).copied());
        let share = |same: &dyn Fn(&CpuSet) -> bool| {
            let of = |cores: &[CpuSet]| cores.iter().filter(|core| same(core)).count();
            (of(&self.chosen) * 1_000) / of(pool).max(1)
        };
        let free = pool.iter().filter(|core| !self.chosen.contains(core));
        free.min_by_key(|core| {
            let node = share(&|other| at(other).map(|at| at.0) == at(core).map(|at| at.0));
            let llc = share(&|other| at(other).map(|at| at.1) == at(core).map(|at| at.1));
            (node, llc, Reverse((*core).clone()))
        })
        .cloned()
    }
}

/// Tolerance for rounding errors in sums of tenths.
const EPSILON: f64 = 1e-6;

fn cpus(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// The size that the frame should have, in steps of `quantum` from its current size: smaller as soon as the headroom is
/// smaller, larger only when the headroom exceeds it by the dead zone, so that headroom at the boundary of a core does
/// not move it.
fn whole_cores(headroom: f64, have: f64, quantum: f64, dead_zone: f64) -> f64 {
    if headroom < have {
        return have - ((have - headroom) / quantum - EPSILON).ceil() * quantum;
    }
    have + ((headroom - have - dead_zone) / quantum).floor().max(0.0) * quantum
}

/// How to get from one set of CPUs to another: which sets to write, in which order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    /// Written first, parents before children; `None` when no CPU is added.
    pub widen: Option<CpuSet>,
    /// Written second, children before parents; `None` when no CPU is removed.
    pub narrow: Option<CpuSet>,
}

impl Transition {
    /// Why the union comes first.
    pub const REASON: &'static str = "a parent must hold what its children have (cgroup v1 refuses anything else with \
        EACCES or EBUSY), and tasks must have a CPU at every moment: so first old and new together from the top, \
        then the new alone from the bottom";
}

/// From `old` to `new` by way of their union.
#[must_use]
pub fn transition(old: &CpuSet, new: &CpuSet) -> Transition {
    let both = old.union(new);
    Transition { widen: (both != *old).then(|| both.clone()), narrow: (both != *new).then(|| new.clone()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Machine;
    use crate::units::Bytes;

    /// `nodes` nodes of `cores` cores with `threads` threads, an LLC for every two cores; siblings are numbered as on
    /// real machines, the second threads after all first ones.
    fn machine(nodes: u32, cores: u32, threads: u32) -> Topology {
        let all = nodes * cores;
        let mut topology = Machine::simple(all * threads, Bytes(1 << 30)).topology;
        for cpu in &mut topology.cpus {
            let core = cpu.id % all;
            let of = |core: u32| (0..threads).map(move |thread| core + thread * all);
            cpu.siblings = of(core).collect();
            cpu.llc = Some(of(core / 2 * 2).chain(of(core / 2 * 2 + 1)).collect());
            cpu.node = Some(core / cores);
        }
        topology
    }

    fn used(others: f64) -> Use {
        Use { busy: Some(others + 1.0), offline: Some(1.0), ..Use::default() }
    }

    fn step(frame: &mut Frame, now: &mut u64, topology: &Topology, others: f64) -> String {
        *now += 1_000;
        let input = FrameInput { topology, reserved: &CpuSet::new(), used: used(others), cap: None };
        frame.step(*now, &input).cpus.map_or_else(|| "none".to_owned(), |cpus| cpus.to_string())
    }

    #[test]
    fn grows_by_whole_cores_spread_over_nodes_and_caches_and_sheds_the_last() {
        let topology = machine(2, 4, 2);
        let (mut frame, mut now) = (Frame::new(CpuSet::new()), 0);
        let mut seen: Vec<String> = (0..5).map(|_| step(&mut frame, &mut now, &topology, 0.0)).collect();
        // 0.65 * 16 = 10.4 CPUs: five cores. The other node, the other cache.
        assert_eq!(seen, ["7,15", "3,7,11,15", "3,5,7,11,13,15", "1,3,5,7,9,11,13,15", "1,3,5-7,9,11,13-15"]);
        assert_eq!(step(&mut frame, &mut now, &topology, 0.0), seen[4]);
        seen.clear();
        seen.extend([4.5, 8.0, 99.0].map(|others| step(&mut frame, &mut now, &topology, others)));
        assert_eq!(seen, ["3,7,11,15", "7,15", "7,15"]);
    }

    #[test]
    fn the_equation() {
        let use_of = |busy, steal, offline, confined| Use { busy, steal, offline, confined };
        let headroom = |used| headroom(0.8, 10.0, used).map(|headroom| (headroom * 100.0).round() / 100.0);
        assert_eq!(headroom(use_of(Some(6.0), None, Some(4.0), None)), Some(6.0));
        assert_eq!(headroom(use_of(Some(6.0), Some(1.0), Some(4.0), Some(0.5))), Some(5.5));
        assert_eq!(headroom(use_of(Some(1.0), None, Some(4.0), None)), Some(8.0), "counters out of step");
        assert_eq!(headroom(use_of(Some(20.0), None, Some(0.0), None)), Some(-12.0));
        assert_eq!(headroom(use_of(None, None, Some(4.0), None)), None);
        assert_eq!(headroom(use_of(Some(4.0), None, None, None)), None);
        assert_eq!((theta(&machine(1, 2, 2)), theta(&machine(1, 2, 1))), (THETA_SMT, THETA));
    }

    #[test]
    fn reserved_cores_are_left_alone_even_when_that_is_all() {
        let topology = machine(1, 4, 2);
        let (mut frame, reserved) = (Frame::new(topology.all()), "0-2".parse().unwrap());
        let input = FrameInput { topology: &topology, reserved: &reserved, used: used(0.0), cap: None };
        assert_eq!(frame.step(0, &input).cpus.unwrap().to_string(), "3,7");
        let all = topology.all();
        let decision = frame.step(1_000, &FrameInput { reserved: &all, ..input });
        assert_eq!(decision.cpus, None);
        assert!(decision.why.rule.contains("reserved"), "{}", decision.why);
    }

    #[test]
    fn a_hand_over_changes_nothing_and_a_lost_cpu_is_dropped() {
        let topology = machine(1, 8, 1);
        let mut frame = Frame::new("0-3".parse().unwrap());
        let mut now = 0;
        assert_eq!(step(&mut frame, &mut now, &topology, 2.0), "0-3");
        let mut fewer = topology.clone();
        fewer.cpus.retain(|cpu| cpu.id != 2);
        assert_eq!(step(&mut frame, &mut now, &fewer, 2.0), "0-1,3");
    }

    #[test]
    fn headroom_at_the_boundary_of_a_core_does_not_move_the_frame() {
        let topology = machine(1, 8, 1);
        let (mut frame, mut now) = (Frame::new("4-7".parse().unwrap()), 0);
        for tick in 0..100 {
            let noise = if tick % 2 == 0 { 0.02 } else { -0.02 };
            assert_eq!(step(&mut frame, &mut now, &topology, 1.4 + noise), "4-7");
        }
    }

    #[test]
    fn the_way_from_one_set_to_another() {
        let check = |old: &str, new: &str, widen: Option<&str>, narrow: Option<&str>| {
            let way = transition(&old.parse().unwrap(), &new.parse().unwrap());
            let text = |set: Option<CpuSet>| set.map(|set| set.to_string());
            assert_eq!((text(way.widen).as_deref(), text(way.narrow).as_deref()), (widen, narrow));
        };
        check("0-1", "1-2", Some("0-2"), Some("1-2"));
        check("0-1", "0-3", Some("0-3"), None);
        check("0-3", "0-1", None, Some("0-1"));
        check("0-3", "0-3", None, None);
    }
}
