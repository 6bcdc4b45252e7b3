//! Properties of all plans: a second plan is empty, every prefix is legal, the same input gives the same plan, and undo
//! restores. On FakeHost, which refuses what the kernel refuses.

use crate::support::{applied, journal, planned};
use commensal_core::plan::undo;
use commensal_host::fake::FakeHost;
use commensal_host::{Dir, Host};
use commensal_reconcile::apply;
use proptest::prelude::*;
use std::fmt::Write;
use std::path::Path;

const CPUS: u32 = 4;
const MEMORY: u64 = 16 << 30;

/// A machine with some groups of other programs, and values set in them.
#[derive(Debug, Clone)]
struct World {
    layout: usize,
    comounted: bool,
    /// For each group: whether it has a child, its shares or weight, and its quota in ms, if any.
    batch: Vec<(bool, u16, Option<u16>)>,
    /// Whether a sched_ext scheduler is loaded.
    scheduler: bool,
}

fn world() -> impl Strategy<Value = World> {
    let batch = proptest::collection::vec((any::<bool>(), 2u16..5000, proptest::option::of(2u16..300)), 0..4);
    (0usize..3, any::<bool>(), batch, any::<bool>()).prop_map(|(layout, comounted, batch, scheduler)| World {
        layout,
        comounted,
        batch,
        scheduler,
    })
}

fn build(world: &World) -> FakeHost {
    let fake = match (world.layout, world.comounted) {
        (0, false) => FakeHost::v1(CPUS, MEMORY),
        (0, true) => FakeHost::v1_comounted(CPUS, MEMORY),
        (1, _) => FakeHost::v2(CPUS, MEMORY),
        _ => FakeHost::hybrid(CPUS, MEMORY),
    };
    if world.scheduler {
        crate::scheduler::load(&fake);
    }
    let mut host = fake.another();
    let v2 = world.layout == 1;
    let mounts: Vec<&str> = match (v2, world.layout, world.comounted) {
        (true, _, _) => vec!["/sys/fs/cgroup"],
        (false, 0, true) => vec!["/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/memory"],
        _ => vec!["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids"],
    };
    for mount in mounts {
        let root = host.open(Path::new(mount)).unwrap();
        if v2 {
            host.write(root, "cgroup.subtree_control", "+cpu +cpuset +memory +io +pids").unwrap();
        }
        for (index, (nested, weight, quota)) in world.batch.iter().enumerate() {
            let group = host.mkdir(root, &format!("b{index}")).unwrap();
            tune(&mut host, group, v2, *weight, *quota);
            if *nested {
                if v2 {
                    host.write(group, "cgroup.subtree_control", "+cpu +memory +io +pids").unwrap();
                }
                let inner = host.mkdir(group, "x").unwrap();
                // A child's quota must not exceed its parent's share.
                tune(&mut host, inner, v2, *weight, *quota);
            }
        }
    }
    fake
}

/// Sets the group's values; does nothing in hierarchies without the files.
fn tune(host: &mut FakeHost, group: Dir, v2: bool, weight: u16, quota_ms: Option<u16>) {
    let file = if v2 { "cpu.weight" } else { "cpu.shares" };
    let _ = host.write(group, file, &weight.to_string());
    if let Some(ms) = quota_ms {
        let us = u32::from(ms) * 1_000;
        let _ = if v2 {
            host.write(group, "cpu.max", &us.to_string())
        } else {
            host.write(group, "cpu.cfs_quota_us", &us.to_string())
        };
    }
}

#[derive(Debug, Clone)]
struct Group {
    online: bool,
    weight: Option<u16>,
    percent: Option<u8>,
    burst_ms: Option<u16>,
    cpus: Option<(u32, u32)>,
    memory_mib: Option<u16>,
    read_mib: Option<u16>,
    pids: Option<u16>,
    takeover: bool,
    /// Kind of the group's cgroup. 0: own, 1: `/bN`, 2: `/bN/x`.
    place: u8,
}

fn group() -> impl Strategy<Value = Group> {
    let limits = (
        proptest::option::of(1u16..10_000),
        proptest::option::of(1u8..=100),
        proptest::option::of(1u16..200),
        proptest::option::of((0u32..CPUS, 0u32..CPUS)),
        proptest::option::of(1u16..8_000),
        proptest::option::of(1u16..1_000),
        proptest::option::of(1u16..9_999),
    );
    (any::<bool>(), limits, any::<bool>(), 0u8..3).prop_map(|(online, limits, takeover, place)| {
        let (weight, percent, burst_ms, cpus, memory_mib, read_mib, pids) = limits;
        Group { online, weight, percent, burst_ms, cpus, memory_mib, read_mib, pids, takeover, place }
    })
}

fn text(groups: &[Group]) -> String {
    let mut text = String::new();
    for (index, group) in groups.iter().enumerate() {
        let class = if group.online { "online" } else { "offline" };
        let _ = writeln!(text, "[group.g{index}]\nclass = \"{class}\"\ntakeover = {}", group.takeover);
        let _ = group.weight.map(|weight| writeln!(text, "cpu.weight = {weight}"));
        let _ = group
            .percent
            .filter(|_| !group.online)
            .map(|percent| writeln!(text, "cpu.max = \"{percent} %\""));
        let _ = group
            .burst_ms
            .filter(|_| !group.online && group.percent.is_some())
            .map(|ms| writeln!(text, "cpu.burst = \"{ms} ms\""));
        let _ = group.cpus.map(|(a, b)| writeln!(text, "cpu.set = \"{}-{}\"", a.min(b), a.max(b)));
        let _ = group.memory_mib.map(|mib| writeln!(text, "memory.max = \"{mib} MiB\""));
        let _ = group.read_mib.map(|mib| writeln!(text, "io.read = \"{mib} MiB/s\""));
        let _ = group.pids.map(|pids| writeln!(text, "pids.max = {pids}"));
        match group.place {
            1 => writeln!(text, "match = [{{ cgroup = \"/b{index}\" }}]").unwrap(),
            2 => writeln!(text, "match = [{{ cgroup = \"/b{index}/x\" }}]").unwrap(),
            _ => {}
        }
    }
    text
}

/// Returns the scheduler's orders from commensal.
fn orders(host: &FakeHost) -> std::collections::BTreeMap<String, commensal_core::scheduler::Order> {
    commensal_sensors::scheduler::look(host, Path::new(crate::support::STATE), "commensal").orders.groups
}

/// Asserts that every step was accepted.
macro_rules! outcome_is_whole {
    ($outcome:expr, $plan:expr, $found:expr) => {
        let outcome = &$outcome;
        prop_assert!(
            outcome.failure.is_none(),
            "refused: {:?}\n{}",
            outcome.failure.as_ref().map(|failure| failure.refusal.to_string()),
            $plan.describe(&$found)
        );
    };
}

/// Each property is tested with 96 cases; `PROPTEST_CASES` sets another number (`cargo xtask ci --long` does).
fn settings() -> ProptestConfig {
    let cases =
        if std::env::var_os("PROPTEST_CASES").is_some() { ProptestConfig::default().cases } else { 96 };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(settings())]

    // promise 1
    #[test]
    fn applying_twice_does_nothing_the_second_time(
        world in world(), groups in proptest::collection::vec(group(), 1..4)
    ) {
        let text = text(&groups);
        let fake = build(&world);
        let mut host = fake.another();
        let (found, plan, outcome) = applied(&mut host, &text);
        outcome_is_whole!(outcome, plan, found);
        prop_assert_eq!(outcome.done, plan.steps.len());
        let (again, second) = planned(&mut host, &text).unwrap();
        prop_assert!(second.is_empty(), "after\n{}\nagain\n{}", plan.describe(&found), second.describe(&again));
        prop_assert_eq!(second.unmet, plan.unmet);
    }

    // promise 2
    #[test]
    fn every_prefix_is_legal_and_can_be_finished(
        world in world(), groups in proptest::collection::vec(group(), 1..4), cut in 0.0f64..1.0
    ) {
        let text = text(&groups);
        let fake = build(&world);
        let mut host = fake.another();
        let (found, plan) = planned(&mut host, &text).unwrap();
        let end = (cut * plan.steps.len() as f64) as usize;
        let mut journal = journal(&mut host).unwrap();
        let outcome = apply(&mut host, &plan.steps[..end], &found, &mut journal);
        outcome_is_whole!(outcome, plan, found);
        let (found, rest, outcome) = applied(&mut host, &text);
        outcome_is_whole!(outcome, rest, found);
        let (_, none) = planned(&mut host, &text).unwrap();
        prop_assert!(none.is_empty());
    }

    // promise 2
    #[test]
    fn the_same_input_gives_the_same_plan(world in world(), groups in proptest::collection::vec(group(), 1..4)) {
        let text = text(&groups);
        let one = planned(&mut build(&world).another(), &text).unwrap().1;
        let two = planned(&mut build(&world).another(), &text).unwrap().1;
        prop_assert_eq!(one, two);
    }

    // promise 10
    #[test]
    fn undo_restores(world in world(), groups in proptest::collection::vec(group(), 1..4)) {
        let text = text(&groups);
        let fake = build(&world);
        let mut host = fake.another();
        let before = fake.snapshot();
        let (found, plan, outcome) = applied(&mut host, &text);
        outcome_is_whole!(outcome, plan, found);
        // Plans against the current machine, with the inodes of the groups that were created.
        let (now, _) = planned(&mut host, &text).unwrap();
        let mut journal = journal(&mut host).unwrap();
        let back = apply(&mut host, &undo(&plan.steps), &now, &mut journal);
        prop_assert!(back.failure.is_none(), "{:?}", back.failure.map(|failure| failure.refusal.to_string()));
        prop_assert_eq!(fake.snapshot(), before);
        prop_assert_eq!(orders(&host), Default::default());
    }

    /// A second, different groups file: settings that it no longer requests are restored, and it converges as well.
    // promise 1
    #[test]
    fn changing_the_file_converges(
        world in world(),
        first in proptest::collection::vec(group(), 1..4),
        second in proptest::collection::vec(group(), 1..4)
    ) {
        let fake = build(&world);
        let before = fake.snapshot();
        let mut host = fake.another();
        let (found, plan, outcome) = applied(&mut host, &text(&first));
        outcome_is_whole!(outcome, plan, found);
        let (found, plan, outcome) = applied(&mut host, &text(&second));
        outcome_is_whole!(outcome, plan, found);
        let (again, rest) = planned(&mut host, &text(&second)).unwrap();
        prop_assert!(rest.is_empty(), "{}\nagain\n{}", plan.describe(&found), rest.describe(&again));
        let restored = crate::support::restored(&mut host);
        prop_assert!(restored.failed.is_empty() && restored.left.is_empty(), "{restored:?}");
        prop_assert_eq!(fake.snapshot(), before);
        prop_assert_eq!(orders(&host), Default::default());
    }
}
