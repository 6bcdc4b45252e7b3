//! The server's private folder for spill files (data that queries write to disk because memory is short) and for files
//! of its workers. A lock on a file in the folder shows that the folder is in use.
//!
//! A server that is killed cannot remove its folder, but the kernel releases its lock. The next server started with the
//! same `--spill` removes every folder whose lock is free, so no manual clean-up is needed.

use super::error::{Error, cannot};
use commensal_host::{Host, LinuxHost, Lock};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tempfile::TempDir;

/// Prefix of the folders' names.
const PREFIX: &str = "commensal-sql-";
/// Lock file in the folder; the lock is held as long as the folder is in use.
const LOCK: &str = "in-use";

/// A folder that is removed on drop or, if this process was killed, by a later server.
#[derive(Debug)]
pub struct Scratch {
    folder: TempDir,
    _lock: Lock,
}

impl Scratch {
    /// Creates a folder in `parent`, and removes the folders there of servers that were killed.
    ///
    /// # Errors
    /// `parent` is not writable.
    pub fn new(parent: &Path) -> Result<Scratch, Error> {
        remove_left(parent);
        loop {
            let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent);
            let folder = folder.map_err(|error| cannot("make a folder in", parent, &error))?;
            let place = folder.path().join(LOCK);
            let lock = LinuxHost::new().state_lock_new(&place, "");
            let lock = lock.map_err(|error| cannot("make", &place, &error))?;
            // Another server may have removed the folder as abandoned before this server locked it.
            if place.exists() {
                return Ok(Scratch { folder, _lock: lock });
            }
        }
    }

    /// Returns the path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Removes the folder when the process exits.
    pub fn remove(&self) {
        if let Err(error) = LinuxHost::new().state_remove_all(self.path()) {
            tracing::warn!("{} stays: {error}", self.path().display());
        }
    }
}

/// Removes abandoned folders: folders of this user whose lock is free.
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
            Ok(()) => tracing::info!("removed {}, which a killed server had left behind", folder.display()),
            Err(error) => tracing::warn!(
                "cannot remove {}, which a killed server has left behind: {error}",
                folder.display()
            ),
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test makes files and links")]
mod tests {
    use super::*;

    // promise 46
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
