//! The big frame is the set of whole physical cores that offline (batch) work may use; this controller chooses them.
//! The headroom is the number of CPUs that other work leaves:
//!
//! ```text
//! headroom = theta * cpus - (busy + steal - offline - confined)
//! ```
//!
//! `busy` is the CPU use of the whole machine, `steal` the CPU time that the hypervisor gave to other guests, and
//! `offline` the CPU use of offline work. `theta` is the share of the CPUs that may be busy. `cpus` is the number of
//! CPUs that no online group has reserved (`cpu.set`, `cpu.partition`). `confined` is the CPU use of the groups with
//! reserved CPUs, which is not a load on the other CPUs. Five similar tools use this equation with other constants
//! (koordlet, katalyst, volcano-agent, sideloader, crane in part). The equation is valid for any size of the frame,
//! because `busy - offline` does not depend on the CPU use of offline work.
//!
//! [`super::suppress`] converts the headroom to a quota instead. [`crate::plan`] orders the writes when the frame
//! changes.

use super::explain::Explanation;
use super::regulator::{Move, Params, Range, Regulator};
use super::sound;
use crate::cpuset::CpuSet;
use crate::topology::Topology;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Share of the CPUs that may be busy on a machine with SMT. Two busy threads of a core do about 1.3 times the work of
/// one thread, so the cores are fully used when 65 % of the threads are busy. This is also koordlet's default.
pub const THETA_SMT: f64 = 0.65;
/// Share of the CPUs that may be busy on a machine without SMT; the rest is for bursts of online work within a tick.
/// volcano-agent and sideloader also use 80 %.
pub const THETA: f64 = 0.80;

/// CPU use since the last tick, in CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Use {
    /// CPU use of the whole machine, including interrupts.
    pub busy: Option<f64>,
    /// Time taken by the hypervisor for other guests; `None` if the kernel does not count this time. None of the other
    /// fields includes it.
    pub steal: Option<f64>,
    /// CPU use of offline groups.
    pub offline: Option<f64>,
    /// CPU use of online groups that have reserved CPUs. If this is missing, the CPU use of these groups counts as a
    /// load on the other CPUs, which makes the headroom smaller and is therefore safe.
    pub confined: Option<f64>,
}

/// The headroom for offline work, in CPUs; may be negative. `cpus` is the number of CPUs that offline work may use when
/// no controller limits it. `None` if `busy` or `offline` is missing.
#[must_use]
pub fn headroom(theta: f64, cpus: f64, used: Use) -> Option<f64> {
    let others = sound(used.busy)? + sound(used.steal).unwrap_or(0.0) - sound(used.offline)?;
    // Counters are read one after another, so offline work may seem to use more than the whole machine.
    let others = (others.max(0.0) - sound(used.confined).unwrap_or(0.0)).max(0.0);
    Some(theta * cpus - others)
}

/// The explanation of the headroom, limited by `cap`; its formula contains only inputs that are present. With `starved`
/// the headroom is at least the size of the current frame, the input `old_frame`, which the caller adds.
#[must_use]
pub(super) fn explain(
    rule: String,
    (theta, cpus): (f64, f64),
    used: Use,
    (cap, starved): (Option<f64>, bool),
    headroom: Option<f64>,
) -> Explanation {
    let Use { busy, steal, offline, confined } = used;
    let [busy, steal, offline, confined, cap] = [busy, steal, offline, confined, cap].map(sound);
    let formula = headroom.map_or_else(String::new, |_| {
        let steal = if steal.is_some() { " + steal" } else { "" };
        let confined = if confined.is_some() { " - confined" } else { "" };
        let by = format!("theta * cpus - max(busy{steal} - offline{confined}, 0)");
        let by = if starved { format!("max({by}, old_frame)") } else { by };
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

/// The share of the machine's CPUs that may be busy.
#[must_use]
pub fn theta(topology: &Topology) -> f64 {
    if topology.smt() { THETA_SMT } else { THETA }
}

/// Number of logical CPUs of the machine, and per core.
#[must_use]
pub fn size(topology: &Topology) -> (f64, f64) {
    let (threads, cores) = (cpus(topology.threads()), cpus(topology.cores()));
    (threads, threads / cores.max(1.0))
}

/// The physical cores that offline work may use: all cores that have no thread in `reserved`.
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

/// The part of `frame` to keep when no controller adjusts it any more: its first whole core; `None` if it contains no
/// whole core.
#[must_use]
pub fn least(topology: &Topology, frame: &CpuSet) -> Option<CpuSet> {
    pool(topology, &CpuSet::new()).into_iter().find(|core| core.is_subset(frame))
}

/// Inputs of [`Frame::step`].
#[derive(Debug, Clone, Copy)]
pub struct FrameInput<'a> {
    /// The machine's current topology; CPUs may be hot-plugged.
    pub topology: &'a Topology,
    /// CPUs that online groups have reserved by `cpu.set` or `cpu.partition`.
    pub reserved: &'a CpuSet,
    /// CPU use since the last tick.
    pub used: Use,
    /// The latency controller's cap, in CPUs; `None` when that controller sets no cap.
    pub cap: Option<f64>,
    /// Whether offline work starves: it wants CPU time and gets none, because online work is busy on the CPUs of the
    /// frame. While offline work starves, the frame does not shrink. Online work is already busy on the CPUs of the
    /// frame, so a smaller frame would give it nothing, and offline work would starve for longer. `cap` still applies.
    pub starved: bool,
}

/// The decision about the CPUs that offline work may use.
#[derive(Debug, Clone, PartialEq)]
pub struct FrameDecision {
    /// The CPUs, which form whole physical cores; `None` if every core is reserved for online groups. If it is `None`,
    /// the caller must write nothing and must report the problem: the kernel refuses an empty set while the group has
    /// tasks.
    pub cpus: Option<CpuSet>,
    /// How this step changed the size of the frame.
    pub moved: Move,
    /// The explanation.
    pub why: Explanation,
}

/// The controller of the frame. The controller keeps the cores that it chose, and releases the most recently added
/// cores first.
#[derive(Debug, Clone)]
pub struct Frame {
    regulator: Option<Regulator>,
    start: CpuSet,
    /// Chosen cores, in the order in which they were added.
    chosen: Vec<CpuSet>,
}

impl Frame {
    /// Creates the controller. If this agent replaces another agent, `in_force` is the set of CPUs in force, from which
    /// the controller starts. If the set is empty, the controller starts from the floor.
    #[must_use]
    pub fn new(in_force: CpuSet) -> Frame {
        Frame { regulator: None, start: in_force, chosen: Vec::new() }
    }

    /// Decides the frame. While `busy` or `offline` is missing, the frame first stays as it is, and after
    /// [`super::MISSING_HOLD_MS`] it shrinks to its floor of one core.
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
        let have = self.have();
        let mut headroom = headroom(theta, total, input.used);
        let starved = input.starved && headroom.is_some_and(|headroom| headroom < have);
        if starved {
            headroom = Some(have);
        }
        if let (Some(headroom), Some(cap)) = (&mut headroom, sound(input.cap)) {
            *headroom = headroom.min(cap);
        }
        let target = headroom.map(|headroom| whole_cores(headroom, have, quantum, params.dead_zone));
        let moved = regulator.step(now_ms, target, Range { floor, ceiling: total });
        let allowed = regulator.value();
        let mut rule = moved.words("the frame");
        if starved {
            rule += "; it does not shrink although its CPUs are busy, because offline work starves there and uses none of that time";
        }
        let why = explain(rule, (theta, total), input.used, (input.cap, starved), headroom);
        let why = match headroom {
            Some(headroom) if headroom < have => {
                why.then("target = old_frame - ceil((old_frame - headroom) / per_core - 0.000001) * per_core")
            }
            Some(_) => why
                .then(
                    "target = old_frame + max(floor((headroom - old_frame - dead_zone) / per_core), 0) * per_core",
                )
                .with("dead_zone", params.dead_zone, "CPUs"),
            None => why,
        };
        let why = regulator.explain(moved, why, ("target", "allowed"), "CPUs");
        self.regulator = Some(regulator);
        self.fit(input.topology, &pool, allowed);
        // With cores of different sizes the result depends on which cores are chosen.
        let why = match quantum <= floor {
            true => why.then("frame = max(floor((allowed + 0.000001) / per_core), 1) * per_core"),
            false => why.then("frame = fits").with("fits", self.have(), "CPUs"),
        };
        let why = why
            .with("old_frame", have, "CPUs")
            .with("per_core", quantum, "CPUs")
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

    /// Drops cores that were unplugged, changed or reserved. At the first step, adopts the CPUs in force.
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

    /// Adds cores, or releases the most recently added ones, until the frame contains as many cores as fit into
    /// `allowed`, but at least one.
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

    /// The core to add next; `None` if none is left. To spread the frame, the core comes from the NUMA node of which
    /// the frame has the smallest share, and within that node from the last-level cache of which the frame has the
    /// smallest share. Of several such cores, the highest-numbered core is chosen, because interrupts and kernel
    /// threads that cannot move run on the lowest-numbered cores.
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

/// The target size of the frame, in steps of `quantum` from its current size `have`. The frame shrinks as soon as the
/// headroom is smaller, but grows only if the headroom exceeds the new size by the dead zone, so that headroom near the
/// boundary of a core does not make it oscillate.
fn whole_cores(headroom: f64, have: f64, quantum: f64, dead_zone: f64) -> f64 {
    if headroom < have {
        return have - ((have - headroom) / quantum - EPSILON).ceil() * quantum;
    }
    have + ((headroom - have - dead_zone) / quantum).floor().max(0.0) * quantum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Machine;
    use crate::units::Bytes;

    /// A topology of `nodes` nodes, each with `cores` cores of `threads` threads, and an LLC per two cores. Siblings
    /// are numbered as on real machines: all first threads come before the second ones.
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
        let input =
            FrameInput { topology, reserved: &CpuSet::new(), used: used(others), cap: None, starved: false };
        frame.step(*now, &input).cpus.map_or_else(|| "none".to_owned(), |cpus| cpus.to_string())
    }

    #[test]
    fn grows_by_whole_cores_spread_over_nodes_and_caches_and_sheds_the_last() {
        let topology = machine(2, 4, 2);
        let (mut frame, mut now) = (Frame::new(CpuSet::new()), 0);
        let mut seen: Vec<String> = (0..5).map(|_| step(&mut frame, &mut now, &topology, 0.0)).collect();
        // 0.65 * 16 = 10.4 CPUs: five cores, spread over nodes and caches.
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
        let input = FrameInput {
            topology: &topology,
            reserved: &reserved,
            used: used(0.0),
            cap: None,
            starved: false,
        };
        assert_eq!(frame.step(0, &input).cpus.unwrap().to_string(), "3,7");
        let all = topology.all();
        let decision = frame.step(1_000, &FrameInput { reserved: &all, ..input });
        assert_eq!(decision.cpus, None);
        assert!(decision.why.rule.contains("reserved"), "{}", decision.why);
    }

    /// Online work is busy on every CPU, and offline work in the frame gets none: the frame stays, and only the cap of
    /// the latency controller shrinks it.
    #[test]
    fn a_frame_in_which_work_starves_does_not_shrink() {
        let topology = machine(1, 8, 1);
        let used = Use { busy: Some(8.0), offline: Some(0.0), ..Use::default() };
        for (starved, cap, want) in [
            (true, None, "4-7"),
            (true, Some(2.0), "6-7"),
            (true, Some(8.0), "4-7"),
            (false, None, "7"),
            (false, Some(8.0), "7"),
        ] {
            let mut frame = Frame::new("4-7".parse().unwrap());
            let mut decided = None;
            for now in [0, 1_000, 2_000] {
                let reserved = &CpuSet::new();
                let input = FrameInput { topology: &topology, reserved, used, cap, starved };
                decided = Some(frame.step(now, &input));
            }
            let decided = decided.unwrap();
            assert_eq!(
                decided.cpus.unwrap().len(),
                want.parse::<CpuSet>().unwrap().len(),
                "{starved} {cap:?}"
            );
            let cpus = decided.why.derive().unwrap();
            assert_eq!(cpus, frame.have(), "{}", decided.why);
        }
        // As soon as offline work runs, the frame is as large as the headroom again.
        let mut frame = Frame::new("4-7".parse().unwrap());
        let none = CpuSet::new();
        let input = |starved| FrameInput { topology: &topology, reserved: &none, used, cap: None, starved };
        frame.step(0, &input(true));
        assert_eq!(frame.have(), 4.0);
        frame.step(1_000, &input(false));
        assert_eq!(frame.have(), 1.0);
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
}
