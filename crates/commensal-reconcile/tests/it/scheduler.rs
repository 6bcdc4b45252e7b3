//! The sched_ext scheduler as a mechanism. A scheduler in memory that obeys `docs/reference/sched-control.md` responds
//! on the socket; orders are planned, applied, kept by rounds of the agent, refused, and removed, also when the
//! scheduler is unloaded.

use crate::support::{STATE, applied, planned, restored};
use commensal_core::config::parse;
use commensal_core::desired::DesiredState;
use commensal_core::group::GroupName;
use commensal_core::scheduler::protocol::{Request, Standing, Status};
use commensal_core::scheduler::{Mode, Orders};
use commensal_host::Host;
use commensal_host::fake::FakeHost;
use commensal_reconcile::{
    Instance, Outcome, PlanRequest, Planned, Reconciler, Restored, Round, apply, journal, verify,
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

const MEMORY: u64 = 8 << 30;
const KERNEL: &str = "/sys/kernel/sched_ext/state";
const LOADS: &str = "/sys/kernel/sched_ext/enable_seq";
pub const OWN: &str =
    "[group.web]\nclass = \"online\"\n[group.etl]\nclass = \"offline\"\ncpu.max = \"1 core\"\n";
const ETL: &str = "/sys/fs/cgroup/commensal-offline/etl";
const WEB: &str = "/sys/fs/cgroup/commensal-online/web";

/// The orders of the scheduler in memory, by owner, and its behaviour.
#[derive(Debug, Clone, Default)]
pub struct Told {
    mode: Mode,
    standing: Standing,
    /// The error with which it refuses all orders, if any.
    refuses: Option<String>,
    /// Whether it responds too late to orders.
    slow: bool,
    stopped: bool,
    orders: usize,
    asked: usize,
}

impl Told {
    fn loaded() -> Told {
        Told { mode: Mode::Running, ..Told::default() }
    }

    /// Returns the response; `None` if it would be too late.
    fn reply(&mut self, request: &str) -> Option<String> {
        let answer = self.answer(request);
        let late = self.stopped || self.slow && request.contains("hold_off_us");
        (!late).then(|| format!("{answer}\n"))
    }

    fn answer(&mut self, line: &str) -> Value {
        let request = Request::parse(line.lines().next().unwrap_or_default()).unwrap();
        let orders = match request {
            Request::Status => {
                self.asked += 1;
                let ejected = (self.mode != Mode::Running).then(|| "runnable task stall".to_owned());
                let orders = self.standing.clone();
                let status =
                    Status { ok: true, pid: 1, mode: self.mode, ejected, orders, ..Status::default() };
                return serde_json::to_value(status).unwrap();
            }
            Request::Orders(orders) => orders,
            other => panic!("nobody asks for {other:?}"),
        };
        self.orders += 1;
        let next = self.standing.with(orders);
        if let Some(error) = self.refuses.clone().or_else(|| next.together().err()) {
            return json!({ "ok": false, "error": error });
        }
        self.standing = next;
        json!({ "ok": true, "generation": self.orders, "threads": 0 })
    }

    /// Returns the orders of this owner, as received.
    fn orders_of(&self, owner: &str) -> Value {
        serde_json::to_value(self.standing.0.get(owner)).unwrap()
    }

    fn nobody(&self) -> bool {
        self.standing.0.is_empty()
    }
}

/// Loads a scheduler without orders; a copy of the machine has a separate one.
pub fn load(fake: &FakeHost) {
    enabled(fake, 1);
    let mut told = Told::loaded();
    fake.serve(World::socket(), move |request| told.reply(request));
}

/// Makes the kernel report a loaded scheduler, the `seq`-th since boot.
fn enabled(fake: &FakeHost, seq: u32) {
    fake.set_file(KERNEL, "enabled\n");
    fake.set_file(LOADS, &format!("{seq}\n"));
}

/// A machine whose kernel supports sched_ext, and the scheduler of its state directory.
struct World {
    fake: FakeHost,
    told: Arc<Mutex<Told>>,
}

impl World {
    fn new(fake: FakeHost) -> World {
        fake.set_file(KERNEL, "disabled\n");
        fake.set_file(LOADS, "0\n");
        World { fake, told: Arc::default() }
    }

    fn loaded() -> World {
        let world = World::new(FakeHost::v2(4, MEMORY));
        world.load(1);
        world
    }

    fn socket() -> PathBuf {
        Path::new(STATE).join("sched.sock")
    }

    fn load(&self, seq: u32) {
        enabled(&self.fake, seq);
        *self.told() = Told::loaded();
        let told = Arc::clone(&self.told);
        self.fake.serve(World::socket(), move |request| told.lock().unwrap().reply(request));
    }

    fn unload(&self) {
        self.fake.hang_up(World::socket());
        self.fake.set_file(KERNEL, "disabled\n");
    }

    fn told(&self) -> std::sync::MutexGuard<'_, Told> {
        self.told.lock().unwrap()
    }

    /// Returns the cgroups that this owner has orders for.
    fn of(&self, owner: &str) -> Vec<String> {
        let told = self.told();
        let groups = told.orders_of(owner)["groups"].clone();
        let groups = groups.as_array().cloned().unwrap_or_default();
        groups.iter().map(|group| group["cgroup"].as_str().unwrap().to_owned()).collect()
    }

    fn order(&self, cgroup: &str) -> Value {
        let told = self.told();
        let groups = told.orders_of("commensal")["groups"].as_array().unwrap().clone();
        groups.into_iter().find(|group| group["cgroup"] == cgroup).unwrap()
    }

    /// Plans as `apply` and `run` do; `own` names the group of a `run`.
    fn plan(&self, text: &str, own: Option<&str>) -> Planned {
        let specs = parse("groups.toml", text).unwrap();
        let own = own.map(|name| GroupName::new(name).unwrap()).into_iter().collect();
        let mut host = self.fake.another();
        let instance = instance();
        let survey = instance.survey(&mut host).unwrap();
        instance.plan(&mut host, &survey, &PlanRequest::with_own(&specs, &own)).unwrap()
    }

    fn apply(&self, text: &str, own: Option<&str>) -> (Planned, Outcome) {
        let name = if own.is_some() { journal::RUN } else { journal::MACHINE };
        let specs = parse("groups.toml", text).unwrap();
        let own = own.map(|name| GroupName::new(name).unwrap()).into_iter().collect();
        let mut host = self.fake.another();
        let mut journal = instance().journal(&mut host, name).unwrap();
        let request = PlanRequest::with_own(&specs, &own);
        commensal_reconcile::enforce(&instance(), &mut host, &request, &mut journal).unwrap()
    }

    fn applied(&self, text: &str, own: Option<&str>) -> String {
        let (planned, outcome) = self.apply(text, own);
        let words = planned.plan.describe(&planned.actual);
        let failure = outcome.failure.map(|failure| failure.refusal.to_string());
        assert_eq!(failure, None, "{words}");
        let again = self.plan(text, own);
        assert!(again.plan.is_empty(), "{words}again\n{}", again.plan.describe(&again.actual));
        words
    }

    fn read(&self, path: &str) -> String {
        let text = self.fake.another().read_file(Path::new(path));
        text.map_or_else(|error| error.errno.to_string(), |text| text.trim().to_owned())
    }
}

fn instance() -> Instance {
    Instance::new(Path::new(STATE))
}

fn everything_back(world: &World) -> Restored {
    let back = restored(&mut world.fake.another());
    assert!(back.failed.is_empty() && back.left.is_empty(), "{back:?}");
    assert!(restored(&mut world.fake.another()).nothing());
    back
}

#[test]
fn on_cgroup_v1_as_well() {
    for fake in [FakeHost::v1(4, MEMORY), FakeHost::v1_comounted(4, MEMORY), FakeHost::hybrid(4, MEMORY)] {
        let world = World::new(fake);
        world.load(1);
        let before = world.fake.snapshot();
        world.applied(OWN, None);
        let of = world.of("commensal");
        assert!(
            of.len() == 2 && of[0].contains("/cpu") && of[0].ends_with("/commensal-offline/etl"),
            "{of:?}"
        );
        everything_back(&world);
        assert!(world.told().nobody());
        assert_eq!(world.fake.snapshot(), before);
    }
}

// promise 55
#[test]
fn applied_ordered_and_restored() {
    let world = World::loaded();
    let before = world.fake.snapshot();
    let words = world.applied(OWN, None);
    let last = words.lines().filter(|line| line.contains("  order ")).collect::<Vec<_>>();
    assert!(last.len() == 1 && last[0].contains("none -> 1 offline, 1 online"), "{words}");
    assert_eq!(world.of("commensal"), [ETL, WEB]);
    let limit = json!({ "quota_us": 100_000, "period_us": 100_000 });
    assert_eq!(world.order(ETL), json!({ "cgroup": ETL, "class": "offline", "limit": limit }));
    assert_eq!(world.order(WEB), json!({ "cgroup": WEB, "class": "online" }));
    assert_eq!(world.read("/sys/fs/cgroup/commensal-offline/cpu.idle"), "1", "what holds without it");
    assert_eq!(world.told().orders, 1);
    let planned = world.plan(OWN, None);
    let names: Vec<String> = planned.plan.mechanisms.values().map(|one| one.describe()).collect();
    assert_eq!(names, ["sched_ext scheduler, cpu.idle underneath"]);
    // It can be verified at any time that the orders are still in force.
    let limited = world.plan(&OWN.replace("1 core", "2 cores"), None);
    let now = |world: &World| {
        let mut all = verify(&mut world.fake.another(), &limited.plan.steps, &limited.actual).into_iter();
        all.find(|one| one.file == "orders").unwrap()
    };
    assert_eq!(now(&world).read, "1 of 2 orders differ");
    // A changed limit changes one order, and the order of a removed group is removed.
    world.applied(&OWN.replace("1 core", "2 cores"), None);
    assert_eq!(world.order(ETL)["limit"]["quota_us"], 200_000);
    assert_eq!(now(&world).read, now(&world).want);
    world.told().mode = Mode::Ejected;
    assert_eq!(now(&world).read, "the scheduler is ejected");
    world.told().mode = Mode::Running;
    world.applied("[group.etl]\nclass = \"offline\"\n", None);
    assert_eq!(world.of("commensal"), [ETL]);
    let back = everything_back(&world);
    assert!(back.done.iter().any(|line| line.contains("no orders for 1 group")), "{back:?}");
    assert!(world.told().nobody());
    assert_eq!(world.fake.snapshot(), before);
}

/// Orders of other owners stay, and orders for a cgroup that another owner has orders for are refused.
#[test]
fn others_keep_theirs() {
    let world = World::loaded();
    let orders = |cgroup: &str| -> Orders {
        let groups = json!([{ "cgroup": cgroup, "class": "offline" }]);
        serde_json::from_value(json!({ "owner": "lab", "groups": groups, "hold_off_us": 3 })).unwrap()
    };
    let theirs = |world: &World| world.told().standing.0.get("lab").cloned();
    world.told().standing = Standing::default().with(orders("/x"));
    world.applied(OWN, None);
    everything_back(&world);
    assert_eq!(theirs(&world), Some(orders("/x")));
    // Orders for the same cgroup are refused like a write, and everything is as it was.
    world.told().standing = Standing::default().with(orders(ETL));
    let before = world.fake.snapshot();
    let (planned, outcome) = world.apply(OWN, None);
    let failure = outcome.failure.unwrap();
    let words = format!("{}: {}", failure.description, failure.refusal);
    assert!(words.starts_with("order    sched_ext scheduler"), "{words}");
    assert!(words.contains("refuses") && words.contains("\"commensal\" and \"lab\" both"), "{words}");
    assert!(failure.left.is_empty() && !planned.plan.is_empty(), "{:?}", failure.left);
    assert_eq!(world.fake.snapshot(), before);
    assert_eq!(theirs(&world), Some(orders(ETL)));
    assert_eq!(world.told().standing.0.len(), 1);
    assert!(restored(&mut world.fake.another()).nothing());
}

/// A command adds its group to those in force, and removes only this group when it exits.
#[test]
fn a_command_takes_only_its_own_away() {
    let world = World::loaded();
    world.applied(OWN, None);
    let nightly = "[group.nightly]\nclass = \"offline\"\n";
    let theirs = "/sys/fs/cgroup/commensal-offline/nightly";
    world.applied(nightly, Some("nightly"));
    assert_eq!(world.of("commensal"), [ETL, theirs, WEB]);
    // While a process is in the group, it stays, even if all groups are put in force again.
    let pid = world.fake.add_process(&[theirs]);
    let mut host = world.fake.another();
    let ended = commensal_reconcile::restore_own(&mut host, Path::new(STATE), journal::RUN).unwrap();
    assert!(ended.failed.is_empty(), "{ended:?}");
    assert_eq!(world.of("commensal"), [ETL, theirs, WEB]);
    world.applied(&OWN.replace("1 core", "2 cores"), None);
    assert_eq!(world.of("commensal"), [ETL, theirs, WEB]);
    world.fake.end(pid, commensal_host::Exit::Code(0));
    commensal_reconcile::restore_own(&mut host, Path::new(STATE), journal::RUN).unwrap();
    assert_eq!(world.of("commensal"), [ETL, WEB]);
    everything_back(&world);
    assert!(world.told().nobody());
}

/// If no scheduler listens on the socket, there is nothing to undo; an invalid response is reported.
// promise 55
#[test]
fn restoring_without_or_against_a_scheduler() {
    let world = World::loaded();
    world.applied(OWN, None);
    world.unload();
    everything_back(&world);
    let world = World::loaded();
    world.applied(OWN, None);
    world.told().refuses = Some("on its way out".to_owned());
    let back = restored(&mut world.fake.another());
    assert!(back.failed.len() == 1 && back.failed[0].contains("on its way out"), "{back:?}");
    // The order is still recorded, and the next restore removes it.
    world.told().refuses = None;
    everything_back(&world);
    assert!(world.told().nobody());
}

/// On kernels without sched_ext no scheduler is queried; otherwise the reason is reported.
#[test]
fn without_a_scheduler_the_plan_is_the_one_before() {
    let old = FakeHost::v2(4, MEMORY);
    let (found, plan) = planned(&mut old.another(), OWN).unwrap();
    let world = World::new(FakeHost::v2(4, MEMORY));
    let without = world.plan(OWN, None);
    assert_eq!(plan.describe(&found), without.plan.describe(&without.actual));
    let survey = instance().survey(&mut world.fake.another()).unwrap();
    let obstacle = survey.caps.feature_obstacle("sched_ext scheduler").unwrap();
    assert_eq!(obstacle, "not loaded; `commensal sched load` loads it");
    let (_, _, outcome) = applied(&mut old.another(), OWN);
    assert!(outcome.failure.is_none());
}

fn round(reconciler: &mut Reconciler, world: &World, ms: u64, text: &str) -> Round {
    let specs = parse("groups.toml", text).unwrap();
    reconciler.round(&mut world.fake.another(), ms, &PlanRequest::all(&specs)).unwrap()
}

/// The scheduler is loaded and unloaded while an agent runs: the agent notices it by reading two small files, without a
/// restart.
// promise 55
#[test]
fn an_agent_follows_it() {
    let world = World::new(FakeHost::v2(4, MEMORY));
    let mut reconciler = Reconciler::new(instance(), &mut world.fake.another()).unwrap();
    round(&mut reconciler, &world, 0, OWN);
    assert!(!reconciler.scheduler_changed(&world.fake.another()));
    world.load(1);
    assert!(reconciler.scheduler_changed(&world.fake.another()));
    let done = round(&mut reconciler, &world, 1_000, OWN);
    assert_eq!(done.changes.len(), 1, "{:?}", done.changes);
    assert!(done.changes[0].what.contains("none -> 1 offline, 1 online"), "{:?}", done.changes);
    assert_eq!(world.of("commensal"), [ETL, WEB]);
    assert!(!reconciler.scheduler_changed(&world.fake.another()));
    let calm = round(&mut reconciler, &world, 2_000, OWN);
    assert!(calm.changes.is_empty() && calm.problems.is_empty(), "{calm:?}");
    // A new scheduler with the same state directory has no orders yet.
    world.load(2);
    assert!(reconciler.scheduler_changed(&world.fake.another()));
    round(&mut reconciler, &world, 3_000, OWN);
    assert_eq!(world.of("commensal"), [ETL, WEB]);
    // Ejected: the mechanisms below it are in force, no orders are sent, and every round checks whether it is loaded
    // again.
    world.told().mode = Mode::Ejected;
    let ejected = round(&mut reconciler, &world, 4_000, OWN);
    assert!(ejected.changes.is_empty() && ejected.problems.is_empty(), "{ejected:?}");
    assert!(reconciler.scheduler_changed(&world.fake.another()));
    let names: Vec<String> = ejected.planned.plan.mechanisms.values().map(|one| one.describe()).collect();
    assert_eq!(names, ["cpu.idle"]);
    world.unload();
    let gone = round(&mut reconciler, &world, 5_000, OWN);
    assert!(gone.changes.is_empty() && gone.problems.is_empty(), "{gone:?}");
    assert_eq!(world.read("/sys/fs/cgroup/commensal-offline/cpu.idle"), "1");
}

/// Members that appear and disappear, and one whose isolation is temporarily off.
#[test]
fn members_come_and_go() {
    let world = World::loaded();
    let batch = "[group.web]\nclass = \"online\"\n\
                 [group.batch]\nclass = \"offline\"\nmatch = [{ cgroup = \"/batch*\" }]\n";
    let mut reconciler = Reconciler::new(instance(), &mut world.fake.another()).unwrap();
    round(&mut reconciler, &world, 0, batch);
    assert_eq!(world.of("commensal"), [WEB]);
    let mut host = world.fake.another();
    let root = host.open(Path::new("/sys/fs/cgroup")).unwrap();
    let one = host.mkdir(root, "batch1").unwrap();
    host.mkdir(root, "batch2").unwrap();
    round(&mut reconciler, &world, 100, batch);
    assert_eq!(world.of("commensal"), ["/sys/fs/cgroup/batch1", "/sys/fs/cgroup/batch2", WEB]);
    host.rmdir(root, "batch1", one.inode).unwrap();
    let gone = round(&mut reconciler, &world, 200, batch);
    assert!(gone.problems.is_empty(), "{:?}", gone.problems);
    assert_eq!(world.of("commensal"), ["/sys/fs/cgroup/batch2", WEB]);
    let specs = parse("groups.toml", batch).unwrap();
    let adjust = |desired: &mut DesiredState| desired.groups[0].exposed = true;
    let request = PlanRequest { adjust: &adjust, ..PlanRequest::all(&specs) };
    reconciler.round(&mut world.fake.another(), 300, &request).unwrap();
    assert_eq!(world.of("commensal"), [WEB]);
    assert_eq!(world.read("/sys/fs/cgroup/batch2/cpu.idle"), "0");
    round(&mut reconciler, &world, 400, batch);
    assert_eq!(world.of("commensal"), ["/sys/fs/cgroup/batch2", WEB]);
    everything_back(&world);
}

/// The scheduler's process is stopped or too slow: nothing blocks, and nothing is left behind.
// promise 55
#[test]
fn one_that_does_not_answer() {
    let world = World::loaded();
    let before = world.fake.snapshot();
    world.told().slow = true;
    let (_, outcome) = world.apply(OWN, None);
    let failure = outcome.failure.unwrap();
    assert!(failure.refusal.to_string().contains("timed out"), "{}", failure.refusal);
    // Orders that it carries out late are undone after them; that this has happened cannot be verified.
    assert!(failure.left.len() == 1 && failure.left[0].starts_with("order"), "{:?}", failure.left);
    assert!(world.told().nobody());
    world.told().slow = false;
    everything_back(&world);
    assert_eq!(world.fake.snapshot(), before);
    world.told().stopped = true;
    let planned = world.plan(OWN, None);
    let survey = instance().survey(&mut world.fake.another()).unwrap();
    let obstacle = survey.caps.feature_obstacle("sched_ext scheduler").unwrap();
    assert!(obstacle.contains("does not answer within"), "{obstacle}");
    let names: Vec<String> = planned.plan.mechanisms.values().map(|one| one.describe()).collect();
    assert_eq!(names, ["cpu.idle"]);
    let (_, outcome) = world.apply(OWN, None);
    assert!(outcome.failure.is_none());
    world.told().stopped = false;
    everything_back(&world);
}

/// Decisions of controllers reach the scheduler without observing the machine.
#[test]
fn a_decided_quota_is_ordered_at_once() {
    let world = World::loaded();
    let mut reconciler = Reconciler::new(instance(), &mut world.fake.another()).unwrap();
    round(&mut reconciler, &world, 0, OWN);
    let mut last = round(&mut reconciler, &world, 10, OWN);
    let asked = world.told().asked;
    let specs = parse("groups.toml", OWN).unwrap();
    let adjust = |desired: &mut DesiredState| {
        desired.groups[0]
            .limits
            .set(commensal_core::limit::CPU_MAX, commensal_core::units::MicroCpus(500_000));
    };
    let request = PlanRequest { adjust: &adjust, ..PlanRequest::all(&specs) };
    assert!(reconciler.adjust(&mut world.fake.another(), 20, &request, &mut last).unwrap());
    assert_eq!(world.order(ETL)["limit"]["quota_us"], 50_000);
    // The only query is whether it has the orders.
    assert_eq!(world.told().asked, asked + 1);
    let whole = reconciler.round(&mut world.fake.another(), 20, &request).unwrap();
    assert!(whole.changes.is_empty(), "{:?}", whole.changes);
}

/// A refusal is reported, stops nothing else, is not retried in every tick, and ends when the scheduler accepts the
/// orders.
// promise 55
#[test]
fn a_refused_order_is_told_and_tried_again_later() {
    let world = World::loaded();
    world.told().refuses = Some("too many limits".to_owned());
    let mut reconciler = Reconciler::new(instance(), &mut world.fake.another()).unwrap();
    let first = round(&mut reconciler, &world, 0, OWN);
    assert!(
        first.problems.len() == 1 && first.problems[0].contains("too many limits"),
        "{:?}",
        first.problems
    );
    assert_eq!(world.read("/sys/fs/cgroup/commensal-offline/cpu.idle"), "1", "the rest is in force");
    for ms in (100..60_000).step_by(100) {
        assert_eq!(round(&mut reconciler, &world, ms, OWN).problems.len(), 1);
    }
    let tries = world.told().orders;
    assert!((4..12).contains(&tries), "{tries}");
    // Other orders are tried immediately.
    let other = OWN.replace("1 core", "2 cores");
    round(&mut reconciler, &world, 60_000, &other);
    assert_eq!(world.told().orders, tries + 1);
    world.told().refuses = None;
    let later = round(&mut reconciler, &world, 400_000, &other);
    assert!(later.problems.is_empty(), "{:?}", later.problems);
    assert_eq!(world.order(ETL)["limit"]["quota_us"], 200_000);
}

/// The scheduler's guard freezes and thaws groups: the agent neither thaws them nor reports a second writer.
// promise 55
#[test]
fn its_guard_is_not_fought() {
    let world = World::loaded();
    let mut reconciler = Reconciler::new(instance(), &mut world.fake.another()).unwrap();
    // The agent itself has written the knob before.
    let specs = parse("groups.toml", OWN).unwrap();
    for (ms, frozen) in [(0, true), (10, false)] {
        let adjust = |desired: &mut DesiredState| {
            desired.groups[0]
                .limits
                .set(commensal_core::limit::FROZEN, frozen.then_some(commensal_core::limit::On))
        };
        let request = PlanRequest { adjust: &adjust, ..PlanRequest::all(&specs) };
        reconciler.round(&mut world.fake.another(), ms, &request).unwrap();
    }
    let freeze = format!("{ETL}/cgroup.freeze");
    assert_eq!(world.read(&freeze), "0");
    for (ms, mode, file) in [(100, Mode::Frozen, "1"), (200, Mode::Frozen, "1"), (300, Mode::Running, "0")] {
        world.told().mode = mode;
        world.fake.set_file(&freeze, file);
        let done = round(&mut reconciler, &world, ms, OWN);
        assert!(done.changes.is_empty() && done.problems.is_empty(), "{ms}: {done:?}");
        assert_eq!(world.read(&freeze), file);
        assert!(reconciler.drift(ms, &done.planned.actual).is_empty(), "{ms}");
    }
    // Frozen by another program while the scheduler runs: that is undone.
    world.fake.set_file(&freeze, "1");
    round(&mut reconciler, &world, 400, OWN);
    assert_eq!(world.read(&freeze), "0");
}

/// The owner of orders is the prefix of the groups' names: two commensals share one scheduler.
#[test]
fn two_prefixes_are_two_owners() {
    let world = World::loaded();
    world.applied(OWN, None);
    let mut host = world.fake.another();
    let lab = Instance::of_machine(Path::new(STATE), "lab");
    let specs = parse("groups.toml", OWN).unwrap();
    let survey = lab.survey(&mut host).unwrap();
    let planned = lab.plan(&mut host, &survey, &PlanRequest::all(&specs)).unwrap();
    let name = format!("{}1", journal::LAB);
    let mut journal = lab.journal(&mut host, &name).unwrap();
    assert!(apply(&mut host, &planned.plan.steps, &planned.actual, &mut journal).failure.is_none());
    assert_eq!(world.of("lab").len(), 2);
    assert_eq!(world.of("commensal"), [ETL, WEB]);
    commensal_reconcile::restore_own(&mut host, Path::new(STATE), &name).unwrap();
    assert!(world.of("lab").is_empty());
    assert_eq!(world.of("commensal"), [ETL, WEB]);
}
