//! Benchmarks of commensal's performance goals, as ratios within one run. They run on the machine's own kernel, in
//! scratch cgroups.

mod agent;
mod blame;
mod load;
mod members;
mod quantiles;
mod reaction;

use crate::stage;
use anyhow::{Context, bail};
use commensal_core::actual::ActualState;
use commensal_core::config;
use commensal_core::knob::Version;
use commensal_host::{Host, LinuxHost, below};
use commensal_reconcile::{Instance, Journal, Outcome, PlanRequest, Planned, apply, restore_own};
use commensal_sensors::{Survey, mounts};
use std::path::Path;
use std::time::{Duration, Instant};

const GROUPS: usize = 1_000;
const WRITES: u32 = 20_000;
const REPEATS: usize = 5;

/// Parts that can be measured separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Writing knobs, and planning a thousand groups.
    Groups,
    /// The cost of `commensal blame`.
    Blame,
    /// Comparison of load generators.
    Load,
    /// Cost and reaction times of the agent.
    Agent,
    /// Only the cost of the agent.
    AgentCost,
    /// Only the agent's reaction time: from the start of harm to online work to the first restriction of offline work.
    AgentReaction,
    /// Only the time from the creation of a member's cgroup to its limit.
    AgentMembers,
}

impl Part {
    const ALL: [Self; 4] = [Self::Groups, Self::Blame, Self::Load, Self::Agent];

    /// Whether this program measures itself, not programs that it starts.
    fn inside(self) -> bool {
        matches!(self, Self::Groups | Self::Blame | Self::Load)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Groups => "groups",
            Self::Blame => "blame",
            Self::Load => "load",
            Self::Agent => "agent",
            Self::AgentCost => "agent-cost",
            Self::AgentReaction => "agent-reaction",
            Self::AgentMembers => "agent-members",
        }
    }
}

/// Runs these parts (all by default), and prints for each the measured value, the goal and their ratio.
pub fn run(parts: &[Part]) -> anyhow::Result<()> {
    let parts = if parts.is_empty() { &Part::ALL } else { parts };
    if cfg!(debug_assertions) && parts.iter().any(|part| part.inside()) {
        let mut command = crate::tree::cargo();
        command.args(["run", "--release", "--quiet", "--package", "devtools", "--", "bench"]);
        command.args(parts.iter().map(|part| part.name()));
        let status = command.current_dir(crate::tree::root()).status()?;
        if !status.success() {
            bail!("the benchmark failed");
        }
        return Ok(());
    }
    println!("medians of {REPEATS} runs, each with its goal; ratios compare times within this run\n");
    for part in parts {
        match part {
            Part::Groups => {
                knob_write()?;
                thousand_groups()?;
            }
            Part::Blame => blame::run()?,
            Part::Load => load::run()?,
            Part::Agent => the_agent(&AGENT)?,
            Part::AgentCost => the_agent(&AGENT[..1])?,
            Part::AgentReaction => the_agent(&AGENT[1..2])?,
            Part::AgentMembers => the_agent(&AGENT[2..])?,
        }
    }
    Ok(())
}

type Measured = fn(&Path) -> anyhow::Result<serde_json::Value>;

/// The measurements of the agent.
const AGENT: [(&str, Measured); 3] =
    [("cost", agent::run), ("reaction", reaction::run), ("members", members::run)];

/// Prints the measurements of the agent as tables, and writes them as JSON next to the program.
fn the_agent(parts: &[(&str, Measured)]) -> anyhow::Result<()> {
    let program = stage::release()?;
    let mut figures = serde_json::Map::new();
    figures.insert("kernel".to_owned(), std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().into());
    for (name, measure) in parts {
        figures.insert((*name).to_owned(), measure(&program)?);
    }
    let file = program.with_file_name("bench-agent.json");
    std::fs::write(&file, format!("{:#}\n", serde_json::Value::Object(figures)))?;
    println!("these results as JSON: {}", file.display());
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn report(what: &str, time: Duration, goal: Duration, ratio: &str) {
    let verdict = if time <= goal { "met" } else { "MISSED" };
    println!("{what:<58} {time:>10.1?}   goal {goal:.0?} {verdict}   {ratio}");
}

/// A scratch cgroup in the cpu hierarchy, removed at the end.
struct Scratch {
    host: LinuxHost,
    path: std::path::PathBuf,
    version: Version,
}

impl Scratch {
    fn new() -> anyhow::Result<Scratch> {
        let mut host = LinuxHost::new();
        let cpu = commensal_core::knob::Controller::Cpu;
        let hierarchies = mounts::hierarchies(&mut host)?;
        let hierarchy =
            hierarchies.iter().find(|h| h.controllers.contains(&cpu)).context("no cpu hierarchy")?;
        let path = Path::new(&hierarchy.mount).join(format!("commensal-bench-{}", std::process::id()));
        std::fs::create_dir(&path).context("needs root")?;
        Ok(Scratch { host, path, version: hierarchy.version })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.path);
    }
}

fn knob_write() -> anyhow::Result<()> {
    let mut scratch = Scratch::new()?;
    let path = scratch.path.clone();
    let file = commensal_core::knob::KnobId::CpuWeight.row().file(scratch.version).context("no weight")?.name;
    let dir = scratch.host.open(&path)?;
    let held = median(
        (0..REPEATS)
            .map(|_| {
                let start = Instant::now();
                for n in 0..WRITES {
                    let value = if n % 2 == 0 { "200" } else { "300" };
                    scratch.host.write(dir, file, value)?;
                }
                anyhow::Ok(start.elapsed() / WRITES)
            })
            .collect::<anyhow::Result<_>>()?,
    );
    let opened = median(
        (0..REPEATS)
            .map(|_| {
                let start = Instant::now();
                for n in 0..WRITES {
                    std::fs::write(path.join(file), if n % 2 == 0 { "200" } else { "300" })?;
                }
                anyhow::Ok(start.elapsed() / WRITES)
            })
            .collect::<anyhow::Result<_>>()?,
    );
    let ratio =
        format!("open + write + close {opened:.1?}: {:.1}x", opened.as_secs_f64() / held.as_secs_f64());
    report("knob write on a held descriptor", held, Duration::from_micros(10), &ratio);
    Ok(())
}

struct World {
    host: LinuxHost,
    instance: Instance,
    survey: Survey,
    specs: Vec<commensal_core::group::GroupSpec>,
}

impl World {
    fn new() -> anyhow::Result<World> {
        let mut host = LinuxHost::new();
        let pid = std::process::id();
        let state = std::env::temp_dir().join(format!("commensal-bench-{pid}"));
        let instance = Instance::of_process(&state, "commensal-bench", &format!("commensal-probe-{pid}"));
        let survey = instance.survey(&mut host)?;
        if let Some(obstacle) = survey.caps.cgroup_obstacle.as_ref().or(survey.tenancy.obstacle.as_ref()) {
            bail!("{obstacle}");
        }
        let text: String = (0..GROUPS)
            .map(|n| {
                format!("[group.g{n}]\nclass = \"offline\"\ncpu.max = \"1 core\"\nmemory.max = \"1 GiB\"\n")
            })
            .collect();
        let specs = config::parse("bench.toml", &text).map_err(|errors| anyhow::anyhow!("{errors:?}"))?;
        Ok(World { host, instance, survey, specs })
    }

    /// Plans, and returns the time that reading the machine for the plan took.
    fn plan(&mut self) -> anyhow::Result<(Planned, Duration)> {
        let start = Instant::now();
        let request = PlanRequest::all(&self.specs);
        let planned = self.instance.plan(&mut self.host, &self.survey, &request)?;
        Ok((planned, start.elapsed()))
    }

    /// Plans again from the same data and carries out the plan; returns the time that both took.
    fn carry_out(
        &mut self,
        planned: &mut Planned,
        journal: &mut Journal,
    ) -> anyhow::Result<(Outcome, Duration)> {
        let start = Instant::now();
        self.instance.plan_again(&self.survey, &PlanRequest::all(&self.specs), planned)?;
        let outcome = apply(&mut self.host, &planned.plan.steps, &planned.actual, journal);
        Ok((outcome, start.elapsed()))
    }

    fn restore(&mut self) -> anyhow::Result<()> {
        restore_own(&mut self.host, &self.instance.state_dir, self.instance.journal_name())?;
        Ok(())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.restore();
        let _ = std::fs::remove_dir_all(&self.instance.state_dir);
    }
}

fn thousand_groups() -> anyhow::Result<()> {
    let mut world = World::new()?;
    let (mut all, mut nothing, mut looks, mut bare) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut steps = 0;
    for _ in 0..REPEATS {
        let (mut first, _) = world.plan()?;
        let mut journal = world.instance.open_journal(&mut world.host)?;
        let (outcome, took) = world.carry_out(&mut first, &mut journal)?;
        all.push(took);
        steps = first.plan.steps.len();
        if let Some(failure) = outcome.failure {
            bail!("{}: {}", failure.description, failure.refusal);
        }
        let (mut second, look) = world.plan()?;
        looks.push(look);
        let (outcome, took) = world.carry_out(&mut second, &mut journal)?;
        nothing.push(took);
        if !second.plan.is_empty() || outcome.done > 0 {
            bail!("the second plan is not empty");
        }
        world.restore()?;
        bare.push(bare_writes(&first.plan, &second.actual)?);
    }
    let (all, nothing, bare) = (median(all), median(nothing), median(bare));
    let ratio = format!(
        "{steps} steps; the bare system calls {bare:.0?}: {:.2}x",
        all.as_secs_f64() / bare.as_secs_f64()
    );
    report("plan + apply of 1000 groups, all to do", all, Duration::from_millis(500), &ratio);
    let ratio = format!("before that, reading the machine took {:.0?}", median(looks));
    report("plan + apply of 1000 groups, nothing to do", nothing, Duration::from_millis(20), &ratio);
    Ok(())
}

/// Measures the kernel's own cost: the same mkdirs and writes by path, without a journal, identity checks and reading
/// back.
fn bare_writes(plan: &commensal_core::plan::Plan, actual: &ActualState) -> anyhow::Result<Duration> {
    use commensal_core::plan::Action;
    let path = |step: &commensal_core::plan::Step| {
        below(Path::new(&actual.hierarchies[step.place.hierarchy].mount), step.place.path.as_str())
    };
    let start = Instant::now();
    for step in &plan.steps {
        match &step.action {
            Action::Create => std::fs::create_dir(path(step))?,
            Action::Write { knob, device, to, .. } => {
                let file =
                    knob.row().file(actual.hierarchies[step.place.hierarchy].version).context("no file")?;
                std::fs::write(path(step).join(file.name), file.encode(to, *device)?)?;
            }
            _ => {}
        }
    }
    let took = start.elapsed();
    for step in plan.steps.iter().rev().filter(|step| step.action == Action::Create) {
        std::fs::remove_dir(path(step))?;
    }
    Ok(took)
}
