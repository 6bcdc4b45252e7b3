//! The guard: a separate process that puts the machine into its safe state when the agent is gone or hangs.
//!
//! The agent connects to the guard's socket and sends its identity and the length of its lease, then signs of life more
//! often than that. If the connection closes without a farewell, the agent is dead, and the guard acts at once. If no
//! sign of life comes for the lease time, the agent hangs, and the guard kills it with SIGKILL and acts.
//!
//! ```text
//! agent ──{"pid":…,"lease_ms":…}\n, then "." each beat, "q" at the end──► guard
//!       ◄──────────────────── "." for each "." ─────────────────────────
//! ```

use commensal_host::{Host, HostError, Process, Signal, peer};
use commensal_reconcile::{SafeState, bring_safe_state};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::parent_id;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// File name of the socket in the state directory.
pub const SOCKET: &str = "guard.sock";
/// Maximum length of the first line, bytes.
const LONGEST_HELLO: u64 = 4 << 10;
/// How often a guard that was started by an agent checks for its first connection.
const PAUSE: Duration = Duration::from_millis(5);
/// How long the guard waits for the first line.
const HELLO_PATIENCE: Duration = Duration::from_secs(2);
/// Shortest interval between two signs of life.
const SHORTEST_BEAT: Duration = Duration::from_millis(20);
const LONGEST_BEAT: Duration = Duration::from_millis(500);
const BEAT: u8 = b'.';
const FAREWELL: u8 = b'q';

/// Identity of the guarded agent. What to do after its death is on record ([`bring_safe_state`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// PID of the agent.
    pub pid: u32,
    /// Start time of the agent, so that another process with the same PID is not killed.
    pub start_ticks: u64,
    /// How long it may be silent, ms.
    pub lease_ms: u64,
}

/// The agent's end of the connection. A separate thread sends the signs of life, so that a long tick is not taken for
/// the agent's death; it sends them only while the agent makes progress.
#[derive(Debug)]
pub struct Link {
    stream: UnixStream,
    beats: Arc<Beats>,
}

/// State shared by the thread and the agent.
#[derive(Debug, Default)]
struct Beats {
    over: AtomicBool,
    /// The connection broke.
    gone: AtomicBool,
    /// The guard has not answered any sign of life for the lease time.
    silent: AtomicBool,
}

/// State of the guard at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtGuard {
    /// The guard answers.
    Answers,
    /// The guard is connected but does not answer; with its PID.
    Silent(Option<u32>),
    /// The guard is gone.
    Gone,
}

impl Link {
    /// Connects to the guard of a state directory and sends the agent's identity and lease. From then on signs of life
    /// are sent, as long as `pulse` grows.
    ///
    /// # Errors
    /// When nothing listens there, or the guard is gone already.
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

    /// PID of the guard.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        peer(&self.stream).and_then(|(pid, _)| u32::try_from(pid).ok())
    }

    /// Tells the guard to do nothing: the agent exits normally, or another one takes over.
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

/// Sends signs of life while the agent makes progress, and checks whether the guard answers them.
fn beat(mut stream: UnixStream, lease: Duration, pulse: &AtomicU64, beats: &Beats) {
    let pause = (lease / 5).clamp(SHORTEST_BEAT, LONGEST_BEAT);
    let mut seen = None;
    let mut heard = Instant::now();
    while !beats.over.load(Ordering::Relaxed) {
        let now = pulse.load(Ordering::Relaxed);
        if seen.replace(now) != Some(now) {
            match stream.write(&[BEAT]) {
                // The guard has a full buffer of unread signs of life.
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

/// How a guarded agent ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Normally, with a farewell.
    Farewell,
    /// Its connection broke.
    Died,
    /// It was silent for its lease time, and the guard killed it.
    Hung,
}

/// What the guard did after an agent's end.
#[derive(Debug)]
pub struct Acted {
    /// How the agent ended.
    pub end: End,
    /// Time from the end of the agent (or of its lease) to the safe state.
    pub took: Duration,
    /// Result of putting the machine into its safe state.
    pub state: SafeState,
}

/// Listens in the state directory. A stale socket is replaced.
///
/// # Errors
/// `EADDRINUSE` when another guard listens there.
pub fn listen(host: &mut dyn Host, state_dir: &Path) -> Result<UnixListener, HostError> {
    host.state_dir(state_dir)?;
    host.listen(&state_dir.join(SOCKET))
}

/// Guards one agent after the other. With `once`, the PID of the process that started it, the guard exits after its
/// first agent, or when that process ends before an agent has connected (it is then no longer the parent); the safe
/// state is applied in this case too. `tell` is called with what was done.
///
/// # Errors
/// When no more connections can be accepted.
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
                // The starter died before it connected: settings of an earlier agent may still be in force.
                if once != Some(parent_id()) {
                    let since = Instant::now();
                    let state = bring_safe_state(host, state_dir, HELLO_PATIENCE);
                    tell(&Acted { end: End::Died, took: since.elapsed(), state });
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
            let since = Instant::now();
            let state = bring_safe_state(host, state_dir, Duration::from_millis(last.lease_ms));
            tell(&Acted { end, took: since.elapsed(), state });
        }
        if once.is_some() {
            return Ok(());
        }
    }
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

/// Waits for the end of the agent; returns the last identity that it sent.
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
                // Answers, so that the agent knows that the guard is alive. An agent that does not read the answers
                // does not matter.
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
