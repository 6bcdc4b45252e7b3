//! Very many clients, slow ones, and bytes that are no conversation: the server answers others meanwhile, nothing is left
//! behind, and nothing in it panics.

use crate::cases;
use crate::server::client::Client;
use crate::server::fixture::eventually;
use crate::server::process::{Server, start_logged};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;
use tempfile::TempDir;

/// The program with a small table, what it logs into a file, and what it has open when nobody is there.
struct World {
    server: Server,
    address: SocketAddr,
    folder: TempDir,
    before: usize,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        std::fs::create_dir(&data).unwrap();
        std::fs::write(data.join("t.csv"), "a,b\n1,x\n2,y\n").unwrap();
        let (server, address) = start_logged(&data, &folder.path().join("log"));
        // What is opened once and kept is there from now on.
        let mut client = Client::login(address, "root", "", "").unwrap();
        assert_eq!(client.query("select count(*) from t").cell(), "2");
        drop(client);
        let mut before = server.descriptors();
        eventually("the first client is gone", || {
            let now = server.descriptors();
            std::mem::replace(&mut before, now) == now
        });
        World { server, address, folder, before }
    }

    /// It answers, has nobody left, and nothing in it has panicked.
    fn is_well(&self) {
        let mut client = Client::login(self.address, "root", "", "").unwrap();
        assert_eq!(client.query("select sum(a) from t").cell(), "3");
        eventually("nobody else is listed", || client.query("show processlist").rows().len() == 1);
        let running = "select count(*) from information_schema.backend_active_tasks where query_id <> ''";
        eventually("nothing else runs", || client.query(running).cell().parse::<u32>().unwrap() <= 1);
        drop(client);
        eventually("no descriptor is left", || self.server.descriptors() <= self.before);
        let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap();
        assert!(!log.contains("panicked"), "{log}");
    }
}

// promise 49
#[test]
fn five_hundred_at_once() {
    let world = World::new();
    let threads = world.server.threads();
    let mut clients: Vec<Client> =
        (0..500).map(|_| Client::login(world.address, "root", "", "").unwrap()).collect();
    for _ in 0..3 {
        let refused = Client::greet(world.address).unwrap_err().to_string();
        assert!(refused.contains("1040") && refused.contains("Too many connections"), "{refused}");
    }
    for (number, client) in clients.iter_mut().enumerate() {
        client.ask(&format!("select {number}, count(*) from t where b <> '{number}'")).unwrap();
    }
    let most = world.server.threads();
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.answer().unwrap().rows(), [[number.to_string(), "2".to_owned()]]);
    }
    println!("{threads} threads before, {most} with 500 queries");
    assert!(clients[0].query("show processlist").rows().len() == 500);
    drop(clients);
    world.is_well();
    // Those of the runtime that only wait for files are let go after ten seconds without work.
    eventually("no thread is left", || world.server.threads() <= threads);
}

/// All that a client says in a short conversation of every kind of command.
fn conversation() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut say = |number: u8, packet: &[u8]| {
        bytes.extend(&(packet.len() as u32).to_le_bytes()[..3]);
        bytes.push(number);
        bytes.extend(packet);
    };
    // CLIENT_PROTOCOL_41, SECURE_CONNECTION, PLUGIN_AUTH, CONNECT_WITH_DB, MULTI_STATEMENTS; nobody's password.
    let login =
        [&0x0009_8208_u32.to_le_bytes()[..], &[0; 28], b"root\0\0main\0mysql_native_password\0"].concat();
    say(1, &login);
    say(0, b"\x03select a, b from t; select 2");
    say(0, b"\x16select b from t where a = ? and b <> ? and a < ?");
    let values = [1, 3, 0, 253, 0, 12, 0, 1, 0, 0, 0, 1, b'z', 4, 0xe8, 7, 2, 29];
    say(0, &[&[0x18, 1, 0, 0, 0, 1, 0][..], b"piece"].concat());
    say(0, &[&[0x17, 1, 0, 0, 0, 0, 1, 0, 0, 0, 4][..], &values].concat());
    say(0, &[0x1a, 1, 0, 0, 0]);
    say(0, &[0x19, 1, 0, 0, 0]);
    say(0, b"\x02information_schema");
    say(0, b"\x04t\0");
    say(0, b"\x0c\xff\xff\x00\x00");
    say(0, &[0x0e]);
    say(0, &[0x1b, 0, 0]);
    say(0, b"\x03set workload_group = 'normal'");
    say(0, &[0x1f]);
    say(0, &[1]);
    bytes
}

/// Says it and reads to the end, which comes.
fn say(address: SocketAddr, bytes: &[u8]) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // The server may have closed before the last byte.
    stream.write_all(bytes).ok();
    stream.shutdown(Shutdown::Write).ok();
    let mut rest = Vec::new();
    if let Err(error) = stream.read_to_end(&mut rest) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{bytes:?}");
    }
}

// promise 49
#[test]
fn a_conversation_may_end_at_every_byte() {
    let world = World::new();
    let conversation = conversation();
    // Whole, all of it is answered, and the only error is that of the connection that is not there to be killed.
    let mut stream = TcpStream::connect(world.address).unwrap();
    stream.write_all(&conversation).unwrap();
    let mut answers = Vec::new();
    stream.read_to_end(&mut answers).unwrap();
    let (mut rest, mut errors, mut packets) = (answers.as_slice(), Vec::new(), 0);
    while let [low, middle, 0, _, more @ ..] = rest {
        let (packet, after) = more.split_at(usize::from(*low) | usize::from(*middle) << 8);
        if let [0xff, low, high, ..] = packet {
            errors.push(u16::from_le_bytes([*low, *high]));
        }
        (rest, packets) = (after, packets + 1);
    }
    assert_eq!((rest, errors), (&[][..], vec![1094]), "{packets} packets");
    for end in 0..=conversation.len() {
        say(world.address, &conversation[..end]);
    }
    world.is_well();
}

/// What is changed in a conversation: bytes are overwritten, put in, taken out, said twice, or it is cut.
#[derive(Debug, Clone)]
enum Edit {
    Set(prop::sample::Index, u8),
    Insert(prop::sample::Index, Vec<u8>),
    Remove(prop::sample::Index, usize),
    Twice(prop::sample::Index, usize),
    Cut(prop::sample::Index),
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = any::<prop::sample::Index>;
    // Of the bytes some that mean something: lengths, ends, NULL.
    let byte =
        prop_oneof![any::<u8>(), prop::sample::select(vec![0, 1, 0x7f, 0x80, 0xfb, 0xfc, 0xfd, 0xfe, 0xff])];
    prop_oneof![
        6 => (at(), byte).prop_map(|(at, byte)| Edit::Set(at, byte)),
        2 => (at(), prop::collection::vec(any::<u8>(), 1..40)).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        2 => (at(), 1_usize..40).prop_map(|(at, size)| Edit::Remove(at, size)),
        1 => (at(), 1_usize..200).prop_map(|(at, size)| Edit::Twice(at, size)),
        1 => at().prop_map(Edit::Cut),
    ]
}

fn edited(mut bytes: Vec<u8>, edits: &[Edit]) -> Vec<u8> {
    for edit in edits {
        let size = bytes.len().max(1);
        let part = |at: usize, long: usize| at.min(bytes.len())..(at + long).min(bytes.len());
        match edit {
            Edit::Set(at, byte) => {
                if let Some(place) = bytes.get_mut(at.index(size)) {
                    *place = *byte;
                }
            }
            Edit::Insert(at, new) => drop(bytes.splice(part(at.index(size), 0), new.iter().copied())),
            Edit::Remove(at, long) => drop(bytes.drain(part(at.index(size), *long))),
            Edit::Twice(at, long) => {
                let part = part(at.index(size), *long);
                let again = bytes[part.clone()].to_vec();
                drop(bytes.splice(part.end..part.end, again));
            }
            Edit::Cut(at) => bytes.truncate(at.index(size)),
        }
    }
    bytes
}

/// 1,000 edited conversations and as many of random bytes; many more in the long tier, or as `PROPTEST_CASES` says.
// promise 49
#[test]
fn edited_conversations_harm_nobody() {
    let world = World::new();
    let edits = prop::collection::vec(edit(), 1..6);
    let config = cases(1_000);
    TestRunner::new(config.clone())
        .run(&edits, |edits| {
            say(world.address, &edited(conversation(), &edits));
            Ok(())
        })
        .unwrap();
    // The first packet.
    let login = 4 + usize::from(conversation()[0]);
    let random = (any::<bool>(), prop::collection::vec(any::<u8>(), 0..300));
    TestRunner::new(config)
        .run(&random, |(logged_in, random)| {
            let first = if logged_in { conversation()[..login].to_vec() } else { Vec::new() };
            say(world.address, &[first, random].concat());
            Ok(())
        })
        .unwrap();
    world.is_well();
}

mod measure {
    use super::*;
    use crate::server::fixture::Fixture;
    use commensal_sql::protocol::Limits;
    use std::time::Instant;

    // promise 49
    #[test]
    fn who_logs_in_slowly_does_not_get_in() {
        let login = Duration::from_millis(500);
        let fixture = Fixture::with(Limits { login, ..Limits::default() }, |_| {});
        let conversation = conversation();
        let mut drip = Client::greet(fixture.address).unwrap();
        let begun = Instant::now();
        // A byte at a time, and never a second without one: the pace is what is tested.
        let closed = conversation.iter().any(|byte| {
            std::thread::sleep(Duration::from_millis(50));
            drip.stream.get_mut().write_all(&[*byte]).is_err() || begun.elapsed() > 20 * login
        });
        assert!(closed && fixture.engine.connections.all().is_empty());
        assert_eq!(fixture.root().query("select 1").cell(), "1");
    }
}
