//! Limits of groups, as their users meet them.

use crate::server::client::{Answer, Client};
use crate::server::fixture::{Fixture, MEMORY, beside, eventually};
use crate::server::wire::ENDLESS;

// promise 47
#[test]
fn the_queue_lets_in_refuses_and_gives_up() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 20_000);
    let mut root = fixture.root();
    root.all(&[
        "create workload group q properties('max_concurrency'='1', 'max_queue_size'='1', 'queue_timeout'='500')",
        "create workload group none properties('max_concurrency'='0', 'max_queue_size'='0')",
        "create workload group slow properties('max_concurrency'='0', 'max_queue_size'='1', 'queue_timeout'='500')",
    ]);
    let mut client = fixture.root();
    client.all(&["set workload_group = 'none'"]);
    assert_eq!(client.query("select * from hits").error(), "query waiting queue is full, queue length=0");
    let hint = "select /*+SET_VAR(workload_group=slow)*/ * from hits";
    assert_eq!(client.query(hint).error(), "query queue timeout, timeout: 500 ms ");
    assert_eq!(client.query("select 1").cell(), "1", "what reads no table needs no place");
    client.all(&["select * from information_schema.workload_groups", "show workload groups"]);
    client.all(&["set bypass_workload_group = true", "select * from hits limit 1"]);
    client.all(&[
        "set bypass_workload_group = false",
        "set query_slot_count = 3",
        "set workload_group = 'q'",
    ]);
    assert_eq!(
        client.query("select * from hits").error(),
        "query slot count 3 should be smaller than workload group's max concurrency 1 and > 0"
    );

    // One runs, one waits and is seen waiting, the third is refused.
    let setup = ["set workload_group = 'q'"];
    let running = beside(fixture.address, &setup, ENDLESS);
    let state = "select count(*) from information_schema.backend_active_tasks where state = ";
    eventually("it runs", || root.query(&format!("{state} 'RUNNING' and query_id like '%-%'")).cell() == "2");
    root.all(&["alter workload group q properties('queue_timeout'='60000')"]);
    let waiting = beside(fixture.address, &setup, "select count(*) from hits");
    eventually("it waits", || root.query(&format!("{state} 'QUEUED'")).cell() == "1");
    let shown = root.query("show workload groups like 'q'").rows();
    assert_eq!(shown[0][19..21], ["1", "1"], "{shown:?}");
    let mut third = fixture.root();
    third.all(&setup);
    assert_eq!(third.query("select * from hits").error(), "query waiting queue is full, queue length=1");
    let listed = root.query("show processlist").rows();
    let of = |state: &str| listed.iter().find(|row| row[6] == state).unwrap()[0].clone();
    assert_ne!(of("QUEUED"), of("RUNNING"));
    let waits: Vec<&str> = listed.iter().map(|row| row[10].as_str()).filter(|text| *text != "NULL").collect();
    assert_eq!(
        waits,
        [format!("a place in q, 0 queries before it; places are taken by connections {}", of("RUNNING"))]
    );
    root.all(&[&format!(
        "kill query {}",
        listed.iter().find(|row| row[9] == "q" && row[6] == "RUNNING").unwrap()[0]
    )]);
    assert_eq!(running.join().unwrap().error(), "query is cancelled");
    assert_eq!(waiting.join().unwrap().cell(), "20000");
    eventually("nothing runs or waits", || fixture.is_quiet());
}

/// What slow queries waited for, by limit.
#[test]
fn slow_queries_are_listed_with_their_waits() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 100_000);
    let mut root = fixture.root();
    root.all(&[
        "create workload group reads properties('read_bytes_per_second'='2097152')",
        "create workload group queue properties('max_concurrency'='0', 'max_queue_size'='1', 'queue_timeout'='500')",
        "create workload group cpu properties('cpu_hard_limit'='1%')",
    ]);
    let mut client = fixture.root();
    client.all(&["set workload_group = 'reads'", "select count(*) from hits", "set long_query_time = 0"]);
    client.all(&["set dry_run_query = true", "select url from hits", "set dry_run_query = false"]);
    client.all(&["set workload_group = 'queue'"]);
    assert_eq!(client.query("select count(*) from hits").error(), "query queue timeout, timeout: 500 ms ");
    client.all(&["set workload_group = 'cpu'", "select count(distinct url), max(url) from hits"]);
    client.all(&["set long_query_time = 10", "select 'is not slow'"]);
    let rows = root
        .query(
            "select workload_group, queue_time_ms, memory_wait_ms, cpu_wait_ms, local_read_wait_ms, remote_read_wait_ms, \
             query_time_ms, scan_rows, error from information_schema.slow_queries where statement like '%hits%'",
        )
        .rows();
    let groups: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(groups, ["reads", "queue", "cpu"], "{rows:?}");
    let ms = |row: usize, column: usize| rows[row][column].parse::<u64>().unwrap();
    assert!(ms(0, 4) > 0 && ms(0, 6) > 0 && rows[0][7] == "100000" && rows[0][8] == "NULL", "{rows:?}");
    assert!(ms(1, 1) == ms(1, 6) && rows[1][8].contains("queue timeout"), "{rows:?}");
    assert!(ms(2, 3) > 0 && ms(2, 4) == 0, "{rows:?}");
    assert!((0..3).all(|row| ms(row, 2) == 0 && ms(row, 5) == 0), "{rows:?}");
    let not_slow = "select * from information_schema.slow_queries where statement like '%is not slow%'";
    assert!(root.query(not_slow).rows().is_empty());
    // Others see their own.
    root.all(&["create user u identified by 'p'"]);
    let mut other = Client::login(fixture.address, "u", "p", "").unwrap();
    assert!(other.query("select * from information_schema.slow_queries").rows().is_empty());
    // The plan with what was measured ends with the waits.
    client.all(&["set workload_group = 'reads'"]);
    let rows = client.query("explain analyze select url from hits where url like '%x%'").rows();
    let last = rows.last().unwrap();
    assert!(
        last[0] == "Waits" && last[1].contains("local_reads=") && !last[1].contains("local_reads=0 ms"),
        "{rows:?}"
    );
}

/// SLEEP waits without a thread of the group, of which there are fewer than queries that sleep here.
#[test]
fn queries_sleep() {
    let fixture = Fixture::new();
    fixture.csv("t.csv", "id\n1\n2\n");
    let mut root = fixture.root();
    for (sql, want) in [
        ("select sleep(0)", vec!["0"]),
        ("select sleep(null)", vec!["0"]),
        ("select sleep(-1)", vec!["0"]),
        ("select sleep('0.001')", vec!["0"]),
        ("select sleep(0.001) + id from t order by id", vec!["1", "2"]),
        ("select id from t where sleep(0.001) = 0 order by id", vec!["1", "2"]),
        ("select sum(sleep(0.001)) from t", vec!["0"]),
    ] {
        assert_eq!(root.query(sql).rows().concat(), want, "{sql}");
    }
    assert!(matches!(root.query("do sleep(0)"), Answer::Ok));
    let mut sleepers: Vec<Client> = (0..20).map(|_| fixture.root()).collect();
    sleepers.iter_mut().for_each(|client| client.ask("select sleep(100000), sleep(100000) from t").unwrap());
    eventually("all sleep", || fixture.engine.queries.all().len() == sleepers.len());
    assert_eq!(root.query("select count(*) from t").cell(), "2");
    for client in &mut sleepers {
        root.all(&[&format!("kill query {}", client.id)]);
        assert_eq!(client.answer().unwrap().error(), "query is cancelled");
    }
    let mut late = fixture.root();
    late.all(&["set max_execution_time = 50"]);
    assert!(matches!(late.query("select sleep(100000) from t"), Answer::Err(3024, _)));
    late.all(&["set max_execution_time = 0, long_query_time = 0", "select sleep(0.05), 'counted'"]);
    let slept = "select sleep_ms >= 50 from information_schema.slow_queries where statement like '%counted%'";
    assert_eq!(root.query(slept).cell(), "1");
    eventually("nobody sleeps", || fixture.is_quiet());
}

// promise 47
#[test]
fn a_query_can_be_killed_while_it_waits() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 10);
    let mut root = fixture.root();
    root.all(&["create workload group q properties('max_concurrency'='0', 'max_queue_size'='5')"]);
    let (mut killed, mut gone) = (fixture.root(), fixture.root());
    for client in [&mut killed, &mut gone] {
        client.all(&["set workload_group = 'q'"]);
        client.ask("select * from hits").unwrap();
    }
    let group = fixture.engine.groups()["q"].clone();
    eventually("both wait", || group.queue.lengths() == (0, 2));
    root.all(&[&format!("kill query {}", killed.id)]);
    assert_eq!(killed.answer().unwrap().error(), "query is cancelled");
    drop(gone);
    eventually("nobody waits", || group.queue.lengths() == (0, 0) && fixture.is_quiet());
}

#[test]
fn percents_are_of_the_memory_that_the_server_was_given() {
    let fixture = Fixture::new();
    fixture.root().all(&["create workload group m properties('max_memory_percent'='25%')"]);
    let settings = fixture.engine.groups()["m"].settings();
    assert_eq!(settings.memory.limit, Some(MEMORY as usize / 4));
    assert!(settings.memory.hard);
}

// promise 47
#[test]
fn policies_cancel_and_move() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 20_000);
    let mut root = fixture.root();
    root.all(&[
        "create workload group a",
        "create workload group b",
        "create workload policy slow conditions(query_time > 300) actions(cancel_query) properties('workload_group'='a')",
    ]);
    let mut client = fixture.root();
    client.all(&["set workload_group = 'a'"]);
    let text = client.query(ENDLESS).error();
    assert!(text.contains("cancelled by workload policy: slow"), "{text}");
    root.all(&[
        "drop workload policy slow",
        "create workload policy off conditions(query_time > 200) actions(move_query_to_group 'b') properties('workload_group'='a')",
    ]);
    client.ask(ENDLESS).unwrap();
    let groups = fixture.engine.groups();
    let (a, b) = (groups["a"].clone(), groups["b"].clone());
    let moved = || fixture.engine.queries.all().iter().any(|query| query.group().name == "b");
    eventually("it was moved", moved);
    let charged = (a.cpu.charged_ns(), b.cpu.charged_ns());
    eventually("the other group pays", || b.cpu.charged_ns() > charged.1 + 50_000_000);
    eventually("its memory went along", || a.memory.used() == 0);
    root.all(&[&format!("kill query {}", client.id)]);
    assert!(matches!(client.answer().unwrap(), Answer::Err(1317, _)));
    eventually("nothing is left", || fixture.is_quiet());
}

// promise 47
#[test]
fn a_policy_sets_a_variable_of_a_live_session() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 20_000);
    let mut root = fixture.root();
    root.all(&["create workload policy v conditions(username = 'root') actions(set_session_variable 'batch_size=33')"]);
    let mut client = fixture.root();
    client.ask(ENDLESS).unwrap();
    let connection = fixture.engine.connections.get(u64::from(client.id)).unwrap();
    eventually("it is set", || connection.variables().batch_size() == 33);
    root.all(&["drop workload policy v", &format!("kill query {}", client.id)]);
    client.answer().unwrap();
    assert_eq!(client.query("select @@batch_size").cell(), "33");
}
