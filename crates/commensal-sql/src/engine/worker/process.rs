//! The worker's side: a process for one group, which runs the queries that the server sends.
//!
//! `commensal run` has put the process into the group's cgroup, so that all its threads are under the group's limits:
//! those of the queries, of the runtime and of the allocator. Limits that the kernel enforces are not enforced again
//! here, except memory: a query that fails with a message is better than a process that the kernel kills.

use super::super::error::Error;
use super::super::execute::{self, Held};
use super::super::group::Group;
use super::super::query::{Query, QueryTerms};
use super::super::session;
use super::super::settings::Settings;
use super::super::{Engine, Options, TICK, threads_time};
use super::wire::{self, Encoder, Frame, Order, QueryUse, Report, ToServer, ToWorker};
use crate::statement::UserName;
use commensal_core::actual::CgroupPath;
use commensal_core::knob::{Controller, Version};
use commensal_host::{Host, LinuxHost};
use commensal_sensors::mounts;
use commensal_sensors::usage::GroupDirs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, BufWriter};
use tokio::net::UnixStream;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::sync::oneshot;

/// How often freed memory is returned to the kernel, while the allocator keeps more than a part of the limit.
const TRIM: Duration = Duration::from_secs(1);

/// Unreserved memory below this is ignored.
const SMALL: usize = 16 << 20;

/// Runs the worker of a group until the server closes the socket, which is the standard input.
///
/// # Errors
/// The standard input is not a server's socket, or the folders cannot be opened.
pub fn run(options: Options, id: u64, name: &str) -> Result<(), Error> {
    let words = |error: io::Error| Error::Engine(format!("a worker talks to its server: {error}"));
    let control = Arc::new(io::stdin().as_fd().try_clone_to_owned().map_err(words)?);
    let Some((ToWorker::Settings(settings), _)) = wire::receive(&*control).map_err(words)? else {
        return Err(words(io::Error::other("it has said nothing")));
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("control")
        .enable_all()
        .build()
        .map_err(words)?;
    let outcome = runtime.block_on(serve(options, (id, name), settings, control));
    // Running queries end with the process.
    runtime.shutdown_background();
    outcome
}

async fn serve(
    options: Options,
    (id, name): (u64, &str),
    settings: Settings,
    control: Arc<OwnedFd>,
) -> Result<(), Error> {
    let words = |error: io::Error| Error::Engine(error.to_string());
    let cpus = options.cpus;
    let engine = Engine::open(options)?;
    let mut account = Account::open(settings);
    let group = Group::new(id, name, account.rest(), cpus).map_err(words)?;
    let (sender, mut incoming) = mpsc::unbounded_channel();
    let listener = Arc::clone(&control);
    let listen = move || {
        while let Ok(Some(message)) = wire::receive::<ToWorker>(&*listener) {
            if sender.send(message).is_err() {
                break;
            }
        }
    };
    std::thread::Builder::new().name("listen".to_owned()).spawn(listen).map_err(words)?;
    wire::send(&*control, &ToServer::Ready, None).map_err(words)?;
    let (finished, mut finishing) = mpsc::unbounded_channel();
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            message = incoming.recv() => match message {
                None => return Ok(()),
                Some((ToWorker::Query, Some(socket))) => begin(&engine, &group, socket, &finished),
                Some((ToWorker::Query, None)) => {}
                Some((ToWorker::Settings(settings), _)) => {
                    account.settings = settings;
                    account.look(&engine, &group);
                }
            },
            // The final usage must be reported before the user learns of the query's end.
            Some(told) = finishing.recv() => {
                if !listens(&control, account.look(&engine, &group))? {
                    return Ok(());
                }
                let _ = told.send(());
            }
            _ = tick.tick() => if !listens(&control, account.look(&engine, &group))? {
                return Ok(());
            },
        }
    }
}

/// Sends a report; returns whether the server still listens.
fn listens(control: &OwnedFd, report: Report) -> Result<bool, Error> {
    match wire::send(control, &ToServer::Report(report), None) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
            Ok(false)
        }
        Err(error) => Err(Error::Engine(format!("the server cannot be told: {error}"))),
    }
}

/// Channel on which the end of a query is announced before its user learns of it; the reply means that the server was
/// told.
type Finished = UnboundedSender<oneshot::Sender<()>>;

/// Starts a query on the group's threads.
fn begin(engine: &Arc<Engine>, group: &Arc<Group>, socket: OwnedFd, finished: &Finished) {
    let Some(runtime) = group.runtime() else { return };
    let (engine, group, finished) = (Arc::clone(engine), Arc::clone(group), finished.clone());
    runtime.spawn(async move {
        let socket = std::os::unix::net::UnixStream::from(socket);
        let stream = socket.set_nonblocking(true).and_then(|()| UnixStream::from_std(socket));
        match stream {
            Ok(stream) => answer(&engine, &group, stream, &finished).await,
            Err(error) => tracing::warn!("a query's socket: {error}"),
        }
    });
}

async fn answer(engine: &Arc<Engine>, group: &Arc<Group>, stream: UnixStream, finished: &Finished) {
    let (mut from, to) = stream.into_split();
    let mut to = BufWriter::with_capacity(64 << 10, to);
    let Ok(order) = wire::read_order(&mut from).await else { return };
    let ask = QueryTerms {
        connection: 0,
        user: UserName { name: order.user.clone(), host: order.host.clone() },
        sql: String::new(),
        slots: order.slots,
        memory_limit: order.memory_limit,
        timeout: None,
    };
    let query = Query::of_server(ask, group.accounts(), order.number, order.id.clone());
    let gone = Arc::clone(&query);
    let watch = tokio::spawn(async move {
        // The server sends nothing more on this socket; it only closes it.
        let _ = from.read_u8().await;
        gone.end(Error::Cancelled);
    });
    let held = Held::new(engine, group, &query);
    let last = match rows(engine, held, order, &mut to).await {
        Ok(()) => Frame::End,
        Err(error) => Frame::Failed(error),
    };
    watch.abort();
    let (tell, told) = oneshot::channel();
    if finished.send(tell).is_ok() {
        let _ = told.await;
    }
    let _ = last.write(&mut to).await;
}

/// Runs a query and sends its rows.
async fn rows(
    engine: &Arc<Engine>,
    held: Held,
    order: Order,
    to: &mut BufWriter<tokio::net::unix::OwnedWriteHalf>,
) -> Result<(), Error> {
    let words = |error: datafusion::arrow::error::ArrowError| Error::Engine(error.to_string());
    let work = session::work(engine, order)?;
    let mut rows = execute::start(held, work).await?;
    let mut encoder = Encoder::new(&rows.schema).map_err(words)?;
    let mut bytes = encoder.take();
    loop {
        // If the server has closed the socket, it has cancelled the query.
        if Frame::Rows(bytes).write(to).await.is_err() {
            return Err(Error::Cancelled);
        }
        let batch = rows.next().await?;
        match &batch {
            Some(batch) => encoder.add(batch).map_err(words)?,
            None => encoder.finish().map_err(words)?,
        }
        bytes = encoder.take();
        if batch.is_none() {
            return Frame::Rows(bytes).write(to).await.map_err(|_| Error::Cancelled);
        }
    }
}

/// Resource accounting of the process, and which limits the kernel enforces.
struct Account {
    host: LinuxHost,
    /// The process's cgroup, if it has one of its own.
    dirs: Option<GroupDirs>,
    settings: Settings,
    kept: Settings,
    /// Memory of the process before its first query.
    empty: usize,
    trimmed: Instant,
}

impl Account {
    fn open(settings: Settings) -> Account {
        let mut host = LinuxHost::new();
        let dirs = own_group(&mut host);
        let empty = anonymous(&host);
        let mut account = Account { host, dirs, settings, kept: settings, empty, trimmed: Instant::now() };
        account.kept = account.rest();
        account
    }

    /// The settings to be enforced here: the kernel weighs the process as a whole, and enforces the CPU limit if the
    /// cgroup has one.
    fn rest(&mut self) -> Settings {
        let quota = self.quota();
        let cpu_max = self.settings.cpu_max.filter(|_| !quota);
        Settings { cpu_max, nice: 0, ..self.settings }
    }

    /// Whether the cgroup's quota is at most the CPU limit.
    fn quota(&mut self) -> bool {
        let Some(limit) = self.settings.cpu_max else { return false };
        let Some((version, dir)) = self.dirs.as_ref().and_then(|dirs| dirs.of(Controller::Cpu)) else {
            return false;
        };
        let mut read = |file: &str| self.host.read(dir, file).unwrap_or_default();
        let text = match version {
            Version::V2 => read("cpu.max"),
            Version::V1 => format!("{} {}", read("cpu.cfs_quota_us").trim(), read("cpu.cfs_period_us")),
        };
        let mut numbers = text.split_whitespace().map(|number| number.parse::<u64>().ok());
        let (Some(Some(quota)), Some(Some(period))) = (numbers.next(), numbers.next()) else { return false };
        // Tolerance of 1 %: periods are whole microseconds.
        quota.saturating_mul(1_000_000) / period.max(1) <= limit.saturating_add(limit / 100).saturating_add(1)
    }

    fn look(&mut self, engine: &Engine, group: &Group) -> Report {
        let keep = self.rest();
        if keep != self.kept {
            self.kept = keep;
            group.set(keep);
        }
        group.settle(group.threads_cpu_ns(threads_time(&self.host)));
        let throttled_us = self.dirs.as_ref().and_then(|dirs| dirs.others(&mut self.host).throttled_us);
        Report {
            cpu_ns: process_cpu_time().as_nanos() as u64,
            throttled_ns: group.cpu.throttled_ns() + throttled_us.unwrap_or(0).saturating_mul(1_000),
            quota: self.settings.cpu_max.is_some() && self.kept.cpu_max.is_none(),
            untracked_bytes: self.memory(group),
            reads: group.all_reads(),
            queries: engine.queries().iter().map(|query| used(query)).collect(),
        }
    }

    /// Accounts for memory that no operator has reserved, which counts against the limit as well.
    fn memory(&mut self, group: &Group) -> usize {
        let untracked = |host: &LinuxHost| {
            let more = anonymous(host).saturating_sub(self.empty).saturating_sub(group.memory.used());
            more.saturating_sub(SMALL)
        };
        let mut bytes = untracked(&self.host);
        let limit = self.settings.memory.limit.unwrap_or(usize::MAX);
        if bytes > limit / 10 && self.trimmed.elapsed() > TRIM {
            // This is mostly freed memory that the allocator keeps.
            commensal_host::trim_memory();
            self.trimmed = Instant::now();
            bytes = untracked(&self.host);
        }
        group.memory.set_untracked(bytes);
        bytes
    }
}

/// The cgroup of this process, unless it is the root.
fn own_group(host: &mut LinuxHost) -> Option<GroupDirs> {
    let hierarchies = mounts::hierarchies(host).ok()?;
    let text = host.read_file(Path::new("/proc/self/cgroup")).ok()?;
    let unified = hierarchies.iter().any(|hierarchy| {
        hierarchy.version == Version::V2 && hierarchy.controllers.contains(&Controller::Cpu)
    });
    let path = text.split('\n').find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let here = if unified {
            controllers.is_empty()
        } else {
            controllers.split(',').any(|controller| controller == "cpu")
        };
        here.then(|| path.to_owned())
    })?;
    (path != "/").then(|| GroupDirs::open(host, &hierarchies, &CgroupPath::new(&path)))
}

/// Anonymous and shared memory of this process, in bytes (proc_pid_status(5)).
fn anonymous(host: &LinuxHost) -> usize {
    let text = host.read_file(Path::new("/proc/self/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()
    };
    let kib = field("RssAnon:").unwrap_or(0) + field("RssShmem:").unwrap_or(0);
    kib << 10
}

fn process_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn used(query: &Query) -> QueryUse {
    let (held, peak) = query.group().memory.of(query.number);
    let (local_bytes, remote_bytes) = query.scan_bytes();
    QueryUse {
        number: query.number,
        held,
        peak,
        cpu_ns: query.cpu_ns.load(Relaxed),
        scan_rows: query.scan_rows(),
        local_bytes,
        remote_bytes,
        spilled_bytes: query.spilled_bytes.load(Relaxed),
        unspilled_bytes: query.unspilled_bytes.load(Relaxed),
    }
}
