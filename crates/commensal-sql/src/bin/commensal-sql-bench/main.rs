//! `commensal-sql-bench`: tools to try out and measure a server, separate from the server program: data generation,
//! queries, load, and the replay of document 002.
#![forbid(unsafe_code)]

mod client;
mod hits;
mod load;
mod queries;
mod replay;

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand};
use hits::{RowOrder, RowsFormat};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use load::{Load, Stop};
use replay::Plan;
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Generates data, queries and load for commensal-sql, and measures its limits.
#[derive(Debug, Parser)]
#[command(name = "commensal-sql-bench", version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

/// The command.
#[derive(Debug, Subcommand)]
enum Verb {
    /// Generate a table `hits` with ClickBench's schema and made-up rows of similar distributions.
    Generate(Generate),
    /// List the 43 query shapes of ClickBench, or print one.
    Queries(Queries),
    /// Send queries to a server from several concurrent clients, and print throughput and latency.
    Bench(Bench),
    /// Repeat the measurements of document 002 (an article about the workload groups of Apache Doris), and print them
    /// as tables: memory, CPU, local and remote reads, each without and with its limit.
    Replay(Replay),
}

/// Arguments of `generate`.
#[derive(Debug, Args)]
struct Generate {
    /// Total number of rows in all files.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000_000))]
    rows: u64,
    /// Folder for the files; created if it does not exist.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Number of files: hits.parquet if it is 1, otherwise hits_0.parquet and so on. To be served as one table, several
    /// files must be in a folder two levels below the data folder: DATA/clickbench/hits is the table clickbench.hits.
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    files: u32,
    /// Format of the files.
    #[arg(long, value_enum, default_value_t = RowsFormat::Parquet)]
    format: RowsFormat,
    /// Seed; the same seed and number of rows give the same rows.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Replace existing files.
    #[arg(long)]
    force: bool,
}

/// Arguments of `queries`.
#[derive(Debug, Args)]
struct Queries {
    /// Print only this query (1 to 43).
    number: Option<usize>,
    /// Print the statements, not only their descriptions.
    #[arg(long)]
    sql: bool,
}

/// Arguments of `bench`.
#[derive(Debug, Args)]
struct Bench {
    /// Address of the server.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9030")]
    connect: SocketAddr,
    /// User; the password is taken from the environment variable COMMENSAL_SQL_PASSWORD.
    #[arg(long, default_value = "root")]
    user: String,
    /// Database.
    #[arg(long, value_name = "NAME", default_value = "")]
    database: String,
    /// Workload group of the queries.
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// Number of concurrent clients; each sends its next statement when it has the result of the previous one.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    clients: u16,
    /// Duration in seconds.
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    seconds: f64,
    /// Count the rows on the server instead of returning them.
    #[arg(long)]
    dry_run: bool,
    /// Print a line of JSON for each statement; the lab reads them with the tool "json-lines".
    #[arg(long)]
    json: bool,
    /// Statement to send instead of ClickBench's queries; may be repeated.
    #[arg(long = "sql", value_name = "STATEMENT")]
    sql: Vec<String>,
    /// Number of a ClickBench query to send; may be repeated. All 43 if neither --query nor --sql is given.
    #[arg(long = "query", value_name = "NUMBER")]
    query: Vec<usize>,
}

/// Arguments of `replay`.
#[derive(Debug, Args)]
struct Replay {
    /// Folder with the hits.parquet of `generate`; the file is generated if it is missing.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Number of rows if the table is generated; the S3 store gets a tenth of this number.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..))]
    rows: u64,
    /// Measured time of each row of the CPU and read tables, in seconds.
    #[arg(long, value_name = "S", default_value_t = 15, value_parser = clap::value_parser!(u32).range(3..=3_600))]
    seconds: u32,
    /// Number of clients for the memory and CPU tables.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(2..=100))]
    clients: u16,
    /// Number of queries per row of the memory table.
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u16).range(2..))]
    queries: u16,
    /// CPU hard limit, in percent of the machine.
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=99))]
    cpu: u32,
    /// Read limits in MiB per second; lowered to a quarter of the unlimited rate if that rate is less than twice the
    /// limit.
    #[arg(long, value_name = "MIB", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    read_limit: u64,
    /// The program commensal-sql [default: the one in the folder of this program, else the one in PATH].
    #[arg(long, value_name = "FILE")]
    server: Option<PathBuf>,
    /// Number of repeats; with 2 or more, the median and the range of each value are printed, and the statements are
    /// omitted.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    repeats: u16,
    /// Print a line of JSON for each value, at the end of each repeat.
    #[arg(long)]
    json: bool,
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().verb {
        Verb::Generate(generate) => {
            for path in generated(&generate.order())? {
                println!("{}", path.display());
            }
            Ok(())
        }
        Verb::Queries(queries) => listed(&queries),
        Verb::Bench(bench) => benched(&bench),
        Verb::Replay(replay) => replayed(&replay),
    }
}

impl Generate {
    fn order(self) -> RowOrder {
        let Generate { rows, out, files, format, seed, force } = self;
        RowOrder { rows, out, files, format, seed, force }
    }
}

/// Writes the files and returns their names.
fn generated(order: &RowOrder) -> anyhow::Result<Vec<PathBuf>> {
    let bar = ProgressBar::with_draw_target(
        Some(order.rows),
        if std::io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        },
    );
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {human_pos} of {human_len} rows, {eta} left") {
        bar.set_style(style);
    }
    let written = hits::write(order, &|rows| bar.set_position(rows));
    bar.finish_and_clear();
    Ok(written?)
}

fn listed(options: &Queries) -> anyhow::Result<()> {
    if let Some(number) = options.number {
        let Some(shape) = queries::shape(number) else {
            bail!("there is no query {number}: they are numbered from 1 to 43");
        };
        println!("{};", shape.sql);
        return Ok(());
    }
    let mut out = std::io::stdout().lock();
    for shape in queries::shapes() {
        let written = if options.sql {
            writeln!(out, "-- {}: {}\n{};\n", shape.number, shape.about, shape.sql)
        } else {
            writeln!(out, "{:2}  {}", shape.number, shape.about)
        };
        // The reader may have closed the pipe.
        if written.is_err() {
            break;
        }
    }
    Ok(())
}

fn statements(options: &Bench) -> anyhow::Result<Vec<String>> {
    let mut statements = options.sql.clone();
    for number in &options.query {
        let Some(shape) = queries::shape(*number) else {
            bail!("there is no query {number}: they are numbered from 1 to 43");
        };
        statements.push(shape.sql.to_owned());
    }
    if statements.is_empty() {
        statements.extend(queries::shapes().iter().map(|shape| shape.sql.to_owned()));
    }
    Ok(statements)
}

fn benched(options: &Bench) -> anyhow::Result<()> {
    if !(options.seconds > 0.0 && options.seconds <= 86_400.0) {
        bail!("--seconds {} is not within 0 to 86400", options.seconds);
    }
    let mut setup = Vec::new();
    if let Some(group) = &options.group {
        // Doubled quotes, because a single one would end the string.
        setup.push(format!("set workload_group = '{}'", group.replace('\'', "''")));
    }
    if options.dry_run {
        setup.push("set dry_run_query = true".to_owned());
    }
    let load = Load {
        address: options.connect,
        user: options.user.clone(),
        password: std::env::var("COMMENSAL_SQL_PASSWORD").unwrap_or_default(),
        database: options.database.clone(),
        setup,
        statements: statements(options)?,
        clients: usize::from(options.clients),
        most: None,
    };
    let (stop, outcomes) = (Stop::default(), Mutex::new(Vec::new()));
    let keep = |outcome| outcomes.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
    let begun = Instant::now();
    let done = std::thread::scope(|scope| {
        let clients = scope.spawn(|| load::run(&load, &stop, &keep));
        while begun.elapsed().as_secs_f64() < options.seconds && !clients.is_finished() {
            std::thread::sleep(Duration::from_millis(10));
        }
        stop.stop();
        clients.join()
    });
    let seconds = begun.elapsed().as_secs_f64();
    let Ok(done) = done else { bail!("a client has panicked") };
    done.with_context(|| {
        format!(
            "the load on {} failed: check that commensal-sql listens there, and that user, password, database and \
             group are right",
            options.connect
        )
    })?;
    let outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
    if options.json {
        let mut out = std::io::BufWriter::new(std::io::stdout().lock());
        for outcome in &outcomes {
            writeln!(out, "{}", outcome.json())?;
        }
        let failed = outcomes.iter().filter(|outcome| outcome.rows.is_err()).count();
        writeln!(
            out,
            "{{\"requests\": {}, \"errors\": {failed}, \"seconds\": {seconds:.6}, \"concurrency\": {}}}",
            outcomes.len(),
            options.clients
        )?;
        return Ok(());
    }
    println!("{}", load::summary(&outcomes, seconds));
    Ok(())
}

/// A measured value, and the number of its repeat, from 1.
#[derive(Serialize)]
struct Repeated<'f> {
    repeat: u16,
    #[serde(flatten)]
    figure: &'f replay::Figure,
}

/// Returns the path of the server program to measure.
fn server(given: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let beside = std::env::current_exe().context("cannot find this program")?.with_file_name("commensal-sql");
    Ok(match given {
        Some(file) => file,
        None if beside.exists() => beside,
        None => PathBuf::from("commensal-sql"),
    })
}

fn replayed(options: &Replay) -> anyhow::Result<()> {
    if !options.data.join("hits.parquet").exists() {
        eprintln!("generating {} rows in {}", options.rows, options.data.display());
        let (rows, out) = (options.rows, options.data.clone());
        generated(&RowOrder { rows, out, files: 1, format: RowsFormat::Parquet, seed: 1, force: false })?;
    }
    let plan = Plan {
        program: server(options.server.clone())?,
        data: options.data.clone(),
        remote_rows: options.rows / 10,
        seconds: options.seconds,
        clients: usize::from(options.clients),
        queries: usize::from(options.queries),
        cpu_percent: options.cpu,
        read_limit: options.read_limit << 20,
        say: |what| eprintln!("{what} …"),
    };
    let mut repeats = Vec::new();
    for repeat in 1..=options.repeats {
        let report = replay::run(&plan)?;
        let figures = replay::figures(&report);
        if options.json {
            for figure in &figures {
                println!("{}", serde_json::to_string(&Repeated { repeat, figure })?);
            }
        } else if options.repeats == 1 {
            print!("{}", replay::print(&report));
        } else {
            eprintln!("repeat {repeat} of {} is done", options.repeats);
        }
        repeats.push(figures);
    }
    if !options.json && options.repeats > 1 {
        print!("{}", replay::print_medians(&plan, &repeats));
    }
    Ok(())
}
