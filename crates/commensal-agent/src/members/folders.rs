//! Follows cgroups that are created and removed, by inotify on every directory of a hierarchy.

use super::{Change, Reports, pause, wanted};
use commensal_core::actual::CgroupPath;
use commensal_core::errno::Errno;
use commensal_host::{Dir, FolderEvent, For, GroupWatch, Host, HostError, LinuxHost, Waker};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Maximum number of watched directories; on a machine with more, only the ticks see changes.
const MOST: usize = 20_000;
/// Time between two attempts to watch, after a failure.
const AGAIN: Duration = Duration::from_secs(10);

/// Follows until no longer needed.
pub(super) fn follow(mount: &Path, reports: &Reports, stop: &AtomicBool, waker: &Waker) {
    let mut host = LinuxHost::new();
    while wanted(stop) {
        let because = match session(&mut host, mount, reports, stop, waker) {
            Ok(()) => return,
            Err(because) => because,
        };
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
    numbers: BTreeMap<PathBuf, i32>,
}

/// One attempt; `Ok` when no longer needed.
fn session(
    host: &mut LinuxHost,
    mount: &Path,
    reports: &Reports,
    stop: &AtomicBool,
    waker: &Waker,
) -> Result<(), String> {
    let words = |error: HostError| error.to_string();
    let mut tree = Tree {
        mount: mount.to_owned(),
        watch: GroupWatch::new().map_err(words)?,
        folders: BTreeMap::new(),
        numbers: BTreeMap::new(),
    };
    tree.add(host, mount, &mut Vec::new())?;
    while wanted(stop) {
        for seen in tree.watch.wait(waker).map_err(words)? {
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
                    tree.forget(&folder);
                    changes.push(tree.change(&folder, false));
                }
                FolderEvent::Touched(..) => {}
                FolderEvent::Lost => {
                    return Err("cgroups changed faster than they could be followed".to_owned());
                }
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
    /// Watches a directory and everything below it, and reports each one. The directory is watched before it is listed,
    /// so a group created in it is seen by the watch or the listing, or by both, and reported twice at most.
    fn add(&mut self, host: &mut LinuxHost, folder: &Path, made: &mut Vec<Change>) -> Result<(), String> {
        match host.open(folder) {
            Ok(dir) => {
                let added = self.add_open(host, dir, folder, made);
                host.close(dir);
                added
            }
            // Gone again.
            Err(_) => Ok(()),
        }
    }

    fn change(&self, folder: &Path, made: bool) -> Change {
        let path = folder.strip_prefix(&self.mount).unwrap_or(folder);
        Change::Cgroup { folder: folder.to_owned(), path: CgroupPath::new(&path.to_string_lossy()), made }
    }

    /// Forgets a directory and everything below it.
    fn forget(&mut self, folder: &Path) {
        let below =
            self.numbers.range(folder.to_owned()..).take_while(|(known, _)| known.starts_with(folder));
        let below: Vec<PathBuf> = below.map(|(known, _)| known.clone()).collect();
        for number in below.iter().filter_map(|folder| self.numbers.remove(folder)) {
            self.folders.remove(&number);
        }
    }

    fn add_open(
        &mut self,
        host: &mut LinuxHost,
        dir: Dir,
        folder: &Path,
        made: &mut Vec<Change>,
    ) -> Result<(), String> {
        if self.folders.len() >= MOST {
            return Err(format!("more than {MOST} cgroups are not watched"));
        }
        let number = match self.watch.add(folder, For::Folders) {
            Ok(number) => number,
            Err(error) if error.errno == Errno::ENOENT => return Ok(()),
            // Deeper than a watch can be set; what is there is left to the ticks.
            Err(error) if error.errno == Errno::ENAMETOOLONG => {
                made.push(self.change(folder, true));
                return Ok(());
            }
            Err(error) => return Err(error.to_string()),
        };
        self.folders.insert(number, folder.to_owned());
        self.numbers.insert(folder.to_owned(), number);
        made.push(self.change(folder, true));
        for name in host.children(dir).unwrap_or_default() {
            if let Ok(child) = host.open_child(dir, &name) {
                let added = self.add_open(host, child, &folder.join(&name), made);
                host.close(child);
                added?;
            }
        }
        Ok(())
    }
}
