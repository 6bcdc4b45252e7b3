//! Tests that need another program which not every Linux machine has. Where it is missing they say so and are skipped.

mod containers;
mod docker;
mod engine;
mod prometheus;
mod ssh;
mod storm;
mod system_calls;
mod terminal;
mod tpcds;
mod vms;
