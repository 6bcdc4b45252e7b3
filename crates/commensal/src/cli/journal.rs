//! The commands `journal check` and `journal show`.

use super::args::JournalVerb;
use crate::context::Context;
use anyhow::bail;
use commensal_core::errno::Errno;
use commensal_core::text::{self as words, visible};
use commensal_host::Host;
use commensal_reconcile::journal::{self, Boot, Inspected, TOLD, inspect};

/// Checks or shows every journal. Status 2 if a journal cannot be read completely.
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
        println!("no journals in {}", words::path(&dir));
    }
    let (mut fine, mut journals) = (true, Vec::new());
    for name in names {
        let mut line = |number: usize, record: &journal::Record| match (show, json) {
            (true, false) => println!("{}.journal:{number}: {}", visible(&name), record.in_words()),
            (true, true) => {
                let told = serde_json::json!({ "file": format!("{name}.journal"), "line": number, "record": record });
                println!("{}", words::json(&told).unwrap_or_default());
            }
            (false, _) => {}
        };
        let found = inspect(&mut context.host, &dir, &name, &mut line);
        fine &= found.is_fine();
        match (json, show) {
            (true, true) => println!("{}", words::json(&found)?),
            (true, false) => journals.push(found),
            (false, _) => print!("{}", text(&found)),
        }
    }
    // `show` may print many records, so it prints one line each as it reads them. `check` prints one document for all
    // journals.
    if json && !show {
        println!("{}", words::json_pretty(&serde_json::json!({ "journals": journals }))?);
    }
    Ok(if fine { 0 } else { 2 })
}

fn text(found: &Inspected) -> String {
    let file = visible(&found.file);
    if let Some(why) = &found.unreadable {
        return format!("{file}: cannot be used: {}\n", visible(why));
    }
    let owner = match &found.owner {
        Some(owner) => {
            let runs = if found.owner_runs { "still running" } else { "exited" };
            format!("{} journal of process {} ({runs})", visible(&owner.kind), owner.pid)
        }
        None => "its owner cannot be read".to_owned(),
    };
    let boot = match found.boot {
        Boot::Present => "from this boot",
        Boot::Another => "from another boot: its cgroups no longer exist, and `commensal restore` deletes it",
        Boot::Unknown => "its boot ID cannot be read",
    };
    let mut text =
        format!("{file}: {owner}; {boot}; {} records, {} damaged lines\n", found.records, found.damaged);
    for (line, reason) in &found.damaged_lines {
        text += &format!("{file}:{line}: damaged: {}\n", visible(reason));
    }
    if found.damaged > TOLD {
        text += &format!("{file}: {} more damaged lines\n", found.damaged - TOLD);
    }
    if found.torn {
        text += &format!(
            "{file}: the last line is incomplete: it was cut off before the step that it announces was executed; \
             nothing is lost\n"
        );
    }
    text
}
