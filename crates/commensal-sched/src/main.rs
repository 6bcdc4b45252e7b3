//! `commensal-sched`: loads the scheduler and serves its socket until it is unloaded. Also restores threads that a
//! killed process has left under the scheduler. `commensal sched` is the client. This file only connects the parts.
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

/// Schedules offline work with sched_ext: threads of offline groups run only when no other thread wants the CPU, and
/// leave the cores on which expelling groups run. The scheduler is loaded and unloaded while the machine runs.
#[derive(Debug, Parser)]
#[command(name = "commensal-sched", version)]
struct Cli {
    /// Directory of the socket and the journal.
    #[arg(long, global = true, value_name = "DIR", default_value = "/var/lib/commensal")]
    state_dir: PathBuf,

    /// Continue although users other than root could have written the state directory or the journal in it.
    #[arg(long, global = true)]
    insecure_permissions: bool,

    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Load the scheduler and serve its socket until `unload` or a signal.
    Load {
        /// File with the orders to start with: a JSON object as sent over the socket.
        #[arg(long, value_name = "FILE")]
        orders: Option<PathBuf>,
        /// Replace a running commensal-sched, and keep its orders.
        #[arg(long)]
        replace: bool,
        /// Freeze offline groups when one of their threads has waited this long.
        #[arg(long, value_name = "MS", default_value_t = 5_000)]
        guard_ms: u64,
        /// Let the kernel eject the scheduler when a thread has waited this long (at most 30000).
        #[arg(long, value_name = "MS", default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(100..=30_000))]
        watchdog_ms: u64,
        /// Interval at which the groups are read.
        #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(10..=10_000))]
        round_ms: u64,
        /// For tests: do not kick offline threads from a core, so that only the tick evicts them.
        #[arg(long, hide = true)]
        tick_alone: bool,
        /// For tests: switch the guard off.
        #[arg(long, hide = true)]
        no_guard: bool,
    },
    /// Restore the policies of threads that a killed process has left behind. A running scheduler is not touched.
    Unload {
        /// Restore what a killed process has left behind; use `commensal sched unload` to unload a running scheduler.
        #[arg(long)]
        left: bool,
    },
    /// Replaced by `commensal sched status`.
    #[command(hide = true)]
    Status,
    /// Replaced by `commensal sched load --replace --orders`.
    #[command(hide = true)]
    Order {
        /// Formerly the file with the orders; ignored.
        file: Option<PathBuf>,
    },
    /// Check whether the scheduler can be loaded here, and what the verifier reports about its programs.
    Check {
        /// Load the programs without attaching them, and print the verifier's statistics.
        #[arg(long)]
        verify: bool,
        /// Compare with these statistics: lines `PROGRAM INSTRUCTIONS STATES`.
        #[arg(long, value_name = "FILE", requires = "verify")]
        baseline: Option<PathBuf>,
    },
}

/// Timeout of a response. It is long enough for orders that cover ten thousand threads.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time for the last response to be sent before the process exits.
const LAST_WORDS: Duration = Duration::from_millis(50);
/// Timeout for the kernel to release the previous scheduler.
const HAND_OVER: Duration = Duration::from_secs(10);

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
        Verb::Unload { left: true } if is_replaced(&host, &socket) => {
            println!("a scheduler is loaded, so the policies of its threads were not changed");
            Ok(true)
        }
        Verb::Unload { left: true } => put_back(&mut host, &cli.state_dir),
        Verb::Unload { left: false } => bail!("use `commensal sched unload` to unload the scheduler"),
        Verb::Status => bail!("use `commensal sched status` to see what the scheduler does"),
        Verb::Order { .. } => bail!(
            "use `commensal apply` to configure groups, or `commensal sched load --replace --orders FILE` for orders \
             from a file"
        ),
        Verb::Check { verify, baseline } => check(&host, *verify, baseline.as_deref()),
    }
}

fn read_orders(host: &dyn Host, file: &Path) -> anyhow::Result<Orders> {
    let text = host.read_file(file)?;
    match Request::parse(&text) {
        Ok(Request::Orders(orders)) => Ok(orders),
        Ok(_) => bail!("{} contains no orders", file.display()),
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
        signal_hook::flag::register(signal, Arc::clone(&ends)).context("cannot watch for signals")?;
    }
    let published = Arc::new(Mutex::new(String::new()));
    let mut other = LinuxHost::new();
    // Asks the running daemon for its orders, but does not replace it before the new scheduler is loaded.
    if *replace && wanted.is_none() {
        // Only the orders are read from the other daemon's status: its version may use another format for other fields.
        let before = raw_status(&other, socket, PATIENCE)?;
        wanted = Some(serde_json::from_value(before["orders"].clone()).context(
            "the orders of the running commensal-sched cannot be read, because it has another version",
        )?);
    }
    let mut daemon = Daemon::start(host, options, Arc::clone(&published))?;
    if *replace {
        let began = Instant::now();
        scheduler::tell(&other, socket, &Request::HandOver, PATIENCE)?;
        while let Err(error) = daemon.attach() {
            if began.elapsed() > HAND_OVER {
                return Err(error.into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        daemon.replaced(began.elapsed());
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

/// Whether paths of groups refer to cgroup v2. They refer to v1 if the v1 hierarchy has the cpu controller.
fn by_v2(host: &mut dyn Host) -> anyhow::Result<bool> {
    let hierarchies = mounts::hierarchies(host).context("cannot read the cgroups")?;
    Ok(Hierarchy::of_threads(&hierarchies).is_none_or(|one| one.version == Version::V2))
}

/// Listens on the socket. With `replace`, retries for some time, because the previous process keeps the socket for a
/// moment.
fn listen(
    host: &mut LinuxHost,
    socket: &Path,
    replace: bool,
) -> anyhow::Result<std::os::unix::net::UnixListener> {
    let began = Instant::now();
    loop {
        match host.listen(socket) {
            Ok(listener) => return Ok(listener),
            Err(_) if replace && began.elapsed() < HAND_OVER => std::thread::sleep(Duration::from_millis(5)),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether a commensal-sched responds. A process that replaces another process attaches its scheduler first and listens
/// afterwards. So while commensal's scheduler is attached but no process responds, this function retries for up to
/// [`HAND_OVER`]. The scheduler of a killed process also stays attached for a moment, but its process never responds.
fn is_replaced(host: &dyn Host, socket: &Path) -> bool {
    let began = Instant::now();
    loop {
        if raw_status(host, socket, PATIENCE).is_ok() {
            return true;
        }
        if !Kernel::read(host).ours() || began.elapsed() > HAND_OVER {
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
        println!("there is nothing to restore");
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
    println!("kernel {} can load the scheduler", kernel.release);
    if !verify {
        return Ok(true);
    }
    let topology = machine::topology(host).context("cannot read the CPUs")?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_testkit::docs::{Document, arguments, documents};

    #[test]
    fn the_program_takes_every_command_line_of_the_documents() {
        let mut lines = 0;
        for line in documents().iter().flat_map(Document::command_lines) {
            for words in line.commands.iter().filter_map(|command| arguments("commensal-sched", command)) {
                // Text also names the program alone.
                if words.is_empty() {
                    continue;
                }
                if let Err(error) = Cli::try_parse_from([&["x".to_owned()], words].concat()) {
                    panic!("{line}\n{error}");
                }
                lines += 1;
            }
        }
        assert!(lines >= 2, "{lines}");
    }
}
