//! For `commensal plan`: which values the agent's controllers (control loops) may write later for planned groups. This
//! module reads the siblings of the groups, and [`commensal_core::reach`] makes the list.

use crate::request::Planned;
use crate::siblings;
use commensal_core::config::Compiled;
use commensal_core::reach::{Reach, ReachInput};
use commensal_core::topology::Machine;
use commensal_host::Host;
use std::collections::BTreeMap;

/// Lists the values that the controllers may write for these groups on this machine.
pub fn reach(host: &mut dyn Host, planned: &Planned, machine: &Machine, settings: &Compiled) -> Vec<Reach> {
    let beside = if settings.weights { siblings::of(host, planned) } else { BTreeMap::new() };
    let Planned { desired, actual, plan, .. } = planned;
    commensal_core::reach::reach(ReachInput { desired, actual, plan, machine, settings, beside: &beside })
}

#[cfg(test)]
mod tests;
