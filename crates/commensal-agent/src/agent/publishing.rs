//! The published data about the agent's work: its latest actions, the audit log, and the agent's own resource use.

use crate::audit::Audit;
use crate::controllers::Decided;
use crate::snapshot::{self, Action};
use crate::view;
use commensal_host::Host;
use commensal_reconcile::Change;
use std::collections::VecDeque;
use std::sync::Arc;

/// Maximum number of actions (writes and decisions) in a snapshot.
const SHOWN_ACTIONS: usize = 200;
/// Number of ticks between two measurements of the agent's own resource use.
const COST_EVERY: u64 = 5;

/// The data that the agent publishes in addition to its measurements.
pub(super) struct Publishing {
    cost: snapshot::Cost,
    actions: VecDeque<Action>,
    /// A shared copy of `actions`, valid until the next action.
    shown_actions: Option<Arc<Vec<Action>>>,
    audit: Audit,
    /// Actions that have not been passed to the audit log yet.
    unrecorded: Vec<Action>,
    /// The record of the last safe state, as read when the agent started.
    pub safe_state: Option<Arc<snapshot::LastSafeState>>,
}

impl Publishing {
    pub fn new(audit: Audit, safe_state: Option<snapshot::LastSafeState>) -> Publishing {
        Publishing {
            cost: snapshot::Cost::default(),
            actions: VecDeque::new(),
            shown_actions: None,
            audit,
            unrecorded: Vec::new(),
            safe_state: safe_state.map(Arc::new),
        }
    }

    /// Notes an action, for the snapshots and the audit log.
    pub fn note(&mut self, action: Action) {
        if self.actions.len() >= SHOWN_ACTIONS {
            self.actions.pop_front();
        }
        self.shown_actions = None;
        self.unrecorded.push(action.clone());
        self.actions.push_back(action);
    }

    /// Notes changes of the machine, each with the decision that caused it. `at` is the time of day.
    pub fn note_changes(&mut self, changes: Vec<Change>, decided: &Decided, at: &str) {
        for change in changes {
            self.note(decided.action(change, at));
        }
    }

    /// Passes the actions to the audit log.
    pub fn record(&mut self) {
        self.audit.record(std::mem::take(&mut self.unrecorded));
    }

    /// The current problem of the audit log; `None` if there is none.
    pub fn problem(&self) -> Option<String> {
        self.audit.problem()
    }

    /// The latest actions. Snapshots share a copy until the next action.
    pub fn actions(&mut self) -> Arc<Vec<Action>> {
        let shared = || Arc::new(self.actions.iter().cloned().collect());
        Arc::clone(self.shown_actions.get_or_insert_with(shared))
    }

    /// The agent's own resource use, measured every few ticks; the caller fills in the loop's own counts.
    pub fn cost(&mut self, host: &dyn Host, tick: u64) -> snapshot::Cost {
        if tick % COST_EVERY == 1 {
            self.cost = view::cost(host);
        }
        snapshot::Cost { audit_lost: self.audit.lost(), ..self.cost.clone() }
    }
}
