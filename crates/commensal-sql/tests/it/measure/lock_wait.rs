//! Why a limit inside this process is no quota of the kernel: what it does to somebody who needs the same lock.
//!
//! After `reference/limiters/cpulock.rs`: two offline tasks hold a shared lock for a fifth of their time, one online
//! thread takes it every 3 ms. Both arms give the offline side 0.4 CPUs; a quota stops its threads wherever they are,
//! also with the lock in hand.

use commensal_sql::engine::cpu::Charged;
use commensal_sql::engine::group::Group;
use commensal_sql::engine::query::{Identity, Query};
use commensal_sql::engine::settings::Settings;
use commensal_sql::engine::terms::QueryLimits;
use commensal_sql::statement::UserName;
use commensal_testkit::holds_within;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long an arm is measured.
const ARM: Duration = Duration::from_millis(1_500);
/// Rounds of both arms.
const ROUNDS: usize = 3;
/// Millionths of a CPU for the offline side.
const RATE: u64 = 400_000;

struct Work {
    lock: Mutex<u64>,
    over: AtomicBool,
}

/// One millisecond of work, a fifth of it under the lock.
fn piece(work: &Work) {
    let spin = |time: Duration| {
        let begun = Instant::now();
        while begun.elapsed() < time {
            std::hint::spin_loop();
        }
    };
    spin(Duration::from_micros(800));
    let mut held = work.lock.lock().unwrap();
    *held += 1;
    spin(Duration::from_micros(200));
}

/// How long the online side has waited for the lock, in all.
fn online(work: &Work) -> Duration {
    let begun = Instant::now();
    let mut waited = Duration::ZERO;
    while begun.elapsed() < ARM {
        // The online side's own pace.
        std::thread::sleep(Duration::from_millis(3));
        let asked = Instant::now();
        *work.lock.lock().unwrap() += 1;
        waited += asked.elapsed();
    }
    work.over.store(true, Relaxed);
    waited
}

fn new_work() -> Arc<Work> {
    Arc::new(Work { lock: Mutex::new(0), over: AtomicBool::new(false) })
}

fn cooperative(group: &Arc<Group>) -> Duration {
    let work = new_work();
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let identity = Identity::new(0, UserName::anywhere("root"), String::new());
        let limits = QueryLimits { slots: 1, memory: None, timeout: None, execution: None, slow_after: None };
        let query = Query::new(identity, limits, group.accounts());
        let work = Arc::clone(&work);
        let task = Box::pin(async move {
            while !work.over.load(Relaxed) {
                piece(&work);
                tokio::task::yield_now().await;
            }
        });
        tasks.push(group.runtime().unwrap().spawn(Charged::new(task, query)));
    }
    let waited = online(&work);
    group.timer.block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
    });
    waited
}

/// A cgroup of version 1 with a quota, for threads; gone at the end.
struct Quota(PathBuf);

impl Quota {
    fn new() -> Result<Quota, String> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let is_cpu = |line: &&str| {
            let mut words = line.split(' ').skip(2);
            words.next() == Some("cgroup")
                && words.next().is_some_and(|options| options.split(',').any(|o| o == "cpu"))
        };
        let mount = mounts.lines().find(is_cpu).and_then(|line| line.split(' ').nth(1));
        let mount = mount.ok_or("no cgroup v1 cpu controller, whose groups take single threads")?;
        let path = Path::new(mount).join(format!("commensal-lock-wait-{}", std::process::id()));
        std::fs::create_dir(&path).map_err(|error| format!("cannot make {}: {error}", path.display()))?;
        let quota = Quota(path);
        let quota_us = RATE / 10;
        std::fs::write(quota.0.join("cpu.cfs_quota_us"), quota_us.to_string())
            .map_err(|error| format!("cannot set a quota: {error}"))?;
        Ok(quota)
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // Threads that have ended leave it a moment later.
        holds_within(Duration::from_secs(2), || std::fs::remove_dir(&self.0).is_ok());
    }
}

fn with_quota(quota: &Quota) -> Duration {
    let work = new_work();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                std::fs::write(quota.0.join("tasks"), "0").unwrap();
                while !work.over.load(Relaxed) {
                    piece(&work);
                }
            });
        }
        online(&work)
    })
}

// promise 46
#[test]
fn a_limit_of_ours_stops_nobody_with_a_lock_in_hand() {
    let quota = match Quota::new() {
        Ok(quota) => quota,
        Err(why) => return println!("skipped: a_limit_of_ours_stops_nobody_with_a_lock_in_hand: {why}"),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let group = {
        let _entered = runtime.enter();
        let settings = Settings { cpu_max: Some(RATE), ..Settings::default() };
        Group::new(1, "lock", settings, 2).unwrap()
    };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let begun = Instant::now();
    for _ in 0..ROUNDS {
        ours.push(cooperative(&group));
        theirs.push(with_quota(&quota));
    }
    let used = group.cpu.charged_ns() as f64 / (ARM * ROUNDS as u32).as_nanos() as f64;
    ours.sort();
    theirs.sort();
    println!(
        "online side waited {ours:?} with tokens, {theirs:?} with a quota; {:?} in all",
        begun.elapsed()
    );
    println!("the offline side used {used:.3} CPUs with tokens");
    // Other work on the machine only adds to a wait, so the shortest of each kind are compared.
    assert!(theirs[0] > ours[0] * 2, "{theirs:?} {ours:?}");
    // The burst of each round comes on top.
    assert!(used < 0.5, "{used}");
}
