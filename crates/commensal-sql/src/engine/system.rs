//! The tables of `information_schema` that Doris has for workload groups: Doris' columns and types, followed by
//! additional columns.

use super::Engine;
use super::connections::Connection;
use super::error::Error;
use super::grid::{Grid, INT, REAL, TEXT, int, real, text};
use super::mysql_tables;
use super::query::Query;
use super::status;
use super::variables::Variables;
use crate::catalog::tables::{
    ACTIVE_TASKS, GROUPS, Kind, POLICIES, PRIVILEGES, READS, RESOURCE_USAGE, SLOW_QUERIES, Table,
};
use crate::property::{self, Cell, PropertyRow, Shown};
use crate::statement::UserName;
use chrono::{DateTime, Utc};
use datafusion::arrow::datatypes::DataType;
use datafusion::catalog::TableProvider;
use datafusion::catalog::information_schema::INFORMATION_SCHEMA_TABLES;
use datafusion::common::ScalarValue;
use datafusion::datasource::MemTable;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The backend number: there is one backend, this process.
const BACKEND: u64 = 1;

/// Tables of MySQL and MariaDB about what runs.
const MYSQLS: [&str; 5] =
    ["processlist", "global_status", "session_status", "global_variables", "session_variables"];

const OURS: [Table; 7] = [RESOURCE_USAGE, READS, GROUPS, ACTIVE_TASKS, SLOW_QUERIES, POLICIES, PRIVILEGES];

/// Additional columns of [`RESOURCE_USAGE`].
const USAGE_OURS: [(&str, DataType); 8] = [
    ("NAME", TEXT),
    ("MEMORY_PEAK_BYTES", INT),
    ("CPU_THROTTLED_USEC", INT),
    ("KILLED_QUERIES", INT),
    ("RUNNING_QUERIES", INT),
    ("QUEUED_QUERIES", INT),
    ("CPU_LIMIT_BY", TEXT),
    ("WORKER", TEXT),
];

/// Additional columns of [`ACTIVE_TASKS`]; Doris has the first two since 2.1.8.
const TASKS_OURS: [(&str, DataType); 5] = [
    ("SCAN_BYTES_FROM_LOCAL_STORAGE", INT),
    ("SCAN_BYTES_FROM_REMOTE_STORAGE", INT),
    ("STATE", TEXT),
    ("QUEUE_TIME_MS", INT),
    ("USER", TEXT),
];

/// The tables with the rows that one user may see.
#[derive(Debug)]
pub struct System<'a> {
    engine: &'a Engine,
    user: &'a UserName,
    /// Number of the user's connection.
    connection: u32,
}

/// Creates an empty table with Doris' columns and the additional ones.
fn grid(table: &Table, ours: &[(&str, DataType)]) -> Grid {
    let kind = |kind: &Kind| match kind {
        Kind::Bigint => INT,
        Kind::Int => DataType::Int32,
        Kind::Double => REAL,
        Kind::Boolean => DataType::Boolean,
        Kind::Varchar => TEXT,
    };
    let theirs = table.columns.iter().map(|(name, of)| (*name, kind(of)));
    Grid::new(&theirs.chain(ours.iter().cloned()).collect::<Vec<_>>())
}

/// Creates an integer value that may be -1.
fn signed(value: i64) -> ScalarValue {
    ScalarValue::Int64(Some(value))
}

impl<'a> System<'a> {
    /// Creates the tables with the rows that `user` may see on a connection.
    #[must_use]
    pub fn new(engine: &'a Engine, user: &'a UserName, connection: u32) -> Self {
        System { engine, user, connection }
    }

    fn session(&self) -> Option<Arc<Connection>> {
        self.engine.connections.get(self.connection.into())
    }

    /// Returns the names of all tables in `information_schema`, including DataFusion's.
    #[must_use]
    pub fn names() -> Vec<String> {
        let ours = OURS.iter().map(|table| table.name).chain(MYSQLS).chain(mysql_tables::names());
        let all =
            ours.chain(["statistics", "key_column_usage"]).chain(INFORMATION_SCHEMA_TABLES.iter().copied());
        let all: BTreeSet<&str> = all.collect();
        all.into_iter().map(str::to_owned).collect()
    }

    /// Whether this is the name of a table for workload groups.
    #[must_use]
    pub fn has(name: &str) -> bool {
        OURS.iter().any(|table| table.name.eq_ignore_ascii_case(name))
    }

    /// Returns the table with its current rows; `None` for other names. Names are compared case-insensitively.
    ///
    /// # Errors
    /// The rows do not match the columns: a bug in this program.
    pub fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>, Error> {
        let is = |table: &Table| table.name.eq_ignore_ascii_case(name);
        let grid = if is(&RESOURCE_USAGE) {
            self.usage()
        } else if is(&READS) {
            self.reads()
        } else if is(&ACTIVE_TASKS) {
            self.tasks()
        } else if is(&SLOW_QUERIES) {
            self.slow_queries()
        } else if is(&GROUPS) {
            self.groups()
        } else if is(&POLICIES) {
            self.policies()
        } else if is(&PRIVILEGES) {
            self.privileges()
        } else {
            match name.to_ascii_lowercase().as_str() {
                "processlist" => self.processes(),
                "global_status" => variables(status::all(self.engine, None)),
                "session_status" => variables(status::all(self.engine, self.session().as_deref())),
                "global_variables" => system_variables(&Variables::default()),
                "session_variables" => {
                    let session = self.session().map(|connection| connection.variables());
                    system_variables(&session.unwrap_or_default())
                }
                _ => return Ok(None),
            }
        };
        let batch = grid.batch()?;
        let table = MemTable::try_new(batch.schema(), vec![vec![batch]])?;
        Ok(Some(Arc::new(table)))
    }

    fn usage(&self) -> Grid {
        let mut grid = grid(&RESOURCE_USAGE, &USAGE_OURS);
        for group in self.engine.groups().values() {
            let rates = group.rates();
            let (peak, killed) = group.memory.peak_and_ended();
            let (running, waiting) = group.queue.lengths();
            let heard = group.worker.total();
            let limited = group.settings().cpu_max.is_some();
            grid.row(vec![
                int(BACKEND),
                int(group.id),
                int(group.memory.all() as u64),
                // Rounded to two decimals, as in Doris.
                real((rates.cpu_percent * 100.0).round() / 100.0),
                int(rates.local),
                int(rates.remote),
                text(&group.name),
                int(peak as u64),
                int((group.cpu.throttled_ns() + heard.throttled_ns) / 1_000),
                int(killed),
                int(running as u64),
                int(waiting as u64),
                text(match (limited, heard.quota) {
                    (false, _) => "",
                    (true, true) => "kernel",
                    (true, false) => "tokens",
                }),
                text(group.worker.state()),
            ]);
        }
        grid
    }

    /// Creates one row for each device and store that a group has read from, with the rate of the last full second.
    fn reads(&self) -> Grid {
        let mut grid = grid(&READS, &[]);
        for group in self.engine.groups().values() {
            let settings = group.settings();
            for reads in group.all_reads() {
                let (kind, limit) = match reads.remote {
                    false => ("local", settings.local_read),
                    true => ("remote", settings.remote_read),
                };
                grid.row(vec![
                    int(group.id),
                    text(&group.name),
                    text(kind),
                    text(reads.source),
                    limit.map_or(signed(-1), |limit| int(limit.0)),
                    int(reads.last_second_bytes),
                    int(reads.delivered_bytes),
                    int(reads.requests),
                    int(reads.waits),
                    int(reads.waited_ms),
                    int(reads.waiting),
                ]);
            }
        }
        grid
    }

    fn tasks(&self) -> Grid {
        let mut grid = grid(&ACTIVE_TASKS, &TASKS_OURS);
        for query in self.engine.queries.all().iter().filter(|query| self.sees(&query.identity.user)) {
            let (group, usage) = (query.group(), &query.usage);
            let (held, peak) = group.memory.of(query.identity.number);
            let (local, remote) = query.scan_bytes();
            grid.row(vec![
                int(BACKEND),
                text("127.0.0.1"),
                int(group.id),
                text(&query.identity.id),
                int(query.timing.arrived().elapsed().as_millis() as u64),
                int(usage.cpu_ns() / 1_000_000),
                int(usage.scan_rows()),
                int(local + remote),
                int(peak as u64),
                int(held as u64),
                int(0),
                int(0),
                text("SELECT"),
                int(usage.spilled_bytes()),
                int(usage.unspilled_bytes()),
                int(local),
                int(remote),
                text(state(query)),
                int(query.timing.queued().as_millis() as u64),
                text(&query.identity.user.name),
            ]);
        }
        grid
    }

    fn slow_queries(&self) -> Grid {
        let mut grid = grid(&SLOW_QUERIES, &[]);
        for slow in self.engine.queries.slow().into_iter().filter(|slow| self.sees(&slow.identity.user)) {
            let (waits, (local, remote)) = (slow.waits, slow.scan_bytes);
            let ms = |time: Duration| int(time.as_millis() as u64);
            let ended = DateTime::<Utc>::from(slow.ended).format("%Y-%m-%d %H:%M:%S");
            grid.row(vec![
                text(slow.identity.id),
                text(slow.identity.user.name),
                text(slow.group),
                text(ended.to_string()),
                ms(slow.took),
                ms(waits.queue),
                ms(waits.memory),
                ms(waits.cpu),
                ms(waits.local),
                ms(waits.remote),
                ms(waits.sleep),
                int(slow.cpu_ns / 1_000_000),
                int(slow.scan_rows),
                int(local),
                int(remote),
                int(slow.peak as u64),
                int(slow.spilled_bytes),
                ScalarValue::Utf8(slow.failure),
                text(slow.identity.sql),
            ]);
        }
        grid
    }

    /// Creates one row for each connection, as in MySQL.
    fn processes(&self) -> Grid {
        let mut grid = Grid::new(&[
            ("ID", INT),
            ("USER", TEXT),
            ("HOST", TEXT),
            ("DB", TEXT),
            ("COMMAND", TEXT),
            ("TIME", INT),
            ("STATE", TEXT),
            ("INFO", TEXT),
        ]);
        let sees_all = self.engine.is_admin(self.user);
        for other in self.engine.connections.all().iter().filter(|other| sees_all || other.user == *self.user)
        {
            let query = other.current().filter(|query| !query.is_done());
            grid.row(vec![
                int(u64::from(other.id)),
                text(&other.user.name),
                text(&other.host),
                text(other.database()),
                text(if query.is_some() { "Query" } else { "Sleep" }),
                int(other.since().elapsed().as_secs()),
                text(query.as_ref().map_or("", |query| state(query))),
                query.as_ref().map_or(ScalarValue::Utf8(None), |query| text(&query.identity.sql)),
            ]);
        }
        grid
    }

    fn groups(&self) -> Grid {
        let properties = property::columns();
        let kind = |row: &PropertyRow| match row.shown {
            Shown::Number(_) => INT,
            Shown::Text(_) => TEXT,
        };
        let names: Vec<String> = properties.iter().map(|row| row.name.to_uppercase()).collect();
        let columns = names.iter().zip(&properties).map(|(name, row)| (name.as_str(), kind(row)));
        let mut grid = grid(&GROUPS, &columns.chain([("VERSION", INT)]).collect::<Vec<_>>());
        for group in self.engine.with_catalog(|catalog| catalog.group_rows(self.user)) {
            let cells = properties.iter().map(|row| match group.cell(row) {
                Cell::Number(number) => signed(number),
                Cell::Text(shown) => text(shown),
            });
            let head = [signed(group.id), text(&group.name)];
            grid.row(head.into_iter().chain(cells).chain([signed(group.version)]).collect());
        }
        grid
    }

    fn policies(&self) -> Grid {
        let mut grid = grid(&POLICIES, &[]);
        for row in self.engine.with_catalog(|catalog| catalog.policy_rows(self.user)) {
            grid.row(vec![
                signed(row.id),
                text(row.name),
                text(row.condition),
                text(row.action),
                ScalarValue::Int32(Some(row.priority)),
                ScalarValue::Boolean(Some(row.enabled)),
                ScalarValue::Int32(Some(row.version)),
                text(row.workload_group),
            ]);
        }
        grid
    }

    fn privileges(&self) -> Grid {
        let mut grid = grid(&PRIVILEGES, &[]);
        for row in self.engine.with_catalog(|catalog| catalog.privilege_rows(self.user)) {
            let cells =
                [row.grantee, row.workload_group_name, row.privilege_type.into(), row.is_grantable.into()];
            grid.text_row(cells);
        }
        grid
    }

    /// Whether the user may see the queries of a user: users see their own, an administrator sees all.
    fn sees(&self, of: &UserName) -> bool {
        of == self.user || self.engine.is_admin(self.user)
    }
}

/// Creates a table of system variables.
fn system_variables(of: &Variables) -> Grid {
    variables(of.all(|_| true).into_iter().map(|(name, value)| (name.to_uppercase(), value)))
}

/// Creates a table of variables.
fn variables(all: impl IntoIterator<Item = (String, String)>) -> Grid {
    let mut grid = Grid::texts(&["VARIABLE_NAME", "VARIABLE_VALUE"]);
    for (name, value) in all {
        grid.text_row([name, value]);
    }
    grid
}

/// Returns the state of a query as one word.
#[must_use]
pub fn state(query: &Query) -> &'static str {
    match (query.ended().is_some(), query.timing.begun().is_some()) {
        (true, _) => "CANCELLING",
        (false, true) => "RUNNING",
        (false, false) => "QUEUED",
    }
}
