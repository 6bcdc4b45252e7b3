//! What has to wait before it is tried again: settings that somebody else writes, and steps that were refused.

use super::refused::RefusedSteps;
use super::steps::{file_of, inodes, key_of, manager_of};
use crate::drivers::apply::Failure;
use crate::request::Planned;
use commensal_core::actual::ActualState;
use commensal_core::drift::{self, SettingKey};
use commensal_core::plan::Step;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A setting that somebody else writes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Drift {
    /// The cgroup.
    pub path: String,
    /// Kernel file.
    pub file: String,
    /// What was in force.
    pub want: String,
    /// What was found.
    pub found: String,
    /// How often.
    pub times: u64,
    /// Who does it, as far as can be told.
    pub by: Option<String>,
    /// How long it is now left alone before it is written again, ms; `None` when it is given up until the next configuration.
    pub back_off_ms: Option<u64>,
}

/// Nothing is written again before its time; each further change or refusal doubles it (`commensal_core::drift`).
#[derive(Debug, Default)]
pub(super) struct BackOff {
    pub(super) drift: drift::Table,
    refused: drift::Table,
    /// Why the steps in `refused` were.
    reasons: BTreeMap<SettingKey, String>,
    /// Refused steps that have no such setting.
    others: RefusedSteps,
    /// Processes that could not be moved in the last round, and why.
    pub(super) stayed: Vec<String>,
}

impl BackOff {
    /// The steps that need not wait.
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

    /// Forgets what was refused in groups that are gone, or long ago.
    pub(super) fn calm(&mut self, now_ms: u64, actual: &ActualState) {
        if self.refused.iter().next().is_some() {
            let there = inodes(actual);
            self.refused.calm(now_ms, |key| there.contains(&(key.hierarchy, key.inode)));
        }
    }

    /// A step was carried out.
    pub(super) fn done(&mut self, step: &Step, key: Option<&SettingKey>) {
        if let Some(key) = key {
            self.refused.forget(key);
            self.drift.answered(key);
        }
        self.others.forget(step);
    }

    /// A step was refused: it waits. Whether it was: a group that vanished meanwhile is nobody's refusal.
    pub(super) fn failed(
        &mut self,
        now_ms: u64,
        actual: &ActualState,
        step: Option<&Step>,
        failure: &Failure,
    ) -> bool {
        let Some(step) = step.filter(|_| !failure.vanished) else { return false };
        let reason = format!("{}: {}", failure.description, failure.refusal);
        // The key of a group that was recreated meanwhile is that of one which is gone.
        if let Some(key) = key_of(step, actual).filter(|_| !failure.recreated) {
            self.others.forget(step);
            self.reasons.insert(key.clone(), reason);
            // The first refusal waits as well: nothing was changed by somebody else.
            if self.refused.iter().all(|(known, _)| *known != key) {
                self.refused.changed(now_ms, key.clone(), String::new(), String::new());
                self.refused.answered(&key);
            }
            self.refused.changed(now_ms, key.clone(), String::new(), String::new());
            // Each try is one.
            self.refused.answered(&key);
        } else {
            self.others.add(now_ms, step, reason);
        }
        true
    }

    /// What was refused and still is, in whole sentences.
    pub(super) fn problems(&mut self, planned: &Planned) -> Vec<String> {
        let refused: BTreeSet<&SettingKey> = self.refused.iter().map(|(key, _)| key).collect();
        self.reasons.retain(|key, _| refused.contains(key));
        let there = |key: &SettingKey| file_of(key, &planned.actual).is_some();
        let settings = self.reasons.iter().filter(|(key, _)| there(key)).map(|(_, reason)| reason.clone());
        let others = self.others.reasons(&planned.plan.steps);
        settings.chain(others).chain(self.stayed.iter().cloned()).collect()
    }

    /// Settings that somebody else writes.
    pub(super) fn drift(&self, now_ms: u64, actual: &ActualState) -> Vec<Drift> {
        let known = self.drift.iter().filter_map(|(key, entry)| {
            let (place, file) = file_of(key, actual)?;
            Some(Drift {
                path: place.path.as_str().to_owned(),
                file,
                want: entry.want.clone(),
                found: entry.found.clone(),
                times: entry.times,
                by: manager_of(actual, &place),
                back_off_ms: Some(entry.write_from_ms.saturating_sub(now_ms)),
            })
        });
        known.collect()
    }
}
