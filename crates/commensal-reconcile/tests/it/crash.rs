//! Nothing is lost, whatever kind of machine is changed in whatever way, and at whatever moment that is interrupted or
//! refused.
//!
//! The tests form the product [`worlds`] x [`Act`] x fault x the n-th change x what is done next. A new kind of step or
//! a new limit is tested at every moment as soon as a world plans it, and [`every_step_and_limit_is_in_some_world`]
//! fails until one does.

use crate::support::{STATE, restored};
use crate::{levels, members, scheduler, together, undo, vendors};
use commensal_core::class::Mechanism;
use commensal_core::config::parse;
use commensal_core::errno::Errno;
use commensal_core::knob::KnobId;
use commensal_core::limit::{LIMITS, LimitId, Unit};

use commensal_core::plan::{Action, Step, undo};
use commensal_core::process::SCHED_IDLE;
use commensal_core::safe::safe;
use commensal_host::fake::{Effect, FakeHost, Trouble, VendorKernel};
use commensal_host::{Exit, Host, Scheduling};
use commensal_reconcile::journal::{self, Record, Recreating};
use commensal_reconcile::{Instance, Outcome, PlanRequest, Planned, Reconciler, SafeRequest, enforce};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

const MEMORY: u64 = 16 << 30;

/// A kind of machine, and the groups files that are put in force on it, one after the other.
pub struct World {
    pub name: String,
    pub machine: Box<dyn Fn() -> FakeHost>,
    pub texts: Vec<String>,
}

/// The operation that is interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// `apply` of the groups file with this number, after the files before it.
    Apply(usize),
    /// A round of the agent with the groups file of this number.
    Round(usize),
    /// `restore`, after all groups files were put in force.
    Restore,
}

/// The fault at the n-th change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Crash,
    /// Only that change is refused.
    Refused(Errno),
    /// That change of a cgroup and all later ones are refused, including those that undo changes.
    RefusedFrom(Errno),
}

/// The result that an act reports.
#[derive(Debug)]
pub enum Said {
    /// Everything was done; with the mechanisms used, and the requests that the plan reports as unmet.
    Done(Vec<String>),
    /// A step was refused; `left` lists the changes that could not be undone.
    Refused { why: String, left: Vec<String> },
    /// Something was not done, for this reason.
    Open(String),
}

/// The operation after the act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Restore,
    /// Repeats the act without a fault, then restores everything.
    Again,
}

const BOTH: [Then; 2] = [Then::Restore, Then::Again];

/// The whole state of a machine, except the state directory and exited processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineState {
    /// Text by path.
    pub files: BTreeMap<String, String>,
    switches: Vec<String>,
    processes: BTreeMap<u32, ProcessState>,
    orders: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ProcessState {
    groups: Vec<String>,
    /// The attributes of its threads.
    scheduling: Vec<Scheduling>,
    /// Which of its threads have cookies.
    cookies: Vec<bool>,
}

pub fn see(fake: &FakeHost) -> MachineState {
    let switches = ["/proc/sys/kernel/sched_group_identity_enabled", "/proc/sys/vm/memcg_qos_enable"];
    let read = |path: &str| fake.another().read_file(Path::new(path)).unwrap_or_default();
    let alive = fake.processes().into_iter().filter(|process| process.exit.is_none());
    let one = |process: commensal_host::fake::FakeProcess| {
        let groups = process.groups.iter().map(|group| group.display().to_string()).collect();
        let cookies = process.threads.values().map(|cookie| *cookie != 0).collect();
        let scheduling = process.scheduling.into_values().collect();
        (process.pid, ProcessState { groups, scheduling, cookies })
    };
    // A disk that was once under cost-based control keeps a line, which then reads `enable=0`.
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

/// Removes the scratch group of a survey from the state: if groups cannot be removed, it stays until the next survey or
/// `restore`.
pub fn without_scratch(mut state: MachineState) -> MachineState {
    let scratch = format!("/{}/", instance().scratch);
    state.files.retain(|path, _| !path.contains(&scratch));
    state
}

impl MachineState {
    /// Returns the files whose text differs, or that exist in only one of the two.
    pub fn differing(&self, other: &MachineState) -> BTreeSet<String> {
        let differ = |path: &&String| self.files.get(*path) != other.files.get(*path);
        self.files.keys().chain(other.files.keys()).filter(differ).cloned().collect()
    }

    /// Whether everything except the files is the same.
    pub fn same_beside_files(&self, other: &MachineState) -> bool {
        self.switches == other.switches && self.processes == other.processes && self.orders == other.orders
    }

    /// Whether the scheduler's orders are the same.
    pub fn same_orders(&self, other: &MachineState) -> bool {
        self.orders == other.orders
    }
}

/// Asserts that two machine states are equal; the message lists only the differences.
pub fn same(left: &MachineState, right: &MachineState, what: &str) {
    let lines = left
        .differing(right)
        .into_iter()
        .map(|path| format!("{path}: {:?} instead of {:?}", left.files.get(&path), right.files.get(&path)));
    let mut lines: Vec<String> = lines.collect();
    let pids: BTreeSet<&u32> = left.processes.keys().chain(right.processes.keys()).collect();
    for pid in pids {
        let (has, had) = (left.processes.get(pid), right.processes.get(pid));
        if has != had {
            lines.push(format!("process {pid}: {has:?} instead of {had:?}"));
        }
    }
    assert!(lines.is_empty(), "{what}\n{}", lines.join("\n"));
    assert_eq!((&left.switches, &left.orders), (&right.switches, &right.orders), "{what}");
}

fn instance() -> Instance {
    Instance::new(Path::new(STATE))
}

impl Act {
    /// Runs the act in the same way as the program.
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
            Ok((planned, Outcome { failure: None, stayed, told, .. }))
                if stayed.is_empty() && told.is_empty() =>
            {
                Said::Done(terms(&planned))
            }
            Ok((_, Outcome { failure: Some(failure), .. })) => {
                Said::Refused { why: failure.refusal.to_string(), left: failure.left }
            }
            Ok((_, outcome)) => Said::Open([outcome.stayed, outcome.told].concat().join("\n")),
            Err(error) => Said::Open(error.to_string()),
        }
    }

    fn of(world: &World) -> Vec<Act> {
        let texts = 0..world.texts.len();
        texts.flat_map(|number| [Act::Apply(number), Act::Round(number)]).chain([Act::Restore]).collect()
    }

    /// Returns the number of groups files that were put in force before the act.
    fn before(self, world: &World) -> usize {
        match self {
            Act::Apply(number) | Act::Round(number) => number,
            Act::Restore => world.texts.len(),
        }
    }
}

/// Returns the mechanisms of a plan and its unmet requests. They differ from the fault-free ones if a test of the
/// survey was refused.
pub fn terms(planned: &Planned) -> Vec<String> {
    let unmet = planned.plan.unmet.iter().map(|one| format!("{}: {}", one.group, one.what));
    let mechanisms = planned.plan.mechanisms.values().map(Mechanism::describe);
    unmet.chain(mechanisms).collect()
}

/// Creates the world's machine, with this number of its groups files in force.
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

/// An act without faults: the machine before and after it.
struct Calm {
    /// The machine before any groups file.
    before: MachineState,
    /// The machine before the act. The interrupted acts run on copies of it, because building it again would take half
    /// as long as the test itself.
    start: FakeHost,
    middle: MachineState,
    /// The machine after the act.
    after: MachineState,
    terms: Vec<String>,
    /// For each change of the act: whether it belongs to a survey's tests.
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

    /// Whether the fault hits a test of the survey: the plan then does without the mechanism that seems to be
    /// unsupported.
    fn refuses_trial(&self, fault: Fault, n: u32) -> bool {
        let mut from_n = self.trials.iter().skip(n as usize);
        match fault {
            Fault::Crash => false,
            Fault::Refused(_) => from_n.next().copied().unwrap_or_default(),
            Fault::RefusedFrom(_) => from_n.any(|trial| *trial),
        }
    }
}

/// A group whose members could not be lifted was told to freeze, and is not frozen before online work lets them run. That
/// was told, and an agent shows it for as long as it lasts.
fn frozen(mut seen: MachineState, fault: Fault) -> MachineState {
    if fault != Fault::Crash {
        for text in seen.files.values_mut().filter(|text| *text == "FREEZING") {
            "FROZEN".clone_into(text);
        }
    }
    seen
}

/// Does what an agent does: makes the members of groups below level 0 `SCHED_IDLE`. Where every change was refused, a
/// process that was about to leave such a group stayed there without.
fn set_policies_back(fake: &FakeHost) {
    let mut host = fake.another();
    for process in fake.processes().into_iter().filter(|process| process.exit.is_none()) {
        let level = process.groups.iter().find_map(|group| host.read_file(&group.join("cpu.qos_level")).ok());
        if level.is_some_and(|level| level.trim().starts_with('-')) {
            for tid in process.threads.keys() {
                host.set_scheduling(*tid, &Scheduling::of(SCHED_IDLE)).unwrap();
            }
        }
    }
}

/// Runs an act with a fault at the n-th change, and then each of the operations in `next`. Returns whether the fault
/// occurred.
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
            // A fault that has not occurred must not hit the following operations.
            fake.fail_write(u32::MAX, errno);
            fake.refuse_nothing();
            // A group that was told to freeze and has not stopped is reported.
            if fake.snapshot().values().any(|text| text.trim() == "FREEZING") {
                assert!(format!("{said:?}").contains("FREEZING"), "{what}: {said:?}");
            }
            // If the act reports that everything is done, or that nothing is left, that must be true.
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
            if let Fault::RefusedFrom(_) = fault {
                set_policies_back(&fake);
            }
            same(&frozen(see(&fake), fault), &calm.after, &what);
        }
        everything_back(&fake, &calm.before, &what);
    }
    came
}

/// Returns lists of combinations of fault and next operation; the moments are run once per list. For crashes, and with
/// `PROPTEST_CASES` (as in `cargo xtask ci --long`), there is one list per fault. Otherwise all combinations are in one
/// list, so that every moment is refused once.
fn turns(faults: &[Fault]) -> Vec<Vec<(Fault, &'static [Then])>> {
    if faults == [Fault::Crash] || std::env::var_os("PROPTEST_CASES").is_some() {
        return faults.iter().map(|fault| vec![(*fault, &BOTH[..])]).collect();
    }
    vec![faults.iter().flat_map(|fault| BOTH.chunks(1).map(|one| (*fault, one))).collect()]
}

/// Tests all moments of all acts of a world.
fn all_moments(world: &World, faults: &[Fault]) {
    let before = see(&(world.machine)());
    for act in Act::of(world) {
        let calm = Calm::of(world, act, &before);
        let mut moments = 0;
        for (number, turn) in turns(faults).into_iter().enumerate() {
            let mut n = 0;
            // If the list has several combinations, each moment is tested with one of them, in turn.
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

/// Returns a group with every limit that its class can have, as the text of a groups file.
fn every_limit(name: &str, class: &str, place: &str, skip: &[LimitId]) -> String {
    let mut text = format!("[group.{name}]\nclass = \"{class}\"\n{place}");
    for row in LIMITS.iter().filter(|row| !skip.contains(&row.id)) {
        let needs = row.needs.filter(|id| id.row().not_online.is_some());
        if class == "online" && (row.not_online.is_some() || needs.is_some()) {
            continue;
        }
        if class == "offline" && row.not_offline.is_some() {
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

/// Groups of commensal and of another program, with a few limits; then with other limits and the other class.
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

/// All limits, on both classes.
pub fn limits() -> Vec<World> {
    let v1: fn() -> FakeHost = || FakeHost::v1(4, MEMORY);
    let v2: fn() -> FakeHost = || FakeHost::v2(4, MEMORY);
    let hybrid: fn() -> FakeHost = || FakeHost::hybrid(4, MEMORY);
    let of = |(name, machine): (&str, fn() -> FakeHost)| {
        // A partition takes its CPUs from all other groups, so only one group can have one.
        let skip = [LimitId::CpuPartition];
        let first = every_limit("etl", "offline", "", &skip) + &every_limit("web", "online", "", &[]);
        let second = "[group.etl]\nclass = \"offline\"\n[group.web]\nclass = \"online\"\n";
        world(&format!("every limit on {name}"), &[&first, second], machine)
    };
    [("v1", v1), ("v2", v2), ("hybrid", hybrid)].into_iter().map(of).collect()
}

/// Groups into which processes are moved.
pub fn moved() -> Vec<World> {
    let of = |kind: &'static str| {
        world(&format!("processes on {kind}"), &[members::MEDIA], move || members::fresh(kind))
    };
    ["v1", "co-mounted", "v2", "hybrid"].into_iter().map(of).collect()
}

/// Vendor kernels, core scheduling, and the scheduler.
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

/// Members with policies of their own that a level below 0 takes: of a group of somebody else's, and of processes that
/// are moved into one of commensal's.
fn policies() -> Vec<World> {
    let online = vendors::BATCH.replace("offline", "online");
    let unmatched = "[group.media]\nclass = \"offline\"\n";
    let of = |(name, kernel): (&str, VendorKernel)| {
        let batch = move || {
            let fake = vendors::machine(kernel);
            vendors::batch(&fake);
            vendors::give_policies(&fake);
            fake
        };
        let moved = move || {
            let fake = members::fresh("v1");
            fake.vendor_kernel(kernel);
            vendors::give_policies(&fake);
            fake
        };
        let starving = move || {
            let fake = vendors::machine(kernel);
            levels::starving(&fake);
            fake
        };
        let frozen = format!("{}frozen = true\n", vendors::BATCH);
        [
            world(&format!("members on {name}"), &[vendors::BATCH, &online, vendors::BATCH], batch),
            world(&format!("moved on {name}"), &[members::MEDIA, unmatched], moved),
            world(&format!("frozen on {name}"), &[vendors::BATCH, &frozen], starving),
        ]
    };
    [("two levels", VendorKernel::OPENEULER), ("five levels", vendors::FIVE)]
        .into_iter()
        .flat_map(of)
        .collect()
}

/// A level for online work, which becomes another level by way of a fresh group.
fn levels() -> World {
    world("openEuler, a level for online work", &[vendors::LEVEL, vendors::BATCH, vendors::LEVEL], || {
        let fake = vendors::machine(vendors::FIVE);
        vendors::batch(&fake);
        vendors::give_policies(&fake);
        fake
    })
}

/// All worlds.
pub fn worlds() -> Vec<World> {
    plain().into_iter().chain(limits()).chain(moved()).chain(special()).collect()
}

/// Suffix of the name of a group that is about to replace another one.
const ASIDE: &str = ".commensal-recreate";

/// Returns the groups that are half replaced.
fn half_replaced(fake: &FakeHost) -> BTreeSet<String> {
    let files = fake.snapshot().into_keys();
    files.filter_map(|path| Some(path.split_once(ASIDE)?.0.to_owned())).collect()
}

/// Returns the groups that are half replaced according to the journal.
fn recorded(fake: &FakeHost) -> BTreeSet<String> {
    let path = format!("{STATE}/machine.journal");
    let text = journal::load(&mut fake.another(), Path::new(&path)).unwrap().unwrap_or_default();
    let group = |record| match record {
        Record::Recreating(Recreating(group)) => Some(format!("{}{}", group.mount, group.path)),
        _ => None,
    };
    journal::parse(&text).records.into_iter().filter_map(group).collect()
}

/// `restore` after a kill that has left a group half replaced, when one change of the replacement is refused once, twice
/// or every time: what is not completed stays in the journal, and a later `restore` completes it. Returns how many groups
/// the first one did not complete, in each of these cases.
fn refused_again(world: &World, (act, n): (Act, u32), calm: &FakeHost, before: &MachineState) -> [usize; 3] {
    let fake = calm.copy();
    let since = fake.mutations().len();
    restored(&mut fake.another());
    let mut changes = fake.mutations().split_off(since);
    let end = changes.iter().rposition(|change| change.operation == "rename");
    changes.truncate(end.map_or(0, |end| end + 1));
    changes.retain(|change| change.path.starts_with("/sys/fs/cgroup/"));
    let mut open = [0; 3];
    let cases = changes.iter().flat_map(|change| [1, 2, u32::MAX].map(|times| (change, times)));
    for ((change, times), often) in cases.zip((0..3).cycle()) {
        let what = format!("{}: {act:?}, killed at change {n}, {change:?} fails {times} times", world.name);
        let fake = calm.copy();
        let (operation, path, value) = (change.operation, change.path.clone(), None);
        let effect = Effect::Fails(Errno::EBUSY);
        fake.trouble_times(Trouble { operation, path, value, effect, lasts: false }, times);
        let back = restored(&mut fake.another());
        assert!(fake.no_trouble() > 0, "{what}");
        let half = half_replaced(&fake);
        assert!(half.is_subset(&recorded(&fake)), "{what}: {half:?}, and the journal has no such record");
        assert!(half.is_empty() || !back.failed.is_empty(), "{what}: nobody says why");
        open[often] += half.len();
        let back = restored(&mut fake.another());
        assert!(back.failed.is_empty() && half_replaced(&fake).is_empty(), "{what}: {back:?}");
        let in_ours = |group: &PathBuf| group.to_string_lossy().contains("/commensal-");
        for process in fake.processes().iter().filter(|process| process.groups.iter().any(in_ours)) {
            fake.end(process.pid, Exit::Code(0));
        }
        everything_back(&fake, before, &what);
    }
    open
}

// promises 10, 11
#[test]
fn a_replacement_that_is_refused_again_stays_in_the_journal() {
    let own = world("openEuler, groups of commensal's", &[vendors::OWN], || vendors::machine(vendors::FIVE));
    let (mut moments, mut open) = (0, [0; 3]);
    for world in [levels(), own] {
        let before = see(&(world.machine)());
        for act in Act::of(&world) {
            let start = prepared(&world, act.before(&world));
            if world.texts == [vendors::OWN] && act == Act::Restore {
                // It stays, so its group is replaced by one at level 0.
                start.add_process(&["/sys/fs/cgroup/cpu/commensal-offline/etl"]);
            }
            for n in 0.. {
                let fake = start.copy();
                fake.crash_after(n);
                act.run(&mut fake.another(), &world.texts);
                if !fake.is_crashed() {
                    break;
                }
                let fake = fake.restart();
                if half_replaced(&fake).is_empty() {
                    continue;
                }
                moments += 1;
                let more = refused_again(&world, (act, n), &fake, &before);
                open.iter_mut().zip(more).for_each(|(open, more)| *open += more);
            }
        }
    }
    println!("{moments} moments; not completed after one refusal, two, and all: {open:?}");
    assert!(moments > 10 && open[..2] == [0, 0] && open[2] > 10, "{moments} {open:?}");
}

// promise 11
#[test]
fn killed_at_any_change_of_groups() {
    plain().iter().for_each(|world| all_moments(world, &[Fault::Crash]));
}

// promise 11
#[test]
fn killed_at_any_change_of_limits() {
    limits().iter().for_each(|world| all_moments(world, &[Fault::Crash]));
}

// promise 11
#[test]
fn killed_at_any_change_of_places() {
    moved().iter().for_each(|world| all_moments(world, &[Fault::Crash]));
}

// promise 11
#[test]
fn killed_at_any_change_of_special_kernels() {
    special().iter().for_each(|world| all_moments(world, &[Fault::Crash]));
}

// promises 7, 11
#[test]
fn killed_at_any_change_of_policies() {
    policies().iter().for_each(|world| all_moments(world, &[Fault::Crash]));
}

// promise 11
#[test]
fn killed_at_any_change_of_levels() {
    all_moments(&levels(), &[Fault::Crash]);
}

const REFUSALS: [Fault; 4] = [
    Fault::Refused(Errno::EINVAL),
    Fault::Refused(Errno::EBUSY),
    Fault::Refused(Errno::EPERM),
    Fault::RefusedFrom(Errno::EBUSY),
];

// promise 10
#[test]
fn refused_at_any_change_of_groups() {
    plain().iter().for_each(|world| all_moments(world, &REFUSALS));
}

// promise 10
#[test]
fn refused_at_any_change_of_limits() {
    limits().iter().for_each(|world| all_moments(world, &REFUSALS));
}

// promise 10
#[test]
fn refused_at_any_change_of_places() {
    moved().iter().for_each(|world| all_moments(world, &REFUSALS));
}

// promise 10
#[test]
fn refused_at_any_change_of_special_kernels() {
    special().iter().for_each(|world| all_moments(world, &REFUSALS));
}

// promises 7, 10
#[test]
fn refused_at_any_change_of_policies() {
    policies().iter().for_each(|world| all_moments(world, &REFUSALS));
}

/// Every moment is refused in every way, because the records of threads are lost at single moments only.
// promise 10
#[test]
fn refused_at_any_change_of_levels() {
    REFUSALS.iter().for_each(|refusal| all_moments(&levels(), &[*refusal]));
}

/// Returns the kind of a step. For a new kind this does not compile until an arm is added, so that it is not forgotten.
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

/// All results of [`kind`].
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

// promise 11
#[test]
fn every_step_and_limit_is_in_some_world() {
    let (mut kinds, mut knobs) = (BTreeSet::new(), BTreeSet::<KnobId>::new());
    for world in worlds().into_iter().chain(policies()).chain([levels()]) {
        for number in 0..world.texts.len() {
            let fake = prepared(&world, number);
            let mut host = fake.another();
            let specs = parse("groups.toml", &world.texts[number]).unwrap();
            let survey = instance().survey(&mut host).unwrap();
            let planned = instance().plan(&mut host, &survey, &PlanRequest::all(&specs)).unwrap();
            let back = undo(&planned.plan.steps);
            for step in planned.plan.steps.iter().chain(&back) {
                kinds.insert(kind(step));
                if let Action::Write { knob, .. } | Action::Irreversible { knob, .. } = &step.action {
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
