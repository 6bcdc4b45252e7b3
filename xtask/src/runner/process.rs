//! Runs one test as a process: starts it in a separate process group, collects its output, and terminates the group at
//! the time limit.

use crate::artifact::Artifact;
use crate::interrupt;
use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, PipeReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Poll intervals while waiting for a test: during [`AT_FIRST`], and after that. Most tests take milliseconds.
const POLL: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(20));
const AT_FIRST: Duration = Duration::from_millis(200);
/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// Timeout for reading output after the test has exited: a process that the test left behind may keep the pipe open
/// forever.
const REST: Duration = Duration::from_secs(1);

/// A finished test.
#[derive(Debug)]
pub struct Done {
    /// Why the test failed; `None` if it passed.
    pub failure: Option<String>,
    /// Output of the test itself.
    pub output: Vec<String>,
    pub took: Duration,
}

/// Runs one test of the program.
pub fn run(
    program: &Artifact,
    name: &str,
    limit: Duration,
    variables: &[(&str, &str)],
) -> anyhow::Result<Done> {
    let begun = Instant::now();
    let (reader, writer) = std::io::pipe().context("cannot create a pipe")?;
    let mut command = Command::new(&program.executable);
    command.args([name, "--exact", "--nocapture"]).current_dir(&program.folder);
    command.envs(variables.iter().copied()).stdin(Stdio::null()).process_group(0);
    command.stdout(writer.try_clone().context("cannot duplicate a pipe")?).stderr(writer);
    let mut child = command.spawn().with_context(|| program.executable.display().to_string())?;
    // Dropping the command closes this process's write ends of the pipe.
    drop(command);
    let (lines, all) = collect(reader);
    let failure = match wait(&mut child, begun, limit)? {
        End::Exited(status) if status.success() => None,
        End::Exited(status) => Some(format!("it ended with {status}")),
        End::Killed(_) if interrupt::interrupted() => Some("it was interrupted".to_owned()),
        End::Killed(doing) => Some(format!("it did not end within {} s ({doing})", limit.as_secs())),
    };
    let took = begun.elapsed();
    let _ = all.recv_timeout(REST);
    let lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
    let output = lines.iter().filter_map(|line| of_the_test(name, line)).map(str::to_owned).collect();
    Ok(Done { failure, output, took })
}

/// Reads lines to the end of the pipe on a separate thread. The channel reports the end.
fn collect(reader: PipeReader) -> (Arc<Mutex<Vec<String>>>, Receiver<()>) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let (whole, all) = mpsc::channel();
    let taken = Arc::clone(&lines);
    std::thread::spawn(move || {
        for line in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            taken.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
        let _ = whole.send(());
    });
    (lines, all)
}

/// How the process of a test ended.
enum End {
    /// By itself.
    Exited(ExitStatus),
    /// Killed at the time limit or after an interrupt; the text says what it was doing ([`activity`]).
    Killed(String),
}

/// Returns the CPU time of a process and what its threads wait for, such as `12.3 s of CPU time; 2 R, 998
/// do_sys_poll`. The letters are those of proc_pid_stat(5), the functions those of `/proc/PID/wchan`.
fn activity(pid: u32) -> String {
    let fields = |path: &Path| -> Option<(String, u64)> {
        let stat = std::fs::read_to_string(path.join("stat")).ok()?;
        let after_name: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |at: usize| after_name.get(at)?.parse::<u64>().ok();
        Some((after_name.first()?.to_string(), ticks(11)? + ticks(12)?))
    };
    let process = PathBuf::from(format!("/proc/{pid}"));
    let seconds = fields(&process)
        .map_or(0.0, |(_, ticks)| ticks as f64 / rustix::param::clock_ticks_per_second() as f64);
    let mut threads: BTreeMap<String, usize> = BTreeMap::new();
    for thread in std::fs::read_dir(process.join("task")).into_iter().flatten().flatten() {
        let function = std::fs::read_to_string(thread.path().join("wchan")).unwrap_or_default();
        let known = (!["", "0"].contains(&function.as_str())).then_some(function);
        if let Some(place) = known.or_else(|| Some(fields(&thread.path())?.0)) {
            *threads.entry(place).or_default() += 1;
        }
    }
    let threads: Vec<String> = threads.iter().map(|(place, count)| format!("{count} {place}")).collect();
    format!("{seconds:.1} s of CPU time; {}", threads.join(", "))
}

/// Waits until the process exits, and kills it at the time limit or after an interrupt.
fn wait(child: &mut Child, begun: Instant, limit: Duration) -> anyhow::Result<End> {
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for a test")? {
            return Ok(End::Exited(status));
        }
        let since = begun.elapsed();
        if since >= limit || interrupt::interrupted() {
            break;
        }
        std::thread::sleep(if since < AT_FIRST { POLL.0 } else { POLL.1 });
    }
    let doing = activity(child.id());
    let group =
        i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("the process ID is out of range")?;
    // Processes that the test started may have exited already.
    let _ = kill_process_group(group, Signal::TERM);
    let told = Instant::now();
    while child.try_wait().context("cannot wait for a test")?.is_none() && told.elapsed() < GRACE {
        std::thread::sleep(POLL.1);
    }
    let _ = kill_process_group(group, Signal::KILL);
    child.wait().context("cannot wait for a test")?;
    Ok(End::Killed(doing))
}

/// Returns the line without the test harness's additions; `None` for lines of the harness itself.
fn of_the_test<'l>(name: &str, line: &'l str) -> Option<&'l str> {
    // On one CPU the harness prints the test's name before running it, and the test's first line follows on the same
    // line.
    let line = line.strip_prefix(&format!("test {name} ... ")).unwrap_or(line);
    let harness = ["running 1 test", "test result: ", "failures:", "successes:"];
    let verdict = ["", "ok", "FAILED"].contains(&line) || line.trim() == name;
    (!verdict && !harness.iter().any(|word| line.starts_with(word))).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A program that accepts the harness's arguments.
    fn program(folder: &tempfile::TempDir, script: &str) -> Artifact {
        let executable = folder.path().join("it");
        std::fs::write(&executable, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&executable, std::fs::Permissions::from_mode(0o755)).unwrap();
        Artifact {
            package: "p".to_owned(),
            folder: folder.path().to_owned(),
            kind: "test".to_owned(),
            name: "it".to_owned(),
            is_test: true,
            executable,
        }
    }

    fn done(script: &str, limit: Duration) -> Done {
        let folder = tempfile::tempdir().unwrap();
        run(&program(&folder, script), "a::b", limit, &[("VARIABLE", "value")]).unwrap()
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn output_and_status_of_a_test() {
        let all = "echo 'running 1 test'; echo \"test $1 ... $VARIABLE\"; echo oh >&2; echo ok; echo 'test result: ok. \
                   1 passed'";
        let passed = done(all, LONG);
        assert_eq!((passed.failure, passed.output), (None, vec!["value".to_owned(), "oh".to_owned()]));
        assert_eq!(done("exit 101", LONG).failure.unwrap(), "it ended with exit status: 101");
        assert!(done("kill -9 $$", LONG).failure.unwrap().contains("signal: 9"));
    }

    #[test]
    fn a_test_that_hangs_ends_with_all_that_it_started() {
        let hangs = done("sleep 1000 & echo $!; wait", Duration::from_millis(300));
        let failure = hangs.failure.unwrap();
        assert!(
            failure.contains("did not end within") && failure.contains("0.0 s of CPU time; 1 "),
            "{failure}"
        );
        let proc = format!("/proc/{}/stat", hangs.output[0]);
        // Only the init process reaps orphans, which may take a while.
        let gone = || std::fs::read_to_string(&proc).map_or(true, |stat| stat.contains(") Z "));
        let begun = Instant::now();
        while !gone() {
            assert!(begun.elapsed() < LONG, "{proc}");
            std::thread::sleep(POLL.1);
        }
    }

    #[test]
    fn a_process_that_is_left_behind_is_not_waited_for() {
        let left = done("sleep 1000 & echo $!", LONG);
        assert_eq!((left.failure, left.output.len()), (None, 1));
        let pid = Pid::from_raw(left.output[0].parse().unwrap()).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
    }
}
