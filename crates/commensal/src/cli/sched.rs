//! `sched`: the scheduler that is loaded while the machine runs, and others of its kind. Wiring: what loads is a program of its
//! own, what puts groups under it is the plan.

mod judged;
mod load;
pub(super) mod record;
mod start;
mod status;
mod with;

use super::sched_args::SchedVerb;
use crate::context::Context;
use anyhow::Context as _;
use commensal_core::scheduler::SOCKET;
use commensal_core::scheduler::protocol::{Done, Request, Status};
use commensal_host::Host;
use commensal_lab::scheduler::gone;
use commensal_reconcile::{journal, scheduler};
use commensal_sensors::sched_ext::Kernel;
use commensal_sensors::scheduler::Unanswered;
use std::path::Path;
use std::time::Duration;

/// An answer may take as long as orders for ten thousand threads.
const PATIENCE: Duration = Duration::from_secs(120);

/// Does it.
pub fn run(context: &mut Context, verb: &SchedVerb) -> anyhow::Result<u8> {
    match verb {
        SchedVerb::Load(options) if options.with.is_empty() => load::run(context, options),
        SchedVerb::Load(options) => with::load(context, &options.with),
        SchedVerb::Status(options) => status::run(context, options),
        SchedVerb::Unload => unload(context),
        SchedVerb::Watch(options) => with::watch(context, &options.command),
    }
}

/// What the scheduler of this state directory does.
fn status_of(host: &dyn Host, state: &Path) -> Result<Status, Unanswered> {
    commensal_sensors::scheduler::status(host, &state.join(SOCKET), PATIENCE)
}

/// Makes a request of it that changes something.
fn tell(host: &dyn Host, state: &Path, request: &Request) -> Result<Done, Unanswered> {
    scheduler::tell(host, &state.join(SOCKET), request, PATIENCE)
}

/// What is loaded from this state directory, of commensal's own and of others', in words. `own` is whose record was found.
pub(super) fn loaded<H: Host>(context: &mut Context<H>, own: Option<u32>) -> Vec<String> {
    let state = context.state_dir.clone();
    // One that has no threads yet has nothing on record, and answers.
    let own = own.or_else(|| status_of(&context.host, &state).ok().map(|now| now.pid));
    let own = own.map(|pid| format!("the scheduler (process {pid})"));
    let other = with::look(&mut context.host, &state).ok().flatten().filter(with::Other::lives);
    own.into_iter().chain(other.map(|other| format!("the scheduler of `{}`", other.command()))).collect()
}

/// Takes off what is loaded. Status 1 when something stays as it is.
fn unload(context: &mut Context) -> anyhow::Result<u8> {
    // Where nothing was ever kept, nothing is made for it either.
    let _lock = if context.state_dir.is_dir() { context.lock_to_look()? } else { None };
    let state = context.state_dir.clone();
    if with::unload(&mut context.host, &state)? {
        return Ok(0);
    }
    match tell(&context.host, &state, &Request::Unload) {
        Err(error) if error.is_nobody() => restore(&mut context.host, &state),
        done => {
            let done = done.context("the scheduler was not unloaded")?;
            done.left.iter().for_each(|line| eprintln!("commensal: {line}"));
            gone(&context.host)?;
            println!("unloaded, every thread has its own policy back");
            Ok(u8::from(!done.left.is_empty()))
        }
    }
}

/// Nobody answers: the process was killed, and the kernel has taken the scheduler off with it.
fn restore(host: &mut dyn Host, state: &Path) -> anyhow::Result<u8> {
    let restored = commensal_reconcile::restore_own(host, state, journal::SCHED)?;
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
