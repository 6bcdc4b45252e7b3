//! Loads the probe's BPF programs, whose maps `reading` reads. The probe writes to nothing but its own maps. The kernel
//! unloads it when the process that loaded it exits.
//!
//! A target is a cgroup or process whose threads the probe observes. A culprit is a task that held the CPU while a
//! thread of an online target waited for it.

mod reading;

use crate::commands::Commands;
use crate::figures::{Figures, Kind, Totals};
use crate::mirror::{
    self, Alarm, CommandKey, CommandName, Control, CpuState, CulpritKey, Delays, Life, OpenCulprit,
    ProcessClass, SIBLINGS, START, STOP, Target,
};
use crate::{BlameError, Scope, Subject, preflight};
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, RingBuf};
use aya::programs::{BtfTracePoint, Iter, ProgramError, ProgramFd};
use aya::{Btf, Ebpf, EbpfError, EbpfLoader};
use commensal_core::member::ProcessId;
use commensal_host::{Capability, Host, raised};
use commensal_sensors::processes::{lives, start_ticks};
use std::collections::BTreeSet;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, transmute};

/// The BPF object, compiled from `bpf/probe` by `cargo xtask gen bpf`.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../blame.bpf.o");

/// Capabilities that a process with reduced privileges raises to load the probe.
const TO_LOAD: [Capability; 2] = [Capability::Bpf, Capability::Perfmon];
/// Capabilities that such a process raises to read or write a map: kernels of before 2022 require CAP_BPF for map
/// access if unprivileged BPF is disabled.
const TO_LOOK: [Capability; 1] = [Capability::Bpf];

const ONLINE: u32 = Kind::Online as u32;
const OFFLINE: u32 = Kind::Offline as u32;
const MOST_SUBJECTS: usize = 255;
/// Maximum number of processes that are targets, without their descendants.
pub const MOST_PROCESSES: usize = 16_384;

/// The name of a BPF program, and the tracepoint that it is attached to.
type Hook = (&'static str, &'static str);
/// Programs that count scheduling events.
const OF_SCHEDULING: [Hook; 6] = [
    ("blame_switch", "sched_switch"),
    ("on_migrate", "sched_migrate_task"),
    ("on_wakeup", "sched_wakeup"),
    ("on_wakeup_new", "sched_wakeup_new"),
    ("on_fork", "sched_process_fork"),
    ("on_exit", "sched_process_exit"),
];
/// Programs that are run by reading them: each call is one walk over all tasks.
const WALKS: [&str; 3] = ["mark", "prime", "threads"];
const OF_INTERRUPTS: [Hook; 4] = [
    ("on_irq_entry", "irq_handler_entry"),
    ("on_irq_exit", "irq_handler_exit"),
    ("on_softirq_entry", "softirq_entry"),
    ("on_softirq_exit", "softirq_exit"),
];
/// On x86 the timer has an interrupt vector with tracepoints of its own; on other architectures it is a normal
/// interrupt.
const OF_TIMER: [Hook; 2] = [("on_timer_entry", "local_timer_entry"), ("on_timer_exit", "local_timer_exit")];

/// The maps that user space reads and writes.
struct Maps {
    control: Array<MapData, [u8; size_of::<Control>()]>,
    alarms: RingBuf<MapData>,
    /// A duplicate of the ring buffer's descriptor, to wait for alarms.
    alarmed: OwnedFd,
    cpus: Array<MapData, [u8; size_of::<CpuState>()]>,
    totals: PerCpuArray<MapData, [u8; size_of::<Totals>()]>,
    delays: PerCpuArray<MapData, [u8; size_of::<Delays>()]>,
    targets: PerCpuArray<MapData, [u8; size_of::<Target>()]>,
    culprits: HashMap<MapData, [u8; size_of::<CulpritKey>()], u64>,
    commands: HashMap<MapData, [u8; size_of::<CommandKey>()], u64>,
    command_names: HashMap<MapData, u32, [u8; size_of::<CommandName>()]>,
    classes: HashMap<MapData, u64, u32>,
    process_classes: HashMap<MapData, u32, [u8; size_of::<ProcessClass>()]>,
    lives: Array<MapData, [u8; size_of::<Life>()]>,
    open_culprits: Mutex<HashMap<MapData, [u8; size_of::<OpenCulprit>()], u64>>,
}

/// The attached probe. It is detached when this value is dropped, and when the process dies.
pub struct WaitProbe {
    maps: Maps,
    /// Descriptors of the programs that count scheduling events.
    programs: Vec<ProgramFd>,
    /// The loaded BPF object. Each reading of the threads attaches its task iterator anew.
    loaded: Mutex<Ebpf>,
    control: Control,
    scope: Scope,
    commands: Commands,
    /// By how much this process's CLOCK_MONOTONIC is ahead of the kernel's (ns).
    ahead_ns: i64,
    began_ns: u64,
    /// Time at which the probe was stopped (ns).
    ended_ns: Option<u64>,
    took: Took,
}

/// Durations of the steps from the start of loading until the probe counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Took {
    /// Time to read the kernel's type information, create the maps and relocate the programs.
    pub load: Duration,
    /// Time that the kernel takes to verify the programs.
    pub verify: Duration,
    /// Time to attach the programs to their tracepoints.
    pub attach: Duration,
}

impl std::fmt::Debug for WaitProbe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaitProbe").field("scope", &self.scope).finish_non_exhaustive()
    }
}

/// An alarm that the probe has raised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RaisedAlarm {
    /// How long online targets waited for offline work in the alarm's window (ms per second).
    pub blamed_ms_per_s: f64,
    /// Time since the kernel raised the alarm.
    pub age: Duration,
}

impl WaitProbe {
    /// Loads and attaches the probe, which counts from then on.
    ///
    /// # Errors
    /// Returns an error if the kernel is too old, lacks BTF or refuses the programs, or if there are too many targets.
    pub fn attach(host: &dyn Host, scope: &Scope) -> Result<WaitProbe, BlameError> {
        raised(&TO_LOAD, || WaitProbe::load_and_attach(host, scope))
    }

    fn load_and_attach(host: &dyn Host, scope: &Scope) -> Result<WaitProbe, BlameError> {
        if scope.online.len() > MOST_SUBJECTS {
            return Err(BlameError::TooMany(scope.online.len()));
        }
        let processes = targets(scope).map(|one| one.processes().len()).sum();
        if processes > MOST_PROCESSES {
            return Err(BlameError::TooManyProcesses(processes));
        }
        let begun = Instant::now();
        preflight::check(host)?;
        agrees()?;
        let btf = Btf::from_sys_fs()
            .map_err(|error| refused(host, "read the kernel's type information (BTF)")(error.into()))?;
        let cpus = aya::util::nr_cpus().map_err(|(path, error)| BlameError::Refused {
            what: "count the CPUs",
            because: format!("{path}: {error}"),
        })?;
        let mut loaded = load(&btf, scope, cpus).map_err(refused(host, "load the probe"))?;
        let maps = maps(&mut loaded).map_err(refused(host, "find the probe's maps"))?;
        let mut probe = WaitProbe {
            maps,
            programs: Vec::new(),
            loaded: Mutex::new(loaded),
            control: zerocopy::FromZeros::new_zeroed(),
            scope: scope.clone(),
            commands: Commands::default(),
            ahead_ns: ahead_ns(host),
            began_ns: 0,
            ended_ns: None,
            took: Took { load: begun.elapsed(), ..Took::default() },
        };
        probe.name_subjects(scope)?;
        probe.tell_siblings(host, cpus)?;
        probe.hook(&btf).map_err(|error| refused(host, "attach the probe")(error.into()))?;
        probe.mark_processes(host)?;
        // The kernel's type information takes tens of MB in this process, and is not needed any more.
        drop(btf);
        commensal_host::trim_memory();
        probe.give(START)?;
        probe.began_ns = probe.control.from_ns;
        Ok(probe)
    }

    /// Loads the programs into the kernel, which verifies them, and attaches them.
    fn hook(&mut self, btf: &Btf) -> Result<(), ProgramError> {
        let loaded = self.loaded.get_mut().unwrap_or_else(PoisonError::into_inner);
        let timer =
            btf.id_by_type_name_kind("btf_trace_local_timer_entry", aya_obj::btf::BtfKind::Typedef).is_ok();
        let mut hooks = OF_SCHEDULING.to_vec();
        if self.scope.interrupts {
            hooks.extend(OF_INTERRUPTS);
            hooks.extend(OF_TIMER.iter().filter(|_| timer));
        }
        let begun = Instant::now();
        // Verification takes some 200 ms of CPU time (docs/measurements/agent.md), and the kernel can verify programs in
        // parallel.
        std::thread::scope(|scope| {
            let mut looks = Vec::new();
            for (name, program) in loaded.programs_mut() {
                if WALKS.contains(&name) {
                    looks.push(scope.spawn(|| <&mut Iter>::try_from(program)?.load("task", btf)));
                } else if let Some((_, tracepoint)) = hooks.iter().find(|(wanted, _)| *wanted == name) {
                    looks
                        .push(scope.spawn(|| <&mut BtfTracePoint>::try_from(program)?.load(tracepoint, btf)));
                }
            }
            looks.into_iter().try_for_each(|look| match look.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })?;
        self.took.verify = begun.elapsed();
        let begun = Instant::now();
        for (name, _) in &hooks {
            program::<BtfTracePoint>(loaded, name)?.attach()?;
        }
        self.took.attach = begun.elapsed();
        for (name, _) in OF_SCHEDULING {
            self.programs.push(program::<BtfTracePoint>(loaded, name)?.fd()?.try_clone()?);
        }
        Ok(())
    }

    /// Marks the threads of the targets that are processes.
    fn mark_processes(&self, host: &dyn Host) -> Result<(), BlameError> {
        let targets: Vec<&[ProcessId]> =
            targets(&self.scope).map(Subject::processes).filter(|ids| !ids.is_empty()).collect();
        if targets.is_empty() {
            return Ok(());
        }
        // A process that is born during the first walk may be missed, and is found by the second one.
        self.walk("mark")?;
        self.walk("mark")?;
        for ids in targets {
            let mut last = None;
            let mut living = 0;
            for id in ids {
                let found =
                    self.maps.process_classes.get(&id.pid, 0).map_err(failed("read the probe's maps"))?;
                let found: ProcessClass = transmute!(found);
                // The number has been given to another process after the target was named.
                if found.found == 1 && start_ticks(host, id.pid) != Some(id.start_ticks) {
                    return Err(BlameError::Ended(*id));
                }
                if found.found == 0 && lives(host, id) {
                    return Err(BlameError::Hidden(*id));
                }
                living += found.found;
                last = Some(*id);
            }
            if let Some(id) = last.filter(|_| living == 0) {
                return Err(BlameError::Ended(id));
            }
        }
        Ok(())
    }

    /// Returns the time since the start of the measurement at which the last thread of a target, and of its descendants,
    /// ended. `None` while one lives, or if the target is a cgroup.
    #[must_use]
    pub fn ended(&self, index: usize) -> Option<Duration> {
        let Some(Subject::Processes(_)) = self.scope.online.get(index) else { return None };
        let life: Life = transmute!(raised(&TO_LOOK, || self.maps.lives.get(&(index as u32), 0)).ok()?);
        let ended = life.threads == 0 && life.ended_ns > 0;
        ended.then(|| Duration::from_nanos(life.ended_ns.saturating_sub(self.began_ns)))
    }

    /// Changes the targets of the running probe. This only writes some map entries, whereas the kernel would have to
    /// verify a new probe. The sums of [`WaitProbe::totals`] are not reset, so the sums by target contain waits of old
    /// and new targets. Returns `false` if a new probe is necessary: because a target is a process, or because `scope`
    /// differs in more than its targets.
    ///
    /// # Errors
    /// Returns an error if there are too many targets, or a map cannot be written.
    pub fn follow(&mut self, scope: &Scope) -> Result<bool, BlameError> {
        if scope.online.len() > MOST_SUBJECTS {
            return Err(BlameError::TooMany(scope.online.len()));
        }
        let has_processes =
            |scope: &Scope| targets(scope).any(|subject| matches!(subject, Subject::Processes(_)));
        let numbers =
            |scope: &Scope| -> BTreeSet<u64> { targets(scope).flat_map(Subject::cgroups).copied().collect() };
        let rest = |scope: &Scope| Scope { online: Vec::new(), offline: Vec::new(), ..scope.clone() };
        if has_processes(&self.scope) || has_processes(scope) || rest(&self.scope) != rest(scope) {
            return Ok(false);
        }
        let (before, now) = (numbers(&self.scope), numbers(scope));
        for gone in before.difference(&now) {
            raised(&TO_LOOK, || self.maps.classes.remove(gone))
                .map_err(failed("write the targets to the probe's map"))?;
        }
        raised(&TO_LOOK, || self.name_subjects(scope))?;
        // This changes the generation: threads look up their class (online, offline or neither) again.
        raised(&TO_LOOK, || self.give(START))?;
        self.scope = scope.clone();
        Ok(true)
    }

    fn order(&mut self) -> Result<(), BlameError> {
        let bytes: [u8; size_of::<Control>()] = transmute!(self.control);
        self.maps.control.set(0, bytes, 0).map_err(failed("write the probe's settings"))
    }

    /// Starts or stops counting. The probe itself takes the time, so that no thread's time is counted before or after it.
    fn give(&mut self, order: u32) -> Result<(), BlameError> {
        (self.control.order, self.control.primed) = (order, u32::from(order == STOP));
        self.order()?;
        self.walk("prime")?;
        let written = self.maps.control.get(&0, 0).map_err(failed("read the probe's settings"))?;
        self.control = transmute!(written);
        self.control.primed = 1;
        self.order()
    }

    /// Sets an alarm: the descriptor of [`WaitProbe::alarms`] becomes readable when the online targets' waits for
    /// offline work add up to `wait` within `window`, at most once per window. `None` disables the alarm. A wait is
    /// counted when it ends.
    ///
    /// # Errors
    /// Returns an error if the probe's settings cannot be written.
    pub fn set_alarm(&mut self, wait: Option<Duration>, window: Duration) -> Result<(), BlameError> {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1);
        let (alarm_ns, window_ns) = (wait.map_or(0, ns), ns(window));
        if (alarm_ns, window_ns) == (self.control.alarm_ns, self.control.window_ns) {
            return Ok(());
        }
        (self.control.alarm_ns, self.control.window_ns) = (alarm_ns, window_ns);
        raised(&TO_LOOK, || self.order())
    }

    /// The descriptor that becomes readable when there is an alarm.
    #[must_use]
    pub fn alarms(&self) -> BorrowedFd<'_> {
        self.maps.alarmed.as_fd()
    }

    /// Returns the last alarm since the previous call of this function; `None` if there was no alarm.
    pub fn take_alarm(&mut self) -> Option<RaisedAlarm> {
        let mut last = None;
        while let Some(bytes) = self.maps.alarms.next() {
            last = Alarm::read_from_bytes(&bytes).ok();
        }
        last.map(|one| RaisedAlarm {
            blamed_ms_per_s: one.blamed_ns as f64 * 1e3 / one.to_ns.saturating_sub(one.from_ns).max(1) as f64,
            age: Duration::from_nanos(self.now().saturating_sub(one.to_ns)),
        })
    }

    /// Stops counting, so that later readings are consistent. (While the probe counts, the sums by culprit lag behind
    /// the waits.) Also collects the time by command for the last time.
    ///
    /// # Errors
    /// Returns an error if the probe's settings cannot be written, or a map cannot be read.
    pub fn stop(&mut self, host: &dyn Host) -> Result<(), BlameError> {
        if self.control.enabled == 0 {
            return Ok(());
        }
        raised(&TO_LOOK, || self.give(STOP))?;
        self.ended_ns = Some(self.control.until_ns);
        self.gather(host)?;
        if self.scope.commands { self.gather_pending(host) } else { Ok(()) }
    }

    /// Durations of the steps from the start of loading until the probe counted.
    #[must_use]
    pub fn took(&self) -> Took {
        self.took
    }

    /// Returns the sums at the time at which the probe was attached: all zero.
    #[must_use]
    pub fn beginning(&self) -> Figures {
        Figures { time_ns: self.began_ns, ..Figures::default() }
    }

    /// Runs a program for every task on the machine, and returns its output.
    fn walk(&self, name: &str) -> Result<Vec<u8>, BlameError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let told = |error: &dyn std::error::Error| BlameError::Refused {
            what: "list threads",
            because: chain(error),
        };
        let program = program::<Iter>(&mut loaded, name).map_err(|error| told(&error))?;
        let link = program.attach().and_then(|id| program.take_link(id)).map_err(|error| told(&error))?;
        let mut list = link.into_file().map_err(|error| told(&error))?;
        let mut bytes = Vec::new();
        list.read_to_end(&mut bytes).map_err(|error| told(&error))?;
        Ok(bytes)
    }

    /// Returns the time of the clock that the BPF program uses (ns).
    fn now(&self) -> u64 {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        (time.tv_sec * 1_000_000_000 + time.tv_nsec).saturating_sub(self.ahead_ns) as u64
    }

    fn name_subjects(&mut self, scope: &Scope) -> Result<(), BlameError> {
        let of = |subjects: &[Subject], kind: u32| -> Vec<(Subject, u32)> {
            let class = |(index, subject): (usize, &Subject)| (subject.clone(), kind | (index as u32) << 8);
            subjects.iter().enumerate().map(class).collect()
        };
        for (subject, class) in of(&scope.offline, OFFLINE).into_iter().chain(of(&scope.online, ONLINE)) {
            let put = match &subject {
                Subject::Cgroups(ids) => ids.iter().try_for_each(|id| self.maps.classes.insert(id, class, 0)),
                Subject::Processes(ids) => ids.iter().try_for_each(|id| {
                    let process: [u8; size_of::<ProcessClass>()] =
                        transmute!(ProcessClass { class, found: 0 });
                    self.maps.process_classes.insert(id.pid, process, 0)
                }),
            };
            put.map_err(failed("write the targets to the probe's map"))?;
        }
        Ok(())
    }

    /// Writes to the map of CPUs which CPUs are SMT siblings.
    fn tell_siblings(&mut self, host: &dyn Host, cpus: usize) -> Result<(), BlameError> {
        for cpu in 0..cpus {
            let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            let list = host.read_file(Path::new(&path)).unwrap_or_default();
            let list = list.trim().parse::<commensal_core::cpuset::CpuSet>().unwrap_or_default();
            let mut state: CpuState = zerocopy::FromZeros::new_zeroed();
            let mut others = list.iter().filter(|other| *other as usize != cpu).map(|other| other as i32);
            state.sibling = [(); SIBLINGS].map(|()| others.next().unwrap_or(-1));
            let bytes: [u8; size_of::<CpuState>()] = transmute!(state);
            self.maps
                .cpus
                .set(cpu as u32, bytes, 0)
                .map_err(failed("write the SMT siblings to the probe's map"))?;
        }
        Ok(())
    }
}

/// The targets whose waits are measured, and those whose share of the waits is.
fn targets(scope: &Scope) -> impl Iterator<Item = &Subject> {
    scope.online.iter().chain(&scope.offline)
}

/// Returns the number of probes that run on this machine, in all processes; 0 if the kernel does not permit this query.
#[must_use]
pub fn count() -> usize {
    let all = aya::programs::loaded_programs().filter_map(Result::ok);
    all.filter(|one| one.name() == OF_SCHEDULING[0].0.as_bytes()).count()
}

/// Creates the maps, and relocates the programs for this kernel.
fn load(btf: &Btf, scope: &Scope, cpus: usize) -> Result<Ebpf, EbpfError> {
    let processes = targets(scope).any(|subject| matches!(subject, Subject::Processes(_)));
    let (unified, processes, verify) = (u8::from(scope.unified), u8::from(processes), u8::from(scope.verify));
    let (by_command, by_target) = (u8::from(scope.commands), u8::from(scope.by_target));
    let count = u32::try_from(cpus).unwrap_or(u32::MAX);
    let mut loader = EbpfLoader::new();
    loader.btf(Some(btf)).allow_unsupported_maps();
    loader.override_global("unified", &unified, true);
    loader.override_global("processes", &processes, true);
    loader.override_global("verify", &verify, true);
    loader.override_global("by_command", &by_command, true);
    loader.override_global("by_target", &by_target, true);
    loader.map_max_entries("cpus", count).map_max_entries("rings", count);
    loader.map_max_entries("process_classes", MOST_PROCESSES as u32);
    if let Some(most) = scope.max_culprits {
        loader.map_max_entries("culprits", most).map_max_entries("open_culprits", most);
    }
    loader.load(OBJECT)
}

fn maps(loaded: &mut Ebpf) -> Result<Maps, EbpfError> {
    let mut take = |name: &str| -> Result<Map, MapError> {
        let gone = || MapError::InvalidName { name: name.to_owned() };
        loaded.take_map(name).ok_or_else(gone)
    };
    let alarms = take("alarms")?;
    let Map::RingBuf(data) = &alarms else {
        return Err(MapError::InvalidName { name: "alarms".to_owned() }.into());
    };
    let alarmed = data.fd().as_fd().try_clone_to_owned().map_err(MapError::IoError)?;
    Ok(Maps {
        alarms: alarms.try_into()?,
        alarmed,
        control: take(".data.control")?.try_into()?,
        cpus: take("cpus")?.try_into()?,
        totals: take("totals")?.try_into()?,
        delays: take("delays")?.try_into()?,
        targets: take("targets")?.try_into()?,
        culprits: take("culprits")?.try_into()?,
        commands: take("commands")?.try_into()?,
        command_names: take("command_names")?.try_into()?,
        classes: take("classes")?.try_into()?,
        process_classes: take("process_classes")?.try_into()?,
        lives: take("lives")?.try_into()?,
        open_culprits: Mutex::new(take("open_culprits")?.try_into()?),
    })
}

/// Compares the structures of the BPF object with those in Rust. The result is computed once per process.
fn agrees() -> Result<(), BlameError> {
    static WRONG: OnceLock<Vec<String>> = OnceLock::new();
    let wrong = WRONG.get_or_init(|| {
        let btf = aya_obj::Object::parse(OBJECT).ok().and_then(|object| object.btf);
        let btf = btf.and_then(|btf| commensal_core::btf::Btf::parse(&btf.to_bytes()));
        btf.map_or_else(
            || vec!["it has no type information (BTF)".to_owned()],
            |btf| mirror::differences(&btf),
        )
    });
    if wrong.is_empty() {
        return Ok(());
    }
    Err(BlameError::Refused {
        what: "compare the structures of the probe with those of this program",
        because: wrong.join("; "),
    })
}

fn program<'a, P>(loaded: &'a mut Ebpf, name: &str) -> Result<&'a mut P, ProgramError>
where
    &'a mut P: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
{
    loaded.program_mut(name).ok_or(ProgramError::NotLoaded)?.try_into()
}

/// Number of lines at the end of an error message that are kept.
const LINES: usize = 12;

/// Returns the messages of an error and its causes: an error number alone does not explain why the kernel refuses a
/// program.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(one) = cause {
        let more = one.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = one.source();
    }
    // The verifier logs every step; the reason for its refusal is at the end of the log.
    let lines: Vec<&str> = text.lines().collect();
    match lines.len().checked_sub(LINES) {
        Some(left_out @ 1..) => format!("{}\n[{left_out} lines]\n{}", lines[0], lines[left_out..].join("\n")),
        _ => text,
    }
}

/// Returns whether the error is EPERM: this process is not permitted to load programs. EACCES means that the verifier
/// rejected a program.
fn forbids(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(one) = cause {
        let number = one.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
        if number == Some(rustix::io::Errno::PERM.raw_os_error()) {
            return true;
        }
        cause = one.source();
    }
    false
}

fn refused(host: &dyn Host, what: &'static str) -> impl FnOnce(EbpfError) -> BlameError {
    move |error| {
        if forbids(&error) {
            return BlameError::Forbidden(preflight::forbidden(host));
        }
        BlameError::Refused { what, because: chain(&error) }
    }
}

fn failed(what: &'static str) -> impl Fn(MapError) -> BlameError {
    move |error| BlameError::Refused { what, because: chain(&error) }
}

/// Returns by how much this process's CLOCK_MONOTONIC is ahead of the kernel's (ns): the offset of its time namespace.
fn ahead_ns(host: &dyn Host) -> i64 {
    let namespace = |name: &str| host.link(Path::new(&format!("/proc/self/ns/{name}"))).ok();
    // The file has the offsets of the namespace that this process's children will be in.
    if namespace("time") != namespace("time_for_children") {
        return 0;
    }
    let text = host.read_file(Path::new("/proc/self/timens_offsets")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("monotonic")).unwrap_or_default();
    let numbers: Vec<i64> = line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    if let [seconds, ns] = numbers[..] { seconds * 1_000_000_000 + ns } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aya_obj::Object;
    use aya_obj::generated::bpf_insn;

    #[test]
    fn the_object_has_the_structures_that_are_read() {
        agrees().unwrap();
    }

    /// Stack of the function that begins there, and of the deepest of its calls (bytes). A function's own is what it reaches below the
    /// frame pointer, and the kernel counts units of 32 bytes.
    fn stack(code: &[bpf_insn], begins: &BTreeSet<usize>, from: usize) -> u32 {
        const FRAME: u8 = 10;
        const ADD: u8 = 0x07;
        const MOVE: u8 = 0xbf;
        let to = begins.range(from + 1..).next().map_or(code.len(), |to| *to);
        let (mut own, mut calls, mut copies) = (0, 0, BTreeSet::new());
        for (at, one) in code.iter().enumerate().take(to).skip(from) {
            let (is_load, is_store) = (one.code & 7 == 1, [2, 3].contains(&(one.code & 7)));
            if is_load && one.src_reg() == FRAME || is_store && one.dst_reg() == FRAME {
                own = own.min(i32::from(one.off));
            }
            if one.code == MOVE && one.src_reg() == FRAME {
                copies.insert(one.dst_reg());
            } else if copies.remove(&one.dst_reg()) && one.code == ADD {
                own = own.min(one.imm);
            }
            if let Some(called) = called(*one, at) {
                calls = calls.max(stack(code, begins, called));
            }
        }
        (-own).max(1).unsigned_abs().next_multiple_of(32) + calls
    }

    /// Where the function begins that an instruction calls.
    fn called(one: bpf_insn, at: usize) -> Option<usize> {
        const CALL: u8 = 0x85;
        const OF_PROGRAM: u8 = 1;
        (one.code == CALL && one.src_reg() == OF_PROGRAM).then(|| (at as i32 + one.imm + 1) as usize)
    }

    /// Kernels before 6.10 allow a program and its calls 512 bytes, and newer ones that much for each of them: there a program is
    /// loaded that an older kernel refuses.
    // promise 33
    #[test]
    fn old_kernels_have_stack_enough() {
        const MOST: u32 = 512;
        let mut object = Object::parse(OBJECT).unwrap();
        let sections = object.functions.keys().map(|(section, _)| *section).collect();
        object.relocate_calls(&sections).unwrap();
        for (name, program) in &object.programs {
            let code = &object.functions[&program.function_key()].instructions;
            let begins = code.iter().enumerate().filter_map(|(at, one)| called(*one, at)).collect();
            let bytes = stack(code, &begins, 0);
            println!("{name}: {bytes} bytes");
            assert!((32..=MOST).contains(&bytes), "{name}: {bytes} bytes");
        }
        assert!(object.programs.len() > OF_SCHEDULING.len());
    }

    // promise 31
    #[test]
    fn the_clock_of_a_time_namespace_is_ahead() {
        const HOUR: i64 = 3_600_000_000_000;
        for (offsets, own, ahead) in [
            ("monotonic        3600         0\nboottime      7200         0\n", "time:[2]", HOUR),
            (
                "monotonic       -3600 999999999\nboottime      7200         0\n",
                "time:[2]",
                999_999_999 - HOUR,
            ),
            ("monotonic           0         0\nboottime      7200         0\n", "time:[2]", 0),
            // Only its children will be in that namespace.
            ("monotonic        3600         0\nboottime      7200         0\n", "time:[1]", 0),
            ("monotonic\n", "time:[2]", 0),
            ("", "time:[2]", 0),
        ] {
            let host = commensal_host::fake::FakeHost::v2(2, 1 << 30);
            host.set_file("/proc/self/ns/time", own);
            host.set_file("/proc/self/ns/time_for_children", "time:[2]");
            host.set_file("/proc/self/timens_offsets", offsets);
            assert_eq!(ahead_ns(&host), ahead, "{offsets:?} {own}");
        }
        assert_eq!(ahead_ns(&commensal_host::fake::FakeHost::v2(2, 1 << 30)), 0, "a kernel without them");
    }

    #[test]
    fn the_object_knows_nothing_of_the_machine_that_made_it() {
        let text = String::from_utf8_lossy(OBJECT);
        assert!(
            text.contains("bpf/probe/blame.bpf.c") && !text.contains("/home/") && !text.contains("/root/")
        );
    }
}
