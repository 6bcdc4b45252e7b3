//! A seeded random generator: xoshiro256++ (Blackman and Vigna), whose state splitmix64 fills from the seed.
//!
//! The generator is implemented here, not taken from a crate, because recorded runs depend on its output: `seed` in
//! `run.json` must give the same order of the experiment's arms in every later version. The generator is not
//! cryptographically secure.

/// The state of one xoshiro256++ stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rng {
    state: [u64; 4],
}

/// One step of splitmix64 (Steele, Lea and Flood, OOPSLA 2014): advances `state` and returns the next output. Every
/// seed is suitable, including 0 and consecutive numbers.
pub fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// Creates the stream of this seed.
    pub fn new(seed: u64) -> Self {
        let mut s = seed;
        Self { state: [splitmix64(&mut s), splitmix64(&mut s), splitmix64(&mut s), splitmix64(&mut s)] }
    }

    /// The next 64 uniform bits.
    pub fn u64(&mut self) -> u64 {
        let s = &mut self.state;
        let out = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// A uniform number strictly between 0 and 1, so that its logarithm is always finite.
    ///
    /// The number has 52 random bits plus one half; with 53 random bits the largest value would round up to 1.0.
    pub fn unit_f64(&mut self) -> f64 {
        ((self.u64() >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
    }

    /// An exponential variate with the given mean, in the unit of `mean`.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.unit_f64().ln()
    }

    /// A standard normal variate (Box-Muller, the cosine half).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.unit_f64().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit_f64()).cos()
    }

    /// A uniform integer in `0..n`, without modulo bias; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 {
            return 0;
        }
        // Outputs below 2^64 mod n would make small remainders more likely, so they are rejected.
        let reject = n.wrapping_neg() % n;
        loop {
            let x = self.u64();
            if x >= reject {
                return x % n;
            }
        }
    }

    /// Puts `items` into a uniformly random order (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let j = self.below(i as u64 + 1) as usize;
            items.swap(i, j);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix64_gives_the_published_stream() {
        let mut s = 1_477_776_061_723_855_037;
        let got: Vec<u64> = (0..5).map(|_| splitmix64(&mut s)).collect();
        let want = [
            1_985_237_415_132_408_290,
            2_979_275_885_539_914_483,
            13_511_426_838_097_143_398,
            8_488_337_342_461_049_707,
            15_141_737_807_933_549_159,
        ];
        assert_eq!(got, want);
        assert_eq!(splitmix64(&mut 0), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn xoshiro256plusplus_gives_the_published_stream() {
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let got: Vec<u64> = (0..10).map(|_| rng.u64()).collect();
        let want = [
            41_943_041,
            58_720_359,
            3_588_806_011_781_223,
            3_591_011_842_654_386,
            9_228_616_714_210_784_205,
            9_973_669_472_204_895_162,
            14_011_001_112_246_962_877,
            12_406_186_145_184_390_807,
            15_849_039_046_786_891_736,
            10_450_023_813_501_588_000,
        ];
        assert_eq!(got, want);
    }

    #[test]
    fn the_same_seed_gives_the_same_stream_and_another_seed_does_not() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            [rng.u64(), rng.u64()]
        };
        assert_eq!(draw(42), draw(42));
        assert_ne!(draw(42), draw(43));
        assert_ne!(Rng::new(0).u64(), 0);
    }

    #[test]
    fn moments_are_those_of_the_distributions() {
        let mut rng = Rng::new(7);
        let n = 40_000;
        let mean = |xs: &[f64]| xs.iter().sum::<f64>() / xs.len() as f64;
        let unit: Vec<f64> = (0..n).map(|_| rng.unit_f64()).collect();
        assert!(unit.iter().all(|&x| x > 0.0 && x < 1.0));
        assert!((mean(&unit) - 0.5).abs() < 0.01);
        let expo: Vec<f64> = (0..n).map(|_| rng.exponential(3.0)).collect();
        assert!((mean(&expo) - 3.0).abs() < 0.1);
        let norm: Vec<f64> = (0..n).map(|_| rng.normal()).collect();
        let squares: Vec<f64> = norm.iter().map(|x| x * x).collect();
        assert!(mean(&norm).abs() < 0.03);
        assert!((mean(&squares) - 1.0).abs() < 0.05);
    }

    #[test]
    fn below_and_shuffle_are_uniform() {
        let mut rng = Rng::new(9);
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.below(1), 0);
        let mut first = [0_u32; 4];
        for _ in 0..8_000 {
            let mut items = [0_usize, 1, 2, 3];
            rng.shuffle(&mut items);
            first[items[0]] += 1;
            items.sort_unstable();
            assert_eq!(items, [0, 1, 2, 3]);
        }
        assert!(first.iter().all(|&c| (1_800..2_200).contains(&c)), "{first:?}");
    }
}
