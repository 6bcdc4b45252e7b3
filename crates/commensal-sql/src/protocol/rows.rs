//! Arrow's columns as MySQL's: types, flags, values.

use datafusion::arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Float64Type, Int64Type, Schema, TimeUnit, UInt64Type};
use datafusion::arrow::error::ArrowError;
use opensrv_mysql::{Column, ColumnFlags, ColumnType, RowWriter};
use std::io;
use tokio::io::AsyncWrite;

/// How values of a column are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    Signed,
    Unsigned,
    Real,
    Bytes,
    Text,
}

fn sent(kind: &DataType) -> Sent {
    match kind {
        DataType::Boolean | DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => {
            Sent::Signed
        }
        DataType::UInt8 | DataType::UInt16 | DataType::UInt32 | DataType::UInt64 => Sent::Unsigned,
        DataType::Float16 | DataType::Float32 | DataType::Float64 => Sent::Real,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            Sent::Bytes
        }
        _ => Sent::Text,
    }
}

/// One column. Dates and decimals are sent as texts, which every client takes.
fn column(name: &str, kind: &DataType) -> Column {
    let (coltype, colflags) = match sent(kind) {
        Sent::Signed => (ColumnType::MYSQL_TYPE_LONGLONG, ColumnFlags::empty()),
        Sent::Unsigned => (ColumnType::MYSQL_TYPE_LONGLONG, ColumnFlags::UNSIGNED_FLAG),
        Sent::Real => (ColumnType::MYSQL_TYPE_DOUBLE, ColumnFlags::empty()),
        Sent::Bytes => (ColumnType::MYSQL_TYPE_BLOB, ColumnFlags::BINARY_FLAG),
        Sent::Text => (ColumnType::MYSQL_TYPE_VAR_STRING, ColumnFlags::empty()),
    };
    Column { table: String::new(), column: name.to_owned(), coltype, colflags }
}

/// The columns of rows.
pub fn columns(schema: &Schema) -> Vec<Column> {
    schema.fields().iter().map(|field| column(field.name(), field.data_type())).collect()
}

/// A placeholder's column.
pub fn placeholder() -> Column {
    column("?", &DataType::Utf8)
}

/// As it is sent.
fn ready(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let kind = match (sent(array.data_type()), array.data_type()) {
        (Sent::Signed, _) => DataType::Int64,
        (Sent::Unsigned, _) => DataType::UInt64,
        (Sent::Real, _) => DataType::Float64,
        (Sent::Bytes, _) => DataType::Binary,
        // Arrow writes "2013-07-15T10:47:34"; MySQL has a blank there.
        (Sent::Text, DataType::Timestamp(unit, _)) => return times(array, *unit),
        (Sent::Text, _) => DataType::Utf8,
    };
    cast(array, &kind)
}

/// Points in time as MySQL writes them, with digits below the second only where there are any.
fn times(array: &ArrayRef, unit: TimeUnit) -> Result<ArrayRef, ArrowError> {
    let plain = cast(array, &DataType::Timestamp(unit, None))?;
    let texts = cast(&plain, &DataType::Utf8)?;
    let texts = texts.as_string::<i32>().iter().map(|text| text.map(|text| text.replacen('T', " ", 1)));
    Ok(std::sync::Arc::new(texts.collect::<datafusion::arrow::array::StringArray>()))
}

/// Writes the rows of a batch.
pub async fn write<W: AsyncWrite + Send + Unpin>(
    writer: &mut RowWriter<'_, W>,
    batch: &RecordBatch,
) -> io::Result<()> {
    let columns: Result<Vec<ArrayRef>, ArrowError> = batch.columns().iter().map(ready).collect();
    let columns = columns.map_err(io::Error::other)?;
    for row in 0..batch.num_rows() {
        for array in &columns {
            if array.is_null(row) {
                writer.write_col(None::<i64>)?;
                continue;
            }
            match array.data_type() {
                DataType::Int64 => writer.write_col(array.as_primitive::<Int64Type>().value(row))?,
                DataType::UInt64 => writer.write_col(array.as_primitive::<UInt64Type>().value(row))?,
                DataType::Float64 => writer.write_col(array.as_primitive::<Float64Type>().value(row))?,
                DataType::Binary => writer.write_col(array.as_binary::<i32>().value(row))?,
                _ => writer.write_col(array.as_string::<i32>().value(row))?,
            }
        }
        writer.end_row().await?;
    }
    Ok(())
}
