//! CPU accounting of groups inside this process. The CPU time of a task is charged to its group after each poll (one
//! execution of the task up to the point where it yields). While a group has used more than its limit (is in debt), its
//! tasks wait.
//!
//! A kernel quota on some threads of a process throttles them at any point, even while they hold a lock that a thread
//! of an online group waits for (measured: a 99th percentile of 78.7 ms, compared with 0.12 ms for this method). Here a
//! task waits only after it has yielded by itself, which DataFusion's operators do after each batch. A long poll is
//! charged after it has finished: the average rate is kept, but the burst is as long as the poll.
//!
//! Each group's tasks run on a runtime with separate threads. The server's statements, timers and sockets run on
//! another runtime, so that nothing in the server waits for a group.

use super::query::Query;
use super::tokens::{now_ns, thread_cpu_time};
use datafusion::common::runtime::{JoinSetTracer, set_join_set_tracer};
use futures::future::BoxFuture;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::time::Sleep;

/// Maximum duration of a poll before operators must yield: half of the burst.
pub const SLICE: Duration = Duration::from_millis(5);

thread_local! {
    /// The query whose task this thread polls.
    static CURRENT: RefCell<Option<Arc<Query>>> = const { RefCell::new(None) };
    static SPAN: Cell<Option<Span>> = const { Cell::new(None) };
}

/// Returns the query whose task this thread polls.
#[must_use]
pub fn current() -> Option<Arc<Query>> {
    CURRENT.with_borrow(Clone::clone)
}

/// State at the start of this thread's outermost poll or at its last charge: the time, and the thread's CPU time.
#[derive(Debug, Clone, Copy)]
struct Span {
    since: Instant,
    cpu: Duration,
}

impl Span {
    fn now() -> Span {
        Span { since: Instant::now(), cpu: thread_cpu_time() }
    }

    /// Charges the thread's CPU time since the start of this span.
    fn charge(self, query: &Query) {
        let used = thread_cpu_time().saturating_sub(self.cpu).as_nanos() as u64;
        query.usage.add_cpu_ns(used);
        query.group().cpu.charge(now_ns(), used);
        query.home().polled(used);
    }
}

/// Runs a closure on behalf of a query, and charges its CPU time to the query.
fn charged<T>(query: &Arc<Query>, act: impl FnOnce() -> T) -> T {
    /// Restores the previous query on drop, also when `act` panics.
    struct Entered(Option<Arc<Query>>);
    impl Drop for Entered {
        fn drop(&mut self) {
            CURRENT.set(self.0.take());
        }
    }
    let entered = Entered(CURRENT.replace(Some(Arc::clone(query))));
    // A nested poll is charged as a part of the outer one.
    if entered.0.is_some() {
        return act();
    }
    SPAN.set(Some(Span::now()));
    let done = act();
    if let Some(span) = SPAN.take() {
        span.charge(query);
    }
    done
}

/// Whether the current poll of this thread has lasted so long that it should yield.
#[must_use]
pub fn is_due() -> bool {
    SPAN.get().is_some_and(|span| span.since.elapsed() > SLICE)
}

/// For work that cannot yield: charges the CPU time that the poll has used so far, and blocks the thread while the
/// group is in debt. Other tasks of the group can run in the meantime on other threads.
pub fn pace_in_place(query: &Query) {
    if !is_due() {
        return;
    }
    if let Some(span) = SPAN.take() {
        span.charge(query);
    }
    while query.ended().is_none() {
        let Some(wait) = query.group().cpu.wait(now_ns()) else { break };
        let begun = Instant::now();
        blocking(|| std::thread::sleep(wait.min(Duration::from_millis(20))));
        query.usage.add_cpu_waited(begun.elapsed());
    }
    SPAN.set(Some(Span::now()));
}

/// Blocks a thread of a group's runtime without blocking the group's other tasks.
pub fn blocking(wait: impl FnOnce()) {
    let handle = tokio::runtime::Handle::try_current();
    match handle.map(|handle| handle.runtime_flavor()) {
        Ok(tokio::runtime::RuntimeFlavor::MultiThread) => tokio::task::block_in_place(wait),
        _ => wait(),
    }
}

/// A task of a query. Each poll of the task is charged to the query, and is delayed while the group is in debt.
pub struct Charged<F> {
    task: F,
    query: Arc<Query>,
    pause: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl<F> std::fmt::Debug for Charged<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Charged").field("query", &self.query).finish_non_exhaustive()
    }
}

impl<F: Future + Unpin> Charged<F> {
    /// Wraps a task that has not been polled yet.
    pub fn new(task: F, query: Arc<Query>) -> Self {
        Charged { task, query, pause: None }
    }
}

impl<F: Future + Unpin> Future for Charged<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        // A cancelled query is not delayed.
        while this.query.ended().is_none() {
            if let Some((since, pause)) = &mut this.pause {
                if pause.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                let waited = since.elapsed();
                this.query.group().cpu.waited(waited.as_nanos() as u64);
                this.query.usage.add_cpu_waited(waited);
                this.pause = None;
            }
            let group = this.query.group();
            let Some(wait) = group.cpu.wait(now_ns()) else { break };
            let _entered = group.timer.enter();
            this.pause = Some((Instant::now(), Box::pin(tokio::time::sleep(wait))));
        }
        charged(&this.query, || Pin::new(&mut this.task).poll(context))
    }
}

/// Hook that makes tasks which DataFusion spawns for a query be charged to that query, too.
struct Inherit;

impl JoinSetTracer for Inherit {
    fn trace_future(
        &self,
        task: BoxFuture<'static, Box<dyn Any + Send>>,
    ) -> BoxFuture<'static, Box<dyn Any + Send>> {
        match current() {
            Some(query) => Box::pin(Charged::new(task, query)),
            None => task,
        }
    }

    fn trace_block(
        &self,
        act: Box<dyn FnOnce() -> Box<dyn Any + Send> + Send>,
    ) -> Box<dyn FnOnce() -> Box<dyn Any + Send> + Send> {
        match current() {
            Some(query) => Box::new(move || charged(&query, act)),
            None => act,
        }
    }
}

/// Installs the hook that charges tasks spawned by DataFusion. The hook is global, so this is done once per process.
pub fn charge_spawned_tasks() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        if set_join_set_tracer(&Inherit).is_err() {
            tracing::warn!(
                "another component has set DataFusion's task hook: the CPU time of parallel tasks is not charged"
            );
        }
    });
}
