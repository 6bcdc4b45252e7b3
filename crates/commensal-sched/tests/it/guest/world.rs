//! Helpers: groups of our own, work in them, the program under test, and what the kernel says of all three.

pub use commensal_testkit::within;
use commensal_testkit::{
    Signal, cpu_time, cpu_time_of_all, ended, field_of_stat, holds_within, removed_within, signal_group,
    told, within_every,
};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const MOUNT: &str = "/sys/fs/cgroup";
/// How long anything may take at most before it counts as stuck: emulated CPUs are slow.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// How long `pulse` runs and sleeps when nothing else is said, ms.
const PULSE: [u64; 2] = [20, 20];
/// How long `visit` stays on a CPU.
const VISIT: Duration = Duration::from_millis(5);
/// Variable that turns the helper test below into work.
const WORK: &str = "COMMENSAL_SCHED_WORK";
const STATE: &str = "/sys/kernel/sched_ext/state";
/// `SCHED_EXT`.
pub const EXT: i32 = 7;

/// Whether this is a guest where the scheduler can be loaded; prints the skip otherwise.
pub fn can_load(test: &str) -> bool {
    can_load_in("sched", test)
}

/// The same in a guest of this layout, or of one whose name begins so.
pub fn can_load_in(layout: &str, test: &str) -> bool {
    let guest = std::env::var("COMMENSAL_VM").unwrap_or_default();
    let why = if !guest.starts_with(layout) {
        format!("it loads a scheduler: only in a guest of its own (cargo xtask vm --layout {layout})")
    } else if !Path::new(STATE).exists() {
        "this kernel has no sched_ext".to_owned()
    } else {
        return true;
    };
    println!("skipped: {test}: {why}");
    false
}

/// CPUs of the machine.
pub fn cpus() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| count.get() as u32)
}

/// All of them, as taskset takes it.
pub fn all() -> String {
    format!("0-{}", cpus() - 1)
}

/// Waits until it holds.
pub fn until(what: &str, holds: impl FnMut() -> bool) {
    within(PATIENCE, what, holds);
}

/// A cgroup of ours; removed with all that is in it.
#[derive(Debug)]
pub struct Group {
    pub path: PathBuf,
}

impl Group {
    pub fn new(name: &str) -> Group {
        let path = Path::new(MOUNT).join(format!("commensal-test-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Group { path }
    }

    /// With `cpu.idle` underneath, as a plan would have it.
    pub fn offline(name: &str) -> Group {
        let group = Group::new(name);
        group.write("cpu.idle", "1");
        group
    }

    pub fn child(&self, name: &str) -> Group {
        let path = self.path.join(name);
        std::fs::create_dir(&path).unwrap();
        Group { path }
    }

    pub fn write(&self, file: &str, value: &str) {
        let path = self.path.join(file);
        std::fs::write(&path, value).unwrap_or_else(|error| panic!("{} <- {value}: {error}", path.display()));
    }

    pub fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.path.join(file)).unwrap()
    }

    pub fn name(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// CPU time of everything in it, s.
    pub fn used(&self) -> f64 {
        let text = self.read("cpu.stat");
        let used = text.lines().find_map(|line| line.strip_prefix("usage_usec ")).unwrap();
        used.parse::<f64>().unwrap() / 1e6
    }

    pub fn threads(&self) -> Vec<u32> {
        self.read("cgroup.threads").split_whitespace().map(|tid| tid.parse().unwrap()).collect()
    }

    /// Starts a process in it that uses all it gets of these CPUs.
    pub fn spin(&self, cpus: &str) -> Spinner {
        self.start("spin", cpus)
    }

    /// So many of them on all CPUs.
    pub fn spinners(&self, count: u32) -> Vec<Spinner> {
        (0..count).map(|_| self.spin(&all())).collect()
    }

    /// One on every CPU.
    pub fn everywhere(&self) -> Vec<Spinner> {
        (0..cpus()).map(|cpu| self.spin(&cpu.to_string())).collect()
    }

    /// Starts work in it: `spin`, `pulse` or `pulse ON OFF` (it runs and sleeps by turns, ms), `fork`, `visit` (it moves
    /// itself from CPU to CPU), or `threads N` that mostly sleep.
    pub fn start(&self, work: &str, cpus: &str) -> Spinner {
        let script =
            format!("echo $$ > {}/cgroup.procs && exec taskset -c {cpus} \"$0\" \"$@\"", self.name());
        let mut command = Command::new("sh");
        command.args(["-c", &script]).arg(std::env::current_exe().unwrap());
        // On one CPU it would do without a thread of its own for the test.
        command.args(["--exact", "guest::world::work", "--nocapture", "--test-threads=2"]).env(WORK, work);
        // With all that it starts.
        command.process_group(0);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        WORKS.lock().unwrap().push(child.id());
        // Until then its CPUs are to be set, and what a test changes would be changed again.
        let (exe, own) = (format!("/proc/{}/exe", child.id()), std::env::current_exe().unwrap());
        until("the work has started", || std::fs::read_link(&exe).is_ok_and(|exe| exe == own));
        Spinner(child)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::write(self.path.join("cgroup.kill"), "1");
        removed_within(Duration::from_secs(5), &self.path);
    }
}

/// Work that runs now.
static WORKS: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// While it is held, work stands still. With the scheduler the kernel patches its own code, and an emulated CPU that is just
/// there may run half of the old instruction (QEMU 7.2): then the guest dies of it, in one of some twenty loads.
#[derive(Debug)]
pub struct Still(());

impl Still {
    pub fn new() -> Still {
        signal(Signal::STOP);
        // Until every CPU is idle, also in the kernel's own threads, which nothing shows; idle CPUs have no tick.
        std::thread::sleep(Duration::from_millis(20));
        Still(())
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        signal(Signal::CONT);
    }
}

fn signal(signal: Signal) {
    for pid in &*WORKS.lock().unwrap() {
        // Each is the leader of its own group; one that has ended is no work.
        signal_group(*pid, signal);
    }
}

/// A process of ours; killed when it is dropped.
#[derive(Debug)]
pub struct Spinner(pub Child);

impl Spinner {
    /// The thread that works; the first one waits for it.
    pub fn tid(&self) -> u32 {
        let pid = self.0.id();
        let mut found = None;
        until("the thread that works is there", || {
            let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
            found = tasks
                .filter_map(|task| task.unwrap().file_name().to_str()?.parse().ok())
                .find(|tid| *tid != pid);
            found.is_some()
        });
        found.unwrap()
    }

    /// CPU time of that thread, s.
    pub fn used(&self) -> f64 {
        cpu_time(self.tid()).unwrap().as_secs_f64()
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        WORKS.lock().unwrap().retain(|pid| *pid != self.0.id());
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What processes of these tests do: this program, started with the variable set.
#[test]
fn work() {
    let Ok(work) = std::env::var(WORK) else { return };
    let mut words = work.split(' ');
    let kind = words.next().unwrap();
    let numbers: Vec<u64> = words.map(|word| word.parse().unwrap()).collect();
    match kind {
        // Without a look at the clock, which may be the kernel's.
        "spin" => {
            let mut number = 1u64;
            loop {
                number = std::hint::black_box(number.wrapping_mul(31) + 7);
            }
        }
        "fork" => loop {
            let _ = Command::new("true").status();
        },
        "pulse" => {
            let times = if numbers.is_empty() { &PULSE[..] } else { &numbers };
            let [on, off] = [0, 1].map(|index| Duration::from_millis(times[index]));
            loop {
                spin_for(on);
                std::thread::sleep(off);
            }
        }
        "visit" => {
            let set = sched_getaffinity(None).unwrap();
            let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect();
            for cpu in allowed.iter().cycle() {
                // One that is away is passed by.
                let _ = pin(None, &[*cpu]);
                spin_for(VISIT);
            }
        }
        "threads" => {
            for _ in 1..numbers[0] {
                let thread = std::thread::Builder::new().stack_size(16 << 10);
                thread.spawn(sleeper).unwrap();
            }
            sleeper();
        }
        other => panic!("no work is called {other}"),
    }
}

fn spin_for(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
}

fn sleeper() {
    loop {
        // It wakes up now and then.
        std::thread::sleep(Duration::from_secs(5));
    }
}

/// A second, in which the scheduler's process has looked at groups and threads several times and they have found their
/// CPUs: nothing that can be read says so.
pub fn settle() {
    std::thread::sleep(Duration::from_secs(1));
}

/// Lets a thread, or this one, run on these CPUs only.
pub fn pin(tid: Option<u32>, cpus: &[usize]) -> rustix::io::Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    sched_setaffinity(tid.and_then(|tid| Pid::from_raw(tid as i32)), &set)
}

/// Policy of a thread, field 41 of its stat; `None` when it is gone.
pub fn policy(tid: u32) -> Option<i32> {
    field(tid, 41)
}

/// Its nice value, field 19.
pub fn nice(tid: u32) -> Option<i32> {
    field(tid, 19)
}

fn field(tid: u32, number: usize) -> Option<i32> {
    field_of_stat(tid, number)?.parse().ok()
}

/// Busy and all time of a CPU by the kernel's own figures, ticks.
pub fn busy(cpu: usize) -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    let name = format!("cpu{cpu} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&name)).unwrap();
    let ticks: Vec<u64> = line.split_whitespace().map(|one| one.parse().unwrap()).collect();
    let all: u64 = ticks[..8].iter().sum();
    (all - ticks[3] - ticks[4], all)
}

/// The other thread of a CPU's core.
pub fn sibling(cpu: usize) -> usize {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    let text = std::fs::read_to_string(path).unwrap();
    let mut all = text.trim().split([',', '-']).map(|one| one.parse::<usize>().unwrap());
    all.find(|one| *one != cpu).unwrap()
}

/// An order's line for an offline group.
pub fn offline(group: &Group) -> Value {
    json!({ "cgroup": group.name(), "class": "offline" })
}

/// An order's line for an online group.
pub fn online(group: &Group, expel: bool) -> Value {
    json!({ "cgroup": group.name(), "class": "online", "expel": expel })
}

/// The scheduler, loaded.
#[derive(Debug)]
pub struct Loaded {
    pub state: TempDir,
    child: Option<Child>,
    /// Whether work goes on while it is loaded and unloaded.
    pub rough: bool,
}

impl Loaded {
    /// A state directory of its own, and nothing loaded.
    pub fn not_yet() -> Loaded {
        Loaded { state: tempfile::tempdir().unwrap(), child: None, rough: false }
    }

    /// Loads it with these groups and waits until they are in force.
    pub fn new(groups: &[Value]) -> Loaded {
        Loaded::with(&[], groups)
    }

    pub fn with(options: &[&str], groups: &[Value]) -> Loaded {
        let mut loaded = Loaded::not_yet();
        loaded.write(groups);
        loaded.start(&[&["--orders", "orders.json"], options].concat());
        loaded
    }

    /// The same while work goes on.
    pub fn roughly(groups: &[Value]) -> Loaded {
        let mut loaded = Loaded::not_yet();
        loaded.rough = true;
        loaded.write(groups);
        loaded.start(&["--orders", "orders.json"]);
        loaded
    }

    /// Starts `load` in this state directory.
    pub fn start(&mut self, options: &[&str]) {
        let _still = (!self.rough).then(Still::new);
        let mut command = self.command("load");
        let file = self.state.path().join("log");
        let log = std::fs::OpenOptions::new().create(true).append(true).open(file).unwrap();
        let child = command.args(options).stderr(log).spawn().unwrap();
        let number = child.id();
        self.child = Some(child);
        // The verifier takes its time beside work that never rests.
        let patience = PATIENCE * if self.rough { 4 } else { 1 };
        // While the kernel patches itself nobody is asked anything, and seldom looked at: each is work on another CPU.
        within_every(Duration::from_millis(20), patience, told(|| self.said()), || {
            assert!(!ended(number), "it has ended: {}", self.said());
            state() == "enabled" && self.answers(u64::from(number))
        });
    }

    /// Whether that process has carried its orders out.
    fn answers(&self, pid: u64) -> bool {
        let status = self.status();
        status["pid"] == pid && status["generation"] != 0
    }

    /// Keeps its process, which looks at groups ten times a second, off the other CPUs.
    pub fn keep_to(&self, cpus: &str) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        let done = Command::new("taskset").args(["-acp", cpus, &pid]).output().unwrap();
        assert!(done.status.success(), "{}", shown(&done));
    }

    /// CPU time of its process, s.
    pub fn used(&self) -> f64 {
        cpu_time_of_all(self.child.as_ref().unwrap().id()).unwrap().as_secs_f64()
    }

    /// Another process replaces the daemon, with the same orders.
    pub fn replace(&mut self) {
        let mut old = self.take();
        self.start(&["--orders", "orders.json", "--replace"]);
        old.wait().unwrap();
    }

    fn write(&self, groups: &[Value]) {
        let orders = json!({ "do": "orders", "groups": groups }).to_string();
        std::fs::write(self.state.path().join("orders.json"), orders).unwrap();
    }

    pub fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_commensal-sched"));
        command.arg("--state-dir").arg(self.state.path()).arg(verb).current_dir(self.state.path());
        command
    }

    /// Runs another verb.
    pub fn run(&self, verb: &str, args: &[&str]) -> Output {
        self.command(verb).args(args).output().unwrap()
    }

    /// The answer to one request; `Null` while nobody answers.
    pub fn ask(&self, request: &Value) -> Value {
        self.answer(request).unwrap_or_default()
    }

    fn answer(&self, request: &Value) -> std::io::Result<Value> {
        let mut stream = UnixStream::connect(self.state.path().join("sched.sock"))?;
        // Nothing more comes.
        write!(stream, "{request}\n\n")?;
        let mut line = String::new();
        stream.read_to_string(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    /// New orders with a hold-off.
    pub fn hold_off(&self, time: Duration, groups: &[Value]) -> Value {
        self.ask(&json!({ "do": "orders", "groups": groups, "hold_off_us": time.as_micros() as u64 }))
    }

    /// New orders.
    pub fn order(&self, groups: &[Value]) -> Value {
        self.write(groups);
        self.ask(&json!({ "do": "orders", "groups": groups }))
    }

    /// `Null` while nobody answers.
    pub fn status(&self) -> Value {
        self.ask(&json!({ "do": "status" }))
    }

    /// Has what a killed process has left put back.
    pub fn put_back(&self) -> Output {
        self.run("unload", &["--left"])
    }

    /// A figure of the machine.
    pub fn count(&self, name: &str) -> f64 {
        counter(&self.status(), name)
    }

    /// Hands out the process, so that it may end on its own.
    pub fn take(&mut self) -> Child {
        self.child.take().unwrap()
    }

    /// Kills its process, and waits until the kernel has taken the scheduler off.
    pub fn kill(&mut self) {
        let _still = (!self.rough).then(Still::new);
        let mut child = self.take();
        child.kill().unwrap();
        child.wait().unwrap();
        until("the kernel lets go", || state() == "disabled");
    }

    /// Takes the scheduler off and waits for its process.
    pub fn unload(&mut self) {
        let _still = (!self.rough).then(Still::new);
        let answer = self.ask(&json!({ "do": "unload" }));
        assert!(answer["ok"] == true && answer["left"].is_null(), "{answer}");
        assert!(self.take().wait().unwrap().success(), "{}", self.said());
        until("the kernel lets go", || state() == "disabled");
    }

    /// What it has said.
    pub fn said(&self) -> String {
        std::fs::read_to_string(self.state.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        // A test that failed says where it was.
        if std::thread::panicking() {
            println!("{}\n{}", self.said(), self.status());
        }
        let _still = (!self.rough).then(Still::new);
        let _ = self.ask(&json!({ "do": "unload" }));
        if holds_within(Duration::from_secs(4), || child.try_wait().is_ok_and(|ended| ended.is_some())) {
            return;
        }
        let _ = child.kill();
        let _ = child.wait();
        let _ = self.put_back();
    }
}

/// A figure of the machine in a status.
pub fn counter(status: &Value, name: &str) -> f64 {
    status["counters"][name].as_f64().unwrap()
}

/// How much a figure has grown from one status to another.
pub fn grown(before: &Value, after: &Value, name: &str) -> f64 {
    counter(after, name) - counter(before, name)
}

/// State of sched_ext.
pub fn state() -> String {
    std::fs::read_to_string(STATE).unwrap_or_default().trim().to_owned()
}

pub fn shown(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// CPU time that each of the groups gets in that time, s.
pub fn measure(groups: &[&Group], time: Duration) -> Vec<f64> {
    let before: Vec<f64> = groups.iter().map(|group| group.used()).collect();
    let began = Instant::now();
    std::thread::sleep(time);
    // As much longer as it took.
    let stretch = began.elapsed().as_secs_f64() / time.as_secs_f64();
    groups.iter().zip(before).map(|(group, before)| (group.used() - before) / stretch).collect()
}
