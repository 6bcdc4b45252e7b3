//! Carries out the steps of a plan: records the original in the undo journal, creates, writes and reads back. When a
//! step is refused, undoes all steps carried out before it.
//!
//! A group is a cgroup here. Level means `cpu.qos_level` of openEuler's kernel: the kernel makes the threads of a group
//! below level 0 `SCHED_IDLE`. The kernel does not allow a level to be raised again, so undoing a level replaces the
//! group by a fresh one. A mark is the copy of a journal record in an extended attribute of the group.

mod levels;
mod members;
mod moving;
mod orders;
mod record;
mod stopping;
mod taking_back;

use members::is_member;
pub(crate) use record::safe_records;
pub use record::{forget_gone, forget_settled, verify};

use crate::agent_lock::lives;
use crate::drivers::level::Kept;
use crate::drivers::{cookies, original_text};
use crate::hand::{self, Put, Slot, is_gone};
use crate::journal::{Journal, JournalError, Record, Target};
use crate::marks;
use commensal_core::actual::{ActualState, CgroupPath, CgroupRef};
use commensal_core::errno::Errno;
use commensal_core::knob::{Controller, File, KnobId, Value};
use commensal_core::member::ProcessId;
use commensal_core::plan::{Action, Step};
use commensal_core::text::visible;
use commensal_core::topology::Device;
use commensal_core::vendor::Switch;
use commensal_host::{Dir, Host, HostError, below};
use moving::MoveOutcome;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A value that was written and read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The group, as `hierarchy:path`.
    pub place: String,
    /// Kernel file.
    pub file: &'static str,
    /// The wanted value.
    pub want: String,
    /// The value that the file reads.
    pub read: String,
}

/// Why a step was refused.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The kernel refused the operation.
    #[error("{}", with_meaning(.error, *.knob))]
    Host {
        /// The kernel's error.
        error: HostError,
        /// The knob that was written, to explain the error number.
        knob: Option<KnobId>,
    },
    /// The group no longer exists, or another group has its path.
    #[error("{place} vanished between planning and applying; plan again")]
    Vanished {
        /// The group that vanished, as `hierarchy:path`.
        place: String,
    },
    /// A v2 controller cannot be enabled because the group contains processes.
    #[error(
        "{error}\n  because: {place} contains processes, and the kernel enables {controller} only below a cgroup that contains \
         none\n  try: move them into a child group, or start commensal elsewhere"
    )]
    Internal {
        /// The group that contains processes, as `hierarchy:path`.
        place: String,
        /// The controller to be enabled.
        controller: Controller,
        /// The kernel's error.
        error: HostError,
    },
    /// The kernel accepted the value, but the file reads another one.
    #[error(
        "{place} {file}: wrote {want}, reads {read}; another program writes it, or this kernel changes the value"
    )]
    ReadBack {
        /// The group with the file, as `hierarchy:path`.
        place: String,
        /// Kernel file.
        file: &'static str,
        /// The value written.
        want: String,
        /// The value that the file reads.
        read: String,
    },
    /// The kernel accepted the value, but it could not be read back.
    #[error("{place} {file} was written, but cannot be read back: {because}")]
    Unread {
        /// The group with the file, as `hierarchy:path`.
        place: String,
        /// Kernel file.
        file: &'static str,
        /// Why.
        because: String,
    },
    /// Another instance of commensal manages this setting.
    #[error(
        "{place} {file} is managed by another running commensal, whose state directory is {owner}\n  try: leave this group to it, or stop it"
    )]
    Claimed {
        /// The group with the file, as `hierarchy:path`.
        place: String,
        /// Kernel file.
        file: &'static str,
        /// State directory of the other instance.
        owner: String,
    },
    /// The scheduler refused the orders, or its response is not valid.
    #[error("{0}")]
    Orders(String),
    /// The journal could not be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The plan names something that is not in the knob table: a bug in commensal.
    #[error("the plan cannot be carried out: {0}")]
    Plan(String),
}

/// Formats the error, with the meaning of its number for the knob and what to do about it.
pub(crate) fn with_meaning(error: &HostError, knob: Option<KnobId>) -> String {
    match knob.and_then(|knob| knob.row().meaning(error.errno)) {
        Some(meaning) => format!("{error}\n  because: {}\n  try: {}", meaning.because, meaning.try_this),
        None => error.to_string(),
    }
}

/// The step that failed.
#[derive(Debug)]
pub struct Failure {
    /// Index of the step.
    pub step: usize,
    /// Description of the step.
    pub description: String,
    /// Why the step was refused.
    pub refusal: Refusal,
    /// Whether the step failed because its group no longer exists.
    pub vanished: bool,
    /// Whether undoing has replaced groups by fresh ones.
    pub recreated: bool,
    /// Messages about steps that could not be undone.
    pub left: Vec<String>,
}

/// Result of carrying out a plan.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Number of steps carried out (and, after a failure, undone).
    pub done: usize,
    /// Values written and read back.
    pub applied: Vec<Applied>,
    /// Processes that could not be moved, with the reasons.
    pub stayed: Vec<String>,
    /// Messages about steps that were carried out with an unexpected result.
    pub told: Vec<String>,
    /// The refusal, if there was one.
    pub failure: Option<Failure>,
}

/// Carries out `steps` in order. `actual` is the machine's state for which they were planned. At the first refusal it
/// stops and undoes the steps carried out so far.
pub fn apply(host: &mut dyn Host, steps: &[Step], actual: &ActualState, journal: &mut Journal) -> Outcome {
    let mark = journal.len();
    let mut work = Work::new(host, actual);
    work.kept = journal.members();
    let structure =
        steps.iter().take_while(|step| matches!(step.action, Action::Create | Action::Enable(_))).count();
    let mut failed = work.prepare(steps, structure, journal).err();
    if failed.is_none() {
        failed = work.run(steps, structure, journal).err();
    }
    if let Some((step, refusal)) = failed {
        let vanished = steps.get(step).is_some_and(|step| work.has_vanished(step, &refusal));
        // A value that was written but reads back wrong must be undone as well.
        let touched = work.outcome.done.max(work.reached.map_or(0, |index| index + 1));
        let (mut left, again) = work.take_back(&steps[..touched], journal);
        let (given, refused) = work.give_back(&steps[..touched], journal);
        left.extend(refused);
        left.append(&mut work.aloft);
        // `restore` finds the members of the group, whichever group contains them.
        left.extend(journal.recreating().map(|target| {
            format!(
                "{} was recreated only in part; `commensal restore` completes that",
                visible(&target.path)
            )
        }));
        let new = |index: usize| left.is_empty() && index >= mark;
        let forgotten = journal.forget(work.host, |index, record| new(index) || is_member(record, &given));
        // A commensal group that was removed and created again has a new inode.
        if let Err(error) = forgotten.and_then(|()| journal.append(work.host, &again)) {
            left.push(format!("cannot update the undo journal: {error}"));
        }
        let description = steps.get(step).map(|step| step.describe(actual)).unwrap_or_default();
        let recreated = !work.recreated.is_empty();
        work.outcome.failure = Some(Failure { step, description, refusal, vanished, recreated, left });
    } else {
        let (given, refused) = work.give_back(steps, journal);
        work.outcome.told.extend(refused);
        work.outcome.told.append(&mut work.aloft);
        // If the journal cannot be rewritten, a later restore finds that these threads have their attributes already.
        let _ = journal.forget(work.host, |_, record| is_member(record, &given));
        work.settle(steps, journal);
        // If this fails, the next apply tries again.
        let _ = work.settle_moves(steps, journal);
    }
    work.finish()
}

/// Returns the controllers that these steps enable, each with the group whose children get it.
fn enabled(steps: &[Step]) -> BTreeSet<(CgroupRef, Controller)> {
    let controller = |step: &Step| match &step.action {
        Action::Enable(controller) => Some((step.place.clone(), *controller)),
        _ => None,
    };
    steps.iter().filter_map(controller).collect()
}

struct Work<'a> {
    host: &'a mut dyn Host,
    actual: &'a ActualState,
    dirs: BTreeMap<CgroupRef, Dir>,
    outcome: Outcome,
    /// Index of the failed step, if its write had reached the kernel.
    reached: Option<usize>,
    /// Inodes of the fresh groups that replaced groups.
    recreated: BTreeMap<CgroupRef, u64>,
    /// Results of the moves of processes.
    moves: BTreeMap<ProcessId, MoveOutcome>,
    /// Processes that are not moved, because their threads are in several cgroups.
    apart: BTreeSet<ProcessId>,
    /// Processes that the journal contained before this plan.
    known: BTreeSet<ProcessId>,
    /// Controllers that the plan enables for the children of these groups.
    enabling: BTreeSet<(CgroupRef, Controller)>,
    /// Recorded scheduling attributes of the threads in groups below level 0.
    kept: Kept,
    /// Messages about lifted members (moved out of a group below level 0 for a while) that could not be moved back.
    aloft: Vec<String>,
}

/// Index of a refused step, and the reason.
type Stop = (usize, Refusal);

fn host_error(error: HostError, knob: Option<KnobId>) -> Refusal {
    Refusal::Host { error, knob }
}

impl<'a> Work<'a> {
    fn new(host: &'a mut dyn Host, actual: &'a ActualState) -> Work<'a> {
        let (dirs, recreated) = (BTreeMap::new(), BTreeMap::new());
        let (outcome, moves, known) = (Outcome::default(), BTreeMap::new(), BTreeSet::new());
        let (apart, enabling, kept, aloft) = (BTreeSet::new(), BTreeSet::new(), Kept::new(), Vec::new());
        let reached = None;
        Work { host, actual, dirs, outcome, reached, recreated, moves, apart, known, enabling, kept, aloft }
    }

    /// Opens every existing group and checks that it is the group in the plan. Journals every group, controller and
    /// setting that a step is about to create, enable or overwrite.
    fn prepare(&mut self, steps: &[Step], structure: usize, journal: &mut Journal) -> Result<(), Stop> {
        let mut records = Vec::new();
        let mut seen = BTreeSet::new();
        let created: BTreeSet<&CgroupRef> = steps[..structure]
            .iter()
            .filter(|step| step.action == Action::Create)
            .map(|step| &step.place)
            .collect();
        self.enabling = enabled(&steps[..structure]);
        for (index, step) in steps.iter().enumerate() {
            let stop = |refusal| (index, refusal);
            // The group is opened later, when a step needs it: another program may have removed it by then, which is
            // not an error.
            let later = created.contains(&step.place) || matches!(step.action, Action::Move(_));
            let target_dir = match later {
                true => None,
                false => Some(self.dir(&step.place).map_err(stop)?),
            };
            match (&step.action, target_dir) {
                (Action::Create, _) => {
                    let mount = self.mount(&step.place);
                    records.push(Record::Creating { mount, path: step.place.path.as_str().to_owned() });
                }
                // Not journalled for a group that commensal created: the controllers are disabled when the group is
                // removed.
                (Action::Enable(controller), Some(dir))
                    if !self.actual.ours.created.contains(&step.place) =>
                {
                    let group = self.target(&step.place, dir);
                    records.push(Record::Enabling { group, controller: controller.v2_name().to_owned() });
                }
                (Action::Switch { switch, from, .. }, _) => {
                    let record = Record::Switching { switch: switch.to_string(), value: from.to_string() };
                    records.extend(Some(record).filter(|record| !journal.has(record)));
                }
                (Action::Order { from, to }, _) => {
                    records.extend(self.ordering(&step.place, from, to).filter(|one| !journal.has(one)));
                }
                (Action::Cookie { give: true }, Some(dir))
                    if !self.actual.ours.created.contains(&step.place) =>
                {
                    let record = Record::Cookied(self.target(&step.place, dir));
                    match journal.has(&record) {
                        // A crash after the record was written may have prevented the mark.
                        true => journal.mark(self.host, &record),
                        false => records.push(record),
                    }
                }
                (Action::Write { .. } | Action::Irreversible { .. }, Some(dir))
                    if !self.actual.ours.created.contains(&step.place) =>
                {
                    let (knob, device) = match &step.action {
                        Action::Write { knob, device, .. } => (knob, device),
                        Action::Irreversible { knob, .. } => (knob, &None),
                        _ => continue,
                    };
                    if seen.insert((step.place.clone(), *knob, *device)) {
                        let record =
                            self.put_on_record(step, dir, (*knob, *device), journal).map_err(stop)?;
                        if record.is_some() {
                            let needed = self.enabled_by_others(&step.place, *knob, journal);
                            let new = needed.into_iter().filter(|one| !records.contains(one));
                            records.extend(new.collect::<Vec<_>>());
                        }
                        records.extend(record);
                    }
                    // The kernel discards the weight when a group becomes idle. A plan therefore writes the default
                    // weight first, which journals the old one. If that write was refused and is left out now, the old
                    // weight would be lost, so it is journalled here.
                    let weight = (step.place.clone(), KnobId::CpuWeight, None);
                    let idles = matches!(&step.action, Action::Write { to, .. } if *to == Value::Number(1));
                    if *knob == KnobId::CpuIdle && idles && !seen.contains(&weight) {
                        let of_weight = (KnobId::CpuWeight, None);
                        let record = self.put_on_record(step, dir, of_weight, journal).map_err(stop)?;
                        let default = self.file(&step.place, KnobId::CpuWeight).map_err(stop)?.default;
                        let differs =
                            |one: &Record| !matches!(one, Record::Original { value, .. } if value == default);
                        if let Some(record) = record.filter(differs) {
                            records.push(record);
                            seen.insert(weight);
                        }
                    }
                }
                _ => {}
            }
        }
        journal.append(self.host, &records).map_err(|error| (0, Refusal::Journal(error)))
    }

    /// Returns the record of a setting's value before its first write; `None` if the original is recorded already.
    fn put_on_record(
        &mut self,
        step: &Step,
        dir: Dir,
        (knob, device): (KnobId, Option<Device>),
        journal: &Journal,
    ) -> Result<Option<Record>, Refusal> {
        let group = self.target(&step.place, dir);
        let (name, device_name) = (knob.to_string(), device.map(|device| device.to_string()));
        let known = journal.has_original(&group, &name, device_name.as_deref());
        let file = self.file(&step.place, knob)?;
        let record = |value: String| {
            let (group, knob, file, device) =
                (group.clone(), name.clone(), file.name.to_owned(), device_name.clone());
            Record::Original { group, knob, file, device, value }
        };
        // A value that another instance of commensal has written is not an original: that instance's mark has the value
        // from before its write.
        let mark = match marks::of(self.host, dir, &record(String::new())) {
            // The journal has the original as well, so the damaged copy is replaced.
            Err(error) if known && marks::is_damaged(&error) => {
                journal.mark_original(self.host, &record(String::new()));
                None
            }
            mark => mark.map_err(|error| host_error(error, Some(knob)))?,
        };
        let other = mark.as_ref().filter(|mark| Path::new(&mark.owner) != journal.state_dir());
        if let Some(other) = other.filter(|other| lives(self.host, &other.owner)) {
            let (place, owner) = (self.actual.show(&step.place), other.owner.clone());
            return Err(Refusal::Claimed { place, file: file.name, owner });
        }
        let told = mark.as_ref().and_then(|mark| match &mark.record {
            Record::Original { value, .. } if file.parse(value, device).is_ok() => Some(value.clone()),
            _ => None,
        });
        match (known, told) {
            (true, Some(value)) if other.is_some() => journal.mark(self.host, &record(value)),
            // Undoing this level replaces the group, which requires the mark. A crash after the record was written may
            // have prevented the mark.
            (true, None) if knob == KnobId::CpuQosLevel => {
                journal.mark_original(self.host, &record(String::new()));
            }
            (true, _) => {}
            (false, Some(value)) => return Ok(Some(record(value))),
            (false, None) => {
                let is_fresh = self.enables(&step.place, knob);
                return Ok(Some(record(self.original(dir, (knob, file), device, is_fresh)?)));
            }
        }
        Ok(None)
    }

    /// Whether the plan enables the knob's controller for this group.
    fn enables(&self, place: &CgroupRef, knob: KnobId) -> bool {
        place.path.parent().is_some_and(|path| {
            let above = CgroupRef { hierarchy: place.hierarchy, path };
            self.enabling.contains(&(above, knob.row().controller))
        })
    }

    /// Returns records of the v2 controllers in parent groups that this knob needs and that another instance of
    /// commensal has enabled. The instance that is restored last disables these controllers.
    fn enabled_by_others(&mut self, place: &CgroupRef, knob: KnobId, journal: &Journal) -> Vec<Record> {
        let mut records = Vec::new();
        for path in place.path.ancestors() {
            let above = CgroupRef { hierarchy: place.hierarchy, path };
            let Ok(dir) = self.dir(&above) else { continue };
            let controller = knob.row().controller.v2_name().to_owned();
            let record = Record::Enabling { group: self.target(&above, dir), controller };
            let mark = marks::of(self.host, dir, &record).ok().flatten();
            let by_other = mark.is_some_and(|mark| Path::new(&mark.owner) != journal.state_dir());
            records.extend(Some(record).filter(|record| by_other && !journal.has(record)));
        }
        records
    }

    fn run(&mut self, steps: &[Step], structure: usize, journal: &mut Journal) -> Result<(), Stop> {
        let mut created = Vec::new();
        for (index, step) in steps[..structure].iter().enumerate() {
            self.step(step, journal).map_err(|refusal| {
                let reached = matches!(refusal, Refusal::ReadBack { .. } | Refusal::Unread { .. });
                self.reached = reached.then_some(index);
                (index, refusal)
            })?;
            self.outcome.done += 1;
            if let (Action::Create, Some(dir)) = (&step.action, self.dirs.get(&step.place).copied()) {
                created.push(Record::Created(self.target(&step.place, dir)));
            }
        }
        journal.append(self.host, &created).map_err(|error| (structure, Refusal::Journal(error)))?;
        let mut announced = false;
        for (index, step) in steps.iter().enumerate().skip(structure) {
            if matches!(step.action, Action::Move(_)) && !announced {
                announced = true;
                self.announce(steps, journal).map_err(|refusal| (index, refusal))?;
            }
            let ordered = matches!(step.action, Action::Order { .. });
            self.step(step, journal).map_err(|refusal| {
                let reached = match &refusal {
                    Refusal::ReadBack { .. } | Refusal::Unread { .. } => true,
                    // Orders without a timely response may still be carried out later, so they are undone as well; the
                    // scheduler handles requests in order.
                    Refusal::Host { error, .. } => ordered && error.errno == Errno::ETIMEDOUT,
                    _ => false,
                };
                self.reached = reached.then_some(index);
                (index, refusal)
            })?;
            self.outcome.done += 1;
        }
        Ok(())
    }

    /// Returns the groups in the journal that no longer exist. Nothing can be restored in them.
    fn dead(&mut self, journal: &Journal) -> BTreeSet<Target> {
        let hierarchy = |mount: &str| self.actual.hierarchies.iter().position(|one| one.mount == mount);
        let unseen = |target: &&Target| {
            hierarchy(&target.mount).is_some_and(|hierarchy| {
                let place = CgroupRef { hierarchy, path: CgroupPath::new(&target.path) };
                self.actual.cgroups.get(&place).is_none_or(|found| found.inode != target.inode)
            })
        };
        let mut dead: BTreeSet<Target> = journal.groups().filter(unseen).cloned().collect();
        dead.retain(|target| match self.host.open(&below(Path::new(&target.mount), &target.path)) {
            Ok(dir) => {
                self.host.close(dir);
                dir.inode != target.inode
            }
            Err(error) => is_gone(&error),
        });
        dead
    }

    /// Drops journal records whose value is restored or whose cgroup no longer exists.
    fn settle(&mut self, steps: &[Step], journal: &mut Journal) {
        // Only the last write of each knob counts: a CPU set may temporarily be wider.
        let mut last = BTreeMap::new();
        let mut gone = BTreeSet::new();
        let mut switches = BTreeMap::new();
        let mut taken = BTreeSet::new();
        let mut disabled = BTreeSet::new();
        let mut orders = None;
        for step in steps {
            match &step.action {
                Action::Switch { switch, to, .. } => {
                    switches.insert(switch.to_string(), to.to_string());
                }
                Action::Disable(controller) => {
                    if let Some(dir) = self.dirs.get(&step.place) {
                        disabled.insert((self.target(&step.place, *dir), controller.v2_name().to_owned()));
                    }
                }
                Action::Order { to, .. } => orders = Some(to),
                Action::Cookie { give: false } => {
                    taken.extend(self.dirs.get(&step.place).map(|dir| self.target(&step.place, *dir)));
                }
                Action::Write { .. } | Action::Irreversible { .. } | Action::Recreate { .. } => {
                    let (knob, device, to) = match &step.action {
                        Action::Write { knob, device, to, .. } => (knob, device, to),
                        Action::Irreversible { knob, to, .. } | Action::Recreate { knob, to, .. } => {
                            (knob, &None, to)
                        }
                        _ => continue,
                    };
                    let (Some(dir), Ok(file)) = (self.dirs.get(&step.place), self.file(&step.place, *knob))
                    else {
                        continue;
                    };
                    let device_name = device.map(|device| device.to_string());
                    let key = (self.target(&step.place, *dir), knob.to_string(), device_name);
                    last.insert(key, file.encode(to, *device).unwrap_or_default());
                }
                Action::Remove => {
                    gone.insert((self.mount(&step.place), step.place.path.as_str().to_owned()));
                }
                _ => {}
            }
        }
        let dead = self.dead(journal);
        // If this fails, the steps still count as done; the next apply finds the values in place and tries again.
        let _ = journal.forget(self.host, |_, record| match record {
            Record::Original { group, knob, device, value, .. } => {
                dead.contains(group)
                    || last.get(&(group.clone(), knob.clone(), device.clone())) == Some(value)
            }
            Record::Safe { group, .. } => dead.contains(group),
            Record::Switching { switch, value } => switches.get(switch) == Some(value),
            Record::Cookied(target) => taken.contains(target),
            Record::Ordering { owner, .. } => orders.is_some_and(|to| {
                to.owner == *owner && record.ordered().is_none_or(|cgroup| !to.groups.contains_key(&cgroup))
            }),
            Record::Enabling { group, controller } => disabled.contains(&(group.clone(), controller.clone())),
            Record::Created(Target { mount, path, .. }) | Record::Creating { mount, path } => {
                gone.contains(&(mount.clone(), path.clone()))
            }
            _ => false,
        });
    }

    fn step(&mut self, step: &Step, journal: &mut Journal) -> Result<(), Refusal> {
        match &step.action {
            Action::Create => self.create(&step.place, journal),
            Action::Remove => self.remove(&step.place),
            Action::Enable(controller) => self.subtree(&step.place, '+', *controller),
            Action::Disable(controller) => self.subtree(&step.place, '-', *controller),
            Action::Write { knob: KnobId::CgroupFreeze, to: to @ Value::Number(1), .. } => {
                self.stop(&step.place, to, journal)
            }
            Action::Write { knob, device, to, .. } => self.write(&step.place, *knob, *device, to),
            Action::Irreversible { knob, to, .. } => self.set_level(&step.place, *knob, to, journal),
            Action::Recreate { knob, to, .. } => self.recreate(&step.place, *knob, to, journal),
            Action::Switch { switch, to, .. } => self.switch(*switch, *to),
            Action::Order { to, .. } => self.order(to),
            Action::Move(movement) => self.move_process(movement),
            Action::Cookie { give } => {
                let dir = self.dir(&step.place)?;
                let done = if *give { cookies::give(self.host, dir) } else { cookies::take(self.host, dir) };
                done.map_err(|error| host_error(error, None))
            }
        }
    }

    fn create(&mut self, place: &CgroupRef, journal: &Journal) -> Result<(), Refusal> {
        let (parent, mount) = (self.parent(place)?, self.mount(place));
        let made = journal.make(self.host, parent, (&mount, place.path.as_str()));
        self.dirs.insert(place.clone(), made.map_err(|error| host_error(error, None))?);
        Ok(())
    }

    fn remove(&mut self, place: &CgroupRef) -> Result<(), Refusal> {
        let inode = self.dir(place)?.inode;
        let parent = self.parent(place)?;
        self.host.rmdir(parent, place.path.name(), inode).map_err(|error| host_error(error, None))?;
        if let Some(dir) = self.dirs.remove(place) {
            self.host.close(dir);
        }
        Ok(())
    }

    fn subtree(&mut self, place: &CgroupRef, sign: char, controller: Controller) -> Result<(), Refusal> {
        let dir = self.dir(place)?;
        const FILE: &str = "cgroup.subtree_control";
        let value = format!("{sign}{controller}");
        let written = self.host.write(dir, FILE, &value);
        let read = self.host.read(dir, FILE);
        let names = |read: &str| read.split_whitespace().any(|name| name == controller.v2_name());
        let done = read.as_ref().is_ok_and(|read| names(read) == (sign == '+'));
        // The value may be in force although the kernel returned an error.
        written.or_else(|error| if done { Ok(()) } else { Err(error) }).map_err(|error| {
            match (sign, error.errno) {
                ('+', Errno::EBUSY) => {
                    Refusal::Internal { place: self.actual.show(place), controller, error }
                }
                _ => host_error(error, None),
            }
        })?;
        let place = self.actual.show(place);
        let read = match read {
            Ok(read) => read,
            Err(error) => return Err(Refusal::Unread { place, file: FILE, because: error.to_string() }),
        };
        match done {
            true => Ok(()),
            false => Err(Refusal::ReadBack { place, file: FILE, want: value, read: read.trim().to_owned() }),
        }
    }

    fn switch(&mut self, switch: Switch, to: i64) -> Result<(), Refusal> {
        let path = Path::new(switch.path());
        let failed = |error| host_error(error, Some(switch.knob()));
        let written = self.host.write_setting(path, &to.to_string());
        let read = self.host.read_file(path).map_err(failed)?;
        if read.trim() != to.to_string() {
            written.map_err(failed)?;
            let (place, read) = (switch.to_string(), read.trim().to_owned());
            return Err(Refusal::ReadBack { place, file: "", want: to.to_string(), read });
        }
        Ok(())
    }

    /// Puts one value into a group.
    fn write(
        &mut self,
        place: &CgroupRef,
        knob: KnobId,
        device: Option<Device>,
        to: &Value,
    ) -> Result<(), Refusal> {
        let dir = self.dir(place)?;
        let slot = Slot { knob, file: self.file(place, knob)?, device };
        let (put, place) = (hand::put(self.host, dir, &slot, to), self.actual.show(place));
        let (file, want) = (slot.file.name, to.to_string());
        let read = match put {
            Put::Held(read) | Put::Written(read) => read.to_string(),
            Put::NotTaken(read) => {
                return Err(Refusal::ReadBack { place, file, want, read: read.to_string() });
            }
            Put::Unread(because) => return Err(Refusal::Unread { place, file, because }),
            Put::Gone(error) | Put::Refused(error) => return Err(host_error(error, Some(knob))),
            Put::Unwritable(why) => return Err(Refusal::Plan(why)),
        };
        self.outcome.applied.push(Applied { place, file, want, read });
        Ok(())
    }

    /// Returns the text to write later to restore the knob's current value. `is_fresh`: the plan enables the knob's
    /// controller for this group, so the file may not exist yet, and gets the kernel's default when it appears.
    fn original(
        &mut self,
        dir: Dir,
        (knob, file): (KnobId, &File),
        device: Option<Device>,
        is_fresh: bool,
    ) -> Result<String, Refusal> {
        let text = match original_text(self.host, dir, (knob, file)) {
            Err(error) if error.errno == Errno::ENOENT && is_fresh => file.default.to_owned(),
            read => read.map_err(|error| host_error(error, Some(knob)))?,
        };
        let value = file.parse(&text, device).map_err(|error| Refusal::Plan(error.to_string()))?;
        file.encode(&value, device).map_err(|error| Refusal::Plan(error.to_string()))
    }

    fn finish(self) -> Outcome {
        for dir in self.dirs.into_values() {
            self.host.close(dir);
        }
        self.outcome
    }

    fn mount(&self, place: &CgroupRef) -> String {
        self.actual
            .hierarchies
            .get(place.hierarchy)
            .map(|hierarchy| hierarchy.mount.clone())
            .unwrap_or_default()
    }

    fn target(&self, place: &CgroupRef, dir: Dir) -> Target {
        Target { mount: self.mount(place), path: place.path.as_str().to_owned(), inode: dir.inode }
    }

    fn file(&self, place: &CgroupRef, knob: KnobId) -> Result<&'static File, Refusal> {
        let version = self.actual.hierarchies.get(place.hierarchy).map(|hierarchy| hierarchy.version);
        let file = version.and_then(|version| knob.row().file(version));
        file.ok_or_else(|| Refusal::Plan(format!("{knob} has no file in this hierarchy")))
    }

    fn parent(&mut self, place: &CgroupRef) -> Result<Dir, Refusal> {
        let path = place
            .path
            .parent()
            .ok_or_else(|| Refusal::Plan("the root cgroup cannot be created or removed".to_owned()))?;
        self.dir(&CgroupRef { hierarchy: place.hierarchy, path })
    }

    /// Returns the open group. It is opened once, and only if it is the group in the plan.
    fn dir(&mut self, place: &CgroupRef) -> Result<Dir, Refusal> {
        if let Some(dir) = self.dirs.get(place) {
            return Ok(*dir);
        }
        let vanished = || Refusal::Vanished { place: self.actual.show(place) };
        let path = below(Path::new(&self.mount(place)), place.path.as_str());
        let dir = self.host.open(&path).map_err(|error| match is_gone(&error) {
            true => vanished(),
            false => host_error(error, None),
        })?;
        let recreated = self.recreated.get(place).copied();
        let planned = recreated.or_else(|| self.actual.cgroups.get(place).map(|found| found.inode));
        if planned.is_some_and(|inode| inode != dir.inode) {
            self.host.close(dir);
            return Err(vanished());
        }
        self.dirs.insert(place.clone(), dir);
        Ok(dir)
    }
}
