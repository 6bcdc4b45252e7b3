//! Runs one test as its supervisor process: `xtask supervise`. The supervisor adopts every process that the test starts
//! and leaves, whatever group or session it moves to, so that it can end all of them. What a test leaves behind is that
//! test's failure, and the machine is as it was when the next test starts:
//!
//! ```text
//! processes   descendants of the test that are still there a while after it has ended
//! cgroups     whose name has the test's number (commensal-test-PID-…), frozen ones too
//! mounts      below the test's temporary folder
//! ```
//!
//! The limit counts the CPU time of the test and its descendants: a busy machine makes a test slower, not more
//! expensive. A limit of wall-clock time ends tests that hang.

use crate::interrupt;
use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, kill_process_group};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Poll intervals while waiting for a test: during [`AT_FIRST`], and after that. Most tests take milliseconds.
const POLL: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(20));
const AT_FIRST: Duration = Duration::from_millis(200);
/// Interval between two readings of the CPU time.
const CPU_EVERY: Duration = Duration::from_secs(1);
/// How long descendants may take to end by themselves after the test has ended. A killed shell's `sleep` of the idle class
/// gets few turns on a busy machine.
const GRACE: Duration = Duration::from_secs(10);
/// How long killed processes may take to go before the supervisor gives up.
const GONE: Duration = Duration::from_secs(30);
/// How deep below a hierarchy's root cgroups are looked for.
const DEPTH: usize = 6;

/// Options of the supervisor.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// File for the report.
    #[arg(long)]
    report: PathBuf,
    /// Temporary folder of the test.
    #[arg(long)]
    folder: PathBuf,
    /// Limit of the CPU time, in ms.
    #[arg(long)]
    cpu_ms: u64,
    /// Limit of the wall-clock time, in ms.
    #[arg(long)]
    wall_ms: u64,
    /// The test program.
    program: PathBuf,
    /// Name of the test.
    name: String,
}

/// How a test ended.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Why the test failed; `None` if it passed.
    pub failure: Option<String>,
    /// CPU time of the test and of everything that it started, in s.
    pub cpu_s: f64,
}

/// The path of this program, by which other programs can start it too. Building the tests of xtask replaces the file that it
/// was started from.
pub fn this_program() -> PathBuf {
    PathBuf::from(format!("/proc/{}/exe", std::process::id()))
}

/// Runs the test, cleans up after it, and writes the report.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    interrupt::watch()?;
    // The shell waits until no cgroup of an earlier run has the number that the test gets.
    let mut command = Command::new("sh");
    command.args(["-c", "read -r _ && exec \"$0\" \"$@\" </dev/null"]).arg(&args.program);
    command.args([&args.name, "--exact", "--nocapture"]).process_group(0).env("TMPDIR", &args.folder);
    let mut child = command.stdin(Stdio::piped()).spawn().context("sh")?;
    let pid = Pid::from_child(&child);
    for group in cgroups_left(pid)? {
        println!("an earlier run left {group}");
    }
    let mut gate = child.stdin.take().context("no pipe to the shell")?;
    gate.write_all(b"\n").context("the shell that starts the test has ended")?;
    drop(gate);
    let mut failure = wait(pid, args)?;
    let left = [processes_left()?, cgroups_left(pid)?, mounts_left(&args.folder)].concat();
    if !left.is_empty() {
        let left = format!("it left behind: {}", left.join(", "));
        failure = Some(failure.map_or_else(|| left.clone(), |first| format!("{first}; {left}")));
    }
    let report = Report { failure, cpu_s: seconds(reaped_ticks()) };
    std::fs::write(&args.report, serde_json::to_string(&report)?).context("write the report")?;
    Ok(ExitCode::SUCCESS)
}

/// Waits until the test ends, and kills it at a limit. Returns why it failed.
fn wait(pid: Pid, args: &Args) -> anyhow::Result<Option<String>> {
    let begun = Instant::now();
    let mut looked = begun;
    let (cpu, wall) = (Duration::from_millis(args.cpu_ms), Duration::from_millis(args.wall_ms));
    loop {
        if let Some(status) = reap(pid) {
            return Ok((!status.success()).then(|| format!("it ended with {status}")));
        }
        let why = if interrupt::interrupted() {
            Some("it was interrupted".to_owned())
        } else if begun.elapsed() >= wall {
            Some(format!("it did not end within {} s", wall.as_secs_f64()))
        } else if looked.elapsed() >= CPU_EVERY {
            looked = Instant::now();
            let used = used_by_all();
            (used > cpu.as_secs_f64())
                .then(|| format!("it used {used:.1} s of CPU time, more than {}", cpu.as_secs_f64()))
        } else {
            None
        };
        if let Some(why) = why {
            let doing = activity(pid);
            let _ = kill_process_group(pid, Signal::KILL);
            kill_all()?;
            return Ok(Some(format!("{why} ({doing})")));
        }
        std::thread::sleep(if begun.elapsed() < AT_FIRST { POLL.0 } else { POLL.1 });
    }
}

/// Reaps every child that has ended, and returns the status of this one if it is among them.
fn reap(pid: Pid) -> Option<ExitStatus> {
    let mut found = None;
    while let Ok(Some((child, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        if child == pid {
            found = Some(exit_status(status));
        }
    }
    found
}

fn exit_status(status: WaitStatus) -> ExitStatus {
    ExitStatus::from_raw(status.as_raw())
}

/// Kills the processes that the test left behind, and describes them. Processes that end by themselves are none.
fn processes_left() -> anyhow::Result<Vec<String>> {
    let begun = Instant::now();
    let none = Pid::INIT;
    while begun.elapsed() < GRACE && !interrupt::interrupted() {
        let _ = reap(none);
        if descendants().is_empty() {
            return Ok(Vec::new());
        }
        std::thread::sleep(POLL.1);
    }
    let left = descendants().iter().map(|pid| format!("process {pid} ({})", command_line(*pid))).collect();
    kill_all()?;
    Ok(left)
}

/// Kills all descendants until there is none.
fn kill_all() -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let _ = reap(Pid::INIT);
        let all = descendants();
        if all.is_empty() {
            return Ok(());
        }
        for pid in all.iter().filter_map(|pid| Pid::from_raw(*pid)) {
            // A process in a frozen cgroup dies when that thaws.
            thaw(pid.as_raw_nonzero().get());
            let _ = kill_process(pid, Signal::KILL);
        }
        if begun.elapsed() > GONE {
            bail!("processes do not end: {all:?}");
        }
        std::thread::sleep(POLL.1);
    }
}

/// Thaws the cgroups of a process with those above them: any of them can be the frozen one.
fn thaw(pid: i32) {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    for path in text.lines().filter_map(|line| line.splitn(3, ':').nth(2)) {
        for mount in hierarchies() {
            let group = mount.join(path.trim_start_matches('/'));
            group.ancestors().take_while(|group| **group != mount).for_each(thaw_group);
        }
    }
}

fn thaw_group(group: &Path) {
    let _ = std::fs::write(group.join("freezer.state"), "THAWED");
    let _ = std::fs::write(group.join("cgroup.freeze"), "0");
}

/// Removes the cgroups of the test with this PID, and describes them.
fn cgroups_left(pid: Pid) -> anyhow::Result<Vec<String>> {
    let number = pid.as_raw_nonzero();
    let names = [format!("commensal-test-{number}"), format!("commensal-probe-{number}")];
    let mut found = Vec::new();
    for mount in hierarchies() {
        named(&mount, &names, DEPTH, &mut found);
    }
    for group in &found {
        remove(group)?;
    }
    Ok(found.iter().map(|group| format!("cgroup {}", group.display())).collect())
}

fn named(folder: &Path, names: &[String], depth: usize, found: &mut Vec<PathBuf>) {
    for child in subfolders(folder) {
        let name = child.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let ours = names.iter().any(|ours| {
            let rest = name.split_once(ours.as_str()).map(|(_, rest)| rest);
            rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()))
        });
        if ours {
            found.push(child);
        } else if depth > 0 {
            named(&child, names, depth - 1, found);
        }
    }
}

/// Kills all processes in a cgroup and below it, and removes it.
fn remove(group: &Path) -> anyhow::Result<()> {
    let begun = Instant::now();
    while group.exists() {
        thaw_group(group);
        for child in subfolders(group) {
            remove(&child)?;
        }
        let members = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        for pid in members.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = reap(Pid::INIT);
        let _ = std::fs::remove_dir(group);
        if begun.elapsed() > GONE {
            bail!("{} cannot be removed", group.display());
        }
        std::thread::sleep(POLL.0);
    }
    Ok(())
}

/// Mount points of all cgroup hierarchies.
fn hierarchies() -> Vec<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let cgroups = text.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let (_, point, kind) = (fields.next()?, fields.next()?, fields.next()?);
        kind.starts_with("cgroup").then(|| PathBuf::from(point))
    });
    // A hierarchy can be mounted more than once; each group is then found at one of its places and gone at the others.
    cgroups.collect::<BTreeSet<_>>().into_iter().collect()
}

fn subfolders(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// Unmounts what is mounted below the folder, and describes it.
fn mounts_left(folder: &Path) -> Vec<String> {
    let text = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = text.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
    let points: Vec<PathBuf> = points.filter(|point| point.starts_with(folder)).collect();
    for point in points.iter().rev() {
        let _ = Command::new("umount").arg("--lazy").arg(point).status();
    }
    points.iter().map(|point| format!("mount {}", point.display())).collect()
}

/// The parent and the CPU time (own and of reaped children, in clock ticks) of every process.
fn processes() -> BTreeMap<i32, (i32, u64)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| Some((pid, stat(pid)?))).collect()
}

fn stat(pid: i32) -> Option<(i32, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some((fields.get(1)?.parse().ok()?, ticks(11)? + ticks(12)? + ticks(13)? + ticks(14)?))
}

/// PIDs of all descendants of this process, children first.
fn descendants() -> Vec<i32> {
    let all = processes();
    let mut found = vec![std::process::id() as i32];
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        found.extend(all.iter().filter(|(_, (of, _))| *of == parent).map(|(pid, _)| *pid));
        at += 1;
    }
    found.split_off(1)
}

/// CPU time of the descendants, those that have ended included, in s.
fn used_by_all() -> f64 {
    let all = processes();
    let alive: u64 = descendants().iter().filter_map(|pid| all.get(pid)).map(|(_, ticks)| ticks).sum();
    seconds(alive + reaped_ticks())
}

/// CPU time of the descendants that this process has reaped, in clock ticks.
fn reaped_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    ticks(13) + ticks(14)
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

fn command_line(pid: i32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> = bytes.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let line = words.join(" ");
    line.trim().chars().take(120).collect()
}

/// Returns what the threads of a process wait for, such as `2 R, 998 do_sys_poll`. The letters are those of
/// proc_pid_stat(5), the functions those of `/proc/PID/wchan`.
fn activity(pid: Pid) -> String {
    let mut threads: BTreeMap<String, usize> = BTreeMap::new();
    let folder = format!("/proc/{}/task", pid.as_raw_nonzero());
    for thread in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let text = |file: &str| std::fs::read_to_string(thread.path().join(file)).unwrap_or_default();
        let (function, stat) = (text("wchan"), text("stat"));
        let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next());
        let known = (!["", "0"].contains(&function.as_str())).then_some(function);
        if let Some(place) = known.or_else(|| state.map(str::to_owned)) {
            *threads.entry(place).or_default() += 1;
        }
    }
    let threads: Vec<String> = threads.iter().map(|(place, count)| format!("{count} {place}")).collect();
    threads.join(", ")
}
