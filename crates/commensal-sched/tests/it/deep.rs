//! What the quick ones leave out: changes while it runs, many threads, CPUs that go, what must not stay behind.

pub mod bench;
mod guard;
mod inside;
mod life;
mod noise;
mod refusals;
