//! The accounts of a group, which its queries are charged to and admitted by. A query holds the accounts of the group
//! that is charged; threads and worker processes are only in [`Group`](super::group::Group).

use super::memory::GroupMemory;
use super::queue::Queue;
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
    /// Its name.
    pub name: String,
    /// Memory.
    pub memory: Arc<GroupMemory>,
    /// CPU.
    pub cpu: Tokens,
    /// Queue.
    pub queue: Arc<Queue>,
    /// Rate limiters of reads.
    pub reads: Governors,
    /// Runtime for timers, which no group limits.
    pub timer: Handle,
    /// CPU time of polls on the group's threads, whichever group was charged for it.
    polled_ns: AtomicU64,
}

impl fmt::Debug for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accounts").field("id", &self.id).field("name", &self.name).finish_non_exhaustive()
    }
}

impl Accounts {
    /// Empty accounts. Timers run on the runtime from which this is called.
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
            timer: Handle::current(),
            polled_ns: AtomicU64::new(0),
        }
    }

    /// Adds the CPU time of a poll on one of the group's threads, which was already charged.
    pub fn polled(&self, cpu_ns: u64) {
        self.polled_ns.fetch_add(cpu_ns, Relaxed);
    }

    /// CPU time of all polls on the group's threads.
    #[must_use]
    pub fn polled_ns(&self) -> u64 {
        self.polled_ns.load(Relaxed)
    }
}
