//! Processes on the running kernel: found by program, user and arguments, moved, and put back. Everything that is moved was started
//! here, in cgroups that were made here.

use crate::support::{Program, can_write_cgroups, cgroups_named};
use commensal_host::{Child, Dir, Host, LinuxHost, SpawnSpec, Stdout};
use commensal_sensors::mounts;
use commensal_testkit::{Signal, cgroups_of, members, removed_within, signal_group, until, until_some};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A cgroup of this test's in every hierarchy that can have one, and the processes that it started there.
pub(crate) struct Home {
    host: LinuxHost,
    name: String,
    pub(crate) groups: Vec<(PathBuf, Dir)>,
    children: Vec<Child>,
}

impl Home {
    pub(crate) fn new(program: &Program) -> Home {
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

    pub(crate) fn start(&mut self, program: &Path, args: &[&str]) -> u32 {
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
    pub(crate) fn inside(&self) -> BTreeSet<u32> {
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
        for (path, _) in &self.groups {
            removed_within(Duration::from_secs(5), path);
        }
    }
}

/// A program of a name that nothing else on the machine has.
pub(crate) fn copy(program: &Program, of: &str, name: &str) -> PathBuf {
    let path = program.path(&format!("{}-{name}", program.prefix));
    std::fs::copy(of, &path).unwrap();
    path
}

pub(crate) fn places(pid: u32) -> BTreeSet<String> {
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

/// Whether the process runs this program, and is no longer a copy of its parent.
fn runs(pid: u32, program: &Path) -> bool {
    let program = std::fs::canonicalize(program).unwrap();
    std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program)
}
