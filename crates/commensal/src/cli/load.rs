//! The command `lab load`: only the load generator, against any HTTP service.

mod print;
mod remote;
mod target;

use super::{LabLoad, Spacing};
use crate::context::Context;
use crate::signals::stop_flag;
use anyhow::{Context as _, bail};
use commensal_host::{Host as _, LinuxHost};
use commensal_lab::loadgen::{
    self, Arrival, KneeLimits, LoadError, LoadReport, LoadSpec, Mode, Phase, interval_log,
};
use commensal_lab::record::Slo;
use commensal_sensors::inherited::Inherited;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

/// Default length of the measured part.
const MEASURE: Duration = Duration::from_secs(10);
/// Exit status of an invalid measurement.
const INVALID: u8 = 4;

/// Generates the load on this machine, or on another one with --from.
pub fn run(context: &mut Context, options: &LabLoad) -> anyhow::Result<u8> {
    let order = Order::new(options)?;
    let stop = stop_flag(&context.host)?;
    if options.until_eof {
        stop_at_eof(&stop);
    }
    if options.find_knee {
        return knee(&order, options.json, &stop);
    }
    let report = match &options.from {
        Some(from) => remote::ask(context, (from, options), &order, &stop)?,
        None => here(context, options, &order, &stop)?,
    };
    if options.json {
        println!("{}", commensal_core::text::json_pretty(&report)?);
    } else {
        print!("{}", print::report(&report, options.series));
    }
    Ok(if report.valid { 0 } else { INVALID })
}

/// Generates the load on this machine.
fn here(
    context: &mut Context,
    options: &LabLoad,
    order: &Order,
    stop: &AtomicBool,
) -> anyhow::Result<LoadReport> {
    let hdr = options.hdr.as_deref().map(std::path::absolute).transpose().context("--hdr is not a path")?;
    if let Some(path) = &hdr {
        // Checked before the load, so that the result is not lost.
        context.writable(path).context("--hdr")?;
    }
    let (report, log) = order.carry_out(stop, hdr.is_some())?;
    if let (Some(path), Some(log)) = (&hdr, log) {
        context
            .host
            .state_replace(path, &log)
            .with_context(|| format!("{} cannot be written", path.display()))?;
    }
    Ok(report)
}

/// Sets the flag when standard input ends.
fn stop_at_eof(stop: &Arc<AtomicBool>) {
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        stop.store(true, Ordering::Relaxed);
    });
}

/// The parsed and resolved options.
#[derive(Debug)]
struct Order {
    url: String,
    spec: LoadSpec,
    slo: Option<Slo>,
}

impl Order {
    fn new(options: &LabLoad) -> anyhow::Result<Order> {
        let url = options.url.clone();
        let target = target::parse(&url)?;
        // The other machine resolves the address itself, since names may differ there.
        let addr = if options.from.is_some() { ([127, 0, 0, 1], 1).into() } else { target.resolve()? };
        let spec = LoadSpec {
            host: Some(target.host),
            warmup: options.warmup,
            connections: options.connections,
            arrival: match options.arrival {
                Spacing::Poisson => Arrival::Poisson,
                Spacing::Constant => Arrival::Constant,
            },
            seed: options.seed,
            timeout: options.timeout,
            mode: options.closed.map_or(Mode::Open, |concurrency| Mode::Closed { concurrency }),
            keep_partial: true,
            ..LoadSpec::new(addr, target.path, options.rate.unwrap_or(1.0), options.r#for.unwrap_or(MEASURE))
        };
        spec.validate()?;
        let window_s = options.window.as_secs_f64();
        let slo = options.slo.map(|(metric, latency_us)| Slo { metric, latency_us, window_s });
        if let Some(slo) = slo.filter(|slo| slo.latency_us >= spec.timeout.as_secs_f64() * 1e6) {
            bail!(
                "--slo asks for {} us, but a request is abandoned after {:?}: raise --timeout above the objective",
                slo.latency_us,
                spec.timeout
            );
        }
        Ok(Order { url, spec, slo })
    }

    /// Runs the load on this machine; also returns the interval log if `log`.
    fn carry_out(&self, stop: &AtomicBool, log: bool) -> anyhow::Result<(LoadReport, Option<String>)> {
        let mut spec = self.spec.clone();
        look(&self.url, &spec)?;
        // A generator that the user has pinned stays pinned.
        let limited = Inherited::read(&mut LinuxHost::new()).limits();
        let caveat = precise(&mut spec);
        let mut began = SystemTime::UNIX_EPOCH;
        let mut on_phase = |phase| {
            if phase == Phase::MeasureStart {
                began = SystemTime::now();
            }
        };
        let result = loadgen::run(&spec, stop, &mut on_phase).map_err(said)?;
        let mut report = LoadReport::new(&spec, &self.url, &result, self.slo)?;
        report.caveats.extend(caveat);
        report.caveats.extend(limited);
        let log = log.then(|| interval_log(&result, began)).transpose().map_err(anyhow::Error::msg)?;
        Ok((report, log))
    }
}

/// Sends one request before the load, so that a wrong path or protocol is noticed immediately.
fn look(url: &str, spec: &LoadSpec) -> anyhow::Result<()> {
    loadgen::look(spec).map_err(|error| match error {
        LoadError::NotReady { last, .. } => anyhow::anyhow!(
            "{url} cannot be measured: a test request failed: {last}. Only 2xx responses to GET over HTTP/1.1 are \
             measured: check the address, the path, and that the server runs"
        ),
        other => other.into(),
    })
}

fn said(error: LoadError) -> anyhow::Error {
    match error {
        LoadError::Stopped => anyhow::anyhow!("stopped before the measured part began: nothing to report"),
        other => other.into(),
    }
}

/// Makes the timing of the generator's thread as precise as this machine allows. Returns a warning if its precision is
/// limited.
fn precise(spec: &mut LoadSpec) -> Option<String> {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    if cpus == 1 {
        // On a machine with a single CPU, polling would take that CPU from the service.
        spec.spin = Duration::ZERO;
        return Some("only one CPU: the generator and the service compete for it".to_owned());
    }
    let error = commensal_host::precise_thread().err()?;
    Some(format!(
        "the generator has no real-time priority ({error}), so it sends late when the machine is busy"
    ))
}

fn knee(order: &Order, json: bool, stop: &AtomicBool) -> anyhow::Result<u8> {
    let mut spec = order.spec.clone();
    look(&order.url, &spec)?;
    let caveat = precise(&mut spec);
    if !json {
        println!("{}", print::KNEE_HEAD);
    }
    let mut tell = |point: &loadgen::KneePoint| {
        if !json {
            println!("{}", print::knee_point(point));
        }
    };
    let found = loadgen::knee(&spec, &KneeLimits::default(), stop, &mut tell).map_err(said)?;
    if json {
        println!("{}", commensal_core::text::json_pretty(&found)?);
    } else {
        print!("{}", print::knee(&found, caveat.as_deref()));
    }
    Ok(if found.end == loadgen::KneeEnd::Generator { INVALID } else { 0 })
}
