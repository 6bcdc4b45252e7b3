//! Tells once that the command waits for a CPU, so that offline work on a full machine does not look like a hang.

use commensal_core::group::{Class, GroupSpec};
use commensal_core::process::Stat;
use commensal_host::Host;
use commensal_sensors::run_delay::Schedstat;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a command may wait before the user is told; later looks are twice as far apart each time.
pub(super) const FIRST: Duration = Duration::from_secs(1);
/// A command that runs for less than this share of the time while it wants to run waits for a CPU.
const RUNS: f64 = 0.05;

/// Watches the CPU time of a command until it was told that it waits.
pub struct Waiting {
    /// Name of the group; `None` once the user was told, and for a group that is not offline.
    group: Option<String>,
    due: Instant,
    every: Duration,
    /// CPU time (ns) at the last look.
    ran_ns: u64,
}

impl Waiting {
    /// Begins with a command that was just started.
    pub fn new(spec: &GroupSpec) -> Waiting {
        let group = (spec.class == Class::Offline).then(|| spec.name.to_string());
        Waiting { group, due: Instant::now() + FIRST, every: FIRST, ran_ns: 0 }
    }

    /// Time until the next look; `None` if there is none.
    pub fn patience(&self) -> Option<Duration> {
        self.group.is_some().then(|| self.due.saturating_duration_since(Instant::now()))
    }

    /// Looks at the process if it is time, and tells the user if it waits.
    pub fn look(&mut self, host: &dyn Host, pid: u32) {
        if self.group.is_none() || Instant::now() < self.due {
            return;
        }
        let stat = host.read_file(Path::new(&format!("/proc/{pid}/stat"))).unwrap_or_default();
        // State R: the process runs, or waits for a CPU (proc(5)).
        let wants = Stat::parse(&stat).is_some_and(|stat| stat.text(3) == Some("R"));
        let ran_ns = Schedstat::of(host, pid).map_or(u64::MAX, |counters| counters.run_ns);
        let share = ran_ns.saturating_sub(self.ran_ns) as f64 / self.every.as_nanos() as f64;
        if wants && share < RUNS {
            self.tell();
        }
        self.ran_ns = ran_ns;
        self.every *= 2;
        self.due = Instant::now() + self.every;
    }

    /// Tells the user, once.
    pub fn tell(&mut self) {
        if let Some(group) = self.group.take() {
            eprintln!(
                "commensal: the command waits for a CPU: group {group} is offline, so it runs while other work leaves \
                 CPUs idle; Ctrl-C ends it"
            );
        }
    }
}
