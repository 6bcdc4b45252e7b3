//! Memory controllers: one for a group (hold its queue, freeze it, kill its largest process), and one for the machine,
//! which freezes and kills offline work, never online work. All amounts are [`Bytes`]. In another tool, a unit error
//! multiplied the memory of each victim by a thousand, so the tool stopped after the first victim.
//!
//! *Held* memory cannot be reclaimed without I/O or a kill: `memory.current` minus the file cache (`active_file` and
//! `inactive_file` of `memory.stat`). If the cache were counted, every busy group would be at its limit.
//!
//! *Pending free* is the memory of processes that are already dying. It counts as free, so that the controllers kill no
//! more processes than necessary. The controllers do not pause after a kill: during a pause they would not notice that
//! memory runs out.

use super::explain::Explanation;
use super::{Clock, MISSING_HOLD_MS, Staleness, sound};
use crate::group::{Class, OnExceed};
use crate::units::{Bytes, Ppm};
use std::collections::BTreeMap;

/// Share of the limit from which new work waits. The rest is for the growth of running jobs.
pub const QUEUE_AT: Ppm = Ppm(900_000);
/// Share of the limit below which new work is admitted again.
pub const QUEUE_BELOW: Ppm = Ppm(850_000);
/// Share of the limit from which the group is frozen, if `on-exceed = "freeze"`: halfway between [`QUEUE_AT`] and the
/// limit; the rest is for memory that the kernel still allocates for frozen tasks.
pub const FREEZE_AT: Ppm = Ppm(950_000);
/// Share of the limit below which the group is thawed: equal to [`QUEUE_AT`] and below [`FREEZE_AT`], so that the group
/// does not oscillate at a single threshold.
pub const THAW_BELOW: Ppm = QUEUE_AT;
/// Time (ms) after which a frozen group is reported as stuck: it frees no memory by itself.
pub const STUCK_MS: u64 = 60_000;
/// Time (ms) after a kill for which the victim's memory counts as free; koordlet also waits for 4 s after a kill. A
/// process that has not died by then is stuck in the kernel and will not free its memory soon.
pub const PENDING_MS: u64 = 4_000;

/// A process that could be killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Process ID.
    pub pid: u32,
    /// Start time (clock ticks since boot); together with the PID it identifies the process.
    pub start: u64,
    /// Memory that becomes free if this process dies: anonymous and shared memory that no other process maps.
    pub held: Bytes,
    /// Whether the process was killed already or is exiting.
    pub dying: bool,
}

/// The process to kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Victim {
    /// Process ID.
    pub pid: u32,
    /// Start time (clock ticks since boot).
    pub start: u64,
    /// Memory that the kill frees.
    pub held: Bytes,
}

/// The dying processes (PID and start time), and how long ago they were killed (ms).
#[derive(Debug, Clone, Default)]
struct Dying(BTreeMap<(u32, u64), u64>);

impl Dying {
    fn pass(&mut self, passed_ms: u64) {
        self.0.values_mut().for_each(|ms| *ms = ms.saturating_add(passed_ms));
    }

    /// Computes the pending free memory, and forgets processes that are no longer listed, because they have freed their
    /// memory.
    fn pending(&mut self, processes: &[Process]) -> u64 {
        let id = |process: &Process| (process.pid, process.start);
        self.0.retain(|known, _| processes.iter().any(|process| id(process) == *known));
        for process in processes.iter().filter(|process| process.dying) {
            self.0.entry(id(process)).or_insert(0);
        }
        let soon = |process: &&Process| self.0.get(&id(process)).is_some_and(|ms| *ms < PENDING_MS);
        processes.iter().filter(soon).fold(0, |sum, process| sum.saturating_add(process.held.0))
    }

    /// Chooses the process that holds the most memory. If several processes hold the same amount, chooses the youngest,
    /// which loses the least work. Never chooses a process twice, nor a process whose death frees nothing.
    fn choose(&mut self, processes: &[Process]) -> Option<Victim> {
        let alive =
            |process: &&Process| process.held.0 > 0 && !self.0.contains_key(&(process.pid, process.start));
        let largest = processes.iter().filter(alive).max_by_key(|process| (process.held, process.start))?;
        self.0.insert((largest.pid, largest.start), 0);
        Some(Victim { pid: largest.pid, start: largest.start, held: largest.held })
    }
}

/// Inputs of a step of [`GroupMemory`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupInput<'a> {
    /// Memory that the group holds, without the file cache; `None` if it could not be read.
    pub held: Option<Bytes>,
    /// The group's hard limit.
    pub limit: Bytes,
    /// The configured reaction to an exceeded limit.
    pub on_exceed: OnExceed,
    /// Whether the kernel enforces the limit on a single cgroup. If so, the kernel also kills a process when the group
    /// reaches the limit, before the agent can act.
    pub by_kernel: bool,
    /// The group's processes; `None` if the caller did not list them, which is cheaper. The decision states whether it
    /// needs the list ([`GroupDecision::list`]).
    pub processes: Option<&'a [Process]>,
}

/// The decision about a group.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupDecision {
    /// Whether new work must wait.
    pub queue: bool,
    /// Whether the group must be frozen.
    pub frozen: bool,
    /// Whether the group has been frozen for [`STUCK_MS`] and should be reported.
    pub stuck: bool,
    /// The process to kill.
    pub kill: Option<Victim>,
    /// Whether a process must be killed but the caller did not list the processes. If so, the caller must list them and
    /// call again with the same time.
    pub list: bool,
    /// The explanation.
    pub why: Explanation,
}

/// The controller of a group's memory.
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
    /// Creates the controller. If this agent replaces another agent, `frozen` states whether the other agent has frozen
    /// the group.
    #[must_use]
    pub fn new(frozen: bool) -> GroupMemory {
        GroupMemory { queue: frozen, frozen, ..GroupMemory::default() }
    }

    /// Decides what to do with the group. While the held memory is missing, everything first stays as it is, and after
    /// [`MISSING_HOLD_MS`] new work waits; nothing is frozen or killed without a measurement.
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
                let rule = if lost { "new work waits: the memory" } else { "unchanged: the memory" };
                format!("{rule} of the group could not be read for {} s", self.silence.ms() / 1_000)
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
            return format!(
                "process {} is killed, the largest of the group, which holds {} and is at its limit",
                victim.pid, held
            );
        }
        let rule = match (over, input.on_exceed, self.frozen, self.queue) {
            (true, OnExceed::KillLargest, ..) if input.by_kernel => "the kernel kills at this limit",
            (true, OnExceed::KillLargest, ..) if input.processes.is_none() => {
                "at the limit: a process must be killed"
            }
            (true, OnExceed::KillLargest, ..) => {
                "at the limit, and no process is left whose death would free memory"
            }
            (.., true, _) => "frozen, and new work waits",
            (.., true) => "new work waits",
            _ => "within its limit",
        };
        rule.to_owned()
    }
}

/// The low level, as a share of the machine's memory: offline work is frozen while less memory than this is available.
/// rubik also acts at 10 %.
pub const LOW: Ppm = Ppm(100_000);
/// Maximum of the low level: the memory that several cores can fault in within a tick of one second.
pub const LOW_MOST: Bytes = Bytes(8 << 30);
/// The agent thaws offline work when the available memory reaches this multiple of half the low level: 3 means one and
/// a half times the low level.
pub const EASE_HALVES: u64 = 3;
/// Time (ms) from a freeze until a process may be killed: one tick, in which the freeze can take effect.
pub const KILL_AFTER_MS: u64 = 1_000;
/// First minimum duration (ms) of a freeze, which is doubled on each relapse up to [`FROZEN_LONGEST_MS`]; sideloader
/// also uses 10 to 30 s.
pub const FROZEN_FIRST_MS: u64 = 10_000;
/// Longest minimum duration (ms) of a freeze; see [`FROZEN_FIRST_MS`].
pub const FROZEN_LONGEST_MS: u64 = 30_000;
/// If memory is low again within this time after a thaw (ms), that counts as a relapse.
pub const FROZEN_RELAPSE_MS: u64 = 30_000;
/// Time (ms) of low memory after which an offline process is killed so that the others can continue, because frozen
/// processes free no memory.
pub const FROZEN_LONG_MS: u64 = 60_000;
/// Memory pressure (`some`, in per cent of the time) of the machine that is too high even if memory is available. At
/// this pressure, tasks wait for reclaim half of the time. sideloader also uses 50.
pub const PRESSURE_PCT: f64 = 50.0;
/// Time (ms) for which the memory pressure must be at least [`PRESSURE_PCT`] before offline work is frozen.
pub const PRESSURE_MS: u64 = 10_000;

/// A process of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Class of the process's group. Only offline processes are ever chosen.
    pub class: Class,
    /// The process.
    pub process: Process,
}

/// Inputs of a step of [`NodeMemory`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NodeInput<'a> {
    /// Memory available without swapping (`MemAvailable`); `None` if it could not be read.
    pub available: Option<Bytes>,
    /// Main memory.
    pub total: Bytes,
    /// Share of the time (per cent) in which some task waited for memory. `None` if the kernel has no PSI; then
    /// available memory alone decides.
    pub pressure_pct: Option<f64>,
    /// Processes of all groups; `None` if they were not listed (see [`NodeDecision::list`]).
    pub candidates: Option<&'a [Candidate]>,
}

/// The decision for the whole machine. On cgroup v1 a frozen process does not die before it is thawed, so the caller
/// sends the kill and then thaws the cgroup briefly.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeDecision {
    /// Whether all offline groups must be frozen.
    pub freeze: bool,
    /// The process to kill; it belongs to an offline group.
    pub kill: Option<Victim>,
    /// Whether a process must be killed but the caller did not list the processes. If so, the caller must list them and
    /// call again with the same time.
    pub list: bool,
    /// The explanation.
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
    /// Creates the controller. If this agent replaces another agent, `frozen` states whether the other agent has frozen
    /// offline work.
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

    /// Decides what to do on the machine. While the available memory is missing, everything first stays as it is, and
    /// after [`MISSING_HOLD_MS`] offline work is frozen; nothing is killed without a measurement.
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
            None => "unchanged: available memory could not be read".to_owned(),
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
                            format!("{rule}; {why}, but there is no offline process to kill"),
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

    /// Updates the frozen state and returns its description.
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
            return "offline work continues: memory is available again";
        }
        self.low_ms = self.low_ms.saturating_add(passed_ms);
        "offline work stays frozen until enough memory has been available for long enough"
    }

    /// The reason and the formula why a process must be killed; `None` if none must.
    fn due(&self, to_come: u64, low: u64) -> Option<(&'static str, &'static str)> {
        if self.frozen && self.frozen_ms >= KILL_AFTER_MS && to_come < low / 2 {
            return Some(("freezing was not enough", "kill = available + pending < floor(low / 2)"));
        }
        let long =
            self.frozen && self.low_ms >= FROZEN_LONG_MS && to_come < low.saturating_mul(EASE_HALVES) / 2;
        long.then_some((
            "frozen processes free no memory, and have been frozen for too long",
            "kill = available + pending < floor(low * 3 / 2)",
        ))
    }
}

#[cfg(test)]
mod tests;
