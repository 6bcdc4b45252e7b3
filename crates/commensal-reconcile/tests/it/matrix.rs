//! Outcomes of every kind of step at every moment, when it is refused in every way in which the kernel refuses.
//!
//! ```text
//!  worlds (crash.rs) x Moment ─► Scene: the machine before, what the act changes there ─► Target: one change, by the kind of its step
//!  Target x Fault x once or lasting ─► the act ─► Outcome, from what the machine is then ─► again without the fault ─► restore
//!                                                     └──► the table of PROMISES.md
//! ```
//!
//! Outcomes are judged by the state of the machine: if an act reports that everything is done, that nothing is left, or
//! that nothing else is missing, that must be true. The table shows the whole product, which is tested with
//! `PROPTEST_CASES` (as in `cargo xtask ci --long`; a quarter of an hour), and rewritten if `UPDATE=1` is set as well.
//! Otherwise a part is tested, in which each change and each fault occurs at each moment; its outcomes must be in the
//! table.

mod scene;
mod table;

use crate::crash::{Act, KINDS, MachineState, Said, see, terms, without_scratch};
use crate::support::{STATE, instance};
use commensal_core::config::parse;
use commensal_core::errno::Errno;
use commensal_core::safe::safe;
use commensal_host::Host;
use commensal_host::fake::{Effect, FakeHost, Trouble};
use commensal_reconcile::{PlanRequest, Reconciler, Round, SafeRequest, bring_safe_state};
use scene::{Scene, Target, other_value, scenes};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

/// The moment at which a step is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    /// `apply`.
    Apply,
    /// A tick of an agent that has kept other groups in force before.
    Tick,
    /// The safe state, after the agent has exited.
    SafeState,
    Restore,
    /// The first tick of a new agent, after the previous agent exited or died half way.
    HandOver,
}

const MOMENTS: [Moment; 5] =
    [Moment::Apply, Moment::Tick, Moment::SafeState, Moment::Restore, Moment::HandOver];

/// The fault of one change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Says(Errno),
    /// The change succeeds but has no effect.
    Ignored,
    /// The change succeeds, and the file reads another value.
    Altered,
}

const ERRNOS: [Errno; 9] = [
    Errno::EACCES,
    Errno::EBUSY,
    Errno::EINVAL,
    Errno::EIO,
    Errno::ENODEV,
    Errno::ENOENT,
    Errno::ENOSPC,
    Errno::EPERM,
    Errno::ETIMEDOUT,
];

/// The outcome of an act with a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// Everything is done, as without the fault.
    Done,
    /// Done with other mechanisms, or the plan reports what is missing.
    OtherWay,
    /// Everything is refused, and the machine is as before.
    AsBefore,
    /// Everything is refused, and some changes could not be undone.
    PartLeft,
    /// The process is not moved; everything else is done.
    Stays,
    /// The step is left out; everything else is done.
    LeftOut,
    /// The step is left out, with the steps that need it.
    LeftOutWithOthers,
}

/// The results that the program reports for an act.
#[derive(Debug, Default)]
struct Attempt {
    /// Messages about what was not done.
    told: Vec<String>,
    /// Whether the act was refused and undone completely.
    taken_back: bool,
    /// Messages about changes that were not undone after a refusal.
    left: Vec<String>,
    terms: Vec<String>,
}

/// An agent with its machine.
type Agent = (Reconciler, FakeHost);

/// Runs one round with the groups of a groups file, or without groups.
fn round((one, host): &mut Agent, now_ms: u64, text: Option<&String>) -> Result<Round, String> {
    let specs = text.map(|text| parse("groups.toml", text).unwrap()).unwrap_or_default();
    let safe_specs = safe(&specs);
    let safe = Some(SafeRequest { specs: &safe_specs, floor: None });
    let request = PlanRequest { safe, kept: true, ..PlanRequest::all(&specs) };
    one.round(host, now_ms, &request).map_err(|error| error.to_string())
}

fn agent(fake: &FakeHost) -> Result<Agent, String> {
    let mut host = fake.another();
    host.state_dir(Path::new(STATE)).map_err(|error| error.to_string())?;
    let one = Reconciler::new(instance(), &mut host).map_err(|error| error.to_string())?;
    Ok((one, host))
}

fn of_round(done: Result<Round, String>) -> Attempt {
    match done {
        Ok(round) => {
            let terms = terms(&round.planned);
            Attempt { told: round.problems, terms, ..Attempt::default() }
        }
        Err(error) => Attempt { told: vec![error], ..Attempt::default() },
    }
}

/// Runs the act of this moment; `arm` is called right before it.
fn act(scene: &Scene, fake: &FakeHost, arm: impl FnOnce()) -> (Attempt, Option<Agent>) {
    let text = &scene.texts[scene.number];
    match scene.moment {
        Moment::Apply => {
            arm();
            let said = Act::Apply(scene.number).run(&mut fake.another(), &scene.texts);
            let attempt = match said {
                Said::Done(terms) => Attempt { terms, ..Attempt::default() },
                Said::Refused { why, left } => {
                    Attempt { told: vec![why], taken_back: left.is_empty(), left, ..Attempt::default() }
                }
                Said::Open(why) => Attempt { told: vec![why], ..Attempt::default() },
            };
            (attempt, None)
        }
        Moment::Tick => {
            let mut agent = agent(fake).unwrap();
            let before = scene.number.checked_sub(1).map(|before| &scene.texts[before]);
            round(&mut agent, 0, before).unwrap();
            arm();
            let done = round(&mut agent, 1_000, Some(text));
            (of_round(done), Some(agent))
        }
        Moment::HandOver => {
            arm();
            match agent(fake) {
                Ok(mut agent) => (of_round(round(&mut agent, 0, Some(text))), Some(agent)),
                Err(error) => (of_round(Err(error)), None),
            }
        }
        Moment::SafeState => {
            arm();
            let state = bring_safe_state(&mut fake.another(), Path::new(STATE), Duration::ZERO);
            (Attempt { told: state.failed, ..Attempt::default() }, None)
        }
        Moment::Restore => {
            arm();
            let told = match instance().restore(&mut fake.another(), &[]) {
                Ok(back) => back.left.into_iter().chain(back.failed).collect(),
                Err(error) => vec![error.to_string()],
            };
            (Attempt { told, ..Attempt::default() }, None)
        }
    }
}

/// Judges an attempt by the state of the machine. An inadmissible outcome is an error.
fn judge(case: &Case<'_>, now: &MachineState, attempt: &Attempt) -> Result<Outcome, String> {
    let Case { scene, target, fault, .. } = *case;
    let (open, changed) = (now.differing(&scene.after), now.differing(&scene.middle));
    let is_after = open.is_empty() && now.same_beside_files(&scene.after);
    let is_middle = changed.is_empty() && now.same_beside_files(&scene.middle);
    let calm = scene.after.differing(&scene.middle);
    let strange = changed.iter().find(|path| !calm.contains(*path) && !scene.touches(path));
    if let Some(path) = strange {
        return Err(format!("{path} is of no group that this is about, and has changed"));
    }
    let new = |line: &&String| !scene.told.contains(line);
    let told: Vec<&String> = attempt.told.iter().filter(new).collect();
    if told.is_empty() {
        return match is_after {
            true if attempt.terms == scene.terms => Ok(Outcome::Done),
            _ if attempt.terms != scene.terms => Ok(Outcome::OtherWay),
            _ => Err(format!("nothing is said, and not all is done: {open:?}")),
        };
    }
    // For a client of the scheduler some errors mean that none is loaded, which it reports without the error's name.
    if let Fault::Says(errno) = fault
        && target.kind != "order"
        && !told.iter().any(|line| line.contains(&errno.to_string()))
    {
        return Err(format!("what is said does not name {errno}"));
    }
    if scene.moment == Moment::Apply {
        return match (is_middle, attempt.taken_back) {
            (true, _) => Ok(Outcome::AsBefore),
            (false, true) => Err(format!("it says that all is taken back, and it is not: {changed:?}")),
            (false, false) if !attempt.left.is_empty() => Ok(Outcome::PartLeft),
            (false, false) if target.kind == "move" && open.is_empty() => Ok(Outcome::Stays),
            (false, false) => Err(format!("stopped half way ({told:?}): {open:?}")),
        };
    }
    let others: Vec<&String> = open.iter().filter(|path| !target.is_of(path)).collect();
    if let Some(path) = others.iter().find(|path| !scene.holds_up(target, path)) {
        return Err(format!("{path} waits, and could be done without it"));
    }
    match others.is_empty() {
        true if target.kind == "move" && open.is_empty() => Ok(Outcome::Stays),
        true => Ok(Outcome::LeftOut),
        false => Ok(Outcome::LeftOutWithOthers),
    }
}

/// Repeats the act without the fault, or restores everything, and checks the machine.
fn afterwards(scene: &Scene, fake: &FakeHost, agent: Option<Agent>, again: bool) -> Result<(), String> {
    let text = &scene.texts[scene.number];
    let right = |what: &str, told: &[String]| {
        let now = see(fake);
        let open = now.differing(&scene.after);
        let calm = told.iter().all(|line| scene.told.contains(line));
        match calm && open.is_empty() && now.same_beside_files(&scene.after) {
            true => Ok(()),
            false => Err(format!("{what}, without the fault: {told:?}, open {open:?}")),
        }
    };
    match (scene.moment, agent) {
        (Moment::Tick | Moment::HandOver, Some(mut agent)) => {
            let (one, host) = &mut agent;
            one.look_again(host).map_err(|error| error.to_string())?;
            // Longer than any back-off.
            let done = round(&mut agent, 10_000_000, Some(text))?;
            right("the next tick", &done.problems)?;
        }
        (Moment::Apply, _) if !again => {}
        _ => {
            let (attempt, _) = act(scene, fake, || ());
            right("once more", &attempt.told)?;
        }
    }
    let restore = || instance().restore(&mut fake.another(), &[]).map_err(|error| error.to_string());
    let back = restore()?;
    let lost = see(fake).differing(&scene.before);
    if !lost.is_empty() || !see(fake).same_beside_files(&scene.before) || !back.failed.is_empty() {
        return Err(format!("an original is lost: {lost:?}; {:?} {:?}", back.left, back.failed));
    }
    match restore()?.nothing() {
        true => Ok(()),
        false => Err("a second restore finds something".to_owned()),
    }
}

/// One change with one fault.
#[derive(Debug, Clone, Copy)]
struct Case<'a> {
    scene: &'a Scene,
    target: &'a Target,
    fault: Fault,
    lasts: bool,
    /// Whether the act is repeated before everything is restored.
    again: bool,
}

impl Case<'_> {
    fn describe(&self) -> String {
        let Case { scene, target, fault, lasts, .. } = self;
        let fault = match fault {
            Fault::Says(errno) => errno.to_string(),
            other => format!("{other:?}"),
        };
        let often = if *lasts { "again and again" } else { "once" };
        format!(
            "{}: {:?} of text {} ({} {} {} {}): {fault} {often}",
            scene.name,
            scene.moment,
            scene.number,
            target.kind,
            target.operation,
            target.path,
            target.written
        )
    }

    /// Runs the case and returns the outcome; `None` if the change did not occur.
    fn run(&self) -> Result<Option<Outcome>, String> {
        let Case { scene, target, fault, lasts, again } = *self;
        let effect = match fault {
            Fault::Says(errno) => Effect::Fails(errno),
            Fault::Ignored => Effect::Ignored,
            Fault::Altered => match other_value(target) {
                Some(other) => Effect::Takes(other),
                None => return Ok(None),
            },
        };
        let trouble = Trouble {
            operation: target.operation,
            path: target.path.clone(),
            value: target.value.clone(),
            effect,
            lasts,
        };
        let fake = scene.start.copy();
        let (attempt, agent) = act(scene, &fake, || fake.trouble(trouble));
        if fake.no_trouble() == 0 {
            return Ok(None);
        }
        let outcome = judge(self, &without_scratch(see(&fake)), &attempt)
            .map_err(|why| format!("{why} (said: {:?} {:?})", attempt.told, attempt.left))?;
        afterwards(scene, &fake, agent, again).map_err(|why| format!("{outcome:?}, then {why}"))?;
        Ok(Some(outcome))
    }
}

/// Returns the faults that a change can have, each once and lasting.
fn faults(target: &Target) -> Vec<(Fault, bool)> {
    let silent = match target.operation {
        "create" | "remove" | "rename" => [].as_slice(),
        "write" if other_value(target).is_some() => &[Fault::Ignored, Fault::Altered],
        _ => &[Fault::Ignored],
    };
    let all = ERRNOS.map(Fault::Says).into_iter().chain(silent.iter().copied());
    all.flat_map(|fault| [(fault, false), (fault, true)]).collect()
}

/// Whether every change is tested with every fault.
fn is_whole() -> bool {
    std::env::var_os("PROPTEST_CASES").is_some()
}

/// Returns the combinations of changes and faults: all of them, or a part in which each change and each fault occurs at
/// least once.
fn cases(scenes: &[Scene]) -> Vec<Case<'_>> {
    let mut targets: BTreeMap<(&str, Moment), Vec<(&Scene, &Target)>> = BTreeMap::new();
    for scene in scenes {
        for target in &scene.targets {
            targets.entry((target.kind, scene.moment)).or_default().push((scene, target));
        }
    }
    let mut cases = Vec::new();
    for of_kind in targets.into_values() {
        let mut case = |(scene, target): (_, _), (fault, lasts)| {
            let again = cases.len() % 2 == 0;
            cases.push(Case { scene, target, fault, lasts, again });
        };
        if is_whole() {
            for one in of_kind {
                faults(one.1).into_iter().for_each(|fault| case(one, fault));
            }
            continue;
        }
        let most = of_kind.iter().map(|(_, target)| faults(target).len()).max().unwrap_or_default();
        for turn in 0..of_kind.len().max(most) {
            // In the next pass over the list, the same change has another fault.
            let one = of_kind[turn % of_kind.len()];
            let all = faults(one.1);
            case(one, all[turn % all.len()]);
        }
    }
    cases
}

/// Runs the cases on several threads, because the safe state retries refused values for a while.
fn run(cases: &[Case<'_>]) -> Vec<Result<Option<Outcome>, String>> {
    const THREADS: usize = 4;
    let results = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for first in 0..THREADS {
            let results = &results;
            scope.spawn(move || {
                for (number, case) in cases.iter().enumerate().skip(first).step_by(THREADS) {
                    let result = case.run().map_err(|why| format!("{}: {why}", case.describe()));
                    results.lock().unwrap().insert(number, result);
                }
            });
        }
    });
    results.into_inner().unwrap().into_values().collect()
}

// promises 10, 14, 18, 21
#[test]
fn every_step_refused_in_every_way_at_every_moment() {
    let scenes = scenes();
    let cases = cases(&scenes);
    let results = run(&cases);
    let defects: Vec<&String> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    let mut cells = table::Cells::new();
    for (case, result) in cases.iter().zip(&results) {
        if let Ok(Some(outcome)) = result {
            let cell = cells.entry((case.target.kind, case.scene.moment)).or_default();
            cell.entry(*outcome).or_default().insert((case.fault, case.lasts));
        }
    }
    let hit = results.iter().filter(|result| matches!(result, Ok(Some(_)))).count();
    println!("{} scenes, {} changes refused, {hit} of them in time", scenes.len(), cases.len());
    assert!(defects.is_empty(), "{} defects\n{}", defects.len(), lines(&defects));
    assert!(hit * 20 > cases.len() * 19, "only {hit} of {}", cases.len());
    match is_whole() {
        true => table::compare(&table::text(&cells)),
        false => table::allows(&cells),
    }
}

fn lines(all: &[&String]) -> String {
    all.iter().map(|line| line.as_str()).collect::<Vec<_>>().join("\n")
}

/// Every kind of step is in the matrix.
#[test]
fn every_kind_of_step_is_refused() {
    let of = |scene: &Scene| -> BTreeSet<&str> { scene.targets.iter().map(|target| target.kind).collect() };
    let refused: BTreeSet<&str> = scenes().iter().flat_map(of).collect();
    assert_eq!(refused, BTreeSet::from(KINDS));
}
