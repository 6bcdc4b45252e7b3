//! The regulator that the controllers share: it shrinks a value immediately and grows it slowly, but never below a
//! floor. After a shrink the value does not grow for some time (the hold). A shrink soon after growth is a relapse,
//! which makes the next hold longer.
//!
//! The regulated value is a number in any unit, usually CPUs. All growth rates are absolute: with a rate in per cent of
//! the current value, a small value never recovers. (In another tool, a quota of 9 thousandths of a CPU grew by 10 %,
//! and integer arithmetic rounded the result to 9 thousandths again.)

use super::explain::Explanation;
use super::{Clock, Staleness};

/// First hold (ms) after a shrink: five samples of one second, so that one quiet sample between two busy ones does not
/// admit offline work again.
pub const HOLD_FIRST_MS: u64 = 5_000;
/// Longest hold (ms): each burst of a bursty service costs offline work at most half a minute.
pub const HOLD_LONGEST_MS: u64 = 30_000;
/// A shrink within this time (ms) after growth is a relapse: either the growth caused it, or the load is bursty.
/// Therefore the next growth waits longer. The time is ten seconds because a growth rate of 10 % of the machine per
/// second goes from nothing to the whole machine in this time.
pub const RELAPSE_MS: u64 = 10_000;
/// Time (ms) without a relapse after which a lengthened hold is halved: twice the longest hold, so that a hold is not
/// shortened while it lasts.
pub const HOLD_DECAY_MS: u64 = 60_000;
/// Growth per second, as a share of the machine: on a large machine, from nothing to everything in ten seconds.
pub const GROWTH_SHARE_PER_S: f64 = 0.10;
/// Minimum growth per second, in cores: a small machine must not need many ticks for its first core.
pub const GROWTH_CORES_PER_S: f64 = 1.0;
/// Dead zone as a share of the machine: growth by less is not worth a write (similar tools also skip less than 1 %).
pub const DEAD_ZONE_SHARE: f64 = 0.01;
/// Minimum dead zone, in CPUs: one bandwidth slice (`sched_cfs_bandwidth_slice_us`, 5 ms by default) per period of 100
/// ms, which is the amount that the scheduler hands out at a time.
pub const DEAD_ZONE_CPUS: f64 = 0.05;

/// Rates and hold times of a regulator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Params {
    /// Maximum growth of the value per second.
    pub growth_per_s: f64,
    /// Growth by less than this is ignored; a shrink by less than this is carried out, but starts no hold.
    pub dead_zone: f64,
    /// Length of the hold after a shrink that is not a relapse (ms).
    pub hold_first_ms: u64,
    /// Maximum length of a hold after repeated relapses (ms).
    pub hold_longest_ms: u64,
}

impl Params {
    /// Parameters for a value in CPUs, on a machine with `machine` logical CPUs, `core` of them per physical core.
    #[must_use]
    pub fn cpus(machine: f64, core: f64) -> Params {
        Params {
            growth_per_s: (GROWTH_CORES_PER_S * core).max(GROWTH_SHARE_PER_S * machine),
            dead_zone: DEAD_ZONE_CPUS.max(DEAD_ZONE_SHARE * machine),
            hold_first_ms: HOLD_FIRST_MS,
            hold_longest_ms: HOLD_LONGEST_MS,
        }
    }
}

/// The bounds of the regulated value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// The minimum of the value.
    pub floor: f64,
    /// The maximum of the value; a ceiling below the floor counts as the floor.
    pub ceiling: f64,
}

/// What a step did to the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// This is the first step: the value is the value that was in force, within the bounds. It grows only when time has
    /// passed.
    Began,
    /// The value fell immediately to its target.
    Shrunk {
        /// Whether the shrink followed recent growth; if so, the hold is longer.
        relapse: bool,
    },
    /// The value rose, not faster than the growth rate.
    Grew,
    /// The target is higher, but the hold has not ended.
    Held {
        /// Time until the hold ends (ms).
        left_ms: u64,
    },
    /// The value is at its target, or closer to it than the dead zone.
    Steady,
    /// The target is missing: the value stays as it is.
    Blind {
        /// How long the target has been missing (ms).
        since_ms: u64,
    },
    /// The target has been missing for too long: the value falls to the floor.
    FailSafe,
}

impl Move {
    /// The move as readable text, for the rule of an explanation; `what` is the regulated value, such as `the frame`.
    #[must_use]
    pub fn words(self, what: &str) -> String {
        let seconds = |ms: u64| ms.div_ceil(1_000);
        match self {
            Move::Began => format!(
                "{what} begins at the value that was in force, but at least at its floor, and then follows the measurements"
            ),
            Move::Shrunk { relapse: false } => format!("{what} shrinks at once"),
            Move::Shrunk { relapse: true } => {
                format!(
                    "{what} shrinks at once, and waits longer before it grows again, because it had just grown"
                )
            }
            Move::Grew => format!("{what} grows"),
            Move::Held { left_ms } => {
                format!("{what} may grow, but waits another {} s, because it had to shrink", seconds(left_ms))
            }
            Move::Steady => format!("{what} stays"),
            Move::Blind { since_ms } => {
                format!("{what} stays as it is: nothing was measured for {} s", seconds(since_ms))
            }
            Move::FailSafe => format!("{what} is at its floor: nothing was measured for too long"),
        }
    }
}

/// A regulated value. Invariants: the value is never below the floor and never above `max(target, floor)`; it grows at
/// most at the growth rate, and not during a hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Regulator {
    params: Params,
    value: f64,
    clock: Clock,
    silence: Staleness,
    /// Duration (ms) of the hold that a shrink would start now.
    hold_ms: u64,
    hold_left_ms: u64,
    /// Time (ms) since the last growth; `None` before any growth, and after the first shrink that follows a growth.
    grown_ms: Option<u64>,
    calm_ms: u64,
    last: Last,
}

/// Inputs of the last step.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Last {
    before: f64,
    floor: f64,
    ceiling: f64,
    growth: f64,
    /// Whether [`Regulator::step`] was called before.
    any: bool,
}

impl Regulator {
    /// Creates a regulator whose value is `start`: the value already in force, or the floor.
    #[must_use]
    pub fn new(params: Params, start: f64) -> Regulator {
        Regulator {
            params,
            value: if start.is_finite() { start.max(0.0) } else { 0.0 },
            clock: Clock::default(),
            silence: Staleness::default(),
            hold_ms: params.hold_first_ms,
            hold_left_ms: 0,
            grown_ms: None,
            calm_ms: 0,
            last: Last::default(),
        }
    }

    /// The value in force.
    #[must_use]
    pub fn value(&self) -> f64 {
        self.value
    }

    /// Changes the parameters, for example after CPUs were hot-plugged.
    pub fn retune(&mut self, params: Params) {
        self.hold_ms = self.hold_ms.clamp(params.hold_first_ms, params.hold_longest_ms);
        self.params = params;
    }

    /// Moves the value towards `target`, within `range`. While the target is missing or not finite, the value first
    /// stays as it is, and after [`super::MISSING_HOLD_MS`] it falls to the floor.
    pub fn step(&mut self, now_ms: u64, target: Option<f64>, range: Range) -> Move {
        let passed_ms = self.pass(now_ms);
        let target = target.filter(|target| target.is_finite());
        let ceiling = range.ceiling.max(range.floor);
        let first = !self.last.any;
        let growth = self.params.growth_per_s * passed_ms as f64 / 1e3;
        self.last = Last { before: self.value, floor: range.floor, ceiling, growth, any: true };
        let lost = self.silence.step(passed_ms, target.is_some());
        let goal = match target {
            Some(target) => target.clamp(range.floor, ceiling),
            None if lost => range.floor,
            None => self.value.clamp(range.floor, ceiling),
        };
        let moved = self.approach(goal, range.floor, passed_ms);
        match target {
            _ if first && !lost && !matches!(moved, Move::Shrunk { .. }) => Move::Began,
            Some(_) => moved,
            None if lost => Move::FailSafe,
            None => Move::Blind { since_ms: self.silence.ms() },
        }
    }

    /// Adds to `why` how the last step, which returned `moved`, computed the value: a formula that assigns to the name
    /// `value` from the name `target`, and the formula's inputs in `unit`.
    #[must_use]
    pub fn explain(
        &self,
        moved: Move,
        why: Explanation,
        (target, value): (&str, &str),
        unit: &'static str,
    ) -> Explanation {
        let Last { before, floor, ceiling, growth, .. } = self.last;
        let bounded = ceiling < f64::MAX;
        let within = |of: &str| match bounded {
            true => format!("clamp({of}, floor, ceiling)"),
            false => format!("max({of}, floor)"),
        };
        let (by, from, up) = match moved {
            Move::Shrunk { .. } => (within(target), false, false),
            Move::Grew => (format!("min({}, before + growth)", within(target)), true, true),
            Move::Held { .. } | Move::Steady => ("max(before, floor)".to_owned(), true, false),
            Move::Began | Move::Blind { .. } => (within("before"), true, false),
            Move::FailSafe => ("floor".to_owned(), false, false),
        };
        let names_ceiling = bounded && by.contains("ceiling");
        why.then(&format!("{value} = {by}"))
            .maybe("before", from.then_some(before), unit)
            .maybe("growth", up.then_some(growth), unit)
            .with("floor", floor, unit)
            .maybe("ceiling", names_ceiling.then_some(ceiling), unit)
    }

    /// Advances the time, which ends holds and shortens long ones; returns the time that counts (ms).
    fn pass(&mut self, now_ms: u64) -> u64 {
        let passed_ms = self.clock.step(now_ms);
        self.hold_left_ms = self.hold_left_ms.saturating_sub(passed_ms);
        self.grown_ms = self.grown_ms.map(|ms| ms.saturating_add(passed_ms));
        self.calm_ms += passed_ms;
        if self.calm_ms >= HOLD_DECAY_MS {
            self.calm_ms = 0;
            self.hold_ms = (self.hold_ms / 2).max(self.params.hold_first_ms);
        }
        passed_ms
    }

    fn approach(&mut self, goal: f64, floor: f64, passed_ms: u64) -> Move {
        // A rise of the floor is not growth, so a hold does not delay it.
        self.value = self.value.max(floor);
        let Params { growth_per_s, dead_zone, hold_first_ms, hold_longest_ms } = self.params;
        if goal < self.value {
            let small = self.value - goal < dead_zone;
            self.value = goal;
            if small {
                return Move::Shrunk { relapse: false };
            }
            let relapse = self.grown_ms.take().is_some_and(|ms| ms <= RELAPSE_MS);
            if relapse {
                self.hold_ms = (self.hold_ms * 2).clamp(hold_first_ms, hold_longest_ms);
                self.calm_ms = 0;
            }
            self.hold_left_ms = self.hold_ms;
            return Move::Shrunk { relapse };
        }
        if goal <= self.value || goal - self.value < dead_zone {
            return Move::Steady;
        }
        if self.hold_left_ms > 0 {
            return Move::Held { left_ms: self.hold_left_ms };
        }
        if passed_ms == 0 {
            return Move::Steady;
        }
        self.value = goal.min(self.value + growth_per_s * passed_ms as f64 / 1e3);
        self.grown_ms = Some(0);
        Move::Grew
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: Range = Range { floor: 1.0, ceiling: 16.0 };

    fn regulator(start: f64) -> Regulator {
        Regulator::new(Params::cpus(16.0, 1.0), start)
    }

    /// Takes a step per second from `now` on; returns the value after each step.
    fn run(regulator: &mut Regulator, now: &mut u64, targets: &[Option<f64>]) -> Vec<f64> {
        let mut values = Vec::new();
        for target in targets {
            *now += 1_000;
            regulator.step(*now, *target, RANGE);
            values.push((regulator.value() * 100.0).round() / 100.0);
        }
        values
    }

    #[test]
    fn shrinks_at_once_and_grows_by_the_larger_of_core_and_share() {
        let (mut small, mut now) = (Regulator::new(Params::cpus(4.0, 2.0), 4.0), 0);
        small.step(now, Some(1.0), RANGE);
        assert_eq!(small.value(), 1.0);
        assert_eq!(Params::cpus(4.0, 2.0).growth_per_s, 2.0);
        let mut large = regulator(8.0);
        assert_eq!(run(&mut large, &mut now, &[Some(12.0); 3]), [8.0, 9.6, 11.2]);
        assert_eq!(run(&mut large, &mut now, &[Some(2.0)]), [2.0]);
    }

    #[test]
    fn a_hold_follows_a_shrink_and_a_relapse_doubles_it() {
        let (mut regulator, mut now) = (regulator(8.0), 0);
        run(&mut regulator, &mut now, &[Some(8.0), Some(4.0)]);
        assert_eq!(run(&mut regulator, &mut now, &[Some(8.0); 5]), [4.0, 4.0, 4.0, 4.0, 5.6]);
        let mut holds = Vec::new();
        for _ in 0..4 {
            now += 1_000;
            assert_eq!(regulator.step(now, Some(4.0), RANGE), Move::Shrunk { relapse: true });
            holds.push(regulator.hold_ms);
            let mut held = 0;
            loop {
                now += 1_000;
                match regulator.step(now, Some(8.0), RANGE) {
                    Move::Held { .. } => held += 1_000,
                    moved => break assert_eq!(moved, Move::Grew),
                }
            }
            assert_eq!(held + 1_000, regulator.hold_ms);
        }
        assert_eq!(holds, [10_000, 20_000, 30_000, 30_000]);
    }

    #[test]
    fn a_long_hold_is_forgotten_in_calm_times() {
        let (mut regulator, mut now) = (regulator(4.0), 0);
        run(&mut regulator, &mut now, &[Some(8.0), Some(8.0), Some(4.0)]);
        assert_eq!(regulator.hold_ms, 10_000);
        run(&mut regulator, &mut now, &[Some(4.0); 61]);
        assert_eq!(regulator.hold_ms, HOLD_FIRST_MS);
    }

    #[test]
    fn without_a_target_it_holds_and_then_falls_to_the_floor() {
        let (mut regulator, mut now) = (regulator(8.0), 0);
        run(&mut regulator, &mut now, &[Some(8.0)]);
        assert_eq!(run(&mut regulator, &mut now, &[None; 5]), [8.0, 8.0, 8.0, 8.0, 1.0]);
        assert_eq!(regulator.step(now + 1, Some(f64::NAN), RANGE), Move::FailSafe);
        // The value recovers slowly, after a hold.
        assert_eq!(run(&mut regulator, &mut now, &[Some(8.0); 5]), [1.0, 1.0, 1.0, 1.0, 2.6]);
    }

    #[test]
    fn small_changes_are_followed_down_but_not_up() {
        let (mut regulator, mut now) = (regulator(8.0), 0);
        let targets = [Some(8.1), Some(7.9), Some(8.05), Some(8.1)];
        assert_eq!(run(&mut regulator, &mut now, &targets), [8.0, 7.9, 7.9, 8.1]);
        assert_eq!(regulator.step(now, Some(8.1), Range { floor: 9.0, ceiling: 2.0 }), Move::Steady);
        assert_eq!(regulator.value(), 9.0, "a ceiling below the floor counts as the floor");
    }
}
