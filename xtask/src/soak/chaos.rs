//! The chaos soak: rounds of a storm, in which anything happens and calls fail at the edge of commensal, and a calm, in which all has to
//! be right again. `cargo xtask soak --chaos`; a short form of it is part of `cargo xtask test --all`.
//!
//! ```text
//! storm   6 to 12 s of events (disturb.rs, churn.rs), in every other one with faults (commensal_host::faults)
//! calm    faults off, disk there, everybody may run: the groups file is in force again, or the agent says what it waits for
//! then    by turns: only the agent dies, and the guard brings the safe state; everything dies, and `restore` puts all back; nothing
//! always  invariants.rs, in every step
//! ```
//!
//! In the second half the agent is neither killed nor stopped, and what it holds more of from calm to calm is lost.

use super::churn::Churn;
use super::disturb::{Disturbances, Trouble};
use super::invariants::Invariants;
use super::options::{Args, growth, last_lines};
use super::report;
use crate::stage::{self, Stage, Used, used};
use anyhow::Context;
use serde_json::json;
use std::collections::BTreeMap;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Pause between two steps; invariants are checked in each.
const STEP: Duration = Duration::from_millis(250);
/// Length of a storm, s.
const STORM_S: std::ops::Range<u64> = 6..12;
/// The lease of the agents.
pub const LEASE: Duration = Duration::from_secs(3);
/// The safe state is there this long after the agent's death: the guard's wait for the lock and for refused values, on a busy machine.
const SAFE_WITHIN: Duration = Duration::from_secs(4);
/// How long after a storm the groups file is in force: a new agent starts, and pauses between two tries of a value that was refused
/// have grown to twice a storm's length at most.
const CALM_WITHIN: Duration = Duration::from_secs(30);
/// How long processes may take to end.
const GONE_WITHIN: Duration = Duration::from_secs(10);
/// How long an agent runs before what it holds counts: the probe is loaded, and buffers have grown to their size.
const WARM_UP: Duration = Duration::from_secs(90);
/// Which calls of an agent and its guard fail in a storm, per thousand: a few of all, of which there are some hundred in a tick, or
/// many of those that change something, of which there are few.
const FAULTS: [&str; 4] = [
    "per-mille=1",
    "per-mille=5",
    "per-mille=100 kinds=write+create+remove+rename+set-attribute+state-write+state-rename",
    "per-mille=300 kinds=write+set-attribute+state-write",
];
/// The limits of the groups files: of offline groups, and of online ones by turns.
const OFFLINE_LIMIT: u64 = 300;
const ONLINE_LIMITS: [u64; 3] = [500, 450, 400];

/// A violation: an invariant, when, and what was seen.
#[derive(Debug)]
pub struct Violation {
    pub at_s: f64,
    pub invariant: &'static str,
    pub what: String,
    /// The last faults before it.
    pub faults: Vec<String>,
}

/// The soak.
pub struct Chaos {
    // Those that have processes in the cgroups end before them.
    pub holds: Invariants,
    pub with: Disturbances,
    pub churn: Churn,
    pub agent: Child,
    pub seed: u64,
    pub started: Instant,
    pub violations: Vec<Violation>,
    /// Rounds, agents started, safe states seen and their longest time, restores.
    pub figures: report::Figures,
    /// Why the agent may end in this round; empty in a calm.
    pub may_end: Vec<&'static str>,
    /// Whether this agent has put the groups in force.
    was_up: bool,
    lulls: Vec<(f64, Used, Option<Used>)>,
    lulls_of: Option<u32>,
    lulls_from: Instant,
    /// What the agent had open in the first two lulls and in the last one.
    open: Vec<BTreeMap<String, usize>>,
    pub second_half: bool,
    last_seen: Vec<String>,
}

/// Runs it.
///
/// # Errors
/// When something was not as it must be; all of it is printed before.
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
    println!("what the agents said last:\n{}", last_lines(&chaos.churn.stage.said(), 40));
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
                // A lull is like the one before.
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

    /// Notes a violation, once as long as it lasts.
    pub fn violated(&mut self, invariant: &'static str, what: String) {
        let faults = self.with.last_faults(5);
        println!("{:.1} s: {invariant}: {what}", self.at());
        self.violations.push(Violation { at_s: self.at(), invariant, what, faults });
    }

    /// Checks the invariants.
    pub fn check(&mut self) {
        let seen = self.holds.broken(&self.churn.stage);
        let fresh: Vec<_> = seen.iter().filter(|one| !self.last_seen.contains(&one.what)).cloned().collect();
        self.last_seen = seen.into_iter().map(|one| one.what).collect();
        for one in fresh {
            self.violated(one.invariant, one.what);
        }
    }

    /// Checks again and again until `holds`, for `most` at most; whether it did.
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

    /// Another groups file: another limit of online groups, and what churn changes.
    pub fn other_groups(&mut self) -> anyhow::Result<()> {
        let limit = ONLINE_LIMITS[self.churn.below(3) as usize];
        self.holds.limited_to(limit);
        self.churn.more.0 = format!("pids.max = {limit}\n");
        self.churn.more.1 = self.with.group();
        self.churn.reload()
    }

    /// Starts an agent, as a service manager would.
    pub fn launch(&mut self) -> anyhow::Result<()> {
        self.figures.agents += 1;
        let which = FAULTS[self.churn.below(FAULTS.len() as u64) as usize];
        self.with.faults_of(&mut self.churn.stage, self.seed * 1_000 + self.figures.agents, which);
        let lease = format!("{}s", LEASE.as_secs());
        self.agent = self.churn.stage.launch(&["--lease", &lease], false)?;
        self.was_up = false;
        Ok(())
    }

    /// Another agent takes over from this one.
    pub fn take_over(&mut self) -> anyhow::Result<()> {
        self.figures.agents += 1;
        let lease = format!("{}s", LEASE.as_secs());
        let next = self.churn.stage.launch(&["--lease", &lease, "--takeover"], false)?;
        let mut old = std::mem::replace(&mut self.agent, next);
        let may_fail = !self.may_end.is_empty();
        let went = self.until(CALM_WITHIN, |_| matches!(old.try_wait(), Ok(Some(_))));
        let status = old.try_wait()?;
        match status {
            Some(status) if status.success() => {}
            // The one that was to come has failed, and the old one is still there.
            None if may_fail => self.agent = std::mem::replace(&mut old, end_of(&mut self.agent)?),
            Some(_) if may_fail => {}
            _ => {
                let what = format!("the agent that was to make room: {status:?}, gone {went}");
                self.violated("takeover", what);
                stage::end(&mut old);
            }
        }
        self.was_up = false;
        Ok(())
    }

    /// Starts an agent anew that has ended; one that ends without a reason is a violation.
    pub fn revive(&mut self) -> anyhow::Result<()> {
        if !self.was_up && self.churn.stage.is_up(self.agent.id()) {
            self.was_up = true;
        }
        let Some(status) = self.agent.try_wait()? else { return Ok(()) };
        let killed = std::os::unix::process::ExitStatusExt::signal(&status) == Some(9);
        if self.may_end.is_empty() || (!killed && self.was_up) {
            let why = self.may_end.join(", ");
            let said = last_lines(&self.churn.stage.said(), 3);
            let what = format!("an agent that ran ended: {status}; {why}; said: {said}");
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

    /// Everything that was in the way is taken away, and the groups file is in force within a time, or the agent says what it waits for.
    fn calm(&mut self, after: &str) -> anyhow::Result<()> {
        let stopped = self.with.end(&self.churn.stage)?;
        self.holds.meddled.clear();
        self.churn.rest()?;
        self.other_groups()?;
        // Who was stopped or starved may still be ended by the other one.
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
        let waits = seen.as_ref().is_some_and(|seen| {
            let some = |key: &str| seen[key].as_array().is_some_and(|all| !all.is_empty());
            some("problems") || some("drift")
        });
        match waits {
            true => self.figures.waited += 1,
            false => {
                let answers = seen.map(|seen| format!("pid {} ticks {}", seen["pid"], seen["ticks"]));
                let what = format!(
                    "{after}, {} s later: {}, and agent {} says nothing ({answers:?})",
                    CALM_WITHIN.as_secs(),
                    unmet.unwrap_or_else(|| "the agent does not answer".to_owned()),
                    self.agent.id()
                );
                self.violated("convergence", what);
                // Whatever is wrong with this one, the next one begins anew.
                stage::end(&mut self.agent);
                self.launch()?;
            }
        }
        Ok(())
    }

    /// Only the agent dies; the guard is there, nothing is in its way.
    fn agent_dies(&mut self) -> anyhow::Result<()> {
        if self.second_half || self.guard().is_none() || !self.churn.stage.is_up(self.agent.id()) {
            return Ok(());
        }
        self.churn.count("agent killed in a calm");
        let since = Instant::now();
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
        if self.holds.unmet_offline(&self.churn.stage, OFFLINE_LIMIT) {
            self.violated("safe state", "an offline group is no longer held back".to_owned());
        }
        self.launch()?;
        self.may_end.push("it is new");
        self.calm("after the agent died")
    }

    /// The guards: while one takes over from another there are two.
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
        // One that was being started.
        self.guards().into_iter().for_each(|pid| stage::signal(pid, "KILL"));
    }

    /// Everything dies, and `restore` puts everything back.
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

    /// Notes what the agent holds, once it has run for a while; another one begins anew.
    fn lull(&mut self) {
        let pid = self.agent.id();
        if self.lulls_of != Some(pid) {
            (self.lulls_of, self.lulls_from) = (Some(pid), Instant::now() + WARM_UP);
            self.lulls.clear();
            self.open.clear();
        }
        let open = stage::open_files(pid);
        if let Some(mut agent) = used(pid).filter(|_| Instant::now() > self.lulls_from) {
            // One descriptor of a cgroup's file is the host's, which keeps some hundred at hand; more than one is a leak.
            agent.fds -= open.keys().filter(|file| file.starts_with("/sys/fs/cgroup")).count();
            self.lulls.push((self.at() / 60.0, agent, self.guard().and_then(used)));
            self.open.truncate(2);
            self.open.push(open);
        }
    }

    /// The end: all is put back, and nothing stays.
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
            self.violated("growth", format!("{what}; open now and not before: {more:?}"));
        }
        Ok(())
    }

    /// What stands in the way now, as the report has it.
    pub fn allow(&mut self, trouble: Trouble) {
        self.may_end.push(trouble.name());
        self.churn.count(trouble.name());
    }

    /// The record's last line.
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

/// Ends a process and leaves it in its place.
fn end_of(child: &mut Child) -> anyhow::Result<Child> {
    stage::end(child);
    Ok(std::mem::replace(child, std::process::Command::new("true").spawn()?))
}
