//! Starts the next tick early when online work waits between two ticks.
//!
//! The probe wakes the loop when online groups have waited too long within [`FAST`]. Without the probe, the loop reads
//! the run delay of online threads. Because that means reading a file per thread, it uses at most a hundredth of a CPU.
//! In addition, the kernel reports pressure (PSI triggers): memory pressure of the machine, and CPU and disk pressure
//! of online groups in a v2 hierarchy. Triggers alone would report waits too late: their shortest window is 0.5 s, and
//! 2 s without `CAP_SYS_RESOURCE`.

use super::sensing::Sensing;
use crate::snapshot::Reactions;
use commensal_core::actual::Hierarchy;
use commensal_core::config::{Compiled, Headroom};
use commensal_core::control::latency::{
    CUT_SPACING_MS, LEAST_CPUS, PRESSURE_PCT, TOTAL_OVER_BLAMED, bound_ms,
};
use commensal_core::desired::{DesiredState, Member};
use commensal_core::group::Class;
use commensal_core::knob::Version;
use commensal_host::{Host, PressureTriggers, below};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Interval at which waits of online groups are checked within a tick. It allows a reaction within 100 ms, although the
/// first check after a wait begins measures only part of the wait, and the tick itself takes time on a busy machine.
pub(super) const FAST: Duration = Duration::from_millis(FAST_MS);
/// [`FAST`] in milliseconds.
pub(super) const FAST_MS: u64 = 30;
/// Reading run delays uses at most this fraction (1 in 100) of a CPU.
const SHARE: u32 = 100;
/// Windows of a trigger: the shortest that the kernel accepts with `CAP_SYS_RESOURCE` (`WINDOW_MIN_US`), and the
/// shortest without it (`psi_write` in kernel/sched/psi.c).
const WINDOWS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(2)];
/// Maximum number of cgroups with triggers, since the kernel starts a thread (`psimon`) for each. Waits in other
/// cgroups are noticed by the ticks.
const MOST_GROUPS: usize = 32;

/// The pressure triggers, the run delay and the probe's alarm, which are checked between ticks.
#[derive(Debug, Default)]
pub(super) struct EarlyTick {
    /// `None` until the first round, and if the kernel refuses to create the set.
    triggers: Option<PressureTriggers>,
    /// Files whose trigger was refused; they are not retried.
    refused: BTreeSet<PathBuf>,
    /// Time of the last reading of run delay, and its total then (us).
    delay: Option<(Instant, u64)>,
    /// Earliest time of the next reading.
    next: Option<Instant>,
    /// The wait at which the probe raises an alarm.
    alarm: Option<Duration>,
    /// When the last alarm occurred.
    alarmed: Option<Instant>,
    /// When the kernel raised the first alarm after which the agent has not written anything yet.
    unanswered: Option<Instant>,
    /// The agent's reactions so far.
    pub reactions: Reactions,
    /// Run delay at the last reading (ms per second).
    pub run_delay_ms_per_s: Option<f64>,
}

impl EarlyTick {
    /// Sets triggers on these files, and removes all other triggers.
    fn follow(&mut self, files: BTreeSet<PathBuf>) {
        if self.triggers.is_none() {
            self.triggers = PressureTriggers::new().ok();
        }
        let Some(triggers) = &mut self.triggers else { return };
        triggers.retain(|file| files.contains(file));
        self.refused.retain(|file| files.contains(file));
        for file in files {
            if triggers.contains(&file) || self.refused.contains(&file) {
                continue;
            }
            let mut add = |window: &Duration| {
                triggers.add(&file, window.mul_f64(PRESSURE_PCT / 100.0), *window).is_ok()
            };
            if !WINDOWS.iter().any(&mut add) {
                self.refused.insert(file);
            }
        }
    }

    /// The source that becomes readable when a trigger fires.
    pub fn triggers(&self) -> Option<BorrowedFd<'_>> {
        self.triggers.as_ref().map(AsFd::as_fd)
    }

    /// Time until an alarm may start the next tick. For a while after an alarm, no controller would act on a second
    /// alarm.
    pub fn alarm_pause(&self) -> Duration {
        let spacing = Duration::from_millis(CUT_SPACING_MS);
        self.alarmed.map_or(Duration::ZERO, |at| spacing.saturating_sub(at.elapsed()))
    }

    /// Called when a tick has carried out its decisions, and `wrote` something or not. A tick in which no controller acts
    /// on an alarm ends the wait for a reaction to it.
    pub fn acted(&mut self, wrote: bool) {
        if let Some(raised) = self.unanswered.take().filter(|_| wrote) {
            self.reactions.add(raised.elapsed());
        }
    }

    /// Called when a trigger has fired. Drops the triggers of cgroups that were removed.
    pub fn pressed(&mut self) {
        if let Some(triggers) = &mut self.triggers {
            triggers.retain(|_| true);
        }
    }
}

/// The pressure files of an online group on which a controller acts. The others get no trigger, because the kernel
/// starts a thread for each cgroup with one.
fn heeded(compiled: &Compiled) -> impl Iterator<Item = &'static str> {
    let by_cpu =
        compiled.target_us().is_some() || !matches!(compiled.headroom, Headroom::Target | Headroom::Off);
    let files = [("cpu.pressure", by_cpu), ("io.pressure", compiled.io)];
    files.into_iter().filter(|(_, heeded)| *heeded).map(|(file, _)| file)
}

/// The members of the online groups.
fn online(desired: &DesiredState) -> impl Iterator<Item = &Member> {
    let groups = desired.groups.iter().filter(|group| group.class == Class::Online);
    groups.flat_map(|group| &group.members)
}

impl Sensing {
    /// Sets the triggers for the groups in force.
    pub fn follow_pressure(
        &mut self,
        hierarchies: &[Hierarchy],
        desired: &DesiredState,
        compiled: &Compiled,
    ) {
        let mut files: BTreeSet<PathBuf> = [PathBuf::from("/proc/pressure/memory")].into();
        if let Some(unified) = hierarchies.iter().find(|one| one.version == Version::V2) {
            for member in online(desired).take(MOST_GROUPS) {
                let folder = below(Path::new(&unified.mount), member.path.as_str());
                files.extend(heeded(compiled).map(|file| folder.join(file)));
            }
        }
        self.early_tick.follow(files);
    }

    /// Whether online work waits longer right now than the latency target (us) allows. The check is cheap: it reads a
    /// few counters of the probe, or of threads.
    pub fn online_waits(
        &mut self,
        host: &mut dyn Host,
        now_ms: u64,
        target_us: f64,
        desired: &DesiredState,
    ) -> bool {
        let online = self.online_cpus.unwrap_or(0.0).max(LEAST_CPUS);
        if let Some(seen) = self.blame_monitor.look(host, now_ms) {
            let online_waits = seen.online;
            self.between_ticks = Some(seen);
            return online_waits.blamed_ms_per_s.is_some_and(|ms| ms / online > bound_ms(target_us));
        }
        if self.blame_monitor.absent.is_none() {
            return false;
        }
        let delay = self.run_delay(host, desired);
        delay.is_some_and(|ms| ms / online > bound_ms(target_us) * TOTAL_OVER_BLAMED)
    }

    /// Sets the probe's alarm to the time that online groups may wait, given the latency target (us).
    pub fn set_alarm(&mut self, target_us: Option<f64>) {
        let online = self.online_cpus.unwrap_or(0.0).max(LEAST_CPUS);
        let wait = target_us.map(|target| FAST.mul_f64(bound_ms(target) / 1e3 * online));
        // A value that differs only slightly is not worth a system call.
        let known = self.early_tick.alarm;
        let close = known.zip(wait).is_some_and(|(known, wait)| {
            let ratio = wait.as_secs_f64() / known.as_secs_f64().max(f64::MIN_POSITIVE);
            (0.8..=1.25).contains(&ratio)
        });
        let wait = if close { known } else { wait };
        self.early_tick.alarm = wait;
        self.blame_monitor.set_alarm(wait, FAST);
    }

    /// Takes a sample because of an alarm.
    pub fn alarmed(&mut self, host: &dyn Host, now_ms: u64) {
        let now = Instant::now();
        self.early_tick.alarmed = Some(now);
        let alarm = self.blame_monitor.take_alarm();
        let raised = alarm.and_then(|alarm| now.checked_sub(alarm.age));
        self.early_tick.unanswered = self.early_tick.unanswered.or(raised);
        if let Some(seen) = self.blame_monitor.look_alarmed(host, now_ms, alarm) {
            self.between_ticks = Some(seen);
        }
    }

    /// Run delay of all online groups since the last reading (ms per second). `None` if it is too early for another
    /// reading, or if a counter cannot be read.
    fn run_delay(&mut self, host: &mut dyn Host, desired: &DesiredState) -> Option<f64> {
        let began = Instant::now();
        if self.early_tick.next.is_some_and(|next| began < next) {
            return None;
        }
        let mut paths = online(desired).map(|member| &member.path);
        let meters = &mut self.meters;
        let us = paths.try_fold(0, |sum: u64, path| Some(sum + meters.run_delay_us(host, path)?))?;
        let cost = began.elapsed();
        self.early_tick.next = Some(began + cost.saturating_mul(SHARE).max(FAST));
        let (then, before) = self.early_tick.delay.replace((began, us))?;
        let ms = us.saturating_sub(before) as f64 / 1e3 / (began - then).as_secs_f64();
        self.early_tick.run_delay_ms_per_s = Some(ms);
        Some(ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_core::config::compile;

    /// Each option that switches a controller on or off, with the files that must have a trigger.
    // promise 22
    #[test]
    fn triggers_are_set_on_what_a_controller_acts_on() {
        let check = |agent: &str, group: &str, want: &[&str]| {
            let text = format!("[agent]\n{agent}\n[group.web]\nclass = \"online\"\n{group}\n");
            let compiled = compile(&vec![("a.toml".to_owned(), text)]).unwrap();
            assert_eq!(heeded(&compiled).collect::<Vec<_>>(), want, "{agent} {group}");
        };
        let target = "target-wakeup-p99 = \"200 us\"";
        let (cpu, io) = ("cpu.pressure", "io.pressure");
        check("", "", &[io]);
        check("", target, &[cpu, io]);
        check("io = false", "", &[]);
        check("io = false", target, &[cpu]);
        check("headroom = \"off\"", "", &[io]);
        for headroom in ["auto", "frame", "quota"] {
            check(&format!("headroom = \"{headroom}\""), "", &[cpu, io]);
        }
    }
}
