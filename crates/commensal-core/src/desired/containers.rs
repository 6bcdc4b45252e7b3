//! Decides which group gets a container that the matches of two groups select. Containers start and stop while groups
//! are in force, so such a conflict does not make the groups file invalid. The group that comes first by name gets the
//! container; the other group reports why it does not get the container.

use super::DesiredState;
use crate::actual::{ActualState, CgroupPath};
use crate::group::Class;
use crate::knob::Controller;
use std::collections::BTreeSet;

/// Removes containers from the members of groups that cannot have them, and records the reasons.
pub(super) fn share_out(actual: &ActualState, state: &mut DesiredState) {
    let cpu = actual.hierarchy_of(Controller::Cpu);
    let containers: BTreeSet<CgroupPath> =
        actual.engines.containers.iter().filter_map(|container| container.cgroup(cpu)).collect();
    for index in 0..state.groups.len() {
        let members = std::mem::take(&mut state.groups[index].members);
        let (mut kept, mut told) = (Vec::new(), Vec::new());
        for member in members {
            let obstacle = match containers.contains(&member.path) && !member.own {
                true => obstacle(state, index, &member.path),
                false => None,
            };
            match obstacle {
                Some((because, try_this)) => {
                    told.push((format!("member {}", member.found_by), because, try_this))
                }
                None => kept.push(member),
            }
        }
        state.groups[index].members = kept;
        state.groups[index].elsewhere.extend(told);
    }
}

/// Why the group with this index cannot have the container at `path`, and how to resolve it; `None` if it can. Groups
/// that come later by name still have all their members when this is called.
fn obstacle(state: &DesiredState, index: usize, path: &CgroupPath) -> Option<(String, String)> {
    for (other, group) in state.groups.iter().enumerate().filter(|(other, _)| *other != index) {
        for member in group.members.iter().filter(|member| !member.own) {
            if member.path == *path && other < index {
                let because = format!("group {} has {path} already, and comes first by name", group.name);
                return Some((because, "make the matches narrower".to_owned()));
            }
            let around = member.path != *path && member.path.contains(path);
            if around && group.class == Class::Offline && state.groups[index].class == Class::Online {
                let because = format!(
                    "{path} is inside {} of offline group {} and would yield with it",
                    member.path, group.name
                );
                return Some((because, "start it below another parent (--cgroup-parent)".to_owned()));
            }
        }
    }
    None
}
