//! Processes on the running kernel: found by program, user and arguments, moved while they fork, and put back. Everything that
//! is moved was started here, in cgroups that were made here.

use crate::support::{Program, can_write_cgroups, cgroups_named};
use commensal_host::{Child, Dir, Host, LinuxHost, SpawnSpec, Stdout};
use commensal_sensors::mounts;
use commensal_testkit::{Signal, cgroups_of, members, removed_within, signal_group, until, until_some};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A cgroup of this test's in every hierarchy that can have one, and the processes that it started there.
struct Home {
    host: LinuxHost,
    name: String,
    groups: Vec<(PathBuf, Dir)>,
    children: Vec<Child>,
}

impl Home {
    fn new(program: &Program) -> Home {
        let mut host = LinuxHost::new();
        let name = format!("{}-home", program.prefix);
        let mut groups = Vec::new();
        for hierarchy in mounts::hierarchies(&mut host).unwrap() {
            // An empty cpuset of cgroup v1 takes no process.
            if hierarchy.controllers.iter().any(|one| one.v1_name() == "cpuset") {
                continue;
            }
            let root = host.open(Path::new(&hierarchy.mount)).unwrap();
            let dir = host.mkdir(root, &name).unwrap();
            groups.push((Path::new(&hierarchy.mount).join(&name), dir));
            host.close(root);
        }
        Home { host, name, groups, children: Vec::new() }
    }

    fn start(&mut self, program: &Path, args: &[&str]) -> u32 {
        let mut spec = SpawnSpec::new(program);
        spec.args = args.iter().map(Into::into).collect();
        spec.groups = self.groups.iter().map(|(_, dir)| *dir).collect();
        spec.own_process_group = true;
        spec.stdout = Stdout::Null;
        // A test beside this one may just have forked while the copy of the program was written.
        let busy = commensal_core::errno::Errno(26);
        let child = until_some("nobody writes the program", || match self.host.spawn(&spec) {
            Err(error) if error.errno == busy => None,
            child => Some(child.unwrap()),
        });
        let pid = child.process.pid;
        self.children.push(child);
        pid
    }

    /// Processes that are at home in some hierarchy.
    fn inside(&self) -> BTreeSet<u32> {
        self.groups.iter().flat_map(|(path, _)| members(path)).collect()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        for child in &mut self.children {
            // The whole process group, which is the child's own.
            signal_group(child.process.pid, Signal::KILL);
            let _ = child.wait();
        }
        let end = Instant::now() + Duration::from_secs(5);
        for (path, _) in &self.groups {
            removed_within(end.saturating_duration_since(Instant::now()), path);
        }
    }
}

/// A program of a name that nothing else on the machine has.
fn copy(program: &Program, of: &str, name: &str) -> PathBuf {
    let path = program.path(&format!("{}-{name}", program.prefix));
    std::fs::copy(of, &path).unwrap();
    path
}

fn places(pid: u32) -> BTreeSet<String> {
    cgroups_of(pid).iter().filter_map(|line| line.rsplit(':').next()).map(str::to_owned).collect()
}

#[test]
fn by_program_user_and_arguments() {
    let test = "by_program_user_and_arguments";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("proc");
    let mut home = Home::new(&program);
    let victim = copy(&program, "/bin/sleep", "victim");
    let other = copy(&program, "/bin/sleep", "other");
    let mark = format!("31{}", std::process::id());
    let by_exe = home.start(&victim, &["300"]);
    let by_args = home.start(&other, &[&mark]);
    let neither = home.start(&other, &["302"]);
    // A program that anybody may run, by another user.
    let by_user = match Path::new("/usr/bin/setpriv").exists() {
        true => Some(home.start(
            Path::new("/usr/bin/setpriv"),
            &["--reuid=65534", "--clear-groups", "/bin/sleep", &format!("{mark}.5")],
        )),
        false => {
            println!("skipped: {test}: by user: no setpriv");
            None
        }
    };
    let file = program.groups(&format!(
        "[group.a]\nclass = \"offline\"\nmatch = [{{ process = {{ exe = \"{}\" }} }}]\n\
         [group.b]\nclass = \"offline\"\nmatch = [{{ process = {{ cmdline = \"-other {mark}\" }} }}]\n\
         [group.c]\nclass = \"offline\"\nmatch = [{{ process = {{ user = \"65534\", cmdline = \"sleep {mark}.5\" }} }}]\n",
        victim.display()
    ));
    let config = file.to_str().unwrap();
    if let Some(pid) = by_user {
        until("setpriv has become the program", || runs(pid, Path::new("/bin/sleep")));
    }
    let (out, _) = program.expect(i32::from(by_user.is_none()), &["apply", "-c", config]);
    let wanted = [("a", Some(by_exe)), ("b", Some(by_args)), ("c", by_user)];
    for (group, pid) in wanted {
        let Some(pid) = pid else { continue };
        let place = format!("/{}-offline/{group}", program.prefix);
        let mut left = places(pid);
        assert!(left.remove(&place), "{pid} is in {left:?}\n{out}");
        // Where no group of ours is made (cpuset, the unified one beside v1), it stays.
        let home = format!("/{}", home.name);
        assert!(left.iter().all(|path| *path == home || path == "/"), "{pid} is in {left:?} as well");
    }
    assert!(places(neither).contains(&format!("/{}", home.name)), "{out}");
    let (out, _) = program.expect(i32::from(by_user.is_none()), &["apply", "-c", config]);
    assert!(out.starts_with("nothing to do"), "{out}");
    let (out, _) = program.expect(0, &["restore"]);
    for pid in [Some(by_exe), Some(by_args), by_user].into_iter().flatten() {
        assert!(home.inside().contains(&pid), "{pid} is in {:?}\n{out}", places(pid));
        assert!(!places(pid).iter().any(|path| path.contains("offline")), "{:?}", places(pid));
    }
    assert!(cgroups_named(&format!("{}-offline", program.prefix)).is_empty(), "{out}");
}

/// A process that forks all the time, whose children outlive it or not: in the end nobody is left behind, and all come home.
#[test]
fn a_process_that_forks_all_the_time() {
    let test = "a_process_that_forks_all_the_time";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("fork");
    let mut home = Home::new(&program);
    let shell = copy(&program, "/bin/sh", "sh");
    let script = "while :; do (sleep 0.3 & sleep 0.05 &) ; sleep 0.02 & wait $!; done";
    let first = home.start(&shell, &["-c", script]);
    home.start(&shell, &["-c", script]);
    until("both have forked", || home.inside().len() >= 4);
    let file = program.groups(&format!(
        "[group.busy]\nclass = \"offline\"\npids.max = 500\nmatch = [{{ process = {{ exe = \"{}\" }} }}]\n",
        shell.display()
    ));
    let config = file.to_str().unwrap();
    let (out, err) = program.expect(0, &["apply", "-c", config]);
    let own = format!("/{}-offline/busy", program.prefix);
    assert!(places(first).contains(&own), "{out}{err}");
    println!("{test}: {} processes moved in {} steps", out.matches("move     ").count(), out.lines().count());
    // What was born meanwhile and has lost its parent ends by itself; what is born now is inside. The group is not made where
    // it neither limits nor accounts.
    let made = |path: &Path| path.parent().unwrap().join(own.trim_start_matches('/')).exists();
    let left = || home.groups.iter().filter(|(path, _)| made(path) && !members(path).is_empty()).count();
    until("nobody is left behind", || left() == 0);
    let accounted: BTreeSet<u32> = cgroups_named("busy")
        .iter()
        .filter(|path| path.to_string_lossy().contains(&program.prefix))
        .flat_map(|path| members(path))
        .collect();
    assert!(accounted.len() >= 2, "{accounted:?}");
    let (out, _) = program.expect(0, &["restore"]);
    assert!(cgroups_named(&format!("{}-offline", program.prefix)).is_empty(), "{out}");
    assert!(home.inside().contains(&first), "{out}");
}

/// Whether the process runs this program, and is no longer a copy of its parent.
fn runs(pid: u32, program: &Path) -> bool {
    let program = std::fs::canonicalize(program).unwrap();
    std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program)
}

/// What a look costs with a thousand processes more; printed, not judged.
#[test]
fn a_look_at_many_processes() {
    let program = Program::new("many");
    if !can_write_cgroups("a_look_at_many_processes") {
        return;
    }
    let mut home = Home::new(&program);
    let victim = copy(&program, "/bin/sleep", "victim");
    let started: BTreeSet<u32> = (0..1_000).map(|_| home.start(&victim, &["300"])).collect();
    let others = std::fs::read_dir("/proc").unwrap().flatten().count();
    let specs = commensal_core::config::parse(
        "g",
        "[group.a]\nclass = \"offline\"\nmatch = [{ process = { exe = \"/no/such/program\", user = \"nobody\" } }]\n",
    )
    .unwrap();
    let matches: Vec<&commensal_core::group::Match> = specs[0].matches.iter().collect();
    let nothing = BTreeSet::new();
    let host = LinuxHost::new();
    let mut scanner = commensal_sensors::processes::Scanner::default();
    let wanted =
        commensal_sensors::processes::Wanted { matches: &matches, moved: &nothing, hierarchies: &[] };
    let mut took: Vec<f64> = Vec::new();
    for _ in 0..13 {
        let begin = Instant::now();
        assert!(scanner.scan(&host, &wanted).is_empty());
        took.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    took[3..].sort_by(f64::total_cmp);
    println!(
        "a_look_at_many_processes: {others} entries of /proc: first look {:.1} ms, later ones {:.1} ms (median of 10)",
        took[0], took[8]
    );
    // A kept scanner does not look at everybody every time.
    assert!(took[8] < took[0], "{took:?}");
    let all = "[group.a]\nclass = \"offline\"\nmatch = [{ process = { exe = \"";
    let file = program.groups(&format!("{all}{}\" }} }}]\n", victim.display()));
    let begin = Instant::now();
    program.expect(0, &["apply", "-c", file.to_str().unwrap()]);
    println!(
        "a_look_at_many_processes: {} processes moved in {:.0} ms",
        started.len(),
        begin.elapsed().as_secs_f64() * 1e3
    );
    let begin = Instant::now();
    program.expect(0, &["restore"]);
    println!("a_look_at_many_processes: and back in {:.0} ms", begin.elapsed().as_secs_f64() * 1e3);
    assert!(home.inside().is_superset(&started));
}
