//! Text output of `lab load`.

use commensal_lab::loadgen::{ErrorKinds, Knee, KneeEnd, KneePoint, LoadReport, Spread};
use commensal_lab::record::{LoadFigures, Metric};
use std::fmt::Write as _;

/// Percentiles of the latency table.
const COLUMNS: [(&str, Metric); 4] =
    [("P50", Metric::P50), ("P90", Metric::P90), ("P99", Metric::P99), ("P99.9", Metric::P999)];

/// The whole report as text.
pub fn report(report: &LoadReport, series: bool) -> String {
    let mut text = head(report);
    if report.valid {
        let _ = writeln!(text, "VALID");
    } else {
        let _ = writeln!(text, "INVALID: do not use these figures");
    }
    for line in report.invalid_reasons.iter().chain(&report.caveats) {
        let _ = writeln!(text, "  {line}");
    }
    rates(&mut text, report);
    latencies(&mut text, report);
    text.push_str(&failures(&report.load, &report.error_kinds));
    objective(&mut text, report);
    if series {
        seconds(&mut text, report);
    }
    text
}

fn head(report: &LoadReport) -> String {
    let asked = &report.asked;
    let how = match (asked.rate_per_s, asked.closed) {
        (_, Some(n)) => format!("closed loop, {n} connections"),
        (rate, None) => format!(
            "open loop, {} requests/s, {}, {} connections, seed {}",
            rate.unwrap_or_default(),
            asked.arrival.map_or_else(String::new, |arrival| format!("{arrival:?}").to_lowercase()),
            asked.connections,
            asked.seed
        ),
    };
    format!("{}\n{how}; {:.1} s after {:.1} s of warm-up\n\n", asked.url, report.measured_s, asked.warmup_s)
}

fn rates(text: &mut String, report: &LoadReport) {
    let [offered_per_s, achieved_per_s] =
        [report.load.offered_per_s, report.load.achieved_per_s].map(Option::unwrap_or_default);
    let share = achieved_per_s / offered_per_s.max(f64::MIN_POSITIVE) * 100.0;
    let _ = match report.asked.closed {
        Some(_) => writeln!(text, "\nachieved {achieved_per_s:.1} requests/s"),
        None => writeln!(
            text,
            "\noffered {offered_per_s:.1} requests/s, achieved {achieved_per_s:.1} ({share:.1} %)"
        ),
    };
}

fn latencies(text: &mut String, report: &LoadReport) {
    let _ = write!(text, "\n{:<22}", "milliseconds");
    for (name, _) in COLUMNS {
        let _ = write!(text, "{name:>11} ");
    }
    let _ = writeln!(text, "{:>11}{:>11}", "max", "requests");
    let mut few = false;
    let mut row = |name: &str, spread: &Option<Spread>| {
        let Some(spread) = spread else { return };
        let _ = write!(text, "{name:<22}");
        for ((_, metric), us) in COLUMNS.iter().zip([spread.p50, spread.p90, spread.p99, spread.p999]) {
            let enough = spread.count >= metric.requests_needed();
            few |= !enough;
            let _ = write!(text, "{:>11.3}{}", us / 1e3, if enough { ' ' } else { '*' });
        }
        let _ = writeln!(text, "{:>11.3}{:>11}", spread.max / 1e3, spread.count);
    };
    if report.asked.closed.is_none() {
        row("from the schedule", &report.latency_us);
        row("from the send", &report.service_us);
        row("generator was late by", &report.lateness_us);
    } else {
        row("from the send", &report.latency_us);
    }
    if few {
        let _ = writeln!(
            text,
            "* fewer than 100 requests took longer than this percentile: an indication, not a measurement"
        );
    }
}

fn failures(load: &LoadFigures, kinds: &ErrorKinds) -> String {
    let ErrorKinds { status, closed, malformed, backlog, io, socket_errors } = kinds;
    let kinds = [
        (*status, "with a status other than 2xx"),
        (*closed, "hung up"),
        (*malformed, "not HTTP"),
        (*backlog, "not sent: too many were waiting for a connection"),
        (*io, "other socket errors"),
        (load.timeouts, "timed out"),
    ];
    let met: Vec<String> =
        kinds.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    let failed = load.failed();
    let mut text = match failed {
        0 => format!("\nno errors among {} requests\n", load.offered_requests),
        _ => format!(
            "\n{failed} errors among {} requests ({:.2} %): {}\n",
            load.offered_requests,
            load.failed_share() * 100.0,
            met.join(", ")
        ),
    };
    if !socket_errors.is_empty() {
        let counts: Vec<String> =
            socket_errors.counts().map(|(name, count)| format!("{count} {name}")).collect();
        let _ = writeln!(text, "socket errors, with attempts to connect: {}", counts.join(", "));
    }
    if load.resent > 0 {
        let were = if load.resent == 1 { "request was" } else { "requests were" };
        let _ = writeln!(
            text,
            "{} {were} sent a second time, because the server had ended the kept connection before it responded",
            load.resent
        );
    }
    text
}

fn objective(text: &mut String, report: &LoadReport) {
    let Some(slo) = &report.slo else { return };
    let (asked, seen) = (slo.asked, slo.seen);
    let _ = writeln!(
        text,
        "objective {} <= {} ms: met in {} of {} windows of {} s and by {:.2} % of the requests; worst window {:.3} ms, \
         longest miss {:.0} s",
        asked.metric.label(),
        asked.latency_us / 1e3,
        seen.met,
        seen.windows,
        asked.window_s,
        seen.requests_met_pct,
        seen.worst_us / 1e3,
        seen.longest_miss_s
    );
}

fn seconds(text: &mut String, report: &LoadReport) {
    let _ = writeln!(text, "\n{:>8}{:>12}{:>12}{:>12}", "second", "answered/s", "P50 ms", "P99 ms");
    let ms = |us: Option<f64>| us.map_or_else(|| "-".to_owned(), |us| format!("{:.3}", us / 1e3));
    for tick in &report.series {
        let _ = writeln!(
            text,
            "{:>8.1}{:>12.1}{:>12}{:>12}",
            tick.t_s,
            tick.qps.unwrap_or_default(),
            ms(tick.p50_us),
            ms(tick.p99_us)
        );
    }
}

/// Header of a knee search's steps.
pub const KNEE_HEAD: &str = "  requests/s   achieved     P99 ms   generator late by, P99 ms";

/// One line for a step of a knee search.
pub fn knee_point(point: &KneePoint) -> String {
    format!(
        "{:>12.1}{:>9.1} %{:>11.3}{:>14.3}   {}{}",
        point.rate_per_s,
        point.achieved_share * 100.0,
        point.p99_us / 1e3,
        point.lateness_p99_us / 1e3,
        if point.keeps_up { "keeps up" } else { "does not keep up" },
        match (point.generator_late, point.generator_limited) {
            (_, true) => "; the generator ran into a limit of its own",
            (true, false) => "; the generator was late",
            (false, false) => "",
        }
    )
}

/// The result of a knee search as text.
pub fn knee(knee: &Knee, caveat: Option<&str>) -> String {
    let why = match knee.end {
        KneeEnd::Service => {
            "at a higher rate the service achieves less than 99 % of it, or its P99 exceeds the bound"
        }
        KneeEnd::Generator => {
            "INVALID as a bound: at a higher rate the generator itself was late, or ran out of ports, descriptors or \
             memory, so the service may sustain more"
        }
        KneeEnd::MaxRate => "this is the highest rate that is tried: the service sustains at least this",
        KneeEnd::Steps => {
            "the search reached its maximum number of steps: the service sustains at least this"
        }
    };
    let caveat = caveat.map(|caveat| format!("{caveat}\n")).unwrap_or_default();
    format!("knee {:.0} requests/s: {why}\n{caveat}", knee.per_s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_core::errno::Errno;

    #[test]
    fn failures_are_told_by_kind_and_by_error_number() {
        let check = |load: LoadFigures, kinds: &ErrorKinds, want: &str| {
            assert_eq!(failures(&load, kinds), want);
        };
        let mut load = LoadFigures { offered_requests: 1_000, ..LoadFigures::default() };
        let mut kinds = ErrorKinds::default();
        check(load, &kinds, "\nno errors among 1000 requests\n");
        load.resent = 1;
        let once = "1 request was sent a second time, because the server had ended the kept connection before it \
                    responded\n";
        check(load, &kinds, &format!("\nno errors among 1000 requests\n{once}"));
        load.resent = 35;
        let again = "35 requests were sent a second time, because the server had ended the kept connection before it \
                     responded\n";
        (load.errors, load.timeouts, kinds.io) = (2, 3, 2);
        for errno in [Errno::EPERM, Errno::EADDRNOTAVAIL, Errno::EPERM] {
            kinds.socket_errors.add(errno);
        }
        let errors = "\n5 errors among 1000 requests (0.50 %): 2 other socket errors, 3 timed out\n\
                      socket errors, with attempts to connect: 1 EADDRNOTAVAIL, 2 EPERM\n";
        check(load, &kinds, &format!("{errors}{again}"));
    }
}
