//! Memory: the largest process is killed at the hard limit, and `run` says so.

use super::Scene;
use crate::support::text;
use commensal_core::knob::Controller;
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
