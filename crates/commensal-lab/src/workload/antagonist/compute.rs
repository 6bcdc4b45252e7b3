//! Antagonists that use hardly any memory: an integer loop and a floating-point loop.

use crate::workload::burn::{CHUNK_ITERATIONS, Piece};
use crate::workload::cpu::burn;
use std::hint::black_box;

/// Number of elements of the vector loop: 4 KiB, which fit into the first-level cache.
const LANES: usize = 1024;
/// Number of passes over the elements per chunk (a unit of work); a chunk takes about 0.3 ms.
const PASSES: usize = 1000;

/// Returns a piece of work that computes one chunk of [`burn`](crate::workload::burn).
pub fn cpu() -> Piece {
    Box::new(|| {
        black_box(burn(CHUNK_ITERATIONS));
        Ok(1)
    })
}

/// Returns a piece of work that multiplies and adds independent elements, which the compiler turns into vector
/// instructions.
pub fn vector() -> Piece {
    let mut lanes: Vec<f32> = (0..LANES).map(|i| 1.0 + i as f32 / LANES as f32).collect();
    Box::new(move || {
        for _ in 0..PASSES {
            // The values converge to 2: no value grows without limit, and no value becomes subnormal, which would be
            // slow.
            for lane in &mut lanes {
                *lane = *lane * 0.999 + 0.002;
            }
            black_box(&mut lanes);
        }
        Ok(1)
    })
}
