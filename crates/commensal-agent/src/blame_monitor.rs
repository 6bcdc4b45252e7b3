//! The agent's probe (a BPF program of commensal-blame): measures, between two ticks, how long online groups wait for
//! offline work.

use commensal_blame::{Figures, Kind, RaisedAlarm, Scope, Subject, WaitProbe};
use commensal_core::actual::CgroupRef;
use commensal_core::control::latency::ProbeWaits;
use commensal_core::group::Class;
use commensal_core::knob::{Controller, Version};
use commensal_host::Host;
use commensal_reconcile::Planned;
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Minimum time between two attempts to load the probe (ms), because the kernel verifies the probe's programs at each
/// attempt, which takes CPU time.
pub(crate) const AGAIN_MS: u64 = 2_000;

/// Measurements of one online group since the last sample.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct GroupWaits {
    /// Wait for offline work per second of the group's CPU time (ms).
    pub blamed_ms_per_cpu_s: Option<f64>,
}

/// Measurements since the last sample.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WaitSample {
    /// Measurements over all online groups.
    pub online: ProbeWaits,
    /// Measurements by group.
    pub groups: BTreeMap<String, GroupWaits>,
}

/// The agent's probe, or the reason why there is none.
#[derive(Debug, Default)]
pub struct BlameMonitor {
    probe: Option<WaitProbe>,
    scope: Scope,
    /// Group name of each online target, in the order of the targets in `scope`.
    names: Vec<String>,
    /// The cgroups to measure (scope) and the group names that the last plan requires.
    wanted: (Scope, Vec<String>),
    before: Option<(u64, Figures)>,
    tried_ms: Option<u64>,
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

    /// Takes a sample, and loads the probe if necessary. Returns `None` without a probe, and at the first reading of a
    /// new probe.
    pub fn look(&mut self, host: &dyn Host, now_ms: u64) -> Option<WaitSample> {
        if self.unwanted {
            self.absent = Some("the agent runs with --no-probe".to_owned());
            return None;
        }
        let (scope, _) = &self.wanted;
        let due = self.tried_ms.is_none_or(|tried| now_ms.saturating_sub(tried) >= AGAIN_MS);
        if scope.online.is_empty() || scope.offline.is_empty() {
            (self.probe, self.before) = (None, None);
            self.absent = Some("the probe needs an online and an offline group with cgroups".to_owned());
            return None;
        }
        if self.scope != *scope
            && let Some(probe) = &mut self.probe
            && probe.follow(scope).unwrap_or(false)
        {
            (self.scope, self.names) = self.wanted.clone();
        }
        let (scope, _) = &self.wanted;
        if (self.scope != *scope || self.probe.is_none()) && due {
            self.tried_ms = Some(now_ms);
            (self.probe, self.before) = (None, None);
            match WaitProbe::attach(host, scope) {
                Ok(probe) => (self.probe, self.absent) = (Some(probe), None),
                Err(error) => self.absent = Some(error.to_string()),
            }
            (self.scope, self.names) = self.wanted.clone();
        }
        let probe = self.probe.as_ref()?;
        let figures = match probe.totals() {
            Ok(figures) => figures,
            Err(error) => {
                (self.probe, self.absent) = (None, Some(error.to_string()));
                return None;
            }
        };
        let (then_ms, before) = self.before.replace((now_ms, figures.clone()))?;
        let came = figures.since(&before);
        let seconds = now_ms.saturating_sub(then_ms) as f64 / 1e3;
        let online = ProbeWaits {
            blamed_ms_per_s: (seconds > 0.0).then(|| came.wait.of(Kind::Offline) as f64 / 1e6 / seconds),
            preemption_p99_us: came.preempt_delay.quantile(0.99).map(|ns| ns / 1e3),
            preemptions: came.preempt_delay.count(),
        };
        Some(WaitSample { online, groups: self.by_group(&came) })
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
            (self.probe, self.absent) = (None, Some(error.to_string()));
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

    fn by_group(&self, came: &Figures) -> BTreeMap<String, GroupWaits> {
        let mut sums: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for (name, subject) in self.names.iter().zip(&came.subjects) {
            let sum = sums.entry(name.clone()).or_default();
            sum.0 += subject.wait.of(Kind::Offline);
            sum.1 += subject.run_ns;
        }
        let of = |(wait, run): (u64, u64)| GroupWaits {
            blamed_ms_per_cpu_s: (run > 0).then(|| wait as f64 / 1e6 / (run as f64 / 1e9)),
        };
        sums.into_iter().map(|(name, sums)| (name, of(sums))).collect()
    }
}

/// The online and offline cgroups in the hierarchy of the CPU controller (or in the unified hierarchy, if there is
/// none), and the group name of each online cgroup.
pub(crate) fn scope(planned: &Planned) -> (Scope, Vec<String>) {
    let actual = &planned.actual;
    let unified = actual.hierarchies.iter().position(|one| one.version == Version::V2);
    let Some(hierarchy) = actual.hierarchy_of(Controller::Cpu).or(unified) else {
        return (Scope::default(), Vec::new());
    };
    let subjects = |class: Class| {
        let groups = planned.desired.groups.iter().filter(move |group| group.class == class);
        groups.flat_map(|group| group.members.iter().map(move |member| (group, member))).filter_map(
            move |(group, member)| {
                let found = actual.cgroups.get(&CgroupRef { hierarchy, path: member.path.clone() })?;
                Some((group.name.to_string(), Subject::Cgroup(found.inode)))
            },
        )
    };
    let (names, online) = subjects(Class::Online).unzip();
    let offline = subjects(Class::Offline).map(|(_, subject)| subject).collect();
    let unified = actual.hierarchies[hierarchy].version == Version::V2;
    (Scope { online, offline, unified, interrupts: false, ..Scope::default() }, names)
}
