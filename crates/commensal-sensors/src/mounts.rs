//! Which cgroup hierarchies are mounted, and where: v1, v2, or both at once (hybrid).

use crate::SensorError;
use commensal_core::actual::Hierarchy;
use commensal_core::knob::{Controller, Version};
use commensal_host::Host;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The overall layout, as shown to users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Only v1 hierarchies.
    V1,
    /// Only the unified hierarchy.
    V2,
    /// Controllers on v1 and a v2 hierarchy beside them.
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

/// Reads `/proc/mounts` and, for v2, `cgroup.controllers`. Named v1 hierarchies without controllers (`name=systemd`)
/// are left out; of several mounts of one hierarchy the first is used.
///
/// # Errors
/// When `/proc/mounts` cannot be read.
pub fn hierarchies(host: &mut dyn Host) -> Result<Vec<Hierarchy>, SensorError> {
    let text = host.read_file(Path::new("/proc/mounts"))?;
    let mut found: Vec<Hierarchy> = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, mount, kind, options, ..] = fields[..] else { continue };
        let hierarchy = match kind {
            "cgroup" => Hierarchy {
                version: Version::V1,
                mount: unescape(mount),
                controllers: v1_controllers(options),
            },
            "cgroup2" => {
                let mount = unescape(mount);
                let controllers = v2_controllers(host, &mount);
                Hierarchy { version: Version::V2, mount, controllers }
            }
            _ => continue,
        };
        let seen = found.iter().any(|other| {
            other.version == hierarchy.version
                && (other.version == Version::V2 || other.controllers == hierarchy.controllers)
        });
        if !seen && (hierarchy.version == Version::V2 || !hierarchy.controllers.is_empty()) {
            found.push(hierarchy);
        }
    }
    // The unified hierarchy can freeze groups without a controller, unless v1 has the freezer.
    let frozen_by_v1 = found.iter().any(|one| one.controllers.contains(&Controller::Freezer));
    for hierarchy in found.iter_mut().filter(|one| one.version == Version::V2 && !frozen_by_v1) {
        hierarchy.controllers.insert(Controller::Freezer);
    }
    Ok(found)
}

/// The type of each mount: the version of a cgroup hierarchy, `None` for everything else.
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
    // Of several mounts on one path the last one is visible.
    text.lines().filter_map(kind).collect()
}

/// Mount points of all hierarchies, including those without a known controller.
pub fn every_mount(host: &dyn Host) -> Vec<String> {
    let text = host.read_file(Path::new("/proc/mounts")).unwrap_or_default();
    let mount = |line: &str| match line.split(' ').collect::<Vec<_>>()[..] {
        [_, mount, "cgroup" | "cgroup2", ..] => Some(unescape(mount)),
        _ => None,
    };
    text.lines().filter_map(mount).collect()
}

/// The layout of these hierarchies.
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

/// `/proc/mounts` writes space, tab, newline and backslash as octal.
fn unescape(mount: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(mount.to_owned(), |text, (code, character)| text.replace(code, character))
}

/// The kernel's counts of cgroups: v1 in `/proc/cgroups`, v2 in `cgroup.stat` of the root (cgroup-v2.rst,
/// `nr_descendants`). If two results differ, a cgroup was created or removed.
#[must_use]
pub fn population(host: &dyn Host, hierarchies: &[Hierarchy]) -> String {
    let mut text = host.read_file(Path::new("/proc/cgroups")).unwrap_or_default();
    for hierarchy in hierarchies.iter().filter(|one| one.version == Version::V2) {
        let stat = host.read_file(&Path::new(&hierarchy.mount).join("cgroup.stat")).unwrap_or_default();
        text.extend(stat.lines().filter(|line| line.starts_with("nr_descendants")));
    }
    text
}
