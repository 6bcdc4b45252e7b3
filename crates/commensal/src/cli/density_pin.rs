//! The command `density pin`: chooses the CPUs of VMs, and pins the VMs to them.

use super::apply::refused;
use super::density_args::Pin;
use crate::context::Context;
use anyhow::{Context as _, anyhow, bail};
use commensal_core::actual::CgroupPath;
use commensal_core::cpuset::CpuSet;
use commensal_core::group::{Class, GroupName, GroupSpec, Match};
use commensal_core::knob::Controller;
use commensal_core::limit::CPU_SET;
use commensal_core::member;
use commensal_density::pin::{Pinned, assign, libvirt_xml, vcpu_threads};
use commensal_host::Host;
use commensal_reconcile::{Journal, PlanRequest, journal, pin_thread};
use commensal_sensors::processes::places;
use commensal_sensors::{machine, mounts};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;

/// A VM to be pinned.
struct Target {
    cgroup: CgroupPath,
    vcpu: u32,
    /// For a QEMU process, the ID of the thread of each vCPU.
    threads: BTreeMap<u32, u32>,
}

/// Prints the pinning; with --apply, applies it.
pub fn pin(context: &mut Context, options: &Pin) -> anyhow::Result<u8> {
    let targets: Vec<Target> =
        options.targets.iter().map(|text| target(&mut context.host, text)).collect::<anyhow::Result<_>>()?;
    for (index, target) in targets.iter().enumerate() {
        if targets[..index].iter().any(|other| other.cgroup == target.cgroup) {
            bail!("{} holds two of the VMs: start each in a cgroup of its own", target.cgroup);
        }
    }
    let topology = machine::topology(&context.host)?;
    let vcpus: Vec<u32> = targets.iter().map(|target| target.vcpu).collect();
    let pinned = assign(&topology, &vcpus, options.reserve)?;
    if options.json {
        let one = |(target, pinned): (&Target, &Pinned)| {
            json!({ "cgroup": target.cgroup.as_str(), "cpus": pinned.cpus.to_string(), "vcpus": pinned.vcpus,
                    "nodes": pinned.nodes, "threads": target.threads })
        };
        let all: Vec<_> = targets.iter().zip(&pinned).map(one).collect();
        println!("{}", commensal_core::text::json_pretty(&all)?);
    } else {
        targets.iter().zip(&pinned).for_each(|(target, pinned)| print_one(target, pinned, options.libvirt));
        if machine::identity(&context.host).virtualised == Some(true) {
            println!("this machine is a VM: the cores that its hypervisor shows may not be physical cores");
        }
    }
    if options.apply { apply(context, &targets, &pinned) } else { Ok(0) }
}

fn print_one(target: &Target, pinned: &Pinned, libvirt: bool) {
    let nodes: Vec<String> = pinned.nodes.iter().map(u32::to_string).collect();
    let node = match nodes.as_slice() {
        [] => String::new(),
        [one] => format!(", node {one}"),
        several => {
            format!(", nodes {}: some of its memory accesses will cross NUMA nodes", several.join(" and "))
        }
    };
    println!("{}: {} vCPU on CPUs {}{node}", target.cgroup, target.vcpu, pinned.cpus);
    for (vcpu, cpu) in pinned.vcpus.iter().enumerate() {
        let thread = u32::try_from(vcpu).ok().and_then(|vcpu| target.threads.get(&vcpu));
        if let Some(thread) = thread {
            println!("  vCPU {vcpu}, thread {thread}: CPU {cpu}");
        }
    }
    if libvirt {
        print!("{}", libvirt_xml(pinned));
    }
}

/// Parses `CGROUP:VCPU` or the PID of a QEMU process.
fn target(host: &mut dyn Host, text: &str) -> anyhow::Result<Target> {
    if let Ok(pid) = text.parse::<u32>() {
        return qemu(host, pid);
    }
    let refused = || {
        anyhow!("{text:?} is neither a cgroup with its number of vCPUs, such as /machine/db-1:4, nor a PID")
    };
    let (path, vcpu) = text.rsplit_once(':').ok_or_else(refused)?;
    let vcpu = vcpu.parse().map_err(|_| refused())?;
    if !path.starts_with('/') || path == "/" {
        return Err(refused());
    }
    Ok(Target { cgroup: CgroupPath::new(path), vcpu, threads: BTreeMap::new() })
}

fn qemu(host: &mut dyn Host, pid: u32) -> anyhow::Result<Target> {
    let threads = vcpu_threads(host, pid).with_context(|| format!("there is no process {pid}"))?;
    if threads.is_empty() {
        bail!(
            "process {pid} has no threads with the names of vCPUs; start QEMU with -name NAME,debug-threads=on, as \
             libvirt does"
        );
    }
    let hierarchies = mounts::hierarchies(host)?;
    let file = format!("/proc/{pid}/cgroup");
    if let Some((because, try_this)) = member::unnamed(&host.read_file(Path::new(&file))?, &hierarchies) {
        bail!("process {pid} cannot be pinned: {because}; {try_this}");
    }
    let cpuset = hierarchies.iter().position(|one| one.controllers.contains(&Controller::Cpuset));
    let path = cpuset.and_then(|cpuset| places(host, Path::new(&file), &hierarchies).remove(&cpuset));
    let cgroup = path.filter(|path| path.depth() > 0).ok_or_else(|| {
        anyhow!(
            "process {pid} has no cgroup of its own; start the VM in one, as libvirt and `commensal run` do"
        )
    })?;
    let vcpu = u32::try_from(threads.len()).unwrap_or(u32::MAX);
    Ok(Target { cgroup, vcpu, threads })
}

/// Restricts each VM's cgroup to its cores, and each of its vCPU threads to one CPU. The original values are recorded
/// in the journal, and `commensal restore` restores them.
fn apply(context: &mut Context, targets: &[Target], pinned: &[Pinned]) -> anyhow::Result<u8> {
    context.without_agent(
        "put cpu.set into its groups file instead: the agent reads the file again when it changes",
    )?;
    let spec = |(index, (target, pinned)): (usize, (&Target, &Pinned))| -> anyhow::Result<GroupSpec> {
        let name = GroupName::new(&format!("pinned-{}", index + 1)).map_err(anyhow::Error::msg)?;
        let mut spec = GroupSpec::new(name, Class::Online);
        spec.limits.set(CPU_SET, pinned.cpus.clone());
        spec.matches = vec![Match::exactly(target.cgroup.as_str()).map_err(anyhow::Error::msg)?];
        Ok(spec)
    };
    let specs: Vec<GroupSpec> =
        targets.iter().zip(pinned).enumerate().map(spec).collect::<anyhow::Result<_>>()?;
    let _lock = context.lock()?;
    let mut journal = context.journal(journal::MACHINE)?;
    let (planned, outcome) = context.enforce(PlanRequest::beside(&specs), &mut journal)?;
    print!("{}", planned.plan.describe(&planned.actual));
    if let Some(failure) = &outcome.failure {
        eprintln!("{}", refused(&planned, &outcome, failure));
        return Ok(2);
    }
    for (target, pinned) in targets.iter().zip(pinned) {
        threads(context, target, pinned, &mut journal)?;
    }
    println!(
        "done     {} of {} steps; `commensal restore` reverts them",
        outcome.done,
        planned.plan.steps.len()
    );
    Ok(u8::from(!planned.plan.unmet.is_empty()))
}

/// Pins each vCPU thread to a CPU of its cgroup.
fn threads(
    context: &mut Context,
    target: &Target,
    pinned: &Pinned,
    journal: &mut Journal,
) -> anyhow::Result<()> {
    for (vcpu, tid) in &target.threads {
        let Some(cpu) = pinned.vcpus.get(*vcpu as usize) else { continue };
        let one: CpuSet = [*cpu].into_iter().collect();
        let moved = pin_thread(&mut context.host, *tid, &one, journal)
            .with_context(|| format!("vCPU {vcpu} of {} cannot be pinned to CPU {cpu}", target.cgroup))?;
        if moved {
            println!("  vCPU {vcpu}, thread {tid}: pinned to CPU {cpu}");
        }
    }
    Ok(())
}
