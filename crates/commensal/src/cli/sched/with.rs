//! Third-party sched_ext schedulers in the foreground. A scheduler is loaded by its own program, which is a child of
//! this process and dies with it.

use super::ask::status_of;
use super::start::refuse;
use crate::context::Context;
use crate::signals;
use anyhow::Context as _;
use commensal_host::{Child, Host, SpawnSpec};
use commensal_lab::scheduler::{self, enable, in_words};
use commensal_sensors::sched_ext::{Kernel, State};
use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Poll interval of the kernel's state.
const TURN: Duration = Duration::from_millis(100);
/// Delay before an unloaded scheduler is reported. A program that exits unloads its scheduler first, and only the exit
/// is then reported.
const GOING: Duration = Duration::from_secs(1);

/// Returns the reasons why a third-party scheduler cannot be loaded. If the kernel has ejected commensal's own
/// scheduler, its process loads it again, so it counts as loaded as long as the process exists.
fn not_beside(host: &dyn Host, state: &Path) -> Vec<String> {
    let kernel = Kernel::read(host);
    match status_of(host, state) {
        Ok(own) if !kernel.busy() => {
            let there = format!(
                "commensal's own scheduler is already loaded (process {}): run `commensal sched unload` first",
                own.pid
            );
            kernel.obstacles().into_iter().chain([there]).collect()
        }
        _ => kernel.obstacles_to_another(),
    }
}

/// Loads the scheduler and waits. Status 0 when the scheduler stayed loaded until a signal asked this program to stop,
/// 1 when it was unloaded before that. An error means that nothing was loaded.
pub fn run(context: &mut Context, command: &[OsString]) -> anyhow::Result<u8> {
    let state = context.state_dir.clone();
    refuse(&not_beside(&context.host, &state))?;
    let flag = signals::stop_flag(&context.host).context("cannot watch for signals")?;
    let stop = || flag.load(Ordering::Relaxed);
    // If there is no state directory, none is created for the lock.
    let lock = if state.is_dir() { context.lock_to_look()? } else { None };
    // Another process may have loaded a scheduler meanwhile.
    refuse(&not_beside(&context.host, &state))?;
    let (program, args) = command.split_first().context("no program")?;
    let mut spec = SpawnSpec::new(program);
    spec.args = args.to_vec();
    spec.die_with_parent = true;
    let mut child = enable(&mut context.host, &spec, &stop).context("no scheduler was loaded")?;
    drop(lock);
    let ops = Kernel::read(&context.host).ops;
    println!(
        "loaded   {} of {}, process {}; Ctrl-C here, or SIGTERM to process {}, unloads it",
        ops.as_deref().unwrap_or("a scheduler without a name"),
        program.display(),
        child.process.pid,
        std::process::id()
    );
    stay(&mut context.host, &mut child, ops.as_deref(), &stop)
}

/// Waits until the scheduler's program exits or `stop` returns true. Prints the reason, and checks that the kernel has
/// unloaded the scheduler.
fn stay(
    host: &mut dyn Host,
    child: &mut Child,
    ops: Option<&str>,
    stop: &dyn Fn() -> bool,
) -> anyhow::Result<u8> {
    // `off`: since when the kernel has had no scheduler. `told`: whether this was reported.
    let (mut off, mut told) = (None::<Instant>, false);
    let why = loop {
        if let Some(exit) = child.try_wait()? {
            break format!("its program ended {}", in_words(&exit));
        }
        if stop() {
            let process = child.process.clone();
            scheduler::end(host, &process, &mut |_| child.try_wait().is_ok_and(|exit| exit.is_some()))?;
            break "its program was terminated".to_owned();
        }
        let kernel = Kernel::read(host);
        if kernel.state == Some(State::Enabled) && kernel.ops.as_deref() == ops {
            if told {
                eprintln!("commensal: the scheduler is loaded again");
            }
            (off, told) = (None, false);
        } else if !told && off.get_or_insert_with(Instant::now).elapsed() > GOING {
            eprintln!("commensal: the kernel has ejected the scheduler, and its program is still running");
            told = true;
        }
        std::thread::sleep(TURN);
    };
    if let Err(error) = scheduler::gone(host) {
        eprintln!("commensal: {why}; {error}");
        return Ok(1);
    }
    // Ctrl-C in a terminal also reaches the program, which may exit first.
    if stop() && !told {
        println!("unloaded {}", ops.unwrap_or("the scheduler"));
        return Ok(0);
    }
    eprintln!("commensal: no scheduler is loaded any more: {why}");
    Ok(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_host::Exit;
    use commensal_host::fake::FakeHost;
    use std::cell::Cell;

    const KERNEL: &str = "/sys/kernel/sched_ext/state";

    fn kernel(state: &str, ops: &str) -> FakeHost {
        let host = FakeHost::v2(2, 1 << 30);
        host.set_file("/sys/kernel/btf/vmlinux", "");
        host.set_file(KERNEL, state);
        host.set_file("/sys/kernel/sched_ext/root/ops", ops);
        host
    }

    /// Waits with a loaded scheduler. `looks` is called before each poll with the host, the program's PID and the
    /// number of the poll, and returns whether to stop.
    fn stays(looks: impl Fn(&FakeHost, u32, u32) -> bool) -> u8 {
        let mut host = kernel("enabled", "simple");
        let mut child = host.spawn(&SpawnSpec::new("scx_simple")).unwrap();
        let (other, pid, count) = (host.another(), child.process.pid, Cell::new(0));
        let stop = || {
            count.set(count.get() + 1);
            looks(&other, pid, count.get())
        };
        let status = stay(&mut host, &mut child, Some("simple"), &stop).unwrap();
        assert!(child.try_wait().unwrap().is_some() && host.process(pid).is_err(), "it stays");
        status
    }

    #[test]
    fn the_exit_status_says_how_it_ended() {
        let off = |host: &FakeHost| host.set_file(KERNEL, "disabled");
        let asked = stays(|host, _, look| {
            if look > 2 {
                off(host);
            }
            look > 2
        });
        let ended = stays(|host, pid, _| {
            off(host);
            host.end(pid, Exit::Code(3));
            false
        });
        // The kernel unloaded the scheduler long before the stop: the polls are a turn apart.
        let long = u32::try_from(2 * GOING.as_millis() / TURN.as_millis()).unwrap();
        let taken_off = stays(|host, _, look| {
            off(host);
            look > long
        });
        // The scheduler is unloaded only for a moment, while it is reloaded.
        let again = stays(|host, _, look| {
            host.set_file(KERNEL, if look % 2 == 0 { "enabled" } else { "disabled" });
            look > 10
        });
        assert_eq!((asked, ended, taken_off, again), (0, 1, 1, 0));
        // A scheduler that stays loaded after its program has exited.
        assert_eq!(stays(|_, _, look| look > 1), 1);
    }

    /// Commensal's own scheduler and a third-party one exclude each other, even while the kernel has loaded neither.
    #[test]
    fn one_is_not_loaded_beside_the_other() {
        let state = Path::new("/var/lib/commensal");
        let check = |host: &FakeHost, part: &str| {
            let found = not_beside(host, state);
            assert_eq!(found.len(), usize::from(!part.is_empty()), "{found:?}");
            assert!(found.iter().all(|one| one.contains(part)), "{found:?} lacks {part:?}");
        };
        check(&kernel("disabled", ""), "");
        check(&kernel("enabled", "simple"), "simple is enabled: end the program that loaded it first");
        let host = kernel("enabled", "commensal_0.1");
        let running = "{\"ok\":true,\"pid\":7,\"mode\":\"running\"}\n";
        host.serve(state.join("sched.sock"), |_| Some(running.to_owned()));
        check(&host, "commensal_0.1 is enabled: run `commensal sched unload` first");
        host.set_file(KERNEL, "disabled");
        check(
            &host,
            "commensal's own scheduler is already loaded (process 7): run `commensal sched unload` first",
        );
        host.hang_up(state.join("sched.sock"));
        check(&host, "");
    }
}
