//! `sched`: the scheduler that is loaded while the machine runs, and others of its kind. Wiring: what loads is a program of its
//! own, what puts groups under it is the plan.

mod judged;
mod socket;
mod start;
mod status;
mod with;

use super::sched_args::{SchedLoad, SchedVerb};
use super::{Groups, apply};
use crate::context::Context;
use anyhow::{Context as _, bail};
use commensal_agent::client;
use commensal_agent::control::{Done, SOCKET};
use commensal_agent::groups_file::LoadError;
use commensal_core::errno::Errno;
use commensal_core::scheduler::Mode;
use commensal_core::scheduler::protocol::{Request, Status};
use commensal_drivers::journal;
use commensal_host::Host;
use commensal_lab::scheduler;
use commensal_sensors::sched_ext::Kernel;
use socket::Asked;
use std::path::Path;

/// Where groups are unless somebody says so.
const GROUPS: &str = "/etc/commensal/groups.d";

/// Does it.
pub fn run(context: &mut Context, verb: &SchedVerb) -> anyhow::Result<u8> {
    match verb {
        SchedVerb::Load(options) if options.with.is_empty() => load(context, options),
        SchedVerb::Load(options) => with::load(context, &options.with),
        SchedVerb::Status(options) => status::run(context, options),
        SchedVerb::Unload => unload(context),
        SchedVerb::Watch(options) => with::watch(context, &options.command),
    }
}

/// Who puts groups under it.
enum Follows {
    /// Orders of the command line.
    Orders,
    /// The agent that runs.
    Agent,
    /// This command, once.
    Apply,
    /// Nobody yet.
    Nobody,
}

fn load(context: &mut Context, options: &SchedLoad) -> anyhow::Result<u8> {
    start::check(&Kernel::read(&context.host), options.replace)?;
    let program = start::find()?;
    // Mistakes in a groups file come out before anything is loaded.
    let follows = follows(context, options)?;
    context.host.state_dir(&context.state_dir)?;
    let lock = context.lock()?;
    let state = context.state_dir.clone();
    let loaded = start::load(&mut context.host, &state, &program, &start::arguments(options))?;
    drop(lock);
    println!("loaded   process {}, its log is {}", loaded.process.pid, state.join(start::LOG).display());
    if let Some(hold_off_us) = options.hold_off_us {
        socket::hold_off(&context.host, &state, hold_off_us)?;
    }
    let mut code = 0;
    match follows {
        Follows::Orders | Follows::Nobody => {}
        Follows::Agent => {
            let done: Done = client::post(&context.host, &state.join(SOCKET), "/v1/reload")
                .context("the scheduler is loaded, and the agent was not told")?
                .body;
            println!("agent    {}; its next round puts its groups under the scheduler", done.done);
        }
        Follows::Apply => {
            let groups = Groups { config: options.config.clone(), json: false };
            code = apply::apply(context, &groups)
                .context("the scheduler is loaded, and the groups are not under it")?;
        }
    }
    let now = match socket::status(&context.host, &state) {
        Ok(now) => now,
        Err(error) => bail!("the scheduler was loaded and does not answer any more: {error}"),
    };
    tell(&now, &follows, &options.config);
    Ok(if now.mode == Mode::Running { code } else { code.max(1) })
}

/// What is under the scheduler now.
fn tell(now: &Status, follows: &Follows, config: &Path) {
    let groups = now.groups.len();
    if groups > 0 {
        let s = if groups == 1 { "" } else { "s" };
        println!("under it {groups} offline group{s}, {} threads", now.threads);
    } else if matches!(follows, Follows::Agent) {
        println!("under it no group until the agent's next round: `commensal sched status` shows it");
    } else if matches!(follows, Follows::Orders | Follows::Apply) {
        println!(
            "under it no offline group: {}",
            match follows {
                Follows::Orders => "the orders have none".to_owned(),
                _ => format!(
                    "{} has none that its plan puts there (`commensal plan` says why)",
                    config.display()
                ),
            }
        );
    } else {
        println!(
            "under it no group yet: there is no groups file ({}); write one and `commensal apply` it or start an agent, or give \
             orders with `commensal-sched order FILE`",
            config.display()
        );
    }
    for problem in &now.problems {
        eprintln!("commensal: {problem}");
    }
}

fn follows(context: &mut Context, options: &SchedLoad) -> anyhow::Result<Follows> {
    if options.orders.is_some() {
        return Ok(Follows::Orders);
    }
    let running = commensal_agent::agent::running(&mut context.host, &context.state_dir);
    if running.is_ok_and(|running| running.is_some()) {
        return Ok(Follows::Agent);
    }
    match context.specs(&options.config) {
        Ok(_) => Ok(Follows::Apply),
        Err(error) if options.config == Path::new(GROUPS) && absent(&error) => Ok(Follows::Nobody),
        Err(error) => Err(error.context("nothing was loaded")),
    }
}

/// Whether there simply is no groups file.
fn absent(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<LoadError>() {
        Some(LoadError::Empty(_)) => true,
        Some(LoadError::Read { source, .. }) => source.errno == Errno::ENOENT,
        _ => false,
    }
}

/// Takes off what is loaded. Status 1 when something stays as it is.
fn unload(context: &mut Context) -> anyhow::Result<u8> {
    // Where nothing was ever kept, nothing is made for it either.
    let _lock = if context.state_dir.is_dir() { context.lock_to_look()? } else { None };
    let state = context.state_dir.clone();
    if with::unload(&mut context.host, &state)? {
        return Ok(0);
    }
    match socket::ask(&context.host, &state, &Request::Unload) {
        Ok(answer) => {
            let left: Vec<String> = serde_json::from_value(answer["left"].clone()).unwrap_or_default();
            left.iter().for_each(|line| eprintln!("commensal: {line}"));
            scheduler::gone(&context.host)?;
            println!("unloaded, every thread has its own policy back");
            Ok(u8::from(!left.is_empty()))
        }
        Err(Asked::Nobody) => restore(&mut context.host, &state),
        Err(Asked::Trouble(error)) => Err(error.context("the scheduler was not unloaded")),
    }
}

/// Nobody answers: the process was killed, and the kernel has taken the scheduler off with it.
fn restore(host: &mut dyn Host, state: &Path) -> anyhow::Result<u8> {
    let restored = commensal_drivers::restore_own(host, state, journal::SCHED)?;
    restored.done.iter().for_each(|line| println!("{line}"));
    restored.left.iter().chain(&restored.failed).for_each(|line| eprintln!("commensal: {line}"));
    if restored.nothing() {
        println!("nothing is loaded, and nothing is to be put back");
        let kernel = Kernel::read(host);
        if kernel.busy() {
            println!("note: {}; it is not of this state directory ({})", kernel.loaded(), state.display());
        }
    } else {
        println!("the scheduler's process had been killed; what it had changed is put back");
    }
    Ok(match (restored.failed.is_empty(), restored.left.is_empty()) {
        (false, _) => 2,
        (true, false) => 1,
        (true, true) => 0,
    })
}
