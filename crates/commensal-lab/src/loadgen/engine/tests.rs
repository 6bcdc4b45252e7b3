//! Every way in which a connection can fail, at every moment of a request, on every kind of connection: what becomes of
//! the request.
//!
//! The test itself is the server, and it also turns the engine's loop, so the order of all steps is fixed. A time-out
//! needs no waiting, because the clock can skip time.

use super::*;
use commensal_core::errno::Errno;
use commensal_testkit::within;
use rustix::net::sockopt::set_socket_linger;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

/// Timeout of a request by the clock that can skip, and the longest wait for any step by the machine's clock.
const MINUTE: Duration = Duration::from_secs(60);

const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n";
const CLOSING_HEAD: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1000\r\n\r\n";
const BODY_LENGTH: usize = 1_000;
const GARBAGE: &[u8] = b"\x16\x03\x01 not http\r\n\r\n";

/// The connection on which the server fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Connection {
    /// A new one.
    Fresh,
    /// One that was kept after a response.
    Kept,
    /// The new one on which the request is sent again, because the server has ended a kept one.
    Second,
}

/// When the server fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// Before the request arrives.
    Unsent,
    /// After the request has arrived and before the server reads it.
    Unread,
    /// After the server has read the request and before the first byte of the response.
    BeforeHead,
    InHead,
    InBody,
    /// After the whole response.
    Answered,
}

/// How the server fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failing {
    /// It closes the connection. (The kernel then sends RST instead of FIN if a request is unread.)
    Fin,
    /// It resets the connection (`SO_LINGER` 0).
    Rst,
    /// It sends no more, but keeps its end open (`shutdown`).
    HalfClose,
    /// It does nothing any more.
    Silence,
    /// It sends bytes that are not HTTP, and then does nothing any more.
    Garbage,
    /// It continues to the middle of the head, and closes the connection.
    CutHead,
    /// It continues to the middle of the body, and closes the connection.
    CutBody,
    /// It completes a response with `Connection: close`, and closes the connection.
    ConnectionClose,
    /// It completes the response, and closes the connection when the client does not use it.
    IdleClose,
}

const CONNECTIONS: [Connection; 3] = [Connection::Fresh, Connection::Kept, Connection::Second];
const MOMENTS: [Moment; 6] =
    [Moment::Unsent, Moment::Unread, Moment::BeforeHead, Moment::InHead, Moment::InBody, Moment::Answered];
const FAILINGS: [Failing; 9] = [
    Failing::Fin,
    Failing::Rst,
    Failing::HalfClose,
    Failing::Silence,
    Failing::Garbage,
    Failing::CutHead,
    Failing::CutBody,
    Failing::ConnectionClose,
    Failing::IdleClose,
];

impl Moment {
    /// How many bytes of the response the server has sent at this moment.
    fn sent(self, head: usize) -> usize {
        match self {
            Moment::Unsent | Moment::Unread | Moment::BeforeHead => 0,
            Moment::InHead => 20,
            Moment::InBody => head + 100,
            Moment::Answered => head + BODY_LENGTH,
        }
    }
}

impl Failing {
    fn head(self) -> &'static str {
        if self == Failing::ConnectionClose { CLOSING_HEAD } else { HEAD }
    }

    /// Up to which byte of the response the server still sends.
    fn sends(self, head: usize) -> usize {
        match self {
            Failing::Fin | Failing::Rst | Failing::HalfClose | Failing::Silence | Failing::Garbage => 0,
            Failing::CutHead => 30,
            Failing::CutBody => head + 200,
            Failing::ConnectionClose | Failing::IdleClose => head + BODY_LENGTH,
        }
    }

    /// Whether the server ends the connection.
    fn ends(self) -> bool {
        !matches!(self, Failing::Silence | Failing::Garbage)
    }
}

/// What becomes of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Answered,
    /// Sent again, and answered.
    Resent,
    Closed,
    Malformed,
    TimedOut,
}

/// What a client does in each case: after a failure without a byte of a response, the request goes to a new connection
/// once if the connection was a kept one.
fn expected(connection: Connection, moment: Moment, failing: Failing) -> Expected {
    if (moment, failing) == (Moment::Unsent, Failing::IdleClose) && connection != Connection::Second {
        // The client has noticed that its idle connection has ended.
        return Expected::Answered;
    }
    let head = failing.head().len();
    let sent = moment.sent(head).max(failing.sends(head));
    if sent == head + BODY_LENGTH {
        Expected::Answered
    } else if failing.ends() {
        let again = sent == 0 && connection == Connection::Kept;
        if again { Expected::Resent } else { Expected::Closed }
    } else if failing == Failing::Garbage && sent < head {
        Expected::Malformed
    } else {
        // Garbage in the body is part of the body.
        Expected::TimedOut
    }
}

/// What the generator has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Tally {
    answered: u64,
    resent: u64,
    closed: u64,
    malformed: u64,
    timed_out: u64,
    reconnects: u64,
}

/// What the generator has counted after the request of a cell, and after the requests that prepared it.
fn expected_tally(connection: Connection, moment: Moment, failing: Failing) -> Tally {
    let harmless = (moment, failing) == (Moment::Answered, Failing::Silence);
    let second = u64::from(connection == Connection::Second);
    let mut tally = Tally {
        answered: u64::from(connection != Connection::Fresh),
        resent: second,
        reconnects: second + u64::from(!harmless),
        ..Tally::default()
    };
    match expected(connection, moment, failing) {
        Expected::Answered => tally.answered += 1,
        Expected::Resent => (tally.answered, tally.resent) = (tally.answered + 1, tally.resent + 1),
        Expected::Closed => tally.closed = 1,
        Expected::Malformed => tally.malformed = 1,
        Expected::TimedOut => tally.timed_out = 1,
    }
    tally
}

fn response(head: &str) -> Vec<u8> {
    let mut bytes = head.as_bytes().to_vec();
    bytes.resize(head.len() + BODY_LENGTH, b'x');
    bytes
}

/// An engine with one connection and without a schedule, and its server.
struct Bench<'s> {
    engine: Engine<'s>,
    /// `None` if connections are refused.
    listener: Option<TcpListener>,
    /// The connection that the server accepted last, unless the server has failed on it.
    stream: Option<TcpStream>,
    /// Connections on which the server has failed, and which it keeps open.
    silent: Vec<TcpStream>,
    /// The part of a request that the server has read.
    held: Vec<u8>,
    /// What is tested, for messages.
    what: String,
}

fn with_bench(what: &str, test: impl FnOnce(&mut Bench<'_>)) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("a socket");
    // At a rate of 0, the schedule is empty.
    let spec = LoadSpec {
        warmup: Duration::ZERO,
        connections: 1,
        timeout: MINUTE,
        spin: Duration::ZERO,
        ..LoadSpec::new(listener.local_addr().expect("its address"), "/", 0.0, 60 * MINUTE)
    };
    let mut engine = Engine::new(&spec).expect("an engine");
    engine.open_pool(&AtomicBool::new(false)).expect("a connection");
    let mut bench = Bench {
        engine,
        listener: Some(listener),
        stream: None,
        silent: Vec::new(),
        held: Vec::new(),
        what: what.to_owned(),
    };
    bench.until("the server accepts the connection", Bench::accept);
    test(&mut bench);
}

impl Bench<'_> {
    /// Turns the engine's loop until the condition holds.
    fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let what = format!("{what}: {}", self.what);
        within(MINUTE, what, || {
            if holds(self) {
                return true;
            }
            self.turn();
            holds(self)
        });
    }

    /// One iteration of [`Engine::run`].
    fn turn(&mut self) {
        self.engine.clock.read();
        self.engine.advance();
        self.engine.wait(None).expect("events");
        self.engine.handle_events();
    }

    /// Makes a request due now, and sends it if the connection is free.
    fn ask(&mut self) {
        let now_ns = self.engine.clock.read();
        self.engine.due.next_ns = Some(now_ns);
        self.engine.send_due();
    }

    /// Whether a request has no outcome yet.
    fn pending(&self) -> bool {
        self.engine.requests.are_pending()
    }

    /// How many bytes of the response the generator has read.
    fn received(&self) -> usize {
        self.engine.pool.conns[0].received
    }

    fn result(&self) -> &LoadResult {
        &self.engine.recorder.result
    }

    fn refused(&self) -> u64 {
        self.result().error_kinds.socket_errors.count(Errno::ECONNREFUSED)
    }

    fn tally(&self) -> Tally {
        let result = self.result();
        let (kinds, load) = (&result.error_kinds, result.load);
        assert_eq!(kinds.total(), kinds.closed + kinds.malformed, "{}: {kinds:?}", self.what);
        assert_eq!(load.offered_requests, result.completed + kinds.total() + load.timeouts, "{}", self.what);
        assert_eq!(result.sent, load.offered_requests, "{}", self.what);
        assert_eq!(result.latency.len(), result.completed + load.timeouts, "{}", self.what);
        Tally {
            answered: result.completed,
            resent: load.resent,
            closed: kinds.closed,
            malformed: kinds.malformed,
            timed_out: load.timeouts,
            reconnects: result.reconnects,
        }
    }

    /// Accepts a connection if there is a new one.
    fn accept(&mut self) -> bool {
        let Some(Ok((stream, _))) = self.listener.as_ref().map(TcpListener::accept) else { return false };
        stream.set_nonblocking(true).expect("a socket");
        stream.set_nodelay(true).expect("a socket");
        self.stream = Some(stream);
        self.held.clear();
        true
    }

    /// Whether any part of a request has arrived that the server has not read.
    fn has_unread(&mut self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.peek(&mut [0]).is_ok_and(|n| n > 0))
    }

    /// Reads what has arrived; returns whether the request is complete.
    fn has_request(&mut self) -> bool {
        let Some(stream) = &mut self.stream else { return false };
        let mut buffer = [0; 1_024];
        if let Ok(n) = stream.read(&mut buffer) {
            self.held.extend_from_slice(&buffer[..n]);
        }
        let complete = self.held.ends_with(b"\r\n\r\n");
        if complete {
            self.held.clear();
        }
        complete
    }

    fn write(&mut self, bytes: &[u8]) {
        let stream = self.stream.as_mut().expect("a connection");
        stream.write_all(bytes).expect("room in the socket's buffer");
    }

    /// Lets the server respond without a fault until the request has its outcome.
    fn finish(&mut self) {
        self.until("the request has its outcome", |bench| {
            bench.accept();
            if bench.pending() && bench.has_request() {
                bench.write(&response(HEAD));
            }
            !bench.pending()
        });
    }

    /// Makes the connection that a cell needs. On a second connection, the request is then on its way.
    fn prepare(&mut self, connection: Connection) {
        if connection == Connection::Fresh {
            return;
        }
        self.ask();
        self.finish();
        if connection == Connection::Second {
            self.ask();
            self.until("the first try arrives", Bench::has_request);
            self.stream = None;
            self.until("the generator opens a new connection", Bench::accept);
        }
    }

    /// Makes a request, and lets the server fail at a moment of it.
    fn fail_at(&mut self, connection: Connection, moment: Moment, failing: Failing) {
        let second = connection == Connection::Second;
        if moment == Moment::Unsent {
            if failing == Failing::IdleClose && !second {
                self.stream = None;
                self.until("the generator notices the end", |bench| bench.result().reconnects == 1);
            } else {
                // The generator has not noticed anything when it sends the request.
                self.fail(moment, failing);
            }
            if !second {
                self.ask();
            }
            return;
        }
        if !second {
            self.ask();
        }
        if moment == Moment::Unread {
            self.until("the request arrives", Bench::has_unread);
        } else {
            self.until("the request arrives", Bench::has_request);
        }
        let sent = moment.sent(failing.head().len());
        self.write(&response(failing.head())[..sent]);
        self.until("the generator reads", |bench| !bench.pending() || bench.received() >= sent);
        self.fail(moment, failing);
    }

    fn fail(&mut self, moment: Moment, failing: Failing) {
        let head = failing.head().len();
        let from = moment.sent(head);
        let to = from.max(failing.sends(head));
        self.write(&response(failing.head())[from..to]);
        match failing {
            // The connection is fine, and waits for the next request.
            Failing::Silence if moment == Moment::Answered => return,
            Failing::Garbage => self.write(GARBAGE),
            Failing::IdleClose => self.until("the connection is idle", |bench| !bench.pending()),
            _ => {}
        }
        let stream = self.stream.take().expect("a connection");
        match failing {
            Failing::Silence | Failing::Garbage => self.silent.push(stream),
            Failing::HalfClose => {
                stream.shutdown(Shutdown::Write).expect("a connection");
                self.silent.push(stream);
            }
            Failing::Rst => set_socket_linger(&stream, Some(Duration::ZERO)).expect("a socket"),
            Failing::Fin
            | Failing::CutHead
            | Failing::CutBody
            | Failing::ConnectionClose
            | Failing::IdleClose => {}
        }
    }

    /// Waits until the request has its outcome. If the server says nothing more, the clock skips to the timeout as soon
    /// as everything has arrived.
    fn settle(&mut self, connection: Connection, moment: Moment, failing: Failing) {
        if !failing.ends() {
            let head = failing.head().len();
            let garbage = if failing == Failing::Garbage { GARBAGE.len() } else { 0 };
            let arrives = moment.sent(head).max(failing.sends(head)) + garbage;
            self.until("everything arrives", |bench| !bench.pending() || bench.received() >= arrives);
            if self.pending() {
                self.engine.clock.skip(MINUTE);
            }
        }
        self.finish();
        let reconnects = expected_tally(connection, moment, failing).reconnects;
        self.until("the connection is replaced", |bench| bench.result().reconnects >= reconnects);
    }
}

#[test]
fn every_failure_at_every_moment_has_its_outcome() {
    for connection in CONNECTIONS {
        for moment in MOMENTS {
            for failing in FAILINGS {
                let cell = format!("{failing:?} at {moment:?} on {connection:?}");
                with_bench(&cell, |bench| {
                    bench.prepare(connection);
                    bench.fail_at(connection, moment, failing);
                    bench.settle(connection, moment, failing);
                    let tally = bench.tally();
                    assert_eq!(tally, expected_tally(connection, moment, failing), "{cell}");
                    // The failure does not affect the next request.
                    bench.ask();
                    bench.finish();
                    assert_eq!(bench.tally(), Tally { answered: tally.answered + 1, ..tally }, "{cell}");
                });
            }
        }
    }
}

#[test]
fn a_request_that_is_sent_again_counts_from_when_it_was_due() {
    with_bench("a late end", |bench| {
        bench.prepare(Connection::Kept);
        bench.ask();
        bench.until("the request arrives", Bench::has_request);
        bench.engine.clock.skip(MINUTE / 6);
        bench.stream = None;
        bench.finish();
        let result = bench.result();
        assert_eq!((result.load.resent, result.completed, result.error_kinds.total()), (1, 2, 0));
        // Both the latency and the time since the first send contain the 10 s before the server ended the connection.
        assert!(result.latency.max() >= 10_000_000, "{}", result.latency.max());
        assert!(result.service.max() >= 10_000_000, "{}", result.service.max());
        assert!(result.lateness.max() < 10_000_000, "{}", result.lateness.max());
    });
}

#[test]
fn the_timeout_covers_both_tries() {
    with_bench("a silent second try", |bench| {
        bench.prepare(Connection::Kept);
        bench.ask();
        bench.until("the first try arrives", Bench::has_request);
        let second = Duration::from_secs(1);
        bench.engine.clock.skip(second);
        bench.stream = None;
        bench.until("the generator opens a new connection", Bench::accept);
        bench.until("the second try arrives", Bench::has_request);
        assert!(bench.pending());
        bench.engine.clock.skip(MINUTE - second);
        bench.until("the request has its outcome", |bench| !bench.pending());
        let tally = bench.tally();
        assert_eq!((tally.answered, tally.resent, tally.timed_out), (1, 1, 1));
    });
}

#[test]
fn a_refused_second_try_is_an_error_with_its_number() {
    with_bench("a refused second try", |bench| {
        bench.prepare(Connection::Kept);
        bench.ask();
        bench.until("the first try arrives", Bench::has_request);
        (bench.listener, bench.stream) = (None, None);
        bench.until("the request has its outcome", |bench| !bench.pending());
        let (kinds, load) = (&bench.result().error_kinds, bench.result().load);
        assert_eq!((kinds.io, kinds.total(), load.resent, load.timeouts), (1, 1, 1, 0), "{kinds:?}");
        assert!(bench.refused() >= 1);
        // Every further attempt to connect is counted as well, not only the first one. A request waits meanwhile.
        bench.ask();
        bench.until("the generator tries again", |bench| bench.refused() >= 4);
        assert!(bench.pending());
        bench.engine.clock.skip(MINUTE);
        bench.until("the request has its outcome", |bench| !bench.pending());
        let (kinds, load) = (&bench.result().error_kinds, bench.result().load);
        assert_eq!((kinds.io, kinds.total(), load.timeouts), (1, 1, 1), "{kinds:?}");
        assert_eq!(kinds.socket_errors.counts().count(), 1, "{kinds:?}");
    });
}
