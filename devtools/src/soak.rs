//! A soak test: a series of agents under random events and failures, and finally one agent for a long time, to detect
//! leaks. `cargo xtask soak` and `cargo xtask ci --long` run it.
//!
//! ```text
//! first half    cgroups and processes come and go, groups files change (some are invalid), another program writes to the
//!               cgroups, offline load, queued commands; every 15 s agent, guard or both get SIGKILL, or another agent
//!               replaces this one
//! second half   the same without the kills; once a minute a lull, in which everything is as at the start: resources of
//!               which the agent uses more in each lull than in the one before are leaked
//! all the time  no online cgroup is limited
//! at the end    after `restore` every file is as at the start, and no process, cgroup or journal is left
//! ```

mod chaos;
mod churn;
mod disturb;
mod engine;
mod invariants;
mod options;
mod report;

use crate::stage::{self, Stage, Used, used};
use anyhow::{Context, bail};
use churn::Churn;
pub use options::Args;
use options::{growth, last_lines};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const RECORD_EVERY: Duration = Duration::from_secs(5);
const KILL_EVERY: Duration = Duration::from_secs(15);
const LULL_EVERY: Duration = Duration::from_secs(60);
/// Length of a lull (a time without events) before its sample is taken. It is longer than the agent's longest interval
/// between two rounds in this test.
const LULL: Duration = Duration::from_secs(12);
/// The agents' lease. It is so long that the guard kills no agent for being slow on a busy machine, which would count
/// as a failure.
const LEASE: [&str; 2] = ["--lease", "30s"];
const STEP: Duration = Duration::from_millis(250);

/// Returns why a soak cannot run on this machine; `None` if it can.
pub fn obstacle() -> Option<String> {
    Stage::new("soak", Path::new("commensal")).err().map(|error| format!("{error:#}"))
}

/// Runs the soak.
///
/// # Errors
/// If a check failed; all failures have been printed then.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.chaos {
        // Built before the test, so that the compiler's resource use is not measured.
        let program = stage::with_faults(!args.quick)?;
        return match disturb::in_own_mounts(&args.words())? {
            Some(true) => Ok(()),
            Some(false) => bail!("the chaos soak failed"),
            None => chaos::run(args, &program),
        };
    }
    let program = stage::release()?;
    let mut soak = Soak::new(args, Stage::new("soak", &program)?)?;
    let done = soak.go(args.time);
    let log = soak.churn.stage.said();
    let wrong = done.and_then(|()| soak.finish())?;
    if !wrong.is_empty() {
        println!("last output of the agents:\n{}", last_lines(&log, 30));
        bail!("the soak found these violations:\n{}", wrong.join("\n"));
    }
    Ok(())
}

struct Soak {
    churn: Churn,
    agent: Child,
    /// Whether the soak itself killed the agent.
    killed: bool,
    started: Instant,
    record: Option<std::fs::File>,
    /// Contents of every file before the soak.
    before: BTreeMap<PathBuf, String>,
    lulls: Vec<(f64, Used, Option<Used>)>,
    looks: Vec<Value>,
    wrong: Vec<String>,
    checks: u64,
}

impl Soak {
    fn new(args: &Args, stage: Stage) -> anyhow::Result<Soak> {
        let churn = Churn::new(stage, args.seed)?;
        let before = churn.stage.settings();
        let agent = churn.stage.agent(&LEASE, true)?;
        let record = args
            .record
            .as_ref()
            .map(std::fs::File::create)
            .transpose()
            .context("cannot create the record file")?;
        Ok(Soak {
            churn,
            agent,
            killed: false,
            started: Instant::now(),
            record,
            before,
            lulls: Vec::new(),
            looks: Vec::new(),
            wrong: Vec::new(),
            checks: 0,
        })
    }

    fn go(&mut self, time: Duration) -> anyhow::Result<()> {
        let half = time / 2;
        let (mut next_look, mut next_kill) = (RECORD_EVERY, KILL_EVERY);
        let mut next_lull = half + LULL_EVERY;
        while self.started.elapsed() < time {
            let now = self.started.elapsed();
            self.churn.step()?;
            self.check();
            if now >= next_look {
                next_look = now + RECORD_EVERY;
                self.look(false)?;
            }
            if now < half && now >= next_kill {
                next_kill = now + KILL_EVERY;
                self.kill()?;
            } else if now >= next_lull && now + LULL < time {
                next_lull = now + LULL_EVERY;
                self.lull()?;
            }
            self.revive()?;
            std::thread::sleep(STEP);
        }
        Ok(())
    }

    /// Ends all events and returns everything to the state at the start, for long enough that the agent notices.
    fn lull(&mut self) -> anyhow::Result<()> {
        self.churn.rest()?;
        let end = Instant::now() + LULL;
        while Instant::now() < end {
            self.check();
            std::thread::sleep(STEP);
        }
        self.look(true)
    }

    fn guard(&self) -> Option<u32> {
        let of = |(_, line): &(u32, String)| line.contains(" guard");
        self.churn.stage.processes().into_iter().find(of).map(|(pid, _)| pid)
    }

    fn look(&mut self, lull: bool) -> anyhow::Result<()> {
        let at = self.started.elapsed().as_secs_f64();
        let (agent, guard) = (used(self.agent.id()), self.guard().and_then(used));
        if let Some(agent) = agent.filter(|_| lull) {
            self.lulls.push((at / 60.0, agent, guard));
        }
        let state = &self.churn.stage.state;
        let size = |name: &str| std::fs::metadata(state.join(name)).map_or(0, |data| data.len());
        let seen = self.churn.stage.snapshot().unwrap_or_default();
        let of = |used: Option<Used>| {
            used.map(|one| json!({ "rss_kib": one.rss_kib, "cpu_s": one.cpu_s, "fds": one.fds, "threads": one.threads }))
        };
        let look = json!({
            "at_s": at, "lull": lull, "pid": self.agent.id(), "agent": of(agent), "guard": of(guard),
            "ticks": seen["ticks"], "tick_ms": seen["tick_ms"], "late": seen["cost"]["late_ticks"],
            "writes": seen["cost"]["writes"], "drift": seen["drift"].as_array().map(Vec::len),
            "problems": seen["problems"], "groups": self.churn.groups(),
            "journal_bytes": size("machine.journal"), "audit_bytes": size("audit.log"),
        });
        if let Some(record) = &mut self.record {
            writeln!(record, "{look}")?;
        }
        self.looks.push(look);
        Ok(())
    }

    fn check(&mut self) {
        self.checks += 1;
        let at = self.started.elapsed().as_secs_f64();
        self.wrong.extend(self.churn.limited().map(|what| format!("{at:.1} s: {what}")));
    }

    /// Sends SIGKILL to the agent, the guard or both, or starts an agent that replaces the running one.
    fn kill(&mut self) -> anyhow::Result<()> {
        let guard = self.guard();
        match self.churn.below(4) {
            0 => {
                self.churn.count("agent killed");
                self.killed = true;
                stage::end(&mut self.agent);
            }
            1 => {
                self.churn.count("guard killed");
                guard.into_iter().for_each(|pid| stage::signal(pid, "KILL"));
            }
            2 => {
                self.churn.count("both killed");
                self.killed = true;
                guard.into_iter().for_each(|pid| stage::signal(pid, "KILL"));
                stage::end(&mut self.agent);
            }
            _ => {
                self.churn.count("replaced");
                let next = self.churn.stage.agent(&[&LEASE[..], &["--replace"]].concat(), true)?;
                let mut old = std::mem::replace(&mut self.agent, next);
                let status = old.wait()?;
                if !status.success() {
                    self.wrong.push(format!("the agent that was replaced exited with {status}"));
                }
            }
        }
        Ok(())
    }

    /// Restarts an agent that has exited, like a service manager. An exit that the soak did not cause is a failure.
    fn revive(&mut self) -> anyhow::Result<()> {
        let Some(status) = self.agent.try_wait()? else { return Ok(()) };
        if std::os::unix::process::ExitStatusExt::signal(&status) != Some(9) {
            self.wrong.push(format!("an agent exited although nothing had stopped it: {status}"));
        } else if !self.killed {
            self.wrong.push("the guard killed an agent that did not hang".to_owned());
        }
        self.killed = false;
        std::thread::sleep(STEP);
        self.agent = self.churn.stage.agent(&LEASE, true)?;
        Ok(())
    }

    /// Stops the agent, runs `restore`, compares the files with those at the start, and prints the statistics; returns
    /// the failures.
    fn finish(mut self) -> anyhow::Result<Vec<String>> {
        self.churn.rest()?;
        stage::signal(self.agent.id(), "TERM");
        let status = self.agent.wait()?;
        if !status.success() {
            self.wrong.push(format!("the agent exited with {status}"));
        }
        let stage = &self.churn.stage;
        let restored = stage.command(&["restore"]).stdout(Stdio::null()).output()?;
        if !restored.status.success() {
            self.wrong.push(format!("restore: {}", String::from_utf8_lossy(&restored.stderr)));
        }
        for (file, was) in &self.before {
            let now = std::fs::read_to_string(file).unwrap_or_else(|error| error.to_string());
            if now != *was {
                self.wrong.push(format!("{}: was {:?}, is {:?}", file.display(), was.trim(), now.trim()));
            }
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        while !stage.processes().is_empty() && Instant::now() < deadline {
            std::thread::sleep(STEP);
        }
        self.wrong
            .extend(stage.processes().into_iter().map(|(pid, line)| format!("left: process {pid} {line}")));
        let others = stage.cgroups().into_iter().filter(|dir| !dir.ends_with(&stage.top));
        self.wrong.extend(others.map(|dir| format!("left: {}", dir.display())));
        for entry in std::fs::read_dir(&stage.state)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(".journal") && entry.metadata()?.len() > 0 {
                self.wrong.push(format!("left: {name}"));
            }
        }
        growth(&self.lulls, &mut self.wrong);
        self.print();
        Ok(self.wrong)
    }

    fn print(&self) {
        println!("{:.1} minutes, seed {}", self.started.elapsed().as_secs_f64() / 60.0, self.churn.seed);
        for (what, count) in &self.churn.counts {
            println!("{count:>6} {what}");
        }
        println!("{:>6} checks that no online cgroup is limited", self.checks);
        let numbers = |path: &[&str]| -> Vec<f64> {
            let of = |look: &Value| path.iter().fold(look, |value, key| &value[*key]).as_f64();
            let mut numbers: Vec<f64> = self.looks.iter().filter_map(of).collect();
            numbers.sort_by(f64::total_cmp);
            numbers
        };
        let paths: [(&str, &[&str]); 9] = [
            ("agent's memory, KiB", &["agent", "rss_kib"]),
            ("agent's descriptors", &["agent", "fds"]),
            ("agent's threads", &["agent", "threads"]),
            ("guard's memory, KiB", &["guard", "rss_kib"]),
            ("length of a tick, ms", &["tick_ms"]),
            ("late ticks of an agent", &["late"]),
            ("knobs that another program writes", &["drift"]),
            ("journal, bytes", &["journal_bytes"]),
            ("audit log, bytes", &["audit_bytes"]),
        ];
        println!("{:<34} {:>10} {:>10} {:>10}", "samples every 5 s", "median", "P99", "largest");
        for (name, path) in paths {
            let all = numbers(path);
            let at =
                |share: f64| all.get(((all.len() as f64 * share) as usize).min(all.len().saturating_sub(1)));
            let Some(((middle, high), most)) = at(0.5).zip(at(0.99)).zip(all.last()) else { continue };
            println!("{name:<34} {middle:>10.1} {high:>10.1} {most:>10.1}");
        }
        if let Some((share, minutes)) = self.cpu() {
            println!("the last agent: {share:.2} % of a core over {minutes:.1} minutes of changes");
        }
    }

    /// CPU use of the last agent in per cent of a core, and the time over which it was measured in minutes.
    fn cpu(&self) -> Option<(f64, f64)> {
        let last = self.looks.last()?;
        let first = self.looks.iter().find(|look| look["pid"] == last["pid"])?;
        let of = |look: &Value| Some((look["at_s"].as_f64()?, look["agent"]["cpu_s"].as_f64()?));
        let ((from, used_before), (to, used_after)) = (of(first)?, of(last)?);
        (to > from).then(|| ((used_after - used_before) / (to - from) * 100.0, (to - from) / 60.0))
    }
}
