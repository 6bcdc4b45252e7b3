//! CPU hard limits so small that the kernel takes them only with a longer period.

use crate::support::{applied, restored};
use commensal_core::units::MicroCpus;
use commensal_host::Host;
use commensal_host::fake::FakeHost;
use std::path::Path;

const MEMORY: u64 = 8 << 30;

/// The quota and the period of a cgroup (us).
fn in_force(fake: &FakeHost, cgroup: &str) -> (u64, u64) {
    let mut host = fake.another();
    let dir = host.open(Path::new(cgroup)).unwrap();
    let text = host.read(dir, "cpu.max").unwrap_or_else(|_| {
        let mut read = |file: &str| host.read(dir, file).unwrap().trim().to_owned();
        format!("{} {}", read("cpu.cfs_quota_us"), read("cpu.cfs_period_us"))
    });
    let (quota, period) = text.trim().split_once(' ').unwrap();
    (quota.parse().unwrap(), period.parse().unwrap())
}

/// For amounts around each border, on each kind of machine, in a cgroup of commensal's own and in others with each
/// period: the group gets what is written, to a thousandth, or the rest is unmet; and all is undone.
// promises 1, 3, 6
#[test]
fn a_small_quota_is_what_is_written_or_unmet() {
    let amounts =
        [1, 500, 999, 1_000, 1_001, 3_000, 5_000, 9_999, 10_000, 10_001, 99_999, 500_000, 2_000_000];
    let machines = || {
        let (v1, v2) = ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup");
        [
            (FakeHost::v1(2, MEMORY), v1),
            (FakeHost::v1_comounted(2, MEMORY), "/sys/fs/cgroup/cpu,cpuacct"),
            (FakeHost::hybrid(2, MEMORY), v1),
            (FakeHost::v2(2, MEMORY), v2),
        ]
    };
    for amount in amounts.map(MicroCpus) {
        for has_us in [None, Some(1_000), Some(10_000), Some(100_000), Some(1_000_000)] {
            for (fake, mount) in machines() {
                let what = format!("{amount} in a cgroup with period {has_us:?} below {mount}");
                let mut host = fake.another();
                let cgroup = match has_us {
                    Some(us) => {
                        let root = host.open(Path::new(mount)).unwrap();
                        let v2 = mount == "/sys/fs/cgroup";
                        if v2 {
                            host.write(root, "cgroup.subtree_control", "+cpu").unwrap();
                        }
                        let dir = host.mkdir(root, "batch").unwrap();
                        let (file, text) = match v2 {
                            true => ("cpu.max", format!("max {us}")),
                            false => ("cpu.cfs_period_us", us.to_string()),
                        };
                        host.write(dir, file, &text).unwrap();
                        format!("{mount}/batch")
                    }
                    None => format!("{mount}/commensal-offline/etl"),
                };
                let before = fake.snapshot();
                let cores = amount.0 as f64 / 1e6;
                let matched = if has_us.is_some() { "match = [{ cgroup = \"/batch\" }]\n" } else { "" };
                let file =
                    format!("[group.etl]\nclass = \"offline\"\ncpu.max = \"{cores} cores\"\n{matched}");
                let (_, plan, outcome) = applied(&mut host, &file);
                assert!(outcome.failure.is_none(), "{what}: {:?}", outcome.failure);
                let (quota, period) = in_force(&fake, &cgroup);
                let gets = quota as f64 / period as f64;
                let unmet: Vec<&str> = plan.unmet.iter().map(|one| one.what.as_str()).collect();
                match amount < MicroCpus::LEAST_QUOTA {
                    true => {
                        assert_eq!(unmet, [format!("cpu.max = {amount}")], "{what}");
                        assert_eq!((quota, period), (1_000, 1_000_000), "{what}");
                    }
                    false => {
                        assert_eq!(unmet, [""; 0], "{what}");
                        assert!(gets <= cores && gets >= cores * 0.999, "{what}: {quota} of {period}");
                    }
                }
                // A period that does is left alone.
                let fits = |us: u64| amount.0 * us / 1_000_000 >= 1_000;
                let usual = has_us.unwrap_or(100_000);
                assert!(!fits(usual) || period == usual, "{what}: {period}");
                assert!(applied(&mut host, &file).1.is_empty(), "{what}: the second time");
                let restored = restored(&mut host);
                assert!(restored.failed.is_empty() && restored.left.is_empty(), "{what}: {restored:?}");
                assert_eq!(fake.snapshot(), before, "{what}");
            }
        }
    }
}
