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
    /// The missing cgroups that have appeared since the last call of [`Incomplete::appeared`].
    appeared: BTreeSet<CgroupPath>,
}

impl Incomplete {
    /// Waits until `until` for the cgroups that members lack in `now` but did not lack in `before`.
    pub fn follow(&mut self, before: &Planned, now: &Planned, until: Instant) {
        let known: BTreeSet<&CgroupPath> = members(before).collect();
        let lacked: BTreeSet<CgroupRef> = absent(before).collect();
        let new = absent(now).filter(|group| !(known.contains(&group.path) && lacked.contains(group)));
        self.wait(new, now, until);
    }

    /// Waits until `until` for the cgroups that these members lack.
    pub fn follow_new(&mut self, news: &BTreeSet<CgroupPath>, now: &Planned, until: Instant) {
        let is_there = |path: &&CgroupPath| {
            let place = |hierarchy| CgroupRef { hierarchy, path: (*path).clone() };
            (0..now.actual.hierarchies.len()).any(|one| now.actual.cgroups.contains_key(&place(one)))
        };
        self.wait(lacking(news.iter().filter(is_there).cloned().collect(), now), now, until);
    }

    fn wait(&mut self, groups: impl Iterator<Item = CgroupRef>, now: &Planned, until: Instant) {
        for group in groups {
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

    /// Returns the missing cgroups that have appeared since the last call. The wait for the others continues.
    pub fn appeared(&mut self) -> BTreeSet<CgroupPath> {
        std::mem::take(&mut self.appeared)
    }

    /// Whether a missing cgroup has appeared since the last call of [`Incomplete::appeared`].
    pub fn has_appeared(&self) -> bool {
        !self.appeared.is_empty()
    }

    /// Checks which of the missing directories exist now, and watches for the others.
    pub fn look(&mut self) {
        let now = Instant::now();
        self.absent.retain(|_, (_, until)| *until > now);
        // A new watch replaces the old one, and thereby drops directories that need no watch any more.
        self.watch = if self.absent.is_empty() { None } else { GroupWatch::new().ok() };
        let Some(watch) = &self.watch else { return };
        let mut appeared = BTreeSet::new();
        self.absent.retain(|dir, (mount, _)| {
            let there = is_there(watch, mount, dir);
            let path = dir.strip_prefix(mount).ok().filter(|_| there);
            appeared.extend(path.map(|path| CgroupPath::new(&path.to_string_lossy())));
            !there
        });
        self.appeared.append(&mut appeared);
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
    lacking(members(planned).cloned().collect(), planned)
}

/// Those of the cgroups with these paths that v1 hierarchies lack.
fn lacking(paths: Vec<CgroupPath>, planned: &Planned) -> impl Iterator<Item = CgroupRef> {
    let v1 = planned.actual.hierarchies.iter().enumerate();
    let v1 = v1.filter(|(_, one)| one.version == Version::V1 && !one.controllers.is_empty());
    let each = v1.flat_map(move |(hierarchy, _)| {
        paths.clone().into_iter().map(move |path| CgroupRef { hierarchy, path })
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
        assert!(incomplete.source().is_some() && !incomplete.has_appeared());
        std::fs::create_dir(mount.path().join("a")).unwrap();
        incomplete.look();
        assert!(!incomplete.has_appeared(), "only what is above it");
        std::fs::create_dir(mount.path().join("a/b")).unwrap();
        let watch = incomplete.watch.as_ref().unwrap();
        assert!(
            matches!(&watch.seen().unwrap()[..], [commensal_host::FolderEvent::Made(_, name)] if name == "b")
        );
        incomplete.look();
        assert!(incomplete.has_appeared());
        assert_eq!(incomplete.appeared(), [CgroupPath::new("/a/b")].into());
        assert!(!incomplete.has_appeared());
        assert_eq!(incomplete.absent.len(), 1);

        // The directory is created between the round that lacks it and the watch.
        let mut late = waiting(mount.path(), &["a/b"], Duration::from_secs(60));
        late.look();
        assert!(late.has_appeared() && late.source().is_none());
    }

    #[test]
    fn nothing_is_waited_for_longer_than_asked() {
        let mount = tempfile::tempdir().unwrap();
        let mut incomplete = waiting(mount.path(), &["a"], Duration::ZERO);
        incomplete.look();
        assert!(incomplete.source().is_none() && incomplete.absent.is_empty());
        let mut elsewhere = waiting(&mount.path().join("gone"), &["a"], Duration::from_secs(60));
        elsewhere.look();
        assert!(!elsewhere.has_appeared());
    }
}
