//! Loading the programs, attaching them, and what user space tells and reads. All of it is gone with this process.

use crate::NoScheduler;
use crate::counters;
use crate::intf::{CORE, CPU, LIMIT, MOST_CPUS, SLOT};
use crate::places::{Place, llcs};
use crate::watch::Ended;
use commensal_core::scheduler::protocol::{Counters, SlotReading};
use libbpf_rs::btf::types::{Func, FuncProto};
use libbpf_rs::btf::{Btf, BtfKind};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, OpenObject, ProgramInput, ProgramMut};
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Generated from the BPF object.
#[allow(unsafe_code, clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
#[allow(missing_docs, missing_debug_implementations)]
#[allow(unused_qualifications, dead_code, non_snake_case, non_camel_case_types)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/sched.skel.rs"));
}
use skel::{CommensalSkel, CommensalSkelBuilder};

/// Functions that every kernel has to have in this form.
const CALLED: [&str; 8] = [
    "scx_bpf_create_dsq",
    "scx_bpf_dsq_nr_queued",
    "scx_bpf_kick_cpu",
    "scx_bpf_pick_idle_cpu",
    "scx_bpf_dsq_move_to_local___v2",
    "scx_bpf_task_set_slice",
    "scx_bpf_reenqueue_local___v2",
    "bpf_iter_scx_dsq_new",
];

/// How it is loaded.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// The kernel takes it off when a thread waits for longer.
    pub watchdog: Duration,
    /// Tests: no thread is asked to leave, so that the tick has to do it.
    pub tick_alone: bool,
    /// Orders name groups of cgroup v2, else of v1's cpu controller.
    pub unified: bool,
}

/// What the verifier says of one program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// Its name.
    pub name: String,
    /// Instructions that were looked at.
    pub instructions: u64,
    /// States.
    pub states: u64,
}

/// Loaded, and attached or not; detached when dropped, and when the process dies.
pub struct Scheduler {
    // Before the programs that they belong to, and the scheduler before what feeds it.
    link: Option<Link>,
    traces: Vec<Link>,
    skel: CommensalSkel<'static>,
}

impl std::fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scheduler").field("attached", &self.link.is_some()).finish_non_exhaustive()
    }
}

/// Functions of the kernel that are called, and names of their arguments, as the kernel describes them.
#[must_use]
pub fn functions() -> Vec<(String, Vec<String>)> {
    let Ok(btf) = Btf::from_vmlinux() else { return Vec::new() };
    let function = |name: &&str| {
        let func = btf.type_by_name::<Func<'_>>(name)?;
        let prototype = func.next_type().filter(|prototype| prototype.kind() == BtfKind::FuncProto)?;
        let prototype = FuncProto::try_from(prototype).ok()?;
        let names = prototype.iter().map(|one| one.name.map(|name| name.to_string_lossy().into_owned()));
        Some(((*name).to_owned(), names.map(Option::unwrap_or_default).collect()))
    };
    CALLED.iter().filter_map(function).collect()
}

impl Scheduler {
    /// Gives the programs to the kernel, which looks through them. Nothing runs yet.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn load(settings: &Settings, places: &[Place]) -> Result<Scheduler, NoScheduler> {
        quiet();
        // The skeleton borrows its place for as long as it lives; that is never given back: some bytes per load.
        let place: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = CommensalSkelBuilder::default().open(place).map_err(refused("open the scheduler"))?;
        let cpus = libbpf_rs::num_possible_cpus().map_err(refused("count the CPUs"))?.min(MOST_CPUS);
        {
            let fixed = open.maps.rodata_data.as_deref_mut().ok_or_else(|| missing("rodata"))?;
            fixed.nr_cpus = cpus as u32;
            fixed.nr_llcs = llcs(places);
            fixed.tick_alone = settings.tick_alone;
            fixed.unified = settings.unified;
        }
        let ops = open.struct_ops.commensal_mut();
        ops.timeout_ms = u32::try_from(settings.watchdog.as_millis()).unwrap_or(30_000);
        let skel = open.load().map_err(refused("load the scheduler"))?;
        let sizes = [
            ("cpu", skel.maps.cpus.value_size(), CPU),
            ("core", skel.maps.cores.value_size(), CORE),
            ("slot", skel.maps.slots.value_size(), SLOT),
            ("limit", skel.maps.limits.value_size(), LIMIT),
        ];
        for (name, theirs, ours) in sizes {
            if theirs as usize != ours {
                return Err(missing(&format!("struct {name} of {ours} bytes (it has {theirs})")));
            }
        }
        let scheduler = Scheduler { link: None, traces: Vec::new(), skel };
        scheduler.place(places)?;
        // What no order covers.
        scheduler.set_slot(crate::intf::MOST_SLOTS as u64 - 1, true, crate::weights::WHOLE, 0)?;
        Ok(scheduler)
    }

    /// Loads the programs and says what the verifier had to look at.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn verify() -> Result<Vec<Verified>, NoScheduler> {
        let place: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        LOG.lock().unwrap_or_else(PoisonError::into_inner).clear();
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Debug, |_, text| {
            LOG.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
        })));
        let mut open = CommensalSkelBuilder::default().open(place).map_err(refused("open the scheduler"))?;
        let mut names = Vec::new();
        for mut program in open.open_object_mut().progs_mut() {
            // BPF_LOG_STATS.
            program.set_log_level(4);
            names.push(program.name().to_string_lossy().into_owned());
        }
        let loaded = open.load().map_err(refused("load the scheduler"))?;
        drop(loaded);
        let log = LOG.lock().unwrap_or_else(PoisonError::into_inner).clone();
        quiet();
        Ok(verified(&log))
    }

    /// Attaches what looks at switches, then the scheduler itself, which the kernel starts.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn attach(&mut self) -> Result<(), NoScheduler> {
        let programs = &self.skel.progs;
        let attach = |program: &ProgramMut<'_>| program.attach().map_err(refused("attach the scheduler"));
        if self.traces.is_empty() {
            self.traces = vec![attach(&programs.sched_switched)?, attach(&programs.signal_sent)?];
        }
        let link = self.skel.maps.commensal.attach_struct_ops().map_err(refused("start the scheduler"))?;
        self.link = Some(link);
        Ok(())
    }

    /// Gives a cgroup and what is below it a class.
    ///
    /// # Errors
    /// When the program in the kernel does not know the class, or has no room.
    pub fn set_group(&self, cgroup: u64, name: &str, class: u64, slot: u64) -> Result<(), NoScheduler> {
        match self.ask(&self.skel.progs.set_group, &[cgroup, class, slot])? {
            0 => Ok(()),
            _ => Err(NoScheduler::Order { class, cgroup: name.to_owned() }),
        }
    }

    /// Weight and limit of a slot.
    ///
    /// # Errors
    /// When the program in the kernel refuses.
    pub fn set_slot(&self, index: u64, used: bool, weight: u64, limit: u64) -> Result<(), NoScheduler> {
        self.told(
            self.ask(&self.skel.progs.set_slot, &[index, u64::from(used), weight, limit])?,
            "set a weight",
        )
    }

    /// Quota and period of a limit; a quota of 0 is none.
    ///
    /// # Errors
    /// When the program in the kernel refuses.
    pub fn set_limit(&self, index: u64, quota: Duration, period: Duration) -> Result<(), NoScheduler> {
        let args = [index, quota.as_nanos() as u64, period.as_nanos() as u64];
        self.told(self.ask(&self.skel.progs.set_limit, &args)?, "set a limit")
    }

    /// All groups are told: what threads remember of their class is stale now.
    ///
    /// # Errors
    /// When the program's memory is not there.
    pub fn ordered(&mut self, hold_off: Duration) -> Result<(), NoScheduler> {
        let data = self.skel.maps.data_data.as_deref_mut().ok_or_else(|| missing("data"))?;
        data.generation = data.generation.wrapping_add(1);
        let zero = self.skel.maps.bss_data.as_deref_mut().ok_or_else(|| missing("bss"))?;
        zero.hold_off_ns = hold_off.as_nanos() as u64;
        Ok(())
    }

    /// Tells siblings, cores and caches of CPUs; what is counted of them stays.
    ///
    /// # Errors
    /// When a map cannot be written.
    pub fn place(&self, places: &[Place]) -> Result<(), NoScheduler> {
        for place in places {
            let key = place.cpu.to_ne_bytes();
            let mut value = self.value(&self.skel.maps.cpus, &key)?;
            let mut fixed: Vec<u8> = place.siblings.iter().flat_map(|cpu| cpu.to_ne_bytes()).collect();
            fixed.extend(place.core.to_ne_bytes());
            fixed.extend(place.llc.to_ne_bytes());
            if value.starts_with(&fixed) {
                continue;
            }
            value[..fixed.len()].copy_from_slice(&fixed);
            self.skel.maps.cpus.update(&key, &value, MapFlags::ANY).map_err(refused("place the CPUs"))?;
        }
        Ok(())
    }

    /// Sums over the machine.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn counters(&self) -> Result<Counters, NoScheduler> {
        let (mut sums, now) = (Counters::default(), now_ns());
        let cpus = libbpf_rs::num_possible_cpus().map_err(refused("count the CPUs"))?.min(MOST_CPUS);
        for cpu in 0..cpus as u32 {
            counters::add_cpu(&mut sums, &self.value(&self.skel.maps.cpus, &cpu.to_ne_bytes())?, now);
            counters::add_core(&mut sums, &self.value(&self.skel.maps.cores, &cpu.to_ne_bytes())?);
        }
        Ok(sums)
    }

    /// What a slot has used, and how long its threads wait.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn slot(&self, index: u64) -> Result<SlotReading, NoScheduler> {
        Ok(counters::slot(&self.value(&self.skel.maps.slots, &(index as u32).to_ne_bytes())?))
    }

    /// When a fatal signal was sent last, by the clock of the programs; 0 when none was.
    #[must_use]
    pub fn killed_at(&self) -> u64 {
        self.skel.maps.bss_data.as_deref().map_or(0, |bss| bss.killed_at)
    }

    /// Why the kernel has taken it off, and its dump; `None` while it runs.
    #[must_use]
    pub fn ended(&self) -> Option<(Ended, String)> {
        let ended = &self.skel.maps.bss_data.as_deref()?.ended;
        if ended.kind == 0 || self.link.is_none() {
            return None;
        }
        let text = |chars: &[i8]| -> String {
            chars.iter().take_while(|one| **one != 0).map(|one| one.to_ne_bytes()[0] as char).collect()
        };
        let dump = self.value(&self.skel.maps.dumps, &0u32.to_ne_bytes()).unwrap_or_default();
        let end = dump.iter().position(|byte| *byte == 0).unwrap_or(dump.len());
        let dump = String::from_utf8_lossy(&dump[..end]).into_owned();
        let (reason, message) = (text(&ended.reason), text(&ended.message));
        Some((Ended { kind: ended.kind, code: ended.code, reason, message }, dump))
    }

    /// Runs one of the programs that take orders.
    fn ask(&self, program: &ProgramMut<'_>, args: &[u64]) -> Result<i32, NoScheduler> {
        let mut context: Vec<u8> = args.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let input = ProgramInput { context_in: Some(&mut context), ..ProgramInput::default() };
        let output = program.test_run(input).map_err(refused("order the scheduler"))?;
        Ok(output.return_value as i32)
    }

    fn told(&self, answer: i32, what: &'static str) -> Result<(), NoScheduler> {
        match answer {
            0 => Ok(()),
            number => Err(NoScheduler::Refused { what, because: format!("the program answered {number}") }),
        }
    }

    fn value(&self, map: &impl MapCore, key: &[u8]) -> Result<Vec<u8>, NoScheduler> {
        map.lookup(key, MapFlags::ANY)
            .map_err(refused("read the scheduler"))?
            .ok_or_else(|| missing("a map's value"))
    }
}

/// What libbpf said last: an error number alone says little about a program that the kernel refuses.
static SAID: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());
/// Lines of it that are kept.
const LINES: usize = 40;
/// What the verifier counts.
static LOG: Mutex<String> = Mutex::new(String::new());

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

/// `prog 'NAME': …` and, some lines on, `processed N insns (limit …) max_states_per_insn … total_states M …`.
fn verified(log: &str) -> Vec<Verified> {
    let mut all = Vec::new();
    let mut name = String::new();
    for line in log.lines() {
        if let Some(rest) = line.split("prog '").nth(1) {
            name = rest.split('\'').next().unwrap_or_default().to_owned();
        }
        let number = |word: &str| -> Option<u64> {
            let mut words = line.split_whitespace();
            words.find(|one| *one == word)?;
            words.next()?.parse().ok()
        };
        if let (Some(instructions), Some(states)) = (number("processed"), number("total_states")) {
            all.push(Verified { name: name.clone(), instructions, states });
        }
    }
    all
}

fn refused(what: &'static str) -> impl Fn(libbpf_rs::Error) -> NoScheduler {
    move |error| {
        let said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
        let said: String = said.iter().map(|line| format!("\n  {line}")).collect();
        NoScheduler::Refused { what, because: format!("{error:#}{said}") }
    }
}

fn missing(what: &str) -> NoScheduler {
    NoScheduler::Refused { what: "read the scheduler", because: format!("{what} is not there") }
}

/// The clock of the programs.
fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verifiers_words() {
        let log = "libbpf: prog 'sched_tick': -- BEGIN PROG LOAD LOG --\nprocessed 77 insns (limit 1000000) \
                   max_states_per_insn 1 total_states 9 peak_states 9 mark_read 1\n-- END PROG LOAD LOG --\n";
        let expect = Verified { name: "sched_tick".to_owned(), instructions: 77, states: 9 };
        assert_eq!(verified(log), [expect]);
    }
}
