//! The chaos soak. It alternates storms, in which random disturbances occur and commensal's host calls (calls of the
//! operating system) fail, with calms, in which everything must recover. `cargo xtask soak --chaos` runs it; `cargo
//! xtask test --chaos` runs a short form.
//!
//! ```text
//! storm     6 to 12 s of events (disturb.rs, churn.rs); a random half of the storms also has faults
//!           (commensal_host::faults)
//! calm      no faults, a writable disk, no stopped process: the groups file must be in force again, or the agent must
//!           report what it waits for
//! then      in turn: only the agent is killed, and the guard must set the safe state; agent and guard are killed, and
//!           `restore` must restore everything; nothing
//! always    the invariants (invariants.rs) are checked in every step
//! ```
//!
//! In the second half the agent is neither killed nor stopped. If it uses more of a resource from calm to calm, the
//! resource is leaked.

use super::churn::Churn;
use super::disturb::{Disturbances, Trouble};
use super::invariants::Invariants;
use super::options::{Args, growth, last_lines};
use super::report;
use crate::stage::{self, Stage, Used, used};
use anyhow::Context;
use commensal_core::process::Stat;
use serde_json::json;
use std::collections::BTreeMap;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Pause between two steps. The invariants are checked in each step.
const STEP: Duration = Duration::from_millis(250);
/// Length of a storm in s.
const STORM_S: std::ops::Range<u64> = 6..12;
/// The lease of the agents.
pub const LEASE: Duration = Duration::from_secs(3);
/// Time within which the safe state must be reached after the agent's death. The guard may have to wait for the lock
/// and retry refused values, on a busy machine.
const SAFE_WITHIN: Duration = Duration::from_secs(4);
/// Time within which the groups file must be in force after a storm. A new agent starts in this time, and the back-off
/// of a refused value has grown to at most twice a storm's length.
const CALM_WITHIN: Duration = Duration::from_secs(30);
/// Time within which processes must exit.
const GONE_WITHIN: Duration = Duration::from_secs(10);
/// How long an agent must run before its resources are sampled: then the probe is loaded, and buffers have reached
/// their final size.
const WARM_UP: Duration = Duration::from_secs(90);
/// Calls of an agent and its guard that fail in a storm, per thousand. Either a few of all calls (a tick makes some
/// hundred), or many of the calls that change something (a tick makes few).
const FAULTS: [&str; 4] = [
    "per-mille=1",
    "per-mille=5",
    "per-mille=100 kinds=write+create+remove+rename+set-attribute+state-write+state-rename",
    "per-mille=300 kinds=write+set-attribute+state-write",
];
/// Limit of offline groups in the groups files.
const OFFLINE_LIMIT: u64 = 300;
/// Limits of online groups in the groups files, one of which is chosen at random.
const ONLINE_LIMITS: [u64; 3] = [500, 450, 400];

/// A violation of an invariant: when it was detected, and its description.
#[derive(Debug)]
pub struct Violation {
    pub at_s: f64,
    pub invariant: &'static str,
    pub what: String,
    /// The last injected faults (failed calls) before the violation.
    pub faults: Vec<String>,
}

/// The state of the soak.
pub struct Chaos {
    // Fields are dropped in this order. `holds` and `with` have processes in the cgroups that `churn` removes.
    pub holds: Invariants,
    pub with: Disturbances,
    pub churn: Churn,
    pub agent: Child,
    pub seed: u64,
    pub started: Instant,
    pub violations: Vec<Violation>,
    /// Statistics: rounds, agents started, times until the safe state, restores.
    pub figures: report::Figures,
    /// Reasons for which the agent may exit in this round; empty in a calm.
    pub may_end: Vec<&'static str>,
    /// Whether this agent has put the groups in force.
    was_up: bool,
    lulls: Vec<(f64, Used, Option<Used>)>,
    lulls_of: Option<u32>,
    lulls_from: Instant,
    /// Files that the agent had open in the first two lulls and in the last one.
    open: Vec<BTreeMap<String, usize>>,
    pub second_half: bool,
    last_seen: Vec<String>,
}

/// Runs the chaos soak.
///
/// # Errors
/// If an invariant was violated; all violations have been printed then.
pub fn run(args: &Args, program: &std::path::Path) -> anyhow::Result<()> {
    let mut stage = Stage::new("chaos", program)?;
    let with = Disturbances::new(&mut stage, args.time)?;
    let mut churn = Churn::new(stage, args.seed)?;
    churn.meddles = false;
    let holds = Invariants::new(&churn.stage, &with.disk)?;
    let mut chaos = Chaos {
        agent: std::process::Command::new("true").spawn().context("start")?,
        churn,
        holds,
        with,
        seed: args.seed,
        started: Instant::now(),
        violations: Vec::new(),
        figures: report::Figures::default(),
        may_end: vec!["it is the first"],
        was_up: false,
        lulls: Vec::new(),
        lulls_of: None,
        lulls_from: Instant::now(),
        open: Vec::new(),
        second_half: false,
        last_seen: Vec::new(),
    };
    let done = chaos.go(args.time);
    let ended = done.and_then(|()| chaos.finish());
    let told = report::print(&chaos, args);
    if chaos.violations.is_empty() {
        return ended.and(told);
    }
    println!("last output of the agents:\n{}", last_lines(&chaos.churn.stage.said(), 40));
    ended.and(told)?;
    anyhow::bail!("{} violations", chaos.violations.len())
}

impl Chaos {
    fn go(&mut self, time: Duration) -> anyhow::Result<()> {
        self.other_groups()?;
        self.launch()?;
        self.calm("the first agent")?;
        let mut round = 0;
        while self.started.elapsed() < time {
            self.second_half = self.started.elapsed() > time / 2;
            self.storm()?;
            if self.second_half {
                // Containers are removed, so that each lull has the same number of them.
                self.with.end_containers();
            }
            self.calm("after a storm")?;
            match round % 3 {
                0 => self.agent_dies()?,
                1 if !self.second_half => self.all_back()?,
                _ => {}
            }
            if self.second_half {
                self.lull();
            }
            round += 1;
            self.figures.rounds += 1;
        }
        Ok(())
    }

    pub fn at(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Records and prints a violation, and the activities of agents and guards at that time.
    pub fn violated(&mut self, invariant: &'static str, what: String) {
        let faults = self.with.last_faults(5);
        println!("{:.1} s: {invariant}: {what}", self.at());
        let ours = |(_, line): &(u32, String)| line.contains("--state-dir");
        for (pid, line) in self.churn.stage.processes().into_iter().filter(ours) {
            threads(pid, &line).iter().for_each(|thread| println!("    then: {thread}"));
        }
        println!("last output of the agents:\n{}", last_lines(&self.churn.stage.said(), 12));
        self.violations.push(Violation { at_s: self.at(), invariant, what, faults });
    }

    /// Checks the invariants. A violation is reported once, not again while it lasts.
    pub fn check(&mut self) {
        let seen = self.holds.broken(&self.churn.stage);
        let fresh: Vec<_> = seen.iter().filter(|one| !self.last_seen.contains(&one.what)).cloned().collect();
        self.last_seen = seen.into_iter().map(|one| one.what).collect();
        for one in fresh {
            self.violated(one.invariant, one.what);
        }
    }

    /// Checks the invariants repeatedly until `holds` returns true, for at most `most`; returns whether it returned
    /// true.
    fn until(&mut self, most: Duration, mut holds: impl FnMut(&mut Chaos) -> bool) -> bool {
        let end = Instant::now() + most;
        loop {
            self.check();
            if holds(self) {
                return true;
            }
            if Instant::now() > end {
                return false;
            }
            std::thread::sleep(STEP / 5);
        }
    }

    /// Writes another groups file, with another limit of online groups and the changes of [`Churn`].
    pub fn other_groups(&mut self) -> anyhow::Result<()> {
        let limit = ONLINE_LIMITS[self.churn.below(3) as usize];
        self.holds.limited_to(limit);
        self.churn.more.0 = format!("pids.max = {limit}\n");
        self.churn.more.1 = self.with.group();
        self.churn.reload()
    }

    /// Starts an agent, like a service manager.
    pub fn launch(&mut self) -> anyhow::Result<()> {
        self.figures.agents += 1;
        let which = FAULTS[self.churn.below(FAULTS.len() as u64) as usize];
        self.with.faults_of(&mut self.churn.stage, self.seed * 1_000 + self.figures.agents, which);
        let lease = format!("{}s", LEASE.as_secs());
        self.agent = self.churn.stage.launch(&["--lease", &lease], false)?;
        self.was_up = false;
        Ok(())
    }

    /// Starts another agent that replaces the running one.
    pub fn replace(&mut self) -> anyhow::Result<()> {
        self.figures.agents += 1;
        let lease = format!("{}s", LEASE.as_secs());
        let next = self.churn.stage.launch(&["--lease", &lease, "--replace"], false)?;
        let mut old = std::mem::replace(&mut self.agent, next);
        let may_fail = !self.may_end.is_empty();
        let went = self.until(CALM_WITHIN, |_| matches!(old.try_wait(), Ok(Some(_))));
        let status = old.try_wait()?;
        match status {
            Some(status) if status.success() => {}
            // The new agent has failed, and the old one still runs.
            None if may_fail => self.agent = std::mem::replace(&mut old, end_of(&mut self.agent)?),
            Some(_) if may_fail => {}
            _ => {
                let what = format!("the agent that was to be replaced: {status:?}, exited {went}");
                self.violated("hand-over", what);
                stage::end(&mut old);
            }
        }
        self.was_up = false;
        Ok(())
    }

    /// Restarts an agent that has exited. If it exited without a reason, that is a violation.
    pub fn revive(&mut self) -> anyhow::Result<()> {
        if !self.was_up && self.churn.stage.is_up(self.agent.id()) {
            self.was_up = true;
        }
        let Some(status) = self.agent.try_wait()? else { return Ok(()) };
        let killed = std::os::unix::process::ExitStatusExt::signal(&status) == Some(9);
        if self.may_end.is_empty() || (!killed && self.was_up) {
            let why = self.may_end.join(", ");
            let said = last_lines(&self.churn.stage.said(), 3);
            let what = format!("a running agent exited: {status}; {why}; its output: {said}");
            self.violated("agent", what);
        } else if !killed {
            self.figures.not_started += 1;
        }
        self.launch()
    }

    fn storm(&mut self) -> anyhow::Result<()> {
        let length = STORM_S.start + self.churn.below(STORM_S.end - STORM_S.start);
        let end = Instant::now() + Duration::from_secs(length);
        if self.churn.below(2) == 0 {
            self.with.faults_on(true)?;
            self.may_end.push("calls fail");
            self.churn.count("storms with faults");
        }
        while Instant::now() < end {
            self.churn.step()?;
            self.disturb()?;
            self.check();
            self.revive()?;
            std::thread::sleep(STEP);
        }
        Ok(())
    }

    /// Removes all disturbances. Within [`CALM_WITHIN`] the groups file must be in force, or the agent must report the
    /// reason why it is not.
    fn calm(&mut self, after: &str) -> anyhow::Result<()> {
        let stopped = self.with.end(&self.churn.stage)?;
        self.holds.meddled.clear();
        self.churn.rest()?;
        self.other_groups()?;
        // If the agent or the guard was stopped or got no CPU time, the other one may still kill it.
        let mut reason = Some("it stood still").filter(|_| stopped || !self.may_end.is_empty());
        let since = Instant::now();
        let mut unmet = None;
        let is_met = self.until(CALM_WITHIN, |chaos| {
            if since.elapsed() > 2 * LEASE && std::mem::take(&mut reason).is_some() {
                chaos.may_end.clear();
            }
            if let Err(error) = chaos.revive() {
                chaos.violated("agent", format!("{error:#}"));
            }
            unmet = chaos.holds.unmet(&chaos.churn.stage, OFFLINE_LIMIT);
            unmet.is_none() && chaos.churn.stage.is_up(chaos.agent.id())
        });
        self.may_end.clear();
        self.figures.calmed(since.elapsed());
        if is_met {
            self.holds.followed();
            return Ok(());
        }
        let seen = self.churn.stage.snapshot();
        if seen.is_none() {
            self.churn.stage.print_socket();
        }
        let waits = seen.as_ref().is_some_and(|seen| {
            let some = |key: &str| seen[key].as_array().is_some_and(|all| !all.is_empty());
            some("problems") || some("drift")
        });
        match waits {
            true => self.figures.waited += 1,
            false => {
                let answers = seen.map(|seen| format!("pid {} ticks {}", seen["pid"], seen["ticks"]));
                let what = format!(
                    "{after}, {} s later: {}, and agent {} reports no problem ({answers:?})",
                    CALM_WITHIN.as_secs(),
                    unmet.unwrap_or_else(|| "the agent does not respond".to_owned()),
                    self.agent.id()
                );
                self.violated("convergence", what);
                // Replaces the agent, so that the next round starts without this problem.
                stage::end(&mut self.agent);
                self.launch()?;
            }
        }
        Ok(())
    }

    /// Kills only the agent, and checks that the guard, which nothing disturbs, reaches the safe state.
    fn agent_dies(&mut self) -> anyhow::Result<()> {
        if self.second_half || self.guard().is_none() || !self.churn.stage.is_up(self.agent.id()) {
            return Ok(());
        }
        self.churn.count("agent killed in a calm");
        let since = Instant::now();
        // Where the agent is in back-off before it writes again, another program's value is in force.
        let before = self.holds.offline_limits(&self.churn.stage);
        stage::end(&mut self.agent);
        let mut left = None;
        let is_safe = self.until(SAFE_WITHIN, |chaos| {
            left = chaos.holds.not_safe(&chaos.churn.stage);
            left.is_none()
        });
        self.figures.safe(since.elapsed());
        if !is_safe {
            let what = format!("{} s after the agent died: {left:?}", SAFE_WITHIN.as_secs());
            self.violated("safe state", what);
        }
        for (file, now) in self.holds.offline_limits(&self.churn.stage) {
            let kept = before.get(&file).is_none_or(|was| *was == now);
            if !kept && now.trim() != OFFLINE_LIMIT.to_string() {
                let what = format!("{} is {}, no longer held back", file.display(), now.trim());
                self.violated("safe state", what);
            }
        }
        self.launch()?;
        self.may_end.push("it is new");
        self.calm("after the agent died")
    }

    /// PIDs of the guards. While one guard replaces another, there are two.
    fn guards(&self) -> Vec<u32> {
        let all = self.churn.stage.processes().into_iter();
        all.filter(|(_, line)| line.contains(" guard --once")).map(|(pid, _)| pid).collect()
    }

    pub fn guard(&self) -> Option<u32> {
        self.guards().first().copied()
    }

    /// Kills agent and guard.
    pub fn kill_both(&mut self) {
        self.guards().into_iter().for_each(|pid| stage::signal(pid, "KILL"));
        stage::end(&mut self.agent);
        // Also kills a guard that was being started.
        self.guards().into_iter().for_each(|pid| stage::signal(pid, "KILL"));
    }

    /// Kills agent and guard, and checks that `restore` restores everything.
    fn all_back(&mut self) -> anyhow::Result<()> {
        self.churn.count("everything killed, and restored");
        self.kill_both();
        self.restored()?;
        self.launch()?;
        self.may_end.push("it is new");
        self.calm("after a restore")
    }

    fn restored(&mut self) -> anyhow::Result<()> {
        self.figures.restores += 1;
        let done = self.churn.stage.command(&["restore"]).stdout(Stdio::null()).output()?;
        if !done.status.success() {
            let damaged = std::fs::read_to_string(self.churn.stage.state.join("machine.damaged"));
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            self.violated("restore", format!("{}: {said}{}", done.status, damaged.unwrap_or_default()));
        }
        for what in self.holds.not_as_at_the_start(&self.churn.stage) {
            self.violated("restore", what);
        }
        self.check();
        Ok(())
    }

    /// Samples the resources that the agent uses, if it has run for [`WARM_UP`]. Drops the samples of an earlier agent.
    fn lull(&mut self) {
        let pid = self.agent.id();
        if self.lulls_of != Some(pid) {
            (self.lulls_of, self.lulls_from) = (Some(pid), Instant::now() + WARM_UP);
            self.lulls.clear();
            self.open.clear();
        }
        let open = stage::open_files(pid);
        if let Some(mut agent) = used(pid).filter(|_| Instant::now() > self.lulls_from) {
            // Descriptors of cgroup files are counted once per file: the host layer caches some hundred of them.
            // Further descriptors of the same file are a leak.
            agent.fds -= open.keys().filter(|file| file.starts_with("/sys/fs/cgroup")).count();
            self.lulls.push((self.at() / 60.0, agent, self.guard().and_then(used)));
            self.open.truncate(2);
            self.open.push(open);
        }
    }

    /// Ends the soak: runs `restore`, and checks that nothing is left behind.
    fn finish(&mut self) -> anyhow::Result<()> {
        self.with.end(&self.churn.stage)?;
        self.churn.rest()?;
        self.kill_both();
        self.with.end_engine();
        self.restored()?;
        let gone = self.until(GONE_WITHIN, |chaos| chaos.churn.stage.processes().is_empty());
        if !gone {
            let left = self.churn.stage.processes();
            self.violated("left", format!("{left:?}"));
        }
        let stage = &self.churn.stage;
        let others = stage.cgroups().into_iter().filter(|dir| !dir.ends_with(&stage.top));
        let mut left: Vec<String> = others.map(|dir| dir.display().to_string()).collect();
        for entry in std::fs::read_dir(&stage.state).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(".journal") && entry.metadata()?.len() > 0 {
                left.push(name);
            }
        }
        if !left.is_empty() {
            self.violated("left", left.join(", "));
        }
        let mut grown = Vec::new();
        growth(&self.lulls, &mut grown);
        for what in grown {
            let more = match &self.open[..] {
                [_, first, last] => {
                    last.iter().filter(|(file, count)| first.get(*file) != Some(count)).collect()
                }
                _ => Vec::new(),
            };
            self.violated("growth", format!("{what}; files that were not open in the first lulls: {more:?}"));
        }
        Ok(())
    }

    /// Records a disturbance as a reason for which the agent may exit, and counts it.
    pub fn allow(&mut self, trouble: Trouble) {
        self.may_end.push(trouble.name());
        self.churn.count(trouble.name());
    }

    /// The last line of the record.
    pub fn summary(&self) -> serde_json::Value {
        let violations: Vec<_> = self
            .violations
            .iter()
            .map(|one| {
                json!({ "at_s": one.at_s, "invariant": one.invariant, "what": one.what, "faults_before": one.faults })
            })
            .collect();
        json!({
            "seconds": self.at(), "seed": self.seed, "events": self.churn.counts, "faults": self.with.faults(),
            "skipped": self.with.skipped, "checks": self.holds.checks, "rounds": self.figures.rounds,
            "agents": self.figures.agents, "agents_not_started": self.figures.not_started,
            "restores": self.figures.restores, "safe_states": self.figures.safe.len(),
            "safe_state_s_longest": self.figures.longest_safe_s(), "calm_s_longest": self.figures.longest_calm_s(),
            "calms_that_waited": self.figures.waited, "violations": violations,
        })
    }
}

/// Kills a process, and puts a dummy child in its place.
fn end_of(child: &mut Child) -> anyhow::Result<Child> {
    stage::end(child);
    Ok(std::mem::replace(child, std::process::Command::new("true").spawn()?))
}

/// Returns a line for each thread of a process: its state, the kernel function in which it waits, and its system call.
fn threads(pid: u32, line: &str) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let one = |task: std::fs::DirEntry| {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let stat = read("stat");
        let state = Stat::parse(&stat)?.text(3)?.to_owned();
        let tid = task.file_name();
        Some(format!("{} of {line}: {state} in {}, {}", tid.display(), read("wchan"), read("syscall").trim()))
    };
    tasks.filter_map(one).collect()
}
