//! Two cores of two threads: all of what the scheduler promises, but what takes other machines.

mod guard;
mod inside;
mod life;
mod noise;
mod refusals;
