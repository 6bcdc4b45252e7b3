//! Cost of the agent: CPU time, memory and duration of ticks, on a machine with many idle cgroups.

use crate::stage::{self, Stage, Used, used};
use anyhow::Context;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

const GROUPS: usize = 100;
/// Number of online cgroups; one more is the slice that contains all offline ones.
const ONLINE: usize = 20;
/// Time after the start that is not measured: the first round, and the loading of probes.
const WARM_UP: Duration = Duration::from_secs(15);
/// Measured time, during which no client queries the agent.
const COUNTED: Duration = Duration::from_secs(60);
/// Number of ticks whose duration is queried afterwards.
const TICKS: usize = 30;
const GOAL_MIB: f64 = 20.0;
/// Interval at which a cgroup is created and another one removed, in the case with churn.
const CHURN: Duration = Duration::from_millis(50);
/// Number of cgroups created by the churn that exist at the same time.
const CHURNED: usize = 10;

struct Case {
    name: &'static str,
    cgroups_each: usize,
    headroom: &'static str,
    target: bool,
    probe: bool,
    /// Whether cgroups that no group claims are created and removed meanwhile.
    churn: bool,
    /// Largest share of a CPU that meets the goal (per cent), if there is one.
    goal_pct: Option<f64>,
}

const PLAIN: Case = Case {
    name: "100 groups, 100 cgroups",
    cgroups_each: 1,
    headroom: "target",
    target: false,
    probe: true,
    churn: false,
    goal_pct: Some(0.15),
};

const CASES: [Case; 7] = [
    PLAIN,
    Case { name: "the same, with a target", target: true, goal_pct: Some(0.3), ..PLAIN },
    Case { name: "100 groups, 1,000 cgroups", cgroups_each: 10, goal_pct: Some(0.3), ..PLAIN },
    Case {
        name: "… 20 others come and go per s",
        cgroups_each: 10,
        churn: true,
        goal_pct: Some(0.4),
        ..PLAIN
    },
    Case { name: "… headroom = \"frame\"", cgroups_each: 10, headroom: "frame", goal_pct: None, ..PLAIN },
    Case { name: "… a target, with the probe", cgroups_each: 10, target: true, goal_pct: None, ..PLAIN },
    Case {
        name: "… a target, without it",
        cgroups_each: 10,
        target: true,
        probe: false,
        goal_pct: None,
        ..PLAIN
    },
];

/// Measures and prints the cost; returns it as JSON.
pub fn run(program: &Path) -> anyhow::Result<Value> {
    println!(
        "\ncost of the agent with a tick every 1 s: measured for {} s, from {} s after its start; then the durations \
         of {TICKS} ticks",
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
            match case.goal_pct {
                Some(goal) => {
                    let met = number("cpu_pct") <= goal && number("rss_mib") <= GOAL_MIB;
                    format!("{}: {goal} %, {GOAL_MIB} MiB", verdict(met))
                }
                None => String::new(),
            }
        );
        rows.push(row);
    }
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

/// Creates and removes cgroups that no group claims.
fn churn(stage: &Stage, time: Duration) -> anyhow::Result<()> {
    let path = |number: usize| format!("other/c{number}");
    stage.make("other")?;
    let (began, mut number) = (Instant::now(), 0_usize);
    while began.elapsed() < time {
        stage.make(&path(number))?;
        if let Some(oldest) = number.checked_sub(CHURNED) {
            stage.remove(&path(oldest));
        }
        number += 1;
        let next = CHURN.saturating_mul(u32::try_from(number).unwrap_or(u32::MAX));
        std::thread::sleep(next.saturating_sub(began.elapsed()));
    }
    stage.remove("other");
    Ok(())
}

fn count(stage: &Stage, agent: &Child, case: &Case) -> anyhow::Result<Value> {
    std::thread::sleep(WARM_UP);
    let of = |(_, line): &(u32, String)| line.contains(" guard");
    let guard = stage.processes().into_iter().find(of).map(|(pid, _)| pid);
    let look = || Some((Instant::now(), used(agent.id())?, guard.and_then(used)));
    let (began, before, guard_before) = look().context("the agent has exited")?;
    match case.churn {
        true => churn(stage, COUNTED)?,
        false => std::thread::sleep(COUNTED),
    }
    let (ended, after, guard_after) = look().context("the agent has exited")?;
    let seconds = (ended - began).as_secs_f64();
    let share = |before: Used, after: Used| (after.cpu_s - before.cpu_s) / seconds * 100.0;
    let mib = |used: Used| used.rss_kib as f64 / 1024.0;
    let mut ticks = Vec::new();
    let mut seen = Value::Null;
    for _ in 0..TICKS {
        std::thread::sleep(Duration::from_secs(1));
        seen = stage.snapshot().context("the agent does not respond")?;
        ticks.extend(seen["tick_ms"].as_f64());
    }
    ticks.sort_by(f64::total_cmp);
    let probed = seen["problems"].as_array().is_some_and(|all| {
        !all.iter().any(|one| {
            one.as_str().is_some_and(|text| text.starts_with("waits of online groups cannot be attributed"))
        })
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
