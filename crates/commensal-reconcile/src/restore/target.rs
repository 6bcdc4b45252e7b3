//! Opens the cgroup of a record, if it is still the same group.

use super::outcome::Left;
use crate::hand::is_gone;
use crate::journal::Target;
use commensal_core::errno::Errno;
use commensal_core::text;
use commensal_host::{Dir, Host, below};
use commensal_sensors::mounts::cgroup_mounts;
use std::path::Path;

/// Opens the group of a journal record; `None` if it no longer exists.
pub(crate) fn open(host: &mut dyn Host, group: &Target) -> Result<Option<Dir>, Left> {
    open_at(host, &group.mount, &group.path, Some(group.inode))
}

/// Opens the group at this path, if it has this inode.
pub(crate) fn open_at(
    host: &mut dyn Host,
    mount: &str,
    path: &str,
    inode: Option<u64>,
) -> Result<Option<Dir>, Left> {
    match host.open(&below(Path::new(mount), path)) {
        Ok(dir) if inode.is_none_or(|inode| inode == dir.inode) => Ok(Some(dir)),
        Ok(dir) => {
            host.close(dir);
            Ok(None)
        }
        Err(error)
            if matches!(
                error.errno,
                Errno::ENOENT | Errno::ENODEV | Errno::ENOTDIR | Errno::ELOOP | Errno::EINVAL
            ) && !mounted(host, mount) =>
        {
            let group = text::path(&below(Path::new(mount), path));
            Err(Left::Busy(format!(
                "{group} cannot be opened: no cgroup hierarchy is mounted at {mount} here"
            )))
        }
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(Left::Failed(error)),
    }
}

/// Whether a cgroup file system is mounted at `mount`; in a chroot or a container the host's mounts may be missing.
pub(super) fn mounted(host: &dyn Host, mount: &str) -> bool {
    cgroup_mounts(host).is_ok_and(|all| all.iter().any(|one| one.mount == mount))
}
