//! Weight of online groups relative to siblings that belong to no group.
//!
//! `cpu.idle` and a small weight shield online work from offline work, not from third parties: with a third party on
//! the same CPU, the mere presence of a low-weight offline group made online work wait 1.4 to 3.3 times longer for it
//! (measured, Linux 6.18). So online entities get more weight than their unclassified siblings. Only siblings count:
//! the kernel compares entities below one parent. All online entities are multiplied by the same number, so that their
//! ratios stay.

use super::Clock;
use super::explain::Explanation;
use crate::units::Weight;

/// Ratio of online weight to the heaviest unclassified sibling: the sibling keeps 1/11 of a contended CPU, enough for a
/// shell, the agent and the container engine, which must not starve.
pub const OVER_OTHER: u32 = 10;
/// A weight is lowered only after this long, ms: siblings come and go (a login, a cron job), and each write of a weight
/// costs the scheduler a re-weighting. Equal to the regulator's longest hold.
pub const LOWER_AFTER_MS: u64 = 30_000;

/// An online group's weights, and those of its siblings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WeightInput {
    /// `cpu.weight` of the groups file, which wins.
    pub written: Option<Weight>,
    /// The group's weight before commensal wrote anything.
    pub original: Option<Weight>,
    /// Weights of the unclassified siblings of the group's entity; `None` for one that could not be read.
    pub siblings: Vec<Option<Weight>>,
}

/// The weight to be in force, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightDecision {
    /// The weight; `None` when nothing must be written.
    pub weight: Option<Weight>,
    /// Why.
    pub why: Explanation,
}

/// The controller of one online entity.
#[derive(Debug, Clone, Default)]
pub struct Weights {
    clock: Clock,
    in_force: Option<Weight>,
    lower_ms: u64,
}

impl Weights {
    /// Starts from the weight that commensal has written already, when it takes over from another agent.
    #[must_use]
    pub fn new(in_force: Option<Weight>) -> Weights {
        Weights { in_force, ..Weights::default() }
    }

    /// Decides: raises at once, lowers late. While a sibling's weight cannot be read, nothing is lowered.
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
                "nobody runs beside it that no group claims"
            }
        } else if unread {
            "held: the weight of somebody beside it could not be read"
        } else {
            self.lower_ms = self.lower_ms.saturating_add(passed_ms);
            if self.lower_ms >= LOWER_AFTER_MS {
                (self.in_force, self.lower_ms) = (Some(wanted), 0);
                "lowered: who ran beside it has gone for long enough"
            } else {
                "held: who ran beside it has only just gone"
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
