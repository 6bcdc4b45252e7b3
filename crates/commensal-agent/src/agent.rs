//! The main loop: measure, decide, plan, apply, publish; once per tick, on one thread.

mod canary;
mod early_tick;
mod followed;
mod lease;
mod leave;
mod options;
mod presence;
mod rounds;
mod show;
mod start;
mod upkeep;

use self::early_tick::{EarlyTick, FAST};
use self::followed::Followed;
use self::lease::Lease;
use self::presence::Presence;
pub use self::start::running;
use self::start::{Groups, be_master, first_groups, last_good, machine_lock, make_room, only_one};
use crate::audit::{self, Audit};
use crate::blame_monitor::{self, BlameMonitor};
use crate::control::{self, Command, Control, Order};
use crate::controllers::{Controllers, Decided, Observation, Wants};
use crate::error::AgentError;
use crate::groups_file::{self, Changes};
use crate::publish::Published;
use crate::sense::{Meters, Sample, WatchPrecision};
use crate::snapshot::{self, Snapshot};
use crate::view;
use commensal_core::actual::{ActualState, CgroupPath, CgroupRef};
use commensal_core::canary::End;
use commensal_core::config::Headroom;
use commensal_core::control::frame::least;
use commensal_core::control::weights::WeightInput;
use commensal_core::cpuset::CpuSet;
use commensal_core::desired::DesiredGroup;
use commensal_core::group::{Class, GroupName};
use commensal_core::knob::{Controller, KnobId, Value};
use commensal_core::text;
use commensal_core::topology::{Device, Disk, Machine};
use commensal_core::units::Bytes;
use commensal_host::{Capability, Dir, GroupWatch, Host, LinuxHost, Process, Sources, Waker, give_up};
use commensal_reconcile::{
    Change, Instance, PlanRequest, Planned, Reconciler, Round, in_words, members, queue,
};
pub use options::{Flags, OnExit, Options, Share};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant, SystemTime};

/// Machine-wide disk pressure from which every group's disk pressure is read in every tick, per cent.
const DISK_PRESSURE_PCT: f64 = 1.0;
/// Number of writes and decisions in a snapshot.
const SHOWN_ACTIONS: usize = 200;
/// Without a reason, a round is made only after this time …
const ROUND_EVERY: Duration = Duration::from_secs(10);
/// … or after this multiple of the last round's duration …
const ROUND_SHARE: u32 = 5_000;
/// … but at the latest after this time.
const ROUND_AT_LEAST: Duration = Duration::from_secs(300);
/// How often freed memory is given back, after a round.
const TRIM_EVERY: Duration = Duration::from_secs(60);
/// A queue that is held closed reopens by itself after this many ticks.
const HOLD_TICKS: u32 = 5;
/// The first ticks, made without a pause in between: two samples of the counters are needed for a rate.
const FIRST_TICKS: u64 = 3;
/// How often the agent shows itself alive within its lease while it waits, at least.
const BEATS: u32 = 3;
/// A directory of groups files in which others write all the time is looked at this often.
const LOOKS_APART: Duration = Duration::from_millis(200);
/// Groups files that are watched are read again after this time all the same: a watch sees no change of permissions, and nothing
/// on file systems of others.
const READ_AGAIN: Duration = Duration::from_secs(5);
/// The agent measures its own cost once in this many ticks.
const COST_EVERY: u64 = 5;
/// How often the machine's hardware and mounts are surveyed again: CPUs are hot-plugged, controllers are mounted.
const SURVEY_EVERY: Duration = Duration::from_secs(60);
/// How long per tick a frozen v1 cgroup is thawed so that a pending SIGKILL takes effect. Shorter than any lease of the
/// guard.
const DYING: Duration = Duration::from_millis(100);
/// The current time, on two clocks: milliseconds on a monotonic clock, and the time of day for display.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Now {
    /// Milliseconds since the agent started.
    ms: u64,
    /// Time of day, RFC 3339.
    text: String,
}

/// Whether the desired settings are in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    /// Something has changed, or the last round was not complete.
    #[default]
    Unsettled,
    /// New members appear in one controller after another, so the round after a change is followed by another one.
    OnceMore,
    /// The last round was complete.
    Settled,
    /// The user has ordered a pause: the agent writes nothing.
    Paused,
}

/// Measurements between two ticks.
struct Sensing {
    meters: Meters,
    blame_monitor: BlameMonitor,
    /// The probe's measurements between two ticks, and those that the controllers last got.
    judged: Option<blame_monitor::WaitSample>,
    shown_judged: Option<blame_monitor::WaitSample>,
    online_cpus: Option<f64>,
    /// Memory available without swapping, as of the last tick.
    available: Option<Bytes>,
    disks_waited_for: bool,
    early_tick: EarlyTick,
}

/// The controllers and their decisions.
#[derive(Default)]
struct Decisions {
    controllers: Controllers,
    decided: Decided,
    /// Killed processes of frozen groups that have not had the time to exit yet.
    dying: Vec<Process>,
    /// Groups whose queues are held closed.
    holding: BTreeSet<GroupName>,
}

/// State of the settings in force.
struct Actuation {
    phase: Phase,
    surveyed: Instant,
    /// When other processes were first found to hold the machine lock.
    locked_out: Option<Instant>,
    last: Option<Round>,
    /// Results of the last round: whether every offline group yields by its class, and what is shown.
    yields: bool,
    fixed: BTreeMap<String, view::Fixed>,
    /// Siblings of online groups and their weights, as of the last round.
    beside: BTreeMap<GroupName, WeightInput>,
    /// Problems of the last round, and when the next one has something to try, ms.
    problems: Vec<String>,
    again_ms: Option<u64>,
    /// When the last round was made, how long it took, and what it was for.
    rounded: Option<Instant>,
    /// When freed memory was last given back, and whether there has been a round since.
    trimmed: Option<Instant>,
    untrimmed: bool,
    round_took: Duration,
    put_in_force: Option<(u64, Wants)>,
}

/// What is published: snapshots and the audit log.
struct Publishing {
    started: Instant,
    ticks: u64,
    late_ticks: u64,
    cost: snapshot::Cost,
    actions: VecDeque<snapshot::Action>,
    /// The same actions as a shared copy, until there is a new one.
    shown_actions: Option<Arc<Vec<snapshot::Action>>>,
    audit: Audit,
    /// Actions that were not yet passed to the audit log.
    unrecorded: Vec<snapshot::Action>,
}

struct Agent<'a> {
    host: &'a mut dyn Host,
    options: &'a Options,
    reconciler: Reconciler,
    groups: Groups,
    members: Followed,
    presence: Presence,
    lease: Option<Lease>,
    sensing: Sensing,
    decisions: Decisions,
    actuation: Actuation,
    publishing: Publishing,
    canary: Option<canary::Running>,
    canary_report: Option<Arc<crate::canary::Report>>,
}

impl Actuation {
    fn new(now: Instant) -> Actuation {
        Actuation {
            phase: Phase::default(),
            surveyed: now,
            locked_out: None,
            last: None,
            yields: false,
            fixed: BTreeMap::new(),
            beside: BTreeMap::new(),
            problems: Vec::new(),
            again_ms: None,
            rounded: None,
            trimmed: None,
            untrimmed: false,
            round_took: Duration::ZERO,
            put_in_force: None,
        }
    }

    /// Asks for another round because members have changed.
    fn ask_once_more(&mut self) {
        if self.phase != Phase::Paused {
            self.phase = Phase::OnceMore;
        }
    }

    /// Whether the last round left nothing to do but refused steps that are in back-off.
    fn waits(&self, now_ms: u64) -> bool {
        self.phase == Phase::Unsettled && self.again_ms.is_some_and(|again| now_ms < again)
    }

    /// Asks for a round; a pause stays in force.
    fn unsettle(&mut self) {
        self.again_ms = None;
        if self.phase == Phase::Settled {
            self.phase = Phase::Unsettled;
        }
    }
}

/// Runs until a signal asks to exit. `tell` gets a snapshot after every tick. Returns the problems that remained at
/// exit.
///
/// # Errors
/// Before anything was written: another agent is running, there are no groups, they cannot be enforced, or there is no
/// guard.
pub fn run(
    host: &mut dyn Host,
    instance: Instance,
    options: &Options,
    flags: &Flags,
    tell: &mut dyn FnMut(&Snapshot),
) -> Result<Vec<String>, AgentError> {
    host.state_dir(&instance.state_dir)?;
    let lock = only_one(host, &instance.state_dir, options.takeover)?;
    let _master = if options.beside_others { None } else { be_master(host, &instance)? };
    let groups = first_groups(host, &instance.state_dir, &options.config)?;
    let published = Arc::new(Published::new());
    let (send, commands) = control::commands(flags.waker.clone());
    let socket = instance.state_dir.join(control::SOCKET);
    let shared = share(host, options)?;
    let control = Control::start(host, &socket, shared, options.metrics, Arc::clone(&published), send)?;
    let log = instance.state_dir.join("audit.log");
    let audit = Audit::start(Box::new(LinuxHost::new()), &log, audit::MAX_BYTES).map_err(|error| {
        AgentError::new(format!("the thread of the audit log cannot be started: {error}"))
    })?;
    let mut reconciler = {
        let _lock = machine_lock(host, &instance)?;
        let reconciler = Reconciler::new(instance, host)?;
        if options.lease.is_some() {
            make_room(host, &reconciler.instance, &reconciler.survey)?;
        }
        reconciler
    };
    let lease = match options.lease {
        Some(time) => {
            let mut lease = Lease { link: None, child: None, former: Vec::new(), time };
            lease.connect(host, &reconciler.instance, options)?;
            Some(lease)
        }
        None => None,
    };
    // Without a watch the values are checked more often.
    GroupWatch::new().into_iter().for_each(|watch| reconciler.see_writes(watch));
    let now = Instant::now();
    let sensing = Sensing {
        meters: Meters::default(),
        blame_monitor: BlameMonitor::new(options.probe),
        judged: None,
        shown_judged: None,
        online_cpus: None,
        available: None,
        disks_waited_for: false,
        early_tick: EarlyTick::default(),
    };
    let publishing = Publishing {
        started: now,
        ticks: 0,
        late_ticks: 0,
        cost: snapshot::Cost::default(),
        actions: VecDeque::new(),
        shown_actions: None,
        audit,
        unrecorded: Vec::new(),
    };
    let mut agent = Agent {
        host,
        options,
        reconciler,
        groups,
        members: Followed::new(flags.waker.clone()),
        presence: Presence { control, lock },
        lease,
        sensing,
        decisions: Decisions::default(),
        actuation: Actuation::new(now),
        publishing,
        canary: None,
        canary_report: None,
    };
    agent.begin();
    agent.keep(flags, &commands, &mut |snapshot| {
        published.publish(Arc::clone(&snapshot));
        tell(&snapshot);
    });
    Ok(agent.leave(flags.hand_over.load(Ordering::Relaxed)))
}

/// Listens for the group, and gives up what only that needs: threads begin after it.
fn share(host: &mut dyn Host, options: &Options) -> Result<Option<UnixListener>, AgentError> {
    let Some(Share { path, group, insisted }) = &options.share else { return Ok(None) };
    let listening = host.listen_for(path, *group);
    if let Err(error) = give_up(&[Capability::Chown]) {
        eprintln!("commensal: CAP_CHOWN cannot be given up: {error}");
    }
    match listening {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if *insisted => {
            Err(AgentError::of(format!("the socket for group {group} cannot be made"), &error))
        }
        Err(error) => {
            eprintln!("commensal: going on without the socket for group {group}: {error}");
            Ok(None)
        }
    }
}

impl Agent<'_> {
    /// Plans once, so that the controllers decide from the first round on: a round without them would lift what an agent before
    /// this one has decided.
    fn begin(&mut self) {
        let request = PlanRequest::all(&self.groups.compiled.groups);
        // What cannot be planned is told by the first round.
        let Ok(planned) = self.reconciler.instance.plan(self.host, &self.reconciler.survey, &request) else {
            return;
        };
        self.sensing.meters.follow(self.host, &planned.actual.hierarchies, &planned.desired);
        let (changes, problems) = (Vec::new(), Vec::new());
        self.actuation.last = Some(Round { planned, changes, problems, again_ms: None, current: false });
    }

    fn keep(&mut self, flags: &Flags, commands: &Receiver<Command>, tell: &mut dyn FnMut(Arc<Snapshot>)) {
        let pulse = self.host.pulse();
        while self.goes_on(flags) {
            let began = Instant::now();
            let forced = flags.reload.swap(false, Ordering::Relaxed);
            let mut problems = Vec::new();
            self.reload(forced);
            // The guard comes first, so that no setting is in force that it does not know.
            self.look_after_guard(&mut problems);
            self.keep_last_good(&mut problems);
            if self.look_after_presence(&mut problems) {
                return flags.hand_over.store(true, Ordering::Relaxed);
            }
            problems.extend(self.reconciler.look_after_journal(self.host));
            let now = self.now();
            let sample = self.decide(&now);
            self.canary_tick(&now, &sample);
            let (reconciler, specs) = (&self.reconciler, &self.groups.compiled.groups);
            let follows = self.members.follow(&reconciler.instance, &reconciler.survey, specs);
            problems.extend(follows.err().map(|error| format!("members cannot be followed: {error}")));
            for (socket, why) in self.members.members.lost() {
                problems.push(format!(
                    "the container engine at {}: {}",
                    text::path(socket),
                    text::visible(why)
                ));
            }
            if self.actuation.phase != Phase::Paused {
                self.kill(&now);
                self.hold_queues(&now, &mut problems);
                self.enforce(&now, &mut problems);
                self.trim();
            }
            self.publishing.audit.record(std::mem::take(&mut self.publishing.unrecorded));
            problems.extend(self.publishing.audit.problem());
            self.publishing.ticks += 1;
            let took = began.elapsed();
            if took > self.options.interval {
                self.publishing.late_ticks += 1;
            }
            tell(Arc::new(self.snapshot(sample, took, problems)));
            let pause = if self.publishing.ticks < FIRST_TICKS { FAST } else { self.options.interval };
            let next = began + pause.min(self.options.interval);
            let asked = || {
                let flags = [&flags.stop, &flags.hand_over, &flags.reload];
                flags.iter().any(|one| one.load(Ordering::Relaxed))
            };
            let mut fast = Instant::now() + FAST;
            while Instant::now() < next && !asked() {
                // Waiting for the next tick counts as being alive.
                pulse.fetch_add(1, Ordering::Relaxed);
                let until = if self.looks_between_ticks() { next.min(fast) } else { next };
                let woken = self.wait(&flags.waker, until);
                if self.obey(commands) {
                    break;
                }
                if self.members.heed() {
                    // New members are protected before the next tick.
                    self.actuation.ask_once_more();
                    break;
                }
                if self.canary_calls() {
                    break;
                }
                if Instant::now() >= fast {
                    fast = Instant::now() + FAST;
                    if !self.isolation_is_off() && self.online_waits() {
                        // Start the next tick now.
                        break;
                    }
                }
                if woken {
                    break;
                }
            }
        }
    }

    /// Whether something has to be looked at more often than once in a tick: a canary's windows, or waits of online groups that
    /// nobody reports.
    fn looks_between_ticks(&self) -> bool {
        self.canary.is_some() || self.target_us().is_some() && self.sensing.blame_monitor.alarms().is_none()
    }

    /// Waits until `until`, or until something happens; returns whether the next tick must come at once.
    fn wait(&mut self, waker: &Waker, until: Instant) -> bool {
        let most = self.lease.as_ref().map_or(self.options.interval, |lease| lease.time / BEATS);
        // What was looked at a moment ago is left out until it may be looked at again.
        let pause = LOOKS_APART.saturating_sub(self.groups.looked.elapsed());
        let changes = self.groups.changes.as_ref().filter(|_| pause.is_zero());
        let alarm_pause = self.alarm_pause();
        let alarms =
            self.sensing.blame_monitor.alarms().filter(|_| alarm_pause.is_some_and(|one| one.is_zero()));
        let pauses = [Some(pause), alarm_pause].into_iter().flatten().filter(|one| !one.is_zero());
        let least = pauses.min().unwrap_or(most).min(most);
        let patience = until.saturating_duration_since(Instant::now()).min(least);
        let mut sources = Sources::default();
        sources.readable.extend(changes.map(|changes| changes.watch().as_fd()));
        sources.readable.extend(alarms);
        if !self.looks_between_ticks() || self.sensing.early_tick.may_ask() {
            sources.triggers.extend(self.sensing.early_tick.triggers());
        }
        let Ok(woken) = waker.wait(&sources, patience) else {
            std::thread::sleep(patience);
            return false;
        };
        let mut readable = woken.readable.into_iter();
        let touched = changes.filter(|_| readable.next() == Some(true));
        let (touched, written) = (touched.is_some(), touched.is_some_and(Changes::any));
        let alarmed = alarms.is_some() && readable.next() == Some(true);
        if touched {
            self.groups.looked = Instant::now();
            self.groups.written |= written;
        }
        if alarmed {
            self.alarmed();
        }
        self.sensing.early_tick.pressed(woken.triggers) || written || alarmed
    }

    /// Carries out the orders from the control socket; returns whether there were any.
    fn obey(&mut self, commands: &Receiver<Command>) -> bool {
        let mut any = false;
        while let Ok(Command { order, reply }) = commands.try_recv() {
            any |= order != Order::CanaryAlive;
            match order {
                Order::Reload => {
                    self.reload(true);
                    match &self.groups.state.error {
                        None => {
                            reply.done(format!("generation {} is in force", self.groups.state.generation))
                        }
                        Some(error) => {
                            reply.refused(error.clone(), "correct the groups file and reload again")
                        }
                    }
                }
                Order::Pause => match self.canary_end_now(End::Paused) {
                    Ok(()) => {
                        self.actuation.phase = Phase::Paused;
                        reply.done("nothing is written until resume; what is in force stays");
                    }
                    Err(error) => {
                        let error = format!("isolation, which a canary has off, cannot be put back: {error}");
                        reply.refused(error, "see `commensal status`");
                    }
                },
                Order::Resume => {
                    self.actuation.phase = Phase::Unsettled;
                    reply.done("groups are kept in force again");
                }
                Order::Canary(request) => self.canary_start(request, reply),
                Order::CanaryAlive => self.canary_alive(reply),
                Order::CanaryStop => match self.canary_end(End::Stopped) {
                    true => reply.done("the canary is over"),
                    false => reply.refused("no canary runs", ""),
                },
            }
        }
        any
    }

    /// The lowest latency target of all groups, us.
    fn target_us(&self) -> Option<f64> {
        let targets = self.groups.compiled.groups.iter().filter_map(|spec| spec.target_wakeup_p99);
        targets.min().map(|target| target.0 as f64)
    }

    fn now(&self) -> Now {
        let ms = u64::try_from(self.publishing.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Now { ms, text: humantime::format_rfc3339_millis(SystemTime::now()).to_string() }
    }

    /// Puts changed groups files into force, completely or not at all.
    fn reload(&mut self, forced: bool) {
        let fresh = self.groups.read.is_some_and(|read| read.elapsed() < READ_AGAIN);
        let watched = self.groups.changes.is_some() && self.groups.state.error.is_none();
        self.groups.written |= self.groups.changes.as_ref().is_some_and(Changes::any);
        if watched && fresh && !forced && !std::mem::take(&mut self.groups.written) {
            return;
        }
        self.groups.read = Some(Instant::now());
        let texts = match groups_file::texts(self.host, &self.options.config) {
            Ok(texts) => texts,
            Err(error) => {
                let error = in_words(&error);
                self.groups.state.error =
                    Some(format!("{error}\nthe groups that were in force last are kept"));
                // If the earlier rejected texts come back, their errors are reported again.
                self.groups.refused = None;
                return;
            }
        };
        if texts == self.groups.texts {
            (self.groups.state.error, self.groups.refused) = (None, None);
            return;
        }
        if self.groups.refused.as_ref() == Some(&texts) && !forced {
            return;
        }
        let fits = groups_file::compile(&texts).map_err(|error| error.to_string()).and_then(|compiled| {
            let request = PlanRequest::all(&compiled.groups);
            self.reconciler
                .instance
                .plan(self.host, &self.reconciler.survey, &request)
                .map_err(|error| error.to_string())?;
            Ok(compiled)
        });
        match fits {
            Ok(compiled) => {
                self.groups.compiled = compiled;
                self.groups.texts = texts;
                self.members.mind_all();
                (self.groups.refused, self.groups.kept) = (None, false);
                self.groups.state.generation += 1;
                self.groups.state.loaded = self.now().text;
                self.groups.state.error = None;
            }
            Err(error) => {
                self.groups.state.error =
                    Some(format!("{error}\nthe groups that were in force before are kept"));
                self.groups.refused = Some(texts);
            }
        }
    }

    /// Measures the use since the last tick and asks the controllers for decisions.
    fn decide(&mut self, now: &Now) -> Sample {
        let Some(round) = &self.actuation.last else { return Sample::default() };
        let planned = &round.planned;
        let hierarchies = &self.reconciler.survey.hierarchies;
        // Without the probe, run delay is needed in its place; while the machine has no disk pressure, no group has any
        // either.
        let by_waits = self.target_us().is_some() && self.sensing.shown_judged.is_none();
        let by_disks = self.groups.compiled.io && self.sensing.disks_waited_for;
        // The choice of the period depends on whether a quota throttles.
        let by_quota = !self.decisions.decided.wants.quotas.is_empty();
        let closely = |group: &DesiredGroup| match group.class {
            Class::Online if by_waits => WatchPrecision::All,
            Class::Offline if by_quota => WatchPrecision::AtWork,
            _ if by_disks => WatchPrecision::AtWork,
            _ => WatchPrecision::InTurn,
        };
        let sample = self.sensing.meters.look(self.host, now.ms, hierarchies, &planned.desired, &closely);
        self.sensing.disks_waited_for =
            sample.machine.pressure_pct[2].is_some_and(|pct| pct >= DISK_PRESSURE_PCT);
        let online = planned.desired.groups.iter().filter(|group| group.class == Class::Online);
        let cpus = online.map(|group| sample.groups.get(group.name.as_str()).and_then(|rates| rates.cpus));
        self.sensing.online_cpus = cpus.sum();
        // The measurement between the ticks is the most recent one.
        let between = self.sensing.judged.take();
        let judged = match self.target_us() {
            Some(_) => between.or_else(|| self.sensing.blame_monitor.look(self.host, now.ms)),
            None => None,
        };
        // The effects of a canary's windows must not influence the controllers.
        let off = self.isolation_is_off();
        let before = off.then(|| self.decisions.decided.clone());
        let specs = canary::seen(off, &self.groups.compiled.groups);
        let available = commensal_sensors::machine::available(self.host);
        self.sensing.available = available;
        let shared = shared(&self.reconciler.survey.machine, &planned.actual);
        let host = RefCell::new(&mut *self.host);
        let meters = &self.sensing.meters;
        let list = |group: &DesiredGroup| {
            let paths = group.members.iter().map(|member| &member.path);
            paths.flat_map(|path| meters.processes(&mut **host.borrow_mut(), path)).collect()
        };
        let held = |group: &DesiredGroup| {
            let paths = group.members.iter().map(|member| &member.path);
            let mut each = paths.map(|path| meters.held(&mut **host.borrow_mut(), path));
            each.try_fold(0, |sum: u64, one| Some(sum.saturating_add(one?))).map(Bytes)
        };
        self.decisions.decided = self.decisions.controllers.decide(&Observation {
            now_ms: now.ms,
            headroom: if off { Headroom::Off } else { self.groups.compiled.headroom },
            io: self.groups.compiled.io,
            specs: &specs,
            desired: &planned.desired,
            yields: self.actuation.yields,
            machine: &self.reconciler.survey.machine,
            sample: &sample,
            judged: judged.as_ref().map(|seen| seen.judged),
            run_delay_ms_per_s: self.sensing.early_tick.run_delay_ms_per_s.take(),
            beside: self.groups.compiled.weights.then_some(&self.actuation.beside),
            declined: &planned.plan.declined,
            shared: &shared,
            available,
            held: &held,
            list: &list,
        });
        if let Some(before) = before {
            self.decisions.decided = canary::held(before, std::mem::take(&mut self.decisions.decided));
        }
        self.sensing.shown_judged = judged;
        self.set_alarm();
        sample
    }

    /// Kills the chosen processes, if they still have the same identity.
    fn kill(&mut self, now: &Now) {
        let began = Instant::now();
        let left = || DYING.saturating_sub(began.elapsed());
        for process in std::mem::take(&mut self.decisions.dying) {
            let frozen = self.frozen_around(process.pid);
            if members::kill(self.host, &process, &frozen, left()).is_ok_and(|ended| !ended) {
                self.decisions.dying.push(process);
            }
        }
        for kill in std::mem::take(&mut self.decisions.decided.kill) {
            let victim = kill.victim;
            let Ok(process) = self.host.process(victim.pid) else { continue };
            if process.start_ticks != victim.start {
                continue;
            }
            let frozen = self.frozen_around(victim.pid);
            let ended = members::kill(self.host, &process, &frozen, left());
            if ended.as_ref().is_ok_and(|ended| !ended) {
                self.decisions.dying.push(process.clone());
            }
            let ended = ended.map_or_else(|error| error.to_string(), |_| "killed".to_owned());
            self.note(kill.action(ended, &now.text));
        }
    }

    /// The frozen groups that keep a killed process from exiting.
    fn frozen_around(&mut self, pid: u32) -> Vec<Dir> {
        let Some(round) = &self.actuation.last else { return Vec::new() };
        let frozen = round.planned.desired.groups.iter().filter(|group| group.limits.frozen());
        let paths = frozen.flat_map(|group| &group.members).map(|member| &member.path);
        paths.filter_map(|path| self.sensing.meters.freezer(self.host, path, pid)).collect()
    }

    /// Closes the queues of groups that are short of memory, for a few ticks at most: an agent that died holds nobody.
    fn hold_queues(&mut self, now: &Now, problems: &mut Vec<String>) {
        let state_dir = &self.reconciler.instance.state_dir;
        let time = self.options.interval * HOLD_TICKS;
        let held = &self.decisions.decided.held;
        for name in self.decisions.holding.iter().filter(|name| !held.contains_key(*name)) {
            problems.extend(queue::release(self.host, state_dir, name).err().map(|error| error.to_string()));
        }
        for (name, why) in held {
            let done = queue::hold(self.host, state_dir, name, &why.rule, time);
            problems.extend(done.err().map(|error| error.to_string()));
        }
        let actions = self.decisions.decided.queues(&self.decisions.holding, &now.text);
        self.decisions.holding = held.keys().cloned().collect();
        actions.into_iter().for_each(|action| self.note(action));
    }

    fn note_changes(&mut self, changes: Vec<Change>) {
        let at = self.now().text;
        for change in changes {
            let action = self.decisions.decided.action(change, &at);
            self.note(action);
        }
    }

    fn note(&mut self, action: snapshot::Action) {
        if self.publishing.actions.len() >= SHOWN_ACTIONS {
            self.publishing.actions.pop_front();
        }
        self.publishing.shown_actions = None;
        self.publishing.unrecorded.push(action.clone());
        self.publishing.actions.push_back(action);
    }

    /// The CPUs that offline work keeps without the agent, when it is confined to a frame.
    fn floor(&self) -> Option<CpuSet> {
        least(&self.reconciler.survey.machine.topology, self.decisions.decided.wants.cpu_set.as_ref()?)
    }

    /// Saves the groups in force where the next agent finds them.
    fn keep_last_good(&mut self, problems: &mut Vec<String>) {
        if self.groups.kept {
            return;
        }
        let text = text::json(&self.groups.texts).unwrap_or_default();
        match self.host.state_replace(&last_good(&self.reconciler.instance.state_dir), &text) {
            Ok(()) => self.groups.kept = true,
            Err(error) => {
                problems.push(format!("the groups in force cannot be kept for the next start: {error}"));
            }
        }
    }
}

/// Whether every offline group yields by its class on every member.
pub(crate) fn yields(planned: &Planned) -> bool {
    let offline = planned.desired.groups.iter().filter(|group| group.class == Class::Offline);
    offline.into_iter().all(|group| {
        let class = format!("class {}", group.class);
        planned.plan.mechanisms.keys().any(|(name, _)| *name == group.name)
            && !planned
                .plan
                .unmet
                .iter()
                .any(|unmet| unmet.group == group.name && unmet.what.starts_with(&class))
    })
}

/// Disks that the kernel shares by weight: those of BFQ, and those with io.cost on.
pub(crate) fn shared(machine: &Machine, actual: &ActualState) -> BTreeSet<Device> {
    let root = actual
        .hierarchy_of(Controller::Io)
        .and_then(|hierarchy| actual.cgroups.get(&CgroupRef { hierarchy, path: CgroupPath::root() }));
    let by_cost = |device: Device| {
        let value = root.and_then(|root| root.values.get(&(KnobId::IoCostQos, Some(device))));
        value == Some(&Value::Number(1))
    };
    let shared = |disk: &&Disk| disk.scheduler.as_deref() == Some("bfq") || by_cost(disk.device);
    machine.disks.iter().filter(shared).map(|disk| disk.device).collect()
}
