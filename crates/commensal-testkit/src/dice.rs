//! Random numbers that are the same in every run.

/// Random numbers from a seed (Knuth's MMIX generator), so that a failed run can be repeated.
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    /// Creates the generator for this seed.
    #[must_use]
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// Returns the next number below `bound`; 0 if the bound is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_repeat_and_differ() {
        let six = |seed| {
            let mut dice = Dice::new(seed);
            [0; 6].map(|_| dice.below(1_000))
        };
        assert_eq!(six(1), six(1));
        assert_ne!(six(1), six(2));
        assert_eq!(Dice::new(1).below(0), 0);
    }
}
