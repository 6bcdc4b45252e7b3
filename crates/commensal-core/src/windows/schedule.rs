//! The order in which the settings of an experiment take turns.

use crate::rng::Rng;

/// Number of pairs in a cycle. Two of them begin with the first setting, two with the second.
const BALANCED: u32 = 4;

/// How often a setting appears in a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turns {
    /// Number of windows of the setting in a cycle that includes it.
    pub times: u32,
    /// The interval, in cycles, at which a cycle includes the setting: 1 for every cycle, 3 for the first, fourth,
    /// seventh …
    pub every: u32,
}

/// The order of windows: a sequence of cycles, each of which contains the windows of all settings in random order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    seed: u64,
    turns: Vec<Turns>,
}

impl Schedule {
    /// Creates a schedule. A setting is identified by its index in `turns`.
    #[must_use]
    pub fn new(seed: u64, turns: Vec<Turns>) -> Schedule {
        Schedule { seed, turns }
    }

    /// The settings of a cycle, one per window. Their order depends only on the seed, the turns and the number of the
    /// cycle, so that a resumed run has the same order as an uninterrupted run.
    #[must_use]
    pub fn cycle(&self, number: u32) -> Vec<usize> {
        let mut rng = Rng::new(self.seed.wrapping_mul(1_000_003).wrapping_add(u64::from(number)));
        let mut order = Vec::new();
        for (setting, turns) in self.turns.iter().enumerate() {
            let times = if number.is_multiple_of(turns.every.max(1)) { turns.times } else { 0 };
            order.extend((0..times).map(|_| setting));
        }
        rng.shuffle(&mut order);
        order
    }
}

/// For each pair of windows, the setting (0 or 1) with which it begins. The order is random, but each setting begins
/// two of every four pairs. So neither drift nor a load with the period of the windows looks like an effect.
#[must_use]
pub fn firsts(seed: u64, pairs: u32) -> Vec<usize> {
    let schedule = Schedule::new(seed, vec![Turns { times: BALANCED / 2, every: 1 }; 2]);
    let cycles = (0..pairs.div_ceil(BALANCED)).flat_map(|number| schedule.cycle(number));
    cycles.take(pairs as usize).collect()
}

/// Randomised complete blocks: each round has every setting `0..settings` once, in random order. If all repetitions of
/// one setting ran before those of the next setting, slow drift of the machine would look like a difference between
/// settings: 12 % of the comparisons of equal settings would be false alarms with 3 repetitions, 52 % with 20.
///
/// `apart` names two settings, such as two identical ones, that must be separated in at least one round. If they were
/// neighbours in every round, the noise between them would be the noise between neighbouring blocks, while other
/// comparisons span more time. The function draws whole designs until one satisfies this condition, so every design
/// that satisfies it is equally likely. With two settings or fewer, or if `apart` does not name two different settings,
/// the function returns the first design.
#[must_use]
pub fn blocks(seed: u64, rounds: usize, settings: usize, apart: Option<(usize, usize)>) -> Vec<Vec<usize>> {
    let mut rng = Rng::new(seed);
    loop {
        let design: Vec<Vec<usize>> = (0..rounds)
            .map(|_| {
                let mut round: Vec<usize> = (0..settings).collect();
                rng.shuffle(&mut round);
                round
            })
            .collect();
        match apart {
            Some((a, b)) if rounds > 0 && settings > 2 && a != b && a < settings && b < settings => {
                if design.iter().any(|round| !adjacent(round, a, b)) {
                    return design;
                }
            }
            _ => return design,
        }
    }
}

/// Whether `a` and `b` are neighbours in `round`.
fn adjacent(round: &[usize], a: usize, b: usize) -> bool {
    round.windows(2).any(|w| w == [a, b] || w == [b, a])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_is_a_permutation() {
        for seed in 0..200 {
            for round in blocks(seed, 12, 4, Some((0, 1))) {
                let mut sorted = round.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, [0, 1, 2, 3]);
            }
        }
    }

    #[test]
    fn the_aa_pair_is_never_adjacent_in_every_round() {
        for seed in 0..500 {
            for n_arms in 3..7 {
                for rounds in [1, 2, 6] {
                    let design = blocks(seed, rounds, n_arms, Some((0, n_arms - 1)));
                    assert!(design.iter().any(|r| !adjacent(r, 0, n_arms - 1)), "seed {seed}");
                }
            }
        }
    }

    #[test]
    fn the_order_is_a_function_of_the_seed() {
        assert_eq!(blocks(42, 6, 4, Some((0, 1))), blocks(42, 6, 4, Some((0, 1))));
        assert_ne!(blocks(42, 6, 4, Some((0, 1))), blocks(43, 6, 4, Some((0, 1))));
        // Recorded runs depend on the random stream, so this order must not change between versions.
        assert_eq!(blocks(42, 2, 4, Some((0, 1))), [[1, 0, 2, 3], [3, 1, 2, 0]]);
    }

    #[test]
    fn degenerate_designs_end() {
        assert!(blocks(1, 0, 4, Some((0, 1))).is_empty());
        assert_eq!(blocks(1, 2, 0, None), [[0_usize; 0]; 2]);
        assert_eq!(blocks(1, 3, 2, Some((0, 1))).len(), 3);
        assert_eq!(blocks(1, 3, 4, Some((0, 9))).len(), 3);
        assert_eq!(blocks(1, 3, 4, Some((2, 2))).len(), 3);
    }

    #[test]
    fn each_arm_takes_each_position_equally_often() {
        let mut counts = [[0_u32; 4]; 4];
        for round in blocks(5, 4_000, 4, Some((0, 1))) {
            for (pos, arm) in round.into_iter().enumerate() {
                counts[pos][arm] += 1;
            }
        }
        assert!(counts.iter().flatten().all(|&c| (880..1_120).contains(&c)), "{counts:?}");
    }

    #[test]
    fn a_cycle_has_every_turn_and_an_order_of_its_own() {
        let turns = |times, every| Turns { times, every };
        let schedule = Schedule::new(7, vec![turns(10, 1), turns(1, 5), turns(3, 1), turns(2, 0)]);
        let mut orders = std::collections::BTreeSet::new();
        for number in 0..40 {
            let cycle = schedule.cycle(number);
            let of = |setting| cycle.iter().filter(|one| **one == setting).count();
            let long = usize::from(number % 5 == 0);
            assert_eq!([of(0), of(1), of(2), of(3)], [10, long, 3, 2], "cycle {number}");
            assert_eq!(cycle, schedule.cycle(number));
            orders.insert(cycle);
        }
        assert_eq!(orders.len(), 40);
        assert_ne!(schedule.cycle(0), Schedule::new(8, schedule.turns.clone()).cycle(0));
        assert!(Schedule::new(7, Vec::new()).cycle(0).is_empty());
        // Recorded runs depend on the random stream, so this order must not change between versions.
        assert_eq!(Schedule::new(42, vec![turns(2, 1), turns(1, 2), turns(1, 1)]).cycle(0), [0, 2, 1, 0]);
    }

    #[test]
    fn pairs_begin_with_each_side_equally_often_and_in_no_pattern() {
        let all: Vec<Vec<usize>> = (0..50).map(|seed| firsts(seed, 29)).collect();
        assert_eq!(all[3], firsts(3, 29));
        for order in &all {
            assert_eq!(order.len(), 29);
            for four in order.chunks_exact(4) {
                assert_eq!(four.iter().sum::<usize>(), 2, "{order:?}");
            }
        }
        // No pair begins with the same side for every seed, and no seed merely alternates.
        for pair in 0..29 {
            let second = all.iter().filter(|order| order[pair] == 1).count();
            assert!((10..=40).contains(&second), "pair {pair}: {second} of 50");
        }
        assert!(all.iter().all(|order| order.windows(2).any(|two| two[0] == two[1])));
    }
}
