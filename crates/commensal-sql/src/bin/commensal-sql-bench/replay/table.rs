//! The four tables as Markdown.

use super::{Arm, Figure, Plan, ReplayReport, Window, medians};
use crate::load::Latencies;
use commensal_host::{Host, LinuxHost};
use std::fmt::Write;
use std::path::Path;

const MIB: f64 = 1_048_576.0;

/// The report: the machine, the parameters, the tables.
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
    beside(&mut out, report);
    out
}

/// The machine, the parameters, and median and range of each figure over several repeats.
#[must_use]
pub fn print_medians(plan: &Plan, repeats: &[Vec<Figure>]) -> String {
    let mut out = head(plan);
    let _ =
        writeln!(out, "\n{} repeats: the median and, in brackets, the least and the most.", repeats.len());
    out.push_str(&medians(repeats));
    out
}

/// The machine, and an explanation of the figures.
fn head(plan: &Plan) -> String {
    let mut out = String::from("# Document 002, replayed\n\n");
    let _ = writeln!(out, "{}\n", machine());
    let _ = writeln!(
        out,
        "One server for each row, with the group g2. Windows are of 1 second, of {} seconds after 2 of warm-up; CPU and \
         local reads are the kernel's account of the server (threads' run time, rchar), remote reads what the store has \
         sent; \"shown\" is `information_schema.workload_group_resource_usage`.",
        plan.seconds
    );
    out
}

/// The table of short queries beside long ones.
fn beside(out: &mut String, report: &ReplayReport) {
    let every = report.beside.first().map_or(0.0, |row| row.every.as_secs_f64() * 1e3);
    let _ = writeln!(
        out,
        "\n## Short queries beside scans\n\nNumber 20 of the queries by an online group, one due every {every:.1} ms for {} seconds; latencies \
         from when it was due. Scans: {} clients, number 29. The two rows without scans differ by what the machine does.\n\n\
         | | queries | P50, ms | P90, ms | P99, ms | max, ms | CPU of the server and its workers, % of the machine | scans in |\n\
         |---|---|---|---|---|---|---|---|",
        report.plan.seconds, report.plan.clients
    );
    for row in &report.beside {
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

/// The machine, the kernel and the versions in a line.
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

/// Numbers of finished and failed statements, and mean and maximum latency of the finished ones.
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
        "\n## Memory\n\n{} clients, {} times number 33 of the queries (a group for each row), and a join of the table with itself. \
         The limit is one and a half times what one of them takes by itself.\n\n\
         | | finished | failed | group's memory, most | of the limit | process (RSS), most | latency mean / max | all done in |\n\
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
        let _ = writeln!(out, "\nWhat a client reads: `{error}`");
    }
}

/// Mean, minimum and maximum.
fn spread(arm: &Arm, of: fn(&Window) -> f64, digits: usize) -> String {
    match arm.seen.spread(of) {
        Some((mean, least, most)) => format!("{mean:.digits$} ({least:.digits$} to {most:.digits$})"),
        None => "-".to_owned(),
    }
}

/// What enforces the CPU limit, and why no worker does where one was wanted.
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
        "\n## CPU\n\n{} clients, number 29 of the queries (the document's).\n\n\
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
        "\n## {title}\n\n1 client, whole table, rows counted and not given (`dry_run_query`).\n\n\
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
