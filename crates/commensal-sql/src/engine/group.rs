//! A workload group while the server runs: its current settings, its threads and its accounts (the counters that its
//! queries are charged to).

use super::accounts::Accounts;
use super::settings::Settings;
use super::tokens::{now_ns, thread_cpu_time};
use super::worker::WorkerSlot;
use super::worker::wire::Reads;
use arc_swap::ArcSwap;
use commensal_core::topology::Device;
use commensal_core::units;
use commensal_store::{BytesPerS, Governor, Rates as ReadRates, Reach, Source};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicI8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Runtime};

/// A group in which queries run.
pub struct Group {
    accounts: Arc<Accounts>,
    settings: ArcSwap<Settings>,
    /// The group's worker process, if any.
    pub worker: WorkerSlot,
    threads: Arc<Threads>,
    runtime: Option<Runtime>,
    rates: Mutex<(Rates, Totals)>,
}

/// A group consists of its accounts, and of the threads and the worker that run its queries.
impl Deref for Group {
    type Target = Accounts;

    fn deref(&self) -> &Accounts {
        &self.accounts
    }
}

/// Resource usage per second, averaged between two measurements.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rates {
    /// CPU usage in percent of the machine.
    pub cpu_percent: f64,
    /// Bytes per second read from local disks.
    pub local: u64,
    /// Bytes per second read from remote stores.
    pub remote: u64,
}

/// Totals of a group at the last measurement.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    at: Option<Instant>,
    cpu_ns: u64,
    local: u64,
    remote: u64,
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("id", &self.id).field("name", &self.name).finish_non_exhaustive()
    }
}

/// The threads of a group's runtime by thread ID, and the total CPU time of the threads that have exited.
#[derive(Debug, Default)]
struct Threads {
    alive: Mutex<BTreeSet<u32>>,
    ended_ns: AtomicU64,
    nice: AtomicI8,
    /// CPU time that [`Group::settle`] has charged.
    settled_ns: AtomicU64,
}

impl Group {
    /// Creates a group with `workers` threads. Timers of waiting tasks run on the runtime that calls this function.
    ///
    /// # Errors
    /// The threads cannot be started.
    pub fn new(id: u64, name: &str, settings: Settings, workers: usize) -> std::io::Result<Arc<Group>> {
        let threads = Arc::new(Threads::default());
        let (begun, ended) = (Arc::clone(&threads), Arc::clone(&threads));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(workers.max(1))
            .max_blocking_threads(16)
            // A large stack, because planning of nested statements is recursive.
            .thread_stack_size(8 << 20)
            .thread_name(format!("wg-{name}"))
            .on_thread_start(move || {
                begun.begin();
            })
            .on_thread_stop(move || {
                lock(&ended.alive).remove(&thread_id());
                let used = thread_cpu_time().as_nanos() as u64;
                ended.ended_ns.fetch_add(used, Relaxed);
            })
            .enable_all()
            .build()?;
        let group = Group {
            accounts: Arc::new(Accounts::new(id, name, &settings)),
            settings: ArcSwap::from_pointee(settings),
            worker: WorkerSlot::default(),
            threads,
            runtime: Some(runtime),
            rates: Mutex::default(),
        };
        group.set(settings);
        Ok(Arc::new(group))
    }

    /// Applies new settings, also to running queries.
    pub fn set(&self, settings: Settings) {
        self.settings.store(Arc::new(settings));
        self.cpu.set_rate(settings.cpu_max, now_ns());
        self.memory.set_rules(settings.memory);
        // `commensal-store` can be published alone, so it has a type of its own for rates.
        let rate = |limit: Option<units::BytesPerS>| limit.map(|limit| BytesPerS(limit.0));
        self.reads
            .set_rates(ReadRates { local: rate(settings.local_read), remote: rate(settings.remote_read) });
        self.queue.set_limits(settings.queue);
        self.threads.set_nice(settings.nice);
    }

    /// Returns the accounts that the group's queries are charged to.
    #[must_use]
    pub fn accounts(&self) -> Arc<Accounts> {
        Arc::clone(&self.accounts)
    }

    /// Returns the current settings.
    #[must_use]
    pub fn settings(&self) -> Settings {
        **self.settings.load()
    }

    /// Returns the runtime of the group's tasks; `None` while the group is shut down.
    #[must_use]
    pub fn runtime(&self) -> Option<&Handle> {
        self.runtime.as_ref().map(Runtime::handle)
    }

    /// Returns the total CPU time of the group's threads so far, in nanoseconds. `read` returns the CPU time of a
    /// thread, given its ID.
    pub fn threads_cpu_ns(&self, read: impl Fn(u32) -> Option<Duration>) -> u64 {
        let threads: Vec<u32> = lock(&self.threads.alive).iter().copied().collect();
        let alive: u64 = threads.into_iter().filter_map(read).map(|time| time.as_nanos() as u64).sum();
        alive + self.threads.ended_ns.load(Relaxed)
    }

    /// Charges the CPU time of the group's threads that was not charged to a task: reading files, freeing memory, the
    /// runtime itself. `used_ns` is the total CPU time of the group's threads so far. It includes unfinished polls,
    /// which are charged again when they finish; later calls charge correspondingly less.
    pub fn settle(&self, used_ns: u64) {
        let known = self.accounts.polled_ns() + self.threads.settled_ns.load(Relaxed);
        if let Some(missing) = used_ns.checked_sub(known).filter(|missing| *missing > 0) {
            self.cpu.charge(now_ns(), missing);
            self.threads.settled_ns.fetch_add(missing, Relaxed);
        }
    }
}

impl Group {
    /// Returns the average usage per second at the last measurement.
    #[must_use]
    pub fn rates(&self) -> Rates {
        lock(&self.rates).0
    }

    /// Returns the number of bytes that the group has read so far, from local disks and from remote stores.
    #[must_use]
    pub fn read_bytes(&self) -> (u64, u64) {
        let all = self.all_reads();
        let of = |remote: bool| {
            all.iter().filter(|reads| reads.remote == remote).map(|reads| reads.delivered_bytes).sum()
        };
        (of(false), of(true))
    }

    /// Returns the reads from each device and each remote store, in the server and in the worker process.
    #[must_use]
    pub fn all_reads(&self) -> Vec<Reads> {
        let one = |(source, governor): (Source, Governor)| {
            let seen = governor.statistics();
            Reads {
                remote: source.reach() == Reach::Remote,
                source: match source {
                    Source::Device { major, minor } => Device { major, minor }.to_string(),
                    Source::Store(store) => store,
                },
                last_second_bytes: seen.last_second_bytes,
                delivered_bytes: seen.delivered_bytes,
                requests: seen.requests,
                waits: seen.waits,
                waited_ms: seen.waited.as_millis() as u64,
                waiting: seen.waiting as u64,
            }
        };
        let here: Vec<Reads> = self.reads.each().into_iter().map(one).collect();
        Reads::summed(&here, &self.worker.total().reads)
    }

    /// Returns the CPU time that the group has used so far, in nanoseconds.
    #[must_use]
    pub fn cpu_ns(&self) -> u64 {
        self.cpu.charged_ns() + self.worker.total().cpu_ns
    }

    /// Updates the rates if the last measurement is at least [`WINDOW`] ago. `cpus` is the machine's number of CPUs.
    /// Rates are averages over the actual time between measurements.
    pub fn measure(&self, cpus: usize) {
        let now = Instant::now();
        let mut rates = lock(&self.rates);
        let before = rates.1;
        if before.at.is_some_and(|at| now - at < WINDOW) {
            return;
        }
        let (local, remote) = self.read_bytes();
        let totals = Totals { at: Some(now), cpu_ns: self.cpu_ns(), local, remote };
        if let Some(at) = before.at {
            let seconds = (now - at).as_secs_f64();
            let per_second = |now: u64, before: u64| (now.saturating_sub(before) as f64 / seconds) as u64;
            let cpu_s = totals.cpu_ns.saturating_sub(before.cpu_ns) as f64 / 1e9;
            rates.0 = Rates {
                cpu_percent: cpu_s / seconds / cpus.max(1) as f64 * 100.0,
                local: per_second(local, before.local),
                remote: per_second(remote, before.remote),
            };
        }
        rates.1 = totals;
    }
}

/// Minimum time over which rates are averaged.
pub const WINDOW: Duration = Duration::from_secs(1);

impl Drop for Group {
    fn drop(&mut self) {
        // One of the group's own tasks may hold the last reference to the group, and a task cannot wait for its own
        // runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Threads {
    /// Registers the calling thread as one of the group's threads.
    fn begin(&self) {
        let thread = thread_id();
        lock(&self.alive).insert(thread);
        // 0 means that the thread keeps the nice value that it inherited.
        let nice = self.nice.load(Relaxed);
        if nice != 0 {
            set_nice(thread, nice);
        }
    }

    fn set_nice(&self, nice: i8) {
        if self.nice.swap(nice, Relaxed) != nice {
            lock(&self.alive).iter().for_each(|thread| set_nice(*thread, nice));
        }
    }
}

/// Sets the nice value of a thread. On Linux each thread has its own nice value, and `setpriority` accepts a thread ID.
/// A lower nice value than before needs `CAP_SYS_NICE` or a sufficient `RLIMIT_NICE`; otherwise the group keeps the
/// higher nice value until the server is restarted.
fn set_nice(thread: u32, nice: i8) {
    let pid = i32::try_from(thread).ok().and_then(rustix::process::Pid::from_raw);
    if let Err(error) = rustix::process::setpriority_process(pid, i32::from(nice)) {
        tracing::debug!(thread, nice, "cannot set the nice value: {error}");
    }
}

/// Returns the kernel's ID of the calling thread.
fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_pid().unsigned_abs()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The groups by name.
pub type Groups = BTreeMap<String, Arc<Group>>;
