//! The protocol itself: limits, broken packets, prepared statements, clients that vanish.

use crate::server::client::{Answer, CAPABILITIES, Client, ssl_request};
use crate::server::fixture::{Fixture, eventually};
use commensal_sql::protocol::Limits;
use commensal_testkit::{throughout, until_still};
use std::io::{ErrorKind, Write};
use std::time::Duration;

pub use crate::server::fixture::ENDLESS;

#[test]
fn prepared_statements() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 1_000);
    let mut client = fixture.root();
    let (id, values) = client.prepare("select id, url from hits where g < ? and url <> ?").unwrap().unwrap();
    assert_eq!(values, 2);
    assert_eq!(client.execute(id, &["10", "x"]).unwrap().unwrap(), 10);
    assert_eq!(client.execute(id, &["20", "x"]).unwrap().unwrap(), 20);
    // An error in a statement is an answer, and the connection goes on.
    assert!(client.prepare("select nothing from hits").unwrap().is_err());
    assert!(client.prepare("create workload group g").unwrap().is_err());
    let unknown = client.execute(4_000, &[]).unwrap().unwrap_err();
    assert!(matches!(&unknown, Answer::Err(1243, _)), "{unknown:?}");
    assert_eq!(client.query("select 1").cell(), "1");
}

#[test]
fn too_many_prepared_statements() {
    let fixture = Fixture::with(Limits { statements: 3, ..Limits::default() }, |_| {});
    let mut client = fixture.root();
    for _ in 0..3 {
        client.prepare("select 1").unwrap().unwrap();
    }
    let refused = client.prepare("select 1").unwrap().unwrap_err().error();
    assert!(refused.contains("more than 3 prepared statements"), "{refused}");
}

#[test]
fn too_many_connections() {
    let fixture = Fixture::with(Limits { connections: 3, ..Limits::default() }, |_| {});
    let held: Vec<Client> = (0..3).map(|_| fixture.root()).collect();
    let refused = Client::login(fixture.address, "root", "", "").unwrap_err();
    assert!(refused.to_string().contains("Too many connections"), "{refused}");
    drop(held);
    eventually("a place is free again", || Client::login(fixture.address, "root", "", "").is_ok());
}

/// Whether the server has closed the connection.
fn is_closed(client: &mut Client) -> bool {
    match client.receive() {
        // The reason, and then the end.
        Ok(packet) if packet.first() == Some(&0xff) => is_closed(client),
        Ok(_) => false,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

// promise 49
#[test]
fn packets_out_of_bounds_end_the_connection_and_nothing_else() {
    let fixture = Fixture::with(Limits { packet: 100_000, ..Limits::default() }, |_| {});
    let mut witness = fixture.root();
    let large = vec![b' '; 200_000];
    let broken: [(&str, u8, Vec<u8>); 3] = [
        ("too large", 0, [&[3], large.as_slice()].concat()),
        ("out of order", 7, b"\x03select 1".to_vec()),
        ("empty", 0, Vec::new()),
    ];
    for (why, number, packet) in broken {
        let mut client = fixture.root();
        client.send(number, &packet).ok();
        assert!(is_closed(&mut client), "{why}");
        assert_eq!(witness.query("select 1").cell(), "1", "{why}");
    }
    // What is only wrong in itself is answered, and the connection goes on.
    let mut client = fixture.root();
    let (id, _) = client.prepare("select ?").unwrap().unwrap();
    let execute = |rest: &[u8]| [&[0x17][..], &id.to_le_bytes(), &[0, 1, 0, 0, 0], rest].concat();
    for (code, packet) in [
        (1047, vec![0x55]),
        (1300, vec![3, 0xff, 0xfe]),
        (1300, vec![0x16, b'a', 0xff]),
        (1300, vec![2, 0xff]),
        (1835, vec![0x17, 1, 0]),
        (1835, vec![0x0c]),
        (1094, vec![0x0c, 0xff, 0xff, 0, 0]),
        (1210, execute(&[])),
        (1210, execute(&[0, 1])),
        (1210, execute(&[0, 1, 200, 0, 1])),
        (1210, execute(&[0, 1, 253, 0, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff])),
        (1210, execute(&[0, 0, 1])),
    ] {
        client.send(0, &packet).unwrap();
        let answer = client.answer().unwrap();
        assert!(matches!(answer, Answer::Err(got, _) if got == code), "{packet:?}: {answer:?}");
    }
    assert_eq!(client.query("select 1").cell(), "1");
    drop(client);
    // Pieces of a value add up.
    fixture.csv("t.csv", "a\nx\n");
    let mut client = fixture.root();
    let (id, _) = client.prepare("select a from t where a = ?").unwrap().unwrap();
    let piece = [&[0x18], id.to_le_bytes().as_slice(), &[0, 0], &vec![b'x'; 40_000]].concat();
    for _ in 0..4 {
        client.send(0, &piece).ok();
    }
    assert!(is_closed(&mut client), "pieces");
    // Half a packet, and then nothing.
    let mut client = fixture.root();
    client.stream.get_mut().write_all(&[50, 0, 0, 0, 3, b's']).unwrap();
    drop(client);
    // Something that is no MySQL at all.
    let mut client = Client::greet(fixture.address).unwrap();
    client.stream.get_mut().write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert!(is_closed(&mut client), "HTTP");
    assert_eq!(witness.query("select 1").cell(), "1");
    eventually("only the witness is left", || fixture.engine.connections.all().len() == 1);
}

// promise 49
#[test]
fn a_query_ends_when_its_client_goes_away() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 20_000);
    let mut client = fixture.root();
    client.ask(ENDLESS).unwrap();
    eventually("it runs", || fixture.engine.queries.all().iter().any(|query| query.timing.begun().is_some()));
    drop(client);
    eventually("it has ended", || fixture.is_quiet());
    eventually("it is not listed any more", || fixture.engine.connections.all().is_empty());
}

// promise 49
#[test]
fn a_client_that_takes_no_rows_is_let_go_with_its_query() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 300_000);
    let mut client = fixture.root();
    client.ask("select a.id, a.url, b.url from hits a, hits b where a.g = b.g").unwrap();
    eventually("it runs", || fixture.engine.queries.all().iter().any(|query| query.timing.begun().is_some()));
    throughout(Duration::from_millis(300), "it waits for its client no more", || {
        !fixture.engine.queries.all().is_empty()
    });
    drop(client);
    eventually("it has ended", || fixture.is_quiet());
}

#[test]
fn queries_are_listed_and_killed() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 20_000);
    let (mut victim, mut other) = (fixture.root(), fixture.root());
    victim.ask(ENDLESS).unwrap();
    let listed = |other: &mut Client, id: u32| {
        let rows = other.query("show processlist").rows();
        rows.into_iter().find(|row| row[0] == id.to_string()).unwrap()
    };
    eventually("it is listed", || listed(&mut other, victim.id)[6] == "RUNNING");
    let row = listed(&mut other, victim.id);
    assert_eq!((row[1].as_str(), row[4].as_str(), row[9].as_str()), ("root", "Query", "normal"), "{row:?}");
    assert!(row[7].starts_with("select count(*)") && row[7].len() <= 100, "{row:?}");
    other.all(&[&format!("kill query {}", victim.id)]);
    assert_eq!(victim.answer().unwrap(), Answer::Err(1317, "query is cancelled".to_owned()));
    assert_eq!(victim.query("select 1").cell(), "1", "its connection goes on");
    eventually("nothing is left", || fixture.is_quiet());

    victim.ask(ENDLESS).unwrap();
    eventually("it runs again", || listed(&mut other, victim.id)[6] == "RUNNING");
    other.all(&[&format!("kill {}", victim.id)]);
    assert!(matches!(victim.answer(), Ok(Answer::Err(..)) | Err(_)));
    eventually("its connection is closed", || fixture.engine.connections.all().len() == 1);
    eventually("nothing is left again", || fixture.is_quiet());
}

#[test]
fn a_query_that_takes_too_long_ends() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 20_000);
    let mut client = fixture.root();
    client.all(&["set query_timeout = 1"]);
    assert!(client.query(ENDLESS).error().starts_with("query timeout"));
    eventually("nothing is left", || fixture.is_quiet());
}

/// MySQL's limit counts from the arrival of the statement, whether it runs, waits for its turn or waits for CPU time.
#[test]
fn max_execution_time_ends_queries_that_run_or_wait() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 20_000);
    let mut client = fixture.root();
    client.all(&[
        "create workload group waits properties('max_concurrency'='0', 'max_queue_size'='5')",
        "create workload group slow properties('cpu_hard_limit'='1%')",
    ]);
    for group in ["normal", "waits", "slow"] {
        for (limit, hint) in [
            ("300", String::new()),
            ("0", "/*+ MAX_EXECUTION_TIME(300) */".to_owned()),
            ("0", format!("/*+ SET_VAR(max_execution_time = 300, workload_group = {group}) */")),
        ] {
            client.all(&[
                &format!("set workload_group = '{group}'"),
                &format!("set max_execution_time = {limit}"),
            ]);
            let answer = client.query(&ENDLESS.replacen("select", &format!("select {hint}"), 1));
            let want = "Query execution was interrupted, maximum statement execution time exceeded";
            assert_eq!(answer, Answer::Err(3024, want.to_owned()), "{group} {limit} {hint}");
        }
    }
    client.all(&["set max_execution_time = 0, workload_group = 'normal'"]);
    assert_eq!(client.query("select count(*) from hits").cell(), "20000");
    eventually("nothing is left", || fixture.is_quiet());
}

#[test]
fn sql_select_limit_holds_for_selects_without_a_limit() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 100);
    let mut client = fixture.root();
    client.all(&["set sql_select_limit = 7"]);
    for (sql, rows) in [
        ("select id from hits", 7),
        ("select id from hits order by id desc", 7),
        ("select id from hits union all select id from hits", 7),
        ("select id from hits limit 20", 20),
        ("select id from hits limit 3, 20", 20),
        ("select count(*) from (select id from hits) x having count(*) = 100", 1),
        ("select /*+ SET_VAR(sql_select_limit = 9) */ id from hits", 9),
    ] {
        assert_eq!(client.query(sql).rows().len(), rows, "{sql}");
    }
    let (id, _) = client.prepare("select id from hits where id <> ?").unwrap().unwrap();
    assert_eq!(client.execute(id, &["1"]).unwrap().unwrap(), 7);
    client.all(&["set sql_select_limit = default"]);
    assert_eq!(client.query("select id from hits").rows().len(), 100);
}

/// Connection attributes of any size that fits into a packet are read, and dropped.
#[test]
fn connection_attributes_of_any_size_are_taken() {
    let fixture = Fixture::new();
    let login = |size: usize| {
        let mut client = Client::greet(fixture.address).unwrap();
        // CLIENT_CONNECT_ATTRS.
        let mut packet = ssl_request(CAPABILITIES | 0x0010_0000);
        packet.extend(b"root\0\0\0mysql_native_password\0\xfd");
        packet.extend(&(size as u32).to_le_bytes()[..3]);
        packet.resize(packet.len() + size, b'x');
        client.send(1, &packet).unwrap();
        assert!(matches!(client.answer(), Ok(Answer::Ok)), "{size}");
        assert_eq!(client.query("select 1").cell(), "1", "{size}");
    };
    let around = (64 << 10) - 200..=(64 << 10) + 4;
    [0, 260, 4_096].into_iter().chain(around.step_by(17)).chain([1 << 20, (1 << 24) - 200]).for_each(login);
}

#[test]
fn a_session_begins_anew() {
    let fixture = Fixture::new();
    let mut client = fixture.root();
    client.all(&["set workload_group = 'gone'"]);
    client.send(0, &[0x1f]).unwrap();
    client.receive().unwrap();
    assert_eq!(client.query("select @@workload_group").cell(), "");
}

/// Several statements in one go: each is answered, in order.
#[test]
fn statements_can_come_without_waiting() {
    let fixture = Fixture::new();
    let mut client = fixture.root();
    for round in 0..5 {
        let mut bytes = Vec::new();
        for number in 0..50 {
            let text = format!("\x03select '{}', {number}", "x".repeat(round * 150));
            bytes.extend(&(text.len() as u32).to_le_bytes()[..3]);
            bytes.push(0);
            bytes.extend(text.as_bytes());
        }
        client.stream.get_mut().write_all(&bytes).unwrap();
        for number in 0..50 {
            let rows = client.answer().unwrap().rows();
            assert_eq!(rows, [["x".repeat(round * 150), number.to_string()]]);
        }
    }
}

/// A join that finds nothing never gives its thread back by itself.
#[test]
fn a_join_without_matches_can_be_killed() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 100_000);
    let mut client = fixture.root();
    client.ask("select count(*) from hits a join hits b on a.g + b.g < 0").unwrap();
    let group = fixture.engine.groups()["normal"].clone();
    eventually("it has computed for a while", || group.cpu.charged_ns() > 300_000_000);
    fixture.root().all(&[&format!("kill query {}", client.id)]);
    assert_eq!(client.answer().unwrap().error(), "query is cancelled");
    eventually("nothing is left", || fixture.is_quiet());
    until_still(Duration::from_millis(200), "the CPU time of its threads", || group.cpu.charged_ns());
}
