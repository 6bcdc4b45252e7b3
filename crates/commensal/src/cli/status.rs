//! The commands `status` and `explain`: print the agent's state, and the reasons for the limits of one group.

use super::agent::sockets;
use super::args::{Explain, Json};
use crate::context::Context;
use anyhow::anyhow;
use commensal_agent::client::{self, Answer, ClientError};
use commensal_agent::explain::Explained;
use commensal_agent::snapshot::Snapshot;
use commensal_agent::status;
use commensal_host::Host;
use commensal_reconcile::journal::{self, Record};

/// Prints what is in force. Status 0 when everything requested is in force, otherwise 1; 2 when no agent is running.
pub fn run(context: &mut Context, options: &Json) -> anyhow::Result<u8> {
    let answer = match client::find::<Snapshot>(&context.host, &sockets(context), "/v1/snapshot") {
        Ok((_, answer)) => answer,
        Err(error @ ClientError::NoAgent(_)) => {
            let mut words = error.to_string();
            for line in on_record(context) {
                words += "\n  ";
                words += &line;
            }
            return Err(anyhow!(words));
        }
        Err(error) => return Err(error.into()),
    };
    if options.json {
        println!("{}", commensal_core::text::json_pretty(&answer.body)?);
    } else {
        print!("{}", status::text(&answer.body, answer.age));
    }
    Ok(u8::from(!status::is_well(&answer.body, answer.age)))
}

/// Prints the reason for each limit of a group.
pub fn explain(context: &Context, options: &Explain) -> anyhow::Result<u8> {
    // A name with other characters could select another path of the agent's API.
    commensal_core::group::GroupName::new(&options.group).map_err(|message| anyhow!(message))?;
    let path = format!("/v1/explain/{}", options.group);
    let (_, Answer { body: explained, .. }) =
        client::find::<Explained>(&context.host, &sockets(context), &path)?;
    if options.json {
        println!("{}", commensal_core::text::json_pretty(&explained)?);
    } else {
        print!("{}", explained.text());
    }
    Ok(0)
}

/// Lists the changes that the journals record, for the case that no agent is running.
fn on_record(context: &mut Context) -> Vec<String> {
    let names = context.host.list(&context.state_dir).unwrap_or_default();
    let mut lines = Vec::new();
    for name in names.iter().filter(|name| name.ends_with(".journal")) {
        let file = context.state_dir.join(name);
        let Ok(Some(text)) = journal::load(&mut context.host, &file) else { continue };
        let records = journal::parse(&text).records;
        let count = |of: fn(&Record) -> bool| records.iter().filter(|record| of(record)).count();
        let groups = count(|record| matches!(record, Record::Created(_)));
        let values = count(|record| matches!(record, Record::Original { .. } | Record::Switching { .. }));
        if groups + values > 0 {
            lines.push(format!(
                "according to {name}, commensal created {groups} cgroups and changed {values} values of others; \
                 `commensal restore` reverts this"
            ));
        }
    }
    lines
}
