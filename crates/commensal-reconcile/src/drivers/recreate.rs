//! Undoes an irreversible setting: moves the members of a group to a fresh group with the same other settings, and
//! gives the fresh group the old group's name. Only `cpu.qos_level` of cgroup v1 (openEuler's kernel), here called
//! level, needs this; cgroup v2 cannot rename groups.
//!
//! ```text
//! /a/x (-1)            /a/x (-1)  members ─►  /a/x.commensal-recreate (0)         /a/x (0)
//!   members     ──►    then the old one goes, and the fresh one has its name ──►    members
//! ```
//! An interrupted replacement is completed by running it again: settings are copied again, and remaining members are
//! moved. A fresh group whose old group is already removed only needs its name.

use crate::attributes;
use crate::drivers::level::{self, Kept};
use crate::runner::as_far_as_possible;
use commensal_core::errno::Errno;
use commensal_core::knob::{Form, KnobId, TABLE, Version};
use commensal_host::{Dir, Host, HostError, below};
use std::path::Path;
use std::time::{Duration, Instant};

/// Suffix of a fresh group's name until it gets the old group's name.
pub(crate) const ASIDE: &str = ".commensal-recreate";

/// Timeout for moving members that keep forking.
const PATIENCE: Duration = Duration::from_secs(5);

/// A group that was replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recreated {
    /// Path of the group.
    pub path: String,
    /// Inode of the old group; 0 if it was removed already.
    pub old: u64,
    /// Inode of the fresh group, which has the old group's name now.
    pub new: u64,
}

/// Replaces the group at `path` by a fresh one. If the level has changed the members' scheduling policy, gives them the
/// normal policy: the kernel leaves the changed policy in place when they move out. Threads in `kept` have a recorded
/// policy, which [`level::put_back`] restores separately. Returns one entry for each group of the subtree.
///
/// # Errors
/// Returns an error when the kernel refuses a step. Calling this function again continues at that step.
pub(crate) fn recreate(
    host: &mut dyn Host,
    mount: &str,
    path: &str,
    kept: &Kept,
) -> Result<Vec<Recreated>, HostError> {
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    let parent = host.open(&below(Path::new(mount), above))?;
    let mut done = Vec::new();
    let result = replace(host, parent, (name, path), kept, &mut done);
    host.close(parent);
    result.map(|()| done)
}

/// Returns the name that a fresh group called `name` will get; `None` if `name` is not the name of a fresh group.
pub(crate) fn replaced_name(name: &str) -> Option<&str> {
    name.strip_suffix(ASIDE)
}

/// Whether a replacement of the group at `path` was begun and not completed.
pub(crate) fn is_begun(host: &mut dyn Host, mount: &str, path: &str) -> bool {
    let aside = host.open(&below(Path::new(mount), &format!("{path}{ASIDE}")));
    aside.map(|dir| host.close(dir)).is_ok()
}

fn replace(
    host: &mut dyn Host,
    parent: Dir,
    (name, path): (&str, &str),
    kept: &Kept,
    done: &mut Vec<Recreated>,
) -> Result<(), HostError> {
    let aside = format!("{name}{ASIDE}");
    let fresh = match host.mkdir(parent, &aside) {
        // An earlier attempt may have created the group: no other program uses this name.
        Err(error) if error.errno == Errno::EEXIST => host.open_child(parent, &aside)?,
        made => made?,
    };
    let moved = match host.open_child(parent, name) {
        Ok(old) => {
            let moved = empty(host, (old, fresh), path, (true, kept), done);
            host.close(old);
            moved.and_then(|()| host.rmdir(parent, name, old.inode))
        }
        Err(error) if error.errno == Errno::ENOENT => {
            done.push(Recreated { path: path.to_owned(), old: 0, new: fresh.inode });
            Ok(())
        }
        Err(error) => Err(error),
    };
    let named = moved.and_then(|()| host.rename(parent, &aside, fresh.inode, name));
    host.close(fresh);
    named
}

/// Empties an old group into a fresh one: copies its marks, and its settings if `copies` is set, moves the members, and
/// does the same for every child group, which it then removes. If a child was half replaced by an earlier attempt, its
/// old and fresh group become one again.
fn empty(
    host: &mut dyn Host,
    (old, fresh): (Dir, Dir),
    path: &str,
    (copies, kept): (bool, &Kept),
    done: &mut Vec<Recreated>,
) -> Result<(), HostError> {
    if copies {
        attributes::copy(host, old, fresh)?;
        copy_settings(host, old, fresh)?;
    }
    let mut names = host.children(old)?;
    // In this order a group comes before its fresh group, which may not have all settings yet.
    names.sort();
    for name in &names {
        let half = replaced_name(name);
        let to = half.unwrap_or(name);
        let path = format!("{path}/{to}");
        let old_child = host.open_child(old, name)?;
        let (fresh_child, made) = match host.mkdir(fresh, to) {
            Err(error) if error.errno == Errno::EEXIST => (host.open_child(fresh, to)?, false),
            made => (made?, true),
        };
        let beside = half.is_some_and(|group| names.iter().any(|name| name == group));
        let copies = made || (copies && !beside);
        let moved = empty(host, (old_child, fresh_child), &path, (copies, kept), done);
        if half.is_some() && !beside {
            done.push(Recreated { path, old: 0, new: fresh_child.inode });
        }
        host.close(fresh_child);
        host.close(old_child);
        moved?;
        host.rmdir(old, name, old_child.inode)?;
    }
    move_members(host, old, fresh, kept)?;
    done.push(Recreated { path: path.to_owned(), old: old.inode, new: fresh.inode });
    Ok(())
}

/// Copies every knob except the irreversible one.
fn copy_settings(host: &mut dyn Host, old: Dir, fresh: Dir) -> Result<(), HostError> {
    copy(host, old, fresh, |_| true)
}

/// Copies the knobs that `pick` chooses, like [`copy_settings`].
pub(crate) fn copy(
    host: &mut dyn Host,
    old: Dir,
    fresh: Dir,
    pick: impl Fn(KnobId) -> bool,
) -> Result<(), HostError> {
    let idle = match host.read(old, "cpu.idle") {
        Ok(text) => text.trim() == "1",
        Err(error) if error.errno == Errno::ENOENT => false,
        Err(error) => return Err(error),
    };
    let mut waiting: Vec<(&str, String)> = Vec::new();
    for row in TABLE.iter().filter(|row| row.id != KnobId::CpuQosLevel && pick(row.id)) {
        let Some(file) = row.file(Version::V1) else { continue };
        // While a group is idle, the file of its weight shows a fixed number and cannot be written.
        let shown_only =
            matches!(file.form, Form::Opaque | Form::Trigger) || (idle && row.id == KnobId::CpuWeight);
        if shown_only {
            continue;
        }
        let Ok(text) = host.read(old, file.name) else { continue };
        if host.read(fresh, file.name).is_ok_and(|now| now == text) {
            continue;
        }
        // A device file takes one line per write.
        let lines = if file.per_device() { text.lines().map(str::to_owned).collect() } else { vec![text] };
        waiting.extend(lines.into_iter().map(|line| (file.name, line.trim().to_owned())));
    }
    let refused = as_far_as_possible(waiting, |(file, text)| write(host, fresh, file, text));
    refused.into_iter().last().map_or(Ok(()), |(_, error)| Err(error))
}

/// Writes a line, and checks that the file reads the same afterwards.
fn write(host: &mut dyn Host, dir: Dir, file: &str, text: &str) -> Result<(), HostError> {
    host.write(dir, file, text)?;
    let now = host.read(dir, file)?;
    match now.trim() == text || now.lines().any(|line| line.trim() == text) {
        true => Ok(()),
        false => {
            let object = format!("a copied {file}, which reads {}", now.trim());
            Err(HostError { operation: "keep", object, value: Some(text.to_owned()), errno: Errno::EBUSY })
        }
    }
}

/// Moves the members thread by thread, because the threads of one process may be in different groups. If the level has
/// changed their policies and the fresh group is not below level 0 itself (it inherits the level of its parent), gives
/// them the normal policy.
fn move_members(host: &mut dyn Host, old: Dir, fresh: Dir, kept: &Kept) -> Result<(), HostError> {
    let is_low = |host: &mut dyn Host, group: Dir| level::of(host, group).is_some_and(|level| level < 0);
    let is_raised = is_low(host, old) && !is_low(host, fresh);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let text = host.read(old, "tasks")?;
        let tids: Vec<u32> = text.split_whitespace().filter_map(|tid| tid.parse().ok()).collect();
        if tids.is_empty() && !is_raised {
            return Ok(());
        }
        if tids.is_empty() {
            // This list includes the members that an interrupted attempt has moved.
            let text = host.read(fresh, "tasks")?;
            let tids = text.split_whitespace().filter_map(|tid| tid.parse().ok());
            return level::make_normal(host, tids, kept);
        }
        for tid in tids {
            match host.write(fresh, "tasks", &tid.to_string()) {
                Ok(()) => {}
                // The thread has exited; a zombie cannot be moved either.
                Err(error) if error.errno == Errno::ESRCH => {}
                Err(error) => return Err(error),
            }
        }
        if Instant::now() > deadline {
            let object = "a group whose members appear faster than they can be moved".to_owned();
            return Err(HostError { operation: "empty", object, value: None, errno: Errno::EBUSY });
        }
    }
}
