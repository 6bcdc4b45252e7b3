//! Sends signals, and reads the kernel's information on a process.

use crate::until;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::read_to_string;
use std::time::Duration;

/// Sends a signal; `false` when there is no such process.
///
/// # Panics
/// When the process belongs to another user.
#[track_caller]
pub fn signal(pid: u32, signal: Signal) -> bool {
    let id = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
    match kill_process(id, signal) {
        Ok(()) => true,
        Err(rustix::io::Errno::SRCH) => false,
        Err(why) => panic!("signal {} to process {pid}: {why}", signal.as_raw()),
    }
}

/// A field of `/proc/PID/stat` by its number in proc(5), which counts from 1; `None` when the process is gone.
pub fn field_of_stat(pid: u32, number: usize) -> Option<String> {
    let text = read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, field 2, may hold spaces and parentheses.
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_whitespace().nth(number.checked_sub(3)?).map(str::to_owned)
}

/// Whether the process is gone, or is a zombie.
pub fn ended(pid: u32) -> bool {
    field_of_stat(pid, 3).is_none_or(|state| matches!(state.as_str(), "Z" | "X"))
}

/// Whether a signal has stopped the process.
pub fn stopped_by(pid: u32) -> bool {
    field_of_stat(pid, 3).is_some_and(|state| state == "T")
}

/// The fields of `/proc/PID/schedstat`: CPU time, run delay (nanoseconds), time slices.
fn schedstat(pid: u32) -> Option<[u64; 3]> {
    let text = read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    let numbers: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().ok()
}

/// CPU time of the process's first thread; `None` when the process is gone.
pub fn cpu_time(pid: u32) -> Option<Duration> {
    schedstat(pid).map(|[ns, ..]| Duration::from_nanos(ns))
}

/// Run delay of the process's first thread; `None` when the process is gone.
pub fn run_delay(pid: u32) -> Option<Duration> {
    schedstat(pid).map(|[_, ns, _]| Duration::from_nanos(ns))
}

/// Number of threads; 0 when the process is gone.
pub fn threads(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// Resident memory (`VmRSS`); `None` when the process is gone.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    let status = read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// A process stopped by SIGSTOP; it continues when this is dropped.
#[derive(Debug)]
pub struct Stopped(u32);

impl Stopped {
    /// Stops the process, and waits until it has left its CPU.
    pub fn new(pid: u32) -> Stopped {
        signal(pid, Signal::STOP);
        let stopped = Stopped(pid);
        until(format_args!("process {pid} stands still"), || stopped_by(pid));
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.0, Signal::CONT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_is_stopped_goes_on_and_ends() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
        let pid = child.id();
        let stopped = Stopped::new(pid);
        assert!(stopped_by(pid) && !ended(pid) && threads(pid) == 1);
        drop(stopped);
        until("it goes on", || !stopped_by(pid));
        assert!(signal(pid, Signal::KILL));
        until("it has ended", || ended(pid));
        child.wait().expect("its status");
        assert!(!signal(pid, Signal::TERM) && threads(pid) == 0 && cpu_time(pid).is_none());
    }

    #[test]
    fn figures_of_this_process() {
        let me = std::process::id();
        assert!(resident_bytes(me).is_some_and(|bytes| bytes > 1 << 19));
        let before = cpu_time(me);
        until("it has had CPU time", || cpu_time(me) >= before && threads(me) > 0);
        assert_eq!(field_of_stat(me, 4), Some(std::os::unix::process::parent_id().to_string()));
    }
}
