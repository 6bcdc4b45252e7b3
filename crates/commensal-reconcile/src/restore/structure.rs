//! Removes groups, disables controllers and removes core-scheduling cookies, if a mark proves that commensal made the
//! change (see `proof`) and nothing else depends on the change.

use super::outcome::Left;
use super::proof;
use super::remains::Remains;
use super::target::open;
use super::values::not_taken;
use crate::drivers::{aside, cookies, members};
use crate::hand::is_gone;
use crate::journal::{Record, Target};
use commensal_core::errno::Errno;
use commensal_core::knob::{Controller, Form, TABLE, Version};
use commensal_core::text;
use commensal_host::{Dir, Host, HostError, below};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// Timeout for killed processes of a dead lab run to leave their groups, together.
const PATIENCE: Duration = Duration::from_secs(5);

/// What `restore` does about processes in the groups that commensal created, and about cgroups below them that somebody
/// else has created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inside {
    /// Processes are killed and cgroups removed: all of them are a lab's own.
    Ends,
    /// Cgroups without processes are removed, as what a command of `run` has left. Processes stay.
    Goes,
    /// Both stay.
    Stays,
}

/// Removes the cookies of a group's threads.
pub(super) fn take_cookies(
    host: &mut dyn Host,
    owners: &BTreeSet<String>,
    target: &Target,
) -> Result<Option<String>, Left> {
    let Some(dir) = open(host, &target.mount, &target.path, Some(target.inode))? else { return Ok(None) };
    let taken = cookies_of(host, owners, target, dir);
    host.close(dir);
    taken
}

fn cookies_of(
    host: &mut dyn Host,
    owners: &BTreeSet<String>,
    target: &Target,
    dir: Dir,
) -> Result<Option<String>, Left> {
    let shown = text::path(&below(Path::new(&target.mount), &target.path));
    let what = format!("threads of {shown} keep their core-scheduling cookie");
    match proof::of_change(host, owners, dir, &Record::Cookied(target.clone()), &what) {
        // commensal was killed between the record and its mark, before it gave any cookie.
        Err(Left::Denied(_)) if !cookies::any(host, dir) => return Ok(None),
        proof => proof?,
    }
    let taken = cookies::take(host, dir);
    // A missing group gives the same error numbers as a kernel without core scheduling or SMT.
    let gone = matches!(&taken, Err(error) if is_gone(error)) && !cookies::any(host, dir);
    match taken {
        Ok(()) => Ok(Some(format!("threads of {shown} have no core-scheduling cookie any more"))),
        Err(_) if gone => Ok(None),
        Err(error) => Err(Left::Failed(error)),
    }
}

/// Empties the groups of these records, in one pass over all hierarchies: kills all processes in and below the groups, or
/// waits for those that exit. A process that is still there is the reason why its group stays.
pub(super) fn empty(host: &mut dyn Host, owners: &BTreeSet<String>, records: &[Record], kill: bool) {
    let mut groups = Vec::new();
    for record in records {
        let Record::Created(Target { mount, path, inode }) = record else { continue };
        // This process may be in a group into which it moved itself (see `aside`).
        if path.ends_with(aside::ENDING) {
            continue;
        }
        let Ok(Some(dir)) = open(host, mount, path, Some(*inode)) else { continue };
        match proof::of_creation(host, owners, (mount, path), dir) {
            Ok(()) => groups.push(dir),
            Err(_) => host.close(dir),
        }
    }
    match kill {
        true => drop(members::kill_all(host, &groups, PATIENCE)),
        false => members::wait_for_exits(host, &groups),
    }
    groups.into_iter().for_each(|dir| host.close(dir));
}

/// Removes a group that commensal created. `inode` is `None` if the journal only announces the creation. In that case
/// the group is removed only if it is empty. A group that stays because it is in use is added to `remains`.
pub(super) fn remove(
    host: &mut dyn Host,
    owners: &BTreeSet<String>,
    (mount, path): (&str, &str),
    inode: Option<u64>,
    (inside, remains): (Inside, &mut Remains),
) -> Result<Option<String>, Left> {
    let Some(dir) = open(host, mount, path, inode)? else { return Ok(None) };
    if let Err(left) = proof::of_creation(host, owners, (mount, path), dir) {
        host.close(dir);
        return Err(left);
    }
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    let shown = text::path(&below(Path::new(mount), path));
    // Only from the group into which `aside` moved this process. A commensal process that was started inside another
    // group stays there.
    if name.ends_with(aside::ENDING)
        && let Err(error) = move_back(host, dir, &below(Path::new(mount), above), inside)
    {
        host.close(dir);
        return Err(Left::Busy(format!("{shown} was left: this process is in it ({error})")));
    }
    let used = members::others(host, dir);
    // A command that keeps running must not stay frozen.
    if used && inode.is_some() {
        members::thaw(host, dir);
    }
    if inode.is_some() && (inside == Inside::Ends || (inside == Inside::Goes && !used)) {
        members::remove_below(host, dir);
    }
    let parent = host.open(&below(Path::new(mount), above));
    let removed = parent.and_then(|parent| {
        let removed = host.rmdir(parent, name, dir.inode);
        host.close(parent);
        removed
    });
    host.close(dir);
    match removed {
        Ok(()) => Ok(Some(format!("removed {shown}"))),
        Err(error) if error.errno == Errno::ENOENT => match open(host, mount, path, Some(dir.inode))? {
            Some(dir) => {
                host.close(dir);
                Err(Left::Failed(error))
            }
            None => Ok(None),
        },
        Err(error) if error.errno == Errno::EBUSY => {
            remains.add((mount, path), error);
            Err(Left::Waits)
        }
        Err(error) => Err(Left::Failed(error)),
    }
}

/// Moves this process from its `aside` group, if it is in it, back to the group above. Kills the others of a lab there.
fn move_back(host: &mut dyn Host, dir: Dir, above: &Path, inside: Inside) -> Result<(), HostError> {
    let own = std::process::id();
    let all = members::pids(host, dir).unwrap_or_default();
    if all.contains(&own) {
        let above = host.open(above)?;
        let back = host.write(above, "cgroup.procs", &own.to_string());
        host.close(above);
        back?;
    }
    if inside == Inside::Ends && all.iter().any(|pid| *pid != own) {
        let _ = members::kill_all(host, &[dir], PATIENCE);
    }
    Ok(())
}

/// Disables a controller that commensal enabled, unless a child group uses it.
pub(super) fn disable(
    host: &mut dyn Host,
    owners: &BTreeSet<String>,
    group: &Target,
    controller: &str,
) -> Result<Option<String>, Left> {
    let Some(dir) = open(host, &group.mount, &group.path, Some(group.inode))? else { return Ok(None) };
    let disabled = disable_in(host, owners, (group, dir), controller);
    host.close(dir);
    disabled
}

fn disable_in(
    host: &mut dyn Host,
    owners: &BTreeSet<String>,
    (group, dir): (&Target, Dir),
    controller: &str,
) -> Result<Option<String>, Left> {
    let is_enabled = |host: &mut dyn Host| -> Result<bool, HostError> {
        let enabled = host.read(dir, "cgroup.subtree_control")?;
        Ok(enabled.split_whitespace().any(|name| name == controller))
    };
    if !is_enabled(host).unwrap_or_default() {
        return Ok(None);
    }
    let shown = text::path(&below(Path::new(&group.mount), &group.path));
    let what = format!("{controller} stays enabled in {shown}");
    let record = Record::Enabling { group: group.clone(), controller: controller.to_owned() };
    proof::of_change(host, owners, dir, &record, &what)?;
    if let Some(user) = user_of(host, dir, controller) {
        return Err(Left::Busy(format!("{what}: group {} uses it", text::visible(&user))));
    }
    let off = format!("-{controller}");
    let written = host.write(dir, "cgroup.subtree_control", &off).and_then(|()| match is_enabled(host)? {
        true => Err(not_taken(format!("{shown}/cgroup.subtree_control"), &off)),
        false => Ok(()),
    });
    match written {
        Ok(()) => Ok(Some(format!("disabled {controller} in {shown}"))),
        Err(error) if error.errno == Errno::EBUSY && error.operation == "write" => {
            Err(Left::Busy(format!("{what}: a group below enables it as well ({error})")))
        }
        Err(error) => Err(Left::Failed(error)),
    }
}

/// Returns a child group whose value of this controller is not the default. Disabling the controller would lose this
/// value.
fn user_of(host: &mut dyn Host, dir: Dir, controller: &str) -> Option<String> {
    let controller = Controller::from_name(controller, Version::V2)?;
    let files: Vec<_> =
        TABLE.iter().filter(|row| row.controller == controller).filter_map(|row| row.v2).collect();
    for name in host.children(dir).unwrap_or_default() {
        let Ok(child) = host.open_child(dir, &name) else { continue };
        let changed = files.iter().any(|file| {
            let text = host.read(child, file.name).unwrap_or_default();
            let text = text.trim();
            let default = if file.per_device() { "" } else { file.default };
            !matches!(file.form, Form::Trigger | Form::Opaque) && !text.is_empty() && text != default
        });
        host.close(child);
        if changed {
            return Some(name);
        }
    }
    None
}
