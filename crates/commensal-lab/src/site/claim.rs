//! The claim to measure on this machine: two runs at once would measure each other, whatever their state directories are.
//!
//! It is a socket with a name in the kernel's abstract namespace, so it ends with the process, however that ends, and leaves no
//! file. Each user has a name of their own, and the kernel says whose process holds it: a name that somebody else has taken
//! refuses nobody. So root refuses for root alone and others for themselves and for root; a run that another user made meanwhile
//! is a caveat in the record, because any user could pretend to have one. A network namespace has names of its own: what
//! runs in a container is not seen.

use super::TestbedError;
use commensal_host::{Host, hold_name, name_holder};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::net::UnixListener;
use std::path::Path;

/// Set apart by tests, which measure nothing and may run side by side.
const SCOPE: &str = "COMMENSAL_LAB_SCOPE";

/// The right to measure, while it lives.
#[derive(Debug)]
pub struct Claim {
    /// `None` where somebody else has taken the name.
    _held: Option<UnixListener>,
    prefix: String,
    uid: u32,
    /// What was found when it was taken.
    seen: BTreeSet<String>,
}

impl Claim {
    /// Takes it.
    ///
    /// # Errors
    /// When another run of this user or of root has it.
    pub fn take(host: &dyn Host) -> Result<Claim, TestbedError> {
        let scope = std::env::var(SCOPE).map(|scope| format!("{scope}-")).unwrap_or_default();
        Claim::take_as(host, format!("commensal-lab-{scope}"), host.euid())
    }

    fn take_as(host: &dyn Host, prefix: String, uid: u32) -> Result<Claim, TestbedError> {
        let mut seen = BTreeSet::new();
        let mut of = |user: u32| match name_holder(&format!("{prefix}{user}")) {
            Some((pid, owner)) if owner == user => {
                Err(TestbedError::Claimed { pid, command: command(host, pid) })
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
            // A machine that has no such sockets still has the lock of the state directory.
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

    /// Runs of other users at the begin of this one or at its end, for the record.
    pub fn beside(mut self, host: &dyn Host) -> Vec<String> {
        self.look(host);
        self.seen.into_iter().collect()
    }
}

/// Its command line in brackets, where it can be read.
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

    /// A name that a user has taken who is not the one in it: told, and no refusal.
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

    /// Root's run refuses everybody's, and a user's refuses only their own.
    // promise 42
    #[test]
    fn root_comes_first() {
        let (host, prefix) = (LinuxHost::new(), prefix("root"));
        if host.euid() != 0 {
            println!("skipped: root_comes_first: needs root");
            return;
        }
        let roots = Claim::take_as(&host, prefix.clone(), 0).unwrap();
        assert!(matches!(Claim::take_as(&host, prefix.clone(), 1000), Err(TestbedError::Claimed { .. })));
        drop(roots);
        let users = Claim::take_as(&host, prefix.clone(), 1000).unwrap();
        let roots = Claim::take_as(&host, prefix, 0).unwrap();
        drop((users, roots));
    }
}
