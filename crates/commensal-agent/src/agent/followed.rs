//! Tracks members that appear and disappear, for the loop.

use super::incomplete::Incomplete;
use crate::members::{Change, Follow, Follower, Interest, Members, Reports};
use commensal_core::actual::CgroupPath;
use commensal_core::group::{GroupSpec, Match};
use commensal_core::knob::Controller;
use commensal_host::Waker;
use commensal_reconcile::Instance;
use commensal_sensors::{Survey, containers};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

/// How long the agent waits for an engine's first list of containers.
const ENGINE_PATIENCE: Duration = Duration::from_secs(1);

/// Maximum number of cgroups that are read alone. If more have come and gone, a round reads all.
const FEW: usize = 256;

/// The tracked members, the events about them, and the cgroups that new members still lack.
pub(super) struct Followed {
    pub members: Members,
    pub incomplete: Incomplete,
    pub follow: Follow,
    follower: Option<Follower>,
    reports: Reports,
    changes: Receiver<Change>,
    /// Wakes the loop when an event arrives in `reports`.
    waker: Waker,
    /// Whether a container engine has listed its containers.
    pub heard: bool,
    /// Whether the agent has already waited for the first list.
    waited: bool,
    /// Whether creations or removals of cgroups may be missed.
    missed: bool,
    /// Why cgroups cannot be watched, if a person can remove the reason.
    unwatched: Option<String>,
    /// The cgroups that have come and gone since the last call of [`Followed::take_news`]; `None` if it is not known which.
    news: Option<BTreeSet<CgroupPath>>,
    /// Whether containers or cgroups that may change the plan have come or gone since then.
    any: bool,
}

impl Followed {
    /// Creates a tracker that tracks nothing yet. Every relevant event wakes the loop through `waker`.
    pub fn new(waker: Waker) -> Followed {
        let (sender, changes) = mpsc::channel();
        Followed {
            members: Members::default(),
            incomplete: Incomplete::default(),
            follow: Follow::default(),
            follower: None,
            reports: Reports::new(sender, waker.clone()),
            changes,
            waker,
            heard: false,
            waited: false,
            missed: false,
            unwatched: None,
            news: Some(BTreeSet::new()),
            any: false,
        }
    }

    /// Tracks the members that the groups match, and restarts the threads if the sources have changed.
    pub fn follow(
        &mut self,
        instance: &Instance,
        survey: &Survey,
        specs: &[GroupSpec],
    ) -> std::io::Result<()> {
        let matches = || specs.iter().flat_map(|spec| &spec.matches);
        let of_engine = |one: &Match| matches!(one, Match::DockerLabel(_) | Match::DockerName(_));
        let sockets = match matches().any(of_engine) {
            true => containers::sockets(instance.engine.as_deref()),
            false => Vec::new(),
        };
        let cpu = survey.hierarchies.iter().find(|one| one.controllers.contains(&Controller::Cpu));
        let mount = cpu.or_else(|| survey.hierarchies.first());
        let mounts = mount.map(|one| PathBuf::from(&one.mount)).into_iter().collect();
        let follow = Follow { sockets, mounts };
        if self.follower.is_none() || follow != self.follow {
            (self.heard, self.waited) = (false, false);
            self.follower = None;
            self.follower = Some(Follower::start(follow.clone(), &self.reports)?);
            self.follow = follow;
        }
        Ok(())
    }

    /// Whether every creation and removal of a cgroup is reported.
    pub fn complete(&self) -> bool {
        self.follower.is_some() && !self.follow.mounts.is_empty() && !self.missed
    }

    /// Returns why cgroups cannot be watched, so that those that come and go are seen late.
    pub fn unwatched(&self) -> Option<&str> {
        self.unwatched.as_deref()
    }

    /// Waits for the first list of a container engine, once and briefly. A list that arrives later is processed when it
    /// arrives.
    pub fn wait_for_engine(&mut self) {
        if self.follow.sockets.is_empty() || self.heard || std::mem::replace(&mut self.waited, true) {
            return;
        }
        let end = Instant::now() + ENGINE_PATIENCE;
        while !self.heard && self.members.lost().len() < self.follow.sockets.len() && Instant::now() < end {
            self.heed();
            if !self.heard {
                let left = end.saturating_duration_since(Instant::now());
                if self.waker.wait(&[], left).is_err() {
                    return;
                }
            }
        }
        // Other events may have woken the loop meanwhile, so make its next wait return.
        self.waker.wake();
    }

    /// Lets the creation and removal of any watched cgroup wake the loop.
    pub fn mind_all(&self) {
        self.reports.mind(None);
    }

    /// Lets only events about these cgroups wake the loop, and makes the threads watch only directories that can contain
    /// such cgroups.
    pub fn mind(&self, interest: Interest) {
        self.reports.mind(Some(interest));
        if let Some(follower) = &self.follower {
            follower.wake();
        }
    }

    /// Whether containers or cgroups that may change the plan have come or gone.
    pub fn has_news(&self) -> bool {
        self.any
    }

    /// Returns the cgroups that have come and gone since the last call, and forgets them; `None` if it is not known which.
    pub fn take_news(&mut self) -> Option<BTreeSet<CgroupPath>> {
        self.any = false;
        self.news.replace(BTreeSet::new()).filter(|news| news.len() <= FEW)
    }

    /// Processes the events; returns whether any of them can change the plan.
    pub fn heed(&mut self) -> bool {
        let mut any = false;
        let appeared = self.incomplete.appeared();
        if !appeared.is_empty() {
            any = true;
            self.news.iter_mut().for_each(|news| news.extend(appeared.iter().cloned()));
        }
        while let Ok(change) = self.changes.try_recv() {
            let matters = self.reports.matters(&change);
            any = any || matters;
            match &change {
                Change::Cgroup { path, .. } if matters => {
                    self.news.iter_mut().for_each(|news| news.extend([path.clone()]));
                }
                Change::Cgroups { because } => {
                    (self.news, self.missed) = (None, true);
                    self.unwatched.clone_from(because);
                }
                Change::Watched => (self.news, self.missed, self.unwatched) = (None, false, None),
                _ => {}
            }
            self.heard |= matches!(change, Change::Containers { .. });
            self.members.heed(change);
        }
        self.any |= any;
        any
    }
}
