//! The statements of one connection: executes a statement, and returns rows or a status.

use super::connections::Connection;
use super::data::INFORMATION_SCHEMA;
use super::error::{Error, Problem};
use super::execute::{self, Held, Rows, Work};
use super::query::{Identity, Query};
use super::queue::SlotRequest;
use super::rewrite::{self, FUNCTIONS, Found};
use super::terms::QueryLimits;
use super::variables::Variables;
use super::worker::wire::{self, Order, StatementText};
use super::write::{self, Target};
use super::{Engine, dialect, grants, having, password, show, titles};
use crate::catalog::{Catalog, CatalogError, Privilege};
use crate::statement::{self, Assignment, Kill, PassedOn, Statement, UserName, Value, in_backticks};
use datafusion::arrow::array::AsArray;
use datafusion::arrow::datatypes::{DataType, Int64Type, SchemaRef};
use datafusion::common::{ScalarValue, TableReference};
use datafusion::execution::context::SessionState;
use datafusion::sql::parser::Statement as Parsed;
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum length of a statement's text in lists of queries.
const SHOWN: usize = 4_096;

/// The result of a statement.
#[derive(Debug)]
pub enum Reply {
    /// The statement was executed.
    Done {
        /// Number of rows written.
        rows: u64,
        /// Warnings for the user.
        warnings: Vec<String>,
    },
    /// Rows.
    Rows(Rows),
}

impl Reply {
    /// Returns success without warnings.
    #[must_use]
    pub fn done() -> Reply {
        Reply::Done { rows: 0, warnings: Vec::new() }
    }
}

impl From<CatalogError> for Error {
    fn from(error: CatalogError) -> Error {
        match error {
            CatalogError::Denied(text) => Error::Denied(text),
            CatalogError::Refused(_) | CatalogError::Property(_) => Error::Rule(error.to_string()),
        }
    }
}

/// Executes the statements of one connection.
#[derive(Debug, Clone)]
pub struct Session {
    engine: Arc<Engine>,
    connection: Arc<Connection>,
}

/// A parsed and checked statement for the query engine.
#[derive(Debug)]
pub struct Prepared {
    parsed: Parsed,
    found: Found,
    variables: Variables,
    target: Option<Target>,
    sql: String,
    /// The original text, and the values of the session's names in the text, for a worker process. The worker parses
    /// the text again.
    text: String,
    names: Vec<(String, String)>,
    values: Vec<ScalarValue>,
}

impl Prepared {
    /// Returns the number of placeholders.
    #[must_use]
    pub fn placeholders(&self) -> usize {
        self.found.placeholders
    }

    /// Whether the query engine does not run this statement, for example SHOW.
    #[must_use]
    pub fn has_no_plan(&self) -> bool {
        show::is_handled(&self.parsed) || show::described_function(&self.text).is_some()
    }
}

/// Sets the variables that SET NAMES sets.
fn set_letters(variables: &mut Variables, letters: &str) -> Result<(), Error> {
    let lower = letters.to_ascii_lowercase();
    let letters = if lower == "utf8" { "utf8mb3" } else { lower.as_str() };
    for name in ["names", "character_set_client", "character_set_connection", "character_set_results"] {
        variables.set(name, Some(letters))?;
    }
    let collation = match letters {
        "latin1" => "latin1_swedish_ci".to_owned(),
        "binary" => "binary".to_owned(),
        other => format!("{other}_general_ci"),
    };
    variables.set("collation_connection", Some(&collation))
}

/// Returns the query for the value of an expression.
fn query_of(expression: &str) -> Result<PassedOn, Error> {
    match statement::parse(&format!("SELECT ({expression})")) {
        Ok(Statement::PassedOn(query)) => Ok(query),
        Ok(_) => Err(Error::Syntax("expected an expression".to_owned())),
        Err(error) => Err(Error::Syntax(error.to_string())),
    }
}

/// Returns MySQL's error for a statement of blanks and comments.
fn empty() -> Error {
    Error::Name(Problem::Empty, "Query was empty".to_owned())
}

impl Session {
    /// Creates the session of a connection.
    #[must_use]
    pub fn new(engine: &Arc<Engine>, connection: &Arc<Connection>) -> Session {
        Session { engine: Arc::clone(engine), connection: Arc::clone(connection) }
    }

    /// Returns the connection.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Puts the session's variables into their initial state, for a client with this character set.
    pub fn reset(&self, letters: &str) {
        let mut variables = Variables::default();
        let set = set_letters(&mut variables, letters);
        debug_assert!(set.is_ok(), "{letters} is supported");
        self.connection.set_variables(variables);
        self.connection.set_in_transaction(false);
        self.connection.set_warnings(Vec::new());
        self.connection.clear_prepared();
    }

    /// Returns a statement's text with the meaning that it has by `sql_mode`.
    #[must_use]
    pub fn in_mode<'a>(&self, sql: &'a str) -> Cow<'a, str> {
        match self.connection.variables().ansi_quotes() {
            true => statement::with_quoted_names(sql),
            false => Cow::Borrowed(sql),
        }
    }

    /// Executes a statement.
    ///
    /// # Errors
    /// The statement is invalid, or failed.
    pub async fn execute(&self, sql: &str) -> Result<Reply, Error> {
        let sql = &*self.in_mode(sql);
        let statement = statement::parse(sql);
        // For EXECUTE, the statement that it names drops them.
        if !matches!(statement, Ok(Statement::ShowWarnings | Statement::Execute { .. })) {
            self.connection.drop_warnings();
        }
        let statement = statement.map_err(|error| Error::Syntax(error.to_string()))?;
        if let Some(warnings) = self.engine.change(&statement, &self.connection.user, &password::hash)? {
            self.connection.set_warnings(warnings.clone());
            return Ok(Reply::Done { rows: 0, warnings });
        }
        match statement {
            Statement::PassedOn(passed) => self.pass_on(passed).await,
            Statement::Set(assignments) => {
                let mut variables = self.connection.variables();
                let mut warnings = Vec::new();
                let sets_autocommit = assignments.iter().any(|assignment| assignment.name == "autocommit");
                for assignment in assignments {
                    let assignment = self.evaluated(&variables, assignment).await?;
                    warnings.extend(self.assign(&mut variables, &[assignment])?);
                }
                self.connection.set_variables(variables);
                if sets_autocommit {
                    self.connection.set_in_transaction(false);
                }
                self.connection.set_warnings(warnings.clone());
                Ok(Reply::Done { rows: 0, warnings })
            }
            Statement::UnsetVariable(name) => {
                match name {
                    Some(name) => self.connection.set_variable(&name, None)?,
                    None => self.connection.set_variables(Variables::default()),
                }
                Ok(Reply::done())
            }
            Statement::Kill(kill) => self.kill(&kill),
            Statement::Prepare { .. } | Statement::Execute { .. } | Statement::Deallocate(_) => {
                Box::pin(self.by_name(statement)).await
            }
            Statement::Do(passed) => {
                if let Reply::Rows(mut rows) = self.pass_on(passed).await? {
                    while rows.next().await?.is_some() {}
                }
                Ok(Reply::done())
            }
            Statement::ShowCount(variable) => {
                let text = format!("SELECT @@session.{variable}");
                self.pass_on(PassedOn { text, variables: Vec::new() }).await
            }
            Statement::Empty => Err(empty()),
            Statement::SetTransaction | Statement::Flush => Ok(Reply::done()),
            other => {
                let grid = show::show(&self.engine, &self.connection, &other)?;
                let filter = match &other {
                    Statement::ShowVariables { condition: Some(condition), .. } => {
                        Some(show::condition(&self.engine.base, condition)?)
                    }
                    _ => None,
                };
                Ok(Reply::Rows(Rows::of_batch(show::filtered(&self.engine.base, &grid, filter.as_ref())?)))
            }
        }
    }

    /// Prepares, executes or forgets a statement by its name.
    async fn by_name(&self, statement: Statement) -> Result<Reply, Error> {
        let variables = self.connection.variables();
        let unknown = |name: &str, verb: &str| {
            let text = format!("Unknown prepared statement handler ({name}) given to {verb}");
            Error::Name(Problem::Handler, text)
        };
        match statement {
            Statement::Prepare { name, text } => {
                let text = match text {
                    Value::Text(text) => text,
                    Value::Expression(text) => {
                        let value = self.value_of(variables, &query_of(&text)?).await?;
                        value.cast_to(&DataType::Utf8)?.to_string()
                    }
                    Value::Default => return Err(Error::Syntax("PREPARE needs a text".to_owned())),
                };
                // As in MySQL, the earlier statement of this name is gone even if this one is wrong.
                self.connection.forget_prepared(&name);
                self.check_prepared(&text).await?;
                self.connection.set_prepared(&name, text)?;
                Ok(Reply::done())
            }
            Statement::Execute { name, values } => {
                let text = self.connection.prepared(&name).ok_or_else(|| unknown(&name, "EXECUTE"))?;
                if statement::placeholders(&text).len() != values.len() {
                    return Err(Error::Name(Problem::Arguments, "Incorrect arguments to EXECUTE".to_owned()));
                }
                self.execute(&statement::filled(&text, &values)).await
            }
            Statement::Deallocate(name) if !self.connection.forget_prepared(&name) => {
                Err(unknown(&name, "DEALLOCATE PREPARE"))
            }
            _ => Ok(Reply::done()),
        }
    }

    /// Checks a statement that is to be prepared by name. It must not execute another one, which could be itself.
    async fn check_prepared(&self, text: &str) -> Result<(), Error> {
        match statement::parse(&self.in_mode(text)).map_err(|error| Error::Syntax(error.to_string()))? {
            Statement::Empty => Err(empty()),
            Statement::Prepare { .. } | Statement::Execute { .. } | Statement::Deallocate(_) => {
                let text = "This command is not supported in the prepared statement protocol yet";
                Err(Error::Unsupported(text.to_owned()))
            }
            Statement::PassedOn(passed) => {
                let prepared = self.prepare(&passed, Vec::new())?;
                if !prepared.has_no_plan() {
                    self.columns(prepared).await?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Sets the session's current database.
    ///
    /// # Errors
    /// The database does not exist.
    pub fn choose(&self, database: &str) -> Result<(), Error> {
        show::choose(&self.engine, &self.connection, database)
    }

    /// Computes the value of an assignment that is an expression. Only a variable without effect may do without a value.
    async fn evaluated(&self, variables: &Variables, assignment: Assignment) -> Result<Assignment, Error> {
        let Assignment { global, name, value: Value::Expression(text) } = assignment else {
            return Ok(assignment);
        };
        // Drivers set these for each connection, and they need no query.
        let is_name =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"@._".contains(&byte));
        let is_plain = text.eq_ignore_ascii_case("null") || (text.starts_with("@@") && is_name(&text));
        if is_plain && !name.starts_with('@') {
            return Ok(Assignment { global, name, value: Value::Expression(text) });
        }
        let value = match self.value_of(variables.clone(), &query_of(&text)?).await {
            Ok(value) if name.starts_with('@') => Value::Text(rewrite::written(&value)?),
            Ok(value) if value.is_null() => Value::Default,
            Ok(value) => Value::Text(value.cast_to(&DataType::Utf8)?.to_string()),
            Err(_) if Variables::is_ignored(&name) => Value::Expression(text),
            Err(error) => return Err(error),
        };
        Ok(Assignment { global, name, value })
    }

    /// Returns the value of a query that has one.
    async fn value_of(&self, mut variables: Variables, query: &PassedOn) -> Result<ScalarValue, Error> {
        // What these do to rows is not meant for values.
        variables.set("dry_run_query", None)?;
        variables.set("sql_select_limit", None)?;
        let mut rows = self.run(self.prepared(variables, query, Vec::new())?).await?;
        let mut value = ScalarValue::Null;
        while let Some(batch) = rows.next().await? {
            if batch.num_rows() > 0 {
                value = ScalarValue::try_from_array(batch.column(0), 0)?;
            }
        }
        Ok(value)
    }

    /// Sets variables. Returns warnings about values that are stored and have no effect.
    fn assign(&self, variables: &mut Variables, assignments: &[Assignment]) -> Result<Vec<String>, Error> {
        let mut warnings = Vec::new();
        for Assignment { global, name, value } in assignments {
            if *global {
                return Err(Error::Unsupported(format!(
                    "global variables are not supported: set {name} in the session, or a user's default_workload_group"
                )));
            }
            match value {
                Value::Text(text) if name == "names" => set_letters(variables, text)?,
                Value::Default if name == "names" => set_letters(variables, "utf8mb4")?,
                Value::Text(text) => variables.set(name, Some(text))?,
                Value::Default => variables.set(name, None)?,
                // NULL means the default: some drivers use it to turn off the conversion of results to a character set.
                Value::Expression(text) if text.eq_ignore_ascii_case("null") => variables.set(name, None)?,
                // `SET a = @@b`; drivers send this form.
                Value::Expression(text) => {
                    let lower = text.to_lowercase();
                    let other = lower.trim_start_matches("@@").trim_start_matches("session.");
                    let is_variable = text.starts_with("@@") && !name.starts_with('@');
                    let value = is_variable.then(|| variables.get(other)).flatten();
                    // JDBC appends to its `sql_mode` with concat(...). A variable without effect needs no value.
                    if value.is_none() && Variables::is_ignored(name) {
                        warnings.push(format!("{name} keeps its value: SET does not evaluate {text}"));
                        continue;
                    }
                    let Some(value) = value else {
                        let problem = format!("Variable '{name}' can't be set to an expression");
                        return Err(Error::Unsupported(problem));
                    };
                    variables.set(name, Some(&value))?;
                }
            }
            warnings.extend(variables.without_effect(name));
        }
        Ok(warnings)
    }

    fn kill(&self, kill: &Kill) -> Result<Reply, Error> {
        let may =
            |user: &UserName| *user == self.connection.user || self.engine.is_admin(&self.connection.user);
        match kill {
            Kill::QueryId(id) => {
                let queries = self.engine.queries.all();
                let Some(query) = queries.iter().find(|query| query.identity.id == *id) else {
                    return Err(Error::Unknown(format!("Unknown query id: {id}")));
                };
                if !may(&query.identity.user) {
                    return Err(Error::NotOwner(id.clone()));
                }
                query.end(Error::Cancelled);
            }
            Kill::Query(id) | Kill::Connection(id) => {
                let Some(other) = self.engine.connections.get(*id) else {
                    return Err(Error::Name(Problem::Thread, format!("Unknown thread id: {id}")));
                };
                if !may(&other.user) {
                    return Err(Error::NotOwner(id.to_string()));
                }
                if let Some(query) = other.current() {
                    query.end(Error::Cancelled);
                }
                if matches!(kill, Kill::Connection(_)) {
                    other.close.cancel();
                }
            }
        }
        Ok(Reply::done())
    }

    /// Returns the value of a name such as `@@x` or `database()` in a statement.
    fn look_up(&self, variables: &Variables, name: &str) -> Option<String> {
        let user = || format!("{}@{}", self.connection.user.name, self.connection.host);
        match name {
            "database()" | "schema()" => Some(self.connection.database()),
            "user()" | "session_user()" | "system_user()" => Some(user()),
            // The account, whose host is a pattern.
            "current_user()" => {
                let UserName { name, host } = &self.connection.user;
                Some(format!("{name}@{host}"))
            }
            "connection_id()" => Some(self.connection.id.to_string()),
            "version()" => Some(super::variables::VERSION.to_owned()),
            "last_insert_id()" => Some("0".to_owned()),
            "found_rows()" => Some(self.connection.rows_sent().to_string()),
            "row_count()" => Some("-1".to_owned()),
            "@@warning_count" => Some(self.connection.warnings_before().to_string()),
            "@@error_count" => Some("0".to_owned()),
            "@@in_transaction" => Some(u8::from(self.connection.in_transaction()).to_string()),
            _ => variables.get(name.strip_prefix("@@").unwrap_or(name)),
        }
    }

    /// Parses and checks a statement that the query engine will run.
    ///
    /// # Errors
    /// The statement cannot be parsed, or sets an unknown variable.
    pub fn prepare(&self, passed: &PassedOn, values: Vec<ScalarValue>) -> Result<Prepared, Error> {
        self.prepared(self.connection.variables(), passed, values)
    }

    fn prepared(
        &self,
        mut variables: Variables,
        passed: &PassedOn,
        values: Vec<ScalarValue>,
    ) -> Result<Prepared, Error> {
        self.assign(&mut variables, &passed.variables)?;
        let names = RefCell::new(BTreeMap::new());
        let look_up = |name: &str| {
            let value = self.look_up(&variables, name)?;
            names.borrow_mut().insert(name.to_owned(), value.clone());
            Some(value)
        };
        let database = self.connection.database();
        let (parsed, found, target) = read(&self.engine.base, &passed.text, &database, &look_up, &values)?;
        let mut sql = statement::redacted(&passed.text);
        if let Some((end, _)) = sql.char_indices().nth(SHOWN) {
            sql.truncate(end);
        }
        let (text, names) = (passed.text.clone(), names.into_inner().into_iter().collect());
        Ok(Prepared { parsed, found, variables, target, sql, text, names, values })
    }

    async fn pass_on(&self, passed: PassedOn) -> Result<Reply, Error> {
        if let Some(call) = show::described_function(&passed.text) {
            let select =
                PassedOn { text: format!("select * from {call} limit 0"), variables: passed.variables };
            let prepared = self.prepare(&select, Vec::new())?;
            let schema = self.columns(prepared).await?;
            let grid = show::described(show::Described::Columns, "", &schema);
            return Ok(Reply::Rows(Rows::of(&grid)?));
        }
        let prepared = self.prepare(&passed, Vec::new())?;
        match show::instead(&self.engine, &self.connection, &prepared.parsed)? {
            Some(show::ShowRewrite::Done) => Ok(Reply::done()),
            Some(show::ShowRewrite::Grid(grid)) => {
                let filter = show::filter(&prepared.parsed);
                Ok(Reply::Rows(Rows::of_batch(show::filtered(&self.engine.base, &grid, filter)?)))
            }
            Some(show::ShowRewrite::Describe { form, database, table: name }) => {
                let text =
                    format!("select * from {}.{} limit 0", in_backticks(&database), in_backticks(&name));
                let table = self.prepare(&PassedOn { text, variables: passed.variables }, Vec::new())?;
                let grid = show::described(form, &name, &*self.columns(table).await?);
                let filter = show::filter(&prepared.parsed);
                Ok(Reply::Rows(Rows::of_batch(show::filtered(&self.engine.base, &grid, filter)?)))
            }
            None => self.run_whole(prepared).await,
        }
    }

    /// Runs a statement. If it writes, waits until it has finished.
    ///
    /// # Errors
    /// The errors of [`Session::run`].
    pub async fn run_whole(&self, prepared: Prepared) -> Result<Reply, Error> {
        self.connection.set_warnings(Vec::new());
        let writes = prepared.target.is_some();
        let mut rows = self.run(prepared).await?;
        if !writes {
            return Ok(Reply::Rows(rows));
        }
        let mut written = 0;
        while let Some(batch) = rows.next().await? {
            let numbers = batch.column(0).as_primitive::<Int64Type>();
            written += numbers.iter().flatten().filter_map(|number| u64::try_from(number).ok()).sum::<u64>();
        }
        Ok(Reply::Done { rows: written, warnings: Vec::new() })
    }

    /// Runs a statement.
    ///
    /// # Errors
    /// The user lacks a privilege, the query is not admitted, or it fails.
    pub async fn run(&self, prepared: Prepared) -> Result<Rows, Error> {
        let tables = self.engine.base.resolve_table_references(&prepared.parsed)?;
        let database = self.connection.database();
        let only_system = prepared.target.is_none() && rewrite::bypasses(&tables, &database);
        let bypass = only_system || prepared.variables.bypass();
        // Only the server knows the users.
        let of_mysql =
            tables.iter().any(|table| grants::is_database(&self.engine, table.schema().unwrap_or(&database)));
        let may_leave = !of_mysql && rewrite::may_leave(&tables, &database);
        if !tables.is_empty() && prepared.variables.get("autocommit").as_deref() == Some("0") {
            self.connection.set_in_transaction(true);
        }
        let (mut held, mut work) = self.accept(prepared, &tables, database)?;
        if !may_leave {
            work.order = None;
        }
        let query = Arc::clone(held.query());
        self.connection.set_current(Some(Arc::clone(&query)));
        if !bypass {
            let QueryLimits { slots, timeout, .. } = query.limits;
            let request = SlotRequest { number: query.identity.number, slots, timeout };
            let place = query.home().queue.enter(request, query.stopped()).await;
            held.take(place.inspect_err(|why| query.fail(why))?);
        }
        execute::start(held, work).await
    }

    /// Returns the columns of a statement's result.
    ///
    /// # Errors
    /// The user lacks a privilege, or the statement cannot be planned.
    pub async fn columns(&self, prepared: Prepared) -> Result<SchemaRef, Error> {
        let tables = self.engine.base.resolve_table_references(&prepared.parsed)?;
        let (held, work) = self.accept(prepared, &tables, self.connection.database())?;
        self.connection.set_current(Some(Arc::clone(held.query())));
        let columns = execute::columns(held, work).await;
        self.connection.set_current(None);
        columns
    }

    /// Creates a query for a statement: checks the user's privileges, and determines group and settings.
    fn accept(
        &self,
        prepared: Prepared,
        tables: &[TableReference],
        database: String,
    ) -> Result<(Held, Work), Error> {
        let user = &self.connection.user;
        let variables = &prepared.variables;
        let name = self.engine.with_catalog(|catalog| {
            self.may_read(catalog, tables, &database)?;
            self.may_write(catalog, prepared.target.as_ref())?;
            if prepared.target.is_some() && variables.read_only() {
                return Err(Error::ReadOnly);
            }
            let group = catalog.group_of(variables.group().as_deref(), user)?;
            Ok::<String, Error>(group.name.to_string())
        })?;
        let Some(group) = self.engine.groups().get(&name).cloned() else {
            return Err(Error::Unknown(format!("Can not find workload group {name}.")));
        };
        let identity = Identity::new(self.connection.id, user.clone(), prepared.sql);
        let mut limits = variables.limits();
        let mut options = variables.plan_options(database, self.engine.options.cpus);
        // As in MySQL, these two limits apply to statements that only read.
        if prepared.target.is_some() {
            (limits.execution, options.select_limit) = (None, None);
        }
        let query = Query::new(identity, limits, group.accounts());
        let order = match group.settings().worker {
            true => Some(Order {
                number: query.identity.number,
                id: query.identity.id.clone(),
                user: user.name.clone(),
                host: user.host.clone(),
                statement: StatementText {
                    text: prepared.text,
                    names: prepared.names,
                    values: wire::pack(&prepared.values)?,
                },
                slots: query.limits.slots,
                memory_limit: query.limits.memory,
                options: options.clone(),
            }),
            false => None,
        };
        let work = Work {
            order,
            statement: prepared.parsed,
            calls: prepared.found.calls,
            options,
            target: prepared.target,
        };
        Ok((Held::new(&self.engine, &group, &query), work))
    }

    /// Checks the privileges for reading. A table needs a privilege on that table. Table functions, which read files
    /// and stores by name, need a privilege on everything.
    fn may_read(&self, catalog: &Catalog, tables: &[TableReference], database: &str) -> Result<(), Error> {
        let user = &self.connection.user;
        for table in tables {
            let schema = table.schema().unwrap_or(database);
            if schema.eq_ignore_ascii_case(INFORMATION_SCHEMA) {
                continue;
            }
            let object = match schema {
                FUNCTIONS => ["*", "*", "*"],
                _ => ["internal", schema, table.table()],
            };
            if !catalog.may(user, Privilege::Select, object) {
                let what = if schema == FUNCTIONS { "table functions" } else { table.table() };
                return Err(Error::Denied(format!(
                    "Access denied for user '{}'@'{}' to {what}: GRANT SELECT_PRIV ON {} TO {user}",
                    user.name,
                    self.connection.host,
                    object.join("."),
                )));
            }
        }
        Ok(())
    }

    fn may_write(&self, catalog: &Catalog, target: Option<&Target>) -> Result<(), Error> {
        let Some(Target { database, table, .. }) = target else { return Ok(()) };
        let user = &self.connection.user;
        if catalog.may(user, Privilege::Load, ["internal", database, table]) {
            return Ok(());
        }
        Err(Error::Denied(format!(
            "Access denied for user '{}'@'{}' to {table}: GRANT LOAD_PRIV ON internal.{database}.{table} TO {user}",
            user.name, self.connection.host
        )))
    }
}

/// Parses a statement for the query engine: replaces the session's names, and extracts the table functions and the
/// table to write to.
fn read(
    base: &SessionState,
    text: &str,
    database: &str,
    look_up: rewrite::Lookup<'_>,
    values: &[ScalarValue],
) -> Result<(Parsed, Found, Option<Target>), Error> {
    let mut parsed = dialect::parse(base, text)?;
    titles::keep(&mut parsed, text);
    having::to_where(&mut parsed)?;
    let found = rewrite::rewrite(&mut parsed, look_up, values);
    if let Some(problem) = &found.problem {
        return Err(problem.clone());
    }
    let target = write::target(&mut parsed, database)?;
    Ok((parsed, found, target))
}

/// Builds the work for an order (a query that the server has sent to this worker) from the same text as in the server.
///
/// # Errors
/// The text cannot be parsed although the server could parse it: server and worker have different versions.
pub fn work(engine: &Engine, order: Order) -> Result<Work, Error> {
    let Order { statement: StatementText { text, names, values }, options, .. } = order;
    let names: BTreeMap<String, String> = names.into_iter().collect();
    let look_up = |name: &str| names.get(name).cloned();
    let values = wire::unpack(values)?;
    let (statement, found, target) = read(&engine.base, &text, &options.database, &look_up, &values)?;
    Ok(Work { statement, calls: found.calls, options, target, order: None })
}
