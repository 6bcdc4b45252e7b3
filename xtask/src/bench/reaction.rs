//! Reaction time of the agent: from the moment that offline work starts to harm an online group to the first write that
//! restricts it.
//!
//! The online group's threads alternately sleep and compute for 1 ms; the offline group's threads, one per CPU, are
//! stopped and resumed (SIGCONT) at a random moment of a tick. Both groups are at the same level with the same weight,
//! so that their class alone restricts neither and the controller must act. The clock (CLOCK_MONOTONIC) starts before
//! the signal is sent and stops when the kernel reports (inotify) that the CPUs of the offline group were written, and
//! they are fewer. Each trial uses a new agent, since one that has seen harm is cautious for minutes.

use super::agent::verdict;
use crate::stage::{self, Stage};
use anyhow::Context;
use commensal_host::{For, GroupWatch, Sources, Waker};
use commensal_lab::rng::Rng;
use serde_json::{Value, json};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

/// Number of trials with and without the probe; the environment variable of this name overrides it.
const TRIALS: usize = 100;
const TRIALS_VARIABLE: &str = "COMMENSAL_TRIALS";
const GOAL_MS: f64 = 100.0;
/// Timeout for an agent to hold nothing back, and for its reaction.
const CALM: Duration = Duration::from_secs(30);
/// Number of trials in a row that cannot start, because offline work is already held back, after which the series ends.
const HELD: usize = 3;
const PATIENCE: Duration = Duration::from_secs(20);
/// Time without any restriction before offline work is resumed.
const QUIET: Duration = Duration::from_millis(1_500);

/// Measures and prints; returns the figures as JSON.
pub fn run(program: &Path) -> anyhow::Result<Value> {
    let trials = std::env::var(TRIALS_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(TRIALS);
    println!(
        "\nreaction: from SIGCONT of offline work to the write that squeezes it, {trials} trials each, ms"
    );
    println!(
        "{:<30} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "", "P50", "P90", "P99", "longest", "none", "held"
    );
    let mut rows = Vec::new();
    for (name, probe) in [("with the probe", true), ("without it", false)] {
        let outcomes = measure(program, probe, trials)?;
        let count = |what: Outcome| outcomes.iter().filter(|one| **one == what).count();
        let (none, held) = (count(Outcome::None), count(Outcome::Held));
        let mut times: Vec<f64> = outcomes
            .iter()
            .filter_map(|one| match one {
                Outcome::After(ms) => Some(*ms),
                _ => None,
            })
            .collect();
        times.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let index = ((times.len() as f64 * share).ceil() as usize).clamp(1, times.len().max(1)) - 1;
            times.get(index).copied().unwrap_or(f64::NAN)
        };
        let met = if probe { verdict(none == 0 && at(0.99) <= GOAL_MS) } else { "" };
        println!(
            "{name:<30} {:>8.1} {:>8.1} {:>8.1} {:>8.1} {none:>8} {held:>8}   {met}",
            at(0.5),
            at(0.9),
            at(0.99),
            at(1.0)
        );
        rows.push(json!({
            "probe": probe, "trials": outcomes.len(), "p50_ms": at(0.5), "p90_ms": at(0.9), "p99_ms": at(0.99),
            "longest_ms": at(1.0), "no_reaction": none, "held_before": held, "times_ms": times,
        }));
    }
    println!(
        "goal: P99 {GOAL_MS} ms with the probe; none: no reaction in {} s; held: offline work was held back already",
        PATIENCE.as_secs()
    );
    Ok(json!(rows))
}

/// Outcome of a trial.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Outcome {
    /// The agent reacted after this number of milliseconds.
    After(f64),
    /// The agent did not react.
    None,
    /// Offline work was held back before it started.
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

fn reaction(stage: &Stage, offline: &[u32], wait: Duration) -> anyhow::Result<Outcome> {
    let file = stage.file("mixed/job", "cpuset.cpus").context("no hierarchy has cpuset")?;
    let all = std::fs::read_to_string(stage.file("", "cpuset.cpus").context("no cpuset")?)?;
    let free = |file: &PathBuf| {
        std::fs::read_to_string(file).is_ok_and(|text| text == all || text.trim().is_empty())
    };
    let deadline = Instant::now() + CALM;
    // The probe is loaded in the second tick, and a new agent starts with offline work held back.
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
    let began = Instant::now();
    tell(offline, "CONT");
    while began.elapsed() < PATIENCE {
        let sources = Sources { readable: vec![watch.as_fd()], ..Sources::default() };
        waker.wait(&sources, Duration::from_millis(500))?;
        watch.seen()?;
        if !free(&file) {
            return Ok(Outcome::After(began.elapsed().as_secs_f64() * 1e3));
        }
    }
    Ok(Outcome::None)
}
