//! Notes on the CPU topology that this machine reports: offline CPUs, and virtual cores that may not correspond to
//! physical cores.

use commensal_core::cpuset::CpuSet;
use commensal_core::topology::Topology;
use commensal_host::Host;
use commensal_sensors::machine;
use std::path::Path;

/// Returns one line per note.
#[must_use]
pub fn notes(host: &dyn Host, topology: &Topology) -> Vec<String> {
    let mut notes = Vec::new();
    let online = topology.threads();
    let present = host.read_file(Path::new("/sys/devices/system/cpu/present")).unwrap_or_default();
    let present = present.trim().parse::<CpuSet>().map(|cpus| cpus.len());
    if let Ok(present) = present
        && present > online
    {
        notes.push(format!("{} of {present} CPUs are offline and do not count", present - online));
    }
    if machine::identity(host).virtualised == Some(true) {
        notes.push("this machine is a VM: its hypervisor presents the topology, which may differ from that of the real CPUs".to_owned());
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pin::assign;
    use crate::scenario::{Scenario, Server, Vms, classify};
    use commensal_host::fake::FakeHost;

    /// Returns the notes for a fake machine, and the server and topology derived from the machine.
    fn seen(host: &FakeHost) -> (Vec<String>, Server, Topology) {
        let topology = machine::topology(host).unwrap();
        (notes(host, &topology), Server::of(&topology, 0.0), topology)
    }

    // promise 7
    #[test]
    fn offline_cpus_do_not_count() {
        let host = FakeHost::v1(4, 1 << 30);
        host.set_file("/sys/devices/system/cpu/present", "0-3\n");
        host.set_file("/sys/devices/system/cpu/online", "0,2-3\n");
        let (notes, server, topology) = seen(&host);
        assert!(notes.contains(&"1 of 4 CPUs are offline and do not count".to_owned()), "{notes:?}");
        assert_eq!((server.cores, server.threads), (3, 3));
        // The offline CPU is not assigned to any VM.
        let pinned = assign(&topology, &[1, 1, 1], 0).unwrap();
        let cpus: Vec<String> = pinned.iter().map(|one| one.cpus.to_string()).collect();
        assert_eq!(cpus, ["0", "2", "3"]);
        let error = assign(&topology, &[2, 2], 0).unwrap_err().to_string();
        assert!(error.contains("only 1 of 3 are left"), "{error}");
    }

    // promise 7
    #[test]
    fn without_smt_nothing_is_shared() {
        let (_, server, _) = seen(&FakeHost::v1(4, 1 << 30));
        let facts = classify(&server, &[Vms { count: 4, vcpu: 1 }]).unwrap().facts(&server);
        assert!(facts.iter().any(|fact| fact.contains("without SMT there is no shared-core")), "{facts:?}");
        let classes = [4.0, 5.0].map(|vcpu| server.scenario(vcpu));
        assert_eq!(classes, [Scenario::Ideal, Scenario::Oversubscribed]);
        let host = FakeHost::v1(4, 1 << 30);
        host.smt();
        let (notes, server, _) = seen(&host);
        assert!(notes.is_empty(), "{notes:?}");
        assert_eq!((server.cores, server.threads, server.scenario(3.0)), (2, 4, Scenario::SharedCore));
    }

    // promise 7
    #[test]
    fn a_vm_is_told_to_be_one() {
        let host = FakeHost::v1(2, 1 << 30);
        host.set_file("/proc/cpuinfo", "model name\t: A CPU\nflags\t\t: fpu hypervisor\n");
        let (notes, _, _) = seen(&host);
        assert!(notes.iter().any(|note| note.contains("may differ from")), "{notes:?}");
    }
}
