//! Raises the weights of online groups relative to siblings that belong to no group.

use super::{Controllers, Decided, Observation, shown};
use commensal_core::control::weights::WeightInput;
use commensal_core::group::Class;
use commensal_core::knob::KnobId;
use commensal_core::limit::CPU_WEIGHT;
use std::sync::Arc;

impl Controllers {
    /// Sets weights only if there are offline groups. Without offline groups no group yields, so other programs get no
    /// CPU time that was meant for online groups.
    pub(super) fn weights(&mut self, seen: &Observation<'_>, decided: &mut Decided) {
        let offline = || seen.groups(Class::Offline).any(|group| !group.members.is_empty());
        let Some(beside) = seen.in_force.beside.filter(|_| offline()) else {
            return self.weights.clear();
        };
        self.weights.retain(|name, _| beside.contains_key(name));
        for (name, input) in beside {
            let written = seen
                .settings
                .specs
                .iter()
                .find(|spec| spec.name == *name)
                .and_then(|spec| spec.limits.get(CPU_WEIGHT));
            let input = WeightInput { written, ..input.clone() };
            let decision = self.weights.entry(name.clone()).or_default().step(seen.now_ms, &input);
            let why = Arc::new(decision.why);
            let key = (name.clone(), CPU_WEIGHT.key().into());
            let Some(weight) = decision.weight else {
                // The siblings no longer exist; another program may have removed them in this tick.
                decided.why.insert(key, why);
                continue;
            };
            let mut row = shown("weights", Some(name), Some(weight.to_string()), &why);
            row.off = seen.in_force.declined.get(&(name.clone(), KnobId::CpuWeight)).cloned();
            if written.is_none() {
                if row.off.is_none() {
                    decided.why.insert(key, why);
                }
                decided.wants.weights.insert(name.clone(), weight);
            }
            decided.shown.push(row);
        }
    }
}
