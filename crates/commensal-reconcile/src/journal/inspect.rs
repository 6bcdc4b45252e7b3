//! Inspects journals without locking or writing anything.

use super::{Owner, Record, each_line, load, objection, path};
use commensal_host::Host;
use commensal_sensors::machine;
use serde::Serialize;
use std::path::Path;

/// Maximum number of damaged lines that are listed individually.
pub const TOLD: usize = 100;

/// Whether a journal is from the current boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Boot {
    /// Written in the current boot of this machine.
    Present,
    /// Written in another boot or on another machine. Its cgroups no longer exist, and `restore` removes the journal.
    Another,
    /// The owner's line cannot be read. `restore` treats the journal as one of the current boot.
    Unknown,
}

/// Summary of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Inspected {
    /// File name in the state directory.
    pub file: String,
    /// The journal's owner, if that line can be read.
    pub owner: Option<Owner>,
    /// Whether the owner's process is still running.
    pub owner_runs: bool,
    /// The boot that the journal is from.
    pub boot: Boot,
    /// Number of usable records, without the owner's line.
    pub records: usize,
    /// Number of damaged lines.
    pub damaged: usize,
    /// The first [`TOLD`] damaged lines: line number from 1, and the reason.
    pub damaged_lines: Vec<(usize, String)>,
    /// Whether a crash cut off the last line. The write that the line announces has not happened, so this is not
    /// damage.
    pub torn: bool,
    /// Why the journal cannot be read at all.
    pub unreadable: Option<String>,
}

impl Inspected {
    /// Whether all lines of the journal can be used.
    #[must_use]
    pub fn is_fine(&self) -> bool {
        self.damaged == 0 && self.unreadable.is_none()
    }
}

/// Reads the journal `name` and passes each of its records, with its line number, to `each`.
pub fn inspect(
    host: &mut dyn Host,
    dir: &Path,
    name: &str,
    each: &mut dyn FnMut(usize, &Record),
) -> Inspected {
    let file = path(dir, name);
    let mut found = Inspected {
        file: file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        owner: None,
        owner_runs: false,
        boot: Boot::Unknown,
        records: 0,
        damaged: 0,
        damaged_lines: Vec::new(),
        torn: false,
        unreadable: None,
    };
    let text = match load(host, &file) {
        Ok(text) => text.unwrap_or_default(),
        Err(error) => {
            found.unreadable = Some(error.to_string());
            return found;
        }
    };
    let boot_id = machine::boot_id(host);
    let mut owner = None;
    found.torn = each_line(&text, objection(host), |number, record| match record {
        Ok(record) => {
            match &record {
                Record::Owner(first) => drop(owner.get_or_insert_with(|| first.clone())),
                _ => found.records += 1,
            }
            each(number, &record);
        }
        Err(reason) => {
            found.damaged += 1;
            if found.damaged_lines.len() < TOLD {
                found.damaged_lines.push((number, reason));
            }
        }
    });
    if let Some(owner) = &owner {
        found.boot = if boot_id.as_ref() == Some(&owner.boot_id) { Boot::Present } else { Boot::Another };
    }
    found.owner = owner;
    found.owner_runs =
        found.boot == Boot::Present && found.owner.as_ref().is_some_and(|owner| owner.runs(host));
    found
}

#[cfg(test)]
mod tests {
    use super::super::{Created, Original, Switching, Target, line};
    use super::*;
    use commensal_host::fake::FakeHost;

    // promise 12
    #[test]
    fn a_record_in_words_is_escaped() {
        let group = Target { mount: "/sys/fs/cgroup".into(), path: "/a\u{1b}[2J\u{202e}\n".into(), inode: 1 };
        let record = Record::Original(Original {
            group: group.clone(),
            knob: "cpuset.cpus".into(),
            file: "cpuset.cpus".into(),
            device: None,
            value: "\n".into(),
        });
        assert_eq!(record.in_words(), "/sys/fs/cgroup/a\\u{1b}[2J\\u{202e}\\n/cpuset.cpus was empty");
        assert_eq!(
            Record::Created(Created(group)).in_words(),
            "/sys/fs/cgroup/a\\u{1b}[2J\\u{202e}\\n was created"
        );
    }

    // promise 12
    #[test]
    fn looking_changes_nothing_and_counts_everything() {
        let fake = FakeHost::v1(1, 1 << 30);
        let mut host = fake.another();
        let dir = Path::new("/state");
        host.state_dir(dir).unwrap();
        let boot_id = machine::boot_id(&host).unwrap_or_default();
        let owner = |boot_id: &str| {
            let owner = Owner { kind: "machine".into(), pid: 1, start_ticks: 2, boot_id: boot_id.into() };
            line(&Record::Owner(owner))
        };
        let forged = Record::Switching(Switching { switch: "kernel.sysrq".into(), value: "1".into() });
        let text = owner(&boot_id) + &line(&Record::Scheduling) + "no\n" + &line(&forged) + "torn";
        host.state_replace(&dir.join("machine.journal"), &text).unwrap();
        host.state_replace(&dir.join("run.journal"), &(owner("other") + &line(&forged))).unwrap();
        fake.set_kind(dir.join("lab-1.journal"), "a named pipe");
        let before = fake.mutations().len();
        let mut seen = Vec::new();
        let found = inspect(&mut host, dir, "machine", &mut |number, _| seen.push(number));
        assert_eq!((seen, found.records, found.damaged, found.torn), (vec![1, 2], 1, 2, true));
        assert_eq!(found.damaged_lines.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [3, 4]);
        assert!(found.boot == Boot::Present && !found.is_fine() && !found.owner_runs);
        let found = inspect(&mut host, dir, "run", &mut |_, _| {});
        assert!(found.boot == Boot::Another && found.is_fine(), "{found:?}");
        let found = inspect(&mut host, dir, "lab-1", &mut |_, _| {});
        assert!(found.unreadable.is_some_and(|why| why.contains("a named pipe")));
        assert_eq!(fake.mutations().len(), before);
    }
}
