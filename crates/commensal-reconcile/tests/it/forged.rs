//! Records that nothing but a journal tells of: `restore` removes, empties and moves nothing for them, and disables
//! nothing, where a mark on the cgroup could tell that commensal made the change.
//!
//! The tests form the product [`KINDS`] x [`MARKS`] x [`GROUPS`].

use crate::support::{STATE, applied, instance, restored, specs};
use crate::together::run;
use crate::vendors;
use commensal_host::fake::{FakeHost, VendorKernel};
use commensal_host::{Exit, Host};
use commensal_reconcile::journal::{
    self, Cookied, Created, Creating, Enabling, Moving, Original, Owner, Record, Recreating, Target,
};
use commensal_reconcile::{PlanRequest, Reconciler};
use std::path::{Path, PathBuf};

const MEMORY: u64 = 8 << 30;
/// State directory of another commensal.
const THERE: &str = "/state/there";

/// The record that is forged, and the kind of machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Creating,
    Created,
    /// Created by a lab run, whose groups are emptied by killing.
    OfLab,
    Enabling,
    Cookied,
    Moving,
    Recreating,
}

const KINDS: [(Kind, bool); 11] = [
    (Kind::Creating, false),
    (Kind::Creating, true),
    (Kind::Created, false),
    (Kind::Created, true),
    (Kind::OfLab, false),
    (Kind::OfLab, true),
    (Kind::Enabling, true),
    (Kind::Cookied, false),
    (Kind::Moving, false),
    (Kind::Moving, true),
    (Kind::Recreating, false),
];

/// What is on the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Marked {
    /// The mark of the state directory that is restored from.
    Ours,
    /// No mark.
    No,
    /// The mark of another state directory, which is not lost.
    OfAnother,
    /// The same, and its agent is running.
    OfARunningOne,
    /// Groups cannot be marked on this machine.
    Unavailable,
}

const MARKS: [Marked; 5] =
    [Marked::Ours, Marked::No, Marked::OfAnother, Marked::OfARunningOne, Marked::Unavailable];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Group {
    Populated,
    Empty,
    Gone,
}

const GROUPS: [Group; 3] = [Group::Populated, Group::Empty, Group::Gone];

/// What `restore` is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The record is undone.
    Undone,
    /// The record stays because the group is in use; status 1.
    Left,
    /// The record stays because nothing proves it; status 2.
    Denied,
    /// There is nothing to undo.
    Nothing,
}

fn expected(kind: Kind, marked: Marked, group: Group) -> Outcome {
    let makes = matches!(kind, Kind::Creating | Kind::Created | Kind::OfLab);
    match (group, marked) {
        (Group::Gone, _) => Outcome::Nothing,
        // Nobody was moved or given a cookie.
        (Group::Empty, _) if kind == Kind::Moving => Outcome::Nothing,
        (Group::Empty, marked) if kind == Kind::Cookied && marked != Marked::OfARunningOne => {
            Outcome::Nothing
        }
        (_, Marked::No) => Outcome::Denied,
        (_, Marked::OfAnother | Marked::OfARunningOne) if makes || kind == Kind::Moving => Outcome::Denied,
        (_, Marked::OfARunningOne) if kind == Kind::Recreating => Outcome::Denied,
        // Several commensals share a controller; the last one disables it.
        (_, Marked::OfARunningOne) => Outcome::Left,
        // Processes in a group of ours are somebody's, except in a lab's.
        (Group::Populated, _) if makes && kind != Kind::OfLab => Outcome::Left,
        _ => Outcome::Undone,
    }
}

/// A machine with the group `/theirs`, and a journal with a record of it.
struct Scene {
    fake: FakeHost,
    journal: PathBuf,
    mount: &'static str,
    record: Record,
    inode: u64,
    /// The process in the group, or somewhere else.
    pid: u32,
}

fn owner(host: &mut FakeHost, kind: &str) -> Record {
    let mut owner = Owner::this_process(host, kind).unwrap();
    if kind == "lab" {
        // A run that has died.
        (owner.pid, owner.start_ticks) = (u32::MAX - 1, 1);
    }
    Record::Owner(owner)
}

impl Scene {
    fn new((kind, v2): (Kind, bool), marked: Marked, group: Group) -> Scene {
        let fake = match kind {
            Kind::Recreating => vendors::machine(VendorKernel::OPENEULER),
            _ if v2 => FakeHost::v2(4, MEMORY),
            _ => FakeHost::v1(4, MEMORY),
        };
        if kind == Kind::Cookied {
            fake.smt();
            fake.core_scheduling(true);
        }
        let mount = if v2 { "/sys/fs/cgroup" } else { "/sys/fs/cgroup/cpu" };
        let mut host = fake.another();
        let root = host.open(Path::new(mount)).unwrap();
        let home = host.mkdir(root, "home").unwrap();
        let dir = host.mkdir(root, "theirs").unwrap();
        let mut place = format!("{mount}/theirs");
        if kind == Kind::Enabling {
            host.write(root, "cgroup.subtree_control", "+memory").unwrap();
            host.write(dir, "cgroup.subtree_control", "+memory").unwrap();
            host.mkdir(dir, "child").unwrap();
            place += "/child";
        }
        let pid = match group {
            Group::Populated => fake.add_process(&[&place]),
            Group::Empty | Group::Gone => fake.add_process(&[]),
        };
        match kind {
            Kind::Recreating => host.write(dir, "cpu.qos_level", "-1").unwrap(),
            Kind::Cookied if group == Group::Populated => fake.set_cookie(pid, 7),
            _ => {}
        }
        let target = |path: &str, inode| Target { mount: mount.to_owned(), path: path.to_owned(), inode };
        let theirs = target("/theirs", dir.inode);
        let record = match kind {
            Kind::Creating => {
                Record::Creating(Creating { mount: mount.to_owned(), path: "/theirs".to_owned() })
            }
            Kind::Created | Kind::OfLab => Record::Created(Created(theirs)),
            Kind::Enabling => Record::Enabling(Enabling { group: theirs, controller: "memory".to_owned() }),
            Kind::Cookied => Record::Cookied(Cookied(theirs)),
            Kind::Moving => Record::Moving(Moving {
                pid,
                start_ticks: host.process(pid).unwrap().start_ticks,
                pgrp: pid,
                by: "processes with exe fake".to_owned(),
                from: vec![target("/home", home.inode)],
                to: vec![theirs],
            }),
            Kind::Recreating => Record::Recreating(Recreating(theirs)),
        };
        let (file, of) = match kind {
            Kind::OfLab => (format!("lab-{}.journal", u32::MAX - 1), "lab"),
            _ => ("machine.journal".to_owned(), journal::MACHINE),
        };
        let journal = Path::new(STATE).join(file);
        let text = journal::line(&owner(&mut host, of)) + &journal::line(&record);
        host.state_dir(Path::new(STATE)).unwrap();
        host.state_replace(&journal, &text).unwrap();
        host.state_dir(Path::new(THERE)).unwrap();
        // Without the journal of that name there, its marks would be those of a lost one.
        let theirs = Path::new(THERE).join(journal.file_name().unwrap());
        let text = journal::line(&owner(&mut host, of));
        host.state_replace(&theirs, &text).unwrap();
        let scene = Scene { fake, journal, mount, record, inode: dir.inode, pid };
        match marked {
            Marked::Ours => scene.mark(STATE, kind),
            Marked::OfAnother | Marked::OfARunningOne => scene.mark(THERE, kind),
            Marked::Unavailable => scene.fake.refuse_attributes(),
            Marked::No => {}
        }
        if group == Group::Gone {
            scene.fake.vanish(format!("{mount}/theirs"));
        }
        scene
    }

    /// Sets the mark that commensal sets when it makes the change.
    fn mark(&self, state: &str, kind: Kind) {
        let theirs = format!("{}/theirs", self.mount);
        let name = self.journal.file_stem().unwrap().to_string_lossy().into_owned();
        let set = |group: &str, attribute: &str, record: &Record| {
            let mark = serde_json::json!({ "owner": state, "journal": name, "record": record }).to_string();
            self.fake.give_attribute(group, &format!("trusted.commensal.{attribute}"), &mark);
        };
        match (&self.record, kind) {
            // Killed before the group got a mark of its own; its parent has one that announces it.
            (record, Kind::Creating) if state == STATE => {
                let attribute = format!("creating.{:08x}", crc32fast::hash(b"theirs"));
                set(self.mount, &attribute, record);
            }
            (Record::Creating(Creating { mount, path }), _) => {
                let target = Target { mount: mount.clone(), path: path.clone(), inode: self.inode };
                set(&theirs, "created", &Record::Created(Created(target)));
            }
            (Record::Moving(Moving { start_ticks, .. }), _) => {
                set(&theirs, &format!("moving.{}.{start_ticks}", self.pid), &self.record);
            }
            // The level that only a fresh group does not have.
            (Record::Recreating(Recreating(group)), _) => {
                let original = Record::Original(Original {
                    group: group.clone(),
                    knob: "cpu.qos_level".to_owned(),
                    file: "cpu.qos_level".to_owned(),
                    device: None,
                    value: "0".to_owned(),
                });
                set(&theirs, "original.cpu.qos_level", &original);
            }
            (record, Kind::Enabling) => set(&theirs, "enabling.memory", record),
            (record, Kind::Cookied) => set(&theirs, "cookied", record),
            (record, _) => set(&theirs, "created", record),
        }
    }

    /// Everything that may change: control files, the group's inode, living processes with their groups and cookies;
    /// and the group's attributes.
    fn state(&self) -> (String, Vec<String>) {
        let mut host = self.fake.another();
        let path = format!("{}/theirs", self.mount);
        let attributes =
            host.open(Path::new(&path)).and_then(|dir| host.attributes(dir, "trusted.commensal."));
        let alive = self.fake.processes().into_iter().filter(|one| one.exit.is_none());
        let alive: Vec<_> = alive.map(|one| (one.pid, one.groups, one.threads)).collect();
        let state = format!("{:?} {:?} {alive:?}", self.fake.snapshot(), self.inode_now());
        (state, attributes.unwrap_or_default())
    }

    fn inode_now(&self) -> Option<u64> {
        self.fake.another().open(Path::new(&format!("{}/theirs", self.mount))).ok().map(|dir| dir.inode)
    }

    /// Whether the record is undone.
    fn is_undone(&self, kind: Kind, group: Group) -> bool {
        let theirs = format!("{}/theirs", self.mount);
        let process = self.fake.processes().into_iter().find(|one| one.pid == self.pid).unwrap();
        let is_in = |group: &str| process.groups.iter().any(|one| one == Path::new(group));
        match kind {
            Kind::Creating | Kind::Created => self.inode_now().is_none(),
            Kind::OfLab => {
                self.inode_now().is_none() && (process.exit.is_some() == (group == Group::Populated))
            }
            Kind::Enabling => {
                let file = format!("{theirs}/cgroup.subtree_control");
                !self.fake.read_file(Path::new(&file)).unwrap().contains("memory")
            }
            Kind::Cookied => process.threads.values().all(|cookie| *cookie == 0),
            Kind::Moving => is_in(&format!("{}/home", self.mount)),
            Kind::Recreating => {
                let stays = group != Group::Populated || is_in(&theirs);
                self.inode_now().is_some_and(|inode| inode != self.inode) && stays
            }
        }
    }
}

// promise 58
#[test]
fn a_record_without_its_mark_is_told_and_left_alone() {
    let mut tried = 0;
    for kind in KINDS {
        for marked in MARKS {
            for group in GROUPS {
                let what = format!("{kind:?}, marked {marked:?}, {group:?}");
                let scene = Scene::new(kind, marked, group);
                let mut host = scene.fake.another();
                let _lock = (marked == Marked::OfARunningOne)
                    .then(|| host.state_lock(&Path::new(THERE).join("agent.lock")).unwrap());
                let before = scene.state();
                // A second time nothing else happens.
                for turn in 0..2 {
                    let result = restored(&mut scene.fake.another());
                    let what = format!("{what}, turn {turn}: {result:?}");
                    let kept = host.state_read(&scene.journal).unwrap();
                    match expected(kind.0, marked, group) {
                        Outcome::Undone => {
                            assert!(result.failed.is_empty() && result.left.is_empty(), "{what}");
                            assert!(scene.is_undone(kind.0, group) && kept.is_none(), "{what}: {kept:?}");
                            assert_eq!(result.done.is_empty(), turn == 1, "{what}");
                        }
                        Outcome::Nothing => {
                            assert!(result.failed.is_empty() && result.left.is_empty(), "{what}");
                            assert!(kept.is_none(), "{what}: {kept:?}");
                        }
                        Outcome::Left => {
                            assert!(result.failed.is_empty() && result.left.len() == 1, "{what}");
                            assert!(kept.unwrap().contains(&journal::line(&scene.record)), "{what}");
                        }
                        Outcome::Denied => {
                            let [told] = &result.failed[..] else { panic!("{what}") };
                            let why = if kind.0 == Kind::Recreating && marked == Marked::OfARunningOne {
                                "/state/there is running"
                            } else if marked == Marked::No {
                                "not marked as commensal's; left alone"
                            } else {
                                "the commensal whose state is in /state/there; left alone"
                            };
                            assert!(told.contains(why) && told.contains("/theirs"), "{what}");
                            assert!(result.done.is_empty() && result.left.is_empty(), "{what}");
                            assert!(kept.unwrap().contains(&journal::line(&scene.record)), "{what}");
                        }
                    }
                    let now = scene.state();
                    match expected(kind.0, marked, group) {
                        Outcome::Undone => {}
                        // The record goes, and its mark with it.
                        Outcome::Nothing => assert_eq!(now.0, before.0, "{what}"),
                        Outcome::Left | Outcome::Denied => assert_eq!(now, before, "{what}"),
                    }
                }
                tried += 1;
            }
        }
    }
    assert_eq!(tried, KINDS.len() * MARKS.len() * GROUPS.len());
}

/// Once its mark is there, as it is in time for every change that commensal makes, the record is undone.
// promise 58
#[test]
fn a_record_is_undone_when_its_mark_is_there() {
    for kind in KINDS {
        let scene = Scene::new(kind, Marked::No, Group::Empty);
        if expected(kind.0, Marked::No, Group::Empty) == Outcome::Nothing {
            continue;
        }
        assert_eq!(restored(&mut scene.fake.another()).failed.len(), 1, "{kind:?}");
        scene.mark(STATE, kind.0);
        let result = restored(&mut scene.fake.another());
        assert!(result.failed.is_empty() && result.left.is_empty(), "{kind:?}: {result:?}");
        assert!(scene.is_undone(kind.0, Group::Empty), "{kind:?}: {result:?}");
    }
}

/// A level that can only be undone by replacing the group: without its mark, the group keeps its members.
// promise 58
#[test]
fn an_original_level_without_its_mark_replaces_no_group() {
    for (marked, denied) in [(Marked::No, true), (Marked::Unavailable, false), (Marked::Ours, false)] {
        let scene = Scene::new((Kind::Recreating, false), marked, Group::Populated);
        let Record::Recreating(Recreating(group)) = scene.record.clone() else { panic!() };
        let original = Record::Original(Original {
            group,
            knob: "cpu.qos_level".to_owned(),
            file: "cpu.qos_level".to_owned(),
            device: None,
            value: "0".to_owned(),
        });
        let mut host = scene.fake.another();
        let text = journal::line(&owner(&mut host, journal::MACHINE)) + &journal::line(&original);
        host.state_replace(&scene.journal, &text).unwrap();
        let before = scene.state();
        let result = restored(&mut host);
        assert_eq!(result.failed.is_empty(), !denied, "{marked:?}: {result:?}");
        assert_eq!(scene.state() == before, denied, "{marked:?}: {result:?}");
        assert_eq!(scene.is_undone(Kind::Recreating, Group::Populated), !denied, "{marked:?}");
    }
}

/// Forged records beside real ones: everything that commensal did is undone, and nothing else happens.
// promise 58
#[test]
fn forged_records_hold_up_no_others() {
    for (kind, v2) in KINDS.into_iter().filter(|(kind, _)| *kind != Kind::OfLab) {
        let scene = Scene::new((kind, v2), Marked::No, Group::Populated);
        let mut host = scene.fake.another();
        let forged = host.state_read(&scene.journal).unwrap().unwrap();
        host.state_remove(&scene.journal).unwrap();
        let before = scene.state();
        let text = "[group.etl]\nclass = \"offline\"\npids.max = 77\n[group.home]\nclass = \"offline\"\n\
                    match = [{ cgroup = \"/home\" }]\n";
        assert!(applied(&mut host, text).2.failure.is_none(), "{kind:?}");
        assert_ne!(scene.state(), before, "{kind:?}");
        let real = host.state_read(&scene.journal).unwrap().unwrap();
        let record = forged.lines().next_back().unwrap();
        for text in [format!("{real}{record}\n"), format!("{forged}{real}")] {
            let fake = scene.fake.copy();
            let mut host = fake.another();
            host.state_replace(&scene.journal, &text).unwrap();
            let result = restored(&mut host);
            let scene = Scene { fake, record: scene.record.clone(), journal: scene.journal.clone(), ..scene };
            assert_eq!(scene.state(), before, "{kind:?}: {result:?}");
            assert!(result.failed.len() == 1 && result.left.is_empty(), "{kind:?}: {result:?}");
            assert!(result.failed[0].contains("left alone"), "{kind:?}: {result:?}");
            let kept = host.state_read(&scene.journal).unwrap().unwrap();
            assert_eq!(journal::parse(&kept).records[1..], [scene.record], "{kind:?}");
        }
    }
}

/// A record gets no mark because it is read: neither an agent that starts on a forged journal, nor one that adopts the
/// groups of `run`, makes it a proof.
// promise 58
#[test]
fn reading_a_forged_record_does_not_mark_its_group() {
    let fake = FakeHost::v2(4, MEMORY);
    let mut host = fake.another();
    let root = host.open(Path::new("/sys/fs/cgroup")).unwrap();
    host.write(root, "cgroup.subtree_control", "+memory").unwrap();
    let dir = host.mkdir(root, "theirs").unwrap();
    host.write(dir, "cgroup.subtree_control", "+memory").unwrap();
    let before = fake.snapshot();
    let text = "[group.etl]\nclass = \"offline\"\n";
    run(&fake, text);
    let group = Target { mount: "/sys/fs/cgroup".to_owned(), path: "/theirs".to_owned(), inode: dir.inode };
    let forged = [
        Record::Created(Created(group.clone())),
        Record::Enabling(Enabling { group, controller: "memory".to_owned() }),
    ];
    let lines: String = forged.iter().map(journal::line).collect();
    let of_run = Path::new(STATE).join("run.journal");
    host.state_append(&of_run, &lines).unwrap();
    let specs = specs(text);
    for start in 0..2 {
        let mut agent = Reconciler::new(instance(), &mut host).unwrap();
        let round = agent.round(&mut host, 0, &PlanRequest::all(&specs)).unwrap();
        assert!(round.problems.is_empty(), "{:?}", round.problems);
        agent.look_again(&mut host).unwrap();
        // The second agent finds the records in its own journal as well.
        let machine = Path::new(STATE).join("machine.journal");
        host.state_append(&machine, &lines).unwrap();
        assert_eq!(host.attributes(dir, "trusted.").unwrap(), [""; 0], "start {start}");
    }
    let etl = host.open(Path::new("/sys/fs/cgroup/commensal-offline/etl")).unwrap();
    let mark = host.attribute(etl, "trusted.commensal.created").unwrap().unwrap();
    assert!(mark.contains("\"journal\":\"machine\""), "adopted with its group: {mark}");
    let result = restored(&mut host);
    assert_eq!(fake.snapshot(), before, "{result:?}");
    assert!(
        !result.failed.is_empty() && result.failed.iter().all(|one| one.contains("left alone")),
        "{result:?}"
    );
}

/// Killed right after a group was created: it is removed if it is empty, and nobody who entered it meanwhile is harmed.
// promise 11
// promise 58
#[test]
fn a_group_that_was_only_just_created_is_removed_once_it_is_empty() {
    let text = "[group.etl]\nclass = \"offline\"\n[group.web]\nclass = \"online\"\n";
    for make in [FakeHost::v1, FakeHost::v2] {
        let calm = make(2, MEMORY);
        applied(&mut calm.another(), text);
        let created = calm.mutations().into_iter().enumerate().filter(|(_, one)| one.operation == "create");
        let created: Vec<(usize, String)> = created
            .filter(|(_, one)| one.path.contains("/commensal-o"))
            .map(|(n, one)| (n + 1, one.path))
            .collect();
        assert!(created.len() > 3, "{created:?}");
        for (n, path) in created {
            for populated in [false, true] {
                let fake = make(2, MEMORY);
                let before = fake.snapshot();
                fake.crash_after(u32::try_from(n).unwrap());
                let specs = specs(text);
                let mut host = fake.another();
                let _ = instance().survey(&mut host).map(|survey| {
                    let planned = instance().plan(&mut host, &survey, &PlanRequest::all(&specs)).unwrap();
                    let mut journal = crate::support::journal(&mut host).unwrap();
                    commensal_reconcile::apply(&mut host, &planned.plan.steps, &planned.actual, &mut journal);
                });
                assert!(fake.is_crashed(), "{path}");
                let fake = fake.restart();
                let mut host = fake.another();
                let dir = host.open(Path::new(&path)).unwrap();
                let marks = host.attributes(dir, "trusted.").unwrap();
                assert_eq!(marks, [""; 0], "{path}: it has no mark yet");
                let pid = populated.then(|| fake.add_process(&[&path]));
                let result = restored(&mut host);
                assert!(result.failed.is_empty(), "{path}: {result:?}");
                if let Some(pid) = pid {
                    assert!(host.open(Path::new(&path)).is_ok(), "{path}: {result:?}");
                    assert!(result.left.iter().any(|one| one.contains(" is in it")), "{result:?}");
                    let there = fake.processes().into_iter().find(|one| one.pid == pid).unwrap();
                    assert!(there.exit.is_none() && there.groups.iter().any(|one| one == Path::new(&path)));
                    fake.end(pid, Exit::Code(0));
                    let result = restored(&mut host);
                    assert!(result.failed.is_empty() && result.left.is_empty(), "{path}: {result:?}");
                } else {
                    assert!(result.left.is_empty(), "{path}: {result:?}");
                }
                assert_eq!(fake.snapshot(), before, "{path}");
                assert!(restored(&mut host).nothing(), "{path}");
                let root = host.open(Path::new(path.split("/commensal-").next().unwrap())).unwrap();
                assert_eq!(host.attributes(root, "trusted.commensal.creating").unwrap(), [""; 0], "{path}");
            }
        }
    }
}
