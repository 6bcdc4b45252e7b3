//! The server's own folder for what it spills and hands to its workers, with a lock that says that it is in use.
//!
//! A server that is killed cannot remove its folder. The kernel lets go of its lock, so the next server that is started with
//! the same `--spill` removes what is there without a holder: nobody has to clean up by hand.

use super::error::{Error, cannot};
use commensal_host::{Host, LinuxHost, Lock};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tempfile::TempDir;

/// How such folders are called.
const PREFIX: &str = "commensal-sql-";
/// The file in it whose lock is held for as long as the folder is used.
const LOCK: &str = "in-use";

/// A folder that is removed when it is dropped, or after its process was killed.
#[derive(Debug)]
pub struct Scratch {
    folder: TempDir,
    _lock: Lock,
}

impl Scratch {
    /// A new one in `parent`, where those of servers that were killed are removed.
    ///
    /// # Errors
    /// Nothing can be written to `parent`.
    pub fn new(parent: &Path) -> Result<Scratch, Error> {
        remove_left(parent);
        loop {
            let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent);
            let folder = folder.map_err(|error| cannot("make a folder in", parent, &error))?;
            let place = folder.path().join(LOCK);
            let lock = LinuxHost::new().state_lock_new(&place, "");
            let lock = lock.map_err(|error| cannot("make", &place, &error))?;
            // Another server may have taken it for one that was left, before it was locked.
            if place.exists() {
                return Ok(Scratch { folder, _lock: lock });
            }
        }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Removes it while the process goes on to its end.
    pub fn remove(&self) {
        if let Err(error) = LinuxHost::new().state_remove_all(self.path()) {
            tracing::warn!("{} stays: {error}", self.path().display());
        }
    }
}

/// Removes folders that nobody uses: this user's, with a lock that can be had.
fn remove_left(parent: &Path) {
    let mut host = LinuxHost::new();
    let user = host.euid();
    for name in host.list(parent).unwrap_or_default() {
        let folder = parent.join(&name);
        let ours = |found: std::fs::Metadata| found.is_dir() && found.uid() == user;
        let lock = folder.join(LOCK);
        if !name.starts_with(PREFIX) || !folder.symlink_metadata().is_ok_and(ours) || !lock.exists() {
            continue;
        }
        let Ok(Some(_held)) = host.state_lock(&lock) else { continue };
        match host.state_remove_all(&folder) {
            Ok(()) => tracing::info!("removed {}, which a server that was killed had left", folder.display()),
            Err(error) => tracing::warn!("a server that was killed has left {}: {error}", folder.display()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test makes files and links")]
mod tests {
    use super::*;

    // promise 55
    #[test]
    fn what_is_used_or_foreign_stays() {
        let parent = tempfile::tempdir().unwrap();
        let at = |name: &str| parent.path().join(name);
        let used = Scratch::new(parent.path()).unwrap();
        std::fs::write(used.path().join("spilled"), "x").unwrap();
        for name in ["commensal-sql-left", "commensal-sql-young", "else"] {
            std::fs::create_dir_all(at(name).join("deep")).unwrap();
        }
        for name in ["commensal-sql-left", "else"] {
            std::fs::write(at(name).join(LOCK), "").unwrap();
        }
        std::os::unix::fs::symlink(at("else"), at("commensal-sql-link")).unwrap();
        let other = Scratch::new(parent.path()).unwrap();
        assert!(!at("commensal-sql-left").exists());
        for name in ["commensal-sql-young", "else/deep", "commensal-sql-link"] {
            assert!(at(name).exists(), "{name}");
        }
        assert!(used.path().join("spilled").exists());
        let gone = used.path().to_owned();
        drop(used);
        assert!(!gone.exists() && other.path().exists());
    }
}
