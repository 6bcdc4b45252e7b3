//! The guard: a separate process that puts the machine into its safe state when the agent has died or hangs.
//!
//! The agent connects to the guard's socket and sends its identity and the length of its lease, then keep-alives at
//! intervals shorter than the lease. If the connection closes without a farewell, the agent has died, and the guard
//! acts immediately. If no keep-alive arrives for the length of the lease, the agent counts as hanging: the guard kills
//! it with SIGKILL, then acts.
//!
//! ```text
//! agent ──{"pid":…,"lease_ms":…}\n, then "." each beat, "q" at the end──► guard
//!       ◄──────────────────── "." for each "." ─────────────────────────
//! ```

use crate::safe_record;
use commensal_host::{Host, HostError, Process, Signal, peer};
use commensal_reconcile::{SafeState, bring_safe_state};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::parent_id;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Name of the guard's socket in the state directory.
pub const SOCKET: &str = "guard.sock";
/// Maximum length in bytes of the first line that an agent sends.
const LONGEST_HELLO: u64 = 4 << 10;
/// Interval at which a guard that an agent started checks for its first connection.
const PAUSE: Duration = Duration::from_millis(5);
/// How long the guard waits for the first line.
const HELLO_PATIENCE: Duration = Duration::from_secs(2);
/// Minimum interval between two keep-alives.
const SHORTEST_BEAT: Duration = Duration::from_millis(20);
/// Maximum interval between two keep-alives.
const LONGEST_BEAT: Duration = Duration::from_secs(2);
const BEAT: u8 = b'.';
const FAREWELL: u8 = b'q';

/// Identity of the guarded agent, as the agent sends it. It contains no settings: the records that [`bring_safe_state`]
/// reads define what the guard writes after the agent's death.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// PID of the agent.
    pub pid: u32,
    /// Start time of the agent, so that another process with the same PID is not killed.
    pub start_ticks: u64,
    /// Time without a keep-alive after which the guard acts (ms).
    pub lease_ms: u64,
}

/// The agent's end of the connection. A separate thread sends the keep-alives, so that the guard does not treat a long
/// tick as the agent's death. It sends them only while the agent makes progress.
#[derive(Debug)]
pub struct Link {
    stream: UnixStream,
    beats: Arc<Beats>,
}

/// State shared by the agent and its thread that sends keep-alives.
#[derive(Debug, Default)]
struct Beats {
    over: AtomicBool,
    /// Whether the connection has broken.
    gone: AtomicBool,
    /// Whether the guard has acknowledged no keep-alive for the length of the lease.
    silent: AtomicBool,
}

/// State of the guard, as the agent sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtGuard {
    /// The guard responds.
    Answers,
    /// The guard is connected but does not respond; with its PID, if known.
    Silent(Option<u32>),
    /// The guard has exited, or the connection has broken.
    Gone,
}

impl Link {
    /// Connects to the guard of a state directory, and sends the agent's identity and lease. From then on a thread
    /// sends keep-alives while `pulse` grows.
    ///
    /// # Errors
    /// Returns an error if no guard listens on the socket, or if the guard has just exited.
    pub fn start(state_dir: &Path, hello: &Hello, pulse: Arc<AtomicU64>) -> io::Result<Link> {
        let mut stream = UnixStream::connect(state_dir.join(SOCKET))?;
        let mut line = serde_json::to_vec(hello)?;
        line.push(b'\n');
        stream.set_write_timeout(Some(HELLO_PATIENCE))?;
        stream.write_all(&line)?;
        // A guard that does not read must not block the agent.
        stream.set_nonblocking(true)?;
        let beats = Arc::new(Beats::default());
        let (of_thread, known) = (stream.try_clone()?, Arc::clone(&beats));
        let lease = Duration::from_millis(hello.lease_ms);
        let run = move || beat(of_thread, lease, &pulse, &known);
        std::thread::Builder::new().name("alive".to_owned()).spawn(run)?;
        Ok(Link { stream, beats })
    }

    /// State of the guard.
    #[must_use]
    pub fn guard(&self) -> AtGuard {
        if self.beats.gone.load(Ordering::Relaxed) {
            return AtGuard::Gone;
        }
        match self.beats.silent.load(Ordering::Relaxed) {
            true => AtGuard::Silent(self.pid()),
            false => AtGuard::Answers,
        }
    }

    /// The connection, for a thread that waits for its end.
    #[must_use]
    pub fn connection(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Called when the connection has ended, which the thread that sends the keep-alives notices later.
    pub fn closed(&self) {
        self.beats.gone.store(true, Ordering::Relaxed);
    }

    /// PID of the guard; `None` if unknown.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        peer(&self.stream).and_then(|(pid, _)| u32::try_from(pid).ok())
    }

    /// Asks the guard not to act, because the agent exits normally or another agent replaces it.
    pub fn farewell(mut self) {
        self.beats.over.store(true, Ordering::Relaxed);
        let _ = self.stream.set_nonblocking(false);
        let _ = self.stream.set_write_timeout(Some(HELLO_PATIENCE));
        let _ = self.stream.write_all(&[FAREWELL]);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.beats.over.store(true, Ordering::Relaxed);
    }
}

/// Sends keep-alives while the agent makes progress, and checks whether the guard acknowledges them.
fn beat(mut stream: UnixStream, lease: Duration, pulse: &AtomicU64, beats: &Beats) {
    let pause = (lease / 5).clamp(SHORTEST_BEAT, LONGEST_BEAT);
    let mut seen = None;
    let mut heard = Instant::now();
    while !beats.over.load(Ordering::Relaxed) {
        let now = pulse.load(Ordering::Relaxed);
        if seen.replace(now) != Some(now) {
            match stream.write(&[BEAT]) {
                // The guard does not read: its buffer is full.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(_) => {}
                Err(_) => return beats.gone.store(true, Ordering::Relaxed),
            }
        }
        std::thread::sleep(pause);
        match stream.read(&mut [0; 64]) {
            Ok(0) => return beats.gone.store(true, Ordering::Relaxed),
            Ok(_) => {
                heard = Instant::now();
                beats.silent.store(false, Ordering::Relaxed);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let silent = heard.elapsed() > lease.max(pause * 3);
                beats.silent.store(silent, Ordering::Relaxed);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return beats.gone.store(true, Ordering::Relaxed),
        }
    }
}

/// How the connection to a guarded agent ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The agent exited normally and sent a farewell.
    Farewell,
    /// The agent's connection broke.
    Died,
    /// The agent sent no keep-alive for the length of its lease, and the guard killed it.
    Hung,
}

impl End {
    /// Describes the end in a sentence, for records and logs.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            End::Farewell => "the agent ended",
            End::Died => "the agent died",
            End::Hung => "the agent sent no keep-alive for its lease time and was killed",
        }
    }
}

/// The guard's reaction to the end of an agent.
#[derive(Debug)]
pub struct Acted {
    /// How the agent ended.
    pub end: End,
    /// Time from the end of the agent, or of its lease, to the safe state.
    pub took: Duration,
    /// Result of putting the machine into its safe state.
    pub state: SafeState,
}

/// Listens in the state directory, and replaces the socket of a dead guard.
///
/// # Errors
/// Returns `EADDRINUSE` if another guard listens there.
pub fn listen(host: &mut dyn Host, state_dir: &Path) -> Result<UnixListener, HostError> {
    host.state_dir(state_dir)?;
    host.listen(&state_dir.join(SOCKET))
}

/// Guards one agent after another. `once` is the PID of the process that started the guard. With `once`, the guard
/// exits after its first agent. If that process (its parent) dies before an agent has connected, the guard sets the
/// safe state and exits. Calls `tell` after each reaction.
///
/// # Errors
/// Returns an error if connections can no longer be accepted.
pub fn guard(
    host: &mut dyn Host,
    state_dir: &Path,
    listener: &UnixListener,
    once: Option<u32>,
    tell: &mut dyn FnMut(&Acted),
) -> io::Result<()> {
    listener.set_nonblocking(once.is_some())?;
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if once.is_some() && error.kind() == io::ErrorKind::WouldBlock => {
                // The parent died before it connected: settings of an earlier agent may still be in force.
                if once != Some(parent_id()) {
                    tell(&act(host, state_dir, End::Died, HELLO_PATIENCE));
                    return Ok(());
                }
                std::thread::sleep(PAUSE);
                continue;
            }
            Err(error) => return Err(error),
        };
        let Ok((hello, mut rest)) = greeted(stream) else { continue };
        let agent = host.process(hello.pid).ok().filter(|one| one.start_ticks == hello.start_ticks);
        let (end, last) = watch(host, hello, &mut rest, agent.as_ref());
        if end != End::Farewell {
            tell(&act(host, state_dir, end, Duration::from_millis(last.lease_ms)));
        }
        if once.is_some() {
            return Ok(());
        }
    }
}

/// Sets the safe state, and records the result in the state directory.
fn act(host: &mut dyn Host, state_dir: &Path, end: End, lease: Duration) -> Acted {
    let since = Instant::now();
    let state = bring_safe_state(host, state_dir, lease);
    let took = since.elapsed();
    safe_record::record(host, state_dir, end.words(), took, &state);
    Acted { end, took, state }
}

fn greeted(stream: UnixStream) -> io::Result<(Hello, BufReader<UnixStream>)> {
    stream.set_read_timeout(Some(HELLO_PATIENCE))?;
    let mut reader = BufReader::new(stream);
    let hello = read_hello(&mut reader, Vec::new())?;
    Ok((hello, reader))
}

fn read_hello(reader: &mut BufReader<UnixStream>, mut line: Vec<u8>) -> io::Result<Hello> {
    reader.by_ref().take(LONGEST_HELLO).read_until(b'\n', &mut line)?;
    Ok(serde_json::from_slice(&line)?)
}

/// Waits for the end of the agent. Returns how the agent ended, with the last identity that it sent.
fn watch(
    host: &mut dyn Host,
    mut hello: Hello,
    reader: &mut BufReader<UnixStream>,
    agent: Option<&Process>,
) -> (End, Hello) {
    loop {
        let lease = Duration::from_millis(hello.lease_ms.max(1));
        let _ = reader.get_ref().set_read_timeout(Some(lease));
        let mut byte = [0; 1];
        match reader.read(&mut byte) {
            Ok(1) if byte[0] == BEAT => {
                // The response shows the agent that the guard is alive. A failure is ignored: the agent need not read
                // it.
                let _ = reader.get_ref().set_write_timeout(Some(PAUSE));
                let mut answers = reader.get_ref();
                let _ = answers.write(&[BEAT]);
            }
            Ok(1) if byte[0] == FAREWELL => return (End::Farewell, hello),
            Ok(1) => match read_hello(reader, byte.to_vec()) {
                Ok(newer) => hello = newer,
                Err(_) => return (End::Died, hello),
            },
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                if let Some(agent) = agent {
                    let _ = host.signal(agent, Signal::KILL);
                }
                return (End::Hung, hello);
            }
            Ok(_) | Err(_) => return (End::Died, hello),
        }
    }
}
