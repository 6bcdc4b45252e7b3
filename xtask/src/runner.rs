//! Runs tests, each in a separate process with a limit of CPU time, as `.config/nextest.toml` says. This replaces
//! `cargo nextest run` on a machine that has only cargo (`docs/decisions/0050`).

pub mod config;
pub mod ledger;
mod process;
pub mod supervise;

use crate::artifact::Artifact;
use crate::interrupt;
use crate::tally::Tally;
use crate::tree::root;
use anyhow::{Context, bail};
use config::{Config, Terms};
use ledger::Ledger;
use process::Done;
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Interval of progress messages.
const PROGRESS: Duration = Duration::from_secs(30);
/// Poll interval for signals.
const POLL: Duration = Duration::from_millis(100);
/// Number of slowest tests named at the end.
const LONGEST: usize = 10;

/// The package that has tests of every tier.
const WITH_ALL_TIERS: &str = "commensal";

/// One test.
#[derive(Debug)]
struct Test<'p> {
    program: &'p Artifact,
    name: String,
    terms: Terms,
}

impl Test<'_> {
    /// Display name, which includes the package because module names repeat.
    fn title(&self) -> String {
        format!("{} {}", self.program.package, self.name)
    }
}

/// Runs the tests of these programs that are in `profile` and whose names contain one of `filters` (all tests if there
/// are no filters), with additional environment variables.
pub fn run(
    programs: &[Artifact],
    profile: &str,
    filters: &[String],
    variables: &[(&str, &str)],
) -> anyhow::Result<Tally> {
    let config = Config::read(&root(), profile)?;
    let mut tally = Tally::default();
    let (mut waiting, mut found) = (Vec::new(), Vec::new());
    for program in programs {
        for name in names(program)? {
            if !filters.is_empty() && !filters.iter().any(|filter| name.contains(filter)) {
                continue;
            }
            found.push(name.clone());
            if config.runs(&name) {
                let terms = config.terms(&name);
                waiting.push(Test { program, name, terms });
            } else {
                tally.elsewhere += 1;
            }
        }
    }
    // A pattern that matches no test is a mistake, unless no package is here whose tests it could match.
    if filters.is_empty() && programs.iter().any(|program| program.package == WITH_ALL_TIERS) {
        let found: Vec<&str> = found.iter().map(String::as_str).collect();
        let unused = config.unused(&found);
        if !unused.is_empty() {
            bail!("no test is called {} ({})", unused.join(" or "), config::FILE);
        }
    }
    interrupt::watch()?;
    Schedule { config, all: waiting.len(), waiting, running: Vec::new(), begun: Instant::now() }
        .run(variables, &mut tally)?;
    Ok(tally)
}

/// Runs one test of a program once, without a record.
///
/// # Errors
/// If it cannot be started.
pub fn once(program: &Artifact, name: &str) -> anyhow::Result<Option<String>> {
    let terms = Config::read(&root(), config::DEFAULT)?.terms(name);
    Ok(process::run(program, name, terms.limit, &[])?.failure)
}

/// Lists the tests of a program.
pub fn names(program: &Artifact) -> anyhow::Result<Vec<String>> {
    let mut command = Command::new(&program.executable);
    let output = command.args(["--list", "--format", "terse"]).current_dir(&program.folder).output();
    let output = output.with_context(|| format!("list the tests of {}", program.executable.display()))?;
    if !output.status.success() {
        bail!("{} does not list its tests: {}", program.executable.display(), output.status);
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

struct Schedule<'p> {
    config: Config,
    all: usize,
    waiting: Vec<Test<'p>>,
    /// Title and number of threads of each running test.
    running: Vec<(String, usize)>,
    begun: Instant,
}

impl<'p> Schedule<'p> {
    fn run(mut self, variables: &[(&str, &str)], tally: &mut Tally) -> anyhow::Result<()> {
        let (send, receive) = mpsc::channel();
        let mut told = Instant::now();
        let mut times = BTreeMap::new();
        let mut ledger = Ledger::open()?;
        std::thread::scope(|scope| {
            loop {
                while let Some(test) = self.next().filter(|_| !interrupt::interrupted()) {
                    self.running.push((test.title(), test.terms.threads));
                    let send = send.clone();
                    scope.spawn(move || {
                        let stolen = ledger::stolen();
                        let done = process::run(test.program, &test.name, test.terms.limit, variables);
                        let _ = send.send((test, done, ledger::stolen() - stolen));
                    });
                }
                if self.running.is_empty() {
                    break;
                }
                match receive.recv_timeout(POLL) {
                    Ok((test, done, stolen)) => {
                        let title = test.title();
                        self.running.retain(|(other, _)| *other != title);
                        let done = done.with_context(|| format!("run {title}"))?;
                        times.insert((done.took, title.clone()), ());
                        ledger.add(&title, &done, stolen)?;
                        self.told(&title, &done, tally);
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                if told.elapsed() >= PROGRESS {
                    told = Instant::now();
                    self.progress();
                }
            }
            if interrupt::interrupted() {
                bail!("interrupted");
            }
            Ok(())
        })?;
        if self.all > LONGEST {
            println!("{} tests in {} s; the longest:", self.all, self.begun.elapsed().as_secs());
            for (took, title) in times.keys().rev().take(LONGEST) {
                println!("{:7.1} s  {title}", took.as_secs_f64());
            }
        }
        Ok(())
    }

    /// Returns the next waiting test if it may start now.
    fn next(&mut self) -> Option<Test<'p>> {
        // Smaller tests do not overtake a test that needs more threads: otherwise that test might never start.
        let taken: usize = self.running.iter().map(|(_, threads)| threads).sum();
        let fits = taken + self.waiting.first()?.terms.threads <= self.config.threads;
        fits.then(|| self.waiting.remove(0))
    }

    fn progress(&self) {
        let done = self.all - self.waiting.len() - self.running.len();
        let names: Vec<&str> = self.running.iter().map(|(title, _)| title.as_str()).collect();
        println!("{:4} s  {done} of {}; now {}", self.begun.elapsed().as_secs(), self.all, names.join(", "));
    }

    /// Counts the result of the test, and prints its output if it failed.
    fn told(&self, title: &str, done: &Done, tally: &mut Tally) {
        tally.test(title, done.failure.is_none(), &done.output);
        let Some(failure) = &done.failure else { return };
        println!("\n---- {title}: {failure}, after {:.1} s", done.took.as_secs_f64());
        for line in done.output.iter().filter(|line| !line.starts_with("row skipped: ")) {
            println!("{line}");
        }
        println!("---- end of {title}\n");
    }
}
