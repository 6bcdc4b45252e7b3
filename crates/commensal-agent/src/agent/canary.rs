//! Runs a canary in the agent's loop: windows with and without isolation, measurement of online groups in them, and an
//! end that always restores isolation.

mod measure;
#[cfg(test)]
mod tests;

use super::early_tick::FAST;
use super::start::machine_lock;
use super::{Agent, Now, Phase};
use crate::canary::{PATIENCE, Report, Request, Shown, Window};
use crate::control::Reply;
use crate::controllers::{Decided, Wants};
use crate::error::AgentError;
use crate::sense::Sample;
use crate::snapshot;
use commensal_core::actual::CgroupPath;
use commensal_core::canary::{Canary, CanaryLimits, Change, End, Side};
use commensal_core::class::Mechanism;
use commensal_core::desired::DesiredState;
use commensal_core::group::{Class, GroupName, GroupSpec};
use commensal_core::limit::FROZEN;
use commensal_core::windows::Looks;
use commensal_host::Host;
use commensal_reconcile::{PlanRequest, Planned};
use measure::{Measured, Watch};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// A window counts if at least this share of it was measured.
const ENOUGH: f64 = 0.5;
/// Shortest time over which a run delay is meaningful, s.
const DELAY_OVER_S: f64 = 0.2;
/// Maximum number of rounds made at once before a canary begins: a round that creates or moves something needs another
/// one to see the result.
const SETTLING: u32 = 3;
/// If two looks are further apart than this (ms), the agent's own loop was stalled.
const STANDSTILL_MS: u64 = 500;

/// A running canary.
pub(super) struct Running {
    canary: Canary,
    looks: Looks,
    limits: CanaryLimits,
    generation: u64,
    began_ms: u64,
    /// Time without a sign of life from the client, ms, and when it was last updated; time in which the agent's loop
    /// was stalled does not count.
    silent_ms: u64,
    seen_ms: u64,
    /// The side that the last round put in force.
    in_force: Side,
    /// When to retry a switch that failed, and when to read the probe, ms.
    retry_ms: u64,
    look_ms: u64,
    watch: Watch,
    /// Sums of the current window's measurements.
    measured: Option<Measured>,
    /// By group, in windows with isolation: time, s, and run delay, ms.
    calm: BTreeMap<String, (f64, f64)>,
    /// The same in the current window, since the last comparison.
    recent: BTreeMap<String, (f64, f64)>,
    /// Why the current window must be aborted, or its pair is void.
    hurts: Option<String>,
    report: Report,
}

impl Running {
    /// Whether the loop must handle the canary before the next tick.
    fn calls(&mut self, now_ms: u64) -> bool {
        let side = self.canary.side();
        if now_ms >= self.look_ms {
            self.look_ms = now_ms + u64::try_from(FAST.as_millis()).unwrap_or(u64::MAX);
            if self.is_held_to_limits() && self.hurts.is_none() {
                self.hurts = self.watch.harm(now_ms, &self.limits);
            }
        }
        let switch = side != self.in_force && now_ms >= self.retry_ms;
        let silent = self.is_silent(now_ms);
        self.hurts.is_some() || switch || silent || now_ms >= self.canary.due_ms()
    }

    /// Whether the client has been silent for too long.
    fn is_silent(&mut self, now_ms: u64) -> bool {
        let since_ms = now_ms.saturating_sub(self.seen_ms).min(STANDSTILL_MS);
        (self.silent_ms, self.seen_ms) = (self.silent_ms + since_ms, now_ms);
        self.silent_ms > u64::try_from(PATIENCE.as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether the limits on online harm apply to the current window. With isolation on there is no harm to stop; but
    /// if only bad windows without isolation voided their pairs, the remaining pairs would make windows without
    /// isolation look better.
    fn is_held_to_limits(&self) -> bool {
        let open = self.canary.window().map(|window| window.side);
        open == Some(Side::Off) || open == Some(Side::On) && self.in_force == Side::On
    }

    /// Notes that a round has put the wanted side in force.
    fn in_force(&mut self) {
        let side = self.canary.side();
        if std::mem::replace(&mut self.in_force, side) != side && side == Side::On {
            self.watch.begin();
        }
    }

    /// Adds the use since the last tick.
    fn take_in(&mut self, sample: &Sample, online: &[String]) {
        if let Some(measured) = &mut self.measured {
            measured.add(sample, online);
        }
        let side = self.canary.side();
        if side != self.in_force {
            return;
        }
        let add = |sums: &mut BTreeMap<String, (f64, f64)>| {
            for name in online {
                let delay = sample.groups.get(name).and_then(|rates| rates.run_delay_ms_per_s);
                let Some(delay) = delay else { continue };
                let sum = sums.entry(name.clone()).or_default();
                *sum = (sum.0 + sample.seconds, sum.1 + delay * sample.seconds);
            }
        };
        if self.canary.window().is_some() {
            add(&mut self.recent);
            self.hurts = self.hurts.take().or_else(|| self.delayed());
        }
        // Measurements beyond the limits are not used to set the limits.
        if side == Side::On && self.hurts.is_none() {
            add(&mut self.calm);
        }
    }

    /// Whether a group's run delay is too high, over the time since it was last reported.
    fn delayed(&mut self) -> Option<String> {
        let (calm, limits) = (&self.calm, &self.limits);
        let mut too_much = None;
        self.recent.retain(|name, (seconds, sum)| {
            if *seconds < DELAY_OVER_S {
                return true;
            }
            let (delay, calm) =
                (*sum / *seconds, calm.get(name).map_or(0.0, |calm| calm.1 / calm.0.max(1e-3)));
            let most = limits.most_delay(calm);
            if delay > most {
                too_much = Some(format!(
                    "group {name} waited {delay:.0} ms per second for a CPU, more than {most:.0}"
                ));
            }
            false
        });
        too_much
    }

    /// Aborts the current window.
    fn abort(&mut self, now_ms: u64, why: String) -> Option<Change> {
        let window = self.canary.window()?;
        self.measured = None;
        let side = window.side.name();
        self.report.aborted.push(format!("pair {}, isolation {side}: {why}", window.pair + 1));
        // Failing to restore isolation is as bad as missing isolation.
        let harm = window.side == Side::Off || self.in_force == Side::Off;
        self.canary.abort(now_ms, harm)
    }

    /// Advances the canary; returns why it ended, if it did.
    fn advance(&mut self, host: &dyn Host, now_ms: u64, planned: &Planned) -> Option<End> {
        if let Some(why) = self.hurts.take()
            && let Some(Change::Over(end)) = self.abort(now_ms, why)
        {
            return Some(end);
        }
        while let Some(change) = self.canary.step(now_ms) {
            match change {
                Change::Begins(_) => {
                    self.measured = None;
                    self.watch.begin();
                    self.recent.clear();
                    self.report.no_probe = self.watch.follow(host, now_ms, planned);
                }
                Change::Settled(window) if self.in_force == window.side => {
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

    /// Whether an interim analysis is due and shows an effect.
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

    /// The report so far, or the final one: then no further interim analysis can err.
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

/// The groups as passed to the controllers: while isolation is off, the controllers keep their decisions, because the
/// measurements do not result from them.
pub(super) fn seen(off: bool, specs: &[GroupSpec]) -> Cow<'_, [GroupSpec]> {
    match off {
        false => Cow::Borrowed(specs),
        true => specs.iter().map(|spec| GroupSpec { target_wakeup_p99: None, ..spec.clone() }).collect(),
    }
}

/// The decisions from before isolation was switched off, with the current decisions about memory.
pub(super) fn held(before: Decided, now: Decided) -> Decided {
    let wants = Wants { frozen: now.wants.frozen, ..before.wants };
    let frozen = |(_, key): &(GroupName, String)| key == FROZEN.key();
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

impl Agent<'_> {
    /// Whether a canary has switched isolation off for now.
    pub(super) fn isolation_is_off(&self) -> bool {
        self.canary.as_ref().is_some_and(|running| running.canary.side() == Side::Off)
    }

    /// Whether the canary needs a tick now. Cheap: it reads a few counters of the probe, every 30 ms.
    pub(super) fn canary_calls(&mut self) -> bool {
        let now_ms = self.now().ms;
        self.canary.as_mut().is_some_and(|running| running.calls(now_ms))
    }

    /// Passes the result of a round to the canary.
    pub(super) fn canary_in_force(&mut self, done: bool) {
        let now_ms = self.now().ms;
        let Some(running) = &mut self.canary else { return };
        running.retry_ms = now_ms + u64::try_from(FAST.as_millis()).unwrap_or(u64::MAX);
        if done {
            running.in_force();
        }
    }

    /// Starts a canary, or replies why it cannot start.
    pub(super) fn canary_start(&mut self, request: Request, reply: Reply) {
        match self.canary_new(request) {
            Ok(running) => {
                let pairs = running.report.pairs;
                let what = format!("a canary of {pairs} pairs of windows begins, seed {}", request.seed);
                self.note_canary(&self.now(), "none", "running", &what);
                self.canary_report = Some(Arc::new(running.report.clone()));
                self.canary = Some(running);
                reply.done(what);
            }
            Err((error, way_out)) => reply.refused(error, way_out),
        }
    }

    fn canary_new(&mut self, request: Request) -> Result<Running, (String, String)> {
        let no = |error: &str, way_out: &str| Err((error.to_owned(), way_out.to_owned()));
        if self.canary.is_some() {
            return no("a canary runs already", "wait for its end, or stop it");
        }
        if self.actuation.phase == Phase::Paused {
            return no("the agent is paused", "`commensal agent resume` first");
        }
        if !self.is_guarded() {
            let error = "there is no guard: if the agent died in a window, isolation would stay off";
            return no(error, "start the agent without --no-guard");
        }
        self.settle();
        let now = self.now();
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
            return no("there is no online group that could notice", "name the services in the groups file");
        }
        let irreversible = self.reconciler.survey.caps.qos.is_some_and(|qos| !qos.reversible);
        if irreversible && planned.plan.mechanisms.values().any(|one| *one == Mechanism::QosLevel) {
            let error = "offline groups yield by cpu.qos_level, which this kernel does not let back";
            return no(error, "compare with the lab: `commensal lab run`");
        }
        self.differs()?;
        let Some(round) = &self.actuation.last else {
            return no("the agent has not finished its first look", "");
        };
        let mut watch = Watch::default();
        let no_probe = watch.follow(&*self.host, now.ms, &round.planned);
        let report = Report {
            request,
            pairs: request.terms().pairs(),
            began: now.text,
            no_probe,
            ..Report::default()
        };
        Ok(Running {
            canary,
            looks: request.terms().looks(),
            limits: request.limits(),
            generation: self.groups.state.generation,
            began_ms: now.ms,
            silent_ms: 0,
            seen_ms: now.ms,
            in_force: Side::On,
            retry_ms: 0,
            look_ms: 0,
            watch,
            measured: None,
            calm: BTreeMap::new(),
            recent: BTreeMap::new(),
            hurts: None,
            report,
        })
    }

    /// Makes the rounds that are due, so that the reply does not depend on the moment within a tick. The next tick's
    /// rounds report any problems.
    fn settle(&mut self) {
        for _ in 0..SETTLING {
            if self.actuation.phase == Phase::Settled {
                return;
            }
            let mut problems = Vec::new();
            let now = self.now();
            self.enforce(&now, &mut problems);
            if !problems.is_empty() {
                return;
            }
        }
    }

    /// Whether switching isolation off would change anything on the machine, according to the plan for that.
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
                "no offline group has processes now: there is nothing to be isolated from".to_owned(),
                "start offline work, and try again".to_owned(),
            ));
        }
        if on.plan.steps == off.plan.steps {
            return Err((
                "nothing holds offline groups back: without isolation nothing would differ".to_owned(),
                "`commensal status` says what is unmet, `commensal doctor` what this machine offers"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// One tick of the canary: adds the measurements, and continues, aborts a window or ends the canary.
    pub(super) fn canary_tick(&mut self, now: &Now, sample: &Sample) {
        let (Some(mut running), Some(round)) = (self.canary.take(), &self.actuation.last) else { return };
        running.take_in(sample, &online(&round.planned));
        let was = running.canary.side();
        let broken = running.report.aborted.len();
        let end = if running.generation != self.groups.state.generation {
            Some(End::Reloaded)
        } else if !self.is_guarded() {
            Some(End::Unguarded)
        } else if running.is_silent(now.ms) {
            Some(End::ClientGone)
        } else {
            running.advance(&*self.host, now.ms, &round.planned)
        };
        for why in &running.report.aborted[broken..] {
            self.note_canary(now, "window", "broken off", why);
        }
        let side = if end.is_some() { Side::On } else { running.canary.side() };
        if side != was {
            let why = match running.canary.window() {
                Some(window) => format!("a canary: pair {} of {}", window.pair + 1, running.report.pairs),
                None => "a canary: no window is open".to_owned(),
            };
            let name = |side: Side| format!("isolation {}", side.name());
            self.note_canary(now, &name(was), &name(side), &why);
            self.actuation.unsettle();
        }
        match end {
            Some(end) => self.canary_over(now, running, end),
            None => {
                self.canary_report = Some(Arc::new(running.report(now.ms, None)));
                self.canary = Some(running);
            }
        }
    }

    fn is_guarded(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.link.is_some())
    }

    fn canary_over(&mut self, now: &Now, mut running: Running, end: End) {
        running.canary.end(now.ms);
        let report = running.report(now.ms, Some(end));
        self.note_canary(now, "running", "over", end.words());
        self.canary_report = Some(Arc::new(report));
        self.actuation.unsettle();
    }

    /// Ends the canary, if one runs. The next round restores isolation.
    pub(super) fn canary_end(&mut self, end: End) -> bool {
        let Some(running) = self.canary.take() else { return false };
        let now = self.now();
        self.canary_over(&now, running, end);
        true
    }

    /// The client's keep-alive.
    pub(super) fn canary_alive(&mut self, reply: Reply) {
        match &mut self.canary {
            Some(running) => {
                running.silent_ms = 0;
                reply.done("the canary goes on");
            }
            None => reply.refused("no canary runs", "GET /v1/canary has the report of the last one"),
        }
    }

    /// Ends the canary and restores isolation before anything else happens.
    ///
    /// # Errors
    /// When isolation cannot be restored now.
    pub(super) fn canary_end_now(&mut self, end: End) -> Result<(), AgentError> {
        let off = self.isolation_is_off();
        if !self.canary_end(end) || !off {
            return Ok(());
        }
        let now_ms = self.now().ms;
        let _lock = machine_lock(self.host, &self.reconciler.instance)?;
        let decided = &self.decisions.decided;
        let adjust = |desired: &mut DesiredState| decided.adjust(desired);
        let request =
            PlanRequest { adjust: &adjust, kept: true, ..PlanRequest::all(&self.groups.compiled.groups) };
        let began = Instant::now();
        let round = self.reconciler.round(self.host, now_ms, &request)?;
        // The next round reports problems.
        self.rounded(round, began);
        self.publishing.audit.record(std::mem::take(&mut self.publishing.unrecorded));
        Ok(())
    }

    fn note_canary(&mut self, now: &Now, old: &str, new: &str, why: &str) {
        self.note(snapshot::Action {
            at: now.text.clone(),
            group: None,
            what: "canary".to_owned(),
            old: Some(old.to_owned()),
            new: Some(new.to_owned()),
            why: why.to_owned(),
            reason: None,
        });
    }

    /// The canary's part of a snapshot.
    pub(super) fn canary_shown(&self) -> Option<Shown> {
        let now_ms = self.now().ms;
        self.canary.as_ref().map(|running| running.shown(now_ms))
    }
}
