//! A ladder's file: TOML to [`Experiment`]. All mistakes of values in one error; of keys, the first.
//!
//! ```toml
//! about   = "VMs of one vCPU that compute"
//! repeats = 6
//!
//! [cell]                     # stands for a VM
//! vcpu   = 1
//! memory = "512 MiB"
//!
//! [ladder]
//! cells  = [1, 2, 3, 4, 6]   # the first is what the others are compared with
//! pinned = [2]               # these also with cores of their own
//!
//! [[load]]
//! name = "spin"
//! kind = "spin"              # spin, mpp, duckdb, postgres or program
//! work = 500                 # units of one session
//! concurrency = [1, 2, 4]    # sessions of each cell
//!
//! [limits]
//! timeout    = "60 s"        # of one rung; or "3x": so many times as long as the first placement took
//! stop-after = 2             # failed rungs, then the higher ones are left out
//! ```

use commensal_core::units::{Bytes, Millis};
use commensal_lab::experiment::FileError;
use regex::Regex;
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;

/// A ladder to climb.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    /// Its name.
    pub name: String,
    /// What it is about.
    pub about: String,
    /// The file as it was read.
    pub source: String,
    /// The cells.
    pub cell: Cell,
    /// Cores that the host keeps.
    pub reserve: f64,
    /// Numbers of cells and whether each has cores of its own; the first is the reference.
    pub placements: Vec<(u32, bool)>,
    /// What they do.
    pub loads: Vec<Load>,
    /// Attempts per rung.
    pub repeats: u32,
    /// Seed of the order.
    pub seed: u64,
    /// When to give up.
    pub limits: Limits,
    /// What is counted as a warning in log files.
    pub warnings: Vec<Pattern>,
}

/// What stands for a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// Threads at most, and weight.
    pub vcpu: u32,
    /// Memory hard limit; of a VM, the guest's memory.
    pub memory: Option<Bytes>,
    /// Whether a quota of `vcpu` CPUs stands guard.
    pub quota: bool,
    /// What it is made of.
    pub backend: Backend,
}

impl Cell {
    /// Memory hard limit of its cgroup.
    #[must_use]
    pub fn memory_limit(&self) -> Option<Bytes> {
        match self.backend {
            Backend::Group => self.memory,
            Backend::Qemu(_) => self.memory.map(|memory| Bytes(memory.0 + crate::vm::OVERHEAD)),
        }
    }
}

/// What a cell is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// Processes in a cgroup.
    Group,
    /// A VM under QEMU, in a cgroup.
    Qemu(Vm),
}

/// A VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vm {
    /// The guest's kernel; unset, the one that runs here.
    pub kernel: Option<PathBuf>,
    /// What runs the guest's instructions.
    pub accel: Accel,
}

/// What runs a guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accel {
    /// The CPU.
    Kvm,
    /// A translator in QEMU: shows that all parts work, and nothing of times and steal.
    Tcg,
}

/// What every cell does.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// Its name.
    pub name: String,
    /// Of which kind.
    pub kind: Kind,
    /// Units of work of one session.
    pub work: u32,
    /// Memory hard limit of a cell, in place of the ladder's: less than the data makes a load one of the disk.
    pub memory: Option<Bytes>,
    /// Sessions of each cell, ascending.
    pub concurrency: Vec<u32>,
}

/// Kinds of load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Threads that compute.
    Spin,
    /// Threads that copy arrays of so many bytes each: how `density calibrate` finds the memory's bandwidth. No file has it.
    Stream(Bytes),
    /// Steps of computing with a barrier over all cells after each, by datagrams.
    Mpp,
    /// TPC-DS by one DuckDB process per cell.
    Duckdb(Tpcds),
    /// TPC-DS by one PostgreSQL server per cell: those queries that it can run.
    Postgres(Tpcds),
    /// A program that speaks the protocol of cells (see [`crate::protocol`]).
    Program(Vec<String>),
}

/// Which part of TPC-DS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tpcds {
    /// Scale factor in thousandths.
    pub scale_milli: u32,
    /// Only the 51 queries that were fastest on this machine, as the document's "lite"; else all 99.
    pub lite: bool,
    /// Drop the page cache's copy of the data before each attempt.
    pub cold: bool,
}

impl Experiment {
    /// A cell under a load.
    #[must_use]
    pub fn cell_of(&self, load: &Load) -> Cell {
        Cell { memory: load.memory.or(self.cell.memory), ..self.cell.clone() }
    }
}

impl Kind {
    /// The unit of work.
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

/// When to give up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// A rung that takes longer has failed.
    pub timeout: Duration,
    /// So has one that takes so many times as long as the same rung of the first placement; `timeout` then holds where
    /// that is not known.
    pub times_first: Option<f64>,
    /// So many failed rungs of one test and placement, and the higher ones are left out.
    pub stop_after: u32,
    /// A rung with more steal has failed, per cent.
    pub max_steal_pct: Option<f64>,
}

/// A warning in a log file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// What it is called.
    pub name: String,
    /// The file.
    pub file: String,
    /// What a line of it contains.
    pub contains: Vec<String>,
    /// What a line of it matches, too.
    pub regex: Option<Expression>,
}

impl Pattern {
    /// Whether a line is such a warning.
    #[must_use]
    pub fn is_in(&self, line: &str) -> bool {
        self.contains.iter().all(|part| line.contains(part.as_str()))
            && self.regex.as_ref().is_none_or(|regex| regex.0.is_match(line))
    }
}

/// A regular expression in the syntax of the crate `regex`; two are equal when they are spelled alike.
#[derive(Debug, Clone)]
pub struct Expression(Regex);

impl PartialEq for Expression {
    fn eq(&self, other: &Expression) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for Expression {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawFile {
    #[serde(default)]
    about: String,
    #[serde(default = "three")]
    repeats: u32,
    #[serde(default = "one")]
    seed: u64,
    cell: RawCell,
    ladder: RawLadder,
    load: Vec<RawLoad>,
    #[serde(default)]
    limits: RawLimits,
    #[serde(default)]
    warning: Vec<RawWarning>,
}

fn three() -> u32 {
    3
}

fn one() -> u64 {
    1
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawCell {
    vcpu: u32,
    memory: Option<String>,
    #[serde(default)]
    quota: bool,
    backend: Option<String>,
    kernel: Option<PathBuf>,
    accel: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawLadder {
    cells: Vec<u32>,
    #[serde(default)]
    pinned: Vec<u32>,
    #[serde(default)]
    reserve: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawLoad {
    name: String,
    kind: String,
    work: Option<u32>,
    concurrency: Vec<u32>,
    memory: Option<String>,
    scale: Option<f64>,
    queries: Option<String>,
    #[serde(default)]
    cold: bool,
    command: Option<Vec<String>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawLimits {
    timeout: Option<String>,
    timeout_first: Option<String>,
    stop_after: Option<u32>,
    max_steal: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawWarning {
    name: String,
    file: String,
    #[serde(default)]
    contains: Vec<String>,
    regex: Option<String>,
}

/// Most cells, sessions and repeats: beyond them a slip is likelier than a wish.
const MOST: u32 = 4096;

/// Reads a ladder's file.
///
/// # Errors
/// Every mistake.
pub fn parse(name: &str, text: &str) -> Result<Experiment, FileError> {
    let failed = |wrong: Vec<String>| FileError { name: name.to_owned(), wrong };
    let raw: RawFile =
        toml::from_str(text).map_err(|error| failed(vec![error.to_string().trim_end().to_owned()]))?;
    let mut wrong = Vec::new();
    let within = |what: &str, value: u32, wrong: &mut Vec<String>| {
        if value == 0 || value > MOST {
            wrong.push(format!("{what} = {value}: it is 1 to {MOST}"));
        }
    };
    within("cell.vcpu", raw.cell.vcpu, &mut wrong);
    within("repeats", raw.repeats, &mut wrong);
    if raw.ladder.cells.is_empty() {
        wrong.push("ladder.cells is empty: give numbers of cells, such as [1, 2, 4]".to_owned());
    }
    let mut placements: Vec<(u32, bool)> = raw.ladder.cells.iter().map(|cells| (*cells, false)).collect();
    placements.extend(raw.ladder.pinned.iter().map(|cells| (*cells, true)));
    for (index, (cells, pinned)) in placements.iter().enumerate() {
        within("ladder: a number of cells", *cells, &mut wrong);
        if placements[..index].contains(&(*cells, *pinned)) {
            wrong.push(format!("ladder: {cells} cells are there twice"));
        }
    }
    let cell = cell(raw.cell, &mut wrong);
    let loads: Vec<Load> = raw.load.into_iter().filter_map(|raw| load(raw, &mut wrong)).collect();
    if loads.is_empty() && wrong.is_empty() {
        wrong.push("there is no [[load]]".to_owned());
    }
    for (index, load) in loads.iter().enumerate() {
        if cell.backend != Backend::Group && load.kind != Kind::Spin {
            wrong.push(format!("load {:?}: VMs only compute: kind = \"spin\"", load.name));
        }
        if loads[..index].iter().any(|other| other.name == load.name) {
            wrong.push(format!("load {:?} is there twice", load.name));
        }
    }
    let limits = limits(&raw.limits, &mut wrong);
    let warnings = raw.warning.into_iter().filter_map(|raw| pattern(raw, &mut wrong)).collect();
    if !wrong.is_empty() {
        return Err(failed(wrong));
    }
    let stem = name.rsplit('/').next().unwrap_or(name);
    Ok(Experiment {
        name: stem.strip_suffix(".toml").unwrap_or(stem).to_owned(),
        about: raw.about,
        source: text.to_owned(),
        cell,
        reserve: raw.ladder.reserve,
        placements,
        loads,
        repeats: raw.repeats,
        seed: raw.seed,
        limits,
        warnings,
    })
}

/// Memory of a guest that is told nothing else, and the least that a kernel starts with.
const GUEST_MEMORY: Bytes = Bytes(256 << 20);
const LEAST_GUEST_MEMORY: Bytes = Bytes(128 << 20);

fn cell(raw: RawCell, wrong: &mut Vec<String>) -> Cell {
    let memory = raw.memory.as_deref().map(str::parse::<Bytes>).transpose();
    let mut memory = memory.unwrap_or_else(|error| {
        wrong.push(format!("cell.memory: {error}"));
        None
    });
    let accel = match raw.accel.as_deref() {
        None | Some("kvm") => Accel::Kvm,
        Some("tcg") => Accel::Tcg,
        Some(other) => {
            wrong.push(format!(
                "cell.accel = {other:?}: it is kvm, or tcg, which only shows that all parts work"
            ));
            Accel::Kvm
        }
    };
    let backend = match raw.backend.as_deref() {
        None | Some("cgroup") => {
            if raw.kernel.is_some() || raw.accel.is_some() {
                wrong.push("cell: kernel and accel are of backend = \"qemu\"".to_owned());
            }
            Backend::Group
        }
        Some("qemu") => {
            let enough = *memory.get_or_insert(GUEST_MEMORY) >= LEAST_GUEST_MEMORY;
            if !enough {
                wrong.push(format!("cell.memory: a guest needs {} MiB at least", LEAST_GUEST_MEMORY.0 >> 20));
            }
            if raw.kernel.as_ref().is_some_and(|kernel| !kernel.is_absolute()) {
                wrong.push("cell.kernel: it is a path from / to a kernel, such as /boot/vmlinuz".to_owned());
            }
            Backend::Qemu(Vm { kernel: raw.kernel, accel })
        }
        Some(other) => {
            wrong.push(format!("cell.backend = {other:?}: it is cgroup or qemu"));
            Backend::Group
        }
    };
    Cell { vcpu: raw.vcpu, memory, quota: raw.quota, backend }
}

fn pattern(raw: RawWarning, wrong: &mut Vec<String>) -> Option<Pattern> {
    let at = format!("warning {:?}", raw.name);
    if raw.contains.is_empty() && raw.regex.is_none() {
        wrong.push(format!("{at}: say what a line contains, or its regex"));
    }
    let regex = match raw.regex.as_deref().map(Regex::new).transpose() {
        Ok(regex) => regex.map(Expression),
        // The place in it is marked on a line of its own.
        Err(error) => {
            wrong.push(format!("{at}: regex: {error}"));
            return None;
        }
    };
    Some(Pattern { name: raw.name, file: raw.file, contains: raw.contains, regex })
}

/// How long a rung may take where the file does not say it.
const TIMEOUT: Duration = Duration::from_secs(600);

fn limits(raw: &RawLimits, wrong: &mut Vec<String>) -> Limits {
    let mut duration = |name: &str, text: Option<&str>| match text.map(str::parse::<Millis>) {
        None => TIMEOUT,
        Some(Ok(millis)) if millis.0 > 0 => Duration::from_millis(millis.0),
        Some(Ok(_)) => {
            wrong.push(format!("limits.{name}: it must be above zero"));
            TIMEOUT
        }
        Some(Err(error)) => {
            wrong.push(format!("limits.{name}: {error}"));
            TIMEOUT
        }
    };
    let times = raw.timeout.as_deref().and_then(|text| text.strip_suffix('x'));
    let (timeout, times_first) = match times.map(|text| text.trim().parse::<f64>()) {
        None => (duration("timeout", raw.timeout.as_deref()), None),
        Some(times) => {
            (duration("timeout-first", raw.timeout_first.as_deref()), Some(times.unwrap_or(f64::NAN)))
        }
    };
    if times_first.is_some_and(|times| !(1.0..=1000.0).contains(&times)) {
        wrong.push(
            "limits.timeout: so many times as long as the first placement are 1x to 1000x, such as 3x"
                .to_owned(),
        );
    }
    if times_first.is_none() && raw.timeout_first.is_some() {
        wrong.push("limits.timeout-first goes with a timeout such as \"3x\"".to_owned());
    }
    if let Some(most) = raw.max_steal.filter(|most| most.is_nan() || *most < 0.0) {
        wrong.push(format!("limits.max-steal = {most}: it is a percentage, 0 or more"));
    }
    Limits {
        timeout,
        times_first,
        stop_after: raw.stop_after.unwrap_or(2).max(1),
        max_steal_pct: raw.max_steal,
    }
}

fn load(raw: RawLoad, wrong: &mut Vec<String>) -> Option<Load> {
    let before = wrong.len();
    let at = format!("load {:?}", raw.name);
    let mut concurrency = raw.concurrency.clone();
    concurrency.sort_unstable();
    concurrency.dedup();
    if concurrency.is_empty() || concurrency.iter().any(|one| *one == 0 || *one > MOST) {
        wrong.push(format!("{at}: concurrency is a list of 1 to {MOST}, such as [1, 4, 8]"));
    }
    let tpcds = |wrong: &mut Vec<String>| {
        let scale = raw.scale.unwrap_or(0.1);
        if !(0.001..=1000.0).contains(&scale) {
            wrong.push(format!("{at}: scale = {scale}: it is 0.001 to 1000"));
        }
        let lite = match raw.queries.as_deref() {
            None | Some("lite") => true,
            Some("full") => false,
            Some(other) => {
                wrong.push(format!("{at}: queries = {other:?}: they are \"lite\" or \"full\""));
                true
            }
        };
        Tpcds { scale_milli: (scale * 1000.0).round() as u32, lite, cold: raw.cold }
    };
    let memory = match raw.memory.as_deref().map(str::parse::<Bytes>).transpose() {
        Ok(memory) => memory,
        Err(error) => {
            wrong.push(format!("{at}: memory: {error}"));
            None
        }
    };
    let kind = match raw.kind.as_str() {
        "spin" => Kind::Spin,
        "mpp" => Kind::Mpp,
        "duckdb" => Kind::Duckdb(tpcds(wrong)),
        "postgres" => Kind::Postgres(tpcds(wrong)),
        "program" => match raw.command.clone() {
            Some(command) if !command.is_empty() => Kind::Program(command),
            _ => {
                wrong.push(format!("{at}: a program needs its command"));
                return None;
            }
        },
        other => {
            wrong.push(format!("{at}: kind = {other:?}: it is spin, mpp, duckdb, postgres or program"));
            return None;
        }
    };
    let of_tpcds = matches!(kind, Kind::Duckdb(_) | Kind::Postgres(_));
    if !of_tpcds && (raw.scale.is_some() || raw.queries.is_some() || raw.cold) {
        wrong.push(format!("{at}: scale, queries and cold are of duckdb and postgres"));
    }
    if raw.command.is_some() && !matches!(kind, Kind::Program(_)) {
        wrong.push(format!("{at}: command is of kind program"));
    }
    let work = match (&kind, raw.work) {
        (Kind::Duckdb(Tpcds { lite, .. }) | Kind::Postgres(Tpcds { lite, .. }), None) => {
            if *lite {
                51
            } else {
                99
            }
        }
        (Kind::Duckdb(_) | Kind::Postgres(_), Some(_)) => {
            wrong.push(format!("{at}: its work is its queries, 51 or 99"));
            1
        }
        (_, Some(work)) if work > 0 => work,
        _ => {
            wrong.push(format!("{at}: work is the units of one session, 1 or more"));
            1
        }
    };
    (wrong.len() == before).then_some(Load { name: raw.name, kind, work, memory, concurrency })
}

/// Ladders that come with the program.
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
        for want in
            ["cell.vcpu = 0: it is 1 to", "cell.memory:", "1 cells are there twice", "work is the units"]
        {
            assert!(wrong.contains(want), "{want}: {wrong}");
        }
        let check = |from: &str, to: &str, want: &str| {
            let wrong = parse("x", &GOOD.replace(from, to)).unwrap_err().to_string();
            assert!(wrong.contains(want), "{wrong}");
        };
        check("kind = \"spin\"", "kind = \"spn\"", "it is spin, mpp, duckdb, postgres or program");
        check("kind = \"spin\"", "kind = \"program\"", "a program needs its command");
        check("work = 500", "work = 500\nscale = 1.0", "are of duckdb and postgres");
        check("repeats = 6", "repeat = 6", "unknown field `repeat`");
        check("[4, 1, 2]", "[0]", "concurrency is a list");
        check("work = 500", "work = 500\nmemory = \"1\"", "load \"spin\": memory:");
        check("work = 500\n", "work = 500\nqueries = \"lite\"\n", "are of duckdb and postgres");
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
        check("backend = \"xen\"", "it is cgroup or qemu");
        check("backend = \"qemu\"\naccel = \"hvf\"", "it is kvm, or tcg");
        check("accel = \"tcg\"", "are of backend = \"qemu\"");
        check("backend = \"qemu\"\nkernel = \"vmlinuz\"", "a path from /");
        check("backend = \"qemu\"\nmemory = \"16 MiB\"", "128 MiB at least");
        let mpp = GOOD
            .replace("vcpu = 1", "vcpu = 1\nbackend = \"qemu\"")
            .replace("kind = \"spin\"", "kind = \"mpp\"");
        assert!(parse("x", &mpp).unwrap_err().to_string().contains("VMs only compute"));
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
            assert!(wrong.contains("are 1x to 1000x"), "{bad}: {wrong}");
        }
        let wrong = limits("timeout = \"9 s\"\ntimeout-first = \"9 s\"").unwrap_err().to_string();
        assert!(wrong.contains("goes with a timeout such as"), "{wrong}");
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
        // What is wrong, and under which character.
        assert!(wrong.contains("warning \"net\": regex") && wrong.contains("unclosed group"), "{wrong}");
        assert!(wrong.lines().any(|line| line.trim() == "^"), "{wrong}");
        assert!(file("").unwrap_err().to_string().contains("say what a line contains"));
    }

    #[test]
    fn shipped_files_are_right() {
        for (name, text) in SHIPPED {
            let got = parse(name, text).unwrap_or_else(|error| panic!("{error}"));
            assert!(!got.about.is_empty() && got.placements.len() > 1, "{name}");
        }
    }
}
