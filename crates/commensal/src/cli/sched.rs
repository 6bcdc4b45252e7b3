//! `sched`: the scheduler that is loaded while the machine runs, and others of its kind. Wiring: what loads is a program of its
//! own, what puts groups under it is the plan.

mod judged;
mod load;
pub(super) mod record;
mod socket;
mod start;
mod status;
mod with;

use super::sched_args::SchedVerb;
use crate::context::Context;
use commensal_core::scheduler::protocol::Request;
use commensal_host::Host;
use commensal_lab::scheduler;
use commensal_reconcile::journal;
use commensal_sensors::sched_ext::Kernel;
use socket::Asked;
use std::path::Path;

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

/// What is loaded from this state directory, of commensal's own and of others', in words. `own` is whose record was found.
pub(super) fn loaded<H: Host>(context: &mut Context<H>, own: Option<u32>) -> Vec<String> {
    let state = context.state_dir.clone();
    // One that has no threads yet has nothing on record, and answers.
    let own = own.or_else(|| socket::status(&context.host, &state).ok().map(|now| now.pid));
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
