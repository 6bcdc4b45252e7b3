//! Controller of the weight of online groups relative to siblings that belong to no group.
//!
//! `cpu.idle` and a small weight protect online work from offline work, but not from third parties: unclassified work,
//! which belongs to no group. In a measurement (Linux 6.18), a third party ran on the same CPU as online work. When a
//! low-weight offline group was present as well, online work waited 1.4 to 3.3 times longer for the third party. So
//! online entities get more weight than their unclassified siblings. (An entity is a cgroup that the kernel's scheduler
//! compares with other cgroups below the same parent, so only siblings count.) The controller multiplies the weights of
//! all online entities by the same factor, which preserves their ratios.

use super::Clock;
use super::explain::Explanation;
use crate::units::Weight;

/// Ratio of the online weight to the weight of the heaviest unclassified sibling. The sibling keeps 1/11 of a contended
/// CPU. This is enough for a shell, the agent and the container engine, which must not starve.
pub const OVER_OTHER: u32 = 10;
/// Time (ms) for which a lower weight must suffice before the controller lowers the weight. The delay is necessary
/// because siblings start and stop (a login, a cron job), and because the scheduler must recompute its load after each
/// write of a weight. The time is equal to the regulator's longest hold.
pub const LOWER_AFTER_MS: u64 = 30_000;

/// Weights of an online group and its siblings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WeightInput {
    /// `cpu.weight` from the groups file, which takes precedence.
    pub written: Option<Weight>,
    /// The group's weight before commensal wrote anything.
    pub original: Option<Weight>,
    /// Weights of the unclassified siblings of the group's entity; `None` for a weight that could not be read.
    pub siblings: Vec<Option<Weight>>,
}

/// The weight that must be in force, and the reason.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightDecision {
    /// The weight; `None` if no weight must be written.
    pub weight: Option<Weight>,
    /// The explanation.
    pub why: Explanation,
}

/// The controller of the weight of an online entity.
#[derive(Debug, Clone, Default)]
pub struct Weights {
    clock: Clock,
    in_force: Option<Weight>,
    lower_ms: u64,
}

impl Weights {
    /// Creates the controller. If this agent replaces another agent, `in_force` is the weight that the other agent
    /// wrote.
    #[must_use]
    pub fn new(in_force: Option<Weight>) -> Weights {
        Weights { in_force, ..Weights::default() }
    }

    /// Decides the weight. The controller raises the weight immediately and lowers it after a delay. It does not lower
    /// the weight while a sibling's weight cannot be read.
    pub fn step(&mut self, now_ms: u64, input: &WeightInput) -> WeightDecision {
        let passed_ms = self.clock.step(now_ms);
        if input.written.is_some() {
            self.in_force = None;
            let why = Explanation::new("cpu.weight is written in the groups file", "weight = written").maybe(
                "written",
                input.written.map(|weight| f64::from(weight.v2())),
                "",
            );
            return WeightDecision { weight: input.written, why };
        }
        let known = input.siblings.iter().flatten().copied().max();
        let unread = input.siblings.iter().any(Option::is_none);
        let original = input.original.unwrap_or(Weight::DEFAULT);
        let wanted = known.map_or(original, |heaviest| over(heaviest, original).max(original));
        let present = self.in_force.unwrap_or(original);
        let rule = if wanted > present {
            (self.in_force, self.lower_ms) = (Some(wanted), 0);
            "raised at once: unclassified work runs beside it"
        } else if wanted == present {
            self.lower_ms = 0;
            if known.is_some() {
                "unclassified work runs beside it"
            } else {
                "no unclassified work runs beside it"
            }
        } else if unread {
            "unchanged: the weight of a sibling could not be read"
        } else {
            self.lower_ms = self.lower_ms.saturating_add(passed_ms);
            if self.lower_ms >= LOWER_AFTER_MS {
                (self.in_force, self.lower_ms) = (Some(wanted), 0);
                "lowered: the heavier sibling has been gone for long enough"
            } else {
                "not lowered yet: the heavier sibling was removed only recently"
            }
        };
        let number = |weight: Weight| f64::from(weight.v2());
        let formula = match (self.in_force.unwrap_or(original) == wanted, known) {
            (false, _) => "weight = in_force",
            (true, None) => "weight = original",
            (true, Some(_)) => {
                "weight = max(clamp(floor(original * factor * heaviest / 100), 1, 10000), original)"
            }
        };
        let why = Explanation::new(rule, formula)
            .with("factor", f64::from(OVER_OTHER), "")
            .maybe("heaviest", known.map(number), "")
            .with("original", number(original), "")
            .maybe("in_force", self.in_force.map(number), "");
        WeightDecision { weight: self.in_force, why }
    }
}

fn over(heaviest: Weight, original: Weight) -> Weight {
    let of = |weight: Weight| u32::from(weight.v2());
    let weight = of(original) * OVER_OTHER * of(heaviest) / of(Weight::DEFAULT);
    u16::try_from(weight.min(10_000)).ok().and_then(Weight::new).unwrap_or(Weight::DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(siblings: &[Option<u16>]) -> WeightInput {
        let weight = |number: &Option<u16>| number.and_then(Weight::new);
        WeightInput { siblings: siblings.iter().map(weight).collect(), ..WeightInput::default() }
    }

    fn step(weights: &mut Weights, now: u64, input: &WeightInput) -> Option<u16> {
        weights.step(now, input).weight.map(Weight::v2)
    }

    #[test]
    fn raised_at_once_and_lowered_late() {
        let mut weights = Weights::default();
        assert_eq!(step(&mut weights, 0, &input(&[])), None);
        assert_eq!(step(&mut weights, 1_000, &input(&[Some(100), Some(10)])), Some(1_000));
        assert_eq!(step(&mut weights, 2_000, &input(&[Some(5_000)])), Some(10_000));
        let mut now = 2_000;
        for _ in 0..29 {
            now += 1_000;
            assert_eq!(step(&mut weights, now, &input(&[Some(100)])), Some(10_000));
        }
        assert_eq!(step(&mut weights, now + 1_000, &input(&[Some(100)])), Some(1_000));
    }

    #[test]
    fn what_the_user_wrote_wins_and_what_cannot_be_read_lowers_nothing() {
        let mut weights = Weights::new(Weight::new(1_000));
        for second in 0..100 {
            assert_eq!(step(&mut weights, second * 1_000, &input(&[None])), Some(1_000));
        }
        let written = WeightInput { written: Weight::new(7), ..input(&[Some(100)]) };
        assert_eq!(step(&mut weights, 100_000, &written), Some(7));
    }

    // promise 5
    #[test]
    fn a_heavier_original_is_never_lowered_and_stays_ahead() {
        let of = |original: u16, sibling: u16| WeightInput {
            original: Weight::new(original),
            ..input(&[Some(sibling)])
        };
        assert_eq!(step(&mut Weights::default(), 0, &of(8_000, 1)), None);
        assert_eq!(step(&mut Weights::default(), 0, &of(200, 100)), Some(2_000));
        assert_eq!(step(&mut Weights::default(), 0, &of(50, 100)), Some(500));
    }
}
