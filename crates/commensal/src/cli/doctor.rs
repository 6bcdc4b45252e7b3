//! `doctor`.

use crate::context::Context;
use crate::ledger::Ledger;

/// Prints what works here. Status 1 when offline work can only be held back by weak mechanisms.
pub fn run(context: &mut Context, as_json: bool) -> anyhow::Result<u8> {
    let _lock = context.lock_to_look()?;
    let probe = context.probe_name();
    let names = (context.prefix.as_str(), context.state_dir.as_path());
    let ledger = Ledger::look(&mut context.host, &probe, names, context.cgroup_root.as_ref())?;
    if as_json {
        println!("{}", commensal_core::text::json_pretty(&ledger.json())?);
    } else {
        print!("{}", ledger.text());
    }
    Ok(u8::from(ledger.is_weak()))
}
