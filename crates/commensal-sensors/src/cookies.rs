//! Core-scheduling cookies of the threads of a group: none, one, or a mixture. Threads with different cookies never run
//! on one core at the same time.

use commensal_core::actual::{ActualState, CgroupRef, Cookies};
use commensal_core::knob::Version;
use commensal_host::{Host, below};
use std::collections::BTreeSet;
use std::path::Path;

/// Reads the cookies of the threads in and below `places` into `actual`. If the kernel has no core scheduling, the
/// cookies stay `None`.
pub fn read(host: &mut dyn Host, actual: &mut ActualState, places: &BTreeSet<CgroupRef>) {
    for place in places {
        let below: Vec<CgroupRef> = actual.below(place).map(|(place, _)| place.clone()).collect();
        let mut found = BTreeSet::new();
        let mut known = true;
        for place in std::iter::once(place).chain(&below) {
            for tid in threads(host, actual, place) {
                match host.cookie(tid) {
                    Ok(cookie) => drop(found.insert(cookie)),
                    // The thread has exited meanwhile.
                    Err(error) if error.errno == commensal_core::errno::Errno::ESRCH => {}
                    Err(_) => known = false,
                }
            }
        }
        let cookies = match (found.len(), found.first()) {
            (0, _) => Cookies::Empty,
            (1, Some(0)) => Cookies::None,
            (1, _) => Cookies::One,
            _ => Cookies::Mixed,
        };
        if let Some(group) = actual.cgroups.get_mut(place) {
            group.cookies = known.then_some(cookies);
        }
    }
}

fn threads(host: &mut dyn Host, actual: &ActualState, place: &CgroupRef) -> Vec<u32> {
    let Some(hierarchy) = actual.hierarchies.get(place.hierarchy) else { return Vec::new() };
    let Ok(dir) = host.open(&below(Path::new(&hierarchy.mount), place.path.as_str())) else {
        return Vec::new();
    };
    let file = if hierarchy.version == Version::V1 { "tasks" } else { "cgroup.threads" };
    let text = host.read(dir, file).unwrap_or_default();
    host.close(dir);
    text.split_whitespace().filter_map(|tid| tid.parse().ok()).collect()
}
