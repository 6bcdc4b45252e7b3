//! Chooses the CPUs to which a VM is pinned: whole cores that no other VM uses, within one NUMA node where possible.

use crate::error::DensityError;
use crate::scenario::no_vms;
use commensal_core::cpuset::CpuSet;
use commensal_core::topology::Topology;
use commensal_host::{Host, HostError};
use std::collections::BTreeMap;
use std::path::Path;

/// The CPUs of one VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pinned {
    /// Logical CPU of each vCPU, in the order of the vCPUs. Threads of one core are adjacent; the guest's topology
    /// should show them as siblings.
    pub vcpus: Vec<u32>,
    /// All logical CPUs of the VM's cores.
    pub cpus: CpuSet,
    /// NUMA nodes of these CPUs; empty when unknown.
    pub nodes: Vec<u32>,
}

/// Assigns cores to the VMs in the given order. The first `reserve` cores remain for the host.
///
/// # Errors
/// Returns an error when a VM has no vCPU, or needs more whole cores than remain.
pub fn assign(topology: &Topology, vcpus: &[u32], reserve: usize) -> Result<Vec<Pinned>, DensityError> {
    // The map is sorted by node and by the first thread of a core, which together identify the core.
    let mut cores: BTreeMap<(u32, u32), Vec<u32>> = BTreeMap::new();
    for cpu in &topology.cpus {
        let first = cpu.siblings.iter().next().unwrap_or(cpu.id);
        cores.entry((cpu.node.unwrap_or(0), first)).or_default().push(cpu.id);
    }
    let all = cores.len();
    let mut free: Vec<(u32, Vec<u32>)> =
        cores.into_iter().skip(reserve).map(|((node, _), cpus)| (node, cpus)).collect();
    let known = topology.cpus.iter().any(|cpu| cpu.node.is_some());
    let mut pinned = Vec::new();
    for (index, vcpu) in vcpus.iter().enumerate() {
        if *vcpu == 0 {
            return Err(no_vms(1, 0));
        }
        let taken = take(&mut free, *vcpu as usize);
        let Some(taken) = taken else {
            let per_core = free.first().map_or(1, |(_, cpus)| cpus.len()).max(1);
            let needed = (*vcpu as usize).div_ceil(per_core);
            return Err(DensityError::new(format!(
                "VM {} needs {needed} whole cores for {vcpu} vCPU, but only {} of {all} are left; pin fewer VMs, or run them without pinning",
                index + 1,
                free.len()
            )));
        };
        let mut nodes: Vec<u32> = taken.iter().map(|(node, _)| *node).filter(|_| known).collect();
        nodes.dedup();
        let cpus: Vec<u32> = taken.into_iter().flat_map(|(_, cpus)| cpus).collect();
        pinned.push(Pinned {
            vcpus: cpus.iter().copied().take(*vcpu as usize).collect(),
            cpus: cpus.into_iter().collect(),
            nodes,
        });
    }
    Ok(pinned)
}

/// Takes whole cores with this number of threads from `free`. Of the nodes with enough free threads, uses the node with
/// the fewest. If no node has enough, takes cores of several nodes. Returns `None` if all nodes together have too few.
fn take(free: &mut Vec<(u32, Vec<u32>)>, threads: usize) -> Option<Vec<(u32, Vec<u32>)>> {
    let mut room: BTreeMap<u32, usize> = BTreeMap::new();
    for (node, cpus) in free.iter() {
        *room.entry(*node).or_default() += cpus.len();
    }
    if room.values().sum::<usize>() < threads {
        return None;
    }
    let enough =
        room.into_iter().filter(|(_, room)| *room >= threads).min_by_key(|(node, room)| (*room, *node));
    let wanted = |node: u32| enough.is_none_or(|(chosen, _)| chosen == node);
    let (mut taken, mut have) = (Vec::new(), 0);
    free.retain(|(node, cpus)| {
        if have >= threads || !wanted(*node) {
            return true;
        }
        have += cpus.len();
        taken.push((*node, cpus.clone()));
        false
    });
    Some(taken)
}

/// Returns the `<cputune>` element of libvirt's domain XML for one VM (libvirt, "CPU Tuning"), and also the
/// `<numatune>` element if all CPUs of the VM are in one node.
#[must_use]
pub fn libvirt_xml(pinned: &Pinned) -> String {
    let mut out = String::from("<cputune>\n");
    for (vcpu, cpu) in pinned.vcpus.iter().enumerate() {
        out.push_str(&format!("  <vcpupin vcpu='{vcpu}' cpuset='{cpu}'/>\n"));
    }
    out.push_str(&format!("  <emulatorpin cpuset='{}'/>\n</cputune>\n", pinned.cpus));
    if let [node] = pinned.nodes[..] {
        out.push_str(&format!("<numatune>\n  <memory mode='strict' nodeset='{node}'/>\n</numatune>\n"));
    }
    out
}

/// Returns the index of the vCPU that a QEMU thread runs, from the name of the thread, such as `CPU 3/KVM` or `CPU
/// 3/TCG`. QEMU gives these names with `-name debug-threads=on` (system emulation). Returns `None` for other threads.
#[must_use]
pub fn vcpu_of_thread(name: &str) -> Option<u32> {
    let (number, kind) = name.trim().strip_prefix("CPU ")?.split_once('/')?;
    if matches!(kind, "KVM" | "TCG") { number.parse().ok() } else { None }
}

/// Returns the vCPU threads of a QEMU process as a map from vCPU index to thread ID. The threads are recognised by
/// their names.
///
/// # Errors
/// Returns an error when the process does not exist.
pub fn vcpu_threads(host: &dyn Host, pid: u32) -> Result<BTreeMap<u32, u32>, HostError> {
    let tasks = format!("/proc/{pid}/task");
    let tids = host.list(Path::new(&tasks))?;
    let vcpu = |tid: &String| {
        let name = host.read_file(Path::new(&format!("{tasks}/{tid}/comm"))).ok()?;
        Some((vcpu_of_thread(&name)?, tid.parse().ok()?))
    };
    Ok(tids.iter().filter_map(vcpu).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_core::topology::LogicalCpu;

    /// Returns a topology with cores of two threads, numbered as on a typical server: the two threads of a core are
    /// `cores` numbers apart, and each half of the cores is a node.
    fn server(cores: u32) -> Topology {
        let cpu = |id: u32| {
            let core = id % cores;
            let siblings = [core, core + cores].into_iter().collect();
            let node = Some(core / (cores / 2));
            LogicalCpu { id, package: node, core: Some(core), siblings, llc: None, node }
        };
        Topology { cpus: (0..2 * cores).map(cpu).collect(), ..Topology::default() }
    }

    #[test]
    fn whole_cores_of_one_node() {
        let pinned = assign(&server(8), &[4, 2, 4, 2], 0).unwrap();
        let sets: Vec<String> = pinned.iter().map(|one| one.cpus.to_string()).collect();
        // The second VM gets CPUs in the node with less free space. The third VM does not fit into that node any more.
        assert_eq!(sets, ["0-1,8-9", "2,10", "4-5,12-13", "3,11"]);
        assert_eq!(pinned[0].vcpus, [0, 8, 1, 9]);
        assert!(pinned.iter().all(|one| one.nodes.len() == 1));
    }

    #[test]
    fn an_odd_vcpu_has_its_core_alone_and_large_vms_span_nodes() {
        let pinned = assign(&server(8), &[3, 10], 0).unwrap();
        assert_eq!((pinned[0].cpus.to_string(), pinned[0].vcpus.len()), ("0-1,8-9".to_owned(), 3));
        assert_eq!(pinned[1].nodes, [0, 1]);
    }

    #[test]
    fn too_many_are_refused_with_figures() {
        let error = assign(&server(4), &[4, 4, 1], 0).unwrap_err().to_string();
        assert!(error.contains("VM 3 needs 1 whole cores for 1 vCPU, but only 0 of 4 are left"), "{error}");
        assert!(assign(&server(4), &[8], 1).is_err());
        assert_eq!(assign(&server(4), &[0], 0), Err(no_vms(1, 0)));
        // The reserved core remains for the host.
        assert_eq!(assign(&server(4), &[2], 1).unwrap()[0].cpus.to_string(), "1,5");
    }

    #[test]
    fn libvirt_and_qemu_names() {
        let pinned = assign(&server(4), &[2], 0).unwrap();
        assert_eq!(
            libvirt_xml(&pinned[0]),
            "<cputune>\n  <vcpupin vcpu='0' cpuset='0'/>\n  <vcpupin vcpu='1' cpuset='4'/>\n  \
             <emulatorpin cpuset='0,4'/>\n</cputune>\n<numatune>\n  <memory mode='strict' nodeset='0'/>\n</numatune>\n"
        );
        let names = ["CPU 0/KVM", "CPU 11/TCG\n", "CPU x/KVM", "qemu-system-x86", "CPU 1/IO"];
        assert_eq!(names.map(vcpu_of_thread), [Some(0), Some(11), None, None, None]);
    }
}
