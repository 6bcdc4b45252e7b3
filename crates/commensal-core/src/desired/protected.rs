//! Cgroups that a pattern matches only by their full name: a `*` that is slightly too wide must not limit the groups
//! that the machine's services, and commensal itself, run in.

use crate::actual::{ActualState, CgroupPath};
use crate::group::Match;
use std::collections::BTreeSet;

/// Suffixes of the names of commensal's groups (see `ResolveOptions::prefix`).
const OURS: [&str; 4] = ["-online", "-offline", "-self", "-probe"];

/// The cgroups of this process and their ancestors, in every hierarchy.
pub(super) fn own_places(actual: &ActualState) -> BTreeSet<CgroupPath> {
    let above = actual.here.iter().flat_map(|place| and_above(&place.path));
    above.filter(|path| path.depth() > 0).collect()
}

fn and_above(path: &CgroupPath) -> Vec<CgroupPath> {
    path.ancestors().into_iter().chain([path.clone()]).collect()
}

/// Why a pattern does not select this cgroup; `None` when it does, or names it in full. `here` is from [`own_places`].
pub(super) fn objection(one: &Match, path: &CgroupPath, here: &BTreeSet<CgroupPath>) -> Option<&'static str> {
    let Match::Cgroup(pattern) = one else { return None };
    let (text, pattern) = (path.as_str(), pattern.as_str());
    if pattern == text || pattern == glob::Pattern::escape(text) {
        return None;
    }
    let is_pods = |name: &str| name == "kubepods" || name.ends_with("-kubepods");
    let holds_pods = is_pods(path.name().strip_suffix(".slice").unwrap_or(path.name()));
    let is_another = and_above(path).iter().any(|one| {
        one.name().starts_with("commensal") && OURS.iter().any(|ending| one.name().ends_with(ending))
    });
    match text {
        "/init.scope" => Some("it holds the machine's process 1"),
        "/system.slice" => Some("it holds the machine's services"),
        "/user.slice" => Some("it holds everybody's sessions"),
        _ if here.contains(path) => Some("commensal itself runs in it"),
        _ if holds_pods => Some("it holds every pod"),
        _ if is_another => Some("another commensal has made it"),
        _ => None,
    }
}

/// Whether no component of the pattern has a literal letter: then it selects the whole machine.
pub(crate) fn takes_everything(pattern: &str) -> bool {
    let mut in_brackets = false;
    pattern.chars().all(|c| match c {
        '[' if !in_brackets => {
            in_brackets = true;
            true
        }
        ']' => {
            in_brackets = false;
            true
        }
        '*' | '?' | '/' => true,
        _ => in_brackets,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise 73
    #[test]
    fn what_only_its_full_name_takes() {
        let here: BTreeSet<CgroupPath> = ["/agent-1", "/top", "/top/unit"].map(CgroupPath::new).into();
        let check = |pattern: &str, path: &str, want: Option<&str>| {
            let one = Match::Cgroup(glob::Pattern::new(pattern).unwrap());
            let path = CgroupPath::new(path);
            assert!(super::super::takes_cgroup(&one, &path), "{pattern} {path}");
            assert_eq!(objection(&one, &path, &here), want, "{pattern} {path}");
        };
        let services = Some("it holds the machine's services");
        let (itself, another) = (Some("commensal itself runs in it"), Some("another commensal has made it"));
        check("/**", "/system.slice", services);
        check("/*.slice", "/system.slice", services);
        check("/system.slice", "/system.slice", None);
        check("/system.slice/*", "/system.slice/a.service", None);
        check("/*", "/user.slice", Some("it holds everybody's sessions"));
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
        check("/batch-*", "/batch-offline", None);
        check("/a[[]b", "/a[b", None);
    }

    // promise 73
    #[test]
    fn patterns_without_a_name() {
        for wide in ["/*", "/**", "/*/**", "/?*", "/[a-z]*", "/[!x]*/*"] {
            assert!(takes_everything(wide), "{wide}");
        }
        for narrow in ["/a*", "/*.slice", "/*/web", "/agent-*", "/*/**/x"] {
            assert!(!takes_everything(narrow), "{narrow}");
        }
    }
}
