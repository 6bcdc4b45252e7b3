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

/// Machine-wide disk pressure (per cent) from which the disk pressure of every group is read in every tick.
const DISK_PRESSURE_PCT: f64 = 1.0;

/// The measurements and their sources.
pub(super) struct Sensing {
    pub meters: Meters,
    pub blame_monitor: BlameMonitor,
    /// The probe's sample from between two ticks. The next tick passes it to the controllers.
    pub between_ticks: Option<WaitSample>,
    /// The sample that the controllers received last.
    pub shown_waits: Option<WaitSample>,
    /// CPUs that online groups used, as of the last tick.
    pub online_cpus: Option<f64>,
    /// Memory available without swapping, as of the last tick.
    pub available: Option<Bytes>,
    disks_waited_for: bool,
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

    /// Measures the use since the last tick. `by_quota` says whether a controller has set quotas.
    pub fn sample(
        &mut self,
        host: &mut dyn Host,
        now_ms: u64,
        (hierarchies, desired): (&[Hierarchy], &DesiredState),
        compiled: &Compiled,
        by_quota: bool,
    ) -> Sample {
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
        self.available = commensal_sensors::machine::available(host);
        sample
    }

    /// Returns the probe's sample for the controllers, if a group has a latency target. A sample that was taken between
    /// two ticks is the most recent one.
    pub fn waits(&mut self, host: &dyn Host, now_ms: u64, target_us: Option<f64>) -> Option<WaitSample> {
        let between = self.between_ticks.take();
        target_us?;
        between.or_else(|| self.blame_monitor.look(host, now_ms))
    }
}
