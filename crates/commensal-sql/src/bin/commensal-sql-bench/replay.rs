//! Repeats the measurements of document 002 (Apache Doris' description of workload groups) on this machine: without and
//! with each of the document's limits, as tables.
//!
//! ```text
//! replay ─┬─ starts ──► commensal-sql (a new server for each row of a table)
//!         ├─ load ────► N clients over TCP, the document's statements and its q29
//!         ├─ watch ───► the kernel's accounting of that process, and the server's own tables
//!         └─ bucket     an S3 store on loopback, in this process, for the remote reads
//! ```
//!
//! This command is separate from the lab, because the lab compares one service under two background loads. The rows
//! here are of several kinds, each without and with a limit. A single replay is a demonstration; with several repeats,
//! each cell shows its median and its range.

mod bucket;
mod error;
mod figures;
mod repeats;
mod server;
mod short_queries;
mod table;
mod watch;

pub use bucket::Bucket;
pub use error::ReplayError;
pub use figures::{Figure, figures};
pub use repeats::medians;
pub use server::ReplayServer;
pub use short_queries::ShortQueries;
pub use table::{print, print_medians};
pub use watch::{Watched, Window};

use crate::client::{Client, ClientError};
use crate::hits::{self, Maker};
use crate::load::{self, Load, Outcome, Stop};
use crate::queries;
use datafusion::arrow::csv;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use watch::Watch;

/// Parameters of a replay.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Path of this program.
    pub program: PathBuf,
    /// Folder with the table `hits`.
    pub data: PathBuf,
    /// Rows of the object in the S3 store; the document uses a tenth of its table.
    pub remote_rows: u64,
    /// Measured seconds of each row of the CPU and read tables.
    pub seconds: u32,
    /// Number of clients for the memory and CPU tables; the document uses 3.
    pub clients: usize,
    /// Number of queries per row of the memory table.
    pub queries: usize,
    /// CPU hard limit in percent; the document uses 10.
    pub cpu_percent: u32,
    /// Read limits in bytes per second; the document uses 100 MiB/s.
    pub read_limit: u64,
    /// Callback for progress messages.
    pub say: fn(&str),
}

/// A row of a table: one server under one load.
#[derive(Debug, Clone)]
pub struct Arm {
    /// Name of the row.
    pub name: String,
    /// Statements sent to the server before the load.
    pub statements: Vec<String>,
    /// Measurements during the load.
    pub seen: Watched,
    /// Outcomes of the load's statements.
    pub outcomes: Vec<Outcome>,
    /// Seconds from the first statement to the end of the load.
    pub seconds: f64,
    /// The row's limit, in bytes or bytes per second.
    pub limit: Option<u64>,
}

/// The document's four tables, and the table of short queries alongside scans.
#[derive(Debug, Clone)]
pub struct ReplayReport {
    /// Parameters of the replay.
    pub plan: Plan,
    /// Memory: no limit, hard limit, hard limit and queue; first for an aggregation, then for a join.
    pub memory: Vec<Arm>,
    /// CPU: no limit, hard limit, the same hard limit for an offline group.
    pub cpu: Vec<Arm>,
    /// Local reads: no limit, limit.
    pub local: Vec<Arm>,
    /// Remote reads: no limit, limit.
    pub remote: Vec<Arm>,
    /// Short queries alongside scans.
    pub short_queries: Vec<ShortQueries>,
}

/// Name of the group in the document.
pub const GROUP: &str = "g2";

/// Duration at the start of each measurement. Its rates are discarded.
const WARM_UP: Duration = Duration::from_secs(2);

/// Number of a ClickBench query whose memory grows with the number of its result groups. The document's q29 needs only
/// some MB here, so no limit would take effect.
const HUNGRY: usize = 33;

/// A join that holds a column of the whole table in memory.
const JOIN: &str =
    "select count(*), min(a.URL), min(b.Title) from hits a join hits b on a.WatchID = b.WatchID";

/// Number of the document's query.
const Q29: usize = 29;

/// Condition that ends the measurement of a row.
enum Until {
    Seconds(u32),
    /// After this number of statements.
    Statements(usize),
}

/// Runs the whole replay.
///
/// # Errors
/// A server does not start, a statement of the document is refused, or nothing could be measured.
pub fn run(plan: &Plan) -> Result<ReplayReport, ReplayError> {
    let bucket = Bucket::open(object(plan.remote_rows)?).map_err(ReplayError::Bucket)?;
    let memory = memory(plan, &bucket)?;
    let cpu = cpu(plan, &bucket)?;
    let scan = "select * from hits".to_owned();
    let local = reads(plan, &bucket, "local reads", "read_bytes_per_second", scan, |window| window.read_mib)?;
    let scan = format!("select * from {}", bucket.call());
    let remote =
        reads(plan, &bucket, "remote reads", "remote_read_bytes_per_second", scan, |window| window.sent_mib)?;
    let short_queries = short_queries::run(plan, &bucket)?;
    Ok(ReplayReport { plan: plan.clone(), memory, cpu, local, remote, short_queries })
}

/// Returns the object in the S3 store: rows as CSV.
fn object(rows: u64) -> Result<Vec<u8>, ReplayError> {
    let (maker, schema) = (Maker::new(2, rows), hits::schema());
    let mut writer = csv::WriterBuilder::new().with_header(true).build(Vec::new());
    for from in (0..rows).step_by(8_192) {
        let batch = hits::batch(&maker, &schema, from..rows.min(from + 8_192)).map_err(ReplayError::Rows)?;
        writer.write(&batch).map_err(ReplayError::Rows)?;
    }
    Ok(writer.into_inner())
}

fn alter(property: &str, value: &str) -> String {
    format!("alter workload group {GROUP} properties('{property}'='{value}')")
}

fn shape(number: usize) -> String {
    queries::shape(number).map(|shape| shape.sql.to_owned()).unwrap_or_default()
}

/// Measures two kinds of memory use. An aggregation spills (writes data to disk) when memory is short. A join cannot
/// spill, so the server must cancel a query.
fn memory(plan: &Plan, bucket: &Bucket) -> Result<Vec<Arm>, ReplayError> {
    let mut arms = Vec::new();
    for (kind, query) in [("aggregate", shape(HUNGRY)), ("join", JOIN.to_owned())] {
        let one = Until::Statements(1);
        let alone = arm(plan, bucket, &format!("{kind}: one by itself"), &[], (1, &[], &query), &one)?;
        // The limit is enough for one and a half of the queries, so three queries exceed it.
        let limit = alone.seen.told_peak.max(1 << 20) * 3 / 2;
        let hard = [
            alter("memory_limit", &format!("{} MiB", limit >> 20)),
            alter("enable_memory_overcommit", "false"),
        ];
        let mut queued = hard.to_vec();
        queued.push(alter("max_concurrency", "1"));
        queued.push(alter("max_queue_size", "100"));
        queued.push(alter("queue_timeout", "600000"));
        let (load, all) = ((plan.clients, &[][..], query.as_str()), Until::Statements(plan.queries));
        arms.push(arm(plan, bucket, &format!("{kind}: no limit"), &[], load, &all)?);
        for (name, statements) in [("hard limit", &hard[..]), ("hard limit and queue", &queued[..])] {
            let limited = arm(plan, bucket, &format!("{kind}: {name}"), statements, load, &all)?;
            arms.push(Arm { limit: Some(limit >> 20 << 20), ..limited });
        }
    }
    Ok(arms)
}

fn cpu(plan: &Plan, bucket: &Bucket) -> Result<Vec<Arm>, ReplayError> {
    let query = shape(Q29);
    let hard = [
        alter("cpu_hard_limit", &format!("{}%", plan.cpu_percent)),
        "ADMIN SET FRONTEND CONFIG (\"enable_cpu_hard_limit\" = \"true\")".to_owned(),
    ];
    // The worker of an offline group is a separate process, so the kernel may throttle it at any point.
    let offline = [&[alter("class", "offline")], &hard[..]].concat();
    let until = Until::Seconds(plan.seconds);
    let load = (plan.clients, &[][..], query.as_str());
    Ok(vec![
        arm(plan, bucket, "CPU: no limit", &[], load, &until)?,
        arm(plan, bucket, "CPU: hard limit", &hard, load, &until)?,
        arm(plan, bucket, "CPU: hard limit, offline group", &offline, load, &until)?,
    ])
}

/// Measures a scan by one client, without and with a limit. `rate` returns the rate of a measured window, in MiB per
/// second.
fn reads(
    plan: &Plan,
    bucket: &Bucket,
    what: &'static str,
    property: &str,
    scan: String,
    rate: fn(&Window) -> f64,
) -> Result<Vec<Arm>, ReplayError> {
    let until = Until::Seconds(plan.seconds);
    let dry = ["set dry_run_query = true".to_owned()];
    let load = (1, &dry[..], scan.as_str());
    let free = arm(plan, bucket, &format!("{what}: no limit"), &[], load, &until)?;
    let mean = free.seen.mean(rate).filter(|mean| *mean > 0.0).ok_or(ReplayError::Nothing(what))?;
    let limit = limit_below(plan.read_limit, mean);
    let mut limited =
        arm(plan, bucket, &format!("{what}: limit"), &[alter(property, &limit.to_string())], load, &until)?;
    limited.limit = Some(limit);
    Ok(vec![free, limited])
}

/// Returns the wanted limit, or a quarter of the unlimited rate if that rate is less than twice the wanted limit.
fn limit_below(wanted: u64, mean_mib: f64) -> u64 {
    let quarter = (mean_mib / 4.0).max(1.0) as u64 * (1 << 20);
    if mean_mib * f64::from(1 << 20) >= wanted as f64 * 2.0 { wanted } else { quarter.min(wanted) }
}

/// Number of clients, their setup statements, and the statement that they repeat.
type Asked<'a> = (usize, &'a [String], &'a str);

/// Measures one row.
fn arm(
    plan: &Plan,
    bucket: &Bucket,
    name: &str,
    statements: &[String],
    (clients, setup, statement): Asked<'_>,
    until: &Until,
) -> Result<Arm, ReplayError> {
    (plan.say)(name);
    let server = ReplayServer::start(&plan.program, &plan.data, Some(bucket.endpoint()))?;
    let no_answer = |error| ReplayError::Client(name.to_owned(), error);
    let mut client = Client::connect(server.address, "root", "", "").map_err(no_answer)?;
    client.fetch(&format!("create workload group {GROUP}")).map_err(no_answer)?;
    for statement in statements {
        client.fetch(statement).map_err(no_answer)?;
    }
    let mut first = vec![format!("set workload_group = '{GROUP}'")];
    first.extend_from_slice(setup);
    let load = Load {
        address: server.address,
        user: "root".to_owned(),
        password: String::new(),
        database: String::new(),
        setup: first,
        statements: vec![statement.to_owned()],
        clients,
        most: match until {
            Until::Statements(number) => Some(*number),
            Until::Seconds(_) => None,
        },
    };
    let (stop, outcomes) = (Stop::default(), Mutex::new(Vec::new()));
    let keep = |outcome| outcomes.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
    let begun = Instant::now();
    let mut watch = Watch::new(server.pid(), client, bucket);
    let seen = std::thread::scope(|scope| {
        let done = scope.spawn(|| load::run(&load, &stop, &keep));
        let seen = match until {
            Until::Seconds(seconds) => watch.during(WARM_UP, &|| done.is_finished()).and_then(|_| {
                let measured = Duration::from_secs(u64::from(*seconds));
                watch.during(measured, &|| done.is_finished())
            }),
            Until::Statements(_) => watch.during(Duration::MAX, &|| done.is_finished()),
        };
        stop.stop();
        let done = done.join().unwrap_or(Err(ClientError::Protocol("the load has panicked")));
        done.and(seen)
    })
    .map_err(no_answer)?;
    let outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(Arm {
        name: name.to_owned(),
        statements: statements.to_vec(),
        seen,
        outcomes,
        seconds: begun.elapsed().as_secs_f64(),
        limit: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_would_limit_nothing_are_lowered() {
        let mib = 1 << 20;
        for (wanted, mean, want) in
            [(100, 900.0, 100), (100, 200.0, 100), (100, 150.0, 37), (100, 0.5, 1), (1, 1.9, 1)]
        {
            assert_eq!(limit_below(wanted * mib, mean), want * mib, "{wanted} {mean}");
        }
    }
}
