//! The online side of a run: prepares, starts and stops the service, and waits until the service is ready. A run can
//! start the service, or attach to a service that already runs.

use super::command::run_command;
use super::error::RunError;
use super::options::RunOptions;
use super::run_dir::RunDir;
use crate::experiment::{Experiment, Offline, Online, Ready, Service};
use crate::loadgen::wait_ready;
use crate::site::{Side, Testbed, TestbedError};
use commensal_blame::names::{Asked, Cgroups};
use commensal_core::actual::CgroupPath;
use commensal_host::{Child, Host, Signal, SpawnSpec, Stderr, Stdout};
use commensal_reconcile::members;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Timeout for the built-in or attached service to accept connections.
const READY: Duration = Duration::from_secs(10);
/// Timeout for a server to exit after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);
/// Poll interval while waiting for readiness.
const PAUSE: Duration = Duration::from_millis(50);

/// A running service.
pub(super) struct Running {
    /// The process of the service; `None` for a service that the run is attached to.
    child: Option<Child>,
    pub addr: SocketAddr,
}

impl Running {
    /// Whether the service has exited. For a service that the run is attached to: whether its cgroup is empty.
    pub fn gone(&mut self, host: &mut dyn Host, site: &Testbed) -> Result<bool, RunError> {
        match &mut self.child {
            Some(child) => Ok(child.try_wait()?.is_some()),
            None => Ok(site
                .group(Side::Online)
                .any()
                .is_some_and(|dir| members::pids(host, dir).is_ok_and(|pids| pids.is_empty()))),
        }
    }
}

/// Finds the cgroups of a service and of offline work that already run, if the experiment attaches to them.
pub(super) fn attached(
    host: &mut dyn Host,
    experiment: &Experiment,
) -> Result<[Option<CgroupPath>; 2], RunError> {
    let online = match &experiment.online {
        Online::Attached(attached) => Some(group_of(host, &attached.to)?),
        Online::BuiltIn | Online::Program(_) => None,
    };
    let offline = match &experiment.offline {
        Offline::Attached { to, .. } => Some(group_of(host, to)?),
        Offline::BuiltIn(_) | Offline::Program(_) => None,
    };
    if let (Some(online), Some(offline)) = (&online, &offline)
        && (online.contains(offline) || offline.contains(online))
    {
        return Err(RunError::new(format!(
            "offline work {offline} and service {online} must be in separate cgroups, but one contains the other"
        )));
    }
    for (what, path) in [("service", &online), ("offline work", &offline)] {
        let Some(path) = path else { continue };
        let kept = commensal_reconcile::kept_in_force(host, path).map_err(TestbedError::from)?;
        if let Some(kept) = kept {
            return Err(RunError::new(format!(
                "commensal keeps settings in force on {kept}, which the {what} {path} is in: the arm without isolation would \
                 be isolated as well; run `commensal restore` first (an agent ends with `--on-exit restore`)"
            )));
        }
    }
    Ok([online, offline])
}

fn group_of(host: &mut dyn Host, to: &str) -> Result<CgroupPath, RunError> {
    let missing = |what: &str| RunError::new(format!("{to}: {what}"));
    let found = Cgroups::look(host, None).map_err(TestbedError::from)?;
    let found = found.ok_or_else(|| missing("no cgroup hierarchy is mounted"))?;
    let asked = Asked::parse(to, Some(&found.mount));
    let path = match &asked {
        Asked::Cgroup(path) => found.subject(path).map(|_| path.clone()),
        Asked::Process(_) => {
            return Err(missing(
                "name a unit, a cgroup or a container instead of a process, because limits apply to cgroups",
            ));
        }
        Asked::Name(name) => {
            let id = found.container_called(name).map(|id| Asked::Container(id.to_owned()));
            id.and_then(|id| found.called(&id).into_iter().next())
        }
        Asked::Unit(_) | Asked::Container(_) => found.called(&asked).into_iter().next(),
    };
    path.ok_or_else(|| missing("no running unit, cgroup or container has this name"))
}

/// Starts and stops the service.
pub(super) struct ServiceRunner<'a> {
    pub host: &'a mut dyn Host,
    pub site: &'a Testbed,
    pub place: &'a RunDir,
    pub options: &'a RunOptions,
    /// Port of the built-in service; 0 for any free port.
    pub port: u16,
    pub stop: &'a AtomicBool,
}

impl ServiceRunner<'_> {
    /// Runs the experiment's preparation commands for the service once, before the first start.
    pub fn prepare(&mut self, experiment: &Experiment) -> Result<(), RunError> {
        let Online::Program(service) = &experiment.online else { return Ok(()) };
        for command in &service.prepare {
            run_command(self.host, self.site, self.place, Side::Online, command, self.stop)?;
        }
        Ok(())
    }

    /// Starts the service and waits until it is ready.
    pub fn start(&mut self, experiment: &Experiment) -> Result<Running, RunError> {
        match &experiment.online {
            Online::BuiltIn => self.built_in(),
            Online::Program(service) => self.program(service),
            Online::Attached(attached) => {
                let deadline = Instant::now() + READY;
                while TcpStream::connect_timeout(&attached.addr, PAUSE).is_err() {
                    if Instant::now() > deadline {
                        return Err(RunError::Service(format!(
                            "nothing accepts connections on {}",
                            attached.addr
                        )));
                    }
                    std::thread::sleep(PAUSE);
                }
                Ok(Running { child: None, addr: attached.addr })
            }
        }
    }

    /// Stops the service, with SIGKILL if necessary, and leaves no process in its cgroup. A service that the run is
    /// attached to continues to run.
    pub fn end(&mut self, experiment: &Experiment, running: &mut Running) -> Result<(), RunError> {
        let Some(child) = &mut running.child else { return Ok(()) };
        if let Online::Program(service) = &experiment.online {
            if self.host.signal(&child.process, Signal::TERM).is_ok() {
                let deadline = Instant::now() + GRACE;
                while child.try_wait()?.is_none() && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            self.site.stop(self.host, Side::Online, child)?;
            return self.clean(service);
        }
        Ok(self.site.stop(self.host, Side::Online, child)?)
    }

    /// Runs the cleanup commands, which remove what a killed server leaves outside its cgroup. A command may fail,
    /// because there may be nothing to remove.
    fn clean(&mut self, service: &Service) -> Result<(), RunError> {
        let never = AtomicBool::new(false);
        for command in &service.cleanup {
            match run_command(self.host, self.site, self.place, Side::Client, command, &never) {
                Ok(()) | Err(RunError::Command { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }

    fn program(&mut self, service: &Service) -> Result<Running, RunError> {
        // A killed run of this experiment may have left its container behind.
        self.clean(service)?;
        let log = super::command::log()?;
        let mut spec = self.place.command(&service.command);
        spec.stdout = Stdout::Fd(log.clone());
        spec.stderr = Stderr::Stdout;
        let mut child = self.site.start(self.host, Side::Online, None, spec)?;
        let deadline = Instant::now() + service.ready_within;
        let addr = self.place.addr();
        let said = |what: String| RunError::Service(format!("{what}{}", super::command::tail(&log)));
        let outcome = loop {
            if self.stop.load(Ordering::Relaxed) {
                break Err(RunError::stopped());
            }
            if let Some(exit) = child.try_wait()? {
                break Err(said(format!("it exited with status {}", exit.status())));
            }
            if self.ready(&service.ready, addr) {
                break Ok(());
            }
            if Instant::now() > deadline {
                break Err(said(format!(
                    "it was not ready within {} s (ready-within)",
                    service.ready_within.as_secs()
                )));
            }
            std::thread::sleep(PAUSE);
        };
        let set_up = outcome.and_then(|()| {
            service.setup.iter().try_for_each(|command| {
                run_command(self.host, self.site, self.place, Side::Client, command, self.stop)
            })
        });
        if let Err(error) = set_up {
            self.site.stop(self.host, Side::Online, &mut child)?;
            self.clean(service)?;
            return Err(error);
        }
        Ok(Running { child: Some(child), addr })
    }

    fn ready(&mut self, ready: &Ready, addr: SocketAddr) -> bool {
        match ready {
            Ready::Tcp => TcpStream::connect_timeout(&addr, PAUSE).is_ok(),
            Ready::Http(path) => wait_ready(addr, path, Instant::now() + PAUSE).is_ok(),
            Ready::Command(command) => {
                let mut spec = self.place.command(command);
                spec.stdout = Stdout::Null;
                spec.stderr = Stderr::Null;
                let started = self.site.start(self.host, Side::Client, None, spec);
                started.is_ok_and(|mut child| child.wait().is_ok_and(|exit| exit.status() == 0))
            }
        }
    }

    /// Starts this program's HTTP service, which prints its address.
    fn built_in(&mut self) -> Result<Running, RunError> {
        let workers = self.site.survey.machine.topology.threads().clamp(1, 8);
        let mut spec = SpawnSpec::new(&self.options.program)
            .arg("workload")
            .arg("http")
            .arg("--port")
            .arg(self.port.to_string())
            .arg("--workers")
            .arg(workers.to_string());
        spec.stdout = Stdout::Pipe;
        let mut child = self.site.start(self.host, Side::Online, None, spec)?;
        let (send, receive) = mpsc::channel();
        if let Some(output) = child.stdout.take() {
            std::thread::spawn(move || {
                let mut line = String::new();
                let _ = BufReader::new(output).read_line(&mut line);
                let _ = send.send(line);
            });
        }
        let line = receive.recv_timeout(READY).unwrap_or_default();
        let addr: Option<SocketAddr> =
            line.trim().strip_prefix("listening ").and_then(|addr| addr.parse().ok());
        let outcome = match addr {
            Some(addr) => wait_ready(addr, "/healthz", Instant::now() + READY)
                .map(|()| addr)
                .map_err(|error| error.to_string()),
            None => Err(match child.try_wait()? {
                Some(exit) => format!("it exited with status {} (its message is above)", exit.status()),
                None => format!("it did not print its address within {} s", READY.as_secs()),
            }),
        };
        match outcome {
            Ok(addr) => Ok(Running { child: Some(child), addr }),
            Err(why) => {
                self.site.stop(self.host, Side::Online, &mut child)?;
                Err(RunError::Service(why))
            }
        }
    }
}
