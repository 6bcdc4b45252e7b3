//! Memory of one group (queue new work, freeze, kill the largest process) and of the machine: offline work gives way,
//! never online. All figures are [`Bytes`]: a peer counted each victim a thousandfold, and stopped after the first.
//!
//! *Held* memory is what cannot be reclaimed without I/O or a kill: `memory.current` less the file cache (`active_file`
//! and `inactive_file` of `memory.stat`). Counting the cache, every busy group is at its limit.
//!
//! *Pending free* is the memory of processes that are dying already. It counts as free, so that only one process is
//! killed when one is enough. There is no cool-down: it would ignore memory that runs out meanwhile.

use super::explain::Explanation;
use super::{Clock, MISSING_HOLD_MS, Staleness, sound};
use crate::group::{Class, OnExceed};
use crate::units::{Bytes, Ppm};
use std::collections::BTreeMap;

/// Share of the limit from which new work waits: a running job's last growth must still fit.
pub const QUEUE_AT: Ppm = Ppm(900_000);
/// Share of the limit below which new work is admitted again.
pub const QUEUE_BELOW: Ppm = Ppm(850_000);
/// Share of the limit from which the group is frozen, if `on-exceed = "freeze"`: half of what is left when the queue
/// closes; the other half is for what the kernel still allocates for frozen tasks.
pub const FREEZE_AT: Ppm = Ppm(950_000);
/// Share of the limit below which the group is thawed: where new work waits, so that the group does not oscillate at
/// one threshold.
pub const THAW_BELOW: Ppm = QUEUE_AT;
/// A frozen group gives no memory back by itself; after this long it is reported as stuck, ms.
pub const STUCK_MS: u64 = 60_000;
/// A victim's memory counts as free for this long after the kill, ms (koordlet waits 4 s after one, too). A process
/// that has not died by then is stuck in the kernel and will not free its memory soon.
pub const PENDING_MS: u64 = 4_000;

/// A process that could be killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Process ID.
    pub pid: u32,
    /// Start time, clock ticks since boot; together with the PID it identifies the process.
    pub start: u64,
    /// Memory that killing it frees: anonymous and shared memory that no other process maps.
    pub held: Bytes,
    /// Whether it was killed already, or is exiting.
    pub dying: bool,
}

/// The process to kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Victim {
    /// Process ID.
    pub pid: u32,
    /// Start time, clock ticks since boot.
    pub start: u64,
    /// Memory that killing it frees.
    pub held: Bytes,
}

/// Processes that are dying, and how long ago they were killed.
#[derive(Debug, Clone, Default)]
struct Dying(BTreeMap<(u32, u64), u64>);

impl Dying {
    fn pass(&mut self, passed_ms: u64) {
        self.0.values_mut().for_each(|ms| *ms = ms.saturating_add(passed_ms));
    }

    /// Pending free memory. A process that is no longer listed has freed its memory.
    fn pending(&mut self, processes: &[Process]) -> u64 {
        let id = |process: &Process| (process.pid, process.start);
        self.0.retain(|known, _| processes.iter().any(|process| id(process) == *known));
        for process in processes.iter().filter(|process| process.dying) {
            self.0.entry(id(process)).or_insert(0);
        }
        let soon = |process: &&Process| self.0.get(&id(process)).is_some_and(|ms| *ms < PENDING_MS);
        processes.iter().filter(soon).fold(0, |sum, process| sum.saturating_add(process.held.0))
    }

    /// Chooses the largest process, of equals the youngest (it loses the least work); never one twice, and none whose
    /// death frees nothing.
    fn choose(&mut self, processes: &[Process]) -> Option<Victim> {
        let alive =
            |process: &&Process| process.held.0 > 0 && !self.0.contains_key(&(process.pid, process.start));
        let largest = processes.iter().filter(alive).max_by_key(|process| (process.held, process.start))?;
        self.0.insert((largest.pid, largest.start), 0);
        Some(Victim { pid: largest.pid, start: largest.start, held: largest.held })
    }
}

/// Inputs of a group's step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupInput<'a> {
    /// Memory that the group holds, without the page cache.
    pub held: Option<Bytes>,
    /// The group's hard limit.
    pub limit: Bytes,
    /// What the user configured for an exceeded limit.
    pub on_exceed: OnExceed,
    /// Whether the kernel enforces the limit on a single cgroup. Then the kernel also kills, sooner than the agent
    /// could.
    pub by_kernel: bool,
    /// The group's processes; `None` when they were not listed, which is cheaper (see [`GroupDecision::list`]).
    pub processes: Option<&'a [Process]>,
}

/// What to do with a group.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupDecision {
    /// New work must wait.
    pub queue: bool,
    /// Every task must be stopped.
    pub frozen: bool,
    /// The group has been frozen for [`STUCK_MS`] and should be reported.
    pub stuck: bool,
    /// Kill this process.
    pub kill: Option<Victim>,
    /// A victim is due and the processes were not listed: call again at the same time with them.
    pub list: bool,
    /// Why.
    pub why: Explanation,
}

/// The controller of one group.
#[derive(Debug, Clone, Default)]
pub struct GroupMemory {
    clock: Clock,
    silence: Staleness,
    dying: Dying,
    queue: bool,
    frozen: bool,
    frozen_ms: u64,
}

impl GroupMemory {
    /// Starts; `frozen` when an earlier agent has frozen the group, for a hand-over.
    #[must_use]
    pub fn new(frozen: bool) -> GroupMemory {
        GroupMemory { queue: frozen, frozen, ..GroupMemory::default() }
    }

    /// Decides. When the held memory is missing, everything first stays as it is, then new work waits; nothing is
    /// frozen or killed without a measurement.
    pub fn step(&mut self, now_ms: u64, input: &GroupInput<'_>) -> GroupDecision {
        let passed_ms = self.clock.step(now_ms);
        self.dying.pass(passed_ms);
        let lost = self.silence.step(passed_ms, input.held.is_some());
        self.frozen_ms = if self.frozen { self.frozen_ms.saturating_add(passed_ms) } else { 0 };
        let frozen_before = self.frozen;
        let (mut kill, mut list) = (None, false);
        let pending = Bytes(input.processes.map_or(0, |processes| self.dying.pending(processes)));
        let rule = match input.held {
            None => {
                self.queue |= lost;
                let rule = if lost { "new work waits: what it holds" } else { "held: what it holds" };
                format!("{rule} could not be read for {} s", self.silence.ms() / 1_000)
            }
            Some(held) => {
                self.levels(held, input);
                let over = held.0.saturating_sub(pending.0) >= input.limit.0;
                if over && input.on_exceed == OnExceed::KillLargest && !input.by_kernel {
                    kill = input.processes.and_then(|processes| self.dying.choose(processes));
                    list = input.processes.is_none();
                }
                self.rule(held, over, kill, input)
            }
        };
        let number = |bytes: Bytes| bytes.0 as f64;
        let mut formula = Vec::new();
        if input.held.is_some() {
            formula.push(match self.queue {
                true => "queue_held = held >= floor(85 % * limit / 100)",
                false => "queue_held = held >= floor(90 % * limit / 100)",
            });
            formula.extend(kill.map(|_| "kill = held - pending >= limit"));
        }
        if input.on_exceed == OnExceed::Freeze {
            formula.push(match (input.held, frozen_before) {
                (None, _) => "frozen = frozen_before",
                (_, true) => "frozen = held >= floor(90 % * limit / 100)",
                (_, false) => "frozen = held >= floor(95 % * limit / 100)",
            });
        }
        let formula = formula.join("; ");
        let why = Explanation::new(rule, formula)
            .maybe("held", input.held.map(number), "B")
            .with("limit", number(input.limit), "B")
            .maybe("pending", input.processes.map(|_| number(pending)), "B")
            .with("frozen_before", f64::from(u8::from(frozen_before)), "");
        let stuck = self.frozen && self.frozen_ms >= STUCK_MS;
        GroupDecision { queue: self.queue, frozen: self.frozen, stuck, kill, list, why }
    }

    fn levels(&mut self, held: Bytes, input: &GroupInput<'_>) {
        let of = |share: Ppm| share.of(input.limit.0);
        let latch = |on: bool, at: Ppm, below: Ppm| held.0 >= of(at) || (on && held.0 >= of(below));
        self.queue = latch(self.queue, QUEUE_AT, QUEUE_BELOW);
        self.frozen = input.on_exceed == OnExceed::Freeze && latch(self.frozen, FREEZE_AT, THAW_BELOW);
    }

    fn rule(&self, held: Bytes, over: bool, kill: Option<Victim>, input: &GroupInput<'_>) -> String {
        if let Some(victim) = kill {
            return format!("process {} is killed, the largest: {} are at the limit", victim.pid, held);
        }
        let rule = match (over, input.on_exceed, self.frozen, self.queue) {
            (true, OnExceed::KillLargest, ..) if input.by_kernel => "the kernel kills at this limit",
            (true, OnExceed::KillLargest, ..) if input.processes.is_none() => "a victim is due",
            (true, OnExceed::KillLargest, ..) => {
                "at the limit, and nobody is left whose death would free anything"
            }
            (.., true, _) => "frozen, and new work waits",
            (.., true) => "new work waits",
            _ => "within its limit",
        };
        rule.to_owned()
    }
}

/// Available memory below which offline work is frozen, as a share of the machine (rubik acts at 10 % too) …
pub const LOW: Ppm = Ppm(100_000);
/// … but at most this much: what some cores that fault pages in can take within a tick of one second.
pub const LOW_MOST: Bytes = Bytes(8 << 30);
/// Offline work is thawed when available memory is this many halves of the low level.
pub const EASE_HALVES: u64 = 3;
/// Time that a freeze has to show its effect before a process is killed, ms: one tick.
pub const KILL_AFTER_MS: u64 = 1_000;
/// First and longest minimum duration of a freeze, ms, doubled on relapse (sideloader: 10 to 30 s too).
pub const FROZEN_FIRST_MS: u64 = 10_000;
/// See [`FROZEN_FIRST_MS`].
pub const FROZEN_LONGEST_MS: u64 = 30_000;
/// Memory that is low again within this time after a thaw is a relapse, ms.
pub const FROZEN_RELAPSE_MS: u64 = 30_000;
/// After this long of low memory one offline process is killed so that the others can go on, ms: frozen processes free
/// nothing.
pub const FROZEN_LONG_MS: u64 = 60_000;
/// Memory pressure (`some`) of the machine, per cent of the time, that is too much even when memory is available:
/// tasks wait for reclaim half of the time (sideloader: 50 too).
pub const PRESSURE_PCT: f64 = 50.0;
/// … if it lasts for this long, ms.
pub const PRESSURE_MS: u64 = 10_000;

/// A process of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Class of the process's group. Only offline processes are ever chosen.
    pub class: Class,
    /// The process.
    pub process: Process,
}

/// Inputs of the machine's step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NodeInput<'a> {
    /// Memory available without swapping (`MemAvailable`).
    pub available: Option<Bytes>,
    /// Main memory.
    pub total: Bytes,
    /// Share of the time in which some task waited for memory, per cent; `None` where the kernel has no PSI, and then
    /// available memory alone decides.
    pub pressure_pct: Option<f64>,
    /// Processes of the groups; `None` when they were not listed (see [`NodeDecision::list`]).
    pub candidates: Option<&'a [Candidate]>,
}

/// What to do on the machine. On cgroup v1 a frozen process dies only when it is thawed, so the caller kills it and
/// then thaws its cgroup for a moment.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeDecision {
    /// All offline groups must be frozen.
    pub freeze: bool,
    /// Kill this process, of an offline group.
    pub kill: Option<Victim>,
    /// A victim is due and the processes were not listed: call again at the same time with them.
    pub list: bool,
    /// Why.
    pub why: Explanation,
}

/// The controller of the machine's memory.
#[derive(Debug, Clone)]
pub struct NodeMemory {
    clock: Clock,
    silence: Staleness,
    dying: Dying,
    frozen: bool,
    frozen_ms: u64,
    low_ms: u64,
    pressed_ms: u64,
    thawed_ms: Option<u64>,
    hold_ms: u64,
}

impl NodeMemory {
    /// Starts; `frozen` when an earlier agent has frozen offline work, for a hand-over.
    #[must_use]
    pub fn new(frozen: bool) -> NodeMemory {
        NodeMemory {
            clock: Clock::default(),
            silence: Staleness::default(),
            dying: Dying::default(),
            frozen,
            frozen_ms: 0,
            low_ms: 0,
            pressed_ms: 0,
            thawed_ms: None,
            hold_ms: FROZEN_FIRST_MS,
        }
    }

    /// Decides. When available memory is missing, everything first stays as it is, then offline work is frozen; nothing
    /// is killed without a measurement.
    pub fn step(&mut self, now_ms: u64, input: &NodeInput<'_>) -> NodeDecision {
        let passed_ms = self.pass(now_ms);
        let lost = self.silence.step(passed_ms, input.available.is_some());
        let offline: Option<Vec<Process>> = input.candidates.map(|candidates| {
            candidates.iter().filter(|one| one.class == Class::Offline).map(|one| one.process).collect()
        });
        let pending = offline.as_deref().map_or(0, |processes| self.dying.pending(processes));
        let pressed = sound(input.pressure_pct).is_some_and(|pct| pct >= PRESSURE_PCT);
        self.pressed_ms = if pressed { self.pressed_ms.saturating_add(passed_ms) } else { 0 };
        let low = LOW.of(input.total.0).min(LOW_MOST.0);
        let (frozen_before, frozen_for_ms, hold_ms) = (self.frozen, self.frozen_ms, self.hold_ms);
        let mut formula = vec!["low = min(floor(total / 10), 8 * 1024 * 1024 * 1024)"];
        let (mut kill, mut list) = (None, false);
        let rule = match input.available {
            None if lost => {
                self.freeze();
                "offline work is frozen: available memory could not be read".to_owned()
            }
            None => "held: available memory could not be read".to_owned(),
            Some(Bytes(available)) => {
                let rule = self.level(available, low, passed_ms);
                match self.due(available.saturating_add(pending), low) {
                    Some((why, by)) => {
                        list = offline.is_none();
                        kill = offline.as_deref().and_then(|processes| self.dying.choose(processes));
                        if kill.is_some() {
                            self.low_ms = 0;
                            formula.push(by);
                        }
                        kill.map_or(
                            format!("{rule}; {why}, and no offline process was listed that could"),
                            |victim| {
                                format!("process {} is killed, the largest offline one: {why}", victim.pid)
                            },
                        )
                    }
                    None => rule.to_owned(),
                }
            }
        };
        formula.push(match (input.available, frozen_before) {
            (None, _) => "frozen = max(frozen_before, silent >= silent_most)",
            (_, false) => "frozen = max(available < low, pressed_for >= pressed_most)",
            (_, true) => {
                "frozen = max(available < low, pressed_for >= pressed_most, \
                 1 - min(available >= floor(low * 3 / 2), frozen_for >= hold))"
            }
        });
        let number = |bytes: u64| bytes as f64;
        let silent = input.available.is_none();
        let thaws = !silent && frozen_before;
        let why = Explanation::new(rule, formula.join("; "))
            .maybe("available", input.available.map(|bytes| number(bytes.0)), "B")
            .with("total", number(input.total.0), "B")
            .with("low", number(low), "B")
            .maybe("pending", offline.map(|_| number(pending)), "B")
            .maybe("pressure", sound(input.pressure_pct), "%")
            .maybe("pressed_for", (!silent).then_some(number(self.pressed_ms)), "ms")
            .maybe("pressed_most", (!silent).then_some(number(PRESSURE_MS)), "ms")
            .maybe("frozen_before", silent.then_some(f64::from(u8::from(frozen_before))), "")
            .maybe("silent", silent.then_some(number(self.silence.ms())), "ms")
            .maybe("silent_most", silent.then_some(number(MISSING_HOLD_MS)), "ms")
            .maybe("frozen_for", thaws.then_some(number(frozen_for_ms)), "ms")
            .maybe("hold", thaws.then_some(number(hold_ms)), "ms");
        NodeDecision { freeze: self.frozen, kill, list, why }
    }

    fn pass(&mut self, now_ms: u64) -> u64 {
        let passed_ms = self.clock.step(now_ms);
        self.dying.pass(passed_ms);
        if self.frozen {
            self.frozen_ms = self.frozen_ms.saturating_add(passed_ms);
        }
        self.thawed_ms = self.thawed_ms.map(|ms| ms.saturating_add(passed_ms));
        passed_ms
    }

    fn freeze(&mut self) {
        if self.frozen {
            return;
        }
        let relapse = self.thawed_ms.take().is_some_and(|ms| ms <= FROZEN_RELAPSE_MS);
        self.hold_ms = if relapse { (self.hold_ms * 2).min(FROZEN_LONGEST_MS) } else { FROZEN_FIRST_MS };
        (self.frozen, self.frozen_ms, self.low_ms) = (true, 0, 0);
    }

    /// Updates the frozen state and describes it.
    fn level(&mut self, available: u64, low: u64, passed_ms: u64) -> &'static str {
        let pressed = self.pressed_ms >= PRESSURE_MS;
        if available < low || pressed {
            self.freeze();
            self.low_ms = self.low_ms.saturating_add(passed_ms);
            return if pressed {
                "offline work is frozen: tasks wait for memory half of the time"
            } else {
                "offline work is frozen: memory is low"
            };
        }
        if !self.frozen {
            return "memory is available";
        }
        if available >= low.saturating_mul(EASE_HALVES) / 2 && self.frozen_ms >= self.hold_ms {
            (self.frozen, self.frozen_ms, self.low_ms, self.thawed_ms) = (false, 0, 0, Some(0));
            return "offline work goes on: memory is available again";
        }
        self.low_ms = self.low_ms.saturating_add(passed_ms);
        "offline work stays frozen: memory must be available with a margin, and for long enough"
    }

    /// Why somebody has to die, if so, and by which formula.
    fn due(&self, to_come: u64, low: u64) -> Option<(&'static str, &'static str)> {
        if self.frozen && self.frozen_ms >= KILL_AFTER_MS && to_come < low / 2 {
            return Some(("freezing was not enough", "kill = available + pending < floor(low / 2)"));
        }
        let long =
            self.frozen && self.low_ms >= FROZEN_LONG_MS && to_come < low.saturating_mul(EASE_HALVES) / 2;
        long.then_some((
            "frozen work gives no memory back, and the others wait for too long",
            "kill = available + pending < floor(low * 3 / 2)",
        ))
    }
}

#[cfg(test)]
mod tests;
