//! The command `agent`, the commands to a running agent, and `guard`.

use super::{Agent, AgentOrder, Guard, OnExit};
use crate::context::Context;
use crate::signals::not_ignored;
use anyhow::{Context as _, anyhow, bail};
use commensal_agent::agent::{self, Flags, Options, Share};
use commensal_agent::client::{self, ClientError};
use commensal_agent::control::{Done, SHARED_GROUP, SHARED_SOCKET, SOCKET, group_number};
use commensal_agent::guard;
use commensal_agent::privileges::{OF_GUARD, of_agent};
use commensal_agent::snapshot::Snapshot;
use commensal_agent::status;
use commensal_core::errno::Errno;
use commensal_core::text::count;
use commensal_host::{Host, keep_only};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::flag;
use signal_hook::low_level::pipe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Number of ticks after which the agent says what is in force, even if not everything is.
const SETTLED: u64 = 3;
/// Poll interval while waiting for another guard to exit.
const TURN: Duration = Duration::from_millis(100);

/// Keeps the groups in force until a signal stops the agent.
pub fn agent(context: &mut Context, options: &Agent) -> anyhow::Result<u8> {
    let flags = flags(context)?;
    if !options.no_guard && options.lease < options.interval * 2 {
        bail!(
            "--lease must be at least two ticks (--interval): otherwise one late tick makes the guard kill the agent"
        );
    }
    context.can_record()?;
    let options = Options {
        config: options.config.clone(),
        interval: options.interval,
        lease: (!options.no_guard).then_some(options.lease),
        probe: !options.no_probe,
        on_exit: match options.on_exit {
            OnExit::Safe => agent::OnExit::Safe,
            OnExit::Keep => agent::OnExit::Keep,
            OnExit::Restore => agent::OnExit::Restore,
        },
        replace: options.replace,
        beside_others: context.beside_others,
        program: std::env::current_exe().context("this program's own file cannot be found")?,
        metrics: options.metrics_listen,
        share: share(context, options.share_with.as_deref())?,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let instance = context.instance();
    // Privileges are dropped before the first thread starts.
    keep_only(&of_agent(&context.host, options.probe, options.share.is_some()))
        .context("cannot drop privileges")?;
    let (restore, show) = (context.command("restore"), context.command("status"));
    let (mut told, mut began) = (Vec::new(), false);
    let left = agent::run(&mut context.host, instance, &options, &flags, &mut |snapshot| {
        // Without a service manager this does nothing.
        let state = match snapshot.ticks {
            1 => NotifyState::Ready,
            _ => NotifyState::Watchdog,
        };
        let _ = sd_notify::notify(&[state]);
        // What the first ticks cannot put in force may be in force a tick later.
        if !began && (snapshot.ticks >= SETTLED || status::failures(snapshot, Duration::ZERO).is_empty()) {
            began = true;
            println!("{}", begins(snapshot, &show));
        }
        // Each problem is printed once, when it appears.
        let rejected = status::rejected(&snapshot.config);
        let is_new = |why: &&String| !snapshot.problems.iter().any(|problem| problem.contains(*why));
        let no_probe = snapshot.no_probe.iter().filter(is_new);
        let no_probe =
            no_probe.map(|why| format!("who has the CPU while online groups wait is not known: {why}"));
        let problems: Vec<String> =
            snapshot.problems.iter().cloned().chain(no_probe).chain(rejected).collect();
        for problem in problems.iter().filter(|problem| !told.contains(*problem)) {
            eprintln!("commensal: {problem}");
        }
        told = problems;
    })?;
    left.iter().for_each(|line| eprintln!("commensal: {line}"));
    let stays = match options.on_exit {
        _ if flags.hand_over.load(Ordering::Relaxed) => {
            "another agent continues, and everything stays as it is".to_owned()
        }
        agent::OnExit::Safe => format!(
            "the safe state stays: offline groups keep their class and limits, online groups have no limits; `{restore}` \
             puts everything back"
        ),
        agent::OnExit::Keep => format!("everything stays in force; `{restore}` puts everything back"),
        agent::OnExit::Restore => "everything is put back".to_owned(),
    };
    let except = if left.is_empty() { "" } else { ", except for what was printed above" };
    println!("the agent has ended: {stays}{except}");
    // The exit status is nonzero if some settings could not be left in the requested state.
    Ok(u8::from(!left.is_empty()))
}

/// The line that the agent prints once its groups are in force, or once it is known what is not.
fn begins(snapshot: &Snapshot, show: &str) -> String {
    let groups = count(snapshot.groups.len() as u64, "group");
    let of = format!("{groups} of {}", snapshot.config.path);
    match status::failures(snapshot, Duration::ZERO).len() {
        0 => format!("in force: {of}; `{show}` shows them, Ctrl-C or SIGTERM ends the agent"),
        failures => {
            format!("{of}: {failures} of what they request is not in force; `{show}` shows what and why")
        }
    }
}

/// The group whose members may read the agent's state: the one given with --share-with, otherwise the default group if
/// it exists.
fn share(context: &Context, named: Option<&str>) -> anyhow::Result<Option<Share>> {
    let of_machine = context.host.euid() == 0 && context.is_default_state();
    let Some(name) = named.or(of_machine.then_some(SHARED_GROUP)) else { return Ok(None) };
    let groups = context.host.read_file(Path::new("/etc/group")).unwrap_or_default();
    match group_number(&groups, name) {
        Some(group) => {
            Ok(Some(Share { path: PathBuf::from(SHARED_SOCKET), group, insisted: named.is_some() }))
        }
        None if named.is_some() => {
            bail!(
                "--share-with {name}: /etc/group has no such group; give a group that exists there, or a GID"
            )
        }
        None => Ok(None),
    }
}

/// Returns the sockets on which the agent may listen: the one in the state directory. A user other than root with the
/// default state directory may also use the machine's shared socket.
pub fn sockets(context: &Context) -> Vec<PathBuf> {
    let mut sockets = vec![context.state_dir.join(SOCKET)];
    if context.host.euid() != 0 && context.is_default_state() {
        sockets.push(PathBuf::from(SHARED_SOCKET));
    }
    sockets
}

/// Returns the groups file of the running agent, if there is one.
pub fn groups_file(context: &Context) -> Option<PathBuf> {
    let (_, answer) = client::find::<Snapshot>(&context.host, &sockets(context), "/v1/snapshot").ok()?;
    Some(answer.body.config.path).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// The error of a request to the agent; if no agent runs, with the command that starts one for the options given.
pub fn unanswered(context: &Context, error: ClientError) -> anyhow::Error {
    match error {
        ClientError::NoAgent(socket) if context.has_options() => anyhow!(
            "no agent answers at {}: start one with `{} -c GROUPS`, or leave these options out to ask another one",
            socket.display(),
            context.command("agent")
        ),
        error => error.into(),
    }
}

/// Sends a command to the running agent.
pub fn order(context: &Context, order: &AgentOrder) -> anyhow::Result<u8> {
    let path = match order {
        AgentOrder::Reload => "/v1/reload",
        AgentOrder::Pause => "/v1/pause",
        AgentOrder::Resume => "/v1/resume",
        AgentOrder::Canary(_) => {
            bail!("a canary is started by `commensal agent canary`, not by a plain order")
        }
    };
    let done = client::find_post::<Done>(&context.host, &sockets(context), path);
    let done = done.map_err(|error| unanswered(context, error))?.body;
    println!("{}", done.done);
    Ok(0)
}

fn flags(context: &Context) -> anyhow::Result<Flags> {
    let flags = Flags::new()?;
    for signal in not_ignored(&context.host, &[SIGINT, SIGTERM]) {
        // A second signal terminates the agent immediately; the guard then sets the safe state.
        flag::register_conditional_shutdown(signal, 130, Arc::clone(&flags.stop))?;
        flag::register(signal, Arc::clone(&flags.stop))?;
    }
    flag::register(SIGHUP, Arc::clone(&flags.reload))?;
    flag::register(SIGUSR2, Arc::clone(&flags.hand_over))?;
    // Registered after the flags, because the loop checks the flags when it is woken.
    for signal in not_ignored(&context.host, &[SIGINT, SIGTERM]).into_iter().chain([SIGHUP, SIGUSR2]) {
        pipe::register(signal, flags.waker.for_signals()?)?;
    }
    Ok(flags)
}

/// Guards agents of this state directory: sets the safe state when an agent dies.
pub fn guard(context: &mut Context, options: &Guard) -> anyhow::Result<u8> {
    keep_only(&OF_GUARD).context("cannot drop privileges")?;
    let state_dir = context.state_dir.clone();
    let ready = || {
        // A guard that an agent has started must not notify the service manager in the agent's place.
        if !options.once {
            let _ = sd_notify::notify(&[NotifyState::Ready]);
        }
    };
    let mut told = false;
    let listener = loop {
        match guard::listen(&mut context.host, &state_dir) {
            // While this guard was not running, an agent has started its own guard, which exits with that agent.
            Err(error) if error.errno == Errno::EADDRINUSE && !options.once => {
                if !std::mem::replace(&mut told, true) {
                    eprintln!("commensal: another guard is running; this one waits until it exits");
                    ready();
                }
                std::thread::sleep(TURN);
            }
            listener => break listener?,
        }
    };
    ready();
    let once = options.once.then(|| options.starter.unwrap_or_else(std::os::unix::process::parent_id));
    let mut complete = true;
    guard::guard(&mut context.host, &state_dir, &listener, once, &mut |acted| {
        complete &= acted.state.failed.is_empty();
        let why = acted.end.words();
        let (ms, state) = (acted.took.as_millis(), &acted.state);
        match state.failed.is_empty() {
            true => eprintln!(
                "commensal: {why}: safe state after {ms} ms: {} values are in force, {} of them written now",
                state.held, state.written
            ),
            false => {
                eprintln!(
                    "commensal: {why}: safe state incomplete after {ms} ms: {} values are in force, {} could not be \
                     written or read:",
                    state.held,
                    state.failed.len()
                );
                state.failed.iter().for_each(|failed| eprintln!("  {failed}"));
            }
        }
    })?;
    Ok(u8::from(!complete))
}
