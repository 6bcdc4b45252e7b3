//! Load from a second machine: one order in, one report out, each a line of JSON over TCP.
//!
//! There is no authentication. The listening side takes loopback addresses only unless told otherwise, one order at a
//! time, and open loops within its own bounds on rate and time. A line or a hang-up from the asking side ends the
//! run; what was measured until then is the report.

use super::{LabLoad, Order, look, target};
use crate::context::Context;
use crate::signals::stop_flag;
use anyhow::{Context as _, anyhow, bail, ensure};
use commensal_lab::loadgen::{Asked, LoadReport, LoadSpec};
use commensal_lab::record::Slo;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The name in the `schema` field of an order.
const SCHEMA: &str = "commensal.load-order/1";
/// What the listening side accepts unless told otherwise.
const MAX_RATE: f64 = 10_000.0;
const MAX_TIME: Duration = Duration::from_secs(60);
const MAX_CONNECTIONS: usize = 1_024;
/// Longest order; and longest answer: three histograms and a line per second.
const ORDER_BYTES: usize = 64 * 1024;
const ANSWER_BYTES: usize = 64 * 1024 * 1024;
/// For an order to arrive, and for an answer beyond the time of the run.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks at the stop flag.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug, Serialize, Deserialize)]
struct Wire {
    schema: String,
    asked: Asked,
    slo: Option<Slo>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Report(Box<LoadReport>),
    Error(String),
}

/// Carries out orders until a signal.
pub fn listen(context: &Context, options: &LabLoad, addr: SocketAddr) -> anyhow::Result<u8> {
    if !addr.ip().is_loopback() && !options.allow_remote {
        bail!(
            "--listen {addr} would let others make this machine send requests: use 127.0.0.1 (through ssh -L), or add \
             --allow-remote inside a network that you trust"
        );
    }
    let bounds = Bounds { rate: options.rate.unwrap_or(MAX_RATE), time: options.r#for.unwrap_or(MAX_TIME) };
    let listener = TcpListener::bind(addr).with_context(|| format!("cannot listen on {addr}"))?;
    listener.set_nonblocking(true)?;
    let stop = stop_flag(&context.host)?;
    println!("listening {}", listener.local_addr()?);
    crate::output::flush();
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, peer)) => {
                if let Err(error) = serve(stream, &bounds, &stop) {
                    eprintln!("commensal: {peer}: {error:#}");
                }
            }
            // Nobody is there, or somebody who left already.
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
    Ok(0)
}

#[derive(Debug)]
struct Bounds {
    rate: f64,
    time: Duration,
}

/// One order.
fn serve(mut stream: TcpStream, bounds: &Bounds, stop: &AtomicBool) -> anyhow::Result<()> {
    stream.set_nonblocking(false)?;
    let line = read_line(&mut stream, ORDER_BYTES, Instant::now() + PATIENCE, &mut |_| {
        ensure!(!stop.load(Ordering::Relaxed), "stopped");
        Ok(())
    })?;
    let outcome = serde_json::from_slice::<Wire>(&line)
        .context("this is no order of `commensal lab load --from`")
        .and_then(|wire| bounds.order(&wire))
        .and_then(|order| obey(&order, &stream, stop));
    let answer = match outcome {
        Ok(report) => Answer::Report(Box::new(report)),
        Err(error) => Answer::Error(format!("{error:#}")),
    };
    let mut text = serde_json::to_string(&answer)?;
    text.push('\n');
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(text.as_bytes()).context("the asking side is gone")
}

/// Runs while somebody waits for the result.
fn obey(order: &Order, stream: &TcpStream, stop: &AtomicBool) -> anyhow::Result<LoadReport> {
    let mut watched = stream.try_clone()?;
    let (over, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut byte = [0u8];
            while !done.load(Ordering::Relaxed) {
                let _ = watched.set_read_timeout(Some(PAUSE));
                let waiting = matches!(watched.read(&mut byte), Err(e) if is_pause(&e));
                if !waiting || stop.load(Ordering::Relaxed) {
                    over.store(true, Ordering::Relaxed);
                    return;
                }
            }
        });
        let outcome = order.carry_out(&over, false);
        done.store(true, Ordering::Relaxed);
        Ok(outcome?.0)
    })
}

impl Bounds {
    fn order(&self, wire: &Wire) -> anyhow::Result<Order> {
        let asked = &wire.asked;
        ensure!(wire.schema == SCHEMA, "schema {:?}: this version carries out {SCHEMA:?}", wire.schema);
        let rate = asked.rate_per_s.filter(|_| asked.closed.is_none());
        let rate = rate.context("a closed loop has no bounded rate: only --rate is carried out here")?;
        ensure!(
            rate <= self.rate,
            "{rate} requests/s are above the {} that --listen --rate allows",
            self.rate
        );
        let time = |what: &str, seconds: f64| {
            Duration::try_from_secs_f64(seconds).map_err(|_| anyhow!("{what} = {seconds}: not a time"))
        };
        let (warmup, measure) = (time("warmup_s", asked.warmup_s)?, time("measure_s", asked.measure_s)?);
        let timeout = time("timeout_s", asked.timeout_s)?;
        let longest = warmup.max(measure).max(timeout);
        ensure!(
            longest <= self.time && warmup + measure <= self.time,
            "{:?} of load and a timeout of {timeout:?} are above the {:?} that --listen --for allows",
            warmup.saturating_add(measure),
            self.time
        );
        let connections = asked.connections;
        ensure!(connections <= MAX_CONNECTIONS, "{connections} connections are above {MAX_CONNECTIONS}");
        let target = target::parse(&asked.url)?;
        let addr = target.resolve()?;
        let spec = LoadSpec {
            host: Some(target.host),
            arrival: asked.arrival.unwrap_or_default(),
            seed: asked.seed,
            warmup,
            connections,
            timeout,
            keep_partial: true,
            ..LoadSpec::new(addr, target.path, rate, measure)
        };
        look(&asked.url, &spec)?;
        Ok(Order { url: asked.url.clone(), spec, slo: wire.slo })
    }
}

/// Has an order carried out elsewhere.
pub fn ask(from: &str, order: &Order, stop: &AtomicBool) -> anyhow::Result<LoadReport> {
    let spec = &order.spec;
    let mut addrs = from.to_socket_addrs().with_context(|| format!("--from {from:?} is not HOST:PORT"))?;
    let addr = addrs.next().with_context(|| format!("--from {from:?} has no address"))?;
    let mut stream = TcpStream::connect_timeout(&addr, PATIENCE)
        .with_context(|| format!("--from {from}: is `commensal lab load --listen` running there?"))?;
    // What was asked is what an empty run would say of it.
    let asked = Asked::of(spec, &order.url);
    let mut text = serde_json::to_string(&Wire { schema: SCHEMA.to_owned(), asked, slo: order.slo })?;
    text.push('\n');
    stream.write_all(text.as_bytes())?;
    let longest = spec.warmup + spec.measure + spec.timeout * 2 + PATIENCE;
    let mut told = false;
    let line = read_line(&mut stream, ANSWER_BYTES, Instant::now() + longest, &mut |stream| {
        if stop.load(Ordering::Relaxed) && !told {
            told = true;
            stream.write_all(b"stop\n")?;
        }
        Ok(())
    });
    let line = line.with_context(|| format!("--from {from} gave no report"))?;
    match serde_json::from_slice(&line).with_context(|| format!("--from {from} gave no report"))? {
        Answer::Report(report) => Ok(*report),
        Answer::Error(error) => bail!("{from}: {error}"),
    }
}

/// One line of at most so many bytes, until the deadline; `between` is called while nothing comes.
fn read_line(
    stream: &mut TcpStream,
    most: usize,
    deadline: Instant,
    between: &mut dyn FnMut(&mut TcpStream) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<u8>> {
    stream.set_read_timeout(Some(PAUSE))?;
    let mut line = Vec::new();
    let mut chunk = vec![0u8; 64 * 1024];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => bail!("the other side hung up"),
            Ok(n) => {
                line.extend_from_slice(&chunk[..n]);
                if let Some(end) = line.iter().position(|b| *b == b'\n') {
                    line.truncate(end);
                    return Ok(line);
                }
                ensure!(line.len() <= most, "more than {most} bytes without an end");
            }
            Err(e) if is_pause(&e) => between(stream)?,
            Err(e) => return Err(e.into()),
        }
        ensure!(Instant::now() < deadline, "no answer in time");
    }
}

fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
