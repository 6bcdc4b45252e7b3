//! Converts Arrow columns to MySQL columns: types, flags, and values in the protocol's text and binary formats.

use super::answer::{length, text};
use super::days;
use super::letters::Letters;
use crate::engine::column_name;
use crate::engine::functions::{clock_text, real};
use crate::engine::origins;
use datafusion::arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{
    DataType, Date32Type, DurationMicrosecondType, Field, Float32Type, Float64Type, Int64Type, Schema,
    Time64MicrosecondType, TimeUnit, TimestampMicrosecondType, UInt64Type,
};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};

/// Character set of everything else: none (binary).
const BINARY: u16 = 63;

/// Number of characters of a TEXT, or bytes of a BLOB.
const LONGEST: u32 = 65_535;
/// Number of characters of the longest VARCHAR in utf8mb4. Connector/J calls longer texts TEXT.
const LONGEST_VARCHAR: u32 = 16_383;

/// `NOT_FIXED_DEC`: the number of decimals is not fixed.
const NOT_FIXED: u8 = 31;
/// The same for texts of expressions, in MariaDB.
const NOT_FIXED_TEXT: u8 = 39;

/// Bits of a column's flags: `NOT_NULL_FLAG`, `BLOB_FLAG`, `UNSIGNED_FLAG`.
const NOT_NULL: u16 = 1;
const BLOB: u16 = 16;
const UNSIGNED: u16 = 32;
/// `BINARY_FLAG`.
const BYTES: u16 = 128;

/// The encoding of a column's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// No value except NULL.
    Nothing,
    /// An integer of this number of bytes.
    Signed(usize),
    Unsigned(usize),
    Single,
    Double,
    /// Number of digits after the decimal point.
    Decimal(i8),
    Date,
    /// Number of digits of the fraction of a second.
    Moment(u8),
    TimeOfDay(u8),
    /// A time of any number of hours, which may be negative.
    Clock,
    Bytes,
    Text,
}

/// Whether values are sent as text or in the binary format of prepared statements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowFormat {
    /// `ProtocolText::ResultsetRow`.
    Text,
    /// `ProtocolBinary::ResultsetRow`.
    Binary,
}

/// One column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    name: String,
    kind: Kind,
    /// Display width in characters; of texts and binary strings, their greatest length in bytes.
    width: u32,
    is_nullable: bool,
    /// Whether it is read from a column of a table; otherwise it is an expression.
    is_of_table: bool,
    /// Character set of names and texts.
    letters: Letters,
    /// Database, name of the table in the statement, its own name, and the column's own name; empty for a calculated
    /// column.
    origin: [String; 4],
}

/// Returns the number of digits for the fraction of a second in this unit; MySQL supports at most six.
fn digits(unit: TimeUnit) -> u8 {
    match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 3,
        TimeUnit::Microsecond | TimeUnit::Nanosecond => 6,
    }
}

/// Returns the encoding of a type. As in MariaDB, a truth value is a TINYINT(1) in a table and an INT(1) in an
/// expression.
fn kind(of: &DataType, is_of_table: bool) -> Kind {
    match of {
        DataType::Null => Kind::Nothing,
        DataType::Boolean if !is_of_table => Kind::Signed(4),
        DataType::Boolean | DataType::Int8 => Kind::Signed(1),
        DataType::Int16 => Kind::Signed(2),
        DataType::Int32 => Kind::Signed(4),
        DataType::Int64 => Kind::Signed(8),
        DataType::UInt8 => Kind::Unsigned(1),
        DataType::UInt16 => Kind::Unsigned(2),
        DataType::UInt32 => Kind::Unsigned(4),
        DataType::UInt64 => Kind::Unsigned(8),
        DataType::Float16 | DataType::Float32 => Kind::Single,
        DataType::Float64 => Kind::Double,
        DataType::Decimal32(_, scale)
        | DataType::Decimal64(_, scale)
        | DataType::Decimal128(_, scale)
        | DataType::Decimal256(_, scale) => Kind::Decimal(*scale),
        DataType::Date32 | DataType::Date64 => Kind::Date,
        DataType::Timestamp(unit, _) => Kind::Moment(digits(*unit)),
        DataType::Time32(unit) | DataType::Time64(unit) => Kind::TimeOfDay(digits(*unit)),
        DataType::Duration(_) => Kind::Clock,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            Kind::Bytes
        }
        _ => Kind::Text,
    }
}

impl Column {
    fn new(field: &Field, letters: Letters) -> Column {
        let of = field.data_type();
        let is_of_table = field.metadata().contains_key(origins::TABLE);
        let kind = kind(of, is_of_table);
        let point = |digits: u8| u32::from(digits) + u32::from(digits > 0);
        let width = match kind {
            Kind::Nothing => 0,
            // Drivers recognize the boolean of a table by a display width of 1.
            Kind::Signed(_) if *of == DataType::Boolean => 1,
            Kind::Signed(1) => 4,
            Kind::Signed(2) => 6,
            Kind::Signed(4) => 11,
            Kind::Signed(_) => 20,
            Kind::Unsigned(1) => 3,
            Kind::Unsigned(2) => 5,
            Kind::Unsigned(4) => 10,
            Kind::Unsigned(_) => 20,
            Kind::Single => 12,
            Kind::Double => 22,
            Kind::Decimal(scale) => match of {
                DataType::Decimal32(precision, _)
                | DataType::Decimal64(precision, _)
                | DataType::Decimal128(precision, _)
                | DataType::Decimal256(precision, _) => u32::from(*precision) + 1 + u32::from(scale > 0),
                _ => 40,
            },
            Kind::Date => 10,
            Kind::Moment(digits) => 19 + point(digits),
            Kind::TimeOfDay(digits) => 10 + point(digits),
            Kind::Clock => 17,
            Kind::Bytes => LONGEST,
            Kind::Text if is_of_table => LONGEST * letters.longest(),
            Kind::Text => LONGEST_VARCHAR * letters.longest(),
        };
        let origin = [origins::DATABASE, origins::ALIAS, origins::TABLE, origins::COLUMN];
        let origin = origin.map(|key| field.metadata().get(key).cloned().unwrap_or_default());
        let name = column_name(field.name()).to_owned();
        Column { name, kind, width, is_nullable: field.is_nullable(), is_of_table, letters, origin }
    }

    /// Writes the column definition (`ColumnDefinition41`).
    pub fn define(&self, to: &mut Vec<u8>) {
        // Connector/J returns bytes for a TINYINT(1) with this flag, which MySQL has only on numbers of expressions.
        let of_number = if self.is_of_table { 0 } else { BYTES };
        // MYSQL_TYPE_*, character set, flags, number of decimals.
        let (kind, set, flags, digits) = match self.kind {
            Kind::Nothing => (6, BINARY, BYTES, 0),
            Kind::Signed(size) => (number(size), BINARY, of_number, 0),
            Kind::Unsigned(size) => (number(size), BINARY, of_number | UNSIGNED, 0),
            Kind::Single => (4, BINARY, of_number, NOT_FIXED),
            Kind::Double => (5, BINARY, of_number, NOT_FIXED),
            Kind::Decimal(scale) => (246, BINARY, of_number, u8::try_from(scale).unwrap_or(0)),
            Kind::Date => (10, BINARY, BYTES, 0),
            Kind::Moment(digits) => (12, BINARY, BYTES, digits),
            Kind::TimeOfDay(digits) => (11, BINARY, BYTES, digits),
            Kind::Clock => (11, BINARY, BYTES, 6),
            Kind::Bytes if self.is_of_table => (252, BINARY, BYTES | BLOB, 0),
            // VARBINARY.
            Kind::Bytes => (253, BINARY, BYTES, 0),
            Kind::Text if self.is_of_table => (253, self.letters.collation(), 0, 0),
            Kind::Text => (253, self.letters.collation(), 0, NOT_FIXED_TEXT),
        };
        let flags = flags | if self.is_nullable { 0 } else { NOT_NULL };
        let [database, alias, table, column] = &self.origin;
        for part in ["def", database, alias, table, &self.name, column] {
            text(to, &self.letters.encode(part));
        }
        to.push(12);
        to.extend(set.to_le_bytes());
        to.extend(self.width.to_le_bytes());
        to.push(kind);
        to.extend(flags.to_le_bytes());
        to.extend([digits, 0, 0]);
    }
}

/// Returns the type of an integer by its size in bytes: `MYSQL_TYPE_TINY`, `SHORT`, `LONG`, `LONGLONG`.
fn number(size: usize) -> u8 {
    match size {
        1 => 1,
        2 => 2,
        4 => 3,
        _ => 8,
    }
}

/// Returns the columns of a schema.
#[must_use]
pub fn columns(schema: &Schema, letters: Letters) -> Vec<Column> {
    schema.fields().iter().map(|field| Column::new(field, letters)).collect()
}

/// Returns the column definition of a placeholder.
#[must_use]
pub fn placeholder() -> Column {
    Column::new(&Field::new("?", DataType::Utf8, true), Letters::default())
}

/// The rows of a batch, with all columns cast to the types that this module encodes.
#[derive(Debug)]
pub struct Ready {
    columns: Vec<(Kind, ArrayRef)>,
    letters: Letters,
    /// Number of rows.
    pub rows: usize,
}

/// Casts a column to the Arrow type from which its values are encoded.
fn ready(array: &ArrayRef, is_of_table: bool) -> Result<(Kind, ArrayRef), ArrowError> {
    let kind = kind(array.data_type(), is_of_table);
    let plain = match kind {
        Kind::Nothing => return Ok((kind, array.clone())),
        Kind::Signed(_) => DataType::Int64,
        Kind::Unsigned(_) => DataType::UInt64,
        Kind::Single => DataType::Float32,
        Kind::Double => DataType::Float64,
        Kind::Date => DataType::Date32,
        Kind::Moment(_) => DataType::Timestamp(TimeUnit::Microsecond, None),
        Kind::TimeOfDay(_) => DataType::Time64(TimeUnit::Microsecond),
        Kind::Clock => DataType::Duration(TimeUnit::Microsecond),
        Kind::Bytes => DataType::Binary,
        Kind::Text if matches!(array.data_type(), DataType::LargeUtf8 | DataType::Utf8View) => DataType::Utf8,
        Kind::Text if *array.data_type() == DataType::Utf8 => return Ok((kind, array.clone())),
        Kind::Decimal(_) | Kind::Text => {
            let format = ArrayFormatter::try_new(array, &FormatOptions::default())?;
            let show = |row| (!array.is_null(row)).then(|| format.value(row).to_string());
            let shown: StringArray = (0..array.len()).map(show).collect();
            return Ok((kind, std::sync::Arc::new(shown)));
        }
    };
    Ok((kind, cast(array, &plain)?))
}

impl Ready {
    /// Prepares a batch with these columns for encoding.
    ///
    /// # Errors
    /// A cast fails, for example because one batch has more than 2 GiB of strings.
    pub fn new(batch: &RecordBatch, columns: &[Column], letters: Letters) -> Result<Ready, ArrowError> {
        let arrays = batch.columns().iter().zip(columns);
        let columns: Result<_, _> = arrays.map(|(array, column)| ready(array, column.is_of_table)).collect();
        Ok(Ready { columns: columns?, letters, rows: batch.num_rows() })
    }

    /// Encodes a row.
    pub fn write(&self, row: usize, way: RowFormat, to: &mut Vec<u8>) {
        let is_null = |kind: Kind, array: &ArrayRef| kind == Kind::Nothing || array.is_null(row);
        if way == RowFormat::Binary {
            to.push(0);
            // One bit per column, set for NULL; the first two bits are reserved.
            let mut nulls = vec![0; (self.columns.len() + 2).div_ceil(8)];
            for (at, (kind, array)) in self.columns.iter().enumerate() {
                nulls[(at + 2) / 8] |= u8::from(is_null(*kind, array)) << ((at + 2) % 8);
            }
            to.extend(nulls);
        }
        for (kind, array) in &self.columns {
            match (is_null(*kind, array), way) {
                (true, RowFormat::Text) => to.push(0xfb),
                (true, RowFormat::Binary) => {}
                (false, _) if *kind == Kind::Text => {
                    text(to, &self.letters.encode(array.as_string::<i32>().value(row)));
                }
                (false, RowFormat::Text) => as_text(*kind, array, row, to),
                (false, RowFormat::Binary) => as_binary(*kind, array, row, to),
            }
        }
    }
}

fn as_text(kind: Kind, array: &ArrayRef, row: usize, to: &mut Vec<u8>) {
    let shown = match kind {
        Kind::Signed(_) => array.as_primitive::<Int64Type>().value(row).to_string(),
        Kind::Unsigned(_) => array.as_primitive::<UInt64Type>().value(row).to_string(),
        Kind::Single => {
            let value = array.as_primitive::<Float32Type>().value(row);
            real(f64::from(value), &value.to_string(), format!("{value:e}"))
        }
        Kind::Double => {
            let value = array.as_primitive::<Float64Type>().value(row);
            real(value, &value.to_string(), format!("{value:e}"))
        }
        Kind::Date => days::date(array.as_primitive::<Date32Type>().value(row).into()),
        Kind::Moment(digits) => {
            days::moment(array.as_primitive::<TimestampMicrosecondType>().value(row), digits)
        }
        Kind::TimeOfDay(digits) => {
            days::time(array.as_primitive::<Time64MicrosecondType>().value(row), digits)
        }
        Kind::Clock => clock_text(array.as_primitive::<DurationMicrosecondType>().value(row)),
        Kind::Bytes => return text(to, array.as_binary::<i32>().value(row)),
        Kind::Nothing | Kind::Decimal(_) | Kind::Text => {
            return text(to, array.as_string::<i32>().value(row).as_bytes());
        }
    };
    text(to, shown.as_bytes());
}

fn as_binary(kind: Kind, array: &ArrayRef, row: usize, to: &mut Vec<u8>) {
    match kind {
        Kind::Signed(size) => {
            to.extend(&array.as_primitive::<Int64Type>().value(row).to_le_bytes()[..size]);
        }
        Kind::Unsigned(size) => {
            to.extend(&array.as_primitive::<UInt64Type>().value(row).to_le_bytes()[..size]);
        }
        Kind::Single => to.extend(array.as_primitive::<Float32Type>().value(row).to_le_bytes()),
        Kind::Double => to.extend(array.as_primitive::<Float64Type>().value(row).to_le_bytes()),
        Kind::Date => {
            length(to, 4);
            to.extend(days::date_bytes(array.as_primitive::<Date32Type>().value(row).into()));
        }
        Kind::Moment(_) => {
            let micros = array.as_primitive::<TimestampMicrosecondType>().value(row);
            let (day, of_day) = (micros.div_euclid(days::MICROS), micros.rem_euclid(days::MICROS));
            let mut bytes = [0; 11];
            bytes[..4].copy_from_slice(&days::date_bytes(day));
            bytes[4..].copy_from_slice(&days::time_bytes(of_day));
            shortest(to, &bytes, &[0, 4, 7]);
        }
        Kind::TimeOfDay(_) => {
            // The sign (not negative), then the number of days (0).
            let mut bytes = [0; 12];
            let micros = array.as_primitive::<Time64MicrosecondType>().value(row);
            bytes[5..].copy_from_slice(&days::time_bytes(micros));
            shortest(to, &bytes, &[0, 8]);
        }
        Kind::Clock => {
            let micros = array.as_primitive::<DurationMicrosecondType>().value(row);
            let (days, of_day) = (micros.abs() / days::MICROS, micros.abs() % days::MICROS);
            let mut bytes = [0; 12];
            bytes[0] = u8::from(micros < 0);
            bytes[1..5].copy_from_slice(&u32::try_from(days).unwrap_or(u32::MAX).to_le_bytes());
            bytes[5..].copy_from_slice(&days::time_bytes(of_day));
            shortest(to, &bytes, &[0, 8]);
        }
        Kind::Bytes | Kind::Nothing | Kind::Decimal(_) | Kind::Text => as_text(kind, array, row, to),
    }
}

/// Writes a date with a time, or a time, with its length: the shortest of these that leaves out only zeros at the end,
/// or all bytes.
fn shortest(to: &mut Vec<u8>, bytes: &[u8], sizes: &[usize]) {
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let size = sizes.iter().copied().find(|size| *size >= used).unwrap_or(bytes.len());
    length(to, size as u64);
    to.extend(&bytes[..size]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::{
        BooleanArray, DurationMicrosecondArray, Time64MicrosecondArray, TimestampMicrosecondArray,
    };
    use std::sync::Arc;

    fn field(of: DataType, is_of_table: bool) -> Field {
        let table = is_of_table.then(|| (origins::TABLE.to_owned(), "t".to_owned()));
        Field::new("a", of, false).with_metadata(table.into_iter().collect())
    }

    /// The character set, width, type, flags and number of decimals of a column.
    fn definition(of: DataType, is_of_table: bool) -> (u16, u32, u8, u16, u8) {
        let mut packet = Vec::new();
        Column::new(&field(of, is_of_table), Letters::Utf8).define(&mut packet);
        let [s0, s1, w0, w1, w2, w3, kind, f0, f1, digits, 0, 0] = packet[packet.len() - 12..] else {
            panic!("{packet:?}");
        };
        let (set, width) = (u16::from_le_bytes([s0, s1]), u32::from_le_bytes([w0, w1, w2, w3]));
        (set, width, kind, u16::from_le_bytes([f0, f1]), digits)
    }

    /// The only cell of a row in the binary format.
    fn cell(array: ArrayRef, is_of_table: bool) -> Vec<u8> {
        let schema = Schema::new(vec![field(array.data_type().clone(), is_of_table)]);
        let columns = columns(&schema, Letters::Utf8);
        let batch = RecordBatch::try_new(Arc::new(schema), vec![array]).unwrap();
        let mut packet = Vec::new();
        Ready::new(&batch, &columns, Letters::Utf8).unwrap().write(0, RowFormat::Binary, &mut packet);
        assert_eq!(packet[..2], [0, 0], "the start of a row, and no NULL");
        packet.split_off(2)
    }

    /// What MariaDB 10.11 sends for columns that are never NULL. It sends texts of tables as BLOB, though, and the real
    /// length of strings of expressions.
    #[test]
    fn definitions() {
        for (of, is_of_table, want) in [
            (DataType::Int8, true, (63, 4, 1, 1, 0)),
            (DataType::Int32, false, (63, 11, 3, 129, 0)),
            (DataType::UInt64, true, (63, 20, 8, 33, 0)),
            (DataType::Boolean, true, (63, 1, 1, 1, 0)),
            (DataType::Boolean, false, (63, 1, 3, 129, 0)),
            (DataType::Float64, true, (63, 22, 5, 1, 31)),
            (DataType::Decimal128(10, 2), true, (63, 12, 246, 1, 2)),
            (DataType::Decimal128(10, 2), false, (63, 12, 246, 129, 2)),
            (DataType::Date32, true, (63, 10, 10, 129, 0)),
            (DataType::Binary, true, (63, 65_535, 252, 145, 0)),
            (DataType::Binary, false, (63, 65_535, 253, 129, 0)),
            (DataType::Utf8, true, (45, 262_140, 253, 1, 0)),
            (DataType::Utf8, false, (45, 65_532, 253, 1, 39)),
        ] {
            assert_eq!(definition(of.clone(), is_of_table), want, "{of} {is_of_table}");
        }
    }

    #[test]
    fn truth_values_have_the_size_of_their_type() {
        let array: ArrayRef = Arc::new(BooleanArray::from(vec![true]));
        assert_eq!(cell(Arc::clone(&array), true), [1]);
        assert_eq!(cell(array, false), [1, 0, 0, 0]);
    }

    #[test]
    fn times_are_as_short_as_their_content() {
        let day = 19_782 * days::MICROS;
        for (micros, want) in [
            (day, &[4_u8, 0xe8, 7, 2, 29][..]),
            (day + 3_600_000_000, &[7, 0xe8, 7, 2, 29, 1, 0, 0]),
            (day + 1_000_000, &[7, 0xe8, 7, 2, 29, 0, 0, 1]),
            (day + 256, &[11, 0xe8, 7, 2, 29, 0, 0, 0, 0, 1, 0, 0]),
        ] {
            assert_eq!(cell(Arc::new(TimestampMicrosecondArray::from(vec![micros])), true), want);
        }
        for (micros, want) in [
            (0, &[0_u8][..]),
            (3_723_000_000, &[8, 0, 0, 0, 0, 0, 1, 2, 3]),
            (1, &[12, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]),
        ] {
            assert_eq!(cell(Arc::new(Time64MicrosecondArray::from(vec![micros])), true), want);
            assert_eq!(cell(Arc::new(DurationMicrosecondArray::from(vec![micros])), true), want);
        }
        let negative = cell(Arc::new(DurationMicrosecondArray::from(vec![-days::MICROS])), false);
        assert_eq!(negative, [8, 1, 1, 0, 0, 0, 0, 0, 0]);
    }
}
