//! Tests of the testbed, that is, of the part of a run that creates and changes cgroups, on fake machines.

use super::{Side, Wanted, open};
use crate::isolation::Isolation;
use commensal_core::group::Class;
use commensal_core::scheduler::protocol::{Request, Standing, Status};
use commensal_core::scheduler::{Mode, Orders};
use commensal_host::SpawnSpec;
use commensal_host::fake::{FakeHost, VendorKernel};
use std::path::Path;
use std::sync::{Arc, Mutex};

const STATE: &str = "/state";
const MEMORY: u64 = 16 << 30;

/// On some kernels, a cgroup cannot return to its original level. The lab then recreates the cgroup to switch isolation
/// off.
#[test]
fn the_lab_on_a_kernel_without_a_way_back() {
    let fake = FakeHost::v1(4, MEMORY);
    fake.vendor_kernel(VendorKernel::OPENEULER);
    let before = fake.snapshot();
    let mut host = fake.another();
    let isolations = [Isolation::default()];
    let wanted = Wanted { isolations: &isolations, attached: [None, None], freezes: false };
    let mut site = open(&mut host, STATE.into(), "lab-probe", None, &wanted).unwrap();
    for _ in 0..3 {
        site.isolate(&mut host, 0).unwrap();
        let mut child = site.start(&mut host, Side::Offline, Some(0), SpawnSpec::new("true")).unwrap();
        site.stop(&mut host, Side::Offline, &mut child).unwrap();
        site.release(&mut host).unwrap();
    }
    site.close(&mut host).unwrap();
    assert_eq!(fake.snapshot(), before);
}

/// Creates a fake machine with sched_ext in this state.
fn sched_ext(state: &str, ops: &str) -> FakeHost {
    let fake = FakeHost::v2(4, MEMORY);
    fake.set_file("/sys/kernel/btf/vmlinux", "");
    fake.set_file("/sys/kernel/sched_ext/state", state);
    fake.set_file("/sys/kernel/sched_ext/root/ops", ops);
    fake
}

/// Arms with third-party schedulers: the obstacles that a run reports, and a program that loads no scheduler, which
/// affects only its own block.
#[test]
fn the_lab_with_schedulers_of_others() {
    let of = |text: &str| Isolation::parse(text).unwrap();
    let isolations = [of("scheduler=scx_simple -v"), of("sched_ext"), of("cpu.idle")];
    let wanted = Wanted { isolations: &isolations, attached: [None, None], freezes: false };
    let obstacles = |fake: &FakeHost| {
        let mut host = fake.another();
        let site = open(&mut host, STATE.into(), "lab-probe", None, &wanted).unwrap();
        let found: Vec<String> =
            site.policies.iter().map(|policy| policy.obstacle.clone().unwrap_or_default()).collect();
        site.close(&mut host).unwrap();
        found
    };
    let check = |fake: &FakeHost, expect: [&str; 3]| {
        for (found, part) in obstacles(fake).iter().zip(expect) {
            assert!(found.contains(part) && found.is_empty() == part.is_empty(), "{found:?} lacks {part:?}");
        }
    };
    check(&FakeHost::v2(4, MEMORY), ["CONFIG_SCHED_CLASS_EXT", "CONFIG_SCHED_CLASS_EXT", ""]);
    check(&sched_ext("disabled\n", ""), ["", "not loaded; `commensal sched load` loads it", ""]);
    check(&sched_ext("enabled\n", "lavd"), ["lavd is enabled", "lavd is enabled: unload it", ""]);

    let fake = sched_ext("disabled\n", "");
    let before = fake.snapshot();
    let mut host = fake.another();
    let mut site = open(&mut host, STATE.into(), "lab-probe", None, &wanted).unwrap();
    assert_eq!(site.policies[0].driver, "scheduler scx_simple -v");
    fake.missing_program("scx_simple");
    let inside = fake.snapshot();
    let error = site.isolate(&mut host, 0).unwrap_err().to_string();
    assert!(error.contains("not in force: start scx_simple: ENOENT"), "{error}");
    assert_eq!(fake.snapshot(), inside, "the policy is off");
    fake.set_file("/sys/kernel/sched_ext/state", "enabled\n");
    let error = site.isolate(&mut host, 0).unwrap_err().to_string();
    assert!(error.contains("is enabled, although no scheduler was loaded when the run started"), "{error}");
    site.close(&mut host).unwrap();
    assert_eq!(fake.snapshot(), before);
}

/// Arms on a machine with commensal's own scheduler. For the mechanisms `best` and `sched_ext`, the run sends orders to
/// the scheduler and withdraws them when it switches the policy off; for other mechanisms, the run sends no orders.
#[test]
fn the_lab_orders_the_scheduler_by_arm() {
    let fake = sched_ext("enabled\n", "commensal_0.1");
    let theirs = Orders { owner: "commensal".to_owned(), hold_off_us: 7, ..Orders::default() };
    let before = Standing::default().with(theirs);
    let told = Arc::new(Mutex::new(before.clone()));
    let orders = Arc::clone(&told);
    fake.serve(Path::new(STATE).join("sched.sock"), move |request| {
        let mut orders = orders.lock().unwrap();
        if let Request::Orders(more) = Request::parse(request.lines().next()?).unwrap() {
            *orders = orders.with(more);
        }
        let status = Status { ok: true, mode: Mode::Running, orders: orders.clone(), ..Status::default() };
        serde_json::to_string(&status).ok()
    });
    let isolations = ["sched_ext", "best", "cpu.idle"].map(|text| Isolation::parse(text).unwrap());
    let wanted = Wanted { isolations: &isolations, attached: [None, None], freezes: false };
    let mut host = fake.another();
    let mut site = open(&mut host, STATE.into(), "lab-probe", None, &wanted).unwrap();
    let drivers: Vec<&str> = site.policies.iter().map(|policy| policy.driver.as_str()).collect();
    assert_eq!(drivers, ["sched_ext scheduler", "sched_ext scheduler, cpu.idle underneath", "cpu.idle"]);
    assert!(site.policies.iter().all(|policy| policy.obstacle.is_none()), "{:?}", site.policies);
    for (policy, by_order, files) in [(0, true, 1), (1, true, 2), (2, false, 1)] {
        site.isolate(&mut host, policy).unwrap();
        let of_run: Vec<Orders> = {
            let told = told.lock().unwrap();
            told.0.values().filter(|one| one.owner != "commensal").cloned().collect()
        };
        assert_eq!(of_run.len(), usize::from(by_order), "{of_run:?}");
        let offline =
            of_run.iter().flat_map(|one| one.groups.values()).filter(|order| order.class == Class::Offline);
        // The offline groups in the orders are those of the batch work and of the warm threads.
        assert_eq!(offline.count(), 2 * usize::from(by_order), "{of_run:?}");
        let now = site.policy_now(&mut host, policy, None);
        assert!(now.len() >= files && now.iter().all(|one| one.want == one.read), "{policy}: {now:?}");
        assert!(now.iter().any(|one| one.file == "cpu.idle"), "also underneath: {policy}: {now:?}");
        site.release(&mut host).unwrap();
        assert_eq!(*told.lock().unwrap(), before);
    }
    site.isolate(&mut host, 0).unwrap();
    // The run ends in the middle of a block; closing still removes everything.
    assert_eq!(site.close(&mut host).unwrap(), Vec::<String>::new());
    assert_eq!(*told.lock().unwrap(), before);
}
