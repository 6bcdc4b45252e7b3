//! The command `doctor`: reports what this machine can enforce.

use super::args::Doctor;
use crate::context::Context;
use crate::ledger::Ledger;
use anyhow::Context as _;
use commensal_core::errno::Errno;
use commensal_host::{Host, HostError, Lock};
use commensal_lab::prove::{ProveOptions, prove};
use commensal_lab::site::Claim;
use serde_json::json;

/// Prints what works here. Status 1 when only weak mechanisms can hold back offline work.
pub fn run(context: &mut Context, options: &Doctor) -> anyhow::Result<u8> {
    let as_json = options.json;
    if options.prove {
        return facts(context, as_json);
    }
    let (_lock, state) = lock(context)?;
    let probe = context.probe_name();
    let names = (context.prefix.as_str(), context.state_dir.as_path());
    let ledger = Ledger::look(&mut context.host, &probe, names, context.cgroup_root.as_ref())?;
    let dir = context.state_dir.display().to_string();
    if as_json {
        let mut value = ledger.json();
        value["state_directory"] = json!({ "path": dir, "obstacle": state });
        println!("{}", commensal_core::text::json_pretty(&value)?);
    } else {
        print!("{}", ledger.text());
        println!("State directory {dir}: {}", state.as_deref().unwrap_or("can be used"));
    }
    Ok(u8::from(ledger.is_weak()))
}

/// Tests the facts about the kernel and prints the results. Status 1 if some do not hold, 2 if none could be tested.
fn facts(context: &mut Context, as_json: bool) -> anyhow::Result<u8> {
    let _claim = Claim::take(&context.host)?;
    let program = std::env::current_exe().context("this program's own file cannot be found")?;
    let probe_name = context.lab_probe_name();
    let options = ProveOptions {
        program: &program,
        state_dir: context.state_dir.clone(),
        prefix: &context.prefix,
        probe_name: &probe_name,
        cgroup_root: context.cgroup_root.clone(),
        guarded: true,
    };
    let proof = prove(&mut context.host, &options, &mut std::thread::sleep)?;
    if as_json {
        println!("{}", commensal_core::text::json_pretty(&proof.json())?);
    } else {
        print!("{}", proof.text());
    }
    Ok(proof.exit_code())
}

/// Takes the machine's lock if possible; also returns the problem of the state directory, if there is one. The command
/// is read-only: it neither requires nor creates a state directory, and writes nothing to it.
fn lock<H: Host>(context: &mut Context<H>) -> anyhow::Result<(Option<Lock>, Option<String>)> {
    match context.host.list(&context.state_dir) {
        Err(error) if error.errno == Errno::ENOENT => {
            return Ok((None, Some("does not exist yet; the first change creates it".to_owned())));
        }
        Err(error) => return Ok((None, Some(format!("cannot be used: {error}")))),
        Ok(_) => {}
    }
    match context.lock() {
        // A lock can be taken in a read-only directory as well. Appending an empty text to its file shows whether the
        // directory is writable.
        Ok(lock) => {
            let written = context.host.state_append(&context.state_dir.join("lock"), "");
            Ok((Some(lock), written.err().map(|error| format!("cannot be used: {error}"))))
        }
        Err(error) if error.is::<HostError>() => Ok((None, Some(format!("cannot be used: {error}")))),
        Err(error) => Err(error),
    }
}
