//! The moving frame: while an arm's policy is on, the agent's own controller adjusts the offline side's CPUs to the
//! usage of all other work, once per second.

use super::error::TestbedError;
use super::{Side, Testbed};
use commensal_core::control::frame::{Frame, FrameInput, Use};
use commensal_core::cpuset::CpuSet;
use commensal_core::knob::{KnobId, Value};
use commensal_core::observe::MachineCpu;
use commensal_core::plan::{Action, Step};
use commensal_host::Host;
use commensal_sensors::machine;
use std::time::Instant;

/// An active frame.
#[derive(Debug)]
pub(super) struct Moving {
    policy: usize,
    frame: Frame,
    began: Instant,
    last: Option<(u64, MachineCpu, u64)>,
}

/// The CPUs that a step sets.
fn given(step: &Step) -> Option<CpuSet> {
    match &step.action {
        Action::Write { knob: KnobId::CpusetCpus, to: Value::List(cpus), .. } => Some(cpus.clone()),
        _ => None,
    }
}

impl Testbed {
    /// Starts to move the frame of this policy, if it has one, from its last position.
    pub(super) fn begin_moving(&mut self, policy: usize) {
        self.moving = None;
        if !self.policies[policy].moves {
            return;
        }
        let path = self.path(Side::Offline).clone();
        let steps = &self.policies[policy].steps;
        let in_force = steps.iter().filter(|step| step.place.path == path).find_map(given);
        self.moving = in_force.map(|cpus| Moving {
            policy,
            frame: Frame::new(cpus),
            began: Instant::now(),
            last: None,
        });
    }

    /// Moves the frame of the active policy, if it has one, according to the usage since the last call.
    ///
    /// # Errors
    /// When the kernel refuses a step.
    pub fn follow(&mut self, host: &mut dyn Host) -> Result<(), TestbedError> {
        let Some(mut moving) = self.moving.take() else { return Ok(()) };
        let now_ms = u64::try_from(moving.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let moved = self.moved(host, &mut moving, now_ms);
        self.moving = Some(moving);
        moved
    }

    fn moved(&mut self, host: &mut dyn Host, moving: &mut Moving, now_ms: u64) -> Result<(), TestbedError> {
        let read = machine::cpu_time(host).zip(self.group(Side::Offline).cpu_us(host));
        let last =
            std::mem::replace(&mut moving.last, read.map(|(machine, offline)| (now_ms, machine, offline)));
        let used = match (read, last) {
            (Some((machine, offline)), Some((then, before, offline_before))) => {
                let seconds = now_ms.saturating_sub(then).max(1) as f64 / 1e3;
                let cpus = |us: u64| us as f64 / 1e6 / seconds;
                let passed = machine.since(&before);
                Use {
                    busy: Some(cpus(passed.busy_us())),
                    steal: passed.steal_us.map(cpus),
                    offline: Some(cpus(offline.saturating_sub(offline_before))),
                    confined: Some(0.0),
                }
            }
            // The first call has no rates yet.
            _ => return Ok(()),
        };
        let input =
            FrameInput { topology: &self.machine.topology, reserved: &CpuSet::new(), used, cap: None };
        let Some(cpus) = moving.frame.step(now_ms, &input).cpus else { return Ok(()) };
        let path = self.path(Side::Offline).clone();
        let own = |step: &&mut Step| step.place.path == path;
        let mut steps = Vec::new();
        for step in self.policies[moving.policy].steps.iter_mut().filter(own) {
            let Action::Write { knob: KnobId::CpusetCpus, to, .. } = &mut step.action else { continue };
            let (old, new) = (to.clone(), Value::List(cpus.clone()));
            if old == new {
                continue;
            }
            // Reverts to the value from before the policy.
            *to = new.clone();
            let action = Action::Write { knob: KnobId::CpusetCpus, device: None, from: old, to: new };
            let why = "the frame follows what everybody else uses".to_owned();
            steps.push(Step { place: step.place.clone(), action, why });
        }
        self.steps(host, &steps)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Wanted, open};
    use super::*;
    use crate::isolation::Isolation;
    use commensal_host::fake::FakeHost;

    /// CPU time of the machine so far, in hundredths of a second.
    fn busy(fake: &FakeHost, ticks: u64) {
        fake.set_file("/proc/stat", &format!("cpu  {ticks} 0 0 1000 0 0 0 0 0 0\n"));
    }

    // promise 46
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
        let mut moving = site.moving.take().unwrap();
        let mut at = |site: &mut Testbed, second: u64, ticks: u64| {
            busy(&fake, ticks);
            site.moved(&mut host, &mut moving, second * 1_000).unwrap();
        };
        (0..30).for_each(|second| at(&mut site, second, 0));
        let wide = cpus();
        assert!(wide >= 5, "the machine is idle: {wide} of 8");
        // Five CPUs are used by other work.
        at(&mut site, 30, 500);
        let narrow = cpus();
        assert!(narrow < wide, "at once: {narrow} after {wide}");
        assert!(site.policy_now(&mut host, 0, None).iter().all(|one| one.want == one.read));
        site.release(&mut host).unwrap();
        assert_eq!(cpus(), before);
        assert_eq!(site.close(&mut host).unwrap(), [""; 0]);
    }
}
