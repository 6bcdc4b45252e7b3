//! Tracks members that come and go, for the loop.

use crate::members::{Change, Follow, Follower, Members};
use commensal_core::actual::CgroupPath;
use commensal_core::desired::{DesiredState, takes_cgroup};
use commensal_core::group::{GroupSpec, Match};
use commensal_core::knob::Controller;
use commensal_reconcile::Instance;
use commensal_sensors::{Survey, containers};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

/// How long to wait for an engine's first list of containers.
const ENGINE_PATIENCE: Duration = Duration::from_secs(1);

/// The tracked members and the events about them.
pub(super) struct Followed {
    pub members: Members,
    pub follow: Follow,
    follower: Option<Follower>,
    changes: (Sender<Change>, Receiver<Change>),
    /// The first event that arrived during a wait.
    first: Option<Change>,
    /// Whether an engine has listed its containers, or the wait for that is over.
    pub heard: bool,
    waited: bool,
    /// Whether some creations or removals of cgroups were not reported.
    missed: bool,
}

impl Followed {
    /// Tracks nothing yet.
    pub fn new() -> Followed {
        Followed {
            members: Members::default(),
            follow: Follow::default(),
            follower: None,
            changes: mpsc::channel(),
            first: None,
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
            self.follower = Some(Follower::start(follow.clone(), &self.changes.0)?);
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
            self.wait(end.saturating_duration_since(Instant::now()));
            self.heed(&|_| true);
        }
    }

    /// Waits for an event, at most for this long.
    pub fn wait(&mut self, time: Duration) {
        match self.first {
            Some(_) => std::thread::sleep(time),
            None => self.first = self.changes.1.recv_timeout(time).ok(),
        }
    }

    /// Processes the events; returns whether any of them matters. `matters` decides that for a cgroup.
    pub fn heed(&mut self, matters: &dyn Fn(&CgroupPath) -> bool) -> bool {
        let mut any = false;
        while let Some(change) = self.first.take().or_else(|| self.changes.1.try_recv().ok()) {
            any = any
                || match &change {
                    Change::Cgroup { folder, .. } => {
                        let inside =
                            self.follow.mounts.iter().find_map(|mount| folder.strip_prefix(mount).ok());
                        inside.is_none_or(|path| matters(&CgroupPath::new(&path.to_string_lossy())))
                    }
                    _ => true,
                };
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

/// Whether the plan may depend on a cgroup that was created or removed: a group matches it, or it is above, in or below
/// a member or among commensal's groups.
pub(super) fn matters(path: &CgroupPath, specs: &[GroupSpec], desired: Option<&DesiredState>) -> bool {
    let Some(desired) = desired else { return true };
    let members = || desired.groups.iter().flat_map(|group| &group.members);
    specs.iter().flat_map(|spec| &spec.matches).any(|one| takes_cgroup(one, path))
        || [&desired.online_parent, &desired.offline_parent].into_iter().any(|parent| parent.contains(path))
        || members().any(|member| member.path.contains(path) || path.contains(&member.path))
}
