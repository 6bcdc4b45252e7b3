//! Whatever is done to whatever machine, and whenever it is interrupted or refused: nothing is lost.
//!
//! A product, not a list of anecdotes: [`worlds`] x [`Act`] x fault x the n-th change x what is done next. A new kind of step or a new
//! limit is tried at every moment as soon as a world plans it, and [`every_step_and_limit_is_in_some_world`] fails until one does.

use crate::support::{STATE, restored};
use crate::{members, scheduler, together, undo, vendors};
use commensal_core::class::Mechanism;
use commensal_core::config::parse;
use commensal_core::errno::Errno;
use commensal_core::knob::KnobId;
use commensal_core::limit::{LIMITS, LimitId, Unit};
use commensal_core::plan::{Action, Step, undo};
use commensal_core::safe::safe;
use commensal_host::Host;
use commensal_host::fake::{FakeHost, VendorKernel};
use commensal_reconcile::{Instance, Outcome, PlanRequest, Planned, Reconciler, SafeRequest, enforce};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

const MEMORY: u64 = 16 << 30;

/// A kind of machine and what is put in force on it, one text after the other.
pub struct World {
    pub name: String,
    pub machine: Box<dyn Fn() -> FakeHost>,
    pub texts: Vec<String>,
}

/// What is interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// `apply` of the text with this number, after those before it.
    Apply(usize),
    /// A round of the agent with it.
    Round(usize),
    /// `restore`, with all texts put in force.
    Restore,
}

/// What happens at the n-th change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Crash,
    /// That change alone.
    Refused(Errno),
    /// That change of a cgroup and all later ones, those that take back included.
    RefusedFrom(Errno),
}

/// What an act says of itself.
#[derive(Debug)]
pub enum Said {
    /// All of it is done, by these mechanisms and but for what the plan says that it cannot have.
    Done(Vec<String>),
    /// A step was refused, and so much could not be taken back.
    Refused { why: String, left: Vec<String> },
    /// Something is not done, in words.
    Open(String),
}

/// What is done after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Restore,
    /// The act is repeated without a fault, then everything is restored.
    Again,
}

const BOTH: [Then; 2] = [Then::Restore, Then::Again];

/// All that there is to see of a machine, but for the state directory and the dead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineState {
    /// Text by path.
    pub files: BTreeMap<String, String>,
    switches: Vec<String>,
    /// By process: its groups, whether it is of the idle class, and whether threads have cookies.
    processes: BTreeMap<u32, (Vec<String>, bool, Vec<bool>)>,
    orders: String,
}

pub fn see(fake: &FakeHost) -> MachineState {
    let switches = ["/proc/sys/kernel/sched_group_identity_enabled", "/proc/sys/vm/memcg_qos_enable"];
    let read = |path: &str| fake.another().read_file(Path::new(path)).unwrap_or_default();
    let alive = fake.processes().into_iter().filter(|process| process.exit.is_none());
    let one = |process: commensal_host::fake::FakeProcess| {
        let groups = process.groups.iter().map(|group| group.display().to_string()).collect();
        (process.pid, (groups, process.idle, process.threads.values().map(|cookie| *cookie != 0).collect()))
    };
    // Once a disk was controlled by cost it has a line, and without control it says so there.
    let uncontrolled = |(path, text): (String, String)| {
        let off = path.ends_with("io.cost.qos") && text.contains("enable=0");
        (path, if off { String::new() } else { text })
    };
    let orders = commensal_sensors::scheduler::look(fake, Path::new(STATE), "commensal").orders.groups;
    MachineState {
        files: fake.snapshot().into_iter().map(uncontrolled).collect(),
        switches: switches.into_iter().map(read).collect(),
        processes: alive.map(one).collect(),
        orders: format!("{orders:?}"),
    }
}

/// Where nothing can be removed, the scratch cgroup of a survey stays until the next one, or `restore`.
pub fn without_scratch(mut state: MachineState) -> MachineState {
    let scratch = format!("/{}/", instance().scratch);
    state.files.retain(|path, _| !path.contains(&scratch));
    state
}

impl MachineState {
    /// The files of which the text is another one, or that one of the two lacks.
    pub fn differing(&self, other: &MachineState) -> BTreeSet<String> {
        let differ = |path: &&String| self.files.get(*path) != other.files.get(*path);
        self.files.keys().chain(other.files.keys()).filter(differ).cloned().collect()
    }

    /// Whether everything but the files is the same.
    pub fn same_beside_files(&self, other: &MachineState) -> bool {
        self.switches == other.switches && self.processes == other.processes && self.orders == other.orders
    }

    /// Whether the orders of the scheduler are the same.
    pub fn same_orders(&self, other: &MachineState) -> bool {
        self.orders == other.orders
    }
}

/// Says where two machines differ, instead of all that they have.
pub fn same(left: &MachineState, right: &MachineState, what: &str) {
    let lines = left
        .differing(right)
        .into_iter()
        .map(|path| format!("{path}: {:?} instead of {:?}", left.files.get(&path), right.files.get(&path)));
    let lines: Vec<String> = lines.collect();
    assert!(lines.is_empty(), "{what}\n{}", lines.join("\n"));
    assert_eq!(left, right, "{what}");
}

fn instance() -> Instance {
    Instance::new(Path::new(STATE))
}

impl Act {
    /// Does it, as the program does.
    pub fn run(self, host: &mut FakeHost, texts: &[String]) -> Said {
        let number = match self {
            Act::Apply(number) | Act::Round(number) => number,
            Act::Restore => {
                return match instance().restore(host, &[]) {
                    Ok(back) if back.left.is_empty() && back.failed.is_empty() => Said::Done(Vec::new()),
                    Ok(back) => Said::Open(format!("{back:?}")),
                    Err(error) => Said::Open(error.to_string()),
                };
            }
        };
        let specs = parse("groups.toml", &texts[number]).unwrap();
        let safe_specs = safe(&specs);
        let request = PlanRequest::all(&specs);
        if let Act::Round(_) = self {
            let safe = Some(SafeRequest { specs: &safe_specs, floor: None });
            let request = PlanRequest { safe, ..request };
            let done = Reconciler::new(instance(), host).and_then(|mut one| one.round(host, 0, &request));
            return match done {
                Ok(round) if round.problems.is_empty() => Said::Done(terms(&round.planned)),
                Ok(round) => Said::Open(round.problems.join("\n")),
                Err(error) => Said::Open(error.to_string()),
            };
        }
        let done = instance()
            .open_journal(host)
            .and_then(|mut journal| enforce(&instance(), host, &request, &mut journal));
        match done {
            Ok((planned, Outcome { failure: None, stayed, .. })) if stayed.is_empty() => {
                Said::Done(terms(&planned))
            }
            Ok((_, Outcome { failure: Some(failure), .. })) => {
                Said::Refused { why: failure.refusal.to_string(), left: failure.left }
            }
            Ok((_, outcome)) => Said::Open(outcome.stayed.join("\n")),
            Err(error) => Said::Open(error.to_string()),
        }
    }

    fn of(world: &World) -> Vec<Act> {
        let texts = 0..world.texts.len();
        texts.flat_map(|number| [Act::Apply(number), Act::Round(number)]).chain([Act::Restore]).collect()
    }

    /// How many texts are in force before it.
    fn before(self, world: &World) -> usize {
        match self {
            Act::Apply(number) | Act::Round(number) => number,
            Act::Restore => world.texts.len(),
        }
    }
}

/// What a plan says of itself: a refused trial of a survey makes it another one, by other mechanisms or with what it lacks.
pub fn terms(planned: &Planned) -> Vec<String> {
    let unmet = planned.plan.unmet.iter().map(|one| format!("{}: {}", one.group, one.what));
    let mechanisms = planned.plan.mechanisms.values().map(Mechanism::describe);
    unmet.chain(mechanisms).collect()
}

/// The machine with the first texts in force.
pub fn prepared(world: &World, texts: usize) -> FakeHost {
    let fake = (world.machine)();
    for number in 0..texts {
        let said = Act::Apply(number).run(&mut fake.another(), &world.texts);
        assert!(matches!(said, Said::Done(_)), "{}: text {number}: {said:?}", world.name);
    }
    fake
}

fn everything_back(fake: &FakeHost, before: &MachineState, what: &str) {
    let back = instance().restore(&mut fake.another(), &[]).unwrap();
    assert!(back.left.is_empty() && back.failed.is_empty(), "{what}: {back:?}");
    same(&see(fake), before, what);
    assert!(restored(&mut fake.another()).nothing(), "{what}: a second restore found something");
}

/// How an act begins and ends on a calm machine.
struct Calm {
    /// The machine before any text.
    before: MachineState,
    /// The machine before the act. What is interrupted happens to copies of it: building one anew takes as long as half of what
    /// follows.
    start: FakeHost,
    middle: MachineState,
    /// The machine after the act, by which mechanisms, and what could not be had.
    after: MachineState,
    terms: Vec<String>,
    /// Which of its changes are trials of a survey.
    trials: Vec<bool>,
}

impl Calm {
    fn of(world: &World, act: Act, before: &MachineState) -> Calm {
        let start = prepared(world, act.before(world));
        let fake = start.copy();
        let said = act.run(&mut fake.another(), &world.texts);
        let Said::Done(terms) = said else { panic!("{}: {act:?}: {said:?}", world.name) };
        let is_trial = |path: &str| path.split('/').any(|part| part == instance().scratch);
        let trials = fake.mutations().iter().map(|change| is_trial(&change.path)).collect();
        Calm { before: before.clone(), middle: see(&start), start, after: see(&fake), terms, trials }
    }

    /// Whether a trial of a survey is refused: what is believed not to be supported is planned without.
    fn refuses_trial(&self, fault: Fault, n: u32) -> bool {
        let mut from_n = self.trials.iter().skip(n as usize);
        match fault {
            Fault::Crash => false,
            Fault::Refused(_) => from_n.next().copied().unwrap_or_default(),
            Fault::RefusedFrom(_) => from_n.any(|trial| *trial),
        }
    }
}

/// One act with a fault at the n-th change, and each of what may be done next; whether the fault came.
fn once(world: &World, act: Act, (fault, n): (Fault, u32), next: &[Then], calm: &Calm) -> bool {
    let what = format!("{}: {act:?}, {fault:?} at change {n}", world.name);
    let fake = calm.start.copy();
    match fault {
        Fault::Crash => fake.crash_after(n),
        Fault::Refused(errno) => fake.fail_write(n + 1, errno),
        Fault::RefusedFrom(errno) => fake.refuse_from(n, errno),
    }
    let said = act.run(&mut fake.another(), &world.texts);
    let came = match fault {
        Fault::Crash => fake.is_crashed(),
        Fault::Refused(_) | Fault::RefusedFrom(_) => fake.mutations().len() >= n as usize,
    };
    let fake = match fault {
        Fault::Crash => fake.restart(),
        Fault::Refused(errno) | Fault::RefusedFrom(errno) => {
            // One that has not come yet is not for what follows.
            fake.fail_write(u32::MAX, errno);
            fake.refuse_nothing();
            // Who says that all is done, or that nothing is left, is right.
            match &said {
                Said::Done(terms) if *terms == calm.terms && !calm.refuses_trial(fault, n) => {
                    same(&without_scratch(see(&fake)), &calm.after, &what);
                }
                Said::Refused { why, left } if left.is_empty() => {
                    same(&without_scratch(see(&fake)), &calm.middle, &format!("{what}: {why}"));
                }
                Said::Open(why) => assert!(!why.is_empty(), "{what}: not done, and nobody says why"),
                Said::Done(_) | Said::Refused { .. } => {}
            }
            fake
        }
    };
    for (number, then) in next.iter().enumerate() {
        let what = format!("{what}, then {then:?}");
        let last = number + 1 == next.len();
        let fake = if last { fake.another() } else { fake.copy() };
        if *then == Then::Again {
            let again = act.run(&mut fake.another(), &world.texts);
            assert!(matches!(&again, Said::Done(terms) if *terms == calm.terms), "{what}: {again:?}");
            same(&see(&fake), &calm.after, &what);
        }
        everything_back(&fake, &calm.before, &what);
    }
    came
}

/// Through which combinations the moments go, each list once: all of them apart for crashes and with `PROPTEST_CASES` (as `cargo
/// xtask ci --long` has it); for refusals else all of them together, so that every moment is refused once.
fn turns(faults: &[Fault]) -> Vec<Vec<(Fault, &'static [Then])>> {
    if faults == [Fault::Crash] || std::env::var_os("PROPTEST_CASES").is_some() {
        return faults.iter().map(|fault| vec![(*fault, &BOTH[..])]).collect();
    }
    vec![faults.iter().flat_map(|fault| BOTH.chunks(1).map(|one| (*fault, one))).collect()]
}

/// All moments of all acts of a world.
fn all_moments(world: &World, faults: &[Fault]) {
    let before = see(&(world.machine)());
    for act in Act::of(world) {
        let calm = Calm::of(world, act, &before);
        let mut moments = 0;
        for (number, turn) in turns(faults).into_iter().enumerate() {
            let mut n = 0;
            // What is not the whole product takes each moment with one of the combinations, in turn.
            while {
                let (fault, next) = turn[(number + n as usize) % turn.len()];
                once(world, act, (fault, n), next, &calm)
            } {
                n += 1;
                assert!(n < 2_000, "{}: {act:?} never ends", world.name);
            }
            moments += n;
        }
        println!("{}: {act:?}: {moments} moments", world.name);
        assert!(moments > 2, "{}: {act:?}: only {moments} moments", world.name);
    }
}

/// A group with every limit that its class can have, as a text.
fn every_limit(name: &str, class: &str, place: &str, skip: &[LimitId]) -> String {
    let mut text = format!("[group.{name}]\nclass = \"{class}\"\n{place}");
    for row in LIMITS.iter().filter(|row| !skip.contains(&row.id)) {
        let needs = row.needs.filter(|id| id.row().not_online.is_some());
        if class == "online" && (row.not_online.is_some() || needs.is_some()) {
            continue;
        }
        let value = match row.unit {
            Unit::Weight => "300".to_owned(),
            Unit::Cpus => "\"50 %\"".to_owned(),
            Unit::CpuSet => "\"1-2\"".to_owned(),
            Unit::Partition => "\"root\"".to_owned(),
            Unit::Memory if row.key == "memory.max" => "\"2 GiB\"".to_owned(),
            Unit::Memory => "\"1 GiB\"".to_owned(),
            Unit::Rate => "\"100 MiB/s\"".to_owned(),
            Unit::Operations => "\"500 iops\"".to_owned(),
            Unit::Time => "\"20 ms\"".to_owned(),
            Unit::Count(least, most) => (least + (most - least).min(99)).to_string(),
            Unit::Switch => "true".to_owned(),
        };
        let _ = writeln!(text, "{} = {value}", row.key);
    }
    text
}

fn world(name: &str, texts: &[&str], machine: impl Fn() -> FakeHost + 'static) -> World {
    let texts = texts.iter().map(|text| (*text).to_owned()).collect();
    World { name: name.to_owned(), machine: Box::new(machine), texts }
}

/// Groups of our own and of somebody else, with a few limits; then with others and in the other class.
pub fn plain() -> Vec<World> {
    let other = undo::GROUPS
        .replace("class = \"offline\"\ncpu.max = \"50 %\"", "class = \"online\"\ncpu.weight = 300")
        .replace("cpu.max = \"1 core\"", "cpu.max = \"2 cores\"\nmemory.high = \"1 GiB\"");
    let kinds = ["v1", "v1, cpu and cpuacct together", "v2"];
    let of = |name: &'static str| {
        let machine = move || undo::machines().into_iter().find(|(kind, _)| *kind == name).unwrap().1;
        world(name, &[undo::GROUPS, &other], machine)
    };
    kinds.into_iter().map(of).collect()
}

/// Every limit that there is, on both classes.
pub fn limits() -> Vec<World> {
    let v1: fn() -> FakeHost = || FakeHost::v1(4, MEMORY);
    let v2: fn() -> FakeHost = || FakeHost::v2(4, MEMORY);
    let hybrid: fn() -> FakeHost = || FakeHost::hybrid(4, MEMORY);
    let of = |(name, machine): (&str, fn() -> FakeHost)| {
        // A partition takes its CPUs from everybody else, so one group at most has it.
        let skip = [LimitId::CpuPartition];
        let first = every_limit("etl", "offline", "", &skip) + &every_limit("web", "online", "", &[]);
        let second = "[group.etl]\nclass = \"offline\"\n[group.web]\nclass = \"online\"\n";
        world(&format!("every limit on {name}"), &[&first, second], machine)
    };
    [("v1", v1), ("v2", v2), ("hybrid", hybrid)].into_iter().map(of).collect()
}

/// Processes that are moved.
pub fn moved() -> Vec<World> {
    let of = |kind: &'static str| {
        world(&format!("processes on {kind}"), &[members::MEDIA], move || members::fresh(kind))
    };
    ["v1", "co-mounted", "v2", "hybrid"].into_iter().map(of).collect()
}

/// Kernels of vendors, core scheduling, and the scheduler.
fn special() -> Vec<World> {
    let with_batch = |kernel: VendorKernel| {
        move || {
            let fake = vendors::machine(kernel);
            vendors::batch(&fake);
            fake
        }
    };
    let online = vendors::BATCH.replace("offline", "online");
    let nested = together::NESTED.replace("offline", "online");
    let nested = nested.replace("cpu.max = \"10 %\"\n", "").replace("cpu.max = \"5 %\"\n", "");
    vec![
        world("openEuler", &[vendors::BATCH, &online, vendors::BATCH], with_batch(VendorKernel::OPENEULER)),
        world(
            "openEuler with five levels",
            &[vendors::BATCH, &online, vendors::BATCH],
            with_batch(vendors::FIVE),
        ),
        world(
            "openEuler, groups in groups",
            &[together::NESTED, &nested, together::NESTED],
            together::nested,
        ),
        world("Anolis", &[vendors::OWN, vendors::BATCH], with_batch(VendorKernel::ANOLIS)),
        world("core scheduling", &[vendors::EXPEL, vendors::BATCH], || vendors::with_core_scheduling().0),
        world("a scheduler", &[scheduler::OWN, vendors::OWN], || {
            let fake = FakeHost::v2(4, MEMORY);
            scheduler::load(&fake);
            fake
        }),
    ]
}

/// All of them.
pub fn worlds() -> Vec<World> {
    plain().into_iter().chain(limits()).chain(moved()).chain(special()).collect()
}

// promise 13
#[test]
fn killed_at_any_change_of_groups() {
    plain().iter().for_each(|world| all_moments(world, &[Fault::Crash]));
}

// promise 13
#[test]
fn killed_at_any_change_of_limits() {
    limits().iter().for_each(|world| all_moments(world, &[Fault::Crash]));
}

// promise 13
#[test]
fn killed_at_any_change_of_places() {
    moved().iter().for_each(|world| all_moments(world, &[Fault::Crash]));
}

// promise 13
#[test]
fn killed_at_any_change_of_special_kernels() {
    special().iter().for_each(|world| all_moments(world, &[Fault::Crash]));
}

const REFUSALS: [Fault; 4] = [
    Fault::Refused(Errno::EINVAL),
    Fault::Refused(Errno::EBUSY),
    Fault::Refused(Errno::EPERM),
    Fault::RefusedFrom(Errno::EBUSY),
];

// promise 12
#[test]
fn refused_at_any_change_of_groups() {
    plain().iter().for_each(|world| all_moments(world, &REFUSALS));
}

// promise 12
#[test]
fn refused_at_any_change_of_limits() {
    limits().iter().for_each(|world| all_moments(world, &REFUSALS));
}

// promise 12
#[test]
fn refused_at_any_change_of_places() {
    moved().iter().for_each(|world| all_moments(world, &REFUSALS));
}

// promise 12
#[test]
fn refused_at_any_change_of_special_kernels() {
    special().iter().for_each(|world| all_moments(world, &REFUSALS));
}

/// The kind of a step. A new one has no arm here, so it does not compile before somebody has thought of it.
pub fn kind(step: &Step) -> &'static str {
    match step.action {
        Action::Create => "create",
        Action::Remove => "remove",
        Action::Enable(_) => "enable",
        Action::Disable(_) => "disable",
        Action::Write { .. } => "write",
        Action::Irreversible { .. } => "irreversible",
        Action::Recreate { .. } => "recreate",
        Action::Switch { .. } => "switch",
        Action::Cookie { .. } => "cookie",
        Action::Order { .. } => "order",
        Action::Move(_) => "move",
    }
}

/// All that [`kind`] says.
pub const KINDS: [&str; 11] = [
    "create",
    "remove",
    "enable",
    "disable",
    "write",
    "irreversible",
    "recreate",
    "switch",
    "cookie",
    "order",
    "move",
];

// promise 13
#[test]
fn every_step_and_limit_is_in_some_world() {
    let (mut kinds, mut knobs) = (BTreeSet::new(), BTreeSet::<KnobId>::new());
    for world in worlds() {
        for number in 0..world.texts.len() {
            let fake = prepared(&world, number);
            let mut host = fake.another();
            let specs = parse("groups.toml", &world.texts[number]).unwrap();
            let survey = instance().survey(&mut host).unwrap();
            let planned = instance().plan(&mut host, &survey, &PlanRequest::all(&specs)).unwrap();
            let back = undo(&planned.plan.steps);
            for step in planned.plan.steps.iter().chain(&back) {
                kinds.insert(kind(step));
                if let Action::Write { knob, .. } = &step.action {
                    knobs.insert(*knob);
                }
            }
        }
    }
    let missing: Vec<&str> = KINDS.into_iter().filter(|kind| !kinds.contains(kind)).collect();
    assert_eq!(missing, [""; 0], "kinds of steps in no world");
    let untried: Vec<&str> =
        LIMITS.iter().filter(|row| !knobs.contains(&row.knob().id)).map(|row| row.key).collect();
    assert_eq!(untried, [""; 0], "limits in no world");
}
