//! `lab run`, `show`, `check` and `list` of replays: a document's tables once more.

use super::LabRun;
use super::lab::absolute;
use crate::context::Context;
use crate::signals::stop_flag;
use anyhow::{Context as _, bail};
use commensal_host::{Host, LinuxHost};
use commensal_lab::replay::{self, Replay, ReplayEnv, SHIPPED};
use commensal_lab::site::Claim;
use std::path::{Path, PathBuf};

/// The replay of a name or in a file; `None` when it is none.
pub(super) fn named(context: &Context, name: &str) -> anyhow::Result<Option<Replay>> {
    if let Some((name, text)) = SHIPPED.iter().find(|(known, _)| *known == name) {
        return Ok(Some(replay::parse(name, text)?));
    }
    if !name.contains('/') && !name.ends_with(".toml") {
        return Ok(None);
    }
    // A file that cannot be read is told of by who reads it next.
    let Ok(text) = context.host.read_file(&absolute(Path::new(name))?) else { return Ok(None) };
    Ok(if replay::is_replay(&text) { Some(replay::parse(name, &text)?) } else { None })
}

/// Where programs are looked for: beside this one, then on `PATH`.
fn path() -> Vec<PathBuf> {
    let own = std::env::current_exe().ok().and_then(|program| program.parent().map(Path::to_owned));
    let path = std::env::var_os("PATH").unwrap_or_default();
    own.into_iter().chain(std::env::split_paths(&path)).collect()
}

/// Runs one and prints its tables.
pub(super) fn run(context: &mut Context, mut replay: Replay, options: &LabRun) -> anyhow::Result<u8> {
    if let Some(option) = without_meaning(options) {
        bail!(
            "{} repeats what a program measures by itself: --{option} has no meaning for it (--rounds has)",
            replay.name
        );
    }
    if let Some(rounds) = options.rounds {
        replay.repeats = rounds.max(1);
    }
    let out = absolute(&options.out)?;
    context.writable(&out).context("the record cannot be written")?;
    // It would measure a run of the lab, and that it.
    let _claim = Claim::take(&context.host)?;
    let stop = stop_flag(&context.host)?;
    let dir = context.state_dir.join("replay-files");
    let ground = ReplayEnv { dir: &dir, path: &path(), stop: &stop, version: env!("CARGO_PKG_VERSION") };
    let (mut files, repeats) = (LinuxHost::new(), replay.repeats);
    let mut saved = Ok(());
    let outcome = replay::run(&mut context.host, &replay, &ground, &mut |record| {
        eprintln!("repeat {} of {repeats} is done", record.repeats.len());
        if let Ok(json) = record.to_json() {
            saved = files.state_replace(&out, &json);
        }
    });
    // The data of the program: made again next time.
    let removed = context.host.state_remove_all(&dir);
    let record = outcome?;
    if options.json {
        println!("{}", record.to_json()?);
    } else {
        print!("{}", record.tables());
        println!("\nrecord: {}", out.display());
    }
    saved.context("the record cannot be written")?;
    removed.with_context(|| format!("{} cannot be removed", dir.display()))?;
    Ok(0)
}

/// An option that says something about arms and blocks.
fn without_meaning(options: &LabRun) -> Option<&'static str> {
    let given = [
        ("block", options.block.is_some()),
        ("seed", options.seed.is_some()),
        ("threshold", options.threshold.is_some()),
        ("load", options.load.is_some()),
        ("arms", options.arms.is_some()),
        ("restart", options.restart.is_some()),
        ("slo", options.slo.is_some()),
        ("min-offline", options.min_offline.is_some()),
        ("gate-query", !options.gate_queries.is_empty()),
        ("vary", options.vary.is_some()),
        ("ramp", options.ramp.is_some()),
        ("pilot", options.pilot),
        ("adaptive", options.adaptive),
        ("resume", options.resume.is_some()),
        ("style", options.style.is_some()),
    ];
    given.into_iter().find(|(_, given)| *given).map(|(name, _)| name)
}

/// Says what it would do, and whether it could.
pub(super) fn check(context: &Context, replay: &Replay) -> u8 {
    println!("{}: {}", replay.name, replay.about);
    println!("  {}", replay.command.join(" "));
    println!("  {} repeats", replay.repeats);
    match replay::find(&context.host, replay, &path()) {
        Ok(program) => {
            println!("  {}\neverything that it needs is here", program.display());
            0
        }
        Err(error) => {
            println!("{} cannot be run here: {error}", replay.name);
            2
        }
    }
}
