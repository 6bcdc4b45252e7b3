//! The commands `density run`, `list` and `prepare`. A ladder is an experiment with an increasing number of VMs.

use super::density_args::{DensityRun, Prepare};
use super::frame::Frame;
use super::values::absolute;
use crate::context::Context;
use crate::signals::stop_flag;
use anyhow::{Context as _, bail};
use commensal_density::conductor::{self, Event, RunOptions};
use commensal_density::experiment::{Experiment, Kind, SHIPPED, parse};
use commensal_density::plan::Question;
use commensal_density::record::Ladder;
use commensal_density::table::{print, table};
use commensal_density::{engines, report, search};
use commensal_host::{Host, SpawnSpec, Stdin};
use commensal_sensors::machine;
use std::path::{Path, PathBuf};

/// PyPI packages: DuckDB, and its TPC-DS extension for exactly that version.
const PACKAGES: [&str; 3] = ["duckdb==1.5.5", "duckdb-extensions==1.5.5", "duckdb-extension-tpcds==1.5.5"];

/// Folder of the database engines and their data.
fn data_dir(context: &Context) -> PathBuf {
    context.state_dir.join("density")
}

/// Returns the ladder with this name or in this file.
fn named(context: &Context, name: &str) -> anyhow::Result<Experiment> {
    match SHIPPED.iter().find(|(known, _)| *known == name) {
        Some((_, text)) => Ok(parse(name, text)?),
        None if name.contains('/') || name.ends_with(".toml") => {
            Ok(parse(name, &context.host.read_file(&absolute(Path::new(name))?)?)?)
        }
        None => {
            let known: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
            bail!(
                "no ladder {name:?}: the built-in ladders are {}; for a file give its path, such as ./{name}.toml",
                known.join(", ")
            );
        }
    }
}

/// Runs a ladder.
pub fn run(context: &mut Context, options: &DensityRun) -> anyhow::Result<u8> {
    let mut experiment = named(context, &options.name)?;
    experiment.repeats = options.repeats.unwrap_or(experiment.repeats);
    experiment.seed = options.seed.unwrap_or(experiment.seed);
    if experiment.repeats == 0 {
        bail!("--repeats 0: give at least 1, and at least 5 for a confidence bound");
    }
    prepared(context, &mut experiment)?;
    let out = absolute(&options.out)?;
    context.writable(&out).context("the record cannot be written")?;
    let earlier = match &options.resume {
        None => None,
        Some(path) => {
            let text = context.host.read_file(&absolute(path)?)?;
            Some(Ladder::from_json(&text).with_context(|| format!("{} cannot be used", path.display()))?)
        }
    };
    let (ladder, left) = climb(context, &experiment, &out, earlier)?;
    context.host.state_replace(&out, &ladder.to_json()?).context("the record cannot be written")?;
    let page = out.with_extension("html");
    context.host.state_replace(&page, &report::html(&ladder)).context("the page cannot be written")?;
    if options.json {
        println!("{}", ladder.to_json()?);
    } else {
        print!("{}", print::text(&table(&ladder)));
        ladder.notes.iter().for_each(|note| println!("note: {note}"));
        println!(
            "\nrecord: {}   page: {}   (`commensal density report` shows it again)",
            out.display(),
            page.display()
        );
    }
    let failed = ladder
        .rungs
        .iter()
        .any(|rung| rung.skipped.is_some() || rung.attempts.iter().any(|attempt| attempt.failure.is_some()));
    Ok(if left { 2 } else { u8::from(failed) })
}

/// Runs a ladder with a progress bar, and saves the record after every attempt. The second value is whether the run
/// left something behind that it could not remove.
fn climb(
    context: &mut Context,
    experiment: &Experiment,
    out: &Path,
    earlier: Option<Ladder>,
) -> anyhow::Result<(Ladder, bool)> {
    let stop = stop_flag(&context.host)?;
    let options = options(context, earlier)?;
    let mut frame = Frame::new(conductor::size(experiment) as u64, "attempts", None, Some(out));
    let mut tell = |event: Event<'_>| match event {
        Event::Ready(field) => frame.cleaned(&field.cleaned),
        Event::Attempt { done, total, what } => frame.step((done, total), what, None),
        Event::Recorded(ladder) => frame.save(ladder.to_json().ok()),
        Event::Left(lines) => {
            frame.left(&lines, "some of these could not be removed; `commensal restore` tries again");
        }
    };
    let result = conductor::run(&mut context.host, experiment, &options, &stop, &mut tell);
    frame.end(result, |out| format!("the completed attempts are in {out}; --resume continues the run"))
}

fn options(context: &Context, earlier: Option<Ladder>) -> anyhow::Result<RunOptions> {
    Ok(RunOptions {
        program: std::env::current_exe().context("this program's own file cannot be found")?,
        state_dir: context.state_dir.clone(),
        data_dir: data_dir(context),
        probe_name: context.lab_probe_name(),
        cgroup_root: context.cgroup_root.clone(),
        args: std::env::args().skip(1).collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        earlier,
    })
}

/// Prints progress messages for a measurement without a progress bar.
fn tell_plainly(event: Event<'_>) {
    match event {
        Event::Attempt { done, total, what } => eprintln!("{}/{total} {what}", done + 1),
        Event::Left(lines) => lines.iter().for_each(|line| eprintln!("commensal: {line}")),
        Event::Ready(_) | Event::Recorded(_) => {}
    }
}

/// Measures how many cells (stand-ins for VMs) fit, by bisection, and saves the record.
pub(super) fn measure(
    context: &mut Context,
    name: &str,
    question: (&Question, u32),
    out: &Path,
) -> anyhow::Result<Ladder> {
    let mut experiment = named(context, name)?;
    prepared(context, &mut experiment)?;
    let out = absolute(out)?;
    context.writable(&out).context("the record cannot be written")?;
    let stop = stop_flag(&context.host)?;
    let options = options(context, None)?;
    let (ladder, _) =
        search::search(&mut context.host, &experiment, question, &options, &stop, &mut tell_plainly)?;
    context.host.state_replace(&out, &ladder.to_json()?).context("the record cannot be written")?;
    Ok(ladder)
}

/// Measures how much throughput sharing costs: hardware threads, busy cores and memory bandwidth.
pub fn calibrate(context: &mut Context) -> anyhow::Result<u8> {
    let topology = machine::topology(&context.host)?;
    let stop = stop_flag(&context.host)?;
    let options = options(context, None)?;
    let found = search::calibrate(&mut context.host, &topology, &options, &stop, &mut tell_plainly)?;
    let (calibration, bandwidth) = (found.calibration, found.bandwidth);
    print!("--smt-gain {:.2} --all-core {:.2}", calibration.smt_gain, calibration.all_core);
    match calibration.bandwidth_cores {
        Some(cores) => println!(" --bandwidth-cores {cores:.1}"),
        None => println!(),
    }
    println!(
        "memory: {:.1} GB/s with one core, {:.1} GB/s with all {}, measured with arrays larger than {} MiB of cache: \
         {}",
        bandwidth.one_gb_s,
        bandwidth.all_gb_s,
        bandwidth.cores,
        bandwidth.cache_bytes >> 20,
        match calibration.bandwidth_cores {
            Some(cores) => format!("{cores:.1} cores saturate the bandwidth"),
            None => "all cores together do not saturate the bandwidth".to_owned(),
        }
    );
    if !topology.smt() {
        println!("this machine has no SMT, so there is no gain");
    }
    Ok(0)
}

/// Refuses a ladder whose database engine or data is missing, and sets the number of queries.
fn prepared(context: &mut Context, experiment: &mut Experiment) -> anyhow::Result<()> {
    for load in &mut experiment.loads {
        let (tpcds, postgres) = match &load.kind {
            Kind::Duckdb(tpcds) => (*tpcds, false),
            Kind::Postgres(tpcds) => (*tpcds, true),
            _ => continue,
        };
        let facts = engines::facts(&data_dir(context), tpcds.scale_milli, postgres);
        let facts = context.host.read_file(&facts).ok();
        let Some(queries) = facts.and_then(|facts| engines::queries(&facts, tpcds.lite)) else {
            let scale = f64::from(tpcds.scale_milli) / 1000.0;
            let engine = if postgres { " --postgres" } else { "" };
            bail!(
                "load {:?} needs TPC-DS at scale {scale}: commensal density prepare --scale {scale}{engine}",
                load.name
            );
        };
        load.work = queries;
        // Replaces the script by that of this version, because another version may have prepared the data.
        let dir = data_dir(context);
        context.host.state_replace(&engines::script(&dir), engines::SCRIPT)?;
    }
    Ok(())
}

/// Lists the ladders that come with the program.
pub fn list() -> anyhow::Result<u8> {
    for (name, text) in SHIPPED {
        println!("{name:18} {}", parse(name, text)?.about);
    }
    Ok(0)
}

/// Downloads the engine and generates the data.
pub fn prepare(context: &mut Context, options: &Prepare) -> anyhow::Result<u8> {
    if !(0.001..=1000.0).contains(&options.scale) {
        bail!("--scale {}: must be 0.001 to 1000", options.scale);
    }
    let dir = data_dir(context);
    context.host.state_dir(&dir)?;
    let python = engines::python(&dir);
    let environment = dir.join("python");
    if !python.is_file() {
        let spec = SpawnSpec::new("python3").arg("-m").arg("venv").arg(environment.as_os_str());
        step(
            context,
            spec,
            "creating a Python virtual environment (on Debian this needs the package python3-venv)",
        )?;
    }
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    let spec = pip.into_iter().chain(PACKAGES).fold(SpawnSpec::new(&python), SpawnSpec::arg);
    step(context, spec, "downloading the engine from PyPI")?;
    let script = engines::script(&dir);
    context.host.state_replace(&script, engines::SCRIPT)?;
    let milli = (options.scale * 1000.0).round() as u32;
    let database = engines::database(&dir, milli);
    let spec = SpawnSpec::new(&python)
        .arg(script.as_os_str())
        .arg("make")
        .arg("--scale")
        .arg((f64::from(milli) / 1000.0).to_string())
        .arg("--database")
        .arg(database.as_os_str());
    step(context, spec, "generating data and measuring the queries")?;
    if options.postgres {
        let spec = SpawnSpec::new(&python)
            .arg(script.as_os_str())
            .arg("make-postgres")
            .arg("--database")
            .arg(database.as_os_str());
        step(context, spec, "loading PostgreSQL and finding the queries that it can run")?;
    }
    println!("prepared: {}", database.display());
    Ok(0)
}

fn step(context: &mut Context, mut spec: SpawnSpec, what: &str) -> anyhow::Result<()> {
    eprintln!("{what}");
    spec.die_with_parent = true;
    spec.stdin = Stdin::Null;
    let mut child = context.host.spawn(&spec)?;
    match child.wait()?.status() {
        0 => Ok(()),
        status => bail!("{what} ended with status {status}; its output is above"),
    }
}
