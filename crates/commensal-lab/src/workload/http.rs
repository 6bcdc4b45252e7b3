//! The built-in online workload: an HTTP/1.1 server that uses a known amount of CPU time per request.
//!
//! The server has the routes of the HTTP server in the Group Identity experiment, which
//! `experiments/http-vs-stress-ng.toml` reproduces: `GET /cpu?cpu=N&count=M` computes, and `GET /metrics` returns
//! metrics in the Prometheus text format. `POST /slow?before=N&after=M` delays every later response by N
//! nanoseconds, so that the lab can test whether it detects a known delay; the response lists the delays added so far.
//! The server listens only on 127.0.0.1, and does no memory or disk work. A signal stops it.

mod metrics;
mod slow;
#[cfg(test)]
mod tests;

use super::cpu::burn;
use super::{announce, no_port, no_threads, refuse};
use crate::error::LabError;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use metrics::Metrics;
pub use slow::SoFar;
use slow::{Connection, Slow};
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// Maximum number of threads that one request may use.
pub const MAX_CPU: u64 = 64;
/// Maximum number of iterations per thread of a request (about 20 s).
pub const MAX_COUNT: u64 = 10_000_000_000;
/// Maximum number of worker threads of the server.
pub const MAX_WORKERS: usize = 1024;

/// Parameters of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpOptions {
    /// TCP port on 127.0.0.1; 0 for any free port.
    pub port: u16,
    /// Number of worker threads, 1 to [`MAX_WORKERS`]. A worker handles one request at a time, so requests with `cpu=1`
    /// together use at most this many CPUs.
    pub workers: usize,
}

/// Opens the port, prints `listening 127.0.0.1:PORT` on standard output, and serves until the process dies.
///
/// # Errors
/// If the port is in use or privileged, a thread cannot start, or the line cannot be printed.
pub fn serve(options: HttpOptions) -> Result<(), LabError> {
    let server = HttpServer::bind(options)?;
    announce(server.addr())?;
    server.run()
}

/// A server whose socket is open. Clients can connect, but get responses only after [`HttpServer::run`] is called.
#[derive(Debug)]
pub struct HttpServer {
    listener: TcpListener,
    addr: SocketAddr,
    workers: usize,
    state: Arc<State>,
}

/// State shared by all connections.
#[derive(Debug)]
struct State {
    metrics: Metrics,
    slow: Slow,
}

impl HttpServer {
    /// Opens the port.
    ///
    /// # Errors
    /// If the port cannot be opened, or the number of workers is out of range.
    pub fn bind(options: HttpOptions) -> Result<Self, LabError> {
        let HttpOptions { port, workers } = options;
        if !(1..=MAX_WORKERS).contains(&workers) {
            let reason = "the number of workers must be 1 to 1024";
            return Err(refuse("workers", workers as u64, reason));
        }
        let refused = |error: io::Error| no_port(port, &error);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let addr = listener.local_addr().map_err(refused)?;
        let metrics = Metrics::new().ok_or_else(|| refused(io::Error::other("no histogram")))?;
        Ok(Self { listener, addr, workers, state: Arc::new(State { metrics, slow: Slow::new() }) })
    }

    /// Returns the address on which the server listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Serves requests; returns only if an error occurs.
    ///
    /// # Errors
    /// If the worker threads cannot start.
    pub fn run(self) -> Result<(), LabError> {
        let threads = self.workers;
        let failed = |error: io::Error| no_threads(threads, &error);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("http-worker")
            .enable_all()
            .build()
            .map_err(failed)?;
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(self.listener).map_err(failed)?;
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    // Either the process has no free file descriptor, or the peer has already closed the connection.
                    // The pause gives other connections time to close.
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                };
                // Without this option, small responses may wait 40 ms for an acknowledgement. Setting it fails only if
                // the peer has disconnected.
                let _ = stream.set_nodelay(true);
                let (state, owed_ns) = (Arc::clone(&self.state), Arc::new(AtomicU64::new(0)));
                tokio::spawn(async move {
                    let connection = Connection { stream, owed_ns: Arc::clone(&owed_ns) };
                    let service =
                        service_fn(move |request| answer(request, Arc::clone(&state), Arc::clone(&owed_ns)));
                    // The server ignores errors of single connections.
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(connection), service)
                        .await;
                });
            }
        })
    }
}

type Answer = Response<Full<Bytes>>;

async fn answer(
    request: Request<Incoming>,
    state: Arc<State>,
    owed_ns: Arc<AtomicU64>,
) -> Result<Answer, Infallible> {
    let State { metrics, slow } = &*state;
    let query = request.uri().query().unwrap_or("");
    let (path, (status, body)) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/cpu") => ("/cpu", cpu(query, metrics, (slow, &owed_ns))),
        (&Method::GET, "/metrics") => ("/metrics", (StatusCode::OK, metrics.render())),
        (&Method::GET, "/healthz") => ("/healthz", (StatusCode::OK, "ok\n".to_owned())),
        (&Method::POST, "/reset") => {
            metrics.reset();
            ("/reset", (StatusCode::OK, "reset\n".to_owned()))
        }
        (&Method::POST, "/slow") => ("/slow", slower(query, slow)),
        _ => {
            let routes = "GET /cpu?cpu=N&count=M, GET /metrics, GET /healthz, POST /reset, POST /slow?before=N&after=M";
            ("other", (StatusCode::NOT_FOUND, format!("not found; the routes are {routes}\n")))
        }
    };
    metrics.count(path, status.as_u16());
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(response)
}

/// Sets two times for every later request: the delay before its response, and the time for which its worker stays busy
/// after the response. The response body lists the delays added so far.
fn slower(query: &str, slow: &Slow) -> (StatusCode, String) {
    let asked = |name| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let (_, value) = pairs.find(|(key, _)| *key == name)?;
        value.parse().ok().filter(|ns| *ns <= slow::MOST_NS)
    };
    match asked("before").zip(asked("after")) {
        Some((before_ns, after_ns)) => {
            slow.set(before_ns, after_ns);
            (StatusCode::OK, format!("{}\n", slow.so_far()))
        }
        None => {
            let most = slow::MOST_NS;
            (StatusCode::BAD_REQUEST, format!("use /slow?before=N&after=M, each 0 to {most} nanoseconds\n"))
        }
    }
}

/// Computes on the calling worker as the query requests; the response body is the result of the computation.
fn cpu(query: &str, metrics: &Metrics, (slow, owed_ns): (&Slow, &AtomicU64)) -> (StatusCode, String) {
    let began = Instant::now();
    let (threads, count) = match parse_query(query) {
        Ok(asked) => asked,
        Err(reason) => return (StatusCode::BAD_REQUEST, format!("{reason}\n")),
    };
    match burn_on(threads, count) {
        Ok(value) => {
            slow.before(owed_ns);
            metrics.record_cpu(began.elapsed());
            (StatusCode::OK, format!("{value:016x}\n"))
        }
        Err(e) => (StatusCode::SERVICE_UNAVAILABLE, format!("cannot start {threads} threads: {e}\n")),
    }
}

/// Runs `count` iterations on each of `threads` threads; the calling thread is one of them.
fn burn_on(threads: u64, count: u64) -> io::Result<u64> {
    if threads == 1 {
        return Ok(burn(count));
    }
    std::thread::scope(|scope| {
        for _ in 1..threads {
            std::thread::Builder::new().name("http-burn".into()).spawn_scoped(scope, || burn(count))?;
        }
        Ok(burn(count))
    })
}

/// Parses `(cpu, count)` from a query such as `cpu=1&count=4000000`; other parameters are ignored.
fn parse_query(query: &str) -> Result<(u64, u64), String> {
    let mut cpu = None;
    let mut count = None;
    for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        match key {
            "cpu" => cpu = Some(value),
            "count" => count = Some(value),
            _ => {}
        }
    }
    Ok((number("cpu", cpu, 1, MAX_CPU)?, number("count", count, 0, MAX_COUNT)?))
}

fn number(name: &str, value: Option<&str>, min: u64, max: u64) -> Result<u64, String> {
    let value = value.ok_or_else(|| format!("parameter {name} is missing: use /cpu?cpu=N&count=M"))?;
    let n: u64 = value
        .parse()
        .map_err(|_| format!("parameter {name} = {value:?} is not a number from {min} to {max}"))?;
    if !(min..=max).contains(&n) {
        return Err(format!("parameter {name} = {n} is outside {min} to {max}"));
    }
    Ok(n)
}
