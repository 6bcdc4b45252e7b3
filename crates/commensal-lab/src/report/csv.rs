//! The report as CSV, with one row per block (the measurement of one arm, or way of running the service, in one round).
//! Numbers are ASCII; missing values are empty.

use super::sweep::value;
use crate::record::{Blamed, Block, Metric, Role, Run, Sweep, decode_histogram, percentile_us};
use commensal_core::text::visible;

const HEADER: &str = "round,pos,arm,role,valid,invalid_reason,measure_s,offered_per_s,achieved_per_s,requests,\
errors,timeouts,online_crashed,p50_us,p75_us,p90_us,p95_us,p99_us,p99_9_us,service_p50_us,service_p99_us,\
lateness_p50_us,lateness_p99_us,cpu_online,cpu_offline,cpu_other,cpu_steal,run_delay_online_s,\
run_delay_offline_s,throttled_online_s,throttled_offline_s,psi_cpu_some_pct,psi_memory_some_pct,\
psi_io_some_pct,psi_online_cpu_some_pct,psi_online_memory_some_pct,psi_online_io_some_pct,psi_offline_cpu_some_pct,\
psi_offline_memory_some_pct,psi_offline_io_some_pct,cpi_online,cpi_offline,blame_run_s,wait_other_s,wait_peers_s,wait_offline_s,wait_kernel_s,wait_nobody_s,\
wait_interrupts_s,preemptions,preemption_p99_us,wakeups,wakeup_p99_us,blame_missed_share,work_offline_per_s,work_unit";

/// Formats the blocks as CSV (RFC 4180, but with `\n` as line ends). Percentiles without enough requests are empty.
pub fn csv(run: &Run) -> String {
    let queries = || run.design.queries.iter().map(|query| query.metric);
    let titles = queries().map(|metric| format!(",{}", quoted(metric.label())));
    let swept =
        run.design.sweep.as_ref().map(|sweep| format!(",{}", quoted(&axis(sweep)))).unwrap_or_default();
    let mut out = format!("{HEADER}{}{swept}\n", titles.collect::<String>());
    for block in &run.blocks {
        let role = run.arms.iter().find(|arm| arm.name == block.arm).map(|arm| arm.role);
        let mut cells = row(block, role);
        cells.extend(queries().map(|metric| number(block.queried.get(&metric).copied())));
        cells.extend(run.design.sweep.as_ref().map(|_| number(value(run, &block.arm))));
        out.push_str(&cells.join(","));
        out.push('\n');
    }
    out
}

/// Formats the title of the column with the value of a sweep, such as `cpu.max, %`. A sweep is a run with one arm for
/// each value of a setting.
fn axis(sweep: &Sweep) -> String {
    if sweep.unit.is_empty() { sweep.what.clone() } else { format!("{}, {}", sweep.what, sweep.unit) }
}

fn row(block: &Block, role: Option<Role>) -> Vec<String> {
    let mut cells = vec![
        block.round.to_string(),
        block.pos.to_string(),
        quoted(&block.arm),
        role.map_or("", role_name).to_owned(),
        block.valid.to_string(),
        quoted(block.invalid_reason.as_deref().unwrap_or_default()),
        block.measure_s.to_string(),
        number(block.load.offered_per_s),
        number(block.load.achieved_per_s),
        block.load.offered_requests.to_string(),
        block.load.errors.to_string(),
        block.load.timeouts.to_string(),
        block.online_crashed.to_string(),
    ];
    let percentiles = [Metric::P50, Metric::P75, Metric::P90, Metric::P95, Metric::P99, Metric::P999];
    cells.extend(latencies(block.histograms.latency.as_deref(), &percentiles));
    cells.extend(latencies(block.histograms.service.as_deref(), &[Metric::P50, Metric::P99]));
    let (psi, groups) = (block.psi.unwrap_or_default(), block.group_psi.unwrap_or_default());
    cells.extend(
        [
            block.lateness_us.map(|l| l.p50),
            block.lateness_us.map(|l| l.p99),
            block.cpu.online,
            block.cpu.offline,
            block.cpu.other,
            block.cpu.steal,
            block.run_delay_s.online,
            block.run_delay_s.offline,
            block.throttled_s.online,
            block.throttled_s.offline,
            psi.cpu_some_pct,
            psi.memory_some_pct,
            psi.io_some_pct,
            groups.online.cpu_some_pct,
            groups.online.memory_some_pct,
            groups.online.io_some_pct,
            groups.offline.cpu_some_pct,
            groups.offline.memory_some_pct,
            groups.offline.io_some_pct,
            block.cpi.online,
            block.cpi.offline,
        ]
        .map(number),
    );
    let blame = |pick: fn(&Blamed) -> Option<f64>| number(block.blame.as_ref().and_then(pick));
    cells.extend([
        blame(|one| Some(one.run_s)),
        blame(|one| Some(one.wait_s.other)),
        blame(|one| Some(one.wait_s.peers)),
        blame(|one| Some(one.wait_s.offline)),
        blame(|one| Some(one.wait_s.kernel)),
        blame(|one| Some(one.wait_s.nobody)),
        blame(|one| Some(one.wait_s.interrupts)),
        blame(|one| Some(one.preemption.count as f64)),
        blame(|one| one.preemption.p99_us),
        blame(|one| Some(one.wake_up.count as f64)),
        blame(|one| one.wake_up.p99_us),
        blame(|one| Some(one.missed_share)),
        number(block.work.offline),
    ]);
    cells.push(quoted(block.work.unit.as_deref().unwrap_or_default()));
    cells
}

/// Returns percentiles of an encoded histogram, formatted with a tenth of a microsecond.
fn latencies(encoded: Option<&str>, metrics: &[Metric]) -> Vec<String> {
    let histogram = encoded.and_then(|text| decode_histogram(text).ok());
    let cell = |metric: &Metric| {
        let histogram = histogram.as_ref().filter(|h| h.len() >= metric.requests_needed())?;
        percentile_us(histogram, metric.quantile()?).map(|us| format!("{us:.1}"))
    };
    metrics.iter().map(|metric| cell(metric).unwrap_or_default()).collect()
}

fn number(value: Option<f64>) -> String {
    value.map(|v| v.to_string()).unwrap_or_default()
}

/// Formats a text field, in quotes if its characters require quotes.
pub(super) fn quoted(text: &str) -> String {
    let text = visible(text);
    if text.contains([',', '"']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.into_owned() }
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Baseline => "baseline",
        Role::Baseline2 => "baseline2",
        Role::PolicyOnly => "policy_only",
        Role::Warm => "warm",
        Role::Contended => "contended",
        Role::Isolated => "isolated",
        Role::OfflineAlone => "offline_alone",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn one_row_per_block_and_one_cell_per_column() {
        let run = fixture::small_run();
        let text = csv(&run);
        let columns = HEADER.split(',').count();
        assert_eq!(text.lines().count(), 1 + run.blocks.len());
        assert!(text.lines().all(|line| line.split(',').count() == columns), "{text}");
    }

    #[test]
    fn missing_values_are_empty() {
        let run = fixture::small_run();
        let text = csv(&run);
        let cells: Vec<&str> = text.lines().nth(1).unwrap().split(',').collect();
        let cell = |name: &str| cells[HEADER.split(',').position(|column| column == name).unwrap()];
        assert!(cell("p50_us").parse::<f64>().is_ok());
        assert_eq!(cell("p95_us"), "");
        assert_eq!(cell("psi_cpu_some_pct"), "12.5");
        assert_eq!(cell("psi_io_some_pct"), "");
        assert_eq!(cell("throttled_online_s"), "");
        assert_eq!(cell("service_p50_us"), "");
        assert_eq!(cell("work_unit"), "bogo-ops");
    }

    #[test]
    fn text_fields_are_quoted() {
        assert_eq!(quoted("late, by \"1 s\""), "\"late, by \"\"1 s\"\"\"");
        assert_eq!(quoted("late"), "late");
    }
}
