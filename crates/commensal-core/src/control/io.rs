//! Controller of the disk rates of offline work, based on the I/O pressure of online groups: additive increase and
//! multiplicative decrease, for each disk and direction (read, write).
//!
//! A direction is unlimited until online work waits. Then the controller limits the direction to half of the current
//! use. Each second, the limit grows by a tenth of the best rate: the highest rate that offline work has used since the
//! limit was set. A limit of twice the best rate has no effect any more, so the controller removes it. The controller
//! sets no rate on disks that the kernel shares by weight (`io.cost` or BFQ). Weights are better, because they are
//! work-conserving: they leave no disk time unused while requests wait.
//!
//! The pressure must be that of online *groups* (cgroup v2): the pressure of the machine includes the waits of offline
//! work itself.

use super::explain::Explanation;
use super::own::Own;
use super::regulator::{HOLD_FIRST_MS, HOLD_LONGEST_MS, Move, Params, Range, Regulator};
use super::{Clock, Staleness, sound};
use crate::actual::{ActualState, CgroupPath, CgroupRef};
use crate::knob::{Controller, KnobId, Value};
use crate::topology::{Device, Disk};
use crate::units::BytesPerS;
use std::collections::{BTreeMap, BTreeSet};

const MIB: f64 = 1_048_576.0;

/// I/O pressure (`some`, in per cent of the time) that is allowed for an online group; rubik also acts at 5 %.
pub const PRESSURE_PCT: f64 = 5.0;
/// Severity below which limits rise, as in [`super::latency`]. The severity is the pressure divided by the allowed
/// pressure.
pub const EASE_BELOW: f64 = 0.7;
/// Share of the current use that remains after a cut.
pub const CUT: f64 = 0.5;
/// Share of the current use that remains after a cut above severity [`SEVERE`]. If each cut only halved the rate, a
/// fast disk would need ten cuts.
pub const CUT_SEVERE: f64 = 0.1;
/// Severity above which [`CUT_SEVERE`] applies.
pub const SEVERE: f64 = 4.0;
/// Minimum time (ms) between two cuts. By then the disk has completed the requests that were queued before the first
/// cut, so the pressure reflects that cut.
pub const CUT_SPACING_MS: u64 = 500;
/// The lowest limit (bytes per second): it is enough for logs and metadata, and 1 % of the rate of a slow disk.
pub const FLOOR: f64 = MIB;
/// Share of the best rate by which a limit grows each second; it grows by at least [`FLOOR`].
pub const GROWTH_SHARE_PER_S: f64 = 0.10;
/// Multiple of the best rate at which a limit is removed.
pub const LIFT_OVER_BEST: f64 = 2.0;

/// Rates (bytes per second) at which offline groups have used a disk since the last call.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rates {
    /// Read rate; `None` if not measured.
    pub read: Option<f64>,
    /// Write rate; `None` if not measured.
    pub write: Option<f64>,
}

/// Disks that the kernel shares by weight: disks with the BFQ scheduler, and disks with io.cost enabled.
#[must_use]
pub fn shared(disks: &[Disk], actual: &ActualState) -> BTreeSet<Device> {
    let root = actual
        .hierarchy_of(Controller::Io)
        .and_then(|hierarchy| actual.cgroups.get(&CgroupRef { hierarchy, path: CgroupPath::root() }));
    let by_cost = |device: Device| {
        let value = root.and_then(|root| root.values.get(&(KnobId::IoCostQos, Some(device))));
        value == Some(&Value::Number(1))
    };
    let shared = |disk: &&Disk| disk.scheduler.as_deref() == Some("bfq") || by_cost(disk.device);
    disks.iter().filter(shared).map(|disk| disk.device).collect()
}

/// Inputs of [`Io::step`].
#[derive(Debug, Clone, Copy)]
pub struct IoInput<'a> {
    /// Whether the I/O pressure of online groups can be measured on this machine. If not, the controller sets no limit
    /// and states this in the explanation.
    pub measurable: bool,
    /// Share of the time (per cent) in which some task of an online group waited for a disk, for the group that waited
    /// most.
    pub pressure_pct: Option<f64>,
    /// The disks, with the rates of offline groups.
    pub offline: &'a BTreeMap<Device, Rates>,
    /// Disks that online groups use; `None` if unknown, which counts as all disks.
    pub online: Option<&'a BTreeSet<Device>>,
    /// Disks that the kernel shares by weight (`io.cost.qos` enabled, or BFQ).
    pub shared: &'a BTreeSet<Device>,
}

/// The limits for a disk.
#[derive(Debug, Clone, PartialEq)]
pub struct DiskDecision {
    /// Read limit; `None` is unlimited.
    pub read: Option<BytesPerS>,
    /// Write limit; `None` is unlimited.
    pub write: Option<BytesPerS>,
    /// Whether weights are used instead of rates.
    pub weights: bool,
    /// Whether this step removed a limit.
    pub lifted: bool,
    /// The explanation for both directions, without the formulas of the limits.
    pub why: Explanation,
    /// The explanations of the read limit and of the write limit, each with its formula.
    pub each: [Explanation; 2],
}

/// One direction of a disk; without a regulator it is unlimited.
#[derive(Debug, Clone, Default)]
struct Lane {
    regulator: Option<Regulator>,
    /// The highest rate that offline work has used since the limit was set (bytes per second).
    best: f64,
    /// Whether the last step removed the limit.
    lifted: bool,
}

/// What a step did to the limit of one direction (reads or writes).
#[derive(Debug, Clone, Copy, PartialEq)]
struct Moved {
    moved: Move,
    /// Whether the direction was unlimited before the step.
    begins: bool,
    /// The formula of the limit's target, written with the names of its inputs.
    goal: &'static str,
    lift: f64,
    before: f64,
}

/// The controller of the disk rates of offline work.
#[derive(Debug, Clone)]
pub struct Io {
    clock: Clock,
    silence: Staleness,
    own: Own,
    since_cut_ms: u64,
    lanes: BTreeMap<Device, [Lane; 2]>,
}

impl Default for Io {
    fn default() -> Io {
        Io {
            clock: Clock::default(),
            silence: Staleness::default(),
            own: Own::default(),
            since_cut_ms: CUT_SPACING_MS,
            lanes: BTreeMap::new(),
        }
    }
}

/// The verdict of a step, which applies to every direction.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Verdict {
    Cut(f64),
    Ease,
    Keep,
    Missing { lost: bool },
}

impl Io {
    /// Decides the limits for every disk in `input.offline`; the state of other disks is dropped. While the pressure is
    /// missing, limits first stay as they are, and after [`super::MISSING_HOLD_MS`] they fall to the floor.
    pub fn step(&mut self, now_ms: u64, input: &IoInput<'_>) -> BTreeMap<Device, DiskDecision> {
        let passed_ms = self.clock.step(now_ms);
        self.since_cut_ms = self.since_cut_ms.saturating_add(passed_ms);
        self.lanes.retain(|device, _| input.offline.contains_key(device));
        let measured = sound(input.pressure_pct);
        let lost = self.silence.step(passed_ms, measured.is_some());
        let small = |rate: Option<f64>| sound(rate).is_some_and(|rate| rate <= FLOOR * 1.1);
        let at_floor = input.offline.iter().all(|(device, rates)| {
            input.shared.contains(device) || (small(rates.read) && small(rates.write))
        });
        let severity = measured.map(|pct| self.own.step(passed_ms, pct / PRESSURE_PCT, at_floor));
        let verdict = self.verdict(severity, lost);
        if matches!(verdict, Verdict::Cut(_)) {
            self.since_cut_ms = 0;
        }
        let why = |rule: String| {
            let formula = match (severity, self.own.known()) {
                (None, _) => "",
                (_, None) => "severity = pressure / 5 %",
                (_, Some(_)) => "severity = pressure / 5 % / max(1, 1.5 * own)",
            };
            Explanation::new(rule, formula)
                .maybe("pressure", measured, "%")
                .maybe("own", self.own.known(), "")
                .maybe("severity", severity, "")
        };
        let mut decisions = BTreeMap::new();
        for (device, rates) in input.offline {
            let beside = input.online.is_none_or(|online| online.contains(device));
            if let Some(off) = off(input, device) {
                let limited = |lanes: [Lane; 2]| lanes.iter().any(|lane| lane.regulator.is_some());
                let lifted = self.lanes.remove(device).is_some_and(limited);
                let weights = input.shared.contains(device);
                let why = Explanation::new(off, "");
                let each = [why.clone(), why.clone()];
                decisions
                    .insert(*device, DiskDecision { read: None, write: None, weights, lifted, why, each });
                continue;
            }
            let lanes = self.lanes.entry(*device).or_default();
            let verdict = if beside || !matches!(verdict, Verdict::Cut(_)) { verdict } else { Verdict::Keep };
            let [read, write] = lanes;
            let words = [read.step(now_ms, rates.read, verdict), write.step(now_ms, rates.write, verdict)];
            let rule = |lane: &Lane, moved: &Option<Moved>, what: &str| match moved {
                Some(moved) if moved.begins => {
                    format!(
                        "{what} is limited from now on to a share of its current rate, because online work waits for the disk"
                    )
                }
                Some(moved) => moved.moved.words(what),
                None if lane.lifted => {
                    format!("{what} is unlimited again, because the limit had no effect any more")
                }
                None => format!("{what} is unlimited"),
            };
            let rules = [rule(read, &words[0], "reading"), rule(write, &words[1], "writing")];
            let why_all = why(rules.join("; ")).maybe("read", sound(rates.read), "B/s").maybe(
                "write",
                sound(rates.write),
                "B/s",
            );
            let [of_read, of_write] = rules;
            let each = [
                read.explain(words[0], why(of_read), rates.read),
                write.explain(words[1], why(of_write), rates.write),
            ];
            let (limit_read, limit_write) = (read.limit(), write.limit());
            let decision = DiskDecision {
                read: limit_read,
                write: limit_write,
                weights: false,
                lifted: read.lifted || write.lifted,
                why: why_all,
                each,
            };
            decisions.insert(*device, decision);
        }
        decisions
    }

    fn verdict(&self, severity: Option<f64>, lost: bool) -> Verdict {
        match severity {
            None => Verdict::Missing { lost },
            Some(severity) if severity > 1.0 && self.since_cut_ms < CUT_SPACING_MS => Verdict::Keep,
            Some(severity) if severity > SEVERE => Verdict::Cut(CUT_SEVERE),
            Some(severity) if severity > 1.0 => Verdict::Cut(CUT),
            Some(severity) if severity < EASE_BELOW => Verdict::Ease,
            Some(_) => Verdict::Keep,
        }
    }
}

/// The formula of a cut to a share of the current use, written with the names of its inputs.
fn cut(left: f64, known: bool) -> &'static str {
    match (left < CUT, known) {
        (false, true) => "goal = min(used, limit_before) * 0.5",
        (true, true) => "goal = min(used, limit_before) * 0.1",
        (false, false) => "goal = limit_before * 0.5",
        (true, false) => "goal = limit_before * 0.1",
    }
}

/// Why no rate may be set on a disk; `None` if rates may be set.
fn off(input: &IoInput<'_>, device: &Device) -> Option<&'static str> {
    if input.shared.contains(device) {
        return Some("no rate: the kernel shares this disk by weight, which wastes no bandwidth");
    }
    (!input.measurable)
        .then_some("no rate: the I/O pressure of online groups is not available here (only cgroup v2 has it)")
}

impl Lane {
    /// Takes a step; returns `None` if the direction is unlimited after it.
    fn step(&mut self, now_ms: u64, used: Option<f64>, verdict: Verdict) -> Option<Moved> {
        self.lifted = false;
        let used = sound(used);
        self.best = self.best.max(used.unwrap_or(0.0));
        let params = Params {
            growth_per_s: (GROWTH_SHARE_PER_S * self.best).max(FLOOR),
            dead_zone: 0.01 * self.best,
            hold_first_ms: HOLD_FIRST_MS,
            hold_longest_ms: HOLD_LONGEST_MS,
        };
        let begins = match verdict {
            // An idle direction does no harm; one whose use is unknown may do harm.
            Verdict::Cut(_) => used.is_none_or(|used| used > FLOOR),
            Verdict::Missing { lost } => lost,
            Verdict::Ease | Verdict::Keep => false,
        };
        let begins = self.regulator.is_none() && begins;
        if begins {
            self.best = used.unwrap_or(0.0);
            let mut regulator = Regulator::new(params, used.unwrap_or(0.0).max(FLOOR));
            regulator.step(now_ms, Some(regulator.value()), Range { floor: FLOOR, ceiling: f64::MAX });
            self.regulator = Some(regulator);
        }
        let regulator = self.regulator.as_mut()?;
        regulator.retune(params);
        let value = regulator.value();
        let lift = (self.best * LIFT_OVER_BEST).max(2.0 * FLOOR);
        let (target, goal) = match (verdict, used) {
            (Verdict::Cut(left), None) => (Some(value * left), cut(left, false)),
            (Verdict::Cut(left), Some(used)) => (Some(used.min(value) * left), cut(left, true)),
            (Verdict::Ease, _) => (Some(lift.max(value)), "goal = max(lift, limit_before)"),
            (Verdict::Keep, _) => (Some(value), "goal = limit_before"),
            (Verdict::Missing { lost: true }, _) => (Some(FLOOR), "goal = floor"),
            (Verdict::Missing { lost: false }, _) => (None, ""),
        };
        let moved = regulator.step(now_ms, target, Range { floor: FLOOR, ceiling: f64::MAX });
        if verdict == Verdict::Ease && regulator.value() >= lift {
            (self.regulator, self.lifted) = (None, true);
            return None;
        }
        // Reported as fail-safe instead of a shrink, because nothing was measured.
        let moved = if verdict == (Verdict::Missing { lost: true }) { Move::FailSafe } else { moved };
        Some(Moved { moved, begins, goal, lift, before: value })
    }

    fn explain(&self, moved: Option<Moved>, why: Explanation, used: Option<f64>) -> Explanation {
        let Some((Moved { moved, goal, lift, before, .. }, regulator)) = moved.zip(self.regulator.as_ref())
        else {
            return why;
        };
        let why = if goal.is_empty() { why } else { why.then(goal) };
        regulator
            .explain(moved, why, ("goal", "limit"), "B/s")
            .maybe("used", sound(used), "B/s")
            .with("limit_before", before, "B/s")
            .maybe("lift", goal.contains("lift").then_some(lift), "B/s")
            .with("limit", regulator.value(), "B/s")
    }

    fn limit(&self) -> Option<BytesPerS> {
        self.regulator.as_ref().map(|regulator| BytesPerS(regulator.value() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: Device = Device { major: 254, minor: 0 };

    struct World {
        io: Io,
        now: u64,
        tick_ms: u64,
        shared: BTreeSet<Device>,
        online: BTreeSet<Device>,
        measurable: bool,
    }

    fn world() -> World {
        World {
            io: Io::default(),
            now: 0,
            tick_ms: 1_000,
            shared: BTreeSet::new(),
            online: [DISK].into(),
            measurable: true,
        }
    }

    impl World {
        fn step(&mut self, pressure_pct: Option<f64>, read: f64) -> DiskDecision {
            self.now += self.tick_ms;
            let offline = [(DISK, Rates { read: Some(read * MIB), write: Some(0.0) })].into();
            let input = IoInput {
                measurable: self.measurable,
                pressure_pct,
                offline: &offline,
                online: Some(&self.online),
                shared: &self.shared,
            };
            self.io.step(self.now, &input).remove(&DISK).unwrap()
        }

        /// Rates in MiB/s.
        fn read(&mut self, pressure_pct: Option<f64>, read: f64) -> Option<u64> {
            self.step(pressure_pct, read).read.map(|rate| rate.0 >> 20)
        }
    }

    #[test]
    fn half_of_what_is_used_then_slowly_back_then_lifted() {
        let mut world = world();
        assert_eq!(world.read(Some(1.0), 100.0), None);
        let decision = world.step(Some(10.0), 100.0);
        assert_eq!(decision.read, Some(BytesPerS(50 << 20)));
        assert_eq!(decision.write, None, "an idle direction hurts nobody");
        assert_eq!(world.read(Some(50.0), 50.0), Some(5));
        assert_eq!(world.read(Some(4.0), 5.0), Some(5));
        let mut rates = Vec::new();
        for _ in 0..40 {
            rates.push(world.read(Some(0.0), 5.0).unwrap_or(1_000));
        }
        assert_eq!(rates[..4], [5, 5, 5, 15]);
        assert_eq!(rates[39], 1_000, "lifted");
        assert!(rates.windows(2).all(|pair| pair[0] <= pair[1]), "{rates:?}");
    }

    #[test]
    fn a_second_cut_waits_for_the_effect_of_the_first() {
        let mut world = world();
        world.tick_ms = 100;
        let rates: Vec<_> = (0..7).map(|_| world.read(Some(10.0), 100.0)).collect();
        let half = Some(50);
        assert_eq!(rates, [half, half, half, half, half, Some(25), Some(25)]);
    }

    #[test]
    fn weights_replace_rates_and_without_pressure_nothing_is_limited() {
        let mut shared = world();
        shared.shared.insert(DISK);
        let decision = shared.step(Some(90.0), 100.0);
        assert!(decision.weights && decision.read.is_none(), "{}", decision.why);
        let mut blind = world();
        blind.measurable = false;
        for _ in 0..20 {
            assert_eq!(blind.read(None, 100.0), None);
        }
    }

    #[test]
    fn a_disk_that_online_work_does_not_use_is_left_alone() {
        let mut world = world();
        world.online.clear();
        assert_eq!(world.read(Some(90.0), 100.0), None);
    }

    #[test]
    fn missing_pressure_is_held_and_then_the_floor() {
        let mut world = world();
        world.read(Some(10.0), 100.0);
        let rates: Vec<_> = (0..6).map(|_| world.read(None, 50.0)).collect();
        assert_eq!(rates, [Some(50), Some(50), Some(50), Some(50), Some(1), Some(1)]);
    }

    #[test]
    fn a_service_that_waits_for_its_own_reads_does_not_choke_offline_work() {
        let mut world = world();
        let mut used = 100.0_f64;
        for _ in 0..120 {
            used = world.read(Some(30.0), used).map_or(100.0, |limit| (limit as f64).min(100.0));
        }
        assert!(used > 90.0, "{used}");
    }
}
