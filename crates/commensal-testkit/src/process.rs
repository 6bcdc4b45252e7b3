//! Sends signals, and reads information on processes from /proc.

use crate::until;
use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::read_to_string;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Sends a signal; returns `false` if the process does not exist.
///
/// # Panics
/// Panics if the process belongs to another user.
#[track_caller]
pub fn signal(pid: u32, signal: Signal) -> bool {
    match kill_process(id(pid), signal) {
        Ok(()) => true,
        Err(rustix::io::Errno::SRCH) => false,
        Err(why) => panic!("signal {} to process {pid}: {why}", signal.as_raw()),
    }
}

/// Sends a signal to the process group that `leader` created; returns `false` if no process is in the group.
///
/// # Panics
/// Panics if all processes of the group belong to another user.
#[track_caller]
pub fn signal_group(leader: u32, signal: Signal) -> bool {
    match kill_process_group(id(leader), signal) {
        Ok(()) => true,
        Err(rustix::io::Errno::SRCH) => false,
        Err(why) => panic!("signal {} to process group {leader}: {why}", signal.as_raw()),
    }
}

/// Whether the process group that `leader` created has no process any more. A zombie counts as a process.
pub fn group_ended(leader: u32) -> bool {
    test_kill_process_group(id(leader)) == Err(rustix::io::Errno::SRCH)
}

fn id(pid: u32) -> Pid {
    i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id")
}

/// A command whose process the kernel kills when the thread that starts it ends, also when the whole test is killed. With
/// `unshare --pid --fork --kill-child` as program, its descendants are killed, too.
pub fn mortal(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program);
    command
}

/// Reads the next line that a process writes, and no bytes after it. Returns it without its line break; the empty
/// string means the end of the output.
///
/// # Panics
/// Panics if the output cannot be read.
pub fn line(output: &mut impl Read) -> String {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while output.read(&mut byte).expect("an output that can be read") == 1 && byte != *b"\n" {
        line.push(byte[0]);
    }
    String::from_utf8_lossy(&line).trim().to_owned()
}

/// Reads a field of `/proc/PID/stat`; `number` counts from 1, as in proc(5). `None` if the process does not exist.
pub fn field_of_stat(pid: u32, number: usize) -> Option<String> {
    let text = read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, field 2, may contain spaces and parentheses.
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_whitespace().nth(number.checked_sub(3)?).map(str::to_owned)
}

/// Whether the process has exited; a zombie counts as exited.
pub fn ended(pid: u32) -> bool {
    field_of_stat(pid, 3).is_none_or(|state| matches!(state.as_str(), "Z" | "X"))
}

/// Whether the process is stopped by a signal.
pub fn stopped_by(pid: u32) -> bool {
    field_of_stat(pid, 3).is_some_and(|state| state == "T")
}

/// The fields of `/proc/PID/schedstat`: CPU time (ns), run delay (ns) and number of time slices.
fn schedstat(pid: u32) -> Option<[u64; 3]> {
    let text = read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    let numbers: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().ok()
}

/// CPU time of the process's first thread; `None` if the process does not exist.
pub fn cpu_time(pid: u32) -> Option<Duration> {
    schedstat(pid).map(|[ns, ..]| Duration::from_nanos(ns))
}

/// Run delay of the process's first thread; `None` if the process does not exist.
pub fn run_delay(pid: u32) -> Option<Duration> {
    schedstat(pid).map(|[_, ns, _]| Duration::from_nanos(ns))
}

/// Number of times that the process's first thread got a CPU; `None` if the process does not exist.
pub fn time_slices(pid: u32) -> Option<u64> {
    schedstat(pid).map(|[.., slices]| slices)
}

/// CPU time of all threads of the process, including those that have exited; `None` if the process does not exist. The
/// kernel reports it in units of 10 ms.
pub fn cpu_time_of_all(pid: u32) -> Option<Duration> {
    let ticks = |number| field_of_stat(pid, number)?.parse::<u64>().ok();
    let ms = 1_000 / rustix::param::clock_ticks_per_second();
    Some(Duration::from_millis((ticks(14)? + ticks(15)?) * ms))
}

/// Number of threads of the process; 0 if it does not exist.
pub fn threads(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// Number of open file descriptors of the process; 0 if it does not exist.
pub fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Reads a field of `/proc/PID/status`, for a process or a thread; `None` if the process or the field does not exist.
pub fn field_of_status(pid: u32, name: &str) -> Option<String> {
    let text = read_to_string(format!("/proc/{pid}/status")).ok()?;
    let of = |line: &str| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned());
    text.lines().find_map(of)
}

/// Resident memory of the process in bytes (`VmRSS`); `None` if it does not exist.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    field_of_status(pid, "VmRSS")?.strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Lines of `/proc/PID/cgroup`, such as `4:cpu:/a/b` and `0::/a/b`; none if the process does not exist.
pub fn cgroups_of(pid: u32) -> BTreeSet<String> {
    let text = read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// The cgroup of a process in the hierarchy of a v1 controller or, if no such hierarchy exists, in the unified one: a
/// path below the mount point that begins with a slash. `None` if the process does not exist.
pub fn cgroup_of(pid: u32, controller: &str) -> Option<String> {
    let lines = cgroups_of(pid);
    let has = |line: &&String| {
        line.split(':').nth(1).is_some_and(|names| names.split(',').any(|name| name == controller))
    };
    let line = lines.iter().find(has).or_else(|| lines.iter().find(|line| line.starts_with("0::")))?;
    line.splitn(3, ':').nth(2).map(str::to_owned)
}

/// Whether a process watches a file or directory (inotify(7)), according to the process's `fdinfo`.
///
/// # Panics
/// Panics if the file does not exist.
pub fn watches(pid: u32, path: &Path) -> bool {
    let inode = std::fs::metadata(path).expect("the watched file").ino();
    let watch = format!(" ino:{inode:x} ");
    let listed = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    let mut texts = listed.filter_map(|entry| read_to_string(entry.path()).ok());
    texts.any(|text| text.lines().any(|line| line.starts_with("inotify ") && line.contains(&watch)))
}

/// Processes whose command line contains `part`: PID and command line, with a space between arguments.
pub fn processes_with(part: &str) -> Vec<(u32, String)> {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
    let command = |pid| {
        let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        (pid, String::from_utf8_lossy(&bytes).replace('\0', " "))
    };
    pids.map(command).filter(|(_, command)| command.contains(part)).collect()
}

/// A process that is stopped by SIGSTOP until this value is dropped.
#[derive(Debug)]
pub struct Stopped(u32);

impl Stopped {
    /// Stops the process, and waits until it has stopped.
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

/// Keeps the calling thread, and what it starts from now on, off this CPU, if it may use another.
///
/// # Panics
/// Panics if the kernel refuses.
pub fn keep_off_cpu(cpu: usize) {
    let mut cpus = rustix::thread::sched_getaffinity(None).expect("the CPUs of this thread");
    cpus.unset(cpu);
    if cpus.count() > 0 {
        rustix::thread::sched_setaffinity(None, &cpus).expect("CPUs for this thread");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

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
    fn a_process_group_is_ended_as_a_whole() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo one; echo two; wait"]).process_group(0);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("a shell");
        let mut output = child.stdout.take().expect("its output");
        assert_eq!([line(&mut output), line(&mut output)], ["one", "two"]);
        assert!(!group_ended(child.id()));
        assert!(signal_group(child.id(), Signal::KILL));
        child.wait().expect("its status");
        // `sleep` held the other end of the pipe.
        assert_eq!(line(&mut output), "");
    }

    #[test]
    fn figures_of_this_process() {
        let me = std::process::id();
        assert!(resident_bytes(me).is_some_and(|bytes| bytes > 1 << 19));
        let before = cpu_time(me);
        until("it has had CPU time", || cpu_time(me) >= before && threads(me) > 0);
        until("it has had more", || cpu_time_of_all(me) > Some(Duration::ZERO));
        assert!(time_slices(me).is_some() && descriptors(me) > 2);
        assert_eq!(field_of_status(me, "Pid"), Some(me.to_string()));
        assert!(field_of_status(me, "Pi").is_none() && !cgroups_of(me).is_empty());
        let own = std::env::args().next().expect("the name of this program");
        assert!(processes_with(&own).iter().any(|(pid, _)| *pid == me));
        assert_eq!(field_of_stat(me, 4), Some(std::os::unix::process::parent_id().to_string()));
    }
}
