//! Memory: the largest process is killed at the hard limit, and `run` says so.

use super::Scene;
use crate::support::text;
use commensal_core::knob::{Controller, Version};
use std::path::{Path, PathBuf};
use std::process::Output;

/// The limit has room for two shells and a dd that holds [`WITHIN`].
const MAX: &str = "48 MiB";
/// dd fills a buffer of this size at once: far beyond the limit, and far below the memory of any machine.
pub(crate) const EATER: &str = "dd if=/dev/zero of=/dev/null bs=128M count=1";
const WITHIN: &str = "dd if=/dev/zero of=/dev/null bs=8M count=1";

/// A scene in which a limit can be reached.
pub(crate) fn scene(test: &str) -> Option<Scene> {
    let scene = Scene::new(test)?;
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let swap = meminfo.lines().find_map(|line| line.strip_prefix("SwapTotal:"));
    let reason = match (scene.version(Controller::Memory), swap.map(str::trim)) {
        (None, _) => "no cgroup hierarchy has the memory controller",
        (_, Some("0 kB")) => return Some(scene),
        _ => "this machine has swap, into which a group goes at its limit",
    };
    println!("skipped: {test}: {reason}");
    None
}

pub(crate) fn groups(scene: &Scene, on_exceed: &str) -> PathBuf {
    scene.program.groups(&format!(
        "[group.etl]\nclass = \"offline\"\nmemory = {{ max = \"{MAX}\", on-exceed = \"{on_exceed}\" }}\n"
    ))
}

/// Runs a script in a group with the limit.
pub(crate) fn limited(scene: &Scene, groups: &Path, script: &str) -> Output {
    scene.command("etl", groups, script).output().unwrap()
}

// promise 6
#[test]
fn the_largest_process_is_killed_at_memory_max() {
    let test = "the_largest_process_is_killed_at_memory_max";
    let Some(scene) = scene(test) else { return };
    let groups = groups(&scene, "kill-largest");
    let within = limited(&scene, &groups, &format!("exec {WITHIN}"));
    let err = text(&within.stderr);
    assert_eq!(within.status.code(), Some(0), "{err}");
    assert!(!err.contains("killed"), "{err}");

    let alone = limited(&scene, &groups, &format!("exec {EATER}"));
    let err = text(&alone.stderr);
    println!("{test}: {err}");
    assert_eq!(alone.status.code(), Some(137), "{err}");
    let said =
        format!("the kernel killed 1 process of group etl because the group reached memory.max = {MAX}");
    assert!(err.contains(&said) && err.contains("raise memory.max"), "{err}");

    // Its sibling and the shell live on, and the shell's status is the command's; what was killed is told all the same.
    let script = format!("sleep 60 & {EATER}; echo $?; kill $! && echo alive; exit 3");
    let beside = limited(&scene, &groups, &script);
    let (out, err) = (text(&beside.stdout), text(&beside.stderr));
    assert_eq!((beside.status.code(), out.as_str()), (Some(3), "137\nalive\n"), "{err}");
    assert!(err.contains(&said), "{err}");
}

/// A kill in a cgroup that the command made below its group is one of the group: places of the process x whose limit it
/// is.
// promise 6
#[test]
fn a_kill_in_a_cgroup_below_is_told() {
    let test = "a_kill_in_a_cgroup_below_is_told";
    let Some(scene) = scene(test) else { return };
    if scene.version(Controller::Memory) != Some(Version::V1) {
        println!(
            "skipped: {test}: only cgroup v1 has processes and memory limits below a group that has both"
        );
        return;
    }
    let groups = groups(&scene, "kill-largest");
    // The group stays after the command, so that the cgroups below can be removed.
    scene.program.expect(0, &["apply", "-c", groups.to_str().unwrap()]);
    let memory = scene.mount(Controller::Memory);
    let group = format!("{}$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)", memory.display());
    let (of_group, of_below) = (
        format!("killed 1 process of group etl because the group reached memory.max = {MAX}"),
        "killed 1 process of group etl because a cgroup that the command made below",
    );
    for (place, own_limit, said) in [
        ("", "", of_group.as_str()),
        ("/a", "", &of_group),
        ("/a/b", "", &of_group),
        ("/a", "/a", of_below),
        ("/a/b", "/a", of_below),
        ("/a/b", "/a/b", of_below),
    ] {
        let limit = match own_limit {
            "" => String::new(),
            _ => format!("echo 24M >$g{own_limit}/memory.limit_in_bytes; "),
        };
        let script = format!(
            "g={group}; mkdir -p $g{place}; {limit}sh -c \"echo \\$\\$ >$g{place}/cgroup.procs; exec {EATER}\"; echo $? $g"
        );
        let done = limited(&scene, &groups, &script);
        let (out, err) = (text(&done.stdout), text(&done.stderr));
        println!("{test}: in {place:?}, limit of {own_limit:?}: {err}");
        let (status, group) = out.trim().split_once(' ').unwrap();
        for below in ["/a/b", "/a"] {
            let _ = std::fs::remove_dir(format!("{group}{below}"));
        }
        assert_eq!(status, "137", "{err}");
        assert!(err.contains(said), "in {place:?}, limit of {own_limit:?}: {err}");
    }
}
