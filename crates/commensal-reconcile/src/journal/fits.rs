//! Checks whether commensal can have written a record on this machine. A right checksum does not prove that, because
//! any program can compute it, and a commensal process of root would write the values of a forged record.

use super::{Record, Target};
use commensal_core::cpuset::CpuSet;
use commensal_core::knob::{Controller, File, Form, KnobId, KnobStatus, Version};
use commensal_core::process::{SCHED_EXT, SCHED_NORMAL, SCHED_PLAIN};
use commensal_core::topology::Device;
use commensal_core::vendor::Switch;
use std::collections::BTreeMap;

/// Mounted cgroup hierarchies, by mount point; see [`commensal_sensors::mounts::kinds`].
type Mounts = BTreeMap<String, Option<Version>>;

/// Returns why commensal cannot have written this record; `None` if it can have. The caller checks separately whether
/// the cgroup or process is still the same, by inode or start time.
pub(super) fn objection(record: &Record, mounts: &Mounts) -> Option<String> {
    let targets = |groups: &[Target]| groups.iter().find_map(place);
    match record {
        Record::Owner(_) | Record::Scheduling | Record::Moved { .. } => None,
        Record::Creating { mount, path } => made(mount, path),
        Record::Created(group) => made(&group.mount, &group.path),
        Record::Ordering { mount, path, .. } => cgroup(mount, path),
        Record::Cookied(group) | Record::Recreating(group) => place(group),
        Record::Enabling { group, controller } => place(group).or_else(|| {
            let known = Controller::from_name(controller, Version::V2).is_some();
            (!known).then(|| format!("commensal never enables a controller {controller:?}"))
        }),
        Record::Switching { switch, value } => match Switch::from_name(switch) {
            None => Some(format!("commensal never changes a switch {switch:?}")),
            Some(_) if !["0", "1"].contains(&value.trim()) => Some(format!("{switch} cannot be {value:?}")),
            Some(_) => None,
        },
        Record::Affinity { cpus, .. } => {
            let fits = cpus.parse::<CpuSet>().is_ok_and(|cpus| !cpus.is_empty());
            (!fits).then(|| format!("{cpus:?} is not a list of CPUs"))
        }
        Record::Policy { policy, .. } => {
            let fits = [SCHED_NORMAL, SCHED_EXT].contains(policy) || SCHED_PLAIN.contains(policy);
            (!fits).then(|| format!("commensal never replaces scheduling policy {policy} of a thread"))
        }
        Record::Lifting { group, to } => place(group)
            .or_else(|| cgroup(&group.mount, to))
            .or_else(|| (!group.lifts_to(to)).then(|| format!("{to:?} is not a group for lifted members"))),
        Record::Member { group, scheduling, .. } => place(group)
            .or_else(|| (!scheduling.is_possible()).then(|| format!("no thread has {scheduling}"))),
        Record::Moving { from, to, .. } => targets(from).or_else(|| targets(to)),
        Record::Original { group, knob, file, device, value }
        | Record::Safe { group, knob, file, device, value, .. } => place(group)
            .or_else(|| original(version(&group.mount, mounts), (knob, file), device.as_deref(), value)),
    }
}

fn version(mount: &str, mounts: &Mounts) -> Option<Version> {
    mounts.get(mount).copied().flatten()
}

fn place(group: &Target) -> Option<String> {
    cgroup(&group.mount, &group.path)
}

/// Checks a group created by commensal, which is never a root cgroup.
fn made(mount: &str, path: &str) -> Option<String> {
    if path == "/" {
        return Some("commensal never creates a root cgroup".to_owned());
    }
    cgroup(mount, path)
}

fn cgroup(mount: &str, path: &str) -> Option<String> {
    let is_plain = |path: &str| {
        path == "/"
            || path.strip_prefix('/').is_some_and(|below| {
                below.split('/').all(|name| !matches!(name, "" | "." | "..") && !name.contains('\0'))
            })
    };
    // The mount point is checked when the group is opened: in a container the mounts may differ.
    if !is_plain(mount) {
        return Some(format!("{mount:?} is not a mount point"));
    }
    (!is_plain(path)).then(|| format!("{path:?} is not the path of a cgroup"))
}

/// Checks an original or safe value: the file must belong to the knob, and the value must be a text that commensal
/// writes to restore it (see `Work::original`).
fn original(
    version: Option<Version>,
    (knob, file): (&str, &str),
    device: Option<&str>,
    value: &str,
) -> Option<String> {
    let row = KnobId::from_name(knob).map(KnobId::row).filter(|row| row.status == KnobStatus::Driven);
    let Some(row) = row else { return Some(format!("commensal never writes a setting {knob:?}")) };
    let versions = [Version::V1, Version::V2].into_iter();
    let mut files = versions.filter(|one| version.is_none_or(|here| here == *one));
    let Some(of_row) = files.find_map(|one| row.file(one).filter(|of_row| of_row.name == file)) else {
        return Some(format!("{file:?} is not the file of {knob}"));
    };
    let parsed = device.map(str::parse::<Device>).transpose();
    match parsed {
        Ok(device) if device.is_some() == of_row.per_device() => {
            (!is_written(of_row, device, value)).then(|| format!("{file} cannot have been {value:?}"))
        }
        _ => Some(format!("{device:?} is not a device of {file}")),
    }
}

fn is_written(file: &File, device: Option<Device>, value: &str) -> bool {
    if let Form::Word(words) = file.form
        && !words.contains(&value)
    {
        return false;
    }
    let parsed = file.parse(value, device);
    parsed.and_then(|parsed| file.encode(&parsed, device)).is_ok_and(|text| text == value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_never_written_here() {
        let mounts: Mounts = [
            ("/sys/fs/cgroup/cpu".to_owned(), Some(Version::V1)),
            ("/sys/fs/cgroup/pids".to_owned(), Some(Version::V1)),
            ("/sys/fs/cgroup/blkio".to_owned(), Some(Version::V1)),
            ("/sys/fs/cgroup/unified".to_owned(), Some(Version::V2)),
        ]
        .into();
        let check = |record: &str, want: &str| {
            let record: Record = serde_json::from_str(record).unwrap();
            let said = objection(&record, &mounts).unwrap_or_else(|| "fits".to_owned());
            assert!(said.contains(want), "{record:?}: {said}");
        };
        let group = |mount: &str, path: &str| format!(r#"{{"mount":"{mount}","path":"{path}","inode":7}}"#);
        let original = |mount: &str, knob: &str, file: &str, device: &str, value: &str| {
            let group = group(&format!("/sys/fs/cgroup/{mount}"), "/a");
            format!(
                r#"{{"record":"original","group":{group},"knob":"{knob}","file":"{file}","device":{device},"value":"{value}"}}"#
            )
        };
        check(&original("cpu", "cpu.weight", "cpu.shares", "null", "512"), "fits");
        check(&original("pids", "pids.max", "notify_on_release", "null", "1"), "is not the file of pids.max");
        // The file belongs to the other cgroup version.
        check(&original("cpu", "cpu.weight", "cpu.weight", "null", "100"), "is not the file of cpu.weight");
        check(&original("unified", "cpu.weight", "cpu.weight", "null", "100"), "fits");
        // If the hierarchy is not mounted here, either file is accepted.
        check(&original("gone", "cpu.weight", "cpu.weight", "null", "100"), "fits");
        check(&original("cpu", "cpu.weight", "cpu.shares", "null", "512\\n1024"), "cannot have been");
        check(&original("cpu", "cpu.weight", "cpu.shares", "null", "many"), "cannot have been \"many\"");
        check(&original("cpu", "cpu.weight", "cpu.shares", "\"254:0\"", "512"), "is not a device of");
        check(&original("cpu", "cgroup.kill", "cgroup.kill", "null", "1"), "never writes a setting");
        check(
            &original("unified", "cpuset.cpus.partition", "cpuset.cpus.partition", "null", "best"),
            "cannot",
        );
        check(&original("unified", "cpuset.cpus", "cpuset.cpus", "null", "\\n"), "fits");
        let read = "blkio.throttle.read_bps_device";
        check(&original("blkio", "io.max.rbps", read, "\"254:0\"", "254:0 0"), "fits");
        check(&original("blkio", "io.max.rbps", read, "\"254:0\"", "8:0 1"), "cannot have been");
        check(&original("blkio", "io.max.rbps", read, "null", "254:0 0"), "is not a device");
        let created = |mount: &str, path: &str| {
            format!(r#"{{"record":"created","mount":"{mount}","path":"{path}","inode":7}}"#)
        };
        check(&created("/sys/fs/cgroup/cpu", "/a/b"), "fits");
        check(&created("/sys/fs/cgroup/cpu", "/a/../b"), "is not the path of a cgroup");
        check(&created("/sys/fs/cgroup/cpu", "/a//b"), "is not the path of a cgroup");
        check(&created("/sys/fs/cgroup/cpu", "a"), "is not the path of a cgroup");
        check(&created("/sys/fs/cgroup/cpu", "/"), "commensal never creates a root cgroup");
        check(&created("/sys/fs/cgroup/../../tmp", "/a"), "is not a mount point");
        check(r#"{"record":"switching","switch":"kernel.sysrq","value":"1"}"#, "never changes a switch");
        check(r#"{"record":"switching","switch":"vm.memcg_qos_enable","value":"2"}"#, "cannot be \"2\"");
        check(r#"{"record":"affinity","tid":1,"start_ticks":2,"cpus":"0-1"}"#, "fits");
        check(r#"{"record":"affinity","tid":1,"start_ticks":2,"cpus":""}"#, "is not a list of CPUs");
        check(r#"{"record":"policy","tid":1,"start_ticks":2,"policy":5}"#, "fits");
        check(r#"{"record":"policy","tid":1,"start_ticks":2,"policy":1}"#, "never replaces scheduling");
        let member = |scheduling: &str| {
            let group = group("/sys/fs/cgroup/cpu", "/a");
            format!(
                r#"{{"record":"member","group":{group},"tid":1,"start_ticks":2,"scheduling":{scheduling}}}"#
            )
        };
        check(&member(r#"{"policy":3}"#), "fits");
        check(&member(r#"{"policy":1,"priority":3,"reset_on_fork":true}"#), "fits");
        check(&member(r#"{"policy":6,"deadline":[1,2,3]}"#), "fits");
        check(&member(r#"{"policy":1,"priority":100}"#), "no thread has SCHED_FIFO 100");
        check(&member(r#"{"policy":0,"priority":1}"#), "no thread has SCHED_OTHER");
        check(&member(r#"{"policy":7}"#), "no thread has scheduling policy 7");
        let lifting = |to: &str| {
            let group = group("/sys/fs/cgroup/cpu", "/a/b");
            format!(r#"{{"record":"lifting","group":{group},"to":"{to}"}}"#)
        };
        check(&lifting("/commensal-lifted-7"), "fits");
        check(&lifting("/a/commensal-lifted-7"), "fits");
        check(&lifting("/a/commensal-lifted-8"), "is not a group for lifted members");
        check(&lifting("/c/commensal-lifted-7"), "is not a group for lifted members");
        check(&lifting("/a/b/c/commensal-lifted-7"), "is not a group for lifted members");
        check(&lifting("/web"), "is not a group for lifted members");
        check(&lifting("/a/../commensal-lifted-7"), "is not the path of a cgroup");
        let group = group("/sys/fs/cgroup/unified", "/");
        let enabling =
            |name: &str| format!(r#"{{"record":"enabling","group":{group},"controller":"{name}"}}"#);
        check(&enabling("memory"), "fits");
        check(&enabling("memory -cpu"), "never enables a controller");
    }
}
