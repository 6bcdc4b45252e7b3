//! `journal check` and `journal show`.

use super::args::JournalVerb;
use crate::context::Context;
use anyhow::bail;
use commensal_core::errno::Errno;
use commensal_host::Host;
use commensal_reconcile::journal::{self, Boot, Inspected, TOLD, inspect, plain};

/// Reads every journal. Status 2 when one cannot be read completely.
pub fn run<H: Host>(context: &mut Context<H>, verb: &JournalVerb) -> anyhow::Result<u8> {
    let (show, json) = match verb {
        JournalVerb::Check(options) => (false, options.json),
        JournalVerb::Show(options) => (true, options.json),
    };
    let dir = context.state_dir.clone();
    match context.host.list(&dir) {
        Err(error) if error.errno != Errno::ENOENT => bail!(error),
        _ => {}
    }
    let names = journal::names(&context.host, &dir);
    if names.is_empty() && !json {
        println!("no journals in {}", plain(&dir.display().to_string()));
    }
    let (mut fine, mut journals) = (true, Vec::new());
    for name in names {
        let mut line = |number: usize, record: &journal::Record| match (show, json) {
            (true, false) => println!("{}.journal:{number}: {}", plain(&name), record.in_words()),
            (true, true) => {
                let told = serde_json::json!({ "file": format!("{name}.journal"), "line": number, "record": record });
                println!("{told}");
            }
            (false, _) => {}
        };
        let found = inspect(&mut context.host, &dir, &name, &mut line);
        fine &= found.is_fine();
        match (json, show) {
            (true, true) => println!("{}", commensal_core::text::json(&found)?),
            (true, false) => journals.push(found),
            (false, _) => print!("{}", text(&found)),
        }
    }
    // `show` prints many records, one line each as they are read; `check` prints one document for all journals.
    if json && !show {
        println!("{}", commensal_core::text::json_pretty(&serde_json::json!({ "journals": journals }))?);
    }
    Ok(if fine { 0 } else { 2 })
}

fn text(found: &Inspected) -> String {
    let file = plain(&found.file);
    if let Some(why) = &found.unreadable {
        return format!("{file}: cannot be used: {}\n", plain(why));
    }
    let owner = match &found.owner {
        Some(owner) => {
            let runs = if found.owner_runs { "which runs" } else { "which has ended" };
            format!("of {}, process {}, {runs}", plain(&owner.kind), owner.pid)
        }
        None => "of nobody that can be read".to_owned(),
    };
    let boot = match found.boot {
        Boot::Present => "of this boot",
        Boot::Another => "of another boot: its cgroups are gone, and `commensal restore` drops it",
        Boot::Unknown => "of no boot that can be read",
    };
    let mut text =
        format!("{file}: {owner}; {boot}; {} records, {} damaged lines\n", found.records, found.damaged);
    for (line, reason) in &found.damaged_lines {
        text += &format!("{file}:{line}: damaged: {}\n", plain(reason));
    }
    if found.damaged > TOLD {
        text += &format!("{file}: {} more damaged lines\n", found.damaged - TOLD);
    }
    if found.torn {
        text += &format!(
            "{file}: the last line was cut off before what it announces was done; nothing is lost\n"
        );
    }
    text
}
