//! Starts the scheduler's program: checks for obstacles, finds the program, and waits until its scheduler is loaded.

use super::ask::status_of;
use crate::cli::sched_args::SchedLoad;
use anyhow::{Context as _, anyhow, bail};
use commensal_core::errno::Errno;
use commensal_core::scheduler::Mode;
use commensal_host::{Child, Host, SpawnSpec, Stderr, Stdout};
use commensal_lab::scheduler::{self, in_words};
use commensal_reconcile::journal;
use commensal_sensors::sched_ext::Kernel;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Name of the program that contains the scheduler.
const PROGRAM: &str = "commensal-sched";
/// Environment variable with the path of the program.
const NAMED: &str = "COMMENSAL_SCHED";
/// File in the state directory to which the program's output is written.
pub const LOG: &str = "sched.log";
/// Size in bytes at which the log is rotated.
const LONG: usize = 1 << 20;
/// Maximum part of the log, in bytes, that an error message quotes.
const SAID: usize = 2_000;
/// Timeout for the program's first response: the verifier checks its BPF programs first, which takes seconds on a busy
/// machine.
const PATIENCE: Duration = Duration::from_secs(60);
const TURN: Duration = Duration::from_millis(50);

/// Returns the reasons why commensal's scheduler cannot be loaded on this machine: the kernel lacks something, or
/// another scheduler is loaded.
pub fn obstacles(host: &dyn Host, state: &Path, replace: bool) -> Vec<String> {
    let kernel = Kernel::read(host);
    let mut wrong = kernel.obstacles();
    let gone = match status_of(host, state) {
        Ok(now) if !kernel.busy() => Some(now.pid),
        _ => None,
    };
    if let Some(taken) = kernel.taken(replace) {
        wrong.push(taken);
    } else if let Some(pid) = gone {
        wrong.push(format!(
            "the process of commensal's own scheduler still runs (process {pid}), but the kernel has unloaded its \
             scheduler: run `commensal sched unload` first"
        ));
    } else if replace && kernel.state.is_some() && !kernel.busy() {
        wrong.push("there is no scheduler to --replace: omit the option".to_owned());
    }
    wrong
}

/// Returns one error with all obstacles; no error when there are none.
pub fn refuse(wrong: &[String]) -> anyhow::Result<()> {
    if wrong.is_empty() {
        return Ok(());
    }
    // An obstacle of several lines, such as mistakes in a groups file, is indented as a whole.
    let lines: Vec<String> = wrong.iter().map(|one| one.replace('\n', "\n    ")).collect();
    bail!("no scheduler was loaded, and nothing was changed:\n  {}", lines.join("\n  "))
}

/// Finds the program: by the environment variable, next to this program, or in PATH.
pub fn find() -> anyhow::Result<PathBuf> {
    let named = std::env::var_os(NAMED).filter(|named| !named.is_empty());
    let own = std::env::current_exe().ok();
    let path = std::env::var_os("PATH").unwrap_or_default();
    find_in(named.as_deref(), own.as_deref(), &path)
}

fn find_in(named: Option<&OsStr>, own: Option<&Path>, path: &OsStr) -> anyhow::Result<PathBuf> {
    if let Some(named) = named.map(PathBuf::from) {
        if !named.is_file() {
            bail!("{NAMED} names {}, which does not exist", named.display());
        }
        return Ok(named);
    }
    let beside = own.and_then(|own| Some(own.parent()?.join(PROGRAM)));
    let places = beside.into_iter().chain(std::env::split_paths(path).map(|folder| folder.join(PROGRAM)));
    match places.into_iter().find(|place| place.is_file()) {
        Some(found) => Ok(found),
        None => bail!(
            "the program {PROGRAM}, which contains the scheduler, is neither in the folder of this program nor in \
             PATH: install it, build it (`cargo build --release -p commensal-sched`, which needs the headers of libelf \
             and zlib), or give its path in {NAMED}"
        ),
    }
}

/// The command line arguments of the program.
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

/// Starts the program and waits until its scheduler is loaded. On failure, terminates the program and restores what it
/// changed.
pub fn load(
    host: &mut dyn Host,
    state: &Path,
    program: &Path,
    arguments: &[OsString],
) -> anyhow::Result<Child> {
    let log = Log::open(host, state.join(LOG))?;
    let before = status_of(host, state).ok().map(|status| status.pid);
    let mut spec = SpawnSpec::new(program).arg("--state-dir").arg(state);
    if !host.is_guarded() {
        spec = spec.arg("--insecure-permissions");
    }
    spec.args.extend_from_slice(arguments);
    spec.own_session = true;
    spec.stdout = Stdout::Append(log.path.clone());
    spec.stderr = Stderr::Stdout;
    let mut child = host.spawn(&spec)?;
    match wait(host, state, &mut child, before) {
        Ok(()) => Ok(child),
        Err(error) => {
            let nobody = status_of(host, state).is_err_and(|error| error.is_nobody());
            // If the previous scheduler still runs, the journal belongs to it.
            if nobody {
                let restored = commensal_reconcile::restore_own(host, state, journal::SCHED)?;
                restored.left.iter().chain(&restored.failed).for_each(|line| eprintln!("commensal: {line}"));
            }
            let lost = match (before.is_some(), nobody) {
                (true, true) => "\n  the scheduler that was loaded before is unloaded as well: load it again",
                (true, false) => "\n  the scheduler that was loaded before stays loaded",
                (false, _) => "",
            };
            bail!("{} was not loaded: {error:#}{}{lost}", program.display(), log.said(host))
        }
    }
}

/// Waits until the program responds with a PID other than `before`.
fn wait(host: &mut dyn Host, state: &Path, child: &mut Child, before: Option<u32>) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        if let Some(exit) = child.try_wait()? {
            bail!("its program ended {}", in_words(&exit));
        }
        let trouble = match status_of(host, state) {
            Ok(now) if Some(now.pid) != before && now.mode != Mode::Starting => return Ok(()),
            Err(error) if !error.is_nobody() => Some(anyhow!(error)),
            _ => None,
        };
        if began.elapsed() > PATIENCE {
            let process = child.process.clone();
            scheduler::end(host, &process, &mut |_| child.try_wait().is_ok_and(|exit| exit.is_some()))?;
            let late = format!("it had not responded after {} s and was terminated", PATIENCE.as_secs());
            return Err(match trouble {
                Some(error) => error.context(late),
                None => anyhow!(late),
            });
        }
        std::thread::sleep(TURN);
    }
}

/// A log file, and its length before the program was started.
#[derive(Debug)]
pub struct Log {
    /// Path of the log file.
    pub path: PathBuf,
    before: usize,
}

impl Log {
    /// Opens the log for reading from its current end; a long log is rotated.
    pub fn open(host: &mut dyn Host, path: PathBuf) -> anyhow::Result<Log> {
        let mut before = match host.state_read_within(&path, LONG as u64) {
            Err(error) if error.errno == Errno::EFBIG => LONG + 1,
            read => read?.map_or(0, |text| text.len()),
        };
        if before > LONG {
            host.state_rename(&path, &path.with_extension("log.1")).context("cannot rename the old log")?;
            before = 0;
        }
        Ok(Log { path, before })
    }

    /// Returns the output since [`Log::open`], as the end of a sentence; empty if there is no output.
    pub fn said(&self, host: &mut dyn Host) -> String {
        let text = host.state_read(&self.path).ok().flatten().unwrap_or_default();
        let new = text.get(self.before..).unwrap_or_default().trim();
        if new.is_empty() {
            return String::new();
        }
        let from = (new.len().saturating_sub(SAID)..=new.len()).find(|at| new.is_char_boundary(*at));
        let last = &new[from.unwrap_or(0)..];
        format!("; its output:\n  {}", last.replace('\n', "\n  "))
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests write a program themselves")]
mod tests {
    use super::super::record;
    use super::*;
    use commensal_host::LinuxHost;
    use commensal_host::fake::FakeHost;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    fn kernel(state: Option<&str>, ops: &str) -> FakeHost {
        let host = FakeHost::v2(2, 1 << 30);
        host.set_file("/sys/kernel/btf/vmlinux", "");
        if let Some(state) = state {
            host.set_file("/sys/kernel/sched_ext/state", state);
            host.set_file("/sys/kernel/sched_ext/root/ops", ops);
        }
        host
    }

    #[test]
    fn what_is_in_the_way_is_told_before_anything_starts() {
        let check = |host: FakeHost, replace: bool, part: &str| {
            let found = obstacles(&host, Path::new("/state"), replace);
            assert_eq!(found.len(), usize::from(!part.is_empty()), "{found:?}");
            assert!(found.iter().all(|one| one.contains(part)), "{found:?} lacks {part:?}");
        };
        check(kernel(Some("disabled"), ""), false, "");
        check(kernel(None, ""), false, "with CONFIG_SCHED_CLASS_EXT");
        check(kernel(None, ""), true, "with CONFIG_SCHED_CLASS_EXT");
        check(kernel(Some("enabled"), "commensal_7"), false, "--replace replaces it");
        check(kernel(Some("enabled"), "commensal_7"), true, "");
        check(kernel(Some("enabled"), "layered"), false, "layered is enabled): end the program");
        check(kernel(Some("enabled"), "layered"), true, "--replace replaces commensal's own only");
        check(kernel(Some("disabled"), ""), true, "no scheduler to --replace");
        // A scheduler that the kernel has ejected is reloaded by its program.
        for replace in [false, true] {
            let host = kernel(Some("disabled"), "");
            host.answer("/state/sched.sock", "", "{\"ok\":true,\"pid\":7,\"mode\":\"ejected\"}\n");
            check(
                host,
                replace,
                "(process 7), but the kernel has unloaded its scheduler: run `commensal sched unload` first",
            );
        }
    }

    #[test]
    fn what_is_said_in_several_lines_stays_together() {
        let error = refuse(&["one\nand more".to_owned(), "two".to_owned()]).unwrap_err().to_string();
        assert_eq!(error, "no scheduler was loaded, and nothing was changed:\n  one\n    and more\n  two");
    }

    #[test]
    fn the_program_is_named_or_beside_or_in_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("commensal");
        let far = folder.path().join("far");
        std::fs::create_dir(&far).unwrap();
        let find = |named: Option<&Path>| find_in(named.map(Path::as_os_str), Some(&own), far.as_os_str());
        let error = find(None).unwrap_err().to_string();
        assert!(error.contains("neither in the folder of this program nor in PATH"), "{error}");
        std::fs::write(far.join(PROGRAM), "").unwrap();
        assert_eq!(find(None).unwrap(), far.join(PROGRAM));
        std::fs::write(folder.path().join(PROGRAM), "").unwrap();
        assert_eq!(find(None).unwrap(), folder.path().join(PROGRAM));
        assert_eq!(find(Some(&far.join(PROGRAM))).unwrap(), far.join(PROGRAM));
        assert!(find(Some(Path::new("/nowhere"))).unwrap_err().to_string().contains("names /nowhere"));
    }

    /// A program with this script, its state directory, and the host.
    fn program(script: &str) -> (tempfile::TempDir, PathBuf, LinuxHost) {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join(PROGRAM);
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        (folder, program, LinuxHost::new())
    }

    #[test]
    fn one_that_dies_is_told_with_what_it_said() {
        let (folder, program, mut host) = program("echo \"no such verifier: $*\" >&2; exit 3");
        for _ in 0..2 {
            let error = load(&mut host, folder.path(), &program, &["load".into()]).unwrap_err();
            let told = format!("{error:#}");
            assert!(told.contains("ended with status 3"), "{told}");
            // The message must not contain the output of the previous start.
            assert_eq!(told.matches("no such verifier: --state-dir").count(), 1, "{told}");
        }
    }

    /// If a new scheduler fails to replace the running one, the changes that the running one made stay.
    #[test]
    fn the_record_of_one_that_goes_on_is_left_alone() {
        let (folder, program, mut host) = program("exit 3");
        let record = record::path(folder.path());
        let text = "what it has changed\n";
        std::fs::write(&record, text).unwrap();
        let listener = UnixListener::bind(folder.path().join("sched.sock")).unwrap();
        // This thread runs as long as the tests.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                BufReader::new(stream.try_clone().unwrap()).read_line(&mut String::new()).unwrap();
                writeln!(stream, r#"{{"ok":true,"pid":5,"mode":"running"}}"#).unwrap();
            }
        });
        let error = load(&mut host, folder.path(), &program, &["load".into()]).unwrap_err().to_string();
        assert!(error.contains("ended with status 3"), "{error}");
        assert_eq!(std::fs::read_to_string(&record).unwrap(), text);
        assert!(error.contains("the scheduler that was loaded before stays loaded"), "{error}");
    }

    #[test]
    fn it_is_waited_for_until_it_runs() {
        let (folder, program, mut host) = program("exec sleep 600");
        let listener = UnixListener::bind(folder.path().join("sched.sock")).unwrap();
        // First the old process responds, then the new one while it starts, then while it runs.
        let answers = [(5, "running"), (5, "running"), (6, "starting"), (6, "running")];
        let server = std::thread::spawn(move || {
            for (pid, mode) in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut line = String::new();
                BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
                assert_eq!(line, "{\"do\":\"status\"}\n");
                writeln!(stream, r#"{{"ok":true,"pid":{pid},"mode":"{mode}"}}"#).unwrap();
            }
        });
        let mut child = load(&mut host, folder.path(), &program, &["load".into()]).unwrap();
        server.join().unwrap();
        assert_eq!(child.try_wait().unwrap(), None);
        host.signal(&child.process, commensal_host::Signal::KILL).unwrap();
        child.wait().unwrap();
    }
}
