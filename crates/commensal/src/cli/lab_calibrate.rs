//! The command `lab calibrate`: measures how often the lab's verdicts are right on this machine.

use super::LabCalibrate;
use super::lab::{Manner, run_experiment};
use super::values::absolute;
use crate::context::Context;
use crate::signals::stop_flag;
use anyhow::Context as _;
use commensal_host::Host;
use commensal_lab::calibrate::{Calibration, Done, Plan, markdown, summarise, terminal};
use commensal_lab::record::RecordedBy;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Makes the runs that the record does not contain yet, and prints the summary.
pub fn run(context: &mut Context, options: &LabCalibrate) -> anyhow::Result<u8> {
    let plan = Plan::new(
        options.harm.as_deref(),
        options.within.as_secs_f64(),
        options.seed,
        options.beside.as_ref(),
    )
    .map_err(anyhow::Error::msg)?;
    let plan = Plan { blame: !options.no_blame, ..plan };
    let tool = RecordedBy {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        args: std::env::args().skip(1).collect(),
    };
    let out = absolute(&options.out)?;
    let mut record = record(context, &out, plan, tool)?;
    let stop = stop_flag(&context.host)?;
    let experiment = record.plan.experiment(0).map_err(anyhow::Error::msg)?;
    if record.runs.len() < options.runs as usize {
        context.writable(&out).context("the record cannot be written")?;
        eprintln!(
            "{} runs of about {:.0} s, {} arms each; the record is {}",
            options.runs as usize - record.runs.len(),
            experiment.duration_s(),
            experiment.arms.len(),
            out.display()
        );
    }
    let mut left = false;
    for number in u32::try_from(record.runs.len()).unwrap_or(u32::MAX)..options.runs {
        let manner = Manner {
            blame: record.plan.blame,
            harms: record.plan.harms.clone(),
            beside: options.beside.clone(),
            stop: Some(Arc::clone(&stop)),
            ..Manner::default()
        };
        let experiment = record.plan.experiment(number).map_err(anyhow::Error::msg)?;
        let outcome = run_experiment(context, &experiment, manner);
        let (run, remains) = match outcome {
            Ok(done) => done,
            Err(error) => {
                let (runs, all) = (record.runs.len(), options.runs);
                return Err(error.context(format!(
                    "{runs} of {all} runs are in {}; the same command continues with the rest",
                    out.display()
                )));
            }
        };
        left |= remains;
        let done = record.add(&run)?;
        eprintln!("run {} of {}: {}", number + 1, options.runs, said(done));
        // Saved before the next run begins.
        context.host.state_replace(&out, &record.to_json()?).context("the record cannot be written")?;
        if left || stop.load(Ordering::Relaxed) {
            break;
        }
    }
    let summary = summarise(&record);
    if options.json {
        println!("{}", commensal_core::text::json_pretty(&summary)?);
    } else if options.markdown {
        print!("{}", markdown(&summary));
    } else {
        print!("{}", terminal(&summary));
    }
    Ok(match (left || stop.load(Ordering::Relaxed), summary.holds()) {
        (true, _) => 2,
        (false, holds) => u8::from(!holds),
    })
}

/// Returns the existing record if it was made with this plan, otherwise a new one.
fn record(context: &mut Context, out: &Path, plan: Plan, tool: RecordedBy) -> anyhow::Result<Calibration> {
    let Some(text) = context.host.state_read(out)? else { return Ok(Calibration::new(plan, tool)) };
    let cannot = || format!("{} cannot be continued", out.display());
    let earlier = Calibration::from_json(&text).with_context(cannot)?;
    earlier.may_go_on(&plan, &tool).with_context(cannot)?;
    Ok(earlier)
}

/// One line with the verdicts of one run.
fn said(done: &Done) -> String {
    let answers: Vec<String> =
        done.answers.iter().map(|answer| format!("{} {}", answer.harm.arm, answer.verdict.label())).collect();
    let foreign =
        done.foreign_cpus.map(|cpus| format!("; {cpus:.2} CPUs used by others")).unwrap_or_default();
    format!("{}{foreign}", answers.join(", "))
}
