//! Antagonists that stress the page cache and the disk, with unnamed files of limited size.
//!
//! This module opens its files with rustix. `commensal-host`, through which the rest of commensal accesses files, is
//! for small control and state files, which it reads or writes as a whole.

use crate::error::LabError;
use crate::workload::burn::{Piece, failed};
use crate::workload::refuse;
use rustix::fs::{Mode, OFlags, fdatasync, fstatvfs, ftruncate, open, unlink};
use rustix::io::{Errno, pread, pwrite};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes per unit of work.
const MIB: u64 = 1 << 20;

/// Number that makes the temporary names of this process's files unique.
static NUMBER: AtomicU64 = AtomicU64::new(0);
/// Bytes of one write to the disk.
const BLOCK: u64 = 64 << 10;

/// Refuses files that would use more than half of the free space.
pub fn check_room(dir: &Path, size: u64, threads: usize) -> Result<(), LabError> {
    let folder = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let left = open(dir, folder, Mode::empty()).and_then(fstatvfs);
    let left = left.map_err(|errno| no_file(dir, size, errno))?;
    if size.saturating_mul(threads as u64) > left.f_bavail.saturating_mul(left.f_frsize) / 2 {
        let reason = "threads times size must be at most half of the free disk space";
        return Err(refuse("size", size, reason));
    }
    Ok(())
}

/// Creates a file without a name; the kernel removes the file when it is closed.
pub fn nameless(dir: &Path, size: u64) -> Result<OwnedFd, LabError> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let file = match open(dir, flags | OFlags::TMPFILE, mode) {
        // Old overlay file systems (in containers), and kernels without this flag, need a named file.
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => renounced(dir, flags, mode),
        opened => opened,
    };
    let sized = file.and_then(|file| ftruncate(&file, size).map(|()| file));
    sized.map_err(|errno| no_file(dir, size, errno))
}

fn no_file(dir: &Path, size: u64, errno: Errno) -> LabError {
    let words = format!(
        "cannot create a temporary file of {size} bytes in {}: choose another directory with --dir",
        dir.display()
    );
    LabError::of(words, &std::io::Error::from(errno))
}

/// Creates a file with a name and removes the name immediately. Does not open an existing file or follow a symbolic
/// link.
fn renounced(dir: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = dir.join(format!("commensal-antagonist-{}-{number}", std::process::id()));
    let file = open(&name, flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, mode)?;
    unlink(&name)?;
    Ok(file)
}

/// Returns a piece of work that writes 1 MiB, and reads 1 MiB that is half a file away. Counts MiB.
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

/// Returns a piece of work that writes a block and waits until the device has stored it. Counts writes.
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

/// Repeats a transfer until it has transferred all bytes.
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
