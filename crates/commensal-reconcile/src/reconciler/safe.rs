//! Journals the safe value of every setting before the setting is written. Safe values are in force when no agent runs.

use super::Reconciler;
use super::steps::key_of;
use crate::drivers::apply::safe_records;
use crate::instance::ReconcileError;
use crate::journal::{Journal, Target};
use crate::request::{PlanRequest, Planned, SafeRequest};
use commensal_core::actual::ActualState;
use commensal_core::cpuset::CpuSet;
use commensal_core::desired::DesiredState;
use commensal_core::group::GroupSpec;
use commensal_core::plan::{Step, safe_settings};
use commensal_host::Host;

/// The journalled safe state: its groups, and the CPUs left to offline groups.
#[derive(Debug, Default)]
pub(super) struct Announced(Option<(Vec<GroupSpec>, Option<CpuSet>)>);

impl Announced {
    /// Whether the request has a safe state that differs from the journalled one.
    pub(super) fn differs(&self, request: &PlanRequest<'_>) -> bool {
        request.safe.is_some_and(|safe| {
            self.0.as_ref().is_none_or(|(specs, floor)| specs != safe.specs || floor.as_ref() != safe.floor)
        })
    }

    fn is(&mut self, safe: &SafeRequest<'_>) {
        self.0 = Some((safe.specs.to_owned(), safe.floor.cloned()));
    }
}

impl Reconciler {
    /// Queues safe values in the journal, which writes them with its next records. Skips values that have a valid
    /// record already.
    pub(super) fn announce(
        &mut self,
        host: &mut dyn Host,
        steps: &[Step],
        planned: &Planned,
        request: &PlanRequest<'_>,
        journal: &mut Journal,
    ) -> Result<(), ReconcileError> {
        let Some(safe) = request.safe else { return Ok(()) };
        if !self.announced.differs(request)
            && steps.iter().all(|step| is_known(step, &planned.actual, journal))
        {
            return Ok(());
        }
        let adjust = |desired: &mut DesiredState| {
            if let Some(floor) = safe.floor {
                desired.keep_offline_to(floor);
            }
        };
        let alone = PlanRequest { specs: safe.specs, adjust: &adjust, ..*request };
        let desired = self.instance.desired(&self.survey.machine, &alone, &planned.actual)?;
        let settings = safe_settings(&planned.desired, &desired, &planned.actual, &self.survey.caps);
        let records = safe_records(host, &planned.actual, &settings);
        // While the container engine does not respond, it is unknown which container a cgroup belongs to.
        if planned.actual.engines.obstacle.is_none() {
            journal.forget_safe(host, &planned.actual, &records)?;
        }
        journal.announce_safe(records);
        self.announced.is(&safe);
        Ok(())
    }
}

/// Whether the safe value of the setting that a step writes is in the journal.
fn is_known(step: &Step, actual: &ActualState, journal: &Journal) -> bool {
    let Some(key) = key_of(step, actual) else { return true };
    let mount = actual.hierarchies.get(key.hierarchy).map(|one| one.mount.clone()).unwrap_or_default();
    let group = Target { mount, path: step.place.path.as_str().to_owned(), inode: key.inode };
    let device = key.device.map(|device| device.to_string());
    journal.has_safe(&group, &key.knob.to_string(), device.as_deref())
}
