//! What a query waited for.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// How long a query has waited, by what it waited for. Waits of tasks that run in parallel are added up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// For a place in the queue.
    pub queue: Duration,
    /// For memory that others free or spill.
    pub memory: Duration,
    /// For CPU time, because of the group's limit.
    pub cpu: Duration,
    /// For reads from local disks, because of the group's limit.
    pub local: Duration,
    /// For reads from remote stores, because of the group's limit.
    pub remote: Duration,
    /// In `SLEEP`.
    pub sleep: Duration,
}

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Waits { queue, memory, cpu, local, remote, sleep } = *self;
        let ms = |wait: Duration| wait.as_millis();
        write!(
            f,
            "queue={} ms, memory={} ms, cpu={} ms, local_reads={} ms, remote_reads={} ms, sleep={} ms",
            ms(queue),
            ms(memory),
            ms(cpu),
            ms(local),
            ms(remote),
            ms(sleep)
        )
    }
}
