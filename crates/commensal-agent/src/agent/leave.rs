//! Shuts the agent down: restores isolation, and leaves the settings in the state that the user has requested.

use super::Agent;
use super::options::OnExit;
use super::start::{LOCK_PATIENCE, machine_lock};
use crate::error::AgentError;
use crate::{guard, safe_record};
use commensal_core::canary::End;
use commensal_reconcile::bring_safe_state;
use std::time::Instant;

impl Agent<'_> {
    /// Puts the settings in the state that the options request for the exit; returns the problems that remain.
    pub(super) fn leave(mut self, hand_over: bool) -> Vec<String> {
        // Move lifted members back first: settings that stay in force must not include members at another level than
        // their group's.
        let mut lifted = Vec::new();
        self.end_min_share(&mut lifted);
        // Restore isolation before anything else, because a canary may have removed it.
        let isolated = self.canary_end_now(End::Leaving);
        let left = isolated.and_then(|()| match self.options.on_exit {
            OnExit::Keep => Ok(Vec::new()),
            _ if hand_over => Ok(Vec::new()),
            // The guard uses the same function, so the result is the same.
            OnExit::Safe => {
                let (since, state_dir) = (Instant::now(), &self.reconciler.instance.state_dir);
                let state = bring_safe_state(self.host, state_dir, LOCK_PATIENCE);
                safe_record::record(
                    self.host,
                    state_dir,
                    guard::End::Farewell.words(),
                    since.elapsed(),
                    &state,
                );
                Ok(state.failed)
            }
            OnExit::Restore => self.restore(),
        });
        let mut wrong = match left {
            Ok(left) => lifted.into_iter().chain(left).collect::<Vec<_>>(),
            Err(error) => {
                return vec![format!(
                    "{error}; the guard now sets the safe state; if there is no guard, run `commensal restore`"
                )];
            }
        };
        self.upkeep.farewell();
        let card = self.reconciler.instance.state_dir.join("agent.json");
        if !hand_over && let Err(error) = self.host.state_remove(&card) {
            wrong.push(error.to_string());
        }
        wrong
    }

    fn restore(&mut self) -> Result<Vec<String>, AgentError> {
        let _lock = machine_lock(self.host, &self.reconciler.instance)?;
        let restored = self.reconciler.instance.restore(self.host, &[])?;
        Ok(restored.left.into_iter().chain(restored.failed).collect())
    }
}
