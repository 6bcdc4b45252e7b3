//! The weights of the siblings of online groups' cgroups that belong to no workload group.

use crate::request::Planned;
use commensal_core::actual::{ActualState, CgroupPath, CgroupRef};
use commensal_core::control::weights::WeightInput;
use commensal_core::desired::DesiredState;
use commensal_core::group::{Class, GroupName};
use commensal_core::knob::{Controller, KnobId, Value, Version};
use commensal_core::units::Weight;
use commensal_host::Host;
use std::collections::{BTreeMap, BTreeSet};

/// Reads the siblings of the adopted cgroups of every online group (those that commensal did not create). Cgroups that
/// commensal created have no such siblings, because commensal also created their parent. A sibling that was removed
/// meanwhile is skipped.
pub fn of(host: &mut dyn Host, planned: &Planned) -> BTreeMap<GroupName, WeightInput> {
    let (desired, actual) = (&planned.desired, &planned.actual);
    let Some(hierarchy) = actual.hierarchy_of(Controller::Cpu) else { return BTreeMap::new() };
    let children = unclaimed(desired, actual, hierarchy);
    let mut known: BTreeMap<&CgroupPath, Option<Weight>> = BTreeMap::new();
    let mut inputs = BTreeMap::new();
    for group in desired.groups.iter().filter(|group| group.class == Class::Online) {
        let adopted: Vec<&CgroupPath> =
            group.members.iter().filter(|member| !member.own).map(|member| &member.path).collect();
        let parents: BTreeSet<CgroupPath> = adopted.iter().filter_map(|path| path.parent()).collect();
        let beside = || parents.iter().filter_map(|parent| children.get(parent)).flatten();
        for path in beside() {
            if !known.contains_key(path)
                && let Some(weight) = weight(host, actual, hierarchy, path)
            {
                known.insert(path, weight);
            }
        }
        let input = WeightInput {
            written: None,
            original: adopted.iter().filter_map(|path| original(actual, hierarchy, path)).max(),
            siblings: beside().filter_map(|path| known.get(path).copied()).collect(),
        };
        inputs.insert(group.name.clone(), input);
    }
    inputs
}

/// Cgroups that contain no member of any group, by parent.
fn unclaimed(
    desired: &DesiredState,
    actual: &ActualState,
    hierarchy: usize,
) -> BTreeMap<CgroupPath, Vec<CgroupPath>> {
    let members = desired.groups.iter().flat_map(|group| &group.members).map(|member| &member.path);
    let ours = [&desired.online_parent, &desired.offline_parent];
    let members: BTreeSet<&CgroupPath> = members.chain(ours).collect();
    let mut claimed = BTreeSet::new();
    for path in &members {
        claimed.extend(path.ancestors());
        claimed.insert((*path).clone());
    }
    let mut children: BTreeMap<CgroupPath, Vec<CgroupPath>> = BTreeMap::new();
    let places = actual.cgroups.keys().filter(|place| place.hierarchy == hierarchy);
    for path in places.map(|place| &place.path).filter(|path| !claimed.contains(*path)) {
        let Some(parent) = path.parent().filter(|parent| claimed.contains(parent)) else { continue };
        // Cgroups below a member belong to that member.
        let of_member =
            members.contains(&parent) || parent.ancestors().iter().any(|path| members.contains(path));
        if !of_member {
            children.entry(parent).or_default().push(path.clone());
        }
    }
    children
}

/// The weight that the cgroup had before commensal wrote one.
fn original(actual: &ActualState, hierarchy: usize, path: &CgroupPath) -> Option<Weight> {
    let place = CgroupRef { hierarchy, path: path.clone() };
    let key = (place.clone(), KnobId::CpuWeight, None);
    let now = || actual.cgroups.get(&place)?.values.get(&(KnobId::CpuWeight, None));
    let value = actual.ours.originals.get(&key).or_else(now)?;
    of_value(value, actual.hierarchies[hierarchy].version)
}

/// The current weight of a cgroup: `None` if the cgroup cannot be opened (usually because it no longer exists),
/// `Some(None)` if its weight cannot be read.
fn weight(
    host: &mut dyn Host,
    actual: &ActualState,
    hierarchy: usize,
    path: &CgroupPath,
) -> Option<Option<Weight>> {
    let found = &actual.hierarchies[hierarchy];
    let value = commensal_sensors::value(host, found, path, KnobId::CpuWeight).ok()?;
    Some(value.and_then(|value| of_value(&value, found.version)))
}

fn of_value(value: &Value, version: Version) -> Option<Weight> {
    let Value::Number(number) = value else { return None };
    let number = u64::try_from(*number).ok()?;
    Some(match version {
        Version::V1 => Weight::from_v1_shares(number),
        // An idle cgroup reads 0, and gets the share of the smallest weight.
        Version::V2 => Weight::new(u16::try_from(number.clamp(1, 10_000)).ok()?)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Instance, PlanRequest};
    use commensal_core::config::parse;
    use commensal_host::fake::FakeHost;
    use std::path::Path;

    const GROUPS: &str = "[group.web]\nclass = \"online\"\nmatch = [{ cgroup = \"/svc/web\" }]\n\
        [group.etl]\nclass = \"offline\"\nmatch = [{ cgroup = \"/svc/etl\" }]\n\
        [group.own]\nclass = \"online\"\n";

    fn inputs(v2: bool, more: &[(&str, &str)]) -> BTreeMap<GroupName, WeightInput> {
        let memory = 8 << 30;
        let fake = if v2 { FakeHost::v2(4, memory) } else { FakeHost::v1(4, memory) };
        let mut host = fake.another();
        let root = if v2 { "/sys/fs/cgroup" } else { "/sys/fs/cgroup/cpu" };
        let root = host.open(Path::new(root)).unwrap();
        let svc = host.mkdir(root, "svc").unwrap();
        if v2 {
            for dir in [root, svc] {
                host.write(dir, "cgroup.subtree_control", "+cpu").unwrap();
            }
        }
        for (name, weight) in [("web", ""), ("etl", ""), ("cron", "")].iter().chain(more) {
            let dir = host.mkdir(svc, name).unwrap();
            if !weight.is_empty() {
                host.write(dir, if v2 { "cpu.weight" } else { "cpu.shares" }, weight).unwrap();
            }
        }
        let instance = Instance::new(Path::new("/state"));
        let survey = instance.survey(&mut host).unwrap();
        let specs = parse("groups.toml", GROUPS).unwrap();
        let planned = instance.plan(&mut host, &survey, &PlanRequest::all(&specs)).unwrap();
        of(&mut host, &planned)
    }

    fn numbers(input: &WeightInput) -> Vec<u16> {
        let mut all: Vec<u16> = input.siblings.iter().map(|weight| weight.unwrap().v2()).collect();
        all.sort_unstable();
        all
    }

    // promise 5
    #[test]
    fn siblings_that_no_group_claims_and_their_weights() {
        for (v2, heavy) in [(true, "300"), (false, "3072")] {
            let inputs = inputs(v2, &[("backup", heavy), ("idle", "2")]);
            let web = &inputs[&GroupName::new("web").unwrap()];
            assert_eq!(numbers(web), if v2 { [2, 100, 300] } else { [1, 100, 300] });
            assert_eq!(web.original, Some(Weight::DEFAULT));
            assert!(inputs[&GroupName::new("own").unwrap()].siblings.is_empty(), "below a parent of ours");
            assert!(!inputs.contains_key(&GroupName::new("etl").unwrap()));
        }
    }
}
