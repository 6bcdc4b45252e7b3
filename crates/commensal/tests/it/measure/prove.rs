//! `doctor --prove` on the running kernel: what it measures, and what it leaves.

use crate::support::{Program, can_write_cgroups, cgroups_named, text};
use commensal_core::knob::{Controller, Version};
use commensal_host::LinuxHost;
use commensal_sensors::{machine, mounts};
use commensal_testkit::{Groups, alone};
use serde_json::Value;
use std::path::Path;

/// On the kernel at hand no fact about `cpu.idle` and the smallest weight is refuted, and nothing is left.
// promise 4
#[test]
fn facts_of_this_kernel() {
    let test = "facts_of_this_kernel";
    if !can_write_cgroups(test) {
        return;
    }
    let _alone = alone();
    let program = Program::new("prove");
    let output = program.run(&["doctor", "--prove", "--json"]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let proof: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    let facts = proof["facts"].as_array().unwrap();
    for fact in facts.iter().filter(|fact| fact["result"] != "agrees") {
        println!("{fact}");
    }
    let status = match (proof["differ"].as_u64(), proof["agree"].as_u64()) {
        (Some(0), Some(0)) => 2,
        (Some(0), _) => 0,
        _ => 1,
    };
    assert_eq!(output.status.code(), Some(status), "{out}{err}");
    assert!(proof["agree"].as_u64().unwrap() >= 5, "{out}");
    for part in ["cpu.idle 1 beside", "the smallest cpu.weight", "a frozen process"] {
        let fact = facts.iter().find(|fact| fact["fact"].as_str().unwrap().contains(part));
        // A machine whose CPUs are busy, or on which the root does not enable the controller, says so.
        match fact.map(|fact| fact["result"].as_str().unwrap()) {
            Some("not tried") => println!("skipped: {test}: {part}"),
            found => assert_eq!(found, Some("agrees"), "{part}: {out}"),
        }
    }
    assert_eq!(proof["left"], serde_json::json!([]));
    assert!(cgroups_named(&program.prefix).is_empty());
}

/// While other programs keep the CPU of the trials busy, facts are not tried, and nothing is left either: killed processes of
/// a trial get the CPU time to exit.
// promise 4
#[test]
fn beside_a_busy_cpu_nothing_is_left() {
    let test = "beside_a_busy_cpu_nothing_is_left";
    if !can_write_cgroups(test) {
        return;
    }
    let _alone = alone();
    let program = Program::new("prove-busy");
    let hierarchies = mounts::hierarchies(&mut LinuxHost::new()).unwrap();
    let cpu = hierarchies.iter().find(|one| one.controllers.contains(&Controller::Cpu)).unwrap();
    let mut busy = Groups::new(Path::new(&cpu.mount), cpu.version == Version::V2, test);
    busy.outweigh_the_machine();
    busy.make("busy");
    let trials = machine::machine(&LinuxHost::new()).unwrap().topology.all().iter().last();
    busy.start("busy", trials, "while :; do :; done");
    let output = program.run(&["doctor", "--prove", "--json"]);
    drop(busy);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let proof: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    assert_eq!(proof["left"], serde_json::json!([]), "{out}");
    assert!(!out.contains("EEXIST"), "{out}");
    assert!(cgroups_named(&program.prefix).is_empty());
}
