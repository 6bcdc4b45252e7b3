//! The agent's lease. Finds or starts the guard (the process that puts the machine in the safe state when the agent
//! dies), and sends keep-alives to it.

use super::options::Options;
use crate::error::AgentError;
use crate::guard::{AtGuard, Hello, Link, SOCKET};
use commensal_host::{Child, Host, Signal, SpawnSpec, Stdin, Stdout};
use commensal_reconcile::Instance;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the agent waits until a guard that it started listens on its socket.
const GUARD_PATIENCE: Duration = Duration::from_secs(5);

/// The connection to the guard, and the lease.
pub(super) struct Lease {
    pub link: Option<Link>,
    child: Option<Child>,
    /// Guards that were started earlier and must be reaped once they have exited.
    former: Vec<Child>,
    pub time: Duration,
}

/// The agent's identity and lease, as sent to the guard.
fn hello(host: &mut dyn Host, lease: Duration) -> Hello {
    let pid = std::process::id();
    Hello {
        pid,
        start_ticks: host.process(pid).map(|own| own.start_ticks).unwrap_or_default(),
        lease_ms: u64::try_from(lease.as_millis()).unwrap_or(u64::MAX),
    }
}

impl Lease {
    /// Connects to the guard, or starts one.
    pub fn begin(
        host: &mut dyn Host,
        instance: &Instance,
        options: &Options,
        time: Duration,
    ) -> Result<Lease, AgentError> {
        let mut lease = Lease { link: None, child: None, former: Vec::new(), time };
        lease.connect(host, instance, options)?;
        Ok(lease)
    }

    /// Reaps former guards that have exited.
    fn bury(&mut self) {
        self.former.retain_mut(|guard| matches!(guard.try_wait(), Ok(None)));
    }

    /// Checks the guard: replaces a guard that has exited, and kills and replaces one that hangs. Returns a message if
    /// a guard was killed.
    pub fn look_after(
        &mut self,
        host: &mut dyn Host,
        instance: &Instance,
        options: &Options,
    ) -> Result<Option<String>, AgentError> {
        self.bury();
        let mut told = None;
        match self.link.as_ref().map(Link::guard) {
            Some(AtGuard::Answers) => return Ok(None),
            Some(AtGuard::Silent(pid)) => {
                let who = pid.map(|pid| format!(" (process {pid})")).unwrap_or_default();
                told = Some(format!(
                    "the guard{who} did not acknowledge keep-alives for {} and was killed",
                    humantime::format_duration(self.time)
                ));
                if let Some(guard) = pid.and_then(|pid| host.process(pid).ok()) {
                    host.signal(&guard, Signal::KILL)?;
                }
            }
            Some(AtGuard::Gone) | None => {}
        }
        self.link = None;
        self.connect(host, instance, options)?;
        Ok(told)
    }

    /// Connects to the guard, or starts one.
    fn connect(
        &mut self,
        host: &mut dyn Host,
        instance: &Instance,
        options: &Options,
    ) -> Result<(), AgentError> {
        self.former.extend(self.child.take());
        let hello = hello(host, self.time);
        let pulse = host.pulse();
        let link = || Link::start(&instance.state_dir, &hello, Arc::clone(&pulse));
        if let Ok(link) = link() {
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
            // Pass the PID: the guard may start running only after this process has been killed.
            .arg("--starter")
            .arg(std::process::id().to_string());
        (spec.stdin, spec.stdout) = (Stdin::Null, Stdout::Null);
        // The guard must outlive the agent.
        (spec.own_process_group, spec.die_with_parent) = (true, false);
        let mut child = host.spawn(&spec)?;
        let deadline = Instant::now() + GUARD_PATIENCE;
        loop {
            if let Ok(link) = link() {
                (self.link, self.child) = (Some(link), Some(child));
                return Ok(());
            }
            if let Some(exit) = child.try_wait()? {
                return Err(no_guard(&format!("it exited with status {}", exit.status())));
            }
            if Instant::now() > deadline {
                let socket = instance.state_dir.join(SOCKET);
                return Err(no_guard(&format!(
                    "it did not listen at {} within {} s",
                    socket.display(),
                    GUARD_PATIENCE.as_secs()
                )));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn no_guard(why: &str) -> AgentError {
    AgentError::new(format!(
        "cannot start the guard: {why}; with --no-guard the agent runs without a guard, but then nothing sets the safe state if the agent dies"
    ))
}
