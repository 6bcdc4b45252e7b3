//! The agent's main loop, on one thread. Each tick measures, lets the controllers (control loops) decide, plans,
//! applies the plan and publishes a snapshot. A round is one pass of plan and apply; not every tick needs one. A canary
//! is an experiment that removes isolation for short windows.

mod actuation;
mod canary;
mod decisions;
mod early_tick;
mod followed;
mod groups;
mod incomplete;
mod lease;
mod leave;
mod low_groups;
mod low_members;
mod options;
mod presence;
mod publishing;
mod rounds;
mod sensing;
mod show;
mod start;
mod ticks;
mod upkeep;

use self::actuation::{Actuation, Phase};
use self::canary::CanaryRuns;
use self::decisions::Decisions;
use self::early_tick::FAST;
use self::followed::Followed;
use self::groups::Groups;
use self::lease::Lease;
use self::presence::Presence;
use self::publishing::Publishing;
use self::sensing::Sensing;
use self::start::{be_master, machine_lock, make_room, only_one};
use self::ticks::{Now, Ticks};
use self::upkeep::{Upkeep, goes_on};
use crate::audit::Audit;
use crate::control::{self, Command, Control, Order};
use crate::controllers::{InForce, Measurements, Observation, Settings};
use crate::error::AgentError;
use crate::publish::Published;
use crate::safe_record;
use crate::sense::Sample;
use crate::snapshot::Snapshot;
use crate::status;
use commensal_core::canary::End;
use commensal_core::config::Headroom;
use commensal_core::control::io::shared;
use commensal_core::desired::DesiredGroup;
use commensal_core::text;
use commensal_core::units::Bytes;
use commensal_host::{Capability, GroupWatch, Host, Source, Waker, give_up};
use commensal_reconcile::groups_file::Changes;
use commensal_reconcile::{Instance, PlanRequest, Reconciler, Round};
pub use options::{Flags, OnExit, Options, Share};
use std::cell::RefCell;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// Number of ticks after which a queue that the agent keeps closed reopens, if the agent does not renew the hold.
const HOLD_TICKS: u32 = 5;
/// Number of ticks after the start that are only [`FAST`] apart: what the first round has created or moved is read back
/// soon.
const FIRST_TICKS: u64 = 3;

/// The agent's loop. Each field does one part of the work; the functions of this type do what involves several parts.
struct Agent<'a> {
    host: &'a mut dyn Host,
    options: &'a Options,
    ticks: Ticks,
    reconciler: Reconciler,
    groups: Groups,
    members: Followed,
    upkeep: Upkeep,
    sensing: Sensing,
    decisions: Decisions,
    actuation: Actuation,
    publishing: Publishing,
    canary: CanaryRuns,
}

/// Runs the agent until a signal tells it to exit. Calls `tell` with a snapshot after every tick. Returns the problems
/// that remained at exit.
///
/// Returns an error, before any setting is written, if another agent is running, if there are no valid groups, if this
/// machine cannot enforce them, or if the guard cannot be started.
pub fn run(
    host: &mut dyn Host,
    instance: Instance,
    options: &Options,
    flags: &Flags,
    tell: &mut dyn FnMut(&Snapshot),
) -> Result<Vec<String>, AgentError> {
    commensal_host::merge_freed_memory();
    host.state_dir(&instance.state_dir)?;
    let lock = only_one(host, &instance.state_dir, options.replace)?;
    let _master = if options.beside_others { None } else { be_master(host, &instance)? };
    let groups = Groups::first(host, &instance.state_dir, &options.config)?;
    let published = Arc::new(Published::new());
    let (send, commands) = control::commands(flags.waker.clone());
    let socket = instance.state_dir.join(control::SOCKET);
    let shared = share(host, options)?;
    let control = Control::start(host, &socket, shared, options.metrics, Arc::clone(&published), send)?;
    let audit = Audit::start_beside(host, &instance.state_dir).map_err(|error| {
        AgentError::new(format!("cannot start the thread that writes the audit log: {error}"))
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
        Some(time) => Some(Lease::begin(host, &reconciler.instance, options, time)?),
        None => None,
    };
    reconciler.see_writes(GroupWatch::new());
    let safe_state = safe_record::read(host, &reconciler.instance.state_dir);
    let mut agent = Agent {
        host,
        options,
        ticks: Ticks::start(),
        reconciler,
        groups,
        members: Followed::new(flags.waker.clone()),
        upkeep: Upkeep::new(Presence { control, lock }, lease),
        sensing: Sensing::new(options.probe),
        decisions: Decisions::default(),
        actuation: Actuation::new(),
        publishing: Publishing::new(audit, safe_state),
        canary: CanaryRuns::default(),
    };
    agent.begin();
    agent.keep(flags, &commands, &mut |snapshot| {
        published.publish(Arc::clone(&snapshot));
        tell(&snapshot);
    });
    Ok(agent.leave(flags.hand_over.load(Ordering::Relaxed)))
}

/// Opens the socket that the agent shares with a Unix group, then drops `CAP_CHOWN`, which no other part needs. Called
/// before threads are started, because capabilities are per thread.
fn share(host: &mut dyn Host, options: &Options) -> Result<Option<UnixListener>, AgentError> {
    let Some(Share { path, group, insisted }) = &options.share else { return Ok(None) };
    let listening = host.listen_for(path, *group);
    if let Err(error) = give_up(&[Capability::Chown]) {
        eprintln!("commensal: cannot drop the capability CAP_CHOWN, so the agent keeps it: {error}");
    }
    match listening {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if *insisted => Err(AgentError::of(
            format!("cannot create the control socket for the Unix group with GID {group}"),
            &error,
        )),
        Err(error) => {
            eprintln!(
                "commensal: the agent runs without the control socket for the Unix group with GID {group}: {error}"
            );
            Ok(None)
        }
    }
}

impl Agent<'_> {
    /// Plans once without writing, so that the controllers decide before the first round: a round without their
    /// decisions would remove the limits that a previous agent set.
    fn begin(&mut self) {
        let request = PlanRequest::all(&self.groups.compiled.groups);
        // An error is ignored here, because the first round reports it.
        let Ok(planned) = self.reconciler.instance.plan(self.host, &self.reconciler.survey, &request) else {
            return;
        };
        self.sensing.meters.follow(self.host, &planned.actual.hierarchies, &planned.desired);
        let (changes, problems) = (Vec::new(), Vec::new());
        self.actuation.last = Some(Round { planned, changes, problems, again_ms: None, current: false });
    }

    fn keep(&mut self, flags: &Flags, commands: &Receiver<Command>, tell: &mut dyn FnMut(Arc<Snapshot>)) {
        let pulse = self.host.pulse();
        while goes_on(self.host, &self.reconciler.instance.state_dir, flags) {
            let began = Instant::now();
            let forced = flags.reload.swap(false, Ordering::Relaxed);
            let mut problems = Vec::new();
            self.end_min_share(&mut problems);
            self.reload(forced);
            if self.look_after(&mut problems) {
                return flags.hand_over.store(true, Ordering::Relaxed);
            }
            let now = self.ticks.now();
            let sample = self.decide(&now);
            self.canary_tick(&now, &sample);
            self.note_unwatched(&mut problems);
            let before = problems.len();
            self.follow_members(&mut problems);
            let writes = self.reconciler.writes;
            self.act(&now, &mut problems);
            let failed = problems[before..].to_vec();
            self.sensing.early_tick.acted(self.reconciler.writes > writes);
            self.look_after_levels(&now, &sample, &mut problems);
            self.publishing.record();
            problems.extend(self.publishing.problem());
            let took = began.elapsed();
            self.ticks.end(took, self.options.interval);
            let pause = match self.ticks.count {
                count if count < FIRST_TICKS => FAST,
                // What was too short to measure is measured soon.
                _ if sample.seconds == 0.0 => self.options.interval / 2,
                _ => self.options.interval,
            };
            tell(Arc::new(self.snapshot(sample, took, (problems, failed))));
            let next = began + pause.min(self.options.interval);
            let asked = || {
                let flags = [&flags.stop, &flags.hand_over, &flags.reload];
                flags.iter().any(|one| one.load(Ordering::Relaxed))
            };
            let mut fast = Instant::now() + FAST;
            while Instant::now() < next && !asked() {
                // Waiting for the next tick counts as progress: it must not let the guard's lease expire.
                pulse.fetch_add(1, Ordering::Relaxed);
                let until = if self.looks_between_ticks() { next.min(fast) } else { next };
                let woken = self.wait(&flags.waker, until);
                if self.obey(commands) {
                    break;
                }
                if self.members.heed() {
                    // Protect new members now, not at the next tick.
                    break;
                }
                if self.canary.calls(self.ticks.now_ms()) {
                    break;
                }
                // Start the next tick now. A later sample would average over a longer time and make the wait that
                // caused the alarm seem short.
                if woken {
                    break;
                }
                if self.looks_between_ticks() && Instant::now() >= fast {
                    fast = Instant::now() + FAST;
                    if self.online_waits() {
                        // The next tick starts now, so that its sample does not average over a longer time.
                        break;
                    }
                }
            }
        }
    }

    /// Checks everything that must be in place before a setting is written. Returns whether another agent has taken
    /// over the state directory.
    fn look_after(&mut self, problems: &mut Vec<String>) -> bool {
        let instance = &self.reconciler.instance;
        // The guard comes first: it must know a setting's safe value before the setting is in force.
        self.upkeep.look_after_guard(self.host, instance, self.options, problems);
        self.groups.save(self.host, &instance.state_dir, problems);
        if self.upkeep.look_after_presence(self.host, &instance.state_dir, self.ticks.count, problems) {
            return true;
        }
        if Upkeep::is_due(self.ticks.count) {
            problems.extend(self.reconciler.look_after_journal(self.host));
        }
        false
    }

    /// Says what is seen late because too few directories can be watched. Everything may be in force nevertheless.
    fn note_unwatched(&self, problems: &mut Vec<String>) {
        problems.extend(self.reconciler.untold().map(|why| {
            format!(
                "what other programs write to settings is seen late, when the values are read back: {why}"
            )
        }));
        problems.extend(self.members.unwatched().map(|why| {
            format!("cgroups that come and go are seen late, when all of them are listed again: {why}")
        }));
    }

    fn follow_members(&mut self, problems: &mut Vec<String>) {
        let (reconciler, specs) = (&self.reconciler, &self.groups.compiled.groups);
        let follows = self.members.follow(&reconciler.instance, &reconciler.survey, specs);
        problems.extend(
            follows
                .err()
                .map(|error| format!("cannot start the threads that watch for new members: {error}")),
        );
        for (socket, why) in self.members.members.missed(&self.members.follow.sockets) {
            problems.push(format!(
                "lost the container engine at {}: {}",
                text::path(socket),
                text::visible(why)
            ));
        }
    }

    /// Carries out the controllers' decisions, unless the agent is paused.
    fn act(&mut self, now: &Now, problems: &mut Vec<String>) {
        if self.actuation.phase == Phase::Paused {
            return;
        }
        let desired = self.actuation.planned().map(|planned| &planned.desired);
        let killed = self.decisions.kill(self.host, &self.sensing.meters, desired, &now.text);
        let (state_dir, time) = (&self.reconciler.instance.state_dir, self.options.interval * HOLD_TICKS);
        let held = self.decisions.hold_queues(self.host, state_dir, time, &now.text, problems);
        killed.into_iter().chain(held).for_each(|action| self.publishing.note(action));
        self.enforce(now, problems);
        self.actuation.trim();
    }

    /// Whether the loop must read the waits of online groups itself between ticks: a canary runs, or a latency target
    /// exists and there is no probe to report waits.
    fn looks_between_ticks(&self) -> bool {
        let has_target = || self.groups.compiled.target_us().is_some();
        self.canary.is_running() || has_target() && self.sensing.blame_monitor.alarms().is_none()
    }

    /// Whether online work waits longer right now than its latency target allows, while isolation is on, so that a
    /// controller can react.
    fn online_waits(&mut self) -> bool {
        let target_us = self.groups.compiled.target_us();
        let (Some(target_us), Some(planned)) = (target_us, self.actuation.planned()) else { return false };
        let now_ms = self.ticks.now_ms();
        !self.canary.is_isolation_off()
            && self.sensing.online_waits(self.host, now_ms, target_us, &planned.desired)
    }

    /// Time until an alarm of the probe may start the next tick. `None` if alarms must not start a tick now, for
    /// example while a canary has removed isolation.
    fn alarm_pause(&self) -> Option<Duration> {
        let heeded = self.groups.compiled.target_us().is_some()
            && self.actuation.last.is_some()
            && !self.canary.is_isolation_off();
        heeded.then(|| self.sensing.early_tick.alarm_pause())
    }

    /// Waits until `until` or until an event arrives; returns whether the next tick must start immediately.
    fn wait(&mut self, waker: &Waker, until: Instant) -> bool {
        let most = self.upkeep.longest_wait().unwrap_or(self.options.interval);
        // Do not wait for inotify events on the groups files if they were read a moment ago.
        let (changes, pause) = self.groups.watched();
        let alarm_pause = self.alarm_pause();
        let alarms =
            self.sensing.blame_monitor.alarms().filter(|_| alarm_pause.is_some_and(|one| one.is_zero()));
        let pauses = [Some(pause), alarm_pause].into_iter().flatten().filter(|one| !one.is_zero());
        let least = pauses.min().unwrap_or(most).min(most);
        let incomplete = &self.members.incomplete;
        let least = if incomplete.has_appeared() { Duration::ZERO } else { least };
        let patience = until.saturating_duration_since(Instant::now()).min(least);
        let watch = changes.map(|changes| changes.watch().as_fd());
        let guard = self.upkeep.guard();
        let sources = [
            watch.map(Source::readable),
            alarms.map(Source::readable),
            incomplete.source().map(Source::readable),
            self.sensing.early_tick.triggers().map(Source::readable),
            guard.map(|link| Source::closed(link.connection())),
        ];
        let there: Vec<Source<'_>> = sources.iter().flatten().cloned().collect();
        let Ok(woken) = waker.wait(&there, patience) else {
            std::thread::sleep(patience);
            return false;
        };
        let mut woken = woken.into_iter();
        let [touched, alarmed, made, pressed, lost_guard] =
            sources.map(|source| source.is_some() && woken.next() == Some(true));
        let written = touched && changes.is_some_and(Changes::any);
        if let Some(link) = guard.filter(|_| lost_guard) {
            link.closed();
        }
        if touched {
            self.groups.looked(written);
        }
        if alarmed {
            self.sensing.alarmed(self.host, self.ticks.now_ms());
        }
        if made {
            self.members.incomplete.look();
        }
        if pressed {
            self.sensing.early_tick.pressed();
        }
        pressed || written || alarmed || lost_guard
    }

    /// Executes the commands from the control socket. Returns whether there was a command other than a keep-alive from
    /// a canary's client.
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
                        Some(_) => {
                            let why = status::rejected(&self.groups.state).unwrap_or_default();
                            reply.refused(why, "correct the groups file and reload again")
                        }
                    }
                }
                Order::Pause => match self.canary_end_now(End::Paused) {
                    Ok(()) => {
                        self.actuation.phase = Phase::Paused;
                        reply.done("paused: the agent writes nothing until `commensal agent resume`; settings in force stay");
                    }
                    Err(error) => {
                        let error =
                            format!("cannot restore the isolation that a canary has turned off: {error}");
                        reply.refused(error, "see `commensal status`");
                    }
                },
                Order::Resume => {
                    self.actuation.phase = Phase::Unsettled;
                    reply.done("resumed: the agent keeps the groups in force again");
                }
                Order::Canary(request) => self.canary_start(request, reply),
                Order::CanaryAlive => self.canary.alive(reply),
                Order::CanaryStop => match self.canary_end(End::Stopped) {
                    true => reply.done("the canary has ended"),
                    false => reply.refused("no canary is running", ""),
                },
            }
        }
        any
    }

    /// Puts changed groups files in force, either completely or not at all.
    fn reload(&mut self, forced: bool) {
        if self.groups.reload(self.host, &self.reconciler, &self.options.config, forced) {
            self.members.mind_all();
        }
    }

    /// Measures the use since the last tick and asks the controllers for decisions.
    fn decide(&mut self, now: &Now) -> Sample {
        let Some(planned) = self.actuation.planned() else { return Sample::default() };
        let (compiled, survey) = (&self.groups.compiled, &self.reconciler.survey);
        let by_quota = !self.decisions.decided.wants.quotas.is_empty();
        let state = (survey.hierarchies.as_slice(), &planned.desired);
        // The windows of a canary begin and end between ticks.
        let least = if self.canary.is_running() { Duration::ZERO } else { self.options.interval / 2 };
        let sample = self.sensing.sample(self.host, (now.ms, least), state, compiled, by_quota);
        let has_target = compiled.target_us().is_some();
        // Loading the probe takes a while, so groups without a target are put in force first.
        let waits = match has_target || self.ticks.count >= FIRST_TICKS {
            true => self.sensing.waits(self.host, (now.ms, has_target), &survey.hierarchies),
            false => None,
        };
        // Windows of a canary must not influence the controllers.
        let off = self.canary.is_isolation_off();
        let before = off.then(|| self.decisions.decided.clone());
        let specs = canary::seen(off, &compiled.groups);
        let shared = shared(&survey.machine.disks, &planned.actual);
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
            machine: &survey.machine,
            settings: Settings {
                headroom: if off { Headroom::Off } else { compiled.headroom },
                io: compiled.io,
                specs: &specs,
            },
            in_force: InForce {
                desired: &planned.desired,
                yields: self.actuation.facts.yields,
                declined: &planned.plan.declined,
                beside: compiled.weights.then_some(&self.actuation.facts.beside),
                shared: &shared,
            },
            measured: Measurements {
                sample: &sample,
                probe: waits.as_ref().filter(|_| has_target).map(|seen| seen.online),
                starved: &self.sensing.levels.starved,
                run_delay_ms_per_s: self.sensing.early_tick.run_delay_ms_per_s.take(),
                available: self.sensing.available,
                held: &held,
                list: &list,
            },
        });
        if let Some(before) = before {
            self.decisions.decided = canary::held(before, std::mem::take(&mut self.decisions.decided));
        }
        self.sensing.shown_waits = waits.filter(|_| has_target);
        self.sensing.set_alarm(compiled.target_us());
        sample
    }
}
