//! The command `queue`: lists running and waiting commands. Also contains the part of `run` that waits in the queue.

use super::args::{Groups, Run};
use crate::context::Context;
use commensal_core::group::{GroupSpec, Queue};
use commensal_core::units::Millis;
use commensal_host::{Host, LinuxHost};
use commensal_reconcile::groups_file::{compile, texts};
use commensal_reconcile::queue::{
    self, Admission, Asked, Inbox, Job, QueueView, Request, Slot, Waits, admit,
};
use serde_json::{Value, json};
use std::time::Duration;

/// Maximum number of characters of a command line that is shown to other users.
const SHOWN: usize = 200;

/// Result of waiting in the queue.
pub enum Turn {
    /// The command may start. Contains its slot if the group has a queue.
    Begin(Option<Slot>),
    /// A signal arrived before the command was admitted. Contains the exit status.
    Left(u8),
}

/// Waits until the group's queue admits the command.
pub fn turn(context: &mut Context, spec: &GroupSpec, options: &Run, inbox: &Inbox) -> anyhow::Result<Turn> {
    let Some(queue) = spec.admission() else { return Ok(Turn::Begin(None)) };
    let at_most =
        options.queue_timeout.map(|time| Millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)));
    let request = Request {
        state_dir: &context.state_dir,
        group: &spec.name,
        queue,
        job: Job { pid: std::process::id(), command: command_line(options), ..Job::default() },
        at_most,
        no_wait: options.no_wait,
    };
    let mut reader = LinuxHost::default();
    if context.host.is_guarded() {
        reader.guard_state(&context.state_dir);
    }
    let mut last = Some(queue);
    let mut limits = || {
        // While a user edits the file, it may be invalid for a moment. The last valid version then applies.
        let read = texts(&reader, &options.config).and_then(|texts| compile(&texts));
        if let Ok(now) = read
            && let Some(now) = now.groups.iter().find(|one| one.name == spec.name)
        {
            last = now.admission();
        }
        last
    };
    let mut told = |waits: &Waits| eprintln!("commensal: group {}: {}", spec.name, in_words(waits, &queue));
    let mut asked = Asked { told: &mut told, limits: &mut limits };
    Ok(match admit(&mut context.host, &request, inbox, &mut asked)? {
        Admission::Admitted(slot) => Turn::Begin(Some(slot)),
        Admission::Signalled(signal) => Turn::Left(u8::try_from(128 + signal).unwrap_or(u8::MAX)),
    })
}

fn in_words(waits: &Waits, queue: &Queue) -> String {
    let why = match &waits.load.held {
        Some(why) => format!("the queue is held closed: {why}"),
        None => format!("{} of {} run", waits.load.running, queue.max_concurrency),
    };
    let until = waits.at_most.map(|time| format!(", for {time} at most")).unwrap_or_default();
    format!("waiting at place {} of the queue{until} ({why})", waits.place)
}

/// The command line, quoted and truncated for display.
fn command_line(options: &Run) -> String {
    let word = |word: &std::ffi::OsString| {
        let word = word.to_string_lossy();
        let plain =
            !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || c.is_control() || c == '"');
        if plain { word.into_owned() } else { format!("{word:?}") }
    };
    let words: Vec<String> = options.command.iter().map(word).collect();
    let whole = words.join(" ");
    match whole.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &whole[..end]),
        None => whole,
    }
}

/// Shows the queues of all groups that have one.
pub fn show(context: &mut Context, options: &Groups) -> anyhow::Result<u8> {
    let mut shown = Vec::new();
    for spec in context.specs(&options.config)? {
        if let Some(queue) = spec.admission() {
            let view = queue::read(&mut context.host, &context.state_dir, &spec.name)?;
            shown.push((spec, queue, view));
        }
    }
    if options.json {
        let all: Vec<Value> = shown.iter().map(|(spec, queue, view)| as_json(spec, queue, view)).collect();
        println!("{}", commensal_core::text::json_pretty(&all)?);
    } else if shown.is_empty() {
        println!("no group in {} has a queue", options.config.display());
    } else {
        for (spec, queue, view) in &shown {
            print!("{}", as_text(spec, queue, view));
        }
    }
    Ok(0)
}

fn as_text(spec: &GroupSpec, queue: &Queue, view: &QueueView) -> String {
    let of = |limit: Option<u32>| limit.map(|limit| format!(" of {limit}")).unwrap_or_default();
    let (run, wait) = queue.bounds();
    let mut text = format!(
        "{}: {}{} run, {}{} wait",
        spec.name,
        view.running.len(),
        of(run),
        view.waiting.len(),
        of(wait)
    );
    if let Some(held) = &view.held {
        text += &format!("; held closed for {} unless renewed: {}", span(held.left_ns), held.reason);
    }
    text.push('\n');
    let mut line = |what: String, since_ns: u64, job: &Job| {
        let time = span(view.now_ns.saturating_sub(since_ns));
        text += &format!("  {what:<9} pid {:<8} for {time:<10} {}\n", job.pid, job.command);
    };
    for job in &view.running {
        line("runs".to_owned(), job.started_ns.unwrap_or(job.arrived_ns), job);
    }
    for (before, job) in view.waiting.iter().enumerate() {
        line(format!("waits {}", before + 1), job.arrived_ns, job);
    }
    text
}

/// A duration in whole seconds, for display.
fn span(nanos: u64) -> String {
    humantime::format_duration(Duration::from_secs(nanos / 1_000_000_000)).to_string()
}

fn as_json(spec: &GroupSpec, queue: &Queue, view: &QueueView) -> Value {
    let millis = |from: u64, to: u64| to.saturating_sub(from) / 1_000_000;
    let running = view.running.iter().map(|job| {
        let started = job.started_ns.unwrap_or(job.arrived_ns);
        json!({
            "pid": job.pid, "command": job.command,
            "waited_ms": millis(job.arrived_ns, started), "running_ms": millis(started, view.now_ns),
        })
    });
    let waiting = view.waiting.iter().enumerate().map(|(before, job)| {
        json!({
            "place": before + 1, "pid": job.pid, "command": job.command,
            "waiting_ms": millis(job.arrived_ns, view.now_ns),
        })
    });
    let held = view.held.as_ref();
    json!({
        "group": spec.name.as_str(),
        "max_concurrency": queue.bounds().0,
        "max_size": queue.bounds().1,
        "timeout_ms": queue.timeout.map(|time| time.0),
        "held": held.map(|held| json!({ "reason": held.reason, "left_ms": held.left_ns / 1_000_000 })),
        "running": running.collect::<Vec<_>>(),
        "waiting": waiting.collect::<Vec<_>>(),
    })
}
