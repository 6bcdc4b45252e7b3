//! The commands `density classify`, `report` and `plan`. A ladder is an experiment with an increasing number of VMs.

use super::density_args::{Classify, DensityPlan, DensityReport};
use super::values::absolute;
use crate::context::Context;
use anyhow::{Context as _, anyhow, bail};
use commensal_density::document::arenadata;
use commensal_density::model::Calibration;
use commensal_density::plan::{Question, plan as answer};
use commensal_density::record::Ladder;
use commensal_density::scenario::{Scenario, Server, classify as class_of};
use commensal_density::table::{print, table};
use commensal_density::{fleet, report as page, topology_notes};
use commensal_host::Host;
use commensal_sensors::machine;
use serde_json::json;
use std::path::Path;
use std::time::Duration;

/// Length of the measurement of the host's own CPU use.
const WATCH: Duration = Duration::from_secs(2);

/// Reports the class of a placement of VMs: ideal, shared-core or oversubscribed.
pub fn classify(context: &mut Context, options: &Classify) -> anyhow::Result<u8> {
    if let Some(file) = &options.fleet {
        return classify_fleet(context, file, options);
    }
    let reserve = reserve(context, options)?;
    let (server, mut notes) = match options.cores.zip(options.threads) {
        Some((cores, threads)) => {
            (Server { cores, threads, reserve, node_cores: None, llc_cores: None }, Vec::new())
        }
        None => {
            let topology = machine::topology(&context.host)?;
            (Server::of(&topology, reserve), topology_notes::notes(&context.host, &topology))
        }
    };
    let mut classified = class_of(&server, &options.vms)?;
    classified.notes.append(&mut notes);
    if options.json {
        println!(
            "{}",
            commensal_core::text::json_pretty(&json!({ "server": server, "placement": classified }))?
        );
    } else {
        println!("{}", classified.headline(&server));
        classified.facts(&server).iter().for_each(|fact| println!("  {fact}"));
    }
    Ok(kept(options.require, classified.scenario))
}

/// The exit status: 0 when the class is acceptable, 1 when it is worse than required.
fn kept(require: Option<Scenario>, found: Scenario) -> u8 {
    u8::from(require.is_some_and(|worst| found > worst))
}

fn classify_fleet(context: &Context, file: &Path, options: &Classify) -> anyhow::Result<u8> {
    let text = context.host.read_file(&absolute(file)?)?;
    let read = fleet::read(&file.display().to_string(), &text).map_err(|errors| {
        let lines = errors.iter().map(|error| match std::error::Error::source(error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        });
        anyhow!("{}", lines.collect::<Vec<_>>().join("\n  "))
    })?;
    if options.json {
        let one =
            |(placed, classified): &(fleet::Placed, _)| json!({ "server": placed, "placement": classified });
        println!("{}", commensal_core::text::json_pretty(&read.iter().map(one).collect::<Vec<_>>())?);
    } else {
        print!("{}", fleet::describe(&read));
    }
    let worst = read.iter().map(|(_, classified)| classified.scenario).max();
    Ok(worst.map_or(0, |worst| kept(options.require, worst)))
}

/// Number of cores reserved for the host.
fn reserve(context: &Context, options: &Classify) -> anyhow::Result<f64> {
    match options.reserve.as_deref() {
        None => Ok(1.0),
        Some("measured") => {
            let before = machine::cpu_time(&context.host);
            std::thread::sleep(WATCH);
            let passed = machine::cpu_time(&context.host).zip(before).map(|(now, before)| now.since(&before));
            let busy = passed.context("/proc/stat has no CPU times")?.busy_us();
            Ok((busy as f64 / 1e6 / WATCH.as_secs_f64()).max(1.0))
        }
        Some(cores) => cores.parse().map_err(|_| {
            anyhow!("--reserve {cores:?}: must be a number of cores, such as 1 or 0.5, or the word measured")
        }),
    }
}

/// Returns the ladder in a file, or the built-in one.
fn ladder(context: &Context, name: &str) -> anyhow::Result<Ladder> {
    if name == "arenadata" {
        return Ok(arenadata());
    }
    let text = context.host.read_file(&absolute(Path::new(name))?)?;
    Ladder::from_json(&text).with_context(|| format!("{name} cannot be used"))
}

/// Shows a recorded ladder.
pub fn report(context: &mut Context, options: &DensityReport) -> anyhow::Result<u8> {
    let ladder = ladder(context, &options.file)?;
    if let Some(file) = &options.html {
        let file = absolute(file)?;
        context.host.state_replace(&file, &page::html(&ladder)).context("the page cannot be written")?;
    }
    let table = table(&ladder);
    if options.json {
        println!("{}", commensal_core::text::json_pretty(&table)?);
    } else {
        print!("{}", print::text(&table));
        ladder.notes.iter().for_each(|note| println!("note: {note}"));
    }
    Ok(0)
}

/// Reports how many VMs fit on a server.
pub fn plan(context: &mut Context, options: &DensityPlan) -> anyhow::Result<u8> {
    for (what, value) in [("--max-harm", options.max_harm), ("--smt-gain", options.smt_gain)] {
        if !value.is_finite() || value < 0.0 {
            bail!("{what} {value}: must be a number, 0 or more");
        }
    }
    if !(options.all_core > 0.0 && options.all_core <= 1.0) {
        bail!("--all-core {}: must be a share above 0, at most 1", options.all_core);
    }
    if let Some(cores) = options.bandwidth_cores.filter(|cores| !(*cores >= 1.0 && cores.is_finite())) {
        bail!("--bandwidth-cores {cores}: must be a number of cores, 1 or more");
    }
    let question = Question {
        max_harm_pct: options.max_harm,
        test: options.test.clone(),
        concurrency: options.at_concurrency,
        max_warnings: options.max_warnings,
        max_steal_pct: options.max_steal,
        fleet: options.fleet,
        accept_means: options.accept_means,
        calibration: Calibration {
            smt_gain: options.smt_gain,
            all_core: options.all_core,
            bandwidth_cores: options.bandwidth_cores,
        },
    };
    let ladder = match (&options.measure, &options.from) {
        (Some(name), _) => {
            super::density_run::measure(context, name, (&question, options.most), &options.out)?
        }
        (None, Some(from)) => ladder(context, from)?,
        (None, None) => bail!("--from or --measure is needed"),
    };
    if let Some(test) = &options.test
        && ladder.test(test).is_none()
    {
        let known: Vec<&str> = ladder.tests.iter().map(|test| test.name.as_str()).collect();
        bail!("--test {test:?}: the tests of this ladder are {}", known.join(", "));
    }
    let planned = answer(&ladder, &question);
    if options.json {
        println!("{}", commensal_core::text::json_pretty(&planned)?);
    } else {
        print!("{}", planned.describe());
    }
    Ok(if planned.answered() { 0 } else { 3 })
}
