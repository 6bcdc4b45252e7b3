//! The built-in offline workload: threads that burn CPU in fixed chunks and count the finished ones.
//!
//! Work is counted in chunks, not in CPU time: a throttled thread burns the same seconds later, and only finished
//! chunks show the loss. [`run`] is the workload's side, [`WorkCounter`] the conductor's. The counter is an anonymous
//! memory file of one little-endian `u64` per thread, so the conductor can read it while the workload is frozen,
//! throttled or dead, and no pipe can fill up or wake a thread.

use super::cpu::burn;
use super::{no_threads, refuse};
use crate::error::LabError;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{Errno, pread, pwrite};
use std::hint::black_box;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Iterations of one chunk unless told otherwise: about 1 ms (1.02 ms on the machine it was measured on).
///
/// A constant, not a calibration at start: the hog starts once per arm, and a chunk calibrated beside other
/// work would differ from arm to arm, so that counts could not be compared.
pub const CHUNK_ITERATIONS: u64 = 500_000;

/// A thread writes its counter at the end of the first chunk that ends this long after the last write. With
/// chunks of about 1 ms that is also at least every 10 ms of work.
pub const REPORT_EVERY: Duration = Duration::from_millis(5);

/// Most threads, and so slots of the counter file.
pub const MAX_THREADS: usize = 4096;

/// Parameters.
#[derive(Debug)]
pub struct BurnOptions {
    /// Threads, 1 to [`MAX_THREADS`].
    pub threads: usize,
    /// Iterations of [`burn`](super::cpu::burn) per chunk, at least 1.
    pub chunk_iterations: u64,
    /// When to stop by itself; `None` runs until killed.
    pub duration: Option<Duration>,
    /// The counter file; `None` reports nothing. The lab passes it as standard input: [`stdin_counter`].
    pub counter: Option<OwnedFd>,
}

/// Standard input as the counter file.
///
/// # Errors
/// When standard input is closed.
pub fn stdin_counter() -> io::Result<OwnedFd> {
    io::stdin().as_fd().try_clone_to_owned()
}

/// Burns until killed or until the duration is over; returns the chunks finished.
///
/// A thread that is killed between two writes has done up to [`REPORT_EVERY`] of work that is not counted.
///
/// # Errors
/// On impossible options, when a thread cannot start, or when the counter cannot be written.
pub fn run(options: BurnOptions) -> Result<u64, LabError> {
    let BurnOptions { threads, chunk_iterations, duration, counter } = options;
    if chunk_iterations == 0 {
        return Err(refuse("chunk_iterations", 0, "a chunk has work"));
    }
    let hog = Hog { name: "burn", threads, duration, counter };
    hog.run(&|_| {
        Ok(Box::new(move || {
            black_box(burn(chunk_iterations));
            Ok(1)
        }))
    })
}

/// The work of one thread: each call does one piece and returns the units done.
pub(super) type Piece = Box<dyn FnMut() -> Result<u64, LabError>>;

/// Threads that do pieces of work and count them.
pub(super) struct Hog {
    /// Name of the threads.
    pub(super) name: &'static str,
    /// Number of threads.
    pub(super) threads: usize,
    /// When to stop by itself; `None` runs until killed.
    pub(super) duration: Option<Duration>,
    /// The counter file; `None` reports nothing.
    pub(super) counter: Option<OwnedFd>,
}

impl Hog {
    /// Runs until killed, until the duration is over or until a thread fails; returns the units done. `make` is called
    /// on each thread with its number from 0.
    pub(super) fn run(
        self,
        make: &(dyn Fn(usize) -> Result<Piece, LabError> + Sync),
    ) -> Result<u64, LabError> {
        let Self { name, threads, duration, counter } = self;
        check_threads(threads)?;
        let counter = counter.as_ref().map(AsFd::as_fd);
        // The first write comes before any work, so that a counter that cannot be written is found at once.
        for thread in 0..threads {
            report(counter, thread, 0)?;
        }
        let stop = &AtomicBool::new(false);
        let until = duration.map(|d| Instant::now() + d);
        std::thread::scope(|scope| {
            let mut handles = Vec::with_capacity(threads);
            for thread in 0..threads {
                let work = move || {
                    let done = make(thread).and_then(|piece| pieces(thread, piece, until, counter, stop));
                    if done.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    done
                };
                match std::thread::Builder::new().name(format!("{name}-{thread}")).spawn_scoped(scope, work) {
                    Ok(handle) => handles.push(handle),
                    Err(error) => {
                        stop.store(true, Ordering::Relaxed);
                        return Err(no_threads(threads, &error));
                    }
                }
            }
            let mut total = 0;
            for handle in handles {
                total += handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            Ok(total)
        })
    }
}

fn pieces(
    thread: usize,
    mut piece: Piece,
    until: Option<Instant>,
    counter: Option<BorrowedFd<'_>>,
    stop: &AtomicBool,
) -> Result<u64, LabError> {
    let mut done = 0u64;
    let mut reported = Instant::now();
    loop {
        done = done.wrapping_add(piece()?);
        let now = Instant::now();
        let over = until.is_some_and(|end| now >= end) || stop.load(Ordering::Relaxed);
        if over || now.duration_since(reported) >= REPORT_EVERY {
            report(counter, thread, done)?;
            reported = now;
        }
        if over {
            return Ok(done);
        }
    }
}

fn report(counter: Option<BorrowedFd<'_>>, thread: usize, done: u64) -> Result<(), LabError> {
    let Some(counter) = counter else { return Ok(()) };
    loop {
        return match pwrite(counter, &done.to_le_bytes(), 8 * thread as u64) {
            Ok(8) => Ok(()),
            Err(Errno::INTR) => continue,
            Ok(_) => Err(no_counter(thread, &io::ErrorKind::WriteZero.into())),
            Err(errno) => Err(no_counter(thread, &errno.into())),
        };
    }
}

/// A piece of work failed.
pub(super) fn failed(operation: &str, error: &io::Error) -> LabError {
    LabError::of(format!("cannot {operation}"), error)
}

fn no_counter(thread: usize, error: &io::Error) -> LabError {
    let words = format!(
        "cannot write the work counter of thread {thread}: the counter must be a file that is open for writing (the lab hands \
         over a memory file), not a terminal or a pipe"
    );
    LabError::of(words, error)
}

fn check_threads(threads: usize) -> Result<(), LabError> {
    if (1..=MAX_THREADS).contains(&threads) {
        return Ok(());
    }
    let reason = "a burner has 1 to 4096 threads";
    Err(refuse("threads", threads as u64, reason))
}

/// The conductor's side of the counter file.
#[derive(Debug)]
pub struct WorkCounter {
    file: OwnedFd,
    threads: usize,
}

impl WorkCounter {
    /// A counter file with one slot per thread, all zero.
    ///
    /// # Errors
    /// When the thread count is outside 1 to [`MAX_THREADS`] or the kernel refuses the file.
    pub fn new(threads: usize) -> io::Result<Self> {
        check_threads(threads).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        let file = memfd_create("commensal-work", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, 8 * threads as u64)?;
        // The hog can neither shrink the file under the reader nor grow it.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Self { file, threads })
    }

    /// The file to hand to the child (as standard input, after `try_clone_to_owned`).
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Chunks finished so far by all threads.
    ///
    /// # Errors
    /// When the file cannot be read, which would be a fault of the kernel.
    pub fn read(&self) -> io::Result<u64> {
        // Nothing promises that eight bytes are copied at once, so a value counts when two reads agree. A slot
        // changes at most every 5 ms and two reads take microseconds: the bound is never reached in practice.
        let mut before = self.snapshot()?;
        for _ in 0..16 {
            let after = self.snapshot()?;
            if after == before {
                break;
            }
            before = after;
        }
        Ok(before.chunks_exact(8).filter_map(|slot| Some(u64::from_le_bytes(slot.try_into().ok()?))).sum())
    }

    fn snapshot(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0u8; 8 * self.threads];
        match pread(&self.file, &mut bytes[..], 0)? {
            n if n == bytes.len() => Ok(bytes),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(threads: usize, counter: Option<OwnedFd>) -> BurnOptions {
        BurnOptions { threads, chunk_iterations: 20_000, duration: Some(Duration::from_millis(600)), counter }
    }

    #[test]
    fn the_counter_grows_while_it_runs_and_ends_exact() {
        let counter = WorkCounter::new(3).expect("a counter");
        let fd = counter.fd().try_clone_to_owned().expect("a copy");
        let hog = std::thread::spawn(move || run(options(3, Some(fd))));
        let mut seen = vec![];
        while !hog.is_finished() {
            seen.push(counter.read().expect("a value"));
            std::thread::sleep(Duration::from_millis(20));
        }
        let total = hog.join().expect("no panic").expect("no error");
        assert_eq!(counter.read().expect("a value"), total);
        assert!(seen.is_sorted(), "{seen:?}");
        seen.dedup();
        // 600 ms with a write every 5 ms: even a machine that gives us a tenth shows several values.
        assert!(seen.len() >= 4, "{seen:?}");
    }

    #[test]
    fn every_thread_has_its_own_slot() {
        let counter = WorkCounter::new(2).expect("a counter");
        report(Some(counter.fd()), 0, 5).expect("slot 0");
        report(Some(counter.fd()), 1, 1 << 40).expect("slot 1");
        report(Some(counter.fd()), 0, 6).expect("slot 0 again");
        assert_eq!(counter.read().expect("a value"), 6 + (1 << 40));
        let error = report(Some(counter.fd()), 2, 1).unwrap_err().to_string();
        assert!(error.contains("the work counter of thread 2"), "{error}");
    }

    #[test]
    fn a_pipe_is_refused_before_any_work() {
        let (_reader, writer) = io::pipe().expect("a pipe");
        let error = run(options(1, Some(writer.into()))).expect_err("no position in a pipe");
        assert!(error.to_string().contains("the work counter of thread 0"), "{error}");
    }

    #[test]
    fn impossible_options_are_refused_and_no_counter_is_fine() {
        let refused = |options| run(options).unwrap_err().to_string();
        assert!(refused(options(0, None)).starts_with("threads = 0: "));
        let empty = BurnOptions { chunk_iterations: 0, ..options(1, None) };
        assert!(refused(empty).starts_with("chunk_iterations = 0: "));
        assert!(WorkCounter::new(0).is_err());
        let short = BurnOptions { duration: Some(Duration::ZERO), ..options(2, None) };
        assert_eq!(run(short).expect("two chunks"), 2);
    }
}
