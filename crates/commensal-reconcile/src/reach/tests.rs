//! Tests which controllers are listed for which groups, settings and machines.

use super::*;
use crate::{Instance, PlanRequest};
use commensal_core::config::compile;
use commensal_core::reach::text;
use commensal_host::fake::FakeHost;
use std::path::Path;

const GROUPS: &str = "[group.web]\nclass = \"online\"\nmatch = [{ cgroup = \"/web\" }]\n\
    [group.etl]\nclass = \"offline\"\nmatch = [{ cgroup = \"/etl\" }]\n";

fn told(v1: bool, cpus: u32, groups: &str) -> Vec<Reach> {
    let mut host = if v1 { FakeHost::v1(cpus, 8 << 30) } else { FakeHost::v2(cpus, 8 << 30) };
    let mounts = match v1 {
        true => ["cpu", "cpuset", "memory", "blkio", "freezer", "pids"]
            .map(|name| format!("/sys/fs/cgroup/{name}"))
            .into(),
        false => vec!["/sys/fs/cgroup".to_owned()],
    };
    for mount in mounts {
        let root = host.open(Path::new(&mount)).unwrap();
        if !v1 {
            host.write(root, "cgroup.subtree_control", "+cpu +cpuset +memory +io").unwrap();
        }
        for name in ["web", "etl", "shell"] {
            host.mkdir(root, name).unwrap();
        }
    }
    let settings = compile(&vec![("groups.toml".to_owned(), groups.to_owned())]).unwrap();
    let instance = Instance::new(Path::new("/state"));
    let survey = instance.survey(&mut host).unwrap();
    let planned = instance.plan(&mut host, &survey, &PlanRequest::all(&settings.groups)).unwrap();
    reach(&mut host, &planned, &survey.machine, &settings)
}

fn names(told: &[Reach]) -> Vec<(&str, &str)> {
    told.iter().map(|one| (one.controller, one.what.as_str())).collect()
}

/// The plan announces a weight of 10240, as `docker inspect` shows it.
// promise 28
#[test]
fn a_raised_weight_is_told_with_its_rule_and_its_switch() {
    let told = told(true, 4, GROUPS);
    let web = told.iter().find(|one| one.group == "web").unwrap();
    assert_eq!((web.from, web.now, web.to), (1_024.0, Some(10_240.0), Some(102_400.0)));
    let text = text(&told);
    assert!(text.contains("web  cpu.shares     1024 -> 10240 now, up to 102400  # weights: "), "{text}");
    assert!(text.contains("`[agent] weights = false`"), "{text}");
}

// promise 28
#[test]
fn what_is_off_is_not_told() {
    let with = |keys: &str| format!("[agent]\n{keys}\n{GROUPS}");
    let freezes = ("low memory", "freezer.state");
    assert_eq!(names(&told(true, 4, &with("weights = false"))), [freezes]);
    let written = GROUPS.replace("class = \"online\"\n", "class = \"online\"\ncpu.weight = 7\n");
    assert_eq!(names(&told(true, 4, &written)), [freezes]);
    let alone = &GROUPS[..GROUPS.find("[group.etl]").unwrap()];
    assert!(told(true, 4, alone).is_empty());
    assert_eq!(text(&[]), "");
    // With `headroom = "target"` a latency target is necessary.
    assert!(told(true, 4, GROUPS).iter().all(|one| one.controller != "suppress"));
}

// promise 28
#[test]
fn headroom_is_told_as_a_frame_or_as_a_quota_with_its_range() {
    let with = |keys: &str| format!("[agent]\nweights = false\n{keys}\n{GROUPS}");
    let quota = told(true, 4, &with("headroom = \"auto\""));
    let kinds = [("suppress", "cpu.cfs_quota_us"), ("quota period", "cpu.cfs_period_us")];
    assert_eq!(names(&quota)[..2], kinds);
    assert_eq!((quota[0].from, quota[0].to), (0.0, Some(3.2)));
    let frame = told(false, 8, &with("headroom = \"auto\""));
    assert_eq!((names(&frame)[0], frame[0].from, frame[0].to), (("frame", "cpuset.cpus"), 1.0, Some(6.0)));
    let target =
        GROUPS.replace("class = \"online\"\n", "class = \"online\"\ntarget-wakeup-p99 = \"200us\"\n");
    let target = told(true, 4, &target);
    assert_eq!((target[0].controller, target[0].to), ("suppress", Some(4.0)));
    assert!(target[0].rule.contains("misses target-wakeup-p99"), "{}", target[0].rule);
    let limited = with("headroom = \"quota\"")
        .replace("class = \"offline\"\n", "class = \"offline\"\ncpu.max = \"2 CPUs\"\n");
    assert_eq!(told(true, 4, &limited)[0].to, Some(2.0));
}

// promise 28
#[test]
fn disks_are_told_where_pressure_of_groups_can_be_had() {
    let range = |groups: &str| {
        let rows = told(false, 4, groups);
        rows.iter().find(|one| one.what == "io.max").map(|one| (one.from, one.to)).unwrap()
    };
    assert_eq!(range(GROUPS), (1_048_576.0, None));
    let limited = GROUPS.replace("\"/etl\" }]", "\"/etl\" }]\nio.read = \"2 MiB/s\"");
    assert_eq!(range(&limited), (1_048_576.0, Some(2_097_152.0)));
    // Two groups share the floor, and the idle one of them gets a tenth of its half.
    let two = format!("{GROUPS}[group.second]\nclass = \"offline\"\nmatch = [{{ cgroup = \"/shell\" }}]\n");
    assert_eq!(range(&two), (52_428.0, None));
    for (groups, words) in [(GROUPS, "no limit -> down to 1 MiB/s"), (&limited, "2 MiB/s -> down to 1 MiB/s")]
    {
        let text = text(&told(false, 4, groups));
        assert!(text.contains(words), "{text}");
    }
    let disk = |told: &[Reach]| told.iter().filter(|one| one.controller == "disk").count();
    assert_eq!((disk(&told(true, 4, GROUPS)), disk(&told(false, 4, GROUPS))), (0, 2));
    assert_eq!(disk(&told(false, 4, &format!("[agent]\nio = false\n{GROUPS}"))), 0);
}
