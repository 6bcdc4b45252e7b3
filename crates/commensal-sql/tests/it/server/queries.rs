//! What statements give.

use crate::server::client::Answer;
use crate::server::fixture::{ENDLESS, Fixture, beside, eventually};
use std::sync::Arc;

#[test]
fn files_are_tables() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 1_000);
    fixture.csv("cities.csv", "id,name\n1,Ulm\n2,Wien\n");
    std::fs::create_dir_all(fixture.data().join("shop/events")).unwrap();
    fixture.csv("shop/events/1.csv", "a\n1\n2\n");
    fixture.csv("shop/events/2.csv", "a\n3\n");
    let mut client = fixture.root();
    for (sql, want) in [
        ("select count(*) from hits", "1000"),
        ("select count(*) from main.hits where id < 10", "10"),
        ("select name from cities where id = 2", "Wien"),
        ("select sum(a) from shop.events", "6"),
        (
            "select count(*) from LOCAL(\"file_path\" = \"cities.csv\", \"format\" = \"csv_with_names\", \
             \"column_separator\" = \",\")",
            "2",
        ),
        ("select 'a' 'b'", "ab"),
        ("select \"text\"", "text"),
        ("select database()", "main"),
        ("select @@version_comment limit 1", "commensal: SQL under workload groups"),
        ("select @@session.autocommit", "1"),
        ("select null", "NULL"),
        ("select 18446744073709551615", "18446744073709551615"),
        ("select cast('2013-07-15 10:47:34' as timestamp)", "2013-07-15 10:47:34"),
        ("select /*+ SET_VAR(dry_run_query = true) */ id from hits", "1000"),
        ("SELECT ID FROM hits WHERE Id = 7", "7"),
    ] {
        assert_eq!(client.query(sql).cell(), want, "{sql}");
    }
    // A file that comes later is there at once, and so is one that changes.
    fixture.csv("late.csv", "a\n1\n");
    assert_eq!(client.query("select count(*) from late").cell(), "1");
    fixture.csv("late.csv", "a\n1\n2\n3\n");
    assert_eq!(client.query("select count(*) from late").cell(), "3");
}

#[test]
fn columns_are_called_as_written() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 10);
    let Answer::Rows(names, _) =
        fixture.root().query("select id, count(*), 1 + 1 as two, 2, g from hits group by id, g")
    else {
        panic!("no rows")
    };
    assert_eq!(names, ["id", "count(*)", "two", "2", "g"]);
}

#[test]
fn what_clients_ask_on_their_own() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 10);
    std::fs::create_dir(fixture.data().join("shop")).unwrap();
    let mut client = fixture.root();
    let column = |answer: &Answer| answer.rows().into_iter().map(|row| row[0].clone()).collect::<Vec<_>>();
    assert_eq!(column(&client.query("show databases")), ["main", "shop", "information_schema"]);
    assert_eq!(column(&client.query("show databases like 's%'")), ["shop"]);
    assert!(client.query("show databases like 'S%'").rows().is_empty());
    assert_eq!(column(&client.query("show databases ilike 'S%'")), ["shop"]);
    assert_eq!(column(&client.query("show tables ilike 'H_TS'")), ["hits"]);
    assert_eq!(
        column(&client.query("show tables from information_schema ilike 'WORKLOAD\\_POLICY'")),
        ["workload_policy"]
    );
    assert_eq!(column(&client.query("show tables")), ["hits"]);
    assert_eq!(column(&client.query("describe hits")), ["id", "g", "url"]);
    for (sql, want) in [
        ("show full tables where table_type = 'BASE TABLE'", vec!["hits"]),
        ("show full tables from main where Table_type = 'VIEW'", vec![]),
        ("show tables where tables_in_main like 'h%' and 1 = 1", vec!["hits"]),
        ("show databases where `Database` in ('main', 'x')", vec!["main"]),
        ("show columns from hits where field <> 'g' and type like '%int%'", vec!["id"]),
        ("show columns from hits like '%r%'", vec!["url"]),
        ("show full columns from hits where `Null` = 'maybe'", vec![]),
    ] {
        assert_eq!(column(&client.query(sql)), want, "{sql}");
    }
    assert!(matches!(client.query("show tables where nothing = 1"), Answer::Err(..)));
    assert_eq!(column(&client.query("show columns from hits")), ["id", "g", "url"]);
    assert_eq!(client.query("show variables like 'version'").rows(), [["version", "8.0.33-commensal"]]);
    client.all(&["use information_schema", "set names utf8mb4", "set autocommit = 1", "begin", "commit"]);
    client.all(&["SET character_set_results = NULL", "show warnings", "show status", "show collation"]);
    client.all(&["select table_name from information_schema.tables", "show tables"]);
    assert_eq!(client.query("select count(*) from workload_group_resource_usage").cell(), "1");
    let answer = client.query("use nowhere");
    assert_eq!(answer, Answer::Err(1049, "Unknown database 'nowhere'".to_owned()));
}

#[test]
fn what_is_not_enforced_is_said() {
    let fixture = Fixture::new();
    let mut client = fixture.root();
    let said = |client: &mut crate::server::client::Client| client.query("show warnings").rows();
    let all = [
        ("min_memory_percent", "5"),
        ("write_buffer_ratio", "7"),
        ("scan_thread_num", "3"),
        ("max_remote_scan_thread_num", "9"),
        ("min_remote_scan_thread_num", "2"),
    ];
    let given: Vec<String> = all.iter().map(|(name, value)| format!("'{name}'='{value}'")).collect();
    let sentence = |name: &str| {
        vec!["Warning".to_owned(), "1105".to_owned(), format!("{name} is stored and shown, but not enforced")]
    };
    client
        .all(&[&format!("create workload group g properties({}, 'max_concurrency'='4')", given.join(", "))]);
    let want: Vec<_> = all.iter().map(|(name, _)| sentence(name)).collect();
    assert_eq!(said(&mut client), want);
    assert_eq!(said(&mut client), want, "SHOW WARNINGS leaves them");
    client.all(&["alter workload group g properties('scan_thread_num'='-1')"]);
    assert_eq!(said(&mut client), [sentence("scan_thread_num")]);
    client.all(&[
        "alter workload group g properties('memory_low_watermark'='10', 'slot_memory_policy'='fixed')",
    ]);
    assert!(said(&mut client).is_empty());
    client.all(&["alter workload group g properties('write_buffer_ratio'='8')", "select 1"]);
    assert!(said(&mut client).is_empty(), "they are of the last statement");
    for (set, warnings) in [
        ("set time_zone = '+02:00', sql_mode = 'PIPES_AS_CONCAT,STRICT_TRANS_TABLES'", 2),
        ("set time_zone = '+00:00', sql_mode = 'ANSI_QUOTES'", 0),
        ("set time_zone = '+00:00', sql_mode = 'STRICT_TRANS_TABLES'", 0),
        ("set sql_mode = concat(@@sql_mode, ',ANSI')", 1),
        ("set autocommit = 1", 0),
    ] {
        client.all(&[set]);
        assert_eq!(said(&mut client).len(), warnings, "{set}");
    }
    client.all(&["alter workload group g properties('write_buffer_ratio'='9')"]);
    client.query("alter nonsense").error();
    assert!(said(&mut client).is_empty(), "a statement that is refused is the last one too");
}

/// With `ANSI_QUOTES`, double quotes are around names.
#[test]
fn names_in_double_quotes() {
    let fixture = Fixture::new();
    fixture.csv("t.csv", "id,n\n7,x\n");
    let mut client = fixture.root();
    assert_eq!(client.query("select \"id\" from t").cell(), "id");
    client.all(&["set sql_mode = 'ANSI_QUOTES'"]);
    for (sql, want) in [
        ("select \"id\" from \"t\"", "7"),
        ("select \"t\".\"n\" from t where n = 'x'", "x"),
        ("select 'a\"b'", "a\"b"),
        ("select \"a\"\"b\" from (select 1 as `a\"b`) q", "1"),
    ] {
        assert_eq!(client.query(sql).cell(), want, "{sql}");
        assert_eq!(client.prepared(sql, &[]).cell(), want, "{sql}");
    }
    assert!(matches!(client.query("select \"nothing\" from t"), Answer::Err(1054, _)));
    client.all(&["prepare p from 'select \"id\" from t'"]);
    assert_eq!(client.query("execute p").cell(), "7");
    client.all(&["set sql_mode = default"]);
    assert_eq!(client.query("select \"id\" from t").cell(), "id");
}

#[test]
fn groups_are_made_shown_and_kept() {
    let fixture = Fixture::new();
    let mut client = fixture.root();
    client.all(&[
        "create workload group if not exists g2 properties('cpu_hard_limit'='10%', 'memory_limit'='30%')",
        "alter workload group g2 properties('memory_limit'='0.5%')",
        "alter workload group g2 properties('enable_memory_overcommit'='false')",
        "create workload group online properties('max_cpu_percent'='60%')",
        "drop workload group online",
        "ADMIN SET FRONTEND CONFIG (\"enable_cpu_hard_limit\" = \"true\")",
    ]);
    let names = |client: &mut crate::server::client::Client| {
        let rows = client.query("show workload groups").rows();
        rows.into_iter().map(|row| row[1].clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&mut client), ["g2", "normal"]);
    assert!(client.query("create workload group g2").error().contains("already has workload group g2"));
    assert!(client.query("drop workload group normal").error().contains("not allowed"));
    let row = "select memory_limit, cpu_hard_limit from information_schema.workload_groups where name = 'g2'";
    assert_eq!(client.query(row).rows(), [["0.5%", "10%"]]);
    let fixture = fixture.again();
    let mut client = fixture.root();
    assert_eq!(names(&mut client), ["g2", "normal"]);
    assert_eq!(client.query(row).rows(), [["0.5%", "10%"]]);
}

#[test]
fn the_server_only_reads() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 10);
    let mut client = fixture.root();
    for sql in [
        "create table t as select * from hits",
        "create external table p stored as csv location '/etc/passwd'",
        "copy hits to '/tmp/out.parquet'",
        "insert into hits select * from hits",
        "drop table hits",
        "create table shop.t as select * from hits",
        "explain analyze insert into hits select * from hits",
    ] {
        assert!(matches!(client.query(sql), Answer::Err(..)), "{sql}");
    }
    assert_eq!(client.query("select count(*) from hits").cell(), "10");
}

#[test]
fn errors_say_what_is_wrong() {
    let fixture = Fixture::new();
    std::fs::write(fixture.data().join("lies.parquet"), "no parquet at all, but long enough to look at")
        .unwrap();
    fixture.csv("good.csv", "a\n1\n");
    let mut client = fixture.root();
    for (sql, number, part) in [
        ("selec 1", 1064, "selec"),
        ("select * from nowhere", 1146, "Table 'main.nowhere' doesn't exist"),
        ("select nothing, a from nowhere where nofunction(1)", 1146, "Table 'main.nowhere' doesn't exist"),
        ("select * from nowhere.t", 1049, "Unknown database 'nowhere'"),
        ("select * from information_schema.nothing", 1109, "Unknown table 'nothing' in information_schema"),
        ("select nothing from good", 1054, "Unknown column 'nothing' in 'field list'"),
        ("select g.nothing from good g", 1054, "Unknown column 'g.nothing' in 'field list'"),
        ("select a from good where nothing = 1", 1054, "Unknown column 'nothing' in 'where clause'"),
        ("select a from good order by nothing", 1054, "Unknown column 'nothing' in 'order clause'"),
        ("select count(*) from good group by nothing", 1054, "Unknown column 'nothing' in 'group statement'"),
        (
            "select 1 from good g join good h on g.nothing = 1",
            1054,
            "Unknown column 'g.nothing' in 'on clause'",
        ),
        ("select a from good g, good h", 1052, "Column 'a' in field list is ambiguous"),
        ("select g.a from good g, good h where a = 1", 1052, "Column 'a' in where clause is ambiguous"),
        ("select 1 from good, good", 1066, "Not unique table/alias: 'good'"),
        ("select nofunction(a) from good", 1305, "FUNCTION main.nofunction does not exist"),
        ("select a from good where sum(a) > 1", 1111, "Invalid use of group function"),
        ("select sum(count(*)) from good", 1111, "Invalid use of group function"),
        ("select * from lies", 1105, "arquet"),
        ("set nonsense = 1", 1193, "Unknown system variable 'nonsense'"),
        ("select @@nonsense", 1193, "Unknown system variable 'nonsense'"),
        ("kill 4000", 1094, "Unknown thread id: 4000"),
        ("kill query 4000", 1094, "Unknown thread id: 4000"),
        ("select * from local(\"file_path\" = \"../x.csv\")", 1227, ".."),
        ("select * from local(\"file_path\" = \"/etc/passwd\", \"format\" = \"csv\")", 1227, "/etc/passwd"),
        (
            "select * from s3(\"uri\" = \"http://127.0.0.1:1/b/k.csv\", \"use_path_style\" = \"true\")",
            1227,
            "--s3-endpoint",
        ),
        (
            "select * from hdfs(\"uri\" = \"hdfs://127.0.0.1:1/k.csv\", \"hadoop.username\" = \"a\")",
            1227,
            "--hdfs-endpoint",
        ),
        ("select * from hdfs(\"uri\" = \"hdfs:///k.csv\", \"hadoop.username\" = \"a\")", 1105, "name node"),
        ("select * from local(1)", 1105, "pairs"),
        ("select 1; select 2", 1064, "end of the statement"),
        ("select cast('x' as int)", 1105, "x"),
    ] {
        let answer = client.query(sql);
        let Answer::Err(got, text) = &answer else { panic!("{sql}: {answer:?}") };
        assert!(text.contains(part), "{sql}: {text}");
        assert_eq!(*got, number, "{sql}: {text}");
    }
    assert_eq!(client.query("select a from good").cell(), "1", "the connection goes on");
    eventually("nothing is left", || fixture.is_quiet());
}

#[test]
fn functions_are_described() {
    let fixture = Fixture::new();
    fixture.csv("c.csv", "id,name\n1,Ulm\n");
    let mut client = fixture.root();
    let answer = client.query("DESC FUNCTION local(\"file_path\" = \"c.csv\")");
    let columns: Vec<_> = answer.rows().into_iter().map(|row| (row[0].clone(), row[1].clone())).collect();
    assert_eq!(columns, [("id".to_owned(), "bigint".to_owned()), ("name".to_owned(), "text".to_owned())]);
}

#[test]
fn folders_give_columns() {
    let fixture = Fixture::new();
    for (city, rows) in [("Ulm", "1\n2\n"), ("Bonn", "3\n")] {
        let folder = fixture.data().join("stays").join(format!("city={city}"));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("1.csv"), format!("nights\n{rows}")).unwrap();
    }
    let mut client = fixture.root();
    let stays = "local(\"file_path\" = \"stays/\", \"format\" = \"csv_with_names\", \"column_separator\" = \",\", \
                 \"Path_Partition_Keys\" = \"city\")";
    let rows =
        client.query(&format!("select city, sum(nights) from {stays} group by city order by city")).rows();
    assert_eq!(rows, [["Bonn", "3"], ["Ulm", "3"]]);
    let sql = format!("select max(nights) from {stays} where city = 'Ulm'");
    assert_eq!(client.query(&sql).cell(), "2");
    let described = client.query(&format!("desc function {stays}")).rows();
    assert_eq!(described.iter().map(|row| row[0].as_str()).collect::<Vec<_>>(), ["nights", "city"]);
}

#[test]
fn rows_are_written_where_that_is_allowed() {
    let fixture =
        Fixture::with(commensal_sql::protocol::Limits::default(), |options| options.writable = true);
    fixture.hits("hits.parquet", 1_000);
    std::fs::create_dir(fixture.data().join("shop")).unwrap();
    let mut client = fixture.root();
    client.all(&[
        "create table shop.few as select id, url from hits where id < 10",
        "create table if not exists shop.few as select 1 as a",
        "insert into shop.few select cast(id as varchar), url from hits where id >= 990",
    ]);
    assert_eq!(client.query("select concat(count(*), ' ', sum(id)) from shop.few").cell(), "20 9990");
    for (sql, part) in [
        ("create table shop.few as select 1 as a", "already exists"),
        ("insert into shop.few select id from hits", "has 2 columns, not 1"),
        ("insert into shop.few select url, id from hits", "Cast error"),
        ("insert into shop.none select id from hits", "create it with CREATE TABLE"),
        ("insert into hits select * from hits", "cannot be written"),
        ("create table nowhere.t as select * from hits", "cannot be written"),
        ("create table shop.`../t` as select * from hits", "cannot be written"),
        ("insert overwrite shop.few select id, url from hits", "INSERT INTO table SELECT"),
        ("create table shop.empty (a int)", "INSERT INTO table SELECT"),
    ] {
        let text = client.query(sql).error();
        assert!(text.contains(part), "{sql}: {text}");
    }
    let files: Vec<_> = std::fs::read_dir(fixture.data().join("shop/few")).unwrap().flatten().collect();
    assert_eq!(files.len(), 2, "what failed has left nothing: {files:?}");
    eventually("nothing is left", || fixture.is_quiet());
    // Writing waits in the queue like reading.
    client.all(&["create workload group none properties('max_concurrency'='0', 'max_queue_size'='0')"]);
    for sql in
        ["insert into shop.few select id, url from hits", "create table shop.other as select * from hits"]
    {
        let text =
            client.query(&sql.replacen("select", "select /*+SET_VAR(workload_group=none)*/", 1)).error();
        assert_eq!(text, "query waiting queue is full, queue length=0", "{sql}");
    }
    client.all(&["create user jack identified by 'x'", "grant select_priv on *.*.* to jack"]);
    let mut jack = crate::server::client::Client::login(fixture.address, "jack", "x", "").unwrap();
    assert!(matches!(jack.query("insert into shop.few select id, url from hits"), Answer::Err(1227, _)));
}

/// Plan, pool and stores of a query know it: none of them may keep it once it is over, whatever its end.
// promise 46
#[test]
fn a_query_leaves_nothing_of_itself_in_memory() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 20_000);
    let few = "select count(*) from hits a join hits b on a.g = b.g where a.id < 2000 and a.url < b.url";
    let spilling =
        "select count(*) from (select id, row_number() over (order by g, id) n from hits) x where n > 0";
    for (sql, setup) in [
        (few, vec![]),
        (spilling, vec![]),
        (ENDLESS, vec!["set query_timeout = 1"]),
        ("select cast(url as signed) from hits a join hits b on a.g = b.g", vec![]),
        ("select * from hits", vec!["set dry_run_query = true"]),
    ] {
        let running = || fixture.engine.queries.all().first().map(Arc::downgrade);
        let mut seen = None;
        // One may be over before it is seen.
        eventually(&format!("it runs: {sql}"), || {
            let asked = beside(fixture.address, &setup, sql);
            while seen.is_none() && !asked.is_finished() {
                seen = running();
            }
            asked.join().unwrap();
            seen.is_some()
        });
        eventually(&format!("it is gone: {sql}"), || seen.as_ref().unwrap().upgrade().is_none());
    }
}

/// Values that MySQL gives, or Doris where the two differ. Each operator is tried on columns and on literals, so that
/// neither the planner's types nor its constants decide.
#[test]
fn operators_have_mysqls_values() {
    let fixture = Fixture::new();
    fixture.csv("t.csv", "i,j,z,f,b\n7,2,0,2.5,true\n");
    let mut client = fixture.root();
    for (sql, want) in [
        // Precedence.
        ("1 + j ^ 3", "2"),
        ("j * 3 ^ 1", "4"),
        ("5 % 3 ^ 1", "1"),
        ("-j ^ 3", "-3"),
        ("1 | 2 = 3", "1"),
        ("NOT j = 3 AND i = 7", "1"),
        ("!j = 3", "0"),
        ("i DIV j + 1", "4"),
        ("i MOD j * 3", "3"),
        ("1 << 1 + 1", "4"),
        ("i > 1 XOR j > 1", "0"),
        ("i > 1 XOR j > 5", "1"),
        ("0 || 1", "1"),
        ("1 && 0 || 1", "1"),
        // Division.
        ("i / j", "3.5"),
        ("5 / 2", "2.5"),
        ("1 / 3 > 0.33", "1"),
        ("i / z", "NULL"),
        ("i % z", "NULL"),
        ("i DIV z", "NULL"),
        ("f / z", "NULL"),
        ("f % z", "NULL"),
        ("1 / 0", "NULL"),
        ("1.5 / 0.0", "NULL"),
        ("i DIV j", "3"),
        ("-i DIV j", "-3"),
        ("i DIV f", "2"),
        ("5.9 DIV 2", "2"),
        // Truth values and numbers.
        ("b = 1", "1"),
        ("b = 0", "0"),
        ("b <> 1", "0"),
        ("b <> 0", "1"),
        ("b = 2", "0"),
        ("b + b", "2"),
        ("true + 1", "2"),
        ("(i > 1) + (j > 1)", "2"),
        ("b * 3", "3"),
        ("b > 0", "1"),
        ("not i", "0"),
        ("not z", "1"),
        ("not b", "0"),
        ("not null", "NULL"),
        ("!i", "0"),
        ("!!z", "0"),
        ("i and z", "0"),
        ("i or z", "1"),
        ("i xor j", "0"),
        ("i and null", "NULL"),
        ("z and null", "0"),
        ("f and 1", "1"),
        ("if(i, 'y', 'n')", "y"),
        ("if(z, 'y', 'n')", "n"),
        ("case when z then 1 when j then 2 end", "2"),
        ("~i", "-8"),
        ("~0", "-1"),
        ("i ^ j", "5"),
        ("i & f", "3"),
        ("1 << 63 < 0", "1"),
        ("i << 64", "0"),
        ("i >> -j", "0"),
        ("_utf8mb4'x'", "x"),
    ] {
        let answer = client.query(&format!("select {sql} from t"));
        assert!(matches!(answer, Answer::Rows(..)), "{sql}: {answer:?}");
        assert_eq!(answer.cell(), want, "{sql}");
    }
    for (condition, rows) in
        [("i", 1), ("'a'", 0), ("'1a'", 1), ("z", 0), ("b", 1), ("not b", 0), ("f", 1), ("1", 1), ("null", 0)]
    {
        let answer = client.query(&format!("select i from t where {condition}"));
        assert_eq!(answer.rows().len(), rows, "{condition}");
        let answer = client.query(&format!("select count(*) from t group by i, z, b, f having {condition}"));
        assert_eq!(answer.rows().len(), rows, "{condition}");
    }
    // What this cannot answer as MySQL is refused.
    let answer = client.query("select i << f from t");
    assert!(matches!(answer, Answer::Err(1235, _)), "{answer:?}");
}

/// MySQL compares names of columns and aliases without case, in every clause.
/// A subquery with columns from outside has one value for each row, none, or more than one, which is an error.
#[test]
fn correlated_subqueries_have_one_value() {
    let fixture = Fixture::new();
    fixture.csv("a.csv", "id,g\n1,x\n2,y\n3,z\n");
    fixture.csv("b.csv", "id,v,w\n1,10,a\n2,,b\n4,40,c\n");
    fixture.csv("c.csv", "id,v\n1,10\n1,11\n");
    let mut client = fixture.root();
    for (sql, want) in [
        ("select id, (select v from b where b.id = a.id) from a order by id", "1,10|2,NULL|3,NULL"),
        ("select id, (select w from b where b.id = a.id) as w from a order by w, id", "3,NULL|1,a|2,b"),
        ("select id, 1 + (select v * 2 from b where b.id = a.id) from a order by id", "1,21|2,NULL|3,NULL"),
        ("select id from a where (select w from b where b.id = a.id) = 'b'", "2"),
        ("select id from a where 'a' in (g, (select w from b where b.id = a.id)) order by id", "1"),
        ("select id, (select max(v) from c where c.id = a.id) from a order by id", "1,11|2,NULL|3,NULL"),
        (
            "select g, sum((select v from b where b.id = a.id)) from a group by g order by g",
            "x,10|y,NULL|z,NULL",
        ),
        ("select id, (select distinct w from b where b.id = a.id) from a order by id", "1,a|2,b|3,NULL"),
    ] {
        let rows = client.query(sql).rows();
        let rows: Vec<String> = rows.iter().map(|row| row.join(",")).collect();
        assert_eq!(rows.join("|"), want, "{sql}");
    }
    let answer = client.query("select id, (select v from c where c.id = a.id) from a");
    assert_eq!(answer, Answer::Err(1242, "Subquery returns more than 1 row".to_owned()));
}

#[test]
fn names_of_columns_have_no_case() {
    let fixture = Fixture::new();
    fixture.csv("t.csv", "Id,wert\n1,10\n2,20\n");
    fixture.csv("u.csv", "ID,Wert2\n2,7\n");
    fixture.csv("v.csv", "ID,Wert3\n2,8\n");
    let mut client = fixture.root();
    for (sql, want) in [
        ("select ID from t where WERT = 20", "2"),
        ("select max(t.iD) from t", "2"),
        ("select WERT + 1 as A2 from t group by a2 order by A2 limit 1", "11"),
        ("select count(*) as N from t group by ID having n > 0 order by n limit 1", "1"),
        ("select x.SUMME from (select sum(wert) as Summe from t) x", "30"),
        ("select summe from (select sum(wert) as Summe from t) x", "30"),
        ("select ID + 1 as Id from (select max(id) as ID from t) x", "3"),
        ("select ID + 1 as ID from t where ID = 2", "3"),
        ("with c(Eins) as (select 1) select EINS from c", "1"),
        ("select d.zwei from (select 2) as d(Zwei)", "2"),
        ("select t.Wert from t join u on t.id = u.id", "20"),
        ("select u.id + t.ID from t join u on t.id = u.Id", "4"),
        ("select wert2 from t as a, u as b where a.ID = b.id", "7"),
        ("select wert2 + WERT3 from u left join v using (id)", "15"),
        ("select b.wert3 from u c join (u a join v b using (Id)) on c.id = a.id", "8"),
        ("select a.eins from (select 1 as Eins) a join (select 1 as Eins) b using (EINS)", "1"),
        (
            "select count(*) from information_schema.key_column_usage a join \
             information_schema.table_constraints b using (constraint_schema, constraint_name, table_name)",
            "0",
        ),
        ("select sum(WERT) over (order by ID) from t order by id desc limit 1", "30"),
    ] {
        assert_eq!(client.query(sql).cell(), want, "{sql}");
    }
}

/// Columns of a result may have the same name.
#[test]
fn two_columns_may_have_one_name() {
    let fixture = Fixture::new();
    fixture.csv("t.csv", "a\n1\n");
    let mut client = fixture.root();
    for (sql, names) in [
        ("select 1, 1", vec!["1", "1"]),
        ("select a, a, A from t", vec!["a", "a", "A"]),
        ("select null, null", vec!["NULL", "NULL"]),
        ("select a as x, 2 as x from t order by x", vec!["x", "x"]),
    ] {
        let Answer::Rows(got, rows) = client.query(sql) else { panic!("{sql}") };
        assert_eq!(rows.len(), 1, "{sql}");
        assert_eq!(got, names, "{sql}");
    }
}
