//! A fleet that does not fit here: how many VMs per server before work takes too long, simulated VM by VM.

use super::{Cluster, Limits, Outcome, Physics, Profile, SimulateError, Vm, World, run};
use crate::scenario::Server;
use commensal_lab::stats::median;
use serde::Serialize;

/// What the fleet has to do.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    /// VMs in all.
    pub vms: u32,
    /// vCPU of each.
    pub vcpu: u32,
    /// VMs of one cluster, whose queries wait for the slowest of them; 1 for VMs on their own.
    pub cluster: u32,
    /// Sessions at once, of each cluster.
    pub sessions: u32,
    /// Queries of each session: enough for an average.
    pub queries: u32,
    /// What a query is.
    pub profile: Profile,
    /// One server of the fleet.
    pub server: Server,
    /// What sharing costs.
    pub physics: Physics,
    /// Most that the median cluster may lose, per cent of time.
    pub max_harm_pct: f64,
    /// Seed.
    pub seed: u64,
}

/// One density that was tried.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Tried {
    /// VMs per server.
    pub per_server: u32,
    /// Servers needed.
    pub servers: u32,
    /// What the median cluster loses against one VM per server, per cent.
    pub harm_pct: f64,
    /// What the worst of twenty clusters loses (95th percentile).
    pub harm_p95_pct: f64,
    /// Simulated steal, per cent of vCPU time.
    pub steal_pct: f64,
    /// Retries per 1000 exchanges.
    pub retries_per_1000: f64,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FleetPlan {
    /// Most VMs per server that keep the bound; `None` when not even one does.
    pub fits: Option<Tried>,
    /// The next one up, and what it costs; `None` when the search ended at its limit.
    pub next: Option<Tried>,
    /// Servers at one VM each.
    pub at_most: u32,
    /// All that were tried, by density.
    pub tried: Vec<Tried>,
    /// Events of all simulations.
    pub events: u64,
}

/// Finds the density by bisection, assuming that more VMs on a server never make them faster.
///
/// # Errors
/// See [`SimulateError`].
pub fn plan(wanted: &Wanted) -> Result<FleetPlan, SimulateError> {
    if wanted.vms == 0 || wanted.cluster == 0 || wanted.vcpu == 0 {
        return Err(SimulateError::World(
            "a fleet has VMs with vCPU, in clusters of at least one".to_owned(),
        ));
    }
    // Alone on a server all clusters are alike: a few of them tell.
    let alone =
        outcome(&Wanted { vms: wanted.vms.min(wanted.cluster.saturating_mul(20)), ..wanted.clone() }, 1)?;
    let reference = median(&alone.seconds).unwrap_or(f64::NAN);
    let mut events = alone.events;
    let mut tried: Vec<Tried> = Vec::new();
    let mut measure = |per_server: u32| -> Result<Tried, SimulateError> {
        let outcome = outcome(wanted, per_server)?;
        events += outcome.events;
        let one = judged(wanted, per_server, &outcome, reference);
        tried.push(one.clone());
        Ok(one)
    };
    // Beyond four vCPU per thread nobody wants to know.
    let limit = (4 * wanted.server.threads / wanted.vcpu).clamp(1, wanted.vms);
    let first = measure(1)?;
    let (mut good, mut bad) =
        if first.harm_pct <= wanted.max_harm_pct { (Some(first), None) } else { (None, Some(first)) };
    let mut step = (f64::from(wanted.server.cores) / f64::from(wanted.vcpu)).floor().max(2.0) as u32;
    while bad.is_none() && good.as_ref().is_some_and(|good| good.per_server < limit) {
        let from = good.as_ref().map_or(0, |good| good.per_server);
        let one = measure(step.max(from + 1).min(limit))?;
        step = one.per_server.saturating_mul(2);
        if one.harm_pct <= wanted.max_harm_pct { good = Some(one) } else { bad = Some(one) }
    }
    while let (Some(low), Some(high)) = (&good, &bad) {
        if high.per_server - low.per_server <= 1 {
            break;
        }
        let one = measure(low.per_server.midpoint(high.per_server))?;
        if one.harm_pct <= wanted.max_harm_pct { good = Some(one) } else { bad = Some(one) }
    }
    tried.sort_by_key(|one| one.per_server);
    Ok(FleetPlan { fits: good, next: bad, at_most: wanted.vms, tried, events })
}

fn outcome(wanted: &Wanted, per_server: u32) -> Result<Outcome, SimulateError> {
    let Wanted { vcpu, cluster, sessions, queries, profile, .. } = *wanted;
    let (count, size) = (wanted.vms as usize, cluster as usize);
    let vms: Vec<Vm> = (0..count).map(|vm| Vm { server: vm / per_server as usize, vcpu }).collect();
    let ends = (0..count).step_by(size).map(|from| (from..(from + size).min(count)).collect());
    let world = World {
        servers: vec![wanted.server.clone(); count.div_ceil(per_server as usize)],
        clusters: ends.map(|vms| Cluster { vms, sessions, queries, profile }).collect(),
        vms,
        pinned: false,
        physics: wanted.physics,
    };
    run(&world, wanted.seed, Limits::default())
}

fn judged(wanted: &Wanted, per_server: u32, outcome: &Outcome, reference: f64) -> Tried {
    let mut harms: Vec<f64> =
        outcome.seconds.iter().map(|seconds| (seconds / reference - 1.0) * 100.0).collect();
    harms.sort_by(f64::total_cmp);
    let at = |share: f64| commensal_lab::stats::percentile(&harms, share).unwrap_or(f64::NAN);
    Tried {
        per_server,
        servers: wanted.vms.div_ceil(per_server),
        harm_pct: at(0.5),
        harm_p95_pct: at(0.95),
        steal_pct: outcome.steal_pct,
        retries_per_1000: outcome.retries_per_1000,
    }
}

impl FleetPlan {
    /// The answer in words.
    #[must_use]
    pub fn describe(&self, max_harm_pct: f64) -> String {
        let mut out = String::new();
        match &self.fits {
            Some(fits) => {
                let saved = f64::from(self.at_most - fits.servers) / f64::from(self.at_most) * 100.0;
                out.push_str(&format!(
                    "{} VMs per server keep the median within {max_harm_pct} % ({:+.1} %): {} servers in place of {}, {saved:.0} % fewer\n",
                    fits.per_server, fits.harm_pct, fits.servers, self.at_most
                ));
            }
            None => out
                .push_str(&format!("not even one VM per server keeps the median within {max_harm_pct} %\n")),
        }
        if let Some(next) = &self.next {
            out.push_str(&format!(
                "{} would cost {:+.1} % ({:+.1} % for the worst of twenty), with {:.0} % steal\n",
                next.per_server, next.harm_pct, next.harm_p95_pct, next.steal_pct
            ));
        }
        out.push_str(
            "this is a simulation, not a measurement: it knows nothing of disks, caches and crashes\n",
        );
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(vms: u32) -> Wanted {
        Wanted {
            vms,
            vcpu: 16,
            cluster: 8,
            sessions: 4,
            queries: 2,
            profile: Profile { width: 6, work_s: 3.0, stages: 4, spread: 0.6, skew: 0.1 },
            server: Server { cores: 48, threads: 96, reserve: 0.0, node_cores: None, llc_cores: None },
            physics: Physics { smt_gain: 1.3, ..Physics::default() },
            max_harm_pct: 10.0,
            seed: 3,
        }
    }

    #[test]
    fn ten_thousand_vms_find_their_density() {
        let plan = plan(&wanted(10_000)).unwrap();
        println!("{} {} events", plan.describe(10.0), plan.events);
        let (fits, next) = (plan.fits.unwrap(), plan.next.unwrap());
        // 48 cores have room for three VMs of 16 busy vCPU; a fourth shares cores.
        assert!((3..=4).contains(&fits.per_server), "{fits:?}");
        assert_eq!(next.per_server, fits.per_server + 1);
        assert!(fits.harm_pct <= 10.0 && next.harm_pct > 10.0);
        assert_eq!(fits.servers, 10_000_u32.div_ceil(fits.per_server));
    }

    #[test]
    fn looser_bounds_pack_more() {
        let density = |max_harm_pct| {
            plan(&Wanted { max_harm_pct, ..wanted(160) }).unwrap().fits.map(|one| one.per_server)
        };
        assert_eq!(density(-50.0), None);
        assert!(density(300.0) > density(10.0));
    }

    #[test]
    fn a_fleet_of_nothing_is_refused() {
        assert!(plan(&wanted(0)).is_err());
        assert!(plan(&Wanted { vcpu: 0, ..wanted(8) }).is_err());
    }
}
