//! Rounds of the reconciler on machines in memory.

use commensal_core::config::parse;
use commensal_core::desired::DesiredState;
use commensal_core::errno::Errno;
use commensal_core::group::GroupSpec;
use commensal_host::Host;
use commensal_host::fake::{Effect, FakeHost, Trouble, VendorKernel};
use commensal_reconcile::{Instance, PlanRequest, Reconciler, Round};
use std::collections::BTreeMap;
use std::path::Path;

const MEMORY: u64 = 8 << 30;
const STATE: &str = "/state";
const GROUPS: &str = "[group.etl]\nclass = \"offline\"\ncpu.max = \"1 core\"\nmemory.max = \"1 GiB\"\n\
    [group.batch]\nclass = \"offline\"\ncpu.max = \"2 cores\"\nmatch = [{ cgroup = \"/batch\" }]\n";

fn instance() -> Instance {
    Instance::new(Path::new(STATE))
}

fn specs() -> Vec<GroupSpec> {
    parse("groups.toml", GROUPS).unwrap()
}

/// A machine with another program's group `/batch`.
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

fn round(reconciler: &mut Reconciler, host: &mut dyn Host, ms: u64) -> Round {
    let specs = specs();
    let request = PlanRequest::all(&specs);
    reconciler.round(host, ms, &request).unwrap()
}

fn everything_back(fake: &FakeHost, before: &BTreeMap<String, String>, what: &str) {
    let restored = instance().restore(&mut fake.another(), &[]).unwrap();
    assert!(restored.failed.is_empty() && restored.left.is_empty(), "{what}: {restored:?}");
    assert_eq!(fake.snapshot(), *before, "{what}");
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
        let mut reconciler = Reconciler::new(instance(), &mut host).unwrap();
        let first = round(&mut reconciler, &mut host, 0);
        assert!(!first.changes.is_empty() && first.problems.is_empty(), "{:?}", first.problems);
        let writes = reconciler.writes;
        let second = round(&mut reconciler, &mut host, 1_000);
        assert_eq!((second.changes, reconciler.writes), (vec![], writes));
    }
}

/// The successor of an agent has nothing to write, and sees within a few ticks that somebody lifts what is in force: the
/// guard of its predecessor, or another program.
// promise 21
#[test]
fn what_an_earlier_agent_has_written_is_watched() {
    for v2 in [false, true] {
        let fake = machine(v2);
        let mut host = fake.another();
        let mut first = Reconciler::new(instance(), &mut host).unwrap();
        round(&mut first, &mut host, 0);
        let wanted = batch(&fake, v2);
        let mut host = fake.another();
        let mut next = Reconciler::new(instance(), &mut host).unwrap();
        assert_eq!(round(&mut next, &mut host, 1_000).changes, []);
        assert!((0..20).all(|_| !next.disturbed(&mut host, true)), "v2 {v2}: nothing has changed");
        meddle(&fake, v2);
        assert!((0..10).any(|_| next.disturbed(&mut host, true)), "v2 {v2}: the limit is gone");
        let again = round(&mut next, &mut host, 2_000);
        assert_eq!((again.changes.len(), batch(&fake, v2)), (1, wanted), "v2 {v2}");
        assert!(!next.drift(2_000, &again.planned.actual).is_empty(), "v2 {v2}: somebody else is told");
    }
}

/// Only what the groups want now is watched: its owner may change a value that was put back, and a value that somebody
/// else has written before the groups wanted it is as right as any.
// promises 14, 18
#[test]
fn what_is_no_longer_wanted_is_not_watched() {
    let wants = |cores: &str| {
        let text =
            format!("[group.batch]\nclass = \"offline\"\n{cores}match = [{{ cgroup = \"/batch\" }}]\n");
        parse("groups.toml", &text).unwrap()
    };
    let [two, three, none] = ["cpu.max = \"2 cores\"\n", "cpu.max = \"3 cores\"\n", ""].map(wants);
    let write = |fake: &FakeHost, v2: bool, quota: &str| {
        let (dir, file, value) = match v2 {
            true => ("/sys/fs/cgroup/batch", "cpu.max", format!("{quota} 100000")),
            false => ("/sys/fs/cgroup/cpu/batch", "cpu.cfs_quota_us", quota.replace("max", "-1")),
        };
        let mut host = fake.another();
        let dir = host.open(Path::new(dir)).unwrap();
        host.write(dir, file, &value).unwrap();
    };
    // What somebody writes, the groups from then on, and whether the second change of somebody is drift.
    for (first, then, second, drifts) in [
        ("200000", &none, "50000", false),
        ("300000", &three, "50000", true),
        ("300000", &three, "300000", false),
        ("200000", &three, "max", true),
    ] {
        for v2 in [false, true] {
            let what = format!("v2 {v2}: {first}, then {second}");
            let fake = machine(v2);
            let mut host = fake.another();
            let mut reconciler = Reconciler::new(instance(), &mut host).unwrap();
            let round = |host: &mut dyn Host, reconciler: &mut Reconciler, ms, specs: &[GroupSpec]| {
                reconciler.round(host, ms, &PlanRequest::all(specs)).unwrap()
            };
            round(&mut host, &mut reconciler, 0, &two);
            write(&fake, v2, first);
            for ms in [100, 200, 300] {
                round(&mut host, &mut reconciler, ms, then);
            }
            assert!((0..20).all(|_| !reconciler.disturbed(&mut host, true)), "{what}: all is as wanted");
            write(&fake, v2, second);
            let disturbed = (0..20).any(|_| reconciler.disturbed(&mut host, true));
            assert_eq!(disturbed, drifts, "{what}: seen");
            // An hour later the first change is forgotten.
            let last = round(&mut host, &mut reconciler, 3_600_000, then);
            assert_eq!(!last.changes.is_empty(), drifts, "{what}: {:?}", last.changes);
            let drift = reconciler.drift(3_600_000, &last.planned.actual);
            assert_eq!(!drift.is_empty(), drifts, "{what}: {drift:?}");
        }
    }
}

/// A cgroup that is removed and made again all the time is limited each time, and no round has more to do because of those
/// before it.
// promise 26
#[test]
fn a_group_that_is_made_again_five_hundred_times_makes_no_round_longer() {
    const TIMES: usize = 500;
    const PART: usize = TIMES / 10;
    for v2 in [false, true] {
        let fake = machine(v2);
        let before = fake.snapshot();
        let mut host = fake.another();
        let mut reconciler = Reconciler::new(instance(), &mut host).unwrap();
        round(&mut reconciler, &mut host, 0);
        let wanted = batch(&fake, v2);
        let parents: &[&str] =
            if v2 { &["/sys/fs/cgroup"] } else { &["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/memory"] };
        let (mut calls, mut sizes) = (Vec::new(), Vec::new());
        for n in 1..=TIMES {
            for parent in parents {
                fake.vanish(format!("{parent}/batch"));
                let root = host.open(Path::new(parent)).unwrap();
                let made = host.mkdir(root, "batch").unwrap();
                host.close(made);
                host.close(root);
            }
            assert_ne!(batch(&fake, v2), wanted, "{n}: the new one has no limit yet");
            let since = fake.calls();
            let done = round(&mut reconciler, &mut host, 1_000 * n as u64);
            calls.push(fake.calls() - since);
            assert_eq!(done.problems, [""; 0], "{n}");
            assert_eq!(batch(&fake, v2), wanted, "{n}");
            let journal = fake.another().state_read(&Path::new(STATE).join("machine.journal")).unwrap();
            sizes.push(journal.unwrap().len() as u64);
        }
        let most = |of: &[u64]| of.iter().copied().max().unwrap_or_default();
        for (what, of) in [("calls", &calls), ("bytes of the journal", &sizes)] {
            // The first rounds may find what was there before; after them nothing grows.
            let (first, last) = (most(&of[PART..2 * PART]), most(&of[TIMES - PART..]));
            println!("v2 {v2}: {what}: {first}, then {last}");
            assert!(last <= first + first / 4, "v2 {v2}: {what}: {first}, then {last}: {of:?}");
        }
        everything_back(&fake, &before, &format!("v2 {v2}"));
    }
}

/// The first overwrite is undone immediately; the second writer is reported, and later overwrites are undone with an
/// increasing back-off.
// promise 18
#[test]
fn a_second_writer_is_answered_told_and_backed_off_from() {
    for v2 in [false, true] {
        let fake = machine(v2);
        let mut host = fake.another();
        let mut reconciler = Reconciler::new(instance(), &mut host).unwrap();
        round(&mut reconciler, &mut host, 0);
        let wanted = batch(&fake, v2);
        let mut answers = Vec::new();
        for ms in (100..60_000).step_by(100) {
            if batch(&fake, v2) == wanted {
                meddle(&fake, v2);
            }
            let done = round(&mut reconciler, &mut host, ms);
            if batch(&fake, v2) == wanted {
                answers.push(ms);
                assert_eq!(done.changes.len(), 1, "{:?}", done.changes);
            }
        }
        assert_eq!(answers[0], 100, "{answers:?}");
        // Immediately, then after back-offs of 1, 2, 4, 8, 16 and 32 s.
        assert!((5..=8).contains(&answers.len()), "{answers:?}");
        let round = round(&mut reconciler, &mut host, 60_000);
        let drift = reconciler.drift(60_000, &round.planned.actual);
        assert_eq!(drift.len(), 1, "{drift:?}");
        assert!(drift[0].path == "/batch" && drift[0].times >= answers.len() as u64, "{drift:?}");
    }
}

/// Any one write is refused: that is reported or the plan uses another mechanism, the rest is in force, and later
/// everything is.
// promise 18
#[test]
fn a_refused_step_stops_nothing_else() {
    for v2 in [false, true] {
        let calm = machine(v2);
        let mut host = calm.another();
        let mut reconciler = Reconciler::new(instance(), &mut host).unwrap();
        let before = calm.mutations().len();
        round(&mut reconciler, &mut host, 0);
        let writes = u32::try_from(calm.mutations().len() - before).unwrap();
        let mut told = 0;
        for nth in 1..=writes {
            let fake = machine(v2);
            let mut host = fake.another();
            let mut reconciler = Reconciler::new(instance(), &mut host).unwrap();
            fake.fail_write(nth, Errno::EINVAL);
            let specs = specs();
            let request = PlanRequest::all(&specs);
            let first = reconciler.round(&mut host, 0, &request);
            if let Ok(first) = &first {
                told += usize::from(!first.problems.is_empty());
                // A refused step is not retried in every tick; a journal that could not be written may be written in
                // the next tick.
                let of_step = first.problems.iter().any(|trouble| !trouble.contains("journal"));
                let writes = reconciler.writes;
                round(&mut reconciler, &mut host, 100);
                assert!(!of_step || reconciler.writes == writes, "write {nth}: {:?}", first.problems);
            }
            // The refused write may have been a test of the survey, after which the machine seems to lack the knob; the
            // agent surveys the machine again every minute.
            reconciler.look_again(&mut host).unwrap();
            let later = round(&mut reconciler, &mut host, 10_000);
            assert_eq!(
                batch(&fake, v2).split(' ').next(),
                Some("200000"),
                "write {nth}: {:?}",
                later.problems
            );
            let settled = round(&mut reconciler, &mut host, 60_000);
            assert_eq!(settled.problems, [""; 0], "write {nth}");
        }
        println!("v2 {v2}: {told} of {writes} refusals told");
        assert!(told >= 1 && writes > 10, "{told} of {writes}");
    }
}

/// A survey without tests creates no group and writes nothing; whatever the tests' results depend on makes it insufficient.
// promise 18
#[test]
fn a_survey_without_tests_writes_nothing_and_notices_what_tests_depend_on() {
    let mounts = |fake: &FakeHost| fake.another().read_file(Path::new("/proc/mounts")).unwrap();
    let read_only = |fake: &FakeHost| fake.set_file("/proc/mounts", &mounts(fake).replace(" rw", " ro"));
    let one_less = |fake: &FakeHost| {
        let mounts = mounts(fake);
        let (last, others) =
            mounts.lines().collect::<Vec<_>>().split_last().map(|(a, b)| (*a, b.join("\n"))).unwrap();
        assert!(last.contains("cgroup"), "{last}");
        fake.set_file("/proc/mounts", &others);
    };
    let disk = |fake: &FakeHost| {
        fake.set_file("/sys/block/sdz/dev", "8:400\n");
        fake.set_file("/sys/block/sdz/size", "1000\n");
    };
    let systemd = |fake: &FakeHost| fake.set_file("/run/systemd/system/x", "");
    let switch = |fake: &FakeHost| fake.vendor_kernel(VendorKernel::Anolis { switch: true });
    let check = |what: &str, change: &dyn Fn(&FakeHost), sufficient: [bool; 2]| {
        for (v2, sufficient) in [false, true].into_iter().zip(sufficient) {
            let fake = machine(v2);
            let mut host = fake.another();
            let mut reconciler = Reconciler::new(instance(), &mut host).unwrap();
            round(&mut reconciler, &mut host, 0);
            change(&fake);
            let (writes, before) = (fake.mutations().len(), reconciler.survey.clone());
            assert_eq!(reconciler.refresh_survey(&mut host).unwrap(), sufficient, "v2 {v2}: {what}");
            assert_eq!(reconciler.survey, before, "v2 {v2}: {what}");
            assert_eq!(fake.mutations().len(), writes, "v2 {v2}: {what}");
        }
    };
    check("nothing", &|_| (), [true, true]);
    check("mounted read-only", &read_only, [false, false]);
    check("a hierarchy less", &one_less, [false, false]);
    check("a disk more", &disk, [false, false]);
    check("systemd", &systemd, [true, false]);
    check("a vendor's switch", &switch, [false, false]);
}

/// A file that refuses all writes, or groups that cannot be created: reported in the same round, left out with the
/// steps that need it, and done when it is possible again.
// promise 18
#[test]
fn what_is_refused_for_long_stops_nothing_else() {
    let v1 = ["", "memory.limit_in_bytes", "cpu.cfs_quota_us", "cpu.idle"];
    let v2 = ["", "memory.max", "cpu.max", "cgroup.subtree_control"];
    let cases = v1.map(|file| (false, file)).into_iter().chain(v2.map(|file| (true, file)));
    for (v2, file) in cases {
        for errno in [Errno::EBUSY, Errno::EINVAL, Errno::EAGAIN] {
            let what = format!("v2 {v2}, {file:?} {errno}");
            let fake = machine(v2);
            let mut host = fake.another();
            let mut reconciler = Reconciler::new(instance(), &mut host).unwrap();
            fake.refuse_file(file, errno);
            let first = round(&mut reconciler, &mut host, 0);
            // On v2, the survey after a controller was enabled finds that no group can be created; knobs that could not
            // be tested are not used.
            let untried = v2 && file.is_empty();
            let unmet = first.planned.plan.unmet.iter().map(|one| &one.because);
            let mut told = first.problems.iter().chain(unmet);
            assert!(told.any(|one| one.contains(&errno.to_string())), "{what}: {first:#?}");
            // Settings that do not depend on it.
            let mutations = fake.mutations();
            let done = |value: &str| mutations.iter().any(|one| one.value.trim() == value);
            let others = match file {
                "cgroup.subtree_control" => [].as_slice(),
                _ if untried => &[],
                "" | "memory.max" | "memory.limit_in_bytes" => &["200000", "200000 100000"],
                _ => &["1073741824"],
            };
            assert!(others.is_empty() || others.iter().any(|value| done(value)), "{what}: {first:#?}");
            let writes = reconciler.writes;
            let second = round(&mut reconciler, &mut host, 500);
            assert_eq!(reconciler.writes, writes, "{what}: {second:#?}");
            let left = second.problems.len() + second.planned.plan.unmet.len();
            assert!(left > 0, "{what}: {second:#?}");
            fake.refuse_nothing();
            reconciler.look_again(&mut host).unwrap();
            for at in [400_000, 800_000] {
                let later = round(&mut reconciler, &mut host, at);
                assert_eq!(later.problems, [""; 0], "{what}: at {at}");
            }
            let last = round(&mut reconciler, &mut host, 900_000);
            assert_eq!(last.planned.plan.steps.len(), 0, "{what}: {:#?}", last.planned.plan.steps);
        }
    }
}

/// A round returns when the next one has something to retry: a caller that runs rounds only then runs few, and misses
/// nothing.
// promise 18
#[test]
fn a_round_says_when_a_refused_step_may_be_tried() {
    // On v2, the test after a controller was enabled finds the refusal, and the limit is unmet instead.
    for what in ["cpu.cfs_quota_us", "memory.limit_in_bytes"] {
        let fake = machine(false);
        let mut host = fake.another();
        let mut reconciler = Reconciler::new(instance(), &mut host).unwrap();
        fake.refuse_file(what, Errno::EBUSY);
        // A round that created groups is followed immediately by another one.
        let first = round(&mut reconciler, &mut host, 0);
        assert_eq!(first.again_ms, None, "{what}");
        let (mut now, mut pauses) = (10, Vec::new());
        while now < 300_000 {
            let last = round(&mut reconciler, &mut host, now);
            assert!(!last.problems.is_empty(), "{what}: at {now}");
            let again = last.again_ms.unwrap_or_else(|| panic!("{what}: at {now}: {:?}", last.problems));
            assert!(again > now, "{what}: {again} at {now}");
            pauses.push(again - now);
            // A round before that time has nothing to retry, and returns the same time.
            let writes = reconciler.writes;
            let early = round(&mut reconciler, &mut host, again - 1);
            assert_eq!((early.again_ms, reconciler.writes), (Some(again), writes), "{what}: at {now}");
            now = again;
        }
        // At most two limits are refused, and each is retried after 1, 2, 4, ... s.
        assert!(pauses.len() <= 20, "{what}: {pauses:?}");
        fake.refuse_nothing();
        let mut last = round(&mut reconciler, &mut host, now);
        while let Some(again) = last.again_ms {
            assert!(again <= now + 300_000, "{what}: {again} at {now}");
            last = round(&mut reconciler, &mut host, again);
        }
        assert_eq!(last.problems, [""; 0], "{what}");
    }
}

/// Groups that are created and removed again and again leave only a limited number of records, and existing groups are
/// restored.
// promise 26
#[test]
fn the_journal_does_not_grow_with_groups_that_come_and_go() {
    for v2 in [false, true] {
        let fake = machine(v2);
        let before = fake.snapshot();
        let mut host = fake.another();
        let mut reconciler = Reconciler::new(instance(), &mut host).unwrap();
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
            reconciler.round(&mut host, number * 1_000, &PlanRequest::all(&specs)).unwrap();
            for (root, group) in made {
                host.rmdir(root, &name, group.inode).unwrap();
            }
            let journal = host.state_read(&Path::new(STATE).join("machine.journal")).unwrap().unwrap();
            longest = longest.max(journal.lines().count());
        }
        assert!(longest < 200, "{longest} lines");
        everything_back(&fake, &before, "groups that come and go");
    }
}

/// Returns the CPU limit of the group, in CPUs; `None` without a limit.
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

/// Changes the period of a quota, and changes it back: after no write is the share above both the old and the new one,
/// and a crash at any write is undone.
// promise 23
#[test]
fn the_period_of_a_quota_moves_without_a_gap() {
    for v2 in [false, true] {
        let mut points = 0;
        for crash in 0.. {
            let fake = machine(v2);
            let before = fake.snapshot();
            let mut host = fake.another();
            let mut reconciler = Reconciler::new(instance(), &mut host).unwrap();
            round(&mut reconciler, &mut host, 0);
            let start = fake.mutations().len();
            fake.crash_after(crash);
            let specs = specs();
            for (ms, period) in [(100, Some(10_000)), (200, Some(50_000)), (300, None)] {
                let adjust = |desired: &mut DesiredState| {
                    let batch =
                        desired.groups.iter_mut().find(|group| group.name.as_str() == "batch").unwrap();
                    batch.limits.cpu_period = period;
                };
                let request = PlanRequest { adjust: &adjust, ..PlanRequest::all(&specs) };
                let Ok(done) = reconciler.round(&mut host, ms, &request) else { break };
                if fake.is_crashed() {
                    break;
                }
                assert!(done.problems.is_empty(), "{:?}", done.problems);
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
            everything_back(&after, &before, &format!("crash {crash}"));
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

/// Sets a quota of `cpus` for another program's group, in addition to its other limits.
fn quota(desired: &mut DesiredState, cpus: u64) {
    let batch = desired.groups.iter_mut().find(|group| group.name.as_str() == "batch").unwrap();
    batch.limits.set(commensal_core::limit::CPU_MAX, commensal_core::units::MicroCpus(cpus * 1_000_000));
    batch.limits.cpu_period = (cpus == 3).then_some(50_000);
}

// promises 11, 18
#[test]
fn a_group_that_cannot_be_read_is_not_taken_for_gone() {
    for (v2, paths) in [
        (
            false,
            ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu/batch", "/sys/fs/cgroup/memory/commensal-offline"],
        ),
        (true, ["/sys/fs/cgroup", "/sys/fs/cgroup/batch", "/sys/fs/cgroup/commensal-offline"]),
    ] {
        for path in paths {
            for operation in ["open", "open child", "list"] {
                let fake = machine(v2);
                let before = fake.snapshot();
                let mut host = fake.another();
                let mut reconciler = Reconciler::new(instance(), &mut host).unwrap();
                round(&mut reconciler, &mut host, 0);
                let in_force = fake.snapshot();
                let what = format!("v2 {v2}: {operation} {path}");
                fake.trouble(Trouble {
                    operation,
                    path: path.to_owned(),
                    value: None,
                    effect: Effect::Fails(Errno::ENOMEM),
                    lasts: true,
                });
                let specs = specs();
                let done = reconciler.round(&mut host, 1_000, &PlanRequest::all(&specs));
                // The root of a hierarchy is not a child.
                if fake.no_trouble() > 0 {
                    let error = format!("{:?}", done.map(drop).expect_err(&what));
                    assert!(error.contains("Errno(12)"), "{what}: {error}");
                }
                assert_eq!(fake.snapshot(), in_force, "{what}");
                let next = round(&mut reconciler, &mut host, 2_000);
                assert!(next.problems.is_empty() && next.changes.is_empty(), "{what}: {:?}", next.problems);
                everything_back(&fake, &before, &what);
            }
        }
    }
}

/// A file that cannot be read once is reported, and its limit is in force after the next round.
// promises 11, 18
#[test]
fn a_value_that_cannot_be_read_is_not_taken_for_one_that_is_not_there() {
    for v2 in [false, true] {
        let fake = machine(v2);
        let before = fake.snapshot();
        let mut host = fake.another();
        let mut reconciler = Reconciler::new(instance(), &mut host).unwrap();
        round(&mut reconciler, &mut host, 0);
        let in_force = fake.snapshot();
        let changed = in_force.iter().filter(|(file, value)| before.get(*file) != Some(*value));
        let files: Vec<String> = changed.map(|(file, _)| file.clone()).collect();
        let mut read = 0;
        for path in files {
            for errno in [Errno::EIO, Errno::ENOMEM, Errno::EMFILE, Errno::EINTR] {
                let what = format!("v2 {v2}: {path}: {errno:?}");
                let fake = machine(v2);
                let mut host = fake.another();
                let mut reconciler = Reconciler::new(instance(), &mut host).unwrap();
                let effect = Effect::Fails(errno);
                fake.trouble(Trouble {
                    operation: "read",
                    path: path.clone(),
                    value: None,
                    effect,
                    lasts: false,
                });
                let specs = specs();
                let first = reconciler.round(&mut host, 0, &PlanRequest::all(&specs)).unwrap();
                if fake.no_trouble() == 0 {
                    continue;
                }
                read += 1;
                let told = first.problems.iter().any(|one| one.contains(&path));
                // A value that was read again in the same round is known.
                assert!(told || fake.snapshot() == in_force, "{what}: {:?}", first.problems);
                let next = round(&mut reconciler, &mut host, 1_000);
                assert!(next.problems.is_empty(), "{what}: {:?}", next.problems);
                assert_eq!(fake.snapshot(), in_force, "{what}");
                everything_back(&fake, &before, &what);
            }
        }
        assert!(read > 20, "v2 {v2}: {read} files read");
    }
}

/// Decisions of controllers are put in force without observing the machine, with the same result as a round. Nothing is
/// lost if the agent is killed at any write, or if a cgroup is removed meanwhile.
// promise 23
#[test]
fn what_is_decided_anew_needs_no_look() {
    for v2 in [false, true] {
        let mut points = 0;
        for crash in 0.. {
            let fake = machine(v2);
            let before = fake.snapshot();
            let mut host = fake.another();
            let mut reconciler = Reconciler::new(instance(), &mut host).unwrap();
            // The round that creates groups is followed by one that finds them.
            round(&mut reconciler, &mut host, 0);
            let mut last = round(&mut reconciler, &mut host, 10);
            fake.crash_after(crash);
            let specs = specs();
            for (ms, cpus, text) in [(100, 1, "100000"), (200, 3, "150000"), (300, 4, "400000")] {
                let adjust = |desired: &mut DesiredState| quota(desired, cpus);
                let request = PlanRequest { adjust: &adjust, ..PlanRequest::all(&specs) };
                let done = reconciler.adjust(&mut host, ms, &request, &mut last);
                if fake.is_crashed() {
                    break;
                }
                assert!(done.unwrap(), "{cpus}");
                assert_eq!(batch(&fake, v2).split(' ').next(), Some(text));
                // A full round finds nothing more to do.
                let whole = reconciler.round(&mut host, ms + 50, &request).unwrap();
                assert_eq!((whole.changes.len(), whole.problems.len()), (0, 0), "{:?}", whole.changes);
                assert_eq!(whole.planned.actual.ours, last.planned.actual.ours);
            }
            let crashed = fake.is_crashed();
            let after = fake.restart();
            everything_back(&after, &before, &format!("crash {crash}"));
            if !crashed {
                break;
            }
            points += 1;
        }
        println!("v2 {v2}: {points} crash points");
        assert!(points > 3, "{points}");
        // If a cgroup was removed meanwhile, a round is needed, and everything else is in force.
        let fake = machine(v2);
        let mut host = fake.another();
        let mut reconciler = Reconciler::new(instance(), &mut host).unwrap();
        round(&mut reconciler, &mut host, 0);
        let mut last = round(&mut reconciler, &mut host, 10);
        fake.vanish(if v2 { "/sys/fs/cgroup/batch" } else { "/sys/fs/cgroup/cpu/batch" });
        let specs = specs();
        let adjust = |desired: &mut DesiredState| {
            for group in &mut desired.groups {
                group.limits.set(commensal_core::limit::CPU_MAX, commensal_core::units::MicroCpus(500_000));
            }
        };
        let request = PlanRequest { adjust: &adjust, ..PlanRequest::all(&specs) };
        let done = reconciler.adjust(&mut host, 100, &request, &mut last);
        assert!(!done.is_ok_and(|done| done));
        let whole = reconciler.round(&mut host, 200, &request).unwrap();
        assert_eq!(whole.problems, [""; 0]);
    }
}
