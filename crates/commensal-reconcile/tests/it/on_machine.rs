//! The engine on the running kernel, in cgroups of its own.

use crate::support::specs;
use commensal_core::desired::DesiredState;
use commensal_core::knob::Controller;
use commensal_host::{Host, LinuxHost};
use commensal_reconcile::{Instance, PlanRequest, Reconciler, restore};
use commensal_sensors::{machine, mounts, survey};
use std::path::PathBuf;

/// This machine, with a state directory and names of the test's own. When it is dropped, everything is put back.
struct Machine {
    dir: tempfile::TempDir,
    prefix: String,
    host: LinuxHost,
    /// Mount point of the cpu controller.
    cpu: PathBuf,
}

impl Machine {
    /// `None` where no cgroups can be made, which it prints.
    fn new(test: &str, name: &str) -> Option<Machine> {
        let mut host = LinuxHost::new();
        let prefix = format!("commensal-test-{}-{name}", std::process::id());
        let found = survey(&mut host, &format!("{prefix}-probe"), None).unwrap();
        if let Some(why) = found.caps.cgroup_obstacle.as_ref().or(found.tenancy.obstacle.as_ref()) {
            println!("skipped: {test}: {why}");
            return None;
        }
        let hierarchies = mounts::hierarchies(&mut host).unwrap();
        let cpu = hierarchies.iter().find(|one| one.controllers.contains(&Controller::Cpu)).unwrap();
        let cpu = PathBuf::from(&cpu.mount);
        let machine = Machine { dir: tempfile::tempdir().unwrap(), prefix, host, cpu };
        Some(machine)
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    fn instance(&mut self) -> Instance {
        let state = self.state();
        self.host.state_dir(&state).unwrap();
        Instance::of_machine(&state, &self.prefix)
    }

    /// The group `etl` of the cpu controller.
    fn etl(&self) -> PathBuf {
        self.cpu.join(format!("{}-offline/etl", self.prefix))
    }

    /// Quota and period of the group `etl` (us).
    fn quota(&self) -> (u64, u64) {
        let read = |file: &str| std::fs::read_to_string(self.etl().join(file));
        let v1 = || ["cpu.cfs_quota_us", "cpu.cfs_period_us"].map(|file| read(file).unwrap()).concat();
        let text = read("cpu.max").unwrap_or_else(|_| v1());
        let mut numbers = text.split_whitespace().map(|number| number.parse().unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap())
    }

    /// Puts everything back.
    fn restored(&mut self) {
        let (state, boot_id) = (self.state(), machine::boot_id(&self.host).unwrap());
        let done = restore(&mut self.host, &state, &boot_id, false).unwrap();
        assert!(done.failed.is_empty() && done.left.is_empty(), "{done:?}");
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let (state, boot_id) = (self.state(), machine::boot_id(&self.host).unwrap_or_default());
        let _ = restore(&mut self.host, &state, &boot_id, false);
    }
}

/// The kernel takes a quota with another period in the planned order, and has its own back at the end.
#[test]
fn a_quota_with_another_period_and_back() {
    let test = "a_quota_with_another_period_and_back";
    let Some(mut machine) = Machine::new(test, "period") else { return };
    let specs = specs("[group.etl]\nclass = \"offline\"\ncpu.max = \"50 %\"\n");
    let mut reconciler = Reconciler::new(machine.instance(), &mut machine.host).unwrap();
    let mut shares = Vec::new();
    for (ms, period) in [(0, None), (100, Some(10_000)), (200, Some(50_000)), (300, None)] {
        let adjust = |desired: &mut DesiredState| desired.groups[0].limits.cpu_period = period;
        let request = PlanRequest { adjust: &adjust, ..PlanRequest::all(&specs) };
        let round = reconciler.round(&mut machine.host, ms, &request).unwrap();
        assert_eq!(round.problems, [""; 0]);
        let (quota, found) = machine.quota();
        assert_eq!(found, u64::from(period.unwrap_or(100_000)));
        shares.push(quota as f64 / found as f64);
    }
    assert!(shares.iter().all(|share| (share - shares[0]).abs() < 1e-3), "{shares:?}");
    machine.restored();
    assert!(!machine.etl().exists());
}

/// The kernel takes a quota below 1 ms of 100 ms with a longer period, and the smallest one where nothing is small enough.
#[test]
fn a_quota_below_a_millisecond_has_a_longer_period() {
    let test = "a_quota_below_a_millisecond_has_a_longer_period";
    let Some(mut machine) = Machine::new(test, "small") else { return };
    let mut reconciler = Reconciler::new(machine.instance(), &mut machine.host).unwrap();
    for (ms, cores, want, unmet) in [
        (0, "0.005", (1_000, 200_000), 0),
        (100, "0.5", (50_000, 100_000), 0),
        (200, "0.001", (1_000, 1_000_000), 0),
        (300, "0.0005", (1_000, 1_000_000), 1),
    ] {
        let specs = specs(&format!("[group.etl]\nclass = \"offline\"\ncpu.max = \"{cores} cores\"\n"));
        let round = reconciler.round(&mut machine.host, ms, &PlanRequest::all(&specs)).unwrap();
        assert_eq!(round.problems, [""; 0], "{cores}");
        assert_eq!((machine.quota(), round.planned.plan.unmet.len()), (want, unmet), "{cores}");
    }
    machine.restored();
}

/// Which number the next process gets depends on all others of the machine.
mod measure {
    use super::*;
    use commensal_core::plan::{Action, Step};
    use commensal_reconcile::apply;
    use commensal_testkit::{cgroups_of, until_some};
    use std::path::Path;
    use std::process::{Child, Command, Stdio};

    /// A process that sleeps; it ends with this value.
    struct Sleeper(Child);

    impl Sleeper {
        /// Starts a copy of `sleep`, and waits until it runs that program.
        fn start(program: &Path) -> Sleeper {
            // A test beside this one may just have forked while the copy of the program was written.
            let child = until_some("nobody writes the program", || {
                let started = Command::new(program).arg("600").stdin(Stdio::null()).spawn();
                match started {
                    Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => None,
                    child => Some(child.unwrap()),
                }
            });
            Sleeper(child)
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// The number of a process that was planned for belongs to another one when the plan is carried out.
    // promise 13
    #[test]
    fn a_number_that_is_reused_moves_nobody() {
        let test = "a_number_that_is_reused_moves_nobody";
        let Some(mut machine) = Machine::new(test, "reuse") else { return };
        let [victim, other] = ["victim", "other"].map(|name| machine.dir.path().join(name));
        for copy in [&victim, &other] {
            std::fs::copy("/bin/sleep", copy).unwrap();
        }
        let home = cgroups_of(std::process::id());
        let gone = Sleeper::start(&victim);
        let pid = gone.0.id();
        let specs = specs(&format!(
            "[group.a]\nclass = \"offline\"\nmatch = [{{ process = {{ exe = \"{}\" }} }}]\n",
            victim.display()
        ));
        let instance = machine.instance();
        let survey = instance.survey(&mut machine.host).unwrap();
        let planned = instance.plan(&mut machine.host, &survey, &PlanRequest::all(&specs)).unwrap();
        let moves = |step: &Step| matches!(&step.action, Action::Move(one) if one.process.pid == pid);
        assert!(planned.plan.steps.iter().any(moves));
        // It ends, and its number is forced upon the next one.
        drop(gone);
        let reused = (0..200).find_map(|_| {
            std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).ok()?;
            Some(Sleeper::start(&other)).filter(|sleeper| sleeper.0.id() == pid)
        });
        let Some(_stranger) = reused else {
            println!("skipped: {test}: the number {pid} could not be had again");
            return;
        };
        let mut journal = instance.open_journal(&mut machine.host).unwrap();
        let outcome = apply(&mut machine.host, &planned.plan.steps, &planned.actual, &mut journal);
        assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
        assert_eq!(cgroups_of(pid), home, "a stranger was moved");
        machine.restored();
        assert_eq!(cgroups_of(pid), home, "a stranger was moved back");
    }
}
