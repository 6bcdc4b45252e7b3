//! The tables of `information_schema` that Doris has for workload groups, with its columns and types, and ours at the end.

use super::Engine;
use super::error::Error;
use super::grid::{Grid, INT, REAL, TEXT, int, real, text};
use super::query::Query;
use crate::statement::UserName;
use datafusion::catalog::TableProvider;
use datafusion::catalog::information_schema::INFORMATION_SCHEMA_TABLES;
use datafusion::datasource::MemTable;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The database of the system's tables.
pub const INFORMATION_SCHEMA: &str = "information_schema";

/// There is one backend, this process.
const BACKEND: u64 = 1;

/// The tables as one user sees them.
#[derive(Debug)]
pub struct System<'a> {
    engine: &'a Engine,
    user: &'a UserName,
}

impl<'a> System<'a> {
    /// As `user` sees them.
    #[must_use]
    pub fn new(engine: &'a Engine, user: &'a UserName) -> Self {
        System { engine, user }
    }

    /// Names of all tables there.
    #[must_use]
    pub fn names() -> Vec<String> {
        let ours = ["workload_group_resource_usage", "backend_active_tasks"];
        let theirs = INFORMATION_SCHEMA_TABLES.iter().copied();
        ours.into_iter().chain(theirs).map(str::to_owned).collect()
    }

    /// The table as it is now; `None` when it is none of ours. Names count without regard to case.
    ///
    /// # Errors
    /// A mistake in this program.
    pub fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>, Error> {
        let grid = match name.to_ascii_lowercase().as_str() {
            "workload_group_resource_usage" => self.usage(),
            "backend_active_tasks" => self.tasks(),
            _ => return Ok(None),
        };
        let batch = grid.batch()?;
        let table = MemTable::try_new(batch.schema(), vec![vec![batch]])?;
        Ok(Some(Arc::new(table)))
    }

    fn usage(&self) -> Grid {
        let mut grid = Grid::new(&[
            ("BE_ID", INT),
            ("WORKLOAD_GROUP_ID", INT),
            ("MEMORY_USAGE_BYTES", INT),
            ("CPU_USAGE_PERCENT", REAL),
            ("LOCAL_SCAN_BYTES_PER_SECOND", INT),
            ("REMOTE_SCAN_BYTES_PER_SECOND", INT),
            ("NAME", TEXT),
            ("MEMORY_PEAK_BYTES", INT),
            ("CPU_THROTTLED_USEC", INT),
            ("KILLED_QUERIES", INT),
            ("RUNNING_QUERIES", INT),
            ("QUEUED_QUERIES", INT),
        ]);
        for group in self.engine.groups().values() {
            let rates = group.rates();
            let (peak, killed) = group.memory.peak_and_ended();
            let (running, waiting) = group.queue.lengths();
            grid.row(vec![
                int(BACKEND),
                int(group.id),
                int(group.memory.used() as u64),
                // Two digits, as Doris has it.
                real((rates.cpu_percent * 100.0).round() / 100.0),
                int(rates.local),
                int(rates.remote),
                text(&group.name),
                int(peak as u64),
                int(group.cpu.throttled_ns() / 1_000),
                int(killed),
                int(running as u64),
                int(waiting as u64),
            ]);
        }
        grid
    }

    fn tasks(&self) -> Grid {
        let mut grid = Grid::new(&[
            ("BE_ID", INT),
            ("FE_HOST", TEXT),
            ("WORKLOAD_GROUP_ID", INT),
            ("QUERY_ID", TEXT),
            ("TASK_TIME_MS", INT),
            ("TASK_CPU_TIME_MS", INT),
            ("SCAN_ROWS", INT),
            ("SCAN_BYTES", INT),
            ("BE_PEAK_MEMORY_BYTES", INT),
            ("CURRENT_USED_MEMORY_BYTES", INT),
            ("SHUFFLE_SEND_BYTES", INT),
            ("SHUFFLE_SEND_ROWS", INT),
            ("QUERY_TYPE", TEXT),
            ("SPILL_WRITE_BYTES_TO_LOCAL_STORAGE", INT),
            ("SCAN_BYTES_FROM_LOCAL_STORAGE", INT),
            ("SCAN_BYTES_FROM_REMOTE_STORAGE", INT),
            ("STATE", TEXT),
            ("QUEUE_TIME_MS", INT),
            ("USER", TEXT),
        ]);
        for query in self.engine.queries().iter().filter(|query| self.sees(query)) {
            let group = query.group();
            let (held, peak) = group.memory.of(query.number);
            let (local, remote) = query.scan_bytes();
            let queued = query.begun().map_or(query.arrived.elapsed(), |begun| begun - query.arrived);
            grid.row(vec![
                int(BACKEND),
                text("127.0.0.1"),
                int(group.id),
                text(&query.id),
                int(query.arrived.elapsed().as_millis() as u64),
                int(query.cpu_ns.load(Relaxed) / 1_000_000),
                int(query.scan_rows()),
                int(local + remote),
                int(peak as u64),
                int(held as u64),
                int(0),
                int(0),
                text("SELECT"),
                int(query.spilled_bytes.load(Relaxed)),
                int(local),
                int(remote),
                text(state(query)),
                int(queued.as_millis() as u64),
                text(&query.user.name),
            ]);
        }
        grid
    }

    /// Everybody sees their own queries, an administrator all.
    fn sees(&self, query: &Query) -> bool {
        query.user == *self.user || self.engine.is_admin(self.user)
    }
}

/// What a query is doing, in a word.
#[must_use]
pub fn state(query: &Query) -> &'static str {
    match (query.ended().is_some(), query.begun().is_some()) {
        (true, _) => "CANCELLING",
        (false, true) => "RUNNING",
        (false, false) => "QUEUED",
    }
}
