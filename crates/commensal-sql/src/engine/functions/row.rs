//! What a function is: its parameters, and how it computes one value from others.

use chrono::{NaiveDate, NaiveDateTime};
use datafusion::arrow::datatypes::DataType;
use std::borrow::Cow;

/// What a parameter is, or a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ArgumentKind {
    Text,
    Bytes,
    Whole,
    Double,
    Date,
    Moment,
    /// Bytes, as given, or a text; as a result, bytes if an argument is.
    Raw,
    /// A text, bytes or a whole number, as given.
    Either,
    /// A date, a date with time or a text of one of them, as given; as a result, of the kind of the first argument.
    DateOrMoment,
    /// A time without a date: microseconds, of at most 838:59:59 hours.
    Clock,
    /// A time, a date with time, or a text of one of them, as given; as a result, of the kind of the first argument.
    ClockOrMoment,
}

/// A value that is not NULL.
#[derive(Debug, Clone, PartialEq)]
pub enum CellValue<'a> {
    Text(Cow<'a, str>),
    Bytes(Vec<u8>),
    Whole(i64),
    Double(f64),
    Date(NaiveDate),
    Moment(NaiveDateTime),
    /// Microseconds.
    Clock(i64),
}

impl CellValue<'_> {
    pub fn text(&self) -> &str {
        match self {
            CellValue::Text(text) => text,
            _ => "",
        }
    }

    /// The bytes of a text, or bytes as they are.
    pub fn bytes(&self) -> &[u8] {
        match self {
            CellValue::Text(text) => text.as_bytes(),
            CellValue::Bytes(bytes) => bytes,
            _ => &[],
        }
    }

    pub fn whole(&self) -> i64 {
        match self {
            CellValue::Whole(whole) => *whole,
            _ => 0,
        }
    }

    pub fn double(&self) -> f64 {
        match self {
            CellValue::Double(double) => *double,
            _ => 0.0,
        }
    }

    pub fn clock(&self) -> i64 {
        match self {
            CellValue::Clock(micros) => *micros,
            _ => 0,
        }
    }

    pub fn moment(&self) -> NaiveDateTime {
        match self {
            CellValue::Moment(moment) => *moment,
            CellValue::Date(date) => (*date).into(),
            _ => NaiveDateTime::default(),
        }
    }
}

impl From<String> for CellValue<'static> {
    fn from(text: String) -> Self {
        CellValue::Text(Cow::Owned(text))
    }
}

impl From<i64> for CellValue<'static> {
    fn from(whole: i64) -> Self {
        CellValue::Whole(whole)
    }
}

/// A function.
#[derive(Debug)]
pub struct RowFunction {
    pub name: &'static str,
    /// The smallest number of arguments.
    least: usize,
    /// The kinds of the arguments. If the last one is followed by others, they are of its kind.
    parameters: &'static [ArgumentKind],
    is_variadic: bool,
    pub result: ArgumentKind,
    pub call: fn(&[CellValue<'_>]) -> Option<CellValue<'static>>,
}

impl RowFunction {
    pub const fn new(
        name: &'static str,
        parameters: &'static [ArgumentKind],
        result: ArgumentKind,
        call: fn(&[CellValue<'_>]) -> Option<CellValue<'static>>,
    ) -> RowFunction {
        RowFunction { name, least: parameters.len(), parameters, is_variadic: false, result, call }
    }

    pub const fn at_least(self, least: usize) -> RowFunction {
        RowFunction { least, ..self }
    }

    pub const fn variadic(self) -> RowFunction {
        RowFunction { is_variadic: true, ..self }
    }

    pub fn takes(&self, count: usize) -> bool {
        count >= self.least && (self.is_variadic || count <= self.parameters.len())
    }

    pub fn parameter(&self, at: usize) -> ArgumentKind {
        self.parameters.get(at).or(self.parameters.last()).copied().unwrap_or(ArgumentKind::Text)
    }
}

/// Returns the date so many days after 1970-01-01.
pub fn date_of(days: i64) -> Option<NaiveDate> {
    NaiveDate::from_num_days_from_ce_opt(i32::try_from(days + DAYS_TO_1970).ok()?)
}

/// Days from 1 January of year 1, which is day 1, to 1 January 1970.
pub const DAYS_TO_1970: i64 = 719_163;

/// A length as a number.
pub(super) fn length(of: usize) -> i64 {
    i64::try_from(of).unwrap_or(i64::MAX)
}

/// Whether values of a type are texts.
#[must_use]
pub fn is_text(kind: &DataType) -> bool {
    matches!(kind, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

/// Whether values of a type are bytes.
#[must_use]
pub fn is_bytes(kind: &DataType) -> bool {
    matches!(
        kind,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_)
    )
}
