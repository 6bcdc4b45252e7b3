//! Tests of the controllers on a fake machine.

use super::*;
use commensal_core::actual::{Capabilities, CgroupPath, CgroupRef};
use commensal_core::config::parse;
use commensal_core::control::io::Rates;
use commensal_core::knob::Value;
use commensal_core::limit::{CPU_WEIGHT, IO_READ, IO_WEIGHT};
use commensal_core::plan::plan;
use commensal_host::Host;
use commensal_host::fake::FakeHost;
use commensal_reconcile::{Instance, PlanRequest, Planned};
use std::path::Path;

const DISK: Device = Device { major: 254, minor: 0 };
const MIB: f64 = 1_048_576.0;
const GROUPS: &str = "[group.web]\nclass = \"online\"\nmatch = [{ cgroup = \"/web\" }]\n\
    [group.etl]\nclass = \"offline\"\nmatch = [{ cgroup = \"/etl\" }]\n\
    [group.batch]\nclass = \"offline\"\nio.read = \"20 MiB/s\"\nmatch = [{ cgroup = \"/batch\" }]\n";

/// A machine with one disk, and groups of which only the named ones have a cgroup.
struct World {
    specs: Vec<GroupSpec>,
    planned: Planned,
    machine: Machine,
    sample: Sample,
    controllers: Controllers,
    declined: BTreeMap<(GroupName, KnobId), String>,
    shared: BTreeSet<Device>,
    beside: BTreeMap<GroupName, WeightInput>,
    starved: BTreeMap<GroupName, Starved>,
    headroom: Headroom,
    now_ms: u64,
}

fn name(text: &str) -> GroupName {
    GroupName::new(text).unwrap()
}

fn world(cgroups: &[&str]) -> World {
    let mut host = FakeHost::v2(4, 8 << 30);
    let root = host.open(Path::new("/sys/fs/cgroup")).unwrap();
    for cgroup in cgroups {
        host.mkdir(root, cgroup).unwrap();
    }
    let instance = Instance::new(Path::new("/state"));
    let survey = instance.survey(&mut host).unwrap();
    let specs = parse("groups.toml", GROUPS).unwrap();
    let planned = instance.plan(&mut host, &survey, &PlanRequest::all(&specs)).unwrap();
    World {
        specs,
        planned,
        machine: Machine::simple(4, Bytes(8 << 30)),
        sample: Sample { seconds: 1.0, ..Sample::default() },
        controllers: Controllers::default(),
        declined: BTreeMap::new(),
        shared: BTreeSet::new(),
        beside: BTreeMap::new(),
        starved: BTreeMap::new(),
        headroom: Headroom::Off,
        now_ms: 0,
    }
}

impl World {
    fn reads(&mut self, group: &str, mib_per_s: f64, pressure_pct: Option<f64>) {
        let disk = Rates { read: Some(mib_per_s * MIB), write: Some(0.0) };
        let rates = GroupRates {
            disks: Some([(DISK, disk)].into()),
            pressure_pct: [None, None, pressure_pct],
            ..GroupRates::default()
        };
        self.sample.groups.insert(group.to_owned(), rates.into());
    }

    fn decide(&mut self) -> (Decided, DesiredState) {
        self.now_ms += 1_000;
        let decided = self.controllers.decide(&Observation {
            now_ms: self.now_ms,
            machine: &self.machine,
            settings: Settings { headroom: self.headroom, io: true, specs: &self.specs },
            in_force: InForce {
                desired: &self.planned.desired,
                yields: true,
                declined: &self.declined,
                beside: Some(&self.beside),
                shared: &self.shared,
            },
            measured: Measurements {
                sample: &self.sample,
                probe: None,
                starved: &self.starved,
                run_delay_ms_per_s: None,
                available: None,
                held: &|_| None,
                list: &|_| Vec::new(),
            },
        });
        let mut desired = self.planned.desired.clone();
        decided.adjust(&mut desired);
        (decided, desired)
    }
}

/// The group's read limit on the disk (MiB/s).
fn limit(desired: &DesiredState, group: &str) -> Option<f64> {
    let group = desired.groups.iter().find(|one| one.name.as_str() == group)?;
    group.limits.on_disk.get(&DISK)?.get(IO_READ).map(|rate| rate.0 as f64 / MIB)
}

// promise 25
#[test]
fn offline_disks_are_cut_together_and_never_above_what_was_written() {
    let mut world = world(&["web", "etl", "batch"]);
    let calm = Some(0.0);
    for (group, rate, pressure) in [("web", 5.0, calm), ("etl", 100.0, None), ("batch", 18.0, None)] {
        world.reads(group, rate, pressure);
    }
    let (_, free) = world.decide();
    assert_eq!((limit(&free, "etl"), limit(&free, "batch")), (None, Some(20.0)));
    // Online work waits longer than allowed: half of the current use remains, for both offline groups together.
    world.reads("web", 5.0, Some(15.0));
    let (decided, cut) = world.decide();
    let (etl, batch) = (limit(&cut, "etl").unwrap(), limit(&cut, "batch").unwrap());
    assert!((50.0..=59.1).contains(&(etl + batch)), "{etl} {batch}");
    assert!(batch <= 20.0 && etl > batch, "{etl} {batch}");
    assert_eq!(limit(&cut, "web"), None, "never online");
    assert!(
        decided.why.contains_key(&(name("etl"), format!("io.read on {DISK}").into())),
        "{:?}",
        decided.why
    );
    assert!(decided.shown.iter().any(|one| one.name == "disk vda" && one.value.is_some()));
    // If the kernel shares the disk by weight, no rate is set.
    world.shared.insert(DISK);
    let (decided, shared) = world.decide();
    assert!(decided.wants.disks.is_empty());
    let weight = |group: usize| shared.groups[group].limits.get(IO_WEIGHT);
    let classes: Vec<_> = shared.groups.iter().map(|group| group.class).collect();
    for (index, class) in classes.iter().enumerate() {
        assert_eq!(weight(index), (*class == Class::Offline).then_some(Weight::MIN));
    }
}

// promise 25
#[test]
fn nothing_is_cut_where_pressure_of_groups_cannot_be_had() {
    let mut world = world(&["web", "etl"]);
    for _ in 0..10 {
        world.reads("web", 5.0, None);
        world.reads("etl", 100.0, None);
        let (decided, _) = world.decide();
        assert!(decided.wants.disks.is_empty());
    }
    // Pressure was readable before, but is not readable now.
    world.reads("web", 5.0, Some(0.0));
    world.decide();
    world.reads("web", 5.0, None);
    let cut = (0..10).any(|_| !world.decide().0.wants.disks.is_empty());
    assert!(cut, "a silence is no calm");
}

// promise 23
#[test]
fn a_period_that_makes_the_quota_too_small_is_replaced_by_a_longer_one() {
    for (micro_cpus, us) in [(500_000, 10_000), (50_000, 100_000), (5_000, 200_000), (5, 1_000_000)] {
        let mut decided = Decided::default();
        decided.wants.period = Some(10_000);
        decided.wants.quotas.insert(name("etl"), MicroCpus(micro_cpus));
        let mut desired = world(&["web", "etl"]).planned.desired;
        decided.adjust(&mut desired);
        for group in &desired.groups {
            let want = (group.name == name("etl")).then_some(us);
            assert_eq!(group.limits.cpu_period, want, "{}, {micro_cpus}", group.name);
        }
    }
}

// promise 5
#[test]
fn weights_only_beside_offline_groups() {
    let beside = WeightInput { siblings: vec![Some(Weight::DEFAULT)], ..WeightInput::default() };
    for (cgroups, raised) in [(&["web", "etl"][..], true), (&["web"][..], false)] {
        let mut world = world(cgroups);
        world.beside.insert(name("web"), beside.clone());
        let (decided, desired) = world.decide();
        assert_eq!(
            decided.wants.weights.get(&name("web")).map(|weight| weight.v2()),
            raised.then_some(1_000)
        );
        let web = desired.groups.iter().find(|group| group.name == name("web")).unwrap();
        assert_eq!(web.limits.each.has(CPU_WEIGHT), raised);
        // A weight that the user wrote takes precedence.
        let web = world.specs.iter_mut().find(|spec| spec.name == name("web")).unwrap();
        web.limits.set(CPU_WEIGHT, Weight::new(7));
        let (decided, _) = world.decide();
        assert!(decided.wants.weights.is_empty());
    }
}

/// A value that only a controller chose, and that this machine cannot apply, is not unmet but reported by the
/// controller.
// promise 3
#[test]
fn a_chosen_weight_that_cannot_be_had_is_no_promise() {
    let mut world = world(&["web", "etl"]);
    world
        .beside
        .insert(name("web"), WeightInput { siblings: vec![Some(Weight::DEFAULT)], ..WeightInput::default() });
    world.shared.insert(DISK);
    let (decided, mut desired) = world.decide();
    let chosen = [(name("web"), KnobId::CpuWeight), (name("etl"), KnobId::IoWeight)];
    assert!(
        chosen
            .iter()
            .all(|(group, knob)| { decided.why.contains_key(&(group.clone(), knob.to_string().into())) })
    );
    // A user that can write only below a delegated cgroup.
    let mut actual = world.planned.actual.clone();
    (actual.confined, actual.tenancy.base) = (true, CgroupPath::new("/elsewhere"));
    let root = CgroupRef { hierarchy: 0, path: CgroupPath::root() };
    let cost = (KnobId::IoCostQos, Some(DISK));
    actual.cgroups.get_mut(&root).unwrap().values.insert(cost, Value::Number(1));
    let plan_for = |desired: &DesiredState| plan(desired, &actual, &Capabilities::everything());
    let unmet = |desired: &DesiredState| -> Vec<String> {
        plan_for(desired)
            .unmet
            .into_iter()
            .map(|unmet| unmet.what)
            .filter(|what| what.contains("weight"))
            .collect()
    };
    let declined = plan_for(&desired).declined;
    assert_eq!(unmet(&desired), Vec::<String>::new());
    assert!(chosen.iter().all(|key| declined[key].contains("only below /elsewhere")), "{declined:?}");
    world.declined = declined;
    let (decided, _) = world.decide();
    assert!(
        chosen
            .iter()
            .all(|(group, knob)| { !decided.why.contains_key(&(group.clone(), knob.to_string().into())) })
    );
    let row = decided.shown.iter().find(|row| row.name == "weights").unwrap();
    assert!(row.off.as_ref().is_some_and(|off| off.contains("only below")), "{row:?}");
    assert!(decided.wants.weights.contains_key(&name("web")), "asked for as soon as it can be had");
    // A value that the user wrote and that cannot be applied is unmet.
    desired.groups.iter_mut().for_each(|group| group.chosen.clear());
    assert_eq!(unmet(&desired), ["io.weight of /etl", "cpu.weight of /web"]);
}

#[test]
fn a_controller_that_panics_is_off_and_the_others_go_on() {
    let mut world = world(&["web", "etl"]);
    world
        .beside
        .insert(name("web"), WeightInput { siblings: vec![Some(Weight::DEFAULT)], ..WeightInput::default() });
    let mut decided = Decided::default();
    world.controllers.ask("disks", &mut decided, |_, decided| {
        decided.wants.frozen.insert(name("etl"));
        panic!("a bug");
    });
    assert!(decided.wants.frozen.is_empty(), "nothing of half a decision");
    let (decided, _) = world.decide();
    let off = decided.shown.iter().find(|one| one.name == "disks").and_then(|one| one.off.clone());
    assert!(off.is_some_and(|why| why.contains("because of a bug in this controller: a bug")));
    assert!(!decided.wants.weights.is_empty());
}

/// A starving group gets no new work until it runs again, and its frame does not shrink meanwhile.
// promise 3
#[test]
fn a_group_that_starves_keeps_its_frame_and_gets_no_new_work() {
    let mut world = world(&["web", "etl", "batch"]);
    let specs = GROUPS.replace(
        "[group.etl]\nclass = \"offline\"\n",
        "[group.etl]\nclass = \"offline\"\nqueue.max-concurrency = 2\n",
    );
    world.specs = parse("groups.toml", &specs).unwrap();
    world.headroom = Headroom::Frame;
    let cpus = |cpus: f64| GroupRates { cpus: Some(cpus), ..GroupRates::default() };
    for (group, used) in [("web", 0.5), ("etl", 2.0), ("batch", 0.0)] {
        world.sample.groups.insert(group.to_owned(), cpus(used).into());
    }
    world.sample.machine.busy = Some(2.5);
    let frame = |decided: &Decided| decided.wants.cpu_set.as_ref().unwrap().len();
    let grown = (0..60).map(|_| frame(&world.decide().0)).last().unwrap();
    assert!(grown > 1);
    // Online work is busy everywhere now, and offline work below level 0 gets nothing.
    for (group, used) in [("web", 4.0), ("etl", 0.0)] {
        world.sample.groups.insert(group.to_owned(), cpus(used).into());
    }
    world.sample.machine.busy = Some(4.0);
    let since = "2026-11-22T06:15:30Z".to_owned();
    for group in ["etl", "batch"] {
        let starved = Starved { since_ms: world.now_ms, since: since.clone(), threads: 3 };
        world.starved.insert(name(group), starved);
    }
    let mut holding = BTreeSet::new();
    for tick in 0..10 {
        let (decided, _) = world.decide();
        assert_eq!(frame(&decided), grown);
        // Only a group with a queue can be held.
        assert_eq!(decided.held.keys().collect::<Vec<_>>(), [&name("etl")]);
        let why = &decided.held[&name("etl")];
        assert!(why.rule.contains(&since), "{}", why.rule);
        assert_eq!(why.derive(), Some(1.0));
        let told = decided.queues(&holding, "now");
        assert_eq!(told.len(), usize::from(tick == 0), "{told:?}");
        holding = decided.held.keys().cloned().collect();
    }
    world.starved.clear();
    let (decided, _) = world.decide();
    assert!(decided.held.is_empty() && frame(&decided) < grown);
    let told = decided.queues(&holding, "now");
    let [action] = &told[..] else { panic!("{told:?}") };
    assert_eq!(action.new.as_deref(), Some("open"));
    assert!(action.why.contains("CPU time again"), "{action:?}");
    assert_eq!(action.reason.as_ref().and_then(snapshot::Explanation::derive), Some(0.0));
}
