//! Against the kernel's own figure, wait by wait.

use super::{HOG, Scene};
use commensal_host::LinuxHost;
use std::time::Duration;

/// Waits that the kernel counted at all.
const WAITS: u64 = 100;
/// Of their sum. An emulated CPU takes 50 us between the two readings of the clock, and its waits are short.
const APART: f64 = 0.01;
const APART_EMULATED: f64 = 0.15;
/// No switch is as fast.
const LEAST_NS: u64 = 20;
/// Looks until enough waits were counted.
const PATIENCE: u32 = 20;

// promise 38
#[test]
fn the_kernel_counts_the_same() {
    let test = "the_kernel_counts_the_same";
    let Some((mut scene, cpu)) = Scene::on_one_cpu(test) else { return };
    let (web, etl) = (scene.group("web"), scene.group("etl"));
    scene.start("etl", Some(cpu), HOG);
    scene.pulse("web", Some(cpu), "--threads 2");
    let probe = scene.probe(&[web], &[etl]);
    let mut counters = probe.read(&LinuxHost::new()).unwrap().counters;
    for _ in 0..PATIENCE {
        std::thread::sleep(Duration::from_secs(1));
        counters = probe.read(&LinuxHost::new()).unwrap().counters;
        if counters.checked >= WAITS {
            break;
        }
    }
    println!(
        "{test}: {} waits, {} ns here and {} ns there; {} more waits of {} ns, which the kernel counted as 0",
        counters.checked,
        counters.checked_ns,
        counters.kernel_ns,
        counters.kernel_zero,
        counters.kernel_zero_ns
    );
    assert!(counters.checked >= WAITS, "only {} waits", counters.checked);
    let apart = counters.checked_ns.abs_diff(counters.kernel_ns) as f64 / counters.kernel_ns as f64;
    let bound = if std::env::var_os("COMMENSAL_VM").is_some() { APART_EMULATED } else { APART };
    assert!(apart <= bound, "{:.2} % apart", apart * 100.0);
    // Wake-ups that preempt at once: the kernel did not set its clock in between, and whoever takes the time from it has waits of 0.
    let (none, none_ns) = (counters.kernel_zero, counters.kernel_zero_ns);
    assert!(none_ns > LEAST_NS * none, "{none} waits of {none_ns} ns, which the kernel counted as 0");
}
