//! Runs commands to completion and collects their output.

use super::error::RunError;
use super::run_dir::RunDir;
use crate::site::{Side, Testbed};
use commensal_host::{Host, Stderr, Stdout};
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, memfd_create};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Creates an in-memory file for the output of a program.
pub(super) fn log() -> Result<Arc<OwnedFd>, RunError> {
    memory_file("")
}

pub(super) fn memory_file(text: &str) -> Result<Arc<OwnedFd>, RunError> {
    let failed = |errno: rustix::io::Errno| RunError::counter(errno.into());
    let file = memfd_create("commensal-lab", MemfdFlags::CLOEXEC).map_err(failed)?;
    let mut left = text.as_bytes();
    let mut at = 0;
    // Writes at explicit offsets, so that the file position stays at 0, where the program starts reading.
    while !left.is_empty() {
        let written = rustix::io::pwrite(&file, left, at).map_err(failed)?;
        at += written as u64;
        left = &left[written..];
    }
    Ok(Arc::new(file))
}

/// Returns the end of a program's output, formatted to follow a sentence; empty if the program printed nothing.
pub(super) fn tail(log: &Arc<OwnedFd>) -> String {
    const LAST: u64 = 600;
    let size = rustix::fs::fstat(log.as_ref()).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
    let mut bytes = vec![0; LAST as usize];
    let read = rustix::io::pread(log.as_ref(), &mut bytes, size.saturating_sub(LAST)).unwrap_or(0);
    let text = String::from_utf8_lossy(&bytes[..read]).trim().to_owned();
    if text.is_empty() {
        String::new()
    } else {
        format!("; its last output:\n  {}", text.replace('\n', "\n  "))
    }
}

/// Runs a command of the experiment to completion.
pub(super) fn run_command(
    host: &mut dyn Host,
    site: &Testbed,
    place: &RunDir,
    side: Side,
    command: &[String],
    stop: &AtomicBool,
) -> Result<(), RunError> {
    let log = log()?;
    let mut spec = place.command(command);
    spec.stdout = Stdout::Fd(log.clone());
    spec.stderr = Stderr::Stdout;
    let mut child = site.start(host, side, None, spec)?;
    let deadline = Instant::now() + PREPARE;
    loop {
        if let Some(exit) = child.try_wait()? {
            let words: Vec<String> = command.iter().map(|word| place.fill(word)).collect();
            return match exit.status() {
                0 => Ok(()),
                status => Err(RunError::Command { command: words.join(" "), status, said: tail(&log) }),
            };
        }
        if stop.load(Ordering::Relaxed) || Instant::now() > deadline {
            site.stop(host, side, &mut child)?;
            return Err(RunError::stopped());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Time limit for one command of an experiment.
const PREPARE: Duration = Duration::from_secs(600);
