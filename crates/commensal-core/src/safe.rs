//! The safe state: the settings that stay in force when no agent runs. Offline (batch) work stays restrained, and
//! online (latency-critical) work has no limits that an agent would have to adapt.

use crate::group::{Class, GroupSpec, SafeState};
use crate::limit::Unattended;

/// Returns the specs of the groups in the safe state. Groups with `safe-state = "restore"` are left out, so that a plan
/// undoes their settings. Offline groups stay unchanged. Online groups keep the settings that protect them (weights,
/// protected memory, exclusive CPUs) and lose all other limits.
#[must_use]
pub fn safe(specs: &[GroupSpec]) -> Vec<GroupSpec> {
    let kept = specs.iter().filter(|spec| spec.safe_state == SafeState::Protect);
    kept.map(|one| match one.class {
        Class::Offline => one.clone(),
        Class::Online => {
            let mut spec = GroupSpec { on_exceed: None, ..one.clone() };
            spec.limits.retain(|row| match row.unattended {
                Unattended::Stays => true,
                Unattended::Lifted => false,
                Unattended::StaysWith(other) => one.limits.contains(other),
            });
            spec
        }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;
    use crate::limit::CPU_WEIGHT;

    // promises 6, 21
    #[test]
    fn online_loses_limits_and_keeps_protection() {
        let text = "[group.web]\nclass = \"online\"\ncpu.weight = 500\ncpu.set = \"0\"\nmemory.max = \"1 GiB\"\nmemory.low = \"1 MiB\"\nio.read = \"1 MiB/s\"\nio.weight = 200\npids.max = 10\n\
                    [group.db]\nclass = \"online\"\ncpu.set = \"0\"\ncpu.partition = \"root\"\n\
                    [group.etl]\nclass = \"offline\"\ncpu.max = \"50 %\"\nmemory.max = \"1 GiB\"\n\
                    [group.tmp]\nclass = \"offline\"\nsafe-state = \"restore\"\n";
        let specs = parse("x", text).unwrap();
        let safe = safe(&specs);
        let find = |name: &str| safe.iter().find(|spec| spec.name.as_str() == name);
        let (web, was) =
            (find("web").unwrap(), specs.iter().find(|spec| spec.name.as_str() == "web").unwrap());
        let keys = |spec: &GroupSpec| spec.limits.iter().map(|(row, _)| row.key).collect::<Vec<_>>();
        assert_eq!(keys(web), ["cpu.weight", "memory.low", "io.weight"]);
        assert_eq!(keys(was).len(), 7);
        assert_eq!(web.limits.get(CPU_WEIGHT), was.limits.get(CPU_WEIGHT));
        assert_eq!(keys(find("db").unwrap()), ["cpu.set", "cpu.partition"]);
        assert_eq!(find("etl"), specs.iter().find(|spec| spec.name.as_str() == "etl"));
        assert_eq!(find("tmp"), None);
        assert_eq!(super::safe(&safe), safe, "safe is safe already");
    }
}
