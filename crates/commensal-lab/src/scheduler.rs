//! sched_ext as the kernel tells of it, and a scheduler of somebody else's: starting its program, waiting until the kernel has
//! it, ending it.
//!
//! What such a scheduler does is its own business. Here is only that it is loaded while its program runs, and that nothing is
//! loaded any more when it has ended.

use commensal_core::errno::Errno;
use commensal_host::{Child, Exit, Host, HostError, Process, Signal, SpawnSpec};
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Where the kernel tells of it.
const FOLDER: &str = "/sys/kernel/sched_ext";
/// The first kernel whose functions are as schedulers of today call them.
const OLDEST: &str = "6.13";
/// Time for a program to have its scheduler loaded: the verifier alone takes seconds on a busy machine.
pub const TO_LOAD: Duration = Duration::from_secs(10);
/// Time for a program to end by itself, and for the kernel to let go of the scheduler.
pub const TO_END: Duration = Duration::from_secs(5);
const TURN: Duration = Duration::from_millis(20);

/// `/sys/kernel/sched_ext/state`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// No scheduler is loaded.
    Disabled,
    /// One comes.
    Enabling,
    /// One is loaded.
    Enabled,
    /// One goes.
    Disabling,
    /// A word of another kernel.
    Other(String),
}

impl State {
    fn parse(text: &str) -> State {
        match text.trim() {
            "disabled" => State::Disabled,
            "enabling" => State::Enabling,
            "enabled" => State::Enabled,
            "disabling" => State::Disabling,
            other => State::Other(other.to_owned()),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Disabled => "disabled",
            State::Enabling => "enabling",
            State::Enabled => "enabled",
            State::Disabling => "disabling",
            State::Other(word) => word,
        })
    }
}

/// What the kernel says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Whether this user may load anything.
    pub root: bool,
    /// `uname -r`.
    pub release: String,
    /// Whether the kernel describes itself.
    pub btf: bool,
    /// `None` where it has no sched_ext.
    pub state: Option<State>,
    /// Name of the scheduler that is loaded.
    pub ops: Option<String>,
    /// Threads that could not have it (`nr_rejected`).
    pub rejected: Option<u64>,
    /// Whether it has every thread, not only those that asked (`switch_all`).
    pub whole: Option<bool>,
    /// Schedulers since the boot (`enable_seq`).
    pub loads: Option<u64>,
}

impl Kernel {
    /// Reads it.
    #[must_use]
    pub fn read(host: &dyn Host) -> Kernel {
        let text = |path: &Path| host.read_file(path).ok().map(|text| text.trim().to_owned());
        let of = |name: &str| text(&Path::new(FOLDER).join(name));
        let number = |name: &str| of(name).and_then(|text| text.parse().ok());
        Kernel {
            root: host.euid() == 0,
            release: text(Path::new("/proc/sys/kernel/osrelease")).unwrap_or_default(),
            btf: host
                .list(Path::new("/sys/kernel/btf"))
                .is_ok_and(|names| names.iter().any(|name| name == "vmlinux")),
            state: of("state").map(|text| State::parse(&text)),
            ops: of("root/ops").filter(|name| !name.is_empty()),
            rejected: number("nr_rejected"),
            whole: number("switch_all").map(|number| number != 0),
            loads: number("enable_seq"),
        }
    }

    /// Whether the scheduler that is loaded is commensal's: the kernel shows the name with a version behind it.
    #[must_use]
    pub fn ours(&self) -> bool {
        self.ops.as_deref().is_some_and(|name| name == "commensal" || name.starts_with("commensal_"))
    }

    /// Whether anything is loaded, or comes or goes.
    #[must_use]
    pub fn busy(&self) -> bool {
        self.state.as_ref().is_some_and(|state| *state != State::Disabled)
    }

    /// What is loaded, in words.
    #[must_use]
    pub fn loaded(&self) -> String {
        let state = self.state.as_ref().map_or_else(|| "absent".to_owned(), ToString::to_string);
        format!("{} is {state}", self.ops.as_deref().unwrap_or("a scheduler without a name"))
    }

    /// What keeps every scheduler from being loaded here, whichever it is.
    #[must_use]
    pub fn obstacles(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let release = &self.release;
        if !self.root {
            wrong.push("it takes root to load a scheduler (this is another user)".to_owned());
        }
        if self.state.is_none() {
            wrong.push(format!(
                "kernel {release} has no sched_ext (no {FOLDER}): it takes Linux {OLDEST} or newer with CONFIG_SCHED_CLASS_EXT"
            ));
        } else if !self.btf {
            wrong.push(format!("kernel {release} has no /sys/kernel/btf/vmlinux (CONFIG_DEBUG_INFO_BTF)"));
        }
        wrong
    }

    /// The same, for one that goes nowhere beside another.
    #[must_use]
    pub fn obstacles_to_another(&self) -> Vec<String> {
        let mut wrong = self.obstacles();
        if self.busy() {
            let way = if self.ours() { "`commensal sched unload`" } else { "end the program that loaded it" };
            wrong.push(format!(
                "the kernel has one sched_ext scheduler at a time, and {}: first {way}",
                self.loaded()
            ));
        }
        wrong
    }
}

/// Why another scheduler is not in force.
#[derive(Debug, thiserror::Error)]
pub enum NoScheduler {
    /// The program does not start.
    #[error(transparent)]
    Start(#[from] HostError),
    /// It ended before the kernel had its scheduler.
    #[error("{program} ended {} before the kernel had a scheduler of it", in_words(.exit))]
    Ended {
        /// What was started.
        program: String,
        /// How it ended.
        exit: Exit,
    },
    /// It runs, and loads nothing.
    #[error(
        "{program} had no scheduler loaded after {} s (sched_ext is {state}), and was ended: is it one that loads a sched_ext \
         scheduler, and stays?",
        TO_LOAD.as_secs()
    )]
    Late {
        /// What was started.
        program: String,
        /// What the kernel says.
        state: String,
    },
    /// It ended, and left the kernel with a scheduler.
    #[error("{0}, although its program has ended: end what it started")]
    Stays(String),
}

/// How a program ended, as the end of a sentence.
#[must_use]
pub fn in_words(exit: &Exit) -> String {
    match exit {
        Exit::Code(code) => format!("with status {code}"),
        Exit::Signal(signal) => format!("by signal {signal}"),
    }
}

/// Starts the program and waits until the kernel has its scheduler. If that does not come, the program is ended.
///
/// # Errors
/// [`NoScheduler`]; then it does not run.
pub fn enable(host: &mut dyn Host, spec: &SpawnSpec) -> Result<Child, NoScheduler> {
    let mut child = host.spawn(spec)?;
    let program = spec.program.display().to_string();
    let began = Instant::now();
    loop {
        if let Some(exit) = child.try_wait()? {
            return Err(NoScheduler::Ended { program, exit });
        }
        let kernel = Kernel::read(host);
        if kernel.state == Some(State::Enabled) {
            return Ok(child);
        }
        if began.elapsed() > TO_LOAD {
            let state = kernel.state.as_ref().map_or_else(|| "absent".to_owned(), ToString::to_string);
            disable(host, &mut child)?;
            return Err(NoScheduler::Late { program, state });
        }
        std::thread::sleep(TURN);
    }
}

/// Ends the program of a scheduler, and verifies that the kernel has let go of it.
///
/// # Errors
/// When it cannot be ended, or a scheduler stays.
pub fn disable(host: &mut dyn Host, child: &mut Child) -> Result<(), NoScheduler> {
    let process = child.process.clone();
    end(host, &process, &mut |_| child.try_wait().is_ok_and(|exit| exit.is_some()))?;
    gone(host)
}

/// Ends a process, at first gently; `ended` says whether it has.
///
/// # Errors
/// `ETIMEDOUT` when it survives even the signal that nobody survives.
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

/// Waits until the kernel has no scheduler any more.
///
/// # Errors
/// When it keeps one.
pub fn gone(host: &dyn Host) -> Result<(), NoScheduler> {
    let began = Instant::now();
    loop {
        let kernel = Kernel::read(host);
        if !kernel.busy() {
            return Ok(());
        }
        if began.elapsed() > TO_END {
            return Err(NoScheduler::Stays(kernel.loaded()));
        }
        std::thread::sleep(TURN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_host::fake::FakeHost;

    const STATE: &str = "/sys/kernel/sched_ext/state";

    fn with(state: Option<&str>, ops: &str) -> FakeHost {
        let host = FakeHost::v2(2, 1 << 30);
        host.set_file("/sys/kernel/btf/vmlinux", "");
        if let Some(state) = state {
            host.set_file(STATE, state);
            host.set_file("/sys/kernel/sched_ext/root/ops", ops);
        }
        host
    }

    fn check(host: &FakeHost, expect: &[&str]) {
        let found = Kernel::read(host).obstacles_to_another();
        assert_eq!(found.len(), expect.len(), "{found:?}");
        for (obstacle, part) in found.iter().zip(expect) {
            assert!(obstacle.contains(part), "{obstacle:?} lacks {part:?}");
        }
    }

    #[test]
    fn each_obstacle_has_its_way_out() {
        check(&with(Some("disabled\n"), ""), &[]);
        check(&with(None, ""), &["with CONFIG_SCHED_CLASS_EXT"]);
        check(&with(Some("enabled\n"), "lavd_1.0\n"), &["lavd_1.0 is enabled: first end the program"]);
        check(&with(Some("enabled\n"), "commensal_0.1\n"), &["first `commensal sched unload`"]);
        check(&with(Some("enabled\n"), "commensalism\n"), &["first end the program"]);
        let host = with(Some("disabled\n"), "");
        host.remove_file("/sys/kernel/btf/vmlinux");
        check(&host, &["CONFIG_DEBUG_INFO_BTF"]);
        host.unprivileged(true);
        check(&host, &["it takes root", "CONFIG_DEBUG_INFO_BTF"]);
    }

    #[test]
    fn a_program_whose_scheduler_comes_is_kept_and_one_that_ends_is_told() {
        let mut host = with(Some("enabled\n"), "simple\n");
        let mut child = enable(&mut host, &SpawnSpec::new("scx_simple")).unwrap();
        let pid = child.process.pid;
        // The kernel keeps it although its program is gone.
        let error = disable(&mut host, &mut child).unwrap_err().to_string();
        assert!(error.contains("simple is enabled, although its program has ended"), "{error}");
        assert!(host.another().process(pid).is_err());
        let mut missing = with(Some("disabled\n"), "");
        missing.missing_program("scx_lost");
        let error = enable(&mut missing, &SpawnSpec::new("scx_lost")).unwrap_err().to_string();
        assert!(error.contains("start scx_lost: ENOENT"), "{error}");
    }

    #[test]
    fn what_ignores_a_request_is_killed() {
        let mut host = with(Some("disabled\n"), "");
        let mut child = host.spawn(&SpawnSpec::new("stubborn")).unwrap();
        host.ignores_sigterm(child.process.pid);
        let process = child.process.clone();
        end(&mut host, &process, &mut |_| child.try_wait().unwrap().is_some()).unwrap();
        assert_eq!(child.try_wait().unwrap(), Some(Exit::Signal(Signal::KILL.0)));
    }
}
