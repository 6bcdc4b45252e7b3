//! Originals are kept twice, in the journal and on the cgroups: whatever is lost of the one is in the other, and no commensal takes
//! the limit of another for an original.

use crate::crash::{MachineState, World, limits, moved, plain, prepared, same, see};
use crate::support::STATE;
use commensal_core::config::parse;
use commensal_host::Host;
use commensal_host::fake::FakeHost;
use commensal_reconcile::{Instance, Mastery, PlanRequest, Reconciler, enforce};
use std::path::{Path, PathBuf};

/// The worlds in which everything that is changed is of a cgroup.
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

/// Something that happens to a journal; `None` when there is no such line.
pub type Damage = fn(text: &str, line: usize) -> Option<String>;

/// Each line damaged, cut off with everything after it, or taken out; and everything twice.
pub const DAMAGES: [(&str, Damage); 4] = [
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

// promise 14
#[test]
fn whatever_happens_to_a_journal_loses_nothing() {
    let mut tried = 0;
    for world in cases() {
        let before = see(&(world.machine)());
        let calm = prepared(&world, world.texts.len());
        let text = calm.another().state_read(&journal()).unwrap().unwrap();
        for (what, damage) in DAMAGES {
            for line in 0.. {
                let Some(text) = damage(&text, line) else { break };
                let fake = calm.copy();
                fake.another().state_replace(&journal(), &text).unwrap();
                restored_is(&fake, &before, &format!("{}: {what} {line}", world.name));
                tried += 1;
            }
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

/// Two texts for the same groups of somebody else.
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

/// Puts a text in force in the name of a state directory, at once or as an agent does.
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

/// One after the other, in every order, once or again and again, with every order of restores, and with one state directory lost:
/// what was there first is there in the end.
// promise 74
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

/// The owner of a value that runs is not written over: the plan is refused as a whole, and says who it is.
// promise 74
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
        assert!(why.contains("is kept by the commensal whose state is in /state/here"), "{kind}: {why}");
        assert_eq!(fake.snapshot(), before, "{kind}");
    }
}

/// One at a time keeps the cgroups of a kernel, and the others are told who.
// promise 74
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
