//! Requests to the scheduler of a state directory.

use crate::context::Context;
use commensal_core::scheduler::SOCKET;
use commensal_core::scheduler::protocol::{Done, Request, Status};
use commensal_host::Host;
use commensal_reconcile::scheduler;
use commensal_sensors::scheduler::Unanswered;
use std::path::Path;
use std::time::Duration;

/// Timeout of a request: configuring ten thousand threads takes this long.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// Reads the status of the scheduler of this state directory.
pub(super) fn status_of(host: &dyn Host, state: &Path) -> Result<Status, Unanswered> {
    commensal_sensors::scheduler::status(host, &state.join(SOCKET), PATIENCE)
}

/// Sends the scheduler a request that changes its state.
pub(super) fn tell(host: &dyn Host, state: &Path, request: &Request) -> Result<Done, Unanswered> {
    scheduler::tell(host, &state.join(SOCKET), request, PATIENCE)
}

/// Returns the PID of the scheduler loaded from this state directory. `recorded` is the PID in its record, if one
/// exists.
pub(in crate::cli) fn loaded<H: Host>(context: &Context<H>, recorded: Option<u32>) -> Option<u32> {
    // A scheduler that manages no threads has no record yet, but its process responds.
    recorded.or_else(|| status_of(&context.host, &context.state_dir).ok().map(|now| now.pid))
}
