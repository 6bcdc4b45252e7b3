//! Formats a report for a terminal: the complete report, or one line or one screen about the time since the previous
//! report.

use super::{CommandRow, Delay, OWN_PEERS, Report, Row};
use crate::figures::Kind;
use commensal_core::text::visible;
use std::fmt::Write as _;

impl Report {
    /// Formats the complete report for a terminal.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        self.headline(&mut out);
        let names: Vec<String> = self.culprits.iter().map(Row::label).collect();
        let parts =
            self.culprits.iter().flat_map(|row| &row.commands).map(|part| part.label().chars().count() + 2);
        let width = names.iter().map(|name| name.chars().count()).chain(parts).max().unwrap_or(0).max(26);
        if !self.culprits.is_empty() {
            let _ = writeln!(out, "\n{:width$}  ms per CPU-s   share", "who held the CPU meanwhile");
            for (name, row) in names.iter().zip(&self.culprits) {
                let value = |per: Option<f64>| per.map_or_else(|| "-".to_owned(), |per| format!("{per:.2}"));
                let _ = writeln!(
                    out,
                    "{name:width$}  {:>12}  {:>5.1} %",
                    value(row.ms_per_cpu_s),
                    row.share * 100.0
                );
                for part in &row.commands {
                    let (name, value) = (format!("  {}", part.label()), value(part.ms_per_cpu_s));
                    let _ = writeln!(out, "{name:width$}  {value:>12}  {:>5.1} %", part.share * 100.0);
                }
            }
            out.push('\n');
        }
        let _ = writeln!(out, "wake-up to running        {}", self.wake.text());
        if !self.against.is_empty() {
            let _ = writeln!(out, "offline work off the CPU  {}", self.preemption.text());
        }
        if self.overlap_ms > 0.0 {
            let share = self.overlap_ms / 10.0 / self.run_s;
            let _ = writeln!(
                out,
                "offline on an SMT sibling {} ({share:.1} % of its CPU time)",
                time(self.overlap_ms)
            );
            let longest =
                self.eviction.max_us.map(|max| format!(", at most {}", us(max))).unwrap_or_default();
            let _ = writeln!(out, "  leaving it              {}{longest}", self.eviction.text());
            let _ = writeln!(
                out,
                "  it stayed {} times until the service had left its CPU, and started next to the running service {} times",
                self.stayed, self.intrusions
            );
        }
        for subject in self.by_subject.iter().filter(|_| self.by_subject.len() > 1) {
            let waiting = time(subject.wait_ms);
            let _ = writeln!(
                out,
                "{}: {:.2} s on a CPU, {waiting} waiting",
                visible(&subject.name),
                subject.run_s
            );
        }
        if let Some(verdict) = &self.verdict {
            let _ = writeln!(out, "{}: {}", self.against.join(", "), verdict.result);
            for because in &verdict.because {
                let _ = writeln!(out, "  {because}");
            }
        }
        self.notes(&mut out);
        out
    }

    fn headline(&self, out: &mut String) {
        let _ = writeln!(
            out,
            "{}: {:.2} s on a CPU and {} waiting for one in {:.1} s ({} waits)",
            visible(&self.subjects.join(", ")),
            self.run_s,
            time(self.wait_ms),
            self.seconds,
            self.waits
        );
        let _ = match (self.wait_ms_per_cpu_s, self.by_others_ms_per_cpu_s) {
            (Some(all), Some(others)) => {
                writeln!(out, "wait per CPU-second {}, of which caused by others {}", ms(all), ms(others))
            }
            _ if self.wait_ms > 0.0 => {
                writeln!(out, "it had no CPU time at all, so there is no wait per CPU-second")
            }
            _ => writeln!(out, "the service had no CPU time, so its wait per CPU-second is unknown"),
        };
        for cause in &self.causes {
            let _ = writeln!(out, "{}", cause.text());
        }
    }

    fn notes(&self, out: &mut String) {
        let evidence = &self.evidence;
        if evidence.relevant_missed + evidence.lost > 0 {
            let share = evidence.relevant_missed as f64 / evidence.relevant.max(1) as f64 * 100.0;
            let _ = writeln!(
                out,
                "note: the kernel did not report {} of {} context switches during waits ({share:.3} %) to the probe, which hides who had \
                 the CPU for at most {:.2} ms of the waits; for {} runs, waits and sleeps ({:.2} ms), whose end it did not report, the kernel's own \
                 account was used",
                evidence.relevant_missed,
                evidence.relevant,
                evidence.hidden_ms,
                evidence.lost,
                evidence.lost_ms
            );
        }
        if evidence.skipped > 0 {
            let _ = writeln!(
                out,
                "note: the kernel skipped {} runs of the probe's programs, because a program was already running on that CPU",
                evidence.skipped
            );
        }
        if evidence.no_storage > 0 {
            let _ = writeln!(
                out,
                "note: {} events of threads were not counted, because the kernel gave the probe no memory for the thread",
                evidence.no_storage
            );
        }
        if evidence.unnamed_ms > 0.0 {
            let _ = writeln!(
                out,
                "note: {} of wait could not be attributed to a cgroup, because the map of culprits was full",
                time(evidence.unnamed_ms)
            );
        }
        if let Some(kernel) = &evidence.kernel {
            let _ = writeln!(
                out,
                "note: {} waits took {:.3} ms according to the kernel and {:.3} ms according to the probe; the kernel counted {} other \
                 waits, of {:.3} ms, as 0",
                kernel.waits,
                kernel.kernel_ms,
                kernel.ours_ms,
                kernel.kernel_zero,
                kernel.kernel_zero_ours_ms
            );
        }
    }

    /// Formats the report as one line.
    #[must_use]
    pub fn line(&self) -> String {
        let top = self.culprits.first();
        let who = |row: &Row| match row.commands.first().filter(|part| part.command.is_some()) {
            Some(part) => format!("{}, {}", row.label(), part.label()),
            None => row.label(),
        };
        let top =
            top.map(|row| format!(", most of it by {} ({})", who(row), time(row.ms))).unwrap_or_default();
        let others = self.by_others_ms_per_cpu_s.map_or_else(|| "-".to_owned(), ms);
        format!(
            "on a CPU {}, waiting {}; caused by others {others} per CPU-second{top}",
            time(self.run_s * 1e3),
            time(self.wait_ms)
        )
    }
}

impl Row {
    /// Returns the culprit's name, marked if the culprit is an offline target or another online target.
    #[must_use]
    pub fn label(&self) -> String {
        let name = visible(&self.name);
        match self.kind {
            kind if kind == Kind::Offline.name() => format!("{name} (offline)"),
            kind if kind == Kind::RealTime.name() => format!("{name} (real-time)"),
            kind if kind == Kind::Online.name() && self.name != OWN_PEERS => format!("{name} (peer)"),
            _ => name.into_owned(),
        }
    }
}

impl CommandRow {
    /// Returns the command with its user.
    #[must_use]
    pub fn label(&self) -> String {
        match (&self.command, &self.user) {
            (Some(command), Some(user)) => format!("{} of {}", visible(command), visible(user)),
            _ => "other commands".to_owned(),
        }
    }
}

impl Delay {
    fn text(&self) -> String {
        match (self.p50_us, self.p90_us, self.p99_us) {
            (Some(p50), Some(p90), Some(p99)) => {
                format!("P50 {}  P90 {}  P99 {}  ({} times)", us(p50), us(p90), us(p99), self.count)
            }
            _ => "never".to_owned(),
        }
    }
}

pub(crate) fn ms(value: f64) -> String {
    if value < 9.95 { format!("{value:.2} ms") } else { format!("{value:.1} ms") }
}

pub(crate) fn us(value: f64) -> String {
    match value {
        ..100.0 => format!("{value:.1} us"),
        ..10_000.0 => format!("{value:.0} us"),
        _ => format!("{:.1} ms", value / 1e3),
    }
}

pub(crate) fn time(value_ms: f64) -> String {
    match value_ms {
        ..1.0 => format!("{:.0} us", value_ms * 1e3),
        ..1_000.0 => format!("{value_ms:.1} ms"),
        _ => format!("{:.2} s", value_ms / 1e3),
    }
}
