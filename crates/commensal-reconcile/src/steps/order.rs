//! Sends orders (the configuration of cgroups) to commensal's scheduler (`commensal-sched`), and records them in the
//! journal.

use super::kind::{Facts, Kind, Rank};
use crate::drivers::apply::{Applied, Refusal, Settled, Work, host_error};
use crate::drivers::members;
use crate::drivers::scheduler::{forget, order};
use crate::journal::{Contents, Mounts, Ordering, RUN, Record, fits};
use crate::restore::{Restored, Undo, Undone};
use commensal_core::actual::{CgroupPath, CgroupRef, SCHEDULER};
use commensal_core::scheduler::Orders;
use commensal_core::text::{self, visible};
use commensal_host::{Host, below};
use commensal_sensors::scheduler::Unanswered;
use std::collections::BTreeMap;
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

/// Takes the orders out of the contents of a journal and removes them from the scheduler, with one request per owner. Orders
/// of `run` stay as long as their cgroup contains processes other than this one: a command of `run` is still in it. Returns
/// the records of those that stay or could not be removed.
pub(crate) fn remove(
    host: &mut dyn Host,
    (dir, journal): (&Path, &str),
    contents: &mut Contents,
    result: &mut Restored,
) -> Vec<Record> {
    let (mut stay, mut by_owner) = (Vec::new(), BTreeMap::<String, Vec<Ordering>>::new());
    for record in contents.records.extract_if(.., |record| matches!(record, Record::Ordering(_))) {
        match record {
            Record::Ordering(one) if journal != RUN || !one.is_busy(host) => {
                by_owner.entry(one.owner.clone()).or_default().push(one);
            }
            other => stay.push(other),
        }
    }
    for (owner, orders) in by_owner {
        match forget(host, dir, &owner, &orders.iter().map(Ordering::cgroup).collect()) {
            Ok(0) => {}
            Ok(1) => result.done.push("the scheduler has no orders for 1 group any more".to_owned()),
            Ok(gone) => result.done.push(format!("the scheduler has no orders for {gone} groups any more")),
            Err(error) => {
                result.failed.push(error.to_string());
                stay.extend(orders.into_iter().map(Record::Ordering));
            }
        }
    }
    stay
}

impl Ordering {
    /// The directory of the cgroup.
    fn cgroup(&self) -> String {
        below(Path::new(&self.mount), &self.path).display().to_string()
    }

    fn is_busy(&self, host: &mut dyn Host) -> bool {
        let Ok(dir) = host.open(Path::new(&self.cgroup())) else { return false };
        let used = members::others(host, dir);
        host.close(dir);
        used
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

    fn undo(&self, _: &mut dyn Host, _: &mut Undo<'_>) -> Undone {
        // `restore` has removed the orders by then.
        Ok(None)
    }
}
