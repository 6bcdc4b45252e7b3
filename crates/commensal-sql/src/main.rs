//! `commensal-sql`: a SQL server with workload groups that uses the MySQL protocol.
#![forbid(unsafe_code)]

use anyhow::Context;
use clap::{Parser, Subcommand};
use commensal_sql::engine::worker::{Workers, process};
use commensal_sql::engine::{Allowed, Engine, Options};
use commensal_sql::protocol::{Limits, Server, Tls};
use std::ffi::OsString;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};

/// A SQL server with workload groups: queries over Parquet, CSV and JSON files, for any MySQL client.
#[derive(Debug, Parser)]
#[command(
    name = "commensal-sql",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Folder with the data: DIR/hits.parquet is the table hits, DIR/shop/orders.csv the table shop.orders.
    #[arg(long, value_name = "DIR", required = true)]
    data: Option<PathBuf>,
    /// Let INSERT INTO and CREATE TABLE AS add Parquet files to the data folder.
    #[arg(long)]
    writable: bool,
    /// Address to listen on. Users without a password can connect only from this machine.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9030")]
    listen: SocketAddr,
    /// Folder where groups, policies and users are stored; without it they are lost when the server exits.
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// File where groups are stored; if not given, sql-groups.toml in the folder of --state. It has the format of
    /// groups.d, so it may be a file there.
    #[arg(long, value_name = "FILE", requires = "state")]
    groups: Option<PathBuf>,
    /// Folder for spill files of queries; if not given, the system's folder for temporary files.
    #[arg(long, value_name = "DIR")]
    spill: Option<PathBuf>,
    /// Endpoint that S3(...) may read from, such as https://s3.example.org; may be repeated.
    #[arg(long = "s3-endpoint", value_name = "URL")]
    s3_endpoint: Vec<String>,
    /// Name node or name service that HDFS(...) may read from, such as hdfs://namenode:8020; may be repeated.
    #[arg(long = "hdfs-endpoint", value_name = "URL")]
    hdfs_endpoint: Vec<String>,
    /// Memory in MiB that percentages of groups refer to, and that all queries together may use before soft limits take
    /// effect; if not given, 90 % of the machine's memory.
    #[arg(long, value_name = "MIB")]
    memory: Option<u64>,
    /// Where queries of offline groups run. With auto, each group has a worker process in a cgroup of its own, started
    /// with `commensal run`; if that fails, its queries run inside the server, and the log says why.
    #[arg(long, value_enum, default_value_t = Mode::Auto)]
    workers: Mode,
    /// The program commensal, which starts workers [default: the one in the folder of this program, else the one in PATH].
    #[arg(long, value_name = "FILE")]
    commensal: Option<PathBuf>,
    /// Option for commensal when the server starts a worker, such as --commensal-option=--cgroup-prefix=sql; may be
    /// repeated.
    #[arg(long = "commensal-option", value_name = "OPTION", allow_hyphen_values = true)]
    commensal_options: Vec<OsString>,
    /// Maximum number of connections at the same time.
    #[arg(long, value_name = "N", default_value_t = 500)]
    max_connections: usize,
    /// Certificate for TLS: a PEM file, the server's certificate first. SIGHUP reloads the certificate and the key.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Key of the certificate: a PEM file without a passphrase.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Refuse unencrypted connections from other machines.
    #[arg(long, requires = "tls_cert")]
    require_tls: bool,
}

/// Subcommands of the program. Without one it serves.
#[derive(Debug, Subcommand)]
enum Verb {
    /// Run the queries of one group (started by the server).
    #[command(hide = true)]
    Worker(WorkerArgs),
}

/// Arguments of `worker`.
#[derive(Debug, clap::Args)]
struct WorkerArgs {
    /// Number of the group whose queries run here.
    #[arg(long)]
    id: u64,
    /// Name of the group.
    #[arg(long)]
    name: String,
    /// As for the server: the folder with the data.
    #[arg(long)]
    data: PathBuf,
    /// As for the server: queries may add files to the data folder.
    #[arg(long)]
    writable: bool,
    /// As for the server: the folder for spill files.
    #[arg(long)]
    spill: PathBuf,
    /// The endpoints of remote stores that queries may read.
    #[arg(long = "endpoint")]
    endpoints: Vec<String>,
    /// Memory that percentages of groups refer to, in bytes.
    #[arg(long)]
    memory_bytes: u64,
    /// Number of CPUs that percentages of groups refer to.
    #[arg(long)]
    cpus: usize,
}

/// Where queries of offline groups run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    /// In worker processes, if they can be started.
    Auto,
    /// On threads of the server.
    Off,
}

/// Subcommands that moved to the program `commensal-sql-bench`.
const MOVED: [&str; 4] = ["generate", "queries", "bench", "replay"];

fn main() -> anyhow::Result<()> {
    if let Some(verb) =
        MOVED.into_iter().find(|verb| std::env::args_os().nth(1).is_some_and(|arg| arg == *verb))
    {
        eprintln!("commensal-sql is only the server: use `commensal-sql-bench {verb}` with the same options");
        std::process::exit(2);
    }
    let args = Args::parse();
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(colours).with_target(false).init();
    if let Some(Verb::Worker(worker)) = args.verb {
        return Ok(process::run(worker.options(), worker.id, &worker.name)?);
    }
    // Done only in the server: memory that a worker keeps would count against its group's limit.
    commensal_host::keep_memory();
    // Sockets, timers and limits run on threads of their own, so that no group delays them.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("control")
        .thread_stack_size(8 << 20)
        .enable_all()
        .build()
        .context("cannot start threads")?;
    let outcome = runtime.block_on(serve(args));
    // Workers exit when their sockets close.
    runtime.shutdown_background();
    outcome
}

impl WorkerArgs {
    fn options(&self) -> Options {
        Options {
            data: self.data.clone(),
            writable: self.writable,
            state: None,
            groups: None,
            spill: self.spill.clone(),
            endpoints: Allowed(self.endpoints.clone()),
            memory: Some(self.memory_bytes),
            cpus: self.cpus,
            workers: None,
        }
    }
}

/// Returns how workers are started; `None` with `--workers off`.
fn workers(args: &Args) -> anyhow::Result<Option<Workers>> {
    if args.workers == Mode::Off {
        return Ok(None);
    }
    let program = std::env::current_exe().context("cannot find this program")?;
    let beside = program.with_file_name("commensal");
    let commensal = match &args.commensal {
        Some(file) => file.clone(),
        None if beside.exists() => beside,
        None => PathBuf::from("commensal"),
    };
    Ok(Some(Workers { program, commensal, options: args.commensal_options.clone() }))
}

async fn serve(args: Args) -> anyhow::Result<()> {
    let workers = workers(&args)?;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let options = Options {
        data: args.data.context("name the data folder with --data")?,
        writable: args.writable,
        state: args.state,
        groups: args.groups,
        spill: args.spill.unwrap_or_else(std::env::temp_dir),
        endpoints: Allowed([args.s3_endpoint, args.hdfs_endpoint].concat()),
        memory: args.memory.map(|mib| mib.saturating_mul(1 << 20)),
        cpus,
        workers,
    };
    let tls = args.tls_cert.as_deref().zip(args.tls_key.as_deref());
    let tls = tls.map(|(certificate, key)| Tls::open(certificate, key)).transpose()?.map(Arc::new);
    let engine = Engine::open(options)?;
    let limits = Limits { connections: args.max_connections, ..Limits::default() };
    let mut server = Server::bind(args.listen, Arc::clone(&engine), limits)
        .await
        .with_context(|| format!("cannot listen at {}: choose another address with --listen", args.listen))?;
    if let Some(tls) = tls {
        let mut hangup = signal(SignalKind::hangup())?;
        server = server.with_tls(Arc::clone(&tls), args.require_tls);
        tokio::spawn(async move {
            while hangup.recv().await.is_some() {
                match tls.reload() {
                    Ok(()) => tracing::info!("the certificate was reloaded"),
                    Err(error) => {
                        tracing::error!(
                            "the certificate was not reloaded, the previous one stays in use: {:#}",
                            anyhow::Error::from(error)
                        )
                    }
                }
            }
        });
    }
    // Tests and scripts that let the system choose a port parse this line.
    println!("listening on {}", server.address()?);
    let mut term = signal(SignalKind::terminate())?;
    let outcome = tokio::select! {
        outcome = server.run() => outcome.context("the socket failed"),
        outcome = tokio::signal::ctrl_c() => outcome.context("cannot wait for signals"),
        _ = term.recv() => Ok(()),
    };
    engine.close();
    outcome
}
