//! Random numbers and strings from which the rows are generated.

use commensal_core::rng::{Rng, splitmix64};

/// Returns a pseudo-random number that depends only on `value`.
pub fn mix(value: u64) -> u64 {
    let mut state = value;
    splitmix64(&mut state)
}

/// Returns the hash for `URLHash` and `RefererHash`: FNV-1a, then mixed. The hash differs from ClickHouse's, but equal
/// strings have equal hashes here, too.
#[must_use]
pub fn hash(text: &str) -> i64 {
    let fnv = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    mix(fnv).cast_signed()
}

/// Draws a number below `n` whose logarithm is nearly uniform: number k is drawn about 1/k as often as number 1 (Zipf's
/// law).
pub fn skewed(rng: &mut Rng, n: u64) -> u64 {
    let rank = (rng.unit_f64() * ((n + 1) as f64).ln()).exp() as u64;
    (rank.max(1) - 1).min(n.saturating_sub(1))
}

/// Returns true with this probability.
pub fn happens(rng: &mut Rng, share: f64) -> bool {
    rng.unit_f64() < share
}

/// Draws a value from a table with weights.
pub fn one_of<T: Copy>(rng: &mut Rng, table: &[(u32, T)]) -> T {
    let sum: u32 = table.iter().map(|(share, _)| share).sum();
    let mut at = rng.below(u64::from(sum)) as u32;
    for (share, value) in table {
        if at < *share {
            return *value;
        }
        at -= share;
    }
    table[0].1
}

const LATIN: [&str; 20] = [
    "ka", "ro", "mi", "ten", "vo", "lis", "der", "an", "pu", "shop", "ne", "gar", "el", "tu", "bo", "sal",
    "fi", "mor", "ji", "os",
];

const CYRILLIC: [&str; 20] = [
    "ка", "ро", "ми", "тен", "во", "лис", "дер", "ан", "пу", "шоп", "не", "гар", "ел", "ту", "бо", "сал",
    "фи", "мор", "жи", "ос",
];

fn syllables(out: &mut String, mut number: u64, alphabet: &[&str; 20]) {
    number += 20;
    while number > 0 {
        out.push_str(alphabet[(number % 20) as usize]);
        number /= 20;
    }
}

/// Appends the word for a number in Latin letters; small numbers have short words.
pub fn latin(out: &mut String, number: u64) {
    syllables(out, number, &LATIN);
}

/// Appends `words` words in Cyrillic letters, from a vocabulary of 20,000 words with frequencies like those of a
/// natural language.
pub fn sentence(out: &mut String, rng: &mut Rng, words: u64) {
    for word in 0..words {
        if word > 0 {
            out.push(' ');
        }
        let number = skewed(rng, 20_000);
        syllables(out, number, &CYRILLIC);
    }
}
