//! Mechanisms, ranked by the judge: `commensal blame`, which knows nothing of the scheduler, says what online threads meet
//! beside offline work that is held back in one way or another.

use crate::deep::bench::{Group, Loaded, Spinner, can_load, cpus, offline, online};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

const ROUNDS: usize = 3;
/// Of one look.
const LOOK: &str = "3s";
/// Mechanisms that hold offline work back are apart from those that do not by this at least, on medians.
const APART: f64 = 2.0;
/// Offline time on the sibling of a thread that expels, of the same without.
const MOST_OF_OVERLAP: f64 = 0.25;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Arm {
    Equal,
    CpuIdle,
    Cpuset,
    Scheduler,
    Expelling,
}

const ARMS: [(Arm, &str); 5] = [
    (Arm::Equal, "equal weights"),
    (Arm::CpuIdle, "cpu.idle"),
    (Arm::Cpuset, "cpuset split"),
    (Arm::Scheduler, "sched_ext"),
    (Arm::Expelling, "sched_ext, expel"),
];

/// What a look saw.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// Wait blamed on offline work, ms per CPU-second of the online threads.
    blamed: f64,
    /// Offline work on the sibling, of the online threads' CPU time.
    overlap: f64,
    /// Offline work off a sibling, us; 0 when it never had to leave.
    evict_p50: f64,
    evict_p99: f64,
    evictions: f64,
    stayed: f64,
    intrusions: f64,
    /// Offline work off a CPU that an online thread woke on, us.
    preempt_p99: f64,
    /// CPUs in use.
    online: f64,
    offline: f64,
}

/// The program, beside ours.
fn commensal() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_commensal-sched")).with_file_name("commensal")
}

fn look(web: &Group, batch: &Group) -> Seen {
    let name = |group: &Group| format!("/{}", group.path.file_name().unwrap().to_str().unwrap());
    let (before, began) = (batch.used(), Instant::now());
    let mut command = Command::new(commensal());
    command.args(["blame", &name(web), "--against", &name(batch), "--for", LOOK, "--json"]);
    let output = command.output().unwrap();
    let (used, took) = (batch.used() - before, began.elapsed().as_secs_f64());
    let said: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let number = |value: &Value| value.as_f64().unwrap_or(0.0);
    let run = number(&said["run_s"]);
    assert!(run > 0.0, "{said}");
    let rows = said["culprits"].as_array().unwrap();
    let offline: f64 =
        rows.iter().filter(|row| row["kind"] == "offline").map(|row| number(&row["ms_per_cpu_s"])).sum();
    Seen {
        blamed: offline,
        overlap: number(&said["overlap_ms"]) / 1e3 / run,
        evict_p50: number(&said["eviction"]["p50_us"]),
        evict_p99: number(&said["eviction"]["p99_us"]),
        evictions: number(&said["eviction"]["count"]),
        stayed: number(&said["stayed"]),
        intrusions: number(&said["intrusions"]),
        preempt_p99: number(&said["preemption"]["p99_us"]),
        online: run / number(&said["seconds"]),
        offline: used / took,
    }
}

fn allow(works: &[Spinner], cpus: &str) {
    for work in works {
        let done = Command::new("taskset").args(["-acp", cpus, &work.0.id().to_string()]).output().unwrap();
        assert!(done.status.success());
    }
}

fn median(all: &[Seen], of: impl Fn(&Seen) -> f64) -> f64 {
    let mut values: Vec<f64> = all.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Online pulses on the first core, offline spinners everywhere; one arm after the other, round by round.
fn rounds() -> Vec<(Arm, Vec<Seen>)> {
    let all = format!("0-{}", cpus() - 1);
    let (web, batch) = (Group::new("web"), Group::new("batch"));
    let _online = [web.start("pulse", "0"), web.start("pulse", "1")];
    let works: Vec<Spinner> = (0..cpus()).map(|_| batch.spin(&all)).collect();
    let loaded = Loaded::new(&[]);
    let mut seen: Vec<(Arm, Vec<Seen>)> = ARMS.iter().map(|(arm, _)| (*arm, Vec::new())).collect();
    for _ in 0..ROUNDS {
        for (arm, looks) in &mut seen {
            let idle = matches!(arm, Arm::CpuIdle | Arm::Scheduler | Arm::Expelling);
            batch.write("cpu.idle", if idle { "1" } else { "0" });
            allow(&works, if *arm == Arm::Cpuset { "2-3" } else { &all });
            let groups = match arm {
                Arm::Scheduler => vec![online(&web, false), offline(&batch)],
                Arm::Expelling => vec![online(&web, true), offline(&batch)],
                Arm::Equal | Arm::CpuIdle | Arm::Cpuset => Vec::new(),
            };
            assert!(loaded.order(&groups).status.success(), "{}", loaded.said());
            std::thread::sleep(std::time::Duration::from_millis(500));
            let before = loaded.status();
            looks.push(look(&web, &batch));
            let after = loaded.status();
            let of = |name: &str| {
                let at = |status: &Value| status["counters"][name].as_f64().unwrap();
                at(&after) - at(&before)
            };
            if *arm == Arm::Expelling {
                println!(
                    "judge: by its own count overlap {:.4}, {} evictions",
                    of("overlap_ns") / of("expelling_ns"),
                    of("evictions")
                );
            }
        }
    }
    seen
}

#[test]
fn mechanisms_are_ranked_by_an_independent_judge() {
    const NAME: &str = "judge::mechanisms_are_ranked_by_an_independent_judge";
    if !can_load(NAME) {
        return;
    }
    if !commensal().exists() {
        println!("skipped: {NAME}: no {} here", commensal().display());
        return;
    }
    let seen = rounds();
    println!(
        "judge: medians of {ROUNDS} looks of {LOOK}: wait blamed on offline work (ms per CPU-second), overlap on siblings \
         (of online CPU time), evictions (count, P50, P99 us), stayed, intrusions, preemption P99 us, CPUs online, offline"
    );
    for ((_, looks), (_, name)) in seen.iter().zip(ARMS) {
        let of = |part: fn(&Seen) -> f64| median(looks, part);
        println!(
            "judge: {name:18} {:8.1} {:7.4} {:5.0} {:7.0} {:7.0} {:5.0} {:5.0} {:7.0} {:6.3} {:6.3}",
            of(|one| one.blamed),
            of(|one| one.overlap),
            of(|one| one.evictions),
            of(|one| one.evict_p50),
            of(|one| one.evict_p99),
            of(|one| one.stayed),
            of(|one| one.intrusions),
            of(|one| one.preempt_p99),
            of(|one| one.online),
            of(|one| one.offline),
        );
    }
    let of = |wanted: Arm, part: fn(&Seen) -> f64| {
        let (_, looks) = seen.iter().find(|(arm, _)| *arm == wanted).unwrap();
        median(looks, part)
    };
    let blamed = |arm| of(arm, |one| one.blamed);
    for arm in [Arm::CpuIdle, Arm::Cpuset, Arm::Scheduler, Arm::Expelling] {
        assert!(
            blamed(arm) * APART <= blamed(Arm::Equal),
            "{arm:?}: {} of {}",
            blamed(arm),
            blamed(Arm::Equal)
        );
    }
    let overlap = |arm| of(arm, |one| one.overlap);
    for arm in [Arm::CpuIdle, Arm::Scheduler] {
        let (with, without) = (overlap(Arm::Expelling), overlap(arm));
        assert!(with <= without * MOST_OF_OVERLAP, "{with} with expelling, {without} with {arm:?}");
    }
    // A split takes the other core's work away as well; what yields keeps what the online side leaves.
    let work = |arm| of(arm, |one| one.offline);
    assert!(work(Arm::Scheduler) > work(Arm::Cpuset), "{} of {}", work(Arm::Scheduler), work(Arm::Cpuset));
}
