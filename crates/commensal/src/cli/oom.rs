//! The message of `run` after the kernel's OOM killer has killed a process in the command's group. The command's own
//! exit status shows only that a signal killed a process.

use commensal_core::desired::Limits;
use commensal_core::group::GroupName;
use commensal_core::knob::{Controller, Version};
use commensal_core::limit::MEMORY_MAX;
use commensal_core::observe::OutOfMemory;
use commensal_core::units::Bytes;
use commensal_host::Host;
use commensal_sensors::usage::GroupDirs;

/// The OOM counters before the command starts, and the group's settings.
#[derive(Debug)]
pub struct Watch {
    before: OutOfMemory,
    max: Option<Bytes>,
    on_exceed: OnExceed,
}

/// The processes that the kernel's OOM killer kills on this machine when the limit is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnExceed {
    /// One process. Cgroup v1 has no alternative.
    Largest,
    /// One process, although the group could be configured so that the kernel kills all its processes.
    LargestOrGroup,
    /// All processes of the group.
    Group,
}

/// OOM kills in and below the group while the command ran.
#[derive(Debug, PartialEq, Eq)]
pub struct Kills {
    count: u64,
    reached: Reached,
    on_exceed: OnExceed,
}

/// What ran out of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reached {
    /// The group, at this hard limit (`memory.max`).
    Group(Bytes),
    /// A cgroup below the group, at a limit that commensal did not set.
    Below,
    /// The machine, or a cgroup above the group.
    Above,
}

impl Watch {
    /// Reads the counters before the command starts. The cgroup must exist.
    pub fn begin(host: &mut dyn Host, dirs: &GroupDirs, limits: &Limits) -> Watch {
        let version = dirs.of(Controller::Memory).map(|(version, _)| version);
        let on_exceed = match (version, limits.kill_group) {
            (Some(Version::V2), true) => OnExceed::Group,
            (Some(Version::V2), false) => OnExceed::LargestOrGroup,
            _ => OnExceed::Largest,
        };
        Watch { before: dirs.out_of_memory(host), max: limits.get(MEMORY_MAX), on_exceed }
    }

    /// Reads the counters again. `None` if no process was killed, or if the kernel has no such counter.
    pub fn end(self, host: &mut dyn Host, dirs: &GroupDirs) -> Option<Kills> {
        self.compare(&dirs.out_of_memory(host))
    }

    fn compare(self, after: &OutOfMemory) -> Option<Kills> {
        let count = after.kills?.checked_sub(self.before.kills?).filter(|count| *count > 0)?;
        // The kills also include those because the machine, or a cgroup above or below the group, ran out of memory.
        let at_limit = after.limit_hits > self.before.limit_hits;
        let reached = match self.max.filter(|_| at_limit) {
            Some(max) => Reached::Group(max),
            None if after.limit_hits_below > self.before.limit_hits_below => Reached::Below,
            None => Reached::Above,
        };
        Some(Kills { count, reached, on_exceed: self.on_exceed })
    }
}

impl Kills {
    /// Returns one line: the processes that were killed, the reason, and a remedy.
    pub fn describe(&self, group: &GroupName) -> String {
        let whom = match (self.on_exceed, self.count) {
            // When a whole group is killed, the kernel counts the first victim twice (4 for 3 processes on Linux 7.2).
            (OnExceed::Group, _) => format!("every process of group {group}"),
            (_, 1) => format!("1 process of group {group}"),
            (_, count) => format!("{count} processes of group {group}"),
        };
        let max = match self.reached {
            Reached::Group(max) => max,
            Reached::Below => {
                return format!(
                    "the kernel killed {whom} because a cgroup that the command made below the group reached a memory \
                     limit of its own; raise that limit"
                );
            }
            Reached::Above => {
                return format!(
                    "the kernel killed {whom} because the machine, or a cgroup above the group, ran out of memory; free \
                     memory there, or give the group a lower memory.max"
                );
            }
        };
        let way_out = match self.on_exceed {
            OnExceed::Largest => "",
            OnExceed::LargestOrGroup => ", or set memory.on-exceed = \"kill-group\" to end all of it at once",
            OnExceed::Group => {
                ", or set memory.on-exceed = \"kill-largest\" to lose only the largest process"
            }
        };
        format!(
            "the kernel killed {whom} because the group reached memory.max = {max}; raise memory.max{way_out}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(kills: Option<u64>, limit_hits: Option<u64>) -> OutOfMemory {
        OutOfMemory { kills, limit_hits, limit_hits_below: Some(4) }
    }

    #[test]
    fn one_line_says_what_why_and_the_way_out() {
        let check = |before, after, on_exceed, expect: Option<&str>| {
            let watch = Watch { before, max: Some(Bytes(64 << 20)), on_exceed };
            let said = watch.compare(&after).map(|kills| kills.describe(&GroupName::new("etl").unwrap()));
            assert_eq!(said.as_deref(), expect);
        };
        let none = counts(Some(2), Some(7));
        check(none, none, OnExceed::Largest, None);
        check(none, counts(Some(2), Some(9)), OnExceed::Largest, None);
        // Before Linux 4.13 cgroup v1 has no counter of OOM kills, so a kill cannot be attributed.
        check(counts(None, Some(0)), counts(None, Some(9)), OnExceed::Largest, None);
        check(
            none,
            counts(Some(3), Some(9)),
            OnExceed::Largest,
            Some(
                "the kernel killed 1 process of group etl because the group reached memory.max = 64 MiB; raise memory.max",
            ),
        );
        check(
            none,
            counts(Some(4), Some(8)),
            OnExceed::LargestOrGroup,
            Some(
                "the kernel killed 2 processes of group etl because the group reached memory.max = 64 MiB; raise \
                 memory.max, or set memory.on-exceed = \"kill-group\" to end all of it at once",
            ),
        );
        check(
            none,
            counts(Some(6), Some(8)),
            OnExceed::Group,
            Some(
                "the kernel killed every process of group etl because the group reached memory.max = 64 MiB; raise \
                 memory.max, or set memory.on-exceed = \"kill-largest\" to lose only the largest process",
            ),
        );
        check(
            none,
            counts(Some(3), Some(7)),
            OnExceed::Largest,
            Some(
                "the kernel killed 1 process of group etl because the machine, or a cgroup above the group, ran out of \
                 memory; free memory there, or give the group a lower memory.max",
            ),
        );
        check(
            none,
            OutOfMemory { limit_hits_below: Some(5), ..counts(Some(3), Some(7)) },
            OnExceed::Largest,
            Some(
                "the kernel killed 1 process of group etl because a cgroup that the command made below the group reached \
                 a memory limit of its own; raise that limit",
            ),
        );
    }
}
