//! The accounts of a group: memory, CPU time, reads and queue slots, to which the use of the group's queries is
//! charged. A query keeps a reference to the accounts of the group that pays for it. Threads and worker processes
//! belong to [`Group`](super::group::Group).

use super::error::Error;
use super::memory::GroupMemory;
use super::queue::Queue;
use super::remote::Clients;
use super::settings::Settings;
use super::tokens::Tokens;
use commensal_store::{Governors, Rates};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::runtime::Handle;

/// The accounts of a group.
pub struct Accounts {
    /// The group's number, which the system tables show.
    pub id: u64,
    /// The group's name.
    pub name: String,
    /// Memory accounting.
    pub memory: Arc<GroupMemory>,
    /// CPU token bucket.
    pub cpu: Tokens,
    /// Admission queue.
    pub queue: Arc<Queue>,
    /// Rate limiters of reads.
    pub reads: Governors,
    /// Connections to name nodes of HDFS.
    pub hdfs: Clients,
    /// Runtime for timers; no group's limits apply to it.
    pub timer: Handle,
    /// CPU time of all polls (executions of tasks) on the group's threads, including polls that were charged to other
    /// groups.
    polled_ns: AtomicU64,
}

impl fmt::Debug for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accounts").field("id", &self.id).field("name", &self.name).finish_non_exhaustive()
    }
}

impl Accounts {
    /// Creates empty accounts. Timers run on the runtime that calls this function.
    #[must_use]
    pub fn new(id: u64, name: &str, settings: &Settings) -> Accounts {
        let memory = Arc::new(GroupMemory::new(id, name, settings.memory));
        let for_room = Arc::clone(&memory);
        Accounts {
            id,
            name: name.to_owned(),
            queue: Arc::new(Queue::new(settings.queue, Box::new(move || for_room.room()))),
            memory,
            cpu: Tokens::default(),
            reads: Governors::new(Rates::default(), Some(Handle::current())),
            hdfs: Clients::default(),
            timer: Handle::current(),
            polled_ns: AtomicU64::new(0),
        }
    }

    /// Ends the wait of all queries in the queue, and admits no others: the group was dropped.
    pub fn close(&self) {
        self.queue.close(self.dropped());
    }

    /// Returns the error of queries that the group no longer admits.
    #[must_use]
    pub fn dropped(&self) -> Error {
        Error::Rule(format!("workload group {} was dropped", self.name))
    }

    /// Adds the CPU time of a poll on one of the group's threads. The caller has already charged the poll to a group.
    pub fn polled(&self, cpu_ns: u64) {
        self.polled_ns.fetch_add(cpu_ns, Relaxed);
    }

    /// Returns the CPU time of all polls on the group's threads, in nanoseconds.
    #[must_use]
    pub fn polled_ns(&self) -> u64 {
        self.polled_ns.load(Relaxed)
    }
}
