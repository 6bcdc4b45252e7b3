//! State files that survive a crash: append with fsync, replace by rename.

use crate::error::{Result, failed, too_large};
use crate::open::{Guard, folder_of};
use commensal_core::errno::Errno;
use commensal_core::spelling;
use rustix::fs::{AtFlags, OFlags, renameat, unlinkat};
use std::fs::{DirBuilder, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

pub(crate) fn make_dir(path: &Path, guard: Option<Guard<'_>>) -> Result<()> {
    match guard.filter(|guard| path.starts_with(guard.folder)) {
        Some(guard) => crate::open::make(path, guard),
        None => {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
            made.map_err(|error| failed("create", path, &error))
        }
    }
}

/// Returns `None` instead of the error `ENOENT`.
pub(crate) fn there<T>(found: Result<T>) -> Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.errno == Errno::ENOENT => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) fn read(path: &Path, most: u64, guard: Option<Guard<'_>>) -> Result<Option<String>> {
    let opened = folder_of(path, guard).and_then(|(folder, name)| folder.open("read", name, OFlags::RDONLY));
    let Some(file) = there(opened)? else { return Ok(None) };
    let mut bytes = Vec::new();
    let mut size = file.metadata().map_err(|error| failed("read", path, &error))?.len();
    if size <= most {
        // The file may grow meanwhile.
        file.take(most + 1).read_to_end(&mut bytes).map_err(|error| failed("read", path, &error))?;
        size = bytes.len() as u64;
    }
    if size > most {
        return Err(too_large(path, size, most));
    }
    // A damaged file is not an error here: the caller checks it line by line.
    Ok(Some(spelling::text(bytes)))
}

pub(crate) fn append(path: &Path, text: &str, guard: Option<Guard<'_>>) -> Result<()> {
    let refuse = |error: &std::io::Error| failed("append to", path, error);
    let (folder, name) = folder_of(path, guard)?;
    let flags = OFlags::WRONLY | OFlags::APPEND;
    let (mut file, is_new) = match there(folder.open("append to", name, flags))? {
        Some(file) => (file, false),
        None => (folder.open("append to", name, flags | OFlags::CREATE | OFlags::EXCL)?, true),
    };
    let before = file.metadata().map_err(|e| refuse(&e))?.len();
    if let Err(error) = file.write_all(text.as_bytes()).and_then(|()| file.sync_data()) {
        // A partial line would later read as damage; the length before the write is the last valid state.
        let _ = file.set_len(before);
        if is_new {
            let _ = unlinkat(folder.fd(), name, AtFlags::empty());
        }
        return Err(refuse(&error));
    }
    if is_new { folder.sync() } else { Ok(()) }
}

pub(crate) fn replace(path: &Path, bytes: &[u8], guard: Option<Guard<'_>>) -> Result<()> {
    let (folder, name) = folder_of(path, guard)?;
    let aside = format!(".{}.{}.new", name.display(), std::process::id());
    let aside = Path::new(&aside);
    // A process with the same PID may have left the file when it died.
    let _ = unlinkat(folder.fd(), aside, AtFlags::empty());
    let mut file = folder.open("replace", aside, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
    let write = |file: &mut File| -> std::io::Result<()> {
        file.set_permissions(PermissionsExt::from_mode(0o644))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok(renameat(folder.fd(), aside, folder.fd(), name)?)
    };
    write(&mut file).map_err(|error| {
        let _ = unlinkat(folder.fd(), aside, AtFlags::empty());
        failed("replace", path, &error)
    })?;
    folder.sync()
}

pub(crate) fn rename(from: &Path, to: &Path, guard: Option<Guard<'_>>) -> Result<()> {
    let ((old, from_name), (new, to_name)) = (folder_of(from, guard)?, folder_of(to, guard)?);
    renameat(old.fd(), from_name, new.fd(), to_name)
        .map_err(|errno| failed("rename", from, &errno.into()))?;
    new.sync()
}

pub(crate) fn remove(path: &Path, guard: Option<Guard<'_>>) -> Result<()> {
    let Some((folder, name)) = there(folder_of(path, guard))? else { return Ok(()) };
    match unlinkat(folder.fd(), name, AtFlags::empty()) {
        Ok(()) => folder.sync(),
        Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(errno) => Err(failed("remove", path, &errno.into())),
    }
}

pub(crate) fn remove_all(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", path, &error)),
        _ => Ok(()),
    }
}
