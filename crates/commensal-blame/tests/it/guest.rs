//! Tests of what only a virtual machine of `cargo xtask vm` has: cores with two threads, and CPUs that can be taken away. Elsewhere they
//! say so and are skipped.

mod subjects;
