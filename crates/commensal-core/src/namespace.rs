//! Which part of a cgroup hierarchy a mount shows, and how paths of `/proc/PID/cgroup` translate to paths below the mount.
//!
//! The kernel shows the paths in `/proc/PID/cgroup` and the roots of mounts in `/proc/self/mountinfo` relative to the root
//! of the reader's cgroup namespace; `/..` leads above that root (cgroup_namespaces(7)). A mount shows the whole hierarchy
//! or, as a bind mount or in a namespace, only a part of it:
//!
//! ```text
//! namespace's root   mount's root   a process's path   below the mount
//! /                  /              /web/a             /web/a
//! /                  /web           /web/a             /a
//! /                  /web           /db                (not shown)
//! /docker/c          /../..         /../../web         /web
//! /docker/c          /../..         /x                 /docker/c/x, if the namespace's root is known
//! ```

use crate::actual::CgroupPath;
use std::cmp::Ordering;

/// The part of a hierarchy that a mount shows; by default all of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountedPart {
    /// The cgroup at the mount point, relative to the namespace's root.
    pub root: CgroupPath,
    /// The namespace's root, as a path below the mount; `None` if the mount does not show it or it is unknown.
    pub namespace: Option<CgroupPath>,
}

/// Splits a path into the number of `..` at its start and the names that follow.
fn apart(path: &CgroupPath) -> (usize, Vec<&str>) {
    let up = path.parts().take_while(|part| *part == "..").count();
    (up, path.parts().skip(up).collect())
}

impl MountedPart {
    /// Number of cgroups from the mount's root down to the namespace's root, if it lies there; otherwise 0.
    #[must_use]
    pub fn depth_of_namespace(&self) -> usize {
        match apart(&self.root) {
            (up, down) if down.is_empty() => up,
            _ => 0,
        }
    }

    /// Whether this part contains all of another part of the same hierarchy, and more.
    #[must_use]
    pub fn shows_more_than(&self, other: &MountedPart) -> bool {
        let ((up, down), (other_up, other_down)) = (apart(&self.root), apart(&other.root));
        match up.cmp(&other_up) {
            Ordering::Greater => down.is_empty(),
            Ordering::Equal => other_down.len() > down.len() && other_down.starts_with(&down),
            Ordering::Less => false,
        }
    }

    /// Whether the mount shows the namespace's root, but nobody knows which of its cgroups that is.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.depth_of_namespace() > 0 && self.namespace.is_none()
    }

    /// The path below the mount of a cgroup that `/proc` shows as `shown`; `None` if it cannot be named.
    #[must_use]
    pub fn below_mount(&self, shown: &CgroupPath) -> Option<CgroupPath> {
        let ((up, down), (root_up, root_down)) = (apart(shown), apart(&self.root));
        let chain: Vec<&str> = if up == root_up {
            down.strip_prefix(root_down.as_slice())?.to_vec()
        } else if up < root_up && root_down.is_empty() {
            let namespace = self.namespace.as_ref()?;
            namespace.parts().take(root_up - up).chain(down).collect()
        } else {
            return None;
        };
        Some(CgroupPath::new(&chain.join("/")))
    }

    /// Why a cgroup that `/proc` shows as `shown` cannot be named, and what to do; `None` if it can be named.
    #[must_use]
    pub fn obstacle(&self, shown: &CgroupPath, mount: &str) -> Option<(String, String)> {
        if self.below_mount(shown).is_some() {
            return None;
        }
        let in_namespace = [shown, &self.root].iter().any(|path| apart(path).0 > 0);
        Some(match in_namespace {
            true => (
                format!(
                    "this process runs in a cgroup namespace of its own, in which the cgroup {shown} has no path below {mount}"
                ),
                "start commensal in the host's cgroup namespace (docker run --cgroupns=host) with the host's /sys/fs/cgroup"
                    .to_owned(),
            ),
            false => (
                format!("only the part {} of the hierarchy is mounted at {mount}, and the cgroup {shown} is outside", self.root),
                "mount the whole hierarchy, such as the host's /sys/fs/cgroup".to_owned(),
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(names: &[String]) -> CgroupPath {
        CgroupPath::new(&names.join("/"))
    }

    /// How the kernel shows a cgroup relative to another one (`kernfs_path_from_node`, fs/kernfs/dir.c).
    fn shown(from: &[String], to: &[String]) -> CgroupPath {
        let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
        let up = std::iter::repeat_n("..".to_owned(), from.len() - common);
        path(&up.chain(to[common..].iter().cloned()).collect::<Vec<_>>())
    }

    fn names() -> impl Strategy<Value = Vec<String>> {
        prop::collection::vec(prop::sample::select(vec!["a", "b", "c d"]).prop_map(str::to_owned), 0..4)
    }

    proptest! {
        /// For every namespace, mount and cgroup: the path below the mount is the right one wherever the mount shows the
        /// cgroup, and there is none elsewhere.
        // promise 13
        #[test]
        fn a_cgroup_is_named_wherever_the_mount_shows_it(
            namespace in names(), mount in names(), cgroup in names(), known in any::<bool>(),
        ) {
            let below = |to: &[String]| to.strip_prefix(mount.as_slice()).map(path);
            let part = MountedPart {
                root: shown(&namespace, &mount),
                namespace: below(&namespace).filter(|_| known),
            };
            let seen = shown(&namespace, &cgroup);
            let got = part.below_mount(&seen);
            // Only cgroups at or below the namespace's root need its name.
            let through = namespace.starts_with(&mount) && namespace.len() > mount.len();
            let needs_name = through && cgroup.iter().zip(&namespace).take_while(|(a, b)| a == b).count() > mount.len();
            let want = below(&cgroup).filter(|_| known || !needs_name);
            prop_assert_eq!(&got, &want, "{:?} seen as {:?} below {:?}", cgroup, seen, part);
            prop_assert_eq!(part.obstacle(&seen, "/m").is_none(), want.is_some());
            prop_assert_eq!(part.is_lost(), through && !known);
            let other = MountedPart { root: shown(&namespace, &cgroup), namespace: None };
            let more = cgroup.starts_with(&mount) && cgroup.len() > mount.len();
            prop_assert_eq!(part.shows_more_than(&other), more, "{:?} {:?}", part, other);
        }
    }
}
