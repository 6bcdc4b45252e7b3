//! The safe state is reached from the records alone: in every world, after every moment at which an agent can die, and
//! with every possible damage. The expected state is computed independently: a plan of the safe groups must find
//! nothing to do.

use crate::crash::{World, same, see, worlds};
use crate::originals::damaged;
use crate::support::STATE;
use commensal_core::config::parse;
use commensal_core::desired::DesiredState;
use commensal_core::errno::Errno;
use commensal_core::group::{Class, GroupSpec};
use commensal_core::knob::Value;
use commensal_core::plan::{Action, Step};
use commensal_core::safe::safe;
use commensal_host::Host;
use commensal_host::fake::{Effect, FakeHost, Trouble};
use commensal_reconcile::journal::{self, Creating, Journal, Original, Owner, Record, Safe};
use commensal_reconcile::{
    Instance, PlanRequest, Reconciler, Round, SafeRequest, SafeState, bring_safe_state,
};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// A lease of zero, so that the lock is not waited for.
const NO_TIME: Duration = Duration::ZERO;

fn instance() -> Instance {
    Instance::new(Path::new(STATE))
}

/// Runs one round of an agent with these groups.
fn round(host: &mut FakeHost, specs: &[GroupSpec]) -> Option<Round> {
    adjusted_round(host, specs, &|_| {})
}

/// Runs one round in which a canary has removed isolation.
fn round_without_isolation(host: &mut FakeHost, specs: &[GroupSpec]) -> Option<Round> {
    adjusted_round(host, specs, &|desired| {
        let written = desired.clone();
        desired.without_isolation(&written);
    })
}

fn adjusted_round(
    host: &mut FakeHost,
    specs: &[GroupSpec],
    adjust: &dyn Fn(&mut DesiredState),
) -> Option<Round> {
    host.state_dir(Path::new(STATE)).ok()?;
    let safe_specs = safe(specs);
    let safe = Some(SafeRequest { specs: &safe_specs, floor: None });
    let request = PlanRequest { safe, kept: true, adjust, ..PlanRequest::all(specs) };
    Reconciler::new(instance(), host).and_then(|mut one| one.round(host, 0, &request)).ok()
}

fn bring(fake: &FakeHost) -> SafeState {
    bring_safe_state(&mut fake.another(), Path::new(STATE), NO_TIME)
}

/// Returns the values that a plan of the safe groups would still write.
fn still_to_write(fake: &FakeHost, specs: &[GroupSpec]) -> Vec<(Step, String)> {
    let mut host = fake.another();
    let survey = instance().survey(&mut host).unwrap();
    let safe_specs = safe(specs);
    let planned = instance().plan(&mut host, &survey, &PlanRequest::all(&safe_specs)).unwrap();
    let is_write = |step: &&Step| matches!(step.action, Action::Write { .. } | Action::Irreversible { .. });
    let steps: Vec<Step> = planned.plan.steps.iter().filter(is_write).cloned().collect();
    let said = |step: &Step| format!("{}: {}", step.describe(&planned.actual), step.why);
    steps.into_iter().map(|step| (step.clone(), said(&step))).collect()
}

/// Returns all groups files of all worlds, and once more with offline groups whose safe state is their originals.
fn cases() -> Vec<(World, Vec<Vec<GroupSpec>>)> {
    let read = |text: &String| parse("groups.toml", text).unwrap();
    let give_back = |mut specs: Vec<GroupSpec>| {
        for spec in specs.iter_mut().filter(|spec| spec.class == Class::Offline) {
            spec.safe_state = commensal_core::group::SafeState::Restore;
        }
        specs
    };
    let all = worlds().into_iter().map(|world| {
        let as_written: Vec<_> = world.texts.iter().map(read).collect();
        let given_back = as_written.iter().cloned().map(give_back);
        let specs = as_written.iter().cloned().chain(given_back).collect();
        (world, specs)
    });
    all.collect()
}

fn said(steps: &[(Step, String)]) -> String {
    steps.iter().map(|(_, said)| said.as_str()).collect::<Vec<_>>().join("\n")
}

// promise 21
#[test]
fn it_is_what_a_plan_would_bring() {
    let mut held = 0;
    for (world, specs) in cases() {
        let fake = (world.machine)();
        for (number, specs) in specs.iter().enumerate() {
            let what = format!("{}: groups {number}", world.name);
            round(&mut fake.another(), specs).unwrap_or_else(|| panic!("{what}"));
            let state = bring(&fake);
            let one_way = |failed: &String| failed.contains("qos_level");
            assert!(state.failed.iter().all(one_way), "{what}: {:?}", state.failed);
            let open = still_to_write(&fake, specs);
            assert!(open.is_empty(), "{what}:\n{}", said(&open));
            held += state.held;
            let again = bring(&fake);
            assert_eq!(again.written, 0, "{what}: {again:?}");
        }
    }
    assert!(held > 100, "{held}");
}

/// Returns the values of online groups that a plan would still restore to their originals.
fn still_limited(fake: &FakeHost, specs: &[GroupSpec]) -> Vec<String> {
    let online = |step: &Step| {
        specs
            .iter()
            .any(|spec| spec.class == Class::Online && step.place.path.as_str().contains(spec.name.as_str()))
    };
    let all = still_to_write(fake, specs);
    // A v1 cpuset that was just created has no CPUs, and no process can be in it.
    let new = |step: &Step| matches!(&step.action, Action::Write { from: Value::List(cpus), .. } if cpus.is_empty());
    let is_limit = |step: &Step| step.why.starts_with("no longer wanted") && online(step) && !new(step);
    let back = all.into_iter().filter(|(step, _)| is_limit(step));
    back.map(|(_, said)| said).collect()
}

/// No limit is left on an online group, after whichever change the agent is killed.
// promise 21
#[test]
fn online_groups_are_free_after_every_moment_of_death() {
    let mut limited = 0;
    for (world, specs) in cases() {
        let texts = world.texts.len();
        for number in 0..texts {
            let mut n = 1;
            loop {
                let fake = (world.machine)();
                for specs in &specs[..number] {
                    round(&mut fake.another(), specs).unwrap();
                }
                fake.another().state_dir(Path::new(STATE)).unwrap();
                fake.crash_after(n);
                let _ = round(&mut fake.another(), &specs[number]);
                if !fake.is_crashed() {
                    break;
                }
                let fake = fake.restart();
                let what = format!("{}: groups {number}, killed after change {n}", world.name);
                limited += still_limited(&fake, &specs[number]).len();
                let state = bring(&fake);
                let one_way = |failed: &String| failed.contains("qos_level");
                assert!(state.failed.iter().all(one_way), "{what}: {:?}", state.failed);
                // The safe state is that of the new groups, or still that of the old ones.
                let of_old = |number: usize| still_limited(&fake, &specs[number]).is_empty();
                let old = number.checked_sub(1).is_some_and(of_old);
                let left = still_limited(&fake, &specs[number]);
                assert!(left.is_empty() || old, "{what}:\n{}", left.join("\n"));
                // `restore` does the rest, because it finds the originals.
                n += 1;
            }
            assert!(n > 2, "{}: groups {number}", world.name);
        }
    }
    assert!(limited > 100, "only {limited} limits were there to be lifted");
}

/// The agent is killed at every change while it removes isolation for a canary. The guard puts isolation back, and the
/// next agent can remove it again, because it knows the same originals.
// promise 21
#[test]
fn isolation_can_be_removed_again_after_every_moment_of_death() {
    let mut moments = 0;
    for (world, specs) in cases() {
        // No canary starts where `cpu.qos_level` is the mechanism.
        if (world.machine)().snapshot().iter().any(|(path, _)| path.ends_with("cpu.qos_level")) {
            continue;
        }
        for (number, specs) in specs.iter().enumerate().take(world.texts.len()) {
            let what = format!("{}: groups {number}", world.name);
            let calm = (world.machine)();
            let start = see(&calm);
            round(&mut calm.another(), specs).unwrap();
            round_without_isolation(&mut calm.another(), specs).unwrap();
            let expected = see(&calm);
            for n in 1.. {
                let fake = (world.machine)();
                round(&mut fake.another(), specs).unwrap();
                fake.crash_after(n);
                let _ = round_without_isolation(&mut fake.another(), specs);
                if !fake.is_crashed() {
                    break;
                }
                let (fake, what) = (fake.restart(), format!("{what}, killed after change {n}"));
                let state = bring(&fake);
                let one_way = |failed: &String| failed.contains("qos_level");
                assert!(state.failed.iter().all(one_way), "{what}: {:?}", state.failed);
                let on = round(&mut fake.another(), specs).unwrap();
                assert_eq!(on.problems, Vec::<String>::new(), "{what}");
                round_without_isolation(&mut fake.another(), specs).unwrap();
                same(&see(&fake), &expected, &what);
                instance().restore(&mut fake.another(), &[]).unwrap();
                same(&see(&fake), &start, &format!("{what}, restored"));
                moments += 1;
            }
        }
    }
    assert!(moments > 100, "only {moments} moments");
}

/// An agent planned the smallest weight for a group that was idle, because `cpu.idle` was refused, and died before it
/// wrote. The guard does not take the placeholder that an idle group shows for its weight.
// promises 11, 21
#[test]
fn the_weight_that_an_idle_group_shows_is_no_original() {
    for (machine, mount, file) in [
        (FakeHost::v1 as fn(u32, u64) -> FakeHost, "/sys/fs/cgroup/cpu", "cpu.shares"),
        (FakeHost::v2, "/sys/fs/cgroup", "cpu.weight"),
    ] {
        let fake = machine(2, 1 << 30);
        let mut host = fake.another();
        let root = host.open(Path::new(mount)).unwrap();
        let dir = host.mkdir(root, "batch").unwrap();
        let before = see(&fake);
        let text = "[group.batch]\nclass = \"offline\"\nmatch = [{ cgroup = \"/batch\" }]\n";
        round(&mut fake.another(), &parse("groups.toml", text).unwrap()).unwrap();
        assert_eq!(host.read(dir, "cpu.idle").unwrap().trim(), "1", "{file}");
        let shown = host.read(dir, file).unwrap();
        let setting = Original {
            group: journal::Target { mount: mount.to_owned(), path: "/batch".to_owned(), inode: dir.inode },
            knob: "cpu.weight".to_owned(),
            file: file.to_owned(),
            device: None,
            value: "2".to_owned(),
        };
        let record = Record::Safe(Safe { setting, online: false });
        let path = Path::new(STATE).join("machine.journal");
        host.state_append(&path, &journal::line(&record)).unwrap();
        bring(&fake);
        let kept = journal::parse(&host.state_read(&path).unwrap().unwrap()).records;
        let is_shown = |one: &Record| matches!(one, Record::Original(Original { knob, value, .. }) if knob == "cpu.weight" && value.trim() == shown.trim());
        assert!(!kept.iter().any(is_shown), "{file}: {kept:?}");
        let restored = instance().restore(&mut fake.another(), &[]).unwrap();
        assert!(restored.failed.is_empty(), "{file}: {restored:?}");
        same(&see(&fake), &before, file);
    }
}

/// Returns the names of the control files that a round wrote.
fn files(fake: &FakeHost, since: usize) -> BTreeSet<String> {
    let scratch = format!("/{}", instance().scratch);
    let writes = fake.mutations().into_iter().skip(since);
    let writes = writes.filter(|one| one.operation == "write" && !one.path.contains(&scratch));
    writes.filter_map(|one| Some(one.path.rsplit_once('/')?.1.to_owned())).collect()
}

/// Each file of each world refuses all writes, in every way in which the kernel refuses: all other values are put in
/// force, and the refused ones are reported.
// promise 21
#[test]
fn one_refused_file_holds_up_no_other() {
    const ERRNOS: [Errno; 9] = [
        Errno::EACCES,
        Errno::EBUSY,
        Errno::EINVAL,
        Errno::EIO,
        Errno::ENODEV,
        Errno::ENOENT,
        Errno::ENOSPC,
        Errno::EPERM,
        Errno::ETIMEDOUT,
    ];
    let mut refused = 0;
    for (world, specs) in cases() {
        let specs = &specs[world.texts.len()];
        let calm = (world.machine)();
        let since = calm.mutations().len();
        round(&mut calm.another(), specs).unwrap();
        for (number, file) in files(&calm, since).into_iter().enumerate() {
            let errno = ERRNOS[(number + refused) % ERRNOS.len()];
            let what = format!("{}: {file} says {errno}", world.name);
            let fake = (world.machine)();
            round(&mut fake.another(), specs).unwrap();
            fake.refuse_file(&file, errno);
            let state = bring(&fake);
            fake.refuse_nothing();
            let left = still_to_write(&fake, specs);
            // A weight cannot be written as long as the group is idle.
            let idle = |text: &str| {
                file == "cpu.idle" && (text.contains("cpu.shares") || text.contains("cpu.weight"))
            };
            let named = |text: &str| text.contains(&file) || text.contains("qos_level") || idle(text);
            assert!(state.failed.iter().all(|failed| named(failed)), "{what}: {:?}", state.failed);
            assert!(left.iter().all(|(_, said)| named(said)), "{what}:\n{}", said(&left));
            assert!(left.is_empty() || !state.failed.is_empty(), "{what}: not told:\n{}", said(&left));
            refused += state.failed.len();
        }
    }
    assert!(refused > 20, "{refused}");
}

/// The agent dies while something outside the groups is broken: damage to each line of the journal, no journal, no
/// state directory, a full disk, or another process that holds the lock. No limit is left on an online group, and all
/// other values are as required.
// promise 21
#[test]
fn nothing_beside_the_groups_holds_it_up() {
    let mut limited = 0;
    let mut check = |fake: &FakeHost, specs: &[GroupSpec], what: &str| {
        limited += still_limited(fake, specs).len();
        bring(fake);
        let open = still_to_write(fake, specs);
        assert!(open.is_empty(), "{what}:\n{}", said(&open));
    };
    for (world, specs) in cases().into_iter().filter(|(world, _)| !world.name.contains("openEuler")) {
        let specs = &specs[0];
        let calm = (world.machine)();
        round(&mut calm.another(), specs).unwrap();
        let journal = Path::new(STATE).join("machine.journal");
        let text = calm.another().state_read(&journal).unwrap().unwrap();
        for (what, text) in damaged(&text) {
            let fake = calm.copy();
            fake.another().state_replace(&journal, &text).unwrap();
            check(&fake, specs, &format!("{}: {what}", world.name));
        }
        let fake = calm.copy();
        fake.another().state_remove(&journal).unwrap();
        check(&fake, specs, &format!("{}: no journal", world.name));
        let fake = calm.copy();
        fake.another().state_remove_all(Path::new(STATE)).unwrap();
        check(&fake, specs, &format!("{}: no state directory", world.name));
        let fake = calm.copy();
        fake.state_full(true);
        check(&fake, specs, &format!("{}: a full disk", world.name));
        let fake = calm.copy();
        let lock = fake.another().state_lock(&Path::new(STATE).join("lock")).unwrap();
        assert!(lock.is_some());
        check(&fake, specs, &format!("{}: somebody holds the lock", world.name));
    }
    assert!(limited > 500, "only {limited} limits were there to be lifted");
}

/// The journal is lost while no agent runs: the next agent does not take values in force for originals.
// promises 11, 21
#[test]
fn what_a_lost_journal_had_is_known_to_the_next_agent() {
    type Losing = fn(&mut FakeHost);
    let ways: [(&str, Losing); 3] = [
        ("removed", |host| host.state_remove(&Path::new(STATE).join("machine.journal")).unwrap()),
        ("emptied", |host| host.state_replace(&Path::new(STATE).join("machine.journal"), "").unwrap()),
        ("its directory removed", |host| host.state_remove_all(Path::new(STATE)).unwrap()),
    ];
    for (world, texts) in cases() {
        for (specs, (how, lose)) in texts.iter().flat_map(|specs| ways.iter().map(move |way| (specs, way))) {
            let what = format!("{}: {how}", world.name);
            let fake = (world.machine)();
            let before = see(&fake);
            let mut first = fake.another();
            let Some(_) = round(&mut first, specs) else { continue };
            drop(first);
            lose(&mut fake.another());
            // Nothing is changed while the marks of a cgroup cannot be read.
            for (operation, path) in [
                ("attributes", "/sys/fs/cgroup/batch"),
                ("attributes", "/sys/fs/cgroup/cpu/batch"),
                ("list", "/sys/fs/cgroup"),
                ("open child", "/sys/fs/cgroup/cpu/batch"),
            ] {
                let (path, value, lasts) = (path.to_owned(), None, true);
                fake.trouble(Trouble { operation, path, value, effect: Effect::Fails(Errno::EIO), lasts });
                let since = fake.mutations().len();
                let done = round(&mut fake.another(), specs);
                if fake.no_trouble() > 0 {
                    assert!(done.is_none(), "{what}: {operation}");
                    assert!(files(&fake, since).is_empty(), "{what}: {operation}");
                }
            }
            round(&mut fake.another(), specs).expect(&what);
            bring(&fake);
            assert_eq!(still_limited(&fake, specs), [""; 0], "{what}");
            let restored = instance().restore(&mut fake.another(), &[]).unwrap();
            assert!(restored.failed.is_empty(), "{what}: {restored:?}");
            let left = see(&fake).differing(&before);
            assert!(left.is_empty(), "{what}: {left:?}");
        }
    }
}

/// Cgroups that could not be marked are marked in the next survey; after that the journal may be lost, too.
// promise 20
#[test]
fn what_could_not_be_marked_is_marked_later() {
    for (world, texts) in cases() {
        for specs in &texts {
            let fake = (world.machine)();
            let before = see(&fake);
            let mut host = fake.another();
            host.state_dir(Path::new(STATE)).unwrap();
            let safe_specs = safe(specs);
            let safe = Some(SafeRequest { specs: &safe_specs, floor: None });
            let request = PlanRequest { safe, kept: true, ..PlanRequest::all(specs) };
            let mut one = Reconciler::new(instance(), &mut host).unwrap();
            fake.refuse_attributes();
            let _ = one.round(&mut host, 0, &request);
            fake.accept_attributes();
            one.look_again(&mut host).unwrap();
            host.state_remove_all(Path::new(STATE)).unwrap();
            let restored = instance().restore(&mut host, &[]).unwrap();
            let left = see(&fake).differing(&before);
            assert!(left.iter().all(|path| !path.contains("batch")), "{}: {left:?} {restored:?}", world.name);
        }
    }
}

/// The journal is removed after it was opened: the next append writes all records, not only the new ones.
// promise 11
#[test]
fn a_journal_that_goes_while_it_is_open_is_written_whole() {
    let fake = FakeHost::v1(2, 1 << 30);
    let mut host = fake.another();
    let owner = Owner::this_process(&mut host, journal::MACHINE).unwrap();
    let mut open = Journal::open(&mut host, Path::new(STATE), journal::MACHINE, owner).unwrap();
    let record = |path: &str| {
        Record::Creating(Creating { mount: "/sys/fs/cgroup/cpu".to_owned(), path: path.to_owned() })
    };
    open.append(&mut host, &[record("/a")]).unwrap();
    host.state_remove(&Path::new(STATE).join("machine.journal")).unwrap();
    open.append(&mut host, &[record("/b")]).unwrap();
    let text = host.state_read(&Path::new(STATE).join("machine.journal")).unwrap().unwrap();
    let contents = journal::parse(&text);
    assert!(contents.owner().is_some(), "{text}");
    assert!(contents.records.ends_with(&[record("/a"), record("/b")]), "{text}");
}

/// A group that was offline and is online: whichever line of the journal is lost or comes late, its newest safe value counts.
// promise 21
#[test]
fn the_newest_safe_value_counts_whatever_happens_to_the_journal() {
    let text = |class: &str, cores: u32| {
        format!(
            "[group.batch]\nclass = \"{class}\"\nmemory.max = \"{cores} GiB\"\npids.max = {cores}00\nmatch = [{{ cgroup = \"/batch\" }}]\n"
        )
    };
    let mut tried = 0;
    for make in [FakeHost::v1, FakeHost::v2] {
        let calm = make(4, 8 << 30);
        let mut host = calm.another();
        for hierarchy in commensal_sensors::mounts::hierarchies(&mut host).unwrap() {
            let root = host.open(Path::new(&hierarchy.mount)).unwrap();
            host.mkdir(root, "batch").unwrap();
        }
        let specs = |class: &str, cores| parse("groups.toml", &text(class, cores)).unwrap();
        round(&mut calm.another(), &specs("offline", 1)).unwrap();
        let online = specs("online", 2);
        round(&mut calm.another(), &online).unwrap();
        let journal = Path::new(STATE).join("machine.journal");
        let text = calm.another().state_read(&journal).unwrap().unwrap();
        for (what, text) in damaged(&text) {
            let fake = calm.copy();
            fake.another().state_replace(&journal, &text).unwrap();
            bring(&fake);
            assert_eq!(still_limited(&fake, &online), [""; 0], "{what}");
            tried += 1;
        }
    }
    assert!(tried > 30, "only {tried}");
}
