//! Follows the creation and removal of cgroups, by inotify on each directory of a hierarchy that can contain a relevant
//! cgroup.
//!
//! ```text
//! /                 watched
//!   batch           watched: a group matches /batch/*
//!     job           watched: a member
//!   docker          skipped: nothing below it can be relevant; its own creation is reported
//!     4f1c…         not seen
//! ```
//! When other cgroups become relevant, the skipped directories are checked again. Cgroups found below them are reported
//! as created, because no event reported them.

use super::{Change, Interest, Reports, pause, wanted};
use commensal_core::actual::CgroupPath;
use commensal_core::errno::Errno;
use commensal_host::{FolderEvent, For, GroupWatch, Host, HostError, LinuxHost, Waker};
use commensal_reconcile::why_unwatched;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Maximum number of watched directories. With more directories, only the ticks find changes.
const MOST: usize = 20_000;
/// Time before the next attempt, after watching has failed.
const AGAIN: Duration = Duration::from_secs(10);

/// Follows the hierarchy until `stop` is set.
pub(super) fn follow(mount: &Path, reports: &Reports, stop: &AtomicBool, waker: &Waker) {
    let mut host = LinuxHost::new();
    let mut again = false;
    while wanted(stop) {
        let because = match session(&mut host, mount, reports, stop, (waker, again)) {
            Ok(()) => return,
            Err(because) => because,
        };
        again = true;
        if !reports.send(Change::Cgroups { because }) {
            return;
        }
        pause(stop, AGAIN);
    }
}

struct Tree {
    mount: PathBuf,
    watch: GroupWatch,
    folders: BTreeMap<i32, PathBuf>,
    /// The watch number of each watched directory. The keys are text, because paths are compared component by component,
    /// which is much slower.
    numbers: BTreeMap<OsString, i32>,
    /// Directories that are not watched because nothing below them can be relevant. Their parents are watched.
    skipped: BTreeSet<OsString>,
    /// The relevant cgroups, as last applied to the watches; `None` means all.
    interest: Option<Arc<Interest>>,
}

/// Follows the hierarchy once, and reports that it does so `again`. Returns `Ok` when `stop` is set or the reader of the
/// reports no longer exists, and an error, with the reason if a person can remove it, when it cannot be followed.
fn session(
    host: &mut LinuxHost,
    mount: &Path,
    reports: &Reports,
    stop: &AtomicBool,
    (waker, again): (&Waker, bool),
) -> Result<(), Option<String>> {
    let words = |error: HostError| Some(why_unwatched(&error));
    let mut tree = Tree {
        mount: mount.to_owned(),
        watch: GroupWatch::new().map_err(words)?,
        folders: BTreeMap::new(),
        numbers: BTreeMap::new(),
        skipped: BTreeSet::new(),
        interest: reports.interest(),
    };
    tree.add(host, mount, &mut Vec::new())?;
    if again && !reports.send(Change::Watched) {
        return Ok(());
    }
    while wanted(stop) {
        let events = tree.watch.wait(waker).map_err(words)?;
        let mut found = Vec::new();
        tree.mind(host, reports.interest(), &mut found)?;
        if !found.into_iter().all(|change| reports.send(change)) {
            return Ok(());
        }
        for seen in events {
            let mut changes = Vec::new();
            match seen {
                FolderEvent::Made(number, name) => {
                    let Some(folder) = tree.folders.get(&number).map(|above| above.join(&name)) else {
                        continue;
                    };
                    tree.add(host, &folder, &mut changes)?;
                }
                FolderEvent::Gone(number, name) => {
                    let Some(folder) = tree.folders.get(&number).map(|above| above.join(&name)) else {
                        continue;
                    };
                    tree.forget(&folder, false);
                    changes.push(tree.change(&folder, false));
                }
                FolderEvent::Touched(..) => {}
                // Cgroups changed faster than the agent could read their events.
                FolderEvent::Lost => return Err(None),
            }
            for change in changes {
                if !reports.send(change) {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

impl Tree {
    fn change(&self, folder: &Path, made: bool) -> Change {
        Change::Cgroup { folder: folder.to_owned(), path: self.path(folder), made }
    }

    fn path(&self, folder: &Path) -> CgroupPath {
        CgroupPath::new(&folder.strip_prefix(&self.mount).unwrap_or(folder).to_string_lossy())
    }

    /// Whether a cgroup below a directory can be relevant.
    fn matters_below(&self, folder: &Path) -> bool {
        self.interest.as_ref().is_none_or(|interest| interest.may_take_below(&self.path(folder)))
    }

    /// Adapts the watches to the relevant cgroups, if these have changed: watches skipped directories that can contain
    /// relevant cgroups now, and stops watching those that no longer can. `None` changes no watch. Adds the cgroups found
    /// below directories that were skipped to `found`.
    fn mind(
        &mut self,
        host: &mut LinuxHost,
        interest: Option<Arc<Interest>>,
        found: &mut Vec<Change>,
    ) -> Result<(), Option<String>> {
        let Some(new) = interest else { return Ok(()) };
        if self.interest.as_ref().is_some_and(|known| Arc::ptr_eq(known, &new)) {
            return Ok(());
        }
        self.interest = Some(new);
        let matter = self.skipped.iter().filter(|folder| self.matters_below(Path::new(folder)));
        for folder in matter.cloned().collect::<Vec<_>>() {
            self.skipped.remove(&folder);
            let mut made = Vec::new();
            self.add(host, Path::new(&folder), &mut made)?;
            // Its own creation has been reported.
            found.extend(made.into_iter().filter(
                |change| !matches!(change, Change::Cgroup { folder: one, .. } if one.as_os_str() == folder),
            ));
        }
        let idle = self.numbers.keys().filter(|folder| !self.matters_below(Path::new(folder)));
        for folder in idle.cloned().collect::<Vec<_>>() {
            // Already removed if a directory above it is skipped now.
            if self.numbers.contains_key(&folder) {
                self.forget(Path::new(&folder), true);
                self.skipped.insert(folder);
            }
        }
        Ok(())
    }

    /// Forgets a directory and everything below it. `is_there` says whether the directory still exists: then its watches
    /// must be removed, too.
    fn forget(&mut self, folder: &Path, is_there: bool) {
        let mut prefix = folder.as_os_str().to_owned();
        self.skipped.remove(&prefix);
        let own = self.numbers.remove(&prefix);
        prefix.push("/");
        let inside = |known: &OsStr| known.as_encoded_bytes().starts_with(prefix.as_encoded_bytes());
        let skipped = self.skipped.range(prefix.clone()..).take_while(|known| inside(known));
        for known in skipped.cloned().collect::<Vec<_>>() {
            self.skipped.remove(&known);
        }
        let below = self.numbers.range(prefix.clone()..).take_while(|(known, _)| inside(known));
        let below: Vec<OsString> = below.map(|(known, _)| known.clone()).collect();
        let below = below.iter().filter_map(|known| self.numbers.remove(known));
        for number in own.into_iter().chain(below) {
            self.folders.remove(&number);
            if is_there {
                self.watch.remove(number);
            }
        }
    }

    /// Watches a directory and everything below it that can be relevant, and reports each directory. Starts the watch before it lists the
    /// directory: a cgroup that is created meanwhile is found by the watch, by the listing, or by both and then
    /// reported twice.
    fn add(
        &mut self,
        host: &mut LinuxHost,
        folder: &Path,
        made: &mut Vec<Change>,
    ) -> Result<(), Option<String>> {
        if self.folders.len() >= MOST {
            return Err(Some(format!("there are more than {MOST} cgroups, too many to watch")));
        }
        if !self.matters_below(folder) {
            self.skipped.insert(folder.as_os_str().to_owned());
            made.push(self.change(folder, true));
            return Ok(());
        }
        let number = match self.watch.add(folder, For::Folders) {
            Ok(number) => number,
            // The directory has been removed already, or this user may not list it.
            Err(error) if matches!(error.errno, Errno::ENOENT | Errno::EACCES) => return Ok(()),
            // The path is too long for a watch; the ticks find changes below it.
            Err(error) if error.errno == Errno::ENAMETOOLONG => {
                made.push(self.change(folder, true));
                return Ok(());
            }
            Err(error) => return Err(Some(why_unwatched(&error))),
        };
        self.folders.insert(number, folder.to_owned());
        self.numbers.insert(folder.as_os_str().to_owned(), number);
        made.push(self.change(folder, true));
        if !host.has_children(folder) {
            return Ok(());
        }
        let Ok(dir) = host.open(folder) else { return Ok(()) };
        let children = host.children(dir).unwrap_or_default();
        host.close(dir);
        children.into_iter().try_for_each(|name| self.add(host, &folder.join(name), made))
    }
}
