//! `doctor`: the capability ledger.

use crate::context::Context;
use commensal_core::actual::{Capabilities, CgroupPath, Hierarchy, Support};
use commensal_core::class::{Mechanism, offline_mechanism, offline_task_policy};
use commensal_core::knob::{Controller, KnobId, Version};
use commensal_core::topology::Machine;
use commensal_sensors::{machine, mounts};
use serde_json::json;

/// Prints what works here. Status 1 when offline work can only be held back by weak means.
pub fn run(context: &mut Context, as_json: bool) -> anyhow::Result<u8> {
    let _lock = context.lock_to_look()?;
    let facts = machine::machine(&context.host)?;
    let identity = machine::identity(&context.host);
    let hierarchies = mounts::hierarchies(&mut context.host)?;
    let caps = context.capabilities(&facts)?;
    let (mechanism, weak) = mechanism(&caps, &hierarchies, &context.prefix);
    if as_json {
        let support = |support: &Support| match support.obstacle() {
            None => json!({ "works": true, "tried": *support == Support::Yes }),
            Some(because) => json!({ "works": false, "because": because }),
        };
        let knobs: Vec<_> = caps
            .knobs
            .iter()
            .map(|((knob, version), found)| json!({ "knob": knob.to_string(), "cgroup": version.to_string(), "support": support(found) }))
            .collect();
        let features: serde_json::Map<_, _> =
            caps.features.iter().map(|(name, found)| ((*name).to_owned(), support(found))).collect();
        let value = json!({
            "kernel": identity.kernel, "cpu": identity.cpu, "virtualised": identity.virtualised,
            "cores": facts.topology.cores(), "threads": facts.topology.threads(), "smt": facts.topology.smt(),
            "memory_bytes": facts.memory.0, "cgroup": mounts::layout(&hierarchies).to_string(),
            "disks": facts.disks.iter().map(|disk| json!({ "name": disk.name, "device": disk.device.to_string() })).collect::<Vec<_>>(),
            "cgroup_obstacle": caps.cgroup_obstacle, "knobs": knobs, "features": features,
            "offline_yields_by": mechanism, "weak_because": weak,
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
    } else {
        print_machine(&facts, &identity, &hierarchies);
        print_ledger(&caps, &hierarchies);
        println!("\nOffline work yields to online work here by: {mechanism}");
        if let Some(weak) = &weak {
            println!("  {weak}");
        }
        println!("Whether that is enough on this machine is measured by: commensal lab run quickstart");
    }
    Ok(u8::from(weak.is_some()))
}

/// The mechanism for a group of our own, and why it is weak if it is.
fn mechanism(caps: &Capabilities, hierarchies: &[Hierarchy], prefix: &str) -> (String, Option<String>) {
    if let Some(obstacle) = &caps.cgroup_obstacle {
        return ("SCHED_IDLE and nice 19 on tasks".to_owned(), offline_task_policy(obstacle, None).weak);
    }
    let cpu = hierarchies.iter().find(|hierarchy| hierarchy.controllers.contains(&Controller::Cpu));
    let Some(cpu) = cpu else {
        let obstacle = "no cgroup hierarchy has the cpu controller";
        return ("SCHED_IDLE and nice 19 on tasks".to_owned(), offline_task_policy(obstacle, None).weak);
    };
    let own = CgroupPath::root().child(&format!("{prefix}-offline"));
    match offline_mechanism(caps, cpu.version, &own, true) {
        Mechanism::CpuIdle => {
            let tried = caps.knobs.get(&(KnobId::CpuIdle, cpu.version)) == Some(&Support::Yes);
            let words = if tried {
                "cpu.idle on its group"
            } else {
                "cpu.idle on its group, if the kernel has it (untried)"
            };
            (words.to_owned(), None)
        }
        Mechanism::MinWeight(because) => {
            let weak =
                format!("{because}; the smallest weight gives up CPU time but does not preempt as fast");
            ("the smallest weight of its group".to_owned(), Some(weak))
        }
        Mechanism::Nothing(because) => ("nothing".to_owned(), Some(because)),
    }
}

fn print_machine(facts: &Machine, identity: &machine::Identity, hierarchies: &[Hierarchy]) {
    let topology = &facts.topology;
    let virtualised = match identity.virtualised {
        Some(true) => ", virtual machine (topology as the hypervisor shows it)",
        _ => "",
    };
    println!("{}{virtualised}", identity.kernel);
    println!(
        "{}: {} cores, {} threads, SMT {}, {} last-level cache(s), {} NUMA node(s), {}",
        identity.cpu.as_deref().unwrap_or("CPU unknown"),
        topology.cores(),
        topology.threads(),
        if topology.smt() { "on" } else { "off" },
        topology.llcs().len(),
        topology.nodes().len().max(1),
        facts.memory,
    );
    let disks: Vec<String> =
        facts.disks.iter().map(|disk| format!("{} ({})", disk.name, disk.device)).collect();
    println!("disks: {}", if disks.is_empty() { "none found".to_owned() } else { disks.join(", ") });
    println!("cgroup: {}", mounts::layout(hierarchies));
    for hierarchy in hierarchies {
        let names: Vec<&str> = hierarchy.controllers.iter().map(|controller| controller.v2_name()).collect();
        let names = if names.is_empty() { "no controllers".to_owned() } else { names.join(" ") };
        println!("  {} {}: {names}", hierarchy.version, hierarchy.mount);
    }
}

fn print_ledger(caps: &Capabilities, hierarchies: &[Hierarchy]) {
    println!("\nWhat works, by trying it in a scratch cgroup:");
    if let Some(obstacle) = &caps.cgroup_obstacle {
        println!("  no cgroup knob: {obstacle}");
    }
    let row = |name: &str, file: &str, support: &Support| match support {
        Support::Yes => println!("  {name:<22} yes      {file}"),
        Support::Untried { because } => println!("  {name:<22} untried  {because}"),
        Support::No { because } => println!("  {name:<22} no       {because}"),
        Support::Refused { errno, because } => println!("  {name:<22} refused  {because} ({errno})"),
    };
    for ((knob, version), support) in &caps.knobs {
        let file = knob.row().file(*version).map_or("", |file| file.name);
        row(&knob.to_string(), &format!("cgroup {version} {file}"), support);
    }
    // What the machine's cgroup version cannot do at all, so that nobody searches for it.
    for knob in
        commensal_core::knob::TABLE.iter().filter(|knob| knob.status == commensal_core::knob::Status::Driven)
    {
        let version =
            hierarchies.iter().find(|h| h.controllers.contains(&knob.controller)).map(|h| h.version);
        if let Some(version) = version
            && knob.file(version).is_none()
            && caps.cgroup_obstacle.is_none()
        {
            let other = if version == Version::V1 { Version::V2 } else { Version::V1 };
            let because = format!("only cgroup {other} has it, and {} is on {version} here", knob.controller);
            row(knob.name, "", &Support::No { because });
        }
    }
    for (name, support) in &caps.features {
        row(name, "", support);
    }
}
