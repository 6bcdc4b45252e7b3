//! CPUs that nobody else may use: only where cgroup v2 has the cpuset controller and nobody else's work would have to move.

use crate::limits::{BURN, Scene};
use commensal_core::cpuset::CpuSet;
use commensal_core::knob::Controller;
use commensal_testkit::{alone, field_of_status};

/// CPUs that are set aside have nobody else's work on them, from the moment the group is there until it is gone.
// promise 6
#[test]
fn a_partition_has_its_cpus_alone() {
    let test = "a_partition_has_its_cpus_alone";
    let _alone = alone();
    let Some(scene) = Scene::new(test) else { return };
    let all = scene.machine().topology.all();
    let cpu = all.iter().last().unwrap();
    let groups = scene.program.groups(&format!(
        "[group.alone]\nclass = \"online\"\ncpu.set = \"{cpu}\"\ncpu.partition = \"isolated\"\n\
         [group.other]\nclass = \"online\"\n"
    ));
    if let Some(unmet) = scene.unmet(&groups) {
        println!("skipped: {test}: {unmet}");
        return;
    }
    let other = scene.start("other", &groups, BURN);
    assert_eq!(allowed(other.pid), all);
    let alone = scene.start("alone", &groups, BURN);
    let meanwhile = (allowed(alone.pid), allowed(other.pid), allowed(std::process::id()));
    let rest = all.difference(&meanwhile.0);
    println!("{test}: inside {}, another group {}, the root {}", meanwhile.0, meanwhile.1, meanwhile.2);
    assert_eq!(meanwhile.0.iter().collect::<Vec<_>>(), [cpu]);
    assert_eq!((&meanwhile.1, &meanwhile.2), (&rest, &rest));
    drop(alone);
    // The group has gone with its last command, and its CPU is everybody's again.
    assert_eq!((allowed(other.pid), allowed(std::process::id())), (all.clone(), all));
}

/// The kernel refuses CPUs that a sibling has, and all of a sibling's: the plan finds an order that it takes.
// promise 7
#[test]
fn cpus_move_between_partitions() {
    let test = "cpus_move_between_partitions";
    let _alone = alone();
    let Some(scene) = Scene::new(test) else { return };
    let cpus: Vec<u32> = scene.machine().topology.all().iter().collect();
    let [_, second, third, .., last] = cpus[..] else {
        println!("skipped: {test}: this machine has fewer than four CPUs");
        return;
    };
    let both = |a: &str, b: &str| {
        let group = |name: &str, set: &str| {
            format!("[group.{name}]\nclass = \"online\"\ncpu.set = \"{set}\"\ncpu.partition = \"root\"\n")
        };
        scene.program.groups(&(group("a", a) + &group("b", b)))
    };
    let groups = both(&second.to_string(), &last.to_string());
    if let Some(unmet) = scene.unmet(&groups) {
        println!("skipped: {test}: {unmet}");
        return;
    }
    let (one, two) = (second.to_string(), format!("{third},{last}"));
    let mount = scene.mount(Controller::Cpuset);
    for (a, b) in [(&one, &two), (&two, &one), (&one, &two)] {
        let groups = both(a, b);
        let groups = groups.to_str().unwrap();
        let output = scene.program.run(&["apply", "-c", groups]);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        for (group, set) in [("a", a), ("b", b)] {
            let of_group = mount.join(format!("{}-online/{group}", scene.program.prefix));
            let read = |file: &str| std::fs::read_to_string(of_group.join(file)).unwrap().trim().to_owned();
            assert_eq!(read("cpuset.cpus.partition"), "root", "{group}");
            let set: CpuSet = set.parse().unwrap();
            assert_eq!(read("cpuset.cpus.effective").parse::<CpuSet>().unwrap(), set, "{group}");
        }
        assert_eq!(scene.program.run(&["plan", "-c", groups]).status.code(), Some(0));
    }
    assert_eq!(scene.program.run(&["restore"]).status.code(), Some(0));
}

/// Where the kernel lets a process run.
fn allowed(pid: u32) -> CpuSet {
    field_of_status(pid, "Cpus_allowed_list").unwrap().parse().unwrap()
}
