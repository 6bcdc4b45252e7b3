//! Checks whether the short windows of a run are long enough. In a run with short windows, arms (conditions of the
//! experiment) alternate within milliseconds; a switch changes the arm, and nothing is measured in the guard time after
//! a switch and in the tail before the next. An arm has settled when latency no longer depends on the time since the
//! switch.

use crate::record::{LatencyHistogram, Windows};

/// Minimum number of requests in a time bucket; the check ignores buckets with fewer requests.
const ENOUGH: u64 = 400;
/// A bucket is slower than the last bucket if its median exceeds the last bucket's median significantly, by more than
/// this factor.
const SLOWER: f64 = 1.05;
/// A difference of medians is significant from this number of standard errors: an error probability of 1 in 10,000 on
/// either side.
const CERTAIN: f64 = 3.7;
/// Maximum guard time (seconds). An arm that settles later needs long blocks.
const LONGEST_GUARD_S: f64 = 0.5;
/// Minimum length of a window as a multiple of the median latency, so that few of its requests finish in the next
/// window.
const MEDIANS: f64 = 10.0;
/// Minimum guard time and tail as a multiple of the median latency, so that requests from before a switch finish before
/// the next window.
const AROUND: f64 = 2.0;

/// Measurements of one arm.
pub(super) struct ArmSample<'h> {
    /// Whether this arm determines the window length.
    pub decides: bool,
    /// Whether the arm is the baseline, that is, the service alone.
    pub alone: bool,
    /// Latencies by time bucket; each entry starts with the beginning of its bucket in seconds since the switch.
    pub buckets: Vec<(f64, &'h LatencyHistogram)>,
}

/// Returns longer windows and the reason if the current windows are too short; otherwise returns `None`.
pub(super) fn lengthened(windows: Windows, seen: &[ArmSample<'_>]) -> Option<(Windows, String)> {
    let mut why = Vec::new();
    let mut longer = windows;
    let settled = seen.iter().filter(|arm| arm.decides).filter_map(|arm| settled_s(arm, windows.guard_s));
    if let Some(settled_s) = settled.reduce(f64::max) {
        longer.guard_s = settled_s.min(LONGEST_GUARD_S);
        why.push(format!("the latency of an arm settled only {:.0} ms after the switch", settled_s * 1e3));
    }
    let alone = seen.iter().filter(|arm| arm.alone).flat_map(|arm| &arm.buckets);
    let median = alone
        .filter(|(_, latency)| latency.len() >= ENOUGH / 4)
        .map(|(_, latency)| latency.value_at_quantile(0.5));
    if let Some(us) = median.max() {
        let median_s = us as f64 / 1e6;
        // The tolerance keeps a second check from restarting the run because of a difference of a few per cent.
        if median_s * MEDIANS > 1.25 * longer.window_s {
            longer.window_s = median_s * MEDIANS;
            longer.tail_s = median_s * AROUND;
            longer.guard_s = longer.guard_s.max(median_s * AROUND);
            longer.contended_s = longer.contended_s.max(longer.window_s);
            why.push(format!(
                "requests take {:.1} ms, and a window must be {MEDIANS} times as long",
                median_s * 1e3
            ));
        }
    }
    if longer.guard_s > windows.guard_s {
        // With this ratio, guard times take at most a sixth of the time.
        longer.window_s = longer.window_s.max(5.0 * longer.guard_s);
    }
    let changed = longer != windows;
    changed.then(|| {
        let ms = |seconds: f64| format!("{:.0} ms", seconds * 1e3);
        let now = format!(
            "windows are now {} after a guard time of {}, instead of {} after {}",
            ms(longer.window_s),
            ms(longer.guard_s),
            ms(windows.window_s),
            ms(windows.guard_s)
        );
        (longer, format!("{}; {now}", why.join("; ")))
    })
}

/// Returns when an arm had settled (in seconds since the switch); `None` if that was within the guard time. An arm has
/// settled at the end of the last bucket whose median is significantly higher than the final bucket's.
fn settled_s(arm: &ArmSample<'_>, guard_s: f64) -> Option<f64> {
    let after: Vec<&(f64, &LatencyHistogram)> =
        arm.buckets.iter().filter(|(from, latency)| *from >= guard_s && latency.len() >= ENOUGH).collect();
    let ((_, last), earlier) = after.split_last()?;
    let slower = |latency: &LatencyHistogram| bound(latency, -CERTAIN) > SLOWER * bound(last, CERTAIN);
    let index = earlier.iter().rposition(|(_, latency)| slower(latency))?;
    Some(after[index + 1].0)
}

/// Returns a confidence bound of the median in microseconds: the value whose rank is `errors` standard errors away from
/// the median's rank.
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

    /// Log-normal latencies around these medians, one histogram per bucket.
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

    // promise 38
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
        // Latency within the guard time does not matter.
        check([2_000.0, 400.0, 200.0, 200.0, 200.0], None);
        check([2_000.0, 400.0, 300.0, 200.0, 200.0], Some(50.0));
        check([2_000.0, 400.0, 300.0, 300.0, 200.0], Some(100.0));
        // Latency that rises with time is not settling.
        check([200.0, 200.0, 200.0, 250.0, 300.0], None);
    }

    // promise 38
    #[test]
    fn chance_rarely_lengthens_it() {
        let (windows, mut rng, mut alarms) = (Short::default().windows, Rng::new(11), 0);
        for _ in 0..500 {
            let latencies = latencies(&mut rng, [200.0; 5], 1_200);
            alarms += u32::from(lengthened(windows, &[seen(&latencies)]).is_some());
        }
        assert!(alarms <= 5, "{alarms} of 500");
    }

    // promise 38
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
        // Once the windows have this length, nothing changes.
        assert_eq!(lengthened(longer, &[seen(&latencies)]), None);
    }
}
