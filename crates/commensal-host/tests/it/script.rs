//! Reads the conformance script and runs it on any host.

use commensal_core::errno::Errno;
use commensal_core::vendor::QosLevels;
use commensal_host::fake::FakeHost;
use commensal_host::{
    Child, Cookie, Dir, Exit, Host, HostError, Result, Scheduling, Signal, SpawnSpec, Stdin, Stdout,
};
use commensal_testkit::{holds_within, until_some};
use std::collections::BTreeMap;
use std::io::{PipeWriter, Read, read_to_string};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub const SCRIPT: &str = include_str!("../conformance.txt");

/// Part of a section's head, the file that it needs, and the reason to skip it if the file does not exist.
const SPECIAL: [(&str, &str, &str); 5] = [
    ("openeuler memory", "memory.qos_level", "this is not a kernel of openEuler, or CONFIG_MEMCG_QOS is off"),
    ("anolis", "cpu.bvt_warp_ns", "this is not a kernel of Anolis/Alibaba"),
    ("priority", "cpu.priority", "this is not a kernel of Anolis 6.6"),
    ("openeuler", "cpu.qos_level", "this is not a kernel of openEuler"),
    ("exclusive", "cpuset.cpus.exclusive", "Linux before 6.7, or no cpuset in v2"),
];

/// Scheduling policies by number (sched(7)).
const POLICIES: [(i32, &str); 5] = [(0, "normal"), (1, "fifo"), (2, "rr"), (3, "batch"), (5, "idle")];

/// Argument of the process that `team` starts.
const TEAM: &str = "as-a-team";

/// The process that `team` starts; otherwise this test does nothing.
#[test]
fn a_team() {
    if std::env::args().any(|arg| arg == TEAM) {
        let waits = || read_to_string(std::io::stdin()).unwrap_or_default();
        std::thread::spawn(waits).join().unwrap();
    }
}

/// Memory that `hog` uses, in bytes.
const HOG_BYTES: u64 = 32 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub line: usize,
    pub operation: String,
    pub expect: String,
}

#[derive(Debug)]
pub struct Section {
    /// `v1` or `v2`, with further requirements for the kernel, if any.
    pub kind: String,
    pub controllers: Vec<String>,
    pub rows: Vec<Row>,
}

pub fn sections() -> Vec<Section> {
    let mut all: Vec<Section> = Vec::new();
    for (index, line) in SCRIPT.lines().enumerate() {
        if line.starts_with('#') || line.trim().is_empty() {
            continue;
        }
        if let Some(head) = line.strip_prefix('[') {
            let mut words = head.trim_end_matches(']').split(' ').map(str::to_owned);
            let kind = words.next().unwrap();
            all.push(Section { kind, controllers: words.collect(), rows: Vec::new() });
            continue;
        }
        let (operation, expect) =
            line.rsplit_once(" -> ").unwrap_or_else(|| panic!("line {}: no answer", index + 1));
        let row = Row { line: index + 1, operation: operation.to_owned(), expect: expect.to_owned() };
        all.last_mut().expect("a row before the first section").rows.push(row);
    }
    all
}

/// The counts of a run for the summary.
#[derive(Debug, Default)]
pub struct Tally {
    pub ran: usize,
    pub skipped: usize,
    pub wrong: Vec<String>,
}

/// One run of the script on one host.
pub struct Run<'a, H: Host> {
    host: &'a mut H,
    /// Set on the fake, whose processes cannot use memory by themselves.
    fake: Option<FakeHost>,
    scratch: String,
    dirs: BTreeMap<String, Dir>,
    kept: BTreeMap<String, Dir>,
    children: BTreeMap<String, Child>,
    /// A thread besides the first one of each child of `team`.
    threads: BTreeMap<String, u32>,
    /// Kept open so that hogs keep waiting for input.
    inputs: Vec<PipeWriter>,
    words: Vec<(String, String)>,
    mounts: Vec<(PathBuf, String, Vec<String>)>,
    pub tally: Tally,
}

impl<'a, H: Host> Run<'a, H> {
    pub fn new(host: &'a mut H, fake: Option<FakeHost>) -> Run<'a, H> {
        let mounts = host.read_file(Path::new("/proc/mounts")).unwrap();
        let mounts = mounts.lines().filter_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let options = words[3].split(',').map(str::to_owned).collect();
            words[2].starts_with("cgroup").then(|| (PathBuf::from(words[1]), words[2].to_owned(), options))
        });
        let mounts = mounts.collect();
        let words = placeholders(host);
        let scratch = format!("commensal-it-{}", std::process::id());
        let (dirs, kept, children) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let threads = BTreeMap::new();
        let (inputs, tally) = (Vec::new(), Tally::default());
        Run { host, fake, scratch, dirs, kept, children, threads, inputs, words, mounts, tally }
    }

    fn mount(&self, name: &str) -> Option<PathBuf> {
        self.mounts.iter().find_map(|(mount, kind, options)| {
            let v1 = kind == "cgroup" && options.iter().any(|option| option == name);
            (v1 || (kind == "cgroup2" && name == "v2")).then(|| mount.clone())
        })
    }

    /// Returns why the section cannot run here; `None` if it can.
    fn missing(&mut self, section: &Section) -> Option<String> {
        let head = format!("{} {}", section.kind, section.controllers.join(" "));
        if let Some((_, file, reason)) = SPECIAL.iter().find(|(part, _, _)| head.contains(part))
            && let Some(reason) = self.lacks(section, file, reason)
        {
            return Some(reason);
        }
        if self.fake.is_none() && section.kind.starts_with("v1-openeuler") {
            let five = self.host.read_file(Path::new(QosLevels::WEIGHTS)).is_ok();
            if section.controllers == ["cpu"] && five != section.kind.ends_with('5') {
                return Some(format!("this kernel's cpu.qos_level has {} levels", if five { 5 } else { 2 }));
            }
        }
        if section.kind.ends_with("core-sched") {
            let there = self.host.cookie(0).is_ok();
            let wanted = section.kind == "core-sched";
            return (self.fake.is_none() && there != wanted).then(|| match there {
                true => "this kernel has core scheduling".to_owned(),
                false => "no core scheduling: CONFIG_SCHED_CORE is off, or there is no SMT".to_owned(),
            });
        }
        if section.kind.starts_with("v1") {
            return section
                .controllers
                .iter()
                .find(|controller| self.mount(controller).is_none())
                .map(|controller| format!("no v1 hierarchy with {controller}"));
        }
        let Some(mount) = self.mount("v2") else { return Some("no v2 hierarchy".to_owned()) };
        let given = self.host.read_file(&mount.join("cgroup.subtree_control")).unwrap_or_default();
        section
            .controllers
            .iter()
            .find(|controller| !given.split_whitespace().any(|one| one == *controller))
            .map(|controller| format!("the v2 root gives no {controller} to its children"))
    }

    /// Returns why a section about a feature of some kernels cannot run here; `None` if it can.
    fn lacks(&mut self, section: &Section, file: &str, reason: &str) -> Option<String> {
        // The fake's kernel was chosen for this section.
        if self.fake.is_some() {
            return None;
        }
        let of_v1 = section.controllers.first().map_or("cpu", String::as_str);
        let hierarchy = if section.kind.starts_with("v1") { of_v1 } else { "v2" };
        let Some(mount) = self.mount(hierarchy) else { return Some(format!("no {hierarchy} hierarchy")) };
        let Ok(root) = self.host.open(&mount) else { return Some(format!("{hierarchy} cannot be opened")) };
        let name = self.scratch.clone();
        let there = self.host.mkdir(root, &name).ok().map(|dir| {
            let there = self.host.read(dir, file).is_ok();
            self.host.close(dir);
            let _ = self.host.rmdir(root, &name, dir.inode);
            there
        });
        self.host.close(root);
        (there != Some(true)).then(|| reason.to_owned())
    }

    pub fn section(&mut self, section: &Section) {
        let missing = self.missing(section);
        let two = self.words.iter().any(|(name, value)| name == "{last}" && value == "0");
        for row in &section.rows {
            let needs_two = two && (row.operation.contains("{last}") || row.operation.contains("0-1"));
            let reason = missing.clone().or_else(|| needs_two.then(|| "one CPU only".to_owned()));
            let reason = reason.or_else(|| {
                let disk = self.words.iter().any(|(name, value)| name == "{disk}" && value.is_empty());
                (disk && row.operation.contains("{disk}")).then(|| "no disk".to_owned())
            });
            if let Some(reason) = reason {
                println!("row skipped: {}: {reason}", row.line);
                self.tally.skipped += 1;
                continue;
            }
            self.row(row);
        }
        self.clean();
    }

    fn row(&mut self, row: &Row) {
        let expect = self.filled(&row.expect).replace("\"\"", "");
        let answer = self.answer(&row.operation);
        self.tally.ran += 1;
        if !expect.split('|').any(|one| one == answer) {
            let text = format!("line {}: {}: expected {expect:?}, got {answer:?}", row.line, row.operation);
            println!("{text}");
            self.tally.wrong.push(text);
        }
    }

    fn filled(&self, text: &str) -> String {
        let mut text = text.replace('@', &self.scratch);
        for (name, value) in &self.words {
            text = text.replace(name, value);
        }
        for (name, child) in &self.children {
            text = text.replace(&format!("{{{name}}}"), &child.process.pid.to_string());
        }
        for (name, tid) in &self.threads {
            text = text.replace(&format!("{{{name}+}}"), &tid.to_string());
        }
        text
    }

    fn answer(&mut self, operation: &str) -> String {
        let operation = self.filled(operation);
        let (verb, rest) = operation.split_once(' ').unwrap();
        let (path, value) = rest.split_once(' ').unwrap_or((rest, ""));
        let value = value.replace("\\n", "\n");
        let text = match verb {
            "mkdir" => {
                self.split(path).and_then(|(dir, name)| self.host.mkdir(dir, &name)).map(|_| "ok".into())
            }
            "rmdir" => self.rmdir(path),
            "rename" => self.rename(path, &value),
            "sysctl" => {
                let file = Path::new("/proc/sys").join(path.replace('.', "/"));
                self.host.write_setting(&file, &value).and_then(|()| self.host.read_file(&file))
            }
            "policy" if value.is_empty() => Ok(self.policy(path)),
            "policy" => self.set_policy(path, &value).map(|()| self.policy(path)),
            "affinity" => {
                let tid = self.children[path].process.pid;
                self.host.set_affinity(tid, &value.parse().unwrap()).map(|()| "ok".into())
            }
            "cookie" => self.cookie(path, &value),
            "has" => {
                let (dir, name) = self.split(path).unwrap();
                Ok(match self.host.read(dir, &name) {
                    Err(error) if matches!(error.errno, Errno::ENOENT | Errno::ENODEV) => "no".to_owned(),
                    _ => "yes".to_owned(),
                })
            }
            "read" => self.split(path).and_then(|(dir, name)| self.host.read(dir, &name)),
            "write" | "put" => self.write(path, &value, verb == "write"),
            "list" => self.dir(path).and_then(|dir| self.host.children(dir)).map(|names| names.join(" ")),
            "keep" => self.open(&value).map(|dir| {
                self.kept.insert(path.to_owned(), dir);
                "ok".to_owned()
            }),
            "start" | "hog" => self.start(path, &value, verb == "hog"),
            "team" => self.team(path, &value),
            "signal" => {
                let process = self.children[path].process.clone();
                self.host.signal(&process, Signal(value.parse().unwrap())).map(|()| "ok".into())
            }
            "wait" => self.children.get_mut(path).unwrap().wait().map(|exit| match exit {
                Exit::Code(code) => format!("code {code}"),
                Exit::Signal(signal) => format!("signal {signal}"),
            }),
            "where" => Ok(self.place(path, &value)),
            _ => panic!("unknown operation {verb:?}"),
        };
        text.map_or_else(|error| error.errno.to_string(), |text| text.trim_end().replace('\n', "\\n"))
    }

    fn open(&mut self, path: &str) -> Result<Dir> {
        let (hierarchy, below) = path.split_once('/').unwrap_or((path, ""));
        let mount = self.mount(hierarchy).unwrap();
        self.host.open(&commensal_host::below(&mount, below))
    }

    fn dir(&mut self, path: &str) -> Result<Dir> {
        if let Some(name) = path.strip_prefix('%') {
            return Ok(self.kept[name]);
        }
        if let Some(dir) = self.dirs.get(path) {
            return Ok(*dir);
        }
        let dir = self.open(path)?;
        self.dirs.insert(path.to_owned(), dir);
        Ok(dir)
    }

    fn split(&mut self, path: &str) -> Result<(Dir, String)> {
        let (folder, name) = path.rsplit_once('/').unwrap();
        Ok((self.dir(folder)?, name.to_owned()))
    }

    fn rmdir(&mut self, path: &str) -> Result<String> {
        let inode = self.open(path).map(|dir| {
            self.host.close(dir);
            dir.inode
        });
        let (parent, name) = self.split(path)?;
        self.host.rmdir(parent, &name, inode?)?;
        self.forget(path);
        Ok("ok".to_owned())
    }

    fn rename(&mut self, path: &str, to: &str) -> Result<String> {
        let inode = self.open(path).map(|dir| {
            self.host.close(dir);
            dir.inode
        });
        let (parent, name) = self.split(path)?;
        self.host.rename(parent, &name, inode?, to)?;
        self.forget(path);
        Ok("ok".to_owned())
    }

    /// Reads the scheduling policy of a process: field 41 of proc(5), counted from the last bracket.
    fn policy(&self, name: &str) -> String {
        let pid = self.children[name].process.pid;
        let stat = self.host.read_file(Path::new(&format!("/proc/{pid}/stat"))).unwrap();
        let (_, rest) = stat.rsplit_once(')').unwrap();
        let number: i32 = rest.split_whitespace().nth(38).unwrap().parse().unwrap();
        POLICIES.iter().find(|(policy, _)| *policy == number).map_or("other", |(_, name)| name).to_owned()
    }

    /// Performs `policy A NAME [PRIORITY]`.
    fn set_policy(&mut self, name: &str, value: &str) -> Result<()> {
        let (policy, priority) = value.split_once(' ').unwrap_or((value, "0"));
        let policy = POLICIES.iter().find(|(_, name)| *name == policy).unwrap().0;
        let to = Scheduling { priority: priority.parse().unwrap(), ..Scheduling::of(policy) };
        let tid = self.children[name].process.pid;
        self.host.set_scheduling(tid, &to)?;
        assert_eq!(self.host.scheduling(tid)?, to);
        Ok(())
    }

    /// Performs `cookie A new|none|B`: gives A's first thread a cookie and returns whether it then has one.
    fn cookie(&mut self, name: &str, which: &str) -> Result<String> {
        let tid = self.children[name].process.pid;
        let cookie = match which {
            "new" => Cookie::New,
            "none" => Cookie::None,
            other => Cookie::Of(self.children[other].process.pid),
        };
        self.host.share_cookie(cookie, &[tid])?;
        Ok(if self.host.cookie(tid)? == 0 { "none" } else { "some" }.to_owned())
    }

    fn forget(&mut self, path: &str) {
        if let Some(dir) = self.dirs.remove(path) {
            self.host.close(dir);
        }
    }

    fn write(&mut self, path: &str, value: &str, read_back: bool) -> Result<String> {
        let (dir, name) = self.split(path)?;
        // Nothing may be written to other programs' groups, and none of their processes may be moved.
        assert!(path.starts_with('%') || path.contains(&self.scratch), "{path} is not a scratch group");
        if ["cgroup.procs", "cgroup.threads", "tasks"].contains(&name.as_str()) {
            let pids = self.children.values().map(|child| child.process.pid);
            let ours = pids.chain(self.threads.values().copied()).any(|tid| tid.to_string() == value);
            let harmless = value == "999999999" || value.parse::<u32>().is_err();
            assert!((ours || harmless) && !value.starts_with("0x"), "{value:?} is not ours to move");
        }
        self.host.write(dir, &name, value)?;
        if read_back { self.host.read(dir, &name) } else { Ok("ok".to_owned()) }
    }

    fn start(&mut self, name: &str, groups: &str, hog: bool) -> Result<String> {
        let mut spec = SpawnSpec::new("sleep").arg("600");
        if hog {
            // The shell keeps the text in memory while it waits for input that never arrives.
            let script = "x=$(head -c 33554432 /dev/zero | tr '\\0' x); echo up; read y";
            spec = SpawnSpec::new("sh").arg("-c").arg(script);
            let (reader, writer) = std::io::pipe().unwrap();
            spec.stdin = Stdin::Fd(Arc::new(reader.into()));
            self.inputs.push(writer);
            spec.stdout = Stdout::Pipe;
        }
        spec.die_with_parent = true;
        for group in groups.split(',').filter(|group| !group.is_empty()) {
            spec.groups.push(self.dir(group)?);
        }
        let mut child = self.host.spawn(&spec)?;
        if hog && self.fake.is_none() {
            let mut up = [0; 3];
            child
                .stdout
                .as_mut()
                .unwrap()
                .read_exact(&mut up)
                .expect("the hog writes a line when it is full");
        }
        if let (true, Some(fake)) = (hog, &self.fake) {
            let place = fake.processes().into_iter().find(|one| one.pid == child.process.pid).unwrap();
            let group = place.groups.iter().find(|group| group.ends_with(&self.scratch)).unwrap().clone();
            fake.set_usage(group, HOG_BYTES);
        }
        self.children.insert(name.to_owned(), child);
        Ok("ok".to_owned())
    }

    /// Starts a process with several threads: this program, with a test that waits for the end of its input.
    fn team(&mut self, name: &str, group: &str) -> Result<String> {
        let mut spec = SpawnSpec::new(std::env::current_exe().unwrap());
        spec.args = ["--exact", "script::a_team", TEAM].map(Into::into).into();
        let (reader, writer) = std::io::pipe().unwrap();
        spec.stdin = Stdin::Fd(Arc::new(reader.into()));
        self.inputs.push(writer);
        (spec.stdout, spec.die_with_parent) = (Stdout::Null, true);
        spec.groups.push(self.dir(group)?);
        let child = self.host.spawn(&spec)?;
        let pid = child.process.pid;
        self.children.insert(name.to_owned(), child);
        if let Some(fake) = &self.fake {
            fake.add_thread(pid);
        }
        let tasks = PathBuf::from(format!("/proc/{pid}/task"));
        let other = until_some("it has another thread", || {
            let tids = self.host.list(&tasks).unwrap_or_default();
            tids.iter().filter_map(|tid| tid.parse().ok()).find(|tid| *tid != pid)
        });
        self.threads.insert(name.to_owned(), other);
        Ok("ok".to_owned())
    }

    fn place(&self, name: &str, hierarchy: &str) -> String {
        let pid = self.children[name].process.pid;
        let text = self.host.read_file(Path::new(&format!("/proc/{pid}/cgroup"))).unwrap();
        let line = text.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let names = fields.next()?;
            let found =
                names.split(',').any(|one| one == hierarchy) || (hierarchy == "v2" && names.is_empty());
            found.then(|| fields.next().unwrap_or_default().to_owned())
        });
        line.unwrap_or_else(|| "nowhere".to_owned())
    }

    /// Kills the section's remaining processes and removes its groups.
    fn clean(&mut self) {
        self.threads.clear();
        for (_, mut child) in std::mem::take(&mut self.children) {
            let _ = self.host.signal(&child.process, Signal::KILL);
            let _ = child.wait();
        }
        for (_, dir) in std::mem::take(&mut self.dirs).into_iter().chain(std::mem::take(&mut self.kept)) {
            self.host.close(dir);
        }
        for (mount, _, _) in self.mounts.clone() {
            let Ok(root) = self.host.open(&mount) else { continue };
            if let Ok(dir) = self.host.open_child(root, &self.scratch) {
                remove_tree(self.host, root, &self.scratch.clone(), dir);
            }
            self.host.close(root);
        }
    }
}

impl<H: Host> Drop for Run<'_, H> {
    fn drop(&mut self) {
        self.clean();
    }
}

/// Removes a group and everything below it.
pub fn remove_tree<H: Host>(host: &mut H, parent: Dir, name: &str, dir: Dir) {
    for child in host.children(dir).unwrap_or_default() {
        if let Ok(below) = host.open_child(dir, &child) {
            remove_tree(host, dir, &child, below);
        }
    }
    host.close(dir);
    holds_within(Duration::from_secs(20), || {
        !matches!(host.rmdir(parent, name, dir.inode), Err(HostError { errno: Errno::EBUSY, .. }))
    });
}

fn placeholders<H: Host>(host: &H) -> Vec<(String, String)> {
    let read = |path: &str| host.read_file(Path::new(path)).unwrap_or_default().trim().to_owned();
    let last = |list: &str| list.rsplit([',', '-']).next().unwrap_or("0").to_owned();
    let online = read("/sys/devices/system/cpu/online");
    let beyond = last(&read("/sys/devices/system/cpu/possible")).parse::<u32>().unwrap_or(0) + 1;
    let disks = host.list(Path::new("/sys/block")).unwrap_or_default();
    let disk = disks.iter().find(|name| !["loop", "ram", "zram"].iter().any(|kind| name.starts_with(kind)));
    let disk = disk.map(|name| read(&format!("/sys/block/{name}/dev"))).unwrap_or_default();
    let pairs = [
        ("{all}", online.clone()),
        ("{last}", last(&online)),
        ("{beyond}", beyond.to_string()),
        ("{disk}", disk),
    ];
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
