//! Moves this process out of a delegated group (a cgroup that was handed to this process to manage). The kernel enables
//! v2 controllers only for the children of a group that contains no processes (cgroup-v2.rst, "No Internal Process
//! Constraint"), but a process that was started in a delegated group is itself in that group. So this process, and no
//! other, moves into a child group before controllers are enabled.

use crate::journal::{Created, Creating, Journal, JournalError, Record, Target};
use commensal_core::actual::{ActualState, CgroupPath, CgroupRef};
use commensal_core::errno::Errno;
use commensal_core::plan::{Action, Step};
use commensal_core::text::visible;
use commensal_host::{Dir, Host, HostError, below};
use std::path::Path;

/// Suffix of the name of the group that this process moves into.
pub(crate) const ENDING: &str = "-self";

/// Why controllers cannot be enabled in the delegated group.
#[derive(Debug, thiserror::Error)]
pub enum DelegationError {
    /// A system call failed.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The undo journal could not be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Other processes are in the group.
    #[error(
        "{group} was delegated but contains other processes ({pids}), and the kernel enables controllers only below a cgroup \
         without processes; start commensal as the only process of its unit (systemd-run --scope -p Delegate=yes \
         commensal …), or set DelegateSubgroup= in the unit (systemd 254 and newer)"
    )]
    Others {
        /// The delegated group.
        group: String,
        /// The PIDs of the processes.
        pids: String,
    },
}

/// Moves this process to the child group `name` if `steps` enable controllers in the delegated group that contains this
/// process. The journal gets a record of the child group first. Returns whether the move was necessary.
///
/// # Errors
/// Returns an error when other processes are in the delegated group, or the system or the journal refuses. This process
/// has not moved in these cases.
pub fn step_aside(
    host: &mut dyn Host,
    steps: &[Step],
    actual: &ActualState,
    name: &str,
    journal: &mut Journal,
) -> Result<bool, DelegationError> {
    let enables =
        |step: &&Step| matches!(step.action, Action::Enable(_)) && step.place.path == actual.tenancy.base;
    let Some(step) = steps.iter().find(enables).filter(|step| step.place.path.depth() > 0) else {
        return Ok(false);
    };
    let CgroupRef { hierarchy, path } = &step.place;
    let Some(mount) = actual.hierarchies.get(*hierarchy).map(|one| one.mount.clone()) else {
        return Ok(false);
    };
    let base = host.open(&below(Path::new(&mount), path.as_str()))?;
    let moved = leave(host, base, &mount, path.as_str(), name, journal);
    host.close(base);
    moved
}

/// Moves this process out of the delegated group `base` immediately, before it starts children, which would start in
/// `base` as well. `prefix` begins the names of commensal's groups. Returns whether the move was necessary.
///
/// # Errors
/// Returns the same errors as [`step_aside`].
pub fn step_out(
    host: &mut dyn Host,
    mount: &str,
    base: &CgroupPath,
    prefix: &str,
    journal: &mut Journal,
) -> Result<bool, DelegationError> {
    let dir = host.open(&below(Path::new(mount), base.as_str()))?;
    let inside =
        crate::drivers::members::pids(host, dir).is_ok_and(|pids| pids.contains(&std::process::id()));
    let name = format!("{prefix}{ENDING}");
    let moved = if inside { leave(host, dir, mount, base.as_str(), &name, journal) } else { Ok(false) };
    host.close(dir);
    moved
}

fn leave(
    host: &mut dyn Host,
    base: Dir,
    mount: &str,
    path: &str,
    name: &str,
    journal: &mut Journal,
) -> Result<bool, DelegationError> {
    let own = std::process::id();
    let inside: Vec<u32> = crate::drivers::members::pids(host, base)?;
    let others: Vec<String> = inside.iter().filter(|pid| **pid != own).map(u32::to_string).collect();
    if !others.is_empty() {
        return Err(DelegationError::Others { group: visible(path).into_owned(), pids: others.join(", ") });
    }
    if inside.is_empty() {
        return Ok(false);
    }
    let target = format!("{path}/{name}");
    journal.append(host, &[Record::Creating(Creating { mount: mount.to_owned(), path: target.clone() })])?;
    let group = match journal.make(host, base, (mount, &target)) {
        // An earlier command in the same unit may have created it.
        Err(error) if error.errno == Errno::EEXIST => host.open_child(base, name)?,
        made => made?,
    };
    let created =
        Record::Created(Created(Target { mount: mount.to_owned(), path: target, inode: group.inode }));
    let known = journal.has(&created);
    let moved = host.write(group, "cgroup.procs", &own.to_string());
    host.close(group);
    moved?;
    if !known {
        journal.append(host, &[created])?;
    }
    Ok(true)
}
