//! MySQL's functions that DataFusion does not have, or has with another meaning, computed value by value. One row of the
//! table is one function; a NULL argument makes the result NULL.

mod dates;
mod json;
mod numbers;
mod row;
mod texts;
mod zones;

pub use dates::{
    BETWEEN, CLOCK_OF_FORMAT, CLOCK_OF_MOMENT, CLOCK_OF_NUMBER, CLOCK_OF_TEXT, COMPOUND_UNITS, DATE_FORMAT,
    DATE_OF_TEXT, MOMENT_OF_NUMBER, MOMENT_OF_TEXT, MOVED_BY_CLOCK, MOVED_BY_DAYS, NUMBER_OF_CLOCK,
    NUMBER_OF_DATE, NUMBER_OF_MOMENT, PARTS, READ_MOMENT, SECONDS, SIMPLE_UNITS, TEXT_OF_CLOCK, clock_text,
    literal_moment, read_parts,
};
pub use json::{DOCUMENT, LONG_CLOCK, NUMBER_OF_DOUBLE, QUOTE, is_json_function, json_function};
pub use numbers::{
    DOUBLE_OF_TEXT, DOUBLE_WITH_UNSIGNED_ZERO, TEXT_OF_DOUBLE, WHOLE_OF_TEXT, decimal_of_text, real,
};
pub use row::{ArgumentKind, is_bytes, is_text};
use row::{CellValue, DAYS_TO_1970, RowFunction, date_of};
pub use texts::PART;
pub use zones::FRACTION;

use chrono::{DateTime, Datelike};
use datafusion::arrow::array::{
    ArrayRef, AsArray, BinaryBuilder, Date32Builder, DurationMicrosecondBuilder, Float64Builder,
    Int64Builder, StringBuilder, TimestampMicrosecondBuilder,
};
use datafusion::arrow::datatypes::{
    DataType, Date32Type, DurationMicrosecondType, Float64Type, Int64Type, TimeUnit, TimestampMicrosecondType,
};
use datafusion::common::{Result, ScalarValue, exec_datafusion_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use std::borrow::Cow;
use std::sync::Arc;

fn all() -> impl Iterator<Item = &'static RowFunction> {
    texts::ROWS.iter().chain(numbers::ROWS).chain(dates::ROWS).chain(zones::ROWS).chain(json::ROWS)
}

/// Returns the kinds of the parameters of a function that takes so many arguments.
pub fn parameters(name: &str, count: usize) -> Option<Vec<ArgumentKind>> {
    let row = all().find(|row| row.name == name && row.takes(count))?;
    Some((0..count).map(|at| row.parameter(at)).collect())
}

/// Returns the functions for DataFusion.
#[must_use]
pub fn functions() -> Vec<Arc<ScalarUDF>> {
    let mut names: Vec<&'static str> = all().map(|row| row.name).collect();
    names.dedup();
    let signature = || Signature::user_defined(Volatility::Immutable);
    let function = |name| ScalarUDF::new_from_impl(ByRow { name, signature: signature() });
    names.into_iter().map(|name| Arc::new(function(name))).chain(json::functions()).collect()
}

/// Returns the function of this name, for expressions that are built after planning.
#[must_use]
pub fn function(name: &'static str) -> ScalarUDF {
    ScalarUDF::new_from_impl(ByRow { name, signature: Signature::user_defined(Volatility::Immutable) })
}

const MOMENT: DataType = DataType::Timestamp(TimeUnit::Microsecond, None);
/// The type of times without a date, which can be longer than a day, or negative.
pub const CLOCK: DataType = DataType::Duration(TimeUnit::Microsecond);

#[derive(Debug, PartialEq, Eq, Hash)]
struct ByRow {
    name: &'static str,
    signature: Signature,
}

impl ByRow {
    fn row(&self, count: usize) -> Result<&'static RowFunction> {
        match all().find(|row| row.name == self.name && row.takes(count)) {
            Some(row) => Ok(row),
            None => plan_err!("Incorrect parameter count in the call to native function '{}'", self.name),
        }
    }
}

impl ScalarUDFImpl for ByRow {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let row = self.row(types.len())?;
        let coerced = types.iter().enumerate().map(|(at, given)| match row.parameter(at) {
            ArgumentKind::Text => DataType::Utf8,
            ArgumentKind::Bytes => DataType::Binary,
            ArgumentKind::Whole => DataType::Int64,
            ArgumentKind::Double => DataType::Float64,
            ArgumentKind::Date => DataType::Date32,
            ArgumentKind::Moment => MOMENT,
            ArgumentKind::Either if given.is_numeric() || *given == DataType::Boolean => DataType::Int64,
            ArgumentKind::Either | ArgumentKind::Raw if is_bytes(given) => DataType::Binary,
            ArgumentKind::Either | ArgumentKind::Raw => DataType::Utf8,
            ArgumentKind::DateOrMoment => match given {
                DataType::Date32 => DataType::Date32,
                kind if is_text(kind) || kind.is_numeric() => DataType::Utf8,
                _ => MOMENT,
            },
            ArgumentKind::Clock => CLOCK,
            ArgumentKind::ClockOrMoment => match given {
                DataType::Duration(_) => CLOCK,
                DataType::Timestamp(..) | DataType::Date32 => MOMENT,
                _ => DataType::Utf8,
            },
        });
        Ok(coerced.collect())
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(match self.row(types.len())?.result {
            // Bytes if one of the arguments is.
            ArgumentKind::Raw if types.iter().any(is_bytes) => DataType::Binary,
            ArgumentKind::Text | ArgumentKind::Either | ArgumentKind::Raw => DataType::Utf8,
            ArgumentKind::Bytes => DataType::Binary,
            ArgumentKind::Whole => DataType::Int64,
            ArgumentKind::Double => DataType::Float64,
            ArgumentKind::Date => DataType::Date32,
            ArgumentKind::Moment => MOMENT,
            ArgumentKind::DateOrMoment => match types.first() {
                Some(kind @ (DataType::Date32 | DataType::Utf8)) => kind.clone(),
                _ => MOMENT,
            },
            ArgumentKind::Clock => CLOCK,
            ArgumentKind::ClockOrMoment => types.first().cloned().unwrap_or(CLOCK),
        })
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let row = self.row(arguments.args.len())?;
        let are_scalars = arguments.args.iter().all(|one| matches!(one, ColumnarValue::Scalar(_)));
        let count = if are_scalars { 1 } else { arguments.number_rows };
        let arrays: Vec<ArrayRef> =
            arguments.args.iter().map(|one| one.to_array(count)).collect::<Result<_>>()?;
        let result = arguments.return_field.data_type();
        let values = (0..count).map(|at| {
            let cells: Option<Vec<CellValue<'_>>> = arrays.iter().map(|array| cell(array, at)).collect();
            cells.and_then(|cells| (row.call)(&cells))
        });
        let array = column(result, values)?;
        match are_scalars {
            true => Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&array, 0)?)),
            false => Ok(ColumnarValue::Array(array)),
        }
    }
}

/// Returns the value at a place of an array; `None` if it is NULL.
fn cell(array: &ArrayRef, at: usize) -> Option<CellValue<'_>> {
    if array.is_null(at) {
        return None;
    }
    Some(match array.data_type() {
        DataType::Utf8 => CellValue::Text(Cow::Borrowed(array.as_string::<i32>().value(at))),
        DataType::Int64 => CellValue::Whole(array.as_primitive::<Int64Type>().value(at)),
        DataType::Float64 => CellValue::Double(array.as_primitive::<Float64Type>().value(at)),
        DataType::Binary => CellValue::Bytes(array.as_binary::<i32>().value(at).to_vec()),
        DataType::Date32 => {
            CellValue::Date(date_of(i64::from(array.as_primitive::<Date32Type>().value(at)))?)
        }
        DataType::Duration(_) => {
            CellValue::Clock(array.as_primitive_opt::<DurationMicrosecondType>()?.value(at))
        }
        _ => {
            let micros = array.as_primitive_opt::<TimestampMicrosecondType>()?.value(at);
            CellValue::Moment(DateTime::from_timestamp_micros(micros)?.naive_utc())
        }
    })
}

fn column<'a>(kind: &DataType, values: impl Iterator<Item = Option<CellValue<'a>>>) -> Result<ArrayRef> {
    macro_rules! built {
        ($builder:expr, $one:ident => $of:expr) => {{
            let mut builder = $builder;
            for value in values {
                match value {
                    Some($one) => builder.append_value($of),
                    None => builder.append_null(),
                }
            }
            Ok(Arc::new(builder.finish()))
        }};
    }
    match kind {
        DataType::Utf8 => built!(StringBuilder::new(), one => one.text()),
        DataType::Int64 => built!(Int64Builder::new(), one => one.whole()),
        DataType::Float64 => built!(Float64Builder::new(), one => one.double()),
        DataType::Binary => built!(BinaryBuilder::new(), one => match &one {
            CellValue::Bytes(bytes) => bytes.as_slice(),
            other => other.text().as_bytes(),
        }),
        DataType::Date32 => built!(Date32Builder::new(), one => {
            let days = i64::from(one.moment().date().num_days_from_ce()) - DAYS_TO_1970;
            i32::try_from(days).unwrap_or_default()
        }),
        DataType::Duration(_) => built!(DurationMicrosecondBuilder::new(), one => one.clock()),
        DataType::Timestamp(TimeUnit::Microsecond, None) => {
            built!(TimestampMicrosecondBuilder::new(), one => one.moment().and_utc().timestamp_micros())
        }
        other => Err(exec_datafusion_err!("a function has no results of type {other}")),
    }
}
