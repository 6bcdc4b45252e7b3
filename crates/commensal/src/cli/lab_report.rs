//! The commands `lab report` and `lab diff`: print recorded runs again and in other formats.

use super::values::absolute;
use super::{Format, LabDiff, LabReport};
use crate::context::Context;
use anyhow::{Context as _, bail};
use commensal_host::Host;
use commensal_lab::record::{Run, Verdict};
use commensal_lab::{analysis, conductor, report as render};
use std::io::IsTerminal;
use std::path::Path;

/// Shows a recorded run again.
pub fn report(context: &mut Context, options: &LabReport) -> anyhow::Result<u8> {
    let mut run = record(context, &options.file)?;
    if options.by_new_rules {
        conductor::by_new_rules(&mut run);
    }
    analysis::conclude(&mut run);
    let file = options.out.as_deref().filter(|out| out.as_os_str() != "-");
    if options.chart.is_some() && options.format != Format::Svg {
        bail!("--chart is for --format svg");
    }
    let text = match (options.json, options.format) {
        _ if options.style.is_some() => render::styled(&run, options.style.unwrap_or(render::Style::Default)),
        (true, _) => run.to_json()?,
        (_, Format::Terminal) => render::terminal(&run, file.is_none() && std::io::stdout().is_terminal()),
        (_, Format::Markdown) => render::markdown(&run),
        (_, Format::Csv) => render::csv(&run),
        (_, Format::Html) => render::html(&run),
        (_, Format::Junit) => render::junit(&run, options.strict),
        (_, Format::Svg) => {
            pictures(context, &run, options, file)?;
            return Ok(status(&run, options));
        }
    };
    match file {
        None if options.format == Format::Terminal => crate::output::paint(&text),
        None => print!("{text}"),
        Some(file) => {
            let file = absolute(file)?;
            context.writable(&file)?;
            put(context, &file, &text)?;
        }
    }
    Ok(status(&run, options))
}

/// Compares two recorded runs.
pub fn diff(context: &mut Context, options: &LabDiff) -> anyhow::Result<u8> {
    let one = read(context, &options.a)?;
    let (a, b) = match (&options.baseline, &options.b) {
        (Some(name), _) => (super::lab_history::named(context, name)?, one),
        (None, Some(other)) => (one, read(context, other)?),
        (None, None) => bail!("name two records, or one and --baseline NAME"),
    };
    if !options.force {
        render::comparable(&a, &b).context("the runs cannot be compared (--force compares them anyway)")?;
    }
    let compared = render::compare(&a, &b);
    if options.json {
        println!("{}", commensal_core::text::json_pretty(&compared)?);
    } else {
        print!("{}", compared.text());
    }
    Ok(0)
}

/// Reads a record and recomputes its conclusions, which are then printed instead of the stored ones.
fn read(context: &Context, file: &Path) -> anyhow::Result<Run> {
    let mut run = record(context, file)?;
    analysis::conclude(&mut run);
    Ok(run)
}

/// Reads a record without recomputing its conclusions.
pub(super) fn record(context: &Context, file: &Path) -> anyhow::Result<Run> {
    let text = context.host.read_file(&absolute(file)?)?;
    Run::from_json(text.as_bytes()).with_context(|| format!("{} is not a record", file.display()))
}

/// The exit status: with `--exit-verdict` the status of the verdict, or 2 if the record has no verdict; otherwise 0.
fn status(run: &Run, options: &LabReport) -> u8 {
    if options.exit_verdict { run.verdict.map_or(2, Verdict::exit_code) } else { 0 }
}

/// Writes the charts to files in a folder, or a single chart to standard output.
fn pictures(
    context: &mut Context,
    run: &Run,
    options: &LabReport,
    folder: Option<&Path>,
) -> anyhow::Result<()> {
    let mut charts = render::charts(run);
    if let Some(name) = &options.chart {
        let known: Vec<&str> = charts.iter().map(|chart| chart.name).collect();
        if !known.contains(&name.as_str()) {
            bail!("there is no chart {name:?}; there are {}", known.join(", "));
        }
        charts.retain(|chart| chart.name == name);
    }
    let Some(folder) = folder else {
        let [chart] = charts.as_slice() else {
            bail!(
                "several charts do not fit on standard output: name a folder with --out, or one of them with --chart"
            );
        };
        print!("{}", chart.svg);
        return Ok(());
    };
    let folder = absolute(folder)?;
    let ours = !folder.is_dir();
    if ours {
        context.host.state_dir(&folder).with_context(|| format!("{} cannot be created", folder.display()))?;
    }
    let written = put_all(context, &folder, charts);
    if written.is_err() && ours {
        // Removes the folder if it was created for the charts.
        let _ = context.host.state_remove_all(&folder);
    }
    written
}

fn put_all(context: &mut Context, folder: &Path, charts: Vec<render::Chart>) -> anyhow::Result<()> {
    for chart in charts {
        let file = folder.join(format!("{}.svg", chart.name));
        context.writable(&file)?;
        let written = context.host.state_replace(&file, &chart.svg);
        written.with_context(|| format!("{} cannot be written", file.display()))?;
        match chart.missing {
            Some(why) => eprintln!("{}: only words: {why}", file.display()),
            None => eprintln!("{}", file.display()),
        }
    }
    Ok(())
}

fn put(context: &mut Context, file: &Path, text: &str) -> anyhow::Result<()> {
    context.host.state_replace(file, text).with_context(|| format!("{} cannot be written", file.display()))
}
