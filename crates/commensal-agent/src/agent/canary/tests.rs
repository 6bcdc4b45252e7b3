//! Tests of rounds with and without isolation on fake machines, and of the sums of a window.

use super::measure::Of;
use super::*;
use crate::sense::GroupRates;
use commensal_core::config::parse;
use commensal_core::group::GroupName;
use commensal_core::units::MicroCpus;
use commensal_core::windows::Shown;
use commensal_host::fake::FakeHost;
use commensal_reconcile::{Instance, Reconciler, Round};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const MEMORY: u64 = 8 << 30;
const STATE: &str = "/state";
const GROUPS: &str = "[group.etl]\nclass = \"offline\"\ncpu.max = \"2 cores\"\nmemory.max = \"1 GiB\"\n\
    [group.batch]\nclass = \"offline\"\npids.max = 100\nmatch = [{ cgroup = \"/batch\" }]\n\
    [group.web]\nclass = \"online\"\ncpu.weight = 500\nmatch = [{ cgroup = \"/web\" }]\n\
    [group.db]\nclass = \"online\"\n";

/// A machine with the cgroups `/batch` and `/web`, which commensal did not create.
fn machine(v2: bool) -> FakeHost {
    let fake = if v2 { FakeHost::v2(4, MEMORY) } else { FakeHost::v1(4, MEMORY) };
    let mut host = fake.another();
    let roots: Vec<&str> = if v2 { vec![""] } else { vec!["cpu", "memory", "pids", "cpuset", "freezer"] };
    for root in roots {
        let root = host.open(&Path::new("/sys/fs/cgroup").join(root)).unwrap();
        host.mkdir(root, "batch").unwrap();
        host.mkdir(root, "web").unwrap();
    }
    fake
}

fn reconciler(host: &mut FakeHost) -> Reconciler {
    Reconciler::new(Instance::new(Path::new(STATE)), host).unwrap()
}

fn name(text: &str) -> GroupName {
    GroupName::new(text).unwrap()
}

/// Decisions of controllers: a frame (a restricted CPU set), quotas, and one group that is frozen because memory is
/// short.
fn decided() -> Decided {
    let wants = Wants {
        cpu_set: Some("2-3".parse().unwrap()),
        quotas: [(name("etl"), MicroCpus(500_000)), (name("batch"), MicroCpus(700_000))].into(),
        frozen: BTreeSet::from([name("batch")]),
        ..Wants::default()
    };
    Decided { wants, ..Decided::default() }
}

fn round(reconciler: &mut Reconciler, host: &mut FakeHost, ms: u64, off: bool) -> Round {
    let (specs, decided) = (parse("groups.toml", GROUPS).unwrap(), decided());
    let adjust = |desired: &mut DesiredState| adjust(off, &decided, desired);
    let request = PlanRequest { adjust: &adjust, ..PlanRequest::all(&specs) };
    reconciler.round(host, ms, &request).unwrap()
}

fn restored(fake: &FakeHost) {
    let mut host = fake.another();
    let boot_id = commensal_sensors::machine::boot_id(&host).unwrap();
    let restored = commensal_reconcile::restore(&mut host, Path::new(STATE), &boot_id, true).unwrap();
    assert!(restored.failed.is_empty() && restored.left.is_empty(), "{restored:?}");
}

// promise 29
#[test]
fn without_isolation_there_are_originals_and_what_the_user_wrote() {
    for v2 in [false, true] {
        let fake = machine(v2);
        let before = fake.snapshot();
        let mut host = fake.another();
        let mut reconciler = reconciler(&mut host);
        round(&mut reconciler, &mut host, 0, false);
        let on = fake.snapshot();
        let file = |snapshot: &BTreeMap<String, String>, v1: &str, unified: &str| {
            let path = format!("/sys/fs/cgroup/{}", if v2 { unified } else { v1 });
            snapshot.get(&path).unwrap_or_else(|| panic!("{path}")).trim().to_owned()
        };
        for ms in [1_000, 11_000, 21_000] {
            let done = round(&mut reconciler, &mut host, ms, true);
            assert!(!done.changes.is_empty() && done.problems.is_empty(), "{:?}", done.problems);
            let off = fake.snapshot();
            // The groups that compete with online work have their original values again; limits that the user wrote
            // stay.
            for group in ["commensal-offline", "batch"] {
                let idle = file(&off, &format!("cpu/{group}/cpu.idle"), &format!("{group}/cpu.idle"));
                assert_eq!(idle, "0", "v2 {v2}: {group}");
            }
            let quota =
                file(&off, "cpu/commensal-offline/etl/cpu.cfs_quota_us", "commensal-offline/etl/cpu.max");
            assert_eq!(quota.split(' ').next(), Some("200000"));
            let quota = file(&off, "cpu/batch/cpu.cfs_quota_us", "batch/cpu.max");
            assert!(["-1", "max 100000"].contains(&quota.as_str()), "{quota}");
            let memory = "commensal-offline/etl/memory.max";
            let memory = file(&off, "memory/commensal-offline/etl/memory.limit_in_bytes", memory);
            assert_eq!(memory, (1u64 << 30).to_string());
            assert_eq!(file(&off, "pids/batch/pids.max", "batch/pids.max"), "100");
            // Groups that are frozen because memory is short stay frozen, and online groups keep all their settings.
            let frozen = file(&off, "freezer/batch/freezer.state", "batch/cgroup.freeze");
            assert!(["FROZEN", "1"].contains(&frozen.as_str()), "{frozen}");
            for online in ["web", "commensal-online"] {
                let weight =
                    |of| file(of, &format!("cpu/{online}/cpu.shares"), &format!("{online}/cpu.weight"));
                assert_eq!(weight(&off), weight(&on), "{online}");
            }
            assert!(round(&mut reconciler, &mut host, ms + 500, true).changes.is_empty(), "it is in force");
            // Isolation is restored exactly.
            let done = round(&mut reconciler, &mut host, ms + 5_000, false);
            assert!(done.problems.is_empty(), "{:?}", done.problems);
            assert_eq!(fake.snapshot(), on, "v2 {v2}");
            let drift = reconciler.drift(ms + 5_000, &done.planned.actual);
            assert!(drift.is_empty(), "nobody else wrote: {drift:?}");
        }
        round(&mut reconciler, &mut host, 31_000, true);
        restored(&fake);
        assert_eq!(fake.snapshot(), before, "v2 {v2}");
    }
}

/// The agent is killed at any write while isolation is removed or restored: the next round restores isolation, and
/// `restore` restores all originals.
// promise 29
#[test]
fn killed_while_isolation_is_switched() {
    for v2 in [false, true] {
        let before = machine(v2).snapshot();
        for to_off in [true, false] {
            let mut points = 0;
            for crash in 0.. {
                let fake = machine(v2);
                let mut host = fake.another();
                let mut first = reconciler(&mut host);
                // The run also starts without isolation: then there is no frame, and the frame's groups must be
                // created.
                round(&mut first, &mut host, 0, !to_off);
                let on = {
                    let calm = machine(v2);
                    let mut host = calm.another();
                    round(&mut reconciler(&mut host), &mut host, 0, false);
                    calm.snapshot()
                };
                fake.crash_after(crash);
                let specs = parse("groups.toml", GROUPS).unwrap();
                let decided = decided();
                let adjust = |desired: &mut DesiredState| adjust(to_off, &decided, desired);
                let request = PlanRequest { adjust: &adjust, ..PlanRequest::all(&specs) };
                let _ = first.round(&mut host, 1_000, &request);
                if !fake.is_crashed() {
                    break;
                }
                points += 1;
                let after = fake.restart();
                let mut host = after.another();
                let mut next = reconciler(&mut host);
                let done = round(&mut next, &mut host, 0, false);
                assert!(done.problems.is_empty(), "crash {crash}: {:?}", done.problems);
                assert_eq!(after.snapshot(), on, "v2 {v2}, to off {to_off}, crash {crash}");
                restored(&after);
                assert_eq!(after.snapshot(), before, "v2 {v2}, to off {to_off}, crash {crash}");
            }
            println!("v2 {v2}, to off {to_off}: {points} crash points");
            assert!(points > 5, "{points}");
        }
    }
}

fn sample(seconds: f64, delay: Option<f64>) -> Sample {
    let rates = GroupRates {
        run_delay_ms_per_s: delay,
        pressure_pct: [Some(10.0), None, Some(0.0)],
        cpus: Some(0.5),
        ..GroupRates::default()
    };
    Sample { seconds, groups: [("web".to_owned(), rates.into())].into(), ..Sample::default() }
}

#[test]
fn sums_of_a_window_are_weighted_and_missing_stays_missing() {
    let online = ["web".to_owned()];
    let of = |web: Of| BTreeMap::from([("web".to_owned(), web)]);
    let mut measured = Measured::new(Some(of((1_000_000, 0))));
    measured.add(&sample(1.0, Some(100.0)), &online);
    measured.add(&sample(3.0, Some(20.0)), &online);
    let figures = measured.figures(Some(&of((31_000_000, 500_000_000))))["web"];
    assert_eq!((figures.run_delay_ms_per_s, figures.blamed_ms_per_cpu_s), (Some(40.0), Some(60.0)));
    assert_eq!((figures.pressure_pct, figures.cpus), ([Some(10.0), None, Some(0.0)], Some(0.5)));
    // Three cases: a thread that has not left its CPU, a probe that has failed, a sample that has failed.
    assert_eq!(measured.figures(Some(&of((1_000_000, 0))))["web"].blamed_ms_per_cpu_s, Some(0.0));
    assert_eq!(measured.figures(None)["web"].blamed_ms_per_cpu_s, None);
    measured.add(&sample(1.0, None), &online);
    assert_eq!(measured.figures(None)["web"].run_delay_ms_per_s, None);
}

/// Runs a canary on a fake machine without a probe, with a tick every half second of a simulated clock. `delay` returns
/// the run delay of `web` in the tick before a time (ms per second).
fn run_canary(request: Request, mut delay: impl FnMut(Side, Option<u32>, u64) -> f64) -> Report {
    const TICK_MS: u64 = 500;
    let fake = machine(true);
    let mut host = fake.another();
    let planned = round(&mut reconciler(&mut host), &mut host, 0, false).planned;
    let mut running = Running::new(Canary::new(request.terms(), 0).unwrap(), request, 1, 0);
    let online = ["web".to_owned()];
    for tick in 1.. {
        let now_ms = tick * TICK_MS;
        let pair = running.canary.window().map(|window| window.pair);
        let waited = delay(running.switch.in_force, pair, now_ms);
        running.take_in(&sample(TICK_MS as f64 / 1e3, Some(waited)), &online);
        if let Some(end) = running.advance(&host, now_ms, &planned) {
            running.canary.end(now_ms);
            return running.report(now_ms, Some(end));
        }
        running.in_force();
    }
    unreachable!("it ends")
}

/// Run delay of a group that suffers no harm.
fn calm(at_ms: u64) -> f64 {
    20.0 + (at_ms / 500 * 7 % 11) as f64
}

#[test]
fn a_canary_ends_when_it_is_decided_or_hopeless() {
    let harmed = |side: Side, at_ms: u64| calm(at_ms) + if side == Side::Off { 60.0 } else { 0.0 };
    let ended = |report: &Report| report.ended.clone().unwrap();
    let shown = |report: &Report| report.effects().iter().any(|one| one.shown == Shown::Effect);
    // There are 29 pairs, and interim analyses after 15 and 22 of them.
    let early = run_canary(Request::default(), |side, _, at| harmed(side, at));
    assert_eq!((ended(&early), early.windows.len()), (End::Decided.words().to_owned(), 30), "{early:?}");
    assert!(shown(&early) && early.level.unwrap() < 0.002, "{:?}", early.level);
    // With `whole`, the canary runs to its end, and all of the allowed error is left.
    let whole = run_canary(Request { whole: true, ..Request::default() }, |side, _, at| harmed(side, at));
    assert_eq!((ended(&whole), whole.windows.len()), (End::Complete.words().to_owned(), 58));
    assert!(shown(&whole) && whole.level == Some(0.025), "{:?}", whole.level);
    // Without an effect, the canary runs to its end, with the error that the interim analyses have left.
    let nothing = run_canary(Request::default(), |_, _, at| calm(at));
    assert_eq!(ended(&nothing), End::Complete.words());
    assert!(!shown(&nothing) && (0.01..0.02).contains(&nothing.level.unwrap()), "{:?}", nothing.level);
    // If another program causes a burst in every window, nearly all pairs are void, whichever window has the burst, and
    // the canary ends without a result.
    let burst = |side, pair: Option<u32>, at| match pair {
        Some(pair) if pair > 1 && side == Side::On => 900.0,
        _ => calm(at),
    };
    let hopeless = run_canary(Request::default(), burst);
    assert_eq!(ended(&hopeless), End::Hopeless.words(), "{:?}", hopeless.aborted);
    assert!(hopeless.aborted.iter().all(|why| why.contains("isolation on: group web waited 900 ms")));
}

/// The limits apply to both windows of a pair, but only harm without isolation ends the canary.
// promise 29
#[test]
fn what_goes_beyond_the_limits_voids_its_pair_on_either_side() {
    for side in [Side::On, Side::Off] {
        let hit = |now: Side, pair: Option<u32>, at| match pair {
            Some(2 | 5 | 7 | 11) if now == side => 900.0,
            _ => calm(at),
        };
        let report = run_canary(Request::default(), hit);
        let void: Vec<&str> = report.aborted.iter().map(|why| why.split(',').next().unwrap()).collect();
        let whole = |pair: u32| report.windows.iter().filter(|window| window.pair == pair).count() == 2;
        let (ended, pairs) = match side {
            Side::On => (End::Complete, &["pair 3", "pair 6", "pair 8", "pair 12"][..]),
            Side::Off => (End::Harm, &["pair 3", "pair 6", "pair 8"][..]),
        };
        assert_eq!((report.ended.as_deref(), &void[..]), (Some(ended.words()), pairs), "{side:?}");
        assert!(![2, 5, 7].into_iter().any(whole) && whole(3), "{side:?}");
    }
}
