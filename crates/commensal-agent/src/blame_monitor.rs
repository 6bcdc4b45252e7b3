//! The agent's probe (a BPF program of commensal-blame): measures how long online groups wait for a CPU, and who has it
//! meanwhile.

use crate::wait_parts::{Names, WaitParts};
use commensal_blame::{BlameError, Figures, Kind, RaisedAlarm, Scope, Subject, WaitProbe, preflight};
use commensal_core::actual::{CgroupPath, CgroupRef};
use commensal_core::control::latency::ProbeWaits;
use commensal_core::desired::DesiredGroup;
use commensal_core::group::Class;
use commensal_core::knob::{Controller, Version};
use commensal_host::{Host, LinuxHost};
use commensal_reconcile::Planned;
use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::thread::JoinHandle;
use std::time::Duration;

/// Minimum time between two attempts to load the probe (ms), because the kernel verifies the probe's programs at each
/// attempt, which takes CPU time.
pub(crate) const AGAIN_MS: u64 = 2_000;

/// Time between two readings of the probe (ms) if no controller needs them.
const SELDOM_MS: u64 = 10_000;

/// Longest time between two attempts (ms): each failure doubles the time.
const AGAIN_MOST_MS: u64 = 600_000;

/// Measurements since the last sample.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WaitSample {
    /// Measurements over all online groups.
    pub online: ProbeWaits,
}

/// The agent's probe, or the reason why there is none.
#[derive(Debug, Default)]
pub struct BlameMonitor {
    probe: Option<WaitProbe>,
    /// The thread that loads a probe. On a busy machine that can take longer than the agent's lease.
    loading: Option<JoinHandle<Result<WaitProbe, BlameError>>>,
    /// The targets of the probe, or of the one that is being loaded.
    scope: Scope,
    names: Names,
    /// The cgroups to measure (scope) and the group names that the last plan requires.
    wanted: (Scope, Names),
    before: Option<(u64, Figures)>,
    /// The parts of each group's waits.
    pub parts: WaitParts,
    tried_ms: Option<u64>,
    /// Number of attempts that have failed since the last one that succeeded.
    failures: u32,
    /// Why there is no probe, if there is none.
    pub absent: Option<String>,
    /// Whether the user has turned the probe off (`--no-probe`).
    unwanted: bool,
}

impl BlameMonitor {
    /// Creates a monitor without a probe. If `wanted` is false, it never loads one.
    pub fn new(wanted: bool) -> BlameMonitor {
        BlameMonitor { unwanted: !wanted, ..BlameMonitor::default() }
    }

    /// Sets the online and offline cgroups to measure from now on.
    pub fn follow(&mut self, planned: &Planned) {
        self.wanted = scope(planned);
    }

    /// Why the probe cannot be loaded, if it was tried.
    pub fn refused(&self) -> Option<&str> {
        self.absent.as_deref().filter(|_| self.failures > 0)
    }

    /// Whether it is time for a sample that no controller needs.
    pub fn is_due(&self, now_ms: u64) -> bool {
        self.probe.is_none()
            || self.scope != self.wanted.0
            || self.before.as_ref().is_none_or(|(then_ms, _)| now_ms.saturating_sub(*then_ms) >= SELDOM_MS)
    }

    /// Takes a sample, and loads the probe if necessary. Returns `None` without a probe, and at the first reading of a
    /// new probe.
    pub fn look(&mut self, host: &dyn Host, now_ms: u64) -> Option<WaitSample> {
        if self.unwanted {
            self.absent = Some("the agent runs with --no-probe".to_owned());
            return None;
        }
        if self.wanted.0.online.iter().all(|group| group.cgroups().is_empty()) {
            self.lose("the probe needs an online group with a cgroup".to_owned());
            return None;
        }
        if self.probe.is_none() || self.scope != self.wanted.0 {
            self.attach(host, now_ms);
        }
        let figures = self.probe.as_ref()?.read(host);
        let figures = match figures {
            Ok(figures) => figures,
            Err(error) => {
                self.lose(error.to_string());
                return None;
            }
        };
        self.parts.take_in(now_ms, &figures);
        let (then_ms, before) = self.before.replace((now_ms, figures.clone()))?;
        let came = figures.since(&before);
        let seconds = now_ms.saturating_sub(then_ms) as f64 / 1e3;
        let online = ProbeWaits {
            blamed_ms_per_s: (seconds > 0.0).then(|| came.wait.of(Kind::Offline) as f64 / 1e6 / seconds),
            preemption_p99_us: came.preempt_delay.quantile(0.99).map(|ns| ns / 1e3),
            preemptions: came.preempt_delay.count(),
        };
        Some(WaitSample { online })
    }

    /// Gives the probe the wanted targets, or loads one in the background.
    fn attach(&mut self, host: &dyn Host, now_ms: u64) {
        if self.loading.as_ref().is_some_and(|loading| !loading.is_finished()) {
            return;
        }
        if let Some(Ok(loaded)) = self.loading.take().map(JoinHandle::join) {
            self.loaded(loaded);
        }
        if self.probe.is_some() && self.scope == self.wanted.0 {
            return;
        }
        let (scope, names) = &self.wanted;
        if let Some(probe) = &mut self.probe
            && let Ok(figures) = probe.read(host)
            && probe.follow(scope).unwrap_or(false)
        {
            self.parts.begin(names, figures);
            (self.scope, self.names) = self.wanted.clone();
            return;
        }
        let pause = AGAIN_MS.checked_shl(self.failures).unwrap_or(AGAIN_MOST_MS).min(AGAIN_MOST_MS);
        if self.tried_ms.is_some_and(|tried| now_ms.saturating_sub(tried) < pause) {
            return;
        }
        self.tried_ms = Some(now_ms);
        (self.probe, self.before) = (None, None);
        self.parts.end();
        self.scope.clone_from(scope);
        self.names.clone_from(names);
        if let Err(error) = preflight::check(host) {
            return self.loaded(Err(error));
        }
        let scope = scope.clone();
        let thread = std::thread::Builder::new().name("probe".to_owned());
        match thread.spawn(move || WaitProbe::attach(&LinuxHost::new(), &scope)) {
            Ok(loading) => self.loading = Some(loading),
            Err(error) => {
                let (what, because) = ("start the thread that loads the probe", error.to_string());
                self.loaded(Err(BlameError::Refused { what, because }));
            }
        }
    }

    /// Begins with a probe that has been loaded.
    fn loaded(&mut self, loaded: Result<WaitProbe, BlameError>) {
        match loaded {
            Ok(probe) => {
                self.parts.begin(&self.names, probe.beginning());
                (self.probe, self.absent, self.failures) = (Some(probe), None, 0);
            }
            Err(error) => {
                self.absent = Some(error.to_string());
                self.failures += 1;
            }
        }
    }

    fn lose(&mut self, why: String) {
        (self.probe, self.loading) = (None, None);
        (self.before, self.absent) = (None, Some(why));
        self.parts.end();
    }

    /// The descriptor that becomes readable when online groups have waited longer than the alarm allows; `None` without
    /// a probe.
    pub fn alarms(&self) -> Option<BorrowedFd<'_>> {
        self.probe.as_ref().map(WaitProbe::alarms)
    }

    /// Sets an alarm for when online groups have waited `wait` for offline work within `window`; `None` disables it.
    pub fn set_alarm(&mut self, wait: Option<Duration>, window: Duration) {
        if let Some(probe) = &mut self.probe
            && let Err(error) = probe.set_alarm(wait, window)
        {
            self.lose(error.to_string());
        }
    }

    /// Returns the probe's last alarm since the previous call.
    pub fn take_alarm(&mut self) -> Option<RaisedAlarm> {
        self.probe.as_mut()?.take_alarm()
    }

    /// Takes a sample after an alarm. The sample's wait for offline work is that of the alarm's window, if that is
    /// higher than the average since the last sample.
    pub fn look_alarmed(
        &mut self,
        host: &dyn Host,
        now_ms: u64,
        alarm: Option<RaisedAlarm>,
    ) -> Option<WaitSample> {
        let alarm = alarm.map(|alarm| alarm.blamed_ms_per_s);
        let mut seen = self.look(host, now_ms)?;
        let blamed = &mut seen.online.blamed_ms_per_s;
        *blamed = match (*blamed, alarm) {
            (Some(since), Some(alarm)) => Some(since.max(alarm)),
            (since, alarm) => since.or(alarm),
        };
        Some(seen)
    }
}

/// The online and offline cgroups in the hierarchy of the CPU controller (or in the unified hierarchy, if there is
/// none), a target for each group, and the groups' names.
pub(crate) fn scope(planned: &Planned) -> (Scope, Names) {
    let actual = &planned.actual;
    let unified = actual.hierarchies.iter().position(|one| one.version == Version::V2);
    let Some(hierarchy) = actual.hierarchy_of(Controller::Cpu).or(unified) else {
        return (Scope::default(), Names::default());
    };
    let groups = |class: Class| planned.desired.groups.iter().filter(move |group| group.class == class);
    let cgroups = |group: &DesiredGroup| {
        let found = group.members.iter().filter_map(|member| {
            let path = member.path.clone();
            Some((path.clone(), actual.cgroups.get(&CgroupRef { hierarchy, path })?.inode))
        });
        found.unzip()
    };
    let (mut scope, mut names) =
        (Scope { interrupts: true, by_target: true, ..Scope::default() }, Names::default());
    for group in groups(Class::Online) {
        let (paths, ids): (BTreeSet<CgroupPath>, Vec<u64>) = cgroups(group);
        names.online.push((group.name.to_string(), paths));
        scope.online.push(Subject::Cgroups(ids));
    }
    for group in groups(Class::Offline) {
        let (_, ids): (BTreeSet<CgroupPath>, Vec<u64>) = cgroups(group);
        names.offline.push(group.name.to_string());
        scope.offline.push(Subject::Cgroups(ids));
    }
    scope.unified = actual.hierarchies[hierarchy].version == Version::V2;
    (scope, names)
}
