//! Raises the groups that commensal created and that stay because they contain processes. Below level 0
//! (`cpu.qos_level`) these processes may get no CPU time while online work is busy, not even to handle the signal that
//! asks them to end.

use super::outcome::Left;
use super::recreating::restore_by_recreating;
use super::target::open;
use super::undo::Undo;
use crate::drivers::{level, members};
use crate::journal::{Created, Record, Target};
use commensal_host::Host;

/// Replaces every group that commensal created, that is below level 0 and that contains processes, by a fresh group at
/// level 0.
/// Groups whose replacement failed and may be incomplete are stuck then.
pub(super) fn raise(host: &mut dyn Host, undo: &mut Undo<'_>) {
    let created = undo.contents.records.iter().filter_map(|record| match record {
        Record::Created(Created(target)) => Some(target.clone()),
        _ => None,
    });
    let mut groups: Vec<Target> = created.collect();
    groups.sort_by_key(|group| group.path.matches('/').count());
    let mut raised: Vec<Target> = Vec::new();
    for group in groups {
        let is_above = |one: &Target| {
            one.mount == group.mount
                && group.path.strip_prefix(&one.path).is_some_and(|rest| rest.starts_with('/'))
        };
        // A group is replaced together with all groups below it.
        if raised.iter().any(is_above) {
            continue;
        }
        let Ok(Some(dir)) = open(host, &group) else { continue };
        let stays = level::of(host, dir).is_some_and(|level| level < 0) && members::others(host, dir);
        host.close(dir);
        if !stays {
            continue;
        }
        match restore_by_recreating(host, undo, (&group, commensal_sensors::level::FILE, "0")) {
            Ok(Some(line)) => {
                let why = "below level 0 they might get no CPU time and could never exit";
                undo.result.done.push(format!("{line}, because {why}"));
            }
            // The reason is reported later, when the group cannot be removed.
            Ok(None) | Err(Left::Busy(_) | Left::Denied(_) | Left::Waits) => {}
            Err(Left::Failed(error)) => undo.stuck.push((group.clone(), error.to_string())),
        }
        raised.push(group);
    }
}
