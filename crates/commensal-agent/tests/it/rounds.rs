//! Rounds of the keeper on machines in memory.

use commensal_agent::instance::{Ask, Instance, NOBODY};
use commensal_agent::keeper::{Keeper, Now, Round};
use commensal_core::config::parse;
use commensal_core::desired::DesiredState;
use commensal_core::errno::Errno;
use commensal_core::group::GroupSpec;
use commensal_host::Host;
use commensal_host::fake::FakeHost;
use std::path::Path;

const MEMORY: u64 = 8 << 30;
const STATE: &str = "/state";
const GROUPS: &str = "[group.etl]\nclass = \"offline\"\ncpu.max = \"1 core\"\nmemory.max = \"1 GiB\"\n\
    [group.batch]\nclass = \"offline\"\ncpu.max = \"2 cores\"\nmatch = [{ cgroup = \"/batch\" }]\n";

fn instance() -> Instance {
    Instance::new(Path::new(STATE))
}

fn now(ms: u64) -> Now {
    Now { ms, text: "2026-11-22T00:00:00Z".to_owned() }
}

fn specs() -> Vec<GroupSpec> {
    parse("groups.toml", GROUPS).unwrap()
}

/// A machine with a group `/batch` of somebody else's.
fn machine(v2: bool) -> FakeHost {
    let fake = if v2 { FakeHost::v2(4, MEMORY) } else { FakeHost::v1(4, MEMORY) };
    let mut host = fake.another();
    let roots: Vec<&str> = if v2 { vec![""] } else { vec!["cpu", "memory"] };
    for root in roots {
        let root = host.open(&Path::new("/sys/fs/cgroup").join(root)).unwrap();
        host.mkdir(root, "batch").unwrap();
    }
    fake
}

fn round(keeper: &mut Keeper, host: &mut dyn Host, ms: u64) -> Round {
    let specs = specs();
    let ask = Ask::new(&specs, NOBODY);
    keeper.round(host, &now(ms), &ask).unwrap()
}

fn batch(fake: &FakeHost, v2: bool) -> String {
    let (dir, file) = if v2 {
        ("/sys/fs/cgroup/batch", "cpu.max")
    } else {
        ("/sys/fs/cgroup/cpu/batch", "cpu.cfs_quota_us")
    };
    let mut host = fake.another();
    let dir = host.open(Path::new(dir)).unwrap();
    host.read(dir, file).unwrap().trim().to_owned()
}

fn meddle(fake: &FakeHost, v2: bool) {
    let (dir, file, value) = match v2 {
        true => ("/sys/fs/cgroup/batch", "cpu.max", "max 100000"),
        false => ("/sys/fs/cgroup/cpu/batch", "cpu.cfs_quota_us", "-1"),
    };
    let mut host = fake.another();
    let dir = host.open(Path::new(dir)).unwrap();
    host.write(dir, file, value).unwrap();
}

#[test]
fn a_second_round_writes_nothing() {
    for v2 in [false, true] {
        let fake = machine(v2);
        let mut host = fake.another();
        let mut keeper = Keeper::new(instance(), &mut host).unwrap();
        let first = round(&mut keeper, &mut host, 0);
        assert!(!first.actions.is_empty() && first.troubles.is_empty(), "{:?}", first.troubles);
        let writes = keeper.writes;
        let second = round(&mut keeper, &mut host, 1_000);
        assert_eq!((second.actions, keeper.writes), (vec![], writes));
    }
}

/// The first answer is at once; the second writer is told and backed off from.
#[test]
fn a_second_writer_is_answered_told_and_backed_off_from() {
    for v2 in [false, true] {
        let fake = machine(v2);
        let mut host = fake.another();
        let mut keeper = Keeper::new(instance(), &mut host).unwrap();
        round(&mut keeper, &mut host, 0);
        let wanted = batch(&fake, v2);
        let mut answers = Vec::new();
        for ms in (100..60_000).step_by(100) {
            if batch(&fake, v2) == wanted {
                meddle(&fake, v2);
            }
            let done = round(&mut keeper, &mut host, ms);
            if batch(&fake, v2) == wanted {
                answers.push(ms);
                assert_eq!(done.actions.len(), 1, "{:?}", done.actions);
            }
        }
        assert_eq!(answers[0], 100, "{answers:?}");
        // At once, then after pauses of 1, 2, 4, 8, 16 and 32 s.
        assert!((5..=8).contains(&answers.len()), "{answers:?}");
        let round = round(&mut keeper, &mut host, 60_000);
        let drift = keeper.drift(60_000, &round.planned.actual);
        assert_eq!(drift.len(), 1, "{drift:?}");
        assert!(drift[0].path == "/batch" && drift[0].times >= answers.len() as u64, "{drift:?}");
    }
}

/// Whichever write is refused: it is told or done in another way, the rest is in force, and later everything is.
#[test]
fn a_refused_step_stops_nothing_else() {
    for v2 in [false, true] {
        let calm = machine(v2);
        let mut host = calm.another();
        let mut keeper = Keeper::new(instance(), &mut host).unwrap();
        let before = calm.mutations().len();
        round(&mut keeper, &mut host, 0);
        let writes = u32::try_from(calm.mutations().len() - before).unwrap();
        let mut told = 0;
        for nth in 1..=writes {
            let fake = machine(v2);
            let mut host = fake.another();
            let mut keeper = Keeper::new(instance(), &mut host).unwrap();
            fake.fail_write(nth, Errno::EINVAL);
            let specs = specs();
            let ask = Ask::new(&specs, NOBODY);
            let first = keeper.round(&mut host, &now(0), &ask);
            if let Ok(first) = &first {
                told += usize::from(!first.troubles.is_empty());
                // Not in every tick; but a journal that could not be kept may be kept in the next.
                let of_step = first.troubles.iter().any(|trouble| !trouble.contains("journal"));
                let writes = keeper.writes;
                round(&mut keeper, &mut host, 100);
                assert!(!of_step || keeper.writes == writes, "write {nth}: {:?}", first.troubles);
            }
            // What was refused may have been a trial, after which the machine seems not to have the knob; the agent looks
            // again every minute.
            keeper.look_again(&mut host).unwrap();
            let later = round(&mut keeper, &mut host, 10_000);
            assert_eq!(
                batch(&fake, v2).split(' ').next(),
                Some("200000"),
                "write {nth}: {:?}",
                later.troubles
            );
            let settled = round(&mut keeper, &mut host, 60_000);
            assert_eq!(settled.troubles, [""; 0], "write {nth}");
        }
        println!("v2 {v2}: {told} of {writes} refusals told");
        assert!(told >= 1 && writes > 10, "{told} of {writes}");
    }
}

/// Killed after any of its writes, the agent leaves a machine with which a new one goes on, and which `restore` puts back
/// exactly.
#[test]
fn killed_at_every_write() {
    for v2 in [false, true] {
        let before = machine(v2).snapshot();
        let mut points = 0;
        for crash in 0.. {
            let fake = machine(v2);
            fake.crash_after(crash);
            let mut host = fake.another();
            let _ = Keeper::new(instance(), &mut host).and_then(|mut keeper| {
                let specs = specs();
                let ask = Ask::new(&specs, NOBODY);
                keeper.round(&mut host, &now(0), &ask)
            });
            if !fake.is_crashed() {
                break;
            }
            points += 1;
            let after = fake.restart();
            // A new agent goes on from wherever that was …
            let mut host = after.another();
            let mut keeper = Keeper::new(instance(), &mut host).unwrap();
            let done = round(&mut keeper, &mut host, 0);
            assert!(done.troubles.is_empty(), "crash {crash}: {:?}", done.troubles);
            assert_eq!(batch(&after, v2).split(' ').next(), Some("200000"), "crash {crash}");
            // … and everything goes back.
            let boot_id = commensal_sensors::machine::boot_id(&host).unwrap();
            let restored = commensal_reconcile::restore(&mut host, Path::new(STATE), &boot_id).unwrap();
            assert!(restored.failed.is_empty() && restored.left.is_empty(), "crash {crash}: {restored:?}");
            assert_eq!(after.snapshot(), before, "crash {crash}");
        }
        println!("v2 {v2}: {points} crash points");
        assert!(points > 10, "{points}");
    }
}

/// Groups that come and go leave no more on record than some that are gone, and what is there goes back to what it was.
#[test]
fn the_journal_does_not_grow_with_groups_that_come_and_go() {
    for v2 in [false, true] {
        let fake = machine(v2);
        let before = fake.snapshot();
        let mut host = fake.another();
        let mut keeper = Keeper::new(instance(), &mut host).unwrap();
        let text = GROUPS.replace("\"/batch\"", "\"/batch*\"");
        let specs = parse("groups.toml", &text).unwrap();
        let roots: Vec<&str> = if v2 { vec![""] } else { vec!["cpu", "memory"] };
        let mut longest = 0;
        for number in 0..300 {
            let name = format!("batch{number}");
            let mut made = Vec::new();
            for root in &roots {
                let root = host.open(&Path::new("/sys/fs/cgroup").join(root)).unwrap();
                made.push((root, host.mkdir(root, &name).unwrap()));
            }
            keeper.round(&mut host, &now(number * 1_000), &Ask::new(&specs, NOBODY)).unwrap();
            for (root, group) in made {
                host.rmdir(root, &name, group.inode).unwrap();
            }
            let journal = host.state_read(&Path::new(STATE).join("machine.journal")).unwrap().unwrap();
            longest = longest.max(journal.lines().count());
        }
        assert!(longest < 200, "{longest} lines");
        let boot_id = commensal_sensors::machine::boot_id(&host).unwrap();
        commensal_reconcile::restore(&mut host, Path::new(STATE), &boot_id).unwrap();
        assert_eq!(fake.snapshot(), before);
    }
}

/// What the group may use, in CPUs; `None` without a limit.
fn share(host: &mut dyn Host, v2: bool) -> Option<f64> {
    let dir =
        host.open(Path::new(if v2 { "/sys/fs/cgroup/batch" } else { "/sys/fs/cgroup/cpu/batch" })).unwrap();
    let text = match v2 {
        true => host.read(dir, "cpu.max").unwrap(),
        false => {
            ["cpu.cfs_quota_us", "cpu.cfs_period_us"].map(|file| host.read(dir, file).unwrap()).join(" ")
        }
    };
    let mut words = text.split_whitespace().map(|word| word.parse::<f64>().unwrap_or(-1.0));
    let (quota, period) = (words.next()?, words.next()?);
    (quota >= 0.0).then_some(quota / period)
}

/// A quota with another period, and back: at no write is the share more than before or after, and a crash at any of them is
/// undone.
#[test]
fn the_period_of_a_quota_moves_without_a_gap() {
    for v2 in [false, true] {
        let mut points = 0;
        for crash in 0.. {
            let fake = machine(v2);
            let before = fake.snapshot();
            let mut host = fake.another();
            let mut keeper = Keeper::new(instance(), &mut host).unwrap();
            round(&mut keeper, &mut host, 0);
            let start = fake.mutations().len();
            fake.crash_after(crash);
            let specs = specs();
            for (ms, period) in [(100, Some(10_000)), (200, Some(50_000)), (300, None)] {
                let adjust = |desired: &mut DesiredState| {
                    let batch =
                        desired.groups.iter_mut().find(|group| group.name.as_str() == "batch").unwrap();
                    batch.limits.cpu_period = period;
                };
                let ask = Ask { adjust: &adjust, ..Ask::new(&specs, NOBODY) };
                let Ok(done) = keeper.round(&mut host, &now(ms), &ask) else { break };
                if fake.is_crashed() {
                    break;
                }
                assert!(done.troubles.is_empty(), "{:?}", done.troubles);
                assert_eq!(share(&mut host, v2), Some(2.0), "{period:?}");
                let text = batch(&fake, v2);
                let quota = format!("{}", 2 * period.unwrap_or(100_000));
                assert_eq!(text.split(' ').next(), Some(quota.as_str()));
            }
            let crashed = fake.is_crashed();
            let after = fake.restart();
            let mut host = after.another();
            let now = share(&mut host, v2);
            assert!(now.is_some_and(|share| share <= 2.0), "crash {crash} (v2 {v2}): {now:?}");
            let boot_id = commensal_sensors::machine::boot_id(&host).unwrap();
            let restored = commensal_reconcile::restore(&mut host, Path::new(STATE), &boot_id).unwrap();
            assert!(restored.failed.is_empty() && restored.left.is_empty(), "crash {crash}: {restored:?}");
            assert_eq!(after.snapshot(), before, "crash {crash}");
            if !crashed {
                assert!(fake.mutations().len() > start);
                break;
            }
            points += 1;
        }
        println!("v2 {v2}: {points} crash points");
        assert!(points > 6, "{points}");
    }
}

/// A quota of `cpus` for the group of somebody else's, besides what is written.
fn quota(desired: &mut DesiredState, cpus: u64) {
    let batch = desired.groups.iter_mut().find(|group| group.name.as_str() == "batch").unwrap();
    batch.limits.set(commensal_core::limit::CPU_MAX, commensal_core::units::MicroCpus(cpus * 1_000_000));
    batch.limits.cpu_period = (cpus == 3).then_some(50_000);
}

/// What controllers decide is put in force without a look at the machine, as a round would; killed at any write, and beside a
/// cgroup that goes, nothing is lost.
#[test]
fn what_is_decided_anew_needs_no_look() {
    for v2 in [false, true] {
        let mut points = 0;
        for crash in 0.. {
            let fake = machine(v2);
            let before = fake.snapshot();
            let mut host = fake.another();
            let mut keeper = Keeper::new(instance(), &mut host).unwrap();
            // What made groups is followed by one that finds them.
            round(&mut keeper, &mut host, 0);
            let mut last = round(&mut keeper, &mut host, 10);
            fake.crash_after(crash);
            let specs = specs();
            for (ms, cpus, text) in [(100, 1, "100000"), (200, 3, "150000"), (300, 4, "400000")] {
                let adjust = |desired: &mut DesiredState| quota(desired, cpus);
                let ask = Ask { adjust: &adjust, ..Ask::new(&specs, NOBODY) };
                let done = keeper.adjust(&mut host, &now(ms), &ask, &mut last);
                if fake.is_crashed() {
                    break;
                }
                assert!(done.unwrap(), "{cpus}");
                assert_eq!(batch(&fake, v2).split(' ').next(), Some(text));
                // A round finds nothing to do.
                let whole = keeper.round(&mut host, &now(ms + 50), &ask).unwrap();
                assert_eq!((whole.actions.len(), whole.troubles.len()), (0, 0), "{:?}", whole.actions);
                assert_eq!(whole.planned.actual.ours, last.planned.actual.ours);
            }
            let crashed = fake.is_crashed();
            let after = fake.restart();
            let mut host = after.another();
            let boot_id = commensal_sensors::machine::boot_id(&host).unwrap();
            let restored = commensal_reconcile::restore(&mut host, Path::new(STATE), &boot_id).unwrap();
            assert!(restored.failed.is_empty() && restored.left.is_empty(), "crash {crash}: {restored:?}");
            assert_eq!(after.snapshot(), before, "crash {crash}");
            if !crashed {
                break;
            }
            points += 1;
        }
        println!("v2 {v2}: {points} crash points");
        assert!(points > 3, "{points}");
        // A cgroup that has gone meanwhile: a round is needed, and all that is left is in force.
        let fake = machine(v2);
        let mut host = fake.another();
        let mut keeper = Keeper::new(instance(), &mut host).unwrap();
        round(&mut keeper, &mut host, 0);
        let mut last = round(&mut keeper, &mut host, 10);
        fake.vanish(if v2 { "/sys/fs/cgroup/batch" } else { "/sys/fs/cgroup/cpu/batch" });
        let specs = specs();
        let adjust = |desired: &mut DesiredState| {
            for group in &mut desired.groups {
                group.limits.set(commensal_core::limit::CPU_MAX, commensal_core::units::MicroCpus(500_000));
            }
        };
        let ask = Ask { adjust: &adjust, ..Ask::new(&specs, NOBODY) };
        let done = keeper.adjust(&mut host, &now(100), &ask, &mut last);
        assert!(!done.is_ok_and(|done| done));
        let whole = keeper.round(&mut host, &now(200), &ask).unwrap();
        assert_eq!(whole.troubles, [""; 0]);
    }
}
