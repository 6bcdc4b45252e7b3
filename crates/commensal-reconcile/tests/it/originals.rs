//! Originals are recorded twice, in the journal and on the cgroups: if one copy is lost, the other is used, and no
//! commensal takes another one's limit for an original.

use crate::crash::{MachineState, World, limits, moved, plain, prepared, same, see};
use crate::support::{self, STATE, applied, planned, restored};
use commensal_core::actual::CgroupPath;
use commensal_core::config::parse;
use commensal_core::errno::Errno;
use commensal_core::knob::{KnobId, Value};
use commensal_core::plan::{Action, Step};
use commensal_host::Host;
use commensal_host::fake::{Effect, FakeHost, Trouble};
use commensal_reconcile::journal::{Original, Record, Target};
use commensal_reconcile::{Instance, Mastery, PlanRequest, Reconciler, enforce, kept_in_force};
use std::path::{Path, PathBuf};

/// Returns the worlds in which only cgroups are changed.
fn cases() -> Vec<World> {
    plain().into_iter().chain(limits()).chain(moved()).collect()
}

fn journal() -> PathBuf {
    Path::new(STATE).join("machine.journal")
}

fn restored_is(fake: &FakeHost, before: &MachineState, what: &str) {
    let back = Instance::new(Path::new(STATE)).restore(&mut fake.another(), &[]).unwrap();
    assert!(back.left.is_empty(), "{what}: {back:?}");
    same(&see(fake), before, &format!("{what}: {back:?}"));
    let again = Instance::new(Path::new(STATE)).restore(&mut fake.another(), &[]).unwrap();
    assert!(again.nothing(), "{what}: a second restore found something: {again:?}");
}

/// Damages a line of a journal; `None` if the journal does not have that line.
pub type Damage = fn(text: &str, line: usize) -> Option<String>;

/// Kinds of damage: a line is changed, cut off with everything after it, or removed; or all lines are duplicated.
const DAMAGES: [(&str, Damage); 4] = [
    ("a byte of line", |text, line| {
        let at = text.split_inclusive('\n').take(line).map(str::len).sum::<usize>() + 12;
        (at < text.len()).then(|| {
            let mut bytes = text.as_bytes().to_owned();
            bytes[at] ^= 1;
            String::from_utf8(bytes).unwrap()
        })
    }),
    ("cut in line", |text, line| {
        let at = text.split_inclusive('\n').take(line).map(str::len).sum::<usize>() + 20;
        (at < text.len()).then(|| text[..at].to_owned())
    }),
    ("without line", |text, line| {
        let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
        (line < lines.len()).then(|| {
            lines.remove(line);
            lines.concat()
        })
    }),
    ("backwards", |text, line| {
        (line == 0).then(|| text.split_inclusive('\n').rev().collect::<Vec<_>>().concat())
    }),
];

/// Every damage of a journal: what it is, and the text that is left.
pub fn damaged(text: &str) -> impl Iterator<Item = (String, String)> + '_ {
    DAMAGES.into_iter().flat_map(move |(what, damage)| {
        let lines = (0..).map_while(move |line| Some((format!("{what} {line}"), damage(text, line)?)));
        lines.collect::<Vec<_>>()
    })
}

// promise 12
#[test]
fn whatever_happens_to_a_journal_loses_nothing() {
    let mut tried = 0;
    for world in cases() {
        let before = see(&(world.machine)());
        let calm = prepared(&world, world.texts.len());
        let text = calm.another().state_read(&journal()).unwrap().unwrap();
        for (what, text) in damaged(&text) {
            let fake = calm.copy();
            fake.another().state_replace(&journal(), &text).unwrap();
            restored_is(&fake, &before, &format!("{}: {what}", world.name));
            tried += 1;
        }
        for folder in [false, true] {
            let fake = calm.copy();
            match folder {
                true => fake.another().state_remove_all(Path::new(STATE)).unwrap(),
                false => fake.another().state_remove(&journal()).unwrap(),
            }
            restored_is(&fake, &before, &format!("{}: no journal, or no folder: {folder}", world.name));
        }
    }
    assert!(tried > 300, "only {tried} damages");
}

const HERE: &str = "/state/here";
const THERE: &str = "/state/there";

/// A groups file for another program's group.
const FIRST: &str = "[group.batch]\nclass = \"offline\"\ncpu.max = \"1 core\"\nmemory.max = \"1 GiB\"\nmatch = [{ cgroup = \"/batch\" }]\n";
const SECOND: &str = "[group.batch]\nclass = \"offline\"\ncpu.max = \"2 cores\"\npids.max = 77\nmatch = [{ cgroup = \"/batch\" }]\n";

fn two(kind: &str) -> FakeHost {
    let fake = match kind {
        "v1" => FakeHost::v1(4, 8 << 30),
        "v2" => FakeHost::v2(4, 8 << 30),
        _ => FakeHost::hybrid(4, 8 << 30),
    };
    let mut host = fake.another();
    for hierarchy in commensal_sensors::mounts::hierarchies(&mut host).unwrap() {
        let root = host.open(Path::new(&hierarchy.mount)).unwrap();
        host.mkdir(root, "batch").unwrap();
    }
    fake
}

/// Puts a groups file in force with this state directory, by one apply or by a round of an agent.
fn put_in_force(fake: &FakeHost, state: &str, text: &str, by_agent: bool) {
    let (mut host, instance) = (fake.another(), Instance::new(Path::new(state)));
    let specs = parse("groups.toml", text).unwrap();
    let request = PlanRequest::all(&specs);
    if by_agent {
        let round =
            Reconciler::new(instance, &mut host).and_then(|mut one| one.round(&mut host, 0, &request));
        let round = round.unwrap();
        assert!(round.problems.is_empty(), "{:?}", round.problems);
        return;
    }
    let mut journal = instance.open_journal(&mut host).unwrap();
    let (_, outcome) = enforce(&instance, &mut host, &request, &mut journal).unwrap();
    assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
}

/// Two commensals apply in every order, once or repeatedly, and restore in every order, also with one state directory
/// lost: in the end the first originals are in force.
// promise 20
#[test]
fn restores_in_any_order_end_at_the_first_originals() {
    let turns: [&[(&str, &str)]; 4] = [
        &[(HERE, FIRST), (THERE, SECOND)],
        &[(HERE, FIRST), (THERE, FIRST)],
        &[(HERE, FIRST), (THERE, SECOND), (HERE, SECOND)],
        &[(HERE, FIRST), (THERE, SECOND), (HERE, SECOND), (THERE, FIRST)],
    ];
    let mut tried = 0;
    for kind in ["v1", "v2", "hybrid"] {
        for turn in turns {
            for by_agent in [false, true] {
                for order in [[HERE, THERE], [THERE, HERE]] {
                    for lost in [None, Some(HERE), Some(THERE)] {
                        let fake = two(kind);
                        let before = fake.snapshot();
                        turn.iter().for_each(|(state, text)| put_in_force(&fake, state, text, by_agent));
                        assert_ne!(fake.snapshot(), before);
                        if let Some(lost) = lost {
                            fake.another().state_remove_all(Path::new(lost)).unwrap();
                        }
                        for state in order {
                            let back = Instance::new(Path::new(state)).restore(&mut fake.another(), &[]);
                            let back = back.unwrap();
                            assert!(back.failed.is_empty(), "{kind} {turn:?} {order:?} {lost:?}: {back:?}");
                        }
                        assert_eq!(fake.snapshot(), before, "{kind} {turn:?} {by_agent} {order:?} {lost:?}");
                        tried += 1;
                    }
                }
            }
        }
    }
    assert_eq!(tried, 144);
}

/// A value of a running agent is not overwritten: the plan is refused as a whole, and names the owner.
// promise 20
#[test]
fn what_a_running_agent_keeps_is_refused() {
    for kind in ["v1", "v2", "hybrid"] {
        let fake = two(kind);
        put_in_force(&fake, HERE, FIRST, true);
        let lock = fake.another().state_lock(&Path::new(HERE).join("agent.lock")).unwrap();
        assert!(lock.is_some());
        let before = fake.snapshot();
        let (mut host, instance) = (fake.another(), Instance::new(Path::new(THERE)));
        let specs = parse("groups.toml", SECOND).unwrap();
        let mut journal = instance.open_journal(&mut host).unwrap();
        let (_, outcome) = enforce(&instance, &mut host, &PlanRequest::all(&specs), &mut journal).unwrap();
        let why = outcome.failure.unwrap().refusal.to_string();
        assert!(
            why.contains("is managed by another running commensal, whose state directory is /state/here"),
            "{kind}: {why}"
        );
        assert_eq!(fake.snapshot(), before, "{kind}");
    }
}

/// Only one commensal at a time manages the cgroups of a kernel; others are told which one it is.
// promise 20
#[test]
fn one_commensal_keeps_a_kernel() {
    for kind in ["v1", "v2", "hybrid"] {
        let fake = two(kind);
        let be_master = |state: &str| Instance::new(Path::new(state)).be_master(&mut fake.another()).unwrap();
        let Mastery::Ours(lock) = be_master(HERE) else { panic!("{kind}: nobody else is there") };
        let Mastery::Others(Some(master)) = be_master(THERE) else { panic!("{kind}: somebody is there") };
        assert_eq!((master.state_dir.as_path(), master.pid), (Path::new(HERE), std::process::id()), "{kind}");
        drop(lock);
        assert!(matches!(be_master(THERE), Mastery::Ours(_)), "{kind}: it is free again");
    }
}

/// A write that is refused although the value is in force, whichever it is: its original stays known.
// promise 20
#[test]
fn a_refused_value_that_is_in_force_keeps_its_original() {
    let mut tried = 0;
    for world in cases() {
        let before = see(&(world.machine)());
        let writes = prepared(&world, world.texts.len()).mutations();
        let writes =
            writes.into_iter().filter(|one| one.operation == "write" && !one.path.ends_with("procs"));
        let distinct: std::collections::BTreeSet<(String, String)> =
            writes.map(|one| (one.path, one.value)).collect();
        for (path, value) in distinct {
            let fake = (world.machine)();
            let effect = Effect::FailsAfter(Errno::EIO);
            let trouble =
                Trouble { operation: "write", path: path.clone(), value: Some(value), effect, lasts: true };
            fake.trouble(trouble);
            for text in &world.texts {
                let instance = Instance::new(Path::new(STATE));
                let Ok(mut journal) = instance.open_journal(&mut fake.another()) else { continue };
                let specs = parse("groups.toml", text).unwrap();
                let _ = enforce(&instance, &mut fake.another(), &PlanRequest::all(&specs), &mut journal);
            }
            fake.no_trouble();
            restored_is(&fake, &before, &format!("{}: {path}", world.name));
            tried += 1;
        }
    }
    assert!(tried > 100, "only {tried} writes");
}

/// What a lost commensal had marked is nobody's original any more once it was put back.
// promise 20
#[test]
fn marks_of_a_lost_commensal_go_with_its_limits() {
    for kind in ["v1", "v2", "hybrid"] {
        let fake = two(kind);
        put_in_force(&fake, HERE, FIRST, false);
        fake.another().state_remove_all(Path::new(HERE)).unwrap();
        let there = Instance::new(Path::new(THERE));
        there.restore(&mut fake.another(), &[]).unwrap();
        // The owner has a value of its own from now on, and a controller.
        let mut host = fake.another();
        let (mount, file, value) = match kind {
            "v2" => ("/sys/fs/cgroup", "cpu.weight", "77"),
            _ => ("/sys/fs/cgroup/cpu", "cpu.shares", "777"),
        };
        let root = host.open(Path::new(mount)).unwrap();
        if kind == "v2" {
            host.write(root, "cgroup.subtree_control", "+cpu").unwrap();
        }
        let dir = host.open(&Path::new(mount).join("batch")).unwrap();
        host.write(dir, file, value).unwrap();
        let own = see(&fake);
        let again = there.restore(&mut fake.another(), &[]).unwrap();
        assert!(again.nothing(), "{kind}: {again:?}");
        same(&see(&fake), &own, kind);
        put_in_force(&fake, THERE, SECOND, true);
        there.restore(&mut fake.another(), &[]).unwrap();
        same(&see(&fake), &own, kind);
    }
}

/// Root's commensals are one, wherever each makes its groups.
// promise 20
#[test]
fn two_masters_with_groups_in_different_places() {
    let fake = two("v2");
    let mut host = fake.another();
    let root = host.open(Path::new("/sys/fs/cgroup")).unwrap();
    host.mkdir(root, "x").unwrap();
    let of = |state: &str, root: Option<&str>| Instance {
        cgroup_root: root.map(CgroupPath::new),
        ..Instance::new(Path::new(state))
    };
    for (first, second) in [(Some("/x"), None), (None, Some("/x")), (Some("/x"), Some("/batch"))] {
        let (mut one, mut two) = (fake.another(), fake.another());
        let held = of(HERE, first).be_master(&mut one).unwrap();
        assert!(matches!(held, Mastery::Ours(_)), "{first:?}");
        let other = of(THERE, second).be_master(&mut two).unwrap();
        assert!(matches!(other, Mastery::Others(_)), "{first:?} {second:?}: {other:?}");
    }
}

/// On cgroup v2 the files of a group that exists may appear only when the plan enables their controller: what was there
/// before is then the kernel's default.
// promise 9
#[test]
fn limits_of_a_group_whose_controllers_are_not_enabled_yet() {
    let limits = [
        "cpu.max = \"50 %\"",
        "cpu.weight = 50",
        "memory.max = \"1 GiB\"",
        "memory.high = \"1 GiB\"",
        "pids.max = 77",
        "io.weight = 50\nio.cost = true",
        "io.read = \"10 MiB/s\"",
        "io.write-iops = \"100 iops\"",
        "cpu.set = \"0\"",
    ];
    for class in ["online", "offline"] {
        // Online groups have no quota.
        for limit in limits.into_iter().filter(|limit| class == "offline" || !limit.contains("cpu.max")) {
            for above in ["", "/above"] {
                let fake = FakeHost::v2(4, 8 << 30);
                let mut host = fake.another();
                let mut dir = host.open(Path::new("/sys/fs/cgroup")).unwrap();
                for name in above.split('/').filter(|name| !name.is_empty()) {
                    dir = host.mkdir(dir, name).unwrap();
                }
                host.mkdir(dir, "theirs").unwrap();
                let before = see(&fake);
                let text = format!(
                    "[group.one]\nclass = \"{class}\"\nmatch = [{{ cgroup = \"{above}/theirs\" }}]\n{limit}\n"
                );
                let what = format!("{class} {limit} below {above:?}");
                let (_, plan, outcome) = applied(&mut host, &text);
                assert!(outcome.failure.is_none(), "{what}: {:?}", outcome.failure);
                assert!(see(&fake) != before && !plan.is_empty(), "{what}: {:?}", plan.unmet);
                restored_is(&fake, &before, &what);
            }
        }
    }
}

/// While a group is idle, its weight file shows a placeholder, which is no original. That it is idle may not be known: a
/// read of `cpu.idle` that fails refuses the step.
// promise 9
#[test]
fn the_placeholder_of_an_idle_group_is_no_original() {
    for (fake, mount, weight, shown, default) in [
        (FakeHost::v1(4, 8 << 30), "/sys/fs/cgroup/cpu", "cpu.shares", "3", "1024"),
        (FakeHost::v2(4, 8 << 30), "/sys/fs/cgroup", "cpu.weight", "1", "100"),
    ] {
        let mut host = fake.another();
        let root = host.open(Path::new(mount)).unwrap();
        if weight == "cpu.weight" {
            host.write(root, "cgroup.subtree_control", "+cpu").unwrap();
        }
        let group = host.mkdir(root, "batch").unwrap();
        host.write(group, "cpu.idle", "1").unwrap();
        assert_eq!(host.read(group, weight).unwrap().trim(), shown);
        let text = "[group.etl]\nclass = \"offline\"\nmatch = [{ cgroup = \"/batch\" }]\n";
        let (found, _) = planned(&mut host, text).unwrap();
        let place = found.cgroups.keys().find(|place| place.path.as_str() == "/batch").unwrap().clone();
        let (from, to) = (Value::Number(shown.parse().unwrap()), Value::Number(2));
        let action = Action::Write { knob: KnobId::CpuWeight, device: None, from, to };
        let steps = [Step { place, action, why: String::new() }];
        for errno in [Errno::EIO, Errno::ENOMEM, Errno::EMFILE] {
            let path = format!("{mount}/batch/cpu.idle");
            let effect = Effect::Fails(errno);
            fake.trouble(Trouble { operation: "read", path, value: None, effect, lasts: true });
            let mut journal = support::journal(&mut host).unwrap();
            let outcome = commensal_reconcile::apply(&mut host, &steps, &found, &mut journal);
            assert!(outcome.failure.is_some(), "{errno}: a weight was put on record that nobody knows");
            assert!(fake.no_trouble() > 0);
            assert!(!recorded(&fake).contains("cpu.weight"), "{errno}: {}", recorded(&fake));
        }
        // The kernel refuses the weight of an idle group, and the record is dropped again: look at what was journalled.
        let since = fake.mutations().len();
        let mut journal = support::journal(&mut host).unwrap();
        let outcome = commensal_reconcile::apply(&mut host, &steps, &found, &mut journal);
        assert!(outcome.failure.is_some());
        let journalled: String = fake.mutations()[since..]
            .iter()
            .filter(|one| one.path.contains("journal"))
            .map(|one| one.value.as_str())
            .collect();
        assert!(journalled.contains("\"knob\":\"cpu.weight\""), "{journalled}");
        assert!(journalled.contains(&format!("\"value\":\"{default}\"")), "{journalled}");
    }
}

/// A weight cannot be put back while its group is idle. If the record of `cpu.idle` is lost, `restore` ends it all the
/// same, and says so only if the file reads 0 afterwards.
// promise 9
#[test]
fn a_group_that_is_idle_without_a_record_of_it_gets_its_weight_back() {
    for (fake, mount, file, value) in [
        (FakeHost::v1(4, 8 << 30), "/sys/fs/cgroup/cpu", "cpu.shares", "512"),
        (FakeHost::v2(4, 8 << 30), "/sys/fs/cgroup", "cpu.weight", "77"),
    ] {
        let mut host = fake.another();
        let root = host.open(Path::new(mount)).unwrap();
        if file == "cpu.weight" {
            host.write(root, "cgroup.subtree_control", "+cpu").unwrap();
        }
        let dir = host.mkdir(root, "batch").unwrap();
        let group = Target { mount: mount.to_owned(), path: "/batch".to_owned(), inode: dir.inode };
        let (knob, value) = ("cpu.weight".to_owned(), value.to_owned());
        let record = Original { group, knob, file: file.to_owned(), device: None, value: value.clone() };
        let mut journal = support::journal(&mut host).unwrap();
        journal.append(&mut host, &[Record::Original(record)]).unwrap();
        host.write(dir, "cpu.idle", "1").unwrap();
        let path = format!("{mount}/batch/cpu.idle");
        fake.trouble(Trouble { operation: "write", path, value: None, effect: Effect::Ignored, lasts: true });
        let refused = restored(&mut host);
        assert!(fake.no_trouble() > 0);
        assert!(refused.done.is_empty(), "{refused:?}");
        assert!(refused.failed.iter().any(|line| line.contains("cpu.idle")), "{refused:?}");
        let back = restored(&mut host);
        assert!(back.failed.is_empty() && back.done.len() == 2, "{back:?}");
        let read = |host: &mut FakeHost, file: &str| host.read(dir, file).unwrap().trim().to_owned();
        assert_eq!((read(&mut host, "cpu.idle"), read(&mut host, file)), ("0".to_owned(), value));
    }
}

fn recorded(fake: &FakeHost) -> String {
    fake.another().state_read(&journal()).unwrap().unwrap_or_default()
}

/// The cgroups in which a plan changes something are known as kept in force until `restore`, and so are those below them;
/// before and afterwards none is.
#[test]
fn what_is_kept_in_force_is_seen_at_the_group_and_below() {
    for world in plain().into_iter().chain(limits()) {
        let fake = prepared(&world, 0);
        let kept = |path: &CgroupPath| kept_in_force(&mut fake.another(), path).unwrap();
        let (_, plan) = planned(&mut fake.another(), &world.texts[0]).unwrap();
        let changed = |step: &Step| match &step.action {
            Action::Write { .. } => Some(step.place.path.clone()),
            _ => None,
        };
        let changed: Vec<CgroupPath> = plan.steps.iter().filter_map(changed).collect();
        assert!(!changed.is_empty(), "{}", world.name);
        for path in &changed {
            assert_eq!(kept(path), None, "{}: {path} before", world.name);
        }
        applied(&mut fake.another(), &world.texts[0]);
        for path in changed.iter().filter(|path| **path != CgroupPath::root()) {
            assert_eq!(kept(path).as_ref(), Some(path), "{}: {path}", world.name);
            assert_eq!(kept(&path.child("below")).as_ref(), Some(path), "{}: below {path}", world.name);
        }
        assert_eq!(kept(&CgroupPath::root()), None, "{}: the root isolates nobody", world.name);
        support::instance().restore(&mut fake.another(), &[]).unwrap();
        for path in &changed {
            assert_eq!(kept(path), None, "{}: {path} after restore", world.name);
        }
    }
}
