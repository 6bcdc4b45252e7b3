//! The memory pool of one query. DataFusion's operators request memory from the pool before they grow, and the pool
//! requests it from the group that is charged (`memory`).

use super::accounts::Accounts;
use super::cpu;
use super::memory::{Answer, GroupMemory, end, readable};
use super::query::Query;
use datafusion::error::DataFusionError;
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum time to wait for the memory of a victim (a query that is cancelled to free memory). Cancelling takes
/// milliseconds to a second (measured), so a longer wait means that the victim does not yield.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long an operator that has nothing to spill waits while other operators of the same query hold memory. The other
/// operators spill at their next request, after they have sorted and written their data, which takes seconds, and on a
/// machine that others keep busy several times as long. Without the wait, the waiting operator would fail.
const PRESS: Duration = Duration::from_secs(60);

/// While this value exists, operators of the group that can spill are made to spill at their next request.
struct Pressing(Arc<Accounts>);

impl Pressing {
    fn new(group: &Arc<Accounts>) -> Pressing {
        group.memory.press(true);
        Pressing(Arc::clone(group))
    }
}

impl Drop for Pressing {
    fn drop(&mut self) {
        self.0.memory.press(false);
    }
}

/// The memory pool of one query.
#[derive(Debug)]
pub struct QueryPool {
    query: Arc<Query>,
}

impl QueryPool {
    /// Creates the pool of a query that has an account in its group.
    #[must_use]
    pub fn new(query: &Arc<Query>) -> QueryPool {
        QueryPool { query: Arc::clone(query) }
    }

    /// Calls `act` with the memory of the query's group, and repeats the call if the query was moved in the meantime.
    /// Returns `None` if no call succeeds.
    fn with<T>(&self, act: impl Fn(&GroupMemory) -> Option<T>) -> Option<T> {
        for _ in 0..100 {
            if let Some(done) = act(&self.query.group().memory) {
                return Some(done);
            }
            if self.query.is_done() {
                return None;
            }
            std::thread::yield_now();
        }
        None
    }

    /// Returns the error for a refused request. A cancelled query gets a different error, because its operators must
    /// not start to spill as they would when memory is short.
    fn refusal(&self, fallback: impl FnOnce() -> String) -> DataFusionError {
        match self.query.ended() {
            Some(why) => DataFusionError::External(Box::new(why)),
            None => DataFusionError::ResourcesExhausted(fallback()),
        }
    }

    /// Waits until memory is freed, for at most 20 ms. Blocks the thread without blocking other tasks: those that free
    /// memory need a thread to finish.
    fn wait_for(&self, memory: &GroupMemory) {
        let begun = Instant::now();
        cpu::blocking(|| memory.wait(Duration::from_millis(20)));
        self.query.usage.add_memory_waited(begun.elapsed());
    }
}

impl fmt::Display for QueryPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "query {}", self.query.identity.id)
    }
}

impl MemoryPool for QueryPool {
    fn name(&self) -> &str {
        "workload-group"
    }

    fn grow(&self, _reservation: &MemoryReservation, additional: usize) {
        self.with(|group| group.add(self.query.identity.number, additional));
        end(&self.query.group().memory.over_limit());
    }

    fn shrink(&self, _reservation: &MemoryReservation, shrink: usize) {
        self.with(|group| group.sub(self.query.identity.number, shrink));
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> datafusion::error::Result<()> {
        let spillable = reservation.consumer().can_spill().then(|| reservation.size());
        let begun = Instant::now();
        let mut pressing: Option<Pressing> = None;
        loop {
            let group = self.query.group();
            let memory = &group.memory;
            match memory.request(self.query.identity.number, additional, spillable) {
                Answer::Granted(victims) => {
                    end(&victims);
                    return Ok(());
                }
                Answer::Spill { used, limit } => {
                    return Err(DataFusionError::ResourcesExhausted(format!(
                        "{} asks for {}, but workload group {} uses {} of {}: the operator must spill",
                        reservation.consumer().name(),
                        readable(additional),
                        memory.name,
                        readable(used),
                        readable(limit),
                    )));
                }
                Answer::Refuse => return Err(self.refusal(|| "the query was cancelled".to_owned())),
                Answer::Less(text) => {
                    let others = memory.of(self.query.identity.number).0 > reservation.size();
                    // An operator that holds data spills it immediately. An operator that has nothing (left) to spill
                    // would fail, so it waits.
                    let nothing_to_spill = spillable.is_none_or(|held| held == 0);
                    let patient = nothing_to_spill && others && begun.elapsed() < PRESS;
                    if !patient || self.query.ended().is_some() {
                        return Err(DataFusionError::ResourcesExhausted(text));
                    }
                    pressing.get_or_insert_with(|| Pressing::new(&group));
                    self.wait_for(memory);
                }
                Answer::TooLarge { used, limit } => {
                    return Err(DataFusionError::ResourcesExhausted(format!(
                        "[MEM_LIMIT_EXCEEDED]{} of <Query#Id={}> asks for {}, but workload group {} has {} of {} left: \
                         give the group more memory",
                        reservation.consumer().name(),
                        self.query.identity.id,
                        readable(additional),
                        memory.name,
                        readable(limit.saturating_sub(used)),
                        readable(limit),
                    )));
                }
                Answer::Wait(victims) => {
                    end(&victims);
                    if begun.elapsed() > PATIENCE || self.query.ended().is_some() {
                        return Err(self.refusal(|| {
                            format!(
                                "[MEM_LIMIT_EXCEEDED]workload group {} is above its memory limit, and the query that \
                                 was cancelled to free memory has not freed it within {PATIENCE:?}",
                                memory.name
                            )
                        }));
                    }
                    self.wait_for(memory);
                }
                // The query's account is closed, and its remaining tasks are dropped when they yield. A refusal now
                // would make these tasks spill.
                Answer::Moved if self.query.is_done() => return Ok(()),
                Answer::Moved => {
                    if begun.elapsed() > Duration::from_millis(100) {
                        return Err(self.refusal(|| "the query has ended".to_owned()));
                    }
                    std::thread::yield_now();
                }
            }
        }
    }

    fn reserved(&self) -> usize {
        self.query.group().memory.of(self.query.identity.number).0
    }

    fn memory_limit(&self) -> MemoryLimit {
        match self.query.group().memory.hard_limit() {
            Some(limit) => MemoryLimit::Finite(limit),
            None => MemoryLimit::Infinite,
        }
    }
}
