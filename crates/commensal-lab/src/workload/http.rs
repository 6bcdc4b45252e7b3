//! The built-in online workload: an HTTP/1.1 server that burns a known amount of CPU per request.
//!
//! It is the server of the Group Identity experiment: `GET /cpu?cpu=N&count=M`, and `GET /metrics` in the same format.
//! It listens on 127.0.0.1 only, does no memory or disk work, and is ended by a signal. `POST /slow?before=N&after=M`
//! delays every later answer by N nanoseconds, a harm of known size, and returns the delays added so far.

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

/// Most threads one request may use.
pub const MAX_CPU: u64 = 64;
/// Maximum number of iterations per thread of a request (about 20 s).
pub const MAX_COUNT: u64 = 10_000_000_000;
/// Most worker threads of the server.
pub const MAX_WORKERS: usize = 1024;

/// How to start the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpOptions {
    /// TCP port on 127.0.0.1; 0 takes any free one.
    pub port: u16,
    /// Worker threads, 1 to [`MAX_WORKERS`]. A worker handles one request at a time, so this bounds the CPUs used by
    /// requests with `cpu=1`.
    pub workers: usize,
}

/// Binds, prints `listening 127.0.0.1:PORT` on standard output, and serves until the process is killed.
///
/// # Errors
/// When the port is busy or forbidden, when threads cannot be started, or when the line cannot be printed.
pub fn serve(options: HttpOptions) -> Result<(), LabError> {
    let server = HttpServer::bind(options)?;
    announce(server.addr())?;
    server.run()
}

/// A server whose socket already listens: clients can connect, and are answered once [`HttpServer::run`] runs.
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
    /// When the port cannot be had, or the number of workers is impossible.
    pub fn bind(options: HttpOptions) -> Result<Self, LabError> {
        let HttpOptions { port, workers } = options;
        if !(1..=MAX_WORKERS).contains(&workers) {
            let reason = "a server has 1 to 1024 workers";
            return Err(refuse("workers", workers as u64, reason));
        }
        let refused = |error: io::Error| no_port(port, &error);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let addr = listener.local_addr().map_err(refused)?;
        let metrics = Metrics::new().ok_or_else(|| refused(io::Error::other("no histogram")))?;
        Ok(Self { listener, addr, workers, state: Arc::new(State { metrics, slow: Slow::new() }) })
    }

    /// The address on which it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Serves for ever.
    ///
    /// # Errors
    /// When the worker threads cannot be started.
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
                    // Out of descriptors, or the peer has closed already: give others the time to close theirs.
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                };
                // Without it small answers may wait 40 ms for an acknowledgement. A failure means a dead peer.
                let _ = stream.set_nodelay(true);
                let (state, owed_ns) = (Arc::clone(&self.state), Arc::new(AtomicU64::new(0)));
                tokio::spawn(async move {
                    let connection = Connection { stream, owed_ns: Arc::clone(&owed_ns) };
                    let service =
                        service_fn(move |request| answer(request, Arc::clone(&state), Arc::clone(&owed_ns)));
                    // Errors of single connections are not reported.
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
            ("other", (StatusCode::NOT_FOUND, format!("not found; there are {routes}\n")))
        }
    };
    metrics.count(path, status.as_u16());
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(response)
}

/// Sets the delay of every later answer, and how long its worker is occupied afterwards; the response body lists the
/// delays added before.
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

/// Burns CPU as the query says, on the calling worker; the response body is the result of the computation.
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

/// `threads` threads each burn `count` iterations; the calling one is among them.
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

/// `(cpu, count)` from a query such as `cpu=1&count=4000000`; other parameters are ignored.
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
