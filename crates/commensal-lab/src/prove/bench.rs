//! The test bench of the trials: creates scratch cgroups, starts processes, and waits. A trial tests one fact about the
//! kernel.

use crate::workload::burn::WorkCounter;
use commensal_core::actual::{ActualState, CgroupPath, CgroupRef};
use commensal_core::cpuset::CpuSet;
use commensal_core::knob::{Controller, KnobId, Value, Version};
use commensal_core::plan::{Action, Step};
use commensal_core::vendor::Switch;
use commensal_host::{Child, Dir, Host, HostError, Signal, SpawnSpec, Stderr, Stdin, Stdout, below};
use commensal_reconcile::{Instance, apply};
use commensal_sensors::Survey;
use commensal_sensors::run_delay::{RunDelay, Schedstat};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Time after which the bench starts no further trial. A trial takes at most about ten seconds.
const AT_MOST: Duration = Duration::from_secs(50);
/// Time limit for a process to exit after SIGKILL.
const LAST_MOMENTS: Duration = Duration::from_secs(5);
/// Interval at which the bench checks whether a process has exited.
const LOOK: Duration = Duration::from_millis(5);

/// The machine under test, with the state of the trials.
pub(super) struct Bench<'a> {
    /// Access to the machine.
    pub host: &'a mut dyn Host,
    /// The survey of the machine: topology, cgroup hierarchies, and kernel capabilities.
    pub survey: &'a Survey,
    /// The CPU on which processes compete.
    pub cpu: u32,
    instance: &'a Instance,
    found: ActualState,
    program: &'a Path,
    wait: &'a mut dyn FnMut(Duration),
    /// Time since boot after which no further trial starts.
    until: Duration,
}

/// How the bench starts a process.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct How {
    /// Whether the process may only use the CPU of the trials.
    pub pinned: bool,
    /// Whether the process is SCHED_IDLE from the start.
    pub idle: bool,
    /// Whether the process exits by a handler of its own when it gets SIGTERM.
    pub handles_sigterm: bool,
}

/// Scratch cgroups of one trial, outermost first.
pub(super) struct Groups {
    places: Vec<CgroupRef>,
    /// Directories of the cgroups, in the same order.
    pub dirs: Vec<Dir>,
}

impl<'a> Bench<'a> {
    pub(super) fn new(
        host: &'a mut dyn Host,
        instance: &'a Instance,
        survey: &'a Survey,
        found: ActualState,
        program: &'a Path,
        wait: &'a mut dyn FnMut(Duration),
    ) -> Bench<'a> {
        let until = host.boot_time() + AT_MOST;
        let cpu = usable_cpu(host, &survey.machine.topology.all());
        Bench { host, survey, cpu, instance, found, program, wait, until }
    }

    /// Returns index and version of the cgroup hierarchy with this controller, or why the bench cannot create a cgroup
    /// with this controller.
    pub(super) fn hierarchy(&self, controller: Controller) -> Result<(usize, Version), String> {
        let found = self.survey.hierarchies.iter().position(|one| one.controllers.contains(&controller));
        let index = found.ok_or_else(|| format!("no hierarchy has the {controller} controller"))?;
        let (caps, one) = (&self.survey.caps, &self.survey.hierarchies[index]);
        if let Some(obstacle) = &caps.cgroup_obstacle {
            return Err(obstacle.clone());
        }
        if caps.closed.contains(&index) {
            return Err(format!("no cgroup can be created in {}", one.mount));
        }
        if let Some(obstacle) = self.survey.tenancy.obstacle_in(one.version) {
            return Err(obstacle.to_owned());
        }
        if one.version == Version::V2 {
            let base = below(Path::new(&one.mount), self.survey.tenancy.base.as_str());
            let file = base.join("cgroup.subtree_control");
            let enabled = self.host.read_file(&file).unwrap_or_default();
            let given = enabled.split_whitespace().any(|name| name == controller.v2_name());
            if !controller.built_in(Version::V2) && !given {
                let base = &self.survey.tenancy.base;
                return Err(format!(
                    "{base} does not enable {controller} for its children, and a trial must not enable it"
                ));
            }
        }
        Ok((index, one.version))
    }

    /// Returns the place of the scratch cgroup in a hierarchy, or of a child of that cgroup.
    fn place(&self, hierarchy: usize, child: Option<&str>) -> CgroupRef {
        let scratch = self.survey.tenancy.base.child(&self.instance.prefix);
        CgroupRef { hierarchy, path: child.map_or_else(|| scratch.clone(), |child| scratch.child(child)) }
    }

    fn carry_out(&mut self, steps: impl IntoIterator<Item = (CgroupRef, Action)>) -> Result<(), String> {
        let step = |(place, action)| Step { place, action, why: "doctor --prove".to_owned() };
        let steps: Vec<Step> = steps.into_iter().map(step).collect();
        let mut journal = self.instance.open_journal(self.host).map_err(|error| error.to_string())?;
        match apply(self.host, &steps, &self.found, &mut journal).failure {
            None => Ok(()),
            Some(failure) => Err(failure.refusal.to_string()),
        }
    }

    /// Creates the scratch cgroup of a hierarchy and the given children. In cgroup v2, enables `controller` for the
    /// children.
    pub(super) fn make(
        &mut self,
        (hierarchy, version): (usize, Version),
        controller: Controller,
        children: &[String],
    ) -> Result<Groups, String> {
        let top = self.place(hierarchy, None);
        let mut steps = vec![(top.clone(), Action::Create)];
        if !children.is_empty() && !controller.built_in(version) {
            steps.push((top.clone(), Action::Enable(controller)));
        }
        let mut places = vec![top];
        places.extend(children.iter().map(|child| self.place(hierarchy, Some(child.as_str()))));
        steps.extend(places[1..].iter().map(|place| (place.clone(), Action::Create)));
        self.carry_out(steps)?;
        let mut groups = Groups { places: Vec::new(), dirs: Vec::new() };
        for place in places {
            groups.dirs.push(self.open(&place)?);
            groups.places.push(place);
        }
        Ok(groups)
    }

    /// Creates a child of the scratch cgroup in a running trial.
    pub(super) fn add_child(&mut self, groups: &mut Groups, name: &str) -> Result<Dir, String> {
        let place = self.place(groups.places[0].hierarchy, Some(name));
        self.carry_out([(place.clone(), Action::Create)])?;
        let dir = self.open(&place)?;
        groups.places.push(place);
        groups.dirs.push(dir);
        Ok(dir)
    }

    fn open(&mut self, place: &CgroupRef) -> Result<Dir, String> {
        let mount = &self.survey.hierarchies[place.hierarchy].mount;
        self.host.open(&below(Path::new(mount), place.path.as_str())).map_err(|error| error.to_string())
    }

    /// Kills the processes and removes the cgroups. A cgroup that cannot be removed stays in the journal, and is
    /// removed after all trials.
    pub(super) fn clear(&mut self, groups: Groups, mut children: Vec<Child>) {
        for child in &children {
            let _ = self.host.signal(&child.process, Signal::KILL);
        }
        self.raise_weight(&groups);
        self.until(LAST_MOMENTS, |_| children.iter_mut().all(has_exited));
        groups.dirs.into_iter().for_each(|dir| self.host.close(dir));
        let removed = || groups.places.iter().rev().map(|place| (place.clone(), Action::Remove));
        // The kernel releases the cgroup of a dead process slightly later than it notifies the parent.
        let deadline = self.host.boot_time() + LAST_MOMENTS;
        while self.carry_out(removed()).is_err() && self.host.boot_time() < deadline {
            self.pause(LOOK);
        }
    }

    /// Gives the outermost cgroup of killed processes the largest weight: they need CPU time to exit, and get hardly
    /// any with a small weight while other programs keep the CPU busy.
    fn raise_weight(&mut self, groups: &Groups) {
        let Ok((hierarchy, version)) = self.hierarchy(Controller::Cpu) else { return };
        if groups.places[0].hierarchy == hierarchy
            && let Some(file) = KnobId::CpuWeight.row().file(version)
        {
            // If the kernel refuses the write, the processes exit when the CPU is less busy.
            let _ = self.host.write(groups.dirs[0], file.name, &file.range.1.to_string());
        }
    }

    /// Turns a machine-wide switch on; the switch is reset after all trials.
    pub(super) fn switch(&mut self, switch: Switch) -> Result<(), String> {
        let hierarchy = self.hierarchy(switch.knob().row().controller)?.0;
        let place = CgroupRef { hierarchy, path: CgroupPath::root() };
        self.carry_out([(place, Action::Switch { switch, from: 0, to: 1 })])
    }

    /// Starts a process that computes without end in these cgroups.
    pub(super) fn start(&mut self, groups: Vec<Dir>, how: How) -> Result<Child, String> {
        let counter = WorkCounter::new(1).and_then(|counter| counter.fd().try_clone_to_owned());
        let counter = counter.map_err(|error| format!("no memory for the work counter: {error}"))?;
        let mut spec = SpawnSpec::new(self.program);
        for arg in ["workload", "burn", "--threads", "1"] {
            spec = spec.arg(arg);
        }
        if how.handles_sigterm {
            spec = spec.arg("--handle-sigterm");
        }
        spec.groups = groups;
        spec.policy.cpus = how.pinned.then(|| [self.cpu].into_iter().collect());
        spec.policy.idle = how.idle;
        (spec.die_with_parent, spec.own_process_group) = (true, true);
        spec.stdin = Stdin::Fd(Arc::new(counter));
        (spec.stdout, spec.stderr) = (Stdout::Null, Stderr::Null);
        self.host.spawn(&spec).map_err(|error| error.to_string())
    }

    /// Returns the CPU time that a process has used so far.
    pub(super) fn ran(&mut self, child: &Child) -> Duration {
        Duration::from_nanos(self.counters(child).run_ns)
    }

    /// Returns CPU time and run delay of a process so far.
    pub(super) fn counters(&mut self, child: &Child) -> Schedstat {
        RunDelay::default().of(self.host, &[child.process.pid]).unwrap_or_default()
    }

    /// Returns the thread IDs of a process.
    pub(super) fn threads(&self, child: &Child) -> Vec<u32> {
        let tasks = self.host.list(Path::new(&format!("/proc/{}/task", child.process.pid)));
        tasks.unwrap_or_default().iter().filter_map(|tid| tid.parse().ok()).collect()
    }

    /// Gives all threads of a process this scheduling policy.
    pub(super) fn set_policy(&mut self, child: &Child, policy: i32) -> Result<(), String> {
        for tid in self.threads(child) {
            self.host.set_policy(tid, policy).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Moves a process into a cgroup.
    pub(super) fn enter(&mut self, child: &Child, dir: Dir) -> Result<(), String> {
        let pid = child.process.pid.to_string();
        self.host.write(dir, "cgroup.procs", &pid).map_err(|error| error.to_string())
    }

    /// Waits until the condition holds, at most this long; returns whether it holds.
    pub(super) fn until(&mut self, at_most: Duration, mut holds: impl FnMut(&mut dyn Host) -> bool) -> bool {
        let deadline = self.host.boot_time() + at_most;
        while !holds(self.host) {
            if self.host.boot_time() >= deadline {
                return false;
            }
            self.pause(LOOK);
        }
        true
    }

    /// Sleeps.
    pub(super) fn pause(&mut self, time: Duration) {
        (self.wait)(time);
    }

    /// Returns why no further trial may start; `None` while there is time.
    pub(super) fn over(&self) -> Option<String> {
        (self.host.boot_time() > self.until)
            .then(|| "the time limit of the trials (50 s) was reached".to_owned())
    }

    /// Writes a number to a knob (control file) of a scratch cgroup and reads the file back. The error has the name of
    /// the error number, or the value read back if it differs.
    pub(super) fn set(
        &mut self,
        dir: Dir,
        version: Version,
        knob: KnobId,
        number: i64,
    ) -> Result<(), String> {
        let file = knob.row().file(version).ok_or_else(|| format!("cgroup {version} has no {knob}"))?;
        let value = Value::Number(number);
        let text = file.encode(&value, None).map_err(|error| error.to_string())?;
        self.host.write(dir, file.name, &text).map_err(|error| refused(&error, file.name))?;
        let read = self.host.read(dir, file.name).map_err(|error| refused(&error, file.name))?;
        match file.parse(&read, None) {
            Ok(now) if file.holds(&now, &value) => Ok(()),
            _ => Err(format!("{} reads {}", file.name, read.trim())),
        }
    }
}

/// Whether a process that the bench has started has exited.
pub(super) fn has_exited(child: &mut Child) -> bool {
    !matches!(child.try_wait(), Ok(None))
}

fn refused(error: &HostError, file: &str) -> String {
    format!("{} from {file}", error.errno)
}

/// Returns the last CPU on which this process may run.
fn usable_cpu(host: &dyn Host, online: &CpuSet) -> u32 {
    let status = host.read_file(Path::new("/proc/self/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let allowed: Option<CpuSet> = line.and_then(|list| list.trim().parse().ok());
    let usable = allowed.map(|allowed| allowed.intersection(online)).filter(|set| !set.is_empty());
    usable.as_ref().unwrap_or(online).iter().last().unwrap_or(0)
}

/// Returns the name of an error number, for example as the kernel's answer to a write.
pub(super) fn errno(error: &HostError) -> String {
    error.errno.to_string()
}
