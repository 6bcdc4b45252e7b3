//! The memory pool of one query: DataFusion's operators ask it before they grow, and it asks the group that is charged
//! (`memory`).

use super::accounts::Accounts;
use super::cpu;
use super::memory::{Answer, GroupMemory, end, readable};
use super::query::Query;
use datafusion::error::DataFusionError;
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long to wait for the memory of a victim. Cancelling takes milliseconds to a second (measured), so a longer wait
/// means that the victim does not yield.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long an operator that has nothing to spill waits for operators of the same query that have: those spill at their
/// next request, after sorting and writing what they hold. Without the wait the first one would fail.
const PRESS: Duration = Duration::from_secs(10);

/// While this exists, operators of the group that can spill are told to.
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

/// The pool of one query.
#[derive(Debug)]
pub struct QueryPool {
    query: Arc<Query>,
}

impl QueryPool {
    /// The pool of a query that has an account in its group.
    #[must_use]
    pub fn new(query: &Arc<Query>) -> QueryPool {
        QueryPool { query: Arc::clone(query) }
    }

    /// Calls `act` with the query's group; repeats it when the query was moved meanwhile.
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

    /// The error of a refused request. An operator of a cancelled query must not start to spill, as it would on a
    /// shortage of memory.
    fn refusal(&self, fallback: impl FnOnce() -> String) -> DataFusionError {
        match self.query.ended() {
            Some(why) => DataFusionError::External(Box::new(why)),
            None => DataFusionError::ResourcesExhausted(fallback()),
        }
    }
}

impl fmt::Display for QueryPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "query {}", self.query.id)
    }
}

impl MemoryPool for QueryPool {
    fn name(&self) -> &str {
        "workload-group"
    }

    fn grow(&self, _reservation: &MemoryReservation, additional: usize) {
        self.with(|group| group.add(self.query.number, additional));
        end(&self.query.group().memory.over_limit());
    }

    fn shrink(&self, _reservation: &MemoryReservation, shrink: usize) {
        self.with(|group| group.sub(self.query.number, shrink));
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> datafusion::error::Result<()> {
        let spillable = reservation.consumer().can_spill().then(|| reservation.size());
        let begun = Instant::now();
        let mut pressing: Option<Pressing> = None;
        loop {
            let group = self.query.group();
            let memory = &group.memory;
            match memory.request(self.query.number, additional, spillable) {
                Answer::Granted(victims) => {
                    end(&victims);
                    return Ok(());
                }
                Answer::Spill { used, limit } => {
                    return Err(DataFusionError::ResourcesExhausted(format!(
                        "{} asks for {}, and workload group {} uses {} of {}: it has to spill",
                        reservation.consumer().name(),
                        readable(additional),
                        memory.name,
                        readable(used),
                        readable(limit),
                    )));
                }
                Answer::Refuse => return Err(self.refusal(|| "the query was cancelled".to_owned())),
                Answer::Less(text) => {
                    let others = memory.of(self.query.number).0 > reservation.size();
                    // An operator that holds something to spill does so at once; one that has nothing (left) would
                    // fail.
                    let nothing_to_spill = spillable.is_none_or(|held| held == 0);
                    let patient = nothing_to_spill && others && begun.elapsed() < PRESS;
                    if !patient || self.query.ended().is_some() {
                        return Err(DataFusionError::ResourcesExhausted(text));
                    }
                    pressing.get_or_insert_with(|| Pressing::new(&group));
                    cpu::blocking(|| memory.wait(Duration::from_millis(20)));
                }
                Answer::TooLarge { used, limit } => {
                    return Err(DataFusionError::ResourcesExhausted(format!(
                        "[MEM_LIMIT_EXCEEDED]{} of <Query#Id={}> asks for {}, and workload group {} has {} of {} \
                         left: give the group more memory",
                        reservation.consumer().name(),
                        self.query.id,
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
                                 was ended for it has not given its memory back within {PATIENCE:?}",
                                memory.name
                            )
                        }));
                    }
                    // The victim's own tasks need a thread on which to end.
                    cpu::blocking(|| memory.wait(Duration::from_millis(20)));
                }
                // The account is closed, and the query's remaining tasks are dropped once they yield. A refusal now
                // would make them spill.
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
        self.query.group().memory.of(self.query.number).0
    }

    fn memory_limit(&self) -> MemoryLimit {
        match self.query.group().memory.hard_limit() {
            Some(limit) => MemoryLimit::Finite(limit),
            None => MemoryLimit::Infinite,
        }
    }
}
