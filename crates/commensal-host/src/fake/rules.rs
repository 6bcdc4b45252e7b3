//! The effects of a write: the knob table's range, form and normalisation, and the rules that the table cannot express.
//! Each rule was measured on Linux 6.18, or `tests/conformance.txt` marks it as documented.

use super::machine::Machine;
use super::parse;
use super::parse::Answer;
use crate::{Exit, Signal};
use commensal_core::errno::Errno;
use commensal_core::knob::{Controller, File, Form, Knob, Normalise, TABLE, Value, Version};
use commensal_core::topology::Device;
use std::collections::BTreeSet;

/// Value of `cpu.shares` while a group is idle (`WEIGHT_IDLEPRIO`); v2 shows it as 1.
const IDLE_SHARES: &str = "3";

impl Machine {
    /// Performs one `write(2)` to a control file by process `caller`.
    pub(super) fn write(&mut self, inode: u64, file: &str, text: &str, caller: u32) -> Answer<()> {
        let group = self.group(inode)?;
        let version = self.version(group);
        if !group.files.contains_key(file) {
            return Err(Errno::ENOENT);
        }
        if text.is_empty() {
            return Ok(());
        }
        match file {
            "cgroup.procs" | "cgroup.threads" | "tasks" => {
                return self.attach_text(inode, file, text, caller);
            }
            "cgroup.subtree_control" => return self.give(inode, text),
            "cgroup.kill" => return self.kill(inode, text),
            "memory.reclaim" | "memory.force_empty" => return self.reclaim(inode, file, text),
            _ => {}
        }
        let row =
            TABLE.iter().find_map(|knob| Some((knob, knob.file(version)?)).filter(|row| row.1.name == file));
        match row {
            Some((knob, row)) => self.write_knob(inode, knob, row, text),
            // Most files outside the table are statistics: root can open the file for writing, but the write is
            // refused.
            None => self.write_plain(inode, file, text),
        }
    }

    fn write_plain(&mut self, inode: u64, file: &str, text: &str) -> Answer<()> {
        match file {
            "cgroup.max.depth" | "cgroup.max.descendants" => match text.trim() {
                "max" => self.store(inode, file, "max".to_owned()),
                number => match parse::number(number)? {
                    0.. => self.store(inode, file, number.to_owned()),
                    _ => return Err(Errno::ERANGE),
                },
            },
            "notify_on_release" | "cgroup.clone_children" => {
                self.store(inode, file, u8::from(parse::unsigned(text)? != 0).to_string());
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }

    fn write_knob(&mut self, inode: u64, knob: &Knob, row: &File, text: &str) -> Answer<()> {
        let group = self.group(inode)?;
        let root = group.parent.is_none();
        match row.name {
            "cpu.shares" | "cpu.weight" | "cpu.weight.nice" | "cpu.idle" if root => {
                return Err(Errno::EINVAL);
            }
            "cpu.idle" => return self.set_idle(inode, knob, row, text),
            "cpu.shares" | "cpu.weight" | "cpu.weight.nice" => {
                let stored = in_range(knob, row, text)?;
                if self.text(group, "cpu.idle") == "1" {
                    return Err(Errno::EINVAL);
                }
                self.store(inode, row.name, stored);
                return Ok(());
            }
            "cpu.bvt_warp_ns" => return self.set_bvt(inode, text),
            "cpu.identity" => return self.set_identity(inode, text),
            "cpu.qos_level" | "memory.qos_level" => return self.set_qos(inode, row.name, text),
            "cpu.cfs_quota_us" | "cpu.cfs_period_us" | "cpu.cfs_burst_us" | "cpu.max" | "cpu.max.burst" => {
                return self.set_bandwidth(inode, row.name, text);
            }
            "cpuset.cpus" | "cpuset.mems" => return self.set_list(inode, row.name, text),
            "cpuset.cpus.exclusive" => return self.set_aside(inode, text),
            "cpuset.cpus.partition" => return self.set_partition(inode, text),
            "cpuset.cpu_exclusive" | "cpuset.mem_exclusive" => {
                return self.set_exclusive(inode, row.name, text);
            }
            "memory.use_hierarchy" if parse::unsigned(text)? != 1 => return Err(Errno::EINVAL),
            // The kernel keeps these files for old programs: moving charges was removed, and the kernel-memory limit
            // has no effect.
            "memory.move_charge_at_immigrate" if parse::unsigned(text)? != 0 => return Err(Errno::EINVAL),
            "memory.kmem.limit_in_bytes" => return parse::size(text.trim()).map(|_| ()),
            "memory.oom_control" => {
                let disable = parse::unsigned(text)?;
                let table = format!("oom_kill_disable {disable}\nunder_oom 0\noom_kill 0");
                self.store(inode, row.name, table);
                return Ok(());
            }
            _ => {}
        }
        if row.normalise == Normalise::PageDown {
            return self.set_pages(inode, row, text);
        }
        if row.per_device() {
            return self.set_device(inode, row, text);
        }
        let stored = match row.form {
            Form::MaxWord if text.trim() == "max" => "max".to_owned(),
            Form::MaxWord => in_range(knob, row, text.trim())?,
            Form::Word(words) if words.contains(&text.trim()) => text.trim().to_owned(),
            Form::Word(_) => return Err(Errno::EINVAL),
            Form::Words(words) if words.iter().take(2).any(|word| *word == text.trim()) => {
                text.trim().to_owned()
            }
            Form::Words(_) => return Err(Errno::EINVAL),
            Form::DefaultWeight => {
                let number = text.trim();
                let weight = in_range(knob, row, number.strip_prefix("default ").unwrap_or(number).trim())?;
                format!("default {weight}")
            }
            Form::Opaque | Form::Trigger => text.trim().to_owned(),
            _ if row.name.starts_with("cpuset.") && row.range == (0, 1) => {
                u8::from(parse::unsigned(text)? != 0).to_string()
            }
            // cgroup.freeze returns ERANGE where other flags return EINVAL.
            _ if row.name == "cgroup.freeze" => match parse::number(text.trim())? {
                flag @ (0 | 1) => flag.to_string(),
                _ => return Err(Errno::ERANGE),
            },
            _ => in_range(knob, row, text)?,
        };
        // A task must leave the kernel before it can be frozen (kernel/freezer.c).
        let freezing = row.name == "freezer.state" && stored == "FROZEN" && self.is_starving_below(inode);
        if row.form != Form::Trigger {
            self.store(inode, row.name, if freezing { "FREEZING".to_owned() } else { stored });
        }
        if row.name == "freezer.state" {
            self.go_on();
        }
        Ok(())
    }

    fn set_idle(&mut self, inode: u64, knob: &Knob, row: &File, text: &str) -> Answer<()> {
        let flag = in_range(knob, row, text)?;
        let group = self.group(inode)?;
        if self.text(group, row.name) == flag {
            return Ok(());
        }
        let (file, idle, normal) = match self.version(group) {
            Version::V1 => ("cpu.shares", IDLE_SHARES, "1024"),
            Version::V2 => ("cpu.weight", "1", "100"),
        };
        // The earlier weight is lost, whether the flag is set or cleared.
        self.store(inode, file, if flag == "1" { idle } else { normal }.to_owned());
        self.store(inode, row.name, flag);
        Ok(())
    }

    fn set_pages(&mut self, inode: u64, row: &File, text: &str) -> Answer<()> {
        let group = self.group(inode)?;
        if group.parent.is_none() {
            return Err(Errno::EINVAL);
        }
        let (no_limit, shown) = match row.form {
            Form::MinusOne => ("-1", row.range.1.to_string()),
            _ => ("max", "max".to_owned()),
        };
        let bytes = if text.trim() == no_limit { u64::MAX } else { parse::size(text.trim())? };
        let value = row.normalise(&Value::Number(i64::try_from(bytes).unwrap_or(i64::MAX)));
        let (bytes, shown) = match value {
            Value::Number(bytes) => (u64::try_from(bytes).unwrap_or(0), bytes.to_string()),
            _ => (u64::MAX, shown),
        };
        let other = |file| self.text(group, file).parse::<u64>().unwrap_or(u64::MAX);
        let above = |limit: u64| limit == u64::MAX || limit >= row.range.1.unsigned_abs();
        match row.name {
            "memory.limit_in_bytes"
                if !above(other("memory.memsw.limit_in_bytes"))
                    && bytes > other("memory.memsw.limit_in_bytes") =>
            {
                return Err(Errno::EINVAL);
            }
            "memory.memsw.limit_in_bytes" if bytes != u64::MAX && bytes < other("memory.limit_in_bytes") => {
                return Err(Errno::EINVAL);
            }
            "memory.limit_in_bytes" | "memory.memsw.limit_in_bytes" if bytes < self.usage(inode) => {
                return Err(Errno::EBUSY);
            }
            // v2 accepts the limit and OOM-kills processes until the usage fits.
            "memory.max" => self.shrink_usage(inode, bytes),
            _ => {}
        }
        self.store(inode, row.name, shown);
        Ok(())
    }

    fn shrink_usage(&mut self, inode: u64, bytes: u64) {
        let mut over = self.usage(inode).saturating_sub(bytes);
        for at in self.subtree(inode) {
            if let Some(group) = self.groups.get_mut(&at) {
                let gone = over.min(group.usage);
                group.usage -= gone;
                over -= gone;
            }
        }
    }

    fn reclaim(&mut self, inode: u64, file: &str, text: &str) -> Answer<()> {
        if file == "memory.force_empty" {
            return if self.group(inode)?.parent.is_none() { Err(Errno::EINVAL) } else { Ok(()) };
        }
        // The memory that a fake group uses is not reclaimable.
        match parse::size(text.trim())? {
            0 => Ok(()),
            _ => Err(Errno::EAGAIN),
        }
    }

    fn kill(&mut self, inode: u64, text: &str) -> Answer<()> {
        match parse::number(text.trim()) {
            Ok(1) => {}
            Ok(_) => return Err(Errno::ERANGE),
            Err(errno) => return Err(errno),
        }
        for at in self.subtree(inode) {
            for pid in self.members(at) {
                if let Some(process) = self.processes.get(&pid) {
                    process.running.end(Exit::Signal(Signal::KILL.0));
                }
            }
        }
        Ok(())
    }

    /// Writes a device's limits. The kernel uses only the first line of the text, and the write still succeeds.
    fn set_device(&mut self, inode: u64, row: &File, text: &str) -> Answer<()> {
        let text = text.trim();
        let (device, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let device: Device = device.parse().map_err(|_| Errno::EINVAL)?;
        if rest.trim().is_empty() && row.form == Form::DeviceNumber {
            return Err(Errno::EINVAL);
        }
        if !self.kernel.devices.contains(&device) {
            return Err(Errno::ENODEV);
        }
        let group = self.group(inode)?;
        let old = self.text(group, row.name);
        let same = |line: &&str| line.split(' ').next() == Some(&device.to_string());
        let line = match row.form {
            Form::DeviceNumber => one_limit(row.name, rest)?.map(|limit| limit.to_string()),
            Form::DeviceFlag(_) => Some(cost_line(old.lines().find(same).unwrap_or_default(), rest)?),
            _ => four_limits(old.lines().find(same).unwrap_or_default(), rest)?,
        };
        let mut lines: Vec<String> = old.lines().filter(|line| !same(line)).map(str::to_owned).collect();
        // The newest line comes first.
        lines.splice(0..0, line.map(|line| format!("{device} {line}")));
        self.store(inode, row.name, lines.join("\n"));
        Ok(())
    }

    /// Writes `cgroup.subtree_control` of a v2 group: enables or disables controllers for its children.
    fn give(&mut self, inode: u64, text: &str) -> Answer<()> {
        let (mut on, mut off) = (BTreeSet::new(), BTreeSet::new());
        for word in text.split_whitespace() {
            let name = word.get(1..).unwrap_or_default();
            // Kernels have controllers that the table does not have.
            let known = Controller::from_name(name, Version::V2)
                .filter(|one| !matches!(one, Controller::Cpuacct | Controller::Freezer));
            match (word.as_bytes().first(), known) {
                (Some(b'+'), Some(controller)) => {
                    off.remove(&controller);
                    on.insert(controller);
                }
                (Some(b'-'), Some(controller)) => {
                    on.remove(&controller);
                    off.insert(controller);
                }
                _ => return Err(Errno::EINVAL),
            }
        }
        let group = self.group(inode)?;
        let available = self.controllers(group);
        on.retain(|controller| !group.enabled.contains(controller));
        off.retain(|controller| group.enabled.contains(controller));
        if on.iter().any(|controller| !available.contains(controller)) {
            return Err(Errno::ENOENT);
        }
        let children: Vec<u64> = group.children.values().copied().collect();
        let used = |child: &u64| self.groups.get(child).is_some_and(|child| !child.enabled.is_disjoint(&off));
        if children.iter().any(used) {
            return Err(Errno::EBUSY);
        }
        if !on.is_empty() && group.parent.is_some() && !self.members(inode).is_empty() {
            let all: BTreeSet<Controller> = group.enabled.union(&on).copied().collect();
            if !self.takes_both(inode, &all) {
                return Err(Errno::EBUSY);
            }
        }
        let group = self.group_mut(inode)?;
        group.enabled.extend(on.iter().copied());
        group.enabled.retain(|controller| !off.contains(controller));
        let on: Vec<Controller> = on.into_iter().collect();
        for child in children {
            self.populate(child, &on);
            self.take_away(child, &off);
        }
        Ok(())
    }

    fn take_away(&mut self, inode: u64, off: &BTreeSet<Controller>) {
        let Some(group) = self.groups.get_mut(&inode) else { return };
        let belongs =
            |name: &str| off.iter().any(|controller| name.starts_with(&format!("{}.", controller.v2_name())));
        // Pressure files and cpu.stat do not need a controller.
        group.files.retain(|name, _| name.ends_with(".pressure") || name == "cpu.stat" || !belongs(name));
    }
}

/// Returns the v1 limit of a device after the write; `None` if its line is removed.
fn one_limit(file: &str, rest: &str) -> Answer<Option<u64>> {
    let limit = parse::leading(rest.trim()).ok_or(Errno::EINVAL)?;
    if limit == 0 || limit == u64::MAX {
        return Ok(None);
    }
    // IOPS are 32 bits wide, and the kernel truncates silently.
    let narrow = u64::from(u32::MAX);
    Ok(Some(limit)
        .map(|limit| if file.contains("iops") { limit & narrow } else { limit })
        .filter(|limit| !file.contains("iops") || *limit != narrow))
}

/// Applies `rest`, the text after the device, to the device's io.cost line `old`. Keys that are not named keep their
/// values.
fn cost_line(old: &str, rest: &str) -> Answer<String> {
    let mut enable = if old.contains("enable=1") { "1" } else { "0" };
    for word in rest.split_whitespace() {
        match word.split_once('=') {
            Some(("enable", "0")) => enable = "0",
            Some(("enable", "1")) => enable = "1",
            Some(("ctrl" | "rpct" | "rlat" | "wpct" | "wlat" | "min" | "max", _)) => {}
            _ => return Err(Errno::EINVAL),
        }
    }
    Ok(format!("enable={enable} ctrl=auto rpct=0.00 rlat=250000 wpct=0.00 wlat=250000 min=1.00 max=10000.00"))
}

/// Applies `rest`, the text after the device, to the device's io.max line `old`. Keys that are not named keep their
/// values. Returns `None` if no limit is left.
fn four_limits(old: &str, rest: &str) -> Answer<Option<String>> {
    const KEYS: [&str; 4] = ["rbps", "wbps", "riops", "wiops"];
    let mut limits = KEYS.map(|key| {
        let prefix = format!("{key}=");
        old.split(' ').find_map(|word| word.strip_prefix(&prefix)).unwrap_or("max").to_owned()
    });
    for word in rest.split_whitespace() {
        let (key, value) = word.split_once('=').ok_or(Errno::EINVAL)?;
        let value = match value {
            "max" => "max".to_owned(),
            number => match parse::leading(number).ok_or(Errno::EINVAL)? {
                0 => return Err(Errno::ERANGE),
                u64::MAX => "max".to_owned(),
                limit if key.ends_with("iops") && limit >= u64::from(u32::MAX) => "max".to_owned(),
                limit => limit.to_string(),
            },
        };
        let index = KEYS.iter().position(|known| *known == key).ok_or(Errno::EINVAL)?;
        limits[index] = value;
    }
    if limits.iter().all(|limit| limit == "max") {
        return Ok(None);
    }
    let words: Vec<String> = KEYS.iter().zip(limits).map(|(key, limit)| format!("{key}={limit}")).collect();
    Ok(Some(words.join(" ")))
}

/// Returns the number as the kernel stores it: clamped to the row's range, or refused with the row's error number.
fn in_range(knob: &Knob, row: &File, text: &str) -> Answer<String> {
    let number = match row.range.0 {
        0.. => i64::try_from(parse::unsigned(text)?).unwrap_or(i64::MAX),
        _ => parse::number(text)?,
    };
    let value = Value::Number(number);
    if row.accepts(&value) {
        return Ok(row.normalise(&value).to_string());
    }
    let says_range = knob.meaning(Errno::ERANGE).is_some() || row.name == "cpu.weight.nice";
    Err(if says_range { Errno::ERANGE } else { Errno::EINVAL })
}
