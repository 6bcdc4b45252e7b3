//! Time from the creation of a member's cgroup to its limit, and the agent's CPU time for a member that comes and goes, on an
//! otherwise idle machine and with load on every CPU.
//!
//! The clock (CLOCK_MONOTONIC) starts before the first directory is created. It stops when the limit is read in the new
//! cgroup after the kernel has reported (inotify) a write to it.

use super::agent::verdict;
use super::quantiles::Quantiles;
use crate::stage::{self, Stage, used};
use anyhow::Context;
use commensal_host::{For, GroupWatch, Source, Waker};
use commensal_lab::rng::Rng;
use serde_json::{Value, json};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

const TRIALS: usize = 300;
/// Number of other groups.
const GROUPS: usize = 20;
const LIMIT: &str = "77";
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE_MS: std::ops::Range<u64> = 20..220;

/// Measures and prints the times; returns them as JSON.
pub fn run(program: &Path) -> anyhow::Result<Value> {
    println!("\nmembers: from the creation of a cgroup to its limit, {TRIALS} cgroups each, ms");
    println!("{:<30} {}", "", Quantiles::HEADER);
    let mut rows = Vec::new();
    for (name, busy, goal_ms) in [("quiet", false, 30.0), ("two spinners on every CPU", true, 100.0)] {
        let (times, cpu_ms) = measure(program, busy)?;
        let times = Quantiles::new(times);
        println!("{name:<30} {times}   goal: P99 {goal_ms} ms, {}", verdict(times.at(0.99) <= goal_ms));
        // As a share of a CPU at 1.5 members per second.
        let share_pct = cpu_ms / 1e3 * 1.5 * 100.0;
        println!(
            "{:<30} {cpu_ms:.2} ms of CPU time for each, {share_pct:.2} % of a CPU at 1.5 per second   goal: 2 %, {}",
            "",
            verdict(share_pct <= 2.0)
        );
        rows.push(json!({ "busy": busy, "figures": times.json(), "cpu_ms_each": cpu_ms }));
    }
    Ok(json!(rows))
}

/// Returns the times in ms, and the agent's CPU time for each member in ms.
fn measure(program: &Path, busy: bool) -> anyhow::Result<(Vec<f64>, f64)> {
    let stage = Stage::new("members", program)?;
    for path in ["off", "load"] {
        stage.make(path)?;
    }
    let top = &stage.top;
    let mut text = format!(
        "[group.new]\nclass = \"offline\"\npids.max = {LIMIT}\nmatch = [{{ cgroup = \"/{top}/off/new-*\" }}]\n"
    );
    for number in 0..GROUPS {
        stage.make(&format!("off/g{number}"))?;
        text += &format!(
            "[group.g{number}]\nclass = \"offline\"\npids.max = 100\nmatch = [{{ cgroup = \"/{top}/off/g{number}\" }}]\n"
        );
    }
    stage.groups(&text)?;
    let mut load: Vec<Child> = Vec::new();
    let cpus = std::thread::available_parallelism()?.get();
    for _ in 0..if busy { 2 * cpus } else { 0 } {
        load.push(stage.start("load", "while :; do :; done")?);
    }
    let mut agent = stage.agent(&["--no-guard", "--on-exit", "restore"], false)?;
    let mut rng = Rng::new(1);
    let cpu_s = || used(agent.id()).map(|used| used.cpu_s).context("the agent has exited");
    let before_s = cpu_s()?;
    let times = (0..TRIALS).map(|number| {
        std::thread::sleep(Duration::from_millis(
            PAUSE_MS.start + rng.u64() % (PAUSE_MS.end - PAUSE_MS.start),
        ));
        let path = format!("off/new-{number}");
        let time = limited(&stage, &path).with_context(|| path.clone());
        stage.remove(&path);
        time
    });
    let times: anyhow::Result<Vec<f64>> = times.collect();
    let cpu_ms = (cpu_s()? - before_s) * 1e3 / TRIALS as f64;
    stage::signal(agent.id(), "TERM");
    agent.wait()?;
    load.iter_mut().for_each(stage::end);
    Ok((times?, cpu_ms))
}

fn limited(stage: &Stage, path: &str) -> anyhow::Result<f64> {
    let (watch, waker) = (GroupWatch::new()?, Waker::new()?);
    let began = Instant::now();
    stage.make(path)?;
    let file = stage.file(path, "pids.max").context("no hierarchy has pids")?;
    watch.add(file.parent().context("a folder")?, For::Writes)?;
    while began.elapsed() < PATIENCE {
        if std::fs::read_to_string(&file)?.trim() == LIMIT {
            return Ok(began.elapsed().as_secs_f64() * 1e3);
        }
        waker.wait(&[Source::readable(watch.as_fd())], Duration::from_millis(100))?;
        watch.seen()?;
    }
    anyhow::bail!("no limit in {} s", PATIENCE.as_secs())
}
