//! What tools ask of tables and of the session, and the error numbers that they look for.

use crate::server::client::Answer;
use crate::server::fixture::Fixture;

fn titles(answer: &Answer) -> Vec<&str> {
    match answer {
        Answer::Rows(names, _) => names.iter().map(String::as_str).collect(),
        other => panic!("no rows: {other:?}"),
    }
}

#[test]
fn tools_read_the_columns_of_tables() {
    let fixture = Fixture::new();
    fixture.csv("t.csv", "id,s,d\n1,a,2024-02-29\n");
    let mut client = fixture.root();
    let create = "CREATE TABLE `t` (\n  `id` bigint DEFAULT NULL,\n  `s` text,\n  `d` date DEFAULT NULL\n) \
                  ENGINE=Files DEFAULT CHARSET=utf8mb4";
    for (sql, want) in [
        ("show create table t", vec!["t", create]),
        ("show create table main.t", vec!["t", create]),
        ("describe t id", vec!["id", "bigint", "YES", "", "NULL", ""]),
        ("show fields from t like 's'", vec!["s", "text", "YES", "", "NULL", ""]),
        (
            "show full columns from t where field = 's'",
            vec!["s", "text", "utf8mb4_general_ci", "YES", "", "NULL", "", "select", ""],
        ),
        ("show charset like 'utf8mb4'", vec!["utf8mb4", "UTF-8 Unicode", "utf8mb4_general_ci", "4"]),
        ("show collation where id = 46", vec!["utf8mb4_bin", "utf8mb4", "46", "", "Yes", "1"]),
        ("show variables where variable_name in ('autocommit', 'x')", vec!["autocommit", "ON"]),
        ("select table_name from information_schema.tables where table_schema = 'main'", vec!["t"]),
    ] {
        assert_eq!(client.query(sql).rows(), [want], "{sql}");
    }
    let rows = client.query("show table status").rows();
    assert_eq!((rows.len(), rows[0].len(), rows[0][0].as_str()), (1, 18, "t"));
    let answer = client.query("show index from t");
    assert_eq!(titles(&answer)[..5], ["Table", "Non_unique", "Key_name", "Seq_in_index", "Column_name"]);
    for sql in
        ["show index from t", "show triggers", "show events", "show procedure status", "show open tables"]
    {
        assert!(client.query(sql).rows().is_empty(), "{sql}");
    }
}

/// MySQL's tables of keys, routines, triggers and so on have their columns, and no rows.
#[test]
fn information_schema_has_mysqls_tables() {
    let fixture = Fixture::new();
    fixture.csv("t.csv", "id\n1\n");
    let mut client = fixture.root();
    for (table, columns, width) in [
        ("TABLE_CONSTRAINTS", "constraint_name, table_name, constraint_type", 7),
        ("REFERENTIAL_CONSTRAINTS", "unique_constraint_name, update_rule, referenced_table_name", 11),
        ("CHECK_CONSTRAINTS", "constraint_name, check_clause", 4),
        ("ROUTINES", "routine_name, routine_comment, dtd_identifier", 31),
        ("PARAMETERS", "parameter_name, ordinal_position", 16),
        ("TRIGGERS", "trigger_name, action_timing", 22),
        ("EVENTS", "event_name, starts", 24),
        ("PARTITIONS", "partition_name, table_rows", 25),
        ("VIEWS", "view_definition, is_updatable", 10),
        ("USER_PRIVILEGES", "grantee, is_grantable", 4),
        ("STATISTICS", "index_name, cardinality", 16),
        ("KEY_COLUMN_USAGE", "referenced_column_name, ordinal_position", 12),
    ] {
        assert!(client.query(&format!("select {columns} from information_schema.{table}")).rows().is_empty());
        let answer = client.query(&format!("select * from information_schema.{table}"));
        assert_eq!(titles(&answer).len(), width, "{table}");
    }
}

#[test]
fn variables_of_the_user() {
    let fixture = Fixture::new();
    let mut client = fixture.root();
    client.all(&[
        "set @a = 5, @b = 'x'",
        "savepoint s",
        "release savepoint s",
        "lock tables t read",
        "unlock tables",
    ]);
    for (sql, want) in [
        ("select @a + 1", "6"),
        ("select concat(@b, @a)", "x5"),
        ("select @A", "5"),
        ("select @nothing is null", "1"),
        ("select last_insert_id()", "0"),
        ("select n'a'", "a"),
        ("select b'1000001' = 'A'", "1"),
        ("select 'a' collate utf8mb4_bin", "a"),
        ("select convert('a' using utf8mb4)", "a"),
        ("select binary 'a' = 'A'", "0"),
        ("select cast('x' as date) is null", "1"),
    ] {
        assert_eq!(client.query(sql).cell(), want, "{sql}");
    }
    client.all(&["set @a = null"]);
    assert_eq!(client.query("select @a is null").cell(), "1");
}

#[test]
fn errors_have_mysqls_numbers() {
    let fixture = Fixture::new();
    fixture.csv("t.csv", "id,i\n1,2\n2,3\n");
    let mut client = fixture.root();
    for (sql, number, text) in [
        ("select * from information_schema.nothing", 1109, "Unknown table 'nothing' in information_schema"),
        ("select (select id, i from t)", 1241, "Operand should contain 1 column(s)"),
        ("select id in (select id, i from t) from t", 1241, "Operand should contain 1 column(s)"),
        ("select (select id from t)", 1242, "Subquery returns more than 1 row"),
        (
            "select id from t union select id, i from t",
            1222,
            "The used SELECT statements have a different number of columns",
        ),
        ("select * from (select 1 as a, 2 as a) q", 1060, "Duplicate column name 'a'"),
        ("select abs(1, 2)", 1582, "Incorrect parameter count in the call to native function 'abs'"),
        ("select concat()", 1582, "Incorrect parameter count in the call to native function 'concat'"),
        ("select id from t order by x.id", 1054, "Unknown column 'x.id' in 'order clause'"),
        ("select nothing(1) from t", 1305, "FUNCTION main.nothing does not exist"),
        ("show index from nothing", 1146, "Table 'main.nothing' doesn't exist"),
        ("show create table nothing", 1146, "Table 'main.nothing' doesn't exist"),
        ("select 9223372036854775807 + 1", 1690, "BIGINT value is out of range in '9223372036854775807 + 1'"),
    ] {
        assert_eq!(client.query(sql), Answer::Err(number, text.to_owned()), "{sql}");
    }
}
