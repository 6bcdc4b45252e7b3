//! Members that come and go, as the loop follows them.

use crate::instance::Instance;
use crate::members::{Change, Follow, Follower, Members};
use commensal_core::group::{GroupSpec, Match};
use commensal_core::knob::Controller;
use commensal_sensors::{Survey, containers};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};

/// Who comes and goes.
pub(super) struct Followed {
    pub members: Members,
    pub follow: Follow,
    follower: Option<Follower>,
    changes: (Sender<Change>, Receiver<Change>),
    /// Whether an engine has said what it runs.
    pub heard: bool,
}

impl Followed {
    /// Nobody yet.
    pub fn new() -> Followed {
        Followed {
            members: Members::default(),
            follow: Follow::default(),
            follower: None,
            changes: mpsc::channel(),
            heard: false,
        }
    }

    /// Follows what the groups match.
    pub fn follow(
        &mut self,
        instance: &Instance,
        survey: &Survey,
        specs: &[GroupSpec],
    ) -> std::io::Result<()> {
        let matches = || specs.iter().flat_map(|spec| &spec.matches);
        let of_engine = |one: &Match| matches!(one, Match::DockerLabel(_) | Match::DockerName(_));
        let of_groups =
            |one: &Match| matches!(one, Match::Cgroup(_) | Match::Systemd(_) | Match::Kubernetes(_));
        let sockets = match matches().any(of_engine) {
            true => containers::sockets(instance.engine.as_deref()),
            false => Vec::new(),
        };
        let cpu = survey.hierarchies.iter().find(|one| one.controllers.contains(&Controller::Cpu));
        let mount = cpu.or_else(|| survey.hierarchies.first()).filter(|_| matches().any(of_groups));
        let mounts = mount.map(|one| PathBuf::from(&one.mount)).into_iter().collect();
        let follow = Follow { sockets, mounts };
        if self.follower.is_none() || follow != self.follow {
            self.heard = false;
            self.follower = None;
            self.follower = Some(Follower::start(follow.clone(), &self.changes.0)?);
            self.follow = follow;
        }
        Ok(())
    }

    /// Takes in what happened; whether anything did.
    pub fn heed(&mut self) -> bool {
        let mut any = false;
        while let Ok(change) = self.changes.1.try_recv() {
            any = true;
            self.heard |= matches!(change, Change::Containers { .. });
            self.members.heed(change);
        }
        any
    }
}
