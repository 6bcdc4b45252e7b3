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
        (r"show variables where variable_name in ('autocommit', 'it''s \' x')", vec!["autocommit", "ON"]),
        (
            "show charset where `Default collation` = 'utf8mb4_general_ci' and charset is not null",
            vec!["utf8mb4", "UTF-8 Unicode", "utf8mb4_general_ci", "4"],
        ),
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
    // A condition stays within the quotes in which it was written.
    for (verb, title) in [
        ("charset", "charset"),
        ("collation", "collation"),
        ("engines", "engine"),
        ("table status", "name"),
        ("index from t", "key_name"),
        ("triggers", "`trigger`"),
        ("variables", "variable_name"),
        ("tables", "tables_in_main"),
        ("columns from t", "field"),
    ] {
        for text in [r"'\' or 1 = 1 -- '", r"''' or 1 = 1 -- '", r"'\\'", "'`'", "'a\nb'", "\"'\""] {
            let sql = format!("show {verb} where {title} = {text}");
            assert!(client.query(&sql).rows().is_empty(), "{sql}");
        }
    }
    for sql in ["explain select 'x'", "explain select null", "explain select @@version", "explain select a"] {
        let answer = client.query(sql);
        let is_of_columns =
            matches!(&answer, Answer::Rows(names, _) if names.iter().any(|name| name == "Field"));
        assert!(!is_of_columns, "{sql}: {answer:?}");
    }
}

/// What is on or off is a word in SHOW VARIABLES, and a number in a query.
#[test]
fn variables_have_mysqls_values() {
    let fixture = Fixture::new();
    let mut client = fixture.root();
    for (sql, want) in [
        ("show variables like 'read_only'", vec!["read_only", "OFF"]),
        ("show variables like 'unique_checks'", vec!["unique_checks", "ON"]),
        (
            "select @@read_only, @@log_bin, @@innodb_file_per_table + 1, @@in_transaction, @@event_scheduler",
            vec!["0", "0", "2", "0", "OFF"],
        ),
        ("select @@timestamp > 1700000000, @@low_priority_updates, @@rand_seed1", vec!["1", "0", "0"]),
    ] {
        assert_eq!(client.query(sql).rows(), [want], "{sql}");
    }
    client.all(&["set unique_checks = off, @old = @@unique_checks, unique_checks = 1"]);
    assert_eq!(client.query("select concat(@old, @@unique_checks)").cell(), "01");
    client.all(&["begin"]);
    assert_eq!(client.query("select @@in_transaction").cell(), "1");
}

/// This server has no replicas, no log of changes and no profiles, and says so in MySQL's columns.
#[test]
fn what_the_server_does_not_have_is_empty() {
    let fixture = Fixture::new();
    let mut client = fixture.root();
    for (sql, first, last, width) in [
        ("show slave status", "Slave_IO_State", "Master_TLS_Version", 57),
        ("show replica status for channel 'x'", "Replica_IO_State", "Source_TLS_Version", 57),
        ("show slave hosts", "Server_Id", "Slave_UUID", 5),
        ("show replicas", "Server_Id", "Replica_UUID", 5),
        ("show master status", "File", "Executed_Gtid_Set", 5),
        ("show profiles", "Query_ID", "Query", 3),
    ] {
        let answer = client.query(sql);
        assert!(answer.rows().is_empty(), "{sql}");
        let titles = titles(&answer);
        assert_eq!((titles[0], titles[width - 1], titles.len()), (first, last, width), "{sql}");
        let is_slave = sql == "show slave status";
        assert_eq!(titles.contains(&"Seconds_Behind_Master"), is_slave, "{sql}");
    }
    let own = client.query("show grants").rows();
    assert_eq!(client.query("show grants for 'root'@'localhost'").rows(), own);
}

/// SHOW INDEX names a table and reads none of its rows, so a full queue does not hold it up.
#[test]
fn keys_are_shown_beside_a_full_queue() {
    let fixture = Fixture::new();
    fixture.csv("t.csv", "id\n1\n");
    let mut client = fixture.root();
    client.all(&[
        "create workload group closed properties('max_concurrency'='0', 'max_queue_size'='0')",
        "set workload_group = 'closed'",
    ]);
    assert!(matches!(client.query("select * from t"), Answer::Err(..)), "the group admits nothing");
    assert!(client.query("show index from t").rows().is_empty());
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
    fixture.csv("t.csv", "s\n\\'+(select 1)-- ''\\\n");
    let mut client = fixture.root();
    client.all(&[
        "set @a = 5, @b = 'x', @c = '007', @d = (select count(*) from (select 1 union select 2) q), @e = @d * 2",
        r#"set @f = date '2024-02-29', @g = 'it''s \\ \'x\'', @h = -1.50, @i = concat(@b, "',", null), @j = 1 = 1"#,
        "set @k = time('10:11:12'), @l = cast('9999-12-31 23:59:59' as datetime), @m = cast(5 as unsigned), @n = x'4142'",
        "/*!40101 SET @old_client=@@CHARACTER_SET_CLIENT, @old_mode=@@SQL_MODE */",
        "set @o = (select s from t), @p = concat(@o, '|', @o)",
        "set sql_mode = concat(@@sql_mode, ',STRICT_TRANS_TABLES')",
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
        ("select @c", "007"),
        ("select concat(@c, @d, @e)", "00724"),
        ("select @f + interval 1 day", "2024-03-01"),
        ("select @g", r"it's \ 'x'"),
        ("select @h + 1", "-0.50"),
        ("select @i is null", "1"),
        ("select @j + 1", "2"),
        ("select @k", "10:11:12"),
        ("select @l", "9999-12-31 23:59:59"),
        ("select @m + 1", "6"),
        ("select @n", "AB"),
        ("select @old_client", "utf8mb3"),
        ("select @o", r"\'+(select 1)-- ''\"),
        ("select @p", r"\'+(select 1)-- ''\|\'+(select 1)-- ''\"),
        ("select 1 /*!40000 + 1 */ /*!99999 + 1 */", "2"),
        ("select @@sql_mode", "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES"),
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
    for (sql, number) in [
        ("set @a = foo", 1054),
        ("set @a = (select 1, 2)", 1241),
        ("set @a = (select 1 union select 2)", 1242),
        ("set @a = 1) union (select 2", 1064),
        ("set @a = repeat('x', 1100000)", 1105),
        ("set init_connect = repeat('x', 100000)", 1105),
        ("select @m - 6", 1690),
    ] {
        let answer = client.query(sql);
        assert!(matches!(answer, Answer::Err(found, _) if found == number), "{sql}: {answer:?}");
    }
    let values: Vec<String> = (0..20).map(|at| format!("@v{at} = repeat('x', 60000)")).collect();
    let answer = client.query(&format!("set {}", values.join(", ")));
    assert!(matches!(&answer, Answer::Err(_, text) if text.contains("1048576 bytes in all")), "{answer:?}");
    assert_eq!(client.query("select @v0 is null").cell(), "1", "a list is set as a whole");
}

#[test]
fn errors_of_clauses_have_mysqls_numbers() {
    let fixture = Fixture::new();
    fixture.csv("t.csv", "id,i,s\n1,2,a\n2,3,b\n");
    let mut client = fixture.root();
    for (sql, number, part) in [
        ("select id, i from t group by id", 1055, "isn't in GROUP BY"),
        ("select id from t group by id order by i", 1055, "isn't in GROUP BY"),
        ("select id, count(*) from t", 1140, "Mixing of GROUP columns"),
        ("select id from t order by 7", 1054, "Unknown column '7' in 'order clause'"),
        ("select id from t order by 0", 1054, "Unknown column '0' in 'order clause'"),
        ("select count(*) from t group by 7", 1054, "Unknown column '7' in 'group statement'"),
        ("select distinct id from t order by i", 3065, "incompatible with DISTINCT"),
        ("select 'a' regexp '('", 1139, "Got error 'unclosed group' from regexp"),
        ("select id from t where s regexp '['", 1139, "Got error 'unclosed character class' from regexp"),
        ("select regexp_replace(s, '[', 'x') from t", 1139, "Got error 'unclosed character class'"),
        ("select id from t limit -1", 1064, "near '-1'"),
        ("select s collate nope from t", 1273, "Unknown collation: 'nope'"),
        ("select get_lock('x', 1)", 1235, "get_lock is not supported"),
    ] {
        let answer = client.query(sql);
        let Answer::Err(got, text) = &answer else { panic!("{sql}: {answer:?}") };
        assert!(*got == number && text.contains(part), "{sql}: {got} {text}");
    }
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
        ("select id from t order by nothing", 1054, "Unknown column 'nothing' in 'order clause'"),
        ("select nothing from t", 1054, "Unknown column 'nothing' in 'field list'"),
        ("select t.nothing from t", 1054, "Unknown column 't.nothing' in 'field list'"),
        ("select id from t where nothing = 1", 1054, "Unknown column 'nothing' in 'where clause'"),
        (
            "select id from t where id in (select nothing from t)",
            1054,
            "Unknown column 'nothing' in 'field list'",
        ),
        ("select count(*) from t group by nothing", 1054, "Unknown column 'nothing' in 'group statement'"),
        ("select id from t having nothing > 1", 1054, "Unknown column 'nothing' in 'having clause'"),
        (
            "select a.id from t a join t b on a.nothing = b.id",
            1054,
            "Unknown column 'a.nothing' in 'on clause'",
        ),
        (
            "select 18446744073709551615 + 1",
            1690,
            "BIGINT UNSIGNED value is out of range in '18446744073709551616'",
        ),
        ("select cast(5 as unsigned) - 6", 1690, "BIGINT UNSIGNED value is out of range in '-1'"),
        ("select nothing(1) from t", 1305, "FUNCTION main.nothing does not exist"),
        ("drop table nothing", 1051, "Unknown table 'main.nothing'"),
        ("drop table t, nothing, x.y", 1051, "Unknown table 'main.nothing,x.y'"),
        (
            "drop table if exists t",
            1235,
            "DROP TABLE is not supported: remove the table's files from the data folder",
        ),
        ("call nothing(1)", 1305, "PROCEDURE main.nothing does not exist"),
        ("call x.nothing", 1305, "PROCEDURE x.nothing does not exist"),
        ("select now(7)", 1426, "Too-big precision 7 specified for 'now'. Maximum is 6."),
        ("show grants for nobody", 1141, "There is no such grant defined for user 'nobody' on host '%'"),
        ("show index from nothing", 1146, "Table 'main.nothing' doesn't exist"),
        ("show create table nothing", 1146, "Table 'main.nothing' doesn't exist"),
        ("select 9223372036854775807 + 1", 1690, "BIGINT value is out of range in '9223372036854775807 + 1'"),
    ] {
        assert_eq!(client.query(sql), Answer::Err(number, text.to_owned()), "{sql}");
    }
}
