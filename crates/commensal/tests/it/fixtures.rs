//! `doctor` and `plan` on machines of other kinds: each `fixtures/*.tree` has its golden output in
//! `tests/golden`. `UPDATE=1 cargo test -p commensal --test it fixtures` rewrites them.

use commensal::ledger::Ledger;
use commensal_core::config::parse;
use commensal_core::scheduler::Mode;
use commensal_core::scheduler::protocol::Status;
use commensal_host::fake::FakeHost;
use commensal_reconcile::{Instance, PlanRequest, ReconcileError};
use std::path::Path;

/// The groups file that is the same for all.
const GROUPS: &str = include_str!("../../../../fixtures/groups.toml");

// promises 7, 8
#[test]
fn golden_doctor_and_plan() {
    let update = std::env::var_os("UPDATE").is_some();
    let mut wrong = Vec::new();
    let all = FakeHost::fixtures().unwrap();
    assert!(all.len() >= 5, "{}", all.len());
    for (name, fake) in all {
        let before = fake.snapshot();
        let names = ("commensal", Path::new(crate::support::STATE));
        let doctor = Ledger::look(&mut fake.another(), "commensal-probe", names, None).unwrap().text();
        let (instance, mut host) = (Instance::new(Path::new(crate::support::STATE)), fake.another());
        let survey = instance.survey(&mut host).unwrap();
        let groups = parse("groups.toml", GROUPS).unwrap();
        let plan = match instance.plan(&mut host, &survey, &PlanRequest::all(&groups)) {
            Ok(planned) => planned.plan.describe(&planned.actual),
            Err(ReconcileError::Groups(errors)) => {
                errors.iter().map(|error| format!("error {error}\n")).collect()
            }
            Err(error) => panic!("{name}: {error}"),
        };
        assert_eq!(fake.snapshot(), before, "{name}: looking changed something");
        let got = format!("$ commensal doctor\n{doctor}\n$ commensal plan -c groups.toml\n{plan}");
        let golden = Path::new("tests/golden").join(format!("{name}.txt"));
        let want = std::fs::read_to_string(&golden).unwrap_or_default();
        if got != want && update {
            std::fs::write(&golden, &got).unwrap();
        } else if got != want {
            wrong.push(format!("{}\n--- expected\n{want}--- got\n{got}", golden.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The scheduler is a mechanism while it works; otherwise `doctor` says why it is none.
#[test]
fn doctor_says_what_becomes_of_the_scheduler() {
    let (fake, state) = (FakeHost::v2(4, 8 << 30), Path::new(crate::support::STATE));
    let kernel = Path::new("/sys/kernel/sched_ext");
    fake.set_file(kernel.join("state"), "enabled\n");
    fake.set_file(kernel.join("enable_seq"), "1\n");
    let says = |mode: Mode| {
        fake.serve(state.join("sched.sock"), move |_| {
            let ejected = (mode != Mode::Running).then(|| "runnable task stall".to_owned());
            serde_json::to_string(&Status { ok: true, pid: 1, mode, ejected, ..Status::default() }).ok()
        });
    };
    let doctor =
        || Ledger::look(&mut fake.another(), "commensal-probe", ("commensal", state), None).unwrap().text();
    says(Mode::Running);
    let usable = doctor();
    let yields = "yields to online work here by: sched_ext scheduler, cpu.idle underneath";
    assert!(usable.contains(yields) && usable.contains("sched_ext scheduler      yes"), "{usable}");
    says(Mode::GivenUp);
    let given_up = doctor();
    assert!(given_up.contains("is not loaded again (runnable task stall)"), "{given_up}");
    fake.hang_up(state.join("sched.sock"));
    fake.set_file(kernel.join("state"), "disabled\n");
    let gone = doctor();
    assert!(gone.contains("sched_ext scheduler      not loaded; `commensal sched load` loads it"), "{gone}");
}
