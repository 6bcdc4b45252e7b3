//! Holds the queues of groups that starve (their tasks want a CPU and get none), because new work would starve as well.

use super::{Controllers, Decided, Observation, shown};
use commensal_core::control::Explanation;
use commensal_core::group::Class;
use std::sync::Arc;

const FORMULA: &str = "queue_held = threads >= 1";

impl Controllers {
    pub(super) fn starvation(&mut self, seen: &Observation<'_>, decided: &mut Decided) {
        let offline = seen.settings.specs.iter().filter(|spec| spec.class == Class::Offline);
        for spec in offline.filter(|spec| spec.admission().is_some()) {
            let name = &spec.name;
            if let Some(starved) = seen.measured.starved.get(name) {
                let rule = format!(
                    "the group's tasks have had no CPU time beside online work since {}, and new tasks would get none either",
                    starved.since
                );
                let threads = f64::from(u32::try_from(starved.threads).unwrap_or(u32::MAX));
                let why = Arc::new(Explanation::new(rule, FORMULA).with("threads", threads, ""));
                decided.shown.push(shown(
                    "starvation",
                    Some(name),
                    Some("takes no new work".to_owned()),
                    &why,
                ));
                decided.held.entry(name.clone()).or_insert(why);
            } else if self.starving.contains(name) && !decided.held.contains_key(name) {
                let why = Explanation::new("the group's tasks get CPU time again", FORMULA)
                    .with("threads", 0.0, "");
                decided.opened.insert(name.clone(), Arc::new(why));
            }
        }
        self.starving = seen.measured.starved.keys().cloned().collect();
    }
}
