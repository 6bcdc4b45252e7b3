//! The fallback without BPF: run delay of the targets' threads. Run delay shows how long the threads waited for a CPU,
//! but not which tasks held it. A wake-up that preempts immediately counts as no wait at all, so good isolation seems
//! better than it is.

use crate::Subject;
use crate::names::Cgroups;
use commensal_core::actual::CgroupPath;
use commensal_host::{Dir, Host};
use commensal_sensors::processes::start_ticks;
use commensal_sensors::run_delay::{RunDelay, Schedstat};
use std::path::Path;

/// Run delay and CPU time of the targets since the first reading.
#[derive(Debug, Default)]
pub struct Unattributed {
    sums: RunDelay,
    first: Option<Schedstat>,
}

impl Unattributed {
    /// Returns the difference from the first reading; `None` if the kernel does not count run delay.
    pub fn read(
        &mut self,
        host: &mut dyn Host,
        subjects: &[Subject],
        cgroups: Option<&Cgroups>,
    ) -> Option<Schedstat> {
        let mut pids = Vec::new();
        for subject in subjects {
            match subject {
                Subject::Processes(ids) => {
                    let same = ids.iter().filter(|id| start_ticks(host, id.pid) == Some(id.start_ticks));
                    pids.extend(same.map(|id| id.pid));
                }
                Subject::Cgroups(ids) => {
                    let Some(cgroups) = cgroups else { continue };
                    for path in ids.iter().filter_map(|id| cgroups.path(*id)) {
                        members(host, &cgroups.mount, path, &mut pids);
                    }
                }
            }
        }
        pids.sort_unstable();
        pids.dedup();
        let now = self.sums.of(host, &pids)?;
        let first = *self.first.get_or_insert(now);
        Some(Schedstat {
            run_ns: now.run_ns.saturating_sub(first.run_ns),
            delay_ns: now.delay_ns.saturating_sub(first.delay_ns),
        })
    }
}

/// Adds the PIDs of all processes in a cgroup and in the cgroups below it to `pids`.
fn members(host: &mut dyn Host, mount: &str, path: &CgroupPath, pids: &mut Vec<u32>) {
    if let Ok(dir) = host.open(&commensal_host::below(Path::new(mount), path.as_str())) {
        below(host, dir, pids);
        host.close(dir);
    }
}

fn below(host: &mut dyn Host, dir: Dir, pids: &mut Vec<u32>) {
    let procs = host.read(dir, "cgroup.procs").unwrap_or_default();
    pids.extend(procs.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    for name in host.children(dir).unwrap_or_default() {
        if let Ok(child) = host.open_child(dir, &name) {
            below(host, child, pids);
            host.close(child);
        }
    }
}
