//! The safe state, from what is on record alone: in every world, after every moment at which an agent can die, and with
//! everything broken that can be. What it should be is told by another way: a plan of the safe groups finds nothing to do.

use crate::crash::{World, see, worlds};
use crate::originals::DAMAGES;
use crate::support::STATE;
use commensal_core::config::parse;
use commensal_core::errno::Errno;
use commensal_core::group::{Class, GroupSpec};
use commensal_core::knob::Value;
use commensal_core::plan::{Action, Step};
use commensal_core::safe::safe;
use commensal_host::Host;
use commensal_host::fake::{Effect, FakeHost, Trouble};
use commensal_reconcile::journal::{self, Journal, Owner, Record};
use commensal_reconcile::{
    Instance, PlanRequest, Reconciler, Round, SafeRequest, SafeState, bring_safe_state,
};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// Nothing is waited for.
const NO_TIME: Duration = Duration::ZERO;

fn instance() -> Instance {
    Instance::new(Path::new(STATE))
}

/// One round of an agent with these groups.
fn round(host: &mut FakeHost, specs: &[GroupSpec]) -> Option<Round> {
    host.state_dir(Path::new(STATE)).ok()?;
    let safe_specs = safe(specs);
    let safe = Some(SafeRequest { specs: &safe_specs, floor: None });
    let request = PlanRequest { safe, kept: true, ..PlanRequest::all(specs) };
    Reconciler::new(instance(), host).and_then(|mut one| one.round(host, 0, &request)).ok()
}

fn bring(fake: &FakeHost) -> SafeState {
    bring_safe_state(&mut fake.another(), Path::new(STATE), NO_TIME)
}

/// The values that a plan of the safe groups would still write.
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

/// Every text of every world, and once more with offline groups that want their originals back.
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

// promise 25
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

/// Files of online groups' values that a plan would still put back to what they were before us.
fn still_limited(fake: &FakeHost, specs: &[GroupSpec]) -> Vec<String> {
    let online = |step: &Step| {
        specs
            .iter()
            .any(|spec| spec.class == Class::Online && step.place.path.as_str().contains(spec.name.as_str()))
    };
    let all = still_to_write(fake, specs);
    // A v1 cpuset that was just made has no CPUs, and nobody can be in it.
    let new = |step: &Step| matches!(&step.action, Action::Write { from: Value::List(cpus), .. } if cpus.is_empty());
    let is_limit = |step: &Step| step.why.starts_with("no longer wanted") && online(step) && !new(step);
    let back = all.into_iter().filter(|(step, _)| is_limit(step));
    back.map(|(_, said)| said).collect()
}

/// Whatever change the agent is killed after, no limit is left on an online group.
// promise 25
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
                // As the new groups say, or still the old ones.
                let of_old = |number: usize| still_limited(&fake, &specs[number]).is_empty();
                let old = number.checked_sub(1).is_some_and(of_old);
                let left = still_limited(&fake, &specs[number]);
                assert!(left.is_empty() || old, "{what}:\n{}", left.join("\n"));
                // The rest is for `restore`, which finds the originals.
                n += 1;
            }
            assert!(n > 2, "{}: groups {number}", world.name);
        }
    }
    assert!(limited > 100, "only {limited} limits were there to be lifted");
}

/// The files that a round wrote in groups.
fn files(fake: &FakeHost, since: usize) -> BTreeSet<String> {
    let scratch = format!("/{}", instance().scratch);
    let writes = fake.mutations().into_iter().skip(since);
    let writes = writes.filter(|one| one.operation == "write" && !one.path.contains(&scratch));
    writes.filter_map(|one| Some(one.path.rsplit_once('/')?.1.to_owned())).collect()
}

/// Each file of each world takes nothing any more, in every way in which the kernel refuses: all other values are brought, and
/// what is not says so.
// promise 25
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

/// Whatever is broken beside the groups when the agent dies: damage to each line of the journal, no journal, no state directory, one
/// that takes no writes, somebody who holds the lock. No limit is left on an online group, and the rest is as it is to be.
// promise 75
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
        for (what, damage) in DAMAGES {
            for line in 0.. {
                let Some(text) = damage(&text, line) else { break };
                let fake = calm.copy();
                fake.another().state_replace(&journal, &text).unwrap();
                check(&fake, specs, &format!("{}: {what} {line}", world.name));
            }
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

/// The journal is lost while no agent runs: the next one does not take what is in force for what was there before.
// promises 13, 75
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
            // Nothing is begun while a cgroup cannot be asked.
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

/// Cgroups that could not be marked are marked with the next survey: then the journal may be lost as well.
// promise 74
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

/// The journal is removed after it was opened: what is appended then is not all that there is.
// promise 13
#[test]
fn a_journal_that_goes_while_it_is_open_is_written_whole() {
    let fake = FakeHost::v1(2, 1 << 30);
    let mut host = fake.another();
    let owner = Owner::this_process(&mut host, journal::MACHINE).unwrap();
    let mut open = Journal::open(&mut host, Path::new(STATE), journal::MACHINE, owner).unwrap();
    let record =
        |path: &str| Record::Creating { mount: "/sys/fs/cgroup/cpu".to_owned(), path: path.to_owned() };
    open.append(&mut host, &[record("/a")]).unwrap();
    host.state_remove(&Path::new(STATE).join("machine.journal")).unwrap();
    open.append(&mut host, &[record("/b")]).unwrap();
    let text = host.state_read(&Path::new(STATE).join("machine.journal")).unwrap().unwrap();
    let contents = journal::parse(&text);
    assert!(contents.owner().is_some(), "{text}");
    assert!(contents.records.ends_with(&[record("/a"), record("/b")]), "{text}");
}
