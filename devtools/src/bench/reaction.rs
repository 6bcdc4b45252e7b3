//! Reaction time of the agent: from the moment when offline work starts to harm an online group to the first write that
//! restricts the offline work.
//!
//! The online group's threads alternately sleep and compute for 1 ms. The offline group's threads, one per CPU, are
//! stopped (SIGSTOP); a trial resumes them (SIGCONT) at a random moment of a tick. Both groups are at the same level
//! with the same weight, so that their class alone restricts neither and the controller must act. The clock
//! (CLOCK_MONOTONIC) starts before the signal is sent. It stops when the kernel reports (inotify) a write to the CPU
//! set of the offline group after which the set has fewer CPUs. Each trial uses a new agent, because an agent that has
//! measured harm restricts offline work more for minutes.
//!
//! With the probe, a second row shows the part of that time since the kernel raised the alarm, as the agent counts it
//! (`reactions` in its snapshot).

use super::agent::verdict;
use super::quantiles::Quantiles;
use crate::stage::{self, Stage};
use anyhow::Context;
use commensal_host::{For, GroupWatch, Source, Waker};
use commensal_lab::rng::Rng;
use serde_json::{Value, json};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

/// Number of trials with the probe, and of trials without the probe; `COMMENSAL_TRIALS` overrides it.
const TRIALS: usize = 100;
const TRIALS_VARIABLE: &str = "COMMENSAL_TRIALS";
const GOAL_MS: f64 = 100.0;
/// Goal for the time since the alarm.
const ALARM_GOAL_MS: f64 = 20.0;
/// Timeout for a new agent to lift its restriction of offline work.
const CALM: Duration = Duration::from_secs(30);
/// The series is aborted after this number of consecutive trials that cannot start because offline work is already
/// restricted.
const HELD: usize = 3;
const PATIENCE: Duration = Duration::from_secs(20);
/// Time after a write for the agent to publish its next snapshot.
const SNAPSHOT: Duration = Duration::from_millis(40);
/// Time without any restriction that must pass before offline work is resumed.
const QUIET: Duration = Duration::from_millis(1_500);

/// Measures and prints the reaction times; returns them as JSON.
pub fn run(program: &Path) -> anyhow::Result<Value> {
    let trials = std::env::var(TRIALS_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(TRIALS);
    println!(
        "\nreaction: from SIGCONT of offline work to the write that restricts it, {trials} trials each, ms"
    );
    println!("{:<30} {} {:>8} {:>8}", "", Quantiles::HEADER, "none", "held");
    let mut rows = Vec::new();
    for (name, probe) in [("with the probe", true), ("without it", false)] {
        let outcomes = measure(program, probe, trials)?;
        let count = |what: Outcome| outcomes.iter().filter(|one| **one == what).count();
        let (none, held) = (count(Outcome::None), count(Outcome::Held));
        let times = Quantiles::new(
            outcomes
                .iter()
                .filter_map(|one| match one {
                    Outcome::After { ms, .. } => Some(*ms),
                    _ => None,
                })
                .collect(),
        );
        let since_alarm: Vec<f64> = outcomes
            .iter()
            .filter_map(|one| match one {
                Outcome::After { since_alarm_ms, .. } => *since_alarm_ms,
                _ => None,
            })
            .collect();
        let met = if probe { verdict(none == 0 && times.at(0.99) <= GOAL_MS) } else { "" };
        println!("{name:<30} {times} {none:>8} {held:>8}   {met}");
        rows.push(json!({
            "probe": probe, "trials": outcomes.len(), "no_reaction": none, "held_before": held, "figures": times.json(),
        }));
        if !since_alarm.is_empty() {
            let (count, times) = (since_alarm.len(), Quantiles::new(since_alarm));
            let met = verdict(times.at(0.99) <= ALARM_GOAL_MS);
            let name = format!("of it since the alarm ({count})");
            println!("{name:<30} {times} {:>8} {:>8}   {met}", "", "");
            rows.push(json!({ "since_alarm": true, "trials": count, "figures": times.json() }));
        }
    }
    println!(
        "goal: P99 {GOAL_MS} ms with the probe, {ALARM_GOAL_MS} ms since the alarm; none: no reaction within {} s; held: offline work was already \
         restricted",
        PATIENCE.as_secs()
    );
    Ok(json!(rows))
}

/// Outcome of a trial.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Outcome {
    /// The agent reacted.
    After {
        /// Time from the harm to the write.
        ms: f64,
        /// The part since the kernel raised the alarm; `None` if the agent counted no reaction to an alarm.
        since_alarm_ms: Option<f64>,
    },
    /// The agent did not react.
    None,
    /// The agent restricted offline work before the trial resumed it.
    Held,
}

fn measure(program: &Path, probe: bool, trials: usize) -> anyhow::Result<Vec<Outcome>> {
    let stage = Stage::new("react", program)?;
    for path in ["on", "on/svc", "mixed", "mixed/job"] {
        stage.make(path)?;
    }
    let top = &stage.top;
    stage.groups(&format!(
        "[group.web]\nclass = \"online\"\ntarget-wakeup-p99 = \"200 us\"\nmatch = [{{ cgroup = \"/{top}/on/svc\" }}]\n\
         [group.job]\nclass = \"offline\"\nmatch = [{{ cgroup = \"/{top}/mixed/job\" }}]\n"
    ))?;
    let cpus = std::thread::available_parallelism()?.get();
    let pulse =
        format!("exec {} workload pulse --threads {cpus} --period-us 2000 --work-us 1000", program.display());
    let mut everybody = vec![stage.start("on/svc", &pulse)?];
    for _ in 0..cpus {
        everybody.push(stage.start("mixed/job", "while :; do :; done")?);
    }
    let offline: Vec<u32> = everybody[1..].iter().map(Child::id).collect();
    let mut rng = Rng::new(1);
    let mut outcomes: Vec<Outcome> = Vec::new();
    let done = (0..trials).try_for_each(|number| {
        if outcomes.len() >= HELD && outcomes.iter().rev().take(HELD).all(|one| *one == Outcome::Held) {
            return Ok(());
        }
        tell(&offline, "STOP");
        let wait = QUIET + Duration::from_micros(rng.u64() % 1_000_000);
        outcomes.push(trial(&stage, &offline, probe, wait).with_context(|| format!("trial {number}"))?);
        anyhow::Ok(())
    });
    for mut child in everybody {
        stage::end(&mut child);
    }
    done?;
    Ok(outcomes)
}

fn tell(pids: &[u32], name: &str) {
    pids.iter().for_each(|pid| stage::signal(*pid, name));
}

fn trial(stage: &Stage, offline: &[u32], probe: bool, wait: Duration) -> anyhow::Result<Outcome> {
    let mut agent = stage.agent(&["--no-guard", "--on-exit", "restore"], probe)?;
    let done = reaction(stage, offline, wait);
    stage::signal(agent.id(), "TERM");
    agent.wait()?;
    done
}

/// Number of the agent's reactions to alarms so far, and the sum of their durations (ms).
fn reactions(stage: &Stage) -> Option<(u64, f64)> {
    let seen = stage.snapshot()?;
    Some((seen["reactions"]["count"].as_u64()?, seen["reactions"]["total_ms"].as_f64()?))
}

fn reaction(stage: &Stage, offline: &[u32], wait: Duration) -> anyhow::Result<Outcome> {
    let file = stage.file("mixed/job", "cpuset.cpus").context("no hierarchy has cpuset")?;
    let all = std::fs::read_to_string(stage.file("", "cpuset.cpus").context("no cpuset")?)?;
    let free = |file: &PathBuf| {
        std::fs::read_to_string(file).is_ok_and(|text| text == all || text.trim().is_empty())
    };
    let deadline = Instant::now() + CALM;
    // The agent loads the probe in its second tick, and it restricts offline work when it starts.
    let calm = |seen: &Value| seen["ticks"].as_u64() > Some(3);
    while !(free(&file) && stage.snapshot().is_some_and(|seen| calm(&seen))) {
        if Instant::now() > deadline {
            return Ok(Outcome::Held);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let (watch, waker) = (GroupWatch::new()?, Waker::new()?);
    watch.add(file.parent().context("a folder")?, For::Writes)?;
    std::thread::sleep(wait);
    if !free(&file) {
        return Ok(Outcome::Held);
    }
    let before = reactions(stage);
    let began = Instant::now();
    tell(offline, "CONT");
    while began.elapsed() < PATIENCE {
        waker.wait(&[Source::readable(watch.as_fd())], Duration::from_millis(500))?;
        watch.seen()?;
        if !free(&file) {
            let ms = began.elapsed().as_secs_f64() * 1e3;
            // The next snapshot has the reaction.
            std::thread::sleep(SNAPSHOT);
            let since_alarm_ms = reactions(stage)
                .zip(before)
                .and_then(|(after, before)| (after.0 == before.0 + 1).then_some(after.1 - before.1));
            return Ok(Outcome::After { ms, since_alarm_ms });
        }
    }
    Ok(Outcome::None)
}
