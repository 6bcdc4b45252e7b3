//! Functions that plan for a machine, change it and restore it, on any host.

use commensal_core::actual::ActualState;
use commensal_core::config::{self, ConfigError};
use commensal_core::plan::Plan;
use commensal_host::Host;
use commensal_reconcile::journal::{self, Journal, Owner};
use commensal_reconcile::{Instance, Outcome, PlanRequest, Planned, ReconcileError, apply};
use commensal_sensors::machine;
use std::path::Path;

/// State directory.
pub const STATE: &str = "/var/lib/commensal";

/// Parses a valid groups file.
pub fn specs(text: &str) -> Vec<commensal_core::group::GroupSpec> {
    config::parse("groups.toml", text).unwrap_or_else(|errors| panic!("{errors:?}"))
}

/// Returns the instance of commensal that the tests use on FakeHost.
pub fn instance() -> Instance {
    Instance::new(Path::new(STATE))
}

/// Surveys the host and plans for `text`.
pub fn planned(host: &mut dyn Host, text: &str) -> Result<(ActualState, Plan), Vec<ConfigError>> {
    let survey = instance().survey(host).unwrap();
    match instance().plan(host, &survey, &PlanRequest::all(&specs(text))) {
        Ok(Planned { actual, plan, .. }) => Ok((actual, plan)),
        Err(ReconcileError::Groups(errors)) => Err(errors),
        Err(error) => panic!("{error}"),
    }
}

/// Like [`planned`], but as `commensal run` plans for one group.
pub fn planned_alone(host: &mut dyn Host, text: &str) -> (ActualState, Plan) {
    let specs = specs(text);
    let own = specs.iter().map(|spec| spec.name.clone()).collect();
    let survey = instance().survey(host).unwrap();
    let planned = instance().plan(host, &survey, &PlanRequest::with_own(&specs, &own)).unwrap();
    (planned.actual, planned.plan)
}

/// Opens the journal of lasting changes.
pub fn journal(host: &mut dyn Host) -> Result<Journal, commensal_reconcile::JournalError> {
    let boot_id = machine::boot_id(host).unwrap();
    let owner = Owner { kind: journal::MACHINE.to_owned(), pid: 1, start_ticks: 0, boot_id };
    Journal::open(host, Path::new(STATE), journal::MACHINE, owner)
}

/// Plans and applies.
pub fn applied(host: &mut dyn Host, text: &str) -> (ActualState, Plan, Outcome) {
    let (found, plan) = planned(host, text).unwrap();
    let mut journal = journal(host).unwrap();
    let outcome = apply(host, &plan.steps, &found, &mut journal);
    if outcome.failure.is_none() {
        commensal_reconcile::forget_settled(host, &plan.settled, &found, &mut journal).unwrap();
    }
    (found, plan, outcome)
}

/// Restores everything, in the current boot.
pub fn restored(host: &mut dyn Host) -> commensal_reconcile::Restored {
    let boot_id = machine::boot_id(host).unwrap();
    commensal_reconcile::restore(host, Path::new(STATE), &boot_id, true).unwrap()
}
