//! `commensal doctor --prove`: tests the running kernel against the facts on which commensal's plans rely, and reports
//! which facts agree. A fact is a statement about kernel behaviour, such as the CPU share of an idle cgroup; a trial
//! tests one fact.
//!
//! ```text
//! core::knob::TABLE ─► knobs ─┐
//! core::facts::FILES ─► files │
//!   …::LimitFact ───► limits  ├─► bench: scratch groups (journalled), processes, time ─► Tried ─► Proof ─► table
//!   …::SHARES ──────► shares  │
//!   …::StarvingFact ► starving┘
//! ```
//!
//! The trials create scratch cgroups through commensal's journal, so `commensal restore` can remove the cgroups that a
//! killed trial left behind. The trials write values directly to the files of the scratch cgroups, because a trial
//! examines the kernel's answer to a single write.
//!
//! The trials write nothing outside the scratch cgroups, with one exception. On Anolis kernels, the last trials turn on
//! the switch of the vendor's scheduler (Group Identity). They do this only if the switch would not clear a value in
//! any other cgroup, and they save the old setting of the switch in the journal.

mod bench;
mod files;
mod knobs;
mod limits;
mod report;
mod shares;
mod starving;
#[cfg(test)]
mod tests;

pub use report::{Found, Proof, Tried};

use crate::error::LabError;
use crate::site::Guard;
use bench::Bench;
use commensal_core::actual::{ABSOLUTE_EXPEL, CPU_PRIORITY, CgroupPath, Support};
use commensal_core::facts::{HoldsOn, Kernel};
use commensal_core::knob::{KnobId, Version};
use commensal_core::plan::identity_obstacle;
use commensal_core::vendor::{QosLevels, Switch};
use commensal_host::Host;
use commensal_reconcile::{Instance, ReconcileError, restore_own, restore_stale};
use commensal_sensors::{Survey, machine};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options of the trials.
#[derive(Debug)]
pub struct ProveOptions<'a> {
    /// Path of this program. Trials start the program again as a process that uses CPU time.
    pub program: &'a Path,
    /// State directory, which contains the undo journal.
    pub state_dir: PathBuf,
    /// Prefix of the names of commensal's own cgroups.
    pub prefix: &'a str,
    /// Name of the scratch cgroup in which the survey of the machine tests control files.
    pub probe_name: &'a str,
    /// Cgroup below which commensal's own cgroups are created, if the user chose one.
    pub cgroup_root: Option<CgroupPath>,
    /// Whether to start a guard process, which undoes the changes if this process is killed.
    pub guarded: bool,
}

/// Tests all facts. The trials take about a minute at most. During part of that time they keep one CPU busy, at the
/// smallest CPU weight. `wait` sleeps for the given time.
///
/// # Errors
/// Returns an error when a lab run or another call of this function is using the machine, or when the machine or the
/// journal cannot be read. Before returning an error, the function removes what it created.
pub fn prove(
    host: &mut dyn Host,
    options: &ProveOptions<'_>,
    wait: &mut dyn FnMut(Duration),
) -> Result<Proof, LabError> {
    host.state_dir(&options.state_dir)?;
    let lock_path = options.state_dir.join("lab.lock");
    let Some(lock) = host.state_lock(&lock_path)? else {
        return Err(LabError::new(format!(
            "a lab run is using this machine (it holds {}) and would be disturbed: wait for it",
            lock_path.display()
        )));
    };
    let boot_id = machine::boot_id(host).unwrap_or_default();
    restore_stale(host, &options.state_dir, &boot_id)?;
    let instance = Instance {
        cgroup_root: options.cgroup_root.clone(),
        ..Instance::of_process(&options.state_dir, &format!("{}-prove", options.prefix), options.probe_name)
    };
    let guard = match options.guarded {
        true => Some(
            Guard::start(host, options.program, &options.state_dir)
                .map_err(|error| LabError::copied(&error))?,
        ),
        false => None,
    };
    let tried = trials(host, &instance, options.program, wait);
    let undone = restore_own(host, &options.state_dir, instance.journal_name());
    // The guard takes this lock before it removes leftovers.
    drop(lock);
    let ended = guard.map_or(Ok(()), Guard::end);
    let mut proof = tried?;
    let undone = undone?;
    ended.map_err(|error| LabError::copied(&error))?;
    proof.left = undone.left.into_iter().chain(undone.failed).collect();
    Ok(proof)
}

fn trials(
    host: &mut dyn Host,
    instance: &Instance,
    program: &Path,
    wait: &mut dyn FnMut(Duration),
) -> Result<Proof, LabError> {
    let survey = instance.survey(host).map_err(ReconcileError::from)?;
    let kernel = kernel(&survey);
    let found = instance.observe(host, &survey)?;
    let (release, model) = (machine::identity(host).kernel, model(&survey));
    let mut bench = Bench::new(host, instance, &survey, found, program, wait);
    let of_switch = |on: HoldsOn| matches!(on, HoldsOn::Ranks | HoldsOn::RanksByWeight);
    let mut tried = knobs::try_all(&mut bench);
    tried.extend(limits::try_all(&mut bench));
    tried.extend(files::try_all(&mut bench, &kernel, &|on| !of_switch(on), None));
    tried.extend(shares::try_all(&mut bench, &kernel, &|on| !of_switch(on), None));
    tried.extend(starving::try_all(&mut bench, &kernel));
    if kernel.ranks {
        let obstacle = turn_on(&mut bench).err();
        tried.extend(files::try_all(&mut bench, &kernel, &of_switch, obstacle.as_deref()));
        tried.extend(shares::try_all(&mut bench, &kernel, &of_switch, obstacle.as_deref()));
    }
    Ok(Proof { kernel: release, model, tried, left: Vec::new() })
}

/// Turns Group Identity on if it is off. Returns an error if another cgroup has a value that this would clear.
fn turn_on(bench: &mut Bench<'_>) -> Result<(), String> {
    let mut found = bench.survey.tree(bench.host).map_err(|error| error.to_string())?;
    if found.switches.get(&Switch::GroupIdentity) != Some(&0) {
        return Ok(());
    }
    bench.survey.fill_all(bench.host, &mut found).map_err(|error| error.to_string())?;
    match identity_obstacle(None, &found) {
        Some(obstacle) => Err(obstacle),
        None => bench.switch(Switch::GroupIdentity),
    }
}

/// Returns the kernel features that decide which facts apply.
fn kernel(survey: &Survey) -> Kernel {
    let caps = &survey.caps;
    let ranks = |version| caps.obstacle(KnobId::CpuBvtWarpNs, version).is_none();
    Kernel {
        levels: caps.qos,
        ranks: ranks(Version::V1) || ranks(Version::V2),
        absolute: caps.features.get(ABSOLUTE_EXPEL) == Some(&Support::Yes),
    }
}

/// Describes the vendor's scheduler that was found.
fn model(survey: &Survey) -> String {
    let kernel = kernel(survey);
    match (kernel.levels, kernel.ranks, survey.caps.features.get(CPU_PRIORITY)) {
        (Some(QosLevels::Two), ..) => "openEuler's cpu.qos_level, two levels".to_owned(),
        (Some(QosLevels::Five), ..) => "openEuler's cpu.qos_level, five levels".to_owned(),
        (None, true, _) if kernel.absolute => "Group Identity with absolute expulsion".to_owned(),
        (None, true, _) => "Group Identity".to_owned(),
        (None, false, Some(support)) => support.obstacle().unwrap_or_default(),
        (None, false, None) => "no vendor's scheduler".to_owned(),
    }
}
