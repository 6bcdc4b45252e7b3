//! Closed loops on a toy machine: what controllers do changes what they measure next.

use super::topology;
use commensal_core::control::frame::{Frame, FrameInput, Use, theta};
use commensal_core::control::io::{Io, IoInput, Rates};
use commensal_core::control::latency::{Latency, LatencyInput, ProbeWaits};
use commensal_core::control::suppress::{Suppress, SuppressInput};
use commensal_core::cpuset::CpuSet;
use commensal_core::topology::{Device, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// A machine whose offline work uses all it may, beside online work that uses what it wants.
struct Toy {
    topology: Topology,
    frame: Frame,
    now: u64,
    /// CPUs that offline work has.
    offline: f64,
}

impl Toy {
    fn new(cores: u32) -> Toy {
        Toy { topology: topology(1, cores, 1), frame: Frame::new(CpuSet::new()), now: 0, offline: 0.0 }
    }

    /// One second with this online load; CPUs of the frame afterwards.
    fn second(&mut self, online: f64) -> usize {
        self.after(1_000, Some(online))
    }

    fn after(&mut self, ms: i64, online: Option<f64>) -> usize {
        self.now = self.now.saturating_add_signed(ms);
        let idle = self.topology.threads() as f64 - online.unwrap_or(0.0);
        let offline = self.offline.min(idle);
        let used =
            Use { busy: online.map(|online| online + offline), offline: Some(offline), ..Use::default() };
        let none = CpuSet::new();
        let input = FrameInput { topology: &self.topology, reserved: &none, used, cap: None, starved: false };
        let cpus = self.frame.step(self.now, &input).cpus.unwrap().len();
        self.offline = cpus as f64;
        cpus
    }
}

#[test]
fn a_step_of_online_load_takes_the_cpus_back_in_one_tick_and_gives_them_back_slowly() {
    let mut toy = Toy::new(16);
    let quiet: Vec<usize> = (0..30).map(|_| toy.second(2.0)).collect();
    assert_eq!(*quiet.last().unwrap(), 10, "0.8 * 16 - 2: {quiet:?}");
    assert!(quiet.windows(2).all(|pair| pair[1] >= pair[0] && pair[1] - pair[0] <= 2), "{quiet:?}");
    assert_eq!(toy.second(8.0), 4, "in the same tick");
    let after: Vec<usize> = (0..20).map(|_| toy.second(2.0)).collect();
    assert_eq!(after[..4], [4; 4], "held");
    assert_eq!(*after.last().unwrap(), 10);
}

#[test]
fn a_steady_load_moves_nothing_whatever_offline_work_does() {
    for online in [0.0, 1.0, 2.6, 6.3, 12.0, 16.0] {
        let mut toy = Toy::new(16);
        let sizes: Vec<usize> = (0..300).map(|_| toy.second(online)).collect();
        let changes = sizes[30..].windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert_eq!(changes, 0, "at {online}: {sizes:?}");
    }
}

#[test]
fn a_noisy_load_moves_the_frame_rarely() {
    // The frame of a peer moved every second (koordinator issue 1103).
    let mut toy = Toy::new(16);
    let mut state: u32 = 1;
    let mut changes = 0;
    let mut last = 0;
    for second in 0..600 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let noise = f64::from(state >> 16) / 65_536.0 - 0.5;
        let size = toy.second(4.8 + 1.5 * noise);
        changes += usize::from(second > 60 && size != last);
        last = size;
    }
    assert!(changes <= 90, "{changes} changes in 540 s");
}

#[test]
fn a_sawtooth_lengthens_the_hold_until_the_frame_stops_swinging() {
    let mut toy = Toy::new(16);
    let mut growths = Vec::new();
    for _ in 0..20 {
        let sizes: Vec<usize> =
            (0..16).map(|second| toy.second(if second < 8 { 8.0 } else { 2.0 })).collect();
        assert!(sizes[..8].iter().all(|size| *size <= 4), "never above the headroom at high load: {sizes:?}");
        growths.push(sizes.windows(2).filter(|pair| pair[1] > pair[0]).count());
    }
    let late: usize = growths[10..].iter().sum();
    assert!(growths[1] > 0 && late * 2 <= growths[1] * 10, "half of the swings at most: {growths:?}");
}

// promise 23
#[test]
fn missing_figures_hold_the_frame_and_then_shrink_it_to_a_core() {
    let mut toy = Toy::new(16);
    (0..30).for_each(|_| {
        toy.second(2.0);
    });
    let sizes: Vec<usize> = (0..8).map(|_| toy.after(1_000, None)).collect();
    assert_eq!(sizes, [10, 10, 10, 10, 1, 1, 1, 1]);
    let back: Vec<usize> = (0..20).map(|_| toy.second(2.0)).collect();
    assert_eq!((back[0], *back.last().unwrap()), (1, 10));
}

// promise 23
#[test]
fn a_clock_that_jumps_neither_opens_the_frame_nor_ends_a_hold_nor_prolongs_it() {
    let mut toy = Toy::new(16);
    (0..30).for_each(|_| {
        toy.second(2.0);
    });
    assert_eq!(toy.second(11.0), 1);
    assert_eq!(toy.after(1_000_000_000, Some(2.0)), 1, "a jump ahead ends no hold");
    assert_eq!(toy.after(-1_000_000_000, Some(2.0)), 1);
    let sizes: Vec<usize> = (0..4).map(|_| toy.second(2.0)).collect();
    assert!(sizes[3] > 1, "a jump back prolongs none: {sizes:?}");
    let jump = toy.after(1_000_000_000, Some(2.0));
    assert!(sizes[3] < jump && jump <= sizes[3] + 4, "growth is that of two seconds: {sizes:?}, {jump}");
    assert_eq!((0..10).map(|_| toy.second(2.0)).last(), Some(10));
}

#[test]
fn online_and_offline_together_stay_below_the_share_that_may_be_busy() {
    let mut toy = Toy::new(32);
    let mut unused = 0.0;
    for second in 0..1_000u32 {
        let online = 8.0 + 6.0 * (f64::from(second) / 60.0).sin();
        let size = toy.second(online) as f64;
        assert!(online + size <= 0.8 * 32.0 + 1e-6, "{online} + {size} at {second}");
        if second > 60 {
            unused += 0.8 * 32.0 - online - size;
        }
    }
    assert!(unused / 940.0 < 4.0, "{} CPUs of 32 unused on average", unused / 940.0);
}

/// Wait blamed on offline work, ms per online CPU-second: nothing up to `harmless` CPUs of offline work, then steeply.
fn blamed(offline: f64, harmless: f64) -> f64 {
    if offline <= harmless { 5.0 } else { 60.0 + 100.0 * (offline - harmless) }
}

fn latency_input(blamed_ms: Option<f64>, offline: f64) -> LatencyInput {
    LatencyInput {
        target_us: 100.0,
        measurable: true,
        probe: blamed_ms.map(|ms| ProbeWaits { blamed_ms_per_s: Some(2.0 * ms), ..ProbeWaits::default() }),
        online_cpus: Some(2.0),
        run_delay_ms_per_s: None,
        pressure_pct: None,
        offline_cpus: Some(offline),
        cpus: 16.0,
        core: 1.0,
        floor: 0.8,
    }
}

#[test]
fn a_rise_of_blamed_wait_is_answered_within_100_ms() {
    const TICK_MS: u64 = 50;
    for rise in (10_000..10_050).step_by(7) {
        let mut latency = Latency::new(Some(16.0));
        let mut offline = 8.0;
        let mut reaction = None;
        for now in (0..12_000u64).step_by(TICK_MS as usize) {
            // What the probe counted since the last call: the part of the tick after the rise.
            let after = now.saturating_sub(rise).min(TICK_MS) as f64 / TICK_MS as f64;
            let cap = latency.step(now, &latency_input(Some(5.0 + 395.0 * after), offline)).cap.unwrap();
            if cap < offline {
                offline = cap;
                reaction = reaction.or(Some(now - rise));
            }
        }
        let reaction = reaction.expect("an answer");
        assert!(reaction <= 100, "{reaction} ms for a rise at {rise}");
    }
}

#[test]
fn the_cap_finds_what_is_harmless_and_stays_below_it_nearly_always() {
    let (mut latency, mut offline) = (Latency::new(None), 0.8);
    let (mut harmful, mut total, mut ticks) = (0, 0.0, 0);
    for now in (0..1_200_000u64).step_by(100) {
        let input = latency_input(Some(blamed(offline, 6.0)), offline);
        offline = latency.step(now, &input).cap.unwrap();
        if now > 60_000 {
            ticks += 1;
            harmful += i32::from(offline > 6.0);
            total += offline;
        }
    }
    assert!(f64::from(harmful) / f64::from(ticks) < 0.02, "{harmful} of {ticks} ticks harmful");
    assert!(total / f64::from(ticks) > 4.0, "{} CPUs on average of 6 harmless", total / f64::from(ticks));
}

// promise 23
#[test]
fn a_probe_that_dies_leaves_offline_work_at_its_floor() {
    let mut latency = Latency::new(Some(16.0));
    let caps: Vec<f64> = (0..20u64)
        .map(|second| {
            let seen = (second < 5).then_some(5.0);
            latency.step(second * 1_000, &latency_input(seen, 4.0)).cap.unwrap()
        })
        .collect();
    assert_eq!((caps[8], caps[9], caps[19]), (16.0, 0.8, 0.8));
}

#[test]
fn cap_and_quota_together_do_not_swing() {
    let cpus = topology(1, 4, 1);
    let (mut latency, mut suppress) = (Latency::new(None), Suppress::new(None));
    let (mut offline, mut values) = (0.0, Vec::new());
    for second in 0..900u64 {
        let online = 0.6;
        let latency_input = LatencyInput {
            cpus: 4.0,
            floor: 0.2,
            online_cpus: Some(online),
            probe: Some(ProbeWaits {
                blamed_ms_per_s: Some(online * blamed(offline, 1.5)),
                ..ProbeWaits::default()
            }),
            ..latency_input(None, offline)
        };
        let cap = latency.step(second * 1_000, &latency_input).cap;
        let used = Use { busy: Some(online + offline), offline: Some(offline), ..Use::default() };
        let input = SuppressInput { theta: theta(&cpus), cpus: 4.0, core: 1.0, yields: true, used, cap };
        offline = suppress.step(second * 1_000, &input).quota.unwrap().0 as f64 / 1e6;
        values.push(offline);
    }
    let cuts = values[60..].windows(2).filter(|pair| pair[1] < pair[0] - 0.1).count();
    assert!(cuts <= 16, "about one try a minute: {cuts} cuts");
    let mean = values[60..].iter().sum::<f64>() / 840.0;
    assert!((1.0..=1.6).contains(&mean), "{mean}");
}

#[test]
fn a_disk_is_shared_so_that_online_work_waits_little_and_offline_work_keeps_going() {
    const MIB: f64 = 1_048_576.0;
    let disk = Device { major: 254, minor: 0 };
    let (online, shared) = (BTreeSet::from([disk]), BTreeSet::new());
    let (mut io, mut read, mut waits, mut total) = (Io::default(), 200.0, 0, 0.0);
    for second in 0..1_200u64 {
        // Online work waits when offline work reads more than 80 MiB/s.
        let pressure = if read > 80.0 { 12.0 } else { 1.0 };
        let offline = BTreeMap::from([(disk, Rates { read: Some(read * MIB), write: Some(0.0) })]);
        let input = IoInput {
            measurable: true,
            pressure_pct: Some(pressure),
            offline: &offline,
            online: Some(&online),
            shared: &shared,
        };
        let limit = io.step(second * 1_000, &input)[&disk].read;
        read = limit.map_or(200.0, |limit| limit.0 as f64 / MIB).min(200.0);
        if second > 60 {
            waits += i32::from(pressure > 5.0);
            total += read;
        }
    }
    assert!(waits < 120, "{waits} s of waiting in 1140");
    assert!(total / 1_139.0 > 40.0, "{} MiB/s on average of 80 harmless", total / 1_139.0);
}
