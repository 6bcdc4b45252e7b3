//! Starting the scheduler's program: whether it can be here, where it is, and that it has its scheduler loaded.

use super::socket::{self, Asked};
use super::status::Mode;
use crate::cli::sched_args::SchedLoad;
use anyhow::{Context as _, anyhow, bail};
use commensal_drivers::journal;
use commensal_host::{Child, Host, SpawnSpec, Stderr, Stdout};
use commensal_lab::scheduler::{self, Kernel, in_words};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The program that has the scheduler.
const PROGRAM: &str = "commensal-sched";
/// Names its path.
const NAMED: &str = "COMMENSAL_SCHED";
/// What it says, in the state directory.
pub const LOG: &str = "sched.log";
/// Length of a log after which another is begun, bytes.
const LONG: usize = 1 << 20;
/// What of it is told when something goes wrong, bytes.
const SAID: usize = 2_000;
/// Time until it answers: the verifier looks at its programs first, which takes a busy machine seconds.
const PATIENCE: Duration = Duration::from_secs(60);
const TURN: Duration = Duration::from_millis(50);

/// Refuses where no scheduler can be loaded, before anything is started.
pub fn check(kernel: &Kernel, replace: bool) -> anyhow::Result<()> {
    let mut wrong = kernel.obstacles();
    if kernel.busy() && !(replace && kernel.ours()) {
        let way = match (kernel.ours(), replace) {
            (true, _) => "take over from it with --replace, or `commensal sched unload` first",
            (false, false) => "end the program that loaded it first",
            (false, true) => {
                "--replace takes over from commensal's own only: end the program that loaded it first"
            }
        };
        wrong.push(format!("a sched_ext scheduler is there already ({}): {way}", kernel.loaded()));
    }
    if replace && kernel.state.is_some() && !kernel.busy() {
        wrong.push("there is no scheduler to --replace: leave that out".to_owned());
    }
    refuse(&wrong)
}

/// All obstacles in one error.
pub fn refuse(wrong: &[String]) -> anyhow::Result<()> {
    if wrong.is_empty() {
        return Ok(());
    }
    bail!("no scheduler was loaded, and nothing was changed:\n  {}", wrong.join("\n  "))
}

/// The program: the one that is named, beside this one, or in PATH.
pub fn find() -> anyhow::Result<PathBuf> {
    let named = std::env::var_os(NAMED).filter(|named| !named.is_empty());
    let own = std::env::current_exe().ok();
    let path = std::env::var_os("PATH").unwrap_or_default();
    find_in(named.as_deref(), own.as_deref(), &path)
}

fn find_in(named: Option<&OsStr>, own: Option<&Path>, path: &OsStr) -> anyhow::Result<PathBuf> {
    if let Some(named) = named.map(PathBuf::from) {
        if !named.is_file() {
            bail!("{NAMED} names {}, and there is no such file; nothing was loaded", named.display());
        }
        return Ok(named);
    }
    let beside = own.and_then(|own| Some(own.parent()?.join(PROGRAM)));
    let places = beside.into_iter().chain(std::env::split_paths(path).map(|folder| folder.join(PROGRAM)));
    match places.into_iter().find(|place| place.is_file()) {
        Some(found) => Ok(found),
        None => bail!(
            "there is no program {PROGRAM}, neither beside this one nor in PATH, and it has the scheduler: install it, build it \
             (`cargo build --release -p commensal-sched --features bpf`, which needs clang 18 or newer), or name it in {NAMED}; \
             nothing was loaded"
        ),
    }
}

/// What it is started with.
pub fn arguments(options: &SchedLoad) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["load".into()];
    let mut add = |name: &str, value: Option<OsString>| {
        if let Some(value) = value {
            arguments.extend([name.into(), value]);
        }
    };
    add("--orders", options.orders.as_ref().map(|file| file.clone().into_os_string()));
    add("--guard-ms", options.guard_ms.map(|ms| ms.to_string().into()));
    add("--watchdog-ms", options.watchdog_ms.map(|ms| ms.to_string().into()));
    if options.replace {
        arguments.push("--replace".into());
    }
    arguments
}

/// What was loaded.
#[derive(Debug)]
pub struct Loaded {
    /// Process that has it.
    pub pid: u32,
}

/// Starts the program and waits until its scheduler runs. When that fails, the program has ended, and what it may have changed
/// is put back.
pub fn load(
    host: &mut dyn Host,
    state: &Path,
    program: &Path,
    arguments: &[OsString],
) -> anyhow::Result<Loaded> {
    let log = Log::open(host, state.join(LOG))?;
    let before = socket::status(host, state).ok().map(|status| status.pid);
    let mut spec = SpawnSpec::new(program).arg("--state-dir").arg(state);
    spec.args.extend_from_slice(arguments);
    spec.own_session = true;
    spec.stdout = Stdout::Append(log.path.clone());
    spec.stderr = Stderr::Stdout;
    let mut child = host.spawn(&spec)?;
    match wait(host, state, &mut child, before) {
        Ok(pid) => Ok(Loaded { pid }),
        Err(error) => {
            let restored = commensal_drivers::restore_own(host, state, journal::SCHED)?;
            restored.left.iter().chain(&restored.failed).for_each(|line| eprintln!("commensal: {line}"));
            Err(error.context(format!("{} was not loaded{}", program.display(), log.said(host))))
        }
    }
}

/// Until it answers, and is another than `before`.
fn wait(host: &mut dyn Host, state: &Path, child: &mut Child, before: Option<u32>) -> anyhow::Result<u32> {
    let began = Instant::now();
    loop {
        if let Some(exit) = child.try_wait()? {
            bail!("its program ended {}", in_words(&exit));
        }
        let trouble = match socket::status(host, state) {
            Ok(now) if Some(now.pid) != before && now.mode != Mode::Starting => return Ok(now.pid),
            Ok(_) | Err(Asked::Nobody) => None,
            Err(Asked::Trouble(error)) => Some(error),
        };
        if began.elapsed() > PATIENCE {
            let process = child.process.clone();
            scheduler::end(host, &process, &mut |_| child.try_wait().is_ok_and(|exit| exit.is_some()))?;
            let late = format!("it had not answered after {} s, and was ended", PATIENCE.as_secs());
            return Err(match trouble {
                Some(error) => error.context(late),
                None => anyhow!(late),
            });
        }
        std::thread::sleep(TURN);
    }
}

/// A log, and how much of it was there before.
#[derive(Debug)]
pub struct Log {
    /// The file.
    pub path: PathBuf,
    before: usize,
}

impl Log {
    /// From here on; a long one is put aside.
    pub fn open(host: &mut dyn Host, path: PathBuf) -> anyhow::Result<Log> {
        let mut before = host.state_read(&path)?.map_or(0, |text| text.len());
        if before > LONG {
            host.state_rename(&path, &path.with_extension("log.1")).context("put the old log aside")?;
            before = 0;
        }
        Ok(Log { path, before })
    }

    /// What came since, as the end of a sentence.
    pub fn said(&self, host: &mut dyn Host) -> String {
        let text = host.state_read(&self.path).ok().flatten().unwrap_or_default();
        let new = text.get(self.before..).unwrap_or_default().trim();
        if new.is_empty() {
            return String::new();
        }
        let from = (new.len().saturating_sub(SAID)..=new.len()).find(|at| new.is_char_boundary(*at));
        let last = &new[from.unwrap_or(0)..];
        format!("; it said:\n  {}\n ", last.replace('\n', "\n  "))
    }
}
