//! Exit of the agent.

use super::Agent;
use super::options::OnExit;
use super::start::{LOCK_PATIENCE, machine_lock};
use crate::error::AgentError;
use commensal_core::canary::End;
use commensal_reconcile::bring_safe_state;

impl Agent<'_> {
    /// Leaves the settings that the options ask for; returns the problems that remained.
    pub(super) fn leave(mut self, hand_over: bool) -> Vec<String> {
        // Before anything else: isolation may be off for a canary.
        let isolated = self.canary_end_now(End::Leaving);
        let left = isolated.and_then(|()| match self.options.on_exit {
            OnExit::Keep => Ok(Vec::new()),
            _ if hand_over => Ok(Vec::new()),
            // Done as the guard does it, with the same result.
            OnExit::Safe => {
                Ok(bring_safe_state(self.host, &self.reconciler.instance.state_dir, LOCK_PATIENCE).failed)
            }
            OnExit::Restore => self.restore(),
        });
        let mut wrong = match left {
            Ok(left) => left,
            Err(error) => return vec![format!("{error}; the guard or `commensal restore` will do it")],
        };
        if let Some(link) = self.lease.take().and_then(|lease| lease.link) {
            link.farewell();
        }
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
