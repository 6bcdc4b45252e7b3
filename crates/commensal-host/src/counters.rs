//! Performance counters of a cgroup: `perf_event_open(2)` with `PERF_FLAG_PID_CGROUP`, on every CPU.

use crate::error::{HostError, Result};
use commensal_core::errno::Errno;
use perf_event::events::{Hardware, Software};
use perf_event::{Builder, Counter, ReadFormat};
use std::fs::File;
use std::io;

/// An event that can be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Cycles of the CPU while it was not halted; `ENOENT` without a performance monitoring unit.
    Cycles,
    /// Retired instructions; `ENOENT` without a performance monitoring unit.
    Instructions,
    /// CPU time in nanoseconds, as the scheduler counts it. Every kernel with perf events has this event.
    TaskClock,
}

/// Counters that run until they are dropped.
#[derive(Debug)]
pub struct Counters {
    /// Counters by CPU, one per event. The first counter of a CPU is the group leader, so that all events of the CPU
    /// are counted at the same times.
    cpus: Vec<Vec<Counter>>,
}

impl Counters {
    /// Returns the counts so far, summed over all CPUs, in the order in which the events were given. If other users had
    /// the performance monitoring unit for a part of the time, the counts are scaled up to the whole time.
    ///
    /// # Errors
    /// Returns the kernel's error, including `EIO` for a counter that was displaced by a pinned one.
    pub fn read(&mut self) -> Result<Vec<u64>> {
        let mut sums = vec![0; self.cpus.first().map_or(0, Vec::len)];
        for events in &mut self.cpus {
            let group = events[0].read_group().map_err(|error| failed("read", &error))?;
            let nanos = |time: Option<std::time::Duration>| time.map_or(0.0, |time| time.as_nanos() as f64);
            let (enabled, running) = (nanos(group.time_enabled()), nanos(group.time_running()));
            let scale = if running > 0.0 { enabled / running } else { 0.0 };
            for (sum, event) in sums.iter_mut().zip(&*events) {
                *sum += (group[event] as f64 * scale).round() as u64;
            }
        }
        Ok(sums)
    }
}

/// Opens and starts `events` for the tasks in `group` and below, on each of `cpus`.
pub(crate) fn open(group: &File, cpus: impl Iterator<Item = u32>, events: &[Event]) -> Result<Counters> {
    let one = |cpu: u32| -> io::Result<Vec<Counter>> {
        let mut counters: Vec<Counter> = Vec::new();
        for event in events {
            let mut builder = match event {
                Event::Cycles => Builder::new(Hardware::CPU_CYCLES),
                Event::Instructions => Builder::new(Hardware::INSTRUCTIONS),
                Event::TaskClock => Builder::new(Software::TASK_CLOCK),
            };
            builder.observe_cgroup(group).one_cpu(cpu as usize).include_kernel().read_format(
                ReadFormat::GROUP
                    | ReadFormat::ID
                    | ReadFormat::TOTAL_TIME_ENABLED
                    | ReadFormat::TOTAL_TIME_RUNNING,
            );
            let counter = match counters.first_mut() {
                Some(leader) => builder.build_with_group(leader)?,
                None => builder.build()?,
            };
            counters.push(counter);
        }
        if let Some(leader) = counters.first_mut() {
            leader.enable_group()?;
        }
        Ok(counters)
    };
    let cpus = cpus.map(one).collect::<io::Result<_>>();
    Ok(Counters { cpus: cpus.map_err(|error| failed("open", &error))? })
}

fn failed(operation: &'static str, error: &io::Error) -> HostError {
    // The library returns no error number when the kernel is too old for the event.
    let errno = error.raw_os_error().map_or(Errno::EOPNOTSUPP, Errno);
    HostError { operation, object: "a performance counter".to_owned(), value: None, errno }
}
