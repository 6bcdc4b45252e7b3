//! Limits the disk I/O of offline groups while online groups wait for the disks.

use super::{Controllers, Decided, Observation, shown, written};
use commensal_core::control::Explanation;
use commensal_core::control::io::{DiskDecision, IoInput, Rates};
use commensal_core::control::suppress::{Part, divide};
use commensal_core::desired::DesiredGroup;
use commensal_core::group::Class;
use commensal_core::knob::KnobId;
use commensal_core::limit::{IO_READ, IO_WEIGHT, IO_WRITE, Limit, LimitSet};
use commensal_core::topology::{Device, Disk};
use commensal_core::units::{BytesPerS, Weight};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How long after its last request (ms) online work still counts as using a disk, because services write their logs
/// only from time to time.
const ONLINE_DISK_MS: u64 = 60_000;

impl Controllers {
    pub(super) fn disks(&mut self, seen: &Observation<'_>, decided: &mut Decided) {
        if !seen.settings.io {
            return;
        }
        let online = self.online_disks(seen);
        let offline: BTreeMap<Device, Rates> = seen
            .machine
            .disks
            .iter()
            .map(|disk| (disk.device, sum(seen, Class::Offline, disk.device)))
            .collect();
        let pressure = seen.groups(Class::Online).filter_map(|group| seen.rates(group)?.pressure_pct[2]);
        let pressure_pct = pressure.reduce(f64::max);
        // Once pressure was readable, a missing value counts as a failed reading.
        self.io_measurable |= pressure_pct.is_some();
        let input = IoInput {
            measurable: self.io_measurable,
            pressure_pct,
            offline: &offline,
            online: online.as_ref(),
            shared: seen.in_force.shared,
        };
        let mut by_weight = BTreeSet::new();
        for (device, decision) in self.io.step(seen.now_ms, &input) {
            if decision.weights {
                by_weight.insert(device);
            }
            let name = seen.machine.disks.iter().find(|disk| disk.device == device);
            let name = name.map_or_else(|| device.to_string(), |disk| disk.name.clone());
            let rate = |rate: Option<BytesPerS>, what: &str| rate.map(|rate| format!("{what} {rate}"));
            let rates = [rate(decision.read, "reading"), rate(decision.write, "writing")];
            let rates: Vec<String> = rates.into_iter().flatten().collect();
            let value = (!rates.is_empty()).then(|| rates.join(", "));
            decided.shown.push(shown(&format!("disk {name}"), None, value, &decision.why));
            divided(seen, device, &decision, decided);
        }
        least(seen, &by_weight, decided);
    }

    /// The disks that online groups use; `None` if unknown.
    fn online_disks(&mut self, seen: &Observation<'_>) -> Option<BTreeSet<Device>> {
        let mut known = true;
        for group in seen.groups(Class::Online).filter(|group| !group.members.is_empty()) {
            let disks = seen.rates(group).and_then(|rates| rates.disks.as_ref());
            known &= disks.is_some();
            let moved =
                |rates: &Rates| [rates.read, rates.write].into_iter().flatten().any(|rate| rate > 0.0);
            for (device, _) in disks.into_iter().flatten().filter(|(_, rates)| moved(rates)) {
                self.online_disks.insert(*device, seen.now_ms);
            }
        }
        self.online_disks.retain(|_, last| seen.now_ms.saturating_sub(*last) < ONLINE_DISK_MS);
        known.then(|| self.online_disks.keys().copied().collect())
    }
}

/// Total rates of a class's groups on a disk. A group's counters do not list a disk that the group has not used yet.
fn sum(seen: &Observation<'_>, class: Class, device: Device) -> Rates {
    let plus = |a: Option<f64>, b: Option<f64>| Some(a? + b?);
    let none = Rates { read: Some(0.0), write: Some(0.0) };
    seen.groups(class).filter(|group| !group.members.is_empty()).fold(none, |sum, group| {
        let rates = rates(seen, group, device);
        Rates { read: plus(sum.read, rates.read), write: plus(sum.write, rates.write) }
    })
}

fn rates(seen: &Observation<'_>, group: &DesiredGroup, device: Device) -> Rates {
    let disks = seen.rates(group).and_then(|rates| rates.disks.as_ref());
    let untouched = Rates { read: Some(0.0), write: Some(0.0) };
    disks.map_or(Rates::default(), |disks| disks.get(&device).copied().unwrap_or(untouched))
}

/// Divides a disk's rates among the offline groups, and each group's share among its cgroups.
fn divided(seen: &Observation<'_>, device: Device, decision: &DiskDecision, decided: &mut Decided) {
    if decision.read.is_none() && decision.write.is_none() && !decision.lifted {
        return;
    }
    let with_members = seen.with_specs(Class::Offline).filter(|(group, _)| !group.members.is_empty());
    let (groups, specs): (Vec<&DesiredGroup>, Vec<_>) = with_members.unzip();
    let shares = |total: Option<BytesPerS>, used: fn(Rates) -> Option<f64>| {
        let part = |group: &&DesiredGroup| Part {
            weight: group.limits.get(IO_WEIGHT).map_or(100.0, |weight| f64::from(weight.v2())),
            used: used(rates(seen, group, device)),
        };
        let total = total?.0 as f64;
        Some(divide(total, &groups.iter().map(part).collect::<Vec<_>>()))
    };
    let read = shares(decision.read, |rates| rates.read);
    let write = shares(decision.write, |rates| rates.write);
    for (index, group) in groups.iter().enumerate() {
        let cgroups = f64::from(u32::try_from(group.members.len().max(1)).unwrap_or(u32::MAX));
        let each = |shares: &Option<Vec<f64>>| {
            let share = shares.as_ref()?.get(index)?;
            Some(BytesPerS((share / cgroups).max(1.0) as u64))
        };
        let mut limits = LimitSet::<Limit>::default();
        limits.set(IO_READ, each(&read));
        limits.set(IO_WRITE, each(&write));
        let own =
            written(seen, specs[index]).and_then(|mut own| own.on_disk.remove(&device)).unwrap_or_default();
        let total = |limit: Option<BytesPerS>| limit.map(|limit| (limit.0 as f64).max(f64::MIN_POSITIVE));
        let part = |shares: &Option<Vec<f64>>, limit| Some(shares.as_ref()?.get(index)? / total(limit)?);
        let ways = [
            (IO_READ, part(&read, decision.read), &decision.each[0]),
            (IO_WRITE, part(&write, decision.write), &decision.each[1]),
        ];
        for (key, part, why) in ways {
            // The removal of a limit is explained as well, in the tick that removes it.
            if part.is_none() && !decision.lifted {
                continue;
            }
            let why = match part {
                None => why.clone(),
                Some(part) => {
                    let own: Option<BytesPerS> = own.get(key);
                    let share = "max(limit * part / cgroups, 1)";
                    let why = match own {
                        Some(_) => why.clone().then(&format!("rate = min({share}, written)")),
                        None => why.clone().then(&format!("rate = {share}")),
                    };
                    why.with("part", part, "").with("cgroups", cgroups, "").maybe(
                        "written",
                        own.map(|rate| rate.0 as f64),
                        "B/s",
                    )
                }
            };
            let key = format!("{} on {device}", key.key()).into();
            decided.why.insert((group.name.clone(), key), Arc::new(why));
        }
        if limits.is_empty() {
            continue;
        }
        decided.wants.disks.entry(group.name.clone()).or_default().insert(device, limits);
    }
}

/// Gives the smallest weight to offline groups whose disks the kernel divides by weight. A weight wastes no bandwidth,
/// unlike a rate limit.
fn least(seen: &Observation<'_>, by_weight: &BTreeSet<Device>, decided: &mut Decided) {
    let shared = |group: &&DesiredGroup| {
        let disks = &group.limits.disks;
        let all = || seen.machine.disks.iter();
        let named = |disk: &Disk| disks.iter().any(|one| one.device == disk.device);
        let of_group = || all().filter(|disk| disks.is_empty() || named(disk));
        of_group().next().is_some() && of_group().all(|disk| by_weight.contains(&disk.device))
    };
    for group in seen.groups(Class::Offline).filter(shared) {
        let rule = "the smallest weight, because the kernel shares the group's disks by weight";
        let key = |knob| (group.name.clone(), knob);
        let declined = |knob| seen.in_force.declined.contains_key(&key(knob));
        if ![KnobId::IoWeight, KnobId::IoBfqWeight].into_iter().any(declined) {
            let why = Explanation::new(rule, "weight = least").with("least", f64::from(Weight::MIN.v2()), "");
            decided.why.insert((group.name.clone(), "io.weight".into()), Arc::new(why));
        }
        decided.wants.least_disk.insert(group.name.clone());
    }
}
