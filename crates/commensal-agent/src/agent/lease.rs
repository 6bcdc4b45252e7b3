//! The agent's lease: the guard that looks after the machine without it, found or started, and told what is in force.

use super::{AgentError, GUARD_PATIENCE, Options};
use crate::groups_file::Texts;
use crate::guard::{Hello, Link};
use commensal_core::cpuset::CpuSet;
use commensal_host::{Child, Host, SpawnSpec, Stdin, Stdout};
use commensal_reconcile::Instance;
use commensal_sensors::delegation::Tenancy;
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

/// Who the agent is and what is in force.
pub(super) fn hello(
    host: &mut dyn Host,
    instance: &Instance,
    texts: &Texts,
    lease: Duration,
    floor: Option<&CpuSet>,
    tenancy: &Tenancy,
) -> Hello {
    let pid = std::process::id();
    // The guard runs elsewhere, and finds by itself only what was delegated to it.
    let given = || Some(&tenancy.base).filter(|base| base.depth() > 0 && tenancy.obstacle.is_none());
    let cgroup_root = instance.cgroup_root.as_ref().or_else(given);
    Hello {
        pid,
        start_ticks: host.process(pid).map(|own| own.start_ticks).unwrap_or_default(),
        lease_ms: u64::try_from(lease.as_millis()).unwrap_or(u64::MAX),
        prefix: instance.prefix.clone(),
        cgroup_root: cgroup_root.map(ToString::to_string),
        engine: instance.engine.clone(),
        texts: texts.clone(),
        frame_floor: floor.map(ToString::to_string),
    }
}

impl Lease {
    /// Lets go of guards that have ended.
    pub fn bury(&mut self) {
        self.former.retain_mut(|guard| matches!(guard.try_wait(), Ok(None)));
    }

    /// Says what is in force; whether it arrived.
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
        let mut spec =
            SpawnSpec::new(&options.program).arg("--state-dir").arg(instance.state_dir.as_os_str());
        if !host.is_guarded() {
            spec = spec.arg("--insecure-permissions");
        }
        spec = spec
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

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_core::actual::CgroupPath;
    use commensal_host::fake::FakeHost;
    use std::path::Path;

    // promise 37
    #[test]
    fn the_guard_is_told_where_own_groups_are() {
        let mut host = FakeHost::v2(2, 1 << 30);
        let mut check = |chosen: Option<&str>, base: &str, obstacle: Option<&str>, told: Option<&str>| {
            let machine = Instance::of_machine(Path::new("/state"), "x");
            let instance = Instance { cgroup_root: chosen.map(CgroupPath::new), ..machine };
            let tenancy = Tenancy {
                base: CgroupPath::new(base),
                obstacle: obstacle.map(str::to_owned),
                ..Tenancy::default()
            };
            let said = hello(&mut host, &instance, &Texts::default(), Duration::from_secs(1), None, &tenancy);
            assert_eq!(said.cgroup_root.as_deref(), told, "{chosen:?} {base} {obstacle:?}");
        };
        check(None, "/", None, None);
        check(None, "/", Some("systemd keeps it"), None);
        check(None, "/system.slice/a.service", None, Some("/system.slice/a.service"));
        check(Some("/"), "/", None, Some("/"));
        check(Some("/b"), "/b", None, Some("/b"));
    }
}
