//! Loading the BPF program and reading its maps. It changes nothing, and is gone with the process that loaded it.

use crate::figures::{ByKind, Counters, Culprit, Figures, Kind, OfSubject, Thread, ThreadState};
use crate::histogram::{Histogram, SLOTS};
use crate::{NoJudge, Scope, Subject};
use commensal_host::Host;
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Typedef;
use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Iter, Link, MapCore, MapFlags, OpenObject, ProgramMut};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Generated from the BPF object.
#[allow(unsafe_code, clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
#[allow(missing_docs, missing_debug_implementations)]
#[allow(unused_qualifications, dead_code, non_snake_case)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/blame.skel.rs"));
}
use skel::{BlameProgs, BlameSkel, BlameSkelBuilder};

const ONLINE: u32 = Kind::Online as u32;
const OFFLINE: u32 = Kind::Offline as u32;
const MOST_SUBJECTS: usize = 255;
const KINDS: usize = Kind::ALL.len();
/// Words of `struct cpu_state` before `since` and the kind.
const SINCE: usize = KINDS;
const SIBLINGS: usize = 3;
/// Bytes of `struct cpu_state` before its siblings.
const SIBLINGS_AT: usize = 8 * (KINDS + 1) + 8 + 8 * 4 + 8 + 8 + 8;
/// Of `struct thread`.
const THREAD: usize = 4 * 4 + 8 * (KINDS + 8);
/// Of `enum state`.
const ASLEEP: u32 = 1;
const RUNNING: u32 = 2;

/// Attached; detached when dropped, and when the process dies.
pub struct Judge {
    // Before the programs that they belong to.
    dump: Link,
    _links: Vec<Link>,
    skel: BlameSkel<'static>,
    scope: Scope,
    began_ns: u64,
}

impl std::fmt::Debug for Judge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Judge").field("scope", &self.scope).finish_non_exhaustive()
    }
}

impl Judge {
    /// Loads and attaches it; from then on it counts.
    ///
    /// # Errors
    /// When the kernel lacks BTF, refuses, or there are too many subjects.
    pub fn attach(host: &dyn Host, scope: &Scope) -> Result<Judge, NoJudge> {
        if scope.online.len() > MOST_SUBJECTS {
            return Err(NoJudge::TooMany(scope.online.len()));
        }
        quiet();
        let btf = Btf::from_vmlinux().map_err(|_| NoJudge::NoBtf)?;
        // The skeleton borrows its place for as long as it lives. That is never given back: some bytes per judge, in a
        // process that has one or a few. What is in the place is dropped with the skeleton.
        let place: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = BlameSkelBuilder::default().open(place).map_err(refused("open the judge"))?;
        let cpus = libbpf_rs::num_possible_cpus().map_err(refused("count the CPUs"))?;
        {
            let settings = open.maps.rodata_data.as_deref_mut().ok_or_else(|| missing("rodata"))?;
            settings.unified = scope.unified;
            settings.verify = scope.verify;
            let processes = scope
                .online
                .iter()
                .chain(&scope.offline)
                .any(|subject| matches!(subject, Subject::Process(_)));
            settings.processes = processes;
        }
        let count = u32::try_from(cpus).unwrap_or(u32::MAX);
        open.maps.cpus.set_max_entries(count).map_err(refused("size the judge"))?;
        open.maps.rings.set_max_entries(count).map_err(refused("size the judge"))?;
        if let Some(room) = scope.room {
            open.maps.culprits.set_max_entries(room).map_err(refused("size the judge"))?;
        }
        // x86 has a vector of its own for the timer, which other machines handle as an interrupt.
        let timer =
            scope.interrupts && btf.type_by_name::<Typedef<'_>>("btf_trace_local_timer_entry").is_some();
        for mut program in open.open_object_mut().progs_mut() {
            let wanted = match program.name().to_str() {
                Some("on_irq_entry" | "on_irq_exit" | "on_softirq_entry" | "on_softirq_exit") => {
                    scope.interrupts
                }
                Some("on_timer_entry" | "on_timer_exit") => timer,
                _ => true,
            };
            program.set_autoload(wanted);
        }
        let skel = open.load().map_err(|error| match error.kind() {
            libbpf_rs::ErrorKind::PermissionDenied => NoJudge::Forbidden(error.to_string()),
            _ => refused("load the judge")(error),
        })?;
        classes(&skel, scope)?;
        siblings(host, &skel, cpus)?;
        let mut links = Vec::new();
        let programs = &skel.progs;
        let mut attach = |program: &ProgramMut<'_>| -> Result<(), NoJudge> {
            links.push(program.attach().map_err(refused("attach the judge"))?);
            Ok(())
        };
        for program in of_scheduling(programs) {
            attach(program)?;
        }
        if scope.interrupts {
            for program in [
                &programs.on_irq_entry,
                &programs.on_irq_exit,
                &programs.on_softirq_entry,
                &programs.on_softirq_exit,
            ] {
                attach(program)?;
            }
        }
        if timer {
            attach(&programs.on_timer_entry)?;
            attach(&programs.on_timer_exit)?;
        }
        let dump = programs.threads.attach().map_err(refused("attach the list of threads"))?;
        let mut judge = Judge { dump, _links: links, skel, scope: scope.clone(), began_ns: 0 };
        judge.began_ns = now();
        judge.enable(true)?;
        Ok(judge)
    }

    /// Watches others from now on. That costs some entries of a map, where a new judge costs the kernel some 200 ms of looking
    /// through its programs. The sums of [`Judge::totals`] go on; those by subject mix old and new subjects. `false` when it
    /// takes a new judge: processes are subjects, or more than subjects has changed.
    ///
    /// # Errors
    /// When there are too many subjects, or a map cannot be written.
    pub fn follow(&mut self, scope: &Scope) -> Result<bool, NoJudge> {
        if scope.online.len() > MOST_SUBJECTS {
            return Err(NoJudge::TooMany(scope.online.len()));
        }
        let numbers = |scope: &Scope| -> Option<BTreeSet<u64>> {
            let cgroup = |subject: &Subject| match subject {
                Subject::Cgroup(id) => Some(*id),
                Subject::Process(_) => None,
            };
            scope.online.iter().chain(&scope.offline).map(cgroup).collect()
        };
        let rest = |scope: &Scope| Scope { online: Vec::new(), offline: Vec::new(), ..scope.clone() };
        let (Some(before), Some(now)) = (numbers(&self.scope), numbers(scope)) else { return Ok(false) };
        if rest(&self.scope) != rest(scope) {
            return Ok(false);
        }
        for gone in before.difference(&now) {
            self.skel.maps.classes.delete(&gone.to_ne_bytes()).map_err(refused("name the subjects"))?;
        }
        classes(&self.skel, scope)?;
        // What threads remember of their class is stale now.
        let data = self.skel.maps.data_data.as_deref_mut().ok_or_else(|| missing("data"))?;
        data.generation = data.generation.wrapping_add(1);
        self.scope = scope.clone();
        Ok(true)
    }

    fn enable(&mut self, on: bool) -> Result<(), NoJudge> {
        self.skel.maps.bss_data.as_deref_mut().ok_or_else(|| missing("bss"))?.enabled = u32::from(on);
        Ok(())
    }

    /// Counts no more: what is read from then on belongs together exactly. While it counts, culprits are read a moment after
    /// the waits that they are blamed for.
    ///
    /// # Errors
    /// When the program's memory is not there.
    pub fn stop(&mut self) -> Result<(), NoJudge> {
        self.enable(false)
    }

    /// The sums when it came: none.
    #[must_use]
    pub fn beginning(&self) -> Figures {
        Figures { time_ns: self.began_ns, ..Figures::default() }
    }

    /// The sums over all subjects up to now: a single reading.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn totals(&self) -> Result<Figures, NoJudge> {
        let maps = &self.skel.maps;
        let mut sums = Vec::new();
        let per_cpu = maps
            .totals
            .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(refused("read the judge"))?;
        for one in per_cpu.ok_or_else(|| missing("totals"))? {
            let words = words(&one);
            sums.resize(words.len(), 0);
            for (sum, word) in sums.iter_mut().zip(words) {
                *sum += word;
            }
        }
        let mut sums = sums.into_iter();
        let wait = by_kind(&mut sums);
        let mut counters = Counters::default();
        for (counter, sum) in counters.each().zip(sums.by_ref()) {
            *counter = sum;
        }
        let wake_delay = Histogram::new(sums.by_ref().take(SLOTS).collect());
        let preempt_delay = Histogram::new(sums.by_ref().take(SLOTS).collect());
        let evict_delay = Histogram::new(sums.by_ref().take(SLOTS).collect());
        let time_ns = now();
        Ok(Figures { time_ns, wait, counters, wake_delay, preempt_delay, evict_delay, ..Figures::default() })
    }

    /// The sums of each subject up to now, in the scope's order: a reading for each.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn subjects(&self) -> Result<Vec<OfSubject>, NoJudge> {
        let mut subjects = Vec::new();
        for index in 0..self.scope.online.len() as u32 {
            let value = self.value(&self.skel.maps.targets, &index.to_ne_bytes())?;
            let mut words = words(&value).into_iter();
            let (run_ns, waits) = (words.next().unwrap_or(0), words.next().unwrap_or(0));
            subjects.push(OfSubject { run_ns, waits, wait: by_kind(&mut words) });
        }
        Ok(subjects)
    }

    /// All sums up to now, by subject and culprit, too.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn read(&self, host: &dyn Host) -> Result<Figures, NoJudge> {
        let totals = self.totals()?;
        let maps = &self.skel.maps;
        let now = totals.time_ns;
        let mut cpu = ByKind::default();
        let mut culprits: BTreeMap<Culprit, u64> = BTreeMap::new();
        for index in 0..maps.cpus.max_entries() {
            let state = self.value(&maps.cpus, &index.to_ne_bytes())?;
            let words = words(&state);
            for (sum, ns) in cpu.0.iter_mut().zip(&words) {
                *sum += ns;
            }
            // What goes on since the last switch; a CPU that is just writing is read without.
            let (since, kind) = (words[SINCE], words[SINCE + 1] as u32 as usize);
            if since > 0 && kind < KINDS {
                cpu.0[kind] += now.saturating_sub(since);
            }
            // Blamed, and not in the list of culprits yet.
            if let Some((last, ns)) = pending(&words) {
                *culprits.entry(last).or_default() += ns;
            }
        }
        let subjects = self.subjects()?;
        for key in maps.culprits.keys() {
            let Some(value) = maps.culprits.lookup(&key, MapFlags::ANY).map_err(refused("read the judge"))?
            else {
                continue;
            };
            *culprits.entry(culprit(word(&key, 0), word(&key, 1))).or_default() += word(&value, 0);
        }
        let mut figures = Figures { subjects, cpu, culprits, ..totals };
        for program in of_scheduling(&self.skel.progs) {
            let info = format!("/proc/self/fdinfo/{}", program.as_fd().as_raw_fd());
            let info = host.read_file(Path::new(&info)).unwrap_or_default();
            let skipped = info.lines().find_map(|line| line.strip_prefix("recursion_misses:"));
            figures.skipped += skipped.and_then(|skipped| skipped.trim().parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(figures)
    }

    /// The subjects' threads that are there now.
    ///
    /// # Errors
    /// When the kernel's list cannot be read.
    pub fn threads(&self) -> Result<Vec<Thread>, NoJudge> {
        let mut bytes = Vec::new();
        let read = Iter::new(&self.dump).map_err(refused("list threads"))?.read_to_end(&mut bytes);
        read.map_err(|error| NoJudge::Refused { what: "list threads", because: error.to_string() })?;
        Ok(bytes.chunks_exact(THREAD).map(thread).collect())
    }

    fn value(&self, map: &impl MapCore, key: &[u8]) -> Result<Vec<u8>, NoJudge> {
        map.lookup(key, MapFlags::ANY)
            .map_err(refused("read the judge"))?
            .ok_or_else(|| missing("a map's value"))
    }
}

/// How many judges are at work on this machine, of whichever process; 0 where the kernel does not let this one look.
#[must_use]
pub fn count() -> usize {
    ProgInfoIter::default().filter(|one| one.name == "blame_switch").count()
}

/// What is told of the scheduler's doings, without interrupts.
fn of_scheduling<'a, 'b>(programs: &'a BlameProgs<'b>) -> [&'a ProgramMut<'b>; 5] {
    [
        &programs.blame_switch,
        &programs.on_migrate,
        &programs.on_wakeup,
        &programs.on_wakeup_new,
        &programs.on_exit,
    ]
}

/// What libbpf said last: an error number alone says little about a program that the kernel refuses.
static SAID: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());
/// Lines of it that are kept.
const LINES: usize = 12;

/// libbpf prints what it thinks; here it goes into errors.
fn quiet() {
    SAID.lock().unwrap_or_else(PoisonError::into_inner).clear();
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Warn, |_, text| {
        let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
        said.extend(text.lines().map(str::to_owned));
        while said.len() > LINES {
            said.pop_front();
        }
    })));
}

fn refused(what: &'static str) -> impl Fn(libbpf_rs::Error) -> NoJudge {
    move |error| {
        let said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
        let said: String = said.iter().map(|line| format!("\n  {line}")).collect();
        NoJudge::Refused { what, because: format!("{error:#}{said}") }
    }
}

fn missing(what: &str) -> NoJudge {
    NoJudge::Refused { what: "read the judge", because: format!("{what} is not there") }
}

fn classes(skel: &BlameSkel<'_>, scope: &Scope) -> Result<(), NoJudge> {
    let online =
        scope.online.iter().enumerate().map(|(index, subject)| (subject, ONLINE | (index as u32) << 8));
    for (subject, class) in scope.offline.iter().map(|subject| (subject, OFFLINE)).chain(online) {
        let class = class.to_ne_bytes();
        let put = match subject {
            Subject::Cgroup(id) => skel.maps.classes.update(&id.to_ne_bytes(), &class, MapFlags::ANY),
            Subject::Process(pid) => {
                skel.maps.process_classes.update(&pid.to_ne_bytes(), &class, MapFlags::ANY)
            }
        };
        put.map_err(refused("name the subjects"))?;
    }
    Ok(())
}

/// Tells the program which CPUs share a core.
fn siblings(host: &dyn Host, skel: &BlameSkel<'_>, cpus: usize) -> Result<(), NoJudge> {
    for cpu in 0..cpus {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let list = host.read_file(Path::new(&path)).unwrap_or_default();
        let list = list.trim().parse::<commensal_core::cpuset::CpuSet>().unwrap_or_default();
        let mut value = vec![0; skel.maps.cpus.value_size() as usize];
        let others = list.iter().filter(|other| *other as usize != cpu).map(|other| other as i32);
        let others: Vec<i32> = others.chain([-1; SIBLINGS]).take(SIBLINGS).collect();
        for (index, other) in others.iter().enumerate() {
            let at = SIBLINGS_AT + 4 * index;
            value[at..at + 4].copy_from_slice(&other.to_ne_bytes());
        }
        let key = (cpu as u32).to_ne_bytes();
        skel.maps.cpus.update(&key, &value, MapFlags::ANY).map_err(refused("tell siblings"))?;
    }
    Ok(())
}

/// Of `struct culprit`.
fn culprit(cgroup: u64, pair: u64) -> Culprit {
    let kind = Kind::ALL.get((pair >> 32) as usize).copied().unwrap_or(Kind::Other);
    Culprit { subject: pair as u32, kind, cgroup: (cgroup != u64::MAX).then_some(cgroup) }
}

/// The end of `struct cpu_state`.
fn pending(words: &[u64]) -> Option<(Culprit, u64)> {
    match words {
        [.., cgroup, pair, ns] if *ns > 0 => Some((culprit(*cgroup, *pair), *ns)),
        _ => None,
    }
}

fn word(bytes: &[u8], index: usize) -> u64 {
    let at = bytes.get(8 * index..8 * index + 8).and_then(|eight| eight.try_into().ok());
    u64::from_ne_bytes(at.unwrap_or_default())
}

fn words(bytes: &[u8]) -> Vec<u64> {
    (0..bytes.len() / 8).map(|index| word(bytes, index)).collect()
}

fn by_kind(words: &mut impl Iterator<Item = u64>) -> ByKind {
    ByKind(std::array::from_fn(|_| words.next().unwrap_or(0)))
}

fn thread(bytes: &[u8]) -> Thread {
    let half = |index: usize| {
        let at = bytes.get(4 * index..4 * index + 4).and_then(|four| four.try_into().ok());
        u32::from_ne_bytes(at.unwrap_or_default())
    };
    let mut rest = words(&bytes[16..]).into_iter();
    let wait = by_kind(&mut rest);
    let mut next = || rest.next().unwrap_or(0);
    let (waited_ns, waits, run_ns, slept_ns, lost_ns) = (next(), next(), next(), next(), next());
    let (seen_ns, now_ns, began_ns) = (next(), next(), next());
    let state = match half(3) {
        ..=ASLEEP => ThreadState::Asleep,
        RUNNING => ThreadState::Running,
        _ => ThreadState::Waiting,
    };
    Thread {
        tid: half(0),
        pid: half(1),
        subject: half(2),
        state,
        wait,
        waited_ns,
        waits,
        run_ns,
        slept_ns,
        lost_ns,
        seen_ns,
        now_ns,
        began_ns,
    }
}

/// The clock of the BPF program.
fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
