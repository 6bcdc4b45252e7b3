//! Any other sched_ext scheduler: loaded by its own program, watched by a process of ours that stays with it, ended with it.
//!
//! ```text
//! load --with ──► watch (own session) ──► the program, which dies with its watcher
//!     waits          │ sched-with.json: what, since when, why it is over
//!     for it ◄───────┘
//! ```

use super::start::{Log, refuse};
use super::status_of;
use crate::context::Context;
use crate::signals;
use anyhow::{Context as _, bail};
use commensal_core::process::Stat;
use commensal_host::{Host, Process, SpawnSpec, Stderr, Stdout};
use commensal_lab::scheduler::{self, disable, enable, in_words};
use commensal_sensors::machine;
use commensal_sensors::sched_ext::{Kernel, State};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

/// What is known of it, in the state directory.
const FILE: &str = "sched-with.json";
/// What its program says.
const LOG: &str = "sched-with.log";
const TURN: Duration = Duration::from_millis(100);
/// A program that ends takes its scheduler off first.
const GOING: Duration = Duration::from_secs(1);
/// Longer than the watcher needs for everything that may go wrong.
const PATIENCE: Duration = Duration::from_secs(40);

/// A process, so that it cannot be mistaken for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Who {
    pid: u32,
    start_ticks: u64,
}

impl Who {
    /// It, if it still runs.
    fn process(self, host: &mut dyn Host) -> Option<Process> {
        let process =
            host.process(self.pid).ok().filter(|process| process.start_ticks == self.start_ticks)?;
        // One that nobody has waited for has ended all the same.
        let stat = host.read_file(Path::new(&format!("/proc/{}/stat", self.pid))).unwrap_or_default();
        let ended = Stat::parse(&stat).is_some_and(|stat| stat.has_ended());
        (!ended).then_some(process)
    }
}

/// How far it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
enum Phase {
    /// The kernel does not have it yet.
    Starting,
    /// The kernel has it.
    Enabled,
    /// The kernel has taken it off, and its program goes on.
    TakenOff {
        /// RFC 3339.
        at: String,
    },
    /// Its program has ended, or never had one loaded.
    Ended {
        /// RFC 3339.
        at: String,
        /// Why.
        reason: String,
    },
}

/// What is known of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Other {
    program: String,
    args: Vec<String>,
    boot_id: String,
    watcher: Who,
    /// Its process, once there is one.
    process: Option<Who>,
    /// Its name in the kernel.
    ops: Option<String>,
    /// RFC 3339.
    since: String,
    #[serde(flatten)]
    phase: Phase,
}

impl Other {
    /// Whether its program is there.
    pub fn lives(&self) -> bool {
        matches!(self.phase, Phase::Enabled | Phase::TakenOff { .. } | Phase::Starting)
    }

    /// For people.
    pub fn text(&self) -> String {
        let command = self.command();
        let pid = self.process.map(|who| format!(", process {}", who.pid)).unwrap_or_default();
        let ops = self.ops.as_deref().unwrap_or("without a name");
        match &self.phase {
            Phase::Starting => format!("scheduler   {command}{pid}: not loaded yet\n"),
            Phase::Enabled => format!("scheduler   {ops} of {command}{pid}, since {}\n", self.since),
            Phase::TakenOff { at } => format!(
                "scheduler   {ops} of {command}{pid}, since {}: the kernel has taken it off at {at}, and its program goes on\n",
                self.since
            ),
            Phase::Ended { at, reason } => {
                format!("scheduler   none; {command}, since {}, is over since {at}: {reason}\n", self.since)
            }
        }
    }

    /// What was started.
    pub fn command(&self) -> String {
        let words = std::iter::once(&self.program).chain(&self.args);
        words.map(String::as_str).collect::<Vec<_>>().join(" ")
    }

    fn end(&mut self, reason: String) {
        self.phase = Phase::Ended { at: now(), reason };
    }

    fn keep(&self, host: &mut dyn Host, state: &Path) -> anyhow::Result<()> {
        Ok(host.state_replace(&state.join(FILE), &serde_json::to_string_pretty(self)?)?)
    }
}

fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

/// What is known of one that was loaded since this boot; one whose processes are gone is over, whatever the file says.
pub fn look(host: &mut dyn Host, state: &Path) -> anyhow::Result<Option<Other>> {
    let path = state.join(FILE);
    let Some(text) = host.state_read(&path)? else { return Ok(None) };
    let mut other: Other = serde_json::from_str(&text).with_context(|| {
        format!("{} is damaged; remove it when no scheduler of others runs", path.display())
    })?;
    if machine::boot_id(host).unwrap_or_default() != other.boot_id {
        return Ok(None);
    }
    let there = |who: Who, host: &mut dyn Host| who.process(host).is_some();
    if other.lives() && !there(other.watcher, host) && !other.process.is_some_and(|who| there(who, host)) {
        other.end("its watcher was killed, and it ended with it".to_owned());
    }
    Ok(Some(other))
}

/// Why nothing else can be loaded from this state directory: one of others is there, whatever the kernel has at the moment.
pub fn there(host: &mut dyn Host, state: &Path) -> Option<String> {
    match look(host, state) {
        Ok(other) => other.filter(Other::lives).map(|other| {
            format!(
                "`{}`, loaded by --with, is there already: first `commensal sched unload`",
                other.command()
            )
        }),
        Err(error) => Some(format!("{error:#}")),
    }
}

/// What keeps one of others from being loaded. Commensal's own comes back by itself after the kernel has taken it off, so it
/// counts as long as its process is there.
fn not_beside(host: &mut dyn Host, state: &Path) -> Vec<String> {
    let kernel = Kernel::read(host);
    let own = status_of(host, state).ok().filter(|_| !kernel.busy());
    let own = own.map(|own| {
        format!(
            "commensal's own scheduler is there already (process {}): first `commensal sched unload`",
            own.pid
        )
    });
    match there(host, state).or(own) {
        Some(one) => kernel.obstacles().into_iter().chain([one]).collect(),
        None => kernel.obstacles_to_another(),
    }
}

/// Starts a watcher and waits until the kernel has the scheduler.
pub fn load(context: &mut Context, command: &[OsString]) -> anyhow::Result<u8> {
    let state = context.state_dir.clone();
    refuse(&not_beside(&mut context.host, &state))?;
    context.host.state_dir(&context.state_dir)?;
    let _lock = context.lock()?;
    // Somebody may have been quicker.
    refuse(&not_beside(&mut context.host, &state))?;
    context.host.state_remove(&state.join(FILE))?;
    let log = Log::open(&mut context.host, state.join(LOG))?;
    let own = std::env::current_exe().context("the path of this program is not known")?;
    let mut spec = SpawnSpec::new(own).arg("--state-dir").arg(&state).arg("sched").arg("watch").arg("--");
    spec.args.extend_from_slice(command);
    spec.own_session = true;
    spec.stdout = Stdout::Append(log.path.clone());
    spec.stderr = Stderr::Stdout;
    let mut watcher = context.host.spawn(&spec)?;
    let began = Instant::now();
    loop {
        // Before the file is read: what the watcher wrote last is in it then.
        let exit = watcher.try_wait()?;
        match look(&mut context.host, &state)? {
            Some(Other { phase: Phase::Ended { reason, .. }, .. }) => {
                bail!("no scheduler was loaded: {reason}{}", log.said(&mut context.host))
            }
            Some(other) if other.phase != Phase::Starting => {
                print!("{}", other.text());
                println!("log         {}", log.path.display());
                return Ok(0);
            }
            _ => {}
        }
        if let Some(exit) = exit {
            bail!(
                "no scheduler was loaded: its watcher ended {}{}",
                in_words(&exit),
                log.said(&mut context.host)
            );
        }
        if began.elapsed() > PATIENCE {
            bail!("no scheduler was loaded within {} s{}", PATIENCE.as_secs(), log.said(&mut context.host));
        }
        std::thread::sleep(TURN);
    }
}

/// Stays with the program: starts it, and keeps what becomes of it.
pub fn watch(context: &mut Context, command: &[OsString]) -> anyhow::Result<u8> {
    let stop = signals::stop_flag(&context.host).context("watch for signals")?;
    let (state, host) = (context.state_dir.clone(), &mut context.host);
    let words: Vec<String> = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let own = host.process(std::process::id())?;
    let (program, args) = words.split_first().context("no program")?;
    let mut other = Other {
        program: program.clone(),
        args: args.to_vec(),
        boot_id: machine::boot_id(host).unwrap_or_default(),
        watcher: Who { pid: own.pid, start_ticks: own.start_ticks },
        process: None,
        ops: None,
        since: now(),
        phase: Phase::Starting,
    };
    other.keep(host, &state)?;
    let mut spec = SpawnSpec::new(&command[0]);
    spec.args = command[1..].to_vec();
    spec.die_with_parent = true;
    let mut child = match enable(host, &spec) {
        Ok(child) => child,
        Err(error) => {
            other.end(error.to_string());
            other.keep(host, &state)?;
            return Ok(2);
        }
    };
    other.process = Some(Who { pid: child.process.pid, start_ticks: child.process.start_ticks });
    other.ops = Kernel::read(host).ops;
    other.phase = Phase::Enabled;
    other.keep(host, &state)?;
    eprintln!("commensal: {} is loaded", other.ops.as_deref().unwrap_or("a scheduler without a name"));
    let mut off: Option<Instant> = None;
    let reason = loop {
        if let Some(exit) = child.try_wait()? {
            break format!("its program ended {}", in_words(&exit));
        }
        if stop.load(Ordering::Relaxed) {
            disable(host, &mut child)?;
            break "its watcher was asked to end".to_owned();
        }
        match Kernel::read(host).state {
            Some(State::Enabled) => off = None,
            _ if off.get_or_insert_with(Instant::now).elapsed() < GOING => {}
            _ if other.phase == Phase::Enabled => {
                eprintln!("commensal: the kernel has taken the scheduler off, and its program goes on");
                other.phase = Phase::TakenOff { at: now() };
                other.keep(host, &state)?;
            }
            _ => {}
        }
        std::thread::sleep(TURN);
    };
    let stays = scheduler::gone(host).err().map(|error| format!("; {error}")).unwrap_or_default();
    eprintln!("commensal: {reason}{stays}");
    other.end(format!("{reason}{stays}"));
    other.keep(host, &state)?;
    Ok(0)
}

/// Ends it and verifies that the kernel has no scheduler any more. False when there is none that runs.
pub fn unload(host: &mut dyn Host, state: &Path) -> anyhow::Result<bool> {
    let Some(other) = look(host, state)? else { return Ok(false) };
    if let Phase::Ended { reason, .. } = &other.phase {
        println!("{} was over already: {reason}", other.command());
        host.state_remove(&state.join(FILE))?;
        return Ok(false);
    }
    for who in other.process.into_iter().chain([other.watcher]) {
        if let Some(process) = who.process(host) {
            // A watcher whose program has ended ends by itself; the signal tells it nothing new.
            scheduler::end(host, &process, &mut |host| who.process(host).is_none())
                .with_context(|| format!("{} was not unloaded", other.command()))?;
        }
    }
    scheduler::gone(host).with_context(|| format!("{} was ended", other.command()))?;
    host.state_remove(&state.join(FILE))?;
    println!("unloaded {}", other.command());
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_host::fake::FakeHost;

    const STATE: &str = "/var/lib/commensal";

    /// A machine on which a watcher and its program run, and what is known of them.
    fn world() -> (FakeHost, u32, u32) {
        let mut host = FakeHost::v2(2, 1 << 30);
        host.state_dir(Path::new(STATE)).unwrap();
        let mut start = |name: &str| host.spawn(&SpawnSpec::new(name)).unwrap().process;
        let (watcher, process) = (start("commensal"), start("scx_simple"));
        let who = |process: &Process| Who { pid: process.pid, start_ticks: process.start_ticks };
        let other = Other {
            program: "scx_simple".to_owned(),
            args: vec!["-f".to_owned()],
            boot_id: machine::boot_id(&host).unwrap_or_default(),
            watcher: who(&watcher),
            process: Some(who(&process)),
            ops: Some("simple".to_owned()),
            since: now(),
            phase: Phase::Enabled,
        };
        other.keep(&mut host, Path::new(STATE)).unwrap();
        (host, watcher.pid, process.pid)
    }

    fn known(host: &mut FakeHost) -> Option<Other> {
        look(host, Path::new(STATE)).unwrap()
    }

    #[test]
    fn it_is_ended_once() {
        let (mut host, _, process) = world();
        host.ignores_sigterm(process);
        let other = known(&mut host).unwrap();
        assert!(other.text().contains("simple of scx_simple -f"));
        assert!(unload(&mut host, Path::new(STATE)).unwrap());
        let mut runs = |who: Who| who.process(&mut host).is_some();
        assert!(!runs(other.watcher) && !runs(other.process.unwrap()));
        assert_eq!(known(&mut host), None);
        assert!(!unload(&mut host, Path::new(STATE)).unwrap());
    }

    /// Commensal's own and one of others exclude each other, also while the kernel has neither.
    #[test]
    fn one_is_not_loaded_beside_the_other() {
        let sched_ext = |host: &FakeHost, state: &str, ops: &str| {
            host.set_file("/sys/kernel/btf/vmlinux", "");
            host.set_file("/sys/kernel/sched_ext/state", state);
            host.set_file("/sys/kernel/sched_ext/root/ops", ops);
        };
        let state = Path::new(STATE);
        let check = |host: &mut FakeHost, found: fn(&mut FakeHost) -> Vec<String>, part: &str| {
            let found = found(host);
            assert!(found.len() == 1 && found[0].contains(part), "{found:?} lacks {part:?}");
            assert!(found[0].ends_with("first `commensal sched unload`"), "{found:?}");
        };
        let own: fn(&mut FakeHost) -> Vec<String> =
            |host| super::super::start::obstacles(host, Path::new(STATE), false);
        let replacing: fn(&mut FakeHost) -> Vec<String> =
            |host| super::super::start::obstacles(host, Path::new(STATE), true);
        let of_others: fn(&mut FakeHost) -> Vec<String> = |host| not_beside(host, Path::new(STATE));
        // Enabled, taken off by the kernel, and one whose name is as that of commensal's own.
        for (word, ops) in [("enabled", "simple"), ("disabled", ""), ("enabled", "commensal_0.1")] {
            let (mut host, ..) = world();
            sched_ext(&host, word, ops);
            for found in [own, replacing, of_others] {
                check(&mut host, found, "`scx_simple -f`, loaded by --with, is there already");
            }
        }
        let mut host = FakeHost::v2(2, 1 << 30);
        let running = "{\"ok\":true,\"pid\":7,\"mode\":\"running\"}\n";
        host.serve(state.join("sched.sock"), |_| Some(running.to_owned()));
        sched_ext(&host, "enabled", "commensal_0.1");
        check(&mut host, of_others, "commensal_0.1 is enabled");
        sched_ext(&host, "disabled", "");
        check(&mut host, of_others, "commensal's own scheduler is there already (process 7)");
        host.hang_up(state.join("sched.sock"));
        assert!(own(&mut host).is_empty() && of_others(&mut host).is_empty());
    }

    #[test]
    fn others_of_the_same_number_are_left_alone() {
        let (mut host, watcher, process) = world();
        for pid in [watcher, process] {
            host.end(pid, commensal_host::Exit::Code(0));
            host.reuse_pid(pid, &[]);
        }
        let other = known(&mut host).unwrap();
        assert!(!other.lives() && other.text().contains("its watcher was killed"), "{other:?}");
        assert!(!unload(&mut host, Path::new(STATE)).unwrap());
        assert!(host.process(watcher).is_ok() && host.process(process).is_ok());
        assert_eq!(known(&mut host), None);
    }

    #[test]
    fn what_was_before_the_boot_is_forgotten_and_a_damaged_file_is_told() {
        let (mut host, ..) = world();
        host.set_file("/proc/sys/kernel/random/boot_id", "another\n");
        assert_eq!(known(&mut host), None);
        host.state_replace(Path::new("/var/lib/commensal/sched-with.json"), "{").unwrap();
        let error = look(&mut host, Path::new(STATE)).unwrap_err().to_string();
        assert!(error.contains("sched-with.json is damaged"), "{error}");
    }

    #[test]
    fn what_is_known_comes_back_from_the_file() {
        let (mut host, ..) = world();
        let mut other = known(&mut host).unwrap();
        for phase in [Phase::Starting, Phase::TakenOff { at: now() }, Phase::Enabled] {
            other.phase = phase;
            other.keep(&mut host, Path::new(STATE)).unwrap();
            assert_eq!(known(&mut host).as_ref(), Some(&other));
            assert!(other.lives());
        }
        other.end("its program ended with status 1".to_owned());
        other.keep(&mut host, Path::new(STATE)).unwrap();
        assert!(known(&mut host).unwrap().text().contains("is over since"));
    }
}
