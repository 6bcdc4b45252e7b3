//! Reads the probe's maps: what has ended, and what goes on.

use super::{ONLINE, TO_LOOK, WaitProbe, failed};
use crate::BlameError;
use crate::figures::{ByKind, Counters, Culprit, Figures, Kind, TargetStats, Thread, ThreadState, Totals};
use crate::histogram::Histogram;
use crate::mirror::{
    ASLEEP, CommandKey, Control, CpuState, CulpritKey, Delays, OpenCulprit, RUNNING, Target, ThreadReading,
};
use aya::maps::MapError;
use commensal_host::{Host, raised};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::PoisonError;
use zerocopy::{FromBytes, transmute};

const KINDS: usize = Kind::ALL.len();

/// Parts of waits that go on (ns).
type OpenCulprits = Vec<(OpenCulprit, u64)>;

/// Waits and runs that go on at a reading.
#[derive(Default)]
struct Open {
    /// Sums by target, in the order of the scope.
    subjects: Vec<TargetStats>,
    /// Waits by culprit (ns), and the process where the culprit's kind is [`Kind::Other`].
    culprits: OpenCulprits,
    /// Time for which offline work has had a CPU on which a target's thread is queued (ns).
    inversion_ns: u64,
}

impl WaitProbe {
    /// Returns the current sums over all targets and by target, without the sums by culprit. They contain the runs and waits
    /// that go on.
    ///
    /// # Errors
    /// Returns an error if a map cannot be read.
    pub fn totals(&self) -> Result<Figures, BlameError> {
        raised(&TO_LOOK, || {
            let states = self.states()?;
            self.sums(&states).map(|(figures, _)| figures)
        })
    }

    fn states(&self) -> Result<Vec<CpuState>, BlameError> {
        let states = self.maps.cpus.iter().map(|state| state.map(|state| -> CpuState { transmute!(state) }));
        states.collect::<Result<Vec<_>, _>>().map_err(failed("read the probe's maps"))
    }

    /// Returns the sums, and what of them goes on.
    fn sums(&self, states: &[CpuState]) -> Result<(Figures, Open), BlameError> {
        let before = self.ended_sums()?;
        let open = self.open(states)?;
        // What ends between the readings is in one of them at least.
        let mut figures = if self.ended_ns.is_some() { before.clone() } else { self.ended_sums()? };
        figures.wait = ByKind::default();
        figures.counters.run_ns = 0;
        for (index, ended) in figures.subjects.iter_mut().enumerate() {
            let mut seen = before.subjects[index];
            seen.add(&open.subjects[index]);
            ended.run_ns = ended.run_ns.max(seen.run_ns);
            for (ended, seen) in ended.wait.0.iter_mut().zip(seen.wait.0) {
                *ended = (*ended).max(seen);
            }
            figures.counters.waits += open.subjects[index].waits;
            ended.waits += open.subjects[index].waits;
            figures.wait.add(&ended.wait);
            figures.counters.run_ns += ended.run_ns;
        }
        figures.counters.inversion_ns += open.inversion_ns;
        Ok((figures, open))
    }

    /// Returns the runs and waits that go on. While the probe counts, the threads are read only if one waits.
    fn open(&self, states: &[CpuState]) -> Result<Open, BlameError> {
        let now = self.ended_ns.unwrap_or_else(|| self.now());
        let mut open =
            Open { subjects: vec![TargetStats::default(); self.scope.online.len()], ..Open::default() };
        for state in states {
            let (class, since, _) = self.occupant(state);
            if self.ended_ns.is_none()
                && class & 0xff == ONLINE
                && let Some(subject) = open.subjects.get_mut(class as usize >> 8)
            {
                subject.run_ns += now.saturating_sub(since);
            }
            if state.inversion > 0 {
                open.inversion_ns += now.saturating_sub(state.inversion);
            }
        }
        if self.ended_ns.is_none() && states.iter().all(|state| state.waiters <= 0) {
            return Ok(open);
        }
        let (threads, culprits) = self.read_threads()?;
        open.culprits = culprits;
        for one in threads {
            let Some(subject) = open.subjects.get_mut(one.target as usize) else { continue };
            let wait = ByKind(one.open);
            subject.wait.add(&wait);
            subject.waits += u64::from(wait.sum() > 0 || ![ASLEEP, RUNNING].contains(&one.state));
            // The CPU may have another thread by now, without a switch that the kernel has reported.
            subject.run_ns += self.ended_ns.map_or(0, |_| one.open_run_ns);
        }
        Ok(open)
    }

    /// The class of the task on a CPU, since when it has it (ns), and its kind.
    fn occupant(&self, state: &CpuState) -> (u32, u64, usize) {
        let Control { generation, from_ns, .. } = self.control;
        if state.generation == generation {
            return (state.class, state.tenure, state.kind as usize);
        }
        let class = if state.first_generation == generation { state.first_class } else { Kind::Idle as u32 };
        (class, from_ns, (class & 0xff) as usize)
    }

    /// The sums of what has ended.
    fn ended_sums(&self) -> Result<Figures, BlameError> {
        let mut figures = Figures { subjects: self.ended_subjects()?, ..Figures::default() };
        for one in self.maps.totals.get(&0, 0).map_err(failed("read the probe's maps"))?.iter() {
            let one: Totals = transmute!(*one);
            figures.wait.add(&ByKind(one.wait));
            figures.counters.add(&Counters::from(&one));
        }
        for one in self.maps.delays.get(&0, 0).map_err(failed("read the probe's maps"))?.iter() {
            // Read by reference, because the structure is large.
            let Ok(one) = Delays::read_from_bytes(one) else { continue };
            figures.wake_delay.add(&Histogram::new(one.wake.to_vec()));
            figures.preempt_delay.add(&Histogram::new(one.preempt.to_vec()));
            figures.evict_delay.add(&Histogram::new(one.evict.to_vec()));
        }
        figures.time_ns = self.ended_ns.unwrap_or_else(|| self.now());
        Ok(figures)
    }

    fn ended_subjects(&self) -> Result<Vec<TargetStats>, BlameError> {
        let one = |index: usize| {
            let mut sums = TargetStats::default();
            for one in
                self.maps.targets.get(&(index as u32), 0).map_err(failed("read the probe's maps"))?.iter()
            {
                let one: Target = transmute!(*one);
                sums.run_ns += one.run_ns;
                sums.waits += one.waits;
                sums.wait.add(&ByKind(one.wait));
            }
            Ok(sums)
        };
        (0..self.scope.online.len()).map(one).collect()
    }

    /// Returns all current sums, including the sums by target and by culprit.
    ///
    /// # Errors
    /// Returns an error if a map cannot be read.
    pub fn read(&self, host: &dyn Host) -> Result<Figures, BlameError> {
        let mut figures = raised(&TO_LOOK, || self.by_culprit(host))?;
        for program in &self.programs {
            let info = format!("/proc/self/fdinfo/{}", program.as_fd().as_raw_fd());
            let info = host.read_file(Path::new(&info)).unwrap_or_default();
            let skipped = info.lines().find_map(|line| line.strip_prefix("recursion_misses:"));
            figures.skipped += skipped.and_then(|skipped| skipped.trim().parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(figures)
    }

    fn by_culprit(&self, host: &dyn Host) -> Result<Figures, BlameError> {
        let states = self.states()?;
        let (mut totals, open) = self.sums(&states)?;
        // Parts of waits that go on, for which the map had no place.
        let behind_tasks =
            |one: &TargetStats| Kind::OF_CGROUPS.iter().map(|kind| one.wait.of(*kind)).sum::<u64>();
        let parts: u64 = open.subjects.iter().map(behind_tasks).sum();
        totals.counters.full_ns += parts.saturating_sub(open.culprits.iter().map(|(_, ns)| ns).sum());
        let now = totals.time_ns;
        let mut cpu = ByKind::default();
        let mut culprits: BTreeMap<Culprit, u64> = BTreeMap::new();
        let mut commands = self.commands.clone();
        for (key, ns) in &open.culprits {
            *culprits.entry(culprit(key.who)).or_default() += ns;
            let CulpritKey { cgroup, target, .. } = key.who;
            let ended = self.maps.command_names.get(&key.tgid, 0).ok().map(|bytes| transmute!(bytes));
            if self.scope.commands && key.tgid > 0 {
                commands.add(host, &CommandKey { cgroup, target, tgid: key.tgid }, ended, *ns);
            }
        }
        let mut idle_ns = Vec::new();
        for state in states {
            let mut of_cpu = ByKind(state.ns);
            // Adds the time since the last context switch, unless the CPU is writing its state at this moment.
            let (_, since, kind) = self.occupant(&state);
            let since = if state.generation == self.control.generation { state.since } else { since };
            if since > 0 && kind < KINDS {
                of_cpu.0[kind] += now.saturating_sub(since);
            }
            idle_ns.push(of_cpu.of(Kind::Idle));
            cpu.add(&of_cpu);
            // Adds the culprit's time that the CPU has not yet written to the map of culprits.
            if state.pending > 0 {
                *culprits.entry(culprit(state.last)).or_default() += state.pending;
            }
        }
        for key in self.maps.culprits.keys() {
            let key = key.map_err(failed("read the probe's maps"))?;
            match self.maps.culprits.get(&key, 0) {
                Ok(ns) => *culprits.entry(culprit(transmute!(key))).or_default() += ns,
                Err(MapError::KeyNotFound) => {}
                Err(error) => return Err(failed("read the probe's maps")(error)),
            }
        }
        Ok(Figures { cpu, idle_ns, culprits, commands: commands.sums(), ..totals })
    }

    /// Collects the time of processes by command, before the probe discards the names of processes that have exited.
    /// Does nothing without [`Scope::commands`].
    ///
    /// # Errors
    /// Returns an error if a map cannot be read or written.
    pub fn gather(&mut self, host: &dyn Host) -> Result<(), BlameError> {
        if !self.scope.commands {
            return Ok(());
        }
        let keys: Vec<_> =
            self.maps.commands.keys().collect::<Result<_, _>>().map_err(failed("read the probe's maps"))?;
        for bytes in keys {
            let ns = match self.maps.commands.get(&bytes, 0) {
                Ok(ns) => ns,
                Err(MapError::KeyNotFound) => continue,
                Err(error) => return Err(failed("read the probe's maps")(error)),
            };
            // Time that the probe adds between the reading and the removal is only in the sums by cgroup.
            self.maps.commands.remove(&bytes).map_err(failed("read the probe's maps"))?;
            let key: CommandKey = transmute!(bytes);
            let ended = self.maps.command_names.get(&key.tgid, 0).ok();
            self.commands.add(host, &key, ended.map(|bytes| transmute!(bytes)), ns);
        }
        Ok(())
    }

    /// Collects the time that the CPUs have not yet written to the map of commands. This is the last step after
    /// counting has stopped.
    pub(super) fn gather_pending(&mut self, host: &dyn Host) -> Result<(), BlameError> {
        let states: Vec<_> =
            self.maps.cpus.iter().collect::<Result<_, _>>().map_err(failed("read the probe's maps"))?;
        for state in states {
            let state: CpuState = transmute!(state);
            if state.pending > 0 && state.last_tgid > 0 {
                let CulpritKey { cgroup, target, .. } = state.last;
                let key = CommandKey { cgroup, target, tgid: state.last_tgid };
                let ended = self.maps.command_names.get(&key.tgid, 0).ok();
                self.commands.add(host, &key, ended.map(|bytes| transmute!(bytes)), state.pending);
            }
        }
        Ok(())
    }

    /// Returns the current threads of the targets.
    ///
    /// # Errors
    /// Returns an error if the kernel's task iterator cannot be read.
    pub fn threads(&self) -> Result<Vec<Thread>, BlameError> {
        Ok(self.read_threads()?.0.into_iter().map(thread).collect())
    }

    /// Reads the threads, and the culprits of the waits that go on.
    fn read_threads(&self) -> Result<(Vec<ThreadReading>, OpenCulprits), BlameError> {
        let mut map = self.maps.open_culprits.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = self.walk("threads")?;
        let all = bytes.chunks_exact(size_of::<ThreadReading>());
        let threads = all.filter_map(|one| ThreadReading::read_from_bytes(one).ok()).collect();
        let found: Vec<_> = map.iter().collect::<Result<_, _>>().map_err(failed("read the probe's maps"))?;
        // The next reading counts anew.
        for (key, _) in &found {
            map.remove(key).map_err(failed("read the probe's maps"))?;
        }
        Ok((threads, found.into_iter().map(|(key, ns)| (transmute!(key), ns)).collect()))
    }
}

fn culprit(key: CulpritKey) -> Culprit {
    let kind = Kind::ALL.get(key.kind as usize).copied().unwrap_or(Kind::Other);
    Culprit { subject: key.target, kind, cgroup: (key.cgroup != u64::MAX).then_some(key.cgroup) }
}

fn thread(one: ThreadReading) -> Thread {
    let state = match one.state {
        ..=ASLEEP => ThreadState::Asleep,
        RUNNING => ThreadState::Running,
        _ => ThreadState::Waiting,
    };
    Thread {
        tid: one.pid,
        pid: one.tgid,
        subject: one.target,
        state,
        wait: ByKind(one.wait),
        waited_ns: one.waited_ns,
        waits: one.waits,
        run_ns: one.run_ns,
        slept_ns: one.slept_ns,
        lost_ns: one.lost_ns,
        seen_ns: one.seen_ns,
        now_ns: one.now_ns,
        began_ns: one.began_ns,
    }
}
