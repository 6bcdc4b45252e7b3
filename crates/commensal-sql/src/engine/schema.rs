//! Name resolution while one statement is planned: databases of the data folder, system tables, and the table functions
//! of the statement itself.

use super::Engine;
use super::data::{INFORMATION_SCHEMA, TableSource};
use super::error::Error;
use super::meta;
use super::rewrite::FUNCTIONS;
use super::system::System;
use crate::statement::UserName;
use async_trait::async_trait;
use datafusion::catalog::information_schema::InformationSchemaProvider;
use datafusion::catalog::{CatalogProvider, CatalogProviderList, SchemaProvider, TableProvider};
use datafusion::error::DataFusionError;
use datafusion::execution::context::SessionState;
use datafusion::logical_expr::TableType;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Name of the only catalogue, as in MySQL.
pub const CATALOG: &str = "def";

type Tables = Mutex<BTreeMap<(String, String), Arc<dyn TableProvider>>>;

/// The names of one statement.
#[derive(Clone)]
pub struct Names {
    engine: Arc<Engine>,
    user: UserName,
    /// Reads files with the stores and the memory of the query.
    reader: Arc<SessionState>,
    calls: Arc<Vec<TableSource>>,
    /// Tables resolved so far, so that a name means the same throughout a statement.
    seen: Arc<Tables>,
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names").field("user", &self.user).finish_non_exhaustive()
    }
}

impl Names {
    /// Name resolution for a statement of `user`, whose files are read by `reader`.
    #[must_use]
    pub fn new(
        engine: &Arc<Engine>,
        user: &UserName,
        reader: SessionState,
        calls: Vec<TableSource>,
    ) -> Names {
        Names {
            engine: Arc::clone(engine),
            user: user.clone(),
            reader: Arc::new(reader),
            calls: Arc::new(calls),
            seen: Arc::default(),
        }
    }

    /// Names of all databases, including the system's.
    #[must_use]
    pub fn databases(&self) -> Vec<String> {
        let mut names = self.engine.data.databases();
        names.push(INFORMATION_SCHEMA.to_owned());
        names
    }

    /// Names of the tables of a database.
    #[must_use]
    pub fn tables(&self, database: &str) -> Vec<String> {
        if database.eq_ignore_ascii_case(INFORMATION_SCHEMA) {
            return System::names();
        }
        self.engine.data.tables(database)
    }

    /// The table with this name.
    ///
    /// # Errors
    /// Its files cannot be read.
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
            if let Some(ours) = System::new(&self.engine, &self.user).table(table)? {
                return Ok(Some(ours));
            }
            if let Some(mysqls) = Box::pin(meta::table(self, table)).await? {
                return Ok(Some(mysqls));
            }
            let theirs = InformationSchemaProvider::new(Arc::new(self.clone()));
            return Ok(theirs.table(table).await?);
        }
        let place = match database {
            FUNCTIONS => table.parse().ok().and_then(|number: usize| self.calls.get(number).cloned()),
            _ => self.engine.data.locate(database, table),
        };
        match place {
            Some(place) => Ok(Some(Arc::new(place.table(&self.reader, &self.engine.data.known).await?))),
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
        // Doris calls its own catalogue "internal".
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
            || self.engine.data.has_database(name);
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
        // Tables that a statement names were resolved before, and errors reported. When all tables are listed, one that
        // cannot be read must not hide the others.
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
