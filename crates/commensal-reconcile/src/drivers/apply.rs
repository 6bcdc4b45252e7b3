//! Carries out the steps of a plan: records the original in the undo journal, creates, writes and reads back. When a
//! step is refused, undoes all steps carried out before it.
//!
//! A group is a cgroup here. Level means `cpu.qos_level` of openEuler's kernel: the kernel makes the threads of a group
//! below level 0 `SCHED_IDLE`. The kernel does not allow a level to be raised again, so undoing a level replaces the
//! group by a fresh one. A mark is the copy of a journal record in an extended attribute of the group.

mod record;
mod stopping;
mod taking_back;

pub(crate) use record::safe_records;
pub use record::{forget_gone, forget_settled, verify};

use crate::drivers::level::Kept;
use crate::hand::{self, is_gone};
use crate::journal::{Created, Journal, JournalError, Record, Target};
use commensal_core::actual::{ActualState, CgroupRef};
use commensal_core::errno::Errno;
use commensal_core::knob::{Controller, File, KnobId};
use commensal_core::member::ProcessId;
use commensal_core::plan::{Action, Step, structure, undo};
use commensal_core::scheduler::Orders;
use commensal_core::text::visible;
use commensal_host::{Dir, Host, HostError, below};
use std::collections::{BTreeMap, BTreeSet, HashMap};
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

impl Refusal {
    /// Whether the step may be in force nevertheless, so that it must be undone as well.
    fn has_reached_kernel(&self, step: &Step) -> bool {
        match self {
            Refusal::ReadBack { .. } | Refusal::Unread { .. } => true,
            // Orders without a timely response may still be carried out later; the scheduler handles requests in order.
            Refusal::Host { error, .. } => {
                error.errno == Errno::ETIMEDOUT && matches!(step.action, Action::Order { .. })
            }
            _ => false,
        }
    }
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

impl Outcome {
    /// Adds the outcome of the steps that were carried out after these.
    pub(crate) fn then(self, mut later: Outcome) -> Outcome {
        later.applied.splice(0..0, self.applied);
        later.told.splice(0..0, self.told);
        later.done += self.done;
        if let Some(failure) = &mut later.failure {
            failure.step += self.done;
        }
        later
    }
}

/// Carries out `steps` in order. `actual` is the machine's state for which they were planned. At the first refusal it
/// stops and undoes the steps carried out so far.
pub fn apply(host: &mut dyn Host, steps: &[Step], actual: &ActualState, journal: &mut Journal) -> Outcome {
    let mark = journal.len();
    let mut work = Work::new(host, actual);
    work.kept = journal.members();
    let structure = structure(steps).len();
    let mut failed = work.prepare(steps, structure, journal).err();
    if failed.is_none() {
        failed = work.run(steps, structure, journal).err();
    }
    if let Some((step, refusal)) = failed {
        let vanished = steps.get(step).is_some_and(|step| work.has_vanished(step, &refusal));
        let reached = steps.get(step).is_some_and(|step| refusal.has_reached_kernel(step));
        let touched = work.outcome.done + usize::from(reached);
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
        let forgotten = journal.forget(work.host, |index, record| new(index) || record.is_member(&given));
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
        let _ = journal.forget(work.host, |_, record| record.is_member(&given));
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

/// The moves of processes in a plan.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    pub results: BTreeMap<ProcessId, MoveOutcome>,
    /// Processes that are not moved, because their threads are in several cgroups.
    pub apart: BTreeSet<ProcessId>,
    /// Processes that the journal contained before this plan.
    pub known: BTreeSet<ProcessId>,
}

/// Result of the move of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MoveOutcome {
    /// The process was moved.
    Moved,
    /// The process has exited.
    Gone,
    /// The process was not moved, for this reason. The flag tells whether the process is in its old group in every
    /// hierarchy.
    Stayed(String, bool),
}

pub(crate) struct Work<'a> {
    pub host: &'a mut dyn Host,
    pub actual: &'a ActualState,
    pub dirs: BTreeMap<CgroupRef, Dir>,
    pub outcome: Outcome,
    /// Inodes of the fresh groups that replaced groups.
    pub recreated: BTreeMap<CgroupRef, u64>,
    pub moves: Moves,
    /// Controllers that the plan enables for the children of these groups.
    pub enabling: BTreeSet<(CgroupRef, Controller)>,
    /// Recorded scheduling attributes of the threads in groups below level 0.
    pub kept: Kept,
    /// Messages about lifted members (moved out of a group below level 0 for a while) that could not be moved back.
    pub aloft: Vec<String>,
}

/// What the steps of a plan that was carried out have put back.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    /// The records that are over, by their subjects.
    over: HashMap<Record, Record>,
    /// The scheduler's orders now, if a step has sent orders.
    pub orders: Option<Orders>,
}

impl Settled {
    pub fn is_over(&self, record: &Record) -> bool {
        self.over.get(&record.subject()) == Some(record)
    }
}

/// Index of a refused step, and the reason.
type Stop = (usize, Refusal);

pub(crate) fn host_error(error: HostError, knob: Option<KnobId>) -> Refusal {
    Refusal::Host { error, knob }
}

impl<'a> Work<'a> {
    fn new(host: &'a mut dyn Host, actual: &'a ActualState) -> Work<'a> {
        let (dirs, recreated, enabling) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        let (outcome, moves, kept, aloft) = (Outcome::default(), Moves::default(), Kept::new(), Vec::new());
        Work { host, actual, dirs, outcome, recreated, moves, enabling, kept, aloft }
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
            if !later {
                self.dir(&step.place).map_err(stop)?;
            }
            // Not journalled for a group that commensal created: its changes go with it.
            let own = later || self.actual.ours.created.contains(&step.place);
            records.extend(self.before(step, (own, &mut seen, &records), journal).map_err(stop)?);
        }
        journal.append(self.host, &records).map_err(|error| (0, Refusal::Journal(error)))
    }

    /// Whether the plan enables the knob's controller for this group.
    pub fn enables(&self, place: &CgroupRef, knob: KnobId) -> bool {
        place.path.parent().is_some_and(|path| {
            let above = CgroupRef { hierarchy: place.hierarchy, path };
            self.enabling.contains(&(above, knob.row().controller))
        })
    }

    fn run(&mut self, steps: &[Step], structure: usize, journal: &mut Journal) -> Result<(), Stop> {
        let (first, rest) = steps.split_at(structure);
        let mut created = Vec::new();
        for (index, step) in first.iter().enumerate() {
            self.carry_out(step, journal).map_err(|refusal| (index, refusal))?;
            self.outcome.done += 1;
            if let (Action::Create, Some(dir)) = (&step.action, self.dirs.get(&step.place).copied()) {
                created.push(Record::Created(Created(self.target(&step.place, dir))));
            }
        }
        journal.append(self.host, &created).map_err(|error| (structure, Refusal::Journal(error)))?;
        let mut announced = false;
        for (index, step) in (structure..).zip(rest) {
            if matches!(step.action, Action::Move(_)) && !announced {
                announced = true;
                self.announce(steps, journal).map_err(|refusal| (index, refusal))?;
            }
            self.carry_out(step, journal).map_err(|refusal| (index, refusal))?;
            self.outcome.done += 1;
        }
        Ok(())
    }

    /// Returns the groups in the journal that no longer exist. Nothing can be restored in them.
    fn dead(&mut self, journal: &Journal) -> BTreeSet<Target> {
        let unseen = |target: &&Target| {
            self.actual.hierarchies.iter().any(|one| one.mount == target.mount)
                && target.find(self.actual).is_none()
        };
        let mut dead: BTreeSet<Target> = journal.groups_of_values().filter(unseen).cloned().collect();
        dead.retain(|target| match hand::open(self.host, target) {
            Ok(Some(dir)) => {
                self.host.close(dir);
                false
            }
            opened => opened.is_ok(),
        });
        dead
    }

    /// Drops journal records whose value is restored or whose cgroup no longer exists.
    fn settle(&mut self, steps: &[Step], journal: &mut Journal) {
        let (mut settled, dead) = (Settled::default(), self.dead(journal));
        // A step settles the record that its inverse would need. `undo` lists the steps in reverse, so the last step of each
        // subject comes first; earlier ones do not count: a CPU set may temporarily be wider.
        for inverse in undo(steps) {
            if let Action::Order { from, .. } = &inverse.action {
                // An order that has only changed is still there.
                settled.orders.get_or_insert_with(|| from.clone());
                continue;
            }
            for record in self.traces(&inverse) {
                settled.over.entry(record.subject()).or_insert(record);
            }
        }
        // If this fails, the steps still count as done; the next apply finds the values in place and tries again.
        let _ = journal.forget(self.host, |_, record| {
            settled.is_over(record)
                || record.kind().is_settled(&settled)
                || record.setting().is_some_and(|setting| dead.contains(&setting.group))
        });
    }

    fn finish(self) -> Outcome {
        for dir in self.dirs.into_values() {
            self.host.close(dir);
        }
        self.outcome
    }

    pub fn mount(&self, place: &CgroupRef) -> String {
        self.actual
            .hierarchies
            .get(place.hierarchy)
            .map(|hierarchy| hierarchy.mount.clone())
            .unwrap_or_default()
    }

    pub fn target(&self, place: &CgroupRef, dir: Dir) -> Target {
        Target { mount: self.mount(place), path: place.path.as_str().to_owned(), inode: dir.inode }
    }

    pub fn file(&self, place: &CgroupRef, knob: KnobId) -> Result<&'static File, Refusal> {
        let version = self.actual.hierarchies.get(place.hierarchy).map(|hierarchy| hierarchy.version);
        let file = version.and_then(|version| knob.row().file(version));
        file.ok_or_else(|| Refusal::Plan(format!("{knob} has no file in this hierarchy")))
    }

    pub fn parent(&mut self, place: &CgroupRef) -> Result<Dir, Refusal> {
        let path = place
            .path
            .parent()
            .ok_or_else(|| Refusal::Plan("the root cgroup cannot be created or removed".to_owned()))?;
        self.dir(&CgroupRef { hierarchy: place.hierarchy, path })
    }

    /// Returns the open group. It is opened once, and only if it is the group in the plan.
    pub fn dir(&mut self, place: &CgroupRef) -> Result<Dir, Refusal> {
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
