//! Cost of the agent: CPU time, memory and length of ticks, on a machine with many idle cgroups.

use crate::stage::{self, Stage, Used, used};
use anyhow::Context;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

const GROUPS: usize = 100;
/// Number of online cgroups; one more is the slice that contains all offline ones.
const ONLINE: usize = 20;
/// Time after the start that is not measured: the first round, and loading of probes.
const WARM_UP: Duration = Duration::from_secs(15);
/// Measured time, during which no client queries the agent.
const COUNTED: Duration = Duration::from_secs(60);
/// Number of ticks whose length is queried afterwards.
const TICKS: usize = 30;
const GOAL_PCT: f64 = 0.2;
const GOAL_MIB: f64 = 20.0;

struct Case {
    name: &'static str,
    cgroups_each: usize,
    headroom: &'static str,
    target: bool,
    probe: bool,
}

const CASES: [Case; 5] = [
    Case { name: "100 groups, 100 cgroups", cgroups_each: 1, headroom: "target", target: false, probe: true },
    Case {
        name: "100 groups, 1,000 cgroups",
        cgroups_each: 10,
        headroom: "target",
        target: false,
        probe: true,
    },
    Case {
        name: "… headroom = \"frame\"", cgroups_each: 10, headroom: "frame", target: false, probe: true
    },
    Case {
        name: "… a target, with the probe",
        cgroups_each: 10,
        headroom: "target",
        target: true,
        probe: true,
    },
    Case {
        name: "… a target, without it", cgroups_each: 10, headroom: "target", target: true, probe: false
    },
];

/// Measures and prints; returns the figures as JSON.
pub fn run(program: &Path) -> anyhow::Result<Value> {
    println!(
        "\nthe agent's cost at a tick of 1 s: {} s from {} s after its start; ticks: {TICKS} after that",
        COUNTED.as_secs(),
        WARM_UP.as_secs()
    );
    println!(
        "{:<30} {:>9} {:>9} {:>9} {:>7} {:>11} {:>11} {:>11} {:>10}",
        "", "core, %", "RSS, MiB", "files", "threads", "tick P50 ms", "longest ms", "guard MiB", "guard, %"
    );
    let mut rows = Vec::new();
    for case in &CASES {
        let row = measure(program, case).with_context(|| case.name)?;
        let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        println!(
            "{:<30} {:>9.3} {:>9.1} {:>9} {:>7} {:>11.2} {:>11.2} {:>11.1} {:>10.3}   {}",
            case.name,
            number("cpu_pct"),
            number("rss_mib"),
            row["fds"],
            row["threads"],
            number("tick_ms_median"),
            number("tick_ms_longest"),
            number("guard_rss_mib"),
            number("guard_cpu_pct"),
            verdict(number("cpu_pct") <= GOAL_PCT && number("rss_mib") <= GOAL_MIB)
        );
        rows.push(row);
    }
    println!("goal: {GOAL_PCT} % of a core, {GOAL_MIB} MiB");
    Ok(json!(rows))
}

pub(super) fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

fn measure(program: &Path, case: &Case) -> anyhow::Result<Value> {
    let stage = Stage::new("bench", program)?;
    stage.groups(&layout(&stage, case)?)?;
    let tenants = tenants(&stage)?;
    let mut agent = stage.agent(&["--on-exit", "restore"], case.probe)?;
    let counted = count(&stage, &agent, case);
    stage::signal(agent.id(), "TERM");
    let _ = agent.wait();
    for mut tenant in tenants {
        stage::end(&mut tenant);
    }
    counted
}

fn group(number: usize) -> (&'static str, String) {
    let side = if number < ONLINE { "on" } else { "off" };
    (side, format!("{side}/g{number}"))
}

/// Creates the cgroups; returns the groups file.
fn layout(stage: &Stage, case: &Case) -> anyhow::Result<String> {
    let top = &stage.top;
    let mut text = format!("[agent]\nheadroom = \"{}\"\n", case.headroom);
    text += &format!("[group.slice]\nclass = \"offline\"\nmatch = [{{ cgroup = \"/{top}/off\" }}]\n");
    stage.make("on")?;
    stage.make("off")?;
    for number in 0..GROUPS - 1 {
        let (side, path) = group(number);
        stage.make(&path)?;
        for member in 0..case.cgroups_each {
            stage.make(&format!("{path}/c{member}"))?;
        }
        let limits = match side {
            "on" if case.target => "class = \"online\"\ntarget-wakeup-p99 = \"200 us\"\n",
            "on" => "class = \"online\"\n",
            _ => "class = \"offline\"\ncpu.max = \"1 core\"\nmemory.max = \"1 GiB\"\n",
        };
        text += &format!("[group.g{number}]\n{limits}match = [{{ cgroup = \"/{top}/{path}/*\" }}]\n");
    }
    Ok(text)
}

/// Starts a sleeping process in the first cgroup of each group.
fn tenants(stage: &Stage) -> anyhow::Result<Vec<Child>> {
    (0..GROUPS - 1).map(|number| stage.start(&format!("{}/c0", group(number).1), "exec sleep 3600")).collect()
}

fn count(stage: &Stage, agent: &Child, case: &Case) -> anyhow::Result<Value> {
    std::thread::sleep(WARM_UP);
    let of = |(_, line): &(u32, String)| line.contains(" guard");
    let guard = stage.processes().into_iter().find(of).map(|(pid, _)| pid);
    let look = || Some((Instant::now(), used(agent.id())?, guard.and_then(used)));
    let (began, before, guard_before) = look().context("the agent is gone")?;
    std::thread::sleep(COUNTED);
    let (ended, after, guard_after) = look().context("the agent is gone")?;
    let seconds = (ended - began).as_secs_f64();
    let share = |before: Used, after: Used| (after.cpu_s - before.cpu_s) / seconds * 100.0;
    let mib = |used: Used| used.rss_kib as f64 / 1024.0;
    let mut ticks = Vec::new();
    let mut seen = Value::Null;
    for _ in 0..TICKS {
        std::thread::sleep(Duration::from_secs(1));
        seen = stage.snapshot().context("the agent does not answer")?;
        ticks.extend(seen["tick_ms"].as_f64());
    }
    ticks.sort_by(f64::total_cmp);
    let probed = seen["problems"].as_array().is_some_and(|all| {
        !all.iter()
            .any(|one| one.as_str().is_some_and(|text| text.starts_with("who makes online groups wait")))
    });
    Ok(json!({
        "case": case.name, "headroom": case.headroom, "target": case.target, "probe": case.target && probed,
        "groups": GROUPS, "cgroups": (GROUPS - 1) * case.cgroups_each + 1,
        "cpu_pct": share(before, after), "rss_mib": mib(after), "fds": after.fds, "threads": after.threads,
        "guard_cpu_pct": guard_before.zip(guard_after).map(|(before, after)| share(before, after)),
        "guard_rss_mib": guard_after.map(mib),
        "tick_ms_median": ticks.get(ticks.len() / 2), "tick_ms_longest": ticks.last(),
        "unmet": seen["unmet"].as_array().map(Vec::len), "problems": seen["problems"],
    }))
}
