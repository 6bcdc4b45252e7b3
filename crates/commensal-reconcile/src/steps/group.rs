//! Groups (cgroups) that commensal creates and removes.

use super::kind::{Facts, Kind, Rank};
use crate::drivers::apply::{Refusal, Settled, Work, host_error};
use crate::drivers::{aside, members};
use crate::journal::{Created, Creating, Journal, Mounts, Record, Target, fits};
use crate::marks;
use crate::restore::{Inside, Left, Undo, Undone, proof, target};
use commensal_core::actual::{ActualState, CgroupRef, Ours};
use commensal_core::errno::Errno;
use commensal_core::text;
use commensal_host::{Dir, Host, HostError, below};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// Timeout for killed processes of a dead lab run to leave their groups, together.
const PATIENCE: Duration = Duration::from_secs(5);

impl Work<'_> {
    /// Returns the record that a group is created or, after a step has removed it, no longer is.
    pub(super) fn creating(&self, place: &CgroupRef) -> Record {
        Record::Creating(Creating { mount: self.mount(place), path: place.path.as_str().to_owned() })
    }

    pub(super) fn create(&mut self, place: &CgroupRef, journal: &Journal) -> Result<(), Refusal> {
        let (parent, mount) = (self.parent(place)?, self.mount(place));
        let made = journal.make(self.host, parent, (&mount, place.path.as_str()));
        self.dirs.insert(place.clone(), made.map_err(|error| host_error(error, None))?);
        Ok(())
    }

    pub(super) fn remove(&mut self, place: &CgroupRef) -> Result<(), Refusal> {
        let inode = self.dir(place)?.inode;
        let parent = self.parent(place)?;
        self.host.rmdir(parent, place.path.name(), inode).map_err(|error| host_error(error, None))?;
        if let Some(dir) = self.dirs.remove(place) {
            self.host.close(dir);
        }
        Ok(())
    }
}

impl Kind for Creating {
    fn facts(&self) -> Facts<'_> {
        Facts { rank: Rank::Groups, group: None, proof: false }
    }

    fn words(&self) -> String {
        format!("{} is about to be created", text::path(&below(Path::new(&self.mount), &self.path)))
    }

    fn objection(&self, _: &Mounts) -> Option<String> {
        fits::made(&self.mount, &self.path)
    }

    fn undo(&self, host: &mut dyn Host, undo: &mut Undo<'_>) -> Undone {
        // If no `Created` record follows, commensal crashed before it recorded the inode.
        let is_known = undo.created.contains(&(self.mount.clone(), self.path.clone()));
        let place = (self.mount.as_str(), self.path.as_str());
        let undone = if is_known { Ok(None) } else { remove(host, undo, place, (None, Inside::Stays)) };
        if undone.is_ok() {
            marks::clear_announcement(host, undo.owners, place);
        }
        undone
    }
}

impl Kind for Created {
    fn facts(&self) -> Facts<'_> {
        Facts { rank: Rank::Groups, group: Some(&self.0), proof: true }
    }

    fn words(&self) -> String {
        format!("{} was created", self.0.shown())
    }

    fn objection(&self, _: &Mounts) -> Option<String> {
        fits::made(&self.0.mount, &self.0.path)
    }

    fn mark(&self) -> Option<(&Target, String)> {
        Some((&self.0, "created".to_owned()))
    }

    fn claim(&self, actual: &ActualState, ours: &mut Ours) {
        ours.created.extend(self.0.find(actual));
    }

    fn is_settled(&self, settled: &Settled) -> bool {
        let Target { mount, path, .. } = self.0.clone();
        settled.is_over(&Record::Creating(Creating { mount, path }))
    }

    fn undo(&self, host: &mut dyn Host, undo: &mut Undo<'_>) -> Undone {
        let Created(Target { mount, path, inode }) = self;
        remove(host, undo, (mount, path), (Some(*inode), undo.inside))
    }
}

/// Empties the groups of these records, in one pass over all hierarchies: kills all processes in and below the groups, or
/// waits for those that exit. A process that is still there is the reason why its group stays.
pub(crate) fn empty(host: &mut dyn Host, owners: &BTreeSet<String>, records: &[Record], kill: bool) {
    let mut groups = Vec::new();
    for record in records {
        let Record::Created(Created(group)) = record else { continue };
        // This process may be in a group into which it moved itself (see `aside`).
        if group.path.ends_with(aside::ENDING) {
            continue;
        }
        let Ok(Some(dir)) = target::open(host, group) else { continue };
        match proof::of_creation(host, owners, (&group.mount, &group.path), dir) {
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
fn remove(
    host: &mut dyn Host,
    undo: &mut Undo<'_>,
    (mount, path): (&str, &str),
    (inode, inside): (Option<u64>, Inside),
) -> Undone {
    let Some(dir) = target::open_at(host, mount, path, inode)? else { return Ok(None) };
    if let Err(left) = proof::of_creation(host, undo.owners, (mount, path), dir) {
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
        Err(error) if error.errno == Errno::ENOENT => {
            match target::open_at(host, mount, path, Some(dir.inode))? {
                Some(dir) => {
                    host.close(dir);
                    Err(Left::Failed(error))
                }
                None => Ok(None),
            }
        }
        Err(error) if error.errno == Errno::EBUSY => {
            undo.remains.add((mount, path), error);
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
