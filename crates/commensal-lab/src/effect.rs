//! What paired windows with and without something show: how large its effect is, and whether it is shown. Pure.
//!
//! Differences within a pair go in, so that what drifts over minutes cancels out; a Hodges-Lehmann estimate with its exact
//! signed-rank interval comes out. Several figures are several chances to err, so Holm's procedure decides over all of them,
//! at 5 % on both sides together: what is shown has an interval without 0.

use crate::stats::{Interval, SignedRank, Tail, holm, median, rounds_for_holm};
use serde::Serialize;

/// One figure of somebody, once with and once without in each pair.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Whose.
    pub subject: String,
    /// What, with its unit.
    pub figure: String,
    /// (with, without), in that unit.
    pub pairs: Vec<(f64, f64)>,
}

/// What is said of a figure, and of all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Word {
    /// It is larger without.
    Shown,
    /// It is larger with.
    Reversed,
    /// Neither is shown.
    NotShown,
    /// Whatever they say, so few pairs show nothing.
    TooFew,
}

impl Word {
    /// In words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Word::Shown => "effect shown",
            Word::Reversed => "the reverse shown",
            Word::NotShown => "effect not shown",
            Word::TooFew => "too few windows",
        }
    }

    /// The exit status of the process that says so.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Word::Shown => 0,
            Word::Reversed | Word::NotShown | Word::TooFew => 3,
        }
    }
}

/// What one figure shows. In its unit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Effect {
    /// Whose.
    pub subject: String,
    /// What, with its unit.
    pub figure: String,
    /// Pairs of windows.
    pub pairs: usize,
    /// Median with.
    pub with: Option<f64>,
    /// Median without.
    pub without: Option<f64>,
    /// How much larger it is without (Hodges-Lehmann estimate).
    pub difference: Option<f64>,
    /// The 95 % interval of that; `None` below six pairs.
    pub ci95: Option<[f64; 2]>,
    /// What is said of it.
    pub word: Word,
}

/// Judges all figures together; the second is the word on the whole.
#[must_use]
pub fn judge(series: &[Series]) -> (Vec<Effect>, Word) {
    let ranks: Vec<Option<SignedRank>> = series.iter().map(ranks).collect();
    // A figure that is the same everywhere, such as the pressure of a disk that nobody uses, is no chance to err.
    let gates: Vec<usize> = (0..series.len()).filter(|&i| varies(&series[i])).collect();
    let p_values: Vec<f64> =
        gates.iter().map(|&i| ranks[i].as_ref().map_or(f64::NAN, |ranks| ranks.p_equal(0.0))).collect();
    let rejected = holm(&p_values);
    let least = rounds_for_holm(2 * gates.len().max(1)) as usize;
    let mut effects = Vec::new();
    for (i, (one, ranks)) in series.iter().zip(&ranks).enumerate() {
        let differs = gates.iter().position(|&gate| gate == i).is_some_and(|gate| rejected[gate]);
        let estimate = ranks.as_ref().map(SignedRank::estimate);
        let word = match (differs, estimate) {
            (true, Some(difference)) if difference > 0.0 => Word::Shown,
            (true, _) => Word::Reversed,
            (false, _) if one.pairs.len() < least => Word::TooFew,
            (false, _) => Word::NotShown,
        };
        let side = |pick: fn(&(f64, f64)) -> f64| median(&one.pairs.iter().map(pick).collect::<Vec<f64>>());
        let ends = ranks.as_ref().and_then(|ranks| ranks.interval(Tail::TwoSided95));
        effects.push(Effect {
            subject: one.subject.clone(),
            figure: one.figure.clone(),
            pairs: one.pairs.len(),
            with: side(|pair| pair.0),
            without: side(|pair| pair.1),
            difference: estimate,
            ci95: ends.map(|Interval { lo, hi }| [lo, hi]),
            word,
        });
    }
    let any = |word: Word| effects.iter().any(|effect| effect.word == word);
    let whole = if any(Word::Shown) {
        Word::Shown
    } else if any(Word::Reversed) {
        Word::Reversed
    } else if any(Word::NotShown) {
        Word::NotShown
    } else {
        Word::TooFew
    };
    (effects, whole)
}

fn ranks(series: &Series) -> Option<SignedRank> {
    let differences: Vec<f64> = series.pairs.iter().map(|(with, without)| without - with).collect();
    SignedRank::new(&differences)
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

    fn series(figure: &str, pairs: Vec<(f64, f64)>) -> Series {
        Series { subject: "web".to_owned(), figure: figure.to_owned(), pairs }
    }

    /// `pairs` with noise of 1 and `effect` without.
    fn noisy(rng: &mut Rng, pairs: usize, effect: f64) -> Vec<(f64, f64)> {
        (0..pairs).map(|_| (10.0 + rng.normal(), 10.0 + effect + rng.normal())).collect()
    }

    #[test]
    fn each_word() {
        let mut rng = Rng::new(3);
        let mut check = |pairs: usize, effect: f64, word: Word| {
            let (effects, whole) = judge(&[series("run delay", noisy(&mut rng, pairs, effect))]);
            assert_eq!((effects[0].word, whole), (word, word), "{effects:?}");
            assert_eq!((effects[0].pairs, effects[0].ci95.is_some()), (pairs, pairs >= 6));
            if word == Word::Shown {
                let [lo, hi] = effects[0].ci95.unwrap();
                assert!(0.0 < lo && lo < hi && (effect - 3.0..effect + 3.0).contains(&hi), "{effects:?}");
            }
        };
        check(12, 8.0, Word::Shown);
        check(12, -8.0, Word::Reversed);
        check(12, 0.0, Word::NotShown);
        check(5, 8.0, Word::TooFew);
        check(6, 8.0, Word::Shown);
        assert_eq!(judge(&[]), (Vec::new(), Word::TooFew));
        assert_eq!(judge(&[series("blamed", Vec::new())]).1, Word::TooFew);
    }

    #[test]
    fn figures_that_never_change_cost_nothing() {
        let mut rng = Rng::new(5);
        let still = |name: &str| series(name, vec![(0.0, 0.0); 6]);
        let moved = series("run delay", noisy(&mut rng, 6, 9.0));
        let (effects, whole) = judge(&[still("memory pressure"), moved.clone(), still("disk pressure")]);
        assert_eq!(whole, Word::Shown, "{effects:?}");
        assert_eq!(effects[0].word, Word::NotShown);
        // With more figures that do change, six pairs are too few for any.
        let others = (0..3).map(|i| series(&format!("{i}"), noisy(&mut rng, 6, 0.0)));
        let (effects, _) = judge(&others.chain([moved]).collect::<Vec<_>>());
        assert!(effects.iter().all(|effect| effect.word == Word::TooFew), "{effects:?}");
    }

    /// The error is kept: without an effect, three figures together show one in at most 5 % of the canaries.
    #[test]
    fn no_effect_is_seldom_shown() {
        let mut rng = Rng::new(11);
        let canaries = 2_000;
        let mut wrong = 0;
        for _ in 0..canaries {
            let all: Vec<Series> =
                (0..3).map(|i| series(&format!("{i}"), noisy(&mut rng, 12, 0.0))).collect();
            wrong +=
                u32::from(judge(&all).0.iter().any(|one| matches!(one.word, Word::Shown | Word::Reversed)));
        }
        // 5 % and five standard deviations of the count.
        assert!(f64::from(wrong) < f64::from(canaries) * 0.05 + 5.0 * 9.75, "{wrong} of {canaries}");
        assert!(wrong > 0, "a procedure that never errs never shows anything");
    }
}
