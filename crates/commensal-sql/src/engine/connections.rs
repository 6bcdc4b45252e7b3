//! The open connections, and the current query of each.

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
    /// Number of the connection, for KILL.
    pub id: u32,
    /// User of the connection.
    pub user: UserName,
    /// Address of the client.
    pub host: String,
    /// When the connection was opened.
    pub since: Instant,
    /// Token that the server cancels to close the connection.
    pub close: CancellationToken,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    database: String,
    variables: Variables,
    current: Option<Arc<Query>>,
    /// Warnings of the last statement other than `SHOW WARNINGS`.
    warnings: Vec<String>,
    since: Instant,
}

impl Connection {
    /// Creates a connection.
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

    /// Returns the current database, in which unqualified names are looked up.
    #[must_use]
    pub fn database(&self) -> String {
        self.lock().database.clone()
    }

    /// Sets the current database.
    pub fn set_database(&self, database: &str) {
        database.clone_into(&mut self.lock().database);
    }

    /// Returns a copy of the session variables.
    #[must_use]
    pub fn variables(&self) -> Variables {
        self.lock().variables.clone()
    }

    /// Replaces the session variables.
    pub fn set_variables(&self, variables: Variables) {
        self.lock().variables = variables;
    }

    /// Sets a session variable. A policy may do this while a query runs.
    ///
    /// # Errors
    /// The errors of [`Variables::set`].
    pub fn set_variable(&self, name: &str, value: Option<&str>) -> Result<(), super::error::Error> {
        self.lock().variables.set(name, value)
    }

    /// Returns the query whose result the connection waits for.
    #[must_use]
    pub fn current(&self) -> Option<Arc<Query>> {
        self.lock().current.clone()
    }

    /// Sets the query whose result the connection waits for, if any.
    pub fn set_current(&self, query: Option<Arc<Query>>) {
        let mut state = self.lock();
        state.current = query;
        state.since = Instant::now();
    }

    /// Returns the warnings of the last statement.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        self.lock().warnings.clone()
    }

    /// Replaces the warnings.
    pub fn set_warnings(&self, warnings: Vec<String>) {
        self.lock().warnings = warnings;
    }

    /// Returns when the current state (idle, or waiting for a query) began.
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

    /// Adds a connection. If `most` is given, the user may have at most `most` connections.
    ///
    /// # Errors
    /// The number of connections that the user already has, if that is the maximum.
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

    /// Removes a closed connection, and cancels the query whose result it waited for.
    pub fn remove(&self, id: u32) {
        let gone = self.lock().remove(&id);
        if let Some(query) = gone.and_then(|connection| connection.current()) {
            query.end(super::error::Error::Cancelled);
        }
    }

    /// Returns all connections, ordered by number.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Connection>> {
        self.lock().values().cloned().collect()
    }

    /// Returns the connection with this number.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<Arc<Connection>> {
        u32::try_from(id).ok().and_then(|id| self.lock().get(&id).cloned())
    }
}
