//! SHOW statements that MySQL clients send by themselves, in terms of `information_schema`: each is a query over one of its
//! tables, with the titles that MySQL gives its columns.

use super::cursor::Cursor;
use super::quotes::{in_backticks, in_quotes};
use super::syntax::{Assignment, PassedOn, Statement, SyntaxError, Value};
use sqlparser::tokenizer::Token;

/// What stands between SHOW and the filter.
enum ShowTarget {
    /// Nothing.
    Nowhere,
    /// `[FROM database]`; the column with its name.
    Database(&'static str),
    /// `FROM table [FROM database]`.
    Table,
}

/// The words after SHOW, the table, its condition, the place, and the titles with the columns.
type Form = (
    &'static [&'static [&'static str]],
    &'static str,
    &'static str,
    ShowTarget,
    &'static [(&'static str, &'static str)],
);

const LETTERS: [(&str, &str); 3] = [
    ("character_set_client", "CHARACTER_SET_CLIENT"),
    ("collation_connection", "COLLATION_CONNECTION"),
    ("Database Collation", "DATABASE_COLLATION"),
];

const ROUTINE: [(&str, &str); 11] = [
    ("Db", "ROUTINE_SCHEMA"),
    ("Name", "ROUTINE_NAME"),
    ("Type", "ROUTINE_TYPE"),
    ("Definer", "DEFINER"),
    ("Modified", "LAST_ALTERED"),
    ("Created", "CREATED"),
    ("Security_type", "SECURITY_TYPE"),
    ("Comment", "ROUTINE_COMMENT"),
    LETTERS[0],
    LETTERS[1],
    LETTERS[2],
];

const FORMS: [Form; 12] = [
    (
        &[&["CHARACTER", "SET"], &["CHARSET"]],
        "character_sets",
        "",
        ShowTarget::Nowhere,
        &[
            ("Charset", "CHARACTER_SET_NAME"),
            ("Description", "DESCRIPTION"),
            ("Default collation", "DEFAULT_COLLATE_NAME"),
            ("Maxlen", "MAXLEN"),
        ],
    ),
    (
        &[&["COLLATION"]],
        "collations",
        "",
        ShowTarget::Nowhere,
        &[
            ("Collation", "COLLATION_NAME"),
            ("Charset", "CHARACTER_SET_NAME"),
            ("Id", "ID"),
            ("Default", "IS_DEFAULT"),
            ("Compiled", "IS_COMPILED"),
            ("Sortlen", "SORTLEN"),
        ],
    ),
    (
        &[&["ENGINES"], &["STORAGE", "ENGINES"]],
        "engines",
        "",
        ShowTarget::Nowhere,
        &[
            ("Engine", "ENGINE"),
            ("Support", "SUPPORT"),
            ("Comment", "COMMENT"),
            ("Transactions", "TRANSACTIONS"),
            ("XA", "XA"),
            ("Savepoints", "SAVEPOINTS"),
        ],
    ),
    (
        &[&["PLUGINS"]],
        "plugins",
        "",
        ShowTarget::Nowhere,
        &[
            ("Name", "PLUGIN_NAME"),
            ("Status", "PLUGIN_STATUS"),
            ("Type", "PLUGIN_TYPE"),
            ("Library", "PLUGIN_LIBRARY"),
            ("License", "PLUGIN_LICENSE"),
        ],
    ),
    (
        &[&["PRIVILEGES"]],
        "user_privileges",
        "FALSE",
        ShowTarget::Nowhere,
        &[("Privilege", "PRIVILEGE_TYPE"), ("Context", "GRANTEE"), ("Comment", "IS_GRANTABLE")],
    ),
    (
        &[&["TRIGGERS"], &["FULL", "TRIGGERS"]],
        "triggers",
        "",
        ShowTarget::Database("TRIGGER_SCHEMA"),
        &[
            ("Trigger", "TRIGGER_NAME"),
            ("Event", "EVENT_MANIPULATION"),
            ("Table", "EVENT_OBJECT_TABLE"),
            ("Statement", "ACTION_STATEMENT"),
            ("Timing", "ACTION_TIMING"),
            ("Created", "CREATED"),
            ("sql_mode", "SQL_MODE"),
            ("Definer", "DEFINER"),
            LETTERS[0],
            LETTERS[1],
            LETTERS[2],
        ],
    ),
    (
        &[&["EVENTS"]],
        "events",
        "",
        ShowTarget::Database("EVENT_SCHEMA"),
        &[
            ("Db", "EVENT_SCHEMA"),
            ("Name", "EVENT_NAME"),
            ("Definer", "DEFINER"),
            ("Time zone", "TIME_ZONE"),
            ("Type", "EVENT_TYPE"),
            ("Execute at", "EXECUTE_AT"),
            ("Interval value", "INTERVAL_VALUE"),
            ("Interval field", "INTERVAL_FIELD"),
            ("Starts", "STARTS"),
            ("Ends", "ENDS"),
            ("Status", "STATUS"),
            ("Originator", "ORIGINATOR"),
            LETTERS[0],
            LETTERS[1],
            LETTERS[2],
        ],
    ),
    (
        &[&["TABLE", "STATUS"]],
        "tables",
        "",
        ShowTarget::Database("TABLE_SCHEMA"),
        &[
            ("Name", "TABLE_NAME"),
            ("Engine", "ENGINE"),
            ("Version", "VERSION"),
            ("Row_format", "ROW_FORMAT"),
            ("Rows", "TABLE_ROWS"),
            ("Avg_row_length", "AVG_ROW_LENGTH"),
            ("Data_length", "DATA_LENGTH"),
            ("Max_data_length", "MAX_DATA_LENGTH"),
            ("Index_length", "INDEX_LENGTH"),
            ("Data_free", "DATA_FREE"),
            ("Auto_increment", "AUTO_INCREMENT"),
            ("Create_time", "CREATE_TIME"),
            ("Update_time", "UPDATE_TIME"),
            ("Check_time", "CHECK_TIME"),
            ("Collation", "TABLE_COLLATION"),
            ("Checksum", "CHECKSUM"),
            ("Create_options", "CREATE_OPTIONS"),
            ("Comment", "TABLE_COMMENT"),
        ],
    ),
    (
        &[&["OPEN", "TABLES"]],
        "tables",
        "FALSE",
        ShowTarget::Database("TABLE_SCHEMA"),
        &[
            ("Database", "TABLE_SCHEMA"),
            ("Table", "TABLE_NAME"),
            ("In_use", "VERSION"),
            ("Name_locked", "VERSION"),
        ],
    ),
    (
        &[&["INDEX"], &["INDEXES"], &["KEYS"]],
        "statistics",
        "",
        ShowTarget::Table,
        &[
            ("Table", "TABLE_NAME"),
            ("Non_unique", "NON_UNIQUE"),
            ("Key_name", "INDEX_NAME"),
            ("Seq_in_index", "SEQ_IN_INDEX"),
            ("Column_name", "COLUMN_NAME"),
            ("Collation", "COLLATION"),
            ("Cardinality", "CARDINALITY"),
            ("Sub_part", "SUB_PART"),
            ("Packed", "PACKED"),
            ("Null", "NULLABLE"),
            ("Index_type", "INDEX_TYPE"),
            ("Comment", "COMMENT"),
            ("Index_comment", "INDEX_COMMENT"),
        ],
    ),
    (&[&["PROCEDURE", "STATUS"]], "routines", "ROUTINE_TYPE = 'PROCEDURE'", ShowTarget::Nowhere, &ROUTINE),
    (&[&["FUNCTION", "STATUS"]], "routines", "ROUTINE_TYPE = 'FUNCTION'", ShowTarget::Nowhere, &ROUTINE),
];

/// The columns of `SHOW REPLICA STATUS`. A column with a `#` has numbers.
const REPLICA: &str = "Replica_IO_State Source_Host Source_User Source_Port# Connect_Retry# Source_Log_File \
     Read_Source_Log_Pos# Relay_Log_File Relay_Log_Pos# Relay_Source_Log_File Replica_IO_Running \
     Replica_SQL_Running Replicate_Do_DB Replicate_Ignore_DB Replicate_Do_Table Replicate_Ignore_Table \
     Replicate_Wild_Do_Table Replicate_Wild_Ignore_Table Last_Errno# Last_Error Skip_Counter# \
     Exec_Source_Log_Pos# Relay_Log_Space# Until_Condition Until_Log_File Until_Log_Pos# \
     Source_SSL_Allowed Source_SSL_CA_File Source_SSL_CA_Path Source_SSL_Cert Source_SSL_Cipher \
     Source_SSL_Key Seconds_Behind_Source# Source_SSL_Verify_Server_Cert Last_IO_Errno# Last_IO_Error \
     Last_SQL_Errno# Last_SQL_Error Replicate_Ignore_Server_Ids Source_Server_Id# Source_UUID \
     Source_Info_File SQL_Delay# SQL_Remaining_Delay# Replica_SQL_Running_State Source_Retry_Count# \
     Source_Bind Last_IO_Error_Timestamp Last_SQL_Error_Timestamp Source_SSL_Crl Source_SSL_Crlpath \
     Retrieved_Gtid_Set Executed_Gtid_Set Auto_Position# Replicate_Rewrite_DB Channel_Name \
     Source_TLS_Version";

/// Statements about what this server does not have: their words, and their columns. Before MySQL 8.0.22, a source was a
/// master and a replica a slave.
const EMPTY: [(&[&str], &str); 7] = [
    (&["REPLICA", "STATUS"], REPLICA),
    (&["SLAVE", "STATUS"], REPLICA),
    (&["REPLICAS"], "Server_Id# Host Port# Source_Id# Replica_UUID"),
    (&["SLAVE", "HOSTS"], "Server_Id# Host Port# Source_Id# Replica_UUID"),
    (&["MASTER", "STATUS"], "File Position# Binlog_Do_DB Binlog_Ignore_DB Executed_Gtid_Set"),
    (&["BINARY", "LOG", "STATUS"], "File Position# Binlog_Do_DB Binlog_Ignore_DB Executed_Gtid_Set"),
    (&["PROFILES"], "Query_ID# Duration# Query"),
];

/// Parses a statement whose answer has no rows, and returns the query for it.
fn empty(cursor: &mut Cursor) -> Result<Option<String>, SyntaxError> {
    let words = EMPTY.iter().find(|(words, _)| cursor.take(&[&["SHOW"][..], *words].concat()));
    let Some((words, columns)) = words else { return Ok(None) };
    let is_old = words.contains(&"SLAVE");
    if words.contains(&"STATUS") && cursor.take(&["FOR", "CHANNEL"]) {
        cursor.quoted("a channel in quotes")?;
    }
    let columns: Vec<String> = columns
        .split_whitespace()
        .map(|column| {
            let (title, value) = column.strip_suffix('#').map_or((column, "''"), |title| (title, "0"));
            let title = match is_old {
                true => title.replace("Replica_", "Slave_").replace("Source", "Master"),
                false => title.to_owned(),
            };
            format!("{value} AS `{title}`")
        })
        .collect();
    Ok(Some(format!("SELECT {} FROM information_schema.user_privileges WHERE FALSE", columns.join(", "))))
}

/// Parses one of these statements; returns `None` for others.
pub(super) fn statement(cursor: &mut Cursor) -> Result<Option<Statement>, SyntaxError> {
    if let Some(text) = of_one_column(cursor).map_or_else(|| empty(cursor), |text| Ok(Some(text)))? {
        return Ok(Some(Statement::PassedOn(PassedOn { text, variables: Vec::new() })));
    }
    for (spellings, table, condition, place, columns) in &FORMS {
        let taken = spellings.iter().any(|words| cursor.take(&[&["SHOW"][..], *words].concat()));
        if taken {
            let (text, has_condition) = query(cursor, table, condition, place, columns)?;
            // It reads no row of the table that it names, so it does not wait for a place. A condition may read others.
            let bypass = (!has_condition).then(|| Assignment {
                global: false,
                name: "bypass_workload_group".to_owned(),
                value: Value::Text("true".to_owned()),
            });
            return Ok(Some(Statement::PassedOn(PassedOn { text, variables: bypass.into_iter().collect() })));
        }
    }
    Ok(None)
}

/// Parses `DESCRIBE table column` and `EXPLAIN table`.
fn of_one_column(cursor: &mut Cursor) -> Option<String> {
    let word = |at: usize| match cursor.token(at) {
        Some(Token::Word(word)) => Some(word.value.clone()),
        _ => None,
    };
    // `EXPLAIN SELECT 'x'` has as many words.
    let begins_statement = |token: &Token| {
        let verbs = [
            "select", "with", "values", "insert", "replace", "update", "delete", "table", "analyze",
            "extended",
        ];
        matches!(token, Token::Word(word) if word.quote_style.is_none()
            && verbs.iter().any(|verb| word.value.eq_ignore_ascii_case(verb)))
    };
    if cursor.token(1).is_some_and(begins_statement) {
        return None;
    }
    let (verb, table) = (word(0)?.to_uppercase(), in_backticks(&word(1)?));
    let pattern = match cursor.token(2) {
        Some(Token::Word(word)) => Some(word.value.clone()),
        Some(Token::SingleQuotedString(text) | Token::DoubleQuotedString(text)) => Some(text.clone()),
        Some(_) => return None,
        None => None,
    };
    let text = match (verb.as_str(), pattern) {
        ("DESC" | "DESCRIBE" | "EXPLAIN", Some(pattern)) if cursor.token(3).is_none() => {
            format!("SHOW COLUMNS FROM {table} LIKE {}", in_quotes(&pattern))
        }
        ("EXPLAIN", None) => format!("DESCRIBE {table}"),
        _ => return None,
    };
    cursor.rest();
    Some(text)
}

fn query(
    cursor: &mut Cursor,
    table: &str,
    condition: &str,
    place: &ShowTarget,
    columns: &[(&str, &str)],
) -> Result<(String, bool), SyntaxError> {
    let mut conditions: Vec<String> =
        [condition].iter().filter(|text| !text.is_empty()).map(|text| (*text).to_owned()).collect();
    match place {
        ShowTarget::Nowhere => {}
        ShowTarget::Database(column) => {
            let name = from(cursor, "the name of a database")?;
            conditions.push(equal(column, name));
        }
        ShowTarget::Table => {
            let Some(first) = from(cursor, "the name of a table")? else { return Err(cursor.fail("FROM")) };
            let second = match cursor.take_sign(&Token::Period) {
                true => Some(cursor.name("the name of a table")?),
                false => None,
            };
            let (database, name) = match second {
                Some(second) => (Some(first), second),
                None => (from(cursor, "the name of a database")?, first),
            };
            // Reads no row, and fails without the table.
            let table: Vec<String> = database.iter().chain([&name]).map(|name| in_backticks(name)).collect();
            conditions.push(format!(
                "(SELECT count(*) FROM (SELECT 1 FROM {} LIMIT 0) AS one) = 0",
                table.join(".")
            ));
            conditions.push(equal("TABLE_SCHEMA", database));
            conditions.push(equal("TABLE_NAME", Some(name)));
        }
    }
    let titles: Vec<&str> = columns.iter().map(|(title, _)| *title).collect();
    let columns: Vec<String> =
        columns.iter().map(|(title, column)| format!("`{column}` AS `{title}`")).collect();
    let mut inner = format!("SELECT {} FROM information_schema.{table}", columns.join(", "));
    if !conditions.is_empty() {
        inner = format!("{inner} WHERE {}", conditions.join(" AND "));
    }
    let first = columns.first().and_then(|column| column.split(" AS ").nth(1)).unwrap_or_default();
    let has_condition = cursor.comes(&["WHERE"]);
    let filter = if let Some(pattern) = cursor.like()? {
        format!(" WHERE {first} LIKE {}", in_quotes(&pattern))
    } else if cursor.take(&["WHERE"]) {
        // The titles have no case.
        let title = |word: &str| titles.iter().find(|title| title.eq_ignore_ascii_case(word)).copied();
        format!(" WHERE {}", cursor.rest_with(title))
    } else {
        String::new()
    };
    Ok((format!("SELECT * FROM ({inner}) AS shown{filter}"), has_condition))
}

/// Parses `FROM name`, if it comes.
fn from(cursor: &mut Cursor, what: &str) -> Result<Option<String>, SyntaxError> {
    let comes = cursor.take(&["FROM"]) || cursor.take(&["IN"]);
    comes.then(|| cursor.name(what)).transpose()
}

/// A condition for a name; without one, for the session's database.
fn equal(column: &str, name: Option<String>) -> String {
    format!("{column} = {}", name.map_or_else(|| "database()".to_owned(), |name| in_quotes(&name)))
}
