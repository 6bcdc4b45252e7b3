//! Faults against an agent that depend on when they come, or whose cost is measured: what the agent takes of a CPU meanwhile, how long
//! a back-off lasts, how fast what was changed is put back.

pub(super) mod clock;
mod kills;
mod movers;
mod numbers;
mod squeeze;
mod storm;
mod writers;
