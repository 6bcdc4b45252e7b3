//! Waits for the cgroups that a new member still lacks. In cgroup v1, they appear in one hierarchy after another, and
//! the agent watches only one hierarchy permanently.

use commensal_core::actual::{CgroupPath, CgroupRef};
use commensal_core::knob::Version;
use commensal_host::{For, GroupWatch, below};
use commensal_reconcile::Planned;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Missing cgroups of new members.
#[derive(Debug, Default)]
pub(super) struct Incomplete {
    watch: Option<GroupWatch>,
    /// The missing directories, each with its mount point and the time at which the wait for it ends.
    absent: BTreeMap<PathBuf, (PathBuf, Instant)>,
    /// Whether a missing directory has appeared since the last call of [`Incomplete::appeared`].
    appeared: bool,
}

impl Incomplete {
    /// Waits until `until` for the cgroups that members lack in `now` but did not lack in `before`.
    pub fn follow(&mut self, before: &Planned, now: &Planned, until: Instant) {
        let known: BTreeSet<&CgroupPath> = members(before).collect();
        let lacked: BTreeSet<CgroupRef> = absent(before).collect();
        for group in absent(now).filter(|group| !(known.contains(&group.path) && lacked.contains(group))) {
            if let Some(hierarchy) = now.actual.hierarchies.get(group.hierarchy) {
                let mount = PathBuf::from(&hierarchy.mount);
                let dir = below(&mount, group.path.as_str());
                self.absent.entry(dir).or_insert((mount, until));
            }
        }
        self.look();
    }

    /// The descriptor that becomes readable when a missing directory may have appeared.
    pub fn source(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(GroupWatch::as_fd)
    }

    /// Returns whether a missing directory has appeared since the last call. The wait for the others continues.
    pub fn appeared(&mut self) -> bool {
        std::mem::take(&mut self.appeared)
    }

    /// Returns the same as the next call of [`Incomplete::appeared`], without resetting it.
    pub fn has_appeared(&self) -> bool {
        self.appeared
    }

    /// Checks which of the missing directories exist now, and watches for the others.
    pub fn look(&mut self) {
        let now = Instant::now();
        self.absent.retain(|_, (_, until)| *until > now);
        // A new watch replaces the old one, and thereby drops directories that need no watch any more.
        self.watch = if self.absent.is_empty() { None } else { GroupWatch::new().ok() };
        let Some(watch) = &self.watch else { return };
        let many = self.absent.len();
        self.absent.retain(|dir, (mount, _)| !is_there(watch, mount, dir));
        self.appeared |= self.absent.len() < many;
        if self.absent.is_empty() {
            self.watch = None;
        }
    }
}

/// Whether the directory exists. If not, watches its nearest existing ancestor.
fn is_there(watch: &GroupWatch, mount: &Path, dir: &Path) -> bool {
    let mut least = None;
    for above in dir.ancestors().take_while(|above| above.starts_with(mount)) {
        if watch.add(above, For::Folders).is_ok() {
            least = Some(above);
            break;
        }
    }
    // Directories created before the watch was set cause no event, so check for them now.
    let Some(least) = least else { return false };
    let between: Vec<&Path> = dir.ancestors().take_while(|above| *above != least).collect();
    least == dir || (between.iter().rev().all(|one| watch.add(one, For::Folders).is_ok()))
}

fn members(planned: &Planned) -> impl Iterator<Item = &CgroupPath> {
    planned.desired.groups.iter().flat_map(|group| &group.members).map(|member| &member.path)
}

/// The cgroups that members lack in v1 hierarchies.
fn absent(planned: &Planned) -> impl Iterator<Item = CgroupRef> {
    let v1 = planned.actual.hierarchies.iter().enumerate();
    let v1 = v1.filter(|(_, one)| one.version == Version::V1 && !one.controllers.is_empty());
    let each = v1.flat_map(|(hierarchy, _)| {
        members(planned).map(move |path| CgroupRef { hierarchy, path: path.clone() })
    });
    each.filter(|group| !planned.actual.cgroups.contains_key(group))
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests make folders themselves")]
mod tests {
    use super::*;
    use std::time::Duration;

    fn waiting(mount: &Path, dirs: &[&str], time: Duration) -> Incomplete {
        let until = Instant::now() + time;
        let absent = dirs.iter().map(|dir| (mount.join(dir), (mount.to_owned(), until)));
        Incomplete { absent: absent.collect(), ..Incomplete::default() }
    }

    #[test]
    fn a_directory_that_appears_is_seen_whenever_it_does() {
        let mount = tempfile::tempdir().unwrap();
        let mut incomplete = waiting(mount.path(), &["a/b", "a/never"], Duration::from_secs(60));
        incomplete.look();
        assert!(incomplete.source().is_some() && !incomplete.appeared());
        std::fs::create_dir(mount.path().join("a")).unwrap();
        incomplete.look();
        assert!(!incomplete.appeared(), "only what is above it");
        std::fs::create_dir(mount.path().join("a/b")).unwrap();
        let watch = incomplete.watch.as_ref().unwrap();
        assert!(
            matches!(&watch.seen().unwrap()[..], [commensal_host::FolderEvent::Made(_, name)] if name == "b")
        );
        incomplete.look();
        assert!(incomplete.has_appeared() && incomplete.appeared() && !incomplete.appeared());
        assert_eq!(incomplete.absent.len(), 1);

        // The directory is created between the round that lacks it and the watch.
        let mut late = waiting(mount.path(), &["a/b"], Duration::from_secs(60));
        late.look();
        assert!(late.appeared() && late.source().is_none());
    }

    #[test]
    fn nothing_is_waited_for_longer_than_asked() {
        let mount = tempfile::tempdir().unwrap();
        let mut incomplete = waiting(mount.path(), &["a"], Duration::ZERO);
        incomplete.look();
        assert!(incomplete.source().is_none() && incomplete.absent.is_empty());
        let mut elsewhere = waiting(&mount.path().join("gone"), &["a"], Duration::from_secs(60));
        elsewhere.look();
        assert!(!elsewhere.appeared());
    }
}
