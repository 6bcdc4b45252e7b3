//! Checks that every value that a controller writes to a cgroup has a line in the audit log whose formula results in
//! that value, and that `explain` shows the same value. The tests run whole ticks on a fake machine, for every
//! controller: at its first decision, later, after a reload of the groups, and after another agent has replaced the
//! first one.

use super::*;
use crate::explain::explain;
use crate::snapshot::Action;
use crate::view;
use commensal_core::config::{Compiled, parse};
use commensal_core::control::io::Rates;
use commensal_core::reach::Reach;
use commensal_host::fake::FakeHost;
use commensal_host::{Host, HostError};
use commensal_reconcile::{Instance, PlanRequest, Reconciler, Round, reach, siblings};
use proptest::prelude::*;
use std::path::Path;

const DISK: Device = Device { major: 254, minor: 0 };
const MIB: f64 = 1_048_576.0;
const GIB: u64 = 1 << 30;

/// The controller under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Frame,
    Suppress,
    Period,
    Weights,
    Latency,
    Freeze,
    LowMemory,
    Disks,
    Queue,
    Kill,
    NodeKill,
}

const ALL_OF_THEM: [Who; 11] = [
    Who::Frame,
    Who::Suppress,
    Who::Period,
    Who::Weights,
    Who::Latency,
    Who::Freeze,
    Who::LowMemory,
    Who::Disks,
    Who::Queue,
    Who::Kill,
    Who::NodeKill,
];

impl Who {
    /// The controller's name in the audit log: a key of [`Decided::why`], or the object of the action.
    fn key(self) -> String {
        match self {
            Who::Frame => "cpu.set".to_owned(),
            Who::Suppress | Who::Latency => "cpu.max".to_owned(),
            Who::Period => "cpu.max.period".to_owned(),
            Who::Weights => "cpu.weight".to_owned(),
            Who::Freeze | Who::LowMemory => "frozen".to_owned(),
            Who::Disks => format!("io.read on {DISK}"),
            Who::Queue => "queue".to_owned(),
            Who::Kill | Who::NodeKill => "process".to_owned(),
        }
    }

    fn headroom(self) -> Headroom {
        match self {
            Who::Frame => Headroom::Frame,
            Who::Suppress | Who::Period => Headroom::Quota,
            Who::Latency => Headroom::Target,
            _ => Headroom::Off,
        }
    }

    /// Parses a groups file. With `other`, the file differs in a setting that no controller decides.
    fn groups(self, other: bool) -> Vec<GroupSpec> {
        let on_exceed = match self {
            Who::Freeze => "freeze",
            Who::Queue => "queue",
            _ => "kill-largest",
        };
        let target = if self == Who::Latency { "target-wakeup-p99 = \"100us\"\n" } else { "" };
        let tasks = if other { "pids.max = 1000\n" } else { "" };
        let text = format!(
            "[group.web]\nclass = \"online\"\n{target}match = [{{ cgroup = \"/web\" }}]\n\
             [group.etl]\nclass = \"offline\"\n{tasks}match = [{{ cgroup = \"/etl\" }}, {{ cgroup = \"/etl2\" }}]\n\
             cpu.max = \"2 CPUs\"\nio.read = \"200 MiB/s\"\nmemory.max = \"1 GiB\"\nmemory.on-exceed = \"{on_exceed}\"\n\
             [group.batch]\nclass = \"offline\"\nmatch = [{{ cgroup = \"/batch\" }}]\n"
        );
        parse("groups.toml", &text).unwrap_or_else(|errors| panic!("{errors:?}"))
    }
}

/// The parts of an agent that a tick needs, without the loop.
struct Node {
    v1: bool,
    host: FakeHost,
    reconciler: Reconciler,
    controllers: Controllers,
    decided: Decided,
    holding: BTreeSet<GroupName>,
    round: Option<Round>,
    who: Who,
    specs: Vec<GroupSpec>,
    now_ms: u64,
}

/// The load that is measured before a tick.
#[derive(Debug, Clone, Copy)]
struct Load {
    /// CPUs used by all work that is not offline.
    others: f64,
    /// Harm that the controller reacts to: 0 is none, 1 is far too much.
    harm: f64,
}

fn instance() -> Instance {
    Instance::new(Path::new("/state"))
}

fn node(v1: bool, who: Who) -> Node {
    // With fewer than seven cores, a latency target is met by a quota.
    let cpus = if who == Who::Latency { 4 } else { 8 };
    let mut host = match v1 {
        // Pressure of single groups requires a v2 hierarchy, even if it has no controllers.
        true if who == Who::Disks => FakeHost::hybrid(cpus, 16 * GIB),
        true => FakeHost::v1(cpus, 16 * GIB),
        false => FakeHost::v2(cpus, 16 * GIB),
    };
    host.state_dir(Path::new("/state")).unwrap();
    let mounts: Vec<String> = match v1 {
        true => ["cpu", "cpuset", "memory", "blkio", "freezer", "pids", "cpuacct"]
            .map(|name| format!("/sys/fs/cgroup/{name}"))
            .into(),
        false => vec!["/sys/fs/cgroup".to_owned()],
    };
    for mount in &mounts {
        let Ok(root) = host.open(Path::new(mount)) else { continue };
        if !v1 {
            let _: Result<(), HostError> =
                host.write(root, "cgroup.subtree_control", "+cpu +cpuset +memory +io +pids");
        }
        for name in ["web", "etl", "etl2", "batch", "shell"] {
            host.mkdir(root, name).unwrap();
        }
    }
    // A limit that a container engine set, as `docker run --cpus 1.5` does.
    match v1 {
        true => host.set_file("/sys/fs/cgroup/cpu/batch/cpu.cfs_quota_us", "150000"),
        false => host.set_file("/sys/fs/cgroup/batch/cpu.max", "150000 100000"),
    }
    let reconciler = Reconciler::new(instance(), &mut host).unwrap();
    Node {
        v1,
        host,
        reconciler,
        controllers: Controllers::default(),
        decided: Decided::default(),
        holding: BTreeSet::new(),
        round: None,
        who,
        specs: who.groups(false),
        now_ms: 0,
    }
}

impl Node {
    /// Replaces the agent with another one, which knows only what is on disk.
    fn replaced(self) -> Node {
        let mut host = self.host;
        let reconciler = Reconciler::new(instance(), &mut host).unwrap();
        Node {
            reconciler,
            host,
            controllers: Controllers::default(),
            decided: Decided::default(),
            holding: BTreeSet::new(),
            round: None,
            ..self
        }
    }

    fn sample(&self, load: Load) -> Sample {
        let mut sample = Sample { seconds: 1.0, ..Sample::default() };
        sample.machine.busy = Some(load.others + 1.5);
        let disks = |read: f64| Some([(DISK, Rates { read: Some(read * MIB), write: Some(0.0) })].into());
        let of = |cpus: f64, read: f64| GroupRates {
            cpus: Some(cpus),
            disks: disks(read),
            throttled_ms_per_s: Some(50.0),
            ..GroupRates::default()
        };
        let mut web = of(load.others, 5.0);
        web.pressure_pct[2] = Some(if self.who == Who::Disks { 30.0 * load.harm } else { 0.0 });
        sample.groups = [("web", web), ("etl", of(1.0, 300.0)), ("batch", of(0.5, 100.0))]
            .map(|(name, rates)| (name.to_owned(), rates.into()))
            .into();
        sample
    }

    fn decide(&mut self, sample: &Sample, load: Load) {
        let Some(round) = &self.round else { return };
        let planned = &round.planned;
        let beside = siblings::of(&mut self.host, planned);
        let by_memory = |who: &[Who]| who.contains(&self.who);
        let probe = by_memory(&[Who::Latency, Who::Period])
            .then_some(ProbeWaits { blamed_ms_per_s: Some(400.0 * load.harm), ..ProbeWaits::default() });
        let short = by_memory(&[Who::LowMemory, Who::NodeKill]);
        let available = Bytes(if short { ((1.0 - load.harm) * 8.0 * GIB as f64) as u64 } else { 8 * GIB });
        let full = by_memory(&[Who::Freeze, Who::Queue, Who::Kill]);
        let held = Bytes(if full { (load.harm * 1.2 * GIB as f64) as u64 } else { 0 });
        let processes = [
            Process { pid: 71, start: 1, held: Bytes(GIB / 2), dying: false },
            Process { pid: 72, start: 1, held: Bytes(GIB / 4), dying: false },
        ];
        self.decided = self.controllers.decide(&Observation {
            now_ms: self.now_ms,
            machine: &self.reconciler.survey.machine,
            settings: Settings {
                headroom: self.who.headroom(),
                io: self.who == Who::Disks,
                specs: &self.specs,
            },
            in_force: InForce {
                desired: &planned.desired,
                yields: true,
                declined: &planned.plan.declined,
                beside: (self.who == Who::Weights).then_some(&beside),
                shared: &BTreeSet::new(),
            },
            measured: Measurements {
                sample,
                probe,
                starved: &BTreeMap::new(),
                run_delay_ms_per_s: None,
                available: Some(available),
                held: &|_| Some(held),
                list: &|_| processes.to_vec(),
            },
        });
    }

    /// Makes one tick; returns the lines of the audit log, after comparing each with the writes and with `explain`.
    fn tick(&mut self, load: Load) -> Vec<Action> {
        self.now_ms += 1_000;
        let sample = self.sample(load);
        self.decide(&sample, load);
        let at = format!("{} ms", self.now_ms);
        let kills = std::mem::take(&mut self.decided.kill);
        let mut actions: Vec<Action> =
            kills.iter().map(|kill| kill.action("killed".to_owned(), &at)).collect();
        actions.extend(self.decided.queues(&self.holding, &at));
        self.holding = self.decided.held.keys().cloned().collect();
        let before = self.host.mutations().len();
        let decided = &self.decided;
        let adjust = |desired: &mut DesiredState| decided.adjust(desired);
        let request = PlanRequest { adjust: &adjust, kept: true, ..PlanRequest::all(&self.specs) };
        let mut round = self.reconciler.round(&mut self.host, self.now_ms, &request).unwrap();
        assert!(round.problems.is_empty(), "{:?}", round.problems);
        let changes = std::mem::take(&mut round.changes);
        for change in &changes {
            // A value that a controller decided is never written without a reason in the audit log.
            let decides = change.setting.and_then(|setting| {
                let group = change.group.as_deref()?;
                let key = (GroupName::new(group).ok()?, key_of(setting.0, setting.1)?);
                self.decided.why.get(&key)
            });
            let action = self.decided.action(change.clone(), &at);
            assert!(decides.is_none() || action.reason.is_some(), "{action:?}");
        }
        actions.extend(changes.into_iter().map(|change| self.decided.action(change, &at)));
        self.within_reach(&actions);
        let mut fixed = view::fixed(&round.planned);
        let machine = &self.reconciler.survey.machine;
        let mut shown = view::of(machine, Some(&round.planned), &fixed, &sample);
        shown.controllers.clone_from(&self.decided.shown);
        view::explain(&mut shown.groups, &self.decided, &mut fixed);
        self.every_write_is_told(before, &actions);
        for action in &actions {
            self.holds(action, &shown);
        }
        self.round = Some(round);
        actions
    }

    fn every_write_is_told(&self, before: usize, actions: &[Action]) {
        let members = ["/web/", "/etl/", "/etl2/", "/batch/", "/commensal-"];
        for one in &self.host.mutations()[before..] {
            if one.operation != "write" || !members.iter().any(|member| one.path.contains(member)) {
                continue;
            }
            let told = actions.iter().any(|action| {
                let (cgroup, file) = action.what.split_once(' ').unwrap_or_default();
                !action.why.is_empty() && one.path.ends_with(&format!("{cgroup}/{file}"))
            });
            let structure = one.path.ends_with("cgroup.subtree_control") || one.path.contains("probe");
            assert!(told || structure, "{one:?} is in none of {actions:?}");
        }
    }

    /// Checks that `commensal plan` lists every decision: the file, and a range that contains the value.
    fn within_reach(&mut self, actions: &[Action]) {
        let settings = Compiled {
            groups: self.specs.clone(),
            headroom: self.who.headroom(),
            weights: self.who == Who::Weights,
            io: self.who == Who::Disks,
        };
        // Plan as `commensal plan` does, without decisions.
        let plain = PlanRequest { kept: true, ..PlanRequest::all(&self.specs) };
        let survey = &self.reconciler.survey;
        let fresh = self.reconciler.instance.plan(&mut self.host, survey, &plain).unwrap();
        let told = reach(&mut self.host, &fresh, &survey.machine, &settings);
        for action in actions.iter().filter(|action| action.reason.is_some()) {
            let (file, new) =
                (action.what.rsplit(' ').next().unwrap_or_default(), action.new.clone().unwrap());
            let of = |one: &&Reach| {
                Some(one.group.as_str()) == action.group.as_deref()
                    && (one.what == file
                        || (one.what.contains("(period)") && action.why.contains("period is")))
            };
            if action.what.starts_with("process ") || file == "queue" || new == "no limit" {
                continue;
            }
            let derived = action.reason.as_ref().and_then(snapshot::Explanation::derive).unwrap();
            let value = match new.parse::<CpuSet>() {
                Ok(set) if file == "cpuset.cpus" => set.len() as f64,
                _ if file == "cpu.shares" || action.why.contains("period is") => new.parse().unwrap(),
                _ => derived,
            };
            let holds = |one: &Reach| value >= one.from - 1e-6 && one.to.is_none_or(|to| value <= to + 1e-6);
            let rows: Vec<&Reach> = told.iter().filter(of).collect();
            assert!(rows.iter().any(|one| holds(one)), "{action:?} is in none of {told:?}");
        }
    }

    /// Checks that the formula of the reason results in the written value, and that `explain` shows the same.
    fn holds(&self, action: &Action, shown: &snapshot::Snapshot) {
        assert!(!action.why.is_empty(), "{action:?}");
        let Some(reason) = &action.reason else { return };
        assert!(!reason.rule.is_empty() && action.why.ends_with(&reason.rule), "{action:?}");
        let new = action.new.as_deref().unwrap_or_default();
        let what = action.what.as_str();
        if what == "queue" {
            let inputs: Vec<_> = reason.inputs.iter().map(|one| (one.name.as_str(), one.value)).collect();
            let values = commensal_core::control::formula::evaluate(&reason.formula, &inputs).unwrap();
            assert_eq!(values[0], ("queue_held", f64::from(u8::from(new == "held"))), "{action:?}");
            return;
        }
        if what.starts_with("process ") {
            assert!(reason.formula.contains("kill = ") && reason.rule.contains("is killed"), "{action:?}");
            assert!(reason.derive().is_some(), "{action:?}");
            return;
        }
        let derived = reason.derive().unwrap_or_else(|| panic!("no value: {action:?}"));
        let number = || new.parse::<f64>().unwrap_or_else(|_| panic!("no number: {action:?}"));
        let (key, within) = if what.ends_with("cpuset.cpus") {
            let set: CpuSet = new.parse().unwrap();
            ("cpu.set", (set.len() as f64 - derived).abs())
        } else if what.ends_with("period_us") || action.why.contains("the quota's period is") {
            ("cpu.max.period", (number() - derived * 1e3).abs())
        } else if what.ends_with("quota_us") || what.ends_with("cpu.max") {
            let every = action.why.split_once("us of every ").and_then(|(_, rest)| rest.split(' ').next());
            // The reason for lifting a quota contains no period.
            let Some(period) = every.and_then(|us| us.parse::<f64>().ok()) else { return };
            let least = commensal_core::units::QUOTA_MIN_US as f64;
            // The quota is rounded down to millionths of a CPU, and then to microseconds.
            ("cpu.max", ((derived * period).max(least) - number()).abs() - 1.0 - period / 1e6)
        } else if what.ends_with("cpu.shares") {
            ("cpu.weight", (number() - (derived * 1_024.0 / 100.0).round()).abs() - 1.0)
        } else if what.ends_with("cpu.weight") {
            ("cpu.weight", (number() - derived).abs())
        } else if what.ends_with("freezer.state") || what.ends_with("cgroup.freeze") {
            let on = f64::from(u8::from(new == "1" || new == "FROZEN"));
            ("frozen", (on - derived).abs())
        } else if let Ok(rate) = new.parse::<f64>() {
            ("io.read on 254:0", (rate - derived).abs() - 1.0)
        } else {
            return;
        };
        assert!(within <= 1e-6, "{derived} is not {new}: {action:?}");
        let Some(explained) = action.group.as_deref().and_then(|name| explain(shown, name)) else { return };
        if let Some(limit) = explained.limits.iter().find(|limit| limit.key == key) {
            assert_eq!(limit.derived, Some(derived), "{limit:?}");
        }
    }
}

const CALM: Load = Load { others: 1.0, harm: 0.0 };
const HARM: Load = Load { others: 2.0, harm: 1.0 };
const LESS: Load = Load { others: 4.5, harm: 0.6 };

/// Makes ticks, and asserts that the controller has acted and its reason is in the audit log.
fn acts(node: &mut Node, loads: &[Load], phase: &str) -> Vec<Action> {
    let mut all = Vec::new();
    for load in loads {
        all.extend(node.tick(*load));
    }
    let key = node.who.key();
    let of = |action: &Action| {
        let by_file = match node.who {
            Who::Frame => action.what.ends_with("cpuset.cpus"),
            Who::Suppress | Who::Latency => {
                action.what.ends_with("quota_us") || action.what.ends_with("cpu.max")
            }
            Who::Period => action.why.contains("the quota's period is"),
            Who::Weights => action.what.ends_with("cpu.shares") || action.what.ends_with("cpu.weight"),
            Who::Freeze | Who::LowMemory => {
                action.what.ends_with("freezer.state") || action.what.ends_with("cgroup.freeze")
            }
            Who::Disks => action.what.contains("read_bps") || action.what.ends_with("io.max"),
            Who::Queue | Who::Kill | Who::NodeKill => action.what.starts_with(&key),
        };
        by_file && action.reason.is_some()
    };
    let v1 = node.v1;
    let shown: Vec<_> = all.iter().map(|action| (&action.what, &action.new, &action.why)).collect();
    assert!(all.iter().any(of), "{:?}, v1 {v1}, {phase}: {shown:?}", node.who);
    all.into_iter().filter(of).collect()
}

// promise 28
#[test]
fn every_write_has_a_reason_that_gives_its_value() {
    for v1 in [true, false] {
        for who in ALL_OF_THEM {
            let mut node = node(v1, who);
            // The first round takes place before any measurement.
            node.tick(CALM);
            let long = |load: Load| vec![load; if who == Who::Period { 26 } else { 4 }];
            acts(&mut node, &long(HARM), "first");
            let later: Vec<Load> = match who {
                // The controller kills another process, or releases a frozen or limited group.
                Who::Kill | Who::NodeKill => vec![HARM; 3],
                Who::Weights => {
                    let (file, weight) = if v1 {
                        ("/sys/fs/cgroup/cpu/shell/cpu.shares", "4096")
                    } else {
                        ("/sys/fs/cgroup/shell/cpu.weight", "400")
                    };
                    node.host.set_file(file, weight);
                    vec![HARM; 3]
                }
                _ => [vec![LESS; 4], vec![CALM; 40], long(HARM), long(LESS)].concat(),
            };
            acts(&mut node, &later, "later");
            node.specs = who.groups(true);
            let again = [vec![CALM; 40], long(HARM), long(LESS)].concat();
            // A value that does not change with other groups is not written again.
            if !matches!(who, Who::Weights | Who::Period | Who::Kill | Who::NodeKill) {
                acts(&mut node, &again, "after a reload");
            } else {
                node.tick(HARM);
            }
            let mut node = node.replaced();
            node.tick(CALM);
            acts(&mut node, &long(HARM), "after a hand-over");
            // A value that no controller decides any more is restored, and the audit log has a line about that.
            node.specs.clear();
            node.tick(CALM);
        }
    }
}

/// A container's own quota of 150000 once became 10000 without an explanation.
// promise 28
#[test]
fn the_first_quota_says_that_it_begins_at_its_floor() {
    let mut node = node(true, Who::Suppress);
    node.tick(CALM);
    let first = acts(&mut node, &[CALM], "first");
    let batch = first.iter().find(|action| action.group.as_deref() == Some("batch")).unwrap();
    assert_eq!(batch.old.as_deref(), Some("150000"));
    assert!(
        batch.why.contains("the quota begins at the value that was in force, but at least at its floor"),
        "{batch:?}"
    );
    let reason = batch.reason.as_ref().unwrap();
    let of = |name: &str| reason.inputs.iter().find(|input| input.name == name).map(|input| input.value);
    assert_eq!((of("before"), of("floor")), (Some(0.0), Some(0.4)), "{reason:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, max_shrink_iters: 20, ..ProptestConfig::default() })]

    /// Under any load: [`Node::tick`] compares every written value with its explanation.
    // promise 28
    #[test]
    fn any_run_can_be_derived(
        who in 0..ALL_OF_THEM.len(),
        v1 in any::<bool>(),
        loads in proptest::collection::vec((0.0..9.0f64, 0.0..1.0f64), 1..25),
        hand_over in 0usize..30,
    ) {
        let mut node = node(v1, ALL_OF_THEM[who]);
        for (index, (others, harm)) in loads.into_iter().enumerate() {
            if index == hand_over {
                node = node.replaced();
            }
            node.tick(Load { others, harm });
        }
    }
}
