//! The tables `tables`, `columns` and `schemata` of `information_schema` with MySQL's columns, which drivers and
//! editors query (`DatabaseMetaData` of JDBC, completion), and the tables `statistics` and `key_column_usage`, which
//! are empty. Values that a Parquet or CSV file does not provide are NULL or empty.

use super::data::INFORMATION_SCHEMA;
use super::error::Error;
use super::grid::{Grid, INT, TEXT, int, text};
use super::mysql_tables;
use super::schema::{CATALOG, Names};
use super::show::type_name;
use super::system::System;
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::catalog::TableProvider;
use datafusion::common::ScalarValue;
use datafusion::datasource::MemTable;
use std::sync::Arc;

/// Maximum length of a string, as for LONGTEXT in MySQL.
const LONGTEXT: u64 = u32::MAX as u64;

const STATISTICS: [(&str, DataType); 16] = [
    ("TABLE_CATALOG", TEXT),
    ("TABLE_SCHEMA", TEXT),
    ("TABLE_NAME", TEXT),
    ("NON_UNIQUE", INT),
    ("INDEX_SCHEMA", TEXT),
    ("INDEX_NAME", TEXT),
    ("SEQ_IN_INDEX", INT),
    ("COLUMN_NAME", TEXT),
    ("COLLATION", TEXT),
    ("CARDINALITY", INT),
    ("SUB_PART", INT),
    ("PACKED", TEXT),
    ("NULLABLE", TEXT),
    ("INDEX_TYPE", TEXT),
    ("COMMENT", TEXT),
    ("INDEX_COMMENT", TEXT),
];

const KEY_COLUMN_USAGE: [(&str, DataType); 12] = [
    ("CONSTRAINT_CATALOG", TEXT),
    ("CONSTRAINT_SCHEMA", TEXT),
    ("CONSTRAINT_NAME", TEXT),
    ("TABLE_CATALOG", TEXT),
    ("TABLE_SCHEMA", TEXT),
    ("TABLE_NAME", TEXT),
    ("COLUMN_NAME", TEXT),
    ("ORDINAL_POSITION", INT),
    ("POSITION_IN_UNIQUE_CONSTRAINT", INT),
    ("REFERENCED_TABLE_SCHEMA", TEXT),
    ("REFERENCED_TABLE_NAME", TEXT),
    ("REFERENCED_COLUMN_NAME", TEXT),
];

const NONE: ScalarValue = ScalarValue::Utf8(None);
const NO_NUMBER: ScalarValue = ScalarValue::Int64(None);

/// Returns the table with this name and its current rows; `None` for other names. Names are compared
/// case-insensitively.
///
/// # Errors
/// The rows do not match the columns: a bug in this program.
pub async fn table(names: &Names, name: &str) -> Result<Option<Arc<dyn TableProvider>>, Error> {
    let grid = match name.to_ascii_lowercase().as_str() {
        "schemata" => schemata(names),
        "tables" => tables(names),
        "columns" => columns(names).await,
        // Files have neither indexes nor keys.
        "statistics" => Grid::new(&STATISTICS),
        "key_column_usage" => Grid::new(&KEY_COLUMN_USAGE),
        name => match mysql_tables::table(name) {
            Some(grid) => grid,
            None => return Ok(None),
        },
    };
    let batch = grid.batch()?;
    Ok(Some(Arc::new(MemTable::try_new(batch.schema(), vec![vec![batch]])?)))
}

fn schemata(names: &Names) -> Grid {
    let mut grid = Grid::texts(&[
        "CATALOG_NAME",
        "SCHEMA_NAME",
        "DEFAULT_CHARACTER_SET_NAME",
        "DEFAULT_COLLATION_NAME",
        "SQL_PATH",
    ]);
    for database in names.databases() {
        let known = [CATALOG, &database, "utf8mb4", "utf8mb4_general_ci"];
        grid.row(known.into_iter().map(text).chain([NONE]).collect());
    }
    grid
}

fn tables(names: &Names) -> Grid {
    let mut grid = Grid::new(&[
        ("TABLE_CATALOG", TEXT),
        ("TABLE_SCHEMA", TEXT),
        ("TABLE_NAME", TEXT),
        ("TABLE_TYPE", TEXT),
        ("ENGINE", TEXT),
        ("VERSION", INT),
        ("ROW_FORMAT", TEXT),
        ("TABLE_ROWS", INT),
        ("AVG_ROW_LENGTH", INT),
        ("DATA_LENGTH", INT),
        ("MAX_DATA_LENGTH", INT),
        ("INDEX_LENGTH", INT),
        ("DATA_FREE", INT),
        ("AUTO_INCREMENT", INT),
        ("CREATE_TIME", TEXT),
        ("UPDATE_TIME", TEXT),
        ("CHECK_TIME", TEXT),
        ("TABLE_COLLATION", TEXT),
        ("CHECKSUM", INT),
        ("CREATE_OPTIONS", TEXT),
        ("TABLE_COMMENT", TEXT),
    ]);
    for database in names.databases() {
        let kind = if database == INFORMATION_SCHEMA { "SYSTEM VIEW" } else { "BASE TABLE" };
        for table in names.tables(&database) {
            let mut row: Vec<ScalarValue> = [CATALOG, &database, &table, kind].map(text).to_vec();
            row.extend([NONE, NO_NUMBER, NONE]);
            row.extend(vec![NO_NUMBER; 7]);
            row.extend([NONE, NONE, NONE, text("utf8mb4_general_ci"), NO_NUMBER, text(""), text("")]);
            grid.row(row);
        }
    }
    grid
}

async fn columns(names: &Names) -> Grid {
    let mut grid = Grid::new(&[
        ("TABLE_CATALOG", TEXT),
        ("TABLE_SCHEMA", TEXT),
        ("TABLE_NAME", TEXT),
        ("COLUMN_NAME", TEXT),
        ("ORDINAL_POSITION", INT),
        ("COLUMN_DEFAULT", TEXT),
        ("IS_NULLABLE", TEXT),
        ("DATA_TYPE", TEXT),
        ("CHARACTER_MAXIMUM_LENGTH", INT),
        ("CHARACTER_OCTET_LENGTH", INT),
        ("NUMERIC_PRECISION", INT),
        ("NUMERIC_SCALE", INT),
        ("DATETIME_PRECISION", INT),
        ("CHARACTER_SET_NAME", TEXT),
        ("COLLATION_NAME", TEXT),
        ("COLUMN_TYPE", TEXT),
        ("COLUMN_KEY", TEXT),
        ("EXTRA", TEXT),
        ("PRIVILEGES", TEXT),
        ("COLUMN_COMMENT", TEXT),
        ("GENERATION_EXPRESSION", TEXT),
    ]);
    for database in names.databases() {
        for table in names.tables(&database) {
            // Of the tables in `information_schema`, only those for workload groups; DESCRIBE shows the others.
            let itself = database == INFORMATION_SCHEMA && !System::has(&table);
            let found = if itself { None } else { names.table(&database, &table).await.ok().flatten() };
            let Some(found) = found else { continue };
            for (at, field) in found.schema().fields().iter().enumerate() {
                grid.row(column(&database, &table, at, field));
            }
        }
    }
    grid
}

fn column(database: &str, table: &str, at: usize, field: &Field) -> Vec<ScalarValue> {
    let whole = type_name(field.data_type());
    let end = whole.find(['(', ' ']).unwrap_or(whole.len());
    let short = whole.get(..end).unwrap_or(&whole);
    let texts = short == "text";
    let length = if texts || short == "blob" { int(LONGTEXT) } else { NO_NUMBER };
    let (precision, scale) = digits(field.data_type());
    let time = if short == "datetime" { int(6) } else { NO_NUMBER };
    let letters = |name: &str| if texts { text(name) } else { NONE };
    vec![
        text(CATALOG),
        text(database),
        text(table),
        text(field.name()),
        int(at as u64 + 1),
        NONE,
        text(if field.is_nullable() { "YES" } else { "NO" }),
        text(short),
        length.clone(),
        length,
        precision,
        scale,
        time,
        letters("utf8mb4"),
        letters("utf8mb4_general_ci"),
        text(whole),
        text(""),
        text(""),
        text("select"),
        text(""),
        text(""),
    ]
}

/// Returns precision and scale of a number, as MySQL defines them.
fn digits(kind: &DataType) -> (ScalarValue, ScalarValue) {
    let digits = match kind {
        DataType::Boolean | DataType::Int8 | DataType::UInt8 => 3,
        DataType::Int16 | DataType::UInt16 => 5,
        DataType::Int32 | DataType::UInt32 => 10,
        DataType::Int64 => 19,
        DataType::UInt64 => 20,
        DataType::Decimal128(precision, scale) => {
            return (int(u64::from(*precision)), ScalarValue::Int64(Some(i64::from(*scale))));
        }
        DataType::Float16 | DataType::Float32 => return (int(12), NO_NUMBER),
        DataType::Float64 => return (int(22), NO_NUMBER),
        _ => return (NO_NUMBER, NO_NUMBER),
    };
    (int(digits), int(0))
}
