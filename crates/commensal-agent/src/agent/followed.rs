//! Tracks members that come and go, for the loop.

use crate::members::{Change, Follow, Follower, Interest, Members, Reports};
use commensal_core::group::{GroupSpec, Match};
use commensal_core::knob::Controller;
use commensal_host::{Sources, Waker};
use commensal_reconcile::Instance;
use commensal_sensors::{Survey, containers};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

/// How long to wait for an engine's first list of containers.
const ENGINE_PATIENCE: Duration = Duration::from_secs(1);

/// The tracked members and the events about them.
pub(super) struct Followed {
    pub members: Members,
    pub follow: Follow,
    follower: Option<Follower>,
    reports: Reports,
    changes: Receiver<Change>,
    /// Rung by the reports.
    waker: Waker,
    /// Whether an engine has listed its containers, or the wait for that is over.
    pub heard: bool,
    waited: bool,
    /// Whether some creations or removals of cgroups were not reported.
    missed: bool,
}

impl Followed {
    /// Tracks nothing yet; `waker` is rung by every event that matters.
    pub fn new(waker: Waker) -> Followed {
        let (sender, changes) = mpsc::channel();
        Followed {
            members: Members::default(),
            follow: Follow::default(),
            follower: None,
            reports: Reports::new(sender, waker.clone()),
            changes,
            waker,
            heard: false,
            waited: false,
            missed: false,
        }
    }

    /// Tracks the members that the groups match.
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

    /// Waits once, briefly, for a container engine's first list; a later list is handled when it arrives.
    pub fn wait_for_engine(&mut self) {
        if self.follow.sockets.is_empty() || self.heard || std::mem::replace(&mut self.waited, true) {
            return;
        }
        let end = Instant::now() + ENGINE_PATIENCE;
        while !self.heard && self.members.lost().len() < self.follow.sockets.len() && Instant::now() < end {
            self.heed();
            if !self.heard {
                let left = end.saturating_duration_since(Instant::now());
                if self.waker.wait(&Sources::default(), left).is_err() {
                    return;
                }
            }
        }
        // What else rang it is looked at before the next wait.
        self.waker.wake();
    }

    /// From now on every cgroup that comes or goes matters.
    pub fn mind_all(&self) {
        self.reports.mind(None);
    }

    /// From now on these matter.
    pub fn mind(&self, interest: Interest) {
        self.reports.mind(Some(interest));
    }

    /// Processes the events; returns whether any of them matters.
    pub fn heed(&mut self) -> bool {
        let mut any = false;
        while let Ok(change) = self.changes.try_recv() {
            any = any || self.reports.matters(&change);
            self.missed = match &change {
                Change::Cgroup { .. } => false,
                Change::Cgroups { .. } => true,
                _ => self.missed,
            };
            self.heard |= matches!(change, Change::Containers { .. });
            self.members.heed(change);
        }
        any
    }
}
