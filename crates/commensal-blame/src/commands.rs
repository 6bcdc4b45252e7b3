//! Processes that held the CPU, by command and user: gathered from the probe's map, which holds those of about a second, and
//! named while they can be asked, or by what the probe noted as they ended.

use crate::figures::Command;
use crate::mirror::{CommandKey, CommandName};
use commensal_host::Host;
use std::collections::BTreeMap;
use std::path::Path;

/// Commands that are told apart; time of more is nobody's.
const MOST: usize = 4_096;

/// What was gathered so far.
#[derive(Debug, Default)]
pub struct Commands {
    sums: BTreeMap<Command, u64>,
}

impl Commands {
    /// Adds some time of a process; `ended` is what the probe noted of it, if it has ended.
    pub fn add(&mut self, host: &dyn Host, key: &CommandKey, ended: Option<CommandName>, ns: u64) {
        let Some((name, uid)) = ended.map(noted).or_else(|| alive(host, key.tgid)) else { return };
        let command = Command { subject: key.target, cgroup: key.cgroup, name, uid };
        if self.sums.len() < MOST || self.sums.contains_key(&command) {
            *self.sums.entry(command).or_default() += ns;
        }
    }

    /// The sums.
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
    let status = read("status")?;
    // Real, effective, saved and of the file system.
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let uid = uids.split_whitespace().next()?.parse().ok()?;
    Some((printable(name.trim_end_matches('\n')), uid))
}

/// Names are anybody's.
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
        // Nobody knows it any more.
        commands.add(&host, &key(74), None, 9);
        let command = |name: &str, uid| Command { subject: 0, cgroup: 7, name: name.to_owned(), uid };
        assert_eq!(commands.sums(), [(command("cc1", 1_000), 11), (command("a\u{fffd}b", 0), 1)].into());
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
