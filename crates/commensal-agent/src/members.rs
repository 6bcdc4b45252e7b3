//! Reports members of groups that appear and disappear. Separate threads wait for the events, so that the agent's loop
//! need not wait.
//!
//! ```text
//! engine ── GET /events ──► thread ── inspects, lists ──┐
//!                                                       ├─► channel of Change ─► the loop reads the facts again
//! cgroup folders ── inotify ──► thread ─────────────────┘
//! ```
//!
//! * A container is reported only when it runs. Before that, the container runtime still writes the files of a group's
//!   limits, so the agent would record wrong original values.
//! * After a lost connection, the thread connects to the engine again with an increasing back-off. It subscribes to
//!   events before it lists all containers, so that it misses no event in between.
//! * Only a separate thread communicates with the engine, so an engine that does not respond delays nothing else. The
//!   engine's last list remains valid.
//! * The kernel has no cheap events for processes, so the loop scans all processes.

mod engine;
mod folders;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests make folders and sockets themselves")]
mod tests;

use arc_swap::ArcSwapOption;
use commensal_core::actual::{ActualState, CgroupPath};
use commensal_core::desired::{DesiredState, literal_prefix, takes_cgroup};
use commensal_core::group::{GroupSpec, Match};
use commensal_core::member::EngineReport;
use commensal_host::{Host, Waker};
use commensal_sensors::containers::{Container, facts};
use commensal_sensors::processes::{Scanner, Wanted};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval at which a thread that waits for an engine checks whether it must stop.
const PATIENCE: Duration = Duration::from_millis(250);

/// The cgroups whose creation or removal may change the plan: those that a group matches, those above, in or below a
/// member, and those in the parents of commensal's own cgroups.
#[derive(Debug)]
pub struct Interest {
    /// The matches that select cgroups by path, each with its [`literal_prefix`].
    matches: Vec<(Box<str>, Match)>,
    parents: [CgroupPath; 2],
    members: BTreeSet<CgroupPath>,
}

impl Interest {
    /// The cgroups that are relevant for these groups and their current members.
    #[must_use]
    pub fn of(specs: &[GroupSpec], desired: &DesiredState) -> Interest {
        let members = desired.groups.iter().flat_map(|group| &group.members);
        let by_path =
            |one: &&Match| matches!(one, Match::Cgroup(_) | Match::Systemd(_) | Match::Kubernetes(_));
        let matches = specs.iter().flat_map(|spec| &spec.matches).filter(by_path);
        Interest {
            matches: matches.map(|one| (literal_prefix(one).into(), one.clone())).collect(),
            parents: [desired.online_parent.clone(), desired.offline_parent.clone()],
            members: members.map(|member| member.path.clone()).collect(),
        }
    }

    /// Whether the creation or removal of this cgroup may change the plan.
    #[must_use]
    pub fn takes(&self, path: &CgroupPath) -> bool {
        let text = path.as_str();
        self.parents.iter().any(|parent| parent.contains(path))
            || self.is_above_or_in_a_member(path)
            || self.matches.iter().any(|(prefix, one)| text.starts_with(&**prefix) && takes_cgroup(one, path))
    }

    /// Whether the creation or removal of a cgroup below this one may change the plan. If not, nothing below this cgroup
    /// needs to be watched.
    #[must_use]
    pub fn may_take_below(&self, path: &CgroupPath) -> bool {
        let text = path.as_str();
        let contains = |other: &str| other.strip_prefix(text).is_some_and(|rest| rest.starts_with('/'));
        let selects_below = |one: &Match, prefix: &str| match one {
            // All ancestors of a unit of the machine's systemd are slices.
            Match::Systemd(_) => path.parts().all(|part| part.ends_with(".slice")),
            // Pods are matched at any depth.
            Match::Kubernetes(_) => true,
            // Without wildcards, the pattern selects a single path.
            Match::Cgroup(pattern) if prefix == pattern.as_str() => contains(prefix),
            _ => contains(prefix) || text.starts_with(prefix) || prefix.strip_suffix('/') == Some(text),
        };
        text == "/"
            || self.parents.iter().any(|parent| parent.contains(path) || path.contains(parent))
            || self.is_above_or_in_a_member(path)
            || self.matches.iter().any(|(prefix, one)| selects_below(one, prefix))
    }

    /// Whether the cgroup is a member, or above or below one.
    fn is_above_or_in_a_member(&self, path: &CgroupPath) -> bool {
        let text = path.as_str();
        // The root, and every other ancestor.
        let mut above = text.match_indices('/').map(|(at, _)| &text[..at.max(1)]);
        // Sorted like this, the path itself comes first, then all paths below it, mixed with paths that only begin with
        // the same text, such as `/a-b` for `/a`.
        let from = self.members.range::<CgroupPath, _>(path..);
        above.any(|above| self.members.contains(above))
            || from.take_while(|member| member.as_str().starts_with(text)).any(|member| path.contains(member))
    }
}

/// The channel to which the threads report changes, with the waker of its reader. A change to an irrelevant cgroup does
/// not wake the reader.
#[derive(Debug, Clone)]
pub struct Reports {
    changes: Sender<Change>,
    waker: Waker,
    /// The relevant cgroups; `None` means all.
    interest: Arc<ArcSwapOption<Interest>>,
}

impl Reports {
    /// Creates reports that are sent to `changes`.
    #[must_use]
    pub fn new(changes: Sender<Change>, waker: Waker) -> Reports {
        Reports { changes, waker, interest: Arc::default() }
    }

    /// Sets the relevant cgroups; `None` means every cgroup whose events are seen.
    pub fn mind(&self, interest: Option<Interest>) {
        self.interest.store(interest.map(Arc::new));
    }

    /// The relevant cgroups, as in [`Reports::mind`].
    fn interest(&self) -> Option<Arc<Interest>> {
        self.interest.load_full()
    }

    /// Whether a change can affect the plan.
    #[must_use]
    pub fn matters(&self, change: &Change) -> bool {
        match (change, self.interest.load().as_deref()) {
            (Change::Cgroup { path, .. }, Some(interest)) => interest.takes(path),
            _ => true,
        }
    }

    /// Reports a change; returns `false` if the channel's reader no longer exists.
    fn send(&self, change: Change) -> bool {
        let matters = self.matters(&change);
        let sent = self.changes.send(change).is_ok();
        if matters {
            self.waker.wake();
        }
        sent
    }
}

/// Why an engine does not respond.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The reason, as readable text.
    pub because: String,
    /// Whether the engine's socket does not exist. Most machines have only one of the default engines.
    pub absent: bool,
}

/// An event that may change the members of groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The complete list of running containers of the engine at this socket.
    Containers {
        /// Path of the container engine's socket.
        socket: PathBuf,
        /// The engine's running containers.
        running: Vec<Container>,
    },
    /// The engine does not respond. Its last list remains valid.
    EngineLost {
        /// Path of the container engine's socket.
        socket: PathBuf,
        /// Why it does not respond.
        why: Lost,
    },
    /// The engine responds again. Its list of containers follows as the next change.
    EngineBack {
        /// Path of the container engine's socket.
        socket: PathBuf,
    },
    /// A cgroup was created or removed.
    Cgroup {
        /// Directory of the cgroup.
        folder: PathBuf,
        /// Path of the cgroup in its hierarchy.
        path: CgroupPath,
        /// True if the cgroup was created, false if it was removed.
        made: bool,
    },
    /// Cgroups change too fast for the watch, or cannot be watched: the reader must read all of them again.
    Cgroups {
        /// The reason if a person can remove it, as readable text.
        because: Option<String>,
    },
    /// All cgroups are watched again.
    Watched,
}

/// The container engines and cgroup hierarchies that report events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Follow {
    /// Sockets of container engines; empty if no group matches containers.
    pub sockets: Vec<PathBuf>,
    /// Mount points of the hierarchies whose cgroups are watched. One is enough: that of the CPU controller.
    pub mounts: Vec<PathBuf>,
}

/// The threads that follow the sources. They end when this value is dropped, as soon as the engine responds or has been
/// silent for two seconds.
#[derive(Debug)]
pub struct Follower {
    stop: Arc<AtomicBool>,
    /// Used to wake the threads that watch hierarchies.
    wakers: Vec<Waker>,
    threads: Vec<JoinHandle<()>>,
}

impl Follower {
    /// Starts the threads, which send changes to `reports`.
    ///
    /// # Errors
    /// Returns an error if a thread cannot be started.
    pub fn start(follow: Follow, reports: &Reports) -> std::io::Result<Follower> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut follower = Follower { stop, wakers: Vec::new(), threads: Vec::new() };
        for socket in follow.sockets {
            let (reports, stop) = (reports.clone(), Arc::clone(&follower.stop));
            let run = move || engine::follow(&socket, &reports, &stop);
            follower.threads.push(std::thread::Builder::new().name("engine".to_owned()).spawn(run)?);
        }
        for mount in follow.mounts {
            let waker = Waker::new()?;
            follower.wakers.push(waker.clone());
            let (reports, stop) = (reports.clone(), Arc::clone(&follower.stop));
            let run = move || folders::follow(&mount, &reports, &stop, &waker);
            follower.threads.push(std::thread::Builder::new().name("cgroups".to_owned()).spawn(run)?);
        }
        Ok(follower)
    }

    /// Wakes the threads that watch hierarchies: they must stop, or other cgroups have become relevant.
    pub fn wake(&self) {
        self.wakers.iter().for_each(Waker::wake);
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wake();
        for thread in self.threads.drain(..) {
            // The message of a panic has been printed already.
            let _ = thread.join();
        }
    }
}

/// The loop's knowledge of containers and processes between two scans.
#[derive(Debug, Default)]
pub struct Members {
    /// Running containers by engine socket. An engine has no entry before its first list.
    running: BTreeMap<PathBuf, Vec<Container>>,
    lost: BTreeMap<PathBuf, Lost>,
    scanner: Scanner,
}

impl Members {
    /// Updates this knowledge after an event.
    pub fn heed(&mut self, change: Change) {
        match change {
            Change::Containers { socket, running } => {
                self.lost.remove(&socket);
                self.running.insert(socket, running);
            }
            Change::EngineLost { socket, why } => drop(self.lost.insert(socket, why)),
            Change::EngineBack { socket } => drop(self.lost.remove(&socket)),
            // The cgroup tree is read again in every round.
            Change::Cgroup { .. } | Change::Cgroups { .. } | Change::Watched => {}
        }
    }

    /// Engines that do not respond, by socket, with the reason.
    #[must_use]
    pub fn lost(&self) -> &BTreeMap<PathBuf, Lost> {
        &self.lost
    }

    /// Those of the `followed` engines that do not respond and whose silence matters, with the reason. An engine
    /// without a socket does not matter as long as another one exists and none of its own containers is known.
    pub fn missed<'a>(&'a self, followed: &'a [PathBuf]) -> impl Iterator<Item = (&'a Path, &'a str)> {
        let lost = |socket: &PathBuf| self.lost.get(socket);
        let none_exists = followed.iter().all(|socket| lost(socket).is_some_and(|lost| lost.absent));
        let has_containers = |socket| self.running.get(socket).is_some_and(|running| !running.is_empty());
        followed
            .iter()
            .filter_map(move |socket| Some((socket, lost(socket)?)))
            .filter(move |(socket, lost)| none_exists || !lost.absent || has_containers(*socket))
            .map(|(socket, lost)| (socket.as_path(), lost.because.as_str()))
    }

    /// Adds the containers and processes that the groups match to `found`, which must already contain commensal's own
    /// cgroups. Sends no requests to engines.
    pub fn fill(&mut self, host: &dyn Host, specs: &[GroupSpec], found: &mut ActualState) {
        let matches: Vec<&Match> = specs.iter().flat_map(|spec| &spec.matches).collect();
        let mut containers = facts(host, &found.hierarchies, self.running.values().flatten().cloned());
        containers.retain(|container| matches.iter().any(|one| one.takes_container(container)));
        let answered = self.running.keys().any(|socket| !self.lost.contains_key(socket));
        let of_engine = |one: &&Match| matches!(one, Match::DockerLabel(_) | Match::DockerName(_));
        let needed = matches.iter().any(of_engine);
        let obstacle = (needed && !answered).then(|| {
            // The reason of an engine that exists says more than the absence of another one.
            let lost = self.lost.values().min_by_key(|lost| lost.absent);
            let why = lost.map_or("it has not been asked yet", |lost| &lost.because);
            format!("no container engine answers ({why})")
        });
        found.engines = EngineReport { containers, obstacle };
        let moved: BTreeSet<_> = found.ours.moved.keys().copied().collect();
        let wanted = Wanted { matches: &matches, moved: &moved, hierarchies: &found.hierarchies };
        found.processes = self.scanner.scan(host, &wanted);
    }
}

impl Members {
    /// Whether processes that the groups match have started, exited or moved since `last`.
    pub fn processes_differ(&mut self, host: &dyn Host, specs: &[GroupSpec], last: &ActualState) -> bool {
        let matches: Vec<&Match> = specs.iter().flat_map(|spec| &spec.matches).collect();
        let moved: BTreeSet<_> = last.ours.moved.keys().copied().collect();
        let wanted = Wanted { matches: &matches, moved: &moved, hierarchies: &last.hierarchies };
        self.scanner.scan(host, &wanted) != last.processes
    }
}

/// Whether the thread is to continue, because `stop` is not set.
fn wanted(stop: &AtomicBool) -> bool {
    !stop.load(Ordering::Relaxed)
}

/// Waits for `time`, or until the thread is to stop.
fn pause(stop: &AtomicBool, time: Duration) {
    let mut left = time;
    while wanted(stop) && !left.is_zero() {
        let step = left.min(PATIENCE);
        std::thread::sleep(step);
        left -= step;
    }
}
