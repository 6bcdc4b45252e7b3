//! Helpers: the program, cgroups with spinning shells in them, and what the kernel says of both.

use rustix::process::{Pid, Signal, kill_process_group};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::{Value, json};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_commensal-sched");
const CGROUPS: &str = "/sys/fs/cgroup";
/// Long enough for whatever has to come sooner or later.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Policy of sched(7).
pub const SCHED_EXT: u32 = 7;

/// Prints why when the test cannot run.
pub fn lacks_guest(test: &str) -> bool {
    let why = if !cfg!(feature = "bpf") {
        "built without feature bpf"
    } else if !std::env::var("COMMENSAL_VM").is_ok_and(|layout| layout.starts_with("sched")) {
        "it loads a scheduler: only in a guest of its own (cargo xtask vm --layout sched)"
    } else if !Path::new("/sys/kernel/sched_ext/state").exists() {
        "this kernel has no sched_ext"
    } else {
        return false;
    };
    println!("skipped: {test}: {why}");
    true
}

/// State of sched_ext.
pub fn state() -> String {
    std::fs::read_to_string("/sys/kernel/sched_ext/state").unwrap().trim().to_owned()
}

/// Everything that a test starts; gone with it.
#[derive(Debug)]
pub struct World {
    state: TempDir,
    loader: Option<Child>,
    groups: Vec<Group>,
}

/// A cgroup with its processes.
#[derive(Debug)]
pub struct Group {
    pub path: PathBuf,
    pub children: Vec<Child>,
}

impl World {
    pub fn new() -> World {
        World { state: TempDir::new().unwrap(), loader: None, groups: Vec::new() }
    }

    /// A new cgroup; below another one with a slash in its name.
    pub fn group(&mut self, name: &str) -> usize {
        let path = Path::new(CGROUPS).join(name);
        let _ = std::fs::remove_dir(&path);
        if let Some(above) = path.parent().filter(|above| *above != Path::new(CGROUPS)) {
            std::fs::write(above.join("cgroup.subtree_control"), "+cpu").unwrap();
        }
        std::fs::create_dir(&path).unwrap();
        self.groups.push(Group { path, children: Vec::new() });
        self.groups.len() - 1
    }

    pub fn path(&self, group: usize) -> &Path {
        &self.groups[group].path
    }

    /// So many shells that never sleep; on that CPU alone if one is named.
    pub fn spin(&mut self, group: usize, count: usize, cpu: Option<usize>) -> Vec<u32> {
        (0..count).map(|_| self.start(group, "while :; do :; done", cpu)).collect()
    }

    /// A shell with this script.
    pub fn start(&mut self, group: usize, script: &str, cpu: Option<usize>) -> u32 {
        let group = &mut self.groups[group];
        let script = format!("echo $$ > {}/cgroup.procs; {script}", group.path.display());
        let mut command = Command::new("sh");
        let child = command.args(["-c", &script]).process_group(0).stdin(Stdio::null()).spawn().unwrap();
        let pid = child.id();
        group.children.push(child);
        if let Some(cpu) = cpu {
            pin(pid, &[cpu]);
        }
        wait_for("the shell is in its group", || {
            std::fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| {
                text.trim().ends_with(group.path.strip_prefix(CGROUPS).unwrap().to_str().unwrap())
            })
        });
        pid
    }

    /// Ends every process of a group.
    pub fn end(&mut self, group: usize) {
        let group = &mut self.groups[group];
        // What is frozen can be killed too.
        let _ = std::fs::write(group.path.join("cgroup.kill"), "1");
        for child in &mut group.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        group.children.clear();
    }

    /// CPU time that a group has had.
    pub fn used(&self, group: usize) -> Duration {
        let text = std::fs::read_to_string(self.path(group).join("cpu.stat")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("usage_usec ")).unwrap();
        Duration::from_micros(line.parse().unwrap())
    }

    /// CPU time of each of these groups in a while, as a share of that while.
    pub fn shares(&self, groups: &[usize], time: Duration) -> Vec<f64> {
        let before: Vec<Duration> = groups.iter().map(|group| self.used(*group)).collect();
        let began = Instant::now();
        std::thread::sleep(time);
        let elapsed = began.elapsed().as_secs_f64();
        groups
            .iter()
            .zip(before)
            .map(|(group, then)| (self.used(*group) - then).as_secs_f64() / elapsed)
            .collect()
    }

    /// Orders for the socket.
    pub fn orders(&self, groups: &[(usize, Value)]) -> PathBuf {
        let of = |(group, more): &(usize, Value)| {
            let mut one = json!({ "cgroup": self.path(*group) });
            one.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            one
        };
        let groups: Vec<Value> = groups.iter().map(of).collect();
        let file = self.state.path().join("orders.json");
        std::fs::write(&file, json!({ "do": "orders", "groups": groups }).to_string()).unwrap();
        file
    }

    /// Stops or continues all work. With the scheduler the kernel patches its own code, and an emulated CPU that is just
    /// there may run half of the old instruction (QEMU 7.2): then the guest dies of it, in one of some twenty loads.
    fn work(&self, goes_on: bool) {
        let signal = if goes_on { Signal::CONT } else { Signal::STOP };
        for child in self.groups.iter().flat_map(|group| &group.children) {
            // Each is the leader of its own; one that has ended is no work.
            let _ = kill_process_group(Pid::from_child(child), signal);
        }
        if !goes_on {
            // Idle CPUs have no tick.
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Loads the scheduler with these orders and waits until they are in force.
    pub fn load(&mut self, orders: &Path, options: &[&str]) {
        self.work(false);
        let mut args = vec!["load", "--orders", orders.to_str().unwrap()];
        args.extend(options);
        let child = self.command(&args).spawn().unwrap();
        let mut old = self.loader.replace(child);
        let pid = self.loader.as_ref().unwrap().id();
        wait_for("the scheduler is loaded", || {
            let ended = self.loader.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "load ended: {ended:?}");
            self.try_status().is_some_and(|status| status["pid"] == pid && status["generation"] != 0)
        });
        if let Some(old) = &mut old {
            old.wait().unwrap();
        }
        self.work(true);
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg("--state-dir").arg(self.state.path()).args(args);
        command
    }

    /// Runs it to its end: status and all that it said.
    pub fn run(&self, args: &[&str]) -> (i32, String) {
        let Output { status, stdout, stderr } = self.command(args).output().unwrap();
        let said = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
        (status.code().unwrap_or(-1), said)
    }

    /// Gives other orders.
    pub fn order(&self, groups: &[(usize, Value)]) {
        let file = self.orders(groups);
        let (status, said) = self.run(&["order", file.to_str().unwrap()]);
        assert_eq!(status, 0, "{said}");
    }

    pub fn try_status(&self) -> Option<Value> {
        let output = self.command(&["status"]).output().unwrap();
        serde_json::from_slice(&output.stdout).ok()
    }

    pub fn status(&self) -> Value {
        self.try_status().unwrap()
    }

    /// Takes the scheduler off, as a person would.
    pub fn unload(&mut self) {
        self.work(false);
        let (status, said) = self.run(&["unload"]);
        assert_eq!(status, 0, "{said}");
        if let Some(mut loader) = self.loader.take() {
            loader.wait().unwrap();
        }
        assert_eq!(state(), "disabled");
        self.work(true);
    }

    /// Kills the process that has the scheduler.
    pub fn kill_loader(&mut self) {
        self.work(false);
        let mut loader = self.loader.take().unwrap();
        loader.kill().unwrap();
        loader.wait().unwrap();
        wait_for("the kernel has taken the scheduler off", || state() == "disabled");
        self.work(true);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(mut loader) = self.loader.take() {
            self.work(false);
            let _ = self.command(&["unload"]).output();
            let _ = loader.kill();
            let _ = loader.wait();
        }
        for group in (0..self.groups.len()).rev() {
            self.end(group);
            let path = self.groups[group].path.clone();
            for _ in 0..100 {
                if std::fs::remove_dir(&path).is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Waits for something that has to come.
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "not within {} s: {what}", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub fn pin(pid: u32, cpus: &[usize]) {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    sched_setaffinity(Pid::from_raw(pid as i32), &set).unwrap();
}

/// Policy and nice value of a thread.
pub fn policy(tid: u32) -> (u32, i32) {
    let text = std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap();
    let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
    (fields[38].parse().unwrap(), fields[16].parse().unwrap())
}

/// Busy and all time of a CPU, ticks.
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

/// A figure of the status.
pub fn counter(status: &Value, name: &str) -> f64 {
    status["counters"][name].as_f64().unwrap()
}
