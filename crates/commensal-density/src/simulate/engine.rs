//! The calendar: servers and exchanges, whichever comes first.

use super::host::{Host, Least};
use super::{Cluster, Outcome, Profile, World};
use commensal_core::rng::Rng;
use std::collections::BinaryHeap;

/// When a simulation is given up.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most events.
    pub events: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { events: 200_000_000 }
    }
}

/// A world that cannot be simulated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SimulateError {
    /// Contradicts itself.
    #[error("this cannot be simulated: {0}")]
    World(String),
    /// Too much for the limit.
    #[error("the simulation was given up after {0} events; simulate fewer queries or VMs")]
    TooLong(u64),
}

/// A query under way.
#[derive(Debug, Clone)]
struct Query {
    cluster: usize,
    /// Works of the session's queries that are left, the current one last.
    left: Vec<f64>,
    /// Stages of the current one that are left.
    stages: u32,
    /// VMs that this stage still waits for.
    pending: usize,
}

/// What happens at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// A job may be done on this server, if nothing changed there since.
    Server(usize, u64),
    /// The next stage of this query begins.
    Stage(usize),
}

struct Engine<'w> {
    world: &'w World,
    hosts: Vec<Host>,
    /// Index of each VM on its server.
    place: Vec<usize>,
    queries: Vec<Query>,
    calendar: BinaryHeap<(Least, What)>,
    rng: Rng,
    outcome: Outcome,
    exchanges: u64,
    retries: u64,
}

/// Simulates a world until every session has ended.
///
/// # Errors
/// See [`SimulateError`].
pub fn run(world: &World, seed: u64, limits: Limits) -> Result<Outcome, SimulateError> {
    check(world)?;
    let mut engine = Engine::new(world, seed);
    engine.begin();
    let mut now = 0.0;
    while let Some((Least(at), what)) = engine.calendar.pop() {
        engine.outcome.events += 1;
        if engine.outcome.events > limits.events {
            return Err(SimulateError::TooLong(limits.events));
        }
        now = at;
        match what {
            What::Stage(query) => engine.stage(at, query),
            What::Server(host, version) if engine.hosts[host].version == version => {
                for query in engine.hosts[host].finish(at) {
                    engine.done(at, query);
                }
                engine.plan(host);
            }
            What::Server(..) => {}
        }
    }
    let vcpu_s: f64 = world.vms.iter().map(|vm| f64::from(vm.vcpu) * now).sum();
    let sum = |of: fn(&Host) -> f64| engine.hosts.iter().map(of).sum::<f64>() / vcpu_s.max(1e-9) * 100.0;
    let (steal_pct, busy_pct) = (sum(|host| host.waited_s), sum(|host| host.runnable_s));
    let retries_per_1000 = engine.retries as f64 / engine.exchanges.max(1) as f64 * 1000.0;
    Ok(Outcome { steal_pct, busy_pct, retries_per_1000, ..engine.outcome })
}

fn check(world: &World) -> Result<(), SimulateError> {
    let wrong = |what: &str| Err(SimulateError::World(what.to_owned()));
    if world.servers.iter().any(|server| server.check().is_err()) {
        return wrong("a server has no cores, or keeps them all for itself");
    }
    if world.vms.iter().any(|vm| vm.vcpu == 0 || vm.server >= world.servers.len()) {
        return wrong("a VM has no vCPU, or no server");
    }
    let good = |Profile { width, work_s, stages, .. }: &Profile| {
        *width > 0 && *stages > 0 && *work_s > 0.0 && work_s.is_finite()
    };
    let whole = |cluster: &Cluster| {
        !cluster.vms.is_empty()
            && cluster.vms.iter().all(|vm| *vm < world.vms.len())
            && cluster.sessions > 0
            && cluster.queries > 0
    };
    if world.clusters.is_empty() || !world.clusters.iter().all(|one| whole(one) && good(&one.profile)) {
        return wrong("a cluster has no VM, no session, or queries without work");
    }
    let physics = &world.physics;
    if !(physics.smt_gain > 0.0 && physics.all_core > 0.0 && physics.network.timeout_s > 0.0) {
        return wrong("a gain, speed or time-out is not positive");
    }
    for (index, server) in world.servers.iter().enumerate().filter(|_| world.pinned) {
        let vcpu: u32 = world.vms.iter().filter(|vm| vm.server == index).map(|vm| vm.vcpu).sum();
        if f64::from(vcpu) > server.threads_left().floor() {
            return wrong(&format!(
                "{vcpu} vCPU cannot be pinned to {} threads",
                server.threads_left().floor()
            ));
        }
    }
    Ok(())
}

impl<'w> Engine<'w> {
    fn new(world: &'w World, seed: u64) -> Engine<'w> {
        let mut on: Vec<Vec<u32>> = vec![Vec::new(); world.servers.len()];
        let mut place = Vec::with_capacity(world.vms.len());
        for vm in &world.vms {
            place.push(on[vm.server].len());
            on[vm.server].push(vm.vcpu);
        }
        let host = |(index, vcpus): (usize, &Vec<u32>)| {
            let seed = seed.wrapping_mul(1_000_003).wrapping_add(index as u64);
            Host::new(&world.servers[index], vcpus, world.pinned, world.physics, seed)
        };
        let hosts = on.iter().enumerate().map(host).collect();
        let outcome = Outcome {
            seconds: vec![0.0; world.clusters.len()],
            steal_pct: 0.0,
            busy_pct: 0.0,
            retries_per_1000: 0.0,
            warnings: 0,
            events: 0,
        };
        Engine {
            world,
            hosts,
            place,
            queries: Vec::new(),
            calendar: BinaryHeap::new(),
            rng: Rng::new(seed),
            outcome,
            exchanges: 0,
            retries: 0,
        }
    }

    /// Starts every session; each has the same queries in an order of its own, as in TPC-DS' throughput test.
    fn begin(&mut self) {
        for (index, cluster) in self.world.clusters.iter().enumerate() {
            let works = self.works(cluster);
            for _ in 0..cluster.sessions {
                let mut left = works.clone();
                self.rng.shuffle(&mut left);
                let stages = cluster.profile.stages;
                self.queries.push(Query { cluster: index, left, stages, pending: 0 });
                self.calendar.push((Least(0.0), What::Stage(self.queries.len() - 1)));
            }
        }
    }

    /// Works of the queries of a session, of which the mean is exactly the profile's.
    fn works(&mut self, cluster: &Cluster) -> Vec<f64> {
        let Profile { work_s, spread, .. } = cluster.profile;
        let drawn: Vec<f64> = (0..cluster.queries).map(|_| (spread * self.rng.normal()).exp()).collect();
        let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
        drawn.into_iter().map(|one| one / mean * work_s).collect()
    }

    fn stage(&mut self, at: f64, query: usize) {
        let cluster = &self.world.clusters[self.queries[query].cluster];
        let Some(work) = self.queries[query].left.last().copied() else { return };
        let Profile { width, stages, skew, .. } = cluster.profile;
        self.queries[query].pending = cluster.vms.len();
        for vm in &cluster.vms {
            // The mean over VMs is that of the stage.
            let factor = (skew * self.rng.normal() - skew * skew / 2.0).exp();
            let server = self.world.vms[*vm].server;
            self.hosts[server].start(at, self.place[*vm], (width, work / f64::from(stages) * factor), query);
        }
        let mut servers: Vec<usize> = cluster.vms.iter().map(|vm| self.world.vms[*vm].server).collect();
        servers.dedup();
        servers.into_iter().for_each(|server| self.plan(server));
    }

    fn plan(&mut self, host: usize) {
        if let Some(at) = self.hosts[host].next() {
            self.calendar.push((Least(at), What::Server(host, self.hosts[host].version)));
        }
    }

    /// One VM has done its part of a stage.
    fn done(&mut self, at: f64, query: usize) {
        let of = &mut self.queries[query];
        of.pending -= 1;
        if of.pending > 0 {
            return;
        }
        of.stages -= 1;
        let cluster = &self.world.clusters[of.cluster];
        if of.stages == 0 {
            of.left.pop();
            of.stages = cluster.profile.stages;
        }
        let (over, index) = (of.left.is_empty(), of.cluster);
        let delay = if cluster.vms.len() > 1 { self.exchange(index) } else { 0.0 };
        if over {
            let end = &mut self.outcome.seconds[index];
            *end = end.max(at + delay);
        } else {
            self.calendar.push((Least(at + delay), What::Stage(query)));
        }
    }

    /// How long it takes until every VM has answered, s.
    fn exchange(&mut self, cluster: usize) -> f64 {
        let network = self.world.physics.network;
        let mut slowest = 0.0;
        for vm in &self.world.clusters[cluster].vms {
            let mean = self.hosts[self.world.vms[*vm].server].answer_s(self.place[*vm]);
            if mean <= 0.0 {
                continue;
            }
            let answer = self.rng.exponential(mean);
            let retries = (answer / network.timeout_s).floor();
            self.retries += retries as u64;
            self.outcome.warnings += u64::from(retries >= f64::from(network.warn_after));
            slowest = f64::max(slowest, answer);
        }
        self.exchanges += 1;
        slowest
    }
}
