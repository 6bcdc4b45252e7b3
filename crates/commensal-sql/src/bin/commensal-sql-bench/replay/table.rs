//! Formats the tables as Markdown.

use super::{Arm, Figure, Plan, ReplayReport, Window, medians};
use crate::load::Latencies;
use commensal_host::{Host, LinuxHost};
use std::fmt::Write;
use std::path::Path;

const MIB: f64 = 1_048_576.0;

/// Formats the report: the machine, the parameters and the tables.
#[must_use]
pub fn print(report: &ReplayReport) -> String {
    let mut out = head(&report.plan);
    memory(&mut out, report);
    cpu(&mut out, report);
    reads(&mut out, "Local reads", &report.local, |window| window.read_mib, |window| window.told_local_mib);
    reads(
        &mut out,
        "Remote reads",
        &report.remote,
        |window| window.sent_mib,
        |window| window.told_remote_mib,
    );
    short_queries(&mut out, report);
    out
}

/// Formats the machine, the parameters, and the median and range of each value over several repeats.
#[must_use]
pub fn print_medians(plan: &Plan, repeats: &[Vec<Figure>]) -> String {
    let mut out = head(plan);
    let _ =
        writeln!(out, "\n{} repeats: the median and, in brackets, the least and the most.", repeats.len());
    out.push_str(&medians(repeats));
    out
}

/// Formats the machine, and an explanation of the values.
fn head(plan: &Plan) -> String {
    let mut out = String::from("# Document 002, replayed\n\n");
    let _ = writeln!(out, "{}\n", machine());
    let _ = writeln!(
        out,
        "Each row is measured with a new server, in the group g2. A window is 1 second; each measurement lasts {} \
         seconds, after 2 seconds of warm-up. CPU and local reads come from the kernel's counters of the server's \
         process (run time of its threads, rchar), remote reads from the store's count of bytes sent; \"shown\" is \
         `information_schema.workload_group_resource_usage`.",
        plan.seconds
    );
    out
}

/// Formats the table of short queries alongside scans.
fn short_queries(out: &mut String, report: &ReplayReport) {
    let every = report.short_queries.first().map_or(0.0, |row| row.every.as_secs_f64() * 1e3);
    let _ = writeln!(
        out,
        "\n\
         ## Short queries beside scans\n\n\
         An online group runs query number 20, one every {every:.1} ms for {} seconds; latencies count from the time at \
         which the query was due. Scans: {} clients, query number 29. The difference between the two rows without scans is \
         the noise of the machine.\n\n\
         | | queries | P50, ms | P90, ms | P99, ms | max, ms | CPU of the server and its workers, % of the machine | \
         scans in |\n\
         |---|---|---|---|---|---|---|---|",
        report.plan.seconds, report.plan.clients
    );
    for row in &report.short_queries {
        let ms = |share: f64| {
            let latency = row.latencies.quantile(share);
            latency.map_or("-".to_owned(), |latency| format!("{:.1}", latency.as_secs_f64() * 1e3))
        };
        let place = match (row.worker.as_str(), row.name.contains("scans")) {
            (_, false) => "-",
            ("", true) => "the server",
            (worker, true) => worker,
        };
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {:.1} | {place} |",
            row.name,
            row.queries,
            ms(0.5),
            ms(0.9),
            ms(0.99),
            ms(1.0),
            row.cpu_percent
        );
    }
}

/// Returns the machine, the kernel and the versions in one line.
fn machine() -> String {
    let host = LinuxHost::new();
    let read = |path: &str| host.read_file(Path::new(path)).unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let (info, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
    let model = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let model = model.trim_start_matches([' ', '\t', ':']);
    let kib = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let gib = kib.and_then(|kib| kib.trim().trim_end_matches(" kB").parse::<f64>().ok());
    let build = if cfg!(debug_assertions) { "debug build" } else { "release build" };
    format!(
        "Machine: {cpus} CPUs ({model}), {:.0} GiB, Linux {}; commensal-sql {} ({build}), DataFusion {}.",
        gib.unwrap_or(0.0) / MIB,
        read("/proc/sys/kernel/osrelease").trim(),
        env!("CARGO_PKG_VERSION"),
        datafusion::DATAFUSION_VERSION
    )
}

fn statements(out: &mut String, arms: &[Arm]) {
    for arm in arms.iter().filter(|arm| !arm.statements.is_empty()) {
        let _ = writeln!(out, "\n{}: `{}`", arm.name, arm.statements.join("; "));
    }
}

/// Returns the numbers of finished and failed statements, and the mean and maximum latency of the finished ones.
fn ends(arm: &Arm) -> (usize, usize, String) {
    let failed = arm.outcomes.iter().filter(|outcome| outcome.rows.is_err()).count();
    let finished = arm.outcomes.len() - failed;
    let sum: f64 = arm
        .outcomes
        .iter()
        .filter(|outcome| outcome.rows.is_ok())
        .map(|outcome| outcome.took.as_secs_f64())
        .sum();
    let latency = match Latencies::of(&arm.outcomes).quantile(1.0) {
        Some(most) => format!("{:.2} / {:.2} s", sum / finished as f64, most.as_secs_f64()),
        None => "none finished".to_owned(),
    };
    (finished, failed, latency)
}

fn memory(out: &mut String, report: &ReplayReport) {
    let _ = writeln!(
        out,
        "\n\
         ## Memory\n\n\
         {} clients run query number 33 (a group for each row) {} times, or joins of the table with itself. The limit is \
         one and a half times the memory that one such query uses alone.\n\n\
         | | finished | failed | group's memory, most | of the limit | process (RSS), most | latency mean / max | all \
         done in |\n\
         |---|---|---|---|---|---|---|---|",
        report.plan.clients, report.plan.queries
    );
    for arm in &report.memory {
        let (finished, failed, latency) = ends(arm);
        let used = arm.seen.told_peak as f64;
        let share = match arm.limit {
            Some(limit) => format!("{:.1} % of {:.0} MiB", used / limit as f64 * 100.0, limit as f64 / MIB),
            None => "none".to_owned(),
        };
        let _ = writeln!(
            out,
            "| {} | {finished} | {failed} | {:.0} MiB | {share} | {:.0} MiB | {latency} | {:.1} s |",
            arm.name,
            used / MIB,
            arm.seen.rss_peak as f64 / MIB,
            arm.seconds
        );
    }
    statements(out, &report.memory);
    let errors = report.memory.iter().flat_map(|arm| &arm.outcomes);
    if let Some(Err(error)) = errors.map(|outcome| &outcome.rows).find(|rows| rows.is_err()) {
        let _ = writeln!(out, "\nError message that a client gets: `{error}`");
    }
}

/// Formats mean, minimum and maximum.
fn spread(arm: &Arm, of: fn(&Window) -> f64, digits: usize) -> String {
    match arm.seen.spread(of) {
        Some((mean, least, most)) => format!("{mean:.digits$} ({least:.digits$} to {most:.digits$})"),
        None => "-".to_owned(),
    }
}

/// Returns what enforces the CPU limit. If the server could not start the group's worker process, also returns the
/// reason.
fn kept_by(arm: &Arm) -> String {
    match (arm.seen.limit_by.as_str(), arm.seen.worker.starts_with("no worker")) {
        ("", _) => "-".to_owned(),
        (by, false) => by.to_owned(),
        (by, true) => format!("{by} ({})", arm.seen.worker),
    }
}

fn cpu(out: &mut String, report: &ReplayReport) {
    let _ = writeln!(
        out,
        "\n## CPU\n\n{} clients run query number 29, which is the document's.\n\n\
         | | CPU, % of the machine (windows) | shown, % (windows) | kept by | finished | failed | latency mean / max |\n\
         |---|---|---|---|---|---|---|",
        report.plan.clients
    );
    for arm in &report.cpu {
        let (finished, failed, latency) = ends(arm);
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {finished} | {failed} | {latency} |",
            arm.name,
            spread(arm, |window| window.cpu_percent, 2),
            spread(arm, |window| window.told_cpu_percent, 2),
            kept_by(arm)
        );
    }
    statements(out, &report.cpu);
}

fn reads(out: &mut String, title: &str, arms: &[Arm], rate: fn(&Window) -> f64, told: fn(&Window) -> f64) {
    let _ = writeln!(
        out,
        "\n## {title}\n\n1 client reads the whole table; rows are counted, not returned (`dry_run_query`).\n\n\
         | | limit, MiB/s | MiB/s (windows) | shown, MiB/s (windows) | scans finished | failed | latency mean / max |\n\
         |---|---|---|---|---|---|---|"
    );
    for arm in arms {
        let (finished, failed, latency) = ends(arm);
        let limit = arm.limit.map_or("none".to_owned(), |limit| format!("{:.0}", limit as f64 / MIB));
        let _ = writeln!(
            out,
            "| {} | {limit} | {} | {} | {finished} | {failed} | {latency} |",
            arm.name,
            spread(arm, rate, 1),
            spread(arm, told, 1)
        );
    }
    statements(out, arms);
}
