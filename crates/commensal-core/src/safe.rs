//! What is left in force when nobody looks after the machine any more: offline work stays held back, online work is not
//! limited by anything that nobody adapts.

use crate::group::{Class, GroupSpec, IoLimits, SafeState};

/// The groups as they are to be without an agent. Groups with `safe-state = "restore"` are left out, so that a plan takes
/// back what was written for them; online groups keep what protects them (weights, memory that is not reclaimed, CPUs of
/// their own) and lose every limit.
#[must_use]
pub fn safe(specs: &[GroupSpec]) -> Vec<GroupSpec> {
    let kept = specs.iter().filter(|spec| spec.safe_state == SafeState::Protect);
    kept.map(|spec| match spec.class {
        Class::Offline => spec.clone(),
        Class::Online => {
            let mut spec = spec.clone();
            spec.cpu_max = None;
            spec.cpu_set = spec.cpu_set.filter(|_| spec.cpu_partition.is_some());
            (spec.memory.high, spec.memory.max, spec.memory.on_exceed) = (None, None, None);
            spec.io = IoLimits {
                weight: spec.io.weight,
                cost: spec.io.cost,
                devices: spec.io.devices,
                ..IoLimits::default()
            };
            spec.pids_max = None;
            spec
        }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

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
        assert_eq!(
            (web.cpu_weight, &web.memory.low, web.io.weight),
            (was.cpu_weight, &was.memory.low, was.io.weight)
        );
        assert_eq!((web.cpu_max, &web.cpu_set, web.pids_max, web.io.read), (None, &None, None, None));
        assert_eq!((&web.memory.max, &web.memory.high), (&None, &None));
        assert!(find("db").unwrap().cpu_set.is_some());
        assert_eq!(find("etl"), specs.iter().find(|spec| spec.name.as_str() == "etl"));
        assert_eq!(find("tmp"), None);
        assert_eq!(super::safe(&safe), safe, "safe is safe already");
    }
}
