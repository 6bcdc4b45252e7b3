//! Against the kernel's own figure, wait by wait.

use super::world::{HOG, PULSE, Pulse, Scene};
use commensal_host::LinuxHost;
use commensal_testkit::until_every;
use std::time::Duration;

/// Waits that the kernel counted at all.
const WAITS: u64 = 100;
/// Of their sum. An emulated CPU takes 50 us between the two readings of the clock, and its waits are short.
const APART: f64 = 0.01;
const APART_EMULATED: f64 = 0.15;
/// Time between two looks at the sums.
const LOOK: Duration = Duration::from_millis(100);
/// No switch is as fast.
const LEAST_NS: u64 = 20;
/// Minimum number of looks, of which the median counts.
const LOOKS: usize = 5;

// promise 31
#[test]
fn the_kernel_counts_the_same() {
    let test = "the_kernel_counts_the_same";
    let Some((mut scene, cpu)) = Scene::on_one_cpu(test) else { return };
    let (web, etl) = (scene.group("web"), scene.group("etl"));
    scene.start("etl", Some(cpu), HOG);
    scene.pulse("web", Some(cpu), Pulse { threads: 2, ..PULSE });
    let probe = scene.probe(&[web], &[etl]);
    let mut counters = probe.read(&LinuxHost::new()).unwrap().counters;
    let mut apart = Vec::new();
    until_every(LOOK, format_args!("{WAITS} waits were counted in {LOOKS} looks"), || {
        let now = probe.read(&LinuxHost::new()).unwrap().counters;
        let (here, there) = (now.checked_ns - counters.checked_ns, now.kernel_ns - counters.kernel_ns);
        counters = now;
        if there > 0 {
            apart.push(here.abs_diff(there) as f64 / there as f64);
        }
        counters.checked >= WAITS && apart.len() >= LOOKS
    });
    println!(
        "{test}: {} waits, {} ns here and {} ns there; {} more waits of {} ns, which the kernel counted as 0",
        counters.checked,
        counters.checked_ns,
        counters.kernel_ns,
        counters.kernel_zero,
        counters.kernel_zero_ns
    );
    // A hypervisor may take the CPU away between the two clock readings of one wait; that is in one look.
    apart.sort_by(f64::total_cmp);
    let apart = apart[apart.len() / 2];
    let emulated = std::env::var_os("COMMENSAL_VM").is_some();
    let bound = if emulated { APART_EMULATED } else { APART };
    assert!(apart <= bound, "{:.2} % apart", apart * 100.0);
    // Wake-ups that preempt at once: the kernel did not set its clock in between, and whoever takes the time from it has waits of 0.
    // An emulated CPU has a few of them in a hundred waits, and sometimes none.
    let (none, none_ns) = (counters.kernel_zero, counters.kernel_zero_ns);
    assert!(
        none_ns > LEAST_NS * none || emulated && none == 0,
        "{none} waits of {none_ns} ns, which the kernel counted as 0"
    );
}
