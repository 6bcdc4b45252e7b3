//! Finds the mounted cgroup hierarchies and their mount points: v1, v2, or both (hybrid).

use crate::SensorError;
use commensal_core::actual::{CgroupPath, Hierarchy};
use commensal_core::knob::{Controller, Version};
use commensal_core::member;
use commensal_core::namespace::MountedPart;
use commensal_host::{Host, below};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The overall layout, as shown to users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Only v1 hierarchies.
    V1,
    /// Only the unified hierarchy.
    V2,
    /// v1 hierarchies with controllers, and a v2 hierarchy.
    Hybrid,
    /// No cgroup file system is mounted.
    None,
}

impl std::fmt::Display for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Layout::V1 => "v1",
            Layout::V2 => "v2",
            Layout::Hybrid => "hybrid (v1 controllers, v2 beside them)",
            Layout::None => "none mounted",
        })
    }
}

/// Reads `/proc/mounts`, which part of its hierarchy each mount shows and, for v2, `cgroup.controllers`. Named v1
/// hierarchies without controllers (`name=systemd`) are left out. Of several mounts of one hierarchy the first of those
/// that show most of it is used.
///
/// # Errors
/// Returns an error when `/proc/mounts` cannot be read.
pub fn hierarchies(host: &mut dyn Host) -> Result<Vec<Hierarchy>, SensorError> {
    let mut found: Vec<Hierarchy> = Vec::new();
    let mut roots = roots(host);
    for Mount { mount, version, options } in cgroup_mounts(host)? {
        let controllers = match version {
            Version::V1 => v1_controllers(&options),
            Version::V2 => v2_controllers(host, &mount),
        };
        let part = MountedPart { root: roots.remove(&mount).unwrap_or_default(), namespace: None };
        let hierarchy = Hierarchy { version, mount, controllers, part };
        let seen = found.iter_mut().find(|other| {
            other.version == hierarchy.version
                && (other.version == Version::V2 || other.controllers == hierarchy.controllers)
        });
        match seen {
            Some(other) if hierarchy.part.shows_more_than(&other.part) => *other = hierarchy,
            None if hierarchy.version == Version::V2 || !hierarchy.controllers.is_empty() => {
                found.push(hierarchy);
            }
            _ => {}
        }
    }
    for index in 0..found.len() {
        if found[index].part.depth_of_namespace() > 0 {
            found[index].part.namespace = namespace(host, &found, index);
        }
    }
    // The unified hierarchy can freeze groups without a controller, unless v1 has the freezer.
    let frozen_by_v1 = found.iter().any(|one| one.controllers.contains(&Controller::Freezer));
    for hierarchy in found.iter_mut().filter(|one| one.version == Version::V2 && !frozen_by_v1) {
        hierarchy.controllers.insert(Controller::Freezer);
    }
    Ok(found)
}

/// Returns the cgroup at each mount point, relative to the root of this process's cgroup namespace (`root` in
/// `/proc/self/mountinfo`, proc_pid_mountinfo(5)).
fn roots(host: &dyn Host) -> BTreeMap<String, CgroupPath> {
    let text = host.read_file(Path::new("/proc/self/mountinfo")).unwrap_or_default();
    let root = |line: &str| {
        let (fields, kind) = line.split_once(" - ")?;
        let [_, _, _, root, mount, ..] = fields.split(' ').collect::<Vec<_>>()[..] else { return None };
        kind.starts_with("cgroup").then(|| (unescape(mount), CgroupPath::new(&unescape(root))))
    };
    text.split('\n').filter_map(root).collect()
}

/// Finds the root of this process's cgroup namespace below the mount of a hierarchy: the cgroup at the right depth in which,
/// or in the same cgroup below which, this process is. `None` if this process has left the namespace's root.
fn namespace(host: &mut dyn Host, hierarchies: &[Hierarchy], index: usize) -> Option<CgroupPath> {
    let own = host.read_file(Path::new("/proc/self/cgroup")).ok()?;
    let (_, inside) = member::shown(&own, hierarchies).find(|(at, _)| *at == index)?;
    if inside.parts().next() == Some("..") {
        return None;
    }
    let row = &hierarchies[index];
    let (mount, depth) = (PathBuf::from(&row.mount), row.part.depth_of_namespace());
    let mut places = vec![CgroupPath::root()];
    for _ in 0..depth {
        let mut next = Vec::new();
        for place in places {
            let Ok(dir) = host.open(&below(&mount, place.as_str())) else { continue };
            next.extend(host.children(dir).unwrap_or_default().iter().map(|name| place.child(name)));
            host.close(dir);
        }
        places = next;
    }
    let pid = std::process::id().to_string();
    places.into_iter().find(|place| {
        let Ok(dir) = host.open(&below(&mount, place.as_str()).join(inside.as_str().trim_start_matches('/')))
        else {
            return false;
        };
        let here = host.read(dir, "cgroup.procs").is_ok_and(|pids| pids.lines().any(|line| line == pid));
        host.close(dir);
        here
    })
}

/// Returns the type of each mount, by mount point: the version of a cgroup hierarchy, `None` for other file systems.
pub fn kinds(host: &dyn Host) -> BTreeMap<String, Option<Version>> {
    let text = host.read_file(Path::new("/proc/mounts")).unwrap_or_default();
    let kind = |line: &str| {
        let mut fields = line.split(' ').skip(1);
        let (mount, kind) = (fields.next()?, fields.next()?);
        let version = match kind {
            "cgroup" => Some(Version::V1),
            "cgroup2" => Some(Version::V2),
            _ => None,
        };
        Some((unescape(mount), version))
    };
    // If several file systems are mounted on one path, the last one is visible.
    text.lines().filter_map(kind).collect()
}

/// A mount of a cgroup file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The mount point.
    pub mount: String,
    /// The version of the cgroup interface.
    pub version: Version,
    /// The mount options, comma-separated; they include the controllers of a v1 hierarchy.
    pub options: String,
}

/// Returns all mounts of cgroup file systems, including hierarchies without a controller that commensal knows.
///
/// # Errors
/// Returns an error when `/proc/mounts` cannot be read.
pub fn cgroup_mounts(host: &dyn Host) -> Result<Vec<Mount>, SensorError> {
    let text = host.read_file(Path::new("/proc/mounts"))?;
    let mount = |line: &str| {
        let [_, mount, kind, options, ..] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
        let version = match kind {
            "cgroup" => Version::V1,
            "cgroup2" => Version::V2,
            _ => return None,
        };
        Some(Mount { mount: unescape(mount), version, options: options.to_owned() })
    };
    Ok(text.split('\n').filter_map(mount).collect())
}

/// Returns the layout of these hierarchies.
#[must_use]
pub fn layout(hierarchies: &[Hierarchy]) -> Layout {
    let has = |version| hierarchies.iter().any(|hierarchy| hierarchy.version == version);
    match (has(Version::V1), has(Version::V2)) {
        (true, true) => Layout::Hybrid,
        (true, false) => Layout::V1,
        (false, true) => Layout::V2,
        (false, false) => Layout::None,
    }
}

fn v1_controllers(options: &str) -> BTreeSet<Controller> {
    options.split(',').filter_map(|option| Controller::from_name(option, Version::V1)).collect()
}

fn v2_controllers(host: &dyn Host, mount: &str) -> BTreeSet<Controller> {
    let text = host.read_file(&Path::new(mount).join("cgroup.controllers")).unwrap_or_default();
    text.split_whitespace().filter_map(|name| Controller::from_name(name, Version::V2)).collect()
}

/// Undoes the escaping of `/proc/mounts`, which writes characters that would end a field, such as a space, as a
/// backslash and three octal digits.
fn unescape(mount: &str) -> String {
    let mut parts = mount.split('\\');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code.filter(u8::is_ascii) {
            Some(code) => {
                text.push(char::from(code));
                text.push_str(&part[3..]);
            }
            None => {
                text.push('\\');
                text.push_str(part);
            }
        }
    }
    text
}

/// Returns the kernel's counts of cgroups as text: v1 from `/proc/cgroups`, v2 from `cgroup.stat` of the root
/// (cgroup-v2.rst, `nr_descendants`). If two results differ, cgroups were created or removed in between.
#[must_use]
pub fn population(host: &dyn Host, hierarchies: &[Hierarchy]) -> String {
    let mut text = host.read_file(Path::new("/proc/cgroups")).unwrap_or_default();
    for hierarchy in hierarchies.iter().filter(|one| one.version == Version::V2) {
        let stat = host.read_file(&Path::new(&hierarchy.mount).join("cgroup.stat")).unwrap_or_default();
        text.extend(stat.lines().filter(|line| line.starts_with("nr_descendants")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_with_odd_names() {
        let check = |written: &str, want: &str| assert_eq!(unescape(written), want, "{written}");
        check("/sys/fs/cgroup", "/sys/fs/cgroup");
        check("/a\\040b\\011c\\012d\\134e\\043f", "/a b\tc\nd\\e#f");
        check("/a\\134040", "/a\\040");
        check("/a\\x\\9", "/a\\x\\9");
    }
}
