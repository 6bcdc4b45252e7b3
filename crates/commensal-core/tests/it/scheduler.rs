//! What a plan tells the sched_ext scheduler: which groups, with which numbers, and when nothing at all.

use crate::{machine, tree};
use commensal_core::actual::{ActualState, CORE_SCHED, Capabilities, SCHED_EXT, SMT, Support};
use commensal_core::config;
use commensal_core::desired::{DesiredState, resolve};
use commensal_core::group::Class;
use commensal_core::knob::KnobId;
use commensal_core::plan::{Action, Plan, plan, undo};
use commensal_core::scheduler::{Mode, Order, Orders, Quota, Scheduler};

/// A scheduler that is `running`, `frozen`, or not to be used for the reason that is given.
pub fn found(actual: &mut ActualState, caps: &mut Capabilities, text: &str) {
    caps.features.insert(SCHED_EXT, Support::Yes);
    let mode = match text {
        "running" => Some(Mode::Running),
        "frozen" => Some(Mode::Frozen),
        _ => None,
    };
    let obstacle = mode.is_none().then(|| text.to_owned());
    let orders = Orders { owner: "commensal".to_owned(), ..Orders::default() };
    actual.scheduler = Some(Scheduler { socket: "/state/sched.sock".into(), mode, obstacle, orders });
}

/// A machine with a scheduler, the groups on it, and what is planned.
struct World {
    actual: ActualState,
    caps: Capabilities,
    desired: DesiredState,
}

impl World {
    fn new(layout: &str, groups: &str, there: &str) -> World {
        World::with(&format!("layout {layout}\nscheduler running"), groups, there)
    }

    fn with(text: &str, groups: &str, there: &str) -> World {
        let (machine, mut actual, caps, options) = machine(text);
        tree(there, &mut actual);
        let specs = config::parse("groups.toml", groups).unwrap();
        let desired = resolve(&specs, &machine, &actual, &options).unwrap();
        World { actual, caps, desired }
    }

    fn plan(&self) -> Plan {
        plan(&self.desired, &self.actual, &self.caps)
    }

    fn in_force(&mut self) -> &mut Orders {
        &mut self.actual.scheduler.as_mut().unwrap().orders
    }

    /// What the plan orders, and its step by number.
    fn ordered(&self) -> Option<(usize, Orders)> {
        let steps = self.plan().steps;
        let mut found = steps.iter().enumerate().filter_map(|(index, step)| match &step.action {
            Action::Order { to, .. } => Some((index, to.clone())),
            _ => None,
        });
        let first = found.next();
        assert!(found.next().is_none(), "one step at most");
        first
    }
}

fn offline(weight: Option<u64>, limit: Option<(u64, u64)>) -> Order {
    let limit = limit.map(|(quota_us, period_us)| Quota { quota_us, period_us });
    Order { class: Class::Offline, expel: false, weight, limit }
}

fn online(expel: bool) -> Order {
    Order { class: Class::Online, expel, weight: None, limit: None }
}

const OWN: &str = "[group.web]\nclass = \"online\"\n[group.etl]\nclass = \"offline\"\ncpu.weight = 50\ncpu.max = \"1 core\"\n";
const ETL: &str = "/sys/fs/cgroup/commensal-offline/etl";

#[test]
fn own_groups_come_last_and_only_once() {
    let mut world = World::new("v2", OWN, "");
    let (at, orders) = world.ordered().unwrap();
    let steps = world.plan().steps;
    let idle =
        steps.iter().position(|step| matches!(&step.action, Action::Write { knob: KnobId::CpuIdle, .. }));
    assert!(idle.unwrap() < at, "what holds without the scheduler comes first");
    assert_eq!(orders.owner, "commensal");
    let want = [
        (ETL.to_owned(), offline(Some(50), Some((100_000, 100_000)))),
        ("/sys/fs/cgroup/commensal-online/web".to_owned(), online(false)),
    ];
    assert_eq!(orders.groups, want.into());
    // Taken back, what was in force before is again.
    let back = undo(&steps[at..=at]);
    assert!(matches!(&back[0].action, Action::Order { from, to } if *from == orders && to.groups.is_empty()));
    *world.in_force() = orders;
    assert_eq!(world.ordered(), None);
    // Limits are told when they change.
    world.desired.groups[0]
        .limits
        .set(commensal_core::limit::CPU_MAX, commensal_core::units::MicroCpus(500_000));
    let (_, orders) = world.ordered().unwrap();
    assert_eq!(orders.groups[ETL].limit, Some(Quota { quota_us: 50_000, period_us: 100_000 }));
}

/// On its own cgroup, class takes the weight's place: the scheduler gets the one that was there, before and after the write.
#[test]
fn a_weight_that_class_takes_away_is_not_lost() {
    let group =
        |more: &str| format!("[group.etl]\nclass = \"offline\"\nmatch = [{{ cgroup = \"/batch\" }}]\n{more}");
    let check = |layout: &str, there: &str, more: &str, want: Option<u64>| {
        let world = World::new(layout, &group(more), there);
        let (_, orders) = world.ordered().unwrap();
        let order = orders.groups.values().next().unwrap();
        assert_eq!(order.weight, want, "{layout} {there}");
    };
    check("v2", "/batch cpu.idle=0 cpu.weight=300", "", Some(300));
    check("v2", "/batch cpu.idle=1 cpu.weight=1 was:cpu.weight=300 was:cpu.idle=0", "", Some(300));
    check("v2", "/batch cpu.idle=0 cpu.weight=100", "", None);
    check("v2", "/batch cpu.idle=1 cpu.weight=1 was:cpu.idle=0", "", None);
    check("v2", "/batch cpu.idle=0 cpu.weight=300", "cpu.weight = 20\n", Some(20));
    check("v1", "/batch cpu.idle=0 cpu.shares=512", "", Some(50));
    check("v1", "/batch cpu.idle=1 cpu.shares=3 was:cpu.shares=512 was:cpu.idle=0", "", Some(50));
}

#[test]
fn the_smallest_weight_underneath_is_not_the_share_among_offline_groups() {
    let group = "[group.etl]\nclass = \"offline\"\nmatch = [{ cgroup = \"/docker/x\" }]\n";
    for there in
        ["/docker +cpu\n/docker/x cpu.weight=100", "/docker +cpu\n/docker/x cpu.weight=1 was:cpu.weight=100"]
    {
        let world = World::new("v2", group, there);
        let (_, orders) = world.ordered().unwrap();
        assert_eq!(orders.groups["/sys/fs/cgroup/docker/x"].weight, Some(100), "{there}");
    }
}

/// The scheduler's class is below the others wherever the group is; what is underneath is not, and that is said.
#[test]
fn class_holds_anywhere_and_the_rest_is_told() {
    let groups = "[group.web]\nclass = \"online\"\nmatch = [{ cgroup = \"/web\" }]\n\
                  [group.etl]\nclass = \"offline\"\ncpu.weight = 10\nmatch = [{ cgroup = \"/docker/x\" }]\n";
    let there = "/web\n/docker\n/docker/x cpu.weight=100";
    let mut world = World::new("v2", groups, there);
    world.actual.cgroups.iter_mut().for_each(|(_, group)| {
        group.subtree = [commensal_core::knob::Controller::Cpu].into();
    });
    let with = world.plan();
    assert!(with.unmet.is_empty(), "{:?}", with.unmet);
    let notes = with.notes.join("\n");
    for words in [
        "/docker/x yields to /web only while the scheduler is loaded",
        "the scheduler applies cpu.weight = 10",
    ] {
        assert!(notes.contains(words), "{notes}");
    }
    let mechanisms: Vec<_> = with.mechanisms.values().map(|mechanism| mechanism.describe()).collect();
    assert_eq!(mechanisms, ["sched_ext scheduler, smallest weight underneath"]);
    // It has gone since: the plan is the one without it, and says why.
    let mut gone = world;
    gone.actual.scheduler.as_mut().unwrap().obstacle = Some("not loaded".to_owned());
    let without = gone.plan();
    assert!(
        without.unmet.iter().any(|unmet| unmet.because.contains("/docker with /web")),
        "{:?}",
        without.unmet
    );
    assert!(without.steps.iter().all(|step| !matches!(step.action, Action::Order { .. })));
    // Nobody has asked: as without.
    gone.actual.scheduler = None;
    assert_eq!(gone.plan(), without);
}

#[test]
fn online_groups_expel_when_an_offline_one_is_to_be_expelled() {
    let groups = OWN.replace("cpu.weight = 50", "expel = true");
    let mut world = World::new("v2", &groups, "");
    let of_web =
        |world: &World| world.ordered().unwrap().1.groups["/sys/fs/cgroup/commensal-online/web"].clone();
    // Without siblings there is nobody to expel.
    assert_eq!(of_web(&world), online(false));
    world.caps.features.insert(SMT, Support::Yes);
    assert_eq!(of_web(&world), online(true));
    assert!(world.plan().unmet.is_empty() && world.plan().cookies.is_empty());
    // The one that is not isolated now expels nobody and is expelled by nobody.
    world.desired.groups[0].exposed = true;
    assert_eq!(world.ordered().unwrap().1.groups.len(), 1);
    assert_eq!(of_web(&world), online(false));
    let alone = groups.split_once("[group.etl]").unwrap().1;
    let mut world = World::new("v2", &format!("[group.etl]{alone}"), "");
    world.caps.features.insert(SMT, Support::Yes);
    let unmet = world.plan().unmet;
    assert!(unmet.len() == 1 && unmet[0].because.contains("none is declared here or in force"), "{unmet:?}");
    // A command beside a service that is in force, and expels.
    world.desired.alone = true;
    world.in_force().groups = [("/sys/fs/cgroup/web".to_owned(), online(false))].into();
    assert_eq!(world.plan().unmet.len(), 1);
    world.in_force().groups = [("/sys/fs/cgroup/web".to_owned(), online(true))].into();
    assert!(world.plan().unmet.is_empty());
    assert_eq!(world.ordered().unwrap().1.groups["/sys/fs/cgroup/web"], online(true));
}

/// Without core scheduling the way to a free sibling is to load it, where the kernel can have it.
#[test]
fn expelling_without_core_scheduling_names_the_scheduler() {
    let groups = OWN.replace("cpu.weight = 50", "expel = true");
    let mut world =
        World::with("layout v2\nscheduler not loaded; `commensal sched load` loads it", &groups, "");
    world.caps.features.insert(SMT, Support::Yes);
    let off = Support::No { because: "CONFIG_SCHED_CORE is off".to_owned() };
    world.caps.features.insert(CORE_SCHED, off);
    let unmet = |world: &World| {
        let unmet = world.plan().unmet;
        assert!(unmet.len() == 1 && unmet[0].because.contains("CONFIG_SCHED_CORE is off"), "{unmet:?}");
        unmet[0].try_this.clone()
    };
    let told = unmet(&world);
    assert!(told.contains("`commensal sched load`") && told.contains("cpu.set"), "{told}");
    let because = "CONFIG_SCHED_CLASS_EXT is off".to_owned();
    world.caps.features.insert(SCHED_EXT, Support::No { because });
    assert_eq!(unmet(&world), "set cpu.set to whole cores instead");
}

/// A command is a part of what is in force, everything else is not for it to end.
#[test]
fn a_part_adds_and_the_whole_replaces() {
    let others: Orders = Orders {
        groups: [("/sys/fs/cgroup/other".to_owned(), offline(None, None))].into(),
        owner: "commensal".to_owned(),
        hold_off_us: 70,
    };
    let mut world = World::with("layout v2\nrun etl\nscheduler running", OWN, "");
    world.desired.alone = true;
    *world.in_force() = others.clone();
    let (_, orders) = world.ordered().unwrap();
    assert_eq!((orders.groups.len(), orders.hold_off_us), (3, 70));
    world.desired.alone = false;
    let (_, orders) = world.ordered().unwrap();
    assert_eq!((orders.groups.len(), orders.hold_off_us), (2, 70));
    // A group of ours that is in use stays as it is, though nobody asks for it any more.
    let mut world = World::new(
        "v2",
        "[group.new]\nclass = \"offline\"\n",
        "/commensal-offline ours\n/commensal-offline/etl ours populated\n/commensal-offline/old ours",
    );
    *world.in_force() = Orders {
        groups: [ETL, "/sys/fs/cgroup/commensal-offline/old"]
            .map(|path| (path.to_owned(), offline(None, None)))
            .into(),
        ..others
    };
    let (_, orders) = world.ordered().unwrap();
    assert_eq!(
        orders.groups.keys().collect::<Vec<_>>(),
        ["/sys/fs/cgroup/commensal-offline/etl", "/sys/fs/cgroup/commensal-offline/new"]
    );
}

/// A group that an agent keeps is the agent's to order, with or without its class.
#[test]
fn a_command_that_joins_an_agents_group_orders_nothing() {
    let there = "/commensal-offline ours\n/commensal-offline/etl ours";
    let mut world =
        World::with("layout v2\nrun etl\nscheduler running", &OWN[OWN.find("[group.etl]").unwrap()..], there);
    (world.desired.alone, world.desired.kept) = (true, world.actual.ours.created.clone());
    assert_eq!(world.ordered(), None);
    *world.in_force() = Orders {
        groups: [(ETL.to_owned(), offline(Some(7), None))].into(),
        owner: "commensal".to_owned(),
        hold_off_us: 0,
    };
    assert_eq!(world.ordered(), None);
}

/// What the scheduler's guard has frozen is neither thawed nor anybody's mistake.
#[test]
fn its_guards_freezing_is_left_alone() {
    let there = "/commensal-offline ours\n/commensal-offline/etl ours cgroup.freeze=1";
    let groups = "[group.etl]\nclass = \"offline\"\n";
    let mut world = World::new("v2", groups, there);
    world.in_force().groups = [(ETL.to_owned(), offline(None, None))].into();
    let thaws = |world: &World| {
        let steps = world.plan().steps;
        steps.iter().any(|step| matches!(step.action, Action::Write { knob: KnobId::CgroupFreeze, .. }))
    };
    assert!(thaws(&world), "left by somebody else");
    world.actual.scheduler.as_mut().unwrap().mode = Some(Mode::Frozen);
    assert!(!thaws(&world));
    // One that is not under its orders is not its work.
    world.in_force().groups.clear();
    assert!(thaws(&world));
}
