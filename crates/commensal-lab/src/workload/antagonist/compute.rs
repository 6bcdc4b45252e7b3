//! Antagonists that hardly use memory: integer and floating-point loops.

use crate::workload::burn::{CHUNK_ITERATIONS, Piece};
use crate::workload::cpu::burn;
use std::hint::black_box;

/// Elements of the vector loop: 4 KiB, which fit in the first-level cache.
const LANES: usize = 1024;
/// Passes over them per chunk, some 0.3 ms.
const PASSES: usize = 1000;

/// The chunks of the burner.
pub fn cpu() -> Piece {
    Box::new(|| {
        black_box(burn(CHUNK_ITERATIONS));
        Ok(1)
    })
}

/// Multiplications and additions over independent elements, which the compiler turns into vector instructions.
pub fn vector() -> Piece {
    let mut lanes: Vec<f32> = (0..LANES).map(|i| 1.0 + i as f32 / LANES as f32).collect();
    Box::new(move || {
        for _ in 0..PASSES {
            // Converges to 2 and stays there: no value grows, none becomes subnormal and slow.
            for lane in &mut lanes {
                *lane = *lane * 0.999 + 0.002;
            }
            black_box(&mut lanes);
        }
        Ok(1)
    })
}
