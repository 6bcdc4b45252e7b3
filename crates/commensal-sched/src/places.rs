//! The position of each CPU (siblings, core and cache) in the form that the BPF programs need. All functions are pure.

use crate::intf::{MOST_LLCS, SIBLINGS};
use commensal_core::topology::Topology;
use std::collections::BTreeMap;

/// Position of one CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuPlace {
    /// CPU number.
    pub cpu: u32,
    /// Other hardware threads of the same core; unused entries are -1.
    pub siblings: [i32; SIBLINGS],
    /// First hardware thread of the same core.
    pub core: u32,
    /// Number of the last-level cache, from 0. If there are more than 16 caches, some caches share a number.
    pub llc: u32,
}

/// Returns the positions of all online CPUs.
#[must_use]
pub fn places(topology: &Topology) -> Vec<CpuPlace> {
    let mut caches: BTreeMap<u32, u32> = BTreeMap::new();
    for cpu in &topology.cpus {
        let first = cpu.llc.as_ref().and_then(|llc| llc.iter().next()).unwrap_or(0);
        let next = caches.len() as u32;
        caches.entry(first).or_insert(next % MOST_LLCS as u32);
    }
    let place = |cpu: &commensal_core::topology::LogicalCpu| {
        let mut siblings = [-1; SIBLINGS];
        let others = cpu.siblings.iter().filter(|sibling| *sibling != cpu.id);
        for (place, sibling) in siblings.iter_mut().zip(others) {
            *place = i32::try_from(sibling).unwrap_or(-1);
        }
        let first = cpu.llc.as_ref().and_then(|llc| llc.iter().next()).unwrap_or(0);
        CpuPlace {
            cpu: cpu.id,
            siblings,
            core: cpu.siblings.iter().next().unwrap_or(cpu.id),
            llc: caches.get(&first).copied().unwrap_or(0),
        }
    };
    topology.cpus.iter().map(place).collect()
}

/// Returns the number of last-level caches with a number of their own.
#[must_use]
pub fn llcs(places: &[CpuPlace]) -> u32 {
    places.iter().map(|place| place.llc + 1).max().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_core::topology::LogicalCpu;

    fn cpu(id: u32, siblings: &str, llc: &str) -> LogicalCpu {
        LogicalCpu {
            id,
            package: None,
            core: None,
            siblings: siblings.parse().unwrap(),
            llc: llc.parse().ok(),
            node: None,
        }
    }

    #[test]
    fn siblings_cores_and_caches() {
        let two = Topology {
            cpus: vec![cpu(0, "0,2", "0,2"), cpu(1, "1,3", "1,3"), cpu(2, "0,2", "0,2")],
            ..Topology::default()
        };
        let found = places(&two);
        assert_eq!(found[0], CpuPlace { cpu: 0, siblings: [2, -1, -1], core: 0, llc: 0 });
        assert_eq!(found[1].llc, 1);
        assert_eq!(found[2], CpuPlace { cpu: 2, siblings: [0, -1, -1], core: 0, llc: 0 });
        assert_eq!(llcs(&found), 2);
        let four = Topology { cpus: (0..4).map(|id| cpu(id, "0-3", "0-3")).collect(), ..Topology::default() };
        assert_eq!(places(&four)[2].siblings, [0, 1, 3]);
        let many = Topology {
            cpus: (0..40).map(|id| cpu(id, &id.to_string(), &id.to_string())).collect(),
            ..Topology::default()
        };
        assert_eq!(llcs(&places(&many)), 16);
        assert_eq!(places(&many)[17].llc, 1);
    }
}
