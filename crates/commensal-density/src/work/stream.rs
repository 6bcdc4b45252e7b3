//! Measures memory bandwidth beyond the caches by copying large arrays, like STREAM's Copy (J. D. McCalpin, "Memory
//! Bandwidth and Machine Balance in Current High Performance Computers", 1995). Uses plain slice copies, because the
//! standard library's copy is equally fast in debug and release builds.

use super::{CellOptions, say, wait_for_go};
use crate::error::DensityError;
use std::hint::black_box;
use std::time::Instant;

/// Starts one worker per vCPU. Each worker copies its own array of `bytes` bytes `work` times.
pub(super) fn run(options: CellOptions, bytes: usize) -> Result<(), DensityError> {
    let bytes = bytes.max(1);
    // Both arrays are written once before the measurement, so that every page is allocated.
    let mut arrays: Vec<(Vec<u8>, Vec<u8>)> =
        (0..options.vcpu).map(|_| (vec![1; bytes], vec![2; bytes])).collect();
    say("ready")?;
    wait_for_go()?;
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for (from, to) in &mut arrays {
            scope.spawn(move || {
                for _ in 0..options.work {
                    to.copy_from_slice(black_box(from));
                    black_box(&mut *to);
                }
            });
        }
    });
    say(&format!("done {:.6}", begun.elapsed().as_secs_f64()))?;
    std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink())?;
    Ok(())
}
