//! Latency of an online group's short queries while long scans run, either in the same group or in an offline group.
//!
//! The short queries are due on a schedule, regardless of earlier queries. The latency of each counts from its due
//! time, so a server that stalls delays all queries that are due in the meantime. The queries are so rare that they use
//! about a quarter of a CPU when alone. The row without scans is measured twice, first and last: the difference between
//! the two results is the noise of the machine.

use super::error::ReplayError;
use super::server::{ReplayServer, family};
use super::watch::cpu_ns;
use super::{Bucket, Plan, Q29, shape};
use crate::client::{Client, ClientError};
use crate::load::{self, Latencies, Load, Outcome, Stop};
use commensal_host::LinuxHost;
use std::time::{Duration, Instant};

/// Number of the short query: it reads one column of the table.
const SHORT: usize = 20;

/// Number of initial short queries, whose median duration determines the interval.
const FIRST: usize = 30;

/// A row of the table of short queries.
#[derive(Debug, Clone)]
pub struct ShortQueries {
    /// Name of the row.
    pub name: &'static str,
    /// Latencies of the short queries, from their due time.
    pub latencies: Latencies,
    /// Number of short queries.
    pub queries: usize,
    /// Interval between due times.
    pub every: Duration,
    /// CPU time of the server and its workers, in percent of the machine.
    pub cpu_percent: f64,
    /// Worker process in which the scans ran; empty if they ran in the server.
    pub worker: String,
}

/// Names of the rows, each with the group that runs scans.
const ROWS: [(&str, Option<&str>); 4] = [
    ("alone", None),
    ("beside scans of the same group", Some("web")),
    ("beside scans of an offline group", Some("batch")),
    ("alone again", None),
];

/// Measures all rows, each with a new server.
pub fn run(plan: &Plan, bucket: &Bucket) -> Result<Vec<ShortQueries>, ReplayError> {
    let mut every = None;
    ROWS.iter().map(|(name, scans)| row(plan, bucket, name, *scans, &mut every)).collect()
}

fn row(
    plan: &Plan,
    bucket: &Bucket,
    name: &'static str,
    scans: Option<&str>,
    every: &mut Option<Duration>,
) -> Result<ShortQueries, ReplayError> {
    (plan.say)(&format!("short queries: {name}"));
    let no_answer = |error| ReplayError::Client(name.to_owned(), error);
    let server = ReplayServer::start(&plan.program, &plan.data, Some(bucket.endpoint()))?;
    let mut client = Client::connect(server.address, "root", "", "").map_err(no_answer)?;
    for statement in [
        "create workload group web",
        "create workload group batch properties('class'='offline')",
        "set workload_group = 'web'",
    ] {
        client.fetch(statement).map_err(no_answer)?;
    }
    let mut first = Vec::new();
    for _ in 0..FIRST {
        first.push(Outcome { took: one(&mut client, Instant::now()).map_err(no_answer)?, rows: Ok(1) });
    }
    let median = Latencies::of(&first).quantile(0.5).unwrap_or_default();
    // All rows use the interval that the first row has determined.
    let every = *every.get_or_insert((median * 4).max(Duration::from_millis(5)));
    let load = Load {
        address: server.address,
        user: "root".to_owned(),
        password: String::new(),
        database: String::new(),
        setup: vec![format!("set workload_group = '{}'", scans.unwrap_or("web"))],
        statements: vec![shape(Q29)],
        clients: if scans.is_some() { plan.clients } else { 0 },
        most: None,
    };
    let stop = Stop::default();
    let host = LinuxHost::new();
    std::thread::scope(|scope| {
        let scanning = scope.spawn(|| load::run(&load, &stop, &|_| {}));
        std::thread::sleep(super::WARM_UP);
        let time = || cpu_ns(&host, &family(&host, server.pid()));
        let (begun, before) = (Instant::now(), time());
        let asked = on_schedule(&mut client, every, Duration::from_secs(u64::from(plan.seconds)));
        let (seconds, after) = (begun.elapsed().as_secs_f64(), time());
        let told = client.fetch(
            "select worker from information_schema.workload_group_resource_usage where name = 'batch'",
        );
        stop.stop();
        let scanned = scanning.join().unwrap_or(Err(ClientError::Protocol("the load has panicked")));
        let outcomes = scanned.and(asked)?;
        let worker = told?.first().and_then(|row| row.first()?.clone()).unwrap_or_default();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        Ok(ShortQueries {
            name,
            queries: outcomes.len(),
            latencies: Latencies::of(&outcomes),
            every,
            cpu_percent: after.saturating_sub(before) as f64 / 1e9 / seconds / cpus * 100.0,
            worker,
        })
    })
    .map_err(no_answer)
}

/// Runs one short query; returns the time from its due time to its result.
fn one(client: &mut Client, due: Instant) -> Result<Duration, ClientError> {
    client.fetch(&shape(SHORT))?;
    Ok(due.elapsed())
}

fn on_schedule(client: &mut Client, every: Duration, time: Duration) -> Result<Vec<Outcome>, ClientError> {
    let begun = Instant::now();
    let mut outcomes = Vec::new();
    let mut due = begun;
    while due - begun < time {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        outcomes.push(Outcome { took: one(client, due)?, rows: Ok(1) });
        due += every;
    }
    Ok(outcomes)
}
