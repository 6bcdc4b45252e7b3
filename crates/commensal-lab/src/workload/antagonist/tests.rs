//! Tests that every antagonist counts work, stops, and stays within its bounds.

use super::*;
use crate::workload::burn::WorkCounter;

fn options(kind: Kind, threads: usize) -> AntagonistOptions {
    AntagonistOptions {
        kind,
        threads,
        // The size is small, because these tests run in parallel.
        size: kind.default_size().map(|_| MIB),
        dir: std::env::temp_dir(),
        duration: Some(Duration::from_millis(200)),
        counter: None,
    }
}

#[test]
fn every_kind_counts_its_work_and_stops() {
    for row in &Kind::TABLE {
        let counter = WorkCounter::new(2).expect("a counter");
        let fd = counter.fd().try_clone_to_owned().expect("a copy");
        let total = run(AntagonistOptions { counter: Some(fd), ..options(row.kind, 2) })
            .unwrap_or_else(|error| panic!("{}: {error:?}", row.name));
        assert!(total > 0, "{} did nothing", row.name);
        assert_eq!(counter.read().expect("a value"), total, "{}", row.name);
    }
}

fn refused(options: AntagonistOptions, expect: &str) {
    let error = run(options).expect_err(expect).to_string();
    assert!(error.contains(expect), "{error}");
}

#[test]
fn memory_and_disk_are_bounded() {
    let sized = |kind, size| AntagonistOptions { size: Some(size), ..options(kind, 2) };
    for kind in [Kind::L2, Kind::L3, Kind::Memory] {
        refused(sized(kind, 1 << 60), "half of the main memory");
        refused(sized(kind, u64::MAX), "half of the main memory");
        refused(sized(kind, 0), "at least 65536 bytes");
    }
    for kind in [Kind::PageCache, Kind::Disk] {
        refused(sized(kind, 1 << 60), "half of the free disk space");
        refused(AntagonistOptions { dir: "/nowhere".into(), ..options(kind, 1) }, "in /nowhere");
    }
    refused(sized(Kind::Fork, MIB), "does not use a size");
    refused(options(Kind::Cpu, 0), "the number of threads must be 1 to 4096");
}

/// A file grows up to its size and no further, even if the size is not a multiple of a write.
#[test]
fn files_stay_within_their_size() {
    for (size, pieces) in [(MIB, 3), (3 * MIB + 77, 9), (100 * KIB, 5)] {
        for make in [storage::churn, storage::sync] {
            let file = storage::nameless(&std::env::temp_dir(), size).expect("a file");
            let watch = file.try_clone().expect("a copy");
            let mut piece = make(file, size);
            for _ in 0..pieces {
                piece().expect("a piece");
            }
            let stat = rustix::fs::fstat(&watch).expect("a size");
            assert_eq!((stat.st_size as u64, stat.st_nlink), (size, 0));
        }
    }
}

#[test]
fn names_lead_to_kinds_and_back() {
    for row in &Kind::TABLE {
        assert_eq!(row.name.parse::<Kind>(), Ok(row.kind));
        assert_eq!((row.kind.to_string().as_str(), row.kind.unit()), (row.name, row.unit));
    }
    assert!("gpu".parse::<Kind>().expect_err("none").contains("cpu, vector, l2, l3, memory, page-cache"));
}

#[test]
fn arms_name_their_antagonist() {
    for row in Kind::TABLE {
        assert_eq!(of_arm(row.name), Some((row.kind, None)));
        assert_eq!(of_arm(&arm_name(row.kind, 3)), Some((row.kind, Some(3))));
    }
    for wrong in ["", "gpu", "cpu:", "cpu:0", "cpu:4097", "cpu:-1", "cpu:2:2"] {
        assert_eq!(of_arm(wrong), None, "{wrong}");
    }
}

mod measure {
    use super::*;
    use std::time::Instant;

    #[test]
    fn every_kind_stops_in_time() {
        for row in &Kind::TABLE {
            let began = Instant::now();
            run(options(row.kind, 2)).unwrap_or_else(|error| panic!("{}: {error:?}", row.name));
            // The limit is generous: on a busy machine the last piece of work may take long.
            assert!(began.elapsed() < Duration::from_secs(20), "{} took {:?}", row.name, began.elapsed());
        }
    }
}
