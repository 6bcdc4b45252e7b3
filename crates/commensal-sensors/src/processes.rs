//! Finds in `/proc` the processes that a match (a condition in the groups file) selects.
//!
//! A scan reads only the facts that it needs: the start time of every unknown process, and its program, user or
//! arguments only if a match needs them and the match's cheaper conditions are met. A [`Scanner`] that is used for
//! several scans checks each new process in three of them, because a process executes its program some time after it
//! was started, and checks a tenth of the older processes per scan.

use commensal_core::actual::{CgroupPath, Hierarchy};
use commensal_core::errno::Errno;
use commensal_core::group::Match;
use commensal_core::member::{self, Apart, ProcessFact, ProcessId, is_program, is_user};
use commensal_core::process::{COMM, Stat};
use commensal_host::{Host, below};
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Number of scans in which every process is checked at least once.
const ROUND: u32 = 10;
/// Number of times that a new process is checked before it is checked only once per [`ROUND`].
const YOUNG: u8 = 3;

/// Finds processes, and remembers which processes it has checked.
#[derive(Debug, Default)]
pub struct Scanner {
    seen: BTreeMap<u32, Remembered>,
    turn: u32,
}

/// Remembered facts about a process.
#[derive(Debug, Clone, Copy)]
struct Remembered {
    start_ticks: u64,
    parent: u32,
    /// Number of checks so far, up to [`YOUNG`].
    looks: u8,
    /// Whether a match selected it at the last check.
    taken: bool,
    /// Whether the process is never selected: a kernel thread, an exited process, or commensal itself.
    exempt: bool,
}

/// The processes to search for.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The matches; those that do not select processes are ignored.
    pub matches: &'a [&'a Match],
    /// Processes that every scan returns, because commensal moved them.
    pub moved: &'a BTreeSet<ProcessId>,
    /// Hierarchies in which the processes' cgroups are read.
    pub hierarchies: &'a [Hierarchy],
}

impl Scanner {
    /// Returns the processes that a match selects, with all their descendants, and those in [`Wanted::moved`]. Leaves
    /// out PID 1, kernel threads, and processes that run this program.
    pub fn scan(&mut self, host: &dyn Host, wanted: &Wanted<'_>) -> Vec<ProcessFact> {
        let matches: Vec<&Match> =
            wanted.matches.iter().copied().filter(|one| matches!(one, Match::Process { .. })).collect();
        if matches.is_empty() && wanted.moved.is_empty() {
            self.seen.clear();
            return Vec::new();
        }
        self.turn = (self.turn + 1) % ROUND;
        let users = match matches.iter().any(|one| matches!(one, Match::Process { user: Some(_), .. })) {
            true => users(host),
            false => BTreeMap::new(),
        };
        let moved: BTreeSet<u32> = wanted.moved.iter().map(|id| id.pid).collect();
        let own = host.link(Path::new("/proc/self/exe")).ok();
        let names = host.list(Path::new("/proc")).unwrap_or_default();
        let pids = names.iter().filter_map(|name| name.parse().ok()).filter(|pid| *pid > 1);
        let (mut seen, mut facts) = (BTreeMap::new(), BTreeMap::new());
        for pid in pids {
            let known = self.seen.get(&pid).copied();
            let settled = known.filter(|one| one.looks >= YOUNG && !one.taken && pid % ROUND != self.turn);
            if let Some(known) = settled.filter(|_| !moved.contains(&pid)) {
                seen.insert(pid, known);
                continue;
            }
            let look = Look::new(host, pid);
            let Some(mut now) = look.stat() else { continue };
            let same = known.filter(|known| known.start_ticks == now.start_ticks);
            now.looks = same.map_or(0, |known| known.looks).saturating_add(1).min(YOUNG);
            now.exempt = now.exempt || pid == std::process::id();
            // Evaluates every match, without stopping at the first one that selects the process, so that the facts that
            // each of them needs are read.
            let takers = matches.iter().filter(|one| !now.exempt && look.is_taken(one, &users)).count();
            if takers > 0 {
                // This check comes last, because it needs another system call.
                now.exempt = own.is_some() && look.exe() == own.as_deref();
                now.taken = !now.exempt;
            }
            seen.insert(pid, now);
            let id = ProcessId { pid, start_ticks: now.start_ticks };
            if now.taken || (wanted.moved.contains(&id) && !now.exempt) {
                facts.insert(pid, look.fact(id, now.parent, &users, wanted.hierarchies));
            }
        }
        self.seen = seen;
        self.children(host, wanted.hierarchies, &mut facts);
        facts.into_values().collect()
    }

    /// Adds the descendants of the processes.
    fn children(&self, host: &dyn Host, hierarchies: &[Hierarchy], facts: &mut BTreeMap<u32, ProcessFact>) {
        let mut of: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (pid, seen) in self.seen.iter().filter(|(_, seen)| !seen.exempt) {
            of.entry(seen.parent).or_default().push(*pid);
        }
        let mut waiting: Vec<u32> = facts.keys().copied().collect();
        while let Some(parent) = waiting.pop() {
            for pid in of.get(&parent).into_iter().flatten() {
                if facts.contains_key(pid) {
                    continue;
                }
                let look = Look::new(host, *pid);
                let Some(now) = look.stat().filter(|now| now.parent == parent && !now.exempt) else {
                    continue;
                };
                let id = ProcessId { pid: *pid, start_ticks: now.start_ticks };
                facts.insert(*pid, look.fact(id, parent, &BTreeMap::new(), hierarchies));
                waiting.push(*pid);
            }
        }
    }
}

/// Returns the cgroups of a process by hierarchy, from its `/proc/PID/cgroup` (`file`); empty if the process has exited
/// or exits. In that case cgroup v1 shows `/`, wherever it was (kernel/cgroup/cgroup.c, `proc_cgroup_show`).
pub fn places(host: &dyn Host, file: &Path, hierarchies: &[Hierarchy]) -> BTreeMap<usize, CgroupPath> {
    let text = host.read_file(file).unwrap_or_default();
    // Read afterwards: who is not exiting now was not exiting then.
    match host.read_file(&file.with_file_name("stat")) {
        Ok(stat) if Stat::parse(&stat).is_some_and(|stat| stat.has_ended()) => BTreeMap::new(),
        Err(error) if matches!(error.errno, Errno::ENOENT | Errno::ESRCH) => BTreeMap::new(),
        _ => places_of(host, &text, hierarchies),
    }
}

/// Like [`places`], for the text of such a file.
pub(crate) fn places_of(
    host: &dyn Host,
    text: &str,
    hierarchies: &[Hierarchy],
) -> BTreeMap<usize, CgroupPath> {
    let is_there = |hierarchy: &Hierarchy, path: &CgroupPath| {
        host.list(&below(Path::new(&hierarchy.mount), path.as_str())).is_ok()
    };
    member::places(text, hierarchies, &is_there)
}

/// Returns the cgroups of each thread of a process, by hierarchy; empty if the process has only one thread.
pub fn threads(
    host: &dyn Host,
    pid: u32,
    hierarchies: &[Hierarchy],
) -> BTreeMap<u32, BTreeMap<usize, CgroupPath>> {
    let folder = format!("/proc/{pid}/task");
    let tids = host.list(Path::new(&folder)).unwrap_or_default();
    let tids = tids.iter().filter(|_| tids.len() > 1).filter_map(|tid| tid.parse::<u32>().ok());
    let of = |tid: u32| places(host, Path::new(&format!("{folder}/{tid}/cgroup")), hierarchies);
    // A thread that has exited meanwhile has no cgroups.
    tids.map(|tid| (tid, of(tid))).filter(|(_, places)| !places.is_empty()).collect()
}

/// Returns the hierarchies in which the threads of a process are in several cgroups.
pub fn apart(host: &dyn Host, pid: u32, hierarchies: &[Hierarchy]) -> Apart {
    let mut apart = Apart::new();
    for (hierarchy, path) in threads(host, pid, hierarchies).into_values().flatten() {
        apart.entry(hierarchy).or_default().insert(path);
    }
    apart.retain(|_, paths| paths.len() > 1);
    apart
}

/// Returns user names by user ID, from `/etc/passwd`. Users that are not in this file can be matched by ID only.
fn users(host: &dyn Host) -> BTreeMap<u32, Vec<String>> {
    let text = host.read_file(Path::new("/etc/passwd")).unwrap_or_default();
    let mut users: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        if let (Some(name), Some(Ok(uid))) = (fields.next(), fields.nth(1).map(str::parse)) {
            users.entry(uid).or_default().push(name.to_owned());
        }
    }
    users
}

/// Returns when the process or thread that has this number now has started, in clock ticks since boot.
pub fn start_ticks(host: &dyn Host, pid: u32) -> Option<u64> {
    Stat::parse(&host.read_file(Path::new(&format!("/proc/{pid}/stat"))).ok()?)?.start_ticks()
}

/// Why a number is not that of a user process that runs.
#[derive(Debug, thiserror::Error)]
pub enum NoProcess {
    /// Nothing has the number.
    #[error("there is no process {0}")]
    Missing(u32),
    /// It is the number of a thread that is not the first of its process.
    #[error("{name} is a thread of process {leader}; name the process")]
    Thread {
        /// Name and number of the thread.
        name: String,
        /// Number of its process.
        leader: String,
    },
    /// It is that of a kernel thread.
    #[error("{0} is a kernel thread, not a user process")]
    Kernel(String),
    /// All threads of the process have ended, and its parent has not asked how.
    #[error("{0} has ended already")]
    Ended(String),
}

/// Returns the user process with this number, and its name with the number.
///
/// # Errors
/// Returns an error if there is no such process.
pub fn numbered(host: &dyn Host, pid: u32) -> Result<(String, ProcessId), NoProcess> {
    let look = Look::new(host, pid);
    let (Some(text), Some(status)) = (look.file("stat"), look.file("status")) else {
        return Err(NoProcess::Missing(pid));
    };
    let known = Stat::parse(&text).and_then(|stat| Some((stat.start_ticks()?, stat)));
    let Some((start_ticks, stat)) = known else { return Err(NoProcess::Missing(pid)) };
    let name = format!("{} ({pid})", stat.name);
    let leader = status.lines().find_map(|line| line.strip_prefix("Tgid:")).map_or("", str::trim);
    if leader != pid.to_string() {
        return Err(NoProcess::Thread { name, leader: leader.to_owned() });
    }
    if stat.is_kernel_thread() {
        return Err(NoProcess::Kernel(name));
    }
    if stat.is_gone() {
        return Err(NoProcess::Ended(name));
    }
    Ok((name, ProcessId { pid, start_ticks }))
}

/// Returns all user processes of this name except this one. The kernel shortens the name, so the rest of a longer one is
/// compared with the program.
pub fn called(host: &dyn Host, name: &str) -> Vec<ProcessId> {
    let has_name = |pid: u32| {
        let look = Look::new(host, pid);
        let comm = look.file("comm").unwrap_or_default();
        let comm = comm.trim_end_matches('\n');
        if name.len() <= COMM || comm.len() < COMM {
            return comm == name;
        }
        let cmdline = || look.file("cmdline").unwrap_or_default();
        name.starts_with(comm)
            && cmdline().split('\0').next().and_then(|path| path.rsplit('/').next()) == Some(name)
    };
    let numbers = host.list(Path::new("/proc")).unwrap_or_default();
    let pids = numbers.iter().filter_map(|number| number.parse().ok());
    let named = pids.filter(|pid| *pid != std::process::id() && has_name(*pid));
    named.filter_map(|pid| numbered(host, pid).ok()).map(|(_, id)| id).collect()
}

/// Whether a thread of this process still lives.
pub fn lives(host: &dyn Host, id: &ProcessId) -> bool {
    let text = host.read_file(Path::new(&format!("/proc/{id}/stat"))).unwrap_or_default();
    Stat::parse(&text).is_some_and(|stat| stat.start_ticks() == Some(id.start_ticks) && !stat.is_gone())
}

/// One process, whose facts are read only when a check needs them.
struct Look<'h> {
    host: &'h dyn Host,
    pid: u32,
    exe: OnceCell<Option<String>>,
    uid: OnceCell<Option<u32>>,
    cmdline: OnceCell<Option<String>>,
}

impl<'h> Look<'h> {
    fn new(host: &'h dyn Host, pid: u32) -> Look<'h> {
        Look { host, pid, exe: OnceCell::new(), uid: OnceCell::new(), cmdline: OnceCell::new() }
    }

    fn file(&self, name: &str) -> Option<String> {
        self.host.read_file(Path::new(&format!("/proc/{}/{name}", self.pid))).ok()
    }

    fn stat(&self) -> Option<Remembered> {
        let text = self.file("stat")?;
        let stat = Stat::parse(&text)?;
        Some(Remembered {
            start_ticks: stat.start_ticks()?,
            parent: stat.parent()?,
            looks: 0,
            taken: false,
            // A process that has exited cannot be moved.
            exempt: stat.is_kernel_thread() || stat.has_ended(),
        })
    }

    fn exe(&self) -> Option<&str> {
        let read = || {
            let link = self.host.link(Path::new(&format!("/proc/{}/exe", self.pid))).ok()?;
            Some(link.strip_suffix(" (deleted)").unwrap_or(&link).to_owned())
        };
        self.exe.get_or_init(read).as_deref()
    }

    /// Returns the effective user ID, the second number of the line `Uid:`.
    fn uid(&self) -> Option<u32> {
        *self.uid.get_or_init(|| {
            let status = self.file("status")?;
            let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
            line.split_whitespace().nth(1)?.parse().ok()
        })
    }

    fn cmdline(&self) -> Option<&str> {
        let read = || {
            let text = self.file("cmdline")?;
            Some(text.trim_end_matches('\0').replace('\0', " "))
        };
        self.cmdline.get_or_init(read).as_deref()
    }

    /// Whether the match selects the process. Checks the cheapest condition first; if that is not met, does not read
    /// the facts for the other conditions.
    fn is_taken(&self, one: &Match, users: &BTreeMap<u32, Vec<String>>) -> bool {
        let Match::Process { exe, user, cmdline } = one else { return false };
        exe.as_ref().is_none_or(|wanted| self.exe().is_some_and(|has| is_program(has, wanted)))
            && user
                .as_ref()
                .is_none_or(|wanted| self.uid().is_some_and(|uid| is_user(uid, &self.users(users), wanted)))
            && cmdline.as_ref().is_none_or(|wanted| self.cmdline().is_some_and(|has| has.contains(wanted)))
    }

    fn users(&self, users: &BTreeMap<u32, Vec<String>>) -> Vec<String> {
        self.uid().and_then(|uid| users.get(&uid).cloned()).unwrap_or_default()
    }

    fn fact(
        &self,
        id: ProcessId,
        parent: u32,
        users: &BTreeMap<u32, Vec<String>>,
        hierarchies: &[Hierarchy],
    ) -> ProcessFact {
        let cgroups = self.file("cgroup").unwrap_or_default();
        // See `places`.
        let exits = self.stat().is_none_or(|now| now.exempt);
        let places = if exits { BTreeMap::new() } else { places_of(self.host, &cgroups, hierarchies) };
        ProcessFact {
            id,
            parent,
            exe: self.exe().map(str::to_owned),
            uid: self.uid.get().copied().flatten(),
            users: if self.uid.get().is_some() { self.users(users) } else { Vec::new() },
            cmdline: self.cmdline.get().cloned().flatten(),
            places,
            unnamed: member::unnamed(&cgroups, hierarchies),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_host::fake::{FakeHost, FakeLooks};

    fn by(exe: &str, user: &str, cmdline: &str) -> Match {
        let part = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Match::Process { exe: part(exe), user: part(user), cmdline: part(cmdline) }
    }

    fn pids(scanner: &mut Scanner, host: &FakeHost, one: &Match) -> Vec<u32> {
        let nothing = BTreeSet::new();
        let wanted = Wanted { matches: &[one], moved: &nothing, hierarchies: &[] };
        scanner.scan(host, &wanted).iter().map(|process| process.id.pid).collect()
    }

    fn looks(exe: &str, cmdline: &str, uid: u32, parent: u32) -> FakeLooks {
        FakeLooks { exe: exe.to_owned(), cmdline: cmdline.to_owned(), uid, parent, ..FakeLooks::default() }
    }

    #[test]
    fn programs_users_arguments_and_children() {
        let fake = FakeHost::v1(2, 1 << 30);
        fake.set_file("/etc/passwd", "root:x:0:0::/root:/bin/sh\nmedia:x:1000:1000::/:/bin/sh\n");
        let [make, cc, other, kernel, deleted] = [0; 5].map(|_| fake.add_process(&[]));
        fake.set_looks(make, looks("/usr/bin/make", "make -j2 all", 1000, 1));
        fake.set_looks(cc, looks("/usr/bin/cc", "cc x.c", 1000, make));
        fake.set_looks(other, looks("/usr/bin/vi", "vi make", 0, 1));
        fake.set_looks(kernel, looks("", "", 0, 2));
        fake.set_looks(deleted, looks("/usr/bin/tool (deleted)", "tool", 7, 1));
        let found = |one: &Match| pids(&mut Scanner::default(), &fake, one);
        assert_eq!(found(&by("make", "", "")), [make, cc]);
        assert_eq!(found(&by("/usr/bin/cc", "", "")), [cc]);
        assert_eq!(found(&by("", "media", "")), [make, cc]);
        assert_eq!(found(&by("", "", "-j2 all")), [make, cc]);
        assert_eq!(found(&by("vi", "media", "")), [0; 0]);
        assert_eq!(found(&by("/usr/bin/tool", "7", "")), [deleted]);
        // If one match does not need a fact but another one does, the fact is read.
        let (first, second) = (by("make", "", ""), by("", "media", ""));
        let nothing = BTreeSet::new();
        let wanted = Wanted { matches: &[&first, &second], moved: &nothing, hierarchies: &[] };
        let facts = Scanner::default().scan(&fake, &wanted);
        assert!(facts.iter().filter(|fact| fact.id.pid == make).all(|fact| second.takes_process(fact)));
        // All of root's processes, except kernel threads and this program.
        assert_eq!(found(&by("", "root", "")), [other]);
    }

    /// A process that executes another program later is found after at most [`ROUND`] scans, a new process in the next
    /// scan.
    #[test]
    fn a_kept_scanner_finds_what_changes() {
        let fake = FakeHost::v1(2, 1 << 30);
        let old = fake.add_process(&[]);
        fake.set_looks(old, looks("/bin/sh", "sh", 0, 1));
        let mut scanner = Scanner::default();
        let ffmpeg = by("ffmpeg", "", "");
        for _ in 0..5 {
            assert_eq!(pids(&mut scanner, &fake, &ffmpeg), [0; 0]);
        }
        let new = fake.add_process(&[]);
        fake.set_looks(new, looks("/bin/ffmpeg", "ffmpeg", 0, 1));
        assert_eq!(pids(&mut scanner, &fake, &ffmpeg), [new]);
        fake.set_looks(old, looks("/bin/ffmpeg", "ffmpeg", 0, 1));
        let later: Vec<Vec<u32>> = (0..ROUND).map(|_| pids(&mut scanner, &fake, &ffmpeg)).collect();
        assert_eq!(later.last().unwrap().len(), 2, "{later:?}");
        // The PID of a selected process was reused.
        fake.reuse_pid(new, &[]);
        fake.set_looks(new, looks("/bin/vi", "vi", 0, 1));
        assert_eq!(pids(&mut scanner, &fake, &ffmpeg), [old]);
    }

    #[test]
    fn threads_in_several_cgroups() {
        let mut fake = FakeHost::v1_comounted(2, 1 << 30);
        let hierarchies = crate::mounts::hierarchies(&mut fake).unwrap();
        for mount in ["cpu,cpuacct", "cpuset"] {
            let root = fake.open(&Path::new("/sys/fs/cgroup").join(mount)).unwrap();
            fake.mkdir(root, "vcpu0").unwrap();
        }
        let pid = fake.add_process(&[]);
        assert_eq!(threads(&fake, pid, &hierarchies), BTreeMap::new());
        let tid = fake.add_thread(pid);
        assert_eq!(threads(&fake, pid, &hierarchies).into_keys().collect::<Vec<_>>(), [pid, tid]);
        assert_eq!(apart(&fake, pid, &hierarchies), Apart::new());
        for mount in ["cpu,cpuacct", "cpuset"] {
            fake.move_thread(tid, format!("/sys/fs/cgroup/{mount}/vcpu0"));
        }
        let found = apart(&fake, pid, &hierarchies);
        let both = BTreeSet::from(["/", "/vcpu0"].map(CgroupPath::new));
        assert_eq!(found.values().collect::<Vec<_>>(), [&both, &both], "{found:?}");
        fake.end(pid, commensal_host::Exit::Code(0));
        assert_eq!(apart(&fake, pid, &hierarchies), Apart::new());
    }
}
