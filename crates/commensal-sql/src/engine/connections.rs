//! The open connections, and the current query of each.

use super::error::Error;
use super::query::Query;
use super::variables::Variables;
use crate::statement::UserName;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio_util::sync::CancellationToken;

/// Bytes that the statements which a session prepares by name may have.
const MOST_PREPARED: usize = 1 << 20;
/// Bytes that each of them counts beside its name and text.
const EACH_PREPARED: usize = 100;

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
    /// Version and cipher of TLS, if the connection is encrypted.
    pub encrypted: Option<(String, String)>,
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
    /// Number of warnings of the statement before the current one.
    before: usize,
    /// Number of rows of the last result.
    rows_sent: usize,
    /// Statements that were prepared by name.
    prepared: BTreeMap<String, String>,
    /// Whether a transaction is open. There is nothing in it, because files do not change.
    in_transaction: bool,
    since: Instant,
}

impl Connection {
    /// Creates a connection.
    #[must_use]
    pub fn new(id: u32, user: UserName, host: &str, encrypted: Option<(String, String)>) -> Connection {
        let now = Instant::now();
        let database = super::data::MAIN.to_owned();
        let state = State {
            database,
            variables: Variables::default(),
            current: None,
            warnings: Vec::new(),
            before: 0,
            rows_sent: 0,
            prepared: BTreeMap::new(),
            in_transaction: false,
            since: now,
        };
        Connection {
            id,
            user,
            host: host.to_owned(),
            since: now,
            encrypted,
            close: CancellationToken::new(),
            state: Mutex::new(state),
        }
    }

    /// Creates the connection of another user over the same socket, in its initial state.
    #[must_use]
    pub fn of(&self, user: UserName) -> Connection {
        let close = self.close.clone();
        Connection { close, ..Connection::new(self.id, user, &self.host, self.encrypted.clone()) }
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
    pub fn set_variable(&self, name: &str, value: Option<&str>) -> Result<(), Error> {
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

    /// Drops the warnings of the last statement, because the next one begins.
    pub fn drop_warnings(&self) {
        let mut state = self.lock();
        state.before = std::mem::take(&mut state.warnings).len();
    }

    /// Returns the number of warnings of the statement before the current one (`@@warning_count`).
    #[must_use]
    pub fn warnings_before(&self) -> usize {
        self.lock().before
    }

    /// Returns the number of rows of the last result.
    #[must_use]
    pub fn rows_sent(&self) -> usize {
        self.lock().rows_sent
    }

    /// Stores the number of rows of a result.
    pub fn set_rows_sent(&self, rows: usize) {
        self.lock().rows_sent = rows;
    }

    /// Returns the text of a statement that was prepared by name. Names have no case.
    #[must_use]
    pub fn prepared(&self, name: &str) -> Option<String> {
        self.lock().prepared.get(&name.to_lowercase()).cloned()
    }

    /// Keeps the text of a statement that is prepared by name.
    ///
    /// # Errors
    /// The session's prepared statements would have too many bytes.
    pub fn set_prepared(&self, name: &str, text: String) -> Result<(), Error> {
        let (mut state, name) = (self.lock(), name.to_lowercase());
        state.prepared.remove(&name);
        let size = |name: &str, text: &str| name.len() + text.len() + EACH_PREPARED;
        let used: usize = state.prepared.iter().map(|(name, text)| size(name, text)).sum();
        if used + size(&name, &text) > MOST_PREPARED {
            return Err(Error::Rule(format!(
                "the prepared statements of a session may have {MOST_PREPARED} bytes in all: deallocate some"
            )));
        }
        state.prepared.insert(name, text);
        Ok(())
    }

    /// Forgets a statement that was prepared by name. Returns whether there was one.
    pub fn forget_prepared(&self, name: &str) -> bool {
        self.lock().prepared.remove(&name.to_lowercase()).is_some()
    }

    /// Forgets what was prepared by name.
    pub fn clear_prepared(&self) {
        self.lock().prepared.clear();
    }

    /// Whether a transaction is open.
    #[must_use]
    pub fn in_transaction(&self) -> bool {
        self.lock().in_transaction
    }

    /// Opens or ends a transaction.
    pub fn set_in_transaction(&self, is_open: bool) {
        self.lock().in_transaction = is_open;
    }

    /// Returns when the current state (idle, or waiting for a query) began.
    #[must_use]
    pub fn since(&self) -> Instant {
        self.lock().since
    }
}

/// All connections.
#[derive(Debug)]
pub struct Connections {
    all: Mutex<BTreeMap<u32, Arc<Connection>>>,
    /// When the server started.
    pub begun: Instant,
    /// Number of connections so far.
    pub opened: AtomicU64,
    /// Number of commands of all clients so far.
    pub commands: AtomicU64,
}

impl Default for Connections {
    fn default() -> Connections {
        let (opened, commands) = (AtomicU64::new(0), AtomicU64::new(0));
        Connections { all: Mutex::default(), begun: Instant::now(), opened, commands }
    }
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
        self.opened.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Removes a closed connection, and cancels the query whose result it waited for.
    pub fn remove(&self, id: u32) {
        let gone = self.lock().remove(&id);
        if let Some(query) = gone.and_then(|connection| connection.current()) {
            query.end(Error::Cancelled);
        }
    }

    /// Returns the figures of `COM_STATISTICS`, in MySQL's form.
    #[must_use]
    pub fn statistics(&self) -> String {
        let (seconds, commands) = (self.begun.elapsed().as_secs(), self.commands.load(Relaxed));
        format!(
            "Uptime: {seconds}  Threads: {}  Questions: {commands}  Slow queries: 0  Opens: 0  Open tables: 0  \
             Queries per second avg: {:.3}",
            self.lock().len(),
            commands as f64 / seconds.max(1) as f64,
        )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prepared_statements_are_bounded() {
        let connection = Connection::new(1, UserName::anywhere("u"), "h", None);
        connection.set_prepared("A", "x".repeat(MOST_PREPARED / 2)).unwrap();
        connection.set_prepared("a", "x".repeat(MOST_PREPARED / 2)).unwrap();
        let error = connection.set_prepared("b", "x".repeat(MOST_PREPARED / 2)).unwrap_err();
        assert!(error.to_string().contains("1048576 bytes in all"), "{error}");
        assert!(connection.forget_prepared("A") && !connection.forget_prepared("b"));
        connection.set_prepared("b", "x".repeat(MOST_PREPARED / 2)).unwrap();
    }
}
