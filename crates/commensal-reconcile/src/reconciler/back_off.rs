//! Back-off: settings that another program also writes, and steps that were refused.

use super::refused::RefusedSteps;
use super::steps::{file_of, inodes, key_of, manager_of};
use crate::drivers::apply::Failure;
use crate::request::Planned;
use commensal_core::actual::{ActualState, CgroupRef};
use commensal_core::drift::{self, SettingKey};
use commensal_core::plan::{Action, Movement, Step};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A setting that another program also writes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Drift {
    /// The cgroup.
    pub path: String,
    /// Kernel file.
    pub file: String,
    /// The value that commensal wrote.
    pub want: String,
    /// The value that was found.
    pub found: String,
    /// Number of times that the value was changed.
    pub times: u64,
    /// The other program, if known.
    pub by: Option<String>,
    /// Time in ms until the setting is written again; `None` if it is not written again.
    pub back_off_ms: Option<u64>,
    /// Whether the setting has its value again.
    pub back: bool,
    /// Time in ms since the last change was found.
    pub ago_ms: u64,
}

/// The state of all back-offs. Each further change or refusal doubles a back-off (`commensal_core::drift`).
#[derive(Debug, Default)]
pub(super) struct BackOff {
    pub(super) drift: drift::Table,
    pub(super) evicted: Evicted,
    refused: drift::Table,
    /// Reasons of the refusals in `refused`.
    reasons: BTreeMap<SettingKey, String>,
    /// Refused steps that do not concern a setting of an existing group.
    others: RefusedSteps,
    /// Processes that could not be moved in the last round, and why.
    pub(super) stayed: Vec<String>,
}

impl BackOff {
    /// Returns the steps of the plan that are not in back-off.
    pub(super) fn ready(&self, now_ms: u64, planned: &Planned) -> Vec<Step> {
        let waits = |step: &&Step| {
            let key = key_of(step, &planned.actual);
            self.others.may_try(now_ms, step)
                && key.is_none_or(|key| {
                    self.drift.may_write(now_ms, &key) && self.refused.may_write(now_ms, &key)
                })
        };
        planned.plan.steps.iter().filter(waits).cloned().collect()
    }

    /// Forgets old refusals, and those in groups that no longer exist.
    pub(super) fn calm(&mut self, now_ms: u64, actual: &ActualState) {
        if self.refused.iter().next().is_some() {
            let there = inodes(actual);
            self.refused.calm(now_ms, |key| there.contains(&(key.hierarchy, key.inode)));
        }
    }

    /// Records that a step was carried out.
    pub(super) fn done(&mut self, step: &Step, key: Option<&SettingKey>) {
        if let Some(key) = key {
            self.refused.forget(key);
            self.drift.answered(key);
        }
        self.others.forget(step);
    }

    /// Records that a step was refused, and puts the step in back-off. Returns `false` if the step's group has vanished
    /// meanwhile, which does not count as a refusal.
    pub(super) fn failed(
        &mut self,
        now_ms: u64,
        actual: &ActualState,
        step: Option<&Step>,
        failure: &Failure,
    ) -> bool {
        let Some(step) = step.filter(|_| !failure.vanished) else { return false };
        let reason = format!("{}: {}", failure.description, failure.refusal);
        // If undoing has replaced the group, the key has the inode of a removed group.
        if let Some(key) = key_of(step, actual).filter(|_| !failure.recreated) {
            self.others.forget(step);
            self.reasons.insert(key.clone(), reason);
            // The first refusal counts twice, so that it has a back-off as well: unlike drift, no other program's write
            // caused it.
            if self.refused.iter().all(|(known, _)| *known != key) {
                self.refused.changed(now_ms, key.clone(), String::new(), String::new());
                self.refused.answered(&key);
            }
            self.refused.changed(now_ms, key.clone(), String::new(), String::new());
            // Each attempt counts as one event.
            self.refused.answered(&key);
        } else {
            self.others.add(now_ms, step, reason);
        }
        true
    }

    /// Returns the time (ms, on the clock of `now_ms`) from which a refused step may be tried again. `None` if no step
    /// was refused, or if a process could not be moved, because such a move is retried in every round.
    pub(super) fn next_try_ms(&self, now_ms: u64) -> Option<u64> {
        let next = [self.refused.next_write_ms(now_ms), self.others.next_try_ms(now_ms)];
        next.into_iter().flatten().min().filter(|_| self.stayed.is_empty())
    }

    /// Returns messages about the steps that are still refused and the processes that could not be moved.
    pub(super) fn problems(&mut self, planned: &Planned) -> Vec<String> {
        let refused: BTreeSet<&SettingKey> = self.refused.iter().map(|(key, _)| key).collect();
        self.reasons.retain(|key, _| refused.contains(key));
        let there = |key: &SettingKey| file_of(key, &planned.actual).is_some();
        let settings = self.reasons.iter().filter(|(key, _)| there(key)).map(|(_, reason)| reason.clone());
        let others = self.others.reasons(&planned.plan.steps);
        settings.chain(others).chain(self.stayed.iter().cloned()).collect()
    }

    /// Returns the settings that another program also writes.
    pub(super) fn drift(&self, now_ms: u64, actual: &ActualState) -> Vec<Drift> {
        let known = self.drift.iter().filter_map(|(key, entry)| {
            let (place, file) = file_of(key, actual)?;
            Some(Drift {
                path: place.path.as_str().to_owned(),
                file,
                want: entry.want.clone(),
                found: entry.found.clone(),
                times: entry.times,
                by: match entry.by_kernel {
                    true => Some(KERNEL.to_owned()),
                    false => manager_of(actual, &place),
                },
                back_off_ms: Some(entry.write_from_ms.saturating_sub(now_ms)),
                back: !entry.is_open(),
                ago_ms: now_ms.saturating_sub(entry.seen_ms),
            })
        });
        known.chain(self.evicted.drift(now_ms)).collect()
    }
}

/// The kernel as the author of a change of a v1 cpuset.
const KERNEL: &str = "the kernel, because a CPU went offline";

/// The processes that the kernel has moved out of their cpusets, by cpuset.
#[derive(Debug, Default)]
pub(super) struct Evicted(BTreeMap<CgroupRef, Eviction>);

#[derive(Debug)]
struct Eviction {
    processes: usize,
    found: String,
    times: u64,
    seen_ms: u64,
    /// Whether the last plan still had to move processes home.
    open: bool,
}

impl Evicted {
    /// Records the processes that these steps move home.
    pub(super) fn note(&mut self, now_ms: u64, steps: &[Step]) {
        let mut now: BTreeMap<&CgroupRef, (usize, String)> = BTreeMap::new();
        for step in steps {
            let Action::Move(Movement { home: true, from, .. }) = &step.action else { continue };
            let from = from.values().next().map(ToString::to_string).unwrap_or_default();
            now.entry(&step.place).or_insert((0, from)).0 += 1;
        }
        self.0.retain(|place, one| {
            one.open &= now.contains_key(place);
            now_ms < one.seen_ms.saturating_add(drift::LONGEST_BACK_OFF_MS)
        });
        for (place, (processes, found)) in now {
            let known = self.0.get(place);
            let times = known.map_or(0, |one| one.times) + u64::from(known.is_none_or(|one| !one.open));
            let one = Eviction { processes, found, times, seen_ms: now_ms, open: true };
            self.0.insert(place.clone(), one);
        }
    }

    fn drift(&self, now_ms: u64) -> impl Iterator<Item = Drift> {
        self.0.iter().map(move |(place, one)| Drift {
            path: place.path.as_str().to_owned(),
            file: "cgroup.procs".to_owned(),
            want: match one.processes {
                1 => "1 process".to_owned(),
                many => format!("{many} processes"),
            },
            found: format!("in {}", one.found),
            times: one.times,
            by: Some(KERNEL.to_owned()),
            back_off_ms: Some(0),
            back: !one.open,
            ago_ms: now_ms.saturating_sub(one.seen_ms),
        })
    }
}
