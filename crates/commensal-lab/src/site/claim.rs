//! A machine-wide lock for measurements. Two simultaneous runs would disturb each other, even if they use different
//! state directories.
//!
//! The lock is a socket in the kernel's abstract namespace, so it disappears with its process and leaves no file. Each
//! user has a separate socket name, and the kernel reports which user's process holds a name. Any user could take
//! another user's name, so a run ignores a name that a process of the wrong user holds. Runs of root therefore block
//! every user's runs, and the runs of another user block only that user's runs. The record of a run notes simultaneous
//! runs of other users. Each network namespace has separate names, so a run does not detect runs in a container.

use super::error::TestbedError;
use commensal_host::{Host, hold_name, name_holder};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::net::UnixListener;
use std::path::Path;

/// Environment variable for tests that measure nothing: runs with different values of this variable do not block each
/// other.
const SCOPE: &str = "COMMENSAL_LAB_SCOPE";

/// The lock; dropping this value releases it.
#[derive(Debug)]
pub struct Claim {
    /// The socket; `None` if another user's process holds the name, or if the machine has no abstract sockets.
    _held: Option<UnixListener>,
    prefix: String,
    uid: u32,
    /// Messages about runs of other users that this run has found so far.
    seen: BTreeSet<String>,
}

impl Claim {
    /// Acquires the lock.
    ///
    /// # Errors
    /// If another run of this user or of root holds the lock.
    pub fn take(host: &dyn Host) -> Result<Claim, TestbedError> {
        let scope = std::env::var(SCOPE).map(|scope| format!("{scope}-")).unwrap_or_default();
        Claim::take_as(host, format!("commensal-lab-{scope}"), host.euid())
    }

    fn take_as(host: &dyn Host, prefix: String, uid: u32) -> Result<Claim, TestbedError> {
        let mut seen = BTreeSet::new();
        let mut of = |user: u32| match name_holder(&format!("{prefix}{user}")) {
            Some((pid, owner)) if owner == user => {
                let command = command(host, pid);
                Err(TestbedError::new(format!(
                    "another lab run is using this machine: process {pid}{command}; two runs would disturb each other's measurements: \
                     wait for it, or stop it with kill -INT {pid}"
                )))
            }
            Some((pid, owner)) => {
                seen.insert(format!(
                    "user {owner} (process {pid}) holds the lock name of user {user}, so runs of user {user} cannot be detected"
                ));
                Ok(())
            }
            None => Ok(()),
        };
        if uid != 0 {
            of(0)?;
        }
        let held = match hold_name(&format!("{prefix}{uid}")) {
            Ok(held) => Some(held),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                of(uid)?;
                None
            }
            // On a machine without abstract sockets, only the lock of the state directory protects the run.
            Err(_) => None,
        };
        let mut claim = Claim { _held: held, prefix, uid, seen };
        claim.look(host);
        Ok(claim)
    }

    /// Adds messages about other users' runs that hold their locks now.
    fn look(&mut self, host: &dyn Host) {
        // The columns of /proc/net/unix are Num RefCount Protocol Flags Type St Inode Path; an abstract name begins
        // with @.
        let sockets = host.read_file(Path::new("/proc/net/unix")).unwrap_or_default();
        let names = sockets.lines().filter_map(|line| line.split_whitespace().nth(7)?.strip_prefix('@'));
        let others: BTreeSet<u32> = names
            .filter_map(|name| name.strip_prefix(&self.prefix)?.parse().ok())
            .filter(|user| *user != self.uid)
            .collect();
        for user in others {
            if let Some((pid, owner)) =
                name_holder(&format!("{}{user}", self.prefix)).filter(|(_, owner)| *owner == user)
            {
                self.seen.insert(format!(
                    "user {owner} ran the lab at the same time (process {pid}), so the two runs disturbed each other"
                ));
            }
        }
    }

    /// Returns messages for the record about other users' runs that existed at the beginning or at the end of this run.
    pub fn beside(mut self, host: &dyn Host) -> Vec<String> {
        self.look(host);
        self.seen.into_iter().collect()
    }
}

/// Returns the command line of a process in parentheses; empty if the command line is unreadable.
fn command(host: &dyn Host, pid: i32) -> String {
    let text = host.read_file(Path::new(&format!("/proc/{pid}/cmdline"))).unwrap_or_default();
    let text = text.replace('\0', " ");
    if text.trim().is_empty() { String::new() } else { format!(" ({})", text.trim()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_host::LinuxHost;

    fn prefix(test: &str) -> String {
        format!("commensal-test-{}-{test}-", std::process::id())
    }

    #[test]
    fn one_run_of_a_user_and_it_ends_with_the_claim() {
        let (host, prefix) = (LinuxHost::new(), prefix("one"));
        let uid = host.euid();
        let take = || Claim::take_as(&host, prefix.clone(), uid);
        let first = take().unwrap();
        let said = take().unwrap_err().to_string();
        let own = format!("process {} (", std::process::id());
        assert!(said.contains(&own) && said.contains("kill -INT"), "{said}");
        assert_eq!(first.beside(&host), Vec::<String>::new());
        take().unwrap();
    }

    /// If another user holds this user's name, the record notes it, and the run is not blocked.
    // promise 34
    #[test]
    fn a_name_that_somebody_else_has_taken_refuses_nobody() {
        let (host, prefix) = (LinuxHost::new(), prefix("squatter"));
        let somebody = host.euid() + 1;
        let _squatter = hold_name(&format!("{prefix}{somebody}")).unwrap();
        let claim = Claim::take_as(&host, prefix.clone(), somebody).unwrap();
        let told = claim.beside(&host).join("\n");
        assert!(told.contains(&format!("holds the lock name of user {somebody}")), "{told}");
    }

    /// A run of root blocks the runs of all users; a run of another user blocks only that user's runs.
    // promise 34
    #[test]
    fn root_comes_first() {
        let (host, prefix) = (LinuxHost::new(), prefix("root"));
        if host.euid() != 0 {
            println!("skipped: root_comes_first: needs root");
            return;
        }
        let roots = Claim::take_as(&host, prefix.clone(), 0).unwrap();
        let refused = Claim::take_as(&host, prefix.clone(), 1000).unwrap_err().to_string();
        assert!(refused.contains("another lab run is using this machine: process"), "{refused}");
        drop(roots);
        let users = Claim::take_as(&host, prefix.clone(), 1000).unwrap();
        let roots = Claim::take_as(&host, prefix, 0).unwrap();
        drop((users, roots));
    }
}
