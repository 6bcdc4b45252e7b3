//! `commensal-sql-bench`: tools to try out and measure a server, which no server needs to run: generated data, queries,
//! load, and the replay of document 002.
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

/// Data, queries and load for commensal-sql, and its limits measured.
#[derive(Debug, Parser)]
#[command(name = "commensal-sql-bench", version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

/// What it does.
#[derive(Debug, Subcommand)]
enum Verb {
    /// Make a table `hits` with ClickBench's schema and made-up rows of similar distributions.
    Generate(Generate),
    /// List the 43 query shapes of ClickBench, or print one.
    Queries(Queries),
    /// Ask a server from several clients at the same time, and tell what came of it.
    Bench(Bench),
    /// Replay document 002: memory, CPU, local and remote reads, each without and with its limit, as four tables.
    Replay(Replay),
}

/// Arguments of `generate`.
#[derive(Debug, Args)]
struct Generate {
    /// Rows in all files together.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000_000))]
    rows: u64,
    /// Folder that they are written into; made if it is not there.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Files: hits.parquet when it is one, else hits_0.parquet and so on. Served as one table, they have to lie in a
    /// folder of a folder: DATA/clickbench/hits is the table clickbench.hits.
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    files: u32,
    /// How they are written.
    #[arg(long, value_enum, default_value_t = RowsFormat::Parquet)]
    format: RowsFormat,
    /// The same seed and number of rows give the same rows.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Replace files that are there.
    #[arg(long)]
    force: bool,
}

/// Arguments of `queries`.
#[derive(Debug, Args)]
struct Queries {
    /// Print this one only, from 1 to 43.
    number: Option<usize>,
    /// Print the statements, and not only what they ask.
    #[arg(long)]
    sql: bool,
}

/// Arguments of `bench`.
#[derive(Debug, Args)]
struct Bench {
    /// Where the server listens.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9030")]
    connect: SocketAddr,
    /// User; a password is taken from the variable COMMENSAL_SQL_PASSWORD.
    #[arg(long, default_value = "root")]
    user: String,
    /// Database.
    #[arg(long, value_name = "NAME", default_value = "")]
    database: String,
    /// Workload group.
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// Clients that ask at the same time, each its next statement when it has the answer.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    clients: u16,
    /// How long, in seconds.
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    seconds: f64,
    /// Rows are counted and not given.
    #[arg(long)]
    dry_run: bool,
    /// Print a line of JSON for each statement, which the lab reads as the tool "json-lines".
    #[arg(long)]
    json: bool,
    /// A statement; may be repeated. Instead of the shapes of ClickBench.
    #[arg(long = "sql", value_name = "STATEMENT")]
    sql: Vec<String>,
    /// Numbers of shapes of ClickBench; all 43 if neither they nor statements are given.
    #[arg(long = "query", value_name = "NUMBER")]
    query: Vec<usize>,
}

/// Arguments of `replay`.
#[derive(Debug, Args)]
struct Replay {
    /// Folder with hits.parquet, as `generate` makes it; made there when it is missing.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Rows of the table that is made when it is missing; a tenth of them go into the S3 store.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..))]
    rows: u64,
    /// Measured seconds of each row about CPU and reads.
    #[arg(long, value_name = "S", default_value_t = 15, value_parser = clap::value_parser!(u32).range(3..=3_600))]
    seconds: u32,
    /// Clients of the rows about memory and CPU.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(2..=100))]
    clients: u16,
    /// Number of queries per row of the memory table.
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u16).range(2..))]
    queries: u16,
    /// CPU hard limit, in percent of the machine.
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=99))]
    cpu: u32,
    /// Read limits in MiB per second; lowered to a quarter where the machine reads less than twice as much.
    #[arg(long, value_name = "MIB", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    read_limit: u64,
    /// The program commensal-sql [default: the one beside this program, else the one of PATH].
    #[arg(long, value_name = "FILE")]
    server: Option<PathBuf>,
    /// How often; from 2 on each figure is printed with its median and its range, and statements are not.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    repeats: u16,
    /// Print a line of JSON for each figure, as soon as its repeat has ended.
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

/// Makes files and gives their names.
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
        // A quote would end the string.
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
    done.with_context(|| format!("{} gave no answer: is a server listening there?", options.connect))?;
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

/// A result, and the number of its repeat, from 1.
#[derive(Serialize)]
struct Repeated<'f> {
    repeat: u16,
    #[serde(flatten)]
    figure: &'f replay::Figure,
}

/// The server program to measure.
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
        eprintln!("making {} rows in {}", options.rows, options.data.display());
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
