//! Finds the manager of the unified hierarchy, and the group below which commensal may create groups in every hierarchy:
//!
//! * The group that the user has chosen, if it exists: in the unified hierarchy or, if that has no controllers, in any
//!   v1 hierarchy. In the others a plan creates it.
//! * Without a unified hierarchy that has controllers: the root.
//! * Root without a manager: the root of the hierarchy.
//! * With systemd: the unit of this process, if it has `Delegate=yes`. systemd marks the group of such a unit with the
//!   extended attributes `trusted.delegate` (for root) and `user.delegate` (since 251).
//! * Another user: the highest group at or above this process's group whose files belong to that user (cgroup-v2.rst,
//!   "Model of Delegation"); below a user's systemd, the unit as for root with systemd.

use crate::processes::places;
use commensal_core::actual::{CgroupPath, Hierarchy, Manager, Tenancy};
use commensal_host::{Dir, Host, below};
use std::path::Path;

/// Examines the hierarchies. `chosen` is the parent group chosen by the user.
pub fn look(host: &mut dyn Host, hierarchies: &[Hierarchy], chosen: Option<&CgroupPath>) -> Tenancy {
    let unified = hierarchies.iter().find(|hierarchy| hierarchy.has_v2_controllers());
    // In a container that has the host's cgroup tree, only the tree itself shows whether systemd manages the tree.
    let systemd = unified.is_some_and(|unified| {
        host.list(Path::new("/run/systemd/system")).is_ok()
            || is_there(host, unified, &CgroupPath::new("/init.scope"))
    });
    if let Some(chosen) = chosen {
        // If the user chose the root of the hierarchy, commensal treats it as not managed: that is the user's decision.
        let manager = if systemd && chosen.depth() > 0 { Manager::Systemd } else { Manager::Nobody };
        let there = match unified {
            Some(unified) => is_there(host, unified, chosen),
            None => hierarchies.iter().any(|one| !one.controllers.is_empty() && is_there(host, one, chosen)),
        };
        let obstacle = match there {
            false => Some(format!("there is no cgroup {chosen} (--cgroup-root)")),
            true => unified.and_then(|unified| out_of_reach(host, unified, chosen)),
        };
        return Tenancy { manager, base: chosen.clone(), obstacle };
    }
    let Some(unified) = unified else { return Tenancy::default() };
    let manager = if systemd { Manager::Systemd } else { Manager::Nobody };
    match (systemd, host.euid()) {
        (false, 0) => Tenancy { manager, ..Tenancy::default() },
        (true, _) => of_unit(host, unified, manager),
        (false, _) => Tenancy { manager, base: given(host, unified).unwrap_or_default(), obstacle: None },
    }
}

/// Whether systemd has marked the group as delegated.
pub(crate) fn delegated(host: &mut dyn Host, dir: Dir) -> bool {
    ["trusted.delegate", "user.delegate"]
        .iter()
        .any(|name| host.attribute(dir, name).is_ok_and(|value| value.as_deref() == Some("1")))
}

fn open(host: &mut dyn Host, hierarchy: &Hierarchy, path: &CgroupPath) -> Option<Dir> {
    host.open(&below(Path::new(&hierarchy.mount), path.as_str())).ok()
}

fn is_there(host: &mut dyn Host, hierarchy: &Hierarchy, path: &CgroupPath) -> bool {
    open(host, hierarchy, path).map(|dir| host.close(dir)).is_some()
}

/// Returns the group of this process in the unified hierarchy.
fn own(host: &dyn Host, unified: &Hierarchy) -> Option<CgroupPath> {
    places(host, Path::new("/proc/self/cgroup"), std::slice::from_ref(unified)).remove(&0)
}

/// Finds the unit of this process, if systemd has delegated it and this process may write there.
fn of_unit(host: &mut dyn Host, unified: &Hierarchy, manager: Manager) -> Tenancy {
    let own = own(host, unified).unwrap_or_default();
    let unit = own.unit().and_then(|unit| Some((open(host, unified, &unit)?, unit)));
    let found = unit.and_then(|(dir, unit)| {
        // For a user below the machine's systemd, ownership of the files suffices, because systemd before 251 marks
        // delegated units for root only. Below user@UID.service ownership does not suffice: the files always belong to
        // the user, and the user's systemd writes them.
        let files = host.may_write(dir, "cgroup.subtree_control");
        let of_user = unit.ancestors().iter().any(|above| above.name().starts_with("user@"));
        let usable = files && (delegated(host, dir) || (host.euid() != 0 && !of_user));
        host.close(dir);
        usable.then_some(unit)
    });
    match found {
        Some(base) => Tenancy { manager, base, obstacle: None },
        None => {
            let obstacle = format!(
                "systemd manages this cgroup tree, and nothing shows that it has delegated any of it to this process, which \
                 runs in {own}"
            );
            Tenancy { manager, base: CgroupPath::root(), obstacle: Some(obstacle) }
        }
    }
}

/// Returns why a process of a user other than root cannot be moved to `chosen`; `None` if it can. The common ancestor
/// of `chosen` and the process's current group must belong to the user, too (cgroup-v2.rst, "Delegation Containment").
fn out_of_reach(host: &mut dyn Host, unified: &Hierarchy, chosen: &CgroupPath) -> Option<String> {
    let own = own(host, unified).filter(|_| host.euid() != 0)?;
    let mut above = own.ancestors();
    above.push(own.clone());
    let common = above.into_iter().rev().find(|path| path.contains(chosen))?;
    let dir = open(host, unified, &common)?;
    let writable = host.may_write(dir, "cgroup.procs");
    host.close(dir);
    (!writable).then(|| {
        format!("this process runs in {own} and may not move to {chosen}: {common} above both belongs to another user")
    })
}

/// Returns the highest group, at or above the group of this process, that belongs to this user.
fn given(host: &mut dyn Host, unified: &Hierarchy) -> Option<CgroupPath> {
    let own = own(host, unified)?;
    let mut above = own.ancestors();
    above.push(own);
    above.into_iter().find(|path| {
        let Some(dir) = open(host, unified, path) else { return false };
        let writable =
            ["cgroup.procs", "cgroup.subtree_control"].iter().all(|file| host.may_write(dir, file));
        host.close(dir);
        writable
    })
}
