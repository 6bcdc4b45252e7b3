//! The effect of a setting on several metrics, measured in pairs of windows with and without the setting: its size, and
//! whether it is statistically significant.
//!
//! Every additional metric increases the chance of a false alarm. So Holm's procedure tests all metrics together, on
//! both sides. It uses the part of the error that this interim analysis (a check before the planned end) may spend. A
//! significant effect has an interval that excludes 0.

use super::Paired;
use crate::stats::{fewest_pairs, holm, median, pairs_needed};
use serde::Serialize;

/// Maximum number of pairs that is suggested; a larger number is not practical.
const PRACTICAL: u32 = 1_000;

/// Values of a metric of one subject, with and without the setting, in each pair.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The subject that was measured, such as a group.
    pub subject: String,
    /// Name of the metric, with its unit.
    pub figure: String,
    /// The values (with the setting, without it) of each pair, in the metric's unit.
    pub pairs: Vec<(f64, f64)>,
}

/// The conclusion about a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shown {
    /// The metric is significantly larger without the setting.
    Effect,
    /// The metric is significantly larger with the setting.
    Reverse,
    /// No significant effect so far.
    Nothing,
    /// No significant effect, and the number of pairs is too small to show one.
    TooFew,
}

impl Shown {
    /// The conclusion as readable text.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Shown::Effect => "effect shown",
            Shown::Reverse => "the reverse shown",
            Shown::Nothing => "not shown",
            Shown::TooFew => "too few windows",
        }
    }

    /// Whether the conclusion is final, so that no more windows are needed.
    #[must_use]
    pub fn is_decided(self) -> bool {
        matches!(self, Shown::Effect | Shown::Reverse)
    }
}

/// The effect of the setting on a metric, in the metric's unit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Effect {
    /// The subject that was measured.
    pub subject: String,
    /// Name of the metric, with its unit.
    pub figure: String,
    /// Number of pairs of windows.
    pub pairs: usize,
    /// Median of the values with the setting.
    pub with: Option<f64>,
    /// Median of the values without the setting.
    pub without: Option<f64>,
    /// By how much the metric is larger without the setting (Hodges-Lehmann estimate).
    pub difference: Option<f64>,
    /// 95 % confidence interval of the difference, adjusted for earlier interim analyses; `None` if there are too few
    /// pairs.
    pub ci95: Option<[f64; 2]>,
    /// The conclusion.
    pub shown: Shown,
    /// Number of pairs with which a difference of this size would be significant with a probability of 80 %. `None` if
    /// the difference is significant already, or if no practical number of pairs suffices.
    pub pairs_needed: Option<u32>,
}

/// Computes the effects on all metrics and tests them together, at an error of `level` on each side.
#[must_use]
pub fn effects(series: &[Series], level: f64) -> Vec<Effect> {
    /// The error for which [`holm`] is defined; p-values are scaled to it.
    const HOLM: f64 = 0.05;
    let paired: Vec<Option<Paired>> =
        series.iter().map(|one| Paired::new(&differences(one), 0.0, level)).collect();
    // A metric that never changes, such as the pressure of an unused disk, cannot cause a false alarm, so it is not
    // tested.
    let gates: Vec<usize> = (0..series.len()).filter(|&i| varies(&series[i])).collect();
    let of_both = 2.0 * level;
    let p_values: Vec<f64> = gates
        .iter()
        .map(|&i| paired[i].as_ref().map_or(f64::NAN, |one| (one.p_equal * HOLM / of_both).min(1.0)))
        .collect();
    let rejected = holm(&p_values);
    let fewest = fewest_pairs(gates.len(), level);
    let mut effects = Vec::new();
    for (i, (one, paired)) in series.iter().zip(paired).enumerate() {
        let differs = gates.iter().position(|&gate| gate == i).is_some_and(|gate| rejected[gate]);
        let estimate = paired.as_ref().map(|paired| paired.estimate);
        let shown = match (differs, estimate) {
            (true, Some(difference)) if difference > 0.0 => Shown::Effect,
            (true, _) => Shown::Reverse,
            (false, _) if one.pairs.len() < fewest as usize => Shown::TooFew,
            (false, _) => Shown::Nothing,
        };
        let side = |pick: fn(&(f64, f64)) -> f64| median(&one.pairs.iter().map(pick).collect::<Vec<f64>>());
        let more = |paired: &Paired| {
            let needed = pairs_needed(paired.standard_deviation?, paired.estimate.abs(), level)?.max(fewest);
            // Because the estimate is noisy, the suggestion exceeds the number of pairs that was not sufficient.
            let more = paired.pairs.saturating_add(paired.pairs.div_ceil(4));
            Some(needed.max(more)).filter(|needed| *needed <= PRACTICAL)
        };
        effects.push(Effect {
            subject: one.subject.clone(),
            figure: one.figure.clone(),
            pairs: one.pairs.len(),
            with: side(|pair| pair.0),
            without: side(|pair| pair.1),
            difference: estimate,
            ci95: paired.as_ref().and_then(|paired| paired.bounds).map(|ends| [ends.lo, ends.hi]),
            shown,
            pairs_needed: paired.as_ref().filter(|_| !shown.is_decided()).and_then(more),
        });
    }
    effects
}

fn differences(series: &Series) -> Vec<f64> {
    series.pairs.iter().map(|(with, without)| without - with).collect()
}

fn varies(series: &Series) -> bool {
    let mut all = series.pairs.iter().flat_map(|(with, without)| [*with, *without]);
    let Some(first) = all.next() else { return false };
    all.any(|value| value != first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    const LEVEL: f64 = 0.025;

    fn series(figure: &str, pairs: Vec<(f64, f64)>) -> Series {
        Series { subject: "web".to_owned(), figure: figure.to_owned(), pairs }
    }

    /// A series of `pairs` with noise of 1 and `effect` added to the values without the setting.
    fn noisy(rng: &mut Rng, pairs: usize, effect: f64) -> Vec<(f64, f64)> {
        (0..pairs).map(|_| (10.0 + rng.normal(), 10.0 + effect + rng.normal())).collect()
    }

    // promise 29
    #[test]
    fn each_word() {
        let mut rng = Rng::new(3);
        let mut check = |pairs: usize, effect: f64, shown: Shown| {
            let effects = effects(&[series("run delay", noisy(&mut rng, pairs, effect))], LEVEL);
            assert_eq!(effects[0].shown, shown, "{effects:?}");
            assert_eq!((effects[0].pairs, effects[0].ci95.is_some()), (pairs, pairs >= 6));
            if shown == Shown::Effect {
                let [lo, hi] = effects[0].ci95.unwrap();
                assert!(0.0 < lo && lo < hi && (effect - 3.0..effect + 3.0).contains(&hi), "{effects:?}");
                assert_eq!(effects[0].pairs_needed, None);
            }
        };
        check(12, 8.0, Shown::Effect);
        check(12, -8.0, Shown::Reverse);
        check(12, 0.0, Shown::Nothing);
        check(5, 8.0, Shown::TooFew);
        check(6, 8.0, Shown::Effect);
        assert_eq!(effects(&[], LEVEL), []);
        assert_eq!(effects(&[series("blamed", Vec::new())], LEVEL)[0].shown, Shown::TooFew);
    }

    #[test]
    fn figures_that_never_change_cost_nothing() {
        let mut rng = Rng::new(5);
        let still = |name: &str| series(name, vec![(0.0, 0.0); 6]);
        let moved = series("run delay", noisy(&mut rng, 6, 9.0));
        let found = effects(&[still("memory pressure"), moved.clone(), still("disk pressure")], LEVEL);
        let shown: Vec<Shown> = found.iter().map(|one| one.shown).collect();
        assert_eq!(shown, [Shown::Nothing, Shown::Effect, Shown::Nothing], "{found:?}");
        // With more varying metrics, six pairs are too few for any of them.
        let others = (0..3).map(|i| series(&format!("{i}"), noisy(&mut rng, 6, 0.0)));
        let found = effects(&others.chain([moved]).collect::<Vec<_>>(), LEVEL);
        assert!(found.iter().all(|one| one.shown == Shown::TooFew), "{found:?}");
    }

    #[test]
    fn more_pairs_are_named_where_they_would_do() {
        let mut rng = Rng::new(8);
        let of = |pairs| effects(&[series("run delay", pairs)], LEVEL)[0].clone();
        let small = of(noisy(&mut rng, 8, 1.0));
        assert!(!small.shown.is_decided() && small.pairs_needed.unwrap() >= 10, "{small:?}");
        // Three pairs that all agree need three more pairs, not zero.
        assert_eq!(of(vec![(1.0, 3.0), (1.0, 3.1), (1.0, 3.2)]).pairs_needed, Some(6));
        // Differences around 0 are not significant with any number of pairs.
        assert_eq!(of(vec![(1.0, 1.1), (1.1, 1.0), (1.0, 1.2), (1.2, 1.0), (1.0, 1.0)]).pairs_needed, None);
    }
}
