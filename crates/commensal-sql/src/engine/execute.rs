//! Runs one statement: plans and executes it on the threads of the query's group (or in the group's worker process),
//! and returns its rows in batches.
//!
//! [`start`] decides where a query runs: on the group's threads, or in the group's worker process.

use super::Engine;
use super::cpu::Charged;
use super::data::TableSource;
use super::error::Error;
use super::grid::{Grid, INT, int};
use super::group::Group;
use super::names;
use super::origins;
use super::pace::paced;
use super::pool::QueryPool;
use super::problems;
use super::query::{Identity, Query};
use super::queue::Ticket as Slot;
use super::remote::{self, Remote};
use super::rewrite::{self, Call};
use super::schema::{CATALOG, Names};
use super::stores::Stores;
use super::terms::PlanOptions;
use super::worker::wire::Order;
use super::worker::{Worker, relay::relay};
use super::write::{self, Target};
use commensal_store::Source;
use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::error::DataFusionError;
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
    /// The table functions in the statement.
    pub calls: Vec<Call>,
    /// How the statement is planned and run.
    pub options: PlanOptions,
    /// The table to which a statement that writes adds its rows. The statement returns the number of rows.
    pub target: Option<Target>,
    /// The statement in the form for a worker process, if the statement may run there.
    pub order: Option<Order>,
}

/// Number of batches that the query produces ahead of the client's reads.
const AHEAD: usize = 2;

/// Messages from the task that runs a query.
pub enum Event {
    /// Columns, which are sent first.
    Schema(SchemaRef),
    /// Rows.
    Batch(RecordBatch),
    /// The query failed; there are no more rows.
    Failed(Error),
    /// All rows were sent. If the channel closes without this event, the query's task has died.
    End,
}

/// Result rows, which can be read while the query runs. Dropping this value cancels the query.
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
    /// Creates a result whose rows are already complete.
    ///
    /// # Errors
    /// The rows do not match the columns: a bug in this program.
    pub fn of(grid: &Grid) -> Result<Rows, Error> {
        grid.batch().map(Rows::of_batch)
    }

    /// Creates a result of one batch.
    #[must_use]
    pub fn of_batch(batch: RecordBatch) -> Rows {
        Rows { schema: batch.schema(), ready: vec![batch], running: None }
    }

    /// Returns the query of these rows, unless they are complete.
    #[must_use]
    pub fn query(&self) -> Option<Arc<Query>> {
        self.running.as_ref().map(|running| Arc::clone(&running.query))
    }

    /// Returns the next batch; `None` after the last one.
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

/// Returns the error of a query whose task has died because its group's threads were shut down.
fn no_word() -> Error {
    Error::Engine("the query's task ended without reporting a result; see the server's log".to_owned())
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.query.is_done() {
            self.query.end(Error::Cancelled);
        }
    }
}

/// Everything that a query holds. Dropping this value, at the end of the query's task, releases all of it, regardless
/// of the outcome.
#[derive(Debug)]
pub struct Held {
    engine: Arc<Engine>,
    /// Keeps the group's threads alive until the query has finished, even if the group was dropped.
    group: Arc<Group>,
    query: Arc<Query>,
    slot: Option<Slot>,
}

impl Held {
    /// Creates this value for a query that was just accepted, and adds the query to the list of queries.
    #[must_use]
    pub fn new(engine: &Arc<Engine>, group: &Arc<Group>, query: &Arc<Query>) -> Held {
        engine.queries.add(query);
        let (engine, group, query) = (Arc::clone(engine), Arc::clone(group), Arc::clone(query));
        Held { engine, group, query, slot: None }
    }

    /// Returns the query.
    #[must_use]
    pub fn query(&self) -> &Arc<Query> {
        &self.query
    }

    /// Stores the query's slot (its place among the running queries of the group's queue).
    pub fn take(&mut self, slot: Slot) {
        self.slot = Some(slot);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let query = &self.query;
        query.set_done();
        let group = query.group();
        let Identity { number, id, .. } = &query.identity;
        self.engine.queries.note(query, group.memory.of(*number).1);
        let forgotten = group.memory.leave(*number);
        if forgotten > 0 {
            tracing::debug!(query = %id, forgotten, "bytes were still reserved at the end");
        }
        self.engine.queries.remove(*number);
        drop(self.slot.take());
        group.queue.admit();
    }
}

/// Starts an admitted query and waits for its columns.
///
/// # Errors
/// The query cannot be planned, or fails before its first row.
pub async fn start(held: Held, mut work: Work) -> Result<Rows, Error> {
    let query = &Arc::clone(&held.query);
    query.group().memory.join(query);
    query.timing.begin();
    let (sender, events) = mpsc::channel(AHEAD);
    let worker = match &work.order {
        Some(_) => worker_of(&held, query).await?,
        None => None,
    };
    match (worker, work.order.take()) {
        (Some(worker), Some(order)) => {
            query.home().timer.spawn(relay(held, worker, order, sender));
        }
        _ => {
            let Some(runtime) = held.group.runtime().cloned() else {
                return Err(query.home().dropped());
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

/// Runs a future, and converts a panic to an error of this query, so that no other query is affected.
async fn caught<T>(run: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    AssertUnwindSafe(run).catch_unwind().await.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words");
        Err(Error::Engine(format!(
            "this is a bug in the server, please report it with the server's log: {text}"
        )))
    })
}

/// Returns the worker process of a query's group, and starts the process if needed. The start may take long on a busy
/// machine. If the query is cancelled in the meantime, the worker still starts, for the next query.
async fn worker_of(held: &Held, query: &Arc<Query>) -> Result<Option<Arc<Worker>>, Error> {
    let (engine, group) = (Arc::clone(&held.engine), Arc::clone(&held.group));
    let start = tokio::spawn(async move { engine.worker(&group).await });
    tokio::select! {
        biased;
        why = query.stopped() => Err(why),
        started = start => Ok(started.unwrap_or(None)),
    }
}

/// Finishes a query: releases everything that it holds, and reports its outcome.
pub async fn finish(held: Held, outcome: Result<(), Error>, sender: &mpsc::Sender<Event>) {
    let (query, engine) = (Arc::clone(&held.query), Arc::clone(&held.engine));
    // This function may run on the group's threads, which must exist until the outcome is sent.
    let _group = Arc::clone(&held.group);
    // A cancelled query reports the reason of the cancellation instead of the errors that the cancellation causes in
    // operators.
    let outcome = outcome.map_err(|error| query.ended().unwrap_or(error));
    if let Err(why) = &outcome {
        query.fail(why);
    }
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
    let (dry_run, target) = (work.options.dry_run, work.target.clone());
    let database = work.options.database.clone();
    let (state, plan) = plan(engine, query, work).await?;
    let is_analysis = matches!(plan, LogicalPlan::Analyze(_));
    let physical = paced(state.create_physical_plan(&plan).await?, query)?;
    query.usage.set_plan(Arc::clone(&physical));
    let mut stream = execute_stream(physical, state.task_ctx())?;
    if let Some(target) = target {
        let rows = write::write(&engine.storage.data, &query.identity.id, &target, &state, stream).await?;
        return count(sender, rows).await;
    }
    if dry_run {
        let mut rows = 0;
        while let Some(batch) = stream.next().await {
            rows += batch?.num_rows() as u64;
        }
        return count(sender, rows).await;
    }
    let columns = origins::columns(&plan, &stream.schema(), &database);
    if sender.send(Event::Schema(columns)).await.is_err() {
        return Ok(());
    }
    while let Some(batch) = stream.next().await {
        if sender.send(Event::Batch(batch?)).await.is_err() {
            break;
        }
    }
    if is_analysis {
        let (title, waits) = ("Waits", query.waits().to_string());
        let column = |text: &str| Arc::new(StringArray::from(vec![text])) as ArrayRef;
        let row = RecordBatch::try_new(stream.schema(), vec![column(title), column(&waits)]);
        let row = row.map_err(DataFusionError::from)?;
        let _ = sender.send(Event::Batch(row)).await;
    }
    Ok(())
}

/// Sends the number of rows instead of the rows, in a column with the name that Doris uses.
async fn count(sender: &mpsc::Sender<Event>, rows: u64) -> Result<(), Error> {
    let mut grid = Grid::new(&[("ReturnedRows", INT)]);
    grid.row(vec![int(rows)]);
    let batch = grid.batch()?;
    let _ = sender.send(Event::Schema(batch.schema())).await;
    let _ = sender.send(Event::Batch(batch)).await;
    Ok(())
}

/// Returns the logical plan, with a session state whose memory, stores and spill files belong to the query.
async fn plan(
    engine: &Arc<Engine>,
    query: &Arc<Query>,
    work: Work,
) -> Result<(SessionState, LogicalPlan), Error> {
    let Work { mut statement, calls, options, .. } = work;
    let mut stores = engine.storage.stores(query);
    let places = places(engine, query, &mut stores, &calls)?;
    let spill = Arc::new(engine.storage.spill(query));
    let runtime = RuntimeEnvBuilder::from_runtime_env(engine.base.runtime_env())
        .with_memory_pool(Arc::new(QueryPool::new(query)))
        .with_object_store_registry(Arc::new(stores))
        .with_disk_manager_builder(DiskManagerBuilder::default().with_mode(DiskManagerMode::Custom(spill)))
        .build_arc()?;
    let mut config = engine.base.config().clone();
    config = config
        .with_target_partitions(options.partitions)
        .with_batch_size(options.batch_size)
        .with_default_catalog_and_schema(CATALOG, &options.database);
    let builder = SessionStateBuilder::new_from_existing(engine.base.clone());
    let reader = builder.with_config(config.clone()).with_runtime_env(Arc::clone(&runtime)).build();
    let mut state = reader.clone();
    let resolver = Names::new(engine, &query.identity, reader, places);

    let tables = state.resolve_table_references(&statement)?;
    let (mut known, mut missing) = (Vec::new(), None);
    for table in &tables {
        let (database, table) = (table.schema().unwrap_or(&options.database), table.table());
        match resolver.table(database, table).await? {
            Some(found) => {
                let columns = found.schema().fields().iter().map(|field| field.name().clone()).collect();
                known.push((table.to_owned(), columns));
            }
            None if !state.table_functions().contains_key(table) => {
                missing.get_or_insert_with(|| resolver.missing(database, table));
            }
            None => {}
        }
    }
    names::fix_case(&mut statement, &known);
    if let Some(limit) = options.select_limit {
        rewrite::limit(&mut statement, limit);
    }

    state.register_catalog_list(Arc::new(resolver));
    // Fixes the time that now() returns during this query.
    let config = Arc::clone(state.config_options());
    state.execution_props_mut().mark_start_execution(config);
    let asked = statement.clone();
    let planned = state.statement_to_plan(statement).await;
    let plan =
        planned.map_err(|error| problems::explain(&state, &options.database, &asked, missing, error))?;
    let options = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    options.verify_plan(&plan).map_err(|error| {
        let text = error.strip_backtrace();
        let text = text.strip_prefix("Error during planning: ").unwrap_or(&text);
        Error::Unsupported(format!("{text}: this server is read-only"))
    })?;
    Ok((state, plan))
}

/// Returns the sources that the table functions of a statement read, and adds their remote stores to `stores`.
fn places(
    engine: &Engine,
    query: &Arc<Query>,
    stores: &mut Stores,
    calls: &[Call],
) -> Result<Vec<TableSource>, Error> {
    let mut places = Vec::new();
    for (number, call) in calls.iter().enumerate() {
        if call.name == "local" {
            let path = call.get(&["file_path", "uri"]);
            let path = path.ok_or_else(|| Error::Rule("LOCAL(...) needs \"file_path\"".to_owned()))?;
            places.push(remote::partitioned(TableSource::local(path, remote::format(call)?)?, call));
        } else {
            let host = format!("call-{number}");
            let Remote { name, store, place } = Remote::new(call, &host, &engine.options.endpoints)?;
            let reader = query.reader(&Source::Store(name));
            stores.add(&host, reader.clone(), store.open(&query.home().hdfs, reader)?);
            places.push(place);
        }
    }
    Ok(places)
}

/// Plans a statement without running it, to get its columns.
///
/// # Errors
/// The statement cannot be planned.
pub async fn columns(held: Held, work: Work) -> Result<SchemaRef, Error> {
    let query = &Arc::clone(&held.query);
    query.group().memory.join(query);
    query.timing.begin();
    let Some(runtime) = held.group.runtime().cloned() else { return Err(Error::Cancelled) };
    let database = work.options.database.clone();
    let task = runtime.spawn(async move {
        let planning = Box::pin(caught(plan(&held.engine, &held.query, work)));
        let planning = Charged::new(planning, Arc::clone(&held.query));
        let (_, plan) = tokio::select! {
            biased;
            why = held.query.stopped() => return Err(why),
            planned = planning => planned?,
        };
        Ok::<SchemaRef, Error>(origins::columns(&plan, plan.schema().as_arrow(), &database))
    });
    task.await.unwrap_or_else(|error| Err(Error::Engine(error.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise 45
    #[tokio::test]
    async fn a_panic_is_an_error_of_its_query() {
        let outcome = caught(async {
            let number = std::hint::black_box(3);
            assert_eq!(number, 4, "all is {}", "lost");
            Ok(())
        });
        let text = outcome.await.unwrap_err().to_string();
        assert!(text.contains("a bug in the server") && text.contains("all is lost"), "{text}");
        assert_eq!(caught(async { Ok(5) }).await.unwrap(), 5);
    }
}
