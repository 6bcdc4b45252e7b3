//! Triggers the next tick early: when online work waits between two ticks.
//!
//! The probe wakes the loop once they have waited too long within [`FAST`]. Without it, the run delay of online threads is read, which
//! costs a file per thread, so only as often as costs at most a hundredth of a CPU. Besides, the kernel reports
//! pressure (PSI triggers): of the machine's memory, and of each online group of a v2 hierarchy. The shortest window of
//! a trigger is 0.5 s, without `CAP_SYS_RESOURCE` 2 s, so triggers alone would be too late for a wake-up.

use super::Agent;
use commensal_core::control::latency::{
    CUT_SPACING_MS, LEAST_CPUS, PRESSURE_PCT, TOTAL_OVER_BLAMED, bound_ms,
};
use commensal_core::group::Class;
use commensal_core::knob::Version;
use commensal_host::{PressureTrigger, below};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often online waits are checked within a tick: a group that waits is helped within 100 ms, although the check in
/// which the wait begins sees too little of it, and the tick itself takes time on a busy machine.
pub(super) const FAST: Duration = Duration::from_millis(30);
/// Reading run delays costs at most this fraction (1 in 100) of a CPU.
const SHARE: u32 = 100;
/// Windows of a trigger: the shortest that the kernel accepts with `CAP_SYS_RESOURCE` (`WINDOW_MIN_US`), and without
/// (`psi_write`, kernel/sched/psi.c).
const WINDOWS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(2)];
/// Each v2 group with a trigger gets a kernel thread (`psimon`); beyond this many groups only the ticks notice waits.
const MOST_GROUPS: usize = 32;

/// Signals that are checked between ticks.
#[derive(Debug, Default)]
pub(super) struct EarlyTick {
    triggers: BTreeMap<PathBuf, PressureTrigger>,
    /// When the triggers were last polled. A poll costs 0.1 ms: between two ticks, when the loop wakes by itself, they are polled once
    /// per shortest window.
    asked: Option<Instant>,
    /// Files whose trigger was refused; these are not retried.
    refused: BTreeSet<PathBuf>,
    /// Time and total of the last reading of run delay; `next` is the earliest time of the next one.
    delay: Option<(Instant, u64)>,
    next: Option<Instant>,
    /// The wait that is worth an alarm, and when there was one.
    alarm: Option<Duration>,
    alarmed: Option<Instant>,
    /// Run delay at the last reading, ms per second.
    pub run_delay_ms_per_s: Option<f64>,
}

impl EarlyTick {
    /// Sets triggers on these files, and removes all others.
    fn follow(&mut self, files: BTreeSet<PathBuf>) {
        self.triggers.retain(|file, _| files.contains(file));
        self.refused.retain(|file| files.contains(file));
        for file in files {
            if self.triggers.contains_key(&file) || self.refused.contains(&file) {
                continue;
            }
            let new = |window: &Duration| {
                PressureTrigger::new(&file, window.mul_f64(PRESSURE_PCT / 100.0), *window).ok()
            };
            match WINDOWS.iter().find_map(new) {
                Some(trigger) => drop(self.triggers.insert(file, trigger)),
                None => drop(self.refused.insert(file)),
            }
        }
    }

    /// The triggers, to wait for.
    pub fn triggers(&self) -> impl Iterator<Item = &PressureTrigger> {
        self.triggers.values()
    }

    /// Whether the triggers have not been polled for a while.
    pub fn may_ask(&self) -> bool {
        self.asked.is_none_or(|at| at.elapsed() >= WINDOWS[0])
    }

    /// Whether a trigger has fired, given what each one said, if they were polled. A group that is gone loses its trigger.
    pub fn pressed(&mut self, told: Vec<Option<bool>>) -> bool {
        if told.len() != self.triggers.len() {
            return false;
        }
        self.asked = Some(Instant::now());
        let mut any = false;
        let mut fired = told.into_iter();
        self.triggers.retain(|_, _| {
            let told = fired.next().flatten();
            any |= told.unwrap_or(true);
            told.is_some()
        });
        any
    }
}

impl Agent<'_> {
    /// Sets the triggers that the groups in force need.
    pub(super) fn follow_pressure(&mut self) {
        let mut files: BTreeSet<PathBuf> = [PathBuf::from("/proc/pressure/memory")].into();
        let planned = self.actuation.last.as_ref().map(|round| &round.planned);
        let unified = self.reconciler.survey.hierarchies.iter().find(|one| one.version == Version::V2);
        if let (Some(planned), Some(unified)) = (planned, unified) {
            let online = planned.desired.groups.iter().filter(|group| group.class == Class::Online);
            let members = online.flat_map(|group| &group.members).take(MOST_GROUPS);
            for member in members {
                let folder = below(Path::new(&unified.mount), member.path.as_str());
                files.extend(["cpu.pressure", "io.pressure"].map(|file| folder.join(file)));
            }
        }
        self.sensing.early_tick.follow(files);
    }

    /// Whether online work waits more than allowed, right now. Cheap: a few counters of the probe, or of threads.
    pub(super) fn online_waits(&mut self) -> bool {
        let Some(target) = self.target_us() else { return false };
        let now = self.now();
        if self.actuation.last.is_none() {
            return false;
        }
        let online = self.sensing.online_cpus.unwrap_or(0.0).max(LEAST_CPUS);
        if let Some(seen) = self.sensing.blame_monitor.look(self.host, now.ms) {
            let judged = seen.judged;
            self.sensing.judged = Some(seen);
            return judged.blamed_ms_per_s.is_some_and(|ms| ms / online > bound_ms(target));
        }
        if self.sensing.blame_monitor.absent.is_none() {
            return false;
        }
        let delay = self.run_delay();
        delay.is_some_and(|ms| ms / online > bound_ms(target) * TOTAL_OVER_BLAMED)
    }

    /// Asks the probe for an alarm when online groups wait more than allowed.
    pub(super) fn set_alarm(&mut self) {
        let online = self.sensing.online_cpus.unwrap_or(0.0).max(LEAST_CPUS);
        let wait = self.target_us().map(|target| FAST.mul_f64(bound_ms(target) / 1e3 * online));
        // Hardly another value is not worth a system call.
        let known = self.sensing.early_tick.alarm;
        let close = known.zip(wait).is_some_and(|(known, wait)| {
            let ratio = wait.as_secs_f64() / known.as_secs_f64().max(f64::MIN_POSITIVE);
            (0.8..=1.25).contains(&ratio)
        });
        let wait = if close { known } else { wait };
        self.sensing.early_tick.alarm = wait;
        self.sensing.blame_monitor.set_alarm(wait, FAST);
    }

    /// Time until an alarm would bring the next tick at once: for a while after the last one no controller would act on it. `None`
    /// when none would, as while isolation is off on purpose.
    pub(super) fn alarm_pause(&self) -> Option<Duration> {
        let heeded = self.target_us().is_some() && self.actuation.last.is_some() && !self.isolation_is_off();
        let spacing = Duration::from_millis(CUT_SPACING_MS);
        let since = |at: Instant| spacing.saturating_sub(at.elapsed());
        heeded.then(|| self.sensing.early_tick.alarmed.map_or(Duration::ZERO, since))
    }

    /// Looks because of an alarm.
    pub(super) fn alarmed(&mut self) {
        self.sensing.early_tick.alarmed = Some(Instant::now());
        let now = self.now();
        if let Some(seen) = self.sensing.blame_monitor.look_alarmed(self.host, now.ms) {
            self.sensing.judged = Some(seen);
        }
    }

    /// Run delay of all online groups since the last reading, ms per second; `None` when it is too early for another
    /// one.
    fn run_delay(&mut self) -> Option<f64> {
        let began = Instant::now();
        if self.sensing.early_tick.next.is_some_and(|next| began < next) {
            return None;
        }
        let desired = &self.actuation.last.as_ref()?.planned.desired;
        let online = desired.groups.iter().filter(|group| group.class == Class::Online);
        let mut paths = online.flat_map(|group| &group.members).map(|member| &member.path);
        let (meters, host) = (&mut self.sensing.meters, &mut *self.host);
        let us = paths.try_fold(0, |sum: u64, path| Some(sum + meters.run_delay_us(host, path)?))?;
        let cost = began.elapsed();
        self.sensing.early_tick.next = Some(began + cost.saturating_mul(SHARE).max(FAST));
        let (then, before) = self.sensing.early_tick.delay.replace((began, us))?;
        let ms = us.saturating_sub(before) as f64 / 1e3 / (began - then).as_secs_f64();
        self.sensing.early_tick.run_delay_ms_per_s = Some(ms);
        Some(ms)
    }
}
