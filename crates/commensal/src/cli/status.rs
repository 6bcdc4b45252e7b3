//! The commands `status` and `explain`: print what is in force, and the reasons for the limits of one group.

use super::agent::{sockets, unanswered};
use super::args::{Explain, Status};
use crate::context::Context;
use anyhow::anyhow;
use commensal_agent::client::{self, ClientError};
use commensal_agent::explain::Explained;
use commensal_agent::snapshot::Snapshot;
use commensal_agent::{read_back, status};
use commensal_core::text::count;
use commensal_host::Host;
use commensal_reconcile::journal::{self, Record};
use commensal_reconcile::{Mastery, PlanRequest, groups_file};

/// Prints what is in force. Status 0 when everything requested is in force, otherwise 1; 2 when nothing is known.
pub fn run(context: &mut Context, options: &Status) -> anyhow::Result<u8> {
    let answer = match client::find::<Snapshot>(&context.host, &sockets(context), "/v1/snapshot") {
        Ok((_, answer)) => answer,
        Err(error @ ClientError::NoAgent(_)) => return without_agent(context, options, error),
        Err(error) => return Err(unanswered(context, error)),
    };
    if options.check {
        return Ok(check(&status::failures(&answer.body, answer.age)));
    }
    if options.json {
        println!("{}", commensal_core::text::json_pretty(&answer.body)?);
    } else {
        print!("{}", status::text(&answer.body, answer.age));
    }
    Ok(u8::from(!status::is_well(&answer.body, answer.age)))
}

/// Prints what is not in force; returns the exit status.
fn check(failures: &[String]) -> u8 {
    failures.iter().for_each(|failure| println!("{failure}"));
    if failures.is_empty() {
        println!("everything requested is in force");
    }
    u8::from(!failures.is_empty())
}

/// Reads back what the last agent or `apply` has put in force.
fn without_agent(context: &mut Context, options: &Status, error: ClientError) -> anyhow::Result<u8> {
    let (names, record): (Vec<String>, Vec<String>) = on_record(context).into_iter().unzip();
    let texts = match &options.config {
        Some(path) => Some(groups_file::texts(&context.host, path)?),
        // The groups that were saved last are not wanted any more once everything was restored.
        None if !names.contains(&format!("{}.journal", journal::MACHINE)) => None,
        None => groups_file::saved(&mut context.host, &context.state_dir)?,
    };
    let Some(texts) = texts else { return nothing_known(context, record, error) };
    let specs = groups_file::compile(&texts)?.groups;
    context.ask_engines(&specs)?;
    let _lock = context.lock_to_look()?;
    let survey = context.survey()?;
    let planned = context.plan_on(&survey, PlanRequest::all(&specs))?;
    let found = read_back::of(&survey.machine, &planned);
    if options.check {
        return Ok(check(&found.failures()));
    }
    let safe = commensal_agent::safe_state(&mut context.host, &context.state_dir);
    if options.json {
        let safe = safe.as_ref();
        let value =
            serde_json::json!({ "agent": null, "on_record": record, "safe_state": safe, "read_back": found });
        println!("{}", commensal_core::text::json_pretty(&value)?);
    } else {
        let config =
            options.config.as_deref().map(|path| format!(" -c {}", path.display())).unwrap_or_default();
        println!(
            "no agent runs, so nothing follows new members or reverts changes; `{}{config}` starts one",
            context.command("agent")
        );
        safe.iter().for_each(|safe| println!("{}", status::safe_state(safe)));
        record.iter().for_each(|line| println!("{line}"));
        print!("{}", found.text());
    }
    Ok(u8::from(!found.holds()))
}

/// The error when there is no agent and nothing tells which groups were applied.
fn nothing_known(context: &mut Context, record: Vec<String>, error: ClientError) -> anyhow::Result<u8> {
    let mut words = unanswered(context, error).to_string();
    if record.is_empty() {
        words += "\n  nothing is on record: no group is in force";
        let instance = context.instance();
        if let Ok(Mastery::Others(Some(other))) = instance.be_master(&mut context.host) {
            words += &format!(" here, but another commensal manages cgroups of this machine: {other}");
        }
    }
    for line in record {
        words += "\n  ";
        words += &line;
    }
    Err(anyhow!(words))
}

/// Prints the reason for each limit of a group.
pub fn explain(context: &Context, options: &Explain) -> anyhow::Result<u8> {
    // A name with other characters could select another path of the agent's API.
    commensal_core::group::GroupName::new(&options.group).map_err(|message| anyhow!(message))?;
    let path = format!("/v1/explain/{}", options.group);
    let sockets = sockets(context);
    let found = client::find::<Explained>(&context.host, &sockets, &path);
    let explained = found.map_err(|error| unanswered(context, error))?.1.body;
    if options.json {
        println!("{}", commensal_core::text::json_pretty(&explained)?);
    } else {
        print!("{}", explained.text());
    }
    Ok(0)
}

/// Lists the changes that the journals record, for the case that no agent is running.
fn on_record(context: &mut Context) -> Vec<(String, String)> {
    let names = context.host.list(&context.state_dir).unwrap_or_default();
    let mut lines = Vec::new();
    for name in names.iter().filter(|name| name.ends_with(".journal")) {
        let file = context.state_dir.join(name);
        let Ok(Some(text)) = journal::load(&mut context.host, &file) else { continue };
        let records = journal::parse(&text).records;
        let of = |of: fn(&Record) -> bool| records.iter().filter(|record| of(record)).count() as u64;
        let groups = of(|record| matches!(record, Record::Created(_)));
        let values = of(|record| matches!(record, Record::Original(_) | Record::Switching(_)));
        if groups + values > 0 {
            let line = format!(
                "according to {name}, commensal created {} and changed {} of others; `{}` reverts this",
                count(groups, "cgroup"),
                count(values, "value"),
                context.command("restore")
            );
            lines.push((name.clone(), line));
        }
    }
    lines
}
