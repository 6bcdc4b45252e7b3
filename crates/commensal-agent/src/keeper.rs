//! One round: plan against the machine as it is now, leave alone what has to wait, carry out the rest, and say what was
//! written and why.

mod ordering;

use self::ordering::Unordered;
use crate::enforce::{moves, take_over};
use crate::instance::{Ask, EnforceError, Instance, Planned};
use crate::snapshot;
use commensal_core::actual::{ActualState, Hierarchy, Place};
use commensal_core::drift::{self, Key};
use commensal_core::knob::{KnobId, Value, Version};
use commensal_core::plan::{Action, Step};
use commensal_core::scheduler::{Orders, Scheduler};
use commensal_core::topology::Device;
use commensal_host::{Dir, For, GroupWatch, Host, Seen, below};
use commensal_reconcile::{Failure, Refusal, apply, forget_gone, forget_settled, journal, step_aside};
use commensal_sensors::{Survey, machine, sched_ext};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::path::Path;
use std::time::Duration;

/// How often a round plans again because a group vanished meanwhile, or a step was refused and is left out now.
const ATTEMPTS: usize = 8;

/// In so many looks every value in force was looked at once …
const PARTS: usize = 5;
/// … but where the kernel tells of every write, no more values than this are looked at in one: for what changes without one.
const UNTOLD: usize = 8;

/// Where now is, on two clocks: milliseconds on one that nobody sets, and the time of day for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds since the agent started.
    pub ms: u64,
    /// RFC 3339.
    pub text: String,
}

/// Puts groups in force, again and again.
#[derive(Debug)]
pub struct Keeper {
    /// Whose groups.
    pub instance: Instance,
    /// The machine and what works on it.
    pub survey: Survey,
    /// Values that were written, as the kernel reads them back.
    in_force: BTreeMap<Key, Value>,
    drift: drift::Table,
    refused: drift::Table,
    /// Why the steps in `refused` were.
    reasons: BTreeMap<Key, String>,
    /// Kernel files written so far.
    pub writes: u64,
    /// Processes that could not be moved at the last round, and why.
    stayed: Vec<String>,
    /// The places of `in_force`, opened; and which of its values is looked at next.
    watched: BTreeMap<At, Watched>,
    next: Option<Key>,
    /// Tells of writes to their files, and which watch is about which.
    writes_seen: Option<GroupWatch>,
    watches: HashMap<i32, At>,
    /// The CPUs that were online when the machine was looked at.
    cpus: String,
    /// Orders that the scheduler refused.
    unordered: Option<Unordered>,
    /// What the kernel said of schedulers at the last round, and whether ours was on its way to something else.
    schedulers: String,
    waits_for_scheduler: bool,
    /// How many cgroups there were at the last round, as the kernel counts them.
    population: String,
}

/// A cgroup by its hierarchy and inode.
type At = (usize, u64);

#[derive(Debug, Clone, Copy)]
struct Watched {
    dir: Dir,
    /// The kernel tells of writes to its files, by this number.
    told: Option<i32>,
}

/// What a round did.
#[derive(Debug)]
pub struct Round {
    /// What was planned last; what is in force now, but for what waits.
    pub planned: Planned,
    /// What was written.
    pub actions: Vec<snapshot::Action>,
    /// What could not be done now, in whole sentences.
    pub troubles: Vec<String>,
    /// Whether the planned machine has what was written, so that [`Keeper::adjust`] can go on from it.
    pub current: bool,
}

/// The kernel file that a key stands for, and what it is about.
struct Named {
    place: Place,
    file: String,
}

impl Keeper {
    /// Looks at the machine. The caller holds the machine's lock.
    ///
    /// # Errors
    /// When the machine cannot be read.
    pub fn new(instance: Instance, host: &mut dyn Host) -> Result<Keeper, EnforceError> {
        let cpus = machine::online_cpus(host);
        let survey = instance.survey(host)?;
        Ok(Keeper {
            cpus,
            instance,
            survey,
            in_force: BTreeMap::new(),
            drift: drift::Table::default(),
            refused: drift::Table::default(),
            reasons: BTreeMap::new(),
            writes: 0,
            stayed: Vec::new(),
            watched: BTreeMap::new(),
            next: None,
            writes_seen: None,
            watches: HashMap::new(),
            unordered: None,
            schedulers: String::new(),
            waits_for_scheduler: false,
            population: String::new(),
        })
    }

    /// Has the kernel tell of writes to the cgroups of the values in force. `watch` watches nothing yet.
    pub fn see_writes(&mut self, watch: GroupWatch) {
        self.writes_seen = Some(watch);
    }

    /// Looks at the machine again, because it may have changed: a CPU came, a controller was enabled. The caller holds the
    /// machine's lock.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn look_again(&mut self, host: &mut dyn Host) -> Result<(), EnforceError> {
        self.cpus = machine::online_cpus(host);
        self.survey = self.instance.survey(host)?;
        Ok(())
    }

    /// Whether other CPUs are online than when the machine was looked at.
    #[must_use]
    pub fn cpus_changed(&self, host: &dyn Host) -> bool {
        machine::online_cpus(host) != self.cpus
    }

    /// Whether a scheduler has come or gone since the last round, or ours is about to.
    #[must_use]
    pub fn scheduler_changed(&self, host: &dyn Host) -> bool {
        self.waits_for_scheduler || sched_ext::stamp(host) != self.schedulers
    }

    /// Whether a round would find something to do, by a look at few things: the number of cgroups, unless they are `followed`
    /// by other means; values whose files were written; and a part of the others, a different one each time. What this misses
    /// the next round finds.
    pub fn disturbed(&mut self, host: &mut dyn Host, followed: bool) -> bool {
        if !followed && population(host, &self.survey.hierarchies) != self.population {
            return true;
        }
        let Some(touched) = self.touched() else { return true };
        let mut looked_at: Vec<(&Key, &Value)> = Vec::new();
        if !touched.is_empty() {
            let of = |key: &Key| touched.contains(&(key.hierarchy, key.inode));
            looked_at.extend(self.in_force.iter().filter(|(key, _)| of(key)));
        }
        let told = self.watched.values().all(|one| one.told.is_some());
        let part = self.in_force.len().div_ceil(PARTS).min(if told { UNTOLD } else { usize::MAX });
        let from = match self.next.take() {
            Some(next) => Bound::Included(next),
            None => Bound::Unbounded,
        };
        let mut rest = self.in_force.range((from, Bound::Unbounded));
        looked_at.extend(rest.by_ref().take(part));
        let next = rest.next().map(|(key, _)| key.clone());
        let same = looked_at.into_iter().all(|(key, want)| self.holds(host, key, want));
        self.next = next;
        !same
    }

    fn holds(&self, host: &mut dyn Host, key: &Key, want: &Value) -> bool {
        let watched = self.watched.get(&(key.hierarchy, key.inode));
        let version = self.survey.hierarchies.get(key.hierarchy).map(|one| one.version);
        let Some((at, file)) = watched.zip(version.and_then(|version| key.knob.row().file(version))) else {
            return false;
        };
        let read = host.read(at.dir, file.name);
        read.is_ok_and(|text| file.parse(&text, key.device).is_ok_and(|value| value == *want))
    }

    /// Cgroups whose files were written since the last call, by whomever; `None` when some were missed.
    fn touched(&self) -> Option<BTreeSet<At>> {
        let Some(watch) = &self.writes_seen else { return Some(BTreeSet::new()) };
        let mut touched = BTreeSet::new();
        for seen in watch.wait(Duration::ZERO).ok()? {
            match seen {
                Seen::Touched(number, _) => touched.extend(self.watches.get(&number)),
                Seen::Lost => return None,
                Seen::Made(..) | Seen::Gone(..) => {}
            }
        }
        Some(touched)
    }

    /// Opens the cgroups of the values in force, and lets go of others.
    fn watch(&mut self, host: &mut dyn Host, actual: &ActualState) {
        let wanted: BTreeSet<At> = self.in_force.keys().map(|key| (key.hierarchy, key.inode)).collect();
        let gone: Vec<At> = self.watched.keys().filter(|place| !wanted.contains(place)).copied().collect();
        for place in gone {
            let Some(Watched { dir, told }) = self.watched.remove(&place) else { continue };
            host.close(dir);
            if let Some((watch, number)) = self.writes_seen.as_ref().zip(told) {
                watch.remove(number);
                self.watches.remove(&number);
            }
        }
        if wanted.len() > self.watched.len() {
            for (place, cgroup) in &actual.cgroups {
                let at = (place.hierarchy, cgroup.inode);
                if !wanted.contains(&at) || self.watched.contains_key(&at) {
                    continue;
                }
                let mount = Path::new(&actual.hierarchies[place.hierarchy].mount);
                let path = below(mount, place.path.as_str());
                let told = self.writes_seen.as_ref().and_then(|watch| watch.add(&path, For::Writes).ok());
                match host.open(&path) {
                    Ok(dir) if dir.inode == cgroup.inode => {
                        self.watched.insert(at, Watched { dir, told });
                        self.watches.extend(told.map(|number| (number, at)));
                    }
                    Ok(other) => host.close(other),
                    Err(_) => {}
                }
            }
        }
    }

    /// Makes the machine as asked for, as far as it can be now. The caller holds the machine's lock.
    ///
    /// # Errors
    /// When the machine cannot be read or the groups do not fit it. A refused step is no error: it is left out, told, and
    /// tried again later.
    pub fn round(&mut self, host: &mut dyn Host, now: &Now, ask: &Ask<'_>) -> Result<Round, EnforceError> {
        let mut actions = Vec::new();
        let mut attempts = 0;
        // Once something vanished between look and write: what every look so far has seen.
        let mut lasting: Option<BTreeSet<(usize, u64)>> = None;
        loop {
            attempts += 1;
            self.schedulers = sched_ext::stamp(host);
            let mut planned = self.instance.plan(host, &self.survey, ask)?;
            self.waits_for_scheduler =
                planned.actual.scheduler.as_ref().is_some_and(Scheduler::is_on_its_way);
            self.find_drift(now.ms, &planned.actual);
            if let Some(lasting) = &mut lasting {
                let there = inodes(&planned.actual);
                lasting.retain(|one| there.contains(one));
            }
            let mut steps = self.ready(now.ms, &planned);
            let all = steps.len();
            steps.retain(|step| lasts(step, &planned.actual, lasting.as_ref()));
            let young = all > steps.len();
            let structure = structure(&steps);
            let enables = steps[..structure].iter().any(|step| matches!(step.action, Action::Enable(_)));
            // What is enabled can be tried only then.
            let first = if enables { &steps[..structure] } else { &steps[..] };
            let mut moved = false;
            let failure = if first.is_empty() {
                self.stayed.clear();
                None
            } else {
                let (failure, stayed) = self.carry_out(host, now, (first, &planned), &mut actions)?;
                self.stayed = stayed;
                // What moved processes started meanwhile is where they were.
                moved = failure.is_none() && moves(first) > self.stayed.len();
                failure
            };
            match failure {
                // Nothing is wrong with the step, and no other can be put on record either.
                Some(Failure { refusal: Refusal::Journal(error), left, .. }) => {
                    let mut troubles = self.troubles(&planned);
                    troubles.push(in_words(&error));
                    troubles.extend(left);
                    return Ok(Round { planned, actions, troubles, current: false });
                }
                Some(failure) => {
                    self.note_failure(now.ms, &planned.actual, &steps, &failure);
                    lasting.get_or_insert_with(|| inodes(&planned.actual));
                }
                None if enables => self.look_again(host)?,
                None if moved && attempts < ATTEMPTS => {}
                None => {
                    self.watch(host, &planned.actual);
                    // What was left out for its youth is due in the next tick.
                    self.population = match young {
                        true => String::new(),
                        false => population(host, &self.survey.hierarchies),
                    };
                    self.settle(host, &planned)?;
                    let current = !young && self.written(host, &mut planned, &steps)?;
                    let troubles = self.troubles(&planned);
                    return Ok(Round { planned, actions, troubles, current });
                }
            }
            if attempts >= ATTEMPTS {
                let mut troubles = self.troubles(&planned);
                troubles.push(format!("the groups changed {ATTEMPTS} times while they were put in force"));
                return Ok(Round { planned, actions, troubles, current: false });
            }
        }
    }

    /// Puts in force what was decided anew, on the machine as the last round left it: no cgroup is looked for, so this is
    /// quick however many there are. Whether that was possible; if not, a round is needed. The caller holds the machine's
    /// lock, and knows that nothing else has changed.
    ///
    /// # Errors
    /// When the journal cannot be kept or the groups do not fit the machine; then a round is needed as well.
    pub fn adjust(
        &mut self,
        host: &mut dyn Host,
        now: &Now,
        ask: &Ask<'_>,
        round: &mut Round,
    ) -> Result<bool, EnforceError> {
        if !round.current {
            return Ok(false);
        }
        round.current = false;
        self.instance.plan_again(&self.survey, ask, &mut round.planned)?;
        let steps = self.ready(now.ms, &round.planned);
        if steps.len() < round.planned.plan.steps.len()
            || !steps.iter().all(|step| alone(step).is_some() || ordered(step).is_some())
        {
            return Ok(false);
        }
        let mut actions = Vec::new();
        if !steps.is_empty() {
            let (failure, stayed) = self.carry_out(host, now, (&steps, &round.planned), &mut actions)?;
            round.actions.append(&mut actions);
            if failure.is_some() || !stayed.is_empty() {
                return Ok(false);
            }
        }
        round.current = self.written(host, &mut round.planned, &steps)?;
        self.watch(host, &round.planned.actual);
        self.settle(host, &round.planned)?;
        Ok(true)
    }

    /// Takes over what these steps wrote; whether that is all that they changed.
    fn written(
        &self,
        host: &mut dyn Host,
        planned: &mut Planned,
        steps: &[Step],
    ) -> Result<bool, EnforceError> {
        for step in steps {
            if let (Some(orders), Some(found)) = (ordered(step), &mut planned.actual.scheduler) {
                found.orders = orders.clone();
                continue;
            }
            let Some((key, to)) = alone(step) else { return Ok(false) };
            if let Some(found) = planned.actual.cgroups.get_mut(&step.place) {
                found.values.insert(key, to.clone());
            }
        }
        if !steps.is_empty() {
            planned.actual.ours = self.instance.ours(host, &planned.actual)?;
        }
        Ok(true)
    }

    /// The steps that need not wait.
    fn ready(&self, now_ms: u64, planned: &Planned) -> Vec<Step> {
        let waits = |step: &&Step| {
            if let Some(orders) = ordered(step) {
                return self.unordered.as_ref().is_none_or(|refused| refused.may_try(now_ms, orders));
            }
            let key = key_of(step, &planned.actual);
            key.is_none_or(|key| self.drift.may_write(now_ms, &key) && self.refused.may_write(now_ms, &key))
        };
        planned.plan.steps.iter().filter(waits).cloned().collect()
    }

    fn carry_out(
        &mut self,
        host: &mut dyn Host,
        now: &Now,
        (steps, planned): (&[Step], &Planned),
        actions: &mut Vec<snapshot::Action>,
    ) -> Result<(Option<Failure>, Vec<String>), EnforceError> {
        // Another commensal may have written to it since.
        let mut journal = self.instance.journal(host, journal::MACHINE)?;
        forget_gone(host, &planned.actual, &mut journal)?;
        step_aside(host, steps, &planned.actual, planned.desired.aside.name(), &mut journal)?;
        let outcome = apply(host, steps, &planned.actual, &mut journal);
        self.writes += outcome.applied.len() as u64;
        if outcome.failure.is_none() {
            for step in steps {
                if let (Some(key), Some((_, to))) = (key_of(step, &planned.actual), change(step)) {
                    self.refused.forget(&key);
                    self.drift.answered(&key);
                    self.in_force.insert(key, to.clone());
                }
                if ordered(step).is_some() {
                    self.unordered = None;
                }
                actions.push(action(step, planned, now));
            }
        }
        Ok((outcome.failure, outcome.stayed))
    }

    /// Values that are not what was written, and groups that are gone.
    fn find_drift(&mut self, now_ms: u64, actual: &ActualState) {
        let mut seen = BTreeSet::new();
        for (place, cgroup) in &actual.cgroups {
            let idle = cgroup.values.get(&(KnobId::CpuIdle, None)) == Some(&Value::Number(1));
            for ((knob, device), value) in &cgroup.values {
                if idle && *knob == KnobId::CpuWeight {
                    // Being idle is what changed it, and nobody can write it meanwhile.
                    continue;
                }
                let key =
                    Key { hierarchy: place.hierarchy, inode: cgroup.inode, knob: *knob, device: *device };
                let Some(want) = self.in_force.get(&key) else { continue };
                if *knob == KnobId::CgroupFreeze && want != value && actual.frozen_by_scheduler(place) {
                    // The scheduler's guard stops what starves, and lets it go on; that is nobody's mistake.
                    continue;
                }
                match want == value {
                    true => self.drift.answered(&key),
                    false => self.drift.changed(now_ms, key.clone(), want.to_string(), value.to_string()),
                }
                seen.insert(key);
            }
        }
        // A value that nobody looks at any more is nobody's.
        self.in_force.retain(|key, _| seen.contains(key));
        self.drift.calm(now_ms, |key| seen.contains(key));
        if self.refused.iter().next().is_some() {
            let there = inodes(actual);
            self.refused.calm(now_ms, |key| there.contains(&(key.hierarchy, key.inode)));
        }
    }

    fn note_failure(&mut self, now_ms: u64, actual: &ActualState, steps: &[Step], failure: &Failure) {
        let vanished = match &failure.refusal {
            Refusal::Vanished { .. } => true,
            Refusal::Host { error, .. } => {
                use commensal_core::errno::Errno;
                matches!(error.errno, Errno::ENODEV | Errno::ENOENT)
            }
            _ => false,
        };
        if let Some(orders) = steps.get(failure.step).and_then(ordered).filter(|_| !vanished) {
            let reason = format!("{}: {}", failure.description, failure.refusal);
            self.unordered = Some(Unordered::again(self.unordered.take(), now_ms, orders, reason));
        }
        if let Some(key) = steps.get(failure.step).and_then(|step| key_of(step, actual)).filter(|_| !vanished)
        {
            self.reasons.insert(key.clone(), format!("{}: {}", failure.description, failure.refusal));
            // The first refusal waits as well: nothing was changed by somebody else.
            if self.refused.iter().all(|(known, _)| *known != key) {
                self.refused.changed(now_ms, key.clone(), String::new(), String::new());
                self.refused.answered(&key);
            }
            self.refused.changed(now_ms, key.clone(), String::new(), String::new());
            // Each try is one.
            self.refused.answered(&key);
        }
    }

    /// What is back in place is its owner's again, and groups that `run` made stay if they are wanted.
    fn settle(&mut self, host: &mut dyn Host, planned: &Planned) -> Result<(), EnforceError> {
        let of_run = self.instance.state_dir.join(format!("{}.journal", journal::RUN));
        let runs = host.state_read(&of_run)?.is_some_and(|text| !text.is_empty());
        if planned.plan.settled.is_empty() && !runs {
            return Ok(());
        }
        let mut journal = self.instance.journal(host, journal::MACHINE)?;
        if runs {
            take_over(&self.instance, host, planned, &mut journal)?;
        }
        Ok(forget_settled(host, &planned.plan.settled, &planned.actual, &mut journal)?)
    }

    fn troubles(&mut self, planned: &Planned) -> Vec<String> {
        let refused: BTreeSet<&Key> = self.refused.iter().map(|(key, _)| key).collect();
        self.reasons.retain(|key, _| refused.contains(key));
        let alive = |key: &&Key| named(key, &planned.actual).is_some();
        let orders = planned.plan.steps.iter().any(|step| ordered(step).is_some());
        self.unordered = self.unordered.take().filter(|_| orders);
        let unordered = self.unordered.iter().map(|refused| refused.reason.clone());
        let stayed = unordered.chain(self.stayed.iter().cloned());
        let reasons = self.reasons.iter().filter(|(key, _)| alive(key)).map(|(_, reason)| reason.clone());
        reasons.chain(stayed).collect()
    }

    /// Knobs that somebody else writes.
    #[must_use]
    pub fn drift(&self, now_ms: u64, actual: &ActualState) -> Vec<snapshot::Drift> {
        let known = self.drift.iter().filter_map(|(key, entry)| {
            let Named { place, file } = named(key, actual)?;
            Some(snapshot::Drift {
                path: place.path.to_string(),
                file,
                want: entry.want.clone(),
                found: entry.found.clone(),
                times: entry.times,
                by: owner(actual, &place),
                back_off_ms: Some(entry.write_from_ms.saturating_sub(now_ms)),
            })
        });
        known.collect()
    }
}

/// An error with what it came from.
pub(crate) fn in_words(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        words = format!("{words}: {cause}");
        source = cause.source();
    }
    words
}

/// How many cgroups there are: v1 in `/proc/cgroups`, v2 in `cgroup.stat` of its root (cgroup-v2.rst, `nr_descendants`).
fn population(host: &mut dyn Host, hierarchies: &[Hierarchy]) -> String {
    let mut text = host.read_file(Path::new("/proc/cgroups")).unwrap_or_default();
    for hierarchy in hierarchies.iter().filter(|one| one.version == Version::V2) {
        let stat = Path::new(&hierarchy.mount).join("cgroup.stat");
        let stat = host.read_file(&stat).unwrap_or_default();
        text.extend(stat.lines().filter(|line| line.starts_with("nr_descendants")));
    }
    text
}

fn inodes(actual: &ActualState) -> BTreeSet<(usize, u64)> {
    actual.cgroups.iter().map(|(place, cgroup)| (place.hierarchy, cgroup.inode)).collect()
}

/// Whether a step is about a group that was there in every look so far, or about one that it makes.
fn lasts(step: &Step, actual: &ActualState, lasting: Option<&BTreeSet<(usize, u64)>>) -> bool {
    let found = actual.cgroups.get(&step.place).zip(lasting);
    found.is_none_or(|(cgroup, lasting)| lasting.contains(&(step.place.hierarchy, cgroup.inode)))
}

fn structure(steps: &[Step]) -> usize {
    steps.iter().take_while(|step| matches!(step.action, Action::Create | Action::Enable(_))).count()
}

/// What a step writes: old and new value.
fn change(step: &Step) -> Option<(&Value, &Value)> {
    match &step.action {
        Action::Write { from, to, .. } | Action::OneWay { from, to, .. } | Action::Renew { from, to, .. } => {
            Some((from, to))
        }
        _ => None,
    }
}

/// The knob that a step changes and its new value, if it is one that controllers decide and that changes nothing else.
fn alone(step: &Step) -> Option<((KnobId, Option<Device>), &Value)> {
    const ALONE: [KnobId; 9] = [
        KnobId::CpusetCpus,
        KnobId::CpuMax,
        KnobId::CpuPeriod,
        KnobId::CpuWeight,
        KnobId::IoReadBps,
        KnobId::IoWriteBps,
        KnobId::IoWeight,
        KnobId::IoBfqWeight,
        KnobId::CgroupFreeze,
    ];
    match &step.action {
        Action::Write { knob, device, to, .. } if ALONE.contains(knob) => Some(((*knob, *device), to)),
        _ => None,
    }
}

/// What a step tells the scheduler.
fn ordered(step: &Step) -> Option<&Orders> {
    match &step.action {
        Action::Order { to, .. } => Some(to),
        _ => None,
    }
}

fn key_of(step: &Step, actual: &ActualState) -> Option<Key> {
    let (knob, device): (KnobId, Option<Device>) = match &step.action {
        Action::Write { knob, device, .. } => (*knob, *device),
        Action::OneWay { knob, .. } | Action::Renew { knob, .. } => (*knob, None),
        _ => return None,
    };
    let inode = actual.cgroups.get(&step.place)?.inode;
    Some(Key { hierarchy: step.place.hierarchy, inode, knob, device })
}

fn named(key: &Key, actual: &ActualState) -> Option<Named> {
    let same = |(place, cgroup): &(&Place, &commensal_core::actual::Cgroup)| {
        place.hierarchy == key.hierarchy && cgroup.inode == key.inode
    };
    let (place, _) = actual.cgroups.iter().find(same)?;
    let version = actual.hierarchies.get(key.hierarchy).map_or(Version::V2, |one| one.version);
    let file = key.knob.row().file(version).map_or_else(|| key.knob.to_string(), |file| file.name.to_owned());
    Some(Named { place: place.clone(), file })
}

/// Who else writes a group's files, as far as its place tells.
fn owner(actual: &ActualState, place: &Place) -> Option<String> {
    if let Some(unit) = actual.managed_by(place) {
        return Some(format!("systemd, whose unit {unit} it is"));
    }
    let of = |part: &str| {
        let engine = ["docker", "libpod", "cri-containerd", "crio", "kubepods"];
        engine.into_iter().find(|name| part.starts_with(name))
    };
    let engine = place.path.parts().find_map(of)?;
    Some(format!("a container manager, by the name {engine}"))
}

fn action(step: &Step, planned: &Planned, now: &Now) -> snapshot::Action {
    let path = &step.place.path;
    let members = planned
        .desired
        .groups
        .iter()
        .flat_map(|group| group.members.iter().map(move |member| (&group.name, &member.path)));
    let group = members.filter(|(_, member)| member.contains(path)).max_by_key(|(_, member)| member.depth());
    let (old, new) = match change(step) {
        Some((from, to)) => (Some(from.to_string()), Some(to.to_string())),
        None => (None, None),
    };
    let file = key_of(step, &planned.actual).and_then(|key| named(&key, &planned.actual));
    let what = match file {
        Some(named) => format!("{} {}", named.place.path, named.file),
        // A group that has just been made was not found yet.
        None if change(step).is_some() => format!("{path} {}", step.file(&planned.actual)),
        None => step.describe(&planned.actual),
    };
    snapshot::Action {
        at: now.text.clone(),
        group: group.map(|(name, _)| name.to_string()),
        what,
        old,
        new,
        why: step.why.clone(),
    }
}
