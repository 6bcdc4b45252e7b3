//! Tests the control socket on the running system, with a publisher instead of the loop.
#![allow(clippy::disallowed_methods, reason = "tests look at the socket's file themselves")]

use super::*;
use crate::client::{self, Answer, ClientError};
use crate::explain::Explained;
use crate::fixture;
use crate::snapshot::{Action, Group, Snapshot};
use commensal_host::{LinuxHost, Waker};
use commensal_testkit::{http, until};
use serde::de::DeserializeOwned;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Longer than every timeout of the server, so that a hanging test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is published: of a loop that ticks once an hour, so that no test is long enough for it to seem to hang.
fn shown() -> Snapshot {
    Snapshot { interval_ms: 3_600_000, ..fixture::snapshot() }
}

/// A directory, a publisher and a server.
struct World {
    dir: tempfile::TempDir,
    published: Arc<Published>,
    orders: Receiver<Command>,
    control: Option<Control>,
}

fn start(socket: &Path, metrics: Option<SocketAddr>) -> Result<Control, AgentError> {
    let (commands, _) = commands(Waker::new().unwrap());
    Control::start(&mut LinuxHost::new(), socket, None, metrics, Arc::default(), commands)
}

impl World {
    fn new(metrics: bool) -> World {
        let dir = tempfile::tempdir().unwrap();
        let published = Arc::new(Published::new());
        published.publish(Arc::new(shown()));
        let (commands, orders) = commands(Waker::new().unwrap());
        let addr = metrics.then(|| "127.0.0.1:0".parse().unwrap());
        let socket = dir.path().join(SOCKET);
        let control =
            Control::start(&mut LinuxHost::new(), &socket, None, addr, Arc::clone(&published), commands)
                .unwrap();
        World { dir, published, orders, control: Some(control) }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join(SOCKET)
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends a request, and reads until the server closes the connection.
    fn raw(&self, request: &str) -> String {
        let mut stream = self.connect();
        // The server may have responded early and closed the connection.
        let _ = stream.write_all(request.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    fn get(&self, path: &str) -> Result<Answer<serde_json::Value>, ClientError> {
        self.view(path)
    }

    /// What a client sees that has patience with a busy machine.
    fn view<T: DeserializeOwned>(&self, path: &str) -> Result<Answer<T>, ClientError> {
        client::get_within(&LinuxHost::new(), &self.socket(), path, PATIENCE)
    }

    fn second(&self) -> Result<Control, AgentError> {
        start(&self.socket(), None)
    }
}

/// Asserts that the start failed with this message.
fn says(started: Result<Control, AgentError>, words: &str) {
    let error = started.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains(words), "{error:?} does not say {words:?}");
}

fn refused(answer: Result<Answer<serde_json::Value>, ClientError>) -> (u16, String, String) {
    match answer {
        Err(ClientError::Refused { status, error, try_this }) => (status, error, try_this),
        other => panic!("{other:?}"),
    }
}

fn body(text: &str) -> &str {
    text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}")).1
}

#[test]
fn every_view_is_served() {
    let world = World::new(false);
    let want = shown();
    let snapshot: Answer<Snapshot> = world.view("/v1/snapshot").unwrap();
    assert_eq!(snapshot.body, want);
    let with_its_age = world.raw("GET /v1/snapshot HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(with_its_age.contains(&format!("\r\n{AGE}: ")), "{with_its_age}");
    let groups: Answer<Vec<Group>> = world.view("/v1/groups").unwrap();
    assert_eq!(groups.body, want.groups);
    let group: Answer<Group> = world.view("/v1/groups/etl?x=y").unwrap();
    assert_eq!(group.body, want.groups[1]);
    let explained: Answer<Explained> = world.view("/v1/explain/etl").unwrap();
    assert_eq!(Some(explained.body), crate::explain::explain(&want, "etl"));
    let actions: Answer<Vec<Action>> = world.view("/v1/actions").unwrap();
    assert_eq!(actions.body, *want.actions);
    assert_eq!(world.get("/healthz").unwrap().body["status"], "ok");
    let metrics = world.raw("GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(metrics.contains("content-type: text/plain; version=0.0.4"), "{metrics}");
    assert!(body(&metrics).contains("commensal_group_used_cpus{group=\"etl\"} 3.5\n"), "{metrics}");
    // A snapshot of an older program, without later fields, and a snapshot of a newer program, with unknown fields.
    let odd: Snapshot = serde_json::from_str(r#"{"pid": 7, "later": {}}"#).unwrap();
    assert_eq!(odd, Snapshot { pid: 7, ..Snapshot::default() });
}

#[test]
fn what_is_not_there_is_told_with_a_way_out() {
    let world = World::new(false);
    let (status, error, way_out) = refused(world.get("/v2/snapshot"));
    assert_eq!(status, 404);
    assert!(error.contains("/v2/snapshot") && way_out.contains("/v1/explain/NAME"), "{error} {way_out}");
    let (status, error, way_out) = refused(world.get("/v1/groups/wbe"));
    assert_eq!(status, 404);
    assert!(error.contains("wbe") && way_out.contains("web, etl, report"), "{error} {way_out}");
    assert_eq!(refused(world.get("/v1/explain/")).0, 404);
    let (status, error, way_out) = refused(world.get("/v1/canary"));
    assert_eq!(status, 404);
    assert!(error.contains("no canary has run") && way_out.contains("agent canary"), "{error} {way_out}");
    assert_eq!(refused(world.get("/v1/groups/a/b")).0, 404);
    let (status, error, _) = refused(world.get("/v1/pause"));
    assert_eq!((status, error.contains("takes POST")), (405, true));
    let wrong = world.raw("DELETE /v1/groups HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(wrong.starts_with("HTTP/1.1 405 ") && wrong.contains("allow: GET, HEAD"), "{wrong}");
    assert!(serde_json::from_str::<Refusal>(body(&wrong)).unwrap().error.contains("DELETE"));
    // The response to HEAD has no body.
    let head = world.raw("HEAD /v1/snapshot HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && body(&head).is_empty(), "{head}");
}

// promise 56
#[test]
fn bodies_and_heads_have_bounds() {
    let world = World::new(false);
    let big = "x".repeat(100_000);
    let declared = format!("POST /v1/reload HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n{big}");
    let chunked = format!(
        "POST /v1/reload HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{big}\r\n0\r\n\r\n",
        big.len()
    );
    for request in [declared, chunked] {
        let answer = world.raw(&request);
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer:?}");
        assert!(serde_json::from_str::<Refusal>(body(&answer)).unwrap().try_this.contains("send no body"));
    }
    let head = world.raw(&format!("GET /healthz HTTP/1.1\r\nHost: a\r\nX: {big}\r\n\r\n"));
    assert!(head.starts_with("HTTP/1.1 431 "), "{head:?}");
    let fields: String = (0..1_000).map(|n| format!("X{n}: y\r\n")).collect();
    let many = world.raw(&format!("GET /healthz HTTP/1.1\r\n{fields}\r\n"));
    assert!(many.starts_with("HTTP/1.1 431 "), "{many:?}");
    let garbage = world.raw("\u{0}\u{1}\r\n\r\n");
    assert!(garbage.is_empty() || garbage.starts_with("HTTP/1.1 400 "), "{garbage:?}");
    assert!(world.orders.try_recv().is_err(), "nothing of that was an order");
    world.get("/healthz").unwrap();
}

// promise 56
#[test]
fn the_socket_is_its_owners() {
    let world = World::new(false);
    let there = std::fs::symlink_metadata(world.socket()).unwrap();
    assert!(there.file_type().is_socket());
    assert_eq!(there.permissions().mode() & 0o777, 0o600);
    let names: Vec<_> =
        std::fs::read_dir(world.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, [SOCKET], "nothing else is left beside it");
    assert_eq!(there.uid(), LinuxHost::new().euid());
}

// promise 56
#[test]
fn a_dead_agents_socket_is_replaced_and_a_living_ones_is_not() {
    let mut world = World::new(false);
    let message = world.second().unwrap_err().to_string();
    assert!(message.contains("listens on") && message.contains("--state-dir"), "{message}");
    world.get("/healthz").expect("the first one goes on");
    drop(world.control.take());
    assert!(world.socket().exists(), "as SIGKILL leaves it");
    assert!(matches!(world.get("/healthz"), Err(ClientError::NoAgent(_))));
    let second = world.second().unwrap();
    // The agent has no snapshot yet, and responds with an error.
    let (status, error, _) = refused(world.get("/v1/snapshot"));
    assert_eq!((status, error.contains("first scan")), (503, true));
    drop(second);
    std::fs::remove_file(world.socket()).unwrap();
    std::fs::write(world.socket(), "precious").unwrap();
    says(world.second(), "is not a socket");
    assert_eq!(std::fs::read_to_string(world.socket()).unwrap(), "precious");
    let long = world.dir.path().join("x".repeat(120));
    says(start(&long, None), "the control socket cannot be created");
}

/// A full connection queue does not mean that the agent is dead.
// promise 56
#[test]
fn a_full_queue_is_no_dead_socket() {
    /// Number of connections before `connect` blocks: the queue of `listen`, plus one.
    const FULL: usize = 128 + 1;
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join(SOCKET);
    let deaf = LinuxHost::new().listen(&socket).unwrap();
    let connected = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                // The last connections block until the listener is closed.
                let held: Vec<UnixStream> = std::iter::from_fn(|| UnixStream::connect(&socket).ok())
                    .inspect(|_| {
                        connected.fetch_add(1, Ordering::Relaxed);
                    })
                    .collect();
                drop(held);
            });
        }
        until("the queue is full", || connected.load(Ordering::Relaxed) >= FULL);
        for _ in 0..20 {
            says(start(&socket, None), "an agent already listens");
        }
        drop(deaf);
    });
}

// promise 56
#[test]
fn sixty_four_clients_at_once() {
    let world = World::new(false);
    let socket = &world.socket();
    std::thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(move || {
                for _ in 0..5 {
                    let answer: Answer<Snapshot> =
                        client::get_within(&LinuxHost::new(), socket, "/v1/snapshot", PATIENCE).unwrap();
                    assert_eq!(answer.body, shown());
                }
            });
        }
    });
}

/// Clients that send half a request, or never read the response, delay neither other clients nor the loop.
// promise 56
#[test]
fn slow_clients_hold_up_nobody() {
    let world = World::new(false);
    let mut slow = Vec::new();
    for n in 0..40 {
        let mut stream = world.connect();
        stream.set_nonblocking(true).unwrap();
        let request: &[u8] =
            if n % 2 == 0 { b"GET /v1/sn" } else { b"GET /v1/snapshot HTTP/1.1\r\nHost: a\r\n\r\n" };
        // Send until the unread responses fill the buffers.
        for _ in 0..if n % 2 == 0 { 1 } else { 500 } {
            if stream.write(request).is_err() {
                break;
            }
        }
        slow.push(stream);
    }
    for ticks in 0..50 {
        world.published.publish(Arc::new(Snapshot { ticks, ..shown() }));
        let answer: Answer<Snapshot> = world.view("/v1/snapshot").unwrap();
        assert_eq!(answer.body.ticks, ticks);
    }
    // A half-sent request times out eventually.
    let mut half = world.connect();
    half.write_all(b"GET /healthz HT").unwrap();
    let mut rest = Vec::new();
    let _ = half.read_to_end(&mut rest);
    assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 4"), "{:?}", String::from_utf8_lossy(&rest));
    // A client may shut down its sending side after its request.
    let mut polite = world.connect();
    polite.write_all(b"GET /v1/groups HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    polite.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    polite.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    drop(slow);
}

// promise 56
#[test]
fn a_panic_ends_its_request_only() {
    let world = World::new(false);
    for _ in 0..3 {
        let (status, error, way_out) = refused(world.get("/panic"));
        assert_eq!(status, 500);
        assert!(error.contains("could not be generated") && !way_out.is_empty(), "{error}");
        world.get("/healthz").unwrap();
    }
}

#[test]
fn orders_reach_the_loop_and_their_outcome_comes_back() {
    let world = World::new(false);
    let (over, socket) = (AtomicBool::new(false), world.socket());
    std::thread::scope(|scope| {
        let (orders, over, socket) = (&world.orders, &over, &socket);
        let asks = scope.spawn(|| {
            let post = |path: &str| client::post::<serde_json::Value>(&LinuxHost::new(), socket, path);
            let done = post("/v1/reload").unwrap().body;
            let not = refused(post("/v1/pause"));
            let lost = refused(post("/v1/resume"));
            let start = |terms: &serde_json::Value| {
                client::post_json::<Done>(&LinuxHost::new(), socket, "/v1/canary/start", terms)
            };
            let canary = start(&serde_json::json!({ "seed": 7, "off_pct": 20 })).unwrap().body;
            let bad = start(&serde_json::json!({ "sead": 7 })).unwrap_err().to_string();
            over.store(true, Ordering::Relaxed);
            (done, not, lost, (canary.done, bad))
        });
        // This thread replaces the loop, which polls once per tick.
        while !over.load(Ordering::Relaxed) {
            match orders.recv_timeout(Duration::from_millis(5)) {
                Ok(Command { order: Order::Reload, reply }) => reply.done("generation 4 is in force"),
                Ok(Command { order: Order::Pause, reply }) => reply.refused("paused already", "resume first"),
                Ok(Command { order: Order::Resume, reply }) => drop(reply),
                Ok(Command { order: Order::Canary(request), reply }) => {
                    reply.done(format!("seed {}, off {} %", request.seed, request.off_pct));
                }
                Ok(Command { order: Order::CanaryAlive | Order::CanaryStop, .. }) => unreachable!("not sent"),
                Err(_) => {}
            }
        }
        let (done, not, lost, canary) = asks.join().unwrap();
        assert_eq!(done["done"], "generation 4 is in force");
        assert_eq!(not, (409, "paused already".to_owned(), "resume first".to_owned()));
        assert_eq!(lost.0, 500);
        assert_eq!(canary.0, "seed 7, off 20 %");
        assert!(canary.1.contains("unknown field `sead`"), "{}", canary.1);
    });
}

/// A loop that hangs executes no commands: the queue is bounded, and the snapshot can still be read.
// promise 56
#[test]
fn a_loop_that_hangs_is_told() {
    let world = World::new(false);
    let waiting: Vec<UnixStream> = (0..COMMANDS)
        .map(|_| {
            let mut stream = world.connect();
            stream.write_all(b"POST /v1/reload HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").unwrap();
            stream
        })
        .collect();
    let status = loop {
        let answer = world.raw("POST /v1/reload HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        match answer.get(9..12) {
            Some("504") => {}
            status => break status.map(str::to_owned),
        }
    };
    assert_eq!(status.as_deref(), Some("503"));
    world.get("/v1/snapshot").unwrap();
    drop(waiting);
}

// promise 56
#[test]
fn tcp_is_read_only_and_has_less() {
    let world = World::new(true);
    let addr = world.control.as_ref().unwrap().metrics_addr().unwrap();
    let plain = |method: &str, path: &str| {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        http(stream, method, path)
    };
    assert!(plain("GET", "/metrics").contains("commensal_agent_info"));
    assert!(plain("GET", "/healthz").starts_with("HTTP/1.1 200 "));
    let snapshot: Snapshot = serde_json::from_str(body(&plain("GET", "/v1/snapshot"))).unwrap();
    assert_eq!(snapshot, shown());
    for path in ["/v1/reload", "/v1/pause", "/v1/resume"] {
        assert!(plain("POST", path).starts_with("HTTP/1.1 404 "), "{path}");
    }
    assert!(plain("GET", "/v1/explain/etl").starts_with("HTTP/1.1 404 "));
    assert!(plain("POST", "/metrics").starts_with("HTTP/1.1 405 "));
    assert!(world.orders.try_recv().is_err());
    // Clients that take all TCP connections take none of the owner's.
    let held: Vec<_> = (0..TCP_CONNECTIONS + 4).map(|_| TcpStream::connect(addr).unwrap()).collect();
    world.get("/v1/snapshot").unwrap();
    drop(held);
    // Without the option there is no TCP listener. A port in use is an error.
    assert_eq!(World::new(false).control.as_ref().unwrap().metrics_addr(), None);
    let other = world.dir.path().join("other.sock");
    says(start(&other, Some(addr)), "--metrics-listen");
}

/// The client distinguishes a stopped agent from one that is not running.
// promise 28
#[test]
fn a_silent_agent_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join(SOCKET);
    let ask = || client::get::<Snapshot>(&LinuxHost::new(), &socket, "/v1/snapshot").unwrap_err();
    assert!(matches!(ask(), ClientError::NoAgent(_)));
    let _deaf = UnixListener::bind(&socket).unwrap();
    let error = ask();
    assert!(matches!(error, ClientError::Silent(_)) && error.to_string().contains("restart"), "{error}");
}

#[test]
fn groups_by_name_and_number() {
    let groups = "root:x:0:\ncommensal-x:x:7:\ncommensal:x:998:ann,bob\nbroken\nodd:x:y:\n";
    for (name, expected) in [
        ("commensal", Some(998)),
        ("root", Some(0)),
        ("4242", Some(4242)),
        ("ann", None),
        ("broken", None),
        ("odd", None),
    ] {
        assert_eq!(group_number(groups, name), expected, "{name}");
    }
}

/// Tests with Python, which becomes another user.
mod external {
    use super::*;

    // promise 56
    #[test]
    fn only_its_owner_reaches_the_socket() {
        let test = "only_its_owner_reaches_the_socket";
        let world = World::new(false);
        if LinuxHost::new().euid() != 0 {
            println!("skipped: {test}: needs root to be another user");
            return;
        }
        // The mode keeps other users out; if it was changed, the server closes their connections.
        let ask = |socket: &Path| {
            let script = "import os,socket,sys\nos.setgroups([])\nos.setgid(65534)\nos.setuid(65534)\n\
                          s=socket.socket(socket.AF_UNIX)\n\
                          try:\n s.connect(sys.argv[1])\nexcept OSError as e:\n print('refused'); sys.exit()\n\
                          try:\n s.sendall(b'GET /v1/snapshot HTTP/1.1\\r\\nHost: a\\r\\nConnection: close\\r\\n\\r\\n')\n \
                          print('got', len(s.recv(100)))\nexcept OSError:\n print('got 0')\n";
            let output = std::process::Command::new("python3").args(["-c", script]).arg(socket).output();
            output.ok().map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        std::fs::set_permissions(world.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let Some(first) = ask(&world.socket()) else {
            println!("skipped: {test}: no python3 to be another user");
            return;
        };
        assert_eq!(first, "refused");
        std::fs::set_permissions(world.socket(), std::fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(ask(&world.socket()).as_deref(), Some("got 0"));
        world.get("/healthz").unwrap();
    }
}
