//! Offline work held back by each mechanism, beside noise of other parties, on one CPU. The probe tells mechanisms that
//! protect from those that do not in every noise; the total wait, which anybody can measure, does not.
//!
//! `COMMENSAL_SCENARIOS=ROUNDSxSECONDS` runs all of them for long and prints the tables (with `--nocapture`).

use super::world::{HOG, PULSE, Pulse, Scene, look, per_cpu_second};
use commensal_blame::figures::Kind;
use commensal_core::rng::Rng;
use commensal_core::stats::{mean, mean_t_interval, median};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

/// Medians of protected and unprotected arms are apart by this factor at least.
const APART: f64 = 2.0;
/// Fewer delays say nothing about a 99th percentile in a short look.
const DELAYS: u64 = 20;
/// Rounds and seconds of a look when nobody asked for more.
const SHORT: (u32, f64) = (3, 0.8);
/// How often that much.
const BATCHES: u32 = 3;

/// How the offline group is held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Arm {
    None,
    Equal,
    SchedIdle,
    Nice,
    Quota100,
    Quota10,
    Weight,
    Idle,
    IdleAndSchedIdle,
    OtherCpu,
    Peers,
}

impl Arm {
    const ALL: [Arm; 11] = [
        Arm::None,
        Arm::Equal,
        Arm::Nice,
        Arm::SchedIdle,
        Arm::Quota100,
        Arm::Quota10,
        Arm::Weight,
        Arm::Idle,
        Arm::IdleAndSchedIdle,
        Arm::OtherCpu,
        Arm::Peers,
    ];
    const PROTECTED: [Arm; 2] = [Arm::Weight, Arm::Idle];
    const UNPROTECTED: [Arm; 4] = [Arm::Equal, Arm::SchedIdle, Arm::Quota100, Arm::Quota10];

    fn name(self) -> &'static str {
        match self {
            Arm::None => "no offline work",
            Arm::Equal => "equal weights",
            Arm::Nice => "nice 19",
            Arm::SchedIdle => "SCHED_IDLE threads",
            Arm::Quota100 => "quota 20 ms of 100 ms",
            Arm::Quota10 => "quota 2 ms of 10 ms",
            Arm::Weight => "smallest weight",
            Arm::Idle => "cpu.idle",
            Arm::IdleAndSchedIdle => "cpu.idle, SCHED_IDLE threads",
            Arm::OtherCpu => "another CPU (cpuset split)",
            Arm::Peers => "two online, no offline work",
        }
    }
}

/// Who else is on the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Noise {
    Quiet,
    Hog,
    Bursts,
}

impl Noise {
    const ALL: [Noise; 3] = [Noise::Quiet, Noise::Hog, Noise::Bursts];

    fn name(self) -> &'static str {
        match self {
            Noise::Quiet => "quiet",
            Noise::Hog => "a foreign hog",
            Noise::Bursts => "foreign bursts",
        }
    }
}

/// What one look saw.
#[derive(Debug, Clone, Copy)]
struct Cell {
    offline: f64,
    other: f64,
    peers: f64,
    total: f64,
    delays: u64,
    preempt_p99_us: Option<f64>,
    wake_p99_us: Option<f64>,
    offline_cpu: f64,
}

/// Makes the world, looks at it, and takes it away.
fn cell(scene: &mut Scene, cpu: u32, arm: Arm, noise: Noise, seed: u64, time: f64) -> Cell {
    let (web, mut etl) = (scene.group("web"), scene.group("etl"));
    match arm {
        Arm::Quota100 | Arm::Quota10 => {
            let (quota, period) = if arm == Arm::Quota100 { (20_000, 100_000) } else { (2_000, 10_000) };
            if scene.unified {
                scene.set("etl", "cpu.max", &format!("{quota} {period}"));
            } else {
                scene.set("etl", "cpu.cfs_period_us", &period.to_string());
                scene.set("etl", "cpu.cfs_quota_us", &quota.to_string());
            }
        }
        Arm::Weight if scene.unified => scene.set("etl", "cpu.weight", "1"),
        Arm::Weight => scene.set("etl", "cpu.shares", "2"),
        Arm::Idle | Arm::IdleAndSchedIdle => scene.set("etl", "cpu.idle", "1"),
        _ => {}
    }
    let hog = match arm {
        Arm::None | Arm::Peers => None,
        Arm::SchedIdle | Arm::IdleAndSchedIdle => Some(format!("exec chrt -i 0 sh -c '{HOG}'")),
        Arm::Nice => Some(format!("exec nice -n 19 sh -c '{HOG}'")),
        _ => Some(HOG.to_owned()),
    };
    // Not where this test would have to share a CPU with all the weight that there is.
    let aside = format!("{}-aside", scene.top.display());
    match (hog, arm) {
        (Some(hog), Arm::OtherCpu) => {
            etl = scene.group(&aside);
            scene.start(&aside, Some(0), &hog);
        }
        (Some(hog), _) => {
            scene.start("etl", Some(cpu), &hog);
        }
        (None, _) => {}
    }
    let threads = if arm == Arm::Peers { 2 } else { 1 };
    scene.pulse("web", Some(cpu), Pulse { threads, seed, ..PULSE });
    match noise {
        Noise::Quiet => {}
        Noise::Hog => {
            scene.group("noise");
            scene.start("noise", Some(cpu), HOG);
        }
        Noise::Bursts => {
            scene.group("noise");
            let bursts = Pulse { threads: 2, period_us: 2_500, work_us: 600, seed: seed + 1_000 };
            scene.pulse("noise", Some(cpu), bursts);
        }
    }
    let probe = scene.probe(&[web], &[etl]);
    let figures = look(&probe, Duration::from_secs_f64(time));
    scene.clear();
    if arm == Arm::OtherCpu {
        scene.remove(&aside);
    }
    let p99 = |of: &commensal_blame::Histogram| of.quantile(0.99).map(|ns| ns / 1e3);
    Cell {
        offline: per_cpu_second(&figures, Kind::Offline),
        other: per_cpu_second(&figures, Kind::Other),
        peers: per_cpu_second(&figures, Kind::Online),
        total: figures.per_cpu_second(figures.wait.sum()).unwrap_or(f64::NAN),
        delays: figures.preempt_delay.count(),
        preempt_p99_us: p99(&figures.preempt_delay),
        wake_p99_us: p99(&figures.wake_delay),
        offline_cpu: figures.cpu.of(Kind::Offline) as f64 / figures.time_ns as f64,
    }
}

type Cells = BTreeMap<(Noise, Arm), Vec<Cell>>;

/// All arms in all noises, in an order of chance in every round.
fn measure(scene: &mut Scene, cpu: u32, arms: &[Arm], (rounds, time): (u32, f64), cells: &mut Cells) {
    for _ in 0..rounds {
        let round = cells.values().next().map_or(0, Vec::len) as u64;
        let mut order: Vec<(Arm, Noise)> =
            arms.iter().flat_map(|arm| Noise::ALL.map(|noise| (*arm, noise))).collect();
        Rng::new(round).shuffle(&mut order);
        for (arm, noise) in order {
            let one = cell(scene, cpu, arm, noise, round * 100 + arm as u64, time);
            cells.entry((noise, arm)).or_default().push(one);
        }
    }
}

fn middle(cells: &[Cell], value: impl Fn(&Cell) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = cells.iter().filter_map(value).filter(|value| value.is_finite()).collect();
    median(&values)
}

fn table(cells: &Cells) -> String {
    let mut out = String::from(
        "| noise | offline work | wait blamed on offline, ms per CPU-s: median, mean [95 %] | on other | on peers | all | wake-up P99, us | preemption P99, us (n) | offline CPUs |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    let show = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |value| format!("{value:.1}"));
    for ((noise, arm), all) in cells {
        let offline: Vec<f64> = all.iter().map(|one| one.offline).collect();
        let interval = mean_t_interval(&offline).zip(mean(&offline));
        let interval = interval.map_or_else(String::new, |(of, mean)| {
            format!(", {mean:.1} [{:.1}, {:.1}]", of.lo.max(0.0), of.hi)
        });
        let delays: u64 = all.iter().map(|one| one.delays).sum();
        let _ = writeln!(
            out,
            "| {} | {} | {}{interval} | {} | {} | {} | {} | {} ({delays}) | {} |",
            noise.name(),
            arm.name(),
            show(middle(all, |one| Some(one.offline))),
            show(middle(all, |one| Some(one.other))),
            show(middle(all, |one| Some(one.peers))),
            show(middle(all, |one| Some(one.total))),
            show(middle(all, |one| one.wake_p99_us)),
            show(middle(all, |one| one.preempt_p99_us)),
            middle(all, |one| Some(one.offline_cpu)).map_or_else(String::new, |cpus| format!("{cpus:.2}")),
        );
    }
    out
}

/// Largest or smallest median of some arms.
fn extreme(
    cells: &Cells,
    arms: &[Arm],
    noises: &[Noise],
    value: impl Fn(&Cell) -> Option<f64> + Copy,
    pick: fn(f64, f64) -> f64,
) -> f64 {
    let keys = arms.iter().flat_map(|arm| noises.iter().map(move |noise| (*noise, *arm)));
    keys.filter_map(|key| middle(cells.get(&key)?, value)).reduce(pick).unwrap()
}

// promise 32
#[test]
fn protection_shows_in_every_noise() {
    let test = "protection_shows_in_every_noise";
    let Some((mut scene, cpu)) = Scene::on_one_cpu(test) else { return };
    if !scene.has("cpu.idle") {
        println!("skipped: {test}: this kernel has no cpu.idle");
        return;
    }
    let asked = std::env::var("COMMENSAL_SCENARIOS").ok();
    let asked = asked.as_deref().and_then(|text| text.split_once('x'));
    let asked = asked.and_then(|(rounds, time)| Some((rounds.parse().ok()?, time.parse().ok()?)));
    let mut cells = Cells::new();
    if let Some(long) = asked {
        measure(&mut scene, cpu, &Arm::ALL, long, &mut cells);
    } else {
        let some: Vec<Arm> = Arm::PROTECTED.into_iter().chain(Arm::UNPROTECTED).collect();
        // More of the same where the machine is so busy that a few rounds do not do.
        for _ in 0..BATCHES {
            measure(&mut scene, cpu, &some, SHORT, &mut cells);
            if contradictions(&cells).is_empty() {
                break;
            }
        }
    }
    println!("{test}:\n{}", table(&cells));
    let wrong = contradictions(&cells);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What protects in which company. The smallest weight does not quite where third parties come and go: the kernel lets the
/// light group go on for a tick then (preemption P99 about 2 ms), half as bad as the mildest quota.
fn protected_from(noise: Noise) -> &'static [Arm] {
    match noise {
        Noise::Quiet | Noise::Hog => &Arm::PROTECTED,
        Noise::Bursts => &[Arm::Idle],
    }
}

/// What is not as it has to be.
fn contradictions(cells: &Cells) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut check = |holds: bool, what: String| {
        if !holds {
            wrong.push(what);
        }
    };
    let offline = |one: &Cell| Some(one.offline);
    for noise in Noise::ALL {
        let unprotected = extreme(cells, &Arm::UNPROTECTED, &[noise], offline, f64::min);
        let protected = extreme(cells, protected_from(noise), &[noise], offline, f64::max);
        let what = format!(
            "{}: unprotected from {unprotected:.1}, protected up to {protected:.1} ms per CPU-s",
            noise.name()
        );
        check(unprotected > APART * protected, what);
    }
    let weight = extreme(cells, &[Arm::Weight], &[Noise::Bursts], offline, f64::max);
    let unprotected = extreme(cells, &Arm::UNPROTECTED, &[Noise::Bursts], offline, f64::min);
    check(
        unprotected > weight,
        format!("bursts: unprotected from {unprotected:.1}, smallest weight {weight:.1} ms per CPU-s"),
    );
    // Also across noises: a verdict needs no quiet machine.
    let unprotected = extreme(cells, &Arm::UNPROTECTED, &Noise::ALL, offline, f64::min);
    let protected = extreme(cells, &[Arm::Idle], &Noise::ALL, offline, f64::max);
    check(
        unprotected > protected,
        format!("unprotected from {unprotected:.1}, cpu.idle up to {protected:.1} ms per CPU-s"),
    );
    let delay = |one: &Cell| one.preempt_p99_us.filter(|_| one.delays >= DELAYS);
    let long = extreme(cells, &Arm::UNPROTECTED, &[Noise::Quiet], delay, f64::min);
    let short = extreme(cells, &Arm::PROTECTED, &[Noise::Quiet], delay, f64::max);
    check(
        long > APART * short,
        format!("preemption P99: unprotected from {long:.0}, protected up to {short:.0} us"),
    );
    // What a person without the probe can see: all waits together.
    let total = |one: &Cell| Some(one.total);
    let worst = extreme(cells, &Arm::PROTECTED, &Noise::ALL, total, f64::max);
    let best = extreme(cells, &Arm::UNPROTECTED, &Noise::ALL, total, f64::min);
    check(
        worst > best,
        format!("all waits: protected up to {worst:.1}, unprotected from {best:.1} ms per CPU-s"),
    );
    wrong
}
