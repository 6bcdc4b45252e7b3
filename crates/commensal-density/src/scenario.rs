//! Classifies a placement (VMs on a server) by the three scenarios of Arenadata's article. The class depends on the sum
//! of vCPUs, compared with the physical cores P and the hardware threads T.
//!
//! ```text
//! ideal           V <= P − R
//! shared-core     P − R < V <= T − R·T/P
//! oversubscribed  beyond
//! ```
//! V is the sum of vCPUs, R the number of cores reserved for the host. The article's own bounds leave gaps, because it
//! writes `<` on both sides. Here, a placement exactly on a bound is in the better class, because every vCPU still has
//! a core or a thread of its own.

use crate::error::DensityError;
use commensal_core::topology::Topology;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Hardware of a server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// Number of physical cores, P.
    pub cores: u32,
    /// Number of logical CPUs, T.
    pub threads: u32,
    /// Number of cores reserved for the host, R.
    #[serde(default)]
    pub reserve: f64,
    /// Number of physical cores of the smallest NUMA node; `None` when unknown.
    #[serde(default)]
    pub node_cores: Option<u32>,
    /// Smallest number of physical cores that share a last-level cache; `None` when not known.
    #[serde(default)]
    pub llc_cores: Option<u32>,
}

/// A number of VMs of the same size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Vms {
    /// Number of VMs.
    pub count: u32,
    /// Number of vCPUs of each VM.
    pub vcpu: u32,
}

/// The three scenarios of Arenadata's article, from best to worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// Every vCPU can have a physical core of its own.
    Ideal,
    /// Every vCPU can have a hardware thread of its own, but some of these threads share a core.
    SharedCore,
    /// There are more vCPUs than hardware threads, so vCPUs wait for each other.
    Oversubscribed,
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scenario::Ideal => "ideal",
            Scenario::SharedCore => "shared-core",
            Scenario::Oversubscribed => "oversubscribed",
        })
    }
}

impl std::str::FromStr for Scenario {
    type Err = String;
    fn from_str(text: &str) -> Result<Scenario, String> {
        let all = [Scenario::Ideal, Scenario::SharedCore, Scenario::Oversubscribed];
        let found = all.into_iter().find(|one| one.to_string() == text);
        found.ok_or_else(|| format!("{text:?} is not ideal, shared-core or oversubscribed"))
    }
}

impl Server {
    /// Derives the server from a CPU topology. A core with an offline thread still counts as a core.
    #[must_use]
    pub fn of(topology: &Topology, reserve: f64) -> Server {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let cores_in = |cpus: &commensal_core::cpuset::CpuSet| {
            let within = topology.cpus.iter().filter(|cpu| cpus.contains(cpu.id));
            let part = Topology { cpus: within.cloned().collect(), ..Topology::default() };
            number(part.cores())
        };
        let nodes = topology.nodes();
        Server {
            cores: number(topology.cores()),
            threads: number(topology.threads()),
            reserve,
            // A NUMA node without CPUs has only memory, so it does not count.
            node_cores: nodes.values().filter(|cpus| !cpus.is_empty()).map(cores_in).min(),
            llc_cores: topology.llcs().iter().map(cores_in).min(),
        }
    }

    /// Checks that a server can have these numbers.
    ///
    /// # Errors
    /// Returns an error for the first number that is impossible.
    pub fn check(&self) -> Result<(), DensityError> {
        let Server { cores, threads, reserve, .. } = *self;
        if cores == 0 || threads < cores {
            return Err(DensityError::new(format!(
                "a server cannot have {cores} cores and {threads} threads; give physical cores and logical CPUs, such as 48 and 96"
            )));
        }
        if !(reserve >= 0.0 && reserve < f64::from(cores)) {
            return Err(DensityError::new(format!(
                "a reserve of {reserve} cores leaves none of {cores} cores for VMs; the reserve must be 0 or more, and less than the number of cores"
            )));
        }
        Ok(())
    }

    /// Returns the number of cores left for VMs: P − R.
    #[must_use]
    pub fn cores_left(&self) -> f64 {
        f64::from(self.cores) - self.reserve
    }

    /// Returns the number of threads left for VMs: T − R·T/P.
    #[must_use]
    pub fn threads_left(&self) -> f64 {
        f64::from(self.threads) - self.reserve * f64::from(self.threads) / f64::from(self.cores)
    }

    /// Returns the class of a placement with this number of vCPUs in total.
    #[must_use]
    pub fn scenario(&self, vcpu: f64) -> Scenario {
        if vcpu <= self.cores_left() {
            Scenario::Ideal
        } else if vcpu <= self.threads_left() {
            Scenario::SharedCore
        } else {
            Scenario::Oversubscribed
        }
    }
}

/// A placement with its class.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Classified {
    /// The class.
    pub scenario: Scenario,
    /// Sum of vCPUs, V.
    pub vcpu: u64,
    /// vCPUs per logical CPU, V/T. The article writes this number as the ratio 1:V/T.
    pub per_thread: f64,
    /// vCPUs per physical core, V/P.
    pub per_core: f64,
    /// The largest V that is still ideal.
    pub ideal_up_to: u64,
    /// The largest V that is still shared-core; equal to `ideal_up_to` without SMT.
    pub shared_up_to: u64,
    /// Number of vCPUs of the largest VM.
    pub largest: u32,
    /// Whether one NUMA node has a core for every vCPU of the largest VM; `None` when the NUMA nodes are unknown.
    pub fits_node: Option<bool>,
    /// Whether a last-level cache is shared by enough cores for every vCPU of the largest VM; `None` when unknown.
    pub fits_llc: Option<bool>,
    /// Remarks that a reader must know.
    pub notes: Vec<String>,
}

/// Returns the error for a number of VMs or of vCPUs that is 0.
pub(crate) fn no_vms(count: u32, vcpu: u32) -> DensityError {
    DensityError::new(format!("{count} VMs of {vcpu} vCPU cannot be placed: both numbers must be 1 or more"))
}

/// Classifies a placement of VMs on a server.
///
/// # Errors
/// Returns an error when the server cannot exist, or a number of VMs or of vCPUs is 0.
pub fn classify(server: &Server, vms: &[Vms]) -> Result<Classified, DensityError> {
    server.check()?;
    if vms.is_empty() {
        return Err(DensityError::new(
            "the placement has no VM; give at least one, such as 4x16 for four VMs of 16 vCPU",
        ));
    }
    if let Some(Vms { count, vcpu }) = vms.iter().find(|vms| vms.count == 0 || vms.vcpu == 0) {
        return Err(no_vms(*count, *vcpu));
    }
    let vcpu: u64 = vms.iter().map(|vms| u64::from(vms.count) * u64::from(vms.vcpu)).sum();
    let largest = vms.iter().map(|vms| vms.vcpu).max().unwrap_or(0);
    let mut notes = Vec::new();
    if server.threads == server.cores {
        notes.push(
            "without SMT there is no shared-core class: if there are more vCPUs than cores, vCPUs wait for each other"
                .to_owned(),
        );
    } else if !server.threads.is_multiple_of(server.cores) {
        notes.push("not every core has the same number of online threads, so T/P is an average".to_owned());
    }
    if largest > server.threads {
        notes.push(format!(
            "the largest VM has {largest} vCPU, but the server has {} threads, so the VM's own vCPUs wait for each other",
            server.threads
        ));
    }
    Ok(Classified {
        scenario: server.scenario(vcpu as f64),
        vcpu,
        per_thread: vcpu as f64 / f64::from(server.threads),
        per_core: vcpu as f64 / f64::from(server.cores),
        ideal_up_to: server.cores_left() as u64,
        shared_up_to: server.threads_left() as u64,
        largest,
        fits_node: server.node_cores.map(|cores| largest <= cores),
        fits_llc: server.llc_cores.map(|cores| largest <= cores),
        notes,
    })
}

impl Classified {
    /// Formats the class with its numbers. An oversubscribed placement also has its ratio in the article's notation:
    /// `oversubscribed 1:1.33 (128 vCPU / 96 T)`.
    #[must_use]
    pub fn headline(&self, server: &Server) -> String {
        let Server { cores, threads, .. } = server;
        match self.scenario {
            Scenario::Oversubscribed => {
                format!("oversubscribed 1:{:.2} ({} vCPU / {threads} T)", self.per_thread, self.vcpu)
            }
            other => format!("{other} ({} vCPU, {cores} cores, {threads} threads)", self.vcpu),
        }
    }

    /// Formats further facts, one line each.
    #[must_use]
    pub fn facts(&self, server: &Server) -> Vec<String> {
        let Server { cores, threads, reserve, .. } = server;
        let mut lines =
            vec![format!("server: {cores} cores, {threads} threads, {reserve} cores reserved for the host")];
        lines.push(if self.shared_up_to > self.ideal_up_to {
            let (ideal, shared) = (self.ideal_up_to, self.shared_up_to);
            format!("ideal up to {ideal} vCPU, shared-core up to {shared} vCPU, oversubscribed above")
        } else {
            format!("ideal up to {} vCPU, oversubscribed above", self.ideal_up_to)
        });
        for (fits, cores, what) in [
            (self.fits_node, server.node_cores, "NUMA node"),
            (self.fits_llc, server.llc_cores, "last-level cache"),
        ] {
            if let (Some(fits), Some(cores)) = (fits, cores) {
                let verb = if fits { "fits into" } else { "is larger than" };
                lines.push(format!(
                    "the largest VM ({} vCPU) {verb} one {what} of {cores} cores",
                    self.largest
                ));
            }
        }
        lines.extend(self.notes.iter().cloned());
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_core::cpuset::CpuSet;
    use commensal_core::topology::LogicalCpu;

    fn server(cores: u32, threads: u32, reserve: f64) -> Server {
        Server { cores, threads, reserve, node_cores: None, llc_cores: None }
    }

    fn class(server: &Server, vms: &[(u32, u32)]) -> Scenario {
        let vms: Vec<Vms> = vms.iter().map(|(count, vcpu)| Vms { count: *count, vcpu: *vcpu }).collect();
        classify(server, &vms).unwrap().scenario
    }

    #[test]
    fn the_documents_three_placements() {
        let server = server(48, 96, 0.0);
        for (count, want, headline) in [
            (1, Scenario::Ideal, "ideal (16 vCPU, 48 cores, 96 threads)"),
            (4, Scenario::SharedCore, "shared-core (64 vCPU, 48 cores, 96 threads)"),
            (8, Scenario::Oversubscribed, "oversubscribed 1:1.33 (128 vCPU / 96 T)"),
        ] {
            let got = classify(&server, &[Vms { count, vcpu: 16 }]).unwrap();
            assert_eq!((got.scenario, got.headline(&server).as_str()), (want, headline));
        }
    }

    /// The article writes `<` on both sides of a bound, so it gives no class to a placement exactly on the bound.
    #[test]
    fn a_placement_on_a_bound_is_in_the_better_class() {
        let server = server(48, 96, 0.0);
        assert_eq!(class(&server, &[(3, 16)]), Scenario::Ideal);
        assert_eq!(class(&server, &[(49, 1)]), Scenario::SharedCore);
        assert_eq!(class(&server, &[(6, 16)]), Scenario::SharedCore);
        assert_eq!(class(&server, &[(6, 16), (1, 1)]), Scenario::Oversubscribed);
    }

    #[test]
    fn the_reserve_moves_both_bounds() {
        let server = server(48, 96, 2.0);
        let got = classify(&server, &[Vms { count: 6, vcpu: 16 }]).unwrap();
        assert_eq!((got.scenario, got.ideal_up_to, got.shared_up_to), (Scenario::Oversubscribed, 46, 92));
    }

    #[test]
    fn without_smt_there_are_two_classes_and_the_notes_say_so() {
        let server = server(2, 2, 0.0);
        assert_eq!(class(&server, &[(2, 1)]), Scenario::Ideal);
        assert_eq!(class(&server, &[(3, 1)]), Scenario::Oversubscribed);
        let got = classify(&server, &[Vms { count: 1, vcpu: 4 }]).unwrap();
        assert!(got.notes.iter().any(|note| note.contains("no shared-core class")), "{:?}", got.notes);
        assert!(got.notes.iter().any(|note| note.contains("own vCPUs wait")), "{:?}", got.notes);
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_way_out() {
        let one = [Vms { count: 1, vcpu: 1 }];
        let check = |server: Server, vms: &[Vms], want: &str| {
            let error = classify(&server, vms).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        };
        check(server(0, 0, 0.0), &one, "0 cores and 0 threads");
        check(server(4, 2, 0.0), &one, "cannot have");
        check(server(4, 8, 4.0), &one, "leaves none");
        check(server(4, 8, -1.0), &one, "0 or more");
        check(server(4, 8, f64::NAN), &one, "0 or more");
        check(server(4, 8, 0.0), &[Vms { count: 3, vcpu: 0 }], "both numbers must be 1 or more");
        check(server(4, 8, 0.0), &[], "the placement has no VM");
    }

    #[test]
    fn a_topology_with_nodes_caches_and_an_offline_sibling() {
        // The topology has two nodes of two cores with two threads each. CPU 7 is offline, so core 3 has one online
        // thread.
        let set = |cpus: &[u32]| cpus.iter().copied().collect::<CpuSet>();
        let cpu = |id: u32| {
            let first = id / 2 * 2;
            let siblings = if id == 6 { set(&[6]) } else { set(&[first, first + 1]) };
            let node = id / 4;
            let llc = Some((node * 4..node * 4 + 4).filter(|id| *id != 7).collect());
            LogicalCpu { id, package: Some(0), core: Some(id / 2), siblings, llc, node: Some(node) }
        };
        let server = Server::of(&Topology { cpus: (0..7).map(cpu).collect(), offline: set(&[7]) }, 0.0);
        assert_eq!((server.cores, server.threads), (4, 7));
        assert_eq!((server.node_cores, server.llc_cores), (Some(2), Some(2)));
        let got = classify(&server, &[Vms { count: 1, vcpu: 3 }]).unwrap();
        assert_eq!((got.fits_node, got.fits_llc), (Some(false), Some(false)));
        assert!(got.notes.iter().any(|note| note.contains("average")));
        assert!(
            got.facts(&server).iter().any(|line| line.contains("is larger than one NUMA node of 2 cores"))
        );
    }
}
