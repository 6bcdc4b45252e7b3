//! Limits on the running kernel that are shares of a CPU, or rates of a disk, through the program, with processes that really burn,
//! read and write. Bounds are wide, because the machine may be busy and the kernel may run in an emulator: what is asserted is a
//! direction, a ratio, or a share with room on both sides.

mod cpu;
pub(crate) mod disk;

use std::time::{Duration, Instant};

/// What was read before and after some time, and what lay between, s: at least without the time of the two readings, at
/// most with it. A busy host stops a guest for as long as half a second, which may be in the middle of a reading.
struct Window<T> {
    before: T,
    after: T,
    at_least: f64,
    at_most: f64,
}

fn window<T>(length: Duration, mut read: impl FnMut() -> T) -> Window<T> {
    let outer = Instant::now();
    let before = read();
    let inner = Instant::now();
    std::thread::sleep(length);
    let at_least = inner.elapsed().as_secs_f64();
    let after = read();
    Window { before, after, at_least, at_most: outer.elapsed().as_secs_f64() }
}
