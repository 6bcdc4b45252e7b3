//! Tests of the trials on fake machines, one for each vendor's kernel model.

use super::{Found, Proof, ProveOptions, Tried, prove};
use commensal_core::vendor::Switch;
use commensal_host::Host;
use commensal_host::fake::{Effect, FakeHost, Trouble, VendorKernel};
use commensal_reconcile::{Instance, restore_own};
use std::path::Path;
use std::time::Duration;

const STATE: &str = "/state";
const PROBE: &str = "commensal-lab-probe";
const MEMORY: u64 = 16 << 30;

fn tried(fake: &FakeHost) -> Result<Proof, crate::LabError> {
    let options = ProveOptions {
        program: Path::new("/usr/bin/commensal"),
        state_dir: STATE.into(),
        prefix: "commensal",
        probe_name: PROBE,
        cgroup_root: None,
        guarded: false,
    };
    let clock = fake.another();
    prove(&mut fake.another(), &options, &mut |time: Duration| clock.run(time))
}

/// Runs all trials, and asserts that they leave nothing behind.
fn proof(fake: &FakeHost) -> Proof {
    let before = fake.snapshot();
    let proof = tried(fake).unwrap();
    assert_eq!(proof.left, [""; 0]);
    assert_eq!(fake.snapshot(), before);
    let running = fake.processes().into_iter().filter(|one| one.spec.is_some() && one.exit.is_none());
    assert_eq!(running.count(), 0);
    proof
}

fn fact<'a>(proof: &'a Proof, part: &str) -> &'a Tried {
    let found = proof.tried.iter().find(|one| one.fact.contains(part));
    found.unwrap_or_else(|| panic!("no fact about {part} in\n{}", proof.text()))
}

fn agrees(proof: &Proof, part: &str) -> f64 {
    match &fact(proof, part).found {
        Found::Agrees(text) => text.trim_end_matches(" %").parse().unwrap_or(f64::NAN),
        other => panic!("{part}: {other:?}"),
    }
}

fn machine(kernel: Option<VendorKernel>) -> FakeHost {
    let fake = FakeHost::v1(4, MEMORY);
    kernel.into_iter().for_each(|kernel| fake.vendor_kernel(kernel));
    fake
}

/// On each model, every fact about that model agrees, and no fact about another model is tested.
#[test]
fn every_model_agrees_with_its_facts() {
    let anolis = VendorKernel::Anolis { switch: false };
    let check = |kernel: Option<VendorKernel>, model: &str, told: &[&str], other: &[&str]| {
        let fake = machine(kernel);
        let proof = proof(&fake);
        let text = proof.text();
        assert_eq!(proof.exit_code(), 0, "{text}");
        assert!(proof.model.contains(model), "{}", proof.model);
        for part in told.iter().chain(&[
            "share a CPU evenly",
            "smallest cpu.weight",
            "(cpu.shares)",
            "a quota of",
            "a frozen process",
        ]) {
            assert!(matches!(fact(&proof, part).found, Found::Agrees(_)), "{part}\n{text}");
        }
        for part in other {
            assert!(!proof.tried.iter().any(|one| one.fact.contains(part)), "{part}\n{text}");
        }
    };
    let levels = [
        "cpu.qos_level -1 beside one at level 0",
        "-1 is final",
        "whose member has set another policy",
        "SCHED_BATCH task",
        "sets another policy keeps it",
        "stays so when it leaves",
        "weight and quota can be written",
        "refuses text",
        "256 beside 1024",
        "handles SIGTERM only once",
        "SIGKILL ends",
        "can be frozen only once",
        "waits in state D",
    ];
    let five = [
        "cpu.qos_level 0 beside one at level 2",
        "cpu.qos_level -2 beside one at level -1",
        "above 0 is final",
    ];
    let ranks = [
        "beside one group at 2: Group",
        "beside two groups",
        "group at 3",
        "a write to cpu.identity succeeds",
    ];
    check(None, "no vendor", &["cpu.idle 1 beside"], &["qos_level", "bvt_warp_ns"]);
    let two = [&levels[..], &["two levels: cpu.qos_level takes"]].concat();
    check(Some(VendorKernel::OPENEULER), "two levels", &two, &["five levels", "bvt_warp_ns"]);
    check(
        Some(VendorKernel::OPENEULER_FIVE),
        "five levels",
        &[&levels[..], &five].concat(),
        &["two levels", "bvt"],
    );
    check(Some(VendorKernel::ANOLIS), "Group Identity", &ranks, &["qos_level"]);
    check(Some(anolis), "Group Identity", &ranks, &["qos_level"]);
    check(Some(VendorKernel::Anolis66), "found cpu.priority", &["cpu.idle 1 beside"], &["bvt_warp_ns"]);
}

/// The share of CPU time that each mechanism leaves to offline work equals the observed one.
#[test]
fn parts_of_the_cpu() {
    let plain = proof(&machine(None));
    assert!((49.0..51.0).contains(&agrees(&plain, "share a CPU evenly")));
    assert!(agrees(&plain, "smallest cpu.weight") < agrees(&plain, "cpu.idle 1") + 0.2);
    let euler = proof(&machine(Some(VendorKernel::OPENEULER_FIVE)));
    assert!(agrees(&euler, "cpu.qos_level -1 beside one at level 0") < 0.1);
    assert!((19.0..21.0).contains(&agrees(&euler, "256 beside 1024")));
    assert!((8.0..10.0).contains(&agrees(&euler, "cpu.qos_level -2 beside one at level -1")));
    let anolis = proof(&machine(Some(VendorKernel::ANOLIS)));
    assert!((49.0..51.0).contains(&agrees(&anolis, "beside one group at 2: Group")));
    assert!(agrees(&anolis, "with the smallest weight") < 0.5);
    assert!(agrees(&anolis, "beside two groups") < 0.1);
}

/// Where no process starves, there is no result about starving processes.
#[test]
fn who_does_not_starve_is_not_told_as_starving() {
    let group = format!("/sys/fs/cgroup/cpu/commensal-prove-{}/offline", std::process::id());
    let fake = machine(Some(VendorKernel::OPENEULER));
    let level = Trouble {
        operation: "write",
        path: format!("{group}/cpu.qos_level"),
        value: Some("-1".to_owned()),
        effect: Effect::Ignored,
        lasts: true,
    };
    fake.trouble(level);
    let proof = proof(&fake);
    for part in ["handles SIGTERM only once", "SIGKILL ends", "can be frozen only once", "waits in state D"] {
        let found = &fact(&proof, part).found;
        assert!(matches!(found, Found::NotTried(why) if why.contains("cpu.qos_level reads 0")), "{found:?}");
    }
}

/// The trial of overload waits as long as this kernel's setting says, unless that is too long.
#[test]
fn the_overload_period_of_this_kernel() {
    let fake = machine(Some(VendorKernel::OPENEULER));
    fake.set_file("/proc/sys/kernel/qos_overload_detect_period_ms", "100000\n");
    let proof = proof(&fake);
    let found = &fact(&proof, "waits in state D").found;
    assert!(matches!(found, Found::NotTried(why) if why == "the overload period is 100 s"), "{found:?}");
}

/// The trials turn on the machine's switch only if this clears no value in another cgroup, and turn it off afterwards.
// promise 4
#[test]
fn the_switch_is_turned_back() {
    let fake = machine(Some(VendorKernel::ANOLIS));
    let switch = Path::new(Switch::GroupIdentity.path());
    proof(&fake);
    assert_eq!(fake.another().read_file(switch).unwrap(), "0\n");
    assert!(fake.mutations().iter().any(|one| one.operation == "set" && one.value == "1"));
    let mut host = fake.another();
    let root = host.open(Path::new("/sys/fs/cgroup/cpu")).unwrap();
    let theirs = host.mkdir(root, "theirs").unwrap();
    host.write(theirs, "cpu.bvt_warp_ns", "-1").unwrap();
    let changes = fake.mutations().len();
    let kept = proof(&fake);
    assert!(
        matches!(&fact(&kept, "beside two groups").found, Found::NotTried(why) if why.contains("/theirs"))
    );
    assert!(!fake.mutations()[changes..].iter().any(|one| one.operation == "set"));
    // Under absolute expulsion, the fact "shares by the weights" does not apply to this kernel, so no trial tests it.
    let strict = machine(Some(VendorKernel::ANOLIS));
    strict.set_file("/sys/kernel/debug/sched_features", "ID_ABSOLUTE_EXPEL\n");
    let strict = proof(&strict);
    assert!(strict.model.contains("absolute expulsion") && strict.exit_code() == 0, "{}", strict.text());
    assert!(!strict.tried.iter().any(|one| one.fact.contains("shares by the weights")));
}

/// In cgroup v2, the trials skip controllers that the root cgroup does not enable, because enabling one would affect
/// other cgroups.
#[test]
fn a_unified_hierarchy() {
    let fake = FakeHost::v2(4, MEMORY);
    let bare = proof(&fake);
    assert!(
        matches!(&fact(&bare, "share a CPU evenly").found, Found::NotTried(why) if why.contains("does not enable cpu"))
    );
    assert_eq!(bare.exit_code(), 0, "freezing needs no controller: {}", bare.text());
    let mut host = fake.another();
    let root = host.open(Path::new("/sys/fs/cgroup")).unwrap();
    host.write(root, "cgroup.subtree_control", "+cpu +cpuset +memory +io +pids").unwrap();
    let whole = proof(&fake);
    assert_eq!(whole.exit_code(), 0, "{}", whole.text());
    for part in
        ["share a CPU evenly", "cpu.idle 1", "memory.high", "io.max.rbps (io.max)", "in a cpuset of one CPU"]
    {
        assert!(matches!(fact(&whole, part).found, Found::Agrees(_)), "{part}\n{}", whole.text());
    }
}

#[test]
fn a_kernel_that_does_something_else_is_told() {
    let fake = machine(None);
    let group = format!("/sys/fs/cgroup/cpu/commensal-prove-{}", std::process::id());
    fake.trouble(Trouble {
        operation: "write",
        path: format!("{group}/cpu.idle"),
        value: Some("1".to_owned()),
        effect: Effect::Ignored,
        lasts: true,
    });
    let proof = proof(&fake);
    assert_eq!(proof.exit_code(), 1);
    let text = proof.text();
    let line =
        text.lines().find(|line| line.starts_with("differs: cpu.idle")).unwrap_or_else(|| panic!("{text}"));
    assert!(
        line.ends_with("expected may be written, 0 -> 1 -> 0, found may be written, 0 -> 0 -> 0"),
        "{line}"
    );
    let json = proof.json();
    assert_eq!(json["differ"], 1);
    let idle = json["facts"].as_array().unwrap().iter().find(|one| one["result"] == "differs").unwrap();
    assert!(idle["source"].as_str().unwrap().starts_with("observed on Linux"), "{idle}");
}

#[test]
fn a_machine_on_which_nothing_can_be_tried() {
    let fake = machine(None);
    fake.read_only(true);
    let proof = proof(&fake);
    assert_eq!(proof.exit_code(), 2, "{}", proof.text());
    assert!(
        proof.tried.iter().all(|one| matches!(&one.found, Found::NotTried(why) if why.contains("read-only")))
    );
    let fake = machine(None);
    let mut other = fake.another();
    other.state_dir(Path::new(STATE)).unwrap();
    let _held = other.state_lock(&Path::new(STATE).join("lab.lock")).unwrap().unwrap();
    assert!(tried(&fake).unwrap_err().to_string().contains("a lab run is using this machine"));
}

/// Trials that are killed after any number of changes leave nothing that `restore` cannot remove.
// promise 4
#[test]
fn killed_at_any_change() {
    let journal = format!("lab-{}", std::process::id());
    for kernel in [VendorKernel::OPENEULER_FIVE, VendorKernel::ANOLIS] {
        let before = machine(Some(kernel)).snapshot();
        let mut n = 0;
        loop {
            let fake = machine(Some(kernel));
            fake.crash_after(n);
            let ended = tried(&fake);
            if !fake.is_crashed() {
                assert!(ended.is_ok() && n > 100, "{n}");
                break;
            }
            let mut after = fake.restart();
            let own = restore_own(&mut after, Path::new(STATE), &journal).unwrap();
            assert!(own.left.is_empty() && own.failed.is_empty(), "killed after {n} changes: {own:?}");
            Instance::new(Path::new(STATE)).restore(&mut after, &[PROBE.to_owned()]).unwrap();
            assert_eq!(after.snapshot(), before, "killed after {n} changes");
            let switch = after.read_file(Path::new(Switch::GroupIdentity.path()));
            assert!(switch.is_err() || switch.unwrap() == "0\n", "killed after {n} changes");
            // The step is a prime number, so that the crashes reach every kind of change.
            n += 7;
        }
    }
}
