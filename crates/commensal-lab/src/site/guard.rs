//! The guard: a separate process that thaws frozen work if the run that froze the work is killed. A pipe connects the
//! two; the guard reads end of file from the pipe when the run exits.
//!
//! Without a guard, a user's batch job would stay frozen after the run was killed. On cgroup v1, even SIGKILL cannot
//! end a frozen process.

use super::error::TestbedError;
use commensal_host::{Child, Host, SMALL_STATE_FILE_MOST, SpawnSpec, Stderr, Stdin, Stdout};
use commensal_reconcile::restore_stale;
use commensal_sensors::machine;
use rustix::fd::OwnedFd;
use rustix::pipe::{PipeFlags, pipe_with};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The guard begins no further attempt to undo a killed run's changes after this time. What then remains, the next run
/// or `commensal restore` undoes.
const GIVES_UP: Duration = Duration::from_secs(30);
/// Pause after each attempt, because a killed run stays in the process table for a moment.
const PAUSE: Duration = Duration::from_millis(200);
/// Time for which a run waits for its guard to exit.
const LEAVES: Duration = Duration::from_millis(1_500);

/// A running guard, held by a run that freezes work.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    /// Write end of the pipe; the kernel closes it when the run exits.
    alive: OwnedFd,
}

impl Guard {
    /// Starts the guard as a process outside the run's terminal session.
    ///
    /// # Errors
    /// If the pipe or the process cannot be created.
    pub fn start(host: &mut dyn Host, program: &Path, state_dir: &Path) -> Result<Guard, TestbedError> {
        let (read, alive) = pipe_with(PipeFlags::CLOEXEC).map_err(|errno| {
            let why = std::io::Error::from(errno);
            TestbedError::new(format!(
                "the guard, which thaws frozen work if this run is killed, cannot be started: {why}"
            ))
        })?;
        let mut spec = SpawnSpec::new(program).arg("--state-dir").arg(state_dir.as_os_str());
        if !host.is_guarded() {
            spec = spec.arg("--insecure-permissions");
        }
        spec = spec.arg("workload").arg("thaw-guard");
        spec.stdin = Stdin::Fd(Arc::new(read));
        (spec.stdout, spec.stderr) = (Stdout::Null, Stderr::Null);
        (spec.own_session, spec.die_with_parent) = (true, false);
        Ok(Guard { child: host.spawn(&spec)?, alive })
    }

    /// Closes the pipe, so that the guard knows that the run has finished. Then waits up to 1.5 s until the guard has
    /// looked for changes to undo, and has exited.
    ///
    /// # Errors
    /// If waiting for the guard's process fails.
    pub fn end(self) -> Result<(), TestbedError> {
        let Guard { mut child, alive } = self;
        drop(alive);
        let deadline = Instant::now() + LEAVES;
        while child.try_wait()?.is_none() && Instant::now() < deadline {
            std::thread::sleep(PAUSE / 20);
        }
        Ok(())
    }
}

/// The file in which a guard that holds the lab's lock says so: its PID and start time.
fn record(state_dir: &Path) -> PathBuf {
    state_dir.join("lab-guard")
}

/// Returns the PID of the guard that has recorded itself and is still running.
pub(super) fn at_work(host: &mut dyn Host, state_dir: &Path) -> Option<u32> {
    let text = host.state_read_within(&record(state_dir), SMALL_STATE_FILE_MOST).ok()??;
    let (pid, start_ticks) = text.trim().split_once(' ')?;
    let guard = host.process(pid.parse().ok()?).ok()?;
    (guard.start_ticks.to_string() == start_ticks).then_some(guard.pid)
}

/// The main function of the guard's process: waits until the run has exited, then undoes the changes that killed runs
/// left behind. While another run holds the lock, the guard only retries, because a run itself undoes such changes when
/// it starts.
///
/// # Errors
/// If the state directory or a journal cannot be read.
pub fn keep_watch(host: &mut dyn Host, state_dir: &Path, alive: &mut dyn Read) -> Result<(), TestbedError> {
    // The run never writes to the pipe, so the read returns only when the run has closed its end.
    let _ = alive.read(&mut [0]);
    clean_up(host, state_dir, GIVES_UP)
}

fn clean_up(host: &mut dyn Host, state_dir: &Path, patience: Duration) -> Result<(), TestbedError> {
    let boot_id = machine::boot_id(host).unwrap_or_default();
    let own = host.process(std::process::id())?;
    let deadline = Instant::now() + patience;
    loop {
        if let Some(_lock) = host.state_lock(&state_dir.join("lab.lock"))? {
            // Without the record, a run that finds the lock taken believes that another run has it.
            let _ = host.state_replace(&record(state_dir), &format!("{} {}\n", own.pid, own.start_ticks));
            let restored = restore_stale(host, state_dir, &boot_id);
            let _ = host.state_remove(&record(state_dir));
            let restored = restored?;
            if restored.left.is_empty() && restored.failed.is_empty() {
                return Ok(());
            }
        }
        if Instant::now() >= deadline {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_host::fake::FakeHost;
    use commensal_reconcile::journal::{self, Created, Owner, Record, Target};

    const STATE: &str = "/state";

    /// A run that finds the lock taken believes in another run, unless a living guard has recorded itself.
    // promise 34
    #[test]
    fn the_lock_of_a_guard_has_its_own_words() {
        let fake = FakeHost::v1(2, 1 << 30);
        let mut host = fake.another();
        let pid = fake.add_process(&[]);
        let start_ticks = host.process(pid).unwrap().start_ticks;
        let lock = Path::new(STATE).join("lab.lock");
        host.state_dir(Path::new(STATE)).unwrap();
        for (text, is_guard) in [
            (Some(format!("{pid} {start_ticks}\n")), true),
            (Some(format!("{pid} {}\n", start_ticks + 1)), false),
            (Some(format!("{} {start_ticks}\n", u32::MAX - 1)), false),
            (Some(pid.to_string()), false),
            (Some("x y".to_owned()), false),
            (Some(String::new()), false),
            (None, false),
        ] {
            host.state_remove(&record(Path::new(STATE))).unwrap();
            if let Some(text) = &text {
                host.state_replace(&record(Path::new(STATE)), text).unwrap();
            }
            let said = TestbedError::busy(&mut host, &lock).to_string();
            let of_guard = format!("the guard of an earlier lab run is still cleaning up (process {pid} ");
            assert_eq!(said.starts_with(&of_guard), is_guard, "{text:?}: {said}");
            assert_eq!(said.starts_with("another lab run"), !is_guard, "{text:?}: {said}");
        }
    }

    /// What the guard cannot remove does not keep it: it gives the lock back, and its record goes.
    // promise 34
    #[test]
    fn the_guard_gives_up() {
        let fake = FakeHost::v1(2, 1 << 30);
        let mut host = fake.another();
        let root = host.open(Path::new("/sys/fs/cgroup/cpu")).unwrap();
        let dir = host.mkdir(root, "unmarked").unwrap();
        let owner = Owner { pid: u32::MAX - 1, ..Owner::this_process(&mut host, "lab").unwrap() };
        let (mount, path) = ("/sys/fs/cgroup/cpu".to_owned(), "/unmarked".to_owned());
        let created = Record::Created(Created(Target { mount, path, inode: dir.inode }));
        let text: String = [&Record::Owner(owner), &created].into_iter().map(journal::line).collect();
        host.state_dir(Path::new(STATE)).unwrap();
        let journal = Path::new(STATE).join("lab-7.journal");
        host.state_replace(&journal, &text).unwrap();
        clean_up(&mut host, Path::new(STATE), Duration::ZERO).unwrap();
        assert!(host.state_read(&journal).unwrap().is_some(), "the next run tries again");
        assert!(host.state_lock(&Path::new(STATE).join("lab.lock")).unwrap().is_some());
        assert_eq!(host.state_read(&record(Path::new(STATE))).unwrap(), None);
    }
}
