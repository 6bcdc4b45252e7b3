//! Third-party sched_ext schedulers, each of which is loaded by a program of its own. This module starts the program,
//! waits until the kernel has loaded the scheduler, and later stops the program.
//!
//! The module does not check how the scheduler behaves. It only ensures that the scheduler is loaded while its program
//! runs, and that no scheduler is loaded after the program has exited.

use crate::error::LabError;
use commensal_core::errno::Errno;
use commensal_host::{Child, Exit, Host, HostError, Process, Signal, SpawnSpec};
use commensal_sensors::sched_ext::{Kernel, State};
use std::time::{Duration, Instant};

/// Timeout for loading a scheduler. The BPF verifier alone needs seconds on a busy machine.
pub const TO_LOAD: Duration = Duration::from_secs(10);
/// Timeout for the program to exit after a signal, and for the kernel to unload the scheduler.
pub const TO_END: Duration = Duration::from_secs(5);
const TURN: Duration = Duration::from_millis(20);

/// Formats an exit status to be appended to a sentence, such as `with status 1`.
#[must_use]
pub fn in_words(exit: &Exit) -> String {
    match exit {
        Exit::Code(code) => format!("with status {code}"),
        Exit::Signal(signal) => format!("by signal {signal}"),
    }
}

/// Starts the program and waits until its scheduler is loaded. On a timeout, or when `stop` returns true, stops the
/// program and returns an error.
///
/// # Errors
/// Returns an error if the scheduler is not loaded; the program is then stopped.
pub fn enable(host: &mut dyn Host, spec: &SpawnSpec, stop: &dyn Fn() -> bool) -> Result<Child, LabError> {
    let mut child = host.spawn(spec)?;
    let program = spec.program.display().to_string();
    let began = Instant::now();
    loop {
        if let Some(exit) = child.try_wait()? {
            return Err(LabError::new(format!(
                "{program} exited {} before it had loaded a scheduler",
                in_words(&exit)
            )));
        }
        let kernel = Kernel::read(host);
        if kernel.state == Some(State::Enabled) {
            return Ok(child);
        }
        if stop() {
            disable(host, &mut child)?;
            return Err(LabError::new(format!(
                "{program} was stopped on request before it had loaded a scheduler"
            )));
        }
        if began.elapsed() > TO_LOAD {
            let state = kernel.state.as_ref().map_or_else(|| "absent".to_owned(), ToString::to_string);
            disable(host, &mut child)?;
            return Err(LabError::new(format!(
                "{program} had loaded no scheduler after {} s (sched_ext is {state}) and was stopped; the program must load a \
                 sched_ext scheduler and keep running",
                TO_LOAD.as_secs()
            )));
        }
        std::thread::sleep(TURN);
    }
}

/// Stops a scheduler's program, and verifies that the kernel has unloaded the scheduler.
///
/// # Errors
/// Returns an error if the program cannot be stopped, or if a scheduler is still loaded.
pub fn disable(host: &mut dyn Host, child: &mut Child) -> Result<(), LabError> {
    let process = child.process.clone();
    end(host, &process, &mut |_| child.try_wait().is_ok_and(|exit| exit.is_some()))?;
    gone(host)
}

/// Stops a process with SIGTERM, then with SIGKILL; `ended` reports whether the process has exited.
///
/// # Errors
/// `ETIMEDOUT` if the process survives SIGKILL; the error of the signal if it cannot be sent.
pub fn end(
    host: &mut dyn Host,
    process: &Process,
    ended: &mut dyn FnMut(&mut dyn Host) -> bool,
) -> Result<(), HostError> {
    for signal in [Signal::TERM, Signal::KILL] {
        match host.signal(process, signal) {
            Err(error) if error.errno != Errno::ESRCH => return Err(error),
            _ => {}
        }
        let began = Instant::now();
        while began.elapsed() < TO_END {
            if ended(host) {
                return Ok(());
            }
            std::thread::sleep(TURN);
        }
    }
    let object = format!("process {}", process.pid);
    Err(HostError { operation: "end", object, value: None, errno: Errno::ETIMEDOUT })
}

/// Waits until the kernel has no scheduler loaded.
///
/// # Errors
/// Returns an error if a scheduler is still loaded after the timeout.
pub fn gone(host: &dyn Host) -> Result<(), LabError> {
    let began = Instant::now();
    loop {
        let kernel = Kernel::read(host);
        if !kernel.busy() {
            return Ok(());
        }
        if began.elapsed() > TO_END {
            return Err(LabError::new(format!(
                "{}, although its program has exited: stop the processes that it started",
                kernel.loaded()
            )));
        }
        std::thread::sleep(TURN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_host::fake::FakeHost;

    fn with(state: &str, ops: &str) -> FakeHost {
        let host = FakeHost::v2(2, 1 << 30);
        host.set_file("/sys/kernel/sched_ext/state", state);
        host.set_file("/sys/kernel/sched_ext/root/ops", ops);
        host
    }

    #[test]
    fn a_program_whose_scheduler_comes_is_kept_and_one_that_ends_is_told() {
        let mut host = with("enabled\n", "simple\n");
        let mut child = enable(&mut host, &SpawnSpec::new("scx_simple"), &|| false).unwrap();
        let pid = child.process.pid;
        // The scheduler stays loaded although its program has exited.
        let error = disable(&mut host, &mut child).unwrap_err().to_string();
        assert!(error.contains("simple is enabled, although its program has exited"), "{error}");
        assert!(host.another().process(pid).is_err());
        let mut missing = with("disabled\n", "");
        missing.missing_program("scx_lost");
        let error = enable(&mut missing, &SpawnSpec::new("scx_lost"), &|| false).unwrap_err().to_string();
        assert!(error.contains("start scx_lost: ENOENT"), "{error}");
    }

    #[test]
    fn one_that_nobody_waits_for_any_more_is_ended() {
        let mut host = with("disabled\n", "");
        let error = enable(&mut host, &SpawnSpec::new("scx_slow"), &|| true).unwrap_err().to_string();
        assert_eq!(error, "scx_slow was stopped on request before it had loaded a scheduler");
        let started = host.processes().pop().unwrap();
        assert!(host.process(started.pid).is_err());
    }

    #[test]
    fn what_ignores_a_request_is_killed() {
        let mut host = with("disabled\n", "");
        let mut child = host.spawn(&SpawnSpec::new("stubborn")).unwrap();
        host.ignores_sigterm(child.process.pid);
        let process = child.process.clone();
        end(&mut host, &process, &mut |_| child.try_wait().unwrap().is_some()).unwrap();
        assert_eq!(child.try_wait().unwrap(), Some(Exit::Signal(Signal::KILL.0)));
    }
}
