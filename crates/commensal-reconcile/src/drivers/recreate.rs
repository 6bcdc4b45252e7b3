//! Undoes an irreversible setting: the members move to a fresh group with the same settings, which then takes the old
//! one's name. Only cgroup v1 can rename groups, and only its `cpu.qos_level` (openEuler) needs this.
//!
//! ```text
//! /a/x (-1)            /a/x (-1)  members ─►  /a/x.commensal-recreate (0)         /a/x (0)
//!   members     ──►    then the old one goes, and the fresh one has its name ──►    members
//! ```
//! An interruption is completed by running it again: settings are copied again, remaining members are moved, and a
//! fresh group without an old one only needs its name.

use commensal_core::errno::Errno;
use commensal_core::knob::{Form, KnobId, TABLE, Version};
use commensal_core::process::Stat;
use commensal_host::{Dir, Host, HostError, below};
use std::path::Path;
use std::time::{Duration, Instant};

/// Suffix of a fresh group's name until it gets the old one's name.
pub(crate) const ASIDE: &str = ".commensal-recreate";
/// The suffix in the previous release, which may have been killed in the middle.
const OLD_ASIDE: &str = ".commensal-renew";

/// How long to keep moving members that fork.
const PATIENCE: Duration = Duration::from_secs(5);

/// A group that was replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recreated {
    /// Its path.
    pub path: String,
    /// Inode of the old group; 0 when it was gone already.
    pub old: u64,
    /// Inode of the group that has its name now.
    pub new: u64,
}

/// Replaces the group at `path` by a fresh one and gives its members the normal scheduling policy, which leaving an
/// offline group does not restore. The result lists the replacement of each group of the subtree.
///
/// # Errors
/// When the kernel refuses a step; calling it again continues from there.
pub(crate) fn recreate(host: &mut dyn Host, mount: &str, path: &str) -> Result<Vec<Recreated>, HostError> {
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    let parent = host.open(&below(Path::new(mount), above))?;
    let mut done = Vec::new();
    let result = replace(host, parent, name, path, &mut done);
    host.close(parent);
    result.map(|()| done)
}

/// Whether a replacement of the group at `path` was begun and not completed.
pub(crate) fn is_begun(host: &mut dyn Host, mount: &str, path: &str) -> bool {
    [ASIDE, OLD_ASIDE].iter().any(|end| {
        let aside = host.open(&below(Path::new(mount), &format!("{path}{end}")));
        aside.map(|dir| host.close(dir)).is_ok()
    })
}

fn replace(
    host: &mut dyn Host,
    parent: Dir,
    name: &str,
    path: &str,
    done: &mut Vec<Recreated>,
) -> Result<(), HostError> {
    let old_name = format!("{name}{OLD_ASIDE}");
    let aside = match host.open_child(parent, &old_name) {
        Ok(dir) => {
            host.close(dir);
            old_name
        }
        Err(_) => format!("{name}{ASIDE}"),
    };
    let fresh = match host.mkdir(parent, &aside) {
        // Left by an earlier attempt: no other program uses this name.
        Err(error) if error.errno == Errno::EEXIST => host.open_child(parent, &aside)?,
        made => made?,
    };
    let moved = match host.open_child(parent, name) {
        Ok(old) => {
            let moved = empty(host, (old, fresh), path, true, done);
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

/// Copies the settings, if asked to, moves the members, and does the same for every child, which is then removed. A child that
/// is half replaced becomes one group again.
fn empty(
    host: &mut dyn Host,
    (old, fresh): (Dir, Dir),
    path: &str,
    copies: bool,
    done: &mut Vec<Recreated>,
) -> Result<(), HostError> {
    if copies {
        copy_settings(host, old, fresh)?;
    }
    let mut names = host.children(old)?;
    // A group comes before the fresh one that stands beside it, which may not have all its settings yet.
    names.sort();
    for name in &names {
        let half = [ASIDE, OLD_ASIDE].iter().find_map(|end| name.strip_suffix(end));
        let to = half.unwrap_or(name);
        let path = format!("{path}/{to}");
        let old_child = host.open_child(old, name)?;
        let (fresh_child, made) = match host.mkdir(fresh, to) {
            Err(error) if error.errno == Errno::EEXIST => (host.open_child(fresh, to)?, false),
            made => (made?, true),
        };
        let beside = half.is_some_and(|group| names.iter().any(|name| name == group));
        let copies = made || (copies && !beside);
        let moved = empty(host, (old_child, fresh_child), &path, copies, done);
        if half.is_some() && !beside {
            done.push(Recreated { path, old: 0, new: fresh_child.inode });
        }
        host.close(fresh_child);
        host.close(old_child);
        moved?;
        host.rmdir(old, name, old_child.inode)?;
    }
    move_members(host, old, fresh)?;
    done.push(Recreated { path: path.to_owned(), old: old.inode, new: fresh.inode });
    Ok(())
}

/// Copies every knob except the irreversible one. Some need another one to be set first (a quota its period), so
/// refused ones are retried as long as some succeed.
fn copy_settings(host: &mut dyn Host, old: Dir, fresh: Dir) -> Result<(), HostError> {
    let idle = host.read(old, "cpu.idle").is_ok_and(|text| text.trim() == "1");
    let mut waiting: Vec<(&str, String)> = Vec::new();
    for row in TABLE.iter().filter(|row| row.id != KnobId::CpuQosLevel) {
        let Some(file) = row.file(Version::V1) else { continue };
        // While a group is idle its weight reads a placeholder and cannot be written.
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
    loop {
        let before = waiting.len();
        let mut last = None;
        waiting.retain(|(file, text)| match write(host, fresh, file, text) {
            Ok(()) => false,
            Err(error) => {
                last = Some(error);
                true
            }
        });
        match last {
            None => return Ok(()),
            Some(error) if waiting.len() == before => return Err(error),
            Some(_) => {}
        }
    }
}

/// Writes a line that the file then has.
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

/// Thread by thread, because the threads of one process may sit in different groups.
fn move_members(host: &mut dyn Host, old: Dir, fresh: Dir) -> Result<(), HostError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let text = host.read(old, "tasks")?;
        let tids: Vec<u32> = text.split_whitespace().filter_map(|tid| tid.parse().ok()).collect();
        if tids.is_empty() {
            return make_normal(host, fresh);
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

/// Gives all threads in the fresh group the normal policy, including those moved by an interrupted attempt.
fn make_normal(host: &mut dyn Host, fresh: Dir) -> Result<(), HostError> {
    let text = host.read(fresh, "tasks")?;
    for tid in text.split_whitespace().filter_map(|tid| tid.parse().ok()) {
        if is_idle(host, tid) {
            match host.set_policy(tid, 0) {
                Err(error) if error.errno != Errno::ESRCH => return Err(error),
                Ok(()) if is_idle(host, tid) => {
                    let object = format!("the normal scheduling policy of thread {tid}");
                    return Err(HostError { operation: "keep", object, value: None, errno: Errno::EBUSY });
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Whether its policy is `SCHED_IDLE`.
fn is_idle(host: &dyn Host, tid: u32) -> bool {
    let stat = host.read_file(Path::new(&format!("/proc/{tid}/stat"))).unwrap_or_default();
    Stat::parse(&stat).and_then(|stat| stat.policy()) == Some(5)
}
