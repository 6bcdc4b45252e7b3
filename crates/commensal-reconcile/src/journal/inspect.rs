//! Inspects journals without locking or writing anything.

use super::{Owner, Record, Target, fits, load, parse_line, path};
use commensal_core::text::{self, visible};
use commensal_host::{Host, below};
use commensal_sensors::{machine, mounts};
use serde::Serialize;
use std::fmt::Write;
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
    let (boot_id, mounts) = (machine::boot_id(host), mounts::kinds(host));
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let Some(whole) = line.strip_suffix('\n') else {
            found.torn = true;
            continue;
        };
        let record = parse_line(whole);
        if let (Ok(Record::Owner(owner)), None) = (&record, &found.owner) {
            found.boot = if boot_id.as_ref() == Some(&owner.boot_id) { Boot::Present } else { Boot::Another };
            found.owner = Some(owner.clone());
        }
        let fits = |record: Record| match found.boot {
            Boot::Another => Ok(record),
            Boot::Present | Boot::Unknown => fits::objection(&record, &mounts).map_or(Ok(record), Err),
        };
        match record.and_then(fits) {
            Ok(record) => {
                found.records += usize::from(!matches!(record, Record::Owner(_)));
                each(index + 1, &record);
            }
            Err(reason) => {
                found.damaged += 1;
                if found.damaged_lines.len() < TOLD {
                    found.damaged_lines.push((index + 1, reason));
                }
            }
        }
    }
    found.owner_runs =
        found.boot == Boot::Present && found.owner.as_ref().is_some_and(|owner| owner.runs(host));
    found
}

impl Record {
    /// Describes the record in a sentence for people. Names that other users can choose are escaped.
    #[must_use]
    pub fn in_words(&self) -> String {
        let at = |mount: &str, path: &str| text::path(&below(Path::new(mount), path));
        match self {
            Record::Owner(owner) => format!(
                "written by {}, process {}, in boot {}",
                visible(&owner.kind),
                owner.pid,
                visible(&owner.boot_id)
            ),
            Record::Creating { mount, path } => format!("{} is about to be created", at(mount, path)),
            Record::Created(group) => format!("{} was created", at(&group.mount, &group.path)),
            Record::Enabling { group, controller } => {
                format!("{} was enabled in {}", visible(controller), at(&group.mount, &group.path))
            }
            Record::Switching { switch, value } => {
                format!("{} was {}", visible(switch), visible(value.trim()))
            }
            Record::Cookied(group) => {
                format!("threads of {} got a core-scheduling cookie", at(&group.mount, &group.path))
            }
            Record::Ordering { owner, mount, path } => {
                format!("the scheduler got an order for {} from {}", at(mount, path), visible(owner))
            }
            Record::Affinity { tid, cpus, .. } => format!("thread {tid} could use CPUs {}", visible(cpus)),
            Record::Scheduling => "threads became SCHED_EXT".to_owned(),
            Record::Policy { tid, policy, .. } => format!("thread {tid} had scheduling policy {policy}"),
            Record::Lifting { group, to } => {
                format!("members of {} may be in {}", at(&group.mount, &group.path), at(&group.mount, to))
            }
            Record::Member { group, tid, scheduling, .. } => {
                format!("thread {tid} of {} had {scheduling}", at(&group.mount, &group.path))
            }
            Record::Recreating(group) => {
                format!("{} is about to be replaced by a fresh group", at(&group.mount, &group.path))
            }
            Record::Moving { pid, by, from, to, .. } => {
                let mut text = format!("process {pid} was selected by {}", visible(by));
                for (word, groups) in [("from", from), ("to", to)] {
                    let groups: Vec<String> =
                        groups.iter().map(|group| at(&group.mount, &group.path)).collect();
                    let _ = write!(text, " {word} {}", groups.join(", "));
                }
                text
            }
            Record::Moved { pid, .. } => format!("process {pid} was moved"),
            Record::Original { group, file, device, value, .. } => {
                setting((group, file, device.as_deref()), "was", value)
            }
            Record::Safe { group, file, device, value, .. } => {
                setting((group, file, device.as_deref()), "without an agent must be", value)
            }
        }
    }
}

/// Describes one setting, such as `/sys/fs/cgroup/cpu/a/cpu.shares was 1024`.
fn setting((group, file, device): (&Target, &str, Option<&str>), verb: &str, value: &str) -> String {
    let group = text::path(&below(Path::new(&group.mount), &group.path));
    let device = device.iter().map(|device| format!(" for {}", visible(device))).collect::<String>();
    let value = if value.trim().is_empty() { "empty".to_owned() } else { visible(value.trim()).into_owned() };
    format!("{group}/{}{device} {verb} {value}", visible(file))
}

#[cfg(test)]
mod tests {
    use super::super::line;
    use super::*;
    use commensal_host::fake::FakeHost;

    // promise 12
    #[test]
    fn a_record_in_words_is_escaped() {
        let group = Target { mount: "/sys/fs/cgroup".into(), path: "/a\u{1b}[2J\u{202e}\n".into(), inode: 1 };
        let record = Record::Original {
            group: group.clone(),
            knob: "cpuset.cpus".into(),
            file: "cpuset.cpus".into(),
            device: None,
            value: "\n".into(),
        };
        assert_eq!(record.in_words(), "/sys/fs/cgroup/a\\u{1b}[2J\\u{202e}\\n/cpuset.cpus was empty");
        assert_eq!(Record::Created(group).in_words(), "/sys/fs/cgroup/a\\u{1b}[2J\\u{202e}\\n was created");
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
        let forged = Record::Switching { switch: "kernel.sysrq".into(), value: "1".into() };
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
