//! Tests of what only a virtual machine of `cargo xtask vm` has: a systemd that is PID 1, cores with two threads, a kernel with
//! sched_ext, all controllers in the unified hierarchy, disks to give away. Elsewhere they say so and are skipped.

mod agent;
mod expel;
mod limits;
mod sched;
mod systemd;
mod unified;
