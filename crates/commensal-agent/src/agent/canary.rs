//! Runs a canary in the agent's loop: an experiment that removes isolation from the offline groups for short windows,
//! and measures how long online groups wait with and without isolation. At its end, isolation is always restored. A
//! side is one of the two states: isolation on or off.

mod harm;
mod measure;
#[cfg(test)]
mod tests;

use super::Agent;
use super::actuation::Phase;
use super::early_tick::FAST_MS;
use super::start::machine_lock;
use super::ticks::{Now, time_of_day};
use crate::canary::{PATIENCE, Report, Request, Shown, Window};
use crate::control::Reply;
use crate::controllers::{Decided, Wants};
use crate::error::AgentError;
use crate::sense::Sample;
use crate::snapshot;
use commensal_core::actual::CgroupPath;
use commensal_core::canary::{Canary, Change, End, Side};
use commensal_core::class::Mechanism;
use commensal_core::desired::DesiredState;
use commensal_core::group::{Class, GroupName, GroupSpec};
use commensal_core::limit::FROZEN;
use commensal_core::windows::Looks;
use commensal_host::Host;
use commensal_reconcile::{PlanRequest, Planned};
use harm::HarmWatch;
use measure::{Measured, Watch};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

/// Minimum share of a window that must be measured for the window to count.
const ENOUGH: f64 = 0.5;
/// Maximum number of rounds (plan and apply) made immediately before a canary starts: after a round that creates or
/// moves something, another round must read the result.
const SETTLING: u32 = 3;
/// If two checks of the client are further apart than this (ms), the agent's own loop did not run meanwhile.
const STANDSTILL_MS: u64 = 500;

/// A running canary, with the measurements of its current window.
pub(super) struct Running {
    canary: Canary,
    looks: Looks,
    /// Number of the configuration that was in force when the canary started.
    generation: u64,
    began_ms: u64,
    client: Client,
    switch: Switch,
    watch: Watch,
    /// Sums of the current window's measurements.
    measured: Option<Measured>,
    harm: HarmWatch,
    report: Report,
}

/// Whether the canary's client still sends keep-alives.
struct Client {
    /// Time without a keep-alive from the client (ms). Time in which the agent's own loop did not run does not count.
    silent_ms: u64,
    /// When `silent_ms` was last updated (ms).
    seen_ms: u64,
}

impl Client {
    /// Whether the client has sent no keep-alive for longer than [`PATIENCE`].
    fn is_silent(&mut self, now_ms: u64) -> bool {
        let since_ms = now_ms.saturating_sub(self.seen_ms).min(STANDSTILL_MS);
        (self.silent_ms, self.seen_ms) = (self.silent_ms + since_ms, now_ms);
        self.silent_ms > u64::try_from(PATIENCE.as_millis()).unwrap_or(u64::MAX)
    }
}

/// Switches isolation on or off: the canary says which side it needs, and the next round puts that side in force.
struct Switch {
    /// The side (isolation on or off) that the last successful round put in force.
    in_force: Side,
    /// When a failed switch is retried (ms).
    retry_ms: u64,
}

impl Running {
    /// Creates a canary that begins at `began_ms`. `generation` is the number of the configuration in force.
    fn new(canary: Canary, request: Request, generation: u64, began_ms: u64) -> Running {
        let terms = request.terms();
        Running {
            canary,
            looks: terms.looks(),
            generation,
            began_ms,
            client: Client { silent_ms: 0, seen_ms: began_ms },
            switch: Switch { in_force: Side::On, retry_ms: 0 },
            watch: Watch::default(),
            measured: None,
            harm: HarmWatch::new(request.limits()),
            report: Report { request, pairs: terms.pairs(), ..Report::default() },
        }
    }

    /// Whether the canary needs a tick before the next regular one.
    fn calls(&mut self, now_ms: u64) -> bool {
        let limits_apply = self.is_held_to_limits();
        self.harm.look(now_ms, &mut self.watch, limits_apply);
        let switch = self.canary.side() != self.switch.in_force && now_ms >= self.switch.retry_ms;
        let silent = self.client.is_silent(now_ms);
        self.harm.is_found() || switch || silent || now_ms >= self.canary.due_ms()
    }

    /// Whether the limits on harm to online work apply to the current window. They also apply to windows with
    /// isolation: if only bad windows without isolation voided their pairs, the remaining pairs would make isolation
    /// off seem better than it is.
    fn is_held_to_limits(&self) -> bool {
        let open = self.canary.window().map(|window| window.side);
        open == Some(Side::Off) || open == Some(Side::On) && self.switch.in_force == Side::On
    }

    /// Records that the last round has put the required side in force.
    fn in_force(&mut self) {
        let side = self.canary.side();
        if std::mem::replace(&mut self.switch.in_force, side) != side && side == Side::On {
            self.watch.begin();
        }
    }

    /// Adds the measurements since the last tick.
    fn take_in(&mut self, sample: &Sample, online: &[String]) {
        if let Some(measured) = &mut self.measured {
            measured.add(sample, online);
        }
        let side = self.canary.side();
        if side == self.switch.in_force {
            self.harm.take_in(sample, online, side, self.canary.window().is_some());
        }
    }

    /// Aborts the current window, and records the reason `why` in the report.
    fn abort(&mut self, now_ms: u64, why: String) -> Option<Change> {
        let window = self.canary.window()?;
        self.measured = None;
        let side = window.side.name();
        self.report.aborted.push(format!("pair {}, isolation {side}: {why}", window.pair + 1));
        // If isolation could not be restored, the window counts as one without isolation, which can do harm.
        let harm = window.side == Side::Off || self.switch.in_force == Side::Off;
        self.canary.abort(now_ms, harm)
    }

    /// Advances the canary; returns why it is over, or `None` while it continues.
    fn advance(&mut self, host: &dyn Host, now_ms: u64, planned: &Planned) -> Option<End> {
        if let Some(why) = self.harm.take()
            && let Some(Change::Over(end)) = self.abort(now_ms, why)
        {
            return Some(end);
        }
        while let Some(change) = self.canary.step(now_ms) {
            match change {
                Change::Begins(_) => {
                    self.measured = None;
                    self.watch.begin();
                    self.harm.begin();
                    self.report.no_probe = self.watch.follow(host, now_ms, planned);
                }
                Change::Settled(window) if self.switch.in_force == window.side => {
                    let blamed = self.watch.totals();
                    self.measured = Some(Measured::new(blamed));
                }
                Change::Settled(window) => {
                    let why = format!("isolation could not be switched {} in time", window.side.name());
                    if let Some(Change::Over(end)) = self.abort(now_ms, why) {
                        return Some(end);
                    }
                }
                Change::Ends(window) => {
                    let Some(measured) = self.measured.take() else { continue };
                    let request = &self.report.request;
                    let wanted = request.window_ms.saturating_sub(request.settle_ms) as f64 / 1e3;
                    let (pair, side) = (window.pair, window.side);
                    if measured.seconds < wanted * ENOUGH {
                        let why = "the machine stood still for most of it";
                        let which = format!("pair {}, isolation {}: {why}", pair + 1, side.name());
                        self.report.aborted.push(which);
                        self.canary.void();
                        continue;
                    }
                    let end = self.watch.totals();
                    self.report.windows.push(Window {
                        pair,
                        off: side == Side::Off,
                        from_s: window.from_ms.saturating_sub(self.began_ms) as f64 / 1e3,
                        seconds: measured.seconds,
                        groups: measured.figures(end.as_ref()),
                    });
                    if self.is_decided() {
                        return Some(End::Decided);
                    }
                }
                Change::Over(end) => return Some(end),
            }
        }
        None
    }

    /// Whether an interim analysis is due and finds a significant effect.
    fn is_decided(&self) -> bool {
        let over = self.canary.pairs_over();
        let level = Some(self.looks.level(over));
        self.looks.is_due(over)
            && Report { level, ..self.report.clone() }.effects().iter().any(|one| one.shown.is_decided())
    }

    fn shown(&self, now_ms: u64) -> Shown {
        let end_ms = self.began_ms + self.report.request.length_ms;
        Shown {
            off: self.canary.side() == Side::Off,
            pairs: [u64::from(self.canary.pairs_over()), self.report.pairs],
            aborted: self.canary.aborted(),
            left_ms: end_ms.saturating_sub(now_ms),
        }
    }

    /// Makes the report as of now. The report's level is the error rate of a conclusion drawn from the report. Unless
    /// `end` is `Decided`, the level is everything that the interim analyses have left of the total error rate, because
    /// no further analysis follows.
    fn report(&self, now_ms: u64, end: Option<End>) -> Report {
        let over = self.canary.pairs_over();
        let level = match end {
            None | Some(End::Decided) => self.looks.level(over),
            Some(_) => self.looks.rest(over),
        };
        Report {
            level: Some(level),
            ended: end.map(|end| end.words().to_owned()),
            seconds: now_ms.saturating_sub(self.began_ms) as f64 / 1e3,
            off_s: self.canary.off_ms(now_ms) as f64 / 1e3,
            ..self.report.clone()
        }
    }
}

/// The groups' specs as the controllers get them. While isolation is off (`off`), the specs have no latency target,
/// because the latency controller must not react to windows of a canary.
pub(super) fn seen(off: bool, specs: &[GroupSpec]) -> Cow<'_, [GroupSpec]> {
    match off {
        false => Cow::Borrowed(specs),
        true => specs.iter().map(|spec| GroupSpec { target_wakeup_p99: None, ..spec.clone() }).collect(),
    }
}

/// Combines the decisions from before isolation was removed with the current decisions about memory.
pub(super) fn held(before: Decided, now: Decided) -> Decided {
    let wants = Wants { frozen: now.wants.frozen, ..before.wants };
    let frozen = |(_, key): &(GroupName, Cow<'static, str>)| key == FROZEN.key();
    let why = before.why.into_iter().filter(|(of, _)| !frozen(of));
    let why = why.chain(now.why.into_iter().filter(|(of, _)| frozen(of))).collect();
    Decided { wants, held: now.held, kill: now.kill, why, ..before }
}

/// Applies the decisions to the desired state, with or without isolation.
pub(super) fn adjust(off: bool, decided: &Decided, desired: &mut DesiredState) {
    let written = off.then(|| desired.clone());
    decided.adjust(desired);
    if let Some(written) = written {
        desired.without_isolation(&written);
    }
}

fn online(planned: &Planned) -> Vec<String> {
    let groups = planned.desired.groups.iter().filter(|group| group.class == Class::Online);
    groups.map(|group| group.name.to_string()).collect()
}

/// The canary that runs, if any, and the report of the latest one.
#[derive(Default)]
pub(super) struct CanaryRuns {
    running: Option<Running>,
    pub report: Option<Arc<Report>>,
}

impl CanaryRuns {
    /// Whether a canary is running.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Whether a canary has removed isolation for now.
    pub fn is_isolation_off(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.canary.side() == Side::Off)
    }

    /// Whether the canary needs a tick now. The check is cheap: it reads a few counters of the probe, at most every 30
    /// ms.
    pub fn calls(&mut self, now_ms: u64) -> bool {
        self.running.as_mut().is_some_and(|running| running.calls(now_ms))
    }

    /// Tells the canary whether the round succeeded that switches isolation for the current window.
    pub fn in_force(&mut self, now_ms: u64, done: bool) {
        let Some(running) = &mut self.running else { return };
        running.switch.retry_ms = now_ms + FAST_MS;
        if done {
            running.in_force();
        }
    }

    /// Handles a keep-alive of the canary's client.
    pub fn alive(&mut self, reply: Reply) {
        match &mut self.running {
            Some(running) => {
                running.client.silent_ms = 0;
                reply.done("the canary goes on");
            }
            None => reply.refused("no canary is running", "GET /v1/canary has the report of the last one"),
        }
    }

    /// The canary's part of a snapshot, if one is running.
    pub fn shown(&self, now_ms: u64) -> Option<Shown> {
        self.running.as_ref().map(|running| running.shown(now_ms))
    }
}

impl Agent<'_> {
    /// Starts a canary, or replies with the reason why none can start.
    pub(super) fn canary_start(&mut self, request: Request, reply: Reply) {
        match self.canary_new(request) {
            Ok(running) => {
                let pairs = running.report.pairs;
                let what = format!("a canary of {pairs} pairs of windows begins, seed {}", request.seed);
                self.note_canary(time_of_day(), "none", "running", &what);
                self.canary.report = Some(Arc::new(running.report.clone()));
                self.canary.running = Some(running);
                reply.done(what);
            }
            Err((error, way_out)) => reply.refused(error, way_out),
        }
    }

    fn canary_new(&mut self, request: Request) -> Result<Running, (String, String)> {
        let no = |error: &str, way_out: &str| Err((error.to_owned(), way_out.to_owned()));
        if self.canary.is_running() {
            return no("a canary runs already", "wait for its end, or stop it");
        }
        if self.actuation.phase == Phase::Paused {
            return no("the agent is paused", "`commensal agent resume` first");
        }
        if !self.upkeep.is_guarded() {
            let error = "there is no guard: if the agent died in a window, isolation would stay off";
            return no(error, "start the agent without --no-guard");
        }
        self.settle();
        let now = self.ticks.now();
        let planned = match &self.actuation.last {
            Some(round) if self.actuation.phase == Phase::Settled => &round.planned,
            _ => {
                return no(
                    "not all groups are in force yet",
                    "see `commensal status`, and try again when it names no problem",
                );
            }
        };
        let canary = Canary::new(request.terms(), now.ms)
            .map_err(|error| (error, "change --for, --window, --settle or --off".to_owned()))?;
        if online(planned).is_empty() {
            return no("there is no online group to measure", "name the services in the groups file");
        }
        let irreversible = self.reconciler.survey.caps.qos.is_some();
        if irreversible && planned.plan.mechanisms.values().any(|one| *one == Mechanism::QosLevel) {
            let error = "offline groups yield by cpu.qos_level, which is irreversible on this kernel";
            return no(error, "compare with the lab: `commensal lab run`");
        }
        self.differs()?;
        let Some(round) = &self.actuation.last else {
            return no("the agent has not finished its first scan", "");
        };
        let mut running = Running::new(canary, request, self.groups.state.generation, now.ms);
        running.report.no_probe = running.watch.follow(&*self.host, now.ms, &round.planned);
        running.report.began = now.text;
        Ok(running)
    }

    /// Makes the rounds that are due, so that the reply does not depend on when in a tick the command arrives. The
    /// rounds of the next tick report any problems.
    fn settle(&mut self) {
        for _ in 0..SETTLING {
            if self.actuation.phase == Phase::Settled {
                return;
            }
            let mut problems = Vec::new();
            let now = self.ticks.now();
            self.enforce(&now, &mut problems);
            if !problems.is_empty() {
                return;
            }
        }
    }

    /// Checks that removing isolation would have an effect: offline groups have processes, and the plans with and
    /// without isolation differ. Otherwise returns the reason why not, and a remedy.
    fn differs(&mut self) -> Result<(), (String, String)> {
        let (specs, decided) = (&self.groups.compiled.groups, &self.decisions.decided);
        let (reconciler, host) = (&self.reconciler, &mut *self.host);
        let mut plan = |off: bool| {
            let adjust = |desired: &mut DesiredState| adjust(off, decided, desired);
            let request = PlanRequest { adjust: &adjust, ..PlanRequest::all(specs) };
            let planned = reconciler.instance.plan(host, &reconciler.survey, &request);
            planned.map_err(|error| (error.to_string(), "see `commensal status`".to_owned()))
        };
        let (on, off) = (plan(false)?, plan(true)?);
        let offline = on.desired.groups.iter().filter(|group| group.class == Class::Offline);
        let mut paths = offline.flat_map(|group| &group.members).map(|member| &member.path);
        let inside = |path: &CgroupPath| {
            let mut found = on.actual.cgroups.iter();
            found.any(|(place, found)| found.populated && path.contains(&place.path))
        };
        if !paths.any(inside) {
            return Err((
                "no offline group has processes now: there is no work to isolate online groups from"
                    .to_owned(),
                "start offline work, and try again".to_owned(),
            ));
        }
        if on.plan.steps == off.plan.steps {
            return Err((
                "no mechanism holds back offline groups: turning isolation off would change nothing"
                    .to_owned(),
                "`commensal status` says what is unmet, `commensal doctor` what this machine offers"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// One tick of the canary: adds the measurements, then continues, aborts a window or ends the canary.
    pub(super) fn canary_tick(&mut self, now: &Now, sample: &Sample) {
        let (Some(mut running), Some(round)) = (self.canary.running.take(), &self.actuation.last) else {
            return;
        };
        running.take_in(sample, &online(&round.planned));
        let was = running.canary.side();
        let broken = running.report.aborted.len();
        let end = if running.generation != self.groups.state.generation {
            Some(End::Reloaded)
        } else if !self.upkeep.is_guarded() {
            Some(End::Unguarded)
        } else if running.client.is_silent(now.ms) {
            Some(End::ClientGone)
        } else {
            running.advance(&*self.host, now.ms, &round.planned)
        };
        for why in &running.report.aborted[broken..] {
            self.note_canary(now.text.clone(), "window", "aborted", why);
        }
        let side = if end.is_some() { Side::On } else { running.canary.side() };
        if side != was {
            let why = match running.canary.window() {
                Some(window) => format!("a canary: pair {} of {}", window.pair + 1, running.report.pairs),
                None => "a canary: no window is open".to_owned(),
            };
            let name = |side: Side| format!("isolation {}", side.name());
            self.note_canary(now.text.clone(), &name(was), &name(side), &why);
            self.actuation.unsettle();
        }
        match end {
            Some(end) => self.canary_over(now, running, end),
            None => {
                self.canary.report = Some(Arc::new(running.report(now.ms, None)));
                self.canary.running = Some(running);
            }
        }
    }

    fn canary_over(&mut self, now: &Now, mut running: Running, end: End) {
        running.canary.end(now.ms);
        let report = running.report(now.ms, Some(end));
        self.note_canary(now.text.clone(), "running", "over", end.words());
        self.canary.report = Some(Arc::new(report));
        self.actuation.unsettle();
    }

    /// Ends the canary; returns whether one was running. The next round restores isolation.
    pub(super) fn canary_end(&mut self, end: End) -> bool {
        let Some(running) = self.canary.running.take() else { return false };
        let now = self.ticks.now();
        self.canary_over(&now, running, end);
        true
    }

    /// Ends the canary and restores isolation immediately.
    ///
    /// # Errors
    /// Returns an error if isolation cannot be restored now.
    pub(super) fn canary_end_now(&mut self, end: End) -> Result<(), AgentError> {
        let off = self.canary.is_isolation_off();
        if !self.canary_end(end) || !off {
            return Ok(());
        }
        let now_ms = self.ticks.now_ms();
        let _lock = machine_lock(self.host, &self.reconciler.instance)?;
        let decided = &self.decisions.decided;
        let adjust = |desired: &mut DesiredState| decided.adjust(desired);
        let request =
            PlanRequest { adjust: &adjust, kept: true, ..PlanRequest::all(&self.groups.compiled.groups) };
        let began = Instant::now();
        let round = self.reconciler.round(self.host, now_ms, &request)?;
        // The next round reports any problems.
        self.rounded(round, began);
        self.publishing.record();
        Ok(())
    }

    fn note_canary(&mut self, at: String, old: &str, new: &str, why: &str) {
        self.publishing.note(snapshot::Action {
            at,
            group: None,
            what: "canary".to_owned(),
            old: Some(old.to_owned()),
            new: Some(new.to_owned()),
            why: why.to_owned(),
            reason: None,
        });
    }
}
