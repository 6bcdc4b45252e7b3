//! `blame`: finds who is meant, lets the judge look, and prints what it saw. Changes nothing on the machine.

mod target;

use super::Blame;
use crate::context::Context;
use crate::signals;
use anyhow::{Context as _, bail};
use commensal_blame::names::Cgroups;
use commensal_blame::unattributed::Unattributed;
use commensal_blame::{Bounds, Figures, Judge, Labels, NoJudge, Report, Scope};
use serde_json::json;
use std::io::{IsTerminal, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use target::Named;

/// How often a live line comes.
const LIVE: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(50);

/// Looks and reports. Status 0; with `--check` 1 when guilty and 3 when nothing can be said.
pub fn run(context: &mut Context, options: &Blame) -> anyhow::Result<u8> {
    let mut cgroups = Cgroups::look(&mut context.host)?;
    let who = target::find(context, cgroups.as_ref(), options)?;
    let stop = signals::stop_flag(&context.host).context("watch for Ctrl-C")?;
    let scope = Scope {
        online: who.online.iter().map(|one| one.subject.clone()).collect(),
        offline: who.offline.iter().map(|one| one.subject.clone()).collect(),
        unified: cgroups.as_ref().is_none_or(|found| found.unified),
        verify: options.verify,
        interrupts: !options.no_interrupts,
    };
    let judge = match Judge::attach(&context.host, &scope) {
        Ok(judge) => judge,
        Err(error @ NoJudge::TooMany(_)) => return Err(error.into()),
        Err(error) => return without(context, options, &scope, cgroups.as_ref(), &who, &stop, &error),
    };
    let view = View {
        labels: Labels { subjects: names(&who.online), against: names(&who.offline) },
        bounds: Bounds {
            blame_ms: options.blame_below.unwrap_or(Bounds::default().blame_ms),
            preempt_us: options.preempt_below.unwrap_or(Bounds::default().preempt_us),
        },
    };
    let first = judge.read()?;
    let live = !options.json && std::io::stdout().is_terminal();
    let (mut last, mut next) = (first.clone(), Instant::now() + LIVE);
    let started = Instant::now();
    let mut gone = None;
    while gone.is_none() && !over(started, options.r#for, &stop) {
        std::thread::sleep(POLL);
        if Instant::now() >= next {
            next += LIVE;
            if live {
                let now = judge.read()?;
                let report = view.report(&now.since(&last), cgroups.as_ref());
                println!("{}", report.line());
                last = now;
            }
            gone = target::gone(context, cgroups.as_ref(), &who.online);
        }
    }
    let total = judge.read()?.since(&first);
    // Groups that came meanwhile have names, too; those that went have had one.
    if let (Some(before), Ok(Some(now))) = (cgroups.as_mut(), Cgroups::look(&mut context.host)) {
        before.learn(&now);
    }
    let report = view.report(&total, cgroups.as_ref());
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}{}", if live { "\n" } else { "" }, report.text());
        if let Some(name) = gone {
            println!("note: {name} ended meanwhile");
        }
    }
    std::io::stdout().flush()?;
    if !options.check {
        return Ok(0);
    }
    Ok(match report.verdict.map(|judged| judged.word) {
        Some("innocent") => 0,
        Some("guilty") => 1,
        _ => 3,
    })
}

/// What does not change during a look.
struct View {
    labels: Labels,
    bounds: Bounds,
}

impl View {
    fn report(&self, figures: &Figures, cgroups: Option<&Cgroups>) -> Report {
        Report::new(figures, &self.labels, self.bounds, &|id| match cgroups {
            Some(cgroups) => cgroups.name(id),
            None => format!("cgroup {id}"),
        })
    }
}

fn names(all: &[Named]) -> Vec<String> {
    all.iter().map(|one| one.name.clone()).collect()
}

fn over(started: Instant, limit: Option<Duration>, stop: &AtomicBool) -> bool {
    stop.load(Ordering::Relaxed) || limit.is_some_and(|limit| started.elapsed() >= limit)
}

/// Run delay alone: how long, not because of whom.
fn without(
    context: &mut Context,
    options: &Blame,
    scope: &Scope,
    cgroups: Option<&Cgroups>,
    who: &target::Who,
    stop: &AtomicBool,
    error: &NoJudge,
) -> anyhow::Result<u8> {
    if options.check {
        bail!("{error}; without the judge nobody can be found guilty or innocent");
    }
    eprintln!(
        "commensal: {error}\n  what follows is the kernel's run delay: how long they waited, not because of whom"
    );
    let mut sums = Unattributed::default();
    let started = Instant::now();
    sums.read(&mut context.host, &scope.online, cgroups).context(
        "this kernel counts no run delay either (/proc/PID/task/TID/schedstat, CONFIG_SCHED_INFO)",
    )?;
    while !over(started, options.r#for, stop) {
        std::thread::sleep(POLL);
    }
    let total = sums.read(&mut context.host, &scope.online, cgroups).unwrap_or_default();
    let (run_s, wait_ms) = (total.run_ns as f64 / 1e9, total.delay_ns as f64 / 1e6);
    let per = (run_s > 0.0).then(|| wait_ms / run_s);
    let subjects = names(&who.online);
    let seconds = started.elapsed().as_secs_f64();
    if options.json {
        let value = json!({
            "subjects": subjects, "seconds": seconds, "run_s": run_s, "wait_ms": wait_ms, "wait_ms_per_cpu_s": per,
            "unattributed": error.to_string(),
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
    } else {
        println!(
            "{}: {run_s:.2} s on a CPU and {wait_ms:.1} ms waiting for one in {seconds:.1} s",
            subjects.join(", ")
        );
        if let Some(per) = per {
            println!(
                "wait per CPU-second {per:.1} ms, unattributed; a wake-up that preempts at once counts as none"
            );
        }
    }
    Ok(0)
}
