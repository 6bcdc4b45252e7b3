//! The desired state: the orders (configuration) of all owners (the clients that sent them), and the groups in these
//! orders that exist.

use crate::membership::{Tree, walk};
use crate::weights::{self, WHOLE};
use commensal_core::group::Class;
use commensal_core::scheduler::Orders;
use commensal_core::scheduler::protocol::{GroupStatus, SlotReading, Standing};
use commensal_host::{Host, HostError};
use std::collections::BTreeMap;

/// The desired state, which changes with new orders and in each round.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// The orders of each owner.
    pub standing: Standing,
    /// The orders of all owners, merged.
    pub orders: Orders,
    /// The existing offline groups, by the directory of their cgroup.
    pub trees: BTreeMap<String, Tree>,
    /// ID and share (of [`WHOLE`]) of each cgroup in `trees` that has threads.
    pub shares: Vec<(u64, u64)>,
}

impl Wanted {
    /// Reads the existing offline groups again.
    ///
    /// # Errors
    /// An existing group cannot be read.
    pub fn look(&mut self, host: &mut dyn Host) -> Result<(), HostError> {
        let ordered: BTreeMap<String, Class> =
            self.orders.groups.iter().map(|(path, order)| (path.clone(), order.class)).collect();
        self.trees.clear();
        for (path, order) in self.orders.groups.iter().filter(|(_, order)| order.class == Class::Offline) {
            if let Some(tree) = walk(host, path, order.weight, &ordered)? {
                self.trees.insert(path.clone(), tree);
            }
        }
        let tops: Vec<weights::Node> = self.trees.values().map(|tree| tree.node.clone()).collect();
        self.shares = weights::flatten(&tops);
        Ok(())
    }

    /// Status of each offline group; `slot_of` returns the counters of a cgroup's slot.
    pub fn groups(&self, slot_of: &dyn Fn(u64) -> Option<SlotReading>) -> Vec<GroupStatus> {
        let offline = self.orders.groups.iter().filter(|(_, order)| order.class == Class::Offline);
        let of = |path: &String| {
            let cgroup = path.clone();
            let Some(tree) = self.trees.get(path) else {
                return GroupStatus { cgroup, ..GroupStatus::default() };
            };
            let ids: Vec<u64> = tree.cgroups.iter().map(|(id, _)| *id).collect();
            let share: u64 =
                self.shares.iter().filter(|(id, _)| ids.contains(id)).map(|(_, share)| share).sum();
            let mut reading = SlotReading::default();
            let slots: Vec<SlotReading> = ids.iter().filter_map(|id| slot_of(*id)).collect();
            for one in &slots {
                reading.run_ns += one.run_ns;
                reading.queued += one.queued;
                reading.oldest_ns = reading.oldest_ns.max(one.oldest_ns);
                reading.waited_max_ns = reading.waited_max_ns.max(one.waited_max_ns);
            }
            GroupStatus {
                cgroup,
                found: true,
                threads: tree.threads.len(),
                slots: slots.len(),
                share: share as f64 / WHOLE as f64,
                fallback: tree.fallback,
                reading,
            }
        };
        offline.map(|(path, _)| of(path)).collect()
    }
}
