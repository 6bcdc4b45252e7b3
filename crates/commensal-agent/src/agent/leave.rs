//! The end of an agent.

use super::start::machine_lock;
use super::{Agent, AgentError, OnExit};
use crate::instance::{Ask, NOBODY};
use commensal_core::canary::End;
use commensal_core::desired::DesiredState;
use commensal_core::safe::safe;

impl Agent<'_> {
    /// What is left behind when the agent ends.
    pub(super) fn leave(mut self, hand_over: bool) {
        // Before anything else: isolation may be off for a canary.
        let isolated = self.canary_end_now(End::Leaving);
        let left = isolated.and_then(|()| match self.options.on_exit {
            OnExit::Keep => Ok(()),
            _ if hand_over => Ok(()),
            OnExit::Safe => self.leave_safe(),
            OnExit::Restore => self.restore(),
        });
        if let Err(error) = left {
            tracing::error!("{error}; the guard or `commensal restore` will do it");
            return;
        }
        if let Some(link) = self.lease.take().and_then(|lease| lease.link) {
            link.farewell();
        }
        let card = self.keeper.instance.state_dir.join("agent.json");
        if !hand_over && let Err(error) = self.host.state_remove(&card) {
            tracing::warn!("{error}");
        }
    }

    fn leave_safe(&mut self) -> Result<(), AgentError> {
        let _lock = machine_lock(self.host, &self.keeper.instance)?;
        let floor = self.floor();
        let specs = safe(&self.groups.compiled.groups);
        let adjust = |desired: &mut DesiredState| {
            if let Some(floor) = &floor {
                desired.keep_offline_to(floor);
            }
        };
        let ask = Ask { adjust: &adjust, ..Ask::new(&specs, NOBODY) };
        let now = self.now();
        self.keeper.round(self.host, &now, &ask)?;
        Ok(())
    }

    fn restore(&mut self) -> Result<(), AgentError> {
        let _lock = machine_lock(self.host, &self.keeper.instance)?;
        let boot_id = commensal_sensors::machine::boot_id(self.host).unwrap_or_default();
        let restored = commensal_reconcile::restore(self.host, &self.keeper.instance.state_dir, &boot_id)?;
        for line in restored.left.iter().chain(&restored.failed) {
            tracing::warn!("{line}");
        }
        Ok(())
    }
}
