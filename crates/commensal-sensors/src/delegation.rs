//! Who manages the unified hierarchy, and below which group we may make our own.
//!
//! * Root where nobody manages: the root of the hierarchy.
//! * Where systemd manages: a unit with `Delegate=yes` that this process runs in. systemd marks such a
//!   group with the extended attribute `trusted.delegate` (for its own use) and `user.delegate` (since 251).
//! * Another user: the highest group above this process whose files were given to that user
//!   (cgroup-v2.rst, "Model of Delegation"); for a user's systemd as above.

use commensal_core::actual::{CgroupPath, Hierarchy, Manager};
use commensal_core::knob::Version;
use commensal_host::{Dir, Host, below};
use std::path::Path;

/// What was found out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tenancy {
    /// Who else manages the hierarchy.
    pub manager: Manager,
    /// Below which group our own groups go.
    pub base: CgroupPath,
    /// Why they cannot be made at all, if so.
    pub obstacle: Option<String>,
}

/// Looks at the unified hierarchy, if controllers are on it. `chosen` is what the user insists on.
pub fn look(host: &mut dyn Host, hierarchies: &[Hierarchy], chosen: Option<&CgroupPath>) -> Tenancy {
    let unified = hierarchies.iter().find(|hierarchy| {
        hierarchy.version == Version::V2 && hierarchy.controllers.iter().any(|one| !one.built_in(Version::V2))
    });
    let Some(unified) = unified else { return Tenancy::default() };
    // In a container that shares the host's tree only the tree itself tells whose it is.
    let systemd = host.list(Path::new("/run/systemd/system")).is_ok()
        || open(host, unified, &CgroupPath::new("/init.scope")).map(|dir| host.close(dir)).is_some();
    if let Some(chosen) = chosen {
        // The root of the hierarchy means: I know who manages it.
        let manager = if systemd && chosen.depth() > 0 { Manager::Systemd } else { Manager::Nobody };
        let there = open(host, unified, chosen).map(|dir| host.close(dir)).is_some();
        let obstacle = match there {
            false => Some(format!("there is no cgroup {chosen} (--cgroup-root)")),
            true => out_of_reach(host, unified, chosen),
        };
        return Tenancy { manager, base: chosen.clone(), obstacle };
    }
    let manager = if systemd { Manager::Systemd } else { Manager::Nobody };
    match (systemd, host.euid()) {
        (false, 0) => Tenancy { manager, ..Tenancy::default() },
        (true, _) => of_unit(host, unified, manager),
        (false, _) => Tenancy { manager, base: given(host, unified).unwrap_or_default(), obstacle: None },
    }
}

/// Whether a manager has handed over what is below the group.
pub(crate) fn delegated(host: &mut dyn Host, dir: Dir) -> bool {
    ["trusted.delegate", "user.delegate"]
        .iter()
        .any(|name| host.attribute(dir, name).is_ok_and(|value| value.as_deref() == Some("1")))
}

fn open(host: &mut dyn Host, unified: &Hierarchy, path: &CgroupPath) -> Option<Dir> {
    host.open(&below(Path::new(&unified.mount), path.as_str())).ok()
}

/// The group of this process in the unified hierarchy.
fn own(host: &dyn Host) -> Option<CgroupPath> {
    let text = host.read_file(Path::new("/proc/self/cgroup")).ok()?;
    text.split('\n').find_map(|line| line.strip_prefix("0::")).map(CgroupPath::new)
}

/// The unit that this process runs in, if systemd has handed it over and we may write there.
fn of_unit(host: &mut dyn Host, unified: &Hierarchy, manager: Manager) -> Tenancy {
    let own = own(host).unwrap_or_default();
    let unit = own.unit().and_then(|unit| Some((open(host, unified, &unit)?, unit)));
    let found = unit.and_then(|(dir, unit)| {
        // To a user of the machine's systemd the files say enough; systemd before 251 marks them for root only. Below
        // user@UID.service the files are the user's anyway, and the user's systemd is the writer.
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

/// Another user's process cannot be moved there unless the group above both is theirs too (cgroup-v2.rst,
/// "Delegation Containment").
fn out_of_reach(host: &mut dyn Host, unified: &Hierarchy, chosen: &CgroupPath) -> Option<String> {
    let own = own(host).filter(|_| host.euid() != 0)?;
    let mut above = own.ancestors();
    above.push(own.clone());
    let common = above.into_iter().rev().find(|path| path.contains(chosen))?;
    let dir = open(host, unified, &common)?;
    let writable = host.may_write(dir, "cgroup.procs");
    host.close(dir);
    (!writable).then(|| {
        format!("this process runs in {own} and may not move to {chosen}: {common} above both belongs to somebody else")
    })
}

/// The highest group at or above our own that belongs to this user.
fn given(host: &mut dyn Host, unified: &Hierarchy) -> Option<CgroupPath> {
    let own = own(host)?;
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
