//! Commands, options and exit statuses. Most commands exit with 0 if the check passed, 1 if the check failed and 2
//! after an error. The lab adds 3 (inconclusive) and 4 (the measurement is invalid). `run` exits with the status of the
//! command that it runs.

mod agent;
mod agent_args;
mod apply;
mod args;
mod blame;
mod canary;
mod config;
mod density;
mod density_args;
mod density_pin;
mod density_run;
mod doctor;
mod frame;
mod init;
mod journal;
mod lab;
mod lab_args;
mod lab_calibrate;
mod lab_history;
mod lab_history_args;
mod lab_report;
mod load;
mod oom;
mod queue;
mod restore;
mod run;
mod sched;
mod sched_args;
mod status;
mod top;
mod values;
mod workload;

pub use agent_args::{Agent, AgentOrder, Canary, Guard, OnExit};
pub use args::{
    Blame, Cli, Config, ConfigCheck, ConfigVerb, Doctor, Explain, Groups, Init, Journal, JournalVerb, Json,
    Run, Status, Top, Verb, Workload, WorkloadVerb,
};
pub use density_args::{Density, DensityVerb};
pub use lab_args::{
    Format, Lab, LabCalibrate, LabDiff, LabDoctor, LabLoad, LabName, LabProfile, LabReport, LabRun, LabVerb,
    Spacing,
};
pub use lab_history_args::{BaselineVerb, LabBaseline, LabHistory};
pub use sched_args::{Sched, SchedVerb};

use crate::context::Context;
use crate::output;
use anyhow::anyhow;
use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, FromArgMatches};
use commensal_host::LinuxHost;
use std::ffi::OsString;
use std::process::ExitCode;

/// Parses the command line, runs the command, and returns the exit status.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match parse(std::env::args_os()) {
        Ok(cli) => cli,
        // The program's name alone asks what it is.
        Err(error)
            if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                && std::env::args_os().count() == 1 =>
        {
            print!("{}", error.render());
            return ExitCode::from(if output::end().is_ok() { 0 } else { 2 });
        }
        Err(error) => {
            match error.use_stderr() {
                // The message quotes invalid arguments, so it is escaped.
                true => eprint!("{}{}", error.render(), hint(&error).unwrap_or_default()),
                false => drop(error.print()),
            }
            return ExitCode::from(if error.use_stderr() && is_run() {
                125
            } else {
                u8::from(error.use_stderr()) * 2
            });
        }
    };
    // `run` reserves 1 to 124 for the command that it runs.
    let trouble = if matches!(cli.verb, Verb::Run(_)) { 125 } else { 2 };
    let done = dispatch(cli);
    let printed = output::end().map_err(|error| anyhow!("standard output cannot be written: {error}"));
    match done.and_then(|code| printed.map(|()| code)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("commensal: {error:#}");
            ExitCode::from(trouble)
        }
    }
}

/// The command line. The help of a command says what it does, then has an example, details and the options.
#[must_use]
pub fn command() -> Command {
    described(Cli::command())
}

/// Puts all but the first paragraph of a command's documentation between its first and its usage. As clap's long help,
/// they would put every option on lines of its own.
fn described(command: Command) -> Command {
    let text = command.get_long_about().map(ToString::to_string).unwrap_or_default();
    let command = command
        .help_template("{about-with-newline}\n{before-help}{usage-heading} {usage}\n\n{all-args}")
        .mut_subcommands(described);
    match text.split_once("\n\n") {
        Some((_, details)) => command.long_about(Resettable::Reset).before_help(details.to_owned()),
        None => command,
    }
}

/// Parses a command line.
///
/// # Errors
/// It has mistakes, or asks for help.
pub fn parse(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Cli, clap::Error> {
    let mut command = command();
    let matches = command.try_get_matches_from_mut(words)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// What was probably meant by an argument that the verb does not take: a groups file, or the command of `run`.
fn hint(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else { return None };
    if error.kind() != ErrorKind::UnknownArgument || argument.starts_with('-') {
        return None;
    }
    match is_run() {
        true => Some(format!("\n  try: put the command after `--`: … run -g GROUP -- {argument} …\n")),
        false if argument.contains(['/', '.']) => {
            Some(format!("\n  try: name the groups file with -c: … -c {argument}\n"))
        }
        false => None,
    }
}

/// Whether the first subcommand on a command line that could not be parsed is `run`.
fn is_run() -> bool {
    let verbs = [
        "doctor",
        "plan",
        "apply",
        "restore",
        "undo",
        "init",
        "config",
        "journal",
        "run",
        "agent",
        "guard",
        "queue",
        "status",
        "explain",
        "top",
        "blame",
        "lab",
        "density",
        "sched",
        "completions",
        "help",
    ];
    let first = std::env::args().skip(1).find(|arg| verbs.contains(&arg.as_str()));
    first.is_some_and(|verb| verb == "run")
}

/// Returns the completion script for a shell.
///
/// # Errors
/// The generated script is not UTF-8, which does not happen in practice.
pub fn completions(shell: clap_complete::Shell) -> anyhow::Result<String> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command(), "commensal", &mut text);
    Ok(String::from_utf8(text)?)
}

fn dispatch(cli: Cli) -> anyhow::Result<u8> {
    if let Verb::Workload(workload) = &cli.verb
        && !matches!(workload.verb, WorkloadVerb::ThawGuard)
    {
        return workload::run(&workload.verb);
    }
    if let Verb::Completions { shell } = cli.verb {
        output::paint(&completions(shell)?);
        return Ok(0);
    }
    match &cli.verb {
        Verb::Config(config) => return config::run(&config.verb),
        Verb::Init(options) => return init::run(&mut LinuxHost::new(), options, &mut std::thread::sleep),
        _ => {}
    }
    let mut context = Context::new(cli.state_dir, cli.cgroup_prefix, cli.cgroup_root.as_deref())?;
    context.beside_others = cli.beside_others;
    if cli.insecure_permissions {
        eprintln!(
            "commensal: --insecure-permissions: everyone who can write the groups files or {} controls what this \
             command does",
            context.state_dir.display()
        );
    } else {
        context.host.guard_state(&context.state_dir);
    }
    match cli.verb {
        Verb::Doctor(options) => doctor::run(&mut context, &options),
        Verb::Plan(options) => apply::plan(&mut context, &options),
        Verb::Apply(options) => apply::apply(&mut context, &options),
        Verb::Restore(options) => restore::run(&mut context, options.json),
        Verb::Journal(journal) => journal::run(&mut context, &journal.verb),
        Verb::Run(options) => run::run(&mut context, &options),
        Verb::Agent(options) => match &options.order {
            None => agent::agent(&mut context, &options),
            Some(AgentOrder::Canary(options)) => canary::run(&mut context, options),
            Some(order) => agent::order(&context, order),
        },
        Verb::Completions { .. } | Verb::Config(_) | Verb::Init(_) => Ok(0),
        Verb::Workload(_) => workload::thaw_guard(&mut context),
        Verb::Guard(options) => agent::guard(&mut context, &options),
        Verb::Status(options) => status::run(&mut context, &options),
        Verb::Explain(options) => status::explain(&context, &options),
        Verb::Top(options) => top::run(&mut context, &options),
        Verb::Queue(options) => queue::show(&mut context, &options),
        Verb::Blame(options) => blame::run(&mut context, &options),
        Verb::Lab(lab) => match lab.verb {
            LabVerb::Run(options) => lab::run(&mut context, &options),
            LabVerb::List => lab::list(),
            LabVerb::Show(options) => lab::show(&context, &options),
            LabVerb::Check(options) => lab::check(&mut context, &options),
            LabVerb::Profile(options) => lab::profile(&mut context, &options),
            LabVerb::Doctor(options) => lab::doctor(&mut context, &options),
            LabVerb::Calibrate(options) => lab_calibrate::run(&mut context, &options),
            LabVerb::Report(options) => lab_report::report(&mut context, &options),
            LabVerb::Diff(options) => lab_report::diff(&mut context, &options),
            LabVerb::Baseline(options) => lab_history::baseline(&mut context, &options),
            LabVerb::History(options) => lab_history::history(&mut context, &options),
            LabVerb::Load(options) => load::run(&mut context, &options),
        },
        Verb::Density(density) => match density.verb {
            DensityVerb::Classify(options) => density::classify(&mut context, &options),
            DensityVerb::Run(options) => density_run::run(&mut context, &options),
            DensityVerb::List => density_run::list(),
            DensityVerb::Prepare(options) => density_run::prepare(&mut context, &options),
            DensityVerb::Pin(options) => density_pin::pin(&mut context, &options),
            DensityVerb::Report(options) => density::report(&mut context, &options),
            DensityVerb::Calibrate => density_run::calibrate(&mut context),
            DensityVerb::Plan(options) => density::plan(&mut context, &options),
        },
        Verb::Sched(sched) => sched::run(&mut context, &sched.verb),
    }
}
