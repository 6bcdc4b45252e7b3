//! A document's tables once more: a program measures rows without and with a limit and prints figures; the lab runs it
//! several times and says how far the figures agree.
//!
//! ```text
//! experiments/*.toml with [replay] ─► command, again and again ─► figures, one JSON object a line ─► Record ─► tables
//! ```
//!
//! There is no verdict: the rows of such a table differ by what is limited, not by who stands beside whom. One repeat is a
//! demonstration; from three on a cell has its median and its range.

use commensal_core::units::Bytes;
use commensal_host::{Host, HostError, Signal, SpawnSpec, Stdout};
use commensal_sensors::machine;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Name and file of each that comes with the program.
pub const SHIPPED: &[(&str, &str)] =
    &[("workload-group-limits", include_str!("../../../experiments/workload-group-limits.toml"))];

/// The most that one run of the program may print, in bytes.
const MOST_OUTPUT: u64 = 16 << 20;
/// Between two looks whether it has ended.
const PAUSE: Duration = Duration::from_millis(50);
/// How long it may take to end in good order.
const GRACE: Duration = Duration::from_secs(15);

/// What is replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// Its name.
    pub name: String,
    /// What it is about.
    pub about: String,
    /// The program and its arguments; `{dir}` is a folder that stays from one repeat to the next.
    pub command: Vec<String>,
    /// What installs the program.
    pub install: Option<String>,
    /// How often.
    pub repeats: u32,
    /// How long one repeat may take.
    pub within: Duration,
    /// Free disk space that is needed, bytes.
    pub disk_bytes: u64,
    /// The file.
    pub source: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawFile {
    about: String,
    disk: Option<String>,
    replay: RawReplay,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawReplay {
    command: Vec<String>,
    install: Option<String>,
    repeats: u32,
    within: String,
}

/// One figure of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// The table.
    pub table: String,
    /// The row.
    pub row: String,
    /// The column, with its unit.
    pub column: String,
    /// The figure.
    pub value: f64,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The experiment's name.
    pub name: String,
    /// What it is about.
    pub about: String,
    /// The command as it was run.
    pub command: Vec<String>,
    /// CPU model, kernel release and logical CPUs of the machine.
    pub machine: String,
    /// Version of this program.
    pub version: String,
    /// The figures of each repeat.
    pub repeats: Vec<Vec<Figure>>,
}

/// Why there is no record.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The machine refused something.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The file is wrong.
    #[error("{name}: {why}")]
    File {
        /// The file.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// The program is not there, or has no room.
    #[error("{0}")]
    Missing(String),
    /// It failed.
    #[error("{command:?} ended with status {status} in repeat {repeat}; it says why above")]
    Failed {
        /// The command line.
        command: String,
        /// Its exit status.
        status: i32,
        /// In which repeat, from 1.
        repeat: u32,
    },
    /// It took too long.
    #[error("{command:?} took more than {} s in repeat {repeat}", .within.as_secs())]
    Slow {
        /// The command line.
        command: String,
        /// What it may take.
        within: Duration,
        /// In which repeat, from 1.
        repeat: u32,
    },
    /// What it printed are no figures.
    #[error("line {line} of the program's output is no figure: {why}")]
    Output {
        /// From 1.
        line: usize,
        /// Why.
        why: String,
    },
    /// The user asked to stop.
    #[error("stopped before the end")]
    Stopped,
}

/// Whether a file is of this kind.
#[must_use]
pub fn is_replay(text: &str) -> bool {
    toml::from_str::<toml::Table>(text).is_ok_and(|file| file.contains_key("replay"))
}

/// Reads one.
///
/// # Errors
/// [`ReplayError::File`].
pub fn parse(name: &str, text: &str) -> Result<Replay, ReplayError> {
    let wrong = |why: String| ReplayError::File { name: name.to_owned(), why };
    let raw: RawFile =
        toml::from_str(text).map_err(|error| wrong(error.to_string().trim_end().to_owned()))?;
    let RawReplay { command, install, repeats, within } = raw.replay;
    if command.is_empty() {
        return Err(wrong("replay.command is empty".to_owned()));
    }
    if !(1..=1_000).contains(&repeats) {
        return Err(wrong(format!("replay.repeats = {repeats}: 1 to 1000")));
    }
    let within = humantime::parse_duration(&within)
        .map_err(|error| wrong(format!("replay.within = {within:?}: {error}")))?;
    let disk = raw.disk.as_deref().map(|text| {
        text.parse::<Bytes>().map_err(|error| wrong(format!("disk = {text:?}: {error}"))).map(|bytes| bytes.0)
    });
    Ok(Replay {
        name: name.to_owned(),
        about: raw.about,
        command,
        install,
        repeats,
        within,
        disk_bytes: disk.transpose()?.unwrap_or(0),
        source: text.to_owned(),
    })
}

/// Where it is run.
#[derive(Debug)]
pub struct ReplayEnv<'a> {
    /// A folder of its own, which stays.
    pub dir: &'a Path,
    /// Folders in which the program is looked for, in order.
    pub path: &'a [PathBuf],
    /// Set when the user wants it to end.
    pub stop: &'a AtomicBool,
    /// Version of this program.
    pub version: &'a str,
}

/// Where the program is.
///
/// # Errors
/// [`ReplayError::Missing`], with what would help.
pub fn find(host: &dyn Host, replay: &Replay, path: &[PathBuf]) -> Result<PathBuf, ReplayError> {
    let program = &replay.command[0];
    if program.contains('/') {
        return Ok(PathBuf::from(program));
    }
    let has = |dir: &&PathBuf| host.list(dir).is_ok_and(|names| names.iter().any(|name| name == program));
    path.iter().find(has).map(|dir| dir.join(program)).ok_or_else(|| {
        let help = replay.install.as_ref().map(|how| format!(": {how}")).unwrap_or_default();
        ReplayError::Missing(format!("{program} is neither beside this program nor on PATH{help}"))
    })
}

/// Runs it; `each` is told what is recorded after every repeat.
///
/// # Errors
/// The program is missing, fails, takes too long or prints something else; what was recorded was told before.
pub fn run(
    host: &mut dyn Host,
    replay: &Replay,
    ground: &ReplayEnv<'_>,
    each: &mut dyn FnMut(&Record),
) -> Result<Record, ReplayError> {
    let program = find(host, replay, ground.path)?;
    host.state_dir(ground.dir)?;
    let free = host.free_bytes(ground.dir)?;
    if free < replay.disk_bytes {
        let (dir, gib) = (ground.dir.display(), |bytes: u64| bytes as f64 / f64::from(1 << 30));
        let what =
            format!("{dir} has {:.1} GiB free, and {:.1} are needed", gib(free), gib(replay.disk_bytes));
        return Err(ReplayError::Missing(what));
    }
    let dir = ground.dir.display().to_string();
    let command: Vec<String> = replay.command.iter().map(|word| word.replace("{dir}", &dir)).collect();
    let identity = machine::identity(host);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let cpu = identity.cpu.unwrap_or_else(|| "unknown CPU".to_owned());
    let mut record = Record {
        name: replay.name.clone(),
        about: replay.about.clone(),
        command: command.clone(),
        machine: format!("{cpus} CPUs ({cpu}), {}", identity.kernel),
        version: ground.version.to_owned(),
        repeats: Vec::new(),
    };
    for repeat in 1..=replay.repeats {
        let mut spec = SpawnSpec::new(&program);
        spec.args.extend(command.iter().skip(1).map(Into::into));
        spec.stdout = Stdout::Pipe;
        spec.die_with_parent = true;
        let printed = printed(host, &spec, replay, ground.stop, repeat)?;
        record.repeats.push(figures(&printed)?);
        each(&record);
    }
    Ok(record)
}

/// What one run of the program prints.
fn printed(
    host: &mut dyn Host,
    spec: &SpawnSpec,
    replay: &Replay,
    stop: &AtomicBool,
    repeat: u32,
) -> Result<String, ReplayError> {
    let command = replay.command.join(" ");
    let mut child = host.spawn(spec)?;
    let reader = child.stdout.take().map(|pipe| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = pipe.take(MOST_OUTPUT).read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        })
    });
    let began = Instant::now();
    let why = loop {
        if let Some(exit) = child.try_wait()? {
            break match exit.status() {
                0 => None,
                status => Some(ReplayError::Failed { command, status, repeat }),
            };
        }
        let slow = began.elapsed() > replay.within;
        if slow || stop.load(Ordering::Relaxed) {
            host.signal(&child.process, Signal::TERM)?;
            let asked = Instant::now();
            while child.try_wait()?.is_none() {
                if asked.elapsed() > GRACE {
                    host.signal(&child.process, Signal::KILL)?;
                }
                std::thread::sleep(PAUSE);
            }
            let within = replay.within;
            break Some(if slow {
                ReplayError::Slow { command, within, repeat }
            } else {
                ReplayError::Stopped
            });
        }
        std::thread::sleep(PAUSE);
    };
    match why {
        Some(why) => Err(why),
        None => Ok(reader.and_then(|reader| reader.join().ok()).unwrap_or_default()),
    }
}

/// The figures in a program's output.
fn figures(text: &str) -> Result<Vec<Figure>, ReplayError> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let figures: Vec<Figure> = lines
        .map(|(at, line)| {
            serde_json::from_str(line)
                .map_err(|error| ReplayError::Output { line: at + 1, why: error.to_string() })
        })
        .collect::<Result<_, _>>()?;
    if figures.is_empty() {
        return Err(ReplayError::Output { line: 1, why: "it printed nothing".to_owned() });
    }
    Ok(figures)
}

impl Record {
    /// As JSON.
    ///
    /// # Errors
    /// Never for figures that are numbers.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    /// The tables as Markdown: of each cell the median over the repeats, and the least and the most.
    #[must_use]
    pub fn tables(&self) -> String {
        let mut out = format!("{}\n{}; repeats: {}\n", self.about, self.machine, self.repeats.len());
        let all = || self.repeats.iter().flatten();
        for table in distinct(all().map(|figure| figure.table.as_str())) {
            let of = |figure: &&Figure| figure.table == table;
            let columns = distinct(all().filter(of).map(|figure| figure.column.as_str()));
            let _ = write!(out, "\n## {table}\n\n| |");
            for column in &columns {
                let _ = write!(out, " {column} |");
            }
            let _ = write!(out, "\n|---|{}", "---|".repeat(columns.len()));
            for row in distinct(all().filter(of).map(|figure| figure.row.as_str())) {
                let _ = write!(out, "\n| {row} |");
                for column in &columns {
                    let cell = all().filter(of).filter(|one| one.row == row && one.column == *column);
                    let _ = write!(out, " {} |", cell_text(cell.map(|figure| figure.value).collect()));
                }
            }
            out.push('\n');
        }
        out
    }
}

/// Each once, in the order in which they come first.
fn distinct<'t>(all: impl Iterator<Item = &'t str>) -> Vec<&'t str> {
    let mut seen: Vec<&str> = Vec::new();
    for one in all {
        if !seen.contains(&one) {
            seen.push(one);
        }
    }
    seen
}

fn cell_text(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (values.first(), values.last()) else { return "-".to_owned() };
    let text = |value: f64| if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") };
    let middle = f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2]);
    match values.len() {
        1 => text(middle),
        _ if least == most => text(middle),
        _ => format!("{} ({} to {})", text(middle), text(*least), text(*most)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_host::LinuxHost;

    fn replay(command: &[&str], repeats: u32) -> Replay {
        Replay {
            name: "r".to_owned(),
            about: "what".to_owned(),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            install: Some("make it".to_owned()),
            repeats,
            within: Duration::from_secs(60),
            disk_bytes: 0,
            source: String::new(),
        }
    }

    fn ran(replay: &Replay, stop: bool) -> Result<Record, ReplayError> {
        let dir = tempfile::tempdir().expect("a folder");
        let path = [PathBuf::from("/usr/bin"), PathBuf::from("/bin")];
        let stop = AtomicBool::new(stop);
        let ground = ReplayEnv { dir: &dir.path().join("d"), path: &path, stop: &stop, version: "1" };
        run(&mut LinuxHost::new(), replay, &ground, &mut |_| {})
    }

    #[test]
    fn what_is_shipped_can_be_read() {
        for (name, text) in SHIPPED {
            assert!(is_replay(text), "{name}");
            let replay = parse(name, text).unwrap();
            assert!(!replay.about.is_empty() && replay.command.iter().any(|word| word.contains("{dir}")));
        }
        for (_, text) in crate::experiment::SHIPPED {
            assert!(!is_replay(text));
        }
    }

    #[test]
    fn mistakes_have_a_place() {
        let file = |replay: &str| format!("about = \"a\"\n[replay]\n{replay}");
        for (replay, want) in [
            ("command = []\nrepeats = 1\nwithin = \"1s\"", "command is empty"),
            ("command = [\"x\"]\nrepeats = 0\nwithin = \"1s\"", "repeats = 0"),
            ("command = [\"x\"]\nrepeats = 1\nwithin = \"soon\"", "within = \"soon\""),
            ("command = [\"x\"]\nrepeats = 1\nwithin = \"1s\"\nfrequency = 3", "unknown field `frequency`"),
        ] {
            let error = parse("f.toml", &file(replay)).unwrap_err().to_string();
            assert!(error.contains(want) && error.contains("f.toml"), "{error}");
        }
    }

    #[test]
    fn repeats_are_put_together() {
        // The n-th run prints n.
        let script = "cd \"$1\" && echo x >> n && n=$(wc -l < n) && \
                      echo '{\"table\":\"T\",\"row\":\"with\",\"column\":\"MiB\",\"value\":'$n'}' && \
                      echo '{\"table\":\"T\",\"row\":\"without\",\"column\":\"s\",\"value\":0.5}'";
        let record = ran(&replay(&["sh", "-c", script, "sh", "{dir}"], 3), false).unwrap();
        assert_eq!(record.repeats.len(), 3);
        let tables = record.tables();
        let want =
            "## T\n\n| | MiB | s |\n|---|---|---|\n| with | 2 (1 to 3) | - |\n| without | - | 0.50 |\n";
        assert!(tables.contains(want), "{tables}");
        let again: Record = serde_json::from_str(&record.to_json().unwrap()).unwrap();
        assert_eq!(again, record);
    }

    #[test]
    fn what_fails_is_told() {
        let failed = ran(&replay(&["sh", "-c", "exit 7"], 1), false).unwrap_err();
        assert!(matches!(failed, ReplayError::Failed { status: 7, repeat: 1, .. }), "{failed}");
        let odd = ran(&replay(&["echo", "hello"], 1), false).unwrap_err();
        assert!(matches!(odd, ReplayError::Output { line: 1, .. }), "{odd}");
        let silent = ran(&replay(&["true"], 1), false).unwrap_err();
        assert!(silent.to_string().contains("it printed nothing"), "{silent}");
        let missing = ran(&replay(&["no-such-program"], 1), false).unwrap_err().to_string();
        assert!(missing.contains("no-such-program") && missing.ends_with(": make it"), "{missing}");
        let slow = Replay { within: Duration::from_millis(100), ..replay(&["sleep", "600"], 1) };
        assert!(matches!(ran(&slow, false).unwrap_err(), ReplayError::Slow { .. }));
        let stopped = ran(&replay(&["sleep", "600"], 1), true).unwrap_err();
        assert!(matches!(stopped, ReplayError::Stopped));
        let full = Replay { disk_bytes: u64::MAX, ..replay(&["true"], 1) };
        assert!(ran(&full, false).unwrap_err().to_string().contains("GiB free"));
    }
}
