//! Starts the command. A command that starts in an offline group needs a CPU for that, and a busy machine may not give it
//! one for a long time. Meanwhile the user is told, signals are handled, and other commands are not kept out.

use super::waiting::{FIRST, Waiting};
use super::{GRACE, cookie, lift_to_end};
use commensal_core::actual::{CgroupPath, Hierarchy};
use commensal_core::errno::Errno;
use commensal_core::knob::Controller;
use commensal_core::process::Stat;
use commensal_host::{Child, Cookie, Host, HostError, LinuxHost, Lock, Process, Signal, SpawnSpec};
use commensal_reconcile::Lifted;
use commensal_reconcile::queue::Inbox;
use commensal_sensors::processes::places;
use commensal_sensors::usage::GroupDirs;
use signal_hook::consts::SIGCHLD;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Interval at which signals are looked for while the command starts.
const TURN: Duration = Duration::from_millis(50);

/// The cgroup that the command enters.
pub(super) struct Entered<'a> {
    pub hierarchies: &'a [Hierarchy],
    pub path: &'a CgroupPath,
    pub dirs: &'a GroupDirs,
}

/// A command that was lifted to handle a signal, and until when.
pub(super) type Aloft = Option<(Lifted, Instant)>;

/// Starts the command, and gives the machine's lock back as soon as the command is in its groups: nobody removes them
/// then. A signal that arrives before the command runs is sent to it once it does.
pub(super) fn start(
    host: &mut LinuxHost,
    spec: &mut SpawnSpec,
    place: &Entered<'_>,
    (inbox, waiting): (&Inbox, &mut Waiting),
    lock: Lock,
) -> commensal_host::Result<(Child, Aloft)> {
    // The group that may give it no CPU time comes last, so that the command needs none to enter the others.
    let cpu = place.dirs.of(Controller::Cpu).map(|(_, dir)| dir);
    spec.groups.sort_by_key(|dir| Some(*dir) == cpu);
    let (mut lock, mut signals, mut aloft) = (Some(lock), Vec::new(), None);
    let mut look = Instant::now() + FIRST;
    let started = std::thread::scope(|scope| {
        let (running, ended) = channel::<()>();
        let starting = scope.spawn(|| {
            let _running = running;
            spawn(host, spec, place.dirs)
        });
        let mut other = LinuxHost::new();
        while ended.recv_timeout(TURN) == Err(RecvTimeoutError::Timeout) {
            if Instant::now() >= look {
                look += FIRST;
                waiting.tell();
                let inside = newborn(&mut other).is_some_and(|child| is_inside(&other, &child, place));
                // The command has a descriptor of the lock until it runs its program, so closing ours would not release it.
                if let Some(lock) = lock.take_if(|_| inside) {
                    lock.release();
                }
            }
            let Some(signal) = inbox.signal_within(Duration::ZERO).filter(|signal| *signal != SIGCHLD) else {
                continue;
            };
            signals.push(Signal(signal));
            if Signal(signal).asks_to_end() && aloft.is_none() {
                // So that it starts at all: only then it can handle the signal.
                let child = newborn(&mut other);
                let lifted = child.and_then(|child| lift_to_end(&mut other, &child));
                aloft = lifted.map(|lifted| (lifted, Instant::now() + GRACE));
            }
        }
        starting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let child = started?;
    for signal in signals {
        // It may have ended already.
        let _ = host.signal(&child.process, signal);
    }
    Ok((child, aloft))
}

/// The child of this process that has not started its program yet; it is the only child.
fn newborn(host: &mut LinuxHost) -> Option<Process> {
    let pids = host.list(Path::new("/proc")).unwrap_or_default();
    let is_ours = |pid: &u32| {
        let stat = host.read_file(Path::new(&format!("/proc/{pid}/stat"))).unwrap_or_default();
        Stat::parse(&stat).and_then(|stat| stat.parent()) == Some(std::process::id())
    };
    let pid = pids.iter().filter_map(|name| name.parse().ok()).find(is_ours)?;
    host.process(pid).ok()
}

/// Whether the process is in its group in every hierarchy.
fn is_inside(host: &LinuxHost, child: &Process, place: &Entered<'_>) -> bool {
    let file = format!("/proc/{}/cgroup", child.pid);
    let found = places(host, Path::new(&file), place.hierarchies);
    !found.is_empty() && found.values().all(|path| path == place.path)
}

/// Starts the command. If the process whose core-scheduling cookie the command should share has exited meanwhile,
/// starts the command with another cookie.
fn spawn(host: &mut dyn Host, spec: &mut SpawnSpec, dirs: &GroupDirs) -> commensal_host::Result<Child> {
    match (host.spawn(spec), spec.policy.cookie) {
        (Err(HostError { errno: Errno::ESRCH, .. }), Some(Cookie::Of(_))) => {
            spec.policy.cookie = Some(cookie(host, dirs));
            host.spawn(spec)
        }
        (started, _) => started,
    }
}
