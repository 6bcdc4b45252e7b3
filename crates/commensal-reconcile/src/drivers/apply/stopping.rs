//! Freezes groups that contain tasks of groups below level 0 (`cpu.qos_level` of openEuler's kernel). Such tasks may
//! get no CPU time, so they are lifted (moved to a group at level 0 or above) before the freeze and moved back
//! afterwards.
//! In cgroup v1 a task is frozen when it leaves the kernel. A starving task does not get there while online work is
//! busy (observed: `FREEZING` for 15 s, `FROZEN` 18 ms after the online work had ended).

use super::{Refusal, Work};
use crate::drivers::level;
use crate::drivers::lifted_group::{LiftError, lift_group, lower_group};
use crate::journal::{Journal, Lifting};
use commensal_core::actual::{CgroupPath, CgroupRef};
use commensal_core::knob::{Controller, KnobId, Value};
use commensal_host::{Dir, below};
use commensal_sensors::processes::places;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// The cgroup v1 file with the state of a group's freezer.
const FILE: &str = "freezer.state";
/// Content of that file while some task has not stopped yet.
const FREEZING: &str = "FREEZING";

/// Maximum number of groups below level 0 whose members are lifted.
const MOST: usize = 64;
/// Maximum number of threads whose groups are determined.
const LOOKED_AT: usize = 1_024;
/// How long to wait until all tasks have stopped. A starving task checks its group at intervals of at most 1 s
/// (`kernel.qos_offline_wait_interval_ms`, 100 to 1000).
const PATIENCE: Duration = Duration::from_millis(1_500);
/// Pause between two checks.
const PAUSE: Duration = Duration::from_millis(5);

impl Work<'_> {
    /// Freezes a group; in cgroup v1 its members are lifted meanwhile. Adds a note if some task does not stop.
    pub(crate) fn stop(
        &mut self,
        place: &CgroupRef,
        to: &Value,
        journal: &mut Journal,
    ) -> Result<(), Refusal> {
        let dir = self.dir(place)?;
        let (lifted, refused) = self.lift_members(dir, journal);
        let written = self.write(place, (KnobId::CgroupFreeze, None), to);
        let since = Instant::now();
        while written.is_ok() && !lifted.is_empty() && self.is_freezing(dir) && since.elapsed() < PATIENCE {
            std::thread::sleep(PAUSE);
        }
        let some = !lifted.is_empty() || refused.is_some();
        for group in lifted {
            if let Err(error) = lower_group(self.host, journal, &group) {
                self.aloft.push(format!(
                    "members of {} that were lifted for the freeze could not be moved back: {error}; `commensal restore` does it",
                    group.shown()
                ));
            }
        }
        if written.is_ok() && some && self.is_freezing(dir) {
            let because = refused.map(|error| format!(": {error}")).unwrap_or_default();
            self.outcome.told.push(format!(
                "{} {FILE} is {FREEZING} after {} ms, not FROZEN: some of its tasks have not stopped{because}",
                self.actual.show(place),
                since.elapsed().as_millis()
            ));
        }
        written
    }

    /// Lifts the members of all groups below level 0 that contain tasks of a group of the freezer hierarchy.
    fn lift_members(&mut self, dir: Dir, journal: &mut Journal) -> (Vec<Lifting>, Option<LiftError>) {
        let (mut lifted, mut refused) = (Vec::new(), None);
        // Members are lifted only on cgroup v1: the v2 freezer also stops a task that is inside the kernel.
        let Some(cpu) =
            self.actual.hierarchy_of(Controller::Cpu).filter(|_| self.host.read(dir, FILE).is_ok())
        else {
            return (lifted, refused);
        };
        let mount = self.actual.hierarchies[cpu].mount.clone();
        for path in self.low_groups(dir, cpu) {
            match lift_group(self.host, journal, (&mount, &path), None) {
                Ok(group) => lifted.extend(group),
                Err(error) => refused = Some(error),
            }
        }
        (lifted, refused)
    }

    fn is_freezing(&mut self, dir: Dir) -> bool {
        self.host.read(dir, FILE).is_ok_and(|state| state.trim() == FREEZING)
    }

    /// Returns the groups below level 0 that contain tasks in or below a group of the freezer hierarchy.
    fn low_groups(&mut self, dir: Dir, cpu: usize) -> Vec<CgroupPath> {
        let mut paths: BTreeSet<CgroupPath> = BTreeSet::new();
        for tid in level::threads(self.host, dir).unwrap_or_default().into_iter().take(LOOKED_AT) {
            let file = format!("/proc/{tid}/cgroup");
            paths.extend(places(self.host, Path::new(&file), &self.actual.hierarchies).remove(&cpu));
            if paths.len() >= MOST {
                break;
            }
        }
        let mount = self.actual.hierarchies[cpu].mount.clone();
        let low = |path: &CgroupPath| {
            let Ok(dir) = self.host.open(&below(Path::new(&mount), path.as_str())) else { return false };
            let level = level::of(self.host, dir);
            self.host.close(dir);
            level.is_some_and(|level| level < 0)
        };
        paths.into_iter().filter(low).collect()
    }
}
