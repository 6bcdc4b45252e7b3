//! What every run of CI asks of the scheduler, in about two minutes of an emulated machine.

mod guard;
mod inside;
mod life;
mod noise;
mod refusals;
