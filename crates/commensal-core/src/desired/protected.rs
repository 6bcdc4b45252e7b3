//! Protected cgroups, in which the machine's services or commensal itself run. A pattern selects a protected cgroup
//! only if the pattern contains the cgroup's name. So a `*` that fits more cgroups than the user expected does not
//! limit them.

use crate::actual::{ActualState, CgroupPath};
use crate::group::Match;
use std::collections::BTreeSet;

/// Suffixes of the names of commensal's groups (see `ResolveOptions::prefix`).
const OURS: [&str; 4] = ["-online", "-offline", "-self", "-probe"];

/// Prefix of the names of temporary cgroups, into which commensal moves members of a group below level 0
/// (`cpu.qos_level`) so that they get CPU time.
const LIFTED: &str = "commensal-lifted-";

/// The cgroups of this process and their ancestors, in every hierarchy.
pub(super) fn own_places(actual: &ActualState) -> BTreeSet<CgroupPath> {
    let above = actual.here.iter().flat_map(|place| and_above(&place.path));
    above.filter(|path| path.depth() > 0).collect()
}

fn and_above(path: &CgroupPath) -> Vec<CgroupPath> {
    path.ancestors().into_iter().chain([path.clone()]).collect()
}

/// Why a pattern does not select this cgroup: a protected cgroup (this cgroup or an ancestor) and the reason. `None` if
/// neither this cgroup nor an ancestor is protected, or if the pattern names the protected cgroup without wildcards.
/// The pattern names this cgroup by its full path. It names an ancestor by the component of the pattern that stands for
/// the ancestor. So a `*` that happens to match `system.slice` does not limit the services in it. `here` is the result
/// of [`own_places`].
pub(super) fn objection(
    one: &Match,
    path: &CgroupPath,
    here: &BTreeSet<CgroupPath>,
) -> Option<(CgroupPath, &'static str)> {
    let Match::Cgroup(pattern) = one else { return None };
    let (text, pattern) = (path.as_str(), pattern.as_str());
    if pattern == text || pattern == glob::Pattern::escape(text) {
        return None;
    }
    let is_another = |one: &CgroupPath| {
        let ours = OURS.iter().any(|ending| one.name().ends_with(ending));
        one.name().starts_with(LIFTED) || (one.name().starts_with("commensal") && ours)
    };
    let holder =
        path.ancestors().into_iter().find(|above| of_machine(above).is_some_and(|_| !names(pattern, above)));
    let of_itself = || Some(path.clone()).zip(of_machine(path));
    let runs_here = || here.contains(path).then(|| (path.clone(), "commensal itself runs in it"));
    let of_another =
        || Some((and_above(path).into_iter().find(is_another)?, "another commensal has made it"));
    let holder = holder.and_then(|above| of_machine(&above).map(|why| (above, why)));
    holder.or_else(of_itself).or_else(runs_here).or_else(of_another)
}

/// What a cgroup of the machine itself holds; `None` for any other cgroup.
fn of_machine(path: &CgroupPath) -> Option<&'static str> {
    let is_pods = |name: &str| name == "kubepods" || name.ends_with("-kubepods");
    match path.as_str() {
        "/init.scope" => Some("it holds the machine's process 1"),
        "/system.slice" => Some("it holds the machine's services"),
        "/user.slice" => Some("it holds the sessions of all users"),
        _ if is_pods(path.name().strip_suffix(".slice").unwrap_or(path.name())) => Some("it holds every pod"),
        _ => None,
    }
}

/// Whether the component of the pattern that stands for this cgroup is the cgroup's name, without wildcards. After a
/// `**`, which stands for any number of components, any later component may stand for this cgroup.
fn names(pattern: &str, path: &CgroupPath) -> bool {
    let is_name = |part: &&str| *part == path.name() || *part == glob::Pattern::escape(path.name());
    let parts: Vec<&str> = pattern.split('/').collect();
    match parts.iter().position(|part| *part == "**") {
        Some(any) if any <= path.depth() => parts[any..].iter().any(is_name),
        _ => parts.get(path.depth()).is_some_and(is_name),
    }
}

/// Whether the pattern contains no literal character, so that it selects the whole machine.
pub(crate) fn takes_everything(pattern: &str) -> bool {
    let mut letters = pattern.chars().peekable();
    while let Some(next) = letters.next() {
        match next {
            '*' | '?' | '/' => {}
            '[' => {
                letters.next_if_eq(&'!');
                // A bracket at the beginning of a set of letters is one of the letters.
                letters.next();
                letters.by_ref().find(|one| *one == ']');
            }
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise 59
    #[test]
    fn what_only_its_full_name_takes() {
        let here: BTreeSet<CgroupPath> = ["/agent-1", "/top", "/top/unit"].map(CgroupPath::new).into();
        let check = |pattern: &str, path: &str, want: Option<&str>| {
            let one = Match::Cgroup(glob::Pattern::new(pattern).unwrap());
            let path = CgroupPath::new(path);
            assert!(super::super::takes_cgroup(&one, &path), "{pattern} {path}");
            let got = objection(&one, &path, &here).map(|(_, why)| why);
            assert_eq!(got, want, "{pattern} {path}");
        };
        let services = Some("it holds the machine's services");
        let (itself, another) = (Some("commensal itself runs in it"), Some("another commensal has made it"));
        check("/**", "/system.slice", services);
        check("/*.slice", "/system.slice", services);
        check("/system.slice", "/system.slice", None);
        check("/system.slice/*", "/system.slice/a.service", None);
        check("/*", "/user.slice", Some("it holds the sessions of all users"));
        check("/user.slice/*", "/user.slice/user-7.slice", None);
        check("/**", "/init.scope", Some("it holds the machine's process 1"));
        check("/agent-*", "/agent-1", itself);
        check("/agent-*", "/agent-2", None);
        check("/t*", "/top", itself);
        check("/top/*", "/top/unit", itself);
        check("/top/unit/*", "/top/unit/child", None);
        check("/kube*", "/kubepods", Some("it holds every pod"));
        check("/kubelet.slice/*", "/kubelet.slice/kubelet-kubepods.slice", Some("it holds every pod"));
        check("/kubepods/*", "/kubepods/burstable", None);
        check("/commensal-*", "/commensal-offline", another);
        check("/*-offline/*", "/commensal-two-offline/etl", another);
        check("/commensal-*", "/commensal-lifted-7", another);
        check("/batch-*", "/batch-offline", None);
        check("/a[[]b", "/a[b", None);
        check("/system.slice/nginx*.service", "/system.slice/nginx-1.service", None);
        check("/s*/*", "/system.slice/nginx.service", services);
        check("/**/nginx.service", "/system.slice/nginx.service", services);
        check("/**/system.slice/*", "/system.slice/nginx.service", None);
        check("/*/system.slice", "/system.slice/system.slice", services);
        check("/*/kubepods/*", "/kubelet/kubepods/burstable", None);
        check("/kubelet/kube*/*", "/kubelet/kubepods/burstable", Some("it holds every pod"));
        check("/top/**", "/top/unit/child", None);
    }

    /// A pattern component with wildcards that fits the name of a protected cgroup selects nothing in that cgroup,
    /// however the pattern is written; a component equal to the name does.
    // promise 59
    #[test]
    fn what_is_in_a_cgroup_of_the_machine_only_its_name_takes() {
        let machine = [
            ("/init.scope", "it holds the machine's process 1"),
            ("/system.slice", "it holds the machine's services"),
            ("/user.slice", "it holds the sessions of all users"),
            ("/kubepods", "it holds every pod"),
            ("/kubepods.slice", "it holds every pod"),
            ("/kubelet/kubepods", "it holds every pod"),
            ("/kubelet.slice/kubelet-kubepods.slice", "it holds every pod"),
        ];
        // Cgroups with similar names are not protected.
        let others = ["/batch", "/system", "/user", "/my-system.slice", "/jobs/system.slice", "/kubepod"];
        let wild: [fn(&str) -> String; 6] = [
            |_| "*".to_owned(),
            |name| format!("{}*", &name[..1]),
            |name| format!("*{}", &name[1..]),
            |name| format!("?{}", &name[1..]),
            |name| format!("[{}]{}", &name[..1], &name[1..]),
            |name| format!("[!.]{}", &name[1..]),
        ];
        let inside = [
            ("/a.service", vec!["/a.service", "/*", "/a*", "/**", "/?.service"]),
            ("/b/c", vec!["/b/c", "/*/*", "/**", "/b/*", "/**/c"]),
        ];
        let here = BTreeSet::new();
        let mut tried = 0;
        let mut check = |above: &str, pattern: &str, path: &str, want: Option<&str>| {
            let (one, path) = (Match::Cgroup(glob::Pattern::new(pattern).unwrap()), CgroupPath::new(path));
            assert!(super::super::takes_cgroup(&one, &path), "{pattern} does not fit {path}");
            let want = want.map(|why| (CgroupPath::new(above), why));
            assert_eq!(objection(&one, &path, &here), want, "{pattern} {path}");
            tried += 1;
        };
        let all = machine
            .map(|(above, why)| (above, Some(why)))
            .into_iter()
            .chain(others.map(|above| (above, None)));
        for (above, why) in all {
            let (parent, name) = above.rsplit_once('/').unwrap();
            for (below, endings) in &inside {
                let path = format!("{above}{below}");
                for ending in endings {
                    // A pattern with the cgroup's name, also in each of the components for which `**` may stand.
                    check(above, &format!("{above}{ending}"), &path, None);
                    check(above, &format!("/**/{name}{ending}"), &path, None);
                    // Patterns with wildcards that fit the name, and `**`, which stands for any number of components.
                    for wild in wild {
                        check(above, &format!("{parent}/{}{ending}", wild(name)), &path, why);
                    }
                    // A pattern with the whole path, or with its literal end after a `**`.
                    check(above, &format!("/**{below}"), &path, why);
                }
            }
        }
        assert!(tried > 900, "only {tried}");
    }

    /// A pattern without wildcards is the name of one cgroup, so it selects every protected cgroup that it names.
    // promise 59
    #[test]
    fn a_full_name_takes_everything() {
        let here: BTreeSet<CgroupPath> = ["/top", "/top/unit"].map(CgroupPath::new).into();
        for path in [
            "/system.slice",
            "/system.slice/a.service",
            "/init.scope",
            "/kubepods/b",
            "/top",
            "/commensal-offline/x",
        ] {
            let one = Match::Cgroup(glob::Pattern::new(path).unwrap());
            assert_eq!(objection(&one, &CgroupPath::new(path), &here), None, "{path}");
        }
    }

    // promise 59
    #[test]
    fn patterns_without_a_name() {
        for wide in
            ["/[!]x]*", "/[]x]*/*", "/[é-z]*", "/[!é]?", "/*", "/**", "/*/**", "/?*", "/[a-z]*", "/[!x]*/*"]
        {
            assert!(takes_everything(wide), "{wide}");
        }
        for narrow in ["/[]x]a", "/[!]]]x*", "/a*", "/*.slice", "/*/web", "/agent-*", "/*/**/x"] {
            assert!(!takes_everything(narrow), "{narrow}");
        }
    }
}
