//! The command `restore`.

use super::sched;
use crate::context::Context;
use commensal_host::{Host, HostError};

/// Restores all original values. Status 1 if something stays because it is in use, 2 if something could not be
/// restored. A loaded scheduler stays loaded; `sched unload` unloads it.
pub fn run(context: &mut Context, json: bool) -> anyhow::Result<u8> {
    let (restored, notes) = restore(context)?;
    if json {
        let mut value = serde_json::to_value(&restored)?;
        value["notes"] = serde_json::json!(notes);
        println!("{}", commensal_core::text::json_pretty(&value)?);
    } else {
        if restored.nothing() {
            println!("nothing to restore");
        }
        restored.done.iter().for_each(|line| println!("{line}"));
        notes.iter().for_each(|note| println!("note: {note}"));
    }
    restored.left.iter().chain(&restored.failed).for_each(|line| eprintln!("commensal: {line}"));
    Ok(match (restored.failed.is_empty(), restored.left.is_empty()) {
        (false, _) => 2,
        (true, false) => 1,
        (true, true) => 0,
    })
}

/// Restores all original values. Also returns notes about objects that stay on purpose.
fn restore<H: Host>(
    context: &mut Context<H>,
) -> anyhow::Result<(commensal_reconcile::Restored, Vec<String>)> {
    context.without_agent(
        "stop the agent first (started with --on-exit restore, it restores everything itself)",
    )?;
    let (_lock, no_lock) = match context.lock() {
        Ok(lock) => (Some(lock), None),
        // If the lock's path is not a regular file, no process can hold the lock, so the originals are restored without
        // the lock.
        Err(error) if error.downcast_ref::<HostError>().is_some_and(HostError::is_no_file) => {
            (None, Some(format!("restored without taking the lock: {error}")))
        }
        Err(error) => return Err(error),
    };
    // Held until the end, so that no lab run starts while the cgroups of a killed run are being removed.
    let lab = match context.host.state_lock(&context.state_dir.join("lab.lock")) {
        Err(error) if error.is_no_file() => None,
        lab => lab?,
    };
    let of_lab: Vec<String> = lab.iter().map(|_| context.lab_probe_name()).collect();
    let mut restored = context.instance().restore(&mut context.host, &of_lab)?;
    restored.failed.extend(no_lock);
    let loaded = sched::loaded(context, restored.scheduler);
    let stays =
        |pid: u32| format!("the scheduler (process {pid}) stays loaded; `commensal sched unload` unloads it");
    Ok((restored, loaded.map(stays).into_iter().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_host::fake::FakeHost;

    #[test]
    fn a_scheduler_that_is_loaded_stays_and_one_that_was_killed_is_put_back() {
        let mut host = FakeHost::v2(2, 1 << 30);
        let state_dir = std::path::PathBuf::from("/var/lib/commensal");
        let pid = host.add_process(&[]);
        let start_ticks = host.process(pid).unwrap().start_ticks;
        sched::record::tests::keep(&mut host, &state_dir, pid, start_ticks);
        let mut context = Context {
            host,
            state_dir,
            prefix: "commensal".to_owned(),
            cgroup_root: None,
            beside_others: false,
            engines: None,
        };
        let record = sched::record::path(&context.state_dir);
        for _ in 0..2 {
            let (restored, notes) = restore(&mut context).unwrap();
            assert!(restored.nothing(), "{restored:?}");
            assert_eq!(
                notes,
                [format!("the scheduler (process {pid}) stays loaded; `commensal sched unload` unloads it")]
            );
            assert!(context.host.state_read(&record).unwrap().is_some());
        }
        context.host.reuse_pid(pid, &[]);
        let (restored, notes) = restore(&mut context).unwrap();
        assert!(notes.is_empty() && restored.left.is_empty() && restored.failed.is_empty(), "{restored:?}");
        assert_eq!(context.host.state_read(&record).unwrap(), None);
    }
}
