//! What stands in the way of agent and guard in a storm, and is taken away in a calm: kills and stops, a full, read-only or lost state
//! directory, a hog on the agent's CPU, other writers, a container engine that dies, and calls that fail.

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

/// Variable that says that this process has mounts of its own.
const OWN_MOUNTS: &str = "COMMENSAL_SOAK_OWN_MOUNTS";
/// Size of the file system with the state directory, bytes: journal, audit log and everything a storm adds fit several times.
const DISK: &str = "size=4m,mode=700";
/// How long the hog runs at most, s; the kernel leaves others a twentieth of the time meanwhile (`sched_rt_runtime_us`).
const HOG_S: &str = "5";
/// A shorter soak has no container engine, which takes half a minute to come and go.
const ENGINE_FROM: Duration = Duration::from_secs(150);

/// What stands in the way.
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
    /// As the report has it.
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

/// All that is in the way now.
#[derive(Debug)]
pub struct Disturbances {
    /// The folder of the state directory: a small file system of its own where it can be had.
    pub disk: PathBuf,
    /// What cannot be had here, and why.
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

/// Runs this program once more with mounts of its own, which are gone with it; `None` when it is the one that has them, or there can
/// be none.
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
    /// Sees what can be had here for a soak of this length; the state directory goes where it can be full.
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
            false => Err(format!("it takes longer than a soak under {} s has", ENGINE_FROM.as_secs())),
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

    /// The group that takes containers.
    pub fn group(&self) -> String {
        let group = |_| {
            format!(
                "[group.boxes]\nclass = \"offline\"\npids.max = 66\nmatch = [{{ docker-label = \"{}\" }}]\n",
                engine::LABEL
            )
        };
        self.engine.as_ref().map(group).unwrap_or_default()
    }

    /// Gives the next agent and its guard faults, which come while they are switched on.
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

    /// Number of faults by kind of call and how it went wrong.
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

    /// The last faults.
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

    /// Another mount above the state directory, which is read-only: files that are open stay as they are.
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

    /// Takes everything out of the way; whether anybody stood still.
    pub fn end(&mut self, stage: &Stage) -> anyhow::Result<bool> {
        self.faults_on(false)?;
        self.empty();
        if std::mem::take(&mut self.read_only) {
            let _ = Command::new("umount").arg("-l").arg(&stage.state).status();
        }
        let stood = !self.stopped.is_empty() || self.hog.is_some();
        self.stopped.drain(..).for_each(|pid| stage::signal(pid, "CONT"));
        if let Some(mut hog) = self.hog.take() {
            // `timeout` ends its command when it is asked to end itself.
            stage::signal(hog.id(), "TERM");
            let _ = hog.wait();
            for (pid, _) in stage.processes() {
                pin(pid, "0-1023");
            }
        }
        Ok(stood)
    }

    /// Ends the containers.
    pub fn end_containers(&mut self) {
        self.engine.iter_mut().for_each(Engine::clear);
    }

    /// Ends the engine.
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
    /// One random event, or none.
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
                self.churn.count("taken over");
                self.take_over()?;
            }
            9..=11 => {
                self.churn.count("members killed");
                self.churn.kill_member();
            }
            12..=14 => {
                self.churn.count("cgroups made again");
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
            // The other copy of each original has to be there: losing both is nobody's promise.
            22 | 23 if !self.with.read_only && !self.holds.are_marked(&self.churn.stage) => {
                self.churn.count("journals spared: a cgroup is not marked");
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

    /// Another program writes where the agent has written.
    fn write_there(&mut self) {
        let path = OFFLINE[self.churn.below(OFFLINE.len() as u64) as usize];
        for (name, value) in [("cpu.cfs_quota_us", "61000"), ("cpu.max", "61000 100000"), ("pids.max", "222")]
        {
            let Some(file) = self.churn.stage.file(path, name) else { continue };
            // What is back at its original may be off the record, and would have a new one.
            if !self.holds.is_ours(&file) {
                continue;
            }
            // The write may be refused; the agent writes there as well.
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
            4..=6 => ("containers of nobody came", engine.come(false)),
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

/// The CPU that a process ran on last (field 39 of `stat`).
fn cpu_of(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after) = stat.rsplit_once(')')?;
    after.split_whitespace().nth(36).map(str::to_owned)
}

/// Keeps all threads of a process on these CPUs.
fn pin(pid: u32, cpus: &str) {
    let mut taskset = Command::new("taskset");
    taskset.args(["-a", "-c", "-p", cpus, &pid.to_string()]).stderr(Stdio::null());
    succeeds(&mut taskset);
}
