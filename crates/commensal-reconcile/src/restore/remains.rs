//! Says, once for all hierarchies, which groups of commensal stay after a `restore`, and which processes and cgroups in
//! them are the reason.

use crate::drivers::members;
use crate::journal::Target;
use commensal_core::actual::CgroupPath;
use commensal_core::text;
use commensal_host::{Dir, Host, HostError, below};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Number of processes that a message names.
const NAMED: usize = 3;

/// The groups that could not be removed: path, and for each mount the kernel's refusal.
#[derive(Debug, Default)]
pub(crate) struct Remains(BTreeMap<String, Vec<(String, HostError)>>);

/// What is in a group, in all hierarchies.
#[derive(Debug, Default)]
struct Found {
    pids: BTreeSet<u32>,
    /// Cgroups of others without processes: one of the places, and how many there are, by path.
    empty: BTreeMap<String, (PathBuf, usize)>,
    /// Whether one of the groups in [`Remains`] is below.
    has_another: bool,
}

impl Remains {
    pub fn add(&mut self, (mount, path): (&str, &str), refusal: HostError) {
        self.0.entry(path.to_owned()).or_default().push((mount.to_owned(), refusal));
    }

    /// Whether one of the groups is below this one.
    pub fn is_any_in(&self, group: &Target) -> bool {
        let above = CgroupPath::new(&group.path);
        let mut there =
            self.0.iter().filter(|(_, mounts)| mounts.iter().any(|(mount, _)| *mount == group.mount));
        there.any(|(path, _)| above.contains(&CgroupPath::new(path)))
    }

    /// Returns one line for each group that stays. A group that stays only because of another one below it has none.
    pub(super) fn describe(&self, host: &mut dyn Host) -> Vec<String> {
        self.0.iter().filter_map(|(path, mounts)| self.line(host, path, mounts)).collect()
    }

    fn line(&self, host: &mut dyn Host, path: &str, mounts: &[(String, HostError)]) -> Option<String> {
        let mut found = Found::default();
        for (mount, _) in mounts {
            let place = below(Path::new(mount), path);
            if let Ok(dir) = host.open(&place) {
                self.look(host, (dir, &place), path, &mut found);
                host.close(dir);
            }
        }
        let mut because = Vec::new();
        let pids: Vec<String> =
            found.pids.iter().take(NAMED).map(|pid| members::describe(host, *pid)).collect();
        let pids = pids.join(", ");
        match found.pids.len() {
            0 => {}
            1 => because.push(format!("process {pids} is in it")),
            count if count > NAMED => because.push(format!("{count} processes are in it, such as {pids}")),
            count => because.push(format!("{count} processes are in it: {pids}")),
        }
        because.extend(found.empty.values().map(|(place, count)| {
            let (place, also) = (text::path(place), also(count - 1));
            format!(
                "{place}{also} below it has no processes and was made by another program: rmdir removes it"
            )
        }));
        let (first, refusal) = mounts.first()?;
        if because.is_empty() {
            if found.has_another {
                return None;
            }
            because.push(refusal.to_string());
        }
        let shown = text::path(&below(Path::new(first), path));
        Some(format!("{shown} was left{}: {}", also(mounts.len() - 1), because.join("; ")))
    }

    /// Adds what is in the group at `place`, without what is in groups that have a line of their own.
    fn look(&self, host: &mut dyn Host, (dir, place): (Dir, &Path), path: &str, found: &mut Found) {
        let own = std::process::id();
        let pids = members::pids(host, dir).unwrap_or_default();
        found.pids.extend(pids.into_iter().filter(|pid| *pid != own));
        for name in host.children(dir).unwrap_or_default() {
            let path = format!("{}/{name}", path.trim_end_matches('/'));
            if self.0.contains_key(&path) {
                found.has_another = true;
                continue;
            }
            let Ok(child) = host.open_child(dir, &name) else { continue };
            let place = below(place, &name);
            if members::others(host, child) {
                self.look(host, (child, &place), &path, found);
            } else {
                found.empty.entry(path).or_insert((place, 0)).1 += 1;
            }
            host.close(child);
        }
    }
}

/// Says in how many hierarchies besides the named one something is.
fn also(more: usize) -> String {
    match more {
        0 => String::new(),
        1 => " (and in another hierarchy)".to_owned(),
        more => format!(" (and in {more} other hierarchies)"),
    }
}
