//! The commands `lab run`, `list`, `show`, `check` and `doctor`.

use super::frame::Frame;
use super::values::absolute;
use super::{LabDoctor, LabName, LabProfile, LabRun, lab_history};
use crate::context::Context;
use crate::signals::stop_flag;
use anyhow::{Context as _, bail};
use commensal_host::Host;
use commensal_lab::conductor::{self, Event, Neighbour, RunOptions};
use commensal_lab::experiment::{self, Checked, Experiment, Overrides, SHIPPED, read, shipped};
use commensal_lab::record::{KnownHarm, Role, Run, Verdict};
use commensal_lab::workload::antagonist::Kind;
use commensal_lab::{doctor as noise, report as render};
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Message when a run could not remove everything that it created.
const REMAINS: &str = "the run could not remove everything that it created; `commensal restore` tries again";

/// Runs an experiment.
pub fn run(context: &mut Context, options: &LabRun) -> anyhow::Result<u8> {
    let overrides = overrides(options);
    if options.pilot {
        return doctor_of(context, &options.name, &overrides, options.json);
    }
    let experiment = named(context, &options.name, &overrides)?;
    let checked = required(context, &experiment)?;
    if !checked.missing.is_empty() {
        bail!("{}", lacking(&options.name, &checked));
    }
    // Checked before the run, because the run takes minutes.
    let out = absolute(&options.out)?;
    context.writable(&out).context("the record cannot be written")?;
    if let Some(name) = &options.save_baseline {
        lab_history::can_save(context, name)?;
    }
    let earlier =
        options.resume.as_deref().map(|path| super::lab_report::record(context, path)).transpose()?;
    let (run, left) = run_experiment(
        context,
        &experiment,
        Manner {
            port: options.port,
            blame: !options.no_blame,
            out: Some(&out),
            programs: checked.programs,
            earlier,
            ..Manner::default()
        },
    )?;
    // The paths are printed only if the files were written; the results are printed in any case.
    let saved = context.host.state_replace(&out, &run.to_json()?);
    let page = out.with_extension("html");
    let written = saved.is_ok().then(|| context.host.state_replace(&page, &render::html(&run)));
    if options.json {
        println!("{}", run.to_json()?);
    } else {
        crate::output::paint(&render::terminal(&run, std::io::stdout().is_terminal()));
        let style =
            options.style.or_else(|| run.design.style.as_deref().and_then(|style| style.parse().ok()));
        if let Some(style) = style {
            print!("\n{}", render::styled(&run, style));
        }
        match (&saved, &written) {
            (Ok(()), Some(Ok(()))) => println!(
                "\nrecord: {}   page: {}   (`commensal lab report` shows it again)",
                out.display(),
                page.display()
            ),
            (Ok(()), _) => println!("\nrecord: {}   (`commensal lab report` shows it again)", out.display()),
            (Err(_), _) => {}
        }
    }
    saved.context("the record cannot be written")?;
    written.transpose().with_context(|| format!("{} cannot be written", page.display()))?;
    lab_history::keep_run(context, &run, &out, options.save_baseline.as_deref())?;
    Ok(if left { 2 } else { run.verdict.map_or(2, Verdict::exit_code) })
}

/// The experiment's settings that options of the command line override.
fn overrides(options: &LabRun) -> Overrides {
    Overrides {
        rounds: options.rounds,
        block_s: options.block,
        seed: options.seed,
        threshold_pct: options.threshold,
        load: options.load.clone(),
        arms: options.arms.clone(),
        restart: options.restart.clone(),
        slo: options.slo.clone().map(|slo| (slo, options.window.clone())),
        min_offline_pct: options.min_offline,
        adaptive: options.adaptive,
        within: options.within,
        vary: options.vary.clone(),
        ramp: options.ramp.clone(),
        gate_queries: options.gate_queries.clone(),
        prometheus: options.prometheus.clone(),
        scrape: options.scrape.clone(),
    }
}

/// Returns the experiment with this name or in this file, with the overrides applied.
fn named(context: &Context, name: &str, overrides: &Overrides) -> anyhow::Result<Experiment> {
    let mut experiment = found(context, name)?;
    overrides.apply(&mut experiment).map_err(anyhow::Error::msg)?;
    Ok(experiment)
}

/// Returns the experiment with this name or in this file.
fn found(context: &Context, name: &str) -> anyhow::Result<Experiment> {
    if let Some(known) = shipped(name) {
        return Ok(known?);
    }
    if !name.contains('/') && !name.ends_with(".toml") {
        let names: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
        bail!(
            "no experiment {name:?}: the built-in experiments are {}; for a file give its path, such as ./{name}.toml",
            names.join(", ")
        );
    }
    let file = |path: &Path| Ok::<_, anyhow::Error>(context.host.read_file(&absolute(path)?)?);
    let text = file(Path::new(name))?;
    Ok(read(name, &text, &mut |path| file(path).map_err(|error| error.to_string()))?)
}

/// Checks whether everything that an experiment requires is installed.
fn required(context: &mut Context, experiment: &Experiment) -> anyhow::Result<Checked> {
    let path = std::env::var("PATH").unwrap_or_default();
    let state_dir = context.state_dir.clone();
    Ok(experiment::check(&mut context.host, experiment, &state_dir, &path))
}

/// The error message: the requirements that are missing, and the command that installs them.
fn lacking(name: &str, checked: &Checked) -> String {
    let lines: Vec<&str> = checked.missing.iter().map(|one| one.what.as_str()).collect();
    let install =
        checked.install().map(|command| format!("\ninstall it with: {command}")).unwrap_or_default();
    format!("{name} cannot be run here: {}{install}", lines.join("; "))
}

/// Lists the experiments that come with the program.
pub fn list() -> anyhow::Result<u8> {
    let about =
        |name: &str| shipped(name).transpose().map(|known| known.map(|one| one.about).unwrap_or_default());
    for (name, _) in SHIPPED {
        println!("{name:22} {}", about(name)?);
    }
    Ok(0)
}

/// Prints the file of an experiment, preceded by the files that it is based on, as comments.
pub fn show(context: &Context, options: &LabName) -> anyhow::Result<u8> {
    print!("{}", found(context, &options.name)?.source.unwrap_or_default());
    Ok(0)
}

/// Runs one service against each antagonist.
pub fn profile(context: &mut Context, options: &LabProfile) -> anyhow::Result<u8> {
    let kinds = match options.against.as_slice() {
        [] => Kind::TABLE.map(|row| row.kind).to_vec(),
        some => some.to_vec(),
    };
    let loads: Vec<Option<String>> = match options.load.as_slice() {
        [] => vec![None],
        some => some.iter().cloned().map(Some).collect(),
    };
    let mut status = 0;
    for (index, load) in loads.iter().enumerate() {
        let (rounds, block_s) = (Some(options.rounds), Some(options.block));
        let overrides = Overrides { rounds, block_s, load: load.clone(), ..Overrides::default() };
        let of = named(context, &options.name, &overrides)?;
        let experiment = experiment::profile(&of, &kinds, options.isolated);
        let checked = required(context, &experiment)?;
        if !checked.missing.is_empty() {
            bail!("{}", lacking(&options.name, &checked));
        }
        let out = absolute(&options.out)?;
        let out = if index == 0 { out } else { out.with_extension(format!("{}.json", index + 1)) };
        context.writable(&out).context("the record cannot be written")?;
        let manner = Manner { blame: true, out: Some(&out), programs: checked.programs, ..Manner::default() };
        let (run, left) = run_experiment(context, &experiment, manner)?;
        context.host.state_replace(&out, &run.to_json()?).context("the record cannot be written")?;
        let offered =
            run.design.offered_per_s.map(|rate| format!(" at {rate:.0} requests/s")).unwrap_or_default();
        println!("{}{offered}\n{}", options.name, render::profile(&run));
        if run.verdict == Some(Verdict::Invalid) {
            run.reasons.iter().for_each(|reason| println!("INVALID  {reason}"));
            status = 4;
        }
        println!("record: {}", out.display());
        if left {
            return Ok(2);
        }
    }
    Ok(status)
}

/// Describes what an experiment would do, and whether this machine can run it.
pub fn check(context: &mut Context, options: &LabName) -> anyhow::Result<u8> {
    let mut experiment = named(context, &options.name, &Overrides::default())?;
    Overrides::default().apply(&mut experiment).map_err(anyhow::Error::msg)?;
    let checked = required(context, &experiment)?;
    println!("{}: {}", experiment.name, experiment.about);
    for command in experiment.commands() {
        println!("  {command}");
    }
    let arms: Vec<&str> = experiment.arms.iter().map(|arm| arm.name.as_str()).collect();
    println!("  arms: {}", arms.join(", "));
    let minutes = (experiment.duration_s() / 60.0).ceil();
    let rounds = experiment.design.rounds;
    match (experiment.design.windows, &experiment.short) {
        (Some(windows), _) => {
            let longer = experiment.design.allotted.map_or(String::new(), |allotted| {
                format!(", or {:.0} where that decides what is open", (allotted.longest_s / 60.0).ceil())
            });
            println!(
                "  measured in short windows of {} ms, at most {rounds} rounds, about {minutes:.0} minutes{longer}",
                windows.window_s * 1e3
            );
        }
        (None, Err(why)) => {
            println!(
                "  measured in long blocks of {} s, {rounds} rounds, about {minutes:.0} minutes: {why}",
                experiment.design.block_s
            );
        }
        (None, Ok(_)) => println!("  {rounds} rounds, about {minutes:.0} minutes"),
    }
    for (program, version) in &checked.programs {
        println!("  {program}: {version}");
    }
    if checked.missing.is_empty() {
        println!("everything that it needs is installed");
        return Ok(0);
    }
    println!("{}", lacking(&experiment.name, &checked));
    Ok(2)
}

/// Reports whether this machine can decide whether an effect exceeds a threshold.
pub fn doctor(context: &mut Context, options: &LabDoctor) -> anyhow::Result<u8> {
    let overrides = Overrides {
        threshold_pct: options.threshold,
        block_s: options.block,
        load: options.load.clone(),
        ..Overrides::default()
    };
    doctor_of(context, &options.name, &overrides, options.json)
}

/// Like [`doctor`], with all overrides; also used for `lab run --pilot`.
fn doctor_of(context: &mut Context, name: &str, overrides: &Overrides, json: bool) -> anyhow::Result<u8> {
    let of = named(context, name, overrides)?;
    let check = of.check_of_machine();
    let checked = required(context, &check)?;
    if !checked.missing.is_empty() {
        bail!("{}", lacking(name, &checked));
    }
    let (run, left) =
        run_experiment(context, &check, Manner { programs: checked.programs, ..Manner::default() })?;
    let report = noise::judge(&run, &of);
    if json {
        println!("{}", commensal_core::text::json_pretty(&report)?);
    } else {
        print!("{}", report.describe());
    }
    Ok(if left { 2 } else { report.verdict().exit_code() })
}

/// Options for conducting an experiment.
#[derive(Default)]
pub(super) struct Manner<'a> {
    pub port: u16,
    pub blame: bool,
    pub out: Option<&'a Path>,
    pub programs: Vec<(String, String)>,
    pub earlier: Option<Run>,
    pub harms: Vec<KnownHarm>,
    pub beside: Option<Neighbour>,
    /// The stop flag that signals set; `None` creates a new one.
    pub stop: Option<Arc<AtomicBool>>,
}

/// Runs an experiment with a progress bar, and saves the record after every block. Reports objects that could not be
/// removed; the second value is whether there were any.
pub(super) fn run_experiment(
    context: &mut Context,
    experiment: &Experiment,
    manner: Manner<'_>,
) -> anyhow::Result<(Run, bool)> {
    let Manner { port, blame, out, programs, earlier, harms, beside, stop } = manner;
    let stop = stop.map_or_else(|| stop_flag(&context.host), Ok)?;
    let options = RunOptions {
        program: std::env::current_exe().context("this program's own file cannot be found")?,
        state_dir: context.state_dir.clone(),
        probe_name: context.lab_probe_name(),
        cgroup_root: context.cgroup_root.clone(),
        port,
        blame,
        args: std::env::args().skip(1).collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        programs,
        earlier,
        harms,
        beside,
    };
    let steps = experiment.arms.len() as u64 * u64::from(experiment.design.rounds);
    let expected = Duration::from_secs_f64(experiment.duration_s());
    let mut frame = Frame::new(steps, "blocks", Some(expected), out);
    let mut tell = |event: Event<'_>| match event {
        Event::Ready(site) => {
            frame.cleaned(&site.cleaned);
            let isolated = experiment.arms.iter().filter(|arm| arm.role == Role::Isolated);
            for (arm, policy) in isolated.zip(&site.policies) {
                frame.say([match &policy.obstacle {
                    Some(obstacle) => format!("arm {} is left out: {obstacle}", arm.name),
                    None => format!("{} arm: {}", arm.name, policy.driver),
                }]);
                frame.say(policy.weak.as_ref().map(|weak| format!("  {weak}")));
            }
        }
        Event::Block { done, total, round, left } => {
            frame.step((done, total), format!("round {round}"), left);
        }
        Event::Knee(per_s) => frame.say([format!("alone the service sustains {per_s:.0} requests/s")]),
        Event::Recorded(run) => frame.save(run.to_json().ok()),
        Event::Closed(lines) => frame.left(lines, REMAINS),
    };
    let result = conductor::run(&mut context.host, experiment, &options, &stop, &mut tell);
    frame.end(result, |out| format!("the completed blocks are in {out}; --resume continues the run"))
}
