//! A soak test: a series of agents under everything that may happen to them, and finally one agent for a long time, to
//! detect leaks. `cargo xtask soak`, and a part of the long tier.
//!
//! ```text
//! first half    cgroups and processes come and go, groups files change (some are broken), another writer, offline load, queued
//!               commands, and every 15 s SIGKILL for the agent, its guard or both, or another agent takes over
//! second half   the same without the kills; once a minute a lull, in which everything is as at the start: whatever the agent
//!               holds more of in one lull than in the one before is lost
//! all along     no online cgroup is ever limited
//! at the end    `restore`: every file as at the start; no process, cgroup or journal left
//! ```

mod chaos;
mod churn;
mod disturb;
mod engine;
mod invariants;
mod report;

use crate::stage::{self, Stage, Used, used};
use anyhow::{Context, bail};
use churn::Churn;
use commensal_core::units::{TimeSpan, UnitError};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Variable with the duration of the soak in the long tier.
const TIME_VARIABLE: &str = "COMMENSAL_SOAK";
const RECORD_EVERY: Duration = Duration::from_secs(5);
const KILL_EVERY: Duration = Duration::from_secs(15);
const LULL_EVERY: Duration = Duration::from_secs(60);
/// Length of a lull before its sample is taken: longer than the agent's longest interval between two rounds here.
const LULL: Duration = Duration::from_secs(12);
/// Long enough that no agent is ended for being slow on a busy machine, which would count as a failure here.
const LEASE: [&str; 2] = ["--lease", "30s"];
const STEP: Duration = Duration::from_millis(250);
/// What an agent may hold more at the end than in the second lull: descriptors, and memory in KiB. A leak of one
/// descriptor or 1 KiB per change would add up to some hundred.
const MORE_FDS: f64 = 8.0;
const MORE_KIB: f64 = 2_048.0;
/// Duration of the chaos soak of `cargo xtask test --all`.
const SHORT_CHAOS: Duration = Duration::from_secs(60);
/// With fewer lulls growth cannot be judged.
const FEWEST_LULLS: usize = 4;

/// Options of a soak.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Duration.
    #[arg(long = "for", value_name = "TIME", default_value = "20m", value_parser = span)]
    time: Duration,
    /// Seed of the random events.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// File for a line of JSON per sample; with --chaos for one with everything.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Rounds of storm and calm instead: calls that fail, kills and stops, a full disk, other writers, and what must hold all the
    /// time.
    #[arg(long)]
    chaos: bool,
    /// With --chaos the build of tests instead of an optimised one.
    #[arg(long, requires = "chaos")]
    quick: bool,
}

impl Args {
    /// The options used in the long tier.
    pub fn of_ci() -> Args {
        let asked = std::env::var(TIME_VARIABLE).ok();
        let time = asked.and_then(|text| span(&text).ok());
        let time = time.unwrap_or(Duration::from_secs(20 * 60));
        Args { time, seed: 1, record: None, chaos: false, quick: false }
    }

    /// The same as chaos.
    pub fn chaos_of_ci() -> Args {
        Args { chaos: true, ..Args::of_ci() }
    }

    /// The short form, with the build of tests.
    pub fn short_chaos() -> Args {
        Args { time: SHORT_CHAOS, chaos: true, quick: true, ..Args::of_ci() }
    }

    fn words(&self) -> Vec<String> {
        let (time, seed) = (format!("{} ms", self.time.as_millis()), self.seed.to_string());
        // `1m 30s` is one word.
        let mut words: Vec<String> = ["soak", "--for", &time, "--seed", &seed].map(str::to_owned).into();
        if let Some(path) = &self.record {
            words.extend(["--record".to_owned(), path.display().to_string()]);
        }
        words.extend(self.chaos.then(|| "--chaos".to_owned()));
        words.extend(self.quick.then(|| "--quick".to_owned()));
        words
    }
}

fn span(text: &str) -> Result<Duration, UnitError> {
    text.parse::<TimeSpan>().map(|span| span.0)
}

/// Why a soak cannot run here.
pub fn obstacle() -> Option<String> {
    Stage::new("soak", Path::new("commensal")).err().map(|error| format!("{error:#}"))
}

/// Runs the soak.
///
/// # Errors
/// When a check failed; all failures are printed before.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.chaos {
        // Built before, so that what is measured is not the compiler's.
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
        println!("what the agents said last:\n{}", last_lines(&log, 30));
        bail!("the soak found:\n{}", wrong.join("\n"));
    }
    Ok(())
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
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
        let record =
            args.record.as_ref().map(std::fs::File::create).transpose().context("make the record")?;
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

    /// Puts everything back as at the start, for as long as the agent needs to notice.
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

    /// Sends SIGKILL to agent, guard or both, or lets another agent take over.
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
                self.churn.count("taken over");
                let next = self.churn.stage.agent(&[&LEASE[..], &["--takeover"]].concat(), true)?;
                let mut old = std::mem::replace(&mut self.agent, next);
                let status = old.wait()?;
                if !status.success() {
                    self.wrong.push(format!("the agent that made room ended with {status}"));
                }
            }
        }
        Ok(())
    }

    /// Restarts ended processes like a service manager; an agent that ended without being killed is a failure.
    fn revive(&mut self) -> anyhow::Result<()> {
        let Some(status) = self.agent.try_wait()? else { return Ok(()) };
        if std::os::unix::process::ExitStatusExt::signal(&status) != Some(9) {
            self.wrong.push(format!("an agent ended by itself: {status}"));
        } else if !self.killed {
            self.wrong.push("an agent was ended by its guard although it did not hang".to_owned());
        }
        self.killed = false;
        std::thread::sleep(STEP);
        self.agent = self.churn.stage.agent(&LEASE, true)?;
        Ok(())
    }

    /// Ends the agent, restores, compares, and prints the figures; returns what was wrong.
    fn finish(mut self) -> anyhow::Result<Vec<String>> {
        self.churn.rest()?;
        stage::signal(self.agent.id(), "TERM");
        let status = self.agent.wait()?;
        if !status.success() {
            self.wrong.push(format!("the agent ended with {status}"));
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
            ("knobs that somebody else writes", &["drift"]),
            ("journal, bytes", &["journal_bytes"]),
            ("audit log, bytes", &["audit_bytes"]),
        ];
        println!("{:<34} {:>10} {:>10} {:>10}", "looks every 5 s", "median", "P99", "largest");
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

    /// CPU use of the last agent, per cent of a core, and over how many minutes.
    fn cpu(&self) -> Option<(f64, f64)> {
        let last = self.looks.last()?;
        let first = self.looks.iter().find(|look| look["pid"] == last["pid"])?;
        let of = |look: &Value| Some((look["at_s"].as_f64()?, look["agent"]["cpu_s"].as_f64()?));
        let ((from, used_before), (to, used_after)) = (of(first)?, of(last)?);
        (to > from).then(|| ((used_after - used_before) / (to - from) * 100.0, (to - from) / 60.0))
    }
}

/// Checks what the last agent held more of from lull to lull: time in minutes, agent, guard.
fn growth(lulls: &[(f64, Used, Option<Used>)], wrong: &mut Vec<String>) {
    let count = lulls.len();
    // The first lull belongs to the warm-up.
    let lulls = lulls.get(1..).unwrap_or_default();
    if lulls.len() < FEWEST_LULLS - 1 {
        println!("growth: not measured: {count} lulls, and {FEWEST_LULLS} are needed");
        return;
    }
    type Figure = fn(&Used) -> f64;
    let figures: [(&str, Figure, f64); 3] = [
        ("KiB of memory", |one| one.rss_kib as f64, MORE_KIB),
        ("descriptors", |one| one.fds as f64, MORE_FDS),
        ("threads", |one| one.threads as f64, 0.0),
    ];
    for (name, figure, most) in figures {
        for who in ["agent", "guard"] {
            let of = |(at, agent, guard): &(f64, Used, Option<Used>)| {
                let used = if who == "agent" { Some(*agent) } else { *guard };
                used.map(|used| (*at, figure(&used)))
            };
            let points: Vec<(f64, f64)> = lulls.iter().filter_map(of).collect();
            let (Some(first), Some(last)) = (points.first(), points.last()) else { continue };
            let per_minute = slope(&points);
            let more = last.1 - first.1;
            println!(
                "growth of {name}, {who}: {per_minute:+.2} per minute over {:.0} minutes, {} to {}",
                last.0 - first.0,
                first.1,
                last.1
            );
            if more > most {
                wrong.push(format!("the {who} holds {more} {name} more in the last lull"));
            }
        }
    }
}

/// Slope by least squares.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean = |pick: fn(&(f64, f64)) -> f64| points.iter().map(pick).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let both: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let square: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    if square > 0.0 { both / square } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_slope_and_a_point_has_none() {
        assert!((slope(&[(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]) - 2.0).abs() < 1e-9);
        assert!(slope(&[(3.0, 7.0)]).abs() < 1e-9);
        assert!(slope(&[]).abs() < 1e-9);
    }

    #[test]
    fn last_lines_are_the_last() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc");
        assert_eq!(last_lines("a", 2), "a");
    }
}
