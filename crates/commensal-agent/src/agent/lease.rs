//! The agent's lease: the guard that looks after the machine without it, found or started, and told that it lives.

use super::{AgentError, GUARD_PATIENCE, Options};
use crate::guard::{Hello, Link};
use commensal_host::{Child, Host, SpawnSpec, Stdin, Stdout};
use commensal_reconcile::Instance;
use std::time::{Duration, Instant};

/// The guard and the lease.
pub(super) struct Lease {
    pub link: Option<Link>,
    pub child: Option<Child>,
    /// Guards that were started before and are to be waited for once they have ended.
    pub former: Vec<Child>,
    pub time: Duration,
    pub said: Option<Hello>,
}

/// Who the agent is.
pub(super) fn hello(host: &mut dyn Host, lease: Duration) -> Hello {
    let pid = std::process::id();
    Hello {
        pid,
        start_ticks: host.process(pid).map(|own| own.start_ticks).unwrap_or_default(),
        lease_ms: u64::try_from(lease.as_millis()).unwrap_or(u64::MAX),
    }
}

impl Lease {
    /// Lets go of guards that have ended.
    pub fn bury(&mut self) {
        self.former.retain_mut(|guard| matches!(guard.try_wait(), Ok(None)));
    }

    /// Says who it is; whether it arrived.
    pub fn greet(&mut self, hello: &Hello) -> bool {
        let arrived = self.link.as_mut().is_some_and(|link| link.hello(hello).is_ok());
        if arrived {
            self.said = Some(hello.clone());
        } else {
            self.link = None;
        }
        arrived
    }

    /// Finds the guard, or starts one.
    pub fn connect(
        &mut self,
        host: &mut dyn Host,
        instance: &Instance,
        options: &Options,
    ) -> Result<(), AgentError> {
        self.said = None;
        self.former.extend(self.child.take());
        if let Ok(link) = Link::connect(&instance.state_dir) {
            self.link = Some(link);
            return Ok(());
        }
        let mut spec = SpawnSpec::new(&options.program)
            .arg("--state-dir")
            .arg(instance.state_dir.as_os_str())
            .arg("guard")
            .arg("--once")
            // It may come to itself when this process has been killed already.
            .arg("--starter")
            .arg(std::process::id().to_string());
        (spec.stdin, spec.stdout) = (Stdin::Null, Stdout::Null);
        // It outlives the agent: that is what it is for.
        (spec.own_process_group, spec.die_with_parent) = (true, false);
        let mut child = host.spawn(&spec)?;
        let deadline = Instant::now() + GUARD_PATIENCE;
        loop {
            if let Ok(link) = Link::connect(&instance.state_dir) {
                (self.link, self.child) = (Some(link), Some(child));
                return Ok(());
            }
            if let Some(exit) = child.try_wait()? {
                return Err(AgentError::Guard(format!("it ended with status {}", exit.status())));
            }
            if Instant::now() > deadline {
                return Err(AgentError::Guard(format!(
                    "it did not listen within {} s",
                    GUARD_PATIENCE.as_secs()
                )));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
