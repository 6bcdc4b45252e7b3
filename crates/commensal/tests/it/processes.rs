//! Processes on the running kernel: found by program, user and arguments, moved while they fork, and put back. Everything that
//! is moved was started here, in cgroups that were made here.

use crate::support::{Program, can_write_cgroups, cgroups_named, text};
use commensal_core::plan::{Action, Step};
use commensal_host::{Child, Dir, Host, LinuxHost, Signal, SpawnSpec, Stdout};
use commensal_reconcile::{Instance, PlanRequest, apply};
use commensal_sensors::mounts;
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
        let mut child = self.host.spawn(&spec);
        while child.as_ref().is_err_and(|error| error.errno == busy) {
            std::thread::sleep(Duration::from_millis(5));
            child = self.host.spawn(&spec);
        }
        let child = child.unwrap();
        let pid = child.process.pid;
        self.children.push(child);
        pid
    }

    /// Processes that are at home in some hierarchy.
    fn inside(&self) -> BTreeSet<u32> {
        self.groups.iter().flat_map(|(path, _)| pids(path)).collect()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        for child in &mut self.children {
            // The whole process group, which is the child's own.
            let _ = std::process::Command::new("kill")
                .args(["-KILL", "--", &format!("-{}", child.process.pid)])
                .output();
            let _ = self.host.signal(&child.process, Signal::KILL);
            let _ = child.wait();
        }
        let end = Instant::now() + Duration::from_secs(5);
        for (path, _) in &self.groups {
            while std::fs::remove_dir(path).is_err() && path.exists() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

fn pids(group: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// A program of a name that nothing else on the machine has.
fn copy(program: &Program, of: &str, name: &str) -> PathBuf {
    let path = program.path(&format!("{}-{name}", program.prefix));
    std::fs::copy(of, &path).unwrap();
    path
}

fn places(pid: u32) -> BTreeSet<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    text.lines().filter_map(|line| line.rsplit(':').next()).map(str::to_owned).collect()
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
    std::thread::sleep(Duration::from_millis(200));
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
    std::thread::sleep(Duration::from_millis(400));
    let file = program.groups(&format!(
        "[group.busy]\nclass = \"offline\"\npids.max = 500\nmatch = [{{ process = {{ exe = \"{}\" }} }}]\n",
        shell.display()
    ));
    let config = file.to_str().unwrap();
    let (out, err) = program.expect(0, &["apply", "-c", config]);
    let own = format!("/{}-offline/busy", program.prefix);
    assert!(places(first).contains(&own), "{out}{err}");
    println!("{test}: {} processes moved in {} steps", out.matches("move     ").count(), out.lines().count());
    // What was born meanwhile and has lost its parent ends by itself; what is born now is inside.
    std::thread::sleep(Duration::from_millis(600));
    let accounted: BTreeSet<u32> = cgroups_named("busy")
        .iter()
        .filter(|path| path.to_string_lossy().contains(&program.prefix))
        .flat_map(|path| pids(path))
        .collect();
    assert!(accounted.len() >= 2, "{accounted:?}");
    for (path, _) in &home.groups {
        let label = path.display();
        let left = pids(path);
        // The group is not made where it neither limits nor accounts.
        let mount = path.parent().unwrap();
        let made = mount.join(own.trim_start_matches('/')).exists();
        assert!(!made || left.is_empty(), "{label}: {left:?}");
    }
    let (out, _) = program.expect(0, &["restore"]);
    assert!(cgroups_named(&format!("{}-offline", program.prefix)).is_empty(), "{out}");
    assert!(home.inside().contains(&first), "{out}");
}

/// The number of a process that was planned for belongs to another one when the plan is carried out.
// promise 15
#[test]
fn a_number_that_is_reused_moves_nobody() {
    let test = "a_number_that_is_reused_moves_nobody";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("reuse");
    let mut home = Home::new(&program);
    let victim = copy(&program, "/bin/sleep", "victim");
    let pid = home.start(&victim, &["300"]);
    let groups = format!(
        "[group.a]\nclass = \"offline\"\nmatch = [{{ process = {{ exe = \"{}\" }} }}]\n",
        victim.display()
    );
    let specs = commensal_core::config::parse("g", &groups).unwrap();
    let mut host = LinuxHost::new();
    let instance = Instance::of_machine(&program.state(), &program.prefix);
    let survey = instance.survey(&mut host).unwrap();
    // Until it is the program that was started, and not yet the shell's copy of this one.
    std::thread::sleep(Duration::from_millis(200));
    let planned = instance.plan(&mut host, &survey, &PlanRequest::all(&specs)).unwrap();
    let moves = |step: &Step| matches!(&step.action, Action::Move(one) if one.process.pid == pid);
    assert!(planned.plan.steps.iter().any(moves));
    // It ends, and its number is forced upon the next one.
    let mut gone = home.children.pop().unwrap();
    host.signal(&gone.process, Signal::KILL).unwrap();
    gone.wait().unwrap();
    let other = copy(&program, "/bin/sleep", "other");
    let mut reused = None;
    for _ in 0..200 {
        if std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).is_err() {
            break;
        }
        let now = home.start(&other, &["300"]);
        if now == pid {
            reused = Some(now);
            break;
        }
        let mut wrong = home.children.pop().unwrap();
        host.signal(&wrong.process, Signal::KILL).unwrap();
        wrong.wait().unwrap();
    }
    if reused.is_none() {
        println!("skipped: {test}: the number {pid} could not be had again");
        return;
    }
    let mut journal = instance.open_journal(&mut host).unwrap();
    let outcome = apply(&mut host, &planned.plan.steps, &planned.actual, &mut journal);
    assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
    assert!(places(pid).contains(&format!("/{}", home.name)), "{:?}", places(pid));
    assert!(!places(pid).iter().any(|path| path.contains("offline")), "{:?}", places(pid));
    let said = program.run(&["restore"]);
    assert_eq!(said.status.code(), Some(0), "{}", text(&said.stderr));
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
