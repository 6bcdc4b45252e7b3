//! Tests in a guest that has sched_ext (`cargo xtask vm --layout sched`). They load a scheduler, which takes the whole machine:
//! elsewhere every test says why it does not run. An emulated CPU is slow and stands still at times, so all bounds are
//! ratios.

mod broken;
mod long;
mod obstacles;
mod probe;
mod smt2;
mod smt4;
mod wide;
mod world;
