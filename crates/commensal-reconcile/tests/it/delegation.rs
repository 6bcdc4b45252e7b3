//! Groups below a delegated cgroup: it is found, used without touching anything outside, and left as it was.

use crate::support::{STATE, journal, planned, restored, specs};
use commensal_core::actual::{CgroupPath, Manager};
use commensal_host::Host;
use commensal_host::fake::FakeHost;
use commensal_reconcile::{DelegationError, Instance, PlanRequest, Reconciler, Round, apply, step_aside};
use commensal_sensors::survey;
use std::path::Path;

const ETL: &str = "[group.etl]\nclass = \"offline\"\ncpu.max = \"50 %\"\npids.max = 100\n";
const BASE: &str = "/sys/fs/cgroup/users/u1000";

/// A machine without a manager of the unified hierarchy, where `/users/u1000` was delegated to user 1000 and contains
/// this process.
fn given() -> FakeHost {
    let fake = FakeHost::v2(4, 8 << 30);
    let mut host = fake.another();
    let root = host.open(Path::new("/sys/fs/cgroup")).unwrap();
    host.write(root, "cgroup.subtree_control", "+cpu +memory +pids").unwrap();
    let users = host.mkdir(root, "users").unwrap();
    host.write(users, "cgroup.subtree_control", "+cpu +memory +pids").unwrap();
    host.mkdir(users, "u1000").unwrap();
    fake.give_to_user(BASE);
    fake.move_process(std::process::id(), BASE);
    fake.unprivileged(true);
    fake
}

fn applied_aside(fake: &FakeHost, text: &str) -> String {
    let mut host = fake.another();
    let (found, plan) = planned(&mut host, text).unwrap();
    let mut journal = journal(&mut host).unwrap();
    step_aside(&mut host, &plan.steps, &found, "commensal-self", &mut journal).unwrap();
    let outcome = apply(&mut host, &plan.steps, &found, &mut journal);
    let words = plan.describe(&found);
    assert!(
        outcome.failure.is_none(),
        "{words}{:?}",
        outcome.failure.map(|failure| failure.refusal.to_string())
    );
    words
}

fn groups_of_this_process(fake: &FakeHost) -> Vec<String> {
    let own = fake.processes().into_iter().find(|process| process.pid == std::process::id()).unwrap();
    own.groups.iter().map(|group| group.display().to_string()).collect()
}

// promise 15
#[test]
fn a_user_works_below_what_was_given() {
    let fake = given();
    let before = fake.snapshot();
    let words = applied_aside(&fake, ETL);
    assert!(words.contains("create   v2:/users/u1000/commensal-offline/etl"), "{words}");
    // Compared with the rest of the machine, the delegated group counts as a whole.
    assert!(
        words.contains(
            "the kernel compares /users with everything outside, and /users does not belong to commensal"
        ),
        "{words}"
    );
    assert_eq!(groups_of_this_process(&fake), [format!("{BASE}/commensal-self")]);
    let (found, again) = planned(&mut fake.another(), ETL).unwrap();
    assert!(again.is_empty(), "{}", again.describe(&found));
    let back = restored(&mut fake.another());
    assert!(back.failed.is_empty() && back.left.is_empty(), "{back:?}");
    assert_eq!(fake.snapshot(), before);
    assert_eq!(groups_of_this_process(&fake), [BASE]);
}

/// Nothing is written outside the delegated group; requests for groups outside are reported as unmet.
#[test]
fn nothing_outside_is_planned() {
    let fake = given();
    let text = format!("{ETL}[group.other]\nclass = \"offline\"\nmatch = [{{ cgroup = \"/users\" }}]\n");
    let (_, plan) = planned(&mut fake.another(), &text).unwrap();
    let base = CgroupPath::new("/users/u1000");
    let outside = |step: &&commensal_core::plan::Step| !base.contains(&step.place.path);
    let writes: Vec<_> = plan.steps.iter().filter(outside).collect();
    assert!(writes.is_empty(), "{writes:?}");
    let told = plan.unmet.iter().find(|unmet| unmet.group.as_str() == "other").unwrap();
    assert!(told.because.contains("this user can write only below /users/u1000"), "{told:?}");
}

// promise 15
#[test]
fn somebody_else_in_the_given_group_is_in_the_way() {
    let fake = given();
    let pid = fake.add_process(&[BASE]);
    let before = fake.snapshot();
    let mut host = fake.another();
    let (found, plan) = planned(&mut host, ETL).unwrap();
    let mut journal = journal(&mut host).unwrap();
    let refused = step_aside(&mut host, &plan.steps, &found, "commensal-self", &mut journal);
    let Err(DelegationError::Others { group, pids }) = refused else { panic!("{refused:?}") };
    assert_eq!((group.as_str(), pids), ("/users/u1000", pid.to_string()));
    assert_eq!(fake.snapshot(), before);
}

#[test]
fn a_user_without_anything_given_is_told_so() {
    let fake = FakeHost::v2(2, 8 << 30);
    fake.unprivileged(true);
    let look = survey(&mut fake.another(), "commensal-probe-test", None).unwrap();
    assert!(look.caps.cgroup_obstacle.unwrap().contains("user 1000 may not create cgroups here"));
}

fn ubuntu() -> FakeHost {
    let tree = "../../fixtures/ubuntu-24.04-systemd.tree";
    FakeHost::from_fixture(&std::fs::read_to_string(tree).unwrap()).unwrap()
}

/// Creates a scope below system.slice, as `systemd-run --scope` does, with this process in it.
fn scope(fake: &FakeHost, delegated: bool) {
    let mut host = fake.another();
    let slice = host.open(Path::new("/sys/fs/cgroup/system.slice")).unwrap();
    host.mkdir(slice, "run-r1.scope").unwrap();
    let path = "/sys/fs/cgroup/system.slice/run-r1.scope";
    if delegated {
        fake.give_attribute(path, "trusted.delegate", "1");
    }
    fake.set_file("/proc/self/cgroup", "0::/system.slice/run-r1.scope\n");
    fake.move_process(std::process::id(), path);
}

#[test]
fn a_scope_that_systemd_hands_over() {
    let fake = ubuntu();
    scope(&fake, true);
    let before = fake.snapshot();
    let look = survey(&mut fake.another(), "commensal-probe-test", None).unwrap();
    assert_eq!(look.tenancy.base.as_str(), "/system.slice/run-r1.scope");
    assert_eq!((look.tenancy.manager, look.tenancy.obstacle), (Manager::Systemd, None));
    let words = applied_aside(&fake, ETL);
    assert!(words.contains("create   v2:/system.slice/run-r1.scope/commensal-offline/etl"), "{words}");
    // The advice must not make every service of the machine idle.
    assert!(words.contains("systemd-run --scope --slice=batch.slice -p Delegate=yes"), "{words}");
    assert!(!words.contains("system.slice CPUWeight"), "{words}");
    let back = restored(&mut fake.another());
    assert!(back.failed.is_empty() && back.left.is_empty(), "{back:?}");
    assert_eq!(fake.snapshot(), before);
}

// promise 8
#[test]
fn a_scope_that_it_keeps() {
    let fake = ubuntu();
    scope(&fake, false);
    let before = fake.mutations().len();
    let look = survey(&mut fake.another(), "commensal-probe-test", None).unwrap();
    assert!(look.tenancy.obstacle.unwrap().contains("nothing shows that it has delegated any of it"));
    let (found, plan) = planned(&mut fake.another(), ETL).unwrap();
    assert!(plan.is_empty(), "{}", plan.describe(&found));
    assert_eq!(fake.mutations().len(), before, "not even a scratch group was made");
    assert!(plan.task_policies.values().all(|policy| policy.idle), "{:?}", plan.task_policies);
}

#[test]
fn insisting_on_the_root() {
    let fake = ubuntu();
    scope(&fake, false);
    let root = CgroupPath::root();
    let look = survey(&mut fake.another(), "commensal-probe-test", Some(&root)).unwrap();
    assert_eq!((look.tenancy.manager, look.tenancy.obstacle), (Manager::Nobody, None));
    let missing = CgroupPath::new("/no/such");
    let look = survey(&mut fake.another(), "commensal-probe-test", Some(&missing)).unwrap();
    assert!(look.tenancy.obstacle.unwrap().contains("there is no cgroup /no/such"));
}

/// A user chooses a group that belongs to them, but that this process may not move to.
#[test]
fn a_chosen_group_out_of_reach() {
    let fake = given();
    let mut host = fake.another();
    fake.unprivileged(false);
    let root = host.open(Path::new("/sys/fs/cgroup")).unwrap();
    host.mkdir(root, "elsewhere").unwrap();
    fake.give_to_user("/sys/fs/cgroup/elsewhere");
    fake.unprivileged(true);
    let chosen = CgroupPath::new("/elsewhere");
    let look = survey(&mut fake.another(), "commensal-probe-test", Some(&chosen)).unwrap();
    let obstacle = look.tenancy.obstacle.unwrap();
    assert!(
        obstacle.contains("may not move to /elsewhere: / above both belongs to another user"),
        "{obstacle}"
    );
}

/// A pod that sees the host's tree has no `/run/systemd`, but systemd manages the tree nevertheless.
#[test]
fn a_container_that_shares_the_hosts_tree() {
    let fake = ubuntu();
    let listed = fake.another().list(Path::new("/run/systemd/system")).unwrap();
    for file in listed {
        fake.remove_file(Path::new("/run/systemd/system").join(file));
    }
    let look = survey(&mut fake.another(), "commensal-probe-test", None).unwrap();
    assert_eq!(look.tenancy.manager, Manager::Systemd);
}

/// One group with a limit of each controller.
const ALL: &str = "[group.etl]\nclass = \"offline\"\ncpu.max = \"50 %\"\nmemory.max = \"1 GiB\"\npids.max = 100\n\
    cpu.set = \"0\"\nfrozen = true\nio.read = \"1 MiB/s\"\n";

fn machines() -> Vec<(&'static str, FakeHost, Vec<String>)> {
    let v1 = ["cpu", "cpuacct", "cpuset", "memory", "blkio", "pids", "freezer"];
    let mounts = |names: &[&str]| names.iter().map(|name| format!("/sys/fs/cgroup/{name}")).collect();
    let mut comounted = v1[2..].to_vec();
    comounted.insert(0, "cpu,cpuacct");
    vec![
        ("v1", FakeHost::v1(2, 8 << 30), mounts(&v1)),
        ("v1, co-mounted", FakeHost::v1_comounted(2, 8 << 30), mounts(&comounted)),
        ("hybrid", FakeHost::hybrid(2, 8 << 30), mounts(&v1)),
        ("v2", FakeHost::v2(2, 8 << 30), vec!["/sys/fs/cgroup".to_owned()]),
    ]
}

/// Creates the cgroups of the path in the hierarchy, usable for processes.
fn make(fake: &FakeHost, mount: &str, path: &str) {
    let mut host = fake.another();
    let mut dir = host.open(Path::new(mount)).unwrap();
    let enable = |host: &mut FakeHost, dir| {
        let _ = host.write(dir, "cgroup.subtree_control", "+cpu +cpuset +memory +io +pids");
    };
    enable(&mut host, dir);
    for name in path.split('/').filter(|name| !name.is_empty()) {
        dir = host.mkdir(dir, name).unwrap();
        enable(&mut host, dir);
        if mount.ends_with("cpuset") {
            host.write(dir, "cpuset.cpus", "0-1").unwrap();
            host.write(dir, "cpuset.mems", "0").unwrap();
        }
    }
}

fn below(root: &str) -> Instance {
    Instance { cgroup_root: Some(CgroupPath::new(root)), ..Instance::new(Path::new(STATE)) }
}

/// Why limits are unmet, without what is said of a class below a cgroup of somebody else: that the kernel compares that
/// cgroup with everything outside.
fn reasons(round: &Round) -> Vec<&str> {
    let all = round.planned.plan.unmet.iter().map(|one| one.because.as_str());
    all.filter(|because| !because.contains("with everything outside")).collect()
}

/// Where the chosen cgroup exists in at least one hierarchy, commensal's groups are below it in every hierarchy and nowhere
/// else. Where it exists in none, the plan refuses and names it. `restore` removes everything.
#[test]
fn the_chosen_cgroup_holds_in_every_hierarchy() {
    for root in ["/given", "/given/to/us"] {
        for (kind, fake, mounts) in machines() {
            for there in 0..=mounts.len() {
                let what = format!("{kind}, {root} in {there} of {} hierarchies", mounts.len());
                let fake = fake.copy();
                mounts.iter().take(there).for_each(|mount| make(&fake, mount, root));
                let (before, instance, mut host) = (fake.snapshot(), below(root), fake.another());
                let mut reconciler = Reconciler::new(instance, &mut host).unwrap();
                let specs = specs(ALL);
                let request = PlanRequest::all(&specs);
                let round = reconciler.round(&mut host, 0, &request).unwrap();
                let made: Vec<String> =
                    fake.snapshot().into_keys().filter(|path| !before.contains_key(path)).collect();
                let why = reasons(&round);
                if there == 0 {
                    assert_eq!(why, [format!("there is no cgroup {root} (--cgroup-root)")], "{what}");
                    assert_eq!((fake.snapshot(), round.problems), (before, vec![]), "{what}");
                    continue;
                }
                assert_eq!((why, &round.problems), (vec![], &vec![]), "{what}");
                for mount in &mounts {
                    let own = format!("{mount}{root}/commensal-offline/etl");
                    assert!(fake.another().open(Path::new(&own)).is_ok(), "{what}: there is no {own}");
                }
                let root_of =
                    |path: &str| mounts.iter().any(|mount| path.starts_with(&format!("{mount}{root}/")));
                let path_of = |path: &str| {
                    mounts.iter().skip(there).any(|mount| path.starts_with(&format!("{mount}/given")))
                };
                let astray: Vec<&String> =
                    made.iter().filter(|path| !root_of(path) && !path_of(path)).collect();
                assert!(astray.is_empty(), "{what}: {astray:?}");
                assert_eq!(reconciler.round(&mut host, 1_000, &request).unwrap().changes, [], "{what}");
                let back = below(root).restore(&mut host, &[]).unwrap();
                assert!(back.failed.is_empty() && back.left.is_empty(), "{what}: {back:?}");
                assert_eq!(fake.snapshot(), before, "{what}");
            }
        }
    }
}

/// In cgroup v1 a group has only CPUs of the chosen cgroup. Where that has too few, only this limit is unmet.
#[test]
fn a_v1_cpuset_stays_within_the_chosen_cgroup() {
    for (given, mems, unmet) in [
        ("0-1", "0", None),
        ("0", "0", None),
        ("1", "0", Some("above it has 1")),
        ("", "", Some("/given has no CPUs")),
        ("0", "", Some("/given has no CPUs")),
    ] {
        for (kind, fake, mounts) in machines().into_iter().filter(|(kind, ..)| *kind != "v2") {
            mounts.iter().for_each(|mount| make(&fake, mount, "/given"));
            fake.set_file("/sys/fs/cgroup/cpuset/given/cpuset.cpus", given);
            fake.set_file("/sys/fs/cgroup/cpuset/given/cpuset.mems", mems);
            let (before, mut host) = (fake.snapshot(), fake.another());
            let mut reconciler = Reconciler::new(below("/given"), &mut host).unwrap();
            let specs = specs(ALL);
            let round = reconciler.round(&mut host, 0, &PlanRequest::all(&specs)).unwrap();
            let what = format!("{kind}, /given has CPUs {given:?} and nodes {mems:?}");
            let why = reasons(&round);
            assert_eq!(round.problems, [""; 0], "{what}");
            assert_eq!(why.len(), usize::from(unmet.is_some()), "{what}: {why:?}");
            assert!(unmet.is_none_or(|words| why[0].contains(words)), "{what}: {why:?}");
            let quota = "/sys/fs/cgroup/memory/given/commensal-offline/etl/memory.limit_in_bytes";
            assert_eq!(fake.snapshot().get(quota).map(String::as_str), Some("1073741824"), "{what}");
            let back = below("/given").restore(&mut host, &[]).unwrap();
            assert!(back.failed.is_empty() && back.left.is_empty(), "{what}: {back:?}");
            assert_eq!(fake.snapshot(), before, "{what}");
        }
    }
}
