//! The command `init`: proposes a groups file for this machine.

use super::args::Init;
use super::values::absolute;
use anyhow::{Context as _, bail};
use commensal_core::config;
use commensal_core::errno::Errno;
use commensal_core::propose::propose;
use commensal_host::Host;
use commensal_sensors::inventory;
use std::time::Duration;

/// Prints or writes the proposal. Status 1 when nothing looks online or offline.
pub fn run(host: &mut dyn Host, options: &Init, pause: &mut dyn FnMut(Duration)) -> anyhow::Result<u8> {
    let file = options.write.as_deref().map(absolute).transpose()?;
    let engine = std::env::var("DOCKER_HOST").ok();
    let proposal = propose(&inventory::look(host, engine.as_deref(), pause));
    let text = proposal.groups_file();
    // A proposal that the agent would refuse must not reach its folder.
    if let Err(mistakes) = config::parse("proposal", &text) {
        let mistakes: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        bail!(
            "the proposal is not a valid groups file; this is a mistake in commensal:\n{}",
            mistakes.join("\n")
        );
    }
    let status = u8::from(proposal.is_empty());
    let Some(file) = file else {
        print!("{text}");
        return Ok(status);
    };
    let shown = commensal_core::text::path(&file);
    if let Some(folder) = file.parent() {
        host.state_dir(folder).with_context(|| format!("{shown} cannot be written"))?;
    }
    // Creates the file, and fails if any file of this name exists.
    match host.state_lock_new(&file, &text) {
        Ok(_lock) => host.state_append(&file, "")?,
        Err(error) if error.errno == Errno::EEXIST => {
            bail!("{shown} exists already; name another file, or remove it if it is not needed any more")
        }
        Err(error) => return Err(error).with_context(|| format!("{shown} cannot be written")),
    }
    println!("wrote {shown}: nothing is in force yet; check it, then try `commensal plan -c {shown}`");
    Ok(status)
}
