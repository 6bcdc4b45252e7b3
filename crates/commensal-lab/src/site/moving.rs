//! The moving frame: a changing set of whole cores on which offline (batch) work may run. While the policy of an arm (a
//! condition of the run) is on, the controller that commensal's agent uses adapts this set to the CPU use of all other
//! work, once per second.

use super::policies::ArmPolicy;
use commensal_core::actual::CgroupPath;
use commensal_core::control::frame::{Frame, FrameInput, Use};
use commensal_core::cpuset::CpuSet;
use commensal_core::knob::{KnobId, Value};
use commensal_core::observe::MachineCpu;
use commensal_core::plan::{Action, Step};
use commensal_core::topology::Topology;
use commensal_host::Host;
use commensal_sensors::machine;
use commensal_sensors::usage::GroupDirs;
use std::time::Instant;

/// A moving frame while its policy is on.
#[derive(Debug)]
pub(super) struct Moving {
    frame: Frame,
    began: Instant,
    /// The last reading: its time (ms), and the CPU times of the machine and of the offline side (us).
    last: Option<(u64, MachineCpu, u64)>,
}

/// Returns the CPU set that a step writes; `None` if the step writes no CPU set.
fn given(step: &Step) -> Option<CpuSet> {
    match &step.action {
        Action::Write { knob: KnobId::CpusetCpus, to: Value::List(cpus), .. } => Some(cpus.clone()),
        _ => None,
    }
}

impl Moving {
    /// Starts the controller with the CPUs that the policy's steps currently contain; `None` if the policy has no
    /// moving frame. `path` is the cgroup of the offline side.
    pub(super) fn begin(policy: &ArmPolicy, path: &CgroupPath) -> Option<Moving> {
        let mut steps = policy.steps.iter().filter(|step| policy.moves && step.place.path == *path);
        let cpus = steps.find_map(given)?;
        Some(Moving { frame: Frame::new(cpus), began: Instant::now(), last: None })
    }

    /// Returns the milliseconds since the controller started.
    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Chooses the CPUs from the CPU use since the last call; `None` if the CPUs stay unchanged. The first call returns
    /// `None`, because there is no earlier reading.
    pub(super) fn step(
        &mut self,
        host: &mut dyn Host,
        now_ms: u64,
        topology: &Topology,
        offline: &GroupDirs,
    ) -> Option<CpuSet> {
        let read = machine::cpu_time(host).zip(offline.cpu_us(host));
        let last =
            std::mem::replace(&mut self.last, read.map(|(machine, offline)| (now_ms, machine, offline)));
        let ((machine, offline), (then, before, offline_before)) = read.zip(last)?;
        let seconds = now_ms.saturating_sub(then).max(1) as f64 / 1e3;
        let cpus = |us: u64| us as f64 / 1e6 / seconds;
        let passed = machine.since(&before);
        let used = Use {
            busy: Some(cpus(passed.busy_us())),
            steal: passed.steal_us.map(cpus),
            offline: Some(cpus(offline.saturating_sub(offline_before))),
            confined: Some(0.0),
        };
        let input = FrameInput { topology, reserved: &CpuSet::new(), used, cap: None, starved: false };
        self.frame.step(now_ms, &input).cpus
    }
}

/// Changes the CPUs of the offline side, whose cgroup is `path`. Returns the steps that write the new CPUs. Also
/// updates `steps`, which switched the policy on, so that undoing them still restores the value from before the policy.
pub(super) fn give(steps: &mut [Step], path: &CgroupPath, cpus: &CpuSet) -> Vec<Step> {
    let mut moves = Vec::new();
    for step in steps.iter_mut().filter(|step| step.place.path == *path) {
        let Action::Write { knob: KnobId::CpusetCpus, to, .. } = &mut step.action else { continue };
        let (old, new) = (to.clone(), Value::List(cpus.clone()));
        if old == new {
            continue;
        }
        *to = new.clone();
        let action = Action::Write { knob: KnobId::CpusetCpus, device: None, from: old, to: new };
        let why = "the frame follows the CPU use of all other work".to_owned();
        moves.push(Step { place: step.place.clone(), action, why });
    }
    moves
}

#[cfg(test)]
mod tests {
    use super::super::{Side, Testbed, Wanted, open};
    use super::*;
    use crate::isolation::Isolation;
    use commensal_host::fake::FakeHost;

    /// Sets the total CPU time that the fake machine has used so far (in hundredths of a second).
    fn busy(fake: &FakeHost, ticks: u64) {
        fake.set_file("/proc/stat", &format!("cpu  {ticks} 0 0 1000 0 0 0 0 0 0\n"));
    }

    // promise 37
    #[test]
    fn the_frame_follows_and_what_was_there_before_comes_back() {
        let fake = FakeHost::v2(8, 8 << 30);
        let mut host = fake.another();
        let isolations = [Isolation::parse("frame").unwrap()];
        let wanted = Wanted { isolations: &isolations, ..Wanted::default() };
        let mut site = open(&mut host, "/state".into(), "probe", None, &wanted).unwrap();
        let file = format!("/sys/fs/cgroup{}", site.path(Side::Offline));
        let mut reader = fake.another();
        let dir = reader.open(std::path::Path::new(&file)).unwrap();
        let mut cpus = || reader.read(dir, "cpuset.cpus").unwrap().trim().parse::<CpuSet>().unwrap().len();
        let before = cpus();
        site.isolate(&mut host, 0).unwrap();
        assert_eq!(cpus(), 1, "its floor");
        let mut at = |site: &mut Testbed, second: u64, ticks: u64| {
            busy(&fake, ticks);
            site.follow_at(&mut host, second * 1_000).unwrap();
        };
        (0..30).for_each(|second| at(&mut site, second, 0));
        let wide = cpus();
        assert!(wide >= 5, "the machine is idle: {wide} of 8");
        // Programs other than the offline work use five CPUs.
        at(&mut site, 30, 500);
        let narrow = cpus();
        assert!(narrow < wide, "at once: {narrow} after {wide}");
        assert!(site.policy_now(&mut host, 0, None).iter().all(|one| one.want == one.read));
        site.release(&mut host).unwrap();
        assert_eq!(cpus(), before);
        assert_eq!(site.close(&mut host).unwrap(), [""; 0]);
    }
}
