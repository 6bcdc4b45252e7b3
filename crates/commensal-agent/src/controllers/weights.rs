//! Weight of online groups relative to siblings that belong to no group.

use super::{Controllers, Decided, Observation, shown};
use commensal_core::control::weights::WeightInput;
use commensal_core::desired::DesiredGroup;
use commensal_core::group::Class;
use commensal_core::knob::KnobId;
use commensal_core::limit::CPU_WEIGHT;
use std::sync::Arc;

impl Controllers {
    /// Only when there are offline groups: otherwise no third party gains from their yielding.
    pub(super) fn weights(&mut self, seen: &Observation<'_>, decided: &mut Decided) {
        let offline = |group: &DesiredGroup| group.class == Class::Offline && !group.members.is_empty();
        let Some(beside) = seen.beside.filter(|_| seen.desired.groups.iter().any(offline)) else {
            return self.weights.clear();
        };
        self.weights.retain(|name, _| beside.contains_key(name));
        for (name, input) in beside {
            let written = seen
                .specs
                .iter()
                .find(|spec| spec.name == *name)
                .and_then(|spec| spec.limits.get(CPU_WEIGHT));
            let input = WeightInput { written, ..input.clone() };
            let decision = self.weights.entry(name.clone()).or_default().step(seen.now_ms, &input);
            let why = Arc::new(decision.why);
            let key = (name.clone(), CPU_WEIGHT.key().to_owned());
            let Some(weight) = decision.weight else {
                // Who ran beside it has gone, perhaps in this very tick.
                decided.why.insert(key, why);
                continue;
            };
            let mut row = shown("weights", Some(name), Some(weight.to_string()), &why);
            row.off = seen.declined.get(&(name.clone(), KnobId::CpuWeight)).cloned();
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
