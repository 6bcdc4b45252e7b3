//! Worker processes: the queries of an offline group run in a process of their own, in the group's cgroup.
//!
//! A kernel quota throttles threads at any point, even while they hold a lock. In a process of its own, an offline
//! group holds no lock that an online query waits for, so every kernel mechanism may be used on it: quota, scheduling
//! class, CPU set, memory limit, core scheduling. `commensal run` creates the cgroup and removes it again:
//!
//! ```text
//! server ─ commensal run --group etl ─ commensal-sql worker     in commensal-offline/etl
//!    └────────── socket pair ──────────────┘                    one message per change, report and query; see `wire`
//! ```
//!
//! The server has the queue, the policies and the tables; the worker plans, reads and computes. The server starts a
//! worker for the group's first query, and stops it after it was idle for [`IDLE`]. If a worker dies, only its own
//! queries fail, with an error that gives the reason, and the next query starts a new worker.

pub mod process;
pub mod relay;
pub mod wire;

use super::error::Error;
use super::group::Group;
use super::scratch::Scratch;
use super::settings::Settings;
use arc_swap::ArcSwap;
use commensal_host::{Child, Host, LinuxHost, Signal, SpawnSpec, Stdin, Stdout};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak, mpsc as channel};
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;
use wire::{Reads, Report, ToServer, ToWorker};

/// Time after which an idle worker is stopped.
pub const IDLE: Duration = Duration::from_secs(60);

/// How long to wait until a worker exits by itself. A worker may get little CPU, because its cgroup yields to all
/// others.
const PATIENCE: Duration = Duration::from_secs(10);

/// Delay before the next attempt after the server could not start a worker. In the meantime the group's queries run
/// inside the server.
const AGAIN: Duration = Duration::from_secs(30);

/// How worker processes are started.
#[derive(Debug, Clone)]
pub struct Workers {
    /// Path of the program `commensal-sql`.
    pub program: PathBuf,
    /// Path of `commensal`.
    pub commensal: PathBuf,
    /// Options of `commensal`, which are placed before `run`.
    pub options: Vec<OsString>,
}

/// Starts worker processes.
#[derive(Debug)]
pub struct Launcher {
    workers: Workers,
    /// Options that the server passes to every worker.
    arguments: Vec<OsString>,
    /// Folder with a groups file and the spill files of each worker.
    folder: Arc<Scratch>,
}

/// A running worker.
#[derive(Debug)]
pub struct Worker {
    control: Arc<OwnedFd>,
    /// Cancelled when the worker has exited; the reason is in `exit`.
    gone: CancellationToken,
    exit: Arc<OnceLock<String>>,
    /// Pid of `commensal run`, the process that the server has started.
    pub pid: u32,
    /// Content of the worker's groups file, which has the limits that the kernel enforces.
    kernel: Mutex<String>,
}

/// The current and former workers of a group.
#[derive(Debug, Default)]
pub struct WorkerSlot {
    worker: tokio::sync::Mutex<Option<Arc<Worker>>>,
    /// The current worker, readable without waiting for the lock.
    now: ArcSwap<Option<Arc<Worker>>>,
    last: ArcSwap<Report>,
    /// Resource usage of this group's workers that have exited.
    before: Mutex<Report>,
    problem: Mutex<Option<(Instant, String)>>,
    used: Mutex<Option<Instant>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Launcher {
    /// Creates a launcher of workers with these options. `folder` holds a groups file and the spill files of each
    /// worker; it is deleted when the server exits.
    #[must_use]
    pub fn new(workers: Workers, arguments: Vec<OsString>, folder: Arc<Scratch>) -> Launcher {
        Launcher { workers, arguments, folder }
    }

    fn run(&self, group: &str, kernel: &str) -> Result<SpawnSpec, String> {
        let file = self.folder.path().join(format!("{group}.toml"));
        let written = LinuxHost::new().state_replace(&file, kernel);
        written.map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        let mut spec = SpawnSpec::new(&self.workers.commensal);
        spec.args.clone_from(&self.workers.options);
        let spec = spec.arg("run").arg("--config").arg(file).arg("--group").arg(group).arg("--");
        Ok(spec)
    }

    /// Starts a worker for a group, and waits until it is ready for queries. `kernel` is the content of the worker's
    /// groups file, which has the limits that the kernel enforces.
    fn start(&self, group: &Arc<Group>, settings: Settings, kernel: &str) -> Result<Arc<Worker>, String> {
        let words = |error: io::Error| format!("cannot create a socket: {error}");
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (near, far) = pair.map_err(|error| words(error.into()))?;
        let spill = self.folder.path().join(format!("spill-{}", group.name));
        LinuxHost::new().state_dir(&spill).map_err(|error| error.to_string())?;
        let mut spec = self.run(&group.name, kernel)?.arg(&self.workers.program).arg("worker");
        spec = spec.arg("--id").arg(group.id.to_string()).arg("--name").arg(&group.name);
        spec = spec.arg("--spill").arg(&spill);
        spec.args.extend(self.arguments.iter().cloned());
        spec.stdin = Stdin::Fd(Arc::new(far));
        spec.stdout = Stdout::Null;
        spec.own_process_group = true;
        let control = Arc::new(near);
        wire::send(&*control, &ToWorker::Settings(settings), None).map_err(words)?;
        let child = LinuxHost::new().spawn(&spec).map_err(|error| error.to_string())?;
        drop(spec);
        let worker = Arc::new(Worker {
            control,
            gone: CancellationToken::new(),
            exit: Arc::default(),
            pid: child.process.pid,
            kernel: Mutex::new(kernel.to_owned()),
        });
        let (ready, begun) = channel::channel();
        let listener = Listener {
            control: Arc::clone(&worker.control),
            gone: worker.gone.clone(),
            exit: Arc::clone(&worker.exit),
            group: Arc::downgrade(group),
        };
        let thread = std::thread::Builder::new().name("worker".to_owned());
        thread.spawn(move || listener.listen(child, ready)).map_err(words)?;
        // There is no timeout: on a busy machine an offline group gets little CPU, and its queries can be cancelled.
        match begun.recv() {
            Ok(()) => Ok(worker),
            Err(channel::RecvError) => Err(worker.exit_text()),
        }
    }

    /// Changes the limits of a group's cgroup while its worker runs.
    fn change(&self, group: &str, kernel: &str) -> Result<(), String> {
        let mut spec = self.run(group, kernel)?.arg("true");
        spec.stdin = Stdin::Null;
        spec.stdout = Stdout::Null;
        let mut child = LinuxHost::new().spawn(&spec).map_err(|error| error.to_string())?;
        match child.wait().map(|exit| exit.status()) {
            Ok(0) => Ok(()),
            Ok(status) => Err(format!("`commensal run` exited with status {status}; see the server's log")),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// The thread that receives a worker's messages and waits until the worker exits.
struct Listener {
    control: Arc<OwnedFd>,
    gone: CancellationToken,
    exit: Arc<OnceLock<String>>,
    group: Weak<Group>,
}

impl Listener {
    fn listen(self, mut child: Child, ready: channel::Sender<()>) {
        while let Ok(Some((message, _))) = wire::receive::<ToServer>(&*self.control) {
            match message {
                ToServer::Ready => {
                    let _ = ready.send(());
                }
                ToServer::Report(report) => {
                    if let Some(group) = self.group.upgrade() {
                        group.hear(report);
                    }
                }
            }
        }
        let _ = self.exit.set(match ended(&mut child) {
            Ok(status @ 129..=192) => format!("it was killed by signal {}", status - 128),
            Ok(0) => "it exited".to_owned(),
            Ok(status) => format!("it exited with status {status}"),
            Err(error) => format!("its exit status is unknown: {error}"),
        });
        // If the worker never became ready, this drop makes the thread that starts the worker fail.
        drop(ready);
        if let Some(group) = self.group.upgrade() {
            group.worker.close_account();
        }
        self.gone.cancel();
    }
}

/// Waits until a worker exits whose socket is closed, and returns its exit status. Sends SIGTERM after [`PATIENCE`].
fn ended(child: &mut Child) -> commensal_host::Result<i32> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if let Some(exit) = child.try_wait()? {
            return Ok(exit.status());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    // `commensal run` forwards the signal, and removes the cgroup when the worker has exited.
    let _ = LinuxHost::new().signal(&child.process, Signal::TERM);
    child.wait().map(|exit| exit.status())
}

impl Worker {
    fn is_gone(&self) -> bool {
        self.gone.is_cancelled()
    }

    fn exit_text(&self) -> String {
        self.exit.get().cloned().unwrap_or_else(|| "its socket is closed".to_owned())
    }

    /// Opens a pair of sockets for a query, and sends one of them to the worker.
    pub(super) fn open(&self) -> io::Result<UnixStream> {
        let (near, far) = std::os::unix::net::UnixStream::pair()?;
        near.set_nonblocking(true)?;
        wire::send(&*self.control, &ToWorker::Query, Some(far.as_fd()))?;
        UnixStream::from_std(near)
    }

    /// Returns the error of a query whose worker has died.
    pub(super) async fn lost(&self, group: &str) -> Error {
        // The reason is known only some time after the worker's socket was closed.
        let _ = tokio::time::timeout(Duration::from_secs(5), self.gone.cancelled()).await;
        Error::Engine(format!(
            "the worker process of workload group {group} has died: {}. Other groups are not affected, and the next \
             query starts a new worker",
            self.exit_text()
        ))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = shutdown(&*self.control, Shutdown::Both);
    }
}

impl WorkerSlot {
    /// Returns the worker for a query of this group. Starts a worker if there is none. Returns `None` if the query must
    /// run in the server.
    pub async fn worker(
        &self,
        launcher: &Arc<Launcher>,
        group: &Arc<Group>,
        kernel: impl FnOnce() -> Option<String>,
    ) -> Option<Arc<Worker>> {
        *lock(&self.used) = Some(Instant::now());
        let mut worker = self.worker.lock().await;
        if let Some(worker) = worker.as_ref().filter(|worker| !worker.is_gone()) {
            return Some(Arc::clone(worker));
        }
        if lock(&self.problem).as_ref().is_some_and(|(since, _)| since.elapsed() < AGAIN) {
            return None;
        }
        let kernel = kernel()?;
        let (launcher, to) = (Arc::clone(launcher), Arc::clone(group));
        let start = move || launcher.start(&to, to.settings(), &kernel);
        let started = tokio::task::spawn_blocking(start).await;
        match started.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(started) => {
                tracing::info!(group = %group.name, pid = started.pid, "worker started");
                *lock(&self.problem) = None;
                self.now.store(Arc::new(Some(Arc::clone(&started))));
                *worker = Some(Arc::clone(&started));
                Some(started)
            }
            Err(error) => {
                tracing::warn!(group = %group.name, "cannot start a worker: {error}; queries run inside the server");
                *lock(&self.problem) = Some((Instant::now(), error));
                None
            }
        }
    }

    /// Stops a worker that has been idle for [`IDLE`].
    pub fn rest(&self) {
        let busy = !self.last.load().queries.is_empty();
        let mut used = lock(&self.used);
        if busy {
            *used = Some(Instant::now());
        }
        if used.is_none_or(|used| used.elapsed() < IDLE) {
            return;
        }
        if let Ok(mut worker) = self.worker.try_lock()
            && worker.take().is_some()
        {
            self.now.store(Arc::new(None));
        }
    }

    /// Applies new limits to the worker and its cgroup.
    ///
    /// # Errors
    /// The kernel's limits could not be changed, so the previous limits are in force, or the server could not reach the
    /// worker.
    pub fn change(&self, launcher: &Launcher, group: &Group, kernel: &str) -> Result<(), String> {
        let now = self.now.load();
        let Some(worker) = now.as_ref().as_ref().filter(|worker| !worker.is_gone()) else { return Ok(()) };
        let mut known = lock(&worker.kernel);
        let changed = if *known == kernel { Ok(()) } else { launcher.change(&group.name, kernel) };
        if changed.is_ok() {
            kernel.clone_into(&mut known);
        }
        let told = wire::send(&*worker.control, &ToWorker::Settings(group.settings()), None);
        told.map_err(|error| error.to_string()).and(changed)
    }

    /// Returns the state for the system tables: the pid of the worker, the reason why the server could not start one,
    /// or an empty string.
    #[must_use]
    pub fn state(&self) -> String {
        if let Some(worker) = self.now.load().as_ref().as_ref().filter(|worker| !worker.is_gone()) {
            return format!("worker {}", worker.pid);
        }
        lock(&self.problem).as_ref().map_or_else(String::new, |(_, problem)| format!("no worker: {problem}"))
    }

    /// Returns the resource usage of all workers that the group has had.
    #[must_use]
    pub fn total(&self) -> Report {
        let mut total = lock(&self.before).clone();
        let last = self.last.load();
        total.cpu_ns += last.cpu_ns;
        total.throttled_ns += last.throttled_ns;
        total.untracked_bytes = last.untracked_bytes;
        total.quota = last.quota;
        total.reads = Reads::summed(&total.reads, &last.reads);
        total
    }

    /// Adds the usage of a worker that has exited to the total.
    fn close_account(&self) {
        let total = self.total();
        let quiet = |reads: Reads| Reads { last_second_bytes: 0, waiting: 0, ..reads };
        let reads = total.reads.into_iter().map(quiet).collect();
        *lock(&self.before) = Report { reads, quota: false, untracked_bytes: 0, ..total };
        self.last.store(Arc::default());
    }

    /// Stores a worker's report.
    pub fn hear(&self, report: Report) {
        self.last.store(Arc::new(report));
    }
}

impl Group {
    /// Processes a report of the group's worker.
    pub fn hear(&self, report: Report) {
        for used in &report.queries {
            if let Some(query) = self.memory.mirror(used.number, used.held, used.peak) {
                query.usage.hear(*used);
            }
        }
        self.memory.set_untracked(report.untracked_bytes);
        self.worker.hear(report);
    }
}
