//! Measures online groups in a window of a canary (an experiment that removes isolation for short times): sums over the
//! ticks' samples, and the counters of a probe that only the canary uses.

use crate::blame_monitor::{self, AGAIN_MS};
use crate::canary::Figures;
use crate::sense::Sample;
use crate::wait_parts::Names;
use commensal_blame::{Kind, Scope, WaitProbe};
use commensal_core::canary::{CanaryLimits, HARM_FROM_MS, HARM_OVER_MS};
use commensal_host::Host;
use commensal_reconcile::Planned;
use std::collections::{BTreeMap, VecDeque};

/// Sums over the measured part of a window.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) seconds: f64,
    /// Integrals over the measured time, by group: run delay (ms), CPU, memory and disk pressure (per cent times
    /// seconds), and CPU time (s). `None` if a sample lacked the value.
    sums: BTreeMap<String, [Option<f64>; 5]>,
    /// The probe's counters at the start of the measurement, by group.
    blamed: Option<BTreeMap<String, Of>>,
}

/// Counters of one group: its wait for offline work and its time on a CPU (ns).
pub(super) type Of = (u64, u64);

/// The canary's own probe. Its counters run through a whole window, unlike the readings of the controllers' probe.
#[derive(Default)]
pub(super) struct Watch {
    probe: Option<WaitProbe>,
    scope: Scope,
    names: Names,
    /// When loading the probe failed (ms), and why.
    absent: Option<(u64, String)>,
    /// The latest readings within the current window, each with its time (ms).
    looks: VecDeque<(u64, BTreeMap<String, Of>)>,
}

impl Watch {
    /// Attaches the probe again if the members have changed. Returns why there is no probe, or `None` if there is one.
    pub(super) fn follow(&mut self, host: &dyn Host, now_ms: u64, planned: &Planned) -> Option<String> {
        let (scope, names) = blame_monitor::scope(planned);
        if self.probe.is_some() && self.scope == scope {
            return None;
        }
        // Do not retry too soon: loading the probe takes a large part of a window.
        if let Some((tried_ms, why)) = &self.absent
            && now_ms.saturating_sub(*tried_ms) < AGAIN_MS
        {
            return Some(why.clone());
        }
        (self.probe, self.names) = (None, names);
        self.looks.clear();
        self.absent = match WaitProbe::attach(host, &scope) {
            Ok(probe) => {
                self.probe = Some(probe);
                None
            }
            Err(error) => Some((now_ms, error.to_string())),
        };
        self.scope = scope;
        self.absent.as_ref().map(|(_, why)| why.clone())
    }

    /// Counters by group since the probe was attached; `None` if there is no probe.
    pub(super) fn totals(&mut self) -> Option<BTreeMap<String, Of>> {
        let subjects = self.probe.as_ref()?.totals().ok()?.subjects;
        let mut groups: BTreeMap<String, Of> = BTreeMap::new();
        for ((name, _), subject) in self.names.online.iter().zip(&subjects) {
            let sum = groups.entry(name.clone()).or_default();
            sum.0 += subject.wait.of(Kind::Offline);
            sum.1 += subject.run_ns;
        }
        Some(groups)
    }

    /// Starts a window, so that waits before the window do not count as harm in it.
    pub(super) fn begin(&mut self) {
        self.looks.clear();
    }

    /// Reads the probe, and returns a message about a group that waits for offline work longer than allowed.
    pub(super) fn harm(&mut self, now_ms: u64, limits: &CanaryLimits) -> Option<String> {
        let now = self.totals()?;
        while self.looks.front().is_some_and(|(at, _)| now_ms.saturating_sub(*at) > HARM_OVER_MS) {
            self.looks.pop_front();
        }
        self.looks.push_back((now_ms, now.clone()));
        let (then_ms, then) = self.looks.front()?;
        let span_ms = now_ms.saturating_sub(*then_ms);
        if span_ms < HARM_FROM_MS {
            return None;
        }
        now.iter().find_map(|(name, counters)| {
            let (blamed_ms, run_s) = since(*counters, *then.get(name)?);
            let much = limits.blamed(blamed_ms, run_s, span_ms as f64 / 1e3)?;
            Some(format!(
                "group {name} waited {much:.0} ms per CPU-second for offline work, more than the limit of {}",
                limits.blamed_ms
            ))
        })
    }
}

/// Returns the difference of two readings: wait (ms) and time on a CPU (s).
fn since(now: Of, then: Of) -> (f64, f64) {
    (now.0.saturating_sub(then.0) as f64 / 1e6, now.1.saturating_sub(then.1) as f64 / 1e9)
}

impl Measured {
    /// Creates empty sums, with the probe's current counters as the start.
    pub(super) fn new(blamed: Option<BTreeMap<String, Of>>) -> Measured {
        Measured { blamed, ..Measured::default() }
    }

    pub(super) fn add(&mut self, sample: &Sample, online: &[String]) {
        let seconds = sample.seconds;
        for name in online {
            let rates = sample.groups.get(name);
            let pressure = rates.map(|rates| rates.pressure_pct).unwrap_or_default();
            let delay = rates.and_then(|rates| rates.run_delay_ms_per_s);
            let cpus = rates.and_then(|rates| rates.cpus);
            let all = [delay, pressure[0], pressure[1], pressure[2], cpus];
            let sums = self.sums.entry(name.clone()).or_insert([Some(0.0); 5]);
            for (sum, rate) in sums.iter_mut().zip(all) {
                *sum = sum.zip(rate).map(|(sum, rate)| sum + rate * seconds);
            }
        }
        self.seconds += seconds;
    }

    /// Computes the measurements of each group; `end` has the probe's counters at the end of the window.
    pub(super) fn figures(&self, end: Option<&BTreeMap<String, Of>>) -> BTreeMap<String, Figures> {
        let rate = |sum: Option<f64>| sum.filter(|_| self.seconds > 0.0).map(|sum| sum / self.seconds);
        let of = |(name, sums): (&String, &[Option<f64>; 5])| {
            let blamed = end.zip(self.blamed.as_ref()).and_then(|(end, begin)| {
                let (wait_ms, run_s) = since(*end.get(name)?, *begin.get(name)?);
                // Use the sampled CPU time instead: the probe counts a thread's time on a CPU only when the thread
                // leaves the CPU.
                let run_s = if run_s > 0.0 { run_s } else { sums[4].unwrap_or(0.0) };
                (run_s > 0.0).then(|| wait_ms / run_s)
            });
            let figures = Figures {
                blamed_ms_per_cpu_s: blamed,
                run_delay_ms_per_s: rate(sums[0]),
                pressure_pct: [rate(sums[1]), rate(sums[2]), rate(sums[3])],
                cpus: rate(sums[4]),
            };
            (name.clone(), figures)
        };
        self.sums.iter().map(of).collect()
    }
}
