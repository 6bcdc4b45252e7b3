//! Every way in which a connection can end, in every state of its statement: the statement ends, and its place in the
//! queue is free for others.

use crate::server::client::{Client, Encrypted};
use crate::server::fixture::{ENDLESS, Fixture, beside, eventually};
use crate::server::tls::Pair;
use commensal_sql::engine::group::Group;
use commensal_sql::protocol::{Limits, Tls};
use commensal_testkit::{PATIENCE, within};
use rustix::net::sockopt::set_socket_linger;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::rustls::ClientConfig;

/// Maximum size of a packet, and of what the server reads ahead of the statement that runs.
const PACKET: usize = 100_000;

/// What a statement does, or waits for, when its connection ends.
struct State {
    /// Also the name of its group.
    name: &'static str,
    /// Properties of the group.
    properties: &'static str,
    statement: &'static str,
    /// Whether a query that goes on holds the group's memory.
    memory_is_held: bool,
    /// Whether the statement is prepared.
    prepared: bool,
    is_reached: fn(&Fixture, &Group) -> bool,
}

fn runs(fixture: &Fixture, group: &Group) -> bool {
    let queries = fixture.engine.queries.all();
    queries.iter().any(|query| query.home().id == group.id && query.timing.begun().is_some())
}

const STATES: [State; 8] = [
    State {
        name: "sent",
        properties: "'max_concurrency'='1'",
        statement: ENDLESS,
        memory_is_held: false,
        prepared: false,
        is_reached: |_, _| true,
    },
    State {
        name: "queued",
        properties: "'max_concurrency'='0', 'max_queue_size'='5'",
        statement: "select * from hits",
        memory_is_held: false,
        prepared: false,
        is_reached: |_, group| group.queue.lengths() == (0, 1),
    },
    State {
        name: "queued_for_memory",
        properties: "'memory_limit'='64MB', 'enable_memory_overcommit'='false', 'memory_low_watermark'='1', \
                     'memory_high_watermark'='99', 'max_concurrency'='5', 'max_queue_size'='5'",
        statement: "select * from hits",
        memory_is_held: true,
        prepared: false,
        is_reached: |_, group| group.queue.lengths() == (1, 1),
    },
    State {
        name: "running",
        properties: "'max_concurrency'='1'",
        statement: ENDLESS,
        memory_is_held: false,
        prepared: false,
        is_reached: runs,
    },
    State {
        name: "prepared",
        properties: "'max_concurrency'='1'",
        statement: ENDLESS,
        memory_is_held: false,
        prepared: true,
        is_reached: runs,
    },
    State {
        name: "throttled",
        properties: "'max_concurrency'='1', 'cpu_hard_limit'='1%'",
        statement: ENDLESS,
        memory_is_held: false,
        prepared: false,
        is_reached: |fixture, group| runs(fixture, group) && group.cpu.throttled_ns() > 0,
    },
    State {
        name: "reading",
        properties: "'max_concurrency'='1', 'read_bytes_per_second'='1000'",
        statement: "select sum(id) from hits",
        memory_is_held: false,
        prepared: false,
        is_reached: |_, group| group.all_reads().iter().any(|reads| reads.waiting > 0),
    },
    State {
        name: "sending",
        properties: "'max_concurrency'='1'",
        statement: "select a.url, b.url from hits a, hits b",
        memory_is_held: false,
        prepared: false,
        is_reached: runs,
    },
];

/// How a connection ends.
#[derive(Debug, Clone, Copy)]
enum End {
    /// The client closes it: a FIN.
    Close,
    /// The client resets it: an RST. So does a proxy that is killed before it has read everything.
    Reset,
    /// TLS's own word for the end comes first.
    Alert,
}

/// A stream that can end in these ways.
trait Ends: Read + Write {
    fn tcp(&self) -> &TcpStream;
    fn alert(&mut self) {}
}

impl Ends for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl Ends for Encrypted {
    fn tcp(&self) -> &TcpStream {
        &self.sock
    }

    fn alert(&mut self) {
        self.conn.send_close_notify();
        self.conn.write_tls(&mut self.sock).unwrap();
    }
}

/// A server with a group for each state, and a certificate.
struct World {
    fixture: Fixture,
    trust: Arc<ClientConfig>,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let pair = Pair::write(folder.path());
        let tls = Tls::open(Path::new(&pair.file("cert.pem")), Path::new(&pair.file("key.pem"))).unwrap();
        let fixture = Fixture::encrypting(Limits { packet: PACKET, ..Limits::default() }, tls);
        fixture.hits("hits.parquet", 20_000);
        let mut root = fixture.root();
        for State { name, properties, .. } in STATES {
            root.all(&[&format!("create workload group {name} properties({properties})")]);
        }
        World { fixture, trust: pair.client() }
    }

    fn group(&self, name: &str) -> Arc<Group> {
        Arc::clone(&self.fixture.engine.groups()[name])
    }

    /// Brings a statement into a state, ends its connection, and waits until nothing of both is left. With
    /// `more_follows`, more statements than the server reads ahead wait behind it.
    fn check<S: Ends>(
        &self,
        mut client: Client<S>,
        state: &State,
        (end, more_follows): (End, bool),
        patience: Duration,
    ) {
        let case = format!("{} {end:?} more_follows={more_follows}", state.name);
        let group = self.group(state.name);
        client.all(&[&format!("set workload_group = '{}'", state.name)]);
        if state.prepared {
            let (id, _) = client.prepare(state.statement).unwrap().unwrap();
            client.send(0, &[&[0x17][..], &id.to_le_bytes(), &[0, 1, 0, 0, 0]].concat()).unwrap();
        } else {
            client.ask(state.statement).unwrap();
        }
        if more_follows {
            let long = format!("select '{}'", "x".repeat(PACKET * 3 / 4));
            client.ask(&long).unwrap();
            client.ask(&long).unwrap();
        }
        eventually(&case, || (state.is_reached)(&self.fixture, &group));
        let id = u64::from(client.id);
        let mut stream = client.stream.into_inner();
        match end {
            End::Close => {}
            End::Reset => set_socket_linger(stream.tcp(), Some(Duration::ZERO)).unwrap(),
            End::Alert => stream.alert(),
        }
        drop(stream);
        within(patience, format_args!("its place is free: {case}"), || {
            let engine = &self.fixture.engine;
            let held = usize::from(state.memory_is_held);
            engine.connections.get(id).is_none()
                && group.queue.lengths() == (held, 0)
                && engine.queries.all().len() == held
        });
    }

    /// Tries every state with every end; each place is free again within this time.
    fn check_all(&self, patience: Duration) {
        let address = self.fixture.address;
        for state in &STATES {
            let holder = state.memory_is_held.then(|| {
                let mut holder = self.fixture.root();
                holder.all(&[&format!("set workload_group = '{}'", state.name)]);
                holder.ask(ENDLESS).unwrap();
                let group = self.group(state.name);
                eventually("it holds memory", || !group.memory.room());
                holder
            });
            for more_follows in [false, true] {
                for end in [End::Close, End::Reset] {
                    self.check(self.fixture.root(), state, (end, more_follows), patience);
                }
                for end in [End::Close, End::Reset, End::Alert] {
                    let client = Client::encrypted(address, &self.trust, ("root", "")).unwrap();
                    self.check(client, state, (end, more_follows), patience);
                }
            }
            drop(holder);
        }
        eventually("nothing is left", || self.fixture.is_quiet());
        eventually("nobody is listed", || self.fixture.engine.connections.all().is_empty());
    }
}

// promise 49
#[test]
fn a_place_in_the_queue_comes_back_however_a_connection_ends() {
    World::new().check_all(PATIENCE);
}

mod measure {
    use super::*;

    // promise 49
    #[test]
    fn a_place_in_the_queue_comes_back_within_a_second() {
        let world = World::new();
        (0..10).for_each(|_| world.check_all(Duration::from_secs(1)));
    }
}

/// Those who wait are answered; the one that runs goes on.
// promise 47
#[test]
fn a_dropped_group_answers_those_who_wait_in_it() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 20_000);
    let mut root = fixture.root();
    for end in ["drop workload group q", "drop workload group if exists q"] {
        root.all(&["create workload group q properties('max_concurrency'='1', 'max_queue_size'='5')"]);
        let group = fixture.engine.groups()["q"].clone();
        let mut first = fixture.root();
        first.all(&["set workload_group = 'q'"]);
        first.ask(ENDLESS).unwrap();
        eventually("it runs", || runs(&fixture, &group));
        let waiting: Vec<_> = (0..3)
            .map(|_| beside(fixture.address, &["set workload_group = 'q'"], "select count(*) from hits"))
            .collect();
        eventually("they wait", || group.queue.lengths() == (1, 3));
        root.all(&[end]);
        for answer in waiting {
            assert_eq!(answer.join().unwrap().error(), "workload group q was dropped");
        }
        assert_eq!(group.queue.lengths(), (1, 0));
        root.all(&[&format!("kill query {}", first.id)]);
        assert_eq!(first.answer().unwrap().error(), "query is cancelled");
        eventually("nothing is left", || fixture.is_quiet());
    }
}
