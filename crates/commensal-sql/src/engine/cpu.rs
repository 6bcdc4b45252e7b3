//! CPU time of groups inside this process: what their tasks use is charged between polls, and who is in debt waits.
//!
//! A quota of the kernel on some threads of a process stops them wherever they are, also with a lock in hand that a
//! thread of an online group waits for (measured: 78.7 ms at the 99th percentile against 0.12 ms this way). A task is
//! stopped only where it gave its thread back by itself, which DataFusion's operators do after each batch. A poll that
//! takes long is charged after the fact: the average holds, the burst is the poll.
//!
//! Threads of their own: every group's tasks run on a runtime of the group, and the statements, timers and sockets of
//! the server on another one, so that nothing of the server waits for a group.

use super::query::Query;
use datafusion::common::runtime::{JoinSetTracer, set_join_set_tracer};
use futures::future::BoxFuture;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::time::Sleep;

/// Time that a group may use at once after it was idle: two scheduling slices, so that a short query is not slowed.
pub const BURST: Duration = Duration::from_millis(10);

/// How long a poll may last before the operators give the thread back: half of what may be used at once.
pub const SLICE: Duration = Duration::from_millis(5);

/// No limit.
const UNLIMITED: u64 = 0;

/// The CPU account of a group. Times are nanoseconds of one clock, which never goes back.
#[derive(Debug, Default)]
pub struct Tokens {
    /// Millionths of a CPU; zero is no limit.
    rate: AtomicU64,
    /// When everything charged so far is paid.
    paid_ns: AtomicU64,
    charged_ns: AtomicU64,
    throttled_ns: AtomicU64,
}

impl Tokens {
    /// Sets the limit in millionths of a CPU. A debt is rescaled and not waited out at the old rate.
    pub fn set_rate(&self, micro_cpus: Option<u64>, now_ns: u64) {
        let rate = micro_cpus.map_or(UNLIMITED, |rate| rate.max(1));
        let old = self.rate.swap(rate, Relaxed);
        let debt = self.paid_ns.load(Relaxed).saturating_sub(now_ns);
        let rescaled = match (old, rate) {
            (_, UNLIMITED) | (UNLIMITED, _) => 0,
            (old, new) => {
                u64::try_from(u128::from(debt) * u128::from(old) / u128::from(new)).unwrap_or(u64::MAX)
            }
        };
        self.paid_ns.store(now_ns.saturating_add(rescaled), Relaxed);
    }

    /// How long a task has to wait before it may run.
    #[must_use]
    pub fn wait(&self, now_ns: u64) -> Option<Duration> {
        if self.rate.load(Relaxed) == UNLIMITED {
            return None;
        }
        let debt = self.paid_ns.load(Relaxed).saturating_sub(now_ns);
        (debt > 0).then(|| Duration::from_nanos(debt))
    }

    /// Charges CPU time that was used.
    pub fn charge(&self, now_ns: u64, cpu_ns: u64) {
        self.charged_ns.fetch_add(cpu_ns, Relaxed);
        let rate = self.rate.load(Relaxed);
        if rate == UNLIMITED {
            return;
        }
        let cost = u64::try_from(u128::from(cpu_ns) * 1_000_000 / u128::from(rate)).unwrap_or(u64::MAX);
        let burst = BURST.as_nanos() as u64;
        let earliest = now_ns.saturating_sub(burst);
        let _ =
            self.paid_ns.fetch_update(Relaxed, Relaxed, |paid| Some(paid.max(earliest).saturating_add(cost)));
    }

    /// CPU time charged so far, in nanoseconds.
    #[must_use]
    pub fn charged_ns(&self) -> u64 {
        self.charged_ns.load(Relaxed)
    }

    /// Time that tasks have waited in debt so far, in nanoseconds, over all tasks.
    #[must_use]
    pub fn throttled_ns(&self) -> u64 {
        self.throttled_ns.load(Relaxed)
    }
}

/// Nanoseconds since this process first asked.
#[must_use]
pub fn now_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// CPU time of the calling thread so far.
#[must_use]
pub fn thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

thread_local! {
    /// The query whose task this thread polls.
    static CURRENT: RefCell<Option<Arc<Query>>> = const { RefCell::new(None) };
    static SPAN: Cell<Option<Span>> = const { Cell::new(None) };
}

fn current() -> Option<Arc<Query>> {
    CURRENT.with_borrow(Clone::clone)
}

/// What the outermost poll of this thread began with: time, and CPU time that is not charged yet.
#[derive(Debug, Clone, Copy)]
struct Span {
    since: Instant,
    cpu: Duration,
}

impl Span {
    fn now() -> Span {
        Span { since: Instant::now(), cpu: thread_cpu_time() }
    }

    /// Charges what was used since.
    fn charge(self, query: &Query) {
        let used = thread_cpu_time().saturating_sub(self.cpu).as_nanos() as u64;
        query.cpu_ns.fetch_add(used, Relaxed);
        query.group().cpu.charge(now_ns(), used);
        query.home.polled(used);
    }
}

/// Runs something in the name of a query and charges it.
fn charged<T>(query: &Arc<Query>, act: impl FnOnce() -> T) -> T {
    /// Puts the one before back, also when `act` panics.
    struct Entered(Option<Arc<Query>>);
    impl Drop for Entered {
        fn drop(&mut self) {
            CURRENT.set(self.0.take());
        }
    }
    let entered = Entered(CURRENT.replace(Some(Arc::clone(query))));
    // A poll inside a poll is charged by the outer one.
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

/// Whether the poll that this thread is in has lasted long enough.
#[must_use]
pub fn is_due() -> bool {
    SPAN.get().is_some_and(|span| span.since.elapsed() > SLICE)
}

/// For work that cannot give its thread back in between: charges what the poll has used so far, and waits where it is
/// while the group is in debt. Others of the group can run meanwhile.
pub fn pace_in_place(query: &Query) {
    if !is_due() {
        return;
    }
    if let Some(span) = SPAN.take() {
        span.charge(query);
    }
    while query.ended().is_none() {
        let Some(wait) = query.group().cpu.wait(now_ns()) else { break };
        blocking(|| std::thread::sleep(wait.min(Duration::from_millis(20))));
    }
    SPAN.set(Some(Span::now()));
}

/// Waits in a thread of a group's runtime without keeping the group's other tasks from running.
pub fn blocking(wait: impl FnOnce()) {
    let handle = tokio::runtime::Handle::try_current();
    match handle.map(|handle| handle.runtime_flavor()) {
        Ok(tokio::runtime::RuntimeFlavor::MultiThread) => tokio::task::block_in_place(wait),
        _ => wait(),
    }
}

/// A task of a query: polled in its name, charged for it, kept back while its group is in debt.
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
    /// A task that was not polled yet.
    pub fn new(task: F, query: Arc<Query>) -> Self {
        Charged { task, query, pause: None }
    }
}

impl<F: Future + Unpin> Future for Charged<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        // Who is to end is not kept from it.
        while this.query.ended().is_none() {
            if let Some((since, pause)) = &mut this.pause {
                if pause.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                let waited = since.elapsed().as_nanos() as u64;
                this.query.group().cpu.throttled_ns.fetch_add(waited, Relaxed);
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

/// Sees to it that the tasks that DataFusion starts for a query are charged as well.
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

/// Turns charging of DataFusion's own tasks on, once in a process; the hook is global there.
pub fn charge_spawned_tasks() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        if set_join_set_tracer(&Inherit).is_err() {
            tracing::warn!(
                "somebody else has set DataFusion's task hook: CPU of parallel tasks is not charged"
            );
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// CPU that tasks get in `seconds` when each of `tasks` polls `poll_ms` whenever it may; in thousandths of a CPU.
    fn simulate(tokens: &Tokens, tasks: usize, poll_ms: u64, from_s: u64, to_s: u64) -> u64 {
        let (mut now, end) = (from_s * 1_000 * MS, to_s * 1_000 * MS);
        let mut used = 0;
        while now < end {
            if let Some(wait) = tokens.wait(now) {
                now += wait.as_nanos() as u64;
                continue;
            }
            // All of them wake at the same time.
            for _ in 0..tasks {
                tokens.charge(now + poll_ms * MS, poll_ms * MS);
                used += poll_ms * MS;
            }
            now += poll_ms * MS;
        }
        used * 1_000 / ((to_s - from_s) * 1_000 * MS)
    }

    #[test]
    fn the_average_holds_whatever_a_poll_takes() {
        for (rate, tasks, poll_ms) in [(200_000, 1, 1), (200_000, 2, 5), (200_000, 8, 20), (1_500_000, 2, 3)]
        {
            let tokens = Tokens::default();
            tokens.set_rate(Some(rate), 0);
            let got = simulate(&tokens, tasks, poll_ms, 0, 60);
            let want = rate / 1_000;
            assert!(got.abs_diff(want) * 100 <= want * 2, "{rate} {tasks} {poll_ms}: {got} of {want}");
        }
    }

    #[test]
    fn a_new_rate_counts_at_once() {
        let tokens = Tokens::default();
        tokens.set_rate(Some(1_000), 0);
        tokens.charge(0, 1_000 * MS);
        assert!(tokens.wait(0) > Some(Duration::from_secs(900)));
        tokens.set_rate(Some(1_000_000), 0);
        assert!(tokens.wait(0) <= Some(Duration::from_secs(1)));
        tokens.set_rate(None, 0);
        assert_eq!(tokens.wait(0), None);
        assert_eq!(tokens.charged_ns(), 1_000 * MS);
    }

    #[test]
    fn idle_time_is_not_saved_up() {
        let tokens = Tokens::default();
        tokens.set_rate(Some(100_000), 0);
        let hour = 3_600_000 * MS;
        tokens.charge(hour, 10 * MS);
        let wait = tokens.wait(hour).unwrap();
        assert!(wait >= Duration::from_millis(90), "{wait:?}");
    }
}
