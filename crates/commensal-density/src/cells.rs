//! Creates and removes cells on this machine. A cell stands for a VM: it is a cgroup with a CPU weight, a memory limit,
//! a CPU quota and CPUs. Cells are created through the same planner and drivers as `commensal apply`. Each cell is
//! recorded in a journal before it is created, so that the next run or `commensal restore` can remove the cells that a
//! killed run left behind.

use crate::error::DensityError;
use crate::experiment::Cell;
use crate::pin::{self, Pinned};
use commensal_core::actual::CgroupPath;
use commensal_core::group::{Class, GroupName, GroupSpec, OnExceed};
use commensal_core::limit::{CPU_MAX, CPU_SET, CPU_WEIGHT, MEMORY_MAX};
use commensal_core::units::{CpuAmount, MemoryAmount, MicroCpus, Weight};
use commensal_host::{Child, Host, Lock, SpawnSpec};
use commensal_lab::site::TestbedError;
use commensal_reconcile::{Instance, PlanRequest, Planned, enforce, members, restore_own, restore_stale};
use commensal_sensors::usage::GroupDirs;
use commensal_sensors::{Survey, machine};
use std::path::PathBuf;
use std::time::Duration;

/// Timeout for the processes of all cells to exit after SIGKILL.
const PATIENCE: Duration = Duration::from_secs(10);

/// The machine during a run. This value holds a lock, so that no other run measures at the same time.
#[derive(Debug)]
pub struct Field {
    /// The survey of the machine.
    pub survey: Survey,
    /// Leftovers of earlier, killed runs that this run removed at its start.
    pub cleaned: Vec<String>,
    instance: Instance,
    _lock: Lock,
}

/// A set of cells that exist on the machine.
#[derive(Debug)]
pub struct Cells {
    /// Cgroups of the cells, in the order of the cells.
    pub groups: Vec<GroupDirs>,
    /// CPUs of each cell; empty if cells are not pinned.
    pub pins: Vec<Pinned>,
    /// Settings that the kernel could not enforce, as readable text.
    pub unmet: Vec<String>,
}

impl Field {
    /// Surveys the machine and removes what killed runs left behind.
    ///
    /// # Errors
    /// Returns an error when another run is measuring, or no cgroup can be used.
    pub fn open(
        host: &mut dyn Host,
        state_dir: PathBuf,
        probe_name: &str,
        cgroup_root: Option<&CgroupPath>,
    ) -> Result<Field, DensityError> {
        host.state_dir(&state_dir)?;
        let lock_path = state_dir.join("lab.lock");
        let Some(lock) = host.state_lock(&lock_path)? else {
            return Err(TestbedError::busy(host, &lock_path).into());
        };
        let boot_id = machine::boot_id(host).unwrap_or_default();
        let cleaned = restore_stale(host, &state_dir, &boot_id)?.done;
        let instance = Instance {
            cgroup_root: cgroup_root.cloned(),
            ..Instance::of_process(&state_dir, "commensal-density", probe_name)
        };
        let survey = instance.survey(host).map_err(TestbedError::from)?;
        if let Some(obstacle) = survey.caps.cgroup_obstacle.as_ref().or(survey.tenancy.obstacle.as_ref()) {
            return Err(DensityError::new(format!(
                "cells need cgroups, which cannot be created: {obstacle}"
            )));
        }
        Ok(Field { survey, cleaned, instance, _lock: lock })
    }

    /// Creates `count` cells, pinned to their own cores if `pinned`.
    ///
    /// # Errors
    /// Returns an error when the kernel refuses a step, or when there are fewer cores than pinned cells need. In both
    /// cases all cells are removed.
    pub fn cells(
        &self,
        host: &mut dyn Host,
        cell: &Cell,
        (count, pinned): (u32, bool),
    ) -> Result<Cells, DensityError> {
        let vcpus = vec![cell.vcpu; count as usize];
        let pins = if pinned { pin::assign(&self.survey.machine.topology, &vcpus, 0)? } else { Vec::new() };
        let specs = specs(cell, count, &pins)?;
        let made = self.make(host, &specs).inspect_err(|_| {
            let _ = restore_own(host, &self.instance.state_dir, self.instance.journal_name());
        });
        made.map(|made| Cells { pins, ..made })
    }

    fn make(&self, host: &mut dyn Host, specs: &[GroupSpec]) -> Result<Cells, DensityError> {
        let mut journal = self.instance.open_journal(host).map_err(TestbedError::from)?;
        let request = PlanRequest::beside(specs);
        let (planned, outcome) =
            enforce(&self.instance, host, &request, &mut journal).map_err(TestbedError::from)?;
        if let Some(failure) = outcome.failure {
            return Err(TestbedError::refused(&failure).into());
        }
        let Planned { desired, plan, .. } = planned;
        let path = |spec: &GroupSpec| {
            let group = desired.groups.iter().find(|group| group.name == spec.name);
            group
                .and_then(|group| group.members.first())
                .map(|member| member.path.clone())
                .unwrap_or_default()
        };
        let groups =
            specs.iter().map(|spec| GroupDirs::open(host, &self.survey.hierarchies, &path(spec))).collect();
        let unmet = plan.unmet.iter().map(|unmet| format!("{}: {}", unmet.what, unmet.because)).collect();
        Ok(Cells { groups, pins: Vec::new(), unmet })
    }

    /// Kills all processes in and below the cells and removes the cells. Returns a list of the cells that could not be removed;
    /// they stay in the journal, and `commensal restore` retries them.
    ///
    /// # Errors
    /// Returns an error when a process survives SIGKILL, or the journal cannot be read or rewritten.
    pub fn clear(&self, host: &mut dyn Host, cells: Cells) -> Result<Vec<String>, DensityError> {
        let all: Vec<_> = cells.groups.iter().flat_map(GroupDirs::all).collect();
        let ended = members::kill_all(host, &all, PATIENCE);
        cells.groups.into_iter().for_each(|group| group.close(host));
        let mut restored = restore_own(host, &self.instance.state_dir, self.instance.journal_name())?;
        ended?;
        restored.left.append(&mut restored.failed);
        Ok(restored.left)
    }
}

/// Builds the specifications of the cells' cgroups.
fn specs(cell: &Cell, count: u32, pins: &[Pinned]) -> Result<Vec<GroupSpec>, DensityError> {
    let weight = u16::try_from(cell.vcpu.saturating_mul(100)).unwrap_or(u16::MAX).min(10_000);
    let spec = |index: usize| {
        let name = GroupName::new(&format!("cell-{}", index + 1)).map_err(TestbedError::plan)?;
        let mut spec = GroupSpec::new(name, Class::Online);
        spec.limits.set(CPU_WEIGHT, Weight::new(weight));
        spec.limits.set(CPU_MAX, cell.quota.then(|| CpuAmount::Cpus(MicroCpus::whole(cell.vcpu as usize))));
        spec.limits.set(CPU_SET, pins.get(index).map(|pinned| pinned.cpus.clone()));
        if let Some(memory) = cell.memory_limit() {
            spec.limits.set(MEMORY_MAX, MemoryAmount::Bytes(memory));
            spec.on_exceed = Some(OnExceed::KillLargest);
        }
        Ok(spec)
    };
    (0..count as usize).map(spec).collect()
}

impl Cells {
    /// Starts a program inside a cell. The kernel kills the program when this process exits.
    ///
    /// # Errors
    /// Returns an error when the program cannot be started in this cell.
    pub fn start(
        &self,
        host: &mut dyn Host,
        cell: usize,
        mut spec: SpawnSpec,
    ) -> Result<Child, DensityError> {
        spec.groups = self.groups[cell].all();
        spec.die_with_parent = true;
        spec.own_process_group = true;
        Ok(host.spawn(&spec)?)
    }
}
