//! The agent's measurements, at each tick and between two ticks.

use super::early_tick::EarlyTick;
use crate::blame_monitor::{BlameMonitor, WaitSample};
use crate::levels::Levels;
use crate::sense::{Meters, Sample, WatchPrecision};
use commensal_core::actual::Hierarchy;
use commensal_core::config::Compiled;
use commensal_core::desired::{DesiredGroup, DesiredState};
use commensal_core::group::Class;
use commensal_core::units::Bytes;
use commensal_host::Host;
use commensal_reconcile::Planned;
use std::time::Duration;

/// Machine-wide disk pressure (per cent) from which the disk pressure of every group is read in every tick.
const DISK_PRESSURE_PCT: f64 = 1.0;

/// The measurements and their sources.
pub(super) struct Sensing {
    pub meters: Meters,
    pub blame_monitor: BlameMonitor,
    /// The probe's sample from between two ticks. The next tick passes it to the controllers.
    pub between_ticks: Option<WaitSample>,
    /// The last sample.
    pub shown_waits: Option<WaitSample>,
    /// CPUs that online groups used, as of the last tick.
    pub online_cpus: Option<f64>,
    /// Memory available without swapping, as of the last tick.
    pub available: Option<Bytes>,
    disks_waited_for: bool,
    /// The last sample, and when it was taken (ms).
    sampled: Option<(u64, Sample)>,
    pub early_tick: EarlyTick,
    /// The state of groups below level 0 (`cpu.qos_level`) and of frozen groups.
    pub levels: Levels,
}

impl Sensing {
    /// Creates the sources; `probe` says whether the probe may be loaded.
    pub fn new(probe: bool) -> Sensing {
        Sensing {
            meters: Meters::default(),
            blame_monitor: BlameMonitor::new(probe),
            between_ticks: None,
            shown_waits: None,
            online_cpus: None,
            available: None,
            disks_waited_for: false,
            sampled: None,
            early_tick: EarlyTick::default(),
            levels: Levels::default(),
        }
    }

    /// Measures the cgroups of this plan from now on.
    pub fn follow(&mut self, host: &mut dyn Host, planned: &Planned) {
        self.meters.follow(host, &planned.actual.hierarchies, &planned.desired);
        self.levels.follow(host, &self.meters, planned);
        self.blame_monitor.follow(planned);
    }

    /// Measures the use since the last sample. `by_quota` says whether a controller has set quotas.
    ///
    /// A sample shorter than `least` is none: the kernel counts CPU time in steps of up to 10 ms, so a busy machine would
    /// seem idle, and controllers would divide by that. Then the last sample is returned, with a duration of 0.
    pub fn sample(
        &mut self,
        host: &mut dyn Host,
        (now_ms, least): (u64, Duration),
        (hierarchies, desired): (&[Hierarchy], &DesiredState),
        compiled: &Compiled,
        by_quota: bool,
    ) -> Sample {
        self.available = commensal_sensors::machine::available(host);
        if let Some((at, last)) = &self.sampled
            && Duration::from_millis(now_ms.saturating_sub(*at)) < least
        {
            return Sample { seconds: 0.0, ..last.clone() };
        }
        // Without the probe, the controllers need run delay instead. While the machine has no disk pressure, no group
        // has any. The controller that chooses the quotas' period needs to know whether a quota throttles.
        let by_waits = compiled.target_us().is_some() && self.shown_waits.is_none();
        let by_disks = compiled.io && self.disks_waited_for;
        let closely = |group: &DesiredGroup| match group.class {
            Class::Online if by_waits => WatchPrecision::All,
            Class::Offline if by_quota => WatchPrecision::AtWork,
            _ if by_disks => WatchPrecision::AtWork,
            _ => WatchPrecision::InTurn,
        };
        let sample = self.meters.look(host, now_ms, hierarchies, desired, &closely);
        self.disks_waited_for = sample.machine.pressure_pct[2].is_some_and(|pct| pct >= DISK_PRESSURE_PCT);
        let online = desired.groups.iter().filter(|group| group.class == Class::Online);
        let cpus = online.map(|group| sample.groups.get(group.name.as_str()).and_then(|rates| rates.cpus));
        self.online_cpus = cpus.sum();
        self.sampled = Some((now_ms, sample.clone()));
        sample
    }

    /// Returns the probe's sample, if it is time for one: without a latency target, no controller needs it in every tick. A
    /// sample that was taken between two ticks is the most recent one.
    pub fn waits(
        &mut self,
        host: &mut dyn Host,
        (now_ms, has_target): (u64, bool),
        hierarchies: &[Hierarchy],
    ) -> Option<WaitSample> {
        let due = has_target || self.blame_monitor.is_due(now_ms);
        let look = || if due { self.blame_monitor.look(host, now_ms) } else { None };
        let sample = self.between_ticks.take().or_else(look);
        if sample.is_some() {
            self.blame_monitor.parts.look_around(host, now_ms, hierarchies);
        }
        sample
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_host::fake::FakeHost;
    use commensal_reconcile::{Instance, PlanRequest};
    use commensal_testkit::Dice;
    use std::path::Path;

    /// On a machine whose two CPUs are busy all the time, no sample says anything else, however close together the ticks
    /// are: neither a burst of alarms after a few milliseconds each, nor any other order of ticks.
    // promise 23
    #[test]
    fn a_sample_too_short_to_tell_is_none() {
        const LEAST: Duration = Duration::from_millis(500);
        let fake = FakeHost::v1(2, 1 << 30);
        let instance = Instance::new(Path::new("/state"));
        let survey = instance.survey(&mut fake.another()).unwrap();
        let planned = instance.plan(&mut fake.another(), &survey, &PlanRequest::all(&[])).unwrap();
        let (compiled, desired) = (Compiled::default(), planned.desired);
        for longest in [5, 30, 120, 499, 500, 501, 3_000] {
            let mut dice = Dice::new(longest as u64);
            let (mut sensing, mut host) = (Sensing::new(false), fake.another());
            let (mut now_ms, mut last, mut taken) = (0u64, None, 0u64);
            for tick in 0..2_000 {
                now_ms += 1 + dice.below(longest) as u64;
                // In clock ticks of 10 ms, for both CPUs together.
                fake.set_file("/proc/stat", &format!("cpu  {} 0 0 0 0 0 0 0 0 0\n", 2 * (now_ms / 10)));
                let sample = sensing.sample(&mut host, (now_ms, LEAST), (&[], &desired), &compiled, false);
                if sample.seconds > 0.0 {
                    taken += 1;
                    assert!(sample.seconds >= LEAST.as_secs_f64(), "{longest} {tick}: {sample:?}");
                    let busy = sample.machine.busy.unwrap();
                    assert!((busy - 2.0).abs() <= 0.05, "{longest} {tick}: {sample:?}");
                } else {
                    let before = last.take().unwrap_or_else(|| sample.machine.clone());
                    assert_eq!(sample.machine, before, "{longest} {tick}");
                }
                last = Some(sample.machine);
            }
            assert!(taken >= now_ms / 4_000 && taken <= now_ms / 500, "{longest}: {taken} in {now_ms} ms");
        }
    }
}
