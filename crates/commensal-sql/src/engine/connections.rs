//! Who is connected, and what each connection is doing.

use super::query::Query;
use super::variables::Variables;
use crate::statement::UserName;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio_util::sync::CancellationToken;

/// One connection.
#[derive(Debug)]
pub struct Connection {
    /// Its number, for KILL.
    pub id: u32,
    /// Who it is.
    pub user: UserName,
    /// Address that the client has.
    pub host: String,
    /// Since when.
    pub since: Instant,
    /// Told to close.
    pub close: CancellationToken,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    database: String,
    variables: Variables,
    current: Option<Arc<Query>>,
    /// Of the last statement that was no `SHOW WARNINGS`.
    warnings: Vec<String>,
    since: Instant,
}

impl Connection {
    /// A connection that begins now.
    #[must_use]
    pub fn new(id: u32, user: UserName, host: &str) -> Connection {
        let now = Instant::now();
        let database = super::data::MAIN.to_owned();
        let state = State {
            database,
            variables: Variables::default(),
            current: None,
            warnings: Vec::new(),
            since: now,
        };
        Connection {
            id,
            user,
            host: host.to_owned(),
            since: now,
            close: CancellationToken::new(),
            state: Mutex::new(state),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The database that names without one are looked up in.
    #[must_use]
    pub fn database(&self) -> String {
        self.lock().database.clone()
    }

    /// Chooses another one.
    pub fn set_database(&self, database: &str) {
        database.clone_into(&mut self.lock().database);
    }

    /// A copy of its variables.
    #[must_use]
    pub fn variables(&self) -> Variables {
        self.lock().variables.clone()
    }

    /// Replaces its variables.
    pub fn set_variables(&self, variables: Variables) {
        self.lock().variables = variables;
    }

    /// Changes its variables; also a policy does that while a query runs.
    ///
    /// # Errors
    /// Those of [`Variables::set`].
    pub fn set_variable(&self, name: &str, value: Option<&str>) -> Result<(), super::error::Error> {
        self.lock().variables.set(name, value)
    }

    /// The query that it waits for.
    #[must_use]
    pub fn current(&self) -> Option<Arc<Query>> {
        self.lock().current.clone()
    }

    /// It waits for this query from now on, or for none.
    pub fn set_current(&self, query: Option<Arc<Query>>) {
        let mut state = self.lock();
        state.current = query;
        state.since = Instant::now();
    }

    /// What its last statement was answered with that its user should know.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        self.lock().warnings.clone()
    }

    /// Replaces that.
    pub fn set_warnings(&self, warnings: Vec<String>) {
        self.lock().warnings = warnings;
    }

    /// Since when it has been doing what it does.
    #[must_use]
    pub fn since(&self) -> Instant {
        self.lock().since
    }
}

/// All connections.
#[derive(Debug, Default)]
pub struct Connections {
    all: Mutex<BTreeMap<u32, Arc<Connection>>>,
}

impl Connections {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Connection>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one, unless its user has `most` already.
    ///
    /// # Errors
    /// How many the user has.
    pub fn add(&self, connection: &Arc<Connection>, most: Option<u32>) -> Result<(), usize> {
        let mut all = self.lock();
        if let Some(most) = most {
            let name = &connection.user.name;
            let there = all.values().filter(|other| other.user.name == *name).count();
            if there >= most as usize {
                return Err(there);
            }
        }
        all.insert(connection.id, Arc::clone(connection));
        Ok(())
    }

    /// One is closed; what it waited for ends.
    pub fn remove(&self, id: u32) {
        let gone = self.lock().remove(&id);
        if let Some(query) = gone.and_then(|connection| connection.current()) {
            query.end(super::error::Error::Cancelled);
        }
    }

    /// All of them, by number.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Connection>> {
        self.lock().values().cloned().collect()
    }

    /// One by its number.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<Arc<Connection>> {
        u32::try_from(id).ok().and_then(|id| self.lock().get(&id).cloned())
    }
}
