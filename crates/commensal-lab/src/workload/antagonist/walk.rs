//! Antagonists that stress caches and memory: a pointer chase over a buffer, and a stream over three arrays.

use crate::rng::Rng;
use crate::workload::burn::Piece;
use std::hint::black_box;

/// Bytes per unit of work.
const MIB: u64 = 1 << 20;

/// Bytes of a cache line.
const LINE: u64 = 64;
/// Number of `u32` words of a cache line.
const WORDS: usize = 16;
/// Number of walkers that one thread moves through its ring. The loads of different walkers overlap; a single chain of
/// loads would leave most of a cache's bandwidth unused.
const WALKERS: usize = 4;
/// Number of steps of each walker per piece of work; a piece takes at most about 5 ms, even if all loads miss.
const STEPS: usize = 16_384;
/// Number of elements of each array that one piece of the stream processes: 0.5 MiB.
const STRETCH: usize = 65_536;

/// Returns a piece of work that walks through all cache lines of a buffer in a random cycle; each load depends on the
/// previous load. Counts loads.
pub fn chase(size: u64, seed: u64) -> Piece {
    // With at most 2^28 lines (16 GiB), positions fit in a u32.
    let lines = (size / LINE).clamp(WALKERS as u64, 1 << 28) as u32;
    let ring = ring(lines, seed);
    let mut at: [u32; WALKERS] = [0; WALKERS];
    let apart = lines / WALKERS as u32;
    for (walker, at) in (0..).zip(&mut at) {
        *at = apart * walker;
    }
    Box::new(move || {
        for _ in 0..STEPS {
            for at in &mut at {
                *at = ring[*at as usize * WORDS];
            }
        }
        black_box(at);
        Ok((STEPS * WALKERS) as u64)
    })
}

/// Returns a buffer in which the first word of each line is the index of the next line. Together, the lines form one
/// cycle (Sattolo's shuffle).
fn ring(lines: u32, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..lines).collect();
    let mut rng = Rng::new(seed);
    for i in (1..order.len()).rev() {
        order.swap(i, rng.below(i as u64) as usize);
    }
    let mut words = vec![0; lines as usize * WORDS];
    for (line, next) in order.into_iter().enumerate() {
        words[line * WORDS] = next;
    }
    words
}

/// Returns a piece of work that computes `a = b + s * c` over three arrays of doubles. Counts MiB read and written.
pub fn triad(size: u64) -> Piece {
    let len = (size as usize / 3 / size_of::<f64>() / STRETCH).max(1) * STRETCH;
    let (mut a, b, c) = (vec![0.5_f64; len], vec![1.0_f64; len], vec![2.0_f64; len]);
    let mut from = 0;
    let moved = (3 * STRETCH * size_of::<f64>()) as u64;
    let mut bytes = 0;
    Box::new(move || {
        let to = from + STRETCH;
        for ((a, b), c) in a[from..to].iter_mut().zip(&b[from..to]).zip(&c[from..to]) {
            *a = *b + 0.25 * *c;
        }
        black_box(&mut a);
        from = if to == len { 0 } else { to };
        bytes += moved;
        let whole = bytes / MIB;
        bytes %= MIB;
        Ok(whole)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_visits_every_line_once() {
        for lines in [4, 5, 1000] {
            let ring = ring(lines, 7);
            let mut at = 0;
            let mut seen = vec![false; lines as usize];
            for _ in 0..lines {
                assert!(!std::mem::replace(&mut seen[at], true), "line {at} comes twice");
                at = ring[at * WORDS] as usize;
            }
            assert_eq!(at, 0);
        }
    }
}
