//! The command `sched`: commensal's scheduler and third-party schedulers. This module only connects the parts: a
//! separate program loads the scheduler, and the plan assigns groups to the scheduler.

mod ask;
mod load;
mod probed;
pub(super) mod record;
mod start;
mod status;
mod with;

use super::sched_args::SchedVerb;
use crate::context::Context;
use anyhow::Context as _;
pub(super) use ask::loaded;
use ask::tell;
use commensal_core::scheduler::protocol::Request;
use commensal_host::Host;
use commensal_lab::scheduler::gone;
use commensal_reconcile::journal;
use commensal_sensors::sched_ext::Kernel;
use std::path::Path;

/// Runs the subcommand.
pub fn run(context: &mut Context, verb: &SchedVerb) -> anyhow::Result<u8> {
    match verb {
        SchedVerb::Load(options) if options.with.is_empty() => load::run(context, options),
        SchedVerb::Load(options) => with::run(context, &options.with),
        SchedVerb::Status(options) => status::run(context, options),
        SchedVerb::Unload => unload(context),
    }
}

/// Unloads the scheduler. Status 1 if some changes cannot be undone.
fn unload(context: &mut Context) -> anyhow::Result<u8> {
    // If there is no state directory, none is created for the lock.
    let _lock = if context.state_dir.is_dir() { context.lock_to_look()? } else { None };
    let state = context.state_dir.clone();
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

/// Restores the threads' policies if no scheduler process responds: the process was killed, and the kernel has unloaded
/// its scheduler.
fn restore(host: &mut dyn Host, state: &Path) -> anyhow::Result<u8> {
    let restored = commensal_reconcile::restore_own(host, state, journal::SCHED)?;
    restored.done.iter().for_each(|line| println!("{line}"));
    restored.left.iter().chain(&restored.failed).for_each(|line| eprintln!("commensal: {line}"));
    let kernel = Kernel::read(host);
    match (restored.nothing(), kernel.foreign()) {
        (true, None) => {
            println!("no scheduler was loaded from this state directory, and there is nothing to restore");
            if kernel.busy() {
                println!(
                    "note: {}; it was not loaded from this state directory ({})",
                    kernel.loaded(),
                    state.display()
                );
            }
        }
        (true, Some(_)) => {}
        (false, _) => println!("the scheduler's process had been killed; its changes were reverted"),
    }
    if let Some(name) = kernel.foreign() {
        eprintln!(
            "commensal: {name} stays loaded, because another program loaded it: end that program (Ctrl-C or SIGTERM to \
             `commensal sched load --with`)"
        );
    }
    Ok(match (restored.failed.is_empty(), restored.left.is_empty() && kernel.foreign().is_none()) {
        (false, _) => 2,
        (true, false) => 1,
        (true, true) => 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_host::fake::FakeHost;

    #[test]
    fn what_another_program_has_loaded_stays() {
        let check = |state: &str, ops: &str, expect: u8| {
            let mut host = FakeHost::v2(2, 1 << 30);
            host.set_file("/sys/kernel/sched_ext/state", state);
            host.set_file("/sys/kernel/sched_ext/root/ops", ops);
            let before = host.snapshot();
            assert_eq!(restore(&mut host, Path::new("/var/lib/commensal")).unwrap(), expect, "{ops}");
            assert_eq!(host.snapshot(), before);
        };
        check("enabled", "simple", 1);
        check("disabled", "", 0);
    }
}
