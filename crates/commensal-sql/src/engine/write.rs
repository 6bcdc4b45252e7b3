//! `INSERT INTO … SELECT` and `CREATE TABLE … AS SELECT`: the rows of a query become one more Parquet file in a table's
//! folder, within the limits of the query's group. Only available if the server was started with `--writable`.
//!
//! A file is either complete or does not exist, because it is written under another name first.

use super::data::{Data, MAIN};
use super::error::Error;
use datafusion::arrow::array::{ArrayRef, RecordBatch};
use datafusion::arrow::compute::{CastOptions, cast_with_options};
use datafusion::arrow::datatypes::{FieldRef, SchemaRef};
use datafusion::execution::context::SessionState;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::parquet::arrow::AsyncArrowWriter;
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::sql::parser::Statement as Parsed;
use datafusion::sql::sqlparser::ast::{ObjectName, Query as Select, Statement, TableObject};
use futures::StreamExt;
use object_store::buffered::BufWriter;
use object_store::path::Path;
use std::sync::Arc;

/// Number of rows in a row group, which is held in memory until it is complete.
const ROW_GROUP: usize = 100_000;

/// The target of a statement that writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Database of the table.
    pub database: String,
    /// Name of the table.
    pub table: String,
    /// Whether the table must not exist yet.
    pub new: bool,
    /// `IF NOT EXISTS`: writes nothing if the table exists.
    pub if_not_exists: bool,
}

fn name(name: &ObjectName, database: &str) -> Option<(String, String)> {
    let mut parts: Vec<String> =
        name.0.iter().filter_map(|part| part.as_ident()).map(|part| part.value.clone()).collect();
    let table = parts.pop()?;
    Some((parts.pop().unwrap_or_else(|| database.to_owned()), table))
}

/// Takes the target table out of a statement that writes, and replaces the statement with the query that computes the
/// rows. Returns `None` for a statement that does not write.
///
/// # Errors
/// This form of the statement is not supported.
pub fn target(parsed: &mut Parsed, database: &str) -> Result<Option<Target>, Error> {
    let Parsed::Statement(statement) = parsed else { return Ok(None) };
    let (target, select): (Target, Box<Select>) = match statement.as_mut() {
        Statement::Insert(insert) => {
            let TableObject::TableName(table) = &insert.table else { return Err(form()) };
            let Some((database, table)) = name(table, database) else { return Err(form()) };
            let plain = insert.columns.is_empty() && !insert.overwrite && insert.assignments.is_empty();
            match insert.source.take().filter(|_| plain) {
                Some(select) => (Target { database, table, new: false, if_not_exists: false }, select),
                None => return Err(form()),
            }
        }
        Statement::CreateTable(create) => {
            let Some((database, table)) = name(&create.name, database) else { return Err(form()) };
            let if_not_exists = create.if_not_exists;
            match create.query.take() {
                Some(select) => (Target { database, table, new: true, if_not_exists }, select),
                None => return Err(form()),
            }
        }
        _ => return Ok(None),
    };
    **statement = Statement::Query(select);
    Ok(Some(target))
}

fn form() -> Error {
    Error::Unsupported(
        "only INSERT INTO table SELECT … and CREATE TABLE table AS SELECT … can write".to_owned(),
    )
}

/// Writes the rows of a stream to a new file of the target, named after the query's identifier `id`; returns their
/// number.
///
/// # Errors
/// The server is read-only, the table exists or does not exist contrary to the statement, its columns differ, or the
/// disk is full.
pub async fn write(
    data: &Data,
    id: &str,
    target: &Target,
    state: &SessionState,
    mut rows: SendableRecordBatchStream,
) -> Result<u64, Error> {
    let Some(store) = &data.writer else {
        return Err(Error::Denied("this server is read-only: start it with --writable".to_owned()));
    };
    let Target { database, table, .. } = target;
    let place = data.locate(database, table);
    if target.new && place.is_some() {
        if target.if_not_exists {
            return Ok(0);
        }
        return Err(Error::Rule(format!("Table '{table}' already exists")));
    }
    if database == MAIN || !data.has_database(database) || !data.may_be_table(database, table) {
        return Err(Error::Rule(format!(
            "{database}.{table} cannot be written: a table that can be written is a folder in a database, and the \
             database is a folder in the data folder other than {MAIN}"
        )));
    }
    let schema: SchemaRef = match (place, target.new) {
        (Some(place), false) if place.url.ends_with('/') => place.table(state, &data.known).await?.schema(),
        (_, true) => rows.schema(),
        _ => {
            return Err(Error::Unknown(format!(
                "{database}.{table} is not a folder of files: create it with CREATE TABLE"
            )));
        }
    };
    if schema.fields().len() != rows.schema().fields().len() {
        let (given, wanted) = (rows.schema().fields().len(), schema.fields().len());
        return Err(Error::Rule(format!("{database}.{table} has {wanted} columns, not {given}")));
    }
    let file = Path::from(format!("{database}/{table}/{id}.parquet"));
    let to = BufWriter::new(Arc::<object_store::local::LocalFileSystem>::clone(store), file);
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(ROW_GROUP)).build();
    let failed = |error: datafusion::parquet::errors::ParquetError| {
        Error::Engine(format!("cannot write {database}.{table}: {error}"))
    };
    let mut writer = AsyncArrowWriter::try_new(to, Arc::clone(&schema), Some(properties)).map_err(failed)?;
    let reservation = MemoryConsumer::new("insert").register(&state.runtime_env().memory_pool);
    let mut number = 0;
    while let Some(batch) = rows.next().await {
        let batch = fitting(&batch?, &schema)?;
        number += batch.num_rows() as u64;
        writer.write(&batch).await.map_err(failed)?;
        reservation.try_resize(writer.memory_size())?;
    }
    writer.close().await.map_err(failed)?;
    Ok(number)
}

/// Casts a batch to the column types of the table, by position.
fn fitting(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, Error> {
    let words = |error: datafusion::arrow::error::ArrowError| Error::Engine(error.to_string());
    // A value that cannot be cast is an error; it does not become NULL.
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let pairs = batch.columns().iter().zip(schema.fields());
    let cast =
        |(column, field): (&ArrayRef, &FieldRef)| cast_with_options(column, field.data_type(), &options);
    let columns: Result<Vec<ArrayRef>, _> = pairs.map(cast).collect();
    RecordBatch::try_new(Arc::clone(schema), columns.map_err(words)?).map_err(words)
}
