//! Members that a path alone does not identify: containers, Kubernetes pods, processes. Facts as the sensors found
//! them, and which match selects which member; [`crate::desired`] decides which processes are moved.

use crate::actual::{CgroupPath, Hierarchy};
use crate::group::{Match, PodQos};
use crate::knob::Version;
use crate::text::visible;
use std::collections::BTreeMap;
use std::fmt;

/// A running container, as reported by its engine and the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerFact {
    /// Identifier: 64 hexadecimal digits.
    pub id: String,
    /// Name given by the user, without a slash.
    pub name: String,
    /// Labels by key.
    pub labels: BTreeMap<String, String>,
    /// PID of its first process, as reported by the engine.
    pub pid: Option<u32>,
    /// Cgroup of that process (`/proc/PID/cgroup`), by hierarchy; empty when it has exited meanwhile.
    pub paths: BTreeMap<usize, CgroupPath>,
}

impl ContainerFact {
    /// The container's cgroup: its first process's path up to the component that contains the identifier, because that
    /// process may have created groups inside. `None` when no component contains it: then the process shares a cgroup
    /// with others, or the PID was reused.
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

    /// Whether the container has the label: `key=value`, or `key` alone with any value, as in `docker ps --filter
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
    /// Field 22 of `/proc/PID/stat`, clock ticks since boot.
    pub start_ticks: u64,
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.pid)
    }
}

/// A process that some group may select. Facts that were not needed, or cannot be read, are absent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessFact {
    /// The process's identity.
    pub id: ProcessId,
    /// PID of its parent, or of the process that adopted it.
    pub parent: u32,
    /// Path of the executable in the process's mount namespace, without ` (deleted)`.
    pub exe: Option<String>,
    /// Effective user.
    pub uid: Option<u32>,
    /// Names of that user.
    pub users: Vec<String>,
    /// Arguments, joined by spaces.
    pub cmdline: Option<String>,
    /// The process's cgroups, by hierarchy.
    pub places: BTreeMap<usize, CgroupPath>,
}

impl ProcessFact {
    /// Program name and PID, as shown to users.
    #[must_use]
    pub fn name(&self) -> String {
        let exe = self.exe.as_deref().and_then(|exe| exe.rsplit('/').next());
        exe.map_or_else(|| self.id.to_string(), |exe| format!("{} ({})", self.id, visible(exe)))
    }
}

/// The cgroups of a moved process before and after the move.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MovedFrom {
    /// Its cgroups before the move, by hierarchy, as far as those same groups still exist.
    pub from: BTreeMap<usize, CgroupPath>,
    /// Its cgroups after the move.
    pub to: BTreeMap<usize, CgroupPath>,
    /// Whether the move was carried out; otherwise it was only recorded in advance.
    pub done: bool,
    /// The match that selected it, in words.
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

    /// Whether this match selects the process: every given part matches. `exe` with a slash is the whole path, without
    /// one the last component; `user` is a name or a number; `cmdline` is a part of the arguments, joined by spaces.
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

/// Whether the program at this path is the wanted one: compares the whole path if `wanted` has a slash, else the last
/// component.
#[must_use]
pub fn is_program(path: &str, wanted: &str) -> bool {
    match wanted.contains('/') {
        true => path == wanted,
        false => path.rsplit('/').next() == Some(wanted),
    }
}

/// Whether the user with this number and these names is the wanted one.
#[must_use]
pub fn is_user(uid: u32, names: &[String], wanted: &str) -> bool {
    names.iter().any(|name| name == wanted) || uid.to_string() == wanted
}

/// Whether the cgroup is, or lies in, a container's: a component of its path has an identifier of 64 hexadecimal
/// digits, or is named as LXC names its groups.
#[must_use]
pub fn in_container(path: &CgroupPath) -> bool {
    let identifier = |word: &str| word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    path.parts().any(|part| {
        part.split(['-', '.', ':', '_']).any(identifier) || part.starts_with("lxc.payload") || part == "lxc"
    })
}

/// Whether this is the cgroup to adopt for the class: for `besteffort` and `burstable` the cgroup of the whole class,
/// in which kubelet creates every pod, so that a new pod is inside from its first instruction; for `guaranteed`, which
/// has no such cgroup, each pod's. kubelet has two layouts (`--cgroup-driver`, also below a `--cgroup-root`):
/// ```text
/// cgroupfs  /kubepods/besteffort/podUID/ID        /kubepods/podUID/ID
/// systemd   /kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podUID.slice/cri-containerd-ID.scope
///           /kubepods.slice/kubepods-podUID.slice/cri-containerd-ID.scope
/// ```
/// Groups of a kubelet that runs in a container do not count.
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

/// The text of a `/proc/PID/cgroup`, by hierarchy: `0::/a` is the unified one, `5:cpu,cpuacct:/b` another. In the unified one a
/// group that was removed under a dead process ends in ` (deleted)` and is left out; but a group may be called so, and
/// `is_there` says which it is.
#[must_use]
pub fn places(
    text: &str,
    hierarchies: &[Hierarchy],
    is_there: &dyn Fn(&Hierarchy, &CgroupPath) -> bool,
) -> BTreeMap<usize, CgroupPath> {
    let place = |line: &str| {
        let (_, rest) = line.split_once(':')?;
        let (names, path) = rest.split_once(':')?;
        let hierarchy = hierarchies.iter().position(|one| match one.version {
            Version::V2 => names.is_empty(),
            Version::V1 => {
                one.controllers.iter().any(|known| names.split(',').any(|name| name == known.v1_name()))
            }
        })?;
        let (row, path) = (&hierarchies[hierarchy], CgroupPath::new(path));
        let gone = row.version == Version::V2 && path.name().ends_with(" (deleted)") && !is_there(row, &path);
        (!gone).then_some((hierarchy, path))
    };
    // A name may end in a carriage return, which is no end of a line here; the kernel lets none have a newline.
    text.split('\n').filter_map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knob::Controller;

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
        // A container of an engine that runs inside another container.
        check(&format!("/docker/{OTHER}/docker/{ID}/x"), Some(&format!("/docker/{OTHER}/docker/{ID}")));
        // The PID belongs to another process now, or the container shares its group.
        check("/user.slice/session-1.scope", None);
        check(&format!("/docker/{OTHER}"), None);
        assert_eq!(container(&[]).cgroup(Some(0)), None);
        // The chosen hierarchy is tried first, then any.
        let both = container(&["/", &format!("/docker/{ID}")]);
        assert_eq!(both.cgroup(Some(0)), Some(path(&format!("/docker/{ID}"))));
    }

    #[test]
    fn places_of_odd_names() {
        let hierarchy = |version, controllers: &[Controller]| Hierarchy {
            version,
            mount: "/m".to_owned(),
            controllers: controllers.iter().copied().collect(),
        };
        let both = [hierarchy(Version::V1, &[Controller::Cpu]), hierarchy(Version::V2, &[])];
        let check = |text: &str, there: bool, want: &[(usize, &str)]| {
            let got = places(text, &both, &|_, _| there);
            assert_eq!(got, want.iter().map(|(at, text)| (*at, path(text))).collect(), "{text:?}");
        };
        check("7:cpu,cpuacct:/a\n0::/b\n", false, &[(0, "/a"), (1, "/b")]);
        check("7:cpu:/a\r\n0::/b:c \n", false, &[(0, "/a\r"), (1, "/b:c ")]);
        // v1 has no such mark.
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
