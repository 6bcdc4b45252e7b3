//! What drivers ask beside statements: another user, compression, character sets, cursors, the state of the session, and
//! the origins of columns.

use crate::server::client::{Answer, CAPABILITIES, Client, ClientError};
use crate::server::fixture::{Fixture, eventually};
use commensal_sql::engine::password::{self, Method};
use flate2::Compression;
use flate2::read::{ZlibDecoder, ZlibEncoder};
use std::io::{self, Cursor, ErrorKind, Read, Write};
use std::net::TcpStream;

/// Asks to become another user, and proves the password; returns the first byte of the answer, and its number.
fn change_user<S: Read + Write>(
    client: &mut Client<S>,
    user: &str,
    password: &str,
    database: &str,
) -> (u8, u16) {
    let packet = [&[0x11], user.as_bytes(), &[0, 0], database.as_bytes(), b"\0\x2d\0mysql_native_password\0"];
    client.send(0, &packet.concat()).unwrap();
    let asked = client.receive().unwrap();
    let salt = asked.strip_prefix(b"\xfemysql_native_password\0").and_then(|rest| rest.strip_suffix(b"\0"));
    client.send(2, &password::response(Method::Native, password, salt.unwrap())).unwrap();
    let answer = client.receive().unwrap();
    (answer[0], u16::from_le_bytes([answer[1], answer[2]]))
}

#[test]
fn a_client_changes_its_user() {
    let fixture = Fixture::new();
    fixture.csv("t.csv", "id\n1\n");
    std::fs::create_dir(fixture.data().join("shop")).unwrap();
    let mut client = fixture.root();
    client.all(&["create user jill identified by 'secret'", "set @a = 5", "begin", "set names latin1"]);
    let (id, _) = client.prepare("select 1").unwrap().unwrap();
    assert_eq!(change_user(&mut client, "jill", "secret", "shop").0, 0);
    let answer = client.query("select user() like 'jill@%', database(), @a, @@character_set_client");
    assert_eq!(answer.rows(), [["1", "shop", "NULL", "utf8mb4"]]);
    assert!(matches!(client.execute(id, &[]).unwrap(), Err(Answer::Err(1243, _))));
    assert!(matches!(client.query("select * from main.t"), Answer::Err(1227, _)));
    assert_eq!(change_user(&mut client, "root", "", "").0, 0);
    assert_eq!(client.query("select count(*) from t").cell(), "1");
    assert_eq!(change_user(&mut client, "root", "", "nowhere"), (0xff, 1049));
    let mut client = fixture.root();
    assert_eq!(change_user(&mut client, "jill", "wrong", ""), (0xff, 1045));
    assert_eq!(client.receive().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    drop(client);
    eventually("nobody is left", || fixture.engine.connections.all().is_empty());
}

#[test]
fn commands_without_statements() {
    let fixture = Fixture::new();
    let mut client = fixture.root();
    client.send(0, &[0x09]).unwrap();
    let statistics = String::from_utf8(client.receive().unwrap()).unwrap();
    assert!(statistics.starts_with("Uptime: ") && statistics.contains("  Threads: 1  "), "{statistics}");
    for (command, want) in [(0x0d, 0xfe), (0x07, 0), (0x0e, 0)] {
        client.send(0, &[command, 1]).unwrap();
        assert_eq!(client.receive().unwrap()[0], want, "{command}");
    }
    client.send(0, &[0x0a]).unwrap();
    assert_eq!(client.answer().unwrap().rows()[0][4], "Query");
}

/// A payload that fills a packet continues in the next one.
#[test]
fn payloads_of_more_than_16_mib() {
    let fixture = Fixture::new();
    let mut client = fixture.root();
    let long = [&[0x0e], vec![b' '; 0x00ff_ffff - 1].as_slice()].concat();
    // The last packet may be empty.
    for rest in [&b"rest"[..], b""] {
        client.send(0, &long).unwrap();
        client.send(1, rest).unwrap();
        let mut answer = [0; 4 + 7];
        client.stream.read_exact(&mut answer).unwrap();
        assert_eq!((answer[3], answer[4]), (2, 0), "the number of the answer, and OK");
    }
    // So is the last packet of a row whose text fills a packet together with its length.
    for size in [0x00ff_ffff - 5, 0x00ff_ffff - 4, 0x00ff_ffff - 3] {
        assert_eq!(client.query(&format!("select repeat('x', {size})")).cell().len(), size);
    }
}

/// A stream whose pieces are compressed.
struct Compressed {
    stream: TcpStream,
    piece: Cursor<Vec<u8>>,
}

impl Read for Compressed {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.piece.position() == self.piece.get_ref().len() as u64 {
            let mut head = [0; 7];
            self.stream.read_exact(&mut head)?;
            let size = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], 0]);
            let mut bytes = vec![0; size(0) as usize];
            self.stream.read_exact(&mut bytes)?;
            if size(4) > 0 {
                let mut content = Vec::new();
                ZlibDecoder::new(bytes.as_slice()).read_to_end(&mut content)?;
                assert_eq!(content.len(), size(4) as usize);
                bytes = content;
            }
            self.piece = Cursor::new(bytes);
        }
        self.piece.read(to)
    }
}

impl Write for Compressed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut packed = Vec::new();
        ZlibEncoder::new(bytes, Compression::fast()).read_to_end(&mut packed)?;
        let head = [&packed.len().to_le_bytes()[..3], &[0], &bytes.len().to_le_bytes()[..3]].concat();
        self.stream.write_all(&[head, packed].concat())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[test]
fn packets_are_compressed_on_request() {
    let fixture = Fixture::new();
    let mut client = Client::greet(fixture.address).unwrap();
    client.log_in(1, CAPABILITIES | 0x20, ("root", ""), "").unwrap();
    let stream = Compressed { stream: client.stream.into_inner(), piece: Cursor::default() };
    let mut client = Client { stream: io::BufReader::new(stream), id: client.id, salt: client.salt };
    assert_eq!(client.query("select 1").cell(), "1");
    let long = "x".repeat(100_000);
    assert_eq!(client.query(&format!("select '{long}'")).cell(), long);
    assert!(matches!(client.query("select nothing"), Answer::Err(1054, _)));
    assert_eq!(change_user(&mut client, "root", "", "").0, 0);
    assert_eq!(client.query("select 2").cell(), "2");
    // A packet that is longer than announced.
    let mut packed = Vec::new();
    ZlibEncoder::new(&[0_u8; 100_000][..], Compression::fast()).read_to_end(&mut packed).unwrap();
    let head = [&packed.len().to_le_bytes()[..3], &[0, 10, 0, 0]].concat();
    client.stream.get_mut().stream.write_all(&[head, packed].concat()).unwrap();
    assert!(client.receive().is_err());
    eventually("nobody is left", || fixture.engine.connections.all().is_empty());
}

/// The bytes of the first cell of a result.
fn bytes(client: &mut Client, statement: &[u8]) -> Vec<u8> {
    client.send(0, &[b"\x03", statement].concat()).unwrap();
    let columns = client.receive().unwrap()[0];
    client.columns(columns.into()).unwrap();
    let mut cell = Vec::new();
    client
        .packets(&mut |packet| {
            cell = packet[1..].to_vec();
            Ok(())
        })
        .unwrap();
    cell
}

#[test]
fn character_sets() {
    let fixture = Fixture::new();
    let mut client = fixture.root();
    // Bytes that are no text.
    assert_eq!(bytes(&mut client, b"select _binary'\xff\\0\\''"), b"\xff\0'");
    assert!(matches!(client.query("set names koi8r"), Answer::Err(1115, _)));
    client.all(&["set names latin1"]);
    assert_eq!(
        client.query("select @@character_set_results, @@collation_connection").rows(),
        [["latin1", "latin1_swedish_ci"]]
    );
    assert_eq!(bytes(&mut client, b"select '\xe4\x80'"), b"\xe4\x80");
    assert_eq!(bytes(&mut client, b"select length(hex('\xe4'))"), b"4", "two bytes of UTF-8");
    assert_eq!(bytes(&mut client, "select x'e697a5'".as_bytes()), "日".as_bytes(), "bytes stay");
    client.all(&["set names utf8mb4 collate utf8mb4_unicode_ci"]);
    assert_eq!(client.query("select @@collation_connection").cell(), "utf8mb4_unicode_ci");
    assert_eq!(bytes(&mut client, "select 'ä'".as_bytes()), "ä".as_bytes());
}

/// The status flags of an answer without rows.
fn flags(client: &mut Client, sql: &str) -> u16 {
    client.ask(sql).unwrap();
    let answer = client.receive().unwrap();
    assert_eq!(answer[..3], [0, 0, 0], "{sql}");
    u16::from_le_bytes([answer[3], answer[4]])
}

#[test]
fn the_client_is_told_about_transactions() {
    let fixture = Fixture::new();
    fixture.csv("t.csv", "id\n1\n");
    let mut client = fixture.root();
    for (sql, want) in [
        ("set @a = 1", 2),
        ("begin", 3),
        ("savepoint a", 3),
        ("rollback to savepoint a", 3),
        ("commit and chain", 3),
        ("rollback", 2),
        ("set autocommit = 0", 0),
        ("do 1", 0),
        ("do (select max(id) from t)", 1),
        ("commit", 0),
        ("set autocommit = 1", 2),
    ] {
        assert_eq!(flags(&mut client, sql), want, "{sql}");
    }
}

/// The next packets of a cursor: the number of rows, and the flags at their end.
fn fetch(client: &mut Client, id: u32, rows: u32) -> (usize, u16) {
    client.send(0, &[&[0x1c], &id.to_le_bytes()[..], &rows.to_le_bytes()].concat()).unwrap();
    let mut fetched = 0;
    loop {
        let packet = client.receive().unwrap();
        match packet[..] {
            [0xfe, _, _, low, high] => return (fetched, u16::from_le_bytes([low, high])),
            _ => fetched += 1,
        }
    }
}

/// Executes a statement with a cursor; returns the statement's number.
fn open(client: &mut Client, sql: &str) -> u32 {
    let (id, _) = client.prepare(sql).unwrap().unwrap();
    client.send(0, &[&[0x17], &id.to_le_bytes()[..], &[1, 1, 0, 0, 0]].concat()).unwrap();
    let columns = client.receive().unwrap()[0];
    client.columns(columns.into()).unwrap();
    id
}

#[test]
fn rows_are_fetched_by_a_cursor() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 20_000);
    let mut client = fixture.root();
    let all = open(&mut client, "select id from hits");
    let few = open(&mut client, "select 1 union all select 2");
    assert_eq!(fetch(&mut client, all, 3), (3, 66));
    assert_eq!(fetch(&mut client, few, 1), (1, 66));
    assert_eq!(client.query("select 5").cell(), "5");
    assert_eq!(fetch(&mut client, few, 9), (1, 130));
    assert_eq!(fetch(&mut client, all, 30_000), (19_997, 130));
    for (id, code) in [(all, 1421), (4_000, 1243)] {
        client.send(0, &[&[0x1c], &id.to_le_bytes()[..], &[1, 0, 0, 0]].concat()).unwrap();
        let answer = client.answer().unwrap();
        assert!(matches!(answer, Answer::Err(got, _) if got == code), "{answer:?}");
    }
    eventually("no query is left", || fixture.is_quiet());
}

/// A client may ask for no packet after the columns, but an opened cursor is told there.
#[test]
fn a_cursor_is_told_also_without_a_mark_of_the_columns() {
    let fixture = Fixture::new();
    let mut client = Client::greet(fixture.address).unwrap();
    client.log_in(1, CAPABILITIES | 0x0100_0000, ("root", ""), "").unwrap();
    client.send(0, b"\x16select 1").unwrap();
    let id = client.receive().unwrap()[1..5].to_vec();
    // The column.
    client.receive().unwrap();
    client.send(0, &[&[0x17], id.as_slice(), &[1, 1, 0, 0, 0]].concat()).unwrap();
    let packets: [Vec<u8>; 3] = std::array::from_fn(|_| client.receive().unwrap());
    assert_eq!((packets[0].as_slice(), packets[2].as_slice()), (&[1][..], &[0xfe, 0, 0, 66, 0, 0, 0][..]));
    client.send(0, &[&[0x1c], id.as_slice(), &[9, 0, 0, 0]].concat()).unwrap();
    // A row without NULL, whose number has eight bytes.
    assert_eq!(client.receive().unwrap(), [0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(client.receive().unwrap(), [0xfe, 0, 0, 130, 0, 0, 0]);
}

// promise 49
#[test]
fn a_query_ends_with_its_cursor() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 20_000);
    let long = "select a.id, b.url from hits a, hits b";
    let mut client = fixture.root();
    // COM_STMT_CLOSE, COM_STMT_RESET, COM_RESET_CONNECTION.
    for (command, is_answered) in [(0x19, false), (0x1a, true), (0x1f, true)] {
        let id = open(&mut client, long);
        assert_eq!(fetch(&mut client, id, 2), (2, 66));
        assert!(!fixture.is_quiet(), "{command:#x}");
        client.send(0, &[&[command], &id.to_le_bytes()[..]].concat()).unwrap();
        if is_answered {
            assert_eq!(client.receive().unwrap()[0], 0);
        }
        eventually("its query has ended", || fixture.is_quiet());
    }
    let id = open(&mut client, long);
    fixture.root().all(&[&format!("kill query {}", client.id)]);
    client.send(0, &[&[0x1c], &id.to_le_bytes()[..], &[0xff; 4]].concat()).unwrap();
    let killed = client.packets(&mut |_| Ok(()));
    assert!(matches!(killed, Err(ClientError::Server { code: 1317, .. })), "{killed:?}");
    eventually("the killed query has ended", || fixture.is_quiet());
    open(&mut client, long);
    drop(client);
    eventually("the query has ended with its client", || fixture.is_quiet());
}

#[test]
fn columns_have_origins() {
    let fixture = Fixture::new();
    fixture.csv("t.csv", "id,s\n1,a\n");
    let mut client = fixture.root();
    client
        .ask("select t.id, b.s as n, 1 as k, s.s from t join t b on b.id = t.id join (select s from t) as s")
        .unwrap();
    let count = client.receive().unwrap()[0];
    let definitions = (0..count).map(|_| {
        let packet = client.receive().unwrap();
        let mut rest = packet.as_slice();
        let mut parts = Vec::new();
        for _ in 0..6 {
            let (part, more) = rest[1..].split_at(rest[0].into());
            parts.push(String::from_utf8(part.to_vec()).unwrap());
            rest = more;
        }
        parts
    });
    let got: Vec<Vec<String>> = definitions.collect();
    // Database, table in the statement, table, column in the statement, column.
    assert_eq!(got[0][1..], ["main", "t", "t", "id", "id"]);
    assert_eq!(got[1][1..], ["main", "b", "t", "n", "s"]);
    assert_eq!(got[2][1..], ["", "", "", "k", ""]);
    assert_eq!(got[3][1..], ["main", "s", "t", "s", "s"]);
}

#[test]
fn statements_are_prepared_by_name_and_number() {
    let fixture = Fixture::new();
    fixture.csv("t.csv", "id\n1\n2\n");
    let mut client = fixture.root();
    for sql in
        ["set @a = ?", "show tables", "show variables like 'autocommit'", "begin", "show warnings", "do 1"]
    {
        let (id, values) = client.prepare(sql).unwrap().unwrap();
        let given: &[&str] = if values == 1 { &["7"] } else { &[] };
        client.execute(id, given).unwrap().unwrap();
    }
    assert_eq!(client.query("select @a").cell(), "7");
    client.all(&["prepare s from 'select id from t where id = ?'", "set @x = 2"]);
    assert_eq!(client.query("execute s using @x").cell(), "2");
    client.all(&["deallocate prepare s"]);
    for (sql, code) in [
        ("execute s", 1243),
        ("drop prepare s", 1243),
        ("prepare s from 'select nothing from t'", 1054),
        ("prepare s from 'selec'", 1064),
        ("prepare s from 'execute s'", 1235),
        ("prepare s from 'prepare t from ''select 1'''", 1235),
        ("prepare s from '-- nothing'", 1065),
        ("", 1065),
        ("-- nothing", 1065),
        ("set autocommit = 'maybe'", 1231),
        ("set version = '9'", 1238),
    ] {
        let answer = client.query(sql);
        assert!(matches!(answer, Answer::Err(got, _) if got == code), "{sql}: {answer:?}");
    }
}

#[test]
fn tools_read_status_and_privileges() {
    let fixture = Fixture::new();
    let mut client = fixture.root();
    client.all(&["set sql_mode = 'ANSI'"]);
    for (sql, want) in [
        ("show status like 'Ssl_cipher'", vec!["Ssl_cipher", ""]),
        ("show global status where variable_name = 'Threads_connected'", vec!["Threads_connected", "1"]),
        ("select command from information_schema.processlist", vec!["Query"]),
        ("select user from mysql.user", vec!["root"]),
        (
            "select count(*) from information_schema.session_variables where variable_value = 'ANSI'",
            vec!["1"],
        ),
        ("select count(*) from mysql.proc", vec!["0"]),
        ("select @@max_connections > 0, @@sql_notes, @@warning_count", vec!["1", "1", "0"]),
        ("show count(*) warnings", vec!["0"]),
    ] {
        assert_eq!(client.query(sql).rows(), [want], "{sql}");
    }
}

/// A truth value is a TINYINT(1) in a table and an INT(1) in an expression. Numbers of tables have no `BINARY_FLAG`.
#[test]
fn numbers_of_tables_and_of_expressions_differ() {
    let fixture = Fixture::new();
    fixture.csv("t.csv", "id,flag\n1,true\n");
    let mut client = fixture.root();
    client.ask("select id, flag, id = 1, id + 1 from t").unwrap();
    let count = client.receive().unwrap()[0];
    let definitions = (0..count).map(|_| {
        let packet = client.receive().unwrap();
        let end = packet.len();
        (packet[end - 6], packet[end - 5] & 128)
    });
    // Types and flags.
    let got: Vec<(u8, u8)> = definitions.collect();
    assert_eq!(got, [(8, 0), (1, 0), (3, 128), (8, 128)]);
    client.receive().unwrap();
    client.packets(&mut |_| Ok(())).unwrap();
    assert_eq!(client.prepared("select id, flag, id = 1, id from t", &[]).rows(), [["1", "1", "1", "1"]]);
}

/// A client may send no types with the first execution if all values are NULL.
#[test]
fn null_is_executed_without_a_type() {
    let fixture = Fixture::new();
    let mut client = fixture.root();
    let (id, _) = client.prepare("select ?").unwrap().unwrap();
    // No cursor, one iteration, the value is NULL, and no types.
    client.send(0, &[&[0x17], &id.to_le_bytes()[..], &[0, 1, 0, 0, 0, 1, 0]].concat()).unwrap();
    assert_eq!(client.receive().unwrap(), [1], "one column");
    client.columns(1).unwrap();
    assert_eq!(client.receive().unwrap(), [0, 4], "a row whose first cell is NULL");
    client.packets(&mut |_| Ok(())).unwrap();
    assert_eq!(client.query("select 5").cell(), "5");
}

/// The length of a text counts the bytes of the longest characters of the client's set.
#[test]
fn texts_and_bytes_have_lengths() {
    let fixture = Fixture::new();
    fixture.csv("t.csv", "s\na\n");
    let mut client = fixture.root();
    for (names, length, of_expressions) in [("utf8mb4", 262_140, 65_532), ("latin1", 65_535, 16_383)] {
        client.all(&[&format!("set names {names}")]);
        client.ask("select s, upper(s), x'41' from t").unwrap();
        let count = client.receive().unwrap()[0];
        let definitions = (0..count).map(|_| {
            let packet = client.receive().unwrap();
            let end = packet.len();
            let length = u32::from_le_bytes(packet[end - 10..end - 6].try_into().unwrap());
            (length, packet[end - 6], packet[end - 3])
        });
        // Length, type, and number of decimals.
        let got: Vec<(u32, u8, u8)> = definitions.collect();
        assert_eq!(got, [(length, 253, 0), (of_expressions, 253, 39), (65_535, 253, 0)], "{names}");
        client.receive().unwrap();
        client.packets(&mut |_| Ok(())).unwrap();
    }
}
