//! The shared regulator: shrink at once, grow slowly, hold after a shrink, hold longer on relapse, never below a floor.
//!
//! It is independent of what it regulates: a number in some unit, CPUs unless said otherwise. All rates are absolute: a
//! rate in per cent of the current value never recovers from a small one (a peer's quota of 9 thousandths of a CPU grew
//! by 10 % to 9 for ever).

use super::explain::Explanation;
use super::{Clock, Staleness};

/// First hold after a shrink, ms: five samples of one second, so that one quiet sample between two busy
/// ones does not let offline work in again.
pub const HOLD_FIRST_MS: u64 = 5_000;
/// Longest hold, ms: each burst of a bursty service costs offline work at most half a minute.
pub const HOLD_LONGEST_MS: u64 = 30_000;
/// A shrink within this time after growth is a relapse, ms: growth caused it, or the load comes in bursts. Either way
/// the next growth should wait longer. In ten seconds the largest step (10 % of the machine per second) goes from
/// nothing to everything.
pub const RELAPSE_MS: u64 = 10_000;
/// A lengthened hold is halved after this long without a relapse, ms: twice the longest hold, so that a hold is not
/// shortened while it lasts.
pub const HOLD_DECAY_MS: u64 = 60_000;
/// Growth per second, as a share of the machine: from nothing to everything in ten seconds on a large one.
pub const GROWTH_SHARE_PER_S: f64 = 0.10;
/// Growth per second, in cores, if that is more: a small machine must not need many ticks for its first core.
pub const GROWTH_CORES_PER_S: f64 = 1.0;
/// Growth by less than this share of the machine is not worth a write (peers skip less than 1 % too).
pub const DEAD_ZONE_SHARE: f64 = 0.01;
/// … or by less than this many CPUs: one bandwidth slice (`sched_cfs_bandwidth_slice_us`, 5 ms by default) in a period
/// of 100 ms, which is what the scheduler hands out at a time.
pub const DEAD_ZONE_CPUS: f64 = 0.05;

/// Rates and hold times of a regulator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Params {
    /// Growth per second at most.
    pub growth_per_s: f64,
    /// Growth by less is ignored; a shrink by less is done, but starts no hold.
    pub dead_zone: f64,
    /// First hold, ms.
    pub hold_first_ms: u64,
    /// Longest hold, ms.
    pub hold_longest_ms: u64,
}

impl Params {
    /// Parameters for CPUs, on a machine of `machine` logical CPUs with `core` of them on each physical core.
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

/// Bounds of the value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// The value never goes below this, whatever is measured.
    pub floor: f64,
    /// The value never goes above this; a ceiling below the floor counts as the floor.
    pub ceiling: f64,
}

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// The first step: from what was in force, at least the floor, and no higher before time has passed.
    Began,
    /// Down, at once.
    Shrunk {
        /// The shrink followed recent growth, so the hold is longer.
        relapse: bool,
    },
    /// The value rose, at most at the growth rate.
    Grew,
    /// The target is higher, but the hold is not over.
    Held {
        /// Time until the hold ends, ms.
        left_ms: u64,
    },
    /// The value is at its target.
    Steady,
    /// The target is missing: the value stays as it is.
    Blind {
        /// How long the target has been missing, ms.
        since_ms: u64,
    },
    /// The target has been missing for too long: the value is the floor.
    FailSafe,
}

impl Move {
    /// The move in words, for the rule of an explanation; `what` is the regulated thing, such as `the frame`.
    #[must_use]
    pub fn words(self, what: &str) -> String {
        let seconds = |ms: u64| ms.div_ceil(1_000);
        match self {
            Move::Began => format!(
                "{what} begins with what was decided before, at least its floor, and grows from there by what is measured"
            ),
            Move::Shrunk { relapse: false } => format!("{what} shrinks at once"),
            Move::Shrunk { relapse: true } => {
                format!("{what} shrinks at once, and waits longer before it grows: it had just grown")
            }
            Move::Grew => format!("{what} grows"),
            Move::Held { left_ms } => {
                format!(
                    "{what} has room to grow and waits {} s yet, because it had to shrink",
                    seconds(left_ms)
                )
            }
            Move::Steady => format!("{what} stays"),
            Move::Blind { since_ms } => {
                format!("{what} is held: nothing was measured for {} s", seconds(since_ms))
            }
            Move::FailSafe => format!("{what} is at its floor: nothing was measured for too long"),
        }
    }
}

/// A regulated value. Invariants: never below the floor, never above `max(target, floor)`, growth in a step is at most
/// the rate times the time that counts, and no growth during a hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Regulator {
    params: Params,
    value: f64,
    clock: Clock,
    silence: Staleness,
    hold_ms: u64,
    hold_left_ms: u64,
    /// Time since the last growth; `None` before any growth and after a shrink that followed it.
    grown_ms: Option<u64>,
    calm_ms: u64,
    last: Last,
}

/// What the last step went by.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Last {
    before: f64,
    floor: f64,
    ceiling: f64,
    growth: f64,
    /// Whether there was a step at all.
    any: bool,
}

impl Regulator {
    /// Starts at `start`: the value in force already, or the floor.
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

    /// How long growth would be held after a shrink now, ms.
    #[must_use]
    pub fn hold_ms(&self) -> u64 {
        self.hold_ms
    }

    /// Changes the parameters, when the machine has changed.
    pub fn retune(&mut self, params: Params) {
        self.hold_ms = self.hold_ms.clamp(params.hold_first_ms, params.hold_longest_ms);
        self.params = params;
    }

    /// Moves the value towards `target`, within `range`. While the target is missing or NaN the value first stays as it
    /// is, then falls to the floor.
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

    /// Adds to `why` how the last step, which did `moved`, came to the value: the assignment of `value` from `target`, the name
    /// of what the step was given, and its inputs in `unit`.
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

    /// Lets time pass: holds end, and a long hold becomes shorter.
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
        // A rise of the floor is not growth, so it need not wait.
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

    /// Steps once a second from `now`; returns the value after each call.
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
            holds.push(regulator.hold_ms());
            let mut held = 0;
            loop {
                now += 1_000;
                match regulator.step(now, Some(8.0), RANGE) {
                    Move::Held { .. } => held += 1_000,
                    moved => break assert_eq!(moved, Move::Grew),
                }
            }
            assert_eq!(held + 1_000, regulator.hold_ms());
        }
        assert_eq!(holds, [10_000, 20_000, 30_000, 30_000]);
    }

    #[test]
    fn a_long_hold_is_forgotten_in_calm_times() {
        let (mut regulator, mut now) = (regulator(4.0), 0);
        run(&mut regulator, &mut now, &[Some(8.0), Some(8.0), Some(4.0)]);
        assert_eq!(regulator.hold_ms(), 10_000);
        run(&mut regulator, &mut now, &[Some(4.0); 61]);
        assert_eq!(regulator.hold_ms(), HOLD_FIRST_MS);
    }

    #[test]
    fn without_a_target_it_holds_and_then_falls_to_the_floor() {
        let (mut regulator, mut now) = (regulator(8.0), 0);
        run(&mut regulator, &mut now, &[Some(8.0)]);
        assert_eq!(run(&mut regulator, &mut now, &[None; 5]), [8.0, 8.0, 8.0, 8.0, 1.0]);
        assert_eq!(regulator.step(now + 1, Some(f64::NAN), RANGE), Move::FailSafe);
        // The value comes back slowly, after a hold.
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
