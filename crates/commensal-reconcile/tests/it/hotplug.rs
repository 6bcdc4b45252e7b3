//! CPUs that go offline and come back, on machines in memory that move tasks as the kernel does.

use crate::support::{STATE, specs};
use commensal_core::cpuset::CpuSet;
use commensal_host::Host;
use commensal_host::fake::FakeHost;
use commensal_reconcile::{Instance, PlanRequest, ReconcileError, Reconciler, Round};
use std::path::Path;

const MEMORY: u64 = 8 << 30;

/// The kinds of machine, each with two CPUs: name, machine, and the cpuset of the group `etl`.
fn machines() -> [(&'static str, FakeHost, &'static str); 4] {
    let (v1, v2) = ("/sys/fs/cgroup/cpuset/commensal-offline/etl", "/sys/fs/cgroup/commensal-offline/etl");
    [
        ("v1", FakeHost::v1(2, MEMORY), v1),
        ("v1, co-mounted", FakeHost::v1_comounted(2, MEMORY), v1),
        ("hybrid", FakeHost::hybrid(2, MEMORY), v1),
        ("v2", FakeHost::v2(2, MEMORY), v2),
    ]
}

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// The CPUs that the cpuset lets its tasks use.
fn effective(fake: &FakeHost, cpuset: &str) -> CpuSet {
    let mut host = fake.another();
    let dir = host.open(Path::new(cpuset)).unwrap();
    let read = ["cpuset.cpus.effective", "cpuset.effective_cpus"].map(|file| host.read(dir, file));
    set(read.into_iter().find_map(Result::ok).unwrap().trim())
}

/// An agent or command that puts a file in force again and again.
struct Runner {
    host: FakeHost,
    reconciler: Reconciler,
    ms: u64,
}

impl Runner {
    fn start(fake: &FakeHost) -> Runner {
        let mut host = fake.another();
        let reconciler = Reconciler::new(Instance::new(Path::new(STATE)), &mut host).unwrap();
        Runner { host, reconciler, ms: 0 }
    }

    /// One tick: surveys again if CPUs have changed, and puts the file in force.
    fn round(&mut self, text: &str) -> Result<Round, ReconcileError> {
        self.ms += 1_000;
        if self.reconciler.cpus_changed(&self.host) && !self.reconciler.refresh_survey(&mut self.host)? {
            self.reconciler.look_again(&mut self.host)?;
        }
        let specs = specs(text);
        self.reconciler.round(&mut self.host, self.ms, &PlanRequest::all(&specs))
    }
}

/// For each set of CPUs, each kind of machine and each moment at which CPU 1 goes offline: only the `cpu.set` that names
/// it is unmet, all else holds, and the set holds again once the CPU is back.
// promise 3
#[test]
fn an_offline_cpu_takes_nothing_from_the_rest_of_the_file() {
    for text in ["0", "1", "0-1"] {
        for under_an_agent in [false, true] {
            for (kind, fake, cpuset) in machines() {
                let what = format!("{kind}, cpu.set = {text}, under an agent: {under_an_agent}");
                let before = fake.snapshot();
                let file = format!(
                    "[group.etl]\nclass = \"offline\"\ncpu.set = \"{text}\"\ncpu.max = \"2 cores\"\n\
                     [group.web]\nclass = \"online\"\nmemory.max = \"1 GiB\"\n"
                );
                let mut runner = Runner::start(&fake);
                if under_an_agent {
                    let round = runner.round(&file).unwrap();
                    assert_eq!((round.planned.plan.unmet, round.problems), (vec![], vec![]), "{what}");
                }
                let (online, wanted) = (set("0"), set(text));
                fake.set_online(1, false);
                let round = runner.round(&file).unwrap();
                let unmet: Vec<String> = round
                    .planned
                    .plan
                    .unmet
                    .iter()
                    .map(|one| format!("{}: {}", one.group, one.what))
                    .collect();
                let want = match wanted.is_subset(&online) {
                    true => vec![],
                    false => vec![format!("etl: cpu.set = {text}")],
                };
                assert_eq!((unmet, round.problems), (want, vec![]), "{what}");
                assert_eq!(effective(&fake, cpuset), online, "{what}");
                let web = fake.snapshot().iter().any(|(path, value)| {
                    path.contains("commensal-online/web/memory.") && value == "1073741824"
                });
                assert!(web, "{what}: another group's limit is not in force");
                assert_eq!(runner.round(&file).unwrap().changes, [], "{what}");
                fake.set_online(1, true);
                let round = runner.round(&file).unwrap();
                assert_eq!((round.planned.plan.unmet, round.problems), (vec![], vec![]), "{what}");
                assert_eq!(effective(&fake, cpuset), wanted, "{what}");
                assert_eq!(runner.round(&file).unwrap().changes, [], "{what}");
                let restored = Instance::new(Path::new(STATE)).restore(&mut fake.another(), &[]).unwrap();
                assert!(restored.failed.is_empty() && restored.left.is_empty(), "{what}: {restored:?}");
                assert_eq!(fake.snapshot(), before, "{what}");
            }
        }
    }
}

/// A CPU that the machine cannot have at all is a mistake of the file, whether or not others are offline.
#[test]
fn a_cpu_that_cannot_exist_is_a_mistake() {
    for offline in [false, true] {
        for (kind, fake, _) in machines() {
            fake.set_online(1, !offline);
            let written = Runner::start(&fake).round("[group.etl]\nclass = \"offline\"\ncpu.set = \"0-2\"\n");
            let Err(ReconcileError::Groups(errors)) = written else { panic!("{kind}: {written:?}") };
            let words = "cpu.set names CPU 2, but this machine's CPUs are 0-1";
            assert!(errors.len() == 1 && errors[0].message.contains(words), "{kind}: {errors:?}");
        }
    }
}
