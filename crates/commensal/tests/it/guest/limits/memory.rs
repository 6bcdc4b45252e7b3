//! Memory: the whole group is killed at the hard limit where it shall be, which cgroup v2 can do, and `run` says so.

use crate::limits::memory::{EATER, groups, limited, scene};
use crate::support::text;
use commensal_core::knob::{Controller, Version};
use commensal_testkit::ended;

// promise 6
#[test]
fn the_whole_group_is_killed_at_memory_max() {
    let test = "the_whole_group_is_killed_at_memory_max";
    let Some(scene) = scene(test) else { return };
    if scene.version(Controller::Memory) == Some(Version::V1) {
        println!("skipped: {test}: cgroup v1 has no memory.oom.group");
        return;
    }
    let groups = groups(&scene, "kill-group");
    // The group stays after the command, so that the kernel's count can be looked at.
    scene.program.expect(0, &["apply", "-c", groups.to_str().unwrap()]);
    let done = limited(&scene, &groups, &format!("sleep 60 & echo $!; {EATER}; echo survived"));
    let (out, err) = (text(&done.stdout), text(&done.stderr));
    println!("{test}: {:?} kills; {err}", scene.used("offline/etl").oom_kills);
    assert_eq!(done.status.code(), Some(137), "{err}");
    assert!(err.contains("the kernel killed every process of group etl because the group reached"), "{err}");
    let sibling: u32 = out.trim().parse().unwrap_or_else(|_| panic!("the shell went on: {out}"));
    assert!(ended(sibling), "process {sibling} runs");
}
