//! Finds the cgroups of a service by the name that the user gives, and the name of a cgroup by its ID. Writes nothing.

use crate::Subject;
use commensal_core::actual::{ActualState, CgroupPath, Hierarchy};
use commensal_core::knob::Version;
use commensal_host::Host;
use commensal_sensors::containers::containers;
use commensal_sensors::{SensorError, cgroups, mounts};
use std::collections::BTreeMap;

/// The cgroups among which the kernel's scheduler divides the CPU: those of the v1 hierarchy with the CPU controller
/// or, without such a hierarchy, those of the unified hierarchy (v2).
#[derive(Debug, Clone)]
pub struct Cgroups {
    /// Whether this is the unified hierarchy.
    pub unified: bool,
    /// Mount point of the hierarchy.
    pub mount: String,
    /// The cgroups of the hierarchy.
    pub found: ActualState,
    /// Names of containers, by container ID.
    containers: BTreeMap<String, String>,
    by_id: BTreeMap<u64, CgroupPath>,
    by_path: BTreeMap<CgroupPath, u64>,
}

impl Cgroups {
    /// Reads the cgroups; `None` if no such hierarchy is mounted, as in some containers. `engine` is the address of the
    /// container engine's API, in the form of `DOCKER_HOST`; `None` means the default sockets of Docker and Podman.
    ///
    /// # Errors
    /// Returns an error if a mounted hierarchy cannot be read.
    pub fn look(host: &mut dyn Host, engine: Option<&str>) -> Result<Option<Cgroups>, SensorError> {
        let hierarchies = mounts::hierarchies(host)?;
        let Some(chosen) = Hierarchy::of_threads(&hierarchies).cloned() else { return Ok(None) };
        let (unified, mount) = (chosen.version == Version::V2, chosen.mount.clone());
        let found = cgroups(host, vec![chosen])?;
        let by_id: BTreeMap<u64, CgroupPath> =
            found.cgroups.iter().map(|(place, one)| (one.inode, place.path.clone())).collect();
        let by_path = by_id.iter().map(|(id, path)| (path.clone(), *id)).collect();
        // If no path contains a container ID, no container engine is queried.
        let any = by_id.values().any(|path| ids(path).next().is_some());
        let containers = if any { containers(host, engine) } else { Vec::new() };
        let containers = containers.into_iter().map(|one| (one.id, one.name)).collect();
        Ok(Some(Cgroups { unified, mount, found, containers, by_id, by_path }))
    }

    /// Returns the cgroup at a path as a target of the probe; `None` if no such cgroup exists.
    #[must_use]
    pub fn subject(&self, path: &CgroupPath) -> Option<Subject> {
        self.by_path.get(path).map(|id| Subject::Cgroups(vec![*id]))
    }

    /// The paths of all cgroups, as last read.
    pub fn paths(&self) -> impl Iterator<Item = &CgroupPath> {
        self.by_path.keys()
    }

    /// The path of a cgroup, as last read; `None` if the cgroup is unknown.
    #[must_use]
    pub fn path(&self, id: u64) -> Option<&CgroupPath> {
        self.by_id.get(&id)
    }

    /// Returns the cgroups of a systemd unit or of a container (by a prefix of its ID). If several units have the name,
    /// the cgroup of the system manager's unit is the first.
    #[must_use]
    pub fn called(&self, asked: &Asked) -> Vec<CgroupPath> {
        let mut paths: Vec<CgroupPath> = self.by_path.keys().filter(|path| asked.is(path)).cloned().collect();
        let user =
            |path: &CgroupPath| !path.ancestors().iter().skip(1).all(|one| one.name().ends_with(".slice"));
        paths.sort_by_key(|path| (user(path), path.depth(), path.clone()));
        // A cgroup inside another matching cgroup is part of that cgroup.
        let all = paths.clone();
        paths.retain(|path| !all.iter().any(|other| other != path && other.contains(path)));
        paths
    }

    /// Adds the cgroups and containers of a later reading. The names of removed cgroups are kept.
    pub fn learn(&mut self, later: &Cgroups) {
        self.by_id.extend(later.by_id.iter().map(|(id, path)| (*id, path.clone())));
        self.containers.extend(later.containers.iter().map(|(id, name)| (id.clone(), name.clone())));
    }

    /// Whether there is another cgroup in the place of this one in a later reading: at its path, as after a restart, or of a
    /// new container that has the name of its container.
    #[must_use]
    pub fn is_replaced(&self, id: u64, later: &Cgroups) -> bool {
        let Some(path) = self.path(id) else { return false };
        let is_another = |path: &CgroupPath| later.by_path.get(path).is_some_and(|found| *found != id);
        let of_name = || {
            let asked = Asked::Container(later.container_called(self.container(path)?)?.to_owned());
            later.called(&asked).into_iter().next()
        };
        is_another(path) || of_name().is_some_and(|path| is_another(&path))
    }

    /// Name of the container that the cgroup belongs to.
    fn container(&self, path: &CgroupPath) -> Option<&str> {
        ids(path).find_map(|id| self.containers.get(id)).map(String::as_str)
    }

    /// ID of the container with this name.
    #[must_use]
    pub fn container_called(&self, name: &str) -> Option<&str> {
        self.containers.iter().find(|(_, called)| *called == name).map(|(id, _)| id.as_str())
    }

    /// Returns a short name for a cgroup: its path, with container IDs shortened to 12 digits as container tools do.
    #[must_use]
    pub fn name(&self, id: u64) -> String {
        match self.path(id) {
            Some(path) if path.depth() == 0 => "/ (in no cgroup)".to_owned(),
            Some(path) => match self.container(path) {
                Some(name) => format!("{} (container {name})", short(path)),
                None => short(path),
            },
            None if id == 0 => "/ (a session's autogroup)".to_owned(),
            None => format!("cgroup {id} (removed)"),
        }
    }
}

/// Container IDs in a path: `docker-ID.scope`, `ID`, `cri-containerd-ID.scope`, `libpod-ID.scope`.
fn ids(path: &CgroupPath) -> impl Iterator<Item = &str> {
    let parts = path.parts().flat_map(|part| part.split(['-', '.', ':']));
    parts.filter(|part| part.len() == 64 && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// The path with IDs of 64 hexadecimal digits shortened to 12.
#[must_use]
pub fn short(path: &CgroupPath) -> String {
    let part = |part: &str| {
        let bytes = part.as_bytes();
        let run = |start: usize| bytes[start..].iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let at = (0..bytes.len()).find(|start| run(*start) >= 64);
        match at {
            Some(at) => format!("{}{}", &part[..at + 12], &part[at + run(at)..]),
            None => part.to_owned(),
        }
    };
    let parts: Vec<String> = path.parts().map(part).collect();
    format!("/{}", parts.join("/"))
}

/// A target as the user named it. The form of the name determines the variant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// A process, by its PID.
    Process(u32),
    /// A cgroup, by its path.
    Cgroup(CgroupPath),
    /// A systemd unit, by its name.
    Unit(String),
    /// A container, by its ID or a prefix of the ID.
    Container(String),
    /// A group of the groups file, or a container, by its name.
    Name(String),
}

impl Asked {
    /// Parses a name. `mount` is the mount point of the hierarchy, if there is one.
    #[must_use]
    pub fn parse(text: &str, mount: Option<&str>) -> Asked {
        const UNITS: [&str; 3] = [".service", ".slice", ".scope"];
        if let Ok(pid) = text.parse() {
            return Asked::Process(pid);
        }
        if text.contains('/') {
            let below = mount.and_then(|mount| text.strip_prefix(mount));
            return Asked::Cgroup(CgroupPath::new(below.unwrap_or(text)));
        }
        if UNITS.iter().any(|ending| text.ends_with(ending)) {
            return Asked::Unit(text.to_owned());
        }
        match text.len() >= 12 && text.chars().all(|c| c.is_ascii_hexdigit()) {
            true => Asked::Container(text.to_ascii_lowercase()),
            false => Asked::Name(text.to_owned()),
        }
    }

    fn is(&self, path: &CgroupPath) -> bool {
        match self {
            Asked::Unit(unit) => path.name() == unit,
            Asked::Container(id) => {
                ids(&CgroupPath::new(path.name())).any(|one| one.starts_with(id.as_str()))
            }
            Asked::Process(_) | Asked::Cgroup(_) | Asked::Name(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "5e1c7a90b3d24f68e0a91c7d5b38f2640e9d1a7c6b3f825049e7d1c0a8b64f23";

    #[test]
    fn what_was_asked() {
        let check = |text: &str, want: Asked| {
            assert_eq!(Asked::parse(text, Some("/sys/fs/cgroup")), want, "{text}");
        };
        check("17", Asked::Process(17));
        check("/system.slice/x.service", Asked::Cgroup(CgroupPath::new("/system.slice/x.service")));
        check("/sys/fs/cgroup/batch", Asked::Cgroup(CgroupPath::new("/batch")));
        check("nginx.service", Asked::Unit("nginx.service".to_owned()));
        check("5E1C7A90B3D2", Asked::Container("5e1c7a90b3d2".to_owned()));
        check("web", Asked::Name("web".to_owned()));
        check("deadbeef", Asked::Name("deadbeef".to_owned()));
    }

    #[test]
    fn containers_by_the_beginning_of_their_identifier() {
        let asked = Asked::Container("5e1c7a90b3d2".to_owned());
        for path in [format!("/system.slice/docker-{ID}.scope"), format!("/docker/{ID}")] {
            assert!(asked.is(&CgroupPath::new(&path)), "{path}");
        }
        assert!(!asked.is(&CgroupPath::new("/5e1c7a90b3d2")));
        assert_eq!(
            short(&CgroupPath::new(&format!("/a/docker-{ID}.scope/b"))),
            "/a/docker-5e1c7a90b3d2.scope/b"
        );
        assert_eq!(short(&CgroupPath::new("/a/deadbeef")), "/a/deadbeef");
    }
}
