//! `restore`.

use crate::context::Context;
use commensal_host::Host;
use commensal_sensors::{capability, delegation, mounts};

/// Puts everything back. Status 1 when something was left because it is in use, 2 when something failed.
pub fn run(context: &mut Context, json: bool) -> anyhow::Result<u8> {
    context.without_agent("stop it first (with --on-exit restore it puts everything back itself)")?;
    let boot_id = context.boot_id();
    let _lock = context.lock()?;
    // Held to the end: no lab run starts while what a dead one left is removed.
    let lab = context.host.state_lock(&context.state_dir.join("lab.lock"))?;
    let mut restored = commensal_drivers::restore(&mut context.host, &context.state_dir, &boot_id)?;
    let hierarchies = mounts::hierarchies(&mut context.host)?;
    let tenancy = delegation::look(&mut context.host, &hierarchies, context.cgroup_root.as_ref());
    let (probe, lab_probe) = (context.probe_name(), context.lab_probe_name());
    restored.done.extend(capability::sweep(&mut context.host, &hierarchies, &tenancy, &probe));
    if lab.is_some() {
        restored.done.extend(capability::sweep(&mut context.host, &hierarchies, &tenancy, &lab_probe));
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&restored)?);
    } else if restored.nothing() {
        println!("nothing to restore");
    } else {
        for line in &restored.done {
            println!("{line}");
        }
    }
    for line in &restored.left {
        eprintln!("commensal: {line}");
    }
    for line in &restored.failed {
        eprintln!("commensal: {line}");
    }
    Ok(match (restored.failed.is_empty(), restored.left.is_empty()) {
        (false, _) => 2,
        (true, false) => 1,
        (true, true) => 0,
    })
}
