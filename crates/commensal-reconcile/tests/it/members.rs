//! Members that appear and disappear, on FakeHost: containers and pods by their cgroups, and processes that are moved
//! into commensal's groups and back, with crashes at every moment.

use crate::support::{STATE, applied, journal, planned, restored};
use commensal_core::errno::Errno;
use commensal_core::plan::{Action, Plan};
use commensal_host::fake::{FakeHost, FakeLooks};
use commensal_host::{Exit, Host};
use commensal_reconcile::apply;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const MEMORY: u64 = 16 << 30;
pub const ID: &str = "5e1c7a90b3d24f68e0a91c7d5b38f2640e9d1a7c6b3f825049e7d1c0a8b64f23";
const SOCKET: &str = "/run/docker.sock";

pub const MEDIA: &str =
    "[group.media]\nclass = \"offline\"\npids.max = 100\nmatch = [{ process = { exe = \"ffmpeg\" } }]\n";

/// Creates a group in every hierarchy of the machine.
pub fn make(fake: &FakeHost, path: &str) {
    let mut host = fake.another();
    for mount in mounts(fake) {
        let mut at = host.open(&mount).unwrap();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = match host.open_child(at, name) {
                Ok(child) => child,
                Err(_) => host.mkdir(at, name).unwrap(),
            };
        }
    }
}

pub fn mounts(fake: &FakeHost) -> Vec<PathBuf> {
    let text = fake.read_file(Path::new("/proc/mounts")).unwrap();
    let mounts = text.lines().filter(|line| line.contains(" cgroup"));
    mounts.filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from).collect()
}

/// Adds a process, in the group of this path in every hierarchy.
pub fn start(fake: &FakeHost, path: &str, exe: &str, parent: u32) -> u32 {
    let groups: Vec<String> =
        mounts(fake).iter().map(|mount| commensal_host::below(mount, path).display().to_string()).collect();
    let pid = fake.add_process(&groups.iter().map(String::as_str).collect::<Vec<_>>());
    fake.set_looks(pid, FakeLooks { exe: exe.to_owned(), parent, ..FakeLooks::default() });
    pid
}

/// Returns the paths of the process's groups below the mounts; one path if it is the same in all hierarchies.
fn whereabouts(fake: &FakeHost, pid: u32) -> BTreeSet<String> {
    let text = fake.read_file(Path::new(&format!("/proc/{pid}/cgroup"))).unwrap();
    text.lines().filter_map(|line| line.rsplit(':').next()).map(str::to_owned).collect()
}

fn all_places(fake: &FakeHost) -> BTreeMap<u32, Vec<PathBuf>> {
    let alive = fake.processes().into_iter().filter(|process| process.exit.is_none());
    alive.map(|process| (process.pid, process.groups)).collect()
}

fn machines() -> Vec<(&'static str, FakeHost)> {
    let all = vec![
        ("v1", FakeHost::v1(4, MEMORY)),
        ("co-mounted", FakeHost::v1_comounted(4, MEMORY)),
        ("v2", FakeHost::v2(4, MEMORY)),
        ("hybrid", FakeHost::hybrid(4, MEMORY)),
    ];
    for (_, fake) in &all {
        make(fake, "/work");
        make(fake, "/other");
    }
    all
}

fn moves(plan: &Plan) -> usize {
    plan.steps.iter().filter(|step| matches!(step.action, Action::Move(_))).count()
}

/// Applies as the program does: plans again as long as processes have to be moved.
pub fn settled(host: &mut dyn Host, text: &str) -> (Plan, Vec<String>) {
    let mut stayed = Vec::new();
    for _ in 0..10 {
        let (found, plan, outcome) = applied(host, text);
        let failure = outcome.failure.map(|failure| failure.refusal.to_string());
        assert_eq!(failure, None, "{}", plan.describe(&found));
        let moved = moves(&plan) > outcome.stayed.len();
        stayed.extend(outcome.stayed);
        if !moved {
            return (plan, stayed);
        }
    }
    panic!("it never settles");
}

pub fn engine(fake: &FakeHost, containers: &[(&str, &str, &str, u32)]) {
    let ok = |body: &str| format!("HTTP/1.0 200 OK\r\n\r\n{body}");
    let list: Vec<String> = containers
        .iter()
        .map(|(id, name, label, _)| format!(r#"{{"Id":"{id}","Names":["/{name}"],"Labels":{{{label}}}}}"#))
        .collect();
    fake.answer(SOCKET, "GET /containers/json ", &ok(&format!("[{}]", list.join(","))));
    for (id, name, label, pid) in containers {
        let one = format!(
            r#"{{"Id":"{id}","Name":"/{name}","State":{{"Running":true,"Pid":{pid}}},"Config":{{"Labels":{{{label}}}}}}}"#
        );
        fake.answer(SOCKET, &format!("GET /containers/{id}/json "), &ok(&one));
    }
}

// promise 26
#[test]
fn containers_by_label_and_name() {
    for fake in [FakeHost::v1(4, MEMORY), FakeHost::hybrid(4, MEMORY)] {
        make(&fake, &format!("/docker/{ID}/inner"));
        make(&fake, "/docker/somebody");
        let pid = start(&fake, &format!("/docker/{ID}/inner"), "/bin/etl", 1);
        let stray = start(&fake, "/docker/somebody", "/bin/x", 1);
        let other = ID.replace("5e", "6f");
        engine(
            &fake,
            &[(ID, "etl-1", r#""tier":"batch""#, pid), (&other, "lost", r#""tier":"batch""#, stray)],
        );
        let before = fake.snapshot();
        for wanted in [
            "{ docker-label = \"tier=batch\" }",
            "{ docker-label = \"tier\" }",
            "{ docker-name = \"etl-1\" }",
        ] {
            // An online sibling, so that the container's own cgroup is the one that the class needs.
            let text = format!(
                "[group.etl]\nclass = \"offline\"\nmemory.max = \"1 GiB\"\nmatch = [{wanted}]\n\
                 [group.web]\nclass = \"online\"\nmatch = [{{ cgroup = \"/docker/somebody\" }}]\n"
            );
            let mut host = fake.another();
            let (found, plan, outcome) = applied(&mut host, &text);
            let said = plan.describe(&found);
            assert!(outcome.failure.is_none(), "{said}");
            // The container's manager writes the weight, so the group is not made idle. The adopted group is the
            // container's, not the one inside it.
            let changed: BTreeMap<String, String> =
                fake.snapshot().into_iter().filter(|(file, text)| before.get(file) != Some(text)).collect();
            let cpu = format!("/sys/fs/cgroup/cpu/docker/{ID}/cpu.shares");
            let memory = format!("/sys/fs/cgroup/memory/docker/{ID}/memory.limit_in_bytes");
            assert_eq!(changed.keys().collect::<Vec<_>>(), [&cpu, &memory], "{said}");
            assert_eq!(changed.get(&cpu).map(String::as_str), Some("2"), "{said}");
            // The PID of the other container's process belongs to another process now, in another cgroup.
            assert_eq!(
                wanted.contains("label"),
                said.contains("container lost has no cgroup of its own"),
                "{said}"
            );
            assert!(planned(&mut host, &text).unwrap().1.is_empty());
            let back = restored(&mut host);
            assert!(back.failed.is_empty() && back.left.is_empty(), "{back:?}");
            assert_eq!(fake.snapshot(), before);
        }
    }
}

/// Two groups match one container, or an online container runs inside an offline group: the rest of the groups file is
/// put in force.
#[test]
fn a_container_that_two_groups_want() {
    let fake = FakeHost::v1(4, MEMORY);
    make(&fake, &format!("/batch/{ID}"));
    let pid = start(&fake, &format!("/batch/{ID}"), "/bin/etl", 1);
    engine(&fake, &[(ID, "etl", r#""a":"b""#, pid)]);
    let group = |name: &str, class: &str, wanted: &str| {
        format!("[group.{name}]\nclass = \"{class}\"\nmemory.max = \"1 GiB\"\nmatch = [{{ {wanted} }}]\n")
    };
    let text =
        group("a", "offline", "docker-name = \"etl\"") + &group("b", "offline", "docker-label = \"a\"");
    let (_, plan) = planned(&mut fake.another(), &text).unwrap();
    assert!(plan.steps.iter().any(|step| step.why.starts_with("a: ")), "{:?}", plan.steps);
    assert!(!plan.steps.iter().any(|step| step.why.starts_with("b: ")), "{:?}", plan.steps);
    assert!(plan.unmet.iter().any(|unmet| unmet.because.contains("group a has")), "{:?}", plan.unmet);
    let text = group("a", "online", "docker-name = \"etl\"") + &group("b", "offline", "cgroup = \"/batch\"");
    let (_, plan) = planned(&mut fake.another(), &text).unwrap();
    assert!(plan.unmet.iter().any(|unmet| unmet.because.contains("would yield with it")), "{:?}", plan.unmet);
    assert!(plan.steps.iter().any(|step| step.why.starts_with("b: ")), "{:?}", plan.steps);
}

/// A class is relative to siblings: next to a unit outside `/docker`, the plan names the parent to claim.
#[test]
fn a_container_beside_a_unit_is_told() {
    let fake = FakeHost::v1(4, MEMORY);
    make(&fake, &format!("/docker/{ID}"));
    make(&fake, "/system.slice/nginx.service");
    let pid = start(&fake, &format!("/docker/{ID}"), "/bin/etl", 1);
    engine(&fake, &[(ID, "etl", r#""a":"b""#, pid)]);
    let text = "[group.web]\nclass = \"online\"\nmatch = [{ systemd = \"nginx.service\" }]\n\
                [group.etl]\nclass = \"offline\"\nmatch = [{ docker-name = \"etl\" }]\n";
    let (_, plan) = planned(&mut fake.another(), text).unwrap();
    assert!(plan.unmet.iter().any(|unmet| unmet.try_this.contains("--cgroup-parent")), "{:?}", plan.unmet);
    assert!(plan.steps.is_empty(), "{:?}", plan.steps);
}

#[test]
fn without_an_engine_or_a_container_it_is_told() {
    let fake = FakeHost::v1(4, MEMORY);
    let text = "[group.etl]\nclass = \"offline\"\nmatch = [{ docker-name = \"etl\" }]\n";
    let (_, plan) = planned(&mut fake.another(), text).unwrap();
    assert!(
        plan.unmet[0].because.contains("no container engine answers")
            && plan.unmet[0].try_this.contains("DOCKER_HOST")
    );
    engine(&fake, &[]);
    let (_, plan) = planned(&mut fake.another(), text).unwrap();
    assert!(plan.unmet[0].because.contains("no such container"), "{:?}", plan.unmet);
}

/// kubelet's two layouts: the groups that are adopted for each class of pods.
// promise 26
#[test]
fn pods_of_both_layouts() {
    let cgroupfs = ["/kubepods/besteffort/podb1/c1", "/kubepods/burstable/podu1/c1", "/kubepods/podg1/c1"];
    let slices = [
        "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podb1.slice/cri-containerd-c1.scope",
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu1.slice/cri-containerd-c1.scope",
        "/kubepods.slice/kubepods-podg1.slice/cri-containerd-c1.scope",
    ];
    for (paths, adopted) in [
        (cgroupfs, ["/kubepods/besteffort", "/kubepods/burstable", "/kubepods/podg1"]),
        (
            slices,
            [
                "/kubepods.slice/kubepods-besteffort.slice",
                "/kubepods.slice/kubepods-burstable.slice",
                "/kubepods.slice/kubepods-podg1.slice",
            ],
        ),
    ] {
        let fake = FakeHost::v1(4, MEMORY);
        for path in paths {
            make(&fake, path);
        }
        // A node inside another program's container.
        make(&fake, &format!("/docker/{ID}/kubelet/kubepods/besteffort/podx/c"));
        for (qos, adopted) in ["besteffort", "burstable", "guaranteed"].into_iter().zip(adopted) {
            let text = format!(
                "[group.g]\nclass = \"offline\"\nmemory.max = \"1 GiB\"\nmatch = [{{ kubernetes = \"{qos}\" }}]\n"
            );
            let (found, plan) = planned(&mut fake.another(), &text).unwrap();
            let places: BTreeSet<&str> = plan.steps.iter().map(|step| step.place.path.as_str()).collect();
            let (class, limit) = (plan.describe(&found).contains("cpu.shares"), [adopted]);
            assert_eq!(places.into_iter().collect::<Vec<_>>(), limit, "{qos}: {}", plan.describe(&found));
            // Relative to everything outside, all pods of the machine would have to yield.
            let beside = plan.unmet.iter().any(|unmet| unmet.because.contains("kubepods"));
            assert!(class || beside, "{qos}: {}", plan.describe(&found));
        }
    }
    // Best-effort pods are compared with guaranteed pods in their own cgroups.
    let fake = FakeHost::v1(4, MEMORY);
    for path in cgroupfs {
        make(&fake, path);
    }
    let text = "[group.web]\nclass = \"online\"\nmatch = [{ kubernetes = \"guaranteed\" }]\n\
                [group.etl]\nclass = \"offline\"\nmatch = [{ kubernetes = \"besteffort\" }]\n";
    let (found, plan) = planned(&mut fake.another(), text).unwrap();
    let said = plan.describe(&found);
    assert!(
        said.contains("cpu:/kubepods/besteffort  cpu.shares  1024 -> 2") && plan.unmet.is_empty(),
        "{said}"
    );
}

#[test]
fn processes_go_in_and_come_back() {
    for (name, fake) in machines() {
        let first = start(&fake, "/work", "/usr/bin/ffmpeg", 1);
        let child = start(&fake, "/work", "/bin/sh", first);
        let elsewhere = start(&fake, "/other", "/bin/sh", first);
        let second = start(&fake, "/other", "/usr/bin/ffmpeg", 1);
        let alone = start(&fake, "/work", "/bin/sh", 1);
        let (before, places) = (fake.snapshot(), all_places(&fake));
        let mut host = fake.another();
        settled(&mut host, MEDIA);
        let own = BTreeSet::from(["/commensal-offline/media".to_owned()]);
        for pid in [first, child, second] {
            let now = whereabouts(&fake, pid);
            // Processes are not moved in hierarchies that neither limit nor account.
            assert!(now.is_superset(&own) && now.len() <= 2, "{name}: {pid} is in {now:?}");
        }
        for pid in [elsewhere, alone] {
            assert!(whereabouts(&fake, pid).is_disjoint(&own), "{name}: {pid}");
        }
        let (found, again) = planned(&mut host, MEDIA).unwrap();
        assert!(again.is_empty(), "{name}\n{}", again.describe(&found));
        // A process that was started in the group after the move and whose parent exits: it has no record.
        let late = start(&fake, "/work", "/bin/sh", child);
        for place in fake.processes().into_iter().find(|one| one.pid == child).unwrap().groups {
            fake.move_process(late, place);
        }
        let back = restored(&mut host);
        assert!(back.failed.is_empty() && back.left.is_empty(), "{name}: {back:?}");
        assert_eq!(whereabouts(&fake, late), whereabouts(&fake, child), "{name}");
        let mut now = all_places(&fake);
        now.remove(&late);
        assert_eq!(now, places, "{name}");
        assert_eq!(fake.snapshot(), before, "{name}");
        assert!(restored(&mut host).nothing(), "{name}");
    }
}

/// The processes in the group keep starting a child and exiting right after they were listed: the last one is moved
/// back as well.
// promise 11
#[test]
fn who_ends_while_it_is_looked_at_leaves_no_child_behind() {
    for (name, fake) in machines() {
        let first = start(&fake, "/work", "/usr/bin/ffmpeg", 1);
        let before = fake.snapshot();
        let mut host = fake.another();
        settled(&mut host, MEDIA);
        fake.hands_over(first, 40);
        let back = restored(&mut host);
        assert!(back.failed.is_empty() && back.left.is_empty(), "{name}: {back:?}");
        let at_home = |groups: &Vec<PathBuf>| groups.iter().all(|group| group.ends_with("work"));
        assert!(all_places(&fake).values().any(at_home), "{name}: {:?}", all_places(&fake));
        assert_eq!(fake.snapshot(), before, "{name}");
    }
}

/// A machine of this kind, with three processes to be moved and one that is not.
pub fn fresh(name: &str) -> FakeHost {
    let (_, fake) = machines().into_iter().find(|(other, _)| *other == name).unwrap();
    let first = start(&fake, "/work", "/usr/bin/ffmpeg", 1);
    start(&fake, "/work", "/bin/sh", first);
    start(&fake, "/other", "/usr/bin/ffmpeg", 1);
    start(&fake, "/other", "/bin/sh", 1);
    fake
}

/// A refusal at every write: in all hierarchies, the process is either in its old or in its new group.
// promise 13
#[test]
fn every_refusal_leaves_a_process_whole() {
    for (name, _) in machines() {
        let calm = fresh(name);
        for errno in [Errno::EINVAL, Errno::ESRCH, Errno::EBUSY] {
            for nth in 1..60 {
                let fake = calm.copy();
                let places = all_places(&fake);
                let mut host = fake.another();
                let (found, plan) = planned(&mut host, MEDIA).unwrap();
                let mut record = journal(&mut host).unwrap();
                fake.fail_write(nth, errno);
                let outcome = apply(&mut host, &plan.steps, &found, &mut record);
                // A fault that has not occurred must not hit the following operations.
                fake.fail_write(u32::MAX, errno);
                for (pid, now) in all_places(&fake) {
                    let home = &places[&pid];
                    let moved = now.iter().filter(|group| group.ends_with("commensal-offline/media")).count();
                    let whole = now == *home || moved == fully(&fake);
                    assert!(whole, "{name} {errno} {nth}: {pid} is in {now:?}");
                }
                // A refusal is reported, unless only the later shortening of the journal was refused.
                let refused = fake.mutations().len() >= usize::try_from(nth).unwrap();
                let inside = |groups: &&Vec<PathBuf>| {
                    groups.iter().any(|group| group.ends_with("commensal-offline/media"))
                };
                let all = all_places(&fake).values().filter(inside).count() == 3;
                assert!(!refused || all || outcome.failure.is_some() || !outcome.stayed.is_empty());
                let back = restored(&mut host);
                assert!(back.failed.is_empty() && back.left.is_empty(), "{name} {errno} {nth}: {back:?}");
                assert_eq!(all_places(&fake), places, "{name} {errno} {nth}");
            }
        }
    }
}

/// Returns the number of hierarchies that have the group `media`.
fn fully(fake: &FakeHost) -> usize {
    let mut host = fake.another();
    let own = |mount: &PathBuf| commensal_host::below(mount, "/commensal-offline/media");
    mounts(fake).iter().filter(|mount| host.open(&own(mount)).is_ok()).count()
}

/// The PID is reused between the last check and the write: the new process is moved back to its parent's group.
// promise 13
#[test]
fn a_number_that_changes_hands_moves_nobody_else() {
    let fake = FakeHost::v1(4, MEMORY);
    make(&fake, "/work");
    make(&fake, "/other");
    let parent = start(&fake, "/other", "/bin/sh", 1);
    let pid = start(&fake, "/work", "/usr/bin/ffmpeg", 1);
    let groups: Vec<String> = mounts(&fake)
        .iter()
        .map(|mount| commensal_host::below(mount, "/other").display().to_string())
        .collect();
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    let looks = FakeLooks { exe: "/bin/stranger".to_owned(), parent, ..FakeLooks::default() };
    fake.reuse_pid_before_move(pid, &groups, looks);
    let (_, stayed) = settled(&mut fake.another(), MEDIA);
    assert_eq!(whereabouts(&fake, pid), BTreeSet::from(["/other".to_owned()]));
    assert!(stayed.iter().any(|line| line.contains("where its parent is")), "{stayed:?}");
    // It has no record either: restore leaves it alone.
    let back = restored(&mut fake.another());
    assert!(back.failed.is_empty() && back.left.is_empty(), "{back:?}");
    assert_eq!(whereabouts(&fake, pid), BTreeSet::from(["/other".to_owned()]));
}

/// A child that starts while its parent is moved is found in the second pass.
#[test]
fn a_child_born_meanwhile_is_moved_as_well() {
    for (name, fake) in machines() {
        let parent = start(&fake, "/work", "/usr/bin/ffmpeg", 1);
        fake.set_looks(parent, FakeLooks { exe: "/usr/bin/ffmpeg".into(), ..FakeLooks::default() });
        fake.forks_before_move(parent);
        settled(&mut fake.another(), MEDIA);
        let own = "/commensal-offline/media".to_owned();
        let inside = fake.processes().iter().filter(|one| whereabouts(&fake, one.pid).contains(&own)).count();
        assert_eq!(inside, 2, "{name}");
        let back = restored(&mut fake.another());
        assert!(back.failed.is_empty() && back.left.is_empty(), "{name}: {back:?}");
        let home =
            fake.processes().iter().filter(|one| whereabouts(&fake, one.pid).contains("/work")).count();
        assert_eq!(home, 2, "{name}");
    }
}

/// A child that starts while its parent is moved is already in commensal's group in the hierarchies that were written
/// first. Restore moves it back with its parent.
// promise 13
#[test]
fn a_child_born_half_way_goes_back_in_every_hierarchy() {
    for (name, fake) in machines() {
        let all = mounts(&fake);
        for moved in 1..all.len() {
            let parent = start(&fake, "/work", "/usr/bin/ffmpeg", 1);
            settled(&mut fake.another(), MEDIA);
            let mut host = fake.another();
            let mut places = Vec::new();
            for (at, mount) in all.iter().enumerate() {
                let ours = commensal_host::below(mount, "/commensal-offline/media");
                // The group is not created in hierarchies where it neither limits nor accounts.
                let inside = at < moved && host.open(&ours).is_ok();
                let place = if inside { ours } else { commensal_host::below(mount, "/work") };
                places.push(place.display().to_string());
            }
            let child = fake.add_process(&places.iter().map(String::as_str).collect::<Vec<_>>());
            let looks = FakeLooks { exe: "/usr/bin/ffmpeg".to_owned(), parent, ..FakeLooks::default() };
            fake.set_looks(child, looks);
            settled(&mut fake.another(), MEDIA);
            let back = restored(&mut fake.another());
            assert!(back.failed.is_empty() && back.left.is_empty(), "{name}, {moved} moved: {back:?}");
            for pid in [parent, child] {
                assert_eq!(
                    whereabouts(&fake, pid),
                    BTreeSet::from(["/work".to_owned()]),
                    "{name}, {moved} moved"
                );
                fake.end(pid, Exit::Code(0));
            }
        }
    }
}

// promise 14
#[test]
fn who_is_moved_out_by_somebody_is_left_there_and_told() {
    for (name, fake) in machines() {
        let pid = start(&fake, "/work", "/usr/bin/ffmpeg", 1);
        settled(&mut fake.another(), MEDIA);
        for mount in mounts(&fake) {
            fake.move_process(pid, commensal_host::below(&mount, "/other"));
        }
        let (plan, _) = settled(&mut fake.another(), MEDIA);
        assert_eq!(whereabouts(&fake, pid), BTreeSet::from(["/other".to_owned()]), "{name}");
        assert!(
            plan.unmet.iter().any(|unmet| unmet.because.contains("another program has since moved it")),
            "{:?}",
            plan.unmet
        );
        // It belongs to the other program now, and is not restored.
        let back = restored(&mut fake.another());
        assert!(back.failed.is_empty() && back.left.is_empty(), "{name}: {back:?}");
        assert_eq!(whereabouts(&fake, pid), BTreeSet::from(["/other".to_owned()]), "{name}");
    }
}

/// The original cgroup of a process no longer exists, or another one has its name: the process stays, and that is
/// reported.
// promise 11
#[test]
fn a_home_that_is_gone_is_not_guessed() {
    for rebuilt in [false, true] {
        let fake = FakeHost::v1(4, MEMORY);
        make(&fake, "/work");
        let pid = start(&fake, "/work", "/usr/bin/ffmpeg", 1);
        settled(&mut fake.another(), MEDIA);
        for mount in mounts(&fake) {
            fake.vanish(commensal_host::below(&mount, "/work"));
        }
        if rebuilt {
            make(&fake, "/work");
        }
        let none = "[group.media]\nclass = \"offline\"\n";
        let (_, plan) = planned(&mut fake.another(), none).unwrap();
        assert_eq!(moves(&plan), 0);
        assert!(
            plan.unmet.iter().any(|unmet| unmet.because.contains("was removed (cpu, ")),
            "{:?}",
            plan.unmet
        );
        let back = restored(&mut fake.another());
        assert!(
            back.failed.is_empty() && back.left.iter().any(|line| line.contains("was removed")),
            "{back:?}"
        );
        assert!(whereabouts(&fake, pid).contains("/commensal-offline/media"));
    }
}

/// A changed match: processes that the old one selected are moved back, those of the new one are moved in.
#[test]
fn another_file_moves_back_and_in() {
    for (name, fake) in machines() {
        let old = start(&fake, "/work", "/usr/bin/ffmpeg", 1);
        let new = start(&fake, "/other", "/usr/bin/x264", 1);
        let (before, places) = (fake.snapshot(), all_places(&fake));
        settled(&mut fake.another(), MEDIA);
        // The process executes another program, and stays, because it was selected before.
        fake.set_looks(old, FakeLooks { exe: "/usr/bin/other".into(), ..FakeLooks::default() });
        assert!(planned(&mut fake.another(), MEDIA).unwrap().1.is_empty(), "{name}");
        settled(&mut fake.another(), &MEDIA.replace("ffmpeg", "x264"));
        assert_eq!(whereabouts(&fake, old), BTreeSet::from(["/work".to_owned()]), "{name}");
        assert!(whereabouts(&fake, new).contains("/commensal-offline/media"), "{name}");
        // From one commensal group to another, and then back to the original one.
        settled(&mut fake.another(), &MEDIA.replace("ffmpeg", "x264").replace("group.media", "group.video"));
        assert!(whereabouts(&fake, new).contains("/commensal-offline/video"), "{name}");
        let back = restored(&mut fake.another());
        assert!(back.failed.is_empty() && back.left.is_empty(), "{name}: {back:?}");
        assert_eq!(all_places(&fake), places, "{name}");
        assert_eq!(fake.snapshot(), before, "{name}");
    }
}

/// Processes in containers, in claimed groups and in commensal's groups are not moved; a process that two groups match
/// is moved once.
#[test]
fn who_is_not_moved() {
    let fake = FakeHost::v1(4, MEMORY);
    for path in [&format!("/docker/{ID}"), "/batch", "/work"] {
        make(&fake, path);
    }
    let inside = start(&fake, &format!("/docker/{ID}"), "/usr/bin/ffmpeg", 1);
    let claimed = start(&fake, "/batch", "/usr/bin/ffmpeg", 1);
    let kernel = start(&fake, "/work", "", 2);
    let dead = start(&fake, "/work", "/usr/bin/ffmpeg", 1);
    let free = start(&fake, "/work", "/usr/bin/ffmpeg", 1);
    fake.end(dead, Exit::Code(0));
    let text = format!(
        "{MEDIA}[group.batch]\nclass = \"offline\"\nmatch = [{{ cgroup = \"/batch\" }}]\n\
         [group.zz]\nclass = \"offline\"\nmatch = [{{ process = {{ user = \"0\" }} }}]\n"
    );
    let (plan, _) = settled(&mut fake.another(), &text);
    let place = |pid: u32| whereabouts(&fake, pid).into_iter().collect::<Vec<_>>().join(" ");
    assert_eq!(place(inside), format!("/docker/{ID}"));
    assert_eq!(place(claimed), "/batch");
    assert_eq!(place(kernel), "/work");
    assert!(place(free).contains("/commensal-offline/media"));
    let own = std::process::id();
    assert_eq!(place(own), "/");
    let because: Vec<&str> = plan.unmet.iter().map(|unmet| unmet.because.as_str()).collect();
    assert!(because.iter().any(|text| text.contains("runs in a container")), "{because:?}");
    assert!(because.iter().any(|text| text.contains("group media matches it as well")), "{because:?}");
}

/// Processes of units are not moved where systemd is the only writer; the message names the way out.
#[test]
fn processes_of_units_need_takeover() {
    let fake = FakeHost::v2(4, MEMORY);
    make(&fake, "/system.slice/media.service");
    fake.set_file("/run/systemd/system/x", "");
    let pid = start(&fake, "/system.slice/media.service", "/usr/bin/ffmpeg", 1);
    let (_, plan) = planned(&mut fake.another(), MEDIA).unwrap();
    assert!(
        plan.unmet.iter().any(|unmet| unmet.try_this.contains("{ systemd = \"media.service\" }")),
        "{:?}",
        plan.unmet
    );
    assert_eq!((moves(&plan), whereabouts(&fake, pid).len()), (0, 1));
}

/// The records of exited processes are dropped with the next move.
#[test]
fn the_journal_does_not_grow_with_the_dead() {
    let fake = FakeHost::v1(4, MEMORY);
    make(&fake, "/work");
    let lines = || fake.read_file(&Path::new(STATE).join("machine.journal")).unwrap().lines().count();
    settled(&mut fake.another(), MEDIA);
    let mut most = 0;
    for _ in 0..20 {
        let pid = start(&fake, "/work", "/usr/bin/ffmpeg", 1);
        settled(&mut fake.another(), MEDIA);
        most = most.max(lines());
        fake.end(pid, Exit::Code(0));
    }

    assert!(lines() <= most && most < 40, "{} of at most {most}", lines());
}

/// A frozen process of cgroup v1 is thawed until it has ended, and nobody is thawed for the dead.
// promise 24
#[test]
fn a_frozen_process_is_thawed_until_it_has_ended() {
    let fake = FakeHost::v1(4, 8 << 30);
    let mut host = fake.another();
    let root = host.open(Path::new("/sys/fs/cgroup/freezer")).unwrap();
    let dir = host.mkdir(root, "still").unwrap();
    for (frozen, expect) in [(true, vec!["signal", "write", "write"]), (false, vec!["signal"])] {
        let pid = fake.add_process(&["/sys/fs/cgroup/freezer/still"]);
        host.write(dir, "freezer.state", if frozen { "FROZEN" } else { "THAWED" }).unwrap();
        let process = host.process(pid).unwrap();
        let before = fake.mutations().len();
        let patience = std::time::Duration::from_secs(5);
        let ended = commensal_reconcile::members::kill(&mut host, &process, &[dir], patience);
        assert_eq!(ended, Ok(true));
        let done: Vec<_> = fake.mutations()[before..].iter().map(|one| one.operation).collect();
        assert_eq!(done, expect);
        let exit = fake.processes().into_iter().find(|one| one.pid == pid).and_then(|one| one.exit);
        assert_eq!(exit, Some(Exit::Signal(9)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// For any processes and matches: moving converges, another plan is empty, and restore moves everything back.
    #[test]
    fn any_processes_settle_and_come_back(
        layout in 0usize..4,
        people in proptest::collection::vec((0usize..3, 0usize..3, proptest::option::of(0usize..6)), 0..8),
        wanted in proptest::collection::vec(0usize..3, 1..3),
    ) {
        const PROGRAMS: [&str; 3] = ["/bin/a", "/bin/b", "/bin/c"];
        const PLACES: [&str; 3] = ["/work", "/other", "/"];
        let (name, fake) = machines().swap_remove(layout);
        let mut pids: Vec<u32> = Vec::new();
        for (program, place, parent) in &people {
            let parent = parent.and_then(|index| pids.get(index).copied()).unwrap_or(1);
            pids.push(start(&fake, PLACES[*place], PROGRAMS[*program], parent));
        }
        let text: String = wanted.iter().enumerate().map(|(index, program)| format!(
            "[group.g{index}]\nclass = \"offline\"\nmatch = [{{ process = {{ exe = \"{}\" }} }}]\n", PROGRAMS[*program]
        )).collect();
        let (before, places) = (fake.snapshot(), all_places(&fake));
        settled(&mut fake.another(), &text);
        let (found, again) = planned(&mut fake.another(), &text).unwrap();
        prop_assert!(again.is_empty(), "{}\n{}", name, again.describe(&found));
        for (pid, (program, ..)) in pids.iter().zip(&people) {
            let taken = wanted.contains(program);
            let inside = whereabouts(&fake, *pid).iter().any(|path| path.starts_with("/commensal-offline/"));
            prop_assert!(inside || !taken, "{}: {} of {:?}", name, pid, people);
        }
        let back = restored(&mut fake.another());
        prop_assert!(back.failed.is_empty() && back.left.is_empty(), "{:?}", back);
        prop_assert_eq!(all_places(&fake), places);
        prop_assert_eq!(fake.snapshot(), before);
    }
}
