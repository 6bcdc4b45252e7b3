//! Rules that span a tree: CPU quotas and CPU sets of parents, children and siblings.

use super::machine::{Group, Machine};
use super::parse;
use super::parse::Answer;
use commensal_core::cpuset::CpuSet;
use commensal_core::errno::Errno;
use commensal_core::knob::{KnobId, Version};

/// Bits of a NUMA node mask on x86-64 (`CONFIG_NODES_SHIFT=10`).
const MAX_NODES: u32 = 1024;

/// CPU bandwidth of a group, in microseconds; without a quota, `quota` is `None`.
#[derive(Debug, Clone, Copy)]
struct Bandwidth {
    quota: Option<u64>,
    period: u64,
    burst: u64,
}

impl Bandwidth {
    /// Share of one CPU in units of 2^-20, as the kernel's `to_ratio` computes it.
    fn ratio(self) -> Option<u128> {
        self.quota.map(|quota| (u128::from(quota) << 20) / u128::from(self.period.max(1)))
    }
}

impl Machine {
    fn bandwidth(&self, group: &Group) -> Bandwidth {
        let unsigned = |file| self.text(group, file).parse().ok();
        match self.version(group) {
            Version::V1 => Bandwidth {
                quota: unsigned("cpu.cfs_quota_us"),
                period: unsigned("cpu.cfs_period_us").unwrap_or(100_000),
                burst: unsigned("cpu.cfs_burst_us").unwrap_or(0),
            },
            Version::V2 => {
                let (quota, period) =
                    self.text(group, "cpu.max").split_once(' ').unwrap_or(("max", "100000"));
                Bandwidth {
                    quota: quota.parse().ok(),
                    period: period.parse().unwrap_or(100_000),
                    burst: unsigned("cpu.max.burst").unwrap_or(0),
                }
            }
        }
    }

    pub(super) fn set_bandwidth(&mut self, inode: u64, file: &str, text: &str) -> Answer<()> {
        let group = self.group(inode)?;
        let mut new = self.bandwidth(group);
        match file {
            "cpu.cfs_quota_us" => new.quota = u64::try_from(parse::number(text)?).ok(),
            "cpu.cfs_period_us" => new.period = parse::unsigned(text)?,
            "cpu.max" => {
                let mut words = text.split_whitespace();
                new.quota = match words.next() {
                    Some("max") => None,
                    Some(quota) => Some(parse::leading(quota).ok_or(Errno::EINVAL)?),
                    None => return Err(Errno::EINVAL),
                };
                new.period = words.next().and_then(parse::leading).unwrap_or(new.period);
            }
            _ => new.burst = parse::unsigned(text)?,
        }
        self.check_bandwidth(inode, group, new)?;
        match file {
            "cpu.cfs_quota_us" => {
                let shown = new.quota.map_or_else(|| "-1".to_owned(), |quota| quota.to_string());
                self.store(inode, file, shown);
            }
            "cpu.cfs_period_us" => self.store(inode, file, new.period.to_string()),
            "cpu.max" => {
                let quota = new.quota.map_or_else(|| "max".to_owned(), |quota| quota.to_string());
                self.store(inode, file, format!("{quota} {}", new.period));
            }
            _ => self.store(inode, file, new.burst.to_string()),
        }
        Ok(())
    }

    fn check_bandwidth(&self, inode: u64, group: &Group, new: Bandwidth) -> Answer<()> {
        let within = |knob: KnobId, value: u64| {
            let range = knob.row().file(Version::V1).map_or((0, i64::MAX), |row| row.range);
            i64::try_from(value).is_ok_and(|value| (range.0..=range.1).contains(&value))
        };
        let quota_fits = new.quota.is_none_or(|quota| within(KnobId::CpuMax, quota) && new.burst <= quota);
        if group.parent.is_none() || !quota_fits || !within(KnobId::CpuPeriod, new.period) {
            return Err(Errno::EINVAL);
        }
        match self.version(group) {
            // v2 accepts a quota above the parent's, and the smaller one takes effect.
            Version::V2 => Ok(()),
            Version::V1 => {
                let root = self.trees[group.tree].root;
                if self.fits(root, None, (inode, new)) { Ok(()) } else { Err(Errno::EINVAL) }
            }
        }
    }

    /// Whether the quotas of a v1 hierarchy fit: no group may have more CPU time per period than the nearest limited
    /// group above it.
    fn fits(&self, at: u64, above: Option<u128>, changed: (u64, Bandwidth)) -> bool {
        let Some(group) = self.groups.get(&at) else { return true };
        let own = if at == changed.0 { changed.1 } else { self.bandwidth(group) }.ratio();
        if let (Some(own), Some(above)) = (own, above)
            && own > above
        {
            return false;
        }
        group.children.values().all(|child| self.fits(*child, own.or(above), changed))
    }

    /// The number from which on no CPU can exist.
    fn cpu_limit(&self) -> u32 {
        self.kernel.possible.iter().last().map_or(0, |last| last + 1)
    }

    pub(super) fn set_of(&self, group: &Group, file: &str) -> CpuSet {
        self.text(group, file).parse().unwrap_or_default()
    }

    /// Returns the CPUs or nodes that a group may actually use. v1: its own set. v2: the intersection with the parent's
    /// set, or all of the parent's set if that intersection is empty.
    pub(super) fn effective(&self, group: &Group, file: &str, all: &CpuSet) -> CpuSet {
        let own = self.set_of(group, file);
        if self.version(group) == Version::V1 {
            return own;
        }
        let Some(mut parent) = self.parent(group) else { return all.clone() };
        // A group without the controller uses the set of its nearest ancestor with it.
        while !parent.files.contains_key(file) {
            match self.parent(parent) {
                Some(above) => parent = above,
                None => return own.iter().filter(|cpu| all.contains(*cpu)).collect::<CpuSet>().or(all),
            }
        }
        let above = self.effective(parent, file, all);
        own.iter().filter(|cpu| above.contains(*cpu)).collect::<CpuSet>().or(&above)
    }

    pub(super) fn set_list(&mut self, inode: u64, file: &str, text: &str) -> Answer<()> {
        let group = self.group(inode)?;
        // In v1 the root's set, with which the kernel compares, has only the CPUs that are online.
        let cpus = match self.version(group) {
            Version::V1 => &self.kernel.cpus,
            Version::V2 => &self.kernel.possible,
        };
        let (all, limit) = match file {
            "cpuset.cpus" => (cpus, self.cpu_limit()),
            _ => (&self.kernel.nodes, MAX_NODES),
        };
        let Some(parent) = self.parent(group) else { return Err(Errno::EACCES) };
        let new = parse::list(text, limit)?;
        if !new.is_subset(all) {
            return Err(Errno::EINVAL);
        }
        if self.version(group) == Version::V1 {
            let kept = |child: &u64| {
                self.groups.get(child).is_none_or(|child| self.set_of(child, file).is_subset(&new))
            };
            if !group.children.values().all(kept) {
                return Err(Errno::EBUSY);
            }
            if !new.is_subset(&self.set_of(parent, file)) {
                return Err(Errno::EACCES);
            }
            if self.overlaps(inode, file, &new, self.text(group, exclusive_flag(file)) == "1") {
                return Err(Errno::EINVAL);
            }
        }
        // Both versions refuse this, v2 at least up to 6.18.
        if new.is_empty() && !self.set_of(group, file).is_empty() && !self.members(inode).is_empty() {
            return Err(Errno::ENOSPC);
        }
        self.store(inode, file, new.to_string());
        self.invalidate(inode);
        Ok(())
    }

    /// Sets the exclusive CPUs for a v2 partition at or below the group. A CPU may be exclusive to only one of several
    /// siblings.
    pub(super) fn set_aside(&mut self, inode: u64, text: &str) -> Answer<()> {
        let new = parse::list(text, self.cpu_limit())?;
        let group = self.group(inode)?;
        let siblings = self.parent(group).map(|parent| parent.children.values()).into_iter().flatten();
        let mut others =
            siblings.filter(|sibling| **sibling != inode).filter_map(|other| self.groups.get(other));
        // Also refused if a sibling's `cpuset.cpus` would consist only of CPUs that are exclusive to this group.
        let clashes = |other: &Group| {
            let (aside, set) =
                (self.set_of(other, "cpuset.cpus.exclusive"), self.set_of(other, "cpuset.cpus"));
            aside.iter().any(|cpu| new.contains(cpu)) || (!set.is_empty() && set.is_subset(&new))
        };
        if others.any(clashes) {
            return Err(Errno::EINVAL);
        }
        self.store(inode, "cpuset.cpus.exclusive", new.to_string());
        self.invalidate(inode);
        Ok(())
    }

    /// Marks partitions at or below the group that have lost all their CPUs as invalid; they stay invalid until they
    /// are written again.
    fn invalidate(&mut self, inode: u64) {
        let Ok(group) = self.group(inode) else { return };
        let children: Vec<u64> = group.children.values().copied().collect();
        let remote =
            self.parent(group).is_some_and(|above| above.parent.is_some() && !self.is_partition(above));
        if remote && self.is_partition(group) && self.set_aside_in(group).is_empty() {
            let word = self.text(group, "cpuset.cpus.partition").to_owned();
            let shown = format!("{word} invalid (Parent is not a partition root)");
            self.store(inode, "cpuset.cpus.partition", shown);
        }
        children.into_iter().for_each(|child| self.invalidate(child));
    }

    fn is_partition(&self, group: &Group) -> bool {
        matches!(self.text(group, "cpuset.cpus.partition"), "root" | "isolated")
    }

    /// Returns the group's exclusive CPUs that are exclusive in all groups above it as well. A partition without
    /// exclusive CPUs uses its `cpuset.cpus`.
    pub(super) fn set_aside_in(&self, group: &Group) -> CpuSet {
        let named = self.set_of(group, "cpuset.cpus.exclusive");
        let own = match named.is_empty() && self.is_partition(group) {
            true => self.set_of(group, "cpuset.cpus"),
            false => named,
        };
        match self.parent(group).filter(|parent| parent.parent.is_some()) {
            Some(parent) => {
                let above = self.set_aside_in(parent);
                own.iter().filter(|cpu| above.contains(*cpu)).collect()
            }
            None => own,
        }
    }

    /// Sets the partition type of a v2 group. A partition that is impossible is stored too, and shown as invalid with
    /// the kernel's reason (messages of Linux 7.2).
    pub(super) fn set_partition(&mut self, inode: u64, text: &str) -> Answer<()> {
        let word = text.trim();
        if !["member", "root", "isolated"].contains(&word) {
            return Err(Errno::EINVAL);
        }
        let group = self.group(inode)?;
        let Some(parent) = self.parent(group) else { return Err(Errno::EACCES) };
        let (own, aside) = (self.set_of(group, "cpuset.cpus"), self.set_of(group, "cpuset.cpus.exclusive"));
        let local = parent.parent.is_none() || self.is_partition(parent);
        let reason = if own.is_empty() && aside.is_empty() {
            Some("cpuset.cpus and cpuset.cpus.exclusive are empty")
        } else if local && self.effective(parent, "cpuset.cpus", &self.kernel.cpus).is_subset(&own) {
            Some("Parent unable to distribute cpu downstream")
        } else if !local && self.set_aside_in(group).is_empty() {
            Some("Invalid cpu list in cpuset.cpus.exclusive")
        } else {
            None
        };
        let shown = match reason.filter(|_| word != "member") {
            Some(reason) => format!("{word} invalid ({reason})"),
            None => word.to_owned(),
        };
        self.store(inode, "cpuset.cpus.partition", shown);
        Ok(())
    }

    /// Whether `set` has a CPU in common with a sibling, although one of the two must be exclusive.
    fn overlaps(&self, inode: u64, file: &str, set: &CpuSet, exclusive: bool) -> bool {
        let parent = self.groups.get(&inode).and_then(|group| self.parent(group));
        let siblings = parent.map(|parent| parent.children.values()).into_iter().flatten();
        let others = siblings.filter(|sibling| **sibling != inode).filter_map(|other| self.groups.get(other));
        others.into_iter().any(|other| {
            let theirs = self.set_of(other, file);
            let matters = exclusive || self.text(other, exclusive_flag(file)) == "1";
            matters && set.iter().any(|cpu| theirs.contains(cpu))
        })
    }

    pub(super) fn set_exclusive(&mut self, inode: u64, flag: &str, text: &str) -> Answer<()> {
        let on = parse::unsigned(text)? != 0;
        let group = self.group(inode)?;
        let file = if flag == "cpuset.cpu_exclusive" { "cpuset.cpus" } else { "cpuset.mems" };
        let parent_has_it = self.parent(group).is_some_and(|parent| self.text(parent, flag) == "1");
        if on && !parent_has_it {
            return Err(Errno::EACCES);
        }
        if on && self.overlaps(inode, file, &self.set_of(group, file), true) {
            return Err(Errno::EINVAL);
        }
        self.store(inode, flag, u8::from(on).to_string());
        Ok(())
    }
}

/// Returns the name of the flag that makes a list exclusive.
fn exclusive_flag(list: &str) -> &'static str {
    if list == "cpuset.cpus" { "cpuset.cpu_exclusive" } else { "cpuset.mem_exclusive" }
}

trait Or {
    /// Returns the set, or `other` if the set is empty.
    fn or(self, other: &CpuSet) -> CpuSet;
}

impl Or for CpuSet {
    fn or(self, other: &CpuSet) -> CpuSet {
        if self.is_empty() { other.clone() } else { self }
    }
}
