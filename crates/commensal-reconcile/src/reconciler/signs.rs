//! Signs of a change of the machine that can be read without reading all cgroups.

use commensal_host::Host;
use commensal_sensors::mounts::population;
use commensal_sensors::{Survey, machine, sched_ext};

/// The signs at the time of the last survey and the last round.
#[derive(Debug, Default)]
pub(super) struct Signs {
    /// The online CPUs at the last survey.
    cpus: String,
    /// The kernel's state of sched_ext at the last round.
    schedulers: String,
    /// Whether commensal's scheduler was starting or ejected at the last round, so that its state changes without a
    /// request.
    pub(super) waits_for_scheduler: bool,
    /// The kernel's numbers of cgroups at the last round.
    population: String,
}

impl Signs {
    /// Notes the online CPUs. Called before a survey, so that no later change is missed.
    pub(super) fn note_cpus(&mut self, host: &dyn Host) {
        self.cpus = machine::online_cpus(host);
    }

    pub(super) fn cpus_changed(&self, host: &dyn Host) -> bool {
        machine::online_cpus(host) != self.cpus
    }

    /// Notes the state of sched_ext. Called before a plan, so that no later change is missed.
    pub(super) fn note_schedulers(&mut self, host: &dyn Host) {
        self.schedulers = sched_ext::stamp(host);
    }

    pub(super) fn schedulers_changed(&self, host: &dyn Host) -> bool {
        self.waits_for_scheduler || sched_ext::stamp(host) != self.schedulers
    }

    /// Notes the numbers of cgroups, unless `look_again` says that the next round must read the cgroups in any case.
    pub(super) fn note_population(&mut self, host: &dyn Host, survey: &Survey, look_again: bool) {
        self.population = if look_again { String::new() } else { population(host, &survey.hierarchies) };
    }

    pub(super) fn population_changed(&self, host: &dyn Host, survey: &Survey) -> bool {
        population(host, &survey.hierarchies) != self.population
    }
}
