//! Carries out a plan: journal, create, write, read back; at the first refusal everything is undone.

mod moving;
mod record;
mod taking_back;

pub(crate) use moving::{alive, identity};
pub(crate) use record::safe_records;
pub use record::{forget_gone, forget_settled, verify};

use crate::drivers::scheduler::order;
use crate::drivers::{cookies, recreate, text_for};
use crate::journal::{Journal, JournalError, Record, Target};
use crate::marks;
use commensal_core::actual::{ActualState, CgroupPath, CgroupRef, SCHEDULER};
use commensal_core::errno::Errno;
use commensal_core::knob::{Controller, File, KnobId, Value};
use commensal_core::member::ProcessId;
use commensal_core::plan::{Action, Step};
use commensal_core::scheduler::Orders;
use commensal_core::text::visible;
use commensal_core::topology::Device;
use commensal_core::vendor::Switch;
use commensal_host::{Dir, Host, HostError, below};
use commensal_sensors::scheduler::Unanswered;
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
    /// The group is gone, or another one has its path.
    #[error("{place} vanished between planning and applying; plan again")]
    Vanished {
        /// The group.
        place: String,
    },
    /// v2: a controller cannot be enabled because the group contains processes.
    #[error(
        "{error}\n  because: {place} has processes of its own, and the kernel gives {controller} only to groups below one that has \
         none\n  try: move them into a child group, or start commensal elsewhere"
    )]
    Internal {
        /// The group.
        place: String,
        /// The controller to be enabled.
        controller: Controller,
        /// The kernel's error.
        error: HostError,
    },
    /// The kernel accepted the value but shows another one.
    #[error(
        "{place} {file}: wrote {want}, reads {read}; something else writes it, or this kernel handles it otherwise"
    )]
    ReadBack {
        /// The group.
        place: String,
        /// Kernel file.
        file: &'static str,
        /// The value written.
        want: String,
        /// The value that the file reads.
        read: String,
    },
    /// The kernel accepted the value, but it could not be read back.
    #[error("{place} {file} was written and cannot be read back: {because}")]
    Unread {
        /// The group.
        place: String,
        /// Kernel file.
        file: &'static str,
        /// Why.
        because: String,
    },
    /// Another commensal manages this setting.
    #[error(
        "{place} {file} is kept by the commensal whose state is in {owner}, which is running\n  try: leave this group to it, or stop it"
    )]
    Claimed {
        /// The group.
        place: String,
        /// Kernel file.
        file: &'static str,
        /// State directory of the other commensal.
        owner: String,
    },
    /// The scheduler refused the orders, or its answer is not valid.
    #[error("{0}")]
    Orders(String),
    /// The journal could not be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The plan names something that is not in the knob table: a bug in commensal.
    #[error("the plan cannot be carried out: {0}")]
    Plan(String),
}

/// The error, with the meaning of its number for the knob, and what to do about it.
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
    /// The step in words.
    pub description: String,
    /// Why.
    pub refusal: Refusal,
    /// Whether that is because its group is gone.
    pub vanished: bool,
    /// Whether taking back has put fresh groups in the place of some.
    pub recreated: bool,
    /// What could not be taken back; empty when the machine is as it was.
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
    /// The refusal, if there was one.
    pub failure: Option<Failure>,
}

/// Carries out `steps` in order. `actual` is the state that they were planned for. At the first refusal it stops and
/// undoes its steps.
pub fn apply(host: &mut dyn Host, steps: &[Step], actual: &ActualState, journal: &mut Journal) -> Outcome {
    let mark = journal.len();
    let mut work = Work::new(host, actual);
    let structure =
        steps.iter().take_while(|step| matches!(step.action, Action::Create | Action::Enable(_))).count();
    let mut failed = work.prepare(steps, structure, journal).err();
    if failed.is_none() {
        failed = work.run(steps, structure, journal).err();
    }
    if let Some((step, refusal)) = failed {
        let vanished = steps.get(step).is_some_and(|step| work.has_vanished(step, &refusal));
        // A value that reached the kernel and then read back wrong has to go back as well.
        let touched = work.outcome.done.max(work.reached.map_or(0, |index| index + 1));
        let (mut left, again) = work.take_back(&steps[..touched], journal);
        // `restore` finds the members wherever they are by then.
        left.extend(journal.recreating().map(|target| {
            format!("{} is half recreated; `commensal restore` finishes it", visible(&target.path))
        }));
        let forgotten = match left.is_empty() {
            true => journal.forget(work.host, |index, _| index >= mark),
            false => Ok(()),
        };
        // A commensal group that was removed and created again has a new inode.
        if let Err(error) = forgotten.and_then(|()| journal.append(work.host, &again)) {
            left.push(format!("records of the undo journal: {error}"));
        }
        let description = steps.get(step).map(|step| step.describe(actual)).unwrap_or_default();
        let recreated = !work.recreated.is_empty();
        work.outcome.failure = Some(Failure { step, description, refusal, vanished, recreated, left });
    } else {
        work.settle(steps, journal);
        // If this fails, the next apply tries again.
        let _ = work.settle_moves(steps, journal);
    }
    work.finish()
}

/// The applied entry for orders.
fn ordered(to: &Orders, read: String) -> Applied {
    Applied { place: SCHEDULER.to_owned(), file: "orders", want: to.describe(), read }
}

struct Work<'a> {
    host: &'a mut dyn Host,
    actual: &'a ActualState,
    dirs: BTreeMap<CgroupRef, Dir>,
    outcome: Outcome,
    /// The last step whose write the kernel accepted.
    reached: Option<usize>,
    /// Inodes of groups that were replaced by fresh ones.
    recreated: BTreeMap<CgroupRef, u64>,
    /// Results of the moves of processes.
    fates: BTreeMap<ProcessId, MoveOutcome>,
    /// Processes that were in the journal before.
    known: BTreeSet<ProcessId>,
}

/// Whether the agent of a state directory is running.
pub(crate) fn lives(host: &dyn Host, state_dir: &str) -> bool {
    let lock = host.state_lock_file(&Path::new(state_dir).join("agent.lock"));
    lock.ok().flatten().is_some_and(|lock| lock.is_held())
}

/// Index of a step and why it was refused.
type Stop = (usize, Refusal);

fn host_error(error: HostError, knob: Option<KnobId>) -> Refusal {
    Refusal::Host { error, knob }
}

impl<'a> Work<'a> {
    fn new(host: &'a mut dyn Host, actual: &'a ActualState) -> Work<'a> {
        let (dirs, recreated) = (BTreeMap::new(), BTreeMap::new());
        let (outcome, fates, known) = (Outcome::default(), BTreeMap::new(), BTreeSet::new());
        Work { host, actual, dirs, outcome, reached: None, recreated, fates, known }
    }

    /// Opens every existing group, checks that it is the one in the plan, and journals what is about to be created,
    /// enabled or overwritten.
    fn prepare(&mut self, steps: &[Step], structure: usize, journal: &mut Journal) -> Result<(), Stop> {
        let mut records = Vec::new();
        let mut seen = BTreeSet::new();
        let created: BTreeSet<&CgroupRef> = steps[..structure]
            .iter()
            .filter(|step| step.action == Action::Create)
            .map(|step| &step.place)
            .collect();
        for (index, step) in steps.iter().enumerate() {
            let stop = |refusal| (index, refusal);
            // The destination of a move is opened when it is needed: groups not owned by commensal may vanish before.
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
                // In a group created by commensal the controller is disabled when the group is removed.
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
                    records.extend(Some(record).filter(|record| !journal.has(record)));
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
                    // The kernel discards a weight while the group is idle. A plan writes the default first, which
                    // journals the old weight; but if that write was refused and is left out now, the old weight would
                    // be lost.
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

    /// The journal record with a setting's value before its first write, unless there is one already.
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
        // A value that another commensal has written is not an original: its mark on the group has the value from
        // before.
        let mark = marks::of(self.host, dir, &record(String::new()));
        let mark = mark.map_err(|error| host_error(error, Some(knob)))?;
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
            (true, _) => {}
            (false, Some(value)) => return Ok(Some(record(value))),
            (false, None) => return Ok(Some(record(self.original(dir, knob, file, device)?))),
        }
        Ok(None)
    }

    /// v2: controllers in parent groups that another commensal has enabled and that this knob needs. Whichever of them
    /// stops last disables them.
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
                self.announce(steps, journal).map_err(|error| (index, Refusal::Journal(error)))?;
            }
            let ordered = matches!(step.action, Action::Order { .. });
            self.step(step, journal).map_err(|refusal| {
                let reached = match &refusal {
                    Refusal::ReadBack { .. } | Refusal::Unread { .. } => true,
                    // Orders without an answer in time may still be carried out, and then in their order.
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

    /// Journalled groups that commensal did not create and that are gone: nothing can be restored in them.
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
            Err(error) => matches!(error.errno, Errno::ENOENT | Errno::ENODEV),
        });
        dead
    }

    /// Drops journal records whose value is restored or whose cgroup no longer exists.
    fn settle(&mut self, steps: &[Step], journal: &mut Journal) {
        // The last write of a knob counts: a CPU set may pass through a wider one.
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
        // If the journal cannot be shortened, the steps still count as done; the next apply finds the value in place
        // and tries again.
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
            Action::Create => self.create(&step.place),
            Action::Remove => self.remove(&step.place),
            Action::Enable(controller) => self.subtree(&step.place, '+', *controller),
            Action::Disable(controller) => self.subtree(&step.place, '-', *controller),
            Action::Write { knob, device, to, .. } => self.write(&step.place, *knob, *device, to),
            Action::Irreversible { knob, to, .. } => self.write(&step.place, *knob, None, to),
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

    /// Journal records for cgroups in the orders that are new or changed.
    fn ordering(&self, place: &CgroupRef, from: &Orders, to: &Orders) -> impl Iterator<Item = Record> {
        let (owner, mount) = (to.owner.clone(), self.mount(place));
        let new = from.changes(to).filter(|(sign, _)| *sign != '-').map(|(_, cgroup)| cgroup.to_owned());
        let new: Vec<String> = new.collect();
        new.into_iter().map(move |cgroup| {
            let path = CgroupPath::new(cgroup.strip_prefix(&mount).unwrap_or(&cgroup)).as_str().to_owned();
            Record::Ordering { owner: owner.clone(), mount: mount.clone(), path }
        })
    }

    fn order(&mut self, orders: &Orders) -> Result<(), Refusal> {
        let Some(scheduler) = &self.actual.scheduler else {
            return Err(Refusal::Plan("orders for a scheduler that nobody has seen".to_owned()));
        };
        order(self.host, &scheduler.socket, orders).map_err(|error| match error {
            Unanswered::Host(error) => host_error(error, None),
            Unanswered::Refused(error) => Refusal::Orders(error),
        })?;
        self.outcome.applied.push(ordered(orders, orders.describe()));
        Ok(())
    }

    fn create(&mut self, place: &CgroupRef) -> Result<(), Refusal> {
        let parent = self.parent(place)?;
        let dir = self.host.mkdir(parent, place.path.name()).map_err(|error| host_error(error, None))?;
        self.dirs.insert(place.clone(), dir);
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
        self.host.write(dir, FILE, &value).map_err(|error| match (sign, error.errno) {
            ('+', Errno::EBUSY) => Refusal::Internal { place: self.actual.show(place), controller, error },
            _ => host_error(error, None),
        })?;
        let place = self.actual.show(place);
        let read = match self.host.read(dir, FILE) {
            Ok(read) => read,
            Err(error) => return Err(Refusal::Unread { place, file: FILE, because: error.to_string() }),
        };
        let enabled = read.split_whitespace().any(|name| name == controller.v2_name());
        match enabled == (sign == '+') {
            true => Ok(()),
            false => Err(Refusal::ReadBack { place, file: FILE, want: value, read: read.trim().to_owned() }),
        }
    }

    fn switch(&mut self, switch: Switch, to: i64) -> Result<(), Refusal> {
        let path = Path::new(switch.path());
        let failed = |error| host_error(error, Some(switch.knob()));
        self.host.write_setting(path, &to.to_string()).map_err(failed)?;
        let read = self.host.read_file(path).map_err(failed)?;
        if read.trim() != to.to_string() {
            let (place, read) = (switch.to_string(), read.trim().to_owned());
            return Err(Refusal::ReadBack { place, file: "", want: to.to_string(), read });
        }
        Ok(())
    }

    /// Moves the members to a fresh group; journalled first, so that an interruption can be completed later.
    fn recreate(
        &mut self,
        place: &CgroupRef,
        knob: KnobId,
        to: &Value,
        journal: &mut Journal,
    ) -> Result<(), Refusal> {
        let dir = self.dir(place)?;
        let (mount, target) = (self.mount(place), self.target(place, dir));
        journal.append(self.host, &[Record::Recreating(target)])?;
        // Open directories below the group belong to groups that are gone now.
        let stale = self
            .dirs
            .keys()
            .filter(|open| open.hierarchy == place.hierarchy && place.path.contains(&open.path));
        for open in stale.cloned().collect::<Vec<_>>() {
            if let Some(dir) = self.dirs.remove(&open) {
                self.host.close(dir);
            }
        }
        let recreated = recreate::recreate(self.host, &mount, place.path.as_str())
            .map_err(|error| host_error(error, Some(knob)))?;
        for group in &recreated {
            let place = CgroupRef { hierarchy: place.hierarchy, path: CgroupPath::new(&group.path) };
            self.recreated.insert(place, group.new);
        }
        journal.recreated(self.host, &mount, &recreated)?;
        let file = self.file(place, knob)?;
        let dir = self.dir(place)?;
        let read = self.host.read(dir, file.name).map_err(|error| host_error(error, Some(knob)))?;
        let (place, want, read) = (self.actual.show(place), to.to_string(), read.trim().to_owned());
        if read != want {
            return Err(Refusal::ReadBack { place, file: file.name, want, read });
        }
        self.outcome.applied.push(Applied { place, file: file.name, want, read });
        Ok(())
    }

    /// Writes one value, reads it back and compares it after normalisation.
    fn write(
        &mut self,
        place: &CgroupRef,
        knob: KnobId,
        device: Option<Device>,
        to: &Value,
    ) -> Result<(), Refusal> {
        let dir = self.dir(place)?;
        let file = self.file(place, knob)?;
        let text = file.encode(to, device).map_err(|error| Refusal::Plan(error.to_string()))?;
        let text = text_for(self.host, dir, (Some(knob), file.name), text);
        let knob_error = |error| host_error(error, Some(knob));
        self.host.write(dir, file.name, &text).map_err(knob_error)?;
        let place = self.actual.show(place);
        let unread = |because: String| Refusal::Unread { place: place.clone(), file: file.name, because };
        let read = self.host.read(dir, file.name).map_err(|error| unread(error.to_string()))?;
        let read = file.parse(&read, device).map_err(|error| unread(error.to_string()))?;
        if !file.holds(&read, to) {
            let (want, read) = (to.to_string(), read.to_string());
            return Err(Refusal::ReadBack { place, file: file.name, want, read });
        }
        self.outcome.applied.push(Applied {
            place,
            file: file.name,
            want: to.to_string(),
            read: read.to_string(),
        });
        Ok(())
    }

    /// The text that restores the knob's current value.
    fn original(
        &mut self,
        dir: Dir,
        knob: KnobId,
        file: &File,
        device: Option<Device>,
    ) -> Result<String, Refusal> {
        // While a group is idle its weight reads a placeholder (3 in v1, 1 in v2); without cpu.idle it will have the
        // kernel's default, because any other weight was journalled before (see the plan).
        if knob == KnobId::CpuWeight && self.host.read(dir, "cpu.idle").is_ok_and(|idle| idle.trim() == "1") {
            return Ok(file.default.to_owned());
        }
        let text = self.host.read(dir, file.name).map_err(|error| host_error(error, Some(knob)))?;
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
            .ok_or_else(|| Refusal::Plan("the root cannot be made or removed".to_owned()))?;
        self.dir(&CgroupRef { hierarchy: place.hierarchy, path })
    }

    /// The open group; opened once, and only if it is the one in the plan.
    fn dir(&mut self, place: &CgroupRef) -> Result<Dir, Refusal> {
        if let Some(dir) = self.dirs.get(place) {
            return Ok(*dir);
        }
        let vanished = || Refusal::Vanished { place: self.actual.show(place) };
        let path = below(Path::new(&self.mount(place)), place.path.as_str());
        let dir = self.host.open(&path).map_err(|error| match error.errno {
            Errno::ENOENT | Errno::ENODEV => vanished(),
            _ => host_error(error, None),
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
