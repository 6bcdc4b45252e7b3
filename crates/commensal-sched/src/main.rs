//! `commensal-sched`: loads the scheduler and serves it until it ends, and restores threads that a killed process has
//! left. `commensal sched` is its client. Wiring only.
#![forbid(unsafe_code)]

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
use commensal_core::actual::Hierarchy;
use commensal_core::knob::Version;
use commensal_core::scheduler::protocol::{Request, Standing};
use commensal_core::scheduler::{Orders, SOCKET};
use commensal_core::text::{printable, visible};
use commensal_host::{Host, LinuxHost};
use commensal_reconcile::{journal, scheduler};
use commensal_sched::control;
use commensal_sched::daemon::{Daemon, Options, Over};
use commensal_sched::guard::Bounds;
use commensal_sched::loader::{self, Scheduler, Settings};
use commensal_sched::places::places;
use commensal_sched::{LoadError, preflight, service};
use commensal_sensors::sched_ext::Kernel;
use commensal_sensors::scheduler::raw_status;
use commensal_sensors::{machine, mounts};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Offline work under sched_ext: threads of offline groups run when nobody else wants the CPU, and leave the other
/// threads of a core to groups that expel. Loaded and unloaded while everything runs.
#[derive(Debug, Parser)]
#[command(name = "commensal-sched", version)]
struct Cli {
    /// Where its socket and its journal are.
    #[arg(long, global = true, value_name = "DIR", default_value = "/var/lib/commensal")]
    state_dir: PathBuf,

    /// Go on although others than root could have written the state directory or the journal in it.
    #[arg(long, global = true)]
    insecure_permissions: bool,

    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Load the scheduler and stay with it until `unload` or a signal.
    Load {
        /// Orders to begin with: a file with the object that goes over the socket.
        #[arg(long, value_name = "FILE")]
        orders: Option<PathBuf>,
        /// Take over from another commensal-sched, with its orders.
        #[arg(long)]
        replace: bool,
        /// Freeze offline groups when one of their threads has waited for so long.
        #[arg(long, value_name = "MS", default_value_t = 5_000)]
        guard_ms: u64,
        /// Have the kernel take the scheduler off when a thread has waited for so long (at most 30000).
        #[arg(long, value_name = "MS", default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(100..=30_000))]
        watchdog_ms: u64,
        /// Between two looks at the groups.
        #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(10..=10_000))]
        round_ms: u64,
        /// Ask no thread to leave, so that the tick has to do it: for tests.
        #[arg(long, hide = true)]
        tick_alone: bool,
        /// Switch the guard off: for tests.
        #[arg(long, hide = true)]
        no_guard: bool,
    },
    /// Give threads that a killed process has left their own policies back. A scheduler that runs stays, whoever started it.
    Unload {
        /// What is left; `commensal sched unload` takes one off that runs.
        #[arg(long)]
        left: bool,
    },
    /// `commensal sched status` has it.
    #[command(hide = true)]
    Status,
    /// `commensal sched load --replace --orders` has it.
    #[command(hide = true)]
    Order {
        /// What was a file.
        file: Option<PathBuf>,
    },
    /// Whether it can be loaded here, and what the verifier has to look at.
    Check {
        /// Load the programs, attach nothing.
        #[arg(long)]
        verify: bool,
        /// Compare with these figures: lines `PROGRAM INSTRUCTIONS STATES`.
        #[arg(long, value_name = "FILE", requires = "verify")]
        baseline: Option<PathBuf>,
    },
}

/// Timeout of an answer: long enough for orders that cover ten thousand threads.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time for the last answer to be sent before the process exits.
const LAST_WORDS: Duration = Duration::from_millis(50);
/// Timeout for the kernel to release the previous scheduler.
const TAKE_OVER: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(holds) => ExitCode::from(u8::from(!holds)),
        Err(error) => {
            eprintln!("commensal-sched: {}", printable(&format!("{error:#}")));
            ExitCode::from(2)
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<bool> {
    let mut host = LinuxHost::new();
    if !cli.insecure_permissions {
        host.guard_state(&cli.state_dir);
    }
    let socket = cli.state_dir.join(SOCKET);
    match &cli.verb {
        Verb::Load { .. } => load(cli, &mut host, &socket),
        Verb::Unload { left: true } if taken_over(&host, &socket) => {
            println!("a scheduler is loaded, and nothing of it is taken away");
            Ok(true)
        }
        Verb::Unload { left: true } => put_back(&mut host, &cli.state_dir),
        Verb::Unload { left: false } => bail!("it is `commensal sched unload` that takes the scheduler off"),
        Verb::Status => bail!("it is `commensal sched status` that says what the scheduler does"),
        Verb::Order { .. } => bail!(
            "it is `commensal apply` that orders groups, and `commensal sched load --replace --orders FILE` that gives orders of \
             a file"
        ),
        Verb::Check { verify, baseline } => check(&host, *verify, baseline.as_deref()),
    }
}

fn read_orders(host: &dyn Host, file: &Path) -> anyhow::Result<Orders> {
    let text = host.read_file(file)?;
    match Request::parse(&text) {
        Ok(Request::Orders(orders)) => Ok(orders),
        Ok(_) => bail!("{}: no orders in it", file.display()),
        Err(error) => bail!("{}: {error}", file.display()),
    }
}

fn load(cli: &Cli, host: &mut LinuxHost, socket: &Path) -> anyhow::Result<bool> {
    let Verb::Load { orders, replace, guard_ms, watchdog_ms, round_ms, tick_alone, no_guard } = &cli.verb
    else {
        return Ok(false);
    };
    let first = orders.as_ref().map(|file| read_orders(host, file)).transpose()?;
    let mut wanted = first.map(|orders| Standing::default().with(orders));
    host.state_dir(&cli.state_dir)?;
    let patience = Duration::from_millis(*guard_ms);
    let options = Options {
        state: cli.state_dir.clone(),
        settings: Settings {
            watchdog: Duration::from_millis(*watchdog_ms),
            tick_alone: *tick_alone,
            unified: by_v2(host)?,
        },
        bounds: Bounds { patience, ..Bounds::default() },
        round: Duration::from_millis(*round_ms),
        replace: *replace,
        no_guard: *no_guard,
    };
    let ends = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ends)).context("watch for signals")?;
    }
    let published = Arc::new(Mutex::new(String::new()));
    let mut other = LinuxHost::new();
    // Before anything is read twice: ask the running daemon for its orders, but do not end it yet.
    if *replace && wanted.is_none() {
        // Only the orders are read from its status: other fields may be of another version.
        let before = raw_status(&other, socket, PATIENCE)?;
        wanted = Some(serde_json::from_value(before["orders"].clone()).context("orders of another version")?);
    }
    let mut daemon = Daemon::start(host, options, Arc::clone(&published))?;
    if *replace {
        let began = Instant::now();
        scheduler::tell(&other, socket, &Request::HandOver, PATIENCE)?;
        while let Err(error) = daemon.attach() {
            if began.elapsed() > TAKE_OVER {
                return Err(error.into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        daemon.took_over(began.elapsed());
    } else {
        daemon.attach()?;
    }
    let listener = listen(&mut other, socket, *replace)?;
    if let Some(orders) = wanted {
        daemon.order(orders).map_err(anyhow::Error::msg)?;
    }
    daemon.publish();
    let calls = control::serve(listener, &published);
    eprintln!("commensal-sched: loaded");
    service::ready();
    match daemon.run(&calls, &|| ends.load(Ordering::Relaxed)) {
        Over::Unloaded => eprintln!("commensal-sched: unloaded"),
        Over::HandedOver => {
            eprintln!("commensal-sched: handed over");
            service::stopping();
            std::thread::sleep(LAST_WORDS);
            return Ok(true);
        }
    }
    other.state_remove(socket)?;
    std::thread::sleep(LAST_WORDS);
    Ok(true)
}

/// Whether groups are identified by cgroup v2; where v1 has the cpu controller, by v1.
fn by_v2(host: &mut dyn Host) -> anyhow::Result<bool> {
    let hierarchies = mounts::hierarchies(host).context("look at the cgroups")?;
    Ok(Hierarchy::of_threads(&hierarchies).is_none_or(|one| one.version == Version::V2))
}

/// Listens on the socket, which a process that hands over keeps for a moment longer.
fn listen(
    host: &mut LinuxHost,
    socket: &Path,
    replace: bool,
) -> anyhow::Result<std::os::unix::net::UnixListener> {
    let began = Instant::now();
    loop {
        match host.listen(socket) {
            Ok(listener) => return Ok(listener),
            Err(_) if replace && began.elapsed() < TAKE_OVER => std::thread::sleep(Duration::from_millis(5)),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether a commensal-sched answers. One that is just taking over attaches first and listens afterwards; a killed one
/// stays attached for a moment but never answers.
fn taken_over(host: &dyn Host, socket: &Path) -> bool {
    let began = Instant::now();
    loop {
        if raw_status(host, socket, PATIENCE).is_ok() {
            return true;
        }
        if !Kernel::read(host).ours() || began.elapsed() > TAKE_OVER {
            return false;
        }
        std::thread::sleep(LAST_WORDS);
    }
}

fn put_back(host: &mut dyn Host, state: &Path) -> anyhow::Result<bool> {
    let restored = commensal_reconcile::restore_own(host, state, journal::SCHED)?;
    restored.done.iter().for_each(|line| println!("{line}"));
    let wrong: Vec<&String> = restored.left.iter().chain(&restored.failed).collect();
    wrong.iter().for_each(|line| eprintln!("commensal-sched: {line}"));
    if restored.nothing() {
        println!("nothing is to be put back");
    }
    Ok(wrong.is_empty())
}

fn check(host: &dyn Host, verify: bool, baseline: Option<&Path>) -> anyhow::Result<bool> {
    let kernel = Kernel::read(host);
    let obstacles = preflight::obstacles(&kernel, &loader::functions(), true);
    if !obstacles.is_empty() {
        obstacles.iter().for_each(|obstacle| println!("obstacle    {}", visible(obstacle)));
        return Ok(false);
    }
    println!("kernel {} can have the scheduler", kernel.release);
    if !verify {
        return Ok(true);
    }
    let topology = machine::topology(host).context("look at the CPUs")?;
    drop(places(&topology));
    let found = Scheduler::verify().map_err(|error: LoadError| anyhow::anyhow!("{error}"))?;
    for one in &found {
        println!("{} {} {}", one.name, one.instructions, one.states);
    }
    let Some(file) = baseline else { return Ok(true) };
    let worse = commensal_sched::verifier::compare(&host.read_file(file)?, &found);
    worse.iter().for_each(|line| println!("worse       {line}"));
    Ok(worse.is_empty())
}
