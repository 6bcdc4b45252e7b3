//! The agent on what only a guest has.

mod disks;
