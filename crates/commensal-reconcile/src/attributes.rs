//! Sets, lists and copies the extended attributes `trusted.commensal.*` of cgroups (here: groups). Module `marks`
//! defines their contents: copies of journal records.

use crate::hand::is_gone;
use commensal_core::actual::CgroupPath;
use commensal_core::errno::Errno;
use commensal_core::knob::{Controller, TABLE};
use commensal_host::{Dir, Host, HostError, below};
use commensal_sensors::SensorError;
use std::path::Path;

/// Prefix of every attribute's name.
pub(crate) const PREFIX: &str = "trusted.commensal.";

/// Maximum length of an attribute's text in bytes (`XATTR_SIZE_MAX` of linux/limits.h): the kernel neither stores nor
/// returns more.
pub(crate) const MOST_BYTES: usize = 65_536;

/// An attribute that is set and removed at once, to test whether the group can have attributes.
const TRIED: &str = "trusted.commensal.tried";

/// The attribute with the record of a group's lifted members.
pub(crate) const LIFTING: &str = "trusted.commensal.lifting";

/// Number of attempts to set an attribute. A temporary lack of memory must not leave a group without its mark (the
/// attribute with the record of its change), because `restore` does not remove or empty groups without a mark.
const TRIES: u32 = 3;

/// Whether the error means that groups cannot have such attributes on this kernel, or that this user may not set them.
pub(crate) fn is_unavailable(error: &HostError) -> bool {
    matches!(error.errno, Errno::EPERM | Errno::EOPNOTSUPP)
}

/// Sets an attribute.
///
/// # Errors
/// Returns an error when the kernel refuses every attempt.
pub(crate) fn put(host: &mut dyn Host, dir: Dir, name: &str, text: &str) -> Result<(), HostError> {
    let mut done = host.set_attribute(dir, name, Some(text));
    for _ in 1..TRIES {
        match &done {
            Err(error) if !is_unavailable(error) => done = host.set_attribute(dir, name, Some(text)),
            _ => break,
        }
    }
    done
}

/// Tests whether attributes of this group can be set, by setting and removing one.
///
/// # Errors
/// Returns an error when the kernel refuses the attempt for a temporary reason, so that the answer is unknown.
pub(crate) fn can_be_put(host: &mut dyn Host, dir: Dir) -> Result<bool, HostError> {
    match put(host, dir, TRIED, "1") {
        Ok(()) => {
            let _ = host.set_attribute(dir, TRIED, None);
            Ok(true)
        }
        // Later operations cannot change such a group either, so it needs no mark.
        Err(error) if is_unavailable(&error) || is_out_of_reach(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the error means that the group no longer exists or cannot be changed at all.
pub(crate) fn is_out_of_reach(error: &HostError) -> bool {
    is_gone(error) || matches!(error.errno, Errno::EROFS | Errno::EACCES)
}

/// Returns the names of the group's attributes. The kernel cannot list more than 64 KiB of names, as in a group into
/// which some thousand processes were moved. In that case this function returns the names of all attributes that the
/// group can have.
///
/// # Errors
/// Returns an error when the attributes cannot be listed for another reason.
pub(crate) fn names(host: &mut dyn Host, dir: Dir) -> Result<Vec<String>, HostError> {
    match host.attributes(dir, PREFIX) {
        Err(error) if error.errno == Errno::E2BIG => Ok(possible(host, dir)),
        listed => listed,
    }
}

/// Returns the path of the group, or of the nearest one above it, in which commensal keeps a setting in force in some
/// hierarchy: `apply`, an agent, or a run of the lab has changed it and `restore` has not put it back. The root counts for
/// nobody: its settings isolate no group.
///
/// # Errors
/// Returns an error when the hierarchies cannot be listed.
pub fn kept_in_force(host: &mut dyn Host, path: &CgroupPath) -> Result<Option<CgroupPath>, SensorError> {
    let mounts = commensal_sensors::mounts::hierarchies(host)?;
    let nearest_first = [path.clone()].into_iter().chain(path.ancestors().into_iter().rev());
    for group in nearest_first.filter(|group| *group != CgroupPath::root()) {
        for hierarchy in &mounts {
            let Ok(dir) = host.open(&below(Path::new(&hierarchy.mount), group.as_str())) else { continue };
            let found = names(host, dir).is_ok_and(|names| names.iter().any(|name| name != TRIED));
            host.close(dir);
            if found {
                return Ok(Some(group));
            }
        }
    }
    Ok(None)
}

/// Name of the attribute with which a parent group announces that this child is being created. The name contains a
/// checksum of the child's name instead of the name itself, because a cgroup's name can be longer than an attribute's.
pub(crate) fn announcement(child: &str) -> String {
    format!("{PREFIX}creating.{:08x}", crc32fast::hash(child.as_bytes()))
}

fn possible(host: &mut dyn Host, dir: Dir) -> Vec<String> {
    let enabling = Controller::ALL.iter().map(|one| format!("{PREFIX}enabling.{}", one.v2_name()));
    let disks = commensal_sensors::machine::disks(host);
    let of_knob = TABLE.iter().flat_map(|row| {
        let with = disks.iter().map(move |disk| format!("{}@{}", row.id, disk.device));
        with.chain([row.id.to_string()])
    });
    let values = of_knob.flat_map(|knob| ["original", "safe"].map(|kind| format!("{PREFIX}{kind}.{knob}")));
    let inside = host.read(dir, "cgroup.procs").unwrap_or_default();
    let inside = inside.lines().filter_map(|pid| host.process(pid.trim().parse().ok()?).ok());
    let moving = inside.map(|one| format!("{PREFIX}moving.{}.{}", one.pid, one.start_ticks));
    let moving: Vec<String> = moving.collect();
    let creating = host.children(dir).unwrap_or_default().into_iter().map(|child| announcement(&child));
    let single = ["created", "cookied"].map(|kind| format!("{PREFIX}{kind}"));
    single.into_iter().chain(enabling).chain(values).chain(moving).chain(creating).collect()
}

/// Copies the attributes of a group to its replacement, a fresh group, so that the fresh group has them before the old
/// one is removed. The record of lifted members is about the old group only.
///
/// # Errors
/// Returns an error when an attribute cannot be read or set for a temporary reason.
pub(crate) fn copy(host: &mut dyn Host, from: Dir, to: Dir) -> Result<(), HostError> {
    for name in names(host, from)?.into_iter().filter(|name| name != LIFTING) {
        let Some(text) = host.attribute(from, &name)? else { continue };
        match put(host, to, &name, &text) {
            Err(error) if is_unavailable(&error) => return Ok(()),
            done => done?,
        }
    }
    Ok(())
}
