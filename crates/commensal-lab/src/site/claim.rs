//! The lock for measuring on this machine: two runs at once would disturb each other, whatever their state directories
//! are.
//!
//! It is a socket in the kernel's abstract namespace, so it disappears with the process, however that ends, and leaves
//! no file. Each user has a separate name, and the kernel tells which user's process holds it: a name held by another
//! user blocks nobody. So root is only blocked by root, other users by themselves and by root; another user's run is
//! noted in the record, because any user could pretend to run one. Each network namespace has separate names: runs in a
//! container are not seen.

use super::error::TestbedError;
use commensal_host::{Host, hold_name, name_holder};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::net::UnixListener;
use std::path::Path;

/// Environment variable for tests, which measure nothing and may run in parallel.
const SCOPE: &str = "COMMENSAL_LAB_SCOPE";

/// The lock; released when it is dropped.
#[derive(Debug)]
pub struct Claim {
    /// `None` where another user holds the name.
    _held: Option<UnixListener>,
    prefix: String,
    uid: u32,
    /// Runs of other users, as found when the lock was taken.
    seen: BTreeSet<String>,
}

impl Claim {
    /// Takes the lock.
    ///
    /// # Errors
    /// When another run of this user or of root holds it.
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
                    "another lab run is using this machine: process {pid}{command}; two at once would measure each other: wait \
                     for it, or end it with kill -INT {pid}"
                )))
            }
            Some((pid, owner)) => {
                seen.insert(format!("user {owner} (process {pid}) has taken the name by which a lab run of user {user} is known"));
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
            // A machine without such sockets still has the lock of the state directory.
            Err(_) => None,
        };
        let mut claim = Claim { _held: held, prefix, uid, seen };
        claim.look(host);
        Ok(claim)
    }

    /// Adds runs of other users.
    fn look(&mut self, host: &dyn Host) {
        // Num RefCount Protocol Flags Type St Inode Path; an abstract name begins with @.
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
                    "user {owner} ran a lab at the same time (process {pid}): the two measured each other"
                ));
            }
        }
    }

    /// Runs of other users at the beginning or end of this one, for the record.
    pub fn beside(mut self, host: &dyn Host) -> Vec<String> {
        self.look(host);
        self.seen.into_iter().collect()
    }
}

/// A process's command line in brackets, if it can be read.
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

    /// A name held by another user is reported but blocks nobody.
    // promise 42
    #[test]
    fn a_name_that_somebody_else_has_taken_refuses_nobody() {
        let (host, prefix) = (LinuxHost::new(), prefix("squatter"));
        let somebody = host.euid() + 1;
        let _squatter = hold_name(&format!("{prefix}{somebody}")).unwrap();
        let claim = Claim::take_as(&host, prefix.clone(), somebody).unwrap();
        let told = claim.beside(&host).join("\n");
        assert!(
            told.contains(&format!("has taken the name by which a lab run of user {somebody}")),
            "{told}"
        );
    }

    /// A run by root blocks everybody, a user's run only that user.
    // promise 42
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
