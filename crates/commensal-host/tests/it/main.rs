//! The integration tests of this crate: the conformance script on the fake and on the kernel, the fake's faults, and
//! the real host on the running machine.
//!
//! A test that cannot run here prints `skipped: <test>: <reason>`.

#![allow(clippy::unwrap_used, reason = "a test says what failed by failing there")]
#![allow(clippy::disallowed_methods, reason = "tests look at the machine past the door they test")]

mod fake;
mod locks;
mod names;
mod real;
mod script;
mod state;
mod waiting;

use commensal_core::knob::{Form, KnobStatus, TABLE, Version};
use commensal_host::fake::{FakeHost, VendorKernel, driven_files};
use commensal_host::{Host, LinuxHost};
use script::{Run, Section, Tally, sections};
use std::path::Path;

const GIB: u64 = 1 << 30;

fn run<H: Host>(host: &mut H, fake: Option<FakeHost>, wanted: impl Fn(&Section) -> bool) -> Tally {
    let mut run = Run::new(host, fake);
    for section in sections().iter().filter(|section| wanted(section)) {
        run.section(section);
    }
    std::mem::take(&mut run.tally)
}

/// Runs every wanted section of the script on the fake; no row may be skipped, and nothing may be left behind.
fn on_fake(fake: &FakeHost, name: &str, wanted: impl Fn(&Section) -> bool) {
    let before = fake.snapshot();
    let tally = run(&mut fake.another(), Some(fake.another()), wanted);
    println!("{name}: {} rows, {} skipped", tally.ran, tally.skipped);
    assert!(tally.wrong.is_empty(), "{name}:\n{}", tally.wrong.join("\n"));
    assert_eq!(tally.skipped, 0, "{name}");
    assert_eq!(fake.snapshot(), before, "{name} left something behind");
}

// promise 62
#[test]
fn fake_conforms_v1() {
    on_fake(&FakeHost::v1(4, GIB), "v1", |section| section.kind == "v1");
    on_fake(&FakeHost::v1_comounted(2, GIB), "v1, cpu and cpuacct together", |section| section.kind == "v1");
    on_fake(&FakeHost::hybrid(2, GIB), "hybrid", |section| {
        section.kind == "v1" || (section.kind == "v2" && section.controllers.is_empty())
    });
}

// promise 62
#[test]
fn fake_conforms_v2() {
    let fake = FakeHost::v2(4, GIB);
    let bare = |section: &Section| section.kind == "v2" && section.controllers.is_empty();
    on_fake(&fake, "v2", bare);
    let mut host = fake.another();
    let root = host.open(Path::new("/sys/fs/cgroup")).unwrap();
    host.write(root, "cgroup.subtree_control", "+cpu +cpuset +memory +io +pids").unwrap();
    assert_eq!(host.read(root, "cgroup.subtree_control").unwrap(), "cpuset cpu io memory pids\n");
    on_fake(&fake, "v2 with controllers", |section| section.kind == "v2" || section.kind == "v2-exclusive");
}

// promise 62
#[test]
fn fake_conforms_to_vendors() {
    let machine = |make: fn(u32, u64) -> FakeHost, kernel| {
        let fake = make(4, GIB);
        fake.vendor_kernel(kernel);
        fake
    };
    for (kind, fake) in [
        ("v1-openeuler", machine(FakeHost::v1, VendorKernel::OPENEULER)),
        ("v1-openeuler5", machine(FakeHost::v1, VendorKernel::OPENEULER_FIVE)),
        ("v1-anolis", machine(FakeHost::v1_comounted, VendorKernel::ANOLIS)),
        ("v1-priority", machine(FakeHost::v1, VendorKernel::Anolis66)),
    ] {
        on_fake(&fake, kind, |section| section.kind == kind);
    }
    let fake = machine(FakeHost::v2, VendorKernel::ANOLIS);
    let mut host = fake.another();
    let root = host.open(Path::new("/sys/fs/cgroup")).unwrap();
    host.write(root, "cgroup.subtree_control", "+cpu").unwrap();
    on_fake(&fake, "v2-anolis", |section| section.kind == "v2-anolis");
}

// promise 62
#[test]
fn fake_conforms_to_core_scheduling() {
    let fake = FakeHost::v1(4, GIB);
    on_fake(&fake, "no core scheduling", |section| section.kind == "no-core-sched");
    fake.core_scheduling(true);
    on_fake(&fake, "core scheduling", |section| section.kind == "core-sched");
}

// promise 62
#[test]
fn kernel_conforms() {
    let mut host = LinuxHost::new();
    if host.euid() != 0 {
        println!("skipped: kernel_conforms: not root");
        return;
    }
    let tally = run(&mut host, None, |_| true);
    println!("kernel: {} rows ran, {} skipped", tally.ran, tally.skipped);
    assert!(tally.wrong.is_empty(), "{}", tally.wrong.join("\n"));
}

/// Returns the text of the script's rows for one hierarchy version.
fn rows_of(version: Version) -> String {
    let wanted = |section: &&Section| section.kind.starts_with("v1") == (version == Version::V1);
    sections()
        .iter()
        .filter(wanted)
        .flat_map(|section| &section.rows)
        .map(|row| row.operation.clone() + "\n")
        .collect()
}

#[test]
fn every_driven_knob_is_in_the_script() {
    for version in [Version::V1, Version::V2] {
        let rows = rows_of(version);
        for file in driven_files(version) {
            assert!(rows.contains(&format!("/{file} ")), "no {version} row writes {file}");
        }
        // Each key of a file counts separately.
        for knob in TABLE.iter().filter(|knob| knob.status == KnobStatus::Driven) {
            if let Some(Form::DeviceKey(key)) = knob.file(version).map(|file| file.form) {
                assert!(rows.contains(&format!("{key}=")), "no {version} row writes {key}");
            }
        }
    }
}

#[test]
fn the_script_is_long_enough_to_mean_something() {
    let rows: usize = sections().iter().map(|section| section.rows.len()).sum();
    assert!(rows >= 120, "{rows} rows");
}
