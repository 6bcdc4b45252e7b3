//! The built-in work of a cell, which is a cgroup that stands for a VM. There are as many worker threads as the cell
//! has vCPUs. The workers run the sessions as tasks, like a guest's scheduler. The module implements the
//! [protocol](crate::protocol) of cells.

mod barrier;
mod stream;

use crate::error::DensityError;
use barrier::Barrier;
use commensal_lab::workload::burn::CHUNK_ITERATIONS;
use commensal_lab::workload::cpu::burn;
use std::collections::VecDeque;
use std::hint::black_box;
use std::io::{BufRead, Write};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Number of chunks of work between two barriers.
const STEP_CHUNKS: u32 = 5;
/// How long an idle worker sleeps before it checks for work again.
const NAP: Duration = Duration::from_micros(500);

/// Parameters of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CellOptions {
    /// Whether there is a barrier over all cells after each step.
    pub barrier: bool,
    /// Maximum number of worker threads.
    pub vcpu: u32,
    /// Number of sessions.
    pub sessions: u32,
    /// Number of chunks or steps of each session.
    pub work: u32,
    /// Index of this cell, from 0, in the order of the ports.
    pub cell: u16,
    /// Size in bytes of the arrays that each worker copies; each worker has two. `None` if the workers compute instead.
    pub stream: Option<usize>,
    /// Time after which a datagram is resent if no acknowledgement has arrived.
    pub timeout: Duration,
}

/// A cell uses only its own sockets and pipes, so one message fits every I/O error.
impl From<std::io::Error> for DensityError {
    fn from(error: std::io::Error) -> DensityError {
        DensityError::of("the cell cannot continue", &error)
    }
}

/// The next chunk of work of a session.
#[derive(Debug, Clone, Copy)]
struct Task {
    session: u32,
    step: u32,
    chunks: u32,
}

/// State shared by the workers.
struct State {
    runnable: VecDeque<Task>,
    /// Number of unfinished sessions.
    left: u32,
    barrier: Option<Barrier>,
}

/// Runs the work of one cell.
///
/// # Errors
/// Returns an error when the conductor sends an unexpected line, or when a socket, thread or pipe fails.
pub fn run(options: CellOptions) -> Result<(), DensityError> {
    let CellOptions { vcpu, sessions, work, .. } = options;
    if vcpu == 0 || sessions == 0 || work == 0 {
        return Err(DensityError::new("a cell needs at least one vCPU, one session and one unit of work"));
    }
    if let Some(bytes) = options.stream {
        return stream::run(options, bytes);
    }
    let socket = if options.barrier { Some(UdpSocket::bind("127.0.0.1:0")?) } else { None };
    if let Some(socket) = &socket {
        socket.set_nonblocking(true)?;
        say(&format!("port {}", socket.local_addr()?.port()))?;
    }
    say("ready")?;
    let ports = wait_for_go()?;
    let barrier = socket.map(|socket| Barrier::new(socket, &ports, options));
    let begun = Instant::now();
    let chunks = if options.barrier { STEP_CHUNKS } else { work };
    let task = |session| Task { session, step: 0, chunks };
    let state = Mutex::new(State { runnable: (0..sessions).map(task).collect(), left: sessions, barrier });
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<(), DensityError> {
        // More workers than sessions would be idle.
        for worker in 1..vcpu.min(sessions) {
            let name = format!("vcpu-{worker}");
            std::thread::Builder::new()
                .name(name)
                .spawn_scoped(scope, || worker_loop(&state, options, &ended))?;
        }
        worker_loop(&state, options, &ended);
        Ok(())
    })?;
    let warnings = lock(&state).barrier.as_ref().map(|barrier| (barrier.warnings, barrier.retries));
    if let Some((warnings, retries)) = warnings {
        say(&format!("warn net {warnings}"))?;
        say(&format!("retries {retries}"))?;
    }
    say(&format!("done {:.6}", begun.elapsed().as_secs_f64()))?;
    serve_until_end(&state)
}

/// Waits for the conductor's `go` line and returns the ports of all cells.
fn wait_for_go() -> Result<Vec<u16>, DensityError> {
    let mut line = String::new();
    // The lock on standard input is held only here, because `serve_until_end` takes it later.
    std::io::stdin().lock().read_line(&mut line)?;
    ports(&line)
}

/// Continues to respond to the other cells until the conductor closes this cell's input.
fn serve_until_end(state: &Mutex<State>) -> Result<(), DensityError> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if lock(state).barrier.is_some() {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    serve(&mut lock(state), 0);
                    std::thread::sleep(NAP);
                }
            });
        }
        let ended = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        over.store(true, Ordering::Relaxed);
        ended.map(|_| ()).map_err(DensityError::from)
    })
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn worker_loop(state: &Mutex<State>, options: CellOptions, ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        let task = {
            let mut state = lock(state);
            serve(&mut state, options.work);
            if state.left == 0 {
                ended.store(true, Ordering::Relaxed);
            }
            state.runnable.pop_front()
        };
        let Some(task) = task else {
            std::thread::sleep(NAP);
            continue;
        };
        black_box(burn(CHUNK_ITERATIONS));
        let mut state = lock(state);
        match task.chunks {
            1 => match &mut state.barrier {
                Some(barrier) => barrier.arrive(task.session, task.step),
                None => state.left -= 1,
            },
            // The next chunk is added at the end of the queue, so that the sessions take turns on the vCPUs.
            chunks => state.runnable.push_back(Task { chunks: chunks - 1, ..task }),
        }
    }
}

/// Responds to datagrams, resends unacknowledged datagrams, and continues the sessions whose barrier is complete. Each
/// session has `work` steps.
fn serve(state: &mut State, work: u32) {
    let Some(barrier) = &mut state.barrier else { return };
    for (session, step) in barrier.serve(Instant::now()) {
        if step + 1 >= work {
            state.left = state.left.saturating_sub(1);
        } else {
            state.runnable.push_back(Task { session, step: step + 1, chunks: STEP_CHUNKS });
        }
    }
}

fn say(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

fn ports(line: &str) -> Result<Vec<u16>, DensityError> {
    let refused = || {
        let said = line.trim_end();
        DensityError::new(format!(
            "the conductor sent {said:?}, but a cell expects \"go\" and the ports of all cells"
        ))
    };
    let rest = line.trim_end().strip_prefix("go").ok_or_else(refused)?;
    rest.split_whitespace().map(|port| port.parse().map_err(|_| refused())).collect()
}
