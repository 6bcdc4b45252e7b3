//! Name resolution while one statement is planned: databases of the data folder, system tables, and the statement's
//! table functions.

use super::Engine;
use super::data::{INFORMATION_SCHEMA, TableSource};
use super::error::{Error, Problem};
use super::grants;
use super::meta;
use super::query::Identity;
use super::rewrite::FUNCTIONS;
use super::system::System;
use crate::statement::UserName;
use async_trait::async_trait;
use datafusion::catalog::information_schema::InformationSchemaProvider;
use datafusion::catalog::{CatalogProvider, CatalogProviderList, SchemaProvider, TableProvider};
use datafusion::datasource::MemTable;
use datafusion::error::DataFusionError;
use datafusion::execution::context::SessionState;
use datafusion::logical_expr::TableType;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Name of the only catalogue, as in MySQL.
pub const CATALOG: &str = "def";

type Tables = Mutex<BTreeMap<(String, String), Arc<dyn TableProvider>>>;

/// Resolver of the names in one statement.
#[derive(Clone)]
pub struct Names {
    engine: Arc<Engine>,
    user: UserName,
    connection: u32,
    /// Session state with the stores and the memory of the query, through which files are read.
    reader: Arc<SessionState>,
    calls: Arc<Vec<TableSource>>,
    /// Tables resolved so far, so that a name refers to the same table throughout a statement.
    seen: Arc<Tables>,
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names").field("user", &self.user).finish_non_exhaustive()
    }
}

impl Names {
    /// Creates the name resolution for the statement of a query. `reader` reads the files.
    #[must_use]
    pub fn new(
        engine: &Arc<Engine>,
        identity: &Identity,
        reader: SessionState,
        calls: Vec<TableSource>,
    ) -> Names {
        Names {
            engine: Arc::clone(engine),
            user: identity.user.clone(),
            connection: identity.connection,
            reader: Arc::new(reader),
            calls: Arc::new(calls),
            seen: Arc::default(),
        }
    }

    /// Returns the names of all databases, including the system's.
    #[must_use]
    pub fn databases(&self) -> Vec<String> {
        let mut names = self.engine.storage.data.databases();
        names.push(INFORMATION_SCHEMA.to_owned());
        names
    }

    /// Returns the names of the tables of a database.
    #[must_use]
    pub fn tables(&self, database: &str) -> Vec<String> {
        if database.eq_ignore_ascii_case(INFORMATION_SCHEMA) {
            return System::names();
        }
        self.engine.storage.data.tables(database)
    }

    /// Whether this is the database of MySQL's privileges.
    fn is_mysql(&self, database: &str) -> bool {
        grants::is_database(&self.engine, database)
    }

    /// Returns MySQL's error for a table that does not exist, or whose database does not.
    #[must_use]
    pub fn missing(&self, database: &str, table: &str) -> Error {
        if database.eq_ignore_ascii_case(INFORMATION_SCHEMA) {
            let problem = format!("Unknown table '{table}' in information_schema");
            return Error::Name(Problem::SystemTable, problem);
        }
        match self.engine.storage.data.has_database(database) || self.is_mysql(database) {
            true => Error::Name(Problem::Table, format!("Table '{database}.{table}' doesn't exist")),
            false => Error::unknown_database(database),
        }
    }

    /// Returns the table with this name; `None` if it does not exist.
    ///
    /// # Errors
    /// The table's files cannot be read.
    pub async fn table(&self, database: &str, table: &str) -> Result<Option<Arc<dyn TableProvider>>, Error> {
        let key = (database.to_owned(), table.to_owned());
        if let Some(seen) = self.seen.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(Some(Arc::clone(seen)));
        }
        let found = self.look_up(database, table).await?;
        if let Some(found) = &found {
            self.seen.lock().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::clone(found));
        }
        Ok(found)
    }

    async fn look_up(&self, database: &str, table: &str) -> Result<Option<Arc<dyn TableProvider>>, Error> {
        if database.eq_ignore_ascii_case(INFORMATION_SCHEMA) {
            if let Some(ours) = System::new(&self.engine, &self.user, self.connection).table(table)? {
                return Ok(Some(ours));
            }
            if let Some(mysqls) = Box::pin(meta::table(self, table)).await? {
                return Ok(Some(mysqls));
            }
            let theirs = InformationSchemaProvider::new(Arc::new(self.clone()));
            return Ok(theirs.table(table).await?);
        }
        if self.is_mysql(database)
            && let Some(grid) = grants::table(&self.engine, &self.user, table)
        {
            let batch = grid.batch()?;
            return Ok(Some(Arc::new(MemTable::try_new(batch.schema(), vec![vec![batch]])?)));
        }
        let place = match database {
            FUNCTIONS => table.parse().ok().and_then(|number: usize| self.calls.get(number).cloned()),
            _ => self.engine.storage.data.locate(database, table),
        };
        match place {
            Some(place) => Ok(Some(place.table(&self.reader, &self.engine.storage.data.known).await?)),
            None => Ok(None),
        }
    }
}

impl CatalogProviderList for Names {
    fn register_catalog(
        &self,
        _name: String,
        _catalog: Arc<dyn CatalogProvider>,
    ) -> Option<Arc<dyn CatalogProvider>> {
        None
    }

    fn catalog_names(&self) -> Vec<String> {
        vec![CATALOG.to_owned()]
    }

    fn catalog(&self, name: &str) -> Option<Arc<dyn CatalogProvider>> {
        // In Doris the server's own catalogue is called "internal".
        [CATALOG, "internal"].contains(&name).then(|| Arc::new(self.clone()) as Arc<dyn CatalogProvider>)
    }
}

impl CatalogProvider for Names {
    fn schema_names(&self) -> Vec<String> {
        self.databases()
    }

    fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        let known = name == FUNCTIONS
            || name.eq_ignore_ascii_case(INFORMATION_SCHEMA)
            || self.engine.storage.data.has_database(name)
            || self.is_mysql(name);
        known.then(|| {
            Arc::new(Database { names: self.clone(), name: name.to_owned() }) as Arc<dyn SchemaProvider>
        })
    }
}

#[derive(Debug)]
struct Database {
    names: Names,
    name: String,
}

#[async_trait]
impl SchemaProvider for Database {
    fn table_names(&self) -> Vec<String> {
        self.names.tables(&self.name)
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>, DataFusionError> {
        // The tables that the statement refers to have been resolved before, and errors in them were reported. When all
        // tables are listed, a table that cannot be read must not hide the other tables.
        let table = self.names.table(&self.name, name).await;
        Ok(table.unwrap_or_else(|error| {
            tracing::debug!("{}.{name}: {error}", self.name);
            None
        }))
    }

    async fn table_type(&self, name: &str) -> Result<Option<TableType>, DataFusionError> {
        Ok(self.table_exist(name).then_some(TableType::Base))
    }

    fn table_exist(&self, name: &str) -> bool {
        self.table_names().iter().any(|table| table == name)
    }
}
