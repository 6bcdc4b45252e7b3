//! Tables of `information_schema` that MySQL has, and of which all rows are known here: there are no keys, routines,
//! triggers or events, and one character set.

use super::grid::{Grid, INT, TEXT, int, text};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::ScalarValue;

/// Name, columns (`#` marks those with integers), rows.
type Known = (&'static str, &'static str, &'static [&'static [&'static str]]);

const TABLES: [Known; 24] = [
    (
        "character_sets",
        "CHARACTER_SET_NAME DEFAULT_COLLATE_NAME DESCRIPTION MAXLEN#",
        &[
            &["utf8mb4", "utf8mb4_general_ci", "UTF-8 Unicode", "4"],
            &["binary", "binary", "Binary pseudo charset", "1"],
        ],
    ),
    (
        "collations",
        "COLLATION_NAME CHARACTER_SET_NAME ID# IS_DEFAULT IS_COMPILED SORTLEN#",
        &[
            &["utf8mb4_general_ci", "utf8mb4", "45", "Yes", "Yes", "1"],
            &["utf8mb4_bin", "utf8mb4", "46", "", "Yes", "1"],
            &["binary", "binary", "63", "Yes", "Yes", "1"],
        ],
    ),
    (
        "collation_character_set_applicability",
        "COLLATION_NAME CHARACTER_SET_NAME",
        &[&["utf8mb4_general_ci", "utf8mb4"], &["utf8mb4_bin", "utf8mb4"], &["binary", "binary"]],
    ),
    (
        "engines",
        "ENGINE SUPPORT COMMENT TRANSACTIONS XA SAVEPOINTS",
        &[&["Files", "DEFAULT", "Parquet, CSV and JSON files", "NO", "NO", "NO"]],
    ),
    (
        "table_constraints",
        "CONSTRAINT_CATALOG CONSTRAINT_SCHEMA CONSTRAINT_NAME TABLE_SCHEMA TABLE_NAME CONSTRAINT_TYPE ENFORCED",
        &[],
    ),
    (
        "referential_constraints",
        "CONSTRAINT_CATALOG CONSTRAINT_SCHEMA CONSTRAINT_NAME UNIQUE_CONSTRAINT_CATALOG UNIQUE_CONSTRAINT_SCHEMA \
         UNIQUE_CONSTRAINT_NAME MATCH_OPTION UPDATE_RULE DELETE_RULE TABLE_NAME REFERENCED_TABLE_NAME",
        &[],
    ),
    ("check_constraints", "CONSTRAINT_CATALOG CONSTRAINT_SCHEMA CONSTRAINT_NAME CHECK_CLAUSE", &[]),
    (
        "routines",
        "SPECIFIC_NAME ROUTINE_CATALOG ROUTINE_SCHEMA ROUTINE_NAME ROUTINE_TYPE DATA_TYPE CHARACTER_MAXIMUM_LENGTH# \
         CHARACTER_OCTET_LENGTH# NUMERIC_PRECISION# NUMERIC_SCALE# DATETIME_PRECISION# CHARACTER_SET_NAME COLLATION_NAME \
         DTD_IDENTIFIER ROUTINE_BODY ROUTINE_DEFINITION EXTERNAL_NAME EXTERNAL_LANGUAGE PARAMETER_STYLE IS_DETERMINISTIC \
         SQL_DATA_ACCESS SQL_PATH SECURITY_TYPE CREATED LAST_ALTERED SQL_MODE ROUTINE_COMMENT DEFINER \
         CHARACTER_SET_CLIENT COLLATION_CONNECTION DATABASE_COLLATION",
        &[],
    ),
    (
        "parameters",
        "SPECIFIC_CATALOG SPECIFIC_SCHEMA SPECIFIC_NAME ORDINAL_POSITION# PARAMETER_MODE PARAMETER_NAME DATA_TYPE \
         CHARACTER_MAXIMUM_LENGTH# CHARACTER_OCTET_LENGTH# NUMERIC_PRECISION# NUMERIC_SCALE# DATETIME_PRECISION# \
         CHARACTER_SET_NAME COLLATION_NAME DTD_IDENTIFIER ROUTINE_TYPE",
        &[],
    ),
    (
        "triggers",
        "TRIGGER_CATALOG TRIGGER_SCHEMA TRIGGER_NAME EVENT_MANIPULATION EVENT_OBJECT_CATALOG EVENT_OBJECT_SCHEMA \
         EVENT_OBJECT_TABLE ACTION_ORDER# ACTION_CONDITION ACTION_STATEMENT ACTION_ORIENTATION ACTION_TIMING \
         ACTION_REFERENCE_OLD_TABLE ACTION_REFERENCE_NEW_TABLE ACTION_REFERENCE_OLD_ROW ACTION_REFERENCE_NEW_ROW CREATED \
         SQL_MODE DEFINER CHARACTER_SET_CLIENT COLLATION_CONNECTION DATABASE_COLLATION",
        &[],
    ),
    (
        "events",
        "EVENT_CATALOG EVENT_SCHEMA EVENT_NAME DEFINER TIME_ZONE EVENT_BODY EVENT_DEFINITION EVENT_TYPE EXECUTE_AT \
         INTERVAL_VALUE INTERVAL_FIELD SQL_MODE STARTS ENDS STATUS ON_COMPLETION CREATED LAST_ALTERED LAST_EXECUTED \
         EVENT_COMMENT ORIGINATOR# CHARACTER_SET_CLIENT COLLATION_CONNECTION DATABASE_COLLATION",
        &[],
    ),
    (
        "partitions",
        "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME PARTITION_NAME SUBPARTITION_NAME PARTITION_ORDINAL_POSITION# \
         SUBPARTITION_ORDINAL_POSITION# PARTITION_METHOD SUBPARTITION_METHOD PARTITION_EXPRESSION \
         SUBPARTITION_EXPRESSION PARTITION_DESCRIPTION TABLE_ROWS# AVG_ROW_LENGTH# DATA_LENGTH# MAX_DATA_LENGTH# \
         INDEX_LENGTH# DATA_FREE# CREATE_TIME UPDATE_TIME CHECK_TIME CHECKSUM# PARTITION_COMMENT NODEGROUP \
         TABLESPACE_NAME",
        &[],
    ),
    (
        "views",
        "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME VIEW_DEFINITION CHECK_OPTION IS_UPDATABLE DEFINER SECURITY_TYPE \
         CHARACTER_SET_CLIENT COLLATION_CONNECTION",
        &[],
    ),
    ("user_privileges", "GRANTEE TABLE_CATALOG PRIVILEGE_TYPE IS_GRANTABLE", &[]),
    ("schema_privileges", "GRANTEE TABLE_CATALOG TABLE_SCHEMA PRIVILEGE_TYPE IS_GRANTABLE", &[]),
    ("table_privileges", "GRANTEE TABLE_CATALOG TABLE_SCHEMA TABLE_NAME PRIVILEGE_TYPE IS_GRANTABLE", &[]),
    (
        "column_privileges",
        "GRANTEE TABLE_CATALOG TABLE_SCHEMA TABLE_NAME COLUMN_NAME PRIVILEGE_TYPE IS_GRANTABLE",
        &[],
    ),
    ("keywords", "WORD RESERVED#", &[]),
    (
        "plugins",
        "PLUGIN_NAME PLUGIN_VERSION PLUGIN_STATUS PLUGIN_TYPE PLUGIN_TYPE_VERSION PLUGIN_LIBRARY \
         PLUGIN_LIBRARY_VERSION PLUGIN_AUTHOR PLUGIN_DESCRIPTION PLUGIN_LICENSE LOAD_OPTION",
        &[],
    ),
    (
        "files",
        "FILE_ID# FILE_NAME FILE_TYPE TABLESPACE_NAME TABLE_CATALOG TABLE_SCHEMA TABLE_NAME LOGFILE_GROUP_NAME \
         LOGFILE_GROUP_NUMBER# ENGINE",
        &[],
    ),
    ("optimizer_trace", "QUERY TRACE MISSING_BYTES_BEYOND_MAX_MEM_SIZE# INSUFFICIENT_PRIVILEGES#", &[]),
    (
        "innodb_tables",
        "TABLE_ID# NAME FLAG# N_COLS# SPACE# ROW_FORMAT ZIP_PAGE_SIZE# SPACE_TYPE INSTANT_COLS#",
        &[],
    ),
    (
        "st_geometry_columns",
        "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME COLUMN_NAME SRS_NAME SRS_ID# GEOMETRY_TYPE_NAME",
        &[],
    ),
    ("tablespaces", "TABLESPACE_NAME ENGINE TABLESPACE_TYPE LOGFILE_GROUP_NAME EXTENT_SIZE#", &[]),
];

/// Returns the names of these tables.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLES.iter().map(|(name, ..)| *name)
}

/// Returns a table; `None` for other names. Names are compared case-insensitively.
#[must_use]
pub fn table(name: &str) -> Option<Grid> {
    let (_, columns, rows) = TABLES.iter().find(|(known, ..)| known.eq_ignore_ascii_case(name))?;
    let columns: Vec<(&str, DataType)> = columns
        .split_whitespace()
        .map(|column| column.strip_suffix('#').map_or((column, TEXT), |column| (column, INT)))
        .collect();
    let mut grid = Grid::new(&columns);
    for row in *rows {
        let cell = |(value, (_, kind)): (&&str, &(&str, DataType))| match *kind == INT {
            true => value.parse().map_or(ScalarValue::Int64(None), int),
            false => text(*value),
        };
        grid.row(row.iter().zip(&columns).map(cell).collect());
    }
    Some(grid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_all_columns() {
        for (name, columns, rows) in TABLES {
            assert!(table(name).unwrap().batch().is_ok(), "{name}");
            for row in rows {
                assert_eq!(row.len(), columns.split_whitespace().count(), "{name}: {row:?}");
            }
        }
    }
}
