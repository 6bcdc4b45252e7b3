//! `lab run`, `lab doctor`.

use super::{LabDoctor, LabRun};
use crate::context::Context;
use crate::signals::stop_flag;
use anyhow::{Context as _, bail};
use commensal_host::{Host, LinuxHost};
use commensal_lab::conductor::{self, Conduct, Event};
use commensal_lab::experiment::{Choice, Experiment, quickstart};
use commensal_lab::record::Run;
use commensal_lab::{doctor as noise, report as render};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

/// Experiments that this version has.
const KNOWN: [&str; 1] = ["quickstart"];

/// Runs an experiment.
pub fn run(context: &mut Context, options: &LabRun) -> anyhow::Result<u8> {
    if !KNOWN.contains(&options.name.as_str()) {
        bail!("no experiment {:?}; there is {}", options.name, KNOWN.join(", "));
    }
    let choice = Choice {
        rounds: options.rounds,
        block_s: options.block,
        seed: options.seed,
        threshold_pct: options.threshold,
    };
    choice.validate().map_err(anyhow::Error::msg)?;
    // Found out now, not after three minutes.
    let out = absolute(&options.out)?;
    context.writable(&out).context("the record cannot be written")?;
    let (run, left) = conduct(context, &quickstart(&choice), options.port, !options.no_blame, Some(&out))?;
    let saved = context.host.state_replace(&out, &run.to_json()?);
    if options.json {
        println!("{}", run.to_json()?);
    } else {
        print!("{}", render::terminal(&run, std::io::stdout().is_terminal()));
        println!("\nrecord: {}   (again, in other forms: commensal lab report)", out.display());
    }
    saved.context("the record cannot be written")?;
    Ok(if left { 2 } else { run.verdict.map_or(2, commensal_lab::verdict::Verdict::exit_code) })
}

/// Tells what a run could not remove; whether there was anything.
fn told(left: &[String]) -> bool {
    for line in left {
        eprintln!("commensal: {line}");
    }
    if !left.is_empty() {
        eprintln!("commensal: the run could not remove all that it made; `commensal restore` will try again");
    }
    !left.is_empty()
}

/// Says whether this machine can decide a threshold.
pub fn doctor(context: &mut Context, options: &LabDoctor) -> anyhow::Result<u8> {
    let choice = Choice { block_s: options.block, threshold_pct: options.threshold, ..Choice::QUICKSTART };
    choice.validate().map_err(anyhow::Error::msg)?;
    let (run, left) = conduct(context, &noise::experiment(&choice), 0, false, None)?;
    let report = noise::judge(&run, &choice);
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report.describe());
    }
    Ok(if left { 2 } else { report.verdict().exit_code() })
}

pub(super) fn absolute(path: &Path) -> anyhow::Result<std::path::PathBuf> {
    std::path::absolute(path).with_context(|| format!("{} is not a path", path.display()))
}

/// Conducts an experiment with a progress bar, and saves the record after every round. Also tells what could not
/// be removed; whether there was anything.
fn conduct(
    context: &mut Context,
    experiment: &Experiment,
    port: u16,
    blame: bool,
    out: Option<&Path>,
) -> anyhow::Result<(Run, bool)> {
    let stop = stop_flag(&context.host)?;
    let conduct = Conduct {
        program: std::env::current_exe().context("this program's own file cannot be found")?,
        state_dir: context.state_dir.clone(),
        probe_name: context.lab_probe_name(),
        cgroup_root: context.cgroup_root.clone(),
        port,
        blame,
        args: std::env::args().skip(1).collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let bar = progress(experiment);
    let mut files = LinuxHost::new();
    let mut saved = 0;
    let mut left = false;
    let mut tell = |event: Event<'_>| match event {
        Event::Ready(site) => {
            // Around the bar, and also where no bar is drawn.
            bar.suspend(|| {
                for line in &site.cleaned {
                    eprintln!("left by an earlier run: {line}");
                }
                eprintln!("isolated arm: {}", site.means.driver);
                if let Some(weak) = &site.means.weak {
                    eprintln!("  {weak}");
                }
            });
        }
        Event::Block { done, total, round } => {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
            bar.set_message(format!("round {round}"));
        }
        Event::Round(run) => {
            // A failure to save shows at the end, when it is tried again and told.
            let written = out.zip(run.to_json().ok()).map(|(out, json)| files.state_replace(out, &json));
            saved += u32::from(matches!(written, Some(Ok(()))));
        }
        Event::Closed(lines) => bar.suspend(|| left = told(lines)),
    };
    let result = conductor::run(&mut context.host, experiment, &conduct, &stop, &mut tell);
    bar.finish_and_clear();
    if let (Err(_), Some(out), true) = (&result, out, saved > 0) {
        eprintln!("commensal: the rounds that were finished are in {}", out.display());
    }
    Ok((result?, left))
}

fn progress(experiment: &Experiment) -> ProgressBar {
    let total = experiment.arms.len() as u64 * u64::from(experiment.design.rounds);
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template(
        "{bar:30} {pos}/{len} blocks  {msg}  {elapsed} of about {prefix}, {eta} left",
    );
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_prefix(format!("{:.0} s", experiment.duration_s()));
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}
