//! SHOW and DESCRIBE statements: commensal-sql's own, those of Doris, and statements that MySQL clients send by
//! themselves.

use super::connections::Connection;
use super::data::INFORMATION_SCHEMA;
use super::error::{Error, Problem};
use super::grid::{Grid, INT, TEXT, int, text};
use super::query::Query;
use super::{Engine, dialect, status, system};
use crate::catalog::{is_like, show_groups};
use crate::statement::{Statement, UserName, in_backticks};
use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::compute::filter_record_batch;
use datafusion::arrow::compute::kernels::comparison::{ilike, like};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::execution::context::SessionState;
use datafusion::sql::parser::Statement as Parsed;
use datafusion::sql::sqlparser::ast::{
    self, ExprWithAlias, Ident, ObjectName, ObjectType, ShowCreateObject, ShowStatementFilter,
    ShowStatementFilterPosition, ShowStatementOptions, Use,
};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// MySQL's generic error number (`ER_UNKNOWN_ERROR`).
const WARNING: u16 = 1105;
/// Number of characters of a statement that `SHOW PROCESSLIST` shows, as in MySQL.
const SHORT: usize = 100;

/// Response to a statement that this module handles without the query engine.
#[derive(Debug)]
pub enum ShowRewrite {
    /// An empty success.
    Done,
    /// These rows.
    Grid(Grid),
    /// The columns of this table, as MySQL shows them.
    Describe {
        /// What is shown of them.
        form: Described,
        /// The table's database.
        database: String,
        /// The table's name.
        table: String,
    },
}

/// The ways to show the columns of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Described {
    /// `DESCRIBE` and `SHOW COLUMNS`.
    Columns,
    /// `SHOW FULL COLUMNS`.
    FullColumns,
    /// `SHOW CREATE TABLE`.
    Create,
}

/// Returns the rows of a SHOW statement about the server's objects.
///
/// # Errors
/// The user is not allowed to see these objects.
pub fn show(engine: &Engine, connection: &Connection, statement: &Statement) -> Result<Grid, Error> {
    let user = &connection.user;
    let matches = |pattern: &Option<String>, name: &str| {
        pattern.as_ref().is_none_or(|pattern| is_like(like, pattern, name))
    };
    match statement {
        Statement::ShowGroups { like } => Ok(groups(engine, user, &|name| matches(like, name))),
        Statement::ShowPolicies => Ok(policies(engine, user)),
        Statement::ShowProcesslist { full } => Ok(processes(engine, connection, *full)),
        Statement::ShowCreateDatabase(name) => {
            let is_known =
                name.eq_ignore_ascii_case(INFORMATION_SCHEMA) || engine.storage.data.has_database(name);
            if !is_known {
                return Err(Error::unknown_database(name));
            }
            let mut grid = Grid::texts(&["Database", "Create Database"]);
            let quoted = name.replace('`', "``");
            grid.text_row([
                name.clone(),
                format!("CREATE DATABASE `{quoted}` /*!40100 DEFAULT CHARACTER SET utf8mb4 */"),
            ]);
            Ok(grid)
        }
        Statement::ShowWarnings => {
            let mut grid = Grid::texts(&["Level", "Code", "Message"]);
            for warning in connection.warnings() {
                grid.text_row(["Warning".to_owned(), WARNING.to_string(), warning]);
            }
            Ok(grid)
        }
        Statement::ShowVariables { like, .. } => {
            let mut grid = Grid::texts(&["Variable_name", "Value"]);
            let matches = |name: &str| like.as_ref().is_none_or(|pattern| is_like(ilike, pattern, name));
            for (name, value) in connection.variables().all(matches) {
                grid.text_row([name, value]);
            }
            Ok(grid)
        }
        Statement::AdminShowConfig { like } => {
            admin(engine, user)?;
            let mut grid = Grid::texts(&["Key", "Value"]);
            for (key, value) in engine.with_catalog(|catalog| catalog.config().entries()) {
                if matches(like, key) {
                    grid.text_row([key.to_owned(), value]);
                }
            }
            Ok(grid)
        }
        Statement::ShowProperty { user: of, like } => {
            let of = of.clone().unwrap_or_else(|| user.name.clone());
            if of != user.name {
                admin(engine, user)?;
            }
            let mut grid = Grid::texts(&["Key", "Value"]);
            let default = engine.with_catalog(|catalog| catalog.default_group(&of).map(str::to_owned));
            if matches(like, "default_workload_group") {
                grid.text_row(["default_workload_group".to_owned(), default.unwrap_or_default()]);
            }
            let most = engine.with_catalog(|catalog| catalog.max_connections(&of));
            if matches(like, "max_user_connections") {
                let shown = most.map_or_else(String::new, |most| most.to_string());
                grid.text_row(["max_user_connections".to_owned(), shown]);
            }
            Ok(grid)
        }
        Statement::ShowGrants { all, user: of } => {
            let of = of.as_ref().unwrap_or(user);
            // Clients ask for the host from which they come, which is not the pattern of the account.
            let exists = || engine.with_catalog(|catalog| catalog.users().any(|(name, _)| name == of));
            let of = if of.name == user.name && !exists() { user } else { of };
            if *all || of != user {
                admin(engine, user)?;
            }
            grants(engine, of, *all)
        }
        _ => Err(Error::Unsupported("this SHOW statement is not supported".to_owned())),
    }
}

fn admin(engine: &Engine, user: &UserName) -> Result<(), Error> {
    if engine.is_admin(user) {
        return Ok(());
    }
    let problem = "Access denied; you need (at least one of) the (ADMIN) privilege(s) for this operation";
    Err(Error::Denied(problem.to_owned()))
}

fn groups(engine: &Engine, user: &UserName, wanted: &dyn Fn(&str) -> bool) -> Grid {
    let mut grid = Grid::texts(&show_groups());
    let live = engine.groups();
    for row in engine.with_catalog(|catalog| catalog.group_rows(user)) {
        if wanted(&row.name) {
            let (running, waiting) = live.get(&row.name).map_or((0, 0), |group| group.queue.lengths());
            grid.text_row(row.shown(running, waiting));
        }
    }
    grid
}

fn policies(engine: &Engine, user: &UserName) -> Grid {
    let titles = ["Id", "Name", "Condition", "Action", "Priority", "Enabled", "Version", "WorkloadGroup"];
    let mut grid = Grid::texts(&titles);
    for row in engine.with_catalog(|catalog| catalog.policy_rows(user)) {
        grid.text_row([
            row.id.to_string(),
            row.name,
            row.condition,
            row.action,
            row.priority.to_string(),
            row.enabled.to_string(),
            row.version.to_string(),
            row.workload_group,
        ]);
    }
    grid
}

fn grants(engine: &Engine, of: &UserName, all: bool) -> Result<Grid, Error> {
    let mut grid = Grid::texts(&["UserIdentity", "Password", "Roles", "GlobalPrivs", "WorkloadGroupPrivs"]);
    engine.with_catalog(|catalog| {
        for (name, user) in catalog.users().filter(|(name, _)| all || *name == of) {
            let objects = user.grants.objects.iter().map(|(object, privileges)| {
                let names: Vec<String> = privileges.iter().map(ToString::to_string).collect();
                format!("{}: {}", object.join("."), names.join(","))
            });
            let groups = user.grants.groups.iter().map(|group| format!("{group}: Usage_priv"));
            grid.text_row([
                name.to_string(),
                if user.password.is_some() { "Yes" } else { "No" }.to_owned(),
                user.roles.iter().cloned().collect::<Vec<_>>().join(","),
                objects.collect::<Vec<_>>().join("; "),
                groups.collect::<Vec<_>>().join("; "),
            ]);
        }
    });
    if grid.is_empty() {
        let UserName { name, host } = of;
        let text = format!("There is no such grant defined for user '{name}' on host '{host}'");
        return Err(Error::Name(Problem::Grant, text));
    }
    Ok(grid)
}

fn processes(engine: &Engine, connection: &Connection, full: bool) -> Grid {
    let user = &connection.user;
    let mut grid = Grid::new(&[
        ("Id", INT),
        ("User", TEXT),
        ("Host", TEXT),
        ("db", TEXT),
        ("Command", TEXT),
        ("Time", INT),
        ("State", TEXT),
        ("Info", TEXT),
        ("QueryId", TEXT),
        ("WorkloadGroup", TEXT),
        ("WaitsFor", TEXT),
    ]);
    let sees_all = engine.is_admin(user);
    let queries = engine.queries.all();
    let seen = queries.iter().filter(|query| sees_all || query.identity.user == *user);
    let seen: BTreeMap<u64, u32> = seen.map(|one| (one.identity.number, one.identity.connection)).collect();
    for other in engine.connections.all().iter().filter(|other| sees_all || other.user == *user) {
        let query = other.current().filter(|query| !query.is_done());
        let since = query.as_ref().map_or(other.since(), |query| query.timing.arrived());
        let none = || ScalarValue::Utf8(None);
        // This statement itself is no query.
        let name = if full { "SHOW FULL PROCESSLIST" } else { "SHOW PROCESSLIST" };
        let itself = (other.id == connection.id).then_some(name);
        let info = query.as_ref().map(|query| {
            let sql = &query.identity.sql;
            let end = sql.char_indices().nth(SHORT).map_or(sql.len(), |(end, _)| end);
            if full { sql.clone() } else { sql.get(..end).unwrap_or_default().to_owned() }
        });
        let info = itself.map(str::to_owned).or(info);
        grid.row(vec![
            int(u64::from(other.id)),
            text(&other.user.name),
            text(&other.host),
            text(other.database()),
            text(if info.is_some() { "Query" } else { "Sleep" }),
            int(since.elapsed().as_secs()),
            text(query.as_ref().map_or("", |query| system::state(query))),
            info.map_or_else(none, text),
            query.as_ref().map_or_else(none, |query| text(&query.identity.id)),
            query.as_ref().map_or_else(none, |query| text(&query.group().name)),
            query.as_ref().and_then(|query| place_of(query, &seen)).map_or_else(none, text),
        ]);
    }
    grid
}

/// Returns what a query in a queue waits for, and the connections among these that have it.
fn place_of(query: &Query, connections: &BTreeMap<u64, u32>) -> Option<String> {
    let (ahead, running) = query.home().queue.ahead_of(query.identity.number)?;
    let holders = running.iter().filter_map(|number| Some(connections.get(number)?.to_string()));
    let holders: Vec<String> = holders.collect();
    let place = format!("a place in {}, {ahead} queries before it", query.home().name);
    Some(match holders.as_slice() {
        [] => place,
        all => format!("{place}; places are taken by connections {}", all.join(", ")),
    })
}

/// Returns MySQL's name for an Arrow type.
#[must_use]
pub fn type_name(kind: &DataType) -> String {
    match kind {
        // Truth values are sent as TINYINT(1).
        DataType::Boolean => "tinyint(1)".to_owned(),
        DataType::Int8 => "tinyint".to_owned(),
        DataType::Int16 => "smallint".to_owned(),
        DataType::Int32 => "int".to_owned(),
        DataType::Int64 => "bigint".to_owned(),
        DataType::UInt8 => "tinyint unsigned".to_owned(),
        DataType::UInt16 => "smallint unsigned".to_owned(),
        DataType::UInt32 => "int unsigned".to_owned(),
        DataType::UInt64 => "bigint unsigned".to_owned(),
        DataType::Float16 | DataType::Float32 => "float".to_owned(),
        DataType::Float64 => "double".to_owned(),
        DataType::Date32 | DataType::Date64 => "date".to_owned(),
        DataType::Timestamp(..) => "datetime".to_owned(),
        DataType::Duration(_) | DataType::Time32(_) | DataType::Time64(_) => "time".to_owned(),
        DataType::Decimal128(precision, scale) => format!("decimal({precision},{scale})"),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "blob".to_owned(),
        _ => "text".to_owned(),
    }
}

/// Returns a table's columns.
#[must_use]
pub fn described(form: Described, table: &str, schema: &Schema) -> Grid {
    let is_full = form == Described::FullColumns;
    if form == Described::Create {
        let mut grid = Grid::texts(&["Table", "Create Table"]);
        grid.text_row([table, &create_table(table, schema)]);
        return grid;
    }
    let titles: &[&str] = match is_full {
        true => &["Field", "Type", "Collation", "Null", "Key", "Default", "Extra", "Privileges", "Comment"],
        false => &["Field", "Type", "Null", "Key", "Default", "Extra"],
    };
    let mut grid = Grid::texts(titles);
    for field in schema.fields() {
        let kind = type_name(field.data_type());
        let collation = if kind == "text" { text("utf8mb4_general_ci") } else { ScalarValue::Utf8(None) };
        let null = text(if field.is_nullable() { "YES" } else { "NO" });
        let (head, tail) =
            ([text(field.name()), text(kind)], [null, text(""), ScalarValue::Utf8(None), text("")]);
        let full = |values: Vec<ScalarValue>| if is_full { values } else { Vec::new() };
        let more = full(vec![text("select"), text("")]);
        grid.row(head.into_iter().chain(full(vec![collation])).chain(tail).chain(more).collect());
    }
    grid
}

/// Writes the statement that would make a table with these columns in MySQL, from which SQLAlchemy reads them.
fn create_table(table: &str, schema: &Schema) -> String {
    let column = |field: &Arc<Field>| {
        let kind = type_name(field.data_type());
        let default = match (field.is_nullable(), kind.as_str()) {
            (false, _) => " NOT NULL",
            // These have no default in MySQL.
            (true, "text" | "blob") => "",
            (true, _) => " DEFAULT NULL",
        };
        format!("  {} {kind}{default}", in_backticks(field.name()))
    };
    let columns: Vec<String> = schema.fields().iter().map(column).collect();
    format!(
        "CREATE TABLE {} (\n{}\n) ENGINE=Files DEFAULT CHARSET=utf8mb4",
        in_backticks(table),
        columns.join(",\n")
    )
}

/// Returns the call in `DESC FUNCTION call(...)`; `None` for other statements.
#[must_use]
pub fn described_function(sql: &str) -> Option<&str> {
    let mut rest = sql.trim_start();
    for words in [&["describe", "desc"][..], &["function"]] {
        let end = rest.find(char::is_whitespace)?;
        let (word, after) = rest.split_at(end);
        words.iter().find(|wanted| wanted.eq_ignore_ascii_case(word))?;
        rest = after.trim_start();
    }
    Some(rest)
}

/// Returns the response to a statement that this module handles; `None` if the query engine must run the statement.
///
/// # Errors
/// A database does not exist, or a SHOW statement is not supported.
pub fn instead(
    engine: &Engine,
    connection: &Connection,
    parsed: &Parsed,
) -> Result<Option<ShowRewrite>, Error> {
    let Parsed::Statement(statement) = parsed else { return Ok(None) };
    let database = || connection.database();
    Ok(Some(match statement.as_ref() {
        ast::Statement::StartTransaction { .. } => {
            connection.set_in_transaction(true);
            ShowRewrite::Done
        }
        ast::Statement::Commit { chain, .. } | ast::Statement::Rollback { chain, savepoint: None } => {
            connection.set_in_transaction(*chain);
            ShowRewrite::Done
        }
        ast::Statement::Savepoint { .. }
        | ast::Statement::ReleaseSavepoint { .. }
        | ast::Statement::LockTables { .. }
        | ast::Statement::UnlockTables
        | ast::Statement::Rollback { .. } => ShowRewrite::Done,
        ast::Statement::Use(Use::Object(name) | Use::Database(name)) => {
            choose(engine, connection, &last(name))?;
            ShowRewrite::Done
        }
        ast::Statement::ShowDatabases { show_options, .. }
        | ast::Statement::ShowSchemas { show_options, .. } => {
            let mut grid = Grid::texts(&[format!("Database{}", shown_pattern(show_options))]);
            let databases =
                engine.storage.data.databases().into_iter().chain([INFORMATION_SCHEMA.to_owned()]);
            databases.filter(|name| passes(show_options, name)).for_each(|name| grid.text_row([name]));
            ShowRewrite::Grid(grid)
        }
        ast::Statement::ShowTables { show_options, full, .. } => {
            let database = place(show_options).map_or_else(database, |(_, name)| name);
            ShowRewrite::Grid(tables(engine, &database, *full, show_options)?)
        }
        ast::Statement::ShowColumns { show_options, full, .. } => {
            let Some((schema, table)) = place(show_options) else { return Ok(None) };
            let form = if *full { Described::FullColumns } else { Described::Columns };
            ShowRewrite::Describe { form, database: schema.unwrap_or_else(database), table }
        }
        ast::Statement::ExplainTable { table_name, .. } => {
            let (schema, table) = parts(table_name);
            let form = Described::Columns;
            ShowRewrite::Describe { form, database: schema.unwrap_or_else(database), table }
        }
        ast::Statement::ShowCreate { obj_type: ShowCreateObject::Table, obj_name } => {
            let (schema, table) = parts(obj_name);
            let form = Described::Create;
            ShowRewrite::Describe { form, database: schema.unwrap_or_else(database), table }
        }
        ast::Statement::ShowStatus { .. } => {
            let mut grid = Grid::texts(&["Variable_name", "Value"]);
            for (name, value) in status::all(engine, Some(connection)) {
                grid.text_row([name, value]);
            }
            ShowRewrite::Grid(grid)
        }
        ast::Statement::ShowVariable { variable } => {
            let words: Vec<String> = variable.iter().map(|word| word.value.to_lowercase()).collect();
            match words.first().map(String::as_str) {
                Some("errors") => ShowRewrite::Grid(Grid::texts(&["Level", "Code", "Message"])),
                _ => return Err(Error::Unsupported(format!("SHOW {} is not supported", words.join(" ")))),
            }
        }
        ast::Statement::Drop {
            object_type: ObjectType::Table | ObjectType::View, if_exists, names, ..
        } => drop_tables(engine, connection, names, *if_exists)?,
        ast::Statement::Call(call) => return Err(no_procedure(&call.name, &database())),
        _ => return Ok(None),
    }))
}

/// Returns the error of CALL: there are no procedures.
fn no_procedure(name: &ObjectName, database: &str) -> Error {
    let (schema, name) = parts(name);
    let schema = schema.unwrap_or_else(|| database.to_owned());
    Error::Name(Problem::Function, format!("PROCEDURE {schema}.{name} does not exist"))
}

/// Answers a DROP TABLE. Only of tables that do not exist is there an answer: the data is not dropped by statements.
fn drop_tables(
    engine: &Engine,
    connection: &Connection,
    names: &[ObjectName],
    if_exists: bool,
) -> Result<ShowRewrite, Error> {
    let all: Vec<(String, String)> = names
        .iter()
        .map(parts)
        .map(|(schema, table)| (schema.unwrap_or_else(|| connection.database()), table))
        .collect();
    let is_known = |schema: &str, table: &str| match schema.eq_ignore_ascii_case(INFORMATION_SCHEMA) {
        true => system::System::names().iter().any(|name| name.eq_ignore_ascii_case(table)),
        false => engine.storage.data.locate(schema, table).is_some(),
    };
    let unknown = all.iter().filter(|(schema, table)| !is_known(schema, table));
    let unknown: Vec<String> = unknown.map(|(schema, table)| format!("{schema}.{table}")).collect();
    if !if_exists && !unknown.is_empty() {
        return Err(Error::Name(Problem::Dropped, format!("Unknown table '{}'", unknown.join(","))));
    }
    if unknown.len() < all.len() {
        let text = "DROP TABLE is not supported: remove the table's files from the data folder";
        return Err(Error::Unsupported(text.to_owned()));
    }
    connection.set_warnings(unknown.iter().map(|name| format!("Unknown table '{name}'")).collect());
    Ok(ShowRewrite::Done)
}

/// Whether [`instead`] answers a statement.
#[must_use]
pub fn is_handled(parsed: &Parsed) -> bool {
    let Parsed::Statement(statement) = parsed else { return false };
    matches!(
        statement.as_ref(),
        ast::Statement::StartTransaction { .. }
            | ast::Statement::Savepoint { .. }
            | ast::Statement::ReleaseSavepoint { .. }
            | ast::Statement::LockTables { .. }
            | ast::Statement::UnlockTables
            | ast::Statement::Commit { .. }
            | ast::Statement::Rollback { .. }
            | ast::Statement::Use(_)
            | ast::Statement::ShowDatabases { .. }
            | ast::Statement::ShowSchemas { .. }
            | ast::Statement::ShowTables { .. }
            | ast::Statement::ShowColumns { .. }
            | ast::Statement::ExplainTable { .. }
            | ast::Statement::ShowCreate { .. }
            | ast::Statement::ShowStatus { .. }
            | ast::Statement::ShowVariable { .. }
            | ast::Statement::Drop { object_type: ObjectType::Table | ObjectType::View, .. }
            | ast::Statement::Call(_)
    )
}

/// Sets the session's current database.
///
/// # Errors
/// The database does not exist.
pub fn choose(engine: &Engine, connection: &Connection, database: &str) -> Result<(), Error> {
    let system = database.eq_ignore_ascii_case(INFORMATION_SCHEMA);
    if !system && !engine.storage.data.has_database(database) {
        return Err(Error::unknown_database(database));
    }
    connection.set_database(if system { INFORMATION_SCHEMA } else { database });
    Ok(())
}

fn tables(
    engine: &Engine,
    database: &str,
    full: bool,
    options: &ShowStatementOptions,
) -> Result<Grid, Error> {
    let system = database.eq_ignore_ascii_case(INFORMATION_SCHEMA);
    if !system && !engine.storage.data.has_database(database) {
        return Err(Error::unknown_database(database));
    }
    let names = if system { system::System::names() } else { engine.storage.data.tables(database) };
    let title = format!("Tables_in_{database}{}", shown_pattern(options));
    let titles: &[&str] = if full { &[&title, "Table_type"] } else { &[&title] };
    let mut grid = Grid::texts(titles);
    for name in names.into_iter().filter(|name| passes(options, name)) {
        let kind = if system { "SYSTEM VIEW" } else { "BASE TABLE" };
        grid.text_row([name, kind.to_owned()].into_iter().take(titles.len()));
    }
    Ok(grid)
}

/// Returns the pattern of a SHOW statement as MySQL shows it in a title.
fn shown_pattern(options: &ShowStatementOptions) -> String {
    match &options.filter_position {
        Some(
            ShowStatementFilterPosition::Infix(ShowStatementFilter::Like(pattern))
            | ShowStatementFilterPosition::Suffix(ShowStatementFilter::Like(pattern)),
        ) => format!(" ({pattern})"),
        _ => String::new(),
    }
}

/// Whether a name matches the LIKE or ILIKE of a SHOW statement.
fn passes(options: &ShowStatementOptions, name: &str) -> bool {
    let filter = match &options.filter_position {
        Some(ShowStatementFilterPosition::Infix(filter) | ShowStatementFilterPosition::Suffix(filter)) => {
            filter
        }
        None => return true,
    };
    match filter {
        ShowStatementFilter::Like(pattern) => is_like(like, pattern, name),
        ShowStatementFilter::ILike(pattern) => is_like(ilike, pattern, name),
        ShowStatementFilter::Where(_) | ShowStatementFilter::NoKeyword(_) => true,
    }
}

/// Returns the filter of a SHOW statement.
#[must_use]
pub fn filter(parsed: &Parsed) -> Option<&ShowStatementFilter> {
    let Parsed::Statement(statement) = parsed else { return None };
    let options = match statement.as_ref() {
        ast::Statement::ShowStatus { filter, .. } => return filter.as_ref(),
        ast::Statement::ShowDatabases { show_options, .. }
        | ast::Statement::ShowSchemas { show_options, .. }
        | ast::Statement::ShowTables { show_options, .. }
        | ast::Statement::ShowColumns { show_options, .. } => show_options,
        _ => return None,
    };
    match options.filter_position.as_ref()? {
        ShowStatementFilterPosition::Infix(filter) | ShowStatementFilterPosition::Suffix(filter) => {
            Some(filter)
        }
    }
}

/// Parses the condition of a SHOW statement.
///
/// # Errors
/// It is no condition.
pub fn condition(state: &SessionState, text: &str) -> Result<ShowStatementFilter, Error> {
    let parsed = dialect::parse(state, &format!("SHOW TABLES WHERE {text}"))?;
    filter(&parsed).cloned().ok_or_else(|| Error::Syntax(format!("{text} is not a condition")))
}

/// Returns the rows that pass the filter of a SHOW statement: a pattern of the first column, or a condition.
///
/// # Errors
/// The condition cannot be evaluated.
pub fn filtered(
    state: &SessionState,
    grid: &Grid,
    filter: Option<&ShowStatementFilter>,
) -> Result<RecordBatch, Error> {
    let batch = grid.batch()?;
    let schema = batch.schema();
    let first = || Box::new(ast::Expr::Identifier(Ident::new(schema.field(0).name())));
    let pattern =
        |pattern: &String| Box::new(ast::Expr::Value(ast::Value::SingleQuotedString(pattern.clone()).into()));
    let (negated, any, escape_char) = (false, false, None);
    // Names of tables and databases have case, like those of files; other names have none.
    let has_case = ["Database", "Tables_in_"].iter().any(|title| schema.field(0).name().starts_with(title));
    let mut condition = match filter {
        Some(ShowStatementFilter::Where(condition)) => condition.clone(),
        Some(ShowStatementFilter::Like(text)) if has_case => {
            ast::Expr::Like { negated, any, expr: first(), pattern: pattern(text), escape_char }
        }
        Some(ShowStatementFilter::Like(text) | ShowStatementFilter::ILike(text)) => {
            ast::Expr::ILike { negated, any, expr: first(), pattern: pattern(text), escape_char }
        }
        Some(ShowStatementFilter::NoKeyword(_)) | None => return Ok(batch),
    };
    // The names of columns have no case.
    let _: ControlFlow<()> = ast::visit_expressions_mut(&mut condition, |expr| {
        if let ast::Expr::Identifier(name) = expr
            && let Some(field) =
                schema.fields().iter().find(|field| field.name().eq_ignore_ascii_case(&name.value))
        {
            name.value.clone_from(field.name());
        }
        ControlFlow::Continue(())
    });
    let columns = DFSchema::try_from(schema.as_ref().clone())?;
    let expr =
        state.create_logical_expr_from_sql_expr(ExprWithAlias { expr: condition, alias: None }, &columns)?;
    let kept = state.create_physical_expr(expr, &columns)?.evaluate(&batch)?.into_array(batch.num_rows())?;
    let Some(kept) = kept.as_boolean_opt() else {
        return Err(Error::Unsupported("the WHERE of SHOW needs a condition".to_owned()));
    };
    filter_record_batch(&batch, kept).map_err(|error| Error::Engine(error.to_string()))
}

fn place(options: &ShowStatementOptions) -> Option<(Option<String>, String)> {
    options.show_in.as_ref().and_then(|place| place.parent_name.as_ref()).map(parts)
}

/// Returns the last two parts of a name.
fn parts(name: &ObjectName) -> (Option<String>, String) {
    let mut parts: Vec<String> =
        name.0.iter().filter_map(|part| part.as_ident()).map(|part| part.value.clone()).collect();
    let last = parts.pop().unwrap_or_default();
    (parts.pop(), last)
}

fn last(name: &ObjectName) -> String {
    parts(name).1
}

#[cfg(test)]
mod tests {
    use super::described_function;

    #[test]
    fn functions_that_are_described() {
        assert_eq!(described_function("DESC FUNCTION s3 (\"a\" = \"b\")"), Some("s3 (\"a\" = \"b\")"));
        assert_eq!(described_function(" describe\n function local()"), Some("local()"));
        assert_eq!(described_function("desc hits"), None);
        assert_eq!(described_function("desc"), None);
    }
}
