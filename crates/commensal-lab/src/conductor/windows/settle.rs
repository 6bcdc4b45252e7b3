//! Checks whether windows are long enough: latency by the time since the switch shows when an arm has settled, and the
//! median shows how long requests take.

use crate::record::{LatencyHistogram, Windows};

/// Number of requests that a time bucket needs to be evaluated.
const ENOUGH: u64 = 400;
/// Ratio by which a bucket's median must significantly exceed the later ones.
const SLOWER: f64 = 1.05;
/// Number of standard errors of a median that count as significant: one in 10,000 on either side.
const CERTAIN: f64 = 3.7;
/// Maximum guard, seconds: an arm that settles later needs long blocks.
const LONGEST_GUARD_S: f64 = 0.5;
/// Minimum length of a window in median latencies, so that few of its requests end in the next window.
const MEDIANS: f64 = 10.0;
/// Minimum guard and tail in median latencies, so that requests due before the switch have ended.
const AROUND: f64 = 2.0;

/// Measurements of one arm.
pub(super) struct ArmSample<'h> {
    /// Whether this arm determines the window length.
    pub decides: bool,
    /// Whether the arm is the service alone.
    pub alone: bool,
    /// Latencies by time bucket; the start of a bucket is in seconds since the switch.
    pub buckets: Vec<(f64, &'h LatencyHistogram)>,
}

/// Longer windows where these are too short, and the reason.
pub(super) fn lengthened(windows: Windows, seen: &[ArmSample<'_>]) -> Option<(Windows, String)> {
    let mut why = Vec::new();
    let mut longer = windows;
    let settled = seen.iter().filter(|arm| arm.decides).filter_map(|arm| settled_s(arm, windows.guard_s));
    if let Some(settled_s) = settled.reduce(f64::max) {
        longer.guard_s = settled_s.min(LONGEST_GUARD_S);
        why.push(format!("an arm settled only {:.0} ms after the switch", settled_s * 1e3));
    }
    let alone = seen.iter().filter(|arm| arm.alone).flat_map(|arm| &arm.buckets);
    let median = alone
        .filter(|(_, latency)| latency.len() >= ENOUGH / 4)
        .map(|(_, latency)| latency.value_at_quantile(0.5));
    if let Some(us) = median.max() {
        let median_s = us as f64 / 1e6;
        // With a tolerance, so that a second check does not restart the run for a few per cent.
        if median_s * MEDIANS > 1.25 * longer.window_s {
            longer.window_s = median_s * MEDIANS;
            longer.tail_s = median_s * AROUND;
            longer.guard_s = longer.guard_s.max(median_s * AROUND);
            longer.contended_s = longer.contended_s.max(longer.window_s);
            why.push(format!(
                "requests take {:.1} ms, and a window is to hold {MEDIANS} of that",
                median_s * 1e3
            ));
        }
    }
    if longer.guard_s > windows.guard_s {
        // Keeps the discarded share at a sixth.
        longer.window_s = longer.window_s.max(5.0 * longer.guard_s);
    }
    let changed = longer != windows;
    changed.then(|| {
        let ms = |seconds: f64| format!("{:.0} ms", seconds * 1e3);
        let now = format!(
            "windows of {} after a guard of {} instead of {} after {}",
            ms(longer.window_s),
            ms(longer.guard_s),
            ms(windows.window_s),
            ms(windows.guard_s)
        );
        (longer, format!("{}; {now}", why.join("; ")))
    })
}

/// When an arm had settled, if that was after the guard: the start of the bucket that follows the last one whose median
/// was significantly higher than later ones.
fn settled_s(arm: &ArmSample<'_>, guard_s: f64) -> Option<f64> {
    let after: Vec<&(f64, &LatencyHistogram)> =
        arm.buckets.iter().filter(|(from, latency)| *from >= guard_s && latency.len() >= ENOUGH).collect();
    let ((_, last), earlier) = after.split_last()?;
    let slower = |latency: &LatencyHistogram| bound(latency, -CERTAIN) > SLOWER * bound(last, CERTAIN);
    let index = earlier.iter().rposition(|(_, latency)| slower(latency))?;
    Some(after[index + 1].0)
}

/// A bound of the median in microseconds, from the ranks this many standard errors from the middle.
fn bound(latency: &LatencyHistogram, errors: f64) -> f64 {
    let rank = 0.5 + errors * 0.5 / (latency.len() as f64).sqrt();
    latency.value_at_quantile(rank.clamp(0.0, 1.0)) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Short;
    use crate::record::new_histogram;
    use crate::rng::Rng;

    const EDGES: [f64; 5] = [0.0, 0.01, 0.02, 0.05, 0.1];

    /// Log-normal latencies around these medians, one per bucket.
    fn latencies(rng: &mut Rng, medians: [f64; 5], requests: u64) -> Vec<LatencyHistogram> {
        let stretch = |median: f64| {
            let mut latency = new_histogram().unwrap();
            for _ in 0..requests {
                latency.saturating_record((median * (0.35 * rng.normal()).exp()) as u64);
            }
            latency
        };
        medians.map(stretch).into()
    }

    fn seen(latencies: &[LatencyHistogram]) -> ArmSample<'_> {
        ArmSample { decides: true, alone: true, buckets: EDGES.into_iter().zip(latencies).collect() }
    }

    // promise 47
    #[test]
    fn what_has_not_settled_lengthens_the_guard() {
        let windows = Short::default().windows;
        let mut rng = Rng::new(7);
        let mut check = |medians, guard_ms: Option<f64>| {
            let latencies = latencies(&mut rng, medians, 2_000);
            let got = lengthened(windows, &[seen(&latencies)]);
            let guard = got.as_ref().map(|(longer, _)| longer.guard_s * 1e3);
            assert_eq!(guard, guard_ms, "{medians:?}: {got:?}");
            if let Some((longer, why)) = got {
                assert!(longer.window_s >= 5.0 * longer.guard_s && why.contains("settled"), "{why}");
            }
        };
        check([200.0; 5], None);
        // Within the existing guard any latency is acceptable.
        check([2_000.0, 400.0, 200.0, 200.0, 200.0], None);
        check([2_000.0, 400.0, 300.0, 200.0, 200.0], Some(50.0));
        check([2_000.0, 400.0, 300.0, 300.0, 200.0], Some(100.0));
        // Latency that increases is not settling.
        check([200.0, 200.0, 200.0, 250.0, 300.0], None);
    }

    // promise 47
    #[test]
    fn chance_rarely_lengthens_it() {
        let (windows, mut rng, mut alarms) = (Short::default().windows, Rng::new(11), 0);
        for _ in 0..500 {
            let latencies = latencies(&mut rng, [200.0; 5], 1_200);
            alarms += u32::from(lengthened(windows, &[seen(&latencies)]).is_some());
        }
        assert!(alarms <= 5, "{alarms} of 500");
    }

    // promise 47
    #[test]
    fn slow_requests_lengthen_windows() {
        let (windows, mut rng) = (Short::default().windows, Rng::new(3));
        let latencies = latencies(&mut rng, [40_000.0; 5], 500);
        let (longer, why) = lengthened(windows, &[seen(&latencies)]).unwrap();
        assert!((0.36..0.44).contains(&longer.window_s), "{longer:?}");
        assert!(
            (0.07..0.09).contains(&longer.guard_s) && (0.07..0.09).contains(&longer.tail_s),
            "{longer:?}"
        );
        assert!(why.contains("requests take"), "{why}");
        // Once the windows are this long, nothing changes.
        assert_eq!(lengthened(longer, &[seen(&latencies)]), None);
    }
}
