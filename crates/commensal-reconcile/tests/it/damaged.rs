//! Damaged marks (copies of journal records on the cgroups): no damage leaves a change in force without a word.

use crate::crash::{Act, MachineState, World, prepared, see};
use crate::support::STATE;
use commensal_core::errno::Errno;
use commensal_host::Host;
use commensal_host::fake::{Effect, FakeHost, Trouble};
use commensal_reconcile::{Instance, Restored};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A mark: its cgroup, its attribute's name and text.
type Attribute = (PathBuf, String, String);

fn attributes(fake: &FakeHost) -> Vec<Attribute> {
    fn within(host: &mut FakeHost, path: &Path, found: &mut Vec<Attribute>) {
        let dir = host.open(path).unwrap();
        for name in host.attributes(dir, "trusted.commensal.").unwrap() {
            let text = host.attribute(dir, &name).unwrap().unwrap();
            found.push((path.to_owned(), name, text));
        }
        for child in host.children(dir).unwrap() {
            within(host, &path.join(child), found);
        }
        host.close(dir);
    }
    let (mut host, mut found) = (fake.another(), Vec::new());
    for hierarchy in commensal_sensors::mounts::hierarchies(&mut host).unwrap() {
        within(&mut host, Path::new(&hierarchy.mount), &mut found);
    }
    found
}

/// What the name of an attribute says of its contents, without process, checksum and device.
fn kind(name: &str) -> String {
    let name = name.trim_start_matches("trusted.commensal.");
    let name = name.split('@').next().unwrap_or_default();
    match name.split_once('.') {
        Some((kind @ ("moving" | "creating"), _)) => kind.to_owned(),
        _ => name.to_owned(),
    }
}

/// Whether a change of this kind is undone only where a readable mark proves that commensal made it.
fn is_proof(name: &str) -> bool {
    let kind = kind(name);
    kind == "original.cpu.qos_level"
        || ["created", "cookied", "enabling", "moving", "creating"].iter().any(|one| kind.starts_with(one))
}

/// What has happened to a mark.
#[derive(Debug, Clone)]
enum Damage {
    Text(String),
    Unreadable(Errno),
}

/// Every third byte of a text flipped, and the text cut at every sixteenth byte.
fn all_along(text: &str) -> Vec<(String, Damage)> {
    let lossy = |bytes: &[u8]| Damage::Text(String::from_utf8_lossy(bytes).into_owned());
    let flip = |at: usize| {
        let mut bytes = text.as_bytes().to_owned();
        bytes[at] ^= 1 << (at % 8);
        (format!("byte {at} flipped"), lossy(&bytes))
    };
    let cut = |at: usize| (format!("cut at {at}"), lossy(&text.as_bytes()[..at]));
    (0..text.len()).step_by(3).map(flip).chain((0..text.len()).step_by(16).map(cut)).collect()
}

/// Every kind of damage, once.
fn kinds_of_damage(text: &str) -> Vec<(String, Damage)> {
    let middle = text.len() / 2;
    let mut flipped = text.as_bytes().to_owned();
    flipped[middle] ^= 1;
    let texts = [
        ("empty", String::new()),
        ("cut", text[..middle].to_owned()),
        ("a byte flipped", String::from_utf8_lossy(&flipped).into_owned()),
        ("twice", text.repeat(2)),
        ("too long", format!("{text}{}", "x".repeat(60_000))),
        ("of a later version", text.replacen("\"record\":{\"", "\"record\":{\"later-", 1)),
        ("another value", text.replace("\"value\":\"", "\"value\":\"1")),
        ("another owner", text.replace("\"owner\":\"", "\"owner\":\"/other")),
        ("another journal", text.replace("\"journal\":\"", "\"journal\":\"other")),
        ("no record", "{}".to_owned()),
        ("nothing", "null".to_owned()),
    ];
    let changed = texts.into_iter().filter(|(_, changed)| changed != text);
    let texts = changed.map(|(what, text)| (what.to_owned(), Damage::Text(text)));
    let errnos = [Errno::EIO, Errno::ENOMEM, Errno::EACCES, Errno::EPERM, Errno::E2BIG, Errno::ERANGE];
    texts.chain(errnos.map(|errno| (format!("{errno}"), Damage::Unreadable(errno)))).collect()
}

fn restored(fake: &FakeHost) -> Restored {
    Instance::new(Path::new(STATE)).restore(&mut fake.another(), &[]).unwrap()
}

/// What happens between the damage and the restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Between {
    Nothing,
    JournalLost,
    /// The journal is lost, and the groups are applied again.
    LostAndApplied,
    /// The journal is lost, and an agent puts the groups in force again.
    LostAndKept,
}

const BETWEEN: [Between; 4] =
    [Between::Nothing, Between::JournalLost, Between::LostAndApplied, Between::LostAndKept];

/// Damages one mark, and restores twice: either the machine is as before, or both restores name the mark and its cgroup.
/// With the journal lost, every restore names a mark that is still there.
fn attack(
    Scene { world, calm, before, without_journal }: &Scene,
    (group, name, damage): (&PathBuf, &str, &Damage),
    between: Between,
    what: &str,
) {
    let fake = calm.copy();
    match damage {
        Damage::Text(text) => fake.give_attribute(group, name, text),
        Damage::Unreadable(errno) => {
            let (path, value) = (group.display().to_string(), Some(name.to_owned()));
            fake.trouble(Trouble {
                operation: "attribute",
                path,
                value,
                effect: Effect::Fails(*errno),
                lasts: true,
            });
        }
    }
    if between != Between::Nothing {
        fake.another().state_remove_all(Path::new(STATE)).unwrap();
    }
    let last = world.texts.len() - 1;
    let act = match between {
        Between::Nothing | Between::JournalLost => None,
        Between::LostAndApplied => Some(Act::Apply(last)),
        Between::LostAndKept => Some(Act::Round(last)),
    };
    // A refusal is an answer as well.
    act.map(|act| act.run(&mut fake.another(), &world.texts));
    for turn in ["first", "second"] {
        let back = restored(&fake);
        let group = group.to_string_lossy();
        let mut lines = back.left.iter().chain(&back.failed);
        let told = lines.any(|line| line.contains(name) && line.contains(&*group));
        let now = see(&fake);
        let is_back = now == *before || (between == Between::JournalLost && now == *without_journal);
        let about =
            format!("{}: {name} of {group}, {what}, {between:?}, {turn} restore: {back:?}", world.name);
        assert!(is_back || told, "{about}");
        // The journal has the record as well.
        let readable = matches!(damage, Damage::Text(_));
        assert!(is_back || between != Between::Nothing || is_proof(name) || !readable, "{about}");
        let mut host = fake.another();
        let dir = host.open(Path::new(&*group)).ok();
        let stays = dir.is_some_and(|dir| host.attributes(dir, name).unwrap() == [name]);
        assert!(told || !stays, "{about}");
        if between == Between::JournalLost && stays {
            // An attribute that cannot be read can make another step fail as well.
            assert!(!back.nothing() && (back.failed.is_empty() || !readable), "{about}");
        }
    }
}

/// A machine with groups in force, and what comes of it.
struct Scene {
    world: World,
    calm: FakeHost,
    /// The machine before any groups file.
    before: MachineState,
    /// The machine after a restore without the journal and with all marks: a machine-wide switch has no mark.
    without_journal: MachineState,
}

fn scenes() -> impl Iterator<Item = Scene> {
    crate::crash::worlds().into_iter().map(|world| {
        let before = see(&(world.machine)());
        let calm = prepared(&world, world.texts.len());
        let lost = calm.copy();
        lost.another().state_remove_all(Path::new(STATE)).unwrap();
        restored(&lost);
        Scene { without_journal: see(&lost), world, calm, before }
    })
}

/// Kinds of marks x kinds of damage x journal, on every kind of machine; with the journal lost, also all along the text
/// of each kind of mark.
// promise 12
#[test]
fn a_damaged_mark_is_never_passed_over() {
    let (mut kinds, mut tried) = (BTreeSet::new(), 0);
    for scene in scenes() {
        let mut here = BTreeSet::new();
        for (group, name, text) in attributes(&scene.calm) {
            if !here.insert(kind(&name)) {
                continue;
            }
            // What `apply` and an agent do in between does not depend on the machine.
            let first = kinds.insert(kind(&name));
            let between = if first { &BETWEEN[..] } else { &BETWEEN[..2] };
            for (what, damage) in kinds_of_damage(&text) {
                for between in between {
                    attack(&scene, (&group, &name, &damage), *between, &what);
                    tried += 1;
                }
            }
            for (what, damage) in all_along(&text).into_iter().filter(|_| first) {
                attack(&scene, (&group, &name, &damage), Between::JournalLost, &what);
                tried += 1;
            }
        }
    }
    println!("{tried} attacks on {} kinds of marks: {kinds:?}", kinds.len());
    assert!(kinds.len() > 10 && tried > 2_000, "only {tried} attacks on {kinds:?}");
}
