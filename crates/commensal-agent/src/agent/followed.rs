//! Tracks members that come and go, for the loop.

use crate::members::{Change, Follow, Follower, Members, Reports};
use commensal_core::actual::CgroupPath;
use commensal_core::desired::{DesiredState, takes_cgroup};
use commensal_core::group::{GroupSpec, Match};
use commensal_core::knob::Controller;
use commensal_host::{Sources, Waker};
use commensal_reconcile::Instance;
use commensal_sensors::{Survey, containers};
use std::collections::BTreeSet;
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
    /// Tracks nothing yet; `waker` is rung by every event.
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
            self.heed(&|_| true);
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

    /// Processes the events; returns whether any of them matters. `matters` decides that for a cgroup.
    pub fn heed(&mut self, matters: &dyn Fn(&CgroupPath) -> bool) -> bool {
        let mut any = false;
        while let Ok(change) = self.changes.try_recv() {
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
pub(super) fn matters(
    path: &CgroupPath,
    specs: &[GroupSpec],
    desired: Option<&DesiredState>,
    members: &BTreeSet<CgroupPath>,
) -> bool {
    let Some(desired) = desired else { return true };
    [&desired.online_parent, &desired.offline_parent].into_iter().any(|parent| parent.contains(path))
        || members.contains(path)
        || path.ancestors().iter().any(|above| members.contains(above))
        // What is below a path sorts after it, with others between that only begin like it.
        || (members.range(path..).take_while(|member| member.as_str().starts_with(path.as_str())))
            .any(|member| path.contains(member))
        || specs.iter().flat_map(|spec| &spec.matches).any(|one| takes_cgroup(one, path))
}
