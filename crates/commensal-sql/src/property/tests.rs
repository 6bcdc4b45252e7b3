//! Tests: both sets of names lead to the same group of commensal, and back.

use super::*;
use commensal_core::group::{GroupName, GroupSpec};
use commensal_core::limit::{CPU_MAX, CPU_WEIGHT, MEMORY_MAX};
use commensal_core::units::{Bytes, CpuAmount, MemoryAmount, Ppm, Weight};

fn properties(pairs: &[(&str, &str)]) -> GroupProperties {
    let given = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    GroupProperties::new(&given).unwrap_or_else(|error| panic!("{pairs:?}: {error}"))
}

fn spec(properties: &GroupProperties, base: Ppm) -> GroupSpec {
    properties.spec(GroupName::new("g").unwrap(), base)
}

#[test]
fn both_vocabularies_mean_the_same() {
    let old = properties(&[
        ("class", "offline"),
        ("cpu_hard_limit", "10%"),
        ("memory_limit", "20%"),
        ("enable_memory_overcommit", "false"),
    ]);
    let new = properties(&[("class", "offline"), ("max_cpu_percent", "10"), ("max_memory_percent", "20%")]);
    assert_eq!(spec(&old, MEMORY_BASE), spec(&new, MEMORY_BASE));
    assert_eq!(spec(&new, MEMORY_BASE).limits.get(MEMORY_MAX), Some(MemoryAmount::OfMachine(Ppm(180_000))));
    // `memory_limit` is soft unless specified otherwise; `max_memory_percent` is hard unless specified otherwise.
    assert!(properties(&[("memory_limit", "20%")]).overcommits());
    assert!(!new.overcommits());
    assert!(properties(&[("max_memory_percent", "20%"), ("enable_memory_overcommit", "true")]).overcommits());
    assert_eq!(
        properties(&[("tag", "T")]).compute_group,
        properties(&[("compute_group", "t")]).compute_group
    );
    let given = |name: &str, value: &str| Properties::from([(name.to_owned(), value.to_owned())]);
    let replaced = old.altered(&given("max_cpu_percent", "30")).unwrap();
    assert_eq!(
        replaced.max_cpu,
        Some(Limit { amount: CpuAmount::OfMachine(Ppm(300_000)), named: Named::New })
    );
    assert_eq!(replaced.max_memory, old.max_memory);
}

#[test]
fn an_online_group_has_no_quota() {
    let online =
        properties(&[("cpu_hard_limit", "10%"), ("cpu_share", "2048"), ("max_memory_percent", "10%")]);
    assert_eq!(spec(&online, MEMORY_BASE).limits.get(CPU_MAX), None);
    assert_eq!(online.only_sql().cpu_max.as_deref(), Some("10 %"));
    assert_eq!(spec(&online, MEMORY_BASE).limits.get(CPU_WEIGHT), Weight::new(200));
    let offline = online.altered(&Properties::from([("class".to_owned(), "offline".to_owned())])).unwrap();
    assert_eq!(spec(&offline, MEMORY_BASE).limits.get(CPU_MAX), Some(CpuAmount::OfMachine(Ppm(100_000))));
    assert_eq!(offline.only_sql().cpu_max, None);
}

#[test]
fn weights() {
    for (pairs, want) in [
        (vec![], None),
        (vec![("cpu_share", "1024")], Weight::new(100)),
        (vec![("cpu_share", "1")], Weight::new(1)),
        (vec![("cpu_share", "2000000")], Weight::new(10_000)),
        (vec![("min_cpu_percent", "1")], Weight::new(100)),
        (vec![("min_cpu_percent", "0.001")], Weight::new(1)),
        (vec![("min_cpu_percent", "100")], Weight::new(10_000)),
        (vec![("min_cpu_percent", "20"), ("cpu_share", "1024")], Weight::new(2_000)),
    ] {
        assert_eq!(properties(&pairs).weight(), want, "{pairs:?}");
    }
    // A weight edited in groups.d is used, and it stays the same when it is read again.
    let written = properties(&[("min_cpu_percent", "20")]);
    for weight in [1, 7, 100, 999, 10_000] {
        let mut by_hand = spec(&written, MEMORY_BASE);
        by_hand.limits.set(CPU_WEIGHT, Weight::new(weight));
        let read = GroupProperties::from_parts(&by_hand, &written.only_sql(), MEMORY_BASE);
        assert_eq!(read.weight(), Weight::new(weight));
        let again = GroupProperties::from_parts(&spec(&read, MEMORY_BASE), &read.only_sql(), MEMORY_BASE);
        assert_eq!(again, read);
    }
}

#[test]
fn the_base_is_an_argument() {
    let group = properties(&[("max_memory_percent", "50%")]);
    for (base, want) in [(MEMORY_BASE, 450_000), (Ppm(500_000), 250_000), (WHOLE, 500_000)] {
        let spec = spec(&group, base);
        assert_eq!(spec.limits.get(MEMORY_MAX), Some(MemoryAmount::OfMachine(Ppm(want))));
        assert_eq!(GroupProperties::from_parts(&spec, &group.only_sql(), base), group);
    }
}

#[test]
fn limits_on_a_machine() {
    let machine = Bytes(1_000_000_000);
    let group = properties(&[
        ("max_memory_percent", "50%"),
        ("min_memory_percent", "10"),
        ("memory_low_watermark", "20"),
    ]);
    assert_eq!(group.memory_limit(machine, MEMORY_BASE), Some(Bytes(450_000_000)));
    assert_eq!(group.watermarks(), (20, 85));
    let soft = properties(&[("memory_limit", "1 MiB")]);
    assert_eq!(soft.memory_limit(machine, MEMORY_BASE), Some(Bytes(1 << 20)));
    assert_eq!(properties(&[]).memory_limit(machine, MEMORY_BASE), None);
}

#[test]
fn queues_that_groups_d_cannot_hold_stay_with_sql() {
    for (pairs, common) in [
        (vec![("max_concurrency", "4")], true),
        (vec![("max_concurrency", "4"), ("max_queue_size", "2147483647")], true),
        (vec![("max_concurrency", "1"), ("queue_timeout", "500")], true),
        (vec![("max_concurrency", "0"), ("max_queue_size", "1"), ("queue_timeout", "500")], false),
        (vec![("max_concurrency", "4"), ("max_queue_size", "2000000")], false),
        (vec![("max_queue_size", "3")], false),
    ] {
        let group = properties(&pairs);
        let spec = spec(&group, MEMORY_BASE);
        assert_eq!((spec.queue.is_some(), group.only_sql().queue.is_some()), (common, !common), "{pairs:?}");
        assert_eq!(GroupProperties::from_parts(&spec, &group.only_sql(), MEMORY_BASE), group, "{pairs:?}");
    }
    let none = properties(&[]);
    assert_eq!((spec(&none, MEMORY_BASE).queue, none.only_sql()), (None, OnlySql::default()));
}

#[test]
fn bytes_are_written_exactly() {
    for (bytes, want) in [
        (0, "0 B"),
        (1, "1 B"),
        (1000, "1000 B"),
        (1 << 10, "1 KiB"),
        (104_857_600, "100 MiB"),
        ((1 << 30) + 1, "1073741825 B"),
        (3 << 40, "3 TiB"),
    ] {
        assert_eq!(exact(bytes), want);
        assert_eq!(want.parse::<Bytes>().unwrap(), Bytes(bytes));
    }
}
