//! Checks whether commensal can have written a record on this machine. A right checksum does not prove that, because
//! any program can compute it, and a commensal process of root would write the values of a forged record. The kinds of
//! records (`steps`) use these checks of a cgroup.

use super::Target;
use commensal_core::knob::Version;
use std::collections::BTreeMap;

/// Mounted cgroup hierarchies, by mount point; see [`commensal_sensors::mounts::kinds`].
pub(crate) type Mounts = BTreeMap<String, Option<Version>>;

/// Returns why this cannot be a group in a record.
pub(crate) fn place(group: &Target) -> Option<String> {
    cgroup(&group.mount, &group.path)
}

/// Checks a group created by commensal, which is never a root cgroup.
pub(crate) fn made(mount: &str, path: &str) -> Option<String> {
    if path == "/" {
        return Some("commensal never creates a root cgroup".to_owned());
    }
    cgroup(mount, path)
}

pub(crate) fn cgroup(mount: &str, path: &str) -> Option<String> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Record;

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
            let said = record.kind().objection(&mounts).unwrap_or_else(|| "fits".to_owned());
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
