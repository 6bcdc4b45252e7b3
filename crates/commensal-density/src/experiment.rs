//! Parses the file of a ladder (TOML) into an [`Experiment`]. One error reports all mistakes in the file, each with
//! line and column. A ladder is a series of measurements with more and more sessions; a rung is one of these
//! measurements, with one number of sessions in one placement (number of cells).
//!
//! ```toml
//! about   = "VMs of one vCPU that compute"
//! repeats = 6
//!
//! [cell]                     # a cell stands for a VM
//! vcpu   = 1
//! memory = "512 MiB"
//!
//! [ladder]
//! cells  = [1, 2, 3, 4, 6]   # the first number is the reference for the others
//! pinned = [2]               # measure these also with each cell pinned to its own cores
//!
//! [[load]]
//! name = "spin"
//! kind = "spin"              # spin, mpp, duckdb, postgres or program
//! work = 500                 # units of work per session
//! concurrency = [1, 2, 4]    # numbers of sessions per cell
//!
//! [limits]
//! timeout    = "60 s"        # of one rung; or "3x": three times as long as the first placement took
//! stop-after = 2             # after this many failed rungs, higher rungs are skipped
//! ```

use commensal_core::toml_reader::{FileKey, Kind as Of, Reader, Section, TextPlace, is, key, needed};
use commensal_core::units::{Bytes, Millis};
use commensal_lab::experiment::FileError;
use regex::Regex;
use std::path::PathBuf;
use std::time::Duration;

/// The definition of a ladder.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    /// Name of the ladder.
    pub name: String,
    /// Description of the ladder.
    pub about: String,
    /// Text of the file.
    pub source: String,
    /// The cells.
    pub cell: Cell,
    /// Number of cores reserved for the host.
    pub reserve: f64,
    /// Numbers of cells, each with a flag: whether every cell is pinned to its own cores. The first entry is the
    /// reference for the others.
    pub placements: Vec<(u32, bool)>,
    /// The loads.
    pub loads: Vec<Load>,
    /// Number of attempts per rung.
    pub repeats: u32,
    /// Seed of the random order.
    pub seed: u64,
    /// Limits above which a rung fails or is skipped.
    pub limits: Limits,
    /// Patterns of lines in log files that count as warnings.
    pub warnings: Vec<Pattern>,
}

/// A cell: a VM, or a cgroup that stands for a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// Number of vCPUs. The cell has at most this many threads, and its CPU weight is 100 times this number.
    pub vcpu: u32,
    /// Memory hard limit; for a VM, the guest's memory.
    pub memory: Option<Bytes>,
    /// Whether the cell also has a quota of `vcpu` CPUs.
    pub quota: bool,
    /// Whether cells are cgroups or VMs.
    pub backend: Backend,
}

impl Cell {
    /// Returns the memory hard limit of the cell's cgroup. For a VM it includes QEMU's own memory.
    #[must_use]
    pub fn memory_limit(&self) -> Option<Bytes> {
        match self.backend {
            Backend::Group => self.memory,
            Backend::Qemu(_) => self.memory.map(|memory| Bytes(memory.0 + crate::vm::OVERHEAD)),
        }
    }
}

/// What implements a cell: a cgroup or a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// Processes in a cgroup.
    Group,
    /// A VM under QEMU, in a cgroup.
    Qemu(Vm),
}

/// Settings of a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vm {
    /// The guest's kernel; `None` uses this machine's kernel.
    pub kernel: Option<PathBuf>,
    /// Method by which the guest's instructions are executed.
    pub accel: Accel,
}

/// How a guest's instructions are executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accel {
    /// The CPU executes the instructions, using KVM.
    Kvm,
    /// QEMU's translator executes the instructions. This shows that all parts work, but the measured times and steal
    /// mean nothing.
    Tcg,
}

/// The load of every cell.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// Name of the load.
    pub name: String,
    /// Kind of load.
    pub kind: Kind,
    /// Units of work per session.
    pub work: u32,
    /// Memory hard limit of a cell under this load; replaces the limit of the ladder. If the limit is smaller than the
    /// data, the load reads from disk.
    pub memory: Option<Bytes>,
    /// Numbers of sessions per cell, ascending.
    pub concurrency: Vec<u32>,
}

/// Kinds of load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Threads that compute.
    Spin,
    /// Threads that copy arrays of this size each. `density calibrate` uses this load to measure memory bandwidth; a
    /// file cannot request this load.
    Stream(Bytes),
    /// Steps of computing. After each step, all cells wait for each other at a barrier, which uses datagrams.
    Mpp,
    /// TPC-DS, run by one DuckDB process per cell.
    Duckdb(Tpcds),
    /// TPC-DS, run by one PostgreSQL server per cell, with only those queries that PostgreSQL can run.
    Postgres(Tpcds),
    /// A program that implements the protocol of cells (see [`crate::protocol`]).
    Program(Vec<String>),
}

/// Parameters of TPC-DS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tpcds {
    /// Scale factor in thousandths.
    pub scale_milli: u32,
    /// Whether to use only 51 of the 99 queries: those that were fastest on this machine, like "lite" in Arenadata's
    /// article.
    pub lite: bool,
    /// Whether to drop the data from the page cache before each attempt.
    pub cold: bool,
}

impl Experiment {
    /// Returns the cell; if the load has a memory limit, the cell has that limit.
    #[must_use]
    pub fn cell_of(&self, load: &Load) -> Cell {
        Cell { memory: load.memory.or(self.cell.memory), ..self.cell.clone() }
    }
}

impl Kind {
    /// Returns the name of the unit of work.
    #[must_use]
    pub fn unit(&self) -> &'static str {
        match self {
            Kind::Spin => "chunks",
            Kind::Stream(_) => "copies",
            Kind::Mpp => "steps",
            Kind::Duckdb(_) | Kind::Postgres(_) => "queries",
            Kind::Program(_) => "units",
        }
    }
}

/// Limits above which a rung fails or is skipped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Time limit of a rung. If `times_first` is set, this limit applies only where the multiple cannot be computed.
    pub timeout: Duration,
    /// Time limit as a multiple of the time that the first placement took for the same rung. If that time is unknown,
    /// `timeout` applies.
    pub times_first: Option<f64>,
    /// After this many failed rungs of one load in one placement, the conductor skips the rungs of that load with more
    /// sessions in that placement.
    pub stop_after: u32,
    /// Maximum steal of a rung in per cent. A rung with more steal counts as failed.
    pub max_steal_pct: Option<f64>,
}

/// A pattern for warnings in a log file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// Name of the warning.
    pub name: String,
    /// Path of the log file.
    pub file: String,
    /// Strings that a line must contain.
    pub contains: Vec<String>,
    /// Regular expression that a line must also match.
    pub regex: Option<Expression>,
}

impl Pattern {
    /// Returns whether a line matches the pattern.
    #[must_use]
    pub fn is_in(&self, line: &str) -> bool {
        self.contains.iter().all(|part| line.contains(part.as_str()))
            && self.regex.as_ref().is_none_or(|regex| regex.0.is_match(line))
    }
}

/// A regular expression in the syntax of the crate `regex`. Two expressions are equal when their texts are equal.
#[derive(Debug, Clone)]
pub struct Expression(Regex);

impl PartialEq for Expression {
    fn eq(&self, other: &Expression) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for Expression {}

/// Maximum for the numbers of cells, sessions and repeats; a larger number is probably a mistake.
const MOST: u64 = 4096;

/// All keys of a ladder's file.
pub const KEYS: &[FileKey] = &[
    key("about", Of::AnyText),
    key("repeats", Of::Whole(1, MOST)),
    key("seed", Of::Whole(0, u64::MAX)),
    needed("cell.vcpu", Of::Whole(1, MOST)),
    key("cell.memory", Of::Quantity(is::<Bytes>)),
    key("cell.quota", Of::Flag),
    key("cell.backend", Of::Word(&["cgroup", "qemu"])),
    key("cell.kernel", Of::Checked(kernel)),
    key("cell.accel", Of::Checked(accel)),
    needed("ladder.cells", Of::Wholes(1, MOST)),
    key("ladder.pinned", Of::Wholes(1, MOST)),
    key("ladder.reserve", Of::Number(0.0, MOST as f64)),
    needed("load", Of::Tables(LOAD_KEYS)),
    key("limits.timeout", Of::Quantity(timeout)),
    key("limits.timeout-first", Of::Quantity(time)),
    key("limits.stop-after", Of::Whole(1, MOST)),
    key("limits.max-steal", Of::Number(0.0, f64::INFINITY)),
    key("warning", Of::Tables(WARNING_KEYS)),
];

const LOAD_KEYS: &[FileKey] = &[
    needed("name", Of::Text),
    needed("kind", Of::Word(&["spin", "mpp", "duckdb", "postgres", "program"])),
    key("work", Of::Whole(1, u32::MAX as u64)),
    needed("concurrency", Of::Wholes(1, MOST)),
    key("memory", Of::Quantity(is::<Bytes>)),
    key("scale", Of::Number(0.001, 1000.0)),
    key("queries", Of::Word(&["lite", "full"])),
    key("cold", Of::Flag),
    key("command", Of::Command),
];

const WARNING_KEYS: &[FileKey] = &[
    needed("name", Of::Text),
    needed("file", Of::Text),
    key("contains", Of::Texts(|_| Ok(()))),
    key("regex", Of::Checked(regex)),
];

fn regex(text: &str) -> Result<(), String> {
    if text.is_empty() {
        Err("an empty pattern would match every line".to_owned())
    } else {
        is::<Regex>(text)
    }
}

fn kernel(text: &str) -> Result<(), String> {
    match text.starts_with('/') {
        true => Ok(()),
        false => Err("give the absolute path of a kernel, such as /boot/vmlinuz".to_owned()),
    }
}

fn accel(text: &str) -> Result<(), String> {
    match text {
        "kvm" | "tcg" => Ok(()),
        _ => Err("the choices are kvm, and tcg, with which times and steal mean nothing".to_owned()),
    }
}

fn time(text: &str) -> Result<(), String> {
    match text.parse::<Millis>().map_err(|error| error.to_string())? {
        Millis(0) => Err("it must be above zero".to_owned()),
        _ => Ok(()),
    }
}

/// Checks a timeout, which is either a duration or a multiple of the first placement's time.
fn timeout(text: &str) -> Result<(), String> {
    match text.strip_suffix('x').map(|times| times.trim().parse::<f64>()) {
        None => time(text),
        Some(Ok(times)) if (1.0..=1000.0).contains(&times) => Ok(()),
        Some(_) => {
            Err("give 1x to 1000x, such as 3x for three times the time of the first placement".to_owned())
        }
    }
}

/// Parses a ladder's file.
///
/// # Errors
/// Returns all mistakes in the file.
pub fn parse(name: &str, text: &str) -> Result<Experiment, FileError> {
    let mut reader = Reader::default();
    let read = reader.parse(name, text).and_then(|table| {
        let keys = reader.section("", TextPlace::default(), &table, KEYS);
        experiment(name, text, &keys, &mut reader)
    });
    match read {
        Some(read) if reader.is_right() => Ok(read),
        _ => Err(FileError { wrong: reader.mistakes() }),
    }
}

fn numbers<'s>(keys: &'s Section, key: &str) -> impl Iterator<Item = (u32, TextPlace)> + use<'s> {
    let all = keys.wholes(key).unwrap_or_default();
    all.iter().filter_map(|(number, at)| Some((u32::try_from(*number).ok()?, *at)))
}

/// Builds the experiment; returns `None` when a required key is missing or wrong.
fn experiment(name: &str, text: &str, keys: &Section, reader: &mut Reader) -> Option<Experiment> {
    if keys.wholes("ladder.cells").is_some_and(<[_]>::is_empty) {
        let message = "ladder.cells is empty: give numbers of cells, such as [1, 2, 4]";
        reader.note(keys.at("ladder.cells"), message);
    }
    let mut placements: Vec<(u32, bool)> = Vec::new();
    let free = numbers(keys, "ladder.cells").map(|(cells, at)| (cells, false, at));
    let pinned = numbers(keys, "ladder.pinned").map(|(cells, at)| (cells, true, at));
    for (cells, pinned, at) in free.chain(pinned) {
        if placements.contains(&(cells, pinned)) {
            reader.note(at, format!("ladder: {cells} cells are listed twice"));
        }
        placements.push((cells, pinned));
    }
    let cell = cell(keys, reader);
    let sections = keys.tables("load").unwrap_or_default();
    if keys.tables("load").is_some_and(<[_]>::is_empty) {
        reader.note(keys.at("load"), "the ladder has no [[load]]");
    }
    let mut loads: Vec<Load> = Vec::new();
    for section in sections {
        let Some(load) = load(section, reader) else { continue };
        if cell.backend != Backend::Group && load.kind != Kind::Spin {
            let message = format!("load {:?}: with VMs, the kind must be \"spin\"", load.name);
            reader.note(section.at("kind"), message);
        }
        if loads.iter().any(|other| other.name == load.name) {
            reader.note(section.at("name"), format!("load {:?} occurs twice", load.name));
        }
        loads.push(load);
    }
    let limits = limits(keys, reader);
    let warnings = keys.tables("warning").unwrap_or_default();
    let warnings = warnings.iter().filter_map(|section| pattern(section, reader)).collect();
    let stem = name.rsplit('/').next().unwrap_or(name);
    Some(Experiment {
        name: stem.strip_suffix(".toml").unwrap_or(stem).to_owned(),
        about: keys.owned("about").unwrap_or_default(),
        source: text.to_owned(),
        cell: Cell { vcpu: keys.whole("cell.vcpu")?, ..cell },
        reserve: keys.number("ladder.reserve").unwrap_or_default(),
        placements,
        loads,
        repeats: keys.whole("repeats").unwrap_or(3),
        seed: keys.whole("seed").unwrap_or(1),
        limits,
        warnings,
    })
}

/// Default memory of a guest.
const GUEST_MEMORY: Bytes = Bytes(256 << 20);
/// Minimum memory of a guest; with less memory, a kernel does not boot.
const LEAST_GUEST_MEMORY: Bytes = Bytes(128 << 20);

fn cell(keys: &Section, reader: &mut Reader) -> Cell {
    let mut memory = keys.parsed("cell.memory");
    let backend = match keys.text("cell.backend") {
        Some("qemu") => {
            if *memory.get_or_insert(GUEST_MEMORY) < LEAST_GUEST_MEMORY {
                let least = LEAST_GUEST_MEMORY.0 >> 20;
                let message = format!("cell.memory: a guest needs at least {least} MiB");
                reader.note(keys.at("cell.memory"), message);
            }
            let accel = if keys.text("cell.accel") == Some("tcg") { Accel::Tcg } else { Accel::Kvm };
            Backend::Qemu(Vm { kernel: keys.owned("cell.kernel").map(PathBuf::from), accel })
        }
        _ => {
            let of_vms = ["cell.kernel", "cell.accel"].into_iter().find(|key| keys.given(key));
            if let Some(key) =
                of_vms.filter(|_| keys.text("cell.backend").is_some() || !keys.given("cell.backend"))
            {
                reader.note(keys.at(key), "cell: kernel and accel need backend = \"qemu\"");
            }
            Backend::Group
        }
    };
    Cell { vcpu: 0, memory, quota: keys.flag("cell.quota").unwrap_or_default(), backend }
}

fn pattern(keys: &Section, reader: &mut Reader) -> Option<Pattern> {
    if !keys.given("contains") && !keys.given("regex") {
        let name = keys.text("name").unwrap_or_default();
        reader
            .note(keys.at(""), format!("warning {name:?}: give contains or regex, to say which lines count"));
    }
    let contains = keys.texts("contains").unwrap_or_default();
    Some(Pattern {
        name: keys.owned("name")?,
        file: keys.owned("file")?,
        contains: contains.iter().map(|(text, _)| text.clone()).collect(),
        regex: keys.with("regex", Regex::new).map(Expression),
    })
}

/// Default time limit of a rung.
const TIMEOUT: Duration = Duration::from_secs(600);

fn limits(keys: &Section, reader: &mut Reader) -> Limits {
    let times = |text: &str| text.strip_suffix('x').and_then(|times| times.trim().parse::<f64>().ok());
    let times_first = keys.text("limits.timeout").and_then(times);
    let wrong = keys.given("limits.timeout") && keys.text("limits.timeout").is_none();
    if times_first.is_none() && !wrong && keys.given("limits.timeout-first") {
        let message = "limits.timeout-first needs a limits.timeout such as \"3x\"";
        reader.note(keys.at("limits.timeout-first"), message);
    }
    let timeout = if times_first.is_some() { "limits.timeout-first" } else { "limits.timeout" };
    Limits {
        timeout: keys.parsed::<Millis>(timeout).map_or(TIMEOUT, |time| Duration::from_millis(time.0)),
        times_first,
        stop_after: keys.whole("limits.stop-after").unwrap_or(2),
        max_steal_pct: keys.number("limits.max-steal"),
    }
}

fn load(keys: &Section, reader: &mut Reader) -> Option<Load> {
    let name = keys.owned("name")?;
    let mut note = |key: &str, why: &str| reader.note(keys.at(key), format!("load {name:?}: {why}"));
    let mut concurrency: Vec<u32> = numbers(keys, "concurrency").map(|(sessions, _)| sessions).collect();
    concurrency.sort_unstable();
    concurrency.dedup();
    if keys.wholes("concurrency").is_some_and(<[_]>::is_empty) {
        note(
            "concurrency",
            &format!("concurrency must be a list of numbers from 1 to {MOST}, such as [1, 4, 8]"),
        );
    }
    let tpcds = || Tpcds {
        scale_milli: (keys.number("scale").unwrap_or(0.1) * 1000.0).round() as u32,
        lite: keys.text("queries") != Some("full"),
        cold: keys.flag("cold").unwrap_or_default(),
    };
    let kind = match keys.text("kind")? {
        "spin" => Kind::Spin,
        "mpp" => Kind::Mpp,
        "duckdb" => Kind::Duckdb(tpcds()),
        "postgres" => Kind::Postgres(tpcds()),
        _ => {
            if !keys.given("command") {
                note("kind", "kind program needs a command");
            }
            Kind::Program(keys.command("command").unwrap_or_default())
        }
    };
    let of_tpcds = match &kind {
        Kind::Duckdb(tpcds) | Kind::Postgres(tpcds) => Some(if tpcds.lite { 51 } else { 99 }),
        _ => None,
    };
    let given = |key: &&str| keys.given(key) && keys.flag(key) != Some(false);
    let others = ["scale", "queries", "cold"].into_iter().find(given);
    if let (None, Some(key)) = (of_tpcds, others) {
        note(key, "scale, queries and cold apply only to kind duckdb or postgres");
    }
    if keys.given("command") && !matches!(kind, Kind::Program(_)) {
        note("command", "command applies only to kind program");
    }
    match (of_tpcds, keys.given("work")) {
        (Some(_), true) => {
            note("work", "the work of duckdb and postgres is fixed: 51 or 99 queries (queries)")
        }
        (None, false) => note("work", "give work: the number of units of work per session, 1 or more"),
        _ => {}
    }
    let work = of_tpcds.or(keys.whole("work")).unwrap_or(1);
    Some(Load { name, kind, work, memory: keys.parsed("memory"), concurrency })
}

/// Ladders that are built into the program: name and text.
pub const SHIPPED: [(&str, &str); 6] = [
    ("density-spin", include_str!("../../../experiments/density-spin.toml")),
    ("density-vms", include_str!("../../../experiments/density-vms.toml")),
    ("density-mpp", include_str!("../../../experiments/density-mpp.toml")),
    ("density-postgres", include_str!("../../../experiments/density-postgres.toml")),
    ("density-tpcds", include_str!("../../../experiments/density-tpcds.toml")),
    ("density-memory", include_str!("../../../experiments/density-memory.toml")),
];

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "repeats = 6\n[cell]\nvcpu = 1\nmemory = \"512 MiB\"\n[ladder]\ncells = [1, 2, 4]\npinned = [2]\n\
                        [[load]]\nname = \"spin\"\nkind = \"spin\"\nwork = 500\nconcurrency = [4, 1, 2]\n";

    #[test]
    fn a_file_becomes_a_ladder() {
        let got = parse("experiments/density-spin.toml", GOOD).unwrap();
        assert_eq!(got.name, "density-spin");
        assert_eq!(got.placements, [(1, false), (2, false), (4, false), (2, true)]);
        assert_eq!(got.loads[0].concurrency, [1, 2, 4]);
        assert_eq!(got.cell.memory, Some(Bytes(512 << 20)));
        assert_eq!((got.limits.timeout, got.limits.stop_after), (Duration::from_secs(600), 2));
    }

    #[test]
    fn mistakes_are_told_together_with_the_way_out() {
        let bad = GOOD
            .replace("vcpu = 1", "vcpu = 0")
            .replace("512 MiB", "512")
            .replace("[1, 2, 4]", "[1, 1]")
            .replace("work = 500", "work = 0");
        let wrong = parse("x", &bad).unwrap_err().to_string();
        for want in [
            "x:3:8: cell.vcpu = 0: it must be a whole number from 1 to 4096",
            "x:4:10: cell.memory: \"512\"",
            "x:6:13: ladder: 1 cells are listed twice",
            "x:11:8: load.work = 0: it must be",
        ] {
            assert!(wrong.contains(want), "{want}: {wrong}");
        }
        let check = |from: &str, to: &str, want: &str| {
            let wrong = parse("x", &GOOD.replace(from, to)).unwrap_err().to_string();
            assert!(wrong.contains(want), "{wrong}");
        };
        check(
            "kind = \"spin\"",
            "kind = \"spn\"",
            "x:10:8: load.kind must be one of \"spin\", \"mpp\", \"duckdb\", \"postgres\", \"program\"; did you mean \"spin\"?",
        );
        check("kind = \"spin\"", "kind = \"program\"", "kind program needs a command");
        check("work = 500", "work = 500\nscale = 1.0", "apply only to kind duckdb or postgres");
        check("repeats = 6", "repeat = 6", "x:1:1: unknown key \"repeat\"; did you mean \"repeats\"?");
        check("[4, 1, 2]", "[0]", "x:12:16: load.concurrency: 0 must be");
        check("work = 500", "work = 500\nmemory = \"1\"", "x:12:10: load.memory: \"1\"");
        check("work = 500\n", "work = 500\nqueries = \"lite\"\n", "apply only to kind duckdb or postgres");
    }

    #[test]
    fn cells_of_vms() {
        let vm = |more: &str| parse("x", &GOOD.replace("memory = \"512 MiB\"", more));
        let got = vm("backend = \"qemu\"").unwrap();
        let kvm = Backend::Qemu(Vm { kernel: None, accel: Accel::Kvm });
        assert_eq!((got.cell.backend, got.cell.memory), (kvm, Some(GUEST_MEMORY)));
        let got =
            vm("backend = \"qemu\"\naccel = \"tcg\"\nkernel = \"/boot/k\"\nmemory = \"1 GiB\"").unwrap();
        let tcg = Backend::Qemu(Vm { kernel: Some("/boot/k".into()), accel: Accel::Tcg });
        assert_eq!((got.cell.backend, got.cell.memory), (tcg, Some(Bytes(1 << 30))));
        let check = |more: &str, want: &str| {
            let wrong = vm(more).unwrap_err().to_string();
            assert!(wrong.contains(want), "{want}: {wrong}");
        };
        check("backend = \"xen\"", "cell.backend must be one of \"cgroup\", \"qemu\"");
        check("backend = \"qemu\"\naccel = \"hvf\"", "the choices are kvm, and tcg");
        check("accel = \"tcg\"", "need backend = \"qemu\"");
        check(
            "backend = \"qemu\"\nkernel = \"vmlinuz\"",
            "cell.kernel = \"vmlinuz\": give the absolute path",
        );
        check("backend = \"qemu\"\nmemory = \"16 MiB\"", "at least 128 MiB");
        let mpp = GOOD
            .replace("vcpu = 1", "vcpu = 1\nbackend = \"qemu\"")
            .replace("kind = \"spin\"", "kind = \"mpp\"");
        assert!(parse("x", &mpp).unwrap_err().to_string().contains("with VMs, the kind must be"));
    }

    #[test]
    fn a_limit_in_times_of_the_first_placement() {
        let limits = |text: &str| parse("x", &format!("{GOOD}[limits]\n{text}\n")).map(|got| got.limits);
        let got = limits("timeout = \"3x\"").unwrap();
        assert_eq!((got.timeout, got.times_first), (TIMEOUT, Some(3.0)));
        let got = limits("timeout = \"2.5x\"\ntimeout-first = \"1 h\"").unwrap();
        assert_eq!((got.timeout, got.times_first), (Duration::from_secs(3600), Some(2.5)));
        assert_eq!(limits("timeout = \"90 s\"").unwrap().times_first, None);
        for bad in ["0.5x", "x", "NaNx", "-3x"] {
            let wrong = limits(&format!("timeout = \"{bad}\"")).unwrap_err().to_string();
            assert!(wrong.contains("give 1x to 1000x"), "{bad}: {wrong}");
        }
        let wrong = limits("timeout = \"9 s\"\ntimeout-first = \"9 s\"").unwrap_err().to_string();
        assert!(wrong.contains("needs a limits.timeout such as"), "{wrong}");
        assert!(limits("timeout = \"3x\"\ntimeout-first = \"0 s\"").is_err());
    }

    #[test]
    fn warnings_are_texts_or_expressions() {
        let file = |warning: &str| {
            parse("x", &format!("{GOOD}[[warning]]\nname = \"net\"\nfile = \"/l\"\n{warning}\n"))
        };
        let is_in = |warning: &str, line: &str| file(warning).unwrap().warnings[0].is_in(line);
        let line = "WARNING: interconnect, 100 retries to seg7";
        assert!(is_in("contains = [\"WARNING\", \"seg\"]", line));
        assert!(is_in("regex = '^WARNING: .* \\d+ retries to seg[0-9]+$'", line));
        assert!(!is_in("regex = '^retries'", line));
        assert!(!is_in("contains = [\"ERROR\"]\nregex = 'retries'", line));
        let wrong = file("regex = 'seg(\\d+'").unwrap_err().to_string();
        // The message contains the mistake and its column.
        assert!(wrong.contains("x:16:9: warning.regex") && wrong.contains("unclosed group"), "{wrong}");
        assert!(wrong.lines().any(|line| line.trim() == "^"), "{wrong}");
        assert!(file("").unwrap_err().to_string().contains("give contains or regex"));
        let wrong = file("regex = ''").unwrap_err().to_string();
        assert!(
            wrong.contains("x:16:9: warning.regex = \"\": an empty pattern would match every line"),
            "{wrong}"
        );
    }

    #[test]
    fn shipped_files_are_right() {
        for (name, text) in SHIPPED {
            let got = parse(name, text).unwrap_or_else(|error| panic!("{error}"));
            assert!(!got.about.is_empty() && got.placements.len() > 1, "{name}");
        }
    }
}
