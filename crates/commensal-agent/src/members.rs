//! Reports members that come and go: it waits on separate threads, so that the loop never does.
//!
//! ```text
//! engine ── GET /events ──► thread ── inspects, lists ──┐
//!                                                       ├─► channel of Change ─► the loop reads the facts again
//! cgroup folders ── inotify ──► thread ─────────────────┘
//! ```
//!
//! * A container is reported once it runs: before that, its runtime still writes the files that a group's limits go to,
//!   and wrong original values would be recorded.
//! * A lost connection to the engine is reopened with a growing back-off, and all containers are listed again, so that
//!   nothing is missed. The events are requested before the list, so nothing falls in between.
//! * Only a separate thread talks to the engine; an engine that does not answer delays nothing else. Its last list
//!   stays valid.
//! * Processes have no cheap events: the loop scans for them.

mod engine;
mod folders;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests make folders and sockets themselves")]
mod tests;

use arc_swap::ArcSwapOption;
use commensal_core::actual::{ActualState, CgroupPath};
use commensal_core::desired::{DesiredState, takes_cgroup};
use commensal_core::group::{GroupSpec, Match};
use commensal_host::{Host, Waker};
use commensal_sensors::containers::{Container, facts};
use commensal_sensors::processes::{Scanner, Wanted};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

/// How often a thread that waits for an engine checks whether it must stop.
const PATIENCE: Duration = Duration::from_millis(250);

/// Cgroups of which the plan may depend when they are created or removed: a group matches them, or they are above, in or below a
/// member or among commensal's groups.
#[derive(Debug)]
pub struct Interest {
    matches: Vec<Match>,
    parents: [CgroupPath; 2],
    members: BTreeSet<CgroupPath>,
}

impl Interest {
    /// What the groups and their current members are interested in.
    #[must_use]
    pub fn of(specs: &[GroupSpec], desired: &DesiredState) -> Interest {
        let members = desired.groups.iter().flat_map(|group| &group.members);
        Interest {
            matches: specs.iter().flat_map(|spec| &spec.matches).cloned().collect(),
            parents: [desired.online_parent.clone(), desired.offline_parent.clone()],
            members: members.map(|member| member.path.clone()).collect(),
        }
    }

    /// Whether it takes this cgroup.
    #[must_use]
    pub fn takes(&self, path: &CgroupPath) -> bool {
        let below =
            || self.members.range(path..).take_while(|member| member.as_str().starts_with(path.as_str()));
        self.parents.iter().any(|parent| parent.contains(path))
            || self.members.contains(path)
            || path.ancestors().iter().any(|above| self.members.contains(above))
            // What is below a path sorts after it, with others between that only begin like it.
            || below().any(|member| path.contains(member))
            || self.matches.iter().any(|one| takes_cgroup(one, path))
    }
}

/// Where the threads report changes: a channel, and what ends the wait of who reads it. A cgroup that nobody is interested in is
/// reported, but wakes nobody.
#[derive(Debug, Clone)]
pub struct Reports {
    changes: Sender<Change>,
    waker: Waker,
    /// `None` while everything matters.
    interest: Arc<ArcSwapOption<Interest>>,
}

impl Reports {
    /// Reports that go to `changes`.
    #[must_use]
    pub fn new(changes: Sender<Change>, waker: Waker) -> Reports {
        Reports { changes, waker, interest: Arc::default() }
    }

    /// From now on these cgroups matter; `None` is all.
    pub fn mind(&self, interest: Option<Interest>) {
        self.interest.store(interest.map(Arc::new));
    }

    /// Whether a change may change the plan.
    #[must_use]
    pub fn matters(&self, change: &Change) -> bool {
        match (change, self.interest.load().as_deref()) {
            (Change::Cgroup { path, .. }, Some(interest)) => interest.takes(path),
            _ => true,
        }
    }

    /// Reports a change; `false` when nobody reads them any more.
    fn send(&self, change: Change) -> bool {
        let matters = self.matters(&change);
        let sent = self.changes.send(change).is_ok();
        if matters {
            self.waker.wake();
        }
        sent
    }
}

/// An event that may change the members of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The complete list of running containers of the engine at this socket.
    Containers {
        /// Socket of the engine.
        socket: PathBuf,
        /// Its running containers.
        running: Vec<Container>,
    },
    /// The engine does not answer (yet, or any more); its last list stays valid.
    EngineLost {
        /// Socket of the engine.
        socket: PathBuf,
        /// Why, in words.
        because: String,
    },
    /// The engine answers (again); a list follows.
    EngineBack {
        /// Socket of the engine.
        socket: PathBuf,
    },
    /// A cgroup was created or removed.
    Cgroup {
        /// Its directory.
        folder: PathBuf,
        /// Its path in the hierarchy.
        path: CgroupPath,
        /// True if created, false if removed.
        made: bool,
    },
    /// Cgroups changed too fast to follow, or cannot be watched: everything must be read again.
    Cgroups {
        /// Why, in words.
        because: String,
    },
}

/// The sources to follow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Follow {
    /// Sockets of container engines; empty when no group matches containers.
    pub sockets: Vec<PathBuf>,
    /// Mount points of the hierarchies whose cgroups are watched: one is enough, that of the cpu controller.
    pub mounts: Vec<PathBuf>,
}

/// The threads. They end when this is dropped, as soon as the engine answers or has been silent for two
/// seconds.
#[derive(Debug)]
pub struct Follower {
    stop: Arc<AtomicBool>,
    /// Rung when `stop` is set.
    waker: Waker,
    threads: Vec<JoinHandle<()>>,
}

impl Follower {
    /// Starts following; changes go to `reports`.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(follow: Follow, reports: &Reports) -> std::io::Result<Follower> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut follower = Follower { stop, waker: Waker::new()?, threads: Vec::new() };
        for socket in follow.sockets {
            let (reports, stop) = (reports.clone(), Arc::clone(&follower.stop));
            let run = move || engine::follow(&socket, &reports, &stop);
            follower.threads.push(std::thread::Builder::new().name("engine".to_owned()).spawn(run)?);
        }
        for mount in follow.mounts {
            let (reports, stop, waker) =
                (reports.clone(), Arc::clone(&follower.stop), follower.waker.clone());
            let run = move || folders::follow(&mount, &reports, &stop, &waker);
            follower.threads.push(std::thread::Builder::new().name("cgroups".to_owned()).spawn(run)?);
        }
        Ok(follower)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        for thread in self.threads.drain(..) {
            // A thread that panicked has already printed its message.
            let _ = thread.join();
        }
    }
}

/// The loop's knowledge of members between two readings.
#[derive(Debug, Default)]
pub struct Members {
    /// Running containers by socket; empty until the engine has listed them.
    running: BTreeMap<PathBuf, Vec<Container>>,
    lost: BTreeMap<PathBuf, String>,
    scanner: Scanner,
}

impl Members {
    /// Processes an event.
    pub fn heed(&mut self, change: Change) {
        match change {
            Change::Containers { socket, running } => {
                self.lost.remove(&socket);
                self.running.insert(socket, running);
            }
            Change::EngineLost { socket, because } => drop(self.lost.insert(socket, because)),
            Change::EngineBack { socket } => drop(self.lost.remove(&socket)),
            // The cgroup tree is read again in every round.
            Change::Cgroup { .. } | Change::Cgroups { .. } => {}
        }
    }

    /// Engines that do not answer, and why: a problem, as long as a group matches containers.
    #[must_use]
    pub fn lost(&self) -> &BTreeMap<PathBuf, String> {
        &self.lost
    }

    /// Adds the containers and processes that the groups match to `found`, which must already contain what commensal
    /// created. Does not query any engine.
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
    /// Whether processes that the groups match have started, exited or moved since `last` was found.
    pub fn processes_differ(&mut self, host: &dyn Host, specs: &[GroupSpec], last: &ActualState) -> bool {
        let matches: Vec<&Match> = specs.iter().flat_map(|spec| &spec.matches).collect();
        let moved: BTreeSet<_> = last.ours.moved.keys().copied().collect();
        let wanted = Wanted { matches: &matches, moved: &moved, hierarchies: &last.hierarchies };
        self.scanner.scan(host, &wanted) != last.processes
    }
}

/// Whether the thread should continue.
fn wanted(stop: &AtomicBool) -> bool {
    !stop.load(Ordering::Relaxed)
}

/// Waits for `time`, or until the thread must stop.
fn pause(stop: &AtomicBool, time: Duration) {
    let mut left = time;
    while wanted(stop) && !left.is_zero() {
        let step = left.min(PATIENCE);
        std::thread::sleep(step);
        left -= step;
    }
}
