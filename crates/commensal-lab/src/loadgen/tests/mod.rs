//! The generator against servers that stall, fail, hang up or stay silent, over real loopback sockets.

mod fake;
mod measure;

use super::*;
use commensal_testkit::until;
use fake::{FakeServer, OK, Reply};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// No step takes as long as this, on however busy a machine.
const LONG: Duration = Duration::from_secs(60);

fn quick(server: &FakeServer, rate_per_s: f64, measure_ms: u64) -> LoadSpec {
    LoadSpec {
        warmup: Duration::from_millis(100),
        connections: 8,
        timeout: LONG,
        ..LoadSpec::new(server.addr, "/cpu?cpu=1&count=1", rate_per_s, Duration::from_millis(measure_ms))
    }
}

fn load(spec: &LoadSpec) -> LoadResult {
    let result = run(spec, &AtomicBool::new(false), &mut |_| ()).expect("a result");
    assert_eq!(
        result.load.offered_requests,
        result.completed + result.load.errors + result.load.timeouts,
        "a request was lost"
    );
    assert_eq!(result.load.errors, result.error_kinds.total());
    assert_eq!(result.latency.len(), result.completed + result.load.timeouts);
    assert!(
        result.lateness.len() <= result.load.offered_requests && result.sent <= result.load.offered_requests
    );
    result
}

#[test]
fn a_connection_that_ends_after_each_answer_is_no_error() {
    let close: &[u8] = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";
    let untold: &[u8] = b"HTTP/1.1 200 OK\r\n\r\nuntil the end";
    for reply in [close, untold] {
        let server = FakeServer::start(move |_| Reply::Last(reply));
        let result = load(&quick(&server, 100.0, 500));
        assert_eq!((result.load.errors, result.load.timeouts), (0, 0), "{:?}", result.error_kinds);
        assert!(result.completed > 10 && result.reconnects >= result.completed, "{}", result.reconnects);
        assert!(server.accepted.load(Ordering::SeqCst) > result.completed);
    }
}

/// A healthy server may end a kept connection at any time, also just before or while a request arrives. Only the last
/// ending is certain to meet a request; how many requests meet the others depends on the machine.
#[test]
fn a_kept_connection_that_the_server_ends_is_no_error() {
    for (ending, meets_requests) in [(Reply::Last(OK), false), (Reply::Last(b""), true)] {
        let server = FakeServer::start(move |n| if n % 20 == 19 { ending.clone() } else { Reply::Bytes(OK) });
        let result = load(&LoadSpec { connections: 1, ..quick(&server, 200.0, 600) });
        assert_eq!((result.load.errors, result.load.timeouts), (0, 0), "{:?}", result.error_kinds);
        assert!(result.reconnects > 0 && result.load.resent <= result.reconnects, "{}", result.load.resent);
        assert!(!meets_requests || result.load.resent > 0);
    }
}

#[test]
fn failures_are_told_apart_and_the_run_goes_on() {
    type Kind = fn(&ErrorKinds) -> u64;
    let server_error: &[u8] = b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n";
    let cut: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf";
    let cases: [(&str, Reply, Kind); 4] = [
        ("status", Reply::Bytes(server_error), |k| k.status),
        ("garbage", Reply::Bytes(b"\x16\x03\x01 not http\r\n\r\n"), |k| k.malformed),
        ("cut short", Reply::Last(cut), |k| k.closed),
        ("length twice", Reply::Last(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"), |k| k.malformed),
    ];
    for (name, reply, kind) in cases {
        // Every fourth request fails, which must not affect the others.
        let server = FakeServer::start(move |n| if n % 4 == 3 { reply.clone() } else { Reply::Bytes(OK) });
        let result = load(&quick(&server, 200.0, 600));
        let (failed, share) =
            (kind(&result.error_kinds), result.load.errors as f64 / result.load.offered_requests as f64);
        assert_eq!(failed, result.load.errors, "{name}: {:?}", result.error_kinds);
        assert!((0.15..0.35).contains(&share), "{name}: {share}");
        assert_eq!(result.load.timeouts, 0, "{name}");
    }
}

#[test]
fn the_stop_flag_aborts() {
    let server = FakeServer::start(|_| Reply::Bytes(OK));
    let spec = quick(&server, 1.0, 3_600_000);
    let stop = Arc::new(AtomicBool::new(false));
    let runner = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || run(&spec, &stop, &mut |_| ())
    });
    until("the load has connected", || server.accepted.load(Ordering::SeqCst) > 0);
    stop.store(true, Ordering::Relaxed);
    let outcome = runner.join().expect("no panic");
    assert!(matches!(outcome, Err(LoadError::Stopped)), "{outcome:?}");
}

/// Starts a server that is not ready for the first three requests; also returns how many requests it has received.
fn soon_ready() -> (FakeServer, Arc<AtomicU64>) {
    let asked = Arc::new(AtomicU64::new(0));
    let server = FakeServer::start({
        let asked = Arc::clone(&asked);
        move |n| {
            asked.fetch_max(n + 1, Ordering::SeqCst);
            Reply::Bytes(if n < 3 { b"HTTP/1.1 503 Soon\r\nContent-Length: 0\r\n\r\n" } else { OK })
        }
    });
    (server, asked)
}

#[test]
fn wait_ready_waits_for_2xx_and_says_what_it_met() {
    let (server, asked) = soon_ready();
    wait_ready(server.addr, "/healthz", Instant::now() + LONG).expect("ready");
    // More than four if an answer took longer than one attempt may last.
    assert!(asked.load(Ordering::SeqCst) >= 4);
    let addr = server.addr;
    drop(server);
    let refused =
        wait_ready(addr, "/healthz", Instant::now() + Duration::from_millis(100)).expect_err("gone");
    assert!(refused.to_string().contains("refused"), "{refused}");
    let silent = FakeServer::start(|_| Reply::Silence);
    let until = Instant::now() + Duration::from_millis(100);
    assert!(matches!(wait_ready(silent.addr, "/", until), Err(LoadError::NotReady { .. })));
}

#[test]
fn impossible_specs_and_absent_servers_are_refused() {
    let server = FakeServer::start(|_| Reply::Bytes(OK));
    let check = |key: &str, change: &dyn Fn(&mut LoadSpec)| {
        let mut spec = quick(&server, 10.0, 100);
        change(&mut spec);
        let error = run(&spec, &AtomicBool::new(false), &mut |_| ()).expect_err(key);
        assert!(error.to_string().starts_with(key), "{error}");
    };
    check("rate_per_s", &|s| s.rate_per_s = 0.0);
    check("rate_per_s", &|s| s.rate_per_s = f64::NAN);
    check("path", &|s| s.path = "cpu".into());
    check("path", &|s| s.path = "/a b\r\nX: y".into());
    check("measure", &|s| s.measure = Duration::ZERO);
    check("connections", &|s| s.connections = 0);
    check("timeout", &|s| s.timeout = Duration::ZERO);
    let addr = server.addr;
    drop(server);
    let spec = LoadSpec::new(addr, "/", 10.0, Duration::from_secs(1));
    let error = run(&spec, &AtomicBool::new(false), &mut |_| ()).expect_err("nobody listens");
    assert!(matches!(error, LoadError::Connect { .. }), "{error:?}");
}
