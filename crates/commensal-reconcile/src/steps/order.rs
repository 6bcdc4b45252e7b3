//! Sends orders (the configuration of cgroups) to commensal's scheduler (`commensal-sched`), and records them in the
//! journal.

use super::kind::{Facts, Kind, Rank};
use crate::drivers::apply::{Applied, Refusal, Settled, Work, host_error};
use crate::drivers::scheduler::order;
use crate::journal::{Mounts, Ordering, Record, fits};
use commensal_core::actual::{CgroupPath, CgroupRef, SCHEDULER};
use commensal_core::scheduler::Orders;
use commensal_core::text::{self, visible};
use commensal_host::below;
use commensal_sensors::scheduler::Unanswered;
use std::path::Path;

impl Work<'_> {
    /// Returns journal records for the cgroups whose orders are new or changed.
    pub(super) fn ordering(
        &self,
        place: &CgroupRef,
        from: &Orders,
        to: &Orders,
    ) -> impl Iterator<Item = Record> {
        let (owner, mount) = (to.owner.clone(), self.mount(place));
        let new = from.changes(to).filter(|(sign, _)| *sign != '-').map(|(_, cgroup)| cgroup.to_owned());
        let new: Vec<String> = new.collect();
        new.into_iter().map(move |cgroup| {
            let path = CgroupPath::new(cgroup.strip_prefix(&mount).unwrap_or(&cgroup)).as_str().to_owned();
            Record::Ordering(Ordering { owner: owner.clone(), mount: mount.clone(), path })
        })
    }

    pub(super) fn order(&mut self, orders: &Orders) -> Result<(), Refusal> {
        let Some(scheduler) = &self.actual.scheduler else {
            return Err(Refusal::Plan("orders for a scheduler whose state is not known".to_owned()));
        };
        order(self.host, &scheduler.socket, orders).map_err(|error| match error {
            Unanswered::Host(error) => host_error(error, None),
            Unanswered::Refused(error) => Refusal::Orders(error),
        })?;
        self.outcome.applied.push(ordered(orders, orders.describe()));
        Ok(())
    }
}

/// Returns the entry of `Outcome::applied` for orders.
pub(crate) fn ordered(to: &Orders, read: String) -> Applied {
    Applied { place: SCHEDULER.to_owned(), file: "orders", want: to.describe(), read }
}

impl Kind for Ordering {
    fn facts(&self) -> Facts<'_> {
        // `restore` removes the orders of one owner together, before all other records.
        Facts { rank: Rank::First, group: None, proof: false }
    }

    fn words(&self) -> String {
        let group = text::path(&below(Path::new(&self.mount), &self.path));
        format!("the scheduler got an order for {group} from {}", visible(&self.owner))
    }

    fn objection(&self, _: &Mounts) -> Option<String> {
        fits::cgroup(&self.mount, &self.path)
    }

    fn is_settled(&self, settled: &Settled) -> bool {
        settled
            .orders
            .as_ref()
            .is_some_and(|to| to.owner == self.owner && !to.groups.contains_key(&self.cgroup()))
    }
}
