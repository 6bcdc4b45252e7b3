//! The commands `lab baseline` and `lab history`, for stored runs.

use super::values::absolute;
use super::{BaselineVerb, LabBaseline, LabHistory};
use crate::context::Context;
use anyhow::{Context as _, bail};
use commensal_host::Host;
use commensal_lab::history::{Entry, series};
use commensal_lab::record::{Run, Verdict};
use commensal_lab::{analysis, keep, report as render};
use std::io::IsTerminal;
use std::path::Path;

/// Stores a finished run: a line of the history, and a baseline if requested. The record is already written, so a
/// failure to write the history is reported but does not fail the run.
pub fn keep_run(
    context: &mut Context,
    run: &Run,
    record: &Path,
    baseline: Option<&str>,
) -> anyhow::Result<()> {
    let entry = Entry::of(run, &record.display().to_string());
    let remembered = keep::remember(&mut context.host, &context.state_dir, &entry);
    if let Err(error) = remembered.map_err(anyhow::Error::from) {
        eprintln!(
            "commensal: the run could not be added to the history: {error:#}; `commensal lab history {}` shows it from \
             its record",
            record.display()
        );
    }
    match baseline {
        Some(name) => save(context, name, run),
        None => Ok(()),
    }
}

/// Checks before a run whether its baseline can be stored.
pub fn can_save(context: &mut Context, name: &str) -> anyhow::Result<()> {
    let file = keep::baseline_file(&context.state_dir, name)?;
    context.host.state_dir(&keep::baselines_dir(&context.state_dir))?;
    context.writable(&file).context("the baseline cannot be stored")
}

fn save(context: &mut Context, name: &str, run: &Run) -> anyhow::Result<()> {
    let before = keep::baseline(&mut context.host, &context.state_dir, name).ok();
    let file = keep::save_baseline(&mut context.host, &context.state_dir, name, run)?;
    let replaced =
        before.map(|before| format!(", in place of the run of {}", before.started)).unwrap_or_default();
    eprintln!("baseline {name}: {}{replaced}", file.display());
    if matches!(run.verdict, Some(Verdict::Invalid) | None) {
        eprintln!("commensal: this baseline is INVALID: do not compare other runs with its figures");
    }
    Ok(())
}

/// Lists, shows, saves and removes baselines.
pub fn baseline(context: &mut Context, options: &LabBaseline) -> anyhow::Result<u8> {
    match &options.verb {
        BaselineVerb::List => list(context),
        BaselineVerb::Show { name } => {
            let run = named(context, name)?;
            println!(
                "baseline {name}: {} of {}, commensal {}, kernel {}, {}\n",
                run.experiment, run.started, run.tool.version, run.machine.kernel, run.machine.fingerprint
            );
            crate::output::paint(&render::terminal(&run, std::io::stdout().is_terminal()));
            Ok(0)
        }
        BaselineVerb::Save { name, file } => {
            let run = super::lab_report::record(context, file)?;
            save(context, name, &run)?;
            Ok(0)
        }
        BaselineVerb::Rm { name } => {
            keep::remove_baseline(&mut context.host, &context.state_dir, name)?;
            Ok(0)
        }
    }
}

/// Reads a baseline and recomputes its conclusions.
pub fn named(context: &mut Context, name: &str) -> anyhow::Result<Run> {
    let mut run = keep::baseline(&mut context.host, &context.state_dir, name)?;
    analysis::conclude(&mut run);
    Ok(run)
}

fn list(context: &mut Context) -> anyhow::Result<u8> {
    let names = keep::baseline_names(&context.host, &context.state_dir);
    if names.is_empty() {
        println!(
            "no baseline in {}: `commensal lab run NAME --save-baseline main` creates one",
            keep::baselines_dir(&context.state_dir).display()
        );
    }
    let mut status = 0;
    for name in names {
        match keep::baseline(&mut context.host, &context.state_dir, &name) {
            Ok(run) => println!(
                "{name:16} {:12} {} of {}, commensal {}, kernel {}, {} with {} CPUs",
                run.verdict.map_or("NO VERDICT", Verdict::label),
                run.experiment,
                run.started,
                run.tool.version,
                run.machine.kernel,
                run.machine.cpu,
                run.machine.threads
            ),
            Err(error) => {
                eprintln!("commensal: {:#}", anyhow::Error::from(error));
                status = 2;
            }
        }
    }
    Ok(status)
}

/// Shows how results changed from run to run.
pub fn history(context: &mut Context, options: &LabHistory) -> anyhow::Result<u8> {
    let is_file = |what: &&String| what.ends_with(".json") || what.contains('/');
    let (files, names): (Vec<&String>, Vec<&String>) = options.what.iter().partition(is_file);
    let (mut entries, mut told) = (Vec::new(), Vec::new());
    for file in &files {
        // A file that cannot be read is reported, and the others are shown.
        match super::lab_report::record(context, Path::new(file)) {
            Ok(mut run) => {
                analysis::conclude(&mut run);
                entries.push(Entry::of(&run, file));
            }
            Err(error) => told.push(format!("{file} is skipped: {error:#}")),
        }
    }
    if files.is_empty() {
        (entries, told) = keep::remembered(&mut context.host, &context.state_dir)?;
    }
    if !names.is_empty() {
        let mut known: Vec<String> = entries.iter().map(|entry| entry.experiment.clone()).collect();
        known.sort();
        known.dedup();
        if let Some(other) = names.iter().find(|name| !known.contains(**name)) {
            match known.is_empty() {
                true => bail!("the history has no run of {other:?}; it is empty"),
                false => bail!("the history has no run of {other:?}, only runs of {}", known.join(", ")),
            }
        }
        entries.retain(|entry| names.contains(&&entry.experiment));
    }
    let all = series(&entries);
    if let Some(page) = &options.page {
        let page = absolute(page)?;
        context.writable(&page)?;
        let written = context.host.state_replace(&page, &render::history_html(&all, &told));
        written.with_context(|| format!("{} cannot be written", page.display()))?;
    }
    if options.json {
        println!("{}", commensal_core::text::json_pretty(&all)?);
        told.iter().for_each(|line| eprintln!("commensal: {line}"));
    } else {
        print!("{}", render::history_text(&all, &told));
    }
    Ok(if files.is_empty() || !entries.is_empty() { 0 } else { 2 })
}
