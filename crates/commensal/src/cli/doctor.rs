//! `doctor`.

use crate::context::Context;
use crate::ledger::Ledger;

/// Prints what works here. Status 1 when offline work can only be held back by weak means.
pub fn run(context: &mut Context, as_json: bool) -> anyhow::Result<u8> {
    let _lock = context.lock_to_look()?;
    let (probe, prefix, root) = (context.probe_name(), context.prefix.clone(), context.cgroup_root.clone());
    let ledger = Ledger::look(&mut context.host, &probe, &prefix, root.as_ref())?;
    if as_json {
        println!("{}", serde_json::to_string_pretty(&ledger.json())?);
    } else {
        print!("{}", ledger.text());
    }
    Ok(u8::from(ledger.is_weak()))
}
