//! Antagonists of the page cache and of the disk, on unnamed files of bounded size.
//!
//! They open files with rustix and not through `commensal-host`, which is for control and state files: those are small
//! and read or written as a whole.

use crate::error::LabError;
use crate::workload::burn::{Piece, failed};
use crate::workload::refuse;
use rustix::fs::{Mode, OFlags, fdatasync, fstatvfs, ftruncate, open, unlink};
use rustix::io::{Errno, pread, pwrite};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a unit of its work.
const MIB: u64 = 1 << 20;

/// Makes the temporary names of this process's files unique.
static NUMBER: AtomicU64 = AtomicU64::new(0);
/// Bytes of one write to the disk.
const BLOCK: u64 = 64 << 10;

/// Refuses files that would take more than half of the free space.
pub fn check_room(dir: &Path, size: u64, threads: usize) -> Result<(), LabError> {
    let folder = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let left = open(dir, folder, Mode::empty()).and_then(fstatvfs);
    let left = left.map_err(|errno| no_file(dir, size, errno))?;
    if size.saturating_mul(threads as u64) > left.f_bavail.saturating_mul(left.f_frsize) / 2 {
        let reason = "threads times size may take half of the room that is left on the disk";
        return Err(refuse("size", size, reason));
    }
    Ok(())
}

/// An unnamed file, which is removed automatically.
pub fn nameless(dir: &Path, size: u64) -> Result<OwnedFd, LabError> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let file = match open(dir, flags | OFlags::TMPFILE, mode) {
        // For older overlay file systems (containers), and kernels without this flag.
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => renounced(dir, flags, mode),
        opened => opened,
    };
    let sized = file.and_then(|file| ftruncate(&file, size).map(|()| file));
    sized.map_err(|errno| no_file(dir, size, errno))
}

fn no_file(dir: &Path, size: u64, errno: Errno) -> LabError {
    let words = format!(
        "cannot make a temporary file of {size} bytes in {}: name another folder with --dir",
        dir.display()
    );
    LabError::of(words, &std::io::Error::from(errno))
}

/// A file that has its name only for a moment. An existing file or symbolic link is not opened.
fn renounced(dir: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = dir.join(format!("commensal-antagonist-{}-{number}", std::process::id()));
    let file = open(&name, flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, mode)?;
    unlink(&name)?;
    Ok(file)
}

/// Writes 1 MiB and reads another, half a file away, round and round. Counts MiB.
pub fn churn(file: OwnedFd, size: u64) -> Piece {
    let len = size.min(MIB);
    let steps = size / len;
    let (written, mut read) = (vec![0xA5_u8; len as usize], vec![0_u8; len as usize]);
    let (mut step, mut bytes) = (0, 0);
    Box::new(move || {
        all("write to the page cache", len, |done| {
            pwrite(&file, &written[done..], step * len + done as u64)
        })?;
        let behind = (step + steps / 2) % steps * len;
        all("read from the page cache", len, |done| pread(&file, &mut read[done..], behind + done as u64))?;
        step = (step + 1) % steps;
        bytes += 2 * len;
        let whole = bytes / MIB;
        bytes %= MIB;
        Ok(whole)
    })
}

/// Writes a block and waits until the device has stored it. Counts writes.
pub fn sync(file: OwnedFd, size: u64) -> Piece {
    let steps = size / BLOCK;
    let block = vec![0x5A_u8; BLOCK as usize];
    let mut step = 0;
    Box::new(move || {
        all("write to the disk", BLOCK, |done| pwrite(&file, &block[done..], step * BLOCK + done as u64))?;
        fdatasync(&file).map_err(|errno| failed("flush to the disk", &errno.into()))?;
        step = (step + 1) % steps;
        Ok(1)
    })
}

/// Repeats a transfer until all bytes are done.
fn all(
    operation: &'static str,
    len: u64,
    mut transfer: impl FnMut(usize) -> Result<usize, Errno>,
) -> Result<(), LabError> {
    let mut done = 0;
    while (done as u64) < len {
        match transfer(done) {
            Ok(0) => {
                return Err(failed(operation, &std::io::ErrorKind::UnexpectedEof.into()));
            }
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(failed(operation, &e.into())),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_had_a_name_leaves_none() {
        let dir = std::env::temp_dir();
        let file = renounced(&dir, OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR).expect("a file");
        assert_eq!(rustix::fs::fstat(&file).expect("a state").st_nlink, 0);
    }
}
