//! Checks the marks on a group (copies of journal records) before a record is undone by removing or emptying the group,
//! or by moving processes.
//!
//! A root-owned journal with valid checksums can still be forged, copied from another machine, or older than the group
//! that has the recorded inode now. Where groups can be marked, a record without its mark is therefore not undone:
//! `restore` reports it and keeps it in the journal. Where groups cannot be marked, `restore` trusts the journal alone.
//! A group that no longer exists needs no mark.

use super::outcome::Left;
use super::target::open;
use crate::agent_lock::lives;
use crate::drivers::processes::is;
use crate::drivers::{aside, members, recreate};
use crate::hand::is_gone;
use crate::journal::{Created, Moving, Original, Record, Target};
use crate::marks::{self, Proof};
use commensal_core::knob::KnobId;
use commensal_core::text::{self, visible};
use commensal_host::{Dir, Host, below};
use std::collections::BTreeSet;
use std::path::Path;

/// Part of the messages about records without a mark.
const UNMARKED: &str = "not marked as commensal's; left alone";

fn shown(mount: &str, path: &str) -> String {
    text::path(&below(Path::new(mount), path))
}

fn of_another(owner: &str) -> String {
    format!("marked as of the commensal whose state is in {}; left alone", visible(owner))
}

/// Reads the proof of a record. A damaged mark is none.
fn proof(host: &mut dyn Host, owners: &BTreeSet<String>, dir: Dir, record: &Record) -> Result<Proof, Left> {
    marks::proof(host, dir, record, owners).map_err(|error| match marks::describe_damaged_mark(record) {
        Some(line) if marks::is_damaged(&error) => Left::Denied(line),
        _ => Left::Failed(error),
    })
}

fn is_announced(host: &mut dyn Host, owners: &BTreeSet<String>, place: (&str, &str)) -> Result<bool, Left> {
    match marks::is_announced(host, owners, place) {
        Err(error) if marks::is_damaged(&error) => Ok(false),
        announced => announced.map_err(Left::Failed),
    }
}

/// Checks that one of `owners` (state directories) created the open group. The proof is the group's mark or, if the
/// process was killed before it marked the group, the announcement in the parent group.
pub(crate) fn of_creation(
    host: &mut dyn Host,
    owners: &BTreeSet<String>,
    (mount, path): (&str, &str),
    dir: Dir,
) -> Result<(), Left> {
    let target = Target { mount: mount.to_owned(), path: path.to_owned(), inode: dir.inode };
    match proof(host, owners, dir, &Record::Created(Created(target)))? {
        Proof::Ours | Proof::Unavailable => Ok(()),
        // In one systemd unit, processes of several instances step aside into the same group; the last one removes it.
        Proof::Of(owner) if path.ends_with(aside::ENDING) && !lives(host, &owner) => Ok(()),
        Proof::Missing if is_announced(host, owners, (mount, path))? => Ok(()),
        Proof::Missing => Err(Left::Denied(format!("{} is {UNMARKED}", shown(mount, path)))),
        Proof::Of(owner) => Err(Left::Denied(format!("{} is {}", shown(mount, path), of_another(&owner)))),
    }
}

/// Checks that commensal made the recorded change, in a group of another program that several instances of commensal
/// may have changed. The last instance undoes the change. `what` is the beginning of the message.
pub(crate) fn of_change(
    host: &mut dyn Host,
    owners: &BTreeSet<String>,
    dir: Dir,
    record: &Record,
    what: &str,
) -> Result<(), Left> {
    match proof(host, owners, dir, record)? {
        Proof::Of(owner) if lives(host, &owner) => {
            let owner = visible(&owner);
            Err(Left::Busy(format!("{what}: the commensal whose state is in {owner} is running")))
        }
        Proof::Ours | Proof::Unavailable | Proof::Of(_) => Ok(()),
        Proof::Missing => Err(Left::Denied(format!("{what}: {UNMARKED}"))),
    }
}

/// Checks that commensal set the level (`cpu.qos_level`), which only a replacement of the group can undo, or created
/// the group itself. The mark is on the group that will be emptied and removed or, after that, on the fresh group that
/// gets its name.
pub(crate) fn of_recreation(
    host: &mut dyn Host,
    owners: &BTreeSet<String>,
    target: &Target,
) -> Result<(), Left> {
    let at = |path: &str| below(Path::new(&target.mount), path);
    let mut opened = host.open(&at(&target.path));
    if opened.as_ref().is_err_and(is_gone) {
        opened = host.open(&at(&format!("{}{}", target.path, recreate::ASIDE)));
    }
    let dir = match opened {
        Err(error) if is_gone(&error) => return Ok(()),
        opened => opened.map_err(Left::Failed)?,
    };
    let proof = of_level(host, owners, target, dir);
    host.close(dir);
    proof
}

fn of_level(host: &mut dyn Host, owners: &BTreeSet<String>, target: &Target, dir: Dir) -> Result<(), Left> {
    let knob = KnobId::CpuQosLevel;
    let level = Record::Original(Original {
        group: target.clone(),
        knob: knob.to_string(),
        file: knob.row().v1.map(|file| file.name.to_owned()).unwrap_or_default(),
        device: None,
        value: String::new(),
    });
    let what = format!("{} cannot be replaced", target.shown());
    match of_change(host, owners, dir, &level, &what) {
        Err(Left::Denied(line)) => {
            let made = of_creation(host, owners, (&target.mount, &target.path), dir);
            made.map_err(|left| if let Left::Denied(_) = left { Left::Denied(line) } else { left })
        }
        other => other,
    }
}

/// Checks that commensal moved the process in a record into its present groups. Returns whether the process must be
/// moved back. If commensal was killed before the move, there is no mark, and the process is still in its old groups.
pub(crate) fn of_move(host: &mut dyn Host, owners: &BTreeSet<String>, record: &Record) -> Result<bool, Left> {
    let (Record::Moving(Moving { pid, to, .. }), Some(process)) = (record, record.process()) else {
        return Ok(false);
    };
    let Some(first) = to.first() else { return Ok(false) };
    let Some(dir) = open(host, first)? else {
        // The mark no longer exists if its group was removed. The other groups show whether commensal created them.
        for other in to {
            if let Some(dir) = open(host, other)? {
                let made = of_creation(host, owners, (&other.mount, &other.path), dir);
                host.close(dir);
                made?;
            }
        }
        return Ok(true);
    };
    let proof = proof(host, owners, dir, record);
    host.close(dir);
    let what = match proof? {
        Proof::Ours | Proof::Unavailable => return Ok(true),
        Proof::Of(owner) => of_another(&owner),
        Proof::Missing => UNMARKED.to_owned(),
    };
    let is_alive = is(host, process);
    for group in to {
        let Some(dir) = open(host, group)? else { continue };
        let inside = members::pids(host, dir).unwrap_or_default();
        host.close(dir);
        if inside.contains(pid) || (!is_alive && !inside.is_empty()) {
            return Err(Left::Denied(format!("the move of process {pid} to {} is {what}", group.shown())));
        }
    }
    Ok(false)
}
