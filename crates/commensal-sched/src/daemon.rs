//! The daemon that loads the scheduler. It applies the orders (the configuration that clients send), switches threads
//! to the scheduler, freezes groups whose threads starve, and reloads the scheduler after the kernel has ejected it.
//! Decisions without side effects are in other modules of this crate.

mod shown;
mod told;
mod wanted;

use crate::control::{Call, Published};
use crate::guard::{Action, Bounds, Guard, GuardSample};
use crate::intf::MOST_SLOTS;
use crate::loader::{Scheduler, Settings};
use crate::membership::{Members, foreign};
use crate::places::places;
use crate::service;
use crate::watch::{Next, Reloads};
use crate::{LoadError, preflight};
use commensal_core::scheduler::Mode;
use commensal_core::scheduler::protocol::{Counters, Done, Request, Standing};
use commensal_core::text::{self, printable, visible};
use commensal_host::Host;
use commensal_reconcile::journal::{self, Journal, JournalError, Owner, Record};
use commensal_reconcile::{freezer, policy};
use commensal_sensors::machine;
use commensal_sensors::sched_ext::{Kernel, State};
use shown::Shown;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;
use told::Told;
use wanted::Wanted;

/// Start options.
#[derive(Debug, Clone)]
pub struct Options {
    /// State directory with the journal, the socket and the kernel's dump.
    pub state: PathBuf,
    /// Settings for loading the scheduler.
    pub settings: Settings,
    /// Thresholds for freezing starving groups.
    pub bounds: Bounds,
    /// Interval between two rounds. In each round the daemon reads the groups and acts on their state.
    pub round: Duration,
    /// Whether to replace a running daemon.
    pub replace: bool,
    /// For tests: the daemon freezes no groups, so that the kernel's watchdog triggers.
    pub no_guard: bool,
}

/// Why the daemon stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// The daemon has restored the original policy of every thread.
    Unloaded,
    /// Another process manages the threads from now on.
    HandedOver,
}

/// File for the kernel's dump of an ejected scheduler.
const DUMP: &str = "sched-dump.txt";
/// The daemon reads the machine's CPUs again after this number of rounds.
const CPUS_EVERY: u64 = 10;

/// State of the daemon.
pub struct Daemon<'a> {
    host: &'a mut dyn Host,
    options: Options,
    /// `None` while no scheduler is loaded.
    scheduler: Option<Scheduler>,
    reloads: Reloads,
    wanted: Wanted,
    told: Told,
    threads: Threads,
    guarding: Guarding,
    shown: Shown,
    rounds: u64,
}

/// The threads under the scheduler, which change as threads start, exit and are killed.
struct Threads {
    members: Members,
    journal: Journal,
    /// Time of the last fatal signal, in nanoseconds of the BPF programs' clock.
    killed_at: u64,
    /// Whether a thread was killed in the previous round.
    dying: bool,
}

/// The guard's measurements and actions.
#[derive(Default)]
struct Guarding {
    guard: Guard,
    /// Counters of the previous round.
    before: Counters,
    /// Groups that the guard has frozen. The guard does not thaw groups that other programs have frozen.
    frozen: BTreeSet<String>,
}

impl std::fmt::Debug for Daemon<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Daemon").field("status", &self.shown.status).finish_non_exhaustive()
    }
}

impl<'a> Daemon<'a> {
    /// Loads the scheduler without attaching it; [`Daemon::attach`] attaches it. The daemon switches threads when
    /// orders arrive.
    ///
    /// # Errors
    /// The scheduler cannot be loaded, or the journal cannot be opened.
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
        let shown = Shown::new(published, host.boot_time());
        let mut daemon = Daemon {
            host,
            options,
            scheduler: Some(scheduler),
            reloads: Reloads::default(),
            wanted: Wanted::default(),
            told: Told::default(),
            threads: Threads { members, journal, killed_at: 0, dying: false },
            guarding: Guarding::default(),
            shown,
            rounds: 0,
        };
        daemon.publish();
        Ok(daemon)
    }

    /// Attaches the scheduler, and verifies that the kernel runs it.
    ///
    /// # Errors
    /// The kernel refuses the scheduler, or runs another one.
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
        self.shown.loaded_at = self.host.boot_time();
        self.shown.status.mode = Mode::Running;
        Ok(())
    }

    /// Records how long the machine had no scheduler while this daemon replaced another daemon.
    pub fn replaced(&mut self, gap: Duration) {
        self.shown.status.upgrade_gap_ms = Some(gap.as_secs_f64() * 1e3);
    }

    /// Replaces the orders in force.
    ///
    /// # Errors
    /// The orders cannot be applied; the previous orders then stay in force.
    pub fn order(&mut self, standing: Standing) -> Result<(), String> {
        let before = std::mem::replace(&mut self.wanted.orders, standing.together()?);
        if let Err(error) = self.carry_out() {
            self.wanted.orders = before;
            // The previous orders are valid, because they were in force before.
            let _ = self.carry_out();
            return Err(error);
        }
        self.thaw_who_left();
        self.wanted.standing = standing;
        self.shown.status.generation += 1;
        Ok(())
    }

    /// Handles requests and runs a round after each interval or request, until the daemon is unloaded or replaced, or
    /// `ends` returns true.
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
                let done = self.order(self.wanted.standing.with(orders));
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
            // The socket's thread has already answered this request from the published status.
            Request::Status => (Ok(self.done(Vec::new())), None),
        };
        // The client may have disconnected.
        let _ = call.answer.send(answer);
        over
    }

    fn done(&self, left: Vec<String>) -> Done {
        Done {
            ok: true,
            generation: self.shown.status.generation,
            threads: self.threads.members.count(),
            left,
        }
    }

    /// Restores the original policy of every thread first, then unloads the scheduler. In the reverse order, threads
    /// would run in the fair class for a moment while their policy is still `SCHED_EXT`.
    fn unload(&mut self) -> (Vec<String>, Over) {
        service::stopping();
        self.thaw();
        let round = self.threads.members.release(self.host);
        self.scheduler = None;
        let mut left = round.refused;
        match commensal_reconcile::restore_own(self.host, &self.options.state, journal::SCHED) {
            Ok(restored) => left.extend(restored.failed.into_iter().chain(restored.left)),
            Err(error) => left.push(error.to_string()),
        }
        (left, Over::Unloaded)
    }

    /// Reads the groups, pushes groups and weights to the BPF programs, then switches the threads.
    fn carry_out(&mut self) -> Result<(), String> {
        self.wanted.look(self.host).map_err(|error| error.to_string())?;
        self.tell().map_err(|error| error.to_string())?;
        self.follow().map_err(|error| error.to_string())
    }

    /// Pushes changed configuration into the BPF maps.
    fn tell(&mut self) -> Result<(), LoadError> {
        let Some(scheduler) = &mut self.scheduler else { return Ok(()) };
        self.told.tell(self.host, scheduler, &self.wanted)
    }

    /// Switches threads to the scheduler and back. Does nothing while groups are frozen or no scheduler is loaded.
    fn follow(&mut self) -> Result<(), JournalError> {
        if self.guarding.guard.frozen() || self.scheduler.is_none() {
            return Ok(());
        }
        let found: Vec<u32> =
            self.wanted.trees.values().flat_map(|tree| tree.threads.iter().copied()).collect();
        let Threads { members, journal, .. } = &mut self.threads;
        if !found.is_empty() && !journal.has(&Record::Scheduling) {
            let theirs = foreign(self.host);
            policy::record(self.host, &theirs, journal)?;
        }
        let round = members.round(self.host, &found, journal)?;
        self.shown.status.drifted += round.drifted as u64;
        self.shown.status.problems.extend(round.refused);
        Ok(())
    }

    /// Runs one round: reads the state of the scheduler, the groups and the threads, and acts on it.
    fn round(&mut self) {
        self.rounds += 1;
        self.shown.status.problems.clear();
        self.watch();
        if let Err(error) = self.carry_out() {
            self.shown.status.problems.push(error);
        }
        if self.rounds.is_multiple_of(CPUS_EVERY)
            && let (Some(scheduler), Ok(topology)) = (&self.scheduler, machine::topology(self.host))
            && let Err(error) = scheduler.place(&places(&topology))
        {
            self.shown.status.problems.push(error.to_string());
        }
        self.let_die();
        self.starve();
        self.publish();
    }

    /// Checks whether the kernel has ejected the scheduler, and whether it is time to reload it.
    fn watch(&mut self) {
        let now = self.host.boot_time();
        if let Some((ended, dump)) = self.scheduler.as_ref().and_then(Scheduler::ended) {
            eprintln!("commensal-sched: the kernel has ejected the scheduler: {}", visible(&ended.told()));
            let file = self.options.state.join(DUMP);
            match self.host.state_replace(&file, &printable(&format!("{}\n{dump}\n", ended.told()))) {
                Ok(()) => eprintln!("commensal-sched: the kernel's dump is in {}", text::path(&file)),
                Err(error) => eprintln!("commensal-sched: {error}"),
            }
            self.shown.status.ejected = Some(ended.told());
            self.scheduler = None;
            self.thaw();
            self.shown.status.mode = match self.reloads.ejected(now, &ended) {
                Next::At(due) => {
                    eprintln!(
                        "commensal-sched: loads the scheduler again in {} s",
                        due.saturating_sub(now).as_secs()
                    );
                    Mode::Ejected
                }
                Next::Never => {
                    eprintln!(
                        "commensal-sched: does not load the scheduler again: offline threads stay in the fair class"
                    );
                    self.threads.members.release(self.host);
                    Mode::GivenUp
                }
            };
        }
        if self.scheduler.is_none() && self.reloads.due(now) {
            self.shown.status.reloads = self.reloads.count;
            if let Err(error) = self.reload() {
                eprintln!("commensal-sched: {}", printable(&error.to_string()));
                let ended =
                    crate::watch::Ended { kind: 1024, reason: error.to_string(), ..Default::default() };
                self.scheduler = None;
                self.shown.status.mode = match self.reloads.ejected(now, &ended) {
                    Next::At(_) => Mode::Ejected,
                    Next::Never => Mode::GivenUp,
                };
            }
        }
    }

    fn reload(&mut self) -> Result<(), LoadError> {
        let refused = |error: commensal_sensors::SensorError| LoadError::Refused {
            what: "read the CPUs",
            because: error.to_string(),
        };
        let topology = machine::topology(self.host).map_err(refused)?;
        self.scheduler = Some(Scheduler::load(&self.options.settings, &places(&topology))?);
        self.told = Told::default();
        self.guarding.before = Counters::default();
        self.tell()?;
        self.attach()
    }

    /// Lets killed threads exit. Runs after each fatal signal and again one round later, because the threads of a
    /// process receive the signal one after the other.
    fn let_die(&mut self) {
        let at = self.scheduler.as_ref().map_or(0, Scheduler::killed_at);
        let threads = &mut self.threads;
        if at != threads.killed_at || threads.dying {
            threads.dying = at != threads.killed_at;
            threads.killed_at = at;
            threads.members.let_die(self.host);
        }
    }

    /// Freezes the groups when threads starve, and thaws them when there is idle CPU time.
    fn starve(&mut self) {
        let Some(scheduler) = &self.scheduler else { return };
        let Ok(counters) = scheduler.counters() else { return };
        let slots = (0..self.told.slots.len() as u64).chain([MOST_SLOTS as u64 - 1]);
        let oldest = slots.filter_map(|slot| Some(scheduler.slot(slot).ok()?.oldest_ns)).max().unwrap_or(0);
        let room_permille = counters.room_permille(&self.guarding.before);
        self.guarding.before = counters;
        let seen =
            GuardSample { now: self.host.boot_time(), oldest: Duration::from_nanos(oldest), room_permille };
        let bounds = self.options.bounds;
        if self.options.no_guard {
            return;
        }
        match self.guarding.guard.step(&bounds, &seen) {
            Some(Action::Freeze) => self.freeze(seen.oldest),
            Some(Action::Thaw) => self.thaw(),
            None => {}
        }
        self.shown.status.freezes = self.guarding.guard.freezes;
    }

    fn freeze(&mut self, oldest: Duration) {
        eprintln!(
            "commensal-sched: offline threads have waited for {} ms: freezes their groups",
            oldest.as_millis()
        );
        // Other programs that plan kernel settings in the meantime must see that the scheduler has frozen the groups.
        self.shown.status.mode = Mode::Frozen;
        self.publish();
        // A thread must run once more to become frozen, but it starves in the scheduler's class. So the threads leave
        // that class first. Otherwise a thread that holds a kernel lock needed for freezing could not release the lock.
        let round = self.threads.members.release(self.host);
        self.shown.status.problems.extend(round.refused);
        for path in self.wanted.trees.keys().cloned().collect::<Vec<_>>() {
            match freezer::freeze(self.host, &path, &mut self.threads.journal) {
                Ok(true) => drop(self.guarding.frozen.insert(path)),
                Ok(false) => {}
                Err(error) => self.shown.status.problems.push(error.to_string()),
            }
        }
    }

    fn thaw(&mut self) {
        if self.shown.status.mode != Mode::Frozen {
            return;
        }
        self.guarding.guard = std::mem::take(&mut self.guarding.guard).thawed();
        self.shown.status.mode = Mode::Running;
        let _ = self.follow();
        for path in std::mem::take(&mut self.guarding.frozen) {
            self.thaw_one(&path);
        }
    }

    fn thaw_one(&mut self, path: &str) {
        if let Err(error) = freezer::thaw(self.host, path) {
            self.shown.status.problems.push(error.to_string());
        }
    }

    /// Thaws groups that the orders no longer contain.
    fn thaw_who_left(&mut self) {
        let left: Vec<String> = self
            .guarding
            .frozen
            .iter()
            .filter(|path| !self.wanted.trees.contains_key(*path))
            .cloned()
            .collect();
        for path in left {
            self.guarding.frozen.remove(&path);
            self.thaw_one(&path);
        }
    }

    /// Publishes the current status.
    pub fn publish(&mut self) {
        let status = &mut self.shown.status;
        status.threads = self.threads.members.count();
        status.realtime = self.threads.members.kept.len();
        status.orders = self.wanted.standing.clone();
        if let Some(scheduler) = &self.scheduler {
            if let Ok(counters) = scheduler.counters() {
                status.counters = counters;
            }
            status.groups = self.wanted.groups(&|id| {
                let slot = self.told.slots.get(&id)?;
                Some(scheduler.slot(*slot).unwrap_or_default())
            });
        }
        self.shown.publish(self.host.boot_time());
    }
}

/// Opens the scheduler's journal, with this process as its owner.
///
/// # Errors
/// The journal cannot be read or is damaged.
pub fn open_journal(host: &mut dyn Host, state: &Path) -> Result<Journal, JournalError> {
    let owner = Owner::this_process(host, journal::SCHED)?;
    Journal::open(host, state, journal::SCHED, owner)
}
