//! `commensal run` and `commensal queue`, which wait their turn.

mod program;

use commensal_core::group::GroupName;
use commensal_host::{Host, LinuxHost};
use commensal_reconcile::queue::{self, QueueView};
use std::path::Path;

fn etl() -> GroupName {
    GroupName::new("etl").unwrap()
}

pub(crate) fn view(state: &Path) -> QueueView {
    queue::read(&mut LinuxHost::default(), state, &etl()).unwrap()
}

/// Names of the files that a queue has now.
pub(crate) fn files(state: &Path) -> Vec<String> {
    let host = LinuxHost::default();
    let list = |part: &str| host.list(&state.join("queue/etl").join(part)).unwrap_or_default();
    list("waiting").into_iter().chain(list("running")).collect()
}
