//! Loads and attaches the BPF programs, and exchanges data with them. The kernel removes all programs when this process
//! exits. A slot is the programs' entry for one group of offline threads: its weight, its hard limit and its counters.

use crate::LoadError;
use crate::counters;
use crate::intf::{self, CLASS_IDLE, Core, Cpu, Fixed, MOST_CPUS, Notes, Orders, Slot};
use crate::places::{CpuPlace, llcs};
use crate::watch::Ended;
use commensal_core::scheduler::protocol::{Counters, SlotReading};
use commensal_sched_bpf::OBJECT;
use libbpf_rs::btf::types::{Func, FuncProto};
use libbpf_rs::btf::{Btf, BtfKind};
use libbpf_rs::{
    Link, Map, MapCore, MapFlags, MapMut, Object, ObjectBuilder, OpenObject, ProgramInput, ProgramMut,
};
use object::{Object as _, ObjectSection};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Name of the scheduler's BPF map, which holds its table of operations.
const OPS: &str = "commensal";
/// The scheduler's structure, and the member of it that is set before loading.
const OPS_STRUCT: (&str, &str) = ("sched_ext_ops", "timeout_ms");
/// Name of the map with [`Fixed`].
const FIXED: &str = ".rodata.settings";
/// Name of the map with [`Orders`].
const ORDERS: &str = ".data.orders";
/// Name of the map with [`Notes`].
const NOTES: &str = ".data.notes";

/// Kernel functions that the BPF programs call. The kernel's functions must have the expected arguments.
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

/// Settings for loading.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// How long a runnable thread may wait before the kernel ejects the scheduler.
    pub watchdog: Duration,
    /// For tests: the scheduler does not kick offline threads from a core, so only the tick evicts them.
    pub tick_alone: bool,
    /// Whether group paths in orders refer to cgroup v2; otherwise they refer to the v1 cpu hierarchy.
    pub unified: bool,
}

/// The verifier's statistics of one program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// Name of the program.
    pub name: String,
    /// Number of instructions verified.
    pub instructions: u64,
    /// Number of states that the verifier has explored.
    pub states: u64,
}

/// The loaded scheduler, attached or not. It is detached when this value is dropped or the process exits.
pub struct Scheduler {
    // The order of the fields matters, because they are dropped in this order: first the link of the scheduler, then
    // the links of the supporting programs, then the programs.
    link: Option<Link>,
    traces: Vec<Link>,
    loaded: Object,
    generation: u64,
}

impl std::fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scheduler").field("attached", &self.link.is_some()).finish_non_exhaustive()
    }
}

/// Returns the kernel functions that the BPF programs call, with the argument names in the kernel's type information
/// (BTF). Empty if the kernel has no BTF.
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
    /// Loads the programs into the kernel, which verifies them. No program runs yet.
    ///
    /// # Errors
    /// The kernel refuses the programs, or the object does not match this program.
    pub fn load(settings: &Settings, places: &[CpuPlace]) -> Result<Scheduler, LoadError> {
        quiet();
        let described = described()?;
        let wrong = intf::differences(&described);
        if !wrong.is_empty() {
            return Err(missing(&wrong.join("; ")));
        }
        let mut open = open()?;
        let cpus = libbpf_rs::num_possible_cpus().map_err(refused("count the CPUs"))?.min(MOST_CPUS);
        set(&mut open, FIXED, |bytes| {
            let mut fixed = Fixed::read_from_bytes(bytes).ok()?;
            fixed.nr_cpus = cpus as u32;
            fixed.nr_llcs = llcs(places);
            fixed.tick_alone = settings.tick_alone.into();
            fixed.unified = settings.unified.into();
            fixed.write_to(bytes).ok()
        })?;
        let at = described.offset(OPS_STRUCT.0, OPS_STRUCT.1).ok_or_else(|| missing(OPS_STRUCT.1))?;
        let timeout = u32::try_from(settings.watchdog.as_millis()).unwrap_or(30_000);
        set(&mut open, OPS, |bytes| timeout.write_to(bytes.get_mut(at..at + 4)?).ok())?;
        let loaded = open.load().map_err(refused("load the scheduler"))?;
        let scheduler = Scheduler { link: None, traces: Vec::new(), loaded, generation: 1 };
        for cpu in 0..cpus as u32 {
            // The CPU has this state until its first context switch.
            let mut state = Cpu::new_zeroed();
            (state.sibling, state.state) = ([-1; intf::SIBLINGS], CLASS_IDLE as u32);
            scheduler.write("cpus", cpu, &state)?;
        }
        scheduler.place(places)?;
        // All groups without a slot of their own share the last slot.
        scheduler.set_slot(intf::MOST_SLOTS as u64 - 1, true, crate::weights::WHOLE, 0)?;
        Ok(scheduler)
    }

    /// Loads the programs, returns the verifier's statistics, and unloads the programs.
    ///
    /// # Errors
    /// The kernel refuses the programs.
    pub fn verify() -> Result<Vec<Verified>, LoadError> {
        LOG.lock().unwrap_or_else(PoisonError::into_inner).clear();
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Debug, |_, text| {
            LOG.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
        })));
        let mut open = open()?;
        for mut program in open.progs_mut() {
            // BPF_LOG_STATS.
            program.set_log_level(4);
        }
        let loaded = open.load().map_err(refused("load the scheduler"))?;
        drop(loaded);
        let log = LOG.lock().unwrap_or_else(PoisonError::into_inner).clone();
        quiet();
        Ok(verified(&log))
    }

    /// Attaches the programs that observe context switches and signals, then the scheduler itself, which the kernel
    /// then starts.
    ///
    /// # Errors
    /// The kernel refuses to attach a program.
    pub fn attach(&mut self) -> Result<(), LoadError> {
        let attach = |name: &str| self.program(name)?.attach().map_err(refused("attach the scheduler"));
        if self.traces.is_empty() {
            self.traces = vec![attach("sched_switched")?, attach("signal_sent")?];
        }
        let mut ops: MapMut<'_> =
            self.loaded.maps_mut().find(|map| map.name() == OPS).ok_or_else(|| missing(OPS))?;
        let link = ops.attach_struct_ops().map_err(refused("start the scheduler"))?;
        self.link = Some(link);
        Ok(())
    }

    /// Sets the class of a cgroup and of all cgroups below it. If the class is offline, also sets their slot.
    ///
    /// # Errors
    /// The BPF program does not know the class, or has no space for another group.
    pub fn set_group(&self, cgroup: u64, name: &str, class: u64, slot: u64) -> Result<(), LoadError> {
        match self.ask("set_group", &[cgroup, class, slot])? {
            0 => Ok(()),
            _ => Err(LoadError::Order { class, cgroup: name.to_owned() }),
        }
    }

    /// Sets whether a slot is in use, its weight, and the index of its hard limit.
    ///
    /// # Errors
    /// The BPF program refuses the slot.
    pub fn set_slot(&self, index: u64, used: bool, weight: u64, limit: u64) -> Result<(), LoadError> {
        self.told(self.ask("set_slot", &[index, u64::from(used), weight, limit])?, "set a weight")
    }

    /// Sets the quota and the period of a limit. A quota of 0 removes the limit.
    ///
    /// # Errors
    /// The BPF program refuses the limit.
    pub fn set_limit(&self, index: u64, quota: Duration, period: Duration) -> Result<(), LoadError> {
        let args = [index, quota.as_nanos() as u64, period.as_nanos() as u64];
        self.told(self.ask("set_limit", &args)?, "set a limit")
    }

    /// Finishes an update of the groups and sets the hold-off (how long a CPU stays free after an expelling thread has
    /// left its core). Afterwards every thread determines its class again.
    ///
    /// # Errors
    /// The memory of the BPF programs cannot be written.
    pub fn ordered(&mut self, hold_off: Duration) -> Result<(), LoadError> {
        self.generation = self.generation.wrapping_add(1);
        let hold_off_ns = hold_off.as_nanos() as u64;
        self.write(ORDERS, 0, &Orders { generation: self.generation, hold_off_ns })
    }

    /// Writes each CPU's siblings, core and last-level cache to the BPF map, and leaves the CPU's counters there
    /// unchanged.
    ///
    /// # Errors
    /// A map cannot be read or written.
    pub fn place(&self, places: &[CpuPlace]) -> Result<(), LoadError> {
        for place in places {
            let mut cpu: Cpu = self.read("cpus", place.cpu)?;
            let told = (place.siblings, place.core, place.llc);
            if (cpu.sibling, cpu.core, cpu.llc) == told {
                continue;
            }
            (cpu.sibling, cpu.core, cpu.llc) = told;
            self.write("cpus", place.cpu, &cpu)?;
        }
        Ok(())
    }

    /// Returns the counters, summed over the machine.
    ///
    /// # Errors
    /// A map cannot be read.
    pub fn counters(&self) -> Result<Counters, LoadError> {
        let (mut sums, now) = (Counters::default(), now_ns());
        let cpus = libbpf_rs::num_possible_cpus().map_err(refused("count the CPUs"))?.min(MOST_CPUS);
        for cpu in 0..cpus as u32 {
            counters::add_cpu(&mut sums, &self.read::<Cpu>("cpus", cpu)?, now);
            counters::add_core(&mut sums, &self.read::<Core>("cores", cpu)?);
        }
        Ok(sums)
    }

    /// Returns a slot's CPU time and the waits of its threads.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn slot(&self, index: u64) -> Result<SlotReading, LoadError> {
        Ok(counters::slot(&self.read::<Slot>("slots", index as u32)?))
    }

    /// Returns the time of the last fatal signal, in nanoseconds of the BPF programs' clock; 0 if there was none.
    #[must_use]
    pub fn killed_at(&self) -> u64 {
        self.read::<Notes>(NOTES, 0).map_or(0, |notes| notes.killed_at)
    }

    /// Returns why the kernel has ejected the scheduler, and the kernel's dump; `None` while the scheduler runs or is
    /// not attached.
    #[must_use]
    pub fn ended(&self) -> Option<(Ended, String)> {
        self.link.as_ref()?;
        let notes: Notes = self.read(NOTES, 0).ok()?;
        if notes.kind == 0 {
            return None;
        }
        let text = |bytes: &[u8]| {
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            String::from_utf8_lossy(&bytes[..end]).into_owned()
        };
        let dump = text(&self.value("dumps", 0).unwrap_or_default());
        let (reason, message) = (text(&notes.reason), text(&notes.message));
        Some((Ended { kind: notes.kind, code: notes.code, reason, message }, dump))
    }

    /// Runs one of the BPF programs that change the configuration, and returns its return value.
    fn ask(&self, program: &str, args: &[u64]) -> Result<i32, LoadError> {
        let mut context: Vec<u8> = args.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let input = ProgramInput { context_in: Some(&mut context), ..ProgramInput::default() };
        let output = self.program(program)?.test_run(input).map_err(refused("configure the scheduler"))?;
        Ok(output.return_value as i32)
    }

    fn told(&self, answer: i32, what: &'static str) -> Result<(), LoadError> {
        match answer {
            0 => Ok(()),
            number => Err(LoadError::Refused { what, because: format!("the BPF program returned {number}") }),
        }
    }

    fn program(&self, name: &str) -> Result<ProgramMut<'_>, LoadError> {
        self.loaded.progs_mut().find(|program| program.name() == name).ok_or_else(|| missing(name))
    }

    fn map(&self, name: &str) -> Result<Map<'_>, LoadError> {
        self.loaded.maps().find(|map| map.name() == name).ok_or_else(|| missing(name))
    }

    fn value(&self, map: &str, index: u32) -> Result<Vec<u8>, LoadError> {
        self.map(map)?
            .lookup(&index.to_ne_bytes(), MapFlags::ANY)
            .map_err(refused("read the scheduler"))?
            .ok_or_else(|| missing("a map's value"))
    }

    fn read<T: FromBytes>(&self, map: &str, index: u32) -> Result<T, LoadError> {
        T::read_from_bytes(&self.value(map, index)?).map_err(|_| missing(&format!("{map} of this size")))
    }

    fn write<T: IntoBytes + zerocopy::Immutable>(
        &self,
        map: &str,
        index: u32,
        value: &T,
    ) -> Result<(), LoadError> {
        let done = self.map(map)?.update(&index.to_ne_bytes(), value.as_bytes(), MapFlags::ANY);
        done.map_err(refused("write to the scheduler"))
    }
}

/// Returns the type information (BTF) of the object.
fn described() -> Result<commensal_core::btf::Btf, LoadError> {
    let file = object::File::parse(OBJECT).ok();
    let section = file.as_ref().and_then(|file| file.section_by_name(".BTF")?.data().ok());
    section.and_then(commensal_core::btf::Btf::parse).ok_or_else(|| missing("the object's section .BTF"))
}

fn open() -> Result<OpenObject, LoadError> {
    let mut builder = ObjectBuilder::default();
    let named = builder.name(OPS).map_err(refused("open the scheduler"))?;
    named.open_memory(OBJECT).map_err(refused("open the scheduler"))
}

/// Sets a map's initial content before loading.
fn set(
    open: &mut OpenObject,
    name: &str,
    change: impl FnOnce(&mut [u8]) -> Option<()>,
) -> Result<(), LoadError> {
    let mut map = open.maps_mut().find(|map| map.name() == name).ok_or_else(|| missing(name))?;
    map.initial_value_mut().and_then(change).ok_or_else(|| missing(name))
}

/// The last messages of libbpf. They are kept because an error number alone does not explain why the kernel refused a
/// program.
static SAID: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());
/// Number of lines that [`SAID`] keeps.
const LINES: usize = 40;
/// Log that contains the verifier's statistics.
static LOG: Mutex<String> = Mutex::new(String::new());

/// Collects libbpf's messages for error texts instead of printing them.
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

/// Parses the log. A line `prog 'NAME': …` names a program; some lines later its statistics follow as
/// `processed N insns (limit …) max_states_per_insn … total_states M …`.
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

fn refused(what: &'static str) -> impl Fn(libbpf_rs::Error) -> LoadError {
    move |error| {
        let said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
        let said: String = said.iter().map(|line| format!("\n  {line}")).collect();
        LoadError::Refused { what, because: format!("{error:#}{said}") }
    }
}

fn missing(what: &str) -> LoadError {
    LoadError::Refused { what: "read the scheduler", because: format!("{what} is missing") }
}

/// Reads the clock of the BPF programs.
fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_has_the_structures_that_are_shared() {
        let described = described().unwrap();
        assert_eq!(intf::differences(&described), Vec::<String>::new());
        assert!(described.offset(OPS_STRUCT.0, OPS_STRUCT.1).is_some());
    }

    #[test]
    fn the_object_opens_and_takes_its_settings() {
        let mut open = open().unwrap();
        for name in [FIXED, OPS] {
            set(&mut open, name, |bytes| (!bytes.is_empty()).then_some(())).unwrap();
        }
        let names: Vec<_> = open.maps().map(|map| map.name().to_string_lossy().into_owned()).collect();
        for name in [ORDERS, NOTES, "cpus", "cores", "slots", "dumps"] {
            assert!(names.iter().any(|one| one == name), "{name}: {names:?}");
        }
    }

    #[test]
    fn the_verifiers_words() {
        let log = "libbpf: prog 'sched_tick': -- BEGIN PROG LOAD LOG --\nprocessed 77 insns (limit 1000000) \
                   max_states_per_insn 1 total_states 9 peak_states 9 mark_read 1\n-- END PROG LOAD LOG --\n";
        let expect = Verified { name: "sched_tick".to_owned(), instructions: 77, states: 9 };
        assert_eq!(verified(log), [expect]);
    }
}
