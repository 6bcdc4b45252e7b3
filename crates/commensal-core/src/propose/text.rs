//! Writes a proposal as a groups file. Names of others are quoted for TOML, so that the parser reads them back exactly;
//! in comments, hidden characters are escaped.

use super::{Proposal, Proposed};
use crate::group::Match;
use crate::text::visible;
use std::collections::BTreeSet;
use std::fmt::Write;

impl Proposal {
    /// The text of a groups file with this proposal.
    #[must_use]
    pub fn groups_file(&self) -> String {
        let mut text = String::from(
            "# Proposed by `commensal init` from what it saw in a short time. Nothing is in force yet: check every line, then\n\
             # `commensal plan -c FILE` shows what would change, `commensal apply -c FILE` does it, and `commensal restore`\n\
             # reverts it.\n",
        );
        comments(&mut text, "Could not be seen", self.unseen.iter().map(|line| visible(line).into_owned()));
        if !self.online.is_empty() {
            text +=
                "\n# Services: other work must not slow them down.\n[group.services]\nclass = \"online\"\n";
            matches(&mut text, &self.online);
        }
        text += "\n# Batch work: it uses what the services leave. `commensal run -g batch -- COMMAND` starts more of it.\n\
                 [group.batch]\nclass = \"offline\"\n";
        matches(&mut text, &self.offline);
        let sessions = self.offline.iter().chain(&self.online).filter(|entry| entry.one.is_none());
        let line = |entry: &Proposed| format!("{}: {}", visible(&entry.name), visible(&entry.reason));
        comments(
            &mut text,
            "These run in sessions. `commensal run -g GROUP -- COMMAND` starts them in a group",
            sessions.map(line),
        );
        let undecided = self.undecided.iter().map(|entry| match &entry.one {
            Some(one) => format!("{},  # {}", one.in_file(), visible(&entry.reason)),
            None => line(entry),
        });
        comments(&mut text, "Undecided. Move a line to the group that it belongs to", undecided);
        let jobs = self.jobs.iter().map(|job| format!("{}: {}", visible(&job.at), visible(&job.command)));
        comments(&mut text, "Jobs of cron. `commensal run -g batch -- COMMAND` makes them batch work", jobs);
        if !self.machine.is_empty() {
            let names = names(&self.machine);
            let _ = writeln!(text, "\n# Left alone, because it belongs to the machine itself: {names}.");
        }
        if self.idle > 0 {
            let _ = writeln!(
                text,
                "\n# Left out, because they were idle and accept no connections: {}.",
                self.idle
            );
        }
        text
    }
}

fn names(all: &BTreeSet<String>) -> String {
    all.iter().map(|name| visible(name)).collect::<Vec<_>>().join(", ")
}

fn comments(text: &mut String, title: &str, lines: impl Iterator<Item = String>) {
    let mut lines = lines.peekable();
    if lines.peek().is_some() {
        let _ = writeln!(text, "\n# {title}:");
    }
    for line in lines {
        let _ = writeln!(text, "#   {line}");
    }
}

/// Writes the key `match`, with the reason of each match above it; nothing if no entry has a match.
fn matches(text: &mut String, entries: &[Proposed]) {
    let matches: Vec<(&Match, &Proposed)> =
        entries.iter().filter_map(|entry| Some((entry.one.as_ref()?, entry))).collect();
    if matches.is_empty() {
        return;
    }
    *text += "match = [\n";
    for (one, entry) in matches {
        let _ = writeln!(text, "  # {}\n  {},", visible(&entry.reason), one.in_file());
    }
    *text += "]\n";
}
