//! Tells which cgroups were idle without reading them: the counters of a cgroup contain those of all cgroups below it. While
//! they do not change, nothing below it has used CPU time or memory (cpuacct: kernel/sched/cpuacct.c, `cpuacct_charge`; v2:
//! Documentation/admin-guide/cgroup-v2.rst, `cpu.stat`; memory: mm/page_counter.c, `page_counter_charge`).

use commensal_core::actual::{CgroupPath, Hierarchy};
use commensal_core::knob::{Controller, Version};
use commensal_host::Host;
use commensal_sensors::usage::GroupDirs;
use std::collections::{BTreeMap, BTreeSet};

/// A cgroup with several measured cgroups at or below it.
#[derive(Debug)]
struct Node {
    /// The next such cgroup above it.
    above: Option<usize>,
    path: CgroupPath,
    dirs: GroupDirs,
    /// Whether its memory use contains that of the cgroups below, or nothing counts memory.
    counts_memory: bool,
    cpu_us: Option<u64>,
    memory_bytes: Option<u64>,
    /// Whether nothing has used CPU time since the previous look.
    idle: bool,
    /// Whether the memory use is that of the previous look.
    same_memory: bool,
    /// The last look at which something had used CPU time (ms).
    busy_ms: u64,
    /// The first and the last look between which nothing has used CPU time (ms).
    idle_ms: (u64, u64),
}

/// All cgroups with several measured cgroups at or below them, in the order of their paths: the upper ones first.
#[derive(Debug, Default)]
pub(super) struct Above {
    nodes: Vec<Node>,
}

impl Above {
    /// Finds the cgroups above these, opens new ones, and closes those that are no longer needed.
    pub fn follow(
        &mut self,
        host: &mut dyn Host,
        hierarchies: &[Hierarchy],
        measured: &BTreeSet<&CgroupPath>,
    ) {
        let mut open: BTreeMap<CgroupPath, Node> =
            self.nodes.drain(..).map(|node| (node.path.clone(), node)).collect();
        let has = |one: &&Hierarchy, controller| one.controllers.contains(&controller);
        let cpu = [Controller::Cpuacct, Controller::Cpu];
        let cpu = cpu.iter().find_map(|controller| hierarchies.iter().find(|one| has(one, *controller)));
        let memory = hierarchies.iter().find(|one| has(one, Controller::Memory));
        let mut both: Vec<Hierarchy> = cpu.into_iter().cloned().collect();
        both.extend(memory.filter(|memory| Some(*memory) != cpu).cloned());
        for path in shared(measured) {
            let mut node = match open.remove(&path) {
                Some(node) if node.cpu_us.is_some() || node.busy_ms == 0 => node,
                // The cgroup was removed, or another cgroup has its path.
                gone => {
                    gone.into_iter().for_each(|node| node.dirs.close(host));
                    Node::open(host, &both, path)
                }
            };
            node.above = node.path.parent().and_then(|parent| self.nearest(&parent));
            self.nodes.push(node);
        }
        open.into_values().for_each(|node| node.dirs.close(host));
    }

    /// Returns the nearest of them at or above a cgroup.
    pub fn nearest(&self, path: &CgroupPath) -> Option<usize> {
        let mut path = path.as_str();
        loop {
            match self.nodes.binary_search_by(|node| node.path.as_str().cmp(path)) {
                Ok(index) => return Some(index),
                Err(_) => path = path.rsplit_once('/')?.0,
            }
        }
    }

    /// Reads their counters, except below those whose counters tell that nothing has happened.
    pub fn look(&mut self, host: &mut dyn Host, now_ms: u64) {
        for index in 0..self.nodes.len() {
            let (before, rest) = self.nodes.split_at_mut(index);
            let Some(node) = rest.first_mut() else { return };
            let above = node.above.and_then(|above| before.get(above));
            node.idle = node.cpu_us.is_some() && above.is_some_and(|above| above.idle);
            if !node.idle {
                let cpu_us = node.dirs.cpu_us(host);
                node.idle = cpu_us.is_some() && std::mem::replace(&mut node.cpu_us, cpu_us) == cpu_us;
            }
            match node.idle {
                true if node.idle_ms.1 > node.busy_ms => node.idle_ms.1 = now_ms,
                true => node.idle_ms = (node.busy_ms, now_ms),
                false => node.busy_ms = now_ms,
            }
            node.same_memory = node.counts_memory && above.is_some_and(|above| above.same_memory);
            if node.counts_memory && node.cpu_us.is_some() && !node.same_memory {
                let bytes = node.dirs.memory_bytes(host);
                node.same_memory = std::mem::replace(&mut node.memory_bytes, bytes) == bytes;
            }
        }
    }

    /// Whether nothing below it has used CPU time since the previous look, and whether its memory use has not changed.
    pub fn is_idle(&self, index: usize) -> (bool, bool) {
        self.nodes.get(index).map_or((false, false), |node| (node.idle, node.same_memory))
    }

    /// Returns the last look before this one up to which the CPU time of a cgroup below was what was read at `read_ms`.
    pub fn unchanged_until(&self, index: usize, read_ms: u64) -> u64 {
        match self.nodes.get(index) {
            Some(node) if !node.idle && (node.idle_ms.0..=node.idle_ms.1).contains(&read_ms) => {
                node.idle_ms.1
            }
            _ => read_ms,
        }
    }
}

impl Node {
    fn open(host: &mut dyn Host, hierarchies: &[Hierarchy], path: CgroupPath) -> Node {
        let dirs = GroupDirs::open(host, hierarchies, &path);
        let counts_memory = match dirs.of(Controller::Memory) {
            // Before Linux 5.11, a v1 cgroup without this setting counted only its own memory.
            Some((Version::V1, dir)) => {
                host.read(dir, "memory.use_hierarchy").is_ok_and(|text| text.trim() == "1")
            }
            Some((Version::V2, _)) | None => true,
        };
        Node {
            above: None,
            path,
            dirs,
            counts_memory,
            cpu_us: None,
            memory_bytes: None,
            idle: false,
            same_memory: false,
            busy_ms: 0,
            idle_ms: (0, 0),
        }
    }
}

/// Returns the cgroups that have several of these at or below them, except the root: it contains what no group claims. Upper
/// ones come first.
fn shared(paths: &BTreeSet<&CgroupPath>) -> BTreeSet<CgroupPath> {
    let mut sorted: Vec<Vec<&str>> = paths.iter().map(|path| path.parts().collect()).collect();
    sorted.sort_unstable();
    let common = |pair: &[Vec<&str>]| {
        let same = pair[0].iter().zip(&pair[1]).take_while(|(one, other)| one == other).count();
        (same > 0).then(|| CgroupPath::new(&pair[0][..same].join("/")))
    };
    sorted.windows(2).filter_map(common).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Meters, WatchPrecision};
    use super::*;
    use commensal_core::config::parse;
    use commensal_host::below;
    use commensal_host::fake::FakeHost;
    use commensal_reconcile::{Instance, PlanRequest};
    use commensal_testkit::Dice;
    use std::path::Path;

    /// Two groups of 20 cgroups at different depths; the first contains a cgroup of the second.
    const LEAVES: [&str; 5] = ["a", "a/b", "c/d/e", "c/d/f", "c/g"];
    const TOPS: [&str; 4] = ["/on/x", "/on/y", "/off/x", "/off/x/y-1"];

    struct Tree {
        fake: FakeHost,
        host: FakeHost,
        mount: String,
        v2: bool,
        members: Vec<String>,
        meters: Meters,
        hierarchies: Vec<Hierarchy>,
        desired: commensal_core::desired::DesiredState,
    }

    impl Tree {
        fn new(fake: FakeHost) -> Tree {
            let mut host = fake.another();
            let hierarchies = commensal_sensors::mounts::hierarchies(&mut host).unwrap();
            let members: Vec<String> =
                TOPS.iter().flat_map(|top| LEAVES.map(|leaf| format!("{top}/{leaf}"))).collect();
            for hierarchy in &hierarchies {
                for path in &members {
                    let mut dir = Path::new(&hierarchy.mount).to_owned();
                    let mut at = host.open(&dir).unwrap();
                    for part in path.split('/').filter(|part| !part.is_empty()) {
                        at = match host.open_child(at, part) {
                            Ok(child) => child,
                            Err(_) => host.mkdir(at, part).unwrap(),
                        };
                        dir.push(part);
                        if hierarchy.version == Version::V1
                            && hierarchy.controllers.contains(&Controller::Memory)
                        {
                            fake.set_file(dir.join("memory.use_hierarchy"), "1\n");
                        }
                    }
                }
            }
            let counts = |one: &&Hierarchy| {
                one.controllers.contains(&Controller::Cpuacct) || one.version == Version::V2
            };
            let counting = hierarchies.iter().find(counts).unwrap();
            let (mount, v2) = (counting.mount.clone(), counting.version == Version::V2);
            let all = |side: &str| {
                let side = format!("/{side}/");
                let of_side = members.iter().filter(|path| path.starts_with(&side));
                let matches: Vec<String> = of_side.map(|path| format!("{{ cgroup = \"{path}\" }}")).collect();
                matches.join(", ")
            };
            let specs = format!(
                "[group.web]\nclass = \"online\"\nmatch = [{}]\n[group.etl]\nclass = \"offline\"\nmatch = [{}]\n",
                all("on"),
                all("off")
            );
            let specs = parse("groups.toml", &specs).unwrap();
            let instance = Instance::new(Path::new("/state"));
            let survey = instance.survey(&mut host).unwrap();
            let planned = instance.plan(&mut host, &survey, &PlanRequest::all(&specs)).unwrap();
            let (hierarchies, desired) = (planned.actual.hierarchies, planned.desired);
            let mut meters = Meters::default();
            meters.follow(&mut host, &hierarchies, &desired);
            Tree { fake, host, mount, v2, members, meters, hierarchies, desired }
        }

        /// Sets the CPU time of each member without the cgroups below it (ms), as a kernel counts it: with all below.
        fn use_cpu(&self, own_ms: &[u64]) {
            let paths: BTreeSet<CgroupPath> = self.members.iter().map(|path| CgroupPath::new(path)).collect();
            for path in paths.iter().flat_map(|path| [path.ancestors(), vec![path.clone()]].concat()) {
                let inside = self.members.iter().zip(own_ms);
                let inside = inside.filter(|(member, _)| path.contains(&CgroupPath::new(member)));
                let ms: u64 = inside.map(|(_, ms)| ms).sum();
                let dir = below(Path::new(&self.mount), path.as_str());
                let (file, text) = match self.v2 {
                    true => ("cpu.stat", format!("usage_usec {}\n", ms * 1_000)),
                    false => ("cpuacct.usage", (ms * 1_000_000).to_string()),
                };
                self.fake.set_file(dir.join(file), &text);
            }
        }

        fn look(&mut self, now_ms: u64) -> (f64, u64) {
            let calls = self.fake.calls();
            let (host, closely) = (&mut self.host, |_: &_| WatchPrecision::InTurn);
            let sample = self.meters.look(host, now_ms, &self.hierarchies, &self.desired, &closely);
            let cpus = sample.groups.values().map(|rates| rates.cpus.unwrap_or(f64::NAN)).sum();
            (cpus, self.fake.calls() - calls)
        }
    }

    /// Every sample has the CPU time that was used since the previous one, whatever was idle before and for how long; and
    /// while nothing runs, hardly anything is read.
    // promise 23
    #[test]
    fn idle_cgroups_are_not_read_and_no_use_is_missed() {
        for make in [FakeHost::v1, FakeHost::v1_comounted, FakeHost::v2, FakeHost::hybrid] {
            let mut tree = Tree::new(make(2, 1 << 30));
            for seed in 0..6 {
                let mut dice = Dice::new(seed);
                let mut own_ms = vec![0_u64; tree.members.len()];
                let mut now_ms = 10_000_000 * (seed + 1);
                tree.use_cpu(&own_ms);
                let mut idle_looks = 0;
                for look in 0..150 {
                    // Storms, calms, and single cgroups that run now and then.
                    let (every, passed_ms) =
                        ([1, 5, 400, usize::MAX][look / 10 % 4], 500 + dice.below(1_000) as u64);
                    let mut used_ms = 0.0;
                    for (index, ms) in own_ms.iter_mut().enumerate() {
                        if every < usize::MAX && dice.below(every) == 0 {
                            let more = 1 + dice.below(100) as u64;
                            *ms += more;
                            // A member contains the members below it: each counts what it contains.
                            let path = CgroupPath::new(&tree.members[index]);
                            let counted =
                                tree.members.iter().filter(|one| CgroupPath::new(one).contains(&path));
                            used_ms += (more * counted.count() as u64) as f64;
                        }
                    }
                    now_ms += passed_ms;
                    tree.use_cpu(&own_ms);
                    let (cpus, calls) = tree.look(now_ms);
                    if look > 3 {
                        let want = used_ms / passed_ms as f64;
                        assert!((cpus - want).abs() < 1e-6, "{seed} {look}: {cpus} CPUs, not {want}");
                    }
                    idle_looks = if used_ms == 0.0 { idle_looks + 1 } else { 0 };
                    if idle_looks > 2 {
                        assert!(calls <= 16, "{seed} {look}: {calls} calls while nothing runs");
                    }
                }
            }
        }
    }

    #[test]
    fn cgroups_above_several_others() {
        let found = |paths: &[&str]| -> Vec<String> {
            let paths: Vec<CgroupPath> = paths.iter().map(|path| CgroupPath::new(path)).collect();
            shared(&paths.iter().collect()).iter().map(|path| path.as_str().to_owned()).collect()
        };
        assert!(
            found(&[]).is_empty() && found(&["/a/b"]).is_empty() && found(&["/a", "/b", "/a-b"]).is_empty()
        );
        assert_eq!(found(&["/a/b", "/a-b/c", "/a/c", "/a-b"]), ["/a", "/a-b"]);
        assert_eq!(found(&["/a/b/c/d", "/a/b/c/e", "/a/x", "/y"]), ["/a", "/a/b/c"]);
    }
}
