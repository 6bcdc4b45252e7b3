//! The built-in offline (batch) workload: threads that burn CPU time in chunks of fixed size and count the finished
//! chunks.
//!
//! The unit of work is the chunk, not CPU time: a throttled thread still uses CPU time, and only the number of finished
//! chunks shows how much work the throttling prevented. [`run`] is the workload itself. The conductor (the part of the
//! lab that runs experiments) reads its progress with [`WorkCounter`]. The counter is an anonymous memory file with one
//! little-endian `u64` per thread. The conductor can read the file while the workload is frozen, throttled or dead,
//! and, unlike a pipe, the file cannot fill up or wake a thread.

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

/// Default number of iterations of one chunk; a chunk takes about 1 ms (1.02 ms on the machine where it was measured).
///
/// The number is a constant. The workload starts once for each arm (condition) of an experiment. If each start
/// calibrated the number while other work runs, chunks would differ between arms, and counts would not be comparable.
pub const CHUNK_ITERATIONS: u64 = 500_000;

/// A thread writes its counter at the end of a chunk if its last write was at least this long ago. With chunks of about
/// 1 ms, at most 10 ms of work pass between two writes.
pub const REPORT_EVERY: Duration = Duration::from_millis(5);

/// Maximum number of threads; the counter file has one slot per thread.
pub const MAX_THREADS: usize = 4096;

/// Parameters of the workload.
#[derive(Debug)]
pub struct BurnOptions {
    /// Number of threads, 1 to [`MAX_THREADS`].
    pub threads: usize,
    /// Number of iterations of [`burn`] per chunk, at least 1.
    pub chunk_iterations: u64,
    /// Time after which the workload stops by itself; `None` if it runs until the process dies.
    pub duration: Option<Duration>,
    /// The counter file; `None` if the workload reports no counts. The lab passes the file as standard input: see
    /// [`stdin_counter`].
    pub counter: Option<OwnedFd>,
}

/// Returns standard input as the counter file.
///
/// # Errors
/// If standard input is closed.
pub fn stdin_counter() -> io::Result<OwnedFd> {
    io::stdin().as_fd().try_clone_to_owned()
}

/// Burns CPU time until the duration is over or the process dies; returns the number of finished chunks.
///
/// If a thread dies between two writes of its counter, the counter lacks up to [`REPORT_EVERY`] of the thread's work.
///
/// # Errors
/// If an option is invalid, a thread cannot start, or the counter cannot be written.
pub fn run(options: BurnOptions) -> Result<u64, LabError> {
    let BurnOptions { threads, chunk_iterations, duration, counter } = options;
    if chunk_iterations == 0 {
        return Err(refuse("chunk_iterations", 0, "a chunk must have at least one iteration"));
    }
    let hog = Hog { name: "burn", threads, duration, counter };
    hog.run(&|_| {
        Ok(Box::new(move || {
            black_box(burn(chunk_iterations));
            Ok(1)
        }))
    })
}

/// The work of one thread: each call does one piece of work and returns the number of units done.
pub(super) type Piece = Box<dyn FnMut() -> Result<u64, LabError>>;

/// Threads that do pieces of work and count the units done.
pub(super) struct Hog {
    /// Name of the threads.
    pub(super) name: &'static str,
    /// Number of threads.
    pub(super) threads: usize,
    /// Time after which the threads stop by themselves; `None` if they run until the process dies.
    pub(super) duration: Option<Duration>,
    /// The counter file; `None` if the threads report no counts.
    pub(super) counter: Option<OwnedFd>,
}

impl Hog {
    /// Runs until the duration is over, a thread fails, or the process dies; returns the units of work done. Each
    /// thread calls `make` with its number, counted from 0.
    pub(super) fn run(
        self,
        make: &(dyn Fn(usize) -> Result<Piece, LabError> + Sync),
    ) -> Result<u64, LabError> {
        let Self { name, threads, duration, counter } = self;
        check_threads(threads)?;
        let counter = counter.as_ref().map(AsFd::as_fd);
        // The first write is before any work, so that an error shows immediately if the counter cannot be written.
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

/// Returns the error for a piece of work that failed in this operation.
pub(super) fn failed(operation: &str, error: &io::Error) -> LabError {
    LabError::of(format!("cannot {operation}"), error)
}

fn no_counter(thread: usize, error: &io::Error) -> LabError {
    let words = format!(
        "cannot write the work counter of thread {thread}: standard input must be a file that is open for writing (the lab \
         passes a memory file), not a terminal or a pipe"
    );
    LabError::of(words, error)
}

fn check_threads(threads: usize) -> Result<(), LabError> {
    if (1..=MAX_THREADS).contains(&threads) {
        return Ok(());
    }
    let reason = "the number of threads must be 1 to 4096";
    Err(refuse("threads", threads as u64, reason))
}

/// The counter file, as the conductor creates and reads it.
#[derive(Debug)]
pub struct WorkCounter {
    file: OwnedFd,
    threads: usize,
}

impl WorkCounter {
    /// Creates a counter file with one slot per thread, all zero.
    ///
    /// # Errors
    /// If the number of threads is not 1 to [`MAX_THREADS`], or the kernel refuses the file.
    pub fn new(threads: usize) -> io::Result<Self> {
        check_threads(threads).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        let file = memfd_create("commensal-work", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, 8 * threads as u64)?;
        // The seals keep the workload from changing the file's size while the conductor reads the file.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Self { file, threads })
    }

    /// Returns the file, a copy of which the workload gets as standard input (`try_clone_to_owned`).
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the total of all slots: the units of work that the threads have finished so far.
    ///
    /// # Errors
    /// If the file cannot be read, which would be a kernel bug.
    pub fn read(&self) -> io::Result<u64> {
        // The kernel does not guarantee that it copies eight bytes atomically, so the function repeats until two reads
        // agree. A slot changes at most every 5 ms and two reads take microseconds, so in practice the function never
        // reaches the maximum number of reads.
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

    mod measure {
        use super::*;

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
            // 600 ms with a write every 5 ms: even a machine that gives this process a tenth of the CPU time shows several
            // values.
            assert!(seen.len() >= 4, "{seen:?}");
        }
    }
}
