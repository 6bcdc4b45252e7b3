//! Proposes a groups file for a machine: which services look online and which work looks offline, each with the reason.
//!
//! ```text
//! sensors ── Inventory ──► homes: units, containers, pods, programs ──► Proposal ──► text of a groups file
//! ```
//! A home is what a match in the groups file can select. Facts about its processes decide: a home that accepts
//! connections looks online; one that a timer starts, that runs at a low priority, that runs a known batch program, or
//! that is busy although nobody can connect to it, looks offline. A home with signs of both is left to the user.
//! [`machine`] lists what belongs to the machine itself and is never proposed for a group.

mod machine;
mod sources;
mod text;

pub use sources::{CronJob, cron_jobs, timer_unit};

use crate::actual::CgroupPath;
use crate::group::{Match, PodQos};
use crate::member::{in_container, is_of_pods};
use crate::process::{SCHED_BATCH, SCHED_IDLE};
use std::collections::{BTreeMap, BTreeSet};

/// CPU use from which work that nobody can connect to looks like batch work, in CPUs.
const BUSY_CPUS: f64 = 0.1;

/// What was seen of a machine during two looks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Inventory {
    /// Time between the two looks (s).
    pub window_s: f64,
    /// All processes, kernel threads excepted.
    pub processes: Vec<SeenProcess>,
    /// Names of the running containers, by the identifier of 64 digits.
    pub containers: BTreeMap<String, String>,
    /// Units started by systemd's timers: the timer of each unit.
    pub timers: BTreeMap<String, String>,
    /// Jobs of cron.
    pub jobs: Vec<CronJob>,
    /// What could not be seen, and why.
    pub unseen: Vec<String>,
}

/// A process during two looks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SeenProcess {
    /// Path of the program; its name if the path could not be read.
    pub exe: String,
    /// The arguments; the first is the program.
    pub args: Vec<String>,
    /// Cgroup of the process; the root if it is in no other.
    pub cgroup: CgroupPath,
    /// CPU time of the process and of the children it has waited for, at the two looks (s). 0 at a look at which the
    /// process did not exist.
    pub cpu_s: [f64; 2],
    /// Nice value.
    pub nice: i32,
    /// Scheduling policy.
    pub policy: i32,
    /// The TCP ports and local sockets on which the process accepts connections; `None` if that could not be read.
    pub listens: Option<Vec<String>>,
}

/// What a match of a groups file can select.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Home {
    Unit(String),
    Container(String),
    Pods(PodQos),
    /// A program, and for a program that interprets another one, an argument that identifies that one.
    Program {
        exe: String,
        script: Option<String>,
        in_unit: bool,
    },
}

/// What was seen of the processes of one unit, container or program.
#[derive(Debug, Default)]
struct Facts {
    cpus: f64,
    listens: BTreeSet<String>,
    /// Whether it could not be read for some process.
    hidden: bool,
    processes: usize,
    /// Number of processes with a low priority.
    low: usize,
    batch: Option<String>,
    timer: Option<String>,
    /// A program of the machine itself that runs in it.
    machine: Option<String>,
}

/// One line of the proposed groups file.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposed {
    /// The match; `None` for work that no match can select, because it runs in a session of systemd.
    pub one: Option<Match>,
    /// What the work is, for entries without a match.
    pub name: String,
    /// Why it is proposed.
    pub reason: String,
    /// CPU use, in CPUs.
    pub cpus: f64,
}

/// The proposal: for each class, what looks like it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Proposal {
    /// What looks online.
    pub online: Vec<Proposed>,
    /// What looks offline.
    pub offline: Vec<Proposed>,
    /// Work that has signs of both classes, or of which too little could be seen.
    pub undecided: Vec<Proposed>,
    /// Jobs of cron.
    pub jobs: Vec<CronJob>,
    /// What belongs to the machine itself.
    pub machine: BTreeSet<String>,
    /// Number of homes that were idle and accept no connections.
    pub idle: usize,
    /// What could not be seen, and why.
    pub unseen: Vec<String>,
}

impl Proposal {
    /// Whether no work was found that looks online or offline.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.online.is_empty() && self.offline.is_empty()
    }
}

/// Proposes groups for a machine.
#[must_use]
pub fn propose(seen: &Inventory) -> Proposal {
    let mut proposal =
        Proposal { jobs: seen.jobs.clone(), unseen: seen.unseen.clone(), ..Proposal::default() };
    let mut nameless = 0;
    let mut homes: BTreeMap<Home, Facts> = BTreeMap::new();
    for process in &seen.processes {
        match home(process, &seen.containers) {
            Ok(Some(home)) => homes.entry(home).or_default().add(process, seen.window_s),
            Ok(None) => {}
            Err(Nameless) => nameless += 1,
        }
    }
    if nameless > 0 {
        let note = format!("{nameless} processes of containers that no engine has named");
        proposal.unseen.push(note);
    }
    for (unit, timer) in &seen.timers {
        homes.entry(Home::Unit(unit.clone())).or_default().timer = Some(timer.clone());
    }
    for (home, facts) in homes {
        proposal.place(home, &facts);
    }
    let by_use = |a: &Proposed, b: &Proposed| b.cpus.total_cmp(&a.cpus).then_with(|| a.name.cmp(&b.name));
    for entries in [&mut proposal.online, &mut proposal.offline, &mut proposal.undecided] {
        entries.sort_by(by_use);
    }
    proposal
}

/// A process of a container whose name is unknown.
struct Nameless;

/// The home of a process; `None` for programs that no match should select.
fn home(process: &SeenProcess, containers: &BTreeMap<String, String>) -> Result<Option<Home>, Nameless> {
    let path = &process.cgroup;
    let above = path.ancestors().into_iter().chain([path.clone()]);
    for qos in [PodQos::BestEffort, PodQos::Burstable, PodQos::Guaranteed] {
        if above.clone().any(|path| is_of_pods(&path, qos)) {
            return Ok(Some(Home::Pods(qos)));
        }
    }
    let words = path.parts().flat_map(|part| part.split(['-', '.', ':', '_']));
    if let Some(name) = words.filter(|word| word.len() == 64).find_map(|id| containers.get(id)) {
        // The engine's answer is the other side's text: a name without letters is no name.
        return if name.trim().is_empty() { Err(Nameless) } else { Ok(Some(Home::Container(name.clone()))) };
    }
    if in_container(path) {
        return Err(Nameless);
    }
    let unit = path.unit();
    let of_user = path.parts().next() == Some("user.slice");
    let service = unit.as_ref().map(CgroupPath::name).filter(|name| !of_user && name.ends_with(".service"));
    if let Some(name) = service {
        return Ok(Some(Home::Unit(name.to_owned())));
    }
    Ok(program(process, unit.is_some()))
}

fn program(process: &SeenProcess, in_unit: bool) -> Option<Home> {
    let name = base(&process.exe);
    let exe = process.exe.clone();
    if process.exe.trim().is_empty() {
        return None;
    }
    if machine::is_interpreter(name) {
        // `java -jar x.jar`, `python3 -u /opt/etl.py`: the first argument that is not an option. After -c and -e, it is
        // the program's text.
        let is_text = process.args.iter().any(|arg| arg == "-c" || arg == "-e");
        let script = process.args.iter().skip(1).find(|arg| !arg.starts_with('-'));
        let script = script.filter(|arg| !is_text && arg.trim().chars().count() >= 4)?;
        return Some(Home::Program { exe, script: Some(script.clone()), in_unit });
    }
    Some(Home::Program { exe, script: None, in_unit })
}

fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

impl Facts {
    fn add(&mut self, process: &SeenProcess, window_s: f64) {
        let [before, after] = process.cpu_s;
        // A child that exits moves its time to its parent, so only the sum over the home is the home's use.
        self.cpus += if window_s > 0.0 { (after - before) / window_s } else { 0.0 };
        self.processes += 1;
        self.low += usize::from(process.nice > 0 || [SCHED_IDLE, SCHED_BATCH].contains(&process.policy));
        match &process.listens {
            Some(listens) => self.listens.extend(listens.iter().cloned()),
            None => self.hidden = true,
        }
        let name = base(&process.exe);
        if machine::is_program(name) {
            self.machine = Some(name.to_owned());
        } else if machine::is_batch(name) {
            self.batch = Some(name.to_owned());
        }
    }

    /// Signs of batch work.
    fn signs(&self) -> Vec<String> {
        let timer = self.timer.as_ref().map(|timer| format!("started by {timer}"));
        let all_low = self.processes > 0 && self.low == self.processes;
        let low = all_low.then(|| "runs at a low priority (nice, SCHED_BATCH or SCHED_IDLE)".to_owned());
        let batch = self.batch.as_ref().map(|name| format!("runs {name}"));
        timer.into_iter().chain(low).chain(batch).collect()
    }
}

impl Proposal {
    /// Puts a home where its facts say.
    fn place(&mut self, home: Home, facts: &Facts) {
        let one = home.as_match();
        let name = home.name();
        let own = match (&home, &facts.machine) {
            (Home::Unit(unit), _) if machine::is_unit(unit) => Some(name.clone()),
            (Home::Program { .. }, Some(program)) => Some(program.clone()),
            (_, Some(program)) => Some(format!("{name} ({program})")),
            (_, None) => None,
        };
        if let Some(own) = own {
            self.machine.insert(own);
            return;
        }
        let cpus = facts.cpus.max(0.0);
        let mut reasons = facts.signs();
        let looks_offline = !reasons.is_empty();
        let looks_online = !facts.listens.is_empty();
        let busy = cpus >= BUSY_CPUS;
        reasons.extend(looks_online.then(|| format!("accepts connections on {}", few(&facts.listens))));
        if facts.processes > 0 {
            reasons.push(format!("used {cpus:.2} CPUs"));
        }
        let to = match (looks_online, looks_offline) {
            (true, true) => &mut self.undecided,
            (true, false) => &mut self.online,
            (false, true) => &mut self.offline,
            (false, false) if !busy => {
                self.idle += 1;
                return;
            }
            (false, false) if facts.hidden => {
                reasons.push("whether it accepts connections could not be seen".to_owned());
                &mut self.undecided
            }
            (false, false) => {
                reasons.push("accepts no connections".to_owned());
                &mut self.offline
            }
        };
        to.push(Proposed { one, name, reason: reasons.join("; "), cpus });
    }
}

/// Some of the ports and sockets, for a reason.
fn few(listens: &BTreeSet<String>) -> String {
    const FEW: usize = 3;
    let shown: Vec<&str> = listens.iter().take(FEW).map(String::as_str).collect();
    match listens.len().saturating_sub(FEW) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

impl Home {
    fn name(&self) -> String {
        match self {
            Home::Unit(name) => name.clone(),
            Home::Container(name) => format!("container {name}"),
            Home::Pods(qos) => format!("{qos} pods"),
            Home::Program { exe, script: None, .. } => exe.clone(),
            Home::Program { exe, script: Some(script), .. } => format!("{exe} {script}"),
        }
    }

    /// The match that selects the home. systemd is the only writer of its units' cgroups, so a match cannot move a
    /// process out of one.
    fn as_match(&self) -> Option<Match> {
        Some(match self {
            Home::Unit(name) => Match::Systemd(name.clone()),
            Home::Container(name) => Match::DockerName(name.clone()),
            Home::Pods(qos) => Match::Kubernetes(*qos),
            Home::Program { in_unit: true, .. } => return None,
            Home::Program { exe, script, in_unit: false } => {
                Match::Process { exe: Some(exe.clone()), user: None, cmdline: script.clone() }
            }
        })
    }
}

#[cfg(test)]
mod tests;
