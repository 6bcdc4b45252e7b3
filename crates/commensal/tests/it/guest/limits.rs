//! Limits that only a guest can have: CPUs that are set aside, whole disks, and groups that are killed as a whole.

mod memory;
mod partitions;
mod whole_disks;
