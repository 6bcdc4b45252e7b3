//! Applies workload policies (rules that act on running queries) to queries. The engine calls this code at every tick.

use super::Engine;
use super::error::Error;
use super::query::{Identity, Query};
use crate::catalog::{Action, Metrics};
use std::sync::Arc;

impl Engine {
    /// Executes the actions of the policies that apply to a query.
    pub fn apply_policies(&self, query: &Arc<Query>) {
        if query.ended().is_some() || query.timing.begun().is_none() {
            return;
        }
        let (id, group) = (&query.identity.id, query.group());
        let (local, remote) = query.scan_bytes();
        let metrics = Metrics {
            user: &query.identity.user.name,
            group: &group.name,
            query_time_ms: u64::try_from(query.timing.elapsed().as_millis()).unwrap_or(u64::MAX),
            scan_rows: query.usage.scan_rows(),
            scan_bytes: local + remote,
            remote_scan_bytes: remote,
            memory_bytes: group.memory.of(query.identity.number).0 as u64,
        };
        let actions = self.with_catalog(|catalog| {
            let mut actions = Vec::new();
            for policy in catalog.firing(&metrics) {
                let text = policy.cancel_text(id, &metrics);
                actions.extend(policy.actions.iter().map(|action| (action.clone(), text.clone())));
            }
            actions
        });
        for (action, text) in actions {
            match action {
                Action::Cancel => query.end(Error::Policy(text)),
                Action::Move(name) => {
                    if query.usage.is_remote() {
                        tracing::debug!(query = %id, "a policy cannot move a query out of a worker process");
                    } else if let Some(to) = self.groups().get(&name).filter(|to| to.id != group.id) {
                        tracing::info!(query = %id, from = %group.name, to = %to.name, "moved by a policy");
                        query.move_to(&to.accounts());
                    }
                }
                Action::SetVariable { name, value } => self.set_by_policy(&query.identity, &name, &value),
            }
        }
    }

    /// Sets a variable of the query's session, on behalf of a policy.
    fn set_by_policy(&self, query: &Identity, name: &str, value: &str) {
        let Some(connection) = self.connections.get(u64::from(query.connection)) else { return };
        if connection.variables().get(name).as_deref() == Some(value) {
            return;
        }
        if let Err(error) = connection.set_variable(name, Some(value)) {
            tracing::warn!(query = %query.id, "a policy cannot set {name}: {error}");
        }
    }
}
