//! What comes and goes: a source of changes that waits on threads of its own, so that the loop never does.
//!
//! ```text
//! engine ── GET /events ──► thread ── inspects, lists ──┐
//!                                                       ├─► channel of Change ─► the loop reads the facts again
//! cgroup folders ── inotify ──► thread ─────────────────┘
//! ```
//!
//! * A container is told once it runs: before, its runtime still writes the very files that a group's limits go to, and what
//!   was there before would be recorded wrongly.
//! * A connection to the engine that ends is opened again, at growing intervals, and everything is listed anew: nothing that
//!   happened meanwhile is missed. The events are asked for before the list, so nothing falls in between.
//! * The engine is asked on its thread only; one that does not answer holds up nothing else. What it said last stays.
//! * Processes have no events that would be cheap: the loop scans for them.

mod engine;
mod folders;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests make folders and sockets themselves")]
mod tests;

use commensal_core::actual::ActualState;
use commensal_core::group::{GroupSpec, Match};
use commensal_host::Host;
use commensal_sensors::containers::{Container, facts};
use commensal_sensors::processes::{Scanner, Wanted};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a thread waits at most before it looks whether it is to end.
const PATIENCE: Duration = Duration::from_millis(250);

/// Something that may change who is in a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The containers that run, all of them, at the engine of this socket.
    Containers {
        /// Which engine.
        socket: PathBuf,
        /// What it runs.
        running: Vec<Container>,
    },
    /// The engine no longer answers, or not yet; what it said last still holds.
    EngineLost {
        /// Which engine.
        socket: PathBuf,
        /// Why, in words.
        because: String,
    },
    /// The engine answers (again); a list follows.
    EngineBack {
        /// Which engine.
        socket: PathBuf,
    },
    /// A cgroup appeared or went.
    Cgroup {
        /// Its folder.
        folder: PathBuf,
        /// Appeared, or went.
        made: bool,
    },
    /// Cgroups changed faster than could be followed, or cannot be watched: look at everything.
    Cgroups {
        /// Why, in words.
        because: String,
    },
}

/// What to follow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Follow {
    /// Sockets of container engines; empty when no group matches containers.
    pub sockets: Vec<PathBuf>,
    /// Mount points of the hierarchies whose cgroups are watched: one is enough, that of the cpu controller.
    pub mounts: Vec<PathBuf>,
}

/// The threads. They end when this is dropped or the receiver is, as soon as the engine answers or has been silent for two
/// seconds.
#[derive(Debug)]
pub struct Follower {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Follower {
    /// Starts following; changes go to `changes`.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(follow: Follow, changes: &Sender<Change>) -> std::io::Result<Follower> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut follower = Follower { stop, threads: Vec::new() };
        for socket in follow.sockets {
            let (tell, stop) = (changes.clone(), Arc::clone(&follower.stop));
            let run = move || engine::follow(&socket, &tell, &stop);
            follower.threads.push(std::thread::Builder::new().name("engine".to_owned()).spawn(run)?);
        }
        for mount in follow.mounts {
            let (tell, stop) = (changes.clone(), Arc::clone(&follower.stop));
            let run = move || folders::follow(&mount, &tell, &stop);
            follower.threads.push(std::thread::Builder::new().name("cgroups".to_owned()).spawn(run)?);
        }
        Ok(follower)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // One that panicked has said so already.
            let _ = thread.join();
        }
    }
}

/// What the loop knows of members between two looks.
#[derive(Debug, Default)]
pub struct Members {
    /// By socket; nothing before the engine has said what it runs.
    running: BTreeMap<PathBuf, Vec<Container>>,
    lost: BTreeMap<PathBuf, String>,
    scanner: Scanner,
}

impl Members {
    /// Takes a change in.
    pub fn heed(&mut self, change: Change) {
        match change {
            Change::Containers { socket, running } => {
                self.lost.remove(&socket);
                self.running.insert(socket, running);
            }
            Change::EngineLost { socket, because } => drop(self.lost.insert(socket, because)),
            Change::EngineBack { socket } => drop(self.lost.remove(&socket)),
            // The tree is read anew in every look.
            Change::Cgroup { .. } | Change::Cgroups { .. } => {}
        }
    }

    /// Engines that do not answer, and why: problems, as long as a group matches containers.
    #[must_use]
    pub fn lost(&self) -> &BTreeMap<PathBuf, String> {
        &self.lost
    }

    /// Containers and processes that the groups match, into `found`, which has to know already what is ours. Asks no engine.
    pub fn fill(&mut self, host: &dyn Host, specs: &[GroupSpec], found: &mut ActualState) {
        let matches: Vec<&Match> = specs.iter().flat_map(|spec| &spec.matches).collect();
        let containers = facts(host, &found.hierarchies, self.running.values().flatten().cloned());
        found.containers = containers;
        found.containers.retain(|container| matches.iter().any(|one| one.takes_container(container)));
        let answered = self.running.keys().any(|socket| !self.lost.contains_key(socket));
        let of_engine = |one: &&Match| matches!(one, Match::DockerLabel(_) | Match::DockerName(_));
        let needed = matches.iter().any(of_engine);
        found.engine_obstacle = (needed && !answered).then(|| {
            let why =
                self.lost.values().next().cloned().unwrap_or_else(|| "it has not been asked yet".to_owned());
            format!("no container engine answers ({why})")
        });
        let moved: BTreeSet<_> = found.ours.moved.keys().copied().collect();
        let wanted = Wanted { matches: &matches, moved: &moved, hierarchies: &found.hierarchies };
        found.processes = self.scanner.scan(host, &wanted);
    }
}

impl Members {
    /// Whether processes that the groups match have come, gone or moved since `last` was found.
    pub fn processes_differ(&mut self, host: &dyn Host, specs: &[GroupSpec], last: &ActualState) -> bool {
        let matches: Vec<&Match> = specs.iter().flat_map(|spec| &spec.matches).collect();
        let moved: BTreeSet<_> = last.ours.moved.keys().copied().collect();
        let wanted = Wanted { matches: &matches, moved: &moved, hierarchies: &last.hierarchies };
        self.scanner.scan(host, &wanted) != last.processes
    }
}

/// Whether to go on.
fn wanted(stop: &AtomicBool) -> bool {
    !stop.load(Ordering::Relaxed)
}

/// Waits, but not longer than it is wanted.
fn pause(stop: &AtomicBool, time: Duration) {
    let mut left = time;
    while wanted(stop) && !left.is_zero() {
        let step = left.min(PATIENCE);
        std::thread::sleep(step);
        left -= step;
    }
}
