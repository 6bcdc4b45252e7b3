//! The process that has the scheduler: carries orders out, follows threads, guards, and loads it again when it was taken
//! off. It decides nothing that a pure module of this crate could decide.

use crate::control::{Call, Published};
use crate::guard::{Action, Bounds, Guard, GuardSample};
use crate::intf::{CLASS_EXPELLING, CLASS_OFFLINE, CLASS_ONLINE, CLASS_OTHER, MOST_LIMITS, MOST_SLOTS};
use crate::loader::{Scheduler, Settings};
use crate::membership::{Members, Tree, foreign, walk};
use crate::places::places;
use crate::service::{self, Signs};
use crate::watch::{Next, Reloads};
use crate::weights::{self, WHOLE};
use crate::{LoadError, preflight};
use commensal_core::group::Class;
use commensal_core::scheduler::protocol::{
    Counters, Done, GroupStatus, Request, SlotReading, Standing, Status,
};
use commensal_core::scheduler::{Mode, Orders, Quota};
use commensal_host::{Host, HostError};
use commensal_reconcile::journal::{self, Journal, JournalError, Owner, Record};
use commensal_reconcile::{freezer, policy};
use commensal_sensors::machine;
use commensal_sensors::sched_ext::{Kernel, State};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// What it is started with.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where journal, socket and log are.
    pub state: PathBuf,
    /// How the scheduler is loaded.
    pub settings: Settings,
    /// When starving groups are frozen.
    pub bounds: Bounds,
    /// Between two looks at the groups.
    pub round: Duration,
    /// Take over from a daemon that is there.
    pub replace: bool,
    /// Tests: nothing is frozen, so that the watchdog has something to see.
    pub no_guard: bool,
}

/// Why it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// Everything is put back.
    Unloaded,
    /// Another process has the threads now.
    HandedOver,
}

/// File that the kernel's dump of an ejected scheduler goes to.
const DUMP: &str = "sched-dump.txt";
/// A look at the machine's CPUs, in rounds.
const CPUS_EVERY: u64 = 10;

/// The state.
pub struct Daemon<'a> {
    host: &'a mut dyn Host,
    options: Options,
    published: Published,
    journal: Journal,
    scheduler: Option<Scheduler>,
    members: Members,
    /// What everybody wants, and all of it together.
    standing: Standing,
    orders: Orders,
    /// cgroup number and class, as the programs know them.
    told: BTreeMap<u64, (u64, u64, String)>,
    hold_off: Option<Duration>,
    slots: BTreeMap<u64, u64>,
    limits: BTreeMap<String, u64>,
    trees: BTreeMap<String, Tree>,
    shares: Vec<(u64, u64)>,
    /// Groups that the guard has frozen: others that stand still are somebody else's.
    frozen: BTreeSet<String>,
    guard: Guard,
    reloads: Reloads,
    before: Counters,
    killed_at: u64,
    dying: bool,
    status: Status,
    signs: Signs,
    loaded_at: Duration,
    rounds: u64,
}

impl std::fmt::Debug for Daemon<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Daemon").field("status", &self.status).finish_non_exhaustive()
    }
}

impl<'a> Daemon<'a> {
    /// Loads the scheduler; threads follow with the orders. With `replace` it is loaded and not attached yet.
    ///
    /// # Errors
    /// When it cannot be loaded, or the journal cannot be kept.
    pub fn start(
        host: &'a mut dyn Host,
        options: Options,
        published: Published,
    ) -> anyhow::Result<Daemon<'a>> {
        let functions = crate::loader::functions();
        let obstacles = preflight::obstacles(&Kernel::read(host), &functions, options.replace);
        if !obstacles.is_empty() {
            return Err(LoadError::Obstacles(obstacles).into());
        }
        if !options.no_guard {
            options.bounds.check(options.settings.watchdog).map_err(anyhow::Error::msg)?;
        }
        let journal = open_journal(host, &options.state)?;
        let members = Members::inherit(&journal);
        let scheduler = Scheduler::load(&options.settings, &places(&machine::topology(host)?))?;
        let status = Status { ok: true, pid: std::process::id(), ..Status::default() };
        let loaded_at = host.boot_time();
        let mut daemon = Daemon {
            host,
            options,
            published,
            journal,
            scheduler: Some(scheduler),
            members,
            standing: Standing::default(),
            orders: Orders::default(),
            told: BTreeMap::new(),
            hold_off: None,
            slots: BTreeMap::new(),
            limits: BTreeMap::new(),
            trees: BTreeMap::new(),
            shares: Vec::new(),
            frozen: BTreeSet::new(),
            guard: Guard::default(),
            reloads: Reloads::default(),
            before: Counters::default(),
            killed_at: 0,
            dying: false,
            status,
            signs: Signs::default(),
            loaded_at,
            rounds: 0,
        };
        daemon.publish();
        Ok(daemon)
    }

    /// Attaches the scheduler, and verifies that the kernel has it.
    ///
    /// # Errors
    /// When it refuses or has another one.
    pub fn attach(&mut self) -> Result<(), LoadError> {
        let Some(scheduler) = &mut self.scheduler else { return Ok(()) };
        scheduler.attach()?;
        let kernel = Kernel::read(self.host);
        if kernel.state != Some(State::Enabled) {
            let told = scheduler.ended().map(|(ended, _)| ended.told()).unwrap_or_default();
            self.scheduler = None;
            let because = format!("{} after the scheduler was attached: {told}", kernel.loaded());
            return Err(LoadError::Refused { what: "start the scheduler", because });
        }
        self.loaded_at = self.host.boot_time();
        self.status.mode = Mode::Running;
        Ok(())
    }

    /// How long the machine was without a scheduler when this one took over.
    pub fn took_over(&mut self, gap: Duration) {
        self.status.upgrade_gap_ms = Some(gap.as_secs_f64() * 1e3);
    }

    /// Carries out what is wanted from now on.
    ///
    /// # Errors
    /// What cannot be carried out; nothing of it is in force then.
    pub fn order(&mut self, standing: Standing) -> Result<(), String> {
        let before = std::mem::replace(&mut self.orders, standing.together()?);
        if let Err(error) = self.carry_out() {
            self.orders = before;
            // What was in force is so again; it was once.
            let _ = self.carry_out();
            return Err(error);
        }
        self.thaw_who_left();
        self.standing = standing;
        self.status.generation += 1;
        Ok(())
    }

    /// Serves calls and looks at the groups until it is over.
    pub fn run(&mut self, calls: &Receiver<Call>, ends: &dyn Fn() -> bool) -> Over {
        loop {
            let call = match calls.recv_timeout(self.options.round) {
                Ok(call) => Some(call),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return self.unload().1,
            };
            let over = call.and_then(|call| self.call(call));
            if over.is_some() || ends() {
                return over.unwrap_or_else(|| self.unload().1);
            }
            self.round();
        }
    }

    fn call(&mut self, call: Call) -> Option<Over> {
        let (answer, over) = match call.request {
            Request::Orders(orders) => {
                let done = self.order(self.standing.with(orders));
                self.publish();
                (done.map(|()| self.done(Vec::new())), None)
            }
            Request::Unload => {
                let (left, over) = self.unload();
                (Ok(self.done(left)), Some(over))
            }
            Request::HandOver => {
                self.thaw();
                self.scheduler = None;
                (Ok(self.done(Vec::new())), Some(Over::HandedOver))
            }
            // Answered from what is published.
            Request::Status => (Ok(self.done(Vec::new())), None),
        };
        // A client that has gone needs no answer.
        let _ = call.answer.send(answer);
        over
    }

    fn done(&self, left: Vec<String>) -> Done {
        Done { ok: true, generation: self.status.generation, threads: self.members.count(), left }
    }

    /// Everybody's own policy first, then the scheduler: the other way round a thread would be fair for a moment without
    /// being told so.
    fn unload(&mut self) -> (Vec<String>, Over) {
        service::stopping();
        self.thaw();
        let round = self.members.release(self.host);
        self.scheduler = None;
        let mut left = round.refused;
        match commensal_reconcile::restore_own(self.host, &self.options.state, journal::SCHED) {
            Ok(restored) => left.extend(restored.failed.into_iter().chain(restored.left)),
            Err(error) => left.push(error.to_string()),
        }
        (left, Over::Unloaded)
    }

    /// Groups and weights as they are now, told to the programs; then the threads.
    fn carry_out(&mut self) -> Result<(), String> {
        self.look().map_err(|error| error.to_string())?;
        self.tell().map_err(|error| error.to_string())?;
        self.follow().map_err(|error| error.to_string())
    }

    /// Walks the offline groups.
    fn look(&mut self) -> Result<(), HostError> {
        let ordered: BTreeMap<String, Class> =
            self.orders.groups.iter().map(|(path, order)| (path.clone(), order.class)).collect();
        self.trees.clear();
        for (path, order) in self.orders.groups.iter().filter(|(_, order)| order.class == Class::Offline) {
            if let Some(tree) = walk(self.host, path, order.weight, &ordered)? {
                self.trees.insert(path.clone(), tree);
            }
        }
        let tops: Vec<weights::Node> = self.trees.values().map(|tree| tree.node.clone()).collect();
        self.shares = weights::flatten(&tops);
        Ok(())
    }

    /// Pushes changed configuration into the BPF maps.
    fn tell(&mut self) -> Result<(), LoadError> {
        let mut wanted: BTreeMap<u64, (u64, u64, String)> = BTreeMap::new();
        let mut limits: BTreeMap<u64, u64> = BTreeMap::new();
        self.forget_limits()?;
        for (path, order) in self.orders.groups.clone() {
            if order.class == Class::Online {
                let Ok(dir) = self.host.open(Path::new(&path)) else { continue };
                self.host.close(dir);
                let class = if order.expel { CLASS_EXPELLING } else { CLASS_ONLINE };
                wanted.insert(dir.inode, (class, 0, path));
                continue;
            }
            let limit = self.limit(&path, order.limit.as_ref())?;
            let Some(tree) = self.trees.get(&path) else { continue };
            for (id, name) in &tree.cgroups {
                limits.insert(*id, limit);
                wanted.insert(*id, (CLASS_OFFLINE, 0, name.clone()));
            }
        }
        let Some(scheduler) = &self.scheduler else { return Ok(()) };
        let alive: Vec<u64> =
            wanted.iter().filter(|(_, entry)| entry.0 == CLASS_OFFLINE).map(|(id, _)| *id).collect();
        let freed: Vec<u64> = self.slots.keys().copied().filter(|id| !alive.contains(id)).collect();
        for id in freed {
            // Its queues may have threads until they are looked at again, so a slot stays in use with the least weight.
            if let Some(slot) = self.slots.remove(&id) {
                scheduler.set_slot(slot, true, 1, 0)?;
            }
        }
        let shares: BTreeMap<u64, u64> = self.shares.iter().copied().collect();
        for id in &alive {
            let slot = slot_for(&mut self.slots, *id);
            if slot < MOST_SLOTS as u64 - 1 {
                let share = shares.get(id).copied().unwrap_or(WHOLE / 100);
                scheduler.set_slot(slot, true, weight_of(share), limits.get(id).copied().unwrap_or(0))?;
            }
            if let Some(entry) = wanted.get_mut(id) {
                entry.1 = slot;
            }
        }
        let mut changed = false;
        for (id, (_, _, name)) in self.told.iter().filter(|(id, _)| !wanted.contains_key(id)) {
            scheduler.set_group(*id, name, CLASS_OTHER, 0)?;
            changed = true;
        }
        for (id, entry) in wanted.iter().filter(|(id, entry)| self.told.get(id) != Some(entry)) {
            scheduler.set_group(*id, &entry.2, entry.0, entry.1)?;
            changed = true;
        }
        let hold_off = Duration::from_micros(self.orders.hold_off_us);
        if (changed || self.hold_off != Some(hold_off))
            && let Some(scheduler) = &mut self.scheduler
        {
            scheduler.ordered(hold_off)?;
            self.hold_off = Some(hold_off);
        }
        self.told = wanted;
        Ok(())
    }

    /// The number of a group's limit; 0 without one.
    fn limit(&mut self, path: &str, limit: Option<&Quota>) -> Result<u64, LoadError> {
        let (Some(scheduler), Some(limit)) = (&self.scheduler, limit) else { return Ok(0) };
        let free = || (1..).find(|index| self.limits.values().all(|taken| taken != index));
        let index = self.limits.get(path).copied().or_else(free).unwrap_or(MOST_LIMITS as u64);
        if index >= MOST_LIMITS as u64 {
            let because =
                format!("{path} would be the {index}th group with a limit, and {MOST_LIMITS} is too many");
            return Err(LoadError::Refused { what: "set a limit", because });
        }
        self.limits.insert(path.to_owned(), index);
        let (quota, period) = (Duration::from_micros(limit.quota_us), Duration::from_micros(limit.period_us));
        scheduler.set_limit(index, quota, period)?;
        Ok(index)
    }

    /// Limits of groups that have none any more are for others.
    fn forget_limits(&mut self) -> Result<(), LoadError> {
        let limited = |path: &String| self.orders.groups.get(path).is_some_and(|order| order.limit.is_some());
        let over: Vec<String> = self.limits.keys().filter(|path| !limited(path)).cloned().collect();
        for path in over {
            if let (Some(index), Some(scheduler)) = (self.limits.remove(&path), &self.scheduler) {
                scheduler.set_limit(index, Duration::ZERO, Duration::ZERO)?;
            }
        }
        Ok(())
    }

    /// Threads come under the scheduler and leave it.
    fn follow(&mut self) -> Result<(), JournalError> {
        if self.guard.frozen() || self.scheduler.is_none() {
            return Ok(());
        }
        let found: Vec<u32> = self.trees.values().flat_map(|tree| tree.threads.iter().copied()).collect();
        if !found.is_empty() && !self.journal.has(&Record::Scheduling) {
            let theirs = foreign(self.host);
            policy::record(self.host, &theirs, &mut self.journal)?;
        }
        let round = self.members.round(self.host, &found, &mut self.journal)?;
        self.status.drifted += round.drifted as u64;
        self.status.problems.extend(round.refused);
        Ok(())
    }

    /// One look at everything.
    fn round(&mut self) {
        self.rounds += 1;
        self.status.problems.clear();
        self.watch();
        if let Err(error) = self.carry_out() {
            self.status.problems.push(error);
        }
        if self.rounds.is_multiple_of(CPUS_EVERY)
            && let (Some(scheduler), Ok(topology)) = (&self.scheduler, machine::topology(self.host))
            && let Err(error) = scheduler.place(&places(&topology))
        {
            self.status.problems.push(error.to_string());
        }
        self.let_die();
        self.starve();
        self.publish();
    }

    /// Whether the kernel has taken it off, and whether it is time to load it again.
    fn watch(&mut self) {
        let now = self.host.boot_time();
        if let Some((ended, dump)) = self.scheduler.as_ref().and_then(Scheduler::ended) {
            eprintln!("commensal-sched: the kernel has taken the scheduler off: {}", ended.told());
            let file = self.options.state.join(DUMP);
            match self.host.state_replace(&file, &format!("{}\n{dump}\n", ended.told())) {
                Ok(()) => eprintln!("commensal-sched: its dump is in {}", file.display()),
                Err(error) => eprintln!("commensal-sched: {error}"),
            }
            self.status.ejected = Some(ended.told());
            self.scheduler = None;
            self.thaw();
            self.status.mode = match self.reloads.ejected(now, &ended) {
                Next::At(due) => {
                    eprintln!("commensal-sched: loads it again in {} s", due.saturating_sub(now).as_secs());
                    Mode::Ejected
                }
                Next::Never => {
                    eprintln!(
                        "commensal-sched: does not load it again; offline threads are the fair scheduler's"
                    );
                    self.members.release(self.host);
                    Mode::GivenUp
                }
            };
        }
        if self.scheduler.is_none() && self.reloads.due(now) {
            self.status.reloads = self.reloads.count;
            if let Err(error) = self.reload() {
                eprintln!("commensal-sched: {error}");
                let ended =
                    crate::watch::Ended { kind: 1024, reason: error.to_string(), ..Default::default() };
                self.scheduler = None;
                self.status.mode = match self.reloads.ejected(now, &ended) {
                    Next::At(_) => Mode::Ejected,
                    Next::Never => Mode::GivenUp,
                };
            }
        }
    }

    fn reload(&mut self) -> Result<(), LoadError> {
        let refused = |error: commensal_sensors::SensorError| LoadError::Refused {
            what: "look at the CPUs",
            because: error.to_string(),
        };
        let topology = machine::topology(self.host).map_err(refused)?;
        self.scheduler = Some(Scheduler::load(&self.options.settings, &places(&topology))?);
        self.told.clear();
        self.hold_off = None;
        self.slots.clear();
        self.limits.clear();
        self.before = Counters::default();
        self.tell()?;
        self.attach()
    }

    /// Once for each killing, and once more a round later: a process's threads are told one after the other.
    fn let_die(&mut self) {
        let at = self.scheduler.as_ref().map_or(0, Scheduler::killed_at);
        if at != self.killed_at || self.dying {
            self.dying = at != self.killed_at;
            self.killed_at = at;
            self.members.let_die(self.host);
        }
    }

    /// Freezes what starves, and lets it go on when there is room.
    fn starve(&mut self) {
        let Some(scheduler) = &self.scheduler else { return };
        let Ok(counters) = scheduler.counters() else { return };
        let slots = (0..self.slots.len() as u64).chain([MOST_SLOTS as u64 - 1]);
        let oldest = slots.filter_map(|slot| Some(scheduler.slot(slot).ok()?.oldest_ns)).max().unwrap_or(0);
        let room_permille = counters.room_permille(&self.before);
        self.before = counters;
        let seen =
            GuardSample { now: self.host.boot_time(), oldest: Duration::from_nanos(oldest), room_permille };
        let bounds = self.options.bounds;
        if self.options.no_guard {
            return;
        }
        match self.guard.step(&bounds, &seen) {
            Some(Action::Freeze) => self.freeze(seen.oldest),
            Some(Action::Thaw) => self.thaw(),
            None => {}
        }
        self.status.freezes = self.guard.freezes;
    }

    fn freeze(&mut self, oldest: Duration) {
        eprintln!(
            "commensal-sched: offline threads have waited for {} ms; freezes their groups",
            oldest.as_millis()
        );
        // Whoever plans meanwhile has to see whose doing it is.
        self.status.mode = Mode::Frozen;
        self.publish();
        // They have to run once more to stop, and what they starve in is this class. They leave it first: one of them may hold a
        // lock of the kernel's that freezing takes.
        let round = self.members.release(self.host);
        self.status.problems.extend(round.refused);
        for path in self.trees.keys().cloned().collect::<Vec<_>>() {
            match freezer::freeze(self.host, &path, &mut self.journal) {
                Ok(true) => drop(self.frozen.insert(path)),
                Ok(false) => {}
                Err(error) => self.status.problems.push(error.to_string()),
            }
        }
    }

    fn thaw(&mut self) {
        if self.status.mode != Mode::Frozen {
            return;
        }
        self.guard = std::mem::take(&mut self.guard).thawed();
        self.status.mode = Mode::Running;
        let _ = self.follow();
        for path in std::mem::take(&mut self.frozen) {
            self.thaw_one(&path);
        }
    }

    fn thaw_one(&mut self, path: &str) {
        if let Err(error) = freezer::thaw(self.host, path) {
            self.status.problems.push(error.to_string());
        }
    }

    /// Groups that nobody orders any more go on.
    fn thaw_who_left(&mut self) {
        let left: Vec<String> =
            self.frozen.iter().filter(|path| !self.trees.contains_key(*path)).cloned().collect();
        for path in left {
            self.frozen.remove(&path);
            self.thaw_one(&path);
        }
    }

    /// Tells everybody what there is now.
    pub fn publish(&mut self) {
        let now = self.host.boot_time();
        self.status.loaded_s = now.saturating_sub(self.loaded_at).as_secs();
        self.status.threads = self.members.count();
        self.status.realtime = self.members.kept.len();
        self.status.orders = self.standing.clone();
        if let Some(scheduler) = &self.scheduler {
            if let Ok(counters) = scheduler.counters() {
                self.status.counters = counters;
            }
            self.status.groups = self.groups(scheduler);
        }
        self.signs.alive(now, &self.status);
        let text = serde_json::to_string(&self.status).unwrap_or_default();
        *self.published.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    fn groups(&self, scheduler: &Scheduler) -> Vec<GroupStatus> {
        let offline = self.orders.groups.iter().filter(|(_, order)| order.class == Class::Offline);
        let of = |path: &String| {
            let cgroup = path.clone();
            let Some(tree) = self.trees.get(path) else {
                return GroupStatus { cgroup, ..GroupStatus::default() };
            };
            let ids: Vec<u64> = tree.cgroups.iter().map(|(id, _)| *id).collect();
            let share: u64 =
                self.shares.iter().filter(|(id, _)| ids.contains(id)).map(|(_, share)| share).sum();
            let mut reading = SlotReading::default();
            let slots: Vec<u64> = ids.iter().filter_map(|id| self.slots.get(id).copied()).collect();
            for one in slots.iter().filter_map(|slot| scheduler.slot(*slot).ok()) {
                reading.run_ns += one.run_ns;
                reading.queued += one.queued;
                reading.oldest_ns = reading.oldest_ns.max(one.oldest_ns);
                reading.waited_max_ns = reading.waited_max_ns.max(one.waited_max_ns);
            }
            GroupStatus {
                cgroup,
                found: true,
                threads: tree.threads.len(),
                slots: slots.len(),
                share: share as f64 / WHOLE as f64,
                fallback: tree.fallback,
                reading,
            }
        };
        offline.map(|(path, _)| of(path)).collect()
    }
}

/// Weights are of 1 … 10000 as in the kernel, from shares of [`WHOLE`].
fn weight_of(share: u64) -> u64 {
    (share * 10_000 / WHOLE).max(1)
}

/// The slot of a cgroup, a free one if it has none; the last when all are taken.
fn slot_for(slots: &mut BTreeMap<u64, u64>, id: u64) -> u64 {
    if let Some(slot) = slots.get(&id) {
        return *slot;
    }
    let last = MOST_SLOTS as u64 - 1;
    let taken: BTreeSet<u64> = slots.values().copied().collect();
    let free = (0..last).find(|slot| !taken.contains(slot)).unwrap_or(last);
    slots.insert(id, free);
    free
}

/// The journal of the scheduler, as its owner from now on.
///
/// # Errors
/// When it cannot be read or is damaged.
pub fn open_journal(host: &mut dyn Host, state: &Path) -> Result<Journal, JournalError> {
    let owner = Owner::this_process(host, journal::SCHED)?;
    Journal::open(host, state, journal::SCHED, owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_found_again_and_run_out_gently() {
        let mut slots = BTreeMap::new();
        assert_eq!([slot_for(&mut slots, 70), slot_for(&mut slots, 71), slot_for(&mut slots, 70)], [0, 1, 0]);
        slots.remove(&70);
        assert_eq!(slot_for(&mut slots, 72), 0);
        for id in 1000..2000 {
            slot_for(&mut slots, id);
        }
        assert_eq!(slot_for(&mut slots, 5000), 255);
        assert_eq!((weight_of(WHOLE), weight_of(WHOLE / 4), weight_of(1)), (10_000, 2_500, 1));
    }
}
