//! Runs one test below a supervisor of its own ([`super::supervise`]), in a temporary folder of its own, and collects its
//! output.

use super::supervise::{self, Report};
use crate::artifact::Artifact;
use crate::interrupt;
use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, PipeReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Poll interval while waiting for a test.
const POLL: Duration = Duration::from_millis(5);
/// Timeout for reading output after the test has exited: a process that the supervisor could not end may keep the pipe open
/// forever.
const REST: Duration = Duration::from_secs(1);
/// How many times the limit of CPU time a test may take by the clock: a test that waits forever uses no CPU time.
const WALL: u32 = 4;

/// A finished test.
#[derive(Debug)]
pub struct Done {
    /// Why the test failed; `None` if it passed.
    pub failure: Option<String>,
    /// Output of the test itself.
    pub output: Vec<String>,
    pub took: Duration,
    /// CPU time of the test and of everything that it started, in s.
    pub cpu_s: f64,
}

/// Runs one test of the program with this limit of CPU time.
pub fn run(
    program: &Artifact,
    name: &str,
    limit: Duration,
    variables: &[(&str, &str)],
) -> anyhow::Result<Done> {
    let begun = Instant::now();
    // The name is short because paths of sockets must fit in 108 bytes.
    let folder = tempfile::Builder::new().prefix("ct").tempdir().context("create a temporary folder")?;
    let (inside, report) = (folder.path().join("t"), folder.path().join("report"));
    std::fs::create_dir(&inside).context("create a temporary folder")?;
    // Tests start programs as other users.
    for dir in [folder.path(), &inside] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir, mode).context("open a temporary folder")?;
    }
    let (reader, writer) = std::io::pipe().context("create a pipe")?;
    let mut command = Command::new(supervise::this_program());
    command.arg("supervise").arg("--report").arg(&report).arg("--folder").arg(&inside);
    command.args(["--cpu-ms", &limit.as_millis().to_string()]);
    command.args(["--wall-ms", &(limit * WALL).as_millis().to_string()]);
    command.arg(&program.executable).arg(name).current_dir(&program.folder);
    command.envs(variables.iter().copied()).stdin(Stdio::null());
    command.stdout(writer.try_clone().context("duplicate a pipe")?).stderr(writer);
    let mut child = command.spawn().context("start a supervisor")?;
    // Dropping the command closes this process's write ends of the pipe.
    drop(command);
    let (lines, all) = collect(reader);
    let mut told = false;
    let status = loop {
        if let Some(status) = child.try_wait().context("wait for a supervisor")? {
            break status;
        }
        if interrupt::interrupted() && !told {
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
            told = true;
        }
        std::thread::sleep(POLL);
    };
    let took = begun.elapsed();
    let _ = all.recv_timeout(REST);
    let lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
    let output = lines.iter().filter_map(|line| of_the_test(name, line)).map(str::to_owned).collect();
    let text = std::fs::read_to_string(&report).ok().filter(|_| status.success());
    let report = text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_else(|| Report {
        failure: Some(format!("its supervisor ended with {status}")),
        cpu_s: 0.0,
    });
    Ok(Done { failure: report.failure, output, took, cpu_s: report.cpu_s })
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

/// Returns the line without the test harness's additions; `None` for lines of the harness itself.
fn of_the_test<'l>(name: &str, line: &'l str) -> Option<&'l str> {
    // On one CPU the harness prints the test's name before running it, and the test's first line follows on the same
    // line.
    let line = line.strip_prefix(&format!("test {name} ... ")).unwrap_or(line);
    let harness = ["running 1 test", "test result: ", "failures:", "successes:"];
    let verdict = ["", "ok", "FAILED"].contains(&line) || line.trim() == name;
    (!verdict && !harness.iter().any(|word| line.starts_with(word))).then_some(line)
}
