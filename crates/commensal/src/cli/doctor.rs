//! `doctor`.

use crate::context::Context;
use crate::ledger::Ledger;
use commensal_core::errno::Errno;
use commensal_host::{Host, HostError, Lock};
use serde_json::json;

/// Prints which mechanisms work here. Status 1 when only weak mechanisms can hold back offline work.
pub fn run(context: &mut Context, as_json: bool) -> anyhow::Result<u8> {
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

/// The machine's lock if it can be taken, and problems of the state directory: this read-only command neither requires
/// nor creates one, and does not write to it.
fn lock<H: Host>(context: &mut Context<H>) -> anyhow::Result<(Option<Lock>, Option<String>)> {
    match context.host.list(&context.state_dir) {
        Err(error) if error.errno == Errno::ENOENT => {
            return Ok((None, Some("is not there yet; the first change makes it".to_owned())));
        }
        Err(error) => return Ok((None, Some(format!("cannot be used: {error}")))),
        Ok(_) => {}
    }
    match context.lock() {
        Ok(lock) => Ok((Some(lock), None)),
        Err(error) if error.is::<HostError>() => Ok((None, Some(format!("cannot be used: {error}")))),
        Err(error) => Err(error),
    }
}
