//! State files that survive a crash: append with fsync, replace by rename.

use crate::{HostError, Result};
use commensal_core::errno::Errno;
use commensal_core::spelling;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

pub(crate) fn failed(operation: &'static str, path: &Path, error: &std::io::Error) -> HostError {
    let errno = Errno(error.raw_os_error().unwrap_or(Errno::EIO.0));
    HostError { operation, object: spelling::of_path(path), value: None, errno }
}

pub(crate) fn make_dir(path: &Path) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| failed("create", path, &error))
}

pub(crate) fn read(path: &Path) -> Result<Option<String>> {
    match std::fs::read(path) {
        // A damaged file is for its reader to judge, line by line.
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", path, &error)),
    }
}

pub(crate) fn append(path: &Path, text: &str) -> Result<()> {
    let refuse = |error: &std::io::Error| failed("append to", path, error);
    let is_new = !path.exists();
    let mut file =
        OpenOptions::new().append(true).create(true).mode(0o600).open(path).map_err(|e| refuse(&e))?;
    let before = file.metadata().map_err(|e| refuse(&e))?.len();
    if let Err(error) = file.write_all(text.as_bytes()).and_then(|()| file.sync_data()) {
        // A torn line would read as damage later; the length before is the last good state.
        let _ = file.set_len(before);
        if is_new {
            let _ = std::fs::remove_file(path);
        }
        return Err(refuse(&error));
    }
    if is_new { sync_parent(path) } else { Ok(()) }
}

pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let aside = path.with_file_name(format!(".{name}.{}.new", std::process::id()));
    let write = || -> std::io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&aside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&aside, path)
    };
    write().map_err(|error| {
        let _ = std::fs::remove_file(&aside);
        failed("replace", path, &error)
    })?;
    sync_parent(path)
}

pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    std::fs::rename(from, to).map_err(|error| failed("rename", from, &error))?;
    sync_parent(to)
}

pub(crate) fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Ok(()) => sync_parent(path),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed("remove", path, &error)),
    }
}

pub(crate) fn remove_all(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", path, &error)),
        _ => Ok(()),
    }
}

/// The name of a new file is on the disk only once its directory is.
fn sync_parent(path: &Path) -> Result<()> {
    let Some(parent) = path.parent() else { return Ok(()) };
    File::open(parent).and_then(|dir| dir.sync_all()).map_err(|error| failed("sync", parent, &error))
}
