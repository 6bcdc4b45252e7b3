//! Disturbances of agent and guard in a storm of the chaos soak, which the following calm removes: kills and stops, a
//! full, read-only or lost state directory, a busy process on the agent's CPU (hog), other writers, a container engine
//! that is killed, and host calls that fail (faults).

use super::chaos::Chaos;
use super::churn::OFFLINE;
use super::engine::{self, Engine};
use super::options::last_lines;
use crate::stage::{self, Stage};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Environment variable that marks a process with a mount namespace of its own.
const OWN_MOUNTS: &str = "COMMENSAL_SOAK_OWN_MOUNTS";
/// Mount options of the file system for the state directory. The file system is several times as large as the journal,
/// the audit log and all files that a storm adds.
const DISK: &str = "size=4m,mode=700";
/// Maximum time in s that the hog runs. During that time the kernel leaves a twentieth of the CPU time to other threads
/// (`sched_rt_runtime_us`).
const HOG_S: &str = "5";
/// Minimum length of a soak with a container engine, because starting and stopping one takes half a minute.
const ENGINE_FROM: Duration = Duration::from_secs(150);

/// A kind of disturbance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    AgentKilled,
    GuardKilled,
    BothKilled,
    AgentStopped,
    GuardStopped,
    DiskFull,
    ReadOnly,
    JournalLost,
    StateLost,
    Starved,
}

impl Trouble {
    /// The name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Trouble::AgentKilled => "agent killed",
            Trouble::GuardKilled => "guard killed",
            Trouble::BothKilled => "agent and guard killed",
            Trouble::AgentStopped => "agent stopped",
            Trouble::GuardStopped => "guard stopped",
            Trouble::DiskFull => "disk full",
            Trouble::ReadOnly => "state directory read-only",
            Trouble::JournalLost => "journal removed",
            Trouble::StateLost => "state directory removed",
            Trouble::Starved => "agent starved by SCHED_FIFO",
        }
    }
}

/// The disturbances that are possible on this machine, and those that are active.
#[derive(Debug)]
pub struct Disturbances {
    /// The directory that contains the state directory: a small file system of its own, if one can be mounted.
    pub disk: PathBuf,
    /// Disturbances that are not possible on this machine, with the reasons.
    pub skipped: Vec<String>,
    has_disk: bool,
    has_hog: bool,
    engine: Option<Engine>,
    stopped: Vec<u32>,
    hog: Option<Child>,
    read_only: bool,
    log: PathBuf,
    on: PathBuf,
}

/// Starts this program again in a separate mount namespace, so that its mounts disappear when it exits; returns whether
/// it succeeded. `None` if this process has such a namespace already, or none can be created.
pub fn in_own_mounts(args: &[String]) -> anyhow::Result<Option<bool>> {
    let unshare = ["--mount", "--propagation", "private"];
    let can = Command::new("unshare").args(unshare).arg("true").stderr(Stdio::null()).status();
    if std::env::var_os(OWN_MOUNTS).is_some() || !can.is_ok_and(|status| status.success()) {
        return Ok(None);
    }
    let mut inside = Command::new("unshare");
    inside.args(unshare).arg(std::env::current_exe()?).args(args).env(OWN_MOUNTS, "1");
    Ok(Some(inside.status()?.success()))
}

impl Disturbances {
    /// Determines which disturbances are possible on this machine in a soak of this length, and places the state
    /// directory on a file system that can become full.
    pub fn new(stage: &mut Stage, time: Duration) -> anyhow::Result<Disturbances> {
        let disk = stage.dir.path().join("disk");
        std::fs::create_dir_all(&disk)?;
        stage.state = disk.join("state");
        let mut skipped = Vec::new();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", DISK, "tmpfs"]).arg(&disk).stderr(Stdio::null());
        let has_disk = std::env::var_os(OWN_MOUNTS).is_some() && succeeds(&mut mount);
        if !has_disk {
            skipped.push("a full and a read-only disk: no mounts of its own (unshare --mount)".to_owned());
        }
        let mut hog = Command::new("chrt");
        hog.args(["-f", "1", "true"]).stderr(Stdio::null());
        let has_hog = succeeds(&mut hog);
        if !has_hog {
            skipped.push("a hog on the agent's CPU: SCHED_FIFO is refused (chrt of util-linux)".to_owned());
        }
        let engine = match time >= ENGINE_FROM {
            true => Engine::start(stage),
            false => Err(format!("it needs a soak of at least {} s", ENGINE_FROM.as_secs())),
        };
        let engine = engine.map_err(|why| skipped.push(format!("a container engine: {why}"))).ok();
        let (log, on) = (stage.dir.path().join("faults.log"), stage.dir.path().join("faults.on"));
        std::fs::write(&log, "")?;
        Ok(Disturbances {
            disk,
            skipped,
            has_disk,
            has_hog,
            engine,
            stopped: Vec::new(),
            hog: None,
            read_only: false,
            log,
            on,
        })
    }

    /// The group that matches containers.
    pub fn group(&self) -> String {
        let group = |_| {
            format!(
                "[group.boxes]\nclass = \"offline\"\npids.max = 66\nmatch = [{{ docker-label = \"{}\" }}]\n",
                engine::LABEL
            )
        };
        self.engine.as_ref().map(group).unwrap_or_default()
    }

    /// Configures faults for the next agent and its guard. They occur while faults are switched on.
    pub fn faults_of(&self, stage: &mut Stage, seed: u64, which: &str) {
        let (log, on) = (self.log.display(), self.on.display());
        let faults = format!("seed={seed} {which} log={log} while={on}");
        stage.variables = vec![("COMMENSAL_FAULTS".to_owned(), faults)];
        stage.variables.extend(self.engine.as_ref().map(|engine| ("DOCKER_HOST".to_owned(), engine.host())));
    }

    /// Switches faults on or off.
    pub fn faults_on(&self, on: bool) -> anyhow::Result<()> {
        match on {
            true => std::fs::write(&self.on, "")?,
            false => drop(std::fs::remove_file(&self.on)),
        }
        Ok(())
    }

    fn lines(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Counts the injected faults by kind of call and kind of failure.
    pub fn faults(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for line in self.lines().lines() {
            let words: Vec<&str> = line.split(' ').collect();
            if let [_, kind, how, errno, ..] = words[..] {
                *counts.entry(format!("{kind} {how} {errno}")).or_default() += 1;
            }
        }
        counts
    }

    /// Returns the last injected faults.
    pub fn last_faults(&self, count: usize) -> Vec<String> {
        last_lines(&self.lines(), count).lines().map(str::to_owned).collect()
    }

    fn fill(&self) {
        let Ok(mut file) = std::fs::File::create(self.disk.join("soak-fill")) else { return };
        for size in [4096, 1] {
            while file.write_all(&vec![b'x'; size]).is_ok() {}
        }
    }

    fn empty(&self) {
        let _ = std::fs::remove_file(self.disk.join("soak-fill"));
    }

    /// Mounts the state directory over itself, read-only. Files that are already open stay writable.
    fn make_read_only(&mut self, state: &Path) {
        let mut bind = Command::new("mount");
        bind.arg("--bind").args([state, state]).stderr(Stdio::null());
        self.read_only = succeeds(&mut bind);
        if self.read_only {
            let _ = Command::new("mount")
                .args(["-o", "remount,bind,ro"])
                .arg(state)
                .stderr(Stdio::null())
                .status();
        }
    }

    fn starve(&mut self, agent: u32) {
        let cpu = cpu_of(agent).unwrap_or_default();
        pin(agent, &cpu);
        let mut hog = Command::new("timeout");
        hog.args(["-s", "KILL", HOG_S, "chrt", "-f", "1", "taskset", "-c", &cpu]);
        hog.args(["sh", "-c", "while :; do :; done"]);
        self.hog = hog.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok();
    }

    /// Removes all disturbances; returns whether a process had been stopped or had got no CPU time.
    pub fn end(&mut self, stage: &Stage) -> anyhow::Result<bool> {
        self.faults_on(false)?;
        self.empty();
        if std::mem::take(&mut self.read_only) {
            let _ = Command::new("umount").arg("-l").arg(&stage.state).status();
        }
        let stood = !self.stopped.is_empty() || self.hog.is_some();
        self.stopped.drain(..).for_each(|pid| stage::signal(pid, "CONT"));
        if let Some(mut hog) = self.hog.take() {
            // When `timeout` is terminated, it terminates its command.
            stage::signal(hog.id(), "TERM");
            let _ = hog.wait();
            for (pid, _) in stage.processes() {
                pin(pid, "0-1023");
            }
        }
        Ok(stood)
    }

    /// Removes the containers.
    pub fn end_containers(&mut self) {
        self.engine.iter_mut().for_each(Engine::clear);
    }

    /// Stops the container engine.
    pub fn end_engine(&mut self) {
        self.engine = None;
    }
}

impl Drop for Disturbances {
    fn drop(&mut self) {
        self.end_engine();
        self.stopped.drain(..).for_each(|pid| stage::signal(pid, "CONT"));
        if self.has_disk {
            let _ = Command::new("umount").arg("-l").arg(&self.disk).stderr(Stdio::null()).status();
        }
    }
}

impl Chaos {
    /// Carries out one random disturbance, or none.
    pub fn disturb(&mut self) -> anyhow::Result<()> {
        let (agent, guard) = (self.agent.id(), self.guard());
        let calm_agent = self.second_half;
        match self.churn.below(60) {
            0 | 1 if !calm_agent => {
                self.allow(Trouble::AgentKilled);
                stage::end(&mut self.agent);
            }
            2 | 3 if !calm_agent => {
                self.allow(Trouble::GuardKilled);
                guard.into_iter().for_each(|pid| stage::signal(pid, "KILL"));
            }
            4 if !calm_agent => {
                self.allow(Trouble::BothKilled);
                self.kill_both();
            }
            5 if !calm_agent => {
                self.allow(Trouble::AgentStopped);
                stage::signal(agent, "STOP");
                self.with.stopped.push(agent);
            }
            6 if !calm_agent => {
                if let Some(pid) = guard {
                    self.allow(Trouble::GuardStopped);
                    stage::signal(pid, "STOP");
                    self.with.stopped.push(pid);
                }
            }
            7 | 8 if !calm_agent => {
                self.churn.count("replaced");
                self.replace()?;
            }
            9..=11 => {
                self.churn.count("members killed");
                self.churn.kill_member();
            }
            12..=14 => {
                self.churn.count("cgroups recreated");
                self.churn.remake()?;
            }
            15..=17 if self.with.has_disk => {
                self.allow(Trouble::DiskFull);
                self.with.fill();
            }
            18..=20 => self.with.empty(),
            21 if self.with.has_disk && !self.with.read_only => {
                self.allow(Trouble::ReadOnly);
                self.with.make_read_only(&self.churn.stage.state);
            }
            // The other copy of each original must exist: if both are lost, commensal cannot restore the original.
            22 | 23 if !self.with.read_only && !self.holds.are_marked(&self.churn.stage) => {
                self.churn.count("journals not removed, because a cgroup is not marked");
            }
            22 if !self.with.read_only => {
                self.allow(Trouble::JournalLost);
                let _ = std::fs::remove_file(self.churn.stage.state.join("machine.journal"));
            }
            23 if !self.with.read_only && !calm_agent => {
                self.allow(Trouble::StateLost);
                let _ = std::fs::remove_dir_all(&self.churn.stage.state);
            }
            24 if self.with.has_hog && self.with.hog.is_none() => {
                self.allow(Trouble::Starved);
                self.with.starve(agent);
            }
            25..=30 => self.write_there(),
            31..=34 => {
                self.churn.count("groups files changed");
                self.other_groups()?;
            }
            35..=38 => self.engine_event(),
            _ => {}
        }
        Ok(())
    }

    /// Writes, like another program, to files that the agent has written.
    fn write_there(&mut self) {
        let path = OFFLINE[self.churn.below(OFFLINE.len() as u64) as usize];
        for (name, value) in [("cpu.cfs_quota_us", "61000"), ("cpu.max", "61000 100000"), ("pids.max", "222")]
        {
            let Some(file) = self.churn.stage.file(path, name) else { continue };
            // If a value is at its original, commensal may have dropped its record, and the written value would become
            // its original.
            if !self.holds.is_ours(&file) {
                continue;
            }
            // The kernel may refuse the write, because the agent writes to the file as well.
            if std::fs::write(&file, value).is_ok() {
                self.churn.count("values written by another");
                self.holds.meddled.insert(file, value.to_owned());
            }
        }
    }

    fn engine_event(&mut self) {
        let which = self.churn.below(10);
        let Some(engine) = &mut self.with.engine else { return };
        let (what, done) = match which {
            0 => ("engine killed and started", engine.kill()),
            1..=3 => ("containers came", engine.come(true)),
            4..=6 => ("containers without a group started", engine.come(false)),
            _ => ("containers went", engine.go()),
        };
        if done {
            self.churn.count(what);
        }
    }
}

fn succeeds(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Returns the CPU that a process used last (field 39 of `stat`).
fn cpu_of(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after) = stat.rsplit_once(')')?;
    after.split_whitespace().nth(36).map(str::to_owned)
}

/// Restricts all threads of a process to these CPUs.
fn pin(pid: u32, cpus: &str) {
    let mut taskset = Command::new("taskset");
    taskset.args(["-a", "-c", "-p", cpus, &pid.to_string()]).stderr(Stdio::null());
    succeeds(&mut taskset);
}
