//! Members of groups that a cgroup path alone does not identify: containers, Kubernetes pods and processes. This module
//! defines the facts that the sensors report about them, and decides which match (a condition in the groups file)
//! selects which member; [`crate::desired`] decides which processes commensal moves.

use crate::actual::{CgroupPath, Hierarchy};
use crate::group::{Match, PodQos};
use crate::knob::Version;
use crate::text::visible;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A running container, as reported by its engine and the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerFact {
    /// Identifier of the container: 64 hexadecimal digits.
    pub id: String,
    /// Name given by the user, without the leading slash of Docker's API.
    pub name: String,
    /// Values of the labels, by key.
    pub labels: BTreeMap<String, String>,
    /// PID of the container's first process, as reported by the engine.
    pub pid: Option<u32>,
    /// Cgroups of the first process (`/proc/PID/cgroup`), by hierarchy; empty if the process has exited.
    pub paths: BTreeMap<usize, CgroupPath>,
    /// Why a cgroup of the first process cannot be named here, and what to do.
    pub unnamed: Option<(String, String)>,
}

/// Running containers, as reported by their engines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineReport {
    /// The containers, with their cgroups.
    pub containers: Vec<ContainerFact>,
    /// Why commensal could query no container engine; `None` if an engine responded, or if no match needs an engine.
    pub obstacle: Option<String>,
}

impl ContainerFact {
    /// The container's cgroup, preferably in `hierarchy`. Its path is the path of the first process up to the component
    /// that contains the container's identifier. The function cuts off the rest, because the process may have created
    /// cgroups inside the container's cgroup. `None` if no component contains the identifier: then the container has no
    /// cgroup of its own, or another process has reused the PID.
    #[must_use]
    pub fn cgroup(&self, hierarchy: Option<usize>) -> Option<CgroupPath> {
        let chosen = hierarchy.and_then(|index| self.paths.get(&index));
        let own = |path: &CgroupPath| {
            let end = path.parts().position(|part| part.contains(&self.id))?;
            let parts: Vec<&str> = path.parts().take(end + 1).collect();
            Some(CgroupPath::new(&parts.join("/")))
        };
        let usable = self.id.len() >= 12;
        chosen.into_iter().chain(self.paths.values()).find_map(own).filter(|_| usable)
    }

    /// Whether the container has the label. `wanted` is `key=value`, or `key` for any value, as in `docker ps --filter
    /// label=`.
    #[must_use]
    pub fn has_label(&self, wanted: &str) -> bool {
        match wanted.split_once('=') {
            Some((key, value)) => self.labels.get(key).is_some_and(|has| has == value),
            None => self.labels.contains_key(wanted),
        }
    }
}

/// Identity of a process, safe against PID reuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId {
    /// Process ID.
    pub pid: u32,
    /// Start time in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub start_ticks: u64,
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.pid)
    }
}

/// A process that a match may select. A fact that no match needs, or that the sensors cannot read, is `None` or empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessFact {
    /// The process's identity.
    pub id: ProcessId,
    /// PID of the parent, or of the process to which it was reparented.
    pub parent: u32,
    /// Path of the executable in the process's mount namespace, without ` (deleted)`.
    pub exe: Option<String>,
    /// Effective user ID.
    pub uid: Option<u32>,
    /// Names of the effective user.
    pub users: Vec<String>,
    /// Arguments, joined by spaces.
    pub cmdline: Option<String>,
    /// Cgroups of the process's first thread, by hierarchy.
    pub places: BTreeMap<usize, CgroupPath>,
    /// Why a cgroup of the process cannot be named here, and what to do.
    pub unnamed: Option<(String, String)>,
}

/// Hierarchies in which the threads of a process are in several cgroups, with these cgroups.
pub type Apart = BTreeMap<usize, BTreeSet<CgroupPath>>;

impl ProcessFact {
    /// PID and program name, as shown to users; only the PID if the executable is unknown.
    #[must_use]
    pub fn name(&self) -> String {
        let exe = self.exe.as_deref().and_then(|exe| exe.rsplit('/').next());
        exe.map_or_else(|| self.id.to_string(), |exe| format!("{} ({})", self.id, visible(exe)))
    }
}

/// A process that is in a member cgroup in some hierarchy, but not in the member's cpuset (v1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stray {
    /// The process's identity.
    pub process: ProcessId,
    /// PID and name of the process, as shown to users.
    pub name: String,
    /// The member.
    pub member: CgroupPath,
    /// Cgroups of the process, by hierarchy.
    pub places: BTreeMap<usize, CgroupPath>,
}

/// The record of a move of a process by commensal: the process's cgroups before and after the move.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MovedFrom {
    /// The process's cgroups before the move, by hierarchy; cgroups that no longer exist are left out.
    pub from: BTreeMap<usize, CgroupPath>,
    /// The process's cgroups after the move, by hierarchy.
    pub to: BTreeMap<usize, CgroupPath>,
    /// Whether the move was carried out; false if commensal recorded the move but has not carried it out.
    pub done: bool,
    /// The match that selected the process, as readable text.
    pub by: String,
}

impl Match {
    /// Whether this match selects the container.
    #[must_use]
    pub fn takes_container(&self, container: &ContainerFact) -> bool {
        match self {
            Match::DockerLabel(label) => container.has_label(label),
            Match::DockerName(name) => container.name == *name,
            _ => false,
        }
    }

    /// Whether this match selects the process, that is, whether every given condition matches. `exe` is compared with
    /// the whole path if it contains a slash, otherwise with the last component; `user` with the user's names and
    /// number; `cmdline` must be a part of the arguments, joined by spaces.
    #[must_use]
    pub fn takes_process(&self, process: &ProcessFact) -> bool {
        let Match::Process { exe, user, cmdline } = self else { return false };
        let exe_holds =
            exe.as_ref().is_none_or(|wanted| process.exe.as_ref().is_some_and(|has| is_program(has, wanted)));
        let user_holds = user
            .as_ref()
            .is_none_or(|wanted| process.uid.is_some_and(|uid| is_user(uid, &process.users, wanted)));
        let cmdline_holds = cmdline
            .as_ref()
            .is_none_or(|wanted| process.cmdline.as_ref().is_some_and(|has| has.contains(wanted)));
        exe_holds && user_holds && cmdline_holds
    }
}

/// Whether the program at this path is `wanted`: compares the whole path if `wanted` contains a slash, otherwise the
/// last component.
#[must_use]
pub fn is_program(path: &str, wanted: &str) -> bool {
    match wanted.contains('/') {
        true => path == wanted,
        false => path.rsplit('/').next() == Some(wanted),
    }
}

/// Whether `wanted` is the number or one of the names of a user.
#[must_use]
pub fn is_user(uid: u32, names: &[String], wanted: &str) -> bool {
    names.iter().any(|name| name == wanted) || uid.to_string() == wanted
}

/// Whether the cgroup is a container's cgroup or lies in one: a component of its path contains an identifier of 64
/// hexadecimal digits, or has a name that LXC gives to its groups.
#[must_use]
pub fn in_container(path: &CgroupPath) -> bool {
    let identifier = |word: &str| word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    path.parts().any(|part| {
        part.split(['-', '.', ':', '_']).any(identifier) || part.starts_with("lxc.payload") || part == "lxc"
    })
}

/// Whether this is a cgroup to adopt (to treat as a member) for the pods of a class. For `besteffort` and `burstable`,
/// commensal adopts the cgroup of the whole class. kubelet creates every pod of the class in this cgroup, so a new pod
/// is a member from its first instruction. The class `guaranteed` has no such cgroup, so commensal adopts the cgroup of
/// each pod. kubelet has two layouts (`--cgroup-driver`, also below a `--cgroup-root`):
/// ```text
/// cgroupfs  /kubepods/besteffort/podUID/ID        /kubepods/podUID/ID
/// systemd   /kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podUID.slice/cri-containerd-ID.scope
///           /kubepods.slice/kubepods-podUID.slice/cri-containerd-ID.scope
/// ```
/// commensal does not adopt cgroups of a kubelet that runs inside a container.
#[must_use]
pub fn is_of_pods(path: &CgroupPath, qos: PodQos) -> bool {
    let Some(above) = path.parent().filter(|above| above.depth() > 0 && !in_container(path)) else {
        return false;
    };
    let pods = |name: &str| name == "kubepods" || name.ends_with("-kubepods");
    if let Some(slice) = above.name().strip_suffix(".slice").filter(|slice| pods(slice)) {
        let Some(name) = path.name().strip_suffix(".slice") else { return false };
        let Some(rest) = name.strip_prefix(slice).and_then(|rest| rest.strip_prefix('-')) else {
            return false;
        };
        return match qos {
            PodQos::Guaranteed => rest.starts_with("pod"),
            tier => rest == tier.to_string(),
        };
    }
    above.name() == "kubepods"
        && match qos {
            PodQos::Guaranteed => path.name().starts_with("pod"),
            tier => path.name() == tier.to_string(),
        }
}

/// Parses `/proc/PID/cgroup`; returns the process's cgroup in each hierarchy, as a path below its mount. `0::/a` is a line
/// of the unified hierarchy, `5:cpu,cpuacct:/b` is a line of a v1 hierarchy. In the unified hierarchy the kernel appends
/// ` (deleted)` to the path of a group that was removed while a dead process was in it; the result does not contain such a
/// group. Because the name of an existing group can also end in ` (deleted)`, `is_there` must report whether the group
/// exists. The result does not contain a cgroup that cannot be named ([`unnamed`]) either.
#[must_use]
pub fn places(
    text: &str,
    hierarchies: &[Hierarchy],
    is_there: &dyn Fn(&Hierarchy, &CgroupPath) -> bool,
) -> BTreeMap<usize, CgroupPath> {
    let place = |(index, shown): (usize, CgroupPath)| {
        let row = &hierarchies[index];
        let path = row.part.below_mount(&shown)?;
        let gone = row.version == Version::V2 && path.name().ends_with(" (deleted)") && !is_there(row, &path);
        (!gone).then_some((index, path))
    };
    shown(text, hierarchies).filter_map(place).collect()
}

/// Why a cgroup of the process cannot be named, in a hierarchy that has controllers, and what to do; `None` if all of them
/// can. `text` is the process's `/proc/PID/cgroup`.
#[must_use]
pub fn unnamed(text: &str, hierarchies: &[Hierarchy]) -> Option<(String, String)> {
    let mut controlled =
        shown(text, hierarchies).filter(|(index, _)| !hierarchies[*index].controllers.is_empty());
    controlled.find_map(|(index, shown)| hierarchies[index].part.obstacle(&shown, &hierarchies[index].mount))
}

/// The paths in `/proc/PID/cgroup` as the kernel shows them, relative to the root of this process's cgroup namespace, by
/// hierarchy.
pub fn shown<'t>(
    text: &'t str,
    hierarchies: &'t [Hierarchy],
) -> impl Iterator<Item = (usize, CgroupPath)> + use<'t> {
    // Split at newlines only, because a group's name may end in a carriage return; the kernel allows no newline in it.
    text.split('\n').filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (names, path) = rest.split_once(':')?;
        let hierarchy = hierarchies.iter().position(|one| match one.version {
            Version::V2 => names.is_empty(),
            Version::V1 => {
                one.controllers.iter().any(|known| names.split(',').any(|name| name == known.v1_name()))
            }
        })?;
        Some((hierarchy, CgroupPath::new(path)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knob::Controller;
    use crate::namespace::MountedPart;

    const ID: &str = "5e1c7a90b3d24f68e0a91c7d5b38f2640e9d1a7c6b3f825049e7d1c0a8b64f23";
    const OTHER: &str = "aaaa7a90b3d24f68e0a91c7d5b38f2640e9d1a7c6b3f825049e7d1c0a8b64f23";

    fn path(text: &str) -> CgroupPath {
        CgroupPath::new(text)
    }

    fn container(places: &[&str]) -> ContainerFact {
        let paths = places.iter().map(|place| path(place)).enumerate().collect();
        ContainerFact { id: ID.to_owned(), paths, ..ContainerFact::default() }
    }

    #[test]
    fn the_containers_own_cgroup() {
        let check = |place: &str, want: Option<&str>| {
            let got = container(&[place]).cgroup(Some(0));
            assert_eq!(got, want.map(path), "{place}");
        };
        check(&format!("/docker/{ID}"), Some(&format!("/docker/{ID}")));
        check(&format!("/docker/{ID}/init.scope"), Some(&format!("/docker/{ID}")));
        let scope = format!("/system.slice/docker-{ID}.scope");
        check(&scope, Some(&scope));
        // The engine of this container itself runs inside a container.
        check(&format!("/docker/{OTHER}/docker/{ID}/x"), Some(&format!("/docker/{OTHER}/docker/{ID}")));
        // The PID was reused by another process, or the container shares its cgroup.
        check("/user.slice/session-1.scope", None);
        check(&format!("/docker/{OTHER}"), None);
        assert_eq!(container(&[]).cgroup(Some(0)), None);
        // The path in the chosen hierarchy is tried first, then the paths in the other hierarchies.
        let both = container(&["/", &format!("/docker/{ID}")]);
        assert_eq!(both.cgroup(Some(0)), Some(path(&format!("/docker/{ID}"))));
    }

    #[test]
    fn places_of_odd_names() {
        let hierarchy = |version, controllers: &[Controller]| Hierarchy {
            version,
            mount: "/m".to_owned(),
            controllers: controllers.iter().copied().collect(),
            part: MountedPart::default(),
        };
        let both = [hierarchy(Version::V1, &[Controller::Cpu]), hierarchy(Version::V2, &[])];
        let check = |text: &str, there: bool, want: &[(usize, &str)]| {
            let got = places(text, &both, &|_, _| there);
            assert_eq!(got, want.iter().map(|(at, text)| (*at, path(text))).collect(), "{text:?}");
        };
        check("7:cpu,cpuacct:/a\n0::/b\n", false, &[(0, "/a"), (1, "/b")]);
        check("7:cpu:/a\r\n0::/b:c \n", false, &[(0, "/a\r"), (1, "/b:c ")]);
        // v1 does not append ` (deleted)`.
        check("7:cpu:/a (deleted)\n0::/b (deleted)\n", false, &[(0, "/a (deleted)")]);
        check("7:cpu:/a\n0::/b (deleted)\n", true, &[(0, "/a"), (1, "/b (deleted)")]);
    }

    #[test]
    fn labels_with_and_without_a_value() {
        let mut one = container(&[]);
        one.labels = [("tier".to_owned(), "web".to_owned()), ("x".to_owned(), String::new())].into();
        for (wanted, has) in [
            ("tier=web", true),
            ("tier", true),
            ("tier=we", false),
            ("tie", false),
            ("x=", true),
            ("x", true),
        ] {
            assert_eq!(one.has_label(wanted), has, "{wanted}");
        }
    }

    #[test]
    fn pods_in_both_layouts() {
        use PodQos::{BestEffort, Burstable, Guaranteed};
        let check = |text: &str, want: Option<PodQos>| {
            for qos in [BestEffort, Burstable, Guaranteed] {
                assert_eq!(is_of_pods(&path(text), qos), want == Some(qos), "{text} {qos}");
            }
        };
        check("/kubepods/besteffort", Some(BestEffort));
        check("/kubepods/burstable", Some(Burstable));
        check("/kubepods/pod1234", Some(Guaranteed));
        check("/kubepods/besteffort/pod1234", None);
        check("/kubelet/kubepods/burstable", Some(Burstable));
        check("/kubepods.slice/kubepods-besteffort.slice", Some(BestEffort));
        check("/kubepods.slice/kubepods-pod12_34.slice", Some(Guaranteed));
        check("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice", None);
        check("/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice", Some(BestEffort));
        check("/besteffort", None);
        check("/kubepods", None);
        check("/batch/besteffort", None);
        check(&format!("/docker/{ID}/kubelet/kubepods/besteffort"), None);
    }

    #[test]
    fn processes_by_every_part() {
        let process = ProcessFact {
            id: ProcessId { pid: 7, start_ticks: 1 },
            parent: 1,
            exe: Some("/usr/bin/ffmpeg".to_owned()),
            uid: Some(1000),
            users: vec!["media".to_owned()],
            cmdline: Some("ffmpeg -i a.mp4".to_owned()),
            places: BTreeMap::new(),
            unnamed: None,
        };
        let part = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        for (exe, user, cmdline, want) in [
            ("/usr/bin/ffmpeg", "", "", true),
            ("ffmpeg", "media", "-i a", true),
            ("peg", "", "", false),
            ("/bin/ffmpeg", "", "", false),
            ("", "1000", "", true),
            ("", "root", "", false),
            ("ffmpeg", "media", "-i b", false),
        ] {
            let one = Match::Process { exe: part(exe), user: part(user), cmdline: part(cmdline) };
            assert_eq!(one.takes_process(&process), want, "{one}");
        }
        // A fact that could not be read does not match.
        let unread = ProcessFact { exe: None, uid: None, users: Vec::new(), cmdline: None, ..process };
        let one = Match::Process { exe: None, user: None, cmdline: part("x") };
        assert!(!one.takes_process(&unread));
    }
}
