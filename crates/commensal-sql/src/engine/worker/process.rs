//! The worker's side: a process that runs the queries of one group. The server sends the queries to this process.
//!
//! `commensal run` has put the process into the group's cgroup, so that the group's limits apply to all its threads:
//! those of the queries, of the runtime and of the allocator. The process does not enforce the limits again that the
//! kernel enforces. The exception is the memory limit, because a query that fails with a message is better than a
//! process that the kernel OOM-kills.

use super::super::error::Error;
use super::super::execute::{self, Held};
use super::super::group::Group;
use super::super::query::{Identity, Query};
use super::super::session;
use super::super::settings::Settings;
use super::super::terms::QueryLimits;
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
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, BufWriter};
use tokio::net::UnixStream;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::sync::oneshot;

/// While unreserved memory is more than a tenth of the limit, the worker returns freed memory to the kernel, at most once
/// per this interval. Unreserved memory is memory of the process that no operator has reserved.
const TRIM: Duration = Duration::from_secs(1);

/// Unreserved memory below this is ignored, in bytes.
const SMALL: usize = 16 << 20;

/// Runs the worker of a group until the server closes the socket, which is the worker's standard input.
///
/// # Errors
/// The standard input is not a server's socket, or a folder cannot be opened.
pub fn run(options: Options, id: u64, name: &str) -> Result<(), Error> {
    let words =
        |error: io::Error| Error::Engine(format!("the worker cannot communicate with its server: {error}"));
    let control = Arc::new(io::stdin().as_fd().try_clone_to_owned().map_err(words)?);
    let Some((ToWorker::Settings(settings), _)) = wire::receive(&*control).map_err(words)? else {
        return Err(words(io::Error::other("the server has sent no settings")));
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("control")
        .enable_all()
        .build()
        .map_err(words)?;
    let outcome = runtime.block_on(serve(options, (id, name), settings, control));
    // Running queries are aborted when the process exits.
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
            // The final usage must be reported before the user is notified that the query has finished.
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

/// Sends a report; returns whether the server has received it, that is, whether its end of the socket is open.
fn listens(control: &OwnedFd, report: Report) -> Result<bool, Error> {
    match wire::send(control, &ToServer::Report(report), None) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
            Ok(false)
        }
        Err(error) => Err(Error::Engine(format!("cannot send a report to the server: {error}"))),
    }
}

/// Channel that announces a finished query before the query's user is notified. The reply means that the worker has
/// sent the final usage to the server.
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
            Err(error) => tracing::warn!("cannot use the socket of a query: {error}"),
        }
    });
}

async fn answer(engine: &Arc<Engine>, group: &Arc<Group>, stream: UnixStream, finished: &Finished) {
    let (mut from, to) = stream.into_split();
    let mut to = BufWriter::with_capacity(64 << 10, to);
    let Ok(order) = wire::read_order(&mut from).await else { return };
    let identity = Identity {
        number: order.number,
        id: order.id.clone(),
        connection: 0,
        user: UserName { name: order.user.clone(), host: order.host.clone() },
        sql: String::new(),
    };
    // The server enforces the time limit.
    let limits = QueryLimits {
        slots: order.slots,
        memory: order.memory_limit,
        timeout: None,
        execution: None,
        slow_after: None,
    };
    let query = Query::new(identity, limits, group.accounts());
    let gone = Arc::clone(&query);
    let watch = tokio::spawn(async move {
        // The server sends nothing more on this socket, so a read returns only when the server closes it.
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

/// Runs a query, and sends its rows.
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
        // The server closes the socket to cancel the query.
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

/// Resource accounting of the process. Also chooses the limits that this process must enforce because the kernel does
/// not.
struct Account {
    host: LinuxHost,
    /// The process's cgroup, if it has one of its own.
    dirs: Option<GroupDirs>,
    settings: Settings,
    kept: Settings,
    /// Memory of the process before its first query, in bytes.
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

    /// Returns the settings that this process enforces. The nice value is 0, because the kernel weights the process as
    /// a whole. The CPU limit is omitted if the cgroup's quota enforces it.
    fn rest(&mut self) -> Settings {
        let quota = self.quota();
        let cpu_max = self.settings.cpu_max.filter(|_| !quota);
        Settings { cpu_max, nice: 0, ..self.settings }
    }

    /// Whether the cgroup has a quota that is at most the CPU limit.
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
        // Tolerates 1 %, because quotas and periods are whole microseconds.
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
            queries: engine.queries.all().iter().map(|query| used(query)).collect(),
        }
    }

    /// Updates the memory that no operator has reserved, which counts against the limit, too. Returns it in bytes.
    fn memory(&mut self, group: &Group) -> usize {
        let untracked = |host: &LinuxHost| {
            let more = anonymous(host).saturating_sub(self.empty).saturating_sub(group.memory.used());
            more.saturating_sub(SMALL)
        };
        let mut bytes = untracked(&self.host);
        let limit = self.settings.memory.limit.unwrap_or(usize::MAX);
        if bytes > limit / 10 && self.trimmed.elapsed() > TRIM {
            // This is mostly freed memory that the allocator has kept.
            commensal_host::trim_memory();
            self.trimmed = Instant::now();
            bytes = untracked(&self.host);
        }
        group.memory.set_untracked(bytes);
        bytes
    }
}

/// Returns the cgroup of this process, unless it is the root.
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

/// Returns the anonymous and shared memory of this process, in bytes (proc_pid_status(5)).
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
    let (number, usage) = (query.identity.number, &query.usage);
    let (held, peak) = query.group().memory.of(number);
    let (local_bytes, remote_bytes) = query.scan_bytes();
    QueryUse {
        number,
        held,
        peak,
        cpu_ns: usage.cpu_ns(),
        scan_rows: usage.scan_rows(),
        local_bytes,
        remote_bytes,
        spilled_bytes: usage.spilled_bytes(),
        unspilled_bytes: usage.unspilled_bytes(),
        waits: query.waits(),
    }
}
