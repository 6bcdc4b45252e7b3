//! The clock of the load generator, and how its thread waits for socket events without missing the times at which
//! requests are due.

use super::record::nanos;
use super::spec::LoadError;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::thread::{current_timer_slack, set_current_timer_slack};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Maximum time without a sleep. The kernel takes 50 ms of every second from a real-time thread that never sleeps, as
/// soon as another task needs the thread's CPU (`sched_rt_runtime_us`, or the fair server of newer kernels). After this
/// time, the thread therefore sleeps for [`NAP`]: 7 % of the time, in slices that are short compared with the allowed
/// lateness.
const AWAKE_NS: u64 = 400_000;
const NAP: Duration = Duration::from_micros(30);
/// Maximum number of events fetched in one call. The generator sends due requests after handling each event, so a large
/// batch does not delay them.
const BATCH: usize = 64;

/// Clock that counts the time since the start of the schedule.
#[derive(Debug)]
pub(super) struct Clock {
    start: Instant,
    /// Time of the last reading (ns). The generator reads the clock once per iteration of its loop, per send and per
    /// response; reading the clock for every decision took a quarter of the generator's CPU time.
    pub(super) now_ns: u64,
}

impl Clock {
    /// Starts a clock whose time is 0 now.
    pub(super) fn start() -> Self {
        Self { start: Instant::now(), now_ns: 0 }
    }

    pub(super) fn started(&self) -> Instant {
        self.start
    }

    /// Lets the clock jump forward, so that a test need not wait.
    #[cfg(test)]
    pub(super) fn skip(&mut self, time: Duration) {
        self.start -= time;
    }

    pub(super) fn read(&mut self) -> u64 {
        self.now_ns = nanos(self.start.elapsed());
        self.now_ns
    }
}

/// Waits for events of the connections.
pub(super) struct Poller {
    epoll: OwnedFd,
    /// The events that the last wait returned.
    pub(super) events: Vec<Event>,
    /// Time at which the thread last slept, or called a function that may sleep (ns).
    slept_ns: u64,
}

impl Poller {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, events: Vec::with_capacity(BATCH), slept_ns: 0 })
    }

    /// Returns the epoll set in which connections register their sockets.
    pub(super) fn set(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Resets the poller's times, because the clock starts again at 0.
    pub(super) fn restart(&mut self) {
        self.slept_ns = 0;
    }

    /// Fills `events`; waits until `wake_ns` at most.
    ///
    /// Waits with `ppoll` on the epoll descriptor. The timeout of `ppoll` has nanosecond resolution on every kernel,
    /// whereas `epoll_pwait` rounds its timeout up to milliseconds and `epoll_pwait2` needs Linux 5.11.
    pub(super) fn poll_until(&mut self, clock: &mut Clock, wake_ns: u64) -> Result<(), LoadError> {
        self.events.clear();
        if wake_ns > clock.now_ns {
            let timeout = timespec(Duration::from_nanos(wake_ns.saturating_sub(clock.read())));
            match poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&timeout)) {
                Ok(0) | Err(Errno::INTR) => {
                    self.slept_ns = wake_ns;
                    return Ok(());
                }
                Ok(_) => {}
                Err(e) => return Err(LoadError::Events(e.into())),
            }
        } else if clock.now_ns.saturating_sub(self.slept_ns) > AWAKE_NS {
            std::thread::sleep(NAP);
            self.slept_ns = clock.read();
        }
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&timespec(Duration::ZERO))) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(LoadError::Events(e.into())),
        }
    }
}

fn timespec(d: Duration) -> Timespec {
    // The duration is at most a day, so both parts fit.
    Timespec { tv_sec: d.as_secs() as i64, tv_nsec: i64::from(d.subsec_nanos()) }
}

/// Sets the timer slack of the calling thread to 1 ns until this value is dropped. The kernel delays every sleep by up
/// to the timer slack, which is 50 µs by default.
#[derive(Debug)]
pub(super) struct TimerSlack {
    before: Option<NonZeroU64>,
}

impl TimerSlack {
    /// Sets the timer slack. If the kernel refuses, the thread keeps its slack, and the generator's lateness shows the
    /// effect.
    pub(super) fn claim() -> Self {
        let before = current_timer_slack().ok().and_then(NonZeroU64::new);
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        Self { before }
    }
}

impl Drop for TimerSlack {
    fn drop(&mut self) {
        // If `before` is `None`, the kernel restores the thread's default.
        let _ = set_current_timer_slack(self.before);
    }
}
