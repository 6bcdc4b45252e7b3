//! Sums up, by command name and user, how long processes held the CPU while a thread of a target (a measured cgroup or
//! process) waited for it. The probe's map contains the processes of about the last second. This
//! module reads a process's name from /proc or, if the process has exited, takes the name that the probe recorded at
//! the exit. A load generator of this program is named as such: whoever measures a service under a load of their own wants to
//! know what else held the CPU.

use crate::figures::Command;
use crate::mirror::{CommandKey, CommandName};
use commensal_host::Host;
use std::collections::BTreeMap;
use std::path::Path;

/// Maximum number of commands (name, user, cgroup and target); the time of further commands is not collected.
const MOST: usize = 4_096;

/// Commands of `commensal lab` that generate load.
const GENERATORS: [&str; 5] = ["load", "run", "calibrate", "profile", "doctor"];

/// Begin of the name of a load generator. The name is longer than a process name can be, so no process can choose it.
const GENERATOR: &str = "commensal lab ";

/// Returns whether a command is a load generator of this program.
#[must_use]
pub fn is_generator(name: &str) -> bool {
    name.strip_prefix(GENERATOR).is_some_and(|command| GENERATORS.contains(&command))
}

/// Time by command, collected so far.
#[derive(Debug, Clone, Default)]
pub struct Commands {
    sums: BTreeMap<Command, u64>,
}

impl Commands {
    /// Adds time (ns) for which a process held the CPU while a target waited. `ended` is the probe's note about
    /// a process that has exited.
    pub fn add(&mut self, host: &dyn Host, key: &CommandKey, ended: Option<CommandName>, ns: u64) {
        let Some((name, uid)) = ended.map(noted).or_else(|| alive(host, key.tgid)) else { return };
        let command = Command { subject: key.target, cgroup: key.cgroup, name, uid };
        if self.sums.len() < MOST || self.sums.contains_key(&command) {
            *self.sums.entry(command).or_default() += ns;
        }
    }

    /// The sums (ns) so far.
    pub fn sums(&self) -> BTreeMap<Command, u64> {
        self.sums.clone()
    }
}

fn noted(of: CommandName) -> (String, u32) {
    let end = of.comm.iter().position(|byte| *byte == 0).unwrap_or(of.comm.len());
    (printable(&String::from_utf8_lossy(&of.comm[..end])), of.uid)
}

fn alive(host: &dyn Host, pid: u32) -> Option<(String, u32)> {
    let read = |file: &str| host.read_file(Path::new(&format!("/proc/{pid}/{file}"))).ok();
    let name = read("comm")?;
    let own = if name.starts_with("commensal") { generator(host, pid) } else { None };
    let name = own.unwrap_or(name);
    let status = read("status")?;
    // Four UIDs: real, effective, saved and file system.
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let uid = uids.split_whitespace().next()?.parse().ok()?;
    Some((printable(name.trim_end_matches('\n')), uid))
}

/// Returns the name of a load generator: of a process that runs this program's file, with a command that generates load.
fn generator(host: &dyn Host, pid: u32) -> Option<String> {
    let file = |pid: &str| host.link(Path::new(&format!("/proc/{pid}/exe"))).ok();
    if file(&pid.to_string())? != file("self")? {
        return None;
    }
    named(&host.read_file(Path::new(&format!("/proc/{pid}/cmdline"))).ok()?)
}

/// Returns the name of a load generator by its command line, whose words end with a NUL.
fn named(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split('\0').collect();
    let command = words.windows(2).find_map(|two| (two[0] == "lab").then_some(two[1]))?;
    GENERATORS.contains(&command).then(|| format!("{GENERATOR}{command}"))
}

/// Replaces control characters: any process can choose its name.
fn printable(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_host::fake::FakeHost;

    fn key(tgid: u32) -> CommandKey {
        CommandKey { cgroup: 7, target: 0, tgid }
    }

    #[test]
    fn names_of_the_living_and_of_the_dead() {
        let host = FakeHost::v2(2, 1 << 30);
        host.set_file("/proc/71/comm", "cc1\n");
        host.set_file("/proc/71/status", "Name:\tcc1\nUid:\t1000\t1000\t1000\t1000\n");
        let mut commands = Commands::default();
        let mut comm = [0; 16];
        comm[..3].copy_from_slice(b"cc1");
        commands.add(&host, &key(71), None, 5);
        commands.add(&host, &key(72), Some(CommandName { comm, uid: 1_000 }), 6);
        comm[..3].copy_from_slice(b"a\x1bb");
        commands.add(&host, &key(73), Some(CommandName { comm, uid: 0 }), 1);
        // The process has exited, and the probe has no note about it.
        commands.add(&host, &key(74), None, 9);
        let command = |name: &str, uid| Command { subject: 0, cgroup: 7, name: name.to_owned(), uid };
        assert_eq!(commands.sums(), [(command("cc1", 1_000), 11), (command("a\u{fffd}b", 0), 1)].into());
    }

    // promise 31
    #[test]
    fn only_commands_that_generate_load_are_generators() {
        for (line, name) in [
            ("commensal\0lab\0load\0http://127.0.0.1:80/\0", Some("commensal lab load")),
            ("/usr/bin/commensal\0--state-dir\0/x\0lab\0run\0quickstart\0", Some("commensal lab run")),
            ("commensal\0lab\0calibrate\0", Some("commensal lab calibrate")),
            ("commensal\0lab\0report\0", None),
            ("commensal\0agent\0", None),
            ("commensal\0lab\0", None),
            ("", None),
        ] {
            assert_eq!(named(line).as_deref(), name, "{line:?}");
            assert!(name.is_none_or(is_generator), "{name:?}");
        }
        for other in ["commensal", "commensal lab", "commensal lab report", "commensal lab "] {
            assert!(!is_generator(other), "{other}");
        }
        // A process name has at most 15 bytes.
        assert!(GENERATORS.iter().all(|command| GENERATOR.len() + command.len() > 15));
    }

    #[test]
    fn a_process_that_changes_its_name_all_the_time_takes_no_more_room() {
        let mut commands = Commands::default();
        let host = FakeHost::v2(2, 1 << 30);
        for uid in 0..2 * MOST as u32 {
            commands.add(&host, &key(1), Some(CommandName { comm: [b'x'; 16], uid }), 1);
        }
        assert_eq!(commands.sums().len(), MOST);
    }
}
