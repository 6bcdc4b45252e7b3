//! The first line of a journal. It is not about a step.

use super::kind::{Facts, Kind, Rank};
use crate::journal::{Mounts, Owner};
use crate::restore::{Undo, Undone};
use commensal_core::text::visible;
use commensal_host::Host;

impl Kind for Owner {
    fn facts(&self) -> Facts<'_> {
        Facts { rank: Rank::First, group: None, proof: false }
    }

    fn words(&self) -> String {
        let (kind, boot) = (visible(&self.kind), visible(&self.boot_id));
        format!("written by {kind}, process {}, in boot {boot}", self.pid)
    }

    fn objection(&self, _: &Mounts) -> Option<String> {
        None
    }

    fn undo(&self, _: &mut dyn Host, _: &mut Undo<'_>) -> Undone {
        // It is about no change.
        Ok(None)
    }
}
