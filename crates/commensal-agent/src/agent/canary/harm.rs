//! Watches the windows of a canary (an experiment that removes isolation for short times) for harm to online groups.

use super::measure::Watch;
use crate::agent::early_tick::FAST_MS;
use crate::sense::Sample;
use commensal_core::canary::{CanaryLimits, Side};
use std::collections::BTreeMap;

/// Minimum measured time (s) before run delay is compared with its limit.
const DELAY_OVER_S: f64 = 0.2;

/// Sums by group: time (s) and run delay (ms).
type RunDelays = BTreeMap<String, (f64, f64)>;

/// Compares the waits of online groups with the canary's limits.
pub(super) struct HarmWatch {
    limits: CanaryLimits,
    /// When the probe is read next (ms).
    look_ms: u64,
    /// Run delay of each group while isolation was on.
    calm: RunDelays,
    /// Run delay of each group since the last comparison with the limits.
    recent: RunDelays,
    /// Why the current window must be aborted; `None` if it need not be.
    found: Option<String>,
}

impl HarmWatch {
    pub fn new(limits: CanaryLimits) -> HarmWatch {
        HarmWatch { limits, look_ms: 0, calm: RunDelays::new(), recent: RunDelays::new(), found: None }
    }

    /// Starts a window: the sums since the last comparison start from 0.
    pub fn begin(&mut self) {
        self.recent.clear();
    }

    /// Whether the current window must be aborted.
    pub fn is_found(&self) -> bool {
        self.found.is_some()
    }

    /// Returns why the current window must be aborted, and resets it; `None` if it need not be aborted.
    pub fn take(&mut self) -> Option<String> {
        self.found.take()
    }

    /// Reads the probe, if a reading is due and the limits apply.
    pub fn look(&mut self, now_ms: u64, watch: &mut Watch, limits_apply: bool) {
        if now_ms >= self.look_ms {
            self.look_ms = now_ms + FAST_MS;
            if limits_apply && self.found.is_none() {
                self.found = watch.harm(now_ms, &self.limits);
            }
        }
    }

    /// Adds the run delay since the last tick. `side` says whether isolation was on or off in that time.
    pub fn take_in(&mut self, sample: &Sample, online: &[String], side: Side, in_window: bool) {
        let add = |sums: &mut RunDelays| {
            for name in online {
                let delay = sample.groups.get(name).and_then(|rates| rates.run_delay_ms_per_s);
                let Some(delay) = delay else { continue };
                let sum = sums.entry(name.clone()).or_default();
                *sum = (sum.0 + sample.seconds, sum.1 + delay * sample.seconds);
            }
        };
        if in_window {
            add(&mut self.recent);
            self.found = self.found.take().or_else(|| self.delayed());
        }
        // Windows beyond the limits are left out, because the limits are multiples of the run delay with isolation.
        if side == Side::On && self.found.is_none() {
            add(&mut self.calm);
        }
    }

    /// Returns a message about a group whose run delay since the last comparison exceeds the limit.
    fn delayed(&mut self) -> Option<String> {
        let (calm, limits) = (&self.calm, &self.limits);
        let mut too_much = None;
        self.recent.retain(|name, (seconds, sum)| {
            if *seconds < DELAY_OVER_S {
                return true;
            }
            let (delay, calm) =
                (*sum / *seconds, calm.get(name).map_or(0.0, |calm| calm.1 / calm.0.max(1e-3)));
            let most = limits.most_delay(calm);
            if delay > most {
                too_much = Some(format!(
                    "group {name} waited {delay:.0} ms per second for a CPU, more than the limit of {most:.0}"
                ));
            }
            false
        });
        too_much
    }
}
