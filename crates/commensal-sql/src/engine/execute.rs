//! Runs one statement: plans and executes it on the threads of the query's group, and returns its rows in batches.
//!
//! Where a query runs is decided in [`start`]: on the group's threads, or in the group's worker process.

use super::Engine;
use super::cpu::Charged;
use super::data::TableSource;
use super::error::Error;
use super::grid::{Grid, INT, int};
use super::group::Group;
use super::pace::paced;
use super::pool::QueryPool;
use super::query::Query;
use super::queue::Ticket as Slot;
use super::remote::{self, Remote};
use super::rewrite::{self, Call};
use super::schema::{CATALOG, Names};
use super::stores::{Spill, Stores};
use super::worker::wire::Order;
use super::worker::{Worker, relay::relay};
use super::write::{self, Target};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::ScalarValue;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::context::{SQLOptions, SessionState};
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::execute_stream;
use datafusion::sql::parser::Statement;
use futures::{FutureExt, StreamExt};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tokio::sync::mpsc;

/// A statement to run.
#[derive(Debug)]
pub struct Work {
    /// The rewritten statement.
    pub statement: Statement,
    /// Its table functions.
    pub calls: Vec<Call>,
    /// Values of its placeholders.
    pub values: Vec<ScalarValue>,
    /// The session's database.
    pub database: String,
    /// Number of partitions that are processed in parallel.
    pub partitions: usize,
    /// Rows in a batch.
    pub batch_size: usize,
    /// Whether rows are only counted, not returned.
    pub dry_run: bool,
    /// Where rows are written to, if they are; their number is returned.
    pub target: Option<Target>,
    /// The same statement for a worker process, if it may run there.
    pub order: Option<Order>,
}

/// Number of batches that are produced ahead of the client.
const AHEAD: usize = 2;

/// Messages from the task that runs a query.
pub enum Event {
    /// Columns, which are sent first.
    Schema(SchemaRef),
    /// Rows.
    Batch(RecordBatch),
    /// The query failed; there are no more rows.
    Failed(Error),
    /// All rows were sent. If the channel closes without this, the task has died.
    End,
}

/// Result rows as they arrive. Dropping this ends the query.
#[derive(Debug)]
pub struct Rows {
    /// The columns.
    pub schema: SchemaRef,
    ready: Vec<RecordBatch>,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    query: Arc<Query>,
    events: mpsc::Receiver<Event>,
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Event")
    }
}

impl Rows {
    /// Rows that are already complete.
    ///
    /// # Errors
    /// A bug in this program.
    pub fn of(grid: &Grid) -> Result<Rows, Error> {
        let batch = grid.batch()?;
        Ok(Rows { schema: batch.schema(), ready: vec![batch], running: None })
    }

    /// The next batch; `None` after the last one.
    ///
    /// # Errors
    /// The query failed or was cancelled.
    pub async fn next(&mut self) -> Result<Option<RecordBatch>, Error> {
        if let Some(batch) = self.ready.pop() {
            return Ok(Some(batch));
        }
        let Some(running) = &mut self.running else { return Ok(None) };
        let event = tokio::select! {
            biased;
            event = running.events.recv() => event,
            why = running.query.stopped() => Some(Event::Failed(why)),
        };
        match event {
            Some(Event::Batch(batch)) => Ok(Some(batch)),
            Some(Event::Failed(error)) => {
                self.running = None;
                Err(error)
            }
            Some(Event::End) => {
                self.running = None;
                Ok(None)
            }
            Some(Event::Schema(_)) | None => {
                self.running = None;
                Err(no_word())
            }
        }
    }
}

/// The error when a query's task has died because its group's threads were shut down.
fn no_word() -> Error {
    Error::Engine("the query's task ended without a word; the server's log says more".to_owned())
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.query.is_done() {
            self.query.end(Error::Cancelled);
        }
    }
}

/// Everything that a query holds. Dropping it releases all of it when the query's task ends, whatever the outcome.
#[derive(Debug)]
pub struct Held {
    engine: Arc<Engine>,
    /// Keeps the group's threads until the query is over, even when the group was dropped.
    group: Arc<Group>,
    query: Arc<Query>,
    slot: Option<Slot>,
}

impl Held {
    /// For a query that was just accepted: holds its entry in the list of queries.
    #[must_use]
    pub fn new(engine: &Arc<Engine>, group: &Arc<Group>, query: &Arc<Query>) -> Held {
        engine.remember(query);
        let (engine, group, query) = (Arc::clone(engine), Arc::clone(group), Arc::clone(query));
        Held { engine, group, query, slot: None }
    }

    /// The query.
    #[must_use]
    pub fn query(&self) -> &Arc<Query> {
        &self.query
    }

    /// Adds its slot in the queue.
    pub fn take(&mut self, slot: Slot) {
        self.slot = Some(slot);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let query = &self.query;
        query.set_done();
        let group = query.group();
        let forgotten = group.memory.leave(query.number);
        if forgotten > 0 {
            tracing::debug!(query = %query.id, forgotten, "bytes were still reserved at the end");
        }
        self.engine.forget(query);
        drop(self.slot.take());
        group.queue.admit();
    }
}

/// Starts an admitted query and waits for its columns.
///
/// # Errors
/// It cannot be planned, or fails before its first row.
pub async fn start(held: Held, mut work: Work) -> Result<Rows, Error> {
    let query = &Arc::clone(&held.query);
    query.group().memory.join(query);
    query.begin();
    let (sender, events) = mpsc::channel(AHEAD);
    let worker = match &work.order {
        Some(_) => worker_of(&held, query).await?,
        None => None,
    };
    match (worker, work.order.take()) {
        (Some(worker), Some(order)) => {
            query.home.timer.spawn(relay(held, worker, order, sender));
        }
        _ => {
            let Some(runtime) = held.group.runtime().cloned() else {
                return Err(Error::Rule(format!("workload group {} is being taken down", query.home.name)));
            };
            runtime.spawn(task(held, work, sender));
        }
    }
    let mut running = Running { query: Arc::clone(query), events };
    let event = tokio::select! {
        biased;
        event = running.events.recv() => event,
        why = query.stopped() => Some(Event::Failed(why)),
    };
    match event {
        Some(Event::Schema(schema)) => Ok(Rows { schema, ready: Vec::new(), running: Some(running) }),
        Some(Event::Failed(error)) => Err(error),
        Some(Event::Batch(_) | Event::End) | None => Err(no_word()),
    }
}

async fn task(held: Held, work: Work, sender: mpsc::Sender<Event>) {
    let query = Arc::clone(&held.query);
    let engine = Arc::clone(&held.engine);
    let run = Charged::new(Box::pin(caught(run(&engine, &query, work, &sender))), Arc::clone(&query));
    let outcome = tokio::select! {
        biased;
        why = query.stopped() => Err(why),
        outcome = run => outcome,
    };
    finish(held, outcome, &sender).await;
}

/// Runs a future and turns a panic into an error of this query, so that no other query is affected.
async fn caught<T>(run: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    AssertUnwindSafe(run).catch_unwind().await.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words");
        Err(Error::Engine(format!("a defect of the server, please report it with its log: {text}")))
    })
}

/// The worker process of a query's group. Starting one may take long on a busy machine. The query can be cancelled
/// meanwhile; the worker is then ready for the next one.
async fn worker_of(held: &Held, query: &Arc<Query>) -> Result<Option<Arc<Worker>>, Error> {
    let (engine, group) = (Arc::clone(&held.engine), Arc::clone(&held.group));
    let start = tokio::spawn(async move { engine.worker(&group).await });
    tokio::select! {
        biased;
        why = query.stopped() => Err(why),
        started = start => Ok(started.unwrap_or(None)),
    }
}

/// Ends a query: releases what it holds, and reports its outcome.
pub async fn finish(held: Held, outcome: Result<(), Error>, sender: &mpsc::Sender<Event>) {
    let (query, engine) = (Arc::clone(&held.query), Arc::clone(&held.engine));
    // This may run on the group's threads, which must live until the outcome is sent.
    let _group = Arc::clone(&held.group);
    // Errors of operators that were cancelled do not matter: the reason of the cancellation is reported.
    let outcome = outcome.map_err(|error| query.ended().unwrap_or(error));
    drop(held);
    let word = match outcome {
        Ok(()) => Event::End,
        Err(error) => {
            if matches!(error, Error::Memory(_)) {
                query.group().memory.count_ended();
                engine.give_memory_back();
            }
            Event::Failed(error)
        }
    };
    let _ = sender.send(word).await;
}

async fn run(
    engine: &Arc<Engine>,
    query: &Arc<Query>,
    work: Work,
    sender: &mpsc::Sender<Event>,
) -> Result<(), Error> {
    let (dry_run, target) = (work.dry_run, work.target.clone());
    let (state, plan) = plan(engine, query, work).await?;
    let physical = paced(state.create_physical_plan(&plan).await?, query)?;
    query.set_plan(Arc::clone(&physical));
    let mut stream = execute_stream(physical, state.task_ctx())?;
    if let Some(target) = target {
        let rows = write::write(engine, query, &target, &state, stream).await?;
        return count(sender, rows).await;
    }
    if dry_run {
        let mut rows = 0;
        while let Some(batch) = stream.next().await {
            rows += batch?.num_rows() as u64;
        }
        return count(sender, rows).await;
    }
    if sender.send(Event::Schema(stream.schema())).await.is_err() {
        return Ok(());
    }
    while let Some(batch) = stream.next().await {
        if sender.send(Event::Batch(batch?)).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Sends the number of rows instead of the rows, in a column named as in Doris.
async fn count(sender: &mpsc::Sender<Event>, rows: u64) -> Result<(), Error> {
    let mut grid = Grid::new(&[("ReturnedRows", INT)]);
    grid.row(vec![int(rows)]);
    let batch = grid.batch()?;
    let _ = sender.send(Event::Schema(batch.schema())).await;
    let _ = sender.send(Event::Batch(batch)).await;
    Ok(())
}

/// The logical plan, with a state whose memory, stores and spill files belong to the query.
async fn plan(
    engine: &Arc<Engine>,
    query: &Arc<Query>,
    work: Work,
) -> Result<(SessionState, LogicalPlan), Error> {
    let Work { mut statement, calls, values, database, partitions, batch_size, .. } = work;
    let mut stores = Stores::new(query, &engine.data.store, engine.data_device);
    let places = places(engine, query, &mut stores, &calls)?;
    let spill = Arc::new(Spill::new(&engine.spill, query, engine.spill_device));
    let runtime = RuntimeEnvBuilder::from_runtime_env(engine.base.runtime_env())
        .with_memory_pool(Arc::new(QueryPool::new(query)))
        .with_object_store_registry(Arc::new(stores))
        .with_disk_manager_builder(DiskManagerBuilder::default().with_mode(DiskManagerMode::Custom(spill)))
        .build_arc()?;
    let mut config = engine.base.config().clone();
    config = config
        .with_target_partitions(partitions)
        .with_batch_size(batch_size)
        .with_default_catalog_and_schema(CATALOG, &database);
    let builder = SessionStateBuilder::new_from_existing(engine.base.clone());
    let reader = builder.with_config(config.clone()).with_runtime_env(Arc::clone(&runtime)).build();
    let mut state = reader.clone();
    let names = Names::new(engine, &query.user, reader, places);

    let tables = state.resolve_table_references(&statement)?;
    let mut columns: Vec<String> = Vec::new();
    for table in &tables {
        let database = table.schema().unwrap_or(&database);
        if let Some(table) = names.table(database, table.table()).await? {
            columns.extend(table.schema().fields().iter().map(|field| field.name().clone()));
        }
    }
    columns.sort();
    columns.dedup();
    rewrite::fix_case(&mut statement, &columns);

    state.register_catalog_list(Arc::new(names));
    // Fixes the time that now() returns.
    let options = Arc::clone(state.config_options());
    state.execution_props_mut().mark_start_execution(options);
    let plan = state.statement_to_plan(statement).await?;
    let plan = with_values(plan, values)?;
    let options = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    options.verify_plan(&plan).map_err(|error| {
        let text = error.strip_backtrace();
        let text = text.strip_prefix("Error during planning: ").unwrap_or(&text);
        Error::Unsupported(format!("{text}: this server only reads"))
    })?;
    Ok((state, plan))
}

/// Inserts values for the placeholders, each cast to the type expected at its position: clients send most values as
/// text, and numbers must not be compared as text.
fn with_values(plan: LogicalPlan, values: Vec<ScalarValue>) -> Result<LogicalPlan, Error> {
    if values.is_empty() {
        return Ok(plan);
    }
    let types = plan.get_parameter_types()?;
    let mut fitting = Vec::with_capacity(values.len());
    for (at, value) in values.into_iter().enumerate() {
        fitting.push(match types.get(&format!("${}", at + 1)) {
            Some(Some(kind)) => value.cast_to(kind)?,
            _ => value,
        });
    }
    Ok(plan.with_param_values(fitting)?)
}

/// Sources that the table functions of a statement read.
fn places(
    engine: &Engine,
    query: &Arc<Query>,
    stores: &mut Stores,
    calls: &[Call],
) -> Result<Vec<TableSource>, Error> {
    let mut places = Vec::new();
    for (number, call) in calls.iter().enumerate() {
        if call.name == "s3" {
            let host = format!("call-{number}");
            let Remote { name, store, place } = Remote::new(call, &host, &engine.options.s3)?;
            stores.add(query, &host, &name, store);
            places.push(place);
        } else {
            let path = ["file_path", "uri"].iter().find_map(|key| call.properties.get(*key));
            let path = path.ok_or_else(|| Error::Rule("LOCAL(...) needs \"file_path\"".to_owned()))?;
            places.push(TableSource::local(path, remote::format(&call.properties)?)?);
        }
    }
    Ok(places)
}

/// Plans a statement without running it, to get its columns.
///
/// # Errors
/// It cannot be planned.
pub async fn columns(held: Held, work: Work) -> Result<SchemaRef, Error> {
    let query = &Arc::clone(&held.query);
    query.group().memory.join(query);
    let Some(runtime) = held.group.runtime().cloned() else { return Err(Error::Cancelled) };
    let task = runtime.spawn(async move {
        let planning = Box::pin(caught(plan(&held.engine, &held.query, work)));
        let planning = Charged::new(planning, Arc::clone(&held.query));
        let (_, plan) = tokio::select! {
            biased;
            why = held.query.stopped() => return Err(why),
            planned = planning => planned?,
        };
        Ok::<SchemaRef, Error>(Arc::new(plan.schema().as_arrow().clone()))
    });
    task.await.unwrap_or_else(|error| Err(Error::Engine(error.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise 54
    #[tokio::test]
    async fn a_panic_is_an_error_of_its_query() {
        let outcome = caught(async {
            let number = std::hint::black_box(3);
            assert_eq!(number, 4, "all is {}", "lost");
            Ok(())
        });
        let text = outcome.await.unwrap_err().to_string();
        assert!(text.contains("a defect of the server") && text.contains("all is lost"), "{text}");
        assert_eq!(caught(async { Ok(5) }).await.unwrap(), 5);
    }
}
