//! Small tables that the server itself creates: the results of SHOW statements, and the system tables.

use super::error::Error;
use datafusion::arrow::array::{ArrayRef, RecordBatch, new_empty_array};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::ScalarValue;
use std::sync::Arc;

/// Columns and rows.
#[derive(Debug, Clone)]
pub struct Grid {
    columns: Vec<(String, DataType)>,
    rows: Vec<Vec<ScalarValue>>,
}

/// Type of integers.
pub const INT: DataType = DataType::Int64;
/// Type of strings.
pub const TEXT: DataType = DataType::Utf8;
/// Type of floating point numbers.
pub const REAL: DataType = DataType::Float64;

/// Creates an integer value, at most `i64::MAX`.
#[must_use]
pub fn int(value: u64) -> ScalarValue {
    ScalarValue::Int64(Some(i64::try_from(value).unwrap_or(i64::MAX)))
}

/// Creates a string value.
#[must_use]
pub fn text(value: impl Into<String>) -> ScalarValue {
    ScalarValue::Utf8(Some(value.into()))
}

/// Creates a floating point value.
#[must_use]
pub fn real(value: f64) -> ScalarValue {
    ScalarValue::Float64(Some(value))
}

impl Grid {
    /// Creates a table without rows.
    #[must_use]
    pub fn new(columns: &[(&str, DataType)]) -> Grid {
        let column = |(name, kind): &(&str, DataType)| ((*name).to_owned(), kind.clone());
        Grid { columns: columns.iter().map(column).collect(), rows: Vec::new() }
    }

    /// Creates a table whose columns are all strings.
    #[must_use]
    pub fn texts<S: AsRef<str>>(columns: &[S]) -> Grid {
        let column = |name: &S| (name.as_ref().to_owned(), TEXT);
        Grid { columns: columns.iter().map(column).collect(), rows: Vec::new() }
    }

    /// Adds a row, which must have one value of the right type per column.
    pub fn row(&mut self, values: Vec<ScalarValue>) {
        self.rows.push(values);
    }

    /// Adds a row of strings.
    pub fn text_row<S: Into<String>>(&mut self, values: impl IntoIterator<Item = S>) {
        self.rows.push(values.into_iter().map(text).collect());
    }

    /// Whether the table has no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Converts the table to an Arrow batch.
    ///
    /// # Errors
    /// A row does not match the columns: a bug in this program.
    pub fn batch(&self) -> Result<RecordBatch, Error> {
        let field = |(name, kind): &(String, DataType)| Field::new(name, kind.clone(), true);
        let schema = Arc::new(Schema::new(self.columns.iter().map(field).collect::<Vec<_>>()));
        let mut arrays: Vec<ArrayRef> = Vec::new();
        for (at, (_, kind)) in self.columns.iter().enumerate() {
            let values: Vec<ScalarValue> =
                self.rows.iter().map(|row| row.get(at).cloned().unwrap_or(ScalarValue::Null)).collect();
            arrays.push(match values.is_empty() {
                true => new_empty_array(kind),
                false => ScalarValue::iter_to_array(values)?,
            });
        }
        RecordBatch::try_new(schema, arrays).map_err(|error| Error::Engine(error.to_string()))
    }
}
