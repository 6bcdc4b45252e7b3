//! Effect of a setting on several figures, measured in paired windows with and without it: how large it is, and whether
//! it is statistically shown.
//!
//! Every figure is one more chance of a false alarm, so Holm's procedure decides over all of them, on both sides
//! together, within the error that this interim analysis may spend: a shown effect has an interval without 0.

use super::Paired;
use crate::stats::{fewest_pairs, holm, median, pairs_needed};
use serde::Serialize;

/// More pairs than this are reported as out of reach.
const PRACTICAL: u32 = 1_000;

/// One figure of one subject, with and without the setting in each pair.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The subject, such as a group.
    pub subject: String,
    /// The figure, with its unit.
    pub figure: String,
    /// (with, without) the setting, in that unit.
    pub pairs: Vec<(f64, f64)>,
}

/// The conclusion about a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shown {
    /// The figure is larger without the setting.
    Effect,
    /// The figure is larger with the setting.
    Reverse,
    /// No effect shown so far.
    Nothing,
    /// No effect shown, and this few pairs could not show one.
    TooFew,
}

impl Shown {
    /// The conclusion in words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Shown::Effect => "effect shown",
            Shown::Reverse => "the reverse shown",
            Shown::Nothing => "not shown",
            Shown::TooFew => "too few windows",
        }
    }

    /// Whether the conclusion needs no more windows.
    #[must_use]
    pub fn is_decided(self) -> bool {
        matches!(self, Shown::Effect | Shown::Reverse)
    }
}

/// The effect on one figure, in the figure's unit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Effect {
    /// The subject.
    pub subject: String,
    /// The figure, with its unit.
    pub figure: String,
    /// Number of pairs of windows.
    pub pairs: usize,
    /// Median with the setting.
    pub with: Option<f64>,
    /// Median without the setting.
    pub without: Option<f64>,
    /// How much larger the figure is without the setting (Hodges-Lehmann estimate).
    pub difference: Option<f64>,
    /// Interval of the difference that holds at 95 % in spite of earlier interim analyses; `None` when there are too
    /// few pairs.
    pub ci95: Option<[f64; 2]>,
    /// The conclusion.
    pub shown: Shown,
    /// Number of pairs after which a difference of this size would be shown, 80 % of the time; `None` when it is shown
    /// already, or when no practical number would do.
    pub pairs_needed: Option<u32>,
}

/// Judges all figures together, at an error of `level` on each side.
#[must_use]
pub fn effects(series: &[Series], level: f64) -> Vec<Effect> {
    /// The error that [`holm`] distributes.
    const HOLM: f64 = 0.05;
    let judged: Vec<Option<Paired>> =
        series.iter().map(|one| Paired::new(&differences(one), 0.0, level)).collect();
    // A figure that never changes, such as the pressure of an unused disk, cannot cause a false alarm.
    let gates: Vec<usize> = (0..series.len()).filter(|&i| varies(&series[i])).collect();
    let of_both = 2.0 * level;
    let p_values: Vec<f64> = gates
        .iter()
        .map(|&i| judged[i].as_ref().map_or(f64::NAN, |one| (one.p_equal * HOLM / of_both).min(1.0)))
        .collect();
    let rejected = holm(&p_values);
    let fewest = fewest_pairs(gates.len(), level);
    let mut effects = Vec::new();
    for (i, (one, judged)) in series.iter().zip(judged).enumerate() {
        let differs = gates.iter().position(|&gate| gate == i).is_some_and(|gate| rejected[gate]);
        let estimate = judged.as_ref().map(|judged| judged.estimate);
        let shown = match (differs, estimate) {
            (true, Some(difference)) if difference > 0.0 => Shown::Effect,
            (true, _) => Shown::Reverse,
            (false, _) if one.pairs.len() < fewest as usize => Shown::TooFew,
            (false, _) => Shown::Nothing,
        };
        let side = |pick: fn(&(f64, f64)) -> f64| median(&one.pairs.iter().map(pick).collect::<Vec<f64>>());
        let more = |judged: &Paired| {
            let needed = pairs_needed(judged.standard_deviation?, judged.estimate.abs(), level)?.max(fewest);
            // The estimate is itself noisy, so a number that was not enough is not suggested again.
            let more = judged.pairs.saturating_add(judged.pairs.div_ceil(4));
            Some(needed.max(more)).filter(|needed| *needed <= PRACTICAL)
        };
        effects.push(Effect {
            subject: one.subject.clone(),
            figure: one.figure.clone(),
            pairs: one.pairs.len(),
            with: side(|pair| pair.0),
            without: side(|pair| pair.1),
            difference: estimate,
            ci95: judged.as_ref().and_then(|judged| judged.bounds).map(|ends| [ends.lo, ends.hi]),
            shown,
            pairs_needed: judged.as_ref().filter(|_| !shown.is_decided()).and_then(more),
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

    /// `pairs` with noise of 1, and `effect` added without the setting.
    fn noisy(rng: &mut Rng, pairs: usize, effect: f64) -> Vec<(f64, f64)> {
        (0..pairs).map(|_| (10.0 + rng.normal(), 10.0 + effect + rng.normal())).collect()
    }

    // promise 36
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
        // With more figures that change, six pairs are too few for any.
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
        // Three pairs that all agree need three more, not none.
        assert_eq!(of(vec![(1.0, 3.0), (1.0, 3.1), (1.0, 3.2)]).pairs_needed, Some(6));
        // Differences around 0 cannot be shown with any number of pairs.
        assert_eq!(of(vec![(1.0, 1.1), (1.1, 1.0), (1.0, 1.2), (1.2, 1.0), (1.0, 1.0)]).pairs_needed, None);
    }
}
